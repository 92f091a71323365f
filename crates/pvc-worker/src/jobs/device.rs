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
    /// The start of the guest that this is about: one that was started since has other devices.
    /// `None` in steps that an earlier version recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    instance: Option<i32>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum DeviceError {
    #[error(transparent)]
    NoVm(#[from] NoVm),
    #[error("VM `{vm}` does not run on node `{node}`")]
    NotHere { vm: String, node: NodeName },
    #[error("VM `{vm}` was started again meanwhile; its devices are as they are defined")]
    Restarted { vm: String },
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
            DeviceError::NotHere { .. } | DeviceError::Restarted { .. } => RefusalKind::Conflict,
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
        let found = self.found(context, vm).await?;
        let (instance, before) = found.ok_or_else(|| self.not_here(context))?;
        Ok(vec![Plug { vm, before, instance: Some(instance) }])
    }

    fn doing(&self, _: &Plug) -> String {
        match self.change {
            DeviceChange::Attach => "attaching the device".to_owned(),
            DeviceChange::Detach => "detaching the device".to_owned(),
        }
    }

    async fn look(&self, context: &Context, step: &Plug) -> Result<Option<()>, DeviceError> {
        let found = self.found(context, step.vm).await?;
        let is_it = |(instance, _): &(i32, usize)| step.instance.is_none_or(|own| own == *instance);
        let is_done = found.filter(is_it).is_some_and(|(_, now)| match self.change {
            DeviceChange::Attach => now > step.before,
            DeviceChange::Detach => now < step.before,
        });
        Ok(is_done.then_some(()))
    }

    async fn run(&self, context: &Context, step: &Plug) -> Result<(), DeviceError> {
        self.plug(context, step, self.change).await
    }

    async fn undo(&self, context: &Context, step: &Plug) -> Result<(), DeviceError> {
        if self.look(context, step).await?.is_none() {
            return Ok(());
        }
        let reverse = match self.change {
            DeviceChange::Attach => DeviceChange::Detach,
            DeviceChange::Detach => DeviceChange::Attach,
        };
        self.plug(context, step, reverse).await
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

    /// The guest's start; `None` if it does not run here.
    async fn instance(&self, context: &Context, vm: Uuid) -> Result<Option<i32>, DeviceError> {
        let guests = context.tools.hypervisor.guests().await?;
        Ok(guests.get(&vm).map(|guest| guest.instance))
    }

    /// The guest's start and number of such devices that it has; `None` if it does not run here.
    async fn found(
        &self,
        context: &Context,
        vm: Uuid,
    ) -> Result<Option<(i32, usize)>, DeviceError> {
        let Some(instance) = self.instance(context, vm).await? else { return Ok(None) };
        match context.tools.hypervisor.live_xml(vm).await {
            Ok(xml) => Ok(Some((instance, count_devices(&xml, &self.xml)?))),
            Err(HypervisorError::NoGuest { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn plug(
        &self,
        context: &Context,
        step: &Plug,
        change: DeviceChange,
    ) -> Result<(), DeviceError> {
        let instance = self.instance(context, step.vm).await?;
        let instance = instance.ok_or_else(|| self.not_here(context))?;
        if step.instance.is_some_and(|own| own != instance) {
            let vm = name(&self.vm, &context.tools.store.view());
            return Err(DeviceError::Restarted { vm });
        }
        let volumes = volumes(context, &self.xml).await?;
        let device = device_for_host(&self.xml, &volumes)?;
        Ok(context.tools.hypervisor.device(step.vm, change, &device).await?)
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
        let old = r#"{"vm":"2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1","before":3}"#;
        let new = r#"{"vm":"2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1","before":3,"instance":7}"#;
        for (text, instance) in [(old, None), (new, Some(7))] {
            let step: Plug = read(text).expect("as it was recorded");
            assert_eq!((step.vm.to_string().as_str(), step.before), (&text[7..43], 3));
            assert_eq!((step.instance, written(&step).as_str()), (instance, text));
        }
        read::<<ChangeDevice as Kind>::Fact>("null").expect("as it was recorded");
        assert_eq!(written(&()), "null");
    }
}
