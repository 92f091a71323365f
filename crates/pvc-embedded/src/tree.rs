//! A session with an embedded tree.

#[cfg(feature = "disk")]
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use pvc_ports::{
    CreateMode, Done, Entry, MultiError, Op, SessionState, Stat, Tree, TreeError, TreeWatch,
    check_path,
};
use tokio::sync::watch;

#[cfg(feature = "disk")]
use crate::lock::OpenError;
use crate::state::{Outcome, TreeState, Work};
use crate::store::Store;

/// The largest request: what PVC's ZooKeeper servers take, less what their own bookkeeping adds, so
/// that whatever fits here fits there.
const MAX_REQUEST_BYTES: usize = 63 << 20;

/// The embedded tree, as one of its clients. [`connect`](EmbeddedTree::connect) makes more clients,
/// each with its own session; the session ends when the value is closed or dropped. The directory
/// is free again when the last client is gone.
pub struct EmbeddedTree {
    store: Arc<Store>,
    id: AtomicI64,
    session: watch::Sender<SessionState>,
}

impl EmbeddedTree {
    /// Opens the tree kept in `dir`, or begins an empty one there.
    ///
    /// # Errors
    /// If another process (or this one) has it open, if its file is damaged, or if the disk fails.
    /// An empty or damaged file is never taken for an empty tree.
    #[cfg(feature = "disk")]
    pub fn open(dir: &Path) -> Result<EmbeddedTree, OpenError> {
        Ok(EmbeddedTree::first(Arc::new(Store::open(dir)?)))
    }

    /// Puts a tree of `nodes`, data by path with every parent among them, in the place of the
    /// damaged one kept in `dir`. What was there is put aside under another name, which is
    /// returned.
    ///
    /// # Errors
    /// As [`open`](EmbeddedTree::open), and if a path is none or lacks its parent. Then nothing has
    /// changed.
    #[cfg(feature = "disk")]
    pub fn replace(
        dir: &Path,
        nodes: &std::collections::BTreeMap<String, String>,
    ) -> Result<Option<std::path::PathBuf>, OpenError> {
        Store::replace(dir, nodes)
    }

    /// An empty tree that is kept nowhere. Its operations never wait and need no runtime.
    pub fn in_memory() -> EmbeddedTree {
        EmbeddedTree::first(Arc::new(Store::in_memory()))
    }

    /// Another client of the same tree, with a session of its own.
    pub fn connect(&self) -> Arc<dyn Tree> {
        Arc::new(self.connect_concrete())
    }

    /// Connects as [`connect`](EmbeddedTree::connect) does, for callers that need more than the
    /// port.
    pub fn connect_concrete(&self) -> EmbeddedTree {
        EmbeddedTree::first(self.store.clone())
    }

    /// Loses the session as a ZooKeeper client may: what was ephemeral is gone, a new session
    /// begins, watches continue after a [`Resync`](pvc_ports::TreeEvent::Resync). The embedded tree
    /// itself never does this; it lets tests and simulations see what an expiry does to their
    /// subject.
    pub async fn expire(&self) {
        let Ok(old) = self.open_session() else { return };
        self.session.send_replace(SessionState::Expired);
        let new = self.store.shared.open_session();
        self.id.store(new, Ordering::SeqCst);
        let _ = self.store.submit(Work::End { session: old }).await;
        self.session.send_replace(SessionState::Connected { id: new });
        self.store.shared.resync(old, new);
    }

    fn first(store: Arc<Store>) -> EmbeddedTree {
        let id = store.shared.open_session();
        let (session, _) = watch::channel(SessionState::Connected { id });
        EmbeddedTree { store, id: AtomicI64::new(id), session }
    }

    fn open_session(&self) -> Result<i64, TreeError> {
        match *self.session.borrow() {
            SessionState::Closed => Err(TreeError::Closed),
            _ => Ok(self.id.load(Ordering::SeqCst)),
        }
    }

    fn read<T>(&self, path: &str, look: impl FnOnce(&TreeState) -> T) -> Result<T, TreeError> {
        self.open_session()?;
        check_path(path)?;
        Ok(self.store.shared.read(look))
    }

    fn read_many<T>(
        &self,
        paths: &[String],
        look: impl Fn(&TreeState, &str) -> T,
    ) -> Result<Vec<T>, TreeError> {
        self.open_session()?;
        paths.iter().try_for_each(|path| check_path(path))?;
        Ok(self.store.shared.read(|tree| paths.iter().map(|path| look(tree, path)).collect()))
    }

    /// Marks the session closed. False if it was.
    fn mark_closed(&self) -> bool {
        self.session.send_if_modified(|state| {
            let first = *state != SessionState::Closed;
            *state = SessionState::Closed;
            first
        })
    }
}

fn check_size(ops: &[Op]) -> Result<(), TreeError> {
    let size = ops.iter().map(Op::request_bytes).sum();
    if size > MAX_REQUEST_BYTES {
        return Err(TreeError::TooLarge { size, limit: MAX_REQUEST_BYTES });
    }
    Ok(())
}

#[async_trait]
impl Tree for EmbeddedTree {
    async fn get(&self, path: &str) -> Result<Option<Entry>, TreeError> {
        self.read(path, |tree| tree.entry(path))
    }

    async fn get_many(&self, paths: &[String]) -> Result<Vec<Option<Entry>>, TreeError> {
        self.read_many(paths, TreeState::entry)
    }

    async fn children(&self, path: &str) -> Result<Option<Vec<String>>, TreeError> {
        self.read(path, |tree| tree.children(path))
    }

    async fn children_many(&self, paths: &[String]) -> Result<Vec<Option<Vec<String>>>, TreeError> {
        self.read_many(paths, TreeState::children)
    }

    async fn create(
        &self,
        path: &str,
        data: Bytes,
        mode: CreateMode,
    ) -> Result<(String, Stat), TreeError> {
        let session = self.open_session()?;
        check_path(path)?;
        let op = Op::Create { path: path.to_owned(), data, mode };
        check_size(std::slice::from_ref(&op))?;
        let Op::Create { path, data, mode } = op else { unreachable!("it was just made") };
        match self.store.submit(Work::Create { session, path, data, mode }).await {
            Ok(Outcome::Created(path, stat)) => Ok((path, stat)),
            Ok(other) => unreachable!("a creation was answered with {other:?}"),
            Err(MultiError::Refused { why, .. } | MultiError::Tree(why)) => Err(why),
        }
    }

    async fn multi(&self, ops: Vec<Op>) -> Result<Vec<Done>, MultiError> {
        let session = self.open_session()?;
        check_size(&ops)?;
        if ops.is_empty() {
            return Ok(Vec::new());
        }
        match self.store.submit(Work::Multi { session, ops }).await? {
            Outcome::Multi(done) => Ok(done),
            other => unreachable!("a multi was answered with {other:?}"),
        }
    }

    async fn sync(&self) -> Result<(), TreeError> {
        // A write is answered after every reader can see it.
        self.open_session().map(|_| ())
    }

    async fn watch(&self, root: &str) -> Result<TreeWatch, TreeError> {
        let session = self.open_session()?;
        check_path(root)?;
        self.store.shared.watch(session, root)
    }

    fn session(&self) -> watch::Receiver<SessionState> {
        self.session.subscribe()
    }

    async fn close(&self) {
        if self.mark_closed() {
            let session = self.id.load(Ordering::SeqCst);
            self.store.shared.drop_watches(session);
            let _ = self.store.submit(Work::End { session }).await;
        }
    }

    fn max_request_bytes(&self) -> usize {
        MAX_REQUEST_BYTES
    }
}

impl Drop for EmbeddedTree {
    fn drop(&mut self) {
        if self.mark_closed() {
            let session = self.id.load(Ordering::SeqCst);
            self.store.shared.drop_watches(session);
            self.store.submit_and_forget(Work::End { session });
        }
    }
}
