//! Hand-over of the primary role, carried out: what [`pvc_model::primary::handover`] says, with
//! real locks and addresses.
//!
//! Two nodes exchange addresses over a store that either of them may lose, and no address may be on
//! both (I12). The machine of the model gives one action after the other and is told whether it
//! succeeded: wait for the writer, or for a reader behind the own lock; lock; take or leave a duty;
//! unlock. A wait ends early when the facts change (the other one has ended, fallen silent, or
//! begun anew), so the machine decides on facts that hold now.
//!
//! Why a cut is safe, by the place where it falls. A lock that comes free says only that its
//! session ended, not that its holder has let go: before it takes addresses a candidate asks
//! whether the holder is clear of them (`has_let_go`), and if that cannot be found out, it takes
//! nothing. A holder that dies, stands still or loses the store is no danger for longer than the
//! lease that its kernel has on each address. A candidate that loses its claim in the middle takes
//! nothing more and breaks off; what it has taken is let go of as by anybody who is not named by
//! the key. What neither of them has is vacant, and vacancies are for [`super`] to fill.

use std::time::Duration;

use pvc_model::NodeName;
use pvc_model::primary::handover::{self, Action, Duty, Ending, Facts, HandOver, Part};
use pvc_model::primary::let_go_after;
use pvc_role::Superseded;
use pvc_store::lock::{LockGuard, LockKind};
use pvc_store::{ChangeError, Changes, ConfigChange, RoleLocks, StoreError};

use super::{peers, role};
use crate::shared::Shared;

/// Time that giving back a lock may take before it goes on in the background.
const RELEASE: Duration = Duration::from_secs(2);

/// Time for which a new primary waits for the database before it says that it is there.
const DATABASE: Duration = Duration::from_secs(10);

/// Time between two attempts to make an address go.
pub(super) const LEAVE_AGAIN: Duration = Duration::from_secs(2);

const API: &str = "pvcapid.service";

/// Whether the neighbours would see it in two places.
fn is_of_addresses(duty: Duty) -> bool {
    matches!(duty, Duty::Upstream | Duty::Inner | Duty::Gateways)
}

/// The part of one node in a hand-over.
pub(crate) struct Exchange<'a> {
    shared: &'a Shared,
    locks: RoleLocks,
    part: Part,
    /// The holder, for a candidate. A holder finds its candidate in the records.
    peer: Option<NodeName>,
    peer_repairs: bool,
    /// Lock under which a candidate does all this.
    claim: Option<&'a LockGuard>,
    lock: Option<LockGuard>,
    /// Number of times that the right to the role had lapsed before this began.
    lapses: u64,
}

impl<'a> Exchange<'a> {
    /// Takes the role from `peer`, or from nobody, under the lock `claim`.
    pub fn candidate(
        shared: &'a Shared,
        peer: Option<NodeName>,
        peer_repairs: bool,
        claim: &'a LockGuard,
    ) -> Self {
        let locks = shared.store.role_locks();
        Exchange {
            shared,
            locks,
            part: Part::Candidate,
            peer,
            peer_repairs,
            claim: Some(claim),
            lock: None,
            lapses: shared.role.lapses(),
        }
    }

    /// Gives the role to whom the key names, unless the right to it has lapsed since it had so many
    /// times.
    pub fn holder(shared: &'a Shared, lapses: u64) -> Self {
        let locks = shared.store.role_locks();
        Exchange {
            shared,
            locks,
            part: Part::Holder,
            peer: None,
            peer_repairs: false,
            claim: None,
            lock: None,
            lapses,
        }
    }

    /// `None` if it had to be broken off: the right to take anything, or to have it, was lost on
    /// the way.
    pub async fn run(mut self) -> Option<Ending> {
        let mut machine = HandOver::new(self.part, self.shared.settings.session_timeout);
        let mut done = true;
        loop {
            if self.claim.is_some_and(LockGuard::lost) {
                tracing::warn!("the takeover is broken off: its lock went with the session");
                self.unlock().await;
                return None;
            }
            if self.part == Part::Holder && self.has_lapsed() {
                // The role has gone to another without it, and may be going to a third.
                tracing::warn!("the store was silent for too long; the hand-over is broken off");
                self.unlock().await;
                return None;
            }
            let facts = self.facts();
            let action = machine.next(&facts, done, self.shared.now());
            tracing::debug!(part = ?self.part, phase = ?machine.phase(), ?action, "hand-over");
            done = match action {
                Action::End(ending) => return Some(ending),
                Action::Take(duty) => {
                    if !self.take(duty).await {
                        self.unlock().await;
                        return None;
                    }
                    true
                }
                other => self.act(other, &facts).await,
            };
        }
    }

    async fn act(&mut self, action: Action, facts: &Facts) -> bool {
        match action {
            Action::AwaitWriter { until } => {
                self.wait(until, facts, self.locks.until_writer()).await
            }
            Action::AwaitReader { until } => match &self.lock {
                Some(lock) => self.wait(until, facts, self.locks.until_reader_behind(lock)).await,
                None => false,
            },
            Action::Lock { kind, limit } => self.acquire(kind, limit).await,
            Action::Unlock => {
                self.unlock().await;
                true
            }
            Action::Pause(duration) => {
                self.shared.sleep(duration).await;
                true
            }
            Action::Leave(duty) => self.leave(duty).await,
            Action::Insist => self.insist().await,
            Action::Take(_) | Action::End(_) => true,
        }
    }

    fn facts(&self) -> Facts {
        let view = self.shared.store.view();
        let (me, peer) = (self.shared.name(), self.peer.as_ref());
        let peers = peers::seen(self.shared, &view);
        handover::facts(&view, me, self.part, peer, self.peer_repairs, &peers)
    }

    /// Whether `event` came before `until`, and before the facts changed.
    async fn wait(
        &self,
        until: Duration,
        facts: &Facts,
        event: impl Future<Output = Result<(), StoreError>>,
    ) -> bool {
        tokio::select! {
            biased;
            came = event => match came {
                Ok(()) => true,
                Err(error) => {
                    tracing::debug!(%error, "the queue of the hand-over cannot be seen");
                    self.shared.sleep(super::POLL).await;
                    false
                }
            },
            () = self.other_facts(facts) => false,
            () = self.shared.sleep(until.saturating_sub(self.shared.now())) => false,
        }
    }

    async fn other_facts(&self, known: &Facts) {
        let mut changes = self.shared.store.changed();
        while self.facts() == *known {
            // Who falls silent changes no record.
            tokio::select! {
                biased;
                changed = changes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                () = self.shared.sleep(peers::EVERY) => {}
            }
        }
    }

    async fn acquire(&mut self, kind: handover::Lock, limit: Duration) -> bool {
        let kind = match kind {
            handover::Lock::Write => LockKind::Write,
            handover::Lock::Read => LockKind::Read,
        };
        match self.locks.phase(kind, limit).await {
            Ok(lock) => {
                self.lock = Some(lock);
                true
            }
            Err(error) => {
                tracing::warn!(%error, "a step of the hand-over goes on without its lock");
                false
            }
        }
    }

    async fn unlock(&mut self) {
        let Some(lock) = self.lock.take() else { return };
        // A task of its own, so that a lock that takes long to be given back is given back all the
        // same.
        let released = tokio::spawn(lock.release());
        if self.shared.within(RELEASE, released).await.is_none() {
            tracing::debug!("a lock of the hand-over is given back later");
        }
    }

    /// Gives up a duty. An address that the kernel refuses to give up it takes away by itself when
    /// its lease is over, and the other node is kept waiting until it is gone.
    async fn leave(&self, duty: Duty) -> bool {
        while !role::leave(self.shared, duty).await {
            if self.has_lapsed() {
                return false;
            }
            self.shared.sleep(LEAVE_AGAIN).await;
        }
        true
    }

    /// A lock of the holder's also comes free with its session: what it was about to let go of is
    /// there until its kernel takes it away. `false` if this node is to take nothing any more, or
    /// could not find out.
    async fn has_let_go(&self) -> bool {
        let Some(peer) = self.peer.as_ref().filter(|_| !self.peer_repairs) else { return true };
        let until = self.shared.now() + 2 * let_go_after(self.shared.settings.session_timeout);
        while self.may_take() && self.shared.now() < until {
            if peers::is_clear(self.shared, peer).await {
                return self.may_take();
            }
            self.shared.sleep(super::POLL).await;
        }
        false
    }

    fn has_lapsed(&self) -> bool {
        self.shared.role.lapses() != self.lapses || role::is_cut_off(self.shared)
    }

    fn may_take(&self) -> bool {
        let is_claimed = self.claim.is_none_or(|claim| !claim.lost());
        is_claimed && !role::is_cut_off(self.shared) && !self.shared.role.is_closed()
    }

    async fn take(&self, duty: Duty) -> bool {
        if is_of_addresses(duty) && !self.has_let_go().await {
            return false;
        }
        let taken = role::take(self.shared, duty).await;
        if duty != Duty::Services {
            // An address that the kernel refuses is tried again later; a right that was lost is
            // lost.
            return taken || self.may_take();
        }
        if self.shared.settings.subsystems.api && self.shared.settings.start_services {
            self.start_api().await;
        }
        self.await_database().await;
        taken
    }

    /// The API runs on every coordinator; this is for one that somebody stopped.
    async fn start_api(&self) {
        if let Err(error) = self.shared.ports.services.start(API).await {
            let hint = error.hint().unwrap_or_default();
            tracing::warn!(%error, hint, "the API of the new primary could not be started");
        }
    }

    async fn await_database(&self) {
        let term = *self.shared.role.term.borrow();
        let mut settled = self.shared.role.database_settled.subscribe();
        if self
            .shared
            .within(DATABASE, settled.wait_for(|settled| *settled == term))
            .await
            .is_none()
        {
            tracing::warn!("the database's leader is not here yet; the takeover goes on");
        }
    }

    /// Writes the own name once more, if the holder's stands there.
    async fn insist(&self) -> bool {
        let (me, peer) = (self.shared.name(), self.peer.as_ref());
        let decide = |cluster: &pvc_model::cluster::Cluster| {
            let mut changes = Changes::new();
            if cluster.config.primary.as_ref() != peer {
                return Err(Superseded);
            }
            changes.config(ConfigChange::Primary(Some(me.clone())));
            Ok((changes, ()))
        };
        tracing::info!("the old primary has put its own name back; it is asked again to leave");
        let written: Option<Result<(), ChangeError<Superseded>>> =
            self.shared.within(super::DEADLINE, self.shared.store.change(decide)).await;
        matches!(written, Some(Ok(())))
    }
}
