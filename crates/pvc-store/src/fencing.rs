//! The lock of those who fence, and what is written of a node that is dead.

use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::fence::FenceNote;
use pvc_model::node::{CoordinatorState, DaemonState, DomainState, NodeRecord, NodeRole};

use crate::change::{Change, Changes, Expect};
use crate::error::StoreError;
use crate::lock::{LockGuard, LockKind, LockRecipe};
use crate::records::cluster::{self, ConfigChange};
use crate::records::node::NodeChange;
use crate::store::Store;

impl Store {
    /// The lock of whoever fences, waited for at most `limit`. Legacy peers hold it from the first
    /// look to the end of the recovery.
    pub async fn fence_lock(&self, limit: Duration) -> Result<LockGuard, StoreError> {
        let recipe = LockRecipe::new(self.tree.clone(), self.clock.clone(), self.random.clone());
        recipe.acquire(cluster::FENCE_LOCK, LockKind::Exclusive, Some(limit)).await
    }
}

/// Death of a node, in one change with `note`, which says how it is known: what the record says is
/// never without its reason. With `recover`, whoever fences gives the node's VMs to others.
pub fn death(cluster: &Cluster, node: &NodeRecord, note: FenceNote, recover: bool) -> Changes {
    let name = &node.name;
    let mut changes = Changes::new();
    changes.expect(Expect::NodeDaemon(name.clone()));
    changes.node(name, NodeChange::Daemon(DaemonState::Fenced));
    if recover {
        changes.node(name, NodeChange::Domain(DomainState::FenceFlush));
    }
    changes.push(Change::FenceNote(name.clone(), note));
    take_role(cluster, node, &mut changes);
    changes
}

/// Takes the primary role from a dead node, so that another can have it.
pub fn take_role(cluster: &Cluster, node: &NodeRecord, changes: &mut Changes) {
    if node.role == NodeRole::Coordinator && node.coordinator_state != CoordinatorState::Secondary {
        changes.node(&node.name, NodeChange::Coordinator(CoordinatorState::Secondary));
    }
    if cluster.config.primary.as_ref() == Some(&node.name) {
        changes.expect(Expect::Primary);
        changes.config(ConfigChange::Primary(None));
    }
}
