//! LVM's names, and the logical volumes that an OSD lies on.

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

use super::OsdId;
use super::detect::BadDevice;
use super::device::Device;
use crate::name::{BadName, check_name};

/// Name of the volume group that a node keeps the databases of its OSDs in.
pub const DB_GROUP: &str = "osd-db";

/// Name of a volume group or of a logical volume.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LvmName(Arc<str>);

impl LvmName {
    /// The name as a program or a record says it: it becomes part of command lines.
    pub fn parse(name: &str) -> Result<Self, BadName> {
        // `+` is LVM's own, and allowed in names.
        let plain = name.replace('+', "_");
        let begins = plain.strip_prefix(['_', '.']).filter(|rest| !rest.is_empty());
        check_name("LVM", begins.unwrap_or(&plain), 127)?;
        Ok(LvmName(Arc::from(name)))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Name of the volume group for databases.
    pub fn db_group() -> Self {
        LvmName(Arc::from(DB_GROUP))
    }

    /// Name of a new volume group for the blocks of one device.
    pub fn block_group(uuid: Uuid) -> Self {
        LvmName(Arc::from(format!("ceph-{uuid}")))
    }

    /// Whether Ceph's own tools, or PVC, have made the group for OSDs.
    pub fn is_of_ceph(&self) -> bool {
        self.0.strip_prefix("ceph-").is_some_and(|rest| Uuid::try_parse(rest).is_ok())
    }
}

impl fmt::Display for LvmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A logical volume, written `group/name`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogicalVolume {
    pub group: LvmName,
    pub name: LvmName,
}

impl LogicalVolume {
    /// `group/name`.
    pub fn parse(text: &str) -> Result<Self, BadName> {
        let (group, name) = text.split_once('/').unwrap_or(("", text));
        Ok(LogicalVolume { group: LvmName::parse(group)?, name: LvmName::parse(name)? })
    }

    /// The volume that the database of an OSD lies on.
    pub fn db_of(id: OsdId) -> Self {
        let name = LvmName(Arc::from(format!("osd-{id}")));
        LogicalVolume { group: LvmName::db_group(), name }
    }

    /// The volume in `group` that the data of an OSD lies on.
    pub fn block_of(group: LvmName, osd: Uuid) -> Self {
        let name = LvmName(Arc::from(format!("osd-block-{osd}")));
        LogicalVolume { group, name }
    }

    /// The device that it is.
    pub fn device(&self) -> Device {
        Device::parse(&format!("/dev/{self}")).expect("LVM's names are those of devices")
    }
}

impl fmt::Display for LogicalVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.group, self.name)
    }
}

/// A volume group as it is at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeGroup {
    pub name: LvmName,
    pub size_bytes: u64,
    pub free_bytes: u64,
    /// Logical volumes in it with their sizes in bytes.
    pub volumes: Vec<(LvmName, u64)>,
}

impl VolumeGroup {
    /// Size of one of its volumes, in bytes; `None` if there is none of this name.
    pub fn volume_bytes(&self, name: &LvmName) -> Option<u64> {
        self.volumes.iter().find(|(found, _)| found == name).map(|(_, bytes)| *bytes)
    }
}

/// Name of the first partition of a device, which is called as the kernel calls it.
///
/// # Errors
/// If the device's own name is so long that its partition can have none.
pub fn first_partition(device: &Device) -> Result<Device, BadDevice> {
    let path = device.as_str();
    let between = if path.ends_with(|c: char| c.is_ascii_digit()) { "p" } else { "" };
    Device::parse(&format!("{path}{between}1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_partition_of_a_device_is_called_as_the_kernel_calls_it() {
        for (device, partition) in [
            ("/dev/sdb", "/dev/sdb1"),
            ("/dev/nvme0n1", "/dev/nvme0n1p1"),
            ("/dev/loop3", "/dev/loop3p1"),
        ] {
            let found = first_partition(&Device::parse(device).unwrap()).unwrap();
            assert_eq!(found.as_str(), partition);
        }
    }

    #[test]
    fn lvm_is_given_nothing_but_names() {
        for good in ["osd-db", "osd-0", "ceph-6c5b1f6e-0b8e-4c5c-9a39-1f0a5cbd0000", "a+b", "_x.y"]
        {
            assert_eq!(LvmName::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", "-f", ".", "..", "a b", "a/b", "--yes", "ä", "a\0"] {
            assert!(LvmName::parse(bad).is_err(), "{bad:?}");
        }
        assert_eq!(LogicalVolume::parse("osd-db/osd-3"), Ok(LogicalVolume::db_of(OsdId(3))));
        for bad in ["", "osd-3", "/osd-3", "osd-db/", "a/b/c", "osd-db/-f"] {
            assert!(LogicalVolume::parse(bad).is_err(), "{bad:?}");
        }
        assert_eq!(LogicalVolume::db_of(OsdId(3)).device().as_str(), "/dev/osd-db/osd-3");
    }

    #[test]
    fn groups_of_ceph_are_known_by_their_names() {
        assert!(LvmName::block_group(Uuid::from_u128(7)).is_of_ceph());
        for other in ["ceph-data", "vg0", "osd-db", "ceph-"] {
            assert!(!LvmName::parse(other).unwrap().is_of_ceph(), "{other}");
        }
    }
}
