//! Where the VMs of a dead node go.

use crate::cluster::Cluster;
use crate::node::{DaemonState, NodeRecord};
use crate::placement::{Need, NoPlace, Promises, check_node, place, selector_for};
use crate::storage::VolumeId;
use crate::vm::{VmRecord, VmState};
use crate::{NodeName, Uuid};

/// What is done about one VM of a dead node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rescue {
    pub vm: Uuid,
    pub name: String,
    /// Whose locks of the dead node are released before anything is written (I2).
    pub volumes: Vec<VolumeId>,
    pub way: Way,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// It is started on this node.
    Start(NodeName),
    /// It runs on this node, from where it was on its way to the dead one.
    Stay(NodeName),
    /// No node can take it: it is off until its own node is ready again.
    Wait(NoPlace),
}

/// Plans for all VMs at once that should run and cannot since `victim` is dead; no memory is promised
/// twice (I11). The largest VMs choose first: a small one fits in what they leave, not the other way
/// round.
pub fn rescues(cluster: &Cluster, victim: &NodeName) -> Vec<Rescue> {
    let mut lost: Vec<&VmRecord> =
        cluster.vms.values().map(|vm| &**vm).filter(|vm| is_lost(cluster, vm, victim)).collect();
    lost.sort_by_key(|vm| (std::cmp::Reverse(vm.memory_mib()), vm.name.clone(), vm.uuid));
    let mut promises = Promises::default();
    let rescue = |vm: &VmRecord| {
        let way = way(cluster, vm, victim, &mut promises);
        Rescue { vm: vm.uuid, name: vm.name.clone(), volumes: vm.volumes(), way }
    };
    lost.into_iter().map(rescue).collect()
}

/// Whether the VM should run, and nobody runs it because `victim` is dead.
fn is_lost(cluster: &Cluster, vm: &VmRecord, victim: &NodeName) -> bool {
    match vm.state {
        VmState::Start | VmState::Restart => vm.is_assigned_to(victim),
        // On its way to the dead node, or from it. One that has arrived is looked after by its new node.
        VmState::Migrate | VmState::MigrateLive | VmState::Unmigrate => {
            // A VM that moves for good does not remember where it was; the dead node's list does.
            let was_there = |node: &NodeRecord| node.running.contains(&vm.uuid);
            let left_behind = vm.last_node.as_ref() == Some(victim)
                || cluster.nodes.get(victim).is_some_and(|node| was_there(node));
            let arrived = vm.node.as_ref().is_some_and(|node| runs_on(cluster, vm, node));
            vm.is_assigned_to(victim) || (left_behind && !arrived)
        }
        _ => false,
    }
}

/// Whether `node` lives and says that it runs the VM.
fn runs_on(cluster: &Cluster, vm: &VmRecord, node: &NodeName) -> bool {
    cluster
        .nodes
        .get(node)
        .is_some_and(|node| node.daemon_state == DaemonState::Run && node.running.contains(&vm.uuid))
}

fn way(cluster: &Cluster, vm: &VmRecord, victim: &NodeName, promises: &mut Promises) -> Way {
    let is_sender = |name: &&NodeName| *name != victim && runs_on(cluster, vm, name);
    if let Some(sender) = vm.last_node.iter().chain(cluster.nodes.keys()).find(is_sender) {
        return Way::Stay(sender.clone());
    }
    let domain = vm.domain.as_ref().ok();
    let need = Need {
        memory_mib: vm.memory_mib(),
        vcpus: domain.map_or(0, |domain| domain.vcpus),
        node_limit: &vm.node_limit,
        leaving: Some(victim),
        runs: true,
    };
    // Where it was going is where somebody wanted it.
    let destination = vm.node.as_ref().and_then(|node| cluster.nodes.get(node)).map(|node| &**node);
    let fits = |node: &&NodeRecord| check_node(node, &need, promises).is_ok();
    let chosen = match destination.filter(fits) {
        Some(node) => Ok(node.name.clone()),
        None => place(cluster, &selector_for(vm.selector.as_ref(), cluster), &need, promises),
    };
    match chosen {
        Ok(node) => {
            promises.add(&node, &need);
            Way::Start(node)
        }
        Err(no_place) => Way::Wait(no_place),
    }
}

/// Whether a lock held from `address` is one of `victim`, as far as the nodes' storage addresses are
/// known: the victim's own, or, if it never told, one that no other node has.
pub fn lock_is_of(cluster: &Cluster, victim: &NodeName, address: &str) -> bool {
    let told = |node: &NodeRecord| node.hypervisor.as_ref().and_then(|note| note.storage_address.clone());
    match cluster.nodes.get(victim).and_then(|node| told(node)) {
        Some(own) => own == address,
        None => {
            let others = cluster.nodes.values().filter(|node| node.name != *victim);
            others.filter_map(|node| told(node)).all(|other| other != address)
        }
    }
}
