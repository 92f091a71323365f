use std::fmt::Write as _;
use std::sync::Arc;

use super::*;
use crate::domain::{Nic, NicKind};
use crate::fault::FaultRecord;
use crate::network::{LeaseRecord, NetworkOptions, NetworkRecord};
use crate::node::{DaemonNote, DaemonState};
use crate::records;
use crate::vm::VmState;

fn mac(number: u8) -> String {
    format!("52:54:00:00:00:{number:02x}")
}

fn lease(number: u8, address: &str, expiry: Option<&str>) -> LeaseRecord {
    LeaseRecord {
        mac: mac(number),
        address: address.to_owned(),
        expiry: expiry.map(str::to_owned),
        ..LeaseRecord::default()
    }
}

fn acl(direction: Direction, order: u32, rule: &str) -> AclRecord {
    let description = format!("{}{order}", direction.as_str());
    AclRecord { direction, order, description, rule: rule.to_owned() }
}

fn managed(vni: u8, leases: Vec<LeaseRecord>) -> NetworkRecord {
    NetworkRecord {
        vni: vni.to_string(),
        description: format!("net{vni}"),
        nettype: "managed".to_owned(),
        ip4_network: format!("10.20.{vni}.0/24"),
        ip4_gateway: format!("10.20.{vni}.1"),
        ip6_network: format!("2001:db8:{vni}::/64"),
        ip6_gateway: format!("2001:db8:{vni}::1"),
        leases,
        ..NetworkRecord::default()
    }
}

fn nic(number: u8, kind: NicKind) -> Nic {
    Nic {
        kind,
        mac: mac(number),
        model: "virtio".to_owned(),
        target: None,
        is_exclusive: false,
        has_vlan: false,
    }
}

struct Stage {
    cluster: Cluster,
    nodes: BTreeSet<IpNet>,
    own: BTreeSet<IpAddr>,
    floating: BTreeSet<IpAddr>,
    neighbours: Vec<Neighbour>,
}

impl Stage {
    /// Three nodes, of which hv2 is primary, two managed networks and a bridged one.
    fn new() -> Stage {
        let mut cluster = Cluster::default();
        for number in 1..=3 {
            let mut node = records::node(&format!("hv{number}"));
            let cluster_address = Some(format!("10.1.0.{number}"));
            node.daemon = Some(DaemonNote { cluster_address, ..DaemonNote::default() });
            cluster.nodes.insert(node.name.clone(), Arc::new(node));
        }
        cluster.config.primary = Some("hv2".into());
        cluster.config.upstream_ip = "192.0.2.250".to_owned();
        let soon = Some("1700000000");
        let of_7 = vec![
            lease(1, "10.20.7.11", soon),
            lease(2, "10.20.7.12", None),
            lease(3, "10.20.7.13", soon),
            lease(20, "10.20.7.20", None),
            lease(99, "10.20.7.99", None),
            lease(97, "10.20.7.98", None),
            lease(98, "10.20.7.98", None),
        ];
        let bridged = NetworkRecord {
            vni: "101".to_owned(),
            description: "office".to_owned(),
            nettype: "bridged".to_owned(),
            ..NetworkRecord::default()
        };
        for network in [managed(7, of_7), managed(8, vec![lease(4, "10.20.8.4", None)]), bridged] {
            cluster.networks.insert(network.vni.clone(), Arc::new(network));
        }
        let neighbour = |name: &str, net: &str| Neighbour {
            network: net.parse().unwrap(),
            name: format!("the {name} network"),
        };
        let mut stage = Stage {
            cluster,
            nodes: ["10.1.0.0/24", "192.0.2.2/32"].map(|net| net.parse().unwrap()).into(),
            own: ["10.1.0.2", "192.0.2.2"].map(|ip| ip.parse().unwrap()).into(),
            floating: ["10.1.0.250", "192.0.2.250"].map(|ip| ip.parse().unwrap()).into(),
            neighbours: vec![
                neighbour("cluster", "10.1.0.0/24"),
                neighbour("upstream", "192.0.2.0/24"),
            ],
        };
        for (number, name, node, bridge) in [
            (1, "web1", "hv1", "vmbr7"),
            (2, "web2", "hv1", "vmbr7"),
            (3, "web3", "hv3", "vmbr7"),
            (4, "db1", "hv3", "vmbr8"),
            (5, "new1", "hv1", "vmbr7"),
            (6, "on2", "hv2", "vmbr7"),
            (10, "office1", "hv1", "vmbr101"),
            (11, "office2", "hv3", "vmbr101"),
            (12, "office3", "hv1", "vmbr101"),
            (13, "core1", "hv1", "brupstream"),
            (14, "lost1", "hv1", "vmbr9"),
            (15, "lost2", "hv1", "vmbr9"),
            (16, "lost3", "hv3", "vmbr9"),
        ] {
            stage.add(number, name, Some(node), vec![NicKind::Bridge(bridge.to_owned())]);
        }
        stage.add(20, "off1", None, vec![NicKind::Bridge("vmbr7".to_owned())]);
        stage.add(21, "card1", Some("hv1"), vec![NicKind::Hostdev("ens1f1v0".to_owned())]);
        stage.add(22, "none1", Some("hv1"), Vec::new());
        let both = ["vmbr101", "vmbr8", "vmbr7"].map(|name| NicKind::Bridge(name.to_owned()));
        stage.add(23, "both1", Some("hv1"), both.into());
        stage
    }

    fn add(&mut self, number: u8, name: &str, node: Option<&str>, kinds: Vec<NicKind>) {
        let state = if node.is_some() { VmState::Start } else { VmState::Stop };
        let mut vm = records::vm(number.into(), state, node.or(Some("hv1")));
        vm.name = name.to_owned();
        let mut domain = vm.domain.as_deref().unwrap().clone();
        domain.nics = kinds.into_iter().map(|kind| nic(number, kind)).collect();
        vm.domain = Ok(Arc::new(domain));
        if let Some(node) = node {
            self.node(node, |node| node.running.push(vm.uuid));
        }
        self.cluster.vm_names.insert(name.to_owned(), vm.uuid);
        self.cluster.vms.insert(vm.uuid, Arc::new(vm));
    }

    fn node(&mut self, name: &str, change: impl FnOnce(&mut crate::node::NodeRecord)) {
        let mut node = (**self.cluster.node(name).unwrap()).clone();
        change(&mut node);
        self.cluster.nodes.insert(name.into(), Arc::new(node));
    }

    fn vm(&mut self, name: &str, change: impl FnOnce(&mut VmRecord)) {
        let mut vm = (**self.cluster.vm(name).unwrap()).clone();
        change(&mut vm);
        self.cluster.vms.insert(vm.uuid, Arc::new(vm));
    }

    fn network(&mut self, vni: u8, change: impl FnOnce(&mut NetworkRecord)) {
        let mut network = (**self.cluster.network(&vni.to_string()).unwrap()).clone();
        change(&mut network);
        self.cluster.networks.insert(vni.to_string(), Arc::new(network));
    }

    fn rules(mut self, vni: u8, acls: &[(Direction, &str)]) -> Stage {
        let acls = (0..).zip(acls).map(|(order, (direction, rule))| acl(*direction, order, rule));
        self.network(vni, |network| network.acls = acls.collect());
        self
    }

    fn options(mut self, vni: u8, options: NetworkOptions) -> Stage {
        self.cluster.network_options.insert(vni.to_string(), Arc::new(options));
        self
    }

    fn ask(&self, vm: &str, question: Question<'_>) -> Result<Trace, TraceRefusal> {
        let around = Surroundings {
            neighbours: &self.neighbours,
            nodes: &self.nodes,
            node: &"hv2".into(),
            own: &self.own,
            floating: &self.floating,
        };
        let index = TraceIndex::of(&self.cluster);
        trace(&self.cluster, &index, around, self.cluster.vm(vm).unwrap(), question)
    }

    fn trace(&self, line: &str) -> Trace {
        self.ask(line.split(' ').next().unwrap(), question(line)).unwrap()
    }

    /// The way there in short.
    fn there(&self, line: &str) -> String {
        short(&self.trace(line).there)
    }

    fn back(&self, line: &str) -> String {
        self.trace(line).back.map_or_else(|| "none".to_owned(), |back| short(&back))
    }
}

/// `VM TARGET [PROTOCOL [PORT]]`
fn question(line: &str) -> Question<'_> {
    let mut words = line.split(' ').skip(1);
    let target = words.next().unwrap();
    let protocol = words.next().map(|word| match word {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        _ => Protocol::Icmp,
    });
    Question {
        target,
        network: None,
        protocol,
        port: words.next().map(|port| port.parse().unwrap()),
    }
}

/// The kinds of its steps, and its end.
fn short(way: &Way) -> String {
    let mut text = String::new();
    for step in &way.steps {
        let _ = write!(text, "{} ", step.kind());
        if let Step::Tunnel { vni, to, .. } = step {
            let _ = write!(text, "{vni}>{} ", to.node);
        }
    }
    text + "= " + &way.end.to_string()
}

const IN: Direction = Direction::In;
const OUT: Direction = Direction::Out;

#[test]
fn each_way_has_its_steps_and_its_end() {
    let stage = Stage::new();
    for (line, there) in [
        // Within a network nothing is filtered.
        ("web1 10.20.7.12", "interface node bridge node = delivered to VM `web2` on hv1"),
        (
            "web1 web3 tcp 22",
            "interface node bridge tunnel 7>hv3 node bridge = delivered to VM `web3` on hv3",
        ),
        ("web1 10.20.7.20", "interface node bridge = VM `off1` is off"),
        ("web1 10.20.7.50", "interface node bridge = nobody known has 10.20.7.50 in network 7"),
        (
            "web1 10.20.7.255",
            "interface node bridge = nobody known has 10.20.7.255 in network 7: it is no host's",
        ),
        (
            "web1 10.20.7.99",
            "interface node bridge = nobody known has 10.20.7.99 in network 7: DHCP has it for \
             52:54:00:00:00:63, which no VM has",
        ),
        (
            "web1 10.20.7.98",
            "interface node bridge = nobody known has 10.20.7.98 in network 7: DHCP has it for \
             several MAC addresses",
        ),
        (
            "web1 2001:db8:7:0:5054:ff:fe00:3",
            "interface node bridge tunnel 7>hv3 node bridge = delivered to VM `web3` on hv3",
        ),
        // To the primary, which is the gateway.
        (
            "web1 10.20.7.1 icmp",
            "interface node bridge tunnel 7>hv2 gateway service = delivered to node hv2",
        ),
        ("on2 10.20.7.1 udp 53", "interface node bridge gateway service = delivered to node hv2"),
        ("on2 10.20.8.1 udp 123", "interface node bridge gateway service = delivered to node hv2"),
        (
            "on2 169.254.169.254 tcp 80",
            "interface node bridge gateway service = delivered to node hv2",
        ),
        (
            "on2 10.20.7.1 tcp 80",
            "interface node bridge gateway = dropped on hv2 by the rule of what guests reach on a \
             node: ICMP, DNS, DHCP, NTP and metadata",
        ),
        (
            "on2 192.0.2.250 tcp 2181",
            "interface node bridge gateway = dropped on hv2 by the rule of what guests reach on a \
             node: ICMP, DNS, DHCP, NTP and metadata",
        ),
        (
            "on2 10.1.0.2 tcp 7370",
            "interface node bridge gateway = dropped on hv2 by the rule of what guests reach on a \
             node: ICMP, DNS, DHCP, NTP and metadata",
        ),
        (
            "on2 2001:db8:7::1 udp 547",
            "interface node bridge gateway service = delivered to node hv2",
        ),
        // To another network, and out.
        (
            "web1 db1 tcp 5432",
            "interface node bridge tunnel 7>hv2 gateway unjudged unjudged bridge tunnel 8>hv3 node \
             bridge = delivered to VM `db1` on hv3",
        ),
        (
            "web1 10.20.8.77",
            "interface node bridge tunnel 7>hv2 gateway unjudged unjudged bridge = nobody known \
             has 10.20.8.77 in network 8",
        ),
        (
            "web1 198.51.100.1",
            "interface node bridge tunnel 7>hv2 gateway unjudged = leaves hv2 by the upstream \
             network",
        ),
        (
            "web1 10.1.0.3 tcp 22",
            "interface node bridge tunnel 7>hv2 gateway unjudged = leaves hv2 by the cluster \
             network",
        ),
        // Others' networks.
        ("office1 office3", "interface node bridge node bridge = delivered to VM `office3` on hv1"),
        (
            "office1 office2",
            "interface node bridge vlan node bridge = delivered to VM `office2` on hv3",
        ),
        (
            "office1 198.51.100.1",
            "interface node bridge vlan = leaves hv1 by VLAN 101 of the switches",
        ),
        // From there to a managed network it comes to the primary, whose rules it meets.
        (
            "office1 db1",
            "interface node bridge vlan returns unjudged bridge tunnel 8>hv3 node bridge = \
             delivered to VM `db1` on hv3",
        ),
        (
            "office1 10.20.8.77",
            "interface node bridge vlan returns unjudged bridge = nobody known has 10.20.8.77 in \
             network 8",
        ),
        (
            "core1 db1",
            "interface node bridge returns unjudged bridge tunnel 8>hv3 node bridge = delivered to \
             VM `db1` on hv3",
        ),
        (
            "card1 2001:db8:7:0:5054:ff:fe00:6",
            "interface node device returns unjudged bridge node = delivered to VM `on2` on hv2",
        ),
        (
            "office1 10.20.8.1",
            "interface node bridge vlan = leaves hv1 by VLAN 101 of the switches",
        ),
        ("core1 198.51.100.1", "interface node bridge = leaves hv1 by the upstream network"),
        ("card1 198.51.100.1", "interface node device = leaves hv1 by `hostdev:ens1f1v0`"),
        (
            "lost1 198.51.100.1",
            "interface node bridge = network 9 has no record that is understood: nothing comes in \
             or goes out of it",
        ),
        // A bridge that is closed has its guests still.
        ("lost1 lost2", "interface node bridge node bridge = delivered to VM `lost2` on hv1"),
        (
            "lost1 lost3",
            "interface node bridge node = network 9 has no record that is understood: nothing \
             comes in or goes out of it",
        ),
        ("off1 10.20.7.1", "interface = VM `off1` is off"),
    ] {
        assert_eq!(stage.there(line), there, "{line}");
    }
}

#[test]
fn the_answer_takes_its_own_way() {
    let stage = Stage::new();
    for (line, back) in [
        (
            "web1 web3",
            "interface node bridge tunnel 7>hv1 node bridge = delivered to VM `web1` on hv1",
        ),
        (
            "web1 db1",
            "interface node bridge tunnel 8>hv2 gateway unjudged unjudged bridge tunnel 7>hv1 node \
             bridge = delivered to VM `web1` on hv1",
        ),
        ("web1 10.20.7.1 icmp", "bridge tunnel 7>hv1 node bridge = delivered to VM `web1` on hv1"),
        (
            "web1 198.51.100.1",
            "returns unjudged bridge tunnel 7>hv1 node bridge = delivered to VM `web1` on hv1",
        ),
        ("office1 198.51.100.1", "none"),
        (
            "office1 db1",
            "interface node bridge tunnel 8>hv2 gateway unjudged = leaves hv2 by the upstream \
             network",
        ),
        ("lost1 lost2", "interface node bridge node bridge = delivered to VM `lost1` on hv1"),
        ("web1 10.20.7.50", "none"),
    ] {
        assert_eq!(stage.back(line), back, "{line}");
    }
    // A rule that lets requests pass need not let their answers pass.
    let stage = Stage::new().rules(7, &[(IN, "tcp dport 22 accept"), (IN, "drop")]);
    let dropped = "dropped on hv2 by rule `in1` (in 1) of network 7: `drop`";
    for line in ["web1 db1 tcp 5432", "web1 198.51.100.1 tcp 80"] {
        assert!(stage.trace(line).there.end.is_arrival(), "{line}");
        assert!(stage.back(line).ends_with(dropped), "{line}: {}", stage.back(line));
        assert!(!stage.trace(line).passes());
    }
    let rules = [
        (IN, "ct state established,related accept"),
        (IN, "ct state new tcp dport 22 accept"),
        (IN, "drop"),
    ];
    let stage = Stage::new().rules(7, &rules);
    assert!(stage.trace("web1 db1 tcp 5432").passes());
    assert!(stage.trace("db1 web1 tcp 22").passes());
    assert!(!stage.trace("db1 web1 tcp 23").passes());
}

#[test]
fn rules_in_are_judged_before_rules_out_each_up_to_its_verdict() {
    let steps = |stage: &Stage, line: &str| -> Vec<String> {
        let way = stage.trace(line).there;
        let rules = way.steps.iter().filter(|step| matches!(step.kind(), "rule" | "unjudged"));
        rules.map(ToString::to_string).chain([way.end.to_string()]).collect()
    };
    let stage = Stage::new()
        .rules(7, &[(OUT, "ip daddr 10.20.8.0/24 counter return"), (OUT, "drop")])
        .rules(8, &[(IN, "tcp dport { 22, 5432 } accept"), (IN, "log prefix \"no\" reject")]);
    assert_eq!(
        steps(&stage, "web1 db1 tcp 5432"),
        [
            "`in0` (in 0) of network 8: `tcp dport { 22, 5432 } accept` passes it",
            "`out0` (out 0) of network 7: `ip daddr 10.20.8.0/24 counter return` passes it",
            "delivered to VM `db1` on hv3",
        ]
    );
    assert_eq!(
        steps(&stage, "web1 db1 udp 5432"),
        [
            "`in1` (in 1) of network 8: `log prefix \"no\" reject` drops it",
            "dropped on hv2 by rule `in1` (in 1) of network 8: `log prefix \"no\" reject`",
        ]
    );
    assert!(stage.there("web1 198.51.100.1").ends_with("rule `out1` (out 1) of network 7: `drop`"));
    assert!(stage.there("web1 web3 tcp 1").ends_with("on hv3"), "they are not about this");
}

#[test]
fn what_may_change_the_end_is_said_and_nothing_else() {
    let depends = |stage: &Stage, line: &str| -> Vec<String> {
        stage.trace(line).there.depends.iter().map(ToString::to_string).collect()
    };
    let stage = Stage::new().rules(8, &[(IN, "tcp dport 22 accept"), (IN, "drop")]);
    let open = "rule `in0` (in 0) of network 8: `tcp dport 22 accept`: it is not known whether it \
                matches; if so it passes";
    assert_eq!(depends(&stage, "web1 db1"), [open]);
    assert_eq!(depends(&stage, "web1 db1 tcp"), [open]);
    assert_eq!(depends(&stage, "web1 db1 icmp"), [""; 0]);
    assert_eq!(depends(&stage, "web1 db1 tcp 22"), [""; 0]);
    assert_eq!(depends(&stage, "web1 10.20.8.1 tcp").len(), 1, "whether it is a service");

    let stage =
        Stage::new().rules(8, &[(IN, "meta mark 7 accept"), (IN, "limit rate 1/second accept")]);
    assert_eq!(depends(&stage, "web1 db1"), [""; 0], "it passes either way");
    let stage = Stage::new().rules(8, &[(IN, "limit rate over 1/second drop")]);
    assert_eq!(depends(&stage, "web1 db1").len(), 1);
    assert!(!stage.trace("web1 db1").passes());

    // What gives it another address or port is not known to the rules behind it.
    for rule in ["ip daddr set 10.20.8.9", "tcp dport set 25", "tcp dport set 25 accept"] {
        let stage = Stage::new().rules(8, &[(IN, rule), (IN, "tcp dport 25 drop")]);
        assert_eq!(depends(&stage, "web1 db1 tcp 22").len(), 1, "{rule}");
        assert!(!stage.trace("web1 db1 tcp 22").passes(), "{rule}");
    }
    let stage = Stage::new().rules(8, &[(IN, "tcp option maxseg size set 1400")]);
    assert!(stage.trace("web1 db1 tcp 22").passes());
    // A `reject` is for the packets that its answer is for.
    let stage = Stage::new().rules(8, &[(IN, "reject with tcp reset")]);
    assert!(stage.trace("web1 db1 udp 22").passes());
    assert_eq!(depends(&stage, "web1 db1").len(), 1);
    assert!(!stage.trace("web1 db1 tcp 22").there.end.is_arrival());

    // The address of the guest is not known.
    let stage = Stage::new().rules(7, &[(OUT, "ip saddr 10.20.7.64/26 drop")]);
    assert_eq!(depends(&stage, "new1 198.51.100.1").len(), 1);
    assert_eq!(depends(&stage, "web1 198.51.100.1"), [""; 0]);
    let stage = Stage::new().rules(7, &[(OUT, "ip saddr 10.20.0.0/16 drop")]);
    assert_eq!(depends(&stage, "new1 198.51.100.1"), [""; 0], "whatever it is");

    let many = vec![(IN, "meta mark 7 drop"); 1000];
    let stage = Stage::new().rules(8, &many);
    let depends = depends(&stage, "web1 db1");
    assert_eq!(depends.len(), 21);
    assert_eq!(depends[20], "980 more rules of network 8 of which that is not known");
}

#[test]
fn a_rule_that_is_not_taken_closes_what_the_rules_before_it_leave() {
    let stage = Stage::new().rules(8, &[(IN, "tcp dport 22 accept"), (IN, "accept; accept")]);
    let way = stage.trace("web1 db1 tcp 23").there;
    assert_eq!(
        way.end.to_string(),
        "dropped on hv2 by the end of the rules `in` of network 8, of which one is not taken"
    );
    assert!(matches!(&way.depends[..], [Unknown::Cut { .. }]), "{:?}", way.depends);
    let way = stage.trace("web1 db1 tcp 22").there;
    assert!(way.end.is_arrival() && way.depends.len() == 1);

    // What nft refuses is known by the fault alone.
    let mut stage = Stage::new().rules(8, &[(IN, "iif nothere drop")]);
    let fault = FaultRecord {
        id: "NETWORK_RULES_8_HV1".to_owned(),
        first_reported: String::new(),
        last_reported: String::new(),
        acknowledged_at: String::new(),
        acknowledged: false,
        delta: 0,
        message: String::new(),
    };
    stage.cluster.faults.insert(fault.id.clone(), Arc::new(fault.clone()));
    assert!(stage.trace("web1 db1").passes(), "hv2 is the one that filters, and takes it");
    let id = "NETWORK_RULES_8_HV2".to_owned();
    stage.cluster.faults.insert(id.clone(), Arc::new(FaultRecord { id, ..fault }));
    assert!(!stage.trace("web1 db1").passes());
}

#[test]
fn a_guarded_guest_sends_under_addresses_of_dhcp_alone() {
    let guarded = NetworkOptions { spoof_guard: true, ..NetworkOptions::default() };
    let guarded_8 = guarded;
    let stage = Stage::new().options(7, guarded);
    let by = |line: &str| stage.there(line);
    assert!(by("web1 198.51.100.1").starts_with("interface node bridge guard tunnel"));
    assert_eq!(
        by("new1 198.51.100.1"),
        "interface node bridge = dropped on hv1 by the guard of network 7: DHCP has given it no \
         such address"
    );
    // No guest is a DHCP server.
    let stage_of_8 = Stage::new().options(8, guarded_8);
    assert_eq!(
        stage_of_8.back("web1 db1 udp 67"),
        "interface node bridge = dropped on hv3 by the guard of network 8: no guest answers as a \
         DHCP server"
    );
    for other in ["udp 68", "udp 547", "tcp 67", "udp"] {
        assert!(stage_of_8.trace(&format!("web1 db1 {other}")).passes(), "{other}");
    }
    let to_ip6 = "web1 2001:db8:8:0:5054:ff:fe00:4 udp";
    assert!(stage_of_8.back(&format!("{to_ip6} 547")).contains("as a DHCP server"));
    assert!(stage_of_8.trace(&format!("{to_ip6} 67")).passes());
    assert!(by("new1 2001:db8:8::4").starts_with("interface node bridge guard tunnel"));
    let there = stage.trace("new1 2001:db8:8::4").there;
    assert_eq!(there.from, Some("2001:db8:7:0:5054:ff:fe00:5".parse().unwrap()));
}

#[test]
fn nobody_sends_as_a_node_and_with_a_guard_nobody_as_others() {
    let foreign = |address: &str, spoof_guard: bool| {
        let mut stage =
            Stage::new().options(7, NetworkOptions { spoof_guard, ..NetworkOptions::default() });
        stage.network(7, |network| network.leases = vec![lease(1, address, None)]);
        stage.trace("web1 198.51.100.1").there.end
    };
    let is = |end: End, dropper: Dropper| matches!(end, End::Dropped { by, .. } if by == dropper);
    assert!(is(foreign("10.1.0.9", false), Dropper::AsNode));
    assert!(is(foreign("10.99.0.9", true), Dropper::Guard { vni: Vni::new(7).unwrap() }));
    assert!(foreign("10.99.0.9", false).is_arrival(), "it may route for others");
}

#[test]
fn no_guest_sends_into_the_tunnels_between_the_nodes() {
    let stage = Stage::new();
    let end = |question: &str| stage.trace(question).there.end;
    let by = Dropper::IntoTunnels;
    assert!(matches!(end("web1 10.1.0.9 udp 4789"), End::Dropped { by: found, .. } if found == by));
    for other in ["10.1.0.9 tcp 4789", "10.1.0.9 udp 4790", "198.51.100.1 udp 4789"] {
        assert!(end(&format!("web1 {other}")).is_arrival(), "{other}");
    }
}

#[test]
fn masked_is_what_leaves_the_cluster_and_never_what_goes_to_a_node() {
    let masked = NetworkOptions { masquerade: true, ..NetworkOptions::default() };
    let stage = Stage::new().options(7, masked);
    let is_masked = |line: &str| stage.there(line).contains("masquerade");
    assert!(is_masked("web1 198.51.100.1") && is_masked("web1 192.0.2.1"));
    assert!(!is_masked("web1 10.1.0.3") && !is_masked("web1 db1"));
    let way_back = |stage: &Stage, line: &str| {
        let back = stage.trace(line).back.unwrap();
        back.assumed.iter().any(|assumed| matches!(assumed, Assumption::WayBack { .. }))
    };
    assert!(!way_back(&stage, "web1 198.51.100.1") && way_back(&stage, "web1 10.1.0.3"));
    assert!(way_back(&Stage::new(), "web1 198.51.100.1"));
}

#[test]
fn a_machine_alone_forwards_for_certain_only_if_a_network_asks_for_it() {
    let mut stage = Stage::new();
    stage.neighbours.clear();
    let way = stage.trace("web1 198.51.100.1").there;
    assert!(way.end.to_string().ends_with("leaves hv2 by the routes of the node"), "{}", way.end);
    assert!(matches!(way.depends[..], [Unknown::Forwarding { .. }]), "{:?}", way.depends);
    let masked = NetworkOptions { masquerade: true, ..NetworkOptions::default() };
    assert!(stage.options(8, masked).trace("web1 198.51.100.1").passes());
}

#[test]
fn without_a_gateway_nothing_leaves_a_network() {
    let mut stage = Stage::new();
    stage.network(7, |network| network.ip6_gateway = String::new());
    stage.network(8, |network| network.ip4_gateway = String::new());
    let none = "network 7 has no gateway: it has none of IPv6";
    assert!(stage.there("web1 2001:db8:8::4").ends_with(none));
    assert!(
        stage.there("web1 10.20.8.4").ends_with("network 8 has no gateway: it has none of IPv4")
    );
    stage.cluster.config.primary = None;
    assert!(stage.there("web1 198.51.100.1").ends_with("has no gateway: no node is primary"));
    assert!(stage.there("web1 web3").ends_with("on hv3"), "that needs none");
}

#[test]
fn the_interface_is_the_one_that_is_named_or_is_in_the_network_of_the_target() {
    let stage = Stage::new();
    let interface = |target: &str, network: Option<&str>| {
        let asked =
            stage.ask("both1", Question { network, ..question(&format!("both1 {target}")) });
        asked.map(|trace| trace.there.steps[0].to_string().split(" in ").nth(1).unwrap().to_owned())
    };
    let is = |asked: Result<String, TraceRefusal>, net: &str| asked.unwrap().starts_with(net);
    assert!(is(interface("10.20.7.11", None), "network 7"));
    assert!(is(interface("web1", None), "network 7"));
    assert!(is(interface("office1", None), "network 101"));
    assert!(is(interface("198.51.100.1", None), "network 8"), "the first that is managed");
    assert!(is(interface("198.51.100.1", Some("office")), "network 101"));
    assert!(is(interface("198.51.100.1", Some("7")), "network 7"));
    let refused = |network| interface("198.51.100.1", Some(network)).unwrap_err().to_string();
    assert_eq!(refused("nothing"), "there is no network `nothing`");
    assert_eq!(refused("upstream"), "VM `both1` has no interface in network `upstream`");
}

#[test]
fn a_question_that_makes_no_sense_is_refused() {
    let stage = Stage::new();
    for (line, why) in [
        ("web1 web.example", "`web.example` is neither an address nor a VM"),
        ("web1 10.20.7.0/24", "`10.20.7.0/24` is neither an address nor a VM"),
        ("web1 web1", "that is `web1` itself"),
        ("web1 10.20.7.11", "that is `web1` itself"),
        ("web1 127.0.0.1", "`127.0.0.1` is the loopback, and no single machine's"),
        ("web1 ff02::1", "`ff02::1` is the address of many, and no single machine's"),
        ("web1 fe80::1", "`fe80::1` is an address of one link, and no single machine's"),
        ("web1 office1", "no address of VM `office1` is known"),
        ("none1 10.20.7.11", "VM `none1` has no network interface"),
        ("web1 db1 icmp 7", "a port is one of `tcp` or `udp`, and the protocol is neither"),
    ] {
        let vm = line.split(' ').next().unwrap();
        assert_eq!(stage.ask(vm, question(line)).unwrap_err().to_string(), why, "{line}");
    }
    let mut stage = Stage::new();
    let mut vm = (**stage.cluster.vm("web1").unwrap()).clone();
    vm.domain = Err("no XML".to_owned());
    stage.cluster.vms.insert(vm.uuid, Arc::new(vm));
    let refused = stage.ask("web1", question("web1 10.20.7.12"));
    assert_eq!(refused, Err(TraceRefusal::NoDefinition { vm: "web1".to_owned() }));
    assert!(matches!(stage.trace("web2 10.20.7.11").there.end, End::Nobody { .. }));
}

#[test]
fn a_vm_is_where_it_is_reported() {
    let mut stage = Stage::new();
    let uuid = stage.cluster.vm("web3").unwrap().uuid;
    stage.node("hv3", |node| node.running.clear());
    let way = stage.trace("web1 web3").there;
    assert!(way.end.is_arrival());
    assert!(matches!(way.depends[..], [Unknown::NotReported { .. }]), "{:?}", way.depends);
    assert!(!stage.trace("web1 web3").passes());
    // On its way to another node.
    stage.node("hv1", |node| node.running.push(uuid));
    assert!(stage.there("web1 web3").ends_with("`web3` on hv1"));
    // A node that died says what was.
    stage.node("hv1", |node| node.daemon_state = DaemonState::Dead);
    assert!(stage.there("web2 web3").ends_with("`web3` on hv3"));
}

#[test]
fn what_is_taken_for_granted_is_said() {
    let stage = Stage::new();
    let assumed = |stage: &Stage, line: &str| -> Vec<String> {
        stage.trace(line).there.assumed.iter().map(ToString::to_string).collect()
    };
    assert_eq!(assumed(&stage, "web1 web3"), [""; 0]);
    let address =
        "VM `new1` has an address of network 7, of which none is known for certain".to_owned();
    assert_eq!(assumed(&stage, "new1 web3"), [address]);
    let made = "VM `web3` has the address that is made of its MAC address".to_owned();
    assert!(assumed(&stage, "web1 2001:db8:7:0:5054:ff:fe00:3").contains(&made));
    let several =
        "VM `both1` sends by this interface, of several: its own routes decide".to_owned();
    assert!(assumed(&stage, "both1 198.51.100.1").contains(&several));
    assert!(!assumed(&stage, "both1 web1").contains(&several));
    let others = "VLAN 101 of the switches gets it there and lets it in: that is not PVC's";
    for line in ["office1 office2", "office1 db1", "office1 198.51.100.1", "office1 10.20.8.1"] {
        assert!(assumed(&stage, line).iter().any(|it| it == others), "{line}");
    }
    for line in ["core1 db1", "core1 198.51.100.1", "card1 db1", "card1 198.51.100.1"] {
        assert!(assumed(&stage, line).iter().any(|it| it.contains("not PVC's")), "{line}");
    }
}

#[test]
fn nothing_passes_for_certain_past_what_is_not_known() {
    let fault = |id: &str| FaultRecord {
        id: id.to_owned(),
        first_reported: String::new(),
        last_reported: String::new(),
        acknowledged_at: String::new(),
        acknowledged: false,
        delta: 0,
        message: String::new(),
    };
    let raised = |id: &'static str| {
        move |stage: &mut Stage| {
            stage.cluster.faults.insert(id.to_owned(), Arc::new(fault(id)));
        }
    };
    let dead = |name: &'static str| {
        move |stage: &mut Stage| stage.node(name, |node| node.daemon_state = DaemonState::Dead)
    };
    type Change = Box<dyn Fn(&mut Stage)>;
    let rows: [(&str, Change, &str); 12] = [
        (
            "web1 db1",
            Box::new(raised("NETWORK_FIREWALL_HV2")),
            "whether fault `NETWORK_FIREWALL_HV2` stands in its way",
        ),
        ("web1 db1", Box::new(raised("NETWORK_FIREWALL_HV1")), ""),
        (
            "office1 db1",
            Box::new(raised("NETWORK_FIREWALL_HV2")),
            "whether fault `NETWORK_FIREWALL_HV2` stands in its way",
        ),
        (
            "web1 web3",
            Box::new(raised("GUEST_NETWORK_HV3")),
            "whether fault `GUEST_NETWORK_HV3` stands in its way",
        ),
        (
            "web1 db1",
            Box::new(dead("hv2")),
            "whether hv2 does its work: its daemon is in the state `dead`",
        ),
        (
            "web1 web3",
            Box::new(dead("hv3")),
            "whether hv3 does its work: its daemon is in the state `dead`",
        ),
        (
            "web1 web3",
            Box::new(|stage| stage.node("hv3", |node| node.running.clear())),
            "whether VM `web3` runs on hv3, as recorded: hv3 does not report it",
        ),
        (
            "web1 db1",
            Box::new(|stage| stage.node("hv2", |node| node.daemon = None)),
            "hv2 runs PVC 1.0.3, which has other rules than these",
        ),
        (
            "web1 web3",
            Box::new(|stage| {
                stage.add(33, "twin3", Some("hv1"), vec![NicKind::Bridge("vmbr7".to_owned())]);
                let mut twin = (**stage.cluster.vm("twin3").unwrap()).clone();
                let mut domain = twin.domain.as_deref().unwrap().clone();
                domain.nics[0].mac = mac(3);
                twin.domain = Ok(Arc::new(domain));
                stage.cluster.vms.insert(twin.uuid, Arc::new(twin));
            }),
            "whether VM `web3` gets it: another VM has the MAC address 52:54:00:00:00:03 as well",
        ),
        // Another node is asked, which does not know the addresses of the primary.
        (
            "web1 192.0.2.77",
            Box::new(|stage| stage.cluster.config.primary = Some("hv1".into())),
            "whether 192.0.2.77 is an address of hv1 itself, where guests reach services alone",
        ),
        (
            "office1 10.20.8.1",
            Box::new(|_| {}),
            "what the primary lets in that comes from outside: its own firewall decides",
        ),
        ("lost1 lost2", Box::new(|_| {}), "whether hv1 has the bridge of network 9 still"),
    ];
    for (line, change, why) in rows {
        let mut stage = Stage::new();
        change(&mut stage);
        let trace = stage.trace(line);
        let depends: Vec<String> = trace.there.depends.iter().map(ToString::to_string).collect();
        let expected: Vec<&str> = Some(why).filter(|why| !why.is_empty()).into_iter().collect();
        assert_eq!(depends, expected, "{line}");
        assert_eq!(trace.passes(), why.is_empty(), "{line}: {why}");
    }
}

#[test]
fn an_address_that_goes_with_the_primary_is_its_own_whoever_is_asked() {
    let mut stage = Stage::new();
    for primary in ["hv1", "hv2", "hv3"] {
        stage.cluster.config.primary = Some(primary.into());
        stage.cluster.config.upstream_ip = String::new();
        for address in ["192.0.2.250", "10.1.0.250"] {
            let there = stage.there(&format!("web1 {address} tcp 22"));
            let dropped = format!("= dropped on {primary} by the rule of what guests reach");
            assert!(there.contains(&dropped), "{there}");
        }
    }
    // The address of the node that is asked is not that of a primary elsewhere.
    let there = stage.there("web1 192.0.2.2 tcp 22");
    assert!(there.ends_with("leaves hv3 by the upstream network"), "{there}");
}

#[test]
fn rules_of_a_managed_network_are_for_those_outside_too() {
    let stage = Stage::new().rules(8, &[(IN, "drop")]);
    for line in ["office1 db1", "core1 db1", "card1 db1", "office1 10.20.8.77", "web1 db1"] {
        let end = stage.trace(line).there.end.to_string();
        assert_eq!(end, "dropped on hv2 by rule `in0` (in 0) of network 8: `drop`", "{line}");
        assert!(!stage.trace(line).passes(), "{line}");
    }
    let stage = Stage::new().rules(8, &[(IN, "iifname vmbr101 drop")]);
    assert_eq!(stage.trace("office1 db1").there.depends.len(), 1, "by which link is not known");
}

#[test]
fn a_guest_of_several_networks_answers_by_the_one_that_the_packet_is_of() {
    let several = Assumption::Interface { vm: "both1".to_owned() };
    let mut stage = Stage::new();
    stage.network(8, |network| network.leases.push(lease(23, "10.20.8.23", None)));
    // Its address in network 8 is asked for, and it has an interface in network 7.
    let back = stage.trace("web1 10.20.8.23").back.unwrap();
    assert_eq!(short(&back), "interface node bridge node = delivered to VM `web1` on hv1");
    assert!(back.assumed.contains(&several), "{:?}", back.assumed);
    let guarded = NetworkOptions { spoof_guard: true, ..NetworkOptions::default() };
    stage.network(7, |network| network.leases.push(lease(23, "10.20.7.23", None)));
    let back = stage.options(7, guarded).back("web1 10.20.8.23");
    assert!(back.ends_with("guard of network 7: DHCP has given it no such address"), "{back}");
    // It has none in the network of the other.
    let mut stage = Stage::new();
    stage.network(8, |network| network.leases.push(lease(23, "10.20.8.23", None)));
    let back = stage.trace("core1 10.20.8.23").back.unwrap();
    assert!(back.end.to_string().starts_with("leaves hv2"), "{}", back.end);
    assert!(back.assumed.contains(&several), "{:?}", back.assumed);
    // Within a network, or with one interface, that is certain.
    for line in ["db1 10.20.8.23", "web1 db1"] {
        let back = stage.trace(line).back.unwrap();
        assert!(
            !back.assumed.iter().any(|it| matches!(it, Assumption::Interface { .. })),
            "{line}"
        );
    }
}

#[test]
fn thousands_of_interfaces_are_gone_through_once() {
    let mut stage = Stage::new();
    for vni in 1000..1300_u32 {
        let vni = vni.to_string();
        let network = NetworkRecord { vni: vni.clone(), ..managed(9, Vec::new()) };
        stage.cluster.networks.insert(vni, Arc::new(network));
    }
    let add = |stage: &mut Stage, number: u8, name: &str, first: u16| {
        let bridge = |at: u16| NicKind::Bridge(format!("vmbr{}", 1000 + at % 150 + first));
        stage.add(number, name, Some("hv1"), (0..6600).map(bridge).collect());
        let mut vm = (**stage.cluster.vm(name).unwrap()).clone();
        let mut domain = vm.domain.as_deref().unwrap().clone();
        for (at, nic) in (0_u16..).zip(&mut domain.nics) {
            let [high, low] = at.to_be_bytes();
            nic.mac = format!("52:54:00:{number:02x}:{high:02x}:{low:02x}");
        }
        vm.domain = Ok(Arc::new(domain));
        stage.cluster.vms.insert(vm.uuid, Arc::new(vm));
    };
    add(&mut stage, 40, "many1", 0);
    add(&mut stage, 41, "many2", 150);
    assert!(stage.ask("many1", question("many1 many2")).is_ok());
    assert!(stage.ask("many1", question("many1 2001:db8:9:0:5054:ff:fe29:17")).is_ok());
    assert!(stage.ask("web1", question("web1 many2")).is_ok());
}

#[test]
fn an_index_serves_until_a_network_or_an_interface_changes() {
    let mut stage = Stage::new();
    let index = TraceIndex::of(&stage.cluster);
    stage.node("hv1", |node| node.daemon_state = DaemonState::Dead);
    stage.vm("web1", |vm| vm.stats = "{}".into());
    stage.vm("web1", |vm| vm.domain = Ok(Arc::new(vm.domain.as_deref().unwrap().clone())));
    assert!(index.is_of(&stage.cluster), "nothing of it has changed");

    let changes: [fn(&mut Stage); 7] = [
        |stage| stage.network(7, |network| network.acls.push(acl(IN, 0, "tcp dport 22 drop"))),
        |stage| stage.network(7, |network| drop(network.leases.pop())),
        |stage| {
            let options = NetworkOptions { spoof_guard: true, ..NetworkOptions::default() };
            stage.cluster.network_options.insert("7".to_owned(), Arc::new(options));
        },
        |stage| drop(stage.cluster.networks.remove("8")),
        |stage| {
            stage.vm("web1", |vm| {
                let mut domain = vm.domain.as_deref().unwrap().clone();
                domain.nics.clear();
                vm.domain = Ok(Arc::new(domain));
            });
        },
        |stage| stage.vm("web1", |vm| vm.state = VmState::Mirror),
        |stage| {
            let uuid = stage.cluster.vm("web1").unwrap().uuid;
            stage.cluster.vms.remove(&uuid);
        },
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let mut stage = Stage::new();
        let index = TraceIndex::of(&stage.cluster);
        change(&mut stage);
        assert!(!index.is_of(&stage.cluster), "{at}");
        assert!(TraceIndex::of(&stage.cluster).is_of(&stage.cluster), "{at}");
    }
}
