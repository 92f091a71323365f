//! The firewall of networks of VMs: the words for nft, and which rules of operators they take in.
//!
//! ```text
//!  input        from a guest to this node: the services of its network, and nothing else; tunnels
//!               of networks from nodes alone
//!  spoofed      from a guest to elsewhere: not as a node, with a guard as nobody else, and nothing
//!               into the nodes' tunnels
//!  forward-in   to an address of a network: its rules `in`
//!  forward-out  from an address of a network: its rules `out`
//!  leave-masked from a network that asks for it, to outside of the cluster
//! ```
//!
//! Each is a chain of its own at its hook, so that an `accept` of one network's rules ends nothing
//! but its own chain: those of the other network that a packet touches, and tables of others, judge
//! it as well. Nothing here needs connection tracking, which would burden Ceph's traffic too; an
//! operator's rule and masquerade may.

pub mod old;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use ipnet::{Ipv4Net, Ipv6Net};

use crate::cluster::Cluster;
use crate::fault::fault_id;
use crate::firewall::{BadRules, TableFamily, TableName, check_rules};
use crate::guest_network::plan::{VXLAN_PORT, is_marked};
use crate::guest_network::{GuestNetwork, GuestNetworkKind, GuestNetworks, Vni};
use crate::host_filter::link_names;
use crate::link::{IpNet, LinkKind, Links};
use crate::network::{AclRecord, Direction, NetworkRecord};
use crate::{NodeName, shown};

pub(super) use words::Tokens;
use words::{Places, own_meters};

/// The table that is the firewall.
pub fn table() -> TableName {
    TableName::new(TableFamily::Inet, "pvc-networks").expect("the name is one of ours")
}

/// The table in which rules are tried. It lets everything pass.
pub fn probe_table() -> TableName {
    TableName::new(TableFamily::Inet, "pvc-probe").expect("the name is one of ours")
}

/// The most bytes that one rule may have.
pub const MOST_RULE_BYTES: usize = 16 << 10;

/// The most bytes of rules that all networks have together; see [`shares`].
pub(super) const MOST_ACL_BYTES: usize = 2 << 20;

/// Depth to which braces may stand in each other: nft needs two, for sets in meters.
const MOST_DEPTH: usize = 4;

/// Reason why a rule is not taken, whatever nft would say to it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadRule {
    #[error("it has more than {} KiB", MOST_RULE_BYTES >> 10)]
    TooLong,
    #[error("it is more than one rule: there is a `;`, or a line that ends")]
    SeveralRules,
    #[error("its braces do not close, or stand too deep in each other")]
    Braces,
    #[error("it goes to another chain by `{0}`, and this firewall has no chains of others")]
    Jumps(String),
    #[error("it names the set `@{0}`, and this firewall has no sets of others")]
    NamesSet(String),
    #[error(
        "`{0}` looks like the name of a host, which each node would look up: write its address"
    )]
    NamesHost(String),
    #[error("it is not one that stays in its place")]
    Leaves(#[source] BadRules),
}

/// Finds out whether a rule can be put into a chain and be one rule there, and stay in it. What is
/// left is up to nft. Returns it without spaces around it and the comment behind it.
///
/// # Errors
/// What speaks against it.
pub fn check_rule(rule: &str) -> Result<&str, BadRule> {
    let rule = rule.trim();
    if rule.len() > MOST_RULE_BYTES {
        return Err(BadRule::TooLong);
    }
    if rule.contains(['\n', '\r']) {
        return Err(BadRule::SeveralRules);
    }
    let rule = without_comment(rule);
    check_rules(rule).map_err(|why| match why {
        BadRules::ClosesTable { .. } | BadRules::Open => BadRule::Braces,
        other => BadRule::Leaves(other),
    })?;
    let mut depth = 0_usize;
    let mut before = "";
    let mut tokens = Tokens(rule);
    let mut places = Places::default();
    while let Some(token) = tokens.next() {
        let is_looked_up = places.looks_up(token);
        match token {
            ";" => return Err(BadRule::SeveralRules),
            "{" => depth += 1,
            "}" => depth = depth.saturating_sub(1),
            "jump" | "goto" => return Err(BadRule::Jumps(token.to_owned())),
            "@" if !is_of_packet(tokens.0) => {
                return Err(BadRule::NamesSet(shown(tokens.0.split(' ').next().unwrap_or(""))));
            }
            _ if is_looked_up || (is_host_name(token) && !names_link(before)) => {
                return Err(BadRule::NamesHost(shown(token)));
            }
            _ => {}
        }
        if depth > MOST_DEPTH {
            return Err(BadRule::Braces);
        }
        if !matches!(token, "!=" | "==") {
            before = token;
        }
    }
    Ok(rule)
}

/// Whether what follows an `@` is a place in a packet, as `th,0,16`, and not a set.
fn is_of_packet(rest: &str) -> bool {
    ["ll", "nh", "th", "ih"]
        .iter()
        .any(|base| rest.strip_prefix(base).is_some_and(|rest| rest.trim_start().starts_with(',')))
}

fn names_link(word: &str) -> bool {
    matches!(word, "iif" | "oif" | "iifname" | "oifname")
}

/// A word as `web.example.com`: addresses of IPv6 may have points, and have colons then.
fn is_host_name(word: &str) -> bool {
    !word.starts_with('"')
        && word.contains('.')
        && !word.contains(':')
        && word.contains(|c: char| c.is_alphabetic())
}

fn without_comment(rule: &str) -> &str {
    let mut is_quoted = false;
    for (at, c) in rule.char_indices() {
        match c {
            '"' => is_quoted = !is_quoted,
            '#' if !is_quoted => return rule[..at].trim_end(),
            _ => {}
        }
    }
    rule
}

/// Table and rules in which nft can be asked about one rule that [`check_rule`] has let pass.
pub fn probe(direction: Direction, rule: &str) -> (TableName, String) {
    let chain = AclChain { rules: vec![rule.to_owned()], is_cut: false };
    let mut network = FilteredNetwork::default();
    match direction {
        Direction::In => network.acls.incoming = chain,
        Direction::Out => network.acls.outgoing = chain,
    }
    let vni = Vni::new(1).expect("there is such a number");
    let filter = NetworkFilter { networks: [(vni, network)].into(), ..NetworkFilter::default() };
    (probe_table(), filter.probe_rules(1))
}

/// Rules of operators for one direction of one network, as they go to nft.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct AclChain {
    /// Each has passed [`check_rule`].
    pub rules: Vec<String>,
    /// Whether rules behind these are missing, so that what none of these judges is dropped.
    pub is_cut: bool,
}

impl AclChain {
    fn text(&self, name: &str) -> String {
        let mut text = format!("chain {name} {{\n\tcounter\n");
        for (number, rule) in (1..).zip(&self.rules) {
            // A word before it, so that it is a rule and never a property of the chain.
            text += &format!("\tcounter {}\n", own_meters(rule, &format!("{name}-{number}")));
        }
        if self.is_cut {
            text += "\tcounter drop\n";
        }
        text + "}\n"
    }
}

/// Rules of operators for a network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Acls {
    pub incoming: AclChain,
    pub outgoing: AclChain,
}

impl Acls {
    pub fn chains(&self) -> [(Direction, &AclChain); 2] {
        [(Direction::In, &self.incoming), (Direction::Out, &self.outgoing)]
    }
}

/// A network as it is filtered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FilteredNetwork {
    pub ip4: Option<Ipv4Net>,
    pub ip6: Option<Ipv6Net>,
    pub masquerade: bool,
    /// Whether its guests may send from addresses of their network alone.
    pub guarded: bool,
    pub acls: Acls,
}

/// The firewall of all networks on a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkFilter {
    pub networks: BTreeMap<Vni, FilteredNetwork>,
    /// Networks of which nothing may come in or go out; see [`closed`].
    pub closed: BTreeSet<Vni>,
    /// Addresses of the nodes, and networks between them. No guest sends from one of them, and
    /// guests reach them under their own addresses: as a node, a guest would be let in where nodes
    /// are.
    pub nodes: BTreeSet<IpNet>,
    /// `None` on a machine alone, which has no tunnels.
    pub tunnels: Option<TunnelSources>,
}

/// Addresses from which the tunnels of managed networks come to this node: the kernel takes a frame
/// for any network from whoever sends it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TunnelSources {
    /// The networks between the nodes, in which the tunnels of ours end.
    pub inner: BTreeSet<IpNet>,
    /// Addresses of the nodes on the upstream network, which those of legacy peers may have.
    pub upstream: BTreeSet<IpNet>,
    /// Whether those of ours may have them, too.
    pub uses_upstream: bool,
    /// Links by which nothing comes from `inner` that a node has sent.
    pub outside: BTreeSet<String>,
}

impl TunnelSources {
    /// Sources in a cluster that has these nodes.
    fn among(&self, cluster: &Cluster) -> TunnelSources {
        let has_legacy_peer = cluster.nodes.values().any(|node| !node.runs_our_daemon());
        TunnelSources { uses_upstream: self.uses_upstream || has_legacy_peer, ..self.clone() }
    }

    fn sets(&self) -> String {
        let upstream = self.upstream.iter().filter(|_| self.uses_upstream);
        let sources = self.inner.iter().chain(upstream).map(IpNet::trunc).collect();
        let trunc = |all: &BTreeSet<IpNet>| all.iter().map(IpNet::trunc).collect();
        nets("tunnels", &sources)
            + &nets("inner", &trunc(&self.inner))
            + &nets("upstream", &trunc(&self.upstream))
    }

    /// Rules about what comes to this node. What is none of a tunnel's goes on.
    fn input(&self) -> String {
        let mut text = String::new();
        if !self.outside.is_empty() {
            let outside = link_names(&self.outside);
            let _ = writeln!(
                text,
                "\tiifname {{ {outside} }} ip saddr @inner4 udp dport {VXLAN_PORT} counter drop"
            );
        }
        let _ = writeln!(text, "\tip saddr != @tunnels4 udp dport {VXLAN_PORT} counter drop");
        text
    }

    /// Rules about what guests send to nodes: those of PVC 1.0.3 take it.
    fn from_guests() -> String {
        let to = |set: &str| {
            format!("\tiifname @guests ip daddr @{set} udp dport {VXLAN_PORT} counter drop\n")
        };
        ["nodes4", "inner4", "upstream4"].map(to).concat()
    }
}

/// Networks that are not filtered by a record, and whose bridge is still there: it has a tunnel, or
/// our mark and a port, or was `filtered` before. One that was removed a moment ago, or whose
/// record is not understood, is closed until the bridge is gone, or the record is mended.
pub fn closed(links: &Links, networks: &GuestNetworks, filtered: &BTreeSet<Vni>) -> BTreeSet<Vni> {
    let kind = |vni: Vni| networks.networks.iter().find(|net| net.vni == vni).map(|net| &net.kind);
    let of_tunnel = links.values().filter_map(|link| {
        let vni = link.name.strip_prefix("vxlan").and_then(Vni::parse)?;
        let is_tunnel = matches!(link.kind, LinkKind::Vxlan(_));
        (is_tunnel && link.master.as_deref() == Some(&*vni.bridge())).then_some(vni)
    });
    // That a network of one machine alone has become a bridged one shows in nothing but its record.
    let is_bridge = |vni: &&Vni| links.contains_key(&vni.bridge()) && kind(**vni).is_none();
    let of_before = filtered.iter().filter(is_bridge).copied();
    // A machine alone has no tunnels, and its daemon may have been down when a network went.
    let masters: BTreeSet<&str> =
        links.values().filter_map(|link| link.master.as_deref()).collect();
    let of_mark = links.values().filter_map(|link| {
        let vni = Vni::of_bridge(&link.name).filter(|vni| kind(*vni).is_none())?;
        (is_marked(link, vni) && masters.contains(&*link.name)).then_some(vni)
    });
    let is_managed = |vni: Vni| matches!(kind(vni), Some(GuestNetworkKind::Managed(_)));
    of_tunnel.chain(of_mark).chain(of_before).filter(|vni| !is_managed(*vni)).collect()
}

/// The fault about rules of the network that this node does not take. Each node has its own: what
/// one kernel refuses another may take.
pub fn rules_fault(vni: Vni, node: &NodeName) -> String {
    fault_id(&format!("{RULES_FAULT}{vni}"), node.as_str())
}

/// The network that such a fault of this node is about; `None` if it is another fault.
pub fn of_rules_fault(id: &str, node: &NodeName) -> Option<Vni> {
    let vni = id.strip_prefix(RULES_FAULT)?.split('_').next().and_then(Vni::parse)?;
    (rules_fault(vni, node) == id).then_some(vni)
}

const RULES_FAULT: &str = "NETWORK_RULES_";

/// A rule of an operator that is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadAcl {
    pub vni: Vni,
    /// The network's description and the rule's, both as far as they are shown.
    pub network: String,
    pub rule: String,
    pub direction: Direction,
    pub why: String,
    /// Whether the network goes by the rules that it had before.
    pub has_last: bool,
}

impl std::fmt::Display for BadAcl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let BadAcl { vni, network, rule, direction, why, has_last } = self;
        write!(
            f,
            "the rule `{rule}` ({}) of network {vni} ({network}) is not taken: {why}; ",
            direction.as_str()
        )?;
        match has_last {
            true => f.write_str("until it is mended the network keeps the rules that it had"),
            false => f.write_str("until it is mended what the rules before it leave is dropped"),
        }
    }
}

type Refused<'a> = &'a (dyn Fn(&[String]) -> Option<(usize, String)> + Sync);

/// State of the firewall beside the records.
pub struct Known<'a> {
    pub closed: &'a BTreeSet<Vni>,
    pub nodes: &'a BTreeSet<IpNet>,
    pub tunnels: Option<&'a TunnelSources>,
    /// The rules that each network had when all of its rules were taken last.
    pub last: &'a BTreeMap<Vni, Acls>,
    /// The first of these rules of a chain that nft does not take, by its place, and why.
    pub refused: Refused<'a>,
}

/// The firewall that there should be, and the rules that it leaves out.
///
/// A network with such a rule keeps all the rules that it had last. One that had none since this
/// daemon runs gets the rules before it, and what these do not judge is dropped: never is it wider
/// open than it is recorded.
pub fn network_filter(cluster: &Cluster, known: &Known<'_>) -> (NetworkFilter, Vec<BadAcl>) {
    let all = GuestNetworks::of(cluster);
    let managed = managed(cluster, &all.networks);
    let share = share(managed.iter().map(|(_, record)| bytes_of(record)));
    let mut filter = NetworkFilter {
        closed: known.closed.clone(),
        nodes: known.nodes.clone(),
        tunnels: known.tunnels.map(|tunnels| tunnels.among(cluster)),
        ..NetworkFilter::default()
    };
    let mut bad = Vec::new();
    for (network, record) in managed {
        filter.closed.remove(&network.vni);
        let acls = acls(network, record, share, known, &mut bad);
        let managed = network.managed().expect("only those were taken");
        let filtered = FilteredNetwork {
            ip4: managed.ip4.as_ref().map(|ip4| ip4.network),
            ip6: managed.ip6.as_ref().map(|ip6| ip6.network),
            masquerade: network.options.masquerade,
            guarded: network.options.spoof_guard,
            acls,
        };
        filter.networks.insert(network.vni, filtered);
    }
    (filter, bad)
}

fn managed<'a>(
    cluster: &'a Cluster,
    networks: &'a [GuestNetwork],
) -> Vec<(&'a GuestNetwork, &'a NetworkRecord)> {
    let managed = networks.iter().filter(|network| network.managed().is_some());
    managed
        .filter_map(|network| Some((network, &**cluster.networks.get(&network.vni.to_string())?)))
        .collect()
}

/// Recorded rules of one direction of a network, as far as they are taken.
#[derive(Debug, Default)]
pub(super) struct TakenRules {
    /// By their order, each with what of its text goes to nft.
    pub rules: Vec<(AclRecord, String)>,
    /// The first that is not taken, and why. Those behind it are not in force.
    pub bad: Option<(AclRecord, String)>,
}

/// The rules `in` and `out` of each of these networks that is managed. What nft refuses is known to
/// the nodes alone.
pub(super) fn taken_rules(
    cluster: &Cluster,
    networks: &[GuestNetwork],
) -> BTreeMap<Vni, [TakenRules; 2]> {
    let managed = managed(cluster, networks);
    let share = share(managed.iter().map(|(_, record)| bytes_of(record)));
    let of_network = |(network, record): (&GuestNetwork, &NetworkRecord)| {
        let mut left = share;
        let taken = [Direction::In, Direction::Out].map(|direction| {
            let (chain, bad) = chain(record, direction, &mut left, &|_| None);
            let acls = in_order(record, direction).into_iter().cloned();
            let bad = bad.map(|(acl, why)| (acl.clone(), why));
            TakenRules { rules: acls.zip(chain.rules).collect(), bad }
        });
        (network.vni, taken)
    };
    managed.into_iter().map(of_network).collect()
}

fn acls(
    network: &GuestNetwork,
    record: &NetworkRecord,
    share: usize,
    known: &Known<'_>,
    bad: &mut Vec<BadAcl>,
) -> Acls {
    let (vni, mut is_good) = (network.vni, true);
    let is_taken = |last: &&Acls| {
        last.chains().iter().all(|(_, chain)| (known.refused)(&chain.rules).is_none())
    };
    let last = known.last.get(&vni).filter(is_taken);
    let mut left = share;
    let mut chain_of = |direction| {
        let (chain, wrong) = chain(record, direction, &mut left, known.refused);
        if let Some((acl, why)) = wrong {
            is_good = false;
            bad.push(BadAcl {
                vni,
                network: shown(&network.description),
                rule: shown(&acl.description),
                direction,
                why,
                has_last: last.is_some(),
            });
        }
        chain
    };
    let recorded = Acls { incoming: chain_of(Direction::In), outgoing: chain_of(Direction::Out) };
    match last {
        Some(last) if !is_good => last.clone(),
        _ => recorded,
    }
}

/// The rules of one direction by their order, up to the first that is not taken.
fn chain<'a>(
    record: &'a NetworkRecord,
    direction: Direction,
    left: &mut usize,
    refused: Refused<'_>,
) -> (AclChain, Option<(&'a AclRecord, String)>) {
    let acls = in_order(record, direction);
    let mut chain = AclChain::default();
    let mut wrong = None;
    for acl in &acls {
        let why = match check_rule(&acl.rule) {
            // It may be a `drop`, or an `accept` with a place behind one.
            _ if acl.is_half() => "only a part of it is recorded, its text or its order".to_owned(),
            Err(why) => crate::with_causes(&why),
            Ok(rule) if rule.len() > *left => {
                "the rules of this network are too long in all".to_owned()
            }
            Ok(rule) => {
                *left -= rule.len();
                chain.rules.push(rule.to_owned());
                continue;
            }
        };
        chain.is_cut = true;
        wrong = Some((*acl, why));
        break;
    }
    // Of the rules before one that is bad by itself nft may not take one.
    if let Some((at, why)) = refused(&chain.rules) {
        chain.rules.truncate(at);
        chain.is_cut = true;
        wrong = Some((acls[at], why));
    }
    (chain, wrong)
}

fn in_order(record: &NetworkRecord, direction: Direction) -> Vec<&AclRecord> {
    let mut acls: Vec<&AclRecord> =
        record.acls.iter().filter(|acl| acl.direction == direction).collect();
    acls.sort_by(|a, b| (a.order, &a.description).cmp(&(b.order, &b.description)));
    acls
}

fn bytes_of(record: &NetworkRecord) -> usize {
    record.acls.iter().map(|acl| acl.rule.len().min(MOST_RULE_BYTES)).sum()
}

/// The most bytes that the rules of one network may have: those with few rules have them all, and
/// those with many share what is left, so that none takes the room of others.
fn share(sizes: impl Iterator<Item = usize>) -> usize {
    let mut sizes: Vec<usize> = sizes.collect();
    sizes.sort_unstable();
    let mut left = MOST_ACL_BYTES;
    for (at, size) in sizes.iter().enumerate() {
        let share = left / (sizes.len() - at);
        if *size > share {
            return share;
        }
        left -= size;
    }
    MOST_ACL_BYTES
}

impl NetworkFilter {
    /// Whether there is something to filter.
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty() && self.closed.is_empty()
    }

    /// The rules of operators in it, in the order in which nft reads them: each with its chain up
    /// to and with it.
    pub fn acl_prefixes(&self) -> Vec<&[String]> {
        let chains = self.networks.values().flat_map(|network| network.acls.chains());
        chains
            .flat_map(|(_, chain)| (1..=chain.rules.len()).map(|end| &chain.rules[..end]))
            .collect()
    }

    /// Rules of the [`probe_table`] with the first `count` of its
    /// [rules of operators](NetworkFilter::acl_prefixes). No packet gets as far as to them.
    pub fn probe_rules(&self, mut count: usize) -> String {
        let (mut text, mut jumps) = (self.sets(), String::new());
        for (vni, network) in &self.networks {
            for (direction, chain) in network.acls.chains() {
                let end = chain.rules.len().min(count);
                count -= end;
                if end > 0 {
                    let name = format!("vxlan{vni}-{}", direction.as_str());
                    let chain = AclChain { rules: chain.rules[..end].to_vec(), is_cut: false };
                    text += &chain.text(&name);
                    jumps += &format!("\tjump {name}\n");
                }
            }
        }
        let hook = "type filter hook forward priority filter - 5; policy accept;";
        text + &format!("chain forward {{\n\t{hook}\n\taccept\n{jumps}}}\n")
    }

    /// Text between the braces of the [`table`].
    pub fn rules(&self) -> String {
        self.sets()
            + &self.acl_chains()
            + SERVICES
            + &self.input()
            + &self.spoofed()
            + &self.dispatch()
            + &self.masquerade()
    }

    fn input(&self) -> String {
        let tunnels = self.tunnels.as_ref().map(TunnelSources::input).unwrap_or_default();
        format!(
            "\
chain input {{
	type filter hook input priority filter - 5; policy accept;
{tunnels}	iifname @closed counter drop
	iifname @guests goto from-guests
}}
"
        )
    }

    /// From guests to elsewhere. A guest may route for others, unless its network has a guard;
    /// nobody speaks as a node.
    fn spoofed(&self) -> String {
        let tunnels = self.tunnels.as_ref().map(|_| TunnelSources::from_guests());
        let tunnels = tunnels.unwrap_or_default();
        format!(
            "\
chain spoofed {{
	type filter hook forward priority filter - 6; policy accept;
	{WITHIN}
	iifname @closed counter drop
	oifname @closed counter drop
{tunnels}	iifname . ip saddr @sources4 accept
	iifname . ip6 saddr @sources6 accept
	iifname @guests ip saddr @nodes4 counter drop
	iifname @guests ip6 saddr @nodes6 counter drop
	iifname @guarded counter drop
}}
"
        )
    }

    fn sets(&self) -> String {
        let bridges = |vnis: &mut dyn Iterator<Item = &Vni>| {
            vnis.map(|vni| format!("\"{}\"", vni.bridge())).collect::<Vec<_>>()
        };
        let (guests, closed) =
            (bridges(&mut self.networks.keys()), bridges(&mut self.closed.iter()));
        let within = guests.iter().chain(&closed).map(|bridge| format!("{bridge} . {bridge}"));
        let of = |(vni, net): (&Vni, IpNet)| format!("\"{}\" . {net}", vni.bridge());
        let sources4 = self.nets().filter(|(_, net)| matches!(net, IpNet::V4(_))).map(of);
        let sources6 = self.nets().filter(|(_, net)| matches!(net, IpNet::V6(_))).map(of);
        let (sources4, sources6, within) =
            (sources4.collect(), sources6.collect(), within.collect());
        let of_guard = self.networks.iter().filter(|(_, network)| network.guarded);
        let guarded = bridges(&mut of_guard.map(|(vni, _)| vni));
        let nodes = self.nodes.iter().map(IpNet::trunc).collect();
        set("guests", "type ifname", guests)
            + &set("guarded", "type ifname", guarded)
            + &nets("nodes", &nodes)
            + &set("closed", "type ifname", closed)
            + &set("within", "type ifname . ifname", within)
            + &set("sources4", "type ifname . ipv4_addr\n\tflags interval", sources4)
            + &set("sources6", "type ifname . ipv6_addr\n\tflags interval", sources6)
            + &self.tunnels.as_ref().map(TunnelSources::sets).unwrap_or_default()
    }

    /// The addresses of each network.
    fn nets(&self) -> impl Iterator<Item = (&Vni, IpNet)> {
        self.networks.iter().flat_map(|(vni, network)| {
            let (ip4, ip6) = (network.ip4.map(IpNet::V4), network.ip6.map(IpNet::V6));
            ip6.into_iter().chain(ip4).map(move |net| (vni, net))
        })
    }

    fn acl_chains(&self) -> String {
        let mut text = String::new();
        for (vni, network) in &self.networks {
            for (direction, chain) in network.acls.chains() {
                text += &chain.text(&format!("vxlan{vni}-{}", direction.as_str()));
            }
        }
        text
    }

    fn dispatch(&self) -> String {
        let mut text = String::new();
        for (direction, end, priority) in
            [(Direction::In, "daddr", 5), (Direction::Out, "saddr", 4)]
        {
            let direction = direction.as_str();
            let hook = format!("type filter hook forward priority filter - {priority}");
            let _ = writeln!(
                text,
                "chain forward-{direction} {{\n\t{hook}; policy accept;\n\t{WITHIN}"
            );
            for (vni, net) in self.nets() {
                let family = family(&net);
                let _ =
                    writeln!(text, "\t{family} {end} {net} counter jump vxlan{vni}-{direction}");
            }
            text += "}\n";
        }
        text
    }

    /// The chain that has packets leave the cluster under this node's address; nothing, if no
    /// network asks for it: then connections need not be tracked.
    fn masquerade(&self) -> String {
        let asks = |vni: &Vni| self.networks.get(vni).is_some_and(|network| network.masquerade);
        let masked: BTreeSet<IpNet> =
            self.nets().filter(|(vni, _)| asks(vni)).map(|(_, net)| net).collect();
        if masked.is_empty() {
            return String::new();
        }
        nets("masked", &masked) + MASQUERADE
    }
}

fn family(net: &IpNet) -> &'static str {
    match net {
        IpNet::V4(_) => "ip",
        IpNet::V6(_) => "ip6",
    }
}

/// Two sets of networks, one of each family.
fn nets(name: &str, nets: &BTreeSet<IpNet>) -> String {
    let of = |is_of: fn(&IpNet) -> bool| -> Vec<String> {
        nets.iter().filter(|net| is_of(net)).map(ToString::to_string).collect()
    };
    let flags = "flags interval\n\tauto-merge";
    let ip4 = of(|net| matches!(net, IpNet::V4(_)));
    let ip6 = of(|net| matches!(net, IpNet::V6(_)));
    set(&format!("{name}4"), &format!("type ipv4_addr\n\t{flags}"), ip4)
        + &set(&format!("{name}6"), &format!("type ipv6_addr\n\t{flags}"), ip6)
}

fn set(name: &str, kind: &str, elements: Vec<String>) -> String {
    let elements = match elements.is_empty() {
        true => String::new(),
        false => format!("\telements = {{ {} }}\n", elements.join(", ")),
    };
    format!("set {name} {{\n\t{kind}\n{elements}}}\n")
}

/// From guests to this node. Sources are judged first: under the address of a node a guest could be
/// taken for one, and who asks for metadata is known by it. Requests of DHCP come from anywhere.
/// What begins no connection and belongs to one that this node has begun (`ssh` into a guest) comes
/// in; it finds nothing else.
const SERVICES: &str = "\
chain services {
	icmp type { redirect, router-advertisement } counter drop
	icmpv6 type { nd-redirect, nd-router-advert } counter drop
	meta l4proto { icmp, ipv6-icmp } counter accept
	meta l4proto { tcp, udp } th dport 53 counter accept
	udp dport 123 counter accept
	meta nfproto ipv6 udp dport 547 counter accept
	ip daddr 169.254.169.254 tcp dport 80 counter accept
	tcp flags & (ack | rst) != 0 counter accept
	counter drop
}
chain from-guests {
	meta nfproto ipv4 udp dport 67 counter accept
	iifname . ip saddr @sources4 goto services
	iifname . ip6 saddr @sources6 goto services
	ip6 saddr { ::, fe80::/10 } goto services
	ip saddr @nodes4 counter drop
	ip6 saddr @nodes6 counter drop
	iifname @guarded counter drop
	ip daddr 169.254.169.254 counter drop
	goto services
}
";

/// Packets that stay within a bridge come to these hooks only where the kernel hands them bridged
/// ones (`bridge-nf-call-iptables`), and are nobody's concern.
const WITHIN: &str = "iifname . oifname @within accept";

/// Behind the tables of others, whose translation of a connection stays.
const MASQUERADE: &str = "\
chain leave-masked {
	type nat hook postrouting priority srcnat + 10; policy accept;
	oifname \"lo\" accept
	oifname @guests accept
	ip daddr @nodes4 accept
	ip6 daddr @nodes6 accept
	ip saddr @masked4 counter masquerade
	ip6 saddr @masked6 counter masquerade
}
";

#[cfg(test)]
mod tests;
