//! The XML that the hypervisor of one host is given.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pvc_model::domain::DiskSource;
use pvc_model::storage::{RbdAccess, VolumeId};
use roxmltree::Node;

use crate::edit::{console_log, pci_address};
use crate::read::{child, child_text, disk, each, path};
use crate::text::{Element, Splice, append, remove, remove_attribute, set_attribute, set_content};
use crate::{Domain, EditError};

/// Facts about a host that matter to the XML of a guest that is to run there.
pub struct ForHost<'a> {
    /// `kvm`, or `qemu` if this host must emulate.
    pub domain_type: &'a str,
    /// Path of this host's own emulator.
    pub emulator: &'a str,
    /// Whether a program is there on this host; asked of the emulator that the XML names.
    pub is_here: &'a dyn Fn(&str) -> bool,
    pub volumes: &'a Volumes,
    /// SR-IOV functions of this host by name.
    pub functions: &'a BTreeMap<String, HostFunction>,
    /// File that the console is to be logged to; `None` leaves that to the XML.
    pub console_log: Option<&'a Path>,
}

/// An SR-IOV function, as one host has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostFunction {
    /// Its PCI address: domain, bus, slot, function. `None` leaves that of the XML.
    pub pci: Option<(u16, u8, u8, u8)>,
    /// VLAN that its frames are in.
    pub vlan: Option<u16>,
}

/// Access of one host to volumes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Volumes {
    /// Volumes that are files on this host, with their paths.
    pub files: BTreeMap<VolumeId, PathBuf>,
    /// Access to the others: monitors and user of an RBD disk that names none itself.
    pub rbd: Option<RbdAccess>,
}

impl Domain {
    /// The XML for a host. On a host with KVM, RBD and the emulator that the XML names, that is the
    /// XML itself but for the console log and a TPM that does not say whether its state is kept.
    pub fn for_host(&self, host: &ForHost<'_>) -> Result<String, EditError> {
        let document = self.document();
        let domain = document.root_element();
        let text = self.as_str();
        let mut splices = Vec::new();
        let emulated = host.domain_type != "kvm" && domain.attribute("type") == Some("kvm");
        if emulated {
            splices.push(set_attribute(text, domain, "type", host.domain_type));
            splices.extend(without_kvm(text, domain));
        }
        splices.extend(emulator(text, domain, host, emulated));
        for node in each(child(domain, "devices"), "disk") {
            splices.extend(disk_of_volume(text, node, host.volumes));
        }
        for node in each(child(domain, "devices"), "interface") {
            splices.extend(function_here(text, node, host.functions));
        }
        for node in each(child(domain, "devices"), "tpm") {
            splices.extend(kept_tpm(text, node));
        }
        if let Some(path) = host.console_log {
            splices.extend(console_log(text, domain, &path.to_string_lossy()));
        }
        let mut rewritten = self.clone();
        rewritten.splice(splices)?;
        Ok(rewritten.into_string())
    }
}

/// The element of a device, as the hypervisor of one host is given it to plug into a running guest:
/// a disk whose volume is a file on this host becomes that file, one of RBD gets what it leaves
/// out, anything else stays as written.
///
/// # Errors
/// If `device` is not exactly one well-formed element.
pub fn device_for_host(device: &str, volumes: &Volumes) -> Result<String, EditError> {
    edited_device(device, |text, node| match node.has_tag_name("disk") {
        true => disk_of_volume(text, node, volumes),
        false => Vec::new(),
    })
}

/// The element of a device with an [alias](https://libvirt.org/formatdomain.html#devices) of ours,
/// by which it is found among the guest's devices, also on another node. One that has an alias
/// keeps it.
///
/// # Errors
/// If `device` is not exactly one well-formed element.
pub fn with_alias(device: &str, alias: &str) -> Result<String, EditError> {
    edited_device(device, |text, node| match child(node, "alias") {
        Some(_) => Vec::new(),
        None => vec![append(text, node, &Element::new("alias").with("name", alias))],
    })
}

/// The element of a device after the splices that `edit` makes of it.
fn edited_device(
    device: &str,
    edit: impl FnOnce(&str, Node<'_, '_>) -> Vec<Splice>,
) -> Result<String, EditError> {
    let around = Domain::parse(&format!("<domain><devices>{}</devices></domain>", device.trim()))?;
    let mut edited = around.clone();
    let splices = {
        let document = around.document();
        let node = only_device(document.root_element()).ok_or(EditError::NotOneDevice)?;
        edit(around.as_str(), node)
    };
    edited.splice(splices)?;
    let document = edited.document();
    let node = only_device(document.root_element()).ok_or(EditError::NotOneDevice)?;
    Ok(edited.as_str()[node.range()].to_owned())
}

fn only_device<'a, 'input>(domain: Node<'a, 'input>) -> Option<Node<'a, 'input>> {
    // An element that closes `<devices>` itself would leave a sibling behind.
    let devices = child(domain, "devices")
        .filter(|_| domain.children().filter(Node::is_element).count() == 1)?;
    let mut elements = devices.children().filter(Node::is_element);
    elements.next().filter(|_| elements.next().is_none())
}

/// Leaves out what only KVM can do: its paravirtual features and clocks, and the host's CPU, in
/// place of which the guest gets all that the emulation has.
fn without_kvm(text: &str, domain: Node<'_, '_>) -> Vec<Splice> {
    let features = child(domain, "features");
    let clock = child(domain, "clock");
    let of_kvm = |timer: &Node<'_, '_>| {
        matches!(timer.attribute("name"), Some("kvmclock" | "hypervclock" | "tsc"))
    };
    let mut splices: Vec<_> = ["kvm", "hyperv", "pmu"]
        .iter()
        .flat_map(|name| each(features, name))
        .chain(each(clock, "timer").filter(of_kvm))
        .map(|node| remove(text, node))
        .collect();
    let cpu = child(domain, "cpu")
        .filter(|cpu| matches!(cpu.attribute("mode"), Some("host-passthrough" | "host-model")));
    if let Some(cpu) = cpu {
        splices.push(set_attribute(text, cpu, "mode", "maximum"));
        let kind = path(domain, &["os", "type"]);
        let newest = kind.and_then(|kind| newest(kind.attribute("machine")?));
        splices.extend(kind.zip(newest).map(|(kind, it)| set_attribute(text, kind, "machine", it)));
        splices.extend(
            ["check", "match", "migratable"]
                .iter()
                .filter_map(|name| remove_attribute(text, cpu, name)),
        );
        let of_host = ["model", "vendor", "feature", "cache", "maxphysaddr"];
        splices.extend(
            of_host.iter().flat_map(|name| each(Some(cpu), name)).map(|node| remove(text, node)),
        );
    }
    splices
}

/// The newest machine with the chipset of one that is older than QEMU 2.12: Linux does not start on
/// those with all that the emulation's CPU has. Seen with QEMU 10.0; PVC 1.0.3 writes
/// `pc-i440fx-2.7`.
fn newest(machine: &str) -> Option<&'static str> {
    let (chipset, minor) = machine.rsplit_once("-2.")?;
    let minor: u32 = minor.parse().ok()?;
    match chipset {
        "pc-i440fx" if minor < 12 => Some("pc"),
        "pc-q35" if minor < 12 => Some("q35"),
        _ => None,
    }
}

/// The emulator stays as written if it is here and is not a name for KVM on a host without.
fn emulator(
    text: &str,
    domain: Node<'_, '_>,
    host: &ForHost<'_>,
    emulated: bool,
) -> Option<Splice> {
    let devices = child(domain, "devices")?;
    let foreign = || {
        let own = host.emulator.rsplit_once("qemu-system-").map(|(_, arch)| arch);
        let arch = path(domain, &["os", "type"]).and_then(|node| node.attribute("arch"));
        // A 32-bit guest runs in the 64-bit emulator.
        let arch = arch.map(|arch| if arch == "i686" { "x86_64" } else { arch });
        matches!((own, arch), (Some(own), Some(arch)) if own != arch)
    };
    match child_text(devices, "emulator") {
        Some(named) => {
            let means_kvm = named.ends_with("/kvm") || named.ends_with("/qemu-kvm");
            let usable = (host.is_here)(named) && !(emulated && means_kvm);
            let node = child(devices, "emulator")?;
            (!usable).then(|| set_content(text, node, &crate::text::escape_text(host.emulator)))
        }
        // libvirt finds the right one for a foreign architecture by itself.
        None if foreign() => None,
        None => Some(match child(devices, "emulator") {
            Some(empty) => set_content(text, empty, &crate::text::escape_text(host.emulator)),
            None => append(text, devices, &Element::new("emulator").text(host.emulator)),
        }),
    }
}

/// An interface that takes a function has the PCI address and the VLAN that the function has on
/// this host: libvirt takes a function out of every VLAN that the XML does not name.
fn function_here(
    text: &str,
    node: Node<'_, '_>,
    functions: &BTreeMap<String, HostFunction>,
) -> Vec<Splice> {
    let source = child(node, "source");
    let is_device = node.attribute("type") == Some("hostdev");
    let name = match node.attribute("type") {
        Some("hostdev") => child_text(node, "sriov_device"),
        Some("direct") => source.and_then(|source| source.attribute("dev")),
        _ => None,
    };
    let Some(function) = name.and_then(|name| functions.get(name)) else { return Vec::new() };
    let mut added = Vec::new();
    let mut splices = Vec::new();
    if let Some(pci) = function.pci.filter(|_| is_device) {
        let address = pci_address(pci);
        match source {
            Some(source) => splices.push(match child(source, "address") {
                Some(old) => Splice::new(old.range(), address.render(None)),
                None => append(text, source, &address),
            }),
            None => added.push(Element::new("source").child(address)),
        }
    }
    // libvirt takes a VLAN on no macvtap device that shares its device with others.
    let is_exclusive = is_device
        || source.and_then(|source| source.attribute("mode")).is_some_and(|m| m == "passthrough");
    if let Some(vlan) = function.vlan.filter(|_| is_exclusive && child(node, "vlan").is_none()) {
        let tag = Element::new("tag").with("id", &vlan.to_string());
        added.push(Element::new("vlan").child(tag));
    }
    let added: String = added.iter().map(|element| element.render(None)).collect();
    if !added.is_empty() {
        splices.push(append(text, node, &Element::verbatim(&added)));
    }
    splices
}

/// An emulated TPM keeps its state when its guest ends, unless it says something else. Guests are
/// transient domains, of which libvirt removes it otherwise, with every key that is sealed by it.
fn kept_tpm(text: &str, node: Node<'_, '_>) -> Option<Splice> {
    let backend = child(node, "backend")?;
    let is_open = backend.attribute("type") == Some("emulator")
        && backend.attribute("persistent_state").is_none();
    is_open.then(|| set_attribute(text, backend, "persistent_state", "yes"))
}

/// Changes in a disk whose volume this host reaches in a way of its own.
fn disk_of_volume(text: &str, node: Node<'_, '_>, volumes: &Volumes) -> Vec<Splice> {
    let DiskSource::Volume(id) = disk(node).source else { return Vec::new() };
    match (volumes.files.get(&id), &volumes.rbd) {
        (Some(file), _) => disk_as_file(text, node, &file.to_string_lossy()),
        (None, Some(access)) => rbd_disk(text, node, access),
        (None, None) => Vec::new(),
    }
}

/// An RBD disk gets the monitors and the user that it does not name. What it names stays: it may be
/// of another cluster.
fn rbd_disk(text: &str, node: Node<'_, '_>, access: &RbdAccess) -> Vec<Splice> {
    let Some(source) = child(node, "source") else { return Vec::new() };
    let mut splices = Vec::new();
    let names_cluster = ["host", "config"].iter().any(|name| child(source, name).is_some());
    if !names_cluster {
        let port = access.port.to_string();
        let monitor = |name: &String| {
            Element::new("host").with("name", name).with("port", &port).render(None)
        };
        let monitors: String = access.monitors.iter().map(monitor).collect();
        if !monitors.is_empty() {
            splices.push(append(text, source, &Element::verbatim(&monitors)));
        }
    }
    let names_user = child(node, "auth").or_else(|| child(source, "auth")).is_some();
    if let Some(secret) = access.secret.as_ref().filter(|_| !names_cluster && !names_user) {
        let secret = Element::new("secret").with("type", "ceph").with("uuid", secret);
        let auth = Element::new("auth").with("username", &access.user).child(secret);
        splices.push(append(text, node, &auth));
    }
    splices
}

/// An RBD disk becomes a raw file; what the XML says about caching, discarding and encryption
/// stays.
fn disk_as_file(text: &str, node: Node<'_, '_>, file: &str) -> Vec<Splice> {
    let mut splices = vec![set_attribute(text, node, "type", "file")];
    splices.extend(each(Some(node), "auth").map(|auth| remove(text, auth)));
    if let Some(source) = child(node, "source") {
        splices.push(source_as_file(text, source, file));
    }
    match child(node, "driver") {
        Some(driver) => {
            splices.push(set_attribute(text, driver, "type", "raw"));
            if driver.attribute("name").is_none() {
                splices.push(set_attribute(text, driver, "name", "qemu"));
            }
        }
        None => {
            let driver = Element::new("driver").with("name", "qemu").with("type", "raw");
            splices.push(append(text, node, &driver));
        }
    }
    splices
}

fn source_as_file(text: &str, source: Node<'_, '_>, file: &str) -> Splice {
    let kept = source.children().filter(Node::is_element).filter(|child| {
        matches!(child.tag_name().name(), "encryption" | "slices" | "seclabel" | "reservations")
    });
    let mut element = Element::new("source").with("file", file);
    for child in kept {
        element = element.child(Element::verbatim(&text[child.range()]));
    }
    Splice::new(source.range(), element.render(None))
}
