//! Frees the locks on a VM's volumes, after an operator made sure that nobody writes to them.

use pvc_model::storage::VolumeId;
use pvc_model::vm::VmState;
use pvc_ports::StorageError;

use super::{JobError, Run, Tools};

pub(crate) async fn flush(tools: &Tools, run: Run<'_>) -> Result<String, JobError> {
    let vm = run.argument("domain")?;
    // The state decides over somebody's data: read it now, not from a view that may lag.
    let view = tools.store.fresh().await?;
    let record = view.vm(vm).ok_or_else(|| JobError::NoVm { vm: vm.to_owned() })?;
    if !matches!(record.state, VmState::Stop | VmState::Disable | VmState::Fail | VmState::Mirror) {
        return Err(JobError::NotOff { vm: record.name.clone(), state: record.state.to_string() });
    }
    let volumes = record.volumes();
    let total = volumes.len() as u32 + 1;
    let mut freed = 0;
    for (done, volume) in (0_u32..).zip(&volumes) {
        run.may_go_on()?;
        run.progress.step(done, total, format!("freeing the locks on volume {volume}"));
        freed += free(tools, &run, volume).await?;
    }
    Ok(format!("freed {freed} locks on {} volumes of VM \"{}\"", volumes.len(), record.name))
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
