//! Parts that the jobs which make a VM share: its volumes, and the end of its making.

use pvc_model::Uuid;
use pvc_model::cluster::Cluster;
use pvc_model::storage::VolumeId;
use pvc_model::vm::VmState;
use pvc_ops::Refusal;
use pvc_ops::storage::{StorageRefusal, record_volume};
use pvc_ops::vm::start_changes;
use pvc_ports::StorageError;
use pvc_store::{Changes, Expect, VmChange};
use serde::{Deserialize, Serialize};

use crate::context::{Context, Unwritten};

/// Result of a step.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fact {
    Done,
    /// The reason why the VM was made and not started.
    NotStarted(String),
}

impl Fact {
    /// The reason why the VM was not started, if that is among the results.
    pub fn not_started(facts: &[Fact]) -> Option<&str> {
        facts.iter().find_map(|fact| match fact {
            Fact::NotStarted(why) => Some(why.as_str()),
            Fact::Done => None,
        })
    }
}

/// End of the making of a VM, which is in state `provision` until then.
pub(super) struct Ending {
    pub vm: Uuid,
    /// Whether it is started; otherwise it is in state `stop` from then on.
    pub starts: bool,
    /// Whether it is not started where that would take more memory than its node has.
    pub refuse_memory_overcommit: bool,
}

impl Ending {
    /// Result of the making, if it has ended.
    pub fn reached(&self, cluster: &Cluster) -> Option<Fact> {
        match &cluster.vms.get(&self.vm)?.state {
            VmState::Provision => None,
            VmState::Stop if self.starts => {
                Some(Fact::NotStarted("its node has logged why, or somebody stopped it".to_owned()))
            }
            _ => Some(Fact::Done),
        }
    }

    /// The changes that end the making; `None` if the VM is not the job's any more.
    pub fn reach(&self, cluster: &Cluster) -> Option<(Changes, Fact)> {
        cluster.vms.get(&self.vm).filter(|vm| vm.state == VmState::Provision)?;
        let start = || start_changes(cluster, self.vm, self.refuse_memory_overcommit);
        let refused = match self.starts.then(start) {
            Some(Ok(changes)) => return Some((changes, Fact::Done)),
            Some(Err(why)) => Some(Fact::NotStarted(why.to_string())),
            None => None,
        };
        let mut changes = Changes::new();
        changes.vm(self.vm, VmChange::State(VmState::Stop)).expect(Expect::VmState(self.vm));
        Some((changes, refused.unwrap_or(Fact::Done)))
    }
}

/// Removes a volume for good, if it is there.
pub(super) async fn remove<E>(context: &Context, volume: &VolumeId) -> Result<(), Unwritten<E>>
where
    E: Refusal + From<StorageRefusal>,
{
    match context.tools.storage.remove(volume).await {
        Ok(()) | Err(StorageError::NoVolume { .. } | StorageError::NoPool { .. }) => {}
        Err(error) => return Err(of_storage(error)),
    }
    recorded(context, volume).await
}

/// Makes the records say whether the volume is there.
pub(super) async fn recorded<E>(context: &Context, volume: &VolumeId) -> Result<(), Unwritten<E>>
where
    E: Refusal + From<StorageRefusal>,
{
    let (store, storage) = (&context.tools.store, context.tools.storage.as_ref());
    let recorded = record_volume(store, storage, volume).await;
    recorded.map_err(|error| error.map_refused(E::from))?;
    Ok(())
}

pub(super) fn of_storage<E: Refusal + From<StorageRefusal>>(error: StorageError) -> Unwritten<E> {
    Unwritten::Refused(StorageRefusal::from(error).into())
}
