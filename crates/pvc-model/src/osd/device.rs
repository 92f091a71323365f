//! Names of devices, and what is known of a disk.

use std::fmt;
use std::sync::Arc;

use super::detect::BadDevice;
use super::volumes::LvmName;

/// Most bytes in the name of a device. The kernel's are shorter than 40, those by id below 200.
const LIMIT: usize = 255;

/// Absolute path of a device below `/dev`, fit for a command line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Device(Arc<str>);

impl Device {
    /// The path as an operator, a record or a program says it.
    pub fn parse(path: &str) -> Result<Self, BadDevice> {
        let shown = || crate::shown(path);
        let Some(below) = path.strip_prefix("/dev/") else {
            return Err(BadDevice::NotBelowDev { shown: shown() });
        };
        if path.len() > LIMIT {
            return Err(BadDevice::TooLong { shown: shown(), bytes: path.len(), limit: LIMIT });
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.:+@=#~,/\\".contains(c);
        if let Some(found) = below.chars().find(|c| !allowed(*c)) {
            return Err(BadDevice::Forbidden {
                shown: shown(),
                found: crate::shown(&found.to_string()),
            });
        }
        let is_step = |part: &str| matches!(part, "" | "." | "..");
        if below.split('/').any(is_step) {
            return Err(BadDevice::Detour { shown: shown() });
        }
        Ok(Device(Arc::from(path)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Address of a disk on its bus: host, channel, target, unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScsiAddress(pub [u64; 4]);

impl ScsiAddress {
    /// `0:0:1:0`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = [0; 4];
        let mut parts = text.split(':');
        for number in &mut numbers {
            *number = parts.next()?.parse().ok()?;
        }
        parts.next().is_none().then_some(ScsiAddress(numbers))
    }
}

/// Partition of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    pub device: Device,
    pub size_bytes: u64,
    /// Content of a partition, as the kernel's tools call it: `ext4`, `LVM2_member`; empty if
    /// nothing is known there.
    pub content: String,
}

/// A device that is made of others: by LVM, encryption, RAID, or multipath.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The kernel's tools call it `lvm`, `crypt`, `raid1`, `mpath`.
    pub kind: String,
    pub name: String,
}

impl Holder {
    pub fn is_logical_volume(&self) -> bool {
        self.kind == "lvm"
    }
}

/// A block device of a node as it is at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockDevice {
    /// The kernel's own name: never a link.
    pub device: Device,
    /// Whether it is a whole disk: no partition, no loop device, no volume of LVM.
    pub is_disk: bool,
    pub is_read_only: bool,
    pub size_bytes: u64,
    /// Empty if unknown, as are the next three.
    pub vendor: String,
    pub model: String,
    pub revision: String,
    pub serial: String,
    /// `None` for what is on no SCSI bus, such as NVMe.
    pub address: Option<ScsiAddress>,
    /// Content of the whole, as the kernel's tools call it: `ext4`, `LVM2_member`,
    /// `ceph_bluestore`; empty if nothing is known there.
    pub content: String,
    /// Kind of its partition table, `gpt` or `dos`; `None` without one.
    pub partition_table: Option<String>,
    pub partitions: Vec<Partition>,
    /// Places where it, a partition of it, or what lies on them is mounted, `[SWAP]` among them.
    pub mounted_at: Vec<String>,
    /// Devices that are made of it and of its partitions.
    pub holders: Vec<Holder>,
    /// Volume groups that it, or a partition of it, is a physical volume of.
    pub groups: Vec<LvmName>,
    /// Whether it, or a partition of it, is a physical volume that belongs to no group.
    pub is_spare_volume: bool,
}

impl BlockDevice {
    /// A disk of which nothing is known but its name and size, with nothing on it.
    pub fn blank(device: Device, size_bytes: u64) -> Self {
        BlockDevice {
            device,
            is_disk: true,
            is_read_only: false,
            size_bytes,
            vendor: String::new(),
            model: String::new(),
            revision: String::new(),
            serial: String::new(),
            address: None,
            content: String::new(),
            partition_table: None,
            partitions: Vec::new(),
            mounted_at: Vec::new(),
            holders: Vec::new(),
            groups: Vec::new(),
            is_spare_volume: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_a_plain_path_below_dev() {
        for good in [
            "/dev/sdb",
            "/dev/nvme0n1",
            "/dev/disk/by-path/pci-0000:3b:00.0-scsi-0:2:1:0",
            "/dev/disk/by-id/nvme-eui.0025385",
            "/dev/mapper/mpatha",
            "/dev/disk/by-id/a\\x20b",
        ] {
            assert_eq!(Device::parse(good).unwrap().as_str(), good);
        }
        for (bad, why) in [
            ("", "not below `/dev`"),
            ("sdb", "not below `/dev`"),
            ("/dev", "not below `/dev`"),
            ("/dev/", "detour"),
            ("/etc/shadow", "not below `/dev`"),
            ("/devil/sdb", "not below `/dev`"),
            ("/dev/../etc/shadow", "detour"),
            ("/dev/./sdb", "detour"),
            ("/dev//sdb", "detour"),
            ("/dev/sdb/", "detour"),
            ("/dev/sd b", "contains ` `"),
            ("/dev/sdb\n", "contains"),
            ("/dev/sdb\0", "contains"),
            ("/dev/sd`b", "contains"),
            ("/dev/sdß", "contains `ß`"),
            ("--all", "not below `/dev`"),
        ] {
            let error = Device::parse(bad).unwrap_err().to_string();
            assert!(error.contains(why), "{bad:?}: {error}");
            assert!(!error.contains(['\n', '\0']), "{error:?}");
        }
        assert!(Device::parse(&format!("/dev/{}", "x".repeat(300))).is_err());
    }

    #[test]
    fn an_address_on_the_bus_has_four_numbers() {
        assert_eq!(ScsiAddress::parse("0:2:11:0"), Some(ScsiAddress([0, 2, 11, 0])));
        for bad in ["", "0:2:11", "0:2:11:0:1", "N:0:1:1", "0:2:-1:0"] {
            assert_eq!(ScsiAddress::parse(bad), None, "{bad}");
        }
        assert!(ScsiAddress::parse("0:0:2:0") < ScsiAddress::parse("0:0:10:0"));
    }
}
