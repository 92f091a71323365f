//! Volumes.

use std::time::Duration;

use pvc_model::Uuid;
use pvc_model::cluster::Cluster;
use pvc_model::hold::{Purpose, check_not_held};
use pvc_model::job::{JobId, JobVm, JobWork, has_worker_for};
use pvc_model::storage::{VolumeId, VolumeName};
use pvc_model::vm::VmRecord;
use pvc_model::vm::volumes::{runs_on, users};
use pvc_ports::{Clock, Course, Flattened, Random, Storage, StorageError};
use pvc_store::{Change, ChangeError, Changes, Store};

use super::hold::{Look, TRIES, holding, without_end};
use super::record::{after, record_whole};
use super::trash::{Taken, take_away};
use super::{
    Done, StorageRefusal, record_volume, refused, require_at_rest, require_free_volume_name,
    require_no_other_user, require_no_part, require_no_task, require_pool, require_unused,
};
use crate::job::{JobRequest, submit};

/// Makes a volume of `size_bytes` zeros and records it. One that is there and is not recorded is
/// recorded, and the ask is refused all the same: nobody knows what is in it.
pub async fn create_volume(
    store: &Store,
    storage: &dyn Storage,
    volume: &VolumeId,
    size_bytes: u64,
    force: bool,
) -> Done<()> {
    VolumeName::parse(volume.volume.as_str()).map_err(refused)?;
    require_free_volume_name(volume.volume.as_str()).map_err(ChangeError::Refused)?;
    if size_bytes == 0 {
        return Err(ChangeError::Refused(StorageRefusal::NoBytes));
    }
    let view = store.fresh().await?;
    require_pool(&view, &volume.pool).map_err(ChangeError::Refused)?;
    check_not_held(&view, volume, None).map_err(refused)?;
    if store.is_dry() {
        return check_new(storage, volume, size_bytes, force).await.map_err(refused);
    }
    let made = storage.create(volume, size_bytes, force).await;
    record_new(store, storage, volume, made).await
}

/// Records the volume that an act has `made`; also one that was there before, unrecorded, which is
/// why nothing was made.
pub(super) async fn record_new(
    store: &Store,
    storage: &dyn Storage,
    volume: &VolumeId,
    made: Result<(), StorageError>,
) -> Done<()> {
    if !matches!(made, Ok(()) | Err(StorageError::VolumeExists { .. })) {
        return made.map_err(refused);
    }
    record_volume(store, storage, volume).await?;
    made.map_err(refused)
}

/// Predicts whether the storage would make the volume.
pub(super) async fn check_new(
    storage: &dyn Storage,
    volume: &VolumeId,
    size_bytes: u64,
    force: bool,
) -> Result<(), StorageError> {
    match storage.volume(volume).await {
        Ok(_) => Err(StorageError::VolumeExists { volume: volume.clone() }),
        Err(StorageError::NoVolume { .. }) => {
            storage.pool(&volume.pool).await?.check_room(size_bytes, force)
        }
        Err(error) => Err(error),
    }
}

/// Another size of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resized {
    pub from_bytes: u64,
    pub to_bytes: u64,
    /// The VMs whose guests are notified of it, by a job on their nodes.
    pub notified: Vec<String>,
    /// The VMs that run and that nobody can tell of it: their nodes have no worker that could.
    pub unaware: Vec<String>,
}

/// Gives a volume another size, and has the guests that use it notified. Only what it grows by
/// needs room. Repeating it is harmless: the guests are notified again.
///
/// # Errors
/// It would become smaller and that is not forced; or it is used by a VM that is not off, whatever
/// is forced: a guest takes what is cut off for its own.
#[expect(clippy::too_many_arguments, reason = "what and how much, and who asks it of whom")]
pub async fn resize_volume(
    store: &Store,
    storage: &dyn Storage,
    clock: &dyn Clock,
    random: &dyn Random,
    volume: &VolumeId,
    to_bytes: u64,
    force: bool,
    submitter: &str,
) -> Done<Resized> {
    if to_bytes == 0 {
        return Err(ChangeError::Refused(StorageRefusal::NoBytes));
    }
    let view = store.fresh().await?;
    require_pool(&view, &volume.pool).map_err(ChangeError::Refused)?;
    let from_bytes = storage.volume(volume).await.map_err(refused)?.size_bytes;
    let purpose = Purpose::Shrink(to_bytes);
    check_not_held(&view, volume, Some(&purpose)).map_err(refused)?;
    if to_bytes < from_bytes {
        require_at_rest(&view, |used| used == volume).map_err(ChangeError::Refused)?;
        if !force {
            let volume = volume.clone();
            return Err(refused(StorageError::WouldShrink { volume, from_bytes, to_bytes }));
        }
    }
    if store.is_dry() {
        let pool = storage.pool(&volume.pool).await.map_err(refused)?;
        pool.check_room(to_bytes.saturating_sub(from_bytes), force).map_err(refused)?;
        let (notified, unaware) = running_users(&view, volume);
        return Ok(Resized { from_bytes, to_bytes, notified, unaware });
    }
    let act = storage.resize(volume, to_bytes, force);
    let resized = match to_bytes < from_bytes || view.holds.contains_key(volume) {
        true => holding(store, random, volume, &purpose, None, act).await,
        false => act.await.map_err(refused),
    };
    after(store, storage, volume, resized).await?;
    let view = store.view();
    let (mut notified, mut unaware) = running_users(&view, volume);
    for vm in users(&view, volume) {
        let is_meant = notified.contains(&vm.name);
        if is_meant && !tell(store, clock, random, vm.uuid, volume, submitter).await? {
            notified.retain(|name| *name != vm.name);
            // Unless it is off or gone by now.
            if runs_on(&store.view(), vm.uuid).is_some() {
                unaware.push(vm.name.clone());
            }
        }
    }
    Ok(Resized { from_bytes, to_bytes, notified, unaware })
}

/// The VMs that are not off and use the volume: those that a worker can tell of its size, and
/// others.
fn running_users(cluster: &Cluster, volume: &VolumeId) -> (Vec<String>, Vec<String>) {
    let running = users(cluster, volume).filter(|vm| runs_on(cluster, vm.uuid).is_some());
    let (notified, unaware): (Vec<_>, Vec<_>) =
        running.partition(|vm| worker_of(cluster, vm).is_some());
    let names = |vms: Vec<&VmRecord>| vms.into_iter().map(|vm| vm.name.clone()).collect();
    (names(notified), names(unaware))
}

/// The VM's node, if it has a worker that can tell the guest.
fn worker_of<'a>(cluster: &'a Cluster, vm: &'a VmRecord) -> Option<&'a pvc_model::NodeName> {
    let node = vm.node.as_ref()?;
    has_worker_for(cluster, node, JobWork::RESIZE_DISK).then_some(node)
}

/// Nobody can tell the guest: its VM is gone, or on a node without such a worker.
struct NobodyTells;

/// Has the guest of a VM notified of the size of its volume, by the node that it is on when that is
/// recorded; `false` if none can by then.
async fn tell(
    store: &Store,
    clock: &dyn Clock,
    random: &dyn Random,
    vm: Uuid,
    volume: &VolumeId,
    submitter: &str,
) -> Done<bool> {
    let decide = |cluster: &Cluster| {
        let vm = cluster.vms.get(&vm).ok_or(NobodyTells)?;
        let node = worker_of(cluster, vm).ok_or(NobodyTells)?.clone();
        let work = JobWork::ResizeDisk { vm: JobVm::new(vm), volume: volume.clone() };
        let (run_on, submitter) = (node.to_string(), submitter.to_owned());
        Ok::<_, NobodyTells>((JobRequest { work, node, run_on, submitter }, Changes::new()))
    };
    match submit(store, clock, random, decide).await {
        Ok(_) => Ok(true),
        Err(ChangeError::Refused(NobodyTells)) => Ok(false),
        Err(ChangeError::Conflict { tries }) => Err(ChangeError::Conflict { tries }),
        Err(ChangeError::Store(error)) => Err(ChangeError::Store(error)),
    }
}

/// Gives a volume another name in its pool; its snapshots and their records go with it.
///
/// # Errors
/// While the definition of a VM names it, unless that is forced; while such a VM is not off, in any
/// case.
pub async fn rename_volume(
    store: &Store,
    storage: &dyn Storage,
    volume: &VolumeId,
    to: &VolumeName,
    force: bool,
) -> Done<()> {
    let to = beside(volume, to)?;
    let view = store.fresh().await?;
    require_pool(&view, &volume.pool).map_err(ChangeError::Refused)?;
    require_unused(&view, |used| used == volume, force).map_err(ChangeError::Refused)?;
    // A snapshot of a VM knows its parts by name.
    require_no_part(&view, |used| used == volume).map_err(ChangeError::Refused)?;
    check_not_held(&view, volume, None).map_err(refused)?;
    check_not_held(&view, &to, None).map_err(refused)?;
    if store.is_dry() {
        storage.volume(volume).await.map_err(refused)?;
        // A name needs no room.
        return check_new(storage, &to, 0, true).await.map_err(refused);
    }
    give_name(store, storage, &view, volume, &to).await
}

/// Gives a volume that VM `own`, which `job` makes, may name, and nobody else, another name.
///
/// # Errors
/// While somebody else uses it, or the script of the job has it as a device: what holds it then
/// would not follow its name.
pub async fn rename_own_volume(
    store: &Store,
    storage: &dyn Storage,
    volume: &VolumeId,
    to: &VolumeName,
    (own, job): (Uuid, &JobId),
) -> Done<()> {
    let to = beside(volume, to)?;
    let view = store.fresh().await?;
    require_no_other_user(&view, volume, own, job).map_err(ChangeError::Refused)?;
    check_not_held(&view, volume, None).map_err(refused)?;
    check_not_held(&view, &to, None).map_err(refused)?;
    give_name(store, storage, &view, volume, &to).await
}

async fn give_name(
    store: &Store,
    storage: &dyn Storage,
    view: &Cluster,
    volume: &VolumeId,
    to: &VolumeId,
) -> Done<()> {
    match storage.rename(volume, &to.volume).await {
        Ok(()) => {}
        Err(error @ StorageError::NoVolume { .. }) => {
            // Renamed by an ask that did not come to its end, if only the old name is recorded.
            let was = view.volumes.contains_key(volume) && !view.volumes.contains_key(to);
            if !was || storage.volume(to).await.is_err() {
                return Err(refused(error));
            }
        }
        Err(error) => return Err(refused(error)),
    }
    let decide = |cluster: &Cluster| {
        let mut changes = Changes::new();
        if cluster.volumes.contains_key(volume) && !cluster.volumes.contains_key(to) {
            changes.push(Change::RenameVolume { from: volume.clone(), to: to.clone() });
        }
        Ok((changes, ()))
    };
    store.change(decide).await?;
    record_volume(store, storage, volume).await?;
    record_whole(store, storage, to).await.map(drop)
}

/// Removes a volume with its snapshots: it is moved to the trash, to be kept for a time, and
/// removed at once if that is none. One that is gone and still recorded is forgotten. A dry run
/// cannot tell under which identifier it would be kept.
///
/// # Errors
/// While the definition of a VM names it, unless that is forced; while such a VM is not off, or
/// something is done to the volume, in any case. One that is half rolled back to a snapshot that is
/// gone is only removed at once: restored later, it would be held by nothing.
pub async fn remove_volume(
    store: &Store,
    storage: &dyn Storage,
    volume: &VolumeId,
    keep: Duration,
    force: bool,
) -> Done<Taken> {
    let view = store.fresh().await?;
    require_pool(&view, &volume.pool).map_err(ChangeError::Refused)?;
    require_unused(&view, |used| used == volume, force).map_err(ChangeError::Refused)?;
    require_no_task(&view, |used| used == volume).map_err(ChangeError::Refused)?;
    let lost = match keep.is_zero() {
        true => without_end(&view, storage, volume).await.map_err(refused)?,
        false => None,
    };
    check_not_held(&view, volume, lost.as_ref()).map_err(refused)?;
    let taken = match store.is_dry() {
        true => match storage.check_removal(volume).await {
            Ok(()) => Ok(Taken::Removed),
            Err(StorageError::NoVolume { .. }) => Ok(Taken::Absent),
            Err(error) => Err(refused(error)),
        },
        false => take_away(store, storage, volume, keep, lost.as_ref()).await,
    };
    let taken = taken.and_then(|taken| match taken {
        Taken::Absent if !store.view().volumes.contains_key(volume) => {
            Err(refused(StorageError::NoVolume { volume: volume.clone() }))
        }
        taken => Ok(taken),
    });
    after(store, storage, volume, taken).await
}

/// Kind of a copy of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloneKind {
    /// Depends on nothing.
    Full,
    /// Shares with the volume what neither has written since, and depends on it.
    CopyOnWrite,
}

/// Makes a copy of a volume under another name in its pool, and records it.
///
/// # Errors
/// If the volume is held, if volumes come to be held again and again while this is tried, or the
/// course is asked to stop: then there is no copy.
pub async fn clone_volume(
    store: &Store,
    storage: &dyn Storage,
    volume: &VolumeId,
    to: &VolumeName,
    kind: CloneKind,
    force: bool,
    course: &Course,
) -> Done<()> {
    let to = beside(volume, to)?;
    let view = store.fresh().await?;
    require_pool(&view, &volume.pool).map_err(ChangeError::Refused)?;
    check_not_held(&view, volume, None).map_err(refused)?;
    check_not_held(&view, &to, None).map_err(refused)?;
    if store.is_dry() {
        let size_bytes = storage.volume(volume).await.map_err(refused)?.size_bytes;
        let new = match kind {
            CloneKind::Full => check_new(storage, &to, size_bytes, force),
            // It has nothing of its own at first.
            CloneKind::CopyOnWrite => check_new(storage, &to, 0, true),
        };
        return new.await.map_err(refused);
    }
    let made = make_copy(store, storage, volume, &to, kind, force, course).await?;
    let recorded = record_new(store, storage, &to, made).await;
    if kind == CloneKind::CopyOnWrite {
        // It has a snapshot now that the copy stands on.
        record_volume(store, storage, volume).await?;
    }
    recorded
}

/// Has the storage make a copy of a moment at which the volume was not held.
async fn make_copy(
    store: &Store,
    storage: &dyn Storage,
    volume: &VolumeId,
    to: &VolumeId,
    kind: CloneKind,
    force: bool,
    course: &Course,
) -> Done<Result<(), StorageError>> {
    for _ in 0..TRIES {
        let look = Look::at(store, volume).await?;
        course.require_confirmation();
        let make = async {
            match kind {
                CloneKind::Full => storage.clone_volume(volume, &to.volume, force, course).await,
                CloneKind::CopyOnWrite => storage.clone_on_write(volume, &to.volume, course).await,
            }
        };
        let mut make = std::pin::pin!(make);
        let confirm = async {
            course.confirmation_asked().await;
            let looked = look.was_never_held().await;
            course.confirm(matches!(looked, Ok(true)));
            looked
        };
        let looked = tokio::select! {
            biased;
            made = &mut make => return Ok(made),
            looked = confirm => looked,
        };
        let made = make.await;
        match looked {
            Ok(true) => return Ok(made),
            Ok(false) if course.is_stopped() => return Ok(made),
            Ok(false) => {}
            Err(error) => return Err(error),
        }
    }
    Err(ChangeError::Conflict { tries: TRIES })
}

/// Makes a copy-on-write clone independent of the volume that it is a clone of, and records both.
pub async fn flatten_volume(
    store: &Store,
    storage: &dyn Storage,
    volume: &VolumeId,
    force: bool,
    course: &Course,
) -> Done<Flattened> {
    let view = store.fresh().await?;
    require_pool(&view, &volume.pool).map_err(ChangeError::Refused)?;
    check_not_held(&view, volume, None).map_err(refused)?;
    if store.is_dry() {
        storage.volume(volume).await.map_err(refused)?;
        return Ok(Flattened::From(None));
    }
    let flattened = storage.flatten(volume, force, course).await.map_err(refused);
    let flattened = after(store, storage, volume, flattened).await?;
    if let Flattened::From(Some(parent)) = &flattened {
        record_volume(store, storage, parent).await?;
    }
    Ok(flattened)
}

/// The volume with this new name in the same pool.
fn beside(volume: &VolumeId, name: &VolumeName) -> Done<VolumeId> {
    let name = VolumeName::parse(name.as_str()).map_err(refused)?;
    require_free_volume_name(name.as_str()).map_err(ChangeError::Refused)?;
    Ok(VolumeId { pool: volume.pool.clone(), volume: name })
}
