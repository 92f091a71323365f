//! Frees the locks on a VM's volumes, after an operator made sure that nobody writes to them.

use std::sync::Arc;

use pvc_model::job::JobVm;
use pvc_model::node::{DaemonState, NodeRecord};
use pvc_model::request::may_flush_locks;
use pvc_model::storage::VolumeId;
use pvc_model::vm::VmRecord;
use pvc_ports::StorageError;

use super::{JobError, Run, Tools, find};

pub(crate) async fn flush(tools: &Tools, vm: &JobVm, run: Run<'_>) -> Result<String, JobError> {
    let record = off(tools, vm).await?;
    let volumes = record.volumes();
    let total = volumes.len() as u32 + 1;
    let mut freed = 0;
    for (done, volume) in (0_u32..).zip(&volumes) {
        run.may_go_on()?;
        // Somebody may have started the VM since the last volume.
        off(tools, vm).await?;
        run.progress.step(done, total, format!("freeing the locks on volume {volume}"));
        freed += free(tools, &run, volume).await?;
    }
    Ok(format!("freed {freed} locks on {} volumes of VM \"{}\"", volumes.len(), record.name))
}

/// The VM, which is off: by its record, by what living nodes say they run, and by the hypervisor
/// here. A guest that was told to stop a moment ago still writes.
async fn off(tools: &Tools, vm: &JobVm) -> Result<Arc<VmRecord>, JobError> {
    // This decides over somebody's data: read it now, not from a view that may lag.
    let view = tools.store.fresh().await?;
    let record = find(vm, &view)?;
    if !may_flush_locks(&record.state) {
        return Err(JobError::NotOff { vm: record.name.clone(), state: record.state.to_string() });
    }
    // What a silent node last said it ran is what the operator has judged.
    let runs = |node: &&Arc<NodeRecord>| {
        node.daemon_state == DaemonState::Run && node.running.contains(&record.uuid)
    };
    let elsewhere = view.nodes.values().find(runs).map(|node| node.name.clone());
    let here =
        tools.hypervisor.guests().await?.contains_key(&record.uuid).then(|| tools.node.clone());
    match here.or(elsewhere) {
        Some(node) => Err(JobError::StillRuns { vm: record.name.clone(), node }),
        None => Ok(record.clone()),
    }
}

/// Frees all locks on `volume`. A volume that is not there has none.
async fn free(tools: &Tools, run: &Run<'_>, volume: &VolumeId) -> Result<usize, JobError> {
    let locks = match tools.storage.locks(volume).await {
        Err(StorageError::NoVolume { .. } | StorageError::NoPool { .. }) => {
            run.progress.note(format!("volume {volume} does not exist"));
            return Ok(0);
        }
        locks => locks?,
    };
    for lock in &locks {
        tools.storage.break_lock(volume, lock).await?;
        run.progress.note(format!("freed the lock that {} held on volume {volume}", lock.address));
    }
    Ok(locks.len())
}
