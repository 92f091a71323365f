//! The hand-over of the primary role with a Python peer that does its part with kazoo's locks and
//! PVC's sleeps: `spec/coordination.md` §3. Who has which address is noted as it happens.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pvc_model::primary::handover::{
    Action, Duty, Ending, Facts, HandOver, Lock, Named, Part, Peer,
};
use pvc_store::lock::{LockGuard, LockKind};
use pvc_store::{RoleLocks, Store};
use pvc_testkit::{SeededRandom, TokioClock};
use serde_json::json;

use super::peer::{Kazoo, World};

const SYNC: &str = "/config/primary_node/sync_lock";
const ROUNDS: usize = 4;

/// Duties that 1.0.3 moves in each of the phases C to G.
const MOVED: [Option<Duty>; 5] =
    [Some(Duty::Upstream), Some(Duty::Inner), Some(Duty::Metadata), Some(Duty::Gateways), None];

/// Holders of each duty, and the longest times that one was nowhere or in two places.
#[derive(Default)]
struct Ledger {
    holders: BTreeMap<Duty, BTreeSet<&'static str>>,
    since: BTreeMap<Duty, Instant>,
    longest_gap: Duration,
    longest_overlap: Duration,
}

impl Ledger {
    fn held_by(who: &'static str) -> Arc<Mutex<Ledger>> {
        let duties = MOVED.into_iter().flatten();
        let holders = duties.map(|duty| (duty, BTreeSet::from([who]))).collect();
        Arc::new(Mutex::new(Ledger { holders, ..Ledger::default() }))
    }

    fn note(&mut self, duty: Duty, who: &'static str, has: bool) {
        let Some(holders) = self.holders.get_mut(&duty) else { return };
        let before = holders.len();
        if has {
            holders.insert(who)
        } else {
            holders.remove(who)
        };
        let lasted = self.since.insert(duty, Instant::now()).map(|since| since.elapsed());
        match before {
            0 => self.longest_gap = self.longest_gap.max(lasted.unwrap_or_default()),
            2 => self.longest_overlap = self.longest_overlap.max(lasted.unwrap_or_default()),
            _ => {}
        }
    }

    fn assert_all_at(&self, who: &str) {
        assert!(
            self.holders.values().all(|holders| holders.iter().eq([&who])),
            "{:?}",
            self.holders
        );
    }
}

async fn pause(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}

/// Our part, with the records frozen: the peer lives and takes part.
async fn ours(part: Part, locks: &RoleLocks, ledger: &Mutex<Ledger>) -> Ending {
    let named = if part == Part::Candidate { Named::Me } else { Named::Peer };
    let facts = Facts { named, peer: Peer::Busy, peer_repairs: true };
    let mut machine = HandOver::new(part, Duration::from_secs(10));
    let begin = Instant::now();
    let mut lock: Option<LockGuard> = None;
    let mut done = true;
    loop {
        let now = begin.elapsed();
        let left = |until: Duration| until.saturating_sub(now);
        done = match machine.next(&facts, done, now) {
            Action::AwaitWriter { until } => {
                tokio::time::timeout(left(until), locks.until_writer()).await.is_ok()
            }
            Action::AwaitReader { until } => {
                let own = lock.as_ref().expect("only who has a lock waits for a reader");
                tokio::time::timeout(left(until), locks.until_reader_behind(own)).await.is_ok()
            }
            Action::Lock { kind, limit } => {
                let kind = if kind == Lock::Write { LockKind::Write } else { LockKind::Read };
                lock = locks.phase(kind, limit).await.ok();
                lock.is_some()
            }
            Action::Unlock => {
                lock.take().expect("there is one").release().await;
                true
            }
            Action::Pause(time) => {
                tokio::time::sleep(time).await;
                true
            }
            Action::Take(duty) => {
                ledger.lock().expect("no panic").note(duty, "ours", true);
                true
            }
            Action::Leave(duty) => {
                ledger.lock().expect("no panic").note(duty, "ours", false);
                true
            }
            Action::Insist => true,
            Action::End(ending) => return ending,
        };
    }
}

async fn take(kazoo: &Kazoo, kind: &str, timeout: Option<f64>) {
    // A new lock each time, as PVC makes them.
    let made = json!({"do": "lock", "name": "phase", "path": SYNC, "kind": kind});
    kazoo.ask(made).await.expect("a lock object is made");
    // Without the lock it goes on, too.
    let _ = kazoo.acquire("phase", timeout).await;
}

async fn holder_of_1_0_3(kazoo: &Kazoo, ledger: &Mutex<Ledger>) {
    pause(700).await;
    take(kazoo, "read", Some(5.0)).await;
    kazoo.release("phase").await;
    take(kazoo, "write", None).await;
    pause(300).await;
    kazoo.release("phase").await;
    pause(100).await;
    for duty in MOVED {
        take(kazoo, "read", Some(5.0)).await;
        if let Some(duty) = duty {
            pause(10).await; // `ip`, as a program
            ledger.lock().expect("no panic").note(duty, "python", false);
        }
        kazoo.release("phase").await;
    }
}

async fn candidate_of_1_0_3(kazoo: &Kazoo, ledger: &Mutex<Ledger>) {
    pause(500).await;
    take(kazoo, "write", None).await;
    pause(1000).await;
    kazoo.release("phase").await;
    pause(100).await;
    take(kazoo, "read", Some(5.0)).await;
    kazoo.release("phase").await;
    for (sleep, duty) in [500, 200, 200, 200, 200].into_iter().zip(MOVED) {
        take(kazoo, "write", None).await;
        pause(sleep).await;
        if let Some(duty) = duty {
            ledger.lock().expect("no panic").note(duty, "python", true);
            pause(40).await; // `arping`, in the foreground
        }
        kazoo.release("phase").await;
    }
}

async fn locks_on(world: &World) -> RoleLocks {
    let random = Arc::new(SeededRandom::new(7));
    let store = Store::open(world.tree().await, Arc::new(TokioClock::new()), random).await;
    let store = store.expect("the tree can be read");
    store.initialize(false).await.expect("an empty tree can be initialized");
    store.role_locks()
}

/// Of a hundred such with kazoo 2.8.0 not one may stall, or leave an address nowhere for long.
pub async fn a_python_holder_hands_over_to_our_candidate(version: &str) {
    let world = World::new(version).await;
    let (kazoo, locks) = (world.kazoo().await, locks_on(&world).await);
    for round in 0..ROUNDS {
        let ledger = Ledger::held_by("python");
        let begin = Instant::now();
        let (ending, ()) =
            tokio::join!(ours(Part::Candidate, &locks, &ledger), holder_of_1_0_3(&kazoo, &ledger));
        assert_eq!(ending, Ending::Primary, "round {round}");
        assert!(
            begin.elapsed() < Duration::from_secs(8),
            "round {round} took {:?}",
            begin.elapsed()
        );
        let ledger = ledger.lock().expect("no panic");
        ledger.assert_all_at("ours");
        assert_eq!(ledger.longest_overlap, Duration::ZERO, "round {round}");
        assert!(
            ledger.longest_gap < Duration::from_millis(300),
            "round {round}: {:?}",
            ledger.longest_gap
        );
    }
}

pub async fn our_holder_hands_over_to_a_python_candidate(version: &str) {
    let world = World::new(version).await;
    let (kazoo, locks) = (world.kazoo().await, locks_on(&world).await);
    for round in 0..ROUNDS {
        let ledger = Ledger::held_by("ours");
        let begin = Instant::now();
        let (ending, ()) =
            tokio::join!(ours(Part::Holder, &locks, &ledger), candidate_of_1_0_3(&kazoo, &ledger));
        assert_eq!(ending, Ending::Secondary, "round {round}");
        assert!(
            begin.elapsed() < Duration::from_secs(8),
            "round {round} took {:?}",
            begin.elapsed()
        );
        let ledger = ledger.lock().expect("no panic");
        ledger.assert_all_at("python");
        let (gap, overlap) = (ledger.longest_gap, ledger.longest_overlap);
        assert!(gap < Duration::from_millis(300), "round {round}: {gap:?}");
        // It adds before ours may remove: its `arping` and a round trip.
        assert!(overlap < Duration::from_millis(300), "round {round}: {overlap:?}");
    }
}
