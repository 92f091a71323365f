//! SR-IOV functions that VMs are given: noted where the VM is given its place, in one with it. The
//! nodes mend whatever is noted otherwise (`pvc_model::sriov`).

use pvc_model::cluster::Cluster;
use pvc_model::domain::Nic;
use pvc_model::node::NodeRecord;
use pvc_model::sriov::VfUse;
use pvc_model::vm::VmRecord;
use pvc_model::vm::volumes::is_at_rest;
use pvc_model::{NodeName, Uuid};
use pvc_store::{Change, Changes};

/// Notes that VM `vm` has the functions that its interfaces name on the node. Of two VMs that are
/// given one at once, the later one decides again.
pub(super) fn claim(changes: &mut Changes, node: &NodeRecord, vm: Uuid, nics: &[Nic]) {
    for nic in nics {
        let Some(vf) = node.sriov.taken_by(nic) else { continue };
        // What two have by older records the node settles.
        let is_others = vf.used && vf.used_by != Some(vm);
        if is_others || (vf.used && vf.mac == nic.mac) {
            continue;
        }
        let note = VfUse { vf: vf.name.clone(), used_by: Some(vm), mac: nic.mac.clone() };
        changes.push(Change::UseVf(node.name.clone(), note));
    }
}

/// Notes of the functions that the VM has, but those that it `keeps`, that nobody has them. While
/// its guest may still have them on a node of ours, they are left to that node.
pub(super) fn release(
    changes: &mut Changes,
    cluster: &Cluster,
    vm: &VmRecord,
    keeps: impl Fn(&NodeName, &str) -> bool,
) {
    let is_at_rest = is_at_rest(cluster, vm);
    for node in cluster.nodes.values().filter(|node| is_at_rest || !node.runs_our_daemon()) {
        for vf in node.sriov.vfs.iter().filter(|vf| vf.used && vf.used_by == Some(vm.uuid)) {
            if keeps(&node.name, &vf.name) {
                continue;
            }
            let note = VfUse { vf: vf.name.clone(), used_by: None, mac: vf.phy_mac.clone() };
            changes.push(Change::UseVf(node.name.clone(), note));
        }
    }
}
