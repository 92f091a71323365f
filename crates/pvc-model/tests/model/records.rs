//! Records as a calm cluster has them; a test changes what it is about.
//!
//! The unit tests of this crate include this file as well, so it names the crate as others do.

#![allow(dead_code, reason = "unit tests and others use some of these")]

use std::sync::Arc;

use pvc_model::domain::{DomainSummary, Nic, NicKind};
use pvc_model::node::{
    CoordinatorState, DaemonState, DomainState, NodeFigures, NodeRecord, NodeRole,
};
use pvc_model::sriov::{SriovRecords, VfRecord};
use pvc_model::vm::moving::{MoveNote, MovePhase};
use pvc_model::vm::{VmRecord, VmState};
use pvc_model::{NodeName, Uuid};

/// A secondary coordinator that runs, is ready, and has said nothing of its size yet.
pub fn node(name: &str) -> NodeRecord {
    NodeRecord {
        name: NodeName::new(name),
        role: NodeRole::Coordinator,
        daemon_state: DaemonState::Run,
        coordinator_state: CoordinatorState::Secondary,
        domain_state: DomainState::Ready,
        keepalive: 0,
        keepalives: 0,
        active_schema: Some(15),
        latest_schema: Some(15),
        pvc_version: String::new(),
        cpus: 4,
        kernel: String::new(),
        os: String::new(),
        arch: String::new(),
        figures: NodeFigures::default(),
        running: Vec::new(),
        working_on: Vec::new(),
        health: None,
        plugins: Vec::new(),
        network_stats: Arc::from(""),
        ipmi_hostname: String::new(),
        sriov: SriovRecords::default(),
        daemon: None,
        hypervisor: None,
        fence: None,
        defects: Vec::new(),
    }
}

/// VM number `number`, assigned to `on`.
pub fn vm(number: u128, state: VmState, on: Option<&str>) -> VmRecord {
    let uuid = Uuid::from_u128(number);
    VmRecord {
        uuid,
        name: format!("vm{number}"),
        state,
        state_version: 1,
        incarnation: 1,
        node: on.map(NodeName::new),
        last_node: None,
        failed_reason: String::new(),
        xml: Arc::from("<domain/>"),
        domain: Ok(Arc::new(domain(uuid))),
        profile: None,
        recorded_volumes: Vec::new(),
        stats: Arc::from(""),
        vnc: String::new(),
        autostart: false,
        migration_method: None,
        max_downtime_ms: 300,
        selector: None,
        node_limit: Vec::new(),
        tags: Vec::new(),
        snapshots: Vec::new(),
        moving: None,
        defects: Vec::new(),
    }
}

/// 512 MiB, one vCPU, nothing plugged in.
pub fn domain(uuid: Uuid) -> DomainSummary {
    DomainSummary {
        name: "vm".to_owned(),
        uuid,
        description: None,
        memory_mib: 512,
        vcpus: 1,
        topology: None,
        os_type: "hvm".to_owned(),
        arch: None,
        machine: None,
        emulator: None,
        console: None,
        console_log: None,
        vnc: None,
        features: Vec::new(),
        disks: Vec::new(),
        nics: Vec::new(),
        controllers: Vec::new(),
        ssh_keys: Vec::new(),
    }
}

/// An interface that takes this SR-IOV function of its node.
pub fn hostdev(function: &str) -> Nic {
    Nic {
        kind: NicKind::Hostdev(function.to_owned()),
        mac: String::new(),
        model: String::new(),
        target: None,
        is_exclusive: false,
        has_vlan: false,
    }
}

/// The VM with an interface that takes this SR-IOV function.
pub fn with_hostdev(vm: VmRecord, function: &str) -> VmRecord {
    let domain = DomainSummary { nics: vec![hostdev(function)], ..domain(vm.uuid) };
    VmRecord { domain: Ok(Arc::new(domain)), ..vm }
}

/// Records of a node with this SR-IOV function alone, which nobody is noted to use.
pub fn one_function(name: &str) -> SriovRecords {
    let vf = VfRecord { name: name.to_owned(), ..VfRecord::default() };
    SriovRecords { vfs: vec![vf], ..SriovRecords::default() }
}

/// The note of a live move whose guest is held there until it is handed over.
pub fn move_note(from: &str, to: &str) -> MoveNote {
    MoveNote {
        from: NodeName::new(from),
        to: NodeName::new(to),
        incarnation: 0,
        request: 0,
        held: true,
        phase: MovePhase::Copying,
        attempt: 1,
        seconds: 0,
        total_bytes: 0,
        processed_bytes: 0,
        remaining_bytes: 0,
        why: String::new(),
        left_on: [].into(),
    }
}
