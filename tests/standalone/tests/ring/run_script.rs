//! `./run`, as a newcomer types it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use pvc_contracts::tcp_port::free_port;
use pvc_standalone_tests::{Keeper, Output, eventually, host_name, program, repository, run};

/// Paths that `./run --help` says that `--purge` removes, but for the state directory.
const MADE: [&str; 5] = [
    "/etc/pvc",
    "/var/log/pvc",
    "/usr/local/bin/pvc",
    "/usr/local/bin/pvcd",
    "/usr/local/bin/pvc-sim",
];

/// Directories to which `./run` writes outside its state directory, or would by mistake.
const WRITTEN_TO: [&str; 4] = ["/etc", "/usr/local/bin", "/var/lib", "/var/log"];

/// Puts a layer over each of the directories and takes away what a PVC of this machine has there,
/// so that to whoever enters there is none. Lives, and with it the view, until its input ends.
const FRESH_MACHINE: &str = r#"
mkdir -p "$0/over"
mount -t tmpfs pvc-test "$0/over"
for dir in "$@"; do
    mkdir -p "$0/over$dir".{upper,work}
    mount -t overlay overlay "$dir" \
        -o "lowerdir=$dir,upperdir=$0/over$dir.upper,workdir=$0/over$dir.work"
done
rm -rf /etc/pvc /var/lib/pvc /var/lib/pvc-install /var/log/pvc /usr/local/bin/pvc{,d,-sim}
echo ready
read -r _
"#;

/// A machine as this one would be without a PVC, for those only who enter. What they write to the
/// directories of [`WRITTEN_TO`] does not reach the machine.
struct FreshMachine {
    holder: Child,
    layers: PathBuf,
}

impl FreshMachine {
    fn new(keeper: &Keeper) -> FreshMachine {
        let mut holder = Command::new("unshare")
            .args(["--mount", "--propagation", "slave", "bash", "-euc", FRESH_MACHINE])
            .arg(keeper.dir())
            .args(WRITTEN_TO)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("util-linux is installed");
        let mut said = String::new();
        let stdout = holder.stdout.take().expect("it was asked for");
        BufReader::new(stdout).read_line(&mut said).expect("a pipe can be read");
        assert_eq!(
            said.trim(),
            "ready",
            "no layer could be mounted over {WRITTEN_TO:?}; see above"
        );
        FreshMachine { holder, layers: keeper.dir().join("over") }
    }

    /// A command in there, in the checkout.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id()))
            .args(["--", "env", "--chdir"])
            .arg(repository())
            .arg(program);
        command
    }

    /// Path of a file of theirs for us.
    fn outside(&self, path: &Path) -> PathBuf {
        let inner = path.strip_prefix("/").expect("the path is absolute");
        Path::new(&format!("/proc/{}/root", self.holder.id())).join(inner)
    }

    /// Every file and directory that is there otherwise than on this machine.
    fn written(&self) -> BTreeSet<PathBuf> {
        let mut found = BTreeSet::new();
        for dir in WRITTEN_TO {
            let layer = self.outside(&self.layers).join(format!("{}.upper", &dir[1..]));
            collect(&layer, &layer, Path::new(dir), &mut found);
        }
        found
    }
}

impl Drop for FreshMachine {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

/// Adds what is below `at`, named as if `layer` were `dir`. A file that covers a missing one is
/// nothing.
fn collect(at: &Path, layer: &Path, dir: &Path, found: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(at).unwrap_or_else(|error| panic!("{}: {error}", at.display())) {
        let entry = entry.expect("the directory can be read");
        let kind = entry.file_type().expect("the file is there");
        if kind.is_char_device() {
            continue;
        }
        let path = entry.path();
        found.insert(dir.join(path.strip_prefix(layer).expect("it is below")));
        if kind.is_dir() {
            collect(&path, layer, dir, found);
        }
    }
}

/// A newcomer's shell. Whatever was begun is purged at the end.
struct Newcomer {
    machine: FreshMachine,
    keeper: Keeper,
    port: u16,
}

impl Newcomer {
    fn arrive() -> Newcomer {
        let keeper = Keeper::start();
        Newcomer { machine: FreshMachine::new(&keeper), keeper, port: free_port() }
    }

    fn state(&self) -> PathBuf {
        self.keeper.dir().join("s")
    }

    /// File in which `packages.sh` writes down what it changed.
    fn install_state(&self) -> PathBuf {
        self.keeper.dir().join("i")
    }

    fn cache(&self) -> PathBuf {
        self.keeper.dir().join("x")
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> Command {
        let mut command = self.machine.command(program);
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
            .env("PVC_INSTALL_STATE", self.install_state())
            .env("PVC_CLIENT_DIR", self.keeper.dir().join("c"))
            .env("XDG_CACHE_HOME", self.cache())
            .env("NO_COLOR", "1");
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        run(&mut self.command("./run", args), "")
    }

    /// Runs `pvc` by the link that `./run` made, as the newcomer finds it on the path.
    fn pvc(&self, args: &[&str]) -> Output {
        run(&mut self.command("/usr/local/bin/pvc", args), "")
    }

    fn qemu(&self) -> Option<u32> {
        let file = self.state().join("libvirt/run/qemu/hello.pid");
        let pid: u32 = fs::read_to_string(file).ok()?.trim().parse().ok()?;
        let exe = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        exe.to_string_lossy().contains("qemu").then_some(pid)
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        let _ = self.command("./run", &["--purge", "--yes"]).output();
    }
}

/// An installation of before, as `packages.sh` writes it down: a source of packages that it added,
/// and packages that stay. Returns the source.
fn packages_were_installed(newcomer: &Newcomer) -> PathBuf {
    let source = newcomer.keeper.dir().join("pvc-backports.sources");
    fs::create_dir_all(newcomer.install_state()).expect("the test's directory can be written");
    fs::write(&source, "# Added by PVC\n").expect("the test's directory can be written");
    let changes = format!("file {}\nasked qemu-utils\npackage qemu-utils\n", source.display());
    fs::write(newcomer.install_state().join("changes"), changes)
        .expect("the test's directory can be written");
    source
}

#[test]
fn a_newcomer_runs_stops_and_purges_pvc_and_nothing_stays() {
    program("pvcd");
    // Nothing is installed below: dpkg's files would end up in the layers, its lists on the
    // machine.
    let mut missing = Command::new(repository().join("packaging/install/packages.sh"));
    assert_eq!(
        run(missing.args(["missing", "build", "run"]), "").ok(),
        "",
        "`./test` installs these packages"
    );
    let newcomer = Newcomer::arrive();
    let before = newcomer.machine.written();
    let source = packages_were_installed(&newcomer);

    newcomer.run(&["--help"]).says(&["--status", "--stop", "--purge"]);
    assert_eq!(newcomer.run(&["--nonsense"]).code, 1);
    assert_ne!(newcomer.run(&["--status"]).code, 0);
    newcomer.run(&[]).says(&[
        "[1/4] packages",
        "[2/4] building PVC (dev)",
        "[4/4] PVC",
        "PVC runs",
        &newcomer.port.to_string(),
        "pvc vm define examples/hello/hello.xml",
    ]);
    newcomer.run(&["--status"]).says(&["PVC runs, pid", "answers"]);
    newcomer.pvc(&["status"]).says(&["Primary node"]);
    let own = host_name();
    newcomer.pvc(&["cluster", "what-if", "node", &own]).says(&[&own]);
    // Once more changes nothing.
    newcomer.run(&[]).says(&["runs already"]);
    // Nor does a second one beside it, which would find the store taken; the first is still known.
    let mut beside = newcomer.command("./run", &[]);
    let refused = run(beside.env("PVC_PORT", "9"), "");
    assert_ne!(refused.code, 0);
    assert!(refused.stderr.contains("runs already"), "{refused}");
    newcomer.run(&["--status"]).says(&["PVC runs, pid", "answers"]);

    let mut build = newcomer.command("examples/hello/build", &[]);
    run(&mut build, "").says(&["vms/hello_sda is ready"]);
    assert!(newcomer.cache().join("pvc-hello").exists());
    newcomer.pvc(&["vm", "define", "examples/hello/hello.xml"]).ok();
    newcomer.pvc(&["vm", "start", "hello", "--wait"]).ok();
    let qemu = newcomer.qemu().expect("QEMU runs");
    let status = fs::read_to_string(format!("/proc/{qemu}/status")).expect("it runs still");
    let users = status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))
        .expect("every process has a user");
    assert!(
        users.split_whitespace().all(|user| user != "0"),
        "whoever breaks out of a guest is root: {users}"
    );

    newcomer.run(&["--stop"]).says(&["stopping PVC", "guests keep running"]);
    newcomer.run(&["--stop"]).says(&["PVC does not run"]);
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
    for path in MADE.map(Path::new) {
        assert!(
            fs::symlink_metadata(newcomer.machine.outside(path)).is_ok(),
            "`{}`",
            path.display()
        );
    }
    newcomer.run(&["--purge", "--yes"]).says(&[
        "Removed",
        "1 installed packages stay",
        "qemu-utils",
    ]);
    it_left_nothing(&newcomer, &source);
    let written = newcomer.machine.written();
    let stayed: Vec<_> = written.difference(&before).collect();
    assert!(stayed.is_empty(), "{stayed:?}");
    eventually("gone is the guest", 10, || {
        if Path::new(&format!("/proc/{qemu}/exe")).exists() {
            Err(format!("QEMU {qemu}"))
        } else {
            Ok(())
        }
    });
    let own = newcomer.state().display().to_string();
    let stayed: Vec<_> = processes().into_iter().filter(|line| line.contains(&own)).collect();
    assert!(stayed.is_empty(), "{stayed:?}");
    newcomer.run(&["--purge", "--yes"]).ok();
}

#[test]
fn a_purge_leaves_what_is_not_its_own() {
    let newcomer = Newcomer::arrive();
    let (state, conf) = (newcomer.state(), Path::new("/etc/pvc/pvc.conf"));
    let write = |path: &Path, text: &str| {
        fs::create_dir_all(path.parent().expect("it is in a directory")).expect("it can be made");
        fs::write(path, text).expect("the test's directories can be written");
    };
    for file in ["made-by-run", "tree/tree.redb", "volumes/vms/a.raw", "www/index.html"] {
        write(&state.join(file), "");
    }
    let of_another =
        "# Written by ./run of the PVC repository.\n  state_directory: \"/srv/other\"\n";
    let conf = newcomer.machine.outside(conf);
    write(&conf, of_another);
    let purge = || {
        let mut purge = newcomer.command("./run", &["--purge", "--yes"]);
        run(purge.env("PVC_STATE", format!("{}//", state.display())), "")
    };
    purge().says(&["stays in", "  www", "PVC in /srv/other stay"]);
    let left = fs::read_dir(&state).expect("it stays").flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    assert_eq!(left, ["www"]);
    assert_eq!(fs::read_to_string(&conf).expect("it stays"), of_another);
    assert_ne!(purge().code, 0, "nothing of ours is there any more");
    // A directory that was there before stays, and goes with what was in it otherwise.
    fs::remove_dir_all(&state).expect("it is the test's");
    for (mark, is_left) in [("found", true), ("", false)] {
        write(&state.join("made-by-run"), mark);
        purge().says(&["Removed"]);
        assert_eq!(state.exists(), is_left, "{mark}");
    }
}

fn it_left_nothing(newcomer: &Newcomer, source: &Path) {
    let ours = [
        newcomer.state(),
        newcomer.install_state(),
        newcomer.cache().join("pvc-hello"),
        source.into(),
    ];
    let theirs = MADE.map(|path| newcomer.machine.outside(Path::new(path)));
    for path in ours.iter().chain(&theirs) {
        assert!(fs::symlink_metadata(path).is_err(), "`{}` stayed", path.display());
    }
}

/// The command lines of all processes but this one's children that only look.
fn processes() -> Vec<String> {
    let all = fs::read_dir("/proc").expect("/proc is there").flatten();
    let lines = all.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).collect()
}
