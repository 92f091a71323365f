//! Renaming a VM, and with it what is named after it: asked for here, done by a worker.

use std::collections::BTreeMap;
use std::time::Duration;

use pvc_domain::{Domain, DomainError, EditError, VM_NAME_LIMIT, renamed_volume};
use pvc_model::cluster::Cluster;
use pvc_model::hold::{Held, check_none_held, check_not_held};
use pvc_model::job::{JobVm, JobWork, worker_for};
use pvc_model::request::is_off;
use pvc_model::storage::VolumeId;
use pvc_model::vm::{VmRecord, VmState};
use pvc_model::{BadName, Uuid, check_name};
use pvc_ports::{Clock, Random, Storage, StorageError};
use pvc_store::{Change, ChangeError, Changes, Expect, Store, VmChange};

use super::{name_taken, other_user, runner};
use crate::job::{JobRequest, Unfinished, submit, wait_for_end};
use crate::refusal::{BeingRenamed, Kind, NoVm, Refusal, check_not_being_renamed, find_vm};
use crate::storage::{StorageRefusal, exists, record_whole};
use crate::wait::wait_for;

/// Time that a VM whose stop was written may take to be gone.
const OFF_TIME_LIMIT: Duration = Duration::from_secs(20);

/// Request to rename a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rename {
    /// Name or UUID.
    pub vm: String,
    pub to: String,
    /// Author of the request: the description of the API token, or the program.
    pub submitter: String,
}

/// A VM with a new name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renamed {
    pub uuid: Uuid,
    pub from: String,
    pub to: String,
    /// Volumes by their old and new names.
    pub volumes: BTreeMap<VolumeId, VolumeId>,
}

#[derive(Debug, thiserror::Error)]
pub enum RenameRefusal {
    #[error(transparent)]
    NoVm(#[from] NoVm),
    #[error(transparent)]
    BeingRenamed(#[from] BeingRenamed),
    #[error(transparent)]
    Held(#[from] Held),
    #[error(transparent)]
    BadName(#[from] BadName),
    #[error("VM name `{name}` is written like a UUID")]
    NameLikeUuid { name: String },
    #[error("a VM called `{name}` exists already")]
    NameTaken { name: String },
    #[error("VM `{vm}` is in state `{state}`; it can be renamed in `stop`, `disable` and `mirror`")]
    NotOff { vm: String, state: VmState },
    #[error("VM `{vm}` still runs")]
    StillRuns { vm: String },
    #[error("the domain XML of VM `{vm}` cannot be read")]
    Unreadable {
        vm: String,
        #[source]
        source: DomainError,
    },
    #[error("the domain XML of VM `{vm}` cannot be changed")]
    Edit {
        vm: String,
        #[source]
        source: EditError,
    },
    #[error("volume `{volume}` of VM `{vm}` is used by VM `{other}`, too")]
    Shared { vm: String, volume: VolumeId, other: String },
    #[error("volume `{volume}` exists already")]
    VolumeTaken { volume: VolumeId },
    #[error("volume `{volume}` could not be renamed; the VM is as it was")]
    Volume {
        volume: VolumeId,
        #[source]
        source: StorageError,
    },
    #[error("the records of volume `{volume}` could not be made to say how it is")]
    Unrecorded {
        volume: VolumeId,
        #[source]
        source: Box<StorageRefusal>,
    },
    #[error("VM `{vm}` was changed by somebody else during the renaming")]
    Changed { vm: String },
    #[error("no worker runs that can rename VMs")]
    NoWorker,
    #[error(transparent)]
    Unfinished(#[from] Unfinished),
}

impl Refusal for RenameRefusal {
    fn kind(&self) -> Kind {
        match self {
            RenameRefusal::NoVm(error) => error.kind(),
            RenameRefusal::BadName(_) | RenameRefusal::NameLikeUuid { .. } => Kind::Invalid,
            RenameRefusal::Volume { .. }
            | RenameRefusal::Unrecorded { .. }
            | RenameRefusal::NoWorker => Kind::Unavailable,
            RenameRefusal::Unfinished(error) => error.kind(),
            _ => Kind::Conflict,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            RenameRefusal::NoVm(error) => error.hint(),
            RenameRefusal::BeingRenamed(error) => error.hint(),
            RenameRefusal::Held(held) => Some(held.hint()),
            RenameRefusal::NotOff { vm, .. } | RenameRefusal::StillRuns { vm } => {
                Some(format!("`pvc vm shutdown --wait {vm}` stops it"))
            }
            RenameRefusal::Unreadable { vm, .. } | RenameRefusal::Edit { vm, .. } => {
                Some(format!("`pvc vm modify {vm} FILE` replaces the XML"))
            }
            RenameRefusal::VolumeTaken { .. } => {
                Some("rename or remove that volume, or choose another name for the VM".to_owned())
            }
            RenameRefusal::NoWorker => {
                Some("start `pvcworkerd` on a node with this version of PVC".to_owned())
            }
            RenameRefusal::Unfinished(error) => error.hint(),
            RenameRefusal::Changed { .. } => Some("look at the VM, and rename it again".to_owned()),
            _ => None,
        }
    }
}

/// Gives a VM another name. Its volumes that are named after it follow, in the storage and in all
/// records. The VM must be off. A worker does it, all of it or nothing, and is waited for until
/// `time_limit`.
///
/// # Cancellation
/// May be dropped: what was submitted is done all the same.
pub async fn rename(
    store: &Store,
    clock: &dyn Clock,
    random: &dyn Random,
    storage: &dyn Storage,
    ask: &Rename,
    time_limit: Duration,
) -> Result<Renamed, ChangeError<RenameRefusal>> {
    let Rename { vm, to, submitter } = ask;
    let cluster = store.fresh().await?;
    let record = may_be_renamed(&cluster, vm, to).map_err(ChangeError::Refused)?;
    let uuid = record.uuid;
    let gone = |cluster: &Cluster| runner(cluster, uuid).is_none().then_some(());
    if wait_for(store, clock, OFF_TIME_LIMIT, gone).await.is_none() {
        return Err(ChangeError::Refused(RenameRefusal::StillRuns { vm: record.name.clone() }));
    }
    let volumes =
        volumes_to_rename(storage, &cluster, record, to).await.map_err(ChangeError::Refused)?;
    let submitted = submit(store, clock, random, |cluster| request(cluster, record, to, submitter));
    let spec = submitted.await?;
    let what = format!("the renaming of VM `{}`", record.name);
    let ended = wait_for_end(store, clock, &spec, &what, time_limit).await;
    ended.map_err(|unfinished| ChangeError::Refused(RenameRefusal::from(unfinished)))?;
    Ok(Renamed { uuid, from: record.name.clone(), to: to.clone(), volumes })
}

/// The job, if the VM still is as it was, with what must not change until it is submitted.
fn request(
    cluster: &Cluster,
    decided_on: &VmRecord,
    to: &str,
    submitter: &str,
) -> Result<(JobRequest, Changes), RenameRefusal> {
    let vm = || decided_on.name.clone();
    let record = cluster.vms.get(&decided_on.uuid).ok_or_else(|| NoVm { vm: vm() })?;
    if record.xml != decided_on.xml || record.name != decided_on.name {
        return Err(RenameRefusal::Changed { vm: vm() });
    }
    check(cluster, record, to)?;
    check_not_being_renamed(cluster, record)?;
    check_none_held(cluster, record)?;
    // A volume that is given new contents has no name for a moment.
    let new_names = record.named_volumes().filter_map(|own| renamed_volume(&record.name, to, own));
    for name in new_names {
        check_not_held(cluster, &name, None)?;
    }
    let work = JobWork::RenameVm { vm: JobVm::new(record), to: to.to_owned() };
    let node = worker_for(cluster, &work, record.node.as_ref()).ok_or(RenameRefusal::NoWorker)?;
    let mut expected = Changes::new();
    expected
        .expect(Expect::VmNames)
        .expect(Expect::Holds)
        .expect(Expect::VmState(record.uuid))
        .expect(Expect::VmXml(record.uuid));
    let (run_on, submitter) = (node.to_string(), submitter.to_owned());
    Ok((JobRequest { work, node, run_on, submitter }, expected))
}

/// Predicts [`rename`] on this view, as far as records and storage tell: whether a guest that was
/// told to stop does so is seen only then.
pub async fn check_rename(
    cluster: &Cluster,
    storage: &dyn Storage,
    vm: &str,
    to: &str,
) -> Result<Renamed, RenameRefusal> {
    let record = may_be_renamed(cluster, vm, to)?;
    let volumes = volumes_to_rename(storage, cluster, record, to).await?;
    Ok(Renamed { uuid: record.uuid, from: record.name.clone(), to: to.to_owned(), volumes })
}

/// The VM, if its record allows that it is called `to`.
fn may_be_renamed<'a>(
    cluster: &'a Cluster,
    vm: &str,
    to: &str,
) -> Result<&'a VmRecord, RenameRefusal> {
    check_name("VM", to, VM_NAME_LIMIT)?;
    let record = find_vm(cluster, vm)?;
    check(cluster, record, to)?;
    check_not_being_renamed(cluster, record)?;
    Ok(record)
}

fn check(cluster: &Cluster, record: &VmRecord, to: &str) -> Result<(), RenameRefusal> {
    let vm = record.name.clone();
    if !is_off(&record.state) {
        return Err(RenameRefusal::NotOff { vm, state: record.state.clone() });
    }
    if Uuid::try_parse(to).is_ok() {
        return Err(RenameRefusal::NameLikeUuid { name: to.to_owned() });
    }
    // The VM's own present name counts as well: nothing would change.
    if record.name == to || name_taken(cluster, to, record.uuid) {
        return Err(RenameRefusal::NameTaken { name: to.to_owned() });
    }
    Domain::parse(&record.xml).map(drop).map_err(|source| RenameRefusal::Unreadable { vm, source })
}

/// The volumes to be renamed with the VM, if all of it may be done now.
///
/// # Errors
/// Whatever keeps the VM from being renamed.
pub async fn plan_rename(
    cluster: &Cluster,
    storage: &dyn Storage,
    record: &VmRecord,
    to: &str,
) -> Result<BTreeMap<VolumeId, VolumeId>, RenameRefusal> {
    check(cluster, record, to)?;
    if runner(cluster, record.uuid).is_some() {
        return Err(RenameRefusal::StillRuns { vm: record.name.clone() });
    }
    volumes_to_rename(storage, cluster, record, to).await
}

/// The volumes named after the VM that exist, with their new names, none of which exists.
async fn volumes_to_rename(
    storage: &dyn Storage,
    cluster: &Cluster,
    record: &VmRecord,
    to: &str,
) -> Result<BTreeMap<VolumeId, VolumeId>, RenameRefusal> {
    let new_name = |volume: &VolumeId| renamed_volume(&record.name, to, volume);
    let mut own = record.volumes();
    own.retain(|volume| new_name(volume).is_some());
    check_unshared(cluster, record, &own)?;
    let mut renames = BTreeMap::new();
    for volume in own {
        let Some(new) = new_name(&volume) else { continue };
        match exists(storage, &volume).await {
            Ok(true) => {}
            // A name in the XML without a volume behind it stays as it is.
            Ok(false) => continue,
            Err(source) => return Err(RenameRefusal::Volume { volume, source }),
        }
        match storage.volume(&new).await {
            Err(StorageError::NoVolume { .. }) => renames.insert(volume, new),
            Ok(_) => return Err(RenameRefusal::VolumeTaken { volume: new }),
            Err(source) => return Err(RenameRefusal::Volume { volume: new, source }),
        };
    }
    Ok(renames)
}

fn check_unshared<'a>(
    cluster: &Cluster,
    record: &VmRecord,
    volumes: impl IntoIterator<Item = &'a VolumeId>,
) -> Result<(), RenameRefusal> {
    let volumes: Vec<VolumeId> = volumes.into_iter().cloned().collect();
    match other_user(cluster, record.uuid, &volumes) {
        None => Ok(()),
        Some((other, volume)) => {
            let (vm, other) = (record.name.clone(), other.name.clone());
            Err(RenameRefusal::Shared { vm, volume: volume.clone(), other })
        }
    }
}

/// Makes the records say how the volumes of a renaming are, under both of their names: what was
/// done to one while it was on its way from one name to the other was recorded under a name that
/// it has no more, or not at all. Volumes that nobody records stay so.
pub async fn record_renamed(
    store: &Store,
    storage: &dyn Storage,
    volumes: &[(VolumeId, VolumeId)],
) -> Result<(), ChangeError<RenameRefusal>> {
    for (old, new) in volumes {
        let view = store.view();
        let is_recorded = view.pools.contains_key(&old.pool)
            || [old, new].into_iter().any(|name| view.volumes.contains_key(name));
        if !is_recorded {
            continue;
        }
        for volume in [old, new] {
            let unrecorded = |source| RenameRefusal::Unrecorded {
                volume: volume.clone(),
                source: Box::new(source),
            };
            let done = record_whole(store, storage, volume).await;
            done.map_err(|error| error.map_refused(unrecorded))?;
        }
    }
    Ok(())
}

/// All records of a renaming whose volumes have their new names, if the VM still is called as it
/// was and has them.
///
/// # Errors
/// Whatever keeps the VM from being renamed.
pub fn rename_records(cluster: &Cluster, renaming: &Renamed) -> Result<Changes, RenameRefusal> {
    let Renamed { uuid, from, to, volumes } = renaming;
    let uuid = *uuid;
    let vm = || from.clone();
    let record = cluster.vms.get(&uuid).ok_or_else(|| NoVm { vm: vm() })?;
    let own = record.volumes();
    if record.name != *from || volumes.keys().any(|volume| !own.contains(volume)) {
        return Err(RenameRefusal::Changed { vm: vm() });
    }
    check(cluster, record, to)?;
    check_unshared(cluster, record, volumes.keys())?;
    let mut domain = Domain::parse(&record.xml)
        .map_err(|source| RenameRefusal::Unreadable { vm: vm(), source })?;
    domain.rename(to, volumes).map_err(|source| RenameRefusal::Edit { vm: vm(), source })?;
    let new_name = |volume: &VolumeId| volumes.get(volume).unwrap_or(volume).clone();
    let mut changes = Changes::new();
    changes
        .vm(uuid, VmChange::Name(to.clone()))
        .vm(uuid, VmChange::Xml(domain.into_string()))
        .vm(uuid, VmChange::Volumes(own.iter().map(new_name).collect()));
    for snapshot in &record.snapshots {
        let renamed = snapshot.volumes.iter().map(|entry| match entry.split_once('@') {
            Some((volume, name)) => {
                match VolumeId::from_record(volume).and_then(|id| volumes.get(&id)) {
                    Some(new) => format!("{new}@{name}"),
                    None => entry.clone(),
                }
            }
            None => entry.clone(),
        });
        changes.vm(
            uuid,
            VmChange::SnapshotVolumes {
                snapshot: snapshot.name.clone(),
                volumes: renamed.collect(),
            },
        );
        if let Ok(mut domain) = Domain::parse(&snapshot.xml)
            && domain.rename(to, volumes).is_ok()
        {
            let xml = domain.into_string();
            changes.vm(uuid, VmChange::SnapshotXml { snapshot: snapshot.name.clone(), xml });
        }
    }
    for (from, to) in volumes {
        // A record under the new name is the newer one.
        if cluster.volumes.contains_key(from) && !cluster.volumes.contains_key(to) {
            changes.push(Change::RenameVolume { from: from.clone(), to: to.clone() });
        }
    }
    changes.expect(Expect::VmNames).expect(Expect::VmState(uuid)).expect(Expect::VmXml(uuid));
    Ok(changes)
}
