//! The API and the worker of one machine in one process, which is killed while the API changes a
//! volume of a real directory: the next process ends the task, nothing half made is left, and who
//! asks again has what was asked for.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::Request;
use pvc_api::{ApiSettings, ApiState};
use pvc_daemon::{ApiPorts, BenchmarkSettings};
use pvc_directory::DirectoryStorage;
use pvc_embedded::EmbeddedTree;
use pvc_model::storage::{SnapshotName, VolumeId};
use pvc_ports::{Attachment, Ports, Storage};
use pvc_store::{Change, Changes, Store, StoreError};
use pvc_testkit::{MemoryFirewall, SeededRandom, TokioClock, ports};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

/// Name of the test, which is started again as the process that is killed.
const TEST: &str = "a_change_whose_api_is_killed_is_a_task_that_ends_and_can_be_asked_for_again";

const NODE: &str = "hv1";

/// Longer than anything takes here on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Time, in microseconds, for which the call stands still in which the process is killed: by then
/// the change is recorded as a task.
const STANDS_STILL: u64 = 2_500_000;

/// Parts of the volume that have something in them, with holes between them.
const PARTS: u64 = 3;
const PART_BYTES: u64 = 1 << 20;
const VOLUME_BYTES: u64 = 2 * PARTS * PART_BYTES;

/// A change, as it is asked of the API, and what its task is called.
#[derive(Debug, Clone, Copy)]
struct Asked {
    path: &'static str,
    kind: &'static str,
}

const CLONE: Asked = Asked {
    path: "/api/v1/storage/ceph/volume/vms/a/clone?new_volume=copy",
    kind: "storage.clone_volume",
};
const ROLL_BACK: Asked = Asked {
    path: "/api/v1/storage/ceph/snapshot/vms/a/s/rollback",
    kind: "storage.rollback_snapshot",
};

fn volume() -> VolumeId {
    VolumeId::from_record("vms/a").unwrap()
}

// --- The process ---------------------------------------------------------------------------------

struct World {
    store: Store,
    storage: Arc<DirectoryStorage>,
}

impl World {
    async fn open(directory: &Path) -> World {
        let tree = EmbeddedTree::open(&directory.join("tree")).unwrap();
        let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(1)));
        let store = Store::open(tree.connect(), clock, random).await.unwrap();
        let storage = DirectoryStorage::open(&directory.join("volumes")).unwrap();
        World { store, storage: Arc::new(storage) }
    }

    async fn write(&self, change: Change) {
        let mut changes = Changes::new();
        changes.push(change);
        self.store.change(|_| Ok::<_, Infallible>((changes.clone(), ()))).await.unwrap();
    }

    /// A volume with something in it, as it was at its snapshot and as it is now.
    async fn prepare(&self) {
        self.store.initialize(false).await.unwrap();
        let (name, pgs, tier) = (volume().pool, "0".to_owned(), "default".to_owned());
        self.write(Change::PutPool { name, pgs, tier }).await;
        self.storage.create(&volume(), VOLUME_BYTES, false).await.unwrap();
        let attachment = self.storage.attachment(&volume()).await.unwrap();
        let Attachment::File { path } = attachment else { panic!("it is a directory") };
        let image = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        for (part, contents) in (0..PARTS).zip(1..) {
            let bytes = vec![contents; PART_BYTES as usize];
            image.write_all_at(&bytes, 2 * part * PART_BYTES).unwrap();
        }
        self.storage.snapshot(&volume(), &SnapshotName::new("s")).await.unwrap();
        image.write_all_at(b"changed", 0).unwrap();
        let storage = self.storage.as_ref();
        pvc_ops::storage::record_volume(&self.store, storage, &volume()).await.unwrap();
    }

    /// Does the jobs, as the daemon.
    fn start_worker(&self) {
        let (store, storage) = (self.store.clone(), self.storage.clone());
        let clock = Arc::new(TokioClock::new());
        let random = Arc::new(SeededRandom::new(std::process::id().into()));
        tokio::spawn(async move {
            let settings = BenchmarkSettings {
                storage_interface: None,
                volume_bytes: VOLUME_BYTES,
                test_time: Duration::from_secs(1),
            };
            let ports = Ports { storage, clock, random, ..ports() };
            let shutdown = CancellationToken::new();
            pvc_daemon::worker(&store, NODE.into(), ports, settings, || (), &shutdown).await
        });
    }

    /// Asks the API, as its daemon serves it. Returns the status.
    async fn ask(&self, path: &str) -> String {
        let view = || self.store.view();
        pvc_testkit::eventually("the worker is there", LONG, || !view().workers.is_empty()).await;
        let settings = ApiSettings::new(NODE.into(), ([127, 0, 0, 1], 0).into(), Vec::new());
        let ports = ApiPorts {
            clock: Arc::new(TokioClock::new()),
            random: Arc::new(SeededRandom::new(u64::from(std::process::id()) << 32)),
            storage: self.storage.clone(),
            firewall: Arc::new(MemoryFirewall::new()),
        };
        let request = Request::post(path).body(Body::empty()).unwrap();
        let (answered, answer) = tokio::sync::oneshot::channel();
        let serve = |api: ApiState, _| async move {
            let Ok(response) = pvc_api::router(api).oneshot(request).await;
            let status = response.status();
            let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
            answered.send(format!("{status}: {}", String::from_utf8_lossy(&body))).unwrap();
            Ok::<_, StoreError>(())
        };
        let shutdown = CancellationToken::new();
        pvc_daemon::api(&self.store, settings, ports, serve, &shutdown).await;
        answer.await.unwrap()
    }

    async fn settle(&self) {
        let view = || self.store.view();
        let is_over = || {
            let view = view();
            let mut jobs = view.jobs.values();
            !view.jobs.is_empty()
                && jobs.all(|job| job.progress.state.is_over() && job.claim.is_none())
        };
        pvc_testkit::eventually("every task is over", LONG, is_over).await;
    }

    /// Everything that anybody can see of volumes.
    async fn volumes(&self) -> Vec<String> {
        let view = self.store.fresh().await.unwrap();
        let mut found = Vec::new();
        for there in self.storage.volumes(&volume().pool).await.unwrap() {
            let attachment = self.storage.attachment(&there.id).await.unwrap();
            let Attachment::File { path } = attachment else { panic!("it is a directory") };
            let mut hash = DefaultHasher::new();
            std::fs::read(path).unwrap().hash(&mut hash);
            let (id, snapshots) = (&there.id, there.snapshots.len());
            found.push(format!("{id}: {:x}, {snapshots} snapshots", hash.finish()));
        }
        found.extend(view.volumes.keys().map(|volume| format!("{volume} is recorded")));
        let work = self.storage.directory().join(".work");
        let left = std::fs::read_dir(work).unwrap().count();
        found.push(format!("{left} things are half made"));
        found
    }

    async fn report(&self) {
        let view = self.store.fresh().await.unwrap();
        for job in view.jobs.values() {
            println!("\nTASK {} {:?}", job.spec.work.name(), job.progress.state);
        }
        for hold in view.holds.values() {
            println!("\nHELD {} {}", hold.volume, hold.purpose);
        }
        for line in self.volumes().await {
            println!("\nVOLUMES {line}");
        }
    }
}

async fn play(directory: &Path, act: &str) {
    let world = World::open(directory).await;
    match act {
        "prepare" => world.prepare().await,
        "settle" => {
            world.start_worker();
            world.settle().await;
        }
        path => {
            world.start_worker();
            println!("\nANSWER {}", world.ask(path).await);
        }
    }
    world.report().await;
}

// --- The test ------------------------------------------------------------------------------------

/// Lines that a process has said, by their first word.
struct Said(String);

impl Said {
    fn lines(&self, word: &str) -> Vec<&str> {
        let own = |line| str::strip_prefix(line, word);
        self.0.lines().filter_map(own).map(str::trim_start).collect()
    }
}

/// Has a process do this; killed in its call number `nth` of this kind, counted from 1, in which
/// it stands still before. `None` if it was killed.
fn run(directory: &Path, act: &str, killed_at: Option<(&str, usize)>) -> Option<Said> {
    let exe = std::env::current_exe().unwrap();
    let mut command = match killed_at {
        None => Command::new(&exe),
        Some((call, nth)) => {
            let mut strace = Command::new("strace");
            strace.args(["-f", "-qq", "-o", "/dev/null"]);
            strace.args(["-e", &format!("trace={call}"), "-e"]);
            strace
                .arg(format!("inject={call}:delay_enter={STANDS_STILL}:signal=SIGKILL:when={nth}"));
            strace.arg(&exe);
            strace
        }
    };
    command.args([TEST, "--exact", "--nocapture"]);
    command.env("PVC_DIRECTORY", directory).env("PVC_ACT", act);
    let output = command.output().expect("`packaging/install/packages.sh test` installs strace");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then_some(Said(said))
}

fn copy(from: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let done = Command::new("cp").args(["-a", "--"]).arg(from.join(".")).arg(copy.path()).status();
    assert!(done.unwrap().success());
    copy
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_whose_api_is_killed_is_a_task_that_ends_and_can_be_asked_for_again() {
    if let (Ok(directory), Ok(act)) = (std::env::var("PVC_DIRECTORY"), std::env::var("PVC_ACT")) {
        return play(Path::new(&directory), &act).await;
    }
    let prepared = tempfile::tempdir().unwrap();
    let before = run(prepared.path(), "prepare", None).unwrap();
    // While it looks for the first part that has something in it, and when two are copied; and
    // before the whole gets its name.
    let moments = [("lseek", 1), ("lseek", 5), ("renameat2", 1)];
    for Asked { path, kind } in [CLONE, ROLL_BACK] {
        let done = copy(prepared.path());
        let after = run(done.path(), path, None).unwrap();
        assert!(after.lines("ANSWER")[0].starts_with("200"), "{}", after.0);
        assert_ne!(after.lines("VOLUMES"), before.lines("VOLUMES"));
        for (call, nth) in moments {
            let at = format!("{kind} at {call} {nth}");
            let killed = copy(prepared.path());
            assert!(run(killed.path(), path, Some((call, nth))).is_none(), "{at}: it was killed");
            let settled = run(killed.path(), "settle", None).unwrap();
            assert_eq!(settled.lines("TASK"), [format!("{kind} Failed")], "{at}");
            assert_eq!(settled.lines("VOLUMES"), before.lines("VOLUMES"), "{at}");
            // Half of it may have been done: nobody starts with that before it is done again.
            let held = settled.lines("HELD");
            assert_eq!(held.len(), usize::from(kind == ROLL_BACK.kind), "{at}: {held:?}");
            let again = run(killed.path(), path, None).unwrap();
            assert!(again.lines("ANSWER")[0].starts_with("200"), "{at}: {}", again.0);
            assert_eq!(again.lines("VOLUMES"), after.lines("VOLUMES"), "{at}");
            assert!(again.lines("HELD").is_empty(), "{at}");
        }
    }
}
