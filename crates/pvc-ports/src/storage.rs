//! Volumes: RBD images in a cluster, files on one machine.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
pub use pvc_model::snapshot_usage::SnapshotUsage;
use pvc_model::space::{Lack, check_room};
use pvc_model::storage::{PoolName, RbdAccess, SnapshotName, TrashId, VolumeId, VolumeName};
pub use pvc_model::trash::TrashedVolume;

use crate::VolumeStreams;
use crate::course::Course;
use crate::osd_host::OsdHost;
use crate::storage_cluster::StorageCluster;

/// A pool and how full it is, in exact bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolInfo {
    pub name: PoolName,
    /// Bytes stored in the pool, as its users count (without copies).
    pub stored_bytes: u64,
    /// Bytes that can still be stored.
    pub free_bytes: u64,
}

impl PoolInfo {
    /// Refuses what the pool has no room for.
    pub fn check_room(&self, needed_bytes: u64, force: bool) -> Result<(), StorageError> {
        let PoolInfo { name: pool, stored_bytes, free_bytes } = self.clone();
        check_room(stored_bytes, free_bytes, needed_bytes, force).map_err(|lack| match lack {
            Lack::NoRoom => StorageError::NoRoom { pool, free_bytes, needed_bytes },
            Lack::BeyondSafe { safe_bytes } => {
                StorageError::BeyondSafe { pool, safe_bytes, needed_bytes }
            }
        })
    }
}

/// A volume, in exact bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeInfo {
    pub id: VolumeId,
    pub size_bytes: u64,
    /// Bytes that the volume occupies now; less than its size if parts were never written. `None`
    /// if the storage would have to look at every part of the volume to tell.
    pub used_bytes: Option<u64>,
    pub snapshots: Vec<SnapshotInfo>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    pub name: SnapshotName,
    pub size_bytes: u64,
}

/// Lock of a client that holds a volume for writing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeLock {
    /// The lock's own names, needed to remove it.
    pub id: String,
    pub locker: String,
    /// The address of the holder as the storage sees it, without port.
    pub address: String,
}

/// Way in which a hypervisor reaches a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attachment {
    /// A raw image in a file of this host.
    File { path: std::path::PathBuf },
    /// RBD. What the domain XML says of it stays; what it leaves out is here.
    Rbd(RbdAccess),
}

/// Way in which a program of this node that measures a volume reaches it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MeasuredPlace {
    /// An image in RBD.
    Rbd {
        image: VolumeId,
        /// Ceph's name for us as a user, without `client.`.
        user: String,
        /// Ceph's own configuration file, and the keyring with the key of `user`.
        config: std::path::PathBuf,
        keyring: std::path::PathBuf,
    },
    File {
        path: std::path::PathBuf,
        /// Whether the file can be read and written past the kernel's cache.
        is_direct: bool,
    },
}

/// A volume as a program finds it that measures it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasuredVolume {
    /// Identity of the volume: no other ever has it, whatever it is called.
    pub identity: String,
    pub place: MeasuredPlace,
}

#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    #[error("pool `{pool}` does not exist")]
    NoPool { pool: PoolName },
    #[error("pool `{pool}` exists already")]
    PoolExists { pool: PoolName },
    #[error("pool `{pool}` still has {volumes} volumes")]
    PoolNotEmpty { pool: PoolName, volumes: usize },
    #[error("pool `{pool}` still has {volumes} volumes in its trash")]
    PoolHasTrash { pool: PoolName, volumes: usize },
    #[error("there is no volume `{id}` in the trash of pool `{pool}`")]
    NoTrashed { pool: PoolName, id: TrashId },
    #[error(
        "volume `{id}` in the trash of pool `{pool}` cannot be purged: other volumes are clones of \
         {}", of_trashed(snapshot.as_ref())
    )]
    TrashedHasClones {
        pool: PoolName,
        id: TrashId,
        /// Nothing if the storage does not tell which it is.
        snapshot: Option<SnapshotName>,
    },
    #[error("volume `{volume}` does not exist")]
    NoVolume { volume: VolumeId },
    #[error("volume `{volume}` exists already")]
    VolumeExists { volume: VolumeId },
    #[error("volume `{volume}` has no snapshot `{snapshot}`")]
    NoSnapshot { volume: VolumeId, snapshot: SnapshotName },
    #[error("volume `{volume}` has a snapshot `{snapshot}` already")]
    SnapshotExists { volume: VolumeId, snapshot: SnapshotName },
    #[error(
        "snapshot `{snapshot}` of volume `{volume}` is protected: other volumes may be clones of it"
    )]
    Protected { volume: VolumeId, snapshot: SnapshotName },
    #[error("volume `{volume}` has clones that stand on it: {}", listed(clones))]
    HasClones { volume: VolumeId, clones: Vec<CloneName> },
    #[error("no OSD has devices of the class `{class}`")]
    NoDevices { class: &'static str },
    /// By rules of its own; asked again it says the same. `doing` follows "while it was", here and
    /// below, and names what it was done to.
    #[error("the storage refused it while it was {doing}: {said}")]
    Refused { doing: String, said: String },
    #[error("volume `{volume}` is in use by `{holder}`")]
    InUse { volume: VolumeId, holder: String },
    /// Also with force.
    #[error("pool `{pool}` has {free_bytes} bytes free, {needed_bytes} bytes are needed")]
    NoRoom { pool: PoolName, free_bytes: u64, needed_bytes: u64 },
    /// Only what makes room can be done.
    #[error("pool `{pool}` is full, and takes no writes")]
    Full { pool: PoolName },
    /// Lifted by force.
    #[error(
        "pool `{pool}` would be filled beyond 80 %: {needed_bytes} bytes are needed, {safe_bytes} \
         bytes are left below that mark"
    )]
    BeyondSafe { pool: PoolName, safe_bytes: u64, needed_bytes: u64 },
    #[error(
        "shrinking volume `{volume}` from {from_bytes} to {to_bytes} bytes destroys what lies \
         beyond"
    )]
    WouldShrink { volume: VolumeId, from_bytes: u64, to_bytes: u64 },
    #[error(
        "volume `{volume}` has {size_bytes} bytes, and nothing can be written at {offset_bytes}"
    )]
    BeyondEnd { volume: VolumeId, offset_bytes: u64, size_bytes: u64 },
    #[error(transparent)]
    BadName(#[from] pvc_model::BadName),
    /// Stopped by its [`Course`]; nothing is left half made.
    #[error("it was cancelled before it was done")]
    Stopped,
    #[error("the storage did not answer within {seconds} s while it was {doing}")]
    TimedOut { doing: String, seconds: u64 },
    #[error("the storage failed while it was {doing}")]
    Io {
        doing: String,
        #[source]
        source: std::io::Error,
    },
}

/// Outcome of flattening a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flattened {
    /// From now on independent of this volume, if that is still one of a pool.
    From(Option<VolumeId>),
    /// Independent already.
    Independent,
}

/// A volume that is a copy-on-write clone of another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloneName {
    pub volume: VolumeId,
    pub is_in_trash: bool,
}

fn of_trashed(snapshot: Option<&SnapshotName>) -> String {
    match snapshot {
        Some(snapshot) => format!("its snapshot `{snapshot}`"),
        None => "one of its snapshots".to_owned(),
    }
}

/// Number of clones that a message names.
const CLONES_NAMED: usize = 5;

fn listed(clones: &[CloneName]) -> String {
    let named = clones.iter().take(CLONES_NAMED).map(|clone| match clone.is_in_trash {
        true => format!("`{}` (in the trash)", clone.volume),
        false => format!("`{}`", clone.volume),
    });
    let mut parts: Vec<String> = named.collect();
    if let Some(others) = clones.len().checked_sub(CLONES_NAMED).filter(|others| *others > 0) {
        parts.push(format!("and {others} others"));
    }
    parts.join(", ")
}

/// The storage that this node's guests use.
///
/// Sizes are exact bytes. Whatever fails leaves nothing half done: a volume is there as asked or
/// not at all. `force` lifts the 80 % rule and the refusal to shrink, and nothing else.
#[async_trait]
pub trait Storage: Send + Sync {
    async fn pools(&self) -> Result<Vec<PoolInfo>, StorageError>;
    async fn pool(&self, pool: &PoolName) -> Result<PoolInfo, StorageError>;
    async fn create_pool(&self, pool: &PoolName) -> Result<(), StorageError>;
    /// Removes an empty pool. One with volumes in its trash is not empty.
    async fn remove_pool(&self, pool: &PoolName) -> Result<(), StorageError>;
    /// Fails if the storage is known to refuse the removal of the pool whatever is in it: asked
    /// before the volumes go, which go first.
    async fn check_pool_removal(&self, pool: &PoolName) -> Result<(), StorageError>;

    async fn volumes(&self, pool: &PoolName) -> Result<Vec<VolumeInfo>, StorageError>;
    /// Volumes that were never completed ([`VolumeName::is_partial`]), that the pool still has by
    /// name, and that are nothing any more: their removal was cut off. None of them is among its
    /// [`volumes`](Storage::volumes).
    async fn half_removed(&self, pool: &PoolName) -> Result<Vec<VolumeId>, StorageError>;
    async fn volume(&self, volume: &VolumeId) -> Result<VolumeInfo, StorageError>;
    async fn create(
        &self,
        volume: &VolumeId,
        size_bytes: u64,
        force: bool,
    ) -> Result<(), StorageError>;
    async fn resize(
        &self,
        volume: &VolumeId,
        size_bytes: u64,
        force: bool,
    ) -> Result<(), StorageError>;
    /// A full, independent copy of the volume at one moment, under a new name in the same pool. A
    /// storage that may show a volume half rolled back has the course [confirm](Course::confirmed)
    /// that moment before it copies.
    ///
    /// # Errors
    /// [`StorageError::Stopped`] if the course was asked to stop before it was made, or did not
    /// confirm it.
    async fn clone_volume(
        &self,
        volume: &VolumeId,
        to: &VolumeName,
        force: bool,
        course: &Course,
    ) -> Result<(), StorageError>;
    /// A copy under a new name in the same pool that shares with the volume what neither of them
    /// has written since, where the storage can; it needs room for what is written. The volume is
    /// not removed while the copy depends on it: [`StorageError::HasClones`]. Confirmed as a full
    /// copy is.
    async fn clone_on_write(
        &self,
        volume: &VolumeId,
        to: &VolumeName,
        course: &Course,
    ) -> Result<(), StorageError>;
    /// Makes a copy-on-write clone independent of the volume that it is a clone of, also while it
    /// is in use.
    ///
    /// # Errors
    /// [`StorageError::Stopped`] if the course was asked to stop before it was: then it is a clone
    /// still.
    async fn flatten(
        &self,
        volume: &VolumeId,
        force: bool,
        course: &Course,
    ) -> Result<Flattened, StorageError>;
    async fn rename(&self, volume: &VolumeId, to: &VolumeName) -> Result<(), StorageError>;
    /// Removes the volume with its snapshots. An absent one is [`StorageError::NoVolume`].
    async fn remove(&self, volume: &VolumeId) -> Result<(), StorageError>;

    /// Refuses, as [`InUse`](StorageError::InUse), a volume that somebody has open now.
    async fn check_unused(&self, volume: &VolumeId) -> Result<(), StorageError>;

    /// Refuses a volume that [`trash`](Storage::trash) would refuse now, and for the same reason:
    /// somebody has it open, clones stand on it, or somebody has protected a snapshot of it.
    async fn check_removal(&self, volume: &VolumeId) -> Result<(), StorageError>;

    /// Moves the volume with its snapshots to the trash of its pool, from where it can be restored
    /// until it is purged. Its name is free then, and it takes the room that it took. An absent one
    /// is [`StorageError::NoVolume`].
    async fn trash(&self, volume: &VolumeId, keep: Duration)
    -> Result<TrashedVolume, StorageError>;
    /// Lists the volumes that [`trash`](Storage::trash) moved there.
    async fn trashed(&self, pool: &PoolName) -> Result<Vec<TrashedVolume>, StorageError>;
    /// Makes a volume in the trash one of its pool again, with its snapshots.
    async fn restore(
        &self,
        pool: &PoolName,
        id: &TrashId,
        to: &VolumeName,
    ) -> Result<(), StorageError>;
    /// Brings to its end, or undoes, what an act that was cut off has left of this name: a move to
    /// the trash, a restoration, a rename. Nobody may be at one. Returns whether a volume has the
    /// name.
    async fn repair_name(&self, volume: &VolumeId) -> Result<bool, StorageError>;
    /// Removes a volume in the trash for good, also before its time.
    async fn purge(&self, pool: &PoolName, id: &TrashId) -> Result<(), StorageError>;

    async fn snapshot(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
    ) -> Result<(), StorageError>;
    async fn rename_snapshot(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
        to: &SnapshotName,
    ) -> Result<(), StorageError>;
    async fn remove_snapshot(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
    ) -> Result<(), StorageError>;
    /// Makes the volume what it was at the snapshot; the snapshot stays.
    async fn roll_back(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
    ) -> Result<(), StorageError>;

    /// Tells what each snapshot of the volume holds, in the order in which they were made or of
    /// their names. May take long: the storage may have to look at every part of the volume, for
    /// each of its snapshots.
    ///
    /// # Cancellation
    /// Dropping the future ends the look. Nothing is changed by it.
    async fn snapshot_usage(&self, volume: &VolumeId) -> Result<Vec<SnapshotUsage>, StorageError>;

    /// Returns how this node's hypervisor reaches the volume, which must exist.
    async fn attachment(&self, volume: &VolumeId) -> Result<Attachment, StorageError>;

    /// Returns how a program of this node that measures the volume reaches it.
    async fn measured(&self, volume: &VolumeId) -> Result<MeasuredVolume, StorageError>;

    /// Lists the locks of those who hold the volume for writing.
    async fn locks(&self, volume: &VolumeId) -> Result<Vec<VolumeLock>, StorageError>;
    /// Takes the lock from its holder; whatever the holder still writes is refused from then on.
    async fn break_lock(&self, volume: &VolumeId, lock: &VolumeLock) -> Result<(), StorageError>;

    /// The same storage, whose changes say on this course how far they are where they go through a
    /// whole volume; nothing if this one never says so. They are not to be asked to stop on it.
    fn on_course(&self, _course: &Course) -> Option<Arc<dyn Storage>> {
        None
    }

    /// The contents of volumes as streams, if this storage has them.
    fn streams(&self) -> Option<&dyn VolumeStreams> {
        None
    }

    /// The machines behind the volumes, if they are a cluster of their own.
    fn cluster(&self) -> Option<&dyn StorageCluster> {
        None
    }

    /// The disks of this node that the cluster keeps its data on, if it is one of its servers.
    fn osds(&self) -> Option<&dyn OsdHost> {
        None
    }
}
