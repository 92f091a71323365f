//! Starting, stopping and what lies between.

use std::collections::BTreeSet;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::hold::{Held, check_none_held};
use pvc_model::job::{JobId, maker};
use pvc_model::request::{Answer, StateRequest, request_state};
use pvc_model::sriov::{NoFunction, check_functions};
use pvc_model::storage::VolumeId;
use pvc_model::vm::moving::{is_moving, keeps_orders, movers};
use pvc_model::vm::volumes::rivals;
use pvc_model::vm::{VmRecord, VmState};
use pvc_model::{NodeName, Uuid};
use pvc_ports::Clock;
use pvc_store::{ChangeError, Changes, Expect, Store, StoreError, VmChange};

use super::{NodeSilent, STOP_TIME_LIMIT, Silence};
use crate::refusal::{BeingRenamed, Kind, NoVm, Refusal, check_not_being_renamed, find_vm};
use crate::wait::{Unfound, wait_for_node};

/// Outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateOutcome {
    pub uuid: Uuid,
    pub name: String,
    pub answer: Answer,
    /// Warnings for the operator, as clauses.
    pub warnings: Vec<String>,
}

/// Request to a VM.
#[derive(Debug, Clone, Copy)]
pub struct StateAsk {
    pub request: StateRequest,
    /// Also for a mirror, on a crowded node, and without a graceful shutdown.
    pub force: bool,
    /// Whether a start is refused that would take more memory than the VM's node has.
    pub refuse_memory_overcommit: bool,
}

impl StateAsk {
    pub fn new(request: StateRequest, force: bool) -> Self {
        StateAsk { request, force, refuse_memory_overcommit: false }
    }
}

/// A node that has not the memory for all VMs that are to run there, in MiB.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "node `{node}` has {has_mib} MiB of memory, and the VMs that are to run there may take \
     {wanted_mib} MiB: its kernel \
     ends guests when there is no more"
)]
pub struct Crowding {
    pub node: NodeName,
    pub has_mib: u64,
    pub wanted_mib: u64,
}

/// A volume that one guest may use at a time, and that another VM uses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("volume `{volume}` is in use by VM `{other}`, which is in state `{state}`")]
pub struct VolumeInUse {
    pub volume: VolumeId,
    pub other: String,
    pub state: VmState,
}

impl VolumeInUse {
    pub fn hint(&self) -> String {
        format!(
            "shut VM `{}` down first; `<shareable/>` in both XMLs says that both may write the \
             volume at once",
            self.other
        )
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateRefusal {
    #[error(transparent)]
    NoVm(#[from] NoVm),
    #[error(transparent)]
    BeingRenamed(#[from] BeingRenamed),
    #[error("VM `{vm}` cannot be {done}: {why}", done = .request.participle())]
    Request { vm: String, request: StateRequest, why: pvc_model::request::Refusal },
    /// Lifted by force.
    #[error(
        "VM `{vm}` cannot be {done}: it is being made by task `{job}`",
        done = .request.participle()
    )]
    BeingMade { vm: String, request: StateRequest, job: JobId },
    #[error("VM `{vm}` cannot be started: its domain XML cannot be read: {why}")]
    Unreadable { vm: String, why: String },
    #[error("VM `{vm}` cannot be started: its {used}")]
    VolumeInUse { vm: String, used: VolumeInUse },
    #[error("VM `{vm}` cannot be started: {held}")]
    VolumeHeld { vm: String, held: Held },
    #[error("VM `{vm}` cannot be started: {why}")]
    Function { vm: String, why: NoFunction },
    #[error("VM `{vm}` cannot be started: it is assigned to no node")]
    Homeless { vm: String },
    #[error("VM `{vm}` cannot be started: {crowding}")]
    Crowded { vm: String, crowding: Crowding },
    #[error(
        "VM `{vm}` cannot be stopped while it is being moved: node `{node}` has a part in it, \
         runs PVC 1.0.3, and would not keep to it"
    )]
    MovedByLegacyPeer { vm: String, node: NodeName },
    #[error("VM `{vm}` was not disabled: it is in state `{state}` now, not `stop`")]
    StateChanged { vm: String, state: VmState },
    #[error("VM `{vm}` was not disabled: it did not stop within {seconds} s")]
    TooSlow { vm: String, seconds: u64 },
    #[error("the node of VM `{vm}` has not ended its guest within {seconds} s")]
    NotEnded { vm: String, seconds: u64 },
    #[error(transparent)]
    NodeSilent(#[from] NodeSilent),
}

impl Refusal for StateRefusal {
    fn kind(&self) -> Kind {
        match self {
            StateRefusal::NoVm(error) => error.kind(),
            StateRefusal::TooSlow { .. } | StateRefusal::NotEnded { .. } => Kind::Unavailable,
            _ => Kind::Conflict,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            StateRefusal::NoVm(error) => error.hint(),
            StateRefusal::BeingRenamed(error) => error.hint(),
            StateRefusal::Request { why, .. } => Some(why.hint().to_owned()),
            StateRefusal::BeingMade { job, .. } => Some(format!(
                "wait for it, or end it, which removes the VM with its volumes: `pvc task cancel \
                 {job}`"
            )),
            StateRefusal::Unreadable { vm, .. } => {
                Some(format!("`pvc vm modify {vm} FILE` replaces the XML"))
            }
            StateRefusal::VolumeHeld { held, .. } => Some(held.hint()),
            StateRefusal::Function { why, .. } => Some(why.hint()),
            StateRefusal::VolumeInUse { used, .. } => Some(used.hint()),
            StateRefusal::Homeless { vm } => Some(format!("`pvc vm move {vm}` assigns a node")),
            StateRefusal::Crowded { vm, .. } => Some(format!(
                "`pvc vm move {vm}` finds another node; with `--force` it is started \
                              all the same"
            )),
            StateRefusal::MovedByLegacyPeer { .. } => Some(
                "stop it when it has arrived and is in state `start`; with `--force` it is asked \
                 for now and may be lost"
                    .to_owned(),
            ),
            StateRefusal::StateChanged { .. } => Some(
                "somebody else asked for another state \
                                                 meanwhile"
                    .to_owned(),
            ),
            StateRefusal::TooSlow { vm, .. } => {
                Some(format!("`pvc vm disable --force {vm}` pulls the plug"))
            }
            StateRefusal::NotEnded { vm, .. } => Some(format!(
                "the VM is in state `stop`, and is ended as soon as its node answers; look at \
                 the node that `pvc vm info {vm}` names, and disable the VM then"
            )),
            StateRefusal::NodeSilent(error) => Some(error.hint()),
        }
    }
}

/// Asks for a state of VM `vm`. Nodes do the rest.
///
/// After an answer [`Answer::ThenDisable`] or [`Answer::AwaitStopThenDisable`], [`finish_disable`]
/// must follow: what is written here stops the VM.
pub async fn set_state(
    store: &Store,
    vm: &str,
    ask: StateAsk,
) -> Result<StateOutcome, ChangeError<StateRefusal>> {
    let plan = StatePlan::new(store, vm, ask).await?;
    store.change(|cluster| plan.decide(cluster)).await
}

/// Request to a VM, with what no view of the cluster tells of it.
pub struct StatePlan {
    pub(super) vm: String,
    ask: StateAsk,
    ours: Option<BTreeSet<NodeName>>,
}

impl StatePlan {
    /// Asks the store what it has to be asked.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn new(store: &Store, vm: &str, ask: StateAsk) -> Result<StatePlan, StoreError> {
        let ours = movers_to_ask(store, vm, ask).await?;
        Ok(StatePlan { vm: vm.to_owned(), ask, ours })
    }

    /// The changes that ask for the state, if it may be asked for.
    ///
    /// # Errors
    /// Whatever forbids it.
    pub(super) fn decide(
        &self,
        cluster: &Cluster,
    ) -> Result<(Changes, StateOutcome), StateRefusal> {
        check_not_being_made(cluster, &self.vm, self.ask)?;
        decide(cluster, &self.vm, self.ask, self.ours.as_ref())
    }
}

/// Predicts [`set_state`] on the present view: its refusal, or its answer.
pub async fn check_state(
    store: &Store,
    vm: &str,
    ask: StateAsk,
) -> Result<StateOutcome, ChangeError<StateRefusal>> {
    let decided = StatePlan::new(store, vm, ask).await?.decide(&store.view());
    decided.map(|(_, outcome)| outcome).map_err(ChangeError::Refused)
}

/// Whether no task makes the VM, which knows by itself what comes after: a VM with another state is
/// the task's no more, and its script would go on beside the guest.
fn check_not_being_made(cluster: &Cluster, vm: &str, ask: StateAsk) -> Result<(), StateRefusal> {
    let record = find_vm(cluster, vm)?;
    match maker(cluster, record).filter(|_| !ask.force) {
        None => Ok(()),
        Some(job) => {
            let (vm, request, job) = (record.name.clone(), ask.request, job.clone());
            Err(StateRefusal::BeingMade { vm, request, job })
        }
    }
}

/// The changes that ask for the VM's start, as [`set_state`] does, if it may be started. The task
/// that makes it may ask so, too.
///
/// # Errors
/// Whatever keeps it from being started.
pub fn start_changes(
    cluster: &Cluster,
    vm: Uuid,
    refuse_memory_overcommit: bool,
) -> Result<Changes, StateRefusal> {
    let ask = StateAsk { refuse_memory_overcommit, ..StateAsk::new(StateRequest::Start, false) };
    decide(cluster, &vm.to_string(), ask, None).map(|(changes, _)| changes)
}

async fn movers_to_ask(
    store: &Store,
    vm: &str,
    ask: StateAsk,
) -> Result<Option<BTreeSet<NodeName>>, StoreError> {
    match ask.request == StateRequest::Stop && !ask.force {
        true => our_movers(store, vm).await,
        false => Ok(None),
    }
}

fn decide(
    cluster: &Cluster,
    vm: &str,
    StateAsk { request, force, refuse_memory_overcommit }: StateAsk,
    ours: Option<&BTreeSet<NodeName>>,
) -> Result<(Changes, StateOutcome), StateRefusal> {
    let record = find_vm(cluster, vm)?;
    if let Some(ours) = ours {
        keeps_orders(cluster, record, |node| ours.contains(node))
            .map_err(|node| StateRefusal::MovedByLegacyPeer { vm: record.name.clone(), node })?;
    }
    let answer = request_state(&record.state, request, force)
        .map_err(|why| StateRefusal::Request { vm: record.name.clone(), request, why })?;
    let answer = match answer {
        // Its node has still to pull the plug, and would leave a disabled guest alone.
        Answer::Write(VmState::Disable)
            if record.state == VmState::Stop && super::may_run(cluster, record.uuid) =>
        {
            Answer::AwaitStopThenDisable
        }
        answer => answer,
    };
    let waits = matches!(answer, Answer::ThenDisable(_) | Answer::AwaitStopThenDisable);
    if let Some(node) = super::silent_keeper(cluster, record).filter(|_| waits) {
        return Err(NodeSilent::new(&record.name, node).into());
    }
    let mut changes = Changes::new();
    // What a start needs is asked before a guest that is well is ended.
    if request == StateRequest::Start || answer == Answer::Write(VmState::Restart) {
        check_start(cluster, record, &mut changes)?;
        check_functions_here(cluster, record)?;
    }
    if request == StateRequest::Start && record.node.is_none() {
        return Err(StateRefusal::Homeless { vm: record.name.clone() });
    }
    if let Answer::Write(state) | Answer::ThenDisable(state) = &answer {
        changes.vm(record.uuid, VmChange::State(state.clone()));
        // What became of an earlier order is not what becomes of this one.
        if record.not_restarted().is_some() {
            changes.vm(record.uuid, VmChange::FailedReason(String::new()));
        }
    }
    if record.autostart && ends_guest(request) {
        changes.vm(record.uuid, VmChange::Autostart(false));
    }
    let begins = request == StateRequest::Start && !is_up(record);
    let crowding = crowding(cluster, record).filter(|_| begins);
    if let Some(crowding) = crowding.clone().filter(|_| refuse_memory_overcommit && !force) {
        return Err(StateRefusal::Crowded { vm: record.name.clone(), crowding });
    }
    if begins && refuse_memory_overcommit {
        // Of two that are started at once, the later one decides again.
        changes.expect(Expect::Placements);
    }
    let hint = |crowding| format!("{crowding} (`pvc vm move {}` finds another node)", record.name);
    let warnings = crowding.map(hint).into_iter().collect();
    Ok((changes, StateOutcome { uuid: record.uuid, name: record.name.clone(), answer, warnings }))
}

/// Whether the VM's node has not the memory for all VMs that are to run there with this one.
fn crowding(cluster: &Cluster, record: &VmRecord) -> Option<Crowding> {
    let node = cluster.nodes.get(record.node.as_ref()?)?;
    let has_mib = node.figures.memory_total_mib;
    let here = cluster.vms.values().filter(|vm| vm.is_assigned_to(&node.name));
    let wanted = here.filter(|vm| vm.uuid == record.uuid || is_up(vm)).map(|vm| vm.memory_mib());
    let wanted_mib = wanted.fold(0, u64::saturating_add);
    // A node that has never said how much it has is no reason to warn.
    (has_mib > 0 && wanted_mib > has_mib).then(|| Crowding {
        node: node.name.clone(),
        has_mib,
        wanted_mib,
    })
}

/// Whether the VM is to be off from then on: what a flush or a fence noted for later must not start
/// it again.
fn ends_guest(request: StateRequest) -> bool {
    matches!(request, StateRequest::Shutdown | StateRequest::Stop | StateRequest::Disable)
}

/// Nodes of ours among those that move the VM; `None` if nobody moves it.
pub(super) async fn our_movers(
    store: &Store,
    vm: &str,
) -> Result<Option<BTreeSet<NodeName>>, StoreError> {
    let view = store.view();
    let Some(record) = view.vm(vm).filter(|record| is_moving(&record.state)) else {
        return Ok(None);
    };
    let mut ours = BTreeSet::new();
    for node in movers(&view, record) {
        if store.has_our_daemon(node).await? {
            ours.insert(node.clone());
        }
    }
    Ok(Some(ours))
}

/// Whether the VM can be started, on whatever node.
pub(super) fn check_start(
    cluster: &Cluster,
    record: &VmRecord,
    changes: &mut Changes,
) -> Result<(), StateRefusal> {
    if let Err(why) = &record.domain {
        return Err(StateRefusal::Unreadable { vm: record.name.clone(), why: why.clone() });
    }
    check_not_being_renamed(cluster, record)?;
    check_none_held(cluster, record)
        .map_err(|held| StateRefusal::VolumeHeld { vm: record.name.clone(), held })?;
    if record.named_volumes().next().is_some() {
        changes.expect(Expect::Holds);
    }
    check_volumes_free(cluster, rivals(cluster, record), changes)
        .map_err(|used| StateRefusal::VolumeInUse { vm: record.name.clone(), used })
}

/// Whether no other VM has an SR-IOV function that the VM's interfaces take on its node.
fn check_functions_here(cluster: &Cluster, record: &VmRecord) -> Result<(), StateRefusal> {
    let node = record.node.as_ref().and_then(|node| cluster.nodes.get(node));
    let (Some(node), Ok(domain)) = (node, &record.domain) else { return Ok(()) };
    check_functions(cluster, node, record.uuid, &domain.nics)
        .map_err(|why| StateRefusal::Function { vm: record.name.clone(), why })
}

/// Whether none of the `rivals` uses its volume, which only one guest may use at a time. The guest
/// would find it locked, and QEMU does not know by whom.
pub(crate) fn check_volumes_free<'a>(
    cluster: &'a Cluster,
    rivals: impl Iterator<Item = (&'a VmRecord, &'a VolumeId)>,
    changes: &mut Changes,
) -> Result<(), VolumeInUse> {
    for (other, volume) in rivals {
        if is_up(other) || super::runner(cluster, other.uuid).is_some() {
            let (other, state) = (other.name.clone(), other.state.clone());
            return Err(VolumeInUse { volume: volume.clone(), other, state });
        }
        // Of two that are started at once, the later one decides again.
        changes.expect(Expect::VmState(other.uuid));
    }
    Ok(())
}

fn is_up(record: &VmRecord) -> bool {
    use VmState::{Migrate, MigrateLive, Restart, Shutdown, Start};
    matches!(record.state, Start | Restart | Shutdown | Migrate | MigrateLive)
}

/// Waits until the VM has stopped, at most for `time_limit` if it was asked to shut down and a
/// minute if its plug is to be pulled, and disables it. A VM that somebody starts again meanwhile
/// is left to them.
pub async fn finish_disable(
    store: &Store,
    clock: &dyn Clock,
    outcome: &StateOutcome,
    time_limit: Duration,
) -> Result<(), ChangeError<StateRefusal>> {
    if !matches!(outcome.answer, Answer::ThenDisable(_) | Answer::AwaitStopThenDisable) {
        return Ok(());
    }
    let uuid = outcome.uuid;
    // Nobody waits for the guest of a VM in `stop` to shut down: its plug is pulled.
    let is_stopped = || store.view().vms.get(&uuid).is_some_and(|vm| vm.state == VmState::Stop);
    let time_limit = match outcome.answer {
        Answer::ThenDisable(VmState::Stop) => time_limit.min(STOP_TIME_LIMIT),
        Answer::AwaitStopThenDisable if is_stopped() => time_limit.min(STOP_TIME_LIMIT),
        _ => time_limit,
    };
    let came_to_rest = |cluster: &Cluster| {
        let Some(record) = cluster.vms.get(&uuid) else { return Some(()) };
        let on_its_way = match record.state {
            // The plug may be pulled a moment after the state is written, and a silent node's not
            // at all.
            VmState::Stop => super::may_run(cluster, uuid),
            VmState::Shutdown => true,
            _ => false,
        };
        (!on_its_way).then_some(())
    };
    let runs_on = |cluster: &Cluster| super::runner(cluster, uuid).map(|node| node.name.clone());
    let rested = wait_for_node(store, clock, time_limit, runs_on, came_to_rest).await;
    if let Err(unfound) = rested {
        let (vm, seconds) = (outcome.name.clone(), time_limit.as_secs());
        let why = match (super::silent_runner(&store.view(), uuid), unfound) {
            (Some(node), _) => NodeSilent::new(&vm, node).into(),
            (None, Unfound::Silent(node)) => {
                NodeSilent { vm, node, silence: Silence::Unexplained }.into()
            }
            (None, Unfound::TooSlow) if is_stopped() => StateRefusal::NotEnded { vm, seconds },
            (None, Unfound::TooSlow) => StateRefusal::TooSlow { vm, seconds },
        };
        return Err(ChangeError::Refused(why));
    }
    store.change(|cluster| Ok((disable_stopped(cluster, outcome)?, ()))).await
}

/// Decides to disable a VM that has stopped.
fn disable_stopped(cluster: &Cluster, outcome: &StateOutcome) -> Result<Changes, StateRefusal> {
    let (uuid, vm) = (outcome.uuid, outcome.name.clone());
    let record = cluster.vms.get(&uuid).ok_or(NoVm { vm: vm.clone() })?;
    let mut changes = Changes::new();
    match &record.state {
        VmState::Disable => {}
        VmState::Stop | VmState::Fail => {
            changes.vm(uuid, VmChange::State(VmState::Disable));
            // A flush may have shut it down before the order was seen.
            if record.autostart {
                changes.vm(uuid, VmChange::Autostart(false));
            }
        }
        state => return Err(StateRefusal::StateChanged { vm, state: state.clone() }),
    }
    Ok(changes)
}
