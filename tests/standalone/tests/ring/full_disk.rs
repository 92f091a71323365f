//! The disk that holds the store, or the one that holds the volumes, is full.

use std::fs;
use std::process::Command;

use pvc_standalone_tests::{Machine, Settings, eventually, run};

#[test]
fn a_full_disk_refuses_writes_keeps_reads_and_loses_nothing() {
    let mut machine = Machine::prepared(Settings { state: "small", ..Settings::default() });
    fs::create_dir_all(machine.state()).expect("the test's directory can be written");
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=12m", "pvc-test"]).arg(machine.state());
    run(&mut mount, "").ok();
    machine.libvirt().start();
    machine.start_daemons();
    machine.define_hello("hello");
    let qemu = machine.boot("hello");
    machine.pvc(&["vm", "tag", "add", "hello", "before"]).ok();

    let filler = machine.state().join("filler");
    fill(&filler);
    let before = machine.entrusted();
    let tags = [("action", "add"), ("tag", "during"), ("protected", "false")];
    let mut refused = None;
    // What was set aside earlier may take a few small writes yet; each that is acknowledged must
    // last.
    let mut acknowledged = Vec::new();
    for number in 0..2000 {
        let tag = format!("during-{number}");
        let answer = machine.api().post("/vm/hello/tags", &[tags[0], ("tag", &tag), tags[2]]);
        match answer.status {
            200 => acknowledged.push(tag),
            _ => {
                refused = Some(answer);
                break;
            }
        }
    }
    let refused = refused.expect("a full disk takes no more writes");
    let message = refused.refused(&[503, 507]);
    assert!(message.contains("full") || refused.text.contains("space"), "{refused:?}");
    let said = machine.pvc(&["vm", "tag", "add", "hello", "cli"]);
    said.fails_with_hint();

    // Reads go on, guests go on, and so does the daemon.
    assert!(machine.entrusted().len() >= before.len());
    machine.pvc(&["vm", "list"]).says(&["hello", "start"]);
    machine.pvc(&["status"]).ok();
    assert_eq!(machine.qemu("hello"), qemu);
    assert_eq!(machine.api().post("/vm/hello/state", &[("state", "stop")]).status / 100, 5);
    assert_eq!(machine.vm_state("hello"), "start", "what was refused is not half done");

    fs::remove_file(&filler).expect("it is there");
    eventually("written again is what an operator asks", 30, || {
        let added = machine.pvc(&["vm", "tag", "add", "hello", "after"]);
        if added.code == 0 { Ok(()) } else { Err(added) }
    });
    let kept = tags_of(&machine);
    for tag in acknowledged.iter().map(String::as_str).chain(["before", "after"]) {
        assert!(kept.contains(tag), "`{tag}` was acknowledged and is lost: {kept}");
    }
    assert!(!kept.contains("cli"), "what was refused is there: {kept}");

    // A kill on the full disk, and a start on it, lose nothing either.
    fill(&filler);
    machine.kill("standalone");
    fs::remove_file(&filler).expect("it is there");
    machine.start_daemons();
    assert_eq!(tags_of(&machine), kept);
    assert_eq!(machine.qemu("hello"), qemu);
    machine.pvc(&["vm", "stop", "hello", "-y"]).ok();
    machine.wait_until_off("hello", 30);
}

fn tags_of(machine: &Machine) -> String {
    machine.pvc(&["vm", "tag", "get", "hello", "-f", "raw"]).ok().trim().to_owned()
}

/// Takes all the room there is.
fn fill(file: &std::path::Path) {
    use std::io::Write;
    let mut file = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(file)
        .expect("the directory is there");
    for size in [1 << 16, 1 << 12, 1 << 8, 1] {
        while file.write(&vec![0; size]).is_ok_and(|written| written > 0) {}
    }
}

#[test]
fn a_full_disk_of_volumes_refuses_what_needs_room_and_loses_nothing() {
    let mut machine = Machine::prepared(Settings::default());
    let volumes = machine.dir().join("volumes");
    fs::create_dir_all(&volumes).expect("the test's directory can be written");
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=16m,mode=755", "pvc-test"]).arg(&volumes);
    run(&mut mount, "").ok();
    machine.libvirt().start();
    machine.start_daemons();
    let storage = |line: &str| {
        let words: Vec<&str> = ["-q", "storage"].into_iter().chain(line.split(' ')).collect();
        machine.pvc(&words)
    };
    let image = |name: &str, byte: u8| {
        let path = machine.dir().join(name);
        fs::write(&path, vec![byte; 2 << 20]).expect("there is room in /tmp");
        path.display().to_string()
    };
    let (old, new) = (image("old", b'1'), image("new", b'2'));
    for volume in ["data", "target"] {
        storage(&format!("volume add vms {volume} 2M")).ok();
    }
    storage(&format!("volume upload -y vms data {old}")).ok();
    storage("volume snapshot add vms data before").ok();
    storage(&format!("volume upload -y vms target {old}")).ok();

    let filler = volumes.join("filler");
    fill(&filler);
    let upload = format!("volume upload -y vms target {new}");
    for line in [
        "volume clone vms data copy",
        "volume clone --copy-on-write vms data copy",
        "volume snapshot add vms data more",
        "volume snapshot rollback vms data before -y",
        "volume add vms copy 2M",
        "volume resize vms data 3M -y",
        upload.as_str(),
    ] {
        let said = storage(line).fails(1);
        let is_clear = said.contains("pool `vms` has 0 bytes free, ") && said.contains("hint:");
        assert!(is_clear, "{line}: {said}");
    }
    machine.volumes_are(&["vms/data", "vms/target"]);
    let work = fs::read_dir(volumes.join(".work")).expect("it is there").count();
    assert_eq!(work, 0, "something is left of what was refused");
    storage("volume snapshot list -f raw").says(&["vms/data@before"]);
    for volume in ["data", "target"] {
        let path = machine.dir().join("read").display().to_string();
        storage(&format!("volume download vms {volume} {path} --force")).ok();
        assert!(fs::read(&path).expect("it was read") == vec![b'1'; 2 << 20], "{volume}");
    }

    // Nothing is held by what was refused before it did anything.
    fs::remove_file(&filler).expect("it is there");
    storage("volume snapshot add vms data more").ok();
    storage("volume rename vms data renamed -y").ok();
    storage(&upload).ok();
    machine.volumes_are(&["vms/renamed", "vms/target"]);
}
