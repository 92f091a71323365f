//! Asking the lab: what PVC says, and what is true whatever anybody says.
//!
//! The truth is read from the machine that carries the nodes (its processes, its network
//! namespaces, the files behind their disks), so that a node that hangs can be asked as well.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::layout::{Lab, NodeName};
use super::{node, process, switch};
use crate::run;

/// Seconds that nothing that `pvc` is asked here exceeds when all is well.
const LIMIT_SECONDS: &str = "300";

/// The address that follows the primary role, upstream.
pub const FLOATING: &str = "10.99.0.250";

/// Runs `pvc WORDS` on `node` and returns what it prints, without its progress.
///
/// # Errors
/// If it fails: what it said.
pub fn pvc(lab: &Lab, node: &NodeName, words: &[&str]) -> Result<String> {
    let own = ["timeout", LIMIT_SECONDS, "pvc", "--quiet", "--unsafe"];
    let all: Vec<String> = own.iter().chain(words).map(|&word| word.into()).collect();
    let output = node::inside(lab, node, &all)?.stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`pvc {}` on `{node}`: {}", words.join(" "), said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().into())
}

/// Runs `pvc WORDS --format json` on `node` and returns what it prints.
pub fn json(lab: &Lab, node: &NodeName, words: &[&str]) -> Result<Value> {
    let text = pvc(lab, node, &[words, &["--format", "json"]].concat())?;
    serde_json::from_str(&text).with_context(|| format!("`pvc {}` prints no JSON", words.join(" ")))
}

/// A field of a record as text; empty if there is none.
pub fn text<'a>(record: &'a Value, field: &str) -> &'a str {
    record[field].as_str().unwrap_or_default()
}

/// The name of the only primary coordinator, as the records have it.
pub fn primary(lab: &Lab, node: &NodeName) -> Result<String> {
    let list = json(lab, node, &["node", "list"])?;
    let all = list.as_array().into_iter().flatten();
    let primaries: Vec<&str> = all
        .filter(|one| text(one, "coordinator_state") == "primary")
        .map(|one| text(one, "name"))
        .collect();
    match primaries.as_slice() {
        [one] => Ok((*one).into()),
        [] => bail!("no node is primary"),
        several => bail!("several nodes are primary: {}", several.join(", ")),
    }
}

/// A QEMU process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Guest {
    pub name: String,
    pub node: String,
    pub pid: u32,
    pub started: SystemTime,
}

/// Every guest that runs in the lab, by the machine's own list of processes.
pub fn guests(lab: &Lab) -> Vec<Guest> {
    let nodes: BTreeMap<String, String> = lab
        .nodes()
        .into_iter()
        .map(|node| (format!("/{}", lab.named(&node.text)), node.text))
        .collect();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| guest(&nodes, pid)).collect()
}

fn guest(nodes: &BTreeMap<String, String>, pid: u32) -> Option<Guest> {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
    if !read("comm")?.starts_with("qemu-system") {
        return None;
    }
    let node = nodes.get(freezer(&read("cgroup")?)?)?.clone();
    let name = guest_name(&read("cmdline")?)?;
    Some(Guest { name, node, pid, started: process::started(pid)? })
}

/// The name that libvirt gave to the guest of a QEMU's command line. The processes by which it
/// learns what QEMU can do have none.
fn guest_name(command_line: &str) -> Option<String> {
    let word = command_line.split('\0').find_map(|word| word.strip_prefix("guest="))?;
    Some(word.split(',').next()?.into())
}

/// The place in the hierarchy `freezer`, of all that `/proc/PID/cgroup` lists.
fn freezer(cgroups: &str) -> Option<&str> {
    cgroups.lines().find_map(|line| line.split_once(":freezer:").map(|(_, place)| place))
}

/// The nodes that run `name`.
pub fn running_on(lab: &Lab, name: &str) -> Vec<String> {
    guests(lab).into_iter().filter(|guest| guest.name == name).map(|guest| guest.node).collect()
}

/// The nodes whose devices have the floating address.
pub fn holders(lab: &Lab) -> Vec<String> {
    let has = |node: &NodeName| {
        let own = lab.named(&node.text);
        let shown =
            run::command("ip").args(["-n", &own, "-o", "address", "show", "to", FLOATING]).output();
        shown.is_ok_and(|shown| shown.status.success() && !shown.stdout.is_empty())
    };
    lab.nodes().into_iter().filter(has).map(|node| node.text).collect()
}

/// Whether the API answers on the floating address, asked from outside of the nodes.
pub fn api_answers(lab: &Lab) -> bool {
    let mut curl = switch::inside(lab, "curl");
    curl.args([
        "--silent",
        "--fail",
        "--max-time",
        "1",
        &format!("http://{FLOATING}:7370/api/v1/"),
    ]);
    curl.output().is_ok_and(|output| output.status.success())
}

/// Beat that a guest of `examples/hello` counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Beat {
    pub count: u64,
    pub boot: u64,
}

/// The last that `guest` has counted on its console on `node`.
pub fn last_beat(lab: &Lab, guest: &str, node: &str) -> Option<Beat> {
    console(lab, guest, node).lines().rev().find_map(beat)
}

/// All that the console of `guest` has shown on `node`. A guest that moves goes on in the file of
/// its new node.
pub fn console(lab: &Lab, guest: &str, node: &str) -> String {
    let file = lab.logs(node).join(format!("libvirt/{guest}.log"));
    String::from_utf8_lossy(&fs::read(file).unwrap_or_default()).into_owned()
}

/// Removes what `guest` has shown, so that what it shows from now on is new.
pub fn clear_console(lab: &Lab, guest: &str) {
    for node in lab.nodes() {
        // Most nodes have never run it.
        fs::remove_file(lab.logs(&node.text).join(format!("libvirt/{guest}.log"))).ok();
    }
}

fn beat(line: &str) -> Option<Beat> {
    let (count, rest) = line.trim_end().split_once("heartbeat ")?.1.split_once(", up ")?;
    let boot = rest.split_once(", boot ")?.1;
    Some(Beat { count: count.parse().ok()?, boot: boot.parse().ok()? })
}

/// The nodes that hold a lock on the volume of `guest`, as Ceph says on `node`.
pub fn lock_owners(lab: &Lab, node: &NodeName, guest: &str) -> Result<Vec<String>> {
    let script = format!("rbd lock list vms/{guest}_sda --format json");
    let answer = node::ask(lab, node, &script).context("Ceph does not list the locks")?;
    let locks: Value = serde_json::from_str(&answer)?;
    let addresses = locks.as_array().into_iter().flatten().map(|lock| text(lock, "address"));
    let owner = |address: &str| {
        let nodes = lab.nodes();
        let node =
            nodes.iter().find(|node| address.starts_with(&format!("10.99.2.{}:", node.number)));
        node.map_or_else(|| address.to_owned(), |node| node.text.clone())
    };
    Ok(addresses.map(owner).collect())
}

/// The last line of `node`'s own journal, written by `unit` since `since`, that holds `words`; and
/// when. The journal lies on the machine: it can be read when the node is off.
pub fn journalled(
    lab: &Lab,
    node: &NodeName,
    unit: &str,
    since: SystemTime,
    words: &str,
) -> Option<(SystemTime, String)> {
    let since = since.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
    let mut journal = run::command("journalctl");
    // The whole directory: what a node wrote until its power went is in files of another name.
    let machines = fs::read_dir(lab.logs(&node.text).join("journal")).ok()?;
    journal.arg(format!("--directory={}", machines.flatten().next()?.path().display()));
    journal.args(["--quiet", "--reverse", "--output=json", "--output-fields=MESSAGE"]);
    journal.args([format!("--unit={unit}"), format!("--since=@{since}")]);
    let output = journal.output().ok()?;
    String::from_utf8_lossy(&output.stdout).lines().find_map(|line| {
        let entry: Value = serde_json::from_str(line).ok()?;
        let message = text(&entry, "MESSAGE");
        let at: u64 = text(&entry, "__REALTIME_TIMESTAMP").parse().ok()?;
        let at = SystemTime::UNIX_EPOCH + Duration::from_micros(at);
        message.contains(words).then(|| (at, message.to_owned()))
    })
}

/// Something that is looked at again and again beside everything else.
pub struct Beside<T> {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<T>,
}

impl<T: Send + 'static> Beside<T> {
    pub fn start(mut seen: T, mut look: impl FnMut(&mut T) + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        let thread = std::thread::spawn(move || {
            while !asked.load(Ordering::Relaxed) {
                look(&mut seen);
                std::thread::sleep(Duration::from_millis(50));
            }
            seen
        });
        Self { stop, thread }
    }

    /// Ends it: what was seen.
    pub fn end(self) -> T {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("looking does not panic")
    }
}

/// Remembers what ran on two nodes at the same time.
pub fn watch_guests(lab: &Lab) -> Beside<BTreeSet<String>> {
    let lab = lab.clone();
    Beside::start(BTreeSet::new(), move |twice| twice.extend(doubles(&guests(&lab))))
}

/// Measures the longest time for which the API was not heard on the floating address.
pub fn watch_api(lab: &Lab) -> Beside<Duration> {
    let (lab, mut answered) = (lab.clone(), Instant::now());
    Beside::start(Duration::ZERO, move |longest| {
        let answers = api_answers(&lab);
        *longest = answered.elapsed().max(*longest);
        if answers {
            answered = Instant::now();
        }
    })
}

/// Remembers when the floating address was first seen on each node.
pub fn watch_floating(lab: &Lab) -> Beside<BTreeMap<String, Instant>> {
    let lab = lab.clone();
    Beside::start(BTreeMap::new(), move |seen| {
        for node in holders(&lab) {
            seen.entry(node).or_insert_with(Instant::now);
        }
    })
}

fn doubles(guests: &[Guest]) -> Vec<String> {
    let mut by_name: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    guests.iter().for_each(|guest| by_name.entry(&guest.name).or_default().push(&guest.node));
    let several = by_name.into_iter().filter(|(_, nodes)| nodes.len() > 1);
    several.map(|(name, nodes)| format!("{name} on {}", nodes.join(" and "))).collect()
}

/// A `ping` to the floating address, 40 times a second, that goes on until it is asked what was
/// lost.
pub struct Ping {
    process: std::process::Child,
}

/// Result of pings.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pinged {
    pub sent: u32,
    pub lost: u32,
    /// The longest time between two answers.
    pub gap: Duration,
}

impl Ping {
    /// Returns when the address answers.
    pub fn start(lab: &Lab) -> Result<Self> {
        let mut once = switch::inside(lab, "ping");
        once.args(["-q", "-c", "1", "-W", "1", FLOATING]);
        process::wait_until("the floating address answers", Duration::from_secs(30), || {
            Ok(once.output()?.status.success())
        })?;
        let mut ping = switch::inside(lab, "ping");
        ping.args(["-D", "-i", "0.025", FLOATING]);
        Ok(Self { process: ping.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()? })
    }

    pub fn end(self) -> Result<Pinged> {
        // An interrupt has it count.
        run::run(run::command("kill").args(["-s", "INT", &self.process.id().to_string()]))?;
        let output = self.process.wait_with_output()?;
        pinged(&String::from_utf8_lossy(&output.stdout)).context("ping counted nothing")
    }
}

fn pinged(output: &str) -> Option<Pinged> {
    let summary = output.lines().find(|line| line.contains("packets transmitted"))?;
    let count = |word: &str| {
        let part = summary.split(", ").find(|part| part.contains(word))?;
        part.split(' ').next()?.parse::<u32>().ok()
    };
    let (sent, received) = (count("transmitted")?, count("received")?);
    let answers: Vec<f64> = output
        .lines()
        .filter(|line| line.contains("bytes from"))
        .filter_map(|line| line.strip_prefix('[')?.split_once(']')?.0.parse().ok())
        .collect();
    let gap = answers.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max);
    let gap = Duration::try_from_secs_f64(gap).unwrap_or_default();
    (sent > 0).then_some(Pinged { sent, lost: sent.saturating_sub(received), gap })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_known_by_what_libvirt_calls_it() {
        let line = "qemu-system-x86_64\0-name\0guest=web1,debug-threads=on\0-S\0";
        assert_eq!(guest_name(line).as_deref(), Some("web1"));
        assert_eq!(guest_name("qemu-system-x86_64\0-machine\0none\0"), None);
    }

    #[test]
    fn a_process_belongs_to_the_node_whose_freezer_it_is_in() {
        let cgroups =
            "9:name=systemd:/pvc-one-pvchv3/payload\n6:freezer:/pvc-one-pvchv3\n1:cpu:/\n";
        assert_eq!(freezer(cgroups), Some("/pvc-one-pvchv3"));
        assert_eq!(freezer("1:cpu:/\n"), None);
    }

    #[test]
    fn a_beat_that_was_cut_in_two_is_none() {
        let whole = "hello: heartbeat 75, up 162 s, boot 1\r";
        assert_eq!(beat(whole), Some(Beat { count: 75, boot: 1 }));
        assert_eq!(beat("hello: heartbeat 75, u"), None);
        assert_eq!(beat("p 162 s, boot 1"), None);
    }

    #[test]
    fn a_guest_on_two_nodes_is_seen() {
        let guest = |name: &str, node: &str| Guest {
            name: name.into(),
            node: node.into(),
            pid: 1,
            started: SystemTime::UNIX_EPOCH,
        };
        let all = [guest("a", "pvchv1"), guest("b", "pvchv1"), guest("a", "pvchv3")];
        assert_eq!(doubles(&all), ["a on pvchv1 and pvchv3"]);
    }

    #[test]
    fn lost_pings_are_counted_and_the_longest_gap_is_measured() {
        let output = "\
PING 10.99.0.250 (10.99.0.250) 56(84) bytes of data.
[100.000000] 64 bytes from 10.99.0.250: icmp_seq=1 ttl=64 time=0.05 ms
[100.025000] 64 bytes from 10.99.0.250: icmp_seq=2 ttl=64 time=0.05 ms
[100.100000] 64 bytes from 10.99.0.250: icmp_seq=5 ttl=64 time=0.05 ms

--- 10.99.0.250 ping statistics ---
5 packets transmitted, 3 received, 40% packet loss, time 100ms
";
        let pinged = pinged(output).unwrap();
        assert_eq!((pinged.sent, pinged.lost), (5, 2));
        assert!((pinged.gap.as_secs_f64() - 0.075).abs() < 1e-6);
    }
}
