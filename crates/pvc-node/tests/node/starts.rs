//! Guests are started, again if they die, and given up if they do not come up.

use super::*;
use crate::world::World;

#[tokio::test(start_paused = true)]
async fn a_vm_that_should_run_is_started_with_what_only_this_host_knows() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    let _daemon = world.running().await;
    world.until_runs(uuid).await;
    let xml = world.hypervisor.started_with(uuid).unwrap();
    for expected in ["type='qemu'", "/volumes/vms/vm1_sda", "qemu-system-x86_64", "console/vm1.log"]
    {
        assert!(xml.contains(expected), "{expected} in {xml}");
    }
    world.until("its display is known", || world.vm(uuid).vnc == "127.0.0.1:5901").await;
    world.until("it is listed", || world.node().unwrap().running == [uuid]).await;
    world.until("there are statistics", || !world.vm(uuid).stats.is_empty()).await;
    assert!(world.vm(uuid).stats.contains(r#""disk_stats":[{"name":"vms/vm1_sda","rd_req":3,"#));
    world
        .until("the figures count it", || {
            let figures = world.node().unwrap().figures;
            (figures.memory_allocated_mib, figures.memory_provisioned_mib, figures.domains)
                == (1024, 1024, 1)
        })
        .await;
    world.request(uuid, VmState::Stop).await;
    world.until("it is off", || !world.hypervisor.is_there(uuid)).await;
    world.until("its display is gone", || world.vm(uuid).vnc.is_empty()).await;
    world
        .until("the figures count it as off", || {
            let figures = world.node().unwrap().figures;
            (figures.memory_allocated_mib, figures.memory_provisioned_mib, figures.domains)
                == (0, 256, 0)
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn what_the_agent_in_a_guest_says_is_recorded_and_one_that_hangs_is_waited_for_by_none() {
    let world = world().await;
    let (silent, talks) =
        (world.define(1, VmState::Start).await, world.define(2, VmState::Start).await);
    let card = "<interface type='bridge'><mac address='52:54:00:00:00:02'/>\
                <source bridge='vmbr100'/></interface><serial";
    let mut changes = Changes::new();
    changes.vm(talks, VmChange::Xml(world.vm(talks).xml.replacen("<serial", card, 1)));
    world.change(changes).await;
    let address = |mac: &str, last: u8| pvc_ports::AgentAddress {
        mac: mac.to_owned(),
        address: std::net::IpAddr::from([10, 0, 0, last]),
    };
    world.hypervisor.set_agent(silent, None);
    let said = vec![address("52:54:00:00:00:02", 5), address("52:54:00:00:00:03", 6)];
    world.hypervisor.set_agent(talks, Some(said));
    let _daemon = world.running().await;
    let addresses = r#""addresses":{"52:54:00:00:00:02":["10.0.0.5"]}"#;
    world.until("they are recorded", || world.vm(talks).stats.contains(addresses)).await;
    world.until("so is the other", || !world.vm(silent).stats.is_empty()).await;
    // It has been stopped in the guest.
    world.hypervisor.set_agent(talks, Some(Vec::new()));
    world.until("they are gone", || !world.vm(talks).stats.contains("addresses")).await;
}

#[tokio::test(start_paused = true)]
async fn a_killed_guest_is_back_within_one_keepalive_interval() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    let _daemon = world.running().await;
    world.until_runs(uuid).await;
    world.pass(30).await;
    let before = world.hypervisor.instance(uuid).unwrap();
    world.hypervisor.kill(uuid);
    tokio::time::timeout(INTERVAL, world.until_runs(uuid)).await.unwrap();
    assert!(world.hypervisor.instance(uuid).unwrap() > before);
    assert_eq!(world.state(uuid), "start");
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_keeps_dying_is_started_ever_more_slowly_and_it_is_reported() {
    let world = world().await;
    let dying = world.define(1, VmState::Start).await;
    let healthy = world.define(2, VmState::Start).await;
    let short = Manner { dies_after: Some(Duration::from_secs(1)), ..Manner::default() };
    world.hypervisor.set_manner(dying, short);
    let _daemon = world.running().await;
    let message = world.until_fault("VM_CRASHLOOP_VM1").await;
    assert!(message.contains("pvc vm log vm1"), "{message}");
    let starts = world.hypervisor.count("start", dying);
    world.pass(3600).await;
    let more = world.hypervisor.count("start", dying) - starts;
    assert!((10..=16).contains(&more), "{more} starts in an hour");
    assert_eq!(world.hypervisor.count("start", healthy), 1);
    world.hypervisor.set_manner(dying, Manner::default());
    world.request(dying, VmState::Start).await;
    world.pass(2).await;
    assert!(world.hypervisor.is_there(dying), "a new request is not held up");
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_is_killed_while_it_starts_has_died_and_has_not_failed() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    let dies = Manner { dies_at_start: true, ..Manner::default() };
    world.hypervisor.set_manner(uuid, dies);
    let _daemon = world.running().await;
    world.until_fault("VM_CRASHLOOP_VM1").await;
    let starts = world.hypervisor.count("start", uuid);
    assert!((5..=6).contains(&starts), "{starts} starts until somebody was told");
    assert_eq!(world.state(uuid), "start");
    world.hypervisor.set_manner(uuid, Manner::default());
    world.until_runs(uuid).await;
}

#[tokio::test(start_paused = true)]
async fn a_start_that_is_refused_fails_with_the_reason_and_a_later_one_forgets_it() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    let refuses =
        Manner { refuses_start: Some("no such\nmachine".to_owned()), ..Manner::default() };
    world.hypervisor.set_manner(uuid, refuses);
    let _daemon = world.running().await;
    world.until_state(uuid, "fail").await;
    assert_eq!(world.vm(uuid).failed_reason, "no such machine");
    let message = world.until_fault("VM_FAILED_VM1").await;
    assert!(
        message.contains("no such machine") && message.contains("pvc vm start vm1"),
        "{message}"
    );
    world.pass(600).await;
    assert_eq!(world.hypervisor.count("start", uuid), 1, "nobody asked for it again");
    world.hypervisor.set_manner(uuid, Manner::default());
    world.request(uuid, VmState::Start).await;
    world.until_runs(uuid).await;
    world.until("the reason is forgotten", || world.vm(uuid).failed_reason.is_empty()).await;
    let last = world.view().faults["VM_FAILED_VM1"].last_reported.clone();
    world.pass(600).await;
    assert_eq!(
        world.view().faults["VM_FAILED_VM1"].last_reported,
        last,
        "it is no longer reported"
    );
}

#[tokio::test(start_paused = true)]
async fn while_a_guest_is_brought_up_the_node_says_that_it_works_on_it() {
    let world = world().await;
    let uuid = world.define(1, VmState::Stop).await;
    let manner = Manner {
        start_takes: Duration::from_secs(20),
        refuses_start: Some("no write lock".to_owned()),
        ..Manner::default()
    };
    world.hypervisor.set_manner(uuid, manner);
    let _daemon = world.running().await;
    let works_on_it = || world.node().is_some_and(|node| node.working_on.contains(&uuid));
    assert!(!works_on_it());
    world.request(uuid, VmState::Start).await;
    let is_listed = || world.node().is_some_and(|node| node.running.contains(&uuid));
    world
        .until("it is being made", || {
            assert!(
                world.hypervisor.count("start", uuid) == 0 || works_on_it(),
                "said before it begins"
            );
            world.hypervisor.is_there(uuid)
        })
        .await;
    world
        .until("the start has ended", || {
            assert!(!is_listed(), "it never ran");
            assert!(!world.hypervisor.is_there(uuid) || works_on_it());
            !works_on_it()
        })
        .await;
    assert_eq!(world.state(uuid), "fail");
}

#[tokio::test(start_paused = true)]
async fn a_start_that_outlives_its_order_never_lets_the_guest_run() {
    for change in [VmChange::State(VmState::Stop), VmChange::Node(NodeName::new("hv2"))] {
        let world = world().await;
        world.change(legacy_node(&NodeName::new("hv2"), Ipmi::default())).await;
        let uuid = world.define(1, VmState::Start).await;
        let slow = Manner { start_takes: Duration::from_secs(60), ..Manner::default() };
        world.hypervisor.set_manner(uuid, slow);
        let _daemon = world.running().await;
        world.until("it is being made", || world.hypervisor.is_there(uuid)).await;
        let mut changes = Changes::new();
        changes.vm(uuid, change).vm(uuid, VmChange::Autostart(false));
        world.change(changes).await;
        let works_on_it = || world.node().is_some_and(|node| node.working_on.contains(&uuid));
        world
            .until("it is gone", || {
                assert!(
                    !world.hypervisor.is_there(uuid) || works_on_it(),
                    "nobody else may start it yet"
                );
                !world.hypervisor.is_there(uuid) && !works_on_it()
            })
            .await;
        world.pass(200).await;
        assert_eq!(world.hypervisor.count("resume", uuid), 0);
        assert!(!world.hypervisor.is_there(uuid));
    }
}

/// `pvc vm create --start` gives the order to wait for it: the guest that was being made was ended,
/// and made anew.
#[tokio::test(start_paused = true)]
async fn an_order_to_start_that_is_given_again_does_not_end_the_guest_that_is_being_made() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    let slow = Manner { start_takes: Duration::from_secs(60), ..Manner::default() };
    world.hypervisor.set_manner(uuid, slow);
    let _daemon = world.running().await;
    world.until("it is being made", || world.hypervisor.is_there(uuid)).await;
    world.request(uuid, VmState::Start).await;
    world.until_runs(uuid).await;
    world.pass(10).await;
    let count = |call| world.hypervisor.count(call, uuid);
    assert_eq!((count("start"), count("destroy"), count("resume")), (1, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_node_works_on_a_vm_until_the_hypervisor_is_through_with_its_start() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    // Longer than any time limit, and deaf to being ended: until then somebody has to own it.
    let endless = Manner {
        start_takes: Duration::from_secs(400),
        is_deaf_at_start: true,
        ..Manner::default()
    };
    world.hypervisor.set_manner(uuid, endless);
    let _daemon = world.running().await;
    world.until("it is being made", || world.hypervisor.count("start", uuid) == 1).await;
    world.pass(1).await;
    world.request(uuid, VmState::Stop).await;
    for _ in 0..39 {
        world.pass(10).await;
        assert!(world.node().unwrap().working_on.contains(&uuid));
    }
    world.until("it is gone", || !world.hypervisor.is_there(uuid)).await;
    world.until("nobody works on it", || world.node().unwrap().working_on.is_empty()).await;
    assert_eq!(
        (world.hypervisor.count("start", uuid), world.hypervisor.count("resume", uuid)),
        (1, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_modify_during_a_start_is_in_the_guest_that_runs() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    let slow = Manner { start_takes: Duration::from_secs(20), ..Manner::default() };
    world.hypervisor.set_manner(uuid, slow);
    let _daemon = world.running().await;
    world.until("it is being made", || world.hypervisor.is_there(uuid)).await;
    let bigger = world.vm(uuid).xml.replace(">256<", ">512<");
    let mut changes = Changes::new();
    changes.vm(uuid, VmChange::Xml(bigger));
    world.change(changes).await;
    world.until_runs(uuid).await;
    assert!(world.hypervisor.started_with(uuid).unwrap().contains(">512<"));
    assert_eq!(world.hypervisor.count("resume", uuid), 1);
}

/// By its version and by all that it says the record is as it was.
#[tokio::test(start_paused = true)]
async fn a_guest_that_is_being_made_is_not_that_of_another_vm_that_got_its_uuid() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    let slow = Manner { start_takes: Duration::from_secs(60), ..Manner::default() };
    world.hypervisor.set_manner(uuid, slow);
    let daemon = world.running().await;
    world.until("it is being made", || world.hypervisor.is_there(uuid)).await;
    let before = world.vm(uuid);
    // The node never sees that there was none in between.
    daemon.connection.cut();
    let mut changes = Changes::new();
    changes.push(Change::RemoveVm(uuid));
    world.change(changes).await;
    world.define_without_volume(1, VmState::Start).await;
    daemon.connection.mend();
    let now = world.vm(uuid);
    assert_eq!((now.state_version, &now.xml), (before.state_version, &before.xml));
    world.until_runs(uuid).await;
    let count = |call| world.hypervisor.count(call, uuid);
    assert_eq!((count("start"), count("resume")), (2, 1), "the first was never let run");
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_a_dead_daemon_left_unstarted_is_made_anew_if_it_should_run_and_ended_if_not()
{
    let world = world().await;
    let (wanted, unwanted) =
        (world.define(1, VmState::Start).await, world.define(2, VmState::Stop).await);
    for (vm, name) in [(wanted, "vm1"), (unwanted, "vm2")] {
        world.hypervisor.leave_created(vm, name);
    }
    let _daemon = world.running().await;
    world.until_runs(wanted).await;
    world.until("the other is gone", || !world.hypervisor.is_there(unwanted)).await;
    let calls: Vec<String> = world
        .hypervisor
        .calls()
        .into_iter()
        .filter(|call| call.ends_with(&wanted.to_string()))
        .collect();
    assert_eq!(calls, ["destroy", "start", "resume"].map(|call| format!("{call} {wanted}")));
    assert_eq!(world.hypervisor.count("resume", unwanted), 0);
    assert!(world.view().faults.is_empty(), "it is no pause of an operator's");
}

#[tokio::test(start_paused = true)]
async fn a_start_that_hangs_holds_up_nobody_else_and_can_be_given_up() {
    let world = world().await;
    let hanging = world.define(1, VmState::Start).await;
    world.hypervisor.set_manner(hanging, Manner { start_hangs: true, ..Manner::default() });
    let other = world.define(2, VmState::Start).await;
    let _daemon = world.running().await;
    tokio::time::timeout(INTERVAL, world.until_runs(other)).await.unwrap();
    world.pass(300).await;
    assert!(world.hypervisor.count("start", hanging) >= 2, "it is tried again");
    assert_eq!(world.state(hanging), "start");
    world.hypervisor.set_manner(hanging, Manner::default());
    world.until_runs(hanging).await;
    world.request(hanging, VmState::Stop).await;
    world.until("it is off", || !world.hypervisor.is_there(hanging)).await;
}

#[tokio::test(start_paused = true)]
async fn three_hundred_vms_are_started_in_good_order() {
    let world = world().await;
    let mut vms = Vec::new();
    for number in 1..=300 {
        vms.push(world.define(number, VmState::Start).await);
    }
    let daemon = world.running().await;
    let runs = |vm: &Uuid| world.hypervisor.run(*vm) == Some(GuestRun::Running);
    world.until("all run", || vms.iter().all(runs)).await;
    assert_eq!(world.hypervisor.calls().len(), 2 * 300, "each is made and let run, once");
    world.pass(60).await;
    let before = daemon.connection.requests();
    world.pass(50).await;
    let requests = daemon.connection.requests() - before;
    assert!(requests <= 10 * 3, "{requests} requests in ten keepalives");
}

#[tokio::test(start_paused = true)]
async fn a_hypervisor_that_restarts_in_the_middle_of_a_start_leaves_the_vm_manageable() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    world.hypervisor.set_manner(uuid, Manner { start_hangs: true, ..Manner::default() });
    let _daemon = world.running().await;
    world.until("it is being started", || world.hypervisor.count("start", uuid) == 1).await;
    world.hypervisor.set_unreachable(true);
    world.pass(20).await;
    world.hypervisor.set_manner(uuid, Manner::default());
    world.hypervisor.set_unreachable(false);
    world.request(uuid, VmState::Stop).await;
    world.pass(180).await;
    assert!(!world.hypervisor.is_there(uuid));
    world.request(uuid, VmState::Start).await;
    world.until_runs(uuid).await;
    world.request(uuid, VmState::Shutdown).await;
    world.until_state(uuid, "stop").await;
}

/// Volume `vms/vm1_sda` is rolled back, or is not any more.
async fn is_rolled_back(world: &World, is_held: bool) {
    let volume = VolumeId::parse("vms/vm1_sda").unwrap();
    let (purpose, by) = (Purpose::RollBack(SnapshotName::new("s0")), "somebody".to_owned());
    let mut changes = Changes::new();
    changes.push(match is_held {
        true => Change::HoldVolume(VolumeHold { volume, purpose, by }),
        false => Change::ReleaseVolume(volume),
    });
    world.change(changes).await;
}

/// An API of PVC 1.0.3 does not look whether it is held.
#[tokio::test(start_paused = true)]
async fn a_vm_whose_volume_is_held_starts_when_that_is_over_whoever_gave_the_order() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    is_rolled_back(&world, true).await;
    let _daemon = world.running().await;
    let message = world.until_fault("VM_BLOCKED_VM1").await;
    for words in ["is being rolled back to snapshot `s0`", "`pvc vm stop vm1`", "rollback vms vm1"]
    {
        assert!(message.contains(words), "{words} in {message}");
    }
    world.pass(600).await;
    assert_eq!(world.hypervisor.count("start", uuid), 0);
    assert_eq!(world.state(uuid), "start", "it has not failed");
    is_rolled_back(&world, false).await;
    world.until_runs(uuid).await;
}

#[tokio::test(start_paused = true)]
async fn a_vm_whose_volume_is_let_go_of_without_its_operator_is_not_said_to_be_stopped_first() {
    let world = world().await;
    world.define(1, VmState::Start).await;
    let volume = VolumeId::parse("vms/vm1_sda").unwrap();
    let (purpose, by) = (Purpose::Fill { trashed: None }, "somebody".to_owned());
    let mut changes = Changes::new();
    changes.push(Change::HoldVolume(VolumeHold { volume, purpose, by }));
    world.change(changes).await;
    let _daemon = world.running().await;
    let message = world.until_fault("VM_BLOCKED_VM1").await;
    assert!(message.contains("is being given new contents"), "{message}");
    assert!(!message.contains("`pvc vm stop"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_was_made_before_its_volume_was_held_is_not_let_run() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    let slow = Manner { start_takes: Duration::from_secs(60), ..Manner::default() };
    world.hypervisor.set_manner(uuid, slow);
    let _daemon = world.running().await;
    world.until("it is being made", || world.hypervisor.is_there(uuid)).await;
    is_rolled_back(&world, true).await;
    world.until("it is ended", || !world.hypervisor.is_there(uuid)).await;
    world.pass(600).await;
    assert_eq!(world.hypervisor.count("resume", uuid), 0);
    assert_eq!(world.hypervisor.count("start", uuid), 1);
    is_rolled_back(&world, false).await;
    world.until_runs(uuid).await;
}

#[tokio::test(start_paused = true)]
async fn starts_that_hang_do_not_hold_up_stops() {
    let world = world().await;
    let _daemon = world.running().await;
    let running = world.define(100, VmState::Start).await;
    world.until_runs(running).await;
    for number in 1..=20 {
        let uuid = world.define(number, VmState::Start).await;
        world.hypervisor.set_manner(uuid, Manner { start_hangs: true, ..Manner::default() });
    }
    world.pass(5).await;
    world.request(running, VmState::Stop).await;
    world.pass(5).await;
    assert!(!world.hypervisor.is_there(running));
}
