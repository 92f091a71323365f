//! The packet filter of a node: who may begin a connection with the services that the nodes have
//! for each other.
//!
//! These services trust whoever reaches them. So a connection to one of their ports is begun by a
//! node, by this machine itself, or by somebody whom the configuration names; that of a guest or of
//! another machine is dropped. Nothing else is decided here: other ports, other protocols, what is
//! forwarded, and the tables of others stay as they are.
//!
//! A node is known by its address alone, so that nobody else may get an answer under it. A packet
//! with options of IP is nobody's: by one of them, the source route, it says itself which way its
//! answers take. (nft's own word for that one, `ip option lsrr`, does not match a route that has
//! been gone to its end, which is what a forged one looks like.) And an address of the cluster
//! network is none of a node's where it comes by the upstream network.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;

use crate::firewall::{TableFamily, TableName};
use crate::link::IpNet;

/// The table that is the filter.
pub fn table() -> TableName {
    TableName::new(TableFamily::Inet, "pvc-hosts").expect("the name is one of ours")
}

/// Rules about who may reach which ports of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFilter {
    /// The addresses of the nodes, floating ones too.
    pub nodes: BTreeSet<IpNet>,
    /// Addresses of nodes that come by any link but those `outside`.
    pub inner: BTreeSet<IpNet>,
    /// Links of a network that the nodes do not reach each other by.
    pub outside: BTreeSet<String>,
    /// Addresses that the configuration lets in besides.
    pub allowed: BTreeSet<IpNet>,
    /// The TCP ports that are for them alone.
    pub ports: BTreeSet<Ports>,
    /// Of those ports the ones that are for everybody: Ceph's range has the API's port in it.
    pub open: BTreeSet<u16>,
}

/// Neighbouring TCP ports, the last one included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ports {
    first: u16,
    last: u16,
}

/// The ports of the services between nodes that no configuration of ours moves.
const FIXED: [Ports; 8] = [
    Ports::of(2888..=2888),   // ZooKeeper: from the followers to the leader
    Ports::of(3888..=3888),   // ZooKeeper: elections
    Ports::of(3300..=3300),   // Ceph: monitors
    Ports::of(6789..=6789),   // Ceph: monitors, the older protocol
    Ports::of(6800..=7568),   // Ceph: OSDs and managers; up to 7300 before its version 18
    Ports::of(8008..=8008),   // Patroni
    Ports::of(16509..=16509), // libvirt
    Ports::of(16514..=16514), // libvirt with TLS
];

/// QEMU's own stream of a migration: `migration_port_min` and `_max` of libvirt's qemu.conf, as it
/// comes.
const MIGRATION: Ports = Ports::of(49152..=49215);

impl Ports {
    pub const fn one(port: u16) -> Ports {
        Ports { first: port, last: port }
    }

    const fn of(range: RangeInclusive<u16>) -> Ports {
        Ports { first: *range.start(), last: *range.end() }
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ports { first, last } = self;
        if first == last { write!(f, "{first}") } else { write!(f, "{first}-{last}") }
    }
}

impl HostFilter {
    /// The filter for nodes at these addresses. `moved` are the ports of services that the
    /// configuration names: ZooKeeper's, PostgreSQL's. `None` if no node has an address: a filter
    /// would cut off every node.
    pub fn new(
        nodes: BTreeSet<IpNet>,
        allowed: BTreeSet<IpNet>,
        moved: impl IntoIterator<Item = u16>,
    ) -> Option<HostFilter> {
        let ports = moved.into_iter().map(Ports::one).chain(FIXED).chain([MIGRATION]).collect();
        (!nodes.is_empty()).then_some(HostFilter {
            nodes,
            inner: BTreeSet::new(),
            outside: BTreeSet::new(),
            allowed,
            ports,
            open: BTreeSet::new(),
        })
    }

    /// The same, in which those of the nodes' addresses that are among `inner` are not let in by
    /// the links `outside`.
    pub fn closed_outside(mut self, inner: &BTreeSet<IpNet>, outside: BTreeSet<String>) -> Self {
        if !outside.is_empty() {
            self.inner.extend(self.nodes.extract_if(.., |net| inner.contains(net)));
            self.outside.extend(outside);
        }
        self
    }

    /// The same, with `port` left to whoever reaches it.
    pub fn leaving_open(mut self, port: u16) -> Self {
        self.open.insert(port);
        self
    }

    /// Text between the braces of the [`table`].
    ///
    /// Connections are judged by the packet that begins them (SYN without ACK). Those that stand
    /// already go on, answers to what this node asks from a port of these ranges come in, and
    /// Ceph's traffic needs no connection tracking.
    pub fn rules(&self) -> String {
        let sources = || self.nodes.iter().chain(&self.allowed);
        let v4 = elements(sources().filter(|net| matches!(net, IpNet::V4(_))));
        let v6 = elements(sources().filter(|net| matches!(net, IpNet::V6(_))));
        let (inner_set, inner) = self.inner_rules();
        let ports = join(&self.ports);
        let open = match self.open.is_empty() {
            true => String::new(),
            false => format!("\ttcp dport {{ {} }} accept\n", join(&self.open)),
        };
        format!(
            "\
set sources4 {{
	type ipv4_addr
	flags interval
	auto-merge
{v4}}}
set sources6 {{
	type ipv6_addr
	flags interval
	auto-merge
{v6}}}
{inner_set}chain input {{
	type filter hook input priority filter - 10; policy accept;
	iifname \"lo\" accept
	ip hdrlength 5 ip saddr @sources4 accept
	ip6 saddr @sources6 accept
{inner}{open}	tcp flags & (syn | ack | rst) == syn tcp dport {{ {ports} }} counter drop
}}
"
        )
    }

    /// The set of addresses that are let in by some links alone, and the rule about it; nothing, if
    /// there are none.
    fn inner_rules(&self) -> (String, String) {
        let list = elements(self.inner.iter().filter(|net| matches!(net, IpNet::V4(_))));
        if list.is_empty() {
            return (String::new(), String::new());
        }
        let set =
            format!("set inner4 {{\n\ttype ipv4_addr\n\tflags interval\n\tauto-merge\n{list}}}\n");
        let outside = link_names(&self.outside);
        let rule = format!("iifname != {{ {outside} }} ip hdrlength 5 ip saddr @inner4 accept");
        (set, format!("\t{rule}\n"))
    }
}

/// Names of links as nft reads them.
pub(crate) fn link_names(links: &BTreeSet<String>) -> String {
    links.iter().map(|link| format!("\"{link}\"")).collect::<Vec<_>>().join(", ")
}

fn elements<'a>(nets: impl Iterator<Item = &'a IpNet>) -> String {
    let list = join(&nets.map(IpNet::trunc).collect());
    if list.is_empty() { String::new() } else { format!("\telements = {{ {list} }}\n") }
}

fn join<T: fmt::Display>(items: &BTreeSet<T>) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::firewall::check_rules;

    fn nets(texts: &[&str]) -> BTreeSet<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn the_rules_let_nodes_and_the_named_in_and_drop_the_beginnings_of_others() {
        let nodes = nets(&["10.0.1.1/32", "10.0.1.2/32"]);
        let allowed = nets(&["192.0.2.7/24", "2001:db8::/48"]);
        let text = HostFilter::new(nodes, allowed, [2181, 5432]).unwrap().rules();
        assert_eq!(check_rules(&text), Ok(()));
        assert!(text.contains("elements = { 10.0.1.1/32, 10.0.1.2/32, 192.0.2.0/24 }"), "{text}");
        assert!(text.contains("elements = { 2001:db8::/48 }"), "{text}");
        for port in [
            "2181,",
            "2888,",
            "3888,",
            "3300,",
            "6800-7568,",
            "8008,",
            "5432,",
            "16514,",
            "49152-49215",
        ] {
            assert!(text.contains(port), "{port}: {text}");
        }
        assert_eq!(text.matches("drop").count(), 1, "nothing else is dropped: {text}");
        assert!(text.contains("\tip hdrlength 5 ip saddr @sources4 accept\n"), "{text}");
    }

    #[test]
    fn addresses_of_inner_networks_are_not_let_in_by_the_links_outside() {
        let all = nets(&["10.0.0.1/32", "10.0.1.1/32", "10.0.2.0/24"]);
        let inner = nets(&["10.0.1.1/32", "10.0.2.0/24", "10.9.9.9/32"]);
        let outside = ["brupstream", "ens4"].map(str::to_owned).into();
        let allowed = nets(&["10.0.2.7/32"]);
        let filter = HostFilter::new(all, allowed, [2181]).unwrap();
        let text = filter.closed_outside(&inner, outside).rules();
        assert_eq!(check_rules(&text), Ok(()));
        assert!(text.contains("elements = { 10.0.0.1/32, 10.0.2.7/32 }"), "{text}");
        assert!(text.contains("elements = { 10.0.1.1/32, 10.0.2.0/24 }"), "{text}");
        let at = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words}: {text}"));
        let outside = "iifname != { \"brupstream\", \"ens4\" }";
        let rule = at(&format!("\t{outside} ip hdrlength 5 ip saddr @inner4 accept\n"));
        assert!(rule < at("tcp flags"), "{text}");
    }

    #[test]
    fn a_port_in_the_midst_of_the_others_is_left_open() {
        let filter = HostFilter::new(nets(&["10.0.1.1/32"]), BTreeSet::new(), []).unwrap();
        assert!(!filter.rules().contains("tcp dport { 7370 }"));
        let text = filter.leaving_open(7370).rules();
        let (accept, drop) = (text.find("tcp dport { 7370 } accept"), text.find("drop"));
        assert!(accept.is_some() && accept < drop, "{text}");
    }

    #[test]
    fn without_an_address_of_a_node_there_is_no_filter() {
        assert_eq!(HostFilter::new(BTreeSet::new(), nets(&["10.0.0.0/8"]), [2181]), None);
    }

    #[test]
    fn an_empty_family_has_no_list_of_elements() {
        let text = HostFilter::new(nets(&["10.0.1.1/32"]), BTreeSet::new(), []).unwrap().rules();
        assert_eq!(text.matches("elements").count(), 1, "{text}");
    }
}
