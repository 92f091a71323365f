//! Benchmarks of the storage, by one worker after the other.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use pvc_embedded::EmbeddedTree;
use pvc_model::benchmark::{
    BenchmarkRecord, BenchmarkState, FORMAT, MOST_KEPT, Test, shown, volume_of,
};
use pvc_model::job::{JobId, JobProgress, JobSpec, JobState, JobWork};
use pvc_model::refusal::Kind;
use pvc_model::storage::{PoolName, VolumeId};
use pvc_ports::{Command, Exec, ExecError, Output, Storage};
use pvc_store::{Change, Store};
use pvc_testkit::{
    Gate, MemoryStorage, ScriptedExec, ScriptedHypervisor, SeededRandom, TokioClock,
};
use pvc_worker::{BenchmarkTools, Worker};
use tokio_util::sync::CancellationToken;

use crate::{common, measuring};

struct World {
    store: Store,
    storage: Arc<MemoryStorage>,
}

/// The volume that the first job makes.
fn volume() -> VolumeId {
    volume_of_job(1)
}

fn volume_of_job(bits: u32) -> VolumeId {
    VolumeId { pool: PoolName::new("vms"), volume: volume_of(&JobId::from_bits(bits)) }
}

impl World {
    async fn new() -> World {
        let store = common::open(EmbeddedTree::in_memory().connect()).await;
        store.initialize(false).await.expect("an empty tree");
        let storage = Arc::new(MemoryStorage::new());
        World { store, storage }
    }

    fn start_worker(&self, exec: Arc<dyn Exec>) {
        self.start_with(measuring::with_exec(exec));
    }

    fn start_measuring_worker(&self) {
        self.start_with(measuring::tools(Gate::closing_at(u64::MAX)));
    }

    fn start_with(&self, tools: BenchmarkTools) {
        let worker = Worker::new(
            "hv1".into(),
            self.store.clone(),
            Arc::new(ScriptedHypervisor::new()),
            self.storage.clone(),
            Arc::new(TokioClock::new()),
            Arc::new(SeededRandom::new(2)),
        );
        let worker = worker.with_benchmarks(tools);
        tokio::spawn(async move { worker.run(CancellationToken::new()).await });
    }

    async fn change(&self, change: Change) {
        common::write(&self.store, change).await;
    }

    async fn submit(&self, bits: u32) -> JobId {
        let id = JobId::from_bits(bits);
        let spec = JobSpec {
            id: id.clone(),
            work: JobWork::BenchmarkStorage {
                pool: PoolName::new("vms"),
                name: format!("b{bits}"),
            },
            node: "hv1".into(),
            run_on: "primary".to_owned(),
            submitter: "test".into(),
            submitted_at: 1,
        };
        self.change(Change::SubmitJob(spec)).await;
        id
    }

    fn progress(&self, id: &JobId) -> Option<JobProgress> {
        common::progress(&self.store, id)
    }

    async fn end_of(&self, id: &JobId) -> JobProgress {
        common::end_of(&self.store, id, Duration::from_secs(600)).await
    }

    async fn is_there(&self) -> bool {
        self.storage.volume(&volume()).await.is_ok()
    }

    fn records(&self) -> Vec<BenchmarkRecord> {
        self.store.view().benchmarks.values().map(|record| (**record).clone()).collect()
    }
}

fn missing_fio() -> Arc<dyn Exec> {
    Arc::new(ScriptedExec::without_programs())
}

#[tokio::test(start_paused = true)]
async fn a_benchmark_has_the_report_of_each_test_and_leaves_no_volume() {
    let world = World::new().await;
    world.start_measuring_worker();
    let job = world.submit(1).await;
    let end = world.end_of(&job).await;
    assert_eq!(end.state, JobState::Succeeded, "{end:?}");
    assert_eq!(end.status, "benchmark \"b1\" of pool \"vms\" is done");
    assert!(!world.is_there().await);
    let records = world.records();
    let BenchmarkState::Done(result) = &records[0].state else { panic!("{records:?}") };
    assert_eq!((records[0].name.as_str(), records[0].format), ("b1", FORMAT));
    assert_eq!(records[0].made, None);
    let result: serde_json::Value = serde_json::from_str(result).expect("it is JSON");
    for test in Test::ALL {
        let report = &result[test.name()];
        assert_eq!(report["avg_cpu_util_percent"]["total"], 25.0, "{test:?}");
        assert_eq!(report["avg_memory_util_percent"]["total"], 50.0, "{test:?}");
        assert_eq!(report["jobs"][0]["read"]["iops"], 2.5, "{test:?}");
        assert_eq!(report["jobs"][0]["latency_us"], serde_json::json!({ "250": 99.5 }), "{test:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_benchmark_is_running_while_its_tests_are() {
    let world = World::new().await;
    world.start_measuring_worker();
    let job = world.submit(1).await;
    pvc_testkit::eventually("a test is half done", Duration::from_secs(60), || {
        world.progress(&job).is_some_and(|it| it.status.starts_with("doing test seq_write: "))
    })
    .await;
    let view = world.store.view();
    assert_eq!(shown(&view).len(), 1);
    assert!(shown(&view)[0].is_under_way(&view));
    assert!(world.is_there().await);
    assert!(shown(&view)[0].made.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_benchmark_that_is_cancelled_while_fio_runs_ends_at_once_and_leaves_nothing() {
    /// Never ends, and says when it is dropped.
    struct Endless(tokio::sync::watch::Sender<u32>);

    #[async_trait]
    impl Exec for Endless {
        async fn run(&self, _: Command) -> Result<Output, ExecError> {
            struct Dropped(tokio::sync::watch::Sender<u32>);
            impl Drop for Dropped {
                fn drop(&mut self) {
                    self.0.send_modify(|dropped| *dropped += 1);
                }
            }
            let _dropped = Dropped(self.0.clone());
            std::future::pending().await
        }
    }

    let world = World::new().await;
    let dropped = tokio::sync::watch::Sender::new(0);
    world.start_worker(Arc::new(Endless(dropped.clone())));
    let job = world.submit(1).await;
    pvc_testkit::eventually("fio is begun", Duration::from_secs(60), || {
        world.progress(&job).is_some_and(|it| it.status.contains("writing"))
    })
    .await;
    world.change(Change::CancelJob(job.clone())).await;
    let end = world.end_of(&job).await;
    assert_eq!(end.state, JobState::Cancelled, "{end:?}");
    assert_eq!(*dropped.borrow(), 1, "fio is ended with it");
    assert!(!world.is_there().await);
    assert_eq!(world.records(), []);
}

#[tokio::test(start_paused = true)]
async fn what_is_left_of_one_that_is_cancelled_while_its_volume_is_used_can_be_removed_later() {
    let world = World::new().await;
    world.start_measuring_worker();
    let job = world.submit(1).await;
    let says = |words: &str| world.progress(&job).is_some_and(|it| it.status.contains(words));
    let last = Duration::from_secs(120);
    pvc_testkit::eventually("the last test is begun", last, || says("4K_lowdepth: 2 s")).await;
    // As a `fio` does that died with its node, for as long as Ceph has not missed it.
    world.storage.with_volumes(|volumes| volumes.open(&volume(), "a dead one"));
    pvc_testkit::eventually("it waits", last, || says("it will be tried again")).await;
    world.change(Change::CancelJob(job.clone())).await;
    let end = world.end_of(&job).await;
    assert!(end.state == JobState::Failed && end.failure.is_some(), "{end:?}");
    assert!(world.is_there().await && shown(&world.store.view()).is_empty());

    let remove =
        async || pvc_ops::benchmark::remove_left_behind(&world.store, world.storage.as_ref()).await;
    assert!(remove().await.is_err(), "it is used yet");
    assert!(world.is_there().await && world.records().len() == 1);
    world.storage.with_volumes(|volumes| volumes.close_all("a dead one"));
    assert_eq!(remove().await.expect("nothing fails"), [volume()]);
    assert!(!world.is_there().await && world.records().is_empty());
}

#[tokio::test(start_paused = true)]
async fn without_fio_it_is_said_what_to_install_and_nothing_is_left() {
    let world = World::new().await;
    world.start_worker(missing_fio());
    let job = world.submit(1).await;
    let failure = world.end_of(&job).await.failure.expect("it failed");
    assert_eq!((failure.why.as_str(), failure.kind), ("`fio` is not installed", Kind::Conflict));
    assert!(failure.hint.is_some_and(|hint| hint.contains("package `fio`")));
    assert!(!world.is_there().await);
    assert_eq!(world.records(), []);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_called_as_those_of_benchmarks_and_is_none_is_left_alone() {
    let world = World::new().await;
    let others = ["vms/pvcbenchmark", "vms/pvcbenchmark-00000063"];
    let others = others.map(|volume| VolumeId::parse(volume).expect("a volume's name"));
    for other in &others {
        world.storage.create(other, 4096, false).await.expect("there is room");
    }
    // Fails, and takes back what it made.
    world.start_worker(missing_fio());
    let job = world.submit(1).await;
    assert_eq!(world.end_of(&job).await.state, JobState::Failed);
    for other in &others {
        assert_eq!(world.storage.volume(other).await.expect("it stays").size_bytes, 4096);
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_of_the_volume_is_written_first_and_the_tests_keep_to_what_was_written() {
    let world = World::new().await;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let notes = asked.clone();
    world.start_worker(Arc::new(ScriptedExec::new(move |command: &Command| {
        let word = |start| command.args.iter().find_map(|it| it.strip_prefix(start));
        let words = ["--name=", "--size="].map(|start| word(start).unwrap_or("-").to_owned());
        notes.lock().expect("nobody panics with it").push(words.join(" "));
        // Of so small a volume all is written, whoever else says so.
        let report = r#"{"jobs":[{"read":{"bw_bytes":1,"iops":2,"io_bytes":3},
            "write":{"bw_bytes":1,"iops":2,"io_bytes":9999999}}]}"#;
        Ok(ScriptedExec::success(report))
    })));
    let job = world.submit(1).await;
    assert_eq!(world.end_of(&job).await.state, JobState::Succeeded);
    let tests = Test::ALL.map(Test::name).into_iter();
    let wanted: Vec<String> = ["fill"]
        .into_iter()
        .chain(tests)
        .map(|name| format!("{name} {}", measuring::VOLUME_BYTES))
        .collect();
    assert_eq!(*asked.lock().expect("nobody panics with it"), wanted);
}

#[tokio::test(start_paused = true)]
async fn a_storage_that_takes_nothing_is_not_measured() {
    let world = World::new().await;
    world.start_worker(Arc::new(ScriptedExec::new(|_: &Command| {
        Ok(ScriptedExec::success(r#"{"jobs":[{"write":{"io_bytes":4096}}]}"#))
    })));
    let job = world.submit(1).await;
    let failure = world.end_of(&job).await.failure.expect("it failed");
    assert_eq!(failure.why, "the storage has not taken one block in 300 s");
    assert!(!world.is_there().await);
}

#[tokio::test(start_paused = true)]
async fn reports_are_in_the_record_of_the_benchmark_and_not_in_that_of_its_task() {
    let world = World::new().await;
    world.start_measuring_worker();
    let job = world.submit(1).await;
    pvc_testkit::eventually("tests are done", Duration::from_secs(120), || {
        world.progress(&job).is_some_and(|it| it.status.starts_with("doing test rand_read_4K: "))
    })
    .await;
    let done: Vec<String> = world.records()[0].reports.keys().cloned().collect();
    assert_eq!(done, ["rand_read_4M", "rand_write_4M", "seq_read", "seq_write"]);
    let facts = world.progress(&job).and_then(|it| it.steps).expect("it is planned").facts;
    assert!(facts.iter().all(|fact| fact.len() < 64), "{facts:?}");
    world.end_of(&job).await;
    assert_eq!(world.records()[0].reports.len(), 0, "the result has them");
}

/// Record of a benchmark whose job is gone.
fn left_behind(made: Option<String>) -> BenchmarkRecord {
    BenchmarkRecord {
        number: 7,
        name: "lost".to_owned(),
        job: JobId::from_bits(99),
        volume: volume_of_job(99),
        made,
        format: FORMAT,
        state: BenchmarkState::Running,
        reports: BTreeMap::new(),
    }
}

#[tokio::test(start_paused = true)]
async fn the_volume_that_a_lost_benchmark_left_is_removed_by_the_next() {
    for is_recorded in [true, false] {
        let world = World::new().await;
        let left = volume_of_job(99);
        world.storage.create(&left, 4096, false).await.expect("there is room");
        let made = world.storage.measured(&left).await.expect("it is there").identity;
        world.change(Change::PutBenchmark(left_behind(is_recorded.then_some(made)))).await;
        world.start_measuring_worker();
        let job = world.submit(1).await;
        let end = world.end_of(&job).await;
        assert_eq!(end.state, JobState::Succeeded, "{end:?}");
        assert!(world.storage.volume(&left).await.is_err(), "recorded: {is_recorded}");
        let numbers: Vec<u32> = world.records().iter().map(|record| record.number).collect();
        assert_eq!(numbers, [8], "the lost one is forgotten");
    }
}

#[tokio::test(start_paused = true)]
async fn another_volume_in_the_place_of_the_one_that_was_left_stays() {
    let world = World::new().await;
    let left = volume_of_job(99);
    world.storage.create(&left, 4096, false).await.expect("there is room");
    world.change(Change::PutBenchmark(left_behind(Some("of another".to_owned())))).await;
    world.start_measuring_worker();
    let job = world.submit(1).await;
    assert_eq!(world.end_of(&job).await.state, JobState::Succeeded);
    assert!(world.storage.volume(&left).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_exchanged_under_a_benchmark_is_neither_measured_nor_removed() {
    let world = World::new().await;
    world.start_measuring_worker();
    let job = world.submit(1).await;
    pvc_testkit::eventually("a test is begun", Duration::from_secs(60), || {
        world.progress(&job).is_some_and(|it| it.status.contains("seq_read: "))
    })
    .await;
    world.storage.remove(&volume()).await.expect("nobody holds it");
    world.storage.create(&volume(), 4096, false).await.expect("there is room");
    let end = world.end_of(&job).await;
    assert_eq!(end.state, JobState::Failed, "{end:?}");
    assert!(end.status.contains("is not the one that was made"), "{}", end.status);
    assert_eq!(world.storage.volume(&volume()).await.expect("it stays").size_bytes, 4096);
    assert_eq!(world.records(), []);
}

#[tokio::test(start_paused = true)]
async fn the_latest_twenty_are_kept() {
    let world = World::new().await;
    world.start_measuring_worker();
    for bits in 1..=MOST_KEPT as u32 + 2 {
        let job = world.submit(bits).await;
        assert_eq!(world.end_of(&job).await.state, JobState::Succeeded);
    }
    let numbers: Vec<u32> = world.records().iter().map(|record| record.number).collect();
    assert_eq!(numbers, (3..=MOST_KEPT as u32 + 2).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_means_does_not_announce_that_it_measures() {
    let world = World::new().await;
    let worker = Worker::new(
        "hv2".into(),
        world.store.clone(),
        Arc::new(ScriptedHypervisor::new()),
        world.storage.clone(),
        Arc::new(TokioClock::new()),
        Arc::new(SeededRandom::new(2)),
    );
    tokio::spawn(async move { worker.run(CancellationToken::new()).await });
    world.start_measuring_worker();
    pvc_testkit::eventually("both are there", Duration::from_secs(60), || {
        world.store.view().workers.len() == 2
    })
    .await;
    let knows = |node: &str| {
        let view = world.store.view();
        view.workers[node].kinds.contains(JobWork::BENCHMARK_STORAGE)
    };
    assert_eq!((knows("hv1"), knows("hv2")), (true, false));
}
