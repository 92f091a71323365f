//! From the text to what it says.

use std::net::IpAddr;

use pvc_model::domain::{
    Controller, Disk, DiskSource, DomainSummary, MOST_KEYS, NAMESPACE, Nic, NicKind, SshKey,
};
use pvc_model::storage::VolumeId;
use pvc_model::{Uuid, shown};
use roxmltree::{Document, Node, ParsingOptions};

use crate::DomainError;
use crate::cost::check_cost;

/// Summary of the domain XML. Strict about name, UUID, memory and vCPUs, without which a VM cannot
/// be handled; what is only shown is left empty if it is missing.
pub fn summary(xml: &str) -> Result<DomainSummary, DomainError> {
    summary_of(domain_element(&parse(xml)?)?)
}

/// A device that stands alone, as it is attached to or detached from a running guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Device {
    Disk(Disk),
    Nic(Nic),
    /// Any other libvirt device, by its element.
    Other(String),
}

/// Summary of a single device element.
///
/// # Errors
/// As [`summary`], if the text is not one well-formed element.
pub fn device_summary(xml: &str) -> Result<Device, DomainError> {
    let document = parse(xml)?;
    let root = document.root_element();
    Ok(match root.tag_name().name() {
        "disk" => Device::Disk(disk(root)),
        "interface" => Device::Nic(nic(root)),
        other => Device::Other(other.to_owned()),
    })
}

/// Number of devices of a running guest, as its `live` XML has them, that are the one that `device`
/// describes, as far as that can tell: disks by their target, network interfaces by their MAC
/// address or else by what they are plugged into, any other device by its element.
///
/// # Errors
/// As [`device_summary`], for either of the texts.
pub fn count_devices(live: &str, device: &str) -> Result<usize, DomainError> {
    let wanted = device_summary(device)?;
    let document = parse(live)?;
    let devices = child(domain_element(&document)?, "devices");
    Ok(match wanted {
        Device::Disk(wanted) => {
            let is_it = |found: &Disk| wanted.target.is_empty() || found.target == wanted.target;
            each(devices, "disk").map(disk).filter(is_it).count()
        }
        Device::Nic(wanted) => {
            let is_it = |found: &Nic| match wanted.mac.as_str() {
                "" => found.kind == wanted.kind,
                mac => found.mac.eq_ignore_ascii_case(mac),
            };
            each(devices, "interface").map(nic).filter(is_it).count()
        }
        Device::Other(element) => each(devices, &element).count(),
    })
}

/// The alias of a single device element, if it has one.
///
/// # Errors
/// As [`device_summary`].
pub fn alias_of(device: &str) -> Result<Option<String>, DomainError> {
    let document = parse(device)?;
    let alias = child(document.root_element(), "alias");
    Ok(alias.and_then(|alias| alias.attribute("name")).map(str::to_owned))
}

/// Whether a running guest, as its `live` XML has it, has a device with this alias.
///
/// # Errors
/// As [`device_summary`].
pub fn has_alias(live: &str, alias: &str) -> Result<bool, DomainError> {
    let document = parse(live)?;
    let Some(devices) = child(domain_element(&document)?, "devices") else { return Ok(false) };
    let is_it = |device| child(device, "alias").and_then(|it| it.attribute("name")) == Some(alias);
    Ok(devices.children().filter(Node::is_element).any(is_it))
}

/// Parses within the limits of this crate.
pub(crate) fn parse(xml: &str) -> Result<Document<'_>, DomainError> {
    check_cost(xml)?;
    let options = ParsingOptions { allow_dtd: false, ..ParsingOptions::default() };
    Document::parse_with_options(xml, options).map_err(not_xml)
}

fn not_xml(error: roxmltree::Error) -> DomainError {
    if matches!(error, roxmltree::Error::DtdDetected) {
        return DomainError::DocumentType;
    }
    let position = error.pos();
    let why = match &error {
        roxmltree::Error::NoRootNode => "it is empty".to_owned(),
        roxmltree::Error::UnknownEntityReference(name, _) => {
            format!("entity `&{name};` is not known; only lt, gt, amp, apos and quot are")
        }
        roxmltree::Error::UnexpectedCloseTag(expected, found, _) => {
            format!("`</{found}>` where `</{expected}>` was expected")
        }
        other => {
            let text = other.to_string();
            // roxmltree ends most messages with the position, which we give in front.
            text.split(" at ").next().unwrap_or(&text).to_owned()
        }
    };
    DomainError::NotXml { line: position.row, column: position.col, why }
}

pub(crate) fn domain_element<'a, 'i>(
    document: &'a Document<'i>,
) -> Result<Node<'a, 'i>, DomainError> {
    let root = document.root_element();
    let found = root.tag_name().name();
    if found == "domain" {
        return Ok(root);
    }
    Err(DomainError::WrongRoot { found: found.to_owned(), expected: "domain".to_owned() })
}

pub(crate) fn summary_of(domain: Node<'_, '_>) -> Result<DomainSummary, DomainError> {
    let devices = child(domain, "devices");
    let os_type = path(domain, &["os", "type"]);
    let graphics = each(devices, "graphics").find(|node| node.attribute("type") == Some("vnc"));
    Ok(DomainSummary {
        name: required_text(domain, "name")?.to_owned(),
        uuid: uuid(domain)?,
        description: child_text(domain, "description").map(str::to_owned),
        memory_mib: memory_mib(domain)?,
        vcpus: vcpus(domain)?,
        topology: path(domain, &["cpu", "topology"]).map(topology),
        os_type: os_type.and_then(|node| text(node)).unwrap_or_default().to_owned(),
        arch: os_type.and_then(|node| attribute(node, "arch")),
        machine: os_type.and_then(|node| attribute(node, "machine")),
        emulator: devices.and_then(|node| child_text(node, "emulator")).map(str::to_owned),
        console: each(devices, "console")
            .next()
            .map(|node| node.attribute("type").unwrap_or_default().to_owned()),
        console_log: console_log(devices),
        vnc: graphics.map(vnc),
        features: elements(child(domain, "features"))
            .map(|node| node.tag_name().name().to_owned())
            .collect(),
        disks: each(devices, "disk").map(disk).collect(),
        nics: each(devices, "interface").map(nic).collect(),
        controllers: each(devices, "controller").map(controller).collect(),
        ssh_keys: ssh_keys(domain),
    })
}

pub(crate) fn uuid(domain: Node<'_, '_>) -> Result<Uuid, DomainError> {
    let found = required_text(domain, "uuid")?;
    Uuid::try_parse(found).ok().filter(|uuid| !uuid.is_nil()).ok_or_else(|| DomainError::Invalid {
        element: "uuid",
        found: shown(found),
        expected: "a UUID such as `2c2b8f4e-0d3e-4b6f-9d6d-0c9b6cf3f2a1`",
    })
}

/// libvirt's own units: without one, a memory is in KiB.
pub(crate) fn memory_mib(domain: Node<'_, '_>) -> Result<u64, DomainError> {
    let found = required_text(domain, "memory")?;
    let invalid =
        |expected| DomainError::Invalid { element: "memory", found: shown(found), expected };
    let amount: u64 = found.parse().map_err(|_| invalid("a whole number"))?;
    let unit = child(domain, "memory").and_then(|node| node.attribute("unit")).unwrap_or("KiB");
    let bytes = unit_bytes(unit).ok_or_else(|| DomainError::Invalid {
        element: "memory",
        found: format!("{found} {}", shown(unit)),
        expected: "a unit of bytes, KB, KiB, MB, MiB, GB, GiB, TB, TiB",
    })?;
    let mib = u128::from(amount) * u128::from(bytes) / (1 << 20);
    u64::try_from(mib)
        .ok()
        .filter(|mib| *mib < 1 << 40)
        .ok_or_else(|| invalid("less than an exbibyte"))
}

/// The bytes of one of libvirt's memory units.
fn unit_bytes(unit: &str) -> Option<u64> {
    Some(match unit {
        "b" | "bytes" => 1,
        "KB" => 1000,
        "k" | "K" | "KiB" => 1 << 10,
        "MB" => 1_000_000,
        "M" | "MiB" => 1 << 20,
        "GB" => 1_000_000_000,
        "G" | "GiB" => 1 << 30,
        "TB" => 1_000_000_000_000,
        "T" | "TiB" => 1 << 40,
        _ => return None,
    })
}

pub(crate) fn vcpus(domain: Node<'_, '_>) -> Result<u32, DomainError> {
    let found = required_text(domain, "vcpu")?;
    found.parse().ok().filter(|count| *count > 0).ok_or_else(|| DomainError::Invalid {
        element: "vcpu",
        found: shown(found),
        expected: "a whole number of at least 1",
    })
}

fn topology(node: Node<'_, '_>) -> (u32, u32, u32) {
    let number = |name| node.attribute(name).and_then(|text| text.trim().parse().ok()).unwrap_or(1);
    (number("sockets"), number("cores"), number("threads"))
}

/// Number of vCPUs that the whole topology makes, dies and clusters included.
pub(crate) fn topology_product(node: Node<'_, '_>) -> u64 {
    ["sockets", "dies", "clusters", "cores", "threads"]
        .iter()
        .filter_map(|name| node.attribute(*name)?.trim().parse::<u64>().ok())
        .fold(1, u64::saturating_mul)
}

fn console_log(devices: Option<Node<'_, '_>>) -> Option<String> {
    let mut logs = each(devices, "serial")
        .chain(each(devices, "console"))
        .filter_map(|node| child(node, "log"));
    logs.find_map(|log| attribute(log, "file"))
}

fn vnc(graphics: Node<'_, '_>) -> (String, Option<u16>) {
    let listen = attribute(graphics, "listen")
        .or_else(|| child(graphics, "listen").and_then(|node| attribute(node, "address")))
        .unwrap_or_else(|| "127.0.0.1".to_owned());
    let port =
        graphics.attribute("port").and_then(|port| port.parse().ok()).filter(|port| *port > 0);
    (listen, port)
}

/// The address, other than the loopback, on which a display lets everybody in who reaches it: it
/// asks for no password.
pub(crate) fn open_address(graphics: Node<'_, '_>) -> Option<String> {
    if graphics.attribute("passwd").is_some_and(|password| !password.is_empty()) {
        return None;
    }
    let inner = each(Some(graphics), "listen").filter_map(|node| attribute(node, "address"));
    let mut addresses = attribute(graphics, "listen").into_iter().chain(inner);
    addresses.find(|address| {
        let is_near = address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        !address.is_empty() && !is_near && address != "localhost"
    })
}

/// Whether a VNC display of the guest is open to whoever reaches its node, as [`summary`] reads the
/// domain.
///
/// # Errors
/// As [`summary`].
pub fn has_open_vnc(xml: &str) -> Result<bool, DomainError> {
    let document = parse(xml)?;
    let devices = child(document.root_element(), "devices");
    let mut displays =
        each(devices, "graphics").filter(|node| node.attribute("type") == Some("vnc"));
    Ok(displays.any(|display| open_address(display).is_some()))
}

/// State of a VM that is in no volume of it: libvirt keeps it in files of the node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LocalState {
    /// Whether there is that of an emulated TPM, which stays when the guest ends.
    pub has_tpm: bool,
    pub has_uefi_variables: bool,
}

/// State that a node keeps of the VM once it has run there, as far as the XML can be read.
pub fn local_state(xml: &str) -> LocalState {
    let Ok(document) = parse(xml) else { return LocalState::default() };
    let domain = document.root_element();
    let is_kept = |tpm: Node<'_, '_>| {
        let backend = child(tpm, "backend");
        let says = |name| backend.and_then(|backend| backend.attribute(name));
        says("type") == Some("emulator") && says("persistent_state") != Some("no")
    };
    let has_variables = |os: Node<'_, '_>| {
        let loader = child(os, "loader");
        let says = |name| loader.and_then(|loader| loader.attribute(name));
        // Firmware that keeps none, since libvirt 8.6.
        let is_stateless = says("stateless") == Some("yes");
        let is_uefi = os.attribute("firmware") == Some("efi") || says("type") == Some("pflash");
        child(os, "nvram").is_some() || is_uefi && !is_stateless
    };
    LocalState {
        has_tpm: each(child(domain, "devices"), "tpm").any(is_kept),
        has_uefi_variables: child(domain, "os").is_some_and(has_variables),
    }
}

pub(crate) fn disk(node: Node<'_, '_>) -> Disk {
    let target = child(node, "target");
    Disk {
        source: disk_source(node),
        target: target.and_then(|node| attribute(node, "dev")).unwrap_or_default(),
        bus: target.and_then(|node| attribute(node, "bus")).unwrap_or_default(),
        device: attribute(node, "device").unwrap_or_else(|| "disk".to_owned()),
        shared: child(node, "shareable").is_some() || child(node, "readonly").is_some(),
    }
}

fn disk_source(node: Node<'_, '_>) -> DiskSource {
    let kind = node.attribute("type").unwrap_or("file");
    let Some(source) = child(node, "source").filter(|source| source.attributes().len() > 0) else {
        return DiskSource::Empty;
    };
    match kind {
        // To libvirt an empty path is none.
        "file" => attribute(source, "file")
            .filter(|file| !file.is_empty())
            .map_or(DiskSource::Empty, DiskSource::File),
        "network" if source.attribute("protocol") == Some("rbd") => source
            .attribute("name")
            .and_then(VolumeId::from_record)
            .map_or(DiskSource::Other("network".to_owned()), DiskSource::Volume),
        other => DiskSource::Other(other.to_owned()),
    }
}

pub(crate) fn nic(node: Node<'_, '_>) -> Nic {
    let source = child(node, "source");
    let of_source = |name| source.and_then(|node| attribute(node, name)).unwrap_or_default();
    let kind = match node.attribute("type").unwrap_or_default() {
        "bridge" => NicKind::Bridge(of_source("bridge")),
        "direct" => NicKind::Direct(of_source("dev")),
        "hostdev" => {
            NicKind::Hostdev(child_text(node, "sriov_device").unwrap_or_default().to_owned())
        }
        kind => NicKind::Other {
            kind: kind.to_owned(),
            source: source
                .and_then(|node| node.attributes().next())
                .map(|attribute| attribute.value().to_owned())
                .unwrap_or_default(),
        },
    };
    let of_child = |element, name| child(node, element).and_then(|node| attribute(node, name));
    Nic {
        kind,
        mac: of_child("mac", "address").unwrap_or_default(),
        model: of_child("model", "type").unwrap_or_default(),
        target: of_child("target", "dev"),
        is_exclusive: of_source("mode") == "passthrough",
        has_vlan: child(node, "vlan").is_some(),
    }
}

/// The keys in `<ssh-keys>` of our namespace. What is no key is left out.
fn ssh_keys(domain: Node<'_, '_>) -> Vec<SshKey> {
    let own = |node: Node<'_, '_>, name: &str| {
        let tag = node.tag_name();
        tag.namespace() == Some(NAMESPACE) && tag.name() == name
    };
    let metadata = child(domain, "metadata").into_iter();
    let keys = metadata.flat_map(|node| node.children()).filter(|node| own(*node, "ssh-keys"));
    let keys = keys.flat_map(|node| node.children()).filter(|node| own(*node, "ssh-key"));
    let keys = keys.filter_map(|node| SshKey::read(node.attribute("name"), text(node)?));
    let mut keys: Vec<SshKey> = keys.take(MOST_KEYS).collect();
    SshKey::make_distinct(&mut keys);
    keys
}

fn controller(node: Node<'_, '_>) -> Controller {
    Controller {
        kind: attribute(node, "type").unwrap_or_default(),
        model: attribute(node, "model"),
    }
}

/// The first child element of that name. Elements of foreign namespaces are not libvirt's.
pub(crate) fn child<'a, 'i>(node: Node<'a, 'i>, name: &str) -> Option<Node<'a, 'i>> {
    each(Some(node), name).next()
}

pub(crate) fn path<'a, 'i>(node: Node<'a, 'i>, names: &[&str]) -> Option<Node<'a, 'i>> {
    names.iter().try_fold(node, |node, name| child(node, name))
}

/// The child elements of that name, in order.
pub(crate) fn each<'a, 'i, 'n>(
    node: Option<Node<'a, 'i>>,
    name: &'n str,
) -> impl Iterator<Item = Node<'a, 'i>> + use<'a, 'i, 'n> {
    elements(node).filter(move |child| child.tag_name().name() == name)
}

/// The child elements that are libvirt's own, in order.
pub(crate) fn elements<'a, 'i>(
    node: Option<Node<'a, 'i>>,
) -> impl Iterator<Item = Node<'a, 'i>> + use<'a, 'i> {
    node.into_iter()
        .flat_map(|node| node.children())
        .filter(|child| child.is_element() && child.tag_name().namespace().is_none())
}

/// The text of an element without surrounding white space; `None` if there is nothing.
pub(crate) fn text<'a>(node: Node<'a, '_>) -> Option<&'a str> {
    let texts = node.children().filter(Node::is_text).filter_map(|child| child.text());
    texts.map(str::trim).find(|text| !text.is_empty())
}

pub(crate) fn child_text<'a>(node: Node<'a, '_>, name: &str) -> Option<&'a str> {
    child(node, name).and_then(text)
}

fn attribute(node: Node<'_, '_>, name: &str) -> Option<String> {
    node.attribute(name).map(str::to_owned)
}

pub(crate) fn required_text<'a>(
    node: Node<'a, '_>,
    element: &'static str,
) -> Result<&'a str, DomainError> {
    child_text(node, element).ok_or(DomainError::Missing { element })
}
