//! Files without a name: they go with whoever has them open.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use nix::errno::Errno;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::unistd::{Gid, Uid, Whence, fchown, lseek};

use crate::error::{ImageError, io};
use crate::{MOST_PIECE_BYTES, most_image_bytes};

/// User and group `nobody` and `nogroup` of every Debian.
const NOBODY: u32 = 65534;

/// Place for images that are read or made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spool {
    /// Directory in which they are files without a name; made if it is not there.
    pub directory: PathBuf,
    /// Room that is left to others on its file system, in bytes. `None` is a tenth of it, but
    /// 512 MiB at least and 8 GiB at most.
    pub least_free_bytes: Option<u64>,
}

impl Default for Spool {
    fn default() -> Self {
        Spool { directory: PathBuf::from("/var/tmp"), least_free_bytes: None }
    }
}

/// Room that is left to others on a file system of so many bytes: a tenth, but 512 MiB at least and
/// 8 GiB at most, because a tenth of a large disk is more than anybody misses. A monitor of Ceph
/// says that it has little below 30 % and stops below 5 %.
fn left_to_others(file_system_bytes: u64) -> u64 {
    (file_system_bytes / 10).clamp(512 << 20, 8 << 30)
}

/// Written bytes after which they are on the disk: whoever else waits for the disk, as ZooKeeper
/// does for each change, never waits for more of ours.
const FLUSHED_EVERY: u64 = 8 << 20;

#[derive(Debug, Clone)]
pub struct Nameless {
    file: Arc<File>,
    /// Room that is left to others, as [`Spool::least_free_bytes`].
    least_free_bytes: Option<u64>,
    /// Bytes that were written since the last flush.
    unflushed: Arc<AtomicU64>,
}

/// Room of a file system, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Room {
    free: u64,
    all: u64,
}

impl Room {
    fn require(self, needed_bytes: u64, least_free_bytes: Option<u64>) -> Result<(), ImageError> {
        let least_bytes = least_free_bytes.unwrap_or_else(|| left_to_others(self.all));
        let rest = self.free.checked_sub(needed_bytes).filter(|rest| *rest >= least_bytes);
        match (rest, needed_bytes) {
            (Some(_), _) => Ok(()),
            (None, 0) => Err(ImageError::NoRoom { least_bytes }),
            (None, _) => {
                let free_bytes = self.free.saturating_sub(least_bytes);
                Err(ImageError::NoRoomFor { needed_bytes, free_bytes, least_bytes })
            }
        }
    }
}

/// Refuses an image in the making for which there is no room in `spool`: for the data of its disk,
/// of `data_bytes`, and for as much again and what the format takes beside it.
///
/// # Errors
/// [`ImageError::NoRoomFor`], and if the file system cannot be asked.
pub async fn require_room_for(data_bytes: u64, spool: &Spool) -> Result<(), ImageError> {
    let Spool { directory, least_free_bytes } = spool.clone();
    let needed_bytes = data_bytes.saturating_add(most_image_bytes(data_bytes));
    aside(move || {
        let doing = "looking for room for the image";
        std::fs::create_dir_all(&directory).map_err(io(doing))?;
        let directory = File::open(directory).map_err(io(doing))?;
        room(&directory)?.require(needed_bytes, least_free_bytes)
    })
    .await
}

async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImageError> + Send + 'static,
) -> Result<T, ImageError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(panic) if panic.is_panic() => std::panic::resume_unwind(panic.into_panic()),
        Err(error) => Err(io("file work")(std::io::Error::other(error))),
    }
}

impl Nameless {
    /// An empty file of `nobody`.
    pub async fn new(spool: &Spool) -> Result<Self, ImageError> {
        let Spool { directory, least_free_bytes } = spool.clone();
        aside(move || {
            let doing = "making a file for the image";
            std::fs::create_dir_all(&directory).map_err(io(doing))?;
            let file = tempfile::tempfile_in(&directory).map_err(io(doing))?;
            let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
            if nix::unistd::geteuid().is_root() {
                let owned = fchown(file.as_fd(), Some(user), Some(group));
                owned.map_err(|error| io(doing)(error.into()))?;
            }
            Ok(Nameless { file: Arc::new(file), least_free_bytes, unflushed: Arc::default() })
        })
        .await
    }

    pub async fn write(&self, at: u64, bytes: Bytes) -> Result<(), ImageError> {
        let Nameless { file, least_free_bytes, unflushed } = self.clone();
        aside(move || {
            room(&file)?.require(0, least_free_bytes)?;
            file.write_all_at(&bytes, at).map_err(io("keeping the image"))?;
            let length = bytes.len() as u64;
            let before = unflushed.fetch_add(length, Ordering::Relaxed);
            match before + length < FLUSHED_EVERY {
                true => Ok(()),
                false => {
                    unflushed.store(0, Ordering::Relaxed);
                    flush(&file)
                }
            }
        })
        .await
    }

    /// Has what a program wrote on the disk, and in no memory.
    pub async fn flush(&self) -> Result<(), ImageError> {
        let file = self.file.clone();
        aside(move || flush(&file)).await
    }

    /// Refuses to go on where too little room is left to others once `needed_bytes` are written.
    pub async fn require_room(&self, needed_bytes: u64) -> Result<(), ImageError> {
        let Nameless { file, least_free_bytes, .. } = self.clone();
        aside(move || room(&file)?.require(needed_bytes, least_free_bytes)).await
    }

    pub async fn set_size(&self, bytes: u64) -> Result<(), ImageError> {
        let file = self.file.clone();
        aside(move || file.set_len(bytes).map_err(io("making room for the disk"))).await
    }

    /// Size of the file, in bytes.
    pub async fn size(&self) -> Result<u64, ImageError> {
        let file = self.file.clone();
        aside(move || Ok(file.metadata().map_err(io("looking at the image"))?.len())).await
    }

    /// The file, for a program to have as its own standard input or output.
    pub fn for_program(&self) -> Result<Stdio, ImageError> {
        let file = self.file.try_clone().map_err(io("handing over a file"))?;
        Ok(Stdio::from(file))
    }

    /// The next piece from `at` on that is no hole.
    pub async fn next_data(&self, at: u64) -> Result<Option<(u64, Bytes)>, ImageError> {
        let file = self.file.clone();
        aside(move || next_data(&file, at).map_err(io("reading a file that was kept"))).await
    }
}

fn room(file: &File) -> Result<Room, ImageError> {
    let found = nix::sys::statvfs::fstatvfs(file);
    let found = found.map_err(|error| io("looking for room")(error.into()))?;
    let bytes = |blocks: u64| blocks.saturating_mul(found.fragment_size());
    Ok(Room { free: bytes(found.blocks_available()), all: bytes(found.blocks()) })
}

fn flush(file: &File) -> Result<(), ImageError> {
    let doing = "writing the image to the disk";
    file.sync_data().map_err(io(doing))?;
    let dropped = posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    dropped.map_err(|error| io(doing)(error.into()))
}

fn next_data(file: &File, at: u64) -> std::io::Result<Option<(u64, Bytes)>> {
    let seek = |at: u64, whence| {
        let at = i64::try_from(at).map_err(std::io::Error::other)?;
        match lseek(file, at, whence) {
            Ok(found) => Ok(u64::try_from(found).ok()),
            Err(Errno::ENXIO) => Ok(None),
            Err(error) => Err(std::io::Error::from(error)),
        }
    };
    let Some(start) = seek(at, Whence::SeekData)? else { return Ok(None) };
    let end = seek(start, Whence::SeekHole)?.unwrap_or(start);
    let length = usize::try_from(end - start).unwrap_or(MOST_PIECE_BYTES).min(MOST_PIECE_BYTES);
    if length == 0 {
        return Ok(None);
    }
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, start)?;
    Ok(Some((start, bytes.into())))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_tenth_of_the_file_system_is_left_to_others_half_a_gib_at_least_and_eight_at_most() {
        for (all, least) in
            [(0, GIB / 2), (5 * GIB, GIB / 2), (50 * GIB, 5 * GIB), (250 * GIB, 8 * GIB)]
        {
            let room = |free| Room { free, all };
            assert!(room(least).require(0, None).is_ok(), "{all}");
            assert!(
                matches!(room(least - 1).require(0, None), Err(ImageError::NoRoom { .. })),
                "{all}"
            );
            assert!(room(least + 7).require(7, None).is_ok(), "{all}");
            let refused = room(least + 6).require(7, None).unwrap_err();
            assert!(matches!(refused, ImageError::NoRoomFor { free_bytes: 6, .. }), "{refused}");
            assert!(room(u64::MAX).require(u64::MAX, None).is_err(), "{all}");
        }
    }

    #[test]
    fn as_much_is_left_to_others_as_is_set() {
        for (least, all) in [(0, 250 * GIB), (GIB, 250 * GIB), (10 * GIB, 5 * GIB)] {
            let room = |free| Room { free, all };
            room(least).require(0, Some(least)).unwrap();
            room(least + 7).require(7, Some(least)).unwrap();
            let refused = room(least + 6).require(7, Some(least)).unwrap_err();
            assert!(matches!(refused, ImageError::NoRoomFor { free_bytes: 6, .. }), "{refused}");
            if least > 0 {
                let refused = room(least - 1).require(0, Some(least)).unwrap_err();
                assert!(matches!(refused, ImageError::NoRoom { .. }), "{refused}");
            }
        }
    }

    #[tokio::test]
    async fn an_image_for_which_there_is_no_room_is_refused_with_a_way_out() {
        let folder = tempfile::tempdir().unwrap();
        let spool = Spool { directory: folder.path().to_owned(), least_free_bytes: None };
        let error = require_room_for(1 << 60, &spool).await.unwrap_err();
        assert!(!error.is_of_the_image() && error.hint().is_some(), "{error}");
        assert!(error.to_string().contains("of room"), "{error}");
    }

    /// Bytes of the file that are in memory.
    fn cached(file: &Nameless) -> u64 {
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.file.as_raw_fd());
        let found = std::process::Command::new("fincore")
            .args(["--bytes", "--noheadings", "--output", "RES", &path])
            .output()
            .unwrap();
        String::from_utf8(found.stdout).unwrap().trim().parse().unwrap()
    }

    #[tokio::test]
    async fn what_is_written_does_not_gather_in_memory() {
        let spool = Spool { least_free_bytes: Some(0), ..Spool::default() };
        let file = Nameless::new(&spool).await.unwrap();
        let piece = Bytes::from(vec![1; MOST_PIECE_BYTES]);
        for at in 0..20 {
            file.write(at * MOST_PIECE_BYTES as u64, piece.clone()).await.unwrap();
            assert!(cached(&file) <= FLUSHED_EVERY, "{} bytes", cached(&file));
        }
        file.flush().await.unwrap();
        assert_eq!(cached(&file), 0);
        assert_eq!(file.next_data(0).await.unwrap(), Some((0, piece)));
    }
}
