//! Renaming a VM, and with it what is named after it.

use std::collections::BTreeMap;
use std::time::Duration;

use pvc_domain::{Domain, DomainError, EditError, VM_NAME_LIMIT, renamed_volume};
use pvc_model::cluster::Cluster;
use pvc_model::renaming::Renaming;
use pvc_model::request::is_off;
use pvc_model::storage::VolumeId;
use pvc_model::vm::{VmRecord, VmState};
use pvc_model::{BadName, Uuid, check_name};
use pvc_ports::{Clock, Storage, StorageError};
use pvc_store::{Change, ChangeError, Changes, Expect, Store, StoreError, VmChange};

use super::{name_taken, other_user, runner};
use crate::refusal::{BeingRenamed, Kind, NoVm, Refusal, check_not_being_renamed, find_vm};
use crate::wait::wait_for;

/// How long a VM whose stop was written may take to be gone.
const OFF_TIME_LIMIT: Duration = Duration::from_secs(20);

/// How often, and after which pauses, the store is asked what became of a change whose answer was
/// lost.
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
    BeingRenamed(#[from] BeingRenamed),
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
    #[error("volume `{volume}` could not be renamed, and these could not be given their names \
             back: {}", listed(.stranded))]
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
    volumes
        .iter()
        .map(|(old, new)| format!("`{old}` is `{new}` now"))
        .collect::<Vec<_>>()
        .join(", ")
}

impl Refusal for RenameRefusal {
    fn kind(&self) -> Kind {
        match self {
            RenameRefusal::NoVm(error) => error.kind(),
            RenameRefusal::BadName(_) | RenameRefusal::NameLikeUuid { .. } => Kind::Invalid,
            RenameRefusal::Volume { .. }
            | RenameRefusal::Stranded { .. }
            | RenameRefusal::Unknown { .. } => Kind::Unavailable,
            _ => Kind::Conflict,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            RenameRefusal::NoVm(error) => error.hint(),
            RenameRefusal::BeingRenamed(error) => error.hint(),
            RenameRefusal::NotOff { vm, .. } | RenameRefusal::StillRuns { vm } => {
                Some(format!("`pvc vm shutdown --wait {vm}` stops it"))
            }
            RenameRefusal::Unreadable { vm, .. } | RenameRefusal::Edit { vm, .. } => {
                Some(format!("`pvc vm modify {vm} FILE` replaces the XML"))
            }
            RenameRefusal::VolumeTaken { .. } => {
                Some("rename or remove that volume, or choose another name for the VM".to_owned())
            }
            RenameRefusal::Stranded { .. } => {
                Some("the worker of its node keeps trying to give them their names back".to_owned())
            }
            RenameRefusal::Unknown { .. } => Some(
                "look at it when the store is back; if it is still being renamed, restart the API: \
                 its volumes then get \
                 their old names back"
                    .to_owned(),
            ),
            RenameRefusal::Changed { .. } => Some("look at the VM, and rename it again".to_owned()),
            _ => None,
        }
    }
}

/// Gives VM `vm` the name `to`. Its volumes that are named after it follow, in the storage and in
/// all records. The VM must be off. All of it is done or nothing; of a process that dies on the
/// way, [`take_back_renaming`] undoes what it did.
pub async fn rename(
    store: &Store,
    clock: &dyn Clock,
    storage: &dyn Storage,
    vm: &str,
    to: &str,
) -> Result<Renamed, ChangeError<RenameRefusal>> {
    let cluster = store.fresh().await?;
    let record = may_be_renamed(&cluster, vm, to).map_err(ChangeError::Refused)?;
    let uuid = record.uuid;
    let gone = |cluster: &Cluster| runner(cluster, uuid).is_none().then_some(());
    if wait_for(store, clock, OFF_TIME_LIMIT, gone).await.is_none() {
        return Err(ChangeError::Refused(RenameRefusal::StillRuns { vm: record.name.clone() }));
    }
    let volumes =
        volumes_to_rename(storage, &cluster, record, to).await.map_err(ChangeError::Refused)?;
    let renaming = Renaming {
        vm: uuid,
        from: record.name.clone(),
        to: to.to_owned(),
        node: record.node.clone(),
        volumes,
        taken_back: false,
        held: true,
    };
    carry_volumes(store, clock, storage, record, &renaming).await?;
    let Err(error) = store.change(|cluster| records(cluster, record, &renaming)).await else {
        return Ok(renamed(renaming));
    };
    // An answer may have been lost on the way: taking back what was done would part the VM from its
    // volumes.
    match has_name(store, clock, uuid, to).await {
        Ok(true) => Ok(renamed(renaming)),
        Ok(false) => undo(store, clock, storage, &renaming, error).await,
        Err(source) => {
            let (vm, renamed) = (renaming.from, renaming.volumes.into_iter().collect());
            Err(ChangeError::Refused(RenameRefusal::Unknown { vm, renamed, source }))
        }
    }
}

/// What [`rename`] would come to on this view, as far as records and storage tell: whether a guest
/// that was told to stop does so is seen only then.
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

fn renamed(Renaming { vm, from, to, volumes, .. }: Renaming) -> Renamed {
    Renamed { uuid: vm, from, to, volumes }
}

/// Notes the renaming, then gives the volumes their new names: all of them, or none.
async fn carry_volumes(
    store: &Store,
    clock: &dyn Clock,
    storage: &dyn Storage,
    record: &VmRecord,
    renaming: &Renaming,
) -> Result<(), ChangeError<RenameRefusal>> {
    if renaming.volumes.is_empty() {
        return Ok(());
    }
    let noted = store.change(|cluster| begin(cluster, record, renaming)).await;
    if let Err(ChangeError::Store(_)) = noted {
        // It may be noted all the same.
        let_go(store, clock, renaming, Change::EndRenaming).await;
    }
    noted?;
    let Err(refusal) = rename_volumes(storage, &renaming.volumes).await else { return Ok(()) };
    let is_stranded = matches!(refusal, RenameRefusal::Stranded { .. });
    let how = if is_stranded { Change::LeaveRenaming } else { Change::EndRenaming };
    let_go(store, clock, renaming, how).await;
    Err(ChangeError::Refused(refusal))
}

/// Notes what is going to happen, if it still may.
fn begin(
    cluster: &Cluster,
    decided_on: &VmRecord,
    renaming: &Renaming,
) -> Result<(Changes, ()), RenameRefusal> {
    let record = unchanged(cluster, decided_on)?;
    check(cluster, record, &renaming.to)?;
    check_not_being_renamed(cluster, record)?;
    let mut changes = Changes::new();
    changes.push(Change::HoldRenaming(renaming.clone()));
    changes
        .expect(Expect::VmNames)
        .expect(Expect::VmState(record.uuid))
        .expect(Expect::VmXml(record.uuid));
    Ok((changes, ()))
}

/// The VM as it is now, if it is called and made as it was.
fn unchanged<'a>(
    cluster: &'a Cluster,
    decided_on: &VmRecord,
) -> Result<&'a VmRecord, RenameRefusal> {
    let record =
        cluster.vms.get(&decided_on.uuid).ok_or_else(|| NoVm { vm: decided_on.name.clone() })?;
    if record.xml != decided_on.xml || record.name != decided_on.name {
        return Err(RenameRefusal::Changed { vm: decided_on.name.clone() });
    }
    Ok(record)
}

/// Leaves or ends the note of a renaming that is held here, as soon as the store can be told. If it
/// cannot for long, the worker finds the note when this process's session is over.
async fn let_go(store: &Store, clock: &dyn Clock, held: &Renaming, how: fn(Uuid) -> Change) {
    let decide = |cluster: &Cluster| {
        let mut changes = Changes::new();
        let noted = cluster.renamings.get(&held.vm);
        if noted.is_some_and(|noted| noted.to == held.to && noted.taken_back == held.taken_back) {
            changes.push(how(held.vm));
        }
        Ok::<_, RenameRefusal>((changes, ()))
    };
    for tries in 0.. {
        let told = match store.fresh().await {
            Ok(_) => store.change(decide).await,
            Err(error) => Err(error.into()),
        };
        match told {
            Ok(()) => return,
            Err(error) if tries == LOOKS => {
                tracing::error!(vm = held.from, %error, "the note of a renaming stays until this \
                                                         process ends");
                return;
            }
            Err(_) => clock.sleep(LOOK_AGAIN).await,
        }
    }
}

/// Gives the volumes of a renaming that nobody works on any more the names back that the VM's
/// record has. `false` if somebody else does it, or there is nothing to do.
pub async fn take_back_renaming(
    store: &Store,
    clock: &dyn Clock,
    storage: &dyn Storage,
    vm: Uuid,
) -> Result<bool, ChangeError<RenameRefusal>> {
    let taken = store.change(|cluster| Ok::<_, RenameRefusal>(take_over(cluster, vm))).await?;
    let Some(renaming) = taken else { return Ok(false) };
    let from = renaming.from.clone();
    match give_back(storage, &renaming).await {
        Ok(()) => {
            let_go(store, clock, &renaming, Change::EndRenaming).await;
            tracing::warn!(
                vm = from,
                to = renaming.to,
                "a renaming that was left half way was taken back"
            );
            Ok(true)
        }
        Err(refusal) => {
            let_go(store, clock, &renaming, Change::LeaveRenaming).await;
            Err(ChangeError::Refused(refusal))
        }
    }
}

fn take_over(cluster: &Cluster, vm: Uuid) -> (Changes, Option<Renaming>) {
    let mut changes = Changes::new();
    let left = cluster.renamings.get(&vm).filter(|renaming| !renaming.held);
    let taken =
        left.map(|renaming| Renaming { taken_back: true, held: true, ..(**renaming).clone() });
    if let Some(renaming) = &taken {
        changes.push(Change::HoldRenaming(renaming.clone()));
    }
    (changes, taken)
}

async fn give_back(storage: &dyn Storage, renaming: &Renaming) -> Result<(), RenameRefusal> {
    for (old, new) in &renaming.volumes {
        let failed = |source| RenameRefusal::Volume { volume: old.clone(), source };
        give_name_back(storage, old, new).await.map_err(failed)?;
    }
    Ok(())
}

/// Has the volume be called `old`, whether it is so already or it is called `new`. Renaming is one
/// step in the storage: a volume that is called `old` is the VM's, whatever else has the new name.
async fn give_name_back(
    storage: &dyn Storage,
    old: &VolumeId,
    new: &VolumeId,
) -> Result<(), StorageError> {
    if !exists(storage, old).await? && exists(storage, new).await? {
        storage.rename(new, &old.volume).await?;
    }
    Ok(())
}

async fn exists(storage: &dyn Storage, volume: &VolumeId) -> Result<bool, StorageError> {
    match storage.volume(volume).await {
        Ok(_) => Ok(true),
        Err(StorageError::NoVolume { .. } | StorageError::NoPool { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the VM is recorded under the name, as soon as the store can say.
async fn has_name(
    store: &Store,
    clock: &dyn Clock,
    vm: Uuid,
    name: &str,
) -> Result<bool, StoreError> {
    let mut tries = 0;
    loop {
        match store.fresh().await {
            Ok(cluster) => {
                return Ok(cluster.vms.get(&vm).is_some_and(|record| record.name == name));
            }
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

async fn rename_volumes(
    storage: &dyn Storage,
    volumes: &BTreeMap<VolumeId, VolumeId>,
) -> Result<(), RenameRefusal> {
    let mut begun = Vec::new();
    for (old, new) in volumes {
        begun.push((old.clone(), new.clone()));
        if let Err(source) = storage.rename(old, &new.volume).await {
            // An answer that is lost may have been a yes: the last one is looked at as well.
            let stranded = take_back(storage, begun).await;
            let volume = old.clone();
            return Err(match stranded.is_empty() {
                true => RenameRefusal::Volume { volume, source },
                false => RenameRefusal::Stranded { volume, stranded, source },
            });
        }
    }
    Ok(())
}

/// Gives volumes their old names back. Returns those that would not.
async fn take_back(
    storage: &dyn Storage,
    done: Vec<(VolumeId, VolumeId)>,
) -> Vec<(VolumeId, VolumeId)> {
    let mut stranded = Vec::new();
    for (old, new) in done.into_iter().rev() {
        if let Err(error) = give_name_back(storage, &old, &new).await {
            tracing::error!(%old, %new, %error, "a volume could not be given its name back");
            stranded.push((old, new));
        }
    }
    stranded
}

/// The records were not changed: neither are the volumes to be.
async fn undo(
    store: &Store,
    clock: &dyn Clock,
    storage: &dyn Storage,
    renaming: &Renaming,
    error: ChangeError<RenameRefusal>,
) -> Result<Renamed, ChangeError<RenameRefusal>> {
    let Some((volume, _)) = renaming.volumes.first_key_value() else { return Err(error) };
    let stranded = take_back(storage, renaming.volumes.clone().into_iter().collect()).await;
    if stranded.is_empty() {
        let_go(store, clock, renaming, Change::EndRenaming).await;
        return Err(error);
    }
    let_go(store, clock, renaming, Change::LeaveRenaming).await;
    let source = StorageError::Io {
        doing: "taking a renaming back".to_owned(),
        source: std::io::Error::other(error.to_string()),
    };
    Err(ChangeError::Refused(RenameRefusal::Stranded { volume: volume.clone(), stranded, source }))
}

/// All records of the renaming, if nothing has changed since it was decided.
fn records(
    cluster: &Cluster,
    decided_on: &VmRecord,
    renaming: &Renaming,
) -> Result<(Changes, ()), RenameRefusal> {
    let Renaming { vm: uuid, to, volumes, .. } = renaming;
    let uuid = *uuid;
    let record = unchanged(cluster, decided_on)?;
    check(cluster, record, to)?;
    check_unshared(cluster, record, volumes.keys())?;
    let vm = || record.name.clone();
    let mut domain = Domain::parse(&record.xml)
        .map_err(|source| RenameRefusal::Unreadable { vm: vm(), source })?;
    domain.rename(to, volumes).map_err(|source| RenameRefusal::Edit { vm: vm(), source })?;
    let new_name = |volume: &VolumeId| volumes.get(volume).unwrap_or(volume).clone();
    let mut changes = Changes::new();
    if volumes.is_empty() {
        check_not_being_renamed(cluster, record)?;
    } else {
        let ours =
            cluster.renamings.get(&uuid).filter(|noted| noted.to == *to && !noted.taken_back);
        ours.ok_or_else(|| RenameRefusal::Changed { vm: vm() })?;
        changes.push(Change::EndRenaming(uuid));
    }
    changes
        .vm(uuid, VmChange::Name(to.clone()))
        .vm(uuid, VmChange::Xml(domain.into_string()))
        .vm(uuid, VmChange::Volumes(record.volumes().iter().map(new_name).collect()));
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
        if cluster.volumes.contains_key(from) {
            changes.push(Change::RenameVolume { from: from.clone(), to: to.clone() });
        }
    }
    changes.expect(Expect::VmNames).expect(Expect::VmState(uuid)).expect(Expect::VmXml(uuid));
    Ok((changes, ()))
}
