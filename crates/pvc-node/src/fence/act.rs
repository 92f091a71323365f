//! The steps of a fence, and what became of them.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::stream::{self, StreamExt as _};
use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_model::fault::{NODE_FENCED, fault_id};
use pvc_model::fence::{self, FenceNote, PowerAfter, Proof, Rescue, Step, Way, at_stamp};
use pvc_model::node::{DaemonState, DomainState, NodeFigures, NodeRecord};
use pvc_model::vm::locks::{BlockingLock, Breaker, Kept, Verdict, may_break};
use pvc_ports::{Bmc, StorageError};
use pvc_role::{Superseded, caught};
use pvc_store::{
    Change, ChangeError, Changes, Expect, LockGuard, NodeChange, Report, death, take_role,
};

use super::place::{Freed, Locked, Recovery};
use crate::shared::Shared;

/// The longest that a step may take; the ports have deadlines of their own, and this is for those
/// that forget.
const DEADLINE: Duration = Duration::from_secs(120);

/// The longest that a BMC may take for a step.
const BMC_DEADLINE: Duration = Duration::from_secs(30);

/// Time that the store may take for a note.
const NOTE_DEADLINE: Duration = Duration::from_secs(5);

/// Number of VMs whose locks are freed at once.
const RESCUES_AT_ONCE: usize = 16;

/// Time that the storage may take for the locks of one VM.
const FREE_DEADLINE: Duration = Duration::from_secs(60);

/// Time that a recovery may take in all before it is begun anew with what is left.
const RECOVER_DEADLINE: Duration = Duration::from_secs(600);

/// Result of a step.
pub(super) enum Ended {
    /// Done, or no longer called for: the next look shows which.
    Done,
    /// Answer of the BMC about the power, if there was any.
    Power(Option<bool>),
    CutOff,
    /// A BMC was told to cut it off, and nobody has waited for what came of it.
    MayBeCutOff,
    NotCutOff,
    NotRecovered,
    SwitchedOn,
    NotSwitchedOn,
}

#[derive(Clone)]
pub(super) struct Actor {
    pub shared: Arc<Shared>,
}

impl Actor {
    pub async fn act(self, node: NodeName, step: Step, lock: Arc<LockGuard>) -> Ended {
        let deadline = match step {
            Step::AskPower | Step::CutPower { .. } | Step::PowerOn => BMC_DEADLINE,
            Step::Recover { .. } => RECOVER_DEADLINE,
            _ => DEADLINE,
        };
        let work = self.shared.within(deadline, self.step(&node, &step, &lock));
        let why = match caught(work).await {
            Ok(Some(ended)) => return ended,
            Ok(None) => format!("it took longer than {} s", deadline.as_secs()),
            Err(panicked) => panicked.to_string(),
        };
        tracing::error!(%node, ?step, why, "a step of a fence did not come to an end");
        let record = self.shared.store.view().nodes.get(&node).cloned();
        match (&step, record) {
            (Step::CutPower { .. }, Some(record)) => {
                let why = format!("cutting its power: {why}");
                may_be(self.not_cut_off(&record, &why).await)
            }
            _ => late(&step),
        }
    }

    /// Switches on what this fencer has cut off, perhaps with the store's quorum: nothing of it can
    /// be recorded.
    pub async fn switch_on_without_store(self, node: NodeName) -> Ended {
        let work = async {
            let bmc = self.bmc(&node)?;
            Some(self.shared.ports.power.switch_on(&bmc).await)
        };
        match self.shared.within(BMC_DEADLINE, work).await.flatten() {
            Some(Ok(())) => {
                tracing::warn!(
                    %node,
                    "the store does not answer, and the power of this node was cut before; it is \
                     switched on again, in case that its server is needed"
                );
                Ended::SwitchedOn
            }
            Some(Err(error)) => {
                tracing::error!(%node, %error, "a node that was cut off could not be switched on \
                                                again; it is tried again");
                Ended::NotSwitchedOn
            }
            None => Ended::NotSwitchedOn,
        }
    }

    async fn step(&self, node: &NodeName, step: &Step, lock: &LockGuard) -> Ended {
        let now = match self.shared.store.fresh().await {
            Ok(cluster) => cluster,
            Err(error) => {
                tracing::warn!(%node, %error, "the store cannot be asked in the middle of a fence");
                return late(step);
            }
        };
        let Some(record) = now.nodes.get(node).filter(|_| lock.certain()) else {
            return Ended::Done;
        };
        match step {
            Step::Suspect { stamp } => self.suspect(record, *stamp).await,
            Step::AskPower => self.ask_power(node).await,
            Step::CutPower { stamp } => self.cut_power(record, *stamp, lock).await,
            Step::NoAnswer { stamp } => {
                let why = "its BMC does not say whether the power is on, and its power is not cut \
                           yet, as it may be booting: it has not been heard since this node began \
                           to listen";
                self.power_stays(record, *stamp, why).await
            }
            Step::Alone { stamp } => {
                let why = "it has not been heard since this node began to listen, and more nodes \
                           have not than have, so that this one may be with an old copy of \
                           ZooKeeper's data: the power of none of them is cut";
                self.power_stays(record, *stamp, why).await
            }
            Step::Prove { stamp, proof, recover } => {
                self.prove(record, *stamp, *proof, *recover).await
            }
            Step::Recover { may_wait } => self.recover(&now, record, *may_wait).await,
            // What was cut while it started has no note of a fence.
            Step::PowerOn
                if fence::is_power_due(record) || record.daemon_state == DaemonState::Init =>
            {
                self.power_on(record).await
            }
            Step::PowerOn => Ended::Done,
        }
    }

    async fn suspect(&self, record: &NodeRecord, stamp: i32) -> Ended {
        let node = &record.name;
        let decide = |cluster: &Cluster| {
            let is_silent =
                |record: &&Arc<NodeRecord>| record.owes_stamps() && record.keepalives == stamp;
            let record = cluster.nodes.get(node).filter(is_silent).ok_or(Superseded)?;
            let mut changes = Changes::new();
            changes.expect(Expect::NodeDaemon(node.clone()));
            changes.node(node, NodeChange::Daemon(DaemonState::Dead));
            // It gave the role up when its session ended. A legacy peer keeps its addresses until
            // its power is cut.
            if record.runs_our_daemon() {
                take_role(cluster, record, &mut changes);
            }
            changes.push(Change::FenceNote(node.clone(), self.begun(stamp)));
            Ok((changes, ()))
        };
        // Whatever else comes of it is decided anew at the next look.
        if self.write(node, decide).await == Written::Yes(()) {
            tracing::error!(%node, "the node is silent and is taken for dead");
        }
        Ended::Done
    }

    async fn ask_power(&self, node: &NodeName) -> Ended {
        let is_on = match self.bmc(node) {
            Some(bmc) => self.shared.ports.power.is_on(&bmc).await,
            None => return Ended::Power(None),
        };
        match is_on {
            Ok(is_on) => Ended::Power(Some(is_on)),
            Err(error) => {
                tracing::warn!(%node, %error, "the silent node's BMC does not say whether its \
                                               power is on");
                Ended::Power(None)
            }
        }
    }

    async fn cut_power(&self, record: &NodeRecord, stamp: i32, lock: &LockGuard) -> Ended {
        let node = &record.name;
        if record.daemon_state != DaemonState::Dead || record.keepalives != stamp {
            return Ended::Done;
        }
        let Some(bmc) = self.bmc(node) else {
            return self.not_cut_off(record, "no BMC is configured for it").await;
        };
        tracing::error!(%node, bmc = bmc.host, "the power of the dead node is cut");
        let cut = tokio::select! {
            biased;
            // The command may be on its way to a BMC that does not answer: it is taken back.
            () = self.lives(node, stamp) => {
                tracing::warn!(%node, "the node lives; its power is not cut");
                // Or it was all the same: one that was about to start would stay off.
                return Ended::MayBeCutOff;
            }
            () = lock.until_lost() => return Ended::MayBeCutOff,
            cut = self.shared.ports.power.cut(&bmc) => cut,
        };
        match cut {
            Ok(()) => Ended::CutOff,
            Err(error) => may_be(self.not_cut_off(record, &error.to_string()).await),
        }
    }

    async fn power_stays(&self, record: &NodeRecord, stamp: i32, why: &str) -> Ended {
        if record.daemon_state != DaemonState::Dead || record.keepalives != stamp {
            return Ended::Done;
        }
        self.not_cut_off(record, why).await
    }

    /// Returns when the node has stamped since, or says another state.
    async fn lives(&self, node: &NodeName, stamp: i32) {
        let is_so = |view: &Cluster| at_stamp(view, node, DaemonState::Dead, stamp).is_none();
        self.shared.until(is_so).await;
    }

    async fn not_cut_off(&self, record: &NodeRecord, why: &str) -> Ended {
        let (node, stamp) = (&record.name, record.keepalives);
        // An operator may have said meanwhile that it is off, and the note has that then.
        let decide = |cluster: &Cluster| {
            let record = at_stamp(cluster, node, DaemonState::Dead, stamp).ok_or(Superseded)?;
            let mut note = self.note_of(record);
            note.failed_attempts += 1;
            note.last_failure = why.to_owned();
            let mut changes = Changes::new();
            changes.expect(Expect::NodeDaemon(node.clone()));
            changes.push(Change::FenceNote(node.clone(), note));
            Ok((changes, ()))
        };
        let noted = self.shared.within(NOTE_DEADLINE, self.write(node, decide)).await;
        if noted == Some(Written::Superseded) {
            return Ended::Done;
        }
        tracing::error!(%node, why, "the dead node could not be fenced; it is tried again");
        let has_bmc = self.bmc(node).is_some();
        let has_role = self.shared.store.view().config.primary.as_ref() == Some(node);
        let message = fence_failed(node, why, has_bmc, has_role);
        self.shared.raise(&fault_id("FENCE_FAILED", node.as_str()), &message).await;
        Ended::NotCutOff
    }

    async fn prove(&self, record: &NodeRecord, stamp: i32, proof: Proof, recover: bool) -> Ended {
        let node = &record.name;
        let decide = |cluster: &Cluster| {
            let record = at_stamp(cluster, node, DaemonState::Dead, stamp).ok_or(Superseded)?;
            let note = FenceNote {
                proven_at: Some(self.wall()),
                proof: proof.to_string(),
                power: PowerAfter::Due,
                ..self.note_of(record)
            };
            Ok((death(cluster, record, note, recover), ()))
        };
        if self.write(node, decide).await == Written::Yes(()) {
            tracing::error!(%node, %proof, "the node is dead");
        }
        Ended::Done
    }

    /// Frees the locks of every VM that should run, and writes where it goes as soon as they are
    /// free: one volume that hangs holds up nobody else's recovery.
    async fn recover(&self, cluster: &Cluster, record: &NodeRecord, may_wait: bool) -> Ended {
        let node = &record.name;
        let rescues = fence::rescues(cluster, node);
        tracing::warn!(%node, vms = rescues.len(), "the VMs of the dead node are recovered");
        let mut note = self.note_of(record);
        let work: Vec<_> = rescues.iter().map(|rescue| self.free(record, rescue).boxed()).collect();
        let mut freed =
            stream::iter(work).buffer_unordered(RESCUES_AT_ONCE).ready_chunks(RESCUES_AT_ONCE);
        let mut recovery = Recovery::default();
        let mut is_written = true;
        while let Some(freed) = freed.next().await {
            recovery.extend(freed);
            is_written &= self.place(node, &mut recovery, may_wait, &mut note).await;
        }
        let is_complete = is_written && recovery.is_complete();
        let waiting = recovery.waiting();
        self.note(node, note.clone()).await;
        if !is_complete {
            // What is waited for after all may take for ever.
            if !may_wait && !waiting.is_empty() {
                self.tell(node, &note, &waiting).await;
            }
            return Ended::NotRecovered;
        }
        // First operators hear of it: once the record says that it is over nobody takes it up
        // again, should this fencer die here.
        self.tell(node, &note, &[]).await;
        if self.conclude(node).await { Ended::Done } else { Ended::NotRecovered }
    }

    /// Frees the locks that the dead node left on the VM's volumes: whatever it still writes is
    /// refused from then on (I2). Not so on a volume whose lock a living partner has, that shares
    /// it: there nothing of the dead node is blocklisted, and the proof alone says that it writes
    /// no more.
    async fn free(&self, victim: &NodeRecord, rescue: &Rescue) -> Freed {
        let freed = self.shared.within(FREE_DEADLINE, self.free_locks(victim, rescue)).await;
        let outcome = freed.unwrap_or_else(|| {
            Err(Locked::NotYet(format!(
                "the storage did not answer within {} s",
                FREE_DEADLINE.as_secs()
            )))
        });
        Freed { vm: rescue.vm, name: rescue.name.clone(), outcome }
    }

    async fn free_locks(&self, victim: &NodeRecord, rescue: &Rescue) -> Result<(), Locked> {
        let storage = &self.shared.ports.storage;
        for volume in &rescue.volumes {
            let locks = match storage.locks(volume).await {
                // One that only an outdated list names.
                Err(StorageError::NoVolume { .. } | StorageError::NoPool { .. }) => continue,
                other => other?,
            };
            for lock in locks {
                // Asked anew each time: the locks of a node that has come back are those of its
                // guests.
                let now = self
                    .shared
                    .store
                    .fresh()
                    .await
                    .map_err(|error| Locked::NotYet(error.to_string()))?;
                let by = Breaker::Fencer { vm: rescue.vm, volume, victim };
                match may_break(&now, &lock.address, &by) {
                    Verdict::Keep(Kept::NotDead) => return Err(Locked::Superseded),
                    Verdict::Break => {
                        tracing::info!(vm = rescue.name, %volume, lock = lock.id, "freeing a lock \
                                                                                   of the dead \
                                                                                   node");
                        storage.break_lock(volume, &lock).await?;
                    }
                    // A partner that lives has it: it is in nobody's way.
                    Verdict::Shared => {}
                    _ if matches!(rescue.way, Way::Start(_)) => {
                        let lock = BlockingLock {
                            id: &lock.id,
                            address: &lock.address,
                            volume,
                            why: "it is not one of the dead node",
                            node: None,
                        };
                        return Err(Locked::Foreign(lock.reason()));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Writes what becomes of the VMs whose locks are free: those that wait for others have waited
    /// for the ones that came since, perhaps. Whether it could be written.
    async fn place(
        &self,
        victim: &NodeName,
        recovery: &mut Recovery,
        may_wait: bool,
        note: &mut FenceNote,
    ) -> bool {
        loop {
            let decide = |cluster: &Cluster| recovery.place(cluster, victim, may_wait);
            let placed = match self.shared.store.change(decide).await {
                Ok(placed) => placed,
                Err(ChangeError::Refused(Superseded)) => {
                    recovery.clear();
                    return true;
                }
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(node = %victim, error, "the VMs' records could not be written; \
                                                           it is tried again");
                    return false;
                }
            };
            let is_all = placed.is_all;
            recovery.take_in(placed, note);
            if is_all {
                return true;
            }
        }
    }

    /// Says that the node has no VMs any more, and forgets its figures; not if one was started on
    /// it meanwhile, which is recovered as well.
    async fn conclude(&self, node: &NodeName) -> bool {
        let decide = |cluster: &Cluster| {
            let record = cluster.nodes.get(node);
            record.filter(|record| fence::is_being_recovered(record)).ok_or(Superseded)?;
            let mut changes = Changes::new();
            if !fence::is_recovered(cluster, node) {
                return Ok((changes, false));
            }
            changes.expect(Expect::NodeDaemon(node.clone())).expect(Expect::Placements);
            // One that is started from now on would wait for its node, and nobody would look again.
            for vm in cluster.vms.values().filter(|vm| vm.is_assigned_to(node)) {
                changes.expect(Expect::VmState(vm.uuid));
            }
            changes.node(node, NodeChange::Domain(DomainState::Flushed));
            Ok((changes, true))
        };
        let nothing = vec![
            Report::Running(node.clone(), Vec::new()),
            Report::WorkingOn(node.clone(), Vec::new()),
            Report::Figures(node.clone(), NodeFigures::default()),
            Report::NodeHealth(node.clone(), None),
        ];
        match self.write(node, decide).await {
            // Only what is written by nobody else: a node that is back says for itself what it
            // runs.
            Written::Yes(true) => {
                if let Err(error) = self.shared.store.report(nothing).await {
                    tracing::warn!(%node, %error, "the figures of the dead node could not be \
                                                   cleared");
                }
                true
            }
            Written::Superseded => true,
            Written::Yes(false) | Written::No => false,
        }
    }

    async fn power_on(&self, record: &NodeRecord) -> Ended {
        let node = &record.name;
        let Some(bmc) = self.bmc(node) else { return Ended::NotSwitchedOn };
        if let Err(error) = self.shared.ports.power.switch_on(&bmc).await {
            tracing::error!(%node, %error, "the fenced node could not be switched on again; it is \
                                            tried again");
            return Ended::NotSwitchedOn;
        }
        if record.daemon_state == DaemonState::Init {
            tracing::warn!(%node, "the power of the node may have been cut as it started; it is \
                                   switched on");
            return Ended::SwitchedOn;
        }
        tracing::info!(%node, "the fenced node was switched on again");
        let mut note = self.note_of(record);
        note.power = PowerAfter::SwitchedOn;
        self.note(node, note).await;
        Ended::SwitchedOn
    }

    /// Lets an operator know, also of what keeps VMs from being recovered yet.
    async fn tell(&self, node: &NodeName, note: &FenceNote, waiting: &[String]) {
        let list = |what: &str, names: &[String]| match names {
            [] => String::new(),
            names => format!(". {what}: {}", names.join(", ")),
        };
        let id = fault_id(NODE_FENCED, node.as_str());
        let message = format!(
            "node {node} was fenced by {}: {}{}{}{}. When it is well again, `pvc node ready \
             {node}`, then delete this fault (`pvc cluster fault delete {id}`): until then \
             `/etc/pvc/autoready` brings nothing back",
            note.by,
            note.proof,
            list("VMs started elsewhere", &note.recovered),
            list("VMs that wait for a place", &note.stranded),
            list("VMs that could not be recovered yet (it is tried again)", waiting),
        );
        self.shared.raise(&id, &message).await;
    }

    async fn write<T>(
        &self,
        node: &NodeName,
        decide: impl Fn(&Cluster) -> Result<(Changes, T), Superseded> + Send + Sync,
    ) -> Written<T> {
        match self.shared.store.change(decide).await {
            Ok(outcome) => Written::Yes(outcome),
            Err(ChangeError::Refused(Superseded)) => Written::Superseded,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(%node, error, "the dead node's record could not be written; it is \
                                              tried again");
                Written::No
            }
        }
    }

    /// The note is for people, and for the power afterwards: a fence does not wait for it.
    async fn note(&self, node: &NodeName, note: FenceNote) {
        let written = self.shared.store.report(vec![Report::Fence(node.clone(), note)]);
        if !matches!(self.shared.within(NOTE_DEADLINE, written).await, Some(Ok(()))) {
            tracing::warn!(%node, "what is known of the fence could not be recorded");
        }
    }

    /// The record of this fence, to be added to. It is empty if it was a legacy peer that suspected
    /// the node.
    fn note_of(&self, record: &NodeRecord) -> FenceNote {
        let view = self.shared.store.view();
        let begun = view.nodes.get(&record.name).and_then(|now| now.present_fence()).cloned();
        FenceNote { by: self.name(), ..begun.unwrap_or_else(|| self.begun(record.keepalives)) }
    }

    fn begun(&self, stamp: i32) -> FenceNote {
        let (by, suspected_at) = (self.name(), self.wall());
        FenceNote { stamp: Some(stamp), by, suspected_at, ..FenceNote::default() }
    }

    fn bmc(&self, node: &NodeName) -> Option<Bmc> {
        self.shared.store.ipmi(node).map(|ipmi| ipmi.bmc())
    }

    fn name(&self) -> String {
        self.shared.name().to_string()
    }

    fn wall(&self) -> i64 {
        i64::try_from(self.shared.ports.clock.wall().as_secs()).unwrap_or(i64::MAX)
    }
}

/// Whether something was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written<T> {
    /// Holds what was decided.
    Yes(T),
    /// The step is no longer called for.
    Superseded,
    No,
}

/// A step that did not come to an end, in the words of its kind.
pub(super) fn late(step: &Step) -> Ended {
    match step {
        Step::AskPower => Ended::Power(None),
        Step::CutPower { .. } | Step::NoAnswer { .. } | Step::Alone { .. } => Ended::NotCutOff,
        Step::Recover { .. } => Ended::NotRecovered,
        Step::PowerOn => Ended::NotSwitchedOn,
        Step::Suspect { .. } | Step::Prove { .. } => Ended::Done,
    }
}

/// The end of a failed command to cut the power of a node: of one that lives meanwhile the power
/// may be off all the same, or soon.
fn may_be(ended: Ended) -> Ended {
    match ended {
        Ended::Done => Ended::MayBeCutOff,
        ended => ended,
    }
}

/// Fault of a node that could not be fenced: why, and what an operator can do about it.
fn fence_failed(node: &NodeName, why: &str, has_bmc: bool, was_primary: bool) -> String {
    let (until, remedy) = match has_bmc {
        true => ("it is proven dead: it is tried again and again", "Mend its BMC, bring the node"),
        false => ("it is back: without a BMC nothing proves it dead", "Bring the node"),
    };
    // A legacy peer has the addresses for as long as it has power: who takes them meanwhile is
    // for an operator.
    let role = match was_primary {
        true => {
            "; and as it was primary, nobody is: once you know that it is off, `pvc node primary \
             NODE`"
        }
        false => "",
    };
    format!(
        "node {node} is silent and could not be fenced: {why}. Its VMs stay down until {until}. \
         {remedy} back, or, if you have seen that it has no power, `pvc node confirm-off \
         {node}`{role}"
    )
}
