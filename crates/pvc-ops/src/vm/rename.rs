//! Renaming a VM, and with it what is named after it.

use std::collections::BTreeMap;
use std::time::Duration;

use pvc_domain::{Domain, DomainError, EditError, VM_NAME_LIMIT, renamed_volume};
use pvc_model::cluster::Cluster;
use pvc_model::request::is_off;
use pvc_model::storage::VolumeId;
use pvc_model::vm::{VmRecord, VmState};
use pvc_model::{BadName, Uuid, check_name};
use pvc_ports::{Clock, Storage, StorageError};
use pvc_store::{Change, ChangeError, Changes, Expect, Store, StoreError, VmChange};

use super::{name_taken, other_user, runner};
use crate::refusal::{Kind, NoVm, Refusal, find_vm};
use crate::wait::wait_for;

/// How long a VM whose stop was written may take to be gone.
const STOP_PATIENCE: Duration = Duration::from_secs(20);

/// How often, and after which pauses, the store is asked what became of a change whose answer was lost.
const LOOKS: u32 = 60;
const LOOK_AGAIN: Duration = Duration::from_secs(1);

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
    /// The undoing failed, too.
    #[error("volume `{volume}` could not be renamed, and these could not be given their names back: {}", listed(.stranded))]
    Stranded {
        volume: VolumeId,
        /// By the names in the VM's record and the names they have now.
        stranded: Vec<(VolumeId, VolumeId)>,
        #[source]
        source: StorageError,
    },
    #[error("VM `{vm}` was changed by somebody else during the renaming")]
    Changed { vm: String },
    #[error(
        "whether the record of VM `{vm}` was changed is not known; of its volumes, {}",
        listed(.renamed)
    )]
    Unknown {
        vm: String,
        /// By their old names and the names they have now.
        renamed: Vec<(VolumeId, VolumeId)>,
        #[source]
        source: StoreError,
    },
}

fn listed(volumes: &[(VolumeId, VolumeId)]) -> String {
    volumes.iter().map(|(old, new)| format!("`{old}` is `{new}` now")).collect::<Vec<_>>().join(", ")
}

impl Refusal for RenameRefusal {
    fn kind(&self) -> Kind {
        match self {
            RenameRefusal::NoVm(error) => error.kind(),
            RenameRefusal::BadName(_) | RenameRefusal::NameLikeUuid { .. } => Kind::Invalid,
            RenameRefusal::Volume { .. } | RenameRefusal::Stranded { .. } | RenameRefusal::Unknown { .. } => {
                Kind::Unavailable
            }
            _ => Kind::Conflict,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            RenameRefusal::NoVm(error) => error.hint(),
            RenameRefusal::NotOff { vm, .. } | RenameRefusal::StillRuns { vm } => {
                Some(format!("`pvc vm shutdown --wait {vm}` stops it"))
            }
            RenameRefusal::Unreadable { vm, .. } | RenameRefusal::Edit { vm, .. } => {
                Some(format!("`pvc vm modify {vm} FILE` replaces the XML"))
            }
            RenameRefusal::VolumeTaken { .. } => {
                Some("rename or remove that volume, or choose another name for the VM".to_owned())
            }
            RenameRefusal::Stranded { .. } | RenameRefusal::Unknown { .. } => {
                Some("`pvc storage volume rename` gives them the names that the VM's record has".to_owned())
            }
            RenameRefusal::Changed { .. } => Some("look at the VM, and rename it again".to_owned()),
            _ => None,
        }
    }
}

/// Gives VM `vm` the name `to`. Its volumes that are named after it follow, in the storage and in all
/// records. The VM must be off. All of it is done or nothing.
pub async fn rename(
    store: &Store,
    clock: &dyn Clock,
    storage: &dyn Storage,
    vm: &str,
    to: &str,
) -> Result<Renamed, ChangeError<RenameRefusal>> {
    check_name("VM", to, VM_NAME_LIMIT).map_err(|bad| ChangeError::Refused(bad.into()))?;
    let cluster = store.fresh().await?;
    let record = find_vm(&cluster, vm).map_err(|error| ChangeError::Refused(error.into()))?;
    check(&cluster, record, to).map_err(ChangeError::Refused)?;
    let uuid = record.uuid;
    let gone = |cluster: &Cluster| runner(cluster, uuid).is_none().then_some(());
    if wait_for(store, clock, STOP_PATIENCE, gone).await.is_none() {
        return Err(ChangeError::Refused(RenameRefusal::StillRuns { vm: record.name.clone() }));
    }
    let volumes = volumes_to_rename(storage, &cluster, record, to).await.map_err(ChangeError::Refused)?;
    rename_volumes(storage, &volumes).await.map_err(ChangeError::Refused)?;
    let from = record.name.clone();
    match store.change(|cluster| records(cluster, record, to, &volumes)).await {
        Ok(()) => Ok(Renamed { uuid, from, to: to.to_owned(), volumes }),
        // An answer may have been lost on the way: taking back what was done would part the VM from its volumes.
        Err(error) => match has_name(store, clock, uuid, to).await {
            Ok(true) => Ok(Renamed { uuid, from, to: to.to_owned(), volumes }),
            Ok(false) => undo(storage, volumes.into_iter().collect(), error).await,
            Err(source) => {
                let renamed = volumes.into_iter().collect();
                Err(ChangeError::Refused(RenameRefusal::Unknown { vm: from, renamed, source }))
            }
        },
    }
}

/// Whether the VM is recorded under the name, as soon as the store can say.
async fn has_name(store: &Store, clock: &dyn Clock, vm: Uuid, name: &str) -> Result<bool, StoreError> {
    let mut tries = 0;
    loop {
        match store.fresh().await {
            Ok(cluster) => return Ok(cluster.vms.get(&vm).is_some_and(|record| record.name == name)),
            Err(error) if tries == LOOKS => return Err(error),
            Err(_) => clock.sleep(LOOK_AGAIN).await,
        }
        tries += 1;
    }
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

/// The volumes named after the VM that exist, with their new names, none of which exists.
async fn volumes_to_rename(
    storage: &dyn Storage,
    cluster: &Cluster,
    record: &VmRecord,
    to: &str,
) -> Result<BTreeMap<VolumeId, VolumeId>, RenameRefusal> {
    let mut renames = BTreeMap::new();
    for volume in record.volumes() {
        let Some(new) = renamed_volume(&record.name, to, &volume) else { continue };
        if let Some((other, _)) = other_user(cluster, record.uuid, std::slice::from_ref(&volume)) {
            let (vm, other) = (record.name.clone(), other.name.clone());
            return Err(RenameRefusal::Shared { vm, volume, other });
        }
        match storage.volume(&volume).await {
            Ok(_) => {}
            // A name in the XML without a volume behind it stays as it is.
            Err(StorageError::NoVolume { .. } | StorageError::NoPool { .. }) => continue,
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

async fn rename_volumes(
    storage: &dyn Storage,
    volumes: &BTreeMap<VolumeId, VolumeId>,
) -> Result<(), RenameRefusal> {
    let mut done = Vec::new();
    for (old, new) in volumes {
        match storage.rename(old, &new.volume).await {
            Ok(()) => done.push((old.clone(), new.clone())),
            Err(source) => {
                let stranded = take_back(storage, done).await;
                let volume = old.clone();
                return Err(match stranded.is_empty() {
                    true => RenameRefusal::Volume { volume, source },
                    false => RenameRefusal::Stranded { volume, stranded, source },
                });
            }
        }
    }
    Ok(())
}

/// Gives volumes their old names back. Returns those that would not.
async fn take_back(storage: &dyn Storage, done: Vec<(VolumeId, VolumeId)>) -> Vec<(VolumeId, VolumeId)> {
    let mut stranded = Vec::new();
    for (old, new) in done.into_iter().rev() {
        if let Err(error) = storage.rename(&new, &old.volume).await {
            tracing::error!(%old, %new, %error, "a volume could not be given its name back");
            stranded.push((old, new));
        }
    }
    stranded
}

/// The records were not changed: neither are the volumes to be.
async fn undo(
    storage: &dyn Storage,
    done: Vec<(VolumeId, VolumeId)>,
    error: ChangeError<RenameRefusal>,
) -> Result<Renamed, ChangeError<RenameRefusal>> {
    let first = done.first().map(|(old, _)| old.clone());
    let stranded = take_back(storage, done).await;
    match first {
        Some(volume) if !stranded.is_empty() => {
            let source = StorageError::Io {
                doing: "taking a renaming back".to_owned(),
                source: std::io::Error::other(error.to_string()),
            };
            Err(ChangeError::Refused(RenameRefusal::Stranded { volume, stranded, source }))
        }
        _ => Err(error),
    }
}

/// All records of the renaming, if nothing has changed since it was decided.
fn records(
    cluster: &Cluster,
    decided_on: &VmRecord,
    to: &str,
    volumes: &BTreeMap<VolumeId, VolumeId>,
) -> Result<(Changes, ()), RenameRefusal> {
    let uuid = decided_on.uuid;
    let record = cluster.vms.get(&uuid).ok_or_else(|| NoVm { vm: decided_on.name.clone() })?;
    if record.xml != decided_on.xml || record.name != decided_on.name {
        return Err(RenameRefusal::Changed { vm: decided_on.name.clone() });
    }
    check(cluster, record, to)?;
    let vm = || record.name.clone();
    let mut domain =
        Domain::parse(&record.xml).map_err(|source| RenameRefusal::Unreadable { vm: vm(), source })?;
    domain.rename(to, volumes).map_err(|source| RenameRefusal::Edit { vm: vm(), source })?;
    let new_name = |volume: &VolumeId| volumes.get(volume).unwrap_or(volume).clone();
    let mut changes = Changes::new();
    changes
        .vm(uuid, VmChange::Name(to.to_owned()))
        .vm(uuid, VmChange::Xml(domain.into_string()))
        .vm(uuid, VmChange::Volumes(record.volumes().iter().map(new_name).collect()));
    for snapshot in &record.snapshots {
        let renamed = snapshot.volumes.iter().map(|entry| match entry.split_once('@') {
            Some((volume, name)) => match VolumeId::from_record(volume).and_then(|id| volumes.get(&id)) {
                Some(new) => format!("{new}@{name}"),
                None => entry.clone(),
            },
            None => entry.clone(),
        });
        changes.vm(
            uuid,
            VmChange::SnapshotVolumes { snapshot: snapshot.name.clone(), volumes: renamed.collect() },
        );
        if let Ok(mut domain) = Domain::parse(&snapshot.xml)
            && domain.rename(to, volumes).is_ok()
        {
            let xml = domain.into_string();
            changes.vm(uuid, VmChange::SnapshotXml { snapshot: snapshot.name.clone(), xml });
        }
    }
    for (from, to) in volumes {
        if cluster.volumes.contains_key(from) {
            changes.push(Change::RenameVolume { from: from.clone(), to: to.clone() });
        }
    }
    changes.expect(Expect::VmNames).expect(Expect::VmState(uuid)).expect(Expect::VmXml(uuid));
    Ok((changes, ()))
}
