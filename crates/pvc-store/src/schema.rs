//! The version of the tree's layout: making a tree, agreeing on a version, filling in what is
//! missing.
//!
//! Facts: `spec/zookeeper.md` §5. Every node advertises the latest version it can; the last one to
//! be upgraded raises the version; everybody else sees that and starts anew.

use std::time::Duration;

use bytes::Bytes;
use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_ports::{CreateMode, Op};

use crate::error::StoreError;
use crate::lock::{LockKind, LockRecipe};
use crate::raw::Raw;
use crate::records::{self, cluster, daemon, node, vm};
use crate::store::{Store, chunks, flat, is_conflict};

/// The version of the layout that this code reads and writes.
pub const SCHEMA_VERSION: u32 = 15;

/// Time that a node waits for others that repair the tree.
const REPAIR_TIMEOUT: Duration = Duration::from_secs(120);

/// Number of bytes of a request's limit that a chunk uses: the rest is room for what an ensemble
/// adds.
const CHUNK_BYTES: usize = 512 * 1024;

/// Step that a node has to take about the version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SchemaStep {
    /// The tree has our version.
    Current,
    /// The tree is older, and every node can do ours: raise it.
    Raise,
    /// The tree is older, and these nodes cannot do ours yet: work on, nothing is raised.
    Wait { behind: Vec<NodeName> },
    /// The tree is newer than this program can read.
    TooNew { found: u32 },
    /// The tree holds no cluster.
    NotInitialized,
}

/// Returns the step that `node` has to take, by what is recorded.
pub fn schema_step(cluster: &Cluster, node: &NodeName) -> SchemaStep {
    let Some(found) = cluster.config.schema else { return SchemaStep::NotInitialized };
    if found == SCHEMA_VERSION {
        return SchemaStep::Current;
    }
    if found > SCHEMA_VERSION {
        return SchemaStep::TooNew { found };
    }
    // A node whose version cannot be read counts as behind: it may be a legacy peer that just
    // started.
    let others = cluster.nodes.values().filter(|other| other.name != *node);
    let behind: Vec<NodeName> = others
        .filter(|other| other.latest_schema.is_none_or(|latest| latest < SCHEMA_VERSION))
        .map(|other| other.name.clone())
        .collect();
    if behind.is_empty() { SchemaStep::Raise } else { SchemaStep::Wait { behind } }
}

impl Store {
    /// Whether the tree holds a cluster.
    pub fn is_initialized(&self) -> bool {
        let view = self.view();
        view.config.schema.is_some() || view.config.initialized
    }

    /// Whether this program may read and write what is there. (A node says more: [`schema_step`].)
    ///
    /// # Errors
    /// [`StoreError::LayoutTooNew`] if somebody newer has changed the layout: what this program
    /// wrote would be in places, or mean things, that nobody knows any more.
    pub fn check_layout(&self) -> Result<(), StoreError> {
        match self.view().config.schema {
            Some(found) if found > SCHEMA_VERSION => {
                Err(StoreError::LayoutTooNew { found, known: SCHEMA_VERSION })
            }
            _ => Ok(()),
        }
    }

    /// Makes the tree that of a new, empty cluster.
    ///
    /// # Errors
    /// [`StoreError::AlreadyInitialized`] if there is one, [`StoreError::Remains`] if there was
    /// one, and `overwrite` is false. With `overwrite` everything but other programs' subtrees is
    /// destroyed first.
    pub async fn initialize(&self, overwrite: bool) -> Result<(), StoreError> {
        self.fresh().await?;
        if overwrite && !self.is_dry() {
            // Also what is no cluster any more: an earlier wipe may have stopped half way.
            self.wipe().await?;
        } else if !overwrite && self.is_initialized() {
            return Err(StoreError::AlreadyInitialized);
        } else if !overwrite && self.with_raw(has_records) {
            return Err(StoreError::Remains);
        }
        if self.is_dry() {
            return Ok(());
        }
        let mut ops: Vec<Op> = self.with_raw(|raw| {
            let base = records::base().into_iter();
            base.filter(|(path, _)| !raw.contains(path))
                .map(|(path, value)| create(path, value))
                .collect()
        });
        // Last in the one multi: whoever sees the version sees all of it.
        ops.push(create(cluster::SCHEMA_VERSION, &SCHEMA_VERSION.to_string()));
        match self.tree.multi(ops).await {
            Ok(_) => self.refresh(vec![cluster::SCHEMA_VERSION.to_owned()]).await,
            Err(pvc_ports::MultiError::Refused { why, .. }) if is_conflict(&why) => {
                Err(StoreError::AlreadyInitialized)
            }
            Err(error) => Err(flat(error)),
        }
    }

    async fn wipe(&self) -> Result<(), StoreError> {
        let proofs = self.tree.children(daemon::PASSWORDS).await?.unwrap_or_default();
        let proofs = proofs.into_iter().map(|node| daemon::password(&NodeName::new(node)));
        let mut ops = self.with_raw(|raw| {
            raw.children("/")
                .iter()
                .map(|name| format!("/{name}"))
                .filter(|path| !records::is_foreign(path))
                .flat_map(|path| raw.subtree(&path).into_iter().rev())
                .map(|path| Op::Delete { path, version: None })
                .collect::<Vec<_>>()
        });
        ops.splice(..0, proofs.map(|path| Op::Delete { path, version: None }));
        // The version goes first: a tree that was wiped half way is no cluster any more.
        let is_version =
            |op: &Op| op.path() == cluster::SCHEMA_VERSION || op.path() == cluster::PRIMARY;
        ops.sort_by_key(|op| !is_version(op) && !op.path().starts_with(cluster::PRIMARY));
        for chunk in chunks(ops, self.chunk_bytes()) {
            let paths = chunk.iter().map(|op| op.path().to_owned()).collect();
            self.tree.multi(chunk).await.map_err(flat)?;
            self.refresh(paths).await?;
        }
        Ok(())
    }

    pub(crate) fn chunk_bytes(&self) -> usize {
        CHUNK_BYTES.min(self.tree.max_request_bytes())
    }

    /// Records which version this node works with and which it could.
    pub async fn advertise_schema(&self, node: &NodeName) -> Result<(), StoreError> {
        let (active, root) = self.with_raw(|raw| {
            let version = raw.text(cluster::SCHEMA_VERSION).unwrap_or_default().into_owned();
            (version, raw.contains(&node::root(node)))
        });
        if !root {
            return Ok(()); // The node's record is made with these keys in it.
        }
        let mut ops = Vec::new();
        for (key, value) in [("activeschema", active), ("latestschema", SCHEMA_VERSION.to_string())]
        {
            let path = node::key(node, key);
            let present = self.with_raw(|raw| raw.text(&path).map(|text| text.into_owned()));
            match present {
                Some(text) if text == value => {}
                Some(_) => ops.push(Op::Set { path, data: value.into(), version: None }),
                None => ops.push(create(&path, &value)),
            }
        }
        self.write_and_read(ops).await
    }

    /// Raises the tree to our version: the version key, and what older versions had and ours has
    /// not. Missing keys are created by [`repair`](Store::repair).
    pub async fn raise_schema(&self) -> Result<(), StoreError> {
        let ops = self.with_raw(|raw| {
            let version = raw.get(cluster::SCHEMA_VERSION).map(|node| node.version);
            let data = Bytes::from(SCHEMA_VERSION.to_string());
            let set = Op::Set { path: cluster::SCHEMA_VERSION.to_owned(), data, version };
            let commands = raw
                .subtree("/cmd")
                .into_iter()
                .rev()
                .map(|path| Op::Delete { path, version: None });
            std::iter::once(set).chain(commands).collect::<Vec<_>>()
        });
        match self.tree.multi(ops).await {
            // Somebody else raised it at the same time.
            Err(pvc_ports::MultiError::Refused { why, .. }) if is_conflict(&why) => {}
            Err(error) => return Err(flat(error)),
            Ok(_) => {}
        }
        self.fresh().await.map(drop)
    }

    /// Creates every key that a record of our version has and this tree lacks, with its default.
    /// Returns their number. Nothing that is there is touched.
    pub async fn repair(&self) -> Result<usize, StoreError> {
        let recipe = LockRecipe::new(self.tree.clone(), self.clock.clone(), self.random.clone());
        let lock =
            recipe.acquire(cluster::SCHEMA_VERSION, LockKind::Write, Some(REPAIR_TIMEOUT)).await?;
        let repaired = self.repair_locked().await;
        lock.release().await;
        repaired
    }

    async fn repair_locked(&self) -> Result<usize, StoreError> {
        self.fresh().await?;
        let ops = self.with_raw(missing_keys);
        let count = ops.len();
        for chunk in chunks(ops, self.chunk_bytes()) {
            match self.write_and_read(chunk).await {
                // A record that went meanwhile needs no keys; the next start looks again.
                Err(StoreError::Tree(error)) if is_conflict(&error) => {}
                other => other?,
            }
        }
        Ok(count)
    }

    async fn write_and_read(&self, ops: Vec<Op>) -> Result<(), StoreError> {
        if ops.is_empty() {
            return Ok(());
        }
        let paths = ops.iter().map(|op| op.path().to_owned()).collect();
        self.tree.multi(ops).await.map_err(flat)?;
        self.refresh(paths).await
    }
}

/// Whether something is recorded that a new cluster would take for its own.
fn has_records(raw: &Raw) -> bool {
    [node::ROOT, vm::ROOT].iter().any(|root| !raw.children(root).is_empty())
}

pub(crate) fn create(path: &str, value: &str) -> Op {
    Op::Create {
        path: path.to_owned(),
        data: Bytes::copy_from_slice(value.as_bytes()),
        mode: CreateMode::Persistent,
    }
}

/// Creates for everything that is missing below records that exist, parents first.
fn missing_keys(raw: &Raw) -> Vec<Op> {
    let mut ops: Vec<Op> = Vec::new();
    let mut need = |path: &str, value: &str| {
        if !raw.contains(path) {
            ops.push(create(path, value));
        }
    };
    for (path, value) in records::base() {
        need(path, value);
    }
    for (path, value) in records::keys_of_records(raw) {
        need(&path, value);
    }
    ops
}
