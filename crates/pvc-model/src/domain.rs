//! Contents of a VM's domain XML, as far as PVC needs them. Reading and editing it: crate
//! `pvc-domain`.

use std::collections::BTreeSet;

use crate::Uuid;
use crate::network_core::CoreNet;
use crate::storage::VolumeId;

/// Source of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskSource {
    /// A volume of the storage: `type='network'`, `protocol='rbd'`.
    Volume(VolumeId),
    /// A file of the node, by its path.
    File(String),
    /// No medium: an empty drive.
    Empty,
    /// Anything else libvirt knows (`block`, `nvme`, …), by its type.
    Other(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    pub source: DiskSource,
    /// `sda`
    pub target: String,
    /// `scsi`, `virtio`, …; empty if the XML does not say.
    pub bus: String,
    /// `disk`, `cdrom`, …
    pub device: String,
    /// Whether other guests may use its source meanwhile: `<shareable/>` or `<readonly/>`.
    pub shared: bool,
}

/// The bridges on which the nodes speak to each other: to ZooKeeper, libvirt and Ceph.
const CORE_BRIDGES: [&str; 2] = [CoreNet::Cluster.bridge(), CoreNet::Storage.bridge()];

/// The bridge that a network is on each node: one that every cluster has (`upstream`, `cluster`,
/// `storage`) by its name, one that somebody defined by its VNI.
pub fn bridge_of(network: &str) -> String {
    match CoreNet::named(network) {
        Some(net) => net.bridge().to_owned(),
        None => format!("vmbr{network}"),
    }
}

/// A MAC address in the range of QEMU's network interfaces. The last three octets are those that
/// PVC 1.0.3 draws: 16 to 238.
pub fn drawn_mac(random: [u8; 3]) -> String {
    let [one, two, three] = random.map(|octet| 16 + octet % 223);
    format!("52:54:00:{one:02x}:{two:02x}:{three:02x}")
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum NicKind {
    /// Plugged into a bridge, by the bridge's name.
    Bridge(String),
    /// macvtap on a device.
    Direct(String),
    /// A PCI function handed over; the value is the VF's name, if the XML has it.
    Hostdev(String),
    /// Any other libvirt interface type (`network`, `user`, …) with its source, if any.
    Other { kind: String, source: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nic {
    pub kind: NicKind,
    pub mac: String,
    pub model: String,
    /// The host-side device (`vnet0`) if the XML is a live one.
    pub target: Option<String>,
    /// Whether a macvtap device has the device below it for itself (`mode='passthrough'`).
    pub is_exclusive: bool,
    /// Whether the XML itself names a VLAN (`<vlan>`).
    pub has_vlan: bool,
}

impl Nic {
    /// The function of a card (SR-IOV VF) that it takes for itself; empty if the XML does not name
    /// it.
    pub fn function(&self) -> Option<&str> {
        match &self.kind {
            NicKind::Direct(function) | NicKind::Hostdev(function) => Some(function),
            NicKind::Bridge(_) | NicKind::Other { .. } => None,
        }
    }

    /// The bridge of a network between the nodes that it is plugged into. The upstream network is
    /// for guests as well.
    pub fn core_bridge(&self) -> Option<&str> {
        match &self.kind {
            NicKind::Bridge(bridge) if CORE_BRIDGES.contains(&bridge.as_str()) => Some(bridge),
            _ => None,
        }
    }

    /// The VNI, recovered from a bridge's name: optional letters `v`/`m`, then `br`, then the rest
    /// (`vmbr1001`, `br1001`, `brcluster`).
    pub fn vni(&self) -> String {
        match &self.kind {
            NicKind::Bridge(bridge) => {
                let rest = bridge.trim_start_matches(['v', 'm']);
                rest.strip_prefix("br").unwrap_or(bridge).to_owned()
            }
            NicKind::Direct(device) => format!("macvtap:{device}"),
            NicKind::Hostdev(device) => format!("hostdev:{device}"),
            NicKind::Other { kind, source } => format!("{kind}:{source}"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Controller {
    pub kind: String,
    pub model: Option<String>,
}

/// Contents of a domain XML.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DomainSummary {
    pub name: String,
    pub uuid: Uuid,
    pub description: Option<String>,
    pub memory_mib: u64,
    pub vcpus: u32,
    /// Sockets, cores, threads, if the XML says.
    pub topology: Option<(u32, u32, u32)>,
    /// `hvm`
    pub os_type: String,
    pub arch: Option<String>,
    pub machine: Option<String>,
    pub emulator: Option<String>,
    /// The `type` of the first console.
    pub console: Option<String>,
    /// The file that the first serial device or console logs to.
    pub console_log: Option<String>,
    /// VNC: the address it is to listen on and the port, if fixed.
    pub vnc: Option<(String, Option<u16>)>,
    pub features: Vec<String>,
    pub disks: Vec<Disk>,
    pub nics: Vec<Nic>,
    pub controllers: Vec<Controller>,
}

/// The volumes in order, each once: there may be as many as somebody writes.
pub(crate) fn each_once<'a>(volumes: impl Iterator<Item = &'a VolumeId>) -> Vec<VolumeId> {
    let mut seen = BTreeSet::new();
    volumes.filter(|volume| seen.insert(*volume)).cloned().collect()
}

impl DomainSummary {
    /// The volumes that no other guest may use while this one runs.
    pub fn own_volumes(&self) -> impl Iterator<Item = &VolumeId> {
        self.disks.iter().filter(|disk| !disk.shared).filter_map(|disk| match &disk.source {
            DiskSource::Volume(id) => Some(id),
            _ => None,
        })
    }

    /// The volumes it uses, in order, each once.
    pub fn volumes(&self) -> Vec<VolumeId> {
        each_once(self.named_volumes())
    }

    /// The volume of each disk that has one, in order.
    pub fn named_volumes(&self) -> impl Iterator<Item = &VolumeId> {
        self.disks.iter().filter_map(|disk| match &disk.source {
            DiskSource::Volume(id) => Some(id),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_a_bridge_by_its_name_or_its_vni() {
        let bridges = ["upstream", "cluster", "storage", "1001"].map(bridge_of);
        assert_eq!(bridges, ["brupstream", "brcluster", "brstorage", "vmbr1001"]);
        for (bridge, network) in bridges.into_iter().zip(["upstream", "cluster", "storage", "1001"])
        {
            let kind = NicKind::Bridge(bridge);
            let nic = Nic {
                kind,
                mac: String::new(),
                model: String::new(),
                target: None,
                is_exclusive: false,
                has_vlan: false,
            };
            assert_eq!(nic.vni(), network, "it is shown as it was named");
        }
    }

    #[test]
    fn a_drawn_address_is_in_the_range_of_qemu() {
        assert_eq!(drawn_mac([0, 222, 223]), "52:54:00:10:ee:10");
        assert_eq!(drawn_mac([255; 3]), "52:54:00:30:30:30");
    }

    #[test]
    fn each_volume_is_named_once_in_the_order_of_the_disks() {
        let names = ["vms/b", "vms/a", "vms/b", "vms/c", "vms/a"];
        let volumes: Vec<VolumeId> =
            names.iter().map(|name| VolumeId::from_record(name).unwrap()).collect();
        let once: Vec<String> = each_once(volumes.iter()).iter().map(VolumeId::to_string).collect();
        assert_eq!(once, ["vms/b", "vms/a", "vms/c"]);
    }
}
