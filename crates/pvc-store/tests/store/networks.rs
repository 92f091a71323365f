//! Networks, leases and rules are written as legacy peers read them, each change in one request.

use pvc_model::network::{
    AclRecord, Direction, GivenLease, GivenLease6, Ip6Client, LeaseRecord, NetworkOptions,
    NetworkRecord,
};

use super::*;

fn web() -> NetworkRecord {
    let none = || "None".to_owned();
    NetworkRecord {
        vni: "1001".into(),
        description: "web".into(),
        nettype: "managed".into(),
        mtu: String::new(),
        domain: "web.local".into(),
        name_servers: vec!["ns1.example".into(), "ns2.example".into()],
        ip4_network: "10.20.1.0/24".into(),
        ip4_gateway: "10.20.1.1".into(),
        dhcp4_flag: "True".into(),
        dhcp4_start: "10.20.1.100".into(),
        dhcp4_end: "10.20.1.199".into(),
        ip6_network: none(),
        ip6_gateway: none(),
        dhcp6_flag: "False".into(),
        ..NetworkRecord::default()
    }
}

async fn put(store: &Store, record: &NetworkRecord, options: NetworkOptions) {
    let vni = record.vni.clone();
    change(store, |changes| {
        changes
            .push(Change::PutNetwork(Box::new(record.clone())))
            .push(Change::PutNetworkOptions { vni: vni.clone(), options });
    })
    .await;
}

async fn with_web() -> World {
    let world = cluster().await;
    put(&world.store, &web(), NetworkOptions::default()).await;
    world
}

fn acl(direction: Direction, order: u32, description: &str) -> AclRecord {
    let rule = "tcp dport 22 accept".to_owned();
    AclRecord { direction, order, description: description.into(), rule }
}

const MAC: &str = "52:54:00:aa:bb:01";

fn given(address: &str) -> GivenLease {
    GivenLease {
        mac: MAC.into(),
        address: address.parse().unwrap(),
        hostname: Some("web1".into()),
        expiry: Some(1_731_672_000),
        client_id: Some("01:52:54:00:aa:bb:01".into()),
    }
}

async fn give(store: &Store, lease: GivenLease) {
    change(store, |changes| {
        changes.push(Change::PutLease { vni: "1001".into(), lease: lease.clone() });
    })
    .await;
}

/// Versions of all keys of the network.
async fn versions(world: &World) -> BTreeMap<String, i32> {
    let tree = world.tree.connect();
    let (mut versions, mut left) = (BTreeMap::new(), vec!["/networks/1001".to_owned()]);
    while let Some(path) = left.pop() {
        let children = tree.children(&path).await.unwrap().unwrap_or_default();
        left.extend(children.into_iter().map(|child| format!("{path}/{child}")));
        let entry = tree.get(&path).await.unwrap().expect("it was listed");
        versions.insert(path, entry.stat.version);
    }
    versions
}

#[tokio::test]
async fn a_network_has_all_keys_that_legacy_peers_look_for() {
    let world = with_web().await;
    for (key, value) in [
        ("", "web"),
        ("/nettype", "managed"),
        ("/mtu", ""),
        ("/domain", "web.local"),
        ("/name_servers", "ns1.example,ns2.example"),
        ("/ip4_network", "10.20.1.0/24"),
        ("/ip4_gateway", "10.20.1.1"),
        ("/dhcp4_flag", "True"),
        ("/dhcp4_start", "10.20.1.100"),
        ("/dhcp4_end", "10.20.1.199"),
        ("/ip6_network", "None"),
        ("/ip6_gateway", "None"),
        ("/dhcp6_flag", "False"),
        ("/dhcp4_reservations", ""),
        ("/dhcp4_leases", ""),
        ("/firewall_rules", ""),
        ("/firewall_rules/in", ""),
        ("/firewall_rules/out", ""),
    ] {
        let found = raw(&world, &format!("/networks/1001{key}")).await;
        assert_eq!(found.as_deref(), Some(value), "{key}");
    }
    let view = world.other.fresh().await.unwrap();
    assert_eq!(**view.network("web").unwrap(), web(), "it reads back as it was");
    assert!(view.network_options.is_empty());
    assert_eq!(raw(&world, "/pvcrs/networks/1001").await, None, "none is written of no options");
}

#[tokio::test]
async fn of_a_network_that_is_there_only_what_changes_is_written() {
    let world = with_web().await;
    let before = versions(&world).await;
    let changed = NetworkRecord { mtu: "1400".into(), domain: "x.local".into(), ..web() };
    put(&world.store, &changed, NetworkOptions::default()).await;
    let after = versions(&world).await;
    let written: Vec<&String> =
        after.iter().filter(|(path, version)| before[*path] != **version).map(|(p, _)| p).collect();
    assert_eq!(written, ["/networks/1001/domain", "/networks/1001/mtu"]);
    assert_eq!(**world.store.view().network("1001").unwrap(), changed);
}

#[tokio::test]
async fn a_network_that_others_have_changed_is_decided_on_again() {
    let world = with_web().await;
    world.other.fresh().await.unwrap();
    let (tries, tree) = (AtomicU32::new(0), world.tree.connect());
    let decide = |view: &Cluster| {
        let seen = view.network("web").unwrap().as_ref().clone();
        if tries.fetch_add(1, Ordering::SeqCst) == 0 {
            let path = "/networks/1001/ip4_gateway".to_owned();
            let set = Op::Set { path, data: "10.20.1.2".into(), version: None };
            futures::executor::block_on(tree.multi(vec![set])).expect("writable");
        }
        let mut changes = Changes::new();
        let record = NetworkRecord { mtu: "1400".into(), ..seen };
        changes.push(Change::PutNetwork(Box::new(record)));
        Ok::<_, std::convert::Infallible>((changes, ()))
    };
    world.other.change(decide).await.expect("the second try is on fresh data");
    assert_eq!(tries.into_inner(), 2, "what stays was part of the decision");
    let view = world.store.fresh().await.unwrap();
    let record = view.network("web").unwrap();
    assert_eq!((record.ip4_gateway.as_str(), record.mtu.as_str()), ("10.20.1.2", "1400"));
}

#[tokio::test]
async fn of_two_networks_with_one_name_at_once_only_one_is_made() {
    let world = cluster().await;
    let make = |store: Store, vni: &'static str| async move {
        let decide = |view: &Cluster| {
            if view.network("web").is_some() {
                return Err("taken");
            }
            let mut changes = Changes::new();
            let record = NetworkRecord { vni: vni.into(), ..web() };
            changes.push(Change::PutNetwork(Box::new(record)));
            Ok((changes, ()))
        };
        store.change(decide).await
    };
    let both = tokio::join!(make(world.store.clone(), "1001"), make(world.other.clone(), "1002"));
    let made = [both.0, both.1].into_iter().filter(Result::is_ok).count();
    assert_eq!(made, 1);
    assert_eq!(world.store.fresh().await.unwrap().networks.len(), 1);
}

#[tokio::test]
async fn options_are_beside_the_network_and_go_with_it() {
    let world = with_web().await;
    let both = NetworkOptions { masquerade: true, spoof_guard: true };
    put(&world.store, &web(), both).await;
    let text = raw(&world, "/pvcrs/networks/1001").await.unwrap();
    assert_eq!(text, r#"{"masquerade":true,"spoof_guard":true}"#);
    let view = world.other.fresh().await.unwrap();
    assert_eq!(*view.network_options["1001"], both);
    put(&world.store, &web(), NetworkOptions::default()).await;
    assert_eq!(raw(&world, "/pvcrs/networks/1001").await, None);
    put(&world.store, &web(), both).await;
    change(&world.store, |changes| _ = changes.push(Change::RemoveNetwork("1001".into()))).await;
    assert_eq!(raw(&world, "/pvcrs/networks/1001").await, None);
}

/// Removes network 1001 as PVC 1.0.3 does, which knows nothing of options.
async fn remove_as_legacy_peers_do(world: &World) {
    let tree = world.tree.connect();
    let mut all: Vec<String> = versions(world).await.into_keys().collect();
    all.sort_by_key(|path| std::cmp::Reverse(path.len()));
    let delete = |path| Op::Delete { path, version: None };
    tree.multi(all.into_iter().map(delete).collect()).await.unwrap();
}

#[tokio::test]
async fn options_that_a_legacy_peer_leaves_behind_are_not_those_of_the_next_network() {
    let world = with_web().await;
    let both = NetworkOptions { masquerade: true, spoof_guard: true };
    put(&world.store, &web(), both).await;
    world.other.fresh().await.unwrap();
    remove_as_legacy_peers_do(&world).await;
    let view = world.store.fresh().await.unwrap();
    assert!(view.networks.is_empty() && view.network_options.is_empty());
    let tree = world.tree.connect();
    for (path, data) in [("/networks/1001", "other"), ("/networks/1001/nettype", "managed")] {
        tree.create(path, data.into(), CreateMode::Persistent).await.unwrap();
    }
    // Whether it was seen that the network was gone, or not.
    for store in [&world.store, &world.other] {
        let view = store.fresh().await.unwrap();
        assert_eq!(view.network("1001").unwrap().description, "other");
        assert!(view.network_options.is_empty());
    }
    let guard = NetworkOptions { masquerade: false, spoof_guard: true };
    change(&world.store, |changes| {
        changes.push(Change::PutNetworkOptions { vni: "1001".into(), options: guard });
    })
    .await;
    assert_eq!(*world.other.fresh().await.unwrap().network_options["1001"], guard);
    change(&world.store, |changes| {
        let options = NetworkOptions::default();
        changes.push(Change::PutNetworkOptions { vni: "1001".into(), options });
    })
    .await;
    assert_eq!(raw(&world, "/pvcrs/networks/1001").await, None, "what was left goes, too");
}

#[tokio::test]
async fn a_network_goes_with_everything_below_it() {
    let world = with_web().await;
    give(&world.store, given("10.20.1.101")).await;
    change(&world.store, |changes| {
        changes.push(Change::PutAcl { vni: "1001".into(), acl: acl(Direction::In, 0, "ssh") });
    })
    .await;
    // A lease that was given while it was decided.
    world.other.fresh().await.unwrap();
    let other = GivenLease { mac: "52:54:00:aa:bb:02".into(), ..given("10.20.1.102") };
    give(&world.store, other).await;
    change(&world.other, |changes| _ = changes.push(Change::RemoveNetwork("1001".into()))).await;
    assert_eq!(raw(&world, "/networks/1001").await, None);
    assert!(world.store.fresh().await.unwrap().networks.is_empty());
}

#[tokio::test]
async fn a_reservation_and_rules_are_written_as_legacy_peers_read_them() {
    let world = with_web().await;
    let reservation = LeaseRecord {
        mac: MAC.into(),
        address: "10.20.1.10".into(),
        hostname: "None".into(),
        ..LeaseRecord::default()
    };
    let vni = || "1001".to_owned();
    change(&world.store, |changes| {
        changes
            .expect(Expect::Network(vni()))
            .push(Change::PutReservation { vni: vni(), reservation: reservation.clone() })
            .push(Change::PutAcl { vni: vni(), acl: acl(Direction::In, 0, "allow ssh") })
            .push(Change::PutAcl { vni: vni(), acl: acl(Direction::Out, 0, "all") });
    })
    .await;
    for (key, value) in [
        ("dhcp4_reservations/52:54:00:aa:bb:01", "static"),
        ("dhcp4_reservations/52:54:00:aa:bb:01/ipaddr", "10.20.1.10"),
        ("dhcp4_reservations/52:54:00:aa:bb:01/hostname", "None"),
        ("firewall_rules/in/allow ssh", ""),
        ("firewall_rules/in/allow ssh/order", "0"),
        ("firewall_rules/in/allow ssh/rule", "tcp dport 22 accept"),
        ("firewall_rules/out/all/order", "0"),
    ] {
        let found = raw(&world, &format!("/networks/1001/{key}")).await;
        assert_eq!(found.as_deref(), Some(value), "{key}");
    }
    let before = versions(&world).await;
    change(&world.store, |changes| {
        changes.push(Change::OrderAcl { vni: vni(), acl: acl(Direction::In, 1, "allow ssh") });
        changes.push(Change::PutAcl { vni: vni(), acl: acl(Direction::In, 0, "first") });
    })
    .await;
    let after = versions(&world).await;
    let rule = "/networks/1001/firewall_rules/in/allow ssh/rule";
    assert_eq!(after[rule], before[rule], "of what moves only the order is written");
    let view = world.other.fresh().await.unwrap();
    let record = view.network("1001").unwrap();
    let names: Vec<&str> = record.acls.iter().map(|acl| acl.description.as_str()).collect();
    assert_eq!(names, ["first", "allow ssh", "all"]);
    assert_eq!(record.leases, [reservation]);
    change(&world.store, |changes| {
        changes.push(Change::RemoveReservation { vni: vni(), mac: MAC.into() });
        changes.push(Change::RemoveAcl { vni: vni(), acl: acl(Direction::Out, 0, "all") });
    })
    .await;
    let view = world.store.view();
    let record = view.network("1001").unwrap();
    assert_eq!((record.leases.len(), record.acls.len()), (0, 2));
}

#[tokio::test]
async fn what_a_peer_has_written_by_half_takes_nothing_with_it_and_is_no_rule_that_passes() {
    let world = with_web().await;
    let tree = world.tree.connect();
    for (key, value) in [
        ("firewall_rules/in/whole", ""),
        ("firewall_rules/in/whole/order", "7"),
        ("firewall_rules/in/whole/rule", "drop"),
        ("firewall_rules/in/no-text", ""),
        ("firewall_rules/in/no-text/order", "3"),
        ("firewall_rules/in/no-order", ""),
        ("firewall_rules/in/no-order/rule", "accept"),
        ("firewall_rules/in/bad-order", ""),
        ("firewall_rules/in/bad-order/order", "abc"),
        ("firewall_rules/in/bad-order/rule", "accept"),
        ("firewall_rules/out/nothing", ""),
        ("dhcp4_reservations/52:54:00:aa:bb:01", "static"),
        ("dhcp4_reservations/52:54:00:aa:bb:02", "static"),
        ("dhcp4_reservations/52:54:00:aa:bb:02/ipaddr", "10.20.1.10"),
        ("dhcp4_leases/52:54:00:aa:bb:03", ""),
        ("dhcp4_leases/52:54:00:aa:bb:03/ipaddr", "10.20.1.101"),
    ] {
        let path = format!("/networks/1001/{key}");
        tree.create(&path, value.into(), CreateMode::Persistent).await.unwrap();
    }
    let view = world.store.fresh().await.unwrap();
    let record = view.network("web").unwrap();
    assert_eq!((&*record.ip4_network, &*record.nettype), ("10.20.1.0/24", "managed"));
    let rules = |direction: Direction| -> Vec<(&str, u32, &str)> {
        let acls = record.acls.iter().filter(|acl| acl.direction == direction);
        acls.map(|acl| (&*acl.description, acl.order, &*acl.rule)).collect()
    };
    let expected =
        [("bad-order", 0, ""), ("no-order", 0, ""), ("no-text", 3, ""), ("whole", 7, "drop")];
    assert_eq!(rules(Direction::In), expected);
    assert_eq!(rules(Direction::Out), [("nothing", 0, "")]);
    let half: Vec<bool> = record.acls.iter().map(AclRecord::is_half).collect();
    assert_eq!(half, [true, true, true, false, true]);
    let leases: Vec<(&str, &str, Option<&str>)> = record
        .leases
        .iter()
        .map(|lease| (&*lease.mac, &*lease.address, lease.expiry.as_deref()))
        .collect();
    assert_eq!(
        leases,
        [
            ("52:54:00:aa:bb:01", "", None),
            ("52:54:00:aa:bb:02", "10.20.1.10", None),
            ("52:54:00:aa:bb:03", "10.20.1.101", Some("")),
        ]
    );
}

#[tokio::test]
async fn of_two_rules_at_once_the_later_one_is_decided_again() {
    let world = with_web().await;
    world.other.fresh().await.unwrap();
    let add = |store: Store, name: &'static str| async move {
        let decide = |view: &Cluster| {
            let order = u32::try_from(view.network("web").unwrap().acls.len()).unwrap();
            let mut changes = Changes::new();
            changes
                .push(Change::PutAcl { vni: "1001".into(), acl: acl(Direction::In, order, name) });
            Ok::<_, std::convert::Infallible>((changes, ()))
        };
        store.change(decide).await.unwrap();
    };
    tokio::join!(add(world.store.clone(), "a"), add(world.other.clone(), "b"));
    let view = world.store.fresh().await.unwrap();
    let orders: Vec<u32> = view.network("web").unwrap().acls.iter().map(|acl| acl.order).collect();
    assert_eq!(orders, [0, 1]);
}

#[tokio::test]
async fn h7_a_lease_is_written_whole_and_replaces_the_one_before() {
    let world = with_web().await;
    give(&world.store, given("10.20.1.101")).await;
    let key = |name: &str| format!("/networks/1001/dhcp4_leases/{MAC}{name}");
    for (name, value) in [
        ("", ""),
        ("/ipaddr", "10.20.1.101"),
        ("/hostname", "web1"),
        ("/expiry", "1731672000"),
        ("/clientid", "01:52:54:00:aa:bb:01"),
    ] {
        assert_eq!(raw(&world, &key(name)).await.as_deref(), Some(value), "{name}");
    }
    let unnamed =
        GivenLease { hostname: None, expiry: None, client_id: None, ..given("10.20.1.102") };
    world.other.fresh().await.unwrap();
    give(&world.other, unnamed).await;
    for (name, value) in
        [("/ipaddr", "10.20.1.102"), ("/hostname", ""), ("/expiry", "0"), ("/clientid", "*")]
    {
        assert_eq!(raw(&world, &key(name)).await.as_deref(), Some(value), "{name}");
    }
    let view = world.store.fresh().await.unwrap();
    let lease = &view.network("web").unwrap().leases[0];
    assert_eq!((lease.expiry.as_deref(), lease.client_id.as_str()), (Some("0"), "*"));
}

#[tokio::test]
async fn a_lease_of_ipv6_is_recorded_by_its_address_and_not_where_legacy_peers_look() {
    let world = with_web().await;
    let vni = || "1001".to_owned();
    let client = Ip6Client { duid: "00:03:00:01:52:54:00:aa:bb:01".into(), iaid: "7".into() };
    let lease = |address: &str, expiry| GivenLease6 {
        address: address.parse().unwrap(),
        client: client.clone(),
        mac: Some(MAC.into()),
        hostname: Some("web1".into()),
        expiry,
    };
    let put = |lease| Change::PutLease6 { vni: vni(), lease };
    change(&world.store, |changes| {
        changes.push(put(lease("2001:db8:1::9", 5)));
    })
    .await;
    change(&world.store, |changes| {
        changes.push(put(GivenLease6 { mac: None, ..lease("2001:db8:1::a", 7) }));
        changes.push(put(lease("2001:db8:1::9", 6)));
    })
    .await;
    let recorded = |mac: &str, address: &str, expiry: &str| LeaseRecord {
        mac: mac.into(),
        address: address.into(),
        hostname: "web1".into(),
        expiry: Some(expiry.into()),
        ip6: Some(client.clone()),
        ..LeaseRecord::default()
    };
    let both = [recorded(MAC, "2001:db8:1::9", "6"), recorded("", "2001:db8:1::a", "7")];
    let view = world.other.fresh().await.unwrap();
    assert_eq!(view.network("web").unwrap().leases, both);
    let listed = world.tree.connect().children("/networks/1001/dhcp4_leases").await.unwrap();
    assert_eq!(listed.unwrap_or_default(), [""; 0]);
    change(&world.store, |changes| {
        let address = "2001:db8:1::9".parse().unwrap();
        changes.push(Change::RemoveLease6 { vni: vni(), address });
    })
    .await;
    assert_eq!(world.store.view().network("web").unwrap().leases, both[1..]);

    remove_as_legacy_peers_do(&world).await;
    let tree = world.tree.connect();
    for (path, data) in [("/networks/1001", "other"), ("/networks/1001/nettype", "managed")] {
        tree.create(path, data.into(), CreateMode::Persistent).await.unwrap();
    }
    let view = world.store.fresh().await.unwrap();
    assert_eq!(view.network("other").unwrap().leases, [], "it is of a former network");
    change(&world.store, |changes| {
        changes.push(put(lease("2001:db8:1::9", 8)));
    })
    .await;
    change(&world.store, |changes| {
        changes.push(Change::RemoveNetwork(vni()));
    })
    .await;
    let left = raw(&world, "/pvcrs/dhcp6_leases/1001").await;
    assert_eq!(left, None, "leases go with their network");
}

#[tokio::test]
async fn a_lease_ends_and_the_reservation_of_that_card_stays() {
    let world = with_web().await;
    give(&world.store, given("10.20.1.101")).await;
    let reservation = LeaseRecord {
        mac: MAC.into(),
        address: "10.20.1.101".into(),
        hostname: "None".into(),
        ..LeaseRecord::default()
    };
    let vni = || "1001".to_owned();
    change(&world.store, |changes| {
        let reservation = reservation.clone();
        changes.push(Change::PutReservation { vni: vni(), reservation });
        changes.push(Change::RemoveLease { vni: vni(), mac: MAC.into() });
    })
    .await;
    assert_eq!(world.store.view().network("web").unwrap().leases, [reservation]);
}

#[tokio::test]
async fn a_change_of_options_is_announced_as_one_of_the_network() {
    let world = with_web().await;
    let mut events = world.store.events(None);
    let guard = NetworkOptions { masquerade: false, spoof_guard: true };
    put(&world.other, &web(), guard).await;
    let event = events.next().await.expect("the store is open");
    assert_eq!((event.what, event.gone), (EventKind::Network("1001".into()), false));
}
