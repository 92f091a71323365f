//! Leftovers: volumes that are held by an upload whose daemon is gone, and what copies, uploads and
//! downloads that were cut off have left in the pools. The primary sees to both.

use std::collections::BTreeMap;
use std::time::Duration;

use pvc_model::hold::{Purpose, VolumeHold};
use pvc_model::storage::{SnapshotName, VolumeId};
use pvc_ops::storage::{Settled, settle};
use pvc_ports::{Storage, StorageError, VolumeInfo};
use pvc_role::Context;
use tokio_util::sync::CancellationToken;

/// Time between two looks at the holds.
const EVERY: Duration = Duration::from_secs(60);

/// Time after which nobody is at it any more who holds a volume to give it new contents: each act
/// of that has a deadline of half a minute.
const CUT_OFF: Duration = Duration::from_secs(600);

/// Time between two looks at the pools.
const SWEEP_EVERY: Duration = Duration::from_secs(3600);

/// Time that something has to be there, with a name that no other gets, before it is a leftover. A
/// download that takes longer fails.
const LEFT: Duration = Duration::from_secs(24 * 3600);

/// Time that one look, or one act, may take.
const DEADLINE: Duration = Duration::from_secs(600);

/// Works until `end`.
pub async fn run(context: Context, end: CancellationToken) {
    // What takes long to remove keeps no volume held.
    tokio::join!(keep_settling(&context, &end), keep_sweeping(&context, &end));
}

async fn keep_settling(context: &Context, end: &CancellationToken) {
    let mut seen = Sightings::default();
    let mut turns = context.turns(end);
    while turns.next(EVERY).await {
        match context.is_primary() {
            true => settle_holds(context, &mut seen, context.now()).await,
            false => seen = Sightings::default(),
        }
    }
}

async fn keep_sweeping(context: &Context, end: &CancellationToken) {
    let mut seen = Sightings::default();
    let mut turns = context.turns(end);
    while turns.next(SWEEP_EVERY).await {
        match context.is_primary() {
            true => sweep(context, &mut seen, context.now()).await,
            false => seen = Sightings::default(),
        }
    }
}

/// Things that were seen, and since when each of them is there, on the monotonic clock.
struct Sightings<T> {
    since: BTreeMap<T, Duration>,
}

impl<T> Default for Sightings<T> {
    fn default() -> Self {
        Sightings { since: BTreeMap::new() }
    }
}

impl<T: Ord + Clone> Sightings<T> {
    /// Notes what is `there`; returns those that have been for at least `time`.
    fn note(&mut self, there: Vec<T>, now: Duration, time: Duration) -> Vec<T> {
        let before = std::mem::take(&mut self.since);
        let since = |thing: &T| before.get(thing).copied().unwrap_or(now);
        self.since = there.into_iter().map(|thing| (thing.clone(), since(&thing))).collect();
        let old = self.since.iter().filter(|(_, since)| now.saturating_sub(**since) >= time);
        old.map(|(thing, _)| thing.clone()).collect()
    }
}

/// A volume, and the attempt that holds it.
type Held = (VolumeId, String);

async fn settle_holds(context: &Context, seen: &mut Sightings<Held>, now: Duration) {
    let view = context.store.view();
    let filled = view.holds.values().filter(|hold| hold.purpose == Purpose::Fill);
    let held = filled.map(|hold| (hold.volume.clone(), hold.by.clone())).collect();
    for (volume, by) in seen.note(held, now, CUT_OFF) {
        let hold = VolumeHold { volume: volume.clone(), purpose: Purpose::Fill, by };
        let settled = settle(&context.store, context.ports.storage.as_ref(), &hold);
        match context.in_time(DEADLINE, settled).await {
            Ok(Settled::Stands) => {
                tracing::info!(%volume, "an upload was cut off; the volume is let go of");
            }
            Ok(Settled::GivenBack) => {
                tracing::warn!(%volume, "an upload was cut off; the volume has its old contents \
                                         again");
            }
            Ok(Settled::Gone) => {
                tracing::error!(%volume, "an upload was cut off; no volume has the name, and none \
                                          of it is in the trash");
            }
            Err(error) => {
                tracing::warn!(
                    %volume,
                    error = &error as &dyn std::error::Error,
                    "an upload was cut off, and the volume cannot be put right yet; it is tried \
                     again"
                );
            }
        }
    }
}

/// A volume that was not completed, or a snapshot of which a copy or a download was made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Leftover {
    Volume(VolumeId),
    Snapshot(VolumeId, SnapshotName),
}

/// Volumes and snapshots of a pool that are left over if they stay.
fn candidates(volumes: &[VolumeInfo]) -> impl Iterator<Item = Leftover> {
    volumes.iter().flat_map(|volume| {
        let is_partial = volume.id.volume.is_reserved();
        let whole = is_partial.then(|| Leftover::Volume(volume.id.clone()));
        let own = volume.snapshots.iter().filter(|one| one.name.is_reserved());
        let of =
            |one: &pvc_ports::SnapshotInfo| Leftover::Snapshot(volume.id.clone(), one.name.clone());
        whole.into_iter().chain(own.map(of))
    })
}

async fn sweep(context: &Context, seen: &mut Sightings<Leftover>, now: Duration) {
    let storage = context.ports.storage.as_ref();
    let view = context.store.view();
    let mut there = Vec::new();
    for pool in view.pools.keys() {
        match context.in_time(DEADLINE, storage.volumes(pool)).await {
            Ok(volumes) => there.extend(candidates(&volumes)),
            // What was seen in it before is not forgotten.
            Err(error) => {
                tracing::debug!(%pool, %error, "a pool cannot be looked at");
                there.extend(seen.since.keys().filter(|left| left.pool() == pool).cloned());
            }
        }
    }
    for left in seen.note(there, now, LEFT) {
        let removed = context.in_time(DEADLINE, remove(storage, &left)).await;
        match removed {
            Ok(()) => tracing::info!(?left, "what was not completed is removed"),
            Err(error) => tracing::debug!(?left, %error, "a leftover cannot be removed"),
        }
    }
}

impl Leftover {
    fn pool(&self) -> &pvc_model::storage::PoolName {
        match self {
            Leftover::Volume(volume) | Leftover::Snapshot(volume, _) => &volume.pool,
        }
    }
}

/// Removes what is left over, unless somebody has it open.
async fn remove(storage: &dyn Storage, left: &Leftover) -> Result<(), StorageError> {
    let removed = match left {
        Leftover::Volume(volume) => storage.remove(volume).await,
        Leftover::Snapshot(volume, snapshot) => storage.remove_snapshot(volume, snapshot).await,
    };
    match removed {
        Err(StorageError::NoVolume { .. } | StorageError::NoSnapshot { .. }) => Ok(()),
        other => other,
    }
}
