//! Functions that a script calls.

use pvc_model::job::provision::name_in_the_making;
use pvc_model::request::StateRequest;
use pvc_model::size::parse_size;
use pvc_model::storage::{PoolName, SnapshotName, VolumeId, VolumeName};
use pvc_model::vm::VmState;
use pvc_model::with_causes;
use pvc_ops::Refusal;
use pvc_ops::storage::{
    self, CloneKind, StorageRefusal, clone_volume, create_volume, exists, rename_volume,
    resize_volume,
};
use pvc_ports::{Course, StorageError};
use pvc_store::ChangeError;
use serde_json::{Map, Value, json};

use super::build::Session;
use super::ledger::{Made, MadeVolume, NotNoted, amend, note};
use super::{devices, records, vms};
use crate::context::Unwritten;

/// Reason why a call has no result.
#[derive(Debug)]
pub(super) enum CallError {
    /// The script is told so.
    Raised(String),
    /// Another worker has the job: the script is ended.
    Lost,
}

/// Reason why a call was not carried out, for the script: `[false, MESSAGE]`.
pub(super) struct Refused(pub String);

pub(super) enum Failed {
    Refused(Refused),
    Call(CallError),
}

impl From<ChangeError<StorageRefusal>> for Failed {
    fn from(error: ChangeError<StorageRefusal>) -> Self {
        match error {
            ChangeError::Refused(why) => Failed::Refused(Refused(with_causes(&why))),
            other => Failed::Call(CallError::Raised(with_causes(&other))),
        }
    }
}

impl<E: Refusal> From<Unwritten<E>> for Failed {
    fn from(error: Unwritten<E>) -> Self {
        match error {
            Unwritten::Refused(why) => Failed::Refused(Refused(with_causes(&why))),
            Unwritten::Lost => Failed::Call(CallError::Lost),
            other => Failed::Call(CallError::Raised(with_causes(&other))),
        }
    }
}

impl From<StorageError> for Failed {
    fn from(error: StorageError) -> Self {
        Failed::Refused(Refused(with_causes(&error)))
    }
}

impl From<NotNoted> for Failed {
    fn from(error: NotNoted) -> Self {
        match error {
            NotNoted::TooMany => Failed::Refused(Refused(error.to_string())),
            NotNoted::Lost => Failed::Call(CallError::Lost),
        }
    }
}

pub(super) type Done<T = String> = Result<T, Failed>;

/// Carries out a call and returns its result. What is made is written down before it is.
pub(super) async fn serve(
    session: &mut Session<'_>,
    function: &str,
    arguments: &Map<String, Value>,
    course: &Course,
) -> Result<Value, CallError> {
    let given = Arguments(arguments);
    let done = match function {
        "ceph.add_volume" => add_volume(session, &given).await,
        "ceph.clone_volume" => copy_volume(session, &given, course).await,
        "ceph.remove_volume" => remove_volume(session, &given).await,
        "ceph.resize_volume" => resize(session, &given).await,
        "ceph.rename_volume" => rename(session, &given).await,
        "ceph.map_volume" => devices::map(session, &given, course).await,
        "ceph.unmap_volume" => devices::unmap(session, &given).await,
        "ceph.add_snapshot" | "ceph.remove_snapshot" | "ceph.rollback_snapshot" => {
            snapshot(session, function, &given).await
        }
        "vm.define_vm" => vms::define(session, &given).await,
        "vm.start_vm" => vms::ask(session, &given, StateRequest::Start).await,
        "vm.stop_vm" => vms::ask(session, &given, StateRequest::Stop).await,
        "vm.shutdown_vm" => vms::ask(session, &given, StateRequest::Shutdown).await,
        "vm.undefine_vm" => vms::remove(session, &given, false).await,
        "vm.remove_vm" => vms::remove(session, &given, true).await,
        "zk.read" | "zk.exists" | "zk.children" => {
            return records::read(session, function, &given).await;
        }
        "zk.write" | "zk.delete" => return Err(records::not_written()),
        _ => {
            let view = session.context.tools.store.view();
            if let Some(found) = (session.tools.lists)(&view, function, arguments) {
                return Ok(match found {
                    Ok(list) => json!([true, list]),
                    Err(why) => json!([false, format!("ERROR: {why}")]),
                });
            }
            return Err(CallError::Raised(format!(
                "this version does not have `{function}` for scripts: \
                 docs/manual/provisioner-scripts.md lists what it has"
            )));
        }
    };
    match done {
        Ok(message) => Ok(json!([true, message])),
        Err(Failed::Refused(Refused(why))) => Ok(json!([false, format!("ERROR: {why}")])),
        Err(Failed::Call(why)) => Err(why),
    }
}

/// Arguments of a call, which a script may have got wrong.
pub(super) struct Arguments<'a>(&'a Map<String, Value>);

impl Arguments<'_> {
    pub fn text(&self, name: &str) -> Done {
        match self.0.get(name) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(Value::Number(number)) => Ok(number.to_string()),
            _ => Err(wrong(format!("the argument `{name}` is no text"))),
        }
    }

    /// An argument as it came; null if it did not.
    pub fn value(&self, name: &str) -> &Value {
        self.0.get(name).unwrap_or(&Value::Null)
    }

    pub fn is_set(&self, name: &str) -> bool {
        self.value(name).as_bool().unwrap_or(false)
    }

    pub fn volume(&self, name: &str) -> Done<VolumeId> {
        let pool = PoolName::new(self.text("pool")?);
        Ok(VolumeId { pool, volume: checked(&self.text(name)?)? })
    }

    fn bytes(&self) -> Done<u64> {
        let size = self.text("size")?;
        parse_size(&size).map_err(|why| Failed::Refused(Refused(format!("size `{size}`: {why}"))))
    }
}

/// Failure of a call whose arguments are not of its kinds.
pub(super) fn wrong(why: String) -> Failed {
    Failed::Call(CallError::Raised(why))
}

fn checked(name: &str) -> Done<VolumeName> {
    VolumeName::parse(name).map_err(|why| Failed::Refused(Refused(why.to_string())))
}

async fn add_volume(session: &Session<'_>, given: &Arguments<'_>) -> Done {
    let (volume, force) = (given.volume("name")?, given.is_set("force_flag"));
    let tools = &session.context.tools;
    if given.is_set("zk_only") {
        // The script has made it by itself, and takes care of it by itself.
        storage::scan(&tools.store, tools.storage.as_ref(), &volume).await?;
        return Ok(format!("Added volume \"{volume}\"."));
    }
    let bytes = given.bytes()?;
    make(session, &volume, async |making: &VolumeId| {
        create_volume(&tools.store, tools.storage.as_ref(), making, bytes, force).await
    })
    .await?;
    Ok(format!("Created RBD volume \"{volume}\" of {bytes} bytes."))
}

async fn copy_volume(session: &Session<'_>, given: &Arguments<'_>, course: &Course) -> Done {
    let (from, to) = (given.volume("name_src")?, given.volume("name_new")?);
    let (tools, force) = (&session.context.tools, given.is_set("force_flag"));
    make(session, &to, async |making: &VolumeId| {
        let (store, storage) = (&tools.store, tools.storage.as_ref());
        let kind = CloneKind::Full;
        clone_volume(store, storage, &from, &making.volume, kind, force, course).await
    })
    .await?;
    Ok(format!("Cloned RBD volume \"{from}\" to \"{}\".", to.volume))
}

/// Makes a volume under a name that nobody else gives, and gives it its own when it is known by its
/// identity.
async fn make(
    session: &Session<'_>,
    volume: &VolumeId,
    make: impl AsyncFnOnce(&VolumeId) -> Result<(), ChangeError<StorageRefusal>>,
) -> Done<()> {
    let context = session.context;
    let (store, storage) = (&context.tools.store, context.tools.storage.as_ref());
    if exists(storage, volume).await? {
        return Err(StorageError::VolumeExists { volume: volume.clone() }.into());
    }
    let making = name_in_the_making(&context.job, context.progress().made.len(), volume);
    let mut made = MadeVolume { making: making.clone(), name: volume.clone(), identity: None };
    let number = note(context, &Made::Volume(made.clone())).await?;
    make(&making).await?;
    made.identity = Some(storage.measured(&making).await?.identity);
    amend(context, number, &Made::Volume(made)).await?;
    let named = rename_volume(store, storage, &making, &volume.volume, false).await;
    if named.is_err() {
        storage.remove(&making).await?;
        storage::record_volume(store, storage, &making).await?;
    }
    Ok(named?)
}

/// Whether the volume is of this job's own VM, which is being made and has no guest, so that only
/// others can be in the way of what its script does to it: the script may have it mapped.
async fn is_of_own_vm(session: &Session<'_>, volume: &VolumeId) -> Done<bool> {
    let (own, job) = (session.uuid(), &session.context.job);
    let view = session.context.tools.store.fresh().await.map_err(ChangeError::Store)?;
    let vm = view.vms.get(&own).filter(|vm| vm.state == VmState::Provision);
    if !vm.is_some_and(|vm| vm.named_volumes().any(|named| named == volume)) {
        return Ok(false);
    }
    storage::require_no_other_user(&view, volume, own, job).map_err(ChangeError::Refused)?;
    Ok(true)
}

async fn remove_volume(session: &Session<'_>, given: &Arguments<'_>) -> Done {
    let volume = given.volume("name")?;
    let tools = &session.context.tools;
    let (store, storage) = (&tools.store, tools.storage.as_ref());
    if is_of_own_vm(session, &volume).await? {
        storage.remove(&volume).await?;
        storage::record_volume(store, storage, &volume).await?;
        return Ok(format!("Removed RBD volume \"{volume}\"."));
    }
    storage::remove_volume(store, storage, &volume, std::time::Duration::ZERO, false).await?;
    Ok(format!("Removed RBD volume \"{volume}\"."))
}

async fn resize(session: &Session<'_>, given: &Arguments<'_>) -> Done {
    let (volume, bytes) = (given.volume("name")?, given.bytes()?);
    let (tools, force) = (&session.context.tools, given.is_set("force_flag"));
    let (store, storage) = (&tools.store, tools.storage.as_ref());
    let (clock, random) = (tools.clock.as_ref(), tools.random.as_ref());
    if is_of_own_vm(session, &volume).await? {
        // No guest has it.
        storage.resize(&volume, bytes, force).await?;
        storage::record_volume(store, storage, &volume).await?;
        return Ok(format!("Resized RBD volume \"{volume}\" to {bytes} bytes."));
    }
    let by = format!("task {}", session.context.job);
    resize_volume(store, storage, clock, random, &volume, bytes, force, &by).await?;
    Ok(format!("Resized RBD volume \"{volume}\" to {bytes} bytes."))
}

async fn rename(session: &Session<'_>, given: &Arguments<'_>) -> Done {
    let (volume, to) = (given.volume("name")?, checked(&given.text("new_name")?)?);
    let tools = &session.context.tools;
    let (store, storage) = (&tools.store, tools.storage.as_ref());
    // One that the script has made is this job's by its new name as well.
    let identity = Some(storage.measured(&volume).await?.identity);
    let known = super::ledger::all(&session.context.progress());
    let own = known.into_iter().find_map(|made| match made {
        Made::Volume(made) if made.identity == identity && made.name.pool == volume.pool => {
            Some(made)
        }
        _ => None,
    });
    if let Some(own) = own {
        let name = VolumeId { pool: volume.pool.clone(), volume: to.clone() };
        note(session.context, &Made::Volume(MadeVolume { name, ..own })).await?;
    }
    match is_of_own_vm(session, &volume).await? {
        true => {
            let own = (session.uuid(), &session.context.job);
            storage::rename_own_volume(store, storage, &volume, &to, own).await?;
        }
        false => rename_volume(store, storage, &volume, &to, false).await?,
    }
    Ok(format!("Renamed RBD volume \"{volume}\" to \"{to}\"."))
}

async fn snapshot(session: &Session<'_>, function: &str, given: &Arguments<'_>) -> Done {
    let volume = given.volume("volume")?;
    let name = SnapshotName::new(given.text("name")?);
    let tools = &session.context.tools;
    let (store, storage) = (&tools.store, tools.storage.as_ref());
    let act = match function {
        "ceph.add_snapshot" => {
            let random = tools.random.as_ref();
            storage::create_snapshot(store, storage, random, &volume, &name).await?;
            // Of its own volumes they go with those; others' stay.
            session.context.log(format!("the script has made snapshot {volume}@{name}"));
            "Created"
        }
        "ceph.remove_snapshot" => {
            storage::remove_snapshot(store, storage, &volume, &name, false).await?;
            "Removed"
        }
        _ if is_of_own_vm(session, &volume).await? => {
            storage.roll_back(&volume, &name).await?;
            storage::record_volume(store, storage, &volume).await?;
            "Rolled back to"
        }
        _ => {
            storage::roll_back(store, storage, tools.random.as_ref(), &volume, &name).await?;
            "Rolled back to"
        }
    };
    Ok(format!("{act} RBD snapshot \"{name}\" of volume \"{volume}\"."))
}
