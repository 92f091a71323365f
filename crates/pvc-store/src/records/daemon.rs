//! The daemons that are connected: `/pvcrs/daemon/{node}`, ephemeral, and, for those alone who know
//! the password that the daemon knows, `/pvcrs/passwords/{node}`, ephemeral as well. Both are asked
//! of the tree, not of the view.

use bytes::Bytes;
use pvc_model::NodeName;
use pvc_ports::{CreateMode, TreeError};

use super::{Kind, PLAIN, private};
use crate::error::StoreError;
use crate::store::Store;

const ROOT: &str = "/pvcrs/daemon";

/// The container of the proofs; made by the first daemon that has one to give.
pub(crate) const PASSWORDS: &str = "/pvcrs/passwords";

pub(super) const KIND: Kind = Kind {
    roots: &[ROOT, PASSWORDS],
    base: &[(ROOT, "")],
    is_closed: |key| key.root == PASSWORDS && !key.is_root(),
    is_observed: |_| true,
    is_for_scripts: |key| key.root == ROOT,
    ..PLAIN
};

/// The key that is there as long as one of our daemons is connected for the node.
fn path(node: &NodeName) -> String {
    format!("{ROOT}/{node}")
}

/// The key that is there as long as a daemon that knows a password is connected for the node; those
/// alone who know the same one may use it.
pub(crate) fn password(node: &NodeName) -> String {
    format!("{PASSWORDS}/{node}")
}

/// The fate of a daemon's announcement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Announced {
    /// Made: the process is the node's daemon now.
    Now,
    /// Not made: another process is the node's daemon.
    Taken {
        /// Text by which the other process names itself; empty if none.
        by: String,
    },
}

impl Store {
    /// Announces this process as the daemon of `node`, for as long as its session lasts. `who` says
    /// to others which process of which machine it is.
    ///
    /// # Errors
    /// [`StoreError::NotInitialized`] if the tree holds no cluster: nothing begins one by the way.
    pub async fn announce_daemon(
        &self,
        node: &NodeName,
        who: &str,
    ) -> Result<Announced, StoreError> {
        self.fresh().await?;
        if !self.is_initialized() {
            return Err(StoreError::NotInitialized);
        }
        self.ensure_path(private::ROOT).await?;
        self.ensure_path(ROOT).await?;
        let path = path(node);
        match self.tree.create(&path, Bytes::from(who.to_owned()), CreateMode::Ephemeral).await {
            Ok(_) => {}
            // An answer got lost, now or the last time: it is announced, and nobody else is.
            Err(TreeError::OutcomeUnknown | TreeError::NodeExists { .. })
                if self.own(&path).await?.is_some() => {}
            Err(TreeError::NodeExists { .. }) => {
                let by = self.read_text(&path).await?.unwrap_or_default();
                return Ok(Announced::Taken { by });
            }
            Err(error) => return Err(error.into()),
        }
        if let Err(error) = self.prove_password(node).await {
            // The records cannot be closed then; all else goes on.
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "this daemon could not prove that it knows the store's password");
        }
        Ok(Announced::Now)
    }

    /// The number by which the daemon of `node` is announced while it is connected, if it is one of
    /// ours: another one with each session. Legacy peers do not say.
    pub async fn announcement(&self, node: &NodeName) -> Result<Option<i64>, StoreError> {
        Ok(self.tree.get(&path(node)).await?.map(|entry| entry.stat.czxid))
    }

    /// Tells whether the daemon of `node` is one of ours, also while its session is being made
    /// anew: its record says so until a legacy peer is started there.
    pub async fn has_our_daemon(&self, node: &NodeName) -> Result<bool, StoreError> {
        let is_announced = self.announcement(node).await?.is_some();
        Ok(is_announced
            || self.view().nodes.get(node).is_some_and(|record| record.runs_our_daemon()))
    }
}
