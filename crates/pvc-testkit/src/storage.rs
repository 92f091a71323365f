use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use pvc_model::storage::{PoolName, SnapshotName, VolumeId, VolumeName};
use pvc_ports::{
    Attachment, ImageFormat, PoolInfo, SnapshotInfo, Storage, StorageCluster, StorageError, VolumeInfo,
    VolumeLock,
};

use crate::ScriptedCluster;

#[derive(Debug, Clone, Default)]
struct Volume {
    size_bytes: u64,
    snapshots: Vec<SnapshotInfo>,
    locks: Vec<VolumeLock>,
}

#[derive(Default)]
struct Inner {
    pools: BTreeMap<PoolName, ()>,
    volumes: BTreeMap<VolumeId, Volume>,
    failing: bool,
    locks_take: Duration,
    removal_takes: Duration,
}

/// Volumes without contents: names, sizes, snapshots and locks are kept as the [`Storage`] contract says.
#[derive(Default)]
pub struct MemoryStorage {
    inner: Mutex<Inner>,
    cluster: Option<Arc<ScriptedCluster>>,
}

impl MemoryStorage {
    /// With one pool, `vms`.
    pub fn new() -> Self {
        let storage = MemoryStorage::default();
        storage.with(|inner| inner.pools.insert(PoolName::new("vms"), ()));
        storage
    }

    /// With a cluster behind the volumes, which are reached as it says.
    pub fn of_cluster(cluster: Arc<ScriptedCluster>) -> Self {
        MemoryStorage { cluster: Some(cluster), ..MemoryStorage::new() }
    }

    /// A volume of 1 GiB that somebody made earlier.
    pub fn insert(&self, volume: &str) {
        let id = VolumeId::from_record(volume).expect("tests name volumes as pool/volume");
        self.with(|inner| {
            inner.pools.insert(id.pool.clone(), ());
            inner.volumes.insert(id, Volume { size_bytes: 1 << 30, ..Volume::default() });
        });
    }

    /// Lets the holder with `address` have a lock on `volume`.
    pub fn lock(&self, volume: &str, address: &str) {
        let id = VolumeId::from_record(volume).expect("tests name volumes as pool/volume");
        let lock = VolumeLock {
            id: format!("auto {address}"),
            locker: "client.4711".to_owned(),
            address: address.to_owned(),
        };
        self.with(|inner| inner.volumes.entry(id).or_default().locks.push(lock));
    }

    /// While set, every call fails as if the storage did not answer.
    pub fn set_failing(&self, failing: bool) {
        self.with(|inner| inner.failing = failing);
    }

    /// From now on removing a volume takes so long.
    pub fn set_removal_takes(&self, time: Duration) {
        self.with(|inner| inner.removal_takes = time);
    }

    /// From now on asking for the locks of a volume takes so long.
    pub fn set_locks_take(&self, time: Duration) {
        self.with(|inner| inner.locks_take = time);
    }

    fn with<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> T {
        act(&mut self.inner.lock().expect("no test panics while holding it"))
    }

    fn reached<T>(&self, act: impl FnOnce(&mut Inner) -> Result<T, StorageError>) -> Result<T, StorageError> {
        self.with(|inner| match inner.failing {
            true => Err(StorageError::TimedOut { seconds: 10 }),
            false => act(inner),
        })
    }
}

impl Inner {
    fn volume(&mut self, id: &VolumeId) -> Result<&mut Volume, StorageError> {
        self.volumes.get_mut(id).ok_or_else(|| StorageError::NoVolume { volume: id.clone() })
    }

    fn add(&mut self, id: VolumeId, volume: Volume) -> Result<(), StorageError> {
        if !self.pools.contains_key(&id.pool) {
            return Err(StorageError::NoPool { pool: id.pool });
        }
        if self.volumes.contains_key(&id) {
            return Err(StorageError::VolumeExists { volume: id });
        }
        self.volumes.insert(id, volume);
        Ok(())
    }
}

fn beside(volume: &VolumeId, name: &VolumeName) -> VolumeId {
    VolumeId { pool: volume.pool.clone(), volume: name.clone() }
}

fn info(id: &VolumeId, volume: &Volume) -> VolumeInfo {
    VolumeInfo {
        id: id.clone(),
        size_bytes: volume.size_bytes,
        used_bytes: Some(0),
        snapshots: volume.snapshots.clone(),
    }
}

#[async_trait]
impl Storage for MemoryStorage {
    async fn pools(&self) -> Result<Vec<PoolInfo>, StorageError> {
        let full = |name: &PoolName| PoolInfo { name: name.clone(), stored_bytes: 0, free_bytes: 1 << 40 };
        self.reached(|inner| Ok(inner.pools.keys().map(full).collect()))
    }

    async fn pool(&self, pool: &PoolName) -> Result<PoolInfo, StorageError> {
        let found = self.pools().await?.into_iter().find(|info| info.name == *pool);
        found.ok_or_else(|| StorageError::NoPool { pool: pool.clone() })
    }

    async fn create_pool(&self, pool: &PoolName) -> Result<(), StorageError> {
        self.reached(|inner| match inner.pools.insert(pool.clone(), ()) {
            None => Ok(()),
            Some(()) => Err(StorageError::PoolExists { pool: pool.clone() }),
        })
    }

    async fn remove_pool(&self, pool: &PoolName) -> Result<(), StorageError> {
        self.reached(|inner| {
            let volumes = inner.volumes.keys().filter(|id| id.pool == *pool).count();
            if volumes > 0 {
                return Err(StorageError::PoolNotEmpty { pool: pool.clone(), volumes });
            }
            inner.pools.remove(pool).ok_or_else(|| StorageError::NoPool { pool: pool.clone() })
        })
    }

    async fn volumes(&self, pool: &PoolName) -> Result<Vec<VolumeInfo>, StorageError> {
        self.pool(pool).await?;
        self.reached(|inner| {
            let here = inner.volumes.iter().filter(|(id, _)| id.pool == *pool);
            Ok(here.map(|(id, volume)| info(id, volume)).collect())
        })
    }

    async fn volume(&self, volume: &VolumeId) -> Result<VolumeInfo, StorageError> {
        self.reached(|inner| inner.volume(volume).map(|found| info(volume, found)))
    }

    async fn create(&self, volume: &VolumeId, size_bytes: u64, _force: bool) -> Result<(), StorageError> {
        self.reached(|inner| inner.add(volume.clone(), Volume { size_bytes, ..Volume::default() }))
    }

    async fn resize(&self, volume: &VolumeId, size_bytes: u64, force: bool) -> Result<(), StorageError> {
        self.reached(|inner| {
            let found = inner.volume(volume)?;
            if size_bytes < found.size_bytes && !force {
                let from_bytes = found.size_bytes;
                let volume = volume.clone();
                return Err(StorageError::WouldShrink { volume, from_bytes, to_bytes: size_bytes });
            }
            found.size_bytes = size_bytes;
            Ok(())
        })
    }

    async fn clone_volume(
        &self,
        volume: &VolumeId,
        to: &VolumeName,
        _force: bool,
    ) -> Result<(), StorageError> {
        self.reached(|inner| {
            let size_bytes = inner.volume(volume)?.size_bytes;
            inner.add(beside(volume, to), Volume { size_bytes, ..Volume::default() })
        })
    }

    async fn rename(&self, volume: &VolumeId, to: &VolumeName) -> Result<(), StorageError> {
        self.reached(|inner| {
            let moved = inner.volume(volume)?.clone();
            inner.add(beside(volume, to), moved)?;
            inner.volumes.remove(volume);
            Ok(())
        })
    }

    async fn remove(&self, volume: &VolumeId) -> Result<(), StorageError> {
        let time = self.with(|inner| inner.removal_takes);
        if !time.is_zero() {
            tokio::time::sleep(time).await;
        }
        self.reached(|inner| {
            inner.volume(volume)?;
            inner.volumes.remove(volume);
            Ok(())
        })
    }

    async fn snapshot(&self, volume: &VolumeId, snapshot: &SnapshotName) -> Result<(), StorageError> {
        self.reached(|inner| {
            let found = inner.volume(volume)?;
            if found.snapshots.iter().any(|known| known.name == *snapshot) {
                let (volume, snapshot) = (volume.clone(), snapshot.clone());
                return Err(StorageError::SnapshotExists { volume, snapshot });
            }
            let size_bytes = found.size_bytes;
            found.snapshots.push(SnapshotInfo { name: snapshot.clone(), size_bytes });
            Ok(())
        })
    }

    async fn rename_snapshot(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
        to: &SnapshotName,
    ) -> Result<(), StorageError> {
        self.reached(|inner| {
            let found = inner.volume(volume)?;
            if found.snapshots.iter().any(|known| known.name == *to) {
                let (volume, snapshot) = (volume.clone(), to.clone());
                return Err(StorageError::SnapshotExists { volume, snapshot });
            }
            let known = found.snapshots.iter_mut().find(|known| known.name == *snapshot);
            known.ok_or_else(|| no_snapshot(volume, snapshot))?.name = to.clone();
            Ok(())
        })
    }

    async fn remove_snapshot(&self, volume: &VolumeId, snapshot: &SnapshotName) -> Result<(), StorageError> {
        self.reached(|inner| {
            let found = inner.volume(volume)?;
            let before = found.snapshots.len();
            found.snapshots.retain(|known| known.name != *snapshot);
            if found.snapshots.len() == before { Err(no_snapshot(volume, snapshot)) } else { Ok(()) }
        })
    }

    async fn roll_back(&self, volume: &VolumeId, snapshot: &SnapshotName) -> Result<(), StorageError> {
        self.reached(|inner| {
            let found = inner.volume(volume)?;
            let known = found.snapshots.iter().find(|known| known.name == *snapshot);
            found.size_bytes = known.ok_or_else(|| no_snapshot(volume, snapshot))?.size_bytes;
            Ok(())
        })
    }

    async fn import(
        &self,
        volume: &VolumeId,
        _source: &Path,
        _format: ImageFormat,
        force: bool,
    ) -> Result<(), StorageError> {
        self.create(volume, 1 << 30, force).await
    }

    async fn attachment(&self, volume: &VolumeId) -> Result<Attachment, StorageError> {
        self.reached(|inner| {
            inner.volume(volume)?;
            Ok(match &self.cluster {
                Some(cluster) => Attachment::Rbd(cluster.access().clone()),
                None => Attachment::File { path: PathBuf::from(format!("/volumes/{volume}")) },
            })
        })
    }

    async fn locks(&self, volume: &VolumeId) -> Result<Vec<VolumeLock>, StorageError> {
        tokio::time::sleep(self.with(|inner| inner.locks_take)).await;
        self.reached(|inner| Ok(inner.volume(volume)?.locks.clone()))
    }

    async fn break_lock(&self, volume: &VolumeId, lock: &VolumeLock) -> Result<(), StorageError> {
        self.reached(|inner| {
            inner.volume(volume)?.locks.retain(|held| held != lock);
            Ok(())
        })
    }

    fn cluster(&self) -> Option<&dyn StorageCluster> {
        self.cluster.as_deref().map(|cluster| cluster as &dyn StorageCluster)
    }
}

fn no_snapshot(volume: &VolumeId, snapshot: &SnapshotName) -> StorageError {
    StorageError::NoSnapshot { volume: volume.clone(), snapshot: snapshot.clone() }
}
