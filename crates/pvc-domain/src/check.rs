//! Check of an XML that an operator wants to define: every mistake at once, each with its place.

use std::collections::BTreeMap;

use pvc_model::domain::{Disk, DiskSource, DomainSummary};
use pvc_model::link::{is_unicast, parse_mac};
use pvc_model::storage::VolumeId;
use pvc_model::{check_name, shown};
use roxmltree::Node;

use crate::cost::check_room;
use crate::read::{
    child, child_text, disk, domain_element, each, elements, memory_mib, nic, open_address, parse,
    path, required_text, summary_of, topology_product, uuid, vcpus,
};
use crate::{DomainError, Problem};

/// The most characters of a VM's name: with `_sda` and the like behind it, it still is a volume's
/// name.
pub const VM_NAME_LIMIT: usize = 100;

/// A domain XML that may be defined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    pub summary: DomainSummary,
    /// Things that will work, though likely not as intended.
    pub warnings: Vec<Problem>,
}

/// Checks `xml` as an operator gives it, for definition or modification.
///
/// # Errors
/// Everything that is wrong, in the order of the rules; at least one problem. What makes the rest
/// unreadable (not XML, not a domain) is the only one.
pub fn validate(xml: &str) -> Result<Checked, Vec<Problem>> {
    check_room(xml).map_err(|error| vec![problem_of(error)])?;
    let document = parse(xml).map_err(|error| vec![problem_of(error)])?;
    let domain = domain_element(&document).map_err(|error| vec![problem_of(error)])?;
    let mut findings = Findings::of(xml);
    identity(domain, &mut findings);
    resources(domain, &mut findings);
    platform(domain, &mut findings);
    let devices = child(domain, "devices");
    disks(devices, &mut findings);
    nics(devices, &mut findings);
    displays(devices, &mut findings);
    if !findings.problems.is_empty() {
        return Err(findings.into_problems());
    }
    let summary = summary_of(domain).map_err(|error| vec![problem_of(error)])?;
    Ok(Checked { summary, warnings: findings.warnings })
}

fn problem_of(error: DomainError) -> Problem {
    let hint = error.hint().map(str::to_owned);
    match error {
        DomainError::NotXml { line, column, why } => {
            Problem { line, column, what: format!("not well-formed XML: {why}"), hint }
        }
        other => Problem { line: 0, column: 0, what: other.to_string(), hint },
    }
}

/// The most problems and the most warnings that are told. To find the line of one takes a pass over
/// the text.
const FINDINGS: usize = 20;

#[derive(Default)]
struct Findings {
    problems: Vec<Problem>,
    warnings: Vec<Problem>,
    /// Number of problems found after so many had been reported already.
    omitted: usize,
    /// Positions of the text's line ends, in bytes.
    line_ends: Vec<usize>,
}

impl Findings {
    fn of(xml: &str) -> Self {
        let line_ends =
            xml.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect();
        Findings { line_ends, ..Findings::default() }
    }

    /// The line in which the element begins, counted from 1.
    fn line(&self, node: Node<'_, '_>) -> usize {
        1 + self.line_ends.partition_point(|end| *end < node.range().start)
    }

    fn wrong(
        &mut self,
        at: Node<'_, '_>,
        what: impl Into<String>,
        hint: impl Into<Option<&'static str>>,
    ) {
        if self.problems.len() < FINDINGS {
            self.problems.push(problem_at(at, what.into(), hint.into()));
        } else {
            self.omitted += 1;
        }
    }

    fn warn(
        &mut self,
        at: Node<'_, '_>,
        what: impl Into<String>,
        hint: impl Into<Option<&'static str>>,
    ) {
        if self.warnings.len() < FINDINGS {
            self.warnings.push(problem_at(at, what.into(), hint.into()));
        }
    }

    /// All problems, with a last one that says how many more there are.
    fn into_problems(mut self) -> Vec<Problem> {
        if self.omitted > 0 {
            let what = format!("there are {} more mistakes", self.omitted);
            self.problems.push(Problem { line: 0, column: 0, what, hint: None });
        }
        self.problems
    }

    /// Keeps the error of a reader, with the place of the element it is about.
    fn keep<T>(
        &mut self,
        domain: Node<'_, '_>,
        element: &str,
        result: Result<T, DomainError>,
    ) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                let mut problem = problem_of(error);
                if let Some(node) = child(domain, element) {
                    let place = place(node);
                    (problem.line, problem.column) = place;
                }
                self.problems.push(problem);
                None
            }
        }
    }
}

fn problem_at(at: Node<'_, '_>, what: String, hint: Option<&'static str>) -> Problem {
    let (line, column) = place(at);
    Problem { line, column, what, hint: hint.map(str::to_owned) }
}

fn place(node: Node<'_, '_>) -> (u32, u32) {
    let position = node.document().text_pos_at(node.range().start);
    (position.row, position.col)
}

fn identity(domain: Node<'_, '_>, findings: &mut Findings) {
    for element in ["name", "uuid", "memory", "vcpu", "os", "devices"] {
        if let Some(second) = each(Some(domain), element).nth(1) {
            findings.wrong(second, format!("there is a second `<{element}>`"), None);
        }
    }
    if let Some(name) = findings.keep(domain, "name", required_text(domain, "name"))
        && let Err(bad) = check_name("VM", name, VM_NAME_LIMIT)
    {
        findings.wrong(child(domain, "name").unwrap_or(domain), bad.to_string(), None);
    }
    findings.keep(domain, "uuid", uuid(domain));
}

fn resources(domain: Node<'_, '_>, findings: &mut Findings) {
    if let Some(mib) = findings.keep(domain, "memory", memory_mib(domain)) {
        let memory = child(domain, "memory").unwrap_or(domain);
        let unit_hint = "say the unit: `<memory unit='MiB'>1024</memory>`; without one it is KiB";
        if mib == 0 {
            findings.wrong(memory, "`<memory>` is less than 1 MiB", unit_hint);
        } else if memory.attribute("unit").is_none() {
            findings.warn(memory, format!("`<memory>` has no unit and means {mib} MiB"), unit_hint);
        }
    }
    let vcpus = findings.keep(domain, "vcpu", vcpus(domain));
    let topology = path(domain, &["cpu", "topology"]);
    if let (Some(vcpus), Some(topology)) = (vcpus, topology) {
        let product = topology_product(topology);
        if product != u64::from(vcpus) {
            findings.wrong(
                topology,
                format!("`<topology>` makes {product} vCPUs, `<vcpu>` says {vcpus}"),
                "sockets times cores times threads must be the number of vCPUs",
            );
        }
    }
}

fn platform(domain: Node<'_, '_>, findings: &mut Findings) {
    match path(domain, &["os", "type"]) {
        None => findings.wrong(
            child(domain, "os").unwrap_or(domain),
            "`<os>` with a `<type>` is missing",
            "add `<os><type arch='x86_64' machine='pc'>hvm</type></os>`",
        ),
        Some(node) => {
            for attribute in ["arch", "machine"] {
                if node.attribute(attribute).is_none() {
                    findings.warn(
                        node,
                        format!("`<type>` has no `{attribute}`"),
                        "PVC 1.0 cannot show such a VM",
                    );
                }
            }
        }
    }
    let Some(devices) = child(domain, "devices") else {
        findings.wrong(domain, "`<devices>` is missing", None);
        return;
    };
    boot_order(domain, devices, findings);
    if child_text(devices, "emulator").is_none() {
        findings.warn(
            devices,
            "`<emulator>` is missing",
            "PVC 1.0 cannot show such a VM; this PVC uses the host's own",
        );
    }
    if child(devices, "console").is_none() {
        findings.warn(
            devices,
            "`<console>` is missing",
            "add `<console type='pty'/>`; without one there is no console log, and PVC 1.0 cannot \
             show the VM",
        );
    }
}

/// libvirt takes one way of saying it, and no number twice.
fn boot_order(domain: Node<'_, '_>, devices: Node<'_, '_>, findings: &mut Findings) {
    let mut orders = BTreeMap::new();
    let of_os = path(domain, &["os", "boot"]);
    for boot in elements(Some(devices)).filter_map(|device| child(device, "boot")) {
        if let Some(of_os) = of_os {
            let line = findings.line(of_os);
            findings.wrong(
                boot,
                format!(
                    "there is a boot order of devices, and `<os>` has a `<boot>` in line {line}"
                ),
                "say the boot order in one of the two places",
            );
            return;
        }
        let order = boot.attribute("order").unwrap_or_default();
        if let Some(first) = orders.insert(order, boot) {
            let line = findings.line(first);
            findings.wrong(
                boot,
                format!("boot order `{order}` is used already, in line {line}"),
                None,
            );
        }
    }
}

fn disks(devices: Option<Node<'_, '_>>, findings: &mut Findings) {
    let mut targets = BTreeMap::new();
    let mut volumes: BTreeMap<VolumeId, String> = BTreeMap::new();
    for node in each(devices, "disk") {
        let found = disk(node);
        if found.target.is_empty() {
            findings.wrong(node, "the disk has no `<target dev='…'/>`", None);
        } else if !is_target_known(node, &found) {
            findings.wrong(
                node,
                format!("libvirt knows no disk target `{}`", shown(&found.target)),
                "`sd`, `vd`, `hd` or `xvd` and letters, such as `sda`; of a floppy drive `fda`",
            );
        } else if let Some(first) = targets.insert(found.target.clone(), node) {
            let line = findings.line(first);
            findings.wrong(
                node,
                format!("disk target `{}` is used already, in line {line}", found.target),
                "each disk needs a target of its own, such as `sda`, `sdb`",
            );
        }
        disk_source(node, &found, &mut volumes, findings);
    }
}

/// Checks what a disk is a view of. `volumes` are those of the disks before it, each with its
/// target.
fn disk_source(
    node: Node<'_, '_>,
    found: &Disk,
    volumes: &mut BTreeMap<VolumeId, String>,
    findings: &mut Findings,
) {
    match &found.source {
        DiskSource::Empty if !matches!(found.device.as_str(), "cdrom" | "floppy") => {
            findings.wrong(
                node,
                format!("disk `{}` has no source", found.target),
                "only drives with removable media (`device='cdrom'` or `'floppy'`) may be empty",
            );
        }
        DiskSource::Volume(id) => {
            if let Err(bad) = VolumeId::parse(&id.to_string()) {
                findings.wrong(node, bad.to_string(), None);
            }
            let shared = child(node, "shareable").is_some() || child(node, "readonly").is_some();
            if let Some(other) = volumes.insert(id.clone(), found.target.clone())
                && !shared
            {
                findings.wrong(
                    node,
                    format!("volume `{id}` is attached already, as `{other}`"),
                    None,
                );
            }
        }
        DiskSource::Other(kind) if kind == "network" => {
            let name = child(node, "source")
                .and_then(|source| source.attribute("name"))
                .unwrap_or_default();
            if !name.contains('/') {
                findings.wrong(
                    node,
                    format!("disk source `{name}` is not of the form `pool/volume`"),
                    None,
                );
            }
        }
        _ => {}
    }
}

fn nics(devices: Option<Node<'_, '_>>, findings: &mut Findings) {
    let mut macs = BTreeMap::new();
    for node in each(devices, "interface") {
        if node.attribute("type").is_none() {
            findings.wrong(node, "the network interface has no `type`", None);
        }
        // A function that is handed over has no model: whatever is written there, the guest starts.
        let model = child(node, "model")
            .filter(|_| node.attribute("type") != Some("hostdev"))
            .and_then(|model| model.attribute("type"));
        if let Some(model) = model.filter(|model| !is_nic_model(model)) {
            findings.wrong(
                node,
                format!("`{}` is not a model of a network interface", shown(model)),
                "letters, digits, `-` and `_`, such as `virtio`",
            );
        }
        let mac = nic(node).mac.to_ascii_lowercase();
        if mac.is_empty() {
            findings.warn(
                node,
                "the network interface has no MAC address and gets another at each start",
                "add `<mac address='52:54:00:…'/>`",
            );
        } else if !is_mac(&mac) {
            findings.wrong(
                node,
                format!("`{mac}` is not a MAC address of a network interface"),
                "six pairs of hexadecimal digits with `:` between, the second digit even",
            );
        } else if let Some(first) = macs.insert(mac.clone(), node) {
            let line = findings.line(first);
            findings.warn(
                node,
                format!("MAC address `{mac}` is used already, in line {line}"),
                None,
            );
        }
    }
}

fn displays(devices: Option<Node<'_, '_>>, findings: &mut Findings) {
    for node in each(devices, "graphics") {
        let kind = node.attribute("type").unwrap_or_default();
        if let Some(address) = open_address(node).filter(|_| matches!(kind, "vnc" | "spice")) {
            findings.warn(
                node,
                format!(
                    "the {kind} display on `{address}` asks for no password: who reaches it has \
                     the guest"
                ),
                "`listen='127.0.0.1'` and a tunnel by SSH, or `passwd='…'` (VNC compares 8 \
                 characters)",
            );
        }
    }
}

/// Whether libvirt takes the disk's target: a prefix that fits the drive, and letters that are a
/// number, unless the disk has an address and needs none.
fn is_target_known(node: Node<'_, '_>, disk: &Disk) -> bool {
    let prefixes: &[&str] = match disk.device.as_str() {
        "disk" | "lun" => &["hd", "sd", "vd", "xvd", "ubd"],
        "floppy" => &["fd"],
        _ => &[""],
    };
    prefixes.iter().any(|prefix| disk.target.starts_with(*prefix))
        && (child(node, "address").is_some() || split_target(&disk.target).is_some())
}

/// A disk's target as libvirt reads it: the prefix and the letters, which are a number to the base
/// 26 that a C `int` can hold. Digits behind them (`sda1`) mean nothing.
pub(crate) fn split_target(target: &str) -> Option<(&str, &str)> {
    let prefixes = ["fd", "hd", "vd", "sd", "xvd", "ubd"];
    let prefix = prefixes.into_iter().find(|prefix| target.starts_with(*prefix))?;
    let letters = target[prefix.len()..].trim_end_matches(|c: char| c.is_ascii_digit());
    let number = letters.bytes().try_fold(0_i32, |number, letter| {
        let digit = letter.is_ascii_lowercase().then(|| i32::from(letter - b'a') + 1)?;
        number.checked_mul(26)?.checked_add(digit)
    })?;
    (number > 0).then_some((prefix, letters))
}

/// Whether `text` can be a model of a network interface: libvirt takes no other characters.
pub(crate) fn is_nic_model(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

/// Whether `text` is a MAC address that one interface can have (not a multicast one).
pub(crate) fn is_mac(text: &str) -> bool {
    parse_mac(text).is_some_and(is_unicast)
}
