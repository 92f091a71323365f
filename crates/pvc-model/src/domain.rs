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

    /// The bridge of a network between the nodes that it is plugged into, or stands on as a
    /// macvtap device. The upstream network is for guests as well.
    pub fn core_bridge(&self) -> Option<&str> {
        match &self.kind {
            NicKind::Bridge(bridge) | NicKind::Direct(bridge) => {
                CORE_BRIDGES.into_iter().find(|core| core == bridge)
            }
            NicKind::Hostdev(_) | NicKind::Other { .. } => None,
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

/// Namespace of what the domain XML says to PVC, below libvirt's `<metadata>`.
pub const NAMESPACE: &str = "urn:pvc:vm";

/// The longest key for SSH, in bytes: one of RSA with 16,384 bits has less than 3 KiB.
const LONGEST_KEY: usize = 8 << 10;

/// The most keys for SSH of a VM.
pub const MOST_KEYS: usize = 32;

/// Public key of somebody who may log in to a guest, which the metadata service tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshKey {
    /// Letters, digits, `.`, `-`, `_` and `@`. No two keys of a VM share it: see
    /// [`SshKey::make_distinct`].
    pub name: String,
    /// A line as in `authorized_keys`, without options.
    pub key: String,
}

impl SshKey {
    /// Reads a key. Without a name it has the comment at its end for one, or `key`. `None` if it is
    /// no key: its type, its digits in base 64, and perhaps a comment.
    pub fn read(name: Option<&str>, text: &str) -> Option<SshKey> {
        let key = text.trim();
        let is_line = key.len() <= LONGEST_KEY && key.bytes().all(|c| matches!(c, b' '..=b'~'));
        let mut words = key.split(' ').filter(|_| is_line);
        let (kind, digits) = (words.next()?, words.next()?);
        let is_kind = ["ssh-", "ecdsa-sha2-", "sk-"].iter().any(|begin| kind.starts_with(begin));
        let is_digit = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'+' | b'/' | b'=');
        if !is_kind || digits.len() < 16 || !digits.bytes().all(is_digit) {
            return None;
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '@');
        let is_name = |name: &&str| (1..=64).contains(&name.len()) && name.chars().all(is_plain);
        let name = name.filter(is_name).or_else(|| words.next().filter(is_name));
        Some(SshKey { name: name.unwrap_or("key").to_owned(), key: key.to_owned() })
    }

    /// Gives keys a number behind a name that another one before them has: `key`, `key-1`.
    /// cloud-init takes of those that share a name only the last.
    pub fn make_distinct(keys: &mut [SshKey]) {
        let mut taken: BTreeSet<String> = keys.iter().map(|key| key.name.clone()).collect();
        let mut seen = BTreeSet::new();
        for key in keys {
            if seen.insert(key.name.clone()) {
                continue;
            }
            let mut numbered = (1..).map(|number: u32| format!("{}-{number}", key.name));
            let free = numbered.find(|name| !taken.contains(name));
            let free = free.expect("there are more numbers than keys");
            taken.insert(free.clone());
            key.name = free;
        }
    }
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
    /// At most [`MOST_KEYS`].
    pub ssh_keys: Vec<SshKey>,
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

    /// Whether other guests may use this volume of it meanwhile: no disk has it alone.
    pub fn shares(&self, volume: &VolumeId) -> bool {
        self.named_volumes().any(|named| named == volume)
            && self.own_volumes().all(|own| own != volume)
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

    fn nic(kind: NicKind) -> Nic {
        Nic {
            kind,
            mac: String::new(),
            model: String::new(),
            target: None,
            is_exclusive: false,
            has_vlan: false,
        }
    }

    #[test]
    fn a_network_is_a_bridge_by_its_name_or_its_vni() {
        let bridges = ["upstream", "cluster", "storage", "1001"].map(bridge_of);
        assert_eq!(bridges, ["brupstream", "brcluster", "brstorage", "vmbr1001"]);
        for (bridge, network) in bridges.into_iter().zip(["upstream", "cluster", "storage", "1001"])
        {
            let shown = nic(NicKind::Bridge(bridge)).vni();
            assert_eq!(shown, network, "it is shown as it was named");
        }
    }

    #[test]
    fn a_guest_is_among_the_nodes_by_their_bridge_and_by_a_macvtap_on_it() {
        for (device, is_core) in
            [("brcluster", true), ("brstorage", true), ("brupstream", false), ("vmbr1001", false)]
        {
            let core = is_core.then_some(device);
            for kind in [NicKind::Bridge(device.to_owned()), NicKind::Direct(device.to_owned())] {
                assert_eq!(nic(kind.clone()).core_bridge(), core, "{kind:?}");
            }
            assert_eq!(nic(NicKind::Hostdev(device.to_owned())).core_bridge(), None, "a function");
        }
    }

    #[test]
    fn a_key_is_a_line_of_its_type_and_its_digits() {
        let digits = "AAAAC3NzaC1lZDI1NTE5AAAAIA";
        let name_of = |name: Option<&str>, text: &str| SshKey::read(name, text).map(|key| key.name);
        let key = format!(" ssh-ed25519 {digits} alice@desk\n");
        assert_eq!(SshKey::read(None, &key).unwrap().key, key.trim());
        for (name, text, known_as) in [
            (None, key.clone(), Some("alice@desk")),
            (Some("alice"), key.clone(), Some("alice")),
            (Some("no/name"), format!("ssh-rsa {digits}== of alice"), Some("of")),
            (None, format!("sk-ssh-ed25519@openssh.com {digits}"), Some("key")),
            (None, format!("ssh-rsa {digits} <a>"), Some("key")),
            (None, format!("from=\"*\" ssh-rsa {digits}"), None),
            (None, format!("ssh-rsa {digits}\nssh-rsa {digits}"), None),
            (None, format!("ssh-rsa {digits} {}", "x".repeat(LONGEST_KEY)), None),
            (None, "ssh-rsa".to_owned(), None),
            (None, "ssh-rsa no;digits;at;all;here".to_owned(), None),
            (None, "-----BEGIN OPENSSH PRIVATE KEY-----".to_owned(), None),
            (None, String::new(), None),
        ] {
            assert_eq!(name_of(name, &text).as_deref(), known_as, "{text}");
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

    #[test]
    fn a_volume_is_shared_where_each_disk_that_has_it_says_so() {
        let volume = |name: &str| VolumeId::from_record(name).unwrap();
        let disk = |name: &str, shared: bool| Disk {
            source: DiskSource::Volume(volume(name)),
            target: "sda".to_owned(),
            bus: String::new(),
            device: "disk".to_owned(),
            shared,
        };
        let mut domain = crate::records::domain(Uuid::from_u128(1));
        domain.disks = vec![
            disk("vms/a", true),
            disk("vms/b", false),
            disk("vms/c", true),
            disk("vms/c", false),
        ];
        for (name, expected) in
            [("vms/a", true), ("vms/b", false), ("vms/c", false), ("vms/d", false)]
        {
            assert_eq!(domain.shares(&volume(name)), expected, "{name}");
        }
    }
}
