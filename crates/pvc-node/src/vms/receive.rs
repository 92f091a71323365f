//! Receiving of a guest from another node: the effects behind [`pvc_model::vm::moving`], receiver's
//! side.

use std::sync::Arc;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::node::NodeRecord;
use pvc_model::vm::moving::{
    Arrival, Peer, arrival, is_handed_over, is_moving, is_received, is_taken_over,
};
use pvc_model::vm::plan::{Answered, Planned, runs_elsewhere};
use pvc_model::vm::{VmRecord, VmState};
use pvc_model::{NodeName, Uuid};
use pvc_ports::HypervisorError;
use pvc_role::Superseded;
use pvc_store::{ChangeError, Changes, Expect, MoveLocks, StoreError, VmChange};
use tokio_util::sync::CancellationToken;

use super::act::Ended;
use super::elsewhere::check_elsewhere;
use super::{OrderChanged, SAY, condition};
use crate::shared::Shared;

/// Time for which the turn may be somebody else's.
const TURN_TIME_LIMIT: Duration = Duration::from_secs(30);

/// Time that the sender may take to queue up.
const SENDER_TIME_LIMIT: Duration = Duration::from_secs(30);

/// Time for which a guest may be here without running when its sender has left.
const HELD_TIME_LIMIT: Duration = Duration::from_secs(10);

const LOOK: Duration = Duration::from_millis(500);

/// Reason for which nothing is known.
#[derive(Debug, thiserror::Error)]
enum Unknown {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Hypervisor(#[from] HypervisorError),
}

/// Receiver of one VM on its way here.
pub(super) struct Receiver {
    shared: Arc<Shared>,
    ending: CancellationToken,
    locks: MoveLocks,
    vm: Uuid,
    name: String,
    /// The write of the state that asks for it.
    request: i32,
    sender: Peer,
}

impl Receiver {
    pub fn new(shared: Arc<Shared>, ending: CancellationToken, planned: &Planned) -> Self {
        let locks = shared.store.move_locks(planned.vm);
        let (vm, name, request) = (planned.vm, planned.name.clone(), planned.request);
        Receiver { shared, ending, locks, vm, name, request, sender: Peer::Ours }
    }

    /// Waits for the guest and says that it has arrived; returns early when nobody sends it.
    pub async fn receive(mut self) -> Ended {
        match self.who_sends().await {
            Ok(sender) => self.sender = sender,
            Err(error) => return self.later(&error),
        }
        self.say_receiving(true).await;
        // What was handed over waits for nobody's turn: the guest stands still meanwhile.
        let ended = tokio::select! {
            biased;
            () = self.until_handed_over() => self.take_over().await,
            ended = self.take_turns() => ended,
        };
        self.say_receiving(false).await;
        ended
    }

    /// Finds what kind of peer sends. Where nobody runs the VM there is no sender that could be a
    /// legacy peer.
    async fn who_sends(&self) -> Result<Peer, StoreError> {
        match runs_elsewhere(&self.shared.store.view(), self.vm, self.shared.name()) {
            Some(sender) if !self.shared.store.has_our_daemon(&sender).await? => {
                Ok(Peer::Legacy { asked: self.request })
            }
            _ => Ok(Peer::Ours),
        }
    }

    /// Returns when its sender has said that the guest is this node's now.
    async fn until_handed_over(&self) {
        let is_so =
            |view: &Cluster| self.record(view).is_some_and(|record| self.is_handed_over(record));
        self.shared.until(is_so).await;
    }

    fn is_handed_over(&self, record: &VmRecord) -> bool {
        record.is_assigned_to(self.shared.name()) && is_handed_over(record, self.shared.name())
    }

    /// Says that the VM is this node's, and lets its guest go on. If that is left undone, the next
    /// pass finds it.
    async fn take_over(&self) -> Ended {
        let write = |cluster: &Cluster| match self.record(cluster) {
            Some(record) if self.is_handed_over(record) => Ok(self.change(VmState::Start, "")),
            _ => Err(Superseded),
        };
        let ended = self.write(write, "the VM was handed over to this node").await;
        if !matches!(ended, Ended::Done) {
            return ended;
        }
        // The store may have taken its time to say so, and something else may be asked by now.
        let view = self.shared.store.view();
        if !self.record(&view).is_some_and(|record| is_taken_over(record, self.shared.name())) {
            return Ended::Superseded;
        }
        match self.shared.ports.hypervisor.resume(self.vm).await {
            Ok(()) | Err(HypervisorError::NoGuest { .. }) => Ended::Done,
            Err(error) => self.later(&error),
        }
    }

    async fn take_turns(&self) -> Ended {
        let first = match self.while_received(self.locks.turn(Some(TURN_TIME_LIMIT))).await {
            Err(OrderChanged) => return Ended::Superseded,
            Ok(Err(StoreError::LockTimeout { .. })) => return Ended::Done,
            Ok(Err(error)) => return self.later(&error),
            Ok(Ok(first)) => first,
        };
        let queued = self.shared.within(SENDER_TIME_LIMIT, self.locks.until_others(Some(&first)));
        let queued = self.while_received(queued).await;
        first.release().await;
        match queued {
            Err(OrderChanged) => return Ended::Superseded,
            Ok(None) => return self.nobody_sends().await,
            Ok(Some(Err(error))) => return self.later(&error),
            Ok(Some(Ok(()))) => {}
        }
        // Only behind the sender: before it, we would end its turn before it has begun.
        let turn = match self.while_received(self.locks.turn(None)).await {
            Err(OrderChanged) => return Ended::Superseded,
            Ok(Err(error)) => return self.later(&error),
            Ok(Ok(turn)) => turn,
        };
        let ended = self.look_at_arrival().await;
        turn.release().await;
        ended
    }

    async fn look_at_arrival(&self) -> Ended {
        let until = self.shared.now() + HELD_TIME_LIMIT;
        loop {
            let seen = match self.look().await {
                Ok(seen) => seen,
                Err(error) => return self.later(&error),
            };
            match seen {
                Arrival::Start => return self.start().await,
                Arrival::TakeOver => return self.take_over().await,
                Arrival::Discard => return self.start_afresh().await,
                Arrival::Superseded => return Ended::Superseded,
                Arrival::Again => return Ended::Done,
                Arrival::NotYet if self.shared.now() < until => self.shared.sleep(LOOK).await,
                // Somebody has it still, and will say what is to become of it.
                Arrival::NotYet if self.is_listed_elsewhere(&self.shared.store.view()) => {
                    return Ended::Later;
                }
                Arrival::NotYet => return self.fail().await,
            }
        }
    }

    async fn look(&self) -> Result<Arrival, Unknown> {
        let view = self.shared.store.fresh().await?;
        let guests = self.shared.ports.hypervisor.guests().await?;
        let guest = guests.get(&self.vm).map(|guest| condition(guest.run));
        let record = view.vms.get(&self.vm).map(|record| &**record);
        let is_elsewhere = runs_elsewhere(&view, self.vm, self.shared.name()).is_some();
        Ok(arrival(record, self.shared.name(), guest, self.sender, is_elsewhere))
    }

    /// Ends what came and was never handed over, and has the VM started here: nobody has its guest
    /// any more.
    async fn start_afresh(&self) -> Ended {
        tracing::warn!(
            vm = self.name,
            "the guest has ended on its way here, and is started afresh"
        );
        match self.shared.ports.hypervisor.destroy(self.vm).await {
            Ok(()) => self.start().await,
            Err(error) => self.later(&error),
        }
    }

    /// Nobody has queued to send it. If no node has it any more, whatever a legacy peer lists, it
    /// is started here: it was on its way here. A legacy sender may have been busy when the order
    /// reached it, and is asked again.
    async fn nobody_sends(&self) -> Ended {
        let view = match self.shared.store.fresh().await {
            Ok(view) => view,
            Err(error) => return self.later(&error),
        };
        let is_listed = self.is_listed_elsewhere(&view);
        let mut answered = Answered::default();
        let is_elsewhere = is_listed
            && check_elsewhere(&self.shared, &view, self.vm, &mut answered).await.is_err();
        if !is_listed && let Ok(Arrival::Discard) = self.look().await {
            return self.start_afresh().await;
        }
        if is_elsewhere && self.sender == Peer::Ours {
            return Ended::Superseded;
        }
        let write = |cluster: &Cluster| {
            let record =
                self.record(cluster).filter(|record| is_moving(&record.state)).ok_or(Superseded)?;
            if self.is_listed_elsewhere(cluster) != is_listed
                || !record.is_assigned_to(self.shared.name())
            {
                return Err(Superseded);
            }
            let state = if is_elsewhere { record.state.clone() } else { VmState::Start };
            Ok(self.change(state, ""))
        };
        let said = match is_elsewhere {
            true => "the legacy peer that has the VM does not send it; it is asked once more",
            false => "no node has the VM any more; it is started here",
        };
        self.write(write, said).await
    }

    async fn start(&self) -> Ended {
        let write = |cluster: &Cluster| {
            let asked = is_received(self.record(cluster), self.shared.name(), self.sender);
            if asked { Ok(self.change(VmState::Start, "")) } else { Err(Superseded) }
        };
        self.write(write, "the VM has been received").await
    }

    async fn fail(&self) -> Ended {
        let write = |cluster: &Cluster| {
            let asked = is_received(self.record(cluster), self.shared.name(), self.sender);
            if asked {
                Ok(self.change(VmState::Fail, "Failed to receive migration"))
            } else {
                Err(Superseded)
            }
        };
        self.write(write, "the VM has arrived and does not run").await
    }

    // --- What the steps are made of --------------------------------------------------------------

    fn record<'a>(&self, cluster: &'a Cluster) -> Option<&'a VmRecord> {
        cluster.vms.get(&self.vm).map(|record| &**record)
    }

    /// Whether any other node says that it runs the VM, or is at starting or ending it, also one
    /// that is only suspected to be dead.
    fn is_listed_elsewhere(&self, cluster: &Cluster) -> bool {
        let here: &NodeName = self.shared.name();
        let has = |node: &NodeRecord| {
            node.running.contains(&self.vm) || node.working_on.contains(&self.vm)
        };
        cluster.nodes.values().any(|node| node.name != *here && has(node))
    }

    fn change(&self, state: VmState, reason: &str) -> (Changes, ()) {
        let mut changes = Changes::new();
        changes.expect(Expect::VmState(self.vm)).expect(Expect::VmNode(self.vm));
        changes
            .vm(self.vm, VmChange::State(state))
            .vm(self.vm, VmChange::FailedReason(reason.to_owned()));
        (changes, ())
    }

    async fn write(
        &self,
        decide: impl FnMut(&Cluster) -> Result<(Changes, ()), Superseded> + Send,
        said: &str,
    ) -> Ended {
        match self.shared.store.change(decide).await {
            Ok(()) => {
                tracing::info!(vm = self.name, "{said}");
                Ended::Done
            }
            Err(ChangeError::Refused(Superseded)) => Ended::Superseded,
            Err(error) => self.later(&error),
        }
    }

    /// The outcome of `work`, unless the order changes before.
    async fn while_received<T>(&self, work: impl Future<Output = T>) -> Result<T, OrderChanged> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = self.order_changed() => Err(OrderChanged),
        }
    }

    /// Returns when the record asks for something else or can be seen no more, or this daemon ends.
    async fn order_changed(&self) {
        let is_other =
            |view: &Cluster| !is_received(self.record(view), self.shared.name(), self.sender);
        self.shared.becomes(is_other, &self.ending).await;
    }

    async fn say_receiving(&self, receiving: bool) {
        let said = self.shared.within(SAY, self.locks.say_receiving(receiving)).await;
        if !matches!(said, Some(Ok(()))) {
            tracing::debug!(vm = self.name, receiving, "who receives the VM is not in the store");
        }
    }

    fn later(&self, error: &(dyn std::error::Error + 'static)) -> Ended {
        tracing::warn!(
            vm = self.name,
            error,
            "the VM could not be received now; it is tried again"
        );
        Ended::Later
    }
}
