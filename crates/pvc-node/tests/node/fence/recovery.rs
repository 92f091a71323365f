//! VMs of dead nodes run elsewhere, each once.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_vm_given_to_another_node_while_its_own_was_silent_starts_there_once_that_is_dead() {
    let mut three = Three::start(|_| {}).await;
    let vm = three.run_vm(1, 3).await;
    three.eyes().power.set_manner("bmc-hv3", BmcManner { dead: true, ..BmcManner::default() });
    three.lose(3, true).await;
    let eyes = three.eyes();
    eyes.until("it is taken for dead", || three.state("hv3").0 == DaemonState::Dead).await;
    three.write(vm, [VmChange::State(VmState::Start), VmChange::Node(NodeName::new("hv1"))]).await;
    eyes.pass(30).await;
    assert_eq!(three.runs_on(vm), Vec::<usize>::new(), "the silent node lists it");
    eyes.storage.set_locks_take(Duration::from_secs(3));
    eyes.power.set_manner("bmc-hv3", BmcManner::default());
    eyes.until("it runs there", || three.runs_on(vm) == [1]).await;
    assert_eq!(eyes.state(vm), "start");
}

/// The VM's locks stayed, and its next start on any other node failed because of them; one that was
/// on its way down stayed so, and could be given to nobody.
#[tokio::test(start_paused = true)]
async fn a_vm_that_was_to_be_off_when_its_node_died_is_off_and_can_start_elsewhere() {
    let mut three = Three::start(|_| {}).await;
    let (stopped, ending) = (three.run_vm(1, 3).await, three.run_vm(2, 3).await);
    three.eyes().pass(10).await;
    three.lose(3, true).await;
    three.write(stopped, [VmChange::State(VmState::Stop)]).await;
    three.write(ending, [VmChange::State(VmState::Shutdown)]).await;
    let eyes = three.eyes();
    eyes.until("the fence is over", || {
        three.state("hv3") == (DaemonState::Fenced, DomainState::Flushed)
    })
    .await;
    assert_eq!((eyes.state(stopped), eyes.state(ending)), ("stop".to_owned(), "stop".to_owned()));
    for vm in [stopped, ending] {
        three
            .write(vm, [VmChange::State(VmState::Start), VmChange::Node(NodeName::new("hv1"))])
            .await;
        eyes.until("it runs there", || three.runs_on(vm) == [1]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_vm_without_a_place_is_off_until_its_node_is_ready_and_keeps_its_home() {
    let mut three = Three::start(|_| {}).await;
    let (there, away) = (three.run_vm(1, 3).await, three.run_vm(2, 3).await);
    let only = || VmChange::NodeLimit(vec![NodeName::new("hv3")]);
    three.write(there, [only()]).await;
    three.write(away, [only(), VmChange::LastNode(Some(NodeName::new("hv1")))]).await;
    three.lose(3, true).await;
    let eyes = three.eyes();
    for vm in [there, away] {
        eyes.until_state(vm, "stop").await;
        assert!(eyes.vm(vm).autostart);
        assert_eq!(eyes.vm(vm).node.as_ref().unwrap().as_str(), "hv3");
    }
    assert_eq!(eyes.vm(there).last_node, None);
    assert_eq!(eyes.vm(away).last_node, Some(NodeName::new("hv1")));
    let fault = eyes.until_fault("NODE_FENCED_HV3").await;
    assert!(fault.contains("VMs that wait for a place: vm1: no node can take the VM"), "{fault}");
    three.daemons[2] = Some(three.worlds[2].start().await);
    let eyes = three.eyes();
    eyes.until("it is back", || three.state("hv3") == (DaemonState::Run, DomainState::Flushed))
        .await;
    eyes.pass(60).await;
    assert_eq!(
        three.runs_on(there),
        Vec::<usize>::new(),
        "that it is well is for an operator to say"
    );
    eyes.request_node_of("hv3", DomainState::Unflush).await;
    eyes.until("they run again", || three.runs_on(there) == [3] && three.runs_on(away) == [3])
        .await;
    assert!(!eyes.vm(there).autostart);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_gone_holds_up_no_other_vm() {
    let mut three = Three::start(|_| {}).await;
    let (well, gone) = (three.run_vm(1, 3).await, three.run_vm(2, 3).await);
    let stale = VolumeId::from_record("vms/renamed_long_ago").unwrap();
    three.write(well, [VmChange::Volumes(vec![stale])]).await;
    three.eyes().storage.remove(&VolumeId::from_record("vms/vm2_sda").unwrap()).await.unwrap();
    three.lose(3, true).await;
    let eyes = three.eyes();
    eyes.until("the one runs elsewhere", || three.runs_on(well).len() == 1).await;
    eyes.until_state(gone, "fail").await;
    assert!(
        eyes.vm(gone).failed_reason.contains("does not exist"),
        "{}",
        eyes.vm(gone).failed_reason
    );
    eyes.until("the fence is over", || {
        three.state("hv3") == (DaemonState::Fenced, DomainState::Flushed)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_vm_without_a_disk_is_recovered() {
    let mut three = Three::start(|_| {}).await;
    let vm = three.run_vm(1, 3).await;
    let with_disk = three.eyes().vm(vm).xml.to_string();
    let (before, rest) = with_disk.split_once("<disk").unwrap();
    let (_, after) = rest.split_once("</disk>").unwrap();
    three
        .write(vm, [VmChange::Xml(format!("{before}{after}")), VmChange::Volumes(Vec::new())])
        .await;
    three.lose(3, true).await;
    let eyes = three.eyes();
    eyes.until("it runs elsewhere", || three.runs_on(vm).len() == 1).await;
    eyes.until("the fence is over", || {
        three.state("hv3") == (DaemonState::Fenced, DomainState::Flushed)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn fifty_vms_of_a_dead_node_run_elsewhere_each_once() {
    let mut three = Three::start(|_| {}).await;
    let mut vms = Vec::new();
    for number in 1..=50 {
        vms.push(three.run_vm(number, 3).await);
    }
    three.lose(3, true).await;
    let eyes = three.eyes();
    eyes.until("it is taken for dead", || three.state("hv3").0 == DaemonState::Dead).await;
    let detected = eyes.now();
    eyes.until("all run elsewhere", || vms.iter().all(|vm| !three.runs_on(*vm).is_empty())).await;
    let took = eyes.now() - detected;
    assert!(took <= Duration::from_secs(5), "{took:?}");
    eyes.pass(60).await;
    assert!(vms.iter().all(|vm| three.runs_on(*vm).len() == 1));
}

#[tokio::test(start_paused = true)]
async fn a_dead_node_is_fenced_and_its_vms_run_elsewhere_within_seconds_of_the_detection() {
    let mut three = Three::start(|_| {}).await;
    let (up, off) = (three.run_vm(1, 3).await, three.worlds[2].define(2, VmState::Stop).await);
    let health = Report::NodeHealth(NodeName::new("hv3"), Some(90));
    three.eyes().operator.report(vec![health]).await.unwrap();
    three.lose(3, true).await;
    let eyes = three.eyes();
    eyes.until("it is taken for dead", || three.state("hv3").0 == DaemonState::Dead).await;
    let detected = eyes.now();
    eyes.until("its VM runs elsewhere", || !three.runs_on(up).is_empty()).await;
    let took = eyes.now() - detected;
    assert!(took <= Duration::from_secs(3), "{took:?}");
    eyes.until("the fence is over", || {
        three.state("hv3") == (DaemonState::Fenced, DomainState::Flushed)
    })
    .await;
    eyes.until("it is switched on again", || eyes.power.is_really_on("bmc-hv3")).await;
    assert_eq!(three.calls("off bmc-hv3"), 0, "it was off already");
    let vm = eyes.vm(up);
    assert_eq!((vm.state.as_str(), vm.last_node.as_ref().unwrap().as_str()), ("start", "hv3"));
    assert_eq!(
        eyes.vm(off).node.as_ref().unwrap().as_str(),
        "hv3",
        "what is off stays where it is"
    );
    eyes.until("how it ended is recorded", || {
        eyes.view().nodes["hv3"]
            .fence
            .as_ref()
            .is_some_and(|note| note.power == PowerAfter::SwitchedOn)
    })
    .await;
    eyes.pass(30).await;
    assert_eq!(three.calls("on bmc-hv3"), 1, "it was switched on once");
    let note = eyes.view().nodes["hv3"].fence.clone().unwrap();
    assert!(note.proof.contains("twice") && note.recovered[0].starts_with("vm1 on hv"), "{note:?}");
    let fault = eyes.until_fault("NODE_FENCED_HV3").await;
    assert!(fault.contains("vm1 on hv") && fault.contains(&note.proof), "{fault}");
    assert!(fault.contains("`pvc cluster fault delete NODE_FENCED_HV3`"), "{fault}");
    let left = eyes.view().nodes["hv3"].clone();
    assert!(left.running.is_empty());
    assert_eq!((left.figures, left.health), (NodeFigures::default(), None));
}

#[tokio::test(start_paused = true)]
async fn the_locks_of_the_dead_node_are_freed_and_a_volume_that_another_has_is_left_alone() {
    let mut three = Three::start(|_| {}).await;
    let (own, foreign) = (three.run_vm(1, 3).await, three.run_vm(2, 3).await);
    three.eyes().storage.lock("vms/vm2_sda", "10.0.1.2");
    three.lose(3, true).await;
    let eyes = three.eyes();
    eyes.until("the one is started", || !three.runs_on(own).is_empty()).await;
    eyes.until_state(foreign, "fail").await;
    let reason = eyes.vm(foreign).failed_reason.clone();
    assert!(reason.contains("10.0.1.2") && reason.contains("vms/vm2_sda"), "{reason}");
    assert_eq!(three.runs_on(foreign), Vec::<usize>::new());
}

/// The VM went to `fail`, and its reason told to flush the lock of the other guest.
#[tokio::test(start_paused = true)]
async fn a_vm_is_recovered_while_one_that_shares_its_volume_has_the_lock_on_a_living_node() {
    let mut three = Three::start(|_| {}).await;
    let (vm, other) = (three.run_vm(1, 3).await, three.run_vm(2, 2).await);
    for each in [vm, other] {
        let xml = three.eyes().vm(each).xml.replace("vms/vm1_sda", "vms/vm2_sda");
        let target = "<target dev='sda' bus='scsi'/>";
        let xml = xml.replace(target, &format!("{target}<shareable/>"));
        three.write(each, [VmChange::Xml(xml)]).await;
    }
    three.write(vm, [VmChange::NodeLimit(vec![NodeName::new("hv1")])]).await;
    three.eyes().pass(10).await;
    three.lose(3, true).await;
    let eyes = three.eyes();
    eyes.until("it runs, or has failed", || three.runs_on(vm) == [1] || eyes.state(vm) == "fail")
        .await;
    let reason = eyes.vm(vm).failed_reason.clone();
    assert_eq!((eyes.state(vm).as_str(), reason.as_str()), ("start", ""));
    let volume = VolumeId::from_record("vms/vm2_sda").unwrap();
    let locks = eyes.storage.locks(&volume).await.unwrap();
    assert_eq!(locks.len(), 1, "the living guest keeps its lock");
}

#[tokio::test(start_paused = true)]
async fn a_storage_that_hangs_delays_the_recovery_and_ends_nothing() {
    let mut three = Three::start(|_| {}).await;
    let vm = three.run_vm(1, 3).await;
    three.eyes().storage.set_failing(true);
    three.lose(3, true).await;
    let eyes = three.eyes();
    eyes.until("it is proven dead", || three.state("hv3").0 == DaemonState::Fenced).await;
    eyes.pass(120).await;
    assert_eq!(three.runs_on(vm), Vec::<usize>::new());
    assert_eq!(three.state("hv3").1, DomainState::FenceFlush);
    eyes.storage.set_failing(false);
    eyes.until("its VM runs elsewhere", || !three.runs_on(vm).is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn the_locks_of_a_node_that_came_back_are_those_of_its_guests() {
    let mut three = Three::start(|_| {}).await;
    let vm = three.run_vm(1, 3).await;
    three.eyes().storage.set_failing(true);
    three.lose(3, true).await;
    let eyes = three.eyes();
    eyes.until("it is proven dead", || three.state("hv3").0 == DaemonState::Fenced).await;
    eyes.until("it is switched on, since the recovery does not work out", || {
        eyes.power.is_really_on("bmc-hv3")
    })
    .await;
    three.daemons[2] = Some(three.worlds[2].start().await);
    let eyes = three.eyes();
    eyes.until("it runs again", || three.state("hv3") == (DaemonState::Run, DomainState::Flushed))
        .await;
    eyes.storage.set_failing(false);
    eyes.until("with its VM", || three.runs_on(vm) == [3]).await;
    eyes.pass(300).await;
    assert_eq!(three.runs_on(vm), [3]);
    assert_eq!(eyes.view().nodes["hv3"].running, [vm]);
}

#[tokio::test(start_paused = true)]
async fn a_vm_on_its_way_home_stays_where_it_runs_when_its_home_dies() {
    let mut three = Three::start(|_| {}).await;
    let vm = three.run_vm(1, 1).await;
    three.worlds[0]
        .hypervisor
        .set_manner(vm, Manner { migration_takes: Duration::from_secs(600), ..Manner::default() });
    let mut changes = Changes::new();
    changes.vm(vm, VmChange::State(VmState::Migrate)).vm(vm, VmChange::Node(NodeName::new("hv3")));
    three.eyes().change(changes).await;
    three.eyes().pass(5).await;
    three.lose(3, true).await;
    let eyes = three.eyes();
    eyes.until("the fence is over", || {
        three.state("hv3") == (DaemonState::Fenced, DomainState::Flushed)
    })
    .await;
    eyes.until_state(vm, "start").await;
    eyes.pass(60).await;
    assert_eq!(three.runs_on(vm), [1]);
    assert_eq!(eyes.vm(vm).node.as_ref().unwrap().as_str(), "hv1");
    assert_eq!(three.worlds[0].hypervisor.count("start", vm), 1, "it has run on all the time");
}

#[tokio::test(start_paused = true)]
async fn taking_vms_back_and_the_recovery_of_their_sender_do_not_wait_for_each_other() {
    let mut three = Three::start(|_| {}).await;
    let (on_its_way, other) = (three.run_vm(1, 3).await, three.run_vm(2, 3).await);
    let limit = || VmChange::NodeLimit(vec![NodeName::new("hv1"), NodeName::new("hv3")]);
    three.write(on_its_way, [limit(), VmChange::LastNode(Some(NodeName::new("hv1")))]).await;
    three.write(other, [limit()]).await;
    let manner = Manner { migration_takes: Duration::from_secs(600), ..Manner::default() };
    three.worlds[2].hypervisor.set_manner(on_its_way, manner);
    three.eyes().request_node_of("hv1", DomainState::Unflush).await;
    three
        .eyes()
        .until("it is moved back", || three.eyes().state(on_its_way).starts_with("migrate"))
        .await;
    three.lose(3, true).await;
    let eyes = three.eyes();
    eyes.until("both run", || three.runs_on(on_its_way) == [1] && three.runs_on(other) == [1])
        .await;
    eyes.until("the fence is over", || {
        three.state("hv3") == (DaemonState::Fenced, DomainState::Flushed)
    })
    .await;
    assert_eq!(three.state("hv1"), (DaemonState::Run, DomainState::Ready));
}

#[tokio::test(start_paused = true)]
async fn an_operator_hears_what_a_recovery_waits_for_although_it_is_not_over() {
    let mut three = Three::start(|_| {}).await;
    let vm = three.run_vm(1, 3).await;
    three.write(vm, [VmChange::NodeLimit(vec![NodeName::new("hv1"), NodeName::new("hv3")])]).await;
    let eyes = three.eyes();
    eyes.host.set_load(HostLoad {
        memory_total_mib: 16_384,
        memory_used_mib: 15_984,
        memory_free_mib: 400,
        load: 0.5,
    });
    let hv1 = || eyes.view().nodes["hv1"].clone();
    eyes.until("it has room for one VM", || hv1().figures.memory_free_mib == 400).await;
    let hanging = Uuid::from_u128(2);
    eyes.hypervisor.set_manner(hanging, Manner { start_hangs: true, ..Manner::default() });
    assert_eq!(eyes.define(2, VmState::Start).await, hanging);
    eyes.until("a start hangs there", || hv1().working_on == [hanging]).await;
    three.lose(3, true).await;
    let eyes = three.eyes();
    let fault = eyes.until_fault("NODE_FENCED_HV3").await;
    assert!(fault.contains("yet (it is tried again): vm1: no node can take the VM"), "{fault}");
    assert_eq!(three.state("hv3"), (DaemonState::Fenced, DomainState::FenceFlush));
    assert_eq!(eyes.state(vm), "start", "it is not given up");
}

/// Found by the simulation: others were given the memory that it was still promised where it went.
#[tokio::test(start_paused = true)]
async fn a_vm_on_its_way_that_has_no_place_yet_is_called_back_to_the_dead_node() {
    let mut three = Three::start(|_| {}).await;
    let vm = three.run_vm(1, 3).await;
    three.lose(2, true).await;
    let mut starts = Changes::new();
    // A legacy daemon does not stamp while it starts, so nobody takes it for dead.
    starts.node(&NodeName::new("hv2"), NodeChange::Version("1.0.3".to_owned()));
    starts.node(&NodeName::new("hv2"), NodeChange::Daemon(DaemonState::Init));
    three.eyes().change(starts).await;
    let nodes = vec![NodeName::new("hv2"), NodeName::new("hv3")];
    let away = [
        VmChange::NodeLimit(nodes),
        VmChange::State(VmState::Migrate),
        VmChange::Node("hv2".into()),
    ];
    three.write(vm, away).await;
    three.lose(3, true).await;
    let eyes = three.eyes();
    let is_back =
        || eyes.state(vm) == "start" && eyes.vm(vm).node.as_ref().unwrap().as_str() == "hv3";
    eyes.until("it is called back", is_back).await;
    assert_eq!(
        three.state("hv3"),
        (DaemonState::Fenced, DomainState::FenceFlush),
        "and not given up"
    );
    eyes.until_state(vm, "stop").await;
    assert!(eyes.vm(vm).autostart);
}

/// Found by the simulation, with 95 VMs: each of two that were on their way waited for the other
/// one, and all others for both.
#[tokio::test(start_paused = true)]
async fn vms_on_their_way_that_no_node_can_take_do_not_wait_for_each_other() {
    let mut three = Three::start(|_| {}).await;
    let mut vms = Vec::new();
    // More than are recovered at once.
    for number in 1..=20 {
        vms.push(three.run_vm(number, 3).await);
    }
    let mut flushed = Changes::new();
    for node in ["hv1", "hv2"] {
        flushed.node(&NodeName::new(node), NodeChange::Domain(DomainState::Flushed));
    }
    three.eyes().change(flushed).await;
    three.lose(3, true).await;
    for vm in &vms {
        let back = [VmChange::State(VmState::Migrate), VmChange::LastNode(Some("hv2".into()))];
        three.write(*vm, back).await;
    }
    let eyes = three.eyes();
    for vm in vms {
        eyes.until_state(vm, "stop").await;
        assert!(eyes.vm(vm).autostart, "until a node is ready");
    }
    let is_over = || three.state("hv3") == (DaemonState::Fenced, DomainState::Flushed);
    eyes.until("its recovery is over", is_over).await;
}

#[tokio::test(start_paused = true)]
async fn a_start_that_waited_long_for_the_storage_looks_again_whose_the_vm_is() {
    let three = Three::start(|_| {}).await;
    three.eyes().storage.set_locks_take(Duration::from_secs(40));
    let vm = three.worlds[0].define(1, VmState::Start).await;
    let eyes = three.eyes();
    eyes.until("the start is under way", || eyes.view().nodes["hv1"].working_on.contains(&vm))
        .await;
    let mut changes = Changes::new();
    changes.vm(vm, VmChange::State(VmState::Start)).vm(vm, VmChange::Node(NodeName::new("hv2")));
    eyes.change(changes).await;
    eyes.pass(20).await;
    assert_eq!(three.worlds[1].hypervisor.count("start", vm), 0, "another node is at starting it");
    eyes.until("it runs where it belongs", || three.runs_on(vm) == [2]).await;
    assert_eq!(three.worlds[0].hypervisor.count("start", vm), 0);
}

#[tokio::test(start_paused = true)]
async fn a_step_that_falls_over_a_bug_is_a_failed_one_and_is_tried_again() {
    let mut three = Three::start(|_| {}).await;
    let vm = three.run_vm(1, 3).await;
    three.eyes().power.set_manner("bmc-hv3", BmcManner { panics: true, ..BmcManner::default() });
    three.lose(3, false).await;
    let eyes = three.eyes();
    let fault = eyes.until_fault("FENCE_FAILED_HV3").await;
    assert!(fault.contains("failed by a bug of this program"), "{fault}");
    let tried = three.calls("off bmc-hv3");
    eyes.until("it is tried again", || three.calls("off bmc-hv3") > tried).await;
    assert_eq!(three.state("hv3").0, DaemonState::Dead, "nothing is proven");
    assert!(three.runs_on(vm).is_empty());
    eyes.power.set_manner("bmc-hv3", BmcManner::default());
    eyes.until("its VM runs elsewhere", || !three.runs_on(vm).is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_is_started_on_a_dead_node_before_its_recovery_is_over_is_recovered_as_well() {
    let mut three = Three::start(|_| {}).await;
    let vm = three.worlds[2].define(1, VmState::Stop).await;
    let ready = || {
        let knows = three.eyes().view().vms.contains_key(&vm);
        knows && three.state("hv3") == (DaemonState::Run, DomainState::Ready)
    };
    three.eyes().until("the node is ready", ready).await;
    let path = "/nodes/hv3/domainstate";
    for daemon in three.daemons[..2].iter().flatten() {
        let (operator, connection) = (three.eyes().operator.clone(), daemon.connection.clone());
        // Once when the node is proven dead, and once when its recovery is over.
        daemon.connection.before_next_set(path, async move {
            connection.before_next_set(path, async move {
                let mut changes = Changes::new();
                changes.vm(vm, VmChange::State(VmState::Start));
                let start = |_: &Cluster| Ok::<_, Infallible>((changes.clone(), ()));
                operator.change(start).await.unwrap();
            });
        });
    }
    three.lose(3, true).await;
    let eyes = three.eyes();
    eyes.until("its recovery is over", || {
        three.state("hv3") == (DaemonState::Fenced, DomainState::Flushed)
    })
    .await;
    assert_ne!(eyes.vm(vm).node, Some(NodeName::new("hv3")));
    eyes.until("the VM runs elsewhere", || !three.runs_on(vm).is_empty()).await;
}
