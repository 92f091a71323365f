//! Makes a VM whose first disk is a clone of an image, or which installs a system on an empty disk
//! from a clone of one.
//!
//! ```text
//!  record (state `provision`) ─ clone ─ resize ─ seed ─ name each ─ finish (`stop` or `start`)
//!                                     └ blank ┘
//! ```
//!
//! The record comes first: it has the VM's name for itself. The disks have names that no other job
//! gives until they are whole, so that what is removed when the job is taken back is its own,
//! whatever somebody else has called as the VM's disks meanwhile. While the VM is in state
//! `provision` it is this job's; the way back begins with state `delete`, from which nobody starts
//! it. A VM that somebody has given another state is theirs, with its disks.

mod seed;

use async_trait::async_trait;
use bytes::Bytes;
use pvc_model::Uuid;
use pvc_model::cluster::Cluster;
use pvc_model::job::creation::{SeedFiles, VmCreation, name_in_the_making};
use pvc_model::storage::VolumeId;
use pvc_model::vm::VmState;
use pvc_ops::storage::{CloneKind, StorageRefusal, clone_volume};
use pvc_ops::vm::{DefineRefusal, Definition, definition_of};
use pvc_ops::{Kind as RefusalKind, Refusal};
use pvc_ports::{Course, Storage, StorageError, aside};
use pvc_store::{Change, Changes, Expect, VmChange};
use serde::{Deserialize, Serialize};

use super::new_vm::{self, Ending, Fact, recorded, remove};
use super::text;
use crate::context::{Context, Unwritten};
use crate::kind::Kind;

pub(crate) struct CreateVm {
    pub new: Box<VmCreation>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    Record,
    /// Makes the first disk of the image, or the medium.
    Clone,
    /// Gives the first disk its size.
    Resize,
    /// Makes the first disk, with nothing on it.
    Blank,
    /// Makes the disk with cloud-init's data.
    Seed,
    /// Gives a disk the name by which the VM has it.
    Name {
        #[serde(with = "text::volume")]
        disk: VolumeId,
    },
    Finish,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum CreateError {
    #[error(transparent)]
    Define(#[from] DefineRefusal),
    #[error(transparent)]
    Storage(#[from] StorageRefusal),
    #[error("volume `{volume}` exists already")]
    Taken { volume: VolumeId },
    #[error("the disk with cloud-init's data could not be made")]
    Seed(#[source] std::io::Error),
    #[error("VM `{vm}` was removed, or given another state, while it was made")]
    Changed { vm: String },
}

impl Refusal for CreateError {
    fn kind(&self) -> RefusalKind {
        match self {
            CreateError::Define(why) => why.kind(),
            CreateError::Storage(why) => why.kind(),
            CreateError::Taken { .. } | CreateError::Seed(_) | CreateError::Changed { .. } => {
                RefusalKind::Conflict
            }
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            CreateError::Define(why) => why.hint(),
            CreateError::Storage(why) => why.hint(),
            CreateError::Taken { .. } => {
                Some("remove or rename that volume, or choose another name for the VM".to_owned())
            }
            CreateError::Seed(_) | CreateError::Changed { .. } => None,
        }
    }
}

type Result<T, E = Unwritten<CreateError>> = std::result::Result<T, E>;

#[async_trait]
impl Kind for CreateVm {
    type Step = Step;
    type Fact = Fact;
    type Error = Unwritten<CreateError>;

    async fn plan(&self, context: &Context) -> Result<Vec<Step>> {
        for volume in self.disks() {
            if exists(context.tools.storage.as_ref(), volume).await? {
                return Err(CreateError::Taken { volume: volume.clone() }.into());
            }
        }
        let seed = self.new.seed.as_ref().map(|_| Step::Seed);
        let sized = if self.new.medium.is_some() { Step::Blank } else { Step::Resize };
        let made = [Step::Record, Step::Clone, sized].into_iter().chain(seed);
        let named = self.disks().map(|disk| Step::Name { disk: disk.clone() });
        Ok(made.chain(named).chain([Step::Finish]).collect())
    }

    fn doing(&self, step: &Step) -> String {
        let VmCreation { vm, image, disk, disk_bytes, start, .. } = &*self.new;
        match step {
            Step::Record => format!("defining VM \"{}\"", vm.name),
            Step::Clone => format!("cloning image {image}"),
            Step::Resize => format!("giving volume {disk} {disk_bytes} bytes"),
            Step::Blank => format!("making volume {disk} of {disk_bytes} bytes"),
            Step::Seed => "making the disk with cloud-init's data".to_owned(),
            Step::Name { disk } => format!("completing volume {disk}"),
            Step::Finish if *start => format!("starting VM \"{}\"", vm.name),
            Step::Finish => format!("completing VM \"{}\"", vm.name),
        }
    }

    async fn look(&self, context: &Context, step: &Step) -> Result<Option<Fact>> {
        let storage = context.tools.storage.as_ref();
        let is_done = match step {
            Step::Record => {
                let view = context.tools.store.fresh().await.map_err(Unwritten::Store)?;
                view.vms.contains_key(&self.uuid())
            }
            // Of which moment it is a clone is not known: it is made again.
            Step::Clone => false,
            Step::Resize => match storage.volume(&self.making(context, &self.new.disk)).await {
                Ok(info) => info.size_bytes >= self.new.disk_bytes,
                Err(StorageError::NoVolume { .. } | StorageError::NoPool { .. }) => false,
                Err(error) => return Err(of_storage(error)),
            },
            Step::Blank => exists(storage, &self.making(context, &self.new.disk)).await?,
            Step::Seed => match &self.new.seed {
                Some(seed) => exists(storage, &self.making(context, &seed.volume)).await?,
                None => true,
            },
            Step::Name { disk } => {
                let is_named = self.is_named(context, disk).await?;
                if is_named {
                    recorded::<CreateError>(context, &self.making(context, disk)).await?;
                    recorded::<CreateError>(context, disk).await?;
                }
                is_named
            }
            Step::Finish => {
                let view = context.tools.store.fresh().await.map_err(Unwritten::Store)?;
                return Ok(self.ending().reached(&view));
            }
        };
        Ok(is_done.then_some(Fact::Done))
    }

    async fn run(&self, context: &Context, step: &Step) -> Result<Fact> {
        let (store, storage) = (&context.tools.store, context.tools.storage.as_ref());
        match step {
            Step::Record => self.record(context).await?,
            Step::Clone => {
                let image = &self.new.image;
                let making = self.making(context, self.new.clone_of_image());
                // One that an earlier worker of this job has left.
                remove::<CreateError>(context, &making).await?;
                let (to, kind) = (&making.volume, CloneKind::CopyOnWrite);
                let cloned =
                    clone_volume(store, storage, image, to, kind, false, &Course::default()).await;
                cloned.map_err(|error| error.map_refused(CreateError::from))?;
            }
            Step::Resize => {
                let making = self.making(context, &self.new.disk);
                storage.resize(&making, self.new.disk_bytes, false).await.map_err(of_storage)?;
            }
            Step::Blank => {
                let making = self.making(context, &self.new.disk);
                match storage.create(&making, self.new.disk_bytes, false).await {
                    // One that an earlier worker of this job has made.
                    Err(StorageError::VolumeExists { .. }) => {}
                    made => made.map_err(of_storage)?,
                }
            }
            Step::Seed => {
                if let Some(seed) = &self.new.seed {
                    let making = self.making(context, &seed.volume);
                    make_seed(context, &making, &seed.files).await?;
                }
            }
            Step::Name { disk } => {
                let making = self.making(context, disk);
                match storage.rename(&making, &disk.volume).await {
                    Err(StorageError::VolumeExists { volume }) => {
                        return Err(CreateError::Taken { volume }.into());
                    }
                    renamed => renamed.map_err(of_storage)?,
                }
                recorded::<CreateError>(context, &making).await?;
                recorded::<CreateError>(context, disk).await?;
            }
            Step::Finish => return self.finish(context).await,
        }
        Ok(Fact::Done)
    }

    async fn undo(&self, context: &Context, step: &Step) -> Result<()> {
        match step {
            Step::Record => self.forget(context).await,
            Step::Clone => remove(context, &self.making(context, self.new.clone_of_image())).await,
            Step::Blank => remove(context, &self.making(context, &self.new.disk)).await,
            Step::Seed => match &self.new.seed {
                Some(seed) => remove(context, &self.making(context, &seed.volume)).await,
                None => Ok(()),
            },
            Step::Name { disk } => self.take_name_back(context, disk).await,
            Step::Resize | Step::Finish => Ok(()),
        }
    }

    /// Removes a disk that this worker has made once more: the VM has its own.
    async fn make_good(&self, context: &Context, step: &Step) -> Result<()> {
        match step {
            Step::Clone | Step::Blank | Step::Seed => self.undo(context, step).await,
            Step::Record | Step::Resize | Step::Name { .. } | Step::Finish => Ok(()),
        }
    }

    fn result(&self, _: &Context, facts: &[Fact]) -> String {
        let VmCreation { vm, start, .. } = &*self.new;
        match Fact::not_started(facts) {
            Some(why) => format!("VM \"{}\" is made, and was not started: {why}", vm.name),
            None if *start => format!("VM \"{}\" is made, and starts", vm.name),
            None => format!("VM \"{}\" is made", vm.name),
        }
    }
}

impl CreateVm {
    fn uuid(&self) -> Uuid {
        self.new.vm.uuid.expect("a job of this kind is not understood without one")
    }

    /// The disks by the names by which the VM has them.
    fn disks(&self) -> impl Iterator<Item = &VolumeId> + Send {
        let seed = self.new.seed.iter().map(|seed| &seed.volume);
        std::iter::once(&self.new.disk).chain(&self.new.medium).chain(seed)
    }

    fn making(&self, context: &Context, disk: &VolumeId) -> VolumeId {
        name_in_the_making(&context.job, disk)
    }

    /// Whether the disk has its name, which it was to get after it was whole: then there is none
    /// of its earlier name.
    async fn is_named(&self, context: &Context, disk: &VolumeId) -> Result<bool> {
        let storage = context.tools.storage.as_ref();
        let is_made = exists(storage, &self.making(context, disk)).await?;
        Ok(!is_made && exists(storage, disk).await?)
    }

    fn ending(&self) -> Ending {
        Ending {
            vm: self.uuid(),
            starts: self.new.start,
            refuse_memory_overcommit: self.new.refuse_memory_overcommit,
        }
    }

    fn changed(&self) -> CreateError {
        CreateError::Changed { vm: self.new.vm.name.clone() }
    }

    async fn record(&self, context: &Context) -> Result<()> {
        let definition = Definition::read(definition_of(&self.new)).await;
        let definition = definition.map_err(CreateError::from)?;
        let decide = |cluster: &Cluster| Ok(definition.define(cluster)?);
        let defined = context.change::<_, CreateError>(decide).await?;
        context.log(format!("VM \"{}\" is assigned to node {}", defined.name, defined.node));
        Ok(())
    }

    async fn finish(&self, context: &Context) -> Result<Fact> {
        let ending = self.ending();
        context.change(|cluster| ending.reach(cluster).ok_or_else(|| self.changed())).await
    }

    /// Has the VM in state `delete`, from which nobody starts it: the way back has begun. `false`
    /// if it is not this job's any more.
    async fn lock_out(&self, context: &Context) -> Result<bool> {
        let uuid = self.uuid();
        let decide = |cluster: &Cluster| {
            let mut changes = Changes::new();
            let state = cluster.vms.get(&uuid).map(|vm| vm.state.clone());
            if state == Some(VmState::Provision) {
                changes.vm(uuid, VmChange::State(VmState::Delete)).expect(Expect::VmState(uuid));
            }
            Ok((changes, matches!(state, Some(VmState::Provision | VmState::Delete))))
        };
        match context.change::<_, CreateError>(decide).await {
            // Another worker has the job, or it is over: the VM is not this one's to take back.
            Err(Unwritten::Lost) => Ok(false),
            done => done,
        }
    }

    /// Gives a disk that has its name the earlier one back, by which it is removed.
    async fn take_name_back(&self, context: &Context, disk: &VolumeId) -> Result<()> {
        let is_own = self.lock_out(context).await?;
        let is_named = self.is_named(context, disk).await?;
        if is_named && is_own {
            let making = self.making(context, disk);
            let storage = context.tools.storage.as_ref();
            storage.rename(disk, &making.volume).await.map_err(of_storage)?;
        } else if is_named {
            context.log(format!("volume {disk} stays: the VM is not this task's any more"));
        }
        // Also one that was recorded by a worker that did not know that it had lost the job.
        recorded(context, disk).await
    }

    async fn forget(&self, context: &Context) -> Result<()> {
        if !self.lock_out(context).await? {
            return Ok(());
        }
        let uuid = self.uuid();
        let decide = |cluster: &Cluster| {
            let mut changes = Changes::new();
            if cluster.vms.get(&uuid).is_some_and(|vm| vm.state == VmState::Delete) {
                changes.push(Change::RemoveVm(uuid));
            }
            Ok((changes, ()))
        };
        context.change::<_, CreateError>(decide).await
    }
}

/// Makes the disk with cloud-init's data; one that is there is left as it is.
async fn make_seed(context: &Context, volume: &VolumeId, files: &SeedFiles) -> Result<()> {
    let files = files.clone();
    let made = aside(move || seed::disk(&files)).await.map_err(CreateError::Seed)?;
    let streams = context.tools.storage.streams();
    let streams = streams.ok_or(CreateError::from(StorageRefusal::NoStreams))?;
    let size_bytes = made.len() as u64;
    let mut upload = streams.upload(volume, size_bytes, false).await.map_err(of_storage)?;
    upload.write(0, Bytes::from(made)).await.map_err(of_storage)?;
    upload.finish().await.map_err(of_storage)?;
    match upload.commit().await {
        Ok(()) | Err(StorageError::VolumeExists { .. }) => Ok(()),
        Err(error) => Err(of_storage(error)),
    }
}

async fn exists(storage: &dyn Storage, volume: &VolumeId) -> Result<bool> {
    pvc_ops::storage::exists(storage, volume).await.map_err(of_storage)
}

fn of_storage(error: StorageError) -> Unwritten<CreateError> {
    new_vm::of_storage(error)
}
