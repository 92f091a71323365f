//! Makes a VM whose first disk is a clone of an image.
//!
//! ```text
//!  record (state `provision`) ─ clone ─ resize ─ seed ─ finish (state `stop` or `start`)
//! ```
//!
//! The record comes first: it has the VM's name for itself, and says what its volumes are called.
//! While it is in state `provision` it is this job's: if the job is taken back, the volumes are
//! removed, and then the record. A VM that somebody has given another state is theirs, with its
//! volumes.

mod seed;

use async_trait::async_trait;
use bytes::Bytes;
use pvc_model::Uuid;
use pvc_model::cluster::Cluster;
use pvc_model::job::creation::{Seed, SeedFiles, VmCreation};
use pvc_model::storage::VolumeId;
use pvc_model::vm::volumes::users;
use pvc_model::vm::{VmRecord, VmState};
use pvc_ops::storage::{CloneKind, StorageRefusal, clone_volume, record_volume};
use pvc_ops::vm::{Define, DefineRefusal, Definition, StateRefusal, start_changes};
use pvc_ops::{Kind as RefusalKind, NoVm, Refusal};
use pvc_ports::{Storage, StorageError, aside};
use pvc_store::{Change, Changes, Expect, VmChange};
use serde::{Deserialize, Serialize};

use crate::context::{Context, Unwritten};
use crate::kind::Kind;

pub(crate) struct CreateVm {
    pub new: Box<VmCreation>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    Record,
    /// Makes the first disk of the image.
    Clone,
    /// Gives the first disk its size.
    Resize,
    /// Makes the disk with cloud-init's data.
    Seed,
    Finish,
}

/// Result of a step.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fact {
    Done,
    /// The reason why the VM was made and not started.
    NotStarted(String),
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
    #[error(transparent)]
    NoVm(#[from] NoVm),
}

impl Refusal for CreateError {
    fn kind(&self) -> RefusalKind {
        match self {
            CreateError::Define(why) => why.kind(),
            CreateError::Storage(why) => why.kind(),
            CreateError::NoVm(why) => why.kind(),
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
            CreateError::NoVm(_) | CreateError::Seed(_) | CreateError::Changed { .. } => None,
        }
    }
}

type Result<T, E = Unwritten<CreateError>> = std::result::Result<T, E>;

#[async_trait]
impl Kind for CreateVm {
    type Step = Step;
    type Fact = Fact;
    type Error = Unwritten<CreateError>;

    /// Looks for volumes of these names, too: from here on one that is there is taken for the
    /// job's own.
    async fn plan(&self, context: &Context) -> Result<Vec<Step>> {
        for volume in self.volumes() {
            if exists(context.tools.storage.as_ref(), volume).await? {
                return Err(CreateError::Taken { volume: volume.clone() }.into());
            }
        }
        let seed = self.new.seed.as_ref().map(|_| Step::Seed);
        let disks = [Step::Record, Step::Clone, Step::Resize].into_iter().chain(seed);
        Ok(disks.chain([Step::Finish]).collect())
    }

    fn doing(&self, step: &Step) -> String {
        let VmCreation { vm, image, disk, disk_bytes, start, .. } = &*self.new;
        match step {
            Step::Record => format!("defining VM \"{}\"", vm.name),
            Step::Clone => format!("cloning image {image} to volume {disk}"),
            Step::Resize => format!("giving volume {disk} {disk_bytes} bytes"),
            Step::Seed => "making the disk with cloud-init's data".to_owned(),
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
            Step::Clone => self.is_there(context, &self.new.disk).await?,
            Step::Resize => {
                let info = storage.volume(&self.new.disk).await.map_err(of_storage)?;
                info.size_bytes >= self.new.disk_bytes
            }
            Step::Seed => match &self.new.seed {
                Some(seed) => self.is_there(context, &seed.volume).await?,
                None => true,
            },
            Step::Finish => {
                let view = context.tools.store.fresh().await.map_err(Unwritten::Store)?;
                self.own(&view).is_none()
            }
        };
        Ok(is_done.then_some(Fact::Done))
    }

    async fn run(&self, context: &Context, step: &Step) -> Result<Fact> {
        let (store, storage) = (&context.tools.store, context.tools.storage.as_ref());
        match step {
            Step::Record => self.record(context).await?,
            Step::Clone => {
                let VmCreation { image, disk, .. } = &*self.new;
                let kind = CloneKind::CopyOnWrite;
                let cloned = clone_volume(store, storage, image, &disk.volume, kind, false).await;
                cloned.map_err(|error| error.map_refused(CreateError::from))?;
            }
            Step::Resize => {
                let VmCreation { disk, disk_bytes, .. } = &*self.new;
                storage.resize(disk, *disk_bytes, false).await.map_err(of_storage)?;
                recorded(context, disk).await?;
            }
            Step::Seed => {
                if let Some(seed) = &self.new.seed {
                    make_seed(context, seed).await?;
                }
            }
            Step::Finish => return self.finish(context).await,
        }
        Ok(Fact::Done)
    }

    async fn undo(&self, context: &Context, step: &Step) -> Result<()> {
        match step {
            Step::Record => self.forget(context).await,
            Step::Clone => self.remove(context, &self.new.disk).await,
            Step::Seed => match &self.new.seed {
                Some(seed) => self.remove(context, &seed.volume).await,
                None => Ok(()),
            },
            Step::Resize | Step::Finish => Ok(()),
        }
    }

    fn result(&self, _: &Context, facts: &[Fact]) -> String {
        let VmCreation { vm, start, .. } = &*self.new;
        let not_started = facts.iter().find_map(|fact| match fact {
            Fact::NotStarted(why) => Some(why),
            Fact::Done => None,
        });
        match not_started {
            Some(why) => format!("VM \"{}\" is made, and was not started: {why}", vm.name),
            None if *start => format!("VM \"{}\" is made, and starts", vm.name),
            None => format!("VM \"{}\" is made", vm.name),
        }
    }
}

impl CreateVm {
    /// Jobs of this kind have always known the UUID of their VM; the nil one is nobody's.
    fn uuid(&self) -> Uuid {
        self.new.vm.uuid.unwrap_or(Uuid::nil())
    }

    fn volumes(&self) -> impl Iterator<Item = &VolumeId> + Send {
        std::iter::once(&self.new.disk).chain(self.new.seed.iter().map(|seed| &seed.volume))
    }

    /// The VM, while it is this job's.
    fn own<'a>(&self, view: &'a Cluster) -> Option<&'a VmRecord> {
        let record = view.vms.get(&self.uuid())?;
        (record.state == VmState::Provision).then_some(&**record)
    }

    fn changed(&self) -> CreateError {
        CreateError::Changed { vm: self.new.vm.name.clone() }
    }

    async fn record(&self, context: &Context) -> Result<()> {
        let VmCreation { vm, xml, node, autostart, .. } = &*self.new;
        let ask = Define {
            expected: Some(vm.name.clone()),
            node: node.as_ref().map(ToString::to_string),
            autostart: *autostart,
            state: VmState::Provision,
            ..Define::new(xml.as_str())
        };
        let definition = Definition::read(ask).await.map_err(CreateError::from)?;
        let decide = |cluster: &Cluster| Ok(definition.define(cluster)?);
        let defined = context.change::<_, CreateError>(decide).await?;
        context.log(format!("VM \"{}\" is assigned to node {}", defined.name, defined.node));
        Ok(())
    }

    async fn finish(&self, context: &Context) -> Result<Fact> {
        let (uuid, starts) = (self.uuid(), self.new.start);
        let decide = |cluster: &Cluster| {
            if self.own(cluster).is_none() {
                return Err(self.changed());
            }
            let refused = match starts.then(|| start_changes(cluster, uuid)) {
                Some(Ok(changes)) => return Ok((changes, Fact::Done)),
                Some(Err(why)) => Some(why),
                None => None,
            };
            let mut changes = Changes::new();
            changes.vm(uuid, VmChange::State(VmState::Stop)).expect(Expect::VmState(uuid));
            let said = |why: StateRefusal| Fact::NotStarted(why.to_string());
            Ok((changes, refused.map_or(Fact::Done, said)))
        };
        context.change(decide).await
    }

    async fn forget(&self, context: &Context) -> Result<()> {
        let uuid = self.uuid();
        let decide = |cluster: &Cluster| {
            let mut changes = Changes::new();
            if self.own(cluster).is_some() {
                changes.push(Change::RemoveVm(uuid));
            }
            Ok((changes, ()))
        };
        context.change::<_, CreateError>(decide).await
    }

    /// Whether the volume is there, and is the VM's.
    async fn is_there(&self, context: &Context, volume: &VolumeId) -> Result<bool> {
        let storage = context.tools.storage.as_ref();
        let is_there = exists(storage, volume).await?;
        if is_there {
            recorded(context, volume).await?;
        }
        Ok(is_there)
    }

    /// Removes a volume of the VM for good: nobody has ever used it. One that a VM names by now
    /// which is not this job's is theirs.
    async fn remove(&self, context: &Context, volume: &VolumeId) -> Result<()> {
        let view = context.tools.store.fresh().await.map_err(Unwritten::Store)?;
        let is_own = |vm: &VmRecord| self.own(&view).is_some_and(|own| own.uuid == vm.uuid);
        if let Some(vm) = users(&view, volume).find(|vm| !is_own(vm)) {
            context.log(format!("volume {volume} stays: VM \"{}\" has it", vm.name));
            return Ok(());
        }
        match context.tools.storage.remove(volume).await {
            Ok(()) | Err(StorageError::NoVolume { .. } | StorageError::NoPool { .. }) => {}
            Err(error) => return Err(of_storage(error)),
        }
        recorded(context, volume).await?;
        // The image has a snapshot less.
        recorded(context, &self.new.image).await
    }
}

/// Writes the disk beside and gives it its name when it is whole.
async fn make_seed(context: &Context, Seed { volume, files }: &Seed) -> Result<()> {
    let files: SeedFiles = files.clone();
    let made = aside(move || seed::disk(&files)).await.map_err(CreateError::Seed)?;
    let streams = context.tools.storage.streams();
    let streams = streams.ok_or(CreateError::from(StorageRefusal::NoStreams))?;
    let size_bytes = made.len() as u64;
    let mut upload = streams.upload(volume, size_bytes, false).await.map_err(of_storage)?;
    upload.write(0, Bytes::from(made)).await.map_err(of_storage)?;
    upload.finish().await.map_err(of_storage)?;
    upload.commit().await.map_err(of_storage)?;
    recorded(context, volume).await
}

async fn recorded(context: &Context, volume: &VolumeId) -> Result<()> {
    let (store, storage) = (&context.tools.store, context.tools.storage.as_ref());
    let recorded = record_volume(store, storage, volume).await;
    recorded.map_err(|error| error.map_refused(CreateError::from))?;
    Ok(())
}

async fn exists(storage: &dyn Storage, volume: &VolumeId) -> Result<bool> {
    match storage.volume(volume).await {
        Ok(_) => Ok(true),
        Err(StorageError::NoVolume { .. }) => Ok(false),
        Err(error) => Err(of_storage(error)),
    }
}

fn of_storage(error: StorageError) -> Unwritten<CreateError> {
    CreateError::from(StorageRefusal::from(error)).into()
}
