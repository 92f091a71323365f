//! A VM moves between a node of ours and one that behaves as PVC 1.0.3 does (`spec/vm.md` §5), step by step and
//! with its timing: it acts on events once, holds its turn for a second, and queues again at once.

#![allow(clippy::disallowed_methods, reason = "a test waits, in real or in paused time")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod world;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pvc_model::node::DomainState;
use pvc_model::vm::VmState;
use pvc_model::{NodeName, Uuid};
use pvc_ports::{Hypervisor, Migration, Op, Tree};
use pvc_store::lock::{LockKind, LockRecipe};
use pvc_store::{Ipmi, NodeChange};
use pvc_testkit::{Manner, ScriptedHypervisor, SeededRandom};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use world::{Daemon, World, older_node, world};

/// Node hv2, of PVC 1.0.3.
#[derive(Clone)]
struct Older {
    tree: Arc<dyn Tree>,
    locks: LockRecipe,
    hypervisor: Arc<ScriptedHypervisor>,
    vm: Uuid,
}

/// The wait of one lock.
const PATIENCE: Duration = Duration::from_secs(30);

impl Older {
    /// Enters the cluster.
    async fn join(world: &World, vm: Uuid) -> Older {
        let name = NodeName::new("hv2");
        let mut changes = older_node(&name, Ipmi::default());
        changes.node(&name, NodeChange::Domain(DomainState::Ready));
        world.change(changes).await;
        let hypervisor = Arc::new(ScriptedHypervisor::new());
        hypervisor.add_peer("hv1", &world.hypervisor);
        world.hypervisor.add_peer("hv2", &hypervisor);
        let tree = world.tree.connect();
        let locks = LockRecipe::new(tree.clone(), world.clock.clone(), Arc::new(SeededRandom::new(77)));
        Older { tree, locks, hypervisor, vm }
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
        self.tree.multi(values.iter().map(op).collect()).await.unwrap();
    }

    async fn get(&self, key: &str) -> String {
        let entry = self.tree.get(&self.key(key)).await.unwrap().unwrap();
        String::from_utf8(entry.data.to_vec()).unwrap()
    }

    /// As its API orders a move: under the lock on the state, held for half a second.
    async fn order(&self, to: &str, last: &str) {
        let lock = self.locks.acquire(&self.key("state"), LockKind::Exclusive, None).await.unwrap();
        self.write_order(to, last).await;
        sleep(Duration::from_millis(500)).await;
        lock.release().await;
    }

    /// As its flush does: without any lock.
    async fn write_order(&self, to: &str, last: &str) {
        let values = [(self.key("state"), "migrate"), (self.key("node"), to), (self.key("lastnode"), last)];
        self.set(&values).await;
    }

    async fn lists(&self, vms: &str) {
        self.set(&[("/nodes/hv2/runningdomains".to_owned(), vms)]).await;
    }

    async fn is_here(&self) -> bool {
        self.hypervisor.guests().await.unwrap().contains_key(&self.vm)
    }

    /// Receives once. `false`: it has waited in vain and will not listen again.
    async fn receive(&self) -> bool {
        sleep(Duration::from_millis(20)).await;
        let turn = self.key("migrate_sync_lock");
        let uuid = self.vm.to_string();
        self.set(&[(turn.clone(), uuid.as_str())]).await;
        let Ok(first) = self.locks.acquire(&turn, LockKind::Exclusive, Some(PATIENCE)).await else {
            return false;
        };
        sleep(Duration::from_secs(1)).await;
        first.release().await;
        let turn_again = self.locks.acquire(&turn, LockKind::Exclusive, None).await.unwrap();
        let state = self.get("state").await;
        let runs = self.hypervisor.run(self.vm) == Some(pvc_ports::GuestRun::Running);
        match state.as_str() {
            _ if runs => {
                self.lists(&uuid).await;
                self.set(&[(self.key("state"), "start")]).await;
            }
            _ if self.is_here().await => self.set(&[(self.key("state"), "fail")]).await,
            "stop" => {
                let xml = format!("<domain><name>vm1</name><uuid>{uuid}</uuid></domain>");
                self.hypervisor.start(self.vm, &xml).await.unwrap();
                self.lists(&uuid).await;
                self.set(&[(self.key("state"), "start")]).await;
            }
            _ => {}
        }
        turn_again.release().await;
        self.set(&[(turn, "")]).await;
        true
    }

    /// Receives once, beside the test.
    fn receives(&self) -> JoinHandle<bool> {
        let older = self.clone();
        tokio::spawn(async move { older.receive().await })
    }

    /// Sends once to hv1, beside the test.
    fn sends(&self, live: bool) -> JoinHandle<bool> {
        let older = self.clone();
        tokio::spawn(async move { older.send(live).await })
    }

    /// Sends once to hv1, live or by a shutdown. `false`: it gave up.
    async fn send(&self, live: bool) -> bool {
        sleep(Duration::from_millis(20)).await;
        let node = self.locks.acquire(&self.key("node"), LockKind::Exclusive, None).await.unwrap();
        let state = self.locks.acquire(&self.key("state"), LockKind::Exclusive, None).await.unwrap();
        sleep(Duration::from_millis(500)).await;
        let turn = self.key("migrate_sync_lock");
        let turn = self.locks.acquire(&turn, LockKind::Exclusive, Some(PATIENCE)).await;
        let sent = match &turn {
            Err(_) => false,
            Ok(_) if live => {
                let max_downtime = Duration::from_millis(300);
                let migration = Migration { host: "hv1".to_owned(), max_downtime, encrypted: false };
                let mut job = self.hypervisor.migrate(self.vm, &migration).await.unwrap();
                job.outcome().await.is_ok()
            }
            Ok(_) => {
                self.hypervisor.destroy(self.vm).await.unwrap();
                self.set(&[(self.key("state"), "stop")]).await;
                sleep(Duration::from_millis(200)).await;
                true
            }
        };
        match sent {
            true => self.lists("").await,
            false => {
                let values =
                    [(self.key("state"), "start"), (self.key("node"), "hv2"), (self.key("lastnode"), "")];
                self.set(&values).await;
            }
        }
        node.release().await;
        state.release().await;
        if let Ok(turn) = turn {
            turn.release().await;
        }
        sent
    }
}

/// hv1, which is ours and has the VM, beside hv2.
async fn beside() -> (World, Older, Daemon) {
    let world = world().await;
    let vm = world.define(1, VmState::Start).await;
    let older = Older::join(&world, vm).await;
    let daemon = world.running().await;
    world.until_runs(vm).await;
    world.until("it is listed", || world.node().unwrap().running == [vm]).await;
    (world, older, daemon)
}

/// Has hv1 send the VM to hv2, which receives it.
async fn hand_over(world: &World, older: &Older) {
    let there = older.receives();
    older.order("hv2", "hv1").await;
    assert!(there.await.unwrap());
    until_record(world, older, "start", "hv2").await;
}

async fn until_record(world: &World, older: &Older, state: &str, node: &str) {
    world
        .until(&format!("the record says {state} on {node}"), || {
            let record = world.vm(older.vm);
            record.state.as_str() == state && record.node == Some(NodeName::new(node))
        })
        .await;
}

fn copies_for(milliseconds: u64) -> Manner {
    Manner { migration_takes: Duration::from_millis(milliseconds), ..Manner::default() }
}

#[tokio::test(start_paused = true)]
async fn vms_go_to_an_older_node_and_come_back_and_none_stays_on_its_way() {
    let (world, older, _daemon) = beside().await;
    for round in 0_u64..30 {
        // From an instant to longer than any of its patience.
        let manner = copies_for([0, 100, 900, 5_000, 45_000][round as usize % 5]);
        world.hypervisor.set_manner(older.vm, manner.clone());
        older.hypervisor.set_manner(older.vm, manner);
        let there = older.receives();
        if round % 2 == 0 {
            older.order("hv2", "hv1").await
        } else {
            older.write_order("hv2", "hv1").await
        }
        until_record(&world, &older, "start", "hv2").await;
        assert!(timeout(PATIENCE, there).await.unwrap().unwrap(), "it listens on");
        assert!(older.is_here().await && !world.hypervisor.is_there(older.vm), "round {round}");
        let sender = older.sends(true);
        if round % 3 == 0 {
            older.order("hv1", "").await
        } else {
            older.write_order("hv1", "").await
        }
        until_record(&world, &older, "start", "hv1").await;
        assert!(timeout(PATIENCE, sender).await.unwrap().unwrap());
        assert!(world.hypervisor.is_there(older.vm) && !older.is_here().await, "round {round}");
        world.until("it is listed", || world.node().unwrap().running == [older.vm]).await;
    }
    assert_eq!(world.hypervisor.count("start", older.vm), 1, "it was never started again");
    assert_eq!(world.hypervisor.count("destroy", older.vm), 0);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_on_the_way_to_an_older_node_ends_with_a_start_there() {
    let (world, older, _daemon) = beside().await;
    let fails = Manner { fails_migration: Some("host CPU differs".to_owned()), ..Manner::default() };
    world.hypervisor.set_manner(older.vm, fails);
    hand_over(&world, &older).await;
    assert!(older.is_here().await && !world.hypervisor.is_there(older.vm));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_on_the_way_from_an_older_node_ends_with_a_start_here() {
    let (world, older, _daemon) = beside().await;
    hand_over(&world, &older).await;
    let sender = older.sends(false);
    older.order("hv1", "").await;
    assert!(sender.await.unwrap());
    until_record(&world, &older, "start", "hv1").await;
    world.until_runs(older.vm).await;
}

#[tokio::test(start_paused = true)]
async fn an_operators_stop_is_not_taken_for_that_of_an_older_sender() {
    let (world, older, _daemon) = beside().await;
    hand_over(&world, &older).await;
    let sender = older.sends(false);
    older.order("hv1", "").await;
    world.until("its sender has shut it down", || world.state(older.vm) == "stop").await;
    world.request(older.vm, VmState::Stop).await;
    assert!(sender.await.unwrap());
    world.pass(60).await;
    assert_eq!(world.state(older.vm), "stop");
    assert!(!world.hypervisor.is_there(older.vm) && !older.is_here().await);
}

#[tokio::test(start_paused = true)]
async fn an_older_node_that_missed_its_turn_is_told_what_became_of_the_vm() {
    let (world, older, _daemon) = beside().await;
    // It holds its first turn, and dies before the second; its hypervisor lives on.
    let turn = older.key("migrate_sync_lock");
    let first = tokio::spawn({
        let (older, turn) = (older.clone(), turn.clone());
        async move {
            let first = older.locks.acquire(&turn, LockKind::Exclusive, None).await.unwrap();
            sleep(Duration::from_secs(1)).await;
            first.release().await;
        }
    });
    older.write_order("hv2", "hv1").await;
    first.await.unwrap();
    world.until("it has left", || !world.hypervisor.is_there(older.vm)).await;
    assert_eq!(world.state(older.vm), "migrate");
    let uuid = older.vm.to_string();
    older.lists(&uuid).await;
    until_record(&world, &older, "start", "hv2").await;
}

#[tokio::test(start_paused = true)]
async fn an_older_node_that_never_listens_costs_nothing_but_time() {
    let (world, older, _daemon) = beside().await;
    older.write_order("hv2", "hv1").await;
    until_record(&world, &older, "start", "hv1").await;
    assert_eq!(world.vm(older.vm).last_node, None);
    assert!(world.hypervisor.is_there(older.vm));
    assert_eq!(world.hypervisor.count("migrate", older.vm), 0, "nothing was begun before it had its turn");
    // It listens again, and the next one works.
    hand_over(&world, &older).await;
}

#[tokio::test(start_paused = true)]
async fn an_older_node_that_gives_up_leaves_us_ready_for_the_next() {
    let (world, older, _daemon) = beside().await;
    hand_over(&world, &older).await;
    let fails = Manner { fails_migration: Some("host CPU differs".to_owned()), ..Manner::default() };
    for (manner, sent, node) in [(fails, false, "hv2"), (Manner::default(), true, "hv1")] {
        older.hypervisor.set_manner(older.vm, manner);
        let sender = older.sends(true);
        older.order("hv1", "").await;
        assert_eq!(sender.await.unwrap(), sent);
        until_record(&world, &older, "start", node).await;
    }
    assert!(world.hypervisor.is_there(older.vm));
}
