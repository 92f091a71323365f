//! The storage on Ceph, by `pvc`, while a guest runs: the life of pools, volumes, snapshots and
//! OSDs, contents in and out, and benchmarks.

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

#[test]
fn contents_come_and_go_and_what_was_removed_comes_back() {
    let lab = Lab::whole();
    let pvc = |line: &str| lab.pvc(&line.split(' ').collect::<Vec<_>>());
    pvc("storage pool add stock 8 --replcfg copies=2,mincopies=1").ok();
    pvc("storage volume add stock disk 32M").ok();
    let image = "cd /root && rm -f disk.* && qemu-img create -q -f qcow2 disk.qcow2 32M && \
                 qemu-io -c 'write -q -P 7 1M 4M' disk.qcow2 && \
                 qemu-img convert -O raw disk.qcow2 disk.raw && \
                 head -c 200000 disk.qcow2 >disk.cut && gzip -k disk.qcow2";
    lab.on("pvchv1", image).ok();
    let is_the_image = |lab: &Lab, volume: &str| {
        let compare = format!("rbd export --no-progress {volume} - | cmp - /root/disk.raw");
        lab.on("pvchv1", &compare).ok();
    };
    for file in ["disk.qcow2", "disk.qcow2.gz"] {
        let said = pvc(&format!("storage volume upload -y -f qcow2 stock disk /root/{file}"));
        said.says(&["Wrote uploaded file to volume \"stock/disk\".", "CRC-32 of the file: "]);
        is_the_image(&lab, "stock/disk");
    }
    pvc("storage volume upload -y -f qcow2 stock disk /root/disk.cut").fails(1);
    pvc("storage volume upload -y -f raw stock disk /root/disk.qcow2").fails(1);
    is_the_image(&lab, "stock/disk");
    pvc("storage volume download stock disk /root/disk.saved").ok();
    lab.on("pvchv1", "cmp /root/disk.saved /root/disk.raw").ok();
    for (format, compression) in [("vmdk", "xz"), ("vhdx", "zstd")] {
        let file = format!("/root/disk.{format}.{compression}");
        let options = format!("-f {format} -c {compression}");
        pvc(&format!("storage volume download {options} stock disk {file}")).ok();
        pvc(&format!("storage volume upload -y -f {format} stock disk {file}")).ok();
        is_the_image(&lab, "stock/disk");
    }
    let bad = "cd /root && qemu-img create -q -f qcow2 -F raw -b /etc/shadow disk.bad 32M";
    lab.on("pvchv1", bad).ok();
    pvc("storage volume upload -y -f qcow2 stock disk /root/disk.bad").fails(1);
    is_the_image(&lab, "stock/disk");

    pvc("storage volume clone --copy-on-write stock disk copy").ok();
    lab.on("pvchv1", "rbd info stock/copy | grep parent").ok();
    pvc("storage volume remove stock disk -y").fails(1);
    pvc("storage volume flatten stock copy").ok();
    is_the_image(&lab, "stock/copy");
    assert!(!lab.on("pvchv1", "rbd info stock/copy").ok().contains("parent"));

    // What new contents have replaced is in the trash, too.
    let trashed = || lab.on("pvchv1", "rbd trash ls stock").ok().to_owned();
    let before = trashed();
    pvc("storage volume remove stock disk -y").ok();
    let after = trashed();
    let removed = after.lines().find(|line| !before.contains(*line)).expect("it is in the trash");
    let id = removed.split_whitespace().next().expect("a line begins with an id").to_owned();
    pvc("storage trash list -p stock").says(&[&id, "disk"]);
    pvc(&format!("storage trash restore stock {id} --name back")).ok();
    is_the_image(&lab, "stock/back");
    let old = before.split_whitespace().next().expect("an upload has left it there").to_owned();
    pvc(&format!("storage trash purge stock {old} -y")).ok();
    assert!(!trashed().contains(&old), "{}", trashed());
    a_snapshot_that_a_clone_stands_on_stays(&lab, &pvc);
    // A clone, and what it stands on, which comes before it by name and is in the trash.
    pvc("storage volume clone --copy-on-write stock back child").ok();
    pvc("storage volume remove stock child -y").ok();
    pvc("storage pool remove stock -y").says(&["with 2 volumes"]);
    lab.on("pvchv1", "rm -f /root/disk.*").ok();
}

/// The clone is somebody's who uses the pool beside PVC.
fn a_snapshot_that_a_clone_stands_on_stays(lab: &Lab, pvc: &impl Fn(&str) -> Output) {
    let clone = "rbd snap create stock/back@base && rbd snap protect stock/back@base && rbd clone \
                 --rbd-default-clone-format=1 stock/back@base stock/stands";
    lab.on("pvchv1", clone).ok();
    pvc("storage volume scan stock back").ok();
    let kept = pvc("storage volume snapshot remove stock back base -y").fails(1);
    assert!(kept.contains("is protected") && kept.contains("flatten"), "{kept}");
    let free = "rbd rm --no-progress stock/stands && rbd snap unprotect stock/back@base";
    lab.on("pvchv1", free).ok();
    pvc("storage volume snapshot remove stock back base -y").ok();
}

#[test]
fn a_running_guest_gets_a_disk_and_gives_it_back_and_its_locks_stay() {
    let lab = Lab::whole();
    lab.start("web1", "pvchv2");
    let pvc = |line: &str| lab.pvc(&line.split(' ').collect::<Vec<_>>());
    // Known already, after another story.
    pvc("storage pool add vms 16");
    pvc("storage volume add vms web1_data 32M").ok();
    pvc("vm volume add web1 vms/web1_data -d sdb --live -y").ok();
    let disks = || lab.on("pvchv2", "virsh domblklist web1");
    disks().says(&["sda", "sdb", "vms/web1_data"]);
    lab.guest_has_disks("pvchv2", "web1", "65536 65536");
    let in_use = pvc("storage volume remove vms web1_data -y").fails(1).to_owned();
    assert!(in_use.contains("`web1`"), "{in_use}");
    pvc("vm volume remove web1 vms/web1_data --live -y").ok();
    assert!(!disks().ok().contains("web1_data"), "{}", disks());
    lab.guest_has_disks("pvchv2", "web1", "65536");
    pvc("storage volume remove vms web1_data -y --purge").ok();
    let refused = pvc("vm flush-locks web1").fails(1).to_owned();
    assert!(refused.contains("its locks can be flushed in"), "{refused}");
    let locks = || lab.on("pvchv1", "rbd lock ls vms/web1_sda").ok().trim().to_owned();
    assert!(!locks().is_empty(), "a guest that runs keeps its lock");
    pvc("vm stop web1 -y --wait").ok();
    // On the VM's own node: one of another that runs is left to that.
    lab.on("pvchv2", "rbd lock add vms/web1_sda of-nobody").ok();
    assert!(locks().contains("of-nobody"), "{}", locks());
    pvc("vm flush-locks web1").ok();
    assert_eq!(locks(), "", "the locks of a guest that is off go");
    pvc("vm start web1 --wait").ok();
}

#[test]
fn ceph_is_measured_and_its_osds_are_looked_after() {
    let lab = Lab::whole();
    let pvc = |line: &str| lab.pvc(&line.split(' ').collect::<Vec<_>>());
    pvc("storage pool add meter 8 --replcfg copies=2,mincopies=1").ok();
    a_snapshot_holds_what_was_overwritten(&lab, &pvc);
    lab.on("pvchv1", "rm -f /root/task").ok();
    let begun = |name: &str| {
        let said = pvc(&format!("storage benchmark run meter --name {name} -y --no-wait"));
        said.ok().split_whitespace().nth(2).expect("the task is named").to_owned()
    };
    let task = begun("lab");
    let second = pvc("storage benchmark run meter -y").fails(1).to_owned();
    assert!(second.contains("is measured by task"), "{second}");
    pvc("task list").says(&[&task, "storage.benchmark"]);
    pvc(&format!("task log {task}")).ok();
    pvc(&format!("task show {task}")).says(&[&task]);
    eventually("the benchmark ends", 600, || {
        let shown = lab.pvc(&["task", &task, "--no-wait"]);
        match shown.ok().contains("is done") {
            true => Ok(()),
            false => Err(shown.to_string()),
        }
    });
    pvc("storage benchmark list").says(&["lab", "Sequential (4M blocks)"]);
    assert!(pvc("storage benchmark info lab").ok().contains('█'));
    pvc("storage benchmark info lab --compare lab").says(&["lab"]);
    assert_eq!(lab.on("pvchv1", "rbd ls meter").ok().trim(), "kept", "its volume is removed");

    let cut = begun("cut");
    let its_volume = format!("pvcbenchmark-{cut}");
    eventually("the second benchmark has its volume", 120, || {
        let volumes = lab.on("pvchv1", "rbd ls meter");
        if volumes.ok().contains(&its_volume) { Ok(()) } else { Err(volumes.to_string()) }
    });
    pvc(&format!("task cancel {cut}")).ok();
    pvc("storage status").says(&["HEALTH"]);
    pvc("storage util").says(&["RAW STORAGE", "vms"]);
    the_pool_is_shown_with_the_snapshot_that_holds_its_space(&lab);
    the_labs_osds_are_recorded(&lab);
    eventually("the OSDs have their figures", 60, || {
        let list = pvc("storage osd list");
        let has_all = ["pvchv1", "pvchv2", "pvchv3"].iter().all(|node| list.ok().contains(node));
        if has_all && list.ok().contains("Yes") { Ok(()) } else { Err(list.to_string()) }
    });
    let flags = |lab: &Lab| lab.on("pvchv1", "ceph osd dump | grep ^flags").ok().to_owned();
    pvc("storage osd set noscrub").ok();
    assert!(flags(&lab).contains("noscrub"));
    pvc("storage osd unset noscrub").ok();
    assert!(!flags(&lab).contains("noscrub"));
    // Ceph lets nobody remove an image for half a minute after a client of it was killed.
    eventually("nothing is left of the benchmark that was cancelled", 180, || {
        let volumes = lab.on("pvchv1", "rbd ls meter && rbd trash ls meter");
        let list = pvc("storage benchmark list -f raw");
        let is_listed = list.ok().lines().any(|line| line == "cut");
        if volumes.ok().trim() == "kept" && !is_listed {
            Ok(())
        } else {
            Err(format!("{volumes}{list}"))
        }
    });
    an_osd_is_out_until_nothing_needs_it_and_comes_back(&lab, &pvc);
    pvc("storage volume snapshot remove meter kept before -y").ok();
    pvc("storage pool remove meter -y").ok();
    // The files that the OSDs of the lab lie in are no disks: see docs/manual/osds.md.
    for (device, why) in [("/dev/null", "is no disk"), ("detect:NONE:1G:0", "no disk")] {
        let said = pvc(&format!("storage osd add pvchv1 {device} --plan")).fails(1).to_owned();
        assert!(said.contains(why), "{device}: {said}");
    }
}

/// Makes volume `meter/kept` with a snapshot, beside PVC: it may look at a snapshot as soon as it
/// knows it, and then not for an hour.
fn a_snapshot_holds_what_was_overwritten(lab: &Lab, pvc: &impl Fn(&str) -> Output) {
    pvc("storage volume add meter kept 32M").ok();
    let write = "rbd bench --io-type write --io-size 1M --io-threads 1 --io-total 8M meter/kept";
    let script = format!("{write} && rbd snap create meter/kept@before && {write}");
    lab.on("pvchv1", &script).ok();
    pvc("storage volume scan meter kept").ok();
}

/// Waits until `pvc storage util` knows what is in pool `meter`, also in its snapshot, unless Ceph
/// did not say so of that when it was asked.
fn the_pool_is_shown_with_the_snapshot_that_holds_its_space(lab: &Lab) {
    eventually("the snapshot of `meter/kept` is looked at", 240, || {
        let util = lab.json(&["storage", "util"])?;
        let mut pools = util["pools"].as_array().into_iter().flatten();
        let pool = pools.find(|pool| pool["pool"] == "meter").ok_or_else(|| util.to_string())?;
        let has_room = pool["state"] == "ok" && pool["free_bytes"].as_u64() > Some(0);
        let largest = &pool["largest_snapshots"][0];
        let is_its = largest["volume"] == "kept" && largest["snapshot"] == "before";
        let is_known = is_its && largest["bytes"].as_u64() > Some(0);
        let is_unknown = pool["snapshots_unknown"].as_u64() == Some(1);
        if has_room && (is_known || is_unknown) { Ok(()) } else { Err(pool.to_string()) }
    });
}

/// Of three copies each of the lab's OSDs has one, so Ceph never calls one of them safe to destroy
/// before there are two.
fn an_osd_is_out_until_nothing_needs_it_and_comes_back(lab: &Lab, pvc: &impl Fn(&str) -> Output) {
    let state = || lab.on("pvchv1", "ceph osd dump | grep ^osd.2").ok().to_owned();
    let safety = || lab.on("pvchv1", "sleep 1; ceph osd safe-to-destroy 2");
    let spared = SparedOsd::of(lab);
    let needed = safety();
    assert_ne!(needed.code, 0, "it has copies: {needed}");
    pvc("storage osd out 2").ok();
    assert!(state().contains(" out "), "{}", state());
    eventually("Ceph can do without OSD 2", 180, || match safety() {
        safe if safe.code == 0 => Ok(()),
        needed => Err(needed),
    });
    pvc("storage osd in 2").ok();
    assert!(state().contains(" in "), "{}", state());
    spared.has_its_copies_again();
}

const HASTE: [&str; 2] = ["osd_max_backfills 8", "osd_recovery_sleep_hdd 0"];

/// OSD 2 of a lab whose pools have two copies in place of three, until this goes.
struct SparedOsd<'a> {
    lab: &'a Lab,
    /// Number and name of each pool that has three.
    pools: Vec<(String, String)>,
}

impl<'a> SparedOsd<'a> {
    fn of(lab: &'a Lab) -> Self {
        let all = lab.on("pvchv1", "ceph osd pool ls detail");
        // pool 2 'vms' replicated size 3 min_size 2 …
        let three = all.ok().lines().filter(|line| line.contains(" replicated size 3 "));
        let pools = three.filter_map(|line| {
            let (number, name) = line.strip_prefix("pool ")?.split_once(" '")?;
            Some((number.to_owned(), name.split_once('\'')?.0.to_owned()))
        });
        let spared = SparedOsd { lab, pools: pools.collect() };
        // Otherwise an OSD fills one placement group after the other, with pauses.
        for option in HASTE {
            lab.on("pvchv1", &format!("ceph config set osd {option}")).ok();
        }
        for copies in spared.set_copies(2) {
            copies.ok();
        }
        spared
    }

    fn set_copies(&self, count: u8) -> Vec<Output> {
        let set = |(_, pool): &(String, String)| {
            self.lab.on("pvchv1", &format!("ceph osd pool set {pool} size {count}"))
        };
        self.pools.iter().map(set).collect()
    }

    /// Waits until the pools have their third copies: the next story may take a node away.
    fn has_its_copies_again(self) {
        for copies in self.set_copies(3) {
            copies.ok();
        }
        // PG_STAT STATE UP UP_PRIMARY ACTING ACTING_PRIMARY
        let is_whole = |group: &str| {
            let mut columns = group.split_whitespace().skip(1);
            let (state, up) = (columns.next().unwrap_or(""), columns.next().unwrap_or(""));
            let is_clean = state.contains("active+clean") && !state.contains("remapped");
            is_clean && up.matches(',').count() == 2
        };
        eventually("the pools have three copies again", 180, || {
            let all = self.lab.on("pvchv1", "sleep 1; ceph pg dump pgs_brief");
            let is_theirs = |group: &&str| {
                self.pools.iter().any(|(number, _)| group.starts_with(&format!("{number}.")))
            };
            let lacking: Vec<&str> =
                all.ok().lines().filter(is_theirs).filter(|group| !is_whole(group)).collect();
            if lacking.is_empty() { Ok(()) } else { Err(lacking.join("\n")) }
        });
    }
}

/// A story that fails leaves the lab to others, too.
impl Drop for SparedOsd<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.set_copies(3);
            self.lab.on("pvchv1", "ceph osd in 2");
        }
        for option in HASTE.iter().filter_map(|option| option.split_once(' ')) {
            self.lab.on("pvchv1", &format!("ceph config rm osd {}", option.0));
        }
    }
}

/// Writes the records of the lab's OSDs, which it has made beside PVC.
fn the_labs_osds_are_recorded(lab: &Lab) {
    for (id, node) in ["pvchv1", "pvchv2", "pvchv3"].into_iter().enumerate() {
        for (key, value) in [
            ("", ""),
            ("/node", node),
            ("/device", "/dev/loop0"),
            ("/db_device", ""),
            ("/fsid", ""),
            ("/fsid/osd", ""),
            ("/fsid/cluster", ""),
            ("/lvm", ""),
            ("/lvm/vg", ""),
            ("/lvm/lv", ""),
            ("/is_split", "False"),
            ("/stats", "{}"),
        ] {
            lab.write_key(&format!("/ceph/osds/{id}{key}"), value);
        }
    }
}

fn a_pool_is_made_with_its_copies(lab: &Lab, storage: &impl Fn(&str) -> Output, copies: &str) {
    storage("pool add lone 8 --replcfg copies=1,mincopies=1").fails(1);
    storage(&format!("pool add fast 7 {copies}")).fails(1);
    storage(&format!("pool add fast 8 {copies} --tier nvme")).fails(1);
    storage(&format!("pool add fast 8 {copies}")).says(&["Created pool \"fast\"."]);
    storage(&format!("pool add fast 8 {copies}")).fails(1);
    let detail = lab.on("pvchv1", "ceph osd pool ls detail | grep \"'fast'\"");
    // The lab's Ceph makes pools whose number its autoscaler leaves alone.
    let words = ["size 2 ", "min_size 1", "pg_num 8", "autoscale_mode off", "application rbd"];
    detail.says(&words);
    // Where it would change the number, it says what it thinks of it from then on.
    lab.on("pvchv1", "ceph osd pool set fast pg_autoscale_mode on").ok();
    storage("pool set-pgs fast 16 -y").ok();
    lab.on("pvchv1", "ceph osd pool get fast pg_autoscale_mode").says(&["warn"]);
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
    lab.guest_has_disks("pvchv2", "web1", "524288");
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
