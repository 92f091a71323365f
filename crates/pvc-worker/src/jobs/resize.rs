//! Notifies a running guest that the volume of one of its disks has another size.

use async_trait::async_trait;
use pvc_domain::{DomainError, summary};
use pvc_model::domain::DiskSource;
use pvc_model::job::JobVm;
use pvc_model::storage::VolumeId;
use pvc_model::{NodeName, Uuid};
use pvc_ops::{Kind as RefusalKind, NoVm, Refusal};
use pvc_ports::{Attachment, HypervisorError, StorageError};
use serde::{Deserialize, Serialize};

use super::{find, name, text};
use crate::context::Context;
use crate::kind::Kind;

pub(crate) struct ResizeDisk {
    pub vm: JobVm,
    pub volume: VolumeId,
}

/// Telling the guest of the volume's size as it is by then.
#[derive(Serialize, Deserialize)]
pub(crate) struct Tell {
    vm: Uuid,
    #[serde(with = "text::volume")]
    volume: VolumeId,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ResizeError {
    #[error(transparent)]
    NoVm(#[from] NoVm),
    #[error("VM `{vm}` does not run on node `{node}`; it sees the size when it is started")]
    NotHere { vm: String, node: NodeName },
    #[error("the guest's own XML cannot be read")]
    Xml(#[from] DomainError),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Hypervisor(#[from] HypervisorError),
}

impl Refusal for ResizeError {
    fn kind(&self) -> RefusalKind {
        match self {
            ResizeError::NoVm(error) => error.kind(),
            ResizeError::NotHere { .. } | ResizeError::Xml(_) => RefusalKind::Conflict,
            ResizeError::Storage(StorageError::NoVolume { .. } | StorageError::NoPool { .. }) => {
                RefusalKind::Conflict
            }
            ResizeError::Storage(_) => RefusalKind::Unavailable,
            ResizeError::Hypervisor(error) => match error {
                HypervisorError::Refused { .. } | HypervisorError::NoGuest { .. } => {
                    RefusalKind::Conflict
                }
                _ => RefusalKind::Unavailable,
            },
        }
    }
}

#[async_trait]
impl Kind for ResizeDisk {
    type Step = Tell;
    /// Number of disks of the guest that the volume is.
    type Fact = usize;
    type Error = ResizeError;

    async fn plan(&self, context: &Context) -> Result<Vec<Tell>, ResizeError> {
        let view = context.tools.store.view();
        let vm = find(&self.vm, &view)?.uuid;
        if !context.tools.hypervisor.guests().await?.contains_key(&vm) {
            return Err(self.not_here(context));
        }
        Ok(vec![Tell { vm, volume: self.volume.clone() }])
    }

    fn doing(&self, step: &Tell) -> String {
        format!("telling the guest of the size of volume {}", step.volume)
    }

    /// Telling a guest what it knows is harmless: it is done again.
    async fn look(&self, _: &Context, _: &Tell) -> Result<Option<usize>, ResizeError> {
        Ok(None)
    }

    async fn run(&self, context: &Context, step: &Tell) -> Result<usize, ResizeError> {
        let hypervisor = &context.tools.hypervisor;
        let xml = match hypervisor.live_xml(step.vm).await {
            Err(HypervisorError::NoGuest { .. }) => return Err(self.not_here(context)),
            other => other?,
        };
        let disks = summary(&xml)?.disks;
        // On one machine alone the guest's own XML has the file of the volume.
        let file = match context.tools.storage.attachment(&step.volume).await? {
            Attachment::File { path } => Some(path.display().to_string()),
            Attachment::Rbd(_) => None,
        };
        let is_meant = |source: &DiskSource| match source {
            DiskSource::Volume(volume) => *volume == step.volume,
            DiskSource::File(path) => file.as_ref() == Some(path),
            DiskSource::Empty | DiskSource::Other(_) => false,
        };
        let mut notified = 0;
        for disk in disks.iter().filter(|disk| is_meant(&disk.source)) {
            // Asked each time: of two sizes in a row the guest learns the second.
            let bytes = context.tools.storage.volume(&step.volume).await?.size_bytes;
            hypervisor.resize_disk(step.vm, &disk.target, bytes).await?;
            context.log(format!("disk {} has {bytes} bytes now", disk.target));
            notified += 1;
        }
        Ok(notified)
    }

    /// Undoes nothing: the volume has the size that the guest learned.
    async fn undo(&self, _: &Context, _: &Tell) -> Result<(), ResizeError> {
        Ok(())
    }

    fn result(&self, context: &Context, facts: &[usize]) -> String {
        let name = name(&self.vm, &context.tools.store.view());
        let (volume, disks): (_, usize) = (&self.volume, facts.iter().sum());
        match disks {
            0 => format!("VM \"{name}\" does not use volume {volume} any more"),
            _ => format!("notified VM \"{name}\" of the size of volume {volume}"),
        }
    }
}

impl ResizeDisk {
    fn not_here(&self, context: &Context) -> ResizeError {
        let vm = name(&self.vm, &context.tools.store.view());
        ResizeError::NotHere { vm, node: context.tools.node.clone() }
    }
}
