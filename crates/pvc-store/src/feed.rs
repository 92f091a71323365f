//! The events: changes in order, with a cursor to continue from.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use pvc_model::job::JobId;
use pvc_model::storage::VolumeId;
use pvc_model::{NodeName, Uuid};
use tokio::sync::watch;

/// Number of events that are kept for those who come back with a cursor.
const KEPT: usize = 10_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    Cluster,
    Node(NodeName),
    Vm(Uuid),
    Network(String),
    Osd(String),
    Pool(String),
    Volume(VolumeId),
    Fault(String),
    Job(JobId),
    /// Events were lost for this reader: read everything again.
    Reset,
}

/// Something changed. What it is now must be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The revision of the view that shows the change.
    pub revision: u64,
    pub what: EventKind,
    /// Whether the record is gone.
    pub gone: bool,
}

#[derive(Debug)]
struct Kept {
    /// Whether anybody reads events: most daemons do not, and would keep a megabyte for nobody.
    wanted: bool,
    events: VecDeque<Event>,
    /// The revision up to which events were thrown away.
    forgotten: u64,
}

/// The kept events; the cache writes them, feeds read them.
#[derive(Debug, Clone)]
pub(crate) struct Feed {
    kept: Arc<Mutex<Kept>>,
    revision: watch::Receiver<u64>,
}

impl Feed {
    /// `first` is the revision of the first complete view: nothing before it can be continued.
    pub fn new(first: u64, revision: watch::Receiver<u64>) -> Self {
        let kept = Kept { wanted: false, events: VecDeque::new(), forgotten: first };
        Feed { kept: Arc::new(Mutex::new(kept)), revision }
    }

    pub fn push(&self, events: impl IntoIterator<Item = Event>) {
        let mut kept = self.kept.lock().expect("nothing panics while it holds the feed");
        if !kept.wanted {
            kept.forgotten =
                events.into_iter().last().map_or(kept.forgotten, |event| event.revision);
            return;
        }
        kept.events.extend(events);
        while kept.events.len() > KEPT {
            if let Some(event) = kept.events.pop_front() {
                kept.forgotten = event.revision;
            }
        }
    }

    pub fn from(&self, cursor: Option<u64>) -> EventFeed {
        self.kept.lock().expect("nothing panics while it holds the feed").wanted = true;
        let cursor = cursor.unwrap_or_else(|| *self.revision.borrow());
        EventFeed { feed: self.clone(), cursor, pending: VecDeque::new() }
    }

    /// The events after `cursor`, whole revisions only; `Reset` if some of them are forgotten.
    fn after(&self, cursor: u64, now: u64) -> VecDeque<Event> {
        let kept = self.kept.lock().expect("nothing panics while it holds the feed");
        // A cursor from the future was given by another process, or by this one before it
        // restarted.
        if cursor < kept.forgotten || cursor > now {
            return VecDeque::from([Event { revision: now, what: EventKind::Reset, gone: false }]);
        }
        let first = kept.events.partition_point(|event| event.revision <= cursor);
        kept.events.range(first..).filter(|event| event.revision <= now).cloned().collect()
    }
}

/// Place of a reader in the feed.
#[derive(Debug)]
pub struct EventFeed {
    feed: Feed,
    cursor: u64,
    pending: VecDeque<Event>,
}

impl EventFeed {
    /// The revision up to which its reader has heard of everything.
    pub fn cursor(&self) -> u64 {
        self.cursor
    }

    /// The next event; waits for it. `None` once the store is closed.
    ///
    /// # Cancellation
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                self.cursor = event.revision;
                return Some(event);
            }
            let now = *self.feed.revision.borrow_and_update();
            self.pending = self.feed.after(self.cursor, now);
            if self.pending.is_empty() {
                self.feed.revision.changed().await.ok()?;
            }
        }
    }
}
