//! Volumes that belong together: they are made with their contents, and removed, all or none.

use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::hold::check_not_held;
use pvc_model::storage::{VolumeId, VolumeName};
use pvc_ports::{Storage, StorageError, TrashedVolume, Upload};
use pvc_store::{ChangeError, Store};

use super::contents::{LEAST_KEPT, streams};
use super::trash::Taken;
use super::volume::check_new;
use super::{
    Done, StorageRefusal, exists, record_volume, refused, remove_volume, require_free_volume_name,
    require_no_task, require_pool, restore_volume,
};

/// Volume in the making, which has no name yet.
pub struct NewVolume {
    pub volume: VolumeId,
    pub upload: Box<dyn Upload>,
}

/// Refuses volumes of one pool, each of which has a size in bytes, that could not be made now: one
/// of them because its name is taken, or all because there is no room for them.
///
/// # Errors
/// The first reason against them.
pub async fn check_volumes(
    view: &Cluster,
    storage: &dyn Storage,
    wanted: &[(VolumeId, u64)],
) -> Result<(), StorageRefusal> {
    let mut all_bytes = 0_u64;
    for (volume, size_bytes) in wanted {
        VolumeName::parse(volume.volume.as_str())?;
        require_free_volume_name(volume.volume.as_str())?;
        require_pool(view, &volume.pool)?;
        check_not_held(view, volume, None)?;
        all_bytes = all_bytes.saturating_add(*size_bytes);
        check_new(storage, volume, all_bytes, false).await?;
    }
    Ok(())
}

/// Refuses what a task that is recorded takes the contents of, in whatever pool.
///
/// # Errors
/// The task.
pub fn check_no_task(view: &Cluster, name: &VolumeName) -> Result<(), StorageRefusal> {
    require_no_task(view, |volume| volume.volume == *name)
}

/// Begins a volume of this size, in bytes.
///
/// # Errors
/// Those of [`check_volumes`].
pub async fn begin_volume(
    store: &Store,
    storage: &dyn Storage,
    volume: &VolumeId,
    size_bytes: u64,
) -> Done<NewVolume> {
    let view = store.fresh().await?;
    let wanted = [(volume.clone(), size_bytes)];
    check_volumes(&view, storage, &wanted).await.map_err(ChangeError::Refused)?;
    let streams = streams(storage).map_err(ChangeError::Refused)?;
    let upload = streams.upload(volume, size_bytes, false).await.map_err(refused)?;
    Ok(NewVolume { volume: volume.clone(), upload })
}

/// Reason why volumes are not all there, or not all gone.
#[derive(Debug)]
pub struct InPart {
    pub error: Box<ChangeError<StorageRefusal>>,
    /// Volumes with which it could not be undone.
    pub left: Vec<VolumeId>,
}

impl InPart {
    fn nothing(error: ChangeError<StorageRefusal>) -> Self {
        InPart { error: Box::new(error), left: Vec::new() }
    }
}

/// Gives volumes that are whole their names, and records them: all of them, or none.
///
/// # Errors
/// If a name was taken meanwhile, or the storage or the store fails. Left are those that could not
/// be removed again, and the one whose name did not come in time, which is nobody's to remove: the
/// name may be that of another volume.
pub async fn name_volumes(
    store: &Store,
    storage: &dyn Storage,
    mut volumes: Vec<NewVolume>,
) -> Result<Vec<VolumeId>, InPart> {
    // What takes long is done before anything can be seen.
    for new in &mut volumes {
        new.upload.finish().await.map_err(|error| InPart::nothing(refused(error)))?;
    }
    let mut named = Vec::new();
    for NewVolume { volume, upload } in volumes {
        let (error, open) = match upload.commit().await {
            Ok(()) => {
                named.push(volume.clone());
                match record_volume(store, storage, &volume).await {
                    Ok(_) => continue,
                    Err(error) => (error, None),
                }
            }
            Err(error @ StorageError::TimedOut { .. }) => {
                tracing::warn!(%volume, "nobody knows whether a volume has got its name");
                (refused(error), Some(volume))
            }
            Err(error) => (refused(error), None),
        };
        let mut left = take_back(store, storage, &named).await;
        left.extend(open);
        return Err(InPart { error: Box::new(error), left });
    }
    Ok(named)
}

/// Removes volumes that were just made, with which nothing is to be done any more. Returns those
/// that are left, or are still recorded.
pub async fn take_back(
    store: &Store,
    storage: &dyn Storage,
    volumes: &[VolumeId],
) -> Vec<VolumeId> {
    let mut left = Vec::new();
    for volume in volumes {
        let removed = match storage.remove(volume).await {
            Ok(()) | Err(StorageError::NoVolume { .. }) => {
                record_volume(store, storage, volume).await.map(drop)
            }
            Err(error) => Err(refused(error)),
        };
        if let Err(error) = removed {
            tracing::warn!(%volume, %error, "a volume that is not needed after all is left");
            left.push(volume.clone());
        }
    }
    left
}

/// Refuses volumes that could not be removed together. One that is gone is no reason.
///
/// # Errors
/// The first reason against them.
pub async fn check_removals(
    store: &Store,
    storage: &dyn Storage,
    volumes: &[VolumeId],
) -> Done<()> {
    let dry = store.dry();
    for volume in volumes {
        match remove_volume(&dry, storage, volume, LEAST_KEPT, false).await {
            Ok(_) => {}
            Err(error) if is_gone(storage, volume, &error).await? => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether there is nothing to remove: no such volume, also none in a pool that is not recorded.
async fn is_gone(
    storage: &dyn Storage,
    volume: &VolumeId,
    error: &ChangeError<StorageRefusal>,
) -> Done<bool> {
    match error {
        ChangeError::Refused(StorageRefusal::Storage(StorageError::NoVolume { .. })) => Ok(true),
        ChangeError::Refused(StorageRefusal::NoPool { .. }) => {
            Ok(!exists(storage, volume).await.map_err(refused)?)
        }
        _ => Ok(false),
    }
}

/// Moves volumes that belong together to the trash, where they are for a day at least: all of
/// them, or none. Returns what they are there.
///
/// # Errors
/// Those of [`check_removals`], which are looked for before the first is moved. If a later one is
/// refused all the same, those before it are brought back; left are those that could not be, which
/// are in the trash, and the one of which nobody knows.
pub async fn trash_volumes(
    store: &Store,
    storage: &dyn Storage,
    volumes: &[VolumeId],
    keep: Duration,
) -> Result<Vec<TrashedVolume>, InPart> {
    check_removals(store, storage, volumes).await.map_err(InPart::nothing)?;
    let mut moved = Vec::new();
    for volume in volumes {
        let error = match remove_volume(store, storage, volume, keep.max(LEAST_KEPT), false).await {
            Ok(Taken::Kept(entry)) => {
                moved.push(entry);
                continue;
            }
            Ok(Taken::Removed | Taken::Absent) => continue,
            Err(error) => match is_gone(storage, volume, &error).await {
                Ok(true) => continue,
                Ok(false) => error,
                Err(unknown) => unknown,
            },
        };
        let mut left = bring_back(store, storage, &moved).await;
        let is_open = matches!(
            &error,
            ChangeError::Refused(StorageRefusal::Storage(StorageError::TimedOut { .. }))
        );
        left.extend(is_open.then(|| volume.clone()));
        return Err(InPart { error: Box::new(error), left });
    }
    Ok(moved)
}

/// Restores volumes under their names. Returns those that are still in the trash.
async fn bring_back(
    store: &Store,
    storage: &dyn Storage,
    moved: &[TrashedVolume],
) -> Vec<VolumeId> {
    let mut left = Vec::new();
    for TrashedVolume { pool, id, name, .. } in moved {
        if let Err(error) = restore_volume(store, storage, pool, id, None).await {
            let volume = VolumeId { pool: pool.clone(), volume: name.clone() };
            tracing::warn!(%volume, %error, "a volume could not be brought back from the trash");
            left.push(volume);
        }
    }
    left
}
