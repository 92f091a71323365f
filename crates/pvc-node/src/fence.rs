//! Fencing: coordinators watch each other's nodes, and one of them deals with the dead.
//!
//! What is done next is decided in [`pvc_model::fence`], from the records and from what this node
//! has seen itself. Here the steps are done: each in a task of its own, so that a BMC that hangs,
//! or a storage that does, holds up neither the looking nor another node's recovery.
//!
//! A node that is silent may be dead, cut off or slow, and its guests may still write. So the steps
//! have one order: the suspicion is recorded (`Suspect`); a few keepalive intervals are left to the
//! node to show that it lives; its BMC is asked, or told to cut the power (`AskPower`, `CutPower`;
//! of a silent one an operator hears: `NoAnswer`); that it is dead is recorded with the proof
//! (`Prove`); the RBD locks of its VMs are broken, and each VM gets a new node (`Recover`); the
//! power is switched on again (`PowerOn`). Where no BMC can prove it an operator can
//! (`pvc_ops::node::confirm_off`): a fencer goes on from there.
//!
//! Why a cut is safe, by the place where it falls. Nothing but the record of the node says how far
//! a fence has come, so whoever gets the lock next goes on from there. A fencer that dies before
//! `Prove` has changed nothing that a stamp of the node does not undo; the next one asks the BMC
//! anew. After `Prove` the node is known to be dead, and freeing locks and placing VMs can be
//! repeated: a VM that was given away is no longer one of the dead node's. A node that lives after
//! all stamps, which stops the fence before the power is cut; if it stamps at that very moment, the
//! history remembers that its power may be off, and it is switched on again.
//!
//! Invariants:
//! - Only the holder of the fence lock acts (I6). It holds the lock as long as any node concerns
//!   it, as legacy peers do, and asks whether it still has it before each step.
//! - Each step is checked once more against a fresh view, and each write names what it was decided
//!   on.

mod act;
mod place;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pvc_model::NodeName;
use pvc_model::fence::{self, Cuts, History, Plan, Sightings, Step};
use pvc_role::{Done, UnderWay};
use pvc_store::{LockGuard, StoreError};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::shared::{Shared, id_of};
use act::{Actor, Ended};

/// Time between two looks at everybody's stamp.
const LOOK: Duration = Duration::from_secs(1);

/// Time of one attempt at the lock.
const LOCK_TIME_LIMIT: Duration = Duration::from_secs(4);

/// Time given to steps under way when the daemon stops.
const FINISH: Duration = Duration::from_secs(15);

struct Fencer {
    shared: Arc<Shared>,
    actor: Actor,
    sightings: Sightings,
    histories: BTreeMap<NodeName, History>,
    cuts: Cuts,
    lock: Option<Arc<LockGuard>>,
    waiting_for_lock: JoinSet<Result<LockGuard, StoreError>>,
    under_way: UnderWay<(NodeName, Step), Ended>,
}

/// Watches and fences until `shutdown`.
pub(crate) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    if shared.settings.fence_only_with_own_bmc && !shared.bmc_answers.load(Ordering::Relaxed) {
        tracing::error!(
            "this node fences nobody: its own BMC did not answer \
             (`fencing.disable_on_ipmi_failure`)"
        );
        return;
    }
    Fencer::new(shared).run(shutdown).await;
}

impl Fencer {
    fn new(shared: Arc<Shared>) -> Self {
        Fencer {
            actor: Actor { shared: shared.clone() },
            sightings: Sightings::new(&shared.settings.fencing),
            shared,
            histories: BTreeMap::new(),
            cuts: Cuts::default(),
            lock: None,
            waiting_for_lock: JoinSet::new(),
            under_way: UnderWay::default(),
        }
    }

    async fn run(mut self, shutdown: CancellationToken) {
        let shared = self.shared.clone();
        loop {
            self.pass().await;
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(done) = self.under_way.ended() => self.take_in(done),
                Some(lock) = self.waiting_for_lock.join_next() => self.got_lock(lock),
                () = shared.sleep(LOOK) => {}
            }
        }
        // The lock is kept meanwhile: who gets it next must not meet a step of ours.
        if !self.under_way.finish(&shared, FINISH).await {
            tracing::warn!("a fence was still under way; another coordinator finishes it");
        }
        self.let_go().await;
    }

    async fn pass(&mut self) {
        let shared = self.shared.clone();
        let cluster = shared.store.view();
        let now = shared.now();
        let session = id_of(*shared.store.session().borrow());
        self.sightings.look(&cluster, session, now);
        let is_held = self.lock.as_ref().is_some_and(|lock| lock.certain());
        if !is_held && self.lock.take().is_some() {
            tracing::warn!("the fence lock was lost; whoever has it next goes on");
            self.histories.retain(|_, history| history.lost_lock());
        }
        if session.is_none() {
            return self
                .cuts
                .due(now)
                .into_iter()
                .for_each(|node| self.switch_on_without_store(node));
        }
        self.cuts.observe(&cluster, now);
        let view = fence::View {
            me: shared.name(),
            cluster: &cluster,
            sightings: &self.sightings,
            rules: &shared.settings.fencing,
            now,
        };
        if is_held {
            fence::observe(&view, &mut self.histories);
            if self.under_way.is_empty() && fence::gives_way(&view, &self.histories) {
                tracing::warn!(
                    "this node cannot cut the dead node off; another coordinator may try"
                );
                return self.let_go().await;
            }
        }
        let Plan { steps, concerns } = fence::plan(&view, &self.histories);
        if concerns.is_empty() && self.under_way.is_empty() {
            return self.let_go().await;
        }
        if is_held {
            steps.into_iter().for_each(|(node, step)| self.begin(node, step));
        } else if self.waiting_for_lock.is_empty() {
            let store = shared.store.clone();
            self.waiting_for_lock.spawn(async move { store.fence_lock(LOCK_TIME_LIMIT).await });
        }
    }

    fn begin(&mut self, node: NodeName, step: Step) {
        let Some(lock) = self.lock.clone() else { return };
        let work = self.actor.clone().act(node.clone(), step.clone(), lock);
        self.watch(node, step, work);
    }

    fn switch_on_without_store(&mut self, node: NodeName) {
        if self.histories.get(&node).is_none_or(|history| !history.busy) {
            let work = self.actor.clone().switch_on_without_store(node.clone());
            self.watch(node, Step::PowerOn, work);
        }
    }

    fn watch(
        &mut self,
        node: NodeName,
        step: Step,
        work: impl Future<Output = Ended> + Send + 'static,
    ) {
        self.histories.entry(node.clone()).or_default().busy = true;
        self.under_way.begin((node, step), work);
    }

    fn got_lock(&mut self, lock: Result<Result<LockGuard, StoreError>, JoinError>) {
        match lock {
            Ok(Ok(lock)) => self.lock = Some(Arc::new(lock)),
            // Another coordinator is at it.
            Ok(Err(StoreError::LockTimeout { .. })) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "the fence lock cannot be had; it is tried again")
            }
            Err(error) => tracing::error!(%error, "waiting for the fence lock ended by a bug"),
        }
    }

    fn take_in(&mut self, done: Done<(NodeName, Step), Ended>) {
        let (node, step) = done.key;
        let ended = done.ended.unwrap_or_else(|error| {
            // The actor catches the panics of its steps; this one is of what it did about one.
            tracing::error!(%node, ?step, %error, "a step of a fence failed by a bug of this \
                                                   program");
            act::late(&step)
        });
        let now = self.shared.now();
        let interval = self.shared.settings.fencing.keepalive_interval;
        if matches!(step, Step::CutPower { .. }) && !matches!(ended, Ended::Done) {
            self.cuts.cut(node.clone(), now);
        }
        match ended {
            Ended::SwitchedOn => self.cuts.was_switched_on(&node, now),
            Ended::NotSwitchedOn => self.cuts.could_not_switch_on(&node, now),
            _ => {}
        }
        let history = self.histories.entry(node).or_default();
        history.busy = false;
        match ended {
            Ended::Done => {}
            Ended::Power(is_on) => history.note_power(is_on, now, interval),
            Ended::CutOff => history.was_cut_off(),
            Ended::MayBeCutOff => history.may_be_cut_off(now),
            Ended::SwitchedOn => history.was_switched_on(now),
            Ended::NotCutOff => history.could_not_be_cut_off(now),
            Ended::NotRecovered => history.could_not_recover(now),
            Ended::NotSwitchedOn => history.could_not_switch_on(now),
        }
    }

    /// Gives the lock back, and the place in its queue.
    async fn let_go(&mut self) {
        self.waiting_for_lock.shutdown().await;
        self.histories.clear();
        if let Some(lock) = self.lock.take().and_then(Arc::into_inner) {
            lock.release().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use pvc_testkit::ports;

    use crate::settings::tests::settings;
    use crate::shared::tests::in_memory;

    async fn fencer() -> Fencer {
        Fencer::new(in_memory(settings("hv1"), ports()).await)
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_that_panics_is_over_and_counts_as_one_that_failed() {
        let (mut fencer, node) = (fencer().await, NodeName::new("hv2"));
        fencer.watch(NodeName::new("hv3"), Step::AskPower, std::future::pending());
        for step in [
            Step::AskPower,
            Step::CutPower { stamp: 7 },
            Step::NoAnswer { stamp: 7 },
            Step::Alone { stamp: 7 },
            Step::Recover { may_wait: true },
            Step::PowerOn,
        ] {
            let before = format!("{:?}", fencer.histories.get(&node).cloned().unwrap_or_default());
            fencer.watch(node.clone(), step.clone(), async { panic!("a bug") });
            assert!(fencer.histories[&node].busy);
            let done = fencer.under_way.ended().await.expect("it was begun");
            assert!(done.ended.is_err());
            fencer.take_in(done);
            assert!(!fencer.histories[&node].busy, "{step:?}");
            assert_ne!(
                format!("{:?}", fencer.histories[&node]),
                before,
                "{step:?} is remembered as failed"
            );
        }
        assert!(fencer.histories[&NodeName::new("hv3")].busy, "what goes on goes on");
    }
}
