use std::sync::Arc;

use super::*;
use crate::link::Link;
use crate::network::NetworkOptions;
use crate::node::{DaemonNote, NodeRecord};
use crate::records;

fn acl(direction: Direction, order: u32, rule: &str) -> AclRecord {
    let description = format!("{}{order}", direction.as_str());
    AclRecord { direction, order, description, rule: rule.to_owned() }
}

fn cluster(networks: &[(&str, &[AclRecord])]) -> Cluster {
    let mut cluster = Cluster::default();
    for (vni, acls) in networks {
        let record = NetworkRecord {
            vni: (*vni).to_owned(),
            description: format!("net{vni}"),
            nettype: "managed".to_owned(),
            ip4_network: format!("10.20.{vni}.0/24"),
            acls: acls.to_vec(),
            ..NetworkRecord::default()
        };
        cluster.networks.insert((*vni).to_owned(), Arc::new(record));
    }
    cluster
}

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

fn filter(cluster: &Cluster) -> (NetworkFilter, Vec<BadAcl>) {
    filter_after(cluster, &BTreeMap::new(), &|_| None)
}

fn filter_after(
    cluster: &Cluster,
    last: &BTreeMap<Vni, Acls>,
    refused: Refused<'_>,
) -> (NetworkFilter, Vec<BadAcl>) {
    let (closed, nodes) = (BTreeSet::new(), BTreeSet::new());
    let known = Known { closed: &closed, nodes: &nodes, tunnels: None, last, refused };
    network_filter(cluster, &known)
}

/// Chain of this name in the text, with its counters left out.
fn chain<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let begin = format!("chain {name} {{\n");
    let at = text.find(&begin).unwrap_or_else(|| panic!("no {name} in {text}"));
    let lines = text[at + begin.len()..].lines().take_while(|line| *line != "}");
    lines.map(|line| line.trim().trim_start_matches("counter").trim()).collect()
}

#[test]
fn each_node_has_its_own_fault_about_the_rules_of_a_network() {
    let (one, other) = (NodeName::new("hv1"), NodeName::new("x_1_hv1"));
    let vni = |number| Vni::new(number).unwrap();
    assert_eq!(rules_fault(vni(7), &one), "NETWORK_RULES_7_HV1");
    for (number, node) in [(7, &one), (71, &one), (7, &other), (16_777_214, &other)] {
        let id = rules_fault(vni(number), node);
        assert_eq!(of_rules_fault(&id, node), Some(vni(number)), "{id}");
    }
    for id in ["NETWORK_RULES_7", "NETWORK_RULES_7_HV2", "NETWORK_RULES_X_HV1", "DHCP_HV1"] {
        assert_eq!(of_rules_fault(id, &one), None, "{id}");
    }
}

#[test]
fn rules_stand_in_the_order_of_their_numbers_each_in_its_direction() {
    let acls = [
        acl(Direction::In, 10, "tcp dport 10 accept"),
        acl(Direction::Out, 1, "drop"),
        acl(Direction::In, 2, "tcp dport 2 accept"),
    ];
    let (filter, bad) = filter(&cluster(&[("7", &acls)]));
    assert_eq!(bad, []);
    let text = filter.rules();
    assert_eq!(check_rules(&text), Ok(()));
    assert_eq!(chain(&text, "vxlan7-in"), ["", "tcp dport 2 accept", "tcp dport 10 accept"]);
    assert_eq!(chain(&text, "vxlan7-out"), ["", "drop"]);
    let jump = |line: &str| text.contains(&format!("\t{line}\n"));
    assert!(jump("ip daddr 10.20.7.0/24 counter jump vxlan7-in"), "{text}");
    assert!(jump("ip saddr 10.20.7.0/24 counter jump vxlan7-out"), "{text}");
    assert!(text.contains("elements = { \"vmbr7\" . 10.20.7.0/24 }"), "{text}");
    assert!(!text.contains("masquerade") && !text.contains("ct "), "{text}");
}

#[test]
fn tunnels_come_from_nodes_and_guests_send_nothing_into_them() {
    let net = |text: &str| -> IpNet { text.parse().unwrap() };
    let tunnels = TunnelSources {
        inner: ["10.0.1.0/24", "10.0.2.0/24"].map(net).into(),
        upstream: ["192.0.2.1/32", "192.0.2.2/32"].map(net).into(),
        uses_upstream: false,
        outside: ["brupstream", "ens4"].map(str::to_owned).into(),
    };
    let (mut filter, _) = filter(&cluster(&[("7", &[])]));
    assert!(!filter.rules().contains("4789"), "a machine alone has none");
    filter.tunnels = Some(tunnels.clone());
    let text = filter.rules();
    assert_eq!(check_rules(&text), Ok(()));
    let outside = "iifname { \"brupstream\", \"ens4\" }";
    let udp = "udp dport 4789 counter drop";
    assert_eq!(
        chain(&text, "input")[1..],
        [
            &*format!("{outside} ip saddr @inner4 {udp}"),
            &*format!("ip saddr != @tunnels4 {udp}"),
            "iifname @closed counter drop",
            "iifname @guests goto from-guests",
        ]
    );
    let at = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words}: {text}"));
    for set in ["nodes4", "inner4", "upstream4"] {
        let rule = at(&format!("\tiifname @guests ip daddr @{set} {udp}\n"));
        assert!(rule < at("iifname . ip saddr @sources4 accept"), "{text}");
    }
    let set = |name: &str, elements: &str| {
        let begin = format!("set {name} {{\n\ttype ipv4_addr\n\tflags interval\n\tauto-merge\n");
        at(&format!("{begin}\telements = {{ {elements} }}\n"));
    };
    set("tunnels4", "10.0.1.0/24, 10.0.2.0/24");
    set("upstream4", "192.0.2.1/32, 192.0.2.2/32");
    filter.tunnels = Some(TunnelSources { uses_upstream: true, outside: [].into(), ..tunnels });
    let text = filter.rules();
    assert_eq!(chain(&text, "input")[1], format!("ip saddr != @tunnels4 {udp}"));
    let all = "elements = { 10.0.1.0/24, 10.0.2.0/24, 192.0.2.1/32, 192.0.2.2/32 }";
    assert!(text.contains(all), "{text}");
}

/// The tunnel of a node of PVC 1.0.3 has the address that the kernel chooses.
#[test]
fn tunnels_come_from_upstream_addresses_while_there_is_a_legacy_peer() {
    let ours = DaemonNote { version: "0.2.0".to_owned(), ..DaemonNote::default() };
    let node = |version: &str| NodeRecord {
        pvc_version: version.to_owned(),
        daemon: Some(ours.clone()),
        ..records::node("hv1")
    };
    let tunnels = TunnelSources::default();
    for (versions, uses_upstream) in
        [(&[][..], false), (&["0.2.0", "0.2.0"], false), (&["0.2.0", "1.0.3"], true)]
    {
        let mut cluster = cluster(&[("7", &[])]);
        for (number, version) in (1..).zip(versions) {
            let name = NodeName::new(format!("hv{number}"));
            cluster.nodes.insert(name, Arc::new(node(version)));
        }
        let (closed, nodes, last) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
        let tunnels = Some(&tunnels);
        let known =
            Known { closed: &closed, nodes: &nodes, tunnels, last: &last, refused: &|_| None };
        let (filter, _) = network_filter(&cluster, &known);
        assert_eq!(filter.tunnels.unwrap().uses_upstream, uses_upstream, "{versions:?}");
    }
}

/// PVC 1.0.3 filtered no network without IPv4.
#[test]
fn a_network_of_ipv6_alone_is_filtered_as_well() {
    let mut cluster = cluster(&[("7", &[])]);
    let six = NetworkRecord {
        ip4_network: "None".to_owned(),
        ip6_network: "2001:db8:7::/64".to_owned(),
        ..(*cluster.networks["7"]).clone()
    };
    cluster.networks.insert("7".to_owned(), Arc::new(six));
    let text = filter(&cluster).0.rules();
    assert!(text.contains("ip6 daddr 2001:db8:7::/64 counter jump vxlan7-in"), "{text}");
    assert!(text.contains("elements = { \"vmbr7\" }"), "{text}");
    assert!(!text.contains("10.20.7"), "{text}");
}

#[test]
fn a_network_without_addresses_lets_nothing_through() {
    let mut cluster = cluster(&[("7", &[])]);
    let wrong = NetworkRecord {
        ip4_network: "10.20.7.0/33".to_owned(),
        ..(*cluster.networks["7"]).clone()
    };
    cluster.networks.insert("7".to_owned(), Arc::new(wrong));
    let (filter, _) = filter(&cluster);
    assert!(!filter.is_empty() && filter.nets().count() == 0);
    assert!(filter.rules().contains("set guests {\n\ttype ifname\n\telements = { \"vmbr7\" }"));
}

#[test]
fn bridged_networks_are_not_filtered() {
    let mut cluster = cluster(&[("7", &[])]);
    let bridged =
        NetworkRecord { nettype: "bridged".to_owned(), ..(*cluster.networks["7"]).clone() };
    cluster.networks.insert("7".to_owned(), Arc::new(bridged));
    assert!(filter(&cluster).0.is_empty());
}

#[test]
fn masked_is_what_leaves_the_cluster_and_never_what_goes_to_a_node() {
    let mut cluster = cluster(&[("7", &[]), ("8", &[])]);
    let options = NetworkOptions { masquerade: true, ..NetworkOptions::default() };
    cluster.network_options.insert("8".to_owned(), Arc::new(options));
    let (mut filter, _) = filter(&cluster);
    filter.nodes = ["10.0.0.1/24", "2001:db8::1/128"].map(|net| net.parse().unwrap()).into();
    let text = filter.rules();
    assert_eq!(check_rules(&text), Ok(()));
    let set = |name: &str| text.split(&format!("set {name} {{\n")).nth(1).unwrap();
    assert!(set("masked4").contains("elements = { 10.20.8.0/24 }"), "{text}");
    assert!(set("nodes4").contains("elements = { 10.0.0.0/24 }"), "{text}");
    let lines = chain(&text, "leave-masked");
    let at = |wanted: &str| lines.iter().position(|line| line.starts_with(wanted)).unwrap();
    assert!(at("ip daddr @nodes4 accept") < at("ip saddr @masked4"), "{text}");
    assert!(at("oifname @guests accept") < at("ip saddr @masked4"), "{text}");
}

#[test]
fn rules_as_operators_write_them_are_taken() {
    for (rule, taken) in [
        ("", ""),
        (" tcp dport { 22, 80 } accept\n", "tcp dport { 22, 80 } accept"),
        ("drop # everything; else } {", "drop"),
        ("log prefix \"a; jump } # @x b.c\" drop", "log prefix \"a; jump } # @x b.c\" drop"),
        ("@th,0,16 22 drop", "@th,0,16 22 drop"),
        ("iifname != eth0.100 drop", "iifname != eth0.100 drop"),
        ("ip6 saddr ::ffff:10.0.0.1 drop", "ip6 saddr ::ffff:10.0.0.1 drop"),
        (
            "ip saddr 10.0.0.0/8 tcp dport . ip daddr vmap { 22 . 10.0.0.1 : accept }",
            "ip saddr 10.0.0.0/8 tcp dport . ip daddr vmap { 22 . 10.0.0.1 : accept }",
        ),
        ("ct state established,related accept", "ct state established,related accept"),
        (
            "meter m { ip saddr limit rate 9/second } drop",
            "meter m { ip saddr limit rate 9/second } drop",
        ),
    ] {
        assert_eq!(check_rule(rule), Ok(taken), "{rule}");
    }
    for rule in [
        "ip saddr 10.0.0.1 tcp dport ssh accept",
        "ip saddr 10.0.0.0/8 ip daddr 10.0.0.1-10.0.0.9 accept",
        "ip saddr { 10.0.0.1, 10.0.0.0/24 comment \"web\" } tcp dport { ssh, http } accept",
        "ip saddr . tcp dport { 10.0.0.1 . ssh, 10.0.0.2 . http } accept",
        "ip saddr . tcp dport vmap { 10.0.0.1 . ssh : accept, 10.0.0.2 . http : drop }",
        "ip saddr vmap { 10.0.0.1:accept, 10.0.0.2 : drop }",
        "ip6 saddr vmap { 2001:db8::1:accept, 2001:db8::/32 : drop }",
        "ip6 saddr { 2001:db8::1-2001:db8::9, fe80::/10 } accept",
        "iifname . ip saddr { eth0 . 10.0.0.1 } accept",
        "ip saddr . ip daddr . tcp dport { 10.0.0.1 . 10.0.0.2 . ssh } accept",
        "ip saddr & 255.255.0.0 == 10.20.0.0 accept",
        "ip saddr and 255.255.0.0 != 10.20.0.0 accept",
        "ether saddr 52:54:00:aa:bb:cc accept",
        "ether saddr { 52:54:00:aa:bb:cc, 52:54:00:aa:bb:cd } accept",
        "fib saddr . iif oif missing drop",
        "fib daddr type { local, broadcast } accept",
        "fib saddr type local ip saddr 10.0.0.1 accept",
        "meter m { ip saddr limit rate over 9/second burst 5 packets } drop",
        "meter m { ip saddr . tcp dport timeout 60s limit rate 9/second } accept",
        "meter m { ip saddr and 255.255.255.0 limit rate 9/second } accept",
        "meter m { ip saddr ct count over 9 } reject",
        "meta mark set jhash ip saddr . ip daddr mod 2",
        "ip daddr 10.0.0.1 queue to 1-3",
        "queue flags bypass to 1",
        "ct original ip saddr 10.0.0.1 log prefix \"web \" group 2 accept",
        "dup to 10.0.0.1 device \"eth0\"",
        "ip protocol icmp icmp type echo-request accept",
        "ip dscp cs1 ip saddr 10.0.0.1 ip protocol tcp accept",
    ] {
        assert_eq!(check_rule(rule), Ok(rule));
    }
}

#[test]
fn what_is_no_rule_or_more_than_one_or_leaves_its_chain_is_not_taken() {
    let host = |name: &str| BadRule::NamesHost(name.to_owned());
    let sets = |set: &str| BadRule::NamesSet(set.to_owned());
    for (rule, why) in [
        ("accept; drop", BadRule::SeveralRules),
        ("accept\ndrop", BadRule::SeveralRules),
        ("accept\r drop", BadRule::SeveralRules),
        ("accept } chain x { accept", BadRule::Braces),
        ("tcp dport { 22", BadRule::Braces),
        ("ip saddr {{{{{ }}}}} drop", BadRule::Braces),
        ("log prefix \"x drop", BadRule::Leaves(BadRules::OpenQuote { line: 1 })),
        ("include \"/etc/x\"", BadRule::Leaves(BadRules::Include { line: 1 })),
        ("accept \\", BadRule::Leaves(BadRules::OddCharacter { line: 1 })),
        ("accept \0", BadRule::Leaves(BadRules::OddCharacter { line: 1 })),
        ("jump vxlan8-in", BadRule::Jumps("jump".to_owned())),
        ("tcp dport vmap { 22 : goto vxlan8-in }", BadRule::Jumps("goto".to_owned())),
        ("ip saddr @guests accept", sets("guests")),
        ("add @sources4 { ip saddr }", sets("sources4")),
        ("ip saddr @ \"guests\" accept", sets("")),
        ("ip saddr @the drop", sets("the")),
        ("ip saddr web.example.com accept", host("web.example.com")),
        ("ip saddr webserver accept", host("webserver")),
        ("ip saddr != webserver accept", host("webserver")),
        ("ip6 daddr webserver accept", host("webserver")),
        ("ip saddr \"webserver\" accept", host("\"webserver\"")),
        ("ip saddr 10.0.0.1 - webserver accept", host("webserver")),
        ("ip saddr 10.0.0.1, webserver accept", host("webserver")),
        ("ip saddr and 255.0.0.0 == webserver accept", host("webserver")),
        ("ip saddr { 10.0.0.1, webserver } accept", host("webserver")),
        ("ip saddr { 10.0.0.1 timeout 5s, webserver } accept", host("webserver")),
        ("tcp dport . ip daddr { 22 . webserver } accept", host("webserver")),
        ("iifname . ip saddr vmap { eth0 . webserver : accept }", host("webserver")),
        ("ip saddr vmap { webserver:accept }", host("webserver:accept")),
        ("ip saddr 10.0.0.1 ct original ip daddr webserver accept", host("webserver")),
        ("ip saddr set webserver", host("webserver")),
        ("icmp gateway webserver accept", host("webserver")),
        ("rt ip nexthop webserver accept", host("webserver")),
        ("dup to webserver", host("webserver")),
        ("dnat ip to tcp dport map { 80 : webserver }", host("webserver")),
        ("meter m { ip saddr webserver limit rate 9/second }", host("webserver")),
    ] {
        assert_eq!(check_rule(rule), Err(why), "{rule}");
    }
    assert_eq!(check_rule(&"a".repeat(1 << 20)), Err(BadRule::TooLong));
}

/// The names of a table are one of a kind.
#[test]
fn meters_of_rules_are_apart() {
    let meter = "meter m size 9 { ip saddr limit rate 9/second } accept";
    let acls = [
        acl(Direction::In, 1, meter),
        acl(Direction::In, 2, "log prefix \"meter m\" flow table m { ip saddr counter }"),
        acl(Direction::Out, 1, meter),
    ];
    let (filter, bad) = filter(&cluster(&[("7", &acls), ("8", &acls)]));
    assert_eq!(bad, []);
    let text = filter.rules();
    assert_eq!(check_rules(&text), Ok(()));
    for name in ["vxlan7-in-1-m", "vxlan7-out-1-m", "vxlan8-in-1-m", "vxlan8-out-1-m"] {
        assert_eq!(text.matches(&format!("meter {name} size 9 {{ ip saddr")).count(), 1);
    }
    assert!(text.contains("log prefix \"meter m\" flow table vxlan7-in-2-m {"), "{text}");
}

#[test]
fn a_bad_rule_keeps_its_networks_last_set_and_without_one_closes_its_chain() {
    let good = [acl(Direction::In, 1, "tcp dport 22 accept"), acl(Direction::Out, 1, "accept")];
    let mut worse = good.to_vec();
    worse.push(acl(Direction::In, 2, "accept; accept"));
    worse.push(acl(Direction::In, 3, "accept"));
    let (before, _) = filter(&cluster(&[("7", &good), ("8", &good)]));
    let after = cluster(&[("7", &worse), ("8", &good)]);

    let (first, bad) = filter(&after);
    let text = first.rules();
    assert_eq!(chain(&text, "vxlan7-in"), ["", "tcp dport 22 accept", "drop"]);
    assert_eq!(chain(&text, "vxlan7-out"), ["", "accept"], "the other direction is whole");
    assert_eq!(chain(&text, "vxlan8-in"), ["", "tcp dport 22 accept"], "and the other network");
    let said = bad[0].to_string();
    assert!(said.contains("`in2` (in) of network 7 (net7)"), "{said}");
    assert!(said.contains("what the rules before it leave is dropped"), "{said}");
    assert_eq!(bad.len(), 1);

    let last = [(vni(7), before.networks[&vni(7)].acls.clone())].into();
    let (kept, bad) = filter_after(&after, &last, &|_| None);
    assert_eq!(chain(&kept.rules(), "vxlan7-in"), ["", "tcp dport 22 accept"]);
    assert!(bad[0].has_last && bad[0].to_string().contains("keeps the rules that it had"));
}

/// A peer may have written the order of a rule, and not yet its text.
#[test]
fn half_a_rule_lets_nothing_pass_that_the_whole_one_might_drop() {
    let half = acl(Direction::In, 1, "");
    let first = acl(Direction::In, 0, "tcp dport 22 accept");
    let last = acl(Direction::In, 2, "accept");
    let recorded = cluster(&[("7", &[first.clone(), half, last.clone()])]);
    let (filter_of_half, bad) = filter(&recorded);
    let text = filter_of_half.rules();
    assert_eq!(chain(&text, "vxlan7-in"), ["", "tcp dport 22 accept", "drop"]);
    assert!(bad[0].to_string().contains("only a part of it is recorded"), "{}", bad[0]);
    assert_eq!(bad.len(), 1);

    let (before, _) = filter(&cluster(&[("7", &[first, last])]));
    let known = [(vni(7), before.networks[&vni(7)].acls.clone())].into();
    let (kept, bad) = filter_after(&recorded, &known, &|_| None);
    assert_eq!(kept, before, "the network keeps the rules that it had");
    assert!(bad[0].has_last);

    // Of PVC 1.0.3 there may be rules that only count.
    let counts = acl(Direction::In, 0, "# nothing but a note");
    let (filter, bad) = filter(&cluster(&[("7", &[counts])]));
    assert_eq!((chain(&filter.rules(), "vxlan7-in"), bad), (vec!["", ""], Vec::new()));
}

#[test]
fn a_rule_that_nft_refuses_is_as_bad_and_so_are_last_rules_that_it_refuses_by_now() {
    let acls = [acl(Direction::In, 1, "iif eth9 drop"), acl(Direction::In, 2, "accept")];
    let cluster = cluster(&[("7", &acls)]);
    let refused: Refused<'_> = &|rules| {
        let at = rules.iter().position(|rule| rule.contains("eth9"))?;
        Some((at, "no such link".to_owned()))
    };
    let (first, bad) = filter_after(&cluster, &BTreeMap::new(), refused);
    assert_eq!(chain(&first.rules(), "vxlan7-in"), ["", "drop"]);
    assert!(bad[0].to_string().contains("no such link"), "{}", bad[0]);
    let stale = Acls {
        incoming: AclChain { rules: vec!["iif eth9 accept".to_owned()], is_cut: false },
        ..Acls::default()
    };
    let (filter, bad) = filter_after(&cluster, &[(vni(7), stale)].into(), refused);
    assert_eq!(filter, first);
    assert!(!bad[0].has_last);
}

#[test]
fn a_network_with_too_many_rules_takes_no_room_of_others() {
    let long = format!("ip saddr {{ {} }} drop", "10.0.0.1, ".repeat(1500));
    let many: Vec<AclRecord> = (0..300).map(|n| acl(Direction::In, n, &long)).collect();
    let few = [acl(Direction::In, 1, "drop")];
    let (filter, bad) = filter(&cluster(&[("7", &many), ("8", &few), ("9", &many)]));
    let text = filter.rules();
    assert_eq!(check_rules(&text), Ok(()));
    assert_eq!(chain(&text, "vxlan8-in"), ["", "drop"]);
    assert_eq!(chain(&text, "vxlan7-in").last(), Some(&"drop"));
    assert_eq!(bad.iter().map(|bad| bad.vni.get()).collect::<Vec<_>>(), [7, 9]);
    assert!(bad[0].why.contains("too long in all"), "{}", bad[0]);
}

#[test]
fn a_bridge_of_ours_without_a_record_is_closed() {
    let link = |name: &str, kind: LinkKind, master: Option<&str>| Link {
        name: name.to_owned(),
        kind,
        mtu: 1500,
        up: true,
        carrier: true,
        master: master.map(str::to_owned),
        lies_on: None,
        alias: None,
        mac: None,
        addresses: BTreeSet::new(),
    };
    let tunnel = |id| {
        LinkKind::Vxlan(crate::link::Vxlan {
            id,
            local: None,
            lower: None,
            port: 4789,
            learning: false,
        })
    };
    let links = [
        link("vxlan7", tunnel(7), Some("vmbr7")),
        link("vxlan8", tunnel(8), Some("vmbr8")),
        link("vxlan9", tunnel(9), None),
        link("vmbr1", LinkKind::Bridge, None),
        // Of a network that went while the daemon of a machine alone was down.
        Link { alias: Some(vni(5).alias()), ..link("vmbr5", LinkKind::Bridge, None) },
        link("vnet0", LinkKind::Other("tun".to_owned()), Some("vmbr5")),
        Link { alias: Some(vni(4).alias()), ..link("vmbr4", LinkKind::Bridge, None) },
        link("vmbr3", LinkKind::Bridge, None),
        link("eth3", LinkKind::Device, Some("vmbr3")),
    ];
    let links: Links = links.into_iter().map(|link| (link.name.clone(), link)).collect();
    let networks = GuestNetworks::of(&cluster(&[("7", &[])]));
    let after = |filtered: &[u32]| {
        closed(&links, &networks, &filtered.iter().map(|number| vni(*number)).collect())
    };
    assert_eq!(after(&[]), [vni(5), vni(8)].into(), "others make bridges of such names, too");
    assert_eq!(after(&[1, 2, 7]), [1, 5, 8].map(vni).into(), "without a tunnel, too");
    let closed = after(&[]);
    let filter = NetworkFilter { closed, ..NetworkFilter::default() };
    assert!(!filter.is_empty());
    let set = "set closed {\n\ttype ifname\n\telements = { \"vmbr5\", \"vmbr8\" }";
    assert!(filter.rules().contains(set));
}

#[test]
fn rules_are_tried_up_to_one_of_them() {
    let acls = [
        acl(Direction::In, 1, "one"),
        acl(Direction::In, 2, "two"),
        acl(Direction::Out, 1, "three"),
    ];
    let (filter, _) = filter(&cluster(&[("7", &acls), ("8", &acls)]));
    let prefixes = filter.acl_prefixes();
    assert_eq!(prefixes.len(), 6);
    assert_eq!(
        (prefixes[1], prefixes[2]),
        (&["one", "two"].map(str::to_owned)[..], &["three".to_owned()][..])
    );
    let text = filter.probe_rules(4);
    assert_eq!(chain(&text, "vxlan7-out"), ["", "three"]);
    assert_eq!(chain(&text, "vxlan8-in"), ["", "one"]);
    assert!(!text.contains("chain vxlan8-out"), "{text}");
    assert_eq!(chain(&text, "forward")[1], "accept", "no packet is judged by them");
    let (table, text) = probe(Direction::Out, "drop");
    assert_eq!(table.to_string(), "inet pvc-probe");
    assert!(chain(&text, "vxlan1-out").contains(&"drop"), "{text}");
    assert_eq!(check_rules(&text), Ok(()));
}
