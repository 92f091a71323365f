//! VMs that are made of images, in one line each.

use std::fs;
use std::process::Command;

use pvc_standalone_tests::{Machine, eventually, hello_image};

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGhlbGxv me@here";

fn file(machine: &Machine, name: &str, text: &str) -> String {
    let path = machine.dir().join(name);
    fs::write(&path, text).expect("the machine's folder can be written");
    path.display().to_string()
}

fn pvc(machine: &Machine, line: &str) -> pvc_standalone_tests::Output {
    let words: Vec<&str> = std::iter::once("-q").chain(line.split(' ')).collect();
    machine.pvc(&words)
}

/// A machine with the image `hello`, which came as qcow2.
fn machine() -> Machine {
    let machine = Machine::start();
    let (raw, image) = (hello_image(), machine.dir().join("hello.qcow2"));
    let convert = ["convert", "-f", "raw", "-O", "qcow2"];
    let made = Command::new("qemu-img").args(convert).arg(raw).arg(&image).status();
    assert!(made.expect("it is installed").success());
    let added = pvc(&machine, &format!("image add hello {}", image.display()));
    added.says(&["Added image \"hello\" to pool \"vms\"."]);
    machine
}

#[test]
fn vms_of_an_image_boot_with_their_own_disk_name_and_keys() {
    let machine = machine();
    assert_eq!(pvc(&machine, "image list -f raw").ok().trim(), "vms/hello");
    pvc(&machine, "image info hello").says(&["hello", "vms", "image_hello", "33554432 bytes"]);
    let keys = file(&machine, "key.pub", &format!("# mine\n{KEY}\n"));
    for name in ["web1", "web2"] {
        let line = format!(
            "vm create {name} --image hello --memory 192 --disk 48M --ssh-key {keys} --start"
        );
        let made = pvc(&machine, &line);
        made.says(&[&format!("VM \"{name}\" is made, and starts")]);
        assert_eq!(machine.vm_state(name), "start", "the command has waited until it runs");
    }
    for name in ["web1", "web2"] {
        eventually("the guest says what its disks have", 120, || {
            let log = machine.pvc(&["vm", "log", name]);
            let name = format!("\"local-hostname\":\"{name}\"");
            // The disk has grown by half, and the first boot was counted on it.
            let blocks = format!("disks now: {} ", (48 << 20) / 512);
            let wanted = ["hello: boot 1, counted on", &name, KEY, &blocks];
            match wanted.iter().all(|words| log.stdout.contains(words)) {
                true => Ok(()),
                false => Err(log),
            }
        });
    }
    machine.volumes_are(&[
        "vms/image_hello",
        "vms/web1_cidata",
        "vms/web1_sda",
        "vms/web2_cidata",
        "vms/web2_sda",
    ]);
    pvc(&machine, "vm stop web1 -y").ok();
    pvc(&machine, "vm remove web1 -y").ok();
    pvc(&machine, "image remove hello -y").ok();
    assert_eq!(pvc(&machine, "image list -f raw").ok().trim(), "");
}

#[test]
fn what_cannot_be_made_leaves_nothing() {
    let machine = machine();
    let all = ["vms/image_hello", "vms/taken_sda"];
    pvc(&machine, "storage volume add vms taken_sda 1M").ok();
    for (line, code, words) in [
        ("vm create web1 --image nothing", 3, "there is no image `nothing`"),
        ("vm create taken --image hello", 1, "volume `vms/taken_sda` exists already"),
        ("vm create web1 --image hello --disk 1M", 1, "would not hold it"),
        ("vm create web1 --image hello --network 4711", 3, "no network `4711`"),
        ("vm create web1 --image hello --memory 900G", 1, "MiB of memory"),
        ("vm create web1 --image hello --vcpus 0", 1, ""),
        ("vm create a/b --image hello", 1, "contains a `/`"),
        ("vm create web1 --image ../hello", 3, ""),
        ("vm create web1 --image hello --target nowhere", 3, "nowhere"),
        ("vm create web1 --image hello --memory 1K", 2, "a number of MiB"),
    ] {
        let said = pvc(&machine, line);
        said.fails(code);
        assert!(said.stderr.contains(words), "{line}: {said}");
    }
    let private = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n";
    let private = file(&machine, "id", private);
    let said = pvc(&machine, &format!("vm create web1 --image hello --ssh-key {private}"));
    said.fails(1);
    assert!(said.stderr.contains("private key"), "{said}");
    let bad = file(&machine, "bad.qcow2", "QFI\u{fb}");
    pvc(&machine, &format!("image add bad {bad} --size 10M -f qcow2")).fails(1);
    pvc(&machine, "vm create web1 --image hello --dry-run").ok();
    machine.volumes_are(&all);
    assert_eq!(machine.pvc(&["-q", "vm", "list", "-f", "raw"]).stdout.trim(), "");
}
