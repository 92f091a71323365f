//! Log of a run, as lines of text with virtual time: the same bytes for the same seed.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Number of lines that are kept to be shown when something goes wrong.
const TAIL: usize = 4_000;

/// The log of one run. Clones share it.
#[derive(Clone)]
pub struct Log {
    inner: Arc<Mutex<Inner>>,
    begun: Instant,
}

struct Inner {
    tail: VecDeque<String>,
    lines: u64,
    digest: u64,
    /// The process that last did anything: who speaks in the daemons' own logs.
    source: String,
    echo: bool,
}

impl Log {
    /// Time is counted from now. With `echo` every line goes to the standard output as well.
    pub fn new(echo: bool) -> Self {
        let inner = Inner {
            tail: VecDeque::new(),
            lines: 0,
            digest: 0xcbf2_9ce4_8422_2325,
            source: String::new(),
            echo,
        };
        Log { inner: Arc::new(Mutex::new(inner)), begun: Instant::now() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("nothing panics while it holds the log")
    }

    pub fn note(&self, line: &str) {
        let at = self.begun.elapsed();
        let line = format!("{:>9}.{:03} {line}", at.as_secs(), at.subsec_millis());
        let mut inner = self.inner();
        inner.lines += 1;
        inner.digest = line.bytes().fold(inner.digest, |digest, byte| {
            (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        if inner.echo {
            crate::say(format_args!("{line}"));
        }
        if inner.tail.len() == TAIL {
            inner.tail.pop_front();
        }
        inner.tail.push_back(line);
    }

    /// Number of lines.
    pub fn lines(&self) -> u64 {
        self.inner().lines
    }

    /// Whether a line that is kept, after the first `after`, contains `text`.
    pub fn says(&self, text: &str, after: u64) -> bool {
        let inner = self.inner();
        let kept = inner.tail.len() as u64;
        let skipped = after.saturating_sub(inner.lines - kept).min(kept);
        inner.tail.iter().skip(skipped as usize).any(|line| line.contains(text))
    }

    pub fn set_source(&self, source: &str) {
        let mut inner = self.inner();
        if inner.source != source {
            source.clone_into(&mut inner.source);
        }
    }

    pub fn tail(&self, lines: usize) -> Vec<String> {
        let inner = self.inner();
        inner.tail.iter().skip(inner.tail.len().saturating_sub(lines)).cloned().collect()
    }

    /// Returns the number of lines, and a number that two logs share only if they are the same.
    pub fn digest(&self) -> (u64, u64) {
        let inner = self.inner();
        (inner.lines, inner.digest)
    }

    /// Takes in what the daemons log themselves, from `level` on.
    pub fn capture_daemons(&self, level: Level) {
        // Only one log can hear them; in a process with several runs it is the first.
        let _ = tracing::subscriber::set_global_default(Ear { log: self.clone(), level });
    }
}

/// The first panic of this process.
static PANIC: Mutex<Option<String>> = Mutex::new(None);

/// Takes every panic for a violation, also those that the daemons survive.
pub fn capture_panics(log: &Log) {
    let log = log.clone();
    std::panic::set_hook(Box::new(move |panic| {
        let said = panic.payload_as_str().unwrap_or("no message");
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let text = format!("{said} ({place})");
        // A panic that happens while the log is written must not wait for it.
        if let Ok(mut first) = PANIC.try_lock() {
            first.get_or_insert(text.clone());
        }
        eprintln!("panic: {text}");
        if log.inner.try_lock().is_ok() {
            log.note(&format!("PANIC: {text}"));
        }
    }));
}

/// The first panic, if there was any.
pub(crate) fn panicked() -> Option<String> {
    PANIC.lock().ok().and_then(|first| first.clone())
}

struct Ear {
    log: Log,
    level: Level,
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let written = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
        written.expect("a text takes everything");
    }
}

impl Subscriber for Ear {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("pvc") && *metadata.level() <= self.level
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let source = self.log.inner().source.clone();
        let level = event.metadata().level();
        self.log.note(&format!("    {source} {level}: {}{}", text.message, text.fields));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
