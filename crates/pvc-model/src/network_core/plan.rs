use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use super::{CoreNet, CoreNetworks, NetworkFinding, NetworkStep};
use crate::link::{IpNet, LinkKind, Links, Route};

/// State of the machine's network, in one look.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    pub links: Links,
    pub routes: Vec<Route>,
    /// The values of those of [`settings`] that this kernel has.
    pub settings: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkPlan {
    /// Steps in this order; a later one may need an earlier one.
    pub steps: Vec<NetworkStep>,
    pub findings: BTreeSet<NetworkFinding>,
}

/// The settings of the kernel that [`plan`] wants to know.
pub fn settings(networks: &CoreNetworks) -> Vec<String> {
    let mut keys: Vec<String> = wanted_settings(networks).into_iter().map(|(key, _)| key).collect();
    keys.push(router_advertisements(networks));
    keys
}

/// The steps from what is seen to what `networks` say, and what is in their way.
pub fn plan(networks: &CoreNetworks, seen: &Seen) -> NetworkPlan {
    let mut planner = Planner { networks, seen, plan: NetworkPlan::default() };
    planner.devices();
    for net in networks.carriers() {
        planner.bridge(net);
    }
    for net in [CoreNet::Cluster, CoreNet::Storage, CoreNet::Upstream] {
        planner.address(net);
    }
    planner.way_out();
    // Last: the kernel drops the routes of a link together with its last address.
    for net in CoreNet::ALL {
        planner.leftovers(net);
    }
    planner.settings();
    planner.plan
}

struct Planner<'a> {
    networks: &'a CoreNetworks,
    seen: &'a Seen,
    plan: NetworkPlan,
}

impl<'a> Planner<'a> {
    fn step(&mut self, step: NetworkStep) {
        self.plan.steps.push(step);
    }

    fn find(&mut self, finding: NetworkFinding) {
        self.plan.findings.insert(finding);
    }

    /// Every device with its MTU and switched on; a VLAN that is missing is made on the link it is
    /// named after.
    fn devices(&mut self) {
        let (networks, links) = (self.networks, &self.seen.links);
        // What a VLAN lies on goes first: a VLAN cannot have a larger MTU.
        for (lower, mtu) in self.lowers() {
            let (has, up) = (links[lower].mtu, links[lower].up);
            self.bring_up(lower, has, has.max(mtu), up);
        }
        let mut nets: Vec<CoreNet> = networks.carriers().collect();
        nets.sort_by_key(|net| vlan_of(&networks.get(*net).device).is_some());
        for net in nets {
            let (device, mtu) = (&networks.get(net).device, networks.get(net).mtu);
            match (
                links.get(device),
                vlan_of(device).filter(|(lower, _)| links.contains_key(*lower)),
            ) {
                (Some(link), _) => self.bring_up(device, link.mtu, mtu, link.up),
                (None, Some((lower, id))) => {
                    let (link, lower) = (device.clone(), lower.to_owned());
                    self.step(NetworkStep::CreateVlan { link, lower, id });
                    // A new VLAN may have any MTU, and is switched off.
                    self.bring_up(device, 0, mtu, false);
                }
                (None, None) => self.find(NetworkFinding::NoDevice { net, device: device.clone() }),
            }
        }
    }

    /// The links below VLANs that nobody else here sees to, with the MTU that they must let
    /// through.
    fn lowers(&self) -> BTreeMap<&'a str, u32> {
        let (networks, links) = (self.networks, &self.seen.links);
        let mut lowers = BTreeMap::new();
        for network in networks.carriers().map(|net| networks.get(net)) {
            let lower = match links.get(&network.device).map(|link| &link.kind) {
                Some(LinkKind::Vlan { lower, .. }) => lower.as_deref(),
                Some(_) => None,
                None => vlan_of(&network.device).map(|(lower, _)| lower),
            };
            let is_ours = |lower: &str| {
                networks
                    .carriers()
                    .any(|net| networks.get(net).device == lower || net.bridge() == lower)
            };
            if let Some(lower) = lower.filter(|lower| links.contains_key(*lower) && !is_ours(lower))
            {
                let mtu = lowers.entry(lower).or_insert(0);
                *mtu = network.mtu.max(*mtu);
            }
        }
        lowers
    }

    fn bring_up(&mut self, link: &str, mtu: u32, wanted: u32, up: bool) {
        if mtu != wanted {
            self.step(NetworkStep::SetMtu { link: link.to_owned(), mtu: wanted });
        }
        if !up {
            self.step(NetworkStep::SwitchOn { link: link.to_owned() });
        }
    }

    /// The bridge of a network, with its device as a port.
    fn bridge(&mut self, net: CoreNet) {
        let (bridge, mtu) = (net.bridge(), self.networks.get(net).mtu);
        let found = self.seen.links.get(bridge);
        if let Some(link) = found.filter(|link| link.kind != LinkKind::Bridge) {
            let kind = link.kind.to_string();
            return self.find(NetworkFinding::NoBridge { link: bridge.to_owned(), kind });
        }
        if found.is_none() {
            self.step(NetworkStep::CreateBridge { link: bridge.to_owned() });
        }
        let (has_mtu, up) = found.map_or((0, false), |link| (link.mtu, link.up));
        let new_port = self.port(net);
        // The kernel fits a bridge's MTU to its ports, until somebody has set it.
        let has_mtu = if new_port { 0 } else { has_mtu };
        self.bring_up(bridge, has_mtu, mtu, up);
    }

    /// Whether the device is to become a port of the bridge.
    fn port(&mut self, net: CoreNet) -> bool {
        let device = self.networks.get(net).device.clone();
        let will_be =
            self.plan.steps.iter().any(
                |step| matches!(step, NetworkStep::CreateVlan { link, .. } if *link == device),
            );
        let (kind, master) = match self.seen.links.get(&device) {
            Some(link) => (Some(&link.kind), link.master.as_deref()),
            None if will_be => (None, None),
            None => return false,
        };
        if kind == Some(&LinkKind::Bridge) {
            self.find(NetworkFinding::DeviceIsBridge { net, device });
            return false;
        }
        match master {
            Some(master) if master == net.bridge() => false,
            // A bridge of ours that another configuration had it on.
            Some(other) if !CoreNet::ALL.iter().any(|net| net.bridge() == other) => {
                let master = other.to_owned();
                self.find(NetworkFinding::Taken { net, device, master });
                false
            }
            _ => {
                self.step(NetworkStep::SetMaster { link: device, master: net.bridge().to_owned() });
                true
            }
        }
    }

    /// Whether there is a bridge under this name, or will be.
    fn stands(&self, bridge: &str) -> bool {
        self.seen.links.get(bridge).is_none_or(|link| link.kind == LinkKind::Bridge)
    }

    /// Whether the bridge that carries `net` has its device as a port, or will have.
    fn has_port(&self, net: CoreNet) -> bool {
        let (bridge, device) = (self.networks.bridge_of(net), &self.networks.get(net).device);
        let now = self.seen.links.get(device).and_then(|link| link.master.as_deref());
        let becomes = NetworkStep::SetMaster { link: device.clone(), master: bridge.to_owned() };
        self.stands(bridge) && (now == Some(bridge) || self.plan.steps.contains(&becomes))
    }

    /// Whether a link other than `bridge` stands in the network of `address`.
    fn is_elsewhere(&self, address: IpNet, bridge: &str) -> bool {
        let meets =
            |other: &IpNet| address.contains(&other.addr()) || other.contains(&address.addr());
        let mut others = self.seen.links.values().filter(|link| link.name != bridge);
        others.any(|link| link.addresses.iter().any(meets))
    }

    /// Plans the node's own address on the bridge.
    fn address(&mut self, net: CoreNet) {
        let bridge = self.networks.bridge_of(net);
        let Some(address) = self.networks.get(net).address.map(IpNet::V4) else { return };
        // A bridge without a port must not draw the traffic away from a link that works.
        if !self.stands(bridge) || (!self.has_port(net) && self.is_elsewhere(address, bridge)) {
            return;
        }
        let has = self.seen.links.get(bridge).is_some_and(|link| link.addresses.contains(&address));
        let add = NetworkStep::AddAddress { link: bridge.to_owned(), address };
        // Networks on one bridge may have one address.
        if !has && !self.plan.steps.contains(&add) {
            self.step(add);
        }
    }

    /// Plans the removal of this node's address from other links than the bridge, once the bridge
    /// can do without.
    fn leftovers(&mut self, net: CoreNet) {
        let bridge = self.networks.bridge_of(net);
        let Some(address) = self.networks.get(net).address.map(IpNet::V4) else { return };
        if !self.has_port(net) {
            return;
        }
        let seen = self.seen;
        let has =
            |link: &str| seen.links.get(link).is_some_and(|link| link.addresses.contains(&address));
        for link in seen.links.values().filter(|link| link.name != bridge && has(&link.name)) {
            let link = link.name.clone();
            let is_port = self.is_port(&link);
            let remove = NetworkStep::RemoveAddress { link: link.clone(), address };
            match is_port {
                // On a port of our bridge an address is deaf, and draws traffic away from the
                // bridge.
                true if !self.plan.steps.contains(&remove) => self.step(remove),
                true => {}
                false => {
                    self.find(NetworkFinding::AddressElsewhere {
                        address,
                        link,
                        bridge: bridge.to_owned(),
                    });
                }
            }
        }
    }

    /// Whether `link` is, or becomes, a port of one of our bridges.
    fn is_port(&self, link: &str) -> bool {
        let is_ours = |master: &str| CoreNet::ALL.iter().any(|net| net.bridge() == master);
        let becomes = |step: &NetworkStep| match step {
            NetworkStep::SetMaster { link: port, .. } => port == link,
            _ => false,
        };
        let device = CoreNet::ALL.iter().any(|net| self.networks.get(*net).device == link);
        let now = self.seen.links.get(link).and_then(|link| link.master.as_deref());
        device && (now.is_some_and(is_ours) || self.plan.steps.iter().any(becomes))
    }

    /// The default route by the upstream gateway.
    fn way_out(&mut self) {
        let upstream = &self.networks.upstream;
        let bridge = self.networks.bridge_of(CoreNet::Upstream);
        // Without an address in its network the gateway cannot be reached, nor through a bridge
        // without a port.
        let has_port = self.has_port(CoreNet::Upstream);
        let (Some(gateway), Some(_), true) = (upstream.gateway, upstream.address, has_port) else {
            return;
        };
        let wanted = Route {
            to: IpNet::V4(everything()),
            via: Some(IpAddr::V4(gateway)),
            link: Some(bridge.to_owned()),
            metric: 0,
        };
        let seen = self.seen;
        let others = seen.routes.iter().filter(|route| route.to == wanted.to);
        let is_there = |route: &Route| route.via == wanted.via && route.link == wanted.link;
        let is_missing = !others.clone().any(is_there);
        let (on_port, others): (Vec<&Route>, Vec<&Route>) = others.partition(|route| {
            route.via == wanted.via && route.link.as_deref().is_some_and(|link| self.is_port(link))
        });
        if let Some(found) = others.into_iter().find(|route| is_missing && route.metric == 0) {
            return self.find(NetworkFinding::OtherWayOut { found: found.clone(), gateway });
        }
        // The kernel takes no second one of the same metric: only such a one goes before the new
        // one comes.
        let (same, worse): (Vec<&Route>, Vec<&Route>) =
            on_port.into_iter().partition(|route| route.metric == wanted.metric);
        let remove = |route: &Route| NetworkStep::RemoveRoute(route.clone());
        self.plan.steps.extend(same.into_iter().map(remove));
        if is_missing {
            self.step(NetworkStep::AddRoute(wanted));
        }
        self.plan.steps.extend(worse.into_iter().map(remove));
    }

    fn settings(&mut self) {
        let key = router_advertisements(self.networks);
        // A router takes no advertisements of other routers unless told so, and this node is about
        // to become one: where they were taken so far, they go on being taken. Before the node
        // forwards, or the routes taken from them are lost.
        if self.seen.settings.get(&key).is_some_and(|value| value == "1") {
            self.step(NetworkStep::Set { key, value: "2".to_owned() });
        }
        for (key, value) in wanted_settings(self.networks) {
            // What the kernel does not have (IPv6 switched off; a link that is not there yet) is
            // not wanted.
            if self.seen.settings.get(&key).is_some_and(|found| found != value) {
                self.step(NetworkStep::Set { key, value: value.to_owned() });
            }
        }
    }
}

fn everything() -> ipnet::Ipv4Net {
    ipnet::Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0)
}

/// The link below a VLAN and its number, from a name like `bond0.100`.
fn vlan_of(device: &str) -> Option<(&str, u16)> {
    let (lower, id) = device.rsplit_once('.')?;
    let id = id.parse().ok().filter(|id| (1..=4094).contains(id))?;
    Some((lower, id))
}

/// Whether routers are listened to on the upstream network.
fn router_advertisements(networks: &CoreNetworks) -> String {
    format!("net/ipv6/conf/{}/accept_ra", networks.bridge_of(CoreNet::Upstream))
}

/// The settings of `spec/startup.md` §3 that a kernel has, but for source routes, which PVC 1.0.3
/// switches on: by them anybody gets the answers to packets that he has sent as a node. And one
/// more: with `promote_secondaries`, a floating address that goes does not take along the node's
/// own of the same network.
fn wanted_settings(networks: &CoreNetworks) -> Vec<(String, &'static str)> {
    let mut wanted: Vec<(String, &'static str)> = Vec::new();
    for scope in ["all", "default"] {
        wanted.push((format!("net/ipv4/conf/{scope}/send_redirects"), "1"));
        wanted.push((format!("net/ipv4/conf/{scope}/accept_source_route"), "0"));
        wanted.push((format!("net/ipv6/conf/{scope}/accept_source_route"), "0"));
    }
    for net in networks.carriers() {
        for link in [networks.get(net).device.as_str(), net.bridge()] {
            wanted.push((format!("net/ipv4/conf/{link}/accept_source_route"), "0"));
        }
    }
    let unfiltered = [CoreNet::Cluster, CoreNet::Upstream].map(|net| networks.carrier(net));
    for net in BTreeSet::from(unfiltered) {
        for link in [networks.get(net).device.as_str(), net.bridge()] {
            wanted.push((format!("net/ipv4/conf/{link}/rp_filter"), "0"));
        }
    }
    for net in networks.carriers() {
        wanted.push((format!("net/ipv4/conf/{}/promote_secondaries", net.bridge()), "1"));
    }
    wanted.push(("net/ipv4/ip_forward".to_owned(), "1"));
    wanted.push(("net/ipv6/conf/all/forwarding".to_owned(), "1"));
    wanted
}
