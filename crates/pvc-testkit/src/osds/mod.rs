//! OSDs of a cluster in memory: its map, and the disks of its nodes.

mod disks;
mod map;
mod port;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use pvc_model::Uuid;
use pvc_model::osd::{
    BlockDevice, Device, LvmName, LvmOsd, OsdFlag, OsdId, OsdState, first_partition,
};
use pvc_ports::{OsdError, OsdFigures, UnitState};

pub(crate) use port::NodeOsds;

/// State that doubles of the cluster's nodes share.
pub type SharedOsds = Arc<Mutex<MemoryOsds>>;

/// Map of a cluster and the disks of its nodes, as the contracts of [`OsdMap`](pvc_ports::OsdMap)
/// and [`OsdHost`](pvc_ports::OsdHost) say. What was done stays done, whoever dies.
#[derive(Debug)]
pub struct MemoryOsds {
    cluster: Uuid,
    map: BTreeMap<OsdId, Mapped>,
    flags: BTreeSet<OsdFlag>,
    nodes: BTreeMap<String, NodeDisks>,
    /// OSDs that were ended while their data was not safe without them.
    lost: BTreeSet<OsdId>,
    next_uuid: u128,
}

/// An OSD as the map has it.
#[derive(Debug, Clone)]
struct Mapped {
    state: OsdState,
    /// Its node and weight, once it has a place.
    place: Option<(String, f64)>,
    /// Placement groups that have no other copy yet.
    needed: u64,
    /// The same from the moment on at which it stops.
    needed_at_rest: u64,
}

#[derive(Debug, Default)]
struct NodeDisks {
    disks: BTreeMap<Device, BlockDevice>,
    /// Other names of devices.
    links: BTreeMap<Device, Device>,
    groups: BTreeMap<LvmName, Group>,
    daemons: BTreeMap<OsdId, UnitState>,
    /// OSDs that start when the node boots.
    activated: BTreeSet<Uuid>,
    /// Acts that fail from now on, with what the program says.
    failing: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Group {
    /// The disk or partition that it is made of.
    on: Device,
    size_bytes: u64,
    volumes: BTreeMap<LvmName, Volume>,
}

#[derive(Debug)]
struct Volume {
    bytes: u64,
    content: Content,
}

#[derive(Debug, Clone, PartialEq)]
enum Content {
    Empty,
    Block { id: OsdId, uuid: Uuid, cluster: Uuid, class: &'static str, db: Option<Device> },
    Db { id: OsdId },
}

impl Default for MemoryOsds {
    fn default() -> Self {
        MemoryOsds::new()
    }
}

impl MemoryOsds {
    /// Makes a cluster without any OSD, whose nodes have no disks.
    pub fn new() -> Self {
        MemoryOsds {
            cluster: Uuid::from_u128(0xcef),
            map: BTreeMap::new(),
            flags: BTreeSet::new(),
            nodes: BTreeMap::new(),
            lost: BTreeSet::new(),
            next_uuid: 0x05d0,
        }
    }

    /// The same, to be shared.
    pub fn shared(self) -> SharedOsds {
        Arc::new(Mutex::new(self))
    }

    /// Lets the cluster be another one: whatever lies on disks is not its own.
    pub fn set_cluster(&mut self, cluster: Uuid) {
        self.cluster = cluster;
    }

    /// Class that a node gave its OSD when it was made.
    pub fn class(&self, node: &str, osd: OsdId) -> Option<&'static str> {
        let groups = self.nodes.get(node)?.groups.values();
        groups.flat_map(|group| group.volumes.values()).find_map(|volume| match volume.content {
            Content::Block { id, class, .. } if id == osd => Some(class),
            _ => None,
        })
    }

    /// Gives a node a disk, with whatever the disk says is on it.
    pub fn add_disk(&mut self, node: &str, disk: BlockDevice) {
        self.node(node).disks.insert(disk.device.clone(), disk);
    }

    /// Gives a node an empty disk of so many bytes.
    pub fn add_blank(&mut self, node: &str, device: &str, size_bytes: u64) {
        self.add_disk(node, BlockDevice::blank(named(device), size_bytes));
    }

    /// Takes a disk from a node, as when it is pulled out: OSDs on it end, and what was on it is
    /// gone with it.
    pub fn remove_disk(&mut self, node: &str, device: &str) {
        let device = named(device);
        for osd in self.osds_of(node) {
            if osd.devices.contains(&device) {
                self.set_daemon(node, osd.id, UnitState::Failed);
            }
        }
        let disks = self.node(node);
        disks.disks.remove(&device);
        disks.groups.retain(|_, group| group.on != device);
    }

    /// A node is installed anew: it starts no OSD any more that lies on its disks.
    pub fn forget_osds(&mut self, node: &str) {
        self.node_off(node);
        self.node(node).activated.clear();
    }

    /// Two disks of a node swap their names, as they may when it boots: what is on each stays.
    pub fn swap_disks(&mut self, node: &str, one: &str, other: &str) {
        let (one, other) = (named(one), named(other));
        let part = |disk: &Device| first_partition(disk).expect("its name is short");
        let names = [(one.clone(), other.clone()), (part(&one), part(&other))];
        let swap = |device: &mut Device| {
            let found = names.iter().find_map(|(one, other)| match device {
                _ if device == one => Some(other),
                _ if device == other => Some(one),
                _ => None,
            });
            if let Some(found) = found {
                *device = found.clone();
            }
        };
        let disks = self.node(node);
        for mut disk in std::mem::take(&mut disks.disks).into_values() {
            swap(&mut disk.device);
            disk.partitions.iter_mut().for_each(|part| swap(&mut part.device));
            disks.disks.insert(disk.device.clone(), disk);
        }
        disks.groups.values_mut().for_each(|group| swap(&mut group.on));
    }

    /// Gives a device of a node another name. One that leads to itself is a loop.
    pub fn add_link(&mut self, node: &str, link: &str, to: &str) {
        self.node(node).links.insert(named(link), named(to));
    }

    /// Lets the map have an OSD that lies on no disk here.
    pub fn insert(&mut self, state: OsdState) {
        let mapped = Mapped { place: None, needed: 0, needed_at_rest: 0, state };
        self.map.insert(mapped.state.id, mapped);
    }

    /// Sets how many of an OSD's placement groups have no other copy. Once it is out and nothing
    /// holds that up, each look whether it is safe to destroy finds one fewer.
    pub fn set_needed(&mut self, id: OsdId, placement_groups: u64) {
        let mapped = self.map.get_mut(&id).expect("tests name OSDs that are there");
        mapped.needed = placement_groups;
    }

    /// Sets how many of an OSD's placement groups will have no other copy when it has stopped: the
    /// cluster has not come to rest then.
    pub fn set_needed_at_rest(&mut self, id: OsdId, placement_groups: u64) {
        let mapped = self.map.get_mut(&id).expect("tests name OSDs that are there");
        mapped.needed_at_rest = placement_groups;
    }

    /// Has an act of a node's programs fail from now on, saying so: `zap`, `batch`, `prepare`,
    /// `new-db`, `activate`, `lvcreate`, `lvremove`, `vgcreate`, `sgdisk`, `list`; and `daemon`,
    /// with which an OSD that boots dies at once, after the cluster has heard of it. Empty words
    /// let it succeed again.
    pub fn set_failing(&mut self, node: &str, act: &str, said: &str) {
        let failing = &mut self.node(node).failing;
        match said {
            "" => failing.remove(act),
            said => failing.insert(act.to_owned(), said.to_owned()),
        };
    }

    /// A node loses its power: its daemons end.
    pub fn node_off(&mut self, node: &str) {
        let running = self.running(node);
        running.into_iter().for_each(|id| self.set_daemon(node, id, UnitState::Inactive));
    }

    /// A node has booted: OSDs that lie on its disks and were activated start.
    pub fn node_on(&mut self, node: &str) {
        for osd in self.osds_of(node) {
            // A new one of the same number does not start in place of the one before it.
            if self.node(node).activated.contains(&osd.uuid) {
                self.boot(node, osd.id, osd.uuid);
            }
        }
    }

    /// OSDs as the map has them, whatever their daemons would say next.
    pub fn known(&self) -> impl Iterator<Item = &OsdState> {
        self.map.values().map(|mapped| &mapped.state)
    }

    /// OSDs that were ended while their data was not safe without them.
    pub fn lost(&self) -> &BTreeSet<OsdId> {
        &self.lost
    }

    /// The node and weight that an OSD has in the map.
    pub fn place(&self, id: OsdId) -> Option<(String, f64)> {
        self.map.get(&id)?.place.clone()
    }

    /// Figures of the OSDs that have a place and whose uuid is known.
    pub fn figures(&self) -> Vec<OsdFigures> {
        self.map.values().filter_map(|mapped| self.figures_of(mapped)).collect()
    }

    fn figures_of(&self, mapped: &Mapped) -> Option<OsdFigures> {
        let (node, weight) = mapped.place.clone()?;
        let OsdState { id, uuid, is_up, is_in, .. } = mapped.state;
        let lies = self.nodes.keys().flat_map(|node| self.osds_of(node));
        let block_bytes = lies.into_iter().find(|osd| osd.id == id).map(|osd| osd.block_bytes);
        let kib = block_bytes.unwrap_or(1 << 40) >> 10;
        let state = if is_up { "exists,up" } else { "exists" };
        Some(OsdFigures {
            id: id.0.into(),
            uuid: uuid?.to_string(),
            is_up,
            is_in,
            kib,
            kib_available: kib,
            crush_weight: weight,
            reweight: if is_in { 1.0 } else { 0.0 },
            class: self.class_of(id).to_owned(),
            node,
            state: state.to_owned(),
            ..OsdFigures::default()
        })
    }

    /// Class of an OSD that lies on a disk here; empty for one that does not.
    fn class_of(&self, id: OsdId) -> &'static str {
        let groups = self.nodes.values().flat_map(|node| node.groups.values());
        let mut volumes = groups.flat_map(|group| group.volumes.values());
        let class = volumes.find_map(|volume| match volume.content {
            Content::Block { id: found, class, .. } if found == id => Some(class),
            _ => None,
        });
        class.unwrap_or_default()
    }

    /// OSDs that lie on the logical volumes of a node.
    fn osds_of(&self, node: &str) -> Vec<LvmOsd> {
        self.nodes.get(node).map(NodeDisks::lvm_osds).unwrap_or_default()
    }

    fn node(&mut self, node: &str) -> &mut NodeDisks {
        self.nodes.entry(node.to_owned()).or_default()
    }

    fn new_uuid(&mut self) -> Uuid {
        self.next_uuid += 1;
        Uuid::from_u128(self.next_uuid)
    }

    /// The lowest number that no OSD has.
    fn new_id(&self) -> OsdId {
        let free = (0..).map(OsdId).find(|id| !self.map.contains_key(id));
        free.expect("there are more numbers than OSDs")
    }

    fn running(&mut self, node: &str) -> Vec<OsdId> {
        let daemons = self.node(node).daemons.iter();
        let running = daemons.filter(|(_, state)| **state == UnitState::Active);
        running.map(|(id, _)| *id).collect()
    }

    /// Sets the state of a daemon, which the map hears of.
    fn set_daemon(&mut self, node: &str, id: OsdId, state: UnitState) {
        let runs = state == UnitState::Active;
        self.node(node).daemons.insert(id, state);
        if let Some(mapped) = self.map.get_mut(&id) {
            if !runs {
                mapped.needed += std::mem::take(&mut mapped.needed_at_rest);
            }
            mapped.state.is_up = runs && !self.flags.contains(&OsdFlag::NoUp);
        }
    }

    /// Starts the daemon of an OSD, which the cluster lets in if it knows it by its UUID.
    fn boot(&mut self, node: &str, id: OsdId, uuid: Uuid) {
        let may_in = !self.flags.contains(&OsdFlag::NoIn);
        let mapped = self.map.get_mut(&id).filter(|mapped| mapped.state.uuid == Some(uuid));
        let Some(mapped) = mapped else {
            return self.set_daemon(node, id, UnitState::Failed);
        };
        if std::mem::take(&mut mapped.state.is_new) {
            mapped.state.is_in = may_in;
        }
        mapped.place.get_or_insert_with(|| (node.to_owned(), 1.0));
        self.set_daemon(node, id, UnitState::Active);
        if self.node(node).failing.contains_key("daemon") {
            self.set_daemon(node, id, UnitState::Failed);
        }
    }

    /// Fails if the act is one that fails on the node.
    fn attempt(&mut self, node: &str, act: &str, doing: &str) -> Result<(), OsdError> {
        match self.node(node).failing.get(act) {
            Some(said) => Err(failed(act, doing, said)),
            None => Ok(()),
        }
    }
}

fn failed(program: &str, doing: &str, said: &str) -> OsdError {
    let [program, doing, said] = [program, doing, said].map(str::to_owned);
    OsdError::Failed { program, doing, said }
}

fn named(device: &str) -> Device {
    Device::parse(device).expect("tests name devices below `/dev`")
}
