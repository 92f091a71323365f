//! Settings of a function: read from its record, and changed by an operator.

use std::fmt;
use std::sync::Arc;

use super::{VfConfig, VfRecord};
use crate::node::{NodeRecord, word};
use crate::refusal::Kind;
use crate::shown;

word! {
    /// State of the link that a function's guest sees: that of the card's, or always the same.
    VfLinkState { Auto = "auto", Enable = "enable", Disable = "disable" }
}

/// The largest number of a VLAN that a function can be in; 4095 is reserved.
pub const LAST_VLAN: u16 = 4094;

/// The highest priority of a VLAN's frames.
pub const LAST_QOS: u8 = 7;

/// A setting of a function, in the pieces in which the kernel takes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VfSetting {
    /// VLAN of its frames, 0 for none, and their priority.
    Vlan {
        id: u16,
        qos: u8,
    },
    /// In Mbit/s; 0 is no limit.
    Rates {
        min: u32,
        max: u32,
    },
    /// Whether the card drops what is sent from another MAC address.
    SpoofCheck(bool),
    LinkState(VfLinkState),
    /// Whether its guest may change its MAC address and hear what is for others.
    Trust(bool),
    /// Whether its guest may ask how the card spreads what it receives.
    QueryRss(bool),
}

fn on(flag: bool) -> &'static str {
    if flag { "on" } else { "off" }
}

/// A clause: `set its VLAN to 100 with priority 0`.
impl fmt::Display for VfSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VfSetting::Vlan { id, qos } => write!(f, "set its VLAN to {id} with priority {qos}"),
            VfSetting::Rates { min, max } => {
                write!(f, "set its rates to {min} and {max} Mbit/s")
            }
            VfSetting::SpoofCheck(flag) => write!(f, "switch its spoof check {}", on(*flag)),
            VfSetting::LinkState(state) => write!(f, "set its link state to `{state}`"),
            VfSetting::Trust(flag) => write!(f, "switch trust in it {}", on(*flag)),
            VfSetting::QueryRss(flag) => write!(f, "switch its queries for RSS {}", on(*flag)),
        }
    }
}

/// Settings of a function that are known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VfSettings {
    pub vlan: Option<(u16, u8)>,
    pub rates: Option<(u32, u32)>,
    pub spoof_check: Option<bool>,
    pub link_state: Option<VfLinkState>,
    pub trust: Option<bool>,
    pub query_rss: Option<bool>,
}

impl VfSettings {
    /// The settings that a record says, and what of it none can be. What it lacks or has wrong is
    /// no setting.
    pub fn read(config: &VfConfig) -> (VfSettings, Vec<String>) {
        let mut wrong = Vec::new();
        let vlan = number(&mut wrong, "vlan_id", &config.vlan_id, u32::from(LAST_VLAN));
        let qos = number(&mut wrong, "vlan_qos", &config.vlan_qos, u32::from(LAST_QOS));
        let min = number(&mut wrong, "tx_rate_min", &config.tx_rate_min, u32::MAX);
        let max = number(&mut wrong, "tx_rate_max", &config.tx_rate_max, u32::MAX);
        let rates = min.zip(max);
        if rates.is_some_and(|(min, max)| max > 0 && min > max) {
            wrong.push("`tx_rate_min` is above `tx_rate_max`".to_owned());
        }
        let settings = VfSettings {
            vlan: vlan
                .zip(qos)
                .and_then(|(id, qos)| Some((u16::try_from(id).ok()?, u8::try_from(qos).ok()?))),
            rates: rates.filter(|(min, max)| *max == 0 || min <= max),
            spoof_check: flag(&mut wrong, "spoof_check", &config.spoof_check),
            link_state: link_state(&mut wrong, &config.link_state),
            trust: flag(&mut wrong, "trust", &config.trust),
            query_rss: flag(&mut wrong, "query_rss", &config.query_rss),
        };
        (settings, wrong)
    }

    /// The texts in which they are recorded; what is not known is empty.
    pub fn texts(&self) -> VfConfig {
        let number = |number: Option<u32>| number.map(|n| n.to_string()).unwrap_or_default();
        let flag = |flag: Option<bool>| flag.map(flag_text).unwrap_or_default().to_owned();
        VfConfig {
            vlan_id: number(self.vlan.map(|(id, _)| id.into())),
            vlan_qos: number(self.vlan.map(|(_, qos)| qos.into())),
            tx_rate_min: number(self.rates.map(|(min, _)| min)),
            tx_rate_max: number(self.rates.map(|(_, max)| max)),
            spoof_check: flag(self.spoof_check),
            link_state: self.link_state.as_ref().map_or_else(String::new, ToString::to_string),
            trust: flag(self.trust),
            query_rss: flag(self.query_rss),
        }
    }

    /// The settings that make a function with the settings `seen` one with these.
    pub fn missing_in(&self, seen: &VfSettings) -> Vec<VfSetting> {
        let mut missing = Vec::new();
        if let Some((id, qos)) = self.vlan.filter(|_| self.vlan != seen.vlan) {
            missing.push(VfSetting::Vlan { id, qos });
        }
        if let Some((min, max)) = self.rates.filter(|_| self.rates != seen.rates) {
            missing.push(VfSetting::Rates { min, max });
        }
        if let Some(flag) = self.spoof_check.filter(|_| self.spoof_check != seen.spoof_check) {
            missing.push(VfSetting::SpoofCheck(flag));
        }
        if let Some(state) = self.link_state.clone().filter(|_| self.link_state != seen.link_state)
        {
            missing.push(VfSetting::LinkState(state));
        }
        if let Some(flag) = self.trust.filter(|_| self.trust != seen.trust) {
            missing.push(VfSetting::Trust(flag));
        }
        if let Some(flag) = self.query_rss.filter(|_| self.query_rss != seen.query_rss) {
            missing.push(VfSetting::QueryRss(flag));
        }
        missing
    }
}

fn number(wrong: &mut Vec<String>, key: &str, text: &str, most: u32) -> Option<u32> {
    let is_missing = text.is_empty() || text == "None";
    let number = text.parse().ok().filter(|number| *number <= most);
    if number.is_none() && !is_missing {
        wrong.push(format!("`{key}` is `{}`, not a number from 0 to {most}", shown(text)));
    }
    number
}

fn flag(wrong: &mut Vec<String>, key: &str, text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "on" | "yes" | "y" | "t" | "1" => Some(true),
        "false" | "off" | "no" | "n" | "f" | "0" => Some(false),
        "" | "none" => None,
        _ => {
            wrong.push(format!("`{key}` is `{}`, not `True` or `False`", shown(text)));
            None
        }
    }
}

fn link_state(wrong: &mut Vec<String>, text: &str) -> Option<VfLinkState> {
    match VfLinkState::from_record(text) {
        VfLinkState::Unknown(word) if word.is_empty() || &*word == "None" => None,
        VfLinkState::Unknown(word) => {
            let one_of = "`auto`, `enable` or `disable`";
            wrong.push(format!("`link_state` is `{}`, not {one_of}", shown(&word)));
            None
        }
        known => Some(known),
    }
}

fn flag_text(flag: bool) -> &'static str {
    if flag { "True" } else { "False" }
}

/// Fields of a function's settings that an operator gives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VfFields {
    pub vlan_id: Option<u32>,
    pub vlan_qos: Option<u32>,
    pub tx_rate_min: Option<u32>,
    pub tx_rate_max: Option<u32>,
    pub link_state: Option<VfLinkState>,
    pub spoof_check: Option<bool>,
    pub trust: Option<bool>,
    pub query_rss: Option<bool>,
}

/// Reason why a function's settings are not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VfRefusal {
    #[error("there is no node `{node}`")]
    NoNode { node: String },
    #[error("node `{node}` has no SR-IOV function `{vf}`")]
    NoVf { node: String, vf: String },
    #[error("nothing is to be changed")]
    NothingGiven,
    #[error("VLAN {id} is not one of 1 to {LAST_VLAN}, nor 0 for none")]
    BadVlan { id: u32 },
    #[error("priority {qos} is not one of 0 to {LAST_QOS}")]
    BadQos { qos: u32 },
    #[error("the least rate, {min} Mbit/s, is above the highest, {max} Mbit/s")]
    BadRates { min: u32, max: u32 },
    #[error("`{word}` is no state of a link")]
    BadLinkState { word: String },
}

impl VfRefusal {
    pub fn kind(&self) -> Kind {
        match self {
            VfRefusal::NoNode { .. } | VfRefusal::NoVf { .. } => Kind::NotFound,
            _ => Kind::Invalid,
        }
    }

    pub fn hint(&self) -> Option<String> {
        Some(match self {
            VfRefusal::NoNode { .. } => "`pvc node list` shows the nodes".to_owned(),
            VfRefusal::NoVf { node, .. } => {
                format!("`pvc network sriov vf list {node}` shows those that it has")
            }
            VfRefusal::NothingGiven => {
                "name a setting, such as `--vlan-id` (API: `vlan_id`)".to_owned()
            }
            VfRefusal::BadRates { .. } => "0 as the highest rate is no limit".to_owned(),
            VfRefusal::BadLinkState { .. } => {
                "`auto`, `enable` and `disable` are such states".to_owned()
            }
            VfRefusal::BadVlan { .. } | VfRefusal::BadQos { .. } => return None,
        })
    }
}

/// The settings of VF `vf` of a node after a change.
///
/// # Errors
/// If there is no such VF, nothing is given, or the card could not be set so. What is wrong in the
/// record already and is not given is left as it is.
pub fn change<'a>(
    node: &'a NodeRecord,
    vf: &str,
    fields: &VfFields,
) -> Result<(&'a VfRecord, VfConfig), VfRefusal> {
    let record = node
        .sriov
        .vf(vf)
        .ok_or_else(|| VfRefusal::NoVf { node: node.name.to_string(), vf: shown(vf) })?;
    if *fields == VfFields::default() {
        return Err(VfRefusal::NothingGiven);
    }
    if let Some(id) = fields.vlan_id.filter(|id| *id > u32::from(LAST_VLAN)) {
        return Err(VfRefusal::BadVlan { id });
    }
    if let Some(qos) = fields.vlan_qos.filter(|qos| *qos > u32::from(LAST_QOS)) {
        return Err(VfRefusal::BadQos { qos });
    }
    if let Some(VfLinkState::Unknown(word)) = &fields.link_state {
        return Err(VfRefusal::BadLinkState { word: shown(word) });
    }
    let mut config = record.config.clone();
    let put = |text: &mut String, value: Option<String>| {
        if let Some(value) = value {
            *text = value;
        }
    };
    let number = |number: Option<u32>| number.map(|number| number.to_string());
    let flag = |flag: Option<bool>| flag.map(|flag| flag_text(flag).to_owned());
    put(&mut config.vlan_id, number(fields.vlan_id));
    put(&mut config.vlan_qos, number(fields.vlan_qos));
    put(&mut config.tx_rate_min, number(fields.tx_rate_min));
    put(&mut config.tx_rate_max, number(fields.tx_rate_max));
    put(&mut config.spoof_check, flag(fields.spoof_check));
    put(&mut config.link_state, fields.link_state.as_ref().map(ToString::to_string));
    put(&mut config.trust, flag(fields.trust));
    put(&mut config.query_rss, flag(fields.query_rss));
    // One without the other is no setting: the card's own is completed with nothing.
    if fields.vlan_id.is_some() || fields.vlan_qos.is_some() {
        complete(&mut config.vlan_id);
        complete(&mut config.vlan_qos);
    }
    if fields.tx_rate_min.is_some() || fields.tx_rate_max.is_some() {
        complete(&mut config.tx_rate_min);
        complete(&mut config.tx_rate_max);
        let rate = |text: &str| text.parse().unwrap_or_default();
        let (min, max) = (rate(&config.tx_rate_min), rate(&config.tx_rate_max));
        if max > 0 && min > max {
            return Err(VfRefusal::BadRates { min, max });
        }
    }
    Ok((record, config))
}

/// A number that is missing or none is 0.
fn complete(text: &mut String) {
    if text.parse::<u32>().is_err() {
        *text = "0".to_owned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records;
    use crate::sriov::SriovRecords;

    fn usual() -> VfConfig {
        let text = |text: &str| text.to_owned();
        VfConfig {
            vlan_id: text("100"),
            vlan_qos: text("3"),
            tx_rate_min: text("0"),
            tx_rate_max: text("1000"),
            spoof_check: text("True"),
            link_state: text("auto"),
            trust: text("False"),
            query_rss: text("False"),
        }
    }

    fn node(config: VfConfig) -> NodeRecord {
        let vf = VfRecord { name: "ens1v0".to_owned(), config, ..VfRecord::default() };
        NodeRecord {
            sriov: SriovRecords { pfs: Vec::new(), vfs: vec![vf] },
            ..records::node("hv1")
        }
    }

    #[test]
    fn settings_are_read_as_they_are_written_and_only_what_differs_is_set() {
        let (settings, wrong) = VfSettings::read(&usual());
        assert_eq!((settings.texts(), wrong), (usual(), Vec::new()));
        assert_eq!(settings.missing_in(&settings), []);
        let mut seen = settings.clone();
        (seen.vlan, seen.link_state) = (Some((100, 0)), Some(VfLinkState::Disable));
        let expected =
            [VfSetting::Vlan { id: 100, qos: 3 }, VfSetting::LinkState(VfLinkState::Auto)];
        assert_eq!(settings.missing_in(&seen), expected);
        assert_eq!(settings.missing_in(&VfSettings::default()).len(), 6, "nothing is known");
        assert_eq!(VfSettings::default().missing_in(&settings), [], "nothing is said");
    }

    #[test]
    fn of_a_record_with_half_of_its_keys_or_with_junk_the_rest_is_a_setting() {
        let (settings, wrong) =
            VfSettings::read(&VfConfig { trust: "True".into(), ..VfConfig::default() });
        assert_eq!(settings, VfSettings { trust: Some(true), ..VfSettings::default() });
        assert_eq!(wrong, [""; 0]);
        let junk = VfConfig {
            vlan_id: "4096".into(),
            tx_rate_min: "9".into(),
            tx_rate_max: "5".into(),
            link_state: "up".into(),
            spoof_check: "perhaps".into(),
            ..usual()
        };
        let (settings, wrong) = VfSettings::read(&junk);
        assert_eq!((settings.vlan, settings.rates, settings.spoof_check), (None, None, None));
        assert_eq!(settings.trust, Some(false));
        assert_eq!(wrong.len(), 4, "{wrong:?}");
        assert_eq!(wrong[0], "`vlan_id` is `4096`, not a number from 0 to 4094");
    }

    #[test]
    fn what_a_card_cannot_be_set_to_is_refused_and_what_is_not_given_stays() {
        let node = node(usual());
        let change = |fields: VfFields| change(&node, "ens1v0", &fields).map(|(_, config)| config);
        let none = VfFields::default;
        assert_eq!(change(none()), Err(VfRefusal::NothingGiven));
        for (fields, why) in [
            (
                VfFields { vlan_id: Some(4096), ..none() },
                "VLAN 4096 is not one of 1 to 4094, nor 0 for none",
            ),
            (VfFields { vlan_qos: Some(8), ..none() }, "priority 8 is not one of 0 to 7"),
            (
                VfFields { tx_rate_min: Some(1001), ..none() },
                "the least rate, 1001 Mbit/s, is above the highest, 1000 Mbit/s",
            ),
            (
                VfFields { link_state: Some(VfLinkState::from_record("up")), ..none() },
                "`up` is no state of a link",
            ),
        ] {
            assert_eq!(change(fields).unwrap_err().to_string(), why);
        }
        let changed = change(VfFields {
            vlan_id: Some(7),
            tx_rate_min: Some(2000),
            tx_rate_max: Some(0),
            trust: Some(true),
            ..none()
        })
        .unwrap();
        assert_eq!(
            changed,
            VfConfig {
                vlan_id: "7".into(),
                tx_rate_min: "2000".into(),
                tx_rate_max: "0".into(),
                trust: "True".into(),
                ..usual()
            }
        );
        let missing = super::change(&node, "ens1v1", &none()).unwrap_err();
        assert_eq!(missing.to_string(), "node `hv1` has no SR-IOV function `ens1v1`");
        assert_eq!(missing.kind(), Kind::NotFound);
    }

    #[test]
    fn a_change_of_a_record_with_half_of_its_keys_completes_what_belongs_together() {
        let node = node(VfConfig::default());
        let fields = VfFields { vlan_id: Some(7), ..VfFields::default() };
        let (_, config) = change(&node, "ens1v0", &fields).unwrap();
        let expected =
            VfConfig { vlan_id: "7".into(), vlan_qos: "0".into(), ..VfConfig::default() };
        assert_eq!(config, expected);
    }
}
