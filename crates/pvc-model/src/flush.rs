//! Emptying a node of VMs, and taking them back.
//!
//! Both are decided from the present records every time, so either can be turned into the other at any
//! moment. Where a VM could go to another node it is moved; moving comes with the cluster release, until
//! then such a VM stays where it is and the flush waits.

use crate::cluster::Cluster;
use crate::vm::{VmRecord, VmState};
use crate::{NodeName, Uuid};

/// How many VMs are shut down at once.
pub const AT_ONCE: usize = 4;

/// What is left to do to empty a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flush {
    /// To be shut down now, and started again when the node is ready: no other node can take them.
    pub shut_down: Vec<Uuid>,
    /// On their way, or waiting for their turn.
    pub waiting: Vec<Uuid>,
    /// Could be moved to another node, which this version cannot do.
    pub to_move: Vec<Uuid>,
}

impl Flush {
    /// Whether the node is empty.
    pub fn is_done(&self) -> bool {
        *self == Flush::default()
    }
}

/// What is left to do to empty `node`.
pub fn flush(cluster: &Cluster, node: &NodeName) -> Flush {
    let mut left = Flush::default();
    let mut slots = AT_ONCE;
    let runs = |vm: &VmRecord| cluster.nodes.get(node).is_some_and(|own| own.running.contains(&vm.uuid));
    let here: Vec<&VmRecord> =
        cluster.vms.values().map(|vm| &**vm).filter(|vm| vm.is_assigned_to(node)).collect();
    for vm in &here {
        match vm.state {
            VmState::Start => {}
            // A graceful stop under way is waited for; so is a restart, which ends in `start`.
            VmState::Shutdown | VmState::Restart => {
                slots = slots.saturating_sub(1);
                left.waiting.push(vm.uuid);
            }
            VmState::Migrate | VmState::MigrateLive => left.waiting.push(vm.uuid),
            VmState::Stop if runs(vm) => left.waiting.push(vm.uuid),
            // What runs against its record is reported by others and is no VM of ours to stop.
            _ => {}
        }
    }
    for vm in here.iter().filter(|vm| vm.state == VmState::Start) {
        if has_target(cluster, vm, node) {
            left.to_move.push(vm.uuid);
        } else if slots > 0 {
            slots -= 1;
            left.shut_down.push(vm.uuid);
        } else {
            left.waiting.push(vm.uuid);
        }
    }
    left
}

/// Whether any other node could take the VM.
fn has_target(cluster: &Cluster, vm: &VmRecord, node: &NodeName) -> bool {
    let allowed = |name: &NodeName| vm.node_limit.is_empty() || vm.node_limit.contains(name);
    cluster.nodes.values().any(|other| other.name != *node && other.takes_vms() && allowed(&other.name))
}

/// One VM that a node takes back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TakeBack {
    /// It was shut down when the node was emptied, or is marked to be started: start it.
    Start(Uuid),
    /// It is marked to be started and is already: only the mark goes.
    Unmark(Uuid),
    /// It came from here and is off: it belongs here again and stays off.
    Assign(Uuid),
    /// It came from here and runs elsewhere: to be moved, which this version cannot do.
    Move(Uuid),
}

/// The VMs that `node` takes back when it becomes ready.
pub fn unflush(cluster: &Cluster, node: &NodeName) -> Vec<TakeBack> {
    cluster.vms.values().filter_map(|vm| take_back(vm, node)).collect()
}

fn take_back(vm: &VmRecord, node: &NodeName) -> Option<TakeBack> {
    if vm.is_assigned_to(node) {
        return match vm.state {
            _ if !vm.autostart => None,
            VmState::Start | VmState::Restart => Some(TakeBack::Unmark(vm.uuid)),
            VmState::Stop | VmState::Shutdown | VmState::Disable | VmState::Fail => {
                Some(TakeBack::Start(vm.uuid))
            }
            // Somebody is making it, or it is another cluster's copy and must stay off.
            _ => None,
        };
    }
    if vm.last_node.as_ref() != Some(node) {
        return None;
    }
    match vm.state {
        VmState::Stop | VmState::Disable | VmState::Fail => Some(TakeBack::Assign(vm.uuid)),
        VmState::Start | VmState::Restart | VmState::Shutdown => Some(TakeBack::Move(vm.uuid)),
        _ => None,
    }
}
