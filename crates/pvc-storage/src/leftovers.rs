//! Leftovers: volumes that are held by an upload whose daemon is gone, or for the script of a task
//! that is no more, those of benchmarks that have come to no end, those that jobs have left in the
//! making, and what copies, uploads and downloads that were cut off have left in the pools. The
//! primary sees to all of them.

use std::collections::BTreeMap;
use std::time::Duration;

use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_model::hold::{Purpose, has_nothing_mapped};
use pvc_model::job::JobId;
use pvc_model::job::making::{is_left_behind, maker_of};
use pvc_model::storage::{PoolName, SnapshotName, VolumeId};
use pvc_model::vm::volumes::users;
use pvc_ops::benchmark::remove_left_behind;
use pvc_ops::storage::{Settled, StillMapped, let_go_of_mapped, remove_volume, settle};
use pvc_ports::{Storage, StorageError, VolumeInfo};
use pvc_role::Context;
use pvc_store::Changes;
use tokio_util::sync::CancellationToken;

/// Time between two looks at the holds and the benchmarks.
const EVERY: Duration = Duration::from_secs(60);

/// Time after which a volume that is held to be given new contents is seen to. Whoever is slower
/// finds that it does not hold the volume any more, and stops.
const CUT_OFF: Duration = Duration::from_secs(600);

/// Time between two looks at the pools.
const SWEEP_EVERY: Duration = Duration::from_secs(3600);

/// Time that something has to be there, with a name that no other gets, before it is a leftover. A
/// download that takes longer fails.
const LEFT: Duration = Duration::from_secs(24 * 3600);

/// The same of a snapshot of which a copy is made, which may be of terabytes.
const LEFT_OF_COPY: Duration = Duration::from_secs(7 * 24 * 3600);

/// Time that one look, or one act, may take.
const DEADLINE: Duration = Duration::from_secs(600);

/// Works until `end`.
pub async fn run(context: Context, end: CancellationToken) {
    // What takes long to remove keeps no volume held.
    tokio::join!(
        keep_looking(&context, &end, EVERY, settle_holds),
        keep_ending_benchmarks(&context, &end),
        keep_looking(&context, &end, EVERY, remove_makings),
        keep_looking(&context, &end, SWEEP_EVERY, sweep)
    );
}

/// Looks again and again while this node is primary. What was seen is forgotten when it is not.
async fn keep_looking<T>(
    context: &Context,
    end: &CancellationToken,
    every: Duration,
    look: impl AsyncFn(&Context, &mut Sightings<T>, Duration),
) {
    let mut seen = Sightings::default();
    let mut turns = context.turns(end);
    while turns.next(every).await {
        match context.is_primary() {
            true => look(context, &mut seen, context.now()).await,
            false => seen = Sightings::default(),
        }
    }
}

async fn keep_ending_benchmarks(context: &Context, end: &CancellationToken) {
    let mut turns = context.turns(end);
    let mut is_logged = false;
    while turns.next(EVERY).await {
        if context.is_primary() {
            end_benchmarks(context, &mut is_logged).await;
        }
    }
}

/// Removes what is left of benchmarks that have come to no end. A failure is logged once.
async fn end_benchmarks(context: &Context, is_logged: &mut bool) {
    let view = context.store.view();
    if !view.benchmarks.values().any(|record| record.is_left_behind(&view)) {
        *is_logged = false;
        return;
    }
    let (store, storage) = (&context.store, context.ports.storage.as_ref());
    match context.in_time(DEADLINE, remove_left_behind(store, storage)).await {
        Ok(removed) => {
            for volume in removed {
                tracing::info!(%volume, "the volume that a benchmark has left is removed");
            }
        }
        Err(error) => {
            let error = &error as &dyn std::error::Error;
            if !std::mem::replace(is_logged, true) {
                tracing::warn!(error, "what a benchmark has left cannot be removed yet");
            }
        }
    }
}

/// Removes volumes that are recorded and in the making by jobs that are over. They are in the trash
/// for a day.
async fn remove_makings(context: &Context, seen: &mut Sightings<VolumeId>, now: Duration) {
    let (view, storage) = (context.store.view(), context.ports.storage.as_ref());
    let recorded = view.volumes.keys();
    let left = recorded.filter(|volume| is_left_behind(&view, &volume.volume)).cloned().collect();
    // Whoever has made it late may be about to remove it.
    for volume in seen.note(left, now, |_| EVERY) {
        // What was seen may have been half of a change.
        let is_left = context.store.fresh().await.is_ok_and(|view| {
            view.volumes.contains_key(&volume) && is_left_behind(&view, &volume.volume)
        });
        if !is_left {
            continue;
        }
        let removed = remove_volume(&context.store, storage, &volume, LEFT, false);
        match context.in_time(DEADLINE, removed).await {
            Ok(_) => tracing::warn!(
                %volume,
                "what a task that is over has left in the making is removed; it is in the trash \
                 for a day"
            ),
            Err(error) => tracing::debug!(%volume, %error, "a leftover cannot be removed"),
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
    /// Notes what is `there`; returns what has been for at least its `time`.
    fn note(&mut self, there: Vec<T>, now: Duration, time: impl Fn(&T) -> Duration) -> Vec<T> {
        let before = std::mem::take(&mut self.since);
        let since = |seen: &T| before.get(seen).copied().unwrap_or(now);
        self.since = there.into_iter().map(|seen| (seen.clone(), since(&seen))).collect();
        let is_old = |(seen, since): &(&T, &Duration)| now.saturating_sub(**since) >= time(seen);
        self.since.iter().filter(is_old).map(|(seen, _)| seen.clone()).collect()
    }
}

/// A volume, and the attempt that holds it.
type Held = (VolumeId, String);

/// Lets go of what is held for the script of a task that is no more, as one of a tree that was
/// replaced, on a node that is proven dead: a task lets go of its own before it is over, and the
/// worker of a node that lives of what was left so.
async fn let_go_of_ended(context: &Context) {
    let is_open = |cluster: &Cluster, job: &JobId| {
        cluster.jobs.get(job).is_some_and(|job| !job.progress.state.is_over())
    };
    let view = context.store.view();
    for hold in view.holds.values() {
        let Purpose::Mapped(jobs) = &hold.purpose else { continue };
        let volume = &hold.volume;
        let is_left = |(job, node): &(&JobId, &NodeName)| {
            !is_open(&view, job) && has_nothing_mapped(&view, node)
        };
        for (job, _) in jobs.iter().filter(is_left) {
            let decide = |cluster: &Cluster| {
                let changes = match is_open(cluster, job) {
                    true => Changes::new(),
                    false => let_go_of_mapped(cluster, volume, job, None)?,
                };
                Ok::<_, StillMapped>((changes, ()))
            };
            match context.store.change(decide).await {
                Ok(()) => {
                    tracing::warn!(%volume, %job, "a task is no more, and its volume is let go of");
                }
                Err(error) => {
                    tracing::warn!(
                        %volume,
                        error = &error as &dyn std::error::Error,
                        "a task is no more, and its volume cannot be let go of yet; it is tried \
                         again"
                    );
                }
            }
        }
    }
}

async fn settle_holds(context: &Context, seen: &mut Sightings<Held>, now: Duration) {
    let_go_of_ended(context).await;
    let view = context.store.view();
    let filled = view.holds.values().filter(|hold| matches!(hold.purpose, Purpose::Fill { .. }));
    let held = filled.map(|hold| (hold.volume.clone(), hold.by.clone())).collect();
    for (volume, by) in seen.note(held, now, |_| CUT_OFF) {
        let Some(hold) = view.holds.get(&volume).filter(|hold| hold.by == by) else { continue };
        let settled = settle(&context.store, context.ports.storage.as_ref(), hold);
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
    /// The name of one whose removal was cut off.
    Removal(VolumeId),
    Snapshot(VolumeId, SnapshotName),
}

/// Volumes and snapshots of a pool that are left over if they stay. A volume that is recorded, or
/// that a VM names, is somebody's, whatever it is called.
fn candidates(cluster: &Cluster, volumes: &[VolumeInfo]) -> impl Iterator<Item = Leftover> {
    volumes.iter().flat_map(|volume| {
        let is_known =
            cluster.volumes.contains_key(&volume.id) || users(cluster, &volume.id).next().is_some();
        let name = &volume.id.volume;
        let is_left = (name.is_partial() || is_left_behind(cluster, name)) && !is_known;
        let whole = is_left.then(|| Leftover::Volume(volume.id.clone()));
        // What clones stand on as well: the storage keeps it until the last of them is gone.
        let own = volume.snapshots.iter().map(|one| &one.name);
        let own = own.filter(|name| name.is_passing() || name.is_base());
        let of = |name: &SnapshotName| Leftover::Snapshot(volume.id.clone(), name.clone());
        whole.into_iter().chain(own.map(of))
    })
}

async fn sweep(context: &Context, seen: &mut Sightings<Leftover>, now: Duration) {
    let storage = context.ports.storage.as_ref();
    let view = context.store.view();
    let mut there = Vec::new();
    for pool in view.pools.keys() {
        let look = async {
            let volumes = storage.volumes(pool).await?;
            // One that cannot be read keeps nothing else from being seen.
            Ok::<_, StorageError>((volumes, storage.half_removed(pool).await))
        };
        match context.in_time(DEADLINE, look).await {
            Ok((volumes, removals)) => {
                there.extend(candidates(&view, &volumes));
                match removals {
                    Ok(removals) => there.extend(removals.into_iter().map(Leftover::Removal)),
                    Err(_) => there.extend(seen.removals_of(pool)),
                }
            }
            // What was seen in it before is not forgotten.
            Err(error) => {
                tracing::debug!(%pool, %error, "a pool cannot be looked at");
                there.extend(seen.since.keys().filter(|left| left.pool() == pool).cloned());
            }
        }
    }
    for left in seen.note(there, now, Leftover::stays) {
        let removed = context.in_time(DEADLINE, remove(storage, &left)).await;
        match removed {
            Ok(()) => tracing::info!(?left, "what was not completed is removed"),
            Err(error) => tracing::debug!(?left, %error, "a leftover cannot be removed"),
        }
    }
}

impl Sightings<Leftover> {
    /// Removals that were cut off in a pool, as far as is known from earlier.
    fn removals_of(&self, pool: &PoolName) -> impl Iterator<Item = Leftover> {
        let is_one =
            move |left: &&Leftover| matches!(left, Leftover::Removal(_)) && left.pool() == pool;
        self.since.keys().filter(is_one).cloned()
    }
}

impl Leftover {
    /// Time that it has to be there before it is one.
    fn stays(&self) -> Duration {
        match self {
            Leftover::Snapshot(_, name) if name.is_of_copy() => LEFT_OF_COPY,
            // Known by its job, which is forgotten after a day.
            Leftover::Volume(volume) if maker_of(&volume.volume).is_some() => SWEEP_EVERY,
            _ => LEFT,
        }
    }

    fn pool(&self) -> &PoolName {
        match self {
            Leftover::Volume(volume)
            | Leftover::Removal(volume)
            | Leftover::Snapshot(volume, _) => &volume.pool,
        }
    }
}

/// Removes what is left over, unless somebody has it open. A volume goes to the trash, from where
/// it can be restored for a day: it may be complete, and about to get its name.
async fn remove(storage: &dyn Storage, left: &Leftover) -> Result<(), StorageError> {
    let removed = match left {
        Leftover::Volume(volume) => storage.trash(volume, LEFT).await.map(drop),
        // Whatever has the name by now may be somebody's.
        Leftover::Removal(volume) => match storage.half_removed(&volume.pool).await {
            Ok(left) if left.contains(volume) => storage.remove(volume).await,
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        },
        Leftover::Snapshot(volume, snapshot) => storage.remove_snapshot(volume, snapshot).await,
    };
    match removed {
        Err(StorageError::NoVolume { .. } | StorageError::NoSnapshot { .. }) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pvc_embedded::EmbeddedTree;
    use pvc_model::benchmark::{BenchmarkRecord, BenchmarkState, FORMAT, volume_of};
    use pvc_model::hold::VolumeHold;
    use pvc_model::job::making::name_in_the_making;
    use pvc_model::job::{JobProgress, JobSpec, JobState, JobVm, JobWork};
    use pvc_model::storage::VolumeName;
    use pvc_ports::Ports;
    use pvc_store::{Change, Store};
    use pvc_testkit::{MemoryStorage, SeededRandom, TokioClock, ports};

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn id(text: &str) -> VolumeId {
        VolumeId::parse(text).expect("well formed")
    }

    #[test]
    fn what_the_storage_took_for_itself_is_left_over_if_it_stays() {
        let snapshot =
            |name: &str| pvc_ports::SnapshotInfo { name: SnapshotName::new(name), size_bytes: 1 };
        let own = [
            "pvc-clone-0123456789abcdef",
            "pvc-clone-download-0123456789abcdef",
            "pvc-clone-b.0123456789abcdef.partial",
        ];
        let others = ["mine", "pvc-clone-download-nightly", "pvc-clone-golden"];
        let volume = VolumeInfo {
            id: id("vms/a"),
            size_bytes: 1,
            used_bytes: None,
            snapshots: [own, others].as_flattened().iter().copied().map(snapshot).collect(),
        };
        let left: Vec<_> = candidates(&Cluster::default(), &[volume]).collect();
        let left: [Leftover; 3] = left.try_into().expect("three of them");
        let of = |name| Leftover::Snapshot(id("vms/a"), SnapshotName::new(name));
        assert_eq!(left, own.map(of));
        assert_eq!(left.map(|left| left.stays()), [LEFT, LEFT, LEFT_OF_COPY]);
    }

    #[test]
    fn what_comes_and_goes_is_never_old() {
        let mut seen = Sightings::default();
        let mut note = |there: Vec<_>, seconds| {
            seen.note(there, Duration::from_secs(seconds), |_| Duration::from_secs(10))
        };
        assert!(note(vec!["a", "b"], 0).is_empty());
        assert_eq!(note(vec!["a"], 10), ["a"]);
        assert!(note(vec!["b"], 20).is_empty(), "it was gone meanwhile");
        assert!(note(vec!["a", "b"], 29).is_empty());
        assert_eq!(note(vec!["a", "b"], 30), ["b"]);
    }

    /// The context of a primary node, on this storage.
    async fn context(storage: Arc<MemoryStorage>) -> Context {
        let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(1)));
        let tree = EmbeddedTree::in_memory().connect();
        let store = Store::open(tree, clock.clone(), random.clone()).await.unwrap();
        store.initialize(false).await.unwrap();
        let ports = Ports { storage, clock, random, ..ports() };
        Context::new(NodeName::new("hv1"), ports, store)
    }

    async fn write(context: &Context, change: Change) {
        let mut changes = Changes::new();
        changes.push(change);
        let mut changes = Some(changes);
        let written = context.store.change(|_| {
            Ok::<_, std::convert::Infallible>((changes.take().unwrap_or_default(), ()))
        });
        written.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_without_a_name_gets_its_old_contents_back_when_its_upload_is_cut_off() {
        let storage = Arc::new(MemoryStorage::new());
        storage.insert("vms/a");
        let context = context(storage.clone()).await;
        storage.trash(&id("vms/a"), DAY).await.unwrap();
        let by = "somebody".to_owned();
        let hold = VolumeHold {
            volume: id("vms/a"),
            purpose: Purpose::Fill { trashed: Some([].into()) },
            by,
        };
        write(&context, Change::HoldVolume(hold)).await;
        let mut seen = Sightings::default();
        settle_holds(&context, &mut seen, Duration::ZERO).await;
        settle_holds(&context, &mut seen, CUT_OFF - EVERY).await;
        assert!(storage.volume(&id("vms/a")).await.is_err(), "somebody may still be at it");
        settle_holds(&context, &mut seen, CUT_OFF).await;
        storage.volume(&id("vms/a")).await.unwrap();
        assert!(context.store.fresh().await.unwrap().holds.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_script_of_a_task_that_is_no_more_worked_on_is_let_go_of() {
        let storage = Arc::new(MemoryStorage::new());
        storage.insert("vms/a");
        let context = context(storage).await;
        let [open, gone] = [1, 2].map(JobId::from_bits);
        let spec = JobSpec {
            id: open.clone(),
            work: JobWork::Upload { volume: id("vms/b") },
            node: "hv1".into(),
            run_on: "hv1".to_owned(),
            submitter: "tests".to_owned(),
            submitted_at: 1,
        };
        write(&context, Change::SubmitJob(spec)).await;
        let on = |jobs: [&JobId; 2]| {
            let jobs = jobs.into_iter().map(|job| (job.clone(), NodeName::new("removed")));
            Purpose::Mapped(jobs.collect())
        };
        let hold = |jobs| VolumeHold {
            volume: id("vms/a"),
            purpose: on(jobs),
            by: "somebody".to_owned(),
        };
        let settle = async || {
            settle_holds(&context, &mut Sightings::default(), Duration::ZERO).await;
            let view = context.store.fresh().await.unwrap();
            view.holds.get(&id("vms/a")).map(|hold| hold.purpose.clone())
        };
        write(&context, Change::HoldVolume(hold([&open, &gone]))).await;
        assert_eq!(settle().await, Some(on([&open, &open])));
        assert_eq!(settle().await, Some(on([&open, &open])));
        write(&context, Change::HoldVolume(hold([&gone, &gone]))).await;
        assert_eq!(settle().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_benchmark_has_left_goes_when_the_storage_lets_it() {
        let storage = Arc::new(MemoryStorage::new());
        let context = context(storage.clone()).await;
        let of = |job: u32| VolumeId { volume: volume_of(&JobId::from_bits(job)), ..id("vms/a") };
        let record = |job: u32, made: &str| BenchmarkRecord {
            number: job,
            name: format!("b{job}"),
            job: JobId::from_bits(job),
            volume: of(job),
            made: Some(made.to_owned()),
            format: FORMAT,
            state: BenchmarkState::Running,
            reports: BTreeMap::new(),
        };
        for job in [1, 2] {
            storage.create(&of(job), 4096, false).await.unwrap();
        }
        let made = storage.measured(&of(1)).await.unwrap().identity;
        write(&context, Change::PutBenchmark(record(1, &made))).await;
        write(&context, Change::PutBenchmark(record(2, "one before it"))).await;
        let left = || async {
            let view = context.store.fresh().await.unwrap();
            let numbers: Vec<u32> = view.benchmarks.keys().copied().collect();
            (numbers, storage.volume(&of(1)).await.is_ok(), storage.volume(&of(2)).await.is_ok())
        };
        storage.set_failing(true);
        end_benchmarks(&context, &mut false).await;
        storage.set_failing(false);
        assert_eq!(left().await, (vec![1, 2], true, true));
        end_benchmarks(&context, &mut false).await;
        assert_eq!(left().await, (vec![], false, true), "another has the place of the second");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_not_completed_is_in_the_trash_after_a_day_unless_somebody_has_it_open() {
        let storage = Arc::new(MemoryStorage::new());
        let (left, open) = ("a.0123456789abcdef.partial", "b.0123456789abcdef.partial");
        let (theirs, older) = ("c.0123456789abcdef.partial", "d.partial");
        for volume in ["a", left, open, theirs, older] {
            storage.insert(&format!("vms/{volume}"));
        }
        let context = context(storage.clone()).await;
        let store = &context.store;
        for volume in ["a", theirs] {
            let volume = id(&format!("vms/{volume}"));
            pvc_ops::storage::record_volume(store, storage.as_ref(), &volume).await.unwrap();
        }
        let volume = VolumeId { volume: VolumeName::new(open), ..id("vms/a") };
        storage.with_volumes(|volumes| volumes.open(&volume, "somebody"));
        let mut seen = Sightings::default();
        let names = async || {
            let volumes = storage.volumes(&id("vms/a").pool).await.unwrap();
            volumes.iter().map(|found| found.id.volume.to_string()).collect::<Vec<_>>()
        };
        sweep(&context, &mut seen, Duration::ZERO).await;
        sweep(&context, &mut seen, LEFT - SWEEP_EVERY).await;
        assert_eq!(names().await.len(), 5);
        sweep(&context, &mut seen, LEFT).await;
        assert_eq!(names().await, ["a", open, theirs, older]);
        storage.with_volumes(|volumes| volumes.close_all("somebody"));
        sweep(&context, &mut seen, LEFT + SWEEP_EVERY).await;
        assert_eq!(names().await, ["a", theirs, older]);
        let trashed = storage.trashed(&id("vms/a").pool).await.unwrap();
        let trashed: Vec<_> = trashed.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(trashed, [left, open], "either may have been about to get its name");
    }

    /// Records job number `job`, which is over or not.
    async fn job(context: &Context, job: u32, state: JobState) -> JobId {
        let id = JobId::from_bits(job);
        let vm = JobVm { name: "web".to_owned(), uuid: None };
        let spec = JobSpec {
            id: id.clone(),
            work: JobWork::FlushLocks { vm },
            node: "hv1".into(),
            run_on: "hv1".into(),
            submitter: String::new(),
            submitted_at: 0,
        };
        write(context, Change::SubmitJob(spec)).await;
        let ended_at = state.is_over().then_some(1);
        let progress = JobProgress { state, ended_at, ..JobProgress::pending() };
        write(context, Change::JobProgress(id.clone(), progress)).await;
        id
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_job_that_is_over_has_left_in_the_making_goes_recorded_or_not() {
        let storage = Arc::new(MemoryStorage::new());
        let context = context(storage.clone()).await;
        let ids = [
            job(&context, 1, JobState::Succeeded).await,
            job(&context, 2, JobState::Cancelled).await,
            job(&context, 3, JobState::Running).await,
            // Nobody knows of this one.
            JobId::from_bits(4),
        ];
        let [recorded, unrecorded, made, unknown] =
            ids.map(|id| VolumeId { volume: name_in_the_making(&id, "sda"), ..self::id("vms/a") });
        storage.insert("vms/a");
        let store = &context.store;
        for volume in [&recorded, &unrecorded, &made, &unknown] {
            storage.create(volume, 4096, false).await.unwrap();
            if *volume != unrecorded {
                pvc_ops::storage::record_volume(store, storage.as_ref(), volume).await.unwrap();
            }
        }
        let names = async || {
            let volumes = storage.volumes(&made.pool).await.unwrap();
            volumes.iter().map(|found| found.id.clone()).collect::<Vec<_>>()
        };
        let mut seen = Sightings::default();
        remove_makings(&context, &mut seen, Duration::ZERO).await;
        assert_eq!(names().await.len(), 5, "somebody may be about to remove it");
        remove_makings(&context, &mut seen, EVERY).await;
        assert_eq!(names().await, [&id("vms/a"), &unrecorded, &made, &unknown].map(Clone::clone));
        let view = store.fresh().await.unwrap();
        assert_eq!(view.volumes.keys().collect::<Vec<_>>(), [&made, &unknown]);
        let mut seen = Sightings::default();
        sweep(&context, &mut seen, Duration::ZERO).await;
        sweep(&context, &mut seen, SWEEP_EVERY).await;
        assert_eq!(names().await, [&id("vms/a"), &made, &unknown].map(Clone::clone));
        sweep(&context, &mut seen, LEFT).await;
        assert_eq!(names().await.len(), 3);
        let trashed = storage.trashed(&made.pool).await.unwrap();
        assert_eq!(trashed.len(), 2, "for a day");
    }

    #[tokio::test(start_paused = true)]
    async fn the_name_of_what_was_half_removed_goes_after_a_day() {
        let storage = Arc::new(MemoryStorage::new());
        storage.insert("vms/a");
        let context = context(storage.clone()).await;
        let store = &context.store;
        pvc_ops::storage::record_volume(store, storage.as_ref(), &id("vms/a")).await.unwrap();
        let (pool, left) = (id("vms/a").pool, VolumeName::new("a.0123456789abcdef.partial"));
        let left = VolumeId { pool: pool.clone(), volume: left };
        storage.with_volumes(|volumes| volumes.half_remove(&left));
        let mut seen = Sightings::default();
        sweep(&context, &mut seen, Duration::ZERO).await;
        assert_eq!(storage.half_removed(&pool).await.unwrap(), [left]);
        sweep(&context, &mut seen, LEFT).await;
        assert_eq!(storage.half_removed(&pool).await.unwrap(), []);
        assert!(storage.trashed(&pool).await.unwrap().is_empty(), "there is nothing to keep");
    }
}
