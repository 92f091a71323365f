//! VMs are started, stopped, restarted and disabled.

use pvc_model::job::JobId;
use pvc_model::job::provision::Provision;

use super::*;

#[tokio::test]
async fn a_start_that_takes_more_memory_than_there_is_is_warned_of_or_refused() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.define("db1", OTHER).await;
    let figures = NodeFigures { memory_total_mib: 1000, ..NodeFigures::default() };
    world.store.report(vec![Report::Figures("hv1".into(), figures)]).await.unwrap();
    let ask =
        StateAsk { refuse_memory_overcommit: true, ..StateAsk::new(StateRequest::Start, false) };
    vm::set_state(&world.store, "web1", ask).await.unwrap();
    let refusal = refused(vm::set_state(&world.store, "db1", ask).await);
    let StateRefusal::Crowded { crowding, .. } = &refusal else { panic!("{refusal}") };
    assert_eq!((crowding.has_mib, crowding.wanted_mib), (1000, 1024));
    for ask in
        [StateAsk { force: true, ..ask }, StateAsk { refuse_memory_overcommit: false, ..ask }]
    {
        let outcome = vm::set_state(&world.store, "db1", ask).await.unwrap();
        assert!(outcome.warnings[0].contains("1000 MiB"), "{outcome:?}");
        vm::set_state(&world.store, "db1", StateAsk::new(StateRequest::Stop, false)).await.unwrap();
    }
}

#[tokio::test]
async fn states_are_asked_for_and_refused() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let ask = |request, force| vm::set_state(&world.store, "web1", StateAsk::new(request, force));
    let refusal = refused(ask(StateRequest::Restart, false).await);
    assert_eq!(
        refusal.to_string(),
        "VM `web1` cannot be restarted: the VM is in state `stop`, not `start`"
    );
    let before = world.vm().state_version;
    ask(StateRequest::Start, false).await.unwrap();
    ask(StateRequest::Start, false).await.unwrap();
    assert_eq!(world.vm().state, VmState::Start);
    assert_eq!(world.vm().state_version, before + 2, "each request is one");
    let outcome = ask(StateRequest::Shutdown, false).await.unwrap();
    assert_eq!(outcome.answer, Answer::Write(VmState::Shutdown));
    assert_eq!(ask(StateRequest::Shutdown, false).await.unwrap().answer, Answer::UnderWay);
    let unknown = refused(
        vm::set_state(&world.store, "nope\u{7}", StateAsk::new(StateRequest::Start, false)).await,
    );
    assert_eq!(
        (unknown.to_string().as_str(), unknown.kind()),
        ("there is no VM `nope\u{fffd}`", Kind::NotFound)
    );
}

/// Found by a review: its script and a guest wrote one file system.
#[tokio::test]
async fn a_vm_that_a_task_makes_is_left_to_that_unless_forced() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.state(VmState::Provision).await;
    let making = Provision {
        vm: JobVm { name: "web1".into(), uuid: Some(UUID) },
        profile: "small".into(),
        define: true,
        start: true,
        refuse_memory_overcommit: false,
        arguments: Vec::new(),
    };
    let job = JobId::from_bits(1);
    let spec = JobSpec {
        id: job.clone(),
        work: JobWork::Provision(Box::new(making)),
        node: "hv1".into(),
        run_on: "hv1".into(),
        submitter: "tests".into(),
        submitted_at: 1,
    };
    world.write(|changes| _ = changes.push(Change::SubmitJob(spec.clone()))).await;
    let ask = |request, force| vm::set_state(&world.store, "web1", StateAsk::new(request, force));
    for request in StateRequest::ALL {
        let refusal = refused(ask(*request, false).await);
        assert!(matches!(refusal, StateRefusal::BeingMade { .. }), "{refusal}");
    }
    let refusal = refused(ask(StateRequest::Start, false).await);
    let why = "VM `web1` cannot be started: it is being made by task `00000001`";
    assert_eq!((refusal.kind(), refusal.to_string().as_str()), (Kind::Conflict, why));
    assert!(refusal.hint().unwrap().ends_with("`pvc task cancel 00000001`"));
    assert_eq!(world.vm().state, VmState::Provision);
    // The task itself starts it at its end.
    assert!(vm::start_changes(&world.store.view(), UUID, false).is_ok());
    ask(StateRequest::Stop, true).await.unwrap();
    assert_eq!(world.vm().state, VmState::Stop);

    // One that a task has left so, or PVC 1.0.3.
    world.state(VmState::Provision).await;
    let ended = JobProgress::pending().ended(JobState::Failed, "over", 1);
    world.write(|changes| _ = changes.push(Change::JobProgress(job.clone(), ended.clone()))).await;
    ask(StateRequest::Start, false).await.unwrap();
    assert_eq!(world.vm().state, VmState::Start);
}

#[tokio::test]
async fn a_vm_that_waits_for_its_node_and_is_to_be_off_waits_no_more() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    for (state, request) in [
        (VmState::Stop, StateRequest::Stop),
        (VmState::Stop, StateRequest::Disable),
        (VmState::Shutdown, StateRequest::Shutdown),
        (VmState::Start, StateRequest::Shutdown),
    ] {
        world.state(state).await;
        let waits = |changes: &mut Changes| _ = changes.vm(UUID, VmChange::Autostart(true));
        world.write(waits).await;
        vm::set_state(&world.store, "web1", StateAsk::new(request, false)).await.unwrap();
        assert!(!world.vm().autostart, "{request:?}");
    }
    world.write(|changes| _ = changes.vm(UUID, VmChange::Autostart(true))).await;
    vm::set_state(&world.store, "web1", StateAsk::new(StateRequest::Start, false)).await.unwrap();
    assert!(world.vm().autostart, "its node takes that back when it is ready");
}

#[tokio::test]
async fn a_stop_that_a_legacy_node_would_lose_is_refused_unless_forced() {
    let world = World::with_nodes(&["hv1", "hv2"]).await;
    world.define("web1", UUID).await;
    world.running("hv1", &[UUID]).await;
    world
        .write(|changes| {
            changes
                .vm(UUID, VmChange::State(VmState::Migrate))
                .vm(UUID, VmChange::Node("hv2".into()));
        })
        .await;
    let stop =
        |force| vm::set_state(&world.store, "web1", StateAsk::new(StateRequest::Stop, force));
    world.store.announce_daemon(&"hv1".into(), "test").await.unwrap();
    let refusal = refused(stop(false).await);
    assert_eq!(
        refusal.to_string(),
        "VM `web1` cannot be stopped while it is being moved: node `hv2` has a part in it, runs \
         PVC 1.0.3, and would not keep to it"
    );
    assert!(refusal.kind() == Kind::Conflict && refusal.hint().unwrap().contains("`--force`"));
    assert_eq!(world.vm().state, VmState::Migrate);
    stop(true).await.unwrap();
    assert_eq!(world.vm().state, VmState::Stop);

    world.state(VmState::Migrate).await;
    world.store.announce_daemon(&"hv2".into(), "test").await.unwrap();
    stop(false).await.unwrap();
    assert_eq!(world.vm().state, VmState::Stop, "both are of this version");
}

#[tokio::test]
async fn a_vm_whose_xml_cannot_be_read_does_not_start() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world
        .write(|changes| {
            changes.vm(UUID, VmChange::Xml("<domain>".into()));
        })
        .await;
    let refusal = refused(
        vm::set_state(&world.store, "web1", StateAsk::new(StateRequest::Start, true)).await,
    );
    assert!(matches!(refusal, StateRefusal::Unreadable { .. }), "{refusal}");
    assert_eq!(world.vm().state, VmState::Stop);
}

#[tokio::test]
async fn of_two_vms_with_one_volume_the_second_hears_of_the_first() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let same = xml("db1", OTHER).replace("vms/db1_sda", "vms/web1_sda");
    vm::define(&world.store, &Define::new(same.clone())).await.unwrap();
    let start = |vm: &'static str| {
        vm::set_state(&world.store, vm, StateAsk::new(StateRequest::Start, false))
    };
    start("web1").await.unwrap();
    start("web1").await.unwrap();
    let refusal = refused(start("db1").await);
    assert_eq!(
        refusal.to_string(),
        "VM `db1` cannot be started: its volume `vms/web1_sda` is in use by VM `web1`, which is in \
         state `start`"
    );
    assert!(
        refusal.kind() == Kind::Conflict
            && refusal.hint().unwrap().starts_with("shut VM `web1` down first")
    );
    // Off by its record, and its guest is not gone yet.
    world.state(VmState::Stop).await;
    world.running("hv1", &[UUID]).await;
    assert!(matches!(refused(start("db1").await), StateRefusal::VolumeInUse { .. }));
    world.running("hv1", &[]).await;
    start("db1").await.unwrap();

    world.write(|changes| _ = changes.vm(OTHER, VmChange::State(VmState::Stop))).await;
    let both = |text: &str| {
        text.replace("<target dev='sda' bus='scsi'/>", "<target dev='sda' bus='scsi'/><shareable/>")
    };
    modify(&world, "web1", &both(&xml("web1", UUID)), false).await.unwrap();
    modify(&world, "db1", &both(&same), false).await.unwrap();
    start("web1").await.unwrap();
    start("db1").await.unwrap();
}

/// The guest would be ended, and then not start again.
#[tokio::test]
async fn a_restart_that_would_end_in_nothing_is_refused_before_the_guest_is_ended() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let same = xml("db1", OTHER).replace("vms/db1_sda", "vms/web1_sda");
    vm::define(&world.store, &Define::new(same)).await.unwrap();
    for vm in [UUID, OTHER] {
        world.write(|changes| _ = changes.vm(vm, VmChange::State(VmState::Start))).await;
    }
    let restart = vm::set_state(&world.store, "web1", StateAsk::new(StateRequest::Restart, false));
    let refusal = refused(restart.await);
    assert!(
        matches!(&refusal, StateRefusal::VolumeInUse { used, .. } if used.other == "db1"),
        "{refusal}"
    );
    let bigger = xml("web1", UUID).replace("</vcpu>", "</vcpu><!-- new -->");
    let refusal = refused(modify(&world, "web1", &bigger, true).await);
    assert!(refusal.kind() == Kind::Conflict && refusal.to_string().contains("`db1`"), "{refusal}");
    assert_eq!(world.vm().state, VmState::Start);
    // Without a restart nobody is ended.
    modify(&world, "web1", &bigger, false).await.unwrap();
}

#[tokio::test]
async fn a_start_that_promises_more_memory_than_there_is_says_so() {
    let world = World::with_nodes(&["hv1"]).await;
    let large = |name: &str, uuid| {
        let (before, rest) = xml(name, uuid)
            .split_once("<memory")
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .unwrap();
        let after = rest.split_once("</memory>").unwrap().1.to_owned();
        format!("{before}<memory unit='MiB'>10000</memory>{after}")
    };
    for (name, uuid) in [("web1", UUID), ("db1", OTHER)] {
        vm::define(&world.store, &Define::new(large(name, uuid))).await.unwrap();
    }
    let start = |vm: &'static str| {
        vm::set_state(&world.store, vm, StateAsk::new(StateRequest::Start, false))
    };
    assert!(start("web1").await.unwrap().warnings.is_empty());
    let warnings = start("db1").await.unwrap().warnings;
    assert!(
        warnings[0].contains("node `hv1` has 16000 MiB") && warnings[0].contains("20000 MiB"),
        "{warnings:?}"
    );
}

#[tokio::test]
async fn of_two_vms_with_one_volume_that_are_started_at_once_one_is() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let same = xml("db1", OTHER).replace("vms/db1_sda", "vms/web1_sda");
    vm::define(&world.store, &Define::new(same)).await.unwrap();
    let (slow, connection) = world.slow_process().await;
    let faster = world.store.clone();
    connection.before_next_multi(async move {
        vm::set_state(&faster, "web1", StateAsk::new(StateRequest::Start, false)).await.unwrap();
    });
    let refusal =
        refused(vm::set_state(&slow, "db1", StateAsk::new(StateRequest::Start, false)).await);
    assert!(matches!(refusal, StateRefusal::VolumeInUse { .. }), "{refusal}");
}

/// Found by a story: a hold that an API did not see yet kept it from nothing.
#[tokio::test]
async fn of_a_start_and_a_hold_of_its_volume_at_once_the_start_is_decided_again() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let (slow, connection) = world.slow_process().await;
    let faster = world.store.clone();
    connection.before_next_multi(async move {
        let (volume, by) = (VolumeId::parse("vms/web1_sda").unwrap(), "somebody".to_owned());
        let hold = VolumeHold { volume, purpose: Purpose::Fill { trashed: None }, by };
        let mut changes = Changes::new();
        changes.push(Change::HoldVolume(hold));
        let mut changes = Some(changes);
        let held = faster.change(|_| {
            Ok::<_, std::convert::Infallible>((changes.take().unwrap_or_default(), ()))
        });
        held.await.unwrap();
    });
    let start = StateAsk::new(StateRequest::Start, false);
    let refusal = refused(vm::set_state(&slow, "web1", start).await);
    assert!(matches!(refusal, StateRefusal::VolumeHeld { .. }), "{refusal}");
}

#[tokio::test(start_paused = true)]
async fn a_running_vm_is_disabled_after_it_stopped() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    for force in [false, true] {
        world.state(VmState::Start).await;
        world.running("hv1", &[UUID]).await;
        let outcome =
            vm::set_state(&world.store, "web1", StateAsk::new(StateRequest::Disable, force))
                .await
                .unwrap();
        world.is_disabled_when_its_guest_is_gone(&outcome).await;
    }
}

/// Found by a seed: its node leaves a disabled guest alone.
#[tokio::test(start_paused = true)]
async fn a_vm_that_is_being_stopped_is_disabled_when_its_guest_is_gone() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.state(VmState::Stop).await;
    world.running("hv1", &[UUID]).await;
    let outcome = vm::set_state(&world.store, "web1", StateAsk::new(StateRequest::Disable, false))
        .await
        .unwrap();
    assert_eq!(world.vm().state, VmState::Stop);
    world.is_disabled_when_its_guest_is_gone(&outcome).await;
}

/// Its node's record says `run` although the node is silent: in maintenance, or without fencing.
#[tokio::test(start_paused = true)]
async fn a_guest_whose_plug_nobody_pulls_is_not_waited_for_as_long_as_a_shutdown() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    let time_limit = Duration::from_secs(900);
    let store = world.store.clone();
    let stamps = tokio::spawn(async move {
        for stamp in 100.. {
            store.stamp(&"hv1".into(), stamp).await.unwrap();
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    });
    for (state, seconds) in [(VmState::Stop, 60), (VmState::Shutdown, 900)] {
        world.state(state).await;
        world.running("hv1", &[UUID]).await;
        let ask = StateAsk::new(StateRequest::Disable, false);
        let outcome = vm::set_state(&world.store, "web1", ask).await.unwrap();
        let begun = tokio::time::Instant::now();
        let slow = vm::finish_disable(&world.store, world.clock.as_ref(), &outcome, time_limit);
        let slow = refused(slow.await);
        let has_ended = !matches!(slow, StateRefusal::NotEnded { .. });
        assert_eq!(has_ended, seconds == 900, "{slow}");
        assert!(slow.to_string().ends_with(&format!("within {seconds} s")), "{slow}");
        assert_eq!(begun.elapsed().as_secs(), seconds);
    }
    stamps.abort();
    // Of a node that should run and says nothing, as in a maintenance without fences, nobody waits
    // for the shutdown of a guest.
    let ask = StateAsk::new(StateRequest::Disable, false);
    let outcome = vm::set_state(&world.store, "web1", ask).await.unwrap();
    let begun = tokio::time::Instant::now();
    let silent = vm::finish_disable(&world.store, world.clock.as_ref(), &outcome, time_limit);
    let silent = refused(silent.await);
    let words = "VM `web1` may run on node `hv1`, whose daemon should run, and has not been heard \
                 of for 60 s";
    assert_eq!(silent.to_string(), words);
    assert_eq!(begun.elapsed().as_secs(), 60);
}

/// Found by a seed: a disabled VM was to be started with its node, which never does that.
#[tokio::test(start_paused = true)]
async fn a_vm_that_a_flush_shut_down_first_waits_for_nothing_once_it_is_disabled() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.state(VmState::Start).await;
    world.running("hv1", &[UUID]).await;
    let outcome = vm::set_state(&world.store, "web1", StateAsk::new(StateRequest::Disable, false))
        .await
        .unwrap();
    world.write(|changes| _ = changes.vm(UUID, VmChange::Autostart(true))).await;
    world.is_disabled_when_its_guest_is_gone(&outcome).await;
    assert!(!world.vm().autostart);
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_does_not_stop_or_is_started_again_is_not_disabled() {
    let world = World::with_nodes(&["hv1"]).await;
    world.define("web1", UUID).await;
    world.state(VmState::Start).await;
    let outcome = vm::set_state(&world.store, "web1", StateAsk::new(StateRequest::Disable, false))
        .await
        .unwrap();
    let time_limit = Duration::from_secs(200);
    let slow =
        refused(vm::finish_disable(&world.store, world.clock.as_ref(), &outcome, time_limit).await);
    assert!(matches!(slow, StateRefusal::TooSlow { seconds: 200, .. }));
    world.state(VmState::Start).await;
    let refusal =
        refused(vm::finish_disable(&world.store, world.clock.as_ref(), &outcome, time_limit).await);
    assert!(matches!(refusal, StateRefusal::StateChanged { state: VmState::Start, .. }));
}
