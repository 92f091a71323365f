//! The ring `provisioner`: a Debian that the example script builds from Debian's archive, and one
//! of an image of it, boot, and each takes its data from where cloud-init finds it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;
use std::{fs, thread};

use pvc_standalone_tests::{Machine, Settings, eventually};

use crate::networks::{a_network_is_made, in_a_network_of_its_own};

/// Seconds that a guest may take to boot, and cloud-init in it to come to its end: nothing but
/// software runs it here.
const BOOT: u64 = 900;

#[test]
fn a_debian_of_the_example_script_and_one_of_an_image_of_it_boot_with_their_data() {
    let archive = archive();
    let machine = Machine::with(Settings { networks: true, ..Settings::default() });
    a_network_is_made(&machine);
    a_profile_is_made(&machine, &archive);
    let created = machine.quietly("provisioner create deb1 debian --no-start --wait");
    created.says(&["deb1"]);
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
    made.says(&["It has the address 10.20.1."]);
    for (name, data) in [("deb1", "of the profile"), ("deb2", "of its own")] {
        eventually("cloud-init has done what its data say", BOOT, || {
            let text = machine.console_text(name);
            let wanted = [format!("userdata {data} on {name}"), format!("{name} login:")];
            match wanted.iter().all(|words| text.contains(words)) {
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
    for name in ["deb1", "deb2"] {
        machine.quietly(&format!("vm stop {name} -y")).ok();
        machine.quietly(&format!("vm remove {name} -y")).ok();
    }
}

/// A file with userdata that says on the serial console whose it is, and on which host.
fn user_data(machine: &Machine, whose: &str) -> String {
    let path = machine.dir().join(format!("{}.yaml", whose.replace(' ', "-")));
    let says = format!("echo \"userdata {whose} on $(hostname)\" > /dev/ttyS0");
    let text = format!("#cloud-config\nruncmd:\n  - [sh, -c, '{says}']\n");
    fs::write(&path, text).expect("the machine's folder can be written");
    path.display().to_string()
}

fn a_profile_is_made(machine: &Machine, archive: &str) {
    let examples =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/provisioner/examples");
    let script = examples.join("script/3-debootstrap.py").display().to_string();
    let data = user_data(machine, "of the profile");
    let packages = "linux-image-cloud-amd64,grub-pc,dbus,cloud-init,systemd-resolved";
    for line in [
        "template system add small -u 1 -m 768 -s".to_owned(),
        "template network add small".to_owned(),
        "template network vni add small 1001".to_owned(),
        "template storage add small".to_owned(),
        "template storage disk add small sda -p vms -s 3 -f ext4 -m /".to_owned(),
        format!("userdata add small {data}"),
        format!("script add debootstrap {script}"),
        format!(
            "profile add debian -s small -n small -t small -u small -x debootstrap \
             -a deb_release=bookworm -a deb_mirror={archive} -a deb_packages={packages}"
        ),
    ] {
        machine.quietly(&format!("provisioner {line}")).ok();
    }
}

/// No mount, loop device or process of the script.
fn nothing_is_left_on_this_machine(machine: &Machine) {
    let state = machine.dir().display().to_string();
    let mounts = fs::read_to_string("/proc/self/mounts").expect("it is there");
    assert!(!mounts.lines().any(|line| line.contains("/target")), "{mounts}");
    for device in fs::read_dir("/sys/block").expect("it is there").flatten() {
        let backing = device.path().join("loop/backing_file");
        let backing = fs::read_to_string(backing).unwrap_or_default();
        assert!(!backing.starts_with(&state), "{} is {backing}", device.path().display());
    }
}

/// Address of Debian's archive for a test that from now on has a network of its own, which leads
/// nowhere else: what is asked of it is asked by a thread that stays outside.
fn archive() -> String {
    let (inside, outside) = mpsc::channel::<TcpListener>();
    let (host, path) = mirror();
    thread::spawn(move || {
        let Ok(listener) = outside.recv() else { return };
        for asked in listener.incoming().flatten() {
            // It stays in the network of the thread that makes it.
            let host = host.clone();
            thread::spawn(move || pass(asked, &host));
        }
    });
    in_a_network_of_its_own();
    let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback is up");
    let port = listener.local_addr().expect("it is bound").port();
    inside.send(listener).expect("the thread waits for it");
    format!("http://127.0.0.1:{port}{path}")
}

/// Host and path of the archive that this machine's own packages come from by HTTP.
fn mirror() -> (String, String) {
    let files = fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten();
    let files = files.map(|file| file.path()).chain([PathBuf::from("/etc/apt/sources.list")]);
    let texts: Vec<String> = files.filter_map(|file| fs::read_to_string(file).ok()).collect();
    let lines = texts.iter().flat_map(|text| text.lines()).filter(|line| !line.starts_with('#'));
    let mut addresses = lines.flat_map(str::split_whitespace).filter_map(|word| {
        let (host, path) = word.strip_prefix("http://")?.trim_end_matches('/').split_once('/')?;
        path.ends_with("debian").then(|| (host.to_owned(), format!("/{path}")))
    });
    addresses.next().unwrap_or_else(|| ("deb.debian.org".to_owned(), "/debian".to_owned()))
}

/// Passes one request on to the archive under its name, and the reply back.
fn pass(mut asked: TcpStream, host: &str) -> io::Result<()> {
    let mut archive = match host.contains(':') {
        true => TcpStream::connect(host)?,
        false => TcpStream::connect((host, 80))?,
    };
    for stream in [&asked, &archive] {
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    }
    let mut head = BufReader::new(asked.try_clone()?.take(64 << 10));
    loop {
        let mut line = String::new();
        head.read_line(&mut line)?;
        let name = line.split(':').next().unwrap_or_default().to_ascii_lowercase();
        match name.as_str() {
            "host" => write!(archive, "Host: {host}\r\n")?,
            // Then the reply ends with the connection.
            "connection" => {}
            _ if line.trim().is_empty() => break write!(archive, "Connection: close\r\n\r\n")?,
            _ => archive.write_all(line.as_bytes())?,
        }
    }
    io::copy(&mut archive, &mut asked)?;
    Ok(())
}
