//! Several nodes on one tree, some of which die.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::fence::{FenceNote, PowerAfter, Rules};
use pvc_model::node::{CoordinatorState, DaemonState, DomainState, NodeFigures, NodeRecord};
use pvc_model::storage::VolumeId;
use pvc_model::vm::VmState;
use pvc_model::{NodeName, Uuid};
use pvc_ports::{HostLoad, Storage as _};
use pvc_store::{Changes, ConfigChange, Ipmi, NodeChange, Report, VmChange};
use pvc_testkit::{BmcManner, Manner, ScriptedExec, ScriptedPower};

use crate::world::{Daemon, INTERVAL, World, legacy_node, world};

fn rules() -> Rules {
    Rules { keepalive_interval: INTERVAL, fence_intervals: 6, recover_after_success: true }
}

/// A server that is a node of a cluster of several, with a BMC and a storage address.
fn server(mut world: World, number: u32) -> World {
    let hostname = format!("bmc-hv{number}");
    world.settings.standalone = false;
    world.settings.fencing = rules();
    world.settings.ipmi =
        Some(Ipmi { hostname, username: "admin".to_owned(), password: "$ \"'".to_owned() });
    world.settings.storage_address = Some(format!("10.0.1.{number}"));
    world
}

/// Nodes `hv1` to `hv3`, all ready.
struct Three {
    worlds: Vec<World>,
    daemons: Vec<Option<Daemon>>,
}

impl Three {
    async fn start(prepare: impl Fn(&mut World)) -> Three {
        Three::start_in(world().await, prepare).await
    }

    async fn start_in(first: World, prepare: impl Fn(&mut World)) -> Three {
        let (second, third) = (first.another("hv2").await, first.another("hv3").await);
        let mut worlds = vec![server(first, 1), server(second, 2), server(third, 3)];
        worlds.iter_mut().for_each(prepare);
        let mut daemons = Vec::new();
        for world in &worlds {
            daemons.push(Some(world.start().await));
            let name = world.settings.name.clone();
            let runs = || {
                world
                    .view()
                    .nodes
                    .get(&name)
                    .is_some_and(|node| node.daemon_state == DaemonState::Run)
            };
            world.until("the node runs", runs).await;
            world.request_node_of(name.as_str(), DomainState::Ready).await;
        }
        Three { worlds, daemons }
    }

    fn eyes(&self) -> &World {
        &self.worlds[0]
    }

    fn state(&self, node: &str) -> (DaemonState, DomainState) {
        let node = self.eyes().view().nodes[node].clone();
        (node.daemon_state.clone(), node.domain_state.clone())
    }

    /// The whole server is gone: its daemon and its guests, and the power, if the BMC is to say so.
    async fn lose(&mut self, number: usize, power_is_off: bool) {
        let world = &self.worlds[number - 1];
        for vm in world.view().vms.keys() {
            world.hypervisor.kill(*vm);
        }
        world.power.set_on(&format!("bmc-hv{number}"), !power_is_off);
        self.daemons[number - 1].take().unwrap().kill().await;
    }

    /// Defines VM `number` on node `node`, running there with a lock on its volume.
    async fn run_vm(&self, number: u128, node: usize) -> Uuid {
        let world = &self.worlds[node - 1];
        let uuid = world.define(number, VmState::Start).await;
        world.until_runs(uuid).await;
        world.storage.lock(&format!("vms/vm{number}_sda"), &format!("10.0.1.{node}"));
        uuid
    }

    fn runs_on(&self, vm: Uuid) -> Vec<usize> {
        (1..=3).filter(|number| self.worlds[number - 1].hypervisor.is_there(vm)).collect()
    }

    /// Writes `changes` into the VM's record.
    async fn write(&self, vm: Uuid, changes: impl IntoIterator<Item = VmChange>) {
        let mut all = Changes::new();
        for change in changes {
            all.vm(vm, change);
        }
        self.eyes().change(all).await;
    }

    fn calls(&self, wanted: &str) -> usize {
        self.eyes().power.calls().iter().filter(|call| *call == wanted).count()
    }
}

/// Adds `legacy`, a node of PVC 1.0.3 that falls silent as soon as it has been seen.
async fn add_legacy(world: &World) {
    let name = NodeName::new("legacy");
    let ipmi = Ipmi { hostname: "bmc-legacy".to_owned(), ..Ipmi::default() };
    let mut changes = legacy_node(&name, ipmi);
    changes.node(&name, NodeChange::Domain(DomainState::Ready));
    world.change(changes).await;
}

#[tokio::test(start_paused = true)]
async fn a_legacy_primary_keeps_its_role_until_its_power_is_off_and_its_vms_run_elsewhere() {
    for operator_knows in [false, true] {
        let first = world().await;
        add_legacy(&first).await;
        let legacy = NodeName::new("legacy");
        let mut changes = Changes::new();
        changes.node(&legacy, NodeChange::Coordinator(CoordinatorState::Primary));
        changes.config(ConfigChange::Primary(Some(legacy.clone())));
        first.change(changes).await;
        let vm = first.define(1, VmState::Stop).await;
        first.storage.lock("vms/vm1_sda", "10.0.1.9");
        first.operator.report(vec![Report::Running(legacy.clone(), vec![vm])]).await.unwrap();
        first.power.set_manner("bmc-legacy", BmcManner { dead: true, ..BmcManner::default() });
        let three = Three::start_in(first, |_| {}).await;
        three.write(vm, [VmChange::Node(legacy.clone()), VmChange::State(VmState::Start)]).await;
        let eyes = three.eyes();
        let fault = eyes.until_fault("FENCE_FAILED_LEGACY").await;
        assert!(
            fault.ends_with("once you know that it is off, `pvc node primary NODE`"),
            "{fault}"
        );
        eyes.pass(300).await;
        assert_eq!(eyes.view().config.primary, Some(legacy.clone()));
        assert_eq!(three.runs_on(vm), Vec::<usize>::new());
        if operator_knows {
            let mut changes = Changes::new();
            changes.config(ConfigChange::Primary(Some(NodeName::new("hv2"))));
            eyes.change(changes).await;
        } else {
            eyes.power.set_manner("bmc-legacy", BmcManner::default());
            eyes.until("its VM runs elsewhere", || three.runs_on(vm).len() == 1).await;
        }
        let serves = |node: &Arc<NodeRecord>| {
            node.name.as_str() != "legacy" && node.coordinator_state == CoordinatorState::Primary
        };
        eyes.until("one of ours is primary", || eyes.view().nodes.values().any(serves)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn while_a_legacy_peer_has_the_fence_lock_nobody_else_fences() {
    let mut three = Three::start(|_| {}).await;
    let vm = three.run_vm(1, 3).await;
    let lock = three.eyes().operator.fence_lock(Duration::from_secs(1)).await.unwrap();
    three.lose(3, true).await;
    three.eyes().pass(120).await;
    assert_eq!(three.state("hv3").0, DaemonState::Run);
    lock.release().await;
    three.eyes().until("its VM runs elsewhere", || three.runs_on(vm).len() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_a_legacy_peer_left_dead_is_fenced_and_has_a_record_of_its_own() {
    let mut three = Three::start(|_| {}).await;
    let vm = three.run_vm(1, 3).await;
    let name = NodeName::new("hv3");
    let before = FenceNote {
        stamp: Some(-1),
        proven_at: Some(1),
        failed_attempts: 7,
        recovered: vec!["old on hv2".to_owned()],
        ..FenceNote::default()
    };
    three.eyes().operator.report(vec![Report::Fence(name.clone(), before)]).await.unwrap();
    three.lose(3, true).await;
    let mut changes = Changes::new();
    changes.node(&name, NodeChange::Daemon(DaemonState::Dead));
    three.eyes().change(changes).await;
    let eyes = three.eyes();
    eyes.until("its VM runs elsewhere", || three.runs_on(vm).len() == 1).await;
    eyes.until("the fence is over", || {
        three.state("hv3") == (DaemonState::Fenced, DomainState::Flushed)
    })
    .await;
    let note = eyes.view().nodes["hv3"].fence.clone().unwrap();
    assert_eq!((note.failed_attempts, note.recovered.len()), (0, 1), "{note:?}");
    assert!(note.recovered[0].starts_with("vm1 on "), "{note:?}");
}

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
    let left = eyes.view().nodes["hv3"].clone();
    assert!(left.running.is_empty());
    assert_eq!((left.figures, left.health), (NodeFigures::default(), None));
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
        eyes.pass(600).await;
        assert_eq!(three.runs_on(vm), Vec::<usize>::new(), "{manner:?}");
        assert_eq!(three.state("hv3").0, DaemonState::Dead);
        assert!(eyes.view().nodes["hv3"].fence.as_ref().unwrap().failed_attempts > 1);
        eyes.power.set_manner("bmc-hv3", BmcManner::default());
        eyes.until("its VM runs elsewhere", || !three.runs_on(vm).is_empty()).await;
    }
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
async fn a_recovery_does_not_wait_for_ever_for_a_legacy_node_that_died_as_it_started() {
    let mut three = Three::start(|_| {}).await;
    let vm = three.run_vm(1, 3).await;
    three.write(vm, [VmChange::NodeLimit(vec![NodeName::new("hv2"), NodeName::new("hv3")])]).await;
    three.lose(2, true).await;
    let mut starts = Changes::new();
    // A legacy daemon does not stamp while it starts, so nobody takes it for dead.
    starts.node(&NodeName::new("hv2"), NodeChange::Version("1.0.3".to_owned()));
    starts.node(&NodeName::new("hv2"), NodeChange::Daemon(DaemonState::Init));
    three.eyes().change(starts).await;
    three.lose(3, true).await;
    let eyes = three.eyes();
    let fault = eyes.until_fault("NODE_FENCED_HV3").await;
    assert!(fault.contains("`hv2` is in daemon state `init`, not `run`"), "{fault}");
    eyes.until_state(vm, "stop").await;
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
