use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use pvc_ports::{
    MOST_MESSAGE_BYTES, MOST_SCRIPT_LINE_BYTES, ScriptJob, ScriptMessage, ScriptOrder,
    ScriptProcess, Scripts, ScriptsError, aside,
};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::Child;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::group::Group;
use crate::home::Home;
use crate::wire;

/// The Python modules by their paths.
const MODULES: &[(&str, &str)] = &include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// Python as the nodes have it, with the packages of the distribution.
const PYTHON: &str = "/usr/bin/python3";

/// Directories in which programs look for others.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Gives the socket, which comes as standard input, its number, enters the control group in each
/// of its hierarchies, and becomes the program. A script is what the kernel kills first where
/// memory is short.
const BEGIN: &str = "exec 3<&0 </dev/null\n\
                     echo 500 >/proc/self/oom_score_adj\n\
                     for group in \"$1\" \"$2\"; do\n\
                     [ -z \"$group\" ] || echo $$ >\"$group/cgroup.procs\" || exit 125\n\
                     done\n\
                     shift 2\n\
                     exec \"$@\"";

/// The most bytes of lines that one script writes and logs; what comes behind them is left out.
const MOST_OUTPUT_BYTES: usize = 8 << 20;

/// Number of messages that wait for whoever takes them.
const WAITING: usize = 64;

/// Time that processes may take to die after they were killed, and pipes to be read after their
/// end.
const DEATH: Duration = Duration::from_secs(5);
const DRAIN: Duration = Duration::from_secs(1);

/// Time that a process may take to take its first message.
const START: Duration = Duration::from_secs(30);

/// File of a script's directory with the paths of its control group, a line each.
const GROUP: &str = "group";

/// Directory in which a script's root is made, which nobody sees but its own processes.
const ROOT: &str = "root";

/// Runs scripts by Python in namespaces of their own (`unshare`).
pub struct LinuxScripts {
    home: Home,
}

impl LinuxScripts {
    pub fn new(home: Home) -> Self {
        LinuxScripts { home }
    }
}

#[async_trait]
impl Scripts for LinuxScripts {
    async fn start(&self, job: &ScriptJob) -> Result<Box<dyn ScriptProcess>, ScriptsError> {
        if !Path::new(PYTHON).exists() {
            return Err(ScriptsError::Missing { program: PYTHON.to_owned() });
        }
        let directory = self.home.path().join(&job.name);
        let mut process = match self.begin(job, &directory).await {
            Ok(process) => process,
            Err(source) => {
                // What is there already is of another attempt, which may be at work.
                if source.kind() != io::ErrorKind::AlreadyExists
                    && let Err(error) = remove(&directory).await
                {
                    tracing::warn!(%error, "what a script has left could not be removed");
                }
                return Err(ScriptsError::NotStarted { source });
            }
        };
        let path = |name| process.directory().join(name).display().to_string();
        let first = wire::job(job, &path("script.py"), &path(ROOT));
        let sent = timeout(START, process.send(first)).await;
        sent.map_err(|late| ScriptsError::NotStarted { source: late.into() })??;
        Ok(Box::new(process))
    }

    async fn end_left_over(&self) -> Result<(), ScriptsError> {
        let place = self.home.path().display().to_string();
        let left = |source| ScriptsError::Left { place: place.clone(), source };
        let mut ended = Ok(());
        for other in self.home.others().map_err(left)?.left {
            let entries = fs::read_dir(&other.path).map_err(left)?.filter_map(io::Result::ok);
            for path in entries.map(|entry| entry.path()) {
                if path.join("script.py").exists() {
                    // What cannot be removed keeps none of the others.
                    ended = ended.and(remove(&path).await);
                }
            }
            ended = ended.and(other.remove_if_empty().map_err(left));
        }
        ended
    }
}

impl LinuxScripts {
    /// Makes the directory and the control group of a script, and starts it there.
    async fn begin(&self, job: &ScriptJob, directory: &Path) -> io::Result<Process> {
        let (place, script) = (directory.to_owned(), job.script.clone());
        aside(move || write_files(&place, &script)).await?;
        let (group, missing) = match Group::make(&job.name, job.memory_bytes) {
            Ok((group, None)) => (Some(group), None),
            Ok((group, Some(why))) => {
                (Some(group), Some(format!("the number of its processes is not limited: {why}")))
            }
            Err(why) => (None, Some(format!("its memory is not limited: {why}"))),
        };
        if let Some(group) = &group {
            let lines = group.paths().iter().map(|path| format!("{}\n", path.display()));
            fs::write(directory.join(GROUP), lines.collect::<String>())?;
        }
        Process::start(directory.to_owned(), group, missing)
    }
}

/// Writes the modules and the script, for nobody but this user.
fn write_files(directory: &Path, script: &str) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.mode(0o700).create(directory)?;
    builder.create(directory.join(ROOT))?;
    builder.recursive(true);
    for (name, text) in MODULES.iter().copied().chain([("script.py", script)]) {
        let path = directory.join(name);
        if let Some(above) = path.parent() {
            builder.create(above)?;
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(text.as_bytes())?;
    }
    Ok(())
}

/// Removes the directory of a script whose processes are no more, with its control group.
async fn remove(directory: &Path) -> Result<(), ScriptsError> {
    let place = directory.display().to_string();
    let left = |source| ScriptsError::Left { place: place.clone(), source };
    match fs::read_to_string(directory.join(GROUP)) {
        Ok(paths) => {
            let group = Group::at(paths.lines().map(PathBuf::from).collect());
            match group.end().await.map_err(left)? {
                true => {}
                false => return Err(ScriptsError::Immortal { after: DEATH }),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(left(error)),
    }
    // Not with what is in it: should anything be mounted there, it is not ours to remove.
    match fs::remove_dir(directory.join(ROOT)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(left(error)),
        _ => {}
    }
    let directory = directory.to_owned();
    aside(move || fs::remove_dir_all(directory)).await.map_err(left)
}

struct Process {
    /// `None` once it is killed.
    running: Option<Running>,
    messages: mpsc::Receiver<Result<ScriptMessage, ScriptsError>>,
    to: OwnedWriteHalf,
    missing: Option<String>,
}

/// The processes of a script.
struct Running {
    directory: PathBuf,
    group: Option<Group>,
    pid: Option<i32>,
    end: watch::Receiver<Option<ExitStatus>>,
}

impl Process {
    fn start(
        directory: PathBuf,
        group: Option<Group>,
        missing: Option<String>,
    ) -> io::Result<Process> {
        let groups = group.as_ref().map_or(&[][..], Group::paths);
        let limited = groups.first().cloned();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let mut child = command(&directory, groups, theirs.into()).spawn()?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        let (from, to) = UnixStream::from_std(ours)?.into_split();
        let (sender, messages) = mpsc::channel(WAITING);
        let budget = Arc::new(AtomicUsize::new(MOST_OUTPUT_BYTES));
        let outputs = [
            tokio::spawn(lines(child.stdout.take(), sender.clone(), budget.clone())),
            tokio::spawn(lines(child.stderr.take(), sender.clone(), budget.clone())),
        ];
        let end = watched(child);
        tokio::spawn(hear(from, sender, budget, outputs, end.clone(), limited));
        let running = Some(Running { directory, group, pid, end });
        Ok(Process { running, messages, to, missing })
    }

    fn directory(&self) -> &Path {
        &self.running.as_ref().expect("it is running until it is killed").directory
    }

    async fn send(&mut self, line: String) -> Result<(), ScriptsError> {
        let line = format!("{line}\n");
        let ended = |error: io::Error| ScriptsError::Ended { how: error.to_string() };
        self.to.write_all(line.as_bytes()).await.map_err(ended)
    }
}

fn command(directory: &Path, groups: &[PathBuf], socket: OwnedFd) -> tokio::process::Command {
    let group = |at: usize| groups.get(at).map(PathBuf::as_path).unwrap_or(Path::new(""));
    let mut command = tokio::process::Command::new("setpriv");
    // Whatever ends this daemon ends them: the kernel kills `unshare` with the thread that has
    // started it, one of the runtime's, then the first process of the namespace, and with that all
    // others.
    command
        .args(["--pdeathsig", "KILL", "--", "sh", "-c", BEGIN, "sh"])
        .args([group(0), group(1)])
        .args(["unshare", "--mount", "--propagation", "private", "--pid", "--fork"])
        .args(["--kill-child=KILL", "--mount-proc", "--", PYTHON])
        .arg(directory.join("run.py"))
        .current_dir("/")
        .env_clear()
        .env("PATH", SEARCH_PATH)
        .env("HOME", "/root")
        .env("LANG", "C.UTF-8")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PYTHONUNBUFFERED", "1")
        .stdin(Stdio::from(socket))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    command
}

/// End of the process, once it has ended.
fn watched(mut child: Child) -> watch::Receiver<Option<ExitStatus>> {
    let (sender, end) = watch::channel(None);
    tokio::spawn(async move {
        // One that cannot be waited for is no more.
        let status = child.wait().await.unwrap_or_else(|_| ExitStatus::from_raw(0));
        sender.send_replace(Some(status));
    });
    end
}

fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        // As `unshare` says it of its child.
        (Some(code @ 129..=192), _) => format!("signal {} ended it", code - 128),
        (Some(code), _) => format!("it exited with status {code}"),
        (None, signal) => format!("signal {} ended it", signal.unwrap_or(0)),
    }
}

type Messages = mpsc::Sender<Result<ScriptMessage, ScriptsError>>;

/// Reads messages until there is none any more, and then says how the process has ended; `limited`
/// is the directory of its control group.
async fn hear(
    from: OwnedReadHalf,
    sender: Messages,
    budget: Arc<AtomicUsize>,
    outputs: [JoinHandle<()>; 2],
    mut end: watch::Receiver<Option<ExitStatus>>,
    limited: Option<PathBuf>,
) {
    let mut from = BufReader::new(from);
    let why = loop {
        let line = match piece(&mut from, MOST_MESSAGE_BYTES, true).await {
            None => break None,
            Some((_, true)) => {
                break Some(format!("it is longer than {MOST_MESSAGE_BYTES} bytes"));
            }
            Some((line, false)) => line,
        };
        let message = match aside(move || wire::message(&line)).await {
            Ok(ScriptMessage::Log { text, .. }) if !is_paid(&budget, text.len()) => continue,
            Ok(message) => message,
            Err(why) => break Some(why),
        };
        if sender.send(Ok(message)).await.is_err() {
            return;
        }
    };
    let last = match why {
        Some(why) => ScriptsError::Nonsense { why },
        None => {
            // What it has written comes before.
            let drained = async {
                for output in outputs {
                    let _ = output.await;
                }
            };
            let _ = timeout(DRAIN, drained).await;
            let ended = timeout(DRAIN, end.wait_for(Option::is_some)).await;
            let status = ended.ok().and_then(|end| end.ok().and_then(|end| *end));
            let closed = || "it closed its connection".to_owned();
            let how = status.map_or_else(closed, how);
            match limited.is_some_and(|group| Group::ran_out(&group)) {
                true => ScriptsError::Ended {
                    how: format!("{how}: the kernel has killed processes of it for want of memory"),
                },
                false => ScriptsError::Ended { how },
            }
        }
    };
    // Whoever takes them may be gone.
    let _ = sender.send(Err(last)).await;
}

/// Whether there is room for so many bytes of output.
fn is_paid(budget: &AtomicUsize, bytes: usize) -> bool {
    let pay = |left: usize| left.checked_sub(bytes + 1);
    budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay).is_ok()
}

/// Reads lines of an output until it is closed. A line that is too long is cut.
async fn lines(pipe: Option<impl AsyncRead + Unpin>, sender: Messages, budget: Arc<AtomicUsize>) {
    let Some(pipe) = pipe else { return };
    let (mut pipe, mut is_full) = (BufReader::new(pipe), false);
    while let Some((line, _)) = piece(&mut pipe, MOST_SCRIPT_LINE_BYTES, false).await {
        let is_odd = |c: char| c.is_control() && c != '\t';
        let text = String::from_utf8_lossy(&line).replace(is_odd, "\u{fffd}");
        let text = match is_paid(&budget, text.len()) {
            true => text,
            // Read on, so that it is not held up.
            false if is_full => continue,
            false => {
                is_full = true;
                format!("(what it writes beyond {} MiB is left out)", MOST_OUTPUT_BYTES >> 20)
            }
        };
        if sender.send(Ok(ScriptMessage::Wrote(text))).await.is_err() {
            return;
        }
    }
}

/// The next line with at most so many bytes, and whether it was longer; `None` at the end. If
/// `is_last`, one that is longer is the last, and its end is not waited for.
async fn piece(
    from: &mut (impl tokio::io::AsyncBufRead + Unpin),
    most: usize,
    is_last: bool,
) -> Option<(Vec<u8>, bool)> {
    let (mut line, mut is_cut) = (Vec::new(), false);
    loop {
        // A read error is the end.
        let read = from.fill_buf().await.unwrap_or_default();
        if read.is_empty() {
            return (!line.is_empty()).then_some((line, is_cut));
        }
        let (begin, is_whole) = match read.iter().position(|byte| *byte == b'\n') {
            Some(end) => (&read[..end], true),
            None => (read, false),
        };
        let room = most - line.len();
        is_cut |= begin.len() > room;
        line.extend_from_slice(&begin[..begin.len().min(room)]);
        let used = begin.len() + usize::from(is_whole);
        from.consume(used);
        if is_whole || (is_cut && is_last) {
            return Some((line, is_cut));
        }
    }
}

#[async_trait]
impl ScriptProcess for Process {
    async fn next(&mut self) -> Result<ScriptMessage, ScriptsError> {
        let how = || "it was heard to its end".to_owned();
        self.messages.recv().await.unwrap_or_else(|| Err(ScriptsError::Ended { how: how() }))
    }

    async fn tell(&mut self, order: ScriptOrder) -> Result<(), ScriptsError> {
        let line = wire::order(&order);
        match line.len() > MOST_MESSAGE_BYTES {
            false => self.send(line).await,
            true => {
                let why = "the answer is longer than a message may be".to_owned();
                self.send(wire::order(&ScriptOrder::Raised(why))).await
            }
        }
    }

    fn missing_limits(&self) -> Option<String> {
        self.missing.clone()
    }

    async fn kill(mut self: Box<Self>) -> Result<(), ScriptsError> {
        match self.running.take() {
            Some(running) => running.end().await,
            None => Ok(()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(running) = self.running.take() else { return };
        running.kill_group();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Err(error) = running.end().await {
                    tracing::warn!(%error, "what a script has left could not be removed");
                }
            });
        }
    }
}

impl Running {
    /// Kills them all and removes what they leave.
    async fn end(mut self) -> Result<(), ScriptsError> {
        if !self.is_over() {
            // The first process of the namespace: `unshare` ends when the kernel has ended all
            // others with it.
            self.kill_first();
        }
        if timeout(DEATH, self.end.wait_for(Option::is_some)).await.is_err() {
            self.kill_group();
            let dies = self.end.wait_for(Option::is_some);
            timeout(DEATH, dies).await.map_err(|_| ScriptsError::Immortal { after: DEATH })?.ok();
        }
        if let Some(group) = self.group.take() {
            let place = group.paths()[0].display().to_string();
            let ended = group.end().await;
            match ended.map_err(|source| ScriptsError::Left { place, source })? {
                true => {}
                false => return Err(ScriptsError::Immortal { after: DEATH }),
            }
        }
        remove(&self.directory).await
    }

    fn is_over(&self) -> bool {
        self.end.borrow().is_some()
    }

    /// Until its first process was waited for its number is nobody else's.
    fn kill_group(&self) {
        if let Some(pid) = self.pid.filter(|_| !self.is_over()) {
            // It may have ended a moment ago, which is all we want.
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }

    fn kill_first(&self) {
        let Some(pid) = self.pid else { return };
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.unwrap_or_default();
        let mut first = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
        match first.next() {
            Some(first) => _ = kill(Pid::from_raw(first), Signal::SIGKILL),
            // It has not come so far.
            None => self.kill_group(),
        }
    }
}
