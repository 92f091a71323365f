//! Lock that lets one process use a directory.

#![allow(clippy::disallowed_methods, reason = "an adapter: the tree's own file")]

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::disk::DiskError;

const FILE: &str = "tree.lock";

/// Reason for which a tree could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the tree in `{}` is in use by {}", dir.display(), holder(*pid))]
    InUse { dir: PathBuf, pid: Option<u32> },
    #[error("the tree's file in `{}` is damaged: {why}", dir.display())]
    Corrupt { dir: PathBuf, why: String },
    #[error("the tree in `{}` was written by another version: {why}", dir.display())]
    OtherVersion { dir: PathBuf, why: String },
    #[error("the tree in `{}` cannot be opened", dir.display())]
    Io {
        dir: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl OpenError {
    /// Advice for the operator.
    pub fn hint(&self) -> String {
        match self {
            OpenError::InUse { pid: Some(pid), .. } => {
                format!("stop process {pid} first, or choose another directory")
            }
            OpenError::InUse { pid: None, .. } => {
                "stop the other program first, or choose another directory".to_owned()
            }
            OpenError::Corrupt { dir, .. } => format!(
                "put a backup of the directory in its place, or move `{}` away to begin with an \
                 empty tree",
                dir.display()
            ),
            OpenError::OtherVersion { .. } => "start the version that wrote it".to_owned(),
            OpenError::Io { .. } => {
                "check that the directory can be written and that its disk has room".to_owned()
            }
        }
    }

    pub(crate) fn of_disk(dir: &Path, error: DiskError) -> OpenError {
        let dir = dir.to_owned();
        match error {
            DiskError::Io(source) => OpenError::Io { dir, source },
            DiskError::Corrupt(why) => OpenError::Corrupt { dir, why },
            DiskError::Format { .. } => OpenError::OtherVersion { dir, why: error.to_string() },
        }
    }
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another program".to_owned(), |pid| format!("process {pid}"))
}

/// The right to use a directory, for as long as this value lives.
///
/// The kernel gives it back when the process ends, however it ends. The file itself stays; the
/// number in it is only for people.
#[derive(Debug)]
pub(crate) struct DirLock {
    _file: File,
}

impl DirLock {
    /// Makes the directory if it is missing.
    pub(crate) fn take(dir: &Path) -> Result<DirLock, OpenError> {
        let io = |source| OpenError::Io { dir: dir.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(dir.join(FILE)).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::InUse { dir: dir.to_owned(), pid: read_pid(&mut file) });
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        // A full disk is no reason to refuse: the number is only for people.
        if let Err(error) = write_pid(&mut file) {
            tracing::warn!(dir = %dir.display(), %error, "cannot note the process in the lock \
                                                          file");
        }
        Ok(DirLock { _file: file })
    }
}

fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn write_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    writeln!(file, "{}", std::process::id())
}
