//! The daemon dies, guests do not.

use std::fs;

use pvc_standalone_tests::{Machine, eventually, hello_image, host_name, never_within};

#[test]
fn guests_outlive_the_daemon_and_the_next_one_adopts_them() {
    let mut machine = Machine::start();
    machine.define_hello("hello");
    let qemu = machine.boot("hello");

    let ended = machine.stop("standalone");
    assert_eq!(ended.code, 0, "{ended}");
    assert_eq!(machine.qemu("hello"), qemu);
    let unreachable = machine.pvc(&["vm", "list"]);
    assert_eq!(unreachable.code, 4, "{unreachable}");
    unreachable.fails_with_hint();
    it_is_adopted(&mut machine, qemu);

    machine.kill("standalone");
    assert_eq!(machine.qemu("hello"), qemu);
    it_is_adopted(&mut machine, qemu);

    // What an operator asks for right before the daemon dies is done by the next.
    machine.pvc(&["vm", "tag", "add", "hello", "kept"]).ok();
    machine.pvc(&["vm", "stop", "hello", "-y"]).ok();
    machine.kill("standalone");
    machine.start_daemons();
    machine.wait_until_off("hello", 30);
    machine.wait_for_state("hello", "stop", 10);
    assert_eq!(machine.pvc(&["vm", "tag", "get", "hello", "-f", "raw"]).ok().trim(), "kept");

    // A guest that ended while nobody looked starts again.
    let qemu = machine.boot("hello");
    machine.kill("standalone");
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(qemu.cast_signed()),
        nix::sys::signal::Signal::SIGKILL,
    )
    .expect("QEMU runs");
    machine.start_daemons();
    machine.booted("hello", 3);
}

fn it_is_adopted(machine: &mut Machine, qemu: u32) {
    machine.start_daemons();
    let before = machine.console_text("hello").len();
    never_within("adopted is not started again", 4, || {
        let pid = machine.libvirt().qemu_pid("hello");
        let list = machine.libvirt().virsh(&["list", "--name"]);
        if pid == Some(qemu) && list.ok().split_whitespace().count() == 1 {
            Ok(())
        } else {
            Err(format!("{pid:?} {list}"))
        }
    });
    assert_eq!(machine.vm_state("hello"), "start");
    assert_eq!(machine.boots("hello"), 1);
    eventually("followed again is its console", 30, || {
        let text = machine.console_text("hello");
        let news = text.get(before..).unwrap_or_default();
        let heartbeat = news
            .lines()
            .find(|line| line.contains("heartbeat"))
            .unwrap_or("no heartbeat yet")
            .trim()
            .to_owned();
        let log = machine.pvc(&["vm", "log", "hello"]);
        if log.stdout.contains(&heartbeat) {
            Ok(())
        } else {
            Err(format!("`{heartbeat}` is not in {log}"))
        }
    });
}

#[test]
fn a_guest_without_a_record_is_left_alone_and_reported() {
    let mut machine = Machine::start();
    machine.define_hello("hello");
    let qemu = machine.boot("hello");
    let disk = machine.dir().join("stray.img");
    fs::copy(hello_image(), &disk).expect("there is room in /tmp");
    let xml = machine
        .hello_xml("stray")
        .replace("type='kvm'", "type='qemu'")
        .replace("<disk type='network'", "<disk type='file'")
        .replace(
            "<source protocol='rbd' name='vms/stray_sda'/>",
            &format!("<source file='{}'/>", disk.display()),
        )
        .replace("/var/log/libvirt/stray.log", &machine.dir().join("stray.log").to_string_lossy());
    let file = machine.dir().join("stray.xml");
    fs::write(&file, xml).expect("the test's directory can be written");
    machine.libvirt().virsh(&["create", &file.to_string_lossy()]).ok();
    let stray = machine.qemu("stray");

    it_is_reported_anew(&machine, 0);
    machine.api().call("DELETE", &format!("/faults/{STRAY}"), &[], &[]).ok();
    let logged = times_logged(&machine);
    machine.kill("standalone");
    machine.start_daemons();
    it_is_reported_anew(&machine, logged);
    never_within("left alone is the guest", 4, || {
        let pid = machine.libvirt().qemu_pid("stray");
        if pid == Some(stray) { Ok(()) } else { Err(format!("{pid:?}")) }
    });
    assert_eq!(machine.api().get("/vm/stray").status, 404, "no record is made up for it");
    assert_eq!(machine.qemu("hello"), qemu);
}

const STRAY: &str = "VM_STRAY_STRAY";

/// Number of times that the node's log tells of the stray guest.
fn times_logged(machine: &Machine) -> usize {
    let log = machine.pvc(&["node", "log", &host_name(), "--lines", "2000"]);
    log.ok()
        .lines()
        .filter(|line| line.contains("guest stray") && line.contains("left alone"))
        .count()
}

/// Waits for a fault, and for a line in the log beyond the first `told`.
fn it_is_reported_anew(machine: &Machine, logged: usize) {
    eventually("reported is the stray guest", 60, || {
        let fault = machine.api().get(&format!("/faults/{STRAY}"));
        let now = times_logged(machine);
        if fault.status == 200 && fault.text.contains("virsh destroy") && now > logged {
            Ok(())
        } else {
            Err(format!("told {now} times, {logged} before; {fault:?}\n{}", machine.said()))
        }
    });
}

/// Number of volumes, so many that the daemon is killed while some of them have their new names.
const VOLUMES: usize = 40;

#[test]
fn a_rename_that_is_cut_short_is_done_to_its_end() {
    let mut machine = Machine::start();
    let disk = |at: usize| {
        let volume = format!("web1_{at:02}");
        machine.add_volume(&volume, "1M");
        let target = format!(
            "vd{}{}",
            char::from(b'a' + (at / 26) as u8),
            char::from(b'a' + (at % 26) as u8)
        );
        format!(
            "<disk type='network' device='disk'><source protocol='rbd' name='vms/{volume}'/>\
             <target dev='{target}'/></disk>"
        )
    };
    let disks: String = (0..VOLUMES).map(disk).collect();
    let xml = format!(
        "<domain type='kvm'><name>web1</name><uuid>2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1</uuid>\
         <memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type arch='x86_64'>hvm</type></os>\
         <devices>{disks}<console type='pty'/></devices></domain>"
    );
    let defined = machine.http_define(&xml);
    assert_eq!(defined.status, 200, "{defined:?}");
    let pool = machine.dir().join("volumes/vms");
    let called = |name: &str| {
        let names = fs::read_dir(&pool)
            .expect("the pool")
            .map(|entry| entry.expect("an entry").file_name());
        names.filter(|volume| volume.to_string_lossy().starts_with(name)).count()
    };

    let rename = machine.pvc_running("rename", &["vm", "rename", "web1", "shop", "-y"]);
    while called("shop_") == 0 {
        std::thread::yield_now();
    }
    machine.kill("standalone");
    let left = (called("web1_"), called("shop_"));
    assert!(left.0 > 0 && left.1 > 0, "the kill came too late to show anything: {left:?}");
    rename.kill();

    machine.start_daemons();
    eventually("called as the record says are the volumes", 30, || {
        let found = (called("web1_"), called("shop_"));
        if found == (0, VOLUMES) { Ok(()) } else { Err(format!("{found:?}")) }
    });
    eventually("known by its new name is the VM", 10, || {
        let found = machine.api().get("/vm/shop");
        if found.status == 200 { Ok(()) } else { Err(format!("{found:?}")) }
    });
    assert_eq!(machine.vm_state("shop"), "stop");
    eventually("possible is another rename", 10, || {
        let renamed = machine.pvc(&["vm", "rename", "shop", "web1", "-y"]);
        if renamed.code == 0 { Ok(()) } else { Err(renamed.to_string()) }
    });
    assert_eq!((called("web1_"), called("shop_")), (VOLUMES, 0));
}
