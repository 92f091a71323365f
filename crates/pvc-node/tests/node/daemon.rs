//! The daemon begins and ends, and has its name for itself.

use pvc_model::fence::FenceNote;
use pvc_model::node::DaemonNote;
use pvc_store::Report;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_new_node_registers_becomes_primary_and_stamps_regularly() {
    let world = world().await;
    let daemon = world.running().await;
    let node = world.node().unwrap();
    assert_eq!(
        (node.cpus, node.kernel.as_str(), node.pvc_version.as_str()),
        (8, "6.12.0-test", "0.2.0")
    );
    assert_eq!(node.domain_state, DomainState::Ready);
    assert_eq!((node.active_schema, node.latest_schema), (Some(15), Some(15)));
    world
        .until("it is primary", || {
            world.node().unwrap().coordinator_state == CoordinatorState::Primary
        })
        .await;
    let config = world.view().config.clone();
    assert_eq!((config.name.as_str(), config.primary), ("test", Some(NodeName::new("hv1"))));
    let first = world.node().unwrap().keepalive;
    world.pass(60).await;
    let node = world.node().unwrap();
    assert!((60 - 5..=60 + 5).contains(&(node.keepalive - first)), "{} s", node.keepalive - first);
    assert_eq!((node.figures.memory_total_mib, node.figures.memory_used_mib), (16384, 4096));
    assert_eq!(daemon.stop().await, Outcome::Stopped);
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_stops_leaves_its_guests_and_the_next_one_adopts_them() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    let daemon = world.running().await;
    world.until_runs(uuid).await;
    assert_eq!(daemon.stop().await, Outcome::Stopped);
    world
        .until("others see that it stopped", || {
            world.node().unwrap().daemon_state == DaemonState::Stop
        })
        .await;
    assert!(world.hypervisor.is_there(uuid));
    assert_eq!(&*world.node().unwrap().network_stats, "{}");
    world.pass(60).await;
    let daemon = world.running().await;
    world.pass(30).await;
    assert_eq!(world.hypervisor.count("start", uuid), 1, "it was adopted, not started");
    daemon.kill().await;
    world.hypervisor.kill(uuid);
    let _daemon = world.running().await;
    world.until_runs(uuid).await;
}

#[tokio::test(start_paused = true)]
async fn a_slow_way_out_keeps_stamping_and_nothing_overwrites_its_state() {
    let mut world = world().await;
    world.settings.console_log_lines = 0;
    let uuid = world.define(1, VmState::Start).await;
    world.hypervisor.set_manner(uuid, Manner { start_hangs: true, ..Manner::default() });
    let daemon = world.running().await;
    world.until("it is being started", || world.hypervisor.count("start", uuid) == 1).await;
    daemon.shutdown.cancel();
    world.until("it says so", || world.node().unwrap().daemon_state == DaemonState::Shutdown).await;
    let first = world.node().unwrap().keepalive;
    world.pass(12).await;
    let node = world.node().unwrap();
    assert_eq!(node.daemon_state, DaemonState::Shutdown, "the hanging start is still waited for");
    assert!(node.keepalive >= first + 10);
    world.until("it has stopped", || world.node().unwrap().daemon_state == DaemonState::Stop).await;
    assert!(daemon.task.await.unwrap().is_ok());
    world.pass(60).await;
    world.until_daemon(DaemonState::Stop).await;
}

#[tokio::test(start_paused = true)]
async fn without_a_hypervisor_the_daemon_does_not_start_and_says_why() {
    let world = world().await;
    world.hypervisor.set_unreachable(true);
    let daemon = world.start().await;
    let error = daemon.task.await.unwrap().unwrap_err();
    assert!(matches!(error, NodeError::Hypervisor(_)), "{error}");
    assert!(error.hint().unwrap().contains("libvirtd"));
    world
        .until("others see that it stopped", || {
            world.node().unwrap().daemon_state == DaemonState::Stop
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_session_is_followed_by_a_new_announcement() {
    let world = world().await;
    let daemon = world.running().await;
    daemon.session.expire().await;
    world.pass(5).await;
    let name = NodeName::new("hv1");
    let other = world.operator.announce_daemon(&name, "an operator").await.unwrap();
    assert!(matches!(other, Announced::Taken { .. }), "it is announced again");
    assert!(!daemon.task.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_start_that_waits_for_a_cluster_says_so_again_and_again_and_goes_on_when_there_is_one() {
    let mut world = world().await;
    world.settings.standalone = false;
    world.tree = EmbeddedTree::in_memory();
    let random = Arc::new(SeededRandom::new(1));
    world.operator = Store::open(world.tree.connect(), world.clock.clone(), random).await.unwrap();
    let (said, hear) = tokio::sync::watch::channel((0, String::new()));
    let record = move |what: &str| said.send_modify(|said| *said = (said.0 + 1, what.to_owned()));
    let daemon = world.start_as(|node| node.when_waiting(record)).await;
    // Less than the minute for which systemd is asked each time.
    for minute in 1..=20 {
        world.pass(60).await;
        assert!(hear.borrow().0 > minute, "{:?}", hear.borrow());
    }
    assert!(hear.borrow().1.contains("`pvc cluster init`"), "{:?}", hear.borrow());
    assert!(!daemon.task.is_finished());
    world.operator.initialize(false).await.unwrap();
    world
        .until("the node runs", || {
            world.node().is_some_and(|node| node.daemon_state == DaemonState::Run)
        })
        .await;
    let last = hear.borrow().0;
    world.pass(120).await;
    assert_eq!(hear.borrow().0, last, "it waits for nothing any more");
}

#[tokio::test(start_paused = true)]
async fn a_second_daemon_for_the_node_waits_a_little_and_gives_up() {
    let world = world().await;
    let first = world.running().await;
    let second = world.start().await;
    let error = second.task.await.unwrap().unwrap_err();
    assert!(matches!(error, NodeError::SecondDaemon { .. }), "{error}");
    let name = NodeName::new("hv1");
    let Announced::Taken { by } =
        world.operator.announce_daemon(&name, "an operator").await.unwrap()
    else {
        panic!("the first one has the name");
    };
    assert!(
        by.starts_with("process ") && error.to_string().ends_with(&by),
        "it says who has it: {error}"
    );
    assert!(error.hint().unwrap().contains("stop one of them"));
    assert!(!first.task.is_finished());
    assert_eq!(
        world.node().unwrap().daemon_state,
        DaemonState::Run,
        "the record is the first one's"
    );
}

#[tokio::test(start_paused = true)]
async fn a_tree_that_was_made_anew_gets_the_node_again_and_guests_run_on() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    let _daemon = world.running().await;
    world.until_runs(uuid).await;
    world.operator.initialize(true).await.unwrap();
    world
        .until("the node is back", || {
            world.node().is_some_and(|n| n.daemon_state == DaemonState::Run)
        })
        .await;
    assert!(world.until_fault("VM_STRAY_VM1").await.contains("left alone"));
    assert!(world.hypervisor.is_there(uuid));
    assert_eq!(world.hypervisor.calls(), [format!("start {uuid}"), format!("resume {uuid}")]);
}

/// Removal of the record of node hv1.
fn removal() -> Changes {
    let mut changes = Changes::new();
    changes.push(Change::RemoveNode("hv1".into()));
    changes
}

#[tokio::test(start_paused = true)]
async fn a_removed_node_whose_daemon_is_started_again_is_a_new_one() {
    let world = world().await;
    let daemon = world.running().await;
    world.pass(60).await;
    assert_eq!(daemon.stop().await, Outcome::Stopped);
    world.until_daemon(DaemonState::Stop).await;
    let stamps = world.node().unwrap().keepalives;
    world.change(removal()).await;
    assert!(world.node().is_none());
    let _daemon = world.running().await;
    let node = world.node().unwrap();
    assert!(node.keepalives < stamps, "{} after {stamps}", node.keepalives);
    assert_eq!((node.cpus, node.pvc_version.as_str(), node.latest_schema), (8, "0.2.0", Some(15)));
    assert!(node.runs_our_daemon(), "its note is there as well");
}

#[tokio::test(start_paused = true)]
async fn a_daemon_whose_record_is_removed_makes_it_again_and_guests_run_on() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    let _daemon = world.running().await;
    world.until_runs(uuid).await;
    world.change(removal()).await;
    world
        .until("the node is back, and lists its guest", || {
            world.node().is_some_and(|node| {
                node.daemon_state == DaemonState::Run && node.running.contains(&uuid)
            })
        })
        .await;
    assert!(world.node().unwrap().runs_our_daemon());
    assert_eq!(world.hypervisor.calls(), [format!("start {uuid}"), format!("resume {uuid}")]);
}

/// The node was only cut off: another runs its VM, which is to be moved on.
#[tokio::test(start_paused = true)]
async fn a_guest_of_before_a_fence_is_not_sent_by_a_node_whose_record_is_removed() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    let _daemon = world.running().await;
    world.until_runs(uuid).await;
    let hv2 = NodeName::new("hv2");
    for other in [hv2.clone(), NodeName::new("hv3")] {
        world.change(legacy_node(&other, Ipmi::default())).await;
    }
    // The record of hv2 is one of a node that runs our daemon.
    let note = DaemonNote { version: "1.0.3".to_owned(), ..DaemonNote::default() };
    let reports =
        vec![Report::Daemon(hv2.clone(), note, None), Report::Running(hv2.clone(), vec![uuid])];
    world.operator.report(reports).await.unwrap();
    let fence = FenceNote { proven_at: Some(5), ..FenceNote::default() };
    let mut fenced = Changes::new();
    fenced.push(Change::FenceNote("hv1".into(), fence));
    fenced.node(&NodeName::new("hv1"), NodeChange::Daemon(DaemonState::Fenced));
    world.change(fenced).await;
    let mut removed = removal();
    removed
        .vm(uuid, VmChange::Node(NodeName::new("hv3")))
        .vm(uuid, VmChange::State(VmState::Migrate));
    world.change(removed).await;
    world.pass(60).await;
    let node = world.node().expect("its record is made again");
    let proven_at = node.fence.as_ref().and_then(|fence| fence.proven_at);
    assert_eq!(proven_at, Some(5), "its proof is there");
    assert!(world.hypervisor.is_there(uuid));
    assert_eq!(world.hypervisor.count("migrate", uuid), 0, "that of hv2 is the VM");
    let mut moved = Changes::new();
    moved.vm(uuid, VmChange::Node(hv2)).vm(uuid, VmChange::State(VmState::Start));
    world.change(moved).await;
    world.until("the guest of before is ended", || !world.hypervisor.is_there(uuid)).await;
    world.until_daemon(DaemonState::Run).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_record_is_restored_into_an_empty_tree_says_anew_what_it_is() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    let _daemon = world.running().await;
    world.until_runs(uuid).await;
    let backup = world.operator.backup(true).await.unwrap();
    world.operator.initialize(true).await.unwrap();
    // At the same moment the daemon may make its record itself.
    while world.operator.restore(&backup).await.is_err() {}
    world
        .until("it runs, is primary and lists its guest", || {
            world.node().is_some_and(|node| {
                node.daemon_state == DaemonState::Run
                    && node.coordinator_state == CoordinatorState::Primary
                    && node.running.contains(&uuid)
            })
        })
        .await;
    let node = world.node().unwrap();
    assert_eq!((node.cpus, node.pvc_version.as_str(), node.latest_schema), (8, "0.2.0", Some(15)));
    assert_eq!(world.hypervisor.calls(), [format!("start {uuid}"), format!("resume {uuid}")]);
}

#[tokio::test(start_paused = true)]
async fn a_tree_made_anew_gets_the_announcement_again_or_ends_the_daemon_that_lost_its_name() {
    for is_taken in [false, true] {
        let world = world().await;
        let name = NodeName::new("hv1");
        let daemon = world.running().await;
        // A daemon's session outlives the tree: nothing but the announcement itself says that it is
        // gone.
        world.operator.initialize(true).await.unwrap();
        let other = "process 9 of hv1.elsewhere";
        if is_taken {
            let taken = world.operator.announce_daemon(&name, other).await.unwrap();
            assert_eq!(taken, Announced::Now);
            world.until("it ends", || daemon.task.is_finished()).await;
            let error = daemon.task.await.unwrap().unwrap_err();
            assert!(error.to_string().ends_with(other), "{error}");
            continue;
        }
        world.pass(30).await;
        let found = world.operator.announce_daemon(&name, other).await.unwrap();
        assert!(
            matches!(found, Announced::Taken { ref by } if by != other),
            "it is announced again"
        );
        assert!(!daemon.task.is_finished());
    }
}

#[tokio::test(start_paused = true)]
async fn every_start_records_the_role_that_is_configured() {
    let mut world = world().await;
    for role in [NodeRole::Coordinator, NodeRole::Hypervisor, NodeRole::Coordinator] {
        world.settings.role = role.clone();
        let daemon = world.running().await;
        assert_eq!(world.node().unwrap().role, role);
        assert_eq!(daemon.stop().await, Outcome::Stopped);
        world.until_daemon(DaemonState::Stop).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_layout_ends_the_run_for_a_new_execution() {
    let world = world().await;
    let daemon = world.running().await;
    let set =
        pvc_ports::Op::Set { path: "/schema/version".to_owned(), data: "16".into(), version: None };
    world.operator.tree().multi(vec![set]).await.unwrap();
    assert_eq!(daemon.task.await.unwrap().unwrap(), Outcome::Reexec);
    assert_eq!(world.node().unwrap().daemon_state, DaemonState::Run);
    pvc_ports::Tree::close(&*daemon.connection).await;
    let error = world.start().await.task.await.unwrap().unwrap_err();
    assert!(matches!(error, NodeError::SchemaTooNew { found: 16, .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_first_steps_make_every_folder_also_below_one_that_is_there() {
    let world = world().await;
    let run = Path::new(DIRECTORY).parent().unwrap();
    world.files.create_directory(run, &FileAccess::PUBLIC_DIRECTORY).await.unwrap();
    pvc_node::before_store(&world.settings, &world.ports(), &CancellationToken::new())
        .await
        .unwrap();
    for folder in [DIRECTORY, CONSOLES] {
        let found = world.files.look(Path::new(folder)).await.unwrap();
        assert!(found.is_some_and(|found| found.kind == FileKind::Directory), "{folder}");
    }
    assert!(world.exec.ran().is_empty(), "services are not for this daemon to start");
    world.files.set_refusing(|path| path.starts_with("/proc"));
    let mut refused = world.settings.clone();
    refused.directories.push("/proc/nonexistent/folder".into());
    let error = pvc_node::before_store(&refused, &world.ports(), &CancellationToken::new())
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "the folder `/proc/nonexistent/folder` could not be made");
}

/// A service manager that never answers.
struct Silent;

#[async_trait]
impl Services for Silent {
    async fn state(&self, _: &str) -> Result<UnitState, ServicesError> {
        std::future::pending().await
    }

    async fn start(&self, _: &str) -> Result<(), ServicesError> {
        std::future::pending().await
    }

    async fn stop(&self, _: &str) -> Result<(), ServicesError> {
        std::future::pending().await
    }

    async fn restart(&self, _: &str) -> Result<(), ServicesError> {
        std::future::pending().await
    }

    async fn set_enabled(&self, _: &str, _: bool) -> Result<(), ServicesError> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_that_is_asked_to_stop_waits_for_no_service() {
    let mut world = world().await;
    world.settings.start_services = true;
    let ports = Ports { services: Arc::new(Silent), ..world.ports() };
    let shutdown = CancellationToken::new();
    let start = pvc_node::before_store(&world.settings, &ports, &shutdown);
    tokio::pin!(start);
    let waited = tokio::time::timeout(Duration::from_secs(3), &mut start).await;
    assert!(waited.is_err(), "the service manager is waited for");
    shutdown.cancel();
    let ended = tokio::time::timeout(Duration::from_millis(1), &mut start).await;
    ended.expect("nothing is waited for any more").expect("it was no mistake");
}

#[tokio::test(start_paused = true)]
async fn a_daemon_that_was_killed_is_followed_once_its_session_has_ended() {
    let world = world().await;
    let old = world.running().await;
    old.task.abort();
    let new = world.start().await;
    world.pass(8).await;
    assert!(!new.task.is_finished(), "it waits for the old session");
    pvc_ports::Tree::close(&*old.connection).await;
    let stamp = world.node().unwrap().keepalive;
    world.until("the new one stamps", || world.node().unwrap().keepalive > stamp).await;
    assert_eq!(new.stop().await, Outcome::Stopped);
}

#[tokio::test(start_paused = true)]
async fn a_daemon_asked_to_stop_while_it_starts_stops() {
    let mut world = world().await;
    world.settings.standalone = false;
    world.tree = pvc_embedded::EmbeddedTree::in_memory();
    let daemon = world.start().await;
    world.pass(30).await;
    assert!(!daemon.task.is_finished(), "it waits for a cluster");
    assert_eq!(daemon.stop().await, Outcome::Stopped);
}

#[tokio::test(start_paused = true)]
async fn a_daemon_asked_to_stop_in_the_middle_of_its_start_leaves_no_record_that_it_starts() {
    let world = world().await;
    world.hypervisor.set_unreachable(true);
    let daemon = world.start().await;
    world
        .until("it starts", || {
            world.node().is_some_and(|node| node.daemon_state == DaemonState::Init)
        })
        .await;
    assert_eq!(daemon.stop().await, Outcome::Stopped);
    world.until_daemon(DaemonState::Stop).await;
}

#[tokio::test(start_paused = true)]
async fn a_daemon_asked_to_stop_while_another_has_its_name_leaves_the_record_to_that() {
    let world = world().await;
    let first = world.running().await;
    let second = world.start().await;
    world.pass(3).await;
    assert!(!second.task.is_finished(), "it waits for the name");
    assert_eq!(second.stop().await, Outcome::Stopped);
    world.pass(1).await;
    assert_eq!(world.node().unwrap().daemon_state, DaemonState::Run);
    assert_eq!(first.stop().await, Outcome::Stopped);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ends_during_the_start_is_followed_by_one_in_which_the_daemon_is_announced()
{
    let world = world().await;
    world.hypervisor.set_unreachable(true);
    let daemon = world.start().await;
    world
        .until("it starts", || {
            world.node().is_some_and(|node| node.daemon_state == DaemonState::Init)
        })
        .await;
    daemon.session.expire().await;
    world.hypervisor.set_unreachable(false);
    world.until_daemon(DaemonState::Run).await;
    world.pass(5).await;
    let name = NodeName::new("hv1");
    let taken = world.operator.announce_daemon(&name, "another").await.unwrap();
    assert!(matches!(taken, Announced::Taken { .. }), "{taken:?}");
}

#[tokio::test(start_paused = true)]
async fn a_daemon_whose_name_was_taken_while_its_session_was_lost_falls_silent() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    let daemon = world.running().await;
    world.until_runs(uuid).await;
    daemon.connection.cut();
    daemon.session.expire().await;
    let other = "process 9 of hv1.elsewhere";
    let taken = world.operator.announce_daemon(&NodeName::new("hv1"), other).await.unwrap();
    assert_eq!(taken, Announced::Now);
    daemon.connection.mend();
    let error = daemon.task.await.unwrap().unwrap_err();
    assert!(error.to_string().ends_with(other), "{error}");
    assert!(matches!(error, NodeError::SecondDaemon { .. }), "{error}");
    assert_eq!(world.node().unwrap().daemon_state, DaemonState::Run);
    assert!(world.hypervisor.is_there(uuid));
}
