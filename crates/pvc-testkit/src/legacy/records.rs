//! Reading, writing and locking in the tree: `spec/zookeeper.md` §3 and §6.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pvc_ports::{
    Clock, CreateMode, Entry, MultiError, Op, Random, Tree, TreeError, TreeEvent, TreeWatch,
};

use super::LegacyPorts;

/// Time between two attempts of what the client library tries until it is answered.
const AGAIN: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub(super) struct Records {
    tree: Arc<dyn Tree>,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    kazoo_28: bool,
    round_trip: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Exclusive,
    Write,
    Read,
}

impl Kind {
    fn marker(self) -> &'static str {
        match self {
            Kind::Exclusive | Kind::Write => "__lock__",
            Kind::Read => "__rlock__",
        }
    }
}

/// A lock that is held until it is released. Who forgets that holds it as long as the session
/// lasts.
pub(super) struct Held(String);

impl Records {
    pub fn new(ports: &LegacyPorts, kazoo_28: bool, round_trip: Duration) -> Self {
        let (tree, clock, random) = (ports.tree.clone(), ports.clock.clone(), ports.random.clone());
        Records { tree, clock, random, kazoo_28, round_trip }
    }

    /// The way of a request.
    async fn travel(&self) {
        if !self.round_trip.is_zero() {
            self.clock.sleep(self.round_trip).await;
        }
    }

    async fn multi(&self, ops: Vec<Op>) -> Result<(), MultiError> {
        self.travel().await;
        self.tree.multi(ops).await.map(drop)
    }

    async fn wait_out(&self, error: &TreeError) {
        if matches!(error, TreeError::Closed) {
            // The daemon has ended, and its threads with it.
            std::future::pending::<()>().await;
        }
        self.clock.sleep(AGAIN).await;
    }

    pub async fn entry(&self, path: &str) -> Option<Entry> {
        let path = if path.len() > 1 { path.trim_end_matches('/') } else { path };
        loop {
            self.travel().await;
            match self.tree.get(path).await {
                Ok(entry) => return entry,
                Err(error) => self.wait_out(&error).await,
            }
        }
    }

    pub async fn read(&self, path: &str) -> Option<String> {
        self.entry(path).await.map(|entry| String::from_utf8_lossy(&entry.data).into_owned())
    }

    /// Empty if it is not there.
    pub async fn text(&self, path: &str) -> String {
        self.read(path).await.unwrap_or_default()
    }

    pub async fn children(&self, path: &str) -> Vec<String> {
        loop {
            self.travel().await;
            match self.tree.children(path).await {
                Ok(children) => return children.unwrap_or_default(),
                Err(error) => self.wait_out(&error).await,
            }
        }
    }

    pub async fn watch(&self, root: &str) -> TreeWatch {
        loop {
            match self.tree.watch(root).await {
                Ok(watch) => return watch,
                Err(error) => self.wait_out(&error).await,
            }
        }
    }

    /// Makes one multi, decided on the versions that each key had a moment earlier. What becomes of
    /// it is not looked at: it counts as done also when all of it was refused ([T2], [T11]).
    pub async fn write(&self, values: &[(String, String)]) {
        let mut ops = Vec::new();
        for (path, value) in values {
            let (path, data) = (path.clone(), Bytes::copy_from_slice(value.as_bytes()));
            match self.entry(&path).await {
                None => ops.push(Op::Create { path, data, mode: CreateMode::Persistent }),
                Some(entry) => {
                    ops.push(Op::Set { path: path.clone(), data, version: None });
                    ops.push(Op::Check { path, version: entry.stat.version + 1 });
                }
            }
        }
        drop(self.multi(ops).await);
    }

    /// Child by child.
    pub async fn delete(&self, path: &str) {
        for child in self.children(path).await {
            Box::pin(self.delete(&format!("{path}/{child}"))).await;
        }
        drop(self.multi(vec![Op::Delete { path: path.to_owned(), version: None }]).await);
    }

    // --- Locks: §6.1 -----------------------------------------------------------------------------

    /// Takes a lock. `None`: somebody who was in the way stayed there for longer than
    /// `time_limit`, which counts anew for each of them (§6.3).
    pub async fn lock(&self, path: &str, kind: Kind, time_limit: Option<Duration>) -> Option<Held> {
        let prefix = format!("{}{}", self.random.uuid().simple(), kind.marker());
        let mut changes = self.watch(path).await;
        let mut own = self.enter(path, &prefix).await;
        loop {
            let children = self.children(path).await;
            let Some(name) =
                own.rsplit('/').next().filter(|own| children.iter().any(|name| name == own))
            else {
                // It went with its session: from the end of the queue.
                own = self.enter(path, &prefix).await;
                continue;
            };
            let Some(before) = self.predecessor(&children, name, kind) else {
                return Some(Held(own));
            };
            let before = format!("{path}/{before}");
            tokio::select! {
                biased;
                () = until_gone(&mut changes, [&before, &own]) => {}
                () = self.time_limit(time_limit) => {
                    self.release(Some(Held(own))).await;
                    return None;
                }
            }
        }
    }

    async fn time_limit(&self, time_limit: Option<Duration>) {
        match time_limit {
            Some(time_limit) => self.clock.sleep(time_limit).await,
            None => std::future::pending().await,
        }
    }

    async fn enter(&self, path: &str, prefix: &str) -> String {
        let wanted = format!("{path}/{prefix}");
        loop {
            self.travel().await;
            let error = match self
                .tree
                .create(&wanted, Bytes::new(), CreateMode::EphemeralSequential)
                .await
            {
                Ok((own, _)) => return own,
                Err(error) => error,
            };
            match error {
                TreeError::NoNode { .. } => {
                    drop(self.tree.create(path, Bytes::new(), CreateMode::Persistent).await);
                }
                TreeError::OutcomeUnknown => {
                    let children = self.children(path).await;
                    if let Some(own) = children.iter().find(|name| name.starts_with(prefix)) {
                        return format!("{path}/{own}");
                    }
                }
                other => self.wait_out(&other).await,
            }
        }
    }

    /// The contender that this one waits for.
    fn predecessor(&self, children: &[String], own: &str, kind: Kind) -> Option<String> {
        let mine = contender(own)?.0;
        let waits = |name: &&String| {
            contender(name).is_some_and(|(sequence, marker)| match kind {
                // §6.2: kazoo 2.8 never finds the reader itself in its list, and takes the last of
                // it ([T3]).
                Kind::Read if self.kazoo_28 => marker == "__lock__",
                Kind::Read | Kind::Exclusive => marker == "__lock__" && sequence < mine,
                Kind::Write => sequence < mine,
            })
        };
        children.iter().filter(waits).max_by_key(|name| contender(name)).cloned()
    }

    /// Gives a lock back; without one nothing happens.
    pub async fn release(&self, held: Option<Held>) {
        let Some(Held(path)) = held else { return };
        loop {
            match self.multi(vec![Op::Delete { path: path.clone(), version: None }]).await {
                Ok(()) | Err(MultiError::Refused { .. }) => return,
                Err(MultiError::Tree(error)) => self.wait_out(&error).await,
            }
        }
    }
}

/// Number and marker, of a child that is a contender.
fn contender(name: &str) -> Option<(i64, &'static str)> {
    let (head, digits) = name.split_at_checked(name.len().checked_sub(10)?)?;
    let marker = ["__rlock__", "__lock__"].into_iter().find(|marker| head.ends_with(marker))?;
    Some((digits.parse().ok()?, marker))
}

/// Returns when one of these was deleted, or the connection was made anew.
async fn until_gone(changes: &mut TreeWatch, paths: [&str; 2]) {
    while let Some(event) = changes.recv().await {
        match event {
            TreeEvent::Deleted { path } if paths.contains(&path.as_str()) => return,
            TreeEvent::Resync => return,
            TreeEvent::Deleted { .. } | TreeEvent::Changed { .. } => {}
        }
    }
    std::future::pending().await
}
