//! `./run`, as a newcomer types it.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use pvc_standalone_tests::{Keeper, Output, eventually, program, repository, run};

/// What `./run --help` says that `--purge` removes, but for the state directory.
const MADE: [&str; 4] = ["/etc/pvc", "/var/log/pvc", "/usr/local/bin/pvc", "/usr/local/bin/pvcd"];

/// A newcomer's shell. Whatever was begun is purged at the end.
struct Newcomer {
    keeper: Keeper,
    port: u16,
}

impl Newcomer {
    fn state(&self) -> PathBuf {
        self.keeper.dir().join("s")
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("PVC") {
                command.env_remove(name);
            }
        }
        command
            .args(args)
            .env("PVC_PROFILE", "dev")
            .env("PVC_STATE", self.state())
            .env("PVC_PORT", self.port.to_string())
            .env("PVC_INSTALL_STATE", self.keeper.dir().join("i"))
            .env("PVC_CLIENT_DIR", self.keeper.dir().join("c"))
            .env("XDG_CACHE_HOME", self.keeper.dir().join("x"))
            .env("NO_COLOR", "1")
            .current_dir(repository());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        run(&mut self.command("./run", args), "")
    }

    /// By the link that `./run` made, as the newcomer finds it on the path.
    fn pvc(&self, args: &[&str]) -> Output {
        run(&mut self.command("/usr/local/bin/pvc", args), "")
    }

    fn qemu(&self) -> Option<u32> {
        let file = self.state().join("libvirt/run/qemu/hello.pid");
        let pid: u32 = std::fs::read_to_string(file).ok()?.trim().parse().ok()?;
        let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        exe.to_string_lossy().contains("qemu").then_some(pid)
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        let _ = self.command("./run", &["--purge", "--yes"]).output();
    }
}

fn refuse_a_machine_that_has_a_pvc() {
    for path in MADE {
        assert!(
            std::fs::symlink_metadata(path).is_err(),
            "`{path}` exists: this machine has a PVC already. This test tries `./run` from nothing; \
             remove that PVC (`./run --purge`), or run the ring on a machine without one"
        );
    }
}

#[test]
fn a_newcomer_runs_stops_and_purges_pvc_and_nothing_stays() {
    refuse_a_machine_that_has_a_pvc();
    program("pvcd");
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|l| l.local_addr())
        .expect("there are ports")
        .port();
    let newcomer = Newcomer { keeper: Keeper::start(), port };

    newcomer.run(&["--help"]).says(&["--status", "--stop", "--purge"]);
    assert_eq!(newcomer.run(&["--nonsense"]).code, 1);
    assert_ne!(newcomer.run(&["--status"]).code, 0);
    newcomer.run(&[]).says(&["PVC runs", &port.to_string(), "pvc vm define examples/hello/hello.xml"]);
    newcomer.run(&["--status"]).says(&["PVC runs, pid", "answers"]);
    newcomer.pvc(&["status"]).says(&["Primary node"]);
    // Once more changes nothing.
    newcomer.run(&[]).says(&["runs already"]);

    let mut build = newcomer.command("examples/hello/build", &[]);
    run(&mut build, "").says(&["vms/hello_sda is ready"]);
    newcomer.pvc(&["vm", "define", "examples/hello/hello.xml"]).ok();
    newcomer.pvc(&["vm", "start", "hello", "--wait"]).ok();
    let qemu = newcomer.qemu().expect("QEMU runs");

    newcomer.run(&["--stop"]).says(&["stopping PVC"]);
    assert_ne!(newcomer.run(&["--status"]).code, 0);
    assert_eq!(newcomer.qemu(), Some(qemu), "guests keep running");
    newcomer.run(&[]).ok();
    newcomer.pvc(&["vm", "list"]).says(&["hello", "start"]);
    assert_eq!(newcomer.qemu(), Some(qemu), "the next start adopts them");
    newcomer.run(&["--restart"]).ok();
    assert_eq!(newcomer.qemu(), Some(qemu));

    let unasked = newcomer.run(&["--purge"]);
    assert_ne!(unasked.code, 0, "nobody was there to confirm");
    assert_eq!(newcomer.qemu(), Some(qemu));
    newcomer.run(&["--purge", "--yes"]).says(&["Removed"]);
    let state = newcomer.state();
    for path in MADE.iter().map(Path::new).chain([state.as_path()]) {
        assert!(std::fs::symlink_metadata(path).is_err(), "`{}` stayed", path.display());
    }
    eventually("gone is the guest", 10, || {
        if Path::new(&format!("/proc/{qemu}/exe")).exists() { Err(format!("QEMU {qemu}")) } else { Ok(()) }
    });
    let own = state.display().to_string();
    let stayed: Vec<_> = processes().into_iter().filter(|line| line.contains(&own)).collect();
    assert!(stayed.is_empty(), "{stayed:?}");
    newcomer.run(&["--purge", "--yes"]).ok();
}

/// The command lines of all processes but this one's children that only look.
fn processes() -> Vec<String> {
    let all = std::fs::read_dir("/proc").expect("/proc is there").flatten();
    let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).collect()
}
