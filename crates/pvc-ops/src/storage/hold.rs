//! Holding a volume while something is done to it of which no guest may see a half.

use pvc_domain::renamed_volume;
use pvc_model::cluster::Cluster;
use pvc_model::hold::{Held, Purpose, VolumeHold, check_not_held};
use pvc_model::job::being_renamed_to;
use pvc_model::storage::{SnapshotName, VolumeId};
use pvc_model::vm::volumes::users;
use pvc_ports::{Random, Storage, StorageError};
use pvc_store::{Change, Changes, Expect, Store};

use super::snapshot::require_recorded;
use super::{Done, StorageRefusal, refused, require_at_rest, require_pool};
use crate::refusal::BeingRenamed;

/// Does `act` to the volume while it is held for `purpose`. The hold stays if nobody knows how far
/// the act has come, or an earlier attempt at it: whoever asks for the same again brings it to its
/// end. A hold for `instead`, which nobody can bring to its end any more, is taken over as well.
///
/// # Errors
/// If a VM that uses the volume is not off or is being renamed, and if it is held for something
/// else.
pub(super) async fn holding<T>(
    store: &Store,
    random: &dyn Random,
    volume: &VolumeId,
    purpose: &Purpose,
    instead: Option<&Purpose>,
    act: impl Future<Output = Result<T, StorageError>>,
) -> Done<T> {
    let by = random.uuid().to_string();
    let taken_over = |cluster: &Cluster| {
        let (changes, ()) = hold_instead(cluster, volume, purpose, instead, &by)?;
        let held = cluster.holds.get(volume);
        Ok((changes, held.is_some_and(|hold| hold.by != by)))
    };
    let is_taken_over = store.change(taken_over).await?;
    let done = act.await;
    let is_settled = match &done {
        Ok(_) => true,
        Err(error) => !is_taken_over && had_no_effect(error),
    };
    if is_settled {
        store.change(|cluster| release(cluster, volume, &by)).await?;
    }
    done.map_err(refused)
}

/// Look at a volume that nobody holds, before something is made of its present contents.
pub(super) struct Look<'a> {
    store: &'a Store,
    volume: &'a VolumeId,
    /// Number of times that any volume was held before.
    holds: i32,
}

/// Number of times that something is made anew of a volume because another came to be held in that
/// moment.
pub(super) const TRIES: u32 = 5;

impl<'a> Look<'a> {
    /// # Errors
    /// If the volume is held, or the store is not reached.
    pub async fn at(store: &'a Store, volume: &'a VolumeId) -> Done<Self> {
        let holds = store.holds().await?;
        check_not_held(&*store.fresh().await?, volume, None).map_err(refused)?;
        Ok(Look { store, volume, holds })
    }

    /// Whether the volume was held at no moment since. If not nobody knows: another was.
    ///
    /// # Errors
    /// If the volume is held now, or the store is not reached.
    pub async fn was_never_held(&self) -> Done<bool> {
        check_not_held(&*self.store.fresh().await?, self.volume, None).map_err(refused)?;
        Ok(self.store.holds().await? == self.holds)
    }
}

/// Does `act` to a volume, and tells whether the volume was held meanwhile.
///
/// # Errors
/// If the store is not reached afterwards: nobody knows.
pub(super) async fn watching<T>(
    store: &Store,
    volume: &VolumeId,
    act: impl Future<Output = T>,
) -> Done<(T, Result<(), Held>)> {
    let mut changed = store.changed();
    let mut act = std::pin::pin!(act);
    let mut seen = Ok(());
    let done = loop {
        tokio::select! {
            biased;
            done = &mut act => break done,
            Ok(()) = changed.changed() => {
                seen = seen.and_then(|()| check_not_held(&store.view(), volume, None));
            }
            else => break act.await,
        }
    };
    let view = store.fresh().await?;
    let seen = seen.and_then(|()| check_not_held(&view, volume, None));
    Ok((done, seen))
}

pub(super) fn hold(
    cluster: &Cluster,
    volume: &VolumeId,
    purpose: &Purpose,
    by: &str,
) -> Result<(Changes, ()), StorageRefusal> {
    hold_instead(cluster, volume, purpose, None, by)
}

fn hold_instead(
    cluster: &Cluster,
    volume: &VolumeId,
    purpose: &Purpose,
    instead: Option<&Purpose>,
    by: &str,
) -> Result<(Changes, ()), StorageRefusal> {
    require_pool(cluster, &volume.pool)?;
    require_at_rest(cluster, |used| used == volume)?;
    let held = cluster.holds.get(volume).map(|hold| &hold.purpose);
    let allowed = instead.filter(|instead| held == Some(*instead)).unwrap_or(purpose);
    check_not_held(cluster, volume, Some(allowed))?;
    let mut changes = Changes::new();
    // Of a renaming or a start at the same time and this, the later one decides again.
    changes.expect(Expect::VmNames);
    check_keeps_its_name(cluster, volume)?;
    for vm in users(cluster, volume) {
        changes.expect(Expect::VmState(vm.uuid));
    }
    if let Purpose::RollBack(snapshot) = purpose {
        // Of its removal at the same time and this, as well.
        require_recorded(cluster, volume, snapshot)?;
        let (volume, name) = (volume.clone(), snapshot.clone());
        changes.expect(Expect::Snapshot { volume, name });
    }
    let (volume, purpose, by) = (volume.clone(), purpose.clone(), by.to_owned());
    changes.push(Change::HoldVolume(VolumeHold { volume, purpose, by }));
    Ok((changes, ()))
}

/// The purpose for which the volume is held if nobody can bring that to its end any more: the
/// snapshot that it was rolled back to is gone, or the volume itself.
pub(super) async fn without_end(
    cluster: &Cluster,
    storage: &dyn Storage,
    volume: &VolumeId,
) -> Result<Option<Purpose>, StorageError> {
    let Some(hold) = cluster.holds.get(volume) else { return Ok(None) };
    if !matches!(hold.purpose, Purpose::RollBack(_)) {
        return Ok(None);
    }
    let snapshots = match storage.volume(volume).await {
        Ok(found) => found.snapshots,
        Err(StorageError::NoVolume { .. }) => Vec::new(),
        Err(error) => return Err(error),
    };
    let has = |name: &SnapshotName| snapshots.iter().any(|found| found.name == *name);
    Ok(hold.lost_snapshot(has).map(|_| hold.purpose.clone()))
}

/// Refuses a name that the renaming of a VM takes from a volume, or gives to one: if it is taken
/// back it is to find the volume.
pub(super) fn check_keeps_its_name(
    cluster: &Cluster,
    volume: &VolumeId,
) -> Result<(), BeingRenamed> {
    for vm in cluster.vms.values() {
        let Some(to) = being_renamed_to(cluster, vm.uuid) else { continue };
        let is_meant = |own: &VolumeId| {
            own == volume || renamed_volume(&vm.name, to, own).as_ref() == Some(volume)
        };
        if vm.named_volumes().any(is_meant) {
            return Err(BeingRenamed { vm: vm.name.clone(), to: to.to_owned() });
        }
    }
    Ok(())
}

/// Lets go of the volume, unless a later attempt has taken it over.
pub(super) fn release(
    cluster: &Cluster,
    volume: &VolumeId,
    by: &str,
) -> Result<(Changes, ()), StorageRefusal> {
    let mut changes = Changes::new();
    if cluster.holds.get(volume).is_some_and(|hold| hold.by == by) {
        changes.push(Change::ReleaseVolume(volume.clone()));
    }
    Ok((changes, ()))
}

/// Whether the storage refused before it did anything.
pub(super) fn had_no_effect(error: &StorageError) -> bool {
    matches!(
        error,
        StorageError::BadName(_)
            | StorageError::NoPool { .. }
            | StorageError::NoVolume { .. }
            | StorageError::NoSnapshot { .. }
            | StorageError::InUse { .. }
            | StorageError::NoRoom { .. }
            | StorageError::Full { .. }
            | StorageError::Refused { .. }
            | StorageError::WouldShrink { .. }
            | StorageError::HasClones { .. }
            | StorageError::Protected { .. }
            | StorageError::VolumeExists { .. }
            | StorageError::BeyondSafe { .. }
    )
}
