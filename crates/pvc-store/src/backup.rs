//! The whole tree as text, and back.

use std::collections::BTreeMap;

use bytes::Bytes;
use pvc_model::NodeName;
use pvc_ports::{CreateMode, Op};

use crate::error::{RestoreError, StoreError};
use crate::keys;
use crate::records::{self, cluster, node};
use crate::schema::SCHEMA_VERSION;
use crate::store::{Store, chunks, flat, paths_of};

/// Result of a restore.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// Number of keys that were written.
    pub keys: usize,
    /// Nodes with a BMC whose password neither the dump nor the store has: nobody can fence them
    /// until their daemons have written it.
    pub unfenceable: Vec<NodeName>,
}

impl Store {
    /// Every key with its value, but for other programs' subtrees, what lies deeper than anything
    /// of the layout, lock nodes and what ends with a session; the passwords of the nodes' BMCs
    /// `with_secrets` only. Values that are not UTF-8 have the unreadable bytes replaced.
    ///
    /// A restore of a dump without the passwords leaves those that are there. Where there are none,
    /// each node's daemon writes its own at its start; until then nobody can fence it, least of all
    /// one that is dead already.
    pub async fn backup(&self, with_secrets: bool) -> Result<BTreeMap<String, String>, StoreError> {
        self.fresh().await?;
        let mut paths = self.with_raw(|raw| raw.subtree("/"));
        paths.retain(|path| {
            !records::is_foreign(path) && (with_secrets || !records::is_secret(path))
        });
        let entries = self.tree.get_many(&paths).await?;
        let lasting = |(path, entry): (String, Option<pvc_ports::Entry>)| {
            let entry = entry.filter(|entry| entry.stat.ephemeral_owner == 0)?;
            Some((path, String::from_utf8_lossy(&entry.data).into_owned()))
        };
        Ok(paths.into_iter().zip(entries).filter_map(lasting).collect())
    }

    /// Writes every key of `dump`, creating parents; keys that are not in it stay, and so do those
    /// by which a node says what is so now: what was so then would have others act on it. A dump
    /// larger than one request is written in several, the schema version last.
    pub async fn restore(&self, dump: &BTreeMap<String, String>) -> Result<Restored, RestoreError> {
        self.check_dump(dump)?;
        let stopped =
            |written| move |source| RestoreError::Stopped { written, total: dump.len(), source };
        self.fresh().await.map_err(stopped(0))?;
        if self.is_dry() {
            return Ok(Restored { keys: dump.len(), unfenceable: Vec::new() });
        }
        let ops = self.restore_ops(dump);
        let mut written = 0;
        for chunk in chunks(ops, self.chunk_bytes()) {
            let paths = paths_of(&chunk);
            self.tree.multi(chunk).await.map_err(flat).map_err(stopped(written))?;
            written += paths.len();
        }
        // Everything may have changed; whoever restores wants to see it.
        let paths = dump.keys().cloned().collect();
        self.refresh(paths).await.map_err(stopped(written))?;
        Ok(Restored { keys: dump.len(), unfenceable: self.with_raw(node::unfenceable) })
    }

    /// Restores as [`restore`](Store::restore) does, for an empty tree that is to take the place of
    /// a lost one. What nodes said of themselves is left out, although nothing else stands in its
    /// place: nobody knows how old it is. Each of its keys is there and says nothing, as in a new
    /// record.
    pub async fn recover(
        &self,
        mut dump: BTreeMap<String, String>,
    ) -> Result<Restored, RestoreError> {
        dump.retain(|key, _| !records::is_observed(key));
        let restored = self.restore(&dump).await?;
        let total = dump.len();
        self.repair().await.map_err(|source| RestoreError::Stopped {
            written: total,
            total,
            source,
        })?;
        Ok(restored)
    }

    fn check_dump(&self, dump: &BTreeMap<String, String>) -> Result<(), RestoreError> {
        let version = dump.get(cluster::SCHEMA_VERSION).ok_or(RestoreError::NoSchema)?;
        if version.trim() != SCHEMA_VERSION.to_string() {
            return Err(RestoreError::Schema { found: version.clone(), expected: SCHEMA_VERSION });
        }
        let limit = self.tree.max_request_bytes();
        for (key, value) in dump {
            if !is_path(key) || records::is_foreign(key) || keys::is_too_deep(key) {
                return Err(RestoreError::BadKey { key: key.clone() });
            }
            let size = set(key, value).request_bytes();
            if size > limit {
                return Err(RestoreError::TooLarge { key: key.clone(), size, limit });
            }
        }
        Ok(())
    }

    fn restore_ops(&self, dump: &BTreeMap<String, String>) -> Vec<Op> {
        let secrets: Vec<String> =
            dump.keys().filter_map(|key| records::secret_beside(key)).collect();
        let mut wanted: BTreeMap<&str, &str> =
            secrets.iter().map(|key| (key.as_str(), "")).collect();
        for (key, value) in dump.iter().filter(|(key, _)| *key != "/") {
            let mut parent = keys::parent(key);
            while parent != "/" && !dump.contains_key(parent) {
                wanted.entry(parent).or_insert("");
                parent = keys::parent(parent);
            }
            wanted.insert(key, value);
        }
        let version = wanted.remove_entry(cluster::SCHEMA_VERSION);
        self.with_raw(|raw| {
            // In the order of the paths a parent comes before its children.
            let op = |(path, value): (&str, &str)| match raw.get(path) {
                Some(_) if dump.contains_key(path) && !records::is_observed(path) => {
                    Some(set(path, value))
                }
                Some(_) => None,
                None => Some(Op::Create {
                    path: path.to_owned(),
                    data: Bytes::copy_from_slice(value.as_bytes()),
                    mode: CreateMode::Persistent,
                }),
            };
            wanted.into_iter().chain(version).filter_map(op).collect()
        })
    }
}

fn set(path: &str, value: &str) -> Op {
    Op::Set { path: path.to_owned(), data: Bytes::copy_from_slice(value.as_bytes()), version: None }
}

fn is_path(key: &str) -> bool {
    key == "/"
        || (key.starts_with('/')
            && key[1..].split('/').all(|part| {
                !matches!(part, "" | "." | "..") && !part.chars().any(char::is_control)
            }))
}
