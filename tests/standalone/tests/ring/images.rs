//! VMs that are made of images, in one line each.

use std::fs;

use pvc_standalone_tests::{Machine, eventually, hello_image};

use crate::run;

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGhlbGxv me@here";

fn file(machine: &Machine, name: &str, text: &str) -> String {
    let path = machine.dir().join(name);
    fs::write(&path, text).expect("the machine's folder can be written");
    path.display().to_string()
}

/// Path of a file with the disk of `hello` in a format.
fn hello(machine: &Machine, format: &str) -> String {
    let raw = hello_image().display().to_string();
    let image = machine.dir().join(format!("hello.{format}")).display().to_string();
    run("qemu-img", &["convert", "-f", "raw", "-O", format, &raw, &image]);
    image
}

/// A machine with the image `hello`, which came as qcow2.
fn machine() -> Machine {
    let machine = Machine::start();
    let added = machine.quietly(&format!("image add hello {}", hello(&machine, "qcow2")));
    added.says(&["Added image \"hello\" to pool \"vms\"."]);
    machine
}

/// The command line of the QEMU of a VM.
fn command_of(machine: &Machine, name: &str) -> String {
    let command = fs::read(format!("/proc/{}/cmdline", machine.qemu(name))).expect("it runs");
    String::from_utf8_lossy(&command).replace('\0', " ")
}

#[test]
fn vms_of_an_image_boot_with_their_own_disk_name_and_keys() {
    let machine = machine();
    assert_eq!(machine.quietly("image list -f raw").ok().trim(), "vms/hello");
    machine.quietly("image info hello").says(&["hello", "vms", "image_hello", "33554432 bytes"]);
    let keys = file(&machine, "key.pub", &format!("# mine\n{KEY}\n"));
    for name in ["web1", "web2"] {
        let line = format!(
            "vm create {name} --image hello --memory 192 --disk 48M --ssh-key {keys} --start"
        );
        let made = machine.quietly(&line);
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
    machine.quietly("vm stop web1 -y").ok();
    machine.quietly("vm remove web1 -y").ok();
    machine.quietly("image remove hello -y").ok();
    assert_eq!(machine.quietly("image list -f raw").ok().trim(), "");
}

#[test]
fn an_image_that_comes_in_another_format_or_packed_is_the_same_disk() {
    let machine = machine();
    let disk = fs::read(hello_image()).expect("it was made");
    let (vmdk, vhdx) = (hello(&machine, "vmdk"), hello(&machine, "vhdx"));
    run("xz", &["-q", "-k", "-1", &vmdk]);
    run("zstd", &["-q", &vhdx]);
    // What a packed file does not say at its beginning is said for it.
    for file in [
        vmdk.clone(),
        format!("{vmdk}.xz -f vmdk --size 32M"),
        format!("{vhdx}.zst -f vhdx --size 32M"),
    ] {
        let added = machine.quietly(&format!("image add other {file}"));
        added.says(&["Added image \"other\" to pool \"vms\"."]);
        let saved = machine.dir().join("saved");
        let save = format!("storage volume download vms image_other {}", saved.display());
        machine.quietly(&format!("{save} --force")).ok();
        assert!(fs::read(saved).expect("it was saved") == disk, "{file}");
        machine.quietly("image remove other -y").ok();
    }
    machine.volumes_are(&["vms/image_hello"]);
}

/// The disk of the image has no system for UEFI, whose firmware says so.
#[test]
fn a_vm_with_uefi_and_a_tpm_runs() {
    let machine = machine();
    machine.quietly("vm create up1 --image hello --memory 256 --uefi --tpm --start").ok();
    assert_eq!(machine.vm_state("up1"), "start", "the command has waited until it runs");
    let command = command_of(&machine, "up1");
    for part in ["OVMF", "tpm-crb"] {
        assert!(command.contains(part), "{part}: {command}");
    }
    eventually("UEFI says that it boots", 180, || {
        let log = machine.pvc(&["vm", "log", "up1"]);
        if log.stdout.contains("BdsDxe") { Ok(()) } else { Err(log) }
    });
    let vm = machine.vm("up1");
    let tpm = machine.libvirt().tpm_directory(vm["uuid"].as_str().expect("it has one"));
    // A TPM that is made anew has a new directory.
    let mark = tpm.join("mark");
    fs::write(&mark, "").expect("the TPM has a directory");
    machine.quietly("vm stop up1 -y --wait").ok();
    machine.quietly("vm start up1 --wait").ok();
    machine.qemu("up1");
    assert!(mark.exists(), "it has the TPM of its first start: {}", tpm.display());
    machine.quietly("vm stop up1 -y").ok();
    machine.quietly("vm remove up1 -y").ok();
}

/// Text that the CD of [`installer`] writes to the serial console.
const HELLO_FROM_CD: &str = "installer: booted from the CD";

/// An ISO image that boots by El Torito without emulation and says so on the serial console.
fn installer(machine: &Machine) -> String {
    const SECTOR: usize = 2048;
    // Says each byte of what is behind it, when the port is ready, and halts.
    let program =
        *b"\x0e\x1f\xe8\0\0\x5e\x83\xc6\x1e\xac\x84\xc0\x74\x12\x88\xc4\xba\xfd\x03\xec\xa8\x20\
        \x74\xfb\x88\xe0\xba\xf8\x03\xee\xeb\xe9\xf4\xeb\xfd";
    let mut iso = vec![0; 32 * SECTOR];
    let mut put = |sector: usize, at: usize, bytes: &[u8]| {
        let at = sector * SECTOR + at;
        iso[at..at + bytes.len()].copy_from_slice(bytes);
    };
    put(16, 0, b"\x01CD001\x01");
    put(17, 0, b"\0CD001\x01EL TORITO SPECIFICATION");
    put(17, 71, &19u32.to_le_bytes());
    put(18, 0, b"\xffCD001\x01");
    // The catalogue: who made it, then what is booted: four blocks of 512 bytes in sector 20.
    put(19, 0, b"\x01");
    put(19, 28, b"\xaa\x55\x55\xaa");
    put(19, 32, b"\x88");
    put(19, 38, &4u16.to_le_bytes());
    put(19, 40, &20u32.to_le_bytes());
    put(20, 0, &program);
    put(20, program.len(), format!("\r\n{HELLO_FROM_CD}\r\n\0").as_bytes());
    let path = machine.dir().join("installer.iso");
    fs::write(&path, &iso).expect("the machine's folder can be written");
    path.display().to_string()
}

fn boots_from_its_cd(machine: &Machine, name: &str) {
    eventually("the CD says that it was booted from", 120, || {
        let log = machine.pvc(&["vm", "log", name]);
        if log.stdout.contains(HELLO_FROM_CD) { Ok(()) } else { Err(log) }
    });
}

#[test]
fn a_vm_with_an_empty_disk_boots_from_the_iso_image_that_is_to_be_installed() {
    let machine = Machine::start();
    let file = installer(&machine);
    let create = format!("vm create inst1 --from-iso {file} --memory 128 --start");
    machine.quietly(&create).fails(2);
    machine.quietly(&format!("{create} --disk 8M --dry-run")).fails(2);
    let made = machine.quietly(&format!("{create} --disk 8M"));
    made.says(&[
        "Added image \"installer\" to pool \"vms\".",
        "VM \"inst1\" is made, and starts",
        "Its screen is VNC at 127.0.0.1:",
    ]);
    boots_from_its_cd(&machine, "inst1");
    let again = machine.quietly(&create.replace("inst1", "inst2").replace("--start", "--disk 8M"));
    again.fails(1);
    assert!(again.stderr.contains("`--from-iso installer` installs from that one"), "{again}");
    // The old chipset has its CD on IDE.
    let old = "vm create inst2 --from-iso installer --disk 8M --memory 128 --machine pc --start";
    machine.quietly(old).ok();
    boots_from_its_cd(&machine, "inst2");
    machine.quietly("vm stop inst2 -y --wait").ok();
    let all = ["image_installer", "inst1_iso", "inst1_sda", "inst2_iso", "inst2_sda"];
    machine.volumes_are(&all.map(|volume| format!("vms/{volume}")).each_ref().map(String::as_str));
    // The system is there: the CD goes.
    machine.quietly("vm stop inst1 -y --wait").ok();
    machine.quietly("vm volume remove inst1 vms/inst1_iso -y").ok();
    machine.quietly("storage volume remove --purge vms inst1_iso -y").ok();
    for vm in ["inst1", "inst2"] {
        machine.quietly(&format!("vm remove {vm} -y")).ok();
    }
    machine.quietly("image remove installer -y").ok();
}

#[test]
fn what_cannot_be_made_leaves_nothing() {
    let machine = machine();
    let all = ["vms/image_hello", "vms/taken_sda"];
    machine.quietly("storage volume add vms taken_sda 1M").ok();
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
        let said = machine.quietly(line);
        said.fails(code);
        assert!(said.stderr.contains(words), "{line}: {said}");
    }
    let private = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n";
    let private = file(&machine, "id", private);
    let said = machine.quietly(&format!("vm create web1 --image hello --ssh-key {private}"));
    said.fails(1);
    assert!(said.stderr.contains("private key"), "{said}");
    let cut = machine.dir().join("cut.qcow2").display().to_string();
    fs::write(&cut, b"QFI\xfb").expect("the machine's folder can be written");
    machine.quietly(&format!("image add bad {cut} --size 10M")).fails(1);
    let shadow = machine.dir().join("shadow.qcow2").display().to_string();
    let backed = ["create", "-q", "-f", "qcow2", "-F", "raw", "-b", "/etc/shadow"];
    run("qemu-img", &[&backed[..], &[&shadow, "10M"]].concat());
    let said = machine.quietly(&format!("image add bad {shadow}"));
    said.fails(1);
    assert!(said.stderr.contains("backing file"), "{said}");
    machine.quietly("vm create web1 --image hello --dry-run").ok();
    machine.volumes_are(&all);
    assert_eq!(machine.pvc(&["-q", "vm", "list", "-f", "raw"]).stdout.trim(), "");
}
