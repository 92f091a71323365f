//! Disks as the programs of this machine show them: `lsblk`, `realpath`, `sfdisk`, `sgdisk` and
//! those of LVM, on a device in memory and one in a file.
//!
//! What needs the kernel's device mapper is not here, as `ceph-volume lvm`, `lvcreate` and
//! `lvremove` do: no machine that we test on has it. Root is needed, and a machine on which such
//! devices cannot be made fails these tests.

#![allow(clippy::disallowed_methods, reason = "disks and programs are real here")]

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use pvc_ceph::CephVolume;
use pvc_linux::LinuxExec;
use pvc_model::Uuid;
use pvc_model::osd::{LogicalVolume, LvmName, may_take};
use pvc_ports::{OsdError, OsdHost};
use pvc_testkit::ScriptedServices;

use crate::device;

const MIB: u64 = 1 << 20;
const BYTES: u64 = 64 * MIB;

fn run(program: &str, words: &[&str]) -> String {
    let done = Command::new(program).args(words).output();
    let done = done.unwrap_or_else(|error| {
        panic!("{program}: {error} (`packaging/install/packages.sh test` installs it)")
    });
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {words:?}, which needs root: {said}");
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

fn host() -> CephVolume {
    let services = Arc::new(ScriptedServices::new());
    CephVolume::new(Arc::new(LinuxExec), services, "/etc/ceph/ceph.conf".into())
}

/// A disk of 64 MiB in memory, until it is dropped. The kernel looks for no partitions on it.
struct MemoryDisk(String);

impl MemoryDisk {
    fn new() -> Self {
        let number = fs::read_to_string("/sys/class/zram-control/hot_add").unwrap();
        let disk = MemoryDisk(number.trim().to_owned());
        fs::write(format!("/sys/block/zram{}/disksize", disk.0), BYTES.to_string()).unwrap();
        disk
    }

    fn path(&self) -> String {
        format!("/dev/zram{}", self.0)
    }
}

impl Drop for MemoryDisk {
    fn drop(&mut self) {
        let removed = fs::write("/sys/class/zram-control/hot_remove", &self.0);
        assert!(removed.is_ok() || std::thread::panicking(), "{removed:?}");
    }
}

/// A device of 64 MiB in a file, until it is dropped.
struct LoopDevice {
    path: String,
    mounted: Option<PathBuf>,
    scratch: tempfile::TempDir,
}

impl LoopDevice {
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("disk");
        File::create(&file).unwrap().set_len(BYTES).unwrap();
        let path = run("losetup", &["--find", "--show", "--partscan", file.to_str().unwrap()]);
        LoopDevice { path, mounted: None, scratch }
    }

    /// Makes an ext4 of a partition, and mounts it.
    fn mount(&mut self, partition: &str) -> String {
        run("mkfs.ext4", &["-q", partition]);
        let place = self.scratch.path().join("mounted");
        fs::create_dir(&place).unwrap();
        run("mount", &[partition, place.to_str().unwrap()]);
        self.mounted = Some(place.clone());
        place.display().to_string()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Some(place) = &self.mounted {
            run("umount", &[place.to_str().unwrap()]);
        }
        let _ = Command::new("partx").args(["--delete", &self.path]).status();
        run("losetup", &["--detach", &self.path]);
    }
}

/// A folder below `/dev`, where names of devices have to lie.
struct Links(PathBuf);

impl Links {
    fn new() -> Self {
        let folder = PathBuf::from(format!("/dev/pvc-test-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        Links(folder)
    }

    fn add(&self, name: &str, to: &str) -> String {
        let path = self.0.join(name);
        symlink(to, &path).unwrap();
        path.display().to_string()
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn a_disk_is_free_until_there_is_a_partition_table_on_it_that_the_kernel_has_not_read() {
    let (disk, host) = (MemoryDisk::new(), host());
    let path = device(&disk.path());
    let blank = host.device(&path).await.unwrap();
    assert!(blank.is_disk && !blank.is_read_only, "{blank:?}");
    assert_eq!((&blank.device, blank.size_bytes), (&path, BYTES));
    assert_eq!((blank.partition_table.as_ref(), blank.partitions.len()), (None, 0));
    may_take(&blank).unwrap();
    let listed = host.devices().await.unwrap();
    assert!(listed.iter().any(|found| found.device == path), "{listed:?}");

    // With the very words of the adapter: they need no kernel that reads partitions.
    assert_eq!(host.partition(&path).await.unwrap().as_str(), format!("{path}p1"));
    let parted = host.device(&path).await.unwrap();
    assert_eq!(parted.partition_table.as_deref(), Some("gpt"));
    may_take(&parted).unwrap_err();
}

#[tokio::test]
async fn partitions_and_what_is_mounted_of_them_are_shown() {
    let (mut device_in_file, host) = (LoopDevice::new(), host());
    let path = device_in_file.path.clone();
    run("sgdisk", &["--new", "1:0:+24M", "--new", "2:0:0", &path]);
    run("partx", &["--update", &path]);
    let [first, second] = [1, 2].map(|number| format!("{path}p{number}"));
    let place = device_in_file.mount(&first);
    let found = host.device(&device(&path)).await.unwrap();
    assert!(!found.is_disk && found.size_bytes == BYTES, "{found:?}");
    let parts = found.partitions.iter().map(|part| (part.device.as_str(), part.size_bytes));
    let parts: Vec<_> = parts.collect();
    assert_eq!(parts[0], (first.as_str(), 24 * MIB));
    assert_eq!((parts.len(), parts[1].0), (2, second.as_str()));
    assert_eq!(found.mounted_at, [place]);
    may_take(&found).unwrap_err();

    let part = host.device(&device(&first)).await.unwrap();
    assert_eq!((part.is_disk, part.size_bytes), (false, 24 * MIB));
    may_take(&part).unwrap_err();
}

#[tokio::test]
async fn names_lead_to_a_device_or_are_refused() {
    let (disk, links, host) = (MemoryDisk::new(), Links::new(), host());
    let by_id = links.add("by-id", &disk.path());
    let twice = links.add("twice", &by_id);
    assert_eq!(host.device(&device(&twice)).await.unwrap().device, device(&disk.path()));

    let a = links.add("a", "b");
    links.add("b", "a");
    let looped = host.device(&device(&a)).await;
    assert!(matches!(looped, Err(OsdError::LinkLoop { .. })), "{looped:?}");
    let nowhere = links.add("nowhere", "/dev/none-of-ours");
    for name in [nowhere, "/dev/none-of-ours".to_owned(), format!("{by_id}/below")] {
        let none = host.device(&device(&name)).await;
        assert!(matches!(none, Err(OsdError::NoDevice { .. })), "{name}: {none:?}");
    }
    let outside = links.add("outside", "/etc/hostname");
    for name in ["/dev/null", &outside, links.0.to_str().unwrap()] {
        let no_disk = host.device(&device(name)).await;
        assert!(matches!(no_disk, Err(OsdError::NotBlock { .. })), "{name}: {no_disk:?}");
    }
}

/// LVM writes groups without the device mapper, and no volumes in them. It takes no disk of the
/// other kind.
#[tokio::test]
async fn a_volume_group_is_made_once_and_shows_whose_disk_it_is_on() {
    let (disk, host) = (LoopDevice::new(), host());
    let (path, group) = (device(&disk.path), LvmName::block_group(Uuid::new_v4()));
    assert_eq!(host.volume_group(&group).await.unwrap(), None);
    host.create_volume_group(&group, &path).await.unwrap();
    let made = host.volume_group(&group).await.unwrap().unwrap();
    // LVM keeps an extent of 4 MiB for itself.
    assert_eq!((made.size_bytes, made.free_bytes), (60 * MIB, 60 * MIB));
    assert_eq!((&made.name, made.volumes.len()), (&group, 0));
    let again = host.create_volume_group(&group, &path).await;
    assert!(matches!(again, Err(OsdError::GroupExists { .. })), "{again:?}");
    let taken = host.device(&path).await.unwrap();
    assert_eq!(taken.groups, std::slice::from_ref(&group));

    let volume = LogicalVolume { group: group.clone(), name: LvmName::db_group() };
    let none = host.remove_volume(&volume).await;
    assert!(matches!(none, Err(OsdError::NoVolume { .. })), "{none:?}");
    run("vgremove", &["--force", "--yes", group.as_str()]);
    let spare = host.device(&path).await.unwrap();
    assert!(spare.groups.is_empty() && spare.is_spare_volume, "{spare:?}");
    run("pvremove", &["--force", "--yes", path.as_str()]);
    let free = host.device(&path).await.unwrap();
    assert!(free.groups.is_empty() && !free.is_spare_volume, "{free:?}");
}
