//! Networks, their leases and their rules, as operators ask for them.

use std::convert::Infallible;

use pvc_model::cluster::Cluster;
use pvc_model::guest_network::acl::NewAcl;
use pvc_model::guest_network::lease::NewReservation;
use pvc_model::guest_network::refusal::NetworkRefusal;
use pvc_model::guest_network::request::{Neighbour, NetworkFields, NewNetwork, NewVni};
use pvc_model::guest_network::unconfirmed::UnconfirmedChange;
use pvc_model::network::{Direction, NetworkRecord};
use pvc_ops::network::{self, AclRefusal, ConfirmWithin, Named, Surroundings};
use pvc_ports::Network;
use pvc_testkit::{MemoryFirewall, MemoryNetwork};

use super::*;

const NOTHING_AROUND: Surroundings<'_> =
    Surroundings { configured: &[], machine: None, lacks_bridge_device: false };

fn given(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn web() -> NewNetwork {
    let fields = NetworkFields {
        ip4_network: given("10.20.1.0/24"),
        ip4_gateway: given("10.20.1.1"),
        ..NetworkFields::default()
    };
    NewNetwork { vni: NewVni::Free, description: "web".to_owned(), managed: true, fields }
}

async fn with_web() -> World {
    let world = World::with_nodes(&["hv1"]).await;
    let made = network::add_network(&world.store, NOTHING_AROUND, &web()).await.unwrap();
    assert_eq!(made, Named { vni: "1000".into(), description: "web".into() });
    world
}

fn record(world: &World) -> Arc<NetworkRecord> {
    world.store.view().network("web").unwrap().clone()
}

fn acl(order: Option<u32>, description: &str) -> NewAcl {
    let rule = "tcp dport 22 accept".to_owned();
    NewAcl { direction: Direction::In, order, description: description.into(), rule }
}

#[tokio::test]
async fn a_network_is_made_changed_and_removed() {
    let world = with_web().await;
    let off = NetworkFields { masquerade: Some(true), mtu: given("1400"), ..Default::default() };
    network::modify_network(&world.store, NOTHING_AROUND, "web", &off, None).await.unwrap();
    assert_eq!(record(&world).mtu, "1400");
    assert!(world.store.view().network_options["1000"].masquerade);
    let gone = network::remove_network(&world.store, "1000", false).await.unwrap();
    assert_eq!((gone.network.description.as_str(), gone.users), ("web", None));
    assert!(
        world.store.view().networks.is_empty() && world.store.view().network_options.is_empty()
    );
    let why = network::remove_network(&world.store, "1000", false).await.unwrap_err();
    assert!(matches!(why, ChangeError::Refused(NetworkRefusal::NoNetwork { .. })));
}

#[tokio::test]
async fn a_network_that_this_machine_or_the_nodes_are_in_is_not_given_to_vms() {
    let world = with_web().await;
    let machine = MemoryNetwork::new().with_device("eno1");
    machine.add_address("eno1", "192.168.1.7/24".parse().unwrap()).await.unwrap();
    machine.create_bridge("vmbr1000").await.unwrap();
    machine.add_address("vmbr1000", "10.20.1.1/24".parse().unwrap()).await.unwrap();
    let configured = [Neighbour {
        network: "10.0.1.0/24".parse().unwrap(),
        name: "the cluster network".to_owned(),
    }];
    let around = Surroundings {
        configured: &configured,
        machine: Some(&machine),
        lacks_bridge_device: false,
    };
    let lan = |net: &str| NetworkFields { ip4_network: given(net), ..NetworkFields::default() };
    for (net, words) in [
        ("192.168.0.0/16", "192.168.1.0/24, which this machine is in by `eno1`"),
        ("10.0.1.0/26", "10.0.1.0/24, the cluster network"),
    ] {
        let fields = lan(net);
        let new = NewNetwork { description: "b".into(), fields: fields.clone(), ..web() };
        let made = network::add_network(&world.store, around, &new).await.unwrap_err();
        let changed = network::modify_network(&world.store, around, "web", &fields, None).await;
        for why in [made, changed.unwrap_err()] {
            let ChangeError::Refused(why) = why else { panic!("{why:?}") };
            assert_eq!(why.to_string(), format!("`ip4_network` {net} overlaps {words}"));
        }
    }
    let wider = lan("10.20.0.0/16");
    network::modify_network(&world.store, around, "web", &wider, None).await.unwrap();
    machine.set_failing(true);
    let why = network::modify_network(&world.store, around, "web", &wider, None).await.unwrap_err();
    let ChangeError::Refused(why) = why else { panic!("{why:?}") };
    assert_eq!(why.kind(), Kind::Unavailable, "{why}");
    let mtu = NetworkFields { mtu: given("1400"), ..NetworkFields::default() };
    network::modify_network(&world.store, around, "web", &mtu, None).await.unwrap();
}

#[tokio::test]
async fn of_two_who_ask_for_a_free_number_at_once_both_get_one() {
    let world = World::with_nodes(&["hv1"]).await;
    let (other, _) = world.slow_process().await;
    let second = NewNetwork { description: "db".into(), fields: NetworkFields::default(), ..web() };
    let (first, second) = (web(), second);
    let both = tokio::join!(
        network::add_network(&world.store, NOTHING_AROUND, &first),
        network::add_network(&other, NOTHING_AROUND, &second)
    );
    let mut numbers = [both.0.unwrap().vni, both.1.unwrap().vni];
    numbers.sort();
    assert_eq!(numbers, ["1000", "1001"]);
}

#[tokio::test]
async fn q61_a_network_that_vms_are_plugged_into_stays_unless_it_is_forced() {
    let world = with_web().await;
    for (number, name, uuid) in [(1, "web1", UUID), (2, "web2", OTHER)] {
        let nic = format!(
            "<interface type='bridge'><mac address='52:54:00:00:00:0{number}'/><source \
             bridge='vmbr1000'/><model type='virtio'/></interface><console"
        );
        let xml = xml(name, uuid).replace("<console", &nic);
        vm::define(&world.store, &Define::new(xml)).await.unwrap();
    }
    world.running("hv1", &[UUID]).await;
    let why = network::remove_network(&world.store, "web", false).await.unwrap_err();
    let ChangeError::Refused(why) = why else { panic!("{why:?}") };
    assert_eq!(
        why.to_string(),
        "network 1000 `web` is used by VM `web1`, which is not off; VM `web2`"
    );
    assert!(Refusal::hint(&why).unwrap().contains("--force"));
    let gone = network::remove_network(&world.store, "web", true).await.unwrap();
    assert!(gone.users.unwrap().contains("VM `web1`"));
    // The number stays theirs.
    let made = network::add_network(&world.store, NOTHING_AROUND, &web()).await.unwrap();
    assert_eq!(made.vni, "1001");
}

#[tokio::test]
async fn the_network_that_was_called_so_is_meant_and_no_other_that_comes_to_be_called_so() {
    for removes in [true, false] {
        let world = Arc::new(with_web().await);
        let (slow, connection) = world.slow_process().await;
        let faster = world.clone();
        connection.before_next_multi(async move {
            let old = NetworkFields { description: given("old"), ..NetworkFields::default() };
            network::modify_network(&faster.store, NOTHING_AROUND, "web", &old, None)
                .await
                .unwrap();
            let fields = NetworkFields { domain: given("new.local"), ..NetworkFields::default() };
            let new = NewNetwork { fields, ..web() };
            network::add_network(&faster.store, NOTHING_AROUND, &new).await.unwrap();
        });
        if removes {
            network::remove_network(&slow, "web", false).await.unwrap();
        } else {
            let mtu = NetworkFields { mtu: given("1400"), ..NetworkFields::default() };
            network::modify_network(&slow, NOTHING_AROUND, "web", &mtu, None).await.unwrap();
        }
        let view = world.store.fresh().await.unwrap();
        assert_eq!(view.network("web").unwrap().mtu, "", "the new one is as it was");
        let old = view.network("old").map(|record| record.mtu.clone());
        assert_eq!(old, (!removes).then(|| "1400".to_owned()));
    }
}

/// XML of VM `web1` with a card in network 1000.
fn plugged_in() -> String {
    let nic = "<interface type='bridge'><mac address='52:54:00:00:00:01'/><source \
               bridge='vmbr1000'/><model type='virtio'/></interface><console";
    xml("web1", UUID).replace("<console", nic)
}

/// Plugs VM `web1` into network `web`, by a card or by its definition.
async fn plug_in(world: &World, store: &Store, by_card: bool) -> Result<(), String> {
    if by_card {
        let network = "web".to_owned();
        let card = NewCard { network, sriov: None, mac: None, model: "virtio".to_owned() };
        let change = HardwareChange::AddNic(card);
        let ask = HardwareAsk { change, restart: false, force: false };
        let changed = vm::change_hardware(store, &world.random, None, "web1", &ask).await;
        changed.map(drop).map_err(|why| why.to_string())
    } else {
        let changed = vm::modify(store, "web1", &Modify::new(plugged_in())).await;
        changed.map(drop).map_err(|why| why.to_string())
    }
}

#[tokio::test]
async fn a_network_stays_that_a_vm_is_plugged_into_at_the_moment_of_its_removal() {
    for by_card in [true, false] {
        let world = Arc::new(with_web().await);
        world.define("web1", UUID).await;
        let (slow, connection) = world.slow_process().await;
        let faster = world.clone();
        connection.before_next_multi(async move {
            plug_in(&faster, &faster.store, by_card).await.unwrap();
        });
        let why = network::remove_network(&slow, "web", false).await.unwrap_err();
        assert!(
            matches!(why, ChangeError::Refused(NetworkRefusal::InUse { .. })),
            "by card: {by_card}: {why:?}"
        );
    }
}

#[tokio::test]
async fn a_card_is_not_plugged_into_a_network_that_is_removed_at_that_moment() {
    let world = Arc::new(with_web().await);
    world.define("web1", UUID).await;
    let (slow, connection) = world.slow_process().await;
    let faster = world.clone();
    connection.before_next_multi(async move {
        network::remove_network(&faster.store, "web", false).await.unwrap();
    });
    let why = plug_in(&world, &slow, true).await.unwrap_err();
    assert!(why.contains("no network `web` in the cluster"), "{why}");
    assert!(world.vm().domain.clone().unwrap().nics.is_empty());
}

#[tokio::test]
async fn an_address_is_reserved_and_released() {
    let world = with_web().await;
    let new = NewReservation {
        mac: "52-54-00-AA-BB-01".into(),
        address: "10.20.1.10".into(),
        hostname: "web1".into(),
    };
    network::reserve(&world.store, "web", &new).await.unwrap();
    assert_eq!(record(&world).leases[0].mac, "52:54:00:aa:bb:01");
    let why = network::reserve(&world.store, "web", &new).await.unwrap_err();
    assert!(matches!(why, ChangeError::Refused(NetworkRefusal::Reserved { .. })));
    network::release(&world.store, "web", "web1").await.unwrap();
    assert!(record(&world).leases.is_empty());
}

#[tokio::test]
async fn of_two_who_reserve_one_address_at_once_one_is_refused() {
    let world = with_web().await;
    let (other, _) = world.slow_process().await;
    let new = |mac: &str| NewReservation {
        mac: mac.into(),
        address: "10.20.1.10".into(),
        hostname: String::new(),
    };
    let (one, two) = (new("52:54:00:00:00:01"), new("52:54:00:00:00:02"));
    let both = tokio::join!(
        network::reserve(&world.store, "web", &one),
        network::reserve(&other, "web", &two)
    );
    assert_eq!([both.0.is_ok(), both.1.is_ok()].iter().filter(|done| **done).count(), 1);
}

#[tokio::test]
async fn an_address_that_becomes_the_gateways_is_not_reserved_at_the_same_moment() {
    let reservation = NewReservation {
        mac: "52:54:00:00:00:01".into(),
        address: "10.20.1.10".into(),
        hostname: String::new(),
    };
    let gateway = || NetworkFields { ip4_gateway: given("10.20.1.10"), ..NetworkFields::default() };
    let world = Arc::new(with_web().await);
    let (slow, connection) = world.slow_process().await;
    let (faster, new) = (world.clone(), reservation.clone());
    connection.before_next_multi(async move {
        network::reserve(&faster.store, "web", &new).await.unwrap();
    });
    let why =
        network::modify_network(&slow, NOTHING_AROUND, "web", &gateway(), None).await.unwrap_err();
    assert!(matches!(why, ChangeError::Refused(NetworkRefusal::AddressTaken { .. })), "{why:?}");
    let world = Arc::new(with_web().await);
    let (slow, connection) = world.slow_process().await;
    let faster = world.clone();
    connection.before_next_multi(async move {
        network::modify_network(&faster.store, NOTHING_AROUND, "web", &gateway(), None)
            .await
            .unwrap();
    });
    let why = network::reserve(&slow, "web", &reservation).await.unwrap_err();
    assert!(matches!(why, ChangeError::Refused(NetworkRefusal::AddressTaken { .. })), "{why:?}");
}

#[tokio::test]
async fn h10_a_rule_that_nft_does_not_take_is_not_recorded() {
    let world = with_web().await;
    let firewall = MemoryFirewall::new();
    firewall.set_refusing(|_, rules| rules.is_some_and(|rules| rules.contains("dport ssh2")));
    let bad = NewAcl { rule: "tcp dport ssh2 accept".into(), ..acl(None, "bad") };
    let why = network::add_acl(&world.store, Some(&firewall), "web", &bad, None).await.unwrap_err();
    let ChangeError::Refused(why @ AclRefusal::NotTaken { .. }) = why else { panic!("{why:?}") };
    assert_eq!(why.to_string(), "nft does not take the rule: these are refused");
    assert_eq!(why.kind(), Kind::Invalid);
    assert!(record(&world).acls.is_empty());
    let jumps = NewAcl { rule: "jump elsewhere".into(), ..acl(None, "bad") };
    let why =
        network::add_acl(&world.store, Some(&firewall), "web", &jumps, None).await.unwrap_err();
    assert!(matches!(why, ChangeError::Refused(AclRefusal::Network(_))), "nft is not asked");
    let why = network::add_acl(&world.store, None, "web", &acl(None, "x"), None).await.unwrap_err();
    assert!(matches!(why, ChangeError::Refused(AclRefusal::NoFirewall)));
    assert_eq!(firewall.changes(), 0, "it is only asked");
}

#[tokio::test]
async fn an_nft_that_takes_no_rule_at_all_says_nothing_of_this_one() {
    let world = with_web().await;
    let firewall = MemoryFirewall::new();
    firewall.set_refusing(|_, _| true);
    let new = acl(None, "ssh");
    let why = network::add_acl(&world.store, Some(&firewall), "web", &new, None).await.unwrap_err();
    let ChangeError::Refused(why @ AclRefusal::Unknown(_)) = why else { panic!("{why:?}") };
    assert_eq!(why.kind(), Kind::Unavailable);
    assert!(record(&world).acls.is_empty());
}

#[tokio::test]
async fn q10_rules_are_put_where_they_are_to_stand_and_gaps_are_closed() {
    let world = with_web().await;
    let firewall = MemoryFirewall::new();
    for (order, name) in [(None, "a"), (None, "b"), (Some(0), "first"), (Some(1), "second")] {
        let new = acl(order, name);
        network::add_acl(&world.store, Some(&firewall), "web", &new, None).await.unwrap();
    }
    let names = |world: &World| -> Vec<(u32, String)> {
        record(world).acls.iter().map(|acl| (acl.order, acl.description.clone())).collect()
    };
    let expected = [(0, "first"), (1, "second"), (2, "a"), (3, "b")];
    assert_eq!(names(&world), expected.map(|(order, name)| (order, name.to_owned())));
    network::remove_acl(&world.store, "web", "second", None).await.unwrap();
    let expected = [(0, "first"), (1, "a"), (2, "b")];
    assert_eq!(names(&world), expected.map(|(order, name)| (order, name.to_owned())));
}

#[tokio::test]
async fn a_dry_run_is_refused_as_the_change_would_be_and_changes_nothing() {
    let world = with_web().await;
    let (dry, firewall) = (world.store.dry(), MemoryFirewall::new());
    let made = network::add_network(
        &dry,
        NOTHING_AROUND,
        &NewNetwork { description: "db".into(), ..web() },
    )
    .await;
    assert!(matches!(made, Err(ChangeError::Refused(NetworkRefusal::Overlap { .. }))));
    network::add_acl(&dry, Some(&firewall), "web", &acl(None, "a"), None).await.unwrap();
    network::remove_network(&dry, "web", false).await.unwrap();
    assert!(record(&world).acls.is_empty());
}

const WITHIN: Option<ConfirmWithin> = Some(ConfirmWithin { seconds: 60, now: 1_700_000_000 });

impl World {
    fn unconfirmed(&self) -> Option<Arc<UnconfirmedChange>> {
        self.store.view().unconfirmed.get("1000").cloned()
    }

    /// Does what the nodes do when the time of a change is over.
    async fn take_back(&self) {
        let change = self.unconfirmed().unwrap();
        let decide = |cluster: &Cluster| {
            Ok::<_, Infallible>((network::take_back(cluster, "1000", &change), ()))
        };
        self.store.change(decide).await.unwrap();
    }
}

#[tokio::test]
async fn a_change_that_nobody_confirms_is_taken_back() {
    let world = with_web().await;
    let before = record(&world);
    let fields = NetworkFields {
        description: given("www"),
        ip4_gateway: given("10.20.1.254"),
        masquerade: Some(true),
        ..NetworkFields::default()
    };
    network::modify_network(&world.store, NOTHING_AROUND, "web", &fields, WITHIN).await.unwrap();
    assert_eq!(world.store.view().networks["1000"].ip4_gateway, "10.20.1.254");
    assert_eq!(world.unconfirmed().unwrap().seconds, 60);
    world.take_back().await;
    assert_eq!(record(&world), before);
    assert!(world.store.view().network_options.is_empty());
    assert_eq!(world.unconfirmed(), None);
}

#[tokio::test]
async fn a_change_that_is_confirmed_stays() {
    let world = with_web().await;
    let mtu = NetworkFields { mtu: given("1400"), ..NetworkFields::default() };
    network::modify_network(&world.store, NOTHING_AROUND, "web", &mtu, WITHIN).await.unwrap();
    let named = network::confirm_change(&world.store, "web").await.unwrap();
    assert_eq!(named.vni, "1000");
    assert_eq!((record(&world).mtu.as_str(), world.unconfirmed()), ("1400", None));
    let why = network::confirm_change(&world.store, "web").await.unwrap_err();
    assert!(why.to_string().contains("no change of network 1000"), "{why}");
}

#[tokio::test]
async fn nothing_else_of_a_network_changes_while_a_change_waits_and_its_removal_ends_that() {
    let (world, firewall) = (with_web().await, MemoryFirewall::new());
    let mtu = NetworkFields { mtu: given("1400"), ..NetworkFields::default() };
    let modify = || network::modify_network(&world.store, NOTHING_AROUND, "web", &mtu, WITHIN);
    modify().await.unwrap();
    let waits = |why: String| assert!(why.contains("waits to be confirmed"), "{why}");
    waits(modify().await.unwrap_err().to_string());
    let ssh = acl(None, "ssh");
    let add = network::add_acl(&world.store, Some(&firewall), "web", &ssh, None);
    waits(add.await.unwrap_err().to_string());
    waits(network::remove_acl(&world.store, "web", "ssh", None).await.unwrap_err().to_string());
    network::remove_network(&world.store, "web", false).await.unwrap();
    assert_eq!(world.unconfirmed(), None);
}

/// Found by a seed: a rule that was to stay was taken for made, although it was somebody else's
/// that waited to be confirmed, and it went with that.
#[tokio::test]
async fn what_somebody_else_only_tries_is_not_taken_for_a_change_whose_answer_is_lost() {
    for is_confirmed in [false, true] {
        let (world, firewall) = (with_web().await, MemoryFirewall::new());
        let ((other, _), (slow, connection)) =
            (world.slow_process().await, world.slow_process().await);
        connection.lose_next_multi();
        connection.before_next_sync(async move {
            let (nft, ssh) = (MemoryFirewall::new(), acl(None, "ssh"));
            network::add_acl(&other, Some(&nft), "web", &ssh, WITHIN).await.unwrap();
            if is_confirmed {
                network::confirm_change(&other, "web").await.unwrap();
            }
        });
        let ssh = acl(None, "ssh");
        let added = network::add_acl(&slow, Some(&firewall), "web", &ssh, None).await;
        match is_confirmed {
            true => assert_eq!(added.unwrap().description, "ssh"),
            false => {
                let why = added.unwrap_err().to_string();
                assert!(why.contains("others have written there since"), "{why}");
            }
        }
    }
}

#[tokio::test]
async fn rules_that_nobody_confirms_are_as_before() {
    let (world, firewall) = (with_web().await, MemoryFirewall::new());
    let add = async |new: &NewAcl, within| {
        network::add_acl(&world.store, Some(&firewall), "web", new, within).await.unwrap();
    };
    for name in ["a", "b", "c"] {
        add(&acl(None, name), None).await;
    }
    let before = record(&world).acls.clone();
    add(&acl(Some(1), "new"), WITHIN).await;
    assert_eq!(record(&world).acls.len(), 4);
    world.take_back().await;
    assert_eq!(record(&world).acls, before);
    network::remove_acl(&world.store, "web", "b", WITHIN).await.unwrap();
    assert_eq!(record(&world).acls.len(), 2);
    world.take_back().await;
    assert_eq!(record(&world).acls, before);
}

/// A rule of a legacy peer without an order: put back, it would have an order and no text.
#[tokio::test]
async fn a_rule_that_is_recorded_by_half_is_removed_for_good_or_not_at_all() {
    let world = with_web().await;
    let tree = world.tree.connect();
    for (key, text) in [("", ""), ("/rule", "accept")] {
        let path = format!("/networks/1000/firewall_rules/in/half{key}");
        tree.create(&path, text.into(), CreateMode::Persistent).await.unwrap();
    }
    world.store.fresh().await.unwrap();
    let tried = network::remove_acl(&world.store, "web", "half", WITHIN).await.unwrap_err();
    assert!(tried.to_string().contains("only a part of rule `half`"), "{tried}");
    assert_eq!((record(&world).acls.len(), world.unconfirmed()), (1, None));
    network::remove_acl(&world.store, "web", "half", None).await.unwrap();
    assert!(record(&world).acls.is_empty());
}

#[tokio::test]
async fn what_a_network_gets_back_if_nobody_confirms_is_taken_by_no_other() {
    let world = with_web().await;
    let fields = NetworkFields {
        description: given("www"),
        ip4_network: given("10.20.2.0/24"),
        ip4_gateway: given("10.20.2.1"),
        ..NetworkFields::default()
    };
    network::modify_network(&world.store, NOTHING_AROUND, "web", &fields, WITHIN).await.unwrap();
    let add = async |new: &NewNetwork| {
        let made = network::add_network(&world.store, NOTHING_AROUND, new).await;
        made.map(drop).map_err(|why| why.to_string())
    };
    let described = NewNetwork { fields: NetworkFields::default(), ..web() };
    assert!(add(&described).await.unwrap_err().contains("already"));
    let placed = NewNetwork { description: "db".into(), ..web() };
    assert!(add(&placed).await.unwrap_err().contains("overlaps"));
    network::confirm_change(&world.store, "www").await.unwrap();
    add(&placed).await.unwrap();
}
