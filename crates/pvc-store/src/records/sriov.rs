//! Cards and their functions, part of a node's record: `/nodes/{name}/sriov` (`spec/zookeeper.md`
//! §4.2).

use bytes::Bytes;
use pvc_model::sriov::{PciTexts, PfRecord, SriovRecords, VfConfig, VfRecord, VfUse, vf_parts};
use pvc_model::{NodeName, Uuid};

use super::node::root;
use crate::draft::Draft;
use crate::reader::{Reader, python_bool};

const PF: &str = "sriov/pf";
const VF: &str = "sriov/vf";

/// The keys below those of a function: most records have none of them.
pub(super) const NAMES: &[&str] = &[
    "vfcount",
    "pf",
    "vf",
    "mtu",
    "mac",
    "phy_mac",
    "config",
    "pci",
    "used",
    "used_by",
    "vlan_id",
    "vlan_qos",
    "tx_rate_min",
    "tx_rate_max",
    "spoof_check",
    "link_state",
    "trust",
    "query_rss",
    "domain",
    "bus",
    "slot",
    "function",
];

/// The keys of a function that lie in it and in its two parts.
pub(super) const KEYS_OF_FUNCTION: usize = 21;

pub(super) fn read(r: &mut Reader<'_>) -> SriovRecords {
    let pfs = r.list(PF, |r, name| PfRecord {
        name: name.to_owned(),
        mtu: r.text("mtu"),
        vfcount: r.text("vfcount"),
    });
    let mut vfs = r.list(VF, |r, name| VfRecord {
        name: name.to_owned(),
        pf: r.text("pf"),
        mtu: r.text("mtu"),
        mac: r.text("mac"),
        phy_mac: r.text("phy_mac"),
        config: VfConfig {
            vlan_id: r.text("config/vlan_id"),
            vlan_qos: r.text("config/vlan_qos"),
            tx_rate_min: r.text("config/tx_rate_min"),
            tx_rate_max: r.text("config/tx_rate_max"),
            spoof_check: r.text("config/spoof_check"),
            link_state: r.text("config/link_state"),
            trust: r.text("config/trust"),
            query_rss: r.text("config/query_rss"),
        },
        pci: PciTexts {
            domain: r.text("pci/domain"),
            bus: r.text("pci/bus"),
            slot: r.text("pci/slot"),
            function: r.text("pci/function"),
        },
        used: r.flag("used"),
        used_by: Uuid::try_parse(r.text("used_by").trim()).ok(),
    });
    vfs.sort_by(|one, other| order(&one.name).cmp(&order(&other.name)));
    SriovRecords { pfs, vfs }
}

/// By the card, and its functions by their numbers.
fn order(name: &str) -> (&str, Option<u32>, &str) {
    match vf_parts(name) {
        Some((pf, index)) => (pf, Some(index), name),
        None => (name, None, name),
    }
}

/// Writes a value if it is another than the one that was seen, and else demands that one.
fn put_new(draft: &mut Draft<'_>, path: String, value: String) {
    let is_same = draft.seen().text(&path).is_some_and(|text| text == value.as_str());
    if !is_same || draft.check(path.clone()).is_err() {
        draft.put_deep(path, value);
    }
}

/// Path of an entry of one of the two lists, which are made where they are missing; `None` if the
/// node is gone.
fn entry(draft: &mut Draft<'_>, node: &NodeName, list: &str, name: &str) -> Option<String> {
    let root = root(node);
    draft.demand(root.clone()).then(|| format!("{root}/{list}/{name}"))
}

fn put_entry(draft: &mut Draft<'_>, path: &str) {
    if !draft.seen().contains(path) {
        draft.put_deep(path.to_owned(), Bytes::new());
    }
}

pub(crate) fn put_pf(draft: &mut Draft<'_>, node: &NodeName, pf: &PfRecord) {
    let Some(path) = entry(draft, node, PF, &pf.name) else { return };
    put_entry(draft, &path);
    put_new(draft, format!("{path}/mtu"), pf.mtu.clone());
    put_new(draft, format!("{path}/vfcount"), pf.vfcount.clone());
}

pub(crate) fn remove_pf(draft: &mut Draft<'_>, node: &NodeName, pf: &str) {
    if let Some(path) = entry(draft, node, PF, pf) {
        draft.delete(&path);
    }
}

/// Writes a function, new or not, but for who uses it: of one that is there only what changes, as
/// legacy peers act on each write; the rest must be as it was seen.
pub(crate) fn put_vf(draft: &mut Draft<'_>, node: &NodeName, vf: &VfRecord) {
    let Some(path) = entry(draft, node, VF, &vf.name) else { return };
    put_entry(draft, &path);
    for (key, value) in
        [("pf", &vf.pf), ("mtu", &vf.mtu), ("mac", &vf.mac), ("phy_mac", &vf.phy_mac)]
    {
        put_new(draft, format!("{path}/{key}"), value.clone());
    }
    put_config(draft, &path, &vf.config);
    let pci = &vf.pci;
    for (key, value) in [
        ("domain", &pci.domain),
        ("bus", &pci.bus),
        ("slot", &pci.slot),
        ("function", &pci.function),
    ] {
        put_new(draft, format!("{path}/pci/{key}"), value.clone());
    }
    let used = python_bool(vf.used).to_owned();
    let used_by = vf.used_by.map(|by| by.to_string()).unwrap_or_default();
    for (key, value) in [("used", used), ("used_by", used_by)] {
        let path = format!("{path}/{key}");
        if !draft.seen().contains(&path) {
            draft.put_deep(path, value);
        }
    }
}

fn put_config(draft: &mut Draft<'_>, path: &str, config: &VfConfig) {
    for (key, value) in [
        ("vlan_id", &config.vlan_id),
        ("vlan_qos", &config.vlan_qos),
        ("tx_rate_min", &config.tx_rate_min),
        ("tx_rate_max", &config.tx_rate_max),
        ("spoof_check", &config.spoof_check),
        ("link_state", &config.link_state),
        ("trust", &config.trust),
        ("query_rss", &config.query_rss),
    ] {
        put_new(draft, format!("{path}/config/{key}"), value.clone());
    }
}

/// Writes the settings of a function that is there.
pub(crate) fn configure_vf(draft: &mut Draft<'_>, node: &NodeName, vf: &str, config: &VfConfig) {
    if let Some(path) = entry(draft, node, VF, vf)
        && draft.demand(path.clone())
    {
        put_config(draft, &path, config);
    }
}

/// Writes who uses a function that is there. Of two who claim it at once, the later one decides
/// again.
pub(crate) fn note_use(draft: &mut Draft<'_>, node: &NodeName, note: &VfUse) {
    let Some(path) = entry(draft, node, VF, &note.vf) else { return };
    if !draft.demand(path.clone()) {
        return;
    }
    draft.put(format!("{path}/used"), python_bool(note.used_by.is_some()));
    let used_by = note.used_by.map(|by| by.to_string()).unwrap_or_default();
    draft.put(format!("{path}/used_by"), used_by);
    if !note.mac.is_empty() {
        draft.put(format!("{path}/mac"), note.mac.clone());
    }
}

pub(crate) fn remove_vf(draft: &mut Draft<'_>, node: &NodeName, vf: &str) {
    if let Some(path) = entry(draft, node, VF, vf) {
        // Whoever has claimed it meanwhile has it.
        let used = format!("{path}/used");
        draft.delete_as_seen(&path, &[&used]);
    }
}
