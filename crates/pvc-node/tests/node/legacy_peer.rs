//! A VM moves between a node of ours and a legacy peer (`spec/vm.md` §5), step by step and with the
//! peer's timing: it acts on events once, holds its turn for a second, and queues again at once.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pvc_model::vm::moving::{MoveNote, MovePhase};
use pvc_model::vm::{VmRecord, VmState};
use pvc_model::{NodeName, Uuid};
use pvc_ports::{GuestRun, Hypervisor, Op};
use pvc_store::lock::{LockKind, LockRecipe};
use pvc_store::{Changes, Report, VmChange};
use pvc_testkit::legacy::{LegacyAsk, LegacyPeer as Daemon103};
use pvc_testkit::{Manner, ScriptedHypervisor, SeededRandom};
use tokio::time::sleep;

use crate::legacy::Peer;
use crate::world::{Daemon, World, world};

/// Node hv2, of PVC 1.0.3.
struct LegacyPeer {
    peer: Peer,
    hypervisor: Arc<ScriptedHypervisor>,
    vm: Uuid,
}

impl LegacyPeer {
    /// Enters the cluster.
    async fn join(world: &World, vm: Uuid) -> LegacyPeer {
        let peer = Peer::new(world, "hv2");
        peer.record(world).await;
        let hypervisor = peer.hypervisor.clone();
        LegacyPeer { peer, hypervisor, vm }
    }

    fn key(&self, key: &str) -> String {
        format!("/domains/{}/{key}", self.vm)
    }

    async fn set(&self, values: &[(String, &str)]) {
        let op = |(path, value): &(String, &str)| Op::Set {
            path: path.clone(),
            data: Bytes::copy_from_slice(value.as_bytes()),
            version: None,
        };
        self.peer.tree.multi(values.iter().map(op).collect()).await.unwrap();
    }

    /// Orders a move as its API does: under the lock on the state, held for half a second.
    async fn order(&self, world: &World, to: &str) {
        let ask = LegacyAsk::Move {
            vm: self.vm,
            to: Some(to.to_owned()),
            returns: to == "hv2",
            live_only: false,
        };
        self.peer.api(world).ask(&ask).await.unwrap();
    }

    /// Writes the order as its flush does: without any lock.
    async fn write_order(&self, to: &str, last: &str) {
        let values =
            [(self.key("state"), "migrate"), (self.key("node"), to), (self.key("lastnode"), last)];
        self.set(&values).await;
    }

    async fn set_method(&self, method: &str) {
        self.set(&[(self.key("migration_method"), method)]).await;
    }

    async fn lists(&self, vms: &str) {
        self.set(&[("/nodes/hv2/runningdomains".to_owned(), vms)]).await;
    }

    async fn is_here(&self) -> bool {
        self.hypervisor.guests().await.unwrap().contains_key(&self.vm)
    }

    /// Starts its daemon anew: whatever its last one held on to is gone.
    async fn restarts(&mut self, world: &World) -> Arc<Daemon103> {
        self.peer.tree.close().await;
        self.peer.tree = world.tree.connect();
        self.peer.listens(world)
    }
}

/// hv1, which is ours and has the VM, beside hv2.
async fn beside() -> (World, LegacyPeer, Daemon) {
    let world = world().await;
    let vm = world.define(1, VmState::Start).await;
    let legacy = LegacyPeer::join(&world, vm).await;
    let daemon = world.running().await;
    world.until_runs(vm).await;
    world.until("it is listed", || world.node().unwrap().running == [vm]).await;
    (world, legacy, daemon)
}

/// Has hv1 send the VM to hv2, whose daemon listens.
async fn hand_over(world: &World, legacy: &LegacyPeer, daemon: &Daemon103) {
    legacy.order(world, "hv2").await;
    until_record(world, legacy, "start", "hv2").await;
    world.until("it listens on", || daemon.hears_of(legacy.vm)).await;
}

/// hv1, which is ours and is to start the VM, beside hv2, whose list names it.
async fn listed_there(runs_there: bool) -> (World, LegacyPeer) {
    let world = world().await;
    let vm = world.define(1, VmState::Start).await;
    let legacy = LegacyPeer::join(&world, vm).await;
    if runs_there {
        // Held is not gone.
        legacy.hypervisor.insert(vm, "vm1");
        legacy.hypervisor.set_run(vm, GuestRun::Paused);
    }
    legacy.lists(&vm.to_string()).await;
    (world, legacy)
}

#[tokio::test(start_paused = true)]
async fn what_a_legacy_list_names_and_its_hypervisor_does_not_have_is_started_here() {
    let (world, legacy) = listed_there(false).await;
    let _daemon = world.running().await;
    world.until_runs(legacy.vm).await;
    world.until("it is listed", || world.node().unwrap().running == [legacy.vm]).await;
    assert_eq!(world.hypervisor.count("start", legacy.vm), 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_legacy_hypervisor_may_have_is_not_started_here() {
    for is_deaf in [false, true] {
        let (world, legacy) = listed_there(!is_deaf).await;
        legacy.hypervisor.set_unreachable(is_deaf);
        let _daemon = world.running().await;
        let fault = world.until_fault("VM_BLOCKED_VM1").await;
        assert!(fault.contains("Start the daemon of hv2"), "{fault}");
        assert!(fault.contains("`pvc node info hv2`"), "no command fences a node: {fault}");
        assert!(fault.ends_with("`pvc node confirm-off hv2` says so"), "{fault}");
        assert_eq!(world.hypervisor.count("start", legacy.vm), 0, "{is_deaf}");
        legacy.hypervisor.set_unreachable(false);
        legacy.hypervisor.destroy(legacy.vm).await.unwrap();
        world.until_runs(legacy.vm).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_comes_to_run_elsewhere_while_it_is_made_here_is_not_let_run() {
    for (is_listed, runs_there) in [(false, true), (false, false), (true, true), (true, false)] {
        let world = world().await;
        let vm = world.define(1, VmState::Start).await;
        let legacy = LegacyPeer::join(&world, vm).await;
        let slow = Manner { start_takes: Duration::from_secs(20), ..Manner::default() };
        world.hypervisor.set_manner(vm, slow);
        // Its list may be one of long ago, and its hypervisor has been asked before.
        if is_listed {
            legacy.lists(&vm.to_string()).await;
        }
        let _daemon = world.running().await;
        world.until("it is being made", || world.hypervisor.is_there(vm)).await;
        if runs_there {
            legacy.hypervisor.insert(vm, "vm1");
        }
        if !is_listed {
            legacy.lists(&vm.to_string()).await;
        }
        let count = |call| world.hypervisor.count(call, vm);
        if runs_there {
            world.until("it is ended here", || !world.hypervisor.is_there(vm)).await;
            world.until_fault("VM_BLOCKED_VM1").await;
            assert_eq!((count("start"), count("resume")), (1, 0));
            legacy.hypervisor.destroy(vm).await.unwrap();
        }
        world.until_runs(vm).await;
        assert_eq!((count("start"), count("resume")), (if runs_there { 2 } else { 1 }, 1));
    }
}

/// A note of hv1 that it has handed the VM over to hv2.
fn handed_over(record: &VmRecord) -> MoveNote {
    MoveNote {
        from: NodeName::new("hv1"),
        to: NodeName::new("hv2"),
        incarnation: record.incarnation,
        request: record.state_version - 1,
        held: true,
        phase: MovePhase::HandedOver,
        attempt: 1,
        seconds: 1,
        total_bytes: 1,
        processed_bytes: 1,
        remaining_bytes: 0,
        why: String::new(),
        left_on: [].into(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_went_back_to_pvc_1_0_3_has_what_it_was_handed_over_until_it_is_known_not_to() {
    let (world, legacy, _daemon) = beside().await;
    let vm = legacy.vm;
    world.request(vm, VmState::Stop).await;
    world.until("it is off", || !world.hypervisor.is_there(vm)).await;
    // Nobody but its hypervisor says so.
    legacy.hypervisor.insert(vm, "vm1");
    legacy.hypervisor.set_run(vm, GuestRun::Paused);
    let note = handed_over(&world.vm(vm));
    world.operator.report(vec![Report::Move(vm, note.clone())]).await.unwrap();
    let mut changes = Changes::new();
    changes.vm(vm, VmChange::Node(NodeName::new("hv2")));
    world.change(changes).await;
    let now = || world.vm(vm).moving.clone();
    world.pass(200).await;
    assert_eq!(now(), Some(note.clone()), "it is held there");
    legacy.hypervisor.set_unreachable(true);
    legacy.hypervisor.kill(vm);
    world.pass(200).await;
    assert_eq!(now(), Some(note.clone()), "it does not tell");
    legacy.hypervisor.set_unreachable(false);
    world.until("the note is closed", || now() == Some(note.closed_on(&note.to))).await;
}

#[tokio::test(start_paused = true)]
async fn a_vm_on_its_way_from_a_legacy_node_that_does_not_have_it_any_more_is_started_here() {
    let (world, legacy) = listed_there(false).await;
    legacy.write_order("hv1", "").await;
    let _daemon = world.running().await;
    until_record(&world, &legacy, "start", "hv1").await;
    world.until_runs(legacy.vm).await;
}

async fn until_record(world: &World, legacy: &LegacyPeer, state: &str, node: &str) {
    world
        .until(&format!("the record says {state} on {node}"), || {
            let record = world.vm(legacy.vm);
            record.state.as_str() == state && record.node == Some(NodeName::new(node))
        })
        .await;
}

fn copies_for(milliseconds: u64) -> Manner {
    Manner { migration_takes: Duration::from_millis(milliseconds), ..Manner::default() }
}

fn fails() -> Manner {
    Manner { fails_migration: Some("host CPU differs".to_owned()), ..Manner::default() }
}

#[tokio::test(start_paused = true)]
async fn vms_go_to_a_legacy_node_and_come_back_and_none_stays_on_its_way() {
    let (world, legacy, _daemon) = beside().await;
    let there = legacy.peer.listens(&world);
    for round in 0_u64..30 {
        // From an instant to longer than any of its time limits.
        let manner = copies_for([0, 100, 900, 5_000, 45_000][round as usize % 5]);
        world.hypervisor.set_manner(legacy.vm, manner.clone());
        legacy.hypervisor.set_manner(legacy.vm, manner);
        match round % 2 {
            0 => legacy.order(&world, "hv2").await,
            _ => legacy.write_order("hv2", "hv1").await,
        }
        until_record(&world, &legacy, "start", "hv2").await;
        world.until("it listens on", || there.hears_of(legacy.vm)).await;
        assert!(legacy.is_here().await && !world.hypervisor.is_there(legacy.vm), "round {round}");
        match round % 3 {
            0 => legacy.order(&world, "hv1").await,
            _ => legacy.write_order("hv1", "").await,
        }
        until_record(&world, &legacy, "start", "hv1").await;
        world.until("it listens on", || there.hears_of(legacy.vm)).await;
        assert!(world.hypervisor.is_there(legacy.vm) && !legacy.is_here().await, "round {round}");
        world.until("it is listed", || world.node().unwrap().running == [legacy.vm]).await;
    }
    assert_eq!(world.hypervisor.count("start", legacy.vm), 1, "it was never started again");
    assert_eq!(world.hypervisor.count("destroy", legacy.vm), 0);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_on_the_way_to_a_legacy_node_ends_with_a_start_there() {
    let (world, legacy, _daemon) = beside().await;
    let there = legacy.peer.listens(&world);
    world.hypervisor.set_manner(legacy.vm, fails());
    hand_over(&world, &legacy, &there).await;
    world.until("it runs there", || legacy.hypervisor.is_there(legacy.vm)).await;
    assert!(!world.hypervisor.is_there(legacy.vm));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_on_the_way_from_a_legacy_node_ends_with_a_start_here() {
    let (world, legacy, _daemon) = beside().await;
    let there = legacy.peer.listens(&world);
    hand_over(&world, &legacy, &there).await;
    legacy.set_method("shutdown").await;
    legacy.order(&world, "hv1").await;
    until_record(&world, &legacy, "start", "hv1").await;
    world.until_runs(legacy.vm).await;
}

#[tokio::test(start_paused = true)]
async fn an_operators_stop_is_not_taken_for_that_of_a_legacy_sender() {
    let (world, legacy, _daemon) = beside().await;
    let there = legacy.peer.listens(&world);
    hand_over(&world, &legacy, &there).await;
    legacy.set_method("shutdown").await;
    legacy.order(&world, "hv1").await;
    world.until("its sender has shut it down", || world.state(legacy.vm) == "stop").await;
    world.request(legacy.vm, VmState::Stop).await;
    world.pass(60).await;
    assert_eq!(world.state(legacy.vm), "stop");
    assert!(!world.hypervisor.is_there(legacy.vm) && !legacy.is_here().await);
}

#[tokio::test(start_paused = true)]
async fn a_legacy_node_that_missed_its_turn_is_answered_with_what_became_of_the_vm() {
    let (world, legacy, _daemon) = beside().await;
    // It holds its first turn, and dies before the second; its hypervisor lives on.
    let turn = legacy.key("migrate_sync_lock");
    let locks = LockRecipe::new(
        legacy.peer.tree.clone(),
        world.clock.clone(),
        Arc::new(SeededRandom::new(78)),
    );
    let first = tokio::spawn(async move {
        let first = locks.acquire(&turn, LockKind::Exclusive, None).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        first.release().await;
    });
    legacy.write_order("hv2", "hv1").await;
    first.await.unwrap();
    world.until("it has left", || !world.hypervisor.is_there(legacy.vm)).await;
    assert_eq!(world.state(legacy.vm), "migrate");
    let uuid = legacy.vm.to_string();
    legacy.lists(&uuid).await;
    until_record(&world, &legacy, "start", "hv2").await;
}

#[tokio::test(start_paused = true)]
async fn a_legacy_node_that_never_listens_costs_nothing_but_time() {
    let (world, legacy, _daemon) = beside().await;
    legacy.write_order("hv2", "hv1").await;
    until_record(&world, &legacy, "migrate", "hv2").await;
    until_record(&world, &legacy, "start", "hv1").await;
    assert_eq!(world.vm(legacy.vm).last_node, None);
    assert!(world.hypervisor.is_there(legacy.vm));
    assert_eq!(
        world.hypervisor.count("migrate", legacy.vm),
        0,
        "nothing was begun before it had its turn"
    );
    // It listens, and the next one works.
    let there = legacy.peer.listens(&world);
    hand_over(&world, &legacy, &there).await;
}

#[tokio::test(start_paused = true)]
async fn a_legacy_node_that_gives_up_leaves_us_ready_for_the_next() {
    let (world, mut legacy, _daemon) = beside().await;
    let there = legacy.peer.listens(&world);
    hand_over(&world, &legacy, &there).await;
    legacy.set_method("live").await;
    legacy.hypervisor.set_manner(legacy.vm, fails());
    legacy.order(&world, "hv1").await;
    until_record(&world, &legacy, "start", "hv2").await;
    legacy.hypervisor.set_manner(legacy.vm, Manner::default());
    // It still has the turn, so the next attempt comes to nothing, too: only its restart helps.
    legacy.order(&world, "hv1").await;
    until_record(&world, &legacy, "migrate", "hv1").await;
    until_record(&world, &legacy, "start", "hv2").await;
    let _there = legacy.restarts(&world).await;
    // Only of a guest that it finds at its start it knows that it runs.
    world.pass(1).await;
    legacy.order(&world, "hv1").await;
    until_record(&world, &legacy, "start", "hv1").await;
    assert!(world.hypervisor.is_there(legacy.vm));
    assert_eq!(
        legacy.hypervisor.count("start", legacy.vm) + world.hypervisor.count("start", legacy.vm),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn what_the_legacy_api_is_asked_for_during_a_move_counts_when_it_is_over() {
    let (world, legacy, _daemon) = beside().await;
    let there = legacy.peer.listens(&world);
    world.hypervisor.set_manner(legacy.vm, copies_for(8_000));
    legacy.order(&world, "hv2").await;
    world.pass(4).await;
    // It waits for the lock on the state, which the sender has.
    let stop = LegacyAsk::State(legacy.vm, "stop");
    legacy.peer.api(&world).ask(&stop).await.unwrap();
    world.until("it listens on", || there.hears_of(legacy.vm)).await;
    world.pass(10).await;
    assert_eq!(
        (world.state(legacy.vm), world.vm(legacy.vm).node.clone()),
        ("stop".into(), Some(NodeName::new("hv2")))
    );
    assert!(!world.hypervisor.is_there(legacy.vm) && !legacy.is_here().await);
}

#[tokio::test(start_paused = true)]
async fn a_legacy_sender_that_missed_the_order_gets_it_again() {
    let (world, legacy, _daemon) = beside().await;
    let there = legacy.peer.listens(&world);
    hand_over(&world, &legacy, &there).await;
    legacy.hypervisor.set_unreachable(true);
    legacy.order(&world, "hv1").await;
    legacy.hypervisor.set_unreachable(false);
    world.pass(20).await;
    assert!(legacy.is_here().await, "it does not know of a guest that it could have sent");
    until_record(&world, &legacy, "start", "hv1").await;
    assert!(world.hypervisor.is_there(legacy.vm) && !legacy.is_here().await);
}
