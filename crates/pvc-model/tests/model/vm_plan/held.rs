//! Guests that a move has left held.

use super::*;

#[test]
fn a_held_guest_is_reported_and_can_be_stopped() {
    let mut world = World::new(&["hv1"]);
    let uuid = world.put(vm(1, VmState::Start, Some("hv1")));
    world.run(uuid);
    world.guests.get_mut(&uuid).unwrap().condition = Condition::Paused;
    assert_eq!(findings(&world.after(0)), [Finding::Held]);
    world.request(uuid, VmState::Stop);
    assert_eq!(steps(&world.after(0)), [Step::Destroy(WhyDestroy::Stopped)]);
}

/// VM 1 in `state` for node `on`, held here, whose sender says `phase` of the order with this
/// number.
fn held(state: VmState, on: &str, condition: Condition, phase: MovePhase, request: i32) -> World {
    let mut world = World::new(&["hv1", "hv2", "hv3"]);
    let uuid = world.put(vm(1, state, Some(on)));
    world.run(uuid);
    world.guests.get_mut(&uuid).unwrap().condition = condition;
    let note = MoveNote { request, phase, ..move_note("hv2", "hv1") };
    world.edit(uuid, |record| {
        record.moving = Some(MoveNote { incarnation: record.incarnation, ..note })
    });
    world
}

#[test]
fn a_guest_that_a_move_has_left_held_goes_on_only_where_it_belongs() {
    use Condition::{Arriving, Leaving, Paused, Running};
    use MovePhase::{Copying, Done, HandedOver};
    use VmState::{Migrate, Start};
    for (state, on, condition, phase, request, expected) in [
        // Its daemon was restarted after it had said that the VM is its own; the record says so
        // since write 1.
        (Start, "hv1", Paused, HandedOver, 0, vec![Step::Resume]),
        (Start, "hv1", Paused, Done, 0, vec![]),
        // Its sender was fenced, and the VM given to this node.
        (Start, "hv1", Paused, Copying, 0, vec![Step::Destroy(WhyDestroy::NeverHandedOver)]),
        // It was given to this node before this node had heard that it stayed where it was.
        (
            Start,
            "hv1",
            Paused,
            MovePhase::Failed,
            0,
            vec![Step::Destroy(WhyDestroy::NeverHandedOver)],
        ),
        // Before it had.
        (Migrate, "hv1", Paused, HandedOver, 1, vec![Step::Receive]),
        (Migrate, "hv1", Paused, Copying, 1, vec![Step::Receive]),
        (Migrate, "hv1", Arriving, Copying, 1, vec![Step::Receive]),
        // Other orders came between.
        (Migrate, "hv1", Paused, HandedOver, 0, vec![Step::Write(Start)]),
        // Found by the simulation: its sender had the same order again, and died before it obeyed
        // it.
        (Migrate, "hv1", Paused, Copying, 0, vec![Step::Receive]),
        (Migrate, "hv1", Paused, MovePhase::Failed, 0, vec![Step::Receive]),
        // It was sent on before it was taken over.
        (Migrate, "hv3", Paused, HandedOver, 1, vec![Step::Resume]),
        (Migrate, "hv3", Paused, HandedOver, 0, vec![Step::Resume]),
        (Migrate, "hv3", Paused, Copying, 1, vec![]),
        // It stayed, or was given back: what came here is worth nothing.
        (Start, "hv2", Paused, Copying, 0, vec![Step::Destroy(WhyDestroy::AssignedElsewhere)]),
        (Start, "hv2", Paused, HandedOver, 0, vec![Step::Destroy(WhyDestroy::AssignedElsewhere)]),
        // Its hypervisor broke down in the last moment of a move away from here, which was then
        // given up.
        (Start, "hv1", Leaving, Done, 0, vec![Step::Resume]),
        // It runs, and is ended for nothing that is said of an earlier move.
        (Start, "hv1", Running, Copying, 0, vec![]),
        (Start, "hv1", Running, HandedOver, 0, vec![]),
        (Migrate, "hv3", Running, HandedOver, 1, vec![Step::Send(NodeName::new("hv3"))]),
        // It is neither held nor runs.
        (Migrate, "hv1", Condition::Other, Copying, 1, vec![]),
    ] {
        let mut world = held(state.clone(), on, condition, phase, request);
        assert_eq!(
            steps(&world.after(0)),
            expected,
            "{state} on {on}, {condition:?}, {phase:?} for {request}"
        );
    }
}

#[test]
fn a_guest_that_was_handed_over_goes_on_for_no_later_order_while_another_node_has_the_vm() {
    for (on, request, is_listed, expected) in [
        ("hv1", 0, false, vec![]),
        ("hv3", 0, false, vec![]),
        // Of an earlier stay; what stands still cannot be sent on either.
        ("hv3", 0, true, vec![]),
        // For the order that stands its sender has said that it has the guest no more.
        ("hv3", 1, false, vec![Step::Resume]),
    ] {
        let handed_over = MovePhase::HandedOver;
        let mut world = held(VmState::Migrate, on, Condition::Paused, handed_over, request);
        let uuid = *world.guests.keys().next().unwrap();
        world.node("hv2").working_on.push(uuid);
        world.node("hv1").running.extend(is_listed.then_some(uuid));
        assert_eq!(steps(&world.after(0)), expected, "{on}, {request}, listed: {is_listed}");
    }
}

/// Found by the simulation: the list may be of an earlier stay, and what stands still cannot be
/// sent.
#[test]
fn a_guest_that_was_handed_over_is_let_go_on_before_it_is_sent_on_also_where_the_node_lists_it() {
    for request in [0, 1] {
        let mut world =
            held(VmState::Migrate, "hv3", Condition::Paused, MovePhase::HandedOver, request);
        let uuid = *world.guests.keys().next().unwrap();
        world.node("hv1").running.push(uuid);
        assert_eq!(steps(&world.after(0)), [Step::Resume]);
    }
}

/// Found by the simulation: the VM was given to this node when its sender was dead, and the node
/// was flushed before it had ended what it held. It was sent on, did not
/// arrive, and was held for ever.
#[test]
fn a_guest_that_nobody_will_hand_over_is_ended_before_its_vm_is_sent_on() {
    for (phase, sender_has_it, expected) in [
        (MovePhase::Copying, false, vec![Step::Destroy(WhyDestroy::NeverHandedOver)]),
        (MovePhase::Failed, false, vec![Step::Destroy(WhyDestroy::NeverHandedOver)]),
        // It may hand it over yet.
        (MovePhase::Copying, true, vec![]),
    ] {
        let mut world = held(VmState::Migrate, "hv3", Condition::Paused, phase, 0);
        let uuid = *world.guests.keys().next().unwrap();
        world.node("hv1").running.push(uuid);
        world.node("hv2").working_on.extend(sender_has_it.then_some(uuid));
        assert_eq!(steps(&world.after(0)), expected, "{phase:?}, sender: {sender_has_it}");
    }
}

#[test]
fn a_guest_that_is_being_received_is_not_yet_called_started() {
    let mut world = World::new(&["hv1", "hv2"]);
    let uuid = world.put(vm(1, VmState::Migrate, Some("hv1")));
    world.run(uuid);
    world.guests.get_mut(&uuid).unwrap().condition = Condition::Paused;
    let plan = world.after(0);
    // Nor is an operator told that it is held: whoever lets it go on would have it twice.
    assert_eq!((steps(&plan), findings(&plan)), (vec![], vec![]));
}
