use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::fcntl::{Flock, FlockArg};

/// Name of the file that a living process holds locked.
const LOCK: &str = "lock";

/// Directory of one process of PVC that runs scripts, for it alone. Another process takes over what
/// is in it when this one is no more.
#[derive(Clone)]
pub struct Home {
    shared: Arc<Shared>,
}

struct Shared {
    /// Directory of the directories of all such processes.
    parent: PathBuf,
    own: PathBuf,
    /// Goes with the process, however it ends.
    _lock: Flock<File>,
}

impl Home {
    /// Makes the directory below `runtime`, which does not outlive the machine's run.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn make(runtime: &Path) -> io::Result<Home> {
        let parent = runtime.join("scripts");
        DirBuilder::new().recursive(true).mode(0o700).create(&parent)?;
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos());
        let own = parent.join(format!("{}-{nanos:x}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&own)?;
        let path = own.join(LOCK);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, why)| why)?;
        Ok(Home { shared: Arc::new(Shared { parent, own, _lock: lock }) })
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.shared.own
    }

    /// Directories of other processes. Those that are left over stay another's while they are
    /// returned: two that look at once do not get the same.
    pub(crate) fn others(&self) -> io::Result<Others> {
        let mut others = Others::default();
        for entry in fs::read_dir(&self.shared.parent)? {
            let path = entry?.path();
            if path == self.shared.own {
                continue;
            }
            let file = match OpenOptions::new().write(true).open(path.join(LOCK)) {
                Ok(file) => file,
                // In the making, or going.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => others.left.push(Left { path, _lock: lock }),
                Err(_) => others.alive.push(path),
            }
        }
        Ok(others)
    }
}

/// Directories of other processes of PVC that run scripts, or did.
#[derive(Default)]
pub(crate) struct Others {
    pub left: Vec<Left>,
    /// Directories of processes that are still there, be they stuck.
    pub alive: Vec<PathBuf>,
}

/// Directory of a process that is no more.
pub(crate) struct Left {
    pub path: PathBuf,
    _lock: Flock<File>,
}

impl Left {
    /// Removes it, if there is nothing left in it but the lock.
    pub fn remove_if_empty(self) -> io::Result<()> {
        let is_other = |entry: &fs::DirEntry| entry.file_name() != LOCK;
        if fs::read_dir(&self.path)?.filter_map(Result::ok).any(|entry| is_other(&entry)) {
            return Ok(());
        }
        fs::remove_file(self.path.join(LOCK))?;
        fs::remove_dir(&self.path)
    }
}
