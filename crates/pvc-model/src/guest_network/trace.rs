//! The way of one packet from a VM: what it meets, and where it ends; and of the answer to it.
//!
//! ```text
//!  records ─ TraceIndex::of ─▶ TraceIndex ─┐
//!  records, and what the API's node knows ─┤
//!                                          ├─ trace ─▶ Trace { there, back }
//!  VM, target, protocol, port ─────────────┘            steps, end, what it depends on
//! ```
//!
//! It says what the records come to, and sends nothing. What is not known is never guessed: a rule
//! that may or may not match is named, if the end depends on it, and so is what is taken for
//! granted.

mod index;
mod judge;
mod walk;

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use super::Vni;
use super::request::Neighbour;
use crate::NodeName;
use crate::cluster::Cluster;
use crate::link::IpNet;
use crate::network::{AclRecord, Direction};
use crate::shown;
use crate::vm::VmRecord;

pub use index::TraceIndex;
pub use judge::Verdict;

/// Protocol of a packet; of ICMP it is an echo request, and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Tcp,
    Udp,
    Icmp,
}

impl Protocol {
    pub fn as_str(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Icmp => "icmp",
        }
    }

    fn number(self, is_ip4: bool) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Icmp if is_ip4 => 1,
            Protocol::Icmp => 58,
        }
    }
}

/// Packet that is asked about, the first of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question<'a> {
    /// An address, or a VM by name or UUID.
    pub target: &'a str,
    /// The network whose interface it leaves by, by VNI or description.
    pub network: Option<&'a str>,
    pub protocol: Option<Protocol>,
    /// Destination port; only with TCP and UDP.
    pub port: Option<u16>,
}

/// Knowledge of the node that is asked, beside the records.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings<'a> {
    /// The networks between the nodes, by their names.
    pub neighbours: &'a [Neighbour],
    /// Addresses of the nodes, and networks between them: see `rules::NetworkFilter::nodes`.
    pub nodes: &'a BTreeSet<IpNet>,
    pub node: &'a NodeName,
    /// Addresses of that node.
    pub own: &'a BTreeSet<IpAddr>,
    /// Addresses of whichever node is primary.
    pub floating: &'a BTreeSet<IpAddr>,
}

/// Reason why there is nothing to trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TraceRefusal {
    #[error("`{target}` is neither an address nor a VM")]
    NoTarget { target: String },
    #[error("`{address}` is {what}, and no single machine's")]
    NotUnicast { address: IpAddr, what: &'static str },
    #[error("that is `{vm}` itself")]
    Itself { vm: String },
    #[error("no address of VM `{vm}` is known")]
    NoAddress { vm: String },
    #[error("there is no network `{network}`")]
    NoNetwork { network: String },
    #[error("VM `{vm}` has no interface in network `{network}`")]
    NotPluggedIn { vm: String, network: String },
    #[error("VM `{vm}` has no network interface")]
    NoInterface { vm: String },
    #[error("the definition of VM `{vm}` cannot be read")]
    NoDefinition { vm: String },
    #[error("a port is one of `tcp` or `udp`, and the protocol is neither")]
    PortWithoutProtocol,
}

impl TraceRefusal {
    /// The parameter that is at fault; `None` for the VM itself.
    pub fn parameter(&self) -> Option<&'static str> {
        match self {
            TraceRefusal::NoTarget { .. }
            | TraceRefusal::NotUnicast { .. }
            | TraceRefusal::Itself { .. }
            | TraceRefusal::NoAddress { .. } => Some("target"),
            TraceRefusal::NoNetwork { .. } | TraceRefusal::NotPluggedIn { .. } => Some("network"),
            TraceRefusal::PortWithoutProtocol => Some("port"),
            TraceRefusal::NoInterface { .. } | TraceRefusal::NoDefinition { .. } => None,
        }
    }

    /// Advice about what to do.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            TraceRefusal::NoTarget { .. } => {
                Some("names of hosts are not looked up; `pvc vm list` lists the VMs")
            }
            TraceRefusal::NoAddress { .. } => Some("give the address that it has"),
            TraceRefusal::NoNetwork { .. } => Some("`pvc network list` lists them"),
            TraceRefusal::PortWithoutProtocol => Some("say `tcp` or `udp` as well"),
            _ => None,
        }
    }
}

/// A packet's way and that of its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    pub there: Way,
    /// `None` if nobody answers, or who does is no business of PVC's.
    pub back: Option<Way>,
}

impl Trace {
    /// Whether the packet and its answer arrive, if all is so that is assumed, and nothing that is
    /// not known changes that.
    pub fn passes(&self) -> bool {
        let passes = |way: &Way| way.end.is_arrival() && way.depends.is_empty();
        passes(&self.there) && self.back.as_ref().is_none_or(passes)
    }
}

/// Way of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// Addresses, where they are known.
    pub from: Option<IpAddr>,
    pub to: Option<IpAddr>,
    pub steps: Vec<Step>,
    pub end: End,
    /// Unknowns that may make it end in another way.
    pub depends: Vec<Unknown>,
    /// Assumptions, which nobody has looked after.
    pub assumed: BTreeSet<Assumption>,
}

/// Source from which the address of an interface is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressBy {
    Reservation,
    Lease,
    /// Made of its MAC address, as guests do with IPv6 (EUI-64).
    Mac,
    Unknown,
}

/// Rule of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedRule {
    pub vni: Vni,
    pub direction: Direction,
    pub order: u32,
    /// Beginning of it, as of the rule.
    pub description: String,
    pub rule: String,
}

impl NamedRule {
    fn of(vni: Vni, acl: &AclRecord) -> NamedRule {
        NamedRule {
            vni,
            direction: acl.direction,
            order: acl.order,
            description: shown(&acl.description),
            rule: shown(acl.rule.trim()),
        }
    }
}

impl fmt::Display for NamedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NamedRule { vni, direction, order, description, rule } = self;
        let direction = direction.as_str();
        write!(f, "`{description}` ({direction} {order}) of network {vni}: `{rule}`")
    }
}

/// Something that a packet meets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Interface {
        vm: String,
        mac: String,
        network: String,
        address: Option<IpAddr>,
        by: AddressBy,
    },
    Node {
        vm: String,
        node: NodeName,
    },
    Bridge {
        node: NodeName,
        link: String,
    },
    /// An SR-IOV function, or whatever else is no bridge.
    Device {
        node: NodeName,
        device: String,
    },
    /// The guard of the port lets it in.
    Guard {
        node: NodeName,
        vni: Vni,
    },
    Vlan {
        node: NodeName,
        vni: Vni,
    },
    Tunnel {
        vni: Vni,
        from: TunnelEnd,
        to: TunnelEnd,
    },
    Gateway {
        vni: Vni,
        node: NodeName,
        address: IpAddr,
    },
    /// The rule matches, or may.
    Rule {
        node: NodeName,
        rule: NamedRule,
        is_open: bool,
        verdict: Verdict,
    },
    /// No rule of this direction ends it for certain.
    Unjudged {
        node: NodeName,
        vni: Vni,
        direction: Direction,
        rules: usize,
    },
    Service {
        node: NodeName,
        service: &'static str,
    },
    Masquerade {
        node: NodeName,
        vni: Vni,
    },
    /// Way to the primary from outside.
    Returns {
        node: NodeName,
        by: String,
    },
}

/// Node at an end of a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunnelEnd {
    pub node: NodeName,
    /// Its address on the cluster network, where it is recorded.
    pub address: Option<String>,
}

impl fmt::Display for TunnelEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Some(address) => write!(f, "{} ({})", self.node, shown(address)),
            None => self.node.fmt(f),
        }
    }
}

impl Step {
    /// The kind of step in a word.
    pub fn kind(&self) -> &'static str {
        match self {
            Step::Interface { .. } => "interface",
            Step::Node { .. } => "node",
            Step::Bridge { .. } => "bridge",
            Step::Device { .. } => "device",
            Step::Guard { .. } => "guard",
            Step::Vlan { .. } => "vlan",
            Step::Tunnel { .. } => "tunnel",
            Step::Gateway { .. } => "gateway",
            Step::Rule { .. } => "rule",
            Step::Unjudged { .. } => "unjudged",
            Step::Service { .. } => "service",
            Step::Masquerade { .. } => "masquerade",
            Step::Returns { .. } => "returns",
        }
    }

    /// The node that it happens on; of a tunnel the one that the packet goes to.
    pub fn node(&self) -> Option<&NodeName> {
        match self {
            Step::Interface { .. } => None,
            Step::Tunnel { to, .. } => Some(&to.node),
            Step::Node { node, .. }
            | Step::Bridge { node, .. }
            | Step::Device { node, .. }
            | Step::Guard { node, .. }
            | Step::Vlan { node, .. }
            | Step::Gateway { node, .. }
            | Step::Rule { node, .. }
            | Step::Unjudged { node, .. }
            | Step::Service { node, .. }
            | Step::Masquerade { node, .. }
            | Step::Returns { node, .. } => Some(node),
        }
    }
}

impl Step {
    /// The network that it is about, where it is one of a number.
    pub fn vni(&self) -> Option<Vni> {
        match self {
            Step::Interface { .. }
            | Step::Node { .. }
            | Step::Bridge { .. }
            | Step::Device { .. }
            | Step::Service { .. }
            | Step::Returns { .. } => None,
            Step::Rule { rule, .. } => Some(rule.vni),
            Step::Guard { vni, .. }
            | Step::Vlan { vni, .. }
            | Step::Tunnel { vni, .. }
            | Step::Gateway { vni, .. }
            | Step::Unjudged { vni, .. }
            | Step::Masquerade { vni, .. } => Some(*vni),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Interface { vm, mac, network, address, by } => {
                write!(f, "`{vm}` by {mac} in {network}, ")?;
                match (address, by) {
                    (Some(address), AddressBy::Reservation) => write!(f, "{address} (reserved)"),
                    (Some(address), AddressBy::Lease) => write!(f, "{address} (lease)"),
                    (Some(address), AddressBy::Mac) => write!(f, "{address} (of its MAC address)"),
                    _ => f.write_str("address not known"),
                }
            }
            Step::Node { vm, node } => write!(f, "`{vm}` runs on {node}"),
            Step::Bridge { node, link } => write!(f, "{link} on {node}"),
            Step::Device { node, device } => {
                write!(f, "{device} on {node}, which is no bridge of PVC's")
            }
            Step::Guard { node, vni } => {
                write!(f, "the guard of network {vni} on {node} lets it in")
            }
            Step::Vlan { node, vni } => {
                write!(f, "vlan{vni} on the bridge device of {node}, to the switches")
            }
            Step::Tunnel { vni, from, to } => write!(f, "vxlan{vni} from {from} to {to}"),
            Step::Gateway { vni, node, address } => {
                write!(f, "{address} of network {vni} on {node}, the primary")
            }
            Step::Rule { rule, is_open, verdict, .. } => {
                let does = match verdict {
                    Verdict::Passes => "passes it",
                    Verdict::Drops => "drops it",
                    Verdict::GoesOn => "goes on",
                    Verdict::Open => "does what is not understood",
                };
                match is_open {
                    true => write!(f, "{rule} {does}, if it matches"),
                    false => write!(f, "{rule} {does}"),
                }
            }
            Step::Unjudged { vni, direction, rules, .. } => {
                let direction = direction.as_str();
                match rules {
                    0 => write!(f, "network {vni} has no rules `{direction}`: it passes"),
                    _ => write!(
                        f,
                        "no rule `{direction}` of network {vni} is sure to match: it passes"
                    ),
                }
            }
            Step::Service { node, service } => write!(f, "{node} lets guests have {service}"),
            Step::Masquerade { node, vni } => {
                write!(f, "goes on under the address of {node}, as network {vni} asks for")
            }
            Step::Returns { node, by } => write!(f, "to {node}, the primary, by {by}"),
        }
    }
}

/// End of a packet's way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    Vm {
        vm: String,
        node: NodeName,
    },
    Node {
        node: NodeName,
    },
    /// Out of PVC's hands: what it meets from there on is others'.
    Leaves {
        node: NodeName,
        by: String,
    },
    Dropped {
        node: NodeName,
        by: Dropper,
    },
    /// Nobody known has the address. `note` says what is known of it.
    Nobody {
        vni: Vni,
        address: Option<IpAddr>,
        note: String,
    },
    Off {
        vm: String,
    },
    NoGateway {
        vni: Vni,
        why: &'static str,
    },
    /// The network has no record, or one that is not understood.
    NoNetwork {
        vni: Vni,
    },
}

/// Cause for which a packet is dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dropper {
    Rule(NamedRule),
    /// Rules behind those that are taken are missing.
    Cut {
        vni: Vni,
        direction: Direction,
    },
    /// The guard of a network against guests that send as others.
    Guard {
        vni: Vni,
    },
    /// The guard, for which no guest is a DHCP server.
    GuardOfDhcp {
        vni: Vni,
    },
    /// The rule that no guest speaks as a node.
    AsNode,
    /// The rule that no guest sends into the tunnels between the nodes.
    IntoTunnels,
    /// The rule that a guest reaches only services of its node.
    NoService,
}

impl End {
    /// The kind of end in a word.
    pub fn kind(&self) -> &'static str {
        match self {
            End::Vm { .. } => "vm",
            End::Node { .. } => "node",
            End::Leaves { .. } => "leaves",
            End::Dropped { .. } => "dropped",
            End::Nobody { .. } => "nobody",
            End::Off { .. } => "off",
            End::NoGateway { .. } => "no-gateway",
            End::NoNetwork { .. } => "no-network",
        }
    }

    /// The node on which it ends.
    pub fn node(&self) -> Option<&NodeName> {
        match self {
            End::Vm { node, .. }
            | End::Node { node }
            | End::Leaves { node, .. }
            | End::Dropped { node, .. } => Some(node),
            End::Nobody { .. }
            | End::Off { .. }
            | End::NoGateway { .. }
            | End::NoNetwork { .. } => None,
        }
    }

    /// Whether it gets to somebody, or out of the cluster.
    pub fn is_arrival(&self) -> bool {
        matches!(self, End::Vm { .. } | End::Node { .. } | End::Leaves { .. })
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Vm { vm, node } => write!(f, "delivered to VM `{vm}` on {node}"),
            End::Node { node } => write!(f, "delivered to node {node}"),
            End::Leaves { node, by } => write!(f, "leaves {node} by {by}"),
            End::Dropped { node, by } => write!(f, "dropped on {node} by {by}"),
            End::Nobody { vni, address, note } => {
                match address {
                    Some(address) => write!(f, "nobody known has {address} in network {vni}")?,
                    None => write!(f, "nobody known has the address in network {vni}")?,
                }
                if note.is_empty() { Ok(()) } else { write!(f, ": {note}") }
            }
            End::Off { vm } => write!(f, "VM `{vm}` is off"),
            End::NoGateway { vni, why } => write!(f, "network {vni} has no gateway: {why}"),
            End::NoNetwork { vni } => write!(
                f,
                "network {vni} has no record that is understood: nothing comes in or goes out of it"
            ),
        }
    }
}

impl fmt::Display for Dropper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dropper::Rule(rule) => write!(f, "rule {rule}"),
            Dropper::Cut { vni, direction } => write!(
                f,
                "the end of the rules `{}` of network {vni}, of which one is not taken",
                direction.as_str()
            ),
            Dropper::Guard { vni } => {
                write!(f, "the guard of network {vni}: DHCP has given it no such address")
            }
            Dropper::GuardOfDhcp { vni } => {
                write!(f, "the guard of network {vni}: no guest answers as a DHCP server")
            }
            Dropper::AsNode => f.write_str("the rule that no guest sends from a node's address"),
            Dropper::IntoTunnels => {
                f.write_str("the rule that no guest sends into the tunnels between the nodes")
            }
            Dropper::NoService => f.write_str(
                "the rule of what guests reach on a node: ICMP, DNS, DHCP, NTP and metadata",
            ),
        }
    }
}

/// Something not known, on which the end depends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    #[error("rule {rule}: it is not known whether it matches{}", what_then(*verdict))]
    Rule { rule: NamedRule, verdict: Verdict },
    #[error("{more} more rules of network {vni} of which that is not known")]
    MoreRules { vni: Vni, more: usize },
    #[error(
        "rule `{description}` ({}) of network {vni} is not taken ({why}): nodes keep the rules \
         that they had, or drop what those before it leave", direction.as_str()
    )]
    Cut { vni: Vni, direction: Direction, description: String, why: String },
    #[error("rules of network {vni} are not all taken: fault `{fault}`")]
    RulesFault { vni: Vni, fault: String },
    #[error("whether fault `{fault}` stands in its way")]
    Fault { fault: String },
    #[error("whether VM `{vm}` runs on {node}, as recorded: {node} does not report it")]
    NotReported { vm: String, node: NodeName },
    #[error("whether {node} does its work: its daemon is in the state `{state}`")]
    DaemonState { node: NodeName, state: String },
    #[error("{node} runs PVC 1.0.3, which has other rules than these")]
    Legacy { node: NodeName },
    #[error("whether VM `{vm}` gets it: another VM has the MAC address {mac} as well")]
    OnlyMac { vm: String, mac: String },
    #[error("whether {address} is an address of {node} itself, where guests reach services alone")]
    NotOfPrimary { address: IpAddr, node: NodeName },
    #[error("what the primary lets in that comes from outside: its own firewall decides")]
    FromOutside,
    #[error("whether {node} has the bridge of network {vni} still")]
    Closed { node: NodeName, vni: Vni },
    #[error(
        "guests reach only ICMP, DNS (53), DHCP (67), NTP (123) and metadata (169.254.169.254, \
         port 80) on a node, and protocol or port are not given"
    )]
    Service,
    #[error("whether {node} forwards packets: no network that masquerades has asked for it")]
    Forwarding { node: NodeName },
}

fn what_then(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Passes => "; if so it passes",
        Verdict::Drops => "; if so it is dropped",
        Verdict::GoesOn => "",
        Verdict::Open => ", nor what then",
    }
}

/// Something taken for granted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Assumption {
    #[error("VM `{vm}` has an address of network {vni}, of which none is known for certain")]
    Address { vm: String, vni: Vni },
    #[error("VM `{vm}` has the address that is made of its MAC address")]
    AddressOfMac { vm: String },
    #[error("VM `{vm}` sends by this interface, of several: its own routes decide")]
    Interface { vm: String },
    #[error("who gets it knows a way back to network {vni}, whose addresses it sees")]
    WayBack { vni: Vni },
    #[error("{by} gets it there and lets it in: that is not PVC's")]
    Others { by: String },
}

/// Follows a packet of a VM, and the answer to it. `index` [is of](TraceIndex::is_of) this cluster.
///
/// # Errors
/// [`TraceRefusal`] if the question makes no sense.
pub fn trace(
    cluster: &Cluster,
    index: &TraceIndex,
    around: Surroundings<'_>,
    vm: &VmRecord,
    question: Question<'_>,
) -> Result<Trace, TraceRefusal> {
    walk::trace(cluster, index, around, vm, question)
}

#[cfg(test)]
mod tests;
