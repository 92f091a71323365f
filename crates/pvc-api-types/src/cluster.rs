//! The cluster as a whole: status, faults, plain replies.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::wire::Health;

wire! {
    /// The reply to a change that has nothing else to say.
    pub struct Message {
        pub message: String,
    }

    /// Name of the primary node, or `none` during a hand-over.
    pub struct PrimaryNode {
        pub primary_node: String,
    }

    /// Access rules of the records in ZooKeeper.
    pub struct StoreAccess {
        /// Users of what is created: `anybody` who reaches ZooKeeper, `members`, who know the
        /// password, or `other`, if somebody has set it by other means.
        pub access: String,
        /// Number of keys that anybody may use.
        pub open: usize,
        /// Number of keys that are for members alone.
        pub closed: usize,
        /// Number of keys that are for others as well, or for others alone: for those who know an
        /// earlier password.
        pub others: usize,
        /// The nodes that are not known to know a password.
        pub without_password: Vec<String>,
        /// The nodes that know another password than the API that answers.
        pub other_password: Vec<String>,
    }

    /// A condition somebody should look at.
    pub struct Fault {
        pub id: String,
        /// Server time, `YYYY-MM-DD HH:MM:SS`.
        pub last_reported: String,
        pub first_reported: String,
        /// Empty until acknowledged.
        pub acknowledged_at: String,
        /// `new` or `ack`.
        pub status: String,
        /// Points that it takes off the cluster's health, 0 to 100.
        pub health_delta: i64,
        pub message: String,
    }

    /// The whole cluster at a glance.
    pub struct ClusterStatus {
        pub cluster_name: String,
        pub cluster_health: ClusterHealth,
        pub node_health: BTreeMap<String, NodeHealth>,
        /// The text `true` or `false`; monitoring compares it as text.
        pub maintenance: String,
        /// A name, or `none` during a hand-over.
        pub primary_node: String,
        /// Version that the primary reports; null while unknown.
        pub pvc_version: Option<String>,
        /// The floating address with its prefix length.
        pub upstream_ip: String,
        /// By `<daemon state>,<domain state>`.
        pub nodes: StateCounts,
        pub vms: StateCounts,
        pub networks: u64,
        /// By `<up|down>,<in|out>`.
        pub osds: StateCounts,
        pub pools: u64,
        pub volumes: u64,
        pub snapshots: u64,
        pub resources: Resources,
        pub detail: StatusDetail,
    }

    /// 100 less the deltas of all faults that nobody acknowledged.
    pub struct ClusterHealth {
        pub health: Health,
        pub messages: Vec<HealthMessage>,
    }

    /// An unacknowledged fault, as monitoring shows it.
    pub struct HealthMessage {
        pub id: String,
        pub health_delta: i64,
        pub text: String,
    }

    /// A node's health, with the texts of the plugins that lower it.
    pub struct NodeHealth {
        pub health: Health,
        pub messages: Vec<String>,
    }

    /// Resources of the cluster, and how much of them is used.
    pub struct Resources {
        pub memory: MemoryUse,
        pub cpu: CpuUse,
        pub disk: DiskUse,
    }

    /// MiB, and percent with two decimals.
    pub struct MemoryUse {
        pub total: i64,
        pub free: i64,
        pub used: i64,
        pub allocated: i64,
        pub provisioned: i64,
        pub utilization: f64,
    }

    /// Host CPUs, load, allocated vCPUs, percent.
    pub struct CpuUse {
        pub total: i64,
        pub load: f64,
        pub allocated: i64,
        pub utilization: f64,
    }

    /// KiB, and percent with two decimals.
    pub struct DiskUse {
        pub total: i64,
        pub used: i64,
        pub free: i64,
        pub utilization: f64,
    }

    /// The items behind the counts.
    pub struct StatusDetail {
        pub node: Vec<StatusNode>,
        pub vm: Vec<StatusVm>,
        pub osd: Vec<StatusOsd>,
        pub faults: Vec<Fault>,
    }

    pub struct StatusNode {
        pub name: String,
        pub daemon_state: String,
        pub domain_state: String,
    }

    pub struct StatusVm {
        pub uuid: String,
        pub name: String,
        pub state: String,
    }

    pub struct StatusOsd {
        pub id: String,
        pub up: String,
        #[serde(rename = "in")]
        pub is_in: String,
    }
}

/// Number of all, and number in each state that occurs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct StateCounts {
    #[schema(required)]
    pub total: u64,
    #[serde(flatten)]
    pub by_state: BTreeMap<String, u64>,
}

/// Reason why a request was refused. `message` is always one sentence; the other two are additions
/// that PVC 1.0.3 does not send.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BadRequest {
    pub message: String,
    /// Advice about what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Parameter by parameter, what is wrong with it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, String>,
}
