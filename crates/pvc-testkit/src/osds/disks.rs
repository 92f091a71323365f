//! The disks of a node: what [`OsdHost`](pvc_ports::OsdHost) says.

use std::collections::BTreeMap;

use pvc_model::Uuid;
use pvc_model::osd::{
    BlockDevice, Device, DeviceClass, EXTENT_BYTES, Holder, LogicalVolume, LvmName, LvmOsd, OsdId,
    OsdState, Partition, VolumeGroup, block_bytes, first_partition, whole_extents,
};
use pvc_ports::{OsdError, UnitState};

use super::{Content, Group, Mapped, MemoryOsds, NodeDisks, Volume, failed};

/// Most links that are followed.
const MOST_LINKS: usize = 40;

impl NodeDisks {
    pub(super) fn lvm_osds(&self) -> Vec<LvmOsd> {
        let blocks = self.groups.iter().flat_map(|(group, made)| {
            made.volumes.iter().filter_map(|(name, volume)| {
                let Content::Block { id, uuid, cluster, db, .. } = volume.content.clone() else {
                    return None;
                };
                let block = LogicalVolume { group: group.clone(), name: name.clone() };
                let (block_bytes, devices) = (volume.bytes, vec![made.on.clone()]);
                Some(LvmOsd { id, uuid, cluster, block, block_bytes, db, wal: None, devices })
            })
        });
        let mut osds: Vec<_> = blocks.collect();
        osds.sort_by_key(|osd| (osd.id, osd.uuid));
        osds
    }

    /// The kernel's name of a device.
    fn resolved(&self, device: &Device) -> Result<Device, OsdError> {
        let mut found = device;
        for _ in 0..MOST_LINKS {
            match self.links.get(found) {
                Some(next) => found = next,
                None if self.size(found).is_some() => return Ok(found.clone()),
                None => return Err(OsdError::NoDevice { device: device.clone() }),
            }
        }
        Err(OsdError::LinkLoop { device: device.clone() })
    }

    /// Size of a disk or a partition.
    fn size(&self, device: &Device) -> Option<u64> {
        let of_disk = self.disks.get(device).map(|disk| disk.size_bytes);
        let mut parts = self.disks.values().flat_map(|disk| &disk.partitions);
        of_disk.or_else(|| parts.find(|part| part.device == *device).map(|part| part.size_bytes))
    }

    fn shown(&self, disk: &BlockDevice) -> BlockDevice {
        let mut shown = disk.clone();
        for (name, group) in &self.groups {
            let is_part = |part: &Partition| part.device == group.on;
            if group.on != disk.device && !disk.partitions.iter().any(is_part) {
                continue;
            }
            shown.groups.push(name.clone());
            let holder = |volume: &LvmName| Holder {
                kind: "lvm".to_owned(),
                name: format!("{name}-{volume}"),
            };
            shown.holders.extend(group.volumes.keys().map(holder));
        }
        shown
    }

    fn shown_partition(part: &Partition) -> BlockDevice {
        let blank = BlockDevice::blank(part.device.clone(), part.size_bytes);
        BlockDevice { is_disk: false, content: part.content.clone(), ..blank }
    }

    fn volume(&mut self, volume: &LogicalVolume) -> Option<&mut Volume> {
        self.groups.get_mut(&volume.group)?.volumes.get_mut(&volume.name)
    }

    /// The block of an OSD.
    fn block(&mut self, id: OsdId, uuid: Uuid) -> Option<&mut Content> {
        let volumes = self.groups.values_mut().flat_map(|group| group.volumes.values_mut());
        volumes.map(|volume| &mut volume.content).find(|content| {
            matches!(content, Content::Block { id: found, uuid: its, .. }
                if (*found, *its) == (id, uuid))
        })
    }

    fn runs(&self, id: OsdId) -> bool {
        self.daemons.get(&id) == Some(&UnitState::Active)
    }
}

impl Group {
    fn free_bytes(&self) -> u64 {
        self.size_bytes - self.volumes.values().map(|volume| volume.bytes).sum::<u64>()
    }

    fn osds(&self) -> impl Iterator<Item = OsdId> {
        self.volumes.values().filter_map(|volume| match volume.content {
            Content::Block { id, .. } | Content::Db { id } => Some(id),
            Content::Empty => None,
        })
    }
}

/// Looks, and acts that only this node's disks know of.
impl MemoryOsds {
    pub fn devices(&mut self, node: &str) -> Vec<BlockDevice> {
        let disks = self.node(node);
        disks.disks.values().map(|disk| disks.shown(disk)).collect()
    }

    pub fn device(&mut self, node: &str, device: &Device) -> Result<BlockDevice, OsdError> {
        let disks = self.node(node);
        let kernel = disks.resolved(device)?;
        if let Some(disk) = disks.disks.get(&kernel) {
            return Ok(disks.shown(disk));
        }
        let mut parts = disks.disks.values().flat_map(|disk| &disk.partitions);
        let part = parts.find(|part| part.device == kernel);
        part.map(NodeDisks::shown_partition).ok_or(OsdError::NoDevice { device: kernel })
    }

    pub fn lvm_osds(&mut self, node: &str) -> Result<Vec<LvmOsd>, OsdError> {
        self.attempt(node, "list", "listing the OSDs of this node")?;
        Ok(self.osds_of(node))
    }

    pub fn volume_group(&mut self, node: &str, group: &LvmName) -> Option<VolumeGroup> {
        let found = self.node(node).groups.get(group)?;
        let volumes = found.volumes.iter().map(|(name, volume)| (name.clone(), volume.bytes));
        Some(VolumeGroup {
            name: group.clone(),
            size_bytes: found.size_bytes,
            free_bytes: found.free_bytes(),
            volumes: volumes.collect(),
        })
    }

    pub fn zap(&mut self, node: &str, device: &Device) -> Result<(), OsdError> {
        let doing = format!("erasing device `{device}`");
        let kernel = self.free_disk(node, device, "ceph-volume", &doing)?;
        self.attempt(node, "zap", &doing)?;
        let disks = self.node(node);
        let disk = disks.disks.get_mut(&kernel).expect("it was just found");
        let parts: Vec<_> = disk.partitions.drain(..).map(|part| part.device).collect();
        (disk.partition_table, disk.is_spare_volume) = (None, false);
        disk.content.clear();
        disk.groups.clear();
        disk.holders.clear();
        disks.groups.retain(|_, group| group.on != kernel && !parts.contains(&group.on));
        Ok(())
    }

    pub fn partition(&mut self, node: &str, device: &Device) -> Result<Device, OsdError> {
        let doing = format!("partitioning device `{device}`");
        let kernel = self.free_disk(node, device, "sgdisk", &doing)?;
        self.attempt(node, "sgdisk", &doing)?;
        let part = first_partition(&kernel).expect("its name is short");
        let disk = self.node(node).disks.get_mut(&kernel).expect("it was just found");
        disk.partition_table = Some("gpt".to_owned());
        let size_bytes = disk.size_bytes.saturating_sub(2 << 20);
        disk.partitions =
            vec![Partition { device: part.clone(), size_bytes, content: String::new() }];
        Ok(part)
    }

    pub fn create_volume_group(
        &mut self,
        node: &str,
        group: &LvmName,
        device: &Device,
    ) -> Result<(), OsdError> {
        let doing = format!("making the volume group `{group}` on `{device}`");
        if self.node(node).groups.contains_key(group) {
            return Err(OsdError::GroupExists { group: group.clone() });
        }
        self.attempt(node, "vgcreate", &doing)?;
        let disks = self.node(node);
        let on = disks.resolved(device)?;
        if disks.groups.values().any(|group| group.on == on) {
            let said = format!("Can't initialize physical volume \"{on}\" of volume group");
            return Err(failed("pvcreate", &doing, &said));
        }
        let bytes = disks.size(&on).expect("it was just found");
        let size_bytes = whole_extents(bytes.saturating_sub(EXTENT_BYTES));
        disks.groups.insert(group.clone(), Group { on, size_bytes, volumes: BTreeMap::new() });
        Ok(())
    }

    pub fn create_volume(
        &mut self,
        node: &str,
        volume: &LogicalVolume,
        size_bytes: u64,
    ) -> Result<(), OsdError> {
        let doing = format!("making the logical volume `{volume}`");
        self.attempt(node, "lvcreate", &doing)?;
        let no_group = || OsdError::NoGroup { group: volume.group.clone() };
        let group = self.node(node).groups.get_mut(&volume.group).ok_or_else(no_group)?;
        if group.volumes.contains_key(&volume.name) {
            return Err(OsdError::VolumeExists { volume: volume.clone() });
        }
        let bytes = size_bytes.div_ceil(EXTENT_BYTES) * EXTENT_BYTES;
        if bytes > group.free_bytes() {
            let said = format!("Volume group \"{}\" has insufficient free space", volume.group);
            return Err(failed("lvcreate", &doing, &said));
        }
        group.volumes.insert(volume.name.clone(), Volume { bytes, content: Content::Empty });
        Ok(())
    }

    pub fn remove_volume(&mut self, node: &str, volume: &LogicalVolume) -> Result<(), OsdError> {
        let doing = format!("removing the logical volume `{volume}`");
        self.attempt(node, "lvremove", &doing)?;
        let no_volume = || OsdError::NoVolume { volume: volume.clone() };
        let content = self.node(node).volume(volume).ok_or_else(no_volume)?.content.clone();
        if self.is_open(node, &content) {
            return Err(failed("lvremove", &doing, &format!("Logical volume {volume} in use.")));
        }
        let disks = self.node(node);
        let group = disks.groups.get_mut(&volume.group).ok_or_else(no_volume)?;
        group.volumes.remove(&volume.name);
        Ok(())
    }

    /// Whether a daemon has what lies on a volume open. That of a number has the block of the OSD
    /// that the cluster knows by it.
    fn is_open(&mut self, node: &str, content: &Content) -> bool {
        let (id, uuid) = match content {
            Content::Empty => return false,
            Content::Db { id } => (*id, None),
            Content::Block { id, uuid, .. } => (*id, Some(*uuid)),
        };
        let known = self.map.get(&id).and_then(|mapped| mapped.state.uuid);
        let is_its = known.zip(uuid).is_none_or(|(known, uuid)| known == uuid);
        is_its && self.node(node).runs(id)
    }

    pub fn daemon_state(&mut self, node: &str, id: OsdId) -> UnitState {
        self.node(node).daemons.get(&id).cloned().unwrap_or(UnitState::Inactive)
    }

    pub fn start_daemon(&mut self, node: &str, id: OsdId) {
        let known = self.map.get(&id).and_then(|mapped| mapped.state.uuid);
        let lie = self.osds_of(node).into_iter().filter(|osd| osd.id == id);
        match lie.max_by_key(|osd| known == Some(osd.uuid)) {
            Some(osd) => self.boot(node, id, osd.uuid),
            None => self.set_daemon(node, id, UnitState::Failed),
        }
    }

    pub fn stop_daemon(&mut self, node: &str, id: OsdId) {
        if self.node(node).daemons.contains_key(&id) {
            self.set_daemon(node, id, UnitState::Inactive);
        }
    }

    /// The disk called so, unless it is in use. Whether an OSD runs is asked by its number alone,
    /// as `ceph-volume` does.
    fn free_disk(
        &mut self,
        node: &str,
        device: &Device,
        program: &str,
        doing: &str,
    ) -> Result<Device, OsdError> {
        let disks = self.node(node);
        let kernel = disks.resolved(device)?;
        let Some(disk) = disks.disks.get(&kernel) else {
            return Err(failed(program, doing, &format!("{kernel} is no disk")));
        };
        let is_on = |group: &&Group| {
            group.on == kernel || disk.partitions.iter().any(|part| part.device == group.on)
        };
        let mut osds = disks.groups.values().filter(is_on).flat_map(Group::osds);
        if !disk.mounted_at.is_empty() || osds.any(|id| disks.runs(id)) {
            let said = format!("{kernel}: Device or resource busy");
            return Err(failed(program, doing, &said));
        }
        Ok(kernel)
    }
}

/// Acts that the cluster hears of.
impl MemoryOsds {
    /// Begins to make OSDs of a whole disk: makes a group for them.
    pub fn begin_batch(&mut self, node: &str, device: &Device) -> Result<LvmName, OsdError> {
        let doing = format!("making OSDs on `{device}`");
        let kernel = self.free_disk(node, device, "ceph-volume", &doing)?;
        self.attempt(node, "batch", &doing)?;
        let disks = self.node(node);
        let disk = disks.shown(&disks.disks[&kernel]);
        if !disk.groups.is_empty() || disk.partition_table.is_some() || !disk.holders.is_empty() {
            return Err(failed("ceph-volume", &doing, "1 devices were filtered in batch mode"));
        }
        let group = LvmName::block_group(self.new_uuid());
        self.create_volume_group(node, &group, &kernel)?;
        Ok(group)
    }

    /// Makes the next of `count` OSDs in the group of a disk.
    pub fn go_on_with_batch(
        &mut self,
        node: &str,
        group: &LvmName,
        class: DeviceClass,
        count: u32,
    ) -> Result<OsdId, OsdError> {
        let (id, uuid) = (self.new_id(), self.new_uuid());
        let size = self.node(node).groups.get(group).map_or(0, |group| group.size_bytes);
        let block = LogicalVolume::block_of(group.clone(), uuid);
        self.create_volume(node, &block, block_bytes(size, count))?;
        self.enter(id, uuid);
        self.fill(node, &block, (id, uuid), class.name());
        Ok(id)
    }

    /// Begins to make an OSD of a logical volume: enters it. One that fails behind that is
    /// forgotten by the cluster, number and all, as `ceph-volume` has it.
    pub fn begin_prepare(
        &mut self,
        node: &str,
        (id, uuid): (OsdId, Uuid),
        block: &LogicalVolume,
        db: Option<&LogicalVolume>,
    ) -> Result<(), OsdError> {
        let doing = format!("making OSD {id} on `{block}`");
        let is_waiting = self.map.get(&id).is_some_and(|mapped| mapped.state.uuid.is_none());
        if !is_waiting {
            let said = format!("The osd ID {id} is already in use or does not exist.");
            return Err(failed("ceph-volume", &doing, &said));
        }
        for volume in [Some(block), db].into_iter().flatten() {
            match self.node(node).volume(volume).map(|volume| &volume.content) {
                Some(Content::Empty) => {}
                Some(_) => {
                    let said = format!("skipping {volume}, it is already prepared");
                    return Err(failed("ceph-volume", &doing, &said));
                }
                None => {
                    let said = format!("no data logical volume found with: {volume}");
                    return Err(failed("ceph-volume", &doing, &said));
                }
            }
        }
        self.enter(id, uuid);
        let attempted = self.attempt(node, "prepare", &doing);
        if attempted.is_err() {
            self.map.remove(&id);
        }
        attempted
    }

    /// Makes the OSD that was begun.
    pub fn end_prepare(
        &mut self,
        node: &str,
        (id, uuid): (OsdId, Uuid),
        block: &LogicalVolume,
        db: Option<&LogicalVolume>,
    ) {
        self.fill(node, block, (id, uuid), "ssd");
        let Some(at) = db else { return };
        if let Some(Content::Block { db, .. }) = self.node(node).block(id, uuid) {
            *db = Some(at.device());
        }
        if let Some(volume) = self.node(node).volume(at) {
            volume.content = Content::Db { id };
        }
    }

    pub fn give_db(
        &mut self,
        node: &str,
        (id, uuid): (OsdId, Uuid),
        db: &LogicalVolume,
    ) -> Result<(), OsdError> {
        let doing = format!("giving OSD {id} the database `{db}`");
        self.attempt(node, "new-db", &doing)?;
        let failed = |said: &str| Err(failed("ceph-volume", &doing, said));
        let disks = self.node(node);
        if disks.runs(id) {
            return failed("OSD is running, stop it with: systemctl stop");
        }
        match disks.volume(db).map(|volume| &volume.content) {
            Some(Content::Empty) => {}
            Some(_) => return failed("Target Logical Volume is already used by ceph"),
            None => return failed("Unable to attach new volume: no such logical volume"),
        }
        match disks.block(id, uuid) {
            Some(Content::Block { db: its @ None, .. }) => *its = Some(db.device()),
            Some(_) => return failed("OSD has got attached DB"),
            None => return failed("Unexpected error, no devices of the OSD were found"),
        }
        disks.volume(db).expect("it was just looked at").content = Content::Db { id };
        Ok(())
    }

    pub fn activate(&mut self, node: &str, id: OsdId, uuid: Uuid) -> Result<(), OsdError> {
        let doing = format!("starting OSD {id}");
        self.attempt(node, "activate", &doing)?;
        if self.node(node).block(id, uuid).is_none() {
            let said = format!("RuntimeError: could not find osd.{id} with osd_fsid {uuid}");
            return Err(failed("ceph-volume", &doing, &said));
        }
        self.node(node).activated.insert(uuid);
        if !self.node(node).runs(id) {
            self.boot(node, id, uuid);
        }
        Ok(())
    }

    /// The cluster hears of a new OSD.
    pub(super) fn enter(&mut self, id: OsdId, uuid: Uuid) {
        let place = self.map.get(&id).and_then(|mapped| mapped.place.clone());
        let state = OsdState { id, uuid: Some(uuid), is_up: false, is_in: false, is_new: true };
        self.map.insert(id, Mapped { state, place, needed: 0, needed_at_rest: 0 });
    }

    fn fill(
        &mut self,
        node: &str,
        block: &LogicalVolume,
        (id, uuid): (OsdId, Uuid),
        class: &'static str,
    ) {
        let cluster = self.cluster;
        let content = Content::Block { id, uuid, cluster, class, db: None };
        self.node(node).volume(block).expect("it was just looked at").content = content;
    }
}
