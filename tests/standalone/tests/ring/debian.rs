//! The ring `provisioner`: a Debian that the example script builds from Debian's archive, and one
//! of an image of it, boot, and each takes its data from where cloud-init finds it.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use pvc_standalone_tests::{
    Archive, CLOUD_INIT_IS_DONE, Machine, Settings, debian_profile, debian_userdata, eventually,
};

use crate::networks::{a_network_is_made, in_a_network_of_its_own};

/// Seconds that a guest may take to boot, and cloud-init in it to come to its end: nothing but
/// software runs it here.
const BOOT: u64 = 900;

#[test]
fn a_debian_of_the_example_script_and_one_of_an_image_of_it_boot_with_their_data() {
    let archive = archive();
    let machine = Machine::with(Settings { networks: true, ..Settings::default() });
    a_network_is_made(&machine);
    a_profile_is_made(&machine);
    let create = format!("provisioner create deb1 debian -a deb_mirror={archive} --no-start");
    machine.quietly(&create).says(&["deb1"]);
    machine.volumes_are(&["vms/deb1_sda"]);
    nothing_is_left_on_this_machine(&machine);

    // Before its first boot, as an image has to be.
    let disk = machine.dir().join("debian.qcow2").display().to_string();
    machine.quietly(&format!("storage volume download vms deb1_sda {disk} -f qcow2")).ok();
    machine.quietly(&format!("image add debian {disk}")).ok();
    machine.quietly("vm start deb1 --wait").ok();
    let data = user_data(&machine, "of its own");
    let made = machine.quietly(&format!(
        "vm create deb2 --image debian --memory 768 --network 1001 --user-data {data} --start"
    ));
    made.ok();
    // It asks for one while it boots, which may take longer than the command waits.
    eventually("the guest has an address", BOOT, || {
        let info = machine.pvc(&["vm", "info", "deb2"]);
        if info.stdout.contains("10.20.1.") { Ok(()) } else { Err(info) }
    });
    for (name, data) in [("deb1", "of the profile"), ("deb2", "of its own")] {
        eventually("cloud-init has done what its data say", BOOT, || {
            let text = machine.console_text(name);
            let said = format!("userdata {data} on {name}");
            match text.contains(&said) && text.contains(CLOUD_INIT_IS_DONE) {
                true => Ok(()),
                false => Err(text
                    .chars()
                    .rev()
                    .take(2000)
                    .collect::<Vec<_>>()
                    .iter()
                    .rev()
                    .collect::<String>()),
            }
        });
    }
    // By the channel that a new VM has for it. Agents are asked once a minute.
    eventually("the agent in the guest says its address", BOOT, || {
        let said = machine.vm("deb2")["networks"][0]["addresses"].to_string();
        if said.contains("10.20.1.") { Ok(()) } else { Err(said) }
    });
    for name in ["deb1", "deb2"] {
        machine.quietly(&format!("vm stop {name} -y")).ok();
        machine.quietly(&format!("vm remove {name} -y")).ok();
    }
}

/// A file with userdata that say whose they are.
fn user_data(machine: &Machine, whose: &str) -> String {
    let path = machine.dir().join(format!("{}.yaml", whose.replace(' ', "-")));
    fs::write(&path, debian_userdata(whose)).expect("the machine's folder can be written");
    path.display().to_string()
}

fn a_profile_is_made(machine: &Machine) {
    let examples =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/provisioner/examples");
    let script = examples.join("script/3-debootstrap.py").display().to_string();
    let data = user_data(machine, "of the profile");
    for line in debian_profile(3, &script, &data) {
        machine.quietly(&format!("provisioner {line}")).ok();
    }
}

/// No mount or loop device of the script. What others have mounted on this machine is theirs.
fn nothing_is_left_on_this_machine(machine: &Machine) {
    let state = machine.dir().display().to_string();
    let mounts = fs::read_to_string("/proc/self/mounts").expect("it is there");
    let is_of_the_script =
        |line: &str| [" /tmp/target", state.as_str()].iter().any(|place| line.contains(place));
    assert!(!mounts.lines().any(is_of_the_script), "{mounts}");
    for device in fs::read_dir("/sys/block").expect("it is there").flatten() {
        let backing = device.path().join("loop/backing_file");
        let backing = fs::read_to_string(backing).unwrap_or_default();
        assert!(!backing.starts_with(&state), "{} is {backing}", device.path().display());
    }
}

/// Address of Debian's archive for a test that from now on has a network of its own, which leads
/// nowhere else.
fn archive() -> String {
    let archive = Archive::from_here();
    in_a_network_of_its_own();
    archive.at(TcpListener::bind("127.0.0.1:0").expect("the loopback is up"))
}
