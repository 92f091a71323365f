//! The node role in a played world: the real tasks, an embedded tree, a scripted hypervisor.

#![allow(clippy::disallowed_methods, reason = "a test waits, in real or in paused time")]
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod world;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use pvc_embedded::EmbeddedTree;
use pvc_model::node::{CoordinatorState, DaemonState, DomainState, NodeRole};
use pvc_model::storage::{RbdAccess, VolumeId};
use pvc_model::vm::VmState;
use pvc_model::{NodeName, Uuid};
use pvc_node::{NodeError, Outcome, Ports};
use pvc_ports::{
    FileAccess, FileKind, Files as _, GuestRun, HostLoad, Services, ServicesError, Storage,
    UnitState,
};
use pvc_store::{Announced, Change, Changes, ConfigChange, Ipmi, NodeChange, Store, VmChange};
use pvc_testkit::{BmcManner, Manner, MemoryStorage, ScriptedCluster, SeededRandom};
use tokio_util::sync::CancellationToken;
use world::{CONSOLES, DIRECTORY, INTERVAL, legacy_node, world};

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
async fn a_guest_that_keeps_dying_is_started_ever_more_slowly_and_an_operator_is_told() {
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

#[tokio::test(start_paused = true)]
async fn a_node_works_on_a_vm_until_the_hypervisor_is_through_with_its_start() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    // Longer than any patience, and deaf to being ended: until then somebody has to own it.
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
async fn a_shutdown_ends_in_stop_also_for_a_guest_that_is_off_or_deaf() {
    let world = world().await;
    let obedient = world.define(1, VmState::Start).await;
    let deaf = world.define(2, VmState::Start).await;
    world.hypervisor.set_manner(deaf, Manner { ignores_shutdown: true, ..Manner::default() });
    let off = world.define(3, VmState::Stop).await;
    let _daemon = world.running().await;
    for vm in [obedient, deaf] {
        world.until_runs(vm).await;
    }
    for vm in [obedient, deaf, off] {
        world.request(vm, VmState::Shutdown).await;
    }
    world.pass(30).await;
    assert_eq!((world.state(obedient), world.state(off)), ("stop".to_owned(), "stop".to_owned()));
    assert_eq!(world.state(deaf), "shutdown");
    assert!((2..=3).contains(&world.hypervisor.count("shutdown", deaf)), "now and then");
    world.pass(160).await;
    assert_eq!((world.state(deaf).as_str(), world.hypervisor.is_there(deaf)), ("stop", false));
}

#[tokio::test(start_paused = true)]
async fn a_guest_whose_monitor_hangs_is_powered_off_when_its_time_is_over() {
    let world = world().await;
    let stuck = world.define(1, VmState::Start).await;
    world.hypervisor.set_manner(stuck, Manner { monitor_hangs: true, ..Manner::default() });
    let _daemon = world.running().await;
    world.until_runs(stuck).await;
    world.request(stuck, VmState::Shutdown).await;
    world.pass(200).await;
    assert_eq!((world.state(stuck).as_str(), world.hypervisor.is_there(stuck)), ("stop", false));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_can_be_taken_back_or_made_a_stop() {
    let world = world().await;
    let (kept, ended) =
        (world.define(1, VmState::Start).await, world.define(2, VmState::Start).await);
    for vm in [kept, ended] {
        world.hypervisor.set_manner(vm, Manner { ignores_shutdown: true, ..Manner::default() });
    }
    let _daemon = world.running().await;
    for vm in [kept, ended] {
        world.until_runs(vm).await;
        world.request(vm, VmState::Shutdown).await;
    }
    world.pass(10).await;
    world.request(kept, VmState::Start).await;
    world.request(ended, VmState::Stop).await;
    world.pass(600).await;
    assert!(world.hypervisor.is_there(kept));
    assert_eq!(world.hypervisor.count("destroy", kept), 0);
    assert!(!world.hypervisor.is_there(ended));
    world.request(ended, VmState::Stop).await;
    world.pass(10).await;
    assert_eq!(world.state(ended), "stop");
}

#[tokio::test(start_paused = true)]
async fn a_restart_gives_a_new_instance_and_ends_in_start() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    let slow = Manner { shutdown_takes: Duration::from_secs(20), ..Manner::default() };
    world.hypervisor.set_manner(uuid, slow);
    let _daemon = world.running().await;
    world.until_runs(uuid).await;
    world.request(uuid, VmState::Restart).await;
    world.until("it is another one", || world.hypervisor.instance(uuid) == Some(2)).await;
    world.pass(10).await;
    assert_eq!(world.state(uuid), "start");
    assert_eq!(world.hypervisor.count("destroy", uuid), 0);
}

#[tokio::test(start_paused = true)]
async fn one_bad_record_harms_only_itself() {
    let world = world().await;
    let good = world.define(1, VmState::Start).await;
    let no_xml = world.define(2, VmState::Start).await;
    let junk_state = world.define(3, VmState::Start).await;
    let no_node = world.define(4, VmState::Start).await;
    let no_volume = world.define_without_volume(5, VmState::Start).await;
    let tree = world.operator.tree();
    let set = |path: String, data: &'static [u8]| {
        let data = bytes::Bytes::from_static(data);
        tree.multi(vec![pvc_ports::Op::Set { path, data, version: None }])
    };
    set(format!("/domains/{no_xml}/xml"), b"").await.unwrap();
    set(format!("/domains/{junk_state}/state"), b"\xff\xfe\x00junk").await.unwrap();
    set(format!("/domains/{no_node}/node"), b"").await.unwrap();
    world.hypervisor.insert(junk_state, "vm3");
    world.hypervisor.insert(no_node, "vm4");
    let _daemon = world.running().await;
    world.until_runs(good).await;
    world.until_state(no_xml, "fail").await;
    assert!(world.vm(no_xml).failed_reason.contains("no domain XML"));
    world.until_state(no_volume, "fail").await;
    assert!(world.vm(no_volume).failed_reason.contains("volume `vms/vm5_sda` does not exist"));
    assert!(world.until_fault("VM_UNREADABLE_VM3").await.contains("is not known"));
    assert!(world.until_fault("VM_UNREADABLE_VM4").await.contains("names no node"));
    assert!(world.hypervisor.is_there(junk_state) && world.hypervisor.is_there(no_node));
}

#[tokio::test(start_paused = true)]
async fn a_guest_without_record_is_left_alone_reported_and_forgotten_when_it_goes() {
    let world = world().await;
    let stray = Uuid::from_u128(77);
    world.hypervisor.insert(stray, "hand/made");
    let _daemon = world.running().await;
    let message = world.until_fault("VM_STRAY_HAND_MADE").await;
    assert!(message.contains("virsh destroy") && message.contains("hv1"), "{message}");
    world.pass(600).await;
    assert!(world.hypervisor.is_there(stray));
    assert_eq!(world.hypervisor.calls(), Vec::<String>::new());
    assert!(world.node().unwrap().running.is_empty());
    assert_eq!(world.node().unwrap().figures.domains, 1);
}

/// As an older cluster may have it: what is asked of our API is refused.
#[tokio::test(start_paused = true)]
async fn a_vm_on_a_network_between_the_nodes_is_a_fault_that_names_it() {
    let mut world = world().await;
    world.settings.standalone = false;
    let uuids = [world.define(1, VmState::Stop).await, world.define(2, VmState::Stop).await];
    let _daemon = world.running().await;
    world.pass(900).await;
    assert!(world.view().faults.is_empty(), "{:?}", world.view().faults);
    let xml = world.vm(uuids[1]).xml.clone();
    let interface = "<interface type='bridge'><source bridge='brstorage'/></interface></devices>";
    let mut changes = Changes::new();
    changes.vm(uuids[1], VmChange::Xml(xml.replace("</devices>", interface)));
    world.change(changes).await;
    let message = world.until_fault("VMS_ON_CORE_NETWORKS").await;
    assert!(message.contains("vm2 (brstorage)") && !message.contains("vm1"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn in_maintenance_no_fault_is_recorded() {
    let world = world().await;
    let mut changes = Changes::new();
    changes.config(ConfigChange::Maintenance(true));
    world.change(changes.clone()).await;
    world.hypervisor.insert(Uuid::from_u128(77), "stray");
    let _daemon = world.running().await;
    world.pass(120).await;
    assert!(world.view().faults.is_empty());
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
async fn a_hypervisor_that_is_away_is_no_reason_to_think_that_nothing_runs() {
    let world = world().await;
    let (up, down) = (world.define(1, VmState::Start).await, world.define(2, VmState::Stop).await);
    let _daemon = world.running().await;
    world.until("it is listed", || world.node().unwrap().running == [up]).await;
    world.hypervisor.set_unreachable(true);
    world.request(up, VmState::Stop).await;
    world.request(down, VmState::Start).await;
    let before = world.node().unwrap().keepalive;
    world.pass(300).await;
    assert!(world.hypervisor.is_there(up) && !world.hypervisor.is_there(down));
    assert_eq!(world.state(down), "start", "it has not failed, it waits");
    assert!(world.node().unwrap().keepalive >= before + 295, "the keepalive goes on");
    assert_eq!(world.node().unwrap().running, [up]);
    // What a guest leaves that dies meanwhile is not offered to others: it is listed still, and
    // started again.
    let free = world.node().unwrap().figures.memory_free_mib;
    let load = |memory_free_mib| HostLoad {
        memory_total_mib: 16_384,
        memory_used_mib: 4096,
        memory_free_mib,
        load: 0.5,
    };
    world.host.set_load(load(free + 4096));
    world.pass(10).await;
    assert_eq!(world.node().unwrap().figures.memory_free_mib, free);
    world.host.set_load(load(free - 1024));
    world
        .until("what is taken is told", || {
            world.node().unwrap().figures.memory_free_mib == free - 1024
        })
        .await;
    world.host.set_load(load(free));
    let message = world.until_fault("HYPERVISOR_UNREACHABLE_HV1").await;
    assert!(
        message.contains("connection refused") && message.contains("systemctl status libvirtd"),
        "{message}"
    );
    world.hypervisor.set_unreachable(false);
    world.until_runs(down).await;
    world
        .until("what is free is told", || world.node().unwrap().figures.memory_free_mib == free)
        .await;
    world.until("the other is off", || !world.hypervisor.is_there(up)).await;
    let last = world.view().faults["HYPERVISOR_UNREACHABLE_HV1"].last_reported.clone();
    world.pass(300).await;
    assert_eq!(
        world.view().faults["HYPERVISOR_UNREACHABLE_HV1"].last_reported,
        last,
        "that is over"
    );
}

#[tokio::test(start_paused = true)]
async fn a_hypervisor_that_is_restarted_is_no_fault() {
    let world = world().await;
    let _daemon = world.running().await;
    world.hypervisor.set_unreachable(true);
    world.pass(10).await;
    world.hypervisor.set_unreachable(false);
    world.pass(60).await;
    assert!(world.view().faults.is_empty());
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
    let told = move |what: &str| said.send_modify(|said| *said = (said.0 + 1, what.to_owned()));
    let daemon = world.start_as(|node| node.when_waiting(told)).await;
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
async fn own_locks_are_freed_and_those_of_others_are_not() {
    let world = world().await;
    let own = world.define(1, VmState::Start).await;
    world.storage.lock("vms/vm1_sda", "10.0.1.1");
    let foreign = world.define(2, VmState::Start).await;
    world.storage.lock("vms/vm2_sda", "10.0.1.2");
    let _daemon = world.running().await;
    world.until_runs(own).await;
    world.until_state(foreign, "fail").await;
    let reason = world.vm(foreign).failed_reason.clone();
    assert!(
        reason.contains("Could not safely free RBD lock") && reason.contains("10.0.1.2"),
        "{reason}"
    );
    assert!(!world.hypervisor.is_there(foreign));
}

/// A world with Ceph, whose volumes keep their names in the guests' XML.
async fn world_with_ceph() -> world::World {
    let mut world = world().await;
    let access =
        RbdAccess { monitors: Vec::new(), port: 6789, user: "libvirt".to_owned(), secret: None };
    world.storage = Arc::new(MemoryStorage::of_cluster(Arc::new(ScriptedCluster::new(access))));
    world
}

async fn modified(world: &world::World, vm: Uuid, from: &str, to: &str) {
    let mut changes = Changes::new();
    changes.vm(vm, VmChange::Xml(world.vm(vm).xml.replace(from, to)));
    world.change(changes).await;
}

/// The guest would go on writing to a volume that another has as well, or lose it.
#[tokio::test(start_paused = true)]
async fn a_start_asks_the_other_guests_before_a_lock_goes() {
    for is_shared in [true, false] {
        let world = world_with_ceph().await;
        let other = world.define(2, VmState::Start).await;
        let shareable = "<target dev='sda' bus='scsi'/><shareable/>";
        modified(&world, other, "<target dev='sda' bus='scsi'/>", shareable).await;
        let _daemon = world.running().await;
        world.until_runs(other).await;
        world.storage.lock("vms/vm2_sda", "10.0.1.1");
        // By its record it has another volume by now; by its hypervisor it has this one.
        modified(&world, other, "vms/vm2_sda", "vms/vm9_sda").await;
        let vm = world.define(1, VmState::Stop).await;
        modified(&world, vm, "vms/vm1_sda", "vms/vm2_sda").await;
        if is_shared {
            modified(&world, vm, "<target dev='sda' bus='scsi'/>", shareable).await;
        }
        world.request(vm, VmState::Start).await;
        if is_shared {
            world.until_runs(vm).await;
        } else {
            world.until_state(vm, "fail").await;
            let reason = world.vm(vm).failed_reason.clone();
            assert!(
                reason.contains("`vms/vm2_sda` is in use by VM `vm2`, which runs on node `hv1`"),
                "{reason}"
            );
        }
        let locks =
            Storage::locks(&*world.storage, &VolumeId::from_record("vms/vm2_sda").unwrap()).await;
        assert_eq!(locks.unwrap().len(), 1, "the living guest keeps its lock");
    }
}

#[tokio::test(start_paused = true)]
async fn whatever_starts_a_vm_is_refused_while_a_rival_for_its_volume_runs() {
    let world = world_with_ceph().await;
    let (rival, vm) = (world.define(2, VmState::Start).await, world.define(1, VmState::Stop).await);
    modified(&world, vm, "vms/vm1_sda", "vms/vm2_sda").await;
    let _daemon = world.running().await;
    world.until_runs(rival).await;
    // As a fence, a node made ready, or a legacy peer writes it: nobody has looked.
    world.request(vm, VmState::Start).await;
    world.until_state(vm, "fail").await;
    let reason = world.vm(vm).failed_reason.clone();
    assert!(reason.contains("in use by VM `vm2`, which runs on node `hv1`"), "{reason}");
    assert_eq!(world.hypervisor.count("start", vm), 0);
}

/// Two nodes on one Ceph, each with an address of its own there.
async fn two_with_ceph() -> (world::World, world::World) {
    let mut one = world_with_ceph().await;
    one.settings.storage_address = Some("10.0.1.1".to_owned());
    let mut two = one.another("hv2").await;
    two.settings.storage_address = Some("10.0.1.2".to_owned());
    (one, two)
}

async fn locks_of(world: &world::World, volume: &str) -> usize {
    Storage::locks(&*world.storage, &VolumeId::from_record(volume).unwrap()).await.unwrap().len()
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_a_living_node_left_is_freed_by_that_node_and_the_start_waits_for_it() {
    let (one, two) = two_with_ceph().await;
    let _daemons = [one.running().await, two.running().await];
    let vm = two.define(1, VmState::Stop).await;
    two.storage.lock("vms/vm1_sda", "10.0.1.1");
    two.request(vm, VmState::Start).await;
    two.until("it runs, or has failed", || {
        two.hypervisor.run(vm) == Some(GuestRun::Running) || two.state(vm) == "fail"
    })
    .await;
    assert_eq!((two.state(vm).as_str(), locks_of(&two, "vms/vm1_sda").await), ("start", 0));
}

#[tokio::test(start_paused = true)]
async fn a_lock_of_a_guest_that_lives_on_another_node_is_never_broken_and_the_start_gives_up() {
    let (one, two) = two_with_ceph().await;
    let _daemons = [one.running().await, two.running().await];
    let other = one.define(2, VmState::Stop).await;
    modified(
        &one,
        other,
        "<target dev='sda' bus='scsi'/>",
        "<target dev='sda' bus='scsi'/><shareable/>",
    )
    .await;
    one.request(other, VmState::Start).await;
    one.until_runs(other).await;
    one.storage.lock("vms/vm2_sda", "10.0.1.1");
    let vm = two.define(1, VmState::Stop).await;
    modified(&two, vm, "vms/vm1_sda", "vms/vm2_sda").await;
    two.request(vm, VmState::Start).await;
    two.until_state(vm, "fail").await;
    let reason = two.vm(vm).failed_reason.clone();
    assert!(reason.contains("node hv1, whose it is, has not freed it within 60 s"), "{reason}");
    assert_eq!((locks_of(&two, "vms/vm2_sda").await, two.hypervisor.count("start", vm)), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn what_a_guest_left_locked_is_freed_by_its_node_as_soon_as_it_is_gone() {
    for is_killed in [true, false] {
        let world = world_with_ceph().await;
        let vm = world.define(1, VmState::Start).await;
        let _daemon = world.running().await;
        world.until_runs(vm).await;
        world.storage.lock("vms/vm1_sda", "10.0.1.1");
        world.request(vm, VmState::Stop).await;
        if is_killed {
            world.hypervisor.kill(vm);
        }
        world.pass(20).await;
        assert_eq!(locks_of(&world, "vms/vm1_sda").await, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_a_vm_that_would_not_start_again_leaves_its_guest_as_it_is() {
    let world = world_with_ceph().await;
    let vm = world.define(1, VmState::Start).await;
    let _daemon = world.running().await;
    world.until_runs(vm).await;
    let before = world.hypervisor.instance(vm);
    Storage::remove(&*world.storage, &VolumeId::from_record("vms/vm1_sda").unwrap()).await.unwrap();
    world.request(vm, VmState::Restart).await;
    let message = world.until_fault("VM_NOT_RESTARTED_VM1").await;
    assert!(
        message.contains("runs on") && message.contains("volume `vms/vm1_sda` does not exist"),
        "{message}"
    );
    world.until_state(vm, "start").await;
    world.pass(60).await;
    assert_eq!(
        (world.hypervisor.instance(vm), world.hypervisor.count("shutdown", vm)),
        (before, 0)
    );
    let why = world.vm(vm).not_restarted().map(str::to_owned);
    assert!(
        why.as_ref().is_some_and(|why| why.contains("does not exist")),
        "whoever waits for it: {why:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn storage_that_does_not_answer_is_tried_again() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    world.storage.set_failing(true);
    let _daemon = world.running().await;
    world.pass(60).await;
    assert_eq!(world.state(uuid), "start");
    world.storage.set_failing(false);
    world.until_runs(uuid).await;
}

#[tokio::test(start_paused = true)]
async fn flushing_the_only_node_shuts_its_vms_down_and_ready_brings_them_back() {
    let world = world().await;
    let mut vms = Vec::new();
    for number in 1..=6 {
        vms.push(world.define(number, VmState::Start).await);
    }
    let off = world.define(7, VmState::Stop).await;
    let _daemon = world.running().await;
    for vm in &vms {
        world.hypervisor.set_manner(
            *vm,
            Manner { shutdown_takes: Duration::from_secs(9), ..Manner::default() },
        );
        world.until_runs(*vm).await;
    }
    world.until("all are listed", || world.node().unwrap().running.len() == 6).await;
    world.request_node(DomainState::Flush).await;
    world.pass(5).await;
    let down = vms.iter().filter(|vm| world.state(**vm) == "shutdown").count();
    assert_eq!(down, 4, "not all at once");
    world
        .until("it is flushed", || world.node().unwrap().domain_state == DomainState::Flushed)
        .await;
    assert!(vms.iter().all(|vm| !world.hypervisor.is_there(*vm) && world.vm(*vm).autostart));
    world.pass(30).await;
    world.request_node(DomainState::Unflush).await;
    world.until("it is ready", || world.node().unwrap().domain_state == DomainState::Ready).await;
    for vm in &vms {
        world.until_runs(*vm).await;
        assert!(!world.vm(*vm).autostart);
    }
    assert!(!world.hypervisor.is_there(off));
}

#[tokio::test(start_paused = true)]
async fn a_flush_can_be_turned_round_while_its_last_vm_hangs() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    world.hypervisor.set_manner(uuid, Manner { ignores_shutdown: true, ..Manner::default() });
    let _daemon = world.running().await;
    world.until_runs(uuid).await;
    world.request_node(DomainState::Flush).await;
    world.until_state(uuid, "shutdown").await;
    world.request_node(DomainState::Unflush).await;
    world.until("it is ready", || world.node().unwrap().domain_state == DomainState::Ready).await;
    world.pass(300).await;
    assert_eq!((world.state(uuid).as_str(), world.vm(uuid).autostart), ("start", false));
    assert!(world.hypervisor.is_there(uuid));
    world.request(uuid, VmState::Stop).await;
    world.until("orders are still heard", || !world.hypervisor.is_there(uuid)).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_taken_for_dead_ends_the_copies_of_others_before_it_says_that_it_runs() {
    for daemon_dies in [false, true] {
        let world = world().await;
        let moved = world.define(1, VmState::Start).await;
        let kept = world.define(2, VmState::Start).await;
        let daemon = world.running().await;
        for vm in [moved, kept] {
            world.until_runs(vm).await;
        }
        daemon.connection.cut();
        world.pass(60).await;
        let other = pvc_store::NewNode {
            name: NodeName::new("hv2"),
            role: NodeRole::Coordinator,
            cpus: 4,
            kernel: "6".to_owned(),
            os: "GNU/Linux".to_owned(),
            arch: "x86_64".to_owned(),
            version: "1.0.3".to_owned(),
            ipmi: pvc_store::Ipmi::default(),
            keepalive: 0,
        };
        let mut changes = Changes::new();
        changes.push(Change::AddNode(Box::new(other)));
        world.change(changes).await;
        let mut changes = Changes::new();
        changes.node(&NodeName::new("hv1"), NodeChange::Daemon(DaemonState::Fenced));
        changes
            .vm(moved, VmChange::Node(NodeName::new("hv2")))
            .vm(moved, VmChange::State(VmState::Start));
        world.change(changes).await;
        let _daemon = if daemon_dies {
            daemon.kill().await;
            world.start().await
        } else {
            daemon.connection.mend();
            daemon
        };
        world
            .until("it runs again", || {
                let runs = world.node().unwrap().daemon_state == DaemonState::Run;
                assert!(
                    !runs || !world.hypervisor.is_there(moved),
                    "it runs with a copy of somebody else's VM"
                );
                runs
            })
            .await;
        assert!(world.hypervisor.is_there(kept));
        assert_eq!(world.hypervisor.count("start", kept), 1);
    }
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

#[tokio::test(start_paused = true)]
async fn a_tree_that_was_made_anew_gets_the_announcement_again_or_ends_the_daemon_that_lost_its_name()
 {
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
async fn consoles_reach_the_store_with_junk_rotation_and_a_limited_rate() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    let path = Path::new(CONSOLES).join("vm1.log");
    let _daemon = world.running().await;
    world.until_runs(uuid).await;
    world.files.insert(&path, b"Linux version 6.12\n\xff\x00login:");
    let arrives = async |text: &str| {
        for _ in 0..2000 {
            if world.operator.console_log(uuid).await.unwrap().unwrap_or_default().ends_with(text) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{text:?} never arrived: {:?}", world.operator.console_log(uuid).await);
    };
    arrives("6.12\n\u{fffd}\u{fffd}login:").await;
    world.files.insert(&path, b"after the rotation\n");
    arrives("after the rotation\n").await;
    world.files.insert(&path, b"Kernel panic");
    world.request(uuid, VmState::Stop).await;
    arrives("Kernel panic").await;
}

#[tokio::test(start_paused = true)]
async fn log_lines_reach_the_store_in_order_and_the_last_ones_at_the_end() {
    let world = world().await;
    let (sender, receiver) = tokio::sync::mpsc::channel(10);
    let daemon = world.start_as(|node| node.with_log(Some(receiver))).await;
    world
        .until("it runs", || world.node().is_some_and(|node| node.daemon_state == DaemonState::Run))
        .await;
    for number in 0..60 {
        sender.send(format!("line {number}")).await.unwrap();
    }
    world.pass(5).await;
    sender.send("the last one".to_owned()).await.unwrap();
    daemon.stop().await;
    let log = world.operator.node_log(&NodeName::new("hv1")).await.unwrap().unwrap();
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 50);
    assert_eq!((lines[0], lines[49]), ("line 11", "the last one"));
}

#[tokio::test(start_paused = true)]
async fn a_paused_guest_is_reported_and_does_not_stop_the_figures() {
    let world = world().await;
    let (paused, other) =
        (world.define(1, VmState::Start).await, world.define(2, VmState::Start).await);
    let _daemon = world.running().await;
    for vm in [paused, other] {
        world.until_runs(vm).await;
    }
    world.hypervisor.set_run(paused, GuestRun::Paused);
    assert!(world.until_fault("VM_PAUSED_VM1").await.contains("virsh resume"));
    world.until("the other has statistics", || !world.vm(other).stats.is_empty()).await;
    assert_eq!(world.hypervisor.count("destroy", paused), 0);
}

#[tokio::test(start_paused = true)]
async fn a_primary_that_is_asked_to_step_back_stays_if_nobody_else_is_there() {
    let world = world().await;
    let _daemon = world.running().await;
    world
        .until("it is primary", || {
            world.node().unwrap().coordinator_state == CoordinatorState::Primary
        })
        .await;
    let mut changes = Changes::new();
    changes.config(ConfigChange::Primary(None));
    world.change(changes).await;
    world
        .until("its name is there again", || {
            world.view().config.primary == Some(NodeName::new("hv1"))
        })
        .await;
    assert_eq!(world.node().unwrap().coordinator_state, CoordinatorState::Primary);
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

/// A world whose node has a BMC of this manner.
async fn world_with_bmc(manner: BmcManner) -> world::World {
    let mut world = world().await;
    world.power.set_manner("hv1-ipmi", manner);
    let (hostname, username) = ("hv1-ipmi".to_owned(), "admin".to_owned());
    world.settings.ipmi =
        Some(pvc_store::Ipmi { hostname, username, password: "secret".to_owned() });
    world
}

#[tokio::test(start_paused = true)]
async fn the_own_bmc_is_asked_at_the_start_and_a_dead_one_does_not_stop_the_start() {
    for dead in [false, true] {
        let world = world_with_bmc(BmcManner { dead, ..BmcManner::default() }).await;
        let _daemon = world.running().await;
        world.pass(60).await;
        assert_eq!(world.power.calls(), ["status hv1-ipmi"]);
        assert_eq!(world.node().unwrap().ipmi_hostname, "hv1-ipmi");
    }
}

#[tokio::test(start_paused = true)]
async fn a_bmc_that_says_off_is_out_of_the_record_until_the_daemon_starts_anew() {
    let lies = BmcManner { lies: true, ..BmcManner::default() };
    let world = world_with_bmc(lies.clone()).await;
    let daemon = world.running().await;
    assert_eq!(world.node().unwrap().ipmi_hostname, "", "before it says that it runs");
    let message = world.until_fault("BMC_UNUSABLE_HV1").await;
    assert!(message.contains("it says that the power is off while the node runs"), "{message}");
    // It may be that another machine was switched on.
    world.power.set_manner("hv1-ipmi", BmcManner::default());
    world.pass(700).await;
    assert_eq!(world.node().unwrap().ipmi_hostname, "");
    daemon.stop().await;
    let _daemon = world.running().await;
    world
        .until("it is recorded", || {
            let recorded = world.operator.ipmi(&"hv1".into()).unwrap_or_default();
            (&*recorded.hostname, &*recorded.password) == ("hv1-ipmi", "secret")
        })
        .await;
    world.power.set_manner("hv1-ipmi", lies);
    world.until("it is found out", || world.node().unwrap().ipmi_hostname.is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_bmc_that_says_off_for_a_moment_stays_in_the_record() {
    let world = world_with_bmc(BmcManner::default()).await;
    let _daemon = world.running().await;
    world.power.set_manner("hv1-ipmi", BmcManner { lies: true, ..BmcManner::default() });
    world.until("it has said so once", || world.power.calls().len() == 2).await;
    world.power.set_manner("hv1-ipmi", BmcManner::default());
    world.pass(60).await;
    assert_eq!(world.power.calls().len(), 3, "it was asked once more");
    assert_eq!(world.node().unwrap().ipmi_hostname, "hv1-ipmi");
    assert!(world.view().faults.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_bmc_that_stays_silent_is_a_fault_before_it_is_needed() {
    let world = world_with_bmc(BmcManner::default()).await;
    let _daemon = world.running().await;
    world.power.set_manner("hv1-ipmi", BmcManner { dead: true, ..BmcManner::default() });
    world.pass(330).await;
    assert!(world.view().faults.is_empty(), "it may have been busy");
    let message = world.until_fault("BMC_UNUSABLE_HV1").await;
    assert!(message.starts_with("the BMC `hv1-ipmi` of node hv1 cannot be used: "), "{message}");
    assert_eq!(world.node().unwrap().ipmi_hostname, "hv1-ipmi", "others may reach it");
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
async fn a_daemon_told_to_stop_while_it_starts_stops() {
    let mut world = world().await;
    world.settings.standalone = false;
    world.tree = pvc_embedded::EmbeddedTree::in_memory();
    let daemon = world.start().await;
    world.pass(30).await;
    assert!(!daemon.task.is_finished(), "it waits for a cluster");
    assert_eq!(daemon.stop().await, Outcome::Stopped);
}

#[tokio::test(start_paused = true)]
async fn a_daemon_told_to_stop_in_the_middle_of_its_start_leaves_no_record_that_it_starts() {
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
async fn a_daemon_told_to_stop_while_another_has_its_name_leaves_the_record_to_that() {
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

#[tokio::test(start_paused = true)]
async fn a_guest_that_was_only_booting_hears_the_next_press() {
    let world = world().await;
    let uuid = world.define(1, VmState::Start).await;
    world.hypervisor.set_manner(uuid, Manner { ignores_shutdown: true, ..Manner::default() });
    let _daemon = world.running().await;
    world.until_runs(uuid).await;
    world.request(uuid, VmState::Shutdown).await;
    world.pass(10).await;
    world.hypervisor.set_manner(uuid, Manner::default());
    world.pass(15).await;
    assert_eq!(world.state(uuid), "stop");
    assert_eq!(world.hypervisor.count("destroy", uuid), 0);
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
