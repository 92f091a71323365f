//! New contents of volumes.
//!
//! ```text
//!  an image is written beside the volume, and checked        (nothing has changed)
//!    hold the volume: no VM that uses it starts
//!      the volume, as it was, goes to the trash                (no volume has the name)
//!      what was written gets the name       or: the trash gives it back
//!    record it, let go of it
//! ```
//!
//! A process that dies in between leaves the hold: the [primary](settle) looks which of both has
//! the name, and if none has, the trash gives the volume back.

use std::time::Duration;

use pvc_model::hold::{Purpose, VolumeHold, check_not_held};
use pvc_model::storage::{SnapshotName, VolumeId};
use pvc_ports::{
    Download, Random, Storage, StorageError, TrashedVolume, Upload, VolumeInfo, VolumeStreams,
};
use pvc_store::{ChangeError, Store};

use super::hold::{had_no_effect, hold, release};
use super::{
    Done, StorageRefusal, record_volume, refused, require_at_rest, require_no_part, require_pool,
};

/// Begins to read a volume that nobody uses, or one of its snapshots.
///
/// # Errors
/// While the volume is held, or a VM that uses it is not off and no snapshot is meant; and if this
/// storage has no streams.
pub async fn download(
    store: &Store,
    storage: &dyn Storage,
    volume: &VolumeId,
    snapshot: Option<&SnapshotName>,
) -> Done<Box<dyn Download>> {
    let view = store.fresh().await?;
    require_pool(&view, &volume.pool).map_err(ChangeError::Refused)?;
    check_not_held(&view, volume, None).map_err(refused)?;
    if snapshot.is_none() {
        require_at_rest(&view, |used| used == volume).map_err(ChangeError::Refused)?;
    }
    let streams = streams(storage).map_err(ChangeError::Refused)?;
    streams.download(volume, snapshot).await.map_err(refused)
}

fn streams(storage: &dyn Storage) -> Result<&dyn VolumeStreams, StorageRefusal> {
    storage.streams().ok_or(StorageRefusal::NoStreams)
}

/// Begins contents for the volume, which [`fill_volume`] gives it.
///
/// # Errors
/// Those of [`check_fill`].
pub async fn begin_fill(
    store: &Store,
    storage: &dyn Storage,
    volume: &VolumeId,
    force: bool,
) -> Done<Box<dyn Upload>> {
    let size_bytes = check_fill(store, storage, volume, force).await?;
    let streams = streams(storage).map_err(ChangeError::Refused)?;
    streams.upload(volume, size_bytes, force).await.map_err(refused)
}

/// Time for which old contents are in the trash at least, until the new ones have the name.
const LEAST_KEPT: Duration = Duration::from_secs(24 * 3600);

/// Refuses what could not get new contents now; returns its size, in bytes.
///
/// # Errors
/// While a VM that uses it is not off or somebody has it open, while it is held, while it has
/// snapshots, which would go to the trash with it, and if there is no room for a second volume of
/// its size beside it.
pub async fn check_fill(
    store: &Store,
    storage: &dyn Storage,
    volume: &VolumeId,
    force: bool,
) -> Done<u64> {
    let view = store.fresh().await?;
    require_pool(&view, &volume.pool).map_err(ChangeError::Refused)?;
    require_at_rest(&view, |used| used == volume).map_err(ChangeError::Refused)?;
    check_not_held(&view, volume, None).map_err(refused)?;
    require_no_part(&view, |used| used == volume).map_err(ChangeError::Refused)?;
    let found = storage.volume(volume).await.map_err(refused)?;
    require_no_snapshots(&found).map_err(ChangeError::Refused)?;
    storage.check_unused(volume).await.map_err(refused)?;
    let pool = storage.pool(&volume.pool).await.map_err(refused)?;
    pool.check_room(found.size_bytes, force).map_err(refused)?;
    Ok(found.size_bytes)
}

fn require_no_snapshots(volume: &VolumeInfo) -> Result<(), StorageRefusal> {
    match volume.snapshots.first() {
        None => Ok(()),
        Some(snapshot) => Err(StorageRefusal::HasSnapshots {
            volume: volume.id.clone(),
            snapshot: snapshot.name.clone(),
        }),
    }
}

/// Gives a volume of `size_bytes` the contents that were uploaded. What it was before goes to the
/// trash for the time of `keep`, and is returned; without such a time it is removed.
///
/// # Errors
/// Those of [`check_fill`], which are looked for again, and if the volume has another size by now.
/// The volume has its old contents then, or, if nobody knows how far the storage has come, is held
/// until the primary has [settled](settle) it.
pub async fn fill_volume(
    store: &Store,
    storage: &dyn Storage,
    random: &dyn Random,
    volume: &VolumeId,
    size_bytes: u64,
    keep: Duration,
    upload: Box<dyn Upload>,
) -> Done<TrashedVolume> {
    let by = random.uuid().to_string();
    store.change(|cluster| hold(cluster, volume, &Purpose::Fill, &by)).await?;
    let replaced = replace(storage, volume, size_bytes, keep, upload).await;
    if matches!(replaced, Err(Failed::Open(_))) {
        tracing::warn!(%volume, "nobody knows which contents the volume has; it is held until the \
                                 primary node has looked");
    } else {
        // What has become of the volume is what is told. The primary sees to the rest.
        let recorded = record_volume(store, storage, volume).await;
        let released = store.change(|cluster| release(cluster, volume, &by)).await;
        for error in [recorded.err(), released.err()].into_iter().flatten() {
            tracing::warn!(%volume, %error, "the records of a volume do not follow its contents");
        }
    }
    let old = replaced.map_err(|failed| match failed {
        Failed::AsBefore(why) | Failed::Open(why) => ChangeError::Refused(why),
    })?;
    if keep.is_zero()
        && let Err(error) = storage.purge(&old.pool, &old.id).await
    {
        tracing::warn!(%volume, %error, "the old contents of the volume are still in the trash");
    }
    Ok(old)
}

/// Failure to give a volume other contents.
enum Failed {
    /// The volume has those that it had.
    AsBefore(StorageRefusal),
    /// Nobody knows.
    Open(StorageRefusal),
}

async fn replace(
    storage: &dyn Storage,
    volume: &VolumeId,
    size_bytes: u64,
    keep: Duration,
    upload: Box<dyn Upload>,
) -> Result<TrashedVolume, Failed> {
    let as_before = |error: StorageError| Failed::AsBefore(error.into());
    let found = storage.volume(volume).await.map_err(as_before)?;
    require_no_snapshots(&found).map_err(Failed::AsBefore)?;
    if found.size_bytes != size_bytes {
        let (volume, now_bytes) = (volume.clone(), found.size_bytes);
        return Err(Failed::AsBefore(StorageRefusal::Resized { volume, size_bytes, now_bytes }));
    }
    // Nothing purges it before it is known what has become of the new contents.
    let old = match storage.trash(volume, keep.max(LEAST_KEPT)).await {
        Ok(old) => old,
        Err(error) if had_no_effect(&error) => return Err(as_before(error)),
        Err(error) => return Err(Failed::Open(error.into())),
    };
    let error = match upload.commit().await {
        Ok(()) => return Ok(old),
        Err(error) => error,
    };
    // What was not done in time may still be done.
    let is_over = !matches!(error, StorageError::TimedOut { .. });
    if is_over && storage.restore(&old.pool, &old.id, &volume.volume).await.is_ok() {
        return Err(as_before(error));
    }
    Err(Failed::Open(error.into()))
}

/// End of an attempt at new contents that was cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// There is a volume of the name, with the old contents or with the new.
    Stands,
    /// The trash has given back the volume as it was.
    GivenBack,
    /// Nothing has the name, and the trash knows no volume of it.
    Gone,
}

/// Brings to its end what was held by an attempt at new contents that does not go on: the volume
/// that was put into the trash last gets its name back, unless one has it. Lets go of the name.
///
/// # Errors
/// The hold stays: it is to be tried again.
pub async fn settle(store: &Store, storage: &dyn Storage, held: &VolumeHold) -> Done<Settled> {
    let (id, name) = (&held.volume, &held.volume.volume);
    // The list, and not whether something opens by the name: a rename that was cut short lies.
    let listed = storage.volumes(&id.pool).await.map_err(refused)?;
    let settled = if listed.iter().any(|found| found.id == *id) {
        Settled::Stands
    } else {
        let trashed = storage.trashed(&id.pool).await.map_err(refused)?;
        let of_name = trashed.into_iter().filter(|old| old.name == *name);
        match of_name.max_by_key(|old| old.removed_at) {
            Some(old) => {
                storage.restore(&id.pool, &old.id, name).await.map_err(refused)?;
                Settled::GivenBack
            }
            None => Settled::Gone,
        }
    };
    record_volume(store, storage, id).await?;
    store.change(|cluster| release(cluster, id, &held.by)).await?;
    Ok(settled)
}
