//! Removed volumes that are still kept.
//!
//! ```text
//!  DIR/.trash/POOL/ID.REMOVED.UNTIL.NAME/    a volume's folder, as it was
//! ```
//!
//! All that is known of such a volume is in the name of its folder, so that one rename takes it
//! there, and one brings it back: whenever the power fails, it is a volume or in the trash. Its
//! times are seconds since 1970.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, fsync, unlinkat};
use pvc_model::storage::{PoolName, TrashId, VolumeId, VolumeName};
use pvc_ports::{StorageError, TrashedVolume};

use crate::layout::{FOLDER_MODE, Root, Volume, errno, names, open_folder, place, taken};

/// No pool can be called so.
const TRASH: &str = ".trash";

impl Root {
    /// Moves a volume to the trash of its pool, in one step. Nobody may have it open.
    pub fn trash(&self, id: &VolumeId, keep: Duration) -> Result<TrashedVolume, StorageError> {
        let pool = self.pool_folder(&id.pool)?;
        let moving = || errno(format!("moving volume `{id}` to the trash"));
        let trash = open_or_make(&self.folder, TRASH).map_err(moving())?;
        let folder = open_or_make(&trash, id.pool.as_str()).map_err(moving())?;
        let entry = entry_of(id, keep);
        place(&pool, id.volume.as_str(), &folder, &entry_name(&entry)).map_err(moving())?;
        Ok(entry)
    }

    /// The volumes in the trash of a pool. What is not called as they are is none of ours.
    pub fn trashed(&self, pool: &PoolName) -> Result<Vec<TrashedVolume>, StorageError> {
        self.pool_folder(pool)?;
        let Some(folder) = self.trash_folder(pool)? else { return Ok(Vec::new()) };
        Ok(names(&folder)?.iter().filter_map(|name| entry_called(pool, name)).collect())
    }

    pub fn restore(&self, id: &TrashId, to: &VolumeId) -> Result<(), StorageError> {
        let pool = self.pool_folder(&to.pool)?;
        let (folder, name) = self.find_trashed(&to.pool, id)?;
        VolumeName::parse(to.volume.as_str())?;
        place(&folder, &name, &pool, to.volume.as_str()).map_err(|error| match error {
            // It was there this moment: somebody else has restored or purged it.
            Errno::ENOENT => no_trashed(&to.pool, id),
            error => {
                let restoring = format!("restoring volume `{to}`");
                taken(error, restoring, || StorageError::VolumeExists { volume: to.clone() })
            }
        })
    }

    /// Takes the volume away as one step, then frees its room.
    pub fn purge(&self, pool: &PoolName, id: &TrashId) -> Result<(), StorageError> {
        let (folder, name) = self.find_trashed(pool, id)?;
        self.take_away(&folder, &name).map_err(|error| match error {
            Errno::ENOENT => no_trashed(pool, id),
            error => errno(format!("purging volume `{id}` of pool `{pool}`"))(error),
        })
    }

    /// The volumes in the trash, opened.
    pub fn volumes_in_trash(&self, pool: &PoolName) -> Result<Vec<Volume>, StorageError> {
        let Some(folder) = self.trash_folder(pool)? else { return Ok(Vec::new()) };
        let mut volumes = Vec::new();
        for entry in self.trashed(pool)? {
            let id = VolumeId { pool: pool.clone(), volume: entry.name.clone() };
            match Volume::open_entry(&folder, &entry_name(&entry), &id) {
                Ok(volume) => volumes.push(volume),
                // Restored or purged since.
                Err(StorageError::NoVolume { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(volumes)
    }

    /// Removes the folder for the trash of a pool, unless there is something in it.
    pub fn remove_trash(&self, pool: &PoolName) -> Result<(), StorageError> {
        let removing = || errno(format!("removing the trash of pool `{pool}`"));
        let trash = match open_folder(&self.folder, TRASH) {
            Ok(trash) => trash,
            Err(Errno::ENOENT) => return Ok(()),
            Err(error) => return Err(removing()(error)),
        };
        match unlinkat(&trash, pool.as_str(), UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => Ok(()),
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => Err(StorageError::PoolHasTrash {
                pool: pool.clone(),
                volumes: self.trashed(pool)?.len(),
            }),
            Err(error) => Err(removing()(error)),
        }
    }

    /// The folder for the trash of a pool; `None` if nothing was ever moved there.
    fn trash_folder(&self, pool: &PoolName) -> Result<Option<OwnedFd>, StorageError> {
        let folder =
            open_folder(&self.folder, TRASH).and_then(|trash| open_folder(trash, pool.as_str()));
        match folder {
            Ok(folder) => Ok(Some(folder)),
            Err(Errno::ENOENT) => Ok(None),
            Err(error) => Err(errno(format!("opening the trash of pool `{pool}`"))(error)),
        }
    }

    /// The folder for the trash of the pool, and the name in it of the volume.
    fn find_trashed(
        &self,
        pool: &PoolName,
        id: &TrashId,
    ) -> Result<(OwnedFd, String), StorageError> {
        let entries = self.trashed(pool)?;
        let entry = entries.iter().find(|entry| entry.id == *id);
        match (entry, self.trash_folder(pool)?) {
            (Some(entry), Some(folder)) => Ok((folder, entry_name(entry))),
            _ => Err(no_trashed(pool, id)),
        }
    }
}

fn no_trashed(pool: &PoolName, id: &TrashId) -> StorageError {
    StorageError::NoTrashed { pool: pool.clone(), id: id.clone() }
}

/// Opens a folder, which is made, and on disk, if it is not there.
fn open_or_make(parent: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    match mkdirat(parent.as_fd(), name, Mode::from_bits_truncate(FOLDER_MODE)) {
        Ok(()) => fsync(parent.as_fd())?,
        Err(Errno::EEXIST) => {}
        Err(error) => return Err(error),
    }
    open_folder(parent, name)
}

fn entry_of(id: &VolumeId, keep: Duration) -> TrashedVolume {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let name = uuid::Uuid::new_v4().simple().to_string();
    TrashedVolume {
        pool: id.pool.clone(),
        id: TrashId::parse(&name).expect("32 hexadecimal digits are one"),
        name: id.volume.clone(),
        removed_at: now.as_secs(),
        kept_until: now.saturating_add(keep).as_secs(),
    }
}

fn entry_name(entry: &TrashedVolume) -> String {
    let TrashedVolume { id, name, removed_at, kept_until, .. } = entry;
    format!("{id}.{removed_at}.{kept_until}.{name}")
}

/// The volume whose folder has this name in the trash of the pool. Another spelling of the same is
/// none: it could not be found again.
fn entry_called(pool: &PoolName, name: &str) -> Option<TrashedVolume> {
    let mut parts = name.splitn(4, '.');
    let entry = TrashedVolume {
        pool: pool.clone(),
        id: TrashId::parse(parts.next()?)?,
        removed_at: parts.next()?.parse().ok()?,
        kept_until: parts.next()?.parse().ok()?,
        name: VolumeName::parse(parts.next()?).ok()?,
    };
    (entry_name(&entry) == name).then_some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_in_the_trash_says_all_of_its_volume() {
        let id = VolumeId::parse("vms/web1.example-sda").unwrap();
        let entry = entry_of(&id, Duration::from_secs(3600));
        assert_eq!(entry.kept_until - entry.removed_at, 3600);
        assert_eq!(entry_called(&id.pool, &entry_name(&entry)), Some(entry));
        let longest = VolumeId { volume: VolumeName::new("x".repeat(128)), ..id.clone() };
        let entry = entry_of(&longest, Duration::MAX);
        assert!(entry_name(&entry).len() <= 255);
        assert_eq!(entry_called(&id.pool, &entry_name(&entry)), Some(entry));
    }

    #[test]
    fn names_that_are_not_those_of_volumes_in_the_trash_are_none_of_ours() {
        let pool = PoolName::new("vms");
        for name in [
            "",
            "lost+found",
            "a1.2.3",
            "a1.2.3.",
            "a1.2.x.b",
            "a1.+2.3.b",
            "A1.2.3.b",
            "a1.2.3.-b",
        ] {
            assert_eq!(entry_called(&pool, name), None, "{name}");
        }
        assert!(entry_called(&pool, "a1.2.3.b").is_some());
    }
}
