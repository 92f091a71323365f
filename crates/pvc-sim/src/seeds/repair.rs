//! Faults that operators set right, and nobody else can.

use std::collections::BTreeSet;
use std::sync::Arc;

use pvc_model::NodeName;
use pvc_model::cluster::Cluster as View;
use pvc_model::hold::{Purpose, check_none_held};
use pvc_model::node::{DaemonState, DomainState};
use pvc_model::vm::{VmRecord, VmState};

use crate::actions::Ask;
use crate::cluster::{Cluster, vm_uuid};
use crate::guest_networks::NetworkAsk;
use crate::new_vms::NewVmAsk;
use crate::storage_changes::StorageAsk;

impl Cluster {
    /// The cluster is to look after itself again.
    pub(super) fn end_maintenance(&self) {
        if self.view().config.maintenance {
            self.ask(Ask::Maintenance(false));
        }
    }

    /// Does, as an operator, what only operators can set right.
    pub fn repair(&self) {
        let view = self.view();
        for host in 0..self.shape.hosts.len() {
            let Some(node) = view.nodes.get(self.shape.host_name(host).as_str()) else { continue };
            if node.daemon_state == DaemonState::Run
                && matches!(node.domain_state, DomainState::Flushed | DomainState::Flush)
            {
                self.ask(Ask::Ready(host));
            }
        }
        self.end_maintenance();
        self.repeat_what_is_held();
        self.bring_networks_back();
        for vm in 0..self.shape.vms.len() {
            let Some(record) = view.vms.get(&vm_uuid(vm)) else { continue };
            if record.state == VmState::Delete {
                self.ask(Ask::Undefine(vm));
            } else if record.state == VmState::Fail {
                let needs_flush = record.failed_reason.contains("flush locks manually");
                // What was asked for the last time may be done by now.
                match needs_flush && self.begins_to_flush_locks(record.uuid) {
                    true => self.ask(Ask::FlushLocks(vm)),
                    false => self.ask(Ask::Start(vm)),
                }
            } else if self.is_left_off(&view, record) {
                self.ask(Ask::Start(vm));
            }
        }
        self.repair_new_vms();
    }

    /// Whether the VM waits for a node that is ready and has left it off, for its volume was held.
    fn is_left_off(&self, view: &View, record: &VmRecord) -> bool {
        let is_ready = |node: &NodeName| {
            view.nodes.get(node).is_some_and(|node| node.domain_state == DomainState::Ready)
        };
        record.autostart
            && matches!(record.state, VmState::Stop | VmState::Disable)
            && record.node.as_ref().is_some_and(is_ready)
            && check_none_held(view, record).is_ok()
            && self.world.with(|state| state.truth.orders.is_left_off(record.uuid))
    }

    /// Does the same about the VMs that were made of an image.
    fn repair_new_vms(&self) {
        let view = self.view();
        let failed = |record: &&Arc<VmRecord>| record.state == VmState::Fail && self.is_new(record);
        for record in view.vms.values().filter(|vm| self.is_new(vm) && self.is_left_off(&view, vm))
        {
            self.ask(Ask::NewVm(NewVmAsk::Start { name: record.name.clone() }));
        }
        for record in view.vms.values().filter(failed) {
            let needs_flush = record.failed_reason.contains("flush locks manually");
            let name = record.name.clone();
            self.ask(Ask::NewVm(match needs_flush && self.begins_to_flush_locks(record.uuid) {
                true => NewVmAsk::FlushLocks { name },
                false => NewVmAsk::Start { name },
            }));
        }
    }

    /// Makes the networks again that VMs are plugged into and that somebody has removed.
    fn bring_networks_back(&self) {
        let view = self.view();
        let used = self.shape.vms.iter().flat_map(|vm| &vm.networks);
        let used: BTreeSet<u32> = used.copied().collect();
        for vni in used.into_iter().filter(|vni| !view.networks.contains_key(&vni.to_string())) {
            self.ask(Ask::Network(NetworkAsk::Add { vni }));
        }
    }

    /// Asks again for what holds a volume and was cut off, once its VM is off.
    fn repeat_what_is_held(&self) {
        let view = self.view();
        for vm in 0..self.shape.vms.len() {
            let volume = self.world.with(|state| state.ceph.disks.get(&vm_uuid(vm)).cloned());
            let hold = volume.and_then(|volume| view.holds.get(&volume).cloned());
            let Some(Purpose::RollBack(snapshot)) = hold.map(|hold| hold.purpose.clone()) else {
                continue;
            };
            let name = snapshot.to_string();
            let record = view.vms.get(&vm_uuid(vm));
            let is_off =
                |record: &Arc<VmRecord>| matches!(record.state, VmState::Stop | VmState::Disable);
            match record.is_none_or(is_off) {
                true => self.ask(Ask::Storage(StorageAsk::RollBack { vm, name })),
                false => self.ask(Ask::Stop(vm)),
            }
        }
    }
}
