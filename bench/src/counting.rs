//! A tree that counts what is asked of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use pvc_ports::{
    CreateMode, Done, Entry, MultiError, Op, SessionState, Stat, Tree, TreeError, TreeWatch,
};
use tokio::sync::watch;

/// Numbers of requests of each kind. A request for many paths is one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requests {
    pub reads: u64,
    pub writes: u64,
}

impl Requests {
    pub fn all(self) -> u64 {
        self.reads + self.writes
    }

    /// Requests since `before`.
    pub fn since(self, before: Requests) -> Requests {
        Requests { reads: self.reads - before.reads, writes: self.writes - before.writes }
    }
}

/// Hands everything on to `inner`, and counts.
pub struct CountingTree {
    inner: Arc<dyn Tree>,
    reads: AtomicU64,
    writes: AtomicU64,
}

impl CountingTree {
    pub fn new(inner: Arc<dyn Tree>) -> Self {
        CountingTree { inner, reads: AtomicU64::new(0), writes: AtomicU64::new(0) }
    }

    pub fn requests(&self) -> Requests {
        Requests {
            reads: self.reads.load(Ordering::Relaxed),
            writes: self.writes.load(Ordering::Relaxed),
        }
    }

    fn reading(&self) -> &dyn Tree {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.inner.as_ref()
    }

    fn writing(&self) -> &dyn Tree {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.inner.as_ref()
    }
}

#[async_trait]
impl Tree for CountingTree {
    async fn get(&self, path: &str) -> Result<Option<Entry>, TreeError> {
        self.reading().get(path).await
    }

    async fn get_many(&self, paths: &[String]) -> Result<Vec<Option<Entry>>, TreeError> {
        self.reading().get_many(paths).await
    }

    async fn children(&self, path: &str) -> Result<Option<Vec<String>>, TreeError> {
        self.reading().children(path).await
    }

    async fn children_many(&self, paths: &[String]) -> Result<Vec<Option<Vec<String>>>, TreeError> {
        self.reading().children_many(paths).await
    }

    async fn create(
        &self,
        path: &str,
        data: Bytes,
        mode: CreateMode,
    ) -> Result<(String, Stat), TreeError> {
        self.writing().create(path, data, mode).await
    }

    async fn multi(&self, ops: Vec<Op>) -> Result<Vec<Done>, MultiError> {
        self.writing().multi(ops).await
    }

    async fn sync(&self) -> Result<(), TreeError> {
        self.reading().sync().await
    }

    async fn watch(&self, root: &str) -> Result<TreeWatch, TreeError> {
        self.reading().watch(root).await
    }

    fn session(&self) -> watch::Receiver<SessionState> {
        self.inner.session()
    }

    async fn close(&self) {
        self.inner.close().await;
    }

    fn max_request_bytes(&self) -> usize {
        self.inner.max_request_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reads_and_writes_are_counted_apart() {
        let tree = CountingTree::new(Arc::new(pvc_embedded::EmbeddedTree::in_memory()));
        tree.create("/a", Bytes::new(), CreateMode::Persistent).await.unwrap();
        let before = tree.requests();
        tree.get_many(&["/a".to_owned(), "/b".to_owned()]).await.unwrap();
        tree.multi(Vec::new()).await.unwrap();
        tree.sync().await.unwrap();
        assert_eq!(tree.requests().since(before), Requests { reads: 2, writes: 1 });
    }
}
