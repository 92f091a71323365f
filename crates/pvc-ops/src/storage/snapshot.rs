//! Snapshots of volumes.

use pvc_model::cluster::Cluster;
use pvc_model::hold::{Held, Purpose, check_not_held};
use pvc_model::snapshot_usage::SeenSnapshot;
use pvc_model::storage::{SnapshotName, VolumeId};
use pvc_model::vm::volumes::owner_of_snapshot;
use pvc_ports::{Random, Storage, StorageError};
use pvc_store::{Change, ChangeError, Changes, Expect, Store};

use super::hold::{Look, TRIES, had_no_effect, holding, watching, without_end};
use super::record::{after, record_snapshot};
use super::{Done, StorageRefusal, refused, require_at_rest, require_free_name, require_pool};

/// Takes a snapshot of a volume. One that is there and is not recorded is recorded, and the ask is
/// refused all the same: it is of another moment.
///
/// # Errors
/// If the volume is held, and if volumes come to be held again and again while this is tried: then
/// there is no snapshot.
pub async fn create_snapshot(
    store: &Store,
    storage: &dyn Storage,
    random: &dyn Random,
    volume: &VolumeId,
    snapshot: &SnapshotName,
) -> Done<()> {
    SnapshotName::parse(snapshot.as_str()).map_err(refused)?;
    require_free_name(snapshot.as_str()).map_err(ChangeError::Refused)?;
    let view = store.fresh().await?;
    require_pool(&view, &volume.pool).map_err(ChangeError::Refused)?;
    check_not_held(&view, volume, None).map_err(refused)?;
    if store.is_dry() {
        return check_no_snapshot(storage, volume, snapshot).await.map_err(refused);
    }
    let made = make_snapshot(store, storage, random, volume, snapshot).await?;
    if matches!(made, Ok(()) | Err(StorageError::SnapshotExists { .. })) {
        record_snapshot(store, storage, volume, snapshot).await?;
    }
    made.map_err(refused)
}

/// Takes a snapshot of a moment at which the volume was not held. Until that is known it has a name
/// of the storage's own: who takes it may be killed at any moment, and what is left of it is
/// nobody's and goes after a week.
async fn make_snapshot(
    store: &Store,
    storage: &dyn Storage,
    random: &dyn Random,
    volume: &VolumeId,
    snapshot: &SnapshotName,
) -> Done<Result<(), StorageError>> {
    for _ in 0..TRIES {
        let look = Look::at(store, volume).await?;
        if let Err(error) = check_no_snapshot(storage, volume, snapshot).await {
            return Ok(Err(error));
        }
        let passing = SnapshotName::passing(random.next_u64());
        if let Err(error) = storage.snapshot(volume, &passing).await {
            return Ok(Err(error));
        }
        let looked = look.was_never_held().await;
        if matches!(looked, Ok(true)) {
            match storage.rename_snapshot(volume, &passing, snapshot).await {
                Ok(()) => {}
                // Whoever gave the volume new contents took it along.
                Err(StorageError::NoSnapshot { .. }) => continue,
                Err(error) => {
                    remove_unkept(storage, volume, &passing).await;
                    return Ok(Err(error));
                }
            }
            // Whoever gives the volume new contents from now on sees it; he who was about to did
            // not.
            let looked = look.was_never_held().await;
            if matches!(looked, Ok(true)) || is_held_for(&store.view(), volume, snapshot) {
                return Ok(Ok(()));
            }
            remove_unkept(storage, volume, snapshot).await;
            looked?;
        } else {
            remove_unkept(storage, volume, &passing).await;
            looked?;
        }
    }
    Err(ChangeError::Conflict { tries: TRIES })
}

/// Whether the volume is being rolled back to this snapshot, which is whole then: somebody has
/// recorded it.
fn is_held_for(view: &Cluster, volume: &VolumeId, snapshot: &SnapshotName) -> bool {
    let purpose = view.holds.get(volume).map(|hold| &hold.purpose);
    purpose == Some(&Purpose::RollBack(snapshot.clone()))
}

/// Removes a snapshot that is not to be.
async fn remove_unkept(storage: &dyn Storage, volume: &VolumeId, snapshot: &SnapshotName) {
    if let Err(error) = storage.remove_snapshot(volume, snapshot).await {
        let text = "a snapshot that is not to be could not be removed";
        tracing::warn!(%volume, %snapshot, %error, "{text}");
    }
}

/// Gives a snapshot another name.
///
/// # Errors
/// If it is the storage's own or part of a snapshot of a VM, which find it by its name, and if the
/// volume is rolled back to it meanwhile: then it has its old name again.
pub async fn rename_snapshot(
    store: &Store,
    storage: &dyn Storage,
    volume: &VolumeId,
    snapshot: &SnapshotName,
    to: &SnapshotName,
) -> Done<()> {
    SnapshotName::parse(to.as_str()).map_err(refused)?;
    require_free_name(to.as_str()).map_err(ChangeError::Refused)?;
    require_not_own(volume, snapshot).map_err(ChangeError::Refused)?;
    let view = store.fresh().await?;
    require_pool(&view, &volume.pool).map_err(ChangeError::Refused)?;
    check_not_held(&view, volume, None).map_err(refused)?;
    require_of_no_vm(&view, volume, snapshot).map_err(ChangeError::Refused)?;
    if store.is_dry() {
        check_snapshot(storage, volume, snapshot).await.map_err(refused)?;
        return check_no_snapshot(storage, volume, to).await.map_err(refused);
    }
    let act = storage.rename_snapshot(volume, snapshot, to);
    let (renamed, was_held) = watching(store, volume, act).await?;
    match renamed {
        // Whoever rolls back to it finds it by its name, if that is cut off.
        Ok(()) if was_held.as_ref().is_err_and(|held| is_to(&held.purpose, snapshot)) => {
            let given_back = storage.rename_snapshot(volume, to, snapshot).await;
            let called = if given_back.is_ok() { snapshot } else { to };
            if let Err(why) = record_snapshot(store, storage, volume, called).await {
                tracing::warn!(%volume, snapshot = %called, %why, "a snapshot is not recorded");
            }
            return given_back.map_err(refused).and(was_held.map_err(refused));
        }
        Ok(()) => {}
        Err(error @ StorageError::NoSnapshot { .. }) => {
            // Renamed by an ask that did not come to its end: the old name may be recorded still.
            if is_recorded(&view, volume, to) || check_snapshot(storage, volume, to).await.is_err()
            {
                return Err(refused(error));
            }
        }
        Err(error) => return Err(refused(error)),
    }
    record_snapshot(store, storage, volume, to).await?;
    // It has its name: that it is missing in a list for an hour is no failure.
    if let Err(why) = rename_usage(store, volume, snapshot, to).await {
        tracing::warn!(%volume, snapshot = %to, %why, "what a snapshot holds has its old name");
    }
    Ok(())
}

/// Has what the snapshot was seen to hold under the name that it has now: it is looked at again in
/// an hour or more.
async fn rename_usage(
    store: &Store,
    volume: &VolumeId,
    from: &SnapshotName,
    to: &SnapshotName,
) -> Done<()> {
    let decide = |cluster: &Cluster| {
        let usage = cluster.snapshot_usage.get(&volume.pool);
        let is_its = |seen: &SeenSnapshot| seen.volume == volume.volume && seen.usage.name == *from;
        let mut changes = Changes::new();
        if usage.is_some_and(|usage| usage.seen().iter().any(is_its)) {
            let (volume, from, to) = (volume.clone(), from.clone(), to.clone());
            changes.push(Change::RenameSnapshotUsage { volume, from, to });
        }
        Ok((changes, ()))
    };
    store.change(decide).await
}

/// Removes a snapshot. One that is gone and still recorded is forgotten. Its record goes first: to
/// one that is not recorded no volume is rolled back. If this is cut off, or nobody knows what came
/// of it, the same ask completes it, and a [scan](super::scan) takes it back.
///
/// # Errors
/// If it is part of a snapshot of a VM, unless that is forced, and while the volume is held.
pub async fn remove_snapshot(
    store: &Store,
    storage: &dyn Storage,
    volume: &VolumeId,
    snapshot: &SnapshotName,
    force: bool,
) -> Done<()> {
    let view = store.fresh().await?;
    require_pool(&view, &volume.pool).map_err(ChangeError::Refused)?;
    check_not_held(&view, volume, None).map_err(refused)?;
    if !force {
        require_of_no_vm(&view, volume, snapshot).map_err(ChangeError::Refused)?;
    }
    let was_recorded = is_recorded(&view, volume, snapshot);
    let mut is_unrecorded = false;
    // A storage that does not answer leaves the record as it is.
    let removed = match check_snapshot(storage, volume, snapshot).await {
        Ok(()) if !store.is_dry() => {
            is_unrecorded =
                store.change(|cluster| unrecord(cluster, volume, snapshot, force)).await?;
            storage.remove_snapshot(volume, snapshot).await
        }
        found => found,
    };
    match removed {
        Err(StorageError::NoSnapshot { .. }) if was_recorded => {
            after(store, storage, volume, Ok(())).await
        }
        // It stays, and is no less than before. The record is whose ask took it away.
        Err(error) if is_unrecorded && had_no_effect(&error) => {
            if let Err(why) = record_snapshot(store, storage, volume, snapshot).await {
                tracing::warn!(%volume, %snapshot, %why, "a snapshot that stays is not recorded");
            }
            Err(refused(error))
        }
        Err(source) if is_unrecorded => {
            let (volume, snapshot) = (volume.clone(), snapshot.clone());
            let in_doubt = StorageRefusal::RemovalInDoubt { volume, snapshot, source };
            Err(ChangeError::Refused(in_doubt))
        }
        other => after(store, storage, volume, other.map_err(refused)).await,
    }
}

/// Makes a volume what it was at its snapshot.
///
/// # Errors
/// If the snapshot is not recorded: somebody may be about to remove it. While a VM that is not off
/// uses the volume: a guest would find other data under its file system. None of
/// them starts until it is done: the volume is [held](pvc_model::hold). What was begun earlier is
/// to come to its end, unless the snapshot for that is gone.
pub async fn roll_back(
    store: &Store,
    storage: &dyn Storage,
    random: &dyn Random,
    volume: &VolumeId,
    snapshot: &SnapshotName,
) -> Done<()> {
    let view = store.fresh().await?;
    require_pool(&view, &volume.pool).map_err(ChangeError::Refused)?;
    require_at_rest(&view, |used| used == volume).map_err(ChangeError::Refused)?;
    let purpose = Purpose::RollBack(snapshot.clone());
    let lost = without_end(&view, storage, volume).await.map_err(refused)?;
    check_not_held(&view, volume, lost.as_ref().or(Some(&purpose))).map_err(refused)?;
    if lost.as_ref() == Some(&purpose) {
        let held = Held { volume: volume.clone(), purpose };
        return Err(ChangeError::Refused(StorageRefusal::NoEnd(held)));
    }
    check_snapshot(storage, volume, snapshot).await.map_err(refused)?;
    require_recorded(&view, volume, snapshot).map_err(ChangeError::Refused)?;
    if store.is_dry() {
        return Ok(());
    }
    let act = storage.roll_back(volume, snapshot);
    let done = holding(store, random, volume, &purpose, lost.as_ref(), act).await;
    if matches!(done, Err(ChangeError::Refused(StorageRefusal::Unrecorded { .. }))) {
        // Its removal is under way: the record is not to come back meanwhile.
        return done;
    }
    after(store, storage, volume, done).await
}

/// Takes the record of a snapshot away, and tells whether there was one. Of this and a hold of the
/// volume for that snapshot at the same time, the later one decides again.
fn unrecord(
    cluster: &Cluster,
    volume: &VolumeId,
    snapshot: &SnapshotName,
    force: bool,
) -> Result<(Changes, bool), StorageRefusal> {
    check_not_held(cluster, volume, None)?;
    if !force {
        require_of_no_vm(cluster, volume, snapshot)?;
    }
    let mut changes = Changes::new();
    let was_recorded = is_recorded(cluster, volume, snapshot);
    if was_recorded {
        changes.expect(Expect::Holds);
        let (volume, name) = (volume.clone(), snapshot.clone());
        changes.push(Change::RemoveSnapshot { volume, name });
    }
    Ok((changes, was_recorded))
}

fn is_to(purpose: &Purpose, snapshot: &SnapshotName) -> bool {
    *purpose == Purpose::RollBack(snapshot.clone())
}

fn is_recorded(cluster: &Cluster, volume: &VolumeId, snapshot: &SnapshotName) -> bool {
    let record = cluster.volumes.get(volume);
    record.is_some_and(|record| record.snapshots.iter().any(|(name, _)| name == snapshot))
}

pub(super) fn require_recorded(
    cluster: &Cluster,
    volume: &VolumeId,
    snapshot: &SnapshotName,
) -> Result<(), StorageRefusal> {
    match is_recorded(cluster, volume, snapshot) {
        true => Ok(()),
        false => {
            let (volume, snapshot) = (volume.clone(), snapshot.clone());
            Err(StorageRefusal::Unrecorded { volume, snapshot })
        }
    }
}

/// Refuses a snapshot that was taken for a copy, a download or a copy-on-write clone: under another
/// name nobody would remove it, and a copy or a download of it would fail.
fn require_not_own(volume: &VolumeId, snapshot: &SnapshotName) -> Result<(), StorageRefusal> {
    match snapshot.is_passing() || snapshot.is_base() {
        true => {
            let (volume, snapshot) = (volume.clone(), snapshot.clone());
            Err(StorageRefusal::OwnSnapshot { volume, snapshot })
        }
        false => Ok(()),
    }
}

fn require_of_no_vm(
    cluster: &Cluster,
    volume: &VolumeId,
    snapshot: &SnapshotName,
) -> Result<(), StorageRefusal> {
    match owner_of_snapshot(cluster, volume, snapshot) {
        None => Ok(()),
        Some((vm, whole)) => Err(StorageRefusal::OfVm {
            vm: vm.name.clone(),
            whole: whole.to_owned(),
            volume: volume.clone(),
            snapshot: snapshot.clone(),
        }),
    }
}

async fn check_snapshot(
    storage: &dyn Storage,
    volume: &VolumeId,
    snapshot: &SnapshotName,
) -> Result<(), StorageError> {
    let found = storage.volume(volume).await?;
    match found.snapshots.iter().any(|found| found.name == *snapshot) {
        true => Ok(()),
        false => {
            Err(StorageError::NoSnapshot { volume: volume.clone(), snapshot: snapshot.clone() })
        }
    }
}

async fn check_no_snapshot(
    storage: &dyn Storage,
    volume: &VolumeId,
    snapshot: &SnapshotName,
) -> Result<(), StorageError> {
    match check_snapshot(storage, volume, snapshot).await {
        Ok(()) => {
            Err(StorageError::SnapshotExists { volume: volume.clone(), snapshot: snapshot.clone() })
        }
        Err(StorageError::NoSnapshot { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}
