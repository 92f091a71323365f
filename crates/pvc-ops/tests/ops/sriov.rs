//! SR-IOV functions are given to VMs, one each, and follow them.

use pvc_model::domain::NicKind;
use pvc_model::sriov::{PciTexts, PfRecord, VfRecord};
use pvc_model::vm::MigrationMethod;
use pvc_ops::sriov::set_vf;

use pvc_model::sriov::settings::{VfFields, VfRefusal};

use super::*;

fn with(vm: &str, uuid: Uuid, kind: &str, functions: &[&str]) -> String {
    let nic = |(number, function): (usize, &&str)| {
        let source = match kind {
            "direct" => format!("<source dev='{function}' mode='passthrough'/>"),
            _ => format!("<sriov_device>{function}</sriov_device>"),
        };
        format!(
            "<interface type='{kind}'><mac address='52:54:00:00:00:0{number}'/>{source}</interface>"
        )
    };
    let nics: String = functions.iter().enumerate().map(nic).collect();
    xml(vm, uuid).replace("<console", &format!("{nics}<console"))
}

/// Nodes with the functions `ens1v0` and `ens1v1` each, and one without.
async fn world() -> World {
    let world = World::with_nodes(&["hv1", "hv2", "hv3"]).await;
    world
        .write(|changes| {
            for (node, bus) in [("hv1", "3b"), ("hv2", "5e")] {
                let pf = PfRecord { name: "ens1".to_owned(), ..PfRecord::default() };
                changes.push(Change::PutPf(node.into(), pf));
                for index in 0..2 {
                    let vf = VfRecord {
                        name: format!("ens1v{index}"),
                        pf: "ens1".to_owned(),
                        mtu: "1500".to_owned(),
                        mac: format!("02:00:00:00:00:0{index}"),
                        phy_mac: format!("02:00:00:00:00:0{index}"),
                        pci: PciTexts {
                            domain: "0000".to_owned(),
                            bus: bus.to_owned(),
                            slot: "02".to_owned(),
                            function: index.to_string(),
                        },
                        ..VfRecord::default()
                    };
                    changes.push(Change::PutVf(node.into(), Box::new(vf)));
                }
            }
        })
        .await;
    world
}

impl World {
    fn user(&self, node: &str, vf: &str) -> Option<Uuid> {
        let view = self.store.view();
        let vf = view.node(node).unwrap().sriov.vf(vf).unwrap().clone();
        assert_eq!(vf.used, vf.used_by.is_some());
        assert_eq!(vf.used, vf.mac.starts_with("52:54"), "{vf:?}");
        vf.used_by
    }
}

fn on(xml: String, node: &str) -> Define {
    Define { node: Some(node.to_owned()), ..Define::new(xml) }
}

#[tokio::test]
async fn q81_a_function_is_claimed_with_the_definition_and_given_to_one_vm() {
    let world = world().await;
    let hostdev = with("web1", UUID, "hostdev", &["ens1v1"]);
    vm::define(&world.store, &on(hostdev, "hv1")).await.unwrap();
    assert_eq!(world.user("hv1", "ens1v1"), Some(UUID));
    assert_eq!(world.vm().migration_method, Some(MigrationMethod::Shutdown), "it cannot go live");
    let other = |functions: &[&str]| with("db1", OTHER, "direct", functions);
    for (functions, node, why) in [
        (&["ens1v1"][..], "hv1", "the SR-IOV function `ens1v1` of node `hv1` is used by VM `web1`"),
        (&["ens1v9"], "hv1", "node `hv1` has no SR-IOV function `ens1v9`"),
        (&["ens1v0"], "hv3", "node `hv3` has no SR-IOV function `ens1v0`"),
        (&["ens1v0", "ens1v0"], "hv1", "two interfaces take the SR-IOV function `ens1v0`"),
        (&["eth0"], "hv1", "an interface takes the device `eth0`, which is no SR-IOV function"),
    ] {
        let refusal = refused(vm::define(&world.store, &on(other(functions), node)).await);
        assert_eq!((refusal.to_string().as_str(), refusal.kind()), (why, Kind::Invalid));
        assert!(refusal.hint().is_some(), "{refusal}");
    }
    let chosen = vm::define(&world.store, &Define::new(other(&["ens1v1"]))).await.unwrap();
    assert_eq!(chosen.node.as_str(), "hv2", "the only one that has it to give");
    assert_eq!(world.user("hv2", "ens1v1"), Some(OTHER));
}

#[tokio::test]
async fn a_modification_takes_functions_and_gives_them_back_when_no_guest_has_them() {
    let world = world().await;
    vm::define(&world.store, &on(xml("web1", UUID), "hv1")).await.unwrap();
    let change = |functions: &[&str]| with("web1", UUID, "direct", functions);
    modify(&world, "web1", &change(&["ens1v0"]), false).await.unwrap();
    assert_eq!(world.user("hv1", "ens1v0"), Some(UUID));
    modify(&world, "web1", &change(&["ens1v1"]), false).await.unwrap();
    assert_eq!((world.user("hv1", "ens1v0"), world.user("hv1", "ens1v1")), (None, Some(UUID)));
    // With the daemon of this version on the node it is left to that.
    world.state(VmState::Start).await;
    world.running("hv1", &[UUID]).await;
    let note = DaemonNote { version: "0.2.0".to_owned(), ..DaemonNote::default() };
    world.store.report(vec![Report::Daemon("hv1".into(), note, None)]).await.unwrap();
    world.store.fresh().await.unwrap();
    modify(&world, "web1", &change(&[]), false).await.unwrap();
    assert_eq!(world.user("hv1", "ens1v1"), Some(UUID), "its guest has it until its end");
    let other = on(with("db1", OTHER, "direct", &["ens1v1"]), "hv1");
    let taken = refused(vm::define(&world.store, &other).await);
    assert!(taken.to_string().contains("used by VM `web1`"));
    // As one of PVC 1.0.3 has defined it.
    let odd = change(&["ens7v7"]);
    world.write(|changes| _ = changes.vm(UUID, VmChange::Xml(odd.clone()))).await;
    modify(&world, "web1", &odd.replace(">512<", ">1024<"), false).await.unwrap();
    assert_eq!(world.vm().memory_mib(), 1024);
}

#[tokio::test]
async fn a_move_takes_the_function_along_and_a_start_is_refused_only_what_another_vm_has() {
    let world = world().await;
    let hostdev = with("web1", UUID, "hostdev", &["ens1v1"]);
    vm::define(&world.store, &on(hostdev, "hv1")).await.unwrap();
    let go = |node: Option<&str>, live_only| Move {
        movement: Movement::Move,
        node: node.map(str::to_owned),
        force: false,
        live_only,
    };
    vm::move_vm(&world.store, "web1", &go(None, false)).await.unwrap();
    assert_eq!((world.user("hv1", "ens1v1"), world.user("hv2", "ens1v1")), (None, Some(UUID)));
    world.state(VmState::Start).await;
    world.running("hv2", &[UUID]).await;
    let live = refused(vm::move_vm(&world.store, "web1", &go(Some("hv1"), true)).await);
    assert!(matches!(live, MoveRefusal::Tied { .. }), "{live}");

    world.state(VmState::Stop).await;
    world.running("hv2", &[]).await;
    world.write(|changes| _ = changes.vm(UUID, VmChange::Node("hv3".into()))).await;
    let start = StateAsk::new(StateRequest::Start, false);
    vm::set_state(&world.store, "web1", start).await.unwrap();
    world.state(VmState::Stop).await;
    vm::define(&world.store, &on(with("db1", OTHER, "hostdev", &["ens1v1"]), "hv1")).await.unwrap();
    world.write(|changes| _ = changes.vm(UUID, VmChange::Node("hv1".into()))).await;
    let start = StateAsk::new(StateRequest::Start, false);
    let refusal = refused(vm::set_state(&world.store, "web1", start).await);
    assert_eq!(
        refusal.to_string(),
        "VM `web1` cannot be started: the SR-IOV function `ens1v1` of node `hv1` is used by VM \
         `db1`"
    );
}

#[tokio::test]
async fn a_card_on_a_function_is_added_with_the_address_that_it_has_on_the_node() {
    let world = world().await;
    vm::define(&world.store, &on(xml("web1", UUID), "hv2")).await.unwrap();
    let card = |function: &str, mode| {
        let card = NewCard {
            network: function.to_owned(),
            sriov: Some(mode),
            mac: None,
            model: "virtio".to_owned(),
        };
        HardwareAsk { change: HardwareChange::AddNic(card), restart: false, force: false }
    };
    let add = async |function: &str, mode| {
        let ask = card(function, mode);
        vm::change_hardware(&world.store, &world.random, None, "web1", &ask).await
    };
    let added = add("ens1v1", SriovMode::Hostdev).await.unwrap();
    assert!(added.devices[0].contains("bus='0x5e'"), "{:?}", added.devices);
    assert_eq!(world.user("hv2", "ens1v1"), Some(UUID));
    assert_eq!(world.vm().migration_method, Some(MigrationMethod::Shutdown));
    add("ens1v0", SriovMode::Macvtap).await.unwrap();
    let kinds: Vec<NicKind> =
        world.vm().domain.clone().unwrap().nics.iter().map(|nic| nic.kind.clone()).collect();
    let expected = [NicKind::Hostdev("ens1v1".to_owned()), NicKind::Direct("ens1v0".to_owned())];
    assert_eq!(kinds, expected);
    let again = refused(add("ens1v0", SriovMode::Macvtap).await);
    assert!(again.to_string().contains("ens1v0"), "{again}");
}

#[tokio::test]
async fn settings_are_changed_where_there_is_something_to_set() {
    let world = world().await;
    let trust = VfFields { trust: Some(true), ..VfFields::default() };
    set_vf(&world.store, "hv1", "ens1v0", &trust).await.unwrap();
    let view = world.store.view();
    assert_eq!(view.node("hv1").unwrap().sriov.vf("ens1v0").unwrap().config.trust, "True");
    let none = refused(set_vf(&world.store, "hv9", "ens1v0", &trust).await);
    assert_eq!(none, VfRefusal::NoNode { node: "hv9".to_owned() });
    let none = refused(set_vf(&world.store, "hv3", "ens1v0", &trust).await);
    assert_eq!(none.kind(), Kind::NotFound);
}
