//! Jobs about OSDs that wait, fail, are forced or cancelled.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use pvc_embedded::EmbeddedTree;
use pvc_model::job::{Job, JobId, JobSpec, JobState, JobWork};
use pvc_model::node::DaemonState;
use pvc_model::osd::{AddOsds, DeviceClass, LogicalVolume, LvmName, OsdFlag, OsdId, OsdState};
use pvc_model::{NodeName, Uuid};
use pvc_ports::UnitState;
use pvc_store::{Change, NewNode, NodeChange, Store};
use pvc_testkit::{MemoryOsds, ScriptedHypervisor, SeededRandom, SharedOsds, TokioClock};
use pvc_worker::Worker;
use tokio_util::sync::CancellationToken;

use crate::common;
use crate::osds::{self, NODE, OsdCase, device};

const BUSY: &str = "Device or resource busy";

struct World {
    store: Store,
    osds: SharedOsds,
}

impl World {
    /// The OSDs of a case with their records, and a worker.
    async fn new(case: OsdCase) -> World {
        let tree = EmbeddedTree::in_memory();
        let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(1)));
        let store = Store::open(tree.connect(), clock.clone(), random.clone()).await;
        let store = store.expect("an open tree can be read");
        store.initialize(false).await.expect("an empty tree");
        let mut osds = case.osds();
        let records = case.records(&mut osds);
        let world = World { store, osds: osds.shared() };
        if case == OsdCase::RemoveOfFencedNode {
            let name = NodeName::new(osds::FENCED);
            let node = NewNode { name: name.clone(), ..crate::crashes::hv1() };
            world.write(Change::AddNode(Box::new(node))).await;
            world.write(Change::Node(name, NodeChange::Daemon(DaemonState::Fenced))).await;
        }
        for record in records {
            world.write(Change::PutOsd(Box::new(record))).await;
        }
        let storage = Arc::new(osds::storage(&world.osds));
        let hypervisor = Arc::new(ScriptedHypervisor::new());
        let store = world.store.clone();
        let worker = Worker::new(NODE.into(), store, hypervisor, storage, clock, random);
        tokio::spawn(async move { worker.run(CancellationToken::new()).await });
        world
    }

    async fn write(&self, change: Change) {
        common::write(&self.store, change).await;
    }

    async fn submit(&self, bits: u32, work: JobWork) -> JobId {
        let id = JobId::from_bits(bits);
        let (node, run_on, submitter) = (NODE.into(), NODE.to_owned(), "test".to_owned());
        let spec = JobSpec { id: id.clone(), work, node, run_on, submitter, submitted_at: 1 };
        self.write(Change::SubmitJob(spec)).await;
        id
    }

    async fn cancel(&self, id: &JobId) {
        self.write(Change::CancelJob(id.clone())).await;
    }

    async fn eventually(&self, id: &JobId, what: &str, is_so: impl Fn(&Job) -> bool) -> Job {
        pvc_testkit::eventually_some(what, Duration::from_secs(600), || {
            let view = self.store.view();
            view.jobs.get(id).filter(|job| is_so(job)).map(|job| job.as_ref().clone())
        })
        .await
    }

    async fn end(&self, id: &JobId) -> (JobState, String) {
        let job = self.eventually(id, "the job ends", |job| job.progress.state.is_over()).await;
        (job.progress.state, job.progress.status)
    }

    /// Waits until the job says that this keeps it from going on.
    async fn troubled(&self, id: &JobId, words: &str) {
        let is_so = |job: &Job| {
            let trouble = job.progress.trouble.as_ref();
            trouble.is_some_and(|failure| failure.why.contains(words))
        };
        self.eventually(id, "it cannot go on", is_so).await;
    }

    fn osds(&self) -> MutexGuard<'_, MemoryOsds> {
        self.osds.lock().expect("nothing panics while holding it")
    }

    fn fail(&self, act: &str, said: &str) {
        self.osds().set_failing(NODE, act, said);
    }

    /// Numbers of the OSDs that are recorded, known to the cluster, and at work.
    fn are(&self) -> (Vec<String>, Vec<u32>, Vec<u32>) {
        let recorded = self.store.view().osds.keys().cloned().collect();
        let mut osds = self.osds();
        let states = osds.osd_states();
        let known = states.iter().filter(|osd| osd.uuid.is_some()).map(|osd| osd.id.0).collect();
        let mut runs = |id| osds.daemon_state(NODE, id) == UnitState::Active;
        let works = states.iter().filter(|osd| osd.is_in && osd.is_up && runs(osd.id));
        let at_work = works.map(|osd| osd.id.0).collect();
        (recorded, known, at_work)
    }
}

fn removal(force: bool) -> JobWork {
    JobWork::RemoveOsd { osd: OsdId(0), force }
}

fn forced(work: JobWork) -> JobWork {
    match work {
        JobWork::ReplaceOsd(mut replacement) => {
            replacement.force = true;
            JobWork::ReplaceOsd(replacement)
        }
        other => other,
    }
}

#[tokio::test(start_paused = true)]
async fn a_removal_waits_for_the_data_as_long_as_it_takes_and_is_taken_back_by_a_cancellation() {
    let world = World::new(OsdCase::Remove).await;
    world.osds().set_flag(OsdFlag::NoRebalance);
    let id = world.submit(1, removal(false)).await;
    world.troubled(&id, "waiting until the data of OSD 0 is elsewhere: ").await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(world.are(), (vec!["0".to_owned()], vec![0], vec![]), "it is out, and runs");
    world.cancel(&id).await;
    assert_eq!(world.end(&id).await.0, JobState::Cancelled);
    assert_eq!(world.are(), (vec!["0".to_owned()], vec![0], vec![0]));

    world.osds().unset_flag(OsdFlag::NoRebalance);
    let id = world.submit(2, removal(false)).await;
    assert_eq!(world.end(&id).await, (JobState::Succeeded, "OSD 0 is removed".to_owned()));
    assert_eq!(world.are(), (vec![], vec![], vec![]));
    assert!(world.osds().lost().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_removal_that_is_forced_waits_for_nothing_and_passes_over_a_disk_that_fails() {
    let world = World::new(OsdCase::Remove).await;
    world.osds().set_flag(OsdFlag::NoRebalance);
    world.fail("zap", "Input/output error");
    world.fail("lvremove", "Input/output error");
    let id = world.submit(1, removal(true)).await;
    assert_eq!(world.end(&id).await.0, JobState::Succeeded);
    assert_eq!(world.are(), (vec![], vec![], vec![]));
    let log = world.store.view().jobs[&id].progress.log.join("\n");
    assert!(log.contains("passed over: ") && log.contains("Input/output error"), "{log}");
}

/// Removes OSD 0 as another node does whose own is away: what lies on the disk stays there.
async fn remove_but_for_its_disk(world: &World) {
    world.osds().stop_daemon(NODE, OsdId(0));
    world.osds().purge(OsdId(0), true).expect("it is known");
    world.write(Change::RemoveOsd("0".to_owned())).await;
}

fn an_osd_on(disk: &str) -> JobWork {
    JobWork::AddOsds(AddOsds { device: osds::spec(disk), weight: 1.0, db: None, count: 1 })
}

#[tokio::test(start_paused = true)]
async fn a_disk_with_an_old_osd_is_taken_although_another_that_runs_has_its_number() {
    let world = World::new(OsdCase::Remove).await;
    remove_but_for_its_disk(&world).await;
    let id = world.submit(1, an_osd_on("/dev/nvme0n1")).await;
    assert_eq!(world.end(&id).await.0, JobState::Succeeded);
    assert_eq!(world.are(), (vec!["0".to_owned()], vec![0], vec![0]), "with the old one's number");

    let id = world.submit(2, an_osd_on("/dev/sdb")).await;
    let (state, why) = world.end(&id).await;
    assert_eq!(state, JobState::Succeeded, "{why}");
    assert_eq!(world.are(), (vec!["0".to_owned(), "1".to_owned()], vec![0, 1], vec![0, 1]));
}

#[tokio::test(start_paused = true)]
async fn osds_that_are_not_made_because_their_disk_cannot_be_erased_keep_no_job() {
    let world = World::new(OsdCase::Remove).await;
    remove_but_for_its_disk(&world).await;
    world.fail("zap", BUSY);
    let id = world.submit(1, an_osd_on("/dev/sdb")).await;
    let (state, why) = world.end(&id).await;
    assert!(state == JobState::Failed && why.contains(BUSY), "{why}");
    let log = world.store.view().jobs[&id].progress.log.join("\n");
    assert!(log.contains("passed over: ") && log.contains(BUSY), "{log}");
    assert_eq!(world.are(), (vec![], vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn behind_its_point_of_no_return_a_removal_tries_again_and_stays_in_the_list() {
    let world = World::new(OsdCase::Remove).await;
    world.fail("zap", BUSY);
    let id = world.submit(1, removal(false)).await;
    world.troubled(&id, BUSY).await;
    assert_eq!(world.are(), (vec!["0".to_owned()], vec![], vec![]), "destroyed, and in the list");
    world.cancel(&id).await;
    let (state, why) = world.end(&id).await;
    assert!(state == JobState::Failed && why.contains(BUSY), "{why}");
    assert_eq!(world.are().0, ["0"]);

    let id = world.submit(2, removal(false)).await;
    world.troubled(&id, BUSY).await;
    world.fail("zap", "");
    assert_eq!(world.end(&id).await, (JobState::Succeeded, "OSD 0 is removed".to_owned()));
    assert_eq!(world.are(), (vec![], vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn an_osd_that_is_half_removed_can_be_made_anew_on_another_disk() {
    let world = World::new(OsdCase::Remove).await;
    world.fail("zap", BUSY);
    world.fail("lvremove", BUSY);
    let id = world.submit(1, removal(false)).await;
    world.troubled(&id, BUSY).await;
    world.cancel(&id).await;
    assert_eq!(world.end(&id).await.0, JobState::Failed);
    assert!(world.are().1.is_empty(), "destroyed");
    world.fail("zap", "");
    world.fail("lvremove", "");
    let id = world.submit(2, OsdCase::Replace.work()).await;
    let (state, why) = world.end(&id).await;
    assert_eq!(state, JobState::Succeeded, "{why}");
    assert_eq!(world.are(), (vec!["0".to_owned()], vec![0], vec![0]));
    let lie = world.osds().lvm_osds(NODE).expect("they can be listed");
    let there = lie.iter().map(|osd| (osd.devices[0].as_str(), osd.db.is_some()));
    assert_eq!(there.collect::<Vec<_>>(), [("/dev/sdd", true)], "nothing is left on the old disk");
}

#[tokio::test(start_paused = true)]
async fn a_new_disk_that_cannot_be_written_is_found_out_before_anything_is_destroyed() {
    let world = World::new(OsdCase::Replace).await;
    world.fail("vgcreate", "Input/output error");
    let id = world.submit(1, forced(OsdCase::Replace.work())).await;
    let (state, why) = world.end(&id).await;
    assert!(state == JobState::Failed && why.contains("Input/output error"), "{why}");
    assert_eq!(world.are(), (vec!["0".to_owned(), "1".to_owned()], vec![0, 1], vec![0, 1]));
}

#[tokio::test(start_paused = true)]
async fn a_replacement_that_is_forced_waits_for_nothing() {
    let world = World::new(OsdCase::Replace).await;
    world.osds().set_flag(OsdFlag::NoRebalance);
    let id = world.submit(1, OsdCase::Replace.work()).await;
    world.troubled(&id, "is elsewhere").await;
    world.cancel(&id).await;
    assert_eq!(world.end(&id).await.0, JobState::Cancelled);
    let id = world.submit(2, forced(OsdCase::Replace.work())).await;
    let (state, why) = world.end(&id).await;
    assert_eq!(state, JobState::Succeeded, "{why}");
    let lie = world.osds().lvm_osds(NODE).expect("they can be listed");
    assert!(lie.iter().all(|osd| osd.devices == [device("/dev/sdd")]), "{lie:?}");
}

#[tokio::test(start_paused = true)]
async fn new_osds_that_fail_at_any_step_leave_nothing_behind() {
    for act in ["batch", "lvcreate", "new-db", "activate"] {
        let world = World::new(OsdCase::Add).await;
        world.fail(act, "it is broken");
        let id = world.submit(1, OsdCase::Add.work()).await;
        let (state, why) = world.end(&id).await;
        assert!(state == JobState::Failed && why.contains("it is broken"), "{act}: {why}");
        assert_eq!(world.are(), (vec![], vec![], vec![]), "{act}");
        let group = world.osds().volume_group(NODE, &LvmName::db_group()).expect("it is there");
        assert_eq!(group.volumes, [], "{act}");
        let disk = world.osds().device(NODE, &device("/dev/sdb")).expect("it is there");
        assert!(disk.groups.is_empty(), "{act}: {disk:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_number_that_was_given_to_an_osd_of_another_node_is_left_alone() {
    let world = World::new(OsdCase::Remove).await;
    let uuid = Some(Uuid::from_u128(0xbad));
    let state = OsdState { id: OsdId(0), uuid, is_up: true, is_in: true, is_new: false };
    world.osds().insert(state.clone());
    for (bits, work) in [(1, removal(true)), (2, forced(OsdCase::Replace.work()))] {
        let id = world.submit(bits, work).await;
        let (ended, why) = world.end(&id).await;
        assert!(ended == JobState::Failed && why.contains("it is another one"), "{why}");
    }
    assert_eq!(world.osds().osd_states(), [state]);
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_holds_the_database_of_an_osd_is_not_taken_for_another() {
    let world = World::new(OsdCase::AddDbGroup).await;
    let (sdb, sdd) = (device("/dev/sdb"), device("/dev/sdd"));
    // As `ceph-volume` does it by itself.
    let group = LvmName::block_group(Uuid::from_u128(0xdb));
    let database = LogicalVolume::block_of(group.clone(), Uuid::from_u128(0xdb));
    {
        let mut osds = world.osds();
        let blocks = osds.begin_batch(NODE, &sdb).expect("it is empty");
        let id = osds.go_on_with_batch(NODE, &blocks, DeviceClass::Ssd, 1).expect("there is room");
        let uuid = osds.lvm_osds(NODE).expect("they can be listed")[0].uuid;
        osds.create_volume_group(NODE, &group, &sdd).expect("it is empty");
        osds.create_volume(NODE, &database, 1 << 30).expect("there is room");
        osds.give_db(NODE, (id, uuid), &database).expect("it has none");
        osds.crush_add(id, 1.0, NODE).expect("it is known");
        osds.activate(NODE, id, uuid).expect("it lies here");
    }
    let device = osds::spec("/dev/sdd");
    let new = AddOsds { device: device.clone(), weight: 1.0, db: None, count: 1 };
    for (bits, work) in [(1, JobWork::AddOsds(new)), (2, JobWork::AddDbGroup { device })] {
        let id = world.submit(bits, work).await;
        let (state, why) = world.end(&id).await;
        assert!(state == JobState::Failed && why.contains("holds OSD 0 of this cluster"), "{why}");
    }
    assert_eq!(world.are().2, [0]);
}

#[tokio::test(start_paused = true)]
async fn an_osd_of_a_fenced_node_is_forgotten_when_its_data_is_elsewhere_unless_the_node_is_back() {
    for comes_back in [false, true] {
        let world = World::new(OsdCase::RemoveOfFencedNode).await;
        world.osds().set_needed(OsdId(0), 1 << 20);
        let id = world.submit(1, removal(false)).await;
        world.troubled(&id, "pgs currently mapped").await;
        if comes_back {
            world.osds().node_on(osds::FENCED);
            let run = NodeChange::Daemon(DaemonState::Run);
            world.write(Change::Node(NodeName::new(osds::FENCED), run)).await;
            world.osds().set_needed(OsdId(0), 0);
            let (state, why) = world.end(&id).await;
            assert_eq!(state, JobState::Failed);
            assert!(why.contains("was fenced and is not any more"), "{why}");
            let left = world.osds().osd_states().remove(0);
            assert!(left.is_up && left.is_in, "{left:?}");
            assert_eq!(world.are().0, ["0"]);
            continue;
        }
        world.osds().set_needed(OsdId(0), 0);
        assert_eq!(world.end(&id).await.0, JobState::Succeeded);
        assert_eq!(world.are(), (vec![], vec![], vec![]));
        let mut osds = world.osds();
        assert_eq!(osds.lvm_osds(osds::FENCED).expect("they can be listed").len(), 1);
        osds.node_on(osds::FENCED);
        assert_eq!(osds.daemon_state(osds::FENCED, OsdId(0)), UnitState::Failed, "it is nobody's");
    }
}

#[tokio::test(start_paused = true)]
async fn data_that_needs_an_osd_again_once_it_has_stopped_is_waited_for() {
    for cancels in [false, true] {
        let world = World::new(OsdCase::Remove).await;
        world.osds().set_needed_at_rest(OsdId(0), 3);
        let id = world.submit(1, removal(false)).await;
        world.troubled(&id, "have 3 pgs").await;
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(world.are(), (vec!["0".to_owned()], vec![0], vec![]), "it has stopped");
        if cancels {
            world.cancel(&id).await;
            assert_eq!(world.end(&id).await.0, JobState::Cancelled);
            assert_eq!(world.are(), (vec!["0".to_owned()], vec![0], vec![0]));
            continue;
        }
        // Its node boots meanwhile.
        {
            let mut osds = world.osds();
            osds.start_daemon(NODE, OsdId(0));
            osds.osd_in(OsdId(0)).expect("it is known");
            osds.set_needed(OsdId(0), 0);
        }
        assert_eq!(world.end(&id).await.0, JobState::Succeeded);
        assert_eq!(world.are(), (vec![], vec![], vec![]));
        assert!(world.osds().lost().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_osd_that_has_been_in_and_dies_is_not_taken_back() {
    let world = World::new(OsdCase::Add).await;
    world.fail("daemon", "it crashes");
    let id = world.submit(1, OsdCase::Add.work()).await;
    world.troubled(&id, "has run, and does not start again").await;
    let both = || vec!["0".to_owned(), "1".to_owned()];
    assert_eq!(world.are(), (both(), vec![0, 1], vec![]));
    world.fail("daemon", "");
    assert_eq!(world.end(&id).await.0, JobState::Succeeded);
    assert_eq!(world.are(), (both(), vec![0, 1], vec![0, 1]));
}

#[tokio::test(start_paused = true)]
async fn an_osd_of_another_disk_that_has_the_name_of_the_old_one_by_now_stays() {
    let world = World::new(OsdCase::Remove).await;
    let other = {
        let mut osds = world.osds();
        osds.add_blank(NODE, "/dev/sde", 300 << 30);
        let group = osds.begin_batch(NODE, &device("/dev/sde")).expect("it is empty");
        let id = osds.go_on_with_batch(NODE, &group, DeviceClass::Ssd, 1).expect("there is room");
        let lie = osds.lvm_osds(NODE).expect("they can be listed");
        let lvm = lie.into_iter().find(|lvm| lvm.id == id).expect("it was just made");
        osds.crush_add(id, 1.0, NODE).expect("it is known");
        osds.activate(NODE, id, lvm.uuid).expect("it lies here");
        lvm
    };
    world.write(Change::PutOsd(Box::new(osds::record(&other, "/dev/sdb", false)))).await;
    let mut work = forced(OsdCase::Replace.work());
    if let JobWork::ReplaceOsd(replacement) = &mut work {
        replacement.old_device = None;
    }
    let id = world.submit(1, work).await;
    let (state, why) = world.end(&id).await;
    assert_eq!(state, JobState::Succeeded, "{why}");
    let lie = world.osds().lvm_osds(NODE).expect("they can be listed");
    let places = lie.iter().map(|lvm| (lvm.id.0, lvm.devices[0].as_str()));
    assert_eq!(places.collect::<Vec<_>>(), [(0, "/dev/sdd"), (1, "/dev/sde")]);
    assert!(lie.contains(&other), "it is the same: {lie:?}");
}

#[tokio::test(start_paused = true)]
async fn an_osd_whose_making_fails_is_forgotten_by_the_cluster_and_made_all_the_same() {
    let world = World::new(OsdCase::Replace).await;
    world.fail("prepare", "Input/output error");
    let id = world.submit(1, OsdCase::Replace.work()).await;
    world.troubled(&id, "Input/output error").await;
    assert!(!world.osds().osd_ids().contains(&OsdId(0)), "as `ceph-volume` leaves it");
    world.cancel(&id).await;
    assert_eq!(world.end(&id).await.0, JobState::Failed);
    let both = || vec!["0".to_owned(), "1".to_owned()];
    assert_eq!(world.are().0, both(), "in the list");

    let mut work = forced(OsdCase::Replace.work());
    if let JobWork::ReplaceOsd(replacement) = &mut work {
        replacement.old_device = None;
    }
    let id = world.submit(2, work).await;
    world.troubled(&id, "Input/output error").await;
    world.fail("prepare", "");
    let (state, why) = world.end(&id).await;
    assert_eq!(state, JobState::Succeeded, "{why}");
    assert_eq!(world.are(), (both(), vec![0, 1], vec![0, 1]));
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_another_task_has_made_a_group_on_is_not_taken() {
    let world = World::new(OsdCase::Replace).await;
    world.osds().set_flag(OsdFlag::NoRebalance);
    let first = world.submit(1, OsdCase::Replace.work()).await;
    world.troubled(&first, "is elsewhere").await;
    let device = osds::spec("/dev/sdd");
    let new = AddOsds { device: device.clone(), weight: 1.0, db: None, count: 1 };
    for (bits, work) in [(2, JobWork::AddOsds(new)), (3, JobWork::AddDbGroup { device })] {
        let id = world.submit(bits, work.clone()).await;
        let (state, why) = world.end(&id).await;
        // A node has one group for databases.
        let is_why = why.contains(&format!("belongs to task {first}")) || why.contains("already");
        assert!(state == JobState::Failed && is_why, "{work:?}: {why}");
    }
    world.osds().unset_flag(OsdFlag::NoRebalance);
    assert_eq!(world.end(&first).await.0, JobState::Succeeded);
}

/// A disk that is put into another slot, one of another cluster, and one whose OSD was made anew
/// elsewhere.
#[tokio::test(start_paused = true)]
async fn what_is_not_the_recorded_osd_is_not_taken_up_and_nothing_changes() {
    let uuid = Some(Uuid::from_u128(0xbad));
    let other = OsdState { id: OsdId(0), uuid, is_up: false, is_in: true, is_new: false };
    let refresh = |name| JobWork::RefreshOsd { osd: OsdId(0), device: osds::spec(name) };
    type Change = Box<dyn Fn(&mut MemoryOsds)>;
    let cases: [(JobWork, Change, &str); 4] = [
        (refresh("/dev/sdd"), Box::new(|_| ()), "OSD 0 is not on device `/dev/sdd`"),
        (refresh("/dev/sdx"), Box::new(|_| ()), "device `/dev/sdx` does not exist"),
        (
            refresh("/dev/sdb"),
            Box::new(|osds| osds.set_cluster(Uuid::from_u128(0xfeed))),
            "OSD 0 on device `/dev/sdb` is of another cluster",
        ),
        (
            refresh("/dev/sdb"),
            Box::new(move |osds| osds.insert(other.clone())),
            "and the cluster knows none of that number and UUID",
        ),
    ];
    for (work, change, words) in cases {
        let world = World::new(OsdCase::Refresh).await;
        change(&mut world.osds());
        let (records, states) = (world.store.view().osds.clone(), world.osds().osd_states());
        let id = world.submit(1, work).await;
        let (state, why) = world.end(&id).await;
        assert!(state == JobState::Failed && why.contains(words), "{words}: {why}");
        assert_eq!(world.store.view().osds, records, "{words}");
        assert_eq!(world.osds().osd_states(), states, "{words}");
        assert_ne!(world.osds().daemon_state(NODE, OsdId(0)), UnitState::Active, "{words}");
    }
}
