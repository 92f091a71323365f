//! Edits of a domain XML.

use std::collections::BTreeMap;

use pvc_model::domain::{Disk, DiskSource, DomainSummary, NicKind};
use pvc_model::shown;
use pvc_model::storage::{VolumeId, VolumeName};
use roxmltree::{Document, Node};

use crate::check::{is_mac, is_nic_model, split_target};
use crate::hardware::WhichNics;
use crate::read::{child, disk, domain_element, each, nic, parse, path, summary_of};
use crate::text::{
    Element, Splice, append, apply, escape_text, insert_after, is_xml_text, remove,
    remove_attribute, set_attribute, set_content,
};
use crate::{DomainError, EditError};

/// A domain XML that can be edited. Every edit is made whole or not at all, and touches nothing
/// else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Domain {
    /// Well-formed, its outermost element is `<domain>`.
    text: String,
}

/// A disk to add.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDisk {
    /// A volume, or a file by its absolute path.
    pub source: DiskSource,
    /// `sdb`; without one the next free name.
    pub target: Option<String>,
    /// `scsi`, `virtio`, …; without one that of the disk it is modelled on, else `scsi`.
    pub bus: Option<String>,
}

/// A disk that was added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedDisk {
    /// Element of the device, as it can be attached to the running guest.
    pub xml: String,
    pub target: String,
    /// The target of the disk of the same kind that it was modelled on: where the hosts and the
    /// secret of an RBD disk come from. Without one they are left to the host's own Ceph
    /// configuration.
    pub modelled_on: Option<String>,
}

/// A network interface to add. Of the kinds, `Bridge`, `Direct` and `Hostdev` can be added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewNic {
    pub kind: NicKind,
    pub mac: String,
    pub model: String,
    /// The PCI address of a `Hostdev`: domain, bus, slot, function.
    pub pci: Option<(u16, u8, u8, u8)>,
}

impl Domain {
    /// Takes a domain XML as it is. An XML declaration and a byte order mark are dropped: they say
    /// how bytes were encoded, and this is text. Legacy peers cannot read a record that has one.
    pub fn parse(xml: &str) -> Result<Self, DomainError> {
        let document = parse(xml)?;
        domain_element(&document)?;
        let body = xml.trim_start_matches('\u{feff}');
        let declared =
            body.starts_with("<?xml") && body[5..].starts_with(|c: char| c.is_ascii_whitespace());
        let text = match body.find("?>").filter(|_| declared) {
            Some(end) => body[end + 2..].trim_start(),
            None => body,
        };
        Ok(Domain { text: text.to_owned() })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn into_string(self) -> String {
        self.text
    }

    /// Reads the document; see [`summary`](crate::summary).
    pub fn summary(&self) -> Result<DomainSummary, DomainError> {
        summary_of(self.document().root_element())
    }

    pub(crate) fn document(&self) -> Document<'_> {
        parse(&self.text)
            .expect("a domain is parsed before it is kept, and edits leave it well-formed")
    }

    /// Makes the splices, unless the result would be beyond the limits of a domain XML.
    pub(crate) fn splice(&mut self, splices: Vec<Splice>) -> Result<(), EditError> {
        let text = apply(&self.text, splices);
        parse(&text)?;
        self.text = text;
        Ok(())
    }

    /// Sets the content of a child of `<domain>`, which is made after the first of `after` that
    /// there is.
    fn set_child(&mut self, name: &str, value: &str, after: &[&str]) -> Result<(), EditError> {
        allowed(name, value)?;
        let document = self.document();
        let domain = document.root_element();
        let splice = match child(domain, name) {
            Some(node) => set_content(&self.text, node, &escape_text(value)),
            None => {
                let element = Element::new(name).text(value);
                match after.iter().find_map(|sibling| child(domain, sibling)) {
                    Some(sibling) => insert_after(&self.text, sibling, &element),
                    None => append(&self.text, domain, &element),
                }
            }
        };
        self.splice(vec![splice])
    }

    /// Sets the memory, and what the guest has at its start if the XML says that, too.
    ///
    /// # Errors
    /// If the XML divides the memory into NUMA nodes, or says to how much it may grow.
    pub fn set_memory_mib(&mut self, mib: u64) -> Result<(), EditError> {
        if mib == 0 {
            return Err(EditError::Zero { what: "memory in MiB" });
        }
        let document = self.document();
        let domain = document.root_element();
        check_alone("the memory", domain, &[&["cpu", "numa"], &["maxMemory"]])?;
        let mut splices = Vec::new();
        for name in ["memory", "currentMemory"] {
            match child(domain, name) {
                Some(node) => {
                    splices.push(set_content(&self.text, node, &mib.to_string()));
                    splices.push(set_attribute(&self.text, node, "unit", "MiB"));
                }
                None if name == "memory" => {
                    let element = Element::new("memory").with("unit", "MiB").text(&mib.to_string());
                    splices.push(append(&self.text, domain, &element));
                }
                None => {}
            }
        }
        self.splice(splices)
    }

    /// Sets the number of vCPUs and how they are arranged: (sockets, cores, threads), without which
    /// one socket has them all as cores. A topology is written if one is given or the XML has one.
    ///
    /// # Errors
    /// If the topology does not make `vcpus` vCPUs, or the XML divides them into NUMA nodes or has
    /// a list of them.
    pub fn set_vcpus(
        &mut self,
        vcpus: u32,
        topology: Option<(u32, u32, u32)>,
    ) -> Result<(), EditError> {
        if vcpus == 0 {
            return Err(EditError::Zero { what: "the number of vCPUs" });
        }
        let (sockets, cores, threads) = topology.unwrap_or((1, vcpus, 1));
        let product =
            u64::from(sockets).saturating_mul(u64::from(cores)).saturating_mul(u64::from(threads));
        if product != u64::from(vcpus) {
            return Err(EditError::TopologyMismatch { sockets, cores, threads, product, vcpus });
        }
        let document = self.document();
        let domain = document.root_element();
        check_alone("the number of vCPUs", domain, &[&["cpu", "numa"], &["vcpus"]])?;
        self.set_child("vcpu", &vcpus.to_string(), &["currentMemory", "memory"])?;
        let document = self.document();
        let domain = document.root_element();
        let mut splices = Vec::new();
        if let Some(node) = child(domain, "vcpu") {
            // How many of them are online at the start: all, from now on.
            splices.extend(remove_attribute(&self.text, node, "current"));
        }
        let new = Element::new("topology")
            .with("sockets", &sockets.to_string())
            .with("cores", &cores.to_string())
            .with("threads", &threads.to_string());
        match (path(domain, &["cpu", "topology"]), child(domain, "cpu")) {
            (Some(node), _) => splices.push(Splice::new(node.range(), new.render(None))),
            (None, Some(cpu)) => splices.push(append(&self.text, cpu, &new)),
            (None, None) if topology.is_some() => {
                splices.push(append(&self.text, domain, &Element::new("cpu").child(new)));
            }
            (None, None) => {}
        }
        self.splice(splices)
    }

    /// Gives the VM another name, and with it whatever in the XML is named after it: the disks
    /// whose volumes are keys of `volumes`, and a console log called `<old name>.log`. Nothing
    /// else.
    pub fn rename(
        &mut self,
        name: &str,
        volumes: &BTreeMap<VolumeId, VolumeId>,
    ) -> Result<(), EditError> {
        allowed("name", name)?;
        let document = self.document();
        let domain = document.root_element();
        let devices = child(domain, "devices");
        let mut splices = Vec::new();
        if let Some(node) = child(domain, "name") {
            let old = crate::read::text(node).unwrap_or_default();
            splices.push(set_content(&self.text, node, &escape_text(name)));
            splices.extend(log_renames(&self.text, devices, old, name));
        }
        splices.extend(volume_renames(&self.text, devices, volumes));
        self.splice(splices)
    }

    /// Adds a disk after the last one, modelled on the last of the same kind.
    pub fn add_disk(&mut self, new: &NewDisk) -> Result<AddedDisk, EditError> {
        let source_name = match &new.source {
            DiskSource::Volume(id) => id.to_string(),
            DiskSource::File(file) if !file.starts_with('/') => {
                return Err(EditError::BadPath { path: shown(file) });
            }
            DiskSource::File(file) => file.clone(),
            DiskSource::Empty | DiskSource::Other(_) => return Err(EditError::UnknownKind),
        };
        allowed("disk source", &source_name)?;
        let document = self.document();
        let devices = child(document.root_element(), "devices").ok_or(EditError::NoDevices)?;
        let disks: Vec<_> = each(Some(devices), "disk").map(|node| (node, disk(node))).collect();
        check_source_free(&new.source, &source_name, &disks)?;
        let model = disks.iter().rev().find(|(_, disk)| {
            disk.device == "disk"
                && std::mem::discriminant(&disk.source) == std::mem::discriminant(&new.source)
        });
        let bus = new
            .bus
            .clone()
            .or_else(|| model.map(|(_, disk)| disk.bus.clone()).filter(|bus| !bus.is_empty()));
        let bus = bus.unwrap_or_else(|| "scsi".to_owned());
        let target = target_for(new.target.as_deref(), &bus, &disks)?;
        let element = match model {
            Some((node, _)) => {
                Element::verbatim(&disk_like(&self.text, *node, &new.source, &target, &bus))
            }
            None => new_disk("disk", &new.source, &target, &bus),
        };
        let splice = match disks.last() {
            Some((last, _)) => insert_after(&self.text, *last, &element),
            None => append(&self.text, devices, &element),
        };
        let modelled_on = model.map(|(_, disk)| disk.target.clone());
        let xml = element.render(None);
        self.splice(vec![splice])?;
        Ok(AddedDisk { xml, target, modelled_on })
    }

    /// Adds a CD drive on `bus` with a volume in it, behind all disks.
    ///
    /// # Errors
    /// A disk that has the volume already; a bus without a free place.
    pub fn add_cdrom(&mut self, volume: &VolumeId, bus: &str) -> Result<(), EditError> {
        let source = DiskSource::Volume(volume.clone());
        let document = self.document();
        let devices = child(document.root_element(), "devices").ok_or(EditError::NoDevices)?;
        let disks: Vec<_> = each(Some(devices), "disk").map(|node| (node, disk(node))).collect();
        check_source_free(&source, &volume.to_string(), &disks)?;
        let target = target_for(None, bus, &disks)?;
        let element = new_disk("cdrom", &source, &target, bus).child(Element::new("readonly"));
        let splice = match disks.last() {
            Some((last, _)) => insert_after(&self.text, *last, &element),
            None => append(&self.text, devices, &element),
        };
        self.splice(vec![splice])
    }

    /// Takes the disk out, which is named by its target (`sda`), its volume (`pool/volume`) or its
    /// file. Returns its element, as it can be detached from the running guest.
    pub fn remove_disk(&mut self, which: &str) -> Result<String, EditError> {
        let document = self.document();
        let devices = child(document.root_element(), "devices");
        let is_it = |found: &Disk| match &found.source {
            DiskSource::Volume(id) => id.to_string() == which,
            DiskSource::File(file) => file == which,
            _ => false,
        };
        let node = each(devices, "disk")
            .find(|node| is_it(&disk(*node)))
            .or_else(|| each(devices, "disk").find(|node| disk(*node).target == which))
            .ok_or_else(|| EditError::NoDisk { disk: which.to_owned() })?;
        let xml = self.text[node.range()].to_owned();
        let splice = remove(&self.text, node);
        self.splice(vec![splice])?;
        Ok(xml)
    }

    /// Adds a network interface after the last one. Returns its element.
    pub fn add_nic(&mut self, new: &NewNic) -> Result<String, EditError> {
        if !is_mac(&new.mac) {
            return Err(EditError::BadMac { address: new.mac.clone() });
        }
        let document = self.document();
        let devices = child(document.root_element(), "devices").ok_or(EditError::NoDevices)?;
        if each(Some(devices), "interface").any(|node| nic(node).mac.eq_ignore_ascii_case(&new.mac))
        {
            return Err(EditError::MacTaken { address: new.mac.clone() });
        }
        let element = new_nic(new)?;
        let neighbour =
            each(Some(devices), "interface").last().or_else(|| each(Some(devices), "disk").last());
        let splice = match neighbour {
            Some(last) => insert_after(&self.text, last, &element),
            None => append(&self.text, devices, &element),
        };
        let xml = element.render(None);
        self.splice(vec![splice])?;
        Ok(xml)
    }

    /// Takes out these network interfaces. Returns their elements.
    pub fn remove_nics(&mut self, which: &WhichNics) -> Result<Vec<String>, EditError> {
        let (network, mac) = (which.network.as_deref(), which.mac.as_deref());
        let document = self.document();
        let devices = child(document.root_element(), "devices");
        let fits = |node: &Node<'_, '_>| {
            let nic = nic(*node);
            let is_there = match (which.sriov, nic.function()) {
                (true, None) => false,
                (true, Some(function)) => network.is_none_or(|network| network == function),
                (false, _) => network.is_none_or(|network| network == nic.vni()),
            };
            is_there && mac.is_none_or(|mac| nic.mac.eq_ignore_ascii_case(mac))
        };
        let nodes: Vec<_> = each(devices, "interface").filter(fits).collect();
        if nodes.is_empty() || (network.is_none() && mac.is_none()) {
            let place = match network {
                Some(vf) if which.sriov => Some(format!("on VF `{vf}`")),
                Some(network) => Some(format!("in network `{network}`")),
                None => which.sriov.then(|| "on a VF".to_owned()),
            };
            let of_mac = mac.map(|mac| format!("with MAC address `{mac}`"));
            let what: Vec<_> = place.into_iter().chain(of_mac).collect();
            return Err(EditError::NoNic { what: what.join(" ") });
        }
        let elements = nodes.iter().map(|node| self.text[node.range()].to_owned()).collect();
        let splices = nodes.iter().map(|node| remove(&self.text, *node)).collect();
        self.splice(splices)?;
        Ok(elements)
    }
}

/// The volume's name after its VM is renamed, if it is named after the VM: the VM's name alone, or
/// followed by `_`, `-` or `.` and more. `web_sda` is `web`'s; `webmail_sda` is not.
pub fn renamed_volume(old: &str, new: &str, volume: &VolumeId) -> Option<VolumeId> {
    let rest = volume.volume.as_str().strip_prefix(old)?;
    let own = rest.is_empty() || rest.starts_with(['_', '-', '.']);
    own.then(|| VolumeId {
        pool: volume.pool.clone(),
        volume: VolumeName::new(format!("{new}{rest}")),
    })
}

fn allowed(what: &str, value: &str) -> Result<(), EditError> {
    if is_xml_text(value) {
        return Ok(());
    }
    let what = match what {
        "name" => "VM name",
        "description" => "description",
        "path" => "path",
        _ => "value",
    };
    Err(EditError::NotAllowed { what, value: value.replace(|c: char| c.is_control(), "\u{fffd}") })
}

/// Refuses to set `what` if one of these elements is there, each by its path: what it says has to
/// agree.
fn check_alone(
    what: &'static str,
    domain: Node<'_, '_>,
    others: &[&[&'static str]],
) -> Result<(), EditError> {
    match others.iter().find(|names| path(domain, names).is_some()) {
        Some(&&[.., element]) => Err(EditError::NotAlone { what, element }),
        _ => Ok(()),
    }
}

fn volume_renames(
    text: &str,
    devices: Option<Node<'_, '_>>,
    volumes: &BTreeMap<VolumeId, VolumeId>,
) -> Vec<Splice> {
    each(devices, "disk")
        .filter_map(|node| {
            let DiskSource::Volume(old) = disk(node).source else { return None };
            let new = volumes.get(&old)?;
            Some(set_attribute(text, child(node, "source")?, "name", &new.to_string()))
        })
        .collect()
}

fn log_renames(text: &str, devices: Option<Node<'_, '_>>, old: &str, new: &str) -> Vec<Splice> {
    let suffix = format!("/{old}.log");
    each(devices, "serial")
        .chain(each(devices, "console"))
        .filter_map(|node| {
            let log = child(node, "log")?;
            let folder = log.attribute("file")?.strip_suffix(&suffix)?;
            Some(set_attribute(text, log, "file", &format!("{folder}/{new}.log")))
        })
        .collect()
}

/// Has the first serial device (or console) log into the file at `path`. Without such a device
/// nothing happens.
pub(crate) fn console_log(text: &str, domain: Node<'_, '_>, path: &str) -> Vec<Splice> {
    let devices = child(domain, "devices");
    let Some(port) = each(devices, "serial").next().or_else(|| each(devices, "console").next())
    else {
        return Vec::new();
    };
    match child(port, "log") {
        Some(log) => vec![set_attribute(text, log, "file", path)],
        None => {
            vec![append(text, port, &Element::new("log").with("file", path).with("append", "on"))]
        }
    }
}

/// The disk's name: the one asked for, if it can be had, or else the next free one.
fn target_for(
    asked: Option<&str>,
    bus: &str,
    disks: &[(Node<'_, '_>, Disk)],
) -> Result<String, EditError> {
    let taken = |target: &str| disks.iter().any(|(_, disk)| disk.target == target);
    if let Some(target) = asked {
        // No digits, as `sda1` would be in the place of `sda`; no third letter, as the SCSI
        // controllers up to a disk's number are made as well.
        let is_fit = |(prefix, letters): (&str, &str)| {
            prefix != "fd" && letters.len() <= 2 && target.len() == prefix.len() + letters.len()
        };
        if !split_target(target).is_some_and(is_fit) {
            return Err(EditError::BadTarget { target: shown(target) });
        }
        if taken(target) {
            return Err(EditError::TargetTaken { target: target.to_owned() });
        }
        return Ok(target.to_owned());
    }
    let prefix = match bus {
        "virtio" => "vd",
        "ide" => "hd",
        "xen" => "xvd",
        _ => "sd",
    };
    ('a'..='z')
        .map(|letter| format!("{prefix}{letter}"))
        .find(|target| !taken(target))
        .ok_or_else(|| EditError::NoTargetLeft { prefix: prefix.to_owned() })
}

/// The attributes of a disk's `<driver>` that libvirt takes for the bus `virtio` alone.
const VIRTIO_OPTIONS: [&str; 9] = [
    "iothread",
    "queues",
    "queue_size",
    "event_idx",
    "ioeventfd",
    "iommu",
    "ats",
    "packed",
    "page_per_vq",
];

/// Element of a PCI device's address.
pub(crate) fn pci_address((domain, bus, slot, function): (u16, u8, u8, u8)) -> Element {
    Element::new("address")
        .with("type", "pci")
        .with("domain", &format!("0x{domain:04x}"))
        .with("bus", &format!("0x{bus:02x}"))
        .with("slot", &format!("0x{slot:02x}"))
        .with("function", &format!("0x{function:x}"))
}

/// A copy of the disk's element for another source: what belongs to that one disk only (addresses,
/// boot order, serial numbers, a snapshot or part of its source, that its writes are thrown away or
/// that other guests may use it) is left out, and what belongs to its bus, if `bus` is another.
fn disk_like(
    text: &str,
    node: Node<'_, '_>,
    source: &DiskSource,
    target: &str,
    bus: &str,
) -> String {
    let mut splices = Vec::new();
    let is_other_bus = disk(node).bus != bus;
    if is_other_bus {
        splices.extend(remove_attribute(text, node, "model"));
    }
    for child in node.children().filter(Node::is_element) {
        match child.tag_name().name() {
            "driver" if is_other_bus => {
                let options = VIRTIO_OPTIONS.iter();
                splices.extend(options.filter_map(|name| remove_attribute(text, child, name)));
                splices.extend(each(Some(child), "iothreads").map(|node| remove(text, node)));
            }
            "source" => {
                match source {
                    DiskSource::Volume(id) => {
                        splices.push(set_attribute(text, child, "name", &id.to_string()))
                    }
                    DiskSource::File(file) => {
                        splices.push(set_attribute(text, child, "file", file))
                    }
                    DiskSource::Empty | DiskSource::Other(_) => {}
                }
                let of_one = ["snapshot", "slices", "reservations"].iter();
                let of_one = of_one.flat_map(|name| each(Some(child), name));
                splices.extend(of_one.map(|node| remove(text, node)));
            }
            "target" => {
                let new = Element::new("target").with("dev", target).with("bus", bus);
                splices.push(Splice::new(child.range(), new.render(None)));
            }
            "address" | "alias" | "boot" | "serial" | "wwn" | "product" | "vendor" | "readonly"
            | "shareable" | "backingStore" | "transient" | "mirror" => {
                splices.push(remove(text, child));
            }
            _ => {}
        }
    }
    let start = node.range().start;
    for splice in &mut splices {
        splice.at = splice.at.start - start..splice.at.end - start;
    }
    apply(&text[node.range()], splices)
}

/// Refuses a source that another disk has.
fn check_source_free(
    source: &DiskSource,
    source_name: &str,
    disks: &[(Node<'_, '_>, Disk)],
) -> Result<(), EditError> {
    match disks.iter().find(|(_, disk)| disk.source == *source) {
        Some((_, taken)) => {
            let (source_name, target) = (source_name.to_owned(), taken.target.clone());
            Err(EditError::SourceTaken { source_name, target })
        }
        None => Ok(()),
    }
}

fn new_disk(device: &str, source: &DiskSource, target: &str, bus: &str) -> Element {
    let (kind, source) = match source {
        DiskSource::Volume(id) => (
            "network",
            Element::new("source").with("protocol", "rbd").with("name", &id.to_string()),
        ),
        DiskSource::File(file) => ("file", Element::new("source").with("file", file)),
        DiskSource::Empty | DiskSource::Other(_) => ("file", Element::new("source")),
    };
    let mut driver = Element::new("driver").with("name", "qemu").with("type", "raw");
    if kind == "network" {
        driver = driver.with("discard", "unmap").with("cache", "none");
    }
    Element::new("disk")
        .with("type", kind)
        .with("device", device)
        .child(driver)
        .child(source)
        .child(Element::new("target").with("dev", target).with("bus", bus))
}

fn new_nic(new: &NewNic) -> Result<Element, EditError> {
    if !is_nic_model(&new.model) {
        return Err(EditError::BadModel { model: shown(&new.model) });
    }
    let mac = Element::new("mac").with("address", &new.mac);
    let model = Element::new("model").with("type", &new.model);
    let interface = |kind| Element::new("interface").with("type", kind);
    Ok(match &new.kind {
        NicKind::Bridge(bridge) => {
            allowed("value", bridge)?;
            interface("bridge")
                .child(mac)
                .child(Element::new("source").with("bridge", bridge))
                .child(model)
        }
        NicKind::Direct(device) => {
            allowed("value", device)?;
            let source = Element::new("source").with("dev", device).with("mode", "passthrough");
            interface("direct").child(mac).child(source).child(model)
        }
        NicKind::Hostdev(device) => {
            allowed("value", device)?;
            let address = pci_address(new.pci.ok_or(EditError::UnknownKind)?);
            interface("hostdev")
                .with("managed", "yes")
                .child(mac)
                .child(Element::new("source").child(address))
                .child(Element::new("sriov_device").text(device))
        }
        NicKind::Other { .. } => return Err(EditError::UnknownKind),
    })
}
