//! The way itself: from bridge to bridge, as links, gateways and firewall of PVC lead a packet.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::judge::{ANY_PORT, Packet, Span, Test, judge};
use super::{
    AddressBy, Assumption, Dropper, End, NamedRule, Protocol, Question, Step, Surroundings, Trace,
    TraceRefusal, TunnelEnd, Unknown, Verdict, Way,
};
use crate::cluster::Cluster;
use crate::domain::{Nic, NicKind};
use crate::fault::fault_id;
use crate::guest_network::guard::{mac_of, made_of};
use crate::guest_network::metadata::{self, VmsByNic, holders, vms_by_nic};
use crate::guest_network::rules::{TakenRules, rules_fault, taken_rules};
use crate::guest_network::{GuestNetwork, GuestNetworks, Vni, is_host_of_4};
use crate::link::Mac;
use crate::network::{Direction, LeaseRecord};
use crate::network_core::CoreNet;
use crate::node::{DaemonState, NodeRecord};
use crate::vm::{VmRecord, VmState};
use crate::{NodeName, shown};

/// The most rules that are named of those of which it is not known whether they match.
const MOST_OPEN: usize = 20;

/// Follows a packet and its answer; see [`trace`](super::trace).
pub fn trace(
    cluster: &Cluster,
    around: Surroundings<'_>,
    vm: &VmRecord,
    question: Question<'_>,
) -> Result<Trace, TraceRefusal> {
    let has_ports = matches!(question.protocol, Some(Protocol::Tcp | Protocol::Udp));
    if question.port.is_some() && !has_ports {
        return Err(TraceRefusal::PortWithoutProtocol);
    }
    let networks = GuestNetworks::of(cluster).networks;
    let managed: BTreeMap<Vni, &GuestNetwork> = networks
        .iter()
        .filter(|network| network.managed().is_some())
        .map(|network| (network.vni, network))
        .collect();
    let world = World {
        cluster,
        around,
        by_vni: networks.iter().map(|network| (network.vni, network)).collect(),
        leases: managed.keys().map(|vni| (*vni, Leases::of(cluster, *vni))).collect(),
        networks: &networks,
        vms: vms_by_nic(cluster, &managed),
        rules: taken_rules(cluster, &networks),
        question,
    };
    let target = world.target(vm)?;
    let (nic, is_certain) = world.nic(vm, &target)?;
    let (from, to) = world.ends(vm, nic, target)?;
    let mut there =
        world.way(Some(from.span), to.span, false, |walk| walk.begin_at_guest(&from, &to));
    let back = world.back(&there, &from, &to);
    if !is_certain {
        there.assumed.insert(Assumption::Interface { vm: shown(&vm.name) });
    }
    Ok(Trace { there, back })
}

/// Target of the packet.
enum Target<'a> {
    Address(IpAddr),
    Vm(&'a VmRecord),
}

/// Place that an interface is plugged into.
#[derive(Clone, Copy)]
enum Plug<'a> {
    Managed(&'a GuestNetwork),
    Bridged(&'a GuestNetwork),
    Core(CoreNet),
    /// A network without a record that is understood.
    Unrecorded(Vni),
    Device,
}

impl Plug<'_> {
    fn vni(&self) -> Option<Vni> {
        match self {
            Plug::Managed(network) | Plug::Bridged(network) => Some(network.vni),
            Plug::Unrecorded(vni) => Some(*vni),
            Plug::Core(_) | Plug::Device => None,
        }
    }
}

/// An interface of a VM, with its address in the family of the packet.
#[derive(Clone, Copy)]
struct Guest<'a> {
    vm: &'a VmRecord,
    nic: &'a Nic,
    plug: Plug<'a>,
    span: Span,
    by: AddressBy,
}

/// The other end of the way.
struct Other<'a> {
    span: Span,
    who: Who<'a>,
}

enum Who<'a> {
    Guest(Guest<'a>),
    /// Nobody known in this network; `note` says what is known.
    Nobody {
        vni: Vni,
        note: String,
    },
    /// The primary itself, by a gateway or another address of its own.
    Primary,
    Outside,
}

/// Leases of a network, to be looked up: guests may have thousands of interfaces.
#[derive(Default)]
struct Leases<'a> {
    holders: BTreeMap<IpAddr, String>,
    by_address: BTreeMap<IpAddr, Vec<&'a LeaseRecord>>,
    by_mac: BTreeMap<Mac, Vec<(IpAddr, &'a LeaseRecord)>>,
}

impl<'a> Leases<'a> {
    fn of(cluster: &'a Cluster, vni: Vni) -> Leases<'a> {
        let record = cluster.networks.get(&vni.to_string());
        let leases = record.map_or(&[][..], |record| &record.leases);
        let mut all = Leases { holders: holders(leases), ..Leases::default() };
        for lease in leases {
            let Ok(address) = lease.address.parse() else { continue };
            all.by_address.entry(address).or_default().push(lease);
            if let Some(mac) = mac_of(&lease.mac) {
                all.by_mac.entry(mac).or_default().push((address, lease));
            }
        }
        all
    }

    fn of_mac(&self, mac: Option<Mac>) -> &[(IpAddr, &'a LeaseRecord)] {
        mac.and_then(|mac| self.by_mac.get(&mac)).map_or(&[], Vec::as_slice)
    }
}

struct World<'a> {
    cluster: &'a Cluster,
    around: Surroundings<'a>,
    networks: &'a [GuestNetwork],
    by_vni: BTreeMap<Vni, &'a GuestNetwork>,
    /// Leases of managed networks.
    leases: BTreeMap<Vni, Leases<'a>>,
    vms: VmsByNic<'a>,
    rules: BTreeMap<Vni, [TakenRules<'a>; 2]>,
    question: Question<'a>,
}

impl<'a> World<'a> {
    fn target(&self, vm: &VmRecord) -> Result<Target<'a>, TraceRefusal> {
        let text = self.question.target.trim();
        if let Ok(address) = text.parse::<IpAddr>() {
            let address = address.to_canonical();
            return match not_unicast(address) {
                Some(what) => Err(TraceRefusal::NotUnicast { address, what }),
                None => Ok(Target::Address(address)),
            };
        }
        let found = self.cluster.vm(text);
        let found = found.ok_or_else(|| TraceRefusal::NoTarget { target: shown(text) })?;
        if found.uuid == vm.uuid {
            return Err(TraceRefusal::Itself { vm: shown(&vm.name) });
        }
        Ok(Target::Vm(found))
    }

    /// The interface that the VM sends by, and whether that is certain: which of several it takes
    /// is the guest's.
    fn nic(&self, vm: &'a VmRecord, target: &Target<'_>) -> Result<(&'a Nic, bool), TraceRefusal> {
        let name = || shown(&vm.name);
        let domain = vm.domain.as_ref().map_err(|_| TraceRefusal::NoDefinition { vm: name() })?;
        if let Some(wanted) = self.question.network {
            let vni = match self.cluster.network(wanted) {
                Some(record) => Vni::parse(&record.vni),
                None => Vni::parse(wanted),
            };
            let core = CoreNet::named(wanted);
            let is_it = |nic: &&Nic| match self.plug(nic) {
                Plug::Core(net) => Some(net) == core,
                plug => plug.vni().is_some() && plug.vni() == vni,
            };
            let network = shown(wanted);
            return match domain.nics.iter().find(is_it) {
                Some(nic) => Ok((nic, true)),
                None if core.is_some() || self.cluster.network(wanted).is_some() => {
                    Err(TraceRefusal::NotPluggedIn { vm: name(), network })
                }
                None => Err(TraceRefusal::NoNetwork { network }),
            };
        }
        let theirs: BTreeSet<Vni> = match target {
            Target::Address(_) => BTreeSet::new(),
            Target::Vm(other) => nics(other).filter_map(|nic| self.plug(nic).vni()).collect(),
        };
        let shares = |nic: &&Nic| match (target, self.plug(nic)) {
            (Target::Address(address), Plug::Managed(network)) => network.contains(*address),
            (Target::Address(_), _) => false,
            (Target::Vm(_), plug) => plug.vni().is_some_and(|vni| theirs.contains(&vni)),
        };
        let is_managed = |nic: &&Nic| matches!(self.plug(nic), Plug::Managed(_));
        let nics = || domain.nics.iter();
        if let Some(nic) = nics().find(shares) {
            return Ok((nic, true));
        }
        let nic = nics().find(is_managed).or_else(|| nics().next());
        let nic = nic.ok_or_else(|| TraceRefusal::NoInterface { vm: name() })?;
        Ok((nic, domain.nics.len() == 1))
    }

    /// Both ends of the way, with their addresses of one family.
    fn ends(
        &self,
        vm: &'a VmRecord,
        nic: &'a Nic,
        target: Target<'a>,
    ) -> Result<(Guest<'a>, Other<'a>), TraceRefusal> {
        let plug = self.plug(nic);
        match target {
            Target::Address(address) => {
                let from = self.guest(vm, nic, address.is_ipv4());
                if from.span.address() == Some(address) {
                    return Err(TraceRefusal::Itself { vm: shown(&vm.name) });
                }
                let who = match self.who(address) {
                    Who::Guest(guest) if guest.vm.uuid == vm.uuid => {
                        return Err(TraceRefusal::Itself { vm: shown(&vm.name) });
                    }
                    who => who,
                };
                Ok((from, Other { span: Span::one(address), who }))
            }
            Target::Vm(other) => {
                let is_near =
                    |theirs: &&Nic| plug.vni().is_some() && self.plug(theirs).vni() == plug.vni();
                if let Some(theirs) = nics(other).find(is_near) {
                    let is_ip4 = match plug {
                        Plug::Managed(network) => net_of(network, true).is_some(),
                        _ => true,
                    };
                    let to = self.guest(other, theirs, is_ip4);
                    let from = self.guest(vm, nic, is_ip4);
                    return Ok((from, Other { span: to.span, who: Who::Guest(to) }));
                }
                // Both in IPv4 if they can.
                for is_ip4 in [true, false] {
                    let has = |nic: &&Nic| match self.plug(nic) {
                        Plug::Managed(network) => net_of(network, is_ip4).is_some(),
                        _ => false,
                    };
                    let from_has = has(&nic) || !matches!(plug, Plug::Managed(_));
                    let known = |theirs: &&Nic| {
                        has(theirs) && self.guest(other, theirs, is_ip4).span.address().is_some()
                    };
                    let theirs = nics(other).find(known).or_else(|| nics(other).find(has));
                    if let Some(theirs) = theirs.filter(|_| from_has) {
                        let to = self.guest(other, theirs, is_ip4);
                        let from = self.guest(vm, nic, is_ip4);
                        return Ok((from, Other { span: to.span, who: Who::Guest(to) }));
                    }
                }
                Err(TraceRefusal::NoAddress { vm: shown(&other.name) })
            }
        }
    }

    fn plug(&self, nic: &Nic) -> Plug<'a> {
        let NicKind::Bridge(bridge) = &nic.kind else { return Plug::Device };
        if let Some(net) = CoreNet::ALL.into_iter().find(|net| net.bridge() == bridge) {
            return Plug::Core(net);
        }
        let Some(vni) = Vni::of_bridge(bridge) else { return Plug::Device };
        match self.network(vni) {
            Some(network) if network.managed().is_some() => Plug::Managed(network),
            Some(network) => Plug::Bridged(network),
            None => Plug::Unrecorded(vni),
        }
    }

    fn network(&self, vni: Vni) -> Option<&'a GuestNetwork> {
        self.by_vni.get(&vni).copied()
    }

    fn guest(&self, vm: &'a VmRecord, nic: &'a Nic, is_ip4: bool) -> Guest<'a> {
        let plug = self.plug(nic);
        let net = match plug {
            Plug::Managed(network) => net_of(network, is_ip4),
            _ => None,
        };
        let (span, by) = match plug {
            Plug::Managed(network) => self.address(network, nic, is_ip4),
            _ => None,
        }
        .unwrap_or_else(|| (Span::of(net.unwrap_or_else(|| all_of(is_ip4))), AddressBy::Unknown));
        Guest { vm, nic, plug, span, by }
    }

    /// The only address of that family that the interface is known to have.
    fn address(
        &self,
        network: &GuestNetwork,
        nic: &Nic,
        is_ip4: bool,
    ) -> Option<(Span, AddressBy)> {
        let mac = mac_of(&nic.mac)?;
        let leases = self.leases.get(&network.vni)?;
        let own = leases.of_mac(Some(mac)).iter();
        let own: Vec<_> = own.filter(|(address, _)| address.is_ipv4() == is_ip4).collect();
        let addresses: BTreeSet<IpAddr> = own.iter().map(|(address, _)| *address).collect();
        if let (Some(address), 1) = (addresses.first(), addresses.len()) {
            let holder = leases.holders.get(address).and_then(|holder| mac_of(holder));
            let is_reserved = own.iter().any(|(_, lease)| lease.expiry.is_none());
            let by = if is_reserved { AddressBy::Reservation } else { AddressBy::Lease };
            return (holder == Some(mac)).then_some((Span::one(*address), by));
        }
        // Without a guard it may as well have made itself another one.
        let is_made = !is_ip4 && addresses.is_empty() && network.options.spoof_guard;
        let made = made_address(network, nic).filter(|_| is_made)?;
        Some((Span::one(made), AddressBy::Mac))
    }

    /// Returns who has an address, as far as is known.
    fn who(&self, address: IpAddr) -> Who<'a> {
        if address == IpAddr::V4(metadata::ADDRESS) {
            return Who::Primary;
        }
        let Some(network) = self.network_of(&Span::one(address)) else {
            return if self.is_of_primary(address) { Who::Primary } else { Who::Outside };
        };
        let vni = network.vni;
        if network.gateways().iter().any(|gateway| gateway.addr() == address) {
            return Who::Primary;
        }
        let nobody = |note: String| Who::Nobody { vni, note };
        let net = net_of(network, true);
        if let (IpAddr::V4(host), Some(IpNet::V4(net))) = (address, net)
            && !is_host_of_4(host, net)
        {
            return nobody("it is no host's".to_owned());
        }
        let Some(leases) = self.leases.get(&vni) else { return nobody(String::new()) };
        let own = leases.by_address.get(&address).map_or(&[][..], Vec::as_slice);
        if let Some(mac) = leases.holders.get(&address) {
            let is_reserved = own.iter().any(|lease| lease.expiry.is_none());
            let by = if is_reserved { AddressBy::Reservation } else { AddressBy::Lease };
            return match self.vms.get(&(vni, mac.clone())) {
                Some(Some(vm)) => self.guest_of(vm, vni, mac, address, by),
                Some(None) => nobody(format!("several VMs have the MAC address {mac}")),
                None => nobody(format!("DHCP has it for {mac}, which no VM has")),
            };
        }
        if own.iter().any(|lease| lease.ip6.is_some() && lease.mac.is_empty()) {
            return nobody("DHCP has given it to a client of unknown MAC address".to_owned());
        }
        if !own.is_empty() {
            return nobody("DHCP has it for several MAC addresses".to_owned());
        }
        let mac = made_from(network, address).map(word_of);
        let of_mac = mac.and_then(|mac| Some(((*self.vms.get(&(vni, mac.clone()))?)?, mac)));
        match of_mac {
            Some((vm, mac)) => self.guest_of(vm, vni, &mac, address, AddressBy::Mac),
            None => nobody(String::new()),
        }
    }

    fn guest_of(
        &self,
        vm: &'a VmRecord,
        vni: Vni,
        mac: &str,
        address: IpAddr,
        by: AddressBy,
    ) -> Who<'a> {
        let mac = mac_of(mac);
        let is_it = |nic: &&Nic| self.plug(nic).vni() == Some(vni) && mac_of(&nic.mac) == mac;
        match nics(vm).find(is_it) {
            Some(nic) => {
                Who::Guest(Guest { vm, nic, plug: self.plug(nic), span: Span::one(address), by })
            }
            None => Who::Nobody { vni, note: String::new() },
        }
    }

    /// The managed network that the addresses are of.
    fn network_of(&self, span: &Span) -> Option<&'a GuestNetwork> {
        self.networks
            .iter()
            .find(|network| net_of(network, span.is_ip4()).is_some_and(|net| span.is_in(&net)))
    }

    /// Whether it is known to be an address of the primary.
    fn is_of_primary(&self, address: IpAddr) -> bool {
        let config = &self.cluster.config;
        let is = |text: &Option<String>| {
            text.as_ref().and_then(|text| text.parse().ok()) == Some(address)
        };
        let note = self.cluster.primary().and_then(|node| node.daemon.as_ref());
        config.upstream_ip.split('/').next().and_then(|ip| ip.parse().ok()) == Some(address)
            || note.is_some_and(|note| is(&note.cluster_address) || is(&note.storage_address))
            || self.around.floating.contains(&address)
            || (self.is_primary_asked() && self.around.own.contains(&address))
    }

    fn is_primary_asked(&self) -> bool {
        self.cluster.config.primary.as_ref() == Some(self.around.node)
    }

    /// The network between the nodes that the address is of.
    fn between_nodes(&self, address: IpAddr) -> Option<&'a str> {
        let near = self.around.neighbours.iter().find(|near| near.network.contains(&address))?;
        Some(&near.name)
    }

    fn way(
        &self,
        from: Option<Span>,
        to: Span,
        is_answer: bool,
        go: impl FnOnce(&mut Walk<'_, 'a>) -> Ended,
    ) -> Way {
        let mut walk = Walk {
            world: self,
            is_answer,
            steps: Vec::new(),
            depends: Vec::new(),
            assumed: BTreeSet::new(),
        };
        let end = go(&mut walk).unwrap_or_else(|end| end);
        walk.note_faults();
        Way {
            from: from.and_then(|span| span.address()),
            to: to.address(),
            steps: walk.steps,
            end,
            depends: walk.depends,
            assumed: walk.assumed,
        }
    }

    /// The way of the answer, of those that arrive.
    fn back(&self, there: &Way, from: &Guest<'a>, to: &Other<'a>) -> Option<Way> {
        let target = Other { span: from.span, who: Who::Guest(*from) };
        let is_managed = matches!(from.plug, Plug::Managed(_));
        let way = |begin: Span, go: &dyn Fn(&mut Walk<'_, 'a>) -> Ended| {
            Some(self.way(Some(begin), from.span, true, go))
        };
        match (&there.end, &to.who) {
            (End::Vm { .. }, Who::Guest(guest)) => {
                let (guest, is_certain) = self.answering(guest, from);
                let mut back = way(guest.span, &|walk| walk.begin_at_guest(&guest, &target))?;
                if !is_certain {
                    back.assumed.insert(Assumption::Interface { vm: shown(&guest.vm.name) });
                }
                Some(back)
            }
            (End::Node { .. }, _) => way(to.span, &|walk| walk.begin_at_primary(&target)),
            (End::Leaves { by, .. }, _) if is_managed => {
                way(to.span, &|walk| walk.begin_outside(to.span, by, &target))
            }
            _ => None,
        }
    }
}

impl<'a> World<'a> {
    /// The guest by the interface that it answers by, and whether that is certain: guests of
    /// several networks reach each of them by the interface that is in it.
    fn answering(&self, guest: &Guest<'a>, to: &Guest<'_>) -> (Guest<'a>, bool) {
        let vni = to.plug.vni();
        if vni.is_some() && guest.plug.vni() == vni {
            return (*guest, true);
        }
        let is_near = |nic: &&Nic| vni.is_some() && self.plug(nic).vni() == vni;
        let near = nics(guest.vm).find(is_near);
        let near = near.map(|nic| Guest { nic, plug: self.plug(nic), ..*guest });
        (near.unwrap_or(*guest), nics(guest.vm).nth(1).is_none())
    }
}

/// A packet on its way.
struct Walk<'w, 'a> {
    world: &'w World<'a>,
    is_answer: bool,
    steps: Vec<Step>,
    depends: Vec<Unknown>,
    assumed: BTreeSet<Assumption>,
}

/// The end of the way: an error is one that comes before its time.
type Ended = Result<End, End>;

impl<'a> Walk<'_, 'a> {
    fn step(&mut self, step: Step) {
        self.steps.push(step);
    }

    fn unknown(&mut self, unknown: Unknown) {
        if !self.depends.contains(&unknown) {
            self.depends.push(unknown);
        }
    }

    fn begin_at_guest(&mut self, from: &Guest<'a>, to: &Other<'a>) -> Ended {
        let network = match from.plug {
            Plug::Managed(network) | Plug::Bridged(network) => {
                format!("network {} (`{}`)", network.vni, shown(&network.description))
            }
            Plug::Core(net) => format!("the {net} network"),
            Plug::Unrecorded(vni) => format!("network {vni}"),
            Plug::Device => format!("`{}`", device_of(from.nic)),
        };
        self.step(Step::Interface {
            vm: shown(&from.vm.name),
            mac: shown(&from.nic.mac),
            network,
            address: from.span.address(),
            by: from.by,
        });
        let node = self.node_of(from.vm)?;
        match from.plug {
            Plug::Managed(network) => self.managed(network, from, node, to),
            Plug::Bridged(network) => self.bridged(network, from, node, to),
            Plug::Core(net) => {
                self.step(Step::Bridge { node: node.clone(), link: net.bridge().to_owned() });
                self.leave(node, format!("the {net} network"), from, to)
            }
            Plug::Unrecorded(vni) => self.closed(vni, node, to),
            Plug::Device => {
                let device = device_of(from.nic);
                self.step(Step::Device { node: node.clone(), device: device.clone() });
                self.leave(node, format!("`{device}`"), from, to)
            }
        }
    }

    /// The node that a VM runs on.
    fn node_of(&mut self, vm: &VmRecord) -> Result<NodeName, End> {
        let nodes = &self.world.cluster.nodes;
        let reports = |node: &NodeRecord| node.running.contains(&vm.uuid);
        let assigned = vm.node.as_ref();
        let by_record = || assigned.filter(|_| is_to_run(&vm.state)).cloned();
        let assigned_reports =
            assigned.and_then(|name| nodes.get(name)).is_some_and(|n| reports(n));
        let elsewhere = || {
            let is_up = |node: &NodeRecord| node.daemon_state == DaemonState::Run;
            let node = nodes.values().find(|node| is_up(node) && reports(node))?;
            Some(node.name.clone())
        };
        let name = shown(&vm.name);
        let node = match assigned.filter(|_| assigned_reports).cloned().or_else(elsewhere) {
            Some(node) => node,
            None => {
                let node = by_record().ok_or_else(|| End::Off { vm: name.clone() })?;
                let (vm, node) = (name.clone(), node);
                self.unknown(Unknown::NotReported { vm, node: node.clone() });
                node
            }
        };
        self.step(Step::Node { vm: name, node: node.clone() });
        if let Some(record) = self.world.cluster.nodes.get(&node)
            && record.daemon_state != DaemonState::Run
        {
            let (node, state) = (node.clone(), record.daemon_state.as_str().to_owned());
            self.unknown(Unknown::DaemonState { node, state });
        }
        Ok(node)
    }

    /// Takes note of a node that filters, and how.
    fn note_filter(&mut self, node: &NodeName) {
        let Some(record) = self.world.cluster.nodes.get(node) else { return };
        if record.daemon_state != DaemonState::Run {
            let (node, state) = (node.clone(), record.daemon_state.as_str().to_owned());
            self.unknown(Unknown::DaemonState { node, state });
        } else if !record.runs_our_daemon() {
            self.unknown(Unknown::Legacy { node: node.clone() });
        }
    }

    /// Within a VLAN, whose switches are others'.
    fn bridged(
        &mut self,
        network: &GuestNetwork,
        from: &Guest<'a>,
        node: NodeName,
        to: &Other<'a>,
    ) -> Ended {
        let vni = network.vni;
        self.step(Step::Bridge { node: node.clone(), link: vni.bridge() });
        if let Who::Guest(guest) = &to.who
            && guest.plug.vni() == Some(vni)
        {
            let before = self.steps.len();
            let there = self.node_of(guest.vm)?;
            if there != node {
                self.steps.insert(before, Step::Vlan { node, vni });
                let by = format!("VLAN {vni} of the switches");
                self.assumed.insert(Assumption::Others { by });
            }
            self.step(Step::Bridge { node: there.clone(), link: vni.bridge() });
            return Ok(End::Vm { vm: shown(&guest.vm.name), node: there });
        }
        self.step(Step::Vlan { node: node.clone(), vni });
        self.leave(node, format!("VLAN {vni} of the switches"), from, to)
    }

    /// Within the bridge of a network without a record, which nothing leaves.
    fn closed(&mut self, vni: Vni, node: NodeName, to: &Other<'a>) -> Ended {
        let link = vni.bridge();
        self.step(Step::Bridge { node: node.clone(), link: link.clone() });
        let Who::Guest(guest) = &to.who else { return Err(End::NoNetwork { vni }) };
        if guest.plug.vni() != Some(vni) || self.node_of(guest.vm)? != node {
            return Err(End::NoNetwork { vni });
        }
        self.step(Step::Bridge { node: node.clone(), link });
        self.unknown(Unknown::Closed { node: node.clone(), vni });
        Ok(End::Vm { vm: shown(&guest.vm.name), node })
    }

    /// Out of PVC's hands, and by others' routers to the primary if a managed network has the
    /// target.
    fn leave(&mut self, node: NodeName, by: String, from: &Guest<'a>, to: &Other<'a>) -> Ended {
        self.assumed.insert(Assumption::Others { by: by.clone() });
        let network = match &to.who {
            Who::Guest(guest) => guest.plug.vni().and_then(|vni| self.world.network(vni)),
            Who::Nobody { vni, .. } => self.world.network(*vni),
            Who::Primary => {
                self.unknown(Unknown::FromOutside);
                None
            }
            Who::Outside => None,
        };
        let Some(network) = network.filter(|network| network.managed().is_some()) else {
            return Ok(End::Leaves { node, by });
        };
        let (_, primary) = self.gateway(network, to.span.is_ip4())?;
        self.step(Step::Returns { node: primary.clone(), by });
        if !self.is_forwarded(to.span.is_ip4()) {
            self.unknown(Unknown::Forwarding { node: primary.clone() });
        }
        let packet = self.packet(from.span, to.span, None, Some(network.vni.bridge()));
        self.judge_by_rules(&packet, &primary)?;
        self.enter(network, to, primary)
    }

    fn managed(
        &mut self,
        network: &'a GuestNetwork,
        from: &Guest<'a>,
        node: NodeName,
        to: &Other<'a>,
    ) -> Ended {
        let vni = network.vni;
        self.step(Step::Bridge { node: node.clone(), link: vni.bridge() });
        self.guard(network, from, &node)?;
        self.note_address(from, vni);
        match &to.who {
            Who::Guest(guest) if guest.plug.vni() == Some(vni) => {
                return self.deliver(&node, vni, guest);
            }
            Who::Nobody { vni: of, note } if *of == vni => {
                let (address, note) = (to.span.address(), note.clone());
                return Err(End::Nobody { vni, address, note });
            }
            _ => {}
        }
        let primary = self.reach_gateway(network, to.span.is_ip4(), node)?;
        match &to.who {
            Who::Primary => self.input(network, from, to, primary),
            _ => self.forward(network, from, to, primary),
        }
    }

    fn guard(
        &mut self,
        network: &GuestNetwork,
        from: &Guest<'_>,
        node: &NodeName,
    ) -> Result<(), End> {
        let vni = network.vni;
        if !network.options.spoof_guard {
            return Ok(());
        }
        self.note_filter(node);
        if self.is_from_dhcp_server(from.span.is_ip4()) {
            return Err(End::Dropped { node: node.clone(), by: Dropper::GuardOfDhcp { vni } });
        }
        // In IPv4 it has only what DHCP gives, of which several may be recorded.
        let mac = mac_of(&from.nic.mac);
        let leases = self.world.leases.get(&vni).map_or(&[][..], |leases| leases.of_mac(mac));
        let mut addresses = leases.iter().map(|(address, _)| *address);
        let made = made_address(network, from.nic);
        let is_of_other = net_of(network, from.span.is_ip4())
            .is_some_and(|net| from.span.address().is_none() && !from.span.is_in(&net));
        let has_one = match from.span.address() {
            Some(address) => made == Some(address) || addresses.any(|own| own == address),
            None if is_of_other => false,
            None if from.span.is_ip4() => addresses.any(|address| address.is_ipv4()),
            None => addresses.any(|address| address.is_ipv6()),
        };
        if mac.is_none() || !has_one {
            return Err(End::Dropped { node: node.clone(), by: Dropper::Guard { vni } });
        }
        self.step(Step::Guard { node: node.clone(), vni });
        Ok(())
    }

    /// Whether it is for certain the answer of a DHCP server.
    fn is_from_dhcp_server(&self, is_ip4: bool) -> bool {
        let port = if is_ip4 { 67 } else { 547 };
        let Question { protocol, port: asked, .. } = self.world.question;
        self.is_answer && protocol == Some(Protocol::Udp) && asked == Some(port)
    }

    /// To the gateway of a network, which the primary is.
    fn reach_gateway(
        &mut self,
        network: &GuestNetwork,
        is_ip4: bool,
        from: NodeName,
    ) -> Result<NodeName, End> {
        let (address, primary) = self.gateway(network, is_ip4)?;
        let vni = network.vni;
        self.tunnel(vni, &from, &primary);
        self.step(Step::Gateway { vni, node: primary.clone(), address });
        Ok(primary)
    }

    fn gateway(&mut self, network: &GuestNetwork, is_ip4: bool) -> Result<(IpAddr, NodeName), End> {
        let vni = network.vni;
        let mut gateways = network.gateways().into_iter().map(|gateway| gateway.addr());
        let none = match is_ip4 {
            true => "it has none of IPv4",
            false => "it has none of IPv6",
        };
        let address = gateways.find(|address| address.is_ipv4() == is_ip4);
        let address = address.ok_or(End::NoGateway { vni, why: none })?;
        let primary = self.world.cluster.config.primary.clone();
        let primary = primary.ok_or(End::NoGateway { vni, why: "no node is primary" })?;
        self.note_filter(&primary);
        Ok((address, primary))
    }

    fn tunnel(&mut self, vni: Vni, from: &NodeName, to: &NodeName) {
        if from == to {
            return;
        }
        let end = |node: &NodeName| TunnelEnd {
            node: node.clone(),
            address: self
                .world
                .cluster
                .nodes
                .get(node)
                .and_then(|node| node.daemon.as_ref()?.cluster_address.clone()),
        };
        let (from, to) = (end(from), end(to));
        self.step(Step::Tunnel { vni, from, to });
    }

    /// From the bridge of its network on `node` to a guest.
    fn deliver(&mut self, node: &NodeName, vni: Vni, guest: &Guest<'_>) -> Ended {
        let before = self.steps.len();
        let there = self.node_of(guest.vm)?;
        if there != *node {
            let rest = self.steps.split_off(before);
            self.tunnel(vni, node, &there);
            self.steps.extend(rest);
            self.step(Step::Bridge { node: there.clone(), link: vni.bridge() });
        }
        self.note_address(guest, vni);
        let mac = guest.nic.mac.to_ascii_lowercase();
        if self.world.vms.get(&(vni, mac.clone())) == Some(&None) {
            self.unknown(Unknown::OnlyMac { vm: shown(&guest.vm.name), mac });
        }
        Ok(End::Vm { vm: shown(&guest.vm.name), node: there })
    }

    fn note_address(&mut self, guest: &Guest<'_>, vni: Vni) {
        let vm = shown(&guest.vm.name);
        // An answer may go out by another interface.
        let vni = self.world.network_of(&guest.span).map_or(vni, |network| network.vni);
        _ = match guest.by {
            AddressBy::Unknown => self.assumed.insert(Assumption::Address { vm, vni }),
            AddressBy::Mac => self.assumed.insert(Assumption::AddressOfMac { vm }),
            AddressBy::Reservation | AddressBy::Lease => false,
        };
    }

    /// To the primary itself.
    fn input(
        &mut self,
        network: &GuestNetwork,
        from: &Guest<'_>,
        to: &Other<'_>,
        node: NodeName,
    ) -> Ended {
        if self.is_answer {
            return Ok(End::Node { node });
        }
        self.spoofed(network, from, &node)?;
        let is_metadata = to.span.address() == Some(IpAddr::V4(metadata::ADDRESS));
        if is_metadata && self.world.network_of(&from.span).is_none() {
            return Err(End::Dropped { node, by: Dropper::NoService });
        }
        let question = &self.world.question;
        let service = match (question.protocol, question.port) {
            (Some(Protocol::Icmp), _) => Some("ICMP"),
            (None, _) | (_, None) => {
                self.unknown(Unknown::Service);
                return Ok(End::Node { node });
            }
            (Some(_), Some(53)) => Some("DNS"),
            (Some(Protocol::Udp), Some(123)) => Some("NTP"),
            (Some(Protocol::Udp), Some(67)) if from.span.is_ip4() => Some("DHCP"),
            (Some(Protocol::Udp), Some(547)) if !from.span.is_ip4() => Some("DHCP"),
            (Some(Protocol::Tcp), Some(80)) if is_metadata => Some("metadata"),
            _ => None,
        };
        let dropped = || End::Dropped { node: node.clone(), by: Dropper::NoService };
        let service = service.ok_or_else(dropped)?;
        self.step(Step::Service { node: node.clone(), service });
        Ok(End::Node { node })
    }

    /// Nobody sends as a node, and from a guarded network under addresses of it alone.
    fn spoofed(
        &mut self,
        network: &GuestNetwork,
        from: &Guest<'_>,
        node: &NodeName,
    ) -> Result<(), End> {
        let net = net_of(network, from.span.is_ip4());
        if net.is_some_and(|net| from.span.is_in(&net)) {
            return Ok(());
        }
        let is_nodes = self.world.around.nodes.iter().any(|net| from.span.is_in(net));
        let by = match network.options.spoof_guard {
            _ if is_nodes => Dropper::AsNode,
            true => Dropper::Guard { vni: network.vni },
            false => return Ok(()),
        };
        Err(End::Dropped { node: node.clone(), by })
    }

    /// Through the primary, to another network or out.
    fn forward(
        &mut self,
        own: &GuestNetwork,
        from: &Guest<'a>,
        to: &Other<'a>,
        primary: NodeName,
    ) -> Ended {
        self.spoofed(own, from, &primary)?;
        if !self.is_forwarded(to.span.is_ip4()) {
            self.unknown(Unknown::Forwarding { node: primary.clone() });
        }
        let into = self.world.network_of(&to.span);
        let by = |network: &GuestNetwork| Some(network.vni.bridge());
        let packet = self.packet(from.span, to.span, by(own), into.and_then(by));
        self.judge_by_rules(&packet, &primary)?;
        if let Some(network) = into {
            return self.enter(network, to, primary);
        }
        let address = to.span.address();
        let nodes = &self.world.around.nodes;
        let is_node = nodes.iter().any(|net| to.span.is_in(net));
        let masked = self.world.network_of(&from.span).filter(|net| net.options.masquerade);
        if let Some(network) = masked.filter(|_| !is_node && !self.is_answer) {
            self.step(Step::Masquerade { node: primary.clone(), vni: network.vni });
        }
        let between = address.and_then(|address| self.world.between_nodes(address));
        if let (Some(_), Some(address), false) = (between, address, self.world.is_primary_asked()) {
            let node = primary.clone();
            self.unknown(Unknown::NotOfPrimary { address, node });
        }
        let by = match &to.who {
            Who::Guest(Guest { plug: Plug::Core(net), .. }) => format!("the {net} network"),
            _ => self.way_out(between),
        };
        self.assumed.insert(Assumption::Others { by: by.clone() });
        Ok(End::Leaves { node: primary, by })
    }

    /// Whether the primary is known to forward packets: nodes of a cluster do, and a machine alone
    /// if a network of that family asks for it.
    fn is_forwarded(&self, is_ip4: bool) -> bool {
        let asks = |network: &GuestNetwork| {
            network.options.masquerade && (is_ip4 || net_of(network, false).is_some())
        };
        !self.world.around.neighbours.is_empty() || self.world.networks.iter().any(asks)
    }

    /// Name of the way by which the primary reaches what is outside.
    fn way_out(&self, between: Option<&str>) -> String {
        match between {
            Some(name) => name.to_owned(),
            None if self.world.around.neighbours.is_empty() => "the routes of the node".to_owned(),
            None => "the upstream network".to_owned(),
        }
    }

    /// From the gateway of a network on the primary to who has the address.
    fn enter(&mut self, network: &GuestNetwork, to: &Other<'a>, primary: NodeName) -> Ended {
        let vni = network.vni;
        self.gateway(network, to.span.is_ip4())?;
        self.step(Step::Bridge { node: primary.clone(), link: vni.bridge() });
        match &to.who {
            Who::Guest(guest) => self.deliver(&primary, vni, guest),
            Who::Nobody { note, .. } => {
                let (address, note) = (to.span.address(), note.clone());
                Err(End::Nobody { vni, address, note })
            }
            Who::Primary | Who::Outside => Ok(End::Node { node: primary }),
        }
    }

    /// An answer of the primary itself, which nothing filters.
    fn begin_at_primary(&mut self, to: &Other<'a>) -> Ended {
        let network = self.world.network_of(&to.span);
        match (network, &to.who) {
            (Some(network), _) => {
                let (_, primary) = self.gateway(network, to.span.is_ip4())?;
                self.enter(network, to, primary)
            }
            (None, _) => {
                let primary = self.world.cluster.config.primary.clone();
                let node = primary.unwrap_or_else(|| self.world.around.node.clone());
                Ok(End::Leaves { node, by: self.way_out(None) })
            }
        }
    }

    /// An answer that comes back to the primary from outside, where nobody else is asked.
    fn begin_outside(&mut self, from: Span, by: &str, to: &Other<'a>) -> Ended {
        let Some(network) = self.world.network_of(&to.span) else {
            // The guest sends under an address that is not of its network.
            return self.begin_at_primary(to);
        };
        let (_, primary) = self.gateway(network, to.span.is_ip4())?;
        self.step(Step::Returns { node: primary.clone(), by: by.to_owned() });
        let is_node = self.world.around.nodes.iter().any(|net| from.is_in(net));
        if !network.options.masquerade || is_node {
            self.assumed.insert(Assumption::WayBack { vni: network.vni });
        }
        let packet = self.packet(from, to.span, None, Some(network.vni.bridge()));
        self.judge_by_rules(&packet, &primary)?;
        self.enter(network, to, primary)
    }

    fn packet(
        &self,
        from: Span,
        to: Span,
        in_by: Option<String>,
        out_by: Option<String>,
    ) -> Packet {
        let Question { protocol, port, .. } = self.world.question;
        let port = port.map_or(ANY_PORT, |port| (port, port));
        let (from_port, to_port) = match self.is_answer {
            false => (ANY_PORT, port),
            true => (port, ANY_PORT),
        };
        let is_answer = self.is_answer;
        Packet { from, to, protocol, from_port, to_port, is_answer, in_by, out_by }
    }

    /// The rules of operators: first those of the network that it goes to.
    fn judge_by_rules(&mut self, packet: &Packet, node: &NodeName) -> Result<(), End> {
        if packet.in_by.is_some() && packet.in_by == packet.out_by {
            return Ok(()); // It stays on its bridge.
        }
        for (direction, span) in [(Direction::In, packet.to), (Direction::Out, packet.from)] {
            if let Some(network) = self.world.network_of(&span) {
                self.chain(network.vni, direction, packet, node)?;
            }
        }
        Ok(())
    }

    fn chain(
        &mut self,
        vni: Vni,
        direction: Direction,
        packet: &Packet,
        node: &NodeName,
    ) -> Result<(), End> {
        let Some(both) = self.world.rules.get(&vni) else { return Ok(()) };
        let taken = &both[usize::from(direction == Direction::Out)];
        let mut open = Vec::new();
        let mut decided = None;
        for (acl, rule) in &taken.rules {
            let (test, verdict) = judge(rule, packet);
            match (test, verdict) {
                (Test::False, _) | (_, Verdict::GoesOn) => {}
                (Test::True, Verdict::Passes | Verdict::Drops) => {
                    decided = Some((NamedRule::of(vni, acl), verdict));
                    break;
                }
                _ => open.push((NamedRule::of(vni, acl), verdict)),
            }
        }
        let drops = match &decided {
            Some((_, verdict)) => *verdict == Verdict::Drops,
            None => taken.bad.is_some(),
        };
        self.note_open(vni, node, open, drops);
        self.note_bad(vni, node, direction, taken);
        let (node, rules) = (node.clone(), taken.rules.len());
        match decided {
            Some((rule, verdict)) => {
                let (by, is_open) = (Dropper::Rule(rule.clone()), false);
                self.step(Step::Rule { node: node.clone(), rule, is_open, verdict });
                if drops { Err(End::Dropped { node, by }) } else { Ok(()) }
            }
            None if drops => Err(End::Dropped { node, by: Dropper::Cut { vni, direction } }),
            None => {
                self.step(Step::Unjudged { node, vni, direction, rules });
                Ok(())
            }
        }
    }

    /// Rules that may match, as far as another end would come of it.
    fn note_open(
        &mut self,
        vni: Vni,
        node: &NodeName,
        open: Vec<(NamedRule, Verdict)>,
        drops: bool,
    ) {
        let same = if drops { Verdict::Drops } else { Verdict::Passes };
        let mut open = open.into_iter().filter(|(_, verdict)| *verdict != same);
        for (rule, verdict) in open.by_ref().take(MOST_OPEN) {
            let (node, named) = (node.clone(), rule.clone());
            self.step(Step::Rule { node, rule: named, is_open: true, verdict });
            self.unknown(Unknown::Rule { rule, verdict });
        }
        let more = open.count();
        if more > 0 {
            self.unknown(Unknown::MoreRules { vni, more });
        }
    }

    /// A rule that is not taken leaves it open which of the others are in force.
    fn note_bad(
        &mut self,
        vni: Vni,
        node: &NodeName,
        direction: Direction,
        taken: &TakenRules<'_>,
    ) {
        if let Some((acl, why)) = &taken.bad {
            let (description, why) = (shown(&acl.description), shown(why));
            self.unknown(Unknown::Cut { vni, direction, description, why });
        }
        let fault = rules_fault(vni, node);
        if taken.bad.is_none() && self.world.cluster.faults.contains_key(&fault) {
            self.unknown(Unknown::RulesFault { vni, fault });
        }
    }

    /// Faults of what it has met, which may be in its way.
    fn note_faults(&mut self) {
        let mut ids = BTreeSet::new();
        for step in &self.steps {
            let node = step.node().map(NodeName::as_str);
            let kinds: &[&str] = match step {
                Step::Bridge { .. } | Step::Vlan { .. } => &["GUEST_NETWORK"],
                Step::Tunnel { .. } => &["GUEST_NETWORK", "EVPN"],
                Step::Guard { .. } => &["NETWORK_GUARD"],
                Step::Gateway { .. } => &["NETWORK_FIREWALL", "DHCP"],
                Step::Returns { .. } => &["NETWORK_FIREWALL"],
                _ => &[],
            };
            let node = node.into_iter();
            ids.extend(node.flat_map(|node| kinds.iter().map(|kind| fault_id(kind, node))));
        }
        let faults = &self.world.cluster.faults;
        for fault in ids.into_iter().filter(|id| faults.contains_key(id)) {
            self.unknown(Unknown::Fault { fault });
        }
    }
}

fn nics(vm: &VmRecord) -> impl Iterator<Item = &Nic> {
    vm.domain.iter().flat_map(|domain| &domain.nics)
}

/// Name of what an interface is plugged into that is no network of PVC's.
fn device_of(nic: &Nic) -> String {
    match &nic.kind {
        NicKind::Bridge(bridge) => shown(bridge),
        _ => shown(&nic.vni()),
    }
}

/// The network's addresses of one family.
fn net_of(network: &GuestNetwork, is_ip4: bool) -> Option<IpNet> {
    let managed = network.managed()?;
    match is_ip4 {
        true => managed.ip4.as_ref().map(|ip4| IpNet::V4(ip4.network)),
        false => managed.ip6.as_ref().map(|ip6| IpNet::V6(ip6.network)),
    }
}

fn all_of(is_ip4: bool) -> IpNet {
    let any = match is_ip4 {
        true => IpNet::new(Ipv4Addr::UNSPECIFIED.into(), 0),
        false => IpNet::new(Ipv6Addr::UNSPECIFIED.into(), 0),
    };
    any.expect("every family has a prefix of no bits")
}

/// The address that an interface makes of its MAC address in the network.
fn made_address(network: &GuestNetwork, nic: &Nic) -> Option<IpAddr> {
    let net = network.managed()?.ip6.as_ref()?.network;
    let mac = mac_of(&nic.mac)?;
    (net.prefix_len() == 64).then(|| made_of(net.network(), mac).into())
}

/// The MAC address of which an interface in the network has made the address.
fn made_from(network: &GuestNetwork, address: IpAddr) -> Option<Mac> {
    let net = network.managed()?.ip6.as_ref()?.network;
    let IpAddr::V6(address) = address else { return None };
    let [_, _, _, _, _, _, _, _, a, b, c, _, _, d, e, f] = address.octets();
    let mac = [a ^ 2, b, c, d, e, f];
    (net.prefix_len() == 64 && made_of(net.network(), mac) == address).then_some(mac)
}

/// A MAC address as [`VmsByNic`] has it.
fn word_of(mac: Mac) -> String {
    mac.map(|octet| format!("{octet:02x}")).join(":")
}

/// The kind of addresses that it is of, if no single machine has it everywhere.
fn not_unicast(address: IpAddr) -> Option<&'static str> {
    let is_link_local = match address {
        IpAddr::V4(ip) => ip.is_link_local() && ip != metadata::ADDRESS,
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let is_broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    [
        (address.is_unspecified(), "the address of nobody"),
        (address.is_loopback(), "the loopback"),
        (address.is_multicast() || is_broadcast, "the address of many"),
        (is_link_local, "an address of one link"),
    ]
    .into_iter()
    .find_map(|(is_so, what)| is_so.then_some(what))
}

/// Whether a VM in this state has a guest, by its record.
fn is_to_run(state: &VmState) -> bool {
    matches!(
        state,
        VmState::Start
            | VmState::Restart
            | VmState::Shutdown
            | VmState::Migrate
            | VmState::MigrateLive
            | VmState::Unmigrate
    )
}
