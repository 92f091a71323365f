//! Ceph, as far as guests are concerned: volumes, who holds them for writing, and who is shut out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use pvc_model::fullness::Ratios;
use pvc_model::osd::{OsdId, OsdState};
use pvc_model::pool::PoolSpec;
use pvc_model::storage::{PoolName, RbdAccess, SnapshotName, TrashId, VolumeId, VolumeName};
use pvc_ports::{
    Attachment, Course, Download, Flattened, MeasuredPlace, MeasuredVolume, OsdFigures, OsdHost,
    PoolFigures, PoolInfo, SnapshotUsage, Storage, StorageCluster, StorageError, TrashedVolume,
    Upload, VolumeInfo, VolumeLock, VolumeStreams,
};
use pvc_testkit::{MemoryDownload, MemoryOsds, MemoryUpload, MemoryVolumes, Said};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::host::Host;
use crate::osd_truth::OsdTruth;
use crate::osds::DISKS;
use crate::process::Gate;
use crate::run::Run;
use crate::state::State;
use crate::storage_changes::{ChangeMoment, Effect, HALF_BYTES, StorageChanges};
use crate::uploads::{UploadMoment, Uploads};

/// Time for which a program waits for a Ceph that is silent.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Time for which Ceph takes whoever died for a user of its volumes.
pub(crate) const MISSED: Duration = Duration::from_secs(30);

/// Time that the answer to a change is on its way.
const ANSWER: Duration = Duration::from_millis(10);

/// Access of hypervisors to its volumes.
static ACCESS: LazyLock<RbdAccess> = LazyLock::new(|| RbdAccess {
    monitors: vec!["hv1".to_owned()],
    port: 6789,
    user: "libvirt".to_owned(),
    secret: None,
});

/// A client of Ceph: one life of one guest on one host.
pub(crate) type ClientId = u64;

#[derive(Debug, Clone)]
pub(crate) struct Lock {
    pub client: ClientId,
    pub host: usize,
}

impl Lock {
    fn shown(&self) -> VolumeLock {
        VolumeLock {
            id: format!("auto {}", self.client),
            locker: client_name(self.client),
            address: storage_address(self.host),
        }
    }
}

fn client_name(client: ClientId) -> String {
    format!("client.{client}")
}

fn client_called(locker: &str) -> Option<ClientId> {
    locker.strip_prefix("client.")?.parse().ok()
}

pub(crate) struct Ceph {
    pub volumes: MemoryVolumes,
    /// The disk of each VM.
    pub disks: BTreeMap<Uuid, VolumeId>,
    /// Clients whose writes are refused.
    pub blocked: BTreeSet<ClientId>,
    pub silent: bool,
    /// OSDs and the disks of the hosts.
    pub osds: MemoryOsds,
    /// Uploads to its volumes.
    pub uploads: Uploads,
    pub changes: StorageChanges,
    pub osd_truth: OsdTruth,
    /// Answers of its monitors.
    said: Said,
    next_client: ClientId,
}

/// The address of a host on the storage network.
pub(crate) fn storage_address(host: usize) -> String {
    format!("10.0.1.{}", host + 1)
}

impl Ceph {
    /// Makes a storage with one pool, `vms`, and disks in each of these hosts.
    pub fn of_hosts<'a>(hosts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut volumes = MemoryVolumes::default();
        volumes.create_pool(&PoolName::new("vms")).expect("there is no pool yet");
        let (disks, blocked) = (BTreeMap::new(), BTreeSet::new());
        let said = Said::default().with_osd_and_key();
        let mut osds = osds_as_said(&said);
        for host in hosts {
            DISKS.iter().for_each(|(disk, bytes)| osds.add_blank(host, disk, *bytes));
        }
        let osd_truth = OsdTruth::with_others(osds.known().filter_map(|state| state.uuid));
        let (uploads, changes) = (Uploads::default(), StorageChanges::default());
        Ceph {
            volumes,
            disks,
            blocked,
            silent: false,
            osds,
            uploads,
            changes,
            osd_truth,
            said,
            next_client: 0,
        }
    }

    pub fn new_client(&mut self) -> ClientId {
        self.next_client += 1;
        self.next_client
    }

    /// A machine outside of the cluster, which has so many `hosts`, takes the volume; beside
    /// others like it, if it has been taken by some.
    pub fn lock_by_unknown_client(&mut self, volume: &VolumeId, hosts: usize) {
        let lock = Lock { client: self.new_client(), host: hosts }.shown();
        self.volumes.insert(volume);
        let mut before = self.volumes.locks(volume).unwrap_or_default().to_vec();
        before.retain(|other| other.address == lock.address);
        self.volumes.hold(volume, lock);
        if let Ok(locks) = self.volumes.locks_mut(volume) {
            locks.extend(before);
        }
    }

    /// A client is gone and could let go of nothing: its locks stay, and it is missed after a
    /// while.
    pub fn client_died(&self, run: &mut Run, client: ClientId) {
        run.later(MISSED, move |state| state.ceph.volumes.close_all(&client_name(client)));
    }

    /// The number of the host, of so many, that has the VM's volume for writing; of a machine
    /// outside of the cluster, one more than there are hosts.
    pub fn holder(&self, vm: Uuid, hosts: usize) -> Option<usize> {
        let holder = self.volumes.locks(self.disks.get(&vm)?).ok()?.first()?;
        (0..=hosts).find(|host| storage_address(*host) == holder.address)
    }

    fn is_reached_from(&self, host: &Host) -> bool {
        !self.silent && host.cables.storage
    }

    /// Gives the volume to a client, unless another one has it that is not shut out.
    pub fn take(&mut self, volume: &VolumeId, lock: &Lock) -> Result<(), String> {
        let Ok(locks) = self.volumes.locks(volume) else {
            return Err(format!("error opening image {volume}: No such file or directory"));
        };
        let (mine, is_blocked) = (lock.shown(), |locker| self.is_blocked(locker));
        let other =
            locks.iter().find(|held| held.locker != mine.locker && !is_blocked(&held.locker));
        if let Some(other) = other {
            return Err(format!("image {volume} is locked by {}", other.locker));
        }
        self.volumes.hold(volume, mine);
        Ok(())
    }

    fn is_blocked(&self, locker: &str) -> bool {
        client_called(locker).is_some_and(|client| self.blocked.contains(&client))
    }

    /// The client lets go of everything.
    pub fn release(&mut self, client: ClientId) {
        let name = client_name(client);
        self.volumes.all_locks().for_each(|locks| locks.retain(|lock| lock.locker != name));
        self.volumes.close_all(&name);
    }

    /// Hands everything of one client to another: the end of a migration.
    pub fn hand_over(&mut self, from: ClientId, to: &Lock) {
        let (from, to) = (client_name(from), to.shown());
        for lock in self.volumes.all_locks().flatten().filter(|lock| lock.locker == from) {
            *lock = to.clone();
        }
        self.volumes.hand_over(&from, &to.locker);
    }

    /// Nobody hears the client any more, and what it held is free.
    fn shut_out(&mut self, client: ClientId, volume: &VolumeId) -> bool {
        self.blocked.insert(client);
        let name = client_name(client);
        self.volumes.close_all(&name);
        let held =
            self.volumes.locks(volume).unwrap_or_default().iter().find(|lock| lock.locker == name);
        match held.cloned() {
            Some(lock) => self.volumes.break_lock(volume, &lock).is_ok(),
            None => false,
        }
    }
}

/// The map with those OSDs that the monitors say there are.
fn osds_as_said(said: &Said) -> MemoryOsds {
    let mut osds = MemoryOsds::new();
    for figures in &said.osds {
        let id = OsdId(u32::try_from(figures.id).expect("it is small"));
        let uuid = Some(Uuid::try_parse(&figures.uuid).expect("it is one"));
        osds.insert(OsdState {
            id,
            uuid,
            is_up: figures.is_up,
            is_in: figures.is_in,
            is_new: false,
        });
    }
    osds
}

/// Ceph as the daemon of one host reaches it.
#[derive(Clone)]
pub(crate) struct Volumes {
    pub gate: Gate,
    pub host: usize,
}

fn late() -> StorageError {
    let doing = "doing what it was asked".to_owned();
    StorageError::TimedOut { doing, seconds: TIME_LIMIT.as_secs() }
}

impl Volumes {
    pub async fn reached<T>(
        &self,
        act: impl FnOnce(&mut State) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let answers = |state: &State| state.ceph.is_reached_from(&state.hosts[self.host]);
        let (takes, answers_now) =
            self.gate.call(|state| (state.run.chance.millis(5, 60), answers(state))).await;
        if answers_now {
            self.gate.sleep(takes).await;
            if self.gate.call(|state| answers(state)).await {
                return self.gate.call(act).await;
            }
        }
        self.gate.sleep(TIME_LIMIT).await;
        Err(late())
    }

    /// Hands over the answer to a change, unless Ceph falls silent before it comes: what is done is
    /// not always told.
    async fn answered<T>(&self, done: T) -> Result<T, StorageError> {
        self.gate.sleep(ANSWER).await;
        let answers = |state: &State| state.ceph.is_reached_from(&state.hosts[self.host]);
        if self.gate.call(|state| answers(state)).await {
            return Ok(done);
        }
        self.gate.sleep(TIME_LIMIT).await;
        Err(late())
    }

    /// Changes something for somebody who may stand still before he is told.
    async fn changed<T>(
        &self,
        act: impl FnOnce(&mut State) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        let done = self.reached(act).await?;
        self.gate.after_effect().await;
        self.gate.at_change(ChangeMoment::Done).await;
        self.answered(done).await
    }

    /// Has a copy confirmed, and gives it the name that it is for, or removes it.
    async fn named(
        &self,
        partial: &VolumeId,
        to: &VolumeName,
        course: &Course,
    ) -> Result<(), StorageError> {
        let is_confirmed = course.confirmed().await;
        course.reach(course.of().unwrap_or_default() / 2);
        let is_late = self.gate.at_change(ChangeMoment::HalfWay).await;
        let give_name = |state: &mut State| {
            state.ceph.volumes.rename(partial, to)?;
            if is_late {
                let named = VolumeId { pool: partial.pool.clone(), volume: to.clone() };
                state.ceph.changes.named_late.insert(named);
            }
            Ok(())
        };
        let named = match is_confirmed && !course.is_stopped() {
            true => self.changed(give_name).await,
            false => Err(StorageError::Stopped),
        };
        if named.is_err() {
            // As far as that can be done now: the rest is the primary's.
            let _ = self.kept(|kept| kept.remove(partial)).await;
        }
        named
    }

    async fn kept<T>(
        &self,
        act: impl FnOnce(&mut MemoryVolumes) -> Result<T, StorageError>,
    ) -> Result<T, StorageError> {
        self.reached(|state| act(&mut state.ceph.volumes)).await
    }
}

#[async_trait]
impl Storage for Volumes {
    async fn pools(&self) -> Result<Vec<PoolInfo>, StorageError> {
        self.kept(|kept| Ok(kept.pools())).await
    }

    async fn pool(&self, pool: &PoolName) -> Result<PoolInfo, StorageError> {
        self.kept(|kept| kept.pool(pool)).await
    }

    async fn create_pool(&self, pool: &PoolName) -> Result<(), StorageError> {
        self.kept(|kept| kept.create_pool(pool)).await
    }

    async fn remove_pool(&self, pool: &PoolName) -> Result<(), StorageError> {
        self.changed(|state| state.ceph.volumes.remove_pool(pool)).await
    }

    async fn check_pool_removal(&self, pool: &PoolName) -> Result<(), StorageError> {
        self.kept(|kept| kept.check_pool_removal(pool)).await
    }

    async fn volumes(&self, pool: &PoolName) -> Result<Vec<VolumeInfo>, StorageError> {
        self.kept(|kept| kept.volumes(pool)).await
    }

    async fn half_removed(&self, pool: &PoolName) -> Result<Vec<VolumeId>, StorageError> {
        self.kept(|kept| Ok(kept.half_removed(pool))).await
    }

    async fn volume(&self, volume: &VolumeId) -> Result<VolumeInfo, StorageError> {
        self.kept(|kept| kept.volume(volume)).await
    }

    async fn create(
        &self,
        volume: &VolumeId,
        size_bytes: u64,
        force: bool,
    ) -> Result<(), StorageError> {
        self.kept(|kept| kept.create(volume, size_bytes, force)).await?;
        self.gate.after_effect().await;
        Ok(())
    }

    async fn resize(
        &self,
        volume: &VolumeId,
        size_bytes: u64,
        force: bool,
    ) -> Result<(), StorageError> {
        self.changed(|state| {
            let from_bytes = state.ceph.volumes.volume(volume)?.size_bytes;
            state.ceph.volumes.resize(volume, size_bytes, force)?;
            if size_bytes < from_bytes {
                let what = format!("{volume} was made smaller, and nobody had asked for that");
                state.truth.violate(&state.run, "storage", what);
            }
            let grown = Effect::Has(volume.clone(), size_bytes);
            state.ceph.changes.happened(&state.run, grown);
            Ok(())
        })
        .await
    }

    async fn clone_volume(
        &self,
        volume: &VolumeId,
        to: &VolumeName,
        force: bool,
        course: &Course,
    ) -> Result<(), StorageError> {
        let partial = self
            .kept(|kept| {
                let partial = kept.new_partial(volume, to)?;
                course.announce(kept.volume(volume)?.size_bytes);
                kept.clone_volume(volume, &partial.volume, force).map(|()| partial)
            })
            .await?;
        self.named(&partial, to, course).await
    }

    async fn clone_on_write(
        &self,
        volume: &VolumeId,
        to: &VolumeName,
        course: &Course,
    ) -> Result<(), StorageError> {
        let partial = self
            .kept(|kept| {
                let partial = kept.new_partial(volume, to)?;
                kept.clone_on_write(volume, &partial.volume).map(|()| partial)
            })
            .await?;
        self.named(&partial, to, course).await
    }

    async fn flatten(
        &self,
        volume: &VolumeId,
        force: bool,
        course: &Course,
    ) -> Result<Flattened, StorageError> {
        self.gate.at_change(ChangeMoment::HalfWay).await;
        if course.is_stopped() {
            return Err(StorageError::Stopped);
        }
        self.changed(|state| state.ceph.volumes.flatten(volume, force)).await
    }

    async fn rename(&self, volume: &VolumeId, to: &VolumeName) -> Result<(), StorageError> {
        self.reached(|state| {
            state.ceph.volumes.rename(volume, to)?;
            let renamed = VolumeId { pool: volume.pool.clone(), volume: to.clone() };
            state.run.note(format!("ceph: volume {volume} is called {renamed} now"));
            for own in state.ceph.disks.values_mut().filter(|own| **own == *volume) {
                *own = renamed.clone();
            }
            Ok(())
        })
        .await?;
        self.gate.after_effect().await;
        Ok(())
    }

    async fn remove(&self, volume: &VolumeId) -> Result<(), StorageError> {
        self.kept(|kept| kept.remove(volume)).await?;
        self.gate.after_effect().await;
        // Of a pool whose volumes go one by one.
        self.gate.at_change(ChangeMoment::HalfWay).await;
        Ok(())
    }

    async fn check_unused(&self, volume: &VolumeId) -> Result<(), StorageError> {
        self.kept(|kept| kept.check_unused(volume)).await
    }

    async fn check_removal(&self, volume: &VolumeId) -> Result<(), StorageError> {
        self.kept(|kept| kept.check_removal(volume)).await
    }

    async fn trash(
        &self,
        volume: &VolumeId,
        keep: Duration,
    ) -> Result<TrashedVolume, StorageError> {
        self.gate.at_upload(UploadMoment::Held).await;
        let trashed = self.reached(|state| {
            let now = state.run.wall(state.hosts[self.host].wall_offset);
            let entry = state.ceph.volumes.trash(volume, now, keep)?;
            let id = entry.id.clone();
            state.run.note(format!("ceph: volume {volume} is in the trash as {id}"));
            Ok(entry)
        });
        let entry = trashed.await?;
        self.gate.at_upload(UploadMoment::Trashed).await;
        self.answered(entry).await
    }

    async fn trashed(&self, pool: &PoolName) -> Result<Vec<TrashedVolume>, StorageError> {
        self.kept(|kept| kept.trashed(pool)).await
    }

    async fn restore(
        &self,
        pool: &PoolName,
        id: &TrashId,
        to: &VolumeName,
    ) -> Result<(), StorageError> {
        let restored = self.reached(|state| {
            state.ceph.volumes.restore(pool, id, to)?;
            state.run.note(format!("ceph: {pool}/{id} of the trash is volume {to} again"));
            Ok(())
        });
        restored.await?;
        self.answered(()).await
    }

    async fn repair_name(&self, volume: &VolumeId) -> Result<bool, StorageError> {
        self.kept(|kept| kept.repair_name(volume)).await
    }

    async fn purge(&self, pool: &PoolName, id: &TrashId) -> Result<(), StorageError> {
        self.kept(|kept| kept.purge(pool, id)).await
    }

    async fn snapshot(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
    ) -> Result<(), StorageError> {
        self.changed(|state| {
            let Ceph { changes, volumes, .. } = &mut state.ceph;
            volumes.snapshot(volume, snapshot)?;
            changes.snapshot_taken(volumes, volume);
            Ok(())
        })
        .await
    }

    async fn rename_snapshot(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
        to: &SnapshotName,
    ) -> Result<(), StorageError> {
        self.changed(|state| state.ceph.volumes.rename_snapshot(volume, snapshot, to)).await
    }

    async fn remove_snapshot(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
    ) -> Result<(), StorageError> {
        self.changed(|state| state.ceph.volumes.remove_snapshot(volume, snapshot)).await
    }

    async fn roll_back(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
    ) -> Result<(), StorageError> {
        self.kept(|kept| kept.begin_roll_back(volume, snapshot, HALF_BYTES)).await?;
        self.gate.at_change(ChangeMoment::HalfWay).await;
        let rest = self.changed(|state| {
            state.ceph.volumes.roll_back(volume, snapshot)?;
            let done = Effect::RolledBack(volume.clone(), snapshot.clone());
            state.ceph.changes.happened(&state.run, done);
            Ok(())
        });
        rest.await.map_err(|error| match error {
            StorageError::TimedOut { .. } => error,
            // Whatever keeps it from its end, it was begun.
            other => StorageError::Io {
                doing: "rolling back a volume".to_owned(),
                source: std::io::Error::other(other.to_string()),
            },
        })
    }

    async fn snapshot_usage(&self, volume: &VolumeId) -> Result<Vec<SnapshotUsage>, StorageError> {
        self.kept(|kept| kept.snapshot_usage(volume)).await
    }

    async fn attachment(&self, volume: &VolumeId) -> Result<Attachment, StorageError> {
        self.kept(|kept| kept.volume(volume).map(|_| Attachment::Rbd(ACCESS.clone()))).await
    }

    async fn measured(&self, volume: &VolumeId) -> Result<MeasuredVolume, StorageError> {
        let place = MeasuredPlace::Rbd {
            image: volume.clone(),
            user: ACCESS.user.clone(),
            config: "/etc/ceph/ceph.conf".into(),
            keyring: "/etc/ceph/ceph.client.admin.keyring".into(),
        };
        self.kept(|kept| Ok(MeasuredVolume { identity: kept.identity(volume)?, place })).await
    }

    async fn locks(&self, volume: &VolumeId) -> Result<Vec<VolumeLock>, StorageError> {
        self.kept(|kept| kept.locks(volume).map(<[_]>::to_vec)).await
    }

    async fn break_lock(&self, volume: &VolumeId, lock: &VolumeLock) -> Result<(), StorageError> {
        self.reached(|state| {
            let Some(client) = client_called(&lock.locker) else { return Ok(()) };
            if state.ceph.shut_out(client, volume) {
                let what = format!("ceph: the lock of client.{client} on {volume} is broken");
                state.run.note(what);
            }
            state.judge(|truth, sight| truth.of_broken_lock(sight, client));
            Ok(())
        })
        .await?;
        self.gate.after_effect().await;
        Ok(())
    }

    fn streams(&self) -> Option<&dyn VolumeStreams> {
        Some(self)
    }

    fn cluster(&self) -> Option<&dyn StorageCluster> {
        let has_monitors = self.gate.world.with(|state| state.run.nature.monitors);
        has_monitors.then_some(self as &dyn StorageCluster)
    }

    fn osds(&self) -> Option<&dyn OsdHost> {
        let has_monitors = self.gate.world.with(|state| state.run.nature.monitors);
        has_monitors.then_some(self as &dyn OsdHost)
    }
}

#[async_trait]
impl StorageCluster for Volumes {
    async fn status(&self) -> Result<String, StorageError> {
        self.reached(|state| Ok(state.ceph.said.text.clone())).await
    }

    async fn health(&self) -> Result<String, StorageError> {
        self.reached(|state| Ok(state.ceph.said.health.clone())).await
    }

    async fn usage(&self) -> Result<String, StorageError> {
        self.reached(|state| Ok(state.ceph.said.text.clone())).await
    }

    async fn pool_figures(&self) -> Result<Vec<PoolFigures>, StorageError> {
        self.reached(|state| Ok(state.ceph.said.pool_figures(&state.ceph.volumes))).await
    }

    async fn osd_figures(&self) -> Result<Vec<OsdFigures>, StorageError> {
        self.reached(|state| Ok(state.ceph.said.osd_figures(&state.ceph.osds))).await
    }

    async fn full_ratios(&self) -> Result<Ratios, StorageError> {
        self.reached(|state| Ok(state.ceph.said.ratios)).await
    }

    async fn metrics_url(&self) -> Result<Option<String>, StorageError> {
        self.reached(|state| Ok(state.ceph.said.metrics_url.clone())).await
    }

    async fn volume_record(&self, volume: &VolumeId) -> Result<String, StorageError> {
        self.kept(|kept| kept.record(volume)).await
    }

    async fn snapshot_record(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
    ) -> Result<String, StorageError> {
        self.kept(|kept| kept.snapshot_record(volume, snapshot)).await
    }

    async fn make_pool(&self, pool: &PoolSpec) -> Result<(), StorageError> {
        self.changed(|state| state.ceph.volumes.make_pool(pool)).await
    }

    async fn set_placement_groups(&self, pool: &PoolName, count: u32) -> Result<(), StorageError> {
        self.changed(|state| state.ceph.volumes.set_placement_groups(pool, count)).await
    }

    fn access(&self) -> &RbdAccess {
        &ACCESS
    }

    async fn hypervisor_key(&self) -> Result<Option<String>, StorageError> {
        self.reached(|state| Ok(state.ceph.said.key.clone())).await
    }
}

#[async_trait]
impl VolumeStreams for Volumes {
    async fn upload(
        &self,
        volume: &VolumeId,
        size_bytes: u64,
        force: bool,
    ) -> Result<Box<dyn Upload>, StorageError> {
        let begun = self.reached(|state| {
            let upload = state.ceph.volumes.upload(volume, size_bytes, force)?;
            let name = volume.volume.partial(state.run.chance.draw());
            let partial = VolumeId { pool: volume.pool.clone(), volume: name };
            state.ceph.volumes.create(&partial, size_bytes, true)?;
            state.ceph.uploads.begins(&partial, self.gate.pid);
            Ok((upload, partial))
        });
        let (upload, partial) = begun.await?;
        let (ceph, volume) = (self.clone(), volume.clone());
        Ok(Box::new(CephUpload { ceph, volume, upload: Some(upload), partial: Some(partial) }))
    }

    async fn download(
        &self,
        volume: &VolumeId,
        snapshot: Option<&SnapshotName>,
    ) -> Result<Box<dyn Download>, StorageError> {
        let download = self.kept(|kept| kept.download(volume, snapshot)).await?;
        Ok(Box::new(CephDownload { ceph: self.clone(), download }))
    }
}

/// A volume in the making, by the daemon of one host.
struct CephUpload {
    ceph: Volumes,
    volume: VolumeId,
    /// Contents so far; nothing once they have the name.
    upload: Option<MemoryUpload>,
    /// Name under which it is seen in the pool; nothing once this has come to its end.
    partial: Option<VolumeId>,
}

impl CephUpload {
    /// Begins to remove what is seen of it in the pool.
    fn begin_discard(&mut self) -> Option<JoinHandle<()>> {
        let partial = self.partial.take()?;
        let (ceph, runtime) = (self.ceph.clone(), Handle::try_current().ok()?);
        Some(runtime.spawn(async move {
            let removed = ceph.kept(|kept| kept.remove(&partial)).await;
            ceph.gate
                .call(|state| {
                    state.ceph.uploads.ends(&partial);
                    if let Err(error) = removed {
                        state.run.note(format!("ceph: {partial} is left: {error}"));
                    }
                })
                .await;
        }))
    }
}

#[async_trait]
impl Upload for CephUpload {
    async fn write(&mut self, offset_bytes: u64, bytes: Bytes) -> Result<(), StorageError> {
        let upload = self.upload.as_mut().expect("only what consumes it takes it out");
        self.ceph.kept(|_| upload.write(offset_bytes, &bytes)).await
    }

    async fn finish(&mut self) -> Result<(), StorageError> {
        self.ceph.kept(|_| Ok(())).await
    }

    async fn commit(mut self: Box<Self>) -> Result<(), StorageError> {
        self.finish().await?;
        let (ceph, volume) = (self.ceph.clone(), self.volume.clone());
        let upload = self.upload.take().expect("only what consumes it takes it out");
        // From here on nobody removes it who does not know how far it is.
        let partial = self.partial.take().expect("only what consumes it takes it out");
        ceph.gate.call(|state| state.ceph.uploads.ends(&partial)).await;
        ceph.gate.at_upload(UploadMoment::Naming).await;
        let named = ceph.reached(|state| {
            state.ceph.volumes.remove(&partial)?;
            state.ceph.volumes.commit(upload)?;
            state.contents_named(&volume);
            Ok(())
        });
        named.await?;
        ceph.gate.after_effect().await;
        ceph.gate.at_upload(UploadMoment::Named).await;
        ceph.answered(()).await
    }

    async fn discard(mut self: Box<Self>) {
        if let Some(discarded) = self.begin_discard() {
            // It has said itself what it could not do.
            let _ = discarded.await;
        }
    }
}

impl Drop for CephUpload {
    fn drop(&mut self) {
        self.begin_discard();
    }
}

struct CephDownload {
    ceph: Volumes,
    download: MemoryDownload,
}

#[async_trait]
impl Download for CephDownload {
    fn size_bytes(&self) -> u64 {
        self.download.size_bytes()
    }

    async fn next(&mut self) -> Result<Option<(u64, Bytes)>, StorageError> {
        let CephDownload { ceph, download } = self;
        ceph.gate.at_change(ChangeMoment::Reading).await;
        ceph.kept(|_| Ok(download.next_piece())).await
    }
}

impl Drop for CephDownload {
    fn drop(&mut self) {
        self.ceph.gate.world.with(|state| state.ceph.volumes.close(&self.download));
    }
}

#[cfg(test)]
mod tests {
    use std::any::Any;
    use std::sync::Arc;

    use pvc_contracts::storage::{StorageFixture, storage_contract};
    use pvc_contracts::storage_cluster::{StorageClusterFixture, storage_cluster_contract};
    use pvc_contracts::volume_streams::volume_streams_contract;
    use pvc_model::pool::Tier;

    use super::*;
    use crate::state::World;

    struct Simulated {
        world: World,
        storage: Arc<Volumes>,
    }

    const GUEST: Uuid = Uuid::from_u128(4711);

    /// A guest that runs with a volume, and whose machine is switched off in an orderly way when
    /// this is dropped.
    struct Guest(World);

    impl Drop for Guest {
        fn drop(&mut self) {
            let why = "it is not needed any more";
            self.0.with(|state| {
                state.with_hypervisors(|hypervisors, around| {
                    hypervisors.end_guest(around, 0, GUEST, why, false)
                })
            });
        }
    }

    #[async_trait]
    impl StorageFixture for Simulated {
        fn storage(&self) -> Arc<dyn Storage> {
            self.storage.clone()
        }

        async fn write(&self, volume: &VolumeId, offset: u64, bytes: &[u8]) {
            let written = self.world.with(|state| state.ceph.volumes.write(volume, offset, bytes));
            written.expect("the volume is there");
        }

        async fn read(&self, volume: &VolumeId, offset: u64, length: usize) -> Vec<u8> {
            let read = self.world.with(|state| state.ceph.volumes.read(volume, offset, length));
            read.expect("the volume is there")
        }

        async fn hold(&self, volume: &VolumeId) -> Box<dyn Any + Send> {
            let xml = format!(
                "<domain type='kvm'><name>guest</name><uuid>{GUEST}</uuid><memory \
                 unit='MiB'>512</memory>\
                 <vcpu>1</vcpu><os><type>hvm</type></os><devices><disk type='network' \
                 device='disk'>\
                 <source protocol='rbd' name='{volume}'/><target dev='sda' \
                 bus='scsi'/></disk></devices></domain>"
            );
            let started = self.world.with(|state| {
                state.with_hypervisors(|hypervisors, around| {
                    hypervisors.start_guest(around, 0, GUEST, &xml)?;
                    hypervisors.resume_guest(around, 0, GUEST)
                })
            });
            started.expect("nobody else has the volume");
            Box::new(Guest(self.world.clone()))
        }
    }

    fn simulated() -> Simulated {
        let (world, gates) = World::of_hosts(2);
        let storage = Arc::new(Volumes { gate: gates[1].clone(), host: 1 });
        Simulated { world, storage }
    }

    #[tokio::test(start_paused = true)]
    async fn the_streams_of_the_simulated_ceph_keep_the_contract() {
        volume_streams_contract(&simulated()).await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_simulated_ceph_keeps_the_contract() {
        storage_contract(&simulated()).await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_monitors_of_the_simulated_ceph_keep_the_contract() {
        let Simulated { world, storage, .. } = simulated();
        world.with(|state| state.run.nature.monitors = true);
        let fixture = StorageClusterFixture {
            storage,
            tier: Tier::Ssd,
            set_silent: Box::new(move |is| world.with(|state| state.ceph.silent = is)),
            time_limit: 2 * TIME_LIMIT,
        };
        storage_cluster_contract(fixture).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_guest_leaves_its_lock_and_is_missed_half_a_minute_later() {
        let fixture = simulated();
        let (storage, volume) =
            (fixture.storage(), VolumeId::from_record("vms/web").expect("a volume's name"));
        storage.create(&volume, 4096, false).await.expect("there is room");
        let guest = fixture.hold(&volume).await;
        fixture.world.with(|state| state.power_off(0, "somebody pulled the plug"));
        drop(guest);
        assert_eq!(storage.locks(&volume).await.expect("it is there").len(), 1);
        let refused = storage.remove(&volume).await.expect_err("its guest was there a moment ago");
        assert!(matches!(refused, StorageError::InUse { .. }), "{refused}");
        fixture.storage.gate.sleep(MISSED).await;
        storage.remove(&volume).await.expect("a lock alone holds up nobody");
    }
}
