//! The Storage port on RBD.

mod names;
mod partial;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt, stream};
use pvc_model::storage::{PoolName, RbdAccess, SnapshotName, TrashId, VolumeId, VolumeName};
use pvc_ports::{
    Attachment, Course, Exec, Flattened, MeasuredPlace, MeasuredVolume, OsdHost, PoolInfo,
    SnapshotInfo, SnapshotUsage, Storage, StorageCluster, StorageError, TrashedVolume, VolumeInfo,
    VolumeLock, VolumeStreams,
};
use serde_json::json;
use tokio::sync::Mutex;

use self::names::left_of_a_rename;
pub(crate) use self::names::{
    good_volume, require_addressable, require_pool_name, require_snapshot_name, require_unprotected,
};
pub(crate) use self::partial::{named, partial_of, random};
use crate::CephOptions;
use crate::answers;
use crate::connection::Connection;
use crate::figures;
use crate::gate::WritePermit;
use crate::looks::Looks;
use crate::monitors::Monitors;
use crate::rbd::{
    FEATURES, Failure, Programs, QUICK, image_args, io_error, long, pool_arg, target_args,
    with_pool,
};

const LOOKING: &str = "looking at a volume";
const LISTING: &str = "listing volumes";

/// Times that a pool is listed while volumes go.
const LIST_TRIES: u32 = 3;

/// Number of volumes that are looked at together where they cannot be listed.
const LOOKS_AT_ONCE: usize = 8;

/// Time that the managers may take to have figures of a new pool.
const FIGURES: Duration = Duration::from_secs(15);
const FIGURES_POLL: Duration = Duration::from_millis(200);

/// The Storage port on the RBD images of one Ceph cluster. Cheap to clone.
#[derive(Clone)]
pub struct RbdStorage {
    pub(crate) programs: Arc<Programs>,
    /// Held while a volume is restored: Ceph itself lets two bring one back under two names.
    pub(crate) restoring: Arc<Mutex<()>>,
    pub(crate) monitors: Arc<Monitors>,
    pub(crate) access: RbdAccess,
    /// Looks through librbd; none if programs do all of it.
    pub(crate) looks: Option<Arc<Looks>>,
    osds: Option<Arc<dyn OsdHost>>,
}

impl RbdStorage {
    /// Nothing is asked yet: a cluster that is not there makes the first call fail.
    pub fn new(options: CephOptions, exec: Arc<dyn Exec>) -> Self {
        let access = options.access.clone();
        let connection = Arc::new(Connection::new(options.clone()));
        let monitors = Arc::new(Monitors::new(connection.clone()));
        let looks = Some(Arc::new(Looks::new(connection)));
        let programs = Arc::new(Programs::new(exec, options));
        let restoring = Arc::default();
        RbdStorage { programs, restoring, monitors, access, looks, osds: None }
    }

    /// The same without librbd: whatever it looks at, a program looks, which is much slower.
    #[must_use]
    pub fn without_library(self) -> Self {
        RbdStorage { looks: None, ..self }
    }

    /// Adds the disks of this node.
    #[must_use]
    pub fn with_osds(self, osds: Arc<dyn OsdHost>) -> Self {
        RbdStorage { osds: Some(osds), ..self }
    }

    /// Output of `rbd info` for the volume.
    pub(crate) async fn image_text(&self, volume: &VolumeId) -> Result<Vec<u8>, StorageError> {
        require_addressable(volume)?;
        let args = with_json(image_args(volume));
        let printed = self.programs.look(&["info"], args, QUICK).await;
        printed.map_err(|failure| failure.of(volume, LOOKING))
    }

    /// The image with all that `rbd info` says of it.
    pub(crate) async fn described(
        &self,
        volume: &VolumeId,
    ) -> Result<answers::Image, StorageError> {
        answers::json(&self.image_text(volume).await?)
            .map_err(|why| Failure::Other(why).of(volume, LOOKING))
    }

    /// Output of `rbd info` for the volume as its snapshot has it.
    pub(crate) async fn snapshot_text(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
    ) -> Result<Vec<u8>, StorageError> {
        require_snapshot_name(volume, snapshot)?;
        self.require_snapshot(volume, snapshot).await?;
        let args = [image_args(volume), vec![format!("--snap={snapshot}")]].concat();
        let printed = self.programs.look(&["info"], with_json(args), QUICK).await;
        printed.map_err(|failure| match failure {
            // It was there a moment ago, and its volume is not gone with it.
            Failure::NotFound { pool: false } => {
                StorageError::NoSnapshot { volume: volume.clone(), snapshot: snapshot.clone() }
            }
            other => other.of(volume, LOOKING),
        })
    }

    pub(crate) async fn require_snapshot(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
    ) -> Result<answers::Snapshot, StorageError> {
        require_addressable(volume)?;
        let name = snapshot.as_str();
        let found = self.snapshots(volume).await?.into_iter().find(|found| found.name == name);
        found.ok_or_else(|| StorageError::NoSnapshot {
            volume: volume.clone(),
            snapshot: snapshot.clone(),
        })
    }

    /// Refuses a name that is taken: by a volume, or by what a rename that was cut short has left.
    pub(crate) async fn require_absent(&self, volume: &VolumeId) -> Result<(), StorageError> {
        match self.image(volume).await {
            Ok(_) if self.volume_names(&volume.pool).await?.contains(&volume.volume) => {
                Err(StorageError::VolumeExists { volume: volume.clone() })
            }
            Ok(_) => Err(left_of_a_rename(volume)),
            Err(StorageError::NoVolume { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The volumes of a pool that can be opened.
    async fn volumes_one_by_one(&self, pool: &PoolName) -> Result<Vec<VolumeInfo>, StorageError> {
        let names = self.volume_names(pool).await?;
        let ids = names.into_iter().map(|volume| VolumeId { pool: pool.clone(), volume });
        let looks = ids.map(|id| async move { self.volume(&id).await });
        let mut looks = stream::iter(looks).buffered(LOOKS_AT_ONCE);
        let mut volumes = Vec::new();
        while let Some(look) = looks.next().await {
            match look {
                Ok(volume) => volumes.push(volume),
                Err(StorageError::NoVolume { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(volumes)
    }

    /// Brings to their end the removals of volumes that were cut off: the pool lists these, and
    /// nothing is there any more.
    async fn end_removals(&self, pool: &PoolName) -> Result<(), StorageError> {
        for volume in self.volume_names(pool).await? {
            let volume = VolumeId { pool: pool.clone(), volume };
            if !self.opens_nothing(&volume).await? {
                continue;
            }
            match self.remove(&volume).await {
                Ok(()) | Err(StorageError::NoVolume { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn require_no_volumes(&self, pool: &PoolName) -> Result<(), StorageError> {
        match self.volume_names(pool).await?.len() {
            0 => Ok(()),
            volumes => Err(StorageError::PoolNotEmpty { pool: pool.clone(), volumes }),
        }
    }

    pub(crate) async fn require_listed(&self, volume: &VolumeId) -> Result<(), StorageError> {
        require_addressable(volume)?;
        match self.volume_names(&volume.pool).await?.contains(&volume.volume) {
            true => Ok(()),
            false => Err(StorageError::NoVolume { volume: volume.clone() }),
        }
    }

    /// Every pool there is now, also those that hold other things than volumes.
    pub(crate) async fn all_pools(&self) -> Result<Vec<figures::Pool>, StorageError> {
        let doing = "listing pools";
        let detail =
            self.monitors.json(json!({ "prefix": "osd pool ls", "detail": "detail" })).await;
        let detail = detail.map_err(|error| error.while_doing(doing))?;
        figures::pools(&detail).map_err(|why| io_error(doing, why))
    }

    /// Fill level of pools. Figures follow what is there by seconds: a new pool has none yet, and
    /// one that is gone may still have some.
    pub(crate) async fn fullness(&self) -> Result<Vec<PoolInfo>, StorageError> {
        let doing = "looking how full pools are";
        let df = self.monitors.json(json!({ "prefix": "df" })).await;
        figures::fullness(&df.map_err(|error| error.while_doing(doing))?)
            .map_err(|why| io_error(doing, why))
    }

    pub(crate) async fn exists(&self, pool: &PoolName) -> Result<bool, StorageError> {
        Ok(self.all_pools().await?.iter().any(|found| found.name == *pool))
    }

    pub(crate) async fn make_snapshot(
        &self,
        permit: &WritePermit,
        volume: &VolumeId,
        snapshot: &SnapshotName,
    ) -> Result<(), StorageError> {
        require_addressable(volume)?;
        let args = [image_args(volume), vec![format!("--snap={snapshot}")]].concat();
        let made = self.programs.write(permit, &["snap", "create"], args, QUICK).await;
        made.map_err(|failure| failure.of_snapshot(volume, snapshot, "making a snapshot"))
    }

    pub(crate) async fn make_empty(
        &self,
        permit: &WritePermit,
        volume: &VolumeId,
        size_bytes: u64,
    ) -> Result<(), StorageError> {
        let size = format!("--size={size_bytes}B");
        let args = [image_args(volume), vec![size], FEATURES.map(str::to_owned).to_vec()].concat();
        let made = self.programs.write(permit, &["create"], args, QUICK).await;
        made.map_err(|failure| failure.of(volume, "making a volume"))
    }
}

pub(crate) fn with_json(mut args: Vec<String>) -> Vec<String> {
    args.push("--format=json".to_owned());
    args
}

#[async_trait]
impl Storage for RbdStorage {
    /// Pools that hold other things than volumes are none of ours, and one without figures is not
    /// listed yet.
    async fn pools(&self) -> Result<Vec<PoolInfo>, StorageError> {
        let there = self.all_pools().await?;
        let ours = |info: &PoolInfo| {
            there.iter().any(|pool| pool.name == info.name && pool.is_for_volumes)
        };
        Ok(self.fullness().await?.into_iter().filter(ours).collect())
    }

    async fn pool(&self, pool: &PoolName) -> Result<PoolInfo, StorageError> {
        if !self.exists(pool).await? {
            return Err(StorageError::NoPool { pool: pool.clone() });
        }
        let known = async {
            loop {
                if let Some(found) =
                    self.fullness().await?.into_iter().find(|found| found.name == *pool)
                {
                    return Ok(found);
                }
                tokio::time::sleep(FIGURES_POLL).await;
            }
        };
        let late = StorageError::TimedOut {
            doing: with_pool("looking how full a pool is", pool),
            seconds: FIGURES.as_secs(),
        };
        tokio::time::timeout(FIGURES, known).await.unwrap_or(Err(late))
    }

    /// Creates a pool with as many copies and placement groups as Ceph's own configuration says.
    async fn create_pool(&self, pool: &PoolName) -> Result<(), StorageError> {
        let pool = PoolName::parse(pool.as_str())?;
        // Ceph takes the creation of a pool that exists for done.
        if self.exists(&pool).await? {
            return Err(StorageError::PoolExists { pool });
        }
        let create = json!({ "prefix": "osd pool create", "pool": pool.as_str() });
        self.demand(&pool, &create, "making a pool").await?;
        self.enable_volumes(&pool).await?;
        self.pool(&pool).await.map(drop)
    }

    async fn remove_pool(&self, pool: &PoolName) -> Result<(), StorageError> {
        require_pool_name(pool)?;
        self.end_removals(pool).await?;
        self.require_no_volumes(pool).await?;
        let volumes = self.all_trashed(pool).await?.len();
        if volumes > 0 {
            return Err(StorageError::PoolHasTrash { pool: pool.clone(), volumes });
        }
        // One may have been restored between.
        self.require_no_volumes(pool).await?;
        let (name, twice) = (pool.as_str(), "yes_i_really_really_mean_it");
        let command = json!({ "prefix": "osd pool rm", "pool": name, "pool2": name, twice: true });
        self.demand(pool, &command, "removing a pool").await
    }

    async fn check_pool_removal(&self, pool: &PoolName) -> Result<(), StorageError> {
        require_pool_name(pool)?;
        let found = self.all_pools().await?.into_iter().find(|found| found.name == *pool);
        let found = found.ok_or_else(|| StorageError::NoPool { pool: pool.clone() })?;
        let said = match found.is_kept {
            true => format!(
                "the pool is not to be removed; `ceph osd pool set {pool} nodelete false` changes \
                 that"
            ),
            false if self.removes_pools().await == Some(false) => {
                "no pool may be removed; `ceph config set mon mon_allow_pool_delete true` changes \
                 that"
                    .to_owned()
            }
            false => return Ok(()),
        };
        let doing = format!("looking whether pool `{pool}` may be removed");
        Err(StorageError::Refused { doing, said })
    }

    async fn half_removed(&self, pool: &PoolName) -> Result<Vec<VolumeId>, StorageError> {
        require_pool_name(pool)?;
        let mut found = Vec::new();
        for volume in self.volume_names(pool).await?.into_iter().filter(VolumeName::is_partial) {
            let volume = VolumeId { pool: pool.clone(), volume };
            if self.opens_nothing(&volume).await? {
                found.push(volume);
            }
        }
        Ok(found)
    }

    async fn volumes(&self, pool: &PoolName) -> Result<Vec<VolumeInfo>, StorageError> {
        require_pool_name(pool)?;
        let args = with_json(vec!["--long".to_owned(), pool_arg(pool)]);
        for _ in 0..LIST_TRIES {
            match self.programs.look(&["ls"], args.clone(), long(0)).await {
                Ok(text) => {
                    return answers::volumes(pool, &text)
                        .map_err(|why| Failure::Other(why).of_pool(pool, LISTING));
                }
                // A volume went while it was looked at, and the rest was not listed.
                Err(Failure::NotFound { pool: false }) => {}
                Err(failure) => return Err(failure.of_pool(pool, LISTING)),
            }
        }
        // One whose removal was cut off is listed and cannot be opened.
        self.volumes_one_by_one(pool).await
    }

    async fn volume(&self, volume: &VolumeId) -> Result<VolumeInfo, StorageError> {
        let (image, snapshots) = self.image_and_snapshots(volume).await?;
        let snapshots = snapshots.into_iter().map(SnapshotInfo::from).collect();
        Ok(VolumeInfo { id: volume.clone(), size_bytes: image.size, used_bytes: None, snapshots })
    }

    async fn create(
        &self,
        volume: &VolumeId,
        size_bytes: u64,
        force: bool,
    ) -> Result<(), StorageError> {
        let volume = good_volume(&volume.pool, &volume.volume)?;
        self.require_absent(&volume).await?;
        let permit = self.may_fill(&volume.pool, size_bytes, force).await?;
        self.make_empty(&permit, &volume, size_bytes).await
    }

    /// Growing is allowed while the volume is in use: Ceph tells its user. What it grows by must
    /// have room.
    async fn resize(
        &self,
        volume: &VolumeId,
        size_bytes: u64,
        force: bool,
    ) -> Result<(), StorageError> {
        let from_bytes = self.image(volume).await?.size;
        let (words, deadline) = (["resize"], long(from_bytes));
        let mut args = [image_args(volume), vec![format!("--size={size_bytes}B")]].concat();
        let resized = match size_bytes.cmp(&from_bytes) {
            std::cmp::Ordering::Equal => return Ok(()),
            std::cmp::Ordering::Greater => {
                let permit = self.may_fill(&volume.pool, size_bytes - from_bytes, force).await?;
                self.programs.write(&permit, &words, args, deadline).await
            }
            std::cmp::Ordering::Less => {
                self.require_unused(volume).await?;
                if !force {
                    let volume = volume.clone();
                    return Err(StorageError::WouldShrink {
                        volume,
                        from_bytes,
                        to_bytes: size_bytes,
                    });
                }
                args.push("--allow-shrink".to_owned());
                let permit = self.may_write(&volume.pool).await?;
                let goes = from_bytes - size_bytes;
                self.programs.write_through(&permit, &words, args, goes, deadline).await
            }
        };
        resized.map_err(|failure| failure.of_begun(volume, "resizing a volume"))
    }

    async fn clone_volume(
        &self,
        volume: &VolumeId,
        to: &VolumeName,
        force: bool,
        course: &Course,
    ) -> Result<(), StorageError> {
        let to = good_volume(&volume.pool, to)?;
        let size_bytes = self.image(volume).await?.size;
        self.require_absent(&to).await?;
        let permit = &self.may_fill(&to.pool, size_bytes, force).await?;
        self.publish(&to, |partial| async move {
            self.copy_of_moment(permit, volume, size_bytes, &partial, course).await
        })
        .await
    }

    async fn clone_on_write(
        &self,
        volume: &VolumeId,
        to: &VolumeName,
        course: &Course,
    ) -> Result<(), StorageError> {
        self.make_clone(volume, to, course).await
    }

    async fn flatten(
        &self,
        volume: &VolumeId,
        force: bool,
        course: &Course,
    ) -> Result<Flattened, StorageError> {
        self.make_independent(volume, force, course).await
    }

    async fn rename(&self, volume: &VolumeId, to: &VolumeName) -> Result<(), StorageError> {
        let to = good_volume(&volume.pool, to)?;
        self.require_listed(volume).await?;
        self.require_unused(volume).await?;
        let permit = self.may_write(&volume.pool).await?;
        self.move_to(&permit, volume, &to.volume, "renaming a volume").await
    }

    async fn remove(&self, volume: &VolumeId) -> Result<(), StorageError> {
        // A name may open a volume that has another by now.
        self.require_listed(volume).await?;
        let doing = "removing a volume";
        let found = match self.whole_image(volume).await {
            Ok(found) => found,
            // A removal that was cut off is brought to its end, and a move to the trash is not.
            Err(StorageError::NoVolume { .. }) if self.half_trashed(volume).await?.is_none() => {
                let removed = self.programs.remove(&["rm"], image_args(volume), long(0)).await;
                return removed.map_err(|failure| failure.of(volume, doing));
            }
            Err(error) => return Err(error),
        };
        found.require_unused(volume)?;
        let (image, snapshots) = self.require_no_clones(volume, found).await?;
        self.end_half(volume, &image.trash_id(volume, doing)?).await?;
        let size_bytes = image.size;
        snapshots.iter().try_for_each(|snapshot| require_unprotected(volume, snapshot))?;
        if !snapshots.is_empty() {
            let words = ["snap", "purge"];
            let purged = self.programs.remove(&words, image_args(volume), long(size_bytes)).await;
            purged.map_err(|failure| failure.of(volume, doing))?;
        }
        let (words, deadline) = (["rm"], long(size_bytes));
        let args = image_args(volume);
        let removed = self.programs.remove_through(&words, args, size_bytes, deadline).await;
        removed.map_err(|failure| failure.of(volume, doing))
    }

    async fn check_unused(&self, volume: &VolumeId) -> Result<(), StorageError> {
        self.require_unused(volume).await
    }

    async fn check_removal(&self, volume: &VolumeId) -> Result<(), StorageError> {
        self.require_removable(volume).await
    }

    async fn trash(
        &self,
        volume: &VolumeId,
        keep: Duration,
    ) -> Result<TrashedVolume, StorageError> {
        self.move_to_trash(volume, keep).await
    }

    async fn trashed(&self, pool: &PoolName) -> Result<Vec<TrashedVolume>, StorageError> {
        self.trashed_by_users(pool).await
    }

    async fn restore(
        &self,
        pool: &PoolName,
        id: &TrashId,
        to: &VolumeName,
    ) -> Result<(), StorageError> {
        self.restore_from_trash(pool, id, to).await
    }

    async fn repair_name(&self, volume: &VolumeId) -> Result<bool, StorageError> {
        self.mend_name(volume).await
    }

    async fn purge(&self, pool: &PoolName, id: &TrashId) -> Result<(), StorageError> {
        self.purge_from_trash(pool, id).await
    }

    async fn snapshot(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
    ) -> Result<(), StorageError> {
        let snapshot = SnapshotName::parse(snapshot.as_str())?;
        let permit = self.may_write(&volume.pool).await?;
        self.make_snapshot(&permit, volume, &snapshot).await
    }

    async fn rename_snapshot(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
        to: &SnapshotName,
    ) -> Result<(), StorageError> {
        let to = SnapshotName::parse(to.as_str())?;
        self.require_snapshot(volume, snapshot).await?;
        let permit = self.may_write(&volume.pool).await?;
        let names = vec![format!("--snap={snapshot}"), format!("--dest-snap={to}")];
        let args = [image_args(volume), target_args(&volume.pool, &volume.volume), names].concat();
        let renamed = self.programs.write(&permit, &["snap", "rename"], args, QUICK).await;
        renamed.map_err(|failure| failure.of_snapshot(volume, &to, "renaming a snapshot"))
    }

    async fn remove_snapshot(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
    ) -> Result<(), StorageError> {
        require_snapshot_name(volume, snapshot)?;
        let found = self.require_snapshot(volume, snapshot).await?;
        if snapshot.is_base() {
            return self.remove_base(volume, snapshot).await;
        }
        require_unprotected(volume, &found)?;
        let args = [image_args(volume), vec![format!("--snap={snapshot}")]].concat();
        let removed = self.programs.remove(&["snap", "rm"], args, QUICK).await;
        removed.map_err(|failure| match failure {
            // It was protected this moment.
            Failure::Busy => {
                StorageError::Protected { volume: volume.clone(), snapshot: snapshot.clone() }
            }
            other => other.of(volume, "removing a snapshot"),
        })
    }

    async fn roll_back(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
    ) -> Result<(), StorageError> {
        require_snapshot_name(volume, snapshot)?;
        let size_bytes = self.require_snapshot(volume, snapshot).await?.size;
        self.require_unused(volume).await?;
        let permit = self.may_write(&volume.pool).await?;
        let args = [image_args(volume), vec![format!("--snap={snapshot}")]].concat();
        let (words, deadline) = (["snap", "rollback"], long(size_bytes));
        let rolled_back =
            self.programs.write_through(&permit, &words, args, size_bytes, deadline).await;
        rolled_back.map_err(|failure| failure.of_begun(volume, "rolling back a volume"))
    }

    async fn snapshot_usage(&self, volume: &VolumeId) -> Result<Vec<SnapshotUsage>, StorageError> {
        self.usage_of_snapshots(volume).await
    }

    async fn attachment(&self, volume: &VolumeId) -> Result<Attachment, StorageError> {
        self.image(volume).await?;
        Ok(Attachment::Rbd(self.access.clone()))
    }

    /// The identity is that of the image, which no other has in this pool.
    async fn measured(&self, volume: &VolumeId) -> Result<MeasuredVolume, StorageError> {
        let identity = self.image(volume).await?.id;
        // What opens by a name that a rename has left is called otherwise.
        if !self.volume_names(&volume.pool).await?.contains(&volume.volume) {
            return Err(StorageError::NoVolume { volume: volume.clone() });
        }
        if identity.is_empty() {
            let why = "the image has no identity".to_owned();
            return Err(Failure::Other(why).of(volume, LOOKING));
        }
        let CephOptions { config, keyring, user, .. } = self.programs.options().clone();
        let place = MeasuredPlace::Rbd { image: volume.clone(), user, config, keyring };
        Ok(MeasuredVolume { identity, place })
    }

    async fn locks(&self, volume: &VolumeId) -> Result<Vec<VolumeLock>, StorageError> {
        require_addressable(volume)?;
        let doing = "listing locks";
        let args = with_json(image_args(volume));
        let text = self
            .programs
            .look(&["lock", "list"], args, QUICK)
            .await
            .map_err(|f| f.of(volume, doing))?;
        answers::locks(&text).map_err(|why| Failure::Other(why).of(volume, doing))
    }

    /// Ceph blocklists the holder with it. A lock that is gone already is what was asked for.
    async fn break_lock(&self, volume: &VolumeId, lock: &VolumeLock) -> Result<(), StorageError> {
        self.image(volume).await?;
        let args = [image_args(volume), vec![lock.id.clone(), lock.locker.clone()]].concat();
        match self.programs.remove(&["lock", "remove"], args, QUICK).await {
            Ok(()) | Err(Failure::NotFound { pool: false }) => Ok(()),
            Err(failure) => Err(failure.of(volume, "breaking a lock")),
        }
    }

    fn on_course(&self, course: &Course) -> Option<Arc<dyn Storage>> {
        let programs = Arc::new(self.programs.on_course(course));
        Some(Arc::new(RbdStorage { programs, ..self.clone() }))
    }

    fn streams(&self) -> Option<&dyn VolumeStreams> {
        Some(self)
    }

    fn cluster(&self) -> Option<&dyn StorageCluster> {
        Some(self)
    }

    fn osds(&self) -> Option<&dyn OsdHost> {
        self.osds.as_deref()
    }
}

#[cfg(test)]
mod tests;
