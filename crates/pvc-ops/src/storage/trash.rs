//! Removed volumes that are still kept.

use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::hold::{Held, Purpose, check_not_held};
use pvc_model::storage::{PoolName, TrashId, VolumeId, VolumeName};
use pvc_model::trash;
use pvc_ports::{Storage, StorageError, TrashedVolume};
use pvc_store::{ChangeError, Store};

use super::volume::{check_new, record_new};
use super::{Done, exists, refused, require_free_volume_name, require_pool};

/// Fate of a volume that was taken out of use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taken {
    /// In the trash.
    Kept(TrashedVolume),
    Removed,
    /// No such volume.
    Absent,
}

/// Moves a volume to the trash, to be kept for a time; without any, removes it at once. What it may
/// be held for is `allowed`.
///
/// # Errors
/// If it is not there because something else is done to it.
pub(crate) async fn take_away(
    store: &Store,
    storage: &dyn Storage,
    volume: &VolumeId,
    keep: Duration,
    allowed: Option<&Purpose>,
) -> Done<Taken> {
    let taken = match keep.is_zero() {
        true => storage.remove(volume).await.map(|()| Taken::Removed),
        false => storage.trash(volume, keep).await.map(Taken::Kept),
    };
    if !matches!(taken, Err(StorageError::NoVolume { .. })) {
        return taken.map_err(refused);
    }
    // Whoever makes a volume anew in another's place takes the name away for a moment.
    let view = store.fresh().await?;
    check_not_held(&view, volume, allowed).map_err(refused)?;
    match storage.volume(volume).await {
        Err(StorageError::NoVolume { .. }) => Ok(Taken::Absent),
        Ok(_) => {
            let (volume, holder) = (volume.clone(), "another operation".to_owned());
            Err(refused(StorageError::InUse { volume, holder }))
        }
        Err(error) => Err(refused(error)),
    }
}

/// The volumes in the trash of one pool, or of all that are recorded; the oldest first.
pub async fn trashed(
    cluster: &Cluster,
    storage: &dyn Storage,
    only: Option<&PoolName>,
) -> Done<Vec<TrashedVolume>> {
    if let Some(pool) = only {
        require_pool(cluster, pool).map_err(ChangeError::Refused)?;
    }
    let mut all = Vec::new();
    for pool in cluster.pools.keys().filter(|pool| only.is_none_or(|only| only == *pool)) {
        match storage.trashed(pool).await {
            Ok(entries) => all.extend(entries),
            // Its removal is not recorded yet.
            Err(StorageError::NoPool { .. }) if only.is_none() => {}
            Err(error) => return Err(refused(error)),
        }
    }
    all.sort_by(|a, b| (a.removed_at, &a.pool, &a.id).cmp(&(b.removed_at, &b.pool, &b.id)));
    Ok(all)
}

/// Whether a VM [needs](trash::is_needed) the volume in the trash. The storage is asked only where
/// one names it.
///
/// # Errors
/// If the storage does not say.
pub async fn is_needed(
    cluster: &Cluster,
    storage: &dyn Storage,
    entry: &TrashedVolume,
) -> Result<bool, StorageError> {
    let was = entry.volume();
    if !trash::is_needed(cluster, &was, false) {
        return Ok(false);
    }
    let is_there = exists(storage, &was).await?;
    Ok(trash::is_needed(cluster, &was, is_there))
}

/// The volumes in the trash that a VM [needs](is_needed): the disks of removed VMs whose records
/// have come back from a backup.
pub async fn only_in_trash(cluster: &Cluster, storage: &dyn Storage) -> Done<Vec<TrashedVolume>> {
    let mut found = Vec::new();
    for entry in trashed(cluster, storage, None).await? {
        if is_needed(cluster, storage, &entry).await.map_err(refused)? {
            found.push(entry);
        }
    }
    Ok(found)
}

async fn find(
    store: &Store,
    storage: &dyn Storage,
    pool: &PoolName,
    id: &TrashId,
) -> Done<TrashedVolume> {
    let view = store.fresh().await?;
    let all = trashed(&view, storage, Some(pool)).await?;
    let found = all.into_iter().find(|entry| entry.id == *id);
    found.ok_or_else(|| refused(StorageError::NoTrashed { pool: pool.clone(), id: id.clone() }))
}

/// Makes a volume in the trash one of its pool again, under its old name or another, and records
/// it. Returns the volume.
pub async fn restore_volume(
    store: &Store,
    storage: &dyn Storage,
    pool: &PoolName,
    id: &TrashId,
    to: Option<&VolumeName>,
) -> Done<VolumeId> {
    let entry = find(store, storage, pool, id).await?;
    let name = VolumeName::parse(to.unwrap_or(&entry.name).as_str()).map_err(refused)?;
    require_free_volume_name(name.as_str()).map_err(ChangeError::Refused)?;
    let volume = VolumeId { pool: pool.clone(), volume: name };
    // What is replaced this moment is given back under its own name, and not taken away.
    let was = VolumeId { pool: pool.clone(), volume: entry.name };
    for name in [&volume, &was] {
        check_not_held(&store.view(), name, None).map_err(refused)?;
    }
    if store.is_dry() {
        // It has its room already.
        check_new(storage, &volume, 0, true).await.map_err(refused)?;
        return Ok(volume);
    }
    let restored = storage.restore(pool, id, &volume.volume).await;
    record_new(store, storage, &volume, restored).await?;
    Ok(volume)
}

/// Removes a volume in the trash for good. Returns what it was.
pub async fn purge_volume(
    store: &Store,
    storage: &dyn Storage,
    pool: &PoolName,
    id: &TrashId,
) -> Done<TrashedVolume> {
    let entry = find(store, storage, pool, id).await?;
    let volume = entry.volume();
    // Until the new contents of a volume have its name, the old ones may be needed; and nobody here
    // knows what another version needs.
    match store.view().holds.get(&volume) {
        Some(hold) if matches!(hold.purpose, Purpose::Fill { .. } | Purpose::Other) => {
            return Err(refused(Held { volume, purpose: hold.purpose.clone() }));
        }
        _ => {}
    }
    if !store.is_dry() {
        storage.purge(pool, id).await.map_err(refused)?;
    }
    Ok(entry)
}
