//! `cargo xtask lab`: three real nodes on one machine. docs/dev/lab.md tells how to use it.

mod ask;
mod base;
mod bench;
mod bmc;
mod cgroup;
mod clock;
mod cluster;
mod demo;
mod follow;
mod layout;
mod node;
mod process;
mod pvc;
mod switch;

use std::fs;
use std::io::IsTerminal;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use self::bmc::Fault;
use self::layout::{Lab, NETWORKS, Network, NodeName};
use self::node::Services;
use crate::run::{self, command};

const USAGE: &str = "\
Usage: cargo xtask lab COMMAND

  up [--without-pvc|--bare] [--release] [--nodes N]
                                make, power on and wait for three nodes that run PVC, from \
                                packages made of the
                                project as it is; what is there already is kept
                                (--without-pvc: the services PVC stands on, started by the lab;
                                --bare: no address and no service, as PVC finds its nodes;
                                --nodes: 1 to 9, of which the first three are coordinators)
  add                           one node more in a lab that is up, from nothing until it takes VMs
  install [NODE] [--release]    make packages again and install them on all nodes, or on one, \
  while they run
  down [--keep]                 power everything off and remove it (--keep: the nodes' disks stay)
  status                        what is up, what is cut, what is broken
  shell NODE                    a root shell on a node
  exec NODE|switch -- PROGRAM…  a program on a node as root, or in the switch room with this \
  machine's files
  logs [NODE] [-f] [-u UNIT]    the journal of one node, or of all with each line's node; -f goes on
  power NODE|all on|off|reset   the plug itself; nobody is asked, least of all the BMC. `off` \
  tells on a terminal
                                what the others do about it, until the node is back; elsewhere \
                                with --follow
  cut NODE [NETWORK …]          pull the cables out of all networks, or of upstream, cluster, \
  storage
  heal NODE [NETWORK …]         put them back
  freeze NODE [UNIT]            stop every process of the node, or of one of its services, where \
  it is
  thaw NODE [UNIT]              let them go on
  bmc NODE [FAULT]              what its BMC suffers from; or set it: ok, dead, slow, lies, \
  refuses, refuses-on
  clock NODE OFFSET             what PVC's daemons there take for the time: `+1h`, `-90s`, `0`
  guest NAME …                  define VMs with a small guest (examples/hello) on a disk in Ceph; \
  not started
  demo [SCENE …]                tell what a cluster does, and check each claim: cluster, vms, \
  primary, migrate, move,
                                flush, power, cut, freeze, bmc; all of them if none is named
  bench [--runs N] [--only WORD] [--json FILE] [--debug]
                                measure what only a real cluster shows, against the design's \
                                budgets; a release build
                                unless told --debug

A lab lives in target/lab/NAME, or below PVC_LAB_DIR; PVC_LAB is its NAME, `lab` if not set.
PVC_LAB_PACKAGES is a directory of packages to install instead of making them.
The base system that nodes share stays in target/lab/base.
";

/// Does what the words after `lab` say.
pub fn run(arguments: &[String]) -> Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if matches!(words.as_slice(), [] | ["-h" | "--help" | "help"]) {
        print!("{USAGE}");
        return Ok(());
    }
    let lab = Lab::from_environment()?;
    match words.as_slice() {
        ["up", options @ ..] => up(&lab, &Up::parse(options)?),
        ["add"] => add(&lab),
        ["install", options @ ..] => install(&lab, options),
        ["down"] => down(&lab, false),
        ["down", "--keep"] => down(&lab, true),
        ["status"] => cluster::status(&lab),
        ["shell", name] => shell(&lab, &lab.node(name)?),
        ["exec", "switch", "--", program, rest @ ..] => {
            pass_on(switch::inside(&lab, program).args(rest))
        }
        ["exec", name, "--", ..] => {
            pass_on(&mut node::inside(&lab, &lab.node(name)?, &arguments[3..])?)
        }
        ["logs", rest @ ..] => logs(&lab, rest),
        ["power", "all", order] => each_node(&lab.nodes(), |node| power(&lab, node, order)),
        ["power", name, "off", "--follow"] => follow_power_off(&lab, &lab.node(name)?),
        // Somebody looks on.
        ["power", name, "off"] if pvc_runs(&lab) && std::io::stdout().is_terminal() => {
            follow_power_off(&lab, &lab.node(name)?)
        }
        ["power", name, order] => power(&lab, &lab.node(name)?, order),
        ["cut", name, networks @ ..] => switch::cut(&lab, &lab.node(name)?, &chosen(networks)?),
        ["heal", name, networks @ ..] => switch::heal(&lab, &lab.node(name)?, &chosen(networks)?),
        ["freeze", name] => cgroup::freeze(&lab, &powered(&lab, name)?),
        ["thaw", name] => cgroup::thaw(&lab, &powered(&lab, name)?),
        ["freeze", name, unit] => signal_unit(&lab, name, unit, "STOP"),
        ["thaw", name, unit] => signal_unit(&lab, name, unit, "CONT"),
        ["bmc", name] => {
            println!("{}", bmc::fault(&lab, &lab.node(name)?).name());
            Ok(())
        }
        ["bmc", name, fault] => bmc::set_fault(&lab, &lab.node(name)?, Fault::named(fault)?),
        ["clock", name, offset] => clock::set(&lab, &lab.node(name)?, offset),
        ["guest", names @ ..] if !names.is_empty() => pvc::define_guests(&lab, names),
        ["demo", scenes @ ..] => demo::run(&lab, scenes),
        ["bench", options @ ..] => bench::run(&lab, options),
        ["watch", name] => node::see_to_its_end(&lab, &lab.node(name)?),
        ["chassis", name, ..] => bmc::chassis(&lab, &lab.node(name)?, &arguments[2..]),
        _ => bail!("`lab {}` is not something the lab does\n\n{USAGE}", words.join(" ")),
    }
}

/// Options of `up`.
struct Up {
    services: Services,
    with_pvc: bool,
    release: bool,
    nodes: Option<u8>,
    /// The packages that the lab has are installed, not new ones.
    keeps_packages: bool,
}

impl Up {
    fn parse(options: &[&str]) -> Result<Self> {
        let mut up = Self {
            services: Services::Pvc,
            with_pvc: true,
            release: false,
            nodes: None,
            keeps_packages: false,
        };
        let mut options = options.iter();
        while let Some(option) = options.next() {
            match *option {
                "--without-pvc" => (up.services, up.with_pvc) = (Services::Lab, false),
                "--bare" => up.with_pvc = false,
                "--release" => up.release = true,
                "--nodes" => {
                    let count = options.next().and_then(|count| count.parse().ok());
                    up.nodes = Some(count.context("`--nodes` takes a number")?);
                }
                _ => bail!("`{option}` is not an option of `lab up`"),
            }
        }
        Ok(up)
    }
}

fn up(lab: &Lab, options: &Up) -> Result<()> {
    let begun = Instant::now();
    let services = options.services;
    run::run(command("packaging/install/packages.sh").arg("lab"))?;
    let _lock = lab.lock(&lab.directory)?;
    base::ensure(lab)?;
    if let Some(count) = options.nodes {
        let are_made = lab.part(&NodeName::numbered(1).text).join("made").exists();
        ensure!(
            !are_made || usize::from(count) == lab.nodes().len(),
            "the lab has {} nodes; `cargo xtask lab add` adds one, `lab down` begins anew",
            lab.nodes().len()
        );
        lab.set_count(count)?;
    }
    prepare(lab, services)?;
    for node in lab.nodes().iter().take(1) {
        node::make(lab, node, services)?; // It makes what all share.
    }
    each_node(&lab.nodes(), |node| node::make(lab, node, services))?;
    cluster::progress(begun, "the nodes are made");
    fs::write(lab.directory.join("up"), "")?;
    switch::build(lab)?;
    each_node(&lab.nodes(), |node| node::power_on(lab, node))?;
    cluster::progress(begun, "the nodes are powered on");
    each_node(&lab.nodes(), |node| bmc::start(lab, node))?;
    cluster::wait_for_boot(lab, begun)?;
    if options.with_pvc {
        start_pvc(lab, options, begun)?;
    }
    match (services, options.with_pvc) {
        (Services::Lab, _) => cluster::wait_for_services(lab, begun, |_| Ok(()))?,
        (Services::Pvc, true) => {
            cluster::wait_for_services(lab, begun, |node| pvc::starts(lab, node))?
        }
        (Services::Pvc, false) => {}
    }
    if options.with_pvc {
        pvc::wait(lab, begun)?;
    }
    println!("the lab `{}` is up; `cargo xtask lab shell pvchv1` goes in", lab.name);
    Ok(())
}

/// Has PVC installed and started on every node. What a node has installed already stays, so that an
/// interrupted `up` goes on where it was; `install` brings newer packages.
fn start_pvc(lab: &Lab, options: &Up, begun: Instant) -> Result<()> {
    let without: Vec<NodeName> = lab
        .nodes()
        .into_iter()
        .filter(|node| !lab.part(&node.text).join("installed").exists())
        .collect();
    if !without.is_empty() {
        if !options.keeps_packages {
            pvc::pack(lab, options.release)?;
            cluster::progress(begun, "PVC's packages are made");
        }
        each_node(&without, |node| pvc::install(lab, node))?;
        cluster::progress(begun, "PVC is installed");
    }
    pvc::start(lab)
}

/// Gives the lab one node more. Those that are there learn of it first, as an operator would have
/// them.
fn add(lab: &Lab) -> Result<()> {
    ensure!(
        lab.is_up(),
        "the lab `{}` is down; `cargo xtask lab up --nodes N` makes a larger one",
        lab.name
    );
    let made = fs::read_to_string(lab.directory.join("services"))?;
    let has_pvc = lab.part(&NodeName::numbered(1).text).join("installed").exists();
    ensure!(made == Services::Pvc.name() && has_pvc, "only a lab with PVC can be added to");
    let old = lab.nodes();
    ensure!(
        old.len() >= 3,
        "the next node would be a coordinator, and those are there from the beginning"
    );
    let count = u8::try_from(old.len() + 1).context("there are too many nodes")?;
    lab.set_count(count)?;
    let new = NodeName::numbered(count);
    // One after another, so that there always is somebody to be primary.
    old.iter().try_for_each(|node| pvc::introduce(lab, node, &new))?;
    println!("the others know `{new}`");
    up(lab, &Up { keeps_packages: true, ..Up::parse(&[])? })
}

fn install(lab: &Lab, options: &[&str]) -> Result<()> {
    let (flags, names): (Vec<&str>, Vec<&str>) =
        options.iter().partition(|option| option.starts_with('-'));
    ensure!(flags.iter().all(|flag| *flag == "--release"), "`lab install` knows `--release` alone");
    let nodes = match names.as_slice() {
        [] => lab.nodes(),
        names => names.iter().map(|name| lab.node(name)).collect::<Result<_>>()?,
    };
    pvc::pack(lab, !flags.is_empty())?;
    each_node(&nodes, |node| pvc::install(lab, node))
}

/// Prepares what a lab keeps beside its nodes: who it is, what all nodes share, and a copy of
/// ourselves that the BMCs call, whatever is built meanwhile.
fn prepare(lab: &Lab, services: Services) -> Result<()> {
    let made = fs::read_to_string(lab.directory.join("services"));
    if made.is_ok_and(|made| made != services.name()) {
        bail!("the nodes were made for another kind of `up`; `cargo xtask lab down` first");
    }
    for directory in ["shared", "switch", "logs/switch"] {
        fs::create_dir_all(lab.directory.join(directory))?;
    }
    fs::write(lab.directory.join("services"), services.name())?;
    fs::write(lab.directory.join("prefix"), lab.prefix())?;
    for identity in ["fsid", "secret"] {
        let file = lab.directory.join(identity);
        if !file.exists() {
            fs::write(file, fs::read("/proc/sys/kernel/random/uuid")?)?;
        }
    }
    // Beside, then over: the present one may be running.
    let copy = lab.directory.join("xtask");
    fs::copy(std::env::current_exe()?, copy.with_extension("new"))?;
    Ok(fs::rename(copy.with_extension("new"), copy)?)
}

fn down(lab: &Lab, keeps_disks: bool) -> Result<()> {
    if !lab.directory.exists() {
        return Ok(());
    }
    let _lock = lab.lock(&lab.directory)?;
    // From here on no BMC brings a node back.
    let _ = fs::remove_file(lab.directory.join("up"));
    each_node(&lab.nodes(), |node| bmc::stop(lab, node))?;
    each_node(&lab.nodes(), |node| node::power_off(lab, node))?;
    switch::remove(lab)?;
    if keeps_disks {
        return Ok(());
    }
    for entry in fs::read_dir(&lab.directory)? {
        let path = entry?.path();
        // What happened is what one wants to know afterwards.
        if !path.ends_with("logs") && !path.ends_with("lock") {
            remove(&path)?;
        }
    }
    println!(
        "the lab `{}` is gone; its logs stay in {}",
        lab.name,
        lab.directory.join("logs").display()
    );
    Ok(())
}

fn remove(path: &Path) -> Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.with_context(|| format!("cannot remove `{}`", path.display()))
}

/// Does the same on all nodes at once; the first failure is the whole's, after all have ended.
/// Mends what a story or a measurement may have broken, as far as that can be done.
fn mend_all(lab: &Lab) {
    for each in lab.nodes() {
        let mended = bmc::set_fault(lab, &each, Fault::None)
            .and_then(|()| switch::heal(lab, &each, &NETWORKS))
            .and_then(|()| cgroup::thaw(lab, &each));
        if let Err(error) = mended {
            eprintln!("`{each}` could not be mended: {error:#}");
        }
    }
}

fn each_node(nodes: &[NodeName], act: impl Fn(&NodeName) -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let running: Vec<_> = nodes.iter().map(|node| scope.spawn(|| act(node))).collect();
        let done: Vec<Result<()>> = running
            .into_iter()
            .map(|thread| thread.join().expect("no step of the lab panics"))
            .collect();
        done.into_iter().collect()
    })
}

fn power(lab: &Lab, node: &NodeName, order: &str) -> Result<()> {
    match order {
        "on" => node::power_on(lab, node),
        "off" => node::power_off(lab, node),
        "reset" => {
            node::power_off(lab, node)?;
            node::power_on(lab, node)
        }
        _ => bail!("power can be switched on, off, or be reset; not `{order}`"),
    }
}

fn follow_power_off(lab: &Lab, node: &NodeName) -> Result<()> {
    follow::without_power(lab, node, || power(lab, node, "off"))
}

/// Whether the lab is one with PVC, and up.
fn pvc_runs(lab: &Lab) -> bool {
    lab.is_up() && lab.part(&NodeName::numbered(1).text).join("installed").exists()
}

fn powered(lab: &Lab, name: &str) -> Result<NodeName> {
    let node = lab.node(name)?;
    ensure!(node::is_on(lab, &node), "`{node}` is off");
    Ok(node)
}

fn chosen(networks: &[&str]) -> Result<Vec<Network>> {
    if networks.is_empty() {
        return Ok(NETWORKS.to_vec());
    }
    networks.iter().map(|name| switch::network(name)).collect()
}

fn signal_unit(lab: &Lab, name: &str, unit: &str, signal: &str) -> Result<()> {
    let words = ["systemctl", "kill", &format!("--signal={signal}"), unit].map(String::from);
    run::run(&mut node::inside(lab, &lab.node(name)?, &words)?)
}

fn shell(lab: &Lab, node: &NodeName) -> Result<()> {
    // A terminal of the node's own: ours is not to be seen from inside.
    let words = ["script", "--quiet", "--return", "--command", "bash --login", "/dev/null"]
        .map(String::from);
    pass_on(&mut node::inside(lab, node, &words)?)
}

/// Becomes `command`: its status is ours.
fn pass_on(command: &mut Command) -> Result<()> {
    use std::os::unix::process::CommandExt;
    Err(command.exec())
        .with_context(|| format!("`{}` cannot be started", command.get_program().display()))
}

fn logs(lab: &Lab, arguments: &[&str]) -> Result<()> {
    let (name, rest) = match arguments.split_first() {
        Some((first, rest)) if !first.starts_with('-') => (Some(*first), rest),
        _ => (None, arguments),
    };
    let nodes = match name {
        Some(name) => vec![lab.node(name)?],
        None => lab.nodes(),
    };
    let mut journal = command("journalctl");
    for node in nodes {
        let files = lab.logs(&node.text).join("journal");
        ensure!(files.exists(), "`{node}` has no journal yet; it would be in {}", files.display());
        // What a node wrote until its power went is in files of another name.
        for directory in fs::read_dir(&files)?.flatten() {
            for file in fs::read_dir(directory.path())?.flatten() {
                let name = file.file_name().to_string_lossy().into_owned();
                if name.ends_with(".journal") || name.ends_with(".journal~") {
                    journal.arg(format!("--file={}", file.path().display()));
                }
            }
        }
    }
    pass_on(journal.args(rest))
}
