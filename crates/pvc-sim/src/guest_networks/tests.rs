use std::sync::Arc;

use pvc_embedded::state::{TreeState, Work};
use pvc_model::guest_network::rules::{Known, network_filter};
use pvc_model::network::{AclRecord, LeaseRecord};
use pvc_ports::{Firewall as _, Network as _, Op, Programs as _};

use crate::cluster::Cluster;
use crate::firewall::HostFirewall;
use crate::log::Log;
use crate::network::HostNetwork;
use crate::process::Gate;
use crate::state::World;

use super::*;

/// A host with the bridge of network 1001 and a guest's port in it, and who judges it.
struct Scene {
    world: World,
    gate: Gate,
}

impl Scene {
    fn new() -> Scene {
        let (world, mut gates) = World::of_hosts(1);
        world.with(|state| state.run.nature.networks = 1);
        Scene { world, gate: gates.remove(0) }
    }

    /// The network is recorded with these rules from now on.
    fn record(&self, rules: &[&str]) {
        let record = &view(rules).networks["1001"];
        let rules = BTreeMap::from([(Vni::new(1001).unwrap(), Rules::of(record))]);
        self.world.with(|state| state.networks.look(rules, state.run.now));
    }

    /// A daemon loads the firewall that it would load for these rules.
    async fn load(&self, rules: &[&str]) {
        let (closed, nodes, last) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
        let refused = &|_: &[String]| None;
        let tunnels = None;
        let known = Known { closed: &closed, nodes: &nodes, tunnels, last: &last, refused };
        let (filter, _) = network_filter(&view(rules), &known);
        let inner = self.world.with(|state| state.hosts[0].firewall.clone());
        let firewall = HostFirewall { gate: self.gate.clone(), host: 0, inner };
        firewall.apply(&table(), Some(&filter.rules())).await.unwrap();
    }

    /// A daemon makes the bridge, in which something is plugged.
    async fn make_bridge(&self) {
        let inner = self.world.with(|state| state.hosts[0].network.clone());
        inner.plug_in("vxlan1001", "vmbr1001");
        let network = HostNetwork { gate: self.gate.clone(), host: 0, inner };
        network.create_bridge("vmbr1001").await.unwrap();
    }

    fn found(&self) -> Option<String> {
        let violation = self.world.with(|state| state.truth.violation.clone());
        violation.map(|violation| violation.what)
    }
}

fn view(rules: &[&str]) -> View {
    let acl = |(order, rule): (u32, &&str)| AclRecord {
        direction: rule_direction(rule),
        order,
        description: rule_name(rule),
        rule: (*rule).to_owned(),
    };
    let acls = (0..).zip(rules).map(acl).collect();
    let record = NetworkRecord { acls, ..first_record(1001) };
    let mut view = View::default();
    view.networks.insert("1001".to_owned(), Arc::new(record));
    view
}

#[tokio::test(start_paused = true)]
async fn a_port_in_a_network_without_rules_is_found() {
    let scene = Scene::new();
    scene.record(&[]);
    scene.make_bridge().await;
    assert!(scene.found().unwrap().contains("not filtered"));
}

#[tokio::test(start_paused = true)]
async fn a_host_that_does_as_is_recorded_is_let_be() {
    let scene = Scene::new();
    scene.record(&["tcp dport 22 accept"]);
    scene.load(&["tcp dport 22 accept"]).await;
    scene.make_bridge().await;
    scene.world.with(|state| state.networks.flush_firewall(&state.hosts, 0, state.run.now));
    scene.world.with(|state| state.links_changed(0));
    scene.record(&["tcp dport 22 accept", "udp dport 53 accept"]);
    scene.load(&["tcp dport 22 accept", "drop"]).await;
    scene.load(&["tcp dport 22 accept", "udp dport 53 accept"]).await;
    assert_eq!(scene.found(), None);
}

#[tokio::test(start_paused = true)]
async fn rules_that_were_never_recorded_are_found() {
    let scene = Scene::new();
    scene.record(&["tcp dport 22 accept", "drop"]);
    scene.load(&["drop", "tcp dport 22 accept"]).await;
    assert!(scene.found().unwrap().contains("never had"));
}

#[tokio::test(start_paused = true)]
async fn a_rule_about_what_guests_send_is_judged_too() {
    let (scene, rules) = (Scene::new(), ["tcp dport 22 accept", "ip daddr 192.0.2.0/24 drop"]);
    scene.record(&rules);
    scene.load(&rules).await;
    assert_eq!(scene.found(), None);
    scene.load(&rules[..1]).await;
    assert!(scene.found().unwrap().contains("never had"));
}

/// Writes `data` at each of these keys, as a client of ZooKeeper does, and judges nothing.
fn write(world: &World, tree: &mut TreeState, keys: &[(&str, &str)]) {
    let session = tree.open_session();
    let create = |(path, data): &(&str, &str)| Op::Create {
        path: (*path).to_owned(),
        data: (*data).to_owned().into(),
        mode: pvc_ports::CreateMode::Persistent,
    };
    let work = Work::Multi { session, ops: keys.iter().map(create).collect() };
    assert!(Recorded::is_changed_by(&work));
    let mut draft = tree.draft();
    draft.apply(&work).unwrap();
    let change = draft.finish();
    tree.publish(change);
    let recorded = Recorded::of(tree, Duration::ZERO);
    world.with(|state| state.networks.look(recorded.rules, recorded.at));
}

/// A rule that is tried may be gone again before anybody has looked.
#[tokio::test(start_paused = true)]
async fn what_is_recorded_is_read_from_the_tree_itself() {
    let (scene, mut tree) = (Scene::new(), TreeState::new(1));
    write(&scene.world, &mut tree, &[("/networks", ""), ("/networks/x", "no number")]);
    write(
        &scene.world,
        &mut tree,
        &[
            ("/networks/1001", "net1001"),
            ("/networks/1001/nettype", "managed"),
            ("/networks/1001/firewall_rules", ""),
            ("/networks/1001/firewall_rules/in", ""),
            ("/networks/1001/firewall_rules/in/a", ""),
            ("/networks/1001/firewall_rules/in/a/order", "10"),
            ("/networks/1001/firewall_rules/in/a/rule", "drop"),
            ("/networks/1001/firewall_rules/in/b", ""),
            ("/networks/1001/firewall_rules/in/b/order", "2"),
            ("/networks/1001/firewall_rules/in/b/rule", "tcp dport 22 accept"),
        ],
    );
    scene.load(&["tcp dport 22 accept", "drop"]).await;
    assert_eq!(scene.found(), None);
}

#[tokio::test(start_paused = true)]
async fn rules_of_before_are_found() {
    let scene = Scene::new();
    for rules in [&["tcp dport 22 accept"], &["udp dport 53 accept"]] {
        scene.record(rules);
        scene.load(rules).await;
    }
    assert_eq!(scene.found(), None);
    scene.load(&["tcp dport 22 accept"]).await;
    assert!(scene.found().unwrap().contains("goes back"));
}

/// Finds what is wrong when the port of a guest of network 1001 is gone, or a port of
/// `other_bridge`.
async fn found_of_port(other_bridge: Option<&str>) -> String {
    let mut shape = Shape::plain(3, 1);
    shape.nature.networks = 1;
    plug_in(&mut shape);
    let cluster = Cluster::start(shape, Log::new(false)).await.unwrap();
    let host = cluster.runs_on(0)[0];
    cluster.world.with(|state| state.links_changed(host));
    assert_eq!(cluster.violation(), None);
    cluster.world.with(|state| {
        let guest = state.hypervisors[host].guests.values().next().unwrap();
        let port = port(guest.client, 0);
        let network = &state.hosts[host].network;
        network.pull_out(&port);
        if let Some(bridge) = other_bridge {
            network.plug_in(&port, bridge);
        }
        state.links_changed(host);
    });
    cluster.violation().unwrap().what
}

#[tokio::test(start_paused = true)]
async fn a_guest_whose_port_is_gone_is_found() {
    let found = found_of_port(None).await;
    assert!(found.contains("the port of guest vm0 is not in `vmbr1001`"), "{found}");
}

#[tokio::test(start_paused = true)]
async fn a_guest_whose_port_is_in_another_bridge_is_found() {
    let found = found_of_port(Some("vmbr1002")).await;
    assert!(found.contains("the port of guest vm0 is not in `vmbr1001`"), "{found}");
}

/// Lists what is wrong about the networks of a cluster.
fn troubles(cluster: &Cluster) -> Vec<String> {
    let view = cluster.view();
    cluster.world.with(|state| state.network_ends(&view).troubles(None))
}

/// The reason for which nobody answers DHCP in network 1001, if it were recorded as in `view`.
fn dhcp_is_silent(cluster: &Cluster, view: &View) -> Option<String> {
    cluster.world.with(|state| state.network_ends(view).dhcp_is_silent(FIRST_VNI))
}

/// A cluster of three hosts with network 1001 in which all is well, and the host of its primary.
async fn served() -> (Cluster, usize) {
    let mut shape = Shape::plain(3, 0);
    shape.nature.networks = 1;
    let cluster = Cluster::start(shape, Log::new(false)).await.unwrap();
    let is_served = |cluster: &Cluster| {
        dhcp_is_silent(cluster, &cluster.view()).is_none() && troubles(cluster).is_empty()
    };
    cluster.until("the network is served", 2 * LATE, is_served).await.unwrap();
    let view = cluster.view();
    let name = view.config.primary.as_ref().unwrap();
    let primary = cluster.world.with(|state| state.hosts.named(name.as_str()).unwrap());
    (cluster, primary)
}

#[tokio::test(start_paused = true)]
async fn a_dhcp_server_that_is_not_there_or_that_nobody_needs_is_found() {
    let (cluster, primary) = served().await;
    let other = (primary + 1) % 3;
    let of = |host: usize| {
        let known = |host: &Host| (host.name.clone(), host.programs.clone());
        cluster.world.with(|state| known(&state.hosts[host]))
    };
    let ((primary, programs), (other, elsewhere)) = (of(primary), of(other));
    let server = programs.running().into_iter().find(|program| program.name == "dnsmasq-1001");
    let server = server.unwrap();

    let second = programs.start(&server).await.unwrap();
    let two = format!("network 1001: {primary} runs 2 DHCP servers for it");
    assert_eq!(troubles(&cluster), [two]);
    drop(second);
    assert_eq!(troubles(&cluster), [""; 0]);

    let left = elsewhere.start(&server).await.unwrap();
    assert_eq!(troubles(&cluster), [format!("{other} runs dnsmasq-1001")]);
    drop(left);
    assert_eq!(troubles(&cluster), [""; 0]);

    programs.crash("dnsmasq-1001");
    let none = format!("network 1001: {primary} runs 0 DHCP servers for it");
    assert_eq!(troubles(&cluster), [none]);
    let is_well = |cluster: &Cluster| troubles(cluster).is_empty();
    cluster.until("it is started again", LATE, is_well).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_dhcp_server_that_serves_something_else_than_is_recorded_is_found() {
    let (cluster, _) = served().await;
    let silent = |record: NetworkRecord| {
        let mut view = View::clone(&cluster.view());
        view.networks.insert("1001".to_owned(), Arc::new(record));
        dhcp_is_silent(&cluster, &view)
    };
    let recorded = first_record(FIRST_VNI);
    assert_eq!(silent(recorded.clone()), None);
    let address = reserved_address(FIRST_VNI, 0);
    let reservation = LeaseRecord { mac: mac(0), address, ..LeaseRecord::default() };
    for (record, words) in [
        (
            NetworkRecord { leases: vec![reservation], ..recorded.clone() },
            "its server has reserved",
        ),
        (
            NetworkRecord { dhcp4_flag: "False".to_owned(), ..recorded.clone() },
            "that its server gives addresses is true",
        ),
        (
            NetworkRecord { dhcp4_end: host_of(FIRST_VNI, 150), ..recorded.clone() },
            "that its server gives addresses is false",
        ),
        (
            NetworkRecord { ip4_gateway: host_of(FIRST_VNI, 2), ..recorded.clone() },
            "its gateway 10.20.1.2/24 is on []",
        ),
    ] {
        let found = silent(record).unwrap();
        assert!(found.contains(words), "{found}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_runs_keeps_networks_and_one_that_is_to_end_does_not() {
    let mut shape = Shape::plain(3, 0);
    shape.nature.networks = 1;
    let cluster = Cluster::start(shape, Log::new(false)).await.unwrap();
    cluster.pass(2 * LATE).await.unwrap();
    let found_without_rules = |host: usize| {
        cluster.world.with(|state| {
            state.hosts[host].firewall.flush();
            state.networks.next_look = Duration::ZERO;
            state.look_at_networks();
            state.truth.violation.clone().map(|violation| violation.what)
        })
    };
    cluster.world.with(|state| state.hosts[0].ask_daemon_to_stop());
    assert_eq!(found_without_rules(0), None);
    assert!(found_without_rules(1).unwrap().contains("hv2, which has been well"));
}
