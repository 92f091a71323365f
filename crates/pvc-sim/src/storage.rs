//! Ceph, as far as guests are concerned: volumes, who holds them for writing, and who is shut out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use pvc_model::storage::{PoolName, RbdAccess, SnapshotName, VolumeId, VolumeName};
use pvc_ports::{Attachment, ImageFormat, PoolInfo, Storage, StorageError, VolumeInfo, VolumeLock};

use crate::process::Gate;
use crate::state::State;

/// How long a program waits for a Ceph that is silent.
const PATIENCE: Duration = Duration::from_secs(30);

/// A client of Ceph: one life of one guest on one host.
pub(crate) type ClientId = u64;

#[derive(Debug, Clone)]
pub(crate) struct Lock {
    pub client: ClientId,
    pub host: usize,
}

#[derive(Default)]
pub(crate) struct Ceph {
    /// Each volume with who has it for writing.
    pub volumes: BTreeMap<VolumeId, Option<Lock>>,
    /// What these clients write is refused.
    pub blocked: BTreeSet<ClientId>,
    pub silent: bool,
    next_client: ClientId,
}

/// The address of a host on the storage network.
pub(crate) fn storage_address(host: usize) -> String {
    format!("10.0.1.{}", host + 1)
}

impl Ceph {
    pub fn new_client(&mut self) -> ClientId {
        self.next_client += 1;
        self.next_client
    }

    /// Gives the volume to a client, unless another one has it that is not shut out.
    pub fn take(&mut self, volume: &VolumeId, lock: &Lock) -> Result<(), String> {
        let Some(held) = self.volumes.get_mut(volume) else {
            return Err(format!("error opening image {volume}: No such file or directory"));
        };
        match held {
            Some(other) if other.client != lock.client && !self.blocked.contains(&other.client) => {
                Err(format!("image {volume} is locked by client.{}", other.client))
            }
            _ => {
                *held = Some(lock.clone());
                Ok(())
            }
        }
    }

    /// The client lets go of everything.
    pub fn release(&mut self, client: ClientId) {
        for held in self.volumes.values_mut() {
            if held.as_ref().is_some_and(|lock| lock.client == client) {
                *held = None;
            }
        }
    }

    /// Hands everything of one client to another: the end of a migration.
    pub fn hand_over(&mut self, from: ClientId, to: &Lock) {
        for held in self.volumes.values_mut() {
            if held.as_ref().is_some_and(|lock| lock.client == from) {
                *held = Some(to.clone());
            }
        }
    }
}

impl State {
    /// A machine outside of the cluster takes the volume.
    pub fn lock_by_stranger(&mut self, volume: &VolumeId) {
        let (client, host) = (self.ceph.new_client(), self.hosts.len());
        self.ceph.volumes.insert(volume.clone(), Some(Lock { client, host }));
    }

    /// The number of the host that has the VM's volume for writing; of a machine outside of the cluster, one more
    /// than there are hosts.
    pub fn holder_of_volume(&self, vm: usize) -> Option<usize> {
        let volume = self.migrations.volumes.get(&crate::cluster::vm_uuid(vm))?;
        self.ceph.volumes.get(volume)?.as_ref().map(|lock| lock.host)
    }

    fn reaches_ceph(&self, host: usize) -> bool {
        !self.ceph.silent && self.hosts[host].cables.storage
    }
}

/// Ceph as the daemon of one host reaches it.
pub(crate) struct Volumes {
    pub gate: Gate,
    pub host: usize,
}

impl Volumes {
    async fn reached<T>(
        &self,
        act: impl FnOnce(&mut State) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let (takes, answers) =
            self.gate.call(|state| (state.chance.millis(5, 60), state.reaches_ceph(self.host))).await;
        if answers {
            self.gate.sleep(takes).await;
            if self.gate.call(|state| state.reaches_ceph(self.host)).await {
                return self.gate.call(act).await;
            }
        }
        self.gate.sleep(PATIENCE).await;
        Err(StorageError::TimedOut { seconds: PATIENCE.as_secs() })
    }
}

fn unsupported<T>(doing: &str) -> Result<T, StorageError> {
    let source = std::io::Error::other("the simulated storage keeps no contents");
    Err(StorageError::Io { doing: doing.to_owned(), source })
}

#[async_trait]
impl Storage for Volumes {
    async fn pools(&self) -> Result<Vec<PoolInfo>, StorageError> {
        let info = PoolInfo { name: PoolName::new("vms"), stored_bytes: 0, free_bytes: 1 << 40 };
        self.reached(|_| Ok(vec![info])).await
    }

    async fn pool(&self, pool: &PoolName) -> Result<PoolInfo, StorageError> {
        let found = self.pools().await?.into_iter().find(|info| info.name == *pool);
        found.ok_or_else(|| StorageError::NoPool { pool: pool.clone() })
    }

    async fn create_pool(&self, _pool: &PoolName) -> Result<(), StorageError> {
        unsupported("making a pool")
    }

    async fn remove_pool(&self, _pool: &PoolName) -> Result<(), StorageError> {
        unsupported("removing a pool")
    }

    async fn volumes(&self, _pool: &PoolName) -> Result<Vec<VolumeInfo>, StorageError> {
        let info = |id: &VolumeId| VolumeInfo {
            id: id.clone(),
            size_bytes: 1 << 30,
            used_bytes: Some(0),
            snapshots: Vec::new(),
        };
        self.reached(|state| Ok(state.ceph.volumes.keys().map(info).collect())).await
    }

    async fn volume(&self, volume: &VolumeId) -> Result<VolumeInfo, StorageError> {
        let found = self.volumes(&volume.pool).await?.into_iter().find(|info| info.id == *volume);
        found.ok_or_else(|| StorageError::NoVolume { volume: volume.clone() })
    }

    async fn create(&self, volume: &VolumeId, _size: u64, _force: bool) -> Result<(), StorageError> {
        let volume = volume.clone();
        self.reached(|state| {
            state.ceph.volumes.insert(volume, None);
            Ok(())
        })
        .await
    }

    async fn resize(&self, _volume: &VolumeId, _size: u64, _force: bool) -> Result<(), StorageError> {
        unsupported("resizing a volume")
    }

    async fn clone_volume(&self, _: &VolumeId, _: &VolumeName, _: bool) -> Result<(), StorageError> {
        unsupported("cloning a volume")
    }

    async fn rename(&self, volume: &VolumeId, to: &VolumeName) -> Result<(), StorageError> {
        let (volume, renamed) = (volume.clone(), VolumeId { pool: volume.pool.clone(), volume: to.clone() });
        self.reached(|state| {
            if state.ceph.volumes.contains_key(&renamed) {
                return Err(StorageError::VolumeExists { volume: renamed });
            }
            let Some(held) = state.ceph.volumes.remove(&volume) else {
                return Err(StorageError::NoVolume { volume });
            };
            state.note(format!("ceph: volume {volume} is called {renamed} now"));
            state.ceph.volumes.insert(renamed.clone(), held);
            for own in state.migrations.volumes.values_mut().filter(|own| **own == volume) {
                *own = renamed.clone();
            }
            Ok(())
        })
        .await
    }

    async fn remove(&self, volume: &VolumeId) -> Result<(), StorageError> {
        let volume = volume.clone();
        self.reached(|state| match state.ceph.volumes.remove(&volume) {
            Some(_) => Ok(()),
            None => Err(StorageError::NoVolume { volume }),
        })
        .await
    }

    async fn snapshot(&self, _: &VolumeId, _: &SnapshotName) -> Result<(), StorageError> {
        unsupported("making a snapshot")
    }

    async fn rename_snapshot(
        &self,
        _: &VolumeId,
        _: &SnapshotName,
        _: &SnapshotName,
    ) -> Result<(), StorageError> {
        unsupported("renaming a snapshot")
    }

    async fn remove_snapshot(&self, _: &VolumeId, _: &SnapshotName) -> Result<(), StorageError> {
        unsupported("removing a snapshot")
    }

    async fn roll_back(&self, _: &VolumeId, _: &SnapshotName) -> Result<(), StorageError> {
        unsupported("rolling a volume back")
    }

    async fn import(&self, _: &VolumeId, _: &Path, _: ImageFormat, _: bool) -> Result<(), StorageError> {
        unsupported("importing an image")
    }

    async fn attachment(&self, volume: &VolumeId) -> Result<Attachment, StorageError> {
        let access = RbdAccess {
            monitors: vec!["hv1".to_owned()],
            port: 6789,
            user: "libvirt".to_owned(),
            secret: None,
        };
        let volume = volume.clone();
        self.reached(|state| match state.ceph.volumes.contains_key(&volume) {
            true => Ok(Attachment::Rbd(access)),
            false => Err(StorageError::NoVolume { volume }),
        })
        .await
    }

    async fn locks(&self, volume: &VolumeId) -> Result<Vec<VolumeLock>, StorageError> {
        let volume = volume.clone();
        self.reached(|state| {
            let Some(held) = state.ceph.volumes.get(&volume) else {
                return Err(StorageError::NoVolume { volume });
            };
            let shown = |lock: &Lock| VolumeLock {
                id: format!("auto {}", lock.client),
                locker: format!("client.{}", lock.client),
                address: storage_address(lock.host),
            };
            Ok(held.iter().map(shown).collect())
        })
        .await
    }

    async fn break_lock(&self, volume: &VolumeId, lock: &VolumeLock) -> Result<(), StorageError> {
        let (volume, locker) = (volume.clone(), lock.locker.clone());
        self.reached(|state| {
            let client = locker.strip_prefix("client.").and_then(|number| number.parse().ok());
            let Some(client) = client else { return Ok(()) };
            let held = state.ceph.volumes.get(&volume).cloned().flatten();
            // First nobody hears the holder any more, then the volume is free.
            state.ceph.blocked.insert(client);
            if held.is_some_and(|lock| lock.client == client) {
                state.note(format!("ceph: the lock of client.{client} on {volume} is broken"));
                state.ceph.volumes.insert(volume, None);
            }
            state.truth_of_broken_lock(client);
            Ok(())
        })
        .await
    }
}
