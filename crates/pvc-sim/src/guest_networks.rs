//! Networks of VMs: what operators ask of them, and whether the hosts have what the records say,
//! no more and no less.
//!
//! The hosts are judged by their links, the tables of their packet filters and the programs that
//! run there: a managed network with a port passes no packet unfiltered; the rules that are loaded
//! for it were recorded so at some time, and never go back; what is recorded stands within
//! [`LATE`] on every host whose daemon is well; and the port of each guest is in its bridge. Who
//! answers DHCP is judged when all is well.

mod addresses;
mod ask;
mod loaded;
mod recorded;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use pvc_model::cluster::Cluster as View;
use pvc_model::domain::{Nic, NicKind};
use pvc_model::guest_network::rules::table;
use pvc_model::guest_network::{GuestNetwork, GuestNetworks, Vni};
use pvc_model::link::{Link, Links};
use pvc_model::network::NetworkRecord;
use pvc_ports::Program;

pub(crate) use self::addresses::{
    dhcp_range, first_record, host_of, ip4_network, mac, port, reserved_address, rule_direction,
    rule_name,
};
pub use self::ask::NetworkAsk;
use self::ask::NetworkPart;
use self::loaded::{Chain, Loaded};
pub(crate) use self::recorded::Recorded;
use self::recorded::{Rules, Version};
use crate::cluster::Shape;
use crate::guests::Hypervisors;
use crate::host::{Host, Hosts};
use crate::operators::Answer;
use crate::process::Pid;
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
    words: WordsGiven<NetworkPart>,
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
        self.words.asked(ask.goals().into_iter().map(|(part, _)| part));
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
                .leave_open(|part| part.vni() == vni && !matches!(part, NetworkPart::Network(_))),
            NetworkAsk::TryRule { rule, .. } => {
                let tried = NetworkPart::Rule(vni, rule.clone());
                self.words.leave_open(|part| *part == tried);
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

/// Links, packet filters and programs of the hosts, and the guests that are plugged in there.
#[derive(Clone, Copy)]
pub(crate) struct HostNets<'a> {
    pub hosts: &'a Hosts,
    pub hypervisors: &'a Hypervisors,
}

impl HostNets<'_> {
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

    /// The bridges of a host that guests are plugged into.
    fn used_bridges(&self, host: usize) -> BTreeSet<String> {
        let links = self.links(host).into_values();
        links.filter(|link| link.name.starts_with("vnet")).filter_map(|link| link.master).collect()
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

    /// Whether the managed network has its bridge and its tunnels on a host.
    pub fn network_stands(&self, host: usize, vni: u32) -> bool {
        Vni::new(vni).is_some_and(|vni| stands(&self.links(host), vni))
    }

    /// The hosts that have an address of the primary in the network.
    pub fn gateway_holders(&self, vni: u32) -> Vec<usize> {
        let bridge = format!("vmbr{vni}");
        let has = |host: &usize| self.hosts[*host].gateways.iter().any(|(of, _)| *of == bridge);
        (0..self.hosts.len()).filter(has).collect()
    }
}

/// Whether the managed network has its bridge and the end of its tunnels.
fn stands(links: &Links, vni: Vni) -> bool {
    let is_up = |link: &&Link| link.up;
    let bridge = links.get(&vni.bridge()).filter(is_up);
    let tunnel = links.get(&format!("vxlan{vni}")).filter(is_up);
    bridge.is_some() && tunnel.is_some_and(|link| link.master == Some(vni.bridge()))
}

// --- What happens to them, and what they do ------------------------------------------------------

impl NetworkTruth {
    /// Somebody empties the packet filter of the host.
    pub fn flush_firewall(&mut self, hosts: &Hosts, host: usize, now: Duration) {
        hosts[host].firewall.flush();
        self.flushed.insert(host);
        self.excuse(host, now + LATE);
    }

    /// The end of the tunnels of a network is deleted on the host.
    pub fn lose_tunnel(&mut self, hosts: &Hosts, host: usize, vni: u32, now: Duration) {
        hosts[host].network.pull_out(&format!("vxlan{vni}"));
        self.excuse(host, now + LATE);
    }

    /// The kernel of the host refuses every rule with these words, and takes all others, also those
    /// that it has refused.
    pub fn refuse_rules(&mut self, hosts: &mut Hosts, host: usize, text: &str, now: Duration) {
        self.take_rules(hosts, host, now);
        refuse_rules(&mut hosts[host], Some(text.to_owned()));
    }

    /// The kernel of the host takes every rule, also those that it has refused.
    pub fn take_rules(&mut self, hosts: &mut Hosts, host: usize, now: Duration) {
        if hosts[host].refused_rule.is_some() {
            refuse_rules(&mut hosts[host], None);
            self.excuse(host, now + TAKEN_AGAIN);
        }
    }

    /// A program has been started on the host: what a DHCP server reads, it reads now.
    pub fn program_started(&mut self, hosts: &Hosts, host: usize, program: &Program) {
        let file = program.args.iter().find_map(|arg| arg.strip_prefix("--conf-file="));
        let Some(file) = file else { return };
        let contents = hosts[host].files.contents(Path::new(file)).unwrap_or_default();
        let reservations = String::from_utf8_lossy(&contents).into_owned();
        self.served.insert((host, program.name.clone()), reservations);
    }

    /// Takes notice of versions of networks that were recorded.
    pub fn look_at_recorded(&mut self, recorded: impl IntoIterator<Item = Recorded>) {
        for Recorded { at, rules } in recorded {
            self.look(rules, at);
        }
    }

    /// The program `pid` of a host has loaded the table of networks, or removed it. Returns what is
    /// wrong about that.
    pub fn firewall_loaded(&mut self, nets: HostNets<'_>, host: usize, pid: Pid) -> Vec<String> {
        self.flushed.remove(&host);
        let loaded = nets.loaded(host);
        let managed: Vec<Vni> = self.recorded.keys().copied().collect();
        let wrong = managed.into_iter().filter_map(|vni| {
            let what = self.version_loaded(host, pid, vni, &loaded.of(vni)?).err()?;
            Some(format!("{} {what}", nets.hosts[host].name))
        });
        wrong.collect()
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
        let versions = &self.recorded[&vni];
        let fits = |version: &Version| {
            let [incoming, outgoing] = chains;
            version.rules.as_ref().is_some_and(|rules| {
                incoming.is_of(&rules.incoming) && outgoing.is_of(&rules.outgoing)
            })
        };
        let before = self.loaded.get(&(host, vni));
        // One that has just begun may be told something older by the server that it asks.
        let before = before.filter(|(of, _)| *of == pid).map_or(0, |(_, version)| *version);
        let found = (before..versions.len()).find(|version| fits(&versions[*version]));
        let Some(found) = found else {
            return Err(match versions[..before].iter().any(fits) {
                true => format!("goes back to rules that network {vni} had before: {chains:?}"),
                false => format!("loads rules that network {vni} never had: {chains:?}"),
            });
        };
        self.loaded.insert((host, vni), (pid, found));
        Ok(())
    }

    /// Finds what is wrong about the ports of a host, whose links have changed, or what is plugged
    /// into them.
    pub fn wrong_ports(&self, nets: HostNets<'_>, host: usize) -> Option<String> {
        let links = nets.links(host);
        let wrong = self.unfiltered(nets, host, &links).or_else(|| nets.unplugged(host, &links));
        wrong.map(|what| format!("{}: {what}", nets.hosts[host].name))
    }

    /// A managed network with a port that no rules are about.
    fn unfiltered(&self, nets: HostNets<'_>, host: usize, links: &Links) -> Option<String> {
        if self.flushed.contains(&host) {
            return None;
        }
        let loaded = nets.loaded(host);
        let masters: BTreeSet<&str> =
            links.values().filter_map(|link| link.master.as_deref()).collect();
        let mut managed = self.recorded.keys().map(|vni| vni.bridge());
        let open = managed.find(|bridge| {
            let is_judged = loaded.guests.contains(bridge) || loaded.closed.contains(bridge);
            masters.contains(bridge.as_str()) && !is_judged
        });
        open.map(|bridge| format!("`{bridge}` has a port, and its packets are not filtered"))
    }

    /// Whether the hosts are to be looked at again; then not before a while has passed.
    pub fn is_due(&mut self, now: Duration) -> bool {
        let is_due = now >= self.next_look;
        if is_due {
            self.next_look = now + BETWEEN_LOOKS;
        }
        is_due
    }

    /// Takes notice of the bridges of a host that guests are plugged into, and of the lag of its
    /// daemon's ZooKeeper server.
    pub fn look_at_host(
        &mut self,
        nets: HostNets<'_>,
        host: usize,
        lag: Option<Duration>,
        now: Duration,
    ) {
        for bridge in nets.used_bridges(host) {
            self.used.insert((host, bridge), now);
        }
        if lag.is_some_and(|lag| lag > LAGS) {
            self.excuse(host, now + LATE);
        }
    }

    /// Finds what a host lacks whose daemon has been well since `well`, and for long enough.
    pub fn late(
        &self,
        nets: HostNets<'_>,
        host: usize,
        well: Option<Duration>,
        now: Duration,
    ) -> Option<String> {
        let long_ago = now.saturating_sub(LATE);
        let is_excused = self.excused.get(&host).is_some_and(|until| *until > now);
        if is_excused || well.is_none_or(|well| well > long_ago) {
            return None;
        }
        let what = self.lags_behind(nets, host, long_ago)?;
        let (name, seconds) = (&nets.hosts[host].name, LATE.as_secs());
        Some(format!("{name}, which has been well for {seconds} s: {what}"))
    }

    /// The first difference between what the host has of managed networks and what is recorded, of
    /// that which has been so since `long_ago`.
    fn lags_behind(&self, nets: HostNets<'_>, host: usize, long_ago: Duration) -> Option<String> {
        let (links, loaded) = (nets.links(host), nets.loaded(host));
        let used = nets.used_bridges(host);
        self.recorded.iter().find_map(|(vni, versions)| {
            let last = versions.last().filter(|last| last.since <= long_ago)?;
            match &last.rules {
                Some(rules) => {
                    let found = loaded.of(*vni);
                    let is_so = found.as_ref().is_some_and(|[incoming, outgoing]| {
                        incoming.is_of(&rules.incoming) && outgoing.is_of(&rules.outgoing)
                    });
                    let refused = nets.hosts[host].refused_rule.as_ref();
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
                    let used_at = self.used.get(&(host, bridge.clone()));
                    let is_used =
                        used.contains(&bridge) || used_at.is_some_and(|at| *at > long_ago);
                    (links.contains_key(&bridge) && !is_used)
                        .then(|| format!("network {vni} was removed, and `{bridge}` is there"))
                }
            }
        })
    }
}

// --- When all is well ----------------------------------------------------------------------------

/// Records and hosts, when all is well.
pub(crate) struct NetworkEnds<'a> {
    pub view: &'a View,
    pub nets: HostNets<'a>,
    pub truth: &'a NetworkTruth,
    /// Whether the daemons have anything to do with networks of VMs.
    pub are_played: bool,
    pub now: Duration,
}

impl NetworkEnds<'_> {
    /// Lists what is not as it should be; `without` a host that nobody expects anything of, nor of
    /// those that are broken.
    pub fn troubles(&self, without: Option<usize>) -> Vec<String> {
        if !self.are_played {
            return Vec::new();
        }
        let (view, nets) = (self.view, self.nets);
        let all = 0..nets.hosts.len();
        let is_meant = |host: &usize| Some(*host) != without && !nets.hosts[*host].build.is_broken;
        let hosts: Vec<usize> = all.filter(is_meant).collect();
        let mut troubles = Vec::new();
        for host in hosts.iter().copied() {
            let name = &nets.hosts[host].name;
            let behind = self.truth.lags_behind(nets, host, self.now);
            let unplugged = nets.unplugged(host, &nets.links(host));
            troubles.extend(behind.or(unplugged).map(|what| format!("{name}: {what}")));
        }
        for network in GuestNetworks::of(view).networks {
            let unserved = self.unserved(&network, &hosts);
            troubles.extend(unserved.map(|what| format!("network {}: {what}", network.vni)));
        }
        troubles.extend(self.left_servers(&hosts));
        let waiting = view
            .unconfirmed
            .keys()
            .map(|vni| format!("a change of network {vni} is neither confirmed nor taken back"));
        troubles.extend(waiting);
        troubles
    }

    /// Finds what is wrong about the gateway of a network and its DHCP server.
    fn unserved(&self, network: &GuestNetwork, hosts: &[usize]) -> Option<String> {
        let (view, known) = (self.view, self.nets.hosts);
        let record = view.networks.get(&network.vni.to_string())?;
        let primary = view.config.primary.as_ref()?;
        let primary = known.named(primary.as_str())?;
        for gateway in network.gateways() {
            let place = (network.vni.bridge(), gateway);
            let has = |host: &&usize| known[**host].gateways.contains(&place);
            let holders: Vec<&str> =
                hosts.iter().filter(has).map(|host| known[*host].name.as_str()).collect();
            if holders != [known[primary].name.as_str()] {
                return Some(format!("its gateway {gateway} is on {holders:?}"));
            }
        }
        if network.gateways().is_empty() {
            return None;
        }
        self.wrong_server(primary, network.vni, record)
    }

    /// The rules that a host has loaded for a network, if they are not those that are recorded.
    pub fn rules_differ(&self, host: usize, vni: u32) -> Option<String> {
        let Some(record) = self.view.networks.get(&vni.to_string()) else {
            return Some("there is no such network".to_owned());
        };
        let (vni, rules) = (Vni::new(vni)?, Rules::of(record));
        let wanted = [Chain(rules.incoming), Chain(rules.outgoing)];
        let found = self.nets.loaded(host).of(vni);
        (found.as_ref() != Some(&wanted)).then(|| {
            let (name, none) = (&self.nets.hosts[host].name, "none");
            let found = found.map_or_else(|| none.to_owned(), |found| format!("{found:?}"));
            format!("{name} has {found}, not {wanted:?}")
        })
    }

    /// The reason for which nobody answers DHCP in the network as it is recorded.
    pub fn dhcp_is_silent(&self, vni: u32) -> Option<String> {
        let networks = GuestNetworks::of(self.view).networks;
        let Some(network) = networks.iter().find(|network| network.vni.get() == vni) else {
            return Some("there is no such network".to_owned());
        };
        if self.view.config.primary.is_none() {
            return Some("nobody is primary".to_owned());
        }
        let hosts: Vec<usize> = (0..self.nets.hosts.len()).collect();
        self.unserved(network, &hosts)
    }

    /// Finds what is wrong about the DHCP server of a network on the host that is to run it.
    fn wrong_server(&self, host: usize, vni: Vni, record: &NetworkRecord) -> Option<String> {
        let name = server_name(vni);
        let running = self.nets.hosts[host].programs.running();
        let servers: Vec<&Program> = running.iter().filter(|it| it.name == name).collect();
        let [server] = servers[..] else {
            let (count, host) = (servers.len(), &self.nets.hosts[host].name);
            return Some(format!("{host} runs {count} DHCP servers for it"));
        };
        // A large range is given in two parts, of which the first is for the cards of VMs alone.
        let ranges = server.args.iter().filter_map(|arg| arg.strip_prefix("--dhcp-range="));
        let mut ranges = ranges.map(|range| range.strip_prefix("tag:known,").unwrap_or(range));
        let first = format!("{},", record.dhcp4_start);
        let last = format!(",{},", record.dhcp4_end);
        let gives = ranges.clone().any(|range| range.starts_with(&first))
            && ranges.any(|range| range.contains(&last));
        let wanted = record.dhcp4_flag == "True" || record.dhcp4_flag == "true";
        if gives != wanted {
            return Some(format!("that its server gives addresses is {gives}"));
        }
        let served = self.truth.served.get(&(host, name)).map_or("", String::as_str);
        let reserved = record.leases.iter().filter(|lease| lease.expiry.is_none());
        let lines: BTreeSet<String> =
            reserved.map(|lease| format!("dhcp-host={},{}", lease.mac, lease.address)).collect();
        // What has no address is a card that the server knows.
        let read: BTreeSet<String> = served
            .lines()
            .filter(|line| line.starts_with("dhcp-host=") && line.contains(','))
            .map(|line| line.splitn(3, ',').take(2).collect::<Vec<_>>().join(","))
            .collect();
        (read != lines).then(|| format!("its server has reserved {read:?}, not {lines:?}"))
    }

    /// DHCP servers that run where they should not, or for networks that are no more.
    fn left_servers(&self, hosts: &[usize]) -> Option<String> {
        let view = self.view;
        let primary = view.config.primary.as_ref().map(|primary| primary.as_str());
        hosts.iter().find_map(|host| {
            let known = &self.nets.hosts[*host];
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
    pub fn wrong_words(&self) -> Option<String> {
        let words = &self.truth.words;
        // A removal of which nobody has heard the end may have come at any time.
        let is_known = |part: &NetworkPart| !words.is_open(&NetworkPart::Network(part.vni()));
        words.settled().filter(|(part, _)| is_known(part)).find_map(|(part, wanted)| {
            let record = self.view.networks.get(&part.vni().to_string());
            let is_so = match part {
                NetworkPart::Network(_) => record.is_some(),
                NetworkPart::Rule(_, rule) => record?.acls.iter().any(|acl| acl.rule == *rule),
                NetworkPart::Reservation(_, vm) => {
                    let is_own = |mac_of: &str| mac_of == mac(*vm);
                    let mut leases = record?.leases.iter();
                    leases.any(|lease| lease.expiry.is_none() && is_own(&lease.mac))
                }
            };
            (is_so != wanted).then(|| {
                format!(
                    "somebody was answered that {part:?} is there: {wanted}, and that is {is_so}"
                )
            })
        })
    }
}

#[cfg(test)]
mod tests;
