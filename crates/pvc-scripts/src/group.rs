//! Control group of a script, with limits of memory and of processes.

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

/// The most processes of a script, threads counted, where this can be limited.
const MOST_PROCESSES: &str = "4096";

/// File with that limit, in both versions.
const PROCESSES: &str = "pids.max";

/// Time that a group may take to be empty after all in it was killed.
const DEATH: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);

/// A control group, by its directory in each hierarchy: one in version 2; in version 1 that for
/// memory, and that for processes where there is one.
pub struct Group {
    paths: Vec<PathBuf>,
}

impl Group {
    /// Makes a group with a limit of memory below the one that this process is in, and says why its
    /// processes are not limited as well, if they are not.
    ///
    /// # Errors
    /// Where none can be made: on a machine without them, or without the right to.
    pub fn make(name: &str, memory_bytes: u64) -> io::Result<(Group, Option<io::Error>)> {
        let own = fs::read_to_string("/proc/self/cgroup")?;
        Group::make_in(Path::new("/sys/fs/cgroup"), &own, name, memory_bytes)
    }

    /// The same below `root`, for a process whose groups are `own`, as the kernel lists them.
    fn make_in(
        root: &Path,
        own: &str,
        name: &str,
        memory_bytes: u64,
    ) -> io::Result<(Group, Option<io::Error>)> {
        let name = format!("pvc-script-{name}");
        let memory = memory_bytes.to_string();
        if root.join("cgroup.controllers").exists() {
            let group = delegated(&below(root, path_of(own, "")?))?.join(name);
            make_with(&group, "memory.max", &memory)?;
            let unlimited = fs::write(group.join(PROCESSES), MOST_PROCESSES).err();
            return Ok((Group { paths: vec![group] }, unlimited));
        }
        let of = |controller| {
            let parent = below(&root.join(controller), path_of(own, controller)?);
            Ok::<_, io::Error>(parent.join(&name))
        };
        let first = of("memory")?;
        make_with(&first, "memory.limit_in_bytes", &memory)?;
        let second = of("pids").and_then(|group| {
            make_with(&group, PROCESSES, MOST_PROCESSES)?;
            Ok(group)
        });
        let (second, unlimited) = match second {
            Ok(second) => (Some(second), None),
            Err(error) => (None, Some(error)),
        };
        Ok((Group { paths: [first].into_iter().chain(second).collect() }, unlimited))
    }

    pub fn at(paths: Vec<PathBuf>) -> Group {
        Group { paths }
    }

    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Whether the kernel has killed something in the group at `path` for want of memory. Not if
    /// the group is gone, or the kernel does not say.
    pub fn ran_out(path: &Path) -> bool {
        // Of version 2, and of version 1.
        ["memory.events", "memory.oom_control"].iter().any(|file| {
            let events = fs::read_to_string(path.join(file)).unwrap_or_default();
            let killed = events.lines().find_map(|line| line.strip_prefix("oom_kill "));
            killed.is_some_and(|number| number.trim() != "0")
        })
    }

    /// Kills all that is in it and in groups below it, and removes them; `false` if something does
    /// not die.
    pub async fn end(self) -> io::Result<bool> {
        let until = tokio::time::Instant::now() + DEATH;
        loop {
            // Version 2 kills them all at once, also those that are forked meanwhile.
            let mut is_ended = true;
            for path in &self.paths {
                let _ = fs::write(path.join("cgroup.kill"), "1");
                is_ended &= ended(path)?;
            }
            if is_ended {
                return Ok(true);
            }
            if tokio::time::Instant::now() >= until {
                return Ok(false);
            }
            sleep(POLL).await;
        }
    }
}

/// Makes a group with one limit. One that is there already gets it as well.
fn make_with(group: &Path, file: &str, limit: &str) -> io::Result<()> {
    match fs::create_dir(group) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    fs::write(group.join(file), limit).inspect_err(|_| {
        // It is empty.
        let _ = fs::remove_dir(group);
    })
}

/// Kills all that is in a group, those below it first, and removes it if it is empty; whether it is
/// gone.
fn ended(group: &Path) -> io::Result<bool> {
    let below = match fs::read_dir(group) {
        Ok(entries) => entries.filter_map(io::Result::ok),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error),
    };
    let is_group = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    let below: Vec<PathBuf> = below.filter(is_group).map(|entry| entry.path()).collect();
    for group in below {
        // The directory stays while one of them does, and is looked at again.
        let _ = ended(&group);
    }
    // A group of threads does not say.
    let processes = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    for process in processes.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0) {
        // It may have ended by itself, which is all we want.
        let _ = kill(Pid::from_raw(process), Signal::SIGKILL);
    }
    Ok(fs::remove_dir(group).is_ok())
}

/// The group of this process in the hierarchy of a controller, without a name that of version 2.
fn path_of<'a>(own: &'a str, controller: &str) -> io::Result<&'a str> {
    let found = own.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers.split(',').any(|name| name == controller).then_some(path)
    });
    let none = || match controller {
        "" => io::Error::other("this process is in no control group"),
        _ => io::Error::other(format!("this process is in no control group for {controller}")),
    };
    found.ok_or_else(none)
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

    #[tokio::test]
    async fn a_group_ends_with_those_below_it() {
        let name = format!("test-{}", std::process::id());
        let (group, _) = Group::make(&name, 64 << 20).expect("this machine has groups");
        let paths = group.paths().to_owned();
        let below = paths[0].join("a/b");
        fs::create_dir_all(&below).expect("groups can be made in it");
        let mut sleeper = std::process::Command::new("sleep").arg("3600").spawn().expect("there");
        fs::write(below.join("cgroup.procs"), sleeper.id().to_string()).expect("it can move");
        assert!(group.end().await.expect("it can be looked at"), "it dies");
        assert!(paths.iter().all(|path| !path.exists()), "{paths:?}");
        let status = sleeper.wait().expect("it was started here");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    }

    /// A group of version 2 as a directory of files, in which a process may be and keep others from
    /// being limited: the kernel refuses the switch while one is in it.
    fn group_of_files(root: &Path, holds_a_process: bool) -> PathBuf {
        let own = root.join("system.slice/pvcworkerd.service");
        fs::create_dir_all(&own).expect("a temporary directory");
        fs::write(root.join("cgroup.controllers"), "cpu memory pids\n").expect("it is empty");
        if holds_a_process {
            // It cannot be written before the group for the process is there.
            let switch = own.join(OWN).join("switch");
            let link = own.join("cgroup.subtree_control");
            std::os::unix::fs::symlink(switch, link).expect("it is empty");
        }
        own
    }

    fn content(path: &Path) -> String {
        fs::read_to_string(path).expect("it was written")
    }

    #[test]
    fn in_version_2_this_process_moves_aside_only_where_it_is_in_the_way() {
        for is_in_the_way in [false, true] {
            let root = tempfile::tempdir().expect("there is room");
            let own = group_of_files(root.path(), is_in_the_way);
            // It has moved by the second time, and stays where it is.
            let moved = own.join(OWN);
            for place in [&own, if is_in_the_way { &moved } else { &own }] {
                assert_eq!(delegated(place).expect("it is delegated"), own);
                assert_eq!(content(&own.join("cgroup.subtree_control")), "+memory +pids");
                assert_eq!(moved.exists(), is_in_the_way);
            }
            if is_in_the_way {
                let process = std::process::id().to_string();
                assert_eq!(content(&moved.join("cgroup.procs")), process);
                assert!(!moved.join(OWN).exists());
            }
        }
    }

    #[test]
    fn in_version_2_a_script_has_a_group_with_both_limits_beside_its_daemon() {
        let root = tempfile::tempdir().expect("there is room");
        let own = group_of_files(root.path(), true);
        let line = "0::/system.slice/pvcworkerd.service\n";
        let made = Group::make_in(root.path(), line, "7", 64 << 20);
        let (group, unlimited) = made.expect("it is delegated");
        assert!(unlimited.is_none());
        assert_eq!(group.paths(), [own.join("pvc-script-7")]);
        assert_eq!(content(&group.paths()[0].join("memory.max")), (64 << 20).to_string());
        assert_eq!(content(&group.paths()[0].join("pids.max")), MOST_PROCESSES);
    }

    #[test]
    fn a_group_that_is_not_delegated_is_an_error_and_nothing_is_made() {
        let root = tempfile::tempdir().expect("there is room");
        let own = group_of_files(root.path(), false);
        fs::create_dir(own.join("cgroup.subtree_control")).expect("it cannot be written to");
        let line = "0::/system.slice/pvcworkerd.service\n";
        assert!(Group::make_in(root.path(), line, "7", 64 << 20).is_err());
        assert!(!own.join("pvc-script-7").exists());
        assert!(Group::make_in(root.path(), "", "7", 64 << 20).is_err());
    }

    #[test]
    fn the_group_of_a_controller_is_found_in_both_versions() {
        let hybrid = "9:name=systemd:/\n4:cpu,memory:/a/b\n0::/c\n";
        assert_eq!(path_of(hybrid, "memory").expect("it is there"), "/a/b");
        assert_eq!(path_of(hybrid, "").expect("it is there"), "/c");
        assert!(path_of("0::/c\n", "memory").is_err());
        assert_eq!(below(Path::new("/x"), "/a/b"), Path::new("/x/a/b"));
    }
}
