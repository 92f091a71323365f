use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use pvc_model::fullness::Ratios;
use pvc_model::pool::PoolSpec;
use pvc_model::storage::{PoolName, RbdAccess, SnapshotName, TrashId, VolumeId, VolumeName};
use pvc_ports::{
    Attachment, Clock, Course, Download, Flattened, MeasuredPlace, MeasuredVolume, OsdFigures,
    OsdHost, PoolFigures, PoolInfo, SnapshotUsage, Storage, StorageCluster, StorageError,
    TrashedVolume, Upload, VolumeInfo, VolumeLock, VolumeStreams,
};

use crate::osds::{NodeOsds, SharedOsds};
use crate::{Gate, MemoryDownload, MemoryUpload, MemoryVolumes, Said, ScriptedCluster, TokioClock};

#[derive(Default)]
pub(crate) struct Inner {
    volumes: MemoryVolumes,
    clock: TokioClock,
    failing: bool,
    locks_take: Duration,
    removal_takes: Duration,
    begun_uploads: u64,
    ended_uploads: u64,
    gate: Option<Arc<Gate>>,
}

/// Volumes in memory, as the [`Storage`] contract says, that can be told to be slow or silent.
#[derive(Default)]
pub struct MemoryStorage {
    inner: Arc<Mutex<Inner>>,
    cluster: Option<Monitors>,
    disks: Option<NodeOsds>,
    /// Course of what goes through a whole volume and is not stopped.
    course: Option<Course>,
}

/// A cluster's monitors, and the volumes and OSDs that they know.
#[derive(Clone)]
pub(crate) struct Monitors {
    cluster: Arc<ScriptedCluster>,
    inner: Arc<Mutex<Inner>>,
    pub osds: SharedOsds,
}

impl MemoryStorage {
    /// Makes a storage with one pool, `vms`.
    pub fn new() -> Self {
        let storage = MemoryStorage::default();
        let made = storage.with_volumes(|volumes| volumes.create_pool(&PoolName::new("vms")));
        made.expect("there is no pool yet");
        storage
    }

    /// Makes a storage with a cluster behind the volumes, which are reached as it says.
    pub fn of_cluster(cluster: Arc<ScriptedCluster>) -> Self {
        let storage = MemoryStorage::new();
        let (inner, osds) = (storage.inner.clone(), SharedOsds::default());
        let monitors = Monitors { cluster, inner, osds };
        MemoryStorage { cluster: Some(monitors), ..storage }
    }

    /// Lets the cluster have these OSDs, on whose node `node` this storage is used.
    ///
    /// # Panics
    /// If the storage has no cluster.
    #[must_use]
    pub fn with_osds(mut self, osds: SharedOsds, node: &str) -> Self {
        let (inner, node) = (self.inner.clone(), node.to_owned());
        self.cluster.as_mut().expect("it has a cluster").osds = osds.clone();
        MemoryStorage { disks: Some(NodeOsds { osds, node, inner }), ..self }
    }

    /// A volume of 1 GiB that somebody made earlier.
    pub fn insert(&self, volume: &str) {
        self.with_volumes(|volumes| volumes.insert(&id(volume)));
    }

    /// Lets the holder with `address` have a lock on `volume`.
    pub fn lock(&self, volume: &str, address: &str) {
        let lock = VolumeLock {
            id: format!("auto {address}"),
            locker: "client.4711".to_owned(),
            address: address.to_owned(),
        };
        self.insert(volume);
        let pushed = self
            .with_volumes(|volumes| volumes.locks_mut(&id(volume)).map(|locks| locks.push(lock)));
        pushed.expect("it was just inserted");
    }

    /// Gives `act` the volumes, for what guests do with them and everything else that does not go
    /// through the port.
    pub fn with_volumes<T>(&self, act: impl FnOnce(&mut MemoryVolumes) -> T) -> T {
        self.with(|inner| act(&mut inner.volumes))
    }

    /// Sets whether the storage fails. While set, every call fails as if the storage did not
    /// answer.
    pub fn set_failing(&self, failing: bool) {
        self.with(|inner| inner.failing = failing);
    }

    /// Sets the gate that every call passes from now on, before it has an effect, and before it
    /// returns.
    pub fn set_gate(&self, gate: Arc<Gate>) {
        self.with(|inner| inner.gate = Some(gate));
    }

    async fn removal(&self) {
        let time = self.with(|inner| inner.removal_takes);
        if !time.is_zero() {
            tokio::time::sleep(time).await;
        }
    }

    /// Sets the time that removing a volume takes from now on.
    pub fn set_removal_takes(&self, time: Duration) {
        self.with(|inner| inner.removal_takes = time);
    }

    /// Number of uploads that have begun.
    pub fn begun_uploads(&self) -> u64 {
        self.with(|inner| inner.begun_uploads)
    }

    /// Number of uploads whose writing was ended, each as often as that was asked.
    pub fn ended_uploads(&self) -> u64 {
        self.with(|inner| inner.ended_uploads)
    }

    /// Sets the time that asking for the locks of a volume takes from now on.
    pub fn set_locks_take(&self, time: Duration) {
        self.with(|inner| inner.locks_take = time);
    }

    fn with<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> T {
        with(&self.inner, act)
    }

    async fn reached<T>(
        &self,
        act: impl FnOnce(&mut MemoryVolumes) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        reached(&self.inner, act).await
    }

    /// The same for what goes through so many bytes of a volume and is not stopped: half of it is
    /// done at the gate.
    async fn reached_half_way<T>(
        &self,
        bytes: Option<u64>,
        act: impl FnOnce(&mut MemoryVolumes) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        if let (Some(course), Some(bytes)) = (&self.course, bytes) {
            course.announce(bytes);
            course.reach(bytes / 2);
        }
        self.reached(act).await
    }

    fn bytes_of(&self, volume: &VolumeId) -> Option<u64> {
        self.with(|inner| inner.volumes.volume(volume).ok().map(|found| found.size_bytes))
    }

    /// The same for what takes long: half of it is done at the gate, where it may be stopped.
    async fn reached_on<T>(
        &self,
        course: &Course,
        volume: &VolumeId,
        act: impl FnOnce(&mut MemoryVolumes) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let size = self.with(|inner| inner.volumes.volume(volume).map(|found| found.size_bytes));
        if let Ok(size_bytes) = size {
            course.announce(size_bytes);
            course.reach(size_bytes / 2);
        }
        tokio::select! {
            biased;
            () = course.stopped() => {
                // What is refused is refused first.
                size?;
                Err(StorageError::Stopped)
            }
            done = self.reached(act) => done,
        }
    }

    /// Makes a copy, which has its name once the course has confirmed it.
    async fn copied(
        &self,
        course: &Course,
        volume: &VolumeId,
        to: &VolumeName,
        copy: impl FnOnce(&mut MemoryVolumes, &VolumeName) -> Result<(), StorageError>,
    ) -> Result<(), StorageError> {
        let begin = |volumes: &mut MemoryVolumes| {
            let partial = volumes.new_partial(volume, to)?;
            copy(volumes, &partial.volume).map(|()| partial)
        };
        let partial = self.reached_on(course, volume, begin).await?;
        let named = match course.confirmed().await {
            true => self.reached(|volumes| volumes.rename(&partial, to)).await,
            false => Err(StorageError::Stopped),
        };
        if named.is_err() {
            let _ = self.with(|inner| inner.volumes.remove(&partial));
        }
        named
    }
}

const UNPOISONED: &str = "no test panics while holding it";

fn with<T>(inner: &Mutex<Inner>, act: impl FnOnce(&mut Inner) -> T) -> T {
    act(&mut inner.lock().expect(UNPOISONED))
}

/// Returns the answer of the storage once the gate lets the call through: before its effect, and
/// after it.
pub(crate) async fn reached<T>(
    inner: &Mutex<Inner>,
    act: impl FnOnce(&mut MemoryVolumes) -> Result<T, StorageError>,
) -> Result<T, StorageError> {
    pass(inner).await;
    let answer = with(inner, |inner| match inner.failing {
        true => Err(StorageError::TimedOut { doing: "doing that".to_owned(), seconds: 10 }),
        false => act(&mut inner.volumes),
    });
    pass(inner).await;
    answer
}

async fn pass(inner: &Mutex<Inner>) {
    let gate = with(inner, |inner| inner.gate.clone());
    if let Some(gate) = gate {
        gate.pass().await;
    }
}

fn id(volume: &str) -> VolumeId {
    VolumeId::from_record(volume).expect("tests name volumes as pool/volume")
}

#[async_trait]
impl Storage for MemoryStorage {
    async fn pools(&self) -> Result<Vec<PoolInfo>, StorageError> {
        self.reached(|volumes| Ok(volumes.pools())).await
    }

    async fn pool(&self, pool: &PoolName) -> Result<PoolInfo, StorageError> {
        self.reached(|volumes| volumes.pool(pool)).await
    }

    async fn create_pool(&self, pool: &PoolName) -> Result<(), StorageError> {
        self.reached(|volumes| volumes.create_pool(pool)).await
    }

    async fn remove_pool(&self, pool: &PoolName) -> Result<(), StorageError> {
        self.reached(|volumes| volumes.remove_pool(pool)).await
    }

    async fn check_pool_removal(&self, pool: &PoolName) -> Result<(), StorageError> {
        self.with(|inner| inner.volumes.check_pool_removal(pool))
    }

    async fn volumes(&self, pool: &PoolName) -> Result<Vec<VolumeInfo>, StorageError> {
        self.reached(|volumes| volumes.volumes(pool)).await
    }

    async fn half_removed(&self, pool: &PoolName) -> Result<Vec<VolumeId>, StorageError> {
        self.reached(|volumes| Ok(volumes.half_removed(pool))).await
    }

    async fn volume(&self, volume: &VolumeId) -> Result<VolumeInfo, StorageError> {
        self.reached(|volumes| volumes.volume(volume)).await
    }

    async fn create(
        &self,
        volume: &VolumeId,
        size_bytes: u64,
        force: bool,
    ) -> Result<(), StorageError> {
        self.reached(|volumes| volumes.create(volume, size_bytes, force)).await
    }

    async fn resize(
        &self,
        volume: &VolumeId,
        size_bytes: u64,
        force: bool,
    ) -> Result<(), StorageError> {
        let goes = self.bytes_of(volume).and_then(|bytes| bytes.checked_sub(size_bytes));
        let goes = goes.filter(|bytes| *bytes > 0);
        self.reached_half_way(goes, |volumes| volumes.resize(volume, size_bytes, force)).await
    }

    async fn clone_volume(
        &self,
        volume: &VolumeId,
        to: &VolumeName,
        force: bool,
        course: &Course,
    ) -> Result<(), StorageError> {
        self.copied(course, volume, to, |volumes, partial| {
            volumes.clone_volume(volume, partial, force)
        })
        .await
    }

    async fn clone_on_write(
        &self,
        volume: &VolumeId,
        to: &VolumeName,
        course: &Course,
    ) -> Result<(), StorageError> {
        self.copied(course, volume, to, |volumes, partial| volumes.clone_on_write(volume, partial))
            .await
    }

    async fn flatten(
        &self,
        volume: &VolumeId,
        force: bool,
        course: &Course,
    ) -> Result<Flattened, StorageError> {
        self.reached_on(course, volume, |volumes| volumes.flatten(volume, force)).await
    }

    async fn rename(&self, volume: &VolumeId, to: &VolumeName) -> Result<(), StorageError> {
        self.reached(|volumes| volumes.rename(volume, to)).await
    }

    async fn remove(&self, volume: &VolumeId) -> Result<(), StorageError> {
        self.removal().await;
        self.reached_half_way(self.bytes_of(volume), |volumes| volumes.remove(volume)).await
    }

    async fn check_unused(&self, volume: &VolumeId) -> Result<(), StorageError> {
        self.reached(|volumes| volumes.check_unused(volume)).await
    }

    async fn check_removal(&self, volume: &VolumeId) -> Result<(), StorageError> {
        self.reached(|volumes| volumes.check_removal(volume)).await
    }

    async fn trash(
        &self,
        volume: &VolumeId,
        keep: Duration,
    ) -> Result<TrashedVolume, StorageError> {
        self.removal().await;
        let now = self.with(|inner| inner.clock.wall());
        self.reached(|volumes| volumes.trash(volume, now, keep)).await
    }

    async fn trashed(&self, pool: &PoolName) -> Result<Vec<TrashedVolume>, StorageError> {
        self.reached(|volumes| volumes.trashed(pool)).await
    }

    async fn restore(
        &self,
        pool: &PoolName,
        id: &TrashId,
        to: &VolumeName,
    ) -> Result<(), StorageError> {
        self.reached(|volumes| volumes.restore(pool, id, to)).await
    }

    async fn repair_name(&self, volume: &VolumeId) -> Result<bool, StorageError> {
        self.reached(|volumes| volumes.repair_name(volume)).await
    }

    async fn purge(&self, pool: &PoolName, id: &TrashId) -> Result<(), StorageError> {
        let bytes = self.with(|inner| inner.volumes.trashed_bytes(id));
        self.reached_half_way(bytes, |volumes| volumes.purge(pool, id)).await
    }

    async fn snapshot(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
    ) -> Result<(), StorageError> {
        self.reached(|volumes| volumes.snapshot(volume, snapshot)).await
    }

    async fn rename_snapshot(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
        to: &SnapshotName,
    ) -> Result<(), StorageError> {
        self.reached(|volumes| volumes.rename_snapshot(volume, snapshot, to)).await
    }

    async fn remove_snapshot(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
    ) -> Result<(), StorageError> {
        self.reached(|volumes| volumes.remove_snapshot(volume, snapshot)).await
    }

    async fn roll_back(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
    ) -> Result<(), StorageError> {
        let bytes = self.bytes_of(volume);
        self.reached_half_way(bytes, |volumes| volumes.roll_back(volume, snapshot)).await
    }

    async fn snapshot_usage(&self, volume: &VolumeId) -> Result<Vec<SnapshotUsage>, StorageError> {
        self.reached(|volumes| volumes.snapshot_usage(volume)).await
    }

    async fn attachment(&self, volume: &VolumeId) -> Result<Attachment, StorageError> {
        self.reached(|volumes| {
            volumes.volume(volume)?;
            Ok(match &self.cluster {
                Some(monitors) => Attachment::Rbd(monitors.access().clone()),
                None => Attachment::File { path: PathBuf::from(format!("/volumes/{volume}")) },
            })
        })
        .await
    }

    async fn measured(&self, volume: &VolumeId) -> Result<MeasuredVolume, StorageError> {
        self.reached(|volumes| {
            let identity = volumes.identity(volume)?;
            let place = match &self.cluster {
                Some(monitors) => MeasuredPlace::Rbd {
                    image: volume.clone(),
                    user: monitors.access().user.clone(),
                    config: "/etc/ceph/ceph.conf".into(),
                    keyring: "/etc/ceph/ceph.client.admin.keyring".into(),
                },
                None => MeasuredPlace::File {
                    path: PathBuf::from(format!("/volumes/{volume}")),
                    is_direct: true,
                },
            };
            Ok(MeasuredVolume { identity, place })
        })
        .await
    }

    async fn locks(&self, volume: &VolumeId) -> Result<Vec<VolumeLock>, StorageError> {
        tokio::time::sleep(self.with(|inner| inner.locks_take)).await;
        self.reached(|volumes| volumes.locks(volume).map(<[_]>::to_vec)).await
    }

    async fn break_lock(&self, volume: &VolumeId, lock: &VolumeLock) -> Result<(), StorageError> {
        self.reached(|volumes| volumes.break_lock(volume, lock)).await
    }

    fn on_course(&self, course: &Course) -> Option<Arc<dyn Storage>> {
        Some(Arc::new(MemoryStorage {
            inner: self.inner.clone(),
            cluster: self.cluster.clone(),
            disks: self.disks.clone(),
            course: Some(course.clone()),
        }))
    }

    fn streams(&self) -> Option<&dyn VolumeStreams> {
        Some(self)
    }

    fn cluster(&self) -> Option<&dyn StorageCluster> {
        self.cluster.as_ref().map(|monitors| monitors as &dyn StorageCluster)
    }

    fn osds(&self) -> Option<&dyn OsdHost> {
        self.disks.as_ref().map(|disks| disks as &dyn OsdHost)
    }
}

impl Monitors {
    /// Answers as storage does, with what the monitors have been told to say.
    pub async fn answer<T>(
        &self,
        answer: impl FnOnce(Said, &mut MemoryVolumes) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let said = self.cluster.said().await;
        reached(&self.inner, |volumes| answer(said, volumes)).await
    }
}

#[async_trait]
impl StorageCluster for Monitors {
    async fn status(&self) -> Result<String, StorageError> {
        self.answer(|said, _| Ok(said.text)).await
    }

    async fn health(&self) -> Result<String, StorageError> {
        self.answer(|said, _| Ok(said.health)).await
    }

    async fn usage(&self) -> Result<String, StorageError> {
        self.answer(|said, _| Ok(said.text)).await
    }

    async fn pool_figures(&self) -> Result<Vec<PoolFigures>, StorageError> {
        self.answer(|said, volumes| Ok(said.pool_figures(volumes))).await
    }

    async fn osd_figures(&self) -> Result<Vec<OsdFigures>, StorageError> {
        self.answer(|said, _| Ok(said.osd_figures(&self.osds.lock().expect(UNPOISONED)))).await
    }

    async fn full_ratios(&self) -> Result<Ratios, StorageError> {
        self.answer(|said, _| Ok(said.ratios)).await
    }

    async fn metrics_url(&self) -> Result<Option<String>, StorageError> {
        self.answer(|said, _| Ok(said.metrics_url)).await
    }

    async fn volume_record(&self, volume: &VolumeId) -> Result<String, StorageError> {
        self.answer(|_, volumes| volumes.record(volume)).await
    }

    async fn snapshot_record(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
    ) -> Result<String, StorageError> {
        self.answer(|_, volumes| volumes.snapshot_record(volume, snapshot)).await
    }

    async fn make_pool(&self, pool: &PoolSpec) -> Result<(), StorageError> {
        self.answer(|_, volumes| volumes.make_pool(pool)).await
    }

    async fn set_placement_groups(&self, pool: &PoolName, count: u32) -> Result<(), StorageError> {
        self.answer(|_, volumes| volumes.set_placement_groups(pool, count)).await
    }

    fn access(&self) -> &RbdAccess {
        self.cluster.access()
    }

    async fn hypervisor_key(&self) -> Result<Option<String>, StorageError> {
        self.answer(|said, _| Ok(said.key)).await
    }
}

#[async_trait]
impl VolumeStreams for MemoryStorage {
    async fn upload(
        &self,
        volume: &VolumeId,
        size_bytes: u64,
        force: bool,
    ) -> Result<Box<dyn Upload>, StorageError> {
        let upload = self.reached(|volumes| volumes.upload(volume, size_bytes, force)).await?;
        self.with(|inner| inner.begun_uploads += 1);
        Ok(Box::new(HeldUpload { inner: self.inner.clone(), upload }))
    }

    async fn download(
        &self,
        volume: &VolumeId,
        snapshot: Option<&SnapshotName>,
    ) -> Result<Box<dyn Download>, StorageError> {
        let download = self.reached(|volumes| volumes.download(volume, snapshot)).await?;
        Ok(Box::new(HeldDownload { inner: self.inner.clone(), download }))
    }
}

struct HeldUpload {
    inner: Arc<Mutex<Inner>>,
    upload: MemoryUpload,
}

#[async_trait]
impl Upload for HeldUpload {
    async fn write(&mut self, offset_bytes: u64, bytes: Bytes) -> Result<(), StorageError> {
        let HeldUpload { inner, upload } = self;
        reached(inner, |_| upload.write(offset_bytes, &bytes)).await
    }

    async fn finish(&mut self) -> Result<(), StorageError> {
        with(&self.inner, |inner| inner.ended_uploads += 1);
        reached(&self.inner, |_| Ok(())).await
    }

    async fn commit(self: Box<Self>) -> Result<(), StorageError> {
        let HeldUpload { inner, upload } = *self;
        reached(&inner, |volumes| volumes.commit(upload)).await
    }

    async fn discard(self: Box<Self>) {
        pass(&self.inner).await;
    }
}

struct HeldDownload {
    inner: Arc<Mutex<Inner>>,
    download: MemoryDownload,
}

#[async_trait]
impl Download for HeldDownload {
    fn size_bytes(&self) -> u64 {
        self.download.size_bytes()
    }

    async fn next(&mut self) -> Result<Option<(u64, Bytes)>, StorageError> {
        let HeldDownload { inner, download } = self;
        reached(inner, |_| Ok(download.next_piece())).await
    }
}

impl Drop for HeldDownload {
    fn drop(&mut self) {
        with(&self.inner, |inner| inner.volumes.close(&self.download));
    }
}
