//! The kernel's links of the networks of VMs: what a machine should have, and the steps there.
//!
//! ```text
//!  bridged   vlan<VNI> on the bridge device ──┐
//!                                             ├─ port of vmbr<VNI>, which guests are plugged into
//!  managed   vxlan<VNI> between the nodes ────┘  (on one machine alone: without a tunnel)
//! ```
//!
//! Everything is made anew by looking: what stands already, by whoever's hand, is adopted; what
//! differs is set right; what is of no recorded network goes, unless somebody uses it. What is made
//! or adopted carries a mark, its alias: names like `vlan100` are others', too, and nothing without
//! the mark is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use super::{GuestNetwork, GuestNetworks, Vni};
use crate::link::{IpNet, Link, LinkAbilities, LinkKind, Links, Mac, Vxlan, mac_text};

/// The UDP port of the tunnels between the nodes (RFC 7348).
pub const VXLAN_PORT: u16 = 4789;

/// Bytes that a tunnel takes from each frame: the headers of VXLAN, UDP, IPv4 and Ethernet.
pub const VXLAN_BYTES: u32 = 50;

/// Ways that a node's networks of VMs lie on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Underlay {
    /// `None` on a machine alone: its managed networks do not leave it.
    pub tunnels: Option<Tunnels>,
    /// The link whose VLANs bridged networks are; `None` if the configuration names none.
    pub bridge_device: Option<String>,
    /// Largest MTU of a bridged network; `None` for that of the bridge device.
    pub bridge_mtu: Option<u32>,
}

/// The largest MTUs of networks on a node, as far as its configuration tells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LargestMtus {
    pub managed: Option<u32>,
    pub bridged: Option<u32>,
}

impl Underlay {
    /// Returns those of this node. A managed network on a machine alone has any, and a bridged one
    /// that of the bridge device unless `bridge_mtu` says less.
    pub fn largest_mtus(&self) -> LargestMtus {
        LargestMtus {
            managed: self.tunnels.as_ref().map(Tunnels::largest_mtu),
            bridged: self.bridge_mtu,
        }
    }
}

/// The node's end of the tunnels of managed networks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tunnels {
    /// Address of this node, which the others send to; `None` leaves it to the route.
    pub local: Option<IpAddr>,
    /// MTU of what the tunnels go through.
    pub mtu: u32,
}

impl Tunnels {
    fn largest_mtu(&self) -> u32 {
        self.mtu.saturating_sub(VXLAN_BYTES)
    }
}

/// State of the machine, in one look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen<'a> {
    /// Name of the node.
    pub node: &'a str,
    pub links: &'a Links,
    pub abilities: LinkAbilities,
    /// The values of those of [`settings`] that this kernel has.
    pub settings: &'a BTreeMap<String, String>,
    /// Managed networks whose rules the packet filter has loaded. The bridge of another is not made
    /// yet: nothing is to pass it unfiltered.
    pub filtered: &'a BTreeSet<Vni>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LinksPlan {
    /// Steps by network, each list in its order. A step that fails keeps back those after it in its
    /// list, and no other's.
    pub steps: BTreeMap<Vni, Vec<LinkStep>>,
    pub findings: BTreeMap<Vni, BTreeSet<LinkFinding>>,
    /// Networks whose bridge is here and has all that it needs.
    pub standing: BTreeSet<Vni>,
}

/// A change of the machine's links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkStep {
    CreateVlan { link: String, lower: String, id: u16 },
    CreateVxlan { link: String, vxlan: Vxlan },
    CreateBridge { link: String },
    Remove { link: String },
    SetMac { link: String, mac: Mac },
    SetAlias { link: String, alias: String },
    ComputeChecksums { link: String },
    SetMtu { link: String, mtu: u32 },
    SwitchOn { link: String },
    SetMaster { link: String, master: String },
    Set { key: String, value: String },
}

impl fmt::Display for LinkStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkStep::CreateVlan { link, lower, id } => {
                write!(f, "make `{link}`, VLAN {id} on `{lower}`")
            }
            LinkStep::CreateVxlan { link, vxlan } => {
                write!(f, "make `{link}`, the end of the tunnels of VXLAN {}", vxlan.id)
            }
            LinkStep::CreateBridge { link } => write!(f, "make the bridge `{link}`"),
            LinkStep::Remove { link } => write!(f, "remove `{link}`"),
            LinkStep::SetMac { link, mac } => {
                write!(f, "pin the MAC address {} to `{link}`", mac_text(*mac))
            }
            LinkStep::SetAlias { link, alias } => write!(f, "mark `{link}` as `{alias}`"),
            LinkStep::ComputeChecksums { link } => {
                write!(f, "compute the checksums of what is sent over `{link}`")
            }
            LinkStep::SetMtu { link, mtu } => write!(f, "set the MTU of `{link}` to {mtu}"),
            LinkStep::SwitchOn { link } => write!(f, "switch `{link}` on"),
            LinkStep::SetMaster { link, master } => {
                write!(f, "make `{link}` a port of `{master}`")
            }
            LinkStep::Set { key, value } => write!(f, "set `{key}` to {value}"),
        }
    }
}

/// Something in a network's way that is not ours to change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum LinkFinding {
    #[error("this node has no device for bridged networks")]
    NoBridgeDevice,
    #[error("the device `{device}` for bridged networks is not there")]
    DeviceMissing { device: String },
    #[error("the kernel has no {what}")]
    Unable { what: &'static str },
    #[error("`{link}` should be a {wanted} and is a {found}")]
    OtherKind { link: String, wanted: &'static str, found: String },
    #[error("`{link}` is a port of `{master}`, which is not its network's bridge")]
    Taken { link: String, master: String },
    #[error("`{link}` is in other use: {users}")]
    InOtherUse { link: String, users: String },
    #[error("the MTU asked for is {asked}, and this node carries {most}; it is {most} here")]
    MtuTooLarge { asked: u32, most: u32 },
    #[error("the network has no record any more, and `{bridge}` is in use: {users}")]
    StillUsed { bridge: String, users: String },
    #[error("its packet filter is not loaded yet")]
    Unfiltered,
}

impl LinkFinding {
    /// Whether guests cannot be plugged in because of it, or reach nobody.
    pub fn cuts_off(&self) -> bool {
        !matches!(self, LinkFinding::MtuTooLarge { .. } | LinkFinding::StillUsed { .. })
    }

    /// Advice about what to do.
    pub fn hint(&self) -> &'static str {
        match self {
            LinkFinding::NoBridgeDevice => {
                "name the network card, bond or bridge port in `guest_networking.bridge_device`, \
                 and restart the node's daemon"
            }
            LinkFinding::DeviceMissing { .. } => {
                "check `guest_networking.bridge_device` against `ip link`; it is taken up as soon \
                 as it appears"
            }
            LinkFinding::Unable { .. } => "is the kernel's module installed?",
            LinkFinding::OtherKind { .. } => "remove or rename that link (`ip -d link` shows it)",
            LinkFinding::Taken { .. } => "take it off there (`ip link set LINK nomaster`)",
            LinkFinding::InOtherUse { .. } => {
                "give what is this machine's own another name (`ip link set LINK name …`), or the \
                 network another number"
            }
            LinkFinding::MtuTooLarge { .. } => {
                "`pvc network modify VNI --mtu …`, or a larger MTU in the node's configuration"
            }
            LinkFinding::StillUsed { .. } => {
                "take the VMs off that network (`pvc vm network remove`); it goes by itself then"
            }
            LinkFinding::Unfiltered => "the node's log says why",
        }
    }
}

/// The settings of the kernel that [`plan`] wants to know.
pub fn settings(networks: &GuestNetworks, underlay: &Underlay, links: &Links) -> Vec<String> {
    let all = &networks.networks;
    let wanted = all.iter().flat_map(|network| wanted_settings(network, underlay));
    let mut wanted: BTreeSet<String> = wanted.map(|(key, _)| key).collect();
    if wanted.contains(FORWARDING_6) {
        wanted.extend(links.keys().map(|link| accept_ra(link)));
    }
    wanted.into_iter().collect()
}

const FORWARDING_6: &str = "net/ipv6/conf/all/forwarding";

fn accept_ra(link: &str) -> String {
    format!("net/ipv6/conf/{link}/accept_ra")
}

/// The kernel's settings that a network needs: on a bridged network this machine has no IPv6
/// address of its own, which its kernel would make up; on a managed one a gateway's address is
/// usable at once, also where new links have no IPv6. A network that stands behind this machine's
/// address needs a machine that forwards packets; the nodes of a cluster do anyway.
fn wanted_settings(network: &GuestNetwork, underlay: &Underlay) -> Vec<(String, &'static str)> {
    let of_bridge = |key: &str| format!("net/ipv6/conf/{}/{key}", network.vni.bridge());
    let Some(managed) = network.managed() else { return vec![(of_bridge("disable_ipv6"), "1")] };
    let mut wanted = vec![(of_bridge("accept_dad"), "0")];
    if managed.ip6.is_some() {
        wanted.push((of_bridge("disable_ipv6"), "0"));
    }
    if network.options.masquerade {
        wanted.push(("net/ipv4/ip_forward".to_owned(), "1"));
        if managed.ip6.is_some() && underlay.tunnels.is_none() {
            wanted.push((FORWARDING_6.to_owned(), "1"));
        }
    }
    wanted
}

/// The steps from what is seen to what the networks say, and what is in their way.
pub fn plan(networks: &GuestNetworks, underlay: &Underlay, seen: &Seen<'_>) -> LinksPlan {
    let mut plan = LinksPlan::default();
    for network in &networks.networks {
        let mut planner = Planner { underlay, seen, vni: network.vni, own: Own::default() };
        planner.network(network);
        plan.add(network.vni, planner.own, true);
    }
    for vni in of_no_network(seen.links, &networks.recorded) {
        let mut planner = Planner { underlay, seen, vni, own: Own::default() };
        planner.leftover();
        plan.add(vni, planner.own, false);
    }
    plan
}

impl LinksPlan {
    fn add(&mut self, vni: Vni, own: Own, is_wanted: bool) {
        let is_cut_off = own.findings.iter().any(LinkFinding::cuts_off);
        if is_wanted && own.steps.is_empty() && !is_cut_off {
            self.standing.insert(vni);
        }
        if !own.steps.is_empty() {
            self.steps.insert(vni, own.steps);
        }
        if !own.findings.is_empty() {
            self.findings.insert(vni, own.findings);
        }
    }

    /// Whether nothing is left to do.
    pub fn is_idle(&self) -> bool {
        self.steps.is_empty()
    }
}

/// Networks that have links of ours here and no record.
fn of_no_network(links: &Links, recorded: &BTreeSet<Vni>) -> BTreeSet<Vni> {
    let of = |link: &Link| {
        let number = |prefix: &str| link.name.strip_prefix(prefix).and_then(Vni::parse);
        match &link.kind {
            LinkKind::Bridge => number("vmbr"),
            LinkKind::Vlan { id, .. } => number("vlan").filter(|vni| vni.get() == u32::from(*id)),
            LinkKind::Vxlan(vxlan) => number("vxlan").filter(|vni| vni.get() == vxlan.id),
            LinkKind::Device | LinkKind::Other(_) => None,
        }
    };
    let of = |link: &Link| of(link).filter(|vni| is_marked(link, *vni));
    links.values().filter_map(of).filter(|vni| !recorded.contains(vni)).collect()
}

/// Whether a link was made or adopted for this network.
pub fn is_marked(link: &Link, vni: Vni) -> bool {
    link.alias.as_deref() == Some(&*vni.alias())
}

/// The MAC address of this node's bridge of a network. Without one of its own a bridge takes the
/// smallest of its ports, and with it the gateway's changes whenever guests come and go.
fn bridge_mac(node: &str, vni: Vni) -> Mac {
    // FNV-1a: the same with every version of this program.
    let bytes = node.bytes().chain([0]).chain(vni.get().to_be_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let [a, b, c, d, e, f, g, h] = hash.to_be_bytes();
    // The first octet says that it is local, and of one station.
    [2, a ^ f, b ^ g, c ^ h, d, e]
}

/// Users of a link: links that lie on it, ports beside `own`, another master than its
/// network's `bridge`, and addresses, but for those that kernels make up.
fn users(links: &Links, link: &Link, bridge: &str, own: &[String]) -> String {
    let is_on = |other: &&Link| {
        let is_port = other.master.as_ref() == Some(&link.name) && !own.contains(&other.name);
        is_port || other.lies_on.as_ref() == Some(&link.name)
    };
    let on = links.values().filter(is_on).map(|other| other.name.clone());
    let master = link.master.iter().filter(|master| *master != bridge).cloned();
    // One with our mark has only what a router's advertisement has given it.
    let is_ours = Vni::of_bridge(bridge).is_some_and(|vni| is_marked(link, vni));
    let addresses = link.addresses.iter().filter(|net| !is_ours && !is_link_local(net.addr()));
    let addresses = addresses.map(|net| format!("the address {net}"));
    on.chain(master).chain(addresses).collect::<Vec<_>>().join(", ")
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Part of the plan that is one network's.
#[derive(Default)]
struct Own {
    steps: Vec<LinkStep>,
    findings: BTreeSet<LinkFinding>,
}

struct Planner<'a> {
    underlay: &'a Underlay,
    seen: &'a Seen<'a>,
    vni: Vni,
    own: Own,
}

/// Link below a bridge: its kind and the MTU that it can have at most.
struct Lower {
    link: String,
    wanted: LinkKind,
    most: u32,
}

impl Planner<'_> {
    fn step(&mut self, step: LinkStep) {
        self.own.steps.push(step);
    }

    fn find(&mut self, finding: LinkFinding) {
        self.own.findings.insert(finding);
    }

    fn network(&mut self, network: &GuestNetwork) {
        let is_managed = network.managed().is_some();
        // What the other kind of network of this number had goes; its record is of this kind now.
        let other = format!("{}{}", if is_managed { "vlan" } else { "vxlan" }, self.vni);
        self.remove_lower(other);
        let lower = match is_managed {
            true => self.tunnel(),
            false => self.vlan(),
        };
        let bridge = self.vni.bridge();
        let stands = self.seen.links.get(&bridge);
        if is_managed && stands.is_none() && !self.seen.filtered.contains(&self.vni) {
            return self.find(LinkFinding::Unfiltered);
        }
        if let Some(found) = stands.filter(|link| link.kind != LinkKind::Bridge) {
            let found = found.kind.to_string();
            return self.find(LinkFinding::OtherKind { link: bridge, wanted: "bridge", found });
        }
        let mtu = self.mtu(network, lower.as_ref());
        let lower = lower.filter(|lower| self.lower(lower, mtu));
        self.bridge(network, &bridge, mtu);
        if let Some(lower) = lower {
            self.port(&lower.link, &bridge);
        }
    }

    /// The end of the tunnels; `None` where there are none, or cannot be.
    fn tunnel(&mut self) -> Option<Lower> {
        let tunnels = self.underlay.tunnels.as_ref()?;
        if !self.seen.abilities.vxlans {
            self.find(LinkFinding::Unable { what: "VXLANs" });
            return None;
        }
        let vxlan = Vxlan {
            id: self.vni.get(),
            local: tunnels.local,
            lower: None,
            port: VXLAN_PORT,
            learning: false,
        };
        Some(Lower {
            link: format!("vxlan{}", self.vni),
            wanted: LinkKind::Vxlan(vxlan),
            most: tunnels.largest_mtu(),
        })
    }

    /// The VLAN of a bridged network; `None` if it cannot be.
    fn vlan(&mut self) -> Option<Lower> {
        let Some(device) = self.underlay.bridge_device.clone() else {
            self.find(LinkFinding::NoBridgeDevice);
            return None;
        };
        if !self.seen.abilities.vlans {
            self.find(LinkFinding::Unable { what: "VLANs (8021q)" });
            return None;
        }
        let Some(found) = self.seen.links.get(&device) else {
            self.find(LinkFinding::DeviceMissing { device });
            return None;
        };
        // A VLAN cannot have a larger MTU than what it lies on.
        let most = self.underlay.bridge_mtu.map_or(found.mtu, |mtu| mtu.min(found.mtu));
        let id = self.vni.vlan().expect("a bridged network's number is a VLAN's");
        let wanted = LinkKind::Vlan { lower: Some(device), id };
        Some(Lower { link: format!("vlan{}", self.vni), wanted, most })
    }

    /// MTU that the network has here.
    fn mtu(&mut self, network: &GuestNetwork, lower: Option<&Lower>) -> u32 {
        let most = match (lower, &self.underlay.tunnels) {
            (Some(lower), _) => lower.most,
            // A network that cannot be is as large as it would be.
            (None, Some(tunnels)) => tunnels.largest_mtu(),
            (None, None) => self.underlay.bridge_mtu.unwrap_or(super::ETHERNET_MTU),
        };
        let Some(asked) = network.mtu else { return most };
        // Nothing carries the frames of a network on a machine alone but the machine itself.
        let is_alone = lower.is_none() && network.managed().is_some();
        if asked > most && !(is_alone && self.underlay.tunnels.is_none()) {
            self.find(LinkFinding::MtuTooLarge { asked, most });
            return most;
        }
        asked
    }

    /// The link below the bridge with its MTU, switched on. Whether it may be a port.
    fn lower(&mut self, lower: &Lower, mtu: u32) -> bool {
        let found = self.seen.links.get(&lower.link);
        let name = lower.link.clone();
        let bridge = self.vni.bridge();
        let users = found.map(|link| users(self.seen.links, link, &bridge, &[]));
        let users = users.unwrap_or_default();
        let is_taken = |link: &Link| link.master.as_ref().is_some_and(|master| *master != bridge);
        match found {
            Some(link) if is_of_number(&link.kind, &lower.wanted) && is_taken(link) => {
                let (link, master) = (name, link.master.clone().unwrap_or_default());
                self.find(LinkFinding::Taken { link, master });
                return false;
            }
            // It is this machine's own, such as its way to its administrator.
            Some(link) if is_of_number(&link.kind, &lower.wanted) && !users.is_empty() => {
                self.find(LinkFinding::InOtherUse { link: name, users });
                return false;
            }
            Some(link) if link.kind == lower.wanted => {
                if link.alias.is_none() {
                    self.mark(&name);
                }
                if link.mtu != mtu {
                    self.step(LinkStep::SetMtu { link: name.clone(), mtu });
                }
                if !link.up {
                    self.step(LinkStep::SwitchOn { link: name });
                }
                return true;
            }
            // What PVC 1.0.3 made has no mark: a tunnel of this number, or what is a port already.
            Some(link) if is_of_number(&link.kind, &lower.wanted) && self.is_replaced(link) => {
                self.step(LinkStep::Remove { link: name.clone() });
            }
            Some(link) => {
                let wanted = match lower.wanted {
                    LinkKind::Vxlan(_) => "VXLAN",
                    _ => "VLAN",
                };
                let found = link.kind.to_string();
                self.find(LinkFinding::OtherKind { link: name, wanted, found });
                return false;
            }
            None => {}
        }
        self.step(match &lower.wanted {
            LinkKind::Vxlan(vxlan) => {
                LinkStep::CreateVxlan { link: name.clone(), vxlan: vxlan.clone() }
            }
            LinkKind::Vlan { lower: Some(device), id } => {
                LinkStep::CreateVlan { link: name.clone(), lower: device.clone(), id: *id }
            }
            _ => unreachable!("what lies below a bridge is a VXLAN, or a VLAN on its device"),
        });
        self.mark(&name);
        self.step(LinkStep::SetMtu { link: name.clone(), mtu });
        self.step(LinkStep::SwitchOn { link: name });
        true
    }

    /// Whether a link of this network's name and number, in no other use, gives way to the one that
    /// is wanted.
    fn is_replaced(&self, link: &Link) -> bool {
        let is_port = link.master.as_ref() == Some(&self.vni.bridge());
        let is_tunnel = matches!(&link.kind, LinkKind::Vxlan(vxlan) if vxlan.port == VXLAN_PORT);
        is_marked(link, self.vni) || is_port || (is_tunnel && link.alias.is_none())
    }

    fn mark(&mut self, link: &str) {
        self.step(LinkStep::SetAlias { link: link.to_owned(), alias: self.vni.alias() });
    }

    fn bridge(&mut self, network: &GuestNetwork, bridge: &str, mtu: u32) {
        let link = || bridge.to_owned();
        let found = self.seen.links.get(bridge);
        if found.is_none() {
            self.step(LinkStep::CreateBridge { link: link() });
        }
        let mac = match found {
            None => Some(bridge_mac(self.seen.node, self.vni)),
            Some(found) => found.mac,
        };
        // What carries a mark was set up, and what others have noted something on is theirs.
        let is_used = found.is_some_and(|found| {
            let is_foreign = |net: &IpNet| {
                // A gateway of PVC 1.0.3 may have a prefix of before.
                !is_link_local(net.addr()) && !network.contains(net.addr())
            };
            let mut links = self.seen.links.values();
            !is_marked(found, self.vni)
                && (found.addresses.iter().any(is_foreign)
                    || links.any(|other| other.lies_on.as_deref() == Some(bridge)))
        });
        if !is_used && found.is_none_or(|found| found.alias.is_none()) {
            self.step(LinkStep::ComputeChecksums { link: link() });
            if let Some(mac) = mac {
                self.step(LinkStep::SetMac { link: link(), mac });
            }
            self.mark(bridge);
        }
        for (key, value) in wanted_settings(network, self.underlay) {
            if is_used && key.ends_with("/disable_ipv6") {
                continue; // it would take this machine's own addresses away
            }
            // What a bridge has that is not there yet is not seen, and is set before it is switched
            // on: an address that the kernel makes up would be heard by guests.
            let has = self.seen.settings.get(&key);
            if has.map_or(found.is_none(), |has| has != value) {
                if key == FORWARDING_6 {
                    self.keep_routes();
                }
                self.step(LinkStep::Set { key, value: value.to_owned() });
            }
        }
        if found.is_none_or(|link| link.mtu != mtu && !is_used) {
            self.step(LinkStep::SetMtu { link: link(), mtu });
        }
        if found.is_none_or(|link| !link.up) {
            self.step(LinkStep::SwitchOn { link: link() });
        }
    }

    /// A kernel that forwards IPv6 listens to no router any more, and forgets what it has heard,
    /// unless it is told to listen all the same: this machine would lose its own way out.
    fn keep_routes(&mut self) {
        for link in self.seen.links.values().filter(|link| link.master.is_none()) {
            let key = accept_ra(&link.name);
            let listens = self.seen.settings.get(&key).is_some_and(|value| value == "1");
            if listens && Vni::of_bridge(&link.name).is_none() {
                self.step(LinkStep::Set { key, value: "2".to_owned() });
            }
        }
    }

    /// The link below as a port of its bridge.
    fn port(&mut self, link: &str, bridge: &str) {
        let is_made_anew = self.own.steps.iter().any(|step| {
            matches!(step, LinkStep::CreateVlan { link: own, .. }
                | LinkStep::CreateVxlan { link: own, .. } if own == link)
        });
        let found = self.seen.links.get(link).filter(|_| !is_made_anew);
        if found.is_none_or(|link| link.master.is_none()) {
            let (link, master) = (link.to_owned(), bridge.to_owned());
            self.step(LinkStep::SetMaster { link, master });
        }
    }

    /// Remains of a network without a record, as far as they carry our mark.
    fn leftover(&mut self) {
        let bridge = self.vni.bridge();
        let lowers = [format!("vxlan{}", self.vni), format!("vlan{}", self.vni)];
        let links = self.seen.links;
        if let Some(found) = links.get(&bridge).filter(|link| is_marked(link, self.vni)) {
            // A gateway of ours goes within seconds; an address of somebody else's stays.
            let users = users(links, found, &bridge, &lowers);
            if !users.is_empty() {
                return self.find(LinkFinding::StillUsed { bridge, users });
            }
            self.step(LinkStep::Remove { link: bridge });
        }
        for lower in lowers {
            self.remove_lower(lower);
        }
    }

    /// Removes a VLAN or a tunnel of this number, if it is ours and in no other use.
    fn remove_lower(&mut self, lower: String) {
        let Some(found) = self.seen.links.get(&lower) else { return };
        let number = match &found.kind {
            LinkKind::Vxlan(vxlan) => vxlan.id,
            LinkKind::Vlan { id, .. } => u32::from(*id),
            _ => 0,
        };
        let is_ours = number == self.vni.get() && is_marked(found, self.vni);
        let users = users(self.seen.links, found, &self.vni.bridge(), &[]);
        match users.is_empty() {
            true if is_ours => self.step(LinkStep::Remove { link: lower }),
            false if is_ours => self.find(LinkFinding::StillUsed { bridge: lower, users }),
            _ => {}
        }
    }
}

/// Whether a link has the number of the one that is wanted, and only something else is different.
fn is_of_number(found: &LinkKind, wanted: &LinkKind) -> bool {
    match (found, wanted) {
        (LinkKind::Vxlan(found), LinkKind::Vxlan(wanted)) => found.id == wanted.id,
        (LinkKind::Vlan { id: found, .. }, LinkKind::Vlan { id: wanted, .. }) => found == wanted,
        _ => false,
    }
}
