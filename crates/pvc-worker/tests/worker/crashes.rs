//! Every kind of job, whose worker dies, stands still, or loses the store or what it works on, at
//! each of its calls: the job ends done or undone, and never half.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pvc_embedded::EmbeddedTree;
use pvc_model::benchmark::{BenchmarkState, volume_of};
use pvc_model::job::creation::{Seed, SeedFiles, VmCreation};
use pvc_model::job::{JobId, JobProgress, JobSpec, JobState, JobVm, JobWork};
use pvc_model::node::{DaemonNote, DaemonState, NodeRole};
use pvc_model::storage::{OsdRecord, PoolName, VolumeId, VolumeName};
use pvc_model::vm::VmState;
use pvc_model::{NodeName, Uuid};
use pvc_ports::{Hypervisor, Op, Storage, Tree as _};
use pvc_store::{Change, Changes, Ipmi, NewNode, NewVm, NodeChange, Report, Store, VmChange};
use pvc_testkit::{
    FlakyTree, Gate, MemoryDevices, MemoryFiles, MemoryOsds, MemoryStorage, ScriptedHypervisor,
    ScriptedScripts, SeededRandom, SharedOsds, TokioClock,
};
use pvc_worker::Worker;
use tokio_util::sync::CancellationToken;

use crate::osds::{self, OsdCase};
use crate::{common, measuring, provision};

pub const UUID: Uuid = Uuid::from_u128(0x2c2b8f4e_0d3e_4b6f_9d6d_0c9b6cf3f2a1);
pub const DISK: &str = "<disk type='network' device='disk'><source protocol='rbd' name='vms/data'/>\
                    <target dev='sdx' bus='scsi'/></disk>";

/// Longer than everything that a worker waits for.
const LONG: Duration = Duration::from_secs(300);

/// Time for which something is away. Less than the time after which the store is given up.
pub const AWAY: Duration = Duration::from_secs(40);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Case {
    FlushLocks,
    Attach,
    Detach,
    Rename,
    Create,
    /// The same with an installation medium instead of cloud-init's disk.
    Install,
    Resize,
    Benchmark,
    Provision,
    Osds(OsdCase),
}

fn cases() -> impl Iterator<Item = Case> {
    let others = [
        Case::FlushLocks,
        Case::Attach,
        Case::Detach,
        Case::Rename,
        Case::Create,
        Case::Install,
        Case::Resize,
        Case::Benchmark,
    ];
    others.into_iter().chain(OsdCase::ALL.map(Case::Osds))
}

pub struct World {
    case: Case,
    pub tree: EmbeddedTree,
    pub store: Store,
    hypervisor: Arc<ScriptedHypervisor>,
    pub storage: Arc<MemoryStorage>,
    pub profiles: Arc<provision::OneProfile>,
    pub scripts: ScriptedScripts,
    pub files: Arc<MemoryFiles>,
    pub devices: MemoryDevices,
    workers: AtomicUsize,
    osds: SharedOsds,
    /// The records of the OSDs as they were.
    before: Vec<OsdRecord>,
    pub job: JobId,
}

/// A worker's process: its connection to the store, and where its calls can be stopped.
pub struct Process {
    pub gate: Arc<Gate>,
    pub tree: Arc<FlakyTree>,
    task: tokio::task::JoinHandle<()>,
    stop: CancellationToken,
}

impl Process {
    /// Asks the worker to stop, and waits until it has.
    pub async fn stop(self) {
        self.stop.cancel();
        self.task.await.expect("it stops");
        self.tree.close().await;
    }

    /// Ends the worker: nothing of it has an effect any more, and the store notices.
    pub async fn die(self) {
        self.task.abort();
        assert!(self.task.await.is_err_and(|error| error.is_cancelled()), "it was at work");
        self.tree.close().await;
    }
}

pub fn id(volume: &str) -> VolumeId {
    VolumeId::from_record(volume).expect("well formed")
}

fn random() -> Arc<SeededRandom> {
    Arc::new(SeededRandom::new(1))
}

/// The OSDs before the job, with their records.
fn osds_before(case: Case) -> (SharedOsds, Vec<OsdRecord>) {
    let mut osds = MemoryOsds::new();
    let mut records = Vec::new();
    if let Case::Osds(case) = case {
        osds = case.osds();
        records = case.records(&mut osds);
    }
    (osds.shared(), records)
}

impl World {
    /// The VM `web1` with two volumes, some OSDs, and a job that nobody has begun.
    pub async fn new(case: Case) -> World {
        let tree = EmbeddedTree::in_memory();
        let store = common::open(tree.connect()).await;
        store.initialize(false).await.expect("an empty tree");
        let (osds, before) = osds_before(case);
        let storage = Arc::new(osds::storage(&osds));
        let world = World {
            case,
            tree,
            store,
            hypervisor: Arc::default(),
            storage: storage.clone(),
            profiles: Arc::default(),
            scripts: provision::script(),
            files: provision::programs(),
            devices: MemoryDevices::new(storage),
            workers: AtomicUsize::new(1),
            osds,
            before,
            job: JobId::from_bits(1),
        };
        if case == Case::Osds(OsdCase::RemoveOfFencedNode) {
            let name = NodeName::new(osds::FENCED);
            let node = || NewNode { name: name.clone(), ..hv1() };
            world.write(|changes| _ = changes.push(Change::AddNode(Box::new(node())))).await;
            let dead = || Change::Node(name.clone(), NodeChange::Daemon(DaemonState::Fenced));
            world.write(|changes| _ = changes.push(dead())).await;
        }
        for record in &world.before {
            let put = || Change::PutOsd(Box::new(record.clone()));
            world.write(|changes| _ = changes.push(put())).await;
        }
        world.write(|changes| _ = changes.push(Change::DefineVm(Box::new(web1())))).await;
        for volume in ["vms/web1_sda", "vms/web1_sdb", "vms/data"] {
            world.storage.insert(volume);
        }
        match case {
            Case::FlushLocks => {
                world.storage.lock("vms/web1_sda", "10.0.0.9");
                world.storage.lock("vms/web1_sdb", "10.0.0.9");
            }
            Case::Attach | Case::Detach => {
                world.write(|changes| _ = changes.vm(UUID, VmChange::State(VmState::Start))).await;
                world.hypervisor.insert(UUID, "web1");
            }
            Case::Resize => {
                world.hypervisor.start(UUID, &xml()).await.expect("nothing of it runs");
            }
            Case::Create | Case::Install | Case::Provision => {
                world.write(|changes| _ = changes.push(Change::AddNode(Box::new(hv1())))).await;
                world.storage.insert("vms/image_debian");
                let put = || Change::PutPool {
                    name: PoolName::new("vms"),
                    pgs: "64".into(),
                    tier: "default".into(),
                };
                world.write(|changes| _ = changes.push(put())).await;
                if case == Case::Provision {
                    world.write(provision::ready).await;
                    world.store.report(vec![provision::figures()]).await.expect("open");
                }
            }
            Case::Rename | Case::Benchmark | Case::Osds(_) => {}
        }
        if case == Case::Detach {
            let attach = pvc_ports::DeviceChange::Attach;
            world.hypervisor.device(UUID, attach, DISK).await.expect("the target is free");
        }
        let spec = JobSpec {
            id: world.job.clone(),
            work: world.work(),
            node: "hv1".into(),
            run_on: "hv1".into(),
            submitter: "tests".into(),
            submitted_at: 1,
        };
        world.write(|changes| _ = changes.push(Change::SubmitJob(spec.clone()))).await;
        world
    }

    fn work(&self) -> JobWork {
        let vm = JobVm { name: "web1".into(), uuid: Some(UUID) };
        match self.case {
            Case::FlushLocks => JobWork::FlushLocks { vm },
            Case::Attach => JobWork::AttachDevice { vm, xml: DISK.to_owned() },
            Case::Detach => JobWork::DetachDevice { vm, xml: DISK.to_owned() },
            Case::Rename => JobWork::RenameVm { vm, to: "shop".to_owned() },
            Case::Create | Case::Install => JobWork::CreateVm(Box::new(creation(self.case))),
            Case::Provision => JobWork::Provision(Box::new(provision::wanted())),
            Case::Resize => JobWork::ResizeDisk { vm, volume: id("vms/web1_sda") },
            Case::Benchmark => {
                JobWork::BenchmarkStorage { pool: PoolName::new("vms"), name: "b1".to_owned() }
            }
            Case::Osds(case) => case.work(),
        }
    }

    pub async fn write(&self, change: impl Fn(&mut Changes) + Send + Sync) {
        common::write_all(&self.store, change).await;
    }

    /// Adds a node that a daemon of ours runs on.
    async fn add_node(&self, node: NewNode) {
        let note = DaemonNote { version: node.version.clone(), ..DaemonNote::default() };
        self.write(|changes| _ = changes.push(Change::AddNode(Box::new(node.clone())))).await;
        let report = vec![Report::Daemon(node.name, note, None)];
        self.store.report(report).await.expect("the tree is open");
    }

    /// Moves the guest as it is, with what is plugged into it: to the hypervisor it is another one.
    async fn move_guest(&self, to: &str) {
        let live = self.hypervisor.live_xml(UUID).await.expect("it runs");
        self.hypervisor.kill(UUID);
        self.hypervisor.insert(UUID, "web1");
        if let Some(at) = live.find("<disk") {
            let device = &live[at..live.find("</devices>").expect("it ends")];
            let attach = pvc_ports::DeviceChange::Attach;
            self.hypervisor.device(UUID, attach, device).await.expect("the target is free");
        }
        let to = NodeName::new(to);
        self.write(|changes| _ = changes.vm(UUID, VmChange::Node(to.clone()))).await;
    }

    pub async fn cancel(&self) {
        let job = self.job.clone();
        self.write(|changes| _ = changes.push(Change::CancelJob(job.clone()))).await;
    }

    /// A worker whose calls stop before number `call`; those of its hypervisor and storage are
    /// counted before they have an effect and after it, and so are its writes.
    pub async fn worker(&self, node: &str, call: u64) -> Process {
        let gate = Gate::closing_at(u64::MAX);
        let tree = FlakyTree::new(self.tree.connect());
        let store = common::open(tree.clone()).await;
        let gate = if call == u64::MAX { gate } else { Gate::closing_at(call) };
        tree.set_gate(gate.clone());
        self.hypervisor.set_gate(gate.clone());
        self.storage.set_gate(gate.clone());
        let worker = Worker::new(
            NodeName::new(node),
            store,
            self.hypervisor.clone(),
            self.storage.clone(),
            Arc::new(TokioClock::new()),
            random(),
        );
        let worker = worker.with_benchmarks(measuring::tools(gate.clone()));
        self.scripts.set_gate(gate.clone());
        let number = self.workers.fetch_add(1, Ordering::Relaxed);
        let devices = self.devices.of_process(number, Some(gate.clone()));
        let (profiles, scripts, files) = (&self.profiles, &self.scripts, &self.files);
        let worker = worker.with_scripts(provision::tools(profiles, scripts, devices, files));
        let stop = CancellationToken::new();
        let asked = stop.clone();
        let task = tokio::spawn(async move { worker.run(asked).await });
        Process { gate, tree, task, stop }
    }

    /// A worker that nothing happens to.
    pub async fn healthy_worker(&self, node: &str) -> Process {
        self.worker(node, u64::MAX).await
    }

    pub fn progress(&self) -> JobProgress {
        self.store.view().jobs[&self.job].progress.clone()
    }

    /// Whether the worker has come to where its calls stop; `false` if the job ended before.
    pub async fn stops(&self, process: &Process) -> bool {
        self.wait_until(|| process.gate.is_closed() || self.progress().state.is_over()).await;
        process.gate.is_closed()
    }

    pub async fn end(&self) -> JobProgress {
        self.wait_until(|| self.progress().state.is_over()).await;
        self.progress()
    }

    /// Looks seldom: there are thousands of worlds.
    async fn wait_until(&self, ready: impl Fn() -> bool) {
        let end = tokio::time::Instant::now() + LONG;
        while !ready() {
            assert!(tokio::time::Instant::now() < end, "it never ends: {:?}", self.progress());
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    async fn devices(&self) -> usize {
        self.hypervisor.live_xml(UUID).await.expect("it runs").matches("<disk").count()
    }

    async fn locks(&self) -> usize {
        let mut locks = 0;
        for volume in ["vms/web1_sda", "vms/web1_sdb"] {
            locks += self.storage.locks(&id(volume)).await.expect("it is there").len();
        }
        locks
    }

    /// The VM's name, and those of its volumes that are there.
    async fn names(&self) -> (String, Vec<String>) {
        let view = self.store.fresh().await.expect("the tree is open");
        let record = &view.vms[&UUID];
        let mut there = Vec::new();
        for volume in ["web1_sda", "web1_sdb", "shop_sda", "shop_sdb"] {
            if self.storage.volume(&id(&format!("vms/{volume}"))).await.is_ok() {
                there.push(volume.to_owned());
            }
        }
        let recorded: Vec<String> =
            record.volumes().iter().map(|volume| volume.volume.to_string()).collect();
        assert_eq!(recorded.iter().filter(|volume| !there.contains(volume)).count(), 0);
        (record.name.clone(), there)
    }

    /// The volume that a benchmark makes.
    fn measured(&self) -> VolumeId {
        VolumeId { pool: PoolName::new("vms"), volume: volume_of(&self.job) }
    }

    fn new_volumes(&self) -> [&'static str; 2] {
        match self.case {
            Case::Provision => provision::VOLUMES,
            case => new_volumes(case),
        }
    }

    /// Finds how much of the job is there: all of it, or nothing. Locks are freed one by one.
    pub async fn is_done(&self) -> Option<bool> {
        match self.case {
            Case::FlushLocks => match self.locks().await {
                0 => Some(true),
                2 => Some(false),
                _ => None,
            },
            Case::Attach => Some(self.devices().await == 1),
            Case::Detach => Some(self.devices().await == 0),
            Case::Resize => {
                Some(self.hypervisor.calls().iter().any(|call| call.starts_with("resize ")))
            }
            Case::Rename => {
                let (name, volumes) = self.names().await;
                match (name.as_str(), &*volumes.join(" ")) {
                    ("shop", "shop_sda shop_sdb") => Some(true),
                    ("web1", "web1_sda web1_sdb") => Some(false),
                    _ => None,
                }
            }
            Case::Create | Case::Install | Case::Provision => {
                let view = self.store.fresh().await.expect("the tree is open");
                let mut there = 0;
                let pool = PoolName::new("vms");
                let all = self.storage.volumes(&pool).await.expect("it is there");
                // What a killed storage has left of a copy is the primary's to remove.
                let making = |volume: &VolumeId| {
                    volume.volume.as_str().starts_with("creating") && !volume.volume.is_partial()
                };
                let left = all.iter().any(|volume| making(&volume.id));
                let recorded = view.volumes.keys().any(making);
                if left || recorded {
                    return None;
                }
                for volume in self.new_volumes() {
                    let is_there = self.storage.volume(&id(volume)).await.is_ok();
                    assert!(is_there || !view.volumes.contains_key(&id(volume)), "{volume}");
                    there += usize::from(is_there);
                }
                match (view.vms.get(&NEW).map(|vm| vm.state.clone()), there) {
                    (Some(VmState::Stop), 2) => Some(true),
                    (None, 0) => Some(false),
                    _ => None,
                }
            }
            Case::Benchmark => {
                let volume = self.storage.volume(&self.measured()).await;
                let view = self.store.fresh().await.expect("the tree is open");
                match (volume.is_ok(), view.benchmarks.values().next()) {
                    (false, None) => Some(false),
                    (false, Some(it)) => (it.state != BenchmarkState::Running).then_some(true),
                    (true, _) => None,
                }
            }
            Case::Osds(case) => {
                let view = self.store.fresh().await.expect("the tree is open");
                case.is_done(&self.before, &self.osds, &view)
            }
        }
    }

    /// Lets the calls of whoever looks pass: nothing stops them.
    pub fn look_freely(&self) {
        let free = Gate::closing_at(u64::MAX);
        self.hypervisor.set_gate(free.clone());
        self.storage.set_gate(free);
    }

    /// Asserts that the job is done or undone, as its record says.
    pub async fn assert_whole(&self, at: &str) {
        self.look_freely();
        let (state, done) = (self.progress().state, self.is_done().await);
        let case = self.case;
        match state {
            JobState::Succeeded => assert_eq!(done, Some(true), "{case:?} {at}"),
            // What was freed before stays free, and what was told is known.
            _ if matches!(case, Case::FlushLocks | Case::Resize) => {}
            _ => assert_eq!(done, Some(false), "{case:?} {at}: {:?}", self.progress()),
        }
    }
}

pub fn web1() -> NewVm {
    NewVm {
        uuid: UUID,
        name: "web1".into(),
        state: VmState::Stop,
        node: Some("hv1".into()),
        xml: xml(),
        profile: None,
        volumes: vec![id("vms/web1_sda"), id("vms/web1_sdb")],
        autostart: false,
        migration_method: None,
        max_downtime_ms: 300,
        selector: None,
        node_limit: vec![],
        tags: vec![],
    }
}

pub const NEW: Uuid = Uuid::from_u128(9);
const NEW_DISK: &str = "vms/new_sda";

/// The volumes of the new VM.
fn new_volumes(case: Case) -> [&'static str; 2] {
    [NEW_DISK, if case == Case::Install { "vms/new_iso" } else { "vms/new_cidata" }]
}

pub fn hv1() -> NewNode {
    NewNode {
        name: NodeName::new("hv1"),
        role: NodeRole::Coordinator,
        cpus: 8,
        kernel: String::new(),
        os: String::new(),
        arch: "x86_64".into(),
        version: "0.2.0".into(),
        ipmi: Ipmi::default(),
        keepalive: 1,
    }
}

/// The VM `new`, of an image, with cloud-init's disk or with the image as its medium.
fn creation(case: Case) -> VmCreation {
    let text = str::to_owned;
    let [disk, second] = new_volumes(case).map(id);
    let xml = xml().replace("web1_sdb", second.volume.as_str()).replace("web1", "new");
    let files = || SeedFiles {
        user_data: text("#cloud-config\n"),
        meta_data: text("{}"),
        network_config: text("{}"),
    };
    let (medium, seed) = match case {
        Case::Install => (Some(second), None),
        _ => (None, Some(Seed { volume: second, files: files() })),
    };
    VmCreation {
        vm: JobVm { name: "new".into(), uuid: Some(NEW) },
        xml: xml.replace(&UUID.to_string(), &NEW.to_string()),
        image: id("vms/image_debian"),
        medium,
        disk,
        disk_bytes: 2 << 30,
        seed,
        node: Some(NodeName::new("hv1")),
        autostart: false,
        start: false,
        refuse_memory_overcommit: false,
        force: false,
    }
}

pub fn xml() -> String {
    let disk = |target: &str| {
        format!(
            "<disk type='network' device='disk'><source protocol='rbd' name='vms/web1_{target}'/>\
             <target dev='{target}' bus='scsi'/></disk>"
        )
    };
    format!(
        "<domain type='kvm'><name>web1</name><uuid>{UUID}</uuid><memory unit='MiB'>512</memory>\
         <vcpu>1</vcpu><os><type arch='x86_64' machine='pc'>hvm</type></os><devices>\
         <emulator>/usr/bin/kvm</emulator>{}{}<console type='pty'/></devices></domain>",
        disk("sda"),
        disk("sdb")
    )
}

#[tokio::test(start_paused = true)]
async fn a_job_is_done_when_nothing_happens() {
    for case in cases().chain([Case::Provision]) {
        let world = World::new(case).await;
        assert_eq!(world.is_done().await, Some(false), "{case:?}");
        world.healthy_worker("hv1").await;
        let end = world.end().await;
        assert_eq!((end.state, end.current), (JobState::Succeeded, end.total), "{case:?}: {end:?}");
        world.assert_whole("undisturbed").await;
        assert_eq!(end.worker, Some("hv1".into()));
    }
}

/// Step between the calls that are tried: 1, but `of_long` for jobs about OSDs, benchmarks and new
/// VMs, which have a hundred calls and more.
fn every(case: Case, of_long: usize) -> usize {
    match case {
        Case::Create | Case::Install => of_long.min(2),
        case if is_long(case) => of_long,
        _ => 1,
    }
}

fn is_long(case: Case) -> bool {
    matches!(case, Case::Osds(_) | Case::Benchmark | Case::Create | Case::Install)
}

/// Calls of the worker, one after the other, until the job ends before the last.
macro_rules! at_each_call {
    ($call:ident, $body:block) => {
        at_each_call!($call, 1, $body)
    };
    ($call:ident, $step:expr, $body:block) => {
        for $call in (0..).step_by($step) {
            assert!($call < 500, "it never ends");
            if !$body {
                assert!($call > 5, "the calls are counted");
                break;
            }
        }
    };
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_worker_dies_at_any_call_is_done_once_by_the_next() {
    for case in cases() {
        at_each_call!(call, {
            let world = World::new(case).await;
            let first = world.worker("hv1", call).await;
            let stops = world.stops(&first).await;
            first.die().await;
            world.healthy_worker("hv1").await;
            let end = world.end().await;
            assert_eq!(end.state, JobState::Succeeded, "{case:?} at call {call}: {end:?}");
            world.assert_whole(&format!("at call {call}")).await;
            stops
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_workers_die_twice_is_done_by_the_third() {
    for case in cases() {
        // Not every pair of calls is tried.
        let (step, again_step) = if is_long(case) { (17, 40) } else { (1, 3) };
        at_each_call!(call, step, {
            let mut stops = false;
            for again in (0..).step_by(again_step) {
                let world = World::new(case).await;
                let first = world.worker("hv1", call).await;
                stops = world.stops(&first).await;
                first.die().await;
                let second = world.worker("hv1", again).await;
                let stops_again = stops && world.stops(&second).await;
                second.die().await;
                world.healthy_worker("hv1").await;
                let end = world.end().await;
                assert_eq!(end.state, JobState::Succeeded, "{case:?} at {call}, {again}: {end:?}");
                world.assert_whole(&format!("at calls {call} and {again}")).await;
                if !stops_again {
                    break;
                }
            }
            stops
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_cancelled_as_its_worker_dies_is_taken_back_or_done() {
    for case in cases() {
        let mut ends = Vec::new();
        at_each_call!(call, every(case, 2), {
            let world = World::new(case).await;
            let first = world.worker("hv1", call).await;
            let stops = world.stops(&first).await;
            if stops {
                world.cancel().await;
            }
            first.die().await;
            world.healthy_worker("hv1").await;
            ends.push(world.end().await.state);
            world.assert_whole(&format!("cancelled at call {call}")).await;
            stops
        });
        assert!(ends.contains(&JobState::Cancelled) && ends.contains(&JobState::Succeeded));
        let others = [JobState::Cancelled, JobState::Succeeded];
        assert!(ends.iter().all(|end| others.contains(end)), "{case:?}: {ends:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_worker_loses_the_store_at_any_call_ends_when_it_is_back() {
    for case in cases() {
        let mut done = 0;
        at_each_call!(call, every(case, 3), {
            let world = World::new(case).await;
            let worker = world.worker("hv1", call).await;
            let stops = world.stops(&worker).await;
            worker.tree.cut();
            worker.gate.open();
            tokio::time::sleep(AWAY).await;
            worker.tree.mend();
            // What reads the store in order to decide fails with it; what only records does not.
            done += usize::from(world.end().await.state == JobState::Succeeded);
            world.assert_whole(&format!("the store was away at call {call}")).await;
            stops
        });
        assert!(done > 5, "{case:?}: {done}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_storage_and_hypervisor_fail_at_any_call_ends_when_they_are_back() {
    for case in cases() {
        at_each_call!(call, every(case, 3), {
            let world = World::new(case).await;
            let worker = world.worker("hv1", call).await;
            let stops = world.stops(&worker).await;
            world.storage.set_failing(true);
            world.hypervisor.set_unreachable(true);
            worker.gate.open();
            tokio::time::sleep(AWAY).await;
            world.storage.set_failing(false);
            world.hypervisor.set_unreachable(false);
            world.end().await;
            world.assert_whole(&format!("failing from call {call} on")).await;
            stops
        });
    }
}

/// The worker stands still, its session ends, another one does the job to its end, then the first
/// one goes on.
#[tokio::test(start_paused = true)]
async fn a_worker_that_has_lost_its_job_and_does_not_know_leaves_nothing_half() {
    for (case, cancels) in cases().flat_map(|case| [(case, false), (case, true)]) {
        at_each_call!(call, every(case, 11), {
            let world = World::new(case).await;
            let slow = world.worker("hv1", call).await;
            let stops = world.stops(&slow).await;
            if stops && cancels {
                world.cancel().await;
            }
            let owner = Op::Delete { path: format!("/tasks/{}/owner", world.job), version: None };
            // Before it is claimed and after it has ended there is none.
            let _ = world.tree.connect().multi(vec![owner]).await;
            world.healthy_worker("hv1").await;
            world.end().await;
            slow.gate.open();
            tokio::time::sleep(LONG).await;
            world.assert_whole(&format!("slow at call {call}, cancelled: {cancels}")).await;
            stops
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_asked_to_stop_leaves_its_job_to_the_next_one() {
    for case in cases() {
        at_each_call!(call, every(case, 3), {
            let world = World::new(case).await;
            let (tree, gate) = (FlakyTree::new(world.tree.connect()), Gate::closing_at(call));
            let store = common::open(tree.clone()).await;
            tree.set_gate(gate.clone());
            world.hypervisor.set_gate(gate.clone());
            world.storage.set_gate(gate.clone());
            let (stop, clock) = (CancellationToken::new(), Arc::new(TokioClock::new()));
            let (hypervisor, storage) = (world.hypervisor.clone(), world.storage.clone());
            let worker = Worker::new("hv1".into(), store, hypervisor, storage, clock, random());
            let worker = worker.with_benchmarks(measuring::tools(gate.clone()));
            let asked = stop.clone();
            let task = tokio::spawn(async move { worker.run(asked).await });
            let process = Process { gate, tree, task, stop: stop.clone() };
            let stops = world.stops(&process).await;
            stop.cancel();
            process.gate.open();
            process.task.await.expect("it stops");
            process.tree.close().await;
            world.healthy_worker("hv1").await;
            let end = world.end().await;
            assert_eq!(end.state, JobState::Succeeded, "{case:?} at call {call}: {end:?}");
            world.assert_whole(&format!("asked to stop at call {call}")).await;
            stops
        });
    }
}

#[tokio::test(start_paused = true)]
async fn a_renaming_is_done_by_another_node_while_its_own_worker_is_not_there() {
    let world = World::new(Case::Rename).await;
    let first = world.worker("hv1", 12).await;
    assert!(world.stops(&first).await, "in the middle of it");
    first.die().await;
    world.healthy_worker("hv2").await;
    let end = world.end().await;
    assert_eq!((end.state, end.worker), (JobState::Succeeded, Some("hv2".into())));
    world.assert_whole("on another node").await;
    let bound = World::new(Case::FlushLocks).await;
    bound.add_node(hv1()).await;
    bound.healthy_worker("hv2").await;
    tokio::time::sleep(LONG).await;
    assert_eq!(bound.progress().state, JobState::Pending, "this one needs its own node");
}

#[tokio::test(start_paused = true)]
async fn the_lock_of_a_guest_that_is_started_while_locks_are_flushed_stays() {
    let world = World::new(Case::FlushLocks).await;
    let process = world.healthy_worker("hv1").await;
    let gate = Gate::closing_at(0);
    world.storage.set_gate(gate.clone());
    let is_asked = || gate.is_closed();
    pvc_testkit::eventually("the locks are asked for", Duration::from_secs(60), is_asked).await;
    world.write(|changes| _ = changes.vm(UUID, VmChange::State(VmState::Start))).await;
    world.storage.lock("vms/web1_sda", "10.0.0.1");
    gate.open();
    assert_eq!(world.end().await.state, JobState::Failed);
    let left = world.storage.locks(&id("vms/web1_sda")).await.expect("it is there");
    assert!(left.iter().any(|lock| lock.address == "10.0.0.1"), "{left:?}");
    process.die().await;
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_is_renamed_while_its_locks_are_flushed_is_not_said_to_have_none() {
    let world = World::new(Case::FlushLocks).await;
    let first = world.healthy_worker("hv1").await;
    let gate = Gate::closing_at(0);
    world.storage.set_gate(gate.clone());
    let is_asked = || gate.is_closed();
    pvc_testkit::eventually("the locks are asked for", Duration::from_secs(60), is_asked).await;
    first.die().await;
    world.look_freely();
    world.storage.rename(&id("vms/web1_sda"), &VolumeName::new("shop_sda")).await.expect("free");
    let volumes = vec![id("vms/shop_sda"), id("vms/web1_sdb")];
    let renamed = xml().replace("web1_sda", "shop_sda");
    world
        .write(|changes| {
            changes.vm(UUID, VmChange::Xml(renamed.clone()));
            changes.vm(UUID, VmChange::Volumes(volumes.clone()));
        })
        .await;
    world.healthy_worker("hv1").await;
    let end = world.end().await;
    assert_eq!(end.state, JobState::Failed, "{end:?}");
    let why = "volume `vms/web1_sda` is no longer one of VM `web1`";
    assert_eq!(end.status, why);
    let hint = end.failure.as_ref().and_then(|failure| failure.hint.as_deref());
    assert!(hint.is_some_and(|hint| hint.contains("`pvc vm flush-locks web1`")), "{end:?}");
    assert_eq!(world.storage.locks(&id("vms/shop_sda")).await.expect("it is there").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_is_started_again_during_a_change_of_its_devices_gets_none_by_mistake() {
    for case in [Case::Attach, Case::Detach] {
        let mut ends = Vec::new();
        at_each_call!(call, {
            let world = World::new(case).await;
            let worker = world.worker("hv1", call).await;
            let stops = world.stops(&worker).await;
            world.hypervisor.kill(UUID);
            world.hypervisor.insert(UUID, "web1");
            worker.gate.open();
            let end = world.end().await;
            world.look_freely();
            let most = usize::from(case == Case::Attach && end.state == JobState::Succeeded);
            assert!(world.devices().await <= most, "{case:?} at call {call}: {end:?}");
            ends.push((end.state, end.status));
            stops
        });
        let says_why = |(state, why): &(JobState, String)| {
            *state == JobState::Failed && why.contains("was started again or moved meanwhile")
        };
        assert!(ends.iter().any(says_why), "{case:?}: {ends:?}");
    }
}

/// Two guests would write to it.
#[tokio::test(start_paused = true)]
async fn a_disk_that_another_guest_has_got_meanwhile_is_not_given_back_to_the_first() {
    let other = Uuid::from_u128(8);
    let db1 = || {
        let xml = xml().replace("vms/web1_sda", "vms/data").replace("web1", "db1");
        let xml = xml.replace(&UUID.to_string(), &other.to_string());
        let volumes = vec![id("vms/data"), id("vms/db1_sdb")];
        let (name, state) = ("db1".to_owned(), VmState::Start);
        NewVm { uuid: other, name, state, xml, volumes, ..web1() }
    };
    let mut log = Vec::new();
    at_each_call!(call, 3, {
        let mut stops = false;
        for again in 0.. {
            let world = World::new(Case::Detach).await;
            let first = world.worker("hv1", call).await;
            stops = world.stops(&first).await;
            first.die().await;
            world.cancel().await;
            let second = world.worker("hv1", again).await;
            let stops_again = stops && world.stops(&second).await;
            world.look_freely();
            let lets_go = stops_again && world.devices().await == 1;
            if lets_go {
                // After it was looked at: it takes its time.
                let detach = pvc_ports::DeviceChange::Detach;
                world.hypervisor.device(UUID, detach, DISK).await.expect("it has it");
                world.write(|changes| _ = changes.push(Change::DefineVm(Box::new(db1())))).await;
            }
            second.gate.open();
            let end = world.end().await;
            let at = format!("at calls {call} and {again}: {end:?}");
            assert!(!lets_go || world.devices().await == 0, "{at}");
            log.extend(end.log);
            if !stops_again {
                break;
            }
        }
        stops
    });
    let stays = "the device stays detached: volume `vms/data` is in use by VM `db1`";
    assert!(log.iter().any(|line| line.contains(stays)), "{log:?}");
}

/// The guest's device goes with it: so does the job, which its old node could not finish.
#[tokio::test(start_paused = true)]
async fn a_guest_that_moves_during_a_change_of_its_devices_takes_the_job_along() {
    for (case, cancels) in [(Case::Attach, false), (Case::Attach, true), (Case::Detach, true)] {
        let mut ends = Vec::new();
        at_each_call!(call, {
            let world = World::new(case).await;
            world.add_node(hv1()).await;
            world.add_node(NewNode { name: NodeName::new("hv2"), ..hv1() }).await;
            let first = world.worker("hv1", call).await;
            let stops = world.stops(&first).await;
            if stops {
                first.die().await;
                world.look_freely();
                world.move_guest("hv2").await;
                if cancels {
                    world.cancel().await;
                }
                let second = world.healthy_worker("hv2").await;
                world.healthy_worker("hv1").await;
                ends.push(world.end().await);
                second.die().await;
            }
            let is_open = world.progress().log.iter().any(|line| line.contains("is not known"));
            if !is_open {
                world.assert_whole(&format!("moved at call {call}, cancelled: {cancels}")).await;
            }
            stops
        });
        let is_by_hv2 = |end: &JobProgress| end.worker == Some("hv2".into());
        assert!(ends.iter().any(is_by_hv2), "{case:?}: {ends:?}");
    }
}

/// Somebody makes a volume of the same name in the middle of it: it is theirs, and stays.
#[tokio::test(start_paused = true)]
async fn a_volume_that_is_called_as_the_disk_of_a_new_vm_meanwhile_is_left_alone() {
    let disk = id(NEW_DISK);
    let mut ends = Vec::new();
    at_each_call!(call, 2, {
        let world = World::new(Case::Create).await;
        let worker = world.worker("hv1", call).await;
        let stops = world.stops(&worker).await;
        world.look_freely();
        if world.storage.volume(&disk).await.is_err() {
            world.storage.insert(NEW_DISK);
        }
        worker.gate.open();
        let end = world.end().await;
        ends.push(end.state);
        assert!(world.storage.volume(&disk).await.is_ok(), "at call {call}: {end:?}");
        if end.state != JobState::Succeeded {
            // Whoever made it removes it, and its record with it.
            world.storage.remove(&disk).await.expect("it is there");
            let (store, storage) = (&world.store, world.storage.as_ref());
            pvc_ops::storage::record_volume(store, storage, &disk).await.expect("reachable");
            assert_eq!(world.is_done().await, Some(false), "at call {call}: {end:?}");
        }
        stops
    });
    assert!(ends.contains(&JobState::Failed) && ends.contains(&JobState::Succeeded), "{ends:?}");
}

/// Somebody records a VM of the same name in the middle of it, as an API of PVC 1.0.3 does, which
/// knows no tasks: it is theirs, and stays.
#[tokio::test(start_paused = true)]
async fn a_vm_that_is_called_as_a_new_one_meanwhile_is_left_alone() {
    let other = Uuid::from_u128(8);
    let theirs = || {
        let xml = xml().replace("vms/web1", "vms/theirs").replace("<name>web1", "<name>new");
        let xml = xml.replace(&UUID.to_string(), &other.to_string());
        let volumes = vec![id("vms/theirs_sda"), id("vms/theirs_sdb")];
        NewVm { uuid: other, name: "new".into(), xml, volumes, ..web1() }
    };
    for (case, step) in [(Case::Create, 1), (Case::Install, 2), (Case::Provision, 1)] {
        let (mut refused, mut recorded) = (0, 0);
        at_each_call!(call, step, {
            let world = World::new(case).await;
            let worker = world.worker("hv1", call).await;
            let stops = world.stops(&worker).await;
            world.look_freely();
            let view = world.store.fresh().await.expect("the tree is open");
            let is_free = view.vm("new").is_none();
            if is_free {
                world.write(|changes| _ = changes.push(Change::DefineVm(Box::new(theirs())))).await;
            }
            worker.gate.open();
            let end = world.end().await;
            let at = format!("{case:?} at call {call}: {end:?}");
            world.assert_whole(&at).await;
            if is_free {
                let view = world.store.fresh().await.expect("the tree is open");
                let vm = &view.vms[&other];
                assert_eq!((vm.name.as_str(), &vm.state), ("new", &VmState::Stop), "{at}");
                match end.state {
                    JobState::Failed => {
                        assert!(end.status.contains("a VM called `new` exists already"), "{at}");
                        refused += 1;
                    }
                    _ => recorded += 1,
                }
            } else {
                assert_eq!(end.state, JobState::Succeeded, "{at}");
            }
            stops
        });
        // Who knows no tasks leaves no mark that a write could look for: between the look at the
        // names and the write, two VMs get the name, and each has its own disks.
        assert!(refused > 2 && recorded <= 2, "{case:?}: {refused} and {recorded}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_vm_that_somebody_starts_before_it_is_whole_is_theirs_with_its_disks() {
    for (case, step) in [(Case::Create, 2), (Case::Provision, 1)] {
        at_each_call!(call, step, {
            let world = World::new(case).await;
            let worker = world.worker("hv1", call).await;
            let stops = world.stops(&worker).await;
            world.look_freely();
            let view = world.store.fresh().await.expect("the tree is open");
            let is_made = view.vms.get(&NEW).is_some_and(|vm| vm.state == VmState::Provision);
            if is_made {
                world.write(|changes| _ = changes.vm(NEW, VmChange::State(VmState::Start))).await;
            }
            worker.gate.open();
            let end = world.end().await;
            if is_made {
                let view = world.store.fresh().await.expect("the tree is open");
                let at = format!("{case:?} at call {call}: {end:?}");
                assert_eq!(view.vms[&NEW].state, VmState::Start, "{at}");
                for volume in world.new_volumes() {
                    let disk = world.storage.volume(&id(volume)).await;
                    assert!(disk.is_ok(), "{volume}, {at}");
                }
            }
            stops
        });
    }
}
