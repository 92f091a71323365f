//! Plugging devices into running guests, and pulling them out.

use pvc_domain::{Device, DomainError, device_summary};
use pvc_model::job::JobSpec;
use pvc_ports::{Clock, DeviceChange, Random};
use pvc_store::{ChangeError, Store};

use crate::job::{JobRequest, submit, submitted};
use crate::refusal::{Kind, NoVm, Refusal, find_vm};
use crate::vm::{FunctionTaken, check_functions};

/// The names of the jobs.
pub const ATTACH: &str = "vm.device_attach";
pub const DETACH: &str = "vm.device_detach";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceRefusal {
    #[error(transparent)]
    NoVm(#[from] NoVm),
    #[error("the device's XML cannot be read: {0}")]
    Xml(DomainError),
    #[error(transparent)]
    FunctionTaken(#[from] FunctionTaken),
    #[error("VM `{vm}` is assigned to no node")]
    Homeless { vm: String },
}

impl Refusal for DeviceRefusal {
    fn kind(&self) -> Kind {
        match self {
            DeviceRefusal::NoVm(error) => error.kind(),
            DeviceRefusal::Xml(_) | DeviceRefusal::FunctionTaken(_) => Kind::Invalid,
            DeviceRefusal::Homeless { .. } => Kind::Conflict,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            DeviceRefusal::NoVm(error) => error.hint(),
            DeviceRefusal::Xml(error) => error.hint().map(str::to_owned),
            DeviceRefusal::FunctionTaken(error) => Some(error.hint()),
            DeviceRefusal::Homeless { vm } => Some(format!("`pvc vm move {vm}` assigns a node")),
        }
    }
}

/// Has the worker of the VM's node plug the device `xml`, one element, in or pull it out.
pub async fn submit_device(
    store: &Store,
    clock: &dyn Clock,
    random: &dyn Random,
    vm: &str,
    change: DeviceChange,
    xml: &str,
    submitter: &str,
) -> Result<JobSpec, ChangeError<DeviceRefusal>> {
    let device = device_summary(xml).map_err(|error| ChangeError::Refused(DeviceRefusal::Xml(error)))?;
    let cluster = store.view();
    let record = find_vm(&cluster, vm).map_err(|error| ChangeError::Refused(error.into()))?;
    if let (DeviceChange::Attach, Device::Nic(nic)) = (change, &device) {
        let known = record.domain.as_ref().map_or(&[][..], |domain| &domain.nics);
        check_functions(known, std::slice::from_ref(nic)).map_err(|why| ChangeError::Refused(why.into()))?;
    }
    let node = record.node.clone();
    let node =
        node.ok_or_else(|| ChangeError::Refused(DeviceRefusal::Homeless { vm: record.name.clone() }))?;
    let name = match change {
        DeviceChange::Attach => ATTACH,
        DeviceChange::Detach => DETACH,
    };
    let request = JobRequest {
        name: name.to_owned(),
        run_on: node.to_string(),
        node,
        vm: Some(record.uuid),
        args: vec![("domain".to_owned(), record.name.clone()), ("xml".to_owned(), xml.to_owned())],
        submitter: submitter.to_owned(),
    };
    submitted(submit(store, clock, random, request).await)
}
