//! Control group of a script, with a limit of memory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::sleep;

/// Name of the group that this process moves to, where a group cannot have both processes and
/// groups with limits.
const OWN: &str = "pvc-daemon";

/// The most processes of a script, where this can be limited.
const MOST_PROCESSES: &str = "4096";

/// How long a group may take to be empty after all in it was killed.
const DEATH: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);

/// A control group, by its directory.
pub struct Group {
    path: PathBuf,
}

impl Group {
    /// Makes a group with a limit of memory below the one that this process is in.
    ///
    /// # Errors
    /// Where none can be made: on a machine without them, or without the right to.
    pub fn make(name: &str, memory_bytes: u64) -> io::Result<Group> {
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let root = Path::new("/sys/fs/cgroup");
        let unified = root.join("cgroup.controllers").exists();
        let (parent, limit) = match unified {
            true => (delegated(&below(root, path_of(&own, "")?))?, "memory.max"),
            false => {
                let parent = below(&root.join("memory"), path_of(&own, "memory")?);
                (parent, "memory.limit_in_bytes")
            }
        };
        let group = Group { path: parent.join(format!("pvc-script-{name}")) };
        match fs::create_dir(&group.path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        if let Err(error) = fs::write(group.path.join(limit), memory_bytes.to_string()) {
            // It is empty.
            let _ = fs::remove_dir(&group.path);
            return Err(error);
        }
        // Not where the controller is another hierarchy's.
        let _ = fs::write(group.path.join("pids.max"), MOST_PROCESSES);
        Ok(group)
    }

    pub fn at(path: PathBuf) -> Group {
        Group { path }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Kills all that is in it, and removes it; `false` if something does not die.
    pub async fn end(self) -> io::Result<bool> {
        let until = tokio::time::Instant::now() + DEATH;
        loop {
            let processes = match fs::read_to_string(self.path.join("cgroup.procs")) {
                Ok(text) => text,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
                Err(error) => return Err(error),
            };
            for process in processes.lines().filter_map(|line| line.parse().ok()) {
                // It may have ended by itself, which is all we want.
                let _ = kill(Pid::from_raw(process), Signal::SIGKILL);
            }
            if processes.is_empty() && fs::remove_dir(&self.path).is_ok() {
                return Ok(true);
            }
            if tokio::time::Instant::now() >= until {
                return Ok(false);
            }
            sleep(POLL).await;
        }
    }
}

/// The group of this process in the hierarchy of a controller, without a name that of version 2.
fn path_of<'a>(own: &'a str, controller: &str) -> io::Result<&'a str> {
    let found = own.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers.split(',').any(|name| name == controller).then_some(path)
    });
    found.ok_or_else(|| io::Error::other("this process is in no control group for memory"))
}

fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// The group below which groups with limits can be made. Version 2 wants no process in it, so this
/// one moves to a group of its own.
fn delegated(own: &Path) -> io::Result<PathBuf> {
    let parent = match own.file_name() {
        Some(name) if name == OWN => own.parent().unwrap_or(own),
        _ => own,
    };
    let switch = parent.join("cgroup.subtree_control");
    let on = "+memory +pids";
    if fs::write(&switch, on).is_err() {
        let place = parent.join(OWN);
        match fs::create_dir(&place) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        fs::write(place.join("cgroup.procs"), std::process::id().to_string())?;
        fs::write(&switch, on)?;
    }
    Ok(parent.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_a_controller_is_found_in_both_versions() {
        let hybrid = "9:name=systemd:/\n4:cpu,memory:/a/b\n0::/c\n";
        assert_eq!(path_of(hybrid, "memory").expect("it is there"), "/a/b");
        assert_eq!(path_of(hybrid, "").expect("it is there"), "/c");
        assert!(path_of("0::/c\n", "memory").is_err());
        assert_eq!(below(Path::new("/x"), "/a/b"), Path::new("/x/a/b"));
    }
}
