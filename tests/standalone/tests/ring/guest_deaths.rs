//! QEMU dies.

use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pvc_standalone_tests::{Machine, Settings, eventually, exit, never_within};

fn kill_qemu(pid: u32) {
    match kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL) {
        // It has gone since it was seen.
        Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
        Err(error) => panic!("QEMU {pid} cannot be killed: {error}"),
    }
}

#[test]
fn a_guest_whose_qemu_is_killed_is_back_within_one_keepalive_interval() {
    let machine = Machine::with(Settings { keepalive_interval: None, ..Settings::default() });
    machine.define_hello("hello");
    let first = machine.boot("hello");
    kill_qemu(first);
    let is_back = || machine.libvirt().qemu_pid("hello").is_some_and(|pid| pid != first);
    let keepalives = machine.keepalives_until("back is QEMU", 30, is_back);
    assert!(keepalives <= 1, "{keepalives} keepalives were written before it was back");
    machine.booted("hello", 2);
    assert_eq!(machine.vm_state("hello"), "start");
    assert_eq!(
        machine.libvirt().virsh(&["list", "--name"]).ok().split_whitespace().collect::<Vec<_>>(),
        ["hello"]
    );
}

#[test]
fn a_guest_that_keeps_dying_is_tried_ever_more_slowly_and_shown_as_a_fault() {
    let machine = Machine::start();
    machine.define_hello("well");
    let well = machine.boot("well");
    machine.define_hello("dying");
    machine.pvc(&["vm", "start", "dying"]).ok();

    let mut deaths = 0;
    eventually("shown as a fault is the guest that dies at each start", 150, || {
        // Some die while libvirt still starts them, some when they run: all of them are deaths.
        if let Some(pid) = machine.libvirt().qemu_pid("dying") {
            kill_qemu(pid);
            deaths += 1;
        }
        let faults = machine.faults();
        if faults.iter().any(|fault| fault.contains("dying")) {
            Ok(())
        } else {
            Err(format!("{deaths} deaths, {faults:?}"))
        }
    });
    assert!((3..=8).contains(&deaths), "{deaths} deaths until somebody was told");

    machine.pvc(&["cluster", "fault", "list"]).says(&["dying"]);
    machine.pvc(&["status"]).says(&["dying"]);
    let health = machine.api().get("/status").ok().json()["cluster_health"]["health"].as_u64();
    assert!(health < Some(100), "{health:?}");
    assert_eq!(machine.vm_state("dying"), "start", "it has died, which is no failure");
    if let Some(pid) = machine.libvirt().qemu_pid("dying") {
        kill_qemu(pid);
    }
    never_within("there is no fast loop", 10, || match machine.libvirt().qemu_pid("dying") {
        Some(pid) => Err(format!("QEMU {pid} was started at once")),
        None => Ok(()),
    });
    assert_eq!(machine.qemu("well"), well, "the other guest is none of its business");

    // An operator who has mended it says so, and need not wait.
    let before = machine.boots("dying");
    machine.pvc(&["vm", "start", "dying"]).ok();
    let back = machine.keepalives_until("back is the mended guest", 30, || {
        machine.libvirt().qemu_pid("dying").is_some()
    });
    assert!(back <= 3, "{back} keepalives");
    machine.booted("dying", before + 1);
    machine.pvc(&["vm", "stop", "dying", "-y"]).ok();
    machine.wait_until_off("dying", 20);
    // A fault stays until somebody has seen it; the guest that is stopped gives no new cause.
    let fault = machine.api().get("/faults?sort_key=last_reported").ok().json()[0]["id"]
        .as_str()
        .map(str::to_owned);
    let fault = fault.expect("the fault is still there");
    machine.pvc(&["cluster", "fault", "ack", &fault]).ok();
    assert_eq!(machine.api().get("/status").ok().json()["cluster_health"]["health"], 100);
    machine.pvc(&["cluster", "fault", "delete", &fault]).ok();
    assert_eq!(machine.faults(), Vec::<String>::new());
}

#[test]
fn a_guest_whose_volume_is_in_use_is_never_said_to_run() {
    let machine = Machine::start();
    machine.define_hello("hello");
    let volume = machine.dir().join("volumes/vms/hello_sda/disk.raw");
    // Somebody whom PVC does not know has it open, and will not close it.
    let hold = ["-f", "raw", "-c", "sleep 600000"];
    let mut holder =
        Command::new("qemu-io").args(hold).arg(&volume).spawn().expect("`qemu-io` is installed");
    for _ in 0..3 {
        let started = machine.pvc(&["vm", "start", "hello", "--wait"]);
        started.fails(exit::FAILED);
        assert!(started.stderr.contains("lock"), "{started}");
        assert_eq!(machine.vm("hello")["state"], "fail");
    }
    holder.kill().and_then(|()| holder.wait()).expect("it is our child");
    machine.pvc(&["vm", "start", "hello", "--wait"]).ok();
    machine.qemu("hello");
}

#[test]
fn a_guest_whose_volume_another_vm_uses_is_refused_by_its_name() {
    let machine = Machine::start();
    machine.define_hello("first");
    machine.boot("first");
    let xml = machine.hello_xml("second").replace("vms/second_sda", "vms/first_sda");
    let file = machine.dir().join("second.xml");
    std::fs::write(&file, xml).expect("the test's directory can be written");
    machine.pvc(&["vm", "define", &file.to_string_lossy()]).ok();
    let said = machine.pvc(&["vm", "start", "second", "--wait"]).fails(exit::FAILED);
    assert!(said.contains("its volume `vms/first_sda` is in use by VM `first`"), "{said}");
    machine.pvc(&["vm", "stop", "first", "--wait", "-y"]).ok();
    machine.pvc(&["vm", "start", "second", "--wait"]).ok();
    machine.qemu("second");
}

#[test]
fn a_guest_that_cannot_start_says_why_and_harms_nobody() {
    let machine = Machine::start();
    machine.define_hello("well");
    let file = machine.hello_file("diskless");
    machine.pvc(&["vm", "define", &file.to_string_lossy()]).ok();
    machine.pvc(&["vm", "start", "diskless"]).ok();
    machine.wait_for_state("diskless", "fail", 30);
    let reason = machine.vm("diskless")["failed_reason"].as_str().unwrap_or_default().to_owned();
    assert!(reason.contains("diskless_sda"), "what is missing is not named: {reason}");
    machine.pvc(&["vm", "info", "diskless"]).says(&["diskless_sda"]);
    eventually("a fault is the failure", 30, || {
        let faults = machine.faults();
        let is_reported =
            |fault: &String| fault.contains("VM_FAILED_DISKLESS") && fault.contains("diskless_sda");
        if faults.iter().any(is_reported) { Ok(()) } else { Err(format!("{faults:?}")) }
    });
    let waited = machine.pvc(&["vm", "start", "diskless", "--wait"]);
    waited.fails(exit::FAILED);
    assert!(waited.stderr.contains("diskless_sda"), "{waited}");

    machine.boot("well");
    machine.pvc(&["vm", "stop", "diskless", "--wait", "-y"]).ok();
    machine.make_disk("diskless");
    machine.boot("diskless");
    assert_eq!(machine.vm("diskless")["failed_reason"], "");
}
