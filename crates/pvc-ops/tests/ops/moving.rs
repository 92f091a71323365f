//! VMs are moved, sent elsewhere on their way, and called back.

use pvc_model::cluster::Cluster;
use pvc_store::Expect;

use super::*;

#[tokio::test]
async fn on_one_node_there_is_nowhere_to_move_to() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let refusal = refused(vm::move_vm(&world.store, "web1", &moving(Movement::Move, None)).await);
    assert_eq!(refusal.to_string(), "no node can take the VM: `hv1` is where the VM is now");
    assert_eq!(
        refusal.hint().as_deref(),
        Some("a VM can be moved in a cluster of two nodes or more")
    );
    let refusal =
        refused(vm::move_vm(&world.store, "web1", &moving(Movement::Migrate, Some("hv1"))).await);
    assert!(matches!(refusal, MoveRefusal::AlreadyThere { .. }));
    let refusal =
        refused(vm::move_vm(&world.store, "web1", &moving(Movement::Unmigrate, None)).await);
    assert!(matches!(refusal, MoveRefusal::NotMigrated { .. }));
}

#[tokio::test]
async fn a_migrated_vm_remembers_where_it_came_from() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    world.define("web1", UUID).await;
    let home = world.vm().node.clone().unwrap();
    let moved = vm::move_vm(&world.store, "web1", &moving(Movement::Migrate, None)).await.unwrap();
    assert_ne!(moved.to, home);
    assert_eq!((moved.state, world.vm().state.clone()), (None, VmState::Stop));
    assert_eq!(world.vm().last_node.as_ref(), Some(&home));
    let again = refused(vm::move_vm(&world.store, "web1", &moving(Movement::Migrate, None)).await);
    assert!(matches!(again, MoveRefusal::AlreadyMigrated { .. }));
    vm::move_vm(&world.store, "web1", &moving(Movement::Unmigrate, None)).await.unwrap();
    assert_eq!((world.vm().node.clone(), world.vm().last_node.clone()), (Some(home), None));

    world.state(VmState::Start).await;
    let live = Move { live_only: true, ..moving(Movement::Move, None) };
    let moved = vm::move_vm(&world.store, "web1", &live).await.unwrap();
    assert_eq!(moved.state, Some(VmState::MigrateLive));
    assert_eq!(world.vm().state, VmState::MigrateLive);
}

#[tokio::test]
async fn a_vm_on_its_way_is_sent_elsewhere_or_called_back() {
    let world = World::with_nodes(&["hv1", "hv2", "hv3"]).await;
    world.define("web1", UUID).await;
    let ask = |ask: Move| {
        let store = world.store.clone();
        async move { vm::move_vm(&store, "web1", &ask).await }
    };
    world
        .write(|changes| {
            changes
                .vm(UUID, VmChange::Node("hv1".into()))
                .vm(UUID, VmChange::State(VmState::Start));
        })
        .await;
    world.running("hv1", &[UUID]).await;
    world.memory("hv3", 4096).await;
    let place = || {
        let vm = world.vm();
        let name =
            |node: &Option<NodeName>| node.as_ref().map_or_else(String::new, NodeName::to_string);
        (vm.state.to_string(), name(&vm.node), name(&vm.last_node))
    };
    let says =
        |state: &str, node: &str, last: &str| (state.to_owned(), node.to_owned(), last.to_owned());
    ask(moving(Movement::Migrate, Some("hv2"))).await.unwrap();
    assert_eq!(place(), says("migrate", "hv2", "hv1"));

    let by_legacy = refused(ask(moving(Movement::Move, Some("hv3"))).await);
    assert!(matches!(by_legacy, MoveRefusal::MovedByLegacyPeer { .. }), "{by_legacy}");
    for node in ["hv1", "hv2", "hv3"] {
        world.store.announce_daemon(&node.into(), "test").await.unwrap();
    }
    let again = refused(ask(moving(Movement::Move, None)).await);
    assert_eq!(again.to_string(), "VM `web1` is on its way to node `hv2` already");
    let home_is_known = refused(ask(moving(Movement::Migrate, Some("hv3"))).await);
    assert!(matches!(home_is_known, MoveRefusal::AlreadyMigrated { .. }));

    let onward = Move { force: true, ..moving(Movement::Migrate, Some("hv3")) };
    let plan = vm::plan_move(&world.store.view(), "web1", &onward).unwrap();
    assert_eq!((plan.from, plan.to), (Some("hv1".into()), Some("hv3".into())));
    let moved = ask(onward).await.unwrap();
    assert_eq!((moved.from, moved.to), (Some("hv1".into()), "hv3".into()));
    assert_eq!(place(), says("migrate", "hv3", "hv1"));

    // Its own node needs no room for it, but has to take VMs.
    world.memory("hv1", 1).await;
    world.domain_state("hv1", DomainState::Flush).await;
    let flushed = refused(ask(moving(Movement::Unmigrate, None)).await);
    assert!(matches!(flushed, MoveRefusal::Unfit { .. }), "{flushed}");
    world.domain_state("hv1", DomainState::Ready).await;
    ask(moving(Movement::Unmigrate, None)).await.unwrap();
    assert_eq!(place(), says("migrate", "hv1", ""));

    let live = Move { live_only: true, ..moving(Movement::Move, Some("hv2")) };
    ask(live).await.unwrap();
    assert_eq!(place(), says("migrate-live", "hv2", ""));
    ask(moving(Movement::Move, Some("hv1"))).await.unwrap();
    assert_eq!(place(), says("migrate-live", "hv1", ""), "it is not shut down for a later order");

    // A node that was only about to start it has no memory for it, and no right to it.
    ask(moving(Movement::Move, Some("hv2"))).await.unwrap();
    world.running("hv1", &[]).await;
    world.working_on("hv1", &[UUID]).await;
    let back = || async { refused(ask(moving(Movement::Move, Some("hv1"))).await).to_string() };
    let crowded = back().await;
    assert!(crowded.starts_with("node `hv1` has 1 MiB of memory free"), "{crowded}");
    world
        .write(|changes| {
            changes.vm(UUID, VmChange::NodeLimit(vec!["hv2".into()]));
        })
        .await;
    assert_eq!(back().await, "node `hv1` is not among the nodes the VM is limited to");
}

#[tokio::test]
async fn one_vm_tries_a_flushed_node_if_its_operator_insists() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    world.define("web1", UUID).await;
    world
        .write(|changes| {
            changes
                .vm(UUID, VmChange::Node("hv1".into()))
                .vm(UUID, VmChange::State(VmState::Start));
        })
        .await;
    let to = |movement, node| Move { force: true, ..moving(movement, node) };
    for movement in [Movement::Move, Movement::Migrate] {
        for (state, is_taken) in [(DomainState::Flush, false), (DomainState::Flushed, true)] {
            world.domain_state("hv2", state).await;
            let refused = vm::move_vm(&world.store, "web1", &moving(movement, Some("hv2"))).await;
            let ChangeError::Refused(refusal) = refused.unwrap_err() else {
                panic!("it is refused")
            };
            assert_eq!(
                refusal.hint().is_some_and(|hint| hint.contains("--force")),
                is_taken,
                "{refusal}"
            );
            // Of its own accord the cluster never chooses it.
            assert!(vm::move_vm(&world.store, "web1", &to(movement, None)).await.is_err());
            let moved = vm::move_vm(&world.store, "web1", &to(movement, Some("hv2"))).await;
            assert_eq!(moved.is_ok(), is_taken, "{moved:?}");
        }
        world
            .write(|changes| {
                changes
                    .vm(UUID, VmChange::Node("hv1".into()))
                    .vm(UUID, VmChange::State(VmState::Start));
                changes.vm(UUID, VmChange::LastNode(None));
            })
            .await;
    }
}

#[tokio::test]
async fn a_vm_that_runs_is_sent_to_no_node_that_cannot_take_it() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    world.define("web1", UUID).await;
    world
        .write(|changes| {
            changes
                .vm(UUID, VmChange::Node("hv1".into()))
                .vm(UUID, VmChange::State(VmState::Start));
        })
        .await;
    let to_hv2 = || async {
        let refusal =
            refused(vm::move_vm(&world.store, "web1", &moving(Movement::Move, Some("hv2"))).await);
        assert_eq!(refusal.kind(), Kind::Conflict);
        refusal.to_string()
    };
    world.domain_state("hv2", DomainState::Flushed).await;
    assert_eq!(to_hv2().await, "node `hv2` is in domain state `flushed`, not `ready`");
    world.domain_state("hv2", DomainState::Ready).await;
    world.memory("hv2", 1).await;
    let crowded = to_hv2().await;
    assert!(crowded.starts_with("node `hv2` has 1 MiB of memory free"), "{crowded}");
    world
        .write(|changes| {
            changes.vm(UUID, VmChange::NodeLimit(vec!["hv1".into()]));
        })
        .await;
    assert_eq!(to_hv2().await, "node `hv2` is not among the nodes the VM is limited to");
    assert_eq!(
        (world.vm().state.clone(), world.vm().node.clone()),
        (VmState::Start, Some("hv1".into()))
    );
}

/// Found by the simulation: it stayed off for ever, on a node that was ready already.
#[tokio::test]
async fn a_vm_that_waits_for_its_node_is_started_by_the_one_that_it_is_given_to() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    world.define("web1", UUID).await;
    world.domain_state("hv1", DomainState::Flushed).await;
    let waits = || {
        world.write(|changes| {
            changes.vm(UUID, VmChange::Node("hv1".into())).vm(UUID, VmChange::State(VmState::Stop));
            changes.vm(UUID, VmChange::Autostart(true));
        })
    };
    waits().await;
    let ask = moving(Movement::Move, Some("hv2"));
    let plan = vm::plan_move(&world.store.view(), "web1", &ask).unwrap();
    assert_eq!((plan.to, plan.how), (Some("hv2".into()), vm::How::Start));
    let moved = vm::move_vm(&world.store, "web1", &ask).await.unwrap();
    assert_eq!(moved.state, Some(VmState::Start));
    assert_eq!((world.vm().state.clone(), world.vm().autostart), (VmState::Start, false));

    // Where there is no room it is not left off without anybody knowing.
    waits().await;
    world.memory("hv2", 1).await;
    let crowded = refused(vm::move_vm(&world.store, "web1", &ask).await).to_string();
    assert!(crowded.starts_with("node `hv2` has 1 MiB of memory free"), "{crowded}");
    assert_eq!((world.vm().state.clone(), world.vm().autostart), (VmState::Stop, true));

    // A node that takes no VMs now is waited for instead.
    world.domain_state("hv2", DomainState::Flushed).await;
    let moved = vm::move_vm(&world.store, "web1", &ask).await.unwrap();
    assert_eq!((moved.to, moved.state), ("hv2".into(), None));
    assert_eq!((world.vm().state.clone(), world.vm().autostart), (VmState::Stop, true));

    // One that is ready and whose daemon is away will never be asked to be ready.
    world.domain_state("hv2", DomainState::Ready).await;
    let daemon = |state: DaemonState| {
        world.write(move |changes| {
            changes.node(&"hv2".into(), NodeChange::Daemon(state.clone()));
        })
    };
    daemon(DaemonState::Init).await;
    waits().await;
    let away = refused(vm::move_vm(&world.store, "web1", &ask).await).to_string();
    assert_eq!(away, "node `hv2` is in daemon state `init`, not `run`");
    daemon(DaemonState::Run).await;

    // An administrator's own mark on a VM that is off means the next time that its node becomes
    // ready.
    world.domain_state("hv1", DomainState::Ready).await;
    world.domain_state("hv2", DomainState::Ready).await;
    world.memory("hv2", 8192).await;
    waits().await;
    assert_eq!(vm::move_vm(&world.store, "web1", &ask).await.unwrap().state, None);
    assert_eq!((world.vm().state.clone(), world.vm().autostart), (VmState::Stop, true));
}

#[tokio::test]
async fn a_node_is_not_ready_on_a_view_without_the_vm_that_was_given_to_it_meanwhile() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    world.define("web1", UUID).await;
    world.write(|changes| _ = changes.vm(UUID, VmChange::Node("hv1".into()))).await;
    let (slow, connection) = world.slow_process().await;
    let store = world.store.clone();
    let given = moving(Movement::Move, Some("hv2"));
    connection.before_next_multi(async move {
        vm::move_vm(&store, "web1", &given).await.unwrap();
    });
    let mut seen = Vec::new();
    let decide = |cluster: &Cluster| {
        seen.push(cluster.vms[&UUID].node.clone());
        let mut changes = Changes::new();
        changes.expect(Expect::Placements);
        changes.node(&"hv2".into(), NodeChange::Domain(DomainState::Ready));
        Ok::<_, std::convert::Infallible>((changes, ()))
    };
    slow.change(decide).await.unwrap();
    assert_eq!(seen, [Some("hv1".into()), Some("hv2".into())], "it is decided again");
}
