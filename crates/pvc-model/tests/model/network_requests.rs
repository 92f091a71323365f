//! Asks about networks: what is recorded of them, and what is refused with which words.

use std::sync::Arc;

use pvc_model::cluster::{Cluster, ClusterRecord};
use pvc_model::domain::{Nic, NicKind};
use pvc_model::guest_network::acl::{BadRule, NewAcl, add_acl, check_rule, remove_acl};
use pvc_model::guest_network::lease::{NewReservation, card_mac, release, reserve};
use pvc_model::guest_network::refusal::NetworkRefusal;
use pvc_model::guest_network::request::{
    self, Neighbour, NetworkFields, NetworkToRecord, NewNetwork, NewVni, neighbours, users,
};
use pvc_model::guest_network::unconfirmed::{Undo, undo_of_removal};
use pvc_model::guest_network::{GuestNetwork, Vni};
use pvc_model::link::{Link, LinkKind, Links, mac_text};
use pvc_model::network::{
    AclRecord, Direction, Ip6Client, LeaseRecord, NetworkOptions, NetworkRecord,
};
use pvc_model::refusal::Kind;
use pvc_model::shared_map::SharedMap;
use pvc_model::vm::VmState;

use crate::records::{node, vm};

fn add(cluster: &Cluster, new: &NewNetwork) -> Result<NetworkToRecord, NetworkRefusal> {
    request::add(cluster, &[], new)
}

fn modify(
    cluster: &Cluster,
    network: &str,
    fields: &NetworkFields,
) -> Result<NetworkToRecord, NetworkRefusal> {
    request::modify(cluster, &[], network, fields)
}

fn vni(number: u32) -> NewVni {
    NewVni::Given(Vni::new(number).unwrap())
}

fn given(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn fields() -> NetworkFields {
    NetworkFields::default()
}

/// A managed network with all that one can have.
fn web() -> NewNetwork {
    let fields = NetworkFields {
        mtu: given("1450"),
        domain: given("Web.Example."),
        name_servers: Some(vec!["ns1.example.".to_owned(), "10.0.0.1".to_owned()]),
        ip4_network: given("10.20.1.0/24"),
        ip4_gateway: given("10.20.1.1"),
        dhcp4: Some(true),
        dhcp4_start: given("10.20.1.100"),
        dhcp4_end: given("10.20.1.199"),
        ip6_network: given("2001:db8:1::/64"),
        masquerade: Some(true),
        ..fields()
    };
    NewNetwork { vni: vni(1001), description: "web".to_owned(), managed: true, fields }
}

fn bridged(number: u32, description: &str) -> NewNetwork {
    NewNetwork {
        vni: vni(number),
        description: description.to_owned(),
        managed: false,
        fields: fields(),
    }
}

fn put(cluster: &mut Cluster, record: NetworkRecord, options: NetworkOptions) {
    cluster.network_options.insert(record.vni.clone(), Arc::new(options));
    cluster.networks.insert(record.vni.clone(), Arc::new(record));
}

/// A cluster with these networks.
fn with(networks: &[NewNetwork]) -> Cluster {
    let mut cluster = Cluster::default();
    for new in networks {
        let made = add(&cluster, new).unwrap();
        put(&mut cluster, made.record, made.options);
    }
    cluster
}

fn changed(cluster: &Cluster, fields: NetworkFields) -> Result<NetworkRecord, NetworkRefusal> {
    modify(cluster, "web", &fields).map(|changed| changed.record)
}

fn refused(cluster: &Cluster, new: &NewNetwork) -> String {
    pvc_model::with_causes(&add(cluster, new).unwrap_err())
}

#[test]
fn a_network_is_recorded_in_the_words_of_legacy_peers() {
    let made = add(&Cluster::default(), &web()).unwrap();
    let record = &made.record;
    assert_eq!((record.vni.as_str(), record.nettype.as_str()), ("1001", "managed"));
    assert_eq!((record.mtu.as_str(), record.domain.as_str()), ("1450", "web.example"));
    assert_eq!(record.name_servers, ["ns1.example", "10.0.0.1"]);
    assert_eq!(record.dhcp4_flag, "True");
    assert_eq!(record.ip6_gateway, "2001:db8:1::1", "the first if none is given");
    assert_eq!(record.dhcp6_flag, "True");
    assert_eq!(made.options, NetworkOptions { masquerade: true, spoof_guard: false });
    assert_eq!(GuestNetwork::read(record).unwrap().1, [], "and is understood whole");
    let bare = add(&Cluster::default(), &bridged(100, "office")).unwrap().record;
    let unset = [
        &bare.domain,
        &bare.ip4_network,
        &bare.ip4_gateway,
        &bare.dhcp4_start,
        &bare.dhcp4_end,
        &bare.ip6_network,
        &bare.ip6_gateway,
    ];
    assert_eq!(unset, ["None"; 7]);
    assert_eq!((bare.dhcp4_flag.as_str(), bare.dhcp6_flag.as_str()), ("False", "False"));
    assert_eq!(bare.mtu, "", "with the word, legacy peers give the link no MTU (lesson H15)");
}

#[test]
fn h15_an_mtu_that_is_none_is_the_largest() {
    for none in ["", "None", " "] {
        let mut new = web();
        new.fields.mtu = given(none);
        assert_eq!(add(&Cluster::default(), &new).unwrap().record.mtu, "", "{none:?}");
    }
}

#[test]
fn q46_a_number_is_one_that_a_network_can_have() {
    for bad in ["0", "16777215", "abc", "-1", "1.5", "", "007", " 5"] {
        assert!(NewVni::parse(bad).is_err(), "{bad:?}");
    }
    assert_eq!(NewVni::parse("auto"), Ok(NewVni::Free));
    let none = Cluster::default();
    assert!(add(&none, &bridged(4094, "a")).is_ok());
    let message = refused(&none, &bridged(4095, "a"));
    assert_eq!(
        message,
        "`vni` is `4095`, and should be a VLAN's number, 1 to 4094, of a bridged \
                         network"
    );
    let cluster = with(&[bridged(100, "office")]);
    assert_eq!(refused(&cluster, &bridged(100, "b")), "there is network 100 `office` already");
    assert_eq!(refused(&cluster, &bridged(101, "office")), "there is network 100 `office` already");
}

#[test]
fn the_next_free_number_is_of_no_network_and_no_vm() {
    let free = |cluster: &Cluster, managed: bool| {
        let new = NewNetwork { vni: NewVni::Free, managed, ..bridged(1, "new") };
        add(cluster, &new).unwrap().record.vni
    };
    let empty = Cluster::default();
    assert_eq!((free(&empty, true), free(&empty, false)), ("1000".into(), "2".into()));
    let named = |number, description: &str| bridged(number, description);
    let mut cluster = with(&[named(2, "a"), named(1000, "b"), named(4, "4"), web()]);
    assert_eq!((free(&cluster, true), free(&cluster, false)), ("1002".into(), "3".into()));
    // A VM that is still plugged into a network that is gone must not find itself in another.
    plug_in(&mut cluster, 1, "vmbr1002");
    assert_eq!(free(&cluster, true), "1003");
}

/// Adds a VM that is plugged into a bridge.
fn plug_in(cluster: &mut Cluster, number: u128, bridge: &str) {
    let mut record = vm(number, VmState::Stop, Some("hv1"));
    let mut domain = record.domain.as_deref().unwrap().clone();
    let kind = NicKind::Bridge(bridge.to_owned());
    domain.nics.push(Nic {
        kind,
        mac: String::new(),
        model: String::new(),
        target: None,
        is_exclusive: false,
        has_vlan: false,
    });
    record.domain = Ok(Arc::new(domain));
    cluster.vms.insert(record.uuid, Arc::new(record));
}

#[test]
fn the_vms_of_a_network_are_those_that_are_plugged_into_its_bridge() {
    let mut cluster = with(&[web()]);
    plug_in(&mut cluster, 1, "vmbr1001");
    plug_in(&mut cluster, 2, "vmbr10010");
    plug_in(&mut cluster, 3, "br1001");
    let mut broken = vm(4, VmState::Stop, None);
    broken.xml = "<domain><source bridge='vmbr1001'/>".into();
    broken.domain = Err("no XML".to_owned());
    cluster.vms.insert(broken.uuid, Arc::new(broken));
    let names: Vec<&str> = users(&cluster, "1001").map(|vm| vm.name.as_str()).collect();
    assert_eq!(names, ["vm1", "vm3", "vm4"]);
}

#[test]
fn a_description_is_not_taken_for_another_network() {
    let cluster = with(&[web()]);
    let long = "x".repeat(129);
    for bad in
        ["", "1001", "7", "upstream", "cluster", "büro", "a\nb", "a/b", " a", "a ", "..", &long]
    {
        let message = refused(&cluster, &bridged(100, bad));
        assert!(
            message.starts_with("a description cannot ") || message.contains("already"),
            "{bad:?}: {message}"
        );
    }
    for good in ["100", "a b", "Büro".replace('ü', "ue").as_str(), "10.0.0.0"] {
        assert!(add(&cluster, &bridged(100, good)).is_ok(), "{good}");
    }
}

#[test]
fn the_domain_that_nobody_gives_is_one_that_can_be() {
    let domain = |description: &str| {
        let new = NewNetwork { description: description.to_owned(), fields: fields(), ..web() };
        add(&Cluster::default(), &new).unwrap().record.domain
    };
    assert_eq!(domain("web"), "web.local");
    assert_eq!(domain("Web net (new)"), "web-net--new.local");
    assert_eq!(domain("a.b"), "a.b.local");
    assert_eq!(domain("!"), "net1001.local");
    assert_eq!(domain(&"x".repeat(100)), format!("{}.local", "x".repeat(63)));
}

#[test]
fn a_domain_is_that_of_one_network() {
    let named = |number, description: &str| NewNetwork {
        vni: vni(number),
        description: description.to_owned(),
        managed: true,
        fields: fields(),
    };
    let cluster = with(&[web(), named(1002, "a b"), bridged(100, "office")]);
    assert_eq!(
        refused(&cluster, &named(1003, "a-b")),
        "network 1002 `a b` has the domain `a-b.local` already"
    );
    let hint = add(&cluster, &named(1003, "a-b")).unwrap_err().hint().unwrap();
    assert!(hint.contains("--domain"), "{hint}");
    let mut other = named(1003, "a-b");
    other.fields.domain = given("c.local");
    assert!(add(&cluster, &other).is_ok());
    assert!(add(&cluster, &named(1003, "office")).is_err(), "the description is taken");
    other.fields.domain = given("A-B.local.");
    assert!(matches!(add(&cluster, &other), Err(NetworkRefusal::DomainTaken { .. })));
    let same = |domain| changed(&cluster, NetworkFields { domain: given(domain), ..fields() });
    assert!(matches!(same("a-b.local"), Err(NetworkRefusal::DomainTaken { .. })));
    assert!(same("web.example").is_ok(), "its own");
}

#[test]
fn a_network_is_one_and_nobody_elses() {
    let mut cluster = with(&[web()]);
    cluster.config = ClusterRecord { upstream_ip: "10.0.0.250/24".into(), ..cluster.config };
    let mut hv1 = node("hv1");
    let note = pvc_model::node::DaemonNote {
        storage_address: given("10.0.2.1"),
        ..pvc_model::node::DaemonNote::default()
    };
    hv1.daemon = Some(note);
    cluster.nodes = SharedMap::from_iter([(hv1.name.clone(), Arc::new(hv1))]);
    for (net, message) in [
        ("10.20.2.5/24", "`ip4_network` is `10.20.2.5/24`, an address in the network 10.20.2.0/24"),
        ("10.20.0.0/16", "`ip4_network` 10.20.0.0/16 overlaps 10.20.1.0/24 of network 1001 `web`"),
        ("10.20.1.8/29", "`ip4_network` 10.20.1.8/29 overlaps 10.20.1.0/24 of network 1001 `web`"),
        ("10.0.0.0/25", "`ip4_network` 10.0.0.0/25 overlaps 10.0.0.0/24, the upstream network"),
        (
            "10.0.2.0/24",
            "`ip4_network` 10.0.2.0/24 overlaps the storage network, where node `hv1` has 10.0.2.1",
        ),
        (
            "169.254.0.0/24",
            "`ip4_network` 169.254.0.0/24 has link-local addresses, and the metadata service's in \
             it",
        ),
        ("0.0.0.0/0", "a network with its prefix length"),
        ("10.1.1.1/32", "a network with its prefix length"),
        ("10.1.1.1", "a network with its prefix length"),
        ("fd00::/64", "a network with its prefix length"),
    ] {
        let mut new = NewNetwork { vni: vni(1002), description: "b".into(), ..web() };
        new.fields = NetworkFields { ip4_network: given(net), ..fields() };
        let said = refused(&cluster, &new);
        assert!(said.contains(message), "{net}: {said}");
    }
    let mut new = NewNetwork { vni: vni(1002), description: "b".into(), ..web() };
    new.fields = NetworkFields { ip6_network: given("2001:db8::/32"), ..fields() };
    assert!(refused(&cluster, &new).contains("overlaps 2001:db8:1::/64 of network 1001"));
    let hint = add(&cluster, &new).unwrap_err().hint().unwrap();
    assert!(hint.contains("pvc network list"), "{hint}");
}

fn link(name: &str, addresses: &[&str]) -> (String, Link) {
    let link = Link {
        name: name.to_owned(),
        kind: LinkKind::Device,
        mtu: 1500,
        up: true,
        carrier: true,
        master: None,
        mac: None,
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        alias: None,
        lies_on: None,
    };
    (name.to_owned(), link)
}

#[test]
fn no_network_is_one_that_machines_are_in() {
    let cluster = with(&[web(), bridged(100, "office")]);
    let core = Neighbour {
        network: "10.0.1.0/24".parse().unwrap(),
        name: "the cluster network".to_owned(),
    };
    let links = Links::from([
        link("lo", &["127.0.0.1/8", "::1/128"]),
        link("eno1", &["192.168.1.7/24", "fd00:5::7/64", "fe80::1/64"]),
        link("vmbr1001", &["10.20.1.1/24"]),
        link("vmbr100", &["10.40.0.1/24"]),
        link("vmbr0", &["10.50.0.1/24"]),
        link("wg0", &["10.60.0.1/32"]),
    ]);
    let mut all = neighbours(&cluster, &links);
    all.push(core);
    for (net, message) in [
        ("10.0.1.128/25", "`ip4_network` 10.0.1.128/25 overlaps 10.0.1.0/24, the cluster network"),
        ("10.0.0.0/15", "overlaps 10.0.1.0/24, the cluster network"),
        ("192.168.1.0/26", "overlaps 192.168.1.0/24, which this machine is in by `eno1`"),
        ("192.168.0.0/16", "overlaps 192.168.1.0/24, which this machine is in by `eno1`"),
        ("10.40.0.0/24", "which this machine is in by `vmbr100`"),
        ("10.50.0.0/24", "which this machine is in by `vmbr0`"),
        ("10.60.0.0/24", "overlaps 10.60.0.1/32, which this machine is in by `wg0`"),
        ("127.1.0.0/16", "addresses of each machine for itself"),
        ("169.254.7.0/24", "link-local addresses"),
    ] {
        let mut new = NewNetwork { vni: vni(1002), description: "b".into(), ..web() };
        new.fields = NetworkFields { ip4_network: given(net), ..fields() };
        let why = request::add(&cluster, &all, &new).unwrap_err();
        assert!(why.to_string().contains(message), "{net}: {why}");
        let changed = request::modify(&cluster, &all, "web", &new.fields).unwrap_err();
        assert_eq!(changed, why, "{net}");
    }
    let six = NetworkFields { ip6_network: given("fd00:5::/64"), ..fields() };
    let why = request::modify(&cluster, &all, "web", &six).unwrap_err();
    assert!(why.to_string().ends_with("which this machine is in by `eno1`"), "{why}");
    // Its own gateway is none of others.
    let wider = NetworkFields { ip4_network: given("10.20.0.0/16"), ..fields() };
    assert!(request::modify(&cluster, &all, "web", &wider).is_ok());
}

#[test]
fn addresses_of_a_network_fit_together() {
    type Set = fn(&mut NetworkFields);
    let cases: [(Set, &str); 11] = [
        (|f| f.ip4_gateway = given("10.20.2.1"), "is not an address of a host in 10.20.1.0/24"),
        (|f| f.ip4_gateway = given("10.20.1.0"), "is not an address of a host in 10.20.1.0/24"),
        (|f| f.ip4_gateway = given("10.20.1.255"), "is not an address of a host in 10.20.1.0/24"),
        (|f| f.ip4_gateway = given("x"), "`ip4_gateway` is `x`, and should be an address"),
        (|f| f.ip4_gateway = given("10.20.1.150"), "DHCP would give the gateway's address"),
        (|f| f.ip4_gateway = given(""), "DHCP for IPv4 needs `ip4_gateway`"),
        (|f| f.ip4_network = given(""), "there is no network that it would be in"),
        (|f| f.dhcp4_start = given("10.20.1.200"), "DHCP would give addresses from 10.20.1.200"),
        (|f| f.dhcp4_end = given("10.20.2.1"), "is not an address of a host"),
        (|f| f.dhcp4_end = None, "only one of `dhcp4_start` and `dhcp4_end` is set"),
        (
            |f| (f.dhcp4_start, f.dhcp4_end) = (None, None),
            "DHCP for IPv4 needs `dhcp4_start` and `dhcp4_end`",
        ),
    ];
    for (set, message) in cases {
        let mut new = web();
        set(&mut new.fields);
        let said = refused(&Cluster::default(), &new);
        assert!(said.contains(message), "{message}: {said}");
    }
    let six: [(Set, &str); 5] = [
        (|f| f.ip6_network = given("2001:db8::/48"), "networks of 64 bits alone"),
        (|f| f.ip6_gateway = given("2001:db8:2::1"), "is not an address of a host"),
        (|f| f.ip6_gateway = given("2001:db8:1::"), "is not an address of a host"),
        (|f| f.ip6_network = given("x"), "`ip6_network` is `x`"),
        (|f| f.mtu = given("1279"), "an MTU of 1279 bytes is too small for IPv6"),
    ];
    for (set, message) in six {
        let mut new = web();
        set(&mut new.fields);
        let said = refused(&Cluster::default(), &new);
        assert!(said.contains(message), "{message}: {said}");
    }
}

#[test]
fn a_bridged_network_has_no_services() {
    type Set = fn(&mut NetworkFields);
    let sets: [(Set, &str); 6] = [
        (|f| f.ip4_network = given("10.1.0.0/24"), "ip4_network"),
        (|f| f.domain = given("x"), "domain"),
        (|f| f.name_servers = Some(vec!["x".into()]), "name_servers"),
        (|f| f.dhcp4 = Some(true), "dhcp4"),
        (|f| f.masquerade = Some(true), "masquerade"),
        (|f| f.spoof_guard = Some(true), "spoof_guard"),
    ];
    for (set, what) in sets {
        let mut new = bridged(100, "office");
        set(&mut new.fields);
        let why = add(&Cluster::default(), &new).unwrap_err();
        assert_eq!(why, NetworkRefusal::NotManaged { what });
    }
    // What PVC 1.0.3's client sends with each network says nothing.
    let mut new = bridged(100, "office");
    new.fields = NetworkFields { dhcp4: Some(false), domain: given(""), ..fields() };
    assert!(add(&Cluster::default(), &new).is_ok());
}

#[test]
fn q69_what_is_not_given_stays_and_what_is_empty_is_cleared() {
    let cluster = with(&[web()]);
    let before = cluster.networks["1001"].as_ref().clone();
    let after = changed(&cluster, NetworkFields { mtu: given(""), ..fields() }).unwrap();
    assert_eq!(after, NetworkRecord { mtu: String::new(), ..before.clone() });
    let none = NetworkFields { name_servers: Some(Vec::new()), ..fields() };
    assert!(changed(&cluster, none).unwrap().name_servers.is_empty());
    let no6 = changed(&cluster, NetworkFields { ip6_network: given(""), ..fields() }).unwrap();
    assert_eq!((no6.ip6_network.as_str(), no6.ip6_gateway.as_str()), ("None", "None"));
    assert_eq!(no6.dhcp6_flag, "False");
    let no4 = NetworkFields { ip4_network: given("None"), ..fields() };
    let no4 = changed(&cluster, no4).unwrap();
    assert_eq!((no4.ip4_gateway.as_str(), no4.dhcp4_flag.as_str()), ("None", "False"));
    let other6 = NetworkFields { ip6_network: given("fd00:1::/64"), ..fields() };
    assert_eq!(changed(&cluster, other6).unwrap().ip6_gateway, "fd00:1::1");
    let no_domain = NetworkFields { domain: given(""), ..fields() };
    assert_eq!(changed(&cluster, no_domain).unwrap().domain, "web.local");
    let off = NetworkFields { dhcp4: Some(false), ..fields() };
    let off = changed(&cluster, off).unwrap();
    assert_eq!((off.dhcp4_flag.as_str(), off.dhcp4_start.as_str()), ("False", "10.20.1.100"));
    let guard = NetworkFields { spoof_guard: Some(true), ..fields() };
    let options = modify(&cluster, "1001", &guard).unwrap().options;
    assert_eq!(options, NetworkOptions { masquerade: true, spoof_guard: true });
}

#[test]
fn q14_a_change_is_of_a_network_that_there_is() {
    let cluster = with(&[web()]);
    let off = NetworkFields { dhcp4: Some(false), ..fields() };
    let why = modify(&cluster, "1002", &off).unwrap_err();
    assert_eq!(
        (why.to_string().as_str(), why.kind()),
        ("there is no network `1002`", Kind::NotFound)
    );
    assert_eq!(changed(&cluster, fields()), Err(NetworkRefusal::NothingGiven));
    let mut cluster = cluster;
    let office = add(&cluster, &bridged(100, "office")).unwrap();
    put(&mut cluster, office.record, office.options);
    let named = NetworkFields { description: given("office"), ..fields() };
    assert!(matches!(changed(&cluster, named), Err(NetworkRefusal::Taken { .. })));
    let same = NetworkFields { description: given("web"), ..fields() };
    assert!(changed(&cluster, same).is_ok());
}

#[test]
fn what_does_not_fit_another_network_is_given_anew_with_it() {
    let cluster = with(&[web()]);
    let alone = NetworkFields { ip4_network: given("10.30.0.0/24"), ..fields() };
    let why = changed(&cluster, alone.clone()).unwrap_err();
    assert!(why.to_string().contains("`ip4_gateway` 10.20.1.1"), "{why}");
    assert!(why.hint().unwrap().contains("given anew"), "{why}");
    let whole = NetworkFields {
        ip4_gateway: given("10.30.0.1"),
        dhcp4_start: given("10.30.0.10"),
        dhcp4_end: given("10.30.0.20"),
        ..alone
    };
    assert!(changed(&cluster, whole).is_ok());
    // Its own network is no other's.
    let wider = NetworkFields { ip4_network: given("10.20.0.0/16"), ..fields() };
    assert!(changed(&cluster, wider).is_ok());
}

#[test]
fn a_record_that_is_wrong_can_be_mended_field_by_field() {
    let mut cluster = with(&[web()]);
    let mut broken = cluster.networks["1001"].as_ref().clone();
    broken.ip4_gateway = "10.99.0.1".to_owned();
    broken.domain = "two words".to_owned();
    cluster.networks.insert("1001".into(), Arc::new(broken));
    let mtu = NetworkFields { mtu: given("1400"), ..fields() };
    assert!(changed(&cluster, mtu).is_ok(), "of what is not asked for nothing is said");
    let gateway = NetworkFields { ip4_gateway: given("10.20.1.1"), ..fields() };
    assert_eq!(changed(&cluster, gateway).unwrap().domain, "two words");
}

/// Network `web` with what `spoil` makes of its record.
fn spoilt(spoil: impl Fn(&mut NetworkRecord)) -> Cluster {
    let mut cluster = with(&[web()]);
    let mut record = cluster.networks["1001"].as_ref().clone();
    spoil(&mut record);
    cluster.networks.insert("1001".into(), Arc::new(record));
    cluster
}

#[test]
fn q69_a_gateway_that_a_legacy_peer_has_left_behind_goes_with_the_next_change() {
    let cluster = spoilt(|record| {
        record.ip6_network = "None".to_owned();
        record.dhcp6_flag = "False".to_owned();
    });
    let mtu = || NetworkFields { mtu: given("1400"), ..fields() };
    let after = changed(&cluster, mtu()).unwrap();
    assert_eq!((after.mtu.as_str(), after.ip6_gateway.as_str()), ("1400", "None"));
    let small = NetworkFields { mtu: given("1000"), ..fields() };
    assert!(changed(&cluster, small).is_ok(), "there is no IPv6 whose packets would not fit");
    let cluster = spoilt(|record| {
        record.ip4_network = String::new();
        record.dhcp4_flag = "False".to_owned();
    });
    let after = changed(&cluster, mtu()).unwrap();
    assert_eq!((after.ip4_gateway.as_str(), after.dhcp4_end.as_str()), ("None", "None"));
    let cluster = spoilt(|record| record.ip4_network = "10.20.1.0/99".to_owned());
    let after = changed(&cluster, mtu()).unwrap();
    assert_eq!(after.ip4_gateway, "10.20.1.1", "what is not understood is no network's end");
}

#[test]
fn an_ipv6_network_of_another_size_keeps_it_and_the_rest_can_be_changed() {
    for size in ["2001:db8:1::/48", "2001:db8:1::/56"] {
        let cluster = spoilt(|record| {
            record.ip6_network = size.to_owned();
            record.dhcp6_flag = "yes".to_owned();
        });
        let mtu = NetworkFields { mtu: given("1400"), ..fields() };
        let after = changed(&cluster, mtu).unwrap();
        assert_eq!((after.ip6_network.as_str(), after.dhcp6_flag.as_str()), (size, "yes"));
        let gateway = NetworkFields { ip6_gateway: given("2001:db8:1::2"), ..fields() };
        assert_eq!(changed(&cluster, gateway).unwrap().ip6_gateway, "2001:db8:1::2");
        let again = NetworkFields { ip6_network: given(size), ..fields() };
        assert!(matches!(changed(&cluster, again), Err(NetworkRefusal::NoSlaac { .. })));
        let small = NetworkFields { mtu: given("1279"), ..fields() };
        assert!(matches!(changed(&cluster, small), Err(NetworkRefusal::MtuBelowIp6 { .. })));
    }
    let cluster = spoilt(|record| {
        record.ip6_network = "2001:db8:1::/48".to_owned();
        record.ip6_gateway = "None".to_owned();
    });
    let first = NetworkFields { ip6_gateway: given("2001:db8:1::1"), ..fields() };
    assert!(matches!(changed(&cluster, first), Err(NetworkRefusal::NoSlaac { .. })));
}

#[test]
fn of_a_range_that_was_wrong_only_what_depends_on_the_change_is_said() {
    let backward = spoilt(|record| record.dhcp4_start = "10.20.1.200".to_owned());
    let off = NetworkFields { dhcp4: Some(false), ..fields() };
    assert_eq!(changed(&backward, off).unwrap().dhcp4_flag, "False");
    let gateway = NetworkFields { ip4_gateway: given("10.20.1.2"), ..fields() };
    assert!(changed(&backward, gateway.clone()).is_ok());
    let on = NetworkFields { dhcp4: Some(true), ..fields() };
    assert!(matches!(changed(&backward, on), Err(NetworkRefusal::BackwardRange { .. })));
    let half = spoilt(|record| record.dhcp4_end = "None".to_owned());
    assert!(changed(&half, gateway).is_ok());
    let other = NetworkFields { ip4_network: given("10.20.0.0/16"), ..fields() };
    assert!(matches!(changed(&half, other), Err(NetworkRefusal::HalfRange)));
    let bare = spoilt(|record| record.ip4_gateway = "None".to_owned());
    let start = NetworkFields { dhcp4_start: given("10.20.1.99"), ..fields() };
    assert!(changed(&bare, start).is_ok(), "DHCP lacks the gateway, as before");
    let none = NetworkFields { dhcp4_start: given(""), dhcp4_end: given(""), ..fields() };
    assert!(matches!(changed(&with(&[web()]), none), Err(NetworkRefusal::DhcpLacks { .. })));
}

#[test]
fn a_mac_address_is_that_of_a_card() {
    let text = |text: &str| card_mac(text).map(mac_text);
    for same in ["52:54:00:AA:bb:01", "52-54-00-aa-BB-01"] {
        assert_eq!(text(same).as_deref(), Some("52:54:00:aa:bb:01"), "{same}");
    }
    for bad in [
        "",
        "52:54:00:aa:bb",
        "52:54:00:aa:bb:01:02",
        "52:54:00:aa:bb:1",
        "52:54-00:aa:bb:01",
        "53:54:00:aa:bb:01",
        "00:00:00:00:00:00",
        "+2:54:00:aa:bb:01",
        "525400aabb01",
        "52:54:00:aa:bb:0g",
    ] {
        assert_eq!(text(bad), None, "{bad}");
    }
}

fn reservation(mac: &str, address: &str, hostname: &str) -> NewReservation {
    NewReservation { mac: mac.into(), address: address.into(), hostname: hostname.into() }
}

const MAC: &str = "52:54:00:aa:bb:01";

fn lease(mac: &str, address: &str, hostname: &str, expiry: Option<&str>) -> LeaseRecord {
    LeaseRecord {
        mac: mac.into(),
        address: address.into(),
        hostname: hostname.into(),
        expiry: expiry.map(str::to_owned),
        ..LeaseRecord::default()
    }
}

fn with_leases(leases: Vec<LeaseRecord>) -> Cluster {
    let mut cluster = with(&[web()]);
    let record = cluster.networks["1001"].as_ref().clone();
    cluster.networks.insert("1001".into(), Arc::new(NetworkRecord { leases, ..record }));
    cluster
}

#[test]
fn q47_a_reservation_is_an_address_of_the_network_that_nobody_has() {
    let cluster = with_leases(vec![
        lease("52:54:00:00:00:01", "10.20.1.10", "a", None),
        lease("52:54:00:00:00:02", "10.20.1.101", "b", Some("99")),
    ]);
    let ask = reservation("52-54-00-AA-BB-01", "10.20.1.11", "Web1");
    let made = reserve(&cluster, "web", &ask).unwrap().1;
    assert_eq!(made, lease(MAC, "10.20.1.11", "Web1", None));
    let unnamed = reserve(&cluster, "web", &reservation(MAC, "10.20.1.11", "")).unwrap().1;
    assert_eq!(unnamed.hostname, "None");
    let several = with_leases(vec![lease("52:54:00:00:00:01", "10.20.1.10", "None", None)]);
    assert!(reserve(&several, "web", &reservation(MAC, "10.20.1.11", "")).is_ok());
    // What a guest calls itself is nobody's.
    assert!(reserve(&cluster, "web", &reservation(MAC, "10.20.1.11", "b")).is_ok());
    // DHCP has given it to another, which has it until its lease ends.
    assert!(reserve(&cluster, "web", &reservation(MAC, "10.20.1.101", "")).is_ok());
    for (mac, address, hostname, message) in [
        ("x", "10.20.1.11", "", "`x` is not the MAC address of a network card"),
        (MAC, "999.1.1.1", "", "`ipaddress` is `999.1.1.1`, and should be an IPv4 address"),
        (MAC, "10.20.2.1", "", "is not an address of a host in 10.20.1.0/24"),
        (MAC, "10.20.1.255", "", "is not an address of a host in 10.20.1.0/24"),
        (MAC, "10.20.1.1", "", "`10.20.1.1` is the network's gateway"),
        (MAC, "10.20.1.10", "", "`10.20.1.10` is reserved for `52:54:00:00:00:01`"),
        ("52:54:00:00:00:01", "10.20.1.12", "", "has a reservation already, for 10.20.1.10"),
        (MAC, "10.20.1.11", "A", "host name `A` is reserved for `52:54:00:00:00:01` already"),
        (MAC, "10.20.1.11", "a.b", "`a.b` is not a host name"),
        (MAC, "10.20.1.11", "-a", "`-a` is not a host name"),
        (MAC, "10.20.1.11", "ignore", "`ignore` is not a host name"),
        (MAC, "10.20.1.11", "12h", "`12h` is not a host name"),
    ] {
        let why = reserve(&cluster, "1001", &reservation(mac, address, hostname)).unwrap_err();
        assert!(why.to_string().contains(message), "{message}: {why}");
    }
    let office = with(&[bridged(100, "office")]);
    let why = reserve(&office, "office", &ask).unwrap_err();
    assert_eq!(why, NetworkRefusal::NotManaged { what: "dhcp" });
}

#[test]
fn leases_keep_their_addresses_and_their_network() {
    let other = "52:54:00:00:00:02";
    let cluster = with_leases(vec![
        lease(MAC, "10.20.1.10", "a", None),
        lease(other, "10.20.1.50", "b", Some("99")),
        lease("52:54:00:00:00:03", "not an address", "c", None),
    ]);
    let said = |fields: NetworkFields| {
        let why = changed(&cluster, fields).unwrap_err();
        assert_eq!(why.kind(), Kind::Conflict);
        assert!(why.hint().unwrap().contains("pvc network dhcp"), "{why}");
        why.to_string()
    };
    let gateway = |text: &str| NetworkFields { ip4_gateway: given(text), ..fields() };
    assert_eq!(said(gateway("10.20.1.10")), format!("`10.20.1.10` is reserved for `{MAC}`"));
    let taken = format!("`10.20.1.50` is what DHCP has given to `{other}`");
    assert_eq!(said(gateway("10.20.1.50")), taken);
    assert!(changed(&cluster, gateway("10.20.1.2")).is_ok());
    let network = |text: &str| NetworkFields {
        ip4_network: given(text),
        ip4_gateway: given("10.20.1.33"),
        dhcp4_start: given("10.20.1.40"),
        dhcp4_end: given("10.20.1.45"),
        ..fields()
    };
    let outside =
        format!("10.20.1.10, reserved for `{MAC}`, is not an address of a host in 10.20.1.32/27");
    assert_eq!(said(network("10.20.1.32/27")), outside);
    let none = NetworkFields { ip4_network: given(""), ..fields() };
    assert_eq!(said(none), format!("10.20.1.10, reserved for `{MAC}`, would be in no network"));
    assert!(changed(&cluster, network("10.20.0.0/16")).is_ok());
    // What is wrong already is not in the way of what is right.
    let gone = with_leases(vec![lease(MAC, "10.99.0.1", "a", None)]);
    assert!(changed(&gone, gateway("10.20.1.2")).is_ok());
    let given_only = with_leases(vec![lease(MAC, "10.20.1.101", "a", Some("99"))]);
    assert!(changed(&given_only, network("10.20.1.32/27")).is_ok());
}

#[test]
fn a_lease_is_found_by_its_address_its_name_or_its_mac_and_a_reservation_first() {
    let cluster = with_leases(vec![
        lease(MAC, "10.20.1.10", "web1", None),
        lease("52:54:00:00:00:02", "10.20.1.101", "twin", Some("99")),
        lease("52:54:00:00:00:03", "10.20.1.102", "twin", Some("99")),
        lease("52:54:00:00:00:04", "10.20.1.103", "None", Some("99")),
        lease(MAC, "10.20.1.10", "web1", Some("99")),
    ]);
    for which in [MAC, "52-54-00-AA-BB-01", "10.20.1.10", "web1"] {
        let found = release(&cluster, "web", which).unwrap().1;
        assert_eq!((found.mac.as_str(), found.expiry.as_deref()), (MAC, None), "{which}");
    }
    assert_eq!(release(&cluster, "web", "10.20.1.103").unwrap().1.mac, "52:54:00:00:00:04");
    let why = release(&cluster, "web", "twin").unwrap_err();
    assert!(why.to_string().contains("`52:54:00:00:00:02`, `52:54:00:00:00:03`"), "{why}");
    let six = |address: &str, iaid: &str| LeaseRecord {
        ip6: Some(Ip6Client { duid: "00:03:00:01:aa".to_owned(), iaid: iaid.to_owned() }),
        ..lease("", address, "", Some("99"))
    };
    let of_6 = vec![
        six("2001:db8:1::9", "1"),
        six("2001:db8:1::a", "2"),
        LeaseRecord { mac: MAC.to_owned(), ..six("2001:db8:1::b", "1") },
        lease(MAC, "10.20.1.10", "web1", None),
    ];
    let of_6 = with_leases(of_6);
    for (which, address) in [
        ("2001:db8:1:0::9", "2001:db8:1::9"),
        ("2001:DB8:1::A", "2001:db8:1::a"),
        ("10.20.1.10", "10.20.1.10"),
    ] {
        assert_eq!(release(&of_6, "web", which).unwrap().1.address, address, "{which}");
    }
    let why = release(&of_6, "web", "00:03:00:01:AA").unwrap_err();
    assert!(why.to_string().contains("`2001:db8:1::9`, `2001:db8:1::a`"), "{why}");
    for nobody in ["", "None", "web", "10.20.1.1"] {
        let why = release(&of_6, "web", nobody).unwrap_err();
        assert_eq!(why.kind(), Kind::NotFound, "{nobody} of IPv6");
        let why = release(&cluster, "web", nobody).unwrap_err();
        assert_eq!(why.kind(), Kind::NotFound, "{nobody}");
    }
}

fn rule(direction: Direction, order: Option<u32>, description: &str) -> NewAcl {
    let rule = "tcp dport 22 accept".to_owned();
    NewAcl { direction, order, description: description.into(), rule }
}

/// Plays a change of the rules of network `web`.
fn play(cluster: &mut Cluster, new: &NewAcl) {
    let changes = add_acl(cluster, "web", new).unwrap();
    let mut record = changes.network.clone();
    for moved in &changes.moved {
        let there = record.acls.iter_mut().find(|acl| acl.description == moved.description);
        *there.unwrap() = moved.clone();
    }
    record.acls.push(changes.added[0].clone());
    cluster.networks.insert("1001".into(), Arc::new(record));
}

fn ordered(cluster: &Cluster, direction: Direction) -> Vec<(u32, String)> {
    let acls = cluster.networks["1001"].acls.iter().filter(|acl| acl.direction == direction);
    let mut all: Vec<_> = acls.map(|acl| (acl.order, acl.description.clone())).collect();
    all.sort();
    all
}

#[test]
fn h10_orders_are_dense_numbers_whatever_is_put_where() {
    let mut cluster = with(&[web()]);
    for number in 0..12 {
        play(&mut cluster, &rule(Direction::In, None, &format!("r{number}")));
    }
    play(&mut cluster, &rule(Direction::Out, Some(7), "out"));
    play(&mut cluster, &rule(Direction::In, Some(2), "second"));
    let names: Vec<String> =
        ordered(&cluster, Direction::In).into_iter().map(|(_, name)| name).collect();
    let expected = "r0 r1 second r2 r3 r4 r5 r6 r7 r8 r9 r10 r11";
    assert_eq!(names.join(" "), expected);
    assert_eq!(ordered(&cluster, Direction::In).last().unwrap().0, 12);
    assert_eq!(ordered(&cluster, Direction::Out), [(0, "out".to_owned())]);
    let gone = remove_acl(&cluster, "1001", "second").unwrap();
    assert_eq!(gone.removed.len(), 1);
    assert_eq!(gone.moved.len(), 10, "the gap is closed");
    assert_eq!((gone.moved[0].description.as_str(), gone.moved[0].order), ("r2", 2));
    assert_eq!(remove_acl(&cluster, "1001", "none").unwrap_err().kind(), Kind::NotFound);
}

#[test]
fn q10_orders_that_legacy_peers_left_are_made_dense_with_the_next_change() {
    let mut cluster = with(&[web()]);
    let acl = |order, description: &str| AclRecord {
        direction: Direction::In,
        order,
        description: description.into(),
        rule: "drop".into(),
    };
    let record = NetworkRecord {
        acls: vec![acl(3, "a"), acl(3, "b"), acl(10, "c")],
        ..cluster.networks["1001"].as_ref().clone()
    };
    cluster.networks.insert("1001".into(), Arc::new(record));
    play(&mut cluster, &rule(Direction::In, Some(1), "new"));
    let expected = [(0, "a"), (1, "new"), (2, "b"), (3, "c")];
    let found = ordered(&cluster, Direction::In);
    assert_eq!(found, expected.map(|(order, name)| (order, name.to_owned())));
}

/// With an order it might be whole, and in force at a place that nobody has given it.
#[test]
fn half_a_rule_is_given_no_order_by_changes_of_others() {
    let mut cluster = with(&[web()]);
    let acl = |order, description: &str, rule: &str| AclRecord {
        direction: Direction::In,
        order,
        description: description.into(),
        rule: rule.into(),
    };
    let record = NetworkRecord {
        acls: vec![acl(0, "a", "drop"), acl(0, "half", ""), acl(1, "b", "drop")],
        ..cluster.networks["1001"].as_ref().clone()
    };
    cluster.networks.insert("1001".into(), Arc::new(record));
    let new = rule(Direction::In, None, "new");
    let changes = add_acl(&cluster, "web", &new).unwrap();
    let moved: Vec<(&str, u32)> =
        changes.moved.iter().map(|acl| (acl.description.as_str(), acl.order)).collect();
    assert_eq!(moved, [("b", 2)]);
    let gone = remove_acl(&cluster, "web", "half").unwrap();
    assert_eq!(gone.removed.len(), 1, "it can be removed");
    let why = undo_of_removal(&gone).unwrap_err();
    assert!(matches!(why, NetworkRefusal::HalfRule { .. }), "not to try it: {why}");
    let whole = remove_acl(&cluster, "web", "a").unwrap();
    assert_eq!(undo_of_removal(&whole), Ok(Undo::AddRules(vec![acl(0, "a", "drop")])));
}

#[test]
fn a_rule_is_one_of_a_managed_network_with_a_name_of_its_own() {
    let mut cluster = with(&[web(), bridged(100, "office")]);
    play(&mut cluster, &rule(Direction::In, None, "ssh"));
    let why = |network: &str, new: &NewAcl| add_acl(&cluster, network, new).unwrap_err();
    let twice = why("web", &rule(Direction::Out, None, "ssh"));
    assert_eq!(
        twice.to_string(),
        "network 1001 has a rule `ssh` already, in direction `in`",
        "one name is one rule, in whichever direction"
    );
    for bad in ["", "a/b", "ü", ".."] {
        let refusal = why("web", &rule(Direction::In, None, bad));
        assert!(matches!(refusal, NetworkRefusal::BadDescription { .. }), "{bad}: {refusal}");
    }
    let refusal = why("office", &rule(Direction::In, None, "x"));
    assert_eq!(refusal, NetworkRefusal::NotManaged { what: "acl" });
}

#[test]
fn a_rule_is_a_match_and_a_verdict_alone() {
    for good in [
        "tcp dport 22 accept",
        " ip saddr { 10.0.0.1, 10.0.0.2 } drop ",
        "log prefix \"a; b # c\" drop",
        "ct mark set 1",
    ] {
        assert_eq!(check_rule(good), Ok(good.trim()), "{good}");
    }
    let long = format!("ip saddr {{ {} }} drop", "10.0.0.1, ".repeat(500));
    for bad in [
        "",
        "  ",
        "# accept",
        "tcp dport 22",
        "log prefix \"accept\"".replace("log prefix", "meta secmark").as_str(),
        "accept; drop",
        "accept }\nflush ruleset",
        "accept }",
        "{ accept",
        "jump other",
        "tcp dport 22 goto other",
        "ip saddr @others drop",
        "include \"/etc/passwd\" accept",
        "iifname \"ü\" accept",
        &long,
    ] {
        assert!(check_rule(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_rule_that_changes_addresses_is_refused_before_the_kernel_does() {
    for (bad, word) in [
        ("log snat ip to 192.0.2.1", "snat"),
        ("log masquerade", "masquerade"),
        ("log prefix \"x\" dnat ip to 10.20.1.5 accept", "dnat"),
        ("tcp dport 80 redirect to :8080 continue", "redirect"),
        ("tproxy to :1 accept", "tproxy"),
        ("tcp dport 8888 synproxy mss 1460 accept", "synproxy"),
        ("ct status dnat log snat to 192.0.2.1", "snat"),
        ("ct status snat,dnat dnat to 192.0.2.1 accept", "dnat"),
        ("icmp type { redirect } log redirect", "redirect"),
        ("log prefix status snat to 192.0.2.1 accept", "snat"),
    ] {
        let why = check_rule(bad).unwrap_err();
        assert_eq!(why, BadRule::ChangesAddresses(word.to_owned()), "{bad}");
    }
    for good in [
        "ct status dnat accept",
        "ct status snat,dnat accept",
        "ct status & (snat | dnat) != 0 accept",
        "icmp type redirect drop",
        "icmp type != redirect drop",
        "icmp type { redirect, echo-request } drop",
        "icmpv6 type nd-redirect drop",
        "log prefix \"snat \" accept",
    ] {
        assert_eq!(check_rule(good), Ok(good));
    }
}

#[test]
fn rules_that_no_node_would_load_whole_are_not_taken() {
    let mut cluster = with(&[web(), bridged(100, "office")]);
    let acls = |count: usize| {
        let rule = format!("{:<4090} drop", "tcp dport 22");
        let acl = |order| AclRecord {
            direction: Direction::Out,
            order,
            description: format!("r{order}"),
            rule: rule.clone(),
        };
        (0..u32::try_from(count).unwrap()).map(acl).collect::<Vec<_>>()
    };
    let put = |cluster: &mut Cluster, vni: &str, count| {
        let record = NetworkRecord { acls: acls(count), ..cluster.networks[vni].as_ref().clone() };
        cluster.networks.insert(vni.into(), Arc::new(record));
    };
    put(&mut cluster, "100", 1000);
    put(&mut cluster, "1001", 512);
    let new = rule(Direction::In, None, "new");
    assert!(add_acl(&cluster, "web", &new).is_ok(), "a bridged network's are not loaded");
    put(&mut cluster, "1001", 513);
    let why = add_acl(&cluster, "web", &new).unwrap_err();
    assert_eq!(why.kind(), Kind::Conflict);
    assert_eq!(
        why.to_string(),
        "the rules of all networks have 2100735 bytes, and with 19 more than the 2097152 that \
         each node loads"
    );
}
