//! Virtual machines.

use std::collections::BTreeMap;

wire! {
    /// A VM with everything known about it.
    pub struct Vm {
        pub name: String,
        pub uuid: String,
        pub state: String,
        pub node: String,
        /// Node from which it was migrated away; empty unless `migrated`.
        pub last_node: String,
        /// `no`, or `from <node>`.
        pub migrated: String,
        /// Empty when nothing failed.
        pub failed_reason: String,
        /// The nodes it may run on; null for all.
        pub node_limit: Option<Vec<String>>,
        pub node_selector: Option<String>,
        pub node_autostart: bool,
        pub migration_method: Option<String>,
        /// Milliseconds.
        pub migration_max_downtime: i64,
        pub tags: Vec<VmTag>,
        /// Newest first.
        pub snapshots: Vec<VmSnapshot>,
        /// `N/A` when the definition has none.
        pub description: String,
        /// The text `None` when unset.
        pub profile: String,
        /// MiB.
        pub memory: i64,
        /// The hypervisor's counters; empty when not running.
        pub memory_stats: BTreeMap<String, f64>,
        pub vcpu: i64,
        /// `sockets/cores/threads`
        pub vcpu_topology: String,
        /// The hypervisor's counters; empty when not running.
        pub vcpu_stats: BTreeMap<String, f64>,
        pub networks: Vec<VmNetwork>,
        pub r#type: String,
        pub arch: String,
        pub machine: String,
        pub console: String,
        pub vnc: VmVnc,
        /// Latest move; null if nothing is known of one.
        pub migration: Option<VmMigration>,
        pub emulator: String,
        pub features: Vec<String>,
        pub disks: Vec<VmDisk>,
        pub controllers: Vec<VmController>,
        /// The definition on one line, attributes in single quotes.
        pub xml: String,
    }

    pub struct VmTag {
        pub name: String,
        /// `user` or `system`.
        pub r#type: String,
        pub protected: bool,
    }

    pub struct VmSnapshot {
        pub name: String,
        /// Epoch seconds as decimal text.
        pub timestamp: String,
        /// Seconds.
        pub age: i64,
        /// Unified diff from the snapshot's definition to the present one.
        pub xml_diff_lines: Vec<String>,
        /// `<pool>/<volume>@<name>`
        pub rbd_snapshots: Vec<String>,
    }

    /// A network card. Counters are 0 when unknown.
    pub struct VmNetwork {
        /// `bridge`, `direct` or `hostdev`.
        pub r#type: String,
        /// Text here: a number, `macvtap:<device>` or `hostdev:<device>`.
        pub vni: String,
        pub mac: Option<String>,
        pub source: Option<String>,
        pub model: Option<String>,
        pub rd_bytes: i64,
        pub rd_packets: i64,
        pub rd_errors: i64,
        pub rd_drops: i64,
        pub wr_bytes: i64,
        pub wr_packets: i64,
        pub wr_errors: i64,
        pub wr_drops: i64,
        /// Addresses that the agent in the guest says this card has; it may say whatever it likes.
        /// Empty without an agent. Not told by PVC 1.0.3.
        pub addresses: Vec<String>,
    }

    /// A disk. Counters are 0 when unknown.
    pub struct VmDisk {
        /// `rbd` or `file`.
        pub r#type: String,
        /// `<pool>/<volume>`, or a path.
        pub name: String,
        pub dev: String,
        pub bus: String,
        pub rd_req: i64,
        pub rd_bytes: i64,
        pub wr_req: i64,
        pub wr_bytes: i64,
    }

    pub struct VmController {
        pub r#type: String,
        pub model: Option<String>,
    }

    /// Both null without VNC.
    pub struct VmVnc {
        pub listen: Option<String>,
        pub port: Option<String>,
    }

    /// The latest move of a VM, as the node that sends it tells.
    pub struct VmMigration {
        pub from: String,
        pub to: String,
        /// `waiting copying shutting-down handed-over done failed`
        pub phase: String,
        /// Number of the live attempt.
        pub attempt: i64,
        /// Since the copying began.
        pub seconds: i64,
        pub percent: i64,
        pub total_bytes: i64,
        pub processed_bytes: i64,
        pub remaining_bytes: i64,
        /// Reason of the last failure; empty if nothing went wrong.
        pub why: String,
    }

    /// Outcome of a change of a VM's hardware.
    pub struct VmHardware {
        pub message: String,
        /// Elements of libvirt's domain XML that a running guest has to be given, or to lose, to be
        /// as its definition says: the ones that `POST` and `DELETE /vm/{vm}/device` take. Empty
        /// for what a guest has from its start.
        pub devices: Vec<String>,
    }

    pub struct VmMemory {
        pub name: String,
        /// MiB.
        pub memory: i64,
    }

    pub struct VmVcpus {
        pub name: String,
        pub vcpus: i64,
        /// Null with `cores` and `threads` when the definition has no topology.
        pub sockets: Option<i64>,
        /// Of each socket.
        pub cores: Option<i64>,
        /// Of each core.
        pub threads: Option<i64>,
    }

    /// Prediction of a move.
    pub struct MovePlan {
        pub message: String,
        pub name: String,
        pub from: String,
        /// Empty if no node can take the VM.
        pub to: String,
        /// `live live-or-shutdown shutdown none`; `off` for a VM that does not run, and `start` for
        /// one that waits for its own node and is started by the other.
        pub method: String,
        /// Figure by which the target is chosen.
        pub selector: String,
        pub nodes: Vec<MoveCandidate>,
    }

    /// Suitability of one node as a target.
    pub struct MoveCandidate {
        pub name: String,
        pub suitable: bool,
        /// Figure that the selector sees in it, or why it does not do.
        pub reason: String,
    }

    pub struct VmState {
        pub name: String,
        pub state: String,
    }

    pub struct VmNode {
        pub name: String,
        pub node: String,
        pub last_node: String,
    }

    pub struct VmMeta {
        pub name: String,
        pub node_limit: Option<Vec<String>>,
        pub node_selector: Option<String>,
        /// The text `True` or `False` here, unlike in [`Vm`].
        pub node_autostart: String,
        pub migration_method: Option<String>,
        pub migration_max_downtime: i64,
    }

    pub struct VmTags {
        pub name: String,
        pub tags: Vec<VmTag>,
    }

    /// The last lines of a serial console, joined by newlines.
    pub struct VmConsole {
        pub name: String,
        pub data: String,
    }
}
