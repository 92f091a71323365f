//! Guests are shut down, stopped and restarted.

use super::*;

#[test]
fn stops_come_before_starts() {
    let mut world = World::new(&["hv1"]);
    world.put(vm(1, VmState::Start, Some("hv1")));
    world.put(vm(2, VmState::Shutdown, Some("hv1")));
    let stopping = world.put(vm(3, VmState::Stop, Some("hv1")));
    let graceful = world.put(vm(4, VmState::Shutdown, Some("hv1")));
    world.run(stopping);
    world.run(graceful);
    assert_eq!(
        steps(&world.after(0)),
        [
            Step::Destroy(WhyDestroy::Stopped),
            Step::RequestShutdown { instance: 2, again: false },
            Step::Write(VmState::Stop),
            Step::Start,
        ]
    );
}

fn press(world: &mut World, uuid: Uuid) {
    let plan = world.after(0);
    let [Planned { request, step: Step::RequestShutdown { instance, .. }, .. }] = plan.steps[..]
    else {
        panic!("{plan:?}")
    };
    world.histories.get_mut(&uuid).unwrap().shutdown_requested(instance, request, world.now);
}

#[test]
fn a_shutdown_is_requested_now_and_then_and_the_guest_destroyed_when_the_time_is_over() {
    let mut world = World::new(&["hv1"]);
    let uuid = world.put(vm(1, VmState::Shutdown, Some("hv1")));
    world.run(uuid);
    press(&mut world, uuid);
    let plan = world.after(14);
    assert_eq!((plan.steps, plan.wake_at), (vec![], Some(world.now + Duration::from_secs(1))));
    assert_eq!(steps(&world.after(1)), [Step::RequestShutdown { instance: 1, again: true }]);
    press(&mut world, uuid);
    assert_eq!(world.after(10).steps, []);
    world.now += Duration::from_secs(150);
    press(&mut world, uuid);
    let plan = world.after(4);
    assert_eq!((plan.steps, plan.wake_at), (vec![], Some(world.now + Duration::from_secs(1))));
    assert_eq!(steps(&world.after(1)), [Step::Destroy(WhyDestroy::IgnoredShutdown)]);
}

#[test]
fn a_shutdown_can_be_taken_back_and_asked_for_again() {
    let mut world = World::new(&["hv1"]);
    let uuid = world.put(vm(1, VmState::Shutdown, Some("hv1")));
    world.run(uuid);
    press(&mut world, uuid);
    world.request(uuid, VmState::Start);
    assert_eq!(world.after(10).steps, []);
    world.request(uuid, VmState::Shutdown);
    press(&mut world, uuid);
    assert_eq!(world.after(14).steps, []);
    world.now += Duration::from_secs(160);
    press(&mut world, uuid); // the second request has its own time
    world.guests.clear();
    assert_eq!(steps(&world.after(1)), [Step::Write(VmState::Stop)]);
}

#[test]
fn a_guest_that_still_obeys_a_shutdown_taken_back_is_started_at_once_and_has_not_died() {
    let mut world = World::new(&["hv1"]);
    let uuid = world.put(vm(1, VmState::Shutdown, Some("hv1")));
    world.run(uuid);
    press(&mut world, uuid);
    world.request(uuid, VmState::Start);
    world.after(1);
    world.guests.clear();
    assert_eq!(steps(&world.after(1)), [Step::Start]);
    assert_eq!(world.histories[&uuid].deaths(), 0);
}

#[test]
fn a_restart_ends_in_a_new_instance_and_in_start() {
    let mut world = World::new(&["hv1"]);
    let uuid = world.put(vm(1, VmState::Restart, Some("hv1")));
    world.run(uuid);
    let seen: Vec<Vec<Step>> = (0..5)
        .map(|_| {
            let plan = world.after(1);
            world.obey(&plan);
            steps(&plan)
        })
        .collect();
    let expected: [Vec<Step>; 5] = [
        vec![Step::RequestShutdown { instance: 1, again: false }],
        vec![Step::Write(VmState::Start)],
        vec![Step::Start],
        vec![],
        vec![],
    ];
    assert_eq!(seen, expected);
    assert_eq!(world.guests[&uuid].instance, 2);
}
