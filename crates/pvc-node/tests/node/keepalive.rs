//! The stamps come in time, whatever does not answer.

use super::*;

#[tokio::test(start_paused = true)]
async fn figures_that_never_come_do_not_delay_the_keepalive() {
    let world = world().await;
    let _daemon = world.running().await;
    world.hypervisor.set_stats_hang(true);
    let first = world.node().unwrap().keepalive;
    for _ in 0..20 {
        world.pass(5).await;
        let age = i64::try_from(pvc_ports::Clock::wall(&*world.clock).as_secs()).unwrap();
        assert!(age - world.node().unwrap().keepalive <= 6, "the stamp is late");
    }
    assert!(world.node().unwrap().keepalive >= first + 95);
}

#[tokio::test(start_paused = true)]
async fn a_ceph_that_never_answers_does_not_delay_the_keepalive() {
    let mut world = world().await;
    let access =
        RbdAccess { monitors: Vec::new(), port: 6789, user: "libvirt".to_owned(), secret: None };
    let ceph = Arc::new(ScriptedCluster::new(access));
    world.storage = Arc::new(MemoryStorage::of_cluster(ceph.clone()));
    world.settings.subsystems.storage = true;
    let _daemon = world.running().await;
    ceph.say(|said| said.hangs = true);
    for _ in 0..60 {
        world.pass(5).await;
        let age = i64::try_from(pvc_ports::Clock::wall(&*world.clock).as_secs()).unwrap();
        assert!(age - world.node().unwrap().keepalive <= 6, "the stamp is late");
    }
    assert!(world.view().faults.contains_key("CEPH_SILENT_HV1"), "it was asked all the time");
}

#[tokio::test(start_paused = true)]
async fn what_a_node_that_runs_reports_of_itself_and_of_its_guests_is_one_write() {
    let world = world().await;
    let vm = world.define(1, VmState::Start).await;
    let _daemon = world.running().await;
    world.until_runs(vm).await;
    world.hypervisor.set_busy();
    let transaction = async |path: &str| {
        let entry = pvc_ports::Tree::get(&world.tree, path).await.unwrap();
        entry.map(|entry| entry.stat.mzxid)
    };
    let mut before = None;
    let mut reports = 0;
    for round in 1..=12 {
        world.host.set_load(HostLoad {
            memory_total_mib: 16384,
            memory_used_mib: 4096,
            memory_free_mib: 12288,
            load: f64::from(round),
        });
        world.pass(5).await;
        let of_node = transaction("/nodes/hv1/cpuload").await;
        let of_guest = transaction(&format!("/domains/{vm}/stats")).await;
        if before.is_some() && of_guest != before {
            assert_eq!(of_guest, of_node, "the figures of a pass are two writes");
            reports += 1;
        }
        before = of_guest;
    }
    assert!(reports > 2, "the guest's figures were written {reports} times");
}

#[tokio::test(start_paused = true)]
async fn a_wall_clock_that_jumps_does_not_stop_the_stamps() {
    let world = world().await;
    let _daemon = world.running().await;
    for step in [3600, -7200] {
        world.clock.step_wall(step);
        let before = world.node().unwrap().keepalive;
        world.pass(6).await;
        assert_ne!(world.node().unwrap().keepalive, before);
    }
    assert_eq!(world.node().unwrap().daemon_state, DaemonState::Run);
}

#[tokio::test(start_paused = true)]
async fn without_the_store_nothing_is_decided_and_afterwards_everything_goes_on() {
    let world = world().await;
    let (up, down) = (world.define(1, VmState::Start).await, world.define(2, VmState::Stop).await);
    let daemon = world.running().await;
    world.until_runs(up).await;
    daemon.connection.cut();
    world.request(up, VmState::Stop).await;
    world.request(down, VmState::Start).await;
    world.pass(120).await;
    assert!(world.hypervisor.is_there(up) && !world.hypervisor.is_there(down));
    daemon.connection.mend();
    world.pass(10).await;
    assert!(!world.hypervisor.is_there(up) && world.hypervisor.is_there(down));
    let stamp = world.node().unwrap().keepalive;
    world.pass(10).await;
    assert!(world.node().unwrap().keepalive > stamp);
}

#[tokio::test(start_paused = true)]
async fn the_heart_beats_as_often_as_wanted_also_without_the_store() {
    let second = Duration::from_secs(1);
    for (wanted, fewest) in [(None, 11), (Some(second), 55), (Some(60 * second), 11)] {
        let world = world().await;
        let beats = Arc::new(AtomicUsize::new(0));
        let counted = beats.clone();
        let hook = move || _ = counted.fetch_add(1, Ordering::SeqCst);
        let daemon = world.start_as(|node| node.with_heartbeat(wanted, hook)).await;
        world.pass(60).await;
        let connected = beats.load(Ordering::SeqCst);
        assert!((fewest..=fewest + 6).contains(&connected), "{connected} with {wanted:?}");
        daemon.connection.cut();
        world.pass(60).await;
        assert!(beats.load(Ordering::SeqCst) >= connected + fewest);
    }
}
