//! Plan of what adding OSDs will do to which disk, before anything is done.

use super::detect::DeviceSpec;
use super::device::BlockDevice;
use super::size::{BadDbSize, DbSize, EXTENT_BYTES, block_bytes};
use super::take::{DeviceInUse, KnownOsds, may_take, may_zap};
use super::volumes::{DB_GROUP, VolumeGroup};
use super::{DeviceClass, LvmOsd, OsdId};

/// Most OSDs that one device is split into.
pub const MOST_OSDS_PER_DEVICE: u32 = 16;

/// The highest weight of an OSD. Weights are terabytes by custom.
const MOST_WEIGHT: f64 = 10_000.0;

/// Fewest bytes of an OSD: Ceph's tools pass smaller disks over.
const LEAST_BYTES: u64 = 5 << 30;

/// OSDs as somebody asks for them.
#[derive(Debug, Clone, PartialEq)]
pub struct AddOsds {
    pub device: DeviceSpec,
    pub weight: f64,
    pub db: Option<DbSize>,
    /// Number of OSDs that the device is split into.
    pub count: u32,
}

/// Databases of new OSDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DbPlan {
    /// Size of each, in bytes.
    pub bytes: u64,
    /// Room in the group now, in bytes.
    pub free_bytes: u64,
}

/// Course of adding OSDs: what is lost, and what is made.
#[derive(Debug, Clone, PartialEq)]
pub struct OsdPlan {
    pub asked: DeviceSpec,
    /// The disk that will be erased, as it is now.
    pub disk: BlockDevice,
    /// Leftovers of OSDs that will be erased with it.
    pub erased: Vec<OsdId>,
    pub class: DeviceClass,
    pub weight: f64,
    pub count: u32,
    /// About the size of each OSD: LVM has the last word.
    pub block_bytes: u64,
    pub db: Option<DbPlan>,
}

/// Reason why no OSD can be added. Displays as a clause that reads on after "cannot …: ".
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum NoOsds {
    #[error("a device can be split into 1 to {MOST_OSDS_PER_DEVICE} OSDs, not {count}")]
    Count { count: u32 },
    #[error("the weight of an OSD is a number from 0 to {MOST_WEIGHT}, not {weight}")]
    Weight { weight: f64 },
    #[error(transparent)]
    InUse(#[from] DeviceInUse),
    #[error(
        "device `{device}` has {size_bytes} bytes, which gives {block_bytes} bytes for each of \
         {count} OSDs: {LEAST_BYTES} bytes are needed"
    )]
    TooSmall { device: String, size_bytes: u64, block_bytes: u64, count: u32 },
    #[error(transparent)]
    Db(#[from] BadDbSize),
    #[error("the node has no volume group `{DB_GROUP}` for databases")]
    NoDbGroup,
    #[error(
        "the volume group `{DB_GROUP}` has {free_bytes} bytes free, {needed_bytes} bytes are \
         needed for databases"
    )]
    NoRoomForDb { free_bytes: u64, needed_bytes: u64 },
}

impl NoOsds {
    /// Advice for the operator.
    pub fn hint(&self) -> Option<String> {
        match self {
            NoOsds::InUse(why) => why.hint(),
            NoOsds::NoDbGroup => Some(
                "`pvc storage osd create-db-vg NODE DEVICE` makes it from a device of its own"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

/// Whether a device can be split into so many OSDs.
pub fn check_count(count: u32) -> Result<(), NoOsds> {
    match (1..=MOST_OSDS_PER_DEVICE).contains(&count) {
        true => Ok(()),
        false => Err(NoOsds::Count { count }),
    }
}

/// Whether an OSD can have this weight.
pub fn check_weight(weight: f64) -> Result<(), NoOsds> {
    match (0.0..=MOST_WEIGHT).contains(&weight) {
        true => Ok(()),
        false => Err(NoOsds::Weight { weight }),
    }
}

/// The course of adding OSDs on `disk`, which is the one that was asked for; `db_group` is the
/// node's group for databases, if it has one.
///
/// # Errors
/// [`NoOsds`] says why nothing will be done.
pub fn plan_add(
    asked: &AddOsds,
    disk: &BlockDevice,
    known: KnownOsds,
    db_group: Option<&VolumeGroup>,
) -> Result<OsdPlan, NoOsds> {
    let AddOsds { device, weight, db, count } = asked;
    check_count(*count)?;
    check_weight(*weight)?;
    may_take(disk)?;
    may_zap(disk, known)?;
    // LVM keeps one extent for itself.
    let block_bytes = block_bytes(disk.size_bytes.saturating_sub(EXTENT_BYTES), *count);
    if block_bytes < LEAST_BYTES {
        let (device, size_bytes) = (disk.device.to_string(), disk.size_bytes);
        return Err(NoOsds::TooSmall { device, size_bytes, block_bytes, count: *count });
    }
    let db = db.map(|size| plan_db(size, block_bytes, *count, db_group)).transpose()?;
    let named = match device {
        DeviceSpec::Path(device) => device,
        DeviceSpec::Detect(_) => &disk.device,
    };
    let left = |osd: &&LvmOsd| osd.needs(disk);
    Ok(OsdPlan {
        asked: device.clone(),
        disk: disk.clone(),
        erased: known.on_node.iter().filter(left).map(|osd| osd.id).collect(),
        class: DeviceClass::of([named, &disk.device]),
        weight: *weight,
        count: *count,
        block_bytes,
        db,
    })
}

fn plan_db(
    size: DbSize,
    block_bytes: u64,
    count: u32,
    group: Option<&VolumeGroup>,
) -> Result<DbPlan, NoOsds> {
    let bytes = size.bytes(block_bytes)?;
    let free_bytes = group.ok_or(NoOsds::NoDbGroup)?.free_bytes;
    let needed_bytes = bytes.saturating_mul(u64::from(count));
    match needed_bytes <= free_bytes {
        true => Ok(DbPlan { bytes, free_bytes }),
        false => Err(NoOsds::NoRoomForDb { free_bytes, needed_bytes }),
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::super::{Device, LvmName};
    use super::*;

    const GIB: u64 = 1 << 30;
    const NOBODY: KnownOsds<'static> =
        KnownOsds { cluster: Uuid::nil(), states: &[], on_node: &[] };

    fn disk(gib: u64) -> BlockDevice {
        BlockDevice::blank(Device::parse("/dev/nvme0n1").unwrap(), gib * GIB)
    }

    fn asked(count: u32, db: Option<DbSize>) -> AddOsds {
        let device = DeviceSpec::parse("detect:any:100GB:0").unwrap();
        AddOsds { device, weight: 1.0, db, count }
    }

    fn group(free_gib: u64) -> VolumeGroup {
        let free_bytes = free_gib * GIB;
        let name = LvmName::db_group();
        VolumeGroup { name, size_bytes: 100 * GIB, free_bytes, volumes: Vec::new() }
    }

    #[test]
    fn a_plan_says_what_will_be_made() {
        let plan = plan_add(&asked(1, None), &disk(100), NOBODY, None).unwrap();
        assert_eq!((plan.block_bytes, plan.db), (100 * GIB - EXTENT_BYTES, None));
        assert_eq!((plan.class, plan.count), (DeviceClass::Nvme, 1));

        let ratio = Some(DbSize::Ratio(0.1));
        let plan = plan_add(&asked(2, ratio), &disk(100), NOBODY, Some(&group(10))).unwrap();
        assert_eq!(plan.block_bytes, 50 * GIB - EXTENT_BYTES);
        assert_eq!(plan.db, Some(DbPlan { bytes: 5 * GIB - EXTENT_BYTES, free_bytes: 10 * GIB }));
    }

    #[test]
    fn what_cannot_be_made_is_refused_before_anything_is_done() {
        let db = Some(DbSize::Bytes(6 * GIB));
        let cases = [
            (asked(0, None), disk(100), None, "split into 1 to 16 OSDs, not 0"),
            (asked(17, None), disk(100), None, "not 17"),
            (AddOsds { weight: -1.0, ..asked(1, None) }, disk(100), None, "not -1"),
            (AddOsds { weight: f64::NAN, ..asked(1, None) }, disk(100), None, "not NaN"),
            (asked(1, None), BlockDevice { is_disk: false, ..disk(9) }, None, "not a whole disk"),
            (asked(1, None), disk(5), None, "5368709120 bytes are needed"),
            (asked(2, None), disk(9), None, "for each of 2 OSDs"),
            (asked(1, db), disk(100), None, "no volume group `osd-db`"),
            (asked(2, db), disk(100), Some(group(11)), "12884901888 bytes are needed"),
        ];
        for (asked, disk, group, why) in cases {
            let error = plan_add(&asked, &disk, NOBODY, group.as_ref()).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
