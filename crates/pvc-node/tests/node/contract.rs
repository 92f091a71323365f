//! The networks between the nodes on a real kernel, in a network namespace of the test's own.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use pvc_linux::LinuxNetwork;
use pvc_model::network_core::{CoreNetwork, CoreNetworks};
use pvc_node::{Node, NodeSettings, Ports, before_store};
use pvc_store::Store;
use pvc_testkit::SeededRandom;
use tokio_util::sync::CancellationToken;

use crate::world;

/// Runs `test` on a thread in a network namespace of its own: this machine's network is not
/// touched.
fn alone<Test: Future<Output = ()>>(test: impl FnOnce() -> Test + Send + 'static) {
    let thread = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("root may have a network namespace");
        ip("link set lo up");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test());
    });
    thread.join().unwrap();
}

fn ip(args: &str) {
    let output = ip_output(args);
    assert!(output.status.success(), "`ip {args}`: {}", String::from_utf8_lossy(&output.stderr));
}

fn ip_output(args: &str) -> std::process::Output {
    Command::new("ip").args(args.split_whitespace()).output().expect("iproute2 is installed")
}

fn ip_says(args: &str) -> String {
    String::from_utf8(ip_output(args).stdout).unwrap()
}

/// Plugs in network cards, each with the other end of its cable.
fn plug_in(cards: &[&str]) {
    for card in cards {
        ip(&format!("link add {card} type veth peer name far-{card}"));
        ip(&format!("link set far-{card} up"));
    }
}

fn networks() -> CoreNetworks {
    let network = |device: &str, mtu, address: &str| CoreNetwork {
        device: device.to_owned(),
        mtu,
        address: Some(address.parse().unwrap()),
        gateway: None,
    };
    let upstream = network("ens4", 1500, "10.0.0.1/24");
    CoreNetworks {
        cluster: network("ens5", 9000, "10.0.1.1/24"),
        upstream: CoreNetwork { gateway: Some("10.0.0.254".parse().unwrap()), ..upstream },
        storage: network("ens6", 1400, "10.0.2.1/24"),
    }
}

async fn node(networks: CoreNetworks) -> (world::World, NodeSettings, Ports) {
    let world = world::world().await;
    let mut settings = world.settings.clone();
    settings.core_networks = Some(networks);
    settings.subsystems.networking = true;
    let ports = Ports { network: Arc::new(LinuxNetwork::new()), ..world.ports() };
    (world, settings, ports)
}

fn setting(key: &str) -> String {
    std::fs::read_to_string(format!("/proc/sys/{key}")).unwrap().trim().to_owned()
}

fn stands(bridge: &str, port: &str, mtu: u32, address: &str) -> bool {
    let link = ip_says(&format!("-oneline link show {bridge}"));
    let card = ip_says(&format!("-oneline link show {port}"));
    let has = ip_says(&format!("-oneline -4 addr show dev {bridge}"));
    link.contains(&format!(" mtu {mtu} "))
        && link.contains(",UP")
        && card.contains(&format!(" master {bridge} "))
        && card.contains(&format!(" mtu {mtu} "))
        && has.contains(&format!("inet {address} "))
}

fn all_stand() -> bool {
    stands("brupstream", "ens4", 1500, "10.0.0.1/24")
        && stands("brcluster", "ens5", 9000, "10.0.1.1/24")
        && stands("brstorage", "ens6", 1400, "10.0.2.1/24")
        && ip_says("route show default").starts_with("default via 10.0.0.254 dev brupstream")
}

#[test]
fn a_bare_machine_has_its_networks_after_the_first_steps_and_keeps_them_after_the_second_start() {
    alone(|| async {
        plug_in(&["ens4", "ens5", "ens6"]);
        // As a node of PVC 1.0.3 leaves it.
        std::fs::write("/proc/sys/net/ipv4/conf/all/accept_source_route", "1").unwrap();
        let (_world, settings, ports) = node(networks()).await;
        before_store(&settings, &ports, &CancellationToken::new()).await.unwrap();
        assert!(all_stand(), "{}", ip_says("addr"));
        for key in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
            assert_eq!(setting(key), "1", "{key}");
        }
        assert_eq!(setting("net/ipv6/conf/brupstream/accept_ra"), "2");
        assert_eq!(setting("net/ipv4/conf/brcluster/promote_secondaries"), "1");
        assert_eq!(setting("net/ipv4/conf/ens5/rp_filter"), "0");
        for scope in ["all", "default", "brupstream", "ens4"] {
            let key = format!("net/ipv4/conf/{scope}/accept_source_route");
            assert_eq!(setting(&key), "0", "{key}");
        }
        // A floating address is not ours to judge here, and outlives the own one.
        ip("addr add 10.0.0.250/24 dev brupstream");
        ip("addr del 10.0.0.1/24 dev brupstream");
        before_store(&settings, &ports, &CancellationToken::new()).await.unwrap();
        assert!(all_stand(), "{}", ip_says("addr"));
        assert!(ip_says("addr show dev brupstream").contains("10.0.0.250/24"));
    });
}

#[test]
fn a_machine_that_somebody_set_up_on_its_cards_is_taken_over() {
    alone(|| async {
        plug_in(&["ens4", "ens5", "ens6"]);
        ip("link set ens4 up");
        ip("addr add 10.0.0.1/24 dev ens4");
        ip("addr add 192.168.7.7/24 dev ens4");
        ip("route add default via 10.0.0.254");
        let (_world, settings, ports) = node(networks()).await;
        before_store(&settings, &ports, &CancellationToken::new()).await.unwrap();
        assert!(all_stand(), "{}\n{}", ip_says("addr"), ip_says("route"));
        let card = ip_says("addr show dev ens4");
        assert!(!card.contains("10.0.0.1/24") && card.contains("192.168.7.7/24"), "{card}");
    });
}

#[test]
fn networks_on_one_card_share_a_bridge() {
    alone(|| async {
        plug_in(&["ens4"]);
        let mut networks = networks();
        for network in [&mut networks.cluster, &mut networks.upstream, &mut networks.storage] {
            (network.device, network.mtu) = ("ens4".to_owned(), 1500);
        }
        let (_world, settings, ports) = node(networks).await;
        before_store(&settings, &ports, &CancellationToken::new()).await.unwrap();
        for address in ["10.0.0.1/24", "10.0.1.1/24", "10.0.2.1/24"] {
            assert!(stands("brcluster", "ens4", 1500, address), "{}", ip_says("addr"));
        }
        assert_eq!(ip_says("link show type bridge").matches("mtu").count(), 1);
        assert!(ip_says("route show default").contains("dev brcluster"));
    });
}

#[test]
fn what_is_removed_while_the_node_runs_is_made_again() {
    alone(|| async {
        plug_in(&["ens4", "ens5", "ens6"]);
        let (world, settings, ports) = node(networks()).await;
        before_store(&settings, &ports, &CancellationToken::new()).await.unwrap();
        let random = Arc::new(SeededRandom::new(3));
        let store = Store::open(world.tree.connect(), world.clock.clone(), random).await.unwrap();
        let shutdown = CancellationToken::new();
        let running = tokio::spawn(Node::new(settings, ports, store).run(shutdown.clone()));
        ip("link del brcluster");
        ip("addr del 10.0.2.1/24 dev brstorage");
        ip("link set ens4 nomaster");
        ip("route del default");
        assert!(!all_stand());
        for _ in 0..600 {
            if all_stand() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(all_stand(), "{}", ip_says("addr"));
        shutdown.cancel();
        running.await.unwrap().unwrap();
        assert!(all_stand(), "networks outlive the daemon");
    });
}
