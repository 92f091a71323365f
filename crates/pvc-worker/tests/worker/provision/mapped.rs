//! Volumes that a script has as devices: held while it may write them, and by whom they are let go
//! of.

use super::*;

/// On one machine guest and script wrote one filesystem, and a cluster's node freed the lock of
/// the script's device to start the guest.
#[tokio::test(start_paused = true)]
async fn a_vm_whose_volume_a_script_has_mapped_is_not_started_until_it_is_unmapped() {
    let world = World::mapping("web1_sda", ScriptAct::Hang).await;
    world.healthy_worker("hv1").await;
    world.until(async || world.devices.mapped() == [id("vms/web1_sda")]).await;
    let why = "VM `web1` cannot be started: volume `vms/web1_sda` is being worked on by the script \
               of task `00000001` on node `hv1`";
    assert_eq!(world.start_web1().await, Err(why.to_owned()));
    world.cancel().await;
    let end = world.end().await;
    assert_eq!((end.state, world.held().await), (JobState::Cancelled, vec![]));
    world.start_web1().await.expect("nobody has its volume");

    // As soon as the script unmaps it, and not when its process ends.
    let world = World::new(Case::Provision).await;
    let named = || json!({"pool": "vms", "name": "web1_sda"});
    let acts = ["ceph.map_volume", "ceph.unmap_volume"].map(|function| call(function, named()));
    world.scripts.set("setup", acts.into_iter().chain([ScriptAct::Hang]).collect::<Vec<_>>());
    world.healthy_worker("hv1").await;
    let returned = || {
        let answers = world.scripts.answers();
        answers.iter().filter(|answer| matches!(answer, ScriptOrder::Returned(_))).count()
    };
    world.until(async || returned() == 2).await;
    assert_eq!(world.held().await, []);
    world.start_web1().await.expect("nobody has its volume");
}

/// The volumes of a VM in the making were the only mapped ones without a hold, and anybody could
/// start it.
#[tokio::test(start_paused = true)]
async fn a_vm_in_the_making_is_not_started_under_its_script_nor_are_its_volumes_touched() {
    use pvc_model::request::StateRequest;

    let world = World::hanging().await;
    world.healthy_worker("hv1").await;
    world.until_mapped().await;
    assert_eq!(world.held().await, VOLUMES.map(id));
    let ask = async |request, force| {
        let ask = pvc_ops::vm::StateAsk::new(request, force);
        let asked = pvc_ops::vm::set_state(&world.store, "new", ask).await;
        asked.map(drop).map_err(|why| why.to_string())
    };
    let why = "VM `new` cannot be started: it is being made by task `00000001`";
    assert_eq!(ask(StateRequest::Start, false).await, Err(why.to_owned()));
    // Its volumes are held all the same.
    ask(StateRequest::Stop, true).await.expect("it is forced");
    let is_held = |why: String| why.contains("is being worked on by the script of task `00000001`");
    assert!(ask(StateRequest::Start, true).await.is_err_and(is_held));
    let (store, disk) = (&world.store, id(VOLUMES[0]));
    let storage = world.storage.as_ref();
    let removed = pvc_ops::storage::remove_volume(store, storage, &disk, Duration::ZERO, true);
    assert!(removed.await.is_err_and(|why| is_held(why.to_string())));
    world.cancel().await;
    let end = world.end().await;
    assert_eq!((end.state, world.held().await), (JobState::Cancelled, vec![]));
    ask(StateRequest::Start, false).await.expect("nobody has its volumes");
}

#[tokio::test(start_paused = true)]
async fn what_a_script_has_mapped_of_its_own_vm_it_may_resize_and_not_rename() {
    let world = World::new(Case::Provision).await;
    let disk = || json!({"pool": "vms", "name": "new_sda"});
    let sized = json!({"pool": "vms", "name": "new_sda", "size": "512M", "force_flag": true});
    let renamed = json!({"pool": "vms", "name": "new_sda", "new_name": "x"});
    let calls = vec![
        call("ceph.map_volume", disk()),
        call("ceph.resize_volume", sized),
        call("ceph.rename_volume", renamed),
        call("ceph.unmap_volume", disk()),
    ];
    let answers = world.answers_in("install", ScriptPhase::Install, calls).await;
    let is_done = |answer: &Result<Value, String>| answer.as_ref().is_ok_and(|it| it[0] == true);
    let done: Vec<bool> = answers.iter().map(is_done).collect();
    assert_eq!(done, [true, true, false, true], "{answers:?}");
    assert!(world.storage.volume(&id("vms/new_sda")).await.is_ok());
}

/// Somebody may be a guest that got it while it ran, or works on it by hand.
#[tokio::test(start_paused = true)]
async fn a_volume_that_somebody_has_open_is_not_mapped() {
    let world = World::mapping("image_debian", done(Value::Null)).await;
    let image = id("vms/image_debian");
    world.storage.with_volumes(|volumes| volumes.open(&image, "a guest"));
    world.healthy_worker("hv1").await;
    assert_eq!(world.end().await.state, JobState::Succeeded);
    let is_refusal = |answer: &ScriptOrder| match answer {
        ScriptOrder::Returned(value) => value.to_string().contains("`vms/image_debian` is in use"),
        _ => false,
    };
    let answers = world.scripts.answers();
    assert!(answers.iter().any(is_refusal), "{answers:?}");
    assert_eq!(world.held().await, []);
}

#[tokio::test(start_paused = true)]
async fn what_a_script_has_mapped_is_let_go_of_whenever_its_worker_dies() {
    let mut was_held = false;
    at_calls!(call, 1, {
        let world = World::mapping("web1_sda", done(Value::Null)).await;
        let first = world.worker("hv1", call).await;
        let stops = world.stops(&first).await;
        was_held |= !world.held().await.is_empty();
        first.die().await;
        world.healthy_worker("hv1").await;
        let end = world.end().await;
        world.assert_nothing_left(&format!("at call {call}")).await;
        assert_eq!(world.held().await, [], "at call {call}: {end:?}");
        stops
    });
    assert!(was_held);
}

/// A worker that is cut off, or stands still, goes on with its script.
#[tokio::test(start_paused = true)]
async fn what_a_script_has_mapped_elsewhere_is_held_until_its_node_is_back_or_proven_dead() {
    for is_back in [false, true] {
        let world = World::mapping("web1_sda", ScriptAct::Hang).await;
        let first = world.healthy_worker("hv1").await;
        world.until(async || world.devices.mapped() == [id("vms/web1_sda")]).await;
        first.die().await;
        world.healthy_worker("hv2").await;
        let why = "volume `vms/web1_sda` may still be mapped on node `hv1`";
        world.until(async || world.progress().status.contains(why)).await;
        assert_eq!(world.held().await, [id("vms/web1_sda")]);
        assert!(world.start_web1().await.is_err());
        match is_back {
            true => _ = world.healthy_worker("hv1").await,
            false => {
                let hv1 = NodeName::new("hv1");
                let dead = || Change::Node(hv1.clone(), NodeChange::Daemon(DaemonState::Fenced));
                world.write(|changes| _ = changes.push(dead())).await;
            }
        }
        let end = world.end().await;
        assert_eq!((end.state, world.held().await), (JobState::Failed, vec![]), "{is_back}");
    }
}

/// A worker that is cut off does not know that its session is over: until it does its script goes
/// on, and what that has mapped stays held.
#[tokio::test(start_paused = true)]
async fn a_script_ends_when_its_worker_learns_that_its_session_is_over() {
    for is_cut_off in [false, true] {
        let world = World::hanging().await;
        let worker = world.healthy_worker("hv1").await;
        world.until_mapped().await;
        if is_cut_off {
            worker.tree.cut();
        }
        let owner = format!("/tasks/{}/owner", world.job);
        let keys = [owner, "/pvcrs/workers/hv1".to_owned()];
        let gone = keys.map(|path| Op::Delete { path, version: None }).to_vec();
        world.tree.connect().multi(gone).await.expect("it is at work");
        // The next one is of another node, and does not see these devices.
        world.devices.set_former_alive(true);
        world.healthy_worker("hv2").await;
        if is_cut_off {
            let why = "may still be mapped on node `hv1`";
            world.until(async || world.progress().status.contains(why)).await;
            assert_eq!((world.scripts.running(), world.devices.mapped().len()), (1, 2));
            assert_eq!(world.held().await, VOLUMES.map(id));
            worker.tree.mend();
        }
        let end = world.end().await;
        assert_eq!((end.state, world.held().await), (JobState::Failed, vec![]), "{is_cut_off}");
        world.assert_nothing_left("when its session is over").await;
    }
}

/// The configuration of the node names no database of profiles any more.
#[tokio::test(start_paused = true)]
async fn a_worker_that_runs_no_scripts_ends_what_those_before_have_left() {
    let world = World::mapping("web1_sda", ScriptAct::Hang).await;
    let first = world.healthy_worker("hv1").await;
    world.until(async || world.devices.mapped() == [id("vms/web1_sda")]).await;
    first.die().await;
    world.profiles.unname();
    world.healthy_worker("hv1").await;
    let end = world.end().await;
    assert_eq!((end.state, world.held().await), (JobState::Failed, vec![]));
    assert_eq!(world.devices.mapped(), []);
    let view = world.store.fresh().await.expect("the tree is open");
    let kinds = &view.workers["hv1"].kinds;
    assert!(!kinds.contains(JobWork::PROVISION), "{kinds:?}");
}

/// The hold may be of a task of a tree that was replaced, or one that could not be unmapped in its
/// time.
#[tokio::test(start_paused = true)]
async fn what_is_held_for_a_script_that_no_process_of_the_node_runs_is_let_go_of() {
    let world = World::new(Case::Provision).await;
    world.hold_for_former("vms/web1_sda").await;
    let other = world.healthy_worker("hv2").await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(world.held().await, [id("vms/web1_sda")], "it is another node's");
    other.stop().await;
    world.healthy_worker("hv1").await;
    world.until(async || world.held().await.is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_stops_ends_its_script_and_unmaps_its_devices() {
    let world = World::hanging().await;
    let worker = world.healthy_worker("hv1").await;
    world.until_mapped().await;
    worker.stop().await;
    assert_eq!((world.scripts.running(), world.devices.mapped()), (0, vec![]));
    assert!(!world.progress().state.is_over(), "{:?}", world.progress());
    world.healthy_worker("hv1").await;
    assert_eq!(world.end().await.state, JobState::Failed);
    world.assert_nothing_left("after the next worker").await;
}

#[tokio::test(start_paused = true)]
async fn a_device_that_cannot_be_unmapped_keeps_none_of_the_others_and_its_task_until_it_can() {
    let world = World::hanging().await;
    world.devices.refuse_to_unmap(&id(VOLUMES[0]));
    world.healthy_worker("hv1").await;
    world.until_mapped().await;
    world.cancel().await;
    world.until(async || world.devices.mapped() == [id(VOLUMES[0])]).await;
    world.until(async || world.held().await == [id(VOLUMES[0])]).await;
    assert!(!world.progress().state.is_over(), "{:?}", world.progress());
    world.devices.allow_to_unmap(&id(VOLUMES[0]));
    let end = world.end().await;
    assert_eq!((end.state, world.held().await), (JobState::Cancelled, vec![]));
    world.assert_nothing_left("when it can be unmapped").await;
}

#[tokio::test(start_paused = true)]
async fn a_device_of_former_scripts_that_cannot_be_unmapped_keeps_no_other_volume_held() {
    let (world, stuck) = (World::hanging().await, id(VOLUMES[0]));
    let first = world.healthy_worker("hv1").await;
    world.until_mapped().await;
    first.die().await;
    world.hold_for_former("vms/web1_sda").await;
    world.devices.refuse_to_unmap(&stuck);
    world.devices.set_former_alive(true);
    world.healthy_worker("hv1").await;
    world.until(async || world.progress().status.contains("it will be tried again")).await;
    let all = [&VOLUMES[..], &["vms/web1_sda"]].concat();
    assert_eq!(world.held().await, all.into_iter().map(id).collect::<Vec<_>>());
    world.devices.set_former_alive(false);
    world.until(async || world.held().await == [stuck.clone()]).await;
    assert!(!world.progress().state.is_over(), "{:?}", world.progress());
    world.devices.allow_to_unmap(&stuck);
    let end = world.end().await;
    assert_eq!((end.state, world.held().await), (JobState::Failed, vec![]));
    world.assert_nothing_left("when it can be unmapped").await;
}

/// A Ceph that did not answer kept jobs from beginning, and a cancellation from being seen.
#[tokio::test(start_paused = true)]
async fn jobs_do_not_wait_for_a_device_of_former_scripts_that_hangs() {
    let world = World::hanging().await;
    world.devices.stick();
    world.healthy_worker("hv1").await;
    world.until_mapped().await;
    world.cancel().await;
    let end = world.end().await;
    assert_eq!((end.state, world.held().await), (JobState::Cancelled, vec![]));
}

/// Its task failed if it began before what was left of an earlier one was ended.
#[tokio::test(start_paused = true)]
async fn a_script_waits_for_a_volume_that_an_earlier_worker_has_left_mapped_unless_it_is_to_end() {
    for cancels in [false, true] {
        let world = World::mapping("web1_sda", done(Value::Null)).await;
        let former = world.devices.of_process(usize::MAX, None);
        let earlier = pvc_model::job::JobId::from_bits(9);
        former.map(&id("vms/web1_sda"), &earlier).await.expect("nobody has it");
        world.devices.set_former_alive(true);
        world.healthy_worker("hv1").await;
        let waits = |line: &String| line.ends_with("the script waits for it");
        world.until(async || world.progress().log.iter().any(waits)).await;
        match cancels {
            true => world.cancel().await,
            false => world.devices.set_former_alive(false),
        }
        let end = world.end().await;
        let expected = if cancels { JobState::Cancelled } else { JobState::Succeeded };
        assert_eq!(end.state, expected, "{end:?}");
        let left = if cancels { vec![id("vms/web1_sda")] } else { vec![] };
        assert_eq!((world.scripts.running(), world.devices.mapped()), (0, left));
    }
}
