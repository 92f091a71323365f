//! The logs of the nodes' daemons: `/logs/{node}/messages` (`spec/zookeeper.md` §4.1). The cache
//! leaves them out (ADR 0002).

use std::time::Duration;

use bytes::Bytes;
use pvc_model::NodeName;
use pvc_ports::Op;

use super::{Kind, PLAIN};
use crate::error::StoreError;
use crate::lock::{LockKind, LockRecipe};
use crate::store::{Store, flat};

const ROOT: &str = "/logs";

pub(super) const KIND: Kind = Kind {
    roots: &[ROOT],
    base: &[(ROOT, "")],
    is_left_out: |key| !key.is_root(),
    is_observed: |key| !key.is_root(),
    is_for_scripts: |_| true,
    ..PLAIN
};

/// The time that a line may wait for other daemons that write the same log.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// The most bytes of a log: it is written in one request, and a server of ZooKeeper without a
/// `jute.maxbuffer` of its own takes no larger one than 1 MiB.
const MOST_BYTES: usize = 512 << 10;

/// The most bytes of a line.
const MOST_LINE: usize = 16 << 10;

/// The line, or its beginning.
fn cut(line: &str) -> &str {
    &line[..line.floor_char_boundary(MOST_LINE)]
}

/// The last `keep` lines, or as many of them as a log takes.
fn last<'a, 'b>(lines: &'b [&'a str], keep: usize) -> &'b [&'a str] {
    let mut size = 0;
    let fit = lines.iter().rev().take_while(|line| {
        size += line.len() + 1;
        size <= MOST_BYTES
    });
    &lines[lines.len() - keep.min(fit.count())..]
}

pub(super) fn root(node: &NodeName) -> String {
    format!("{ROOT}/{node}")
}

fn messages(node: &NodeName) -> String {
    format!("{}/messages", root(node))
}

impl Store {
    /// The latest lines of a node's log. Reads the tree: the cache leaves these out.
    pub async fn node_log(&self, node: &NodeName) -> Result<Option<String>, StoreError> {
        self.read_text(&messages(node)).await
    }

    /// Appends `lines` to the node's log and keeps the last `keep` lines, under the lock that the
    /// other daemons of the node take for it. Returns the number of bytes that were written: the
    /// whole log is, each time.
    pub async fn append_node_log(
        &self,
        node: &NodeName,
        lines: &[String],
        keep: usize,
    ) -> Result<usize, StoreError> {
        let path = messages(node);
        // Asked of the tree itself: a tree that was emptied is not begun anew by a line of a log,
        // and the view may not have noticed yet.
        if self.tree.get(&path).await?.is_none() {
            self.make_path(&root(node)).await?;
            self.make_path(&path).await?;
        }
        let recipe = LockRecipe::new(self.tree.clone(), self.clock.clone(), self.random.clone())
            .on_what_exists();
        let lock = recipe.acquire(&path, LockKind::Write, Some(LOCK_TIMEOUT)).await?;
        let written = self.append_locked(&path, lines, keep).await;
        lock.release().await;
        written
    }

    async fn append_locked(
        &self,
        path: &str,
        lines: &[String],
        keep: usize,
    ) -> Result<usize, StoreError> {
        let old = self.read_text(path).await?.unwrap_or_default();
        let kept: Vec<&str> = old.lines().chain(lines.iter().map(|line| cut(line))).collect();
        let data = Bytes::from(last(&kept, keep).join("\n"));
        let size = data.len();
        let write = vec![Op::Set { path: path.to_owned(), data, version: None }];
        self.tree.multi(write).await.map(|_| size).map_err(flat)
    }
}
