//! Volumes that are made with their contents, several of which belong together.

use pvc_model::hold::check_not_held;
use pvc_model::storage::{VolumeId, VolumeName};
use pvc_ports::{Storage, StorageError, Upload};
use pvc_store::{ChangeError, Store};

use super::contents::streams;
use super::volume::check_new;
use super::{Done, StorageRefusal, record_volume, refused, require_free_volume_name, require_pool};

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
    store: &Store,
    storage: &dyn Storage,
    wanted: &[(VolumeId, u64)],
) -> Done<()> {
    let view = store.fresh().await?;
    let mut all_bytes = 0_u64;
    for (volume, size_bytes) in wanted {
        VolumeName::parse(volume.volume.as_str()).map_err(refused)?;
        require_free_volume_name(volume.volume.as_str()).map_err(ChangeError::Refused)?;
        require_pool(&view, &volume.pool).map_err(ChangeError::Refused)?;
        check_not_held(&view, volume, None).map_err(refused)?;
        all_bytes = all_bytes.saturating_add(*size_bytes);
        check_new(storage, volume, all_bytes, false).await.map_err(refused)?;
    }
    Ok(())
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
    check_volumes(store, storage, &[(volume.clone(), size_bytes)]).await?;
    let streams = streams(storage).map_err(ChangeError::Refused)?;
    let upload = streams.upload(volume, size_bytes, false).await.map_err(refused)?;
    Ok(NewVolume { volume: volume.clone(), upload })
}

/// Gives volumes that are whole their names, and records them: all of them, or none.
///
/// # Errors
/// If a name was taken meanwhile, or the storage or the store fails.
pub async fn name_volumes(
    store: &Store,
    storage: &dyn Storage,
    mut volumes: Vec<NewVolume>,
) -> Done<Vec<VolumeId>> {
    // What takes long is done before anything can be seen.
    for new in &mut volumes {
        new.upload.finish().await.map_err(refused)?;
    }
    let mut named = Vec::new();
    for NewVolume { volume, upload } in volumes {
        let committed = upload.commit().await.map_err(refused);
        // What was not done in time may still be done.
        if matches!(
            committed,
            Ok(())
                | Err(ChangeError::Refused(StorageRefusal::Storage(StorageError::TimedOut { .. })))
        ) {
            named.push(volume.clone());
        }
        let recorded = match committed {
            Ok(()) => record_volume(store, storage, &volume).await.map(drop),
            Err(error) => Err(error),
        };
        if let Err(error) = recorded {
            take_back(store, storage, &named).await;
            return Err(error);
        }
    }
    Ok(named)
}

/// Removes volumes that were just made, with which nothing is to be done any more.
pub async fn take_back(store: &Store, storage: &dyn Storage, volumes: &[VolumeId]) {
    for volume in volumes {
        let removed = match storage.remove(volume).await {
            Ok(()) | Err(StorageError::NoVolume { .. }) => {
                record_volume(store, storage, volume).await.map(drop)
            }
            Err(error) => Err(refused(error)),
        };
        if let Err(error) = removed {
            tracing::warn!(%volume, %error, "a volume that is not needed after all is left");
        }
    }
}
