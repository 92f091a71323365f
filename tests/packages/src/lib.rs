//! A machine to install packages on: this one's root below an overlay, so that nothing of it
//! changes, with a `systemctl` that only writes down what it is told. A PVC that runs on this
//! machine is not on it.
//!
//! The packages are those that `./test packages` made: the same twice, with two revisions.

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "nothing is simulated here")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// `/run/units-that-run` holds the names of the units that run, as far as anybody can tell. Links
/// below /etc are made and read by the real program.
const SYSTEMCTL: &str = r#"#!/bin/sh
echo "$*" >>/run/systemctl.log
for unit; do :; done
case " $* " in
    *" --root=/ "*) exec systemctl.real "$@" ;;
    *" is-active "*) [ -e "/run/units-that-run/$unit" ] ;;
    *" is-enabled "*) exec systemctl.real --root=/ is-enabled "$unit" ;;
    *" enable "* | *" disable "*) exec systemctl.real --root=/ --quiet "$@" ;;
esac
"#;

/// Paths that a PVC of this machine has outside of packages: all that `./run` makes, and what its
/// daemons make.
const OF_THIS_MACHINES_PVC: [&str; 8] = [
    "/etc/pvc",
    "/run/pvc",
    "/var/lib/pvc",
    "/var/lib/pvc-install",
    "/var/log/pvc",
    "/usr/local/bin/pvc",
    "/usr/local/bin/pvcd",
    "/usr/local/bin/pvc-sim",
];

/// Runs `$2` on the machine below `$1`: mounts of its own, which end with it. The paths `$4` of
/// this machine are covered by whiteouts, devices 0:0, in a layer between it and what the test
/// writes. That layer is a filesystem of its own, because one below `/` cannot lie over `/`.
const INSIDE: &str = r#"
set -e
mount -t tmpfs pvc-test "$1/layers"
cp -a "$1/found" "$1/layers/found"
for path in $4; do
    mkdir -p "$1/layers/hidden${path%/*}"
    mknod "$1/layers/hidden$path" c 0 0
done
lower=$1/layers/hidden:$1/layers/found:/
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount --rbind /dev "$1/root/dev"
mount -t proc proc "$1/root/proc"
mount --bind "$3" "$1/root/mnt"
hostname pvchv1
exec chroot "$1/root" /bin/sh -c "$2"
"#;

/// Units that must be left alone whatever is done with the packages: with any of them go guests.
const OF_GUESTS: [&str; 5] = ["libvirt", "virt", "qemu", "machine", "pvc.target"];

pub struct Machine {
    directory: TempDir,
}

impl Machine {
    /// A machine that systemd runs on, without any package of ours.
    pub fn new() -> Machine {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tmp");
        fs::create_dir_all(&top).expect("the build directory can be written");
        let directory = TempDir::with_prefix_in("packages.", top).expect("a directory can be made");
        for name in ["upper", "work", "root", "found", "layers"] {
            fs::create_dir(directory.path().join(name)).expect("a directory can be made");
        }
        let machine = Machine { directory };
        machine.write("/usr/bin/systemctl", SYSTEMCTL, 0o755);
        fs::copy("/usr/bin/systemctl", machine.upper("/usr/bin/systemctl.real"))
            .expect("systemd is installed");
        machine.policy(0);
        fs::create_dir_all(machine.upper("/run/systemd/system")).expect("a directory can be made");
        machine
    }

    /// Makes a machine as [`Machine::new`] does, if this machine had a file at each of the paths.
    pub fn copy_of_one_with(paths: &[&str]) -> Machine {
        let machine = Machine::new();
        for path in paths {
            let file = machine.directory.path().join("found").join(path.trim_start_matches('/'));
            let directory = file.parent().expect("a file lies in a directory");
            fs::create_dir_all(directory).expect("a directory can be made");
            fs::write(&file, "this machine's\n").expect("a file can be written");
        }
        machine
    }

    /// Runs a shell's commands on the machine, whatever becomes of them.
    pub fn try_run(&self, script: &str) -> Output {
        let packages = packages();
        Command::new("unshare")
            .args([
                "--mount",
                "--uts",
                "--propagation",
                "private",
                "/bin/sh",
                "-c",
                INSIDE,
                "inside",
            ])
            .arg(self.directory.path())
            .arg(script)
            .arg(&packages)
            .arg(OF_THIS_MACHINES_PVC.join(" "))
            .env_clear()
            .envs([("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"), ("LC_ALL", "C"), ("HOME", "/root")])
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .output()
            .expect("`unshare` is part of every Debian")
    }

    /// Runs a shell's commands, which must succeed; returns all that they printed.
    #[track_caller]
    pub fn run(&self, script: &str) -> String {
        let output = self.try_run(script);
        let said = said(&output);
        assert!(output.status.success(), "`{script}`: {}\n{said}", output.status);
        said
    }

    /// Installs every package of a revision. That this machine lacks packages they depend on does
    /// not matter here; in which order they are set up does, and dpkg sees to it.
    #[track_caller]
    pub fn install(&self, revision: u32) -> String {
        self.dpkg(&format!("--force-depends --auto-deconfigure --install /mnt/{revision}/*.deb"))
    }

    #[track_caller]
    pub fn dpkg(&self, arguments: &str) -> String {
        self.run(&format!("dpkg --no-triggers --force-unsafe-io --force-confold {arguments}"))
    }

    /// Has units run, or rather: has systemctl say so.
    pub fn running(&self, units: &[&str]) {
        for unit in units {
            self.write(&format!("/run/units-that-run/{unit}"), "", 0o644);
        }
    }

    /// Sets what Debian's `policy-rc.d` answers: 0, or 101 for an administrator who wants nothing
    /// started.
    pub fn policy(&self, answer: u8) {
        self.write("/usr/sbin/policy-rc.d", &format!("#!/bin/sh\nexit {answer}\n"), 0o755);
    }

    /// Returns what systemctl was told to do since the last question, one call a line. Never, in no
    /// test: anything with units that guests live in.
    #[track_caller]
    pub fn systemctl_calls(&self) -> Vec<String> {
        let log = self.upper("/run/systemctl.log");
        let text = fs::read_to_string(&log).unwrap_or_default();
        let _ = fs::remove_file(&log);
        // Questions, links, and reading units anew change nothing of what runs.
        let harmless = |line: &&str| {
            let words =
                ["is-active", "is-enabled", "enable", "disable", "--root=/", "daemon-reload"];
            words.iter().any(|word| line.contains(word)) && !line.contains("--now")
        };
        let calls: Vec<String> =
            text.lines().filter(|line| !harmless(line)).map(str::to_owned).collect();
        for line in &calls {
            assert!(
                !OF_GUESTS.iter().any(|word| line.contains(word)),
                "guests are in danger: {calls:#?}"
            );
        }
        calls
    }

    pub fn write(&self, path: &str, content: &str, mode: u32) {
        let path = self.upper(path);
        let directory = path.parent().expect("a file lies in a directory");
        fs::create_dir_all(directory).expect("a directory can be made");
        fs::write(&path, content).expect("a file can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its mode can be set");
    }

    /// Writes a configuration that the daemons can use.
    pub fn configure(&self) {
        let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/config/pvc.conf");
        let sample = fs::read_to_string(sample).expect("the sample is part of the checkout");
        self.write("/etc/pvc/pvc.conf", &sample, 0o640);
    }

    /// Whether a path exists on the machine; a link does, wherever it points to.
    pub fn has(&self, path: &str) -> bool {
        self.try_run(&format!("[ -e '{path}' ] || [ -L '{path}' ]")).status.success()
    }

    fn upper(&self, path: &str) -> PathBuf {
        self.directory.path().join("upper").join(path.trim_start_matches('/'))
    }
}

impl Default for Machine {
    fn default() -> Self {
        Machine::new()
    }
}

/// Both outputs of a program.
fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Directory in which `./test packages` puts what it makes: a directory for each revision.
fn packages() -> PathBuf {
    let packages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/test-packages");
    for revision in ["1", "2"] {
        let made =
            fs::read_dir(packages.join(revision)).is_ok_and(|mut files| files.next().is_some());
        assert!(made, "there are no packages to test: `./test packages` makes them and runs this");
    }
    packages
}
