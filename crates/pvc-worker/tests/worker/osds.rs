//! OSDs for the worker to work on: how they are before each kind of job, and how they should be
//! when it is done, or when nothing of it is.

use std::sync::Arc;

use pvc_model::Uuid;
use pvc_model::cluster::Cluster;
use pvc_model::job::JobWork;
use pvc_model::job::osd::OsdReplacement;
use pvc_model::osd::{
    AddOsds, DbSize, Device, DeviceClass, DeviceSpec, LogicalVolume, LvmName, LvmOsd, OsdId,
    OsdState,
};
use pvc_model::storage::{OsdRecord, RbdAccess};
use pvc_ports::UnitState;
use pvc_testkit::{MemoryOsds, MemoryStorage, ScriptedCluster, SharedOsds};

pub const NODE: &str = "hv1";
/// Node that is fenced, with the disks of an OSD.
pub const FENCED: &str = "hv9";
const GIB: u64 = 1 << 30;
/// Piece in which LVM gives room.
const EXTENT: u64 = 4 << 20;
/// Weight of the OSDs that are there, and of the new ones.
const WEIGHT: f64 = 0.5;
const NEW_WEIGHT: f64 = 2.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OsdCase {
    /// A disk is split into two, with databases in the group for those.
    Add,
    /// An NVMe disk becomes an OSD, with a database of a part of its size.
    AddNvme,
    /// Two that share a disk, with databases, move to another disk.
    Replace,
    /// The same, on the disk that they have.
    ReplaceInPlace,
    /// The same on another disk, with a weight, and with databases of a part of its size.
    ReplaceOtherwise,
    /// The same, although their data is not safe without them.
    ReplaceByForce,
    /// Two of a disk that their node does not know any more.
    Refresh,
    Remove,
    /// The same, although its data is not safe without it.
    RemoveByForce,
    /// Removes one that lies on a node that is fenced.
    RemoveOfFencedNode,
    /// Removes one of two that share a disk.
    RemoveOneOfTwo,
    AddDbGroup,
}

impl OsdCase {
    pub const ALL: [OsdCase; 12] = [
        OsdCase::Add,
        OsdCase::AddNvme,
        OsdCase::Replace,
        OsdCase::ReplaceInPlace,
        OsdCase::ReplaceOtherwise,
        OsdCase::ReplaceByForce,
        OsdCase::Refresh,
        OsdCase::Remove,
        OsdCase::RemoveByForce,
        OsdCase::RemoveOfFencedNode,
        OsdCase::RemoveOneOfTwo,
        OsdCase::AddDbGroup,
    ];

    /// Number of OSDs that there are on `/dev/sdb`.
    fn before(self) -> u32 {
        match self {
            OsdCase::Add | OsdCase::AddNvme | OsdCase::AddDbGroup => 0,
            OsdCase::Remove | OsdCase::RemoveByForce | OsdCase::RemoveOfFencedNode => 1,
            _ => 2,
        }
    }

    /// The node that the OSDs lie on.
    pub fn node(self) -> &'static str {
        if self == OsdCase::RemoveOfFencedNode { FENCED } else { NODE }
    }

    pub fn is_forced(self) -> bool {
        matches!(self, OsdCase::RemoveByForce | OsdCase::ReplaceByForce)
    }

    pub fn osds(self) -> MemoryOsds {
        let node = self.node();
        let mut osds = MemoryOsds::new();
        osds.add_blank(node, "/dev/sdb", 100 * GIB);
        osds.add_blank(node, "/dev/sdc", 20 * GIB);
        osds.add_blank(node, "/dev/sdd", 200 * GIB);
        osds.add_blank(node, "/dev/nvme0n1", 100 * GIB);
        if self != OsdCase::AddDbGroup {
            let partition = osds.partition(node, &device("/dev/sdc")).expect("it is empty");
            let group = LvmName::db_group();
            osds.create_volume_group(node, &group, &partition).expect("there is none");
        }
        make(&mut osds, node, self.before());
        for id in (0..self.before()).map(OsdId) {
            // By force nothing is waited for: it would never be safe.
            osds.set_needed(id, if self.is_forced() { 1 << 40 } else { 1 });
        }
        if matches!(self, OsdCase::Refresh | OsdCase::RemoveOfFencedNode) {
            osds.node_off(node);
        }
        osds
    }

    pub fn work(self) -> JobWork {
        let osd = OsdId(0);
        let replacement = |device| OsdReplacement {
            osd,
            device,
            old_device: Some(spec("/dev/sdb")),
            weight: None,
            db: None,
            force: false,
        };
        match self {
            OsdCase::Add => JobWork::AddOsds(AddOsds {
                device: spec("/dev/sdb"),
                weight: NEW_WEIGHT,
                db: Some(DbSize::Bytes(GIB)),
                count: 2,
            }),
            OsdCase::AddNvme => JobWork::AddOsds(AddOsds {
                device: spec("/dev/nvme0n1"),
                weight: NEW_WEIGHT,
                db: Some(DbSize::Ratio(0.05)),
                count: 1,
            }),
            OsdCase::Replace => JobWork::ReplaceOsd(replacement(spec("/dev/sdd"))),
            OsdCase::ReplaceInPlace => JobWork::ReplaceOsd(replacement(spec("/dev/sdb"))),
            OsdCase::ReplaceOtherwise => JobWork::ReplaceOsd(OsdReplacement {
                weight: Some(NEW_WEIGHT),
                db: Some(DbSize::Ratio(0.02)),
                ..replacement(spec("/dev/sdd"))
            }),
            OsdCase::ReplaceByForce => {
                JobWork::ReplaceOsd(OsdReplacement { force: true, ..replacement(spec("/dev/sdd")) })
            }
            OsdCase::RemoveByForce => JobWork::RemoveOsd { osd, force: true },
            OsdCase::Refresh => JobWork::RefreshOsd { osd, device: spec("/dev/sdb") },
            OsdCase::Remove | OsdCase::RemoveOfFencedNode | OsdCase::RemoveOneOfTwo => {
                JobWork::RemoveOsd { osd, force: false }
            }
            OsdCase::AddDbGroup => JobWork::AddDbGroup { device: spec("/dev/sdc") },
        }
    }

    /// The records of the OSDs that there are.
    pub fn records(self, osds: &mut MemoryOsds) -> Vec<OsdRecord> {
        let device = if self == OsdCase::Refresh { "/dev/old" } else { "/dev/sdb" };
        let lie = osds.lvm_osds(self.node()).expect("they can be listed");
        let record = |lvm| OsdRecord {
            node: self.node().to_owned(),
            ..record(lvm, device, self.before() > 1)
        };
        lie.iter().map(record).collect()
    }

    /// Finds how much of the job is there: all of it, nothing, or a part.
    pub fn is_done(self, before: &[OsdRecord], osds: &SharedOsds, view: &Cluster) -> Option<bool> {
        let mut osds = osds.lock().expect("nothing panics while holding it");
        let is_safe = self.is_forced() || osds.lost().is_empty();
        assert!(is_safe, "data was lost: {:?}", osds.lost());
        let now = Now::of(&mut osds, self.node(), view);
        let databases = |ids: &[u32]| now.databases == databases_of(ids, GIB);
        let (done, undone) = match self {
            OsdCase::Add => (
                now.run("/dev/sdb", NEW_WEIGHT) == [0, 1]
                    && now.recorded("/dev/sdb") == [0, 1]
                    && now.classes == ["ssd", "ssd"]
                    && databases(&[0, 1]),
                now.is_empty() && databases(&[]),
            ),
            // Of 25,599 extents, as the group takes one for itself, 5 percent.
            OsdCase::AddNvme => (
                now.run("/dev/nvme0n1", NEW_WEIGHT) == [0]
                    && now.recorded("/dev/nvme0n1") == [0]
                    && now.classes == ["nvme"]
                    && now.databases == databases_of(&[0], 1279 * EXTENT),
                now.is_empty() && now.is_blank("/dev/nvme0n1") && databases(&[]),
            ),
            // Of 25,599 extents each, 2 percent.
            OsdCase::ReplaceOtherwise => (
                now.run("/dev/sdd", NEW_WEIGHT) == [0, 1]
                    && now.recorded("/dev/sdd") == [0, 1]
                    && now.is_blank("/dev/sdb")
                    && now.databases == databases_of(&[0, 1], 511 * EXTENT),
                now.is_as(before) && now.is_blank("/dev/sdd"),
            ),
            OsdCase::Replace | OsdCase::ReplaceByForce => (
                now.run("/dev/sdd", WEIGHT) == [0, 1]
                    && now.recorded("/dev/sdd") == [0, 1]
                    && now.is_blank("/dev/sdb")
                    && databases(&[0, 1]),
                now.is_as(before) && now.is_blank("/dev/sdd"),
            ),
            OsdCase::ReplaceInPlace => (
                now.run("/dev/sdb", WEIGHT) == [0, 1]
                    && now.recorded("/dev/sdb") == [0, 1]
                    && now.records[0].fsid != before[0].fsid
                    && databases(&[0, 1]),
                now.is_as(before),
            ),
            OsdCase::Refresh => (
                now.run("/dev/sdb", WEIGHT) == [0, 1] && now.recorded("/dev/sdb") == [0, 1],
                now.records == before,
            ),
            OsdCase::Remove | OsdCase::RemoveByForce => {
                (now.is_empty() && databases(&[]), now.is_as(before))
            }
            // Its disk is as it was, whatever becomes of it.
            OsdCase::RemoveOfFencedNode => {
                assert!(now.lie.len() == 1 && databases(&[0]), "{:?}", now.lie);
                let is_in = now.states.iter().any(|state| state.uuid.is_some() && state.is_in);
                (now.records.is_empty() && now.states.is_empty(), now.records == before && is_in)
            }
            OsdCase::RemoveOneOfTwo => (
                now.run("/dev/sdb", WEIGHT) == [1]
                    && now.recorded("/dev/sdb") == [1]
                    && now.states.len() == 1
                    && databases(&[1]),
                now.is_as(before),
            ),
            OsdCase::AddDbGroup => {
                (now.has_group && !now.is_blank("/dev/sdc"), now.is_blank("/dev/sdc"))
            }
        };
        match (done, undone) {
            (true, false) => Some(true),
            (false, true) => Some(false),
            _ => None,
        }
    }
}

fn databases_of(ids: &[u32], bytes: u64) -> Vec<(u32, u64)> {
    ids.iter().map(|id| (*id, bytes)).collect()
}

/// A storage whose cluster has these OSDs, used on the node.
pub fn storage(osds: &SharedOsds) -> MemoryStorage {
    let monitors = vec!["hv1".to_owned()];
    let access = RbdAccess { monitors, port: 6789, user: "libvirt".to_owned(), secret: None };
    MemoryStorage::of_cluster(Arc::new(ScriptedCluster::new(access))).with_osds(osds.clone(), NODE)
}

pub fn device(name: &str) -> Device {
    Device::parse(name).expect("below `/dev`")
}

pub fn spec(name: &str) -> DeviceSpec {
    DeviceSpec::parse(name).expect("below `/dev`")
}

/// Makes OSDs of `/dev/sdb` of the node, with databases, which run.
pub fn make(osds: &mut MemoryOsds, node: &str, count: u32) {
    if count == 0 {
        return;
    }
    let group = osds.begin_batch(node, &device("/dev/sdb")).expect("it is empty");
    for _ in 0..count {
        let made = osds.go_on_with_batch(node, &group, DeviceClass::Ssd, count);
        let id = made.expect("there is room");
        let lie = osds.lvm_osds(node).expect("they can be listed");
        let uuid = lie.iter().find(|lvm| lvm.id == id).expect("it was just made").uuid;
        let db = LogicalVolume::db_of(id);
        osds.create_volume(node, &db, GIB).expect("there is room");
        osds.give_db(node, (id, uuid), &db).expect("it has none");
        osds.crush_add(id, WEIGHT, node).expect("it is known");
        osds.activate(node, id, uuid).expect("it lies here");
    }
}

pub fn record(lvm: &LvmOsd, device: &str, is_split: bool) -> OsdRecord {
    OsdRecord {
        id: lvm.id.to_string(),
        node: NODE.to_owned(),
        device: device.to_owned(),
        db_device: format!("osd-db/osd-{}", lvm.id),
        fsid: lvm.uuid.to_string(),
        cluster: lvm.cluster.to_string(),
        group: lvm.block.group.to_string(),
        volume: lvm.block.name.to_string(),
        is_split,
        stats: pvc_store::OSD_STATS_TO_COME.into(),
    }
}

/// The OSDs, their disks and their records at one moment.
struct Now {
    states: Vec<OsdState>,
    lie: Vec<LvmOsd>,
    active: Vec<OsdId>,
    places: Vec<(OsdId, f64)>,
    records: Vec<OsdRecord>,
    /// Classes of the OSDs that lie here, by number.
    classes: Vec<&'static str>,
    /// Numbers of the OSDs that have a volume in the group for databases, which they use, and its
    /// bytes.
    databases: Vec<(u32, u64)>,
    has_group: bool,
    blank: Vec<Device>,
}

impl Now {
    fn of(osds: &mut MemoryOsds, node: &str, view: &Cluster) -> Now {
        let (states, lie) = (osds.osd_states(), osds.lvm_osds(node).expect("nothing fails"));
        let ids = || states.iter().map(|state| state.id);
        let group = osds.volume_group(node, &LvmName::db_group());
        let volumes = group.iter().flat_map(|group| &group.volumes);
        let number = |name: &LvmName| name.as_str().strip_prefix("osd-")?.parse().ok();
        let databases: Vec<(u32, u64)> =
            volumes.filter_map(|(name, bytes)| Some((number(name)?, *bytes))).collect();
        let uses = |(id, _): &(u32, u64)| {
            let db = LogicalVolume::db_of(OsdId(*id)).device();
            lie.iter().any(|lvm| lvm.id.0 == *id && lvm.db.as_ref() == Some(&db))
        };
        assert!(databases.iter().all(uses) || lie.is_empty(), "{databases:?} of {lie:?}");
        let disks = osds.devices(node).into_iter();
        let is_blank = |disk: &pvc_model::osd::BlockDevice| {
            disk.groups.is_empty() && disk.partitions.is_empty() && disk.partition_table.is_none()
        };
        let active = ids().filter(|id| osds.daemon_state(node, *id) == UnitState::Active).collect();
        let places = ids().filter_map(|id| Some((id, osds.place(id)?.1))).collect();
        let mut records: Vec<OsdRecord> =
            view.osds.values().map(|record| record.as_ref().clone()).collect();
        records.sort_by_key(|record| record.id.clone());
        let classes = lie.iter().filter_map(|lvm| osds.class(node, lvm.id)).collect();
        Now {
            classes,
            active,
            places,
            records,
            databases,
            has_group: group.is_some(),
            blank: disks.filter(is_blank).map(|disk| disk.device).collect(),
            states,
            lie,
        }
    }

    /// Numbers of the OSDs that lie on the disk, run, hold data, and have this weight.
    fn run(&self, disk: &str, weight: f64) -> Vec<u32> {
        let runs = |lvm: &&LvmOsd| {
            let is_up = |state: &OsdState| {
                (state.id, state.uuid) == (lvm.id, Some(lvm.uuid)) && state.is_up && state.is_in
            };
            lvm.devices == [device(disk)]
                && self.states.iter().any(is_up)
                && self.active.contains(&lvm.id)
                && self.places.contains(&(lvm.id, weight))
        };
        self.lie.iter().filter(runs).map(|lvm| lvm.id.0).collect()
    }

    /// Numbers of the OSDs that are recorded to be on the disk, as they are.
    fn recorded(&self, disk: &str) -> Vec<u32> {
        let is_right = |record: &&OsdRecord| {
            let uuid = Uuid::try_parse(&record.fsid).ok();
            let lvm = self.lie.iter().find(|lvm| Some(lvm.uuid) == uuid);
            lvm.is_some_and(|lvm| {
                let is_split = record.is_split;
                let stats = record.stats.clone();
                **record == OsdRecord { stats, ..self::record(lvm, disk, is_split) }
            })
        };
        self.records.iter().filter(is_right).filter_map(|record| record.id.parse().ok()).collect()
    }

    fn is_blank(&self, disk: &str) -> bool {
        self.blank.contains(&device(disk))
    }

    /// Whether there is no OSD at all, and nothing left of one.
    fn is_empty(&self) -> bool {
        self.states.is_empty()
            && self.lie.is_empty()
            && self.records.is_empty()
            && self.is_blank("/dev/sdb")
    }

    /// Whether the OSDs run and are recorded as they were before.
    fn is_as(&self, before: &[OsdRecord]) -> bool {
        let ids: Vec<u32> = (0..before.len() as u32).collect();
        self.records == before
            && self.run("/dev/sdb", WEIGHT) == ids
            && self.recorded("/dev/sdb") == ids
            && self.databases == databases_of(&ids, GIB)
    }
}
