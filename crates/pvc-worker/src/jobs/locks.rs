//! Frees the locks on a VM's volumes, after an operator made sure that nobody writes to them.

use std::sync::Arc;

use async_trait::async_trait;
use pvc_model::NodeName;
use pvc_model::job::JobVm;
use pvc_model::node::{DaemonState, NodeRecord};
use pvc_model::request::may_flush_locks;
use pvc_model::storage::VolumeId;
use pvc_model::vm::{VmRecord, VmState};
use pvc_ops::{Kind as RefusalKind, Refusal};
use pvc_ports::{HypervisorError, StorageError, VolumeLock};
use pvc_store::StoreError;
use serde::{Deserialize, Serialize};

use super::{Removed, find, name, text};
use crate::context::Context;
use crate::kind::Kind;

pub(crate) struct FlushLocks {
    pub vm: JobVm,
}

/// Freeing the locks on one volume.
#[derive(Serialize, Deserialize)]
pub(crate) struct Flush {
    #[serde(with = "text::volume")]
    volume: VolumeId,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum FlushError {
    #[error(transparent)]
    Removed(#[from] Removed),
    #[error(
        "VM `{vm}` is in state `{state}`; its locks can be flushed in `stop`, `disable`, `fail` \
         and `mirror`"
    )]
    NotOff { vm: String, state: VmState },
    #[error(
        "VM `{vm}` still runs on node `{node}`; breaking the locks of a running VM destroys its \
         data"
    )]
    StillRuns { vm: String, node: NodeName },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Hypervisor(#[from] HypervisorError),
}

impl Refusal for FlushError {
    fn kind(&self) -> RefusalKind {
        match self {
            FlushError::Removed(_) => RefusalKind::NotFound,
            FlushError::NotOff { .. } | FlushError::StillRuns { .. } => RefusalKind::Conflict,
            _ => RefusalKind::Unavailable,
        }
    }
}

#[async_trait]
impl Kind for FlushLocks {
    type Step = Flush;
    /// Number of locks that were freed.
    type Fact = usize;
    type Error = FlushError;

    async fn plan(&self, context: &Context) -> Result<Vec<Flush>, FlushError> {
        let record = self.off(context).await?;
        Ok(record.volumes().into_iter().map(|volume| Flush { volume }).collect())
    }

    fn doing(&self, step: &Flush) -> String {
        format!("freeing the locks on volume {}", step.volume)
    }

    /// Freeing what is free is harmless, and every lock is freed for itself: it is done again.
    async fn look(&self, _: &Context, _: &Flush) -> Result<Option<usize>, FlushError> {
        Ok(None)
    }

    async fn run(&self, context: &Context, step: &Flush) -> Result<usize, FlushError> {
        // In this order: somebody may start the VM at any moment, and the lock of a guest that was
        // started since is not among these.
        let locks = locks(context, &step.volume).await?;
        self.off(context).await?;
        free(context, &step.volume, &locks).await
    }

    /// Undoes nothing: what was freed stays so, its holder was dead.
    async fn undo(&self, _: &Context, _: &Flush) -> Result<(), FlushError> {
        Ok(())
    }

    fn result(&self, context: &Context, facts: &[usize]) -> String {
        let (freed, volumes): (usize, usize) = (facts.iter().sum(), facts.len());
        let name = name(&self.vm, &context.tools.store.view());
        format!("freed {freed} locks on {volumes} volumes of VM \"{name}\"")
    }
}

impl FlushLocks {
    /// The VM, which is off: by its record, by what living nodes say they run, and by the
    /// hypervisor here. A guest that was told to stop a moment ago still writes.
    async fn off(&self, context: &Context) -> Result<Arc<VmRecord>, FlushError> {
        let tools = &context.tools;
        // This decides over somebody's data: read it now, not from a view that may lag.
        let view = tools.store.fresh().await?;
        let record = find(&self.vm, &view)?;
        let vm = || record.name.clone();
        if !may_flush_locks(&record.state) {
            return Err(FlushError::NotOff { vm: vm(), state: record.state.clone() });
        }
        // What a silent node last said it ran is what the operator has judged.
        let runs = |node: &&Arc<NodeRecord>| {
            node.daemon_state == DaemonState::Run && node.running.contains(&record.uuid)
        };
        let elsewhere = view.nodes.values().find(runs).map(|node| node.name.clone());
        let is_here = tools.hypervisor.guests().await?.contains_key(&record.uuid);
        match is_here.then(|| tools.node.clone()).or(elsewhere) {
            Some(node) => Err(FlushError::StillRuns { vm: vm(), node }),
            None => Ok(record.clone()),
        }
    }
}

/// The locks on `volume`. A volume that is not there has none.
async fn locks(context: &Context, volume: &VolumeId) -> Result<Vec<VolumeLock>, FlushError> {
    match context.tools.storage.locks(volume).await {
        Err(StorageError::NoVolume { .. } | StorageError::NoPool { .. }) => {
            context.log(format!("volume {volume} does not exist"));
            Ok(Vec::new())
        }
        locks => Ok(locks?),
    }
}

/// Frees these locks on `volume`, and returns how many they are.
async fn free(
    context: &Context,
    volume: &VolumeId,
    locks: &[VolumeLock],
) -> Result<usize, FlushError> {
    for lock in locks {
        context.tools.storage.break_lock(volume, lock).await?;
        context.log(format!("freed the lock that {} held on volume {volume}", lock.address));
    }
    Ok(locks.len())
}
