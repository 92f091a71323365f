//! Networks that an operator asks for: what is refused, and what is recorded of the rest.
//!
//! A field that is not given stays as it is, and an empty one is cleared. What is refused is what
//! the ask makes wrong: a record that was wrong before can be mended field by field.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::plan::is_marked;
use super::refusal::NetworkRefusal;
use super::{
    BadNetwork, GuestNetwork, MTU_RULE, MTUS, NETWORK_RULE, VLAN_RULE, VNI_RULE, Vni, dns_name,
    is_host_of_4, is_on, is_unset, unconfirmed,
};
use crate::cluster::Cluster;
use crate::domain::NicKind;
use crate::link::{Link, Links};
use crate::network::{NetworkOptions, NetworkRecord};
use crate::network_core::CoreNet;
use crate::shown;
use crate::vm::VmRecord;

/// Number of a network that is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewVni {
    Given(Vni),
    /// The smallest that nobody uses: of managed networks from 1000 on, so that those below stay
    /// for VLANs; of bridged ones from 2 on, as 1 is what switches do without VLANs in.
    Free,
}

impl NewVni {
    /// Reads a VNI as operators write it, `auto` for a free one.
    ///
    /// # Errors
    /// If it is neither.
    pub fn parse(text: &str) -> Result<NewVni, BadNetwork> {
        if text == "auto" {
            return Ok(NewVni::Free);
        }
        Vni::parse(text).map(NewVni::Given).ok_or_else(|| BadNetwork::new("vni", text, VNI_RULE))
    }
}

const FIRST_FREE_MANAGED: u32 = 1000;
const FIRST_FREE_BRIDGED: u32 = 2;

/// A network that is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewNetwork {
    pub vni: NewVni,
    pub description: String,
    /// Whether it is one of PVC's own, and not a VLAN of the switches.
    pub managed: bool,
    /// Of these, the description is not used.
    pub fields: NetworkFields,
}

/// Fields of a network as an operator gives them: `None` for what stays as it is, and an empty text
/// for what is cleared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkFields {
    pub description: Option<String>,
    pub mtu: Option<String>,
    pub domain: Option<String>,
    pub name_servers: Option<Vec<String>>,
    pub ip4_network: Option<String>,
    pub ip4_gateway: Option<String>,
    pub dhcp4: Option<bool>,
    pub dhcp4_start: Option<String>,
    pub dhcp4_end: Option<String>,
    pub ip6_network: Option<String>,
    pub ip6_gateway: Option<String>,
    pub masquerade: Option<bool>,
    pub spoof_guard: Option<bool>,
}

impl NetworkFields {
    /// Whether a network is given that has to have a place beside others.
    pub fn name_network(&self) -> bool {
        [&self.ip4_network, &self.ip6_network]
            .into_iter()
            .flatten()
            .any(|text| !is_unset(text.trim()))
    }
}

/// A network as it is to be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkToRecord {
    /// Without leases and rules.
    pub record: NetworkRecord,
    pub options: NetworkOptions,
}

/// A network that machines are in and that is not one of VMs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    pub network: IpNet,
    /// Behind it in a sentence: "the cluster network".
    pub name: String,
}

/// The networks that a machine is in by the addresses of its links, but for those of VMs, in which
/// it has gateways.
pub fn neighbours(cluster: &Cluster, links: &Links) -> Vec<Neighbour> {
    // What is on the bridge of a VLAN is not PVC's.
    let is_managed = |link: &Link| {
        // One that was removed a moment ago.
        if Vni::of_bridge(&link.name).is_some_and(|vni| is_marked(link, vni)) {
            return true;
        }
        let record = Vni::of_bridge(&link.name).and_then(|vni| cluster.network(&vni.to_string()));
        record.is_some_and(|record| record.nettype != "bridged")
    };
    let on = |link: &Link| {
        let name = format!("which this machine is in by `{}`", shown(&link.name));
        let of = |net: &IpNet| Neighbour { network: net.trunc(), name: name.clone() };
        link.addresses.iter().map(of).collect::<Vec<_>>()
    };
    links.values().filter(|link| !is_managed(link)).flat_map(on).collect()
}

/// The word that legacy peers read as nothing.
const NONE: &str = "None";

/// The most name servers of a network.
const MOST_NAME_SERVERS: usize = 16;

/// The most characters of a description.
const LONGEST_DESCRIPTION: usize = 128;

/// The smallest MTU that IPv6 works with, in bytes.
const SMALLEST_MTU_OF_6: u32 = 1280;

/// Decides on a network that is to be made, beside those that machines are in.
///
/// # Errors
/// What is wrong with it.
pub fn add(
    cluster: &Cluster,
    neighbours: &[Neighbour],
    new: &NewNetwork,
) -> Result<NetworkToRecord, NetworkRefusal> {
    let vni = match new.vni {
        NewVni::Given(vni) => vni,
        NewVni::Free => free_vni(cluster, new.managed)?,
    };
    if !new.managed && vni.vlan().is_none() {
        return Err(BadNetwork::new("vni", &vni.to_string(), VLAN_RULE).into());
    }
    let vni = vni.to_string();
    if let Some(taken) = cluster.network(&vni) {
        let (vni, description) = (taken.vni.clone(), shown(&taken.description));
        return Err(NetworkRefusal::Taken { vni, description });
    }
    let none = || NONE.to_owned();
    let record = NetworkRecord {
        vni,
        nettype: if new.managed { "managed" } else { "bridged" }.to_owned(),
        domain: none(),
        ip4_network: none(),
        ip4_gateway: none(),
        dhcp4_flag: flag(false),
        dhcp4_start: none(),
        dhcp4_end: none(),
        ip6_network: none(),
        ip6_gateway: none(),
        dhcp6_flag: flag(false),
        // Not the word: with it legacy peers give the link no MTU.
        mtu: String::new(),
        ..NetworkRecord::default()
    };
    let mut fields = new.fields.clone();
    fields.description = Some(new.description.clone());
    if new.managed {
        fields.domain.get_or_insert_default();
        // A gateway that is not given and one that is empty mean the same here.
        fields.ip6_gateway = fields.ip6_gateway.filter(|text| !is_unset(text.trim()));
    }
    let options = NetworkOptions::default();
    let mut edit = Edit { cluster, neighbours, fields: &fields, record, options };
    edit.apply()?;
    Ok(NetworkToRecord { record: edit.record, options: edit.options })
}

/// Decides on a change of the network that is called so.
///
/// # Errors
/// What is wrong with it, or that there is no such network.
pub fn modify(
    cluster: &Cluster,
    neighbours: &[Neighbour],
    network: &str,
    fields: &NetworkFields,
) -> Result<NetworkToRecord, NetworkRefusal> {
    if *fields == NetworkFields::default() {
        return Err(NetworkRefusal::NothingGiven);
    }
    let present = find(cluster, network)?;
    unconfirmed::check(cluster, present)?;
    let NetworkToRecord { record, options } = as_recorded(cluster, present);
    let mut edit = Edit { cluster, neighbours, fields, record, options };
    edit.apply()?;
    check_leases(present, &edit.record)?;
    Ok(NetworkToRecord { record: edit.record, options: edit.options })
}

/// The network as it is recorded now.
pub(super) fn as_recorded(cluster: &Cluster, present: &NetworkRecord) -> NetworkToRecord {
    let record = NetworkRecord { leases: Vec::new(), acls: Vec::new(), ..present.clone() };
    let options = cluster.network_options.get(&present.vni);
    let options = options.map_or_else(NetworkOptions::default, |options| **options);
    NetworkToRecord { record, options }
}

/// Whether the leases of a network still have their place in it as it is to be: reservations in
/// another network, and all of them beside another gateway. What DHCP has given of another network
/// ends by itself.
fn check_leases(present: &NetworkRecord, new: &NetworkRecord) -> Result<(), NetworkRefusal> {
    let has_other_network = new.ip4_network != present.ip4_network;
    let gateway = Some(&new.ip4_gateway)
        .filter(|_| has_other_network || new.ip4_gateway != present.ip4_gateway);
    let gateway = gateway.and_then(|text| text.parse::<Ipv4Addr>().ok());
    let net = new.ip4_network.parse::<Ipv4Net>().ok();
    for lease in &present.leases {
        let Ok(address) = lease.address.parse::<Ipv4Addr>() else { continue };
        let (mac, is_reserved) = (shown(&lease.mac), lease.expiry.is_none());
        if gateway == Some(address) {
            let how = if is_reserved { "reserved for" } else { "what DHCP has given to" };
            return Err(NetworkRefusal::AddressTaken { address, of: format!("{how} `{mac}`") });
        }
        if is_reserved && has_other_network {
            let net =
                net.ok_or_else(|| NetworkRefusal::ReservedInNone { address, mac: mac.clone() })?;
            if !is_host_of_4(address, net) {
                return Err(NetworkRefusal::ReservedOutside { address, mac, net });
            }
        }
    }
    Ok(())
}

/// The network by VNI or description.
///
/// # Errors
/// If there is none.
pub fn find<'a>(cluster: &'a Cluster, network: &str) -> Result<&'a NetworkRecord, NetworkRefusal> {
    let found = cluster.network(network).map(AsRef::as_ref);
    found.ok_or_else(|| NetworkRefusal::NoNetwork { network: shown(network) })
}

/// The VMs whose definition plugs them into a network, by its VNI. One whose definition cannot be
/// read is among them if it has the bridge's name in it.
pub fn users<'a>(cluster: &'a Cluster, vni: &'a str) -> impl Iterator<Item = &'a VmRecord> {
    let uses = move |vm: &&VmRecord| match &vm.domain {
        Ok(domain) => {
            domain.nics.iter().any(|nic| matches!(nic.kind, NicKind::Bridge(_)) && nic.vni() == vni)
        }
        Err(_) => ['\'', '"'].iter().any(|quote| vm.xml.contains(&format!("vmbr{vni}{quote}"))),
    };
    cluster.vms.values().map(AsRef::as_ref).filter(uses)
}

/// The smallest number that no network has, and that no VM is still plugged into.
fn free_vni(cluster: &Cluster, managed: bool) -> Result<Vni, NetworkRefusal> {
    let of_vms = cluster.vms.values().filter_map(|vm| vm.domain.as_ref().ok());
    let of_vms = of_vms.flat_map(|domain| &domain.nics).filter_map(|nic| Vni::parse(&nic.vni()));
    let recorded = cluster.networks.keys().filter_map(|vni| Vni::parse(vni));
    // What is described by a number is found by it.
    let described = cluster.networks.values().filter_map(|record| Vni::parse(&record.description));
    let taken: BTreeSet<Vni> = recorded.chain(of_vms).chain(described).collect();
    let range = match managed {
        true => FIRST_FREE_MANAGED..=Vni::MAX,
        false => FIRST_FREE_BRIDGED..=Vni::MAX_VLAN,
    };
    let free = range.filter_map(Vni::new).find(|vni| !taken.contains(vni));
    free.ok_or(NetworkRefusal::NoneFree)
}

/// A record while the fields of an ask are put into it.
struct Edit<'a> {
    cluster: &'a Cluster,
    neighbours: &'a [Neighbour],
    fields: &'a NetworkFields,
    record: NetworkRecord,
    options: NetworkOptions,
}

impl Edit<'_> {
    fn apply(&mut self) -> Result<(), NetworkRefusal> {
        if let Some(description) = &self.fields.description {
            self.check_description(description)?;
            self.record.description.clone_from(description);
        }
        if self.record.nettype != "managed" {
            self.require_no_services()?;
        }
        if let Some(text) = &self.fields.mtu {
            self.record.mtu = mtu(text)?.map_or_else(String::new, |mtu| mtu.to_string());
        }
        if self.record.nettype == "managed" {
            self.names()?;
            self.ip4()?;
            self.ip6()?;
            let NetworkOptions { masquerade, spoof_guard } = self.options;
            self.options = NetworkOptions {
                masquerade: self.fields.masquerade.unwrap_or(masquerade),
                spoof_guard: self.fields.spoof_guard.unwrap_or(spoof_guard),
            };
        }
        Ok(())
    }

    /// A description is a name beside the number: it must not be taken for another's.
    fn check_description(&self, description: &str) -> Result<(), NetworkRefusal> {
        let bad = |why| Err(NetworkRefusal::BadDescription { why });
        check_label(description).or_else(bad)?;
        if CoreNet::named(description).is_some() {
            return bad(
                "be `cluster`, `upstream` or `storage`, as those are networks of the nodes",
            );
        }
        if Vni::parse(description).is_some() && description != self.record.vni {
            return bad("be the number of another network");
        }
        let is_same = |other: &&NetworkRecord| {
            other.description == description && other.vni != self.record.vni
        };
        match unconfirmed::networks(self.cluster).find(is_same) {
            None => Ok(()),
            Some(other) => Err(NetworkRefusal::Taken {
                vni: other.vni.clone(),
                description: shown(&other.description),
            }),
        }
    }

    /// A bridged network has what the switches and routers of others give it.
    fn require_no_services(&self) -> Result<(), NetworkRefusal> {
        let is_given =
            |text: &Option<String>| text.as_ref().is_some_and(|text| !is_unset(text.trim()));
        let given = [
            ("domain", is_given(&self.fields.domain)),
            ("name_servers", self.fields.name_servers.as_ref().is_some_and(|all| !all.is_empty())),
            ("ip4_network", is_given(&self.fields.ip4_network)),
            ("ip4_gateway", is_given(&self.fields.ip4_gateway)),
            ("dhcp4", self.fields.dhcp4 == Some(true)),
            ("dhcp4_start", is_given(&self.fields.dhcp4_start)),
            ("dhcp4_end", is_given(&self.fields.dhcp4_end)),
            ("ip6_network", is_given(&self.fields.ip6_network)),
            ("ip6_gateway", is_given(&self.fields.ip6_gateway)),
            ("masquerade", self.fields.masquerade == Some(true)),
            ("spoof_guard", self.fields.spoof_guard == Some(true)),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            None => Ok(()),
            Some((field, _)) => Err(NetworkRefusal::NotManaged { what: field }),
        }
    }

    fn names(&mut self) -> Result<(), NetworkRefusal> {
        if let Some(text) = &self.fields.domain {
            let domain = match text.trim() {
                text if is_unset(text) => {
                    default_domain(&self.record.description, &self.record.vni)
                }
                text => dns_name(text.strip_suffix('.').unwrap_or(text))
                    .ok_or_else(|| BadNetwork::new("domain", text, DOMAIN_RULE))?,
            };
            if domain != self.record.domain {
                self.check_domain(&domain)?;
                self.record.domain = domain;
            }
        }
        if let Some(servers) = &self.fields.name_servers {
            if servers.len() > MOST_NAME_SERVERS {
                let found = servers.len().to_string();
                return Err(BadNetwork::new("name_servers", &found, SERVERS_RULE).into());
            }
            let server = |text: &String| {
                dns_name(text.strip_suffix('.').unwrap_or(text))
                    .ok_or_else(|| BadNetwork::new("name_servers", text, SERVER_RULE))
            };
            let given = servers.iter().filter(|text| !is_unset(text));
            self.record.name_servers = given.map(server).collect::<Result<_, _>>()?;
        }
        Ok(())
    }

    /// A domain is that of one network: names of guests in two could not be told apart.
    fn check_domain(&self, domain: &str) -> Result<(), NetworkRefusal> {
        let is_same = |other: &&NetworkRecord| {
            other.nettype == "managed"
                && other.vni != self.record.vni
                && other.domain.eq_ignore_ascii_case(domain)
        };
        match unconfirmed::networks(self.cluster).find(is_same) {
            None => Ok(()),
            Some(other) => Err(NetworkRefusal::DomainTaken {
                domain: shown(domain),
                vni: other.vni.clone(),
                description: shown(&other.description),
            }),
        }
    }

    fn ip4(&mut self) -> Result<(), NetworkRefusal> {
        let fields = self.fields;
        let record = &mut self.record;
        if let Some(text) = &fields.ip4_network {
            let net = network::<Ipv4Net>("ip4_network", text)?;
            match net {
                // Where it is already it may stay, whoever else has come there since.
                Some(net) if record.ip4_network.parse() == Ok(net) => {}
                Some(net) => check_place(
                    self.cluster,
                    self.neighbours,
                    &record.vni,
                    "ip4_network",
                    net.into(),
                )?,
                None => record.dhcp4_flag = flag(false),
            }
            record.ip4_network = word(net);
        }
        let has_no_network = is_unset(&record.ip4_network);
        for (name, given, field) in [
            ("ip4_gateway", &fields.ip4_gateway, &mut record.ip4_gateway),
            ("dhcp4_start", &fields.dhcp4_start, &mut record.dhcp4_start),
            ("dhcp4_end", &fields.dhcp4_end, &mut record.dhcp4_end),
        ] {
            match given {
                Some(text) => *field = word(address::<Ipv4Addr>(name, text)?),
                // What was in a network goes with it, and is no reason to refuse anything.
                None if has_no_network => NONE.clone_into(field),
                None => {}
            }
        }
        if let Some(dhcp) = fields.dhcp4 {
            record.dhcp4_flag = flag(dhcp);
        }
        check_ip4(record, fields)
    }

    fn ip6(&mut self) -> Result<(), NetworkRefusal> {
        let fields = self.fields;
        let record = &mut self.record;
        let mut net = record.ip6_network.parse::<Ipv6Net>().ok().map(|net| net.trunc());
        let old = record.ip6_gateway.parse::<Ipv6Addr>().ok();
        if let Some(text) = &fields.ip6_network {
            net = network::<Ipv6Net>("ip6_network", text)?;
            if let Some(net) = net {
                if record.ip6_network.parse() != Ok(net) {
                    check_place(
                        self.cluster,
                        self.neighbours,
                        &record.vni,
                        "ip6_network",
                        net.into(),
                    )?;
                }
                // The gateway goes along, as it is not given with every change.
                let first = Ipv6Addr::from_bits(net.network().to_bits() | 1);
                let kept = old.filter(|old| net.contains(old));
                record.ip6_gateway = kept.unwrap_or(first).to_string();
            }
            record.ip6_network = word(net);
        }
        match &fields.ip6_gateway {
            Some(text) => record.ip6_gateway = word(address::<Ipv6Addr>("ip6_gateway", text)?),
            // PVC 1.0.3 leaves it behind.
            None if is_unset(&record.ip6_network) => NONE.clone_into(&mut record.ip6_gateway),
            None => {}
        }
        let is_network_given = fields.ip6_network.is_some();
        if is_network_given || fields.mtu.is_some() {
            let mtu = record.mtu.parse().ok().filter(|mtu| *mtu < SMALLEST_MTU_OF_6);
            if let Some(mtu) = mtu.filter(|_| net.is_some()) {
                return Err(NetworkRefusal::MtuBelowIp6 { mtu });
            }
        }
        if !is_network_given && fields.ip6_gateway.is_none() {
            return Ok(());
        }
        let gateway = record.ip6_gateway.parse::<Ipv6Addr>().ok();
        if let Some(gateway) = gateway {
            let (field, found) = ("ip6_gateway", gateway.to_string());
            let Some(net) = net else {
                return Err(NetworkRefusal::NoNetworkFor { field, value: found });
            };
            if !net.contains(&gateway) || gateway == net.network() {
                return Err(NetworkRefusal::NotInNetwork { field, found, net: net.into() });
            }
            // Guests of a network that has had another size and a gateway know what they do.
            if net.prefix_len() != 64 && (is_network_given || old.is_none()) {
                return Err(NetworkRefusal::NoSlaac { net });
            }
        }
        // It is the gateway that gives them.
        record.dhcp6_flag = flag(net.is_some() && gateway.is_some());
        Ok(())
    }
}

/// Whether the IPv4 fields of a record fit together, as far as `given` ones depend on each other:
/// what was wrong before is no reason to refuse the rest.
fn check_ip4(record: &NetworkRecord, given: &NetworkFields) -> Result<(), NetworkRefusal> {
    let net = record.ip4_network.parse::<Ipv4Net>().ok().map(|net| net.trunc());
    let read = |text: &str| text.parse::<Ipv4Addr>().ok();
    let gateway = read(&record.ip4_gateway);
    let (start, end) = (read(&record.dhcp4_start), read(&record.dhcp4_end));
    // All of it depends on the network, and DHCP on all of it.
    let is_dhcp_given = given.dhcp4 == Some(true);
    let are_all = given.ip4_network.is_some() || is_dhcp_given;
    let is_gateway = given.ip4_gateway.is_some() || are_all;
    let is_range = given.dhcp4_start.is_some() || given.dhcp4_end.is_some() || are_all;
    for (field, found, is_meant) in [
        ("ip4_gateway", gateway, is_gateway),
        ("dhcp4_start", start, is_range),
        ("dhcp4_end", end, is_range),
    ] {
        let Some(found) = found.filter(|_| is_meant) else { continue };
        let value = found.to_string();
        let net = net.ok_or(NetworkRefusal::NoNetworkFor { field, value })?;
        if !is_host_of_4(found, net) {
            let found = found.to_string();
            return Err(NetworkRefusal::NotInNetwork { field, found, net: net.into() });
        }
    }
    match (start, end) {
        (Some(start), Some(end)) if end < start && is_range => {
            return Err(NetworkRefusal::BackwardRange { start, end });
        }
        (Some(start), Some(end)) if is_gateway || is_range => {
            if let Some(gateway) = gateway.filter(|gateway| (start..=end).contains(gateway)) {
                return Err(NetworkRefusal::GatewayInRange { gateway, start, end });
            }
        }
        (Some(_), None) | (None, Some(_)) if is_range => return Err(NetworkRefusal::HalfRange),
        _ => {}
    }
    if is_on(&record.dhcp4_flag) {
        let lacks = if net.is_none() && are_all {
            Some("ip4_network")
        } else if gateway.is_none() && is_gateway {
            Some("ip4_gateway")
        } else if start.is_none() && is_range {
            Some("dhcp4_start` and `dhcp4_end")
        } else {
            None
        };
        if let Some(what) = lacks {
            return Err(NetworkRefusal::DhcpLacks { what });
        }
    }
    Ok(())
}

const DOMAIN_RULE: &str = "a DNS name: letters, digits and hyphens, in parts with dots between";
const SERVER_RULE: &str = "names of DNS servers, or their IPv4 addresses";
const SERVERS_RULE: &str = "at most 16 servers";
const ADDRESS_RULE: &str = "an address";

/// A flag as legacy peers write it, and compare with.
fn flag(value: bool) -> String {
    if value { "True" } else { "False" }.to_owned()
}

fn word(value: Option<impl ToString>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| value.to_string())
}

fn mtu(text: &str) -> Result<Option<u32>, BadNetwork> {
    match text.trim() {
        text if is_unset(text) => Ok(None),
        text => match text.parse() {
            Ok(mtu) if MTUS.contains(&mtu) => Ok(Some(mtu)),
            _ => Err(BadNetwork::new("mtu", text, MTU_RULE)),
        },
    }
}

fn address<T: FromStr>(field: &'static str, text: &str) -> Result<Option<T>, BadNetwork> {
    match text.trim() {
        text if is_unset(text) => Ok(None),
        text => text.parse().map(Some).map_err(|_| BadNetwork::new(field, text, ADDRESS_RULE)),
    }
}

/// Reads a network that guests may be in.
fn network<T: FromStr + Copy + Into<IpNet>>(
    field: &'static str,
    text: &str,
) -> Result<Option<T>, NetworkRefusal> {
    let text = text.trim();
    if is_unset(text) {
        return Ok(None);
    }
    let bad = || BadNetwork::new(field, text, NETWORK_RULE);
    let read: T = text.parse().map_err(|_| bad())?;
    let net: IpNet = read.into();
    // One address has no room for a gateway and a guest beside it.
    if net.prefix_len() == 0 || net.prefix_len() == net.max_prefix_len() {
        return Err(bad().into());
    }
    if net != net.trunc() {
        let (found, meant) = (shown(text), net.trunc());
        return Err(NetworkRefusal::HostBits { field, found, meant });
    }
    Ok(Some(read))
}

/// Networks that have a meaning of their own, so that no guest can have addresses there.
const SPECIAL: [(&str, &str); 7] = [
    ("0.0.0.0/8", "addresses of nobody"),
    ("127.0.0.0/8", "addresses of each machine for itself"),
    ("169.254.0.0/16", "link-local addresses, and the metadata service's"),
    ("224.0.0.0/3", "multicast and reserved addresses"),
    ("::/8", "reserved addresses"),
    ("fe80::/10", "link-local addresses"),
    ("ff00::/8", "multicast addresses"),
];

/// Whether guests may have addresses in a network: nobody else has it, as far as is known.
fn check_place(
    cluster: &Cluster,
    neighbours: &[Neighbour],
    vni: &str,
    field: &'static str,
    net: IpNet,
) -> Result<(), NetworkRefusal> {
    let overlaps = |other: &IpNet| overlap(&net, other);
    for (special, what) in SPECIAL {
        if overlaps(&special.parse().expect("the table has networks")) {
            return Err(NetworkRefusal::Special { field, net, what });
        }
    }
    let refused = |other: String| Err(NetworkRefusal::Overlap { field, net, other });
    if let Some(other) = neighbours.iter().find(|other| overlaps(&other.network)) {
        return refused(format!("{}, {}", other.network, other.name));
    }
    if let Ok(upstream) = cluster.config.upstream_ip.parse::<IpNet>()
        && overlaps(&upstream.trunc())
    {
        return refused(format!("{}, the upstream network", upstream.trunc()));
    }
    for node in cluster.nodes.values() {
        let address = node.daemon.as_ref().and_then(|note| note.storage_address.as_ref());
        let address = address.and_then(|address| address.parse::<IpAddr>().ok());
        if let Some(address) = address.filter(|address| net.contains(address)) {
            let node = &node.name;
            return refused(format!("the storage network, where node `{node}` has {address}"));
        }
    }
    let others = unconfirmed::networks(cluster).filter(|record| record.vni != vni);
    for (other, _) in others.filter_map(|record| GuestNetwork::read(record).ok()) {
        let Some(managed) = other.managed() else { continue };
        let ip4 = managed.ip4.as_ref().map(|ip4| IpNet::from(ip4.network));
        let ip6 = managed.ip6.as_ref().map(|ip6| IpNet::from(ip6.network));
        if let Some(used) = [ip4, ip6].into_iter().flatten().find(overlaps) {
            let description = shown(&other.description);
            return refused(format!("{used} of network {} `{description}`", other.vni));
        }
    }
    Ok(())
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(&other.network()) || other.contains(&one.network())
}

/// The domain of a network for which none is given: its description and `local`.
fn default_domain(description: &str, vni: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
    let text: String = description.to_ascii_lowercase().chars().map(plain).collect();
    let label = |label: &str| {
        let label = label.trim_matches('-');
        label[..label.len().min(63)].trim_end_matches('-').to_owned()
    };
    let labels: Vec<String> =
        text.split('.').map(label).filter(|label| !label.is_empty()).collect();
    let named = format!("{}.local", labels.join("."));
    dns_name(&named).unwrap_or_else(|| format!("net{vni}.local"))
}

/// Whether a text can be the description of a network or a rule: part of paths here and in the
/// tree, and ASCII, as legacy peers cannot read another.
///
/// # Errors
/// Why not, behind "a description cannot ".
pub(super) fn check_label(text: &str) -> Result<(), &'static str> {
    let is_plain = |c: char| c.is_ascii_graphic() || c == ' ';
    if text.is_empty() {
        Err("be empty")
    } else if text.chars().count() > LONGEST_DESCRIPTION {
        Err("have more than 128 characters")
    } else if !text.chars().all(is_plain) {
        Err("have characters that are not ASCII, or control characters")
    } else if text.contains('/') {
        Err("have a `/`")
    } else if text.trim() != text {
        Err("begin or end with a space")
    } else if matches!(text, "." | "..") {
        Err("be `.` or `..`")
    } else {
        Ok(())
    }
}
