//! Guests that die are started again, ever more slowly.

use super::*;

/// Starts the VM, lets it live for `lives` seconds each, and returns after how many seconds it was
/// started again each time.
fn restarts_after(world: &mut World, uuid: Uuid, lives: &[u64]) -> Vec<u64> {
    let plan = world.after(0);
    world.obey(&plan);
    let mut waits = Vec::new();
    for life in lives {
        world.after(0);
        world.now += Duration::from_secs(*life);
        world.after(0);
        world.guests.remove(&uuid);
        let mut waited = 0;
        loop {
            let plan = world.after(0);
            if plan.steps.is_empty() {
                assert!(plan.wake_at.is_some(), "nobody would wake up");
                waited += 1;
                assert!(waited < 1000, "it is never started");
                world.now += Duration::from_secs(1);
            } else {
                assert_eq!(steps(&plan), [Step::Start]);
                world.obey(&plan);
                break waits.push(waited);
            }
        }
    }
    waits
}

#[test]
fn a_dead_guest_is_started_again_at_once_then_ever_more_slowly_and_it_is_reported() {
    let mut world = World::new(&["hv1"]);
    let uuid = world.put(vm(1, VmState::Start, Some("hv1")));
    assert_eq!(restarts_after(&mut world, uuid, &[3, 3, 3, 3]), [0, 5, 10, 20]);
    assert_eq!(findings(&world.after(0)), []);
    assert_eq!(restarts_after(&mut world, uuid, &[3, 3, 3, 3, 3]), [40, 80, 160, 300, 300]);
    assert_eq!(findings(&world.after(0)), [Finding::CrashLoop { deaths: 9 }]);
    assert_eq!(restarts_after(&mut world, uuid, &[301, 3]), [0, 5], "it was well for a while");
    assert_eq!(findings(&world.after(0)), []);
}

#[test]
fn a_guest_that_dies_while_it_is_started_has_died_once_seen_or_not() {
    let mut world = World::new(&["hv1"]);
    let uuid = world.put(vm(1, VmState::Start, Some("hv1")));
    let mut waits = Vec::new();
    for turn in 0..6 {
        assert_eq!(steps(&world.after(0)), [Step::Start]);
        world.histories.get_mut(&uuid).unwrap().busy = true;
        if turn % 2 == 0 {
            world.run(uuid);
            world.after(0);
            world.guests.clear();
            world.after(1);
        }
        let now = world.now;
        let history = world.histories.get_mut(&uuid).unwrap();
        history.busy = false;
        history.died_at_start(now);
        let due = world.after(0).wake_at.unwrap_or(now);
        waits.push((due - now).as_secs());
        world.now = due;
    }
    assert_eq!(waits, [0, 5, 10, 20, 40, 80]);
    world.histories.get_mut(&uuid).unwrap().busy = true;
    assert_eq!(
        findings(&world.after(0)),
        [Finding::CrashLoop { deaths: 6 }],
        "also while it is started"
    );
}

#[test]
fn a_crash_loop_is_reported_while_the_next_start_is_waited_for_and_when_it_is_due() {
    let mut world = World::new(&["hv1"]);
    let uuid = world.put(vm(1, VmState::Start, Some("hv1")));
    world.after(0);
    for _ in 0..5 {
        world.histories.get_mut(&uuid).unwrap().died_at_start(world.now);
    }
    let reported = [Finding::CrashLoop { deaths: 5 }];
    for (seconds, expected) in [(39, vec![]), (1, vec![Step::Start])] {
        let plan = world.after(seconds);
        assert_eq!((steps(&plan), &findings(&plan)[..]), (expected, &reported[..]), "{seconds}");
    }
}

#[test]
fn a_new_request_is_not_held_up_by_old_deaths() {
    let mut world = World::new(&["hv1"]);
    let uuid = world.put(vm(1, VmState::Start, Some("hv1")));
    restarts_after(&mut world, uuid, &[1, 1, 1]);
    world.after(0);
    world.guests.clear();
    assert_eq!(world.after(0).steps, []);
    world.request(uuid, VmState::Start);
    assert_eq!(steps(&world.after(0)), [Step::Start]);
}

#[test]
fn a_guest_that_died_before_anybody_looked_has_died_nevertheless() {
    let mut world = World::new(&["hv1"]);
    let uuid = world.put(vm(1, VmState::Start, Some("hv1")));
    for _ in 0..2 {
        assert_eq!(steps(&world.after(0)), [Step::Start]);
        world.histories.get_mut(&uuid).unwrap().started(world.now);
    }
    assert_eq!(world.after(1).steps, []);
    assert_eq!(world.histories[&uuid].deaths(), 2);
}

#[test]
fn what_ends_by_itself_has_died_only_where_it_should_run() {
    for (state, on, deaths) in [
        (VmState::Start, "hv1", 1),
        (VmState::Stop, "hv1", 0),
        (VmState::Migrate, "hv1", 0),
        (VmState::Start, "hv2", 0),
    ] {
        let mut world = World::new(&["hv1", "hv2"]);
        let uuid = world.put(vm(1, state.clone(), Some(on)));
        world.run(uuid);
        world.after(0);
        world.guests.clear();
        // So that it is remembered wherever it belongs.
        world.histories.get_mut(&uuid).unwrap().busy = true;
        world.after(1);
        world.histories.get_mut(&uuid).unwrap().busy = false;
        world.after(1);
        let found = world.histories.get(&uuid).map_or(0, History::deaths);
        assert_eq!(found, deaths, "{state} on {on}");
    }
}

#[test]
fn one_that_was_asked_to_end_and_replaced_since_lives_anew() {
    let mut world = World::new(&["hv1"]);
    let uuid = world.put(vm(1, VmState::Start, Some("hv1")));
    world.run(uuid);
    world.after(0);
    world.histories.get_mut(&uuid).unwrap().ending();
    world.run(uuid);
    world.after(1);
    world.guests.clear();
    world.after(1);
    assert_eq!(world.histories[&uuid].deaths(), 1);
}
