//! Steps of a node about its cards: on the cards themselves, and on their records.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::settings::{VfSetting, VfSettings};
use super::{
    MOST_FUNCTIONS, PciAddress, PfRecord, VfConfig, VfRecord, VfUse, VfUser, users, uses_to_note,
    vf_name,
};
use crate::cluster::Cluster;
use crate::link::{LinkKind, Links, Mac, mac_text};
use crate::node::NodeRecord;

/// A card as the configuration wants it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// Name of its network interface.
    pub name: String,
    /// `None` leaves it as it is.
    pub mtu: Option<u32>,
    /// Number of its functions.
    pub functions: u32,
}

/// A card as the kernel has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CardSeen {
    /// The most functions that it can have; 0 of an interface that is no such card.
    pub most_functions: u32,
    /// Its functions by number, whoever uses them.
    pub functions: Vec<FunctionSeen>,
}

/// A function as the kernel has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionSeen {
    pub index: u32,
    pub pci: PciAddress,
    /// Its network interface; `None` while a guest has it.
    pub link: Option<String>,
    pub mac: Option<Mac>,
    pub settings: VfSettings,
}

/// Cards by name; `None` if this machine has no interface of that name.
pub type CardsSeen = BTreeMap<String, Option<CardSeen>>;

/// A step on a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CardStep {
    /// Has the card, which has none, make so many functions.
    MakeFunctions {
        card: String,
        count: u32,
    },
    SetMtu {
        link: String,
        mtu: u32,
    },
    SwitchOn {
        link: String,
    },
    Set {
        card: String,
        index: u32,
        setting: VfSetting,
    },
}

/// A clause that reads on after "it failed to".
impl fmt::Display for CardStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CardStep::MakeFunctions { card, count } => {
                write!(f, "make {count} functions of `{card}`")
            }
            CardStep::SetMtu { link, mtu } => write!(f, "set the MTU of `{link}` to {mtu}"),
            CardStep::SwitchOn { link } => write!(f, "switch `{link}` on"),
            CardStep::Set { card, index, setting } => {
                write!(f, "{setting} (function {index} of `{card}`)")
            }
        }
    }
}

/// Something of a card that is not as it should be and that no step mends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CardFinding {
    NoCard,
    /// The interface is not that of a card with functions.
    NoFunctions,
    TooMany {
        most: u32,
        wanted: u32,
    },
    /// All would be made anew, under whoever uses them: their number is left.
    CountKept {
        has: u32,
        wanted: u32,
    },
    /// Settings of a function that no card can have.
    BadSettings {
        vf: String,
        wrong: Vec<String>,
    },
    /// A function that a VM has, or whose guest is there, and that the card has not.
    FunctionGone {
        vf: String,
    },
}

impl fmt::Display for CardFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CardFinding::NoCard => f.write_str("this machine has no such network interface"),
            CardFinding::NoFunctions => {
                f.write_str("it is no card with SR-IOV functions, or they are switched off")
            }
            CardFinding::TooMany { most, wanted } => {
                write!(f, "it can have {most} functions, not {wanted}")
            }
            CardFinding::CountKept { has, wanted } => write!(
                f,
                "it keeps its {has} functions instead of {wanted}: all would be made anew, under \
                 whoever uses them; set the number by hand, or reboot the node"
            ),
            CardFinding::BadSettings { vf, wrong } => {
                write!(
                    f,
                    "the record of function `{vf}` is left where it is wrong: {}",
                    wrong.join("; ")
                )
            }
            CardFinding::FunctionGone { vf } => {
                write!(f, "a VM has function `{vf}`, and the card does not have it")
            }
        }
    }
}

/// Steps and findings, by card.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CardsPlan {
    /// In the order in which they are to be taken.
    pub steps: BTreeMap<String, Vec<CardStep>>,
    pub findings: BTreeMap<String, Vec<CardFinding>>,
}

/// The VFs that some guest has, as the kernel shows it: a function without an interface is passed
/// through, and one with a macvtap device on its interface serves a guest by it.
pub fn held(seen: &CardsSeen, links: &Links) -> BTreeSet<String> {
    let tapped: BTreeSet<&str> = links
        .values()
        .filter(|link| matches!(&link.kind, LinkKind::Other(kind) if kind == "macvtap"))
        .filter_map(|link| link.lies_on.as_deref())
        .collect();
    let mut held = BTreeSet::new();
    for (card, seen) in seen {
        for function in seen.iter().flat_map(|seen| &seen.functions) {
            if function.link.as_deref().is_none_or(|link| tapped.contains(link)) {
                held.insert(vf_name(card, function.index));
            }
        }
    }
    held
}

/// The steps that make the cards what the configuration and the records say. `node` is this node's
/// record, if it is known: without it nothing is set that only records say. A number of functions
/// is changed that is 0, and no other.
pub fn plan(
    cards: &[Card],
    seen: &CardsSeen,
    links: &Links,
    node: Option<(&Cluster, &NodeRecord)>,
) -> CardsPlan {
    let mut plan = CardsPlan::default();
    let users = node.map(|(cluster, node)| users(cluster, node)).unwrap_or_default();
    for card in cards {
        let mut steps = Vec::new();
        let mut findings = Vec::new();
        match seen.get(&card.name).and_then(Option::as_ref) {
            None => findings.push(CardFinding::NoCard),
            Some(_) if !links.contains_key(&card.name) => findings.push(CardFinding::NoCard),
            Some(found) => {
                count(card, found, &mut steps, &mut findings);
                let is_remade = !steps.is_empty();
                of_link(&card.name, card.mtu, links, &mut steps);
                if let Some((_, node)) = node.filter(|_| !is_remade) {
                    let (more, wrong) = of_functions(card, found, links, node, &users);
                    steps.extend(more);
                    findings.extend(wrong);
                }
                for vf in users.keys().filter(|vf| is_of(vf, card) && !has(found, &card.name, vf)) {
                    findings.push(CardFinding::FunctionGone { vf: (*vf).to_owned() });
                }
            }
        }
        if !steps.is_empty() {
            plan.steps.insert(card.name.clone(), steps);
        }
        if !findings.is_empty() {
            plan.findings.insert(card.name.clone(), findings);
        }
    }
    plan
}

fn is_of(vf: &str, card: &Card) -> bool {
    super::vf_parts(vf).is_some_and(|(pf, _)| pf == card.name)
}

fn has(seen: &CardSeen, card: &str, vf: &str) -> bool {
    seen.functions.iter().any(|function| vf_name(card, function.index) == vf)
}

fn count(card: &Card, seen: &CardSeen, steps: &mut Vec<CardStep>, findings: &mut Vec<CardFinding>) {
    let wanted = card.functions;
    let has = u32::try_from(seen.functions.len()).unwrap_or(u32::MAX);
    let most = seen.most_functions.min(MOST_FUNCTIONS);
    if has == wanted {
        return;
    }
    if most == 0 {
        findings.push(CardFinding::NoFunctions);
    } else if wanted > most {
        findings.push(CardFinding::TooMany { most, wanted });
    } else if has > 0 {
        findings.push(CardFinding::CountKept { has, wanted });
    } else {
        steps.push(CardStep::MakeFunctions { card: card.name.clone(), count: wanted });
    }
}

fn of_link(name: &str, mtu: Option<u32>, links: &Links, steps: &mut Vec<CardStep>) {
    let Some(link) = links.get(name) else { return };
    if let Some(mtu) = mtu.filter(|mtu| *mtu != link.mtu) {
        steps.push(CardStep::SetMtu { link: name.to_owned(), mtu });
    }
    if !link.up {
        steps.push(CardStep::SwitchOn { link: name.to_owned() });
    }
}

fn of_functions(
    card: &Card,
    seen: &CardSeen,
    links: &Links,
    node: &NodeRecord,
    users: &BTreeMap<&str, VfUser<'_>>,
) -> (Vec<CardStep>, Vec<CardFinding>) {
    let (mut steps, mut findings) = (Vec::new(), Vec::new());
    for function in &seen.functions {
        let name = vf_name(&card.name, function.index);
        let Some(record) = node.sriov.vf(&name) else { continue };
        let (mut wanted, wrong) = VfSettings::read(&record.config);
        // What the XML itself says the hypervisor has set.
        if users.get(name.as_str()).is_some_and(|user| user.nic.has_vlan) {
            wanted.vlan = None;
        }
        if !wrong.is_empty() {
            findings.push(CardFinding::BadSettings { vf: name, wrong });
        }
        let link = function.link.as_ref().and_then(|link| links.get(link));
        let mtu: Option<u32> = record.mtu.parse().ok();
        if let (Some(link), Some(mtu)) = (link, mtu)
            && link.mtu != mtu
        {
            steps.push(CardStep::SetMtu { link: link.name.clone(), mtu });
        }
        let set =
            |setting| CardStep::Set { card: card.name.clone(), index: function.index, setting };
        steps.extend(wanted.missing_in(&function.settings).into_iter().map(set));
    }
    (steps, findings)
}

/// A change of this node's records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordStep {
    PutPf(PfRecord),
    RemovePf(String),
    PutVf(VfRecord),
    RemoveVf(String),
    Note(VfUse),
}

/// The changes that make the records of a node say what there is. Settings that are recorded stay;
/// a function is forgotten only if the configuration has no place for it, the card has not got it,
/// and no VM has it: a card that shows none may be about to make them.
pub fn records(
    cards: &[Card],
    seen: &CardsSeen,
    links: &Links,
    cluster: &Cluster,
    node: &NodeRecord,
) -> Vec<RecordStep> {
    let mut steps = Vec::new();
    let mut present = BTreeSet::new();
    for card in cards {
        let link = links.get(&card.name);
        let recorded = node.sriov.pf(&card.name);
        let found_mtu = || {
            let recorded = recorded.map(|pf| pf.mtu.clone()).filter(|mtu| !mtu.is_empty());
            link.map(|link| link.mtu.to_string()).or(recorded).unwrap_or_default()
        };
        let pf = PfRecord {
            name: card.name.clone(),
            mtu: card.mtu.map_or_else(found_mtu, |mtu| mtu.to_string()),
            vfcount: card.functions.to_string(),
        };
        if recorded != Some(&pf) {
            steps.push(RecordStep::PutPf(pf.clone()));
        }
        let Some(Some(seen)) = seen.get(&card.name) else { continue };
        for function in &seen.functions {
            let name = vf_name(&card.name, function.index);
            let recorded = node.sriov.vf(&name);
            let record = record(&name, &pf, function, recorded);
            if recorded != Some(&record) {
                steps.push(RecordStep::PutVf(record));
            }
            present.insert(name);
        }
    }
    let is_configured = |pf: &str| cards.iter().any(|card| card.name == pf);
    let gone = node.sriov.pfs.iter().filter(|pf| !is_configured(&pf.name));
    steps.extend(gone.map(|pf| RecordStep::RemovePf(pf.name.clone())));
    let users = users(cluster, node);
    let held = held(seen, links);
    for vf in node.sriov.vfs.iter().filter(|vf| !present.contains(&vf.name)) {
        let answers = matches!(seen.get(&vf.pf), Some(Some(_)));
        let has_no_place = cards.iter().filter(|card| card.name == vf.pf).any(|card| {
            super::vf_parts(&vf.name).is_some_and(|(_, index)| index >= card.functions)
        });
        if answers && has_no_place && !users.contains_key(vf.name.as_str()) {
            steps.push(RecordStep::RemoveVf(vf.name.clone()));
        }
    }
    let removed = |vf: &str| steps.contains(&RecordStep::RemoveVf(vf.to_owned()));
    let notes = uses_to_note(cluster, node, |vf| held.contains(vf));
    let notes: Vec<RecordStep> =
        notes.into_iter().filter(|note| !removed(&note.vf)).map(RecordStep::Note).collect();
    steps.extend(notes);
    steps
}

/// The record of a function: what it lacks is as the card has it, and where it lies is as it is.
fn record(
    name: &str,
    pf: &PfRecord,
    function: &FunctionSeen,
    recorded: Option<&VfRecord>,
) -> VfRecord {
    let mut record = recorded.cloned().unwrap_or_default();
    name.clone_into(&mut record.name);
    pf.name.clone_into(&mut record.pf);
    record.pci = function.pci.texts();
    let mac = function.mac.map(mac_text).unwrap_or_default();
    let fill = |text: &mut String, value: String| {
        if text.is_empty() {
            *text = value;
        }
    };
    fill(&mut record.mtu, pf.mtu.clone());
    fill(&mut record.phy_mac, mac.clone());
    fill(&mut record.mac, mac);
    let VfConfig {
        vlan_id,
        vlan_qos,
        tx_rate_min,
        tx_rate_max,
        spoof_check,
        link_state,
        trust,
        query_rss,
    } = function.settings.texts();
    let config = &mut record.config;
    for (text, value) in [
        (&mut config.vlan_id, vlan_id),
        (&mut config.vlan_qos, vlan_qos),
        (&mut config.tx_rate_min, tx_rate_min),
        (&mut config.tx_rate_max, tx_rate_max),
        (&mut config.spoof_check, spoof_check),
        (&mut config.link_state, link_state),
        (&mut config.trust, trust),
        (&mut config.query_rss, query_rss),
    ] {
        fill(text, value);
    }
    record
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::link::Link;
    use crate::records as calm;
    use crate::sriov::SriovRecords;
    use crate::sriov::settings::VfLinkState;

    fn link(name: &str, mtu: u32) -> (String, Link) {
        let link = Link {
            name: name.to_owned(),
            kind: LinkKind::Device,
            mtu,
            up: true,
            carrier: true,
            master: None,
            lies_on: None,
            alias: None,
            mac: None,
            addresses: BTreeSet::new(),
        };
        (name.to_owned(), link)
    }

    fn function(index: u32, link: Option<&str>) -> FunctionSeen {
        FunctionSeen {
            index,
            pci: PciAddress { domain: 0, bus: 0x3b, slot: 2, function: index as u8 },
            link: link.map(str::to_owned),
            mac: Some([2, 0, 0, 0, 0, index as u8]),
            settings: VfSettings {
                vlan: Some((0, 0)),
                rates: Some((0, 0)),
                spoof_check: Some(true),
                link_state: Some(VfLinkState::Auto),
                trust: Some(false),
                query_rss: Some(false),
            },
        }
    }

    fn seen(functions: Vec<FunctionSeen>) -> CardsSeen {
        [("ens1".to_owned(), Some(CardSeen { most_functions: 8, functions }))].into()
    }

    fn card(functions: u32, mtu: Option<u32>) -> Vec<Card> {
        vec![Card { name: "ens1".to_owned(), mtu, functions }]
    }

    /// The records that a first look at the cards makes.
    fn recorded(cards: &[Card], seen: &CardsSeen, links: &Links) -> NodeRecord {
        let mut node = calm::node("hv1");
        for step in records(cards, seen, links, &Cluster::default(), &node.clone()) {
            match step {
                RecordStep::PutPf(pf) => node.sriov.pfs.push(pf),
                RecordStep::PutVf(vf) => node.sriov.vfs.push(vf),
                other => panic!("{other:?}"),
            }
        }
        node
    }

    fn two() -> (CardsSeen, Links) {
        let functions = vec![function(0, Some("ens1v0")), function(1, Some("ens1v1"))];
        (seen(functions), [link("ens1", 1500), link("ens1v0", 1500), link("ens1v1", 1500)].into())
    }

    #[test]
    fn a_card_gets_its_functions_once_and_keeps_those_that_it_has() {
        let links: Links = [link("ens1", 1500)].into();
        let steps = |cards: &[Card], seen: &CardsSeen, links: &Links| {
            let node = calm::node("hv1");
            plan(cards, seen, links, Some((&Cluster::default(), &node)))
        };
        let made = steps(&card(2, Some(9000)), &seen(vec![]), &links);
        let expected = [
            CardStep::MakeFunctions { card: "ens1".into(), count: 2 },
            CardStep::SetMtu { link: "ens1".into(), mtu: 9000 },
        ];
        assert_eq!(made.steps["ens1"], expected);
        let (have_two, links) = two();
        assert_eq!(steps(&card(2, None), &have_two, &links), CardsPlan::default());
        let passed = seen(vec![function(0, None), function(1, Some("ens1v1"))]);
        for (seen, wanted) in [(&passed, 4), (&have_two, 4), (&have_two, 1), (&have_two, 0)] {
            let kept = steps(&card(wanted, None), seen, &links);
            assert_eq!(kept.findings["ens1"], [CardFinding::CountKept { has: 2, wanted }]);
            assert_eq!(kept.steps.len(), 0, "the host itself may use them");
        }
        for (cards, seen, found) in [
            (card(9, None), have_two.clone(), CardFinding::TooMany { most: 8, wanted: 9 }),
            (card(1, None), [("ens1".into(), None)].into(), CardFinding::NoCard),
            (
                card(1, None),
                [("ens1".into(), Some(CardSeen::default()))].into(),
                CardFinding::NoFunctions,
            ),
        ] {
            assert_eq!(steps(&cards, &seen, &links).findings["ens1"], [found]);
        }
    }

    #[test]
    fn a_record_is_made_of_what_the_card_has_and_then_the_card_follows_it() {
        let (seen, links) = two();
        let cards = card(2, Some(1500));
        let mut node = recorded(&cards, &seen, &links);
        let made = &node.sriov.vfs[1];
        assert_eq!((made.name.as_str(), made.pf.as_str()), ("ens1v1", "ens1"));
        assert_eq!(
            (made.mac.as_str(), made.phy_mac.as_str()),
            ("02:00:00:00:00:01", "02:00:00:00:00:01")
        );
        assert_eq!(made.pci.address().unwrap().to_string(), "0000:3b:02.1");
        assert_eq!(made.config.spoof_check, "True");
        let nothing = Cluster::default();
        assert_eq!(records(&cards, &seen, &links, &nothing, &node), [], "they survive a restart");
        node.sriov.vfs[1].config.vlan_id = "100".to_owned();
        node.sriov.vfs[1].mtu = "9000".to_owned();
        assert_eq!(records(&cards, &seen, &links, &nothing, &node), [], "and what is set does");
        let plan = plan(&cards, &seen, &links, Some((&nothing, &node)));
        let set = CardStep::Set {
            card: "ens1".into(),
            index: 1,
            setting: VfSetting::Vlan { id: 100, qos: 0 },
        };
        assert_eq!(
            plan.steps["ens1"],
            [CardStep::SetMtu { link: "ens1v1".into(), mtu: 9000 }, set]
        );
    }

    #[test]
    fn a_function_that_a_guest_has_has_no_interface_and_keeps_its_record_and_settings() {
        let (with_links, links) = two();
        let cards = card(2, None);
        let mut node = recorded(&cards, &with_links, &links);
        node.sriov.vfs[0].config.trust = "True".to_owned();
        let passed = seen(vec![function(0, None), function(1, Some("ens1v1"))]);
        let nothing = Cluster::default();
        assert_eq!(records(&cards, &passed, &links, &nothing, &node), []);
        let plan = plan(&cards, &passed, &links, Some((&nothing, &node)));
        assert_eq!(plan.steps["ens1"].len(), 1, "{plan:?}");
        let mut taps: Links = links.clone();
        let (name, mut tap) = link("macvtap0", 1500);
        (tap.kind, tap.lies_on) = (LinkKind::Other("macvtap".into()), Some("ens1v1".into()));
        taps.insert(name, tap);
        assert_eq!(held(&passed, &taps), ["ens1v0".to_owned(), "ens1v1".to_owned()].into());
        assert_eq!(held(&with_links, &links), [].into());
    }

    #[test]
    fn a_record_of_a_function_goes_only_if_there_is_no_place_for_it_and_no_vm_has_it() {
        let (have_two, links) = two();
        let node = recorded(&card(2, None), &have_two, &links);
        let removed = |cards: &[Card], seen: &CardsSeen, cluster: &Cluster| {
            let steps = records(cards, seen, &links, cluster, &node).into_iter();
            let name = |step| match step {
                RecordStep::RemovePf(name) | RecordStep::RemoveVf(name) => Some(name),
                _ => None,
            };
            steps.filter_map(name).collect::<Vec<_>>()
        };
        let nothing = Cluster::default();
        let none = CardsSeen::new();
        assert_eq!(removed(&[], &none, &nothing), ["ens1"], "its functions may come back");
        assert_eq!(removed(&card(2, None), &seen(vec![]), &nothing), [""; 0], "they are made anew");
        assert_eq!(removed(&card(1, None), &have_two, &nothing), [""; 0], "it is there");
        assert_eq!(removed(&card(2, None), &none, &nothing), [""; 0], "it does not answer");
        let one = seen(vec![function(0, Some("ens1v0"))]);
        assert_eq!(removed(&card(1, None), &one, &nothing), ["ens1v1"]);
        let mut vm = calm::vm(1, crate::vm::VmState::Stop, Some("hv1"));
        let mut domain = (**vm.domain.as_ref().unwrap()).clone();
        domain.nics = vec![crate::domain::Nic {
            kind: crate::domain::NicKind::Hostdev("ens1v1".into()),
            mac: String::new(),
            model: String::new(),
            target: None,
            is_exclusive: false,
            has_vlan: true,
        }];
        vm.domain = Ok(Arc::new(domain));
        let vms = [(vm.uuid, Arc::new(vm))].into_iter().collect();
        let with_vm = Cluster { vms, ..Cluster::default() };
        assert_eq!(removed(&card(1, None), &one, &with_vm), [""; 0]);
        let mut own_vlan = node.clone();
        own_vlan.sriov.vfs[1].config.vlan_id = "100".to_owned();
        let set = |cluster: &Cluster| {
            plan(&card(2, None), &have_two, &links, Some((cluster, &own_vlan))).steps.len()
        };
        assert_eq!((set(&nothing), set(&with_vm)), (1, 0), "its XML has a VLAN of its own");
        let plan = plan(&card(1, None), &one, &links, Some((&with_vm, &node)));
        let gone = CardFinding::FunctionGone { vf: "ens1v1".into() };
        assert_eq!(plan.findings["ens1"], [gone]);
    }

    #[test]
    fn a_record_with_half_of_its_keys_is_completed_and_junk_is_said() {
        let (seen, links) = two();
        let cards = card(2, None);
        let mut node = recorded(&cards, &seen, &links);
        let whole = node.sriov.clone();
        node.sriov.vfs[0] = VfRecord {
            name: "ens1v0".into(),
            config: VfConfig { vlan_id: "4096".into(), ..VfConfig::default() },
            ..VfRecord::default()
        };
        let nothing = Cluster::default();
        let mut completed = whole.vfs[0].clone();
        completed.config.vlan_id = "4096".into();
        let steps = records(&cards, &seen, &links, &nothing, &node);
        assert_eq!(steps, [RecordStep::PutVf(completed)]);
        node.sriov = SriovRecords { pfs: whole.pfs, ..node.sriov };
        let plan = plan(&cards, &seen, &links, Some((&nothing, &node)));
        let text = plan.findings["ens1"][0].to_string();
        assert!(text.contains("`vlan_id` is `4096`"), "{text}");
        assert_eq!(plan.steps.len(), 0);
    }
}
