//! Files without a name: they go with whoever has them open.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use bytes::Bytes;
use nix::errno::Errno;
use nix::unistd::{Gid, Uid, Whence, fchown, lseek};

use crate::MOST_PIECE_BYTES;
use crate::error::{ImageError, io};

/// User and group `nobody` and `nogroup` of every Debian.
const NOBODY: u32 = 65534;

/// Room that is left to others on the file system, in bytes.
const LEAST_FREE_BYTES: u64 = 512 << 20;

#[derive(Debug, Clone)]
pub struct Nameless {
    file: Arc<File>,
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
    /// An empty file of `nobody` on the file system of this directory.
    pub async fn new(directory: &Path) -> Result<Self, ImageError> {
        let directory = directory.to_owned();
        aside(move || {
            let doing = "making a file for the image";
            std::fs::create_dir_all(&directory).map_err(io(doing))?;
            let file = tempfile::tempfile_in(&directory).map_err(io(doing))?;
            let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
            if nix::unistd::geteuid().is_root() {
                let owned = fchown(file.as_fd(), Some(user), Some(group));
                owned.map_err(|error| io(doing)(error.into()))?;
            }
            Ok(Nameless { file: Arc::new(file) })
        })
        .await
    }

    pub async fn write(&self, at: u64, bytes: Bytes) -> Result<(), ImageError> {
        let file = self.file.clone();
        aside(move || {
            require_room(&file)?;
            file.write_all_at(&bytes, at).map_err(io("keeping the image"))
        })
        .await
    }

    /// Refuses to go on where too little room is left to others.
    pub async fn require_room(&self) -> Result<(), ImageError> {
        let file = self.file.clone();
        aside(move || require_room(&file)).await
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

fn require_room(file: &File) -> Result<(), ImageError> {
    let found = nix::sys::statvfs::fstatvfs(file);
    let found = found.map_err(|error| io("looking for room")(error.into()))?;
    match found.blocks_available().saturating_mul(found.fragment_size()) < LEAST_FREE_BYTES {
        true => Err(ImageError::NoRoom { least_bytes: LEAST_FREE_BYTES }),
        false => Ok(()),
    }
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
