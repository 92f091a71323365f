//! Requests of a provisioner's script about VMs other than the one that its task makes.

use pvc_model::Uuid;
use pvc_model::cluster::Cluster;
use pvc_model::request::StateRequest;
use pvc_model::storage::VolumeId;
use pvc_store::Changes;

use super::define::{DefineRefusal, Defined, Definition};
use super::remove::{OffRemoval, RemoveRefusal};
use super::state::{StateOutcome, StatePlan, StateRefusal};
use crate::refusal::{Kind, Refusal};

/// A script, as far as it limits what is done for it.
#[derive(Debug, Clone, Copy)]
pub struct Script<'a> {
    /// The VM that its task makes.
    pub own: Uuid,
    /// Volumes that it has mapped, which no guest may have meanwhile.
    pub mapped: &'a [VolumeId],
}

#[derive(Debug, thiserror::Error)]
pub enum ScriptedRefusal {
    #[error("VM `{vm}` is the one that this task makes, and is left to the task")]
    Own { vm: String },
    #[error("volume `{volume}` of VM `{vm}` is mapped by the script: unmap it first")]
    Mapped { vm: String, volume: VolumeId },
    #[error("VM `{vm}` is not off: stop it, and wait until it is")]
    NotOff { vm: String },
    #[error(transparent)]
    Define(#[from] DefineRefusal),
    #[error(transparent)]
    State(#[from] StateRefusal),
    #[error(transparent)]
    Remove(#[from] RemoveRefusal),
}

impl Refusal for ScriptedRefusal {
    fn kind(&self) -> Kind {
        match self {
            ScriptedRefusal::Define(why) => why.kind(),
            ScriptedRefusal::State(why) => why.kind(),
            ScriptedRefusal::Remove(why) => why.kind(),
            ScriptedRefusal::Own { .. }
            | ScriptedRefusal::Mapped { .. }
            | ScriptedRefusal::NotOff { .. } => Kind::Conflict,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            ScriptedRefusal::Define(why) => why.hint(),
            ScriptedRefusal::State(why) => why.hint(),
            ScriptedRefusal::Remove(why) => why.hint(),
            _ => None,
        }
    }
}

impl Script<'_> {
    /// The changes that record another VM, as [`define`](super::define()) does.
    ///
    /// # Errors
    /// The task's own VM, volumes that are mapped, and whatever keeps a VM from being defined.
    pub fn define(
        self,
        cluster: &Cluster,
        definition: &Definition,
    ) -> Result<(Changes, Defined), ScriptedRefusal> {
        let summary = definition.summary();
        if summary.uuid == self.own {
            return Err(ScriptedRefusal::Own { vm: summary.name.clone() });
        }
        self.check_unmapped(&summary.name, &summary.volumes())?;
        Ok(definition.define_new(cluster)?)
    }

    /// The changes that ask for a state of another VM, as [`set_state`](super::set_state) does.
    ///
    /// # Errors
    /// The task's own VM, a start with volumes that are mapped, and whatever forbids the request.
    pub fn set_state(
        self,
        cluster: &Cluster,
        plan: &StatePlan,
    ) -> Result<(Changes, StateOutcome), ScriptedRefusal> {
        self.check_other(cluster, &plan.vm)?;
        if let (StateRequest::Start, Some(vm)) = (plan.ask.request, cluster.vm(&plan.vm)) {
            self.check_unmapped(&vm.name, &vm.volumes())?;
        }
        Ok(plan.decide(cluster)?)
    }

    /// The changes with which the removal of another VM, which is off, begins.
    ///
    /// # Errors
    /// The task's own VM, one that is not off, volumes that are mapped and would be removed, and
    /// whatever keeps a VM from being removed.
    pub fn remove(
        self,
        cluster: &Cluster,
        vm: &str,
        with_volumes: bool,
    ) -> Result<(Changes, OffRemoval), ScriptedRefusal> {
        self.check_other(cluster, vm)?;
        if let Some(vm) = cluster.vm(vm).filter(|_| with_volumes) {
            self.check_unmapped(&vm.name, &vm.volumes())?;
        }
        let begun = OffRemoval::begin(cluster, vm, with_volumes)?;
        begun.ok_or_else(|| ScriptedRefusal::NotOff { vm: vm.to_owned() })
    }

    fn check_other(self, cluster: &Cluster, vm: &str) -> Result<(), ScriptedRefusal> {
        match cluster.vm(vm) {
            Some(record) if record.uuid == self.own => {
                Err(ScriptedRefusal::Own { vm: record.name.clone() })
            }
            _ => Ok(()),
        }
    }

    fn check_unmapped(self, vm: &str, volumes: &[VolumeId]) -> Result<(), ScriptedRefusal> {
        match volumes.iter().find(|volume| self.mapped.contains(volume)) {
            None => Ok(()),
            Some(volume) => {
                Err(ScriptedRefusal::Mapped { vm: vm.to_owned(), volume: volume.clone() })
            }
        }
    }
}
