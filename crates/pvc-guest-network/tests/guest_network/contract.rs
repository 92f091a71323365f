//! The firewall of guest networks with the kernel's packet filter and packets that pass it, in
//! network namespaces of the test's own.

#![allow(clippy::disallowed_methods, reason = "a test waits in real time")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use nix::unistd::Pid;
use pvc_linux::{LinuxExec, LinuxNetwork, NftFirewall};
use pvc_model::cluster::Cluster;
use pvc_model::guest_network::Vni;
use pvc_model::guest_network::guard::{self, Guarded, GuardedPort};
use pvc_model::guest_network::rules::{
    Acls, Known, NetworkFilter, TunnelSources, check_rule, network_filter, probe, table,
};
use pvc_model::network::{AclRecord, Direction, NetworkOptions, NetworkRecord};
use pvc_ports::{Firewall as _, FirewallError, Network as _};

use crate::common::does;

type Work = Box<dyn FnOnce() + Send>;

/// A thread in a network namespace of its own, which ends with it.
struct Space {
    work: Option<mpsc::Sender<Work>>,
    thread: Option<JoinHandle<()>>,
    id: Pid,
}

impl Space {
    fn new() -> Space {
        let (work, todo) = mpsc::channel::<Work>();
        let (say, id) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("root may have a network namespace");
            ip("link set lo up");
            say.send(nix::unistd::gettid()).unwrap();
            todo.iter().for_each(|work| work());
        });
        Space { work: Some(work), thread: Some(thread), id: id.recv().unwrap() }
    }

    fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (say, done) = mpsc::channel();
        let work: Work = Box::new(move || say.send(work()).unwrap());
        self.work.as_ref().unwrap().send(work).unwrap();
        done.recv().expect("the work does not panic")
    }

    fn ip(&self, args: &str) {
        let args = args.to_owned();
        self.run(move || ip(&args));
    }

    fn connects(&self, from: &str, to: &str) -> bool {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.run(move || connects(&from, &to))
    }

    /// Accepts connections, and says from where they come.
    fn listen(&self, at: &str) -> Arc<Mutex<Vec<SocketAddr>>> {
        let (at, callers) = (at.to_owned(), Arc::new(Mutex::new(Vec::new())));
        let seen = callers.clone();
        self.run(move || {
            let listener = TcpListener::bind(&at).unwrap_or_else(|why| panic!("{at}: {why}"));
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    seen.lock().unwrap().push(stream.unwrap().peer_addr().unwrap());
                }
            });
        });
        callers
    }

    fn nft(&self, rules: &NetworkFilter) {
        let rules = rules.rules();
        self.run(move || {
            let firewall = NftFirewall::new(Arc::new(LinuxExec));
            wait(firewall.apply(&table(), Some(&rules)))
                .unwrap_or_else(|error| panic!("{error}: {rules}"));
        });
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        drop(self.work.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn ip(args: &str) {
    does(&format!("ip {args}"));
}

/// Whether a connection from the address `from` stands within a second.
fn connects(from: &str, to: &str) -> bool {
    let from: SocketAddr = from.parse().unwrap();
    let to: SocketAddr = to.parse().unwrap();
    wait(async {
        let socket = match from {
            SocketAddr::V4(_) => tokio::net::TcpSocket::new_v4().unwrap(),
            SocketAddr::V6(_) => tokio::net::TcpSocket::new_v6().unwrap(),
        };
        socket.set_reuseaddr(true).unwrap();
        socket.bind(from).unwrap();
        matches!(tokio::time::timeout(Duration::from_secs(1), socket.connect(to)).await, Ok(Ok(_)))
    })
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < end, "not in time: {what}");
    }
}

fn acl(direction: Direction, order: u32, rule: &str) -> AclRecord {
    let description = format!("rule{order}");
    AclRecord { direction, order, description, rule: rule.to_owned() }
}

fn filter(networks: Vec<NetworkRecord>, masked: &[&str]) -> NetworkFilter {
    let mut cluster = Cluster::default();
    for record in networks {
        cluster.networks.insert(record.vni.clone(), Arc::new(record));
    }
    for vni in masked {
        let options = NetworkOptions { masquerade: true, ..NetworkOptions::default() };
        cluster.network_options.insert((*vni).to_owned(), Arc::new(options));
    }
    let nodes = BTreeSet::from(["192.0.2.66/32".parse().unwrap()]);
    let known = Known {
        closed: &BTreeSet::new(),
        nodes: &nodes,
        tunnels: None,
        last: &BTreeMap::<Vni, Acls>::new(),
        refused: &|_| None,
    };
    let (filter, bad) = network_filter(&cluster, &known);
    assert_eq!(bad, []);
    filter
}

/// Network 7 or 8, as PVC makes it: `10.20.V.0/24` and `2001:db8:V::/64`.
fn network(vni: u32, acls: &[AclRecord]) -> NetworkRecord {
    NetworkRecord {
        vni: vni.to_string(),
        description: format!("net{vni}"),
        nettype: "managed".to_owned(),
        ip4_network: format!("10.20.{vni}.0/24"),
        ip6_network: format!("2001:db8:{vni}::/64"),
        acls: acls.to_vec(),
        ..NetworkRecord::default()
    }
}

/// A node that routes between two networks, with two guests in the first and one in the second, and
/// another machine outside.
struct World {
    node: Space,
    guest7: Space,
    other7: Space,
    guest8: Space,
    outside: Space,
}

impl World {
    fn new() -> World {
        let [node, guest7, other7, guest8, outside] = [(); 5].map(|()| Space::new());
        let world = World { node, guest7, other7, guest8, outside };
        for setting in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            let path = format!("/proc/sys/net/{setting}");
            world.node.run(move || std::fs::write(path, "1").unwrap());
        }
        for vni in [7, 8] {
            world.node.ip(&format!("link add vmbr{vni} type bridge"));
            world.node.ip(&format!("link set vmbr{vni} up"));
            world.node.ip(&format!("addr add 10.20.{vni}.1/24 dev vmbr{vni}"));
            world.node.ip(&format!("addr add 2001:db8:{vni}::1/64 dev vmbr{vni} nodad"));
        }
        world.node.ip("addr add 169.254.169.254/32 dev lo");
        world.plug(&world.guest7, "tap1", 7, 2);
        world.plug(&world.other7, "tap2", 7, 3);
        world.plug(&world.guest8, "tap3", 8, 2);
        let to = world.outside.id;
        world.node.ip(&format!("link add up0 type veth peer name eth0 netns {to}"));
        world.node.ip("link set up0 up");
        world.node.ip("addr add 192.0.2.1/24 dev up0");
        for address in ["192.0.2.9/24", "192.0.2.66/24"] {
            world.outside.ip(&format!("addr add {address} dev eth0"));
        }
        world.outside.ip("link set eth0 up");
        world.outside.ip("route add 10.20.0.0/16 via 192.0.2.1");
        world
    }

    fn plug(&self, guest: &Space, tap: &str, vni: u32, host: u32) {
        let to = guest.id;
        self.node.ip(&format!("link add {tap} type veth peer name eth0 netns {to}"));
        self.node.ip(&format!("link set {tap} master vmbr{vni} up"));
        guest.ip(&format!("addr add 10.20.{vni}.{host}/24 dev eth0"));
        guest.ip(&format!("addr add 2001:db8:{vni}::{host}/64 dev eth0 nodad"));
        guest.ip("link set eth0 up");
        guest.ip(&format!("route add default via 10.20.{vni}.1"));
        guest.ip(&format!("-6 route add default via 2001:db8:{vni}::1"));
    }
}

const NONE: [u16; 0] = [];
const G7: &str = "10.20.7.2:0";
const G7_6: &str = "[2001:db8:7::2]:0";
const G8: &str = "10.20.8.2:0";

#[test]
fn guests_reach_the_services_of_their_network_and_nothing_else_of_the_node() {
    let world = World::new();
    for at in ["[::]:22", "[::]:53", "[::]:80", "[::]:2181"] {
        world.node.listen(at);
    }
    world.other7.listen("[::]:22");
    eventually("the bridge forwards", || world.guest7.connects(G7, "10.20.7.1:22"));
    eventually("IPv6, too", || world.guest7.connects(G7_6, "[2001:db8:7::1]:22"));
    world.node.nft(&filter(vec![network(7, &[]), network(8, &[])], &[]));
    let reaches = |to: &str| world.guest7.connects(G7, to);
    assert!(reaches("10.20.7.1:53"), "DNS");
    assert!(world.guest7.connects(G7_6, "[2001:db8:7::1]:53"), "DNS over IPv6");
    assert!(reaches("169.254.169.254:80"), "metadata");
    for to in ["10.20.7.1:22", "10.20.7.1:80", "10.20.7.1:2181", "192.0.2.1:2181"] {
        assert!(!reaches(to), "{to}");
    }
    assert!(!world.guest7.connects(G7_6, "[2001:db8:7::1]:22"), "IPv6");
    assert!(reaches("10.20.7.3:22"), "another guest of its network");
    assert!(world.node.connects("10.20.7.1:0", "10.20.7.3:22"), "the node reaches its guests");
    assert!(world.outside.connects("192.0.2.9:0", "192.0.2.1:22"), "others are not looked at");
    let pings = |guest: &Space, to: &str| {
        let to = to.to_owned();
        guest.run(move || {
            Command::new("ping").args(["-c1", "-W1", &to]).output().unwrap().status.success()
        })
    };
    assert!(pings(&world.guest7, "10.20.7.1") && pings(&world.guest7, "2001:db8:7::1"));

    // The time, over UDP: what was sent to another port before has not come in by then.
    let [time, other] =
        [123, 124].map(|port: u16| world.node.run(move || UdpSocket::bind(("::", port)).unwrap()));
    time.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    other.set_nonblocking(true).unwrap();
    for (from, to) in [(G7, "10.20.7.1"), (G7_6, "2001:db8:7::1")] {
        world.guest7.run(move || {
            let socket = UdpSocket::bind(from).unwrap();
            socket.send_to(b"x", (to, 124)).unwrap();
            socket.send_to(b"x", (to, 123)).unwrap();
        });
        time.recv(&mut [0; 8]).expect("who asks for the time comes in");
        assert!(other.recv(&mut [0; 8]).is_err(), "{to}: another port of UDP");
    }

    // As somebody else, above all as a node, whom the node may let in.
    world.guest7.ip("addr add 192.0.2.66/32 dev eth0");
    world.node.ip("route add 192.0.2.66/32 dev vmbr7");
    for to in ["10.20.7.1:53", "169.254.169.254:80"] {
        assert!(!world.guest7.connects("192.0.2.66:0", to), "{to} as another");
    }
    // DHCP comes from whoever has another address or none yet.
    let server = world.node.run(|| UdpSocket::bind("0.0.0.0:67").unwrap());
    server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    world.guest7.run(|| {
        let socket = UdpSocket::bind("192.0.2.66:68").unwrap();
        socket.set_broadcast(true).unwrap();
        socket.send_to(b"x", "255.255.255.255:67").unwrap();
    });
    server.recv(&mut [0; 8]).expect("a request of DHCP comes in");
}

#[test]
fn rules_of_a_network_judge_what_comes_in_and_what_goes_out() {
    let world = World::new();
    let ports = [22, 80, 81, 443];
    for port in ports {
        world.guest8.listen(&format!("[::]:{port}"));
        world.outside.listen(&format!("[::]:{port}"));
    }
    eventually("the node forwards", || world.guest7.connects(G7, "10.20.8.2:22"));
    eventually("IPv6, too", || world.guest7.connects(G7_6, "[2001:db8:8::2]:22"));
    world.node.nft(&filter(vec![network(7, &[]), network(8, &[])], &[]));
    let reached = |guest: &Space, from: &str, to: &str| -> Vec<u16> {
        ports.into_iter().filter(|port| guest.connects(from, &format!("{to}:{port}"))).collect()
    };
    let from7 = || reached(&world.guest7, G7, "10.20.8.2");
    assert_eq!(from7(), ports, "without rules networks reach each other");

    // The network that the packet leaves accepts it; that is no word about the other's rules.
    let leaves = [acl(Direction::Out, 1, "tcp dport 81 drop"), acl(Direction::Out, 2, "accept")];
    let enters = [
        acl(Direction::In, 10, "tcp dport 22-500 drop"),
        acl(Direction::In, 2, "tcp dport { 80, 81 } accept"),
        acl(Direction::In, 1, "ct state established,related accept"),
    ];
    world.node.nft(&filter(vec![network(7, &leaves), network(8, &enters)], &[]));
    assert_eq!(from7(), [80], "2 comes before 10");
    assert_eq!(reached(&world.guest7, G7_6, "[2001:db8:8::2]"), [80]);
    assert_eq!(reached(&world.guest7, G7, "192.0.2.9"), [22, 80, 443]);
    assert_eq!(reached(&world.outside, "192.0.2.9:0", "10.20.8.2"), [80, 81]);
    assert_eq!(reached(&world.guest8, G8, "192.0.2.9"), ports, "its answers come in");

    // Addresses that are not of its network: a guest may route, unless it has a guard, and never
    // be a node.
    for other in ["10.20.8.77", "192.0.2.67"] {
        world.guest7.ip(&format!("addr add {other}/32 dev eth0"));
        world.node.ip(&format!("route add {other}/32 dev vmbr7"));
    }
    world.outside.ip("route add 192.0.2.67/32 via 192.0.2.1");
    let mut own = filter(vec![network(7, &[]), network(8, &[])], &[]);
    world.node.nft(&own);
    assert_eq!(reached(&world.guest7, "10.20.8.77:0", "192.0.2.9"), ports);
    assert_eq!(reached(&world.guest7, "192.0.2.67:0", "192.0.2.9"), ports);
    own.nodes.insert("192.0.2.67/32".parse().unwrap());
    world.node.nft(&own);
    assert_eq!(reached(&world.guest7, "192.0.2.67:0", "192.0.2.9"), NONE);
    own.networks.get_mut(&Vni::new(7).unwrap()).unwrap().guarded = true;
    world.node.nft(&own);
    assert_eq!(reached(&world.guest7, "10.20.8.77:0", "192.0.2.9"), NONE);
    assert_eq!(reached(&world.guest7, G7, "192.0.2.9"), ports);

    // What is recorded no more is closed.
    let mut gone = filter(vec![network(7, &[])], &[]);
    gone.closed = [Vni::new(8).unwrap()].into();
    world.node.nft(&gone);
    assert_eq!(from7(), NONE);
    assert_eq!(reached(&world.guest8, G8, "192.0.2.9"), NONE);
    assert_eq!(reached(&world.guest7, G7, "192.0.2.9"), ports);
}

#[test]
fn masked_guests_leave_under_the_address_of_the_node_and_reach_nodes_under_their_own() {
    let world = World::new();
    let callers = world.outside.listen("[::]:80");
    world.guest8.listen("[::]:80");
    eventually("the node forwards", || world.guest7.connects(G7, "192.0.2.9:80"));
    world.node.nft(&filter(vec![network(7, &[]), network(8, &[])], &["7"]));
    let caller = |guest: &Space, from: &str, to: &str| {
        callers.lock().unwrap().clear();
        assert!(guest.connects(from, to), "{from} to {to}");
        eventually("it is accepted", || !callers.lock().unwrap().is_empty());
        let caller = callers.lock().unwrap()[0].ip();
        caller.to_canonical().to_string()
    };
    assert_eq!(caller(&world.guest7, G7, "192.0.2.9:80"), "192.0.2.1");
    assert_eq!(caller(&world.guest8, G8, "192.0.2.9:80"), "10.20.8.2", "it did not ask for it");
    assert_eq!(caller(&world.guest7, G7, "192.0.2.66:80"), "10.20.7.2", "a node sees who it is");
    let seen = world.guest8.listen("[::]:81");
    assert!(world.guest7.connects(G7, "10.20.8.2:81"));
    eventually("it is accepted", || !seen.lock().unwrap().is_empty());
    let seen = seen.lock().unwrap()[0].ip().to_canonical().to_string();
    assert_eq!(seen, "10.20.7.2", "between networks nobody is masked");
}

#[test]
fn tables_of_others_stay_and_a_refused_table_leaves_the_old_one() {
    let node = Space::new();
    node.run(|| {
        let nft = |args: &[&str]| {
            let done = Command::new("nft").args(args).output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            String::from_utf8(done.stdout).unwrap()
        };
        nft(&["add table inet filter"]);
        nft(&["add chain inet filter input { type filter hook input priority 0; }"]);
        let foreign = nft(&["list", "table", "inet", "filter"]);
        let firewall = NftFirewall::new(Arc::new(LinuxExec));
        let good = filter(vec![network(7, &[acl(Direction::In, 1, "drop")])], &["7"]);
        wait(firewall.apply(&table(), Some(&good.rules()))).unwrap();
        let shown = wait(firewall.table(&table())).unwrap();
        // nft lets it pass, and the kernel refuses it in this hook.
        let bad = filter(vec![network(7, &[acl(Direction::In, 1, "snat ip to 192.0.2.1")])], &[]);
        let error = wait(firewall.apply(&table(), Some(&bad.rules()))).unwrap_err();
        assert!(matches!(error, FirewallError::Refused { .. }), "{error}");
        let (probe_table, _) = probe(Direction::In, "");
        let error = wait(firewall.apply(&probe_table, Some(&bad.probe_rules(1)))).unwrap_err();
        assert!(matches!(error, FirewallError::Refused { .. }), "{error}");
        assert_eq!(wait(firewall.table(&table())).unwrap(), shown);
        assert_eq!(nft(&["list", "table", "inet", "filter"]), foreign);
        wait(firewall.apply(&table(), None)).unwrap();
        assert_eq!(nft(&["list", "tables"]).trim(), "table inet filter");
    });
}

/// The words of PVC 1.0.3 (`spec/network.md` 5), among an operator's own.
#[test]
fn rules_of_pvc_1_0_3_are_removed_and_the_operators_stay() {
    let space = Space::new();
    space.run(|| {
        let nft = |args: &[&str]| {
            let done = Command::new("nft").args(args).output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            String::from_utf8(done.stdout).unwrap()
        };
        for command in [
            "add table inet filter",
            "add chain inet filter input { type filter hook input priority 0; }",
            "add chain inet filter forward { type filter hook forward priority 0; }",
            "add chain inet filter own",
            "add rule inet filter input iifname \"eth0\" tcp dport 22 counter accept",
            "add rule inet filter forward ip saddr 192.0.2.0/24 counter jump own",
        ] {
            nft(&[command]);
        }
        let before = nft(&["list", "table", "inet", "filter"]);
        let remove = || wait(NftFirewall::new(Arc::new(LinuxExec)).remove_old_rules()).unwrap();
        assert!(!remove());
        for command in [
            "add chain inet filter vxlan7-in",
            "add chain inet filter vxlan7-out",
            "add rule inet filter vxlan7-in counter",
            "add rule inet filter vxlan7-out counter",
            "add rule inet filter input iifname vmbr7 meta l4proto { icmp, ipv6-icmp } counter \
             accept",
            "add rule inet filter input iifname vmbr7 ip protocol icmp counter accept",
            "add rule inet filter input iifname vmbr7 tcp dport 53 counter accept",
            "add rule inet filter input iifname vmbr7 udp dport { 53, 67, 123 } counter accept",
            "add rule inet filter input iifname vmbr7 meta nfproto ipv6 udp dport 547 counter \
             accept",
            "add rule inet filter input iifname vmbr7 tcp dport 80 counter accept",
            "add rule inet filter input iifname vmbr7 counter drop",
            "add rule inet filter forward ip6 daddr 2001:db8:7::/64 counter jump vxlan7-in",
            "add rule inet filter forward ip saddr 10.20.7.0/24 counter jump vxlan7-out",
            "add rule inet filter vxlan7-in counter tcp dport 22 drop",
        ] {
            nft(&[command]);
        }
        assert!(remove());
        assert_eq!(nft(&["list", "table", "inet", "filter"]), before);
        assert!(!remove());
    });
}

#[test]
fn rules_of_two_networks_may_name_their_meters_alike() {
    let meter = "meter m { ip saddr limit rate 10/second } accept";
    let acls =
        [acl(Direction::In, 1, meter), acl(Direction::In, 2, meter), acl(Direction::Out, 1, meter)];
    let rules = filter(vec![network(7, &acls), network(8, &acls)], &[]);
    Space::new().nft(&rules);
}

/// Whether a rule is one rule is decided by [`check_rule`]; here nft has its say as well.
#[test]
fn what_nft_says_of_single_rules_is_what_a_probe_says() {
    let space = Space::new();
    space.run(|| {
        let firewall = NftFirewall::new(Arc::new(LinuxExec));
        let is_taken = |rule: &str| {
            let Ok(rule) = check_rule(rule) else { return false };
            let (table, rules) = probe(Direction::Out, rule);
            wait(firewall.check(&table, &rules)).is_ok()
        };
        for good in [
            "",
            "accept",
            "drop # nothing } ; else",
            "tcp dport { 22, 80-90 } counter accept comment \"a; b # c } d\"",
            "ip saddr vmap { 10.0.0.1 : accept, 10.0.0.2 : drop }",
            "ct state established,related accept",
            "meter m { ip saddr limit rate 10/second } accept",
            "meter guests { ip saddr limit rate 10/second } accept",
            "ip saddr . tcp dport vmap { 10.0.0.1 . ssh : accept, 10.0.0.2 . http : drop }",
            "fib saddr . iif oif missing drop",
            "ip6 saddr vmap { 2001:db8::1 : accept, 2001:db8:1::/48 : drop }",
            "icmpv6 type echo-request limit rate 5/second accept",
            "@th,0,16 22 drop",
            "iifname eth0.100 reject",
        ] {
            assert!(is_taken(good), "{good}");
        }
        for bad in [
            "allow",
            "accept; drop",
            "type filter hook input priority 0",
            "policy drop",
            "define x = 1",
            "$x accept",
            "iif eth77 drop",
            "ip saddr @guests accept",
            "jump vxlan1-in",
            "tcp dport vmap { 22 : goto input }",
            "accept }\nchain x {",
            "accept } chain x { type filter hook input priority 0",
            "log prefix \"open",
            "accept \"",
            "accept '",
            "\u{e9}",
            &"{".repeat(10_000),
            &"(".repeat(10_000),
        ] {
            assert!(!is_taken(bad), "{bad}");
        }
    });
}

fn knows(link: &str, port: GuardedPort) -> Guarded {
    Guarded { ports: [(link.to_owned(), port)].into(), ..Guarded::default() }
}

/// Loads the guard. Where the kernel does not know bridges by their names, whatever is said of
/// them, all of them are closed.
fn load_guard(node: &Space, guarded: &Guarded) {
    let mut rules = guard::rules(guarded).unwrap();
    node.run(move || {
        let firewall = NftFirewall::new(Arc::new(LinuxExec));
        let apply = |rules: &str| wait(firewall.apply(&guard::table(), Some(rules)));
        if rules.contains(BY_NAME) && apply(NAMES_A_BRIDGE).is_err() {
            eprintln!("skipped: the name of the bridge, as the kernel has no `nft_meta_bridge`");
            rules = rules.replace(BY_NAME, "");
        }
        apply(&rules).unwrap_or_else(|error| panic!("{error}: {rules}"));
    });
}

const BY_NAME: &str = "meta ibrname { \"vmbr7\" } ";
const NAMES_A_BRIDGE: &str = "chain probe {\n\tmeta ibrname \"vmbr7\" counter\n}\n";

/// Opens the port `tap9` as QEMU does, and sends the frames that it is told in hexadecimal.
const TAP: &str = "
import fcntl, os, struct, sys
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454ca, 2, 0x1000
tap = os.open('/dev/net/tun', os.O_RDWR)
fcntl.ioctl(tap, TUNSETIFF, struct.pack('16sH22x', b'tap9', IFF_TAP | IFF_NO_PI))
print('open', flush=True)
for frame in sys.stdin:
    os.write(tap, bytes.fromhex(frame.strip()))
    print('sent', flush=True)
";

/// A guest's port in network 7; it ends with the value.
struct Tap {
    program: Child,
    said: BufReader<ChildStdout>,
}

impl Tap {
    fn on(node: &Space) -> Tap {
        let mut program = node.run(|| {
            let mut python = Command::new("python3");
            python.args(["-c", TAP]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
        });
        let said = BufReader::new(program.stdout.take().unwrap());
        let mut tap = Tap { program, said };
        tap.hears("open");
        node.ip("link set tap9 master vmbr7 up");
        tap
    }

    fn hears(&mut self, word: &str) {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), word);
    }

    fn send(&mut self, frame: &[u8]) {
        let frame: String = frame.iter().map(|octet| format!("{octet:02x}")).collect();
        writeln!(self.program.stdin.as_mut().unwrap(), "{frame}").unwrap();
        self.hears("sent");
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// A guest decides itself when it starts, and sends at once.
#[test]
fn a_guest_that_nobody_has_looked_at_is_shut_in_and_what_is_no_guest_is_not() {
    let world = World::new();
    let guest = world.guest7.run(|| UdpSocket::bind("10.20.7.2:7007").unwrap());
    guest.set_nonblocking(true).unwrap();
    let comes = |word: &[u8; 4]| {
        let mut came = [0; 4];
        while guest.recv(&mut came).is_ok() {
            if came == *word {
                return true;
            }
        }
        false
    };
    let mut tap = Tap::on(&world.node);
    // Without the head of the tunnel.
    let frame = |word: &[u8; 4]| tunnelled(*word)[8..].to_vec();
    eventually("without a guard it is heard", || {
        tap.send(&frame(b"old "));
        comes(b"old ")
    });
    let closed = Guarded { closed: ["vmbr7".to_owned()].into(), ..Guarded::default() };
    load_guard(&world.node, &closed);
    tap.send(&frame(b"evil"));
    eventually("what it sends is dropped", || dropped(&world.node, "iifkind") > 0);
    world.other7.listen("[::]:22");
    assert!(world.guest7.connects(G7, "10.20.7.3:22"), "ports that are no guest's are open");
    assert!(world.node.connects("10.20.7.1:0", "10.20.7.3:22"), "and so is the node's own");
    assert!(!comes(b"evil"), "it was sent before");
    let port = GuardedPort {
        mac: [2, 0, 0, 0, 0, 9],
        addresses: ["10.20.7.99".parse().unwrap()].into(),
        ip6: None,
    };
    load_guard(&world.node, &Guarded { closed: closed.closed, ..knows("tap9", port) });
    eventually("once it is known it is heard", || {
        tap.send(&frame(b"new "));
        comes(b"new ")
    });
}

#[test]
fn a_guarded_guest_sends_as_itself_alone() {
    let world = World::new();
    world.guest7.ip("link set eth0 address 52:54:00:00:07:02");
    for address in ["10.20.7.99/24", "2001:db8:7::99/64"] {
        let nodad = if address.contains(':') { " nodad" } else { "" };
        world.guest7.ip(&format!("addr add {address} dev eth0{nodad}"));
    }
    world.other7.listen("[::]:22");
    let to = ["10.20.7.3:22", "[2001:db8:7::3]:22"];
    let (own, other) = ([G7, G7_6], ["10.20.7.99:0", "[2001:db8:7::99]:0"]);
    let reached = |from: [&str; 2]| [0, 1].map(|at| world.guest7.connects(from[at], to[at]));
    eventually("the bridge forwards", || reached(own) == [true; 2] && reached(other) == [true; 2]);
    let port = GuardedPort {
        mac: [0x52, 0x54, 0, 0, 7, 2],
        addresses: ["10.20.7.2", "2001:db8:7::2"].map(|address| address.parse().unwrap()).into(),
        ip6: Some("2001:db8:7::/64".parse().unwrap()),
    };
    load_guard(&world.node, &knows("tap1", port));
    for guest in [&world.guest7, &world.other7] {
        guest.ip("neigh flush all");
    }
    assert_eq!(reached(own), [true; 2]);
    assert_eq!(reached(other), [false; 2], "addresses of others");
    // An offer of DHCP, as a server would make it.
    let client = world.other7.run(|| UdpSocket::bind("0.0.0.0:68").unwrap());
    client.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let send = |from: &'static str| {
        world.guest7.run(move || {
            UdpSocket::bind(from).unwrap().send_to(b"x", "10.20.7.3:68").unwrap();
        });
        client.recv(&mut [0; 8]).is_ok()
    };
    assert!(!send("10.20.7.2:67") && send("10.20.7.2:69"));
    // What it asks of DHCP, it asks for its own card; that from whatever address, as it renews one
    // that is not recorded.
    let server = world.other7.run(|| UdpSocket::bind("0.0.0.0:67").unwrap());
    server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let card = [0x52, 0x54, 0, 0, 7, 2];
    let (known, renewed) = ("10.20.7.2:68", "10.20.7.99:68");
    for (number, from, hardware, asks_for, length) in [
        (1, known, [1, 6], [0x52, 0x54, 0, 0, 7, 3], 300),
        (2, known, [1, 16], card, 300),
        (3, known, [6, 6], card, 300),
        (4, known, [1, 6], card, 3000), // in fragments
        (5, renewed, [1, 6], [0x52, 0x54, 0, 0, 7, 3], 300),
        (6, known, [1, 6], card, 300),
    ] {
        let mut message = vec![0; length];
        message[1..3].copy_from_slice(&hardware);
        message[4] = number;
        message[28..34].copy_from_slice(&asks_for);
        world.guest7.run(move || {
            let client = UdpSocket::bind(from).unwrap();
            client.send_to(&message, "10.20.7.3:67").unwrap();
        });
    }
    let mut came = [0; 4000];
    server.recv(&mut came).unwrap();
    assert_eq!(came[4], 6, "the others were sent before");
    let mut renewal = vec![0; 300];
    renewal[1..3].copy_from_slice(&[1, 6]);
    renewal[28..34].copy_from_slice(&card);
    world.guest7.run(move || {
        let client = UdpSocket::bind(renewed).unwrap();
        client.send_to(&renewal, "10.20.7.3:67").unwrap();
    });
    let (_, from) = server.recv_from(&mut came).unwrap();
    assert_eq!(from.to_string(), renewed);
    // No relay of DHCPv6 either, which says for whom it asks.
    let server = world.other7.run(|| UdpSocket::bind("[2001:db8:7::3]:547").unwrap());
    server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    for (kind, length) in [(12, 100), (13, 100), (1, 3000), (1, 100)] {
        let message = vec![kind; length];
        world.guest7.run(move || {
            let client = UdpSocket::bind("[2001:db8:7::2]:546").unwrap();
            client.send_to(&message, "[2001:db8:7::3]:547").unwrap();
        });
    }
    let (length, _) = server.recv_from(&mut came).unwrap();
    assert_eq!((came[0], length), (1, 100), "relays and fragments were sent before");
    world.guest7.ip("link set eth0 address 52:54:00:00:07:77");
    assert_eq!(reached(own), [false; 2], "the MAC address of another");
}

/// A packet of VXLAN 7 with a broadcast frame in it: a datagram to 10.20.7.2, port 7007, that says
/// `word`.
fn tunnelled(word: [u8; 4]) -> Vec<u8> {
    const VXLAN: [u8; 8] = [8, 0, 0, 0, 0, 0, 7, 0];
    const ETHERNET: [u8; 14] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9, 8, 0];
    let mut ip = [0x45, 0, 0, 32, 0, 1, 0, 0, 64, 17, 0, 0, 10, 20, 7, 99, 10, 20, 7, 2];
    let sum: u32 = ip.chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]]))).sum();
    let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    // Without a checksum.
    let udp = [&7006_u16.to_be_bytes()[..], &7007_u16.to_be_bytes(), &[0, 12, 0, 0]].concat();
    [&VXLAN[..], &ETHERNET, &ip, &udp, &word].concat()
}

/// The kernel takes a frame for a network from whoever sends it to the port of the tunnels.
#[test]
fn frames_for_a_network_come_from_nodes_alone_and_from_no_guest() {
    let world = World::new();
    world.node.ip("link add vxlan7 type vxlan id 7 dstport 4789 local 192.0.2.1 nolearning");
    world.node.ip("link set vxlan7 master vmbr7 up");
    let bound = |guest: &Space, at: &'static str| {
        let socket = guest.run(move || UdpSocket::bind(at).unwrap());
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        socket
    };
    let guest = bound(&world.guest7, "10.20.7.2:7007");
    let send = |from: &Space, own: &'static str, to: &'static str, word: &[u8; 4]| {
        let packet = tunnelled(*word);
        from.run(move || _ = UdpSocket::bind(own).unwrap().send_to(&packet, to).unwrap());
    };
    let to_node = "192.0.2.1:4789";
    let next = || {
        let mut word = [0; 4];
        assert_eq!(guest.recv(&mut word).expect("a frame comes"), 4);
        String::from_utf8(word.to_vec()).unwrap()
    };
    guest.set_nonblocking(true).unwrap();
    eventually("without a filter anybody's comes", || {
        send(&world.outside, "192.0.2.9:0", to_node, b"old ");
        guest.recv(&mut [0; 4]).is_ok()
    });
    guest.set_nonblocking(false).unwrap();

    let mut rules = filter(vec![network(7, &[]), network(8, &[])], &[]);
    let tunnels = TunnelSources {
        inner: ["192.0.2.66/32".parse().unwrap()].into(),
        upstream: ["192.0.2.67/32".parse().unwrap()].into(),
        ..TunnelSources::default()
    };
    world.outside.ip("addr add 192.0.2.67/24 dev eth0");
    // What they say of nodes' addresses would be enough for one of these.
    rules.nodes.clear();
    let load = |rules: &NetworkFilter, tunnels: TunnelSources| {
        world.node.nft(&NetworkFilter { tunnels: Some(tunnels), ..rules.clone() });
    };
    load(&rules, tunnels.clone());
    for (own, word) in
        [("192.0.2.9:0", b"evil"), ("192.0.2.67:0", b"far "), ("192.0.2.66:0", b"node")]
    {
        send(&world.outside, own, to_node, word);
    }
    let first = loop {
        match next() {
            word if word == "old " => {}
            word => break word,
        }
    };
    assert_eq!(first, "node", "the others were sent before");
    load(&rules, TunnelSources { uses_upstream: true, ..tunnels.clone() });
    send(&world.outside, "192.0.2.67:0", to_node, b"far ");
    assert_eq!(next(), "far ");
    // The address of a node by a link that no node comes by.
    let outside = |link: &str| [link.to_owned()].into();
    load(&rules, TunnelSources { outside: outside("up0"), uses_upstream: true, ..tunnels.clone() });
    send(&world.outside, "192.0.2.66:0", to_node, b"evil");
    send(&world.outside, "192.0.2.67:0", to_node, b"far2");
    assert_eq!(next(), "far2");
    load(&rules, TunnelSources { outside: outside("up1"), ..tunnels });
    send(&world.outside, "192.0.2.66:0", to_node, b"nod2");
    assert_eq!(next(), "nod2");

    // From a guest to a node, in this network and by it; the tunnels of others are not looked at.
    let (node, other) = (bound(&world.outside, "192.0.2.66:4789"), "192.0.2.9:4789");
    let far = bound(&world.outside, "192.0.2.67:4789");
    let other_host = bound(&world.outside, other);
    for to in ["192.0.2.66:4789", "192.0.2.67:4789", other] {
        send(&world.guest8, G8, to, b"evil");
    }
    other_host.recv(&mut [0; 99]).expect("a tunnel of the guest's own passes");
    for socket in [node, far] {
        socket.set_nonblocking(true).unwrap();
        assert!(socket.recv(&mut [0; 99]).is_err(), "it was sent before");
    }
    send(&world.guest8, G8, "10.20.8.1:4789", b"evil");
    send(&world.outside, "192.0.2.66:0", to_node, b"nod3");
    assert_eq!(next(), "nod3");
}

/// A router that nobody asked for, on the link of a guest; it ends with the value.
struct Router(Child);

impl Router {
    fn at(guest: &Space) -> Router {
        Router(guest.run(|| {
            Command::new("/usr/sbin/dnsmasq")
                .args(["--keep-in-foreground", "--log-facility=-", "--pid-file", "--port=0"])
                .args(["--conf-file=/dev/null", "--leasefile-ro", "--interface=eth0"])
                .args(["--enable-ra", "--dhcp-range=::,constructor:eth0,ra-only"])
                .args(["--ra-param=eth0,4"])
                .spawn()
                .unwrap()
        }))
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Frames that the guard of `tap1` has dropped by the line with these words.
fn dropped(node: &Space, words: &str) -> u64 {
    let rules = node.run(|| {
        let list = ["list", "table", "bridge", "pvc-guard"];
        let listed = Command::new("nft").args(list).output().unwrap();
        String::from_utf8(listed.stdout).unwrap()
    });
    let line = rules.lines().find(|line| line.contains(words)).unwrap_or_else(|| panic!("{rules}"));
    let mut after = line.split(' ').skip_while(|word| *word != "packets");
    after.nth(1).unwrap().parse().unwrap()
}

#[test]
fn a_guarded_guest_does_not_call_addresses_of_others_its_own_and_is_no_router() {
    const OWN: &str = "52:54:00:00:07:02";
    const ANOTHER: &str = "02:00:00:00:00:09";
    let world = World::new();
    world.guest7.ip(&format!("link set eth0 address {OWN}"));
    world.guest7.ip("addr add 2001:db8:66::1/64 dev eth0 nodad");
    let says = |guest: &Space, args: &str| {
        let args: Vec<String> = args.split(' ').map(str::to_owned).collect();
        let said = guest.run(move || Command::new("ip").args(args).output().unwrap());
        String::from_utf8(said.stdout).unwrap()
    };
    let is_at = |address: &str, mac: &str| {
        says(&world.other7, &format!("neigh show {address} dev eth0")).contains(mac)
    };
    let forget = |address: &str| {
        world.other7.ip(&format!("neigh replace {address} lladdr {ANOTHER} dev eth0 nud stale"));
        assert!(is_at(address, ANOTHER));
    };
    let announce = |address: &str| {
        let address = address.parse().unwrap();
        world.guest7.run(move || wait(LinuxNetwork::new().announce("eth0", address)).unwrap());
    };
    let families = [("10.20.7.2", "10.20.7.99"), ("2001:db8:7::2", "2001:db8:7::99")];
    for (_, other) in families {
        forget(other);
        eventually("without a guard it is believed", || {
            announce(other);
            is_at(other, OWN)
        });
    }
    let is_routed = || says(&world.other7, "-6 route show default dev eth0").contains("via fe80::");
    let router = Router::at(&world.guest7);
    eventually("without a guard it is a router", is_routed);
    drop(router);

    let port = GuardedPort {
        mac: [0x52, 0x54, 0, 0, 7, 2],
        addresses: families.map(|(own, _)| own.parse().unwrap()).into(),
        ip6: Some("2001:db8:7::/64".parse().unwrap()),
    };
    load_guard(&world.node, &knows("tap1", port));
    for (own, other) in families {
        [own, other].into_iter().for_each(forget);
        eventually("its own address is its own", || {
            [other, own].into_iter().for_each(announce);
            is_at(own, OWN)
        });
        assert!(is_at(other, ANOTHER), "what was said before that did not pass: {other}");
    }
    while is_routed() {
        world.other7.ip("-6 route del default dev eth0 proto ra");
    }
    let router = Router::at(&world.guest7);
    eventually("what it says as a router is dropped", || dropped(&world.node, "router-advert") > 0);
    assert!(!is_routed());
    drop(router);
}
