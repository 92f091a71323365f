//! Each state, each guest and each other node has its step.

use super::*;

#[test]
fn every_cell_of_the_table_of_states_has_its_step() {
    use VmState::*;
    let one: &[&str] = &["hv1"];
    let two: &[&str] = &["hv1", "hv2"];
    let press = || vec![Step::RequestShutdown { instance: 1, again: false }];
    let stop = |why| vec![Step::Destroy(why)];
    let write = |state| vec![Step::Write(state)];
    let send = || vec![Step::Send(NodeName::new("hv2"))];
    let here = Some("hv1");
    type Line<'a> = (&'a [&'a str], VmState, Option<&'a str>, bool, Vec<Step>);
    let table: Vec<Line<'_>> = vec![
        // assigned here, running here
        (one, Start, here, true, vec![]),
        (one, Migrate, here, true, write(Start)),
        (one, MigrateLive, here, true, write(Start)),
        (one, Restart, here, true, press()),
        (one, Shutdown, here, true, press()),
        (one, Stop, here, true, stop(WhyDestroy::Stopped)),
        (one, Disable, here, true, vec![]),
        (one, Fail, here, true, vec![]),
        (one, Provision, here, true, vec![]),
        (one, Mirror, here, true, vec![]),
        (one, Delete, here, true, vec![]),
        // assigned here, not running
        (one, Start, here, false, vec![Step::Start]),
        (one, Migrate, here, false, write(Start)),
        (one, MigrateLive, here, false, write(Start)),
        (two, Migrate, here, false, vec![Step::Receive]),
        (two, MigrateLive, here, false, vec![Step::Receive]),
        (one, Restart, here, false, write(Start)),
        (one, Shutdown, here, false, write(Stop)),
        (one, Stop, here, false, vec![]),
        (one, Disable, here, false, vec![]),
        (one, Fail, here, false, vec![]),
        (one, Provision, here, false, vec![]),
        (one, Import, here, false, vec![]),
        (one, Restore, here, false, vec![]),
        (one, Mirror, here, false, vec![]),
        (one, Delete, here, false, vec![]),
        (one, Unmigrate, here, false, vec![]),
        // assigned elsewhere, running here
        (two, Migrate, Some("hv2"), true, send()),
        (two, MigrateLive, Some("hv2"), true, send()),
        (two, Shutdown, Some("hv2"), true, press()),
        (two, Start, Some("hv2"), true, stop(WhyDestroy::AssignedElsewhere)),
        (two, Stop, Some("hv2"), true, stop(WhyDestroy::AssignedElsewhere)),
        (two, Fail, Some("hv2"), true, stop(WhyDestroy::AssignedElsewhere)),
        (two, Mirror, Some("hv2"), true, stop(WhyDestroy::AssignedElsewhere)),
        // assigned elsewhere, not running
        (two, Start, Some("hv2"), false, vec![]),
        (two, Shutdown, Some("hv2"), false, vec![]),
    ];
    for (nodes, state, on, runs, expected) in table {
        let what = format!("{state} on {on:?}, runs here: {runs}");
        assert_eq!(first(nodes, state, on, runs).0, expected, "{what}");
    }
}

#[test]
fn a_node_that_was_proven_dead_and_lives_ends_its_guests_whatever_the_records_ask() {
    for (daemon, domain) in [
        (DaemonState::Fenced, DomainState::FenceFlush),
        (DaemonState::Run, DomainState::FenceFlush),
    ] {
        for state in [VmState::Migrate, VmState::MigrateLive, VmState::Shutdown, VmState::Start] {
            let mut world = World::new(&["hv1", "hv2", "hv3"]);
            let own = world.node("hv1");
            (own.daemon_state, own.domain_state) = (daemon.clone(), domain.clone());
            let uuid = world.put(vm(1, state.clone(), Some("hv2")));
            world.run(uuid);
            let ended = vec![Step::Destroy(WhyDestroy::AssignedElsewhere)];
            assert_eq!(steps(&world.after(0)), ended, "{state}");
        }
    }
}

#[test]
fn a_node_without_a_record_sends_nothing_and_shuts_nothing_down_that_belongs_to_another() {
    for state in [VmState::Migrate, VmState::MigrateLive, VmState::Shutdown] {
        let mut world = World::new(&["hv1", "hv2", "hv3"]);
        let uuid = world.put(vm(1, state.clone(), Some("hv2")));
        world.run(uuid);
        let me = world.me.clone();
        world.cluster.nodes.remove(&me);
        assert!(steps(&world.after(0)).is_empty(), "{state}");
    }
    let mut world = World::new(&["hv1", "hv2", "hv3"]);
    let uuid = world.put(vm(1, VmState::Start, Some("hv2")));
    world.run(uuid);
    let me = world.me.clone();
    world.cluster.nodes.remove(&me);
    assert_eq!(steps(&world.after(0)), [Step::Destroy(WhyDestroy::AssignedElsewhere)]);
}

/// Found by the simulation: a BMC had said "off" of a node that went on; its daemon was started
/// again while the VM, which another node had by then, was moved, and sent the guest from before.
#[test]
fn a_guest_of_before_is_not_sent_in_the_place_of_the_vm_that_is_to_be_moved() {
    let ended = vec![Step::Destroy(WhyDestroy::AssignedElsewhere)];
    let send = vec![Step::Send(NodeName::new("hv3"))];
    for (sender, is_for_this, lists, was_given_up, expected) in [
        (Some("hv2"), true, false, false, ended.clone()),
        (Some("hv2"), true, true, true, ended),
        (Some("hv1"), true, false, true, send.clone()),
        // It was about an earlier move.
        (Some("hv2"), false, false, true, send.clone()),
        (None, false, false, true, send.clone()),
        // The other one has not begun yet, or what it says is of a moment ago.
        (None, false, true, true, vec![]),
        (Some("hv1"), true, true, true, vec![]),
        (None, false, true, false, send.clone()),
    ] {
        let mut world = World::new(&["hv1", "hv2", "hv3"]);
        let version = world.node("hv2").pvc_version.clone();
        world.node("hv2").daemon = Some(DaemonNote { version, ..DaemonNote::default() });
        if was_given_up {
            world.node("hv1").fence =
                Some(FenceNote { proven_at: Some(1), ..FenceNote::default() });
        }
        let uuid = world.put(vm(1, VmState::Migrate, Some("hv3")));
        world.run(uuid);
        if lists {
            world.node("hv2").running.push(uuid);
        }
        world.edit(uuid, |record| {
            let note = |from: &str| MoveNote {
                incarnation: record.incarnation,
                request: record.state_version - i32::from(!is_for_this),
                ..move_note(from, "hv3")
            };
            record.moving = sender.map(note);
        });
        let what = (sender, is_for_this, lists, was_given_up);
        let record = &world.cluster.vms[&uuid];
        let is_anothers = is_moved_by_another(&world.cluster, record, &world.me);
        assert_eq!(is_anothers, expected != send, "{what:?}");
        let plan = world.after(0);
        assert_eq!(steps(&plan), expected, "{what:?}");
        if expected.is_empty() {
            assert_eq!(findings(&plan), [Finding::RunsOn(NodeName::new("hv2"))], "{what:?}");
        }
    }
}

#[test]
fn a_node_that_was_given_up_once_does_not_send_what_another_of_ours_says_it_runs() {
    type Edit = fn(&mut World);
    let cases: [(&str, Edit, bool); 6] = [
        ("another runs it", |_| (), false),
        ("the list of PVC 1.0.3 may be of long ago", |world| world.node("hv2").daemon = None, true),
        (
            "another is at something with it",
            |world| {
                let hv2 = world.node("hv2");
                hv2.working_on = std::mem::take(&mut hv2.running);
            },
            true,
        ),
        (
            "the target runs it",
            |world| {
                let lists = std::mem::take(&mut world.node("hv2").running);
                world.node("hv3").running = lists;
            },
            true,
        ),
        (
            "another ran it and was proven dead",
            |world| world.node("hv2").daemon_state = DaemonState::Fenced,
            true,
        ),
        (
            "this one was suspected alone",
            |world| world.node("hv1").fence.as_mut().unwrap().proven_at = None,
            true,
        ),
    ];
    for (case, edit, is_sent) in cases {
        let mut world = World::new(&["hv1", "hv2", "hv3"]);
        for name in ["hv2", "hv3"] {
            let own = world.node(name);
            let version = own.pvc_version.clone();
            own.daemon = Some(DaemonNote { version, ..DaemonNote::default() });
        }
        world.node("hv1").fence = Some(FenceNote { proven_at: Some(1), ..FenceNote::default() });
        let uuid = world.put(vm(1, VmState::Migrate, Some("hv3")));
        world.run(uuid);
        world.node("hv2").running.push(uuid);
        edit(&mut world);
        let record = &world.cluster.vms[&uuid];
        assert_eq!(is_moved_by_another(&world.cluster, record, &world.me), !is_sent, "{case}");
        let send = is_sent.then(|| Step::Send(NodeName::new("hv3")));
        assert_eq!(steps(&world.after(0)), Vec::from_iter(send), "{case}");
    }
}

#[test]
fn a_guest_that_an_earlier_move_has_left_held_is_ended_before_the_vm_is_started_here() {
    for (node, condition, expected) in [
        ("hv1", Condition::Paused, vec![Step::Destroy(WhyDestroy::NeverHandedOver)]),
        ("hv1", Condition::Leaving, vec![Step::Destroy(WhyDestroy::NeverHandedOver)]),
        ("hv1", Condition::Running, vec![]),
        // Held by a migration from here.
        ("hv3", Condition::Leaving, vec![Step::Resume]),
        // Held on another node than the one that it is on.
        ("hv3", Condition::Paused, vec![]),
    ] {
        let mut world = World::new(&["hv1", "hv2", "hv3"]);
        let uuid = world.put(vm(1, VmState::Start, Some("hv1")));
        world.run(uuid);
        world.guests.get_mut(&uuid).unwrap().condition = condition;
        world.edit(uuid, |record| {
            record.moving = Some(MoveNote {
                incarnation: record.incarnation,
                phase: MovePhase::Failed,
                left_on: [NodeName::new(node)].into(),
                ..move_note("hv3", "hv2")
            });
        });
        assert_eq!(steps(&world.after(0)), expected, "{node} {condition:?}");
    }
}

#[test]
fn what_was_never_handed_over_is_not_sent_on_by_whoever_has_it() {
    for condition in [Condition::Paused, Condition::Leaving] {
        let mut world = World::new(&["hv1", "hv2", "hv3"]);
        let uuid = world.put(vm(1, VmState::Migrate, Some("hv3")));
        world.run(uuid);
        world.guests.get_mut(&uuid).unwrap().condition = condition;
        world.node("hv1").running.push(uuid);
        world.edit(uuid, |record| {
            record.moving = Some(MoveNote {
                incarnation: record.incarnation,
                request: record.state_version - 2,
                phase: MovePhase::Copying,
                ..move_note("hv2", "hv1")
            });
        });
        let expected = [Step::Destroy(WhyDestroy::NeverHandedOver)];
        assert_eq!(steps(&world.after(0)), expected, "{condition:?}");
    }
}

#[test]
fn a_guest_that_is_held_is_distinguished_from_one_that_arrives_by_what_its_node_said_before() {
    let send = vec![Step::Send(NodeName::new("hv2"))];
    for (on, was_here, expected) in [
        // Called back before it has left: it has not gone anywhere.
        ("hv1", true, vec![Step::Write(VmState::Start)]),
        ("hv1", false, vec![]),
        // Its sender says why it cannot be moved.
        ("hv2", true, send),
        // It was arriving when it was sent elsewhere, and runs on its third node still.
        ("hv2", false, vec![]),
    ] {
        let mut world = World::new(&["hv1", "hv2", "hv3"]);
        let uuid = world.put(vm(1, VmState::Migrate, Some(on)));
        world.run(uuid);
        world.guests.get_mut(&uuid).unwrap().condition = Condition::Paused;
        if was_here {
            world.node("hv1").running.push(uuid);
        }
        assert_eq!(steps(&world.after(0)), expected, "for {on}, was here: {was_here}");
    }
}

#[test]
fn a_guest_that_was_never_let_run_is_ended_and_started_anew_and_counts_as_no_death() {
    for (on, state) in [
        ("hv1", VmState::Start),
        ("hv1", VmState::Stop),
        ("hv1", VmState::Shutdown),
        ("hv1", VmState::Migrate),
        ("hv2", VmState::Start),
        ("hv2", VmState::Migrate),
    ] {
        let mut world = World::new(&["hv1", "hv2"]);
        let uuid = world.put(vm(1, state.clone(), Some(on)));
        world.run(uuid);
        world.guests.get_mut(&uuid).unwrap().condition = Condition::Created;
        let ended = vec![Step::Destroy(WhyDestroy::NeverRan)];
        assert_eq!(steps(&world.after(0)), ended, "{state} on {on}");
        // Whoever makes it is at it still.
        world.histories.get_mut(&uuid).unwrap().busy = true;
        assert_eq!(steps(&world.after(0)), []);
        world.histories.get_mut(&uuid).unwrap().busy = false;
        world.guests.remove(&uuid);
        let anew = (on == "hv1" && state == VmState::Start).then_some(Step::Start);
        let starts = steps(&world.after(0)).into_iter().find(|step| *step == Step::Start);
        let deaths = world.histories.get(&uuid).map_or(0, History::deaths);
        assert_eq!((starts, deaths), (anew, 0), "{state} on {on}");
    }
}

#[test]
fn a_guest_that_no_record_knows_is_left_alone_and_reported() {
    let mut world = World::new(&["hv1"]);
    world.run(Uuid::from_u128(9));
    let plan = world.after(0);
    assert_eq!(plan.steps, []);
    assert_eq!(plan.findings[&Uuid::from_u128(9)], ("guest".to_owned(), Finding::Stray));
}

#[test]
fn a_vm_that_has_failed_is_reported_by_its_own_node() {
    let has_failed = |on| first(&["hv1", "hv2"], VmState::Fail, Some(on), false);
    assert_eq!(has_failed("hv1"), (vec![], vec![Finding::Failed(String::new())]));
    assert_eq!(has_failed("hv2"), (vec![], vec![]));
}

#[test]
fn an_unreadable_record_is_no_order() {
    let unknown = VmState::from_record("\u{fffd}\u{fffd}");
    for (state, on) in [
        (VmState::Stop, None),
        (VmState::Start, None),
        (VmState::Start, Some("nobody")),
        (unknown.clone(), Some("hv1")),
        (VmState::from_record(""), Some("hv2")),
    ] {
        let (steps, findings) = first(&["hv1", "hv2"], state.clone(), on, true);
        assert_eq!(steps, [], "{state:?} {on:?}");
        assert!(matches!(findings[..], [Finding::NoOrder(_)]), "{state:?} {on:?}: {findings:?}");
    }
    assert_eq!(first(&["hv1"], unknown, Some("hv1"), false).0, []);
}

#[test]
fn a_vm_that_another_node_runs_is_not_started_here_unless_that_node_is_proven_dead() {
    for (daemon, expected) in [
        (DaemonState::Run, vec![]),
        (DaemonState::Stop, vec![]),
        (DaemonState::Fenced, vec![Step::Start]),
        (DaemonState::Dead, vec![]),
    ] {
        let mut world = World::new(&["hv1", "hv2"]);
        let uuid = world.put(vm(1, VmState::Start, Some("hv1")));
        let mut other = node("hv2");
        other.running.push(uuid);
        other.daemon_state = daemon.clone();
        let version = other.pvc_version.clone();
        other.daemon = Some(DaemonNote { version, runs_guests: true, ..DaemonNote::default() });
        world.cluster.nodes.insert(NodeName::new("hv2"), Arc::new(other));
        assert_eq!(steps(&world.after(0)), expected, "{daemon}");
    }
}

#[test]
fn whether_a_legacy_node_that_lives_really_runs_a_vm_is_asked_at_its_start_and_of_no_other() {
    let note =
        || DaemonNote { version: "0.2.0".to_owned(), runs_guests: true, ..DaemonNote::default() };
    let other = |name: &str, is_ours: bool, state: DaemonState| {
        let mut other = node(name);
        other.running.push(Uuid::from_u128(1));
        other.daemon_state = state;
        other.pvc_version = if is_ours { "0.2.0" } else { "1.0.3" }.to_owned();
        // Our note stays when a node is moved back to PVC 1.0.3.
        other.daemon = Some(note());
        other
    };
    let legacy = |state| other("hv2", false, state);
    let ours = || other("hv3", true, DaemonState::Run);
    for (others, state, expected, who) in [
        (vec![legacy(DaemonState::Run)], VmState::Start, vec![Step::Start], "hv2"),
        (vec![legacy(DaemonState::Run)], VmState::Restart, vec![], "hv2"),
        (vec![legacy(DaemonState::Run)], VmState::Shutdown, vec![], "hv2"),
        (vec![legacy(DaemonState::Stop)], VmState::Start, vec![], "hv2"),
        (vec![legacy(DaemonState::Dead)], VmState::Start, vec![], "hv2"),
        (vec![ours()], VmState::Start, vec![], "hv3"),
        (vec![legacy(DaemonState::Run), ours()], VmState::Start, vec![], "hv3"),
    ] {
        let mut world = World::new(&["hv1", "hv2", "hv3"]);
        let uuid = world.put(vm(1, state.clone(), Some("hv1")));
        let about = format!("{state} {others:?}");
        for other in others {
            world.cluster.nodes.insert(other.name.clone(), Arc::new(other));
        }
        let blocked = vec![Finding::RunsOn(NodeName::new(who))];
        let plan = world.after(0);
        assert_eq!((steps(&plan), findings(&plan)), (expected, blocked.clone()), "{about}");
        // While it is asked, and between two questions, it is still so that nothing runs here.
        world.guests.clear();
        world.histories.get_mut(&uuid).unwrap().busy = true;
        assert_eq!(findings(&world.after(1)), blocked, "{about}");
        let history = world.histories.get_mut(&uuid).unwrap();
        history.busy = false;
        history.try_later(world.now);
        let plan = world.after(0);
        assert_eq!((steps(&plan), findings(&plan)), (vec![], blocked), "{about}");
    }
}

#[test]
fn a_node_that_comes_to_say_that_it_runs_a_vm_is_asked_although_others_have_answered() {
    let vm = Uuid::from_u128(1);
    let mut world = World::new(&["hv1", "hv2", "hv3"]);
    let mut answered = Answered::default();
    let here = NodeName::new("hv1");
    let mut unasked = |world: &World, answer: bool| {
        let unasked = answered.unasked(&world.cluster, vm, &here);
        if answer {
            answered.add(&unasked);
        }
        unasked.iter().map(|node| node.name.to_string()).collect::<Vec<_>>()
    };
    assert!(unasked(&world, true).is_empty());
    world.node("hv1").running.push(vm);
    world.node("hv2").running.push(vm);
    assert_eq!(unasked(&world, false), ["hv2"]);
    assert_eq!(unasked(&world, true), ["hv2"], "nobody has answered yet");
    assert!(unasked(&world, true).is_empty());
    world.node("hv3").running.push(vm);
    assert_eq!(unasked(&world, true), ["hv3"]);
    world.node("hv2").running.clear();
    assert!(unasked(&world, true).is_empty());
    world.node("hv2").running.push(vm);
    assert_eq!(unasked(&world, true), ["hv2"], "it has begun anew");
    let note =
        DaemonNote { version: "0.2.0".to_owned(), runs_guests: true, ..DaemonNote::default() };
    world.node("hv3").pvc_version.clone_from(&note.version);
    world.node("hv3").daemon = Some(note);
    assert_eq!(unasked(&world, true), ["hv3"], "its list is true by now");
    assert_eq!(unasked(&world, true), ["hv3"], "whatever it answers");
    world.node("hv2").daemon_state = DaemonState::Dead;
    assert_eq!(unasked(&world, false), ["hv2", "hv3"], "cut off with its guest, perhaps");
    world.node("hv2").daemon_state = DaemonState::Fenced;
    world.node("hv3").daemon_state = DaemonState::Fenced;
    assert!(unasked(&world, true).is_empty());
}

#[test]
fn what_another_node_says_it_runs_is_in_the_way_only_of_what_is_to_be_done_here_without_a_guest() {
    for (state, on, runs_here, expected, is_reported) in [
        (VmState::Start, "hv1", false, vec![], true),
        (VmState::Restart, "hv1", false, vec![], true),
        (VmState::Stop, "hv1", false, vec![], false),
        (VmState::Disable, "hv1", false, vec![], false),
        // That one sends it.
        (VmState::Migrate, "hv1", false, vec![Step::Receive], false),
        (VmState::Start, "hv1", true, vec![], false),
        (VmState::Start, "hv2", false, vec![], false),
    ] {
        let mut world = World::new(&["hv1", "hv2"]);
        let uuid = world.put(vm(1, state.clone(), Some(on)));
        if runs_here {
            world.run(uuid);
        }
        let hv2 = world.node("hv2");
        hv2.running.push(uuid);
        hv2.daemon = Some(DaemonNote { runs_guests: true, ..DaemonNote::default() });
        let reported: &[Finding] =
            if is_reported { &[Finding::RunsOn(NodeName::new("hv2"))] } else { &[] };
        let case = format!("{state} on {on}, runs here: {runs_here}");
        let plan = world.after(0);
        assert_eq!((steps(&plan), &findings(&plan)[..]), (expected, reported), "{case}");
        // Nor is another told of while something is under way, or waits for its next try.
        let now = world.now;
        let history = world.histories.entry(uuid).or_default();
        history.try_later(now);
        assert_eq!(findings(&world.after(0)), reported, "{case}");
        world.histories.entry(uuid).or_default().busy = true;
        assert_eq!(findings(&world.after(0)), reported, "{case}");
    }
}

#[test]
fn a_record_that_no_guest_can_be_made_of_fails_with_the_reason() {
    let mut world = World::new(&["hv1"]);
    let empty = world.put(vm(1, VmState::Start, Some("hv1")));
    world.edit(empty, |record| record.xml = Arc::from(" \n"));
    let broken = world.put(vm(2, VmState::Start, Some("hv1")));
    world.edit(broken, |record| record.domain = Err("no `<name>`".to_owned()));
    let foreign = world.put(vm(3, VmState::Start, Some("hv1")));
    world.edit(foreign, |record| record.domain = Ok(Arc::new(domain(Uuid::from_u128(4)))));
    let plan = world.after(0);
    let reasons: Vec<String> = steps(&plan)
        .into_iter()
        .map(|step| match step {
            Step::Fail(reason) => reason,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(reasons[0].contains("no domain XML"), "{reasons:?}");
    assert!(reasons[1].contains("no `<name>`"), "{reasons:?}");
    assert!(reasons[2].contains("has the UUID"), "{reasons:?}");
    world.obey(&plan);
    assert_eq!(steps(&world.after(1)), [], "a failed VM waits for a new request");
}

#[test]
fn the_home_of_a_vm_is_what_its_record_said_when_it_was_last_here_and_at_rest() {
    let mut world = World::new(&["hv1", "hv2", "hv3"]);
    let uuid = world.put(vm(1, VmState::Migrate, Some("hv1")));
    world.run(uuid);
    let mut home = |state: VmState, on: &str, last: Option<&str>| {
        world.edit(uuid, |record| {
            record.state = state;
            record.node = Some(NodeName::new(on));
            record.last_node = last.map(NodeName::new);
        });
        world.after(0);
        world.histories[&uuid].home().cloned()
    };
    let hv2 = Some(NodeName::new("hv2"));
    assert_eq!(home(VmState::Migrate, "hv1", Some("hv3")), None, "it has not been seen here yet");
    assert_eq!(home(VmState::Start, "hv1", Some("hv2")), Some(hv2.clone()));
    assert_eq!(home(VmState::Migrate, "hv3", Some("hv1")), Some(hv2.clone()));
    assert_eq!(home(VmState::Migrate, "hv1", None), Some(hv2), "it is called back");
    assert_eq!(home(VmState::Start, "hv1", None), Some(None));
}

#[test]
fn a_daemon_that_forgot_everything_adopts_what_runs() {
    let mut world = World::new(&["hv1"]);
    let uuid = world.put(vm(1, VmState::Start, Some("hv1")));
    world.run(uuid);
    assert_eq!(world.after(0), Plan::default());
    world.edit(uuid, |record| record.failed_reason = "it once failed".to_owned());
    assert_eq!(steps(&world.after(0)), [Step::ClearFailure]);
}

#[test]
fn somebody_who_cannot_be_reached_is_tried_again_later_and_at_once_for_a_new_request() {
    let mut world = World::new(&["hv1"]);
    let uuid = world.put(vm(1, VmState::Start, Some("hv1")));
    world.after(0);
    world.histories.get_mut(&uuid).unwrap().try_later(world.now);
    let plan = world.after(0);
    assert_eq!((plan.steps.len(), plan.wake_at), (0, Some(world.now + Duration::from_secs(1))));
    assert_eq!(steps(&world.after(1)), [Step::Start]);
    world.histories.get_mut(&uuid).unwrap().try_later(world.now);
    world.request(uuid, VmState::Start);
    assert_eq!(steps(&world.after(0)), [Step::Start]);
}

#[test]
fn a_vm_without_record_and_guest_is_forgotten() {
    let mut world = World::new(&["hv1"]);
    let uuid = world.put(vm(1, VmState::Stop, Some("hv1")));
    world.after(0);
    assert!(world.histories.contains_key(&uuid));
    world.cluster.vms.clear();
    world.after(0);
    assert_eq!(world.histories, BTreeMap::new());
}

#[test]
fn a_vm_whose_volume_is_held_waits_also_after_a_fence_and_its_guest_stays_as_it_is() {
    let volume = VolumeId::parse("vms/a").unwrap();
    let hold = |purpose| VolumeHold { volume: volume.clone(), purpose, by: "x".to_owned() };
    let before = Purpose::RollBack(SnapshotName::new("before"));
    for purpose in [before, Purpose::Fill { trashed: None }, Purpose::Other] {
        let mut world = World::new(&["hv1", "hv2"]);
        world.node("hv2").daemon_state = DaemonState::Fenced;
        let uuid = world.put(VmRecord {
            last_node: Some(NodeName::new("hv2")),
            recorded_volumes: vec![volume.clone()],
            ..vm(1, VmState::Start, Some("hv1"))
        });
        world.cluster.holds.insert(volume.clone(), Arc::new(hold(purpose.clone())));
        let held = Held { volume: volume.clone(), purpose };
        let plan = world.after(0);
        assert_eq!((steps(&plan), findings(&plan)), (vec![], vec![Finding::VolumeHeld(held)]));
        // A guest that is there was not started on it.
        world.run(uuid);
        assert_eq!((steps(&world.after(0)), findings(&world.after(1))), (vec![], vec![]));
        world.guests.clear();
        world.histories.clear();
        world.cluster.holds.clear();
        assert_eq!(steps(&world.after(2)), [Step::Start]);
    }
}
