//! VMs are undefined and removed, with their volumes or without.

use pvc_model::vm::moving::{MoveNote, MovePhase};

use super::*;

#[tokio::test(start_paused = true)]
async fn a_running_vm_is_stopped_before_it_is_removed_with_its_volumes() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.storage.insert("vms/web1_sda");
    world.state(VmState::Start).await;
    world.running("hv1", &[UUID]).await;
    let node = world.play_node();
    let removed = vm::remove(&world.store, world.clock.as_ref(), Some(world.volumes()), "web1")
        .await
        .unwrap();
    node.abort();
    assert_eq!(removed.volumes, [id("vms/web1_sda")]);
    assert!(world.store.view().vms.is_empty());
    assert!(world.storage.volume(&id("vms/web1_sda")).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_start_under_way_is_waited_for_before_a_removal() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.state(VmState::Start).await;
    // Nobody lists it as running yet, and the node says nothing: its start may be under way.
    let refusal = refused(vm::remove(&world.store, world.clock.as_ref(), None, "web1").await);
    assert!(matches!(refusal, RemoveRefusal::DoesNotStop { .. }), "{refusal}");
    assert_eq!(world.vm().state, VmState::Stop);
    let _node = world.play_node();
    vm::remove(&world.store, world.clock.as_ref(), None, "web1").await.unwrap();
    assert!(world.store.view().vms.is_empty());
}

/// Found by a seed: a node stood still in the middle of a start, in maintenance, so that its record
/// said `run`; the VM was undefined meanwhile, and its guest ran when the node went on.
#[tokio::test(start_paused = true)]
async fn a_vm_that_a_node_is_at_starting_is_not_taken_for_gone() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    world.define("web1", UUID).await;
    world.working_on("hv2", &[UUID]).await;
    let refusal = refused(vm::remove(&world.store, world.clock.as_ref(), None, "web1").await);
    assert!(matches!(refusal, RemoveRefusal::DoesNotStop { .. }), "{refusal}");
    world.working_on("hv2", &[]).await;
    vm::remove(&world.store, world.clock.as_ref(), None, "web1").await.unwrap();
}

/// Found by a seed: the guest had arrived while its node's daemon was away, and nobody had counted
/// it yet.
#[tokio::test(start_paused = true)]
async fn a_vm_whose_nodes_daemon_begins_anew_is_not_taken_for_gone_before_that_has_looked() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    for away in [DaemonState::Init, DaemonState::Stop, DaemonState::Dead] {
        world.state(VmState::Start).await;
        world
            .write(|changes| _ = changes.node(&"hv1".into(), NodeChange::Daemon(away.clone())))
            .await;
        let refusal = refused(vm::remove(&world.store, world.clock.as_ref(), None, "web1").await);
        assert!(matches!(refusal, RemoveRefusal::NodeSilent { .. }), "{away}: {refusal}");
    }
    world.state(VmState::Start).await;
    world
        .write(|changes| _ = changes.node(&"hv1".into(), NodeChange::Daemon(DaemonState::Fenced)))
        .await;
    vm::remove(&world.store, world.clock.as_ref(), None, "web1").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn of_several_silent_nodes_that_list_a_vm_the_one_that_stays_silent_decides() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    world.define("web1", UUID).await;
    for node in ["hv1", "hv2"] {
        world.running(node, &[UUID]).await;
    }
    let daemon = |node: &'static str, state: DaemonState| {
        world
            .write(move |changes| _ = changes.node(&node.into(), NodeChange::Daemon(state.clone())))
    };
    daemon("hv1", DaemonState::Init).await;
    daemon("hv2", DaemonState::Dead).await;
    let refusal = refused(vm::remove(&world.store, world.clock.as_ref(), None, "web1").await);
    assert!(
        matches!(&refusal, RemoveRefusal::NodeSilent(silent) if silent.node == "hv2".into()),
        "{refusal}"
    );

    // Off by its record, and listed by a node whose daemon begins anew: its word is waited for.
    world.running("hv2", &[]).await;
    world.state(VmState::Disable).await;
    let early = vm::check_remove(&world.store.fresh().await.unwrap(), "web1", false);
    early.unwrap();
    let refusal = refused(vm::remove(&world.store, world.clock.as_ref(), None, "web1").await);
    assert!(
        matches!(&refusal, RemoveRefusal::NodeSilent(silent) if silent.node == "hv1".into()),
        "{refusal}"
    );
    world.running("hv1", &[]).await;
    daemon("hv1", DaemonState::Run).await;
    vm::remove(&world.store, world.clock.as_ref(), None, "web1").await.unwrap();
}

/// Found by a story: the record went while the guest may have run on.
#[tokio::test(start_paused = true)]
async fn a_vm_whose_node_falls_silent_while_it_stops_is_not_taken_for_gone() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let daemon = |state: DaemonState| {
        world.write(move |changes| {
            changes.node(&"hv1".into(), NodeChange::Daemon(state.clone()));
        })
    };
    let running = async || {
        daemon(DaemonState::Run).await;
        world.state(VmState::Start).await;
        world.running("hv1", &[UUID]).await;
    };
    let later = |state: DaemonState| {
        let (store, daemon) = (world.store.clone(), NodeChange::Daemon(state));
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(5)).await;
            let mut changes = Changes::new();
            changes.node(&"hv1".into(), daemon);
            store
                .change(|_| Ok::<_, std::convert::Infallible>((changes.clone(), ())))
                .await
                .unwrap();
        })
    };
    running().await;
    let silent = later(DaemonState::Dead);
    let refusal = refused(vm::remove(&world.store, world.clock.as_ref(), None, "web1").await);
    silent.await.unwrap();
    assert!(matches!(refusal, RemoveRefusal::NodeSilent { .. }), "{refusal}");

    // Neither is one that was told to stop while its node's daemon was away.
    running().await;
    world.state(VmState::Stop).await;
    daemon(DaemonState::Stop).await;
    refused(vm::set_state(&world.store, "web1", StateAsk::new(StateRequest::Disable, false)).await);

    running().await;
    let outcome = vm::set_state(&world.store, "web1", StateAsk::new(StateRequest::Disable, true))
        .await
        .unwrap();
    daemon(DaemonState::Dead).await;
    let time_limit = Duration::from_secs(30);
    let refusal =
        refused(vm::finish_disable(&world.store, world.clock.as_ref(), &outcome, time_limit).await);
    assert!(matches!(refusal, StateRefusal::NodeSilent { .. }), "{refusal}");
    assert_eq!(world.vm().state, VmState::Stop, "its node will pull the plug, if it still can");

    // What cannot happen soon is refused at once, and nothing is written.
    for (state, force) in [(VmState::Start, true), (VmState::Start, false), (VmState::Stop, true)] {
        running().await;
        world.state(state.clone()).await;
        daemon(DaemonState::Dead).await;
        let began = tokio::time::Instant::now();
        let refusal = refused(
            vm::set_state(&world.store, "web1", StateAsk::new(StateRequest::Disable, force)).await,
        );
        assert!(matches!(refusal, StateRefusal::NodeSilent { .. }), "{refusal}");
        let refusal = refused(vm::remove(&world.store, world.clock.as_ref(), None, "web1").await);
        assert!(matches!(refusal, RemoveRefusal::NodeSilent { .. }), "{refusal}");
        assert_eq!((began.elapsed(), world.vm().state.clone()), (Duration::ZERO, state));
    }

    running().await;
    let fenced = later(DaemonState::Fenced);
    vm::remove(&world.store, world.clock.as_ref(), None, "web1").await.unwrap();
    fenced.await.unwrap();
    assert!(world.store.view().vms.is_empty(), "what is proven dead is gone");
}

/// Found by the simulation: its new node lagged behind, and had its guest after the record was
/// gone.
#[tokio::test(start_paused = true)]
async fn a_vm_that_was_handed_over_is_not_removed_before_its_new_node_has_taken_notice() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    world.define("web1", UUID).await;
    world.write(|changes| _ = changes.vm(UUID, VmChange::Node("hv2".into()))).await;
    world.state(VmState::Start).await;
    let note = MoveNote {
        from: "hv1".into(),
        to: "hv2".into(),
        incarnation: world.vm().incarnation,
        request: world.vm().state_version - 1,
        held: true,
        phase: MovePhase::HandedOver,
        attempt: 1,
        seconds: 1,
        total_bytes: 1,
        processed_bytes: 1,
        remaining_bytes: 0,
        why: String::new(),
        left_on: [].into(),
    };
    let report = async |note: MoveNote| {
        world.store.report(vec![Report::Move(UUID, note)]).await.unwrap();
        world.store.fresh().await.unwrap();
    };
    report(note.clone()).await;
    let store = world.store.clone();
    let stamps = tokio::spawn(async move {
        for stamp in 100.. {
            store.stamp(&"hv2".into(), stamp).await.unwrap();
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    });
    let refusal = refused(vm::remove(&world.store, world.clock.as_ref(), None, "web1").await);
    assert!(matches!(refusal, RemoveRefusal::DoesNotStop { .. }), "{refusal}");
    assert_eq!(world.vm().state, VmState::Stop);
    report(note.closed_on(&note.to)).await;
    vm::remove(&world.store, world.clock.as_ref(), None, "web1").await.unwrap();
    stamps.abort();
}

#[tokio::test]
async fn undefining_leaves_the_volumes() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.storage.insert("vms/web1_sda");
    vm::remove(&world.store, world.clock.as_ref(), None, "web1").await.unwrap();
    assert!(world.store.view().vms.is_empty());
    assert!(world.storage.volume(&id("vms/web1_sda")).await.is_ok());
}

#[tokio::test]
async fn a_removal_whose_volumes_resist_leaves_the_vm() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.storage.set_failing(true);
    let refusal = refused(
        vm::remove(&world.store, world.clock.as_ref(), Some(world.volumes()), "web1").await,
    );
    assert!(
        matches!(&refusal, RemoveRefusal::Volume { removed, .. } if removed.is_empty()),
        "{refusal}"
    );
    assert_eq!(world.vm().state, VmState::Stop, "and can be started again");
    world.storage.set_failing(false);
    vm::remove(&world.store, world.clock.as_ref(), Some(world.volumes()), "web1").await.unwrap();
    assert!(world.store.view().vms.is_empty());
}

#[tokio::test]
async fn a_volume_that_another_vm_uses_is_not_removed_with_the_first() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let shared = Define::new(xml("db1", OTHER).replace("vms/db1_sda", "vms/web1_sda"));
    let defined = vm::define(&world.store, &shared).await.unwrap();
    assert!(defined.warnings[0].contains("is used by VM `web1`, too"), "{:?}", defined.warnings);
    let refusal = refused(
        vm::remove(&world.store, world.clock.as_ref(), Some(world.volumes()), "web1").await,
    );
    assert!(matches!(refusal, RemoveRefusal::Shared { .. }), "{refusal}");
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_another_vm_comes_to_use_while_the_first_stops_is_not_removed() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.storage.insert("vms/web1_sda");
    world.state(VmState::Start).await;
    world.running("hv1", &[UUID]).await;
    let removal = vm::remove(&world.store, world.clock.as_ref(), Some(world.volumes()), "web1");
    let meanwhile = async {
        let stopped = || world.vm().state == VmState::Stop;
        pvc_testkit::eventually("the stop is written", Duration::from_secs(30), stopped).await;
        let shared = Define::new(xml("db1", OTHER).replace("vms/db1_sda", "vms/web1_sda"));
        vm::define(&world.store, &shared).await.unwrap();
        drop(world.play_node());
    };
    let (outcome, ()) = tokio::join!(removal, meanwhile);
    let refusal = refused(outcome);
    assert!(matches!(refusal, RemoveRefusal::Shared { .. }), "{refusal}");
    assert!(world.storage.volume(&id("vms/web1_sda")).await.is_ok());
    assert_eq!(world.vm().state, VmState::Stop);
}

#[tokio::test]
async fn nobody_takes_a_volume_that_goes_with_its_vm() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.define("db1", OTHER).await;
    world.state(VmState::Delete).await;
    let taking = xml("db1", OTHER).replace("vms/db1_sda", "vms/web1_sda");
    let refusal = refused(modify(&world, "db1", &taking, false).await);
    assert!(matches!(&refusal, DefineRefusal::VolumeGoes { vm, .. } if vm == "web1"), "{refusal}");
    vm::remove(&world.store, world.clock.as_ref(), None, "db1").await.unwrap();
    let refusal = refused(vm::define(&world.store, &Define::new(taking.clone())).await);
    assert!(matches!(refusal, DefineRefusal::VolumeGoes { .. }), "{refusal}");
    vm::remove(&world.store, world.clock.as_ref(), None, "web1").await.unwrap();
    vm::define(&world.store, &Define::new(taking)).await.unwrap();
}

#[tokio::test]
async fn of_a_removal_and_a_taking_at_the_same_moment_one_is_refused() {
    for by_modifying in [false, true] {
        let world = World::with_nodes(&["hv1"]).await;
        world.define("web1", UUID).await;
        world.storage.insert("vms/web1_sda");
        let taking = xml("db1", OTHER).replace("vms/db1_sda", "vms/web1_sda");
        if by_modifying {
            world.define("db1", OTHER).await;
        }
        let take = async {
            match by_modifying {
                true => modify(&world, "db1", &taking, false).await.is_ok(),
                false => vm::define(&world.store, &Define::new(taking.clone())).await.is_ok(),
            }
        };
        let remove = vm::remove(&world.store, world.clock.as_ref(), Some(world.volumes()), "web1");
        let (removed, taken) = tokio::join!(remove, take);
        assert!(removed.is_ok() != taken, "{removed:?} and {taken}");
        assert_eq!(world.storage.volume(&id("vms/web1_sda")).await.is_ok(), taken);
    }
}

/// Makes a legacy peer write `change` while a VM is removed whose volumes take 10 s each.
async fn meanwhile(world: &World, change: impl Fn(&mut Changes) + Send + Sync) -> RemoveRefusal {
    world.storage.set_removal_takes(Duration::from_secs(10));
    let remove = vm::remove(&world.store, world.clock.as_ref(), Some(world.volumes()), "web1");
    let write = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        world.write(change).await;
    };
    refused(tokio::join!(remove, write).0)
}

async fn exists(world: &World, volume: &str) -> bool {
    world.storage.volume(&id(volume)).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_a_legacy_peer_starts_while_it_is_removed_keeps_what_is_left() {
    let world = World::with_two_volumes().await;
    let refusal = meanwhile(&world, |changes| {
        changes.vm(UUID, VmChange::State(VmState::Start));
    })
    .await;
    assert_eq!(refusal.to_string(), "VM `web1` was started by somebody else meanwhile");
    let hint = refusal.hint().unwrap();
    assert_eq!(hint, "1 of its volumes are gone already: stop it and remove it again");
    assert_eq!(world.vm().state, VmState::Start, "that order stands");
    assert!(!exists(&world, "vms/web1_sda").await && exists(&world, "vms/web1_sdb").await);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_a_legacy_peer_gives_to_another_vm_while_its_own_is_removed_stays() {
    let world = World::with_two_volumes().await;
    let taker = pvc_store::NewVm {
        uuid: OTHER,
        name: "db1".into(),
        state: VmState::Stop,
        node: Some("hv1".into()),
        xml: xml("db1", OTHER).replace("vms/db1_sda", "vms/web1_sdb"),
        profile: None,
        volumes: vec![id("vms/web1_sdb")],
        autostart: false,
        migration_method: None,
        max_downtime_ms: 300,
        selector: None,
        node_limit: Vec::new(),
        tags: Vec::new(),
    };
    let refusal = meanwhile(&world, |changes| {
        changes.push(Change::DefineVm(Box::new(taker.clone())));
    })
    .await;
    assert_eq!(refusal.to_string(), "volume `vms/web1_sdb` of VM `web1` is used by VM `db1`, too");
    assert_eq!(world.vm().state, VmState::Stop);
    assert!(exists(&world, "vms/web1_sdb").await);
}

#[tokio::test]
async fn a_vm_that_a_legacy_peer_starts_at_the_end_of_its_removal_keeps_its_record() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let (slow, connection) = world.slow_process().await;
    let (again, faster) = (connection.clone(), world.store.clone());
    connection.before_next_multi(async move {
        // The first multi locks it out, the second drops the record.
        again.before_next_multi(async move {
            let decide = |_: &pvc_model::cluster::Cluster| {
                let mut changes = Changes::new();
                changes.vm(UUID, VmChange::State(VmState::Start));
                Ok::<_, std::convert::Infallible>((changes, ()))
            };
            faster.change(decide).await.unwrap();
        });
    });
    let refusal = refused(vm::remove(&slow, world.clock.as_ref(), None, "web1").await);
    assert_eq!(refusal.to_string(), "VM `web1` was started by somebody else meanwhile");
    assert_eq!(refusal.hint().as_deref(), Some("stop it and remove it again"));
    assert_eq!(world.vm().state, VmState::Start);
}

#[tokio::test]
async fn the_record_of_a_volume_that_is_gone_already_goes_with_its_vm() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world
        .write(|changes| {
            changes.push(Change::PutVolume { id: id("vms/web1_sda"), stats: "{}".into() });
        })
        .await;
    let removed = vm::remove(&world.store, world.clock.as_ref(), Some(world.volumes()), "web1")
        .await
        .unwrap();
    assert_eq!(removed.volumes, []);
    assert!(!world.store.view().volumes.contains_key(&id("vms/web1_sda")));
}
