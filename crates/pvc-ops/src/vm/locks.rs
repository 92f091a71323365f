//! Breaking the locks on a VM's volumes that a dead host left behind.

use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_model::hold::Held;
use pvc_model::job::{JobSpec, JobVm, JobWork};
use pvc_model::node::DaemonState;
use pvc_model::storage::VolumeId;
use pvc_model::vm::locks::{Kept, Moment, may_flush};
use pvc_model::vm::{VmRecord, VmState};
use pvc_ports::{Clock, Random};
use pvc_store::{ChangeError, Changes, Store};

use crate::job::{JobRequest, submit, substitute};
use crate::refusal::{BeingRenamed, Homeless, Kind, NoVm, Refusal, find_vm, node_of};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlushRefusal {
    #[error(transparent)]
    NoVm(#[from] NoVm),
    #[error(
        "VM `{vm}` is in state `{state}`; its locks can be flushed in `stop`, `disable`, `fail` \
         and `mirror`"
    )]
    MayRun { vm: String, state: VmState },
    #[error(
        "VM `{vm}` runs on node `{node}`; breaking the locks of a running VM destroys its data"
    )]
    Runs { vm: String, node: NodeName },
    #[error(
        "node `{node}`, which VM `{vm}` is assigned to, is silent and not proven dead: its guest \
         may run"
    )]
    Silent { vm: String, node: NodeName },
    #[error(
        "node `{node}` is fenced, and no worker of another one knows tasks of kind `{}`",
        JobWork::FLUSH_LOCKS
    )]
    NoSubstitute { node: NodeName },
    #[error(
        "volume `{volume}` of VM `{vm}` is one of VM `{other}`, too, which is not off; breaking \
         its lock may take the disk from its guest"
    )]
    Used { vm: String, volume: VolumeId, other: String },
    #[error(
        "node `{node}` is not proven dead, and has the lock on a volume of VM `{vm}`: something \
         there may use it"
    )]
    HeldBy { vm: String, node: NodeName },
    #[error(transparent)]
    VolumeHeld(#[from] Held),
    #[error(transparent)]
    BeingRenamed(#[from] BeingRenamed),
    #[error(transparent)]
    Homeless(#[from] Homeless),
}

impl Refusal for FlushRefusal {
    fn kind(&self) -> Kind {
        match self {
            FlushRefusal::NoVm(error) => error.kind(),
            _ => Kind::Conflict,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            FlushRefusal::NoVm(error) => error.hint(),
            FlushRefusal::MayRun { vm, .. } => Some(format!("`pvc vm stop {vm}` stops it")),
            FlushRefusal::Runs { vm, node } => Some(format!(
                "`pvc vm stop {vm}` stops it, where `pvcnoded` runs on node `{node}`; if the \
                 server is off for good, `pvc node confirm-off {node}` says so"
            )),
            FlushRefusal::Silent { node, .. } => Some(format!(
                "bring node `{node}` back; `pvc node info {node}` shows why it is not proven dead; \
                 if the server is off for good, `pvc node confirm-off {node}` says so"
            )),
            FlushRefusal::NoSubstitute { .. } => Some(
                "does the worker of another node run, and is its PVC as new as this one? `pvc node \
                 list` shows the versions"
                    .to_owned(),
            ),
            FlushRefusal::Used { vm, volume, other } => Some(format!(
                "`pvc vm stop {other}` stops it; or take the volume out of this one: `pvc vm \
                 volume remove {vm} {volume}`"
            )),
            FlushRefusal::HeldBy { vm, node } => Some(format!(
                "`rbd status` shows who has the volume; if nobody has, `pvc vm move {vm} --target \
                 {node}`: that node frees it when VM `{vm}` is started there, or its locks are \
                 flushed; if its server is off, `pvc node confirm-off {node}` says so"
            )),
            FlushRefusal::VolumeHeld(held) => Some(held.hint()),
            FlushRefusal::BeingRenamed(error) => error.hint(),
            FlushRefusal::Homeless(error) => error.hint(),
        }
    }
}

impl FlushRefusal {
    /// Refusal because the locks of `vm` are kept: before there is a job, and when its worker has
    /// looked again.
    pub fn kept(vm: &VmRecord, kept: Kept) -> Self {
        let (vm, state) = (vm.name.clone(), vm.state.clone());
        match kept {
            Kept::Runs(node) => FlushRefusal::Runs { vm, node },
            Kept::BeingRenamed(to) => BeingRenamed { vm, to }.into(),
            Kept::UsedBy { volume, vm: other } => FlushRefusal::Used { vm, volume, other },
            Kept::HeldBy(node) => FlushRefusal::HeldBy { vm, node },
            Kept::Held(held) => held.into(),
            _ => FlushRefusal::MayRun { vm, state },
        }
    }
}

/// Has the worker of the VM's node flush its locks; if that node is fenced, the worker of another
/// one. The worker looks at the VM again before it does.
pub async fn submit_flush_locks(
    store: &Store,
    clock: &dyn Clock,
    random: &dyn Random,
    vm: &str,
    submitter: &str,
) -> Result<JobSpec, ChangeError<FlushRefusal>> {
    submit(store, clock, random, |cluster| Ok((request(cluster, vm, submitter)?, Changes::new())))
        .await
}

fn request(cluster: &Cluster, vm: &str, submitter: &str) -> Result<JobRequest, FlushRefusal> {
    let record = find_vm(cluster, vm)?;
    may_flush(cluster, record, None, Moment::Before)
        .map_err(|kept| FlushRefusal::kept(record, kept))?;
    check_not_silent(cluster, record, None)?;
    let home = node_of(cluster, record)?;
    let work = JobWork::FlushLocks { vm: JobVm::new(record) };
    let node = match daemon_state(cluster, &home) {
        Some(DaemonState::Fenced) => {
            substitute(cluster, &work).ok_or(FlushRefusal::NoSubstitute { node: home })?
        }
        _ => home,
    };
    let (run_on, submitter) = (node.to_string(), submitter.to_owned());
    Ok(JobRequest { work, run_on, node, submitter })
}

/// Refuses the locks of a VM whose node is `dead`, and not fenced: silence is no proof of death
/// (I3), and nobody sees whether its guest writes. The node `here`, which asks, sees its own
/// guests.
///
/// # Errors
/// That it is so.
pub fn check_not_silent(
    cluster: &Cluster,
    vm: &VmRecord,
    here: Option<&NodeName>,
) -> Result<(), FlushRefusal> {
    let elsewhere = vm.node.as_ref().filter(|node| here != Some(*node));
    match elsewhere.filter(|node| daemon_state(cluster, node) == Some(&DaemonState::Dead)) {
        Some(node) => Err(FlushRefusal::Silent { vm: vm.name.clone(), node: node.clone() }),
        None => Ok(()),
    }
}

fn daemon_state<'a>(cluster: &'a Cluster, node: &NodeName) -> Option<&'a DaemonState> {
    cluster.nodes.get(node).map(|node| &node.daemon_state)
}
