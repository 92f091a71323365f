//! Plugging devices into running guests, and pulling them out.

use pvc_domain::{Device, DomainError, device_summary};
use pvc_model::Uuid;
use pvc_model::cluster::Cluster;
use pvc_model::domain::{Disk, DiskSource, Nic};
use pvc_model::guest_network::mac::check_macs;
use pvc_model::hold::{Held, check_not_held};
use pvc_model::job::{JobSpec, JobVm, JobWork};
use pvc_model::sriov::vf_of;
use pvc_model::vm::volumes::rivals_for;
use pvc_ports::{Clock, DeviceChange, Random};
use pvc_store::{ChangeError, Changes, Expect, Store};

use crate::job::{JobRequest, submit};
use crate::refusal::{Homeless, Kind, NoVm, Refusal, find_vm, node_of};
use crate::vm::{NicRefusal, VolumeInUse, check_nics, check_volumes_free};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceRefusal {
    #[error(transparent)]
    NoVm(#[from] NoVm),
    #[error("the device's XML cannot be read: {0}")]
    Xml(DomainError),
    #[error(transparent)]
    Nic(#[from] NicRefusal),
    #[error(transparent)]
    Disk(#[from] DiskRefusal),
    #[error(transparent)]
    Homeless(#[from] Homeless),
}

impl Refusal for DeviceRefusal {
    fn kind(&self) -> Kind {
        match self {
            DeviceRefusal::NoVm(error) => error.kind(),
            DeviceRefusal::Xml(_) => Kind::Invalid,
            DeviceRefusal::Nic(error) => error.kind(),
            DeviceRefusal::Disk(error) => error.kind(),
            DeviceRefusal::Homeless(error) => error.kind(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            DeviceRefusal::NoVm(error) => error.hint(),
            DeviceRefusal::Xml(error) => error.hint().map(str::to_owned),
            DeviceRefusal::Nic(error) => Some(error.hint()),
            DeviceRefusal::Disk(error) => error.hint(),
            DeviceRefusal::Homeless(error) => error.hint(),
        }
    }
}

/// Reason why a running guest is not given a volume.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiskRefusal {
    #[error(transparent)]
    Held(#[from] Held),
    #[error(transparent)]
    InUse(#[from] VolumeInUse),
}

impl Refusal for DiskRefusal {
    fn kind(&self) -> Kind {
        Kind::Conflict
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            DiskRefusal::Held(held) => held.hint(),
            DiskRefusal::InUse(used) => used.hint(),
        })
    }
}

/// Refuses to plug a disk into the guest of `vm` with which the VM would not be started: its volume
/// is held, or in use by another VM, where neither shares it (`<shareable/>`). `changes` gets the
/// expectations that this is so when they are written.
///
/// # Errors
/// The first reason.
pub fn check_disk(
    cluster: &Cluster,
    vm: Uuid,
    disk: &Disk,
    changes: &mut Changes,
) -> Result<(), DiskRefusal> {
    let DiskSource::Volume(volume) = &disk.source else { return Ok(()) };
    check_not_held(cluster, volume, None)?;
    changes.expect(Expect::Holds);
    if !disk.shared {
        let own = [volume.clone()].into();
        check_volumes_free(cluster, rivals_for(cluster, vm, own), changes)?;
    }
    Ok(())
}

/// A device of VM `vm`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceAsk {
    pub vm: String,
    pub change: DeviceChange,
    /// Element of libvirt's domain XML.
    pub xml: String,
    /// Plugs it in also into a network between the nodes, or with the MAC address of another VM.
    pub force: bool,
    pub submitter: String,
}

/// Has the worker of the VM's node plug the device in or pull it out.
pub async fn submit_device(
    store: &Store,
    clock: &dyn Clock,
    random: &dyn Random,
    ask: &DeviceAsk,
) -> Result<JobSpec, ChangeError<DeviceRefusal>> {
    submit(store, clock, random, |cluster| request(cluster, ask)).await
}

fn request(cluster: &Cluster, ask: &DeviceAsk) -> Result<(JobRequest, Changes), DeviceRefusal> {
    let DeviceAsk { vm, change, xml, force, submitter } = ask;
    let device = device_summary(xml).map_err(DeviceRefusal::Xml)?;
    let record = find_vm(cluster, vm)?;
    if let (DeviceChange::Attach, Device::Nic(nic)) = (change, &device) {
        // The one that is recorded may be given to the running guest as well.
        let recorded: &[Nic] = record.domain.as_ref().map_or(&[], |domain| &domain.nics);
        let is_it = |known: &&Nic| known.mac.eq_ignore_ascii_case(&nic.mac);
        let known: Vec<Nic> = recorded.iter().filter(is_it).cloned().collect();
        let functions = check_nics(&known, std::slice::from_ref(nic), *force)?;
        if !*force {
            check_macs(cluster, record.uuid, &known, std::slice::from_ref(nic))
                .map_err(NicRefusal::from)?;
        }
        if let Some(function) = functions.first().and_then(|nic| vf_of(nic)) {
            return Err(NicRefusal::Unrecorded { function: function.to_owned() }.into());
        }
    }
    let mut changes = Changes::new();
    if let (DeviceChange::Attach, Device::Disk(disk)) = (change, &device) {
        check_disk(cluster, record.uuid, disk, &mut changes)?;
    }
    let node = node_of(cluster, record)?;
    let (vm, xml) = (JobVm::new(record), xml.clone());
    let work = match change {
        DeviceChange::Attach => JobWork::AttachDevice { vm, xml },
        DeviceChange::Detach => JobWork::DetachDevice { vm, xml },
    };
    let (run_on, submitter) = (node.to_string(), submitter.clone());
    Ok((JobRequest { work, run_on, node, submitter }, changes))
}
