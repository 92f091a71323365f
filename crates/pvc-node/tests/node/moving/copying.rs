//! Guests are copied, or shut down and started.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_vm_moves_live_and_back_and_its_progress_is_reported() {
    let world = two().await;
    world.manner(copies_for(20));
    let begun = world.one.now();
    world.migrate("hv2").await;
    world
        .one
        .until("it is half way", || {
            world.one.vm(world.vm).moving.as_ref().is_some_and(|note| note.percent() >= 50)
        })
        .await;
    assert!(!world.two.node().unwrap().running.contains(&world.vm), "it is not there yet");
    assert_eq!(world.phase(), Some(MovePhase::Copying));
    world.until_place("start", "hv2", "hv1").await;
    let took = world.one.now() - begun;
    assert!(took < Duration::from_millis(22_500), "20 s of copying took {took:?}");
    assert_eq!(world.runs_on(), (false, true));
    world
        .one
        .until("its new node lists it", || world.two.node().unwrap().running == [world.vm])
        .await;
    world.one.until("its old node does not", || world.one.node().unwrap().running.is_empty()).await;
    assert_eq!(world.phase(), Some(MovePhase::Done));
    world.nothing_is_left_behind().await;
    world.migrate("hv1").await;
    world.until_place("start", "hv1", "").await;
    assert_eq!(world.runs_on(), (true, false));
    assert_eq!(world.one.hypervisor.count("start", world.vm), 1, "it was never started again");
    let calls = ["resume", "migrate"].map(|call| format!("{call} {}", world.vm));
    assert_eq!(world.two.hypervisor.calls(), calls);
}

#[tokio::test(start_paused = true)]
async fn a_guest_stands_still_for_as_long_as_its_record_allows() {
    let world = two().await;
    world.set(VmChange::MaxDowntime(77)).await;
    world.migrate("hv2").await;
    world.until_place("start", "hv2", "hv1").await;
    let asked = world.one.hypervisor.last_migration(world.vm).unwrap();
    assert_eq!((asked.max_downtime, asked.host.as_str()), (Duration::from_millis(77), "hv2"));
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_cannot_be_copied_is_shut_down_and_started_there() {
    let world = two().await;
    world.manner(Manner {
        fails_migration: Some("host CPU differs".to_owned()),
        ..Manner::default()
    });
    world.migrate("hv2").await;
    world.until_place("start", "hv2", "hv1").await;
    world.one.until("it runs there", || world.runs_on() == (false, true)).await;
    assert_eq!(world.one.hypervisor.count("migrate", world.vm), 3);
    assert_eq!(world.one.hypervisor.count("shutdown", world.vm), 1);
    assert_eq!(world.two.hypervisor.count("start", world.vm), 1);
    world.nothing_is_left_behind().await;
}

/// Three such attempts, and its guest was shut down.
#[tokio::test(start_paused = true)]
async fn a_store_that_is_slow_to_take_the_note_of_a_copy_makes_no_attempt_fail() {
    let world = two().await;
    let path = format!("/pvcrs/moves/{}", world.vm);
    let slow = tokio::time::sleep(Duration::from_secs(20));
    world._daemons[0].connection.before_next_set(&path, slow);
    let begun = world.one.now();
    world.migrate("hv2").await;
    world.until_place("start", "hv2", "hv1").await;
    assert!(world.one.now() - begun > Duration::from_secs(5), "it was not written at once");
    let note = world.one.vm(world.vm).moving.clone().unwrap();
    assert_eq!((note.attempt, note.why.as_str()), (1, ""));
    assert_eq!(world.one.hypervisor.count("migrate", world.vm), 1);
}

#[tokio::test(start_paused = true)]
async fn live_or_not_at_all_never_shuts_a_guest_down() {
    for (method, state) in
        [(None, VmState::MigrateLive), (Some(MigrationMethod::Live), VmState::Migrate)]
    {
        let world = two().await;
        world.set(VmChange::MigrationMethod(method)).await;
        world.manner(Manner {
            fails_migration: Some("host CPU differs".to_owned()),
            ..Manner::default()
        });
        world.order(state, "hv2").await;
        world.until_place("start", "hv1", "").await;
        world.one.until("it says so", || world.phase() == Some(MovePhase::Failed)).await;
        assert_eq!(world.one.vm(world.vm).moving.as_ref().unwrap().why, "host CPU differs");
        assert_eq!(world.runs_on(), (true, false));
        assert_eq!(world.one.hypervisor.count("shutdown", world.vm), 0);
        world.nothing_is_left_behind().await;
        world.manner(Manner::default());
        world.migrate("hv2").await;
        world.until_place("start", "hv2", "hv1").await;
    }
}

#[tokio::test(start_paused = true)]
async fn by_shutdown_only_means_that_nothing_is_copied() {
    let world = two().await;
    world.set(VmChange::MigrationMethod(Some(MigrationMethod::Shutdown))).await;
    world.manner(Manner { ignores_shutdown: true, ..Manner::default() });
    world.order(VmState::MigrateLive, "hv2").await;
    world.until_place("start", "hv1", "").await;
    world.migrate("hv2").await;
    world.until_place("start", "hv2", "hv1").await;
    world.one.until("it runs there", || world.runs_on() == (false, true)).await;
    assert_eq!(world.one.hypervisor.count("migrate", world.vm), 0);
    assert_eq!(
        world.one.hypervisor.count("destroy", world.vm),
        1,
        "it did not listen for three minutes"
    );
}

#[tokio::test(start_paused = true)]
async fn an_order_that_changes_on_the_way_ends_the_copying() {
    let stop =
        |world: &Two| (VmState::Stop, world.one.vm(world.vm).node.clone().unwrap().to_string());
    for case in ["back", "stop", "shutdown"] {
        let world = two().await;
        world.manner(Manner { never_converges: true, ..Manner::default() });
        world.migrate("hv2").await;
        world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
        world.one.pass(120).await;
        assert_eq!(world.place().0, "migrate");
        match case {
            "back" => world.migrate("hv1").await,
            "stop" => {
                let (state, to) = stop(&world);
                world.order(state, &to).await;
            }
            _ => world.set(VmChange::State(VmState::Shutdown)).await,
        }
        let expected = if case == "back" { (true, false) } else { (false, false) };
        world.one.until(case, || world.runs_on() == expected).await;
        let state = if case == "back" { ("start", "hv1", "") } else { ("stop", "hv2", "hv1") };
        world.until_place(state.0, state.1, state.2).await;
        world.one.pass(60).await;
        assert_eq!(world.runs_on(), expected, "{case}");
        world.nothing_is_left_behind().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_vm_is_sent_to_another_node_in_the_middle_of_its_way() {
    let world = two().await;
    let three = world.one.another("hv3").await;
    let _daemon = three.running().await;
    world.manner(Manner { never_converges: true, ..Manner::default() });
    world.migrate("hv2").await;
    world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
    world.manner(copies_for(5));
    world.migrate("hv3").await;
    world.until_place("start", "hv3", "hv1").await;
    assert_eq!(world.runs_on(), (false, false));
    assert!(three.hypervisor.is_there(world.vm));
    world.nothing_is_left_behind().await;
}

#[tokio::test(start_paused = true)]
async fn a_target_whose_daemon_does_not_run_is_not_waited_for_for_ever() {
    let one = world().await;
    let two = one.another("hv2").await;
    let vm = one.define(1, VmState::Start).await;
    let daemon = one.running().await;
    two.running().await.stop().await;
    one.until_runs(vm).await;
    let world = Two { one, two, vm, _daemons: vec![daemon] };
    world.migrate("hv2").await;
    world.until_place("start", "hv1", "").await;
    let why = world.one.vm(vm).moving.as_ref().unwrap().why.clone();
    assert_eq!(why, "node `hv2` did not get ready to receive it within 30 s");
    assert_eq!(world.runs_on(), (true, false));
    world.nothing_is_left_behind().await;
}

#[tokio::test(start_paused = true)]
async fn a_guest_is_not_shut_down_for_a_target_that_does_not_answer() {
    let world = two().await;
    for (was_reached, attempts) in [(false, 3), (true, 1)] {
        world.manner(copies_for(20));
        match was_reached {
            true => world.one.hypervisor.add_peer("hv2", &world.two.hypervisor),
            // As behind a firewall.
            false => world.one.hypervisor.add_peer("hv2", &ScriptedHypervisor::new()),
        }
        let before = world.one.hypervisor.count("migrate", world.vm);
        world.migrate("hv2").await;
        world
            .one
            .until("it begins", || world.one.hypervisor.count("migrate", world.vm) > before)
            .await;
        world.two.hypervisor.set_unreachable(was_reached);
        world.until_place("start", "hv1", "").await;
        world.one.until("it says so", || world.phase() == Some(MovePhase::Failed)).await;
        let why = world.one.vm(world.vm).moving.as_ref().unwrap().why.clone();
        assert!(why.contains("the hypervisor of node `hv2` does not answer"), "{why}");
        assert_eq!(world.one.hypervisor.count("migrate", world.vm) - before, attempts);
        assert_eq!(world.one.hypervisor.count("shutdown", world.vm), 0);
        assert!(runs(&world.one, world.vm));
        world.nothing_is_left_behind().await;
        world.two.hypervisor.set_unreachable(false);
    }
    world.one.until("nothing of it is there", || world.runs_on() == (true, false)).await;
    world.migrate("hv2").await;
    world.until_place("start", "hv2", "hv1").await;
    assert_eq!(world.one.hypervisor.count("start", world.vm), 1);
}

#[tokio::test(start_paused = true)]
async fn by_shutdown_only_needs_no_word_between_the_hypervisors() {
    let world = two().await;
    world.set(VmChange::MigrationMethod(Some(MigrationMethod::Shutdown))).await;
    world.one.hypervisor.add_peer("hv2", &ScriptedHypervisor::new());
    world.migrate("hv2").await;
    world.until_place("start", "hv2", "hv1").await;
    world.one.until("it runs there", || world.runs_on() == (false, true)).await;
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_stands_still_is_given_up_and_tried_again() {
    let world = two().await;
    world.manner(Manner { migration_stalls: true, ..Manner::default() });
    world.migrate("hv2").await;
    world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
    // As for the last of it, which may wait for the volume.
    world.one.hypervisor.set_run(world.vm, pvc_ports::GuestRun::Paused);
    world.one.pass(120).await;
    assert_eq!(
        (world.phase(), world.one.hypervisor.count("migrate", world.vm)),
        (Some(MovePhase::Copying), 1)
    );
    world.one.hypervisor.set_run(world.vm, pvc_ports::GuestRun::Running);
    world.manner(copies_for(5));
    let begun = world.one.now();
    world.until_place("start", "hv2", "hv1").await;
    let took = world.one.now() - begun;
    assert!((60..70).contains(&took.as_secs()), "{took:?}");
    assert_eq!(world.one.hypervisor.count("migrate", world.vm), 2);
}

/// Found by the simulation: it was copied for ever, and its node never became ready.
#[tokio::test(start_paused = true)]
async fn a_guest_that_writes_as_fast_as_it_is_copied_is_not_copied_for_ever() {
    for method in [None, Some(MigrationMethod::Live)] {
        let world = two().await;
        world.set(VmChange::MigrationMethod(method.clone())).await;
        world.manner(Manner { never_converges: true, ..Manner::default() });
        let begun = world.one.now();
        world.migrate("hv2").await;
        world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
        match method {
            None => world.until_place("start", "hv2", "hv1").await,
            Some(_) => world.until_place("start", "hv1", "").await,
        }
        let took = (world.one.now() - begun).as_secs();
        assert!((300..330).contains(&took), "{took} s");
        assert_eq!(
            world.one.hypervisor.count("migrate", world.vm),
            1,
            "another try would do no better"
        );
        if method.is_some() {
            assert_eq!(world.one.hypervisor.count("shutdown", world.vm), 0);
            world.one.until("it is told", || world.phase() == Some(MovePhase::Failed)).await;
            let why = world.one.vm(world.vm).moving.as_ref().unwrap().why.clone();
            assert!(why.starts_with("the guest writes as fast as it is copied"), "{why}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_guest_is_not_held_without_limit_for_a_target_that_takes_nothing_or_is_silent() {
    for (is_silent, limit) in [(false, 300), (true, 60)] {
        let world = two().await;
        world.manner(Manner { migration_stalls: true, ..Manner::default() });
        world.migrate("hv2").await;
        world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
        world.one.hypervisor.set_run(world.vm, pvc_ports::GuestRun::Paused);
        world.two.hypervisor.set_unreachable(is_silent);
        let begun = world.one.now();
        let is_over = || {
            let attempts = world.one.hypervisor.count("migrate", world.vm);
            attempts == 2 || world.phase() == Some(MovePhase::Failed)
        };
        world.one.until("it is given up", is_over).await;
        let took = (world.one.now() - begun).as_secs();
        assert!((limit..limit + 10).contains(&took), "{took} s");
    }
}

#[tokio::test(start_paused = true)]
async fn a_guest_is_not_copied_to_where_no_daemon_would_let_it_go_on() {
    let one = world().await;
    let two = one.another("hv2").await;
    let vm = one.define(1, VmState::Start).await;
    let (daemon, other) = (one.running().await, two.running().await);
    one.until_runs(vm).await;
    let world = Two { one, two, vm, _daemons: vec![daemon] };
    world.manner(Manner { never_converges: true, ..Manner::default() });
    world.migrate("hv2").await;
    world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
    other.stop().await;
    world.until_place("start", "hv1", "").await;
    let why = world.one.vm(vm).moving.as_ref().unwrap().why.clone();
    assert!(why.contains("the daemon of node `hv2` does not run"), "{why}");
    assert_eq!(world.one.hypervisor.count("migrate", vm), 1);
    assert!(runs(&world.one, vm));
}

#[tokio::test(start_paused = true)]
async fn a_vm_whose_guest_ended_on_the_way_is_started_on_its_new_node() {
    let world = two().await;
    world.manner(Manner { never_converges: true, ..Manner::default() });
    world.migrate("hv2").await;
    world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
    // A killed guest has no time to let go of its volume.
    world.one.storage.lock("vms/vm1_sda", "10.0.1.1");
    world.one.hypervisor.kill(world.vm);
    world.until_place("start", "hv2", "hv1").await;
    world.one.until("it runs there", || world.runs_on() == (false, true)).await;
    assert_eq!(world.place().0, "start");
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_is_moved_while_it_is_being_started_runs_once_on_its_new_node() {
    for (state, takes) in
        [(VmState::Migrate, 5), (VmState::Migrate, 100), (VmState::MigrateLive, 100)]
    {
        let two = two().await;
        two.one.request(two.vm, VmState::Stop).await;
        two.one.until("it is off", || two.runs_on() == (false, false)).await;
        two.manner(Manner { start_takes: Duration::from_secs(takes), ..Manner::default() });
        two.one.request(two.vm, VmState::Start).await;
        two.one.until("it is being made", || two.one.hypervisor.is_there(two.vm)).await;
        two.order(state.clone(), "hv2").await;
        two.one.pass(40).await;
        assert_eq!(two.runs_on(), (false, true), "{state}, a start of {takes} s");
        two.until_place("start", "hv2", "hv1").await;
        let resumed = |world: &World| world.hypervisor.count("resume", two.vm);
        assert_eq!(
            (resumed(&two.one), resumed(&two.two)),
            (1, 1),
            "the guest before, and this one"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn twenty_vms_cross_each_other_and_each_runs_once() {
    let one = world().await;
    let two = one.another("hv2").await;
    let mut there = Vec::new();
    for number in 1..=20 {
        there.push(one.define(number, VmState::Start).await);
    }
    let _daemons = [one.running().await, two.running().await];
    one.until("all run", || there.iter().all(|vm| one.hypervisor.is_there(*vm))).await;
    for (round, to) in [(0, "hv2"), (1, "hv1"), (2, "hv2")] {
        let all: Vec<Uuid> = there.iter().skip(round * 3).step_by(2).copied().collect();
        let mut changes = Changes::new();
        for vm in &all {
            changes
                .vm(*vm, VmChange::State(VmState::Migrate))
                .vm(*vm, VmChange::Node(NodeName::new(to)));
        }
        one.change(changes).await;
        one.until("all have arrived", || {
            for vm in &there {
                assert!(!(runs(&one, *vm) && runs(&two, *vm)), "{vm} runs twice");
            }
            all.iter().all(|vm| one.state(*vm) == "start")
        })
        .await;
        let here = if to == "hv1" { &one } else { &two };
        assert!(all.iter().all(|vm| runs(here, *vm)), "round {round}");
    }
}

/// A VM that runs is promised nothing any more: what it took has to be in the figures by then.
#[tokio::test(start_paused = true)]
async fn how_much_memory_is_left_is_reported_as_soon_as_a_guest_has_come() {
    let world = two().await;
    let free = || world.two.node().unwrap().figures.memory_free_mib;
    world.one.until("it has said what it has", || free() == 12_288).await;
    world.manner(copies_for(2));
    world.migrate("hv2").await;
    world.one.until("it copies", || world.phase() == Some(MovePhase::Copying)).await;
    world.two.host.set_load(HostLoad {
        memory_total_mib: 16_384,
        memory_used_mib: 4352,
        memory_free_mib: 12_032,
        load: 0.5,
    });
    world.one.until("it is listed", || world.two.node().unwrap().running == [world.vm]).await;
    let since = world.one.now();
    world.one.until("what is left is told", || free() == 12_032).await;
    assert!(world.one.now() - since < Duration::from_millis(500), "{:?}", world.one.now() - since);
}

/// Others start a VM where they are told to, unless a node has said before that it is at starting
/// it.
#[tokio::test(start_paused = true)]
async fn nothing_is_started_that_could_not_be_announced() {
    let world = world().await;
    let vm = world.define(1, VmState::Start).await;
    let daemon = world.running().await;
    world.until_runs(vm).await;
    world.until("it is told", || world.node().unwrap().working_on.is_empty()).await;
    daemon.connection.lose_majority();
    world.hypervisor.kill(vm);
    world.pass(120).await;
    assert_eq!(world.hypervisor.count("start", vm), 1, "nobody was told of a second one");
}
