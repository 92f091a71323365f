//! Fencing: coordinators watch each other's nodes, and one of them deals with the dead.
//!
//! What is done next is decided in [`pvc_model::fence`], from the records and from what this node has seen
//! itself. Here the steps are done: each in a task of its own, so that a BMC that hangs, or a storage that
//! does, holds up neither the looking nor another node's recovery.
//!
//! Invariants:
//! - Only the holder of the fence lock acts (I6). It holds the lock as long as any node concerns it, as
//!   older peers do, and asks whether it still has it before each step.
//! - Each step is checked once more against a fresh view, and each write names what it was decided on.

mod act;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pvc_model::NodeName;
use pvc_model::fence::{self, Mind, Plan, Sightings, Step};
use pvc_store::{LockGuard, StoreError};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::shared::Shared;
use act::{Actor, Done, Ended};

/// How often everybody's stamp is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// How long the lock is waited for at a time.
const LOCK_PATIENCE: Duration = Duration::from_secs(4);

/// How long steps under way are waited for when the daemon stops.
const FINISH: Duration = Duration::from_secs(15);

struct Fencer {
    shared: Arc<Shared>,
    actor: Actor,
    sightings: Sightings,
    minds: BTreeMap<NodeName, Mind>,
    lock: Option<Arc<LockGuard>>,
    waiting_for_lock: JoinSet<Result<LockGuard, StoreError>>,
    under_way: JoinSet<Done>,
}

/// Watches and fences until `shutdown`.
pub(crate) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    if shared.settings.fence_only_with_own_bmc && !shared.bmc_answers.load(Ordering::Relaxed) {
        tracing::error!(
            "this node fences nobody: its own BMC did not answer (`fencing.disable_on_ipmi_failure`)"
        );
        return;
    }
    let fencer = Fencer {
        actor: Actor { shared: shared.clone() },
        shared,
        sightings: Sightings::default(),
        minds: BTreeMap::new(),
        lock: None,
        waiting_for_lock: JoinSet::new(),
        under_way: JoinSet::new(),
    };
    fencer.run(shutdown).await;
}

impl Fencer {
    async fn run(mut self, shutdown: CancellationToken) {
        let shared = self.shared.clone();
        loop {
            self.pass().await;
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(done) = self.under_way.join_next() => self.joined(done),
                Some(lock) = self.waiting_for_lock.join_next() => self.got_lock(lock),
                () = shared.sleep(LOOK) => {}
            }
        }
        // The lock is kept meanwhile: who gets it next must not meet a step of ours.
        let all = async { while self.under_way.join_next().await.is_some() {} };
        if shared.within(FINISH, all).await.is_none() {
            tracing::warn!("a fence was still under way; another coordinator finishes it");
        }
        self.let_go().await;
    }

    async fn pass(&mut self) {
        let shared = self.shared.clone();
        let cluster = shared.store.view();
        let now = shared.now();
        let is_connected = shared.is_connected();
        self.sightings.look(&cluster, is_connected, now);
        let is_held = self.lock.as_ref().is_some_and(|lock| lock.certain());
        if !is_held && self.lock.take().is_some() {
            tracing::warn!("the fence lock was lost; whoever has it next goes on");
            self.minds.retain(|_, mind| mind.busy);
        }
        if !is_connected {
            return;
        }
        let view = fence::View {
            me: shared.name(),
            cluster: &cluster,
            sightings: &self.sightings,
            rules: &shared.settings.fencing,
            now,
        };
        if is_held {
            fence::observe(&view, &mut self.minds);
        }
        let Plan { steps, concerns } = fence::plan(&view, &self.minds);
        if concerns.is_empty() && self.under_way.is_empty() {
            return self.let_go().await;
        }
        if is_held {
            steps.into_iter().for_each(|(node, step)| self.begin(node, step));
        } else if self.waiting_for_lock.is_empty() {
            let store = shared.store.clone();
            self.waiting_for_lock.spawn(async move { store.fence_lock(LOCK_PATIENCE).await });
        }
    }

    fn begin(&mut self, node: NodeName, step: Step) {
        let Some(lock) = self.lock.clone() else { return };
        self.minds.entry(node.clone()).or_default().busy = true;
        self.under_way.spawn(self.actor.clone().act(node, step, lock));
    }

    fn got_lock(&mut self, lock: Result<Result<LockGuard, StoreError>, JoinError>) {
        match lock {
            Ok(Ok(lock)) => self.lock = Some(Arc::new(lock)),
            // Another coordinator is at it.
            Ok(Err(StoreError::LockTimeout { .. })) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the fence lock cannot be had; it is tried again"),
            Err(error) => tracing::error!(%error, "waiting for the fence lock ended by a bug"),
        }
    }

    fn joined(&mut self, done: Result<Done, JoinError>) {
        let Done { node, ended } = match done {
            Ok(done) => done,
            // The actor catches the panics of its steps; this one is a bug of the fencer's own.
            Err(error) => return tracing::error!(%error, "a step of a fence ended without an outcome"),
        };
        let now = self.shared.now();
        let interval = self.shared.settings.fencing.keepalive_interval;
        let mind = self.minds.entry(node).or_default();
        mind.busy = false;
        match ended {
            Ended::Done => {}
            Ended::Heard(is_on) => mind.heard_of_power(is_on, now, interval),
            Ended::CutOff => mind.was_cut_off(),
            Ended::NotCutOff => mind.could_not_be_cut_off(now),
            Ended::NotRecovered => mind.could_not_recover(now),
            Ended::NotSwitchedOn => mind.could_not_switch_on(now),
        }
    }

    /// Gives the lock back, and the place in its queue.
    async fn let_go(&mut self) {
        self.waiting_for_lock.shutdown().await;
        self.minds.clear();
        if let Some(lock) = self.lock.take().and_then(Arc::into_inner) {
            lock.release().await;
        }
    }
}
