//! Space that snapshots hold: the primary asks the storage for it, seldom and of one volume at a
//! time.
//!
//! The storage may have to look at every part of every volume that has snapshots, so this is a task
//! of its own, which nothing waits for. What it does not say is unknown until the next look. A pool
//! rests far longer than the looks at it took, and what was looked at is written as the pass goes:
//! another primary goes on with it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::snapshot_usage::{
    Look, SnapshotUsage, SnapshotUsageRecord, WRITTEN_AFTER, next_due,
};
use pvc_model::storage::{PoolName, SnapshotName, VolumeId};
use pvc_role::Context;
use pvc_store::{Change, Changes, Report};
use tokio_util::sync::CancellationToken;

/// Time between two looks whether a pool is due.
const EVERY: Duration = Duration::from_secs(60);

/// Time that the storage may take for the snapshots of a volume: it looks at one object after the
/// other.
const LOOK: Duration = Duration::from_secs(3600);

/// Time that the store may take for the answers.
const WRITE: Duration = Duration::from_secs(5);

/// Time after which the end of a pass that could not be written is written again.
const RETRY: Duration = Duration::from_secs(10);

/// Looks at one pool after the other, until `end`.
pub async fn run(context: Context, end: CancellationToken) {
    // A look that takes long does not hold up the end.
    end.run_until_cancelled(watch(&context, &end)).await;
}

async fn watch(context: &Context, end: &CancellationToken) {
    let mut turns = context.turns(end);
    while turns.next(EVERY).await {
        if context.is_primary() {
            pass(context).await;
        }
    }
}

/// Looks at the volumes of the pool that is due, if one is.
async fn pass(context: &Context) {
    forget_gone(context).await;
    let view = context.store.view();
    let pools = pools_with_snapshots(&view);
    let record = |pool: &PoolName| view.snapshot_usage.get(pool).map(|record| &**record);
    let known = pools.keys().map(|pool| (*pool, record(pool)));
    let Some(pool) = next_due(known, wall(context)) else { return };
    let mut usage = record(pool).cloned().unwrap_or_default();
    let mut unwritten = 0;
    for (volume, snapshots) in &pools[pool] {
        // Another looks by itself, and goes on with what is written.
        if !context.is_primary() {
            return;
        }
        if !usage.has_to_come_to(&volume.volume) {
            continue;
        }
        let is_left_alone = usage.leaves_alone(&volume.volume, wall(context));
        let look = look(context, volume, snapshots, is_left_alone).await;
        unwritten += look.took;
        usage.take(look, wall(context));
        // What cannot be written now goes with what is written next.
        if unwritten >= WRITTEN_AFTER && write(context, pool, &usage).await {
            unwritten = 0;
        }
    }
    usage.end_pass(wall(context));
    while context.is_primary() && !write(context, pool, &usage).await {
        context.sleep(RETRY).await;
    }
}

fn wall(context: &Context) -> u64 {
    context.ports.clock.wall().as_secs()
}

/// The volumes that have snapshots by the records, by their pools.
fn pools_with_snapshots(
    view: &Cluster,
) -> BTreeMap<&PoolName, Vec<(&VolumeId, Vec<SnapshotName>)>> {
    let mut pools: BTreeMap<&PoolName, Vec<(&VolumeId, Vec<SnapshotName>)>> = BTreeMap::new();
    for (id, record) in &view.volumes {
        let snapshots: Vec<SnapshotName> =
            record.snapshots.iter().map(|(name, _)| name.clone()).collect();
        if !snapshots.is_empty() && view.pools.contains_key(&id.pool) {
            pools.entry(&id.pool).or_default().push((id, snapshots));
        }
    }
    pools
}

/// Asks what the snapshots of a volume hold, unless it is left alone.
async fn look(
    context: &Context,
    volume: &VolumeId,
    snapshots: &[SnapshotName],
    is_left_alone: bool,
) -> Look {
    let begun = context.now();
    let usage = if is_left_alone { None } else { ask(context, volume).await };
    let took = context.now().saturating_sub(begun).as_secs();
    Look { volume: volume.volume.clone(), snapshots: snapshots.to_vec(), usage, took }
}

async fn ask(context: &Context, volume: &VolumeId) -> Option<Vec<SnapshotUsage>> {
    let asked = context.in_time(LOOK, context.ports.storage.snapshot_usage(volume)).await;
    let usage = asked.inspect_err(|error| {
        tracing::info!(%volume, %error, "the storage does not say what the snapshots of a volume \
                                         hold; it is asked again later");
    });
    usage.ok()
}

/// Returns whether it is written.
async fn write(context: &Context, pool: &PoolName, record: &SnapshotUsageRecord) -> bool {
    // Another may have become primary while the storage was asked.
    if !context.is_primary() {
        return false;
    }
    let report = vec![Report::SnapshotUsage(pool.clone(), record.clone())];
    let written = context.in_time(WRITE, context.store.report(report)).await;
    let written = written.inspect_err(|error| {
        let error = error as &dyn std::error::Error;
        tracing::debug!(error, "what snapshots hold could not be written; it is tried again");
    });
    written.is_ok()
}

/// Forgets pools that are no more, or have no snapshots.
async fn forget_gone(context: &Context) {
    let is_gone = |view: &Cluster| {
        let there = pools_with_snapshots(view);
        let gone = view.snapshot_usage.keys().filter(|pool| !there.contains_key(pool)).cloned();
        gone.collect::<Vec<PoolName>>()
    };
    let view: Arc<Cluster> = context.store.view();
    if is_gone(&view).is_empty() {
        return;
    }
    let forgotten = context.store.change(|cluster| {
        let mut changes = Changes::new();
        for pool in is_gone(cluster) {
            changes.push(Change::ForgetSnapshotUsage(pool));
        }
        Ok::<_, Infallible>((changes, ()))
    });
    if let Err(error) = context.in_time(WRITE, forgotten).await {
        let error = &error as &dyn std::error::Error;
        tracing::debug!(error, "what snapshots held that are gone could not be removed");
    }
}

#[cfg(test)]
mod tests {
    use pvc_embedded::EmbeddedTree;
    use pvc_model::NodeName;
    use pvc_model::node::{CoordinatorState, NodeRole};
    use pvc_ports::{Ports, Storage};
    use pvc_store::{Ipmi, NewNode, NodeChange, Store};
    use pvc_testkit::{Gate, MemoryStorage, SeededRandom, TokioClock, ports};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const MIB: u64 = 1 << 20;

    struct World {
        context: Context,
        storage: Arc<MemoryStorage>,
    }

    impl World {
        /// A primary with volume `vms/a`, whose snapshot `s` holds 2 MiB.
        async fn new() -> World {
            let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(1)));
            let tree = EmbeddedTree::in_memory().connect();
            let store = Store::open(tree, clock.clone(), random.clone()).await.unwrap();
            store.initialize(false).await.unwrap();
            let storage = Arc::new(MemoryStorage::new());
            let ports = Ports { storage: storage.clone(), clock, random, ..ports() };
            let context = Context::new(NodeName::new("hv1"), ports, store);
            let world = World { context, storage };
            world
                .change(|changes| {
                    changes.push(Change::AddNode(Box::new(NewNode {
                        name: NodeName::new("hv1"),
                        role: NodeRole::Coordinator,
                        cpus: 8,
                        kernel: "6.1".to_owned(),
                        os: "GNU/Linux".to_owned(),
                        arch: "x86_64".to_owned(),
                        version: "0.2.0".to_owned(),
                        ipmi: Ipmi::default(),
                        keepalive: 0,
                    })));
                    let state = NodeChange::Coordinator(CoordinatorState::Primary);
                    changes.node(&NodeName::new("hv1"), state);
                    let (pgs, tier) = ("32".to_owned(), "default".to_owned());
                    changes.push(Change::PutPool { name: PoolName::new("vms"), pgs, tier });
                    changes.push(Change::PutVolume { id: id("vms/a"), stats: "{}".to_owned() });
                })
                .await;
            world.storage.create(&id("vms/a"), 16 * MIB, false).await.unwrap();
            world.overwrite(2);
            world.snapshot("s").await;
            world.overwrite(2);
            world
        }

        async fn change(&self, with: impl Fn(&mut Changes) + Send + Sync) {
            let decide = |_: &Cluster| {
                let mut changes = Changes::new();
                with(&mut changes);
                Ok::<_, Infallible>((changes, ()))
            };
            self.context.store.change(decide).await.unwrap();
        }

        fn overwrite(&self, mebibytes: u64) {
            let bytes = vec![7; usize::try_from(mebibytes * MIB).unwrap()];
            self.storage.with_volumes(|volumes| volumes.write(&id("vms/a"), 0, &bytes)).unwrap();
        }

        async fn snapshot(&self, name: &str) {
            let name = SnapshotName::new(name);
            self.storage.snapshot(&id("vms/a"), &name).await.unwrap();
            self.change(|changes| {
                let (volume, stats) = (id("vms/a"), "{}".to_owned());
                changes.push(Change::PutSnapshot { volume, name: name.clone(), stats });
            })
            .await;
        }

        async fn record(&self) -> Option<SnapshotUsageRecord> {
            let view = self.context.store.fresh().await.unwrap();
            view.snapshot_usage.get(&PoolName::new("vms")).map(|record| (**record).clone())
        }

        /// Snapshot and MiB.
        async fn largest(&self) -> Vec<(String, u64)> {
            let record = self.record().await.unwrap_or_default();
            let of = |seen: &pvc_model::snapshot_usage::SeenSnapshot| {
                (seen.usage.name.to_string(), seen.usage.held_bytes / MIB)
            };
            record.largest.iter().map(of).collect()
        }
    }

    fn id(text: &str) -> VolumeId {
        VolumeId::from_record(text).expect("well formed")
    }

    #[tokio::test(start_paused = true)]
    async fn what_snapshots_hold_is_looked_at_once_an_hour() {
        let world = World::new().await;
        pass(&world.context).await;
        let first = world.record().await;
        assert_eq!(world.largest().await, [("s".to_owned(), 2)]);
        world.snapshot("t").await;
        world.overwrite(5);
        pass(&world.context).await;
        assert_eq!(world.record().await, first, "it is not time yet");
        world.context.sleep(HOUR).await;
        pass(&world.context).await;
        assert_eq!(world.largest().await, [("s".to_owned(), 2), ("t".to_owned(), 2)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_storage_that_fails_leaves_the_last_answers_and_what_is_new_unknown() {
        let world = World::new().await;
        pass(&world.context).await;
        let first = world.record().await.unwrap();
        world.snapshot("t").await;
        world.context.sleep(HOUR).await;
        world.storage.set_failing(true);
        pass(&world.context).await;
        let record = world.record().await.unwrap();
        assert_eq!((&record.largest, record.unknown), (&first.largest, 1));
        assert!(record.at.unwrap() >= first.at.unwrap() + HOUR.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn another_primary_goes_on_where_the_last_one_was() {
        let world = World::new().await;
        let mut begun = SnapshotUsageRecord::default();
        let (volume, snapshots) = (id("vms/a").volume, vec![SnapshotName::new("s")]);
        begun.take(Look { volume, snapshots, usage: None, took: 400 }, wall(&world.context));
        let report = vec![Report::SnapshotUsage(PoolName::new("vms"), begun)];
        world.context.store.report(report).await.unwrap();
        assert!(world.record().await.is_some());
        pass(&world.context).await;
        let record = world.record().await.unwrap();
        assert_eq!((record.took, record.unknown, record.pass), (400, 1, None), "not asked again");
        world.context.sleep(HOUR).await;
        pass(&world.context).await;
        assert_eq!(world.record().await.unwrap().unknown, 1, "its rest is longer than an hour");
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_that_the_storage_is_silent_of_is_left_alone_for_a_day_and_its_pool_rests() {
        let world = World::new().await;
        world.storage.set_gate(Gate::closing_at(1));
        pass(&world.context).await;
        let record = world.record().await.unwrap();
        assert_eq!((record.took, record.unknown, record.late.len()), (LOOK.as_secs(), 1, 1));
        world.storage.set_gate(Gate::closing_at(u64::MAX));
        world.context.sleep(19 * HOUR).await;
        pass(&world.context).await;
        assert_eq!(world.record().await, Some(record), "the pool rests");
        world.context.sleep(HOUR).await;
        pass(&world.context).await;
        let record = world.record().await.unwrap();
        assert_eq!((record.took, record.unknown), (0, 1), "the volume is left alone");
        world.context.sleep(4 * HOUR).await;
        pass(&world.context).await;
        assert_eq!(world.largest().await, [("s".to_owned(), 2)]);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_asked_where_there_are_no_snapshots_and_what_was_known_is_forgotten() {
        let world = World::new().await;
        pass(&world.context).await;
        assert!(world.record().await.is_some());
        world
            .change(|changes| {
                let (volume, name) = (id("vms/a"), SnapshotName::new("s"));
                changes.push(Change::RemoveSnapshot { volume, name });
            })
            .await;
        world.context.sleep(HOUR).await;
        pass(&world.context).await;
        assert_eq!(world.record().await, None, "the snapshot is still in the storage");
    }

    #[tokio::test(start_paused = true)]
    async fn what_snapshots_hold_goes_with_their_pool() {
        let world = World::new().await;
        pass(&world.context).await;
        assert_ne!(world.record().await, None);
        world
            .change(|changes| {
                changes.push(Change::RemovePool(PoolName::new("vms")));
            })
            .await;
        assert_eq!(world.record().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_not_primary_asks_nothing() {
        let world = World::new().await;
        world
            .change(|changes| {
                let state = NodeChange::Coordinator(CoordinatorState::Secondary);
                changes.node(&NodeName::new("hv1"), state);
            })
            .await;
        let end = CancellationToken::new();
        let task = tokio::spawn(run(world.context.clone(), end.clone()));
        world.context.sleep(2 * HOUR).await;
        assert_eq!(world.record().await, None);
        end.cancel();
        task.await.unwrap();
    }
}
