//! The life of pools, volumes and snapshots on Ceph, by `pvc`, while a guest runs.

use pvc_lab_tests::Lab;
use pvc_standalone_tests::{Output, eventually};

#[test]
fn pools_volumes_and_snapshots_have_their_life_on_ceph() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv2");
    let storage = |line: &str| {
        let words: Vec<&str> = ["storage"].into_iter().chain(line.split(' ')).collect();
        lab.pvc(&words)
    };
    let copies = "--replcfg copies=2,mincopies=1";
    a_pool_is_made_with_its_copies(&lab, &storage, copies);
    a_volume_and_its_snapshots_change(&lab, &storage);
    // Known already, after another story.
    storage("pool add vms 16");
    storage("volume scan vms web1_sda").ok();
    a_running_guest_sees_its_disk_grow(&lab, &storage);
    what_it_uses_stays_as_it_is(&storage);
    storage("pool remove fast -y").says(&["with 2 volumes"]);
    let pools = lab.on("pvchv1", "ceph osd pool ls");
    assert!(!pools.ok().contains("fast"), "{pools}");
}

fn a_pool_is_made_with_its_copies(lab: &Lab, storage: &impl Fn(&str) -> Output, copies: &str) {
    storage("pool add lone 8 --replcfg copies=1,mincopies=1").fails(1);
    storage(&format!("pool add fast 7 {copies}")).fails(1);
    storage(&format!("pool add fast 8 {copies} --tier nvme")).fails(1);
    storage(&format!("pool add fast 8 {copies}")).says(&["Created pool \"fast\"."]);
    storage(&format!("pool add fast 8 {copies}")).fails(1);
    let detail = lab.on("pvchv1", "ceph osd pool ls detail | grep \"'fast'\"");
    detail.says(&["size 2 ", "min_size 1", "pg_num 8", "application rbd"]);
    storage("pool set-pgs fast 16 -y").ok();
    storage("pool info fast").says(&["16"]);
    assert_eq!(lab.key("/ceph/pools/fast/pgs"), "16", "legacy peers read it there");
    assert_eq!(lab.key("/ceph/pools/fast/tier"), "default");
}

fn a_volume_and_its_snapshots_change(lab: &Lab, storage: &impl Fn(&str) -> Output) {
    storage("volume add fast data 64M").ok();
    storage("volume add fast huge 9E").fails(1);
    lab.on("pvchv1", "rbd info fast/data").says(&["size 64 MiB"]);
    lab.on("pvchv2", "printf 'as it was' | rbd import - fast/text && rbd rm fast/data").ok();
    storage("volume scan fast data").ok();
    storage("volume scan fast text").ok();
    storage("volume snapshot add fast text before").ok();
    let text = "rbd export --no-progress fast/text -";
    lab.on("pvchv3", &format!("{text} | grep 'as it was'")).ok();
    storage("volume resize fast text 1M -y").ok();
    storage("volume resize fast text 1K -y").fails(1);
    storage("volume snapshot rollback fast text before -y").ok();
    lab.on("pvchv3", &format!("{text} | grep 'as it was'")).ok();
    storage("volume clone fast text copy").ok();
    storage("volume rename fast text more -y").ok();
    storage("volume snapshot list -f raw").says(&["fast/more@before"]);
    storage("volume snapshot rename fast more before then").ok();
    lab.on("pvchv1", "rbd snap ls fast/more").says(&["then"]);
    assert!(lab.key("/ceph/snapshots/fast/more/then/stats").contains("\"size\""));
    storage("volume snapshot remove fast more then -y").ok();
    let left = storage("volume list -p fast -f raw");
    assert_eq!(left.ok().lines().collect::<Vec<_>>(), ["fast/copy", "fast/more"]);
}

fn a_running_guest_sees_its_disk_grow(lab: &Lab, storage: &impl Fn(&str) -> Output) {
    storage("volume resize vms web1_sda 256M -y").says(&["notified by tasks: web1"]);
    eventually("the guest has the size", 60, || {
        let seen = lab.on("pvchv2", "virsh domblkinfo web1 sda");
        if seen.ok().contains("268435456") { Ok(()) } else { Err(seen.to_string()) }
    });
}

fn what_it_uses_stays_as_it_is(storage: &impl Fn(&str) -> Output) {
    storage("volume snapshot add vms web1_sda running").ok();
    for line in [
        "volume remove vms web1_sda -y --force",
        "volume rename vms web1_sda other -y --force",
        "volume resize vms web1_sda 1M -y --force",
        "volume snapshot rollback vms web1_sda running -y",
        "pool remove vms -y --force",
    ] {
        let said = storage(line).fails(1);
        assert!(said.contains("`web1`"), "{line}: {said}");
    }
    storage("volume snapshot remove vms web1_sda running -y").ok();
}
