//! The addresses of networks of VMs that go with the primary role, and VMs that wait for a bridge.

use std::collections::BTreeSet;
use std::net::IpAddr;

use pvc_model::cluster::Cluster;
use pvc_model::guest_network::plan::Underlay;
use pvc_model::link::IpNet;
use pvc_model::network::NetworkRecord;
use pvc_model::primary::handover::Duty;
use pvc_model::vm::VmState;
use pvc_node::{DhcpSettings, FloatingAddress, GuestNetworkSettings};
use pvc_store::{Change, Changes};
use pvc_testkit::{Manner, NetworkChange};

use crate::world::{World, world};

const GATEWAY: &str = "10.20.1.1";
const METADATA: &str = "169.254.169.254";

/// A machine alone that has networks of VMs.
async fn with_networks() -> World {
    let mut world = world().await;
    let address = format!("{METADATA}/32").parse().unwrap();
    let metadata = FloatingAddress { duty: Duty::Metadata, link: "lo".to_owned(), address };
    world.settings.floating.push(metadata);
    world.settings.guest_networks = Some(GuestNetworkSettings {
        underlay: Underlay { tunnels: None, bridge_device: None, bridge_mtu: None },
        nodes: BTreeSet::new(),
        tunnels: None,
        dhcp: DhcpSettings {
            directory: "/run/pvc/dnsmasq".into(),
            executable: "/usr/bin/pvcd".to_owned(),
            socket: "/run/pvc/dnsmasq/leases.socket".to_owned(),
        },
        dns: None,
        evpn: None,
    });
    world.network.insert_device("lo");
    world
}

async fn add_network(world: &World) {
    let record = NetworkRecord {
        vni: "1001".to_owned(),
        description: "net1".to_owned(),
        nettype: "managed".to_owned(),
        ip4_network: "10.20.1.0/24".to_owned(),
        ip4_gateway: GATEWAY.to_owned(),
        ..NetworkRecord::default()
    };
    let change = Change::PutNetwork(Box::new(record));
    apply(world, change).await;
}

async fn apply(world: &World, change: Change) {
    let decide = |_: &Cluster| {
        let mut changes = Changes::new();
        changes.push(change.clone());
        Ok::<_, std::convert::Infallible>((changes, ()))
    };
    world.operator.change(decide).await.unwrap();
}

fn holder(world: &World, address: &str) -> Option<String> {
    world.network.holder(address.parse::<IpAddr>().unwrap())
}

async fn until_held(world: &World, gateway: Option<&str>, metadata: Option<&str>) {
    let is_so = || {
        holder(world, GATEWAY).as_deref() == gateway
            && holder(world, METADATA).as_deref() == metadata
    };
    world.until("the addresses are where they should be", is_so).await;
}

#[tokio::test(start_paused = true)]
async fn the_gateway_and_the_address_of_the_metadata_come_and_go_with_the_network() {
    let world = with_networks().await;
    let daemon = world.running().await;
    world.pass(30).await;
    assert_eq!(holder(&world, METADATA), None, "it is the cloud provider's, if there is one");
    add_network(&world).await;
    until_held(&world, Some("vmbr1001"), Some("lo")).await;
    let removal = Change::RemoveNetwork("1001".to_owned());
    apply(&world, removal).await;
    until_held(&world, None, None).await;
    daemon.stop().await;
}

/// The prefix length of a gateway is that of its network: with another network it is another one.
#[tokio::test(start_paused = true)]
async fn gateways_of_both_families_follow_their_record_and_are_put_back() {
    const GATEWAY6: &str = "2001:db8:1::1";
    let world = with_networks().await;
    let _daemon = world.running().await;
    let has = |addresses: [&str; 2]| {
        let links = world.network.links_as_they_are();
        let wanted: BTreeSet<IpNet> = addresses.map(|address| address.parse().unwrap()).into();
        links.get("vmbr1001").is_some_and(|bridge| bridge.addresses == wanted)
    };
    for (ip4_network, ip4_gateway, expected) in [
        ("10.20.1.0/24", GATEWAY, "10.20.1.1/24"),
        ("10.20.0.0/16", GATEWAY, "10.20.1.1/16"),
        ("10.20.0.0/16", "10.20.1.2", "10.20.1.2/16"),
    ] {
        let record = NetworkRecord {
            vni: "1001".to_owned(),
            description: "net1".to_owned(),
            nettype: "managed".to_owned(),
            ip4_network: ip4_network.to_owned(),
            ip4_gateway: ip4_gateway.to_owned(),
            ip6_network: "2001:db8:1::/64".to_owned(),
            ip6_gateway: GATEWAY6.to_owned(),
            ..NetworkRecord::default()
        };
        apply(&world, Change::PutNetwork(Box::new(record))).await;
        let what = format!("the bridge has {expected} and the gateway of IPv6, and nothing else");
        world.until(&what, || has([expected, "2001:db8:1::1/64"])).await;
    }
    let announcements = |gateway: &str| {
        let address: IpAddr = gateway.parse().unwrap();
        let wanted = NetworkChange::Announced { link: "vmbr1001".to_owned(), address };
        world.network.changes().iter().filter(|change| **change == wanted).count()
    };
    world.until("the new one is announced", || announcements("10.20.1.2") > 0).await;

    let before = announcements(GATEWAY6);
    let removed = "2001:db8:1::1/64".parse().unwrap();
    pvc_ports::Network::remove_address(&*world.network, "vmbr1001", removed).await.unwrap();
    let is_back = || has(["10.20.1.2/16", "2001:db8:1::1/64"]);
    world.until("what somebody removed is put back", is_back).await;
    world.until("it is announced", || announcements(GATEWAY6) > before).await;
}

/// Number of networks of a cluster that has many.
const MANY: u32 = 100;

#[tokio::test(start_paused = true)]
async fn the_gateways_of_many_networks_are_brought_some_at_a_time() {
    let world = with_networks().await;
    let record = |number: u32| NetworkRecord {
        vni: (2000 + number).to_string(),
        description: format!("many{number}"),
        nettype: "managed".to_owned(),
        ip4_network: format!("10.30.{number}.0/24"),
        ip4_gateway: format!("10.30.{number}.1"),
        ..NetworkRecord::default()
    };
    for number in 0..MANY {
        apply(&world, Change::PutNetwork(Box::new(record(number)))).await;
        world.network.insert_bridge(&format!("vmbr{}", 2000 + number));
    }
    world.network.count_announcements();
    let _daemon = world.running().await;
    let has_all = || (0..MANY).all(|number| holder(&world, &format!("10.30.{number}.1")).is_some());
    world.until("every gateway is here", has_all).await;
    let most = world.network.most_announced_at_once();
    assert!((2..=32).contains(&most), "{most} at once");
}

#[tokio::test(start_paused = true)]
async fn guests_of_a_machine_alone_keep_their_gateway_while_its_daemon_is_started_again() {
    let world = with_networks().await;
    add_network(&world).await;
    let first = world.running().await;
    until_held(&world, Some("vmbr1001"), Some("lo")).await;
    first.stop().await;
    assert!(holder(&world, GATEWAY).is_some() && holder(&world, METADATA).is_some());
    let _second = world.running().await;
    world.pass(120).await;
    until_held(&world, Some("vmbr1001"), Some("lo")).await;
    let is_lost = |change: &NetworkChange| {
        matches!(change, NetworkChange::AddressRemoved { address, .. }
            if address.addr() == GATEWAY.parse::<IpAddr>().unwrap())
    };
    assert!(!world.network.changes().iter().any(is_lost));
}

#[tokio::test(start_paused = true)]
async fn a_vm_waits_for_the_bridge_of_its_network_and_fails_for_a_bridge_of_nobody() {
    for (bridge, comes) in [("vmbr1001", true), ("vmbr1002", false)] {
        let world = with_networks().await;
        add_network(&world).await;
        let uuid = world.define(1, VmState::Start).await;
        let why = format!("Cannot get interface MTU on '{bridge}': No such device");
        let refuses = Manner { refuses_start: Some(why), ..Manner::default() };
        world.hypervisor.set_manner(uuid, refuses);
        let _daemon = world.running().await;
        if comes {
            world.until("it was tried", || world.hypervisor.count("start", uuid) > 1).await;
            assert_eq!(world.state(uuid), "start");
            world.hypervisor.set_manner(uuid, Manner::default());
            world.until_runs(uuid).await;
        } else {
            world.until_state(uuid, "fail").await;
        }
    }
}
