//! Networks of VMs: what operators ask of them, and whether the hosts have what the records say,
//! no more and no less.
//!
//! The hosts are judged by their links, the tables of their packet filters and the programs that
//! run there: a managed network with a port passes no packet unfiltered; the rules that are loaded
//! for it were recorded so at some time, and never go back; what is recorded stands within
//! [`LATE`] on every host whose daemon is well; and the port of each guest is in its bridge. Who
//! answers DHCP is judged when all is well.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use pvc_embedded::state::{TreeState, Work};
use pvc_model::cluster::Cluster as View;
use pvc_model::domain::{Nic, NicKind};
use pvc_model::guest_network::rules::table;
use pvc_model::guest_network::{GuestNetwork, GuestNetworks, Vni};
use pvc_model::link::{Link, Links};
use pvc_model::network::{Direction, NetworkRecord};
use pvc_ports::{Op, Program};
use serde::{Deserialize, Serialize};

use crate::cluster::Shape;
use crate::host::Host;
use crate::operators::Answer;
use crate::process::Pid;
use crate::state::State;
use crate::words_given::WordsGiven;

/// Number of the first managed network that a world has from its beginning.
pub(crate) const FIRST_VNI: u32 = 1001;

/// Directory of the files of DHCP servers.
pub(crate) const DIRECTORY: &str = "/run/pvc/dnsmasq";

/// Time in which a host whose daemon is well has what is recorded: a moment, and more if the
/// network was looked at a moment ago.
const LATE: Duration = Duration::from_secs(60);

/// The longest that a ZooKeeper server may be behind so that this is true of its clients. A daemon
/// that has a new connection reads the tree level by level, and each answer comes behind what it
/// has just written: with a server that lags nine seconds that takes minutes.
const LAGS: Duration = Duration::from_secs(2);

/// Time after which a rule that the kernel has refused is loaded at the latest, once it takes it:
/// it is tried again every five minutes.
const TAKEN_AGAIN: Duration = Duration::from_secs(300 + 60);

/// Time between two looks at that.
const BETWEEN_LOOKS: Duration = Duration::from_secs(2);

/// Request about a network of VMs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkAsk {
    /// Makes a managed network with DHCP.
    Add {
        vni: u32,
    },
    /// Makes a network of a VLAN.
    AddBridged {
        vni: u32,
    },
    Remove {
        vni: u32,
        force: bool,
    },
    /// Gives the primary the host of this number as its address in the network.
    SetGateway {
        vni: u32,
        host: u8,
    },
    SetDhcp {
        vni: u32,
        on: bool,
    },
    /// Adds a rule for what comes in, behind those that there are or before them.
    AddRule {
        vni: u32,
        rule: String,
        first: bool,
    },
    /// Adds a rule that is taken back unless somebody confirms it within so many seconds.
    TryRule {
        vni: u32,
        rule: String,
        seconds: u32,
    },
    /// Confirms the change of a network that waits for it.
    Confirm {
        vni: u32,
    },
    RemoveRule {
        vni: u32,
        rule: String,
    },
    /// Keeps an address for the VM.
    Reserve {
        vni: u32,
        vm: usize,
    },
    Release {
        vni: u32,
        vm: usize,
    },
}

/// State that an operator was promised.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Thing {
    Network(u32),
    Rule(u32, String),
    Reservation(u32, usize),
}

impl Thing {
    fn vni(&self) -> u32 {
        match self {
            Thing::Network(vni) | Thing::Rule(vni, _) | Thing::Reservation(vni, _) => *vni,
        }
    }
}

impl NetworkAsk {
    /// The VMs that it is about.
    pub fn vms(&self) -> Vec<usize> {
        match self {
            NetworkAsk::Reserve { vm, .. } | NetworkAsk::Release { vm, .. } => vec![*vm],
            _ => Vec::new(),
        }
    }

    pub fn vni(&self) -> u32 {
        match self {
            NetworkAsk::Add { vni }
            | NetworkAsk::AddBridged { vni }
            | NetworkAsk::Remove { vni, .. }
            | NetworkAsk::SetGateway { vni, .. }
            | NetworkAsk::SetDhcp { vni, .. }
            | NetworkAsk::AddRule { vni, .. }
            | NetworkAsk::TryRule { vni, .. }
            | NetworkAsk::Confirm { vni }
            | NetworkAsk::RemoveRule { vni, .. }
            | NetworkAsk::Reserve { vni, .. }
            | NetworkAsk::Release { vni, .. } => *vni,
        }
    }

    /// Things that are there once it is done, or are not.
    fn goals(&self) -> Vec<(Thing, bool)> {
        let goal = match self {
            NetworkAsk::Add { vni } | NetworkAsk::AddBridged { vni } => {
                (Thing::Network(*vni), true)
            }
            NetworkAsk::Remove { vni, .. } => (Thing::Network(*vni), false),
            NetworkAsk::AddRule { vni, rule, .. } => (Thing::Rule(*vni, rule.clone()), true),
            NetworkAsk::RemoveRule { vni, rule } => (Thing::Rule(*vni, rule.clone()), false),
            NetworkAsk::Reserve { vni, vm } => (Thing::Reservation(*vni, *vm), true),
            NetworkAsk::Release { vni, vm } => (Thing::Reservation(*vni, *vm), false),
            NetworkAsk::SetGateway { .. }
            | NetworkAsk::SetDhcp { .. }
            | NetworkAsk::TryRule { .. }
            | NetworkAsk::Confirm { .. } => return Vec::new(),
        };
        vec![goal]
    }
}

/// The part of a network's addresses that its number makes.
fn subnet(vni: u32) -> u8 {
    u8::try_from(vni % 1000 % 250).expect("it is below 250")
}

/// The host of this number in the network.
pub(crate) fn host_of(vni: u32, host: u8) -> String {
    format!("10.20.{}.{host}", subnet(vni))
}

pub(crate) fn ip4_network(vni: u32) -> String {
    format!("{}/24", host_of(vni, 0))
}

/// First and last address that DHCP gives there.
pub(crate) fn dhcp_range(vni: u32) -> [String; 2] {
    [100, 199].map(|host| host_of(vni, host))
}

/// The address that operators reserve for a VM.
pub(crate) fn reserved_address(vni: u32, vm: usize) -> String {
    host_of(vni, 200 + u8::try_from(vm % 50).expect("it is below 50"))
}

/// The MAC address of a VM's network card.
pub(crate) fn mac(vm: usize) -> String {
    format!("52:54:00:01:{:02x}:{:02x}", vm / 256 % 256, vm % 256)
}

/// Description of a rule, which is its name.
pub(crate) fn rule_name(rule: &str) -> String {
    rule.replace(|c: char| !c.is_ascii_alphanumeric(), "-")
}

/// A managed network as whoever set the cluster up has made it.
pub(crate) fn first_record(vni: u32) -> NetworkRecord {
    let [dhcp4_start, dhcp4_end] = dhcp_range(vni);
    NetworkRecord {
        vni: vni.to_string(),
        description: format!("net{vni}"),
        nettype: "managed".to_owned(),
        domain: format!("net{vni}.example"),
        ip4_network: ip4_network(vni),
        ip4_gateway: host_of(vni, 1),
        dhcp4_flag: "True".to_owned(),
        dhcp4_start,
        dhcp4_end,
        ..NetworkRecord::default()
    }
}

/// The port of a guest of this client of Ceph, which no other has, in the network at this place
/// among its own.
pub(crate) fn port(client: u64, place: usize) -> String {
    format!("vnet{client}p{place}")
}

/// Plugs each VM into one of the networks that are there at first.
pub(crate) fn plug_in(shape: &mut Shape) {
    let networks = shape.nature.networks;
    if networks > 0 {
        let vnis = (FIRST_VNI..FIRST_VNI + networks).cycle();
        shape.vms.iter_mut().zip(vnis).for_each(|(vm, vni)| vm.networks = vec![vni]);
    }
}

/// Has the kernel of a host refuse every rule with these words, or none.
pub(crate) fn refuse_rules(host: &mut Host, text: Option<String>) {
    host.refused_rule.clone_from(&text);
    host.firewall.set_refusing(move |_, rules| {
        rules.zip(text.as_deref()).is_some_and(|(rules, text)| rules.contains(text))
    });
}

/// The rules of all managed networks as they were recorded at a time.
pub(crate) struct Recorded {
    at: Duration,
    rules: BTreeMap<Vni, Rules>,
}

impl Recorded {
    /// Reads the tree, which nobody has to announce: a host may have loaded by then what it says.
    pub fn of(tree: &TreeState, at: Duration) -> Recorded {
        let networks = children(tree, ROOT);
        let managed = networks.into_iter().filter_map(|name| {
            let is_managed = text(tree, &format!("{ROOT}/{name}/nettype")) == "managed";
            let vni = Vni::parse(&name).filter(|_| is_managed)?;
            let [incoming, outgoing] = [Direction::In, Direction::Out].map(|direction| {
                let list = format!("{ROOT}/{name}/firewall_rules/{}", direction.as_str());
                let mut rules: Vec<(u32, String)> = children(tree, &list)
                    .into_iter()
                    .map(|rule| {
                        let order = text(tree, &format!("{list}/{rule}/order"));
                        (order.parse().unwrap_or(0), text(tree, &format!("{list}/{rule}/rule")))
                    })
                    .collect();
                rules.sort_by_key(|(order, _)| *order);
                rules.into_iter().map(|(_, rule)| rule).collect()
            });
            Some((vni, Rules { incoming, outgoing }))
        });
        Recorded { at, rules: managed.collect() }
    }

    /// Whether a write changes what is recorded of networks.
    pub fn is_changed_by(work: &Work) -> bool {
        let changes = |op: &Op| match op {
            Op::Check { .. } => false,
            op => op.path().starts_with(ROOT),
        };
        match work {
            Work::Create { path, .. } => path.starts_with(ROOT),
            Work::Multi { ops, .. } => ops.iter().any(changes),
            Work::End { .. } => false,
        }
    }
}

const ROOT: &str = "/networks";

/// The names below a key, in order.
fn children(tree: &TreeState, path: &str) -> Vec<String> {
    let mut names = tree.children(path).unwrap_or_default();
    names.sort();
    names
}

fn text(tree: &TreeState, path: &str) -> String {
    let data = tree.entry(path).map(|entry| entry.data).unwrap_or_default();
    String::from_utf8_lossy(&data).into_owned()
}

/// Rules of one version of a record: those of what comes in, and of what goes out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Rules {
    incoming: Vec<String>,
    outgoing: Vec<String>,
}

impl Rules {
    fn of(record: &NetworkRecord) -> Rules {
        let of = |direction| {
            let mut acls: Vec<_> =
                record.acls.iter().filter(|acl| acl.direction == direction).collect();
            acls.sort_by_key(|acl| acl.order);
            acls.iter().map(|acl| acl.rule.clone()).collect()
        };
        Rules { incoming: of(Direction::In), outgoing: of(Direction::Out) }
    }
}

/// Version of a network's record, as far as the packet filter is about it.
#[derive(Debug)]
struct Version {
    since: Duration,
    /// `None`: there is no such network, or it is not a managed one.
    rules: Option<Rules>,
}

/// Chain of the rules of operators as a host has loaded it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Chain(Vec<String>);

impl Chain {
    /// Whether the chain lets nothing pass that these rules do not.
    fn is_of(&self, rules: &[String]) -> bool {
        let is_cut =
            |(last, before): (&String, &[String])| last == "drop" && rules.starts_with(before);
        self.0 == rules || self.0.split_last().is_some_and(is_cut)
    }
}

/// The table of networks, as a host has loaded it.
#[derive(Debug, Default)]
struct Loaded {
    /// Bridges of networks that are filtered, and of those that are closed.
    guests: BTreeSet<String>,
    closed: BTreeSet<String>,
    chains: BTreeMap<String, Chain>,
}

impl Loaded {
    /// Reads the words of the table.
    fn read(text: &str) -> Loaded {
        let mut loaded = Loaded::default();
        let mut place = String::new();
        for line in text.lines() {
            match line.strip_suffix(" {") {
                Some(begun) if !line.starts_with('\t') => begun.clone_into(&mut place),
                _ => loaded.take(&place, line.trim()),
            }
        }
        loaded
    }

    fn take(&mut self, place: &str, line: &str) {
        let bridges = |line: &str| -> BTreeSet<String> {
            let elements = line.strip_prefix("elements = {").and_then(|it| it.strip_suffix('}'));
            let elements = elements.into_iter().flat_map(|elements| elements.split(','));
            elements.map(|bridge| bridge.trim().trim_matches('"').to_owned()).collect()
        };
        match place {
            "set guests" => self.guests.extend(bridges(line)),
            "set closed" => self.closed.extend(bridges(line)),
            _ => {
                let Some(name) = place.strip_prefix("chain vxlan") else { return };
                let chain = self.chains.entry(name.to_owned()).or_default();
                match line.strip_prefix("counter") {
                    Some("") | None => {}
                    Some(rule) => chain.0.push(rule.trim().to_owned()),
                }
            }
        }
    }

    /// The chains of a network that is filtered: of what comes in, and of what goes out.
    fn of(&self, vni: Vni) -> Option<[Chain; 2]> {
        let chain =
            |way: &str| self.chains.get(&format!("{vni}-{way}")).cloned().unwrap_or_default();
        self.guests.contains(&vni.bridge()).then(|| ["in", "out"].map(chain))
    }
}

/// Knowledge of networks by which the hosts are judged.
#[derive(Default)]
pub(crate) struct NetworkTruth {
    /// Every version of each managed network that there ever was, from the first on.
    recorded: BTreeMap<Vni, Vec<Version>>,
    /// The version that a program of a host has loaded last.
    loaded: BTreeMap<(usize, Vni), (Pid, usize)>,
    /// Hosts whose packet filter somebody has emptied, until it is loaded again.
    flushed: BTreeSet<usize>,
    /// Times until which hosts may lack what is recorded, because somebody has meddled with them.
    excused: BTreeMap<usize, Duration>,
    /// Times at which guests were last seen plugged into a bridge of a host.
    used: BTreeMap<(usize, String), Duration>,
    /// The reservations that the servers of hosts have read at their start, by their names.
    served: BTreeMap<(usize, String), String>,
    words: WordsGiven<Thing>,
    next_look: Duration,
}

impl NetworkTruth {
    /// Takes notice of what was recorded at `now`.
    fn look(&mut self, present: BTreeMap<Vni, Rules>, now: Duration) {
        let known: Vec<Vni> = self.recorded.keys().copied().collect();
        for vni in known.into_iter().filter(|vni| !present.contains_key(vni)) {
            self.note(vni, None, now);
        }
        for (vni, rules) in present {
            self.note(vni, Some(rules), now);
        }
    }

    fn note(&mut self, vni: Vni, rules: Option<Rules>, now: Duration) {
        let versions = self.recorded.entry(vni).or_default();
        if versions.last().is_none_or(|last| last.rules != rules) {
            versions.push(Version { since: now, rules });
        }
    }

    pub fn asked(&mut self, ask: &NetworkAsk) {
        self.words.asked(ask.goals().into_iter().map(|(thing, _)| thing));
        self.leave_open(ask);
    }

    pub fn answered(&mut self, ask: &NetworkAsk, answer: &Answer) {
        self.words.answered(ask.goals(), answer);
        self.leave_open(ask);
    }

    /// The rules and reservations of a network go with it, or stay: nobody promises anything of
    /// those that somebody asked for until its removal is answered. Nor of a rule that is tried.
    fn leave_open(&mut self, ask: &NetworkAsk) {
        let vni = ask.vni();
        match ask {
            NetworkAsk::Remove { .. } => self
                .words
                .leave_open(|thing| thing.vni() == vni && !matches!(thing, Thing::Network(_))),
            NetworkAsk::TryRule { rule, .. } => {
                let tried = Thing::Rule(vni, rule.clone());
                self.words.leave_open(|thing| *thing == tried);
            }
            _ => {}
        }
    }

    fn excuse(&mut self, host: usize, until: Duration) {
        let known = self.excused.entry(host).or_default();
        *known = until.max(*known);
    }

    pub fn host_lost(&mut self, host: usize) {
        self.flushed.remove(&host);
        self.loaded.retain(|(of, _), _| *of != host);
    }
}

fn server_name(vni: Vni) -> String {
    format!("dnsmasq-{vni}")
}

/// The bridges that a guest is plugged into, in the order of its definition.
pub(crate) fn bridges(xml: &str) -> Vec<String> {
    let domain = pvc_domain::summary(xml).ok();
    let nics = domain.into_iter().flat_map(|domain| domain.nics);
    let bridge = |nic: Nic| match nic.kind {
        NicKind::Bridge(bridge) => Some(bridge),
        _ => None,
    };
    nics.filter_map(bridge).filter(|bridge| Vni::of_bridge(bridge).is_some()).collect()
}

// --- What the hosts have -------------------------------------------------------------------------

impl State {
    fn links(&self, host: usize) -> Links {
        match self.hosts[host].booted {
            true => self.hosts[host].network.links_as_they_are(),
            false => Links::new(),
        }
    }

    fn loaded(&self, host: usize) -> Loaded {
        let known = &self.hosts[host];
        let shown = known.firewall.loaded(&table()).filter(|_| known.booted);
        shown.as_deref().map(Loaded::read).unwrap_or_default()
    }

    /// Somebody empties the packet filter of the host.
    pub fn flush_firewall(&mut self, host: usize) {
        self.hosts[host].firewall.flush();
        self.networks.flushed.insert(host);
        self.networks.excuse(host, self.run.now + LATE);
    }

    /// The end of the tunnels of a network is deleted on the host.
    pub fn lose_tunnel(&mut self, host: usize, vni: u32) {
        self.hosts[host].network.pull_out(&format!("vxlan{vni}"));
        self.networks.excuse(host, self.run.now + LATE);
    }

    /// The kernel of the host refuses every rule with these words, and takes all others, also those
    /// that it has refused.
    pub fn refuse_rules(&mut self, host: usize, text: &str) {
        self.take_rules(host);
        refuse_rules(&mut self.hosts[host], Some(text.to_owned()));
    }

    /// The kernel of the host takes every rule, also those that it has refused.
    pub fn take_rules(&mut self, host: usize) {
        if self.hosts[host].refused_rule.is_some() {
            refuse_rules(&mut self.hosts[host], None);
            self.networks.excuse(host, self.run.now + TAKEN_AGAIN);
        }
    }

    /// A program has been started on the host: what a DHCP server reads, it reads now.
    pub fn program_started(&mut self, host: usize, program: &Program) {
        let file = program.args.iter().find_map(|arg| arg.strip_prefix("--conf-file="));
        let Some(file) = file else { return };
        let contents = self.hosts[host].files.contents(Path::new(file)).unwrap_or_default();
        let reservations = String::from_utf8_lossy(&contents).into_owned();
        self.networks.served.insert((host, program.name.clone()), reservations);
    }

    /// Takes notice of every version of networks that was recorded.
    pub fn look_at_recorded(&mut self) {
        for Recorded { at, rules } in self.zookeeper.take_recorded_networks() {
            self.networks.look(rules, at);
        }
    }

    /// The program `pid` of a host has loaded the table of networks, or removed it.
    pub fn firewall_loaded(&mut self, host: usize, pid: Pid) {
        if self.run.nature.networks == 0 {
            return;
        }
        self.look_at_recorded();
        self.networks.flushed.remove(&host);
        let loaded = self.loaded(host);
        for vni in self.networks.recorded.keys().copied().collect::<Vec<_>>() {
            let Some(chains) = loaded.of(vni) else { continue };
            if let Err(what) = self.version_loaded(host, pid, vni, &chains) {
                let what = format!("{} {what}", self.hosts[host].name);
                self.truth.violate(&self.run, "rules", what);
            }
        }
        self.links_changed(host);
    }

    /// Finds which version of a network's record is loaded.
    ///
    /// # Errors
    /// If there was none like that, or none since the one that was loaded before.
    fn version_loaded(
        &mut self,
        host: usize,
        pid: Pid,
        vni: Vni,
        chains: &[Chain; 2],
    ) -> Result<(), String> {
        let versions = &self.networks.recorded[&vni];
        let fits = |version: &Version| {
            let [incoming, outgoing] = chains;
            version.rules.as_ref().is_some_and(|rules| {
                incoming.is_of(&rules.incoming) && outgoing.is_of(&rules.outgoing)
            })
        };
        let before = self.networks.loaded.get(&(host, vni));
        // One that has just begun may be told something older by the server that it asks.
        let before = before.filter(|(of, _)| *of == pid).map_or(0, |(_, version)| *version);
        let found = (before..versions.len()).find(|version| fits(&versions[*version]));
        let Some(found) = found else {
            return Err(match versions[..before].iter().any(fits) {
                true => format!("goes back to rules that network {vni} had before: {chains:?}"),
                false => format!("loads rules that network {vni} never had: {chains:?}"),
            });
        };
        self.networks.loaded.insert((host, vni), (pid, found));
        Ok(())
    }

    /// The links of a host have changed, or what is plugged into them.
    pub fn links_changed(&mut self, host: usize) {
        if self.run.nature.networks == 0 || !self.hosts[host].booted {
            return;
        }
        let links = self.links(host);
        let wrong = self.unfiltered(host, &links).or_else(|| self.unplugged(host, &links));
        if let Some(what) = wrong {
            let what = format!("{}: {what}", self.hosts[host].name);
            self.truth.violate(&self.run, "ports", what);
        }
    }

    /// A managed network with a port that no rules are about.
    fn unfiltered(&self, host: usize, links: &Links) -> Option<String> {
        if self.networks.flushed.contains(&host) {
            return None;
        }
        let loaded = self.loaded(host);
        let masters: BTreeSet<&str> =
            links.values().filter_map(|link| link.master.as_deref()).collect();
        let mut managed = self.networks.recorded.keys().map(|vni| vni.bridge());
        let open = managed.find(|bridge| {
            let is_judged = loaded.guests.contains(bridge) || loaded.closed.contains(bridge);
            masters.contains(bridge.as_str()) && !is_judged
        });
        open.map(|bridge| format!("`{bridge}` has a port, and its packets are not filtered"))
    }

    /// A guest whose port is not in its bridge.
    fn unplugged(&self, host: usize, links: &Links) -> Option<String> {
        self.hypervisors[host].guests.values().find_map(|guest| {
            let mut bridges = guest.bridges.iter().enumerate();
            let (_, bridge) = bridges.find(|(place, bridge)| {
                let port = links.get(&port(guest.client, *place));
                port.is_none_or(|port| port.master.as_ref() != Some(*bridge))
            })?;
            Some(format!("the port of guest {} is not in `{bridge}`", guest.name))
        })
    }

    /// Looks whether every host whose daemon has been well for a while has what is recorded.
    pub fn look_at_networks(&mut self) {
        if self.run.nature.networks == 0 || self.run.now < self.networks.next_look {
            return;
        }
        self.networks.next_look = self.run.now + BETWEEN_LOOKS;
        let long_ago = self.run.now.saturating_sub(LATE);
        for host in 0..self.hosts.len() {
            for bridge in self.used_bridges(host) {
                self.networks.used.insert((host, bridge), self.run.now);
            }
            let daemon = self.hosts[host].daemon.as_ref().map(|own| own.pid);
            let client = daemon.and_then(|pid| self.processes[pid].client);
            if client.is_some_and(|client| self.zookeeper.lag_of(client) > LAGS) {
                self.networks.excuse(host, self.run.now + LATE);
            }
            let well = self.judge(|truth, sight| truth.well_since(sight, host));
            let is_excused = self.networks.excused.get(&host).is_some_and(|it| *it > self.run.now);
            if is_excused || well.is_none_or(|well| well > long_ago) {
                continue;
            }
            let late = self.lags_behind(host, long_ago);
            if let Some(what) = late {
                let (name, seconds) = (&self.hosts[host].name, LATE.as_secs());
                let what = format!("{name}, which has been well for {seconds} s: {what}");
                self.truth.violate(&self.run, "networks", what);
            }
        }
    }

    /// The bridges of a host that guests are plugged into.
    fn used_bridges(&self, host: usize) -> BTreeSet<String> {
        let links = self.links(host).into_values();
        links.filter(|link| link.name.starts_with("vnet")).filter_map(|link| link.master).collect()
    }

    /// The first difference between what the host has of managed networks and what is recorded, of
    /// that which has been so since `long_ago`.
    fn lags_behind(&self, host: usize, long_ago: Duration) -> Option<String> {
        let (links, loaded) = (self.links(host), self.loaded(host));
        let used = self.used_bridges(host);
        self.networks.recorded.iter().find_map(|(vni, versions)| {
            let last = versions.last().filter(|last| last.since <= long_ago)?;
            match &last.rules {
                Some(rules) => {
                    let found = loaded.of(*vni);
                    let is_so = found.as_ref().is_some_and(|[incoming, outgoing]| {
                        incoming.is_of(&rules.incoming) && outgoing.is_of(&rules.outgoing)
                    });
                    let refused = self.hosts[host].refused_rule.as_ref();
                    let all = rules.incoming.iter().chain(&rules.outgoing);
                    let is_excused = refused.is_some_and(|text| {
                        all.into_iter().any(|rule| rule.contains(text.as_str()))
                    });
                    if !is_so && !is_excused {
                        return Some(format!(
                            "rules of network {vni} are {found:?}, not {rules:?}"
                        ));
                    }
                    (!stands(&links, *vni)).then(|| format!("network {vni} does not stand"))
                }
                None => {
                    let bridge = vni.bridge();
                    let used_at = self.networks.used.get(&(host, bridge.clone()));
                    let is_used =
                        used.contains(&bridge) || used_at.is_some_and(|at| *at > long_ago);
                    (links.contains_key(&bridge) && !is_used)
                        .then(|| format!("network {vni} was removed, and `{bridge}` is there"))
                }
            }
        })
    }
}

/// Whether the managed network has its bridge and the end of its tunnels.
fn stands(links: &Links, vni: Vni) -> bool {
    let is_up = |link: &&Link| link.up;
    let bridge = links.get(&vni.bridge()).filter(is_up);
    let tunnel = links.get(&format!("vxlan{vni}")).filter(is_up);
    bridge.is_some() && tunnel.is_some_and(|link| link.master == Some(vni.bridge()))
}

// --- When all is well ----------------------------------------------------------------------------

impl State {
    /// Lists what is not as it should be about networks once all is well; `without` a host that
    /// nobody expects anything of.
    pub fn network_troubles(&self, view: &View, without: Option<usize>) -> Vec<String> {
        if self.run.nature.networks == 0 {
            return Vec::new();
        }
        let hosts: Vec<usize> =
            (0..self.hosts.len()).filter(|host| Some(*host) != without).collect();
        let mut troubles = Vec::new();
        for host in hosts.iter().copied() {
            let name = &self.hosts[host].name;
            let links = self.links(host);
            let behind = self.lags_behind(host, self.run.now);
            let unplugged = self.unplugged(host, &links);
            troubles.extend(behind.or(unplugged).map(|what| format!("{name}: {what}")));
        }
        for network in GuestNetworks::of(view).networks {
            let unserved = self.unserved(view, &network, &hosts);
            troubles.extend(unserved.map(|what| format!("network {}: {what}", network.vni)));
        }
        troubles.extend(self.left_servers(view, &hosts));
        let waiting = view
            .unconfirmed
            .keys()
            .map(|vni| format!("a change of network {vni} is neither confirmed nor taken back"));
        troubles.extend(waiting);
        troubles
    }

    /// Finds what is wrong about the gateway of a network and its DHCP server.
    fn unserved(&self, view: &View, network: &GuestNetwork, hosts: &[usize]) -> Option<String> {
        let record = view.networks.get(&network.vni.to_string())?;
        let primary = view.config.primary.as_ref()?;
        let primary = self.hosts.named(primary.as_str())?;
        for gateway in network.gateways() {
            let place = (network.vni.bridge(), gateway);
            let has = |host: &&usize| self.hosts[**host].gateways.contains(&place);
            let holders: Vec<&str> =
                hosts.iter().filter(has).map(|host| self.hosts[*host].name.as_str()).collect();
            if holders != [self.hosts[primary].name.as_str()] {
                return Some(format!("its gateway {gateway} is on {holders:?}"));
            }
        }
        if network.gateways().is_empty() {
            return None;
        }
        self.wrong_server(primary, network.vni, record)
    }

    /// Whether the managed network has its bridge and its tunnels on a host.
    pub fn network_stands(&self, host: usize, vni: u32) -> bool {
        Vni::new(vni).is_some_and(|vni| stands(&self.links(host), vni))
    }

    /// The rules that a host has loaded for a network, if they are not those that are recorded.
    pub fn rules_differ(&self, view: &View, host: usize, vni: u32) -> Option<String> {
        let Some(record) = view.networks.get(&vni.to_string()) else {
            return Some("there is no such network".to_owned());
        };
        let (vni, rules) = (Vni::new(vni)?, Rules::of(record));
        let wanted = [Chain(rules.incoming), Chain(rules.outgoing)];
        let found = self.loaded(host).of(vni);
        (found.as_ref() != Some(&wanted)).then(|| {
            let (name, none) = (&self.hosts[host].name, "none");
            let found = found.map_or_else(|| none.to_owned(), |found| format!("{found:?}"));
            format!("{name} has {found}, not {wanted:?}")
        })
    }

    /// The hosts that have an address of the primary in the network.
    pub fn gateway_holders(&self, vni: u32) -> Vec<usize> {
        let bridge = format!("vmbr{vni}");
        let has = |host: &usize| self.hosts[*host].gateways.iter().any(|(of, _)| *of == bridge);
        (0..self.hosts.len()).filter(has).collect()
    }

    /// The reason for which nobody answers DHCP in the network as it is recorded.
    pub fn dhcp_is_silent(&self, view: &View, vni: u32) -> Option<String> {
        let networks = GuestNetworks::of(view).networks;
        let Some(network) = networks.iter().find(|network| network.vni.get() == vni) else {
            return Some("there is no such network".to_owned());
        };
        if view.config.primary.is_none() {
            return Some("nobody is primary".to_owned());
        }
        let hosts: Vec<usize> = (0..self.hosts.len()).collect();
        self.unserved(view, network, &hosts)
    }

    /// Finds what is wrong about the DHCP server of a network on the host that is to run it.
    fn wrong_server(&self, host: usize, vni: Vni, record: &NetworkRecord) -> Option<String> {
        let name = server_name(vni);
        let running = self.hosts[host].programs.running();
        let servers: Vec<&Program> = running.iter().filter(|it| it.name == name).collect();
        let [server] = servers[..] else {
            let (count, host) = (servers.len(), &self.hosts[host].name);
            return Some(format!("{host} runs {count} DHCP servers for it"));
        };
        let range = format!("--dhcp-range={},{},", record.dhcp4_start, record.dhcp4_end);
        let gives = server.args.iter().any(|arg| arg.starts_with(&range));
        let wanted = record.dhcp4_flag == "True" || record.dhcp4_flag == "true";
        if gives != wanted {
            return Some(format!("that its server gives addresses is {gives}"));
        }
        let served = self.networks.served.get(&(host, name)).map_or("", String::as_str);
        let reserved = record.leases.iter().filter(|lease| lease.expiry.is_none());
        let lines: BTreeSet<String> =
            reserved.map(|lease| format!("dhcp-host={},{}", lease.mac, lease.address)).collect();
        let read: BTreeSet<String> = served
            .lines()
            .map(|line| line.splitn(3, ',').take(2).collect::<Vec<_>>().join(","))
            .collect();
        (read != lines).then(|| format!("its server has reserved {read:?}, not {lines:?}"))
    }

    /// DHCP servers that run where they should not, or for networks that are no more.
    fn left_servers(&self, view: &View, hosts: &[usize]) -> Option<String> {
        let primary = view.config.primary.as_ref().map(|primary| primary.as_str());
        hosts.iter().find_map(|host| {
            let known = &self.hosts[*host];
            let is_wanted = |program: &Program| {
                let vni = program.name.strip_prefix("dnsmasq-").unwrap_or_default();
                primary == Some(known.name.as_str()) && view.networks.contains_key(vni)
            };
            let running = known.programs.running();
            let left = running.iter().find(|program| !is_wanted(program))?;
            Some(format!("{} runs {}", known.name, left.name))
        })
    }

    /// Finds what operators were told of networks and is not so.
    pub fn wrong_about_networks(&self, view: &View) -> Option<String> {
        let words = &self.networks.words;
        // A removal of which nobody has heard the end may have come at any time.
        let is_known = |thing: &Thing| !words.is_open(&Thing::Network(thing.vni()));
        words.settled().filter(|(thing, _)| is_known(thing)).find_map(|(thing, wanted)| {
            let record = view.networks.get(&thing.vni().to_string());
            let is_so = match thing {
                Thing::Network(_) => record.is_some(),
                Thing::Rule(_, rule) => record?.acls.iter().any(|acl| acl.rule == *rule),
                Thing::Reservation(_, vm) => {
                    let is_own = |mac_of: &str| mac_of == mac(*vm);
                    let mut leases = record?.leases.iter();
                    leases.any(|lease| lease.expiry.is_none() && is_own(&lease.mac))
                }
            };
            (is_so != wanted).then(|| {
                format!("somebody was told that {thing:?} is there: {wanted}, and that is {is_so}")
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pvc_model::guest_network::rules::{Known, network_filter};
    use pvc_model::network::AclRecord;
    use pvc_ports::{Firewall as _, Network as _};

    use crate::firewall::HostFirewall;
    use crate::network::HostNetwork;
    use crate::process::Gate;
    use crate::state::World;

    use super::*;

    /// A host with the bridge of network 1001 and a guest's port in it, and who judges it.
    struct Scene {
        world: World,
        gate: Gate,
    }

    impl Scene {
        fn new() -> Scene {
            let (world, mut gates) = World::of_hosts(1);
            world.with(|state| state.run.nature.networks = 1);
            Scene { world, gate: gates.remove(0) }
        }

        /// The network is recorded with these rules from now on.
        fn record(&self, rules: &[&str]) {
            let record = &view(rules).networks["1001"];
            let rules = BTreeMap::from([(Vni::new(1001).unwrap(), Rules::of(record))]);
            self.world.with(|state| state.networks.look(rules, state.run.now));
        }

        /// A daemon loads the firewall that it would load for these rules.
        async fn load(&self, rules: &[&str]) {
            let (closed, nodes, last) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
            let refused = &|_: &[String]| None;
            let known = Known { closed: &closed, nodes: &nodes, last: &last, refused };
            let (filter, _) = network_filter(&view(rules), &known);
            let inner = self.world.with(|state| state.hosts[0].firewall.clone());
            let firewall = HostFirewall { gate: self.gate.clone(), host: 0, inner };
            firewall.apply(&table(), Some(&filter.rules())).await.unwrap();
        }

        /// A daemon makes the bridge, in which something is plugged.
        async fn make_bridge(&self) {
            let inner = self.world.with(|state| state.hosts[0].network.clone());
            inner.plug_in("vxlan1001", "vmbr1001");
            let network = HostNetwork { gate: self.gate.clone(), host: 0, inner };
            network.create_bridge("vmbr1001").await.unwrap();
        }

        fn found(&self) -> Option<String> {
            let violation = self.world.with(|state| state.truth.violation.clone());
            violation.map(|violation| violation.what)
        }
    }

    fn view(rules: &[&str]) -> View {
        let acl = |(order, rule): (u32, &&str)| AclRecord {
            direction: Direction::In,
            order,
            description: rule_name(rule),
            rule: (*rule).to_owned(),
        };
        let acls = (0..).zip(rules).map(acl).collect();
        let record = NetworkRecord { acls, ..first_record(1001) };
        let mut view = View::default();
        view.networks.insert("1001".to_owned(), Arc::new(record));
        view
    }

    #[tokio::test(start_paused = true)]
    async fn a_port_in_a_network_without_rules_is_found() {
        let scene = Scene::new();
        scene.record(&[]);
        scene.make_bridge().await;
        assert!(scene.found().unwrap().contains("not filtered"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_host_that_does_as_is_recorded_is_let_be() {
        let scene = Scene::new();
        scene.record(&["tcp dport 22 accept"]);
        scene.load(&["tcp dport 22 accept"]).await;
        scene.make_bridge().await;
        scene.world.with(|state| state.flush_firewall(0));
        scene.world.with(|state| state.links_changed(0));
        scene.record(&["tcp dport 22 accept", "udp dport 53 accept"]);
        scene.load(&["tcp dport 22 accept", "drop"]).await;
        scene.load(&["tcp dport 22 accept", "udp dport 53 accept"]).await;
        assert_eq!(scene.found(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn rules_that_were_never_recorded_are_found() {
        let scene = Scene::new();
        scene.record(&["tcp dport 22 accept", "drop"]);
        scene.load(&["drop", "tcp dport 22 accept"]).await;
        assert!(scene.found().unwrap().contains("never had"));
    }

    /// Writes `data` at each of these keys, as a client of ZooKeeper does, and judges nothing.
    fn write(world: &World, tree: &mut TreeState, keys: &[(&str, &str)]) {
        let session = tree.open_session();
        let create = |(path, data): &(&str, &str)| Op::Create {
            path: (*path).to_owned(),
            data: (*data).to_owned().into(),
            mode: pvc_ports::CreateMode::Persistent,
        };
        let work = Work::Multi { session, ops: keys.iter().map(create).collect() };
        assert!(Recorded::is_changed_by(&work));
        let mut draft = tree.draft();
        draft.apply(&work).unwrap();
        let change = draft.finish();
        tree.publish(change);
        let recorded = Recorded::of(tree, Duration::ZERO);
        world.with(|state| state.networks.look(recorded.rules, recorded.at));
    }

    /// A rule that is tried may be gone again before anybody has looked.
    #[tokio::test(start_paused = true)]
    async fn what_is_recorded_is_read_from_the_tree_itself() {
        let (scene, mut tree) = (Scene::new(), TreeState::new(1));
        write(&scene.world, &mut tree, &[("/networks", ""), ("/networks/x", "no number")]);
        write(
            &scene.world,
            &mut tree,
            &[
                ("/networks/1001", "net1001"),
                ("/networks/1001/nettype", "managed"),
                ("/networks/1001/firewall_rules", ""),
                ("/networks/1001/firewall_rules/in", ""),
                ("/networks/1001/firewall_rules/in/a", ""),
                ("/networks/1001/firewall_rules/in/a/order", "10"),
                ("/networks/1001/firewall_rules/in/a/rule", "drop"),
                ("/networks/1001/firewall_rules/in/b", ""),
                ("/networks/1001/firewall_rules/in/b/order", "2"),
                ("/networks/1001/firewall_rules/in/b/rule", "tcp dport 22 accept"),
            ],
        );
        scene.load(&["tcp dport 22 accept", "drop"]).await;
        assert_eq!(scene.found(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn rules_of_before_are_found() {
        let scene = Scene::new();
        for rules in [&["tcp dport 22 accept"], &["udp dport 53 accept"]] {
            scene.record(rules);
            scene.load(rules).await;
        }
        assert_eq!(scene.found(), None);
        scene.load(&["tcp dport 22 accept"]).await;
        assert!(scene.found().unwrap().contains("goes back"));
    }
}
