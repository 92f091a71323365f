//! Guests that were held at the end of their way, and handed over.

use super::*;

/// The other node is cut off in the last call, or this node's hypervisor breaks down in it as well.
#[tokio::test(start_paused = true)]
async fn a_guest_whose_arrival_was_not_announced_goes_on_at_one_node_and_never_at_two() {
    let world = two().await;
    for manner in [
        Manner { loses_finish: true, ..copies_for(5) },
        Manner { loses_finish: true, ignores_shutdown: true, ..copies_for(5) },
        Manner { breaks_at_finish: true, ..copies_for(5) },
    ] {
        world.manner(manner);
        world.migrate("hv2").await;
        world.one.until("it is there", || world.two.hypervisor.is_there(world.vm)).await;
        world
            .one
            .until("it stays, and nothing of it is there", || {
                assert!(!runs(&world.two, world.vm), "nobody has handed it over");
                world.place().0 == "start" && world.runs_on() == (true, false)
            })
            .await;
        world.one.until("it goes on here", || runs(&world.one, world.vm)).await;
        world.until_place("start", "hv1", "").await;
        world.one.until("it says so", || world.phase() == Some(MovePhase::Failed)).await;
        world.nothing_is_left_behind().await;
        world.one.pass(120).await;
    }
    assert_eq!(world.one.hypervisor.count("shutdown", world.vm), 0);
    assert_eq!(world.one.hypervisor.count("start", world.vm), 1);
    assert_eq!(world.two.hypervisor.count("start", world.vm), 0);
    world.manner(copies_for(5));
    world.migrate("hv2").await;
    world.until_place("start", "hv2", "hv1").await;
    world.one.until("it runs there", || runs(&world.two, world.vm)).await;
}

/// Both break down: the guest here is held, and nobody can say whether it is wanted.
#[tokio::test(start_paused = true)]
async fn a_guest_that_a_broken_move_left_held_goes_on_when_its_record_says_that_it_stays() {
    let world = two().await;
    world.manner(Manner { breaks_at_finish: true, ..copies_for(5) });
    world.migrate("hv2").await;
    world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
    // As behind a firewall from then on.
    world.one.hypervisor.add_peer("hv2", &ScriptedHypervisor::new());
    world.until_place("start", "hv1", "").await;
    world.one.until("it goes on", || runs(&world.one, world.vm)).await;
    assert_eq!(world.one.hypervisor.count("resume", world.vm), 2, "once when it was started");
    world.one.until("nothing of it is there", || world.runs_on() == (true, false)).await;
    assert_eq!(world.two.hypervisor.count("resume", world.vm), 0);
}

#[tokio::test(start_paused = true)]
async fn a_guest_stands_still_until_it_was_handed_over_and_goes_on_once_its_node_has_said_so() {
    let world = two().await;
    world.manner(copies_for(5));
    world.migrate("hv2").await;
    world.one.until("it runs there", || runs(&world.two, world.vm)).await;
    assert!(world.one.hypervisor.last_migration(world.vm).unwrap().held);
    assert_eq!(world.two.hypervisor.count("resume", world.vm), 1);
    world.until_place("start", "hv2", "hv1").await;
    world.one.until("the move is done", || world.phase() == Some(MovePhase::Done)).await;
    // Whoever holds it from now on means it.
    world.two.hypervisor.set_run(world.vm, GuestRun::Paused);
    world.one.pass(30).await;
    assert_eq!(world.two.hypervisor.run(world.vm), Some(GuestRun::Paused));
}

/// Two moves later nobody but the note of the last one knows of what the first has left.
#[tokio::test(start_paused = true)]
async fn a_guest_that_an_earlier_move_has_left_held_never_goes_on_and_is_started_afresh() {
    let (world, note) = two_with_a_vm_that_was_handed_over().await;
    let left = MoveNote {
        to: NodeName::new("hv3"),
        phase: MovePhase::Failed,
        left_on: [NodeName::new("hv2")].into(),
        ..note
    };
    world.one.operator.report(vec![Report::Move(world.vm, left)]).await.unwrap();
    world.two.hypervisor.insert(world.vm, "vm1");
    world.two.hypervisor.set_run(world.vm, GuestRun::Paused);
    let old = world.two.hypervisor.instance(world.vm);
    world.order(VmState::Start, "hv2").await;
    world.one.until("it runs there", || runs(&world.two, world.vm)).await;
    assert_ne!(world.two.hypervisor.instance(world.vm), old, "it is another guest");
    let noted = || world.one.vm(world.vm).moving.as_ref().map(|note| note.left_on.len());
    world.one.until("nothing is left any more", || noted() == Some(0)).await;
    // Whoever holds it from now on means it.
    world.two.hypervisor.set_run(world.vm, GuestRun::Paused);
    world.one.pass(30).await;
    assert_eq!(world.two.hypervisor.run(world.vm), Some(GuestRun::Paused));
}

#[tokio::test(start_paused = true)]
async fn a_sender_that_comes_to_nothing_keeps_what_is_known_of_earlier_moves() {
    let world = two().await;
    let record = world.one.vm(world.vm);
    let earlier = MoveNote {
        from: NodeName::new("hv3"),
        to: NodeName::new("hv2"),
        incarnation: record.incarnation,
        request: record.state_version - 1,
        held: true,
        phase: MovePhase::Failed,
        attempt: 1,
        seconds: 1,
        total_bytes: 1,
        processed_bytes: 1,
        remaining_bytes: 0,
        why: "broken off".to_owned(),
        left_on: [NodeName::new("hv4")].into(),
    };
    // The other node lists nothing, and ends nothing.
    world.two.hypervisor.set_unreachable(true);
    world.one.operator.report(vec![Report::Move(world.vm, earlier)]).await.unwrap();
    world.migrate("hv2").await;
    world.until_place("start", "hv1", "").await;
    world.one.until("it says why", || world.phase() == Some(MovePhase::Failed)).await;
    let record = world.one.vm(world.vm);
    let note = record.moving.as_ref().expect("it is said");
    assert_eq!(note.from, NodeName::new("hv1"), "it is that of the new move");
    let is_left = |node| is_unclaimed(&record, &NodeName::new(node));
    assert_eq!(["hv1", "hv2", "hv4"].map(is_left), [false, true, true]);
    // A node that answers ends what is there, and says so.
    world.two.hypervisor.insert(world.vm, "vm1");
    world.two.hypervisor.set_run(world.vm, GuestRun::Paused);
    world.two.hypervisor.set_unreachable(false);
    world
        .one
        .until("nothing is left there", || {
            let record = world.one.vm(world.vm);
            !world.two.hypervisor.is_there(world.vm) && !is_unclaimed(&record, &"hv2".into())
        })
        .await;
    assert!(is_unclaimed(&world.one.vm(world.vm), &"hv4".into()));
    assert!(runs(&world.one, world.vm));
}

/// The sender's daemon dies between the last two steps: the guest may have gone on at the sender
/// for all that its receiver knows, and what it has itself may be older than the volumes.
#[tokio::test(start_paused = true)]
async fn a_guest_that_was_never_handed_over_is_started_afresh_when_nobody_has_it_any_more() {
    let one = world().await;
    let two = one.another("hv2").await;
    let vm = one.define(1, VmState::Start).await;
    let (daemon, other) = (one.running().await, two.running().await);
    one.until_runs(vm).await;
    let mut world = Two { one, two, vm, _daemons: vec![other] };
    world.manner(copies_for(20));
    world.migrate("hv2").await;
    world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
    daemon.kill().await;
    world.one.until("it has left", || world.runs_on() == (false, true)).await;
    world.one.pass(120).await;
    assert_eq!(
        world.two.hypervisor.run(vm),
        Some(GuestRun::Paused),
        "its sender may have it, for all that is known"
    );
    assert_eq!(world.place().0, "migrate");
    world._daemons.push(world.one.start().await);
    world.until_place("start", "hv2", "hv1").await;
    world.one.until("it runs there", || runs(&world.two, vm)).await;
    assert_eq!(
        (world.two.hypervisor.count("start", vm), world.two.hypervisor.count("resume", vm)),
        (1, 1)
    );
    world.nothing_is_left_behind().await;
}

/// hv1 and hv2 with the VM, which is off, and a note that hv1 has handed it over to hv2, which is
/// to be reported.
async fn two_with_a_vm_that_was_handed_over() -> (Two, MoveNote) {
    let two = two().await;
    two.order(VmState::Stop, "hv1").await;
    two.one.until("its guest is gone", || two.runs_on() == (false, false)).await;
    let record = two.one.vm(two.vm);
    let note = MoveNote {
        from: NodeName::new("hv1"),
        to: NodeName::new("hv2"),
        incarnation: record.incarnation,
        request: record.state_version - 1,
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
    (two, note)
}

#[tokio::test(start_paused = true)]
async fn a_note_that_was_written_since_a_node_looked_is_not_overwritten() {
    let (two, note) = two_with_a_vm_that_was_handed_over().await;
    let (to, request) = (NodeName::new("hv3"), note.request + 2);
    let newer = MoveNote { to, phase: MovePhase::Copying, request, ..note.clone() };
    let path = format!("/pvcrs/moves/{}", two.vm);
    let (operator, vm, written) = (two.one.operator.clone(), two.vm, newer.clone());
    two._daemons[1].connection.before_next_set(&path, async move {
        operator.report(vec![Report::Move(vm, written)]).await.unwrap();
    });
    two.one.operator.report(vec![Report::Move(vm, note)]).await.unwrap();
    two.set(VmChange::Node(NodeName::new("hv2"))).await;
    let now = || two.one.vm(two.vm).moving.clone();
    two.one.until("it is written", || now().as_ref() == Some(&newer)).await;
    two.one.pass(30).await;
    assert_eq!(now(), Some(newer));
}

#[tokio::test(start_paused = true)]
async fn a_node_says_of_a_vm_that_was_stopped_when_it_was_handed_over_that_nothing_of_it_is_left() {
    let (two, note) = two_with_a_vm_that_was_handed_over().await;
    two.one.operator.report(vec![Report::Move(two.vm, note)]).await.unwrap();
    two.set(VmChange::Node(NodeName::new("hv2"))).await;
    let phase = || two.one.vm(two.vm).moving.as_ref().map(|note| (note.phase, note.held));
    two.one.until("hv2 has said so", || phase() == Some((MovePhase::Done, false))).await;
}
