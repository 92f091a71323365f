//! The kinds of jobs.

mod device;
mod locks;

use std::sync::Arc;

use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_model::job::{JobVm, JobWork, NotUnderstood};
use pvc_model::vm::VmRecord;
use pvc_ports::{DeviceChange, Hypervisor, HypervisorError, Storage, StorageError};
use pvc_store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::progress::Progress;

/// What a job works with.
#[derive(Clone)]
pub(crate) struct Tools {
    pub node: NodeName,
    pub store: Store,
    pub hypervisor: Arc<dyn Hypervisor>,
    pub storage: Arc<dyn Storage>,
}

/// Why a job did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JobError {
    #[error(transparent)]
    NotUnderstood(#[from] NotUnderstood),
    #[error("VM `{vm}` does not exist")]
    NoVm { vm: String },
    #[error(
        "VM `{vm}` is in state `{state}`; its locks can be flushed in `stop`, `disable`, `fail` \
         and `mirror`"
    )]
    NotOff { vm: String, state: String },
    #[error(
        "VM `{vm}` still runs on node `{node}`; breaking the locks of a running VM destroys its \
         data"
    )]
    StillRuns { vm: String, node: NodeName },
    #[error("VM `{vm}` does not run on node `{node}`")]
    NotHere { vm: String, node: NodeName },
    #[error("the device cannot be used: {why}")]
    BadDevice { why: String },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Hypervisor(#[from] HypervisorError),
    #[error("it was cancelled")]
    Cancelled,
}

/// What a job is given while it runs.
pub(crate) struct Run<'a> {
    pub progress: &'a Progress,
    pub cancelled: &'a CancellationToken,
}

impl Run<'_> {
    /// Between two steps: the place where a job may be stopped without leaving half a step.
    pub fn may_go_on(&self) -> Result<(), JobError> {
        if self.cancelled.is_cancelled() { Err(JobError::Cancelled) } else { Ok(()) }
    }
}

/// The VM that a job is about, whatever it is called by now.
fn find<'a>(vm: &JobVm, view: &'a Cluster) -> Result<&'a Arc<VmRecord>, JobError> {
    vm.record(view).ok_or_else(|| JobError::NoVm { vm: vm.name.clone() })
}

/// Does a job. Returns what it says at its end.
pub(crate) async fn run(tools: &Tools, work: &JobWork, run: Run<'_>) -> Result<String, JobError> {
    match work {
        JobWork::FlushLocks { vm } => locks::flush(tools, vm, run).await,
        JobWork::AttachDevice { vm, xml } => {
            device::change(tools, vm, xml, run, DeviceChange::Attach).await
        }
        JobWork::DetachDevice { vm, xml } => {
            device::change(tools, vm, xml, run, DeviceChange::Detach).await
        }
        JobWork::Other { why, .. } => Err(why.clone().into()),
    }
}
