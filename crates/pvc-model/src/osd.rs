//! OSDs: the disks of a node that Ceph keeps its data on.
//!
//! ```text
//!  device   names of devices, checked, and what is known of a disk
//!  detect   `detect:NAME:SIZE:ID`, and which disk that is
//!  volumes  LVM's names, and the logical volumes that an OSD lies on
//!  size     sizes of databases and blocks, as LVM allots them
//!  take     whether a disk may be taken
//!  plan     what adding OSDs will do to which disk
//! ```

mod detect;
mod device;
mod plan;
mod size;
mod take;
mod volumes;

use std::fmt;

use uuid::Uuid;

pub use detect::{BadDevice, Detect, DeviceSpec, NoDevice, choice, find};
pub use device::{BlockDevice, Device, Holder, Partition, ScsiAddress};
pub use plan::{
    AddOsds, DbPlan, MOST_OSDS_PER_DEVICE, NoOsds, OsdPlan, check_count, check_weight, plan_add,
};
pub use size::{BadDbSize, DbSize, EXTENT_BYTES, block_bytes, whole_extents};
pub use take::{DeviceInUse, KnownOsds, may_take, may_zap};
pub use volumes::{DB_GROUP, LogicalVolume, LvmName, VolumeGroup, first_partition};

/// Number of an OSD.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OsdId(pub u32);

/// Reason why a text is not the number of an OSD.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{shown}` is not the number of an OSD: `0`, `1`, … are")]
pub struct BadOsdId {
    pub shown: String,
}

impl OsdId {
    /// The number as an operator or a record has it: digits alone, without zeros before them.
    pub fn parse(text: &str) -> Result<Self, BadOsdId> {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_digit())
            && (text == "0" || !text.starts_with('0'));
        let id = text.parse().ok().filter(|_| is_plain).map(OsdId);
        // Ceph numbers its OSDs by signed integers.
        let id = id.filter(|OsdId(id)| i32::try_from(*id).is_ok());
        id.ok_or_else(|| BadOsdId { shown: crate::shown(text) })
    }

    /// Name of the unit of its daemon.
    pub fn unit(self) -> String {
        format!("ceph-osd@{self}.service")
    }
}

impl fmt::Display for OsdId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An OSD as its cluster knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OsdState {
    pub id: OsdId,
    /// `None` when it has been destroyed, and its number waits for a new one.
    pub uuid: Option<Uuid>,
    pub is_up: bool,
    pub is_in: bool,
    /// Whether it never was up since its number was given: it holds no data.
    pub is_new: bool,
}

/// An OSD as it lies on the logical volumes of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LvmOsd {
    pub id: OsdId,
    pub uuid: Uuid,
    /// UUID of the cluster that it belongs to.
    pub cluster: Uuid,
    pub block: LogicalVolume,
    pub block_bytes: u64,
    /// Device that its database is on, if that lies elsewhere: a logical volume, or a partition.
    pub db: Option<Device>,
    /// The same of its write-ahead log. PVC makes none; `ceph-volume` does if it is asked to.
    pub wal: Option<Device>,
    /// Devices that the block lies on, as the kernel names them.
    pub devices: Vec<Device>,
}

/// Whether the data of an OSD is safe without it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Safety {
    Safe,
    /// The cluster's own words for why it is not, or why nobody can tell.
    NotYet(String),
}

macro_rules! flags {
    ($($(#[$doc:meta])* $flag:ident = $name:literal),+ $(,)?) => {
        /// Flag of a cluster that holds up one of the things that it does by itself.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum OsdFlag {
            $($(#[$doc])* $flag),+
        }

        impl OsdFlag {
            pub const ALL: &[OsdFlag] = &[$(OsdFlag::$flag),+];

            /// The name that Ceph has for it.
            pub fn name(self) -> &'static str {
                match self {
                    $(OsdFlag::$flag => $name),+
                }
            }
        }
    };
}

flags! {
    /// No client reads or writes any more.
    Pause = "pause",
    NoUp = "noup",
    NoDown = "nodown",
    /// An OSD that is down for long stays in, and its data where it is.
    NoOut = "noout",
    NoIn = "noin",
    NoBackfill = "nobackfill",
    NoRebalance = "norebalance",
    NoRecover = "norecover",
    NoScrub = "noscrub",
    NoDeepScrub = "nodeep-scrub",
    NoTierAgent = "notieragent",
    NoSnapTrim = "nosnaptrim",
}

/// Reason why a text is not a flag.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{shown}` is not a flag that can be set; {} are", flag_names())]
pub struct BadFlag {
    pub shown: String,
}

fn flag_names() -> String {
    let names: Vec<_> = OsdFlag::ALL.iter().map(|flag| format!("`{}`", flag.name())).collect();
    let (last, others) = names.split_last().expect("there are some");
    format!("{} and {last}", others.join(", "))
}

impl OsdFlag {
    /// The flag of this name.
    pub fn parse(text: &str) -> Result<Self, BadFlag> {
        let found = OsdFlag::ALL.iter().find(|flag| flag.name() == text);
        found.copied().ok_or_else(|| BadFlag { shown: crate::shown(text) })
    }
}

impl fmt::Display for OsdFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Kind of a disk, by which pools choose their OSDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceClass {
    Ssd,
    Nvme,
}

impl DeviceClass {
    /// The class of a device by its names: PVC tells no rotating disks apart. An operator who has
    /// some gives their class to Ceph.
    pub fn of<'a>(names: impl IntoIterator<Item = &'a Device>) -> Self {
        let is_nvme = names.into_iter().any(|name| name.as_str().contains("nvme"));
        if is_nvme { DeviceClass::Nvme } else { DeviceClass::Ssd }
    }

    pub fn name(self) -> &'static str {
        match self {
            DeviceClass::Ssd => "ssd",
            DeviceClass::Nvme => "nvme",
        }
    }
}

impl LvmOsd {
    /// Whether its block lies on the device, as the kernel names it, or on a partition of that.
    pub fn is_on(&self, device: &BlockDevice) -> bool {
        self.devices.iter().any(|own| {
            *own == device.device || device.partitions.iter().any(|part| part.device == *own)
        })
    }

    /// Whether anything of it lies on the device: its block, its database, its log, or a part of
    /// the volume group that its block is in. Without any of the first three it does not run.
    pub fn needs(&self, device: &BlockDevice) -> bool {
        let is_in_group = device.groups.contains(&self.block.group);
        let is_there = |part: &Device| {
            let volume = part.as_str().strip_prefix("/dev/").map(LogicalVolume::parse);
            let is_volume = matches!(volume, Some(Ok(at)) if device.groups.contains(&at.group));
            is_volume || device.partitions.iter().any(|own| own.device == *part)
        };
        is_in_group || self.is_on(device) || self.db.iter().chain(&self.wal).any(is_there)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_osd_is_called_by_its_plain_number() {
        for (text, id) in [("0", 0), ("7", 7), ("2147483647", i32::MAX as u32)] {
            assert_eq!(OsdId::parse(text), Ok(OsdId(id)));
        }
        for text in ["", "-1", "+1", "01", "1.0", " 1", "osd.1", "١", "2147483648", "1\0", "all"] {
            assert!(OsdId::parse(text).is_err(), "{text:?}");
        }
        assert_eq!(
            OsdId::parse("any\u{1b}").unwrap_err().to_string(),
            "`any\u{fffd}` is not the number of an OSD: `0`, `1`, … are"
        );
        assert_eq!(OsdId(12).unit(), "ceph-osd@12.service");
    }

    #[test]
    fn a_flag_is_one_of_those_that_can_be_set_and_unset() {
        for flag in OsdFlag::ALL {
            assert_eq!(OsdFlag::parse(flag.name()), Ok(*flag));
        }
        for text in ["", "noOut", "noout ", "--yes", "sortbitwise", "noout,noin"] {
            assert!(OsdFlag::parse(text).is_err(), "{text:?}");
        }
        let error = OsdFlag::parse("nout").unwrap_err().to_string();
        assert!(error.contains("`noout`") && error.ends_with("and `nosnaptrim` are"), "{error}");
    }

    #[test]
    fn the_class_of_a_disk_follows_from_its_names() {
        for (name, class) in [
            ("/dev/sdb", DeviceClass::Ssd),
            ("/dev/nvme0n1", DeviceClass::Nvme),
            ("/dev/disk/by-path/pci-0000:01:00.0-nvme-1", DeviceClass::Nvme),
        ] {
            assert_eq!(DeviceClass::of([&Device::parse(name).unwrap()]), class, "{name}");
        }
    }
}
