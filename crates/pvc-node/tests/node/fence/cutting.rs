//! Nodes that may be dead are cut off, once and by one.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_fenced_node_whose_daemon_ends_as_soon_as_it_starts_can_be_made_ready() {
    let mut three = Three::start(|_| {}).await;
    three.run_vm(1, 3).await;
    three.eyes().storage.set_failing(true);
    three.lose(3, true).await;
    let eyes = three.eyes();
    eyes.until("its recovery does not work out", || eyes.power.is_really_on("bmc-hv3")).await;
    assert_eq!(three.state("hv3"), (DaemonState::Fenced, DomainState::FenceFlush));
    three.worlds[2].hypervisor.set_unreachable(true);
    assert!(three.worlds[2].start().await.task.await.unwrap().is_err());
    eyes.until("it says so", || three.state("hv3") == (DaemonState::Stop, DomainState::Flushed))
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_power_is_switched_on_after_the_vms_have_their_places() {
    let mut three = Three::start(|_| {}).await;
    let vm = three.run_vm(1, 3).await;
    three.eyes().storage.set_locks_take(Duration::from_secs(8));
    three.lose(3, true).await;
    let eyes = three.eyes();
    eyes.until("it is switched on again", || eyes.power.is_really_on("bmc-hv3")).await;
    assert_ne!(eyes.vm(vm).node, Some(NodeName::new("hv3")));
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_store_for_everybody_is_nobodys_death() {
    let three = Three::start(|_| {}).await;
    let vm = three.run_vm(1, 3).await;
    let connections = || three.daemons.iter().flatten().map(|daemon| &daemon.connection);
    connections().for_each(|connection| connection.cut());
    three.eyes().pass(600).await;
    // The first ones back see the stamps of the last, which are ten minutes old.
    for connection in connections() {
        connection.mend();
        three.eyes().pass(20).await;
    }
    three.eyes().pass(120).await;
    assert!(["hv1", "hv2", "hv3"].iter().all(|name| three.state(name).0 == DaemonState::Run));
    assert!(!three.eyes().power.calls().iter().any(|call| call.starts_with("off ")));
    assert_eq!(three.runs_on(vm), [3]);
}

#[tokio::test(start_paused = true)]
async fn the_role_of_a_dead_primary_is_free_when_it_is_suspected_whatever_that_node_ran() {
    for hypervisor in [true, false] {
        let mut three =
            Three::start(|world| world.settings.subsystems.hypervisor = hypervisor).await;
        let eyes = three.eyes();
        let primary = || eyes.view().config.primary.as_ref().map(|name| name.as_str().to_owned());
        eyes.until("hv1 is primary", || primary().as_deref() == Some("hv1")).await;
        eyes.power.set_manner("bmc-hv1", BmcManner { dead: true, ..BmcManner::default() });
        three.lose(1, true).await;
        let eyes = three.eyes();
        eyes.until("it is taken for dead", || three.state("hv1").0 == DaemonState::Dead).await;
        let suspected = eyes.now();
        let serves =
            |name: &str| eyes.view().nodes[name].coordinator_state == CoordinatorState::Primary;
        eyes.until("another is primary", || serves("hv2") || serves("hv3")).await;
        let took = eyes.now() - suspected;
        assert!(took <= Duration::from_secs(5), "hypervisor: {hypervisor}, {took:?}");
        assert_eq!(three.state("hv1").0, DaemonState::Dead, "its death is not proven yet");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_power_is_on_is_cut_off_after_its_saving_throws() {
    let mut three = Three::start(|_| {}).await;
    let vm = three.run_vm(1, 3).await;
    three.lose(3, false).await;
    let eyes = three.eyes();
    eyes.until("it is taken for dead", || three.state("hv3").0 == DaemonState::Dead).await;
    let suspected = eyes.now();
    eyes.until("it is cut off", || three.calls("off bmc-hv3") > 0).await;
    let waited = eyes.now() - suspected;
    assert!(waited >= INTERVAL * 6 - Duration::from_secs(2), "{waited:?}");
    eyes.until("its VM runs elsewhere", || !three.runs_on(vm).is_empty()).await;
    eyes.until("it is switched on again", || eyes.power.is_really_on("bmc-hv3")).await;
    assert_eq!(three.calls("off bmc-hv3"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_returns_in_time_is_not_shot() {
    let three = Three::start(|_| {}).await;
    let vm = three.run_vm(1, 3).await;
    let third = three.daemons[2].as_ref().unwrap();
    third.connection.cut();
    let eyes = three.eyes();
    eyes.until("it is taken for dead", || three.state("hv3").0 == DaemonState::Dead).await;
    third.connection.mend();
    eyes.until("it says that it runs", || three.state("hv3").0 == DaemonState::Run).await;
    eyes.pass(300).await;
    assert_eq!(three.calls("off bmc-hv3"), 0);
    assert_eq!(three.runs_on(vm), [3]);
}

#[tokio::test(start_paused = true)]
async fn a_power_off_on_its_way_is_taken_back_when_the_node_returns() {
    let three = Three::start(|_| {}).await;
    let vm = three.run_vm(1, 3).await;
    let slow = BmcManner { takes: Duration::from_secs(20), ..BmcManner::default() };
    three.eyes().power.set_manner("bmc-hv3", slow);
    let third = three.daemons[2].as_ref().unwrap();
    third.connection.cut();
    let eyes = three.eyes();
    eyes.until("its power is being cut", || three.calls("off bmc-hv3") > 0).await;
    third.connection.mend();
    eyes.until("it says that it runs", || three.state("hv3").0 == DaemonState::Run).await;
    eyes.pass(120).await;
    assert!(eyes.power.is_really_on("bmc-hv3"));
    assert_eq!(three.runs_on(vm), [3]);
}

#[tokio::test(start_paused = true)]
async fn the_fence_is_finished_by_another_when_the_fencer_dies() {
    for step in ["suspected", "cut", "recovering"] {
        let mut three = Three::start(|_| {}).await;
        let vm = three.run_vm(1, 3).await;
        match step {
            // Whoever fences is killed as soon as there is something to see of it.
            "cut" => three.eyes().power.set_manner(
                "bmc-hv3",
                BmcManner { takes: Duration::from_secs(60), ..BmcManner::default() },
            ),
            "recovering" => three.eyes().storage.set_failing(true),
            _ => {}
        }
        three.lose(3, step == "recovering").await;
        let wanted = if step == "recovering" { DaemonState::Fenced } else { DaemonState::Dead };
        let by = || three.eyes().view().nodes["hv3"].fence.as_ref().map(|note| note.by.clone());
        three
            .eyes()
            .until("it has begun", || three.state("hv3").0 == wanted && by().is_some())
            .await;
        if step == "cut" {
            three.eyes().until("its power is being cut", || three.calls("off bmc-hv3") > 0).await;
        }
        let fencer = by().unwrap();
        let number: usize = fencer.strip_prefix("hv").unwrap().parse().unwrap();
        let daemon = three.daemons[number - 1].take().unwrap();
        daemon.kill().await;
        let eyes = three.eyes();
        eyes.power.set_manner("bmc-hv3", BmcManner::default());
        eyes.storage.set_failing(false);
        eyes.until("the other finishes it", || {
            three.state("hv3") == (DaemonState::Fenced, DomainState::Flushed)
        })
        .await;
        eyes.until("its VM runs", || !three.runs_on(vm).is_empty()).await;
        assert_eq!(three.runs_on(vm).len(), 1, "{step}");
        assert!(!three.runs_on(vm).contains(&number), "{step}: the first fencer is dead, too");
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_proof_nothing_is_started_and_it_is_tried_until_there_is_one() {
    let manners = [
        BmcManner { dead: true, ..BmcManner::default() },
        BmcManner { ignores: true, ..BmcManner::default() },
        BmcManner { takes: Duration::from_secs(600), ..BmcManner::default() },
    ];
    for manner in manners {
        let mut three = Three::start(|_| {}).await;
        let vm = three.run_vm(1, 3).await;
        three.eyes().power.set_manner("bmc-hv3", manner.clone());
        three.lose(3, false).await;
        let eyes = three.eyes();
        let fault = eyes.until_fault("FENCE_FAILED_HV3").await;
        assert!(fault.contains("node hv3 is silent and could not be fenced"), "{fault}");
        assert!(fault.contains("Mend its BMC, bring the node back, or, "), "{fault}");
        eyes.pass(600).await;
        assert_eq!(three.runs_on(vm), Vec::<usize>::new(), "{manner:?}");
        assert_eq!(three.state("hv3").0, DaemonState::Dead);
        assert!(eyes.view().nodes["hv3"].fence.as_ref().unwrap().failed_attempts > 1);
        eyes.power.set_manner("bmc-hv3", BmcManner::default());
        eyes.until("its VM runs elsewhere", || !three.runs_on(vm).is_empty()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_node_without_a_bmc_the_fault_names_none_that_could_be_mended() {
    let mut three = Three::start(|world| {
        if world.settings.name.as_str() == "hv3" {
            world.settings.ipmi = None;
        }
    })
    .await;
    three.lose(3, false).await;
    let fault = three.eyes().until_fault("FENCE_FAILED_HV3").await;
    assert!(fault.contains("could not be fenced: no BMC is configured for it"), "{fault}");
    let end = "until it is back: without a BMC nothing proves it dead. Bring the node back, or, if \
               you have seen that it has no power, `pvc node confirm-off hv3`";
    assert!(fault.ends_with(end), "{fault}");
    assert_eq!(three.state("hv3").0, DaemonState::Dead);
}

#[tokio::test(start_paused = true)]
async fn what_an_operator_says_is_off_is_recovered_and_not_switched_on() {
    let mut three = Three::start(|world| {
        if world.settings.name.as_str() == "hv3" {
            world.settings.ipmi = None;
        }
    })
    .await;
    let vm = three.run_vm(1, 3).await;
    three.lose(3, true).await;
    let eyes = three.eyes();
    let fault = eyes.until_fault("FENCE_FAILED_HV3").await;
    assert!(fault.contains("`pvc node confirm-off hv3`"), "{fault}");
    eyes.pass(300).await;
    assert_eq!(three.runs_on(vm), Vec::<usize>::new());
    let view = eyes.view();
    let record = &view.nodes["hv3"];
    let note = pvc_model::fence::confirmed(record, "alice", 90);
    eyes.change(pvc_store::death(&view, record, note, true)).await;
    eyes.until("its VM runs elsewhere", || !three.runs_on(vm).is_empty()).await;
    let fault = eyes.until_fault("NODE_FENCED_HV3").await;
    assert!(fault.contains("an operator (`alice`) has confirmed that it is off"), "{fault}");
    let is_over = || three.state("hv3") == (DaemonState::Fenced, DomainState::Flushed);
    eyes.until("its recovery is over", is_over).await;
    eyes.pass(60).await;
    assert!(!eyes.power.is_really_on("bmc-hv3"), "nobody switches it on");
}

/// A fencer that has lost its upstream network would keep the fence lock, and try for ever.
#[tokio::test(start_paused = true)]
async fn a_fencer_that_does_not_reach_the_bmc_lets_another_one_try() {
    for failing in [1, 2] {
        let mut three = Three::start(|world| {
            if world.settings.name.as_str() == format!("hv{failing}") {
                world.power = Arc::new(ScriptedPower::new());
                world.power.set_manner("bmc-hv3", BmcManner { dead: true, ..BmcManner::default() });
            }
        })
        .await;
        let vm = three.run_vm(1, 3).await;
        three.lose(3, false).await;
        three.eyes().until("its VM runs elsewhere", || !three.runs_on(vm).is_empty()).await;
        assert_eq!(
            three.eyes().view().nodes["hv3"].fence.as_ref().unwrap().by,
            format!("hv{}", 3 - failing)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn two_dead_nodes_do_not_wait_for_each_other() {
    let mut three = Three::start(|_| {}).await;
    let (one, other) = (three.run_vm(1, 2).await, three.run_vm(2, 3).await);
    three.eyes().power.set_manner("bmc-hv2", BmcManner { dead: true, ..BmcManner::default() });
    three.lose(2, true).await;
    three.lose(3, true).await;
    let eyes = three.eyes();
    eyes.until("the one that can be proven dead is recovered", || three.runs_on(other) == [1])
        .await;
    assert_eq!(three.runs_on(one), Vec::<usize>::new());
    eyes.power.set_manner("bmc-hv2", BmcManner::default());
    eyes.until("and the other when it can", || three.runs_on(one) == [1]).await;
}

#[tokio::test(start_paused = true)]
async fn in_maintenance_and_with_zero_intervals_nobody_is_fenced() {
    let mut three = Three::start(|_| {}).await;
    let mut changes = Changes::new();
    changes.config(ConfigChange::Maintenance(true));
    three.eyes().change(changes).await;
    three.lose(3, true).await;
    three.eyes().pass(600).await;
    assert_eq!(three.state("hv3").0, DaemonState::Run);
    let mut three = Three::start(|world| world.settings.fencing.fence_intervals = 0).await;
    three.lose(3, true).await;
    three.eyes().pass(600).await;
    assert_eq!(three.state("hv3").0, DaemonState::Run);
}

#[tokio::test(start_paused = true)]
async fn who_could_not_be_fenced_does_not_fence_if_that_is_wanted() {
    let mut three = Three::start(|world| {
        world.settings.fence_only_with_own_bmc = true;
        for host in ["bmc-hv1", "bmc-hv2"] {
            world.power.set_manner(host, BmcManner { dead: true, ..BmcManner::default() });
        }
    })
    .await;
    three.lose(3, true).await;
    three.eyes().pass(300).await;
    assert_eq!(three.state("hv3").0, DaemonState::Run);
}

#[tokio::test(start_paused = true)]
async fn where_a_fence_is_not_to_move_vms_the_node_is_cut_off_and_nothing_else() {
    let mut three =
        Three::start(|world| world.settings.fencing.recover_after_success = false).await;
    let vm = three.run_vm(1, 3).await;
    three.lose(3, true).await;
    let eyes = three.eyes();
    eyes.until("it is fenced and switched on", || {
        three.state("hv3") == (DaemonState::Fenced, DomainState::Ready)
            && eyes.power.is_really_on("bmc-hv3")
    })
    .await;
    eyes.pass(60).await;
    assert_eq!(three.runs_on(vm), Vec::<usize>::new());
    assert_eq!(eyes.vm(vm).node.as_ref().unwrap().as_str(), "hv3");
}

#[tokio::test(start_paused = true)]
async fn a_cut_off_node_gives_its_vms_up_and_that_alone_proves_nothing() {
    let mut three = Three::start(|world| {
        world.settings.reset_after = Some(INTERVAL * 12);
        world.exec = std::sync::Arc::new(ScriptedExec::new(|_| Ok(ScriptedExec::success(""))));
    })
    .await;
    let vm = three.run_vm(1, 3).await;
    three.eyes().power.set_manner("bmc-hv3", BmcManner { dead: true, ..BmcManner::default() });
    three.daemons[2].as_ref().unwrap().connection.cut();
    let eyes = three.eyes();
    eyes.until("the node gives its VM up", || !three.worlds[2].hypervisor.is_there(vm)).await;
    let resets = || {
        three.worlds[2].exec.ran().iter().any(|command| command.args.contains(&"reboot".to_owned()))
    };
    eyes.until("and resets itself", resets).await;
    eyes.pass(600).await;
    assert_eq!(three.runs_on(vm), Vec::<usize>::new());
    three.eyes().power.set_manner("bmc-hv3", BmcManner::default());
    let eyes = three.eyes();
    eyes.until("its VM runs elsewhere", || !three.runs_on(vm).is_empty()).await;
    drop(three.daemons.drain(..));
}

/// `systemctl` writes disks out first: with a storage that hangs it never comes to the reset.
#[tokio::test(start_paused = true)]
async fn a_cut_off_node_that_systemd_does_not_reset_is_reset_by_its_kernel() {
    let three = Three::start(|world| {
        world.settings.reset_after = Some(INTERVAL * 12);
        world.exec = std::sync::Arc::new(ScriptedExec::new(|command| {
            let (program, deadline) = (command.program.clone(), command.deadline);
            match command.args.contains(&"reboot".to_owned()) {
                true => Err(pvc_ports::ExecError::TimedOut { program, deadline }),
                false => Ok(ScriptedExec::success("")),
            }
        }));
    })
    .await;
    three.run_vm(1, 3).await;
    three.daemons[2].as_ref().unwrap().connection.cut();
    let asks_kernel = || {
        let ran = three.worlds[2].exec.ran();
        ran.iter().any(|command| command.args.iter().any(|arg| arg.contains("sysrq-trigger")))
    };
    three.eyes().until("the kernel is asked", asks_kernel).await;
}

#[tokio::test(start_paused = true)]
async fn a_cut_off_node_without_vms_or_in_maintenance_does_not_reset_itself() {
    for in_maintenance in [false, true] {
        let three = Three::start(|world| {
            world.settings.reset_after = Some(INTERVAL * 2);
            world.exec = std::sync::Arc::new(pvc_testkit::ScriptedExec::new(|_| {
                Ok(pvc_testkit::ScriptedExec::success(""))
            }));
        })
        .await;
        if in_maintenance {
            three.run_vm(1, 3).await;
            let mut changes = Changes::new();
            changes.config(ConfigChange::Maintenance(true));
            three.eyes().change(changes).await;
            three.eyes().pass(5).await;
        }
        let never_ran = three.worlds[2].define(9, VmState::Stop).await;
        three.eyes().pass(5).await;
        three.daemons[2].as_ref().unwrap().connection.cut();
        // What was made and never let run is nobody's copy.
        three.worlds[2].hypervisor.leave_created(never_ran, "vm9");
        three.eyes().pass(300).await;
        let ran = three.worlds[2].exec.ran();
        assert!(!ran.iter().any(|command| command.args.contains(&"reboot".to_owned())), "{ran:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_only_suspected_to_be_dead_keeps_its_vms() {
    let three = Three::start(|_| {}).await;
    let vm = three.run_vm(1, 3).await;
    three.eyes().power.set_manner("bmc-hv3", BmcManner { dead: true, ..BmcManner::default() });
    three.daemons[2].as_ref().unwrap().connection.cut();
    let eyes = three.eyes();
    eyes.until("it is taken for dead", || three.state("hv3").0 == DaemonState::Dead).await;
    let mut changes = Changes::new();
    changes.vm(vm, VmChange::State(VmState::Start)).vm(vm, VmChange::Node(NodeName::new("hv1")));
    eyes.change(changes).await;
    eyes.pass(300).await;
    assert_eq!(three.runs_on(vm), [3]);
}
