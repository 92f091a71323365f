//! A libvirtd of the test's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::program::{Output, built, repository, run};
use crate::wait::eventually;

/// libvirtd and virtlogd with all their state below one directory.
#[derive(Debug)]
pub struct Libvirt {
    dir: PathBuf,
}

impl Libvirt {
    pub fn new(dir: PathBuf) -> Libvirt {
        Libvirt { dir }
    }

    fn script(&self, what: &str) -> Output {
        let script = repository().join("packaging/install/libvirt.sh");
        // Away from the ports of other libvirtds, those of tests that run beside these for example.
        let port = 6000 + 50 * (std::process::id() % 1000);
        run(Command::new(script).env("PVC_VNC_PORT", port.to_string()).arg(what).arg(&self.dir), "")
    }

    /// Starts whatever of it does not run.
    pub fn start(&self) {
        let (kept, own) = (built().join("libvirt-cache"), self.dir.join("cache"));
        // libvirtd asks QEMU what it can, which takes seconds, and checks itself whether what it
        // has kept of that is still true.
        if kept.exists() && !own.exists() {
            copy(&kept, &own);
        }
        self.script("start").ok();
        if !kept.exists() {
            // Another story may do the same: the first one is kept.
            let copied = kept.with_extension(std::process::id().to_string());
            copy(&own, &copied);
            let _ = fs::rename(&copied, &kept);
            let _ = fs::remove_dir_all(&copied);
        }
    }

    pub fn uri(&self) -> String {
        self.script("uri").ok().trim().to_owned()
    }

    /// Directory that stands at `/run/libvirt` for this libvirtd.
    pub fn run_directory(&self) -> PathBuf {
        self.dir.join("run")
    }

    /// Directory in which this libvirtd keeps the state of a guest's emulated TPM.
    pub fn tpm_directory(&self, uuid: &str) -> PathBuf {
        self.dir.join("lib/swtpm").join(uuid)
    }

    /// Kills libvirtd alone, as the kernel does when memory runs out. Guests keep running.
    pub fn kill(&self) {
        let pid = pid_in(&self.dir.join("libvirtd.pid")).expect("libvirtd has a pid file");
        kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).expect("libvirtd runs");
        eventually("gone is libvirtd", 10, || if exe(pid).is_none() { Ok(()) } else { Err(pid) });
    }

    pub fn virsh(&self, args: &[&str]) -> Output {
        run(Command::new("virsh").arg("--connect").arg(self.uri()).arg("--quiet").args(args), "")
    }

    /// The process number of a guest's QEMU, if it is alive. Asks no daemon.
    pub fn qemu_pid(&self, name: &str) -> Option<u32> {
        let pid = pid_in(&self.dir.join("run/qemu").join(format!("{name}.pid")))?;
        exe(pid)?.to_string_lossy().contains("qemu").then_some(pid)
    }

    /// The guest's serial line, as a terminal's path.
    pub fn console(&self, name: &str) -> PathBuf {
        let output = self.virsh(&["ttyconsole", name]);
        PathBuf::from(output.ok().trim())
    }
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::create_dir_all(to.parent().expect("it is below something"));
    run(Command::new("cp").arg("-a").arg(from).arg(to), "").ok();
}

fn pid_in(file: &Path) -> Option<u32> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Program that a living process runs; `None` also for a dead one that nobody has asked about yet.
fn exe(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}
