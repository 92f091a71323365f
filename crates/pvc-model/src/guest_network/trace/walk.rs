//! The way itself: from bridge to bridge, as links, gateways and firewall of PVC lead a packet.

mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::index::TraceIndex;
use super::judge::{ANY_PORT, Packet, Span, Test, judge};
use super::{
    AddressBy, Assumption, Dropper, End, NamedRule, Protocol, Question, Step, Surroundings, Trace,
    TraceRefusal, TunnelEnd, Unknown, Verdict, Way,
};
use crate::cluster::Cluster;
use crate::domain::{Nic, NicKind};
use crate::fault::fault_id;
use crate::guest_network::guard::{made_of, maker_of};
use crate::guest_network::metadata;
use crate::guest_network::plan::VXLAN_PORT;
use crate::guest_network::rules::{TakenRules, rules_fault};
use crate::guest_network::{GuestNetwork, Vni, is_host_of_4};
use crate::link::{Mac, mac_text, parse_mac};
use crate::network::Direction;
use crate::network_core::CoreNet;
use crate::node::{DaemonState, NodeRecord};
use crate::vm::{VmRecord, VmState};
use crate::{NodeName, shown};

use steps::{Ended, Walk};

/// The most rules that are named of those of which it is not known whether they match.
const MOST_OPEN: usize = 20;

/// Follows a packet and its answer; see [`trace`](super::trace).
pub fn trace(
    cluster: &Cluster,
    index: &TraceIndex,
    around: Surroundings<'_>,
    vm: &VmRecord,
    question: Question<'_>,
) -> Result<Trace, TraceRefusal> {
    let has_ports = matches!(question.protocol, Some(Protocol::Tcp | Protocol::Udp));
    if question.port.is_some() && !has_ports {
        return Err(TraceRefusal::PortWithoutProtocol);
    }
    let by_vni = index.networks.iter().map(|network| (network.vni, network)).collect();
    let world = World { cluster, index, around, by_vni, question };
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

struct World<'a> {
    cluster: &'a Cluster,
    index: &'a TraceIndex,
    around: Surroundings<'a>,
    by_vni: BTreeMap<Vni, &'a GuestNetwork>,
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

    /// The VM that has an interface with this MAC address in a network; `None` for that if several
    /// have one.
    fn vm_of(&self, vni: Vni, mac: Mac) -> Option<Option<&'a VmRecord>> {
        match self.index.vms.get(&(vni, mac))? {
            Some(uuid) => Some(Some(&**self.cluster.vms.get(uuid)?)),
            None => Some(None),
        }
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
        let mac = parse_mac(&nic.mac)?;
        let leases = self.index.leases.get(&network.vni)?;
        let own = leases.of_mac(Some(mac)).iter();
        let own: Vec<_> = own.filter(|(address, _)| address.is_ipv4() == is_ip4).collect();
        let addresses: BTreeSet<IpAddr> = own.iter().map(|(address, _)| *address).collect();
        if let (Some(address), 1) = (addresses.first(), addresses.len()) {
            let holder = leases.holders.get(address);
            let is_reserved = own.iter().any(|(_, lease)| lease.is_reserved);
            let by = if is_reserved { AddressBy::Reservation } else { AddressBy::Lease };
            return (holder == Some(&mac)).then_some((Span::one(*address), by));
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
        let Some(leases) = self.index.leases.get(&vni) else { return nobody(String::new()) };
        let own = leases.by_address.get(&address).map_or(&[][..], Vec::as_slice);
        if let Some(&mac) = leases.holders.get(&address) {
            let is_reserved = own.iter().any(|lease| lease.is_reserved);
            let by = if is_reserved { AddressBy::Reservation } else { AddressBy::Lease };
            return match self.vm_of(vni, mac) {
                Some(Some(vm)) => self.guest_of(vm, vni, mac, address, by),
                Some(None) => nobody(format!("several VMs have the MAC address {}", mac_text(mac))),
                None => nobody(format!("DHCP has it for {}, which no VM has", mac_text(mac))),
            };
        }
        if own.iter().any(|lease| lease.lacks_mac) {
            return nobody("DHCP has given it to a client of unknown MAC address".to_owned());
        }
        if !own.is_empty() {
            return nobody("DHCP has it for several MAC addresses".to_owned());
        }
        let mac = made_from(network, address);
        let of_mac = mac.and_then(|mac| Some((self.vm_of(vni, mac)??, mac)));
        match of_mac {
            Some((vm, mac)) => self.guest_of(vm, vni, mac, address, AddressBy::Mac),
            None => nobody(String::new()),
        }
    }

    fn guest_of(
        &self,
        vm: &'a VmRecord,
        vni: Vni,
        mac: Mac,
        address: IpAddr,
        by: AddressBy,
    ) -> Who<'a> {
        let is_it =
            |nic: &&Nic| self.plug(nic).vni() == Some(vni) && parse_mac(&nic.mac) == Some(mac);
        match nics(vm).find(is_it) {
            Some(nic) => {
                Who::Guest(Guest { vm, nic, plug: self.plug(nic), span: Span::one(address), by })
            }
            None => Who::Nobody { vni, note: String::new() },
        }
    }

    /// The managed network that the addresses are of.
    fn network_of(&self, span: &Span) -> Option<&'a GuestNetwork> {
        self.index
            .networks
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
    let mac = parse_mac(&nic.mac)?;
    (net.prefix_len() == 64).then(|| made_of(net.network(), mac).into())
}

/// The MAC address of which an interface in the network has made the address.
fn made_from(network: &GuestNetwork, address: IpAddr) -> Option<Mac> {
    let net = network.managed()?.ip6.as_ref()?.network;
    let is_of_it = net.prefix_len() == 64 && IpNet::V6(net).contains(&address);
    maker_of(address).filter(|_| is_of_it)
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
