//! Networks of VMs, as they are to be: what a [`NetworkRecord`] says, understood.
//!
//! ```text
//!  NetworkRecord ── GuestNetwork::read ─▶ GuestNetwork, and what of the record is not understood
//!
//!  plan      the links that a machine has for them
//!  dnsmasq   what the DHCP server of a managed network is told, and what it says
//!  mac       who has which MAC address in them
//!  dns       the domains of managed networks in the DNS aggregator
//!  trace     the way of one packet, and where it ends
//! ```
//!
//! Records are written by operators, by legacy peers, and by halves: what cannot be understood is
//! left out and said, and takes nothing else down with it. What is asked for anew is held to more.

pub mod acl;
pub mod dns;
pub mod dnsmasq;
pub mod evpn;
pub mod guard;
pub mod lease;
pub mod mac;
pub mod metadata;
pub mod names;
pub mod plan;
pub mod refusal;
pub mod request;
pub mod rules;
pub mod trace;
pub mod unconfirmed;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

use crate::cluster::Cluster;
use crate::link::IpNet;
use crate::network::{NetworkOptions, NetworkRecord};

/// Number of a network of VMs: 1 to 16,777,214. Of a bridged one it is its VLAN's, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vni(u32);

impl Vni {
    /// The largest number that EVPN carries and is not reserved.
    pub const MAX: u32 = 16_777_214;

    /// The largest number of a VLAN.
    pub const MAX_VLAN: u32 = 4094;

    pub fn new(number: u32) -> Option<Vni> {
        (1..=Vni::MAX).contains(&number).then_some(Vni(number))
    }

    /// Reads a number as records and clients write it: digits, without sign, spaces or zeros in
    /// front.
    pub fn parse(text: &str) -> Option<Vni> {
        let is_plain = text.bytes().all(|c| c.is_ascii_digit()) && !text.starts_with('0');
        text.parse().ok().filter(|_| is_plain).and_then(Vni::new)
    }

    pub fn get(self) -> u32 {
        self.0
    }

    /// The VLAN of that number, if there is one.
    pub fn vlan(self) -> Option<u16> {
        u16::try_from(self.0).ok().filter(|id| u32::from(*id) <= Vni::MAX_VLAN)
    }

    /// Name of the bridge that guests are plugged into.
    pub fn bridge(self) -> String {
        format!("vmbr{self}")
    }

    /// Alias of the links that are made for it, which marks them as PVC's.
    pub fn alias(self) -> String {
        format!("PVC network {self}")
    }

    /// The network that a bridge of this name is of.
    pub fn of_bridge(link: &str) -> Option<Vni> {
        link.strip_prefix("vmbr").and_then(Vni::parse)
    }
}

impl fmt::Display for Vni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A network of VMs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestNetwork {
    pub vni: Vni,
    pub description: String,
    /// The MTU asked for, in bytes; `None` for the largest that the nodes carry.
    pub mtu: Option<u32>,
    pub options: NetworkOptions,
    pub kind: GuestNetworkKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuestNetworkKind {
    /// A VLAN of the switches that the nodes are plugged into. Routers and addresses are others'.
    Bridged,
    /// A network of PVC's own between the nodes, with gateway, DHCP, DNS and firewall.
    Managed(Box<Managed>),
}

/// Services of a managed network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Managed {
    /// DNS domain of its guests, in small letters; `None` if none is recorded that could be one.
    pub domain: Option<String>,
    /// Names of the servers that its domain is delegated to.
    pub name_servers: Vec<String>,
    pub ip4: Option<Ip4>,
    pub ip6: Option<Ip6>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ip4 {
    pub network: Ipv4Net,
    /// Address that the primary has in it.
    pub gateway: Option<Ipv4Addr>,
    /// First and last address that DHCP gives; `None` if it gives none.
    pub dhcp: Option<(Ipv4Addr, Ipv4Addr)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ip6 {
    pub network: Ipv6Net,
    pub gateway: Option<Ipv6Addr>,
    /// Whether guests get addresses, by DHCP or by router advertisements.
    pub dhcp: bool,
}

impl GuestNetwork {
    pub fn managed(&self) -> Option<&Managed> {
        match &self.kind {
            GuestNetworkKind::Bridged => None,
            GuestNetworkKind::Managed(managed) => Some(managed),
        }
    }

    /// Whether the address is one of this network.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.managed().is_some_and(|managed| match address {
            IpAddr::V4(ip) => managed.ip4.as_ref().is_some_and(|ip4| ip4.network.contains(&ip)),
            IpAddr::V6(ip) => managed.ip6.as_ref().is_some_and(|ip6| ip6.network.contains(&ip)),
        })
    }

    /// Addresses of the primary in this network, each with the prefix length of its network.
    pub fn gateways(&self) -> Vec<IpNet> {
        let managed = self.managed();
        let ip6 = managed.and_then(|managed| managed.ip6.as_ref());
        let ip4 = managed.and_then(|managed| managed.ip4.as_ref());
        let ip6 = ip6.and_then(|ip6| Some((IpAddr::V6(ip6.gateway?), ip6.network.prefix_len())));
        let ip4 = ip4.and_then(|ip4| Some((IpAddr::V4(ip4.gateway?), ip4.network.prefix_len())));
        let net = |(address, prefix)| {
            IpNet::new(address, prefix).expect("the prefix length is of a network of that family")
        };
        [ip6, ip4].into_iter().flatten().map(net).collect()
    }

    /// Understands a record. Options are recorded apart.
    ///
    /// # Errors
    /// [`BadNetwork`] if there is no network in it: its number or its kind says nothing.
    pub fn read(record: &NetworkRecord) -> Result<(GuestNetwork, Vec<BadNetwork>), BadNetwork> {
        let vni =
            Vni::parse(&record.vni).ok_or_else(|| BadNetwork::new("vni", &record.vni, VNI_RULE))?;
        let mut reader = FieldReader { bad: Vec::new() };
        let kind = match record.nettype.as_str() {
            "bridged" => GuestNetworkKind::Bridged,
            "managed" => GuestNetworkKind::Managed(Box::new(reader.managed(record))),
            other => return Err(BadNetwork::new("nettype", other, "`managed` or `bridged`")),
        };
        if kind == GuestNetworkKind::Bridged && vni.vlan().is_none() {
            return Err(BadNetwork::new("vni", &record.vni, VLAN_RULE));
        }
        let mtu = reader.field("mtu", &record.mtu, MTU_RULE, |text| {
            text.parse().ok().filter(|mtu| MTUS.contains(mtu))
        });
        let description = record.description.clone();
        let options = NetworkOptions::default();
        Ok((GuestNetwork { vni, description, mtu, options, kind }, reader.bad))
    }
}

/// MTUs that a network can have: IPv4 needs 68 bytes and IPv6 1,280; Ethernet cards end at 65,535.
pub const MTUS: std::ops::RangeInclusive<u32> = 576..=65_535;

/// The MTU of Ethernet, in bytes.
pub const ETHERNET_MTU: u32 = 1500;

const VNI_RULE: &str = "a number from 1 to 16777214";
const VLAN_RULE: &str = "a VLAN's number, 1 to 4094, of a bridged network";
const MTU_RULE: &str = "a number of bytes from 576 to 65535";

/// Whether a field of a record holds nothing: legacy peers write `None`.
pub fn is_unset(text: &str) -> bool {
    matches!(text, "" | "None" | "none")
}

/// Value of a record's flag (`spec/api.md` 2.3).
pub fn is_on(text: &str) -> bool {
    matches!(text.to_ascii_lowercase().as_str(), "y" | "yes" | "t" | "true" | "on" | "1")
}

struct FieldReader {
    bad: Vec<BadNetwork>,
}

impl FieldReader {
    /// Value of a field, if it has one that can be understood.
    fn field<T>(
        &mut self,
        name: &'static str,
        text: &str,
        rule: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        if is_unset(text) {
            return None;
        }
        let value = parse(text);
        if value.is_none() {
            self.bad.push(BadNetwork::new(name, text, rule));
        }
        value
    }

    fn managed(&mut self, record: &NetworkRecord) -> Managed {
        let domain = self.field("domain", &record.domain, "a DNS name", dns_name);
        let mut name_servers = Vec::new();
        for text in &record.name_servers {
            let server = self.field("name_servers", text, "DNS names or addresses", |text| {
                dns_name(text.strip_suffix('.').unwrap_or(text))
            });
            name_servers.extend(server);
        }
        Managed { domain, name_servers, ip4: self.ip4(record), ip6: self.ip6(record) }
    }

    fn ip4(&mut self, record: &NetworkRecord) -> Option<Ip4> {
        let network = self.field("ip4_network", &record.ip4_network, NETWORK_RULE, |text| {
            text.parse::<Ipv4Net>().ok().filter(|net| net.prefix_len() > 0)
        })?;
        let network = network.trunc();
        let is_host = |address: &Ipv4Addr| is_host_of_4(*address, network);
        let gateway = self.field("ip4_gateway", &record.ip4_gateway, HOST_RULE, |text| {
            text.parse().ok().filter(is_host)
        });
        let mut dhcp = None;
        if is_on(&record.dhcp4_flag) {
            let mut bound = |name, text: &str| {
                if is_unset(text) {
                    self.bad.push(BadNetwork::new(name, text, HOST_RULE));
                }
                self.field(name, text, HOST_RULE, |text| text.parse().ok().filter(is_host))
            };
            let start = bound("dhcp4_start", &record.dhcp4_start);
            let end = bound("dhcp4_end", &record.dhcp4_end);
            dhcp = start.zip(end);
            if dhcp.is_some_and(|(start, end)| end < start) {
                let text = &record.dhcp4_end;
                self.bad.push(BadNetwork::new("dhcp4_end", text, "not below `dhcp4_start`"));
                dhcp = None;
            }
        }
        Some(Ip4 { network, gateway, dhcp })
    }

    fn ip6(&mut self, record: &NetworkRecord) -> Option<Ip6> {
        let network = self.field("ip6_network", &record.ip6_network, NETWORK_RULE, |text| {
            text.parse::<Ipv6Net>().ok().filter(|net| net.prefix_len() > 0)
        })?;
        let network = network.trunc();
        let gateway = self.field("ip6_gateway", &record.ip6_gateway, HOST_RULE, |text| {
            text.parse().ok().filter(|address| network.contains(address))
        });
        Some(Ip6 { network, gateway, dhcp: is_on(&record.dhcp6_flag) })
    }
}

const NETWORK_RULE: &str = "a network with its prefix length, as `10.20.1.0/24`";
const HOST_RULE: &str = "an address of a host in the network";

/// Whether a host of `network` can have this address: not its first and last, unless it has no
/// others.
pub fn is_host_of_4(address: Ipv4Addr, network: Ipv4Net) -> bool {
    let is_edge = address == network.network() || address == network.broadcast();
    network.contains(&address) && (network.prefix_len() >= 31 || !is_edge)
}

/// The DNS name in small letters; `None` if it is none: labels of letters, digits, hyphens and
/// underscores, 1 to 63 bytes each and 253 in all.
pub fn dns_name(text: &str) -> Option<String> {
    let is_label = |label: &str| {
        let is_plain = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'_';
        (1..=63).contains(&label.len())
            && label.bytes().all(is_plain)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    (text.len() <= 253 && text.split('.').all(is_label)).then(|| text.to_ascii_lowercase())
}

/// A field of a network's record, or of a request, that does not hold what it should.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("`{field}` is `{found}`, and should be {wanted}")]
pub struct BadNetwork {
    pub field: &'static str,
    /// Beginning of what stands there.
    pub found: String,
    pub wanted: &'static str,
}

impl BadNetwork {
    pub fn new(field: &'static str, found: &str, wanted: &'static str) -> BadNetwork {
        BadNetwork { field, found: crate::shown(found), wanted }
    }
}

/// Networks of VMs by their number, and what of their records is not understood.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuestNetworks {
    pub networks: Vec<GuestNetwork>,
    /// Numbers, as they are recorded, with what is wrong in them.
    pub bad: BTreeSet<(String, BadNetwork)>,
    /// Networks of which there is a record, understood or not: nothing of theirs is removed.
    pub recorded: BTreeSet<Vni>,
}

/// Networks whose addresses PVC manages, by their numbers.
pub(crate) fn managed_by_vni(networks: &[GuestNetwork]) -> BTreeMap<Vni, &GuestNetwork> {
    let managed = networks.iter().filter(|network| network.managed().is_some());
    managed.map(|network| (network.vni, network)).collect()
}

impl GuestNetworks {
    /// Understands all networks of a cluster.
    pub fn of(cluster: &Cluster) -> GuestNetworks {
        let mut all = GuestNetworks::default();
        for (vni, record) in cluster.networks.iter() {
            all.recorded.extend(Vni::parse(vni));
            match GuestNetwork::read(record) {
                Ok((mut network, bad)) => {
                    network.options = cluster
                        .network_options
                        .get(vni)
                        .map_or_else(Default::default, |options| **options);
                    all.bad.extend(bad.into_iter().map(|bad| (vni.clone(), bad)));
                    all.networks.push(network);
                }
                Err(bad) => _ = all.bad.insert((vni.clone(), bad)),
            }
        }
        all.networks.sort_by_key(|network| network.vni);
        all
    }

    /// Records that make no network at all, by their numbers as they are recorded, and why.
    pub fn not_understood(&self) -> impl Iterator<Item = (&str, &BadNetwork)> {
        let numbers = self.networks.iter().map(|network| network.vni.to_string());
        let understood: BTreeSet<String> = numbers.collect();
        let bad = self.bad.iter().filter(move |(vni, _)| !understood.contains(vni));
        bad.map(|(vni, bad)| (vni.as_str(), bad))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> NetworkRecord {
        NetworkRecord {
            vni: "1001".to_owned(),
            description: "net1".to_owned(),
            nettype: "managed".to_owned(),
            domain: "Net1.Example".to_owned(),
            name_servers: vec!["ns1.example.".to_owned()],
            ip4_network: "10.20.1.0/24".to_owned(),
            ip4_gateway: "10.20.1.1".to_owned(),
            dhcp4_flag: "True".to_owned(),
            dhcp4_start: "10.20.1.100".to_owned(),
            dhcp4_end: "10.20.1.199".to_owned(),
            ip6_network: "2001:db8:1::/64".to_owned(),
            ip6_gateway: "2001:db8:1::1".to_owned(),
            dhcp6_flag: "True".to_owned(),
            ..NetworkRecord::default()
        }
    }

    fn bad_fields(record: &NetworkRecord) -> Vec<&'static str> {
        let (_, bad) = GuestNetwork::read(record).unwrap();
        bad.into_iter().map(|bad| bad.field).collect()
    }

    #[test]
    fn a_whole_record_is_understood_whole() {
        let (network, bad) = GuestNetwork::read(&record()).unwrap();
        assert_eq!(bad, []);
        let managed = network.managed().unwrap();
        assert_eq!(managed.domain.as_deref(), Some("net1.example"));
        assert_eq!(managed.name_servers, ["ns1.example"]);
        let dhcp = managed.ip4.as_ref().unwrap().dhcp.unwrap();
        assert_eq!(dhcp, ("10.20.1.100".parse().unwrap(), "10.20.1.199".parse().unwrap()));
        let gateways: Vec<String> = network.gateways().iter().map(ToString::to_string).collect();
        assert_eq!(gateways, ["2001:db8:1::1/64", "10.20.1.1/24"]);
        assert_eq!(network.vni.bridge(), "vmbr1001");
        assert_eq!(Vni::of_bridge("vmbr1001"), Some(network.vni));
    }

    /// PVC 1.0.3 writes the word `None` for what is not given (lesson H15).
    #[test]
    fn what_is_unset_is_not_wrong() {
        for none in ["", "None"] {
            let none = none.to_owned();
            let unset = NetworkRecord {
                mtu: none.clone(),
                domain: none.clone(),
                name_servers: vec![none.clone()],
                ip4_network: none.clone(),
                ip4_gateway: none.clone(),
                ip6_network: none.clone(),
                ip6_gateway: none.clone(),
                dhcp4_flag: none.clone(),
                dhcp6_flag: none,
                ..record()
            };
            let (network, bad) = GuestNetwork::read(&unset).unwrap();
            assert_eq!((network.mtu, bad), (None, Vec::new()));
            assert_eq!(network.managed(), Some(&Managed::default()));
        }
    }

    #[test]
    fn what_is_not_understood_takes_nothing_else_down() {
        let mut half = record();
        half.ip4_gateway = "10.20.2.1".to_owned();
        half.ip6_network = "2001:db8::/129".to_owned();
        half.domain = "two words".to_owned();
        half.mtu = "70000".to_owned();
        assert_eq!(bad_fields(&half), ["domain", "ip4_gateway", "ip6_network", "mtu"]);
        let (network, _) = GuestNetwork::read(&half).unwrap();
        let managed = network.managed().unwrap();
        assert_eq!((managed.ip6.as_ref(), network.mtu), (None, None));
        let ip4 = managed.ip4.as_ref().unwrap();
        assert!(ip4.gateway.is_none() && ip4.dhcp.is_some());
    }

    #[test]
    fn a_range_that_is_no_range_gives_no_addresses() {
        for (start, end, bad) in [
            ("10.20.1.199", "10.20.1.100", "dhcp4_end"),
            ("10.20.2.100", "10.20.1.199", "dhcp4_start"),
            ("10.20.1.0", "10.20.1.199", "dhcp4_start"),
            ("10.20.1.100", "10.20.1.255", "dhcp4_end"),
            ("10.20.1.100", "None", "dhcp4_end"),
        ] {
            let wrong =
                NetworkRecord { dhcp4_start: start.into(), dhcp4_end: end.into(), ..record() };
            assert_eq!(bad_fields(&wrong), [bad], "{start} to {end}");
            let (network, _) = GuestNetwork::read(&wrong).unwrap();
            assert_eq!(network.managed().unwrap().ip4.as_ref().unwrap().dhcp, None);
        }
    }

    #[test]
    fn a_record_without_number_or_kind_is_no_network_and_still_recorded() {
        for (vni, nettype) in [
            ("0", "managed"),
            ("16777215", "managed"),
            ("abc", "managed"),
            ("+5", "managed"),
            ("05", "managed"),
            ("5000", "bridged"),
            ("5", ""),
            ("5", "other"),
        ] {
            let wrong = NetworkRecord { vni: vni.into(), nettype: nettype.into(), ..record() };
            assert!(GuestNetwork::read(&wrong).is_err(), "{vni} {nettype}");
        }
        let mut cluster = Cluster::default();
        let half = NetworkRecord { vni: "5".into(), ..NetworkRecord::default() };
        cluster.networks.insert("5".to_owned(), std::sync::Arc::new(half));
        let all = GuestNetworks::of(&cluster);
        assert!(all.networks.is_empty() && all.bad.len() == 1);
        assert_eq!(all.recorded, BTreeSet::from([Vni::new(5).unwrap()]));
        let other = NetworkRecord { mtu: "x".into(), ..record() };
        cluster.networks.insert("1001".to_owned(), std::sync::Arc::new(other));
        let all = GuestNetworks::of(&cluster);
        assert_eq!(all.bad.len(), 2);
        let none: Vec<(&str, &str)> =
            all.not_understood().map(|(vni, bad)| (vni, bad.field)).collect();
        assert_eq!(none, [("5", "nettype")]);
    }

    #[test]
    fn domains_are_names_of_dns() {
        let long = "a".repeat(64);
        for bad in ["", ".", "a..b", "a b", "-a", "a-", "é.example", "a/b", &long, "a\n"] {
            assert_eq!(dns_name(bad), None, "{bad:?}");
        }
        for good in ["local", "net1.example", "_tcp.x", "1.2"] {
            assert_eq!(dns_name(good).as_deref(), Some(good));
        }
    }
}
