//! Locks on volumes are freed or left, and rivals for a volume are refused.

use super::*;

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
    for (of_other, of_vm) in [(true, true), (true, false), (false, true)] {
        let world = world_with_ceph().await;
        let other = world.define(2, VmState::Start).await;
        let shareable = "<target dev='sda' bus='scsi'/><shareable/>";
        if of_other {
            modified(&world, other, "<target dev='sda' bus='scsi'/>", shareable).await;
        }
        let _daemon = world.running().await;
        world.until_runs(other).await;
        world.storage.lock("vms/vm2_sda", "10.0.1.1");
        // By its record it has another volume by now; by its hypervisor it has this one.
        modified(&world, other, "vms/vm2_sda", "vms/vm9_sda").await;
        let vm = world.define(1, VmState::Stop).await;
        modified(&world, vm, "vms/vm1_sda", "vms/vm2_sda").await;
        if of_vm {
            modified(&world, vm, "<target dev='sda' bus='scsi'/>", shareable).await;
        }
        world.request(vm, VmState::Start).await;
        if of_other && of_vm {
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
async fn a_restart_of_one_of_two_that_share_a_volume_leaves_the_others_lock() {
    let world = world_with_ceph().await;
    let (other, vm) =
        (world.define(2, VmState::Start).await, world.define(1, VmState::Start).await);
    let shareable = "<target dev='sda' bus='scsi'/><shareable/>";
    for each in [other, vm] {
        modified(&world, each, "<target dev='sda' bus='scsi'/>", shareable).await;
    }
    modified(&world, vm, "vms/vm1_sda", "vms/vm2_sda").await;
    let _daemon = world.running().await;
    world.until_runs(other).await;
    world.until_runs(vm).await;
    world.storage.lock("vms/vm2_sda", "10.0.1.1");
    let before = world.hypervisor.count("start", vm);
    world.request(vm, VmState::Restart).await;
    world.until("it was restarted", || world.hypervisor.count("start", vm) > before).await;
    world.until_runs(vm).await;
    let locks =
        Storage::locks(&*world.storage, &VolumeId::from_record("vms/vm2_sda").unwrap()).await;
    assert_eq!(locks.unwrap().len(), 1, "the living guest keeps its lock");
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

/// The start gave up, and told to flush the lock of the other guest.
#[tokio::test(start_paused = true)]
async fn a_vm_starts_while_one_that_shares_its_volume_has_the_lock_on_another_node() {
    let (one, two) = two_with_ceph().await;
    let _daemons = [one.running().await, two.running().await];
    let (from, to) =
        ("<target dev='sda' bus='scsi'/>", "<target dev='sda' bus='scsi'/><shareable/>");
    let other = one.define(2, VmState::Stop).await;
    modified(&one, other, from, to).await;
    one.request(other, VmState::Start).await;
    one.until_runs(other).await;
    one.storage.lock("vms/vm2_sda", "10.0.1.1");
    let vm = two.define(1, VmState::Stop).await;
    modified(&two, vm, from, to).await;
    modified(&two, vm, "vms/vm1_sda", "vms/vm2_sda").await;
    two.request(vm, VmState::Start).await;
    two.until("it runs, or has failed", || {
        two.hypervisor.run(vm) == Some(GuestRun::Running) || two.state(vm) == "fail"
    })
    .await;
    let reason = two.vm(vm).failed_reason.clone();
    assert_eq!((two.state(vm).as_str(), reason.as_str()), ("start", ""));
    assert_eq!(locks_of(&two, "vms/vm2_sda").await, 1, "the living guest keeps its lock");
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
    for (rival_runs, cause) in [
        (false, "volume `vms/vm1_sda` does not exist"),
        (true, "volume `vms/vm2_sda` is in use by VM `vm2`, which runs on node `hv1`"),
    ] {
        let world = world_with_ceph().await;
        let vm = world.define(1, VmState::Start).await;
        let rival = world.define(2, VmState::Start).await;
        let _daemon = world.running().await;
        world.until_runs(vm).await;
        world.until_runs(rival).await;
        let before = world.hypervisor.instance(vm);
        if rival_runs {
            modified(&world, vm, "vms/vm1_sda", "vms/vm2_sda").await;
        } else {
            let volume = VolumeId::from_record("vms/vm1_sda").unwrap();
            Storage::remove(&*world.storage, &volume).await.unwrap();
        }
        // As a legacy API writes it: nobody has looked.
        world.request(vm, VmState::Restart).await;
        let message = world.until_fault("VM_NOT_RESTARTED_VM1").await;
        assert!(message.contains("runs on") && message.contains(cause), "{message}");
        world.until_state(vm, "start").await;
        world.pass(60).await;
        assert_eq!(
            (world.hypervisor.instance(vm), world.hypervisor.count("shutdown", vm)),
            (before, 0)
        );
        let why = world.vm(vm).not_restarted().map(str::to_owned);
        assert!(
            why.as_ref().is_some_and(|why| why.contains(cause)),
            "whoever waits for it: {why:?}"
        );
    }
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
