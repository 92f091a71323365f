//! Whether a disk may be taken: all that is on it will be lost.

use uuid::Uuid;

use super::device::BlockDevice;
use super::{LvmOsd, OsdId, OsdState};
use crate::shown;

/// Reason why a device may not be taken. Displays as a clause that reads on after "cannot …: ".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceInUse {
    #[error("device `{device}` is not a whole disk")]
    NotADisk { device: String },
    #[error("device `{device}` can only be read")]
    ReadOnly { device: String },
    #[error(
        "device `{device}` has a partition table of kind `{kind}` with {partitions} partitions"
    )]
    Partitioned { device: String, kind: String, partitions: usize },
    #[error("device `{device}` is mounted at `{at}`")]
    Mounted { device: String, at: String },
    #[error("device `{device}` belongs to the volume group `{group}`")]
    OfGroup { device: String, group: String },
    #[error("device `{device}` is held by `{holder}`, which is of the kind `{kind}`")]
    Held { device: String, holder: String, kind: String },
    #[error("device `{device}` belongs to something else: its content is `{content}`")]
    Foreign { device: String, content: String },
    #[error("device `{device}` is an OSD without logical volumes, which PVC knows nothing of")]
    RawOsd { device: String },
    #[error("device `{device}` holds OSD {osd} of this cluster")]
    HoldsOsd { device: String, osd: OsdId },
}

impl DeviceInUse {
    /// Advice for the operator.
    pub fn hint(&self) -> Option<String> {
        let wipe = |device: &str| {
            format!(
                "if nothing on it is needed any more, erase it on its node with `wipefs --all \
                 {device}`"
            )
        };
        match self {
            DeviceInUse::NotADisk { .. } => {
                Some("`lsblk` on the node shows its disks: those of the type `disk`".to_owned())
            }
            DeviceInUse::Partitioned { device, .. }
            | DeviceInUse::Foreign { device, .. }
            | DeviceInUse::RawOsd { device } => Some(wipe(device)),
            DeviceInUse::OfGroup { group, .. } => Some(format!(
                "if nothing in it is needed any more, remove it on its node with `vgremove {group}`"
            )),
            DeviceInUse::HoldsOsd { osd, .. } => {
                Some(format!("`pvc storage osd remove {osd}` frees it"))
            }
            DeviceInUse::ReadOnly { .. }
            | DeviceInUse::Mounted { .. }
            | DeviceInUse::Held { .. } => None,
        }
    }
}

/// Content, to the kernel's tools, of a whole disk that other tools made an OSD of.
const RAW_OSD: &str = "ceph_bluestore";

/// Whether the content, to the kernel's tools, says that the disk is a part of an array, an
/// encrypted volume or a volume group, which need not be in use at the moment. A physical volume of
/// LVM that LVM shows is judged by its group.
fn is_foreign(disk: &BlockDevice) -> bool {
    match disk.content.as_str() {
        "LVM2_member" => disk.groups.is_empty() && !disk.is_spare_volume,
        "BitLocker" | "bcache" | "drbd" => true,
        content => content.ends_with("_member") || content.starts_with("crypto_"),
    }
}

/// Whether the disk may be taken, as far as its own node can tell. What is left of OSDs on it (a
/// volume group of Ceph's tools) or a file system that is not mounted is no hindrance:
/// [`may_zap`] says whether those OSDs are still needed.
pub fn may_take(disk: &BlockDevice) -> Result<(), DeviceInUse> {
    let device = disk.device.to_string();
    if !disk.is_disk {
        return Err(DeviceInUse::NotADisk { device });
    }
    if disk.is_read_only {
        return Err(DeviceInUse::ReadOnly { device });
    }
    if let Some(at) = disk.mounted_at.first() {
        return Err(DeviceInUse::Mounted { device, at: at.clone() });
    }
    if disk.partition_table.is_some() || !disk.partitions.is_empty() {
        let kind = disk.partition_table.clone().unwrap_or_else(|| "unknown".to_owned());
        return Err(DeviceInUse::Partitioned { device, kind, partitions: disk.partitions.len() });
    }
    if disk.content == RAW_OSD {
        return Err(DeviceInUse::RawOsd { device });
    }
    if is_foreign(disk) {
        return Err(DeviceInUse::Foreign { device, content: shown(&disk.content) });
    }
    if let Some(group) = disk.groups.iter().find(|group| !group.is_of_ceph()) {
        return Err(DeviceInUse::OfGroup { device, group: group.to_string() });
    }
    let is_left = |of_ceph: bool| of_ceph && !disk.groups.is_empty();
    match disk.holders.iter().find(|holder| !is_left(holder.is_logical_volume())) {
        Some(holder) => {
            let (holder, kind) = (holder.name.clone(), holder.kind.clone());
            Err(DeviceInUse::Held { device, holder, kind })
        }
        None => Ok(()),
    }
}

/// OSDs, as their cluster and a node know them.
#[derive(Debug, Clone, Copy)]
pub struct KnownOsds<'a> {
    /// UUID of the cluster.
    pub cluster: Uuid,
    /// OSDs of the cluster.
    pub states: &'a [OsdState],
    /// OSDs on the node's logical volumes.
    pub on_node: &'a [LvmOsd],
}

/// Whether nothing that the cluster still counts on is on the device. An OSD of another cluster,
/// and one whose number is gone or was given to another, is a leftover.
pub fn may_zap(disk: &BlockDevice, known: KnownOsds) -> Result<(), DeviceInUse> {
    let is_needed = |osd: &&LvmOsd| {
        let is_it = |state: &OsdState| state.id == osd.id && state.uuid == Some(osd.uuid);
        osd.cluster == known.cluster && known.states.iter().any(is_it)
    };
    match known.on_node.iter().filter(|osd| osd.needs(disk)).find(is_needed) {
        Some(osd) => Err(DeviceInUse::HoldsOsd { device: disk.device.to_string(), osd: osd.id }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Device, Holder, LogicalVolume, LvmName, Partition};
    use super::*;

    fn disk() -> BlockDevice {
        BlockDevice::blank(Device::parse("/dev/sdb").unwrap(), 1 << 40)
    }

    fn group(name: &str) -> LvmName {
        LvmName::parse(name).unwrap()
    }

    fn holder(kind: &str) -> Holder {
        Holder { kind: kind.to_owned(), name: "some".to_owned() }
    }

    const OLD: &str = "ceph-6c5b1f6e-0b8e-4c5c-9a39-1f0a5cbd0000";

    #[test]
    fn a_disk_is_taken_that_nobody_uses() {
        assert_eq!(may_take(&disk()), Ok(()));
        let formatted = BlockDevice { content: "ext4".to_owned(), ..disk() };
        assert_eq!(may_take(&formatted), Ok(()));
        let (groups, holders) = (vec![group(OLD)], vec![holder("lvm"), holder("lvm")]);
        assert_eq!(may_take(&BlockDevice { groups, holders, ..disk() }), Ok(()));
        let content = "LVM2_member".to_owned();
        let spare = BlockDevice { is_spare_volume: true, content: content.clone(), ..disk() };
        assert_eq!(may_take(&spare), Ok(()));
        let groups = vec![group(OLD)];
        assert_eq!(may_take(&BlockDevice { groups, content, ..disk() }), Ok(()));
    }

    #[test]
    fn a_disk_is_refused_that_somebody_may_use() {
        let part = Partition {
            device: Device::parse("/dev/sdb1").unwrap(),
            size_bytes: 1,
            content: String::new(),
        };
        let of = |content: &str| BlockDevice { content: content.to_owned(), ..disk() };
        let cases = [
            (BlockDevice { is_disk: false, ..disk() }, "is not a whole disk"),
            (BlockDevice { is_read_only: true, ..disk() }, "can only be read"),
            (
                BlockDevice { partition_table: Some("gpt".to_owned()), ..disk() },
                "has a partition table of kind `gpt` with 0 partitions",
            ),
            (
                BlockDevice { partitions: vec![part], ..disk() },
                "has a partition table of kind `unknown` with 1 partitions",
            ),
            (
                BlockDevice { content: RAW_OSD.to_owned(), ..disk() },
                "is an OSD without logical \
                volumes, which PVC knows nothing of",
            ),
            (
                of("linux_raid_member"),
                "belongs to something else: its content is `linux_raid_member`",
            ),
            (of("crypto_LUKS"), "belongs to something else: its content is `crypto_LUKS`"),
            (of("zfs_member"), "belongs to something else: its content is `zfs_member`"),
            (of("LVM2_member"), "belongs to something else: its content is `LVM2_member`"),
            (
                BlockDevice { mounted_at: vec!["[SWAP]".to_owned()], ..disk() },
                "is mounted at `[SWAP]`",
            ),
            (
                BlockDevice { groups: vec![group(OLD), group("vg0")], ..disk() },
                "belongs to the volume group `vg0`",
            ),
            (
                BlockDevice { holders: vec![holder("raid1")], ..disk() },
                "is held by `some`, which is of the kind `raid1`",
            ),
            (
                BlockDevice {
                    groups: vec![group(OLD)],
                    holders: vec![holder("lvm"), holder("crypt")],
                    ..disk()
                },
                "is held by `some`, which is of the kind `crypt`",
            ),
            (
                BlockDevice { holders: vec![holder("lvm")], ..disk() },
                "is held by `some`, which is of the kind `lvm`",
            ),
        ];
        for (disk, why) in cases {
            assert_eq!(
                may_take(&disk).unwrap_err().to_string(),
                format!("device `/dev/sdb` {why}")
            );
        }
    }

    #[test]
    fn an_osd_is_needed_while_its_cluster_knows_it_by_number_and_uuid() {
        let [ours, theirs, uuid, newer] = [1, 2, 3, 4].map(Uuid::from_u128);
        let on = |cluster, device: &str| LvmOsd {
            id: OsdId(0),
            uuid,
            cluster,
            block: LogicalVolume::block_of(group(OLD), uuid),
            block_bytes: 1 << 40,
            db: None,
            wal: None,
            devices: vec![Device::parse(device).unwrap()],
        };
        let state =
            |uuid| OsdState { id: OsdId(0), uuid, is_up: false, is_in: false, is_new: false };
        for (osd, states, is_needed) in [
            (on(ours, "/dev/sdb"), vec![state(Some(uuid))], true),
            (on(ours, "/dev/sdb"), vec![], false),
            (on(ours, "/dev/sdb"), vec![state(None)], false),
            (on(ours, "/dev/sdb"), vec![state(Some(newer))], false),
            (on(theirs, "/dev/sdb"), vec![state(Some(uuid))], false),
            (on(ours, "/dev/sdc"), vec![state(Some(uuid))], false),
        ] {
            let known =
                KnownOsds { cluster: ours, states: &states, on_node: std::slice::from_ref(&osd) };
            assert_eq!(may_zap(&disk(), known).is_err(), is_needed, "{osd:?} {states:?}");
        }
    }

    #[test]
    fn a_disk_with_the_database_or_the_log_of_an_osd_is_as_needed_as_that() {
        let [ours, uuid] = [1, 2].map(Uuid::from_u128);
        let volume = |group: &str| Some(Device::parse(&format!("/dev/{group}/osd-db-x")).unwrap());
        let osd = |db, wal| LvmOsd {
            id: OsdId(0),
            uuid,
            cluster: ours,
            block: LogicalVolume::block_of(group("ceph-other"), uuid),
            block_bytes: 1 << 40,
            db,
            wal,
            devices: vec![Device::parse("/dev/sdc").unwrap()],
        };
        let state =
            OsdState { id: OsdId(0), uuid: Some(uuid), is_up: true, is_in: true, is_new: false };
        let states = [state];
        let fast = BlockDevice { groups: vec![group(OLD)], ..disk() };
        for (osd, is_needed) in [
            (osd(volume(OLD), None), true),
            (osd(None, volume(OLD)), true),
            (osd(volume("ceph-other"), None), false),
            (osd(None, None), false),
            // A group over two disks, whose block happens to lie on the other one.
            (LvmOsd { block: LogicalVolume::block_of(group(OLD), uuid), ..osd(None, None) }, true),
        ] {
            let on_node = std::slice::from_ref(&osd);
            let known = KnownOsds { cluster: ours, states: &states, on_node };
            assert_eq!(may_zap(&fast, known).is_err(), is_needed, "{osd:?}");
        }
    }
}
