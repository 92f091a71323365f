//! Ctrl-C. By itself it ends the program as it ends any other. While somebody waits for work that
//! goes on without them, the command says so first; while another program has the terminal, Ctrl-C
//! is that program's.
//!
//! Whichever way, the program ends by the signal itself: a shell then ends the loop around it, too,
//! and says 130 ([`Exit::Interrupted`]).

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::time::Duration;

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use crate::outcome::Exit;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static COMPATIBLE: AtomicBool = AtomicBool::new(false);
static WORDS: AtomicPtr<Words> = AtomicPtr::new(std::ptr::null_mut());
static UNFINISHED: AtomicPtr<CString> = AtomicPtr::new(std::ptr::null_mut());

/// Signals by which somebody or the system ends a program.
const ENDS: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// A text, and the stream it goes to.
struct Words {
    stream: i32,
    text: String,
}

/// Stream that [`last_words`] go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Out = 1,
    Error = 2,
}

/// Prepares for Ctrl-C: with `compat` it says "Aborted!" and ends with
/// [`Exit::Failed`], as PVC 1.0.3's client does.
pub fn prepare(compat: bool) {
    COMPATIBLE.store(compat, Ordering::Relaxed);
    usual();
}

/// From now on Ctrl-C only sets a mark that [`happened`] shows.
pub fn watch() {
    install(SigHandler::Handler(mark));
}

/// Whether there was a Ctrl-C since [`watch`].
pub fn happened() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Sleeps, but not on after Ctrl-C where [`watch`] looks out for it.
pub fn pause(duration: Duration) {
    let slice = Duration::from_millis(50);
    let mut left = duration;
    while !left.is_zero() && !happened() {
        let nap = left.min(slice);
        std::thread::sleep(nap);
        left -= nap;
    }
}

/// Action of Ctrl-C until this is dropped; then it ends the program as usual again.
#[must_use]
pub struct Meanwhile(());

impl Drop for Meanwhile {
    fn drop(&mut self) {
        UNFINISHED.store(std::ptr::null_mut(), Ordering::Release);
        usual();
    }
}

/// Meanwhile Ctrl-C writes `text` before it ends the program. It is for calls that do not return
/// before the work is done.
pub fn last_words(stream: Stream, text: String) -> Meanwhile {
    let words = Box::new(Words { stream: stream as i32, text });
    // Never freed: a handler may read it at any moment, and a command has one.
    WORDS.store(Box::into_raw(words), Ordering::Release);
    install(SigHandler::Handler(speak));
    Meanwhile(())
}

/// Makes a file that must not exist, its owner's alone. Meanwhile Ctrl-C and the other [signals
/// that end a program](ENDS) remove it before they do: a read from a connection does not return
/// because of them.
///
/// # Errors
/// The file cannot be made.
pub fn unfinished(path: &Path) -> io::Result<(File, Meanwhile)> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    let ends: SigSet = ENDS.into_iter().collect();
    let before = ends.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK)?;
    let made = File::options().write(true).create_new(true).mode(0o600).open(path);
    let made = made.map(|file| {
        // Never freed: a handler may read it at any moment, and a command has one.
        UNFINISHED.store(Box::into_raw(Box::new(name)), Ordering::Release);
        for signal in ENDS {
            replace(signal, SigHandler::Handler(remove));
        }
        (file, Meanwhile(()))
    });
    before.thread_set_mask()?;
    made
}

/// Meanwhile Ctrl-C is left to the program that has the terminal: an editor, a pager. It gets the
/// signal itself, and must not lose the terminal to a shell because this program has ended.
pub fn left_to_another() -> Meanwhile {
    install(SigHandler::Handler(nothing));
    Meanwhile(())
}

/// Ends the program as Ctrl-C does.
pub fn end() {
    install(SigHandler::SigDfl);
    let _ = nix::sys::signal::raise(Signal::SIGINT);
}

fn usual() {
    let compat = COMPATIBLE.load(Ordering::Relaxed);
    install(if compat { SigHandler::Handler(abort) } else { SigHandler::SigDfl });
}

fn install(handler: SigHandler) {
    let _ = act(Signal::SIGINT, handler);
}

/// Sets the action of a signal, unless it is ignored, as `nohup` wants it.
fn replace(signal: Signal, handler: SigHandler) {
    if let Ok(SigHandler::SigIgn) = act(signal, handler) {
        let _ = act(signal, SigHandler::SigIgn);
    }
}

fn act(signal: Signal, handler: SigHandler) -> nix::Result<SigHandler> {
    let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: the handlers do nothing but what a signal handler may: load and store atomics, write
    // what does not change any more, remove a file, set a disposition, raise, exit.
    unsafe { sigaction(signal, &action) }.map(|before| before.handler())
}

extern "C" fn mark(_: i32) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

extern "C" fn nothing(_: i32) {}

extern "C" fn speak(signal: i32) {
    // SAFETY: what the pointer shows is never freed nor changed once it is set.
    if let Some(words) = unsafe { WORDS.load(Ordering::Acquire).as_ref() } {
        write(words.stream, words.text.as_bytes());
    }
    finish(signal);
}

extern "C" fn remove(signal: i32) {
    // SAFETY: what the pointer shows is never freed nor changed once it is set, and a file may be
    // removed in a signal handler.
    unsafe {
        if let Some(path) = UNFINISHED.load(Ordering::Acquire).as_ref() {
            nix::libc::unlink(path.as_ptr());
        }
    }
    finish(signal);
}

/// Ends the program by the signal, or as PVC 1.0.3's client ends by Ctrl-C.
fn finish(signal: i32) {
    if signal == Signal::SIGINT as i32 && COMPATIBLE.load(Ordering::Relaxed) {
        abort(signal);
    }
    // SAFETY: both may be called in a signal handler. The signal ends the program as soon as this
    // handler returns.
    unsafe {
        nix::libc::signal(signal, nix::libc::SIG_DFL);
        nix::libc::raise(signal);
    }
}

extern "C" fn abort(_: i32) {
    write(Stream::Error as i32, b"Aborted!\n");
    // SAFETY: it may be called in a signal handler.
    unsafe { nix::libc::_exit(Exit::Failed as i32) }
}

fn write(stream: i32, text: &[u8]) {
    // SAFETY: it may be called in a signal handler, and the buffer is as long as it says.
    unsafe { nix::libc::write(stream, text.as_ptr().cast(), text.len()) };
}
