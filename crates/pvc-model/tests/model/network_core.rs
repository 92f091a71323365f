//! The plan for the networks between the nodes.

use std::collections::BTreeSet;

use proptest::prelude::*;
use pvc_model::link::{IpNet, Link, LinkKind, Route};
use pvc_model::network_core::{
    CoreNet, CoreNetwork, CoreNetworks, NetworkFinding, NetworkStep, Seen, plan, settings,
};

fn network(device: &str, mtu: u32, address: &str) -> CoreNetwork {
    let address = (!address.is_empty()).then(|| address.parse().unwrap());
    CoreNetwork { device: device.to_owned(), mtu, address, gateway: None }
}

/// Three cards, three networks.
fn three() -> CoreNetworks {
    let upstream = network("ens4", 1500, "10.0.0.1/24");
    CoreNetworks {
        cluster: network("ens5", 9000, "10.0.1.1/24"),
        upstream: CoreNetwork { gateway: Some("10.0.0.254".parse().unwrap()), ..upstream },
        storage: network("ens6", 9000, "10.0.2.1/24"),
    }
}

/// Everything on one card.
fn collapsed() -> CoreNetworks {
    let mut networks = three();
    for (network, address) in [
        (&mut networks.cluster, "10.0.0.1/24"),
        (&mut networks.upstream, "10.0.0.1/24"),
        (&mut networks.storage, "10.0.2.1/24"),
    ] {
        (network.device, network.mtu) = ("ens4".to_owned(), 1500);
        network.address = Some(address.parse().unwrap());
    }
    networks
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
        mac: Some([2, 0, 0, 0, 0, 1]),
        addresses: BTreeSet::new(),
    }
}

fn machine(devices: &[&str]) -> Seen {
    let mut seen = Seen::default();
    for name in devices {
        seen.links.insert((*name).to_owned(), link(name, LinkKind::Device));
    }
    for key in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        seen.settings.insert(key.to_owned(), "0".to_owned());
    }
    seen
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn default_route(via: &str, on: &str, metric: u32) -> Route {
    Route {
        to: net("0.0.0.0/0"),
        via: Some(via.parse().unwrap()),
        link: Some(on.to_owned()),
        metric,
    }
}

/// State of the machine once the steps were taken. Panics where the kernel would refuse.
fn after(mut seen: Seen, steps: &[NetworkStep]) -> Seen {
    for step in steps {
        match step {
            NetworkStep::CreateVlan { link: name, lower, id } => {
                assert!(seen.links.contains_key(lower), "{step}");
                let kind = LinkKind::Vlan { lower: Some(lower.clone()), id: *id };
                assert!(seen.links.insert(name.clone(), link(name, kind)).is_none(), "{step}");
            }
            NetworkStep::CreateBridge { link: name } => {
                assert!(
                    seen.links.insert(name.clone(), link(name, LinkKind::Bridge)).is_none(),
                    "{step}"
                );
                for key in ["net/ipv4/conf/{}/rp_filter", "net/ipv6/conf/{}/accept_ra"] {
                    seen.settings.insert(key.replace("{}", name), "1".to_owned());
                }
            }
            NetworkStep::SetMtu { link, mtu } => {
                let kind = seen.links[link].kind.clone();
                if let LinkKind::Vlan { lower: Some(lower), .. } = kind {
                    assert!(seen.links[&lower].mtu >= *mtu, "{step}");
                }
                seen.links.get_mut(link).unwrap().mtu = *mtu;
            }
            NetworkStep::SwitchOn { link } => seen.links.get_mut(link).unwrap().up = true,
            NetworkStep::SetMaster { link, master } => {
                assert_eq!(seen.links[master].kind, LinkKind::Bridge, "{step}");
                assert_ne!(seen.links[link].kind, LinkKind::Bridge, "{step}");
                seen.links.get_mut(link).unwrap().master = Some(master.clone());
                seen.links.get_mut(master).unwrap().mtu = seen.links[link].mtu;
            }
            NetworkStep::AddAddress { link, address } => {
                assert!(seen.links.get_mut(link).unwrap().addresses.insert(*address), "{step}");
            }
            NetworkStep::RemoveAddress { link, address } => {
                assert!(seen.links.get_mut(link).unwrap().addresses.remove(address), "{step}");
            }
            NetworkStep::AddRoute(route) => {
                assert!(seen.links[route.link.as_ref().unwrap()].up, "{step}");
                let rivals = seen
                    .routes
                    .iter()
                    .filter(|other| other.to == route.to && other.metric == route.metric);
                assert_eq!(rivals.count(), 0, "{step}");
                seen.routes.push(route.clone());
            }
            NetworkStep::RemoveRoute(route) => {
                let before = seen.routes.len();
                seen.routes.retain(|other| other != route);
                assert_eq!(seen.routes.len() + 1, before, "{step}");
            }
            NetworkStep::Set { key, value } => {
                assert!(seen.settings.insert(key.clone(), value.clone()).is_some(), "{step}");
            }
        }
    }
    seen
}

/// Takes plan after plan until there is nothing left to do: settings of links that are made by the
/// first plan are seen by the second.
fn settled(networks: &CoreNetworks, mut seen: Seen) -> Seen {
    for _ in 0..2 {
        let steps = plan(networks, &seen).steps;
        seen = after(seen, &steps);
    }
    assert_eq!(plan(networks, &seen).steps, [], "{networks:?}");
    seen
}

fn words(networks: &CoreNetworks, seen: &Seen) -> Vec<String> {
    plan(networks, seen).steps.iter().map(ToString::to_string).collect()
}

#[test]
fn a_bare_machine_gets_all_three_networks_in_order() {
    let seen = machine(&["lo", "ens4", "ens5", "ens6"]);
    let wanted = [
        "set the MTU of `ens5` to 9000",
        "switch `ens5` on",
        "switch `ens4` on",
        "set the MTU of `ens6` to 9000",
        "switch `ens6` on",
        "make the bridge `brcluster`",
        "make `ens5` a port of `brcluster`",
        "set the MTU of `brcluster` to 9000",
        "switch `brcluster` on",
        "make the bridge `brupstream`",
        "make `ens4` a port of `brupstream`",
        "set the MTU of `brupstream` to 1500",
        "switch `brupstream` on",
        "make the bridge `brstorage`",
        "make `ens6` a port of `brstorage`",
        "set the MTU of `brstorage` to 9000",
        "switch `brstorage` on",
        "give `brcluster` the address 10.0.1.1/24",
        "give `brstorage` the address 10.0.2.1/24",
        "give `brupstream` the address 10.0.0.1/24",
        "add the route `default via 10.0.0.254 on brupstream`",
        "set `net/ipv4/ip_forward` to 1",
        "set `net/ipv6/conf/all/forwarding` to 1",
    ];
    assert_eq!(words(&three(), &seen), wanted);
    assert!(plan(&three(), &seen).findings.is_empty());
    let stands = settled(&three(), seen);
    assert_eq!(
        stands.settings["net/ipv6/conf/brupstream/accept_ra"], "2",
        "routers are still listened to"
    );
    assert_eq!(stands.settings["net/ipv4/conf/brcluster/rp_filter"], "0");
}

#[test]
fn networks_on_one_device_share_a_bridge_and_an_equal_address_stands_once() {
    let networks = collapsed();
    for net in CoreNet::ALL {
        assert_eq!(networks.bridge_of(net), "brcluster", "{net}");
    }
    let stands = settled(&networks, machine(&["ens4"]));
    let bridge = &stands.links["brcluster"];
    assert_eq!(bridge.addresses, [net("10.0.0.1/24"), net("10.0.2.1/24")].into());
    assert!(!stands.links.contains_key("brupstream") && !stands.links.contains_key("brstorage"));
    assert_eq!(stands.routes, [default_route("10.0.0.254", "brcluster", 0)]);
}

#[test]
fn upstream_and_storage_on_one_device_share_the_upstream_bridge() {
    let mut networks = three();
    networks.storage.device = "ens4".to_owned();
    assert_eq!(networks.bridge_of(CoreNet::Storage), "brupstream");
    let stands = settled(&networks, machine(&["ens4", "ens5"]));
    assert_eq!(
        stands.links["brupstream"].addresses,
        [net("10.0.0.1/24"), net("10.0.2.1/24")].into()
    );
}

/// Change that somebody made to the machine.
type Change = fn(&mut Seen);

#[test]
fn what_stands_is_adopted_and_what_was_removed_is_made_again() {
    let stands = settled(&three(), machine(&["ens4", "ens5", "ens6"]));
    let cases: [(Change, &[&str]); 6] = [
        (|_| {}, &[]),
        (
            |seen| {
                seen.links.get_mut("brcluster").unwrap().addresses.clear();
            },
            &["give `brcluster` the address 10.0.1.1/24"],
        ),
        (
            |seen| seen.links.get_mut("ens6").unwrap().master = None,
            &["make `ens6` a port of `brstorage`", "set the MTU of `brstorage` to 9000"],
        ),
        (|seen| seen.links.get_mut("ens5").unwrap().mtu = 1500, &["set the MTU of `ens5` to 9000"]),
        (|seen| seen.routes.clear(), &["add the route `default via 10.0.0.254 on brupstream`"]),
        (|seen| seen.links.get_mut("brupstream").unwrap().up = false, &["switch `brupstream` on"]),
    ];
    for (change, wanted) in cases {
        let mut seen = stands.clone();
        change(&mut seen);
        assert_eq!(words(&three(), &seen), wanted);
    }
}

#[test]
fn a_vlan_is_made_on_the_link_it_is_named_after_and_one_that_stands_is_adopted() {
    let mut networks = three();
    networks.storage.device = "bond0.100".to_owned();
    let mut seen = machine(&["ens4", "ens5", "bond0"]);
    let steps = words(&networks, &seen);
    assert_eq!(steps[..2], ["set the MTU of `bond0` to 9000", "switch `bond0` on"]);
    let of_vlan: Vec<&String> = steps.iter().filter(|step| step.contains("`bond0.100`")).collect();
    assert_eq!(
        of_vlan,
        [
            "make `bond0.100`, VLAN 100 on `bond0`",
            "set the MTU of `bond0.100` to 9000",
            "switch `bond0.100` on",
            "make `bond0.100` a port of `brstorage`",
        ]
    );
    let stands = settled(&networks, seen.clone());
    assert_eq!(stands.links["bond0.100"].master.as_deref(), Some("brstorage"));
    // Whatever a link of that name is, it is taken: a veth in place of a VLAN, for one.
    seen.links
        .insert("bond0.100".to_owned(), link("bond0.100", LinkKind::Other("veth".to_owned())));
    assert!(!words(&networks, &seen).iter().any(|step| step.contains("VLAN")));
}

#[test]
fn the_link_below_a_vlan_that_stands_is_switched_on_again() {
    let mut networks = three();
    networks.storage.device = "bond0.100".to_owned();
    let mut stands = settled(&networks, machine(&["ens4", "ens5", "bond0"]));
    stands.links.get_mut("bond0").unwrap().up = false;
    assert_eq!(words(&networks, &stands), ["switch `bond0` on"]);
    let bond = stands.links.get_mut("bond0").unwrap();
    (bond.up, bond.mtu) = (true, 1500);
    assert_eq!(words(&networks, &stands), ["set the MTU of `bond0` to 9000"]);
}

#[test]
fn the_link_below_two_vlans_lets_the_larger_through() {
    let mut networks = three();
    networks.cluster.device = "bond0.100".to_owned();
    networks.storage.device = "bond0.200".to_owned();
    (networks.cluster.mtu, networks.storage.mtu) = (9000, 4000);
    let seen = machine(&["ens4", "bond0"]);
    assert_eq!(
        words(&networks, &seen)[..2],
        ["set the MTU of `bond0` to 9000", "switch `bond0` on"]
    );
    settled(&networks, seen);
}

#[test]
fn a_vlan_on_a_bridge_of_ours_leaves_that_bridge_to_its_network() {
    let mut networks = three();
    networks.storage.device = "brupstream.20".to_owned();
    networks.storage.mtu = 9000;
    let mut seen = settled(&three(), machine(&["ens4", "ens5", "ens6"]));
    let vlan = LinkKind::Vlan { lower: Some("brupstream".to_owned()), id: 20 };
    seen.links.insert("brupstream.20".to_owned(), link("brupstream.20", vlan));
    assert!(
        !words(&networks, &seen).iter().any(|step| step.contains("`brupstream`")),
        "{:?}",
        words(&networks, &seen)
    );
}

#[test]
fn a_vlan_on_the_card_of_another_network_leaves_that_card_to_it() {
    let mut networks = three();
    networks.cluster.device = "ens4.10".to_owned();
    networks.upstream.mtu = 9000;
    let stands = settled(&networks, machine(&["ens4", "ens6"]));
    assert_eq!(stands.links["ens4"].master.as_deref(), Some("brupstream"));
    assert_eq!(stands.links["ens4.10"].master.as_deref(), Some("brcluster"));
}

#[test]
fn an_address_and_a_way_out_that_were_on_the_card_move_to_its_bridge() {
    let mut seen = machine(&["ens4", "ens5", "ens6"]);
    let card = seen.links.get_mut("ens4").unwrap();
    card.addresses = [net("10.0.0.1/24"), net("10.7.7.7/24")].into();
    seen.routes = vec![default_route("10.0.0.254", "ens4", 0)];
    let stands = settled(&three(), seen);
    assert_eq!(
        stands.links["ens4"].addresses,
        [net("10.7.7.7/24")].into(),
        "another's address is left alone"
    );
    assert!(stands.links["brupstream"].addresses.contains(&net("10.0.0.1/24")));
    assert_eq!(stands.routes, [default_route("10.0.0.254", "brupstream", 0)]);
}

#[test]
fn what_belongs_to_others_is_reported_and_left_alone() {
    let bare = machine(&["ens4", "ens5", "ens6"]);
    let finds = |change: &dyn Fn(&mut Seen)| {
        let mut seen = bare.clone();
        change(&mut seen);
        let plan = plan(&three(), &seen);
        let findings: Vec<NetworkFinding> = plan.findings.into_iter().collect();
        assert_eq!(findings.len(), 1, "{findings:?}");
        (findings[0].to_string(), plan.steps)
    };
    let (said, steps) = finds(&|seen| drop(seen.links.remove("ens6")));
    assert_eq!(said, "the device `ens6` of the storage network is not there");
    assert!(steps.contains(&NetworkStep::AddAddress {
        link: "brstorage".into(),
        address: net("10.0.2.1/24")
    }));

    let (said, steps) =
        finds(&|seen| seen.links.get_mut("ens6").unwrap().master = Some("br0".to_owned()));
    assert_eq!(
        said,
        "the device `ens6` of the storage network is a port of `br0`, which is not PVC's"
    );
    assert!(
        !steps
            .iter()
            .any(|step| matches!(step, NetworkStep::SetMaster { link, .. } if link == "ens6"))
    );

    let (said, _) = finds(&|seen| seen.links.get_mut("ens6").unwrap().kind = LinkKind::Bridge);
    assert!(said.contains("is a bridge, which cannot be a port"), "{said}");

    let (said, steps) = finds(&|seen| {
        seen.links
            .insert("brstorage".to_owned(), link("brstorage", LinkKind::Other("veth".to_owned())));
    });
    assert_eq!(said, "`brstorage` should be a bridge and is a veth");
    assert!(!steps.iter().any(|step| step.to_string().contains("brstorage")), "{steps:?}");

    let (said, steps) = finds(&|seen| seen.routes = vec![default_route("192.168.1.1", "eno9", 0)]);
    assert_eq!(
        said,
        "the default route is `default via 192.168.1.1 on eno9` and not by the configured gateway \
         10.0.0.254"
    );
    assert!(
        !steps
            .iter()
            .any(|step| matches!(step, NetworkStep::AddRoute(_) | NetworkStep::RemoveRoute(_)))
    );

    let (said, _) = finds(&|seen| {
        let mut other = link("eno9", LinkKind::Device);
        other.addresses = [net("10.0.1.1/24")].into();
        seen.links.insert("eno9".to_owned(), other);
    });
    assert!(said.contains("stands on `eno9`, too"), "{said}");
}

/// A machine that works by DHCP on the upstream network, and to whose upstream card something has
/// happened.
fn leased(card: &str, change: impl FnOnce(&mut Seen)) -> Seen {
    let mut seen = machine(&[card, "ens5", "ens6"]);
    seen.links.get_mut(card).unwrap().addresses = [net("10.0.0.1/24")].into();
    seen.routes = vec![default_route("10.0.0.254", card, 100)];
    change(&mut seen);
    seen
}

#[test]
fn a_bridge_that_gets_no_port_takes_neither_the_way_out_nor_the_address_from_what_works() {
    let cases = [
        leased("enp1s0", |_| ()),
        leased("br0", |seen| {
            seen.links.get_mut("br0").unwrap().kind = LinkKind::Bridge;
            let card = Link { master: Some("br0".to_owned()), ..link("ens4", LinkKind::Device) };
            seen.links.insert("ens4".to_owned(), card);
        }),
        leased("ens4", |seen| seen.links.get_mut("ens4").unwrap().kind = LinkKind::Bridge),
        // Another address of the same network: the way to the neighbours is taken, too.
        leased("enp1s0", |seen| {
            seen.links.get_mut("enp1s0").unwrap().addresses = [net("10.0.0.57/24")].into();
        }),
    ];
    for seen in cases {
        let plan = plan(&three(), &seen);
        assert!(plan.findings.iter().any(NetworkFinding::cuts_off), "{:?}", plan.findings);
        for step in &plan.steps {
            let text = step.to_string();
            assert!(!text.contains("default") && !text.contains("10.0.0."), "{text}");
        }
        // To take it away where it works is no good advice.
        let elsewhere =
            |finding: &NetworkFinding| matches!(finding, NetworkFinding::AddressElsewhere { .. });
        assert!(!plan.findings.iter().any(elsewhere), "{:?}", plan.findings);
        settled(&three(), seen);
    }
}

#[test]
fn what_is_left_on_a_card_goes_last_and_also_where_it_was_left_over_from_a_plan_before() {
    let mut seen = machine(&["ens4", "ens5", "ens6"]);
    seen.links.get_mut("ens4").unwrap().addresses = [net("10.0.0.1/24")].into();
    let tail = |route: Route| {
        let mut seen = seen.clone();
        seen.routes = vec![route];
        seen.settings.clear();
        words(&three(), &seen).into_iter().rev().take(4).rev().collect::<Vec<_>>()
    };
    let (give, take) =
        ("give `brupstream` the address 10.0.0.1/24", "take the address 10.0.0.1/24 off `ens4`");
    let (add, remove) = (
        "add the route `default via 10.0.0.254 on brupstream`",
        "remove the route `default via 10.0.0.254 on ens4`",
    );
    // Where the kernel lets two stand, the new one comes first.
    assert_eq!(tail(default_route("10.0.0.254", "ens4", 0)), [give, remove, add, take]);
    assert_eq!(tail(default_route("10.0.0.254", "ens4", 100)), [give, add, remove, take]);

    let mut stands = settled(&three(), seen);
    stands.links.get_mut("ens4").unwrap().addresses = [net("10.0.0.1/24")].into();
    stands.routes.push(default_route("10.0.0.254", "ens4", 100));
    assert_eq!(words(&three(), &stands), [remove, take]);
}

#[test]
fn a_default_route_of_a_higher_metric_is_no_rival() {
    let mut seen = machine(&["ens4", "ens5", "ens6"]);
    seen.routes = vec![default_route("192.168.1.1", "eno9", 100)];
    let stands = settled(&three(), seen);
    assert_eq!(stands.routes.len(), 2);
}

#[test]
fn without_an_address_of_its_own_a_node_gets_no_way_out_and_a_bridge_all_the_same() {
    let mut networks = three();
    networks.upstream.address = None;
    let stands = settled(&networks, machine(&["ens4", "ens5", "ens6"]));
    assert!(stands.links["brupstream"].addresses.is_empty() && stands.routes.is_empty());
}

#[test]
fn source_routes_that_pvc_1_0_3_has_switched_on_are_switched_off() {
    let mut seen = settled(&three(), machine(&["ens4", "ens5", "ens6"]));
    let keys = ["ipv4/conf/all", "ipv4/conf/brcluster", "ipv4/conf/ens4", "ipv6/conf/default"]
        .map(|scope| format!("net/{scope}/accept_source_route"));
    for key in &keys {
        seen.settings.insert(key.clone(), "1".to_owned());
    }
    let mut steps = words(&three(), &seen);
    steps.sort();
    assert_eq!(steps, keys.each_ref().map(|key| format!("set `{key}` to 0")));
    let stands = settled(&three(), seen);
    assert!(keys.iter().all(|key| stands.settings[key] == "0"));
}

#[test]
fn settings_that_the_kernel_does_not_have_are_not_wanted() {
    let mut seen = machine(&["ens4", "ens5", "ens6"]);
    seen.settings.clear();
    assert!(!words(&three(), &seen).iter().any(|step| step.starts_with("set `net/")));
    let asked = settings(&three());
    for key in [
        "net/ipv4/ip_forward",
        "net/ipv4/conf/brcluster/rp_filter",
        "net/ipv6/conf/brupstream/accept_ra",
    ] {
        assert!(asked.contains(&key.to_owned()), "{key}");
    }
}

/// Devices, shared or not, one of them a VLAN.
fn any_networks() -> impl Strategy<Value = CoreNetworks> {
    let device = || prop_oneof![Just("ens4"), Just("ens5"), Just("ens6"), Just("ens4.7")];
    let network = |address: &'static str| {
        (device(), any::<bool>()).prop_map(move |(device, has)| {
            self::network(device, 1500, if has { address } else { "" })
        })
    };
    (network("10.0.0.1/24"), network("10.0.1.1/24"), network("10.0.2.1/24"), any::<bool>())
        .prop_map(|(upstream, cluster, storage, routed)| {
            let gateway = routed.then(|| "10.0.0.254".parse().expect("an address"));
            CoreNetworks { cluster, upstream: CoreNetwork { gateway, ..upstream }, storage }
        })
}

/// A machine that somebody else has set up, sensibly or not.
fn any_machine() -> impl Strategy<Value = Seen> {
    let names =
        ["ens4", "ens5", "ens6", "ens4.7", "brcluster", "brupstream", "brstorage", "br0", "eno9"];
    let one = |name: &'static str| {
        let addresses = proptest::sample::subsequence(
            vec!["10.0.0.1/24", "10.0.1.1/24", "10.0.2.1/24", "192.168.9.9/24", "10.0.0.250/24"],
            0..3,
        );
        let master = proptest::option::of(proptest::sample::select(vec![
            "brcluster",
            "brupstream",
            "brstorage",
            "br0",
        ]));
        (0..10u8, any::<bool>(), 1400..1600u32, addresses, master).prop_map(
            move |(odds, up, mtu, addresses, master)| {
                let is_bridge = name.starts_with("br") && odds > 1;
                let kind = if is_bridge { LinkKind::Bridge } else { LinkKind::Device };
                let mut link = Link { up, mtu, ..link(name, kind) };
                link.addresses = addresses.into_iter().map(net).collect();
                link.master = master.filter(|_| !is_bridge).map(str::to_owned);
                (odds > 2).then_some(link)
            },
        )
    };
    let routes = proptest::option::of((
        proptest::sample::select(vec!["10.0.0.254", "192.168.9.1"]),
        proptest::sample::select(vec!["ens4", "brcluster", "eno9"]),
        0..2u32,
    ));
    (names.map(one), routes).prop_map(|(links, route)| {
        let mut seen = machine(&[]);
        seen.links = links.into_iter().flatten().map(|link| (link.name.clone(), link)).collect();
        let links = seen.links.clone();
        let exists =
            |master: &String| links.get(master).is_some_and(|link| link.kind == LinkKind::Bridge);
        for link in seen.links.values_mut() {
            link.master = link.master.take().filter(exists);
        }
        let route = route.map(|(via, on, metric)| default_route(via, on, metric * 100));
        seen.routes = route
            .into_iter()
            .filter(|route| route.link.as_ref().is_some_and(|link| links.contains_key(link)))
            .collect();
        seen
    })
}

fn has_port(seen: &Seen, bridge: &str) -> bool {
    seen.links.get(bridge).is_some_and(|link| link.kind == LinkKind::Bridge)
        && seen.links.values().any(|link| link.master.as_deref() == Some(bridge))
}

proptest! {
    #[test]
    fn nothing_is_taken_away_that_does_not_stand_on_a_bridge_with_a_port(
        networks in any_networks(),
        seen in any_machine(),
    ) {
        let steps = plan(&networks, &seen).steps;
        for (at, step) in steps.iter().enumerate() {
            let before = after(seen.clone(), &steps[..at]);
            match step {
                NetworkStep::AddRoute(route) => {
                    let stands = has_port(&before, route.link.as_deref().unwrap());
                    prop_assert!(stands, "{}: {:?}", step, steps);
                }
                NetworkStep::RemoveRoute(route) => {
                    // One of the same metric can only come right after, and those that go before it
                    // go with it.
                    let goes = |step: &&NetworkStep| matches!(step, NetworkStep::RemoveRoute(_));
                    let next = steps[at..].iter().find(|step| !goes(step));
                    let comes =
                        matches!(next, Some(NetworkStep::AddRoute(new)) if new.to == route.to);
                    let is_there = before.routes.iter().any(|other| {
                        other.to == route.to && has_port(&before, other.link.as_deref().unwrap())
                    });
                    prop_assert!(comes || is_there, "{}: {:?}", step, steps);
                }
                NetworkStep::AddAddress { link, address } => {
                    let mut others = seen.links.values().filter(|other| other.name != *link);
                    let stands = others.any(|other| other.addresses.contains(address));
                    prop_assert!(!stands || has_port(&before, link), "{}: {:?}", step, steps);
                }
                NetworkStep::RemoveAddress { link, address } => {
                    let mut others = before.links.values().filter(|other| other.name != *link);
                    let stands = others.any(|other| {
                        other.addresses.contains(address) && has_port(&before, &other.name)
                    });
                    prop_assert!(stands, "{}: {:?}", step, steps);
                }
                _ => {}
            }
        }
    }

    #[test]
    fn every_machine_settles_and_what_is_not_ours_stays(
        networks in any_networks(),
        seen in any_machine(),
    ) {
        let stands = settled(&networks, seen.clone());
        for name in ["br0", "eno9"] {
            prop_assert_eq!(stands.links.get(name), seen.links.get(name));
        }
        for (name, link) in &seen.links {
            for address in &link.addresses {
                let address_in = |net: &CoreNet| networks.get(*net).address.map(IpNet::V4);
                let own = CoreNet::ALL.iter().any(|net| address_in(net) == Some(*address));
                let kept = stands.links[name].addresses.contains(address);
                prop_assert!(kept || own, "{} was taken off {}", address, name);
            }
        }
        for net in CoreNet::ALL {
            let bridge = stands.links.get(networks.bridge_of(net));
            if let (Some(address), Some(bridge)) = (networks.get(net).address, bridge)
                && let Some(device) = stands.links.get(&networks.get(net).device)
                && device.master.as_ref() == Some(&bridge.name)
            {
                prop_assert!(bridge.addresses.contains(&IpNet::V4(address)) && bridge.up);
            }
        }
    }
}
