//! Breaking the locks on a VM's volumes that a dead host left behind.

use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_model::job::{JobSpec, JobVm, JobWork};
use pvc_model::vm::locks::{Kept, may_flush};
use pvc_model::vm::{VmRecord, VmState};
use pvc_ports::{Clock, Random};
use pvc_store::{ChangeError, Changes, Store};

use crate::job::{JobRequest, submit};
use crate::refusal::{Kind, NoVm, Refusal, find_vm};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlushRefusal {
    #[error(transparent)]
    NoVm(#[from] NoVm),
    #[error(
        "VM `{vm}` is in state `{state}`; its locks can be flushed in `stop`, `disable`, `fail` \
         and `mirror`"
    )]
    MayRun { vm: String, state: VmState },
    #[error("VM `{vm}` runs on node `{node}`")]
    Runs { vm: String, node: NodeName },
    #[error("VM `{vm}` is assigned to no node")]
    Homeless { vm: String },
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
            FlushRefusal::MayRun { vm, .. } | FlushRefusal::Runs { vm, .. } => Some(format!(
                "`pvc vm stop {vm}` stops it; breaking the locks of a running VM destroys its data"
            )),
            FlushRefusal::Homeless { vm } => Some(format!("`pvc vm move {vm}` assigns a node")),
        }
    }
}

fn check<'a>(cluster: &'a Cluster, vm: &str) -> Result<&'a VmRecord, FlushRefusal> {
    let record = find_vm(cluster, vm)?;
    let vm = || record.name.clone();
    match may_flush(cluster, record, None) {
        Ok(()) => Ok(record),
        Err(Kept::Runs(node)) => Err(FlushRefusal::Runs { vm: vm(), node }),
        Err(_) => Err(FlushRefusal::MayRun { vm: vm(), state: record.state.clone() }),
    }
}

/// Has the worker of the VM's node flush its locks. The worker looks at the VM again before it
/// does.
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
    let record = check(cluster, vm)?;
    let homeless = || FlushRefusal::Homeless { vm: record.name.clone() };
    let node = record.node.clone().ok_or_else(homeless)?;
    let work = JobWork::FlushLocks { vm: JobVm::new(record) };
    let (run_on, submitter) = (node.to_string(), submitter.to_owned());
    Ok(JobRequest { work, run_on, node, submitter })
}
