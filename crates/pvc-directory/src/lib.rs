//! Volumes as files in a directory.
//!
//! ```text
//!  DIR/vms/                           a pool
//!  DIR/vms/web1_sda/disk.raw          a volume: sparse, exactly as long as the volume is large
//!  DIR/vms/web1_sda/snapshots/NAME    its snapshots, raw as well
//!  DIR/.trash/vms/…                   removed volumes that are still kept, as they were
//!  DIR/.work/RANDOM/                  things being made or removed
//! ```
//!
//! Whatever is made is made under `.work`, synced, and renamed into its place; whatever is removed
//! is renamed away first. A crash therefore leaves volumes that are whole, and leftovers under
//! `.work`, which the next [`DirectoryStorage::open`] removes.
//!
//! Several processes may use one directory at a time: they keep out of each other's way with
//! `flock` on the folders of volumes, and out of QEMU's way with the very locks that QEMU takes on
//! its images.

#![allow(
    clippy::disallowed_methods,
    reason = "an adapter of this host: its waits are real, its names need no seed"
)]

mod copy;
mod layout;
mod lock;
mod streams;
mod trash;

use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use pvc_model::storage::{PoolName, SnapshotName, TrashId, VolumeId, VolumeName};
use pvc_ports::{
    Attachment, Course, Flattened, MeasuredPlace, MeasuredVolume, PoolInfo, SnapshotUsage, Storage,
    StorageError, TrashedVolume, VolumeInfo, VolumeLock, VolumeStreams,
};
use tokio::sync::Semaphore;

use crate::copy::{Copying, copy_contents};
use crate::layout::{Root, Volume, failed};
use crate::lock::ImageGuard;

/// The pool that every directory has from the start.
pub const DEFAULT_POOL: &str = "vms";

/// The Storage port on a directory of this host. Cheap to clone.
#[derive(Clone)]
pub struct DirectoryStorage {
    root: Arc<Root>,
    /// Threads of the runtime that file work may take: it may stand still for as long as a disk
    /// hangs, while it is asked for again and again, and others need such threads, too.
    places: Arc<Semaphore>,
    /// Course of copies that have none of their own.
    course: Course,
}

/// The most works on files at once.
const AT_ONCE: usize = 64;

impl DirectoryStorage {
    /// Opens the directory, which is made if it is not there, with the pool `vms`; leftovers of
    /// crashes are removed. Blocks for that long.
    pub fn open(directory: &Path) -> Result<Self, StorageError> {
        let root = Root::open(directory)?;
        root.remove_leftovers();
        let places = Arc::new(Semaphore::new(AT_ONCE));
        let course = Course::default();
        let storage = DirectoryStorage { root: Arc::new(root), places, course };
        match storage.root.create_pool(&PoolName::new(DEFAULT_POOL)) {
            Ok(()) | Err(StorageError::PoolExists { .. }) => Ok(storage),
            Err(error) => Err(error),
        }
    }

    /// The directory, without symbolic links in its path.
    pub fn directory(&self) -> &Path {
        self.root.path()
    }

    /// Does file work where it may block. If the caller goes away, long copies stop and are undone.
    async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Root, &Copying) -> Result<T, StorageError> + Send + 'static,
    ) -> Result<T, StorageError> {
        self.work_on(&self.course, work).await
    }

    /// The same on a course, which may also be asked to stop.
    async fn work_on<T: Send + 'static>(
        &self,
        course: &Course,
        work: impl FnOnce(&Root, &Copying) -> Result<T, StorageError> + Send + 'static,
    ) -> Result<T, StorageError> {
        let root = self.root.clone();
        let stop = StopOnDrop(Arc::new(AtomicBool::new(false)));
        let copying = Copying::new(stop.0.clone(), course.clone());
        let place = self.places.clone().acquire_owned().await.expect("it is never closed");
        let task = tokio::task::spawn_blocking(move || {
            let _place = place;
            work(&root, &copying)
        });
        task.await.unwrap_or_else(|panic| Err(failed("doing file work")(io::Error::other(panic))))
    }
}

struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Refuses what the pool has no room for.
fn require_room(
    root: &Root,
    pool: &PoolName,
    needed_bytes: u64,
    force: bool,
) -> Result<(), StorageError> {
    root.pool(pool)?.check_room(needed_bytes, force)
}

/// Words for a copy that fails.
fn copying_from(volume: &VolumeId) -> String {
    format!("copying volume `{volume}`")
}

/// Copies an image whose contents a guest may be writing at this moment: only a reflink shows it at
/// one moment, so without reflinks an image in use is refused.
fn copy_image(
    root: &Root,
    from: &Volume,
    to: &std::fs::File,
    copying: &Copying,
) -> Result<(), StorageError> {
    let image = from.image()?;
    let guard = ImageGuard::take(&image)?;
    if copying.reflink(&image, to).map_err(failed(copying_from(from.id())))? {
        return to.sync_all().map_err(failed(copying_from(from.id())));
    }
    let Some(_guard) = guard else { return Err(from.in_use(&image)) };
    copy_in_full(root, from, &image, to, copying)
}

/// Makes a new volume that has the contents of `source`.
fn make_copy(
    root: &Root,
    source: &Volume,
    to: &VolumeId,
    copying: &Copying,
) -> Result<(), StorageError> {
    let make = || {
        let new = root.new_volume(to)?;
        copy_image(root, source, new.image(), copying)?;
        new.publish(to)
    };
    make().map_err(no_room(root, &to.pool, source.info()?.size_bytes))
}

/// Copies an image that nobody writes. The copy must fit: a full disk would harm everybody on it.
fn copy_in_full(
    root: &Root,
    volume: &Volume,
    image: &std::fs::File,
    to: &std::fs::File,
    copying: &Copying,
) -> Result<(), StorageError> {
    let id = volume.id();
    let looking = failed(format!("looking at volume `{id}`"));
    let needed = image.metadata().map_err(looking)?.blocks() * 512;
    require_room(root, &id.pool, needed, true)?;
    copy_contents(image, to, copying)
        .map_err(failed(copying_from(id)))
        .map_err(no_room(root, &id.pool, needed))
}

/// Whether files may share blocks: it is tried.
fn shares_blocks(root: &Root, copying: &Copying) -> Result<bool, StorageError> {
    let work = root.work_folder()?;
    let (from, to) = (work.file("from")?, work.file("to")?);
    copying.reflink(&from, &to).map_err(failed("looking whether files share blocks"))
}

/// Whether the file system can go past the kernel's cache.
fn reads_directly(image: &Path) -> bool {
    let direct = nix::fcntl::OFlag::O_DIRECT.bits();
    std::fs::OpenOptions::new().read(true).custom_flags(direct).open(image).is_ok()
}

#[async_trait]
impl Storage for DirectoryStorage {
    async fn pools(&self) -> Result<Vec<PoolInfo>, StorageError> {
        self.work(|root, _| root.pools()).await
    }

    async fn pool(&self, pool: &PoolName) -> Result<PoolInfo, StorageError> {
        let pool = pool.clone();
        self.work(move |root, _| root.pool(&pool)).await
    }

    async fn create_pool(&self, pool: &PoolName) -> Result<(), StorageError> {
        let pool = pool.clone();
        self.work(move |root, _| root.create_pool(&pool)).await
    }

    async fn remove_pool(&self, pool: &PoolName) -> Result<(), StorageError> {
        let pool = pool.clone();
        self.work(move |root, _| root.remove_pool(&pool)).await
    }

    /// A folder goes with what is in it.
    async fn check_pool_removal(&self, _pool: &PoolName) -> Result<(), StorageError> {
        Ok(())
    }

    /// A file is there or is not.
    async fn half_removed(&self, _pool: &PoolName) -> Result<Vec<VolumeId>, StorageError> {
        Ok(Vec::new())
    }

    async fn volumes(&self, pool: &PoolName) -> Result<Vec<VolumeInfo>, StorageError> {
        let pool = pool.clone();
        self.work(move |root, _| root.volumes(&pool)).await
    }

    async fn volume(&self, volume: &VolumeId) -> Result<VolumeInfo, StorageError> {
        let id = volume.clone();
        self.work(move |root, _| root.volume(&id)?.info()).await
    }

    async fn create(
        &self,
        volume: &VolumeId,
        size_bytes: u64,
        force: bool,
    ) -> Result<(), StorageError> {
        let id = volume.clone();
        self.work(move |root, _| {
            root.require_absent(&id)?;
            require_room(root, &id.pool, size_bytes, force)?;
            let make = || {
                let new = root.new_volume(&id)?;
                let making = failed(format!("making volume `{id}`"));
                new.image().set_len(size_bytes).map_err(making)?;
                new.publish(&id)
            };
            make().map_err(no_room(root, &id.pool, size_bytes))
        })
        .await
    }

    /// Growing is allowed while the volume is in use: the guest is told of it afterwards.
    async fn resize(
        &self,
        volume: &VolumeId,
        size_bytes: u64,
        force: bool,
    ) -> Result<(), StorageError> {
        let id = volume.clone();
        self.work(move |root, _| {
            let volume = root.locked(&id)?;
            let info = volume.info()?;
            let image = volume.image()?;
            let guard = ImageGuard::take(&image)?;
            if size_bytes < info.size_bytes {
                if guard.is_none() {
                    return Err(volume.in_use(&image));
                }
                if !force {
                    let from_bytes = info.size_bytes;
                    return Err(StorageError::WouldShrink {
                        volume: id,
                        from_bytes,
                        to_bytes: size_bytes,
                    });
                }
            } else if size_bytes > info.size_bytes {
                require_room(root, &id.pool, size_bytes - info.size_bytes, force)?;
            }
            image
                .set_len(size_bytes)
                .and_then(|()| image.sync_all())
                .map_err(failed(format!("resizing volume `{id}`")))
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
        let (id, to) = (volume.clone(), VolumeId { pool: volume.pool.clone(), volume: to.clone() });
        let its_own = course.clone();
        let copied = self.work_on(course, move |root, copying| {
            let source = root.locked(&id)?;
            root.require_absent(&to)?;
            let size_bytes = source.info()?.size_bytes;
            require_room(root, &id.pool, size_bytes, force)?;
            its_own.announce(size_bytes);
            copying.check().map_err(failed(copying_from(&id)))?;
            make_copy(root, &source, &to, copying)
        });
        copied.await.map_err(|error| match error {
            StorageError::Io { .. } if course.is_stopped() => StorageError::Stopped,
            other => other,
        })
    }

    /// Shares blocks where the file system can, and is a copy where it cannot.
    async fn clone_on_write(
        &self,
        volume: &VolumeId,
        to: &VolumeName,
        _course: &Course,
    ) -> Result<(), StorageError> {
        let (id, to) = (volume.clone(), VolumeId { pool: volume.pool.clone(), volume: to.clone() });
        self.work(move |root, copying| {
            let source = root.locked(&id)?;
            root.require_absent(&to)?;
            make_copy(root, &source, &to, copying)
        })
        .await
    }

    /// Files that share blocks do not depend on each other.
    async fn flatten(
        &self,
        volume: &VolumeId,
        _force: bool,
        _course: &Course,
    ) -> Result<Flattened, StorageError> {
        let id = volume.clone();
        self.work(move |root, _| root.volume(&id).map(|_| Flattened::Independent)).await
    }

    async fn rename(&self, volume: &VolumeId, to: &VolumeName) -> Result<(), StorageError> {
        let (id, to) = (volume.clone(), VolumeId { pool: volume.pool.clone(), volume: to.clone() });
        self.work(move |root, _| {
            let volume = root.locked(&id)?;
            let _guard = volume.require_unused()?;
            root.rename(&id, &to)
        })
        .await
    }

    async fn remove(&self, volume: &VolumeId) -> Result<(), StorageError> {
        let id = volume.clone();
        self.work(move |root, _| {
            let volume = root.locked(&id)?;
            let _guard = volume.require_unused()?;
            root.remove(&id)
        })
        .await
    }

    async fn check_unused(&self, volume: &VolumeId) -> Result<(), StorageError> {
        let id = volume.clone();
        self.work(move |root, _| root.volume(&id)?.require_unused().map(drop)).await
    }

    /// Copies depend on nothing here, and nobody protects a snapshot.
    async fn check_removal(&self, volume: &VolumeId) -> Result<(), StorageError> {
        self.check_unused(volume).await
    }

    async fn trash(
        &self,
        volume: &VolumeId,
        keep: Duration,
    ) -> Result<TrashedVolume, StorageError> {
        let id = volume.clone();
        self.work(move |root, _| {
            let volume = root.locked(&id)?;
            let _guard = volume.require_unused()?;
            root.trash(&id, keep)
        })
        .await
    }

    async fn trashed(&self, pool: &PoolName) -> Result<Vec<TrashedVolume>, StorageError> {
        let pool = pool.clone();
        self.work(move |root, _| root.trashed(&pool)).await
    }

    async fn restore(
        &self,
        pool: &PoolName,
        id: &TrashId,
        to: &VolumeName,
    ) -> Result<(), StorageError> {
        let (id, to) = (id.clone(), VolumeId { pool: pool.clone(), volume: to.clone() });
        self.work(move |root, _| root.restore(&id, &to)).await
    }

    /// Whether a volume has the name: each act here is one step of the file system, so none is
    /// ever cut off halfway.
    async fn repair_name(&self, volume: &VolumeId) -> Result<bool, StorageError> {
        match self.volume(volume).await {
            Ok(_) => Ok(true),
            Err(StorageError::NoVolume { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn purge(&self, pool: &PoolName, id: &TrashId) -> Result<(), StorageError> {
        let (pool, id) = (pool.clone(), id.clone());
        self.work(move |root, _| root.purge(&pool, &id)).await
    }

    async fn snapshot(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
    ) -> Result<(), StorageError> {
        let (id, name) = (volume.clone(), snapshot.clone());
        self.work(move |root, copying| {
            let volume = root.locked(&id)?;
            volume.require_no_snapshot(&name)?;
            let make = || {
                let work = root.work_folder()?;
                let file = work.file("snapshot")?;
                copy_image(root, &volume, &file, copying)?;
                volume.publish_snapshot(&work, &file, &name)
            };
            make().map_err(no_room(root, &id.pool, volume.info()?.size_bytes))
        })
        .await
    }

    async fn rename_snapshot(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
        to: &SnapshotName,
    ) -> Result<(), StorageError> {
        let (id, from, to) = (volume.clone(), snapshot.clone(), to.clone());
        self.work(move |root, _| root.locked(&id)?.rename_snapshot(&from, &to)).await
    }

    async fn remove_snapshot(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
    ) -> Result<(), StorageError> {
        let (id, name) = (volume.clone(), snapshot.clone());
        self.work(move |root, _| root.locked(&id)?.remove_snapshot(&name)).await
    }

    async fn roll_back(
        &self,
        volume: &VolumeId,
        snapshot: &SnapshotName,
    ) -> Result<(), StorageError> {
        let (id, name, course) = (volume.clone(), snapshot.clone(), self.course.clone());
        self.work(move |root, copying| {
            let volume = root.locked(&id)?;
            let _guard = volume.require_unused()?;
            let source = volume.snapshot_file(&name)?;
            let looking = failed(format!("looking at snapshot `{name}` of volume `{id}`"));
            let needed = source.metadata().map_err(looking)?.len();
            course.announce(needed);
            let make = || {
                let work = root.work_folder()?;
                let file = work.file("image")?;
                copy_in_full(root, &volume, &source, &file, copying)?;
                volume.replace_image(&work, &file)
            };
            make().map_err(no_room(root, &id.pool, needed))
        })
        .await
    }

    /// Only a rollback goes through a whole volume, where files share no blocks.
    fn on_course(&self, course: &Course) -> Option<Arc<dyn Storage>> {
        Some(Arc::new(DirectoryStorage { course: course.clone(), ..self.clone() }))
    }

    fn streams(&self) -> Option<&dyn VolumeStreams> {
        Some(self)
    }

    /// Each snapshot is a file of its own. Where the file system lets files share blocks, nobody
    /// says which are shared: then a snapshot holds its blocks at most.
    async fn snapshot_usage(&self, volume: &VolumeId) -> Result<Vec<SnapshotUsage>, StorageError> {
        let id = volume.clone();
        self.work(move |root, copying| {
            let usage = root.volume(&id)?.snapshot_usage()?;
            let of = |(name, held_bytes): (SnapshotName, u64), is_shared: bool| SnapshotUsage {
                name,
                held_bytes,
                own_bytes: (!is_shared).then_some(held_bytes),
            };
            let is_shared = !usage.is_empty() && shares_blocks(root, copying)?;
            Ok(usage.into_iter().map(|found| of(found, is_shared)).collect())
        })
        .await
    }

    async fn attachment(&self, volume: &VolumeId) -> Result<Attachment, StorageError> {
        let id = volume.clone();
        self.work(move |root, _| {
            root.volume(&id)?;
            Ok(Attachment::File { path: root.image_path(&id) })
        })
        .await
    }

    /// The identity is that of the image file, with the time at which it was made: the number of a
    /// file that was removed is given to another.
    async fn measured(&self, volume: &VolumeId) -> Result<MeasuredVolume, StorageError> {
        let id = volume.clone();
        self.work(move |root, _| {
            let image = root.volume(&id)?.image()?;
            let looking = failed(format!("looking at volume `{id}`"));
            let known = image.metadata().map_err(looking)?;
            let born = known.created().ok();
            let born = born.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
            let born = born.map_or(0, |at| at.as_nanos());
            let identity = format!("{}:{}:{born}", known.dev(), known.ino());
            let path = root.image_path(&id);
            let is_direct = reads_directly(&path);
            Ok(MeasuredVolume { identity, place: MeasuredPlace::File { path, is_direct } })
        })
        .await
    }

    /// None, ever: what holds a file here is a process of this host, and its locks end with it.
    async fn locks(&self, volume: &VolumeId) -> Result<Vec<VolumeLock>, StorageError> {
        let id = volume.clone();
        self.work(move |root, _| root.volume(&id).map(|_| Vec::new())).await
    }

    async fn break_lock(&self, volume: &VolumeId, _lock: &VolumeLock) -> Result<(), StorageError> {
        let id = volume.clone();
        self.work(move |root, _| root.volume(&id).map(drop)).await
    }
}

/// A disk that is full in the middle of something is a lack of room, not a failure of the storage.
fn no_room<'a>(
    root: &'a Root,
    pool: &'a PoolName,
    needed_bytes: u64,
) -> impl FnOnce(StorageError) -> StorageError + 'a {
    move |error| {
        let StorageError::Io { source, .. } = &error else { return error };
        let is_full =
            matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        match root.pool(pool) {
            Ok(info) if is_full => StorageError::NoRoom {
                pool: pool.clone(),
                free_bytes: info.free_bytes,
                needed_bytes,
            },
            _ => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_disk_that_hangs_takes_no_more_threads_than_are_its_own() {
        let root = tempfile::tempdir().unwrap();
        let storage = DirectoryStorage::open(root.path()).unwrap();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let wait = Arc::new(std::sync::Mutex::new(wait));
        let hanging: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                let (storage, wait) = (storage.clone(), wait.clone());
                let stands_still = move |_: &Root, _: &Copying| {
                    let _ = wait.lock().unwrap().recv();
                    Ok(())
                };
                tokio::spawn(async move { storage.work(stands_still).await })
            })
            .collect();
        while storage.places.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let more = storage.work(|_, _| Ok(()));
        let more = tokio::time::timeout(std::time::Duration::from_millis(1), more).await;
        assert!(more.is_err(), "it waits for a place");
        drop(go);
        for ended in hanging {
            ended.await.unwrap().unwrap();
        }
        storage.work(|_, _| Ok(())).await.unwrap();
    }
}
