//! Nodes are flushed and made ready again.

use super::*;

/// hv1 with `count` VMs that run, beside hv2.
async fn full(count: u128) -> (World, World, Vec<Uuid>, Vec<Daemon>) {
    let one = world().await;
    let two = one.another("hv2").await;
    let mut vms = Vec::new();
    for number in 1..=count {
        vms.push(one.define(number, VmState::Start).await);
    }
    let daemons = vec![one.running().await, two.running().await];
    one.until("all run", || vms.iter().all(|vm| runs(&one, *vm))).await;
    one.until("all are listed", || one.node().unwrap().running.len() == vms.len()).await;
    for vm in &vms {
        one.hypervisor.set_manner(*vm, copies_for(10));
    }
    (one, two, vms, daemons)
}

fn domain_state(world: &World) -> DomainState {
    world.node().unwrap().domain_state.clone()
}

#[tokio::test(start_paused = true)]
async fn a_flushed_node_has_given_its_vms_away_in_parallel_and_ready_brings_them_back() {
    let (one, two, vms, _daemons) = full(10).await;
    let begun = one.now();
    one.request_node(DomainState::Flush).await;
    let mut most = 0;
    one.until("it is flushed", || {
        let moving = vms.iter().filter(|vm| one.state(**vm) == "migrate").count();
        most = most.max(moving);
        domain_state(&one) == DomainState::Flushed
    })
    .await;
    let took = one.now() - begun;
    assert_eq!(most, 4, "as many at once as are configured");
    assert!(took < Duration::from_secs(45), "ten of 10 s each, four at once, took {took:?}");
    assert!(vms.iter().all(|vm| runs(&two, *vm) && !one.hypervisor.is_there(*vm)));
    assert!(vms.iter().all(|vm| one.vm(*vm).last_node == Some(NodeName::new("hv1"))));
    one.request_node(DomainState::Unflush).await;
    one.until("it is ready", || domain_state(&one) == DomainState::Ready).await;
    assert!(vms.iter().all(|vm| runs(&one, *vm) && one.vm(*vm).last_node.is_none()));
    assert!(vms.iter().all(
        |vm| one.hypervisor.count("start", *vm) == 1 && two.hypervisor.count("start", *vm) == 0
    ));
}

#[tokio::test(start_paused = true)]
async fn a_flush_is_reversed_at_any_moment() {
    for after in [0, 1, 5, 9, 11, 15, 21, 25] {
        let (one, two, vms, _daemons) = full(6).await;
        one.request_node(DomainState::Flush).await;
        one.pass(after).await;
        one.request_node(DomainState::Unflush).await;
        one.until("it is ready", || domain_state(&one) == DomainState::Ready).await;
        for vm in &vms {
            assert!(runs(&one, *vm) && !two.hypervisor.is_there(*vm), "after {after} s");
            assert_eq!(one.hypervisor.count("start", *vm), 1, "after {after} s");
            assert_eq!(
                one.hypervisor.count("destroy", *vm) + two.hypervisor.count("destroy", *vm),
                0
            );
        }
        one.request_node(DomainState::Flush).await;
        one.until("it is flushed", || domain_state(&one) == DomainState::Flushed).await;
        assert!(vms.iter().all(|vm| runs(&two, *vm)));
    }
}

#[tokio::test(start_paused = true)]
async fn what_keeps_a_node_from_being_flushed_is_named_and_tried_again() {
    let (one, two, vms, _daemons) = full(2).await;
    let mut changes = Changes::new();
    changes.vm(vms[0], VmChange::MigrationMethod(Some(MigrationMethod::Live)));
    one.change(changes).await;
    let fails =
        Manner { fails_migration: Some("host CPU differs".to_owned()), ..Manner::default() };
    one.hypervisor.set_manner(vms[0], fails);
    one.request_node(DomainState::Flush).await;
    let message = one.until_fault("FLUSH_BLOCKED_HV1").await;
    assert!(
        message.contains("VM vm1: it could not be moved to node `hv2`: host CPU differs"),
        "{message}"
    );
    one.pass(20).await;
    assert_eq!(one.hypervisor.count("migrate", vms[0]), 3, "it is not sent again at once");
    one.pass(100).await;
    assert_eq!(
        (domain_state(&one), runs(&one, vms[0]), runs(&two, vms[1])),
        (DomainState::Flush, true, true)
    );
    let tries = one.hypervisor.count("migrate", vms[0]);
    assert!((6..=12).contains(&tries), "{tries} attempts in two minutes");
    one.hypervisor.set_manner(vms[0], Manner::default());
    one.until("it is flushed", || domain_state(&one) == DomainState::Flushed).await;
    assert!(runs(&two, vms[0]));
}

#[tokio::test(start_paused = true)]
async fn a_paused_guest_is_named_as_what_holds_up_a_flush_and_does_not_hold_up_a_ready() {
    let (one, two, vms, _daemons) = full(2).await;
    one.hypervisor.set_run(vms[0], pvc_ports::GuestRun::Paused);
    one.request_node(DomainState::Flush).await;
    let message = one.until_fault("FLUSH_BLOCKED_HV1").await;
    assert!(
        message.contains("VM vm1: it could not be moved to node `hv2`: it is paused"),
        "{message}"
    );
    // In the middle of the next try, and while nothing is tried.
    for state in ["migrate", "start"] {
        one.until_state(vms[0], state).await;
        one.request_node(DomainState::Unflush).await;
        one.until("it is ready", || domain_state(&one) == DomainState::Ready).await;
        assert_eq!(
            (one.state(vms[0]), one.vm(vms[0]).node.clone()),
            ("start".to_owned(), one.settings.name.clone().into())
        );
        assert_eq!(
            one.hypervisor.run(vms[0]),
            Some(pvc_ports::GuestRun::Paused),
            "it is as it was"
        );
        assert!(one.node().unwrap().running.contains(&vms[0]), "it is still told of");
        one.request_node(DomainState::Flush).await;
    }
    one.until_state(vms[0], "start").await;
    one.hypervisor.set_run(vms[0], pvc_ports::GuestRun::Running);
    one.until("it is flushed", || domain_state(&one) == DomainState::Flushed).await;
    assert!(vms.iter().all(|vm| runs(&two, *vm)));
    assert_eq!(one.hypervisor.count("destroy", vms[0]), 0);
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_fits_nowhere_is_shut_down_and_returns() {
    let (one, two, vms, _daemons) = full(2).await;
    let mut changes = Changes::new();
    changes.vm(vms[0], VmChange::NodeLimit(vec![NodeName::new("hv1")]));
    one.change(changes).await;
    one.request_node(DomainState::Flush).await;
    one.until("it is flushed", || domain_state(&one) == DomainState::Flushed).await;
    assert!(!runs(&one, vms[0]) && one.vm(vms[0]).autostart && runs(&two, vms[1]));
    one.request_node(DomainState::Unflush).await;
    one.until("it is ready", || domain_state(&one) == DomainState::Ready).await;
    one.until("both run here", || vms.iter().all(|vm| runs(&one, *vm))).await;
    assert!(!one.vm(vms[0]).autostart);
}
