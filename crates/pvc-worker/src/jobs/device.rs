//! Plugs a device into a running VM, or pulls it out.

use pvc_domain::{Volumes, device_for_host, device_summary};
use pvc_model::domain::DiskSource;
use pvc_model::job::JobVm;
use pvc_ports::{Attachment, DeviceChange};

use super::{JobError, Run, Tools, find};

pub(crate) async fn change(
    tools: &Tools,
    vm: &JobVm,
    device: &str,
    run: Run<'_>,
    change: DeviceChange,
) -> Result<String, JobError> {
    let view = tools.store.view();
    let record = find(vm, &view)?;
    if !tools.hypervisor.guests().await?.contains_key(&record.uuid) {
        return Err(JobError::NotHere { vm: record.name.clone(), node: tools.node.clone() });
    }
    run.may_go_on()?;
    let (doing, done) = match change {
        DeviceChange::Attach => ("attaching", "attached"),
        DeviceChange::Detach => ("detaching", "detached"),
    };
    run.progress.step(0, 1, format!("{doing} the device"));
    let volumes = volumes(tools, device).await?;
    let device = device_for_host(device, &volumes)
        .map_err(|error| JobError::BadDevice { why: error.to_string() })?;
    tools.hypervisor.device(record.uuid, change, &device).await?;
    Ok(format!("{done} the device at VM \"{}\"", record.name))
}

/// How this host reaches the volume that the device uses, if it uses one.
async fn volumes(tools: &Tools, device: &str) -> Result<Volumes, JobError> {
    let summary =
        device_summary(device).map_err(|error| JobError::BadDevice { why: error.to_string() })?;
    let mut volumes = Volumes::default();
    if let pvc_domain::Device::Disk(disk) = summary
        && let DiskSource::Volume(volume) = disk.source
    {
        match tools.storage.attachment(&volume).await? {
            Attachment::File { path } => _ = volumes.files.insert(volume, path),
            Attachment::Rbd(access) => volumes.rbd = Some(access),
        }
    }
    Ok(volumes)
}
