//! The links of the networks of VMs: from any machine to the one that is wanted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pvc_model::cluster::Cluster;
use pvc_model::guest_network::plan::{
    LinkFinding, LinkStep, LinksPlan, Seen, Tunnels, Underlay, VXLAN_PORT, plan, settings,
};
use pvc_model::guest_network::{GuestNetworks, Vni};
use pvc_model::link::{Link, LinkAbilities, LinkKind, Links, Vxlan};
use pvc_model::network::{NetworkOptions, NetworkRecord};

/// A machine that takes steps.
#[derive(Clone)]
struct Machine {
    links: Links,
    settings: BTreeMap<String, String>,
    abilities: LinkAbilities,
    filtered: BTreeSet<Vni>,
}

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

fn link(name: &str, kind: LinkKind) -> Link {
    Link {
        name: name.to_owned(),
        kind,
        mtu: 1500,
        up: false,
        carrier: true,
        master: None,
        lies_on: None,
        alias: None,
        mac: None,
        addresses: BTreeSet::new(),
    }
}

impl Machine {
    fn new() -> Machine {
        let card = Link { up: true, mtu: 9000, ..link("ens4", LinkKind::Device) };
        Machine {
            links: Links::from([("ens4".to_owned(), card)]),
            settings: BTreeMap::new(),
            abilities: LinkAbilities { vlans: true, vxlans: true },
            filtered: (1..=2000).map(vni).collect(),
        }
    }

    fn add(&mut self, link: Link) {
        self.links.insert(link.name.clone(), link);
    }

    fn plan(&self, networks: &GuestNetworks, underlay: &Underlay) -> LinksPlan {
        let wanted = settings(networks, underlay, &self.links);
        let settings: BTreeMap<String, String> = wanted
            .into_iter()
            .filter_map(|key| Some((key.clone(), self.settings.get(&key)?.clone())))
            .collect();
        let seen = Seen {
            node: "hv1",
            links: &self.links,
            abilities: self.abilities,
            settings: &settings,
            filtered: &self.filtered,
        };
        plan(networks, underlay, &seen)
    }

    fn take(&mut self, step: &LinkStep) {
        match step {
            LinkStep::CreateVlan { link: name, lower, id } => {
                let kind = LinkKind::Vlan { lower: Some(lower.clone()), id: *id };
                self.add(Link { lies_on: Some(lower.clone()), ..link(name, kind) });
            }
            LinkStep::CreateVxlan { link: name, vxlan } => {
                assert!(!self.links.contains_key(name), "{name} is there");
                self.add(link(name, LinkKind::Vxlan(vxlan.clone())));
            }
            LinkStep::CreateBridge { link: name } => {
                let mac = Some([0xfe, 0x54, 0, 1, 2, 3]);
                self.add(Link { mac, ..link(name, LinkKind::Bridge) });
                for (key, value) in [("disable_ipv6", "0"), ("accept_dad", "1")] {
                    let key = format!("net/ipv6/conf/{name}/{key}");
                    self.settings.insert(key, value.to_owned());
                }
            }
            LinkStep::Remove { link } => {
                self.links.remove(link).expect("only what is there is removed");
                let others = self.links.values_mut();
                others
                    .filter(|other| other.master.as_ref() == Some(link))
                    .for_each(|port| port.master = None);
            }
            LinkStep::SetMac { link, mac } => self.links.get_mut(link).unwrap().mac = Some(*mac),
            LinkStep::SetAlias { link, alias } => {
                self.links.get_mut(link).unwrap().alias = Some(alias.clone());
            }
            LinkStep::ComputeChecksums { link } => assert!(self.links.contains_key(link)),
            LinkStep::SetMtu { link, mtu } => self.links.get_mut(link).unwrap().mtu = *mtu,
            LinkStep::SwitchOn { link } => self.links.get_mut(link).unwrap().up = true,
            LinkStep::SetMaster { link, master } => {
                assert!(self.links.contains_key(master), "{master} is there");
                self.links.get_mut(link).unwrap().master = Some(master.clone());
            }
            LinkStep::Set { key, value } => _ = self.settings.insert(key.clone(), value.clone()),
        }
    }

    /// Takes all steps; the next plan has none.
    fn settle(&mut self, networks: &GuestNetworks, underlay: &Underlay) -> LinksPlan {
        for step in self.plan(networks, underlay).steps.values().flatten() {
            self.take(step);
        }
        let after = self.plan(networks, underlay);
        assert!(after.is_idle(), "left: {:?}", after.steps);
        after
    }
}

fn record(vni: &str, nettype: &str, mtu: &str) -> NetworkRecord {
    NetworkRecord {
        vni: vni.to_owned(),
        nettype: nettype.to_owned(),
        mtu: mtu.to_owned(),
        ..NetworkRecord::default()
    }
}

fn networks(records: &[NetworkRecord]) -> GuestNetworks {
    let mut cluster = Cluster::default();
    for record in records {
        cluster.networks.insert(record.vni.clone(), Arc::new(record.clone()));
    }
    GuestNetworks::of(&cluster)
}

fn underlay() -> Underlay {
    Underlay {
        tunnels: Some(Tunnels { local: Some("10.0.1.1".parse().unwrap()), mtu: 9000 }),
        bridge_device: Some("ens4".to_owned()),
        bridge_mtu: Some(1500),
    }
}

fn alone() -> Underlay {
    Underlay { tunnels: None, bridge_device: None, bridge_mtu: None }
}

fn finding(plan: &LinksPlan, number: u32) -> Vec<String> {
    let findings = plan.findings.get(&vni(number)).into_iter().flatten();
    findings.map(ToString::to_string).collect()
}

#[test]
fn both_kinds_of_networks_stand_after_one_pass_and_nothing_is_left_to_do() {
    let networks = networks(&[record("1001", "managed", "None"), record("101", "bridged", "1400")]);
    let mut machine = Machine::new();
    let after = machine.settle(&networks, &underlay());
    assert_eq!(after.standing, BTreeSet::from([vni(101), vni(1001)]));
    let at = |name: &str| machine.links.get(name).unwrap();
    assert_eq!((at("vmbr1001").mtu, at("vxlan1001").mtu), (8950, 8950));
    assert_eq!((at("vmbr101").mtu, at("vlan101").mtu), (1400, 1400));
    assert_eq!(at("vxlan1001").master.as_deref(), Some("vmbr1001"));
    assert_eq!(at("vlan101").master.as_deref(), Some("vmbr101"));
    assert!(machine.links.values().all(|link| link.up));
    // Lesson H2: no IPv6 of the host on the networks of others.
    assert_eq!(machine.settings["net/ipv6/conf/vmbr101/disable_ipv6"], "1");
    assert_eq!(machine.settings["net/ipv6/conf/vmbr1001/disable_ipv6"], "0");
    assert_eq!(machine.settings["net/ipv6/conf/vmbr1001/accept_dad"], "0");
}

/// Without them a guest takes nothing that its own node sends to it (`tx off`).
#[test]
fn a_bridge_that_is_made_or_adopted_gets_the_checksums_of_what_is_sent_over_it_computed() {
    let both = networks(&[record("1001", "managed", ""), record("101", "bridged", "")]);
    let mut former = Machine::new();
    former.add(link("vmbr1001", LinkKind::Bridge));
    former.add(link("vmbr101", LinkKind::Bridge));
    for machine in [Machine::new(), former] {
        let steps = machine.plan(&both, &underlay()).steps;
        for number in [101, 1001] {
            let step = LinkStep::ComputeChecksums { link: format!("vmbr{number}") };
            assert!(steps[&vni(number)].contains(&step), "{steps:?}");
        }
    }
}

#[test]
fn no_guest_hears_an_address_that_the_kernel_makes_up_for_a_bridge() {
    let steps = Machine::new().plan(&networks(&[record("101", "bridged", "")]), &underlay()).steps;
    let steps = &steps[&vni(101)];
    let at = |wanted: &dyn Fn(&LinkStep) -> bool| steps.iter().position(wanted).unwrap();
    let set = at(&|step| matches!(step, LinkStep::Set { .. }));
    let on = at(&|step| matches!(step, LinkStep::SwitchOn { link } if link == "vmbr101"));
    assert!(set < on, "{steps:?}");
}

#[test]
fn what_drifts_is_set_right_and_what_others_made_is_adopted() {
    let networks = networks(&[record("1001", "managed", ""), record("101", "bridged", "")]);
    let mut machine = Machine::new();
    machine.settle(&networks, &underlay());
    let well = machine.links.clone();
    let drifts: [&dyn Fn(&mut Links); 6] = [
        &|links| links.get_mut("vmbr1001").unwrap().mtu = 1500,
        &|links| links.get_mut("vmbr101").unwrap().up = false,
        &|links| links.get_mut("vxlan1001").unwrap().master = None,
        &|links| _ = links.remove("vlan101"),
        &|links| links.get_mut("vxlan1001").unwrap().up = false,
        // So PVC 1.0.3 makes a tunnel: bound to the cluster's card, without an address.
        &|links| {
            links.get_mut("vxlan1001").unwrap().kind = LinkKind::Vxlan(Vxlan {
                id: 1001,
                local: None,
                lower: Some("ens4".to_owned()),
                port: VXLAN_PORT,
                learning: true,
            });
        },
    ];
    for (number, drift) in drifts.into_iter().enumerate() {
        machine.links = well.clone();
        drift(&mut machine.links);
        machine.settle(&networks, &underlay());
        assert_eq!(machine.links, well, "drift {number}");
    }
}

#[test]
fn a_network_whose_record_is_gone_leaves_nothing_unless_somebody_uses_it() {
    let both = networks(&[record("1001", "managed", ""), record("101", "bridged", "")]);
    let mut machine = Machine::new();
    let before = machine.links.clone();
    machine.settle(&both, &underlay());
    let tap = Link {
        master: Some("vmbr1001".to_owned()),
        ..link("vnet7", LinkKind::Other("tun".to_owned()))
    };
    machine.add(tap);
    let none = networks(&[]);
    let plan = machine.settle(&none, &underlay());
    assert!(machine.links.contains_key("vmbr1001") && machine.links.contains_key("vxlan1001"));
    assert!(!machine.links.contains_key("vmbr101") && !machine.links.contains_key("vlan101"));
    let said = finding(&plan, 1001);
    assert!(said[0].contains("`vmbr1001` is in use: vnet7"), "{said:?}");
    machine.links.remove("vnet7");
    machine.settle(&none, &underlay());
    assert_eq!(machine.links, before);
}

#[test]
fn a_record_that_says_nothing_is_no_order_to_remove_its_network() {
    let mut machine = Machine::new();
    machine.settle(&networks(&[record("1001", "managed", "")]), &underlay());
    let stands = machine.links.clone();
    machine.settle(&networks(&[record("1001", "", "")]), &underlay());
    assert_eq!(machine.links, stands);
}

fn addressed(link: Link, address: &str) -> Link {
    Link { addresses: BTreeSet::from([address.parse().unwrap()]), ..link }
}

fn tunnel(number: u32) -> LinkKind {
    LinkKind::Vxlan(Vxlan {
        id: number,
        local: None,
        lower: Some("ens4".to_owned()),
        port: VXLAN_PORT,
        learning: true,
    })
}

#[test]
fn links_of_others_with_such_names_are_left_alone() {
    let mut machine = Machine::new();
    // The way to the administrator, as ifupdown makes it, and others that are as much like ours.
    machine.add(addressed(link("vlan100", vlan_of("ens4", 100)), "192.0.2.100/24"));
    machine.add(link("vlan101", vlan_of("ens4", 101)));
    machine.add(link("vlan102", vlan_of("ens5", 102)));
    machine.add(addressed(link("vxlan103", tunnel(103)), "192.0.2.103/24"));
    machine.add(link("vxlan104", tunnel(104)));
    machine.add(Link { alias: Some("backup".to_owned()), ..link("vmbr105", LinkKind::Bridge) });
    machine.add(link("vmbr106", LinkKind::Bridge));
    // A bridge of a hypervisor that was here before, and devices whose numbers are not those of
    // their names.
    machine.add(Link {
        addresses: BTreeSet::from(["192.0.2.1/24".parse().unwrap()]),
        ..link("vmbr5", LinkKind::Bridge)
    });
    machine.add(link("vlan7", LinkKind::Vlan { lower: Some("ens4".to_owned()), id: 8 }));
    machine.add(link("vmbr0", LinkKind::Bridge));
    machine.add(link("vmbrx", LinkKind::Bridge));
    machine.add(link("vxlan9", LinkKind::Device));
    let before = machine.links.clone();
    let plan = machine.settle(&networks(&[]), &underlay());
    assert_eq!(machine.links, before);
    assert_eq!(plan.findings, BTreeMap::new());

    // Also when there is a network of the other kind of that number.
    let managed = [100, 101, 102].map(|vni| record(&vni.to_string(), "managed", ""));
    machine.settle(&networks(&managed), &underlay());
    for name in ["vlan100", "vlan101", "vlan102"] {
        assert_eq!(machine.links.get(name), before.get(name), "{name}");
    }
}

/// A daemon that was killed between two steps left a VLAN that heard a router's advertisement.
#[test]
fn a_vlan_of_ours_that_a_router_has_given_an_address_is_made_a_port_all_the_same() {
    let mut machine = Machine::new();
    let vlan = Link {
        alias: Some("PVC network 100".to_owned()),
        ..addressed(link("vlan100", vlan_of("ens4", 100)), "2001:db8::7/64")
    };
    machine.add(vlan);
    let plan = machine.settle(&networks(&[record("100", "bridged", "")]), &underlay());
    assert_eq!(plan.findings, BTreeMap::new());
    assert_eq!(machine.links["vlan100"].master.as_deref(), Some("vmbr100"));
}

#[test]
fn a_bridge_that_the_machine_has_an_address_on_keeps_it_and_its_mtu() {
    let mut machine = Machine::new();
    let own = Link { mtu: 1280, ..link("vmbr100", LinkKind::Bridge) };
    machine.add(addressed(own, "2001:db8::1/64"));
    machine.settle(&networks(&[record("100", "bridged", "")]), &underlay());
    let bridge = &machine.links["vmbr100"];
    assert_eq!((bridge.mtu, bridge.alias.clone()), (1280, None));
    assert_eq!(machine.settings.get("net/ipv6/conf/vmbr100/disable_ipv6"), None);
    assert_eq!(machine.links["vlan100"].master.as_deref(), Some("vmbr100"));
}

/// PVC 1.0.3 leaves the gateway with its former prefix when the network's prefix alone changes.
#[test]
fn a_bridge_with_a_gateway_of_before_is_adopted() {
    let mut machine = Machine::new();
    machine.add(addressed(link("vmbr1001", LinkKind::Bridge), "10.20.1.1/25"));
    let record = NetworkRecord {
        ip4_network: "10.20.1.0/24".to_owned(),
        ip4_gateway: "10.20.1.1".to_owned(),
        ..record("1001", "managed", "")
    };
    machine.settle(&networks(&[record]), &underlay());
    assert_eq!(machine.links["vmbr1001"].alias.as_deref(), Some("PVC network 1001"));
}

#[test]
fn a_link_that_the_machine_uses_itself_is_not_made_a_port_and_not_replaced() {
    let mut machine = Machine::new();
    machine.add(addressed(link("vlan100", vlan_of("ens4", 100)), "192.0.2.100/24"));
    machine.add(link("vlan101", vlan_of("ens4", 101)));
    machine.add(Link { lies_on: Some("vlan101".to_owned()), ..link("mv0", vlan_of("vlan101", 9)) });
    machine.add(addressed(link("vlan102", vlan_of("ens5", 102)), "192.0.2.102/24"));
    machine.add(addressed(link("vxlan103", tunnel(103)), "192.0.2.103/24"));
    machine.add(link("vlan104", vlan_of("ens5", 104)));
    let before = machine.links.clone();
    let all = networks(&[
        record("100", "bridged", ""),
        record("101", "bridged", ""),
        record("102", "bridged", ""),
        record("103", "managed", ""),
        record("104", "bridged", ""),
    ]);
    let plan = machine.settle(&all, &underlay());
    for (name, link) in &before {
        assert_eq!(machine.links.get(name), Some(link), "{name}");
    }
    assert_eq!(plan.standing, BTreeSet::new());
    let says = |number, what: &str| {
        let said = finding(&plan, number);
        assert!(said[0].contains(what), "{said:?}");
    };
    says(100, "`vlan100` is in other use: the address 192.0.2.100/24");
    says(101, "mv0");
    says(102, "192.0.2.102/24");
    says(103, "192.0.2.103/24");
    says(104, "`vlan104` should be a VLAN");
    // Nor do they go with the record.
    machine.settle(&networks(&[]), &underlay());
    assert_eq!(machine.links, before);
}

/// PVC 1.0.3 marks nothing.
#[test]
fn what_was_adopted_goes_with_its_record_but_for_what_others_use_by_then() {
    let both = networks(&[record("1001", "managed", ""), record("101", "bridged", "")]);
    let mut machine = Machine::new();
    let before = machine.links.clone();
    for number in [1001, 101] {
        let bridge = format!("vmbr{number}");
        let mac = Some([0xfe, 0x54, 0, 9, 9, 9]);
        machine.add(Link { mac, ..link(&bridge, LinkKind::Bridge) });
        let kind = if number == 101 { vlan_of("ens4", 101) } else { tunnel(number) };
        let name = if number == 101 { "vlan101" } else { "vxlan1001" };
        machine.add(Link { master: Some(bridge), ..link(name, kind) });
    }
    let steps = machine.plan(&both, &underlay()).steps;
    let pinned = |number| {
        steps[&vni(number)]
            .iter()
            .any(|step| matches!(step, LinkStep::SetMac { mac: [0xfe, 0x54, 0, 9, 9, 9], .. }))
    };
    assert!(pinned(101) && pinned(1001), "the MAC address that guests know: {steps:?}");
    machine.settle(&both, &underlay());
    let well = machine.links.clone();
    machine.settle(&networks(&[]), &underlay());
    assert_eq!(machine.links, before);

    machine.links = well;
    machine.add(Link { lies_on: Some("vmbr101".to_owned()), ..link("mv0", vlan_of("vmbr101", 9)) });
    let vlan = machine.links["vlan101"].clone();
    machine.add(addressed(vlan, "192.0.2.9/24"));
    let plan = machine.settle(&networks(&[]), &underlay());
    assert!(machine.links.contains_key("vmbr101") && machine.links.contains_key("vlan101"));
    assert!(finding(&plan, 101)[0].contains("`vmbr101` is in use: mv0"), "{plan:?}");
}

#[test]
fn a_bridge_has_a_mac_address_of_its_node_and_number_that_stays() {
    let mac = |node: &str, number: u32| {
        let one = networks(&[record(&number.to_string(), "managed", "")]);
        let machine = Machine::new();
        let seen = Seen {
            node,
            links: &machine.links,
            abilities: machine.abilities,
            settings: &machine.settings,
            filtered: &machine.filtered,
        };
        let steps = plan(&one, &alone(), &seen).steps.remove(&vni(number)).unwrap();
        let macs = steps.iter().filter_map(|step| match step {
            LinkStep::SetMac { mac, .. } => Some(*mac),
            _ => None,
        });
        macs.collect::<Vec<_>>()
    };
    assert_eq!(mac("hv1", 1001), [MAC_OF_HV1], "the same with every version");
    let mut all = BTreeSet::new();
    for node in ["hv1", "hv2", "hv11"] {
        for number in [1, 11, 1001] {
            let [mac] = mac(node, number)[..] else { panic!("{node} {number}") };
            assert_eq!(mac[0], 2, "a local address of one station");
            assert!(all.insert(mac), "{node} {number}");
        }
    }
}

const MAC_OF_HV1: [u8; 6] = [2, 56, 194, 140, 106, 139];

#[test]
fn a_network_that_cannot_be_does_not_keep_others_from_standing() {
    let all = networks(&[
        record("101", "bridged", ""),
        record("102", "bridged", ""),
        record("1001", "managed", ""),
        record("1002", "managed", ""),
    ]);
    let mut machine = Machine::new();
    machine.add(link("vmbr1002", LinkKind::Device));
    machine.add(Link { master: Some("br0".into()), ..link("vlan102", vlan_of("ens4", 102)) });
    let plan = machine.settle(&all, &underlay());
    assert_eq!(plan.standing, BTreeSet::from([vni(101), vni(1001)]));
    assert_eq!(finding(&plan, 1002), ["`vmbr1002` should be a bridge and is a device"]);
    assert_eq!(
        finding(&plan, 102),
        ["`vlan102` is a port of `br0`, which is not its network's bridge"]
    );
}

fn vlan_of(lower: &str, id: u16) -> LinkKind {
    LinkKind::Vlan { lower: Some(lower.to_owned()), id }
}

/// Lesson H1: the cluster network may be such a VLAN itself.
#[test]
fn vlans_lie_on_the_device_itself_where_the_cluster_network_is_a_vlan_of_it() {
    let networks = networks(&[record("101", "bridged", ""), record("1001", "managed", "")]);
    let mut machine = Machine::new();
    let bridge = Some("brcluster".to_owned());
    let of_cluster = Link { up: true, master: bridge, ..link("ens4.10", vlan_of("ens4", 10)) };
    let before = Link { lies_on: Some("ens4".to_owned()), ..of_cluster };
    machine.add(before.clone());
    machine.add(Link { up: true, ..link("brcluster", LinkKind::Bridge) });
    let after = machine.settle(&networks, &underlay());
    assert_eq!(after.standing, BTreeSet::from([vni(101), vni(1001)]));
    assert_eq!(machine.links["vlan101"].kind, vlan_of("ens4", 101));
    assert_eq!(machine.links["ens4.10"], before);
}

#[test]
fn without_a_device_or_the_kernels_ability_bridged_networks_say_so() {
    let bridged = networks(&[record("101", "bridged", "")]);
    let mut machine = Machine::new();
    let no_device = Underlay { bridge_device: None, ..underlay() };
    let plan = machine.plan(&bridged, &no_device);
    assert!(finding(&plan, 101)[0].contains("no device for bridged networks"));
    let gone = Underlay { bridge_device: Some("ens9".to_owned()), ..underlay() };
    assert!(finding(&machine.plan(&bridged, &gone), 101)[0].contains("`ens9`"));
    machine.abilities.vlans = false;
    assert!(finding(&machine.plan(&bridged, &underlay()), 101)[0].contains("8021q"));
    for plan in [&plan, &machine.plan(&bridged, &underlay())] {
        assert!(plan.standing.is_empty());
    }
}

#[test]
fn an_mtu_above_what_the_node_carries_is_cut_and_said() {
    let large = networks(&[record("1001", "managed", "9000"), record("101", "bridged", "9000")]);
    let mut machine = Machine::new();
    let plan = machine.settle(&large, &underlay());
    assert_eq!(plan.standing.len(), 2, "they stand all the same");
    assert_eq!(machine.links["vmbr1001"].mtu, 8950);
    assert_eq!(machine.links["vmbr101"].mtu, 1500);
    assert!(
        plan.findings[&vni(101)].contains(&LinkFinding::MtuTooLarge { asked: 9000, most: 1500 })
    );
}

#[test]
fn a_managed_network_is_not_made_before_its_packet_filter() {
    let managed = networks(&[record("1001", "managed", "")]);
    let mut machine = Machine::new();
    machine.filtered.clear();
    let plan = machine.plan(&managed, &underlay());
    assert!(plan.is_idle() && plan.standing.is_empty());
    machine.filtered.insert(vni(1001));
    machine.settle(&managed, &underlay());
    // It is not torn down when the filter is loaded anew.
    machine.filtered.clear();
    assert_eq!(machine.settle(&managed, &underlay()).standing.len(), 1);
}

#[test]
fn a_machine_alone_has_bridges_without_tunnels_of_any_mtu() {
    let managed = networks(&[record("1001", "managed", "9000"), record("1002", "managed", "")]);
    let mut machine = Machine::new();
    let plan = machine.settle(&managed, &alone());
    assert_eq!(plan.standing.len(), 2);
    assert_eq!((machine.links["vmbr1001"].mtu, machine.links["vmbr1002"].mtu), (9000, 1500));
    assert!(!machine.links.contains_key("vxlan1001"));
}

#[test]
fn a_machine_alone_has_bridged_networks_on_the_device_that_is_named_for_them() {
    let both = networks(&[record("101", "bridged", ""), record("1001", "managed", "")]);
    let bridge_device = Some("ens4".to_owned());
    let underlay = Underlay { tunnels: None, bridge_device, bridge_mtu: Some(1500) };
    let mut machine = Machine::new();
    let plan = machine.settle(&both, &underlay);
    assert_eq!(plan.standing, BTreeSet::from([vni(101), vni(1001)]));
    assert_eq!(plan.findings, BTreeMap::new());
    let vlan = &machine.links["vlan101"];
    assert_eq!((&vlan.kind, vlan.mtu), (&vlan_of("ens4", 101), 1500));
    assert_eq!(vlan.master.as_deref(), Some("vmbr101"));
    assert!(!machine.links.contains_key("vxlan1001"));
}

fn six(vni: &str) -> NetworkRecord {
    let (ip6_network, ip6_gateway) = (format!("2001:db8:{vni}::/64"), format!("2001:db8:{vni}::1"));
    NetworkRecord { ip6_network, ip6_gateway, ..record(vni, "managed", "") }
}

/// Machines are hardened so: `net.ipv6.conf.default.disable_ipv6 = 1`.
#[test]
fn a_network_of_ipv6_has_it_also_where_new_links_have_none() {
    let networks = networks(&[six("1001"), record("1002", "managed", "")]);
    let mut machine = Machine::new();
    machine.settle(&networks, &underlay());
    for number in [1001, 1002] {
        let key = format!("net/ipv6/conf/vmbr{number}/disable_ipv6");
        machine.settings.insert(key, "1".to_owned());
    }
    machine.settle(&networks, &underlay());
    assert_eq!(machine.settings["net/ipv6/conf/vmbr1001/disable_ipv6"], "0");
    assert_eq!(machine.settings["net/ipv6/conf/vmbr1002/disable_ipv6"], "1", "nobody asks for it");
}

#[test]
fn a_machine_alone_forwards_what_it_masks_and_keeps_its_own_way_out() {
    let mut cluster = Cluster::default();
    cluster.networks.insert("1001".to_owned(), Arc::new(six("1001")));
    let of = |masquerade| {
        let mut cluster = cluster.clone();
        let options = NetworkOptions { masquerade, ..NetworkOptions::default() };
        cluster.network_options.insert("1001".to_owned(), Arc::new(options));
        GuestNetworks::of(&cluster)
    };
    let mut machine = Machine::new();
    for (name, accepts) in [("ens4", "1"), ("ens5", "0"), ("vnet0", "1")] {
        let master = (name == "vnet0").then(|| "br0".to_owned());
        machine.add(Link { master, ..link(name, LinkKind::Device) });
        machine.settings.insert(format!("net/ipv6/conf/{name}/accept_ra"), accepts.to_owned());
    }
    machine.settings.insert("net/ipv4/ip_forward".to_owned(), "0".to_owned());
    machine.settings.insert("net/ipv6/conf/all/forwarding".to_owned(), "0".to_owned());
    let before = machine.settings.clone();
    machine.settle(&of(false), &alone());
    let changed = |machine: &Machine| {
        let is_new = |(key, value): &(&String, &String)| before.get(*key) != Some(*value);
        let new = machine.settings.iter().filter(is_new).filter(|(key, _)| !key.contains("vmbr"));
        new.map(|(key, value)| format!("{key} {value}")).collect::<Vec<_>>()
    };
    assert_eq!(changed(&machine), [""; 0]);
    let steps = machine.plan(&of(true), &alone()).steps;
    let set = |wanted: &str| {
        let is_it = |step: &LinkStep| matches!(step, LinkStep::Set { key, .. } if key == wanted);
        steps[&vni(1001)].iter().position(is_it).unwrap()
    };
    let listens = "net/ipv6/conf/ens4/accept_ra";
    assert!(set(listens) < set("net/ipv6/conf/all/forwarding"), "else its routes are lost");
    machine.settle(&of(true), &alone());
    assert_eq!(
        changed(&machine),
        ["net/ipv4/ip_forward 1", "net/ipv6/conf/all/forwarding 1", &format!("{listens} 2")]
    );
    // Who forwards already has chosen whom to listen to.
    machine.settings.insert(listens.to_owned(), "1".to_owned());
    assert!(machine.plan(&of(true), &alone()).is_idle());
}

#[test]
fn a_number_that_becomes_a_network_of_the_other_kind_changes_its_lower_link() {
    let mut machine = Machine::new();
    machine.settle(&networks(&[record("101", "bridged", "")]), &underlay());
    machine.settle(&networks(&[record("101", "managed", "")]), &underlay());
    assert!(machine.links.contains_key("vxlan101") && !machine.links.contains_key("vlan101"));
    machine.settle(&networks(&[record("101", "bridged", "")]), &underlay());
    assert!(machine.links.contains_key("vlan101") && !machine.links.contains_key("vxlan101"));
}
