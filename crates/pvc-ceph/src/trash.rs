//! Removed images that are still kept: Ceph's own trash.
//!
//! Between two of its steps an image may be a volume and in the trash: see [`names`](crate::names).

use std::time::Duration;

use pvc_model::storage::{PoolName, SnapshotName, TrashId, VolumeId, VolumeName};
use pvc_ports::{StorageError, TrashedVolume};

use crate::answers::{self, Image, Snapshot};
use crate::gate::WritePermit;
use crate::looks::Whole;
use crate::rbd::{Failure, QUICK, image_args, pool_arg, with_volume};
use crate::storage::{
    RbdStorage, good_volume, require_addressable, require_unprotected, with_json,
};
use crate::trash_answers::moved_by_users;

const MOVING: &str = "moving a volume to the trash";
const RESTORING: &str = "restoring a volume";
const PURGING: &str = "purging a volume";

impl RbdStorage {
    /// Everything that users moved there and that is no volume of the pool.
    pub(crate) async fn trashed_by_users(
        &self,
        pool: &PoolName,
    ) -> Result<Vec<TrashedVolume>, StorageError> {
        let ours = moved_by_users(pool, self.all_trashed(pool).await?);
        self.without_volumes(pool, ours).await
    }

    async fn require_trashed(
        &self,
        pool: &PoolName,
        id: &TrashId,
    ) -> Result<TrashedVolume, StorageError> {
        let found = self.trashed_by_users(pool).await?.into_iter().find(|entry| entry.id == *id);
        found.ok_or_else(|| no_trashed(pool, id))
    }

    /// Moves an image to the trash. A move that was cut off is brought to its end by the next one:
    /// Ceph finds by the name what is half in the trash, and has no such volume any more.
    pub(crate) async fn move_to_trash(
        &self,
        volume: &VolumeId,
        keep: Duration,
    ) -> Result<TrashedVolume, StorageError> {
        require_addressable(volume)?;
        let (id, permit) = match self.whole_image(volume).await {
            Ok(found) => {
                // A name may open a volume that has another by now.
                self.require_listed(volume).await?;
                found.require_unused(volume)?;
                let (image, snapshots) = self.require_no_clones(volume, found).await?;
                let id = image.trash_id(volume, MOVING)?;
                let permit = self.may_write(&volume.pool).await?;
                self.end_half(volume, &id).await?;
                snapshots.iter().try_for_each(|snapshot| require_unprotected(volume, snapshot))?;
                (id, permit)
            }
            Err(StorageError::NoVolume { .. }) => match self.half_trashed(volume).await? {
                Some(half) => (half.id, self.may_write(&volume.pool).await?),
                None => {
                    self.require_listed(volume).await?;
                    let said = "its removal was cut off, and `pvc storage volume remove --purge` \
                                brings that to its end"
                        .to_owned();
                    return Err(StorageError::Refused { doing: with_volume(MOVING, volume), said });
                }
            },
            Err(error) => return Err(error),
        };
        let args = [image_args(volume), expiry(keep)].concat();
        let moved = self.programs.write(&permit, &["trash", "mv"], args, QUICK).await;
        moved.map_err(|failure| failure.of_begun(volume, MOVING))?;
        let found = self.require_trashed(&volume.pool, &id).await;
        found.map_err(|error| match error {
            StorageError::TimedOut { .. } => error,
            // It is done: whatever the trash says of it now is no refusal.
            error => {
                let why = format!("it was moved, and then: {error}");
                Failure::Other(why).of(volume, MOVING)
            }
        })
    }

    /// Refuses what [`move_to_trash`](Self::move_to_trash) would refuse.
    pub(crate) async fn require_removable(&self, volume: &VolumeId) -> Result<(), StorageError> {
        require_addressable(volume)?;
        let found = self.whole_image(volume).await?;
        found.require_unused(volume)?;
        let Whole { snapshots, clones, .. } = found;
        if !clones.is_empty() {
            return Err(StorageError::HasClones { volume: volume.clone(), clones });
        }
        require_all_unprotected(volume, &snapshots)
    }

    pub(crate) async fn restore_from_trash(
        &self,
        pool: &PoolName,
        id: &TrashId,
        to: &VolumeName,
    ) -> Result<(), StorageError> {
        let _alone = self.restoring.lock().await;
        let entry = self.require_trashed(pool, id).await?;
        let to = good_volume(pool, to)?;
        let permit = self.may_write(pool).await?;
        if self.listed_ids(pool).await?.contains(id.as_str()) {
            // Its move there was cut off.
            self.end_move(&entry).await?;
        }
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
        let restored = match self.restore_as(&permit, id, &to).await {
            // It was cut off at its last step.
            Err(Failure::Busy) => {
                self.end_move(&entry).await?;
                self.restore_as(&permit, id, &to).await
            }
            restored => restored,
        };
        restored.map_err(|failure| match failure {
            Failure::NotFound { pool: false } => no_trashed(pool, id),
            other => other.of(&to, RESTORING),
        })
    }

    /// Has Ceph make an image of the trash this volume.
    pub(crate) async fn restore_as(
        &self,
        permit: &WritePermit,
        id: &TrashId,
        to: &VolumeId,
    ) -> Result<(), Failure> {
        let name = vec![format!("--image={}", to.volume)];
        let args = [image_args_of(&to.pool, id), name].concat();
        self.programs.write(permit, &["trash", "restore"], args, QUICK).await
    }

    /// Removes an image in the trash. A purge that was cut off may have left one that is no longer
    /// whole: it is still in the trash, and its end is what was asked for.
    pub(crate) async fn purge_from_trash(
        &self,
        pool: &PoolName,
        id: &TrashId,
    ) -> Result<(), StorageError> {
        let entry = self.require_trashed(pool, id).await?;
        let mut removed = self.remove_trashed(pool, id).await;
        if matches!(removed, Err(Failure::NotMoved)) {
            self.end_move(&entry).await?;
            removed = self.remove_trashed(pool, id).await;
        }
        if matches!(removed, Err(Failure::NotEmpty)) {
            self.remove_snapshots_of_trashed(pool, id).await?;
            removed = self.remove_trashed(pool, id).await;
        }
        removed.map_err(|failure| match failure {
            Failure::NotFound { pool: false } => no_trashed(pool, id),
            failure => failure_of_trashed(failure, pool, PURGING),
        })
    }

    /// Removes the snapshots of an image that Ceph does not purge because of them.
    async fn remove_snapshots_of_trashed(
        &self,
        pool: &PoolName,
        id: &TrashId,
    ) -> Result<(), StorageError> {
        let snapshots = self.snapshots_by_id(pool, id).await?;
        self.release_snapshots_of_trashed(pool, id, &snapshots).await?;
        for (gone, snapshot) in snapshots.iter().enumerate() {
            // Somebody may restore it between two of them.
            match self.require_trashed(pool, id).await {
                Err(StorageError::NoTrashed { .. }) if gone > 0 => {
                    let why = format!("it was restored when {gone} of its snapshots were gone");
                    return Err(Failure::Other(why).of_pool(pool, PURGING));
                }
                found => found?,
            };
            self.of_snapshot_of_trashed("rm", pool, id, snapshot).await?;
        }
        Ok(())
    }

    /// Refuses an image that clones stand on before any of its snapshots is gone, and takes the
    /// protection from those that nobody stands on.
    async fn release_snapshots_of_trashed(
        &self,
        pool: &PoolName,
        id: &TrashId,
        snapshots: &[Snapshot],
    ) -> Result<(), StorageError> {
        if let Some(removed) = snapshots.iter().find(|snapshot| snapshot.is_removed()) {
            return Err(trashed_has_clones(pool, id, Some(removed)));
        }
        // Clones of this format need no protection, and which snapshot they are of is not told of
        // what has no name.
        if self.image_by_id(pool, id).await?.is_parent() {
            return Err(trashed_has_clones(pool, id, None));
        }
        let mut released: Vec<&str> = Vec::new();
        for snapshot in snapshots.iter().filter(|snapshot| snapshot.is_protected()) {
            if let Err(error) = self.release_snapshot_of_trashed(pool, id, snapshot).await {
                // Ceph protects none by the identifier of its image, so they stay as they are.
                if !released.is_empty() {
                    tracing::warn!(%pool, %id, ?released, "an image is not purged, and some of its \
                                                           snapshots are no longer protected; \
                                                           restore it to protect them again");
                }
                return Err(error);
            }
            released.push(&snapshot.name);
        }
        Ok(())
    }

    async fn release_snapshot_of_trashed(
        &self,
        pool: &PoolName,
        id: &TrashId,
        snapshot: &Snapshot,
    ) -> Result<(), StorageError> {
        self.require_trashed(pool, id).await?;
        self.of_snapshot_of_trashed("unprotect", pool, id, snapshot).await
    }

    async fn remove_trashed(&self, pool: &PoolName, id: &TrashId) -> Result<(), Failure> {
        let args = [image_args_of(pool, id), vec!["--force".to_owned()]].concat();
        let size_bytes = match self.programs.are_on_course() {
            true => self.image_by_id(pool, id).await.map_or(0, |image| image.size),
            false => 0,
        };
        self.programs.remove_through(&["trash", "rm"], args, size_bytes, PURGE).await
    }

    /// The snapshots of an image, whatever it is called and wherever it is.
    pub(crate) async fn snapshots_by_id(
        &self,
        pool: &PoolName,
        id: &TrashId,
    ) -> Result<Vec<Snapshot>, StorageError> {
        let doing = "listing the snapshots of an image";
        let args = with_json([image_args_of(pool, id), vec!["--all".to_owned()]].concat());
        match self.programs.look(&["snap", "ls"], args, QUICK).await {
            Ok(text) => {
                answers::snapshots(&text).map_err(|why| Failure::Other(why).of_pool(pool, doing))
            }
            Err(Failure::NotFound { pool: false }) => Ok(Vec::new()),
            Err(failure) => Err(failure_of_trashed(failure, pool, doing)),
        }
    }

    async fn image_by_id(&self, pool: &PoolName, id: &TrashId) -> Result<Image, StorageError> {
        let args = with_json(image_args_of(pool, id));
        let printed = self.programs.look(&["info"], args, QUICK).await;
        let text = printed.map_err(|failure| match failure {
            Failure::NotFound { pool: false } => no_trashed(pool, id),
            failure => failure_of_trashed(failure, pool, PURGING),
        })?;
        answers::json(&text).map_err(|why| Failure::Other(why).of_pool(pool, PURGING))
    }

    /// Does something to a single one: removing all at once succeeds, for `rbd`, also if some could
    /// not be.
    async fn of_snapshot_of_trashed(
        &self,
        act: &str,
        pool: &PoolName,
        id: &TrashId,
        snapshot: &Snapshot,
    ) -> Result<(), StorageError> {
        let args = [image_args_of(pool, id), vec![format!("--snap={}", snapshot.name)]].concat();
        match self.programs.remove(&["snap", act], args, QUICK).await {
            Ok(()) | Err(Failure::NotFound { pool: false }) => Ok(()),
            Err(Failure::Busy) => Err(trashed_has_clones(pool, id, Some(snapshot))),
            Err(failure) => Err(failure_of_trashed(failure, pool, PURGING)),
        }
    }
}

/// Refuses a protected snapshot that is not the storage's own: what clones stood on is released
/// when the volume goes.
fn require_all_unprotected(volume: &VolumeId, snapshots: &[Snapshot]) -> Result<(), StorageError> {
    let is_base = |snapshot: &Snapshot| SnapshotName::new(&snapshot.name).is_base();
    let mut others = snapshots.iter().filter(|snapshot| !is_base(snapshot));
    others.try_for_each(|snapshot| require_unprotected(volume, snapshot))
}

fn trashed_has_clones(pool: &PoolName, id: &TrashId, snapshot: Option<&Snapshot>) -> StorageError {
    StorageError::TrashedHasClones {
        pool: pool.clone(),
        id: id.clone(),
        snapshot: snapshot.map(|snapshot| SnapshotName::new(&snapshot.name)),
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

pub(crate) fn image_args_of(pool: &PoolName, id: &TrashId) -> Vec<String> {
    vec![pool_arg(pool), format!("--image-id={id}")]
}

fn no_trashed(pool: &PoolName, id: &TrashId) -> StorageError {
    StorageError::NoTrashed { pool: pool.clone(), id: id.clone() }
}

/// The failure of an act on a volume that has no name.
fn failure_of_trashed(failure: Failure, pool: &PoolName, doing: &str) -> StorageError {
    match failure {
        Failure::Busy => {
            let why = "another client of Ceph has it open, or its restoration was cut off";
            Failure::Other(why.to_owned()).of_pool(pool, doing)
        }
        other => other.of_pool(pool, doing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_protected_snapshot_that_only_begins_as_the_storages_own_keeps_its_volume() {
        let volume = VolumeId::parse("vms/web").unwrap();
        let of = |name: &str, protected: bool| {
            let text =
                format!(r#"[{{"id":1,"name":"{name}","size":1,"protected":"{protected}"}}]"#);
            let snapshots = answers::snapshots(text.as_bytes()).unwrap();
            require_all_unprotected(&volume, &snapshots)
        };
        of("pvc-clone-0123456789abcdef", true).unwrap();
        of("pvc-clone-golden", false).unwrap();
        for name in ["pvc-clone-golden", "pvc-clones-monday", "mine"] {
            let refused = of(name, true).unwrap_err();
            let StorageError::Protected { snapshot, .. } = refused else { panic!("{refused}") };
            assert_eq!(snapshot.as_str(), name);
        }
    }
}
