//! A whole cluster, for tests: the lab of docs/dev/lab.md with PVC on its three nodes.
//!
//! Tests share a few labs, each in its turn, and each finds its lab whole. What is true is asked of
//! the QEMU processes, the devices and Ceph; what PVC says about it is compared with that, and what
//! must never be is looked for all the time and once more when a story has ended.

#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "nothing is simulated here: real time passes, real threads wait"
)]

mod archive;
mod audit;
mod database;
mod deaths;
mod inside;
mod legacy;
mod ping;
mod prediction;
mod router;
mod truth;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use pvc_standalone_tests::{Output, eventually, program, repository, run};
use serde_json::Value;

use self::truth::Watch;

pub use inside::{GUESTS, LIBVIRT};
pub use ping::Ping;
pub use prediction::Prediction;
pub use router::Router;
pub use truth::GATEWAY;

pub const NODES: [&str; 3] = ["pvchv1", "pvchv2", "pvchv3"];

/// The number in the name of a node, with which its addresses end.
pub fn number(node: &str) -> &str {
    node.trim_start_matches("pvchv")
}

/// Address outside of the cluster: that of the switch room in the upstream network.
pub const OUTSIDE: &str = "10.99.0.254";

/// The labs that stories are told about. All but the first come up when they are first needed.
const LABS: [&str; 2] = ["tests", "tests2"];

/// A lab, for one test.
pub struct Lab {
    name: &'static str,
    watch: Option<Watch>,
    /// The nodes whose clocks the story has set.
    wrong_clocks: RefCell<BTreeSet<String>>,
    /// The VMs that the story was told are defined.
    defined: RefCell<BTreeSet<String>>,
    /// Reports of each node's last fence before this story.
    fences_before: BTreeMap<String, Value>,
    goes: Goes,
    _turn: File,
    _quiet: File,
}

impl Lab {
    /// Waits for its turn and for a lab that is whole: every node on and ready, every cable in,
    /// every BMC well, and no VM from an earlier test.
    pub fn whole() -> Lab {
        Lab::next(|quiet| quiet.lock_shared())
    }

    /// The same, and no other story is told meanwhile: for what is measured in hundredths of a
    /// second, and for guests with time limits of their own.
    pub fn whole_and_quiet() -> Lab {
        Lab::next(|quiet| quiet.lock())
    }

    fn next(lock: impl FnOnce(&File) -> std::io::Result<()>) -> Lab {
        let quiet = lock_file("quiet");
        lock(&quiet).expect("locks work in `target`");
        let (name, turn) = eventually("a lab is free", 1200, || free_lab().ok_or("all are taken"));
        let mut lab = Lab {
            name,
            watch: None,
            defined: RefCell::default(),
            wrong_clocks: RefCell::default(),
            fences_before: BTreeMap::new(),
            goes: Goes { lab: name, decided: Cell::new(false) },
            _turn: turn,
            _quiet: quiet,
        };
        if lab.nodes().len() != NODES.len() {
            lab.does(&["down"]).ok(); // one in which a story failed that added a node
        }
        lab.mend();
        lab.does(&["up"]).ok();
        lab.clean();
        lab.fences_before = lab.fences();
        lab.watch = Some(Watch::begin(&lab.prefix(), &lab.nodes()));
        lab
    }

    /// The names of its nodes.
    pub fn nodes(&self) -> Vec<String> {
        let count = std::fs::read_to_string(self.directory().join("count")).ok();
        let count: usize = count.and_then(|count| count.trim().parse().ok()).unwrap_or(NODES.len());
        (1..=count).map(|number| format!("pvchv{number}")).collect()
    }

    fn directory(&self) -> PathBuf {
        repository().join("target/lab").join(self.name)
    }

    /// Prefix of the names of the lab's namespaces and cgroups.
    fn prefix(&self) -> String {
        std::fs::read_to_string(self.directory().join("prefix")).expect("`lab up` has written it")
    }

    /// `cargo xtask lab …`, in this lab.
    pub fn does(&self, arguments: &[&str]) -> Output {
        xtask(self.name, arguments, "")
    }

    /// The same, with what is typed.
    pub fn does_with(&self, arguments: &[&str], input: &str) -> Output {
        xtask(self.name, arguments, input)
    }

    /// Writes a file of the story on a node, in a directory that may be new.
    pub fn put(&self, node: &str, path: &str, content: &str) {
        let write = format!("mkdir -p $(dirname {path}) && cat >{path}");
        self.does_with(&["exec", node, "--", "bash", "-c", &write], content).ok();
    }

    /// Packs the programs that stand beside this test, as a version that no node has yet.
    pub fn newer_packages(&self) -> PathBuf {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let revision = format!("lab{}", now.map_or(0, |time| time.as_secs()));
        let output = self.directory().join("newer");
        // What is left of an earlier time.
        let _ = std::fs::remove_dir_all(&output);
        let mut packs = Command::new(program("xtask"));
        packs
            .args(["package", "--debug", "--no-build", "--revision", &revision, "--output"])
            .arg(&output);
        run(&mut packs, "").ok();
        output
    }

    /// The packages that its nodes were made with.
    pub fn packages(&self) -> PathBuf {
        let given = std::env::var_os("PVC_LAB_PACKAGES").map(PathBuf::from);
        given.unwrap_or_else(|| self.directory().join("packages"))
    }

    /// Installs the packages in `packages` on `node`, which runs.
    pub fn installs(&self, node: &str, packages: &Path) {
        let mut installs = Command::new(program("xtask"));
        installs
            .args(["lab", "install", node])
            .env("PVC_LAB", self.name)
            .env("PVC_LAB_PACKAGES", packages);
        run(&mut installs, "").ok();
    }

    /// Whether a node was seen to speak to a BMC in this story. That its password is not among the
    /// arguments is watched all the time.
    pub fn has_seen_ipmitool(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::has_seen_ipmitool)
    }

    /// Allows two instances of a guest to run, because in this story a BMC lies and is believed, as
    /// long as the storage refuses what one of them writes.
    pub fn allow_two_instances(&self) {
        if let Some(watch) = &self.watch {
            watch.allow_two_instances();
        }
    }

    /// A script on a node, as root.
    pub fn on(&self, node: &str, script: &str) -> Output {
        self.does(&["exec", node, "--", "bash", "-c", script])
    }

    /// `pvc` on a node, which asks the API of that node.
    pub fn pvc_on(&self, node: &str, arguments: &[&str]) -> Output {
        // The API of a frozen node takes calls and never answers.
        let limit = ["exec", node, "--", "timeout", "120"];
        let words = [&limit[..], &["pvc", "--quiet", "--unsafe", "--connection", "local"]].concat();
        self.does(&[&words[..], arguments].concat())
    }

    /// `pvc` on the first node.
    pub fn pvc(&self, arguments: &[&str]) -> Output {
        self.pvc_on(NODES[0], arguments)
    }

    /// Returns what `pvc … --format json` shows on the first node that has an answer.
    ///
    /// # Errors
    /// If none has, what the last one said.
    pub fn json(&self, arguments: &[&str]) -> Result<Value, String> {
        let mut said = Err("there is no node".into());
        for node in NODES {
            said = self.json_on(node, arguments);
            if said.is_ok() {
                break;
            }
        }
        said
    }

    /// Returns what `pvc … --format json` on `node` shows.
    ///
    /// # Errors
    /// If it fails, what it said.
    fn json_on(&self, node: &str, arguments: &[&str]) -> Result<Value, String> {
        let output = self.pvc_on(node, &[arguments, &["--format", "json"]].concat());
        if output.code != 0 {
            return Err(output.to_string());
        }
        serde_json::from_str(&output.stdout).map_err(|error| format!("{error}: {output}"))
    }

    /// The nodes whose QEMU processes run `guest`: what is true, whatever anybody recorded.
    pub fn running_on(&self, guest: &str) -> Vec<String> {
        let all = truth::guests(&self.prefix()).into_iter();
        all.filter(|qemu| qemu.guest == guest).map(|qemu| qemu.node).collect()
    }

    /// The guests of each node.
    pub fn guests(&self) -> BTreeMap<String, Vec<String>> {
        let mut guests: BTreeMap<String, Vec<String>> =
            self.nodes().into_iter().map(|node| (node, Vec::new())).collect();
        for qemu in truth::guests(&self.prefix()) {
            guests.entry(qemu.node).or_default().push(qemu.guest);
        }
        guests
    }

    /// Has the lab removed, when this story has ended, with all that was done to it. The next story
    /// finds a new one.
    pub fn goes_with_this_story(&self) {
        self.goes.decided.set(true);
    }

    /// Sets the clock that PVC's daemons on `node` believe in, until the story has ended.
    pub fn set_clock(&self, node: &str, offset: &str) {
        self.wrong_clocks.borrow_mut().insert(node.to_owned());
        self.does(&["clock", node, offset]).ok();
    }

    /// Defines a small guest of this name with a disk in Ceph.
    pub fn define(&self, guest: &str) {
        if self.defined.borrow_mut().insert(guest.to_owned()) {
            // What an earlier guest of that name said is no word of this one's.
            for node in self.nodes() {
                self.on(&node, &format!("rm -f /var/log/libvirt/{guest}.log")).ok();
            }
        }
        self.does(&["guest", guest]).ok();
    }

    /// Defines a guest, has it started on `node`, and waits until its userland says so.
    pub fn start(&self, guest: &str, node: &str) {
        self.start_all(&[(guest, node)]);
    }

    /// The same with several, which boot beside each other.
    pub fn start_all(&self, guests: &[(&str, &str)]) {
        for (guest, node) in guests {
            self.define(guest);
            self.pvc(&["vm", "move", guest, "--target", node]);
            self.pvc(&["vm", "start", guest]).ok();
        }
        for (guest, node) in guests {
            eventually(&format!("{guest} on {node}"), 120, || {
                match self.running_on(guest).as_slice() {
                    [only] if only == node => Ok(()),
                    other => Err(format!("it runs on {other:?}")),
                }
            });
            self.hears(node, guest, "ready; type help");
        }
    }

    /// Waits until `guest`'s console on `node` has shown `words`.
    pub fn hears(&self, node: &str, guest: &str, words: &str) {
        eventually(&format!("`{words}` on the console of {guest}"), 180, || {
            let log = self.on(node, &format!("tail -n 200 /var/log/libvirt/{guest}.log"));
            if log.stdout.contains(words) { Ok(()) } else { Err(log.to_string()) }
        });
    }

    /// Waits until the last that this guest said about its disks is `disks`: their sizes in blocks
    /// of 512 bytes, in the order of their places.
    pub fn guest_has_disks(&self, node: &str, guest: &str, disks: &str) {
        let words = format!("disks now: {disks} (all)");
        eventually(&format!("`{words}` on the console of {guest}"), 180, || {
            let log = self.on(node, &format!("tail -n 200 /var/log/libvirt/{guest}.log"));
            let last = log.stdout.lines().rfind(|line| line.contains("disks now: "));
            if last.is_some_and(|line| line.contains(&words)) {
                Ok(())
            } else {
                Err(log.to_string())
            }
        });
    }

    /// Waits until the cluster shows `node` in this state of the daemon and of its VMs.
    pub fn node_is(&self, node: &str, daemon: &str, domains: &str) {
        eventually(&format!("{node} {daemon} and {domains}"), 240, || {
            let info = self.json(&["node", "info", node])?;
            let is = |field: &str, wanted: &str| info[field].as_str() == Some(wanted);
            if is("daemon_state", daemon) && is("domain_state", domains) {
                Ok(())
            } else {
                Err(info.to_string())
            }
        });
    }

    /// The nodes other than `node` that run `guest`.
    pub fn running_elsewhere(&self, guest: &str, node: &str) -> Vec<String> {
        self.running_on(guest).into_iter().filter(|other| other != node).collect()
    }

    /// Waits until `guest` runs on one node other than `node`, which has died, and on no other.
    /// Returns where.
    pub fn recovered(&self, guest: &str, node: &str) -> String {
        eventually(&format!("{guest} elsewhere than on {node}"), 180, || {
            match self.running_on(guest).as_slice() {
                [only] if only != node => Ok(only.clone()),
                other => Err(format!("it runs on {other:?}")),
            }
        })
    }

    /// The node whose record says that it is primary.
    pub fn primary(&self) -> String {
        eventually("one primary", 120, || match self.primaries()?.as_slice() {
            [one] => Ok(one.clone()),
            other => Err(format!("the primaries are {other:?}")),
        })
    }

    fn primaries(&self) -> Result<Vec<String>, String> {
        Ok(Self::primaries_of(&self.json(&["node", "list"])?))
    }

    fn primaries_of(list: &Value) -> Vec<String> {
        let nodes = list.as_array().into_iter().flatten();
        let primaries = nodes.filter(|node| node["coordinator_state"] == "primary");
        primaries.filter_map(|node| node["name"].as_str().map(str::to_owned)).collect()
    }

    pub fn until_primary(&self, node: &str) {
        eventually(&format!("{node} is primary"), 60, || match self.primaries()?.as_slice() {
            [one] if one == node => Ok(()),
            other => Err(format!("the primaries are {other:?}")),
        });
    }

    pub fn until_another_is_primary(&self, node: &str) {
        eventually(&format!("{node} is no longer primary"), 120, || {
            // The node itself may be cut off, and show what was so before.
            let other = self.witness(node);
            let primaries = Self::primaries_of(&self.json_on(other, &["node", "list"])?);
            let holders = self.holders_of_floating_addresses();
            match holders.as_slice() {
                // It has the addresses a moment before it says that it is primary.
                [one] if one != node && primaries == holders => Ok(()),
                other => Err(format!(
                    "the floating address is on {other:?}, the primaries are {primaries:?}"
                )),
            }
        });
    }

    /// The nodes that have the upstream floating address on a device: what is true of I12.
    pub fn holders_of_floating_addresses(&self) -> Vec<String> {
        self.holders_of("10.99.0.250")
    }

    /// The nodes that have this address on a device.
    pub fn holders_of(&self, address: &str) -> Vec<String> {
        truth::holders(&self.prefix(), &self.nodes(), address)
    }

    /// Waits until the API answers on the upstream floating address, from outside.
    pub fn api_answers_within(&self, seconds: u64) {
        eventually("the API answers on the floating address", seconds, || {
            let asked = ["exec", "switch", "--", "curl", "--silent", "--fail", "--max-time", "1"];
            let answer = self.does(&[&asked[..], &["http://10.99.0.250:7370/api/v1/"]].concat());
            if answer.code == 0 { Ok(()) } else { Err(answer) }
        });
    }

    /// A node other than `node` to ask about it.
    pub fn witness(&self, node: &str) -> &'static str {
        NODES.into_iter().find(|other| *other != node).expect("there are three nodes")
    }

    fn mend(&self) {
        for node in self.nodes() {
            self.does(&["bmc", &node, "ok"]);
            self.does(&["heal", &node]);
            self.does(&["thaw", &node]);
            self.on(&node, deaths::NOTHING_HANGS);
            self.on(&node, legacy::ALL_IS_OURS);
            if NODES.contains(&node.as_str()) {
                self.on(&node, database::ITS_DATABASE_RUNS);
            }
            if self.wrong_clocks.borrow().contains(&node) {
                self.does(&["clock", &node, "0"]);
            }
            self.open(&node);
        }
    }

    fn clean(&self) {
        self.pvc(&["cluster", "maintenance", "off"]);
        self.pvc(&["cluster", "fault", "delete-all"]);
        let vms = self.json(&["vm", "list"]).unwrap_or_default();
        for vm in vms.as_array().into_iter().flatten() {
            let Some(name) = vm["name"].as_str() else { continue };
            // What an earlier story did to it may not be over.
            eventually(&format!("{name} is removed"), 90, || {
                let removed = self.pvc(&["vm", "remove", name]);
                if removed.code == 0 { Ok(()) } else { Err(removed) }
            });
        }
        let networks = self.json(&["network", "list"]).unwrap_or_default();
        for network in networks.as_array().into_iter().flatten() {
            let vni = crate::plain(&network["vni"]);
            self.pvc(&["network", "remove", &vni]);
        }
    }
}

/// Removes a lab that no other story is to find as this one leaves it; one in which a story failed
/// is left to be looked at, until it is needed.
struct Goes {
    lab: &'static str,
    decided: Cell<bool>,
}

impl Drop for Goes {
    fn drop(&mut self) {
        if self.decided.get() && !std::thread::panicking() {
            let down = xtask(self.lab, &["down"], "");
            if down.code != 0 {
                eprintln!("{down}");
            }
        }
    }
}

fn xtask(lab: &str, arguments: &[&str], input: &str) -> Output {
    run(Command::new(program("xtask")).arg("lab").args(arguments).env("PVC_LAB", lab), input)
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.mend();
        let (wrong, history) = self.watch.take().map(Watch::end).unwrap_or_default();
        if !wrong.is_empty() || std::thread::panicking() {
            eprintln!("what happened in the lab `{}`:\n{}", self.name, history.join("\n"));
        }
        if std::thread::panicking() {
            eprintln!("{}", wrong.join("\n"));
        } else {
            assert!(wrong.is_empty(), "{}", wrong.join("\n"));
            self.audit();
        }
    }
}

fn lock_file(name: &str) -> File {
    let directory = repository().join("target/lab");
    std::fs::create_dir_all(&directory).expect("`target` can be written");
    File::create(directory.join(format!("{name}.turn"))).expect("`target` can be written")
}

/// A value as people read it: a text without its quotes.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn free_lab() -> Option<(&'static str, File)> {
    LABS.into_iter().map(|name| (name, lock_file(name))).find(|(_, turn)| turn.try_lock().is_ok())
}
