//! Fences beside legacy peers.

use super::*;

/// Adds `legacy`, a node of PVC 1.0.3 that falls silent as soon as it has been seen.
async fn add_legacy(world: &World) {
    let name = NodeName::new("legacy");
    let ipmi = Ipmi { hostname: "bmc-legacy".to_owned(), ..Ipmi::default() };
    let mut changes = legacy_node(&name, ipmi);
    changes.node(&name, NodeChange::Domain(DomainState::Ready));
    world.change(changes).await;
}

#[tokio::test(start_paused = true)]
async fn a_legacy_primary_keeps_its_role_until_its_power_is_off_and_its_vms_run_elsewhere() {
    for operator_knows in [false, true] {
        let first = world().await;
        add_legacy(&first).await;
        let legacy = NodeName::new("legacy");
        let mut changes = Changes::new();
        changes.node(&legacy, NodeChange::Coordinator(CoordinatorState::Primary));
        changes.config(ConfigChange::Primary(Some(legacy.clone())));
        first.change(changes).await;
        let vm = first.define(1, VmState::Stop).await;
        first.storage.lock("vms/vm1_sda", "10.0.1.9");
        first.operator.report(vec![Report::Running(legacy.clone(), vec![vm])]).await.unwrap();
        first.power.set_manner("bmc-legacy", BmcManner { dead: true, ..BmcManner::default() });
        let three = Three::start_in(first, |_| {}).await;
        three.write(vm, [VmChange::Node(legacy.clone()), VmChange::State(VmState::Start)]).await;
        let eyes = three.eyes();
        let fault = eyes.until_fault("FENCE_FAILED_LEGACY").await;
        assert!(
            fault.ends_with("once you know that it is off, `pvc node primary NODE`"),
            "{fault}"
        );
        eyes.pass(300).await;
        assert_eq!(eyes.view().config.primary, Some(legacy.clone()));
        assert_eq!(three.runs_on(vm), Vec::<usize>::new());
        if operator_knows {
            let mut changes = Changes::new();
            changes.config(ConfigChange::Primary(Some(NodeName::new("hv2"))));
            eyes.change(changes).await;
        } else {
            eyes.power.set_manner("bmc-legacy", BmcManner::default());
            eyes.until("its VM runs elsewhere", || three.runs_on(vm).len() == 1).await;
        }
        let serves = |node: &Arc<NodeRecord>| {
            node.name.as_str() != "legacy" && node.coordinator_state == CoordinatorState::Primary
        };
        eyes.until("one of ours is primary", || eyes.view().nodes.values().any(serves)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn while_a_legacy_peer_has_the_fence_lock_nobody_else_fences() {
    let mut three = Three::start(|_| {}).await;
    let vm = three.run_vm(1, 3).await;
    let lock = three.eyes().operator.fence_lock(Duration::from_secs(1)).await.unwrap();
    three.lose(3, true).await;
    three.eyes().pass(120).await;
    assert_eq!(three.state("hv3").0, DaemonState::Run);
    lock.release().await;
    three.eyes().until("its VM runs elsewhere", || three.runs_on(vm).len() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_a_legacy_peer_left_dead_is_fenced_and_has_a_record_of_its_own() {
    let mut three = Three::start(|_| {}).await;
    let vm = three.run_vm(1, 3).await;
    let name = NodeName::new("hv3");
    let before = FenceNote {
        stamp: Some(-1),
        proven_at: Some(1),
        failed_attempts: 7,
        recovered: vec!["old on hv2".to_owned()],
        ..FenceNote::default()
    };
    three.eyes().operator.report(vec![Report::Fence(name.clone(), before)]).await.unwrap();
    three.lose(3, true).await;
    let mut changes = Changes::new();
    changes.node(&name, NodeChange::Daemon(DaemonState::Dead));
    three.eyes().change(changes).await;
    let eyes = three.eyes();
    eyes.until("its VM runs elsewhere", || three.runs_on(vm).len() == 1).await;
    eyes.until("the fence is over", || {
        three.state("hv3") == (DaemonState::Fenced, DomainState::Flushed)
    })
    .await;
    let note = eyes.view().nodes["hv3"].fence.clone().unwrap();
    assert_eq!((note.failed_attempts, note.recovered.len()), (0, 1), "{note:?}");
    assert!(note.recovered[0].starts_with("vm1 on "), "{note:?}");
}

#[tokio::test(start_paused = true)]
async fn a_recovery_does_not_wait_for_ever_for_a_legacy_node_that_died_as_it_started() {
    let mut three = Three::start(|_| {}).await;
    let vm = three.run_vm(1, 3).await;
    three.write(vm, [VmChange::NodeLimit(vec![NodeName::new("hv2"), NodeName::new("hv3")])]).await;
    three.lose(2, true).await;
    let mut starts = Changes::new();
    // A legacy daemon does not stamp while it starts, so nobody takes it for dead.
    starts.node(&NodeName::new("hv2"), NodeChange::Version("1.0.3".to_owned()));
    starts.node(&NodeName::new("hv2"), NodeChange::Daemon(DaemonState::Init));
    three.eyes().change(starts).await;
    three.lose(3, true).await;
    let eyes = three.eyes();
    let fault = eyes.until_fault("NODE_FENCED_HV3").await;
    assert!(fault.contains("`hv2` is in daemon state `init`, not `run`"), "{fault}");
    eyes.until_state(vm, "stop").await;
}
