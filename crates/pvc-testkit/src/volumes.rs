use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use pvc_model::pool::{PoolSpec, Tier};
use pvc_model::storage::{PoolName, SnapshotName, TrashId, VolumeId, VolumeName};
use pvc_ports::{
    CloneName, Flattened, MOST_PIECE_BYTES, PoolFigures, PoolInfo, SnapshotInfo, SnapshotUsage,
    StorageError, TrashedVolume, VolumeInfo, VolumeLock,
};

use crate::contents::Contents;

/// Bytes that fit into each pool.
const POOL_BYTES: u64 = 1 << 40;

#[derive(Debug, Clone)]
struct Snapshot {
    name: SnapshotName,
    size_bytes: u64,
    contents: Contents,
    /// Whether somebody protected it, for clones of theirs to stand on.
    is_protected: bool,
}

#[derive(Debug, Clone, Default)]
struct Volume {
    size_bytes: u64,
    contents: Contents,
    snapshots: Vec<Snapshot>,
    locks: Vec<VolumeLock>,
    /// Clients that have the volume open. Whoever dies leaves a lock behind, and is missed here
    /// soon after.
    users: BTreeSet<String>,
    /// Number of the volume: no other has had it.
    identity: u64,
    /// Number by which copy-on-write clones know it; 0 until there is one.
    number: u64,
    /// Number of the volume that it is a clone of.
    parent: Option<u64>,
}

/// Pools of volumes as a value: contents, snapshots, locks and users, by the rules of the
/// [`Storage`](pvc_ports::Storage) contract.
#[derive(Debug, Clone, Default)]
pub struct MemoryVolumes {
    pools: BTreeMap<PoolName, BTreeMap<VolumeName, Volume>>,
    /// Specifications of the pools that were made by the cluster's ways.
    specs: BTreeMap<PoolName, PoolSpec>,
    trash: BTreeMap<TrashId, (TrashedVolume, Volume)>,
    /// Number of volumes that were ever moved to the trash.
    trashings: u64,
    /// Volumes in the trash that cannot be purged.
    stuck: BTreeSet<TrashId>,
    /// Number of volumes that had copy-on-write clones.
    parents: u64,
    /// Number of copies that were begun.
    partials: u64,
    /// Number of downloads so far.
    downloads: u64,
    /// Number of volumes that were made.
    made: u64,
    /// Bytes that pools store beside their volumes.
    others: BTreeMap<PoolName, u64>,
    /// Pools that the storage does not remove.
    kept: BTreeSet<PoolName>,
    /// Names of volumes whose removal was cut off.
    half_removed: BTreeSet<VolumeId>,
}

type Result<T> = std::result::Result<T, StorageError>;

/// Operations of the port.
impl MemoryVolumes {
    pub fn pools(&self) -> Vec<PoolInfo> {
        self.pools.iter().map(|(name, volumes)| self.pool_info(name, volumes)).collect()
    }

    pub fn pool(&self, pool: &PoolName) -> Result<PoolInfo> {
        Ok(self.pool_info(pool, self.volumes_of(pool)?))
    }

    pub fn create_pool(&mut self, pool: &PoolName) -> Result<()> {
        let pool = PoolName::parse(pool.as_str())?;
        if self.pools.contains_key(&pool) {
            return Err(StorageError::PoolExists { pool });
        }
        self.pools.insert(pool, BTreeMap::new());
        Ok(())
    }

    /// Has the storage refuse to remove the pool from now on.
    pub fn keep_pool(&mut self, pool: &PoolName) {
        self.kept.insert(pool.clone());
    }

    pub fn check_pool_removal(&self, pool: &PoolName) -> Result<()> {
        match self.kept.contains(pool) {
            true => {
                let said = "the pool is kept".to_owned();
                let doing = format!("looking whether pool `{pool}` may be removed");
                Err(StorageError::Refused { doing, said })
            }
            false => Ok(()),
        }
    }

    /// Cuts the removal of a volume off: nothing but its name is there.
    pub fn half_remove(&mut self, volume: &VolumeId) {
        self.take(volume);
        self.half_removed.insert(volume.clone());
    }

    pub fn half_removed(&self, pool: &PoolName) -> Vec<VolumeId> {
        let of = |volume: &&VolumeId| volume.pool == *pool && volume.volume.is_partial();
        self.half_removed.iter().filter(of).cloned().collect()
    }

    pub fn remove_pool(&mut self, pool: &PoolName) -> Result<()> {
        self.check_pool_removal(pool)?;
        let volumes = self.volumes_of(pool)?.len();
        if volumes > 0 {
            return Err(StorageError::PoolNotEmpty { pool: pool.clone(), volumes });
        }
        let volumes = self.trashed(pool)?.len();
        if volumes > 0 {
            return Err(StorageError::PoolHasTrash { pool: pool.clone(), volumes });
        }
        self.pools.remove(pool);
        self.specs.remove(pool);
        Ok(())
    }

    pub fn volumes(&self, pool: &PoolName) -> Result<Vec<VolumeInfo>> {
        let volumes = self.volumes_of(pool)?;
        let id = |name: &VolumeName| VolumeId { pool: pool.clone(), volume: name.clone() };
        Ok(volumes.iter().map(|(name, volume)| volume_info(id(name), volume)).collect())
    }

    pub fn volume(&self, volume: &VolumeId) -> Result<VolumeInfo> {
        self.find(volume).map(|found| volume_info(volume.clone(), found))
    }

    /// Whether a volume has the name. No act here is ever cut off halfway.
    pub fn repair_name(&self, volume: &VolumeId) -> Result<bool> {
        self.volumes_of(&volume.pool)?;
        match self.find(volume) {
            Ok(_) => Ok(true),
            Err(StorageError::NoVolume { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub fn create(&mut self, volume: &VolumeId, size_bytes: u64, force: bool) -> Result<()> {
        self.require_place(volume)?;
        self.require_room(&volume.pool, size_bytes, force)?;
        self.put_new(volume, Volume { size_bytes, ..Volume::default() });
        Ok(())
    }

    /// Identity of the volume, which it has under every name.
    pub fn identity(&self, volume: &VolumeId) -> Result<String> {
        self.find(volume).map(|volume| volume.identity.to_string())
    }

    pub fn resize(&mut self, volume: &VolumeId, size_bytes: u64, force: bool) -> Result<()> {
        let from_bytes = self.find(volume)?.size_bytes;
        if size_bytes < from_bytes {
            self.require_unused(volume)?;
            if !force {
                let volume = volume.clone();
                return Err(StorageError::WouldShrink { volume, from_bytes, to_bytes: size_bytes });
            }
        }
        self.require_room(&volume.pool, size_bytes.saturating_sub(from_bytes), force)?;
        let found = self.find_mut(volume)?;
        found.size_bytes = size_bytes;
        found.contents.cut(size_bytes);
        Ok(())
    }

    /// Returns the name under which a copy of the volume is made that is to be called `to`.
    pub fn new_partial(&mut self, volume: &VolumeId, to: &VolumeName) -> Result<VolumeId> {
        self.find(volume)?;
        self.require_place(&beside(volume, to))?;
        self.partials += 1;
        Ok(beside(volume, &to.partial(self.partials)))
    }

    pub fn clone_volume(&mut self, volume: &VolumeId, to: &VolumeName, force: bool) -> Result<()> {
        let source = self.find(volume)?;
        let (size_bytes, contents) = (source.size_bytes, source.contents.clone());
        let to = beside(volume, to);
        self.require_place(&to)?;
        self.require_room(&to.pool, size_bytes, force)?;
        self.put_new(&to, Volume { size_bytes, contents, ..Volume::default() });
        Ok(())
    }

    pub fn clone_on_write(&mut self, volume: &VolumeId, to: &VolumeName) -> Result<()> {
        let next = self.parents + 1;
        self.find(volume)?;
        let to = beside(volume, to);
        self.require_place(&to)?;
        let source = self.find_mut(volume)?;
        if source.number == 0 {
            source.number = next;
        }
        let (size_bytes, contents) = (source.size_bytes, source.contents.clone());
        let parent = Some(source.number);
        self.parents = next;
        self.put_new(&to, Volume { size_bytes, contents, parent, ..Volume::default() });
        Ok(())
    }

    pub fn flatten(&mut self, volume: &VolumeId, force: bool) -> Result<Flattened> {
        let (parent, size_bytes) = (self.find(volume)?.parent, self.find(volume)?.size_bytes);
        let Some(parent) = parent else { return Ok(Flattened::Independent) };
        self.require_room(&volume.pool, size_bytes, force)?;
        self.find_mut(volume)?.parent = None;
        let is_it = |(_, known): &(&VolumeName, &Volume)| known.number == parent;
        let name = self.volumes_of(&volume.pool)?.iter().find(is_it).map(|(name, _)| name);
        Ok(Flattened::From(name.map(|name| beside(volume, name))))
    }

    /// Refuses what copy-on-write clones would miss.
    fn require_no_clones(&self, volume: &VolumeId) -> Result<()> {
        let number = self.find(volume)?.number;
        let is_clone = |known: &Volume| number != 0 && known.parent == Some(number);
        let there = self.volumes_of(&volume.pool)?.iter();
        let there = there.filter(|(_, known)| is_clone(known)).map(|(name, _)| (name, false));
        let trashed = self.trash.values().filter(|(_, known)| is_clone(known));
        let all = there.chain(trashed.map(|(entry, _)| (&entry.name, true)));
        let clones: Vec<CloneName> = all
            .map(|(name, is_in_trash)| CloneName { volume: beside(volume, name), is_in_trash })
            .collect();
        match clones.is_empty() {
            true => Ok(()),
            false => Err(StorageError::HasClones { volume: volume.clone(), clones }),
        }
    }

    fn require_unprotected(&self, volume: &VolumeId) -> Result<()> {
        let found = self.find(volume)?;
        match found.snapshots.iter().find(|snapshot| snapshot.is_protected) {
            None => Ok(()),
            Some(snapshot) => Err(protected(volume, snapshot)),
        }
    }

    pub fn rename(&mut self, volume: &VolumeId, to: &VolumeName) -> Result<()> {
        let to = beside(volume, to);
        self.find(volume)?;
        self.require_place(&to)?;
        self.require_unused(volume)?;
        if let Some(moved) = self.take(volume) {
            self.put(&to, moved);
        }
        Ok(())
    }

    pub fn remove(&mut self, volume: &VolumeId) -> Result<()> {
        if self.half_removed.remove(volume) {
            return Ok(());
        }
        self.check_removal(volume)?;
        self.take(volume);
        Ok(())
    }

    pub fn check_unused(&self, volume: &VolumeId) -> Result<()> {
        self.find(volume)?;
        self.require_unused(volume)
    }

    pub fn check_removal(&self, volume: &VolumeId) -> Result<()> {
        self.require_unused(volume)?;
        self.require_no_clones(volume)?;
        self.require_unprotected(volume)
    }

    /// Moves the volume to the trash at this moment, by the wall clock.
    pub fn trash(
        &mut self,
        volume: &VolumeId,
        now: Duration,
        keep: Duration,
    ) -> Result<TrashedVolume> {
        self.check_removal(volume)?;
        let Some(moved) = self.take(volume) else {
            return Err(StorageError::NoVolume { volume: volume.clone() });
        };
        self.trashings += 1;
        let id = TrashId::parse(&format!("10{:06x}", self.trashings)).expect("it is a number");
        let entry = TrashedVolume {
            pool: volume.pool.clone(),
            id: id.clone(),
            name: volume.volume.clone(),
            removed_at: now.as_secs(),
            kept_until: now.saturating_add(keep).as_secs(),
        };
        self.trash.insert(id, (entry.clone(), moved));
        Ok(entry)
    }

    pub fn trashed(&self, pool: &PoolName) -> Result<Vec<TrashedVolume>> {
        self.volumes_of(pool)?;
        let entries = self.trash.values().map(|(entry, _)| entry);
        Ok(entries.filter(|entry| entry.pool == *pool).cloned().collect())
    }

    pub fn restore(&mut self, pool: &PoolName, id: &TrashId, to: &VolumeName) -> Result<()> {
        self.find_trashed(pool, id)?;
        let to = VolumeId { pool: pool.clone(), volume: to.clone() };
        self.require_place(&to)?;
        if let Some((_, volume)) = self.trash.remove(id) {
            self.put(&to, volume);
        }
        Ok(())
    }

    /// Size of a volume in the trash.
    pub fn trashed_bytes(&self, id: &TrashId) -> Option<u64> {
        self.trash.get(id).map(|(_, volume)| volume.size_bytes)
    }

    pub fn purge(&mut self, pool: &PoolName, id: &TrashId) -> Result<()> {
        self.find_trashed(pool, id)?;
        if self.stuck.contains(id) {
            let doing = format!("purging volume `{id}` of pool `{pool}`");
            return Err(StorageError::TimedOut { doing, seconds: 10 });
        }
        let snapshots = self.trash.get(id).map_or(&[][..], |(_, volume)| &volume.snapshots);
        if let Some(base) = snapshots.iter().find(|snapshot| snapshot.is_protected) {
            let (pool, id, snapshot) = (pool.clone(), id.clone(), Some(base.name.clone()));
            return Err(StorageError::TrashedHasClones { pool, id, snapshot });
        }
        self.trash.remove(id);
        Ok(())
    }

    pub fn snapshot(&mut self, volume: &VolumeId, snapshot: &SnapshotName) -> Result<()> {
        let name = SnapshotName::parse(snapshot.as_str())?;
        let found = self.find_mut(volume)?;
        found.require_no_snapshot(volume, &name)?;
        let (size_bytes, contents) = (found.size_bytes, found.contents.clone());
        found.snapshots.push(Snapshot { name, size_bytes, contents, is_protected: false });
        Ok(())
    }

    pub fn rename_snapshot(
        &mut self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
        to: &SnapshotName,
    ) -> Result<()> {
        let found = self.find_mut(volume)?;
        let at = found.snapshot(volume, snapshot)?;
        let to = SnapshotName::parse(to.as_str())?;
        found.require_no_snapshot(volume, &to)?;
        found.snapshots[at].name = to;
        Ok(())
    }

    pub fn remove_snapshot(&mut self, volume: &VolumeId, snapshot: &SnapshotName) -> Result<()> {
        let found = self.find_mut(volume)?;
        let at = found.snapshot(volume, snapshot)?;
        if found.snapshots[at].is_protected {
            return Err(protected(volume, &found.snapshots[at]));
        }
        found.snapshots.remove(at);
        Ok(())
    }

    pub fn roll_back(&mut self, volume: &VolumeId, snapshot: &SnapshotName) -> Result<()> {
        let at = self.find(volume)?.snapshot(volume, snapshot)?;
        self.require_unused(volume)?;
        let found = self.find_mut(volume)?;
        let Snapshot { size_bytes, contents, .. } = found.snapshots[at].clone();
        (found.size_bytes, found.contents) = (size_bytes, contents);
        Ok(())
    }

    /// Makes the first `bytes` of a volume what they were at its snapshot: what a rollback has done
    /// that is cut off.
    pub fn begin_roll_back(
        &mut self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
        bytes: u64,
    ) -> Result<()> {
        let at = self.find(volume)?.snapshot(volume, snapshot)?;
        self.require_unused(volume)?;
        let found = self.find_mut(volume)?;
        let before = found.snapshots[at].contents.clone();
        found.contents.take_front_of(&before, bytes);
        Ok(())
    }

    pub fn snapshot_usage(&self, volume: &VolumeId) -> Result<Vec<SnapshotUsage>> {
        let found = self.find(volume)?;
        let now = std::iter::once(&found.contents);
        let all: Vec<&Contents> =
            found.snapshots.iter().map(|snapshot| &snapshot.contents).chain(now).collect();
        let usage = |(at, snapshot): (usize, &Snapshot)| {
            let held: BTreeMap<u64, u64> = snapshot.contents.not_in(all[at + 1]).collect();
            let is_new = |number: u64| match at.checked_sub(1) {
                Some(before) => snapshot.contents.not_in(all[before]).any(|new| new.0 == number),
                None => true,
            };
            let own = held.iter().filter(|(number, _)| is_new(**number)).map(|(_, bytes)| bytes);
            SnapshotUsage {
                name: snapshot.name.clone(),
                held_bytes: held.values().sum(),
                own_bytes: Some(own.sum()),
            }
        };
        Ok(found.snapshots.iter().enumerate().map(usage).collect())
    }

    pub fn locks(&self, volume: &VolumeId) -> Result<&[VolumeLock]> {
        self.find(volume).map(|found| &found.locks[..])
    }

    pub fn break_lock(&mut self, volume: &VolumeId, lock: &VolumeLock) -> Result<()> {
        let found = self.find_mut(volume)?;
        found.locks.retain(|held| held != lock);
        Ok(())
    }
}

/// Answers of the cluster behind the volumes, by the rules of the
/// [`StorageCluster`](pvc_ports::StorageCluster) contract.
impl MemoryVolumes {
    /// Figures of all pools, whose numbers are given in the order of their names.
    pub fn pool_figures(&self) -> Vec<PoolFigures> {
        let figures = |(id, info): (u64, PoolInfo)| PoolFigures {
            name: info.name,
            id,
            stored_bytes: info.stored_bytes,
            free_bytes: info.free_bytes,
            used_bytes: info.stored_bytes,
            used_fraction: info.stored_bytes as f64 / POOL_BYTES as f64,
            objects: 0,
            object_clones: 0,
            object_copies: 0,
            objects_missing_on_primary: 0,
            objects_unfound: 0,
            objects_degraded: 0,
            read_ops: 0,
            read_bytes: 0,
            write_ops: 0,
            write_bytes: 0,
        };
        (1..).zip(self.pools()).map(figures).collect()
    }

    /// The record of a volume, with a part of what Ceph says in it.
    pub fn record(&self, volume: &VolumeId) -> Result<String> {
        self.find(volume).map(|found| record(volume, found.size_bytes))
    }

    /// The same of the volume as its snapshot has it.
    pub fn snapshot_record(&self, volume: &VolumeId, snapshot: &SnapshotName) -> Result<String> {
        let found = self.find(volume)?;
        let at = found.snapshot(volume, snapshot)?;
        Ok(record(volume, found.snapshots[at].size_bytes))
    }

    /// Makes a pool on devices that are all SSDs.
    pub fn make_pool(&mut self, spec: &PoolSpec) -> Result<()> {
        let is_alike = |known: &&PoolSpec| {
            known.replication == spec.replication && known.placement_groups == spec.placement_groups
        };
        if self.specs.get(&spec.name).is_some_and(|known| is_alike(&known)) {
            return Ok(());
        }
        if let (Tier::Hdd | Tier::Nvme, Some(class)) = (spec.tier, spec.tier.device_class()) {
            return Err(StorageError::NoDevices { class });
        }
        self.create_pool(&spec.name)?;
        self.specs.insert(spec.name.clone(), spec.clone());
        Ok(())
    }

    pub fn set_placement_groups(&mut self, pool: &PoolName, count: u32) -> Result<()> {
        self.volumes_of(pool)?;
        if let Some(spec) = self.specs.get_mut(pool) {
            spec.placement_groups = count;
        }
        Ok(())
    }

    /// Specification of the pool, if it was made by the cluster's ways.
    pub fn spec(&self, pool: &PoolName) -> Option<&PoolSpec> {
        self.specs.get(pool)
    }
}

/// A volume in the making.
#[derive(Debug, Clone)]
pub struct MemoryUpload {
    id: VolumeId,
    size_bytes: u64,
    contents: Contents,
}

impl MemoryUpload {
    pub fn write(&mut self, offset_bytes: u64, bytes: &[u8]) -> Result<()> {
        let end = offset_bytes.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.size_bytes) {
            let (volume, size_bytes) = (self.id.clone(), self.size_bytes);
            return Err(StorageError::BeyondEnd { volume, offset_bytes, size_bytes });
        }
        self.contents.put(offset_bytes, bytes);
        Ok(())
    }
}

/// The contents of a volume at a moment, and how far they were read.
#[derive(Debug, Clone)]
pub struct MemoryDownload {
    id: VolumeId,
    /// By which the volume is in use; none for a snapshot.
    user: Option<String>,
    size_bytes: u64,
    contents: Contents,
    at: u64,
}

impl MemoryDownload {
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    pub fn next_piece(&mut self) -> Option<(u64, Bytes)> {
        let start = self.contents.next_written(self.at)?;
        let end = self.size_bytes.min(start + MOST_PIECE_BYTES as u64);
        let bytes = self.contents.read(start, (end - start) as usize);
        self.at = end;
        Some((start, bytes.into()))
    }
}

/// The contents of volumes as streams.
impl MemoryVolumes {
    pub fn upload(&self, volume: &VolumeId, size_bytes: u64, force: bool) -> Result<MemoryUpload> {
        VolumeName::parse(volume.volume.as_str())?;
        self.require_room(&volume.pool, size_bytes, force)?;
        Ok(MemoryUpload { id: volume.clone(), size_bytes, contents: Contents::default() })
    }

    pub fn commit(&mut self, upload: MemoryUpload) -> Result<()> {
        let MemoryUpload { id, size_bytes, contents } = upload;
        self.require_place(&id)?;
        self.put_new(&id, Volume { size_bytes, contents, ..Volume::default() });
        Ok(())
    }

    pub fn download(
        &mut self,
        volume: &VolumeId,
        snapshot: Option<&SnapshotName>,
    ) -> Result<MemoryDownload> {
        let (id, at) = (volume.clone(), 0);
        if let Some(name) = snapshot {
            let found = self.find(volume)?;
            let Snapshot { size_bytes, contents, .. } =
                found.snapshots[found.snapshot(volume, name)?].clone();
            return Ok(MemoryDownload { id, user: None, size_bytes, contents, at });
        }
        self.require_unused(volume)?;
        self.downloads += 1;
        let user = format!("download {}", self.downloads);
        self.open(volume, &user);
        let found = self.find(volume)?;
        let (size_bytes, contents) = (found.size_bytes, found.contents.clone());
        Ok(MemoryDownload { id, user: Some(user), size_bytes, contents, at })
    }

    /// The download is over: others may open the volume again.
    pub fn close(&mut self, download: &MemoryDownload) {
        if let (Some(user), Ok(volume)) = (&download.user, self.find_mut(&download.id)) {
            volume.users.remove(user);
        }
    }
}

/// Actions of guests on volumes, and of whoever else does not go through the port.
impl MemoryVolumes {
    /// A volume of 1 GiB that somebody made earlier, with its pool. One that is there stays as it
    /// is.
    pub fn insert(&mut self, volume: &VolumeId) {
        let volumes = self.pools.entry(volume.pool.clone()).or_default();
        let new = || Volume { size_bytes: 1 << 30, ..Volume::default() };
        volumes.entry(volume.volume.clone()).or_insert_with(new);
    }

    /// Lets somebody protect every snapshot of this name, also of what is in the trash, for clones
    /// of theirs to stand on.
    pub fn protect(&mut self, snapshot: &SnapshotName) {
        let there = self.pools.values_mut().flat_map(BTreeMap::values_mut);
        let trashed = self.trash.values_mut().map(|(_, volume)| volume);
        for found in there.chain(trashed).flat_map(|volume| &mut volume.snapshots) {
            found.is_protected |= found.name == *snapshot;
        }
    }

    /// Sets whether a volume in the trash cannot be purged.
    pub fn set_stuck(&mut self, id: &TrashId, is_stuck: bool) {
        match is_stuck {
            true => self.stuck.insert(id.clone()),
            false => self.stuck.remove(id),
        };
    }

    /// The identifier in the trash of the last volume that had this name.
    pub fn trash_id(&self, volume: &VolumeId) -> Option<TrashId> {
        let entries = self.trash.values().map(|(entry, _)| entry);
        let named =
            entries.filter(|entry| entry.pool == volume.pool && entry.name == volume.volume);
        named.map(|entry| entry.id.clone()).max()
    }

    /// The volume is gone, whoever uses it.
    pub fn lose(&mut self, volume: &VolumeId) {
        self.take(volume);
    }

    /// Somebody has it open from now on, and nobody but them a lock on it.
    ///
    /// # Panics
    /// If there is no such volume.
    pub fn hold(&mut self, volume: &VolumeId, lock: VolumeLock) {
        self.open(volume, &lock.locker);
        self.find_mut(volume).expect("it was just opened").locks = vec![lock];
    }

    /// Somebody has it open from now on.
    ///
    /// # Panics
    /// If there is no such volume.
    pub fn open(&mut self, volume: &VolumeId, user: &str) {
        self.find_mut(volume)
            .expect("who opens a volume has seen it")
            .users
            .insert(user.to_owned());
    }

    /// Somebody has nothing open any more.
    pub fn close_all(&mut self, user: &str) {
        for volume in self.each() {
            volume.users.remove(user);
        }
    }

    /// Hands what one client has open over to another.
    pub fn hand_over(&mut self, from: &str, to: &str) {
        for volume in self.each() {
            if volume.users.remove(from) {
                volume.users.insert(to.to_owned());
            }
        }
    }

    /// The locks of each volume.
    pub fn all_locks(&mut self) -> impl Iterator<Item = &mut Vec<VolumeLock>> {
        self.each().map(|volume| &mut volume.locks)
    }

    /// The locks of one.
    pub fn locks_mut(&mut self, volume: &VolumeId) -> Result<&mut Vec<VolumeLock>> {
        self.find_mut(volume).map(|found| &mut found.locks)
    }

    /// Fills a pool to so many percent with what are no volumes.
    pub fn fill_pool(&mut self, pool: &PoolName, percent: u64) {
        self.others.insert(pool.clone(), POOL_BYTES / 100 * percent);
    }

    /// # Panics
    /// If it is beyond the end of the volume.
    pub fn write(&mut self, volume: &VolumeId, offset: u64, bytes: &[u8]) -> Result<()> {
        let found = self.find_mut(volume)?;
        assert!(
            offset + bytes.len() as u64 <= found.size_bytes,
            "a guest sees no more than its volume"
        );
        found.contents.write(offset, bytes);
        Ok(())
    }

    pub fn read(&self, volume: &VolumeId, offset: u64, length: usize) -> Result<Vec<u8>> {
        self.find(volume).map(|found| found.contents.read(offset, length))
    }

    /// The same of the volume as its snapshot has it.
    pub fn read_snapshot(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>> {
        let found = self.find(volume)?;
        let at = found.snapshot(volume, snapshot)?;
        Ok(found.snapshots[at].contents.read(offset, length))
    }

    /// Whether the volume depends on another one, of which it is a copy-on-write clone.
    pub fn is_clone(&self, volume: &VolumeId) -> Result<bool> {
        self.find(volume).map(|found| found.parent.is_some())
    }

    /// Clients that have the volume open.
    pub fn users(&self, volume: &VolumeId) -> Result<&BTreeSet<String>> {
        self.find(volume).map(|found| &found.users)
    }
}

impl MemoryVolumes {
    fn volumes_of(&self, pool: &PoolName) -> Result<&BTreeMap<VolumeName, Volume>> {
        self.pools.get(pool).ok_or_else(|| StorageError::NoPool { pool: pool.clone() })
    }

    fn find_trashed(&self, pool: &PoolName, id: &TrashId) -> Result<&TrashedVolume> {
        self.volumes_of(pool)?;
        let found = self.trash.get(id).map(|(entry, _)| entry);
        let found = found.filter(|entry| entry.pool == *pool);
        found.ok_or_else(|| StorageError::NoTrashed { pool: pool.clone(), id: id.clone() })
    }

    fn find(&self, volume: &VolumeId) -> Result<&Volume> {
        let found = self.pools.get(&volume.pool).and_then(|volumes| volumes.get(&volume.volume));
        found.ok_or_else(|| StorageError::NoVolume { volume: volume.clone() })
    }

    fn find_mut(&mut self, volume: &VolumeId) -> Result<&mut Volume> {
        let found =
            self.pools.get_mut(&volume.pool).and_then(|volumes| volumes.get_mut(&volume.volume));
        found.ok_or_else(|| StorageError::NoVolume { volume: volume.clone() })
    }

    fn take(&mut self, volume: &VolumeId) -> Option<Volume> {
        self.pools.get_mut(&volume.pool)?.remove(&volume.volume)
    }

    fn put_new(&mut self, id: &VolumeId, volume: Volume) {
        self.made += 1;
        self.put(id, Volume { identity: self.made, ..volume });
    }

    fn put(&mut self, id: &VolumeId, volume: Volume) {
        self.pools.entry(id.pool.clone()).or_default().insert(id.volume.clone(), volume);
    }

    fn each(&mut self) -> impl Iterator<Item = &mut Volume> {
        self.pools.values_mut().flat_map(BTreeMap::values_mut)
    }

    /// Refuses a name that cannot be, or is taken.
    fn require_place(&self, volume: &VolumeId) -> Result<()> {
        VolumeName::parse(volume.volume.as_str())?;
        match self.volumes_of(&volume.pool)?.contains_key(&volume.volume) {
            true => Err(StorageError::VolumeExists { volume: volume.clone() }),
            false => Ok(()),
        }
    }

    fn pool_info(&self, name: &PoolName, volumes: &BTreeMap<VolumeName, Volume>) -> PoolInfo {
        let trashed = self.trash.values().filter(|(entry, _)| entry.pool == *name);
        let trashed = trashed.map(|(_, volume)| volume);
        let stored = volumes.values().chain(trashed).map(Volume::stored_bytes).sum::<u64>();
        let stored_bytes = stored + self.others.get(name).copied().unwrap_or_default();
        PoolInfo {
            name: name.clone(),
            stored_bytes,
            free_bytes: POOL_BYTES.saturating_sub(stored_bytes),
        }
    }

    fn require_room(&self, pool: &PoolName, needed_bytes: u64, force: bool) -> Result<()> {
        self.pool(pool)?.check_room(needed_bytes, force)
    }

    fn require_unused(&self, volume: &VolumeId) -> Result<()> {
        match self.find(volume)?.users.first().cloned() {
            Some(holder) => Err(StorageError::InUse { volume: volume.clone(), holder }),
            None => Ok(()),
        }
    }
}

impl Volume {
    /// Index of this snapshot among those of the volume.
    fn snapshot(&self, id: &VolumeId, name: &SnapshotName) -> Result<usize> {
        let found = self.snapshots.iter().position(|known| known.name == *name);
        found.ok_or_else(|| StorageError::NoSnapshot { volume: id.clone(), snapshot: name.clone() })
    }

    fn require_no_snapshot(&self, id: &VolumeId, name: &SnapshotName) -> Result<()> {
        match self.snapshot(id, name) {
            Ok(_) => {
                Err(StorageError::SnapshotExists { volume: id.clone(), snapshot: name.clone() })
            }
            Err(_) => Ok(()),
        }
    }

    fn stored_bytes(&self) -> u64 {
        let kept = self.snapshots.iter().map(|snapshot| snapshot.contents.used_bytes());
        self.contents.used_bytes() + kept.sum::<u64>()
    }
}

fn protected(volume: &VolumeId, snapshot: &Snapshot) -> StorageError {
    StorageError::Protected { volume: volume.clone(), snapshot: snapshot.name.clone() }
}

fn volume_info(id: VolumeId, volume: &Volume) -> VolumeInfo {
    let shown =
        |known: &Snapshot| SnapshotInfo { name: known.name.clone(), size_bytes: known.size_bytes };
    VolumeInfo {
        id,
        size_bytes: volume.size_bytes,
        used_bytes: Some(volume.stored_bytes()),
        snapshots: volume.snapshots.iter().map(shown).collect(),
    }
}

fn record(volume: &VolumeId, size_bytes: u64) -> String {
    format!(r#"{{"name":"{}","size":{size_bytes}}}"#, volume.volume)
}

fn beside(volume: &VolumeId, name: &VolumeName) -> VolumeId {
    VolumeId { pool: volume.pool.clone(), volume: name.clone() }
}
