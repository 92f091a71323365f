//! The kinds of jobs.

mod device;
mod locks;

use std::sync::Arc;

use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_model::job::JobSpec;
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
    #[error("no worker of this version knows jobs of the kind `{name}`")]
    UnknownKind { name: String },
    #[error("the job has no argument `{argument}`")]
    MissingArgument { argument: &'static str },
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
    pub spec: &'a JobSpec,
    pub progress: &'a Progress,
    pub cancelled: &'a CancellationToken,
}

impl Run<'_> {
    pub fn argument(&self, argument: &'static str) -> Result<&str, JobError> {
        let found = self.spec.args.iter().find(|(name, _)| name == argument);
        found.map(|(_, value)| value.as_str()).ok_or(JobError::MissingArgument { argument })
    }

    /// The VM that the job is about, whatever it is called by now.
    pub fn vm<'a>(&self, view: &'a Cluster) -> Result<&'a Arc<VmRecord>, JobError> {
        let name = self.argument("domain")?;
        let found = match self.spec.vm {
            Some(uuid) => view.vms.get(&uuid),
            None => view.vm(name),
        };
        found.ok_or_else(|| JobError::NoVm { vm: name.to_owned() })
    }

    /// Between two steps: the place where a job may be stopped without leaving half a step.
    pub fn may_go_on(&self) -> Result<(), JobError> {
        if self.cancelled.is_cancelled() { Err(JobError::Cancelled) } else { Ok(()) }
    }
}

/// Does a job. Returns what it says at its end.
pub(crate) async fn run(tools: &Tools, run: Run<'_>) -> Result<String, JobError> {
    match run.spec.name.as_str() {
        "vm.flush_locks" => locks::flush(tools, run).await,
        "vm.device_attach" => device::change(tools, run, DeviceChange::Attach).await,
        "vm.device_detach" => device::change(tools, run, DeviceChange::Detach).await,
        name => Err(JobError::UnknownKind { name: name.to_owned() }),
    }
}
