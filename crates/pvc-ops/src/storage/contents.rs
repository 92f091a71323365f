//! New contents of volumes.
//!
//! ```text
//!  an image is written beside the volume, and checked        (nothing has changed)
//!    hold the volume: no VM that uses it starts; the hold says what the trash has of its name
//!      the volume, as it was, goes to the trash                (no volume has the name)
//!      what was written gets the name       or: the trash gives it back
//!    record it, let go of it
//! ```
//!
//! A process that dies in between leaves the hold: the [primary](settle) looks whether a volume has
//! the name, and if none has, the trash gives back the one that is new in it.

use std::collections::BTreeSet;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::hold::{Purpose, VolumeHold, check_not_held};
use pvc_model::storage::{SnapshotName, TrashId, VolumeId};
use pvc_ports::{
    Clock, Download, Random, Storage, StorageError, TrashedVolume, TreeError, Upload, VolumeInfo,
    VolumeStreams,
};
use pvc_store::{Change, ChangeError, Changes, Store, StoreError};

use super::hold::{Look, TRIES, had_no_effect, hold, release};
use super::{
    Done, StorageRefusal, record_volume, refused, require_at_rest, require_no_part, require_pool,
};

/// Begins to read a volume that nobody uses, or one of its snapshots.
///
/// # Errors
/// While the volume is held, or a VM that uses it is not off and no snapshot is meant; and if this
/// storage has no streams.
pub async fn download(
    store: &Store,
    storage: &dyn Storage,
    volume: &VolumeId,
    snapshot: Option<&SnapshotName>,
) -> Done<Box<dyn Download>> {
    let view = store.fresh().await?;
    require_pool(&view, &volume.pool).map_err(ChangeError::Refused)?;
    check_not_held(&view, volume, None).map_err(refused)?;
    if snapshot.is_none() {
        require_at_rest(&view, |used| used == volume).map_err(ChangeError::Refused)?;
    }
    let streams = streams(storage).map_err(ChangeError::Refused)?;
    for _ in 0..TRIES {
        let look = Look::at(store, volume).await?;
        let begun = streams.download(volume, snapshot).await.map_err(refused)?;
        // Of a snapshot nothing changes. The volume itself may have been held in the moment of
        // which it is read; what was begun ends when it is dropped.
        if snapshot.is_some() || look.was_never_held().await? {
            return Ok(begun);
        }
    }
    Err(ChangeError::Conflict { tries: TRIES })
}

pub(super) fn streams(storage: &dyn Storage) -> Result<&dyn VolumeStreams, StorageRefusal> {
    storage.streams().ok_or(StorageRefusal::NoStreams)
}

/// Contents for a volume, to be written.
pub struct BegunContents {
    pub upload: Box<dyn Upload>,
    pub target: FillTarget,
}

/// The volume that contents are for, as it was when they were begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FillTarget {
    /// Its [identity](pvc_ports::MeasuredVolume), whatever has its name by now.
    pub identity: String,
    pub size_bytes: u64,
}

/// Begins contents for the volume, which [`fill_volume`] gives it.
///
/// # Errors
/// Those of [`check_fill`].
pub async fn begin_fill(
    store: &Store,
    storage: &dyn Storage,
    volume: &VolumeId,
    force: bool,
) -> Done<BegunContents> {
    let size_bytes = check_fill(store, storage, volume, force).await?;
    let identity = storage.measured(volume).await.map_err(refused)?.identity;
    let streams = streams(storage).map_err(ChangeError::Refused)?;
    let upload = streams.upload(volume, size_bytes, force).await.map_err(refused)?;
    Ok(BegunContents { upload, target: FillTarget { identity, size_bytes } })
}

/// Time for which old contents are in the trash at least, until the new ones have the name.
pub(super) const LEAST_KEPT: Duration = Duration::from_secs(24 * 3600);

/// Refuses what could not get new contents now; returns its size, in bytes.
///
/// # Errors
/// While a VM that uses it is not off or somebody has it open, while it is held, while it has
/// snapshots, which would go to the trash with it, and if there is no room for a second volume of
/// its size beside it.
pub async fn check_fill(
    store: &Store,
    storage: &dyn Storage,
    volume: &VolumeId,
    force: bool,
) -> Done<u64> {
    let view = store.fresh().await?;
    require_pool(&view, &volume.pool).map_err(ChangeError::Refused)?;
    require_at_rest(&view, |used| used == volume).map_err(ChangeError::Refused)?;
    check_not_held(&view, volume, None).map_err(refused)?;
    require_no_part(&view, |used| used == volume).map_err(ChangeError::Refused)?;
    let found = storage.volume(volume).await.map_err(refused)?;
    require_no_snapshots(&found).map_err(ChangeError::Refused)?;
    storage.check_unused(volume).await.map_err(refused)?;
    let pool = storage.pool(&volume.pool).await.map_err(refused)?;
    pool.check_room(found.size_bytes, force).map_err(refused)?;
    Ok(found.size_bytes)
}

/// Refuses what has a snapshot, but for those of downloads that are under way, which read on in the
/// trash.
fn require_no_snapshots(volume: &VolumeInfo) -> Result<(), StorageRefusal> {
    match volume.snapshots.iter().find(|snapshot| !snapshot.name.is_passing()) {
        None => Ok(()),
        Some(snapshot) => Err(StorageRefusal::HasSnapshots {
            volume: volume.id.clone(),
            snapshot: snapshot.name.clone(),
        }),
    }
}

/// Contents that a volume is to have.
pub struct NewContents {
    pub upload: Box<dyn Upload>,
    pub target: FillTarget,
    /// Time for which the old contents are kept; without any they are removed.
    pub keep: Duration,
    /// Time for which a store that is away is waited for: the contents are whole, and took long to
    /// come.
    pub may_wait: Duration,
}

/// Gives a volume the contents that were uploaded. What it was before goes to the trash, and is
/// returned.
///
/// # Errors
/// Those of [`check_fill`], which are looked for again, and if the volume has another size by now,
/// or is another one: also one that got its contents from another upload meanwhile.
/// The volume has its old contents then, or, if nobody knows how far the storage has come, is held
/// until the primary has [settled](settle) it.
pub async fn fill_volume(
    store: &Store,
    storage: &dyn Storage,
    random: &dyn Random,
    clock: &dyn Clock,
    volume: &VolumeId,
    new: NewContents,
) -> Done<TrashedVolume> {
    let NewContents { mut upload, target, keep, may_wait } = new;
    // What takes long is done while the volume has its name.
    upload.finish().await.map_err(refused)?;
    let by = random.uuid().to_string();
    let purpose = Purpose::Fill { trashed: None };
    hold_when_reached(store, (clock, may_wait), volume, &purpose, &by).await?;
    let filling = Filling { store, storage, clock, volume, by: &by };
    let replaced = filling.replace(&target, keep, upload).await;
    if matches!(replaced, Err(Failed::Open(_))) {
        tracing::warn!(%volume, "nobody knows which contents the volume has; it is held until the \
                                 primary node has looked");
    } else {
        // What has become of the volume is what is told. The primary sees to the rest.
        let recorded = record_volume(store, storage, volume).await;
        let released = store.change(|cluster| release(cluster, volume, &by)).await;
        for error in [recorded.err(), released.err()].into_iter().flatten() {
            tracing::warn!(%volume, %error, "the records of a volume do not follow its contents");
        }
    }
    let old = replaced.map_err(|failed| match failed {
        Failed::AsBefore(why) | Failed::Open(why) => why,
    })?;
    if keep.is_zero()
        && let Err(error) = storage.purge(&old.pool, &old.id).await
    {
        tracing::warn!(%volume, %error, "the old contents of the volume are still in the trash");
    }
    Ok(old)
}

/// Failure to give a volume other contents.
enum Failed {
    /// The volume has those that it had.
    AsBefore(ChangeError<StorageRefusal>),
    /// Nobody knows.
    Open(ChangeError<StorageRefusal>),
}

fn as_before(error: impl Into<StorageRefusal>) -> Failed {
    Failed::AsBefore(refused(error))
}

/// An attempt at new contents that holds the volume.
struct Filling<'a> {
    store: &'a Store,
    storage: &'a dyn Storage,
    clock: &'a dyn Clock,
    volume: &'a VolumeId,
    by: &'a str,
}

impl Filling<'_> {
    async fn replace(
        &self,
        target: &FillTarget,
        keep: Duration,
        upload: Box<dyn Upload>,
    ) -> Result<TrashedVolume, Failed> {
        let (storage, volume) = (self.storage, self.volume);
        let (old, noted) = tokio::select! {
            old = self.move_old(target, keep) => old?,
            () = self.clock.sleep(MOST_BEFORE) => {
                let doing = format!("moving volume `{volume}` to the trash");
                let seconds = MOST_BEFORE.as_secs();
                return Err(Failed::Open(refused(StorageError::TimedOut { doing, seconds })));
            }
        };
        // Whoever was stopped for long does not go on: the primary may have let go of the volume.
        let (why, is_over) = match self.require_held().await {
            Ok(()) => match upload.commit().await {
                Ok(()) => return Ok(old),
                // What was not done in time may still be done.
                Err(late @ StorageError::TimedOut { .. }) => (refused(late), false),
                Err(error) => (refused(error), true),
            },
            Err(error) => (error, true),
        };
        if is_over && storage.restore(&old.pool, &old.id, &volume.volume).await.is_ok() {
            return Err(Failed::AsBefore(why));
        }
        self.hold_again(noted).await;
        Err(Failed::Open(why))
    }

    /// Moves the volume to the trash if it is still as it was. Returns what the trash had of its
    /// name before, too.
    async fn move_old(
        &self,
        target: &FillTarget,
        keep: Duration,
    ) -> Result<(TrashedVolume, BTreeSet<TrashId>), Failed> {
        let Filling { storage, volume, .. } = self;
        let found = storage.volume(volume).await.map_err(as_before)?;
        require_no_snapshots(&found).map_err(as_before)?;
        if storage.measured(volume).await.map_err(as_before)?.identity != target.identity {
            return Err(as_before(StorageRefusal::Another { volume: found.id }));
        }
        if found.size_bytes != target.size_bytes {
            let (volume, now_bytes, size_bytes) = (found.id, found.size_bytes, target.size_bytes);
            return Err(as_before(StorageRefusal::Resized { volume, size_bytes, now_bytes }));
        }
        let noted = self.note_trashed().await.map_err(Failed::AsBefore)?;
        // Nothing purges it before it is known what has become of the new contents.
        match storage.trash(volume, keep.max(LEAST_KEPT)).await {
            Ok(old) => Ok((old, noted)),
            Err(error) if had_no_effect(&error) => Err(as_before(error)),
            Err(error) => Err(Failed::Open(refused(error))),
        }
    }

    /// Holds the volume, which may have no name, for the primary to see to it, if the primary has
    /// let go of it already.
    async fn hold_again(&self, trashed: BTreeSet<TrashId>) {
        let decide = |cluster: &Cluster| {
            let mut changes = Changes::new();
            if !cluster.holds.contains_key(self.volume) {
                let purpose = Purpose::Fill { trashed: Some(trashed.clone()) };
                let (volume, by) = (self.volume.clone(), self.by.to_owned());
                changes.push(Change::HoldVolume(VolumeHold { volume, purpose, by }));
            }
            Ok::<_, StorageRefusal>((changes, ()))
        };
        if let Err(error) = self.store.change(decide).await {
            tracing::error!(volume = %self.volume, %error, "a volume that may have no name could \
                                                            not be held; `pvc storage trash list` \
                                                            has its old contents");
        }
    }

    /// Notes in the hold what the trash has of this name, so that what comes to it is known for the
    /// old contents whatever clocks say.
    async fn note_trashed(&self) -> Done<BTreeSet<TrashId>> {
        let Filling { store, storage, volume, .. } = self;
        let all = storage.trashed(&volume.pool).await.map_err(refused)?;
        let namesakes = all.into_iter().filter(|entry| entry.name == volume.volume);
        let trashed: BTreeSet<TrashId> = namesakes.map(|entry| entry.id).collect();
        if trashed.len() > MOST_NAMESAKES {
            let volume = VolumeId::clone(volume);
            return Err(refused(StorageRefusal::ManyTrashed { volume, count: trashed.len() }));
        }
        let decide = |cluster: &Cluster| {
            let held = self.find_hold(cluster)?;
            let purpose = Purpose::Fill { trashed: Some(trashed.clone()) };
            let mut changes = Changes::new();
            changes.push(Change::HoldVolume(VolumeHold { purpose, ..held }));
            Ok((changes, ()))
        };
        store.change(decide).await?;
        Ok(trashed)
    }

    async fn require_held(&self) -> Done<()> {
        let view = self.store.fresh().await?;
        self.find_hold(&view).map(drop).map_err(ChangeError::Refused)
    }

    fn find_hold(&self, cluster: &Cluster) -> Result<VolumeHold, StorageRefusal> {
        let held = cluster.holds.get(self.volume).filter(|hold| hold.by == self.by);
        let lost = || StorageRefusal::HoldLost { volume: self.volume.clone() };
        held.map(|hold| VolumeHold::clone(hold)).ok_or_else(lost)
    }
}

/// Holds the volume for `by`. A store that is away is waited for so long.
async fn hold_when_reached(
    store: &Store,
    (clock, may_wait): (&dyn Clock, Duration),
    volume: &VolumeId,
    purpose: &Purpose,
    by: &str,
) -> Done<()> {
    let end = clock.monotonic() + may_wait;
    loop {
        let held = store.change(|cluster| hold(cluster, volume, purpose, by)).await;
        let is_away = matches!(
            held,
            Err(ChangeError::Store(StoreError::Tree(
                TreeError::Unreachable { .. }
                    | TreeError::OutcomeUnknown
                    | TreeError::SessionExpired
            )))
        );
        if !is_away || clock.monotonic() >= end {
            return held;
        }
        clock.sleep(Duration::from_secs(1)).await;
    }
}

/// Time after which an attempt that has not yet moved the volume to the trash gives up. The primary
/// [settles](settle) a hold that is twice as old.
const MOST_BEFORE: Duration = Duration::from_secs(300);

/// The most volumes of one name in the trash with which an upload begins.
const MOST_NAMESAKES: usize = 1000;

/// End of an attempt at new contents that was cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// A volume has the name, with the old contents or with the new.
    Stands,
    /// The trash has given back the volume as it was.
    GivenBack,
    /// Nothing has the name, and the trash knows no volume of it.
    Gone,
}

/// Brings to its end what was held by an attempt at new contents that does not go on: unless a
/// volume has the name, the one that came to the trash since gets it back. Lets go of the name.
///
/// # Errors
/// The hold stays: it is to be tried again.
pub async fn settle(store: &Store, storage: &dyn Storage, held: &VolumeHold) -> Done<Settled> {
    let (id, name) = (&held.volume, &held.volume.volume);
    let is_old = |entry: &TrashedVolume| match &held.purpose {
        Purpose::Fill { trashed: Some(before) } => before.contains(&entry.id),
        // Nothing was moved there.
        Purpose::Fill { trashed: None }
        | Purpose::Other
        | Purpose::RollBack(_)
        | Purpose::Shrink(_)
        | Purpose::Mapped(_) => true,
    };
    // Not whether something opens by the name: what was cut off on its way lies.
    let settled = if storage.repair_name(id).await.map_err(refused)? {
        Settled::Stands
    } else {
        let trashed = storage.trashed(&id.pool).await.map_err(refused)?;
        let ours = trashed.into_iter().filter(|old| old.name == *name && !is_old(old));
        match ours.max_by_key(|old| old.removed_at) {
            Some(old) => {
                storage.restore(&id.pool, &old.id, name).await.map_err(refused)?;
                Settled::GivenBack
            }
            None => Settled::Gone,
        }
    };
    record_volume(store, storage, id).await?;
    store.change(|cluster| release(cluster, id, &held.by)).await?;
    Ok(settled)
}
