//! Refusals of what an operator asks of networks.

use std::net::Ipv4Addr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::BadNetwork;
use super::acl::BadRule;
use crate::refusal::Kind;

/// Reason why something that is asked of a network is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetworkRefusal {
    #[error("there is no network `{network}`")]
    NoNetwork { network: String },
    #[error(transparent)]
    Field(#[from] BadNetwork),
    #[error("another change of network {vni} `{description}` waits to be confirmed")]
    Unconfirmed { vni: String, description: String },
    #[error("no change of network {vni} `{description}` waits to be confirmed")]
    NothingUnconfirmed { vni: String, description: String },
    #[error("nothing is to be changed")]
    NothingGiven,
    #[error("there is network {vni} `{description}` already")]
    Taken { vni: String, description: String },
    #[error("network {vni} `{description}` has the domain `{domain}` already")]
    DomainTaken { domain: String, vni: String, description: String },
    #[error("no number is free")]
    NoneFree,
    #[error("a description cannot {why}")]
    BadDescription { why: &'static str },
    #[error("`{field}` is `{found}`, an address in the network {meant}")]
    HostBits { field: &'static str, found: String, meant: IpNet },
    #[error("`{field}` {net} has {what} in it")]
    Special { field: &'static str, net: IpNet, what: &'static str },
    #[error("`{field}` {net} overlaps {other}")]
    Overlap { field: &'static str, net: IpNet, other: String },
    #[error("the networks that this machine is in are not known: {why}")]
    MachineUnknown { why: String },
    #[error("`{field}` is {value}, and there is no network that it would be in")]
    NoNetworkFor { field: &'static str, value: String },
    #[error("`{field}` {found} is not an address of a host in {net}")]
    NotInNetwork { field: &'static str, found: String, net: IpNet },
    #[error("DHCP would give addresses from {start} back to {end}")]
    BackwardRange { start: Ipv4Addr, end: Ipv4Addr },
    #[error("DHCP would give the gateway's address {gateway}, between {start} and {end}")]
    GatewayInRange { gateway: Ipv4Addr, start: Ipv4Addr, end: Ipv4Addr },
    #[error("only one of `dhcp4_start` and `dhcp4_end` is set")]
    HalfRange,
    #[error("DHCP for IPv4 needs `{what}`")]
    DhcpLacks { what: &'static str },
    #[error("guests make their addresses in networks of 64 bits alone, and {net} is none")]
    NoSlaac { net: Ipv6Net },
    #[error("an MTU of {mtu} bytes is too small for IPv6, which needs 1280")]
    MtuBelowIp6 { mtu: u32 },
    #[error("`{what}` is for managed networks, and this one is bridged")]
    NotManaged { what: &'static str },
    #[error("network {vni} `{description}` is used by {users}")]
    InUse { vni: String, description: String, users: String },
    #[error("`{mac}` is not the MAC address of a network card")]
    BadMac { mac: String },
    #[error("network {vni} has no IPv4 network in which an address could be reserved")]
    NoAddresses { vni: String },
    #[error("`{address}` is {of}")]
    AddressTaken { address: Ipv4Addr, of: String },
    #[error("{address}, reserved for `{mac}`, would be in no network")]
    ReservedInNone { address: Ipv4Addr, mac: String },
    #[error("{address}, reserved for `{mac}`, is not an address of a host in {net}")]
    ReservedOutside { address: Ipv4Addr, mac: String, net: Ipv4Net },
    #[error("MAC address `{mac}` has a reservation already, for {address}")]
    Reserved { mac: String, address: String },
    #[error(
        "`{hostname}` is not a host name: letters, digits and hyphens, at most 63, and \
         no time as `12h`, `infinite` or `ignore`"
    )]
    BadHostname { hostname: String },
    #[error("host name `{hostname}` is reserved for `{mac}` already")]
    HostnameTaken { hostname: String, mac: String },
    #[error("network {vni} has no lease of `{which}`")]
    NoLease { vni: String, which: String },
    #[error("`{which}` is that of several leases: {macs}")]
    SeveralLeases { which: String, macs: String },
    #[error("network {vni} has a rule `{description}` already, in direction `{direction}`")]
    RuleExists { vni: String, description: String, direction: &'static str },
    #[error("this machine has no device for bridged networks")]
    NoBridgeDevice,
    #[error("network {vni} has no rule `{description}`")]
    NoRule { vni: String, description: String },
    #[error(
        "only a part of rule `{description}` of network {vni} is recorded, its text or its order, \
         and it could not be put back as it was"
    )]
    HalfRule { vni: String, description: String },
    #[error("network {vni} has {count} rules in this direction, and cannot have more")]
    ManyRules { vni: String, count: usize },
    #[error(
        "the rules of all networks have {present} bytes, and with {added} more than the {most} \
         that each node loads"
    )]
    RulesTooLarge { present: usize, added: usize, most: usize },
    #[error("the rule is not taken")]
    Rule(#[from] BadRule),
}

impl NetworkRefusal {
    pub fn kind(&self) -> Kind {
        match self {
            NetworkRefusal::NoNetwork { .. }
            | NetworkRefusal::NoLease { .. }
            | NetworkRefusal::NoRule { .. } => Kind::NotFound,
            NetworkRefusal::Unconfirmed { .. }
            | NetworkRefusal::NothingUnconfirmed { .. }
            | NetworkRefusal::NoBridgeDevice
            | NetworkRefusal::Taken { .. }
            | NetworkRefusal::DomainTaken { .. }
            | NetworkRefusal::NoneFree
            | NetworkRefusal::Overlap { .. }
            | NetworkRefusal::InUse { .. }
            | NetworkRefusal::NotManaged { .. }
            | NetworkRefusal::NoAddresses { .. }
            | NetworkRefusal::AddressTaken { .. }
            | NetworkRefusal::HostnameTaken { .. }
            | NetworkRefusal::Reserved { .. }
            | NetworkRefusal::ReservedInNone { .. }
            | NetworkRefusal::ReservedOutside { .. }
            | NetworkRefusal::SeveralLeases { .. }
            | NetworkRefusal::RuleExists { .. }
            | NetworkRefusal::HalfRule { .. }
            | NetworkRefusal::ManyRules { .. }
            | NetworkRefusal::RulesTooLarge { .. } => Kind::Conflict,
            NetworkRefusal::MachineUnknown { .. } => Kind::Unavailable,
            _ => Kind::Invalid,
        }
    }

    /// Advice about what to do, if more can be said than the message does.
    pub fn hint(&self) -> Option<String> {
        if let NetworkRefusal::HostBits { meant, .. } = self {
            return Some(format!("give {meant} if that network is meant"));
        }
        let hint = self.hint_of_networks().or_else(|| self.hint_of_addresses());
        let hint = hint.or_else(|| self.hint_of_leases()).or_else(|| self.hint_of_rules());
        hint.map(str::to_owned)
    }

    /// Advice about a network as a whole.
    fn hint_of_networks(&self) -> Option<&'static str> {
        Some(match self {
            NetworkRefusal::NoNetwork { .. } => "`pvc network list` shows the networks",
            NetworkRefusal::Unconfirmed { .. } => {
                "`pvc network confirm` keeps it; else it is taken back when its time is over"
            }
            NetworkRefusal::NothingUnconfirmed { .. } => {
                "it was confirmed, or it was taken back because its time was over"
            }
            NetworkRefusal::NoBridgeDevice => {
                "name a network card, bond or bridge port in `guest_networking.bridge_device` of \
                 the configuration, and restart the daemon; a managed network needs none"
            }
            NetworkRefusal::NothingGiven => "give at least one of the options",
            NetworkRefusal::Taken { .. } | NetworkRefusal::NoneFree => {
                "`pvc network list` shows the networks; the VNI `auto` is the next free one"
            }
            NetworkRefusal::Field(BadNetwork { field: "vni", .. }) => {
                "`auto` is the next free one; a bridged network's number is its VLAN's"
            }
            NetworkRefusal::NotManaged { .. } => {
                "the routers and switches of a bridged network are others', who give it addresses \
                 and filter it"
            }
            NetworkRefusal::InUse { .. } => {
                "`pvc vm network remove` unplugs a VM; `--force` removes the network all the same, \
                 and those VMs cannot start then"
            }
            NetworkRefusal::DomainTaken { .. } => "`--domain` gives it another",
            _ => return None,
        })
    }

    /// Advice about the addresses of a network.
    fn hint_of_addresses(&self) -> Option<&'static str> {
        Some(match self {
            NetworkRefusal::Special { .. } => {
                "private networks lie in 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 and fd00::/8"
            }
            NetworkRefusal::Overlap { .. } => {
                "guests could not reach one of the two; `pvc network list` shows the networks of \
                 VMs"
            }
            NetworkRefusal::NoNetworkFor { .. } => {
                "give the network as well, such as `10.20.1.0/24`"
            }
            NetworkRefusal::NotInNetwork { net: IpNet::V4(_), .. } => {
                "its first and last address are no host's; with another network its gateway and \
                 its range for DHCP are given anew"
            }
            NetworkRefusal::NotInNetwork { net: IpNet::V6(_), .. } => {
                "its first address is that of any router in it"
            }
            NetworkRefusal::HalfRange => "give both, or clear both",
            NetworkRefusal::GatewayInRange { .. } => {
                "begin the range behind the gateway, or end it before"
            }
            NetworkRefusal::DhcpLacks { .. } => {
                "the gateway answers the guests, and gives them addresses of that range"
            }
            NetworkRefusal::NoSlaac { .. } => {
                "give a network of 64 bits; `fd00::/8` has some for everybody"
            }
            _ => return None,
        })
    }

    /// Advice about leases and reservations.
    fn hint_of_leases(&self) -> Option<&'static str> {
        Some(match self {
            NetworkRefusal::BadMac { .. } => "such as `52:54:00:12:34:56`",
            NetworkRefusal::NoAddresses { .. } => {
                "`pvc network modify` gives it one with `--ipnet`"
            }
            NetworkRefusal::Reserved { .. }
            | NetworkRefusal::HostnameTaken { .. }
            | NetworkRefusal::ReservedInNone { .. }
            | NetworkRefusal::ReservedOutside { .. } => {
                "`pvc network dhcp remove` removes a reservation"
            }
            NetworkRefusal::AddressTaken { .. } | NetworkRefusal::NoLease { .. } => {
                "`pvc network dhcp list` shows the leases"
            }
            NetworkRefusal::SeveralLeases { .. } => {
                "name the one that is meant by its address or its MAC address"
            }
            _ => return None,
        })
    }

    /// Advice about rules of the firewall.
    fn hint_of_rules(&self) -> Option<&'static str> {
        Some(match self {
            NetworkRefusal::RuleExists { .. } | NetworkRefusal::NoRule { .. } => {
                "`pvc network acl list` shows the rules"
            }
            NetworkRefusal::HalfRule { .. } => "without `--confirm` it is removed for good",
            NetworkRefusal::RulesTooLarge { .. } => {
                "rules with sets of addresses and ports in them take the place of many; `pvc \
                 network acl list` shows the rules of a network"
            }
            NetworkRefusal::Rule(_) => {
                "a rule is what nft takes as match and verdict, such as `tcp dport 22 accept`"
            }
            _ => return None,
        })
    }
}
