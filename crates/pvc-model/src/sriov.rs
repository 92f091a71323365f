//! SR-IOV: network cards that divide themselves, and the parts that guests are given.
//!
//! A card is a physical function (PF), by the name of its network interface; a part of it is a
//! virtual function (VF), by the name that PVC 1.0.3 assumes: the PF's, `v`, and its number.
//! Which VM has which VF follows from the VMs' records ([`users`]); what the VFs' records say of
//! it is for others to read.

pub mod plan;
pub mod settings;

use std::collections::BTreeMap;
use std::fmt;

use crate::Uuid;
use crate::cluster::Cluster;
use crate::domain::{Nic, NicKind};
use crate::node::NodeRecord;
use crate::vm::VmRecord;

/// The most VFs that PCI gives a card.
pub const MOST_FUNCTIONS: u32 = 256;

/// The cards of a node, and their functions, as recorded. Texts are kept as they stand.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SriovRecords {
    /// By name.
    pub pfs: Vec<PfRecord>,
    /// By name, `ens1f0v10` behind `ens1f0v9`.
    pub vfs: Vec<VfRecord>,
}

impl SriovRecords {
    pub fn pf(&self, name: &str) -> Option<&PfRecord> {
        self.pfs.iter().find(|pf| pf.name == name)
    }

    pub fn vf(&self, name: &str) -> Option<&VfRecord> {
        self.vfs.iter().find(|vf| vf.name == name)
    }

    /// The VF that an interface takes for itself on this node, if it is recorded: a macvtap device
    /// takes one only of a card that is recorded as well.
    pub fn taken_by(&self, nic: &Nic) -> Option<&VfRecord> {
        let vf = self.vf(vf_of(nic)?)?;
        let is_device = matches!(nic.kind, NicKind::Hostdev(_));
        (is_device || self.pf(&vf.pf).is_some()).then_some(vf)
    }

    /// The VFs of a card.
    pub fn vfs_of<'a>(&'a self, pf: &'a str) -> impl Iterator<Item = &'a VfRecord> {
        self.vfs.iter().filter(move |vf| vf.pf == pf)
    }
}

/// Record of a card whose functions are handed out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PfRecord {
    pub name: String,
    pub mtu: String,
    pub vfcount: String,
}

/// Record of a function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VfRecord {
    pub name: String,
    pub pf: String,
    pub mtu: String,
    /// MAC address that it has: of one that a guest has, that of the guest's interface.
    pub mac: String,
    /// MAC address that it had when it was recorded.
    pub phy_mac: String,
    pub config: VfConfig,
    pub pci: PciTexts,
    pub used: bool,
    pub used_by: Option<Uuid>,
}

/// Settings of a function as recorded; a text is empty if the record lacks it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VfConfig {
    pub vlan_id: String,
    pub vlan_qos: String,
    /// In Mbit/s, as all rates of functions.
    pub tx_rate_min: String,
    pub tx_rate_max: String,
    pub spoof_check: String,
    pub link_state: String,
    pub trust: String,
    pub query_rss: String,
}

/// A PCI address in pieces: `0000`, `3b`, `0a`, `1`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PciTexts {
    pub domain: String,
    pub bus: String,
    pub slot: String,
    pub function: String,
}

/// Address of a PCI device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciAddress {
    pub domain: u16,
    pub bus: u8,
    pub slot: u8,
    pub function: u8,
}

impl PciAddress {
    /// Reads it as sysfs writes it: `0000:3b:0a.1`.
    pub fn parse(text: &str) -> Option<PciAddress> {
        let (domain, rest) = text.split_once(':')?;
        let (bus, rest) = rest.split_once(':')?;
        let (slot, function) = rest.split_once('.')?;
        PciTexts {
            domain: domain.to_owned(),
            bus: bus.to_owned(),
            slot: slot.to_owned(),
            function: function.to_owned(),
        }
        .address()
    }

    pub fn texts(self) -> PciTexts {
        PciTexts {
            domain: format!("{:04x}", self.domain),
            bus: format!("{:02x}", self.bus),
            slot: format!("{:02x}", self.slot),
            function: format!("{:x}", self.function),
        }
    }

    /// Its parts, in the order of the text.
    pub fn parts(self) -> (u16, u8, u8, u8) {
        (self.domain, self.bus, self.slot, self.function)
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PciAddress { domain, bus, slot, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{slot:02x}.{function:x}")
    }
}

impl PciTexts {
    /// The address, if all its parts are there and can be one.
    pub fn address(&self) -> Option<PciAddress> {
        let part = |text: &str, most: u16| {
            let digits = text.strip_prefix("0x").unwrap_or(text);
            let is_hex = !digits.is_empty() && digits.chars().all(|c| c.is_ascii_hexdigit());
            let value = u16::from_str_radix(digits, 16).ok()?;
            (is_hex && value <= most).then_some(value)
        };
        let byte =
            |text: &str, most: u16| part(text, most).and_then(|part| u8::try_from(part).ok());
        Some(PciAddress {
            domain: part(&self.domain, u16::MAX)?,
            bus: byte(&self.bus, 0xff)?,
            slot: byte(&self.slot, 0x1f)?,
            function: byte(&self.function, 7)?,
        })
    }
}

/// Name of function number `index` of a card.
pub fn vf_name(pf: &str, index: u32) -> String {
    format!("{pf}v{index}")
}

/// The card and the number in the name of a function.
pub fn vf_parts(name: &str) -> Option<(&str, u32)> {
    let digits = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let pf = name[..digits].strip_suffix('v').filter(|pf| !pf.is_empty())?;
    let index: u32 = name[digits..].parse().ok()?;
    // As it is written, and in no other way.
    (vf_name(pf, index) == name && index < MOST_FUNCTIONS).then_some((pf, index))
}

/// The VF that an interface takes for itself. A macvtap device that shares its device with others,
/// or is on what is not called like a VF, takes none.
pub fn vf_of(nic: &Nic) -> Option<&str> {
    match &nic.kind {
        NicKind::Hostdev(name) => Some(name.as_str()).filter(|name| !name.is_empty()),
        NicKind::Direct(name) => {
            Some(name.as_str()).filter(|name| nic.is_exclusive && vf_parts(name).is_some())
        }
        NicKind::Bridge(_) | NicKind::Other { .. } => None,
    }
}

/// Whether a guest with these interfaces has a device of the host in it, and so cannot be copied
/// to another one while it runs.
pub fn is_tied(nics: &[Nic]) -> bool {
    nics.iter().any(|nic| matches!(nic.kind, NicKind::Hostdev(_)))
}

fn nics(vm: &VmRecord) -> &[Nic] {
    vm.domain.as_ref().map_or(&[], |domain| &domain.nics)
}

/// Whether the VM is on the node: assigned to it, or not gone from it.
fn is_on(vm: &VmRecord, node: &NodeRecord) -> bool {
    vm.is_assigned_to(&node.name) || has_guest(vm.uuid, node)
}

fn has_guest(vm: Uuid, node: &NodeRecord) -> bool {
    node.running.contains(&vm) || node.working_on.contains(&vm)
}

/// A VM that has a VF, and the interface that it has it for.
#[derive(Debug, Clone, Copy)]
pub struct VfUser<'a> {
    pub vm: &'a VmRecord,
    pub nic: &'a Nic,
}

/// The VFs of a node that VMs have, as their records say: each that is assigned to the node, off
/// or not, or whose guest is still there, has those that its XML names. Of two that name one, it
/// belongs to the one whose guest is there, or else to the one that is noted, or else to the one
/// with the smaller UUID.
pub fn users<'a>(cluster: &'a Cluster, node: &NodeRecord) -> BTreeMap<&'a str, VfUser<'a>> {
    let mut users: BTreeMap<&str, VfUser<'_>> = BTreeMap::new();
    for vm in cluster.vms.values().filter(|vm| is_on(vm, node)) {
        for nic in nics(vm) {
            let Some(name) = vf_of(nic) else { continue };
            let is_noted =
                |vm: Uuid| node.sriov.vf(name).is_some_and(|vf| vf.used && vf.used_by == Some(vm));
            let right = |vm: Uuid| (has_guest(vm, node), is_noted(vm));
            let has_less = |had: &VfUser<'_>| right(had.vm.uuid) < right(vm.uuid);
            if users.get(name).is_none_or(has_less) {
                users.insert(name, VfUser { vm, nic });
            }
        }
    }
    users
}

/// Reason why a VM cannot have a VF on a node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoFunction {
    #[error("node `{node}` has no SR-IOV function `{function}`")]
    Missing { node: String, function: String },
    #[error("the SR-IOV function `{function}` of node `{node}` is used by VM `{by}`")]
    Used { node: String, function: String, by: String },
    #[error("two interfaces take the SR-IOV function `{function}`")]
    Twice { function: String },
}

impl NoFunction {
    pub fn hint(&self) -> String {
        match self {
            NoFunction::Missing { node, .. } => {
                format!("`pvc network sriov vf list {node}` shows those that it has")
            }
            NoFunction::Used { node, .. } => {
                format!("`pvc network sriov vf list {node}` shows those that are free")
            }
            NoFunction::Twice { .. } => "an interface has a function for itself".to_owned(),
        }
    }
}

/// Whether all VFs that `nics` take are recorded on the node.
pub fn has_functions(node: &NodeRecord, nics: &[Nic]) -> bool {
    nics.iter().filter_map(vf_of).all(|function| node.sriov.vf(function).is_some())
}

/// Another VM than `vm` that is on the node and has the VF there. What a note says of a VM that is
/// gone or elsewhere does not count.
pub fn other_user<'a>(
    cluster: &'a Cluster,
    node: &NodeRecord,
    vm: Option<Uuid>,
    function: &VfRecord,
) -> Option<&'a VmRecord> {
    let user = users(cluster, node).get(function.name.as_str()).map(|user| user.vm);
    // A guest may have what its VM's record does not name any more.
    let guest = function.used_by.filter(|by| function.used && has_guest(*by, node));
    let guest = || cluster.vms.get(&guest?).map(|vm| &**vm);
    let is_other = |had: &&VmRecord| Some(had.uuid) != vm;
    user.filter(is_other).or_else(|| guest().filter(is_other))
}

/// Same as [`check_functions`], for interfaces that are new: what they take has to be there.
///
/// # Errors
/// If a VF is not recorded on the node, too.
pub fn check_new_functions<'a>(
    cluster: &Cluster,
    node: &NodeRecord,
    vm: Uuid,
    nics: impl IntoIterator<Item = &'a Nic, IntoIter: Clone>,
) -> Result<(), NoFunction> {
    let nics = nics.into_iter();
    let has = |function: &&str| node.sriov.vf(function).is_some();
    if let Some(function) = nics.clone().filter_map(vf_of).find(|function| !has(function)) {
        let node = node.name.to_string();
        return Err(NoFunction::Missing { node, function: function.to_owned() });
    }
    check_functions(cluster, node, vm, nics)
}

/// Checks that VM `vm` can have all VFs that `nics` take on the node. What is not recorded there is
/// not PVC's to give, nor to refuse.
///
/// # Errors
/// If another VM has one, or two interfaces name it.
pub fn check_functions<'a>(
    cluster: &Cluster,
    node: &NodeRecord,
    vm: Uuid,
    nics: impl IntoIterator<Item = &'a Nic>,
) -> Result<(), NoFunction> {
    let mut seen = Vec::new();
    for record in nics.into_iter().filter_map(|nic| node.sriov.taken_by(nic)) {
        let function = record.name.clone();
        if seen.contains(&function) {
            return Err(NoFunction::Twice { function });
        }
        if let Some(other) = other_user(cluster, node, Some(vm), record) {
            let (node, by) = (node.name.to_string(), other.name.clone());
            return Err(NoFunction::Used { node, function, by });
        }
        seen.push(function);
    }
    Ok(())
}

/// A note of who has a VF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VfUse {
    pub vf: String,
    pub used_by: Option<Uuid>,
    pub mac: String,
}

/// Notes that the VFs' records of a node lack of their users, or have wrong. `held` are the VFs
/// that some guest has, as the kernel shows it: such a one is not noted as free while the guest is
/// there that had it, also if its VM's record does not name it any more.
pub fn uses_to_note(
    cluster: &Cluster,
    node: &NodeRecord,
    held: impl Fn(&str) -> bool,
) -> Vec<VfUse> {
    let users = users(cluster, node);
    let note = |vf: &VfRecord| {
        let wanted = match users.get(vf.name.as_str()) {
            Some(VfUser { vm, nic }) => {
                VfUse { vf: vf.name.clone(), used_by: Some(vm.uuid), mac: nic.mac.clone() }
            }
            None if vf.used_by.is_some_and(|by| has_guest(by, node)) && held(&vf.name) => {
                return None;
            }
            None => VfUse { vf: vf.name.clone(), used_by: None, mac: vf.phy_mac.clone() },
        };
        let is_noted = vf.used == wanted.used_by.is_some()
            && vf.used_by == wanted.used_by
            && (wanted.mac.is_empty() || vf.mac == wanted.mac);
        (!is_noted).then_some(wanted)
    };
    node.sriov.vfs.iter().filter_map(note).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::records;
    use crate::vm::VmState;

    fn vf(name: &str, used_by: Option<u128>) -> VfRecord {
        let (pf, _) = vf_parts(name).unwrap();
        VfRecord {
            name: name.to_owned(),
            pf: pf.to_owned(),
            mac: if used_by.is_some() { "52:54:00:00:00:01" } else { "02:00" }.to_owned(),
            phy_mac: "02:00".to_owned(),
            used: used_by.is_some(),
            used_by: used_by.map(Uuid::from_u128),
            ..VfRecord::default()
        }
    }

    fn nic(kind: NicKind) -> Nic {
        let mac = "52:54:00:00:00:01".to_owned();
        let model = "virtio".to_owned();
        Nic { kind, mac, model, target: None, is_exclusive: true, has_vlan: false }
    }

    fn vm(number: u128, on: &str, functions: &[&str]) -> VmRecord {
        let mut vm = records::vm(number, VmState::Start, Some(on));
        let mut domain = (**vm.domain.as_ref().unwrap()).clone();
        domain.nics =
            functions.iter().map(|name| nic(NicKind::Hostdev((*name).to_owned()))).collect();
        vm.domain = Ok(Arc::new(domain));
        vm
    }

    fn cluster(node: &NodeRecord, vms: Vec<VmRecord>) -> Cluster {
        let nodes = [(node.name.clone(), Arc::new(node.clone()))].into_iter().collect();
        let vms = vms.into_iter().map(|vm| (vm.uuid, Arc::new(vm))).collect();
        Cluster { nodes, vms, ..Cluster::default() }
    }

    fn node(vfs: &[(&str, Option<u128>)]) -> NodeRecord {
        let vfs = vfs.iter().map(|(name, by)| vf(name, *by)).collect();
        NodeRecord {
            sriov: SriovRecords { vfs, ..SriovRecords::default() },
            ..records::node("hv1")
        }
    }

    #[test]
    fn the_name_of_a_function_is_that_of_its_card_and_its_number() {
        assert_eq!(vf_parts("ens1f0v3"), Some(("ens1f0", 3)));
        assert_eq!(vf_parts(&vf_name("v1", 255)), Some(("v1", 255)));
        for other in ["ens1f0", "v3", "", "ens1f0v", "ens1f0v03", "ens1f0v256", "eth0", "ens1f0w3"]
        {
            assert_eq!(vf_parts(other), None, "{other}");
        }
    }

    #[test]
    fn a_pci_address_is_read_as_it_is_written_and_junk_is_none() {
        let address = PciAddress::parse("0000:3b:0a.1").unwrap();
        assert_eq!(address.parts(), (0, 0x3b, 0x0a, 1));
        assert_eq!(address.to_string(), "0000:3b:0a.1");
        assert_eq!(address.texts().address(), Some(address));
        for junk in ["", "0000:3b:0a", "0000:3b:20.0", "0000:3b:0a.8", "0000:+b:0a.1", "1:2:3:4.5"]
        {
            assert_eq!(PciAddress::parse(junk), None, "{junk}");
        }
    }

    #[test]
    fn a_macvtap_device_on_an_ordinary_device_takes_no_function() {
        let of = |kind| vf_of(&nic(kind)).map(str::to_owned);
        assert_eq!(of(NicKind::Direct("ens1f0v1".into())).as_deref(), Some("ens1f0v1"));
        assert_eq!(of(NicKind::Direct("eth0".into())), None);
        let shared = Nic { is_exclusive: false, ..nic(NicKind::Direct("ens1f0v1".into())) };
        assert_eq!(vf_of(&shared), None, "it has not got the device for itself");
        assert_eq!(of(NicKind::Hostdev(String::new())), None);
        assert_eq!(of(NicKind::Bridge("vmbr1".into())), None);
    }

    #[test]
    fn a_function_follows_its_vm_and_a_note_of_something_else_is_mended() {
        let notes = |node: &NodeRecord, vms| -> Vec<(String, Option<u128>)> {
            let cluster = cluster(node, vms);
            let uses = uses_to_note(&cluster, node, |_| false).into_iter();
            uses.map(|note| (note.vf, note.used_by.map(|by| by.as_u128()))).collect()
        };
        let noted = |vf: &str, by| (vf.to_owned(), by);
        let free = node(&[("ens1v0", None), ("ens1v1", None)]);
        assert_eq!(notes(&free, vec![vm(1, "hv1", &["ens1v1"])]), [noted("ens1v1", Some(1))]);
        let used = node(&[("ens1v0", None), ("ens1v1", Some(1))]);
        assert_eq!(notes(&used, vec![vm(1, "hv1", &["ens1v1"])]), []);
        assert_eq!(notes(&used, vec![vm(1, "hv2", &["ens1v1"])]), [noted("ens1v1", None)], "moved");
        assert_eq!(notes(&used, vec![]), [noted("ens1v1", None)], "removed");
        let mut leaving = used.clone();
        leaving.running = vec![Uuid::from_u128(1)];
        assert_eq!(notes(&leaving, vec![vm(1, "hv2", &["ens1v1"])]), [], "it is still here");
    }

    #[test]
    fn what_a_guest_still_has_is_not_free_although_its_vm_does_not_name_it_any_more() {
        let mut used = node(&[("ens1v1", Some(1))]);
        used.running = vec![Uuid::from_u128(1)];
        let cluster = cluster(&used, vec![vm(1, "hv1", &[]), vm(2, "hv1", &[])]);
        assert_eq!(uses_to_note(&cluster, &used, |_| true), []);
        let wanted = [nic(NicKind::Hostdev("ens1v1".into()))];
        let taken = check_functions(&cluster, &used, Uuid::from_u128(2), &wanted).unwrap_err();
        assert_eq!(
            taken.to_string(),
            "the SR-IOV function `ens1v1` of node `hv1` is used by VM `vm1`"
        );
        let freed = uses_to_note(&cluster, &used, |_| false);
        assert_eq!((freed[0].used_by, freed[0].mac.as_str()), (None, "02:00"), "it was detached");
    }

    #[test]
    fn a_vm_is_refused_no_device_that_only_is_called_like_a_function() {
        let vms = || vec![vm(1, "hv1", &["ens1v1"]), vm(2, "hv1", &[])];
        let taps = |name: &str| [nic(NicKind::Direct(name.into()))];
        let (first, second) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let mut node = node(&[("ens1v1", Some(1))]);
        let cluster = cluster(&node, vms());
        for name in ["priv0", "dev0", "lanv2", "ens9v1"] {
            assert_eq!(check_functions(&cluster, &node, first, &taps(name)), Ok(()), "{name}");
        }
        let tapped = taps("ens1v1");
        assert_eq!(check_functions(&cluster, &node, second, &tapped), Ok(()), "no card `ens1`");
        node.sriov.pfs.push(PfRecord { name: "ens1".to_owned(), ..PfRecord::default() });
        let used = check_functions(&cluster, &node, second, &tapped).unwrap_err();
        assert!(matches!(used, NoFunction::Used { .. }), "{used}");
    }

    #[test]
    fn a_note_of_a_vm_that_is_gone_or_elsewhere_keeps_nobody_from_a_function() {
        let node = node(&[("ens1v1", Some(2))]);
        let wanted = [nic(NicKind::Hostdev("ens1v1".into()))];
        let check = |other: Option<&str>| {
            let others = other.map(|on| vm(2, on, &["ens1v1"]));
            let cluster = cluster(&node, others.into_iter().collect());
            check_functions(&cluster, &node, Uuid::from_u128(1), &wanted)
        };
        assert_eq!((check(None), check(Some("hv2"))), (Ok(()), Ok(())));
        assert!(check(Some("hv1")).is_err());
    }

    #[test]
    fn of_two_vms_that_name_a_function_one_has_it() {
        let mut node = node(&[("ens1v1", Some(2))]);
        let both = || vec![vm(1, "hv1", &["ens1v1"]), vm(2, "hv1", &["ens1v1"])];
        let owner = |node: &NodeRecord| {
            let cluster = cluster(node, both());
            users(&cluster, node)["ens1v1"].vm.uuid.as_u128()
        };
        assert_eq!(owner(&node), 2, "it is noted");
        node.running = vec![Uuid::from_u128(1)];
        assert_eq!(owner(&node), 1, "its guest is there");
        let cluster = cluster(&node, both());
        let nics = [nic(NicKind::Hostdev("ens1v1".into()))];
        assert_eq!(check_functions(&cluster, &node, Uuid::from_u128(1), &nics), Ok(()));
        let error = check_functions(&cluster, &node, Uuid::from_u128(2), &nics).unwrap_err();
        assert!(matches!(error, NoFunction::Used { .. }), "{error}");
        let twice = [nics[0].clone(), nics[0].clone()];
        let error = check_functions(&cluster, &node, Uuid::from_u128(1), &twice).unwrap_err();
        assert_eq!(error, NoFunction::Twice { function: "ens1v1".into() });
        let none = [nic(NicKind::Hostdev("ens1v9".into()))];
        let error = check_new_functions(&cluster, &node, Uuid::from_u128(1), &none).unwrap_err();
        assert_eq!(error.to_string(), "node `hv1` has no SR-IOV function `ens1v9`");
        assert_eq!(check_functions(&cluster, &node, Uuid::from_u128(1), &none), Ok(()));
    }
}
