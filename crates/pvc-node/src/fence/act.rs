//! The steps of a fence, and what became of them.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::stream::{self, StreamExt as _};
use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_model::fault::fault_id;
use pvc_model::fence::{self, FenceNote, PowerAfter, Proof, Rescue, Step, Way};
use pvc_model::node::{CoordinatorState, DaemonState, DomainState, NodeFigures, NodeRecord, NodeRole};
use pvc_model::vm::{VmRecord, VmState};
use pvc_ports::{Bmc, StorageError};
use pvc_store::{ChangeError, Changes, ConfigChange, Expect, LockGuard, NodeChange, Report, VmChange};

use crate::faults;
use crate::shared::Shared;

/// The longest that a step may take; the ports have deadlines of their own, and this is for those that
/// forget.
const DEADLINE: Duration = Duration::from_secs(120);

/// The longest that a BMC may take for a step.
const BMC_DEADLINE: Duration = Duration::from_secs(30);

/// How long the store may take for a note.
const NOTE_DEADLINE: Duration = Duration::from_secs(5);

/// How many VMs are recovered at once.
const RESCUES_AT_ONCE: usize = 16;

/// What became of a step.
pub(super) struct Done {
    pub node: NodeName,
    pub ended: Ended,
}

pub(super) enum Ended {
    /// Done, or no longer called for: the next look shows which.
    Done,
    /// What the BMC said of the power, if anything.
    Heard(Option<bool>),
    CutOff,
    NotCutOff,
    /// It could not be done, for a reason that may pass.
    Later,
}

/// What was decided on has changed.
#[derive(Debug, thiserror::Error)]
#[error("it changed meanwhile")]
struct Moot;

#[derive(Clone)]
pub(super) struct Actor {
    pub shared: Arc<Shared>,
}

impl Actor {
    pub async fn act(self, node: NodeName, step: Step, lock: Arc<LockGuard>) -> Done {
        let deadline = match step {
            Step::AskPower | Step::CutPower { .. } | Step::PowerOn => BMC_DEADLINE,
            _ => DEADLINE,
        };
        let work = AssertUnwindSafe(self.shared.within(deadline, self.step(&node, &step, &lock)));
        let why = match work.catch_unwind().await {
            Ok(Some(ended)) => return Done { node, ended },
            Ok(None) => format!("it took longer than {} s", deadline.as_secs()),
            Err(_) => "it failed by a bug of this program".to_owned(),
        };
        tracing::error!(%node, ?step, why, "a step of a fence did not come to an end");
        let record = self.shared.store.view().nodes.get(&node).cloned();
        let ended = match (&step, record) {
            (Step::CutPower { .. }, Some(record)) => {
                self.not_cut_off(&record, &format!("cutting its power: {why}")).await
            }
            _ => late(&step),
        };
        Done { node, ended }
    }

    async fn step(&self, node: &NodeName, step: &Step, lock: &LockGuard) -> Ended {
        let now = match self.shared.store.fresh().await {
            Ok(cluster) => cluster,
            Err(error) => {
                tracing::warn!(%node, %error, "the store cannot be asked in the middle of a fence");
                return late(step);
            }
        };
        let Some(record) = now.nodes.get(node).filter(|_| lock.certain()) else { return Ended::Done };
        match step {
            Step::Suspect { stamp } => self.suspect(record, *stamp).await,
            Step::AskPower => self.ask_power(node).await,
            Step::CutPower { stamp } => self.cut_power(record, *stamp).await,
            Step::Prove { proof, recover } => self.prove(record, *proof, *recover).await,
            Step::Recover => self.recover(&now, record).await,
            Step::PowerOn => self.power_on(record).await,
        }
    }

    async fn suspect(&self, record: &NodeRecord, stamp: i64) -> Ended {
        let node = &record.name;
        let decide = |cluster: &Cluster| {
            let still = |record: &&Arc<NodeRecord>| {
                record.daemon_state == DaemonState::Run && record.keepalive == stamp
            };
            let record = cluster.nodes.get(node).filter(still).ok_or(Moot)?;
            let mut changes = Changes::new();
            changes.expect(Expect::NodeDaemon(node.clone()));
            changes.node(node, NodeChange::Daemon(DaemonState::Dead));
            if lets_go_by_itself(record) {
                take_role(cluster, record, &mut changes);
            }
            Ok((changes, ()))
        };
        if !self.write(node, decide).await {
            return Ended::Later;
        }
        tracing::error!(%node, "the node is silent and is taken for dead");
        let note = FenceNote { by: self.name(), suspected_at: self.wall(), ..FenceNote::default() };
        self.note(node, note).await;
        Ended::Done
    }

    async fn ask_power(&self, node: &NodeName) -> Ended {
        let is_on = match self.bmc(node) {
            Some(bmc) => self.shared.ports.power.is_on(&bmc).await,
            None => return Ended::Heard(None),
        };
        match is_on {
            Ok(is_on) => Ended::Heard(Some(is_on)),
            Err(error) => {
                tracing::warn!(%node, %error, "the silent node's BMC does not say whether its power is on");
                Ended::Heard(None)
            }
        }
    }

    async fn cut_power(&self, record: &NodeRecord, stamp: i64) -> Ended {
        let node = &record.name;
        if record.daemon_state != DaemonState::Dead || record.keepalive != stamp {
            return Ended::Done;
        }
        let Some(bmc) = self.bmc(node) else {
            return self.not_cut_off(record, "no BMC is configured for it").await;
        };
        tracing::error!(%node, bmc = bmc.host, "the power of the dead node is cut");
        match self.shared.ports.power.cut(&bmc).await {
            Ok(()) => Ended::CutOff,
            Err(error) => self.not_cut_off(record, &error.to_string()).await,
        }
    }

    async fn not_cut_off(&self, record: &NodeRecord, why: &str) -> Ended {
        let node = &record.name;
        tracing::error!(%node, why, "the dead node could not be fenced; it is tried again");
        let mut note = self.note_of(record);
        note.failed_attempts += 1;
        note.last_failure = why.to_owned();
        self.note(node, note).await;
        let message = format!(
            "node {node} is silent and could not be fenced: {why}. Its VMs stay down until it is proven dead: it is \
             tried again and again. Mend its BMC, or bring the node back"
        );
        faults::raise(&self.shared, &fault_id("FENCE_FAILED", node.as_str()), &message).await;
        Ended::NotCutOff
    }

    async fn prove(&self, record: &NodeRecord, proof: Proof, recover: bool) -> Ended {
        let node = &record.name;
        let decide = |cluster: &Cluster| {
            let still = |now: &&Arc<NodeRecord>| {
                now.daemon_state == DaemonState::Dead && now.keepalive == record.keepalive
            };
            let record = cluster.nodes.get(node).filter(still).ok_or(Moot)?;
            let mut changes = Changes::new();
            changes.expect(Expect::NodeDaemon(node.clone()));
            changes.node(node, NodeChange::Daemon(DaemonState::Fenced));
            if recover {
                changes.node(node, NodeChange::Domain(DomainState::FenceFlush));
            }
            take_role(cluster, record, &mut changes);
            Ok((changes, ()))
        };
        // First the note: what the record says must never be without its reason.
        let mut note = self.note_of(record);
        note.proven_at = Some(self.wall());
        note.proof = proof.to_string();
        note.power = match proof {
            Proof::FoundOff | Proof::CutOff => PowerAfter::Due,
            Proof::ResetItself { .. } => PowerAfter::Untouched,
        };
        self.note(node, note).await;
        if !self.write(node, decide).await {
            return Ended::Later;
        }
        tracing::error!(%node, %proof, "the node is dead");
        Ended::Done
    }

    async fn recover(&self, cluster: &Cluster, record: &NodeRecord) -> Ended {
        let node = &record.name;
        let rescues = fence::rescues(cluster, node);
        tracing::warn!(%node, vms = rescues.len(), "the VMs of the dead node are recovered");
        let work: Vec<_> =
            rescues.iter().map(|rescue| self.rescue(cluster, record, rescue).boxed()).collect();
        let outcomes: Vec<Outcome> = stream::iter(work).buffered(RESCUES_AT_ONCE).collect().await;
        let mut note = self.note_of(record);
        let mut is_complete = true;
        for (rescue, outcome) in rescues.iter().zip(outcomes) {
            match outcome {
                Outcome::Placed(to) => note.recovered.push(format!("{} on {to}", rescue.name)),
                Outcome::Stranded(why) => note.stranded.push(format!("{}: {why}", rescue.name)),
                Outcome::Moot => {}
                Outcome::Later => is_complete = false,
            }
        }
        self.note(node, note.clone()).await;
        if !is_complete || !self.conclude(node).await {
            return Ended::Later;
        }
        self.tell(node, &note).await;
        Ended::Done
    }

    async fn rescue(&self, cluster: &Cluster, victim: &NodeRecord, rescue: &Rescue) -> Outcome {
        match self.free_locks(cluster, &victim.name, rescue).await {
            Ok(()) => self.write_rescue(victim, rescue).await,
            Err(Locked::Foreign(why)) => self.fail(victim, rescue, why).await,
            Err(Locked::Unknown(error)) => {
                tracing::warn!(vm = rescue.name, %error, "the locks of the VM's volumes cannot be freed; it is tried again");
                Outcome::Later
            }
        }
    }

    /// Frees the locks that the dead node left on the VM's volumes: whatever it still writes is refused
    /// from then on (I2).
    async fn free_locks(&self, cluster: &Cluster, victim: &NodeName, rescue: &Rescue) -> Result<(), Locked> {
        let storage = &self.shared.ports.storage;
        for volume in &rescue.volumes {
            let locks = match storage.locks(volume).await {
                // One that only an outdated list names.
                Err(StorageError::NoVolume { .. } | StorageError::NoPool { .. }) => continue,
                other => other?,
            };
            for lock in locks {
                if !fence::lock_is_of(cluster, victim, &lock.address) {
                    if matches!(rescue.way, Way::Stay(_)) {
                        continue; // that of the guest itself
                    }
                    return Err(Locked::Foreign(format!(
                        "Could not safely free RBD lock {} ({}) on volume {volume}; stop VM and flush locks manually",
                        lock.id, lock.address
                    )));
                }
                tracing::info!(vm = rescue.name, %volume, lock = lock.id, "freeing a lock of the dead node");
                storage.break_lock(volume, &lock).await?;
            }
        }
        Ok(())
    }

    async fn write_rescue(&self, victim: &NodeRecord, rescue: &Rescue) -> Outcome {
        match &rescue.way {
            Way::Start(to) | Way::Stay(to) => {
                let changes = |record: &VmRecord| runs_on(record, &victim.name, to);
                self.write_vm(victim, rescue, changes).await.unwrap_or(Outcome::Placed(to.clone()))
            }
            Way::Wait(why) => {
                let changes = |_: &VmRecord| vec![VmChange::State(VmState::Stop), VmChange::Autostart(true)];
                self.write_vm(victim, rescue, changes).await.unwrap_or(Outcome::Stranded(why.to_string()))
            }
        }
    }

    async fn fail(&self, victim: &NodeRecord, rescue: &Rescue, why: String) -> Outcome {
        tracing::error!(vm = rescue.name, why, "the VM cannot be recovered");
        let changes =
            |_: &VmRecord| vec![VmChange::State(VmState::Fail), VmChange::FailedReason(why.clone())];
        self.write_vm(victim, rescue, changes).await.unwrap_or(Outcome::Stranded(why.clone()))
    }

    /// Writes to the VM's record if it is as it was planned on, and its node still fenced. `None` if it was
    /// written.
    async fn write_vm(
        &self,
        victim: &NodeRecord,
        rescue: &Rescue,
        changes: impl Fn(&VmRecord) -> Vec<VmChange> + Send + Sync,
    ) -> Option<Outcome> {
        let decide = |cluster: &Cluster| {
            let is_fenced = |record: &&Arc<NodeRecord>| record.daemon_state == DaemonState::Fenced;
            cluster.nodes.get(&victim.name).filter(is_fenced).ok_or(Moot)?;
            let again = fence::rescues(cluster, &victim.name);
            let is_lost = again.iter().any(|other| other.vm == rescue.vm);
            let record = cluster.vms.get(&rescue.vm).filter(|_| is_lost).ok_or(Moot)?;
            let mut written = Changes::new();
            written.expect(Expect::NodeDaemon(victim.name.clone()));
            written.expect(Expect::VmState(rescue.vm)).expect(Expect::VmNode(rescue.vm));
            for change in changes(record) {
                written.vm(rescue.vm, change);
            }
            Ok((written, ()))
        };
        match self.shared.store.change(decide).await {
            Ok(()) => None,
            Err(ChangeError::Refused(Moot)) => Some(Outcome::Moot),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    vm = rescue.name,
                    error,
                    "the VM's record could not be written; it is tried again"
                );
                Some(Outcome::Later)
            }
        }
    }

    /// Says that the node has no VMs any more, and forgets its figures.
    async fn conclude(&self, node: &NodeName) -> bool {
        let decide = |cluster: &Cluster| {
            let still = |record: &&Arc<NodeRecord>| {
                record.daemon_state == DaemonState::Fenced && record.domain_state == DomainState::FenceFlush
            };
            cluster.nodes.get(node).filter(still).ok_or(Moot)?;
            let mut changes = Changes::new();
            changes.expect(Expect::NodeDaemon(node.clone())).expect(Expect::NodeDomain(node.clone()));
            changes.node(node, NodeChange::Domain(DomainState::Flushed));
            Ok((changes, ()))
        };
        let nothing = vec![
            Report::Running(node.clone(), Vec::new()),
            Report::WorkingOn(node.clone(), Vec::new()),
            Report::Figures(node.clone(), NodeFigures::default()),
            Report::NodeHealth(node.clone(), None),
        ];
        match self.shared.store.report(nothing).await {
            Ok(()) => self.write(node, decide).await,
            Err(error) => {
                tracing::warn!(%node, %error, "the figures of the dead node could not be cleared");
                false
            }
        }
    }

    async fn power_on(&self, record: &NodeRecord) -> Ended {
        let node = &record.name;
        let Some(bmc) = self.bmc(node) else { return Ended::Later };
        if let Err(error) = self.shared.ports.power.switch_on(&bmc).await {
            tracing::error!(%node, %error, "the fenced node could not be switched on again; it is tried again");
            return Ended::Later;
        }
        tracing::info!(%node, "the fenced node was switched on again");
        let mut note = self.note_of(record);
        note.power = PowerAfter::SwitchedOn;
        self.note(node, note).await;
        Ended::Done
    }

    /// Lets an operator know.
    async fn tell(&self, node: &NodeName, note: &FenceNote) {
        let list = |what: &str, names: &[String]| match names {
            [] => String::new(),
            names => format!(". {what}: {}", names.join(", ")),
        };
        let message = format!(
            "node {node} was fenced by {}: {}{}{}. When it is well again, `pvc node ready {node}`",
            note.by,
            note.proof,
            list("VMs started elsewhere", &note.recovered),
            list("VMs that wait for a place", &note.stranded),
        );
        faults::raise(&self.shared, &fault_id("NODE_FENCED", node.as_str()), &message).await;
    }

    /// Whether it was written, or is no longer called for.
    async fn write(
        &self,
        node: &NodeName,
        decide: impl Fn(&Cluster) -> Result<(Changes, ()), Moot> + Send + Sync,
    ) -> bool {
        match self.shared.store.change(decide).await {
            Ok(()) | Err(ChangeError::Refused(Moot)) => true,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(%node, error, "the dead node's record could not be written; it is tried again");
                false
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

    /// What is recorded of this fence, to be added to.
    fn note_of(&self, record: &NodeRecord) -> FenceNote {
        let begun = |now: &Arc<NodeRecord>| now.fence.clone();
        let note = self.shared.store.view().nodes.get(&record.name).and_then(begun);
        FenceNote { by: self.name(), ..note.unwrap_or_default() }
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

/// What became of one VM.
enum Outcome {
    Placed(NodeName),
    Stranded(String),
    /// Somebody else has decided about it meanwhile.
    Moot,
    Later,
}

/// Why a volume's locks could not be freed.
enum Locked {
    /// Somebody has it who is not known to be dead.
    Foreign(String),
    Unknown(StorageError),
}

impl From<StorageError> for Locked {
    fn from(error: StorageError) -> Self {
        Locked::Unknown(error)
    }
}

/// A step that did not come to an end, in the words of its kind.
fn late(step: &Step) -> Ended {
    match step {
        Step::AskPower => Ended::Heard(None),
        Step::CutPower { .. } => Ended::NotCutOff,
        _ => Ended::Later,
    }
}

/// Whether a node that is cut off from the store gives up the primary role by itself, well before others
/// take it for dead. Older peers keep their addresses until somebody powers them off.
fn lets_go_by_itself(record: &NodeRecord) -> bool {
    record.hypervisor.is_some()
}

/// Takes the primary role from a dead node, so that another can have it.
fn take_role(cluster: &Cluster, record: &NodeRecord, changes: &mut Changes) {
    if record.role == NodeRole::Coordinator && record.coordinator_state != CoordinatorState::Secondary {
        changes.node(&record.name, NodeChange::Coordinator(CoordinatorState::Secondary));
    }
    if cluster.config.primary.as_ref() == Some(&record.name) {
        changes.expect(Expect::Primary);
        changes.config(ConfigChange::Primary(None));
    }
}

/// It is to run on node `to`, and to come home later.
fn runs_on(record: &VmRecord, victim: &NodeName, to: &NodeName) -> Vec<VmChange> {
    let home = record.last_node.as_ref().unwrap_or(victim);
    let last_node = (home != to).then(|| home.clone());
    vec![VmChange::State(VmState::Start), VmChange::Node(to.clone()), VmChange::LastNode(last_node)]
}
