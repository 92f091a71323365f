//! The life of pools, volumes and snapshots on one machine, by `pvc`, while a guest runs.

use pvc_standalone_tests::{Machine, eventually};

#[test]
fn pools_volumes_and_snapshots_have_their_life_beside_a_running_guest() {
    let machine = Machine::start();
    machine.define_hello("hello");
    let storage = |line: &str| {
        let words: Vec<&str> = ["-q", "storage"].into_iter().chain(line.split(' ')).collect();
        machine.pvc(&words)
    };
    machine.volumes_are(&["vms/hello_sda"]);
    storage("volume snapshot add vms hello_sda off").ok();
    machine.boot("hello");
    a_pool_comes_and_goes(&machine, &storage);
    the_storage_says_how_it_is(&storage);
    a_volume_and_its_snapshots_change(&machine, &storage);
    a_running_guest_sees_its_disk_grow(&machine, &storage);
    what_it_uses_stays_as_it_is(&machine, &storage);
}

fn a_pool_comes_and_goes(
    machine: &Machine,
    storage: &impl Fn(&str) -> pvc_standalone_tests::Output,
) {
    storage("pool add fast 64 --dry-run").ok();
    storage("pool info fast").fails(3);
    storage("pool add fast 64").says(&["Created pool \"fast\"."]);
    storage("pool add fast 64").fails(1);
    storage("pool add fast! 64").fails(1);
    storage("pool add slow 63").fails(1);
    storage("volume add fast a 1M").ok();
    machine.volumes_are(&["fast/a", "vms/hello_sda"]);
    storage("pool remove fast -y").says(&["Removed pool \"fast\" with 1 volumes."]);
    machine.volumes_are(&["vms/hello_sda"]);
    storage("pool list -f raw").says(&["vms"]);
}

fn the_storage_says_how_it_is(storage: &impl Fn(&str) -> pvc_standalone_tests::Output) {
    storage("pool add fast 64").ok();
    eventually("the state of the storage has both pools", 30, || {
        let said = storage("status").ok().to_owned();
        if said.contains("pools:   2\n") { Ok(()) } else { Err(said) }
    });
    storage("status").says(&["Storage status (primary node ", ", as of ", " ago):\n"]);
    let used =
        storage("util").says(&["Storage utilization (", "STORED", "--- POOLS ---"]).to_owned();
    // Below that is a table of snapshots.
    let used = used.split("\nSnapshots").next().unwrap_or_default();
    for pool in ["vms ", "fast "] {
        let found = used.lines().filter(|line| line.starts_with(pool)).count();
        assert_eq!(found, 2, "in the words of the storage and in our table: {used}");
    }
    let answer: serde_json::Value =
        serde_json::from_str(storage("pool list -f json").ok()).expect("it is JSON");
    let answered = answer[0]["answered_at"].as_u64();
    assert!(answered.is_some_and(|at| at > 1_700_000_000), "{answer}");
    storage("pool remove fast -y").ok();
    eventually("a pool is gone", 30, || {
        let said = storage("status").ok().to_owned();
        if said.contains("pools:   1\n") { Ok(()) } else { Err(said) }
    });
}

fn a_volume_and_its_snapshots_change(
    machine: &Machine,
    storage: &impl Fn(&str) -> pvc_standalone_tests::Output,
) {
    storage("volume add vms data 10M").says(&["Created volume \"vms/data\"."]);
    storage("volume add vms data 10M").fails(1);
    storage("volume add vms huge 9E").fails(1);
    storage("volume resize vms data 20M -y").says(&["from 10485760 to 20971520 bytes"]);
    storage("volume resize vms data 10M -y").fails_with_hint();
    storage("volume snapshot add vms data before").ok();
    storage("volume snapshot list -f raw").says(&["vms/data@before"]);
    storage("volume resize vms data 10M -y --force").ok();
    storage("volume snapshot rollback vms data before -y").ok();
    storage("volume info vms data").says(&["20M"]);
    storage("volume snapshot rename vms data before then").ok();
    storage("volume clone vms data copy").ok();
    storage("volume rename vms data more -y").ok();
    storage("volume snapshot list -f raw").says(&["vms/more@then"]);
    machine.volumes_are(&["vms/copy", "vms/hello_sda", "vms/more"]);
    storage("volume snapshot remove vms more then -y").ok();
    for volume in ["copy", "more"] {
        storage(&format!("volume remove vms {volume} -y")).ok();
    }
    storage("volume remove vms more -y").fails(3);
    machine.volumes_are(&["vms/hello_sda"]);
}

fn a_running_guest_sees_its_disk_grow(
    machine: &Machine,
    storage: &impl Fn(&str) -> pvc_standalone_tests::Output,
) {
    storage("volume resize vms hello_sda 256M -y").says(&["notified by tasks: hello"]);
    eventually("the guest has the size", 30, || {
        let seen = machine.libvirt().virsh(&["domblkinfo", "hello", "sda"]);
        if seen.ok().contains("268435456") { Ok(()) } else { Err(seen.to_string()) }
    });
    let task = eventually("the task has ended", 30, || {
        let tasks = machine.api().call("GET", "/tasks", &[("all", "True")], &[]).ok().json();
        let ended = tasks["ended"].as_array().and_then(|ended| ended.first().cloned());
        ended.ok_or(tasks)
    });
    let (name, state) = (&task["name"], &task["state"]);
    assert_eq!((name, state), (&"vm.resize_disk".into(), &"SUCCESS".into()), "{task}");
}

fn what_it_uses_stays_as_it_is(
    machine: &Machine,
    storage: &impl Fn(&str) -> pvc_standalone_tests::Output,
) {
    let qemu = machine.qemu("hello");
    for line in [
        "volume remove vms hello_sda -y --force",
        "volume rename vms hello_sda other -y --force",
        "volume resize vms hello_sda 1M -y --force",
        "volume snapshot rollback vms hello_sda off -y",
        "pool remove vms -y --force",
    ] {
        let said = storage(line).fails_with_hint();
        assert!(said.contains("`hello`"), "{line}: {said}");
    }
    let kept = machine.pvc(&["-q", "vm", "flush-locks", "hello"]).fails_with_hint();
    assert!(kept.contains("its locks can be flushed in"), "{kept}");
    assert_eq!(machine.qemu("hello"), qemu);
    machine.volumes_are(&["vms/hello_sda"]);
    machine.pvc(&["vm", "stop", "hello", "-y", "--wait"]).ok();
    machine.pvc(&["vm", "flush-locks", "hello"]).says(&["(vm.flush_locks)", "SUCCESS: "]);
    storage("volume remove vms hello_sda -y").fails_with_hint();
    storage("volume snapshot rollback vms hello_sda off -y").ok();
    machine.pvc(&["vm", "start", "hello"]).ok();
    eventually("the guest has forgotten its first boot", 90, || {
        let console = machine.console_text("hello");
        let begun = console.matches("heartbeat 1, ").count();
        if begun == 2 && !console.contains("boot 2") { Ok(()) } else { Err(console) }
    });
}

#[test]
fn a_removed_volume_is_restored_by_command_also_after_the_daemon_died() {
    let mut machine = Machine::start();
    let storage = |machine: &Machine, line: &str| {
        let words: Vec<&str> = ["-q", "storage"].into_iter().chain(line.split(' ')).collect();
        machine.pvc(&words)
    };
    storage(&machine, "volume add vms data 10M").ok();
    storage(&machine, "volume snapshot add vms data before").ok();
    let removed = storage(&machine, "volume remove vms data -y").ok().to_owned();
    machine.volumes_are(&[]);
    machine.kill("standalone");
    machine.start_daemons();
    machine.wait_until_running();
    let listed = storage(&machine, "trash list -f raw").ok().to_owned();
    let id = listed.trim().strip_prefix("vms/").expect("it is of this pool").to_owned();
    assert!(removed.contains(&format!("`pvc storage trash restore vms {id}`")), "{removed}");

    // Its name was given to another one meanwhile.
    storage(&machine, "volume add vms data 1M").ok();
    storage(&machine, &format!("trash restore vms {id}")).fails(1);
    storage(&machine, &format!("trash restore vms {id} --name old --dry-run")).ok();
    storage(&machine, &format!("trash restore vms {id} --name old")).says(&["vms/old"]);
    machine.volumes_are(&["vms/data", "vms/old"]);
    storage(&machine, "volume info vms old").says(&["10M"]);
    storage(&machine, "volume snapshot list -f raw").says(&["vms/old@before"]);

    storage(&machine, "volume remove vms data -y --purge").ok();
    assert_eq!(storage(&machine, "trash list -f raw").ok().trim(), "");
    storage(&machine, "volume remove vms old -y").ok();
    let listed = storage(&machine, "trash list -f raw").ok().to_owned();
    let id = listed.trim().strip_prefix("vms/").expect("it is of this pool").to_owned();
    storage(&machine, &format!("trash purge vms {id} -y")).ok();
    storage(&machine, &format!("trash purge vms {id} -y")).fails(3);
    machine.volumes_are(&[]);
}
