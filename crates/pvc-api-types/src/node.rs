//! Nodes.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::wire::Health;

wire! {
    /// A node with everything known about it.
    pub struct Node {
        pub name: String,
        /// `run init shutdown stop dead fenced`
        pub daemon_state: String,
        /// `primary secondary takeover relinquish client`
        pub coordinator_state: String,
        /// `ready flush flushed unflush fence-flush`
        pub domain_state: String,
        pub pvc_version: String,
        pub cpu_count: i64,
        pub kernel: String,
        pub os: String,
        pub arch: String,
        pub health: Health,
        pub health_plugins: Vec<String>,
        /// Results in the order of `health_plugins`.
        pub health_details: Vec<HealthDetail>,
        pub load: f64,
        pub domains_count: i64,
        /// Names, not UUIDs.
        pub running_domains: Vec<String>,
        pub vcpu: NodeVcpu,
        pub memory: NodeMemory,
        pub interfaces: BTreeMap<String, Interface>,
        /// Hypervisor that guests run with here; legacy nodes do not say.
        pub hypervisor: Option<NodeHypervisor>,
        /// Whether its kernel has VLANs (8021q), without which it carries no bridged network;
        /// legacy nodes do not say.
        pub vlans: Option<bool>,
        /// The last time that others took it for dead, if one of our own nodes did.
        pub fence: Option<NodeFence>,
        /// VMs that a flush or a return to `ready` under way waits for; empty if there is none.
        pub waits_for: Vec<NodeWait>,
    }

    /// A VM that a node being flushed or made ready waits for.
    pub struct NodeWait {
        pub name: String,
        /// `move`, `shutdown`, `wait` or `blocked`; `stay` if it does not come back, which keeps
        /// nobody waiting.
        pub action: String,
        /// Reason for people; goes on after the name.
        pub reason: String,
        /// Share of its memory that has been copied, while it is.
        pub percent: Option<i64>,
    }

    /// Course of the fencing of a silent node, which is over or goes on. Times are local
    /// `YYYY-MM-DD HH:MM:SS`, as in faults.
    pub struct NodeFence {
        /// The node that did it.
        pub by: String,
        pub suspected_at: String,
        /// Empty as long as its death is not proven.
        pub proven_at: String,
        /// Proof of its death, in words; empty until there is one.
        pub proof: String,
        /// Attempts to prove it that failed, and why the last one did.
        pub failed_attempts: u32,
        pub last_failure: String,
        /// VMs that were given to other nodes, as `name on node`.
        pub recovered: Vec<String>,
        /// VMs that no node could take, as `name: why`.
        pub stranded: Vec<String>,
        /// `untouched`, `to be switched on`, `switched on`; or `on` of a node that lives, though no
        /// fencer has said that it switched it on.
        pub power: String,
    }

    /// Hypervisor that a node runs its guests with.
    pub struct NodeHypervisor {
        /// `kvm`, or `qemu` where guests are emulated in software.
        pub accelerator: String,
        /// Reason why it is not KVM, if so.
        pub kvm_refused: Option<String>,
        pub libvirt_version: String,
        pub qemu_version: String,
    }

    /// Result of a health plugin's last run.
    pub struct HealthDetail {
        pub name: String,
        /// Epoch seconds.
        pub last_run: i64,
        pub health_delta: i64,
        pub message: String,
        /// Whatever the plugin wants to keep.
        #[schema(value_type = Object)]
        pub data: Map<String, Value>,
    }

    pub struct NodeVcpu {
        pub total: i64,
        pub allocated: i64,
    }

    /// MiB. `allocated` counts running VMs, `provisioned` all that are assigned to the node.
    pub struct NodeMemory {
        pub total: i64,
        pub allocated: i64,
        pub provisioned: i64,
        pub used: i64,
        pub free: i64,
    }

    /// Traffic of one network card: bits and packets per second.
    pub struct Interface {
        pub rx_bps: f64,
        pub rx_pps: f64,
        pub tx_bps: f64,
        pub tx_pps: f64,
        pub total_bps: f64,
        pub total_pps: f64,
        pub link_speed: f64,
        pub state: String,
    }

    /// Prediction of a flush.
    pub struct FlushPlan {
        pub message: String,
        pub name: String,
        pub vms: Vec<FlushStep>,
    }

    /// Fate of one VM.
    pub struct FlushStep {
        pub name: String,
        /// `move`, `shutdown`, `wait` or `blocked`.
        pub action: String,
        /// Node to which it is moved; empty unless it is.
        pub to: String,
        pub reason: String,
    }

    pub struct NodeDaemonState {
        pub name: String,
        pub daemon_state: String,
    }

    pub struct NodeCoordinatorState {
        pub name: String,
        pub coordinator_state: String,
    }

    pub struct NodeDomainState {
        pub name: String,
        pub domain_state: String,
    }

    /// The last lines of a node's log, joined by newlines.
    pub struct NodeLog {
        pub name: String,
        pub data: String,
    }
}
