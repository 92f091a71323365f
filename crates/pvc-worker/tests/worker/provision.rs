//! VMs that are made by scripts, which fail, hang, end or lose their worker at each of its calls.

mod course;
mod mapped;
mod other_vms;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use pvc_model::job::provision::Provision;
use pvc_model::job::{JobState, JobVm, JobWork};
use pvc_model::node::{DaemonState, DomainState, NodeFigures};
use pvc_model::provisioner::{
    Catalog, Class, Named, NetworkTemplate, PROVISIONER, Profile, StorageTemplate, SystemTemplate,
    TemplateDisk,
};
use pvc_model::storage::{PoolName, VolumeId};
use pvc_model::vm::{MigrationMethod, Selector, VmState};
use pvc_model::{NodeName, Uuid};
use pvc_ports::{
    BlockDevices, DatabaseError, Op, ScriptFailure, ScriptMessage, ScriptOrder, ScriptPhase,
    Storage, VolumeInfo,
};
use pvc_provisioner::ProvisionerError;
use pvc_store::{Change, Changes, NewVm, NodeChange, Report, VmChange};
use pvc_testkit::{MemoryDevices, MemoryFiles, ScriptAct, ScriptedScripts};
use pvc_worker::{Profiles, ScriptSettings, ScriptTools};
use serde_json::{Map, Value, json};

use crate::crashes::{AWAY, Case, NEW, UUID, World, id, web1, xml};

/// The volumes that the script makes: one new, one a copy.
pub const VOLUMES: [&str; 2] = ["vms/new_sda", "vms/new_sdb"];

/// The longest that a method may take.
const PHASE_TIME: Duration = Duration::from_secs(100);

/// The longest that all methods may take together.
const WHOLE_TIME: Duration = Duration::from_secs(150);

/// The profile `small`, in a database that fails at some of its reads.
#[derive(Default)]
pub struct OneProfile {
    reads: AtomicUsize,
    failing: Mutex<Range<usize>>,
    is_unnamed: AtomicBool,
    alters: Mutex<Option<fn(&mut Catalog)>>,
}

impl OneProfile {
    /// Has the reads with these numbers fail, counted from 0.
    fn fail(&self, reads: Range<usize>) {
        *self.failing.lock().expect("nothing panics while it holds it") = reads;
    }

    /// Has the workers that are started from now on have no database.
    fn unname(&self) {
        self.is_unnamed.store(true, Ordering::Relaxed);
    }

    /// Has somebody change what is kept before it is read.
    fn alter(&self, alters: fn(&mut Catalog)) {
        *self.alters.lock().expect("nothing panics while it holds it") = Some(alters);
    }

    fn read(&self) -> Result<(), ProvisionerError> {
        let number = self.reads.fetch_add(1, Ordering::Relaxed);
        let failing = self.failing.lock().expect("nothing panics while it holds it");
        match failing.contains(&number) {
            true => Err(DatabaseError::Unreachable { why: "it restarts".to_owned() }.into()),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Profiles for OneProfile {
    async fn catalog(&self) -> Result<Catalog, ProvisionerError> {
        self.read()?;
        let text = str::to_owned;
        let alters = *self.alters.lock().expect("nothing panics while it holds it");
        let disk = TemplateDisk {
            id: 1,
            pool: text("vms"),
            disk_id: text("sda"),
            size_gib: Some(1),
            filesystem: Some(text("ext4")),
            ..Default::default()
        };
        let mut catalog = Catalog {
            system_templates: vec![SystemTemplate {
                id: 1,
                vcpus: 1,
                vram_mib: 512,
                node_limit: Some(text("hv1")),
                node_selector: Some(text("load")),
                ..Default::default()
            }],
            network_templates: vec![NetworkTemplate { id: 1, ..Default::default() }],
            storage_templates: vec![StorageTemplate {
                id: 1,
                disks: vec![disk],
                ..Default::default()
            }],
            scripts: vec![Named { id: 1, name: text("noop") }],
            profiles: vec![Profile {
                id: 1,
                name: text("small"),
                source: text(PROVISIONER),
                system_template: 1,
                network_template: Some(1),
                storage_template: Some(1),
                script: 1,
                ..Default::default()
            }],
            ..Default::default()
        };
        if let Some(alter) = alters {
            alter(&mut catalog);
        }
        Ok(catalog)
    }

    async fn text(&self, _: Class, _: &str) -> Result<Option<String>, ProvisionerError> {
        self.read()?;
        Ok(Some("pass".to_owned()))
    }
}

pub fn wanted() -> Provision {
    Provision {
        vm: JobVm { name: "new".to_owned(), uuid: Some(NEW) },
        profile: "small".to_owned(),
        define: true,
        start: false,
        refuse_memory_overcommit: false,
        arguments: vec!["a=1".to_owned()],
    }
}

/// The files of a node with the program that makes the filesystem of the profile.
pub fn programs() -> Arc<MemoryFiles> {
    let files = MemoryFiles::new();
    files.insert(std::path::Path::new("/usr/sbin/mkfs.ext4"), b"");
    Arc::new(files)
}

pub fn tools(
    profiles: &Arc<OneProfile>,
    scripts: &ScriptedScripts,
    devices: MemoryDevices,
    files: &Arc<MemoryFiles>,
) -> ScriptTools {
    let is_named = !profiles.is_unnamed.load(Ordering::Relaxed);
    ScriptTools {
        profiles: is_named.then(|| profiles.clone() as Arc<dyn Profiles>),
        scripts: Arc::new(scripts.clone()),
        devices: Arc::new(devices),
        files: files.clone(),
        lists: |_, function, _| (function == "vm.get_list").then(|| Ok(json!([]))),
        settings: ScriptSettings {
            phase_time: PHASE_TIME,
            whole_time: WHOLE_TIME,
            memory_bytes: 1 << 30,
            removed_volumes_stay: Duration::from_secs(3600),
            numbers_vms: true,
            architecture: "x86_64".to_owned(),
            monitors: Vec::new(),
            monitor_port: 6789,
            monitor_secret: String::new(),
            config: Map::new(),
        },
    }
}

/// Has the node of the tests run.
pub fn ready(changes: &mut Changes) {
    runs(changes, "hv1");
}

/// Has a node run.
fn runs(changes: &mut Changes, node: &str) {
    let name = || NodeName::new(node);
    changes.push(Change::Node(name(), NodeChange::Daemon(DaemonState::Run)));
    changes.push(Change::Node(name(), NodeChange::Domain(DomainState::Ready)));
}

/// Memory that it has for VMs.
pub fn figures() -> Report {
    figures_of("hv1", 8192, 0.0)
}

/// Figures of a node with so much memory free, and this load.
fn figures_of(node: &str, memory_free_mib: u64, load: f64) -> Report {
    let total = 8192;
    let figures =
        NodeFigures { memory_total_mib: total, memory_free_mib, load, ..NodeFigures::default() };
    Report::Figures(NodeName::new(node), figures)
}

fn new_xml() -> String {
    let xml = xml().replace("web1", "new");
    xml.replace(&UUID.to_string(), &NEW.to_string())
}

fn call(function: &str, arguments: Value) -> ScriptAct {
    let Value::Object(arguments) = arguments else { panic!("arguments have names") };
    ScriptAct::Send(ScriptMessage::Call { function: function.to_owned(), arguments })
}

fn done(value: Value) -> ScriptAct {
    ScriptAct::Send(ScriptMessage::Done(value))
}

fn failed() -> ScriptAct {
    let (class, text) = ("ProvisioningError".to_owned(), "it went wrong".to_owned());
    ScriptAct::Send(ScriptMessage::Failed(ScriptFailure { class, text, ..Default::default() }))
}

/// A script that makes both volumes and maps one of them.
pub fn script() -> ScriptedScripts {
    let scripts = ScriptedScripts::new();
    scripts.set("create", [done(new_xml().into())]);
    let sized = json!({"pool": "vms", "name": "new_sda", "size": "1G", "force_flag": true});
    let copied = json!({"pool": "vms", "name_src": "data", "name_new": "new_sdb",
                        "force_flag": true});
    let add = call("ceph.add_volume", sized);
    let copy = call("ceph.clone_volume", copied);
    scripts.set("prepare", [add, copy, done(Value::Null)]);
    let named = || json!({"pool": "vms", "name": "new_sda"});
    let (map, unmap) = (call("ceph.map_volume", named()), call("ceph.unmap_volume", named()));
    scripts.set("install", [map, done(Value::Null)]);
    scripts.set("cleanup", [unmap, done(Value::Null)]);
    scripts
}

impl World {
    /// Asserts that nothing of a script is left, and of what it made all or nothing.
    async fn assert_nothing_left(&self, at: &str) {
        self.assert_whole(at).await;
        assert_eq!(self.scripts.running(), 0, "{at}: {:?}", self.progress());
        assert_eq!(self.devices.mapped(), [], "{at}: {:?}", self.progress());
    }

    /// Asserts the same of a script that goes on without what a call did not make.
    async fn assert_nothing_half(&self, end: &JobState, at: &str) {
        match end {
            JobState::Succeeded => self.look_freely(),
            _ => self.assert_nothing_left(at).await,
        }
        let volumes = self.storage.volumes(&PoolName::new("vms")).await.expect("it is back");
        let is_making = |volume: &VolumeInfo| volume.id.volume.as_str().starts_with("creating");
        assert!(!volumes.iter().any(is_making), "{at}: {volumes:?}");
        assert_eq!((self.scripts.running(), self.devices.mapped()), (0, vec![]), "{at}");
    }
}

/// Calls of the worker, `step` by `step`, until the job ends before the last.
macro_rules! at_calls {
    ($call:ident, $step:expr, $body:block) => {
        for $call in (0..).step_by($step) {
            assert!($call < 500, "it never ends");
            if !$body {
                assert!($call > 20, "the calls are counted");
                break;
            }
        }
    };
}
use at_calls;

#[tokio::test(start_paused = true)]
async fn a_vm_whose_worker_dies_at_any_call_is_taken_back_or_whole() {
    let mut ends = Vec::new();
    at_calls!(call, 1, {
        let world = World::new(Case::Provision).await;
        let first = world.worker("hv1", call).await;
        let stops = world.stops(&first).await;
        first.die().await;
        world.healthy_worker("hv1").await;
        ends.push(world.end().await.state);
        world.assert_nothing_left(&format!("at call {call}")).await;
        stops
    });
    assert!(ends.contains(&JobState::Failed) && ends.contains(&JobState::Succeeded), "{ends:?}");
}

#[tokio::test(start_paused = true)]
async fn a_vm_whose_workers_die_twice_is_taken_back_or_whole() {
    at_calls!(call, 9, {
        let mut stops = false;
        for again in (0..).step_by(7) {
            let world = World::new(Case::Provision).await;
            let first = world.worker("hv1", call).await;
            stops = world.stops(&first).await;
            first.die().await;
            let second = world.worker("hv1", again).await;
            let stops_again = stops && world.stops(&second).await;
            second.die().await;
            world.healthy_worker("hv1").await;
            world.end().await;
            world.assert_nothing_left(&format!("at calls {call} and {again}")).await;
            if !stops_again {
                break;
            }
        }
        stops
    });
}

#[tokio::test(start_paused = true)]
async fn a_vm_that_is_cancelled_at_any_call_is_taken_back_or_whole() {
    let mut ends = Vec::new();
    at_calls!(call, 1, {
        let world = World::new(Case::Provision).await;
        let worker = world.worker("hv1", call).await;
        let stops = world.stops(&worker).await;
        if stops {
            world.cancel().await;
        }
        worker.gate.open();
        ends.push(world.end().await.state);
        world.assert_nothing_left(&format!("cancelled at call {call}")).await;
        stops
    });
    assert!(ends.contains(&JobState::Cancelled), "{ends:?}");
}

/// The worker stands still, its session ends, another one takes the job to its end, then the first
/// one goes on.
#[tokio::test(start_paused = true)]
async fn a_worker_that_has_lost_a_new_vm_and_does_not_know_leaves_nothing_half() {
    at_calls!(call, 1, {
        let world = World::new(Case::Provision).await;
        let slow = world.worker("hv1", call).await;
        let stops = world.stops(&slow).await;
        let owner = Op::Delete { path: format!("/tasks/{}/owner", world.job), version: None };
        // Before it is claimed and after it has ended there is none.
        let _ = world.tree.connect().multi(vec![owner]).await;
        world.healthy_worker("hv1").await;
        slow.gate.open();
        world.end().await;
        tokio::time::sleep(Duration::from_secs(300)).await;
        world.assert_nothing_left(&format!("slow at call {call}")).await;
        stops
    });
}

#[tokio::test(start_paused = true)]
async fn a_vm_whose_worker_loses_the_store_at_any_call_is_taken_back_or_whole() {
    let mut ends = Vec::new();
    at_calls!(call, 1, {
        let world = World::new(Case::Provision).await;
        let worker = world.worker("hv1", call).await;
        let stops = world.stops(&worker).await;
        worker.tree.cut();
        worker.gate.open();
        tokio::time::sleep(AWAY).await;
        worker.tree.mend();
        let state = world.end().await.state;
        world.assert_nothing_half(&state, &format!("the store was away at call {call}")).await;
        ends.push(state);
        stops
    });
    assert!(ends.contains(&JobState::Failed) && ends.contains(&JobState::Succeeded), "{ends:?}");
}

#[tokio::test(start_paused = true)]
async fn a_vm_whose_storage_fails_at_any_call_is_taken_back_when_it_is_back() {
    at_calls!(call, 1, {
        let world = World::new(Case::Provision).await;
        let worker = world.worker("hv1", call).await;
        let stops = world.stops(&worker).await;
        world.storage.set_failing(true);
        worker.gate.open();
        tokio::time::sleep(AWAY).await;
        world.storage.set_failing(false);
        let state = world.end().await.state;
        world.assert_nothing_half(&state, &format!("failing from call {call} on")).await;
        stops
    });
}

/// The task goes on to its end after the backup and is forgotten, as a day later; then the backup
/// is restored.
#[tokio::test(start_paused = true)]
async fn a_finished_vm_outlives_the_restore_of_a_backup_of_any_moment_of_its_making() {
    at_calls!(call, 3, {
        let world = World::new(Case::Provision).await;
        let worker = world.worker("hv1", call).await;
        let stops = world.stops(&worker).await;
        let backup = world.store.backup(true).await.expect("the tree is open");
        worker.gate.open();
        let end = world.end().await;
        assert_eq!(end.state, JobState::Succeeded, "at call {call}: {end:?}");
        tokio::time::sleep(Duration::from_secs(60)).await;
        let job = || world.job.clone();
        world.write(|changes| _ = changes.push(Change::RemoveJob(job()))).await;
        world.store.restore(&backup).await.expect("a dump of this store");
        tokio::time::sleep(Duration::from_secs(300)).await;
        world.look_freely();
        let view = world.store.fresh().await.expect("the tree is open");
        assert!(view.jobs.is_empty() && view.holds.is_empty(), "at call {call}");
        let state = view.vms.get(&NEW).map(|vm| vm.state.clone());
        let is_off = matches!(state, Some(VmState::Stop | VmState::Disable));
        assert!(is_off, "at call {call}: {state:?}");
        for volume in VOLUMES {
            assert!(world.storage.volume(&id(volume)).await.is_ok(), "{volume} at call {call}");
        }
        stops
    });
}

async fn identity(world: &World, volume: &VolumeId) -> Option<String> {
    world.storage.measured(volume).await.ok().map(|measured| measured.identity)
}

/// Somebody makes a volume of the same name in the middle of it: it is theirs, and stays.
#[tokio::test(start_paused = true)]
async fn a_volume_that_is_called_as_that_of_a_script_meanwhile_is_left_alone() {
    let disk = id(VOLUMES[0]);
    at_calls!(call, 1, {
        let world = World::new(Case::Provision).await;
        let worker = world.worker("hv1", call).await;
        let stops = world.stops(&worker).await;
        world.look_freely();
        let is_strange = world.storage.volume(&disk).await.is_err();
        if is_strange {
            world.storage.insert(VOLUMES[0]);
        }
        let before = identity(&world, &disk).await;
        worker.gate.open();
        let end = world.end().await;
        if is_strange {
            assert_eq!(identity(&world, &disk).await, before, "at call {call}: {end:?}");
        }
        stops
    });
}

#[tokio::test(start_paused = true)]
async fn a_script_that_fails_hangs_or_ends_in_any_method_leaves_nothing() {
    let phases = ["import", "setup", "create", "prepare", "install", "cleanup"];
    let odd = [
        failed(),
        ScriptAct::Hang,
        ScriptAct::Die,
        ScriptAct::Send(ScriptMessage::Ready),
        done(Value::Null),
    ];
    for phase in phases {
        for (number, act) in odd.iter().enumerate() {
            // These are what is expected there.
            let is_usual = match phase {
                "import" => number == 3,
                "create" => false,
                _ => number == 4,
            };
            if is_usual {
                continue;
            }
            let world = World::new(Case::Provision).await;
            world.scripts.set(phase, [act.clone()]);
            world.healthy_worker("hv1").await;
            let end = world.end().await;
            let at = format!("{act:?} in {phase}");
            assert_eq!(end.state, JobState::Failed, "{at}: {end:?}");
            let name = if phase == "import" { "loading" } else { phase };
            assert!(end.status.contains(name), "{at}: {}", end.status);
            world.assert_nothing_left(&at).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_script_cleans_up_after_it_has_failed() {
    for (phase, cleans) in [("setup", true), ("install", true), ("import", false)] {
        let world = World::new(Case::Provision).await;
        world.scripts.set(phase, [failed()]);
        world.healthy_worker("hv1").await;
        let end = world.end().await;
        assert!(end.status.ends_with("ProvisioningError: it went wrong"), "{}", end.status);
        let cleanup = ScriptOrder::Run(pvc_ports::ScriptPhase::Cleanup);
        assert_eq!(world.scripts.answers().contains(&cleanup), cleans, "{phase}");
    }
}

#[tokio::test(start_paused = true)]
async fn xml_that_is_none_or_of_another_vm_is_refused() {
    let other_name = new_xml().replace("<name>new", "<name>old");
    let other_uuid = new_xml().replace(&NEW.to_string(), &UUID.to_string());
    let long = format!("{}<!--{}-->", new_xml(), " ".repeat(256 << 10));
    for xml in
        [json!(1), json!(""), json!("<domain>"), json!(other_name), json!(other_uuid), json!(long)]
    {
        let world = World::new(Case::Provision).await;
        world.scripts.set("create", [done(xml.clone())]);
        world.healthy_worker("hv1").await;
        let end = world.end().await;
        assert_eq!(end.state, JobState::Failed, "{end:?}");
        assert!(end.status.contains("create()"), "{}", end.status);
        world.assert_nothing_left(&end.status).await;
    }
}

#[tokio::test(start_paused = true)]
async fn calls_are_checked_as_requests_are() {
    let volume = |name: &str, size: &str| {
        let force = false;
        json!({"pool": "vms", "name": name, "size": size, "force_flag": force})
    };
    let other = json!({"pool": "none", "name": "x", "size": "1G"});
    let calls = [
        ("ceph.add_volume", volume("data", "1G"), "exists already"),
        ("ceph.add_volume", volume("../x", "1G"), "../x"),
        ("ceph.add_volume", volume("x", "much"), "much"),
        ("ceph.add_volume", other, "none"),
        ("ceph.remove_volume", json!({"pool": "vms", "name": "web1_sda"}), "web1"),
        ("ceph.map_volume", json!({"pool": "vms", "name": "web1_sda"}), "not off"),
        ("ceph.map_volume", json!({"pool": "none", "name": "x"}), "no pool"),
        ("ceph.unmap_volume", json!({"pool": "vms", "name": "data"}), "not mapped"),
    ];
    let world = World::new(Case::Provision).await;
    world.write(|changes| _ = changes.vm(UUID, VmChange::State(VmState::Start))).await;
    let asked = calls.iter().map(|(function, arguments, _)| call(function, arguments.clone()));
    let unknown = [call("zk.delete", json!({"keys": []})), call("ceph.add_volume", json!({}))];
    let acts: Vec<_> = asked.chain(unknown).chain([done(Value::Null)]).collect();
    world.scripts.set("setup", acts);
    world.healthy_worker("hv1").await;
    assert_eq!(world.end().await.state, JobState::Succeeded);
    let answers = world.scripts.answers();
    let refused: Vec<&Value> = answers
        .iter()
        .filter_map(|answer| match answer {
            ScriptOrder::Returned(value) if value[0] == false => Some(&value[1]),
            _ => None,
        })
        .collect();
    assert_eq!(refused.len(), calls.len(), "{refused:?}");
    for ((function, arguments, why), found) in calls.iter().zip(refused) {
        let found = found.as_str().expect("a message");
        assert!(found.contains(why), "{function} {arguments}: {found}");
    }
    let raised = answers.iter().filter(|answer| matches!(answer, ScriptOrder::Raised(_)));
    assert_eq!(raised.count(), 2);
}

impl World {
    /// Waits for a state of what scripts leave, or of what they make.
    async fn until(&self, ready: impl AsyncFn() -> bool) {
        for _ in 0..600 {
            if ready().await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        panic!("it never comes so far: {:?}", self.progress());
    }

    /// A job whose script hangs in `install`, when it has made its volumes.
    async fn hanging() -> World {
        let world = World::new(Case::Provision).await;
        let named = |name: &str| json!({"pool": "vms", "name": name});
        let maps = VOLUMES.map(|disk| call("ceph.map_volume", named(&disk[4..])));
        let acts: Vec<_> = maps.into_iter().chain([ScriptAct::Hang]).collect();
        world.scripts.set("install", acts);
        world
    }

    async fn until_mapped(&self) {
        self.until(async || self.devices.mapped().len() == VOLUMES.len()).await;
    }
}

impl World {
    /// A job whose script maps a volume, which is not its VM's, before anything else.
    async fn mapping(volume: &str, then: ScriptAct) -> World {
        let world = World::new(Case::Provision).await;
        let map = call("ceph.map_volume", json!({"pool": "vms", "name": volume}));
        world.scripts.set("setup", [map, then]);
        world
    }

    async fn start_web1(&self) -> Result<(), String> {
        let ask = pvc_ops::vm::StateAsk::new(pvc_model::request::StateRequest::Start, false);
        let started = pvc_ops::vm::set_state(&self.store, "web1", ask).await;
        started.map(drop).map_err(|why| why.to_string())
    }

    /// Has the volume held for a script of node `hv1` that no process runs.
    async fn hold_for_former(&self, volume: &str) {
        let (volume, by) = (id(volume), "somebody".to_owned());
        let former = pvc_model::job::JobId::from_bits(9);
        let purpose = pvc_model::hold::Purpose::Mapped([(former, NodeName::new("hv1"))].into());
        let hold = pvc_model::hold::VolumeHold { volume, purpose, by };
        self.write(|changes| _ = changes.push(Change::HoldVolume(hold.clone()))).await;
    }

    async fn held(&self) -> Vec<VolumeId> {
        let view = self.store.fresh().await.expect("the tree is open");
        view.holds.keys().cloned().collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_another_vm_uses_by_now_is_not_taken_back() {
    let other = Uuid::from_u128(77);
    for undefines in [false, true] {
        let world = World::hanging().await;
        world.healthy_worker("hv1").await;
        world.until_mapped().await;
        let theirs = || NewVm {
            uuid: other,
            name: "other".into(),
            xml: new_xml().replace(&NEW.to_string(), &other.to_string()).replace("new_sdb", "no"),
            volumes: vec![id(VOLUMES[0])],
            ..web1()
        };
        if undefines {
            world.write(|changes| _ = changes.push(Change::RemoveVm(NEW))).await;
        } else {
            world.write(|changes| _ = changes.push(Change::DefineVm(Box::new(theirs())))).await;
        }
        world.cancel().await;
        let end = world.end().await;
        assert_eq!(end.state, JobState::Cancelled, "{end:?}");
        let [first, second] = VOLUMES.map(id);
        assert!(world.storage.volume(&first).await.is_ok(), "{end:?}");
        // Those of a VM that somebody has undefined may be anybody's.
        assert_eq!(world.storage.volume(&second).await.is_ok(), undefines, "{end:?}");
        let why = if undefines { "is not this task's" } else { "stays: VM `other` uses" };
        assert!(end.log.iter().any(|line| line.contains(why)), "{:?}", end.log);
        assert_eq!((world.scripts.running(), world.devices.mapped()), (0, vec![]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_script_that_takes_no_answer_is_ended_in_its_time_or_when_it_is_cancelled() {
    for cancels in [false, true] {
        let world = World::new(Case::Provision).await;
        let absent = json!({"pool": "vms", "name": "absent"});
        let asks = call("ceph.remove_volume", absent);
        world.scripts.set("setup", [ScriptAct::Deafen, asks, done(Value::Null)]);
        world.healthy_worker("hv1").await;
        world.until(async || world.progress().current == 4).await;
        if cancels {
            world.cancel().await;
        }
        let end = world.end().await;
        let expected = if cancels { JobState::Cancelled } else { JobState::Failed };
        assert_eq!(end.state, expected, "{end:?}");
        assert!(cancels || end.status.contains("took longer than 100 s"), "{}", end.status);
        world.assert_nothing_left("after it was deaf").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_script_whose_methods_keep_to_their_times_is_ended_when_that_of_all_is_over() {
    let world = World::new(Case::Provision).await;
    // Less than a method may take, and twice of it more than all may.
    let work = || ScriptAct::Work(Duration::from_secs(90));
    world.scripts.set("setup", [work(), done(Value::Null)]);
    world.scripts.set("create", [work(), done(new_xml().into())]);
    world.healthy_worker("hv1").await;
    let end = world.end().await;
    assert_eq!(end.state, JobState::Failed, "{end:?}");
    let said = "error in create(): it took longer than ";
    let (_, seconds) = end.status.split_once(said).expect(&end.status);
    let (seconds, _) = seconds.split_once(" s").expect(&end.status);
    let left: u64 = seconds.parse().expect("a number of seconds");
    assert!((50..=60).contains(&left), "what setup() has left of 150 s: {left}");
    world.assert_nothing_left("after all of its time").await;
}

#[tokio::test(start_paused = true)]
async fn a_cleanup_that_fails_is_not_called_again() {
    let world = World::new(Case::Provision).await;
    world.scripts.set("cleanup", [failed()]);
    world.healthy_worker("hv1").await;
    assert_eq!(world.end().await.state, JobState::Failed);
    let cleanup = ScriptOrder::Run(pvc_ports::ScriptPhase::Cleanup);
    let answers = world.scripts.answers();
    assert_eq!(answers.iter().filter(|answer| **answer == cleanup).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_script_may_change_the_volumes_of_its_own_vm_when_that_is_recorded() {
    let world = World::new(Case::Provision).await;
    let sized = |name: &str, size: &str| {
        let force = true;
        json!({"pool": "vms", "name": name, "size": size, "force_flag": force})
    };
    let snapshot = || json!({"pool": "vms", "volume": "new_sda", "name": "s"});
    let calls = [
        call("ceph.add_volume", sized("new_sda", "1G")),
        call("ceph.add_volume", sized("new_sdb", "1G")),
        call("ceph.add_snapshot", snapshot()),
        call("ceph.rollback_snapshot", snapshot()),
        call("ceph.remove_snapshot", snapshot()),
        call("ceph.resize_volume", sized("new_sda", "512M")),
        call("ceph.rename_volume", json!({"pool": "vms", "name": "new_sda", "new_name": "x"})),
        call("ceph.remove_volume", json!({"pool": "vms", "name": "new_sdb"})),
    ];
    let number = calls.len();
    let acts: Vec<_> = calls.into_iter().chain([done(Value::Null)]).collect();
    world.scripts.set("prepare", acts);
    world.scripts.set("install", [done(Value::Null)]);
    world.scripts.set("cleanup", [done(Value::Null)]);
    world.healthy_worker("hv1").await;
    let end = world.end().await;
    assert_eq!(end.state, JobState::Succeeded, "{end:?}");
    let answers = world.scripts.answers();
    let is_done =
        |answer: &&ScriptOrder| matches!(answer, ScriptOrder::Returned(value) if value[0] == true);
    assert_eq!(answers.iter().filter(is_done).count(), number, "{answers:?}");
    assert!(end.log.iter().any(|line| line.contains("vms/new_sda@s")), "{:?}", end.log);
    assert!(world.storage.volume(&id("vms/x")).await.is_ok());
    assert!(world.storage.volume(&id(VOLUMES[1])).await.is_err());
}

impl World {
    /// Answers to a script's calls in `setup`, with the reasons of those that raise.
    async fn answers_to(&self, calls: Vec<ScriptAct>) -> Vec<Result<Value, String>> {
        self.answers_in("setup", ScriptPhase::Setup, calls).await
    }

    /// The same in the method of that name.
    async fn answers_in(
        &self,
        method: &'static str,
        phase: ScriptPhase,
        calls: Vec<ScriptAct>,
    ) -> Vec<Result<Value, String>> {
        let acts: Vec<_> = calls.into_iter().chain([done(Value::Null)]).collect();
        self.scripts.set(method, acts);
        self.healthy_worker("hv1").await;
        let end = self.end().await;
        assert_eq!(end.state, JobState::Succeeded, "{end:?}");
        let answer = |order| match order {
            ScriptOrder::Returned(value) => Some(Ok(value)),
            ScriptOrder::Raised(why) => Some(Err(why)),
            ScriptOrder::Run(_) => None,
        };
        let orders = self.scripts.answers().into_iter();
        let of_method = orders.skip_while(|order| *order != ScriptOrder::Run(phase)).skip(1);
        of_method.map_while(answer).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_whose_database_restarts_in_the_middle_fails_with_that_and_leaves_nothing() {
    // Once or always, from the first read on or from that of the script's text.
    for failing in [0..1, 1..2, 0..usize::MAX, 1..usize::MAX] {
        let world = World::new(Case::Provision).await;
        world.profiles.fail(failing.clone());
        world.healthy_worker("hv1").await;
        let end = world.end().await;
        assert_eq!(end.state, JobState::Failed, "{failing:?}: {end:?}");
        let said = "the provisioner's database cannot be used: the database cannot be reached";
        assert!(end.status.contains(said), "{failing:?}: {}", end.status);
        assert_eq!(world.scripts.answers(), [], "no script has begun");
        world.assert_nothing_left(&format!("{failing:?}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_script_begins_on_a_node_that_cannot_make_the_filesystems_of_the_profile() {
    let world = World::new(Case::Provision).await;
    world.files.set_refusing(|_| true);
    world.healthy_worker("hv1").await;
    let progress = world.end().await;
    assert_eq!(progress.state, JobState::Failed);
    let said = "the filesystems of the profile need `mkfs.ext4`, which node `hv1` has not";
    assert!(progress.status.contains(said), "{progress:?}");
    world.assert_nothing_left("without the program").await;
}

#[tokio::test(start_paused = true)]
async fn a_vm_is_recorded_with_its_profile_and_what_the_template_says_beside_its_xml() {
    let world = World::new(Case::Provision).await;
    world.profiles.alter(|kept| {
        let system = &mut kept.system_templates[0];
        system.node_autostart = true;
        system.migration_method = Some("shutdown".to_owned());
        system.migration_max_downtime = Some(250);
    });
    world.healthy_worker("hv1").await;
    assert_eq!(world.end().await.state, JobState::Succeeded);
    let view = world.store.fresh().await.expect("the tree is open");
    let vm = view.vm("new").expect("it was made");
    assert_eq!(vm.node_limit, [NodeName::new("hv1")]);
    assert_eq!(vm.selector, Some(Selector::Load));
    assert_eq!((vm.autostart, vm.max_downtime_ms), (true, 250));
    assert_eq!(vm.migration_method, Some(MigrationMethod::Shutdown));
    assert_eq!(vm.profile.as_deref(), Some("small"));
}

#[tokio::test(start_paused = true)]
async fn a_script_reads_records_but_no_secrets_and_writes_none() {
    let world = World::new(Case::Provision).await;
    let key = |function: &str, key: &str| call(function, json!({ "key": key }));
    let read = vec![
        key("zk.read", &format!("/domains/{UUID}")),
        key("zk.read", "/domains/none"),
        key("zk.exists", "/nodes/hv1"),
        key("zk.exists", "/nodes/hv9"),
        key("zk.children", "/nodes"),
        key("zk.children", "/nodes/none"),
        key("zk.children", "/"),
    ];
    let closed = "not for scripts";
    let refused = [
        (key("zk.read", "/nodes/hv1/ipmipassword"), closed),
        (key("zk.read", "/tasks"), closed),
        (key("zk.children", "/none"), closed),
        (key("zk.read", "/tasks/one/secrets"), closed),
        (key("zk.read", "/pvcrs/passwords/hv1"), closed),
        (key("zk.read", "/patroni/pvc/leader"), closed),
        (key("zk.exists", "/zookeeper/config"), closed),
        (key("zk.read", "/nodes/../nodes/hv1"), "is no path"),
        (key("zk.read", "nodes"), "is no path"),
        (key("zk.children", ""), "is no path"),
        (call("zk.read", json!({})), "is no text"),
        (call("zk.write", json!({"pairs": [["/config/maintenance", "true"]]})), "do not write"),
        (call("zk.delete", json!({"keys": ["/domains"], "recursive": true})), "do not write"),
    ];
    let (refused, reasons): (Vec<_>, Vec<_>) = refused.into_iter().unzip();
    let number = read.len();
    let answers = world.answers_to(read.into_iter().chain(refused).collect()).await;
    let (read, refused) = answers.split_at(number);
    let expected = [json!("web1"), Value::Null, json!(true), json!(false), json!(["hv1"])];
    let read: Vec<Value> = read.iter().map(|answer| answer.clone().expect("it is open")).collect();
    assert_eq!(read[..6], expected.into_iter().chain([Value::Null]).collect::<Vec<_>>());
    let root: Vec<&str> = read[6].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(root.contains(&"nodes") && !root.contains(&"tasks"), "{root:?}");
    for (answer, why) in refused.iter().zip(reasons) {
        assert!(answer.as_ref().is_err_and(|said| said.contains(why)), "{why}: {answer:?}");
    }
}

const OTHER: Uuid = Uuid::from_u128(77);
