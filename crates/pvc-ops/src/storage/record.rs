//! From what the storage says of a volume to its record.

use std::collections::BTreeMap;

use pvc_model::cluster::Cluster;
use pvc_model::hold::{Held, Purpose, VolumeHold};
use pvc_model::storage::{SnapshotName, VolumeId, VolumeRecord};
use pvc_ports::{Storage, StorageCluster, StorageError, VolumeInfo};
use pvc_store::{Change, ChangeError, Changes, Store, StoreError, snapshot_text, volume_text};

use super::{Done, StorageRefusal, refused, require_pool};

/// Number of times that a volume is looked at anew because its record was changed meanwhile.
const TRIES: u32 = 10;

/// Snapshots of a volume that get a record if the storage has them and none tells of them.
///
/// One that is not recorded may be about to go: whoever removes it takes its record first, and
/// whoever makes it may have to take it back. To one that is recorded a volume may be rolled back.
#[derive(Clone, Copy)]
enum Added<'a> {
    None,
    This(&'a SnapshotName),
    All,
}

/// Makes the records say whether `volume` is there, how it is, and which of its snapshots are gone;
/// one that has no record yet gets it with all its snapshots, and its pool with it. Tells whether
/// it is there. The record of a snapshot that there is one of already is left as it is: a snapshot
/// does not change.
///
/// # Errors
/// If the store holds no cluster, whose records these would be: a record does not begin one.
pub async fn record_volume(store: &Store, storage: &dyn Storage, volume: &VolumeId) -> Done<bool> {
    record(store, storage, volume, true, Added::None).await
}

/// Does the same as [`record_volume`], and records all snapshots that are there: of a volume that
/// was renamed, for those who took them may have known it by another name.
pub async fn record_whole(store: &Store, storage: &dyn Storage, volume: &VolumeId) -> Done<bool> {
    record(store, storage, volume, true, Added::All).await
}

/// Does the same as [`record_volume`], and records `snapshot` if it is there.
pub(super) async fn record_snapshot(
    store: &Store,
    storage: &dyn Storage,
    volume: &VolumeId,
    snapshot: &SnapshotName,
) -> Done<bool> {
    record(store, storage, volume, true, Added::This(snapshot)).await
}

/// Makes the records say how a volume is, whatever they said before: one that the storage has and
/// no record tells of gets its record back, and the record of one that is gone goes, too.
pub async fn scan(store: &Store, storage: &dyn Storage, volume: &VolumeId) -> Done<()> {
    let view = store.fresh().await?;
    require_pool(&view, &volume.pool).map_err(ChangeError::Refused)?;
    let is_recorded = view.volumes.contains_key(volume);
    let is_there = match store.is_dry() {
        true => look(storage, volume, None).await.map_err(refused)?.is_some(),
        false => record(store, storage, volume, false, Added::All).await?,
    };
    match is_there || is_recorded {
        true => Ok(()),
        false => Err(refused(StorageError::NoVolume { volume: volume.clone() })),
    }
}

/// Does the same as [`scan`], and lets go of a volume that is held for what this version does not
/// know, also of one that is gone. Nobody else does that where no node has such a version, or the
/// hold is damaged. Returns whether it was held.
///
/// # Errors
/// If it is held for what this version knows: that has an end of its own. If somebody has it open,
/// or has held it anew since it was looked at: then somebody is at work there.
pub async fn scan_and_let_go(
    store: &Store,
    storage: &dyn Storage,
    volume: &VolumeId,
) -> Done<bool> {
    let view = store.fresh().await?;
    let Some(seen) = view.holds.get(volume) else {
        scan(store, storage, volume).await?;
        return Ok(false);
    };
    let_go_of_unknown(&view, seen).map_err(ChangeError::Refused)?;
    match scan(store, storage, volume).await {
        Err(ChangeError::Refused(StorageRefusal::Storage(StorageError::NoVolume { .. }))) => {}
        done => done?,
    }
    match storage.check_unused(volume).await {
        Ok(()) | Err(StorageError::NoVolume { .. } | StorageError::NoPool { .. }) => {}
        Err(error) => return Err(refused(error)),
    }
    store.change(|cluster| let_go_of_unknown(cluster, seen)).await
}

/// Lets go of the hold that was `seen`, and of no other.
fn let_go_of_unknown(
    cluster: &Cluster,
    seen: &VolumeHold,
) -> Result<(Changes, bool), StorageRefusal> {
    let mut changes = Changes::new();
    let Some(hold) = cluster.holds.get(&seen.volume) else { return Ok((changes, false)) };
    if hold.purpose != Purpose::Other || hold.by != seen.by {
        return Err(Held { volume: seen.volume.clone(), purpose: hold.purpose.clone() }.into());
    }
    changes.push(Change::ReleaseVolume(seen.volume.clone()));
    Ok((changes, true))
}

/// Records the volume after an act on it, also after one that failed, which may have done a part of
/// it. Returns what came of the act. A dry run records nothing.
pub(super) async fn after<T>(
    store: &Store,
    storage: &dyn Storage,
    volume: &VolumeId,
    done: Done<T>,
) -> Done<T> {
    if store.is_dry() {
        return done;
    }
    let recorded = record_volume(store, storage, volume).await;
    let done = done?;
    recorded.map(|_| done)
}

/// The record was changed while the storage was asked: what it said may be older than that.
struct Overtaken;

async fn record(
    store: &Store,
    storage: &dyn Storage,
    volume: &VolumeId,
    keep_snapshots: bool,
    added: Added<'_>,
) -> Done<bool> {
    if !store.is_initialized() {
        return Err(ChangeError::Store(StoreError::NotInitialized));
    }
    for _ in 0..TRIES {
        let view = store.view();
        let before = view.volumes.get(volume).cloned();
        let has_pool = view.pools.contains_key(&volume.pool);
        let kept = before.as_deref().filter(|_| keep_snapshots);
        let mut found = look(storage, volume, kept).await.map_err(refused)?;
        if let Some(found) = &mut found {
            // Nobody's: of a moment that may be no whole one, and gone soon.
            found.snapshots.retain(|name, _| !name.is_passing());
        }
        if let (Some(found), Some(before)) = (&mut found, &before) {
            found.snapshots.retain(|name, _| match added {
                _ if before.snapshots.iter().any(|(recorded, _)| recorded == name) => true,
                // What a copy-on-write clone stands on: nobody else makes or removes it.
                _ if name.is_base() => true,
                Added::None => false,
                Added::This(one) => name == one,
                Added::All => true,
            });
        }
        let decide = |cluster: &Cluster| {
            // A pool that was removed meanwhile does not come back with what was found in it.
            let is_as_before = cluster.volumes.get(volume) == before.as_ref()
                && cluster.pools.contains_key(&volume.pool) == has_pool;
            match is_as_before {
                true => Ok((differences(cluster, volume, found.as_ref()), ())),
                false => Err(Overtaken),
            }
        };
        match store.change(decide).await {
            Ok(()) => return Ok(found.is_some()),
            Err(ChangeError::Refused(Overtaken)) => {}
            Err(ChangeError::Conflict { tries }) => return Err(ChangeError::Conflict { tries }),
            Err(ChangeError::Store(error)) => return Err(ChangeError::Store(error)),
        }
    }
    Err(ChangeError::Conflict { tries: TRIES })
}

/// The texts of a volume's record, and of those of its snapshots.
struct Found {
    stats: String,
    snapshots: BTreeMap<SnapshotName, String>,
}

/// Returns what the storage says of the volume; `None` if there is none. Snapshots that are `kept`
/// are not asked about.
async fn look(
    storage: &dyn Storage,
    volume: &VolumeId,
    kept: Option<&VolumeRecord>,
) -> Result<Option<Found>, StorageError> {
    match look_at(storage, volume, kept).await {
        Ok(found) => Ok(Some(found)),
        Err(StorageError::NoVolume { .. } | StorageError::NoPool { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn look_at(
    storage: &dyn Storage,
    volume: &VolumeId,
    kept: Option<&VolumeRecord>,
) -> Result<Found, StorageError> {
    let info = storage.volume(volume).await?;
    match storage.cluster() {
        Some(cluster) => in_its_words(cluster, &info, kept).await,
        None => Ok(in_our_words(&info)),
    }
}

fn in_our_words(info: &VolumeInfo) -> Found {
    let text = |found| snapshot_text(&info.id, found);
    let snapshots = info.snapshots.iter().map(|found| (found.name.clone(), text(found)));
    Found { stats: volume_text(info), snapshots: snapshots.collect() }
}

async fn in_its_words(
    cluster: &dyn StorageCluster,
    info: &VolumeInfo,
    kept: Option<&VolumeRecord>,
) -> Result<Found, StorageError> {
    let stats = cluster.volume_record(&info.id).await?;
    let kept = kept.iter().flat_map(|record| &record.snapshots);
    // A legacy peer may have recorded a snapshot without ever asking about it.
    let kept: BTreeMap<&SnapshotName, &str> = kept
        .map(|(name, text)| (name, &**text))
        .filter(|(_, text)| text.starts_with('{'))
        .collect();
    let mut snapshots = BTreeMap::new();
    for name in info.snapshots.iter().map(|found| &found.name) {
        let text = match kept.get(name) {
            Some(text) => (*text).to_owned(),
            None => match cluster.snapshot_record(&info.id, name).await {
                Ok(text) => text,
                Err(StorageError::NoSnapshot { .. }) => continue,
                Err(error) => return Err(error),
            },
        };
        snapshots.insert(name.clone(), text);
    }
    Ok(Found { stats, snapshots })
}

fn differences(cluster: &Cluster, id: &VolumeId, found: Option<&Found>) -> Changes {
    let mut changes = Changes::new();
    let recorded = cluster.volumes.get(id);
    let Some(found) = found else {
        if recorded.is_some() {
            changes.push(Change::RemoveVolume(id.clone()));
        }
        return changes;
    };
    if !cluster.pools.contains_key(&id.pool) {
        let (pgs, tier) = ("0".to_owned(), "default".to_owned());
        changes.push(Change::PutPool { name: id.pool.clone(), pgs, tier });
    }
    if recorded.is_none_or(|record| *record.stats != *found.stats) {
        changes.push(Change::PutVolume { id: id.clone(), stats: found.stats.clone() });
    }
    let recorded = recorded.map(|record| &**record);
    snapshot_differences(&mut changes, id, recorded, &found.snapshots);
    changes
}

/// Makes the records of a volume's snapshots say what was found of them.
pub fn snapshot_differences(
    changes: &mut Changes,
    id: &VolumeId,
    recorded: Option<&VolumeRecord>,
    found: &BTreeMap<SnapshotName, String>,
) {
    let recorded: BTreeMap<&SnapshotName, &str> = recorded
        .iter()
        .flat_map(|record| &record.snapshots)
        .map(|(name, text)| (name, &**text))
        .collect();
    for (name, text) in found {
        if recorded.get(name) != Some(&text.as_str()) {
            let (volume, name, stats) = (id.clone(), name.clone(), text.clone());
            changes.push(Change::PutSnapshot { volume, name, stats });
        }
    }
    for name in recorded.into_keys().filter(|name| !found.contains_key(*name)) {
        changes.push(Change::RemoveSnapshot { volume: id.clone(), name: name.clone() });
    }
}
