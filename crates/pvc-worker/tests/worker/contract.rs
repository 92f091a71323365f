//! Benchmarks with the real fio, on the storages that there are; and workers that are killed.

mod kills;

use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use pvc_ceph::{CephOptions, RbdStorage};
use pvc_contracts::ceph_cluster::CephCluster;
use pvc_directory::DirectoryStorage;
use pvc_embedded::EmbeddedTree;
use pvc_linux::{LinuxExec, LinuxHost};
use pvc_model::benchmark::{BenchmarkState, Test, volume_of};
use pvc_model::job::{JobId, JobProgress, JobSpec, JobState, JobWork};
use pvc_model::storage::{PoolName, RbdAccess, VolumeId};
use pvc_ports::{MeasuredPlace, Storage};
use pvc_store::{Change, Store};
use pvc_testkit::{ScriptedHypervisor, SeededRandom, TokioClock};
use pvc_worker::{BenchmarkSettings, BenchmarkTools, Worker};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::common;

const VOLUME_BYTES: u64 = 16 << 20;

/// Longer than eight tests of a second take on a busy machine.
const LONG: Duration = Duration::from_secs(240);

struct World {
    store: Store,
    storage: Arc<dyn Storage>,
    pool: PoolName,
}

impl World {
    /// A worker that measures a pool which `storage` has, each test for `test_time`.
    async fn new(storage: Arc<dyn Storage>, pool: &PoolName, test_time: Duration) -> World {
        let store = common::open(EmbeddedTree::in_memory().connect()).await;
        store.initialize(false).await.expect("an empty tree");
        let worker = Worker::new(
            "hv1".into(),
            store.clone(),
            Arc::new(ScriptedHypervisor::new()),
            storage.clone(),
            Arc::new(TokioClock::new()),
            Arc::new(SeededRandom::new(2)),
        );
        let worker = worker.with_benchmarks(BenchmarkTools {
            exec: Arc::new(LinuxExec),
            host: Arc::new(LinuxHost::new()),
            settings: BenchmarkSettings {
                storage_interface: Some("lo".to_owned()),
                volume_bytes: VOLUME_BYTES,
                test_time,
            },
        });
        tokio::spawn(async move { worker.run(CancellationToken::new()).await });
        World { store, storage, pool: pool.clone() }
    }

    async fn change(&self, change: Change) {
        common::write(&self.store, change).await;
    }

    async fn submit(&self) -> JobId {
        let id = JobId::from_bits(1);
        let spec = JobSpec {
            id: id.clone(),
            work: JobWork::BenchmarkStorage { pool: self.pool.clone(), name: "b1".to_owned() },
            node: "hv1".into(),
            run_on: "primary".to_owned(),
            submitter: "test".into(),
            submitted_at: 1,
        };
        self.change(Change::SubmitJob(spec)).await;
        id
    }

    async fn end_of(&self, id: &JobId) -> JobProgress {
        common::end_of(&self.store, id, LONG).await
    }

    /// Asserts that the disk has what is read: a file that was never written is read from nowhere.
    async fn assert_is_written(&self, job: &JobId) {
        let volume = VolumeId { pool: self.pool.clone(), volume: volume_of(job) };
        let measured = self.storage.measured(&volume).await.expect("it is measured");
        if let MeasuredPlace::File { path, .. } = measured.place {
            let on_disk = std::fs::metadata(path).expect("it is there").blocks() * 512;
            assert!(on_disk >= VOLUME_BYTES, "only {on_disk} bytes are written");
        }
    }

    async fn assert_no_volume(&self) {
        let found = self.storage.volumes(&self.pool).await.expect("the pool is there");
        assert!(found.is_empty(), "{found:?}");
    }
}

/// A whole benchmark.
async fn each_test_has_figures(storage: Arc<dyn Storage>, pool: &PoolName) {
    let world = World::new(storage, pool, Duration::from_secs(1)).await;
    let job = world.submit().await;
    let end = world.end_of(&job).await;
    assert_eq!(end.state, JobState::Succeeded, "{end:?}");
    world.assert_no_volume().await;
    let view = world.store.view();
    let record = view.benchmarks.values().next().expect("it is recorded");
    let BenchmarkState::Done(result) = &record.state else { panic!("{record:?}") };
    let result: Value = serde_json::from_str(result).expect("it is JSON");
    for test in Test::ALL {
        let report = &result[test.name()];
        let figures = &report["jobs"][0][if test.is_read() { "read" } else { "write" }];
        for figure in ["io_bytes", "bw_bytes", "iops"] {
            let is_there = figures[figure].as_f64().is_some_and(|figure| figure > 0.0);
            assert!(is_there, "{test:?} {figure}: {report}");
        }
        // Those that fio takes every half second: on a busy machine a test of one may have none.
        for (figure, samples) in [("iops_max", "iops_samples"), ("bw_mean", "bw_samples")] {
            let has_samples = figures[samples].as_u64().expect("fio counts them") > 0;
            let found = figures[figure].as_f64().expect("fio says it");
            assert!(found > 0.0 || !has_samples, "{test:?} {figure}: {report}");
        }
        assert!(figures["lat_ns"]["mean"].as_f64().is_some_and(|ns| ns > 0.0), "{report}");
        let memory = &report["avg_memory_util_percent"]["total"];
        assert!(memory.as_f64().is_some_and(|share| share > 0.0), "{test:?}: {report}");
    }
    assert!(result.to_string().len() < 64 << 10, "it is bounded: {}", result.to_string().len());
}

/// The command lines of all processes that have `word` in them, and are fio's.
fn fio_with(word: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").expect("this is Linux");
    let lines = processes.filter_map(|process| {
        let line = std::fs::read(process.ok()?.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    lines.filter(|line| line.starts_with("fio ") && line.contains(word)).collect()
}

/// Whether fio is at the first test, which reads.
fn is_read(word: &str) -> bool {
    fio_with(word).iter().any(|line| line.contains("--name=seq_read "))
}

/// Cancels a benchmark in a test of an hour.
async fn a_cancelled_one_ends_fio_and_leaves_nothing(
    storage: Arc<dyn Storage>,
    pool: &PoolName,
    word: &str,
) {
    let world = World::new(storage, pool, Duration::from_secs(3600)).await;
    let job = world.submit().await;
    pvc_testkit::eventually("fio reads", LONG, || is_read(word)).await;
    world.assert_is_written(&job).await;
    world.change(Change::CancelJob(job.clone())).await;
    let end = world.end_of(&job).await;
    assert_eq!(end.state, JobState::Cancelled, "{end:?}");
    pvc_testkit::eventually("fio has ended", LONG, || fio_with(word).is_empty()).await;
    world.assert_no_volume().await;
    assert!(world.store.view().benchmarks.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_is_measured() {
    let scratch = tempfile::tempdir().expect("there is room");
    // A name that fio would take for two.
    let folder = scratch.path().join("a:b");
    let storage: Arc<dyn Storage> = Arc::new(DirectoryStorage::open(&folder).expect("it is empty"));
    let pool = PoolName::new("measured");
    storage.create_pool(&pool).await.expect("there is none");
    each_test_has_figures(storage.clone(), &pool).await;
    let word = scratch.path().display().to_string();
    a_cancelled_one_ends_fio_and_leaves_nothing(storage, &pool, &word).await;
}

/// Runs itself as a worker, which is killed: with `PVC_MEASURED` set it measures that directory.
#[tokio::test(flavor = "multi_thread")]
async fn fio_ends_with_a_worker_that_is_killed() {
    let open = |folder: &str| -> Arc<dyn Storage> {
        Arc::new(DirectoryStorage::open(std::path::Path::new(folder)).expect("it can be used"))
    };
    let pool = PoolName::new("measured");
    if let Ok(folder) = std::env::var("PVC_MEASURED") {
        let world = World::new(open(&folder), &pool, Duration::from_secs(3600)).await;
        let job = world.submit().await;
        world.end_of(&job).await;
        return;
    }
    let scratch = tempfile::tempdir().expect("there is room");
    let folder = scratch.path().display().to_string();
    open(&folder).create_pool(&pool).await.expect("there is none");
    let name =
        std::thread::current().name().expect("a test has the name of its function").to_owned();
    let mut worker = Command::new(std::env::current_exe().expect("this is Linux"))
        .args([&name, "--exact"])
        .env("PVC_MEASURED", &folder)
        .stdout(Stdio::null())
        .spawn()
        .expect("it is this program");
    pvc_testkit::eventually("fio reads", LONG, || is_read(&folder)).await;
    worker.kill().expect("it runs");
    worker.wait().expect("it is ours");
    pvc_testkit::eventually("fio has ended", LONG, || fio_with(&folder).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_ceph_is_measured() {
    let scratch = tempfile::tempdir().expect("there is room");
    let cluster = CephCluster::start(&scratch.path().join("ceph")).expect("Ceph starts");
    let storage = ceph(&cluster);
    let pool = PoolName::new(format!("measured-{}", std::process::id()));
    storage.create_pool(&pool).await.expect("there is none");
    each_test_has_figures(storage.clone(), &pool).await;
    a_cancelled_one_ends_fio_and_leaves_nothing(storage, &pool, pool.as_str()).await;
}

fn ceph(cluster: &CephCluster) -> Arc<dyn Storage> {
    let access = RbdAccess {
        monitors: vec!["127.0.0.1".to_owned()],
        port: 6789,
        user: "libvirt".to_owned(),
        secret: None,
    };
    let options = CephOptions {
        config: cluster.config(),
        keyring: cluster.keyring(),
        user: "admin".to_owned(),
        access,
    };
    Arc::new(RbdStorage::new(options, Arc::new(LinuxExec)))
}
