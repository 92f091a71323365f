//! Asks about one VM. VMs are named by name or UUID.

mod create;
mod define;
mod functions;
mod hardware;
mod locks;
mod meta;
mod new_name;
mod place;
mod remove;
mod rename;
mod scripted;
mod state;

pub use create::{Create, CreateRefusal, Origin, create, definition_of};
pub use define::{
    Define, DefineRefusal, Defined, Definition, Modified, Modify, NicRefusal, check_modify, define,
    modify,
};
pub(crate) use define::{check_new_name, check_nics, known_nodes};
pub use hardware::{
    Changed, HardwareAsk, HardwareChange, HardwareRefusal, NewCard, SriovMode, change_hardware,
};
pub use locks::{FlushRefusal, check_not_silent, submit_flush_locks};
pub use meta::{Meta, MetaRefusal, TagRefusal, add_tag, remove_tag, set_meta};
pub use new_name::NewNameRefusal;
pub(crate) use new_name::{check_new_vm, require_name_of_nobody};
pub use place::{How, Move, MovePlan, MoveRefusal, Moved, Movement, move_vm, plan_move};
pub use remove::{OffRemoval, RemoveRefusal, Removed, VolumeRemoval, check_remove, remove};
pub use rename::{
    Rename, RenameRefusal, Renamed, check_rename, plan_rename, record_renamed, rename,
    rename_records,
};
pub use scripted::{Script, ScriptedRefusal};
pub(crate) use state::check_volumes_free;
pub use state::{
    Crowding, StateAsk, StateOutcome, StatePlan, StateRefusal, VolumeInUse, check_state,
    finish_disable, set_state, start_changes,
};

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::node::{DaemonState, NodeRecord};
use pvc_model::request::is_off;
use pvc_model::storage::VolumeId;
use pvc_model::vm::moving::has_guest;
use pvc_model::vm::{VmRecord, VmState};
use pvc_model::{NodeName, Uuid};

use crate::wait::SILENCE;

/// Time that a guest may take to be gone once its plug is to be pulled.
const STOP_TIME_LIMIT: Duration = Duration::from_secs(60);

/// Whether a VM other than `own` has the name.
fn name_taken(cluster: &Cluster, name: &str, own: Uuid) -> bool {
    cluster.vms.values().any(|vm| vm.name == name && vm.uuid != own)
}

/// A living node that [has](has_guest) the VM; one that says it runs there, if any does.
fn runner(cluster: &Cluster, vm: Uuid) -> Option<&NodeRecord> {
    let alive = || cluster.nodes.values().filter(|node| node.daemon_state == DaemonState::Run);
    let runs = alive().find(|node| node.running.contains(&vm));
    runs.or_else(|| alive().find(|node| has_guest(cluster, node, vm))).map(|node| &**node)
}

/// A node that [has](has_guest) the VM, and is [silent](is_silent).
pub fn silent_runner(cluster: &Cluster, vm: Uuid) -> Option<&NodeRecord> {
    silent_runners(cluster, vm).next()
}

fn silent_runners(cluster: &Cluster, vm: Uuid) -> impl Iterator<Item = &NodeRecord> {
    let silent = cluster.nodes.values().map(|node| &**node).filter(|node| is_silent(node));
    silent.filter(move |node| has_guest(cluster, node, vm))
}

/// Whether the node is neither heard of nor proven dead: its guests may be well, and are not ended
/// by an order.
fn is_silent(node: &NodeRecord) -> bool {
    !matches!(node.daemon_state, DaemonState::Run | DaemonState::Fenced)
}

/// The silent node that keeps a VM from being ended soon: one that has it, or its own one if it may
/// be starting it.
fn silent_keeper<'a>(cluster: &'a Cluster, record: &VmRecord) -> Option<&'a NodeRecord> {
    let home = || {
        let name = record.node.as_ref().filter(|_| !may_be_off(record))?;
        cluster.node(name.as_str()).map(|node| &**node).filter(|node| stays_silent(node))
    };
    silent_runners(cluster, record.uuid).find(|node| stays_silent(node)).or_else(home)
}

/// Whether nothing says that the silent node will be heard of in a moment, as one whose daemon
/// begins anew.
fn stays_silent(node: &NodeRecord) -> bool {
    matches!(node.daemon_state, DaemonState::Dead | DaemonState::Stop)
}

/// Whether the VM is in a state in which no guest runs and none is being started.
fn may_be_off(record: &VmRecord) -> bool {
    use VmState::{Delete, Fail, Import, Provision, Restore};
    is_off(&record.state) || matches!(record.state, Fail | Provision | Import | Restore | Delete)
}

/// Refusal to end a VM because the node that may have it is silent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("VM `{vm}` may run on node `{node}`, whose daemon {silence}")]
pub struct NodeSilent {
    pub vm: String,
    pub node: NodeName,
    pub silence: Silence,
}

/// Silence of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Silence {
    /// Its daemon is in a state in which it says nothing.
    Of(DaemonState),
    /// Its daemon should run, and has said nothing for a minute.
    Unexplained,
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Silence::Of(state) => write!(f, "is in state `{state}`"),
            Silence::Unexplained => {
                write!(f, "should run, and has not been heard of for {} s", SILENCE.as_secs())
            }
        }
    }
}

impl NodeSilent {
    fn new(vm: &str, node: &NodeRecord) -> Self {
        let silence = Silence::Of(node.daemon_state.clone());
        NodeSilent { vm: vm.to_owned(), node: node.name.clone(), silence }
    }

    fn hint(&self) -> String {
        format!(
            "start that node's daemon, or wait until the node is fenced; `pvc vm stop {}` has it \
             stay off from then on",
            self.vm
        )
    }
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
    let volumes: BTreeSet<&VolumeId> = volumes.iter().collect();
    let others = cluster.vms.values().filter(|other| is_meant(other));
    others
        .flat_map(|other| other.named_volumes().map(move |volume| (&**other, volume)))
        .find_map(|(other, used)| volumes.get(used).map(|volume| (other, *volume)))
}
