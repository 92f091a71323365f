//! Requests of a provisioner's script about VMs other than the one that its task makes.

use pvc_model::Uuid;
use pvc_model::cluster::Cluster;
use pvc_store::Changes;

use super::define::{DefineRefusal, Defined, Definition};
use super::remove::{OffRemoval, RemoveRefusal};
use super::state::{StateOutcome, StatePlan, StateRefusal};
use crate::refusal::{Kind, Refusal};

/// A script, as far as it limits what is done for it. What it has mapped is
/// [held](crate::storage::hold_mapped), from it as from anybody.
#[derive(Debug, Clone, Copy)]
pub struct Script {
    /// The VM that its task makes.
    pub own: Uuid,
}

#[derive(Debug, thiserror::Error)]
pub enum ScriptedRefusal {
    #[error("VM `{vm}` is the one that this task makes, and is left to the task")]
    Own { vm: String },
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
            ScriptedRefusal::Own { .. } | ScriptedRefusal::NotOff { .. } => Kind::Conflict,
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

impl Script {
    /// The changes that record another VM, as [`define`](super::define()) does.
    ///
    /// # Errors
    /// The task's own VM, and whatever keeps a VM from being defined.
    pub fn define(
        self,
        cluster: &Cluster,
        definition: &Definition,
    ) -> Result<(Changes, Defined), ScriptedRefusal> {
        let summary = definition.summary();
        if summary.uuid == self.own {
            return Err(ScriptedRefusal::Own { vm: summary.name.clone() });
        }
        Ok(definition.define_new(cluster)?)
    }

    /// The changes that ask for a state of another VM, as [`set_state`](super::set_state) does.
    ///
    /// # Errors
    /// The task's own VM, and whatever forbids the request.
    pub fn set_state(
        self,
        cluster: &Cluster,
        plan: &StatePlan,
    ) -> Result<(Changes, StateOutcome), ScriptedRefusal> {
        self.check_other(cluster, &plan.vm)?;
        Ok(plan.decide(cluster)?)
    }

    /// The changes with which the removal of another VM, which is off, begins.
    ///
    /// # Errors
    /// The task's own VM, one that is not off, and whatever keeps a VM from being removed.
    pub fn remove(
        self,
        cluster: &Cluster,
        vm: &str,
        with_volumes: bool,
    ) -> Result<(Changes, OffRemoval), ScriptedRefusal> {
        self.check_other(cluster, vm)?;
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
}
