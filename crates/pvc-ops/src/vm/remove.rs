//! Removing a VM, with its volumes or without.

use std::time::Duration;

use pvc_domain::{LocalState, local_state};
use pvc_model::cluster::Cluster;
use pvc_model::hold::{Held, check_none_held, check_not_held};
use pvc_model::node::DaemonState;
use pvc_model::storage::VolumeId;
use pvc_model::vm::VmState;
use pvc_model::{NodeName, Uuid};
use pvc_ports::{Clock, CloneName, Storage, StorageError, TrashedVolume};
use pvc_store::{Change, ChangeError, Changes, Expect, Store, VmChange};

use super::functions::release;
use super::{
    NodeSilent, STOP_TIME_LIMIT, is_silent, may_be_off, may_run, other_user, runner, silent_keeper,
    silent_runner,
};
use crate::refusal::{BeingRenamed, Kind, NoVm, Refusal, check_not_being_renamed, find_vm};
use crate::storage::{StorageRefusal, Taken, take_away};
use crate::wait::wait_for;

/// A VM that is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    pub uuid: Uuid,
    pub name: String,
    pub volumes: Vec<VolumeId>,
    /// Volumes of these that are in the trash.
    pub kept: Vec<TrashedVolume>,
    /// State that stays on the nodes where it has run.
    pub local: LocalState,
}

impl Removed {
    /// Returns what stays of it on nodes, as the end of a sentence that begins with "Its"; `None`
    /// if nothing does.
    pub fn left_on_nodes(&self) -> Option<String> {
        let what = match (self.local.has_tpm, self.local.has_uefi_variables) {
            (false, false) => return None,
            (true, false) => "TPM stays",
            (false, true) => "UEFI variables stay",
            (true, true) => "TPM and its UEFI variables stay",
        };
        Some(format!(
            "{what} on nodes where it has run, if it has: \"UEFI's variables and the TPM\" in the \
             manual"
        ))
    }
}

/// Removal of the volumes of a VM.
#[derive(Clone, Copy)]
pub struct VolumeRemoval<'a> {
    pub storage: &'a dyn Storage,
    /// Time for which they are kept in the trash; none removes them at once.
    pub keep: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum RemoveRefusal {
    #[error(transparent)]
    NoVm(#[from] NoVm),
    #[error(transparent)]
    BeingRenamed(#[from] BeingRenamed),
    #[error(transparent)]
    NodeSilent(#[from] NodeSilent),
    #[error(transparent)]
    Held(#[from] Held),
    #[error("volume `{volume}` of VM `{vm}` is used by VM `{other}`, too")]
    Shared { vm: String, volume: VolumeId, other: String },
    #[error("VM `{vm}` did not stop within {seconds} s", seconds = STOP_TIME_LIMIT.as_secs())]
    DoesNotStop { vm: String },
    #[error("VM `{vm}` was started by somebody else meanwhile")]
    Started {
        vm: String,
        /// Volumes that are gone already.
        removed: Vec<VolumeId>,
    },
    #[error("volume `{volume}` of VM `{vm}` could not be removed")]
    Volume {
        vm: String,
        volume: VolumeId,
        /// Volumes that are gone already.
        removed: Vec<VolumeId>,
        #[source]
        source: Box<StorageRefusal>,
    },
}

impl Refusal for RemoveRefusal {
    fn kind(&self) -> Kind {
        match self {
            RemoveRefusal::NoVm(error) => error.kind(),
            RemoveRefusal::DoesNotStop { .. } | RemoveRefusal::Volume { .. } => Kind::Unavailable,
            _ => Kind::Conflict,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            RemoveRefusal::NoVm(error) => error.hint(),
            RemoveRefusal::BeingRenamed(error) => error.hint(),
            RemoveRefusal::NodeSilent(error) => Some(error.hint()),
            RemoveRefusal::Held(held) => Some(held.hint()),
            RemoveRefusal::Shared { .. } => {
                Some("`pvc vm undefine` removes the VM and leaves all volumes".to_owned())
            }
            RemoveRefusal::DoesNotStop { .. } => {
                Some("look into `pvc node log` of its node".to_owned())
            }
            RemoveRefusal::Started { removed, .. } if removed.is_empty() => {
                Some("stop it and remove it again".to_owned())
            }
            RemoveRefusal::Started { removed, .. } => Some(format!(
                "{} of its volumes are gone already: stop it and remove it again",
                removed.len()
            )),
            RemoveRefusal::Volume { removed, .. } => Some(format!(
                "{} of its volumes are gone; the VM is stopped and still there: repeat the removal \
                 when the cause is mended",
                removed.len()
            )),
        }
    }
}

/// Stops VM `vm` if it runs and removes what is recorded of it; its volumes as well, if it is said
/// how.
pub async fn remove(
    store: &Store,
    clock: &dyn Clock,
    volumes: Option<VolumeRemoval<'_>>,
    vm: &str,
) -> Result<Removed, ChangeError<RemoveRefusal>> {
    let (removal, with_volumes) = (volumes, volumes.is_some());
    if store.is_dry() {
        let checked = check_remove(&store.view(), vm, with_volumes);
        return checked.map_err(ChangeError::Refused);
    }
    let mut stopping = store.change(|cluster| begin(cluster, vm, with_volumes)).await?;
    if !stopping.is_off {
        let gone = |cluster: &Cluster| stopping.is_gone(cluster).then_some(());
        if wait_for(store, clock, STOP_TIME_LIMIT, gone).await.is_none() {
            return Err(ChangeError::Refused(not_gone(&store.view(), stopping)));
        }
    }
    // From here on nobody can start it.
    let volumes = store.change(|cluster| lock_out(cluster, &stopping, with_volumes)).await?;
    let mut gone = Gone::default();
    if let Some(removal) = removal {
        remove_volumes(store, removal, &stopping, &volumes, &mut gone).await?;
    }
    store.change(|cluster| Ok((drop_records(cluster, &stopping, &gone)?, ()))).await?;
    Ok(removed(stopping, gone))
}

fn removed(stopping: Stopping, gone: Gone) -> Removed {
    let Stopping { uuid, name, local, .. } = stopping;
    Removed { uuid, name, volumes: gone.removed, kept: gone.kept, local }
}

/// Removal of a VM that is off, so that nothing is waited for. Who asks for it writes what is
/// decided.
pub struct OffRemoval {
    stopping: Stopping,
    volumes: Vec<VolumeId>,
    gone: Gone,
}

impl OffRemoval {
    /// Decides to begin: from this change on nobody can start the VM. `None` if it is not off.
    ///
    /// # Errors
    /// Those of [`remove`].
    pub(super) fn begin(
        cluster: &Cluster,
        vm: &str,
        with_volumes: bool,
    ) -> Result<Option<(Changes, OffRemoval)>, RemoveRefusal> {
        let (_, stopping) = begin(cluster, vm, with_volumes)?;
        if !stopping.is_off {
            return Ok(None);
        }
        let (changes, volumes) = lock_out(cluster, &stopping, with_volumes)?;
        let volumes = if with_volumes { volumes } else { Vec::new() };
        Ok(Some((changes, OffRemoval { stopping, volumes, gone: Gone::default() })))
    }

    /// Removes its volumes.
    ///
    /// # Errors
    /// Those of [`remove`]; the VM is in state `stop` then, if nobody has asked for another.
    pub async fn remove_volumes(
        &mut self,
        store: &Store,
        removal: VolumeRemoval<'_>,
    ) -> Result<(), ChangeError<RemoveRefusal>> {
        let OffRemoval { stopping, volumes, gone } = self;
        remove_volumes(store, removal, stopping, volumes, gone).await
    }

    /// Decides the end: what is recorded of the VM goes.
    ///
    /// # Errors
    /// [`RemoveRefusal::Started`].
    pub fn end(&self, cluster: &Cluster) -> Result<Changes, RemoveRefusal> {
        drop_records(cluster, &self.stopping, &self.gone)
    }

    /// The VM and the parts of it that are gone, after the end.
    pub fn into_removed(self) -> Removed {
        removed(self.stopping, self.gone)
    }
}

/// Predicts [`remove`] on this view: its refusal, or what would be gone.
pub fn check_remove(
    cluster: &Cluster,
    vm: &str,
    with_volumes: bool,
) -> Result<Removed, RemoveRefusal> {
    let record = find_vm(cluster, vm)?;
    let (_, stopping) = begin(cluster, vm, with_volumes)?;
    let volumes = if with_volumes { record.volumes() } else { Vec::new() };
    Ok(removed(stopping, Gone { removed: volumes, ..Gone::default() }))
}

/// Parts of a VM that are not there any more.
#[derive(Default)]
struct Gone {
    removed: Vec<VolumeId>,
    kept: Vec<TrashedVolume>,
    /// Gone since an earlier try, perhaps; their records may have stayed.
    missing: Vec<VolumeId>,
}

/// Removes the volumes one by one, each only if nobody has taken the VM or the volume back: a
/// legacy peer starts and defines VMs without asking whether they are being removed.
async fn remove_volumes(
    store: &Store,
    removal: VolumeRemoval<'_>,
    stopping: &Stopping,
    volumes: &[VolumeId],
    gone: &mut Gone,
) -> Result<(), ChangeError<RemoveRefusal>> {
    // A clone goes before the volume that it stands on, where it goes for good: in the trash it
    // would be one still. Anybody else's is a refusal at once.
    let is_own_clone = |clone: &CloneName| {
        removal.keep.is_zero() && !clone.is_in_trash && volumes.contains(&clone.volume)
    };
    let mut left: Vec<&VolumeId> = volumes.iter().collect();
    while !left.is_empty() {
        let (before, mut with_clones, mut first) = (left.len(), Vec::new(), None);
        for volume in left {
            let view = store.fresh().await?;
            is_still_going(&view, stopping, gone).map_err(ChangeError::Refused)?;
            let checked = check_unshared(&view, stopping.uuid, &stopping.name, volumes)
                .and_then(|()| Ok(check_not_held(&view, volume, None)?));
            if let Err(refusal) = checked {
                take_back(store, stopping).await;
                return Err(ChangeError::Refused(refusal));
            }
            match take_away(store, removal.storage, volume, removal.keep, None).await {
                Ok(Taken::Kept(entry)) => {
                    gone.kept.push(entry);
                    gone.removed.push(volume.clone());
                }
                Ok(Taken::Removed) => gone.removed.push(volume.clone()),
                Ok(Taken::Absent) => gone.missing.push(volume.clone()),
                Err(error) => match storage_error(&error) {
                    Some(StorageError::NoPool { .. }) => {}
                    Some(StorageError::HasClones { clones, .. })
                        if clones.iter().all(is_own_clone) =>
                    {
                        with_clones.push(volume);
                        first = first.or(Some((volume, error)));
                    }
                    _ => {
                        take_back(store, stopping).await;
                        return Err(not_removed(stopping, volume, gone, error));
                    }
                },
            }
        }
        if with_clones.len() == before
            && let Some((volume, error)) = first
        {
            take_back(store, stopping).await;
            return Err(not_removed(stopping, volume, gone, error));
        }
        left = with_clones;
    }
    Ok(())
}

fn storage_error(error: &ChangeError<StorageRefusal>) -> Option<&StorageError> {
    match error {
        ChangeError::Refused(StorageRefusal::Storage(error)) => Some(error),
        _ => None,
    }
}

fn not_removed(
    stopping: &Stopping,
    volume: &VolumeId,
    gone: &mut Gone,
    error: ChangeError<StorageRefusal>,
) -> ChangeError<RemoveRefusal> {
    error.map_refused(|source| RemoveRefusal::Volume {
        vm: stopping.name.clone(),
        volume: volume.clone(),
        removed: std::mem::take(&mut gone.removed),
        source: Box::new(source),
    })
}

/// Has the VM stopped again, so that its removal can be repeated.
async fn take_back(store: &Store, stopping: &Stopping) {
    let back = |cluster: &Cluster| {
        let mut changes = Changes::new();
        if cluster.vms.get(&stopping.uuid).is_some_and(|record| record.state == VmState::Delete) {
            changes.vm(stopping.uuid, VmChange::State(VmState::Stop));
        }
        Ok::<_, RemoveRefusal>((changes, ()))
    };
    if let Err(error) = store.change(back).await {
        tracing::warn!(vm = stopping.name, %error, "a VM could not be taken back out of its \
                                                    removal");
    }
}

/// Whether there still is a record to remove, if nobody has asked for anything else since the
/// removal began.
fn is_still_going(
    cluster: &Cluster,
    stopping: &Stopping,
    gone: &Gone,
) -> Result<bool, RemoveRefusal> {
    match cluster.vms.get(&stopping.uuid) {
        None => Ok(false),
        Some(record) if record.state == VmState::Delete => Ok(true),
        Some(_) => {
            Err(RemoveRefusal::Started { vm: stopping.name.clone(), removed: gone.removed.clone() })
        }
    }
}

/// A VM that was told to stop.
struct Stopping {
    uuid: Uuid,
    name: String,
    local: LocalState,
    /// Whether it was off before, so that nothing has to be waited for.
    is_off: bool,
    /// The node that must notice; `None` if it said that it runs the VM, and so will say when it
    /// does not any more.
    notice: Option<Notice>,
}

/// Seeing by a node's keepalives that it has looked at its VMs since.
struct Notice {
    node: NodeName,
    last: i64,
    /// Number of times that the keepalive has changed since.
    seen: u32,
}

/// A start that was under way when the stop was written shows up within so many keepalives.
const KEEPALIVES: u32 = 2;

impl Notice {
    fn is_given(&mut self, cluster: &Cluster) -> bool {
        let Some(record) = cluster.node(self.node.as_str()) else { return true };
        if record.keepalive != self.last {
            self.last = record.keepalive;
            self.seen += 1;
        }
        match record.daemon_state {
            DaemonState::Run => self.seen >= KEEPALIVES,
            DaemonState::Fenced => true,
            // A guest may have arrived while its daemon was away, or have been started before it
            // fell silent.
            _ => {
                self.seen = 0;
                false
            }
        }
    }
}

impl Stopping {
    /// Whether its guest is gone for sure.
    fn is_gone(&mut self, cluster: &Cluster) -> bool {
        !may_run(cluster, self.uuid)
            && self.notice.as_mut().is_none_or(|notice| notice.is_given(cluster))
    }
}

/// Reason why a guest that was told to stop is not gone: its node may have fallen silent in the
/// middle.
fn not_gone(cluster: &Cluster, stopping: Stopping) -> RemoveRefusal {
    let home = stopping
        .notice
        .as_ref()
        .and_then(|notice| cluster.node(notice.node.as_str()))
        .map(|node| &**node);
    match silent_runner(cluster, stopping.uuid).or(home.filter(|node| is_silent(node))) {
        Some(node) => NodeSilent::new(&stopping.name, node).into(),
        None => RemoveRefusal::DoesNotStop { vm: stopping.name },
    }
}

fn begin(
    cluster: &Cluster,
    vm: &str,
    with_volumes: bool,
) -> Result<(Changes, Stopping), RemoveRefusal> {
    let record = find_vm(cluster, vm)?;
    check_not_being_renamed(cluster, record)?;
    let (uuid, name) = (record.uuid, record.name.clone());
    if with_volumes {
        check_unshared(cluster, record.uuid, &record.name, &record.volumes())?;
        check_none_held(cluster, record)?;
    }
    if let Some(node) = silent_keeper(cluster, record) {
        return Err(NodeSilent::new(&name, node).into());
    }
    let runs = runner(cluster, uuid).is_some();
    // One whose daemon begins anew is heard of first.
    let is_off = !may_run(cluster, uuid) && may_be_off(record);
    let mut changes = Changes::new();
    if !matches!(record.state, VmState::Stop | VmState::Delete) && !is_off {
        changes.vm(uuid, VmChange::State(VmState::Stop));
    }
    let home = record.node.as_ref().and_then(|name| cluster.node(name.as_str()));
    let notice = home.filter(|_| !runs);
    let notice =
        notice.map(|node| Notice { node: node.name.clone(), last: node.keepalive, seen: 0 });
    let local = local_state(&record.xml);
    Ok((changes, Stopping { uuid, name, local, is_off, notice }))
}

fn check_unshared(
    cluster: &Cluster,
    vm: Uuid,
    name: &str,
    volumes: &[VolumeId],
) -> Result<(), RemoveRefusal> {
    match other_user(cluster, vm, volumes) {
        None => Ok(()),
        Some((other, volume)) => Err(RemoveRefusal::Shared {
            vm: name.to_owned(),
            volume: volume.clone(),
            other: other.name.clone(),
        }),
    }
}

fn lock_out(
    cluster: &Cluster,
    stopping: &Stopping,
    with_volumes: bool,
) -> Result<(Changes, Vec<VolumeId>), RemoveRefusal> {
    let name = || stopping.name.clone();
    let record = cluster.vms.get(&stopping.uuid).ok_or_else(|| NoVm { vm: name() })?;
    if !may_be_off(record) || runner(cluster, stopping.uuid).is_some() {
        return Err(RemoveRefusal::Started { vm: name(), removed: Vec::new() });
    }
    check_not_being_renamed(cluster, record)?;
    if with_volumes {
        // Stopping may have taken a minute, in which either VM was given other volumes.
        check_unshared(cluster, record.uuid, &record.name, &record.volumes())?;
    }
    let mut changes = Changes::new();
    // Whoever takes volumes into use writes the same key: of the two, the later one decides again
    // and finds the VM in this state or its volumes shared.
    changes.vm(stopping.uuid, VmChange::State(VmState::Delete)).expect(Expect::VmNames);
    Ok((changes, record.volumes()))
}

fn drop_records(
    cluster: &Cluster,
    stopping: &Stopping,
    gone: &Gone,
) -> Result<Changes, RemoveRefusal> {
    let mut changes = Changes::new();
    if is_still_going(cluster, stopping, gone)? {
        changes.push(Change::RemoveVm(stopping.uuid));
        if let Some(record) = cluster.vms.get(&stopping.uuid) {
            release(&mut changes, cluster, record, |_, _| false);
        }
    }
    let volumes = gone.removed.iter().chain(&gone.missing);
    for volume in volumes.filter(|volume| cluster.volumes.contains_key(*volume)) {
        changes.push(Change::RemoveVolume(volume.clone()));
    }
    Ok(changes)
}
