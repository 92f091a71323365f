//! The networks between the nodes, as a node is to have them: devices, bridges, addresses, the way
//! out.
//!
//! ```text
//!  what the configuration says ─┐
//!                               ├─ plan ─▶ steps, in order, and findings
//!  what the machine has ────────┘
//! ```
//!
//! What stands already is adopted, what is missing is made, and what belongs to somebody else is
//! left alone and reported. The plan for a machine on which every step was taken is empty.

mod plan;

use std::fmt;

use ipnet::Ipv4Net;

use crate::link::{IpNet, Route};

pub use plan::{NetworkPlan, Seen, plan, settings};

/// Core network: one of the three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CoreNet {
    Cluster,
    Upstream,
    Storage,
}

impl CoreNet {
    /// All of them, in the order in which a network comes to carry others on the same device.
    pub const ALL: [CoreNet; 3] = [CoreNet::Cluster, CoreNet::Upstream, CoreNet::Storage];

    /// The network of that name: `cluster`, `upstream` or `storage`.
    pub fn named(name: &str) -> Option<CoreNet> {
        CoreNet::ALL.into_iter().find(|net| net.as_str() == name)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            CoreNet::Cluster => "cluster",
            CoreNet::Upstream => "upstream",
            CoreNet::Storage => "storage",
        }
    }

    /// The bridge that is named after this network. VMs may be plugged into it.
    pub const fn bridge(self) -> &'static str {
        match self {
            CoreNet::Cluster => "brcluster",
            CoreNet::Upstream => "brupstream",
            CoreNet::Storage => "brstorage",
        }
    }
}

impl fmt::Display for CoreNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Configuration of the three networks, for one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreNetworks {
    pub cluster: CoreNetwork,
    pub upstream: CoreNetwork,
    pub storage: CoreNetwork,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreNetwork {
    pub device: String,
    pub mtu: u32,
    /// Own address of the node; `None` if it has none on this network.
    pub address: Option<Ipv4Net>,
    /// The router of the default route. Only the upstream network's is used.
    pub gateway: Option<std::net::Ipv4Addr>,
}

impl CoreNetworks {
    pub fn get(&self, net: CoreNet) -> &CoreNetwork {
        match net {
            CoreNet::Cluster => &self.cluster,
            CoreNet::Upstream => &self.upstream,
            CoreNet::Storage => &self.storage,
        }
    }

    /// The network whose bridge carries `net`: the first one on the same device. Networks that
    /// share a device share a bridge, because a device can be a port of one bridge only.
    pub fn carrier(&self, net: CoreNet) -> CoreNet {
        let device = &self.get(net).device;
        CoreNet::ALL.into_iter().find(|other| self.get(*other).device == *device).unwrap_or(net)
    }

    /// The bridge that really carries `net`, where its addresses stand, floating ones too.
    pub fn bridge_of(&self, net: CoreNet) -> &'static str {
        self.carrier(net).bridge()
    }

    /// The bridge that `device` is to be a port of, if any.
    fn bridge_on(&self, device: &str) -> Option<&'static str> {
        self.carriers().find(|net| self.get(*net).device == device).map(CoreNet::bridge)
    }

    /// The networks that have a bridge of their own.
    fn carriers(&self) -> impl Iterator<Item = CoreNet> {
        CoreNet::ALL.into_iter().filter(|net| self.carrier(*net) == *net)
    }
}

/// A change of the machine's network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkStep {
    CreateVlan { link: String, lower: String, id: u16 },
    CreateBridge { link: String },
    SetMtu { link: String, mtu: u32 },
    SwitchOn { link: String },
    SetMaster { link: String, master: String },
    AddAddress { link: String, address: IpNet },
    RemoveAddress { link: String, address: IpNet },
    AddRoute(Route),
    RemoveRoute(Route),
    Set { key: String, value: String },
}

impl NetworkStep {
    /// Whether this step must not be taken while `undone`, an earlier one of the same plan, is not
    /// done: it would move an address or the way out to a bridge that cannot carry them. Steps for
    /// other bridges go on: an address that stays on the port of a bridge makes the machine deaf.
    pub fn waits_for(&self, undone: &NetworkStep, networks: &CoreNetworks) -> bool {
        match undone {
            NetworkStep::CreateBridge { link } => self.moves_to(link, networks),
            NetworkStep::SwitchOn { link } => {
                self.moves_to(networks.bridge_on(link).unwrap_or(link), networks)
            }
            NetworkStep::SetMaster { link, master } => {
                let is_on_it =
                    matches!(self, NetworkStep::RemoveAddress { link: own, .. } if own == link);
                is_on_it || self.moves_to(master, networks)
            }
            NetworkStep::AddAddress { link, address } => match self {
                NetworkStep::AddAddress { .. } => false,
                NetworkStep::RemoveAddress { address: own, .. } => own == address,
                _ => self.moves_to(link, networks),
            },
            NetworkStep::AddRoute(route) => {
                matches!(self, NetworkStep::RemoveRoute(own) if own.to == route.to)
            }
            _ => false,
        }
    }

    /// Whether this is part of giving `bridge` an address or the way out.
    fn moves_to(&self, bridge: &str, networks: &CoreNetworks) -> bool {
        match self {
            NetworkStep::AddAddress { link, .. } => link == bridge,
            NetworkStep::RemoveAddress { address, .. } => CoreNet::ALL.into_iter().any(|net| {
                networks.get(net).address.map(IpNet::V4) == Some(*address)
                    && networks.bridge_of(net) == bridge
            }),
            NetworkStep::AddRoute(_) | NetworkStep::RemoveRoute(_) => {
                networks.bridge_of(CoreNet::Upstream) == bridge
            }
            _ => false,
        }
    }
}

impl fmt::Display for NetworkStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NetworkStep::CreateVlan { link, lower, id } => {
                write!(f, "make `{link}`, VLAN {id} on `{lower}`")
            }
            NetworkStep::CreateBridge { link } => write!(f, "make the bridge `{link}`"),
            NetworkStep::SetMtu { link, mtu } => write!(f, "set the MTU of `{link}` to {mtu}"),
            NetworkStep::SwitchOn { link } => write!(f, "switch `{link}` on"),
            NetworkStep::SetMaster { link, master } => {
                write!(f, "make `{link}` a port of `{master}`")
            }
            NetworkStep::AddAddress { link, address } => {
                write!(f, "give `{link}` the address {address}")
            }
            NetworkStep::RemoveAddress { link, address } => {
                write!(f, "take the address {address} off `{link}`")
            }
            NetworkStep::AddRoute(route) => write!(f, "add the route `{route}`"),
            NetworkStep::RemoveRoute(route) => write!(f, "remove the route `{route}`"),
            NetworkStep::Set { key, value } => write!(f, "set `{key}` to {value}"),
        }
    }
}

/// Something in the way that is not ours to change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum NetworkFinding {
    /// The device of a network is not there (yet).
    NoDevice { net: CoreNet, device: String },
    /// The device is a bridge itself, which cannot be a port of another.
    DeviceIsBridge { net: CoreNet, device: String },
    /// The device is a port of something that is not ours.
    Taken { net: CoreNet, device: String, master: String },
    /// Something else has the name of our bridge.
    NoBridge { link: String, kind: String },
    /// The node's own address also stands somewhere else.
    AddressElsewhere { address: IpNet, link: String, bridge: String },
    /// Another default route is there already that is as good as ours would be.
    OtherWayOut { found: Route, gateway: std::net::Ipv4Addr },
}

impl fmt::Display for NetworkFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NetworkFinding::NoDevice { net, device } => {
                write!(f, "the device `{device}` of the {net} network is not there")
            }
            NetworkFinding::DeviceIsBridge { net, device } => {
                write!(
                    f,
                    "the device `{device}` of the {net} network is a bridge, which cannot be a \
                     port of another"
                )
            }
            NetworkFinding::Taken { net, device, master } => {
                write!(
                    f,
                    "the device `{device}` of the {net} network is a port of `{master}`, which is \
                     not PVC's"
                )
            }
            NetworkFinding::NoBridge { link, kind } => {
                write!(f, "`{link}` should be a bridge and is a {kind}")
            }
            NetworkFinding::AddressElsewhere { address, link, bridge } => {
                write!(
                    f,
                    "this node's address {address} stands on `{link}`, too, and belongs on \
                     `{bridge}` alone"
                )
            }
            NetworkFinding::OtherWayOut { found, gateway } => {
                write!(
                    f,
                    "the default route is `{found}` and not by the configured gateway {gateway}"
                )
            }
        }
    }
}

impl NetworkFinding {
    /// Whether a network does not stand because of it.
    pub fn cuts_off(&self) -> bool {
        match self {
            NetworkFinding::NoDevice { .. }
            | NetworkFinding::DeviceIsBridge { .. }
            | NetworkFinding::Taken { .. }
            | NetworkFinding::NoBridge { .. } => true,
            NetworkFinding::AddressElsewhere { .. } | NetworkFinding::OtherWayOut { .. } => false,
        }
    }

    /// Advice about what to do.
    pub fn hint(&self) -> String {
        match self {
            NetworkFinding::NoDevice { net, .. } => format!(
                "check `cluster.networks.{net}.device` against `ip link`; it is taken up as soon \
                 as it appears"
            ),
            NetworkFinding::DeviceIsBridge { net, .. } => format!(
                "name the network card, bond or VLAN below it in `cluster.networks.{net}.device`, \
                 and remove the bridge"
            ),
            NetworkFinding::Taken { device, master, .. } => format!(
                "take it off (`ip link set {device} nomaster`) and out of what sets up `{master}` \
                 at boot"
            ),
            NetworkFinding::NoBridge { link, .. } => format!("remove or rename the link `{link}`"),
            NetworkFinding::AddressElsewhere { address, link, .. } => {
                format!(
                    "remove it (`ip address del {address} dev {link}`) and from what sets it up at \
                     boot"
                )
            }
            NetworkFinding::OtherWayOut { .. } => {
                "remove it from what sets it up at boot, or give it a metric above 0".to_owned()
            }
        }
    }
}
