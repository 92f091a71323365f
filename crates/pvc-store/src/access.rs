//! Who may read and write the records: anybody who reaches the tree, or those alone who know its password.
//!
//! The access of the root is what is wanted of all. Whatever a client creates is for those who may use the root; so
//! the root is changed first, and then what is there already, twice: in between, others create by what they knew.

use std::time::Duration;

use futures::stream::{self, StreamExt, TryStreamExt};
use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_ports::{Access, AccessControl, TreeError};

use crate::error::StoreError;
use crate::keys;
use crate::store::Store;

/// After this time every client that reaches the tree creates by what the root says now.
const NOTICED: Duration = Duration::from_secs(8);

/// How many keys are asked for or changed at once.
const AT_ONCE: usize = 64;

/// Who may use what is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protection {
    /// Who may use the root, and what is created from now on.
    pub access: Access,
    /// Keys that anybody may use.
    pub open: usize,
    /// Keys for those alone who know the password.
    pub closed: usize,
}

impl Store {
    /// Whether this client knows the tree's password.
    pub fn has_password(&self) -> bool {
        self.tree.access_control().is_some()
    }

    /// Who may use what is recorded; other programs' subtrees are not counted.
    ///
    /// # Errors
    /// [`StoreError::NoPassword`] if this client knows none.
    pub async fn protection(&self) -> Result<Protection, StoreError> {
        let control = self.control()?;
        let access = root_access(control).await?;
        let (mut open, mut closed) = (0, 0);
        for (_, found) in self.accesses(control).await? {
            match found {
                Access::Anybody => open += 1,
                Access::Members => closed += 1,
            }
        }
        Ok(Protection { access, open, closed })
    }

    /// Lets these alone use what is recorded, and what is created from now on. If it is broken off, part of it is done:
    /// it can be repeated, and the primary's daemon goes on with it within the hour.
    ///
    /// # Errors
    /// [`StoreError::NoPassword`] if this client knows none.
    pub async fn protect(&self, access: Access) -> Result<Protection, StoreError> {
        let control = self.control()?;
        control.set_access("/", access).await?;
        self.follow_root(control, access).await?;
        self.clock.sleep(NOTICED).await;
        self.follow_root(control, access).await?;
        self.protection().await
    }

    /// Makes alike the root what is not, and returns how many keys that were. Nothing, if this client knows no password.
    pub async fn repair_protection(&self) -> Result<usize, StoreError> {
        let Ok(control) = self.control() else { return Ok(0) };
        self.follow_root(control, root_access(control).await?).await
    }

    async fn follow_root(&self, control: &dyn AccessControl, access: Access) -> Result<usize, StoreError> {
        let differing = self.accesses(control).await?.into_iter().filter(|(_, found)| *found != access);
        let changed = stream::iter(differing).map(|(path, _)| async move {
            match control.set_access(&path, access).await {
                Ok(()) => Ok(1),
                Err(TreeError::NoNode { .. }) => Ok(0),
                Err(error) => Err(error),
            }
        });
        Ok(changed.buffer_unordered(AT_ONCE).try_fold(0, |sum, one| async move { Ok(sum + one) }).await?)
    }

    /// The keys of ours with who may use them. What goes meanwhile is left out.
    async fn accesses(&self, control: &dyn AccessControl) -> Result<Vec<(String, Access)>, StoreError> {
        self.tree.sync().await?;
        let mut accesses = Vec::new();
        let mut level = vec!["/".to_owned()];
        while !level.is_empty() {
            let found = stream::iter(level.clone())
                .map(|path| async move { Ok((control.access(&path).await?, path)) })
                .buffered(AT_ONCE)
                .try_collect::<Vec<_>>();
            let known = found.await.map_err(StoreError::Tree)?.into_iter();
            accesses.extend(known.filter_map(|(access, path)| Some((path, access?))));
            let children = self.tree.children_many(&level).await?;
            let below = level.iter().zip(children).flat_map(|(parent, names)| {
                let parent = parent.trim_end_matches('/');
                names.unwrap_or_default().into_iter().map(move |name| format!("{parent}/{name}"))
            });
            level = below.filter(|path| !keys::is_foreign(path)).collect();
        }
        Ok(accesses)
    }

    fn control(&self) -> Result<&dyn AccessControl, StoreError> {
        self.tree.access_control().ok_or(StoreError::NoPassword)
    }
}

async fn root_access(control: &dyn AccessControl) -> Result<Access, StoreError> {
    Ok(control.access("/").await?.ok_or(TreeError::NoNode { path: "/".to_owned() })?)
}

/// The nodes that could not use records that are closed to who knows no password: their daemons are older, or have not
/// said that they know one.
pub fn without_password(cluster: &Cluster) -> Vec<NodeName> {
    let knows = |note: &pvc_model::node::DaemonNote| note.has_store_password;
    let lacks = cluster
        .nodes
        .values()
        .filter(|node| !(node.runs_our_daemon() && node.daemon.as_ref().is_some_and(knows)));
    lacks.map(|node| node.name.clone()).collect()
}
