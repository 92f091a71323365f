//! Plugs a device into a running VM, or pulls it out.

use async_trait::async_trait;
use pvc_domain::{DomainError, EditError, Volumes, count_devices, device_for_host, device_summary};
use pvc_model::domain::DiskSource;
use pvc_model::job::JobVm;
use pvc_model::{NodeName, Uuid};
use pvc_ops::{Kind as RefusalKind, NoVm, Refusal};
use pvc_ports::{Attachment, DeviceChange, HypervisorError, StorageError};
use serde::{Deserialize, Serialize};

use super::{find, name};
use crate::context::Context;
use crate::kind::Kind;

pub(crate) struct ChangeDevice {
    pub vm: JobVm,
    /// An element of libvirt's domain XML.
    pub xml: String,
    pub change: DeviceChange,
}

/// Plugging it in, or pulling it out.
#[derive(Serialize, Deserialize)]
pub(crate) struct Plug {
    /// The guest, and how many devices like this it had before: by that the change is seen later.
    vm: Uuid,
    before: usize,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum DeviceError {
    #[error(transparent)]
    NoVm(#[from] NoVm),
    #[error("VM `{vm}` does not run on node `{node}`")]
    NotHere { vm: String, node: NodeName },
    #[error("the device cannot be used: {0}")]
    BadDevice(#[from] DomainError),
    #[error("the device cannot be used: {0}")]
    Edit(#[from] EditError),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Hypervisor(#[from] HypervisorError),
}

impl Refusal for DeviceError {
    fn kind(&self) -> RefusalKind {
        match self {
            DeviceError::NoVm(error) => error.kind(),
            DeviceError::NotHere { .. } => RefusalKind::Conflict,
            DeviceError::BadDevice(_) | DeviceError::Edit(_) => RefusalKind::Invalid,
            // Asked before the hypervisor is.
            DeviceError::Storage(_) => RefusalKind::Conflict,
            DeviceError::Hypervisor(error) => match error {
                HypervisorError::Refused { .. } | HypervisorError::NoGuest { .. } => {
                    RefusalKind::Conflict
                }
                _ => RefusalKind::Unavailable,
            },
        }
    }
}

#[async_trait]
impl Kind for ChangeDevice {
    type Step = Plug;
    type Fact = ();
    type Error = DeviceError;

    async fn plan(&self, context: &Context) -> Result<Vec<Plug>, DeviceError> {
        let view = context.tools.store.view();
        let vm = find(&self.vm, &view)?.uuid;
        let before = self.count(context, vm).await?.ok_or_else(|| self.not_here(context))?;
        Ok(vec![Plug { vm, before }])
    }

    fn doing(&self, _: &Plug) -> String {
        match self.change {
            DeviceChange::Attach => "attaching the device".to_owned(),
            DeviceChange::Detach => "detaching the device".to_owned(),
        }
    }

    async fn look(&self, context: &Context, step: &Plug) -> Result<Option<()>, DeviceError> {
        let now = self.count(context, step.vm).await?;
        let is_done = now.is_some_and(|now| match self.change {
            DeviceChange::Attach => now > step.before,
            DeviceChange::Detach => now < step.before,
        });
        Ok(is_done.then_some(()))
    }

    async fn run(&self, context: &Context, step: &Plug) -> Result<(), DeviceError> {
        self.plug(context, step.vm, self.change).await
    }

    async fn undo(&self, context: &Context, step: &Plug) -> Result<(), DeviceError> {
        if self.look(context, step).await?.is_none() {
            return Ok(());
        }
        let reverse = match self.change {
            DeviceChange::Attach => DeviceChange::Detach,
            DeviceChange::Detach => DeviceChange::Attach,
        };
        self.plug(context, step.vm, reverse).await
    }

    fn result(&self, context: &Context, _: &[()]) -> String {
        let done = match self.change {
            DeviceChange::Attach => "attached",
            DeviceChange::Detach => "detached",
        };
        let name = name(&self.vm, &context.tools.store.view());
        format!("{done} the device at VM \"{name}\"")
    }
}

impl ChangeDevice {
    fn not_here(&self, context: &Context) -> DeviceError {
        let vm = name(&self.vm, &context.tools.store.view());
        DeviceError::NotHere { vm, node: context.tools.node.clone() }
    }

    /// Number of such devices that the guest has; `None` if it does not run here.
    async fn count(&self, context: &Context, vm: Uuid) -> Result<Option<usize>, DeviceError> {
        let hypervisor = &context.tools.hypervisor;
        if !hypervisor.guests().await?.contains_key(&vm) {
            return Ok(None);
        }
        match hypervisor.live_xml(vm).await {
            Ok(xml) => Ok(Some(count_devices(&xml, &self.xml)?)),
            Err(HypervisorError::NoGuest { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn plug(
        &self,
        context: &Context,
        vm: Uuid,
        change: DeviceChange,
    ) -> Result<(), DeviceError> {
        if !context.tools.hypervisor.guests().await?.contains_key(&vm) {
            return Err(self.not_here(context));
        }
        let volumes = volumes(context, &self.xml).await?;
        let device = device_for_host(&self.xml, &volumes)?;
        Ok(context.tools.hypervisor.device(vm, change, &device).await?)
    }
}

/// Finds how this host reaches the volume that the device uses, if it uses one.
async fn volumes(context: &Context, device: &str) -> Result<Volumes, DeviceError> {
    let mut volumes = Volumes::default();
    if let pvc_domain::Device::Disk(disk) = device_summary(device)?
        && let DiskSource::Volume(volume) = disk.source
    {
        match context.tools.storage.attachment(&volume).await? {
            Attachment::File { path } => _ = volumes.files.insert(volume, path),
            Attachment::Rbd(access) => volumes.rbd = Some(access),
        }
    }
    Ok(volumes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::{read, written};

    #[test]
    fn steps_and_facts_of_the_versions_before_are_read() {
        let text = r#"{"vm":"2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1","before":3}"#;
        let step: Plug = read(text).expect("as it was recorded");
        assert_eq!((step.vm.to_string().as_str(), step.before), (&text[7..43], 3));
        assert_eq!(written(&step), text);
        read::<<ChangeDevice as Kind>::Fact>("null").expect("as it was recorded");
        assert_eq!(written(&()), "null");
    }
}
