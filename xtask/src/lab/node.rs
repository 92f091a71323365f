//! A node: made from the base, powered on and off, frozen, and entered.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::layout::{Lab, NodeName};
use super::process::{Process, wait_until};
use super::{bmc, cgroup, switch};
use crate::run::{self, top};

/// Starter of ZooKeeper, libvirt, Ceph and the others when a node boots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Services {
    /// The lab itself: every service is there, and no PVC.
    Lab,
    /// PVC's node daemon, as on real nodes.
    Pvc,
}

impl Services {
    pub fn name(self) -> &'static str {
        match self {
            Self::Lab => "lab",
            Self::Pvc => "pvc",
        }
    }
}

/// Mounts a node's root where its private view of the file systems alone shows it, moves into the
/// node's cgroups, and runs what is asked for; how that ended stays in the file `ended`, unless
/// somebody pulled the plug. Arguments: base, directory, cgroups, then a program.
const ENTER: &str = r#"
base=$1; node=$2; cgroups=$3; shift 3
for hierarchy in $cgroups; do
    [ -d "${hierarchy%/*}" ] || continue
    mkdir -p "$hierarchy"; echo 0 >"$hierarchy/cgroup.procs"
done
mkdir -p /run/systemd/nspawn; mount -t tmpfs tmpfs /run/systemd/nspawn
mount -t overlay overlay -o "lowerdir=$base,upperdir=$node/upper,workdir=$node/work" "$node/root"
status=0; "$@" || status=$?
echo "$status" >"$node/ended"; exit "$status"
"#;

/// Makes `node` if it is not made yet.
pub fn make(lab: &Lab, node: &NodeName, services: Services) -> Result<()> {
    let home = lab.part(&node.text);
    if home.join("made").exists() {
        return Ok(());
    }
    ensure!(
        !is_on(lab, node),
        "`{node}` is on and was never finished; `cargo xtask lab down` first"
    );
    let _ = fs::remove_file(home.join("installed"));
    for left in ["upper", "work", "osd"] {
        let _ = fs::remove_dir_all(home.join(left));
    }
    let _ = fs::remove_dir_all(lab.logs(&node.text));
    for directory in ["upper", "work", "root", "osd"] {
        fs::create_dir_all(home.join(directory))?;
    }
    fs::create_dir_all(lab.logs(&node.text))?;
    let log = home.join("seed.log");
    let file = fs::File::create(&log)?;
    let mut seed = seed(lab, node, services);
    let status = seed.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).status()?;
    cgroup::remove(lab, node)?;
    ensure!(status.success(), "`{node}` could not be made; `{}` says why", log.display());
    fs::write(home.join("made"), "")?;
    Ok(())
}

fn seed(lab: &Lab, node: &NodeName, services: Services) -> Command {
    let mut seed = command_in_root(lab, node);
    let names: Vec<String> = lab.nodes().iter().map(ToString::to_string).collect();
    let identity = |name: &str| fs::read_to_string(lab.directory.join(name)).unwrap_or_default();
    for (name, value) in [
        ("NODE", node.text.clone()),
        ("ID", node.number.to_string()),
        ("NODES", names.join(" ")),
        ("FSID", identity("fsid").trim().into()),
        ("SECRET", identity("secret").trim().into()),
        ("BMC_PASSWORD", bmc::PASSWORD.into()),
        ("SERVICES", services.name().into()),
    ] {
        seed.arg(format!("--setenv={name}={value}"));
    }
    let logs = lab.logs(&node.text);
    for (from, to) in [
        (top().join("lab/node"), "/lab/node"),
        (lab.directory.join("shared"), "/lab/shared"),
        (logs, "/lab/log"),
    ] {
        seed.arg(format!("--bind={}:{to}", from.display()));
    }
    seed.args(["--private-network", "--quiet", "/lab/node/seed"]);
    seed
}

/// `systemd-nspawn` on `node`'s root, in a pid namespace that dies with the process we start.
fn command_in_root(lab: &Lab, node: &NodeName) -> Command {
    let cgroups = cgroup::directories(lab, node).map(|directory| directory.display().to_string());
    let home = lab.part(&node.text);
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "--pid",
        "--fork",
        "--kill-child=KILL",
        "--mount-proc",
        "sh",
        "-euc",
        ENTER,
        "node",
    ]);
    command.arg(lab.home.join("base/root")).arg(&home).arg(cgroups.join(" ")).arg("systemd-nspawn");
    command.arg("--directory").arg(home.join("root"));
    command.args([
        "--register=no",
        "--keep-unit",
        "--resolv-conf=off",
        "--timezone=off",
        "--link-journal=no",
    ]);
    command.arg(format!("--machine={}", lab.named(&node.text))).arg(format!("--hostname={node}"));
    command.arg(format!(
        "--bind={}:/var/lib/ceph/osd/ceph-{}",
        home.join("osd").display(),
        node.number - 1
    ));
    command.env("SYSTEMD_NSPAWN_UNIFIED_HIERARCHY", "0");
    command.env("SYSTEMD_NSPAWN_API_VFS_WRITABLE", "network");
    command.env("SYSTEMD_NSPAWN_LOCK", "0");
    command
}

/// Presses the power button of a node that is off. Returns when the node runs its first process.
pub fn power_on(lab: &Lab, node: &NodeName) -> Result<()> {
    let home = lab.part(&node.text);
    let _lock = lab.lock(&home)?;
    ensure!(lab.is_up(), "the lab is down");
    if is_on(lab, node) {
        return Ok(());
    }
    cgroup::remove(lab, node)?;
    switch::connect(lab, node)?;
    let _ = fs::remove_file(home.join("ended"));
    let unshare = Process::spawn(
        &boot(lab, node),
        &lab.logs(&node.text).join("power.log"),
        &home.join("pid"),
    )?;
    wait_until(&format!("`{node}` runs its first process"), Duration::from_secs(30), || {
        ensure!(
            unshare.is_alive(),
            "`{node}` went off at once; see {}/power.log",
            lab.logs(&node.text).display()
        );
        Ok(leader(lab, node).is_some())
    })?;
    watch(lab, node)
}

/// Exit code of nspawn when the node was told to boot again.
const REBOOT: &str = "133";

/// Has a process of its own see to the node when it ends by itself.
fn watch(lab: &Lab, node: &NodeName) -> Result<()> {
    let mut watcher = Command::new(lab.directory.join("xtask"));
    watcher.args(["lab", "watch", &node.text]);
    watcher.env("PVC_LAB", &lab.name).env("PVC_LAB_DIR", &lab.home);
    let log = lab.logs("switch").join(format!("power-{node}.log"));
    Process::spawn(&watcher, &log, &lab.part(&node.text).join("watcher")).map(drop)
}

/// Waits until the node that is on now ends. One that was told to reboot is powered on again, with
/// new cables; one that was told to power off loses them, as a machine's cards do.
pub fn see_to_its_end(lab: &Lab, node: &NodeName) -> Result<()> {
    let Some(process) = process(lab, node) else { return Ok(()) };
    while process.is_alive() {
        std::thread::sleep(Duration::from_millis(200));
    }
    let home = lab.part(&node.text);
    let ended = {
        let _lock = lab.lock(&home)?;
        // Whoever pulled the plug, or has powered it on again, saw to the rest.
        let Ok(ended) = fs::read_to_string(home.join("ended")) else { return Ok(()) };
        if is_on(lab, node) || !lab.is_up() {
            return Ok(());
        }
        unplug(lab, node)?;
        ended
    };
    if ended.trim() == REBOOT { power_on(lab, node) } else { Ok(()) }
}

/// Takes away what a node without processes leaves behind.
fn unplug(lab: &Lab, node: &NodeName) -> Result<()> {
    for left in ["pid", "ended"] {
        let _ = fs::remove_file(lab.part(&node.text).join(left));
    }
    switch::disconnect(lab, node)?;
    cgroup::remove(lab, node)
}

fn boot(lab: &Lab, node: &NodeName) -> Command {
    let mut boot = command_in_root(lab, node);
    boot.args(["--boot", "--console=pipe", "--capability=all", "--kill-signal=SIGRTMIN+3"]);
    // The clock is everybody's, the machine's too; `lab clock` sets one that only a node believes
    // in.
    boot.args(["--drop-capability=CAP_SYS_TIME", "--drop-capability=CAP_SYS_MODULE"]);
    boot.arg(format!("--network-namespace-path=/run/netns/{}", lab.named(&node.text)));
    boot.arg(format!("--bind={}:/var/log", lab.logs(&node.text).display()));
    boot.arg(format!("--bind-ro={}:/var/lib/pvc-lab", lab.directory.join("shared").display()));
    boot.args(["--bind=/dev/net/tun", "--bind=/dev/fuse", "--bind=/dev/loop-control"]);
    let loops = (0..64)
        .map(|number| format!("/dev/loop{number}"))
        .filter(|device| PathBuf::from(device).exists());
    boot.args(loops.map(|device| format!("--bind={device}")));
    boot.arg("systemd.unit=multi-user.target");
    boot
}

/// Pulls the plug: everything that runs on the node is gone when this returns.
pub fn power_off(lab: &Lab, node: &NodeName) -> Result<()> {
    let home = lab.part(&node.text);
    let _lock = lab.lock(&home)?;
    if let Some(process) = process(lab, node) {
        process.signal("KILL")?;
        if cgroup::is_frozen(lab, node) {
            // All of them at once: those that wake up only to see the first one die write to the
            // store meanwhile.
            cgroup::doom(lab, node)?;
        }
        cgroup::thaw(lab, node)?;
        process.kill()?;
    }
    unplug(lab, node)
}

pub fn is_on(lab: &Lab, node: &NodeName) -> bool {
    process(lab, node).is_some()
}

fn process(lab: &Lab, node: &NodeName) -> Option<Process> {
    Process::read(&lab.part(&node.text).join("pid"))
}

/// The node's own process 1: the child of nspawn, below our `unshare`.
fn leader(lab: &Lab, node: &NodeName) -> Option<Process> {
    let unshare = process(lab, node)?;
    let mut below = (1..=2).filter_map(|depth| unshare.descendant(depth));
    let nspawn = below.find(|process| process.name().is_some_and(|name| name == "systemd-nspawn"));
    nspawn?.descendant(1)
}

/// A command on the node, as root.
///
/// # Errors
/// If the node is off.
pub fn inside(lab: &Lab, node: &NodeName, program: &[String]) -> Result<Command> {
    let leader = leader(lab, node).with_context(|| format!("`{node}` is off"))?;
    let mut command = run::command("nsenter");
    command.arg(format!("--target={}", leader.pid));
    command.args([
        "--mount",
        "--uts",
        "--ipc",
        "--net",
        "--pid",
        "--cgroup",
        "--root",
        "--wdns=/root",
        "env",
        "-i",
    ]);
    command.args(["HOME=/root", "USER=root", "LANG=C.UTF-8"]);
    command.arg("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    command.arg(format!("TERM={}", std::env::var("TERM").unwrap_or_else(|_| "dumb".into())));
    command.args(program);
    Ok(command)
}

/// Runs `script` on the node. Returns what it writes to its standard output, or nothing if the node
/// is off or the script fails or takes more than thirty seconds.
pub fn ask(lab: &Lab, node: &NodeName, script: &str) -> Option<String> {
    let words = ["timeout", "--signal=KILL", "30", "bash", "-c", script].map(String::from);
    let output = inside(lab, node, &words).ok()?.output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().into())
}

/// Whether the node can be asked anything at all.
pub fn answers(lab: &Lab, node: &NodeName) -> bool {
    is_on(lab, node) && !cgroup::is_frozen(lab, node)
}

/// State of the node: `off`, `frozen`, or systemd's own word for it.
pub fn state(lab: &Lab, node: &NodeName) -> String {
    if !is_on(lab, node) {
        return "off".into();
    }
    if cgroup::is_frozen(lab, node) {
        return "frozen".into();
    }
    let answer = ask(lab, node, "systemctl is-system-running || true").unwrap_or_default();
    if answer.is_empty() { "booting".into() } else { answer }
}
