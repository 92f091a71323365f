//! Pools.

use pvc_model::cluster::Cluster;
use pvc_model::pool::{PoolSpec, check_placement_groups};
use pvc_model::storage::{PoolName, VolumeId};
use pvc_ports::{Course, Storage, StorageCluster, StorageError, TrashedVolume};
use pvc_store::{Change, ChangeError, Changes, Store};

use super::{Done, StorageRefusal, refused, require_no_task, require_pool, require_unused};

/// Number of volumes whose records go at once with a pool: a request to the store is not endless.
const RECORDS_AT_ONCE: usize = 50;

/// Number of times that placement groups are set anew because somebody else has set them meanwhile.
const TRIES: u32 = 10;

/// Makes a pool and records it. On one machine alone a pool is a folder, and has neither copies nor
/// placement groups: what is said of them is checked, and means nothing.
///
/// A pool that is there as asked and is not recorded was made by an ask that did not come to its
/// end: it is recorded now.
pub async fn create_pool(store: &Store, storage: &dyn Storage, spec: &PoolSpec) -> Done<()> {
    let name = PoolName::parse(spec.name.as_str()).map_err(refused)?;
    check_placement_groups(spec.placement_groups).map_err(refused)?;
    let view = store.fresh().await?;
    require_new(&view, &name).map_err(ChangeError::Refused)?;
    let (pgs, tier) = match storage.cluster() {
        Some(cluster) => {
            spec.replication.check_for_cluster().map_err(refused)?;
            if !store.is_dry() {
                cluster.make_pool(spec).await.map_err(refused)?;
            }
            (spec.placement_groups.to_string(), spec.tier.as_str().to_owned())
        }
        None => {
            if !store.is_dry() {
                make_folder(storage, &name).await?;
            }
            ("0".to_owned(), "default".to_owned())
        }
    };
    let is_same = |cluster: &Cluster| {
        let record = cluster.pools.get(&name);
        record.is_some_and(|record| record.pgs == pgs && record.tier == tier)
    };
    let decide = |cluster: &Cluster| {
        let mut changes = Changes::new();
        // Whoever looks after the records of this machine may have been faster.
        if !is_same(cluster) {
            require_new(cluster, &name)?;
            let (name, pgs, tier) = (name.clone(), pgs.clone(), tier.clone());
            changes.push(Change::PutPool { name, pgs, tier });
        }
        Ok((changes, ()))
    };
    store.change(decide).await
}

fn require_new(cluster: &Cluster, pool: &PoolName) -> Result<(), StorageRefusal> {
    match cluster.pools.contains_key(pool) {
        true => Err(StorageError::PoolExists { pool: pool.clone() }.into()),
        false => Ok(()),
    }
}

async fn make_folder(storage: &dyn Storage, pool: &PoolName) -> Done<()> {
    match storage.create_pool(pool).await {
        Ok(()) | Err(StorageError::PoolExists { .. }) => Ok(()),
        Err(error) => Err(refused(error)),
    }
}

/// Gives a pool another number of placement groups. Of two asks at once the one that records its
/// number last has set it last as well: if any was recorded since before it was set, be it the same
/// as before, it is set anew.
pub async fn set_placement_groups(
    store: &Store,
    storage: &dyn Storage,
    pool: &PoolName,
    count: u32,
) -> Done<()> {
    check_placement_groups(count).map_err(refused)?;
    for _ in 0..TRIES {
        let view = store.fresh().await?;
        let before = store.placement_groups_written(pool);
        require_pool(&view, pool).map_err(ChangeError::Refused)?;
        let ceph = in_cluster(storage).map_err(ChangeError::Refused)?;
        if store.is_dry() {
            return Ok(());
        }
        ceph.set_placement_groups(pool, count).await.map_err(refused)?;
        let decide = |cluster: &Cluster| {
            require_pool(cluster, pool)?;
            // What is in view by now is not older than `cluster`, whose version the write demands.
            let is_as_before = store.placement_groups_written(pool) == before;
            let mut changes = Changes::new();
            if is_as_before {
                let tier = cluster.pools[pool].tier.clone();
                let (name, pgs) = (pool.clone(), count.to_string());
                changes.push(Change::PutPool { name, pgs, tier });
            }
            Ok::<_, StorageRefusal>((changes, is_as_before))
        };
        if store.change(decide).await? {
            return Ok(());
        }
    }
    Err(ChangeError::Conflict { tries: TRIES })
}

fn in_cluster(storage: &dyn Storage) -> Result<&dyn StorageCluster, StorageRefusal> {
    storage.cluster().ok_or(StorageRefusal::NoCluster)
}

/// Numbers of volumes that went with a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemovedPool {
    pub volumes: usize,
    /// Volumes that had been removed before and were still kept.
    pub trashed: usize,
}

/// Removes a pool with its volumes and their snapshots, one volume after the other with its record,
/// and with what is in its trash; the pool goes last. Nothing of it is kept. What was left of it by
/// an ask that did not come to its end goes now. The course counts volumes.
///
/// # Errors
/// While the definition of a VM names a volume of it, unless that is forced; while such a VM is not
/// off, in any case. If the storage is known to remove no pool, or not this one: nothing is gone
/// then.
pub async fn remove_pool(
    store: &Store,
    storage: &dyn Storage,
    pool: &PoolName,
    force: bool,
    course: &Course,
) -> Done<RemovedPool> {
    let view = store.fresh().await?;
    require_pool(&view, pool).map_err(ChangeError::Refused)?;
    let is_meant = |volume: &VolumeId| volume.pool == *pool;
    require_unused(&view, is_meant, force).map_err(ChangeError::Refused)?;
    require_no_task(&view, is_meant).map_err(ChangeError::Refused)?;
    match storage.check_pool_removal(pool).await {
        Ok(()) | Err(StorageError::NoPool { .. }) => {}
        Err(error) => return Err(refused(error)),
    }
    let volumes: Vec<VolumeId> = match storage.volumes(pool).await {
        Ok(volumes) => volumes.into_iter().map(|volume| volume.id).collect(),
        Err(StorageError::NoPool { .. }) => Vec::new(),
        Err(error) => return Err(refused(error)),
    };
    let trashed = match storage.trashed(pool).await {
        Ok(trashed) => trashed,
        Err(StorageError::NoPool { .. }) => Vec::new(),
        Err(error) => return Err(refused(error)),
    };
    if store.is_dry() {
        return Ok(RemovedPool { volumes: volumes.len(), trashed: trashed.len() });
    }
    let count = trashed.len();
    let mut trash = trashed;
    let mut counter = Counter { course, gone: 0, of: volumes.len() + count };
    let gone = remove_all(store, storage, volumes, &mut trash, &mut counter).await?;
    while !trash.is_empty() {
        let before = trash.len();
        let failed = purge_round(storage, &mut trash, &mut counter).await;
        if let Some(refusal) = failed.filter(|_| trash.len() == before) {
            return Err(ChangeError::Refused(refusal));
        }
    }
    match storage.remove_pool(pool).await {
        Ok(()) | Err(StorageError::NoPool { .. }) => {}
        Err(error) => return Err(refused(error)),
    }
    let decide = |cluster: &Cluster| {
        let mut changes = Changes::new();
        if cluster.pools.contains_key(pool) {
            changes.push(Change::RemovePool(pool.clone()));
        }
        Ok((changes, ()))
    };
    store.change(decide).await?;
    Ok(RemovedPool { volumes: gone, trashed: count })
}

/// Count of the volumes that are gone, for whoever waits.
struct Counter<'a> {
    course: &'a Course,
    gone: usize,
    of: usize,
}

impl Counter<'_> {
    fn one_is_gone(&mut self) {
        self.gone += 1;
        self.course.count(self.gone, self.of);
    }
}

/// Removes volumes with their records, a clone before the volume that it stands on: in as many
/// rounds as clones stand on each other. Clones in the trash that are in the way are purged.
/// Returns the number of volumes.
async fn remove_all(
    store: &Store,
    storage: &dyn Storage,
    volumes: Vec<VolumeId>,
    trash: &mut Vec<TrashedVolume>,
    counter: &mut Counter<'_>,
) -> Done<usize> {
    let (mut left, mut gone) = (volumes, 0);
    while !left.is_empty() {
        let before = left.len();
        let mut with_clones = Vec::new();
        for volumes in left.chunks(RECORDS_AT_ONCE) {
            let round = remove_volumes(storage, volumes, counter).await;
            gone += round.removed.len();
            store.change(|cluster| Ok((forget(cluster, &round.removed), ()))).await?;
            if let Some((volume, error)) = round.failure {
                return Err(left_volume(volume, gone, error));
            }
            with_clones.extend(round.with_clones);
        }
        if with_clones.len() == before {
            let kept = trash.len();
            let failed = match with_clones.iter().any(|(_, error)| is_of_trash(error)) {
                true => purge_round(storage, trash, counter).await,
                false => None,
            };
            if trash.len() == kept {
                let (volume, error) = with_clones.swap_remove(0);
                let has_clones = left_volume(volume, gone, error);
                return Err(failed.map_or(has_clones, ChangeError::Refused));
            }
        }
        left = with_clones.into_iter().map(|(volume, _)| volume).collect();
    }
    Ok(gone)
}

/// Whether one of the clones that are in the way is in the trash.
fn is_of_trash(error: &StorageError) -> bool {
    match error {
        StorageError::HasClones { clones, .. } => clones.iter().any(|one| one.is_in_trash),
        _ => false,
    }
}

fn left_volume(volume: VolumeId, gone: usize, error: StorageError) -> ChangeError<StorageRefusal> {
    ChangeError::Refused(StorageRefusal::Left { volume, gone, source: Box::new(error) })
}

/// Purges each entry of the trash that can be, and leaves the others in `trash`. Returns the first
/// failure.
async fn purge_round(
    storage: &dyn Storage,
    trash: &mut Vec<TrashedVolume>,
    counter: &mut Counter<'_>,
) -> Option<StorageRefusal> {
    let mut first = None;
    for entry in std::mem::take(trash) {
        match storage.purge(&entry.pool, &entry.id).await {
            Ok(()) | Err(StorageError::NoTrashed { .. } | StorageError::NoPool { .. }) => {
                counter.one_is_gone();
            }
            Err(error) => {
                let (pool, id) = (entry.pool.clone(), entry.id.clone());
                let source = Box::new(error);
                first = first.or(Some(StorageRefusal::LeftInTrash { pool, id, source }));
                trash.push(entry);
            }
        }
    }
    first
}

/// Outcome of a round over volumes.
#[derive(Default)]
struct Round<'a> {
    removed: Vec<&'a VolumeId>,
    /// Volumes that clones stand on, with what the storage said.
    with_clones: Vec<(VolumeId, StorageError)>,
    /// The volume that could not be removed for another reason, which ended the round.
    failure: Option<(VolumeId, StorageError)>,
}

async fn remove_volumes<'a>(
    storage: &dyn Storage,
    volumes: &'a [VolumeId],
    counter: &mut Counter<'_>,
) -> Round<'a> {
    let mut round = Round::default();
    for volume in volumes {
        match storage.remove(volume).await {
            Ok(()) | Err(StorageError::NoVolume { .. }) => {
                round.removed.push(volume);
                counter.one_is_gone();
            }
            // One that is in another pool does not go with this one.
            Err(StorageError::HasClones { volume, clones })
                if clones.iter().all(|clone| clone.volume.pool == volume.pool) =>
            {
                let error = StorageError::HasClones { volume: volume.clone(), clones };
                round.with_clones.push((volume, error));
            }
            Err(error) => {
                round.failure = Some((volume.clone(), error));
                break;
            }
        }
    }
    round
}

fn forget(cluster: &Cluster, volumes: &[&VolumeId]) -> Changes {
    let mut changes = Changes::new();
    for volume in volumes.iter().filter(|volume| cluster.volumes.contains_key(**volume)) {
        changes.push(Change::RemoveVolume((*volume).clone()));
    }
    changes
}
