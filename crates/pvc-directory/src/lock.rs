//! Keeping out of each other's way.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, Flock, FlockArg, fcntl};
use nix::libc;
use pvc_ports::StorageError;

use crate::layout::failed;

/// QEMU takes its locks on bytes 100 to 163 (what it does) and 200 to 263 (what it lets nobody do).
const QEMU_LOCKS: libc::off_t = 100;
const QEMU_LOCKS_LENGTH: libc::off_t = 200;

/// Time that an operation waits for another one on the same volume.
const TIME_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// While it lives, no QEMU can open the image.
pub(crate) struct ImageGuard {
    _file: File,
}

impl ImageGuard {
    /// Takes all the locks that a QEMU would; `None` if one holds the image, or anybody who keeps
    /// QEMU's convention (`qemu-img`, `qemu-nbd`).
    pub fn take(image: &File) -> Result<Option<Self>, StorageError> {
        let whole = libc::flock {
            l_type: libc::F_WRLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: QEMU_LOCKS,
            l_len: QEMU_LOCKS_LENGTH,
            l_pid: 0,
        };
        // The lock belongs to the open file description, which the clone shares.
        let file = image.try_clone().map_err(failed("locking an image"))?;
        match fcntl(&file, FcntlArg::F_OFD_SETLK(&whole)) {
            Ok(_) => Ok(Some(ImageGuard { _file: file })),
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(None),
            Err(error) => Err(failed("locking an image")(error.into())),
        }
    }
}

/// The program that has the image open, for people: its name and process number, if it can be
/// found.
pub(crate) fn holder(image: &File) -> String {
    let unknown = || "another program".to_owned();
    let Ok(wanted) = image.metadata() else { return unknown() };
    let own = std::process::id().to_string();
    let Ok(processes) = std::fs::read_dir("/proc") else { return unknown() };
    let numbered = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit()) && name != own;
    for process in processes.flatten() {
        let name = process.file_name().to_string_lossy().into_owned();
        if numbered(&name) && has_open(&process.path(), &wanted) {
            let program = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return format!("{} (process {name})", program.trim_end());
        }
    }
    // Whoever looks has it open once.
    match opened(&Path::new("/proc").join(&own), &wanted) {
        0 | 1 => unknown(),
        _ => "this daemon, for another operation".to_owned(),
    }
}

fn has_open(process: &Path, wanted: &std::fs::Metadata) -> bool {
    opened(process, wanted) > 0
}

/// Number of times that a process has the file open.
fn opened(process: &Path, wanted: &std::fs::Metadata) -> usize {
    let Ok(files) = std::fs::read_dir(process.join("fd")) else { return 0 };
    let same =
        |found: std::fs::Metadata| (found.dev(), found.ino()) == (wanted.dev(), wanted.ino());
    files.flatten().filter(|file| std::fs::metadata(file.path()).is_ok_and(same)).count()
}

/// Holds a folder against other operations.
pub(crate) type FolderLock = Flock<File>;

/// Locks an open folder, waiting for a while; `None` if somebody else kept it all that time.
pub(crate) fn lock_folder(folder: impl AsFd) -> Result<Option<FolderLock>, StorageError> {
    let deadline = Instant::now() + TIME_LIMIT;
    loop {
        if let Some(lock) = try_lock_folder(folder.as_fd())? {
            return Ok(Some(lock));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        std::thread::sleep(POLL);
    }
}

/// Locks an open folder if nobody else has it.
pub(crate) fn try_lock_folder(folder: impl AsFd) -> Result<Option<FolderLock>, StorageError> {
    let file = File::from(folder.as_fd().try_clone_to_owned().map_err(failed("locking a folder"))?);
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, Errno::EWOULDBLOCK | Errno::EINTR)) => Ok(None),
        Err((_, error)) => Err(failed("locking a folder")(error.into())),
    }
}
