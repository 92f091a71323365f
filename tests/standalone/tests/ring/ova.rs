//! OVAs are added by `pvc`, with images that the real `qemu-img` has made and archives of `tar`.

use std::fs;
use std::process::Command;

use pvc_standalone_tests::{Machine, eventually, exit, hello_image, repository};
use pvc_testkit::ova::ovf;

use crate::run;

const MIB: u64 = 1 << 20;

/// A machine with a script for OVAs.
fn machine() -> Machine {
    let machine = Machine::start();
    let script = machine.dir().join("ova.py");
    fs::write(&script, "pass\n").expect("the machine's folder can be written");
    machine.quietly(&format!("provisioner script add ova {}", script.display())).ok();
    machine
}

/// A raw disk of so many MiB with something at its beginning, in its midst and at its end.
fn disk(mib: u64, mark: u8) -> Vec<u8> {
    let size = usize::try_from(mib * MIB).expect("it is small");
    let mut disk = vec![0; size];
    for at in [0, size / 2, size - 5000] {
        disk[at..at + 5000].fill(mark);
    }
    disk
}

/// Makes an OVA of a disk as VMware and VirtualBox export it, and of one as qcow2.
fn made(machine: &Machine) -> String {
    let at = |name: &str| machine.dir().join(name).display().to_string();
    for (raw, mark, mib) in [("a", 1, 8), ("b", 2, 4)] {
        fs::write(at(raw), disk(mib, mark)).expect("the machine's folder can be written");
    }
    let stream = ["convert", "-f", "raw", "-O", "vmdk", "-o", "subformat=streamOptimized"];
    run("qemu-img", &[&stream[..], &[&at("a"), &at("a.vmdk")]].concat());
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &at("b"), &at("b.qcow2")]);
    let description = ovf(&[("a.vmdk", 8 * MIB), ("b.qcow2", 4 * MIB)], &[]);
    fs::write(at("box.ovf"), description).expect("the machine's folder can be written");
    let mut sums = Command::new("sha256sum");
    sums.args(["--tag", "box.ovf", "a.vmdk", "b.qcow2"]).current_dir(machine.dir());
    let sums = sums.output().expect("it is installed");
    let sums = String::from_utf8(sums.stdout).expect("it prints text");
    let sums = sums.replace("SHA256 (", "SHA256(").replace(") = ", ")= ");
    fs::write(at("box.mf"), sums).expect("the machine's folder can be written");
    let dir = machine.dir().display().to_string();
    let files = ["box.ovf", "a.vmdk", "b.qcow2", "box.mf"];
    run("tar", &[&["-C", &dir, "--format=ustar", "-cf", &at("box.ova")], &files[..]].concat());
    at("box.ova")
}

fn saved(machine: &Machine, volume: &str) -> Vec<u8> {
    let path = machine.dir().join("saved");
    let line = format!("storage volume download vms {volume} {} --force", path.display());
    machine.quietly(&line).ok();
    fs::read(path).expect("it was saved")
}

#[test]
fn the_disks_of_an_ova_are_volumes_with_what_was_on_them() {
    let machine = machine();
    let file = made(&machine);
    let tried = machine.quietly(&format!("provisioner ova upload box {file} -p vms --dry-run"));
    tried.says(&["nothing was changed"]);
    let added = machine.quietly(&format!("provisioner ova upload box {file} -p vms"));
    added.says(&["Added OVA \"box\" with 2 disks.", "CRC-32 of the file: "]);
    machine.volumes_are(&["vms/ova_box_sda", "vms/ova_box_sdb"]);
    assert!(saved(&machine, "ova_box_sda") == disk(8, 1));
    assert!(saved(&machine, "ova_box_sdb") == disk(4, 2));
    let mut spool = fs::read_dir(machine.dir().join("images")).expect("it is made where it is set");
    assert!(spool.next().is_none(), "what was made there had no name");
    machine.quietly("provisioner ova list").says(&["box", "sda", "sdb", "raw", "ova_box_sda"]);
    machine.quietly("provisioner profile list").says(&["OVA box"]);
    let again = machine.quietly(&format!("provisioner ova upload box {file} -p vms"));
    assert_eq!(again.code, exit::FAILED, "{again}");
    assert!(again.stderr.contains("there is an OVA `box` already"), "{again}");
    machine.quietly("provisioner ova remove box -y").says(&["Removed OVA \"box\"."]);
    machine.volumes_are(&[]);
    machine.quietly("provisioner ova remove box -y").fails(exit::NOT_FOUND);
}

#[test]
fn an_ova_whose_disk_was_cut_leaves_nothing() {
    let machine = machine();
    let file = made(&machine);
    let whole = fs::read(&file).expect("it was made");
    fs::write(&file, &whole[..whole.len() / 2]).expect("it can be written");
    let cut = machine.quietly(&format!("provisioner ova upload box {file} -p vms"));
    assert_eq!(cut.code, exit::FAILED, "{cut}");
    assert!(cut.stderr.contains("are left of what was said"), "{cut}");
    machine.volumes_are(&[]);
    machine.quietly("provisioner ova list -f raw").ok();
    machine.quietly("provisioner profile list box").fails(exit::NOT_FOUND);
}

#[test]
fn a_vm_of_an_ova_is_made_by_the_example_script_and_boots() {
    let machine = Machine::start();
    let at = |name: &str| machine.dir().join(name).display().to_string();
    let example = repository().join("packaging/provisioner/examples/script/2-ova.py");
    machine.quietly(&format!("provisioner script add ova {}", example.display())).ok();
    let image = hello_image();
    let capacity = fs::metadata(&image).expect("it is built").len();
    let image = image.display().to_string();
    let stream = ["convert", "-f", "raw", "-O", "vmdk", "-o", "subformat=streamOptimized"];
    run("qemu-img", &[&stream[..], &[&image, &at("hello.vmdk")]].concat());
    fs::write(at("hello.ovf"), ovf(&[("hello.vmdk", capacity)], &[])).expect("it can be written");
    let dir = machine.dir().display().to_string();
    let files = ["hello.ovf", "hello.vmdk"];
    run("tar", &[&["-C", &dir, "--format=ustar", "-cf", &at("hello.ova")], &files[..]].concat());
    machine.quietly(&format!("provisioner ova upload hello {} -p vms", at("hello.ova"))).ok();
    // What it was exported with is more than a machine with two processors gives to a VM.
    machine.quietly("provisioner template system modify hello -u 1 -m 192").ok();
    // Devices are those of the whole machine: no other test has a VM of this name.
    let made = machine.pvc(&["provisioner", "create", "box1", "hello"]);
    made.says(&["VM \"box1\" with profile \"hello\" is provisioned, and starts"]);
    assert!(made.stderr.contains("converting the image of disk sda"), "{made}");
    eventually("the guest boots from what was on the OVA's disk", 120, || {
        let log = machine.pvc(&["vm", "log", "box1"]);
        match log.stdout.contains("hello: boot 1") {
            true => Ok(()),
            false => Err(log),
        }
    });
    machine.volumes_are(&["vms/box1_sda", "vms/ova_hello_sda"]);
    for volume in ["box1_sda", "ova_hello_sda"] {
        let device = std::path::Path::new("/dev/rbd/vms").join(volume);
        assert!(!device.exists(), "{} is unmapped", device.display());
    }
}
