//! State of a storage that is a cluster of its own, Ceph, and what only one can be asked for.

use async_trait::async_trait;
use pvc_model::fullness::Ratios;
use pvc_model::pool::PoolSpec;
use pvc_model::storage::{PoolName, RbdAccess, SnapshotName, VolumeId};

use crate::{OsdMap, StorageError};

/// A pool in numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolFigures {
    pub name: PoolName,
    pub id: u64,
    /// Bytes stored in the pool, as its users count (without copies).
    pub stored_bytes: u64,
    /// Bytes that can still be stored.
    pub free_bytes: u64,
    /// Bytes that the pool takes on the disks, with copies.
    pub used_bytes: u64,
    /// A fraction of 1.
    pub used_fraction: f64,
    pub objects: u64,
    pub object_clones: u64,
    pub object_copies: u64,
    pub objects_missing_on_primary: u64,
    pub objects_unfound: u64,
    pub objects_degraded: u64,
    pub read_ops: u64,
    pub read_bytes: u64,
    pub write_ops: u64,
    pub write_bytes: u64,
}

/// An OSD in numbers, and in the words of its cluster.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OsdFigures {
    pub id: u64,
    pub uuid: String,
    pub is_up: bool,
    pub is_in: bool,
    pub primary_affinity: f64,
    /// Utilization in percent.
    pub utilization: f64,
    /// Ratio of its utilization to the average.
    pub variance: f64,
    pub placement_groups: u64,
    pub kib: u64,
    pub kib_used: u64,
    pub kib_used_data: u64,
    pub kib_used_omap: u64,
    pub kib_used_meta: u64,
    pub kib_available: u64,
    pub crush_weight: f64,
    pub reweight: f64,
    /// Device class of the OSD, `ssd` for one; empty if it has none.
    pub class: String,
    /// The short name of its host.
    pub node: String,
    /// Bytes used, for people: `290M`.
    pub used: String,
    pub available: String,
    /// Per second, for people: `1`, `124k`.
    pub write_ops: String,
    pub write_data: String,
    pub read_ops: String,
    pub read_data: String,
    /// `exists,up` for one.
    pub state: String,
}

/// The monitors of a storage cluster. Every answer is one of a moment; every call has a deadline of
/// its own, so that one part of the cluster that hangs keeps nothing else from being asked.
#[async_trait]
pub trait StorageCluster: OsdMap {
    /// Returns the state of the cluster, as text for people.
    async fn status(&self) -> Result<String, StorageError>;
    /// Returns the health of the cluster, as its own JSON: `status`, and `checks` by name.
    async fn health(&self) -> Result<String, StorageError>;
    /// Returns the usage of the cluster, as text for people.
    async fn usage(&self) -> Result<String, StorageError>;
    async fn pool_figures(&self) -> Result<Vec<PoolFigures>, StorageError>;
    /// Returns the figures of the OSDs of which everything is known. Not to be asked of a cluster
    /// without any OSD: it may never answer.
    async fn osd_figures(&self) -> Result<Vec<OsdFigures>, StorageError>;
    /// Returns the ratios at which the cluster calls its OSDs full.
    async fn full_ratios(&self) -> Result<Ratios, StorageError>;
    /// Returns the address of the cluster's own page of metrics; `None` if it exports none.
    async fn metrics_url(&self) -> Result<Option<String>, StorageError>;
    /// Returns the record of a volume: JSON, as the cluster says it itself.
    async fn volume_record(&self, volume: &VolumeId) -> Result<String, StorageError>;
    /// Returns the same of the volume as its snapshot has it.
    async fn snapshot_record(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
    ) -> Result<String, StorageError>;
    /// Makes a pool for volumes. One that is there with as many copies and placement groups is what
    /// was asked for, and one that was made by half is completed; any other is
    /// [`StorageError::PoolExists`].
    async fn make_pool(&self, pool: &PoolSpec) -> Result<(), StorageError>;
    /// Gives a pool another number of placement groups. What it holds is moved little by little.
    async fn set_placement_groups(&self, pool: &PoolName, count: u32) -> Result<(), StorageError>;
    /// Returns how hypervisors reach the cluster's volumes. Asks nobody.
    fn access(&self) -> &RbdAccess;
    /// The key with which hypervisors open volumes; `None` if their user does not exist.
    async fn hypervisor_key(&self) -> Result<Option<String>, StorageError>;
}
