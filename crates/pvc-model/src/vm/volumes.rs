//! Volumes that only one guest may use at a time, and who uses them: what every path that ends in a
//! start asks.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{VmRecord, VmState};
use crate::NodeName;
use crate::Uuid;
use crate::cluster::Cluster;
use crate::node::{DaemonState, NodeRecord};
use crate::storage::VolumeId;

/// The other VMs that use a volume that this one uses, each with the first such volume, where
/// neither says that it shares it (`<shareable/>`): of these and this one, one may run at a time.
pub fn rivals<'a>(
    cluster: &'a Cluster,
    vm: &VmRecord,
) -> impl Iterator<Item = (&'a VmRecord, &'a VolumeId)> {
    let own: BTreeSet<VolumeId> =
        vm.domain.iter().flat_map(|domain| domain.own_volumes().cloned()).collect();
    let uuid = vm.uuid;
    let others = cluster.vms.values().filter(move |other| other.uuid != uuid);
    others.filter_map(move |other| {
        let used = other.domain.as_ref().ok()?.own_volumes().find(|used| own.contains(*used))?;
        Some((&**other, used))
    })
}

/// The node that says it runs the VM and is not proven dead: its guest may be well.
pub fn runs_on(cluster: &Cluster, vm: Uuid) -> Option<&NodeName> {
    let runs = |node: &&Arc<NodeRecord>| {
        node.running.contains(&vm) && node.daemon_state != DaemonState::Fenced
    };
    cluster.nodes.values().find(runs).map(|node| &node.name)
}

/// The node whose storage address this is, as the nodes of ours tell it.
pub fn node_at<'a>(cluster: &'a Cluster, address: &str) -> Option<&'a Arc<NodeRecord>> {
    let is_at = |node: &&Arc<NodeRecord>| {
        node.daemon.as_ref().and_then(|note| note.storage_address.as_deref()) == Some(address)
    };
    cluster.nodes.values().find(is_at)
}

/// The VMs that other nodes are at starting, and that run nowhere as far as is known: each may wait
/// for a lock that a guest left on `here`.
pub fn started_elsewhere<'a>(
    cluster: &'a Cluster,
    here: &'a NodeName,
) -> impl Iterator<Item = Uuid> + 'a {
    let starts = move |vm: &&Arc<VmRecord>| {
        let node =
            vm.node.as_ref().filter(|node| *node != here).and_then(|node| cluster.nodes.get(node));
        vm.state == VmState::Start
            && node.is_some_and(|node| node.working_on.contains(&vm.uuid))
            && runs_on(cluster, vm.uuid).is_none()
    };
    cluster.vms.values().filter(starts).map(|vm| vm.uuid)
}
