//! Layout of the directory, and opening its files without following anybody's links.
//!
//! Every name is checked before it becomes part of a path, and every step down is an `openat` that
//! refuses symbolic links.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, RenameFlags, openat, renameat2};
use nix::sys::stat::{Mode, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, fsync, unlinkat};
use pvc_model::check_name;
use pvc_model::storage::{PoolName, SnapshotName, VolumeId, VolumeName};
use pvc_ports::{PoolInfo, SnapshotInfo, StorageError, VolumeInfo};

use crate::lock::{FolderLock, ImageGuard, holder, lock_folder, try_lock_folder};

/// Things being made or removed. No pool can be called so.
const WORK: &str = ".work";
const IMAGE: &str = "disk.raw";
const SNAPSHOTS: &str = "snapshots";

/// Folders let a hypervisor that runs as another user pass, and nobody list them.
pub(crate) const FOLDER_MODE: u32 = 0o711;
/// libvirt gives an image to the user of its QEMU while the guest runs.
const IMAGE_MODE: u32 = 0o600;

/// Turns an error of the operating system into ours. `doing` completes "the storage failed while it
/// was …".
pub(crate) fn failed(doing: impl Into<String>) -> impl FnOnce(io::Error) -> StorageError {
    let doing = doing.into();
    move |source| StorageError::Io { doing, source }
}

pub(crate) fn errno(doing: impl Into<String>) -> impl FnOnce(Errno) -> StorageError {
    let failed = failed(doing);
    move |error| failed(error.into())
}

pub(crate) fn open_folder(parent: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

fn open_file(parent: impl AsFd, name: &str, flags: OFlag) -> Result<File, Errno> {
    let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(parent, name, flags, Mode::from_bits_truncate(IMAGE_MODE)).map(File::from)
}

/// Opens an image, which must be a plain file.
fn open_image(folder: impl AsFd, name: &str) -> Result<File, Errno> {
    let file = open_file(folder, name, OFlag::O_RDWR | OFlag::O_NONBLOCK)?;
    let plain = file.metadata().is_ok_and(|metadata| metadata.is_file());
    if plain { Ok(file) } else { Err(Errno::EINVAL) }
}

/// The names in an open folder, in order. Names that are not UTF-8 are none of ours.
pub(crate) fn names(folder: impl AsFd) -> Result<Vec<String>, StorageError> {
    let reading = || errno("reading a folder");
    // A descriptor of its own: reading moves its position.
    let fresh = open_folder(folder, ".").map_err(reading())?;
    let mut directory = nix::dir::Dir::from_fd(fresh).map_err(reading())?;
    let mut names = Vec::new();
    for entry in directory.iter() {
        let entry = entry.map_err(reading())?;
        if let Ok(name) = entry.file_name().to_str()
            && !name.starts_with('.')
        {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// The directory that holds everything.
pub(crate) struct Root {
    path: PathBuf,
    pub(crate) folder: OwnedFd,
    work: OwnedFd,
}

impl Root {
    pub fn open(path: &Path) -> Result<Self, StorageError> {
        let opening = || format!("opening the volume directory `{}`", path.display());
        let make = DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path);
        make.map_err(failed(opening()))?;
        let path = path.canonicalize().map_err(failed(opening()))?;
        let folder = OwnedFd::from(File::open(&path).map_err(failed(opening()))?);
        match mkdirat(&folder, WORK, Mode::from_bits_truncate(FOLDER_MODE)) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(error) => return Err(errno(opening())(error)),
        }
        let work = open_folder(&folder, WORK).map_err(errno(opening()))?;
        Ok(Root { path, folder, work })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of the image of a volume, as a hypervisor opens it.
    pub fn image_path(&self, id: &VolumeId) -> PathBuf {
        self.path.join(id.pool.as_str()).join(id.volume.as_str()).join(IMAGE)
    }

    /// Removes what crashed operations left behind. What lives on is locked and stays.
    pub fn remove_leftovers(&self) {
        let Ok(names) = names(&self.work) else { return };
        for name in names {
            let Ok(folder) = open_folder(&self.work, &name) else { continue };
            if let Ok(Some(_lock)) = try_lock_folder(&folder) {
                self.discard(&name);
            }
        }
    }

    fn discard(&self, name: &str) {
        let path = self.path.join(WORK).join(name);
        if let Err(error) = std::fs::remove_dir_all(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %path.display(), %error, "leftovers cannot be removed; they take \
                                                            up room");
        }
    }

    pub(crate) fn pool_folder(&self, pool: &PoolName) -> Result<OwnedFd, StorageError> {
        let none = || StorageError::NoPool { pool: pool.clone() };
        PoolName::parse(pool.as_str()).map_err(|_| none())?;
        open_folder(&self.folder, pool.as_str()).map_err(|error| match error {
            Errno::ENOENT => none(),
            error => errno(format!("opening pool `{pool}`"))(error),
        })
    }

    pub fn pools(&self) -> Result<Vec<PoolInfo>, StorageError> {
        let mut pools = Vec::new();
        for name in names(&self.folder)? {
            let name = PoolName::new(name);
            // What is no folder with a proper name is not ours, and a pool may be removed
            // meanwhile.
            if PoolName::parse(name.as_str()).is_ok() && self.pool_folder(&name).is_ok() {
                pools.push(self.pool(&name)?);
            }
        }
        Ok(pools)
    }

    pub fn pool(&self, pool: &PoolName) -> Result<PoolInfo, StorageError> {
        let folder = self.pool_folder(pool)?;
        let asking = errno(format!("asking for the free space of pool `{pool}`"));
        let space = nix::sys::statvfs::fstatvfs(&folder).map_err(asking)?;
        let mut stored_bytes = 0;
        for volume in volumes_in(&folder, pool)?.iter().chain(&self.volumes_in_trash(pool)?) {
            stored_bytes += volume.stored_bytes()?;
        }
        #[allow(clippy::unnecessary_cast, reason = "the widths differ between architectures")]
        let free_bytes = space.blocks_available() as u64 * space.fragment_size() as u64;
        Ok(PoolInfo { name: pool.clone(), stored_bytes, free_bytes })
    }

    pub fn create_pool(&self, pool: &PoolName) -> Result<(), StorageError> {
        PoolName::parse(pool.as_str())?;
        let making = || format!("making pool `{pool}`");
        match mkdirat(&self.folder, pool.as_str(), Mode::from_bits_truncate(FOLDER_MODE)) {
            Ok(()) => fsync(&self.folder).map_err(errno(making())),
            Err(Errno::EEXIST) => Err(StorageError::PoolExists { pool: pool.clone() }),
            Err(error) => Err(errno(making())(error)),
        }
    }

    pub fn remove_pool(&self, pool: &PoolName) -> Result<(), StorageError> {
        let folder = self.pool_folder(pool)?;
        let not_empty = |volumes: usize| StorageError::PoolNotEmpty { pool: pool.clone(), volumes };
        // The last volume may be moved to the trash this moment: what is refused looks no further.
        let volumes = volumes_in(&folder, pool)?.len();
        if volumes > 0 {
            return Err(not_empty(volumes));
        }
        self.remove_trash(pool)?;
        match unlinkat(&self.folder, pool.as_str(), UnlinkatFlags::RemoveDir) {
            Ok(()) => Ok(()),
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => {
                Err(not_empty(volumes_in(&folder, pool)?.len()))
            }
            Err(error) => Err(errno(format!("removing pool `{pool}`"))(error)),
        }
    }

    pub fn volumes(&self, pool: &PoolName) -> Result<Vec<VolumeInfo>, StorageError> {
        let folder = self.pool_folder(pool)?;
        volumes_in(&folder, pool)?.iter().map(Volume::info).collect()
    }

    pub fn volume(&self, id: &VolumeId) -> Result<Volume, StorageError> {
        Volume::open(&self.pool_folder(&id.pool)?, id)
    }

    /// The volume, with every other operation on it kept out until the result is dropped.
    pub fn locked(&self, id: &VolumeId) -> Result<Volume, StorageError> {
        loop {
            let mut volume = self.volume(id)?;
            let Some(lock) = lock_folder(&volume.folder)? else {
                return Err(StorageError::InUse {
                    volume: id.clone(),
                    holder: "another operation".to_owned(),
                });
            };
            volume.lock = Some(lock);
            // While we waited it may have been renamed or removed, and another be in its place.
            if self.volume(id)?.identity()? == volume.identity()? {
                return Ok(volume);
            }
        }
    }

    /// Refuses what no volume can be called, and a pool that is not there.
    pub fn check_new_name(&self, id: &VolumeId) -> Result<OwnedFd, StorageError> {
        VolumeName::parse(id.volume.as_str())?;
        self.pool_folder(&id.pool)
    }

    /// Refuses the name of a new volume that cannot be made.
    pub fn require_absent(&self, id: &VolumeId) -> Result<(), StorageError> {
        let pool = self.check_new_name(id)?;
        match fstatat(&pool, id.volume.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) => Ok(()),
            Ok(_) => Err(StorageError::VolumeExists { volume: id.clone() }),
            Err(error) => Err(errno(format!("looking for volume `{id}`"))(error)),
        }
    }

    /// An empty folder of its own under `.work`, gone when the result is dropped.
    pub fn work_folder(&self) -> Result<WorkFolder, StorageError> {
        // Another process that opens the directory may take a folder for a leftover before it is
        // locked.
        loop {
            if let Some(folder) = self.try_work_folder()? {
                return Ok(folder);
            }
        }
    }

    fn try_work_folder(&self) -> Result<Option<WorkFolder>, StorageError> {
        let name = uuid::Uuid::new_v4().simple().to_string();
        let making = || errno("making a work folder");
        mkdirat(&self.work, name.as_str(), Mode::from_bits_truncate(FOLDER_MODE))
            .map_err(making())?;
        let folder = match open_folder(&self.work, &name) {
            Ok(folder) => folder,
            Err(Errno::ENOENT) => return Ok(None),
            Err(error) => return Err(making()(error)),
        };
        let Some(lock) = try_lock_folder(&folder)? else { return Ok(None) };
        if fstatat(&self.work, name.as_str(), AtFlags::AT_SYMLINK_NOFOLLOW).is_err() {
            return Ok(None);
        }
        let path = self.path.join(WORK).join(&name);
        Ok(Some(WorkFolder { folder, path, _lock: lock }))
    }

    /// A volume in the making: empty until it is written, unseen until it is published.
    pub fn new_volume(&self, id: &VolumeId) -> Result<NewVolume, StorageError> {
        let work = self.work_folder()?;
        let doing = || format!("making volume `{id}`");
        let making = || errno(doing());
        mkdirat(&work.folder, "volume", Mode::from_bits_truncate(FOLDER_MODE)).map_err(making())?;
        let folder = open_folder(&work.folder, "volume").map_err(making())?;
        mkdirat(&folder, SNAPSHOTS, Mode::from_bits_truncate(FOLDER_MODE)).map_err(making())?;
        let image = open_file(&folder, IMAGE, OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL)
            .map_err(making())?;
        let root = self.folder.try_clone().map_err(failed(doing()))?;
        Ok(NewVolume { work, folder, image, root })
    }

    /// Gives the volume another name in its pool.
    pub fn rename(&self, id: &VolumeId, to: &VolumeId) -> Result<(), StorageError> {
        VolumeName::parse(to.volume.as_str())?;
        let pool = self.pool_folder(&id.pool)?;
        let renaming = format!("renaming volume `{id}`");
        place(&pool, id.volume.as_str(), &pool, to.volume.as_str()).map_err(|error| {
            taken(error, renaming, || StorageError::VolumeExists { volume: to.clone() })
        })
    }

    /// Takes the volume away as one step, then frees its room.
    pub fn remove(&self, id: &VolumeId) -> Result<(), StorageError> {
        let pool = self.pool_folder(&id.pool)?;
        let removing = errno(format!("removing volume `{id}`"));
        self.take_away(&pool, id.volume.as_str()).map_err(removing)
    }

    /// Moves a folder away in one step, and removes it with all that is in it. Nothing is made for
    /// that: on a full disk nothing could be.
    pub fn take_away(&self, parent: impl AsFd, name: &str) -> Result<(), Errno> {
        let gone = uuid::Uuid::new_v4().simple().to_string();
        place(parent, name, &self.work, &gone)?;
        self.discard(&gone);
        Ok(())
    }
}

/// Renames without replacing, and sees to it that the new place is on disk.
pub(crate) fn place(
    from: impl AsFd,
    name: &str,
    to: impl AsFd,
    new_name: &str,
) -> Result<(), Errno> {
    renameat2(from.as_fd(), name, to.as_fd(), new_name, RenameFlags::RENAME_NOREPLACE)?;
    sync_done(from)?;
    sync_done(to)
}

/// Sees to it that a folder is on disk in which something was renamed.
fn sync_done(folder: impl AsFd) -> Result<(), Errno> {
    fsync(folder).map_err(failed_when_done)
}

/// An error that comes when everything is in its place: also a full disk is a failure of it then.
/// A lack of room would say that nothing was done.
fn failed_when_done(error: Errno) -> Errno {
    match error {
        Errno::ENOSPC | Errno::EDQUOT => {
            tracing::warn!(%error, "what was done may not stay: its folder cannot be written");
            Errno::EIO
        }
        error => error,
    }
}

pub(crate) fn taken(
    error: Errno,
    doing: String,
    exists: impl FnOnce() -> StorageError,
) -> StorageError {
    match error {
        Errno::EEXIST => exists(),
        error => errno(doing)(error),
    }
}

fn volumes_in(pool_folder: &OwnedFd, pool: &PoolName) -> Result<Vec<Volume>, StorageError> {
    let mut volumes = Vec::new();
    for name in names(pool_folder)? {
        let id = VolumeId { pool: pool.clone(), volume: VolumeName::new(name) };
        match Volume::open(pool_folder, &id) {
            Ok(volume) => volumes.push(volume),
            // Not ours, or gone since the folder was read.
            Err(StorageError::NoVolume { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(volumes)
}

/// An existing volume.
pub(crate) struct Volume {
    id: VolumeId,
    folder: OwnedFd,
    lock: Option<FolderLock>,
}

impl Volume {
    /// Opens a volume: what is not a folder with an image in it is none.
    fn open(pool: &OwnedFd, id: &VolumeId) -> Result<Self, StorageError> {
        VolumeName::parse(id.volume.as_str())
            .map_err(|_| StorageError::NoVolume { volume: id.clone() })?;
        Volume::open_entry(pool, id.volume.as_str(), id)
    }

    /// Opens a volume whose folder has another name than it.
    pub(crate) fn open_entry(
        parent: &OwnedFd,
        entry: &str,
        id: &VolumeId,
    ) -> Result<Self, StorageError> {
        let none = || StorageError::NoVolume { volume: id.clone() };
        let opening = |error| match error {
            Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP => none(),
            error => errno(format!("opening volume `{id}`"))(error),
        };
        let folder = open_folder(parent, entry).map_err(opening)?;
        fstatat(&folder, IMAGE, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(opening)?;
        Ok(Volume { id: id.clone(), folder, lock: None })
    }

    pub fn id(&self) -> &VolumeId {
        &self.id
    }

    fn identity(&self) -> Result<(u64, u64), StorageError> {
        let looking = errno(format!("looking at volume `{}`", self.id));
        let stat = nix::sys::stat::fstat(&self.folder).map_err(looking)?;
        Ok((stat.st_dev, stat.st_ino))
    }

    pub fn image(&self) -> Result<File, StorageError> {
        open_image(&self.folder, IMAGE)
            .map_err(errno(format!("opening the image of volume `{}`", self.id)))
    }

    pub fn info(&self) -> Result<VolumeInfo, StorageError> {
        let image = self.stat(IMAGE)?;
        let snapshots = self
            .snapshots()?
            .into_iter()
            .map(|(name, size_bytes, _)| SnapshotInfo { name, size_bytes });
        Ok(VolumeInfo {
            id: self.id.clone(),
            size_bytes: image.0,
            used_bytes: Some(image.1),
            snapshots: snapshots.collect(),
        })
    }

    /// Bytes that it takes up with its snapshots.
    pub fn stored_bytes(&self) -> Result<u64, StorageError> {
        let snapshots: u64 = self.snapshots()?.iter().map(|(_, _, stored)| stored).sum();
        Ok(self.stat(IMAGE)?.1 + snapshots)
    }

    /// Names of its snapshots, and the bytes that each takes up.
    pub fn snapshot_usage(&self) -> Result<Vec<(SnapshotName, u64)>, StorageError> {
        let snapshots = self.snapshots()?.into_iter();
        Ok(snapshots.map(|(name, _, stored)| (name, stored)).collect())
    }

    fn stat(&self, name: &str) -> Result<(u64, u64), StorageError> {
        size_and_stored(&self.folder, name)
            .map_err(errno(format!("looking at volume `{}`", self.id)))
    }

    /// Name, size and what it takes up, in the order of the names.
    fn snapshots(&self) -> Result<Vec<(SnapshotName, u64, u64)>, StorageError> {
        let Ok(folder) = self.snapshots_folder() else { return Ok(Vec::new()) };
        let mut snapshots = Vec::new();
        for name in names(&folder)? {
            if let Ok((size, stored)) = size_and_stored(&folder, &name) {
                snapshots.push((SnapshotName::new(name), size, stored));
            }
        }
        Ok(snapshots)
    }

    fn snapshots_folder(&self) -> Result<OwnedFd, StorageError> {
        open_folder(&self.folder, SNAPSHOTS)
            .map_err(errno(format!("opening the snapshots of volume `{}`", self.id)))
    }

    pub fn snapshot_file(&self, name: &SnapshotName) -> Result<File, StorageError> {
        check_name("snapshot", name.as_str(), usize::MAX).map_err(|_| self.no_snapshot(name))?;
        let folder = self.snapshots_folder()?;
        open_image(&folder, name.as_str()).map_err(|error| match error {
            Errno::ENOENT => self.no_snapshot(name),
            error => errno(format!("opening {}", self.words_of(name)))(error),
        })
    }

    fn words_of(&self, name: &SnapshotName) -> String {
        format!("snapshot `{name}` of volume `{}`", self.id)
    }

    fn no_snapshot(&self, name: &SnapshotName) -> StorageError {
        StorageError::NoSnapshot { volume: self.id.clone(), snapshot: name.clone() }
    }

    fn snapshot_exists(&self, name: &SnapshotName) -> StorageError {
        StorageError::SnapshotExists { volume: self.id.clone(), snapshot: name.clone() }
    }

    pub fn require_no_snapshot(&self, name: &SnapshotName) -> Result<(), StorageError> {
        SnapshotName::parse(name.as_str())?;
        match self.snapshot_file(name) {
            Err(StorageError::NoSnapshot { .. }) => Ok(()),
            Ok(_) => Err(self.snapshot_exists(name)),
            Err(error) => Err(error),
        }
    }

    /// Makes `file`, which is in `work`, a snapshot of this volume.
    pub fn publish_snapshot(
        &self,
        work: &WorkFolder,
        file: &File,
        name: &SnapshotName,
    ) -> Result<(), StorageError> {
        let making = || format!("making {}", self.words_of(name));
        file.sync_all().map_err(failed(making()))?;
        place(&work.folder, "snapshot", self.snapshots_folder()?, name.as_str())
            .map_err(|error| taken(error, making(), || self.snapshot_exists(name)))
    }

    pub fn rename_snapshot(
        &self,
        from: &SnapshotName,
        to: &SnapshotName,
    ) -> Result<(), StorageError> {
        SnapshotName::parse(to.as_str())?;
        self.snapshot_file(from)?;
        let folder = self.snapshots_folder()?;
        let renaming = format!("renaming {}", self.words_of(from));
        place(&folder, from.as_str(), &folder, to.as_str())
            .map_err(|error| taken(error, renaming, || self.snapshot_exists(to)))
    }

    pub fn remove_snapshot(&self, name: &SnapshotName) -> Result<(), StorageError> {
        self.snapshot_file(name)?;
        let folder = self.snapshots_folder()?;
        unlinkat(&folder, name.as_str(), UnlinkatFlags::NoRemoveDir)
            .and_then(|()| fsync(&folder))
            .map_err(errno(format!("removing {}", self.words_of(name))))
    }

    /// Puts `file`, which is the `image` in `work`, in place of the volume's image.
    pub fn replace_image(&self, work: &WorkFolder, file: &File) -> Result<(), StorageError> {
        let replacing = || format!("replacing the image of volume `{}`", self.id);
        file.sync_all().map_err(failed(replacing()))?;
        renameat2(&work.folder, "image", &self.folder, IMAGE, RenameFlags::empty())
            .and_then(|()| sync_done(&self.folder))
            .map_err(errno(replacing()))
    }

    /// Keeps hypervisors off the image until the result is dropped; refuses if one has it.
    pub fn require_unused(&self) -> Result<ImageGuard, StorageError> {
        let image = self.image()?;
        ImageGuard::take(&image)?.ok_or_else(|| self.in_use(&image))
    }

    pub fn in_use(&self, image: &File) -> StorageError {
        StorageError::InUse { volume: self.id.clone(), holder: holder(image) }
    }
}

/// The length of a file and what it takes up on disk.
fn size_and_stored(folder: impl AsFd, name: &str) -> Result<(u64, u64), Errno> {
    let stat = fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    let unsigned = |number: i64| u64::try_from(number).unwrap_or(0);
    Ok((unsigned(stat.st_size), unsigned(stat.st_blocks) * 512))
}

/// A folder under `.work`. Removed with all that is still in it when dropped.
pub(crate) struct WorkFolder {
    pub(crate) folder: OwnedFd,
    path: PathBuf,
    _lock: FolderLock,
}

impl WorkFolder {
    /// A new empty file in it.
    pub fn file(&self, name: &str) -> Result<File, StorageError> {
        open_file(&self.folder, name, OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL)
            .map_err(errno("making a file"))
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "leftovers cannot be removed; they \
                                                                 take up room");
        }
    }
}

/// A volume in the making.
pub(crate) struct NewVolume {
    work: WorkFolder,
    folder: OwnedFd,
    image: File,
    root: OwnedFd,
}

impl NewVolume {
    pub fn image(&self) -> &File {
        &self.image
    }

    /// Makes it the volume `id`.
    pub fn publish(self, id: &VolumeId) -> Result<(), StorageError> {
        let making = || format!("making volume `{id}`");
        self.image.sync_all().map_err(failed(making()))?;
        fsync(&self.folder).map_err(errno(making()))?;
        let pool = open_folder(&self.root, id.pool.as_str()).map_err(|error| match error {
            Errno::ENOENT => StorageError::NoPool { pool: id.pool.clone() },
            error => errno(making())(error),
        })?;
        place(&self.work.folder, "volume", &pool, id.volume.as_str()).map_err(|error| {
            taken(error, making(), || StorageError::VolumeExists { volume: id.clone() })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lack of room is taken for a refusal: nothing was done.
    #[test]
    fn a_disk_that_is_full_when_all_is_done_is_a_failure_and_no_lack_of_room() {
        for full in [Errno::ENOSPC, Errno::EDQUOT] {
            let error = io::Error::from(failed_when_done(full));
            let is_no_room =
                matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
            assert!(!is_no_room, "{error}");
        }
        assert_eq!(failed_when_done(Errno::EROFS), Errno::EROFS);
    }
}
