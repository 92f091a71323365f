//! Images go into volumes and come out of them, by `pvc` and the real `qemu-img`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pvc_standalone_tests::{Machine, Output, eventually};

use crate::run;

/// A machine with the volume `vms/data` of 10 MiB.
fn machine() -> Machine {
    let machine = Machine::start();
    storage(&machine, "volume add vms data 10M").ok();
    machine
}

fn storage(machine: &Machine, line: &str) -> Output {
    let words: Vec<&str> = ["-q", "storage"].into_iter().chain(line.split(' ')).collect();
    machine.pvc(&words)
}

/// A raw disk of 4 MiB with something at its beginning and its end.
fn disk(machine: &Machine, mark: u8) -> (PathBuf, Vec<u8>) {
    let mut disk = vec![0; 4 << 20];
    for at in [0, (4 << 20) - 5000] {
        disk[at..at + 5000].fill(mark);
    }
    let path = machine.dir().join(format!("disk-{mark}"));
    fs::write(&path, &disk).expect("the machine's folder can be written");
    (path, disk)
}

/// The contents of the volume, as they are saved.
fn saved(machine: &Machine) -> Vec<u8> {
    let path = machine.dir().join("saved");
    storage(machine, &format!("volume download vms data {} --force", path.display())).ok();
    fs::read(path).expect("it was saved")
}

fn is_filled_by(machine: &Machine, disk: &[u8]) {
    let saved = saved(machine);
    assert_eq!(saved.len(), 10 << 20, "the volume keeps its size");
    assert!(saved.starts_with(disk) && saved[disk.len()..].iter().all(|byte| *byte == 0));
}

#[test]
fn an_image_of_any_format_fills_a_volume_and_comes_back() {
    let machine = machine();
    for (mark, format) in [(1, "qcow2"), (2, "vmdk"), (3, "vhdx")] {
        let (raw, disk) = disk(&machine, mark);
        let (raw, image) = (raw.display().to_string(), format!("{}.{format}", raw.display()));
        run("qemu-img", &["convert", "-f", "raw", "-O", format, &raw, &image]);
        let said = storage(&machine, &format!("volume upload -y -f {format} vms data {image}"));
        said.says(&["Wrote uploaded file to volume \"vms/data\".", "CRC-32 of the file: "]);
        is_filled_by(&machine, &disk);
    }
    let (raw, disk) = disk(&machine, 4);
    run("zstd", &["-q", &raw.display().to_string()]);
    storage(&machine, &format!("volume upload -y vms data {}.zst", raw.display())).ok();
    is_filled_by(&machine, &disk);
    let trash = storage(&machine, "trash list -f raw");
    assert_eq!(trash.ok().lines().count(), 4, "what was there before can be restored");
    let mut spool = fs::read_dir(machine.dir().join("images")).expect("it is made where it is set");
    assert!(spool.next().is_none(), "what was made there had no name");
    machine.volumes_are(&["vms/data"]);
}

#[test]
fn a_volume_is_saved_in_any_format_and_compression_and_fills_another() {
    let machine = machine();
    storage(&machine, "volume add vms other 10M").ok();
    let (raw, disk) = disk(&machine, 7);
    storage(&machine, &format!("volume upload -y vms data {}", raw.display())).ok();
    storage(&machine, "volume snapshot add vms data before").ok();
    let whole = [disk, vec![0; 6 << 20]].concat();
    let at = |name: &str| machine.dir().join(name).display().to_string();
    fs::write(at("whole"), &whole).expect("the machine's folder can be written");
    for (format, way, ending) in [
        ("qcow2", "zstd", ".zst"),
        ("vmdk", "gzip", ".gz"),
        ("vhdx", "xz", ".xz"),
        ("raw", "zstd", ".zst"),
        ("qed", "none", ""),
        ("vdi", "none", ""),
        ("vpc", "none", ""),
    ] {
        let (image, file) = (at(format), at(&format!("{format}{ending}")));
        let snapshot = if format == "vdi" { "--snapshot before" } else { "" };
        let line = format!("volume download vms data {file} -f {format} -c {way} {snapshot}");
        let said = storage(&machine, line.trim_end());
        let sha256 = Command::new("sha256sum").arg(&file).output().expect("it is installed");
        let sha256 = String::from_utf8(sha256.stdout).expect("it prints text");
        let sha256 = sha256.split(' ').next().expect("it prints the checksum first");
        said.says(&[&format!("SHA-256 {sha256}")]);
        let size = fs::metadata(&file).expect("it was saved").len();
        assert!(way == "none" || size < 1 << 20, "{format} {way}: {size}");
        if way != "none" {
            run(way, &["-q", "-d", "-k", &file]);
        }
        run("qemu-img", &["compare", "-f", "raw", "-F", format, &at("whole"), &image]);
        storage(&machine, &format!("volume upload -y -f {format} vms other {file}")).ok();
        let back = at("back");
        storage(&machine, &format!("volume download vms other {back} --force")).ok();
        assert!(fs::read(&back).expect("it was saved") == whole, "{format} {way}");
        storage(&machine, "volume remove vms other --purge -y").ok();
        storage(&machine, "volume add vms other 10M").ok();
    }
    let line = format!("volume download vms data {} -f iso", at("iso"));
    storage(&machine, &line).fails(2);
}

#[test]
fn what_cannot_fill_a_volume_changes_nothing() {
    let machine = machine();
    let (good, disk) = disk(&machine, 5);
    let good = good.display().to_string();
    storage(&machine, &format!("volume upload -y vms data {good}")).ok();
    let beside = |name: &str| machine.dir().join(name).display().to_string();
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &good, &beside("whole")]);
    let whole = fs::read(beside("whole")).expect("it was made");
    fs::write(beside("cut"), &whole[..whole.len() - 4096]).expect("it can be written");
    fs::write(beside("large"), vec![1; (10 << 20) + 1]).expect("it can be written");
    fs::write(beside("empty"), "").expect("it can be written");
    let shadow = ["create", "-f", "qcow2", "-b", "/etc/shadow", "-F", "raw"];
    run("qemu-img", &[&shadow[..], &[&beside("shadow"), "10M"]].concat());
    let volume = "volume upload -y";
    for (line, code) in [
        (format!("{volume} vms data {}", beside("none")), 2),
        (format!("{volume} vms data {}", machine.dir().display()), 2),
        (format!("{volume} vms none {good}"), 3),
        (format!("{volume} -f iso vms data {good}"), 2),
        (format!("{volume} -f qcow2 vms data {good}"), 1),
        (format!("{volume} vms data {}", beside("whole")), 1),
        (format!("{volume} -f qcow2 vms data {}", beside("cut")), 1),
        (format!("{volume} -f qcow2 vms data {}", beside("shadow")), 1),
        (format!("{volume} vms data {}", beside("large")), 1),
        (format!("{volume} vms data {}", beside("empty")), 1),
        (format!("{volume} --sha256 {} vms data {good}", "0".repeat(64)), 1),
    ] {
        storage(&machine, &line).fails(code);
    }
    storage(&machine, "volume snapshot add vms data before").ok();
    let refused = storage(&machine, &format!("{volume} vms data {good}")).fails_with_hint();
    assert!(refused.contains("has a snapshot `before`"), "{refused}");
    storage(&machine, "volume snapshot remove vms data before -y").ok();
    storage(&machine, &format!("{volume} vms data {good} --dry-run")).ok();
    is_filled_by(&machine, &disk);
    assert_eq!(storage(&machine, "trash list -f raw").ok().lines().count(), 1);
}

#[test]
fn large_uploads_and_downloads_take_little_memory() {
    let machine = machine();
    // What each way takes of any volume has been taken when it counts.
    goes_each_way(&machine, "small", 4);
    let before = machine.daemon("standalone").most_resident_kib();
    goes_each_way(&machine, "large", 128);
    let grown = machine.daemon("standalone").most_resident_kib().saturating_sub(before);
    assert!(grown < 48 << 10, "the daemon grew by {grown} KiB");
}

/// A disk without holes fills a volume and comes back: as it is, packed, and as an image that is
/// kept in a file while it is converted.
fn goes_each_way(machine: &Machine, volume: &str, mib: usize) {
    let at = |ending: &str| machine.dir().join(format!("{volume}{ending}")).display().to_string();
    let contents = vec![9_u8; mib << 20];
    fs::write(at(""), &contents).expect("the machine's folder can be written");
    run("zstd", &["-q", &at("")]);
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &at(""), &at(".qcow2")]);
    for (format, way, ending) in
        [("raw", "none", ""), ("raw", "zstd", ".zst"), ("qcow2", "none", ".qcow2")]
    {
        storage(machine, &format!("volume add vms {volume} {mib}M")).ok();
        let line = format!("volume upload -y -f {format} vms {volume} {}", at(ending));
        storage(machine, &line).ok();
        let back = at(".back");
        let line = format!("volume download vms {volume} {back} -f {format} -c {way} --force");
        storage(machine, &line).ok();
        if (format, way) == ("raw", "none") {
            assert!(fs::read(&back).expect("it was saved") == contents, "it came back");
        }
        storage(machine, &format!("volume remove vms {volume} --purge -y")).ok();
    }
}

/// Whether a volume is in the making below the folder of volumes.
fn is_begun(folder: &Path) -> bool {
    let work = folder.join(".work");
    fs::read_dir(work).is_ok_and(|entries| entries.flatten().next().is_some())
}

#[test]
fn a_client_or_a_daemon_that_dies_leaves_the_volume_as_it_was() {
    let mut machine = machine();
    let (good, disk) = disk(&machine, 6);
    storage(&machine, &format!("volume upload -y vms data {}", good.display())).ok();
    let pipe = machine.dir().join("pipe").display().to_string();
    run("mkfifo", &[&pipe]);
    for dies in ["client", "daemon"] {
        let client =
            machine.pvc_running(dies, &["storage", "volume", "upload", "-y", "vms", "data", &pipe]);
        let mut feeder = Command::new("sh")
            .args(["-c", "head -c 2000000 /dev/zero | tr '\\0' x; exec sleep 600"])
            .stdout(fs::File::options().write(true).open(&pipe).expect("the client reads it"))
            .spawn()
            .expect("there is a shell");
        let state = machine.dir().join("volumes");
        eventually("the upload has begun", 30, || match is_begun(&state) {
            true => Ok(()),
            false => Err(state.display().to_string()),
        });
        match dies {
            "client" => client.kill(),
            _ => {
                machine.kill("standalone");
                client.kill();
                machine.start_daemons();
                machine.wait_until_running();
            }
        }
        feeder.kill().expect("it sleeps");
        feeder.wait().expect("it was killed");
        eventually("nothing is left of it", 60, || match is_begun(&state) {
            false => Ok(()),
            true => Err(state.display().to_string()),
        });
        is_filled_by(&machine, &disk);
        assert_eq!(storage(&machine, "trash list -f raw").ok().lines().count(), 1);
    }
}
