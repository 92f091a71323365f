//! Store that the sessions of one tree share.

#[cfg(feature = "disk")]
use std::collections::BTreeMap;
#[cfg(feature = "disk")]
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(feature = "disk")]
use pvc_ports::{CreateMode, Op};
use pvc_ports::{MultiError, TreeError, TreeEvent, TreeWatch, is_at_or_below};
use tokio::sync::mpsc;

#[cfg(feature = "disk")]
use crate::disk::{self, Disk};
#[cfg(feature = "disk")]
use crate::lock::{DirLock, OpenError};
use crate::state::{Change, Outcome, TreeState, Work};
#[cfg(feature = "disk")]
use crate::writer::Writer;

/// The tree as readers see it, and who wants to hear of its changes.
pub(crate) struct Shared {
    inner: RwLock<Inner>,
}

struct Inner {
    tree: TreeState,
    watches: Vec<Watch>,
}

struct Watch {
    session: i64,
    root: String,
    events: mpsc::UnboundedSender<TreeEvent>,
}

impl Watch {
    fn send(&self, event: &TreeEvent) {
        let wanted = match event {
            TreeEvent::Changed { path } | TreeEvent::Deleted { path } => {
                is_at_or_below(path, &self.root)
            }
            TreeEvent::Resync => true,
        };
        if wanted {
            // A receiver that is gone is forgotten at the next change.
            let _ = self.events.send(event.clone());
        }
    }
}

impl Shared {
    fn new(tree: TreeState) -> Arc<Shared> {
        Arc::new(Shared { inner: RwLock::new(Inner { tree, watches: Vec::new() }) })
    }

    // A panic while the lock was held can only have been in a reader: `publish` has nothing that
    // fails between its first and its last step.
    fn lock_to_read(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_to_write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn read<T>(&self, look: impl FnOnce(&TreeState) -> T) -> T {
        look(&self.lock_to_read().tree)
    }

    /// Shows `change` to everybody. Watchers get its events before any reader sees its data.
    #[cfg(feature = "disk")]
    pub(crate) fn publish(&self, change: Change) {
        self.lock_to_write().publish(change);
    }

    pub(crate) fn open_session(&self) -> i64 {
        self.lock_to_write().tree.open_session()
    }

    pub(crate) fn watch(&self, session: i64, root: &str) -> Result<TreeWatch, TreeError> {
        let (events, watch) = mpsc::unbounded_channel();
        let mut inner = self.lock_to_write();
        if !inner.tree.has_session(session) {
            return Err(TreeError::Closed);
        }
        inner.watches.push(Watch { session, root: root.to_owned(), events });
        Ok(watch)
    }

    /// Hands the watches of `old` to `new` and tells them to read everything again.
    pub(crate) fn resync(&self, old: i64, new: i64) {
        for watch in self.lock_to_write().watches.iter_mut().filter(|watch| watch.session == old) {
            watch.session = new;
            watch.send(&TreeEvent::Resync);
        }
    }

    pub(crate) fn drop_watches(&self, session: i64) {
        self.lock_to_write().watches.retain(|watch| watch.session != session);
    }
}

impl Inner {
    fn publish(&mut self, change: Change) {
        let events = self.tree.publish(change);
        if events.is_empty() {
            return;
        }
        self.watches.retain(|watch| !watch.events.is_closed());
        for event in &events {
            self.watches.iter().for_each(|watch| watch.send(event));
        }
    }
}

/// A tree, in memory alone or kept in a directory.
pub(crate) struct Store {
    pub(crate) shared: Arc<Shared>,
    #[cfg(feature = "disk")]
    writer: Option<Writer>,
    #[cfg(feature = "disk")]
    _lock: Option<DirLock>, // the last to go: the file is closed by then
}

impl Store {
    pub(crate) fn in_memory() -> Store {
        Store {
            shared: Shared::new(TreeState::new(1)),
            #[cfg(feature = "disk")]
            writer: None,
            #[cfg(feature = "disk")]
            _lock: None,
        }
    }

    #[cfg(feature = "disk")]
    pub(crate) fn open(dir: &Path) -> Result<Store, OpenError> {
        let lock = DirLock::take(dir)?;
        let (disk, tree) = Disk::open(dir).map_err(|error| OpenError::of_disk(dir, error))?;
        let shared = Shared::new(tree);
        let writer = Writer::start(disk, shared.clone())
            .map_err(|source| OpenError::Io { dir: dir.to_owned(), source })?;
        Ok(Store { shared, writer: Some(writer), _lock: Some(lock) })
    }

    #[cfg(feature = "disk")]
    pub(crate) fn replace(
        dir: &Path,
        nodes: &BTreeMap<String, String>,
    ) -> Result<Option<PathBuf>, OpenError> {
        let _lock = DirLock::take(dir)?;
        // In the order of the paths a parent comes before its children.
        let op = |(path, data): (&String, &String)| match path.as_str() {
            "/" => Op::Set { path: path.clone(), data: data.clone().into(), version: None },
            _ => Op::Create {
                path: path.clone(),
                data: data.clone().into(),
                mode: CreateMode::Persistent,
            },
        };
        disk::replace(dir, nodes.iter().map(op).collect())
            .map_err(|error| OpenError::of_disk(dir, error))
    }

    /// Carries out `work`. It is done even if the caller stops waiting.
    pub(crate) async fn submit(&self, work: Work) -> Result<Outcome, MultiError> {
        #[cfg(feature = "disk")]
        if let Some(writer) = &self.writer {
            return writer.submit(work).await;
        }
        self.apply(&work)
    }

    /// Submits as [`submit`](Store::submit) does, for callers that cannot wait.
    pub(crate) fn submit_and_forget(&self, work: Work) {
        #[cfg(feature = "disk")]
        if let Some(writer) = &self.writer {
            return writer.submit_and_forget(work);
        }
        let _ = self.apply(&work);
    }

    fn apply(&self, work: &Work) -> Result<Outcome, MultiError> {
        let mut inner = self.shared.lock_to_write();
        let mut draft = inner.tree.draft();
        let outcome = draft.apply(work)?;
        let change = draft.finish();
        inner.publish(change);
        Ok(outcome)
    }
}
