//! Destinations of the daemon's own log lines: a file, the standard output, the store.
//!
//! Formatting happens where the line is logged; everything that may block happens elsewhere. One
//! thread writes to the file and the standard output, one task of the node daemon to the store.
//! Both are fed by bounded queues: a full disk or a lost connection costs lines, which are counted
//! and named in the log itself, and never holds up whoever logs.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tokio::sync::mpsc as queue;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Number of lines that may wait for a slow disk or a slow store.
const QUEUED_LINES: usize = 4096;

/// Largest size of the log file, in bytes. logrotate comes once a day; a day may have more than a
/// disk.
const LARGEST: u64 = 64 << 20;

/// The API's access log. Whoever reads the log in the store asks the API for it: each look would be
/// the next line, and they would soon be all there is.
const ACCESS: &str = "pvc_api::access";

/// Lines that supervised programs write. A guest has dnsmasq write as many as it asks it questions,
/// and all of the log in the store is written anew for each.
const PROGRAMS: &str = "pvc_supervisor::talk";

/// The switches of the configuration's `logging` section.
#[derive(Debug, Clone, Default)]
pub struct LogSettings {
    /// Whether to log also what only a developer wants to know.
    pub debug: bool,
    /// ANSI colours by level.
    pub colours: bool,
    /// The local date and time in front of each line.
    pub dates: bool,
    /// The file to append to, if any. Its folder is created.
    pub file: Option<PathBuf>,
    pub stdout: bool,
    /// Whether lines are to be handed out for the store.
    pub store: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("the log file `{}` could not be opened", path.display())]
pub struct LogError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// The running log.
pub struct Log {
    writer: SyncSender<Message>,
    /// The lines for the store, oldest first, if they were asked for. The node daemon takes them.
    pub store_lines: Option<queue::Receiver<String>>,
}

enum Message {
    Line(Level, String),
    Reopen,
    Flush(SyncSender<()>),
}

/// Starts logging for the whole process.
///
/// # Errors
/// If the log file cannot be opened: a daemon whose operator asked for a log must not run without
/// one.
pub fn start(settings: &LogSettings) -> Result<Log, LogError> {
    let (log, layer) = build(settings)?;
    let ours = if settings.debug { LevelFilter::DEBUG } else { LevelFilter::INFO };
    let filter = Targets::new().with_default(LevelFilter::WARN).with_target("pvc", ours);
    let registry = tracing_subscriber::registry().with(layer.with_filter(filter));
    if registry.try_init().is_err() {
        tracing::warn!("the log was started twice; the first one stays");
    }
    Ok(log)
}

fn build(settings: &LogSettings) -> Result<(Log, Lines), LogError> {
    let file = settings.file.as_deref().map(LogFile::open).transpose()?;
    let (writer, messages) = sync_channel(QUEUED_LINES);
    let stdout = settings.stdout.then(|| stdout_kind(std::env::var_os("JOURNAL_STREAM").is_some()));
    std::thread::Builder::new()
        .name("log".to_owned())
        .spawn(move || write_lines(&messages, file, stdout))
        .map_err(|source| LogError { path: PathBuf::from("/proc/self/task"), source })?;
    let (sender, receiver) = queue::channel(QUEUED_LINES);
    let layer = Lines {
        colours: settings.colours,
        dates: settings.dates,
        writer: writer.clone(),
        lost: AtomicU64::new(0),
        store: settings.store.then_some(sender),
        lost_for_store: AtomicU64::new(0),
    };
    Ok((Log { writer, store_lines: settings.store.then_some(receiver) }, layer))
}

impl Log {
    /// Opens the log file again under its name, after somebody moved the old one away (SIGHUP).
    pub fn reopen(&self) {
        // A full queue is written by a thread that opens the file again when its disk lets it.
        let _ = self.writer.try_send(Message::Reopen);
    }

    /// Something that reopens the log file, to be called by the task that waits for SIGHUP.
    pub fn reopener(&self) -> impl Fn() + Send + Sync + 'static {
        let writer = self.writer.clone();
        move || {
            let _ = writer.try_send(Message::Reopen);
        }
    }

    /// Returns when everything logged so far has been written, or after `deadline`.
    pub fn flush(&self, deadline: Duration) {
        let (done, wait) = sync_channel(1);
        if self.writer.try_send(Message::Flush(done)).is_ok() {
            let _ = wait.recv_timeout(deadline);
        }
    }
}

// ---- the layer: an event becomes a line
// ----------------------------------------------------------

struct Lines {
    colours: bool,
    dates: bool,
    writer: SyncSender<Message>,
    lost: AtomicU64,
    store: Option<queue::Sender<String>>,
    lost_for_store: AtomicU64,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let level = *event.metadata().level();
        let mut text = Text::default();
        event.record(&mut text);
        let line = self.line(level, &text.finish());
        let is_for_store = ![ACCESS, PROGRAMS].contains(&event.metadata().target());
        if let Some(store) = self.store.as_ref().filter(|_| is_for_store) {
            let full = |line: String| store.try_send(line).is_err();
            self.send(&self.lost_for_store, Level::WARN, line.clone(), |_, line| full(line));
        }
        self.send(&self.lost, level, line, |level, line| {
            self.writer.try_send(Message::Line(level, line)).is_err()
        });
    }
}

impl Lines {
    /// Hands `line` to a queue; if lines were lost before, says so first. `is_full` sends, and says
    /// whether it could not.
    fn send(
        &self,
        lost: &AtomicU64,
        level: Level,
        line: String,
        is_full: impl Fn(Level, String) -> bool,
    ) {
        let missing = lost.swap(0, Ordering::Relaxed);
        let gap = || self.line(Level::WARN, &format!("{missing} log lines were lost here"));
        if missing > 0 && is_full(Level::WARN, gap()) {
            lost.fetch_add(missing + 1, Ordering::Relaxed);
        } else if is_full(level, line) {
            lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn line(&self, level: Level, text: &str) -> String {
        let mut line = String::with_capacity(text.len() + 48);
        if self.dates {
            let now = jiff::Zoned::now();
            let _ = write!(line, "{} ", now.strftime("%Y-%m-%d %H:%M:%S%.3f"));
        }
        let (word, colour) = match level {
            Level::ERROR => ("error", "31"),
            Level::WARN => ("warning", "33"),
            Level::INFO => ("info", "32"),
            _ => ("debug", "34"),
        };
        let _ = match self.colours {
            true => write!(line, "\x1b[{colour}m{word:<7}\x1b[0m {text}"),
            false => write!(line, "{word:<7} {text}"),
        };
        line
    }
}

/// Collects the fields of an event: the message, then `key=value` for the others.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Text {
    /// Finishes one line: line breaks and other controls are shown escaped, so that a line stays a
    /// line and nobody's name can move the reader's cursor.
    fn finish(self) -> String {
        let mut line = String::with_capacity(self.message.len() + self.fields.len());
        for character in self.message.chars().chain(self.fields.chars()) {
            match character {
                c if c.is_control() => line.extend(c.escape_default()),
                c => line.push(c),
            }
        }
        line
    }
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message.push_str(value),
            name if value.is_empty() || value.contains([' ', '=', '"']) => {
                let _ = write!(self.fields, " {name}={value:?}");
            }
            name => {
                let _ = write!(self.fields, " {name}={value}");
            }
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        let _ = write!(self.fields, " {}={value}", field.name());
        let mut cause = value.source();
        while let Some(error) = cause {
            let _ = write!(self.fields, ": {error}");
            cause = error.source();
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

// ---- the thread: lines become bytes
// --------------------------------------------------------------

/// Reader of our standard output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stdout {
    Plain,
    /// The journal, which takes a line's priority from a prefix.
    Journal,
}

fn stdout_kind(has_journal_stream: bool) -> Stdout {
    use std::io::IsTerminal as _;
    match has_journal_stream && !io::stdout().is_terminal() {
        true => Stdout::Journal,
        false => Stdout::Plain,
    }
}

struct LogFile {
    path: PathBuf,
    file: File,
    /// Size in bytes; what others append is not counted.
    size: u64,
}

impl LogFile {
    fn open(path: &Path) -> Result<LogFile, LogError> {
        let opened =
            path.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| append_to(path));
        let (file, size) = opened.map_err(|source| LogError { path: path.to_owned(), source })?;
        Ok(LogFile { path: path.to_owned(), file, size })
    }

    /// A file that has become too large is put aside as `….log.full`, in the place of the one
    /// before.
    fn write(&mut self, line: &str) -> io::Result<()> {
        if self.size >= LARGEST
            && std::fs::rename(&self.path, self.path.with_extension("log.full")).is_ok()
        {
            self.reopen();
        }
        self.size += line.len() as u64;
        self.file.write_all(line.as_bytes())
    }

    /// The old file stays in use if the new one cannot be opened.
    fn reopen(&mut self) {
        match append_to(&self.path) {
            Ok((file, size)) => (self.file, self.size) = (file, size),
            Err(error) => {
                eprintln!("the log file {} could not be opened again: {error}", self.path.display())
            }
        }
    }
}

/// The file and its size.
fn append_to(path: &Path) -> io::Result<(File, u64)> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let file = OpenOptions::new().append(true).create(true).mode(0o640).open(path)?;
    let size = file.metadata()?.len();
    Ok((file, size))
}

/// Ends when every sender is gone. A line that cannot be written is lost: there is nowhere to say
/// so.
fn write_lines(messages: &Receiver<Message>, mut file: Option<LogFile>, stdout: Option<Stdout>) {
    for message in messages {
        match message {
            Message::Line(level, line) => {
                if let Some(log) = &mut file {
                    let _ = log.write(&format!("{line}\n"));
                }
                if let Some(kind) = stdout {
                    let prefix = if kind == Stdout::Journal { priority(level) } else { "" };
                    let _ = io::stdout().lock().write_all(format!("{prefix}{line}\n").as_bytes());
                }
            }
            Message::Reopen => {
                if let Some(log) = &mut file {
                    log.reopen();
                }
            }
            Message::Flush(done) => {
                let _ = io::stdout().flush();
                let _ = done.send(());
            }
        }
    }
}

/// The prefix from which the journal takes the priority: `sd-daemon(3)`.
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        _ => "<7>",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::subscriber::with_default;

    const SOON: Duration = Duration::from_secs(10);

    fn settings(folder: &tempfile::TempDir) -> LogSettings {
        LogSettings {
            file: Some(folder.path().join("new/pvcnoded.log")),
            store: true,
            ..LogSettings::default()
        }
    }

    fn logged(settings: &LogSettings, act: impl FnOnce()) -> (Log, String) {
        let (log, layer) = build(settings).unwrap();
        with_default(tracing_subscriber::registry().with(layer), act);
        log.flush(SOON);
        let text = std::fs::read_to_string(settings.file.as_ref().unwrap()).unwrap();
        (log, text)
    }

    #[derive(Debug, thiserror::Error)]
    #[error("cannot start")]
    struct Outer(#[source] io::Error);

    #[test]
    fn a_line_has_its_level_its_message_its_fields_and_the_whole_chain_of_causes() {
        let folder = tempfile::tempdir().unwrap();
        let (_log, text) = logged(&settings(&folder), || {
            let error = Outer(io::Error::other("disk on fire"));
            let error: &(dyn std::error::Error + 'static) = &error;
            tracing::warn!(vm = "web1", reason = "it is late", error, "could not start");
        });
        assert_eq!(
            text,
            "warning could not start vm=web1 reason=\"it is late\" error=cannot start: disk on \
             fire\n"
        );
    }

    #[test]
    fn a_line_stays_one_line_and_moves_no_cursor() {
        let folder = tempfile::tempdir().unwrap();
        let (_log, text) = logged(&settings(&folder), || tracing::info!("a\nb\u{1b}[2Jc"));
        assert_eq!(text, "info    a\\nb\\u{1b}[2Jc\n");
    }

    #[test]
    fn dates_and_colours_come_only_when_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let with_both = LogSettings { dates: true, colours: true, ..settings(&folder) };
        let (_log, text) = logged(&with_both, || tracing::error!("x"));
        assert!(text.ends_with("\u{1b}[31merror  \u{1b}[0m x\n"), "{text:?}");
        assert_eq!(text.find('\u{1b}'), Some("2026-11-20 10:33:58.123 ".len()), "{text:?}");
    }

    #[test]
    fn after_a_rotation_lines_go_to_the_new_file() {
        let folder = tempfile::tempdir().unwrap();
        let settings = settings(&folder);
        let (log, layer) = build(&settings).unwrap();
        let path = settings.file.unwrap();
        with_default(tracing_subscriber::registry().with(layer), || {
            tracing::info!("one");
            log.flush(SOON);
            std::fs::rename(&path, path.with_extension("1")).unwrap();
            log.reopen();
            tracing::info!("two");
        });
        log.flush(SOON);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "info    two\n");
        assert_eq!(std::fs::read_to_string(path.with_extension("1")).unwrap(), "info    one\n");
    }

    #[test]
    fn a_file_that_has_become_too_large_is_put_aside_and_one_such_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pvcnoded.log");
        std::fs::write(path.with_extension("log.full"), "older").unwrap();
        File::create(&path).unwrap().set_len(LARGEST - 1).unwrap();
        let mut log = LogFile::open(&path).unwrap();
        log.write("one\n").unwrap();
        log.write("two\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two\n");
        assert_eq!(std::fs::metadata(path.with_extension("log.full")).unwrap().len(), LARGEST + 3);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn lines_for_a_store_that_takes_none_are_dropped_counted_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let (mut log, layer) = build(&settings(&folder)).unwrap();
        let lines = log.store_lines.as_mut().unwrap();
        with_default(tracing_subscriber::registry().with(layer), || {
            for number in 0..QUEUED_LINES + 10 {
                tracing::info!("line {number}");
            }
            assert_eq!(lines.blocking_recv().unwrap(), "info    line 0");
            assert_eq!(lines.blocking_recv().unwrap(), "info    line 1");
            tracing::info!("later");
        });
        let mut rest = Vec::new();
        while let Ok(line) = lines.try_recv() {
            rest.push(line);
        }
        assert_eq!(
            rest[rest.len() - 2..],
            ["warning 10 log lines were lost here", "info    later"]
        );
    }

    #[test]
    fn requests_to_the_api_and_lines_of_programs_are_in_the_file_and_not_in_the_store() {
        let folder = tempfile::tempdir().unwrap();
        let (mut log, text) = logged(&settings(&folder), || {
            tracing::info!(target: "pvc_api::access", route = "/api/v1/node/{node}/log", "request");
            tracing::info!(target: "pvc_supervisor::talk", program = "dnsmasq", "DHCPACK");
            tracing::info!("started");
        });
        assert_eq!(
            text,
            "info    request route=/api/v1/node/{node}/log\ninfo    DHCPACK program=dnsmasq\n\
             info    started\n"
        );
        let lines = log.store_lines.as_mut().unwrap();
        assert_eq!(lines.try_recv().unwrap(), "info    started");
        assert!(lines.try_recv().is_err());
    }

    #[test]
    fn a_log_file_that_cannot_be_opened_is_named() {
        let refused =
            LogSettings { file: Some("/proc/nonexistent/x.log".into()), ..LogSettings::default() };
        let Err(error) = build(&refused) else { panic!("it was opened") };
        assert_eq!(error.to_string(), "the log file `/proc/nonexistent/x.log` could not be opened");
    }
}
