//! The access to the records: anybody who reaches the tree may read and write them, or those alone
//! who know its password.
//!
//! The access of the root is what is wanted of all. Whatever a client creates is for those who may
//! use the root; so the root is changed first, and then what is there already, twice: in between,
//! others create by what they knew.
//!
//! Before the records are closed it is asked who could still use them. To know *a* password is not
//! enough, so each node's daemon that knows one keeps a proof in the tree: an ephemeral key of its
//! own for those who know that password.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use pvc_model::NodeName;
use pvc_ports::{Access, AccessControl, AccessList, CreateMode, Op, TreeError};

use crate::error::StoreError;
use crate::records::{self, daemon};
use crate::store::{Store, flat};

/// After this time every client that reaches the tree creates by what the root says now.
const NOTICED: Duration = Duration::from_secs(8);

/// Number of keys that are asked for or changed at once.
const AT_ONCE: usize = 64;

/// Number of times in a row that the keys are made alike the root, which somebody changes
/// meanwhile.
const ROUNDS: u32 = 5;

/// Access to what is recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Protection {
    /// Access to the root, and to what is created from now on.
    pub access: AccessList,
    /// Keys that anybody may use.
    pub open: usize,
    /// Keys for those alone who know the password.
    pub closed: usize,
    /// Keys that are for others, too, or for others alone, as for those who know an earlier
    /// password.
    pub others: Vec<String>,
}

impl Protection {
    /// Number of keys that are not for these alone.
    fn differing(&self, access: Access) -> usize {
        self.others.len()
            + match access {
                Access::Anybody => self.closed,
                Access::Members => self.open,
            }
    }
}

/// Knowledge of a node's password for the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnownPassword {
    /// The one that we know.
    Ours,
    Another,
    /// None that we know of: the daemon knows none, is a legacy peer, or does not run.
    Unproven,
}

impl Store {
    /// Whether this client knows the tree's password.
    pub fn has_password(&self) -> bool {
        self.tree.access_control().is_some()
    }

    /// Whether whoever reaches the tree may use what is created in it, although this client knows a
    /// password. What cannot be asked is not said.
    pub(crate) async fn is_open_to_others(&self) -> bool {
        match self.control() {
            Ok(control) => {
                root_access(control).await.is_ok_and(|access| access == AccessList::Anybody)
            }
            Err(_) => false,
        }
    }

    /// Returns the access to what is recorded; other programs' subtrees are not counted.
    ///
    /// # Errors
    /// [`StoreError::NoPassword`] if this client knows none.
    pub async fn protection(&self) -> Result<Protection, StoreError> {
        let control = self.control()?;
        let mut found = Protection {
            access: root_access(control).await?,
            open: 0,
            closed: 0,
            others: Vec::new(),
        };
        for (path, access) in self.accesses(control).await? {
            match access {
                AccessList::Anybody => found.open += 1,
                AccessList::Members => found.closed += 1,
                AccessList::Other => found.others.push(path),
            }
        }
        Ok(found)
    }

    /// Lets these alone use what is recorded, and what is created from now on. If it is broken off,
    /// part of it is done: it can be repeated, and the primary's daemon goes on with it within the
    /// hour.
    ///
    /// # Errors
    /// - [`StoreError::NoPassword`] if this client knows none.
    /// - [`StoreError::AccessChanged`] if somebody else wants it otherwise meanwhile.
    /// - [`StoreError::AccessDiffers`] if not everything is for these alone in the end.
    pub async fn protect(&self, access: Access) -> Result<Protection, StoreError> {
        let control = self.control()?;
        control.set_access("/", access).await?;
        self.follow_root(control).await?;
        self.clock.sleep(NOTICED).await;
        self.follow_root(control).await?;
        let protection = self.protection().await?;
        if protection.access != access.into() {
            return Err(StoreError::AccessChanged);
        }
        match protection.differing(access) {
            0 => Ok(protection),
            keys => {
                Err(StoreError::AccessDiffers { keys, such: protection.others.into_iter().next() })
            }
        }
    }

    /// Makes alike the root what is not, and returns the number of such keys. Nothing, if this
    /// client knows no password.
    pub async fn repair_protection(&self) -> Result<usize, StoreError> {
        match self.control() {
            Ok(control) => self.follow_root(control).await,
            Err(_) => Ok(0),
        }
    }

    /// Makes alike the root what is not: also if somebody changes that meanwhile.
    async fn follow_root(&self, control: &dyn AccessControl) -> Result<usize, StoreError> {
        let mut changed = 0;
        for _ in 0..ROUNDS {
            let found = self.accesses(control).await?;
            // Looked at after the keys were, which takes its time: what was wanted before is not
            // done any more.
            let wanted = root_access(control).await?;
            let access = match wanted {
                AccessList::Anybody => Access::Anybody,
                AccessList::Members => Access::Members,
                AccessList::Other => return Err(StoreError::AccessUnknown),
            };
            let differing = found.into_iter().filter(|(_, found)| *found != wanted);
            let set = stream::iter(differing).map(|(path, _)| async move {
                match control.set_access(&path, access).await {
                    Ok(()) => Ok(1),
                    Err(TreeError::NoNode { .. }) => Ok(0),
                    Err(TreeError::NotAllowed { .. }) => {
                        tracing::warn!(
                            path,
                            "a key of the store is for those alone who know another password"
                        );
                        Ok(0)
                    }
                    Err(error) => Err(error),
                }
            });
            changed += set
                .buffer_unordered(AT_ONCE)
                .try_fold(0, |sum, one| async move { Ok(sum + one) })
                .await?;
            if root_access(control).await? == wanted {
                return Ok(changed);
            }
        }
        Err(StoreError::AccessChanged)
    }

    /// The keys of ours with who may use them. What goes meanwhile is left out.
    async fn accesses(
        &self,
        control: &dyn AccessControl,
    ) -> Result<Vec<(String, AccessList)>, StoreError> {
        self.tree.sync().await?;
        let mut accesses = Vec::new();
        let mut level = vec!["/".to_owned()];
        while !level.is_empty() {
            let found = stream::iter(level.clone())
                .map(|path| async move {
                    match control.access(&path).await {
                        Err(TreeError::NotAllowed { .. }) => Ok((Some(AccessList::Other), path)),
                        found => Ok((found?, path)),
                    }
                })
                .buffered(AT_ONCE)
                .try_collect::<Vec<_>>();
            let known = found.await.map_err(StoreError::Tree)?.into_iter();
            accesses.extend(known.filter_map(|(access, path)| Some((path, access?))));
            let children = self.tree.children_many(&level).await?;
            let below = level.iter().zip(children).flat_map(|(parent, names)| {
                let parent = parent.trim_end_matches('/');
                names.unwrap_or_default().into_iter().map(move |name| format!("{parent}/{name}"))
            });
            level = below.filter(|path| !records::is_foreign(path)).collect();
        }
        Ok(accesses)
    }

    /// Proves to whoever knows it, too, which password the daemon of `node` knows, for as long as
    /// its session lasts.
    pub(crate) async fn prove_password(&self, node: &NodeName) -> Result<(), StoreError> {
        let Ok(control) = self.control() else { return Ok(()) };
        self.ensure_path(daemon::PASSWORDS).await?;
        let path = daemon::password(node);
        let create =
            Op::Create { path: path.clone(), data: Bytes::new(), mode: CreateMode::Ephemeral };
        match self.tree.multi(vec![create.clone()]).await.map_err(flat) {
            Err(StoreError::Tree(TreeError::NodeExists { .. })) => {
                // Of an earlier session, or made by us when the answer got lost.
                let anew = vec![Op::Delete { path: path.clone(), version: None }, create];
                self.tree.multi(anew).await.map_err(flat)?;
            }
            made => drop(made?),
        }
        Ok(control.set_access(&path, Access::Members).await?)
    }

    /// Returns for each node which password its daemon has proven to know: ours, another, or none
    /// that we know of.
    ///
    /// # Errors
    /// [`StoreError::NoPassword`] if this client knows none.
    pub async fn known_passwords(&self) -> Result<BTreeMap<NodeName, KnownPassword>, StoreError> {
        let control = self.control()?;
        let mut known = BTreeMap::new();
        for node in self.fresh().await?.nodes.keys() {
            let found = match control.access(&daemon::password(node)).await {
                Ok(Some(AccessList::Members)) => KnownPassword::Ours,
                Ok(_) => KnownPassword::Unproven,
                Err(TreeError::NotAllowed { .. }) => KnownPassword::Another,
                Err(error) => return Err(error.into()),
            };
            known.insert(node.clone(), found);
        }
        Ok(known)
    }

    fn control(&self) -> Result<&dyn AccessControl, StoreError> {
        self.tree.access_control().ok_or(StoreError::NoPassword)
    }
}

async fn root_access(control: &dyn AccessControl) -> Result<AccessList, StoreError> {
    Ok(control.access("/").await?.ok_or(TreeError::NoNode { path: "/".to_owned() })?)
}
