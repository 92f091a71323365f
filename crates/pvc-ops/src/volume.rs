//! Records of volumes that are made and removed beside the API.

use std::convert::Infallible;

use pvc_model::cluster::Cluster;
use pvc_model::storage::VolumeId;
use pvc_ports::{Storage, StorageError};
use pvc_store::{Change, ChangeError, Changes, Store, StoreError};

/// Reason why the records do not say what volumes there are.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Store(#[from] ChangeError<Infallible>),
}

/// Makes the records say whether `volume` is there; its pool gets a record with it if it has none
/// yet. Nothing to do where the volumes are this machine's own: its node daemon looks after their
/// records.
///
/// # Errors
/// If the store holds no cluster, whose records these would be: a record does not begin one.
pub async fn record_volume(
    store: &Store,
    storage: &dyn Storage,
    volume: &VolumeId,
) -> Result<(), RecordError> {
    let Some(cluster) = storage.cluster() else { return Ok(()) };
    if !store.is_initialized() {
        return Err(ChangeError::Store(StoreError::NotInitialized).into());
    }
    let stats = match cluster.volume_record(volume).await {
        Ok(stats) => Some(stats),
        Err(StorageError::NoVolume { .. } | StorageError::NoPool { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let decide = |known: &Cluster| {
        let mut changes = Changes::new();
        match &stats {
            Some(stats) => {
                if !known.pools.contains_key(&volume.pool) {
                    let (pgs, tier) = ("0".to_owned(), "default".to_owned());
                    changes.push(Change::PutPool { name: volume.pool.clone(), pgs, tier });
                }
                changes.push(Change::PutVolume { id: volume.clone(), stats: stats.clone() });
            }
            None if known.volumes.contains_key(volume) => {
                changes.push(Change::RemoveVolume(volume.clone()));
            }
            None => {}
        }
        Ok((changes, ()))
    };
    Ok(store.change(decide).await?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pvc_embedded::EmbeddedTree;
    use pvc_model::storage::RbdAccess;
    use pvc_testkit::{MemoryStorage, ScriptedCluster, SeededRandom, TokioClock};

    use super::*;

    #[tokio::test]
    async fn a_volume_is_recorded_with_its_pool_and_forgotten_without_it() {
        let access = RbdAccess {
            monitors: Vec::new(),
            port: 6789,
            user: "libvirt".to_owned(),
            secret: None,
        };
        let cluster = Arc::new(ScriptedCluster::new(access));
        let storage = MemoryStorage::of_cluster(cluster);
        let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(1)));
        let store = Store::open(EmbeddedTree::in_memory().connect(), clock, random).await.unwrap();
        let disk = VolumeId::parse("vms/a").unwrap();
        storage.create(&disk, 4096, false).await.unwrap();
        let refused = record_volume(&store, &storage, &disk).await;
        assert!(refused.is_err() && store.view().pools.is_empty(), "a record begins no cluster");
        store.initialize(false).await.unwrap();
        for _ in 0..2 {
            record_volume(&store, &storage, &disk).await.unwrap();
            let view = store.view();
            assert_eq!(&*view.volumes[&disk].stats, r#"{"name":"a","size":4096}"#);
            assert!(view.pools.contains_key(&disk.pool));
        }
        storage.remove(&disk).await.unwrap();
        for _ in 0..2 {
            record_volume(&store, &storage, &disk).await.unwrap();
            assert!(store.view().volumes.is_empty() && store.view().pools.contains_key(&disk.pool));
        }
    }
}
