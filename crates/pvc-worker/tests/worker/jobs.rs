//! The worker over the embedded tree, with a hypervisor and a storage that do as they are told.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use pvc_embedded::EmbeddedTree;
use pvc_model::Uuid;
use pvc_model::cluster::Cluster;
use pvc_model::hold::{Purpose, VolumeHold};
use pvc_model::job::{
    JobId, JobProgress, JobSpec, JobState, JobVm, JobWork, NotUnderstood, WorkerRecord,
    being_renamed_to,
};
use pvc_model::node::{DaemonNote, DaemonState, DomainState};
use pvc_model::storage::{SnapshotName, VolumeId};
use pvc_model::transfer::Transferred;
use pvc_model::vm::VmState;
use pvc_ports::{Clock, CreateMode, Hypervisor, Op, Storage};
use pvc_store::{Change, Changes, NewNode, NewVm, NodeChange, Report, Store, VmChange};
use pvc_testkit::{FlakyTree, MemoryStorage, ScriptedHypervisor, SeededRandom, TokioClock};
use pvc_worker::Worker;
use tokio_util::sync::CancellationToken;

use crate::common::{self, write};

const UUID: Uuid = Uuid::from_u128(0x2c2b8f4e_0d3e_4b6f_9d6d_0c9b6cf3f2a1);

struct World {
    tree: EmbeddedTree,
    store: Store,
    hypervisor: Arc<ScriptedHypervisor>,
    storage: Arc<MemoryStorage>,
    stop: CancellationToken,
}

impl World {
    /// A cluster with the VM `web1` in `state`, its volume, and a running worker.
    async fn with_vm(state: VmState) -> World {
        let world = World::without_worker(state).await;
        world.start_worker(world.store.clone());
        world
    }

    async fn without_worker(state: VmState) -> World {
        let tree = EmbeddedTree::in_memory();
        let store = open(&tree).await;
        store.initialize(false).await.expect("an empty tree");
        let world = World {
            tree,
            store,
            hypervisor: Arc::new(ScriptedHypervisor::new()),
            storage: Arc::new(MemoryStorage::new()),
            stop: CancellationToken::new(),
        };
        world.storage.insert("vms/web1_sda");
        world.change(Change::DefineVm(Box::new(web1(state)))).await;
        world
    }

    fn start_worker(&self, store: Store) {
        let worker = Worker::new(
            "hv1".into(),
            store,
            self.hypervisor.clone(),
            self.storage.clone(),
            Arc::new(TokioClock::new()),
            Arc::new(SeededRandom::new(2)),
        );
        let stop = self.stop.clone();
        tokio::spawn(async move { worker.run(stop).await });
    }

    async fn change(&self, change: Change) {
        write(&self.store, change).await;
    }

    async fn submit(&self, bits: u32, work: JobWork) -> JobId {
        self.submit_to("hv1", bits, work).await
    }

    async fn submit_to(&self, node: &str, bits: u32, work: JobWork) -> JobId {
        let id = JobId::from_bits(bits);
        let spec = JobSpec {
            id: id.clone(),
            work,
            node: node.into(),
            run_on: node.to_owned(),
            submitter: "test".into(),
            submitted_at: 1,
        };
        self.change(Change::SubmitJob(spec)).await;
        id
    }

    /// Adds a node that runs, with this address on the storage network.
    async fn add_node(&self, name: &str, address: &str) {
        let node = NewNode { name: name.into(), ..crate::crashes::hv1() };
        self.change(Change::AddNode(Box::new(node))).await;
        self.change(Change::Node(name.into(), NodeChange::Daemon(DaemonState::Run))).await;
        let storage_address = Some(address.to_owned());
        let note = DaemonNote { storage_address, ..DaemonNote::default() };
        let report = vec![Report::Daemon(name.into(), note, None)];
        self.store.report(report).await.expect("the tree is open");
    }

    async fn end_of(&self, id: &JobId) -> JobProgress {
        common::end_of(&self.store, id, Duration::from_secs(60)).await
    }
}

async fn open(tree: &EmbeddedTree) -> Store {
    common::open(tree.connect()).await
}

/// The VM as it is named by jobs that an earlier version recorded.
fn by_name(name: &str) -> JobVm {
    JobVm { name: name.into(), uuid: None }
}

fn flush_locks() -> JobWork {
    JobWork::FlushLocks { vm: by_name("web1") }
}

/// A job of another version.
fn other(name: &str) -> JobWork {
    let why = NotUnderstood::UnknownKind { name: name.into() };
    JobWork::Other { name: name.into(), vm: None, args: Vec::new(), why }
}

fn web1(state: VmState) -> NewVm {
    NewVm {
        uuid: UUID,
        name: "web1".into(),
        state,
        node: Some("hv1".into()),
        xml: String::new(),
        profile: None,
        volumes: vec![VolumeId::from_record("vms/web1_sda").expect("well formed")],
        autostart: false,
        migration_method: None,
        max_downtime_ms: 300,
        selector: None,
        node_limit: vec![],
        tags: vec![],
    }
}

#[tokio::test(start_paused = true)]
async fn the_locks_of_a_stopped_vm_are_freed() {
    let world = World::with_vm(VmState::Stop).await;
    world.storage.lock("vms/web1_sda", "10.0.0.9");
    let id = world.submit(1, flush_locks()).await;
    let end = world.end_of(&id).await;
    assert_eq!(
        (end.state, end.status.as_str()),
        (JobState::Succeeded, "freed 1 locks on 1 volumes of VM \"web1\"")
    );
    assert_eq!(end.current, end.total);
    let volume = VolumeId::from_record("vms/web1_sda").expect("well formed");
    assert!(world.storage.locks(&volume).await.expect("it is there").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_job_finds_its_vm_under_another_name() {
    let world = World::with_vm(VmState::Stop).await;
    world.storage.lock("vms/web1_sda", "10.0.0.9");
    // By the time the job is done `web1` is called `shop`.
    world.change(Change::Vm(UUID, VmChange::Name("shop".into()))).await;
    let called = |uuid| JobWork::FlushLocks { vm: JobVm { name: "web1".into(), uuid: Some(uuid) } };
    let id = world.submit(1, called(UUID)).await;
    assert_eq!(world.end_of(&id).await.status, "freed 1 locks on 1 volumes of VM \"shop\"");
    let id = world.submit(2, called(Uuid::from_u128(7))).await;
    assert_eq!(world.end_of(&id).await.status, "there is no VM `web1`");
}

#[tokio::test(start_paused = true)]
async fn the_locks_of_a_vm_that_may_run_are_left_alone() {
    let world = World::with_vm(VmState::Start).await;
    world.storage.lock("vms/web1_sda", "10.0.0.9");
    let id = world.submit(1, flush_locks()).await;
    let end = world.end_of(&id).await;
    assert_eq!(end.state, JobState::Failed);
    assert!(end.status.starts_with("VM `web1` is in state `start`"), "{}", end.status);
    let volume = VolumeId::from_record("vms/web1_sda").expect("well formed");
    assert_eq!(world.storage.locks(&volume).await.expect("it is there").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_locks_of_a_stopped_vm_that_still_runs_are_left_alone() {
    let world = World::with_vm(VmState::Stop).await;
    world.storage.lock("vms/web1_sda", "10.0.0.9");
    world.hypervisor.insert(UUID, "web1");
    let id = world.submit(1, flush_locks()).await;
    let end = world.end_of(&id).await;
    assert_eq!(end.state, JobState::Failed);
    assert!(end.status.starts_with("VM `web1` runs on node `hv1`; breaking"), "{}", end.status);
    let volume = VolumeId::from_record("vms/web1_sda").expect("well formed");
    assert_eq!(world.storage.locks(&volume).await.expect("it is there").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn locks_of_a_vm_of_another_node_are_freed_while_that_is_proven_dead_and_not_when_silent() {
    for (state, expected) in
        [(DaemonState::Fenced, JobState::Succeeded), (DaemonState::Dead, JobState::Failed)]
    {
        let world = World::without_worker(VmState::Stop).await;
        let node = NewNode { name: "hv2".into(), ..crate::crashes::hv1() };
        world.change(Change::AddNode(Box::new(node))).await;
        world.change(Change::Node("hv2".into(), NodeChange::Daemon(state))).await;
        world.change(Change::Vm(UUID, VmChange::Node("hv2".into()))).await;
        world.storage.lock("vms/web1_sda", "10.0.0.9");
        world.start_worker(world.store.clone());
        let id = world.submit(1, flush_locks()).await;
        let end = world.end_of(&id).await;
        assert_eq!(end.state, expected, "{}", end.status);
        let volume = VolumeId::from_record("vms/web1_sda").expect("well formed");
        let left = world.storage.locks(&volume).await.expect("it is there").len();
        assert_eq!(left, usize::from(expected == JobState::Failed));
    }
}

/// A node may have hundreds of guests.
#[tokio::test(start_paused = true)]
async fn the_guests_of_the_node_are_looked_at_once_for_all_locks_of_a_volume() {
    let world = World::without_worker(VmState::Stop).await;
    let other = Uuid::from_u128(7);
    world.hypervisor.insert(other, "db1");
    for address in ["10.0.0.7", "10.0.0.8", "10.0.0.9"] {
        world.storage.lock("vms/web1_sda", address);
    }
    world.start_worker(world.store.clone());
    let id = world.submit(1, flush_locks()).await;
    let end = world.end_of(&id).await;
    assert_eq!(end.status, "freed 3 locks on 1 volumes of VM \"web1\"");
    assert_eq!(world.hypervisor.count_of_xml(other), 1);
}

/// VM `db1`, whose only volume is that of `web1`, with its definition.
fn db1(state: VmState) -> NewVm {
    let uuid = Uuid::from_u128(7);
    let xml =
        xml().replace("<name>web1", "<name>db1").replace(&UUID.to_string(), &uuid.to_string());
    NewVm { uuid, name: "db1".to_owned(), xml, ..web1(state) }
}

/// Found in a review: each of them lost its disk.
#[tokio::test(start_paused = true)]
async fn a_lock_that_another_user_of_the_volume_may_hold_is_left_alone() {
    let volume = VolumeId::from_record("vms/web1_sda").expect("well formed");
    let used = "volume `vms/web1_sda` of VM `web1` is one of VM `db1`, too, which is not off; \
                breaking its lock may take the disk from its guest";
    let held_by = "node `hv2` is not proven dead, and has the lock on a volume of VM `web1`: \
                   something there may use it";
    for (user, expected) in [
        ("by its record", used),
        ("as a guest here", used),
        ("a rollback", "volume `vms/web1_sda` is being rolled back to snapshot `s1`"),
        ("another node", held_by),
        ("another node whose daemon was stopped", held_by),
    ] {
        let world = World::without_worker(VmState::Stop).await;
        world.storage.lock("vms/web1_sda", "10.0.0.9");
        match user {
            "by its record" => {
                world.change(Change::DefineVm(Box::new(db1(VmState::Start)))).await;
            }
            "as a guest here" => {
                let db1 = db1(VmState::Stop);
                world.hypervisor.start(db1.uuid, &db1.xml).await.expect("it can be started");
            }
            "a rollback" => {
                let purpose = Purpose::RollBack(SnapshotName::new("s1"));
                let (volume, by) = (volume.clone(), "somebody".to_owned());
                let hold = VolumeHold { volume, purpose, by };
                world.change(Change::HoldVolume(hold)).await;
            }
            _ => {
                let node = NewNode { name: "hv2".into(), ..crate::crashes::hv1() };
                world.change(Change::AddNode(Box::new(node))).await;
                let state = match user {
                    "another node" => DaemonState::Run,
                    _ => DaemonState::Stop,
                };
                world.change(Change::Node("hv2".into(), NodeChange::Daemon(state))).await;
                let storage_address = Some("10.0.0.9".to_owned());
                let note = DaemonNote { storage_address, ..DaemonNote::default() };
                let report = vec![Report::Daemon("hv2".into(), note, None)];
                world.store.report(report).await.expect("the tree is open");
            }
        }
        world.start_worker(world.store.clone());
        let id = world.submit(1, flush_locks()).await;
        let end = world.end_of(&id).await;
        assert_eq!((end.state, end.status.as_str()), (JobState::Failed, expected), "{user}");
        let left = world.storage.locks(&volume).await.expect("it is there").len();
        assert_eq!(left, 1, "{user}");
    }
}

/// Its own other volumes may have locks that are in its way.
#[tokio::test(start_paused = true)]
async fn a_lock_of_a_volume_that_a_vm_shares_with_one_that_is_not_off_stays() {
    let world = World::without_worker(VmState::Stop).await;
    let shares = |xml: String| xml.replace("<target", "<shareable/><target");
    let own = "<disk type='network' device='disk'><source protocol='rbd' name='vms/web1_sdb'/>\
               <target dev='sdb' bus='scsi'/></disk><console";
    let xml = shares(xml()).replace("<console", own);
    world.change(Change::Vm(UUID, VmChange::Xml(xml))).await;
    let partner = db1(VmState::Start);
    let partner = NewVm { xml: shares(partner.xml.clone()), ..partner };
    world.change(Change::DefineVm(Box::new(partner))).await;
    world.storage.lock("vms/web1_sda", "10.0.0.9");
    world.storage.lock("vms/web1_sdb", "10.0.0.9");
    world.start_worker(world.store.clone());
    let id = world.submit(1, flush_locks()).await;
    let end = world.end_of(&id).await;
    assert_eq!(
        end.status,
        "freed 1 locks on 2 volumes of VM \"web1\", left 1: a VM that shares the volume is not off \
         (see the log)"
    );
    let left = "left the lock that 10.0.0.9 holds on volume vms/web1_sda";
    assert!(end.log.iter().any(|line| line.contains(left)), "{:?}", end.log);
    for (name, expected) in [("vms/web1_sda", 1), ("vms/web1_sdb", 0)] {
        let volume = VolumeId::from_record(name).expect("well formed");
        let left = world.storage.locks(&volume).await.expect("it is there").len();
        assert_eq!(left, expected, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_device_is_attached_to_a_running_vm_and_refused_for_another() {
    let world = World::with_vm(VmState::Start).await;
    let device = "<interface type='bridge'><source bridge='br1'/></interface>";
    let attach = || JobWork::AttachDevice { vm: by_name("web1"), xml: device.into() };
    let id = world.submit(1, attach()).await;
    assert!(world.end_of(&id).await.status.contains("does not run on node `hv1`"));
    world.hypervisor.insert(UUID, "web1");
    let id = world.submit(2, attach()).await;
    assert_eq!(world.end_of(&id).await.state, JobState::Succeeded);
    let two = JobWork::DetachDevice { vm: by_name("web1"), xml: "<a/></devices><b/>".into() };
    let id = world.submit(3, two).await;
    assert_eq!(world.end_of(&id).await.state, JobState::Failed);
}

/// Both would write to it, or one would see the half of a rollback.
#[tokio::test(start_paused = true)]
async fn a_volume_that_another_vm_runs_with_or_that_is_held_or_locked_is_not_attached() {
    let world = World::with_vm(VmState::Start).await;
    world.hypervisor.insert(UUID, "web1");
    let disk = VolumeId::from_record("vms/db1_sda").expect("well formed");
    world.storage.insert("vms/db1_sda");
    let other = Uuid::from_u128(7);
    let xml = xml().replace("web1", "db1").replace(&UUID.to_string(), &other.to_string());
    let (name, volumes) = ("db1".to_owned(), vec![disk.clone()]);
    let db1 = NewVm { uuid: other, name, xml, volumes, ..web1(VmState::Start) };
    world.change(Change::DefineVm(Box::new(db1))).await;
    let attach = async |number: u32, more: &str| {
        let device = format!(
            "<disk type='network' device='disk'><source protocol='rbd' name='vms/db1_sda'/>\
             <target dev='sdb' bus='scsi'/>{more}</disk>"
        );
        let work = JobWork::AttachDevice { vm: by_name("web1"), xml: device };
        let id = world.submit(number, work).await;
        let end = world.end_of(&id).await;
        (end.state, end.status)
    };
    let refused = async |number: u32, more: &str, why: &str| {
        let (state, status) = attach(number, more).await;
        assert_eq!((state, status.as_str()), (JobState::Failed, why));
        let calls = world.hypervisor.calls();
        assert!(!calls.iter().any(|call| call.starts_with("device")), "{calls:?}");
    };
    let in_use = "volume `vms/db1_sda` is in use by VM `db1`, which is in state `start`";
    refused(1, "", in_use).await;
    world.change(Change::Vm(other, VmChange::State(VmState::Stop))).await;

    let (purpose, by) = (Purpose::RollBack(SnapshotName::new("s1")), "somebody".to_owned());
    world.change(Change::HoldVolume(VolumeHold { volume: disk.clone(), purpose, by })).await;
    let held = "volume `vms/db1_sda` is being rolled back to snapshot `s1`";
    refused(2, "", held).await;
    // A start would not see a half either.
    refused(3, "<shareable/>", held).await;
    world.change(Change::ReleaseVolume(disk.clone())).await;

    // As that of a guest that got it while it ran, which no record tells.
    world.storage.lock("vms/db1_sda", "10.0.0.9");
    refused(4, "", "volume `vms/db1_sda` is locked from 10.0.0.9").await;
    let locks = world.storage.locks(&disk).await.expect("it is there");
    world.storage.break_lock(&disk, &locks[0]).await.expect("it is there");
    assert_eq!(attach(5, "").await.0, JobState::Succeeded);
}

/// A disk of the volume `vms/db1_sda`, with this element of its own.
fn disk_of_db1(more: &str) -> String {
    format!(
        "<disk type='network' device='disk'><source protocol='rbd' name='vms/db1_sda'/>\
         <target dev='sdb' bus='scsi'/>{more}</disk>"
    )
}

/// VM `db1`, with the volume `vms/db1_sda`, and this element in its disk.
fn db1_with_its_own(more: &str) -> NewVm {
    let db1 = db1(VmState::Start);
    let xml = db1.xml.replace("vms/web1_sda", "vms/db1_sda");
    let xml = xml.replace("<target", &format!("{more}<target"));
    let volumes = vec![VolumeId::from_record("vms/db1_sda").expect("well formed")];
    NewVm { node: Some("hv2".into()), xml, volumes, ..db1 }
}

/// The lock of a shared volume goes from one guest to the other as they write. That of anybody else
/// would keep the VM from being started with it.
#[tokio::test(start_paused = true)]
async fn a_shared_volume_is_attached_beside_the_lock_of_a_partner_and_of_nobody_else() {
    let volume = VolumeId::from_record("vms/db1_sda").expect("well formed");
    let shareable = "<shareable/>";
    let of_hv2 = "volume `vms/db1_sda` is locked from 10.0.0.9, which is node `hv2`";
    let of_nobody = "volume `vms/db1_sda` is locked from 10.0.0.8";
    for (of_partner, runs, address, expected) in [
        (shareable, true, "10.0.0.9", None),
        (shareable, false, "10.0.0.9", Some(of_hv2)),
        ("", true, "10.0.0.9", Some(of_hv2)),
        (shareable, true, "10.0.0.8", Some(of_nobody)),
    ] {
        let world = World::with_vm(VmState::Start).await;
        world.hypervisor.insert(UUID, "web1");
        world.storage.insert("vms/db1_sda");
        let db1 = db1_with_its_own(of_partner);
        let running = if runs { vec![db1.uuid] } else { vec![] };
        world.change(Change::DefineVm(Box::new(db1))).await;
        world.add_node("hv2", "10.0.0.9").await;
        let report = vec![Report::Running("hv2".into(), running)];
        world.store.report(report).await.expect("the tree is open");
        world.storage.lock("vms/db1_sda", address);
        let xml = disk_of_db1(shareable);
        let id = world.submit(1, JobWork::AttachDevice { vm: by_name("web1"), xml }).await;
        let end = world.end_of(&id).await;
        let case = format!("{of_partner} {runs} {address}: {}", end.status);
        match expected {
            None => assert_eq!(end.state, JobState::Succeeded, "{case}"),
            Some(why) => {
                assert_eq!((end.state, end.status.as_str()), (JobState::Failed, why), "{case}");
            }
        }
        let left = world.storage.locks(&volume).await.expect("it is there").len();
        assert_eq!(left, 1, "{case}");
    }
}

/// Nobody has to end anything for it.
#[tokio::test(start_paused = true)]
async fn a_volume_whose_lock_may_be_freed_by_a_fence_is_attached_in_a_moment() {
    let world = World::with_vm(VmState::Start).await;
    world.hypervisor.insert(UUID, "web1");
    world.storage.insert("vms/db1_sda");
    world.add_node("hv2", "10.0.0.9").await;
    for change in
        [NodeChange::Daemon(DaemonState::Fenced), NodeChange::Domain(DomainState::FenceFlush)]
    {
        world.change(Change::Node("hv2".into(), change)).await;
    }
    world.storage.lock("vms/db1_sda", "10.0.0.9");
    let xml = disk_of_db1("");
    let id = world.submit(1, JobWork::AttachDevice { vm: by_name("web1"), xml }).await;
    let end = world.end_of(&id).await;
    let why = "volume `vms/db1_sda` is locked from 10.0.0.9, which may be freed in a moment: a \
               dead node's VMs are being recovered";
    assert_eq!((end.state, end.status.as_str()), (JobState::Failed, why));
}

/// No record says that it has the volume: it was given to it while it ran.
#[tokio::test(start_paused = true)]
async fn a_volume_that_another_guest_of_the_node_needs_alone_is_not_attached() {
    let in_use = "volume `vms/db1_sda` is in use by the guest of VM `db1` on node `hv1`";
    let shareable = "<shareable/>";
    for (of_db1, more, expected) in [
        (Some(""), "", Some(in_use)),
        (Some(""), shareable, Some(in_use)),
        (Some(shareable), "", Some(in_use)),
        (Some(shareable), shareable, None),
        (None, "", None),
    ] {
        let world = World::with_vm(VmState::Start).await;
        world.hypervisor.insert(UUID, "web1");
        world.storage.insert("vms/db1_sda");
        world.add_node("hv1", "10.0.0.1").await;
        if let Some(of_db1) = of_db1 {
            let db1 = db1_with_its_own(of_db1);
            world.hypervisor.start(db1.uuid, &db1.xml).await.expect("it can be started");
        }
        world.storage.lock("vms/db1_sda", "10.0.0.1");
        let xml = disk_of_db1(more);
        let id = world.submit(1, JobWork::AttachDevice { vm: by_name("web1"), xml }).await;
        let end = world.end_of(&id).await;
        match expected {
            None => {
                assert_eq!(end.state, JobState::Succeeded, "{of_db1:?} {more}: {}", end.status);
            }
            Some(why) => assert_eq!((end.state, end.status.as_str()), (JobState::Failed, why)),
        }
    }
}

/// Found by a seed: the device was attached to the guest at the target of a move, which was ended
/// when that failed, and the task had succeeded.
#[tokio::test(start_paused = true)]
async fn no_device_of_a_vm_is_changed_that_is_on_its_way() {
    for state in [VmState::Migrate, VmState::MigrateLive] {
        let world = World::with_vm(state).await;
        world.hypervisor.insert(UUID, "web1");
        let device = "<interface type='bridge'><source bridge='br1'/></interface>";
        let attach = JobWork::AttachDevice { vm: by_name("web1"), xml: device.into() };
        let id = world.submit(1, attach).await;
        let end = world.end_of(&id).await;
        assert_eq!(end.status, "VM `web1` is being moved to another node");
        assert_eq!(end.state, JobState::Failed);
        let calls = world.hypervisor.calls();
        assert!(!calls.iter().any(|call| call.starts_with("device")), "{calls:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_of_an_unknown_kind_or_without_its_arguments_fails_and_says_so() {
    let world = World::with_vm(VmState::Stop).await;
    let id = world.submit(1, other("vm.snapshot.create")).await;
    assert_eq!(
        world.end_of(&id).await.status,
        "no worker of this version knows jobs of the kind `vm.snapshot.create`"
    );
    let id = world.submit(2, other("vm.flush_locks")).await;
    assert_eq!(world.end_of(&id).await.status, "the job has no argument `domain`");
    let id = world.submit(3, JobWork::FlushLocks { vm: by_name("nobody") }).await;
    assert_eq!(world.end_of(&id).await.status, "there is no VM `nobody`");
}

/// Notes a renaming as a version of PVC did before jobs had steps.
async fn note_former_renaming(store: &Store) {
    let text = r#"{"from":"web1","to":"shop","node":"hv1",
        "volumes":[["vms/web1_sda","vms/shop_sda"]],"taken_back":false}"#;
    let root = "/pvcrs/renamings";
    let create =
        |path: String, data: &'static str, mode| Op::Create { path, data: data.into(), mode };
    let note = format!("{root}/{UUID}");
    let ops = vec![
        create(root.to_owned(), "", CreateMode::Persistent),
        create(note.clone(), text, CreateMode::Persistent),
        create(format!("{note}/owner"), "", CreateMode::Ephemeral),
    ];
    store.tree().multi(ops).await.expect("nobody else writes");
}

#[tokio::test(start_paused = true)]
async fn a_renaming_that_an_earlier_version_left_half_way_is_taken_back() {
    let world = World::with_vm(VmState::Stop).await;
    let id = |text| VolumeId::from_record(text).expect("well formed");
    let (old, new) = (id("vms/web1_sda"), id("vms/shop_sda"));
    let earlier = open(&world.tree).await;
    note_former_renaming(&earlier).await;
    world.storage.rename(&old, &new.volume).await.expect("it is there");
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(world.store.view().jobs.is_empty(), "the process that noted it lives");
    world.storage.set_failing(true);
    earlier.tree().close().await;
    let trouble = || {
        let view = world.store.view();
        view.jobs.values().find_map(|job| job.progress.trouble.clone())
    };
    pvc_testkit::eventually("it is tried", Duration::from_secs(120), || trouble().is_some()).await;
    let view = world.store.view();
    assert_eq!(being_renamed_to(&view, UUID), Some("shop"));
    assert!(world.store.former_renamings().is_empty());
    world.storage.set_failing(false);
    let job = view.jobs.keys().next().expect("there is one").clone();
    assert_eq!(world.end_of(&job).await.state, JobState::Failed);
    assert!(world.storage.volume(&old).await.is_ok() && world.storage.volume(&new).await.is_err());
}

/// Whoever defines the VM in the middle of it, and has seen the volume's new name, means that one:
/// the records of the volume and of its snapshots stayed under the old name, which no volume had.
#[tokio::test(start_paused = true)]
async fn a_volume_whose_vm_is_defined_with_the_new_name_meanwhile_is_recorded_by_that() {
    let world = World::with_vm(VmState::Stop).await;
    let id = |text| VolumeId::from_record(text).expect("well formed");
    let (old, new) = (id("vms/web1_sda"), id("vms/shop_sda"));
    let snapshot = SnapshotName::new("before");
    world.change(Change::PutVolume { id: old.clone(), stats: "{}".into() }).await;
    let (volume, name) = (old.clone(), snapshot.clone());
    world.change(Change::PutSnapshot { volume, name, stats: "{}".into() }).await;
    world.storage.snapshot(&old, &snapshot).await.expect("it is there");
    let earlier = open(&world.tree).await;
    note_former_renaming(&earlier).await;
    world.storage.rename(&old, &new.volume).await.expect("it is there");
    let defined = xml().replace("vms/web1_sda", "vms/shop_sda");
    world.change(Change::Vm(UUID, VmChange::Xml(defined))).await;
    world.change(Change::Vm(UUID, VmChange::Volumes(vec![new.clone()]))).await;
    earlier.tree().close().await;
    let is_recorded = || {
        let view = world.store.view();
        let volume = view.volumes.get(&new).filter(|_| !view.volumes.contains_key(&old));
        volume.is_some_and(|volume| volume.snapshots.iter().any(|(name, _)| *name == snapshot))
    };
    pvc_testkit::eventually("it is", Duration::from_secs(120), is_recorded).await;
    assert!(world.storage.volume(&new).await.is_ok(), "the VM has it by that name");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_a_worker_of_an_earlier_version_has_left_has_failed() {
    let world = World::with_vm(VmState::Stop).await;
    world.stop.cancel();
    let dead = open(&world.tree).await;
    let id = JobId::from_bits(9);
    let running = JobProgress { state: JobState::Running, ..JobProgress::pending() };
    world.submit(9, flush_locks()).await;
    let claim = dead.claim_job(&id).await.expect("reachable");
    assert!(claim.is_some() || world.store.view().jobs[&id].progress.state.is_over());
    world.change(Change::JobProgress(id.clone(), running)).await;
    dead.tree().close().await;
    let next = World { stop: CancellationToken::new(), ..world };
    next.start_worker(open(&next.tree).await);
    let end = next.end_of(&id).await;
    assert_eq!(
        (end.state, end.status.as_str()),
        (JobState::Failed, "its worker stopped before it was done")
    );
}

/// A job that was submitted in the moment of a removal was open for ever: no other worker takes it,
/// and nobody but its own would have ended it when it was cancelled.
#[tokio::test(start_paused = true)]
async fn a_job_of_a_node_whose_record_is_removed_is_ended_and_one_of_a_node_that_is_off_waits() {
    for is_whole in [true, false] {
        let world = World::without_worker(VmState::Stop).await;
        let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(1)));
        let tree = world.tree.connect();
        world.start_worker(match is_whole {
            true => world.store.clone(),
            false => Store::open_jobs(tree, clock, random).await.expect("it can be read"),
        });
        for node in ["hv2", "hv3"] {
            world.add_node(node, "10.0.0.9").await;
        }
        let of_hv2 = world.submit_to("hv2", 1, flush_locks()).await;
        let of_hv3 = world.submit_to("hv3", 2, flush_locks()).await;
        let open = || {
            let view = world.store.view();
            let jobs = view.jobs.values().filter(|job| !job.progress.state.is_over());
            jobs.map(|job| job.spec.id.clone()).collect::<Vec<_>>()
        };
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert_eq!(open(), [of_hv2.clone(), of_hv3.clone()], "nodes may come back");
        world.change(Change::RemoveNode("hv2".into())).await;
        let end = common::end_of(&world.store, &of_hv2, Duration::from_secs(300)).await;
        let why = "its node `hv2` was removed before it began";
        assert_eq!((end.state, end.status.as_str()), (JobState::Failed, why));
        assert_eq!(end.failure.map(|failure| failure.why).as_deref(), Some(why));
        assert_eq!(open(), [of_hv3], "its node has a record");
    }
}

#[tokio::test(start_paused = true)]
async fn a_transfer_whose_daemon_has_died_is_ended_and_one_under_way_is_left_alone() {
    let world = World::with_vm(VmState::Stop).await;
    let (dies, lives) = (open(&world.tree).await, open(&world.tree).await);
    let begin = async |store: &Store, bits: u32, node: &str| {
        let volume = VolumeId::parse("vms/data").expect("it is one");
        let spec = JobSpec {
            id: JobId::from_bits(bits),
            work: JobWork::Upload { volume },
            // Of no worker that is there.
            node: node.into(),
            run_on: node.to_owned(),
            submitter: "tests".to_owned(),
            submitted_at: 1,
        };
        let gone = Transferred { bytes: 7, of: Some(70), bytes_per_second: Some(7) };
        let begun = JobProgress::of_transfer(node.into(), 1, gone);
        store.submit_claimed(&spec, &begun).await.expect("reachable").expect("it is new");
        spec.id
    };
    let (dead, away) = (begin(&dies, 1, "hv1").await, begin(&dies, 2, "hv9").await);
    let under_way = begin(&lives, 3, "hv1").await;
    dies.tree().close().await;
    for id in [dead, away] {
        let end = world.end_of(&id).await;
        assert_eq!(
            (end.state, end.status.as_str(), end.failure.is_some()),
            (
                JobState::Failed,
                "the API daemon that it went through is gone, or was cut off: nobody knows how it \
                 has ended",
                true
            )
        );
    }
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(world.store.view().jobs[&under_way].progress.state, JobState::Running);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_was_done_before_it_could_be_claimed_is_not_done_again() {
    let world = World::without_worker(VmState::Stop).await;
    let id = world.submit(1, other("provisioner.create")).await;
    let connection = FlakyTree::new(world.tree.connect());
    let just_now = TokioClock::new().wall().as_secs();
    let done = JobProgress {
        state: JobState::Succeeded,
        ended_at: Some(just_now),
        ..JobProgress::pending()
    };
    let (faster, change) = (world.store.clone(), Change::JobProgress(id.clone(), done.clone()));
    connection.before_next_create(async move { write(&faster, change).await });
    world.start_worker(common::open(connection.clone()).await);
    world.end_of(&id).await;
    let another = world.submit(2, other("provisioner.create")).await;
    world.end_of(&another).await;
    let job = world.store.fresh().await.expect("reachable").jobs[&id].clone();
    assert_eq!((&job.progress, job.claim), (&done, None));
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_answer_was_lost_is_a_claim() {
    let world = World::without_worker(VmState::Stop).await;
    let id = world.submit(1, other("provisioner.create")).await;
    let connection = FlakyTree::new(world.tree.connect());
    let store = common::open(connection.clone()).await;
    connection.lose_next_answer();
    world.start_worker(store);
    assert_eq!(world.end_of(&id).await.state, JobState::Failed);
}

#[tokio::test(start_paused = true)]
async fn a_job_is_done_once_although_two_workers_see_it() {
    let world = World::with_vm(VmState::Stop).await;
    world.start_worker(open(&world.tree).await);
    world.storage.lock("vms/web1_sda", "10.0.0.9");
    let id = world.submit(1, flush_locks()).await;
    let end = world.end_of(&id).await;
    assert_eq!(end.status, "freed 1 locks on 1 volumes of VM \"web1\"");
    assert_eq!(end.log.iter().filter(|line| line.starts_with("freed the lock")).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_worker_is_announced_with_its_kinds_for_as_long_as_it_is_there() {
    let world = World::without_worker(VmState::Stop).await;
    let before = open(&world.tree).await;
    // The process of the version before is still there when this one starts.
    before.announce_worker(&"hv1".into(), &WorkerRecord::default()).await.expect("nobody is");
    let own = open(&world.tree).await;
    world.start_worker(own.clone());
    let knows_renaming = || {
        let view = world.store.view();
        view.workers.get("hv1").is_some_and(|worker| worker.kinds.contains(JobWork::RENAME_VM))
    };
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(!knows_renaming());
    before.tree().close().await;
    pvc_testkit::eventually("it is announced", Duration::from_secs(60), knows_renaming).await;
    own.tree().close().await;
    pvc_testkit::eventually("it is gone", Duration::from_secs(60), || {
        world.store.view().workers.is_empty()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_reads_the_whole_cluster_only_while_it_has_a_job() {
    let world = World::without_worker(VmState::Stop).await;
    let tree = FlakyTree::new(world.tree.connect());
    let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(1)));
    let jobs = Store::open_jobs(tree.clone(), clock, random).await.expect("it can be read");
    world.start_worker(jobs);
    let is_announced = || world.store.view().workers.contains_key("hv1");
    pvc_testkit::eventually("it is announced", Duration::from_secs(60), is_announced).await;

    // Whether a change of a VM, which is no job, costs the worker a request. Each ten seconds the
    // nodes' stamps cost two.
    let reads = async |autostart: bool| {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let before = tree.requests();
        let decide = |_: &Cluster| {
            let mut changes = Changes::new();
            changes.vm(UUID, VmChange::Autostart(autostart));
            Ok::<_, Infallible>((changes, ()))
        };
        world.store.change(decide).await.expect("nobody else writes");
        tokio::time::sleep(Duration::from_secs(10)).await;
        tree.requests() > before + 2
    };
    assert!(!reads(true).await);
    for bits in [1, 2] {
        let job = world.submit(bits, flush_locks()).await;
        assert_eq!(world.end_of(&job).await.state, JobState::Succeeded);
        assert!(reads(false).await, "the next one may come at once");
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert!(!reads(true).await);
    }
}

/// A definition with one volume and a comment that only looks like the VM's name.
fn xml() -> String {
    format!(
        "<domain type='kvm'><!-- web1's own --><name>web1</name><uuid>{UUID}</uuid>\
         <memory unit='MiB'>512</memory><vcpu>1</vcpu>\
         <os><type arch='x86_64' machine='pc'>hvm</type></os><devices>\
         <emulator>/usr/bin/kvm</emulator><disk type='network' device='disk'>\
         <source protocol='rbd' name='vms/web1_sda'/><target dev='sda' bus='scsi'/></disk>\
         <console type='pty'/></devices></domain>"
    )
}

#[tokio::test(start_paused = true)]
async fn a_rename_takes_the_volumes_along_and_reaches_the_vms_snapshots() {
    let world = World::with_vm(VmState::Stop).await;
    let id = |text| VolumeId::from_record(text).expect("well formed");
    world.change(Change::Vm(UUID, VmChange::Xml(xml()))).await;
    world.change(Change::PutVolume { id: id("vms/web1_sda"), stats: "{}".into() }).await;
    let mut dump = world.store.backup(true).await.expect("reachable");
    let root = format!("/domains/{UUID}/snapshots/before");
    let keys = [
        ("", "before"),
        ("/timestamp", "1.5"),
        ("/rbdsnaplist", "vms/web1_sda@before,vms/data@before"),
    ];
    dump.extend(keys.map(|(key, value)| (format!("{root}{key}"), value.to_owned())));
    dump.insert(format!("{root}/xml"), xml());
    world.store.restore(&dump).await.expect("a dump of this store");
    let vm = JobVm { name: "web1".into(), uuid: Some(UUID) };
    let job = world.submit(1, JobWork::RenameVm { vm, to: "shop".into() }).await;
    let end = world.end_of(&job).await;
    assert_eq!(end.state, JobState::Succeeded, "{end:?}");
    let view = world.store.fresh().await.expect("reachable");
    let record = &view.vms[&UUID];
    assert_eq!((record.name.as_str(), record.volumes()), ("shop", vec![id("vms/shop_sda")]));
    assert_eq!(record.recorded_volumes, [id("vms/shop_sda")]);
    assert!(record.xml.contains("<!-- web1's own -->"), "what only looks like the name stays");
    assert!(world.storage.volume(&id("vms/shop_sda")).await.is_ok());
    assert!(view.volumes.contains_key(&id("vms/shop_sda")));
    assert!(!view.volumes.contains_key(&id("vms/web1_sda")));
    let snapshot = &record.snapshots[0];
    assert_eq!(snapshot.volumes, ["vms/shop_sda@before", "vms/data@before"]);
    assert!(snapshot.xml.contains("<name>shop</name>") && snapshot.xml.contains("vms/shop_sda"));
}

/// Whoever takes it names the volume as it is called at the moment, and it is called otherwise a
/// moment later: the record of the snapshot got lost.
#[tokio::test(start_paused = true)]
async fn a_snapshot_that_is_taken_while_its_vm_is_renamed_is_recorded() {
    let id = |text| VolumeId::from_record(text).expect("well formed");
    let (old, new) = (id("vms/web1_sda"), id("vms/shop_sda"));
    for recorded_as in [&old, &new] {
        let world = World::with_vm(VmState::Stop).await;
        world.change(Change::Vm(UUID, VmChange::Xml(xml()))).await;
        world.change(Change::PutVolume { id: old.clone(), stats: "{}".into() }).await;
        let name = SnapshotName::new("now");
        world.storage.snapshot(&old, &name).await.expect("it is there");
        if recorded_as == &new {
            world.change(Change::PutVolume { id: new.clone(), stats: "{}".into() }).await;
            let (volume, name) = (new.clone(), name.clone());
            world.change(Change::PutSnapshot { volume, name, stats: "{}".into() }).await;
        }
        let vm = JobVm { name: "web1".into(), uuid: Some(UUID) };
        let job = world.submit(1, JobWork::RenameVm { vm, to: "shop".into() }).await;
        let end = world.end_of(&job).await;
        assert_eq!(end.state, JobState::Succeeded, "{end:?}");
        let view = world.store.fresh().await.expect("reachable");
        assert!(!view.volumes.contains_key(&old));
        let snapshots = &view.volumes[&new].snapshots;
        let names: Vec<&SnapshotName> = snapshots.iter().map(|(name, _)| name).collect();
        assert_eq!(names, [&name], "recorded as {recorded_as}");
    }
}

/// On one machine alone the XML of the guest itself names the file of its volume.
#[tokio::test(start_paused = true)]
async fn a_guest_learns_the_size_of_its_volume_by_whichever_name_it_has_it() {
    for source in ["protocol='rbd' name='vms/web1_sda'", "file='/volumes/vms/web1_sda'"] {
        let kind = if source.starts_with("file") { "file" } else { "network" };
        let xml = format!(
            "<domain type='kvm'><name>web1</name><uuid>{UUID}</uuid><memory unit='MiB'>512</memory>\
             <vcpu>1</vcpu><os><type arch='x86_64' machine='pc'>hvm</type></os><devices>\
             <disk type='{kind}' device='disk'><source {source}/><target dev='sda' bus='scsi'/>\
             </disk></devices></domain>"
        );
        let world = World::with_vm(VmState::Start).await;
        world.hypervisor.start(UUID, &xml).await.expect("nothing of it runs");
        let volume = VolumeId::parse("vms/web1_sda").expect("well formed");
        let work = JobWork::ResizeDisk { vm: by_name("web1"), volume };
        let id = world.submit(1, work).await;
        let end = world.end_of(&id).await;
        assert!(end.status.starts_with("notified VM \"web1\""), "{source}: {}", end.status);
        let calls = world.hypervisor.calls();
        assert!(calls.iter().any(|call| call.starts_with("resize ")), "{source}: {calls:?}");
    }
}
