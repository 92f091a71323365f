//! A directory for one test, and the promise that nothing of it stays.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::program::repository;

/// Waits until the test lets go of the pipe, by its end or by its death, then ends what it started.
const SCRIPT: &str = r#"
dir=$1 libvirt=$2
read -r _
for file in "$dir"/pids/*; do
    pid=${file##*/}
    [[ $(readlink "/proc/$pid/exe" 2>/dev/null) == */pvc* ]] && kill -KILL "$pid" 2>/dev/null
done
# A daemon that is killed leaves what it supervised to the next one: here there is none.
for process in /proc/[0-9]*; do
    [[ $(readlink "$process/exe" 2>/dev/null) == */dnsmasq ]] || continue
    tr '\0' '\n' <"$process/cmdline" 2>/dev/null | grep -qF -- "$dir/" && kill -KILL "${process##*/}"
done
[[ -d $dir/lv ]] && "$libvirt" purge "$dir/lv" >/dev/null 2>&1
while read -r _ place _; do
    [[ $place == "$dir"/* ]] && umount -l "$place"
done </proc/self/mounts
rm -rf "$dir"
"#;

/// A directory below `/tmp` with a short name (sockets live in it), a keeper process that outlives
/// the test, and the processes it is to end.
#[derive(Debug)]
pub struct Keeper {
    dir: PathBuf,
    process: Child,
}

impl Keeper {
    pub fn start() -> Keeper {
        let dir = PathBuf::from(format!("/tmp/pvc-t.{}.{}", std::process::id(), number()));
        fs::create_dir_all(dir.join("pids")).expect("/tmp can be written");
        let process = Command::new("bash")
            .args(["-c", SCRIPT, "keeper"])
            .arg(&dir)
            .arg(repository().join("packaging/install/libvirt.sh"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Whoever ends the test with its process group does not end its keeper.
            .process_group(0)
            .spawn()
            .expect("bash is there");
        Keeper { dir, process }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Has a process of ours ended with the test. Programs whose name begins with `pvc` only:
    /// numbers are used again.
    pub fn keep(&self, pid: u32) {
        let _ = fs::write(self.dir.join("pids").join(pid.to_string()), "");
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

fn number() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn what_a_killed_daemon_supervised_ends_with_the_test_and_nothing_of_others_does() {
        let dnsmasq = |dir: &Path| {
            Command::new("dnsmasq")
                .args(["--keep-in-foreground", "--port=0", "--conf-file=/dev/null"])
                .arg(format!("--pid-file={}", dir.join("dnsmasq.pid").display()))
                .stderr(Stdio::null())
                .spawn()
                .expect("dnsmasq is installed")
        };
        let (keeper, other) = (Keeper::start(), Keeper::start());
        let mut ended = dnsmasq(keeper.dir());
        let mut of_others = dnsmasq(other.dir());
        crate::eventually("both run", 10, || {
            let run = [&keeper, &other].map(|keeper| keeper.dir().join("dnsmasq.pid").exists());
            if run == [true, true] { Ok(()) } else { Err(format!("{run:?}")) }
        });
        drop(keeper);
        assert_eq!(ended.wait().expect("it is our child").signal(), Some(9));
        assert_eq!(of_others.try_wait().expect("it is our child"), None);
        drop(other);
        assert_eq!(of_others.wait().expect("it is our child").signal(), Some(9));
    }
}
