//! Facts, whatever anybody recorded: read from this machine's `/proc`, which shows every process of
//! every node, frozen ones too.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Gateway of the managed network that stories make.
pub const GATEWAY: &str = "10.20.1.1";

/// Addresses that go with the primary role: the floating one of each network, and the gateway of
/// the stories' own. I12 speaks of them all.
const FLOATING: [&str; 4] = ["10.99.0.250", "10.99.1.250", "10.99.2.250", GATEWAY];

/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(200);

/// No move lasts so long: a copy that stands still is given up before.
const LONGEST_MOVE: Duration = Duration::from_secs(100);

/// Time for which an address that a node of PVC 1.0.3 has taken may still be where it was: it takes
/// each before the holder may let go.
const LETS_GO: Duration = Duration::from_secs(8);

/// Part of the BMCs' password, which no process may be told in its arguments.
const PASSWORD: &str = "o'Neil";

/// A QEMU process that carries a guest.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Qemu {
    pub guest: String,
    /// Time at which it was started, in the kernel's ticks since this machine booted.
    started: u64,
    pub node: String,
    /// Whether it was started to take over a running guest.
    incoming: bool,
    /// Process id on this machine.
    pub id: u32,
}

/// The QEMU processes of a lab, by guest and age. A lab is known by what its namespaces' and
/// cgroups' names begin with.
pub fn guests(lab: &str) -> Vec<Qemu> {
    processes(lab).0
}

/// The guests of a lab, and the arguments of the `ipmitool`s that run in it, from one look at
/// `/proc`.
fn processes(lab: &str) -> (Vec<Qemu>, Vec<String>) {
    let (mut guests, mut ipmitools) = (Vec::new(), Vec::new());
    for entry in fs::read_dir("/proc").expect("`/proc` can be read").flatten() {
        let process = entry.path();
        let id = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        let Some(words) = id.and_then(|_| command(&process)) else {
            continue;
        };
        if words[0].contains("qemu-system") {
            guests.extend(qemu(lab, &process, &words));
        } else if words[0].ends_with("ipmitool") && node_of(lab, &process).is_some() {
            ipmitools.push(words.join(" "));
        }
    }
    guests.sort();
    (guests, ipmitools)
}

/// The program of a process, and its arguments; none if it has ended.
fn command(process: &Path) -> Option<Vec<String>> {
    let line = fs::read(process.join("cmdline")).ok().filter(|line| !line.is_empty())?;
    Some(
        line.split(|byte| *byte == 0)
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect(),
    )
}

/// The nodes that have `address` on a device.
pub fn holders(lab: &str, nodes: &[String], address: &str) -> Vec<String> {
    nodes
        .iter()
        .filter(|node| addresses_of(lab, node).is_some_and(|table| is_local(&table, address)))
        .cloned()
        .collect()
}

/// Reads a process of `/proc` that runs QEMU, if it is a guest of this lab. One that ends meanwhile
/// is none.
fn qemu(lab: &str, process: &Path, words: &[String]) -> Option<Qemu> {
    let name = words.iter().find_map(|word| word.strip_prefix("guest="))?;
    let stat = fs::read_to_string(process.join("stat")).ok()?;
    // After the program's name, which may hold anything: the state, and 18 numbers until the start.
    let mut fields = stat.rsplit(')').next()?.split_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    Some(Qemu {
        guest: name.split(',').next()?.to_owned(),
        started: fields.nth(18)?.parse().ok()?,
        node: node_of(lab, process)?,
        incoming: words.iter().any(|word| word == "-incoming"),
        id: process.file_name()?.to_str()?.parse().ok()?,
    })
}

/// The node whose cgroup a process is in.
fn node_of(lab: &str, process: &Path) -> Option<String> {
    let groups = fs::read_to_string(process.join("cgroup")).ok()?;
    let group = groups.lines().find_map(|line| Some(line.split_once(":freezer:/")?.1))?;
    Some(group.split('/').next()?.strip_prefix(lab)?.to_owned())
}

/// The kernel's table of a node's addresses; none while no process of the node lives.
fn addresses_of(lab: &str, node: &str) -> Option<String> {
    let namespace = fs::metadata(format!("/run/netns/{lab}{node}")).ok()?.ino();
    let group = format!("/sys/fs/cgroup/freezer/{lab}{node}/cgroup.procs");
    let all = fs::read_to_string(group).ok()?;
    // Services may have network namespaces of their own.
    let inside = all.lines().find(|id| {
        fs::metadata(format!("/proc/{id}/ns/net")).is_ok_and(|its| its.ino() == namespace)
    })?;
    fs::read_to_string(format!("/proc/{inside}/net/fib_trie")).ok()
}

fn is_local(table: &str, address: &str) -> bool {
    let entry = format!("|-- {address}");
    let mut lines = table.lines();
    while let Some(line) = lines.next() {
        if line.trim() == entry && lines.next().is_some_and(|next| next.contains("/32 host LOCAL"))
        {
            return true;
        }
    }
    false
}

/// Looks all the time whether a guest runs twice (I1) or two nodes hold one address (I12).
pub struct Watch {
    seen: Arc<Seen>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Seen {
    ends: AtomicBool,
    /// A BMC that says "off" of a machine that runs is believed: then two may run, and the storage
    /// decides.
    may_run_twice: AtomicBool,
    /// The node that runs PVC 1.0.3, if one does.
    legacy: Mutex<Option<String>>,
    /// Whether somebody spoke to a BMC.
    ipmitool: AtomicBool,
    wrong: Mutex<Vec<String>>,
    history: Mutex<Vec<String>>,
}

impl Watch {
    pub fn begin(lab: &str, nodes: &[String]) -> Watch {
        let seen = Arc::<Seen>::default();
        let thread = std::thread::spawn({
            let (lab, nodes, seen) = (lab.to_owned(), nodes.to_owned(), seen.clone());
            move || seen.watch(&lab, &nodes)
        });
        Watch { seen, thread: Some(thread) }
    }

    pub fn allow_two_instances(&self) {
        self.seen.may_run_twice.store(true, Ordering::Relaxed);
    }

    /// Says which node runs PVC 1.0.3.
    pub fn is_legacy(&self, node: Option<&str>) {
        *self.seen.legacy.lock().expect("no watcher panics") = node.map(str::to_owned);
    }

    /// Whether a node was seen to speak to a BMC.
    pub fn has_seen_ipmitool(&self) -> bool {
        self.seen.ipmitool.load(Ordering::Relaxed)
    }

    /// Ends it: what was wrong, and what happened.
    pub fn end(mut self) -> (Vec<String>, Vec<String>) {
        self.stop();
        let take = |list: &Mutex<Vec<String>>| {
            std::mem::take(&mut *list.lock().expect("no watcher panics"))
        };
        (take(&self.seen.wrong), take(&self.seen.history))
    }

    fn stop(&mut self) {
        self.seen.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the watcher does not panic");
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Seen {
    fn watch(&self, lab: &str, nodes: &[String]) {
        let begun = Instant::now();
        let note = |list: &Mutex<Vec<String>>, what: String| {
            let line = format!("{:6.1} s  {what}", begun.elapsed().as_secs_f64());
            list.lock().expect("no watcher panics").push(line);
        };
        let (mut before, mut holders_before) = (String::new(), String::new());
        let mut moving: BTreeMap<String, Instant> = BTreeMap::new();
        let mut held = FLOATING.map(|_| Held::default());
        while !self.ends.load(Ordering::Relaxed) {
            let (now, ipmitools) = processes(lab);
            let shown = now.iter().map(Qemu::to_string).collect::<Vec<_>>().join(", ");
            if shown != before {
                note(&self.history, format!("guests: {shown}"));
                before = shown;
            }
            // One look is not one instant: what is wrong is wrong at the second look, too.
            for guest in twice(&now) {
                let again = guests(lab);
                if twice(&again).contains(&guest) && !self.may_run_twice.load(Ordering::Relaxed) {
                    note(&self.wrong, format!("I1: `{guest}` runs twice: {again:?}"));
                }
            }
            moving.retain(|guest, _| pairs(&now).any(|pair| pair[0].guest == *guest));
            for pair in pairs(&now) {
                let since = *moving.entry(pair[0].guest.clone()).or_insert_with(Instant::now);
                if since.elapsed() > LONGEST_MOVE && !self.may_run_twice.load(Ordering::Relaxed) {
                    note(
                        &self.wrong,
                        format!("I1: a move does not end, or has ended twice: {pair:?}"),
                    );
                }
            }
            for line in ipmitools {
                self.ipmitool.store(true, Ordering::Relaxed);
                if line.contains(PASSWORD) {
                    note(&self.wrong, "a password is in the arguments of `ipmitool`".to_owned());
                }
            }
            for (address, held) in FLOATING.into_iter().zip(&mut held) {
                let has = holders(lab, nodes, address);
                if address == FLOATING[0] && holders_before != has.join(", ") {
                    holders_before = has.join(", ");
                    note(&self.history, format!("{address} is on: {holders_before}"));
                }
                // One look is not one instant here either.
                let again = if has.len() > 1 { holders(lab, nodes, address) } else { has };
                let legacy = self.legacy.lock().expect("no watcher panics").clone();
                if !held.may_be_by(&again, legacy.as_deref(), Instant::now()) {
                    note(&self.wrong, format!("I12: {} hold {address}", again.join(" and ")));
                }
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Nodes that have had an address.
#[derive(Default)]
struct Held {
    by: Option<String>,
    /// Time since which a node of PVC 1.0.3 has it as well.
    shared: Option<Instant>,
}

impl Held {
    /// Whether these may have it now. A candidate of PVC 1.0.3 may take it beside the holder, who
    /// then lets go.
    fn may_be_by(&mut self, holders: &[String], legacy: Option<&str>, now: Instant) -> bool {
        if let [] | [_] = holders {
            *self = Held { by: holders.first().cloned().or(self.by.take()), shared: None };
            return true;
        }
        let has_come = |legacy: &str| {
            holders.iter().any(|holder| holder == legacy) && self.by.as_deref() != Some(legacy)
        };
        let since = *self.shared.get_or_insert(now);
        holders.len() == 2 && legacy.is_some_and(has_come) && now - since < LETS_GO
    }
}

/// The guests of which one process too many exists: while one moves live there are two, and the
/// younger was started to take over.
fn twice(guests: &[Qemu]) -> Vec<String> {
    pairs(guests).filter(|pair| !pair[1].incoming).map(|pair| pair[1].guest.clone()).collect()
}

/// Processes of one guest, the first started first.
fn pairs(guests: &[Qemu]) -> impl Iterator<Item = &[Qemu]> {
    guests.windows(2).filter(|pair| pair[0].guest == pair[1].guest)
}

impl std::fmt::Display for Qemu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} on {}{}",
            self.guest,
            self.node,
            if self.incoming { " (moved in)" } else { "" }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qemu(guest: &str, node: &str, started: u64, incoming: bool) -> Qemu {
        Qemu { guest: guest.into(), started, node: node.into(), incoming, id: 1 }
    }

    #[test]
    fn a_guest_that_moves_has_two_processes_and_does_not_run_twice() {
        assert!(twice(&[qemu("a", "n1", 1, false), qemu("a", "n2", 2, true)]).is_empty());
        assert!(twice(&[qemu("a", "n1", 1, false), qemu("b", "n2", 2, false)]).is_empty());
    }

    #[test]
    fn a_guest_started_beside_a_running_one_runs_twice() {
        assert_eq!(twice(&[qemu("a", "n1", 1, false), qemu("a", "n2", 2, false)]), ["a"]);
        assert_eq!(twice(&[qemu("a", "n1", 1, true), qemu("a", "n2", 2, false)]), ["a"]);
    }

    #[test]
    fn an_address_is_on_two_nodes_only_where_a_legacy_peer_has_come_a_moment_ago() {
        let (ours, both) = (["n1".to_owned()], ["n1".to_owned(), "n3".to_owned()]);
        let now = Instant::now();
        for (legacy, first, later) in
            [(None, false, false), (Some("n1"), false, false), (Some("n3"), true, false)]
        {
            let mut held = Held::default();
            assert!(held.may_be_by(&ours, legacy, now));
            assert_eq!(held.may_be_by(&both, legacy, now), first, "{legacy:?}");
            assert_eq!(held.may_be_by(&both, legacy, now + LETS_GO), later, "{legacy:?}");
            assert!(held.may_be_by(&both[1..], legacy, now + LETS_GO));
        }
    }

    #[test]
    fn an_address_counts_where_the_kernel_has_it_itself() {
        let table = "     |-- 10.99.0.250\n        /32 host LOCAL\n     |-- \
                     10.99.0.254\n        /32 link UNICAST\n";
        assert!(is_local(table, "10.99.0.250"));
        assert!(!is_local(table, "10.99.0.254"));
        assert!(!is_local(table, "10.99.0.25"));
    }
}
