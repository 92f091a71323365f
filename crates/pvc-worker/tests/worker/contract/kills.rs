//! Workers that are killed before every change that a job makes on disk: to the volumes, which are
//! files of a real directory, and to the records, which are in a tree on disk.
//!
//! Each worker is a process of its own, which is this program. Whatever the first one leaves, the
//! next one brings the job to its end; or takes it back, if it was cancelled meanwhile.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use pvc_directory::DirectoryStorage;
use pvc_embedded::EmbeddedTree;
use pvc_model::benchmark::BenchmarkState;
use pvc_model::job::{JobId, JobSpec, JobVm, JobWork};
use pvc_model::storage::{PoolName, SnapshotName, VolumeId};
use pvc_ports::{DeviceChange, Hypervisor, Storage};
use pvc_store::{Change, Store};
use pvc_testkit::{ScriptedExec, ScriptedHypervisor, SeededRandom, TokioClock};
use pvc_worker::Worker;
use tokio_util::sync::CancellationToken;

use super::LONG;
use crate::crashes::{DISK, UUID, web1, xml};
use crate::{common, measuring};

/// Name of the test, which is started again as a worker.
const TEST: &str =
    "contract::kills::a_job_whose_worker_is_killed_at_any_change_on_disk_is_done_by_the_next";

/// Calls of the kernel that change something on disk, and of how many one is tried.
const CALLS: [(&str, usize); 7] = [
    ("mkdirat", 1),
    ("renameat2", 1),
    ("unlinkat", 1),
    ("ftruncate", 1),
    ("fdatasync", 1),
    ("fsync", 1),
    // Several of them are one change of the tree.
    ("pwrite64", 5),
];

/// More than any job makes of one kind.
const MOST_CALLS: usize = 400;

const VOLUMES: [&str; 2] = ["vms/web1_sda", "vms/web1_sdb"];
const VOLUME_BYTES: u64 = 300_000;

/// Name of the disk that is attached, or detached.
const TARGET: &str = "dev='sdx'";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rename,
    FlushLocks,
    Resize,
    Benchmark,
    Attach,
    Detach,
}

impl Kind {
    const ALL: [Kind; 6] =
        [Kind::Rename, Kind::FlushLocks, Kind::Resize, Kind::Benchmark, Kind::Attach, Kind::Detach];

    fn work(self) -> JobWork {
        let vm = JobVm { name: "web1".into(), uuid: Some(UUID) };
        match self {
            Kind::Rename => JobWork::RenameVm { vm, to: "shop".to_owned() },
            Kind::FlushLocks => JobWork::FlushLocks { vm },
            Kind::Resize => JobWork::ResizeDisk { vm, volume: id(VOLUMES[0]) },
            Kind::Benchmark => {
                JobWork::BenchmarkStorage { pool: PoolName::new("vms"), name: "b1".to_owned() }
            }
            Kind::Attach => JobWork::AttachDevice { vm, xml: DISK.to_owned() },
            Kind::Detach => JobWork::DetachDevice { vm, xml: DISK.to_owned() },
        }
    }

    /// Whether nothing stays of it that was done once: what was freed stays free, and what was told
    /// is known.
    fn leaves_no_trace(self) -> bool {
        matches!(self, Kind::FlushLocks | Kind::Resize)
    }
}

/// Act of a process that is this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    /// Makes the volumes and the records, and submits the job.
    Prepare,
    /// Does the job to its end.
    Work,
    /// The same after somebody has cancelled it.
    WorkOnCancelled,
}

impl Act {
    const ALL: [Act; 3] = [Act::Prepare, Act::Work, Act::WorkOnCancelled];
}

fn id(volume: &str) -> VolumeId {
    VolumeId::from_record(volume).expect("well formed")
}

fn job() -> JobId {
    JobId::from_bits(1)
}

// --- The process that may be killed --------------------------------------------------------------

struct World {
    store: Store,
    storage: Arc<DirectoryStorage>,
    hypervisor: Arc<ScriptedHypervisor>,
    /// File that has something in it while the guest has the disk: a guest outlives a worker.
    guest: PathBuf,
}

impl World {
    async fn open(directory: &Path) -> World {
        let tree = EmbeddedTree::open(&directory.join("tree")).expect("nobody has it open");
        let store = common::open(tree.connect()).await;
        let storage = DirectoryStorage::open(&directory.join("volumes")).expect("it can be used");
        let (storage, hypervisor) = (Arc::new(storage), Arc::new(ScriptedHypervisor::new()));
        World { store, storage, hypervisor, guest: directory.join("guest") }
    }

    /// Has the guest as the worker before has left it. One that was killed between a change of the
    /// guest's disks and the note of it has not made it: that may be so as well.
    async fn start_guest(&self) {
        self.hypervisor.start(UUID, &xml()).await.expect("nothing of it runs");
        if has_disk(&self.guest) {
            let attach = DeviceChange::Attach;
            self.hypervisor.device(UUID, attach, DISK).await.expect("the target is free");
        }
        let (hypervisor, guest) = (self.hypervisor.clone(), self.guest.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            runtime.expect("this is Linux").block_on(async {
                loop {
                    match disks(&hypervisor).await {
                        0 if has_disk(&guest) => note(&guest, ""),
                        1 if !has_disk(&guest) => note(&guest, "it has the disk"),
                        _ => std::thread::sleep(Duration::from_millis(1)),
                    }
                }
            });
        });
    }

    async fn write(&self, change: Change) {
        common::write(&self.store, change).await;
    }

    async fn prepare(&self, kind: Kind) {
        self.store.initialize(false).await.expect("an empty tree");
        for volume in VOLUMES.map(id).into_iter().chain([id("vms/data")]) {
            self.storage.create(&volume, VOLUME_BYTES, false).await.expect("there is room");
        }
        let snapshot = SnapshotName::new("s");
        self.storage.snapshot(&id(VOLUMES[0]), &snapshot).await.expect("nobody uses it");
        self.write(Change::DefineVm(Box::new(web1()))).await;
        let spec = JobSpec {
            id: job(),
            work: kind.work(),
            node: "hv1".into(),
            run_on: "hv1".into(),
            submitter: "tests".into(),
            submitted_at: 1,
        };
        self.write(Change::SubmitJob(spec)).await;
        if kind == Kind::Detach {
            note(&self.guest, "it has the disk");
            self.start_guest().await;
        }
    }

    async fn work(&self, kind: Kind) {
        if matches!(kind, Kind::Resize | Kind::Attach | Kind::Detach) {
            self.start_guest().await;
        }
        let worker = Worker::new(
            "hv1".into(),
            self.store.clone(),
            self.hypervisor.clone(),
            self.storage.clone(),
            Arc::new(TokioClock::new()),
            Arc::new(SeededRandom::new(std::process::id().into())),
        );
        let fio = ScriptedExec::new(|_| Ok(ScriptedExec::success(measuring::REPORT)));
        let worker = worker.with_benchmarks(measuring::with_exec(Arc::new(fio)));
        tokio::spawn(async move { worker.run(CancellationToken::new()).await });
        let is_parted = || {
            let view = self.store.view();
            let job = view.jobs.get(&job()).expect("it was submitted");
            job.progress.state.is_over() && job.claim.is_none()
        };
        pvc_testkit::eventually("the job ends", LONG, is_parted).await;
    }

    /// Everything that anybody can see, but for how the job has ended.
    async fn state(&self) -> Vec<String> {
        let view = self.store.fresh().await.expect("the tree is open");
        let record = &view.vms[&UUID];
        let mut state = vec![format!("VM {} with {:?}", record.name, record.volumes())];
        for pool in self.storage.pools().await.expect("they can be listed") {
            for volume in self.storage.volumes(&pool.name).await.expect("they can be listed") {
                let bytes = volume.size_bytes;
                state.push(format!("{}: {bytes} bytes, {:?}", volume.id, volume.snapshots));
            }
        }
        let recorded = view.volumes.values();
        state.extend(recorded.map(|volume| format!("{} is recorded", volume.id)));
        state.extend(view.benchmarks.values().map(|benchmark| match benchmark.state {
            BenchmarkState::Running => "a benchmark is under way".to_owned(),
            BenchmarkState::Done(_) => "a benchmark is done".to_owned(),
        }));
        state.extend(view.holds.keys().map(|volume| format!("{volume} is held")));
        let work = self.storage.directory().join(".work");
        let left = std::fs::read_dir(work).expect("it is there").count();
        state.push(format!("{left} things are half made"));
        state.push(format!("the guest has the disk {} times", disks(&self.hypervisor).await));
        state
    }
}

fn has_disk(guest: &Path) -> bool {
    guest.metadata().is_ok_and(|note| note.len() > 0)
}

/// Writes it with calls that no worker is killed before.
fn note(guest: &Path, text: &str) {
    std::fs::write(guest, text).expect("there is room");
}

/// Number of disks like the one that is attached that the guest has, if it runs.
async fn disks(hypervisor: &ScriptedHypervisor) -> usize {
    hypervisor.live_xml(UUID).await.map_or(0, |xml| xml.matches(TARGET).count())
}

/// Does what the parent asks for, and says what there is then.
async fn play(directory: &Path, kind: Kind, act: Act) {
    let world = World::open(directory).await;
    match act {
        Act::Prepare => world.prepare(kind).await,
        Act::Work => world.work(kind).await,
        Act::WorkOnCancelled => {
            let progress = world.store.view().jobs[&job()].progress.clone();
            if !progress.state.is_over() {
                world.write(Change::CancelJob(job())).await;
            }
            world.work(kind).await;
        }
    }
    println!("\nENDED {:?}", world.store.view().jobs[&job()].progress.state);
    for line in world.state().await {
        println!("FOUND {line}");
    }
}

// --- The test ------------------------------------------------------------------------------------

/// End of the job, and what there was then.
type Found = (String, Vec<String>);

/// Has a process do this; killed before call number `nth` of this kind that one of its threads
/// makes, counted from 1. Returns what it found at its end; `None` if it was killed before.
fn run(directory: &Path, kind: Kind, act: Act, killed_at: Option<(&str, usize)>) -> Option<Found> {
    let exe = std::env::current_exe().expect("this is Linux");
    let mut command = match killed_at {
        None => Command::new(&exe),
        Some((call, nth)) => {
            let mut strace = Command::new("strace");
            // With `--seccomp-bpf` strace 6.1 counts no further than to the first call.
            strace.args(["-f", "-qq", "-o", "/dev/null"]);
            strace.args(["-e", &format!("trace={call}")]);
            strace.args(["-e", &format!("inject={call}:signal=SIGKILL:when={nth}")]);
            strace.arg(&exe);
            strace
        }
    };
    command.args([TEST, "--exact", "--nocapture"]);
    command.env("PVC_WORKER", directory).env("PVC_WORK", format!("{kind:?} {act:?}"));
    let output = command.output().expect("`packaging/install/packages.sh test` installs strace");
    if !output.status.success() {
        return None;
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let lines = |word: &str| {
        let found = said.lines().filter_map(|line| line.strip_prefix(word)).map(str::to_owned);
        found.collect::<Vec<_>>()
    };
    Some((lines("ENDED ").pop().expect("it says so"), lines("FOUND ")))
}

fn copy(from: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("there is room");
    let done = Command::new("cp").args(["-a", "--"]).arg(from.join(".")).arg(copy.path()).status();
    assert!(done.expect("it is installed").success());
    copy
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_worker_is_killed_at_any_change_on_disk_is_done_by_the_next() {
    if let (Ok(directory), Ok(asked)) = (std::env::var("PVC_WORKER"), std::env::var("PVC_WORK")) {
        let mut all = Kind::ALL.into_iter().flat_map(|kind| Act::ALL.map(|act| (kind, act)));
        let (kind, act) = all.find(|(kind, act)| format!("{kind:?} {act:?}") == asked).unwrap();
        return play(Path::new(&directory), kind, act).await;
    }
    for kind in Kind::ALL {
        let prepared = tempfile::tempdir().expect("there is room");
        let (_, before) = run(prepared.path(), kind, Act::Prepare, None).expect("nothing fails");
        let done = copy(prepared.path());
        let (state, after) = run(done.path(), kind, Act::Work, None).expect("nothing fails");
        assert_eq!(state, "Succeeded", "{kind:?}");
        assert_eq!(before == after, kind.leaves_no_trace(), "{kind:?}: {after:#?}");
        let (mut kills, mut taken_back) = (0, 0);
        // Of what changes nothing but records a part will do.
        let seldom = if kind.leaves_no_trace() { 4 } else { 1 };
        for (call, every) in CALLS {
            for nth in (1..).step_by(every * seldom) {
                assert!(nth < MOST_CALLS, "{kind:?} makes {call} without end");
                let killed = copy(prepared.path());
                if run(killed.path(), kind, Act::Work, Some((call, nth))).is_some() {
                    break;
                }
                kills += 1;
                // Every second one was cancelled before the next worker comes.
                let act = if kills % 2 == 0 { Act::WorkOnCancelled } else { Act::Work };
                let at = format!("{kind:?}, killed at {call} {nth}, then {act:?}");
                let (state, found) = run(killed.path(), kind, act, None).expect("nothing fails");
                match state.as_str() {
                    "Succeeded" => assert_eq!(found, after, "{at}"),
                    "Cancelled" if act == Act::WorkOnCancelled => {
                        assert_eq!(found, before, "{at}");
                        taken_back += 1;
                    }
                    other => panic!("{at}: {other}, {found:#?}"),
                }
            }
        }
        assert!(kills > 5 && taken_back > 1, "{kind:?}: {kills} kills, {taken_back} taken back");
    }
}
