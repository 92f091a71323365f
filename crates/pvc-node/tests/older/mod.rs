//! A coordinator that does as PVC 1.0.3 does in a hand-over, with its sleeps and its lock recipe:
//! `spec/coordination.md` §2 and §3, `spec/zookeeper.md` §6.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pvc_embedded::EmbeddedTree;
use pvc_model::NodeName;
use pvc_model::node::CoordinatorState;
use pvc_model::primary::handover::Duty;
use pvc_ports::{CreateMode, Op, Random, Tree};
use pvc_store::{Changes, Ipmi, NodeChange, Store};
use pvc_testkit::{SeededRandom, TokioClock};

use crate::segment::{Segment, floating};
use crate::world::{World, older_node};

const SYNC: &str = "/config/primary_node/sync_lock";
const KEY: &str = "/config/primary_node";

pub struct Older {
    name: NodeName,
    tree: Arc<EmbeddedTree>,
    store: Store,
    segment: Arc<Segment>,
    random: SeededRandom,
    /// Whether its readers wait for the last writer in the queue, as those of kazoo 2.8 do.
    kazoo_28: bool,
}

impl Older {
    /// Adds a coordinator of this name that runs and is secondary, and has it follow the key.
    pub async fn join(world: &World, segment: &Arc<Segment>, name: &str, kazoo_28: bool) -> Arc<Older> {
        let tree = Arc::new(world.tree.connect_concrete());
        let clock: Arc<TokioClock> = world.clock.clone();
        let store = Store::open(tree.clone(), clock, Arc::new(SeededRandom::new(77))).await.unwrap();
        let (segment, random) = (segment.clone(), SeededRandom::new(78));
        let older = Arc::new(Older { name: NodeName::new(name), tree, store, segment, random, kazoo_28 });
        let mut changes = older_node(&older.name, Ipmi::default());
        changes.node(&older.name, NodeChange::Coordinator(CoordinatorState::Secondary));
        older.change(changes).await;
        tokio::spawn(older.clone().follow());
        older
    }

    /// Makes it primary by decree, with everything that goes with it.
    pub async fn become_primary_at_once(&self) {
        for floating in floating() {
            self.segment.added(self.name.as_str(), floating.address.addr());
        }
        let mut changes = Changes::new();
        changes.node(&self.name, NodeChange::Coordinator(CoordinatorState::Primary));
        changes.config(pvc_store::ConfigChange::Primary(Some(self.name.clone())));
        self.change(changes).await;
    }

    async fn change(&self, changes: Changes) {
        self.store.change(|_| Ok::<_, std::convert::Infallible>((changes.clone(), ()))).await.unwrap();
    }

    async fn become_state(&self, state: CoordinatorState) {
        let mut changes = Changes::new();
        changes.node(&self.name, NodeChange::Coordinator(state));
        self.change(changes).await;
    }

    fn state(&self) -> CoordinatorState {
        self.store.view().nodes[&self.name].coordinator_state.clone()
    }

    /// Reacts to each new value of the key, and to nothing else.
    async fn follow(self: Arc<Self>) {
        let mut changes = self.store.changed();
        let mut last = self.store.view().config.primary.clone();
        while changes.changed().await.is_ok() {
            let named = self.store.view().config.primary.clone();
            if named == last {
                continue;
            }
            last = named.clone();
            match named {
                Some(name) if name == self.name && self.state() == CoordinatorState::Secondary => {
                    pause(500).await;
                    self.become_state(CoordinatorState::Takeover).await;
                    self.take_over().await;
                }
                Some(name) if name != self.name && self.state() == CoordinatorState::Primary => {
                    pause(500).await;
                    self.become_state(CoordinatorState::Relinquish).await;
                    self.relinquish().await;
                }
                _ => {}
            }
        }
    }

    async fn take_over(&self) {
        let claim = self.lock(KEY, Kind::Exclusive, None).await;
        let first = self.lock(SYNC, Kind::Write, None).await;
        pause(1000).await;
        self.unlock(first).await;
        pause(100).await;
        let read = self.lock(SYNC, Kind::Read, Some(5000)).await;
        self.unlock(read).await;
        for (sleep, duty) in [
            (500, Some(Duty::Upstream)),
            (200, Some(Duty::Inner)),
            (200, Some(Duty::Metadata)),
            (200, None),
            (200, None),
        ] {
            let lock = self.lock(SYNC, Kind::Write, None).await;
            pause(sleep).await;
            for floating in floating().iter().filter(|it| Some(it.duty) == duty) {
                self.segment.added(self.name.as_str(), floating.address.addr());
                pause(40).await; // arping, in the foreground
            }
            self.unlock(lock).await;
        }
        pause(2000).await;
        self.unlock(claim).await;
        self.become_state(CoordinatorState::Primary).await;
    }

    async fn relinquish(&self) {
        pause(200).await;
        let read = self.lock(SYNC, Kind::Read, Some(5000)).await;
        self.unlock(read).await;
        let write = self.lock(SYNC, Kind::Write, None).await;
        pause(200).await;
        pause(150).await; // stops services
        self.unlock(write).await;
        pause(100).await;
        for duty in [Some(Duty::Upstream), Some(Duty::Inner), Some(Duty::Metadata), None, None] {
            let read = self.lock(SYNC, Kind::Read, Some(5000)).await;
            for floating in floating().iter().filter(|it| Some(it.duty) == duty) {
                pause(10).await; // `ip`, as a program
                self.segment.removed(self.name.as_str(), floating.address.addr());
            }
            self.unlock(read).await;
        }
        pause(2000).await;
        self.become_state(CoordinatorState::Secondary).await;
    }

    /// Takes a lock as kazoo does; after `timeout` milliseconds goes on without it.
    async fn lock(&self, path: &str, kind: Kind, timeout: Option<u64>) -> Option<String> {
        let prefix = format!("{path}/{}{}", self.random.uuid().simple(), kind.marker());
        let (own, _) =
            self.tree.create(&prefix, Bytes::new(), CreateMode::EphemeralSequential).await.unwrap();
        let mut changes = self.tree.watch(path).await.unwrap();
        let turn = async {
            while self.is_held_up(path, &own, kind).await {
                changes.recv().await;
                pause(2).await; // a round trip to the servers
            }
        };
        let limit = Duration::from_millis(timeout.unwrap_or(3_600_000));
        if tokio::time::timeout(limit, turn).await.is_err() {
            self.unlock(Some(own)).await;
            return None;
        }
        Some(own)
    }

    async fn is_held_up(&self, path: &str, own: &str, kind: Kind) -> bool {
        let mine = sequence(own);
        let children = self.tree.children(path).await.unwrap().unwrap_or_default();
        let in_the_way = |name: &&String| match kind {
            Kind::Read if self.kazoo_28 => name.contains("__lock__"),
            Kind::Read | Kind::Exclusive => name.contains("__lock__") && sequence(name) < mine,
            Kind::Write => name.contains("lock__") && sequence(name) < mine,
        };
        children.iter().any(|name| in_the_way(&name))
    }

    async fn unlock(&self, own: Option<String>) {
        if let Some(path) = own {
            pause(1).await;
            self.tree.multi(vec![Op::Delete { path, version: None }]).await.unwrap();
        }
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Exclusive,
    Write,
    Read,
}

impl Kind {
    fn marker(self) -> &'static str {
        match self {
            Kind::Exclusive | Kind::Write => "__lock__",
            Kind::Read => "__rlock__",
        }
    }
}

fn sequence(name: &str) -> i64 {
    name[name.len() - 10..].parse().unwrap()
}

async fn pause(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}
