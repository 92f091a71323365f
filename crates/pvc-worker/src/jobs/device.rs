//! Plugs a device into a running VM, or pulls it out.

use std::collections::BTreeMap;

use async_trait::async_trait;
use pvc_domain::{
    Device, DomainError, EditError, Volumes, alias_of, count_devices, device_for_host,
    device_summary, has_alias, with_alias,
};
use pvc_model::cluster::Cluster;
use pvc_model::domain::DiskSource;
use pvc_model::job::{JobVm, may_take};
use pvc_model::storage::VolumeId;
use pvc_model::vm::VmState;
use pvc_model::vm::locks::{Breaker, GuestsHere, Kept, Verdict, may_break};
use pvc_model::vm::moving::is_moving;
use pvc_model::vm::volumes::node_at;
use pvc_model::{NodeName, Uuid};
use pvc_ops::device::{DiskRefusal, check_disk};
use pvc_ops::{Kind as RefusalKind, NoVm, Refusal};
use pvc_ports::{Attachment, DeviceChange, Guest, HypervisorError, StorageError};
use pvc_store::{Changes, StoreError};
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
    /// The guest's instance on the node where this was planned: one that was started since has
    /// other devices. `None` in steps that an earlier version recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    instance: Option<i32>,
    /// The node where this was planned. `None` in steps that an earlier version recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<String>,
}

impl Plug {
    /// Whether this is about the guest of this instance on `node`, which neither was started again
    /// nor has moved since.
    fn is_about(&self, node: &NodeName, instance: i32) -> bool {
        !self.was_planned_elsewhere(node) && self.instance.is_none_or(|own| own == instance)
    }

    fn was_planned_elsewhere(&self, node: &NodeName) -> bool {
        self.node.as_ref().is_some_and(|own| own != node.as_str())
    }
}

/// A guest that runs here.
struct Found {
    instance: i32,
    /// Its XML as it is now.
    live: String,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum DeviceError {
    #[error(transparent)]
    NoVm(#[from] NoVm),
    #[error("VM `{vm}` does not run on node `{node}`")]
    NotHere { vm: String, node: NodeName },
    #[error("VM `{vm}` was started again or moved meanwhile")]
    Restarted { vm: String },
    #[error("VM `{vm}` is being moved to another node")]
    Moving { vm: String },
    #[error("VM `{vm}` is on its way to node `{node}`, or there")]
    Elsewhere { vm: String, node: NodeName },
    #[error(transparent)]
    Disk(#[from] DiskRefusal),
    /// In no definition: it was attached to the running guest alone.
    #[error("volume `{volume}` is in use by the guest of VM `{vm}` on node `{node}`")]
    UsedHere { volume: VolumeId, vm: String, node: NodeName },
    #[error("volume `{volume}` is locked from {address}{}", at_node(node.as_ref()))]
    Locked { volume: VolumeId, address: String, node: Option<NodeName> },
    #[error(
        "volume `{volume}` is locked from {address}, which may be freed in a moment: a dead node's \
         VMs are being recovered"
    )]
    BeingFreed { volume: VolumeId, address: String },
    #[error(transparent)]
    Unread(#[from] UnreadGuest),
    #[error(transparent)]
    Store(#[from] StoreError),
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
            DeviceError::Disk(error) => error.kind(),
            DeviceError::NotHere { .. }
            | DeviceError::Restarted { .. }
            | DeviceError::UsedHere { .. }
            | DeviceError::Locked { .. }
            | DeviceError::Moving { .. } => RefusalKind::Conflict,
            DeviceError::BadDevice(_) | DeviceError::Edit(_) => RefusalKind::Invalid,
            DeviceError::Elsewhere { .. }
            | DeviceError::BeingFreed { .. }
            | DeviceError::Unread(_)
            | DeviceError::Store(_) => RefusalKind::Unavailable,
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

    fn hint(&self) -> Option<String> {
        match self {
            DeviceError::Disk(error) => error.hint(),
            DeviceError::Locked { .. } => {
                Some("end what has the volume open there, and attach it then".to_owned())
            }
            DeviceError::BeingFreed { .. } => Some("attach it again in a moment".to_owned()),
            _ => None,
        }
    }
}

impl DeviceError {
    /// Whether the guest must not have the disk, rather than that it could not be given to it.
    fn is_of_the_volume(&self) -> bool {
        matches!(
            self,
            DeviceError::Disk(_) | DeviceError::UsedHere { .. } | DeviceError::Locked { .. }
        )
    }
}

/// A guest of this node of which the hypervisor does not say which volumes it uses.
#[derive(Debug, thiserror::Error)]
#[error("guest `{guest}` of this node cannot be asked which volumes it uses")]
pub(crate) struct UnreadGuest {
    guest: String,
    source: HypervisorError,
}

fn at_node(node: Option<&NodeName>) -> String {
    node.map_or_else(String::new, |node| format!(", which is node `{node}`"))
}

#[async_trait]
impl Kind for ChangeDevice {
    type Step = Plug;
    type Fact = ();
    type Error = DeviceError;

    async fn plan(&self, context: &Context) -> Result<Vec<Plug>, DeviceError> {
        let view = context.tools.store.fresh().await?;
        let record = find(&self.vm, &view)?;
        let vm = record.uuid;
        // What is here then may be a guest that is to go, or one that goes on elsewhere.
        if is_moving(&record.state) {
            return Err(DeviceError::Moving { vm: record.name.clone() });
        }
        let found = here(context, vm).await?.ok_or_else(|| self.not_here(context))?;
        let before = count_devices(&found.live, &self.xml)?;
        let node = Some(context.tools.node.to_string());
        Ok(vec![Plug { vm, before, instance: Some(found.instance), node }])
    }

    fn doing(&self, _: &Plug) -> String {
        match self.change {
            DeviceChange::Attach => "attaching the device".to_owned(),
            DeviceChange::Detach => "detaching the device".to_owned(),
        }
    }

    async fn look(&self, context: &Context, step: &Plug) -> Result<Option<()>, DeviceError> {
        let found = self.found(context, step).await?;
        let is_done = match &found {
            Some(found) => self.is_done(context, step, found)?,
            None => false,
        };
        Ok(is_done.then_some(()))
    }

    async fn run(&self, context: &Context, step: &Plug) -> Result<(), DeviceError> {
        let node = &context.tools.node;
        let found = here(context, step.vm).await?;
        let is_it = |found: &Found| step.is_about(node, found.instance);
        match &found {
            Some(found) if is_it(found) => self.plug(context, step, self.change).await,
            None if !step.was_planned_elsewhere(node) => Err(self.not_here(context)),
            _ => {
                let vm = name(&self.vm, &context.tools.store.view());
                Err(DeviceError::Restarted { vm })
            }
        }
    }

    async fn undo(&self, context: &Context, step: &Plug) -> Result<(), DeviceError> {
        let Some(found) = self.found(context, step).await? else {
            let view = context.tools.store.view();
            let node = view.vms.get(&step.vm).and_then(|record| record.node.as_ref());
            if let Some(node) = node.filter(|node| **node != context.tools.node) {
                context.log(format!(
                    "the VM is on node `{node}` now, which has no worker to ask: whether it has \
                     the device is not known"
                ));
            }
            return Ok(());
        };
        if !self.is_done(context, step, &found)? {
            let is_other = !step.is_about(&context.tools.node, found.instance);
            if is_other && self.change == DeviceChange::Detach {
                context.log(
                    "the VM was started again or moved meanwhile: whether it had the device \
                     detached before that is not known",
                );
            }
            return Ok(());
        }
        let reverse = match self.change {
            DeviceChange::Attach => DeviceChange::Detach,
            DeviceChange::Detach => DeviceChange::Attach,
        };
        match self.plug(context, step, reverse).await {
            // Nobody has asked for it, and somebody else has begun to use it.
            Err(why) if reverse == DeviceChange::Attach && why.is_of_the_volume() => {
                context.log(format!("the device stays detached: {why}"));
                Ok(())
            }
            done => done,
        }
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

    /// The guest, which may have moved since the step was planned; `None` if it runs nowhere where
    /// it could be asked.
    async fn found(&self, context: &Context, step: &Plug) -> Result<Option<Found>, DeviceError> {
        let found = here(context, step.vm).await?;
        if found.as_ref().is_some_and(|it| step.is_about(&context.tools.node, it.instance)) {
            return Ok(found);
        }
        let view = context.tools.store.fresh().await?;
        let Some(record) = view.vms.get(&step.vm) else { return Ok(found) };
        let Some(node) = &record.node else { return Ok(found) };
        let is_asked_there = view.jobs.get(&context.job).is_some_and(|job| {
            let is_open = !job.progress.state.is_over();
            is_open && *node != context.tools.node && may_take(&view, job, node)
        });
        if is_moving(&record.state) || is_asked_there && record.state == VmState::Start {
            let (vm, node) = (record.name.clone(), node.clone());
            return Err(DeviceError::Elsewhere { vm, node });
        }
        Ok(found)
    }

    fn is_done(&self, context: &Context, step: &Plug, found: &Found) -> Result<bool, DeviceError> {
        if step.is_about(&context.tools.node, found.instance) {
            let now = count_devices(&found.live, &self.xml)?;
            return Ok(match self.change {
                DeviceChange::Attach => now > step.before,
                DeviceChange::Detach => now < step.before,
            });
        }
        match self.change {
            // The alias goes with the guest, and is not in its definition.
            DeviceChange::Attach => Ok(has_alias(&found.live, &self.alias(context)?)?),
            // One that was started again has its devices as defined, one that was moved as they
            // were: which of them it is nobody can tell.
            DeviceChange::Detach => Ok(false),
        }
    }

    /// Alias of the device that the job attaches: its own, or one of ours. Those that are given
    /// begin with `ua-`, says libvirt.
    fn alias(&self, context: &Context) -> Result<String, DeviceError> {
        let own = alias_of(&self.xml)?;
        Ok(own.unwrap_or_else(|| format!("ua-pvc-task-{}", context.job)))
    }

    /// Refuses a disk whose volume another guest may write, or that is held.
    async fn check_disk(&self, context: &Context, vm: Uuid) -> Result<(), DeviceError> {
        let Device::Disk(disk) = device_summary(&self.xml)? else { return Ok(()) };
        // Much may have happened since it was asked for.
        let view = context.tools.store.fresh().await?;
        check_disk(&view, vm, &disk, &mut Changes::new())?;
        match &disk.source {
            DiskSource::Volume(volume) => {
                check_locks(context, &view, vm, volume, disk.shared).await
            }
            _ => Ok(()),
        }
    }

    async fn plug(
        &self,
        context: &Context,
        step: &Plug,
        change: DeviceChange,
    ) -> Result<(), DeviceError> {
        if change == DeviceChange::Attach {
            self.check_disk(context, step.vm).await?;
        }
        let volumes = volumes(context, &self.xml).await?;
        let mut device = device_for_host(&self.xml, &volumes)?;
        if change == DeviceChange::Attach {
            device = with_alias(&device, &self.alias(context)?)?;
        }
        Ok(context.tools.hypervisor.device(step.vm, change, &device).await?)
    }
}

/// The guest as it runs here; `None` if it does not.
async fn here(context: &Context, vm: Uuid) -> Result<Option<Found>, DeviceError> {
    let guests = context.tools.hypervisor.guests().await?;
    let Some(instance) = guests.get(&vm).map(|guest| guest.instance) else { return Ok(None) };
    match context.tools.hypervisor.live_xml(vm).await {
        Ok(live) => Ok(Some(Found { instance, live })),
        Err(HypervisorError::NoGuest { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Refuses a volume of which somebody has a lock that would keep the VM from being started with it.
/// What an earlier guest of this node has left is nobody's.
async fn check_locks(
    context: &Context,
    view: &Cluster,
    vm: Uuid,
    volume: &VolumeId,
    is_shared: bool,
) -> Result<(), DeviceError> {
    let tools = &context.tools;
    let here = &tools.node;
    let mut others = None;
    for lock in tools.storage.locks(volume).await? {
        let judge = |guests: Option<&GuestsHere>| {
            let by = Breaker::Attacher { vm, volume, is_shared, here, guests };
            may_break(view, &lock.address, &by)
        };
        let verdict = match judge(None) {
            Verdict::AskGuests => {
                let others: &GuestsHere = match &others {
                    Some(others) => others,
                    None => {
                        let guests = tools.hypervisor.guests().await?;
                        others.insert(other_users(context, &guests, vm, volume).await?)
                    }
                };
                judge(Some(others))
            }
            verdict => verdict,
        };
        match verdict {
            Verdict::Keep(Kept::UsedBy { volume, vm }) => {
                return Err(DeviceError::UsedHere { volume, vm, node: here.clone() });
            }
            Verdict::Keep(Kept::BeingFreed) => {
                let (volume, address) = (volume.clone(), lock.address);
                return Err(DeviceError::BeingFreed { volume, address });
            }
            Verdict::Keep(_) => {
                let node = node_at(view, &lock.address).map(|node| node.name.clone());
                let (volume, address) = (volume.clone(), lock.address);
                return Err(DeviceError::Locked { volume, address, node });
            }
            Verdict::Break | Verdict::Shared | Verdict::InUse | Verdict::AskGuests => {}
        }
    }
    Ok(())
}

/// The guests here but that of `vm` which use the volume: by the XML that they run with, for
/// records may be of tomorrow.
pub(super) async fn other_users(
    context: &Context,
    guests: &BTreeMap<Uuid, Guest>,
    vm: Uuid,
    volume: &VolumeId,
) -> Result<GuestsHere, UnreadGuest> {
    let mut here = GuestsHere::default();
    for (uuid, guest) in guests {
        if *uuid == vm {
            continue;
        }
        let (uses, shares) = match context.tools.hypervisor.live_xml(*uuid).await {
            Ok(live) => use_of(&live, volume),
            Err(HypervisorError::NoGuest { .. }) => continue,
            Err(source) => return Err(UnreadGuest { guest: guest.name.clone(), source }),
        };
        if uses {
            here.users.push(guest.name.clone());
        }
        if uses && !shares {
            here.alone.get_or_insert_with(|| guest.name.clone());
        }
    }
    Ok(here)
}

/// Whether the guest with this XML uses the volume, and whether it shares it.
fn use_of(live: &str, volume: &VolumeId) -> (bool, bool) {
    match pvc_domain::summary(live) {
        Ok(domain) => (domain.named_volumes().any(|used| used == volume), domain.shares(volume)),
        // What cannot be read is searched.
        Err(_) => (live.contains(&volume.to_string()), false),
    }
}

/// Finds how this host reaches the volume that the device uses, if it uses one.
async fn volumes(context: &Context, device: &str) -> Result<Volumes, DeviceError> {
    let mut volumes = Volumes::default();
    if let Device::Disk(disk) = device_summary(device)?
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
    use crate::kind::{failure, read, written};

    #[test]
    fn a_guest_that_cannot_be_asked_is_named() {
        let source = HypervisorError::TimedOut { seconds: 10 };
        let unread = UnreadGuest { guest: "db1".to_owned(), source };
        let failure = failure(&DeviceError::from(unread));
        assert_eq!(
            failure.why,
            "guest `db1` of this node cannot be asked which volumes it uses: the hypervisor did \
             not answer within 10 s"
        );
        assert_eq!(failure.kind, RefusalKind::Unavailable);
    }

    #[test]
    fn steps_and_facts_of_the_versions_before_are_read() {
        let old = r#"{"vm":"2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1","before":3}"#;
        let older = r#"{"vm":"2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1","before":3,"instance":7}"#;
        let new =
            r#"{"vm":"2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1","before":3,"instance":7,"node":"hv1"}"#;
        let node = || Some("hv1".to_owned());
        for (text, instance, node) in
            [(old, None, None), (older, Some(7), None), (new, Some(7), node())]
        {
            let step: Plug = read(text).expect("as it was recorded");
            assert_eq!((step.vm.to_string().as_str(), step.before), (&text[7..43], 3));
            assert_eq!((step.instance, &step.node), (instance, &node));
            assert_eq!(written(&step).as_str(), text);
        }
        read::<<ChangeDevice as Kind>::Fact>("null").expect("as it was recorded");
        assert_eq!(written(&()), "null");
    }
}
