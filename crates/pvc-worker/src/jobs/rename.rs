//! Gives a VM that is off another name: first its volumes, one after the other, then all records at
//! once.
//!
//! The record says what the volumes are called. A volume whose name differs from it belongs to a
//! renaming that has not ended, or was taken back.

use std::collections::BTreeMap;

use async_trait::async_trait;
use pvc_model::Uuid;
use pvc_model::job::course::{Cause, Course};
use pvc_model::job::{JobVm, Steps};
use pvc_model::storage::VolumeId;
use pvc_ops::vm::{RenameRefusal, Renamed, plan_rename, record_renamed, rename_records};
use pvc_ports::{Storage, StorageError};
use pvc_store::FormerRenaming;
use serde::{Deserialize, Serialize};

use super::{find, text};
use crate::context::{Context, Unwritten};
use crate::kind::{Kind, written};

pub(crate) struct RenameVm {
    pub vm: JobVm,
    pub to: String,
}

/// A volume by its old and its new name.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Volume {
    #[serde(with = "text::volume")]
    old: VolumeId,
    #[serde(with = "text::volume")]
    new: VolumeId,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    Volume { vm: Uuid, volume: Volume },
    Records { vm: Uuid, from: String, volumes: Vec<Volume> },
}

type Result<T, E = Unwritten<RenameRefusal>> = std::result::Result<T, E>;

#[async_trait]
impl Kind for RenameVm {
    type Step = Step;
    type Fact = ();
    type Error = Unwritten<RenameRefusal>;

    async fn plan(&self, context: &Context) -> Result<Vec<Step>> {
        let view = context.tools.store.fresh().await.map_err(Unwritten::Store)?;
        let record = find(&self.vm, &view).map_err(RenameRefusal::from)?;
        let renames = plan_rename(&view, context.tools.storage.as_ref(), record, &self.to).await?;
        let volumes = renames.into_iter().map(|(old, new)| Volume { old, new }).collect();
        Ok(steps(record.uuid, &record.name, volumes))
    }

    fn doing(&self, step: &Step) -> String {
        match step {
            Step::Volume { volume: Volume { old, new }, .. } => {
                format!("renaming volume {old} to {}", new.volume)
            }
            Step::Records { from, .. } => format!("recording VM \"{from}\" as \"{}\"", self.to),
        }
    }

    async fn look(&self, context: &Context, step: &Step) -> Result<Option<()>> {
        let is_done = match step {
            Step::Volume { volume, .. } => {
                let storage = context.tools.storage.as_ref();
                !exists(storage, &volume.old).await? && exists(storage, &volume.new).await?
            }
            Step::Records { vm, volumes, .. } => {
                let view = context.tools.store.fresh().await.map_err(Unwritten::Store)?;
                let is_done = view.vms.get(vm).is_some_and(|record| record.name == self.to);
                // The second half of the step, which can be done as often as one likes.
                if is_done {
                    record(context, volumes).await?;
                }
                is_done
            }
        };
        Ok(is_done.then_some(()))
    }

    async fn run(&self, context: &Context, step: &Step) -> Result<()> {
        match step {
            Step::Volume { volume: Volume { old, new }, .. } => {
                let renamed = context.tools.storage.rename(old, &new.volume).await;
                Ok(renamed.map_err(|source| failed(old, source))?)
            }
            Step::Records { vm, from, volumes } => {
                let (uuid, from, to) = (*vm, from.clone(), self.to.clone());
                let names: BTreeMap<VolumeId, VolumeId> =
                    volumes.iter().map(|volume| (volume.old.clone(), volume.new.clone())).collect();
                let renamed = Renamed { uuid, from, to, volumes: names };
                context.change(|cluster| Ok((rename_records(cluster, &renamed)?, ()))).await?;
                record(context, volumes).await
            }
        }
    }

    /// Records that were written are the end of the job, so that there are none to take back.
    async fn undo(&self, context: &Context, step: &Step) -> Result<()> {
        match step {
            Step::Volume { vm, volume } => give_name_back(context, *vm, volume).await,
            Step::Records { .. } => Ok(()),
        }
    }

    fn result(&self, _: &Context, _: &[()]) -> String {
        format!("VM \"{}\" is called \"{}\" now", self.vm.name, self.to)
    }
}

/// The steps of a renaming of VM `vm`, which is called `from`.
fn steps(vm: Uuid, from: &str, volumes: Vec<Volume>) -> Vec<Step> {
    let of_volumes = volumes.iter().map(|volume| Step::Volume { vm, volume: volume.clone() });
    let mut steps: Vec<Step> = of_volumes.collect();
    steps.push(Step::Records { vm, from: from.to_owned(), volumes });
    steps
}

/// Renaming that an earlier version left half way, as the steps of a job that is to be taken back.
pub(crate) fn left_half_way(former: &FormerRenaming) -> Steps {
    let names = |(old, new): &(VolumeId, VolumeId)| Volume { old: old.clone(), new: new.clone() };
    let steps = steps(former.vm, &former.from, former.volumes.iter().map(names).collect());
    let course = Course::Back { left: former.volumes.len() as u32, cause: Cause::WorkerLost };
    Steps { planned: steps.iter().map(written).collect(), facts: Vec::new(), course }
}

/// Has the volume be called `old`, whether it is so already or it is called `new`. Renaming is one
/// step in the storage: a volume that is called `old` is the VM's, whatever else has the new name.
async fn give_name_back(context: &Context, vm: Uuid, volume: &Volume) -> Result<()> {
    let Volume { old, new } = volume;
    let view = context.tools.store.fresh().await.map_err(Unwritten::Store)?;
    let own = view.vms.get(&vm).map(|record| record.volumes()).unwrap_or_default();
    // Renamed by another job since, when this one was taken back long ago, or defined so by
    // somebody who saw the new name: the VM has it by that name.
    let keeps_new = own.contains(new) && !own.contains(old);
    let storage = context.tools.storage.as_ref();
    if !keeps_new && !exists(storage, old).await? && exists(storage, new).await? {
        storage.rename(new, &old.volume).await.map_err(|source| failed(old, source))?;
        context.log(format!("volume {new} is called {} again", old.volume));
    }
    record(context, std::slice::from_ref(volume)).await
}

/// Records the volumes as they are, by whichever names they have: somebody may have changed one
/// while it was on its way.
async fn record(context: &Context, volumes: &[Volume]) -> Result<()> {
    let (store, storage) = (&context.tools.store, context.tools.storage.as_ref());
    let names: Vec<_> = volumes.iter().map(|it| (it.old.clone(), it.new.clone())).collect();
    Ok(record_renamed(store, storage, &names).await?)
}

async fn exists(storage: &dyn Storage, volume: &VolumeId) -> Result<bool, RenameRefusal> {
    pvc_ops::storage::exists(storage, volume).await.map_err(|source| failed(volume, source))
}

fn failed(volume: &VolumeId, source: StorageError) -> RenameRefusal {
    RenameRefusal::Volume { volume: volume.clone(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::read;

    #[test]
    fn steps_and_facts_of_the_versions_before_are_read() {
        let uuid = "2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1";
        let volume = r#"{"old":"vms/web1_sda","new":"vms/shop_sda"}"#;
        let names = |volume: &Volume| (volume.old.to_string(), volume.new.to_string());
        let wanted = || ("vms/web1_sda".to_owned(), "vms/shop_sda".to_owned());

        let text = format!(r#"{{"volume":{{"vm":"{uuid}","volume":{volume}}}}}"#);
        let step: Step = read(&text).expect("as it was recorded");
        assert_eq!(written(&step), text);
        let Step::Volume { vm, volume: found } = step else { panic!("{text} is another step") };
        assert_eq!((vm.to_string().as_str(), names(&found)), (uuid, wanted()));

        let text = format!(r#"{{"records":{{"vm":"{uuid}","from":"web1","volumes":[{volume}]}}}}"#);
        let step: Step = read(&text).expect("as it was recorded");
        assert_eq!(written(&step), text);
        let Step::Records { vm, from, volumes } = step else { panic!("{text} is another step") };
        assert_eq!((vm.to_string().as_str(), from.as_str()), (uuid, "web1"));
        assert_eq!(volumes.iter().map(names).collect::<Vec<_>>(), [wanted()]);

        read::<<RenameVm as Kind>::Fact>("null").expect("as it was recorded");
        assert_eq!(written(&()), "null");
    }
}
