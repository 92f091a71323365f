//! Frees the locks on a VM's volumes, after an operator made sure that nobody writes to them.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use pvc_model::cluster::Cluster;
use pvc_model::job::JobVm;
use pvc_model::storage::VolumeId;
use pvc_model::vm::VmRecord;
use pvc_model::vm::locks::{Breaker, GuestsHere, Moment, Verdict, may_break, may_flush};
use pvc_model::{NodeName, Uuid};
use pvc_ops::vm::{FlushRefusal, check_not_silent};
use pvc_ops::{Kind as RefusalKind, Refusal};
use pvc_ports::{Guest, HypervisorError, StorageError, VolumeLock};
use pvc_store::StoreError;
use serde::{Deserialize, Serialize};

use super::device::{UnreadGuest, other_users};
use super::{find, name, text};
use crate::context::Context;
use crate::kind::Kind;

pub(crate) struct FlushLocks {
    pub vm: JobVm,
}

/// Freeing the locks on one volume.
#[derive(Serialize, Deserialize)]
pub(crate) struct Flush {
    #[serde(with = "text::volume")]
    volume: VolumeId,
}

/// Outcome for the locks on one volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Flushed {
    /// Number of locks that were freed; none was left. The versions before knew nothing else.
    All(usize),
    /// Number of locks that were freed, and of those that were left, because a VM that shares the
    /// volume is not off.
    Partly { freed: usize, left: usize },
}

impl Flushed {
    fn new(freed: usize, left: usize) -> Self {
        match left {
            0 => Flushed::All(freed),
            left => Flushed::Partly { freed, left },
        }
    }

    fn freed(&self) -> usize {
        match self {
            Flushed::All(freed) | Flushed::Partly { freed, .. } => *freed,
        }
    }

    fn left(&self) -> usize {
        match self {
            Flushed::All(_) => 0,
            Flushed::Partly { left, .. } => *left,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum FlushError {
    #[error(transparent)]
    Refused(#[from] FlushRefusal),
    /// The VM was renamed, or got other volumes, since the steps were recorded.
    #[error("volume `{volume}` is no longer one of VM `{vm}`")]
    OtherVolumes { vm: String, volume: VolumeId },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Hypervisor(#[from] HypervisorError),
    #[error(transparent)]
    Unread(#[from] UnreadGuest),
}

impl Refusal for FlushError {
    fn kind(&self) -> RefusalKind {
        match self {
            FlushError::Refused(refusal) => refusal.kind(),
            FlushError::OtherVolumes { .. } => RefusalKind::Conflict,
            _ => RefusalKind::Unavailable,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            FlushError::Refused(refusal) => refusal.hint(),
            FlushError::OtherVolumes { vm, .. } => {
                Some(format!("`pvc vm flush-locks {vm}` flushes those that it has now"))
            }
            _ => None,
        }
    }
}

#[async_trait]
impl Kind for FlushLocks {
    type Step = Flush;
    type Fact = Flushed;
    type Error = FlushError;

    async fn plan(&self, context: &Context) -> Result<Vec<Flush>, FlushError> {
        let seen = self.see(context).await?;
        seen.may_flush(Moment::Before)?;
        seen.check_not_silent()?;
        Ok(seen.vm.volumes().into_iter().map(|volume| Flush { volume }).collect())
    }

    fn doing(&self, step: &Flush) -> String {
        format!("freeing the locks on volume {}", step.volume)
    }

    /// Freeing what is free is harmless, and every lock is freed for itself: it is done again.
    async fn look(&self, _: &Context, _: &Flush) -> Result<Option<Flushed>, FlushError> {
        Ok(None)
    }

    async fn run(&self, context: &Context, step: &Flush) -> Result<Flushed, FlushError> {
        // In this order: somebody may start the VM at any moment, and the lock of a guest that was
        // started since is not among these.
        let locks = locks(context, &step.volume).await?;
        let seen = self.see(context).await?;
        if !seen.vm.volumes().contains(&step.volume) {
            let (vm, volume) = (seen.vm.name.clone(), step.volume.clone());
            return Err(FlushError::OtherVolumes { vm, volume });
        }
        seen.may_flush(Moment::Listed)?;
        if locks.is_empty() {
            return Ok(Flushed::All(0));
        }
        seen.check_not_silent()?;
        // Looked at once: the lock of a guest that is given the volume later is not among these.
        let guests = seen.guests_with(context, &step.volume).await?;
        let (vm, volume, here) = (&seen.vm, &step.volume, &seen.here);
        let by = Breaker::Operator { vm, volume, here, guests: &guests };
        let (mut freed, mut left) = (0, 0);
        for lock in &locks {
            let holder = &lock.address;
            match may_break(&seen.view, holder, &by) {
                Verdict::Break => context.tools.storage.break_lock(volume, lock).await?,
                Verdict::Keep(kept) => return Err(FlushRefusal::kept(vm, kept).into()),
                Verdict::Shared => {
                    context.log(format!(
                        "left the lock that {holder} holds on volume {volume}: a VM that shares \
                         the volume is not off"
                    ));
                    left += 1;
                    continue;
                }
                // Said to nodes alone, of their own guests.
                Verdict::InUse | Verdict::AskGuests => continue,
            }
            context.log(format!("freed the lock that {holder} held on volume {volume}"));
            freed += 1;
        }
        Ok(Flushed::new(freed, left))
    }

    /// Undoes nothing: what was freed stays so, its holder was dead.
    async fn undo(&self, _: &Context, _: &Flush) -> Result<(), FlushError> {
        Ok(())
    }

    fn result(&self, context: &Context, facts: &[Flushed]) -> String {
        let freed: usize = facts.iter().map(Flushed::freed).sum();
        let left: usize = facts.iter().map(Flushed::left).sum();
        let volumes = facts.len();
        let name = name(&self.vm, &context.tools.store.view());
        let kept = match left {
            0 => String::new(),
            left => format!(", left {left}: a VM that shares the volume is not off (see the log)"),
        };
        format!("freed {freed} locks on {volumes} volumes of VM \"{name}\"{kept}")
    }
}

impl FlushLocks {
    /// The VM by its record, by what living nodes say they run, and by the hypervisor here.
    async fn see(&self, context: &Context) -> Result<Seen, FlushError> {
        let tools = &context.tools;
        // This decides over somebody's data: read it now, not from a view that may lag.
        let view = tools.store.fresh().await?;
        let vm = find(&self.vm, &view).map_err(FlushRefusal::from)?.clone();
        // A guest that was told to stop a moment ago still writes.
        let guests = tools.hypervisor.guests().await?;
        Ok(Seen { view, vm, here: tools.node.clone(), guests })
    }
}

/// Facts that decide whether the locks go.
struct Seen {
    view: Arc<Cluster>,
    vm: Arc<VmRecord>,
    /// Name of this node.
    here: NodeName,
    /// The guests of this node, as its hypervisor tells.
    guests: BTreeMap<Uuid, Guest>,
}

impl Seen {
    /// Name of this node, if the guest is here.
    fn runs_on(&self) -> Option<&NodeName> {
        self.guests.contains_key(&self.vm.uuid).then_some(&self.here)
    }

    /// The guests here that the locks on the volume depend on.
    async fn guests_with(
        &self,
        context: &Context,
        volume: &VolumeId,
    ) -> Result<GuestsHere, FlushError> {
        let others = other_users(context, &self.guests, self.vm.uuid, volume).await?;
        Ok(GuestsHere { own: self.runs_on().is_some(), ..others })
    }

    fn may_flush(&self, moment: Moment) -> Result<(), FlushRefusal> {
        may_flush(&self.view, &self.vm, self.runs_on(), moment)
            .map_err(|kept| FlushRefusal::kept(&self.vm, kept))
    }

    /// Refuses if the VM's node, fenced when the job was asked for, has come back and is silent.
    fn check_not_silent(&self) -> Result<(), FlushRefusal> {
        check_not_silent(&self.view, &self.vm, Some(&self.here))
    }
}

/// The locks on `volume`. A volume that is not there has none.
async fn locks(context: &Context, volume: &VolumeId) -> Result<Vec<VolumeLock>, FlushError> {
    match context.tools.storage.locks(volume).await {
        Err(StorageError::NoVolume { .. } | StorageError::NoPool { .. }) => {
            context.log(format!("volume {volume} does not exist"));
            Ok(Vec::new())
        }
        locks => Ok(locks?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::{read, written};

    #[test]
    fn steps_and_facts_of_the_versions_before_are_read() {
        let step: Flush = read(r#"{"volume":"vms/web1_sda"}"#).expect("as it was recorded");
        assert_eq!(step.volume.to_string(), "vms/web1_sda");
        assert_eq!(written(&step), r#"{"volume":"vms/web1_sda"}"#);
        let freed: <FlushLocks as Kind>::Fact = read("2").expect("as it was recorded");
        assert_eq!((&freed, written(&freed).as_str()), (&Flushed::All(2), "2"));
        let partly: Flushed = read(&written(&Flushed::new(1, 2))).expect("as it is recorded");
        assert_eq!((partly.freed(), partly.left()), (1, 2));
    }
}
