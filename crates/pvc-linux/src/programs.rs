use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, geteuid};
use pvc_ports::{
    FilesError, MOST_LINE_BYTES, Program, ProgramEnd, ProgramSignal, Programs, ProgramsError,
    Random as _, RunningProgram, aside,
};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::Instant;

use crate::files::{failed, open};
use crate::{OsRandom, starters};

/// The variable that every process inherits from the program that started it. It is the only thing
/// that stays with a process which changes its group, its session and its user.
const MARK: &str = "PVC_PROGRAM";

/// File of the runtime directory with the word that is part of every mark.
const WORD: &str = "programs.word";

/// Length of the word, in hexadecimal digits.
const WORD_DIGITS: u64 = 32;

/// Directories in which programs look for others.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Time that the kernel may take to read a program from its disk.
const STARTS: Duration = Duration::from_secs(10);

/// Number of lines that wait for whoever takes them.
const WAITING_LINES: usize = 1000;

/// Time that processes may take to die after they were killed.
const DEATH: Duration = Duration::from_secs(5);

/// Time between two looks whether they died.
const POLL: Duration = Duration::from_millis(20);

/// Number of bytes of a process' environment that are looked through.
const MOST_ENVIRONMENT_BYTES: u64 = 1 << 20;

/// Programs of this machine that belong to daemons of one kind.
#[derive(Clone)]
pub struct LinuxPrograms {
    owner: String,
    /// The owner and the word.
    kind: String,
}

impl LinuxPrograms {
    /// For daemons of the kind `owner`: `pvcnoded`. What another kind has left behind is not theirs
    /// to end.
    ///
    /// The directory `runtime` must outlive the daemon. The mark of processes holds a random word
    /// that is kept in it, and that only this user and its processes know: whoever else says that
    /// it is a process of ours is not believed.
    ///
    /// # Errors
    /// If the word can neither be read nor be made, or if others may know it.
    pub fn new(owner: &str, runtime: &Path) -> Result<Self, FilesError> {
        let kind = format!("{owner}/{}", word(runtime)?);
        Ok(LinuxPrograms { owner: owner.to_owned(), kind })
    }
}

/// Without the word, which would end in logs.
impl fmt::Debug for LinuxPrograms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinuxPrograms").field("owner", &self.owner).finish_non_exhaustive()
    }
}

/// The word that is kept in the directory. It is made if there is none.
fn word(runtime: &Path) -> Result<String, FilesError> {
    let path = runtime.join(WORD);
    match read_word(&path) {
        Err(FilesError::Missing { .. }) => {
            make_word(&path)?;
            read_word(&path)
        }
        read => read,
    }
}

fn read_word(path: &Path) -> Result<String, FilesError> {
    let (file, found) = open(path, "read", OpenOptions::new().read(true))?;
    let user = file.metadata().map_err(failed("read", path))?.uid();
    let mut word = String::new();
    file.take(WORD_DIGITS + 1).read_to_string(&mut word).map_err(failed("read", path))?;
    let is_ours = user == geteuid().as_raw() && found.mode & 0o077 == 0;
    let is_word = word.len() as u64 == WORD_DIGITS && word.bytes().all(|b| b.is_ascii_hexdigit());
    match is_ours && is_word {
        true => Ok(word),
        false => {
            let source = io::Error::other("it holds no word that this user alone can read");
            Err(failed("trusted", path)(source))
        }
    }
}

/// Makes the file, whole, unless another daemon is faster.
fn make_word(path: &Path) -> Result<(), FilesError> {
    let random = || format!("{:016x}{:016x}", OsRandom.next_u64(), OsRandom.next_u64());
    let new = path.with_file_name(format!(".{WORD}.{}", random()));
    let make = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(random().as_bytes())?;
        match fs::hard_link(&new, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    };
    let made = make();
    // It may not even have been made.
    let _ = fs::remove_file(&new);
    made.map_err(failed("made", path))
}

/// Daemon, and program of it, that a process comes from.
struct Mark<'a> {
    kind: &'a str,
    daemon: u32,
    /// Start of the daemon, in the kernel's ticks since the boot: its number is used again.
    begun: u64,
}

impl<'a> Mark<'a> {
    fn parse(text: &'a str) -> Option<Mark<'a>> {
        let mut parts = text.rsplitn(4, '/').skip(1);
        let begun = parts.next()?.parse().ok()?;
        let daemon = parts.next()?.parse().ok()?;
        Some(Mark { kind: parts.next()?, daemon, begun })
    }

    fn daemon_lives(&self) -> bool {
        begun(self.daemon) == Some(self.begun)
    }
}

/// Start of a process, in the kernel's ticks since the boot; `None` if there is none.
fn begun(process: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The second field is the program's name in parentheses, with anything in it; this one is the
    // 22nd (proc(5)).
    let (_, behind) = stat.rsplit_once(") ")?;
    behind.split(' ').nth(19)?.parse().ok()
}

/// The mark of a process. A zombie has none, and neither has one that we may not look at.
fn mark_of(process: i32) -> Option<String> {
    let mut environment = Vec::new();
    let file = fs::File::open(format!("/proc/{process}/environ")).ok()?;
    file.take(MOST_ENVIRONMENT_BYTES).read_to_end(&mut environment).ok()?;
    let mut entries = environment.split(|byte| *byte == 0);
    let mark = entries.find_map(|entry| {
        entry.strip_prefix(MARK.as_bytes()).and_then(|rest| rest.strip_prefix(b"="))
    });
    mark.map(|mark| String::from_utf8_lossy(mark).into_owned())
}

/// A process, by a descriptor of the kernel: its number may be another's by the time it is used.
struct Handle(OwnedFd);

impl Handle {
    /// Of the process that has this number now.
    fn open(process: i32) -> nix::Result<Handle> {
        // SAFETY: the call takes two numbers and touches no memory of ours.
        let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) };
        let descriptor = i32::try_from(Errno::result(opened)?).map_err(|_| Errno::EBADF)?;
        // SAFETY: the kernel has just opened it for us, and nobody else knows it.
        Ok(Handle(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }

    /// A process that has ended hears nothing.
    fn signal(&self, signal: Signal) {
        let info = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: the descriptor is open as long as `self`, and without information the kernel
        // reads none.
        let sent = unsafe {
            let (descriptor, signal) = (self.0.as_raw_fd(), signal as i32);
            libc::syscall(libc::SYS_pidfd_send_signal, descriptor, signal, info, 0)
        };
        if let Err(errno) = Errno::result(sent)
            && errno != Errno::ESRCH
        {
            tracing::warn!(%errno, %signal, "a process could not be signalled");
        }
    }
}

/// Kills every process whose mark `is_meant`, and returns their numbers.
fn kill_marked(is_meant: impl Fn(&str) -> bool) -> io::Result<BTreeSet<i32>> {
    let own = std::process::id().cast_signed();
    let is_marked =
        |process| process != own && mark_of(process).is_some_and(|mark| is_meant(&mark));
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/proc")? {
        let Some(process) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if !is_marked(process) {
            continue;
        }
        found.insert(process);
        // Looked at again with the descriptor at hand: it may have ended in between.
        if let Ok(handle) = Handle::open(process)
            && is_marked(process)
        {
            handle.signal(Signal::SIGKILL);
        }
    }
    Ok(found)
}

/// Kills every process whose mark `is_meant` until there is none, and returns how many there were.
///
/// A process that runs another program this moment has no mark while the kernel changes its memory,
/// so there is none only when two looks in a row find none.
async fn kill_all(
    name: &str,
    is_meant: impl Fn(&str) -> bool + Clone + Send + 'static,
) -> Result<usize, ProgramsError> {
    let (mut all, until) = (BTreeSet::new(), Instant::now() + DEATH);
    let mut found_none = false;
    loop {
        let is_meant = is_meant.clone();
        let found = aside(move || kill_marked(is_meant)).await;
        let found = found.map_err(|source| ProgramsError::Unlisted { source })?;
        match (found.is_empty(), found_none) {
            (true, true) => return Ok(all.len()),
            (is_none, _) => found_none = is_none,
        }
        if !found_none && Instant::now() >= until {
            return Err(ProgramsError::Immortal { name: name.to_owned(), count: found.len() });
        }
        all.extend(found);
        tokio::time::sleep(POLL).await;
    }
}

struct Running {
    name: String,
    pid: u32,
    mark: String,
    handle: Handle,
    end: watch::Receiver<Option<ProgramEnd>>,
    lines: Mutex<mpsc::Receiver<String>>,
}

impl Running {
    /// Kills the process group as long as its first process has not been waited for: until then
    /// its number is nobody else's.
    fn kill_group(&self) {
        if self.end.borrow().is_none()
            && let Ok(group) = i32::try_from(self.pid)
        {
            // It may have ended a moment ago, which is all we want.
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill_group();
    }
}

fn end_of(status: ExitStatus) -> ProgramEnd {
    match (status.code(), status.signal()) {
        (Some(code), _) => ProgramEnd::Exited(code),
        (None, signal) => ProgramEnd::Killed(signal.unwrap_or(0)),
    }
}

/// Reads lines until the pipe is closed. What nobody takes in time is left out.
async fn forward(pipe: Option<impl AsyncRead + Unpin>, lines: mpsc::Sender<String>) {
    let Some(pipe) = pipe else { return };
    let (mut pipe, mut line, mut left_out) = (BufReader::new(pipe), Vec::new(), 0_u64);
    loop {
        // A read error ends the output where it is.
        let read = pipe.fill_buf().await.unwrap_or_default();
        let (length, is_end) = (read.len(), read.is_empty());
        let (begin, is_whole) = match read.iter().position(|byte| *byte == b'\n') {
            Some(end) => (&read[..end], true),
            None => (read, is_end),
        };
        let room = MOST_LINE_BYTES.saturating_sub(line.len());
        line.extend_from_slice(&begin[..begin.len().min(room)]);
        let used = (begin.len() + 1).min(length);
        pipe.consume(used);
        if is_whole && !(is_end && line.is_empty()) {
            left_out = offer(&lines, std::mem::take(&mut line), left_out);
        }
        if is_end {
            break;
        }
    }
    if left_out > 0 {
        // Whoever takes the lines is gone, or takes this one.
        let _ = lines.send(left_out_line(left_out)).await;
    }
}

fn left_out_line(count: u64) -> String {
    format!("({count} lines were left out)")
}

/// Offers a line to whoever takes them, behind a word about those that were left out before.
/// Returns how many are left out now.
fn offer(lines: &mpsc::Sender<String>, line: Vec<u8>, left_out: u64) -> u64 {
    if left_out > 0 && lines.try_send(left_out_line(left_out)).is_err() {
        return left_out + 1;
    }
    let is_odd = |c: char| c.is_control() && c != '\t';
    let text = String::from_utf8_lossy(&line).replace(is_odd, "\u{fffd}");
    u64::from(lines.try_send(text).is_err())
}

#[async_trait]
impl Programs for LinuxPrograms {
    async fn start(&self, program: &Program) -> Result<Arc<dyn RunningProgram>, ProgramsError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let daemon = std::process::id();
        let turn = COUNT.fetch_add(1, Ordering::Relaxed);
        let begun = begun(daemon).unwrap_or(0);
        let mark = format!("{}/{daemon}/{begun}/{turn}", self.kind);
        let failed = |source: io::Error| {
            let program = program.program.clone();
            match source.kind() {
                io::ErrorKind::NotFound => ProgramsError::Missing { program },
                _ => ProgramsError::Failed { program, source },
            }
        };
        let mut command = tokio::process::Command::new(&program.program);
        command
            .args(&program.args)
            .env_clear()
            .env("PATH", SEARCH_PATH)
            .envs(program.env.iter().map(|(name, value)| (name, value)))
            .env(MARK, &mark)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let started = tokio::time::timeout(STARTS, starters::start(command)).await;
        let late = || io::Error::new(io::ErrorKind::TimedOut, "it was not started in time");
        let mut child = started.unwrap_or_else(|_| Err(late())).map_err(failed)?;
        let pid = child.id().ok_or_else(|| failed(Errno::ESRCH.into()))?;
        // Nobody has waited for it yet: the number is its own.
        let handle = Handle::open(pid.cast_signed()).map_err(|errno| failed(errno.into()))?;
        let (offered, lines) = mpsc::channel(WAITING_LINES);
        tokio::spawn(forward(child.stdout.take(), offered.clone()));
        tokio::spawn(forward(child.stderr.take(), offered));
        let (ended, end) = watch::channel(None);
        tokio::spawn(async move {
            let end = match child.wait().await {
                Ok(status) => end_of(status),
                Err(error) => {
                    tracing::error!(%error, pid, "the end of a program cannot be waited for");
                    ProgramEnd::Killed(0)
                }
            };
            ended.send_replace(Some(end));
        });
        let (name, lines) = (program.name.clone(), Mutex::new(lines));
        Ok(Arc::new(Running { name, pid, mark, handle, end, lines }))
    }

    async fn end_left_over(&self) -> Result<usize, ProgramsError> {
        let kind = self.kind.clone();
        let is_left_over = move |mark: &str| {
            Mark::parse(mark).is_some_and(|mark| mark.kind == kind && !mark.daemon_lives())
        };
        kill_all(&self.owner, is_left_over).await
    }
}

#[async_trait]
impl RunningProgram for Running {
    fn pid(&self) -> u32 {
        self.pid
    }

    async fn ended(&self) -> ProgramEnd {
        let mut end = self.end.clone();
        let end = match end.wait_for(Option::is_some).await {
            Ok(end) => *end,
            // The runtime ends, and kills it.
            Err(_) => None,
        };
        match end {
            Some(end) => end,
            None => std::future::pending().await,
        }
    }

    async fn line(&self) -> Option<String> {
        self.lines.lock().await.recv().await
    }

    fn signal(&self, signal: ProgramSignal) {
        self.handle.signal(match signal {
            ProgramSignal::Hangup => Signal::SIGHUP,
            ProgramSignal::Interrupt => Signal::SIGINT,
            ProgramSignal::Terminate => Signal::SIGTERM,
            ProgramSignal::User1 => Signal::SIGUSR1,
            ProgramSignal::User2 => Signal::SIGUSR2,
        });
    }

    async fn kill(&self) -> Result<(), ProgramsError> {
        self.kill_group();
        let own = self.mark.clone();
        kill_all(&self.name, move |mark| mark == own).await?;
        // Its memory, and with it its mark, goes before the files that it has open are closed.
        let ended = tokio::time::timeout(DEATH, self.ended()).await;
        let immortal = |_| ProgramsError::Immortal { name: self.name.clone(), count: 1 };
        ended.map(drop).map_err(immortal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn long_lines_are_cut_and_odd_ones_are_made_text() {
        let long = vec![b'x'; 3 * MOST_LINE_BYTES];
        let text = [&long[..], b"\na\xff\x1bb\n\nlast"].concat();
        let (offered, mut lines) = mpsc::channel(10);
        forward(Some(&text[..]), offered).await;
        assert_eq!(lines.recv().await.unwrap().len(), MOST_LINE_BYTES);
        for expected in ["a\u{fffd}\u{fffd}b", "", "last"] {
            assert_eq!(lines.recv().await.as_deref(), Some(expected));
        }
        assert_eq!(lines.recv().await, None);
    }

    #[test]
    fn the_word_is_made_once_and_not_taken_from_a_file_that_others_can_read_or_have_made() {
        let runtime = tempfile::tempdir().unwrap();
        let path = runtime.path().join(WORD);
        let first = word(runtime.path()).unwrap();
        assert_eq!(word(runtime.path()).unwrap(), first);
        assert_eq!(fs::read_dir(runtime.path()).unwrap().count(), 1, "nothing else is left");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        let shown = format!("{:?}", LinuxPrograms::new("pvcnoded", runtime.path()).unwrap());
        assert!(shown.contains("pvcnoded") && !shown.contains(&first), "{shown}");

        let refused = |what: &str| {
            let error = word(runtime.path()).unwrap_err().to_string();
            assert!(error.contains("could not be trusted"), "{what}: {error}");
        };
        let readable = |mode| {
            use std::os::unix::fs::PermissionsExt as _;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        readable(0o640);
        refused("its group can read it");
        readable(0o600);
        fs::write(&path, "").unwrap();
        refused("it is empty");
        fs::write(&path, format!("{first}0")).unwrap();
        refused("it is too long");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
        let error = word(runtime.path()).unwrap_err();
        assert!(matches!(error, FilesError::NotAFile { .. }), "{error}");
    }

    #[test]
    fn a_daemon_lives_as_long_as_a_process_of_its_number_and_its_beginning() {
        let own = std::process::id();
        let begun = begun(own).unwrap();
        let lives = |text: &str| Mark::parse(text).unwrap().daemon_lives();
        assert!(lives(&format!("pvcnoded/{own}/{begun}/0")));
        assert!(!lives(&format!("pvcnoded/{own}/{}/0", begun + 1)), "another of that number");
        assert!(!lives("pvcnoded/99999999/1/0"));
        for bad in ["", "pvcnoded", "pvcnoded/x/1/0", "pvcnoded/1"] {
            assert!(Mark::parse(bad).is_none(), "{bad}");
        }
    }
}
