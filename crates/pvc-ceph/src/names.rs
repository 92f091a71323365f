//! Names between two steps of Ceph, where an act was cut off.
//!
//! An image has a name twice: as the object `rbd_id.NAME`, which says which image the name opens,
//! and in the pool's directory. What moves a name does one after the other:
//!
//! - *A move to the trash:* an entry of the trash that says so; the object goes; the directory's
//!   entry goes; the trash's entry is whole.
//! - *A restoration:* the trash's entry says so; the object; the directory's entry; the trash's
//!   goes.
//! - *A rename:* the new object; the directory's entry changes; the old object goes.
//! - *A removal:* an entry of the trash that `rbd trash ls` leaves out; the image goes; the names
//!   go; the entry goes.
//!
//! What the directory lists and the name opens is a volume, whatever else there is.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pvc_model::storage::{PoolName, TrashId, VolumeId};
use pvc_ports::{StorageError, TrashedVolume};

use crate::rbd::{Failure, QUICK, image_args, with_volume};
use crate::storage::{RbdStorage, require_addressable, require_pool_name};
use crate::trash_answers::{ids_in_directory, ids_in_keys, moved_by_users};

/// Object in which a pool lists its images: `name_NAME` and `id_ID` for each, and the one in which
/// it lists those in the trash: `id_ID` (Ceph, `src/cls/rbd/cls_rbd.cc`).
const DIRECTORY: &str = "rbd_directory";
const TRASH: &str = "rbd_trash";

const MENDING: &str = "putting the name of a volume right";
const LISTING: &str = "listing the images of a pool";

/// Time after which nobody is at a move any more: the program has half a minute for it.
const OVER: Duration = Duration::from_secs(600);

/// The least time for which something is kept that gets to the trash at last.
const LEAST_KEPT: &str = "--expires-at=86400 seconds";

impl RbdStorage {
    /// Identifiers of the images that are volumes of the pool, as its directory has them.
    pub(crate) async fn listed_ids(
        &self,
        pool: &PoolName,
    ) -> Result<BTreeSet<String>, StorageError> {
        let keys = self.list(pool, DIRECTORY).await?;
        let names = self.volume_names(pool).await?;
        let ids = ids_in_directory(&keys, &names);
        // Who is taken for no volume may be purged: an answer that is too short must not do that.
        if ids.is_empty() && !names.is_empty() {
            let why = "the pool has volumes, and its directory lists none".to_owned();
            return Err(Failure::Other(why).of_pool(pool, LISTING));
        }
        Ok(ids)
    }

    /// Identifiers of the images of the pool's trash, also of those that `rbd` does not show.
    async fn ids_in_trash(&self, pool: &PoolName) -> Result<Vec<String>, StorageError> {
        Ok(ids_in_keys(&self.list(pool, TRASH).await?))
    }

    async fn list(&self, pool: &PoolName, object: &'static str) -> Result<Vec<u8>, StorageError> {
        let keys = self.keys_of(pool, object).await;
        keys.map_err(|failure| failure.of_pool(pool, LISTING))
    }

    /// Whether the name opens nothing.
    pub(crate) async fn opens_nothing(&self, volume: &VolumeId) -> Result<bool, StorageError> {
        match self.image(volume).await {
            Ok(_) => Ok(false),
            Err(StorageError::NoVolume { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Leaves of what users moved to the trash what is there: not what is a volume as well.
    pub(crate) async fn without_volumes(
        &self,
        pool: &PoolName,
        entries: Vec<TrashedVolume>,
    ) -> Result<Vec<TrashedVolume>, StorageError> {
        if entries.is_empty() {
            return Ok(entries);
        }
        let listed = self.listed_ids(pool).await?;
        let mut left = Vec::new();
        for entry in entries {
            if !listed.contains(entry.id.as_str()) || self.is_half_moved(&entry).await? {
                left.push(entry);
            }
        }
        Ok(left)
    }

    /// Whether the pool lists an entry of the trash by its name, which opens nothing: it is in the
    /// trash but for that. One that is listed by another name is a volume that was renamed.
    async fn is_half_moved(&self, entry: &TrashedVolume) -> Result<bool, StorageError> {
        Ok(self.volume_names(&entry.pool).await?.contains(&entry.name)
            && self.opens_nothing(&volume_of(entry)).await?)
    }

    /// The entry of the trash of the image of this name, which opens nothing, if its move there was
    /// cut off.
    pub(crate) async fn half_trashed(
        &self,
        volume: &VolumeId,
    ) -> Result<Option<TrashedVolume>, StorageError> {
        let mut ours = moved_by_users(&volume.pool, self.all_trashed(&volume.pool).await?);
        ours.retain(|entry| entry.name == volume.volume);
        if ours.is_empty() {
            return Ok(None);
        }
        let listed = self.listed_ids(&volume.pool).await?;
        Ok(ours.into_iter().find(|entry| listed.contains(entry.id.as_str())))
    }

    /// Brings the move of an image to the trash to its end, which was cut off when its name opened
    /// nothing any more: Ceph finds it by the name.
    pub(crate) async fn end_move(&self, entry: &TrashedVolume) -> Result<(), StorageError> {
        let volume = volume_of(entry);
        if !self.opens_nothing(&volume).await? {
            let said = format!(
                "the move of image `{}` to the trash was cut off, and another volume is called \
                 `{volume}`: rename that one for as long as this takes",
                entry.id
            );
            return Err(StorageError::Refused { doing: with_volume(MENDING, &volume), said });
        }
        let permit = self.may_write(&volume.pool).await?;
        let args = [image_args(&volume), vec![LEAST_KEPT.to_owned()]].concat();
        match self.programs.write(&permit, &["trash", "mv"], args, QUICK).await {
            Ok(()) | Err(Failure::NotFound { pool: false }) => Ok(()),
            Err(failure) => Err(failure.of(&volume, MENDING)),
        }
    }

    /// Makes a volume that the trash has as well a volume and nothing else. Ceph refuses to remove
    /// one that it is restoring, and a move that was cut off long ago would be one to a trash whose
    /// time is over.
    ///
    /// # Errors
    /// While somebody may be at a move, and if a removal was cut off.
    pub(crate) async fn end_half(
        &self,
        volume: &VolumeId,
        image: &TrashId,
    ) -> Result<(), StorageError> {
        let pool = &volume.pool;
        if !self.ids_in_trash(pool).await?.iter().any(|id| id == image.as_str()) {
            return Ok(());
        }
        let key = format!("id_{image}");
        let all = self.all_trashed(pool).await?;
        let Some(line) = all.into_iter().find(|line| line.id == image.as_str()) else {
            let said = format!(
                "a removal of it was cut off; if none is under way, `rados --pool {pool} rmomapkey \
                 {TRASH} {key}` makes it a volume like any other"
            );
            return Err(StorageError::Refused { doing: with_volume(MENDING, volume), said });
        };
        let permit = self.may_write(pool).await?;
        match self.restore_as(&permit, image, volume).await {
            // Somebody else was at it.
            Ok(()) | Err(Failure::NotFound { pool: false }) => return Ok(()),
            // Not a restoration was cut off but a move.
            Err(Failure::Busy) => {}
            Err(failure) => return Err(failure.of(volume, MENDING)),
        }
        let begun = moved_by_users(pool, vec![line]).pop().map(|entry| entry.removed_at);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        if begun.is_none_or(|begun| now.saturating_sub(begun) < OVER.as_secs()) {
            let holder = "a move to the trash".to_owned();
            return Err(StorageError::InUse { volume: volume.clone(), holder });
        }
        match self.programs.remove_object(pool, &["rmomapkey", TRASH, &key]).await {
            Ok(()) => Ok(()),
            Err(failure) => Err(failure.of_pool(pool, MENDING)),
        }
    }

    /// Brings to its end what was cut off of a move of this name to the trash, and frees the name
    /// if it is left of a rename or a restoration. Returns whether a volume has it.
    pub(crate) async fn mend_name(&self, volume: &VolumeId) -> Result<bool, StorageError> {
        require_pool_name(&volume.pool)?;
        if require_addressable(volume).is_err() {
            return Ok(false);
        }
        let opened = match self.image(volume).await {
            Ok(image) => Some(image),
            Err(StorageError::NoVolume { .. }) => None,
            Err(error) => return Err(error),
        };
        let is_listed = self.volume_names(&volume.pool).await?.contains(&volume.volume);
        match (opened, is_listed) {
            (Some(image), true) => {
                match self.end_half(volume, &image.trash_id(volume, MENDING)?).await {
                    // It has its name.
                    Ok(()) | Err(StorageError::InUse { .. } | StorageError::Refused { .. }) => {
                        return Ok(true);
                    }
                    Err(error) => return Err(error),
                }
            }
            (None, true) => {
                let half = self.half_trashed(volume).await?;
                let unlikely = || {
                    let why = "the pool lists it, and it cannot be opened".to_owned();
                    Failure::Other(why).of(volume, MENDING)
                };
                self.end_move(&half.ok_or_else(unlikely)?).await?;
            }
            (Some(image), false) => {
                // Nobody finds an image any more that is nowhere else.
                let pool = &volume.pool;
                if !self.listed_ids(pool).await?.contains(&image.id)
                    && !self.ids_in_trash(pool).await?.contains(&image.id)
                {
                    let why = format!("it opens image `{}`, which nothing lists", image.id);
                    return Err(Failure::Other(why).of(volume, MENDING));
                }
                self.free(volume).await?;
            }
            (None, false) => self.free(volume).await?,
        }
        Ok(false)
    }

    /// Removes the object of a name that the directory does not list.
    async fn free(&self, volume: &VolumeId) -> Result<(), StorageError> {
        let (pool, object) = (&volume.pool, format!("rbd_id.{}", volume.volume));
        let failed = |failure: Failure| failure.of_pool(pool, MENDING);
        let was = match self.programs.look_at_object(pool, &["get", &object, "-"]).await {
            Ok(was) => was,
            Err(Failure::NotFound { pool: false }) => return Ok(()),
            Err(failure) => return Err(failed(failure)),
        };
        match self.programs.remove_object(pool, &["rm", &object]).await {
            Ok(()) | Err(Failure::NotFound { pool: false }) => {}
            Err(failure) => return Err(failed(failure)),
        }
        // Whoever was at a rename all the same has given the name to a volume this moment.
        if self.volume_names(pool).await?.contains(&volume.volume) {
            let permit = self.may_write(pool).await?;
            let back = self.programs.write_object(&permit, &["put", &object, "-"], was).await;
            back.map_err(failed)?;
        }
        Ok(())
    }
}

fn volume_of(entry: &TrashedVolume) -> VolumeId {
    VolumeId { pool: entry.pool.clone(), volume: entry.name.clone() }
}
