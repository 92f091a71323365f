//! The node is flushed, made ready, taken for dead, and keeps the primary role.

use super::*;

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
async fn a_vm_whose_volume_is_rolled_back_is_left_off_by_a_node_that_becomes_ready_as_a_fault_says()
{
    let world = world().await;
    let uuid = world.define(1, VmState::Stop).await;
    let mut changes = Changes::new();
    changes.vm(uuid, VmChange::Autostart(true)).push(Change::HoldVolume(VolumeHold {
        volume: VolumeId::parse("vms/vm1_sda").unwrap(),
        purpose: Purpose::RollBack(SnapshotName::new("s0")),
        by: "somebody".to_owned(),
    }));
    world.change(changes).await;
    let _daemon = world.running().await;
    world.request_node(DomainState::Unflush).await;
    world.until("it is ready", || world.node().unwrap().domain_state == DomainState::Ready).await;
    let message = world.until_fault("VM_LEFT_OFF_VM1").await;
    assert_eq!(
        message,
        "VM vm1 was to be started when its node became ready, and is left off: volume \
         `vms/vm1_sda` is being rolled back to snapshot `s0`. Start it with `pvc vm start vm1` \
         when that is over"
    );
    assert_eq!(world.state(uuid), "stop");
}

#[tokio::test(start_paused = true)]
async fn a_flush_can_be_reversed_while_its_last_vm_hangs() {
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
async fn a_node_that_is_given_a_vm_in_the_last_moment_sees_to_it_before_it_is_ready_or_flushed() {
    for (request, given, done, wanted) in [
        (DomainState::Unflush, VmState::Stop, DomainState::Ready, ("start", false)),
        (DomainState::Flush, VmState::Start, DomainState::Flushed, ("stop", true)),
    ] {
        let world = world().await;
        let uuid = world.define(1, VmState::Stop).await;
        let mut changes = Changes::new();
        changes.vm(uuid, VmChange::Node(NodeName::new("hv2")));
        changes.vm(uuid, VmChange::Autostart(given == VmState::Stop));
        world.change(changes).await;
        let daemon = world.running().await;
        let operator = world.operator.clone();
        daemon.connection.before_next_set("/nodes/hv1/domainstate", async move {
            let mut changes = Changes::new();
            changes.vm(uuid, VmChange::Node(NodeName::new("hv1")));
            changes.vm(uuid, VmChange::State(given)).expect(Expect::Placements);
            let decide = |_: &Cluster| Ok::<_, std::convert::Infallible>((changes.clone(), ()));
            operator.change(decide).await.unwrap();
        });
        world.request_node(request).await;
        world.until("it says that it is done", || world.node().unwrap().domain_state == done).await;
        let vm = world.vm(uuid);
        assert_eq!(vm.node, Some(NodeName::new("hv1")));
        assert_eq!((vm.state.as_str(), vm.autostart), wanted, "{done}");
    }
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
