//! The description of a VM in an OVA: OVF 1 and 2, as VMware, VirtualBox and others write it.
//!
//! The names of elements and attributes are what counts; of which of OVF's and CIM's namespaces
//! they are differs by version and program.

use std::collections::BTreeMap;

use pvc_domain::{DomainError, check_cost};
use pvc_model::disk_image::DiskFormat;
use pvc_model::shown;
use roxmltree::{Document, Node};

use crate::{MOST_TEXT, bad_name, units};

/// The most disks of a VM.
pub const MOST_DISKS: usize = 64;

/// The most network interfaces of a VM.
const MOST_NICS: usize = 64;

/// The most characters of a name.
const LONGEST_NAME: usize = 255;

/// The most bytes of a disk: a PiB.
const MOST_DISK_BYTES: u64 = 1 << 50;

/// Kinds of hardware, by CIM's numbers.
const PROCESSOR: u32 = 3;
const MEMORY: u32 = 4;
const ETHERNET: u32 = 10;
const GRAPHICS: u32 = 24;

/// The kind of a disk, and the one of OVF 2.
const DISKS: [u32; 2] = [17, 31];

/// A VM, as it is described.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appliance {
    pub vcpus: u32,
    pub memory_mib: u64,
    /// Whether it has a screen.
    pub has_graphics: bool,
    /// In the order in which its controllers have them.
    pub disks: Vec<OvfDisk>,
    /// The name of the network of each interface that is in one.
    pub networks: Vec<String>,
}

/// A disk of a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OvfDisk {
    /// Size of the disk, in bytes: whole sectors.
    pub size_bytes: u64,
    /// The file with its image; a disk without one is of zeros.
    pub file: Option<DiskFile>,
}

/// A file with the image of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskFile {
    /// Its name in the archive.
    pub name: String,
    /// Size of the file, in bytes, if it is said.
    pub size_bytes: Option<u64>,
    /// The format that is said, or that the end of its name says.
    pub format: DiskFormat,
}

/// Reason why a description is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OvfError {
    #[error("it is no text in UTF-8")]
    NoText,
    #[error(transparent)]
    Costly(DomainError),
    #[error("it has a document type; these are refused because of what entities can do")]
    DocumentType,
    #[error("it is no XML: {why}")]
    NoXml { why: String },
    #[error("it is no OVF 1 or 2: its outermost element is `{found}`")]
    NoEnvelope { found: String },
    #[error("it describes {count} VMs, and one can be taken")]
    Systems { count: usize },
    #[error("`{element}` is missing")]
    Missing { element: &'static str },
    #[error("{what} is `{found}`, and {expected} is needed")]
    Invalid { what: &'static str, found: String, expected: &'static str },
    #[error("it describes {count} disks, and at most {MOST_DISKS} are taken")]
    Disks { count: usize },
    #[error("it describes more than {MOST_NICS} network interfaces")]
    Nics,
    #[error("disk `{disk}` {why}")]
    Disk { disk: String, why: &'static str },
    #[error("the name `{name}` of a file {why}")]
    FileName { name: String, why: &'static str },
}

type Result<T> = std::result::Result<T, OvfError>;

/// The name of a disk in the guest, counted from 0: `sda`, … `sdz`, `sdaa`, …
pub fn disk_id(at: usize) -> String {
    let letter = |at: usize| char::from(b'a' + u8::try_from(at % 26).expect("it is below 26"));
    match at / 26 {
        0 => format!("sd{}", letter(at)),
        more => format!("sd{}{}", letter(more - 1), letter(at)),
    }
}

/// Reads the description of a VM.
///
/// # Errors
/// If it is none, describes what cannot be made, or costs too much to read.
pub fn describe(text: &[u8]) -> Result<Appliance> {
    if text.len() as u64 > MOST_TEXT {
        let limit = usize::try_from(MOST_TEXT).expect("it is a MiB");
        return Err(OvfError::Costly(DomainError::TooLarge { bytes: text.len(), limit }));
    }
    let text = std::str::from_utf8(text).map_err(|_| OvfError::NoText)?;
    check_cost(text).map_err(OvfError::Costly)?;
    let document = Document::parse(text).map_err(|error| match error {
        roxmltree::Error::DtdDetected => OvfError::DocumentType,
        other => OvfError::NoXml { why: shown(&other.to_string()) },
    })?;
    let envelope = document.root_element();
    require_envelope(envelope)?;
    let system = system(envelope)?;
    let hardware = child(system, "VirtualHardwareSection");
    let hardware = hardware.ok_or(OvfError::Missing { element: "VirtualHardwareSection" })?;
    let items = items(envelope, hardware)?;
    Ok(Appliance {
        vcpus: vcpus(&items)?,
        memory_mib: memory_mib(&items)?,
        has_graphics: items.iter().any(|item| item.kind == GRAPHICS),
        disks: disks(envelope, &items)?,
        networks: networks(&items)?,
    })
}

fn require_envelope(envelope: Node<'_, '_>) -> Result<()> {
    let name = envelope.tag_name();
    let namespace = name.namespace().unwrap_or_default();
    let is_known = ["1", "2"].iter().any(|version| {
        namespace.strip_suffix(version).is_some_and(|rest| rest.ends_with("/ovf/envelope/"))
    });
    match name.name() == "Envelope" && is_known {
        true => Ok(()),
        false => {
            let found = shown(&format!("{{{namespace}}}{}", name.name()));
            Err(OvfError::NoEnvelope { found })
        }
    }
}

/// The only VM, also if it is a collection of one.
fn system<'a>(envelope: Node<'a, 'a>) -> Result<Node<'a, 'a>> {
    let mut systems =
        envelope.descendants().filter(|node| node.is_element() && named(*node, "VirtualSystem"));
    let first = systems.next().ok_or(OvfError::Missing { element: "VirtualSystem" })?;
    match systems.count() {
        0 => Ok(first),
        more => Err(OvfError::Systems { count: more + 1 }),
    }
}

fn named(node: Node<'_, '_>, name: &str) -> bool {
    node.tag_name().name() == name
}

fn children<'a>(of: Node<'a, 'a>, name: &'static str) -> impl Iterator<Item = Node<'a, 'a>> {
    of.children().filter(move |node| node.is_element() && named(*node, name))
}

fn child<'a>(of: Node<'a, 'a>, name: &'static str) -> Option<Node<'a, 'a>> {
    children(of, name).next()
}

/// The attribute of that name, whatever namespace it has.
fn attribute<'a>(of: Node<'a, 'a>, name: &str) -> Option<&'a str> {
    of.attributes().find(|attribute| attribute.name() == name).map(|found| found.value().trim())
}

/// The text of a child, if there is any.
fn text<'a>(of: Node<'a, 'a>, name: &'static str) -> Option<&'a str> {
    child(of, name)?.text().map(str::trim).filter(|text| !text.is_empty())
}

/// A piece of hardware.
struct Item<'a> {
    node: Node<'a, 'a>,
    id: &'a str,
    kind: u32,
}

/// The pieces of hardware that a VM has without any choice: of those for one configuration, the
/// ones for the usual, and no lower or upper bounds.
fn items<'a>(envelope: Node<'a, 'a>, hardware: Node<'a, 'a>) -> Result<Vec<Item<'a>>> {
    let usual = usual_configuration(envelope);
    let mut items: Vec<Item<'a>> = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    let is_item = |node: &Node<'_, '_>| {
        ["Item", "StorageItem", "EthernetPortItem"].iter().any(|name| named(*node, name))
    };
    for node in hardware.children().filter(|node| node.is_element()).filter(is_item) {
        let configuration = attribute(node, "configuration");
        let is_meant =
            |names: &str| usual.is_some_and(|usual| names.split(' ').any(|n| n == usual));
        if attribute(node, "bound").is_some() || configuration.is_some_and(|names| !is_meant(names))
        {
            continue;
        }
        let kind = text(node, "ResourceType").unwrap_or_default();
        let Ok(kind) = kind.parse() else {
            let (what, found) = ("`ResourceType`", shown(kind));
            return Err(OvfError::Invalid { what, found, expected: "a number" });
        };
        let item = Item { node, id: text(node, "InstanceID").unwrap_or_default(), kind };
        match places.get(item.id).filter(|_| !item.id.is_empty()) {
            // The one for the configuration is in the place of the one for all.
            Some(at) if configuration.is_some() => items[*at] = item,
            Some(_) => {}
            None => {
                places.insert(item.id, items.len());
                items.push(item);
            }
        }
    }
    Ok(items)
}

/// The name of the configuration that a VM has if nobody chooses.
fn usual_configuration<'a>(envelope: Node<'a, 'a>) -> Option<&'a str> {
    let section = child(envelope, "DeploymentOptionSection")?;
    let all: Vec<Node<'a, 'a>> = children(section, "Configuration").collect();
    let is_usual =
        |node: &&Node<'_, '_>| matches!(attribute(**node, "default"), Some("true" | "1"));
    let usual = all.iter().find(is_usual).or(all.first())?;
    attribute(*usual, "id")
}

/// The number of an item's amount.
fn quantity(item: &Item<'_>, what: &'static str) -> Result<u64> {
    let found = text(item.node, "VirtualQuantity").unwrap_or("1");
    let is_number = found.bytes().all(|byte| byte.is_ascii_digit());
    found.parse().ok().filter(|number| is_number && *number > 0).ok_or_else(|| {
        let found = shown(found);
        OvfError::Invalid { what, found, expected: "a number above 0" }
    })
}

fn vcpus(items: &[Item<'_>]) -> Result<u32> {
    let Some(item) = items.iter().find(|item| item.kind == PROCESSOR) else { return Ok(1) };
    let what = "the number of vCPUs";
    let found = quantity(item, what)?;
    u32::try_from(found).map_err(|_| {
        let found = found.to_string();
        OvfError::Invalid { what, found, expected: "a smaller number" }
    })
}

/// Memory in MiB, which is its unit if none is said.
fn memory_mib(items: &[Item<'_>]) -> Result<u64> {
    let item = items.iter().find(|item| item.kind == MEMORY);
    let item = item.ok_or(OvfError::Missing { element: "Item of memory" })?;
    let unit = text(item.node, "AllocationUnits");
    let unit_bytes = match unit {
        Some(unit) => unit_bytes("the unit of memory", unit)?,
        None => 1 << 20,
    };
    let bytes = product("the memory", quantity(item, "the memory")?, unit_bytes)?;
    Ok(bytes.div_ceil(1 << 20))
}

fn unit_bytes(what: &'static str, unit: &str) -> Result<u64> {
    let expected = "one of bytes, such as `byte * 2^20`,";
    units::bytes(unit).ok_or_else(|| OvfError::Invalid { what, found: shown(unit), expected })
}

fn product(what: &'static str, number: u64, unit_bytes: u64) -> Result<u64> {
    number.checked_mul(unit_bytes).filter(|bytes| *bytes <= MOST_DISK_BYTES).ok_or_else(|| {
        let found = format!("{number} times {unit_bytes} bytes");
        OvfError::Invalid { what, found, expected: "at most a PiB" }
    })
}

fn networks(items: &[Item<'_>]) -> Result<Vec<String>> {
    let nics: Vec<_> = items.iter().filter(|item| item.kind == ETHERNET).collect();
    if nics.len() > MOST_NICS {
        return Err(OvfError::Nics);
    }
    let name = |item: &&Item<'_>| text(item.node, "Connection").map(str::to_owned);
    let networks: Vec<String> = nics.iter().filter_map(name).collect();
    match networks.iter().find(|name| name.chars().count() > LONGEST_NAME) {
        None => Ok(networks),
        Some(long) => {
            let (what, found) = ("the name of a network", shown(long));
            Err(OvfError::Invalid { what, found, expected: "one of at most 255 characters" })
        }
    }
}

fn disks(envelope: Node<'_, '_>, items: &[Item<'_>]) -> Result<Vec<OvfDisk>> {
    let is_disk =
        |item: &&Item<'_>| DISKS.contains(&item.kind) && text(item.node, "HostResource").is_some();
    let mut attached: Vec<&Item<'_>> = items.iter().filter(is_disk).collect();
    if attached.len() > MOST_DISKS {
        return Err(OvfError::Disks { count: attached.len() });
    }
    let controllers: BTreeMap<&str, usize> =
        items.iter().enumerate().map(|(at, item)| (item.id, at)).collect();
    // By its controller, and by its place at that; the order of the text decides otherwise.
    attached.sort_by_key(|item| {
        let controller = text(item.node, "Parent").and_then(|id| controllers.get(id));
        let place = text(item.node, "AddressOnParent").and_then(|text| text.parse::<u32>().ok());
        (controller.copied().unwrap_or(usize::MAX), place.unwrap_or(u32::MAX))
    });
    let known = by_id(child(envelope, "DiskSection"), "Disk", "diskId");
    let files = by_id(child(envelope, "References"), "File", "id");
    let mut seen: Vec<&str> = Vec::new();
    let mut disks: Vec<OvfDisk> = Vec::new();
    for item in attached {
        let resource = text(item.node, "HostResource").unwrap_or_default();
        let id = id_of(resource)?;
        let refused = |why| OvfError::Disk { disk: shown(id), why };
        if seen.contains(&id) {
            return Err(refused("is attached twice"));
        }
        seen.push(id);
        let described = known.get(id).ok_or_else(|| refused("is not described"))?;
        let disk = disk(*described, &files).map_err(|why| match why {
            Why::Of(why) => refused(why),
            Why::Error(error) => error,
        })?;
        let file = |disk: &OvfDisk| disk.file.as_ref().map(|file| file.name.clone());
        if disk.file.is_some() && disks.iter().any(|other| file(other) == file(&disk)) {
            return Err(refused("has the same file as another"));
        }
        disks.push(disk);
    }
    Ok(disks)
}

/// The elements of a section by an attribute of theirs.
fn by_id<'a>(
    section: Option<Node<'a, 'a>>,
    name: &'static str,
    id: &'static str,
) -> BTreeMap<&'a str, Node<'a, 'a>> {
    let all = section.into_iter().flat_map(|section| children(section, name));
    all.filter_map(|node| Some((attribute(node, id)?, node))).collect()
}

/// The identifier in `ovf:/disk/vmdisk1`.
fn id_of(resource: &str) -> Result<&str> {
    let mut parts = resource.rsplit('/');
    match (parts.next(), parts.next()) {
        (Some(id), Some("disk")) if !id.is_empty() => Ok(id),
        _ => {
            let (what, found) = ("`HostResource` of a disk", shown(resource));
            Err(OvfError::Invalid { what, found, expected: "`ovf:/disk/ID`" })
        }
    }
}

/// Reason against a disk.
enum Why {
    Of(&'static str),
    Error(OvfError),
}

impl From<OvfError> for Why {
    fn from(error: OvfError) -> Self {
        Why::Error(error)
    }
}

fn disk(
    described: Node<'_, '_>,
    files: &BTreeMap<&str, Node<'_, '_>>,
) -> std::result::Result<OvfDisk, Why> {
    if attribute(described, "parentRef").is_some() {
        return Err(Why::Of("has only what differs from another"));
    }
    let size_bytes = capacity(described)?;
    let Some(id) = attribute(described, "fileRef") else {
        return Ok(OvfDisk { size_bytes, file: None });
    };
    let file = files.get(id).ok_or(Why::Of("has a file that is not among the references"))?;
    if attribute(*file, "chunkSize").is_some() {
        return Err(Why::Of("has a file in several pieces"));
    }
    let href = attribute(*file, "href").unwrap_or_default();
    let bad = |why| OvfError::FileName { name: shown(href), why };
    let name = unescaped(href).ok_or_else(|| bad("is no text in UTF-8"))?;
    if let Some(why) = bad_name(&name) {
        return Err(bad(why).into());
    }
    let size = attribute(*file, "size").and_then(|size| size.parse().ok());
    let format = format_of(attribute(described, "format").unwrap_or_default(), &name);
    Ok(OvfDisk { size_bytes, file: Some(DiskFile { name, size_bytes: size, format }) })
}

/// The text that a URI stands for, in which `%20` is a space; `None` if that is no text. A `%`
/// without two hexadecimal digits behind it is itself.
fn unescaped(uri: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(uri.len());
    let mut rest = uri.as_bytes();
    while let [first, behind @ ..] = rest {
        let escaped = match behind {
            [high, low, ..] if *first == b'%' => digit(*high).zip(digit(*low)),
            _ => None,
        };
        match escaped {
            Some((high, low)) => {
                bytes.push(high * 16 + low);
                rest = &behind[2..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

fn digit(byte: u8) -> Option<u8> {
    u8::try_from(char::from(byte).to_digit(16)?).ok()
}

/// The size of a disk, as whole sectors.
fn capacity(described: Node<'_, '_>) -> Result<u64> {
    let what = "the capacity of a disk";
    let found = attribute(described, "capacity").unwrap_or_default();
    let is_number = !found.is_empty() && found.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 =
        found.parse().ok().filter(|number| is_number && *number > 0).ok_or_else(|| {
            OvfError::Invalid { what, found: shown(found), expected: "a number above 0" }
        })?;
    let unit_bytes = match attribute(described, "capacityAllocationUnits") {
        Some(unit) => unit_bytes("the unit of a disk's capacity", unit)?,
        None => 1,
    };
    Ok(product(what, number, unit_bytes)?.next_multiple_of(512))
}

/// The format of an image, by what is said of it, or by the end of its name.
fn format_of(said: &str, name: &str) -> DiskFormat {
    let said = said.to_ascii_lowercase();
    let name = name.to_ascii_lowercase();
    let name =
        [".gz", ".xz", ".zst"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name);
    // Of two words that begin alike, the longer comes first.
    let words = [
        ("vmdk", DiskFormat::Vmdk),
        ("vhdx", DiskFormat::Vhdx),
        ("vhd", DiskFormat::Vpc),
        ("qcow", DiskFormat::Qcow2),
        ("vdi", DiskFormat::Vdi),
    ];
    let by_word = words.iter().find(|(word, _)| said.contains(word));
    let by_end = || {
        let end = name.rsplit('.').next().unwrap_or_default();
        words.iter().find(|(word, _)| end.starts_with(word))
    };
    by_word.or_else(by_end).map_or(DiskFormat::Raw, |(_, format)| *format)
}

#[cfg(test)]
mod tests;
