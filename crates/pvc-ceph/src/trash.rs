//! Removed images that are still kept: Ceph's own trash.
//!
//! An image has a name twice: as an object that says which image the name opens, and in the list of
//! the pool. Moving it to the trash takes both away, one after the other, and restoring brings both
//! back; so whoever asks whether a name is free asks for both.

use std::time::Duration;

use pvc_model::storage::{PoolName, SnapshotName, TrashId, VolumeId, VolumeName};
use pvc_ports::{StorageError, TrashedVolume};

use crate::answers::{self, Snapshot};
use crate::rbd::{Failure, QUICK, image_args, io_error, long, pool_arg};
use crate::storage::{
    RbdStorage, good_volume, require_addressable, require_pool_name, require_unprotected, with_json,
};
use crate::trash_answers::{self, Trashed, moved_by_users};

pub(crate) const LISTING: &str = "listing the trash";
const MOVING: &str = "moving a volume to the trash";
const RESTORING: &str = "restoring a volume";
const PURGING: &str = "purging a volume";

impl RbdStorage {
    /// Everything in the trash of a pool, whoever moved it there.
    pub(crate) async fn all_trashed(&self, pool: &PoolName) -> Result<Vec<Trashed>, StorageError> {
        require_pool_name(pool)?;
        let args = ["--all", "--long"].map(str::to_owned).to_vec();
        let args = with_json([args, vec![pool_arg(pool)]].concat());
        let listed = self.programs.rbd_in_utc(&["trash", "ls"], args, long(0)).await;
        let text = listed.map_err(|failure| failure.of_pool(pool, LISTING))?;
        trash_answers::trashed(&text).map_err(|why| io_error(LISTING, why))
    }

    async fn find_trashed(
        &self,
        pool: &PoolName,
        is_meant: impl Fn(&TrashedVolume) -> bool,
    ) -> Result<Option<TrashedVolume>, StorageError> {
        let all = self.all_trashed(pool).await?;
        let ours = moved_by_users(pool, all).map_err(|why| io_error(LISTING, why))?;
        Ok(ours.into_iter().filter(is_meant).max_by_key(|entry| entry.removed_at))
    }

    async fn require_trashed(&self, pool: &PoolName, id: &TrashId) -> Result<(), StorageError> {
        match self.find_trashed(pool, |entry| entry.id == *id).await? {
            Some(_) => Ok(()),
            None => Err(no_trashed(pool, id)),
        }
    }

    /// Moves an image to the trash. A move that was cut off is brought to its end by the next one:
    /// Ceph finds by the name what is half in the trash, and has no such volume any more.
    pub(crate) async fn move_to_trash(
        &self,
        volume: &VolumeId,
        keep: Duration,
    ) -> Result<TrashedVolume, StorageError> {
        require_addressable(volume)?;
        let image = match self.image(volume).await {
            Ok(image) => {
                // A name may open a volume that has another by now.
                self.require_listed(volume).await?;
                Some(image.id)
            }
            Err(StorageError::NoVolume { .. }) => None,
            Err(error) => return Err(error),
        };
        if image.is_some() {
            self.require_unused(volume).await?;
            self.require_no_clones(volume).await?;
            let snapshots = self.snapshots(volume).await?;
            snapshots.iter().try_for_each(|snapshot| require_unprotected(volume, snapshot))?;
        }
        let args = [image_args(volume), expiry(keep)].concat();
        let moved = self.programs.rbd(&["trash", "mv"], args, QUICK).await;
        moved.map_err(|failure| failure.of(volume, MOVING))?;
        let is_it = |entry: &TrashedVolume| match &image {
            Some(id) => entry.id.as_str() == id,
            None => entry.name == volume.volume,
        };
        let found = self.find_trashed(&volume.pool, is_it).await?;
        found.ok_or_else(|| io_error(MOVING, "it was purged at once".to_owned()))
    }

    pub(crate) async fn restore_from_trash(
        &self,
        pool: &PoolName,
        id: &TrashId,
        to: &VolumeName,
    ) -> Result<(), StorageError> {
        let _alone = self.restoring.lock().await;
        self.require_trashed(pool, id).await?;
        let to = good_volume(pool, to)?;
        let is_taken = match self.image(&to).await {
            // A restoration that was cut off.
            Ok(image) if image.id == id.as_str() => false,
            Ok(_) => true,
            Err(StorageError::NoVolume { .. }) => {
                self.volume_names(pool).await?.contains(&to.volume)
            }
            Err(error) => return Err(error),
        };
        if is_taken {
            return Err(StorageError::VolumeExists { volume: to });
        }
        let args = vec![pool_arg(pool), image_id(id), format!("--image={}", to.volume)];
        let restored = self.programs.rbd(&["trash", "restore"], args, QUICK).await;
        restored.map(drop).map_err(|failure| match failure {
            Failure::NotFound { pool: false } => no_trashed(pool, id),
            other => other.of(&to, RESTORING),
        })
    }

    /// Removes an image in the trash. A purge that was cut off may have left one that is no longer
    /// whole: it is still in the trash, and its end is what was asked for.
    pub(crate) async fn purge_from_trash(
        &self,
        pool: &PoolName,
        id: &TrashId,
    ) -> Result<(), StorageError> {
        self.require_trashed(pool, id).await?;
        for snapshot in self.snapshots_of_trashed(pool, id).await? {
            self.remove_snapshot_of_trashed(pool, id, &snapshot).await?;
        }
        let args = [image_args_of(pool, id), vec!["--force".to_owned()]].concat();
        match self.programs.rbd(&["trash", "rm"], args, PURGE).await {
            Ok(_) => Ok(()),
            Err(Failure::NotFound { pool: false }) => Err(no_trashed(pool, id)),
            Err(failure) => Err(failure_of_trashed(failure, pool, PURGING)),
        }
    }

    async fn snapshots_of_trashed(
        &self,
        pool: &PoolName,
        id: &TrashId,
    ) -> Result<Vec<Snapshot>, StorageError> {
        let doing = "listing the snapshots of a volume in the trash";
        let args = with_json([image_args_of(pool, id), vec!["--all".to_owned()]].concat());
        match self.programs.rbd(&["snap", "ls"], args, QUICK).await {
            Ok(text) => answers::snapshots(&text).map_err(|why| io_error(doing, why)),
            Err(Failure::NotFound { pool: false }) => Ok(Vec::new()),
            Err(failure) => Err(failure_of_trashed(failure, pool, doing)),
        }
    }

    /// Removes a single one: removing all at once succeeds, for `rbd`, also if some could not be.
    async fn remove_snapshot_of_trashed(
        &self,
        pool: &PoolName,
        id: &TrashId,
        snapshot: &Snapshot,
    ) -> Result<(), StorageError> {
        let has_clones = || StorageError::TrashedHasClones {
            pool: pool.clone(),
            id: id.clone(),
            snapshot: SnapshotName::new(&snapshot.name),
        };
        if snapshot.is_removed() {
            return Err(has_clones());
        }
        let args = || [image_args_of(pool, id), vec![format!("--snap={}", snapshot.name)]].concat();
        let steps: &[&[&str]] = match snapshot.is_protected() {
            true => &[&["snap", "unprotect"], &["snap", "rm"]],
            false => &[&["snap", "rm"]],
        };
        for words in steps {
            match self.programs.rbd(words, args(), QUICK).await {
                Ok(_) | Err(Failure::NotFound { pool: false }) => {}
                Err(Failure::Busy) => return Err(has_clones()),
                Err(failure) => return Err(failure_of_trashed(failure, pool, PURGING)),
            }
        }
        Ok(())
    }
}

/// Deadline of removing an image, of whose size nothing is known any more.
const PURGE: Duration = Duration::from_secs(3600);

/// Ceph keeps moments in 32 bits.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// The time for which an image is kept, as `date` understands it. A moment that has passed when
/// Ceph comes to it would be one of the next century; none is now.
fn expiry(keep: Duration) -> Vec<String> {
    match keep.min(LONGEST).as_secs() {
        0 => Vec::new(),
        seconds => vec![format!("--expires-at={seconds} seconds")],
    }
}

fn image_id(id: &TrashId) -> String {
    format!("--image-id={id}")
}

fn image_args_of(pool: &PoolName, id: &TrashId) -> Vec<String> {
    vec![pool_arg(pool), image_id(id)]
}

fn no_trashed(pool: &PoolName, id: &TrashId) -> StorageError {
    StorageError::NoTrashed { pool: pool.clone(), id: id.clone() }
}

/// The failure of an act on a volume that has no name.
fn failure_of_trashed(failure: Failure, pool: &PoolName, doing: &str) -> StorageError {
    match failure {
        Failure::Busy => io_error(doing, "another client of Ceph has it open".to_owned()),
        other => other.of_pool(pool, doing),
    }
}
