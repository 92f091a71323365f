//! Plugs a device into a running VM, or pulls it out.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pvc_domain::{device_for_host, device_summary};
use pvc_model::domain::DiskSource;
use pvc_model::storage::VolumeId;
use pvc_ports::{Attachment, DeviceChange};

use super::{JobError, Run, Tools};

pub(crate) async fn change(tools: &Tools, run: Run<'_>, change: DeviceChange) -> Result<String, JobError> {
    let device = run.argument("xml")?;
    let view = tools.store.view();
    let record = run.vm(&view)?;
    if !tools.hypervisor.guests().await?.contains_key(&record.uuid) {
        return Err(JobError::NotHere { vm: record.name.clone(), node: tools.node.clone() });
    }
    run.may_go_on()?;
    let (doing, done) = match change {
        DeviceChange::Attach => ("attaching", "attached"),
        DeviceChange::Detach => ("detaching", "detached"),
    };
    run.progress.step(0, 1, format!("{doing} the device"));
    let files = files(tools, device).await?;
    let device =
        device_for_host(device, &files).map_err(|error| JobError::BadDevice { why: error.to_string() })?;
    tools.hypervisor.device(record.uuid, change, &device).await?;
    Ok(format!("{done} the device at VM \"{}\"", record.name))
}

/// Where the volume that the device uses is a file on this host, if it uses one.
async fn files(tools: &Tools, device: &str) -> Result<BTreeMap<VolumeId, PathBuf>, JobError> {
    let summary = device_summary(device).map_err(|error| JobError::BadDevice { why: error.to_string() })?;
    let mut files = BTreeMap::new();
    if let pvc_domain::Device::Disk(disk) = summary
        && let DiskSource::Volume(volume) = disk.source
        && let Attachment::File { path } = tools.storage.attachment(&volume).await?
    {
        files.insert(volume, path);
    }
    Ok(files)
}
