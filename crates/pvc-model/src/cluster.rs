//! The whole cluster at one moment, as the tree records it.

use std::sync::Arc;

use crate::answered::AnsweredRecord;
use crate::benchmark::BenchmarkRecord;
use crate::fault::FaultRecord;
use crate::fullness::FullnessRecord;
use crate::guest_network::unconfirmed::UnconfirmedChange;
use crate::hold::VolumeHold;
use crate::job::{Job, JobId, WorkerRecord};
use crate::network::{NetworkOptions, NetworkRecord};
use crate::node::NodeRecord;
use crate::shared_map::SharedMap;
use crate::snapshot_usage::SnapshotUsageRecord;
use crate::storage::{OsdRecord, PoolName, PoolRecord, VolumeId, VolumeRecord};
use crate::vm::{Selector, VmRecord};
use crate::{NodeName, Uuid};

/// Record of the cluster itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterRecord {
    pub name: String,
    /// The version of the layout that the tree has; `None` if the tree holds no cluster.
    pub schema: Option<u32>,
    pub maintenance: bool,
    /// Whether the key exists at all.
    pub initialized: bool,
    /// The holder of the primary role, if there is one.
    pub primary: Option<NodeName>,
    pub upstream_ip: String,
    pub selector: Option<Selector>,
    /// Plain text of the storage's status and utilization, JSON text of its health.
    pub storage_status: Arc<str>,
    pub storage_util: Arc<str>,
    pub storage_health: Arc<str>,
}

/// Everything recorded, at one moment. Cheap to clone: the records are shared, and so are the maps
/// of them.
#[derive(Debug, Clone, Default)]
pub struct Cluster {
    /// Grows with every change that this process has seen; what events and ETags count by.
    pub revision: u64,
    pub config: ClusterRecord,
    pub nodes: SharedMap<NodeName, Arc<NodeRecord>>,
    pub vms: SharedMap<Uuid, Arc<VmRecord>>,
    /// VM names to UUIDs; of two VMs with one name, the one with the smaller UUID.
    pub vm_names: SharedMap<String, Uuid>,
    pub networks: SharedMap<String, Arc<NetworkRecord>>,
    /// Options that legacy peers know nothing of, by VNI; a network without has none of them.
    pub network_options: SharedMap<String, Arc<NetworkOptions>>,
    /// Changes of networks that wait to be confirmed, by VNI.
    pub unconfirmed: SharedMap<String, Arc<UnconfirmedChange>>,
    pub osds: SharedMap<String, Arc<OsdRecord>>,
    pub pools: SharedMap<PoolName, Arc<PoolRecord>>,
    pub volumes: SharedMap<VolumeId, Arc<VolumeRecord>>,
    /// Fill of the pools so far.
    pub fullness: SharedMap<PoolName, Arc<FullnessRecord>>,
    /// Last answer of the storage, if a daemon of ours has asked it.
    pub answered: Option<Arc<AnsweredRecord>>,
    /// Space that the snapshots of the pools hold.
    pub snapshot_usage: SharedMap<PoolName, Arc<SnapshotUsageRecord>>,
    /// The volumes that no guest may use now.
    pub holds: SharedMap<VolumeId, Arc<VolumeHold>>,
    pub faults: SharedMap<String, Arc<FaultRecord>>,
    pub jobs: SharedMap<JobId, Arc<Job>>,
    /// Benchmarks of the storage, by their numbers.
    pub benchmarks: SharedMap<u32, Arc<BenchmarkRecord>>,
    /// The workers that are connected now. Legacy peers have none that is seen here.
    pub workers: SharedMap<NodeName, Arc<WorkerRecord>>,
}

impl Cluster {
    pub fn node(&self, name: &str) -> Option<&Arc<NodeRecord>> {
        self.nodes.get(name)
    }

    /// The network with this VNI, or if there is none the first with this description.
    pub fn network(&self, vni_or_description: &str) -> Option<&Arc<NetworkRecord>> {
        let by_description =
            || self.networks.values().find(|record| record.description == vni_or_description);
        self.networks.get(vni_or_description).or_else(by_description)
    }

    /// The VM with this name, or with this UUID in any case, with or without dashes.
    pub fn vm(&self, name_or_uuid: &str) -> Option<&Arc<VmRecord>> {
        let uuid = self
            .vm_names
            .get(name_or_uuid)
            .copied()
            .or_else(|| Uuid::try_parse(name_or_uuid).ok())?;
        self.vms.get(&uuid)
    }

    pub fn primary(&self) -> Option<&Arc<NodeRecord>> {
        self.config.primary.as_ref().and_then(|name| self.nodes.get(name))
    }
}

/// Whether a backup that says the name `backup` is of another cluster than the one called `here`. A
/// store that has lost everything has no name, and a backup that says none may be of any.
pub fn is_of_another(backup: &str, here: &str) -> bool {
    !backup.is_empty() && !here.is_empty() && backup != here
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_is_of_another_cluster_if_both_have_names_that_differ() {
        for (backup, here, expected) in [
            ("prod", "prod", false),
            ("prod", "lab", true),
            ("prod", "", false),
            ("", "lab", false),
            ("", "", false),
        ] {
            assert_eq!(is_of_another(backup, here), expected, "{backup} {here}");
        }
    }
}
