//! Asks about one VM. VMs are named by name or UUID.

mod define;
mod locks;
mod meta;
mod place;
mod remove;
mod rename;
mod state;

pub use define::{Define, DefineRefusal, Defined, Modified, check_modify, define, modify};
pub use locks::{FLUSH_LOCKS, FlushRefusal, submit_flush_locks};
pub use meta::{Meta, MetaRefusal, TagRefusal, add_tag, remove_tag, set_meta};
pub use place::{How, Move, MovePlan, MoveRefusal, Moved, Movement, move_vm, plan_move};
pub use remove::{RemoveRefusal, Removed, remove};
pub use rename::{RenameRefusal, Renamed, rename, take_back_renaming};
pub use state::{StateOutcome, StateRefusal, finish_disable, set_state};

use pvc_model::Uuid;
use pvc_model::cluster::Cluster;
use pvc_model::node::{DaemonState, NodeRecord};
use pvc_model::storage::VolumeId;
use pvc_model::vm::{VmRecord, VmState};

/// Whether a VM other than `own` has the name.
fn name_taken(cluster: &Cluster, name: &str, own: Uuid) -> bool {
    cluster.vms.values().any(|vm| vm.name == name && vm.uuid != own)
}

/// A living node that [has](has) the VM; one that says it runs there, if any does.
fn runner(cluster: &Cluster, vm: Uuid) -> Option<&NodeRecord> {
    let alive = || cluster.nodes.values().filter(|node| node.daemon_state == DaemonState::Run);
    let runs = alive().find(|node| node.running.contains(&vm));
    runs.or_else(|| alive().find(|node| has(node, vm))).map(|node| &**node)
}

/// Whether the node says that it runs the VM, or is at starting or ending it: one that stands still in the middle of a
/// start has a guest when it goes on.
fn has(node: &NodeRecord, vm: Uuid) -> bool {
    node.running.contains(&vm) || node.working_on.contains(&vm)
}

/// A node that [has](has) the VM, and is neither heard of nor proven dead: its guests may be well.
fn silent_runner(cluster: &Cluster, vm: Uuid) -> Option<&NodeRecord> {
    let is_silent = |node: &&std::sync::Arc<NodeRecord>| {
        !matches!(node.daemon_state, DaemonState::Run | DaemonState::Fenced)
    };
    cluster.nodes.values().filter(is_silent).find(|node| has(node, vm)).map(|node| &**node)
}

/// Whether the guest runs somewhere, or may for all that is known.
fn may_run(cluster: &Cluster, vm: Uuid) -> bool {
    runner(cluster, vm).is_some() || silent_runner(cluster, vm).is_some()
}

/// Another VM that uses one of the volumes, and which.
fn other_user<'a>(
    cluster: &'a Cluster,
    vm: Uuid,
    volumes: &'a [VolumeId],
) -> Option<(&'a VmRecord, &'a VolumeId)> {
    user(cluster, volumes, |other| other.uuid != vm)
}

/// Another VM that is being removed and has one of the volumes, which may go with it, and which.
fn going_user<'a>(
    cluster: &'a Cluster,
    vm: Uuid,
    volumes: &'a [VolumeId],
) -> Option<(&'a VmRecord, &'a VolumeId)> {
    user(cluster, volumes, |other| other.uuid != vm && other.state == VmState::Delete)
}

fn user<'a>(
    cluster: &'a Cluster,
    volumes: &'a [VolumeId],
    is_meant: impl Fn(&VmRecord) -> bool,
) -> Option<(&'a VmRecord, &'a VolumeId)> {
    let others = cluster.vms.values().filter(|other| is_meant(other));
    others.flat_map(|other| other.volumes().into_iter().map(move |volume| (other, volume))).find_map(
        |(other, used)| volumes.iter().find(|volume| **volume == used).map(|volume| (&**other, volume)),
    )
}
