//! Asks about pools, volumes and their snapshots.
//!
//! Two worlds change here that no multi spans: the storage acts first, and then the records are
//! made to say what it [says](record_volume) of itself. If this process dies in between, the
//! records lag behind, and the same ask mends that when it is repeated: what it finds done it only
//! records. So does a scan of the volume, whatever was done to it.
//!
//! A dry run looks at records and storage, and leaves both alone.

mod contents;
mod hold;
mod mapped;
mod pool;
mod record;
mod snapshot;
mod together;
mod trash;
mod volume;

pub use contents::{
    BegunContents, FillTarget, NewContents, Settled, begin_fill, check_fill, download, fill_volume,
    settle,
};
pub use mapped::{StillMapped, hold_mapped, let_go_of_mapped, mapped_by, mapped_on};
pub use pool::{RemovedPool, create_pool, remove_pool, set_placement_groups};
pub use record::{record_volume, record_whole, scan, scan_and_let_go, snapshot_differences};
pub use snapshot::{create_snapshot, remove_snapshot, rename_snapshot, roll_back};
pub use together::{
    InPart, NewVolume, begin_volume, check_no_task, check_removals, check_volumes, name_volumes,
    take_back, trash_volumes,
};
pub(crate) use trash::take_away;
pub use trash::{Taken, is_needed, only_in_trash, purge_volume, restore_volume, trashed};
pub use volume::{
    CloneKind, Resized, clone_volume, create_volume, flatten_volume, remove_volume,
    rename_own_volume, rename_volume, resize_volume,
};

use pvc_model::benchmark::{is_own_volume, volume_of};
use pvc_model::cluster::Cluster;
use pvc_model::hold::{Held, check_held_by_none_but};
use pvc_model::job::{JobId, JobWork};
use pvc_model::pool::{BadGroups, BadReplication};
use pvc_model::shown;
use pvc_model::storage::{PoolName, SnapshotName, TrashId, VolumeId, VolumeName};
use pvc_model::vm::volumes::{is_at_rest, part_of_snapshot, users_where};
use pvc_model::{BadName, Uuid};
use pvc_ports::{Storage, StorageError};
use pvc_store::ChangeError;

use crate::Outcome;
use crate::refusal::{BeingRenamed, Kind, Refusal};

#[derive(Debug, thiserror::Error)]
pub enum StorageRefusal {
    #[error("there is no pool `{pool}`")]
    NoPool { pool: String },
    #[error(transparent)]
    Name(#[from] BadName),
    #[error(transparent)]
    Replication(#[from] BadReplication),
    #[error(transparent)]
    Groups(#[from] BadGroups),
    #[error("a volume has at least one byte")]
    NoBytes,
    #[error("placement groups are Ceph's, and the pools of this machine are folders")]
    NoCluster,
    #[error("VM `{vm}` uses volume `{volume}`")]
    Used { vm: String, volume: VolumeId },
    #[error("VM `{vm}` uses volume `{volume}` and is not off")]
    Running { vm: String, volume: VolumeId },
    #[error(transparent)]
    Held(#[from] Held),
    #[error(
        "snapshot `{snapshot}` of volume `{volume}` is not recorded: somebody may be about to \
         remove it"
    )]
    Unrecorded { volume: VolumeId, snapshot: SnapshotName },
    #[error(
        "snapshot `{snapshot}` of volume `{volume}` may be there still, and is not recorded any \
         more"
    )]
    RemovalInDoubt { volume: VolumeId, snapshot: SnapshotName, source: StorageError },
    #[error("{0}, and has that snapshot no more")]
    NoEnd(Held),
    #[error(transparent)]
    BeingRenamed(#[from] BeingRenamed),
    #[error("`{name}` is a name of what is not complete yet, and may be removed at any time")]
    Reserved { name: String },
    #[error(
        "snapshot `{snapshot}` of volume `{volume}` is the storage's own, and goes when nothing \
         needs it any more"
    )]
    OwnSnapshot { volume: VolumeId, snapshot: SnapshotName },
    #[error("`{name}` is a name of volumes that benchmarks make and remove")]
    OfBenchmarks { name: String },
    #[error("task `{job}` is at work in pool `{pool}`: {what}")]
    AtWork { job: JobId, pool: PoolName, what: String },
    #[error("volume `{volume}` is being downloaded by `{by}`{}", as_task(job.as_ref()))]
    Downloaded { volume: VolumeId, by: String, job: Option<JobId> },
    #[error("snapshot `{whole}` of VM `{vm}` has a part in volume `{volume}`")]
    PartOfVm { vm: String, whole: String, volume: VolumeId },
    #[error(
        "snapshot `{snapshot}` of volume `{volume}` is part of snapshot `{whole}` of VM `{vm}`"
    )]
    OfVm { vm: String, whole: String, volume: VolumeId, snapshot: SnapshotName },
    #[error("this storage cannot send or take the contents of volumes")]
    NoStreams,
    #[error("volume `{volume}` has a snapshot `{snapshot}`, which is of its present contents")]
    HasSnapshots { volume: VolumeId, snapshot: SnapshotName },
    #[error(
        "the trash has {count} volumes that were called `{volume}`, more than are looked through"
    )]
    ManyTrashed { volume: VolumeId, count: usize },
    #[error("volume `{volume}` was let go of before it got its new contents")]
    HoldLost { volume: VolumeId },
    #[error(
        "volume `{volume}` is another one than when the upload began: it got other contents, or \
         was removed and made anew"
    )]
    Another { volume: VolumeId },
    #[error("volume `{volume}` has {now_bytes} bytes by now, and had {size_bytes}")]
    Resized { volume: VolumeId, size_bytes: u64, now_bytes: u64 },
    #[error("volume `{volume}` could not be removed, so pool `{}` stays", volume.pool)]
    Left {
        volume: VolumeId,
        /// Number of volumes of the pool that are gone already.
        gone: usize,
        #[source]
        source: Box<StorageError>,
    },
    #[error("volume `{id}` in the trash of pool `{pool}` could not be purged, so the pool stays")]
    LeftInTrash {
        pool: PoolName,
        id: TrashId,
        #[source]
        source: Box<StorageError>,
    },
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl Refusal for StorageRefusal {
    fn kind(&self) -> Kind {
        match self {
            StorageRefusal::NoPool { .. } => Kind::NotFound,
            StorageRefusal::Name(_)
            | StorageRefusal::Replication(_)
            | StorageRefusal::Groups(_)
            | StorageRefusal::NoBytes
            | StorageRefusal::Reserved { .. }
            | StorageRefusal::OfBenchmarks { .. }
            | StorageRefusal::NoStreams
            | StorageRefusal::NoCluster => Kind::Invalid,
            StorageRefusal::Used { .. }
            | StorageRefusal::Running { .. }
            | StorageRefusal::AtWork { .. }
            | StorageRefusal::Downloaded { .. }
            | StorageRefusal::Held(_)
            | StorageRefusal::NoEnd(_)
            | StorageRefusal::Unrecorded { .. }
            | StorageRefusal::OwnSnapshot { .. }
            | StorageRefusal::BeingRenamed(_)
            | StorageRefusal::HasSnapshots { .. }
            | StorageRefusal::Another { .. }
            | StorageRefusal::Resized { .. }
            | StorageRefusal::ManyTrashed { .. }
            | StorageRefusal::HoldLost { .. }
            | StorageRefusal::PartOfVm { .. }
            | StorageRefusal::OfVm { .. } => Kind::Conflict,
            StorageRefusal::Left { source, .. } | StorageRefusal::LeftInTrash { source, .. } => {
                kind_of(source)
            }
            StorageRefusal::RemovalInDoubt { source: error, .. }
            | StorageRefusal::Storage(error) => kind_of(error),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            StorageRefusal::NoPool { .. } => {
                Some("`pvc storage pool list` shows the pools".to_owned())
            }
            StorageRefusal::Used { vm, .. } => Some(format!(
                "`pvc vm volume remove {vm}` takes it out of the VM's definition; `--force` does \
                 it all the same"
            )),
            StorageRefusal::Running { vm, .. } => Some(format!(
                "`pvc vm shutdown {vm} --wait` first, or `pvc vm stop {vm} --wait` if it failed"
            )),
            StorageRefusal::AtWork { job, .. }
            | StorageRefusal::Downloaded { job: Some(job), .. } => {
                Some(format!("wait for it, or end it: `pvc task cancel {job}`"))
            }
            StorageRefusal::Downloaded { job: None, .. } => Some(
                "wait for it; `pvc task list` shows one that takes longer than some seconds, and \
                 a snapshot of the volume can be downloaded at any time"
                    .to_owned(),
            ),
            StorageRefusal::Held(held) => Some(held.hint()),
            StorageRefusal::Unrecorded { volume: VolumeId { pool, volume }, .. } => Some(format!(
                "`pvc storage volume scan {pool} {volume}` records it if it is to stay"
            )),
            StorageRefusal::RemovalInDoubt { volume: VolumeId { pool, volume }, .. } => {
                Some(format!(
                    "the same again removes it; `pvc storage volume scan {pool} {volume}` records \
                     it if it is to stay"
                ))
            }
            StorageRefusal::NoEnd(held) => Some(held.way_out()),
            StorageRefusal::BeingRenamed(error) => error.hint(),
            StorageRefusal::OfVm { .. } | StorageRefusal::PartOfVm { .. } => {
                Some("the snapshot of the VM would miss it from then on".to_owned())
            }
            StorageRefusal::HasSnapshots { volume, .. } => {
                let VolumeId { pool, volume: name } = volume;
                Some(format!(
                    "`pvc storage volume snapshot remove {pool} {name} SNAPSHOT` for each of \
                     them; `pvc storage volume clone` keeps the contents beside"
                ))
            }
            StorageRefusal::ManyTrashed { .. } => {
                Some("`pvc storage trash purge` removes them before their time".to_owned())
            }
            StorageRefusal::HoldLost { .. } => Some(
                "the daemon was stopped for more than ten minutes; `pvc storage volume info` shows \
                 whether the volume has its old contents, and then it can be uploaded again"
                    .to_owned(),
            ),
            StorageRefusal::Left { gone, .. } => Some(format!(
                "{gone} volumes of the pool are gone: repeat it when the cause is mended"
            )),
            StorageRefusal::Storage(error) => hint_of(error),
            _ => None,
        }
    }
}

fn as_task(job: Option<&JobId>) -> String {
    job.map_or_else(String::new, |job| format!(", as task `{job}`"))
}

fn kind_of(error: &StorageError) -> Kind {
    match error {
        StorageError::NoPool { .. }
        | StorageError::NoVolume { .. }
        | StorageError::NoTrashed { .. }
        | StorageError::NoSnapshot { .. } => Kind::NotFound,
        StorageError::BadName(_) => Kind::Invalid,
        StorageError::TimedOut { .. } | StorageError::Io { .. } => Kind::Unavailable,
        _ => Kind::Conflict,
    }
}

fn hint_of(error: &StorageError) -> Option<String> {
    let hint = match error {
        StorageError::BeyondSafe { .. } => {
            "`--force` lifts this rule; storage that is full stops all of its VMs"
        }
        StorageError::WouldShrink { .. } => "`--force` does it all the same",
        StorageError::InUse { .. } => "a VM, a copy or another program has it open: end that first",
        StorageError::NoPool { .. } => "`pvc storage pool list` shows the pools",
        StorageError::PoolExists { .. } => {
            "choose another name; a pool that `pvc storage pool list` does not show is Ceph's alone"
        }
        StorageError::PoolNotEmpty { .. } | StorageError::PoolHasTrash { .. } => {
            "a volume was made or removed meanwhile: remove the pool again"
        }
        StorageError::NoVolume { .. } => "`pvc storage volume list` shows the volumes",
        StorageError::VolumeExists { .. } => {
            "choose another name, or give that volume one: `pvc storage volume rename`"
        }
        StorageError::NoSnapshot { .. } | StorageError::SnapshotExists { .. } => {
            "`pvc storage volume snapshot list` shows the snapshots"
        }
        StorageError::HasClones { .. } => {
            "`pvc storage volume flatten` makes a clone independent; one in the trash is restored \
             or purged first"
        }
        StorageError::Protected { .. } => {
            "`pvc storage volume flatten` makes a clone independent; then, or if there is none, \
             `rbd snap unprotect` on a node ends the protection"
        }
        StorageError::TrashedHasClones { .. } => {
            "`pvc storage volume flatten` makes a clone independent; `rbd children` on a node \
             names the clones, once `pvc storage trash restore` has given the volume a name"
        }
        StorageError::NoRoom { .. } => {
            "`pvc storage trash purge` frees the room of removed volumes before their time"
        }
        StorageError::Full { .. } => {
            "`pvc storage volume remove --purge`, `pvc storage volume snapshot remove` and `pvc \
             storage trash purge` make room"
        }
        StorageError::NoTrashed { .. } => {
            "`pvc storage trash list` shows the removed volumes that are still kept; one that was \
             restored and is not shown is found by `pvc storage volume scan`"
        }
        StorageError::NoDevices { .. } => "`pvc storage osd list` shows the OSDs",
        StorageError::TimedOut { .. } => "`ceph status` on a node says how Ceph is",
        StorageError::Io { .. } => {
            "`pvc storage status`, and the kernel's log of the node (`journalctl -k`), say how the \
             storage is"
        }
        // Their words say what can be done, or there is nothing.
        StorageError::Refused { .. }
        | StorageError::BadName(_)
        | StorageError::BeyondEnd { .. }
        | StorageError::Stopped => return None,
    };
    Some(hint.to_owned())
}

/// Whether the storage has the volume; it has none of a pool that is not there.
///
/// # Errors
/// If the storage does not say.
pub async fn exists(storage: &dyn Storage, volume: &VolumeId) -> Result<bool, StorageError> {
    match storage.volume(volume).await {
        Ok(_) => Ok(true),
        Err(StorageError::NoVolume { .. } | StorageError::NoPool { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

type Done<T> = Outcome<T, StorageRefusal>;

fn refused(why: impl Into<StorageRefusal>) -> ChangeError<StorageRefusal> {
    ChangeError::Refused(why.into())
}

/// Only pools that are recorded are the cluster's: Ceph may have others for other things.
fn require_pool(cluster: &Cluster, pool: &PoolName) -> Result<(), StorageRefusal> {
    match cluster.pools.contains_key(pool) {
        true => Ok(()),
        false => Err(StorageRefusal::NoPool { pool: shown(pool.as_str()) }),
    }
}

/// Refuses what a VM that is not off would notice, whatever is forced.
fn require_at_rest(
    cluster: &Cluster,
    is_meant: impl Fn(&VolumeId) -> bool,
) -> Result<(), StorageRefusal> {
    let mut users = users_where(cluster, is_meant);
    match users.find(|(vm, _)| !is_at_rest(cluster, vm)) {
        None => Ok(()),
        Some((vm, volume)) => {
            Err(StorageRefusal::Running { vm: vm.name.clone(), volume: volume.clone() })
        }
    }
}

/// Refuses names that a volume cannot be given: the storage's own, and those of benchmarks.
fn require_free_volume_name(name: &str) -> Result<(), StorageRefusal> {
    if is_own_volume(name) {
        return Err(StorageRefusal::OfBenchmarks { name: shown(name) });
    }
    require_free_name(name)
}

/// Refuses names that are the storage's own, of volumes and of snapshots alike.
fn require_free_name(name: &str) -> Result<(), StorageRefusal> {
    match VolumeName::new(name).is_reserved() || SnapshotName::new(name).is_reserved() {
        true => Err(StorageRefusal::Reserved { name: shown(name) }),
        false => Ok(()),
    }
}

/// Refuses what would leave a snapshot of a VM without its part in a volume.
fn require_no_part(
    cluster: &Cluster,
    is_meant: impl Fn(&VolumeId) -> bool,
) -> Result<(), StorageRefusal> {
    match part_of_snapshot(cluster, is_meant) {
        None => Ok(()),
        Some((vm, whole, volume)) => {
            let (vm, whole) = (vm.name.clone(), whole.to_owned());
            Err(StorageRefusal::PartOfVm { vm, whole, volume })
        }
    }
}

/// Refuses what would take the volume of a benchmark that runs, or one that a task sends or takes
/// the contents of, as far as that is recorded.
fn require_no_task(
    cluster: &Cluster,
    is_meant: impl Fn(&VolumeId) -> bool,
) -> Result<(), StorageRefusal> {
    let at_work = cluster.jobs.iter().filter(|(_, job)| !job.progress.state.is_over());
    for (id, job) in at_work {
        let (volume, what) = match &job.spec.work {
            JobWork::BenchmarkStorage { pool, .. } => {
                let volume = VolumeId { pool: pool.clone(), volume: volume_of(id) };
                (volume, "it is measured")
            }
            JobWork::Upload { volume } => (volume.clone(), "an upload"),
            JobWork::Download { volume, .. } => (volume.clone(), "a download"),
            _ => continue,
        };
        if is_meant(&volume) {
            let (job, pool, what) = (id.clone(), volume.pool, what.to_owned());
            return Err(StorageRefusal::AtWork { job, pool, what });
        }
    }
    Ok(())
}

/// Refuses to have a job that makes VM `own` dispose of a volume that somebody else has a hand on:
/// another VM, a snapshot of one, a task, or whoever holds it but the script of `job` itself.
///
/// # Errors
/// The first reason.
pub fn require_no_other_user(
    cluster: &Cluster,
    volume: &VolumeId,
    own: Uuid,
    job: &JobId,
) -> Result<(), StorageRefusal> {
    let mut users = users_where(cluster, |used| used == volume);
    if let Some((vm, volume)) = users.find(|(vm, _)| vm.uuid != own) {
        return Err(StorageRefusal::Used { vm: vm.name.clone(), volume: volume.clone() });
    }
    require_no_part(cluster, |used| used == volume)?;
    require_no_task(cluster, |used| used == volume)?;
    Ok(check_held_by_none_but(cluster, volume, job)?)
}

/// Refuses what would leave a VM without a volume that its definition names, or one of its
/// snapshots without its part; and while a VM that is not off uses it, also with force.
fn require_unused(
    cluster: &Cluster,
    is_meant: impl Fn(&VolumeId) -> bool,
    force: bool,
) -> Result<(), StorageRefusal> {
    require_at_rest(cluster, &is_meant)?;
    if force {
        return Ok(());
    }
    if let Some((vm, volume)) = users_where(cluster, &is_meant).next() {
        return Err(StorageRefusal::Used { vm: vm.name.clone(), volume: volume.clone() });
    }
    require_no_part(cluster, is_meant)
}

#[cfg(test)]
mod tests {
    use pvc_ports::CloneName;

    use super::*;

    /// Failures and refusals of a storage that are about something of pool `vms`.
    fn errors() -> Vec<StorageError> {
        let pool = PoolName::new("vms");
        let volume = VolumeId { pool: pool.clone(), volume: VolumeName::new("web1_sda") };
        let snapshot = SnapshotName::new("s1");
        let id = TrashId::parse("1f").expect("these are hexadecimal digits");
        let clone = CloneName { volume: volume.clone(), is_in_trash: false };
        let (doing, source) = (format!("copying volume `{volume}`"), std::io::Error::other("no"));
        vec![
            StorageError::NoPool { pool: pool.clone() },
            StorageError::PoolExists { pool: pool.clone() },
            StorageError::PoolNotEmpty { pool: pool.clone(), volumes: 1 },
            StorageError::PoolHasTrash { pool: pool.clone(), volumes: 1 },
            StorageError::NoTrashed { pool: pool.clone(), id: id.clone() },
            StorageError::TrashedHasClones { pool: pool.clone(), id, snapshot: None },
            StorageError::NoVolume { volume: volume.clone() },
            StorageError::VolumeExists { volume: volume.clone() },
            StorageError::NoSnapshot { volume: volume.clone(), snapshot: snapshot.clone() },
            StorageError::SnapshotExists { volume: volume.clone(), snapshot: snapshot.clone() },
            StorageError::Protected { volume: volume.clone(), snapshot },
            StorageError::HasClones { volume: volume.clone(), clones: vec![clone] },
            StorageError::InUse { volume: volume.clone(), holder: "10.0.0.1".to_owned() },
            StorageError::NoRoom { pool: pool.clone(), free_bytes: 1, needed_bytes: 2 },
            StorageError::Full { pool: pool.clone() },
            StorageError::BeyondSafe { pool, safe_bytes: 1, needed_bytes: 2 },
            StorageError::WouldShrink { volume, from_bytes: 2, to_bytes: 1 },
            StorageError::TimedOut { doing: doing.clone(), seconds: 30 },
            StorageError::Io { doing, source },
        ]
    }

    #[test]
    fn an_error_of_the_storage_names_what_it_is_about_and_what_can_be_done() {
        for error in errors() {
            let words = error.to_string();
            assert!(words.contains("`vms`") || words.contains("`vms/web1_sda`"), "{words}");
            assert!(StorageRefusal::from(error).hint().is_some(), "{words}");
        }
    }
}
