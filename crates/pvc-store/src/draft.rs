//! From changes to one multi: strict. Every write carries the version that the decision was taken
//! on.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use pvc_ports::{CreateMode, Op};

use crate::change::{Change, Changes};
use crate::error::StoreError;
use crate::keys;
use crate::raw::Raw;
use crate::records::{self, Keys};

/// A multi under construction over the tree as it was last seen.
pub(crate) struct Draft<'a> {
    raw: &'a Raw,
    ops: Vec<Op>,
    /// Index in `ops` at which a path is created or set: the last value given counts, a path
    /// appears once.
    written: BTreeMap<String, usize>,
    /// Paths that are checked already.
    checked: BTreeSet<String>,
    absent: Vec<String>,
}

/// A multi with what the tree is not to have if it was made: keys with which somebody else may have
/// written the same for a while only.
pub(crate) struct Drafted {
    pub ops: Vec<Op>,
    pub absent: Vec<String>,
}

impl<'a> Draft<'a> {
    pub fn new(raw: &'a Raw) -> Self {
        Draft {
            raw,
            ops: Vec::new(),
            written: BTreeMap::new(),
            checked: BTreeSet::new(),
            absent: Vec::new(),
        }
    }

    /// The tree as the decision saw it.
    pub fn seen(&self) -> &Raw {
        self.raw
    }

    pub fn finished(self) -> Drafted {
        Drafted { ops: self.ops, absent: self.absent }
    }

    /// Notes that `path`, which was not there, is not to be there beside what this multi makes: no
    /// operation can check that, and whoever looks whether the multi was made does.
    pub fn note_absent(&mut self, path: String) {
        self.absent.push(path);
    }

    /// Writes `path`; creates it if it was not there. Its parent must exist or be created before.
    pub fn put(&mut self, path: String, data: impl Into<Bytes>) {
        let data = data.into();
        if let Some(at) = self.written.get(&path) {
            match &mut self.ops[*at] {
                Op::Create { data: old, .. } | Op::Set { data: old, .. } => *old = data,
                Op::Delete { .. } | Op::Check { .. } => {
                    unreachable!("only creates and sets are noted as written")
                }
            }
            return;
        }
        let op = match self.raw.get(&path) {
            Some(node) => Op::Set { path: path.clone(), data, version: Some(node.version) },
            None => Op::Create { path: path.clone(), data, mode: CreateMode::Persistent },
        };
        self.written.insert(path, self.ops.len());
        self.ops.push(op);
    }

    /// Value of `path` as this multi leaves it, which may have written it already.
    pub fn value(&self, path: &str) -> Option<Bytes> {
        match self.written.get(path).map(|at| &self.ops[*at]) {
            Some(Op::Create { data, .. } | Op::Set { data, .. }) => Some(data.clone()),
            _ => self.raw.get(path).map(|node| node.data.to_bytes()),
        }
    }

    /// Creates `path` with nothing in it, and its parents, where they are missing.
    pub fn ensure(&mut self, path: &str) {
        if path == "/" || self.raw.contains(path) || self.written.contains_key(path) {
            return;
        }
        self.ensure(keys::parent(path));
        self.put(path.to_owned(), Bytes::new());
    }

    /// Writes `path` as `put` does, and creates missing parents.
    pub fn put_deep(&mut self, path: String, data: impl Into<Bytes>) {
        self.ensure(keys::parent(&path));
        self.put(path, data);
    }

    /// Deletes `path` and everything below it, children first. The version of its root is checked.
    pub fn delete(&mut self, path: &str) {
        self.delete_as_seen(path, &[]);
    }

    /// Deletes as [`delete`](Self::delete) does; the versions of these below it are checked, too.
    /// What the cache leaves out was not read, and has no version to check.
    pub fn delete_as_seen(&mut self, path: &str, checked: &[&str]) {
        for below in self.raw.subtree(path).into_iter().rev() {
            let is_meant = below == path || checked.contains(&below.as_str());
            let is_checked = is_meant && !records::is_left_out(&below);
            let version = self.raw.get(&below).filter(|_| is_checked).map(|node| node.version);
            self.ops.push(Op::Delete { path: below, version });
        }
    }

    /// Demands that the record at `root` is there, or comes to be here. `false` if it is not: then
    /// nothing of it may be written, and the multi is refused.
    pub fn demand(&mut self, root: String) -> bool {
        let is_there = self.written.contains_key(&root) || self.raw.contains(&root);
        if !is_there {
            self.ops.push(Op::Check { path: root, version: -1 });
        }
        is_there
    }

    /// Demands that `path` is as it was seen.
    ///
    /// # Errors
    /// It was not there: what is not checked would be no demand at all.
    pub fn check(&mut self, path: String) -> Result<(), StoreError> {
        // A path that this multi writes is checked by its write.
        if self.written.contains_key(&path) || self.checked.contains(&path) {
            return Ok(());
        }
        let Some(node) = self.raw.get(&path) else {
            return Err(StoreError::NothingToExpect { path });
        };
        self.ops.push(Op::Check { path: path.clone(), version: node.version });
        self.checked.insert(path);
        Ok(())
    }

    /// Demands that a key that every such record has is as it was seen. A record of an older layout
    /// may lack it: then it gets it here, as it would from [`repair`](crate::Store::repair), if
    /// nobody gave it one since.
    pub fn check_key(&mut self, root: &str, key: &str, keys: Keys) -> Result<(), StoreError> {
        let path = format!("{root}/{key}");
        if !self.raw.contains(&path)
            && self.raw.contains(root)
            && let Some((_, value)) = keys.iter().find(|(known, _)| *known == key)
        {
            // What this multi gives it itself counts, before or after this.
            if !self.written.contains_key(&path) {
                self.put(path, (*value).to_owned());
            }
            return Ok(());
        }
        self.check(path)
    }

    /// Copies the subtree at `from` to `to` and deletes it, values as they are.
    pub fn rename(&mut self, from: &str, to: &str) {
        for path in self.raw.subtree(from) {
            let node = self.raw.get(&path).expect("a subtree lists what is there");
            let renamed = format!("{to}{}", &path[from.len()..]);
            let data = node.data.to_bytes();
            self.put_deep(renamed, data);
        }
        self.delete(from);
    }

    /// # Errors
    /// What is expected not to change was not there.
    pub fn changes(&mut self, changes: &Changes) -> Result<(), StoreError> {
        for change in &changes.changes {
            change.write(self);
        }
        for expect in &changes.expectations {
            expect.check(self)?;
        }
        for guard in changes.changes.iter().filter_map(Change::guard) {
            self.check(guard.to_owned())?;
        }
        Ok(())
    }
}
