//! Odd input harms only itself, and is reported.

use super::*;

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

/// An older cluster may have one: our API refuses it.
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
