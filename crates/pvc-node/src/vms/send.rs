//! Handing a guest over to another node: the effects behind [`pvc_model::vm::moving`], sender's
//! side.
//!
//! The guest must run on one node at most (I1), and go on somewhere, although either daemon,
//! hypervisor or host may fail at any moment, and libvirt may not know how its last call ended. The
//! order of the steps:
//!
//! 1. The lock on the record, so that nobody writes another order unseen; then the turn, once the
//!    receiver has had it: it is ready.
//! 2. `transport`, from a fresh view each time round: copy live, a few times at most; or power off,
//!    where that is allowed; or give up, and the record says again that the VM stays here. The copy
//!    is told to be held on its target before it begins, if the receiver is one of ours.
//! 3. After a copy that has come through: `handed-over` is written, on the condition that the VM is
//!    still to be moved. After one that has failed: both hypervisors are asked what there is.
//! 4. The locks are released when the receiver has said that it has the VM.
//!
//! Why a cut is safe, by the place where it falls. Before the copy nothing has left. During it the
//! order in the record counts: a change of it ends the copying, and the next pass, of this daemon
//! or of its successor, finds in the guest's own state whether it runs here or is held. Between the
//! copy and `handed-over` what is held on the target runs only if this node says so, and what is
//! held here goes on only if the target was asked, or can only hold. After `handed-over` the guest
//! is the receiver's alone. Nothing is ever ended because a lock was lost, and towards a legacy
//! peer, whose copy runs at once, a hypervisor that does not answer means that nothing is done.

use std::sync::Arc;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::node::DaemonState;
use pvc_model::vm::moving::{
    LIVE_ATTEMPTS, MoveNote, MovePhase, Next, Target, ended_here, home_again, is_moving, is_sent,
    left_on, next, ways_of,
};
use pvc_model::vm::plan::{Planned, is_moved_by_another, runs_elsewhere};
use pvc_model::vm::{VmRecord, VmState};
use pvc_model::{NodeName, Uuid};
use pvc_ports::{GuestRun, HypervisorError, Migration, MigrationJob};
use pvc_role::Superseded;
use pvc_store::{
    Change, ChangeError, Changes, Expect, MoveLocks, RecordLock, Report, StoreError, VmChange,
};
use tokio_util::sync::CancellationToken;

use super::act::{Ended, one_line};
use super::locks::free_own_locks;
use super::{OrderChanged, SAY};
use crate::shared::Shared;

/// Time for which each lock on the record may be somebody else's: a legacy API holds it for half a
/// second.
const RECORD_TIME_LIMIT: Duration = Duration::from_secs(30);

/// Time for which a guest that is to be moved may be held.
const HELD_TIME_LIMIT: Duration = Duration::from_secs(10);

/// Time that the other node may take to get ready, and then to let us have the turn.
const READY_TIME_LIMIT: Duration = Duration::from_secs(30);
const TURN_TIME_LIMIT: Duration = Duration::from_secs(30);

/// Time between two live attempts.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(500);

/// Time that the hypervisor may take to begin.
const BEGIN: Duration = Duration::from_secs(30);

/// Time that the end of a migration may take after it was asked for.
const ABORT_TIME_LIMIT: Duration = Duration::from_secs(30);

/// Time between two requests for that end.
const ABORT_AGAIN: Duration = Duration::from_secs(2);

/// Time for which a migration may stand still: the other hypervisor may be frozen, or the other
/// host without power.
const STALLED: Duration = Duration::from_secs(60);

/// The same time while the guest is held here for the last of it, and the other side answers:
/// nobody is served meanwhile.
const HELD_STALLED: Duration = STALLED.saturating_mul(5);

/// Time between two reports of the progress.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Time between two looks at a guest that shuts down, and between two presses of its power button.
const LOOK: Duration = Duration::from_millis(500);
const REQUEST_EVERY: Duration = Duration::from_secs(15);

/// Time for which the store may take no word of a move, and the other node's daemon be away, until
/// the copying is given up: a guest that arrives would wait for them. A daemon that is restarted is
/// back by then.
const UNREPORTED: Duration = Duration::from_secs(8);
const AWAY: Duration = Duration::from_secs(15);

/// Time that the storage may take to free what a guest left behind that ended on its way.
const FREE: Duration = Duration::from_secs(30);

/// Time for which the record stays locked after the guest has left, until its new node says so.
const NOTICE: Duration = Duration::from_secs(5);

/// Time for which nobody may take notice of a guest that has arrived until its sender says so.
const QUIET: Duration = Duration::from_secs(10);

/// Time for which a sender looks after what it has sent.
const WATCH_SENT: Duration = Duration::from_secs(600);

/// Sender of one VM on its way from here.
pub(super) struct Sender {
    shared: Arc<Shared>,
    ending: CancellationToken,
    locks: MoveLocks,
    vm: Uuid,
    name: String,
    to: NodeName,
    /// Node that the VM returns to if it stays; `None`: not known.
    home: Option<Option<NodeName>>,
    note: MoveNote,
    /// Time since which the store takes no report of the move, and time at which the other node's
    /// daemon was last seen to run.
    unreported: Option<Duration>,
    seen_there: Duration,
}

/// End of an attempt to copy the guest.
enum Copied {
    Arrived,
    Failed(Failure),
    OrderChanged,
    /// The locks, or the hypervisor, were lost on the way: nothing is known.
    Lost,
}

struct Failure {
    why: String,
    /// The other hypervisor may have taken it up.
    begun: bool,
    /// Another attempt would do no better.
    is_final: bool,
}

impl Copied {
    fn failed(why: String) -> Self {
        Copied::Failed(Failure { why, begun: true, is_final: false })
    }

    fn endless(note: &MoveNote) -> Self {
        let rounds = note.processed_bytes.checked_div(note.total_bytes).unwrap_or_default();
        let why = format!(
            "the guest writes as fast as it is copied: its memory was copied {rounds} times in {} \
             s",
            note.seconds
        );
        Copied::Failed(Failure { why, begun: true, is_final: true })
    }
}

impl Sender {
    pub fn new(
        shared: Arc<Shared>,
        ending: CancellationToken,
        planned: &Planned,
        to: NodeName,
        home: Option<Option<NodeName>>,
    ) -> Self {
        // What an attempt before has left on the other node is what it was sent as.
        let view = shared.store.view();
        let record = view.vms.get(&planned.vm);
        let before = record.and_then(|record| left_by(record, shared.name(), &to));
        // Until the order is obeyed the note is not about it.
        let earlier = record.map_or(planned.request, |record| record.state_version).wrapping_sub(1);
        let note = MoveNote {
            from: shared.name().clone(),
            to: to.clone(),
            incarnation: record.map_or(planned.incarnation, |record| record.incarnation),
            request: before.as_ref().map_or(earlier, |note| note.request),
            held: before.is_some(),
            phase: MovePhase::Waiting,
            attempt: 0,
            seconds: 0,
            total_bytes: 0,
            processed_bytes: 0,
            remaining_bytes: 0,
            why: String::new(),
            left_on: record.map(|record| left_on(record, shared.name())).unwrap_or_default(),
        };
        let locks = shared.store.move_locks(planned.vm);
        let (vm, name, now) = (planned.vm, planned.name.clone(), shared.now());
        Sender {
            shared,
            ending,
            locks,
            vm,
            name,
            to,
            home,
            note,
            unreported: None,
            seen_there: now,
        }
    }

    /// Moves the guest, or leaves it as it is and says so.
    pub async fn send(mut self) -> Ended {
        if self.sent(&self.shared.store.view()).is_err() {
            return Ended::Superseded;
        }
        self.tell(MovePhase::Waiting).await;
        let locked = self.while_sent(self.locks.record(RECORD_TIME_LIMIT)).await;
        let record_lock = match locked {
            Err(OrderChanged) => return Ended::Superseded,
            Ok(Err(error)) => return self.later(&error),
            Ok(Ok(lock)) => lock,
        };
        let ended = self.send_locked(&record_lock).await;
        if let Ended::Left { written, .. } = &ended {
            self.until_noticed(*written).await;
        }
        record_lock.release().await;
        ended
    }

    /// Waits until the other node has taken notice of the guest. Whoever waits for the record's
    /// lock, as a legacy API does with what an operator asked for meanwhile, would write at the
    /// moment at which the other node says that the guest is there: the one or the other would be
    /// lost.
    async fn until_noticed(&self, written: Option<i32>) {
        let noticed = self.shared.until(|view| !is_unnoticed(view, self.vm, &self.to, written));
        if self.shared.within(NOTICE, noticed).await.is_none() {
            tracing::debug!(vm = self.name, to = %self.to, "the other node has not said yet that \
                                                            it has the VM");
        }
    }

    async fn send_locked(&mut self, record_lock: &RecordLock) -> Ended {
        if let Err(ended) = self.until_runs().await {
            return ended;
        }
        // A legacy receiver that finds the turn taken before it had it stops listening.
        let ready = self.shared.within(READY_TIME_LIMIT, self.locks.until_others(None));
        match self.while_sent(ready).await {
            Err(OrderChanged) => return Ended::Superseded,
            Ok(Some(Ok(()))) => {}
            Ok(Some(Err(error))) => return self.later(&error),
            Ok(None) => return self.not_ready(READY_TIME_LIMIT).await,
        }
        let turn = match self.while_sent(self.locks.turn(Some(TURN_TIME_LIMIT))).await {
            Err(OrderChanged) => return Ended::Superseded,
            Ok(Ok(turn)) => turn,
            Ok(Err(StoreError::LockTimeout { .. })) => {
                return self.not_ready(TURN_TIME_LIMIT).await;
            }
            Ok(Err(error)) => return self.later(&error),
        };
        let ended = self.transport(record_lock).await;
        turn.release().await;
        ended
    }

    /// A guest that is held cannot be moved: whoever held it, or its disk, has to let it go first.
    async fn until_runs(&mut self) -> Result<(), Ended> {
        let until = self.shared.now() + HELD_TIME_LIMIT;
        loop {
            let guests = match self.shared.ports.hypervisor.guests().await {
                Ok(guests) => guests,
                Err(error) => return Err(self.later(&error)),
            };
            let held = match guests.get(&self.vm).map(|guest| guest.run) {
                None => return Err(self.ended().await),
                Some(GuestRun::Running) => return Ok(()),
                Some(GuestRun::Paused) => "it is paused: by hand, or because its disk failed",
                Some(GuestRun::Leaving) => {
                    self.give_back().await?;
                    continue;
                }
                Some(
                    GuestRun::Created
                    | GuestRun::Arriving
                    | GuestRun::ShuttingDown
                    | GuestRun::Other,
                ) => "it does not run",
            };
            if self.shared.now() >= until {
                return Err(self.give_up(held).await);
            }
            if self.while_sent(self.shared.sleep(LOOK)).await.is_err() {
                return Err(Ended::Superseded);
            }
        }
    }

    /// A migration broke off in its last moment and left the guest held: it goes on here when the
    /// other node was asked and does not run it, or when it is told that the VM stays.
    async fn give_back(&mut self) -> Result<(), Ended> {
        match self.state_there().await {
            Ok(Some(GuestRun::Running)) => Err(self.end_here().await),
            Ok(_) => self
                .shared
                .ports
                .hypervisor
                .resume(self.vm)
                .await
                .map_err(|error| self.later(&error)),
            Err(error) if self.is_held_there() => Err(self.give_up(&self.unanswered(&error)).await),
            Err(error) => Err(self.later(&error)),
        }
    }

    /// Whether what has come of the guest on the other node waits for our word, or was never to
    /// run: so it runs nowhere but here whatever has become of an attempt.
    fn is_held_there(&self) -> bool {
        let view = self.shared.store.view();
        self.note.held || view.nodes.get(&self.to).is_some_and(|node| node.is_fenced())
    }

    async fn not_ready(&mut self, time_limit: Duration) -> Ended {
        let why = format!(
            "node `{}` did not get ready to receive it within {} s",
            self.to,
            time_limit.as_secs()
        );
        self.give_up(&why).await
    }

    async fn transport(&mut self, record_lock: &RecordLock) -> Ended {
        let mut tried = 0;
        let mut answers = true;
        loop {
            let view = match self.shared.store.fresh().await {
                Ok(view) => view,
                Err(error) => return self.later(&error),
            };
            let record = view.vms.get(&self.vm).filter(|record| self.is_sent(Some(record)));
            let Some(record) = record else { return Ended::Superseded };
            // What was decided on an older view.
            if is_moved_by_another(&view, record, self.shared.name()) {
                return Ended::Superseded;
            }
            self.note_order(&view, record);
            let ways = ways_of(record, &record.state);
            let target = self.target(&view, answers);
            if self.note.held && tried > 0 && ways.live && !runs_daemon(&view, &self.to) {
                let why = format!(
                    "the daemon of node `{}` does not run, and would not let it go on there",
                    self.to
                );
                return self.give_up(&why).await;
            }
            match next(ways, tried, target) {
                Next::Copy { attempt } => {
                    tried = attempt;
                    self.note.attempt = attempt;
                    let failure = match self.copy(record, record_lock).await {
                        Copied::Arrived => return self.arrived().await,
                        Copied::OrderChanged => return Ended::Superseded,
                        Copied::Lost => return Ended::Later,
                        Copied::Failed(failure) => failure,
                    };
                    if failure.is_final {
                        tried = LIVE_ATTEMPTS;
                    }
                    answers = match self.after_failure(failure, attempt).await {
                        Ok(answers) => answers,
                        Err(ended) => return ended,
                    };
                }
                Next::PowerOff => return self.power_off().await,
                Next::GiveUp => {
                    let why = match target {
                        _ if tried > 0 => self.note.why.clone(),
                        Target::Well => {
                            "it may only be moved by a shutdown, and live was asked for".to_owned()
                        }
                        Target::Silent => format!("the daemon of node `{}` does not run", self.to),
                    };
                    return self.give_up(&why).await;
                }
            }
        }
    }

    /// Notes the order that the next copy obeys, and whether its target holds what arrives.
    fn note_order(&mut self, view: &Cluster, record: &VmRecord) {
        (self.note.incarnation, self.note.request) = (record.incarnation, record.state_version);
        let held = view.nodes.get(&self.to).is_some_and(|node| node.takes_held_guests());
        match (self.note.held, held) {
            // What is held there from now on is this move's.
            (_, true) => _ = self.note.left_on.remove(&self.to),
            // What an attempt before has left, for it is PVC 1.0.3's by now.
            (true, false) => _ = self.note.left_on.insert(self.to.clone()),
            (false, false) => {}
        }
        self.note.held = held;
    }

    /// Looks what a failed attempt has left, here and there. Whether the other hypervisor answers,
    /// if the guest is still to be moved.
    async fn after_failure(&mut self, failure: Failure, attempt: u32) -> Result<bool, Ended> {
        let why = failure.why;
        tracing::warn!(vm = self.name, to = %self.to, attempt, why, "a live migration failed");
        let there = self.state_there().await;
        self.note.why = match &there {
            // The word of its arrival was lost: it was let go on here, too.
            Ok(Some(GuestRun::Running)) => return Err(self.end_here().await),
            Ok(_) => why,
            Err(error) => format!("{why}; {}", self.unanswered(error)),
        };
        let why = self.note.why.clone();
        match self.here().await {
            Err(error) => Err(self.later(&error)),
            Ok(None) => Err(self.ended().await),
            // It may run there, and does not run here as long as that is not known.
            Ok(Some(GuestRun::Leaving)) if there.is_err() && !self.note.held => Err(Ended::Later),
            // The same, and it runs here already: that node ends its copy as soon as the VM is not
            // its own.
            Ok(Some(_)) if there.is_err() && failure.begun => Err(self.give_up(&why).await),
            // The word of its arrival was lost, and it goes on here: what is held there is worth
            // nothing any more.
            Ok(Some(_)) if matches!(there, Ok(Some(GuestRun::Paused))) => {
                Err(self.give_up(&why).await)
            }
            Ok(Some(run)) => {
                if run == GuestRun::Leaving {
                    self.give_back().await?;
                }
                match self.while_sent(self.shared.sleep(BETWEEN_ATTEMPTS)).await {
                    Ok(()) => Ok(there.is_ok()),
                    Err(OrderChanged) => Err(Ended::Superseded),
                }
            }
        }
    }

    fn unanswered(&self, error: &HypervisorError) -> String {
        format!("the hypervisor of node `{}` does not answer: {}", self.to, said(error))
    }

    fn target(&self, view: &Cluster, answers: bool) -> Target {
        if runs_daemon(view, &self.to) && answers { Target::Well } else { Target::Silent }
    }

    /// Makes one live attempt.
    async fn copy(&mut self, record: &VmRecord, record_lock: &RecordLock) -> Copied {
        let settings = &self.shared.settings.migration;
        let migration = Migration {
            host: settings.host(&self.to),
            max_downtime: Duration::from_millis(u64::from(record.max_downtime_ms)),
            held: self.note.held,
            encrypted: settings.encrypted,
        };
        self.tell(MovePhase::Copying).await;
        // Nobody would know of a guest that is held there, if this node dies.
        if self.note.held
            && self.unreported.is_some()
            && let Err(stop) = self.until_written(record_lock).await
        {
            return stop;
        }
        self.seen_there = self.shared.now();
        let shared = self.shared.clone();
        let begun =
            shared.within(BEGIN, shared.ports.hypervisor.migrate(self.vm, &migration)).await;
        match begun {
            None => {
                Copied::failed(format!("the hypervisor did not begin within {} s", BEGIN.as_secs()))
            }
            Some(Err(error)) => {
                Copied::Failed(Failure { why: said(&error), begun: false, is_final: false })
            }
            Some(Ok(job)) => self.watch(job, record_lock).await,
        }
    }

    /// Waits until the store has the note. If it does not take it the copy is tried again later,
    /// and this was no attempt: a guest is not shut down because the store is slow.
    async fn until_written(&mut self, record_lock: &RecordLock) -> Result<(), Copied> {
        let shared = self.shared.clone();
        let report = shared.store.report(vec![Report::Move(self.vm, self.note.clone())]);
        let written = self.while_sent(shared.within(RECORD_TIME_LIMIT, report));
        let written = tokio::select! {
            biased;
            written = written => written,
            () = record_lock.until_lost() => return Err(Copied::Lost),
        };
        match written {
            Err(OrderChanged) => Err(Copied::OrderChanged),
            Ok(Some(Ok(()))) => {
                self.unreported = None;
                Ok(())
            }
            Ok(_) => {
                let text = "the store takes no word of the move; it is tried again later";
                tracing::warn!(vm = self.name, to = %self.to, "{text}");
                Err(Copied::Lost)
            }
        }
    }

    /// Sees a job through; ends it when the order changes.
    async fn watch(&mut self, mut job: Box<dyn MigrationJob>, record_lock: &RecordLock) -> Copied {
        let mut copied = None;
        let mut was_held = false;
        let mut went_on = self.shared.now();
        loop {
            let stop = tokio::select! {
                biased;
                outcome = job.outcome() => return match outcome {
                    Ok(()) => Copied::Arrived,
                    Err(error) => Copied::failed(said(&error)),
                },
                () = self.order_changed() => Copied::OrderChanged,
                () = record_lock.until_lost() => Copied::Lost,
                () = self.shared.sleep(TELL_EVERY) => {
                    if self.note.held && let Some(why) = self.would_be_held_long() {
                        return self.abort(job, Copied::failed(why)).await;
                    }
                    let now_copied = self.tell_progress(job.as_ref()).await;
                    let held = self.is_held().await;
                    let is_held = held.unwrap_or(was_held);
                    if now_copied.is_some() && !is_held && self.note.is_endless() {
                        return self.abort(job, Copied::endless(&self.note)).await;
                    }
                    let went = match now_copied {
                        Some(_) => now_copied != copied,
                        // Of one that copied and does not say how far it is nothing is known. But a
                        // guest that is held does not wait for it without limit.
                        None => copied.is_some() && !is_held,
                    };
                    if went || held.is_none() || is_held != was_held {
                        copied = now_copied.or(copied);
                        was_held = is_held;
                        went_on = self.shared.now();
                    }
                    let seconds = self.shared.now().saturating_sub(went_on);
                    let is_late = seconds >= STALLED;
                    // One that is held for the last of it is not held up by the other side alone,
                    // and is let finish.
                    if !is_late || is_held && seconds < HELD_STALLED && self.answers_there().await {
                        continue;
                    }
                    Copied::failed(format!("nothing was copied within {} s", seconds.as_secs()))
                }
            };
            return self.abort(job, stop).await;
        }
    }

    /// Reason for which the guest, if it arrived now, would stand still there for longer than a
    /// moment: nobody takes the word that hands it over.
    fn would_be_held_long(&mut self) -> Option<String> {
        let now = self.shared.now();
        if self.unreported.is_some_and(|since| now.saturating_sub(since) >= UNREPORTED) {
            return Some("the store takes no word of the move".to_owned());
        }
        if runs_daemon(&self.shared.store.view(), &self.to) {
            self.seen_there = now;
        }
        let is_away = now.saturating_sub(self.seen_there) >= AWAY;
        is_away.then(|| format!("the daemon of node `{}` does not run any more", self.to))
    }

    async fn abort(&self, mut job: Box<dyn MigrationJob>, why: Copied) -> Copied {
        tracing::info!(vm = self.name, to = %self.to, "the migration is given up on its way");
        let shared = self.shared.clone();
        let aborted = shared.within(ABORT_TIME_LIMIT, async {
            loop {
                if let Err(error) = job.abort().await {
                    tracing::warn!(vm = self.name, %error, "the migration could not be given up");
                }
                if let Some(outcome) = shared.within(ABORT_AGAIN, job.outcome()).await {
                    return outcome;
                }
            }
        });
        match aborted.await {
            // It was faster than we were.
            Some(Ok(())) => Copied::Arrived,
            Some(Err(_)) => why,
            None => Copied::Lost,
        }
    }

    /// Shuts the guest down here, to be started there.
    async fn power_off(&mut self) -> Ended {
        tracing::info!(vm = self.name, to = %self.to, "shutting down, to be started on the other \
                                                       node");
        self.tell(MovePhase::ShuttingDown).await;
        let hypervisor = self.shared.ports.hypervisor.clone();
        let end = self.shared.now() + self.shared.settings.vm_shutdown_timeout;
        let mut press = self.shared.now();
        loop {
            match self.here().await {
                Err(error) => return self.later(&error),
                Ok(None) => return self.ended().await,
                Ok(Some(_)) => {}
            }
            let now = self.shared.now();
            if now >= end {
                tracing::warn!(
                    vm = self.name,
                    "the guest did not shut down in time and is powered off"
                );
                if let Err(error) = hypervisor.destroy(self.vm).await {
                    return self.later(&error);
                }
                continue;
            }
            if now >= press {
                press = now + REQUEST_EVERY;
                // One that cannot hear it is powered off when its time is over.
                if let Err(error) = hypervisor.shutdown(self.vm).await {
                    tracing::debug!(vm = self.name, %error, "the shutdown could not be requested");
                }
            }
            if self.while_sent(self.shared.sleep(LOOK)).await.is_err() {
                return Ended::Superseded;
            }
        }
    }

    /// Ends the copy here of a guest that runs on the other node.
    async fn end_here(&mut self) -> Ended {
        tracing::warn!(vm = self.name, to = %self.to, "the guest runs on the other node as well \
                                                       and is ended here");
        match self.shared.ports.hypervisor.destroy(self.vm).await {
            Ok(()) => self.arrived().await,
            Err(error) => self.later(&error),
        }
    }

    /// The guest is on the other node. If it runs there, that node says so itself; if it is held
    /// there, it belongs here until that is written.
    async fn arrived(&mut self) -> Ended {
        if self.note.held {
            return self.hand_over().await;
        }
        tracing::info!(vm = self.name, to = %self.to, "the guest runs on the other node now");
        self.note.why.clear();
        self.note.left_on.remove(&self.to);
        self.tell(MovePhase::Done).await;
        self.shared.forget_failed_move(self.vm);
        Ended::Left { to: self.to.clone(), written: None }
    }

    async fn hand_over(&mut self) -> Ended {
        loop {
            // The hypervisor has said so. But whoever goes on there must be the only one.
            match self.here().await {
                Ok(None) => {}
                Ok(Some(run)) => {
                    tracing::error!(
                        vm = self.name,
                        ?run,
                        "the guest has left and is here nevertheless; it stays"
                    );
                    return Ended::Later;
                }
                Err(error) => {
                    tracing::debug!(vm = self.name, %error, "the guests could not be listed")
                }
            }
            match self.say_handed_over().await {
                Ok(()) => {
                    tracing::info!(vm = self.name, to = %self.to, "the guest was handed over to \
                                                                   the other node");
                    self.shared.forget_failed_move(self.vm);
                    return Ended::Left { to: self.to.clone(), written: None };
                }
                Err(ChangeError::Refused(Superseded)) => return Ended::Superseded,
                Err(error) if self.ending.is_cancelled() => return self.later(&error),
                Err(error) => {
                    tracing::warn!(vm = self.name, %error, "the hand-over could not be written; it \
                                                            is tried again");
                    self.shared.sleep(LOOK).await;
                }
            }
        }
    }

    /// Reports the hand-over, as long as the VM is to be moved at all: the node that is to have it
    /// by now can be sent it by the other node.
    async fn say_handed_over(&mut self) -> Result<(), ChangeError<Superseded>> {
        self.note.why.clear();
        self.note.phase = MovePhase::HandedOver;
        let write = |cluster: &Cluster| {
            let record = cluster
                .vms
                .get(&self.vm)
                .filter(|record| is_moving(&record.state))
                .ok_or(Superseded)?;
            let (incarnation, request) = (record.incarnation, record.state_version);
            let note = MoveNote { incarnation, request, ..self.note.clone() };
            let mut changes = Changes::new();
            changes.expect(Expect::VmState(self.vm)).expect(Expect::VmNode(self.vm));
            changes.push(Change::MoveNote(self.vm, note));
            Ok((changes, ()))
        };
        self.shared.store.change(write).await
    }

    /// The guest is off, without having arrived: it is to be started there.
    async fn ended(&mut self) -> Ended {
        // What is held there may be older than what the guest did last here. Its receiver ends it,
        // and starts it.
        if self.note.held && !matches!(self.state_there().await, Ok(None)) {
            self.free_locks().await;
            tracing::warn!(vm = self.name, to = %self.to, "the guest has ended on its way");
            return Ended::Left { to: self.to.clone(), written: None };
        }
        self.free_locks().await;
        let ours = match self.shared.store.has_our_daemon(&self.to).await {
            Ok(ours) => ours,
            Err(error) => return self.later(&error),
        };
        // One of ours that was stopped meanwhile announces nothing, and starts what its record says
        // when it returns.
        let state = ended_here(ours);
        let write = |cluster: &Cluster| {
            let record = self.sent(cluster)?;
            let runner = runs_elsewhere(cluster, self.vm, self.shared.name());
            if runner.is_some_and(|runner| runner != self.to) {
                return Err(Superseded);
            }
            let mut changes = Changes::new();
            changes.expect(Expect::VmState(self.vm)).expect(Expect::VmNode(self.vm));
            changes.vm(self.vm, VmChange::State(state.clone()));
            Ok((changes, record.state_version + 1))
        };
        match self.shared.store.change(write).await {
            Ok(written) => {
                tracing::info!(vm = self.name, to = %self.to, "the guest is off here and is \
                                                               started there");
                self.tell(MovePhase::Done).await;
                self.shared.forget_failed_move(self.vm);
                Ended::Left { to: self.to.clone(), written: Some(written) }
            }
            Err(ChangeError::Refused(Superseded)) => Ended::Superseded,
            Err(error) => self.later(&error),
        }
    }

    /// A guest that was killed leaves its locks, and the other node must not break them: it cannot
    /// know that the guest is gone.
    async fn free_locks(&self) {
        let Some(record) = self.shared.store.view().vms.get(&self.vm).cloned() else { return };
        match self.shared.within(FREE, free_own_locks(&self.shared, &record)).await {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::warn!(vm = self.name, %error, "what the guest may have left locked could \
                                                        not be freed");
            }
            None => tracing::warn!(
                vm = self.name,
                "what the guest may have left locked could not be freed in time"
            ),
        }
    }

    /// The guest stays here, and its record says so again.
    async fn give_up(&mut self, why: &str) -> Ended {
        let here = self.shared.name().clone();
        let write = |cluster: &Cluster| {
            let record = self.sent(cluster)?;
            let mut changes = Changes::new();
            changes
                .vm(self.vm, VmChange::State(VmState::Start))
                .vm(self.vm, VmChange::Node(here.clone()));
            let home = home_again(record, &here, self.home.as_ref());
            changes.vm(self.vm, VmChange::LastNode(home));
            Ok((changes, ()))
        };
        // Before the record says that it stays: a flush that reads that would send it once more at
        // once.
        self.shared.note_failed_move(self.vm);
        match self.shared.store.change(write).await {
            Ok(()) => {
                tracing::warn!(vm = self.name, to = %self.to, why, "the VM could not be moved and \
                                                                    stays here");
                self.note.why = one_line(why);
                self.tell(MovePhase::Failed).await;
                if matches!(self.here().await, Ok(Some(GuestRun::Leaving)))
                    && let Err(error) = self.shared.ports.hypervisor.resume(self.vm).await
                {
                    tracing::warn!(vm = self.name, %error, "the guest could not be let go on; it \
                                                            is tried again");
                }
                Ended::Done
            }
            Err(ChangeError::Refused(Superseded)) => Ended::Superseded,
            Err(error) => self.later(&error),
        }
    }

    // --- What the steps are made of --------------------------------------------------------------

    fn is_sent(&self, record: Option<&VmRecord>) -> bool {
        is_sent(record, self.shared.name(), &self.to)
    }

    fn sent<'a>(&self, cluster: &'a Cluster) -> Result<&'a VmRecord, Superseded> {
        let record = cluster.vms.get(&self.vm).map(|record| &**record);
        record.filter(|record| self.is_sent(Some(record))).ok_or(Superseded)
    }

    /// The outcome of `work`, unless the order changes before.
    async fn while_sent<T>(&self, work: impl Future<Output = T>) -> Result<T, OrderChanged> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = self.order_changed() => Err(OrderChanged),
        }
    }

    /// Returns when the record asks for something else or can be seen no more, or this daemon ends.
    async fn order_changed(&self) {
        let is_other =
            |view: &Cluster| !self.is_sent(view.vms.get(&self.vm).map(|record| &**record));
        self.shared.becomes(is_other, &self.ending).await;
    }

    async fn here(&self) -> Result<Option<GuestRun>, HypervisorError> {
        Ok(self.shared.ports.hypervisor.guests().await?.get(&self.vm).map(|guest| guest.run))
    }

    /// Whether the guest does not run here, being here or not; `None`: the hypervisor does not say.
    async fn is_held(&self) -> Option<bool> {
        let guests = self.shared.ports.hypervisor.guests().await.ok()?;
        Some(guests.get(&self.vm).is_none_or(|guest| guest.run != GuestRun::Running))
    }

    /// Whether daemon and hypervisor of the other node give a sign of life.
    async fn answers_there(&self) -> bool {
        self.target(&self.shared.store.view(), true) == Target::Well
            && matches!(self.shared.within(SAY, self.state_there()).await, Some(Ok(_)))
    }

    /// Asks the other node's hypervisor, not the records: they may be older than the question.
    async fn state_there(&self) -> Result<Option<GuestRun>, HypervisorError> {
        let host = self.shared.settings.migration.host(&self.to);
        self.shared.ports.hypervisor.state_at(&host, self.vm).await
    }

    fn later(&self, error: &(dyn std::error::Error + 'static)) -> Ended {
        tracing::warn!(vm = self.name, to = %self.to, error, "the VM could not be moved now; it is \
                                                              tried again");
        Ended::Later
    }

    async fn tell(&mut self, phase: MovePhase) {
        self.note.phase = phase;
        let begun = self.shared.now();
        let report = vec![Report::Move(self.vm, self.note.clone())];
        match self.shared.within(SAY, self.shared.store.report(report)).await {
            Some(Ok(())) => self.unreported = None,
            _ => {
                self.unreported.get_or_insert(begun);
                tracing::debug!(
                    vm = self.name,
                    phase = phase.as_str(),
                    "the move's progress is not in the store"
                );
            }
        }
    }

    /// Reports the progress. Returns the numbers of bytes that were copied and that are left, if
    /// the job copies already.
    async fn tell_progress(&mut self, job: &dyn MigrationJob) -> Option<(u64, u64)> {
        if let Some(Ok(Some(progress))) = self.shared.within(SAY, job.progress()).await {
            self.note.seconds = progress.elapsed.as_secs();
            self.note.total_bytes = progress.total;
            self.note.processed_bytes = progress.processed;
            self.note.remaining_bytes = progress.remaining;
            self.tell(MovePhase::Copying).await;
            return Some((progress.processed, progress.remaining));
        }
        None
    }
}

/// The note that the last sender from `here` to `to` has noted of the VM's move, if that may have
/// left a held guest there.
fn left_by(record: &VmRecord, here: &NodeName, to: &NodeName) -> Option<MoveNote> {
    let note = record.moving.as_ref()?;
    let is_same = note.from == *here && note.to == *to && note.incarnation == record.incarnation;
    (is_same && note.leaves_held()).then(|| note.clone())
}

fn runs_daemon(cluster: &Cluster, node: &NodeName) -> bool {
    cluster.nodes.get(node).is_some_and(|node| node.daemon_state == DaemonState::Run)
}

fn said(error: &HypervisorError) -> String {
    match error {
        HypervisorError::Refused { why } => one_line(why),
        other => one_line(&other.to_string()),
    }
}

/// Looks after a VM that was sent from here until its new node has taken notice: a legacy peer may
/// have missed its turn, or died in it. `written` is the write of `stop` that says "start it" to
/// that peer.
pub(super) async fn watch_sent(
    shared: Arc<Shared>,
    ending: CancellationToken,
    vm: Uuid,
    to: NodeName,
    written: Option<i32>,
) {
    let locks = shared.store.move_locks(vm);
    let end = shared.now() + WATCH_SENT;
    let mut quiet_since = shared.now();
    while shared.now() < end {
        if !shared.rest(LOOK, &ending).await {
            return;
        }
        let view = shared.store.view();
        if !is_unnoticed(&view, vm, &to, written) {
            return;
        }
        let is_settled = match is_moving(&view.vms[&vm].state) {
            true => view.nodes.get(&to).is_some_and(|node| node.running.contains(&vm)),
            false => view.nodes.values().all(|node| !node.running.contains(&vm)),
        };
        let is_quiet =
            is_settled && shared.is_connected() && matches!(locks.anybody().await, Ok(false));
        if !is_quiet {
            quiet_since = shared.now();
        } else if shared.now().saturating_sub(quiet_since) >= QUIET {
            return say_arrived(&shared, vm, &to, written).await;
        }
    }
}

fn is_unnoticed(view: &Cluster, vm: Uuid, to: &NodeName, written: Option<i32>) -> bool {
    view.vms.get(&vm).is_some_and(|record| {
        let waits = is_moving(&record.state)
            || (record.state == VmState::Stop && written == Some(record.state_version));
        waits && record.is_assigned_to(to)
    })
}

async fn say_arrived(shared: &Shared, vm: Uuid, to: &NodeName, written: Option<i32>) {
    let write = |cluster: &Cluster| {
        if !is_unnoticed(cluster, vm, to, written) {
            return Err(Superseded);
        }
        let mut changes = Changes::new();
        changes.expect(Expect::VmNode(vm)).vm(vm, VmChange::State(VmState::Start));
        Ok((changes, ()))
    };
    match shared.store.change(write).await {
        Ok(()) => {
            tracing::info!(%vm, node = %to, "the node took no notice of the VM that it received; \
                                             its sender said `start`")
        }
        Err(ChangeError::Refused(Superseded)) => {}
        Err(error) => {
            tracing::warn!(%vm, %error, "what has become of a VM that was sent could not be said")
        }
    }
}
