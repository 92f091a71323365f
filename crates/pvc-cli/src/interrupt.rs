//! Ctrl-C. By itself it ends the program as it ends any other; while somebody waits for work that
//! goes on without them, it ends the waiting and lets the command say so.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// With `compat`, Ctrl-C says "Aborted!" and ends with 1, as the first client did.
pub fn prepare(compat: bool) {
    if compat {
        install(SigHandler::Handler(abort));
    }
}

/// From now on Ctrl-C only sets a mark that [`happened`] shows.
pub fn watch() {
    install(SigHandler::Handler(mark));
}

/// Whether Ctrl-C was pressed since [`watch`].
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

fn install(handler: SigHandler) {
    let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: both handlers do nothing but what a signal handler may: store into an atomic, or
    // write a constant and exit.
    let _ = unsafe { sigaction(Signal::SIGINT, &action) };
}

extern "C" fn mark(_: i32) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

extern "C" fn abort(_: i32) {
    let text = b"Aborted!\n";
    // SAFETY: write and _exit may be called in a signal handler, and the buffer is a constant.
    unsafe {
        nix::libc::write(2, text.as_ptr().cast(), text.len());
        nix::libc::_exit(1);
    }
}
