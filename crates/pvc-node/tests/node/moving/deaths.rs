//! Senders, receivers and sessions that end in the middle.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_sender_that_is_restarted_sends_again() {
    let one = world().await;
    let two = one.another("hv2").await;
    let vm = one.define(1, VmState::Start).await;
    let (daemon, other) = (one.running().await, two.running().await);
    one.until_runs(vm).await;
    let mut world = Two { one, two, vm, _daemons: vec![other] };
    world.manner(Manner { never_converges: true, ..Manner::default() });
    world.migrate("hv2").await;
    world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
    daemon.stop().await;
    assert_eq!(world.runs_on(), (true, false), "the guest stays where it is");
    assert_eq!(world.place().0, "migrate");
    world.manner(copies_for(1));
    world._daemons.push(world.one.start().await);
    world.until_place("start", "hv2", "hv1").await;
    assert_eq!(world.runs_on(), (false, true));
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_is_restarted_takes_what_has_arrived_meanwhile() {
    let one = world().await;
    let two = one.another("hv2").await;
    let vm = one.define(1, VmState::Start).await;
    let (other, daemon) = (one.running().await, two.running().await);
    one.until_runs(vm).await;
    let mut world = Two { one, two, vm, _daemons: vec![other] };
    world.manner(copies_for(20));
    world.migrate("hv2").await;
    world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
    daemon.kill().await;
    world.one.until("it has left", || world.runs_on() == (false, true)).await;
    world._daemons.push(world.two.start().await);
    world.until_place("start", "hv2", "hv1").await;
    world.one.until("it goes on", || runs(&world.two, vm)).await;
    assert_eq!(world.two.hypervisor.count("start", vm), 0);
}

#[tokio::test(start_paused = true)]
async fn a_vm_whose_source_dies_in_the_middle_waits_for_the_proof_of_that_and_runs_once() {
    let one = world().await;
    let two = one.another("hv2").await;
    let vm = one.define(1, VmState::Start).await;
    let (daemon, other) = (one.running().await, two.running().await);
    one.until_runs(vm).await;
    let world = Two { one, two, vm, _daemons: vec![other] };
    world.manner(Manner { never_converges: true, ..Manner::default() });
    world.migrate("hv2").await;
    world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
    assert_eq!(world.two.hypervisor.run(vm), Some(GuestRun::Arriving), "it is arriving");
    daemon.kill().await;
    world.one.hypervisor.kill(vm);
    world.one.pass(120).await;
    assert_eq!((world.place().0.as_str(), world.runs_on()), ("migrate", (false, false)));
    assert_eq!(
        world.two.hypervisor.count("start", vm),
        0,
        "its source may run it still, for all that is known"
    );
    // As a fencer writes it.
    let mut changes = Changes::new();
    changes.node(&NodeName::new("hv1"), NodeChange::Daemon(DaemonState::Fenced));
    changes.vm(vm, VmChange::State(VmState::Start));
    world.one.change(changes).await;
    world.one.until("it runs there", || runs(&world.two, vm)).await;
    assert_eq!(world.two.hypervisor.count("start", vm), 1);
}

/// Found by a story, in which both nodes lost their power: the lock was left, and the VM failed
/// because of it.
#[tokio::test(start_paused = true)]
async fn a_node_that_comes_back_frees_what_it_left_locked_of_vms_that_are_others_by_now() {
    let mut one = world().await;
    one.settings.storage_address = Some("10.0.1.1".to_owned());
    let mut two = one.another("hv2").await;
    two.settings.storage_address = Some("10.0.1.2".to_owned());
    let vm = one.define(1, VmState::Start).await;
    let (daemon, other) = (one.running().await, two.running().await);
    one.until_runs(vm).await;
    one.storage.lock("vms/vm1_sda", "10.0.1.1");
    let world = Two { one, two, vm, _daemons: vec![] };
    world.manner(Manner { never_converges: true, ..Manner::default() });
    world.migrate("hv2").await;
    world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
    daemon.kill().await;
    other.kill().await;
    world.one.hypervisor.kill(vm);
    world.two.hypervisor.kill(vm);
    let _daemons = [world.one.running().await, world.two.running().await];
    world.until_place("start", "hv2", "hv1").await;
    world.one.until("it runs there", || runs(&world.two, vm)).await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_not_the_senders_is_left_alone() {
    let world = two().await;
    world.manner(Manner { never_converges: true, ..Manner::default() });
    world.migrate("hv2").await;
    world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
    world.one.storage.lock("vms/vm1_sda", "10.0.1.3");
    world.one.hypervisor.kill(world.vm);
    world.until_place("fail", "hv2", "hv1").await;
    assert_eq!(world.runs_on(), (false, false));
}

#[tokio::test(start_paused = true)]
async fn a_lost_session_gives_the_move_up_and_a_new_one_begins() {
    let one = world().await;
    let two = one.another("hv2").await;
    let vm = one.define(1, VmState::Start).await;
    let daemon = one.running().await;
    let other = two.running().await;
    one.until_runs(vm).await;
    let world = Two { one, two, vm, _daemons: vec![other] };
    world.manner(Manner { never_converges: true, ..Manner::default() });
    world.migrate("hv2").await;
    world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
    world.manner(copies_for(1));
    daemon.session.expire().await;
    world.until_place("start", "hv2", "hv1").await;
    assert_eq!(world.runs_on(), (false, true));
    assert_eq!(world.one.hypervisor.count("migrate", vm), 2);
}
