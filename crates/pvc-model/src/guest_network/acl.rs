//! Rules that an operator gives to the firewall of a network.
//!
//! Their orders are dense: the rules of a direction have those from 0 on. What came from legacy
//! peers and is not so becomes so with the next change.

use super::refusal::NetworkRefusal;
use super::request::{check_label, find};
use super::{rules, unconfirmed};
use crate::cluster::Cluster;
use crate::network::{AclRecord, Direction, NetworkRecord};
use crate::shown;

/// A rule that is to be added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewAcl {
    pub direction: Direction,
    /// Place that it is to have; `None` for behind all others.
    pub order: Option<u32>,
    pub description: String,
    pub rule: String,
}

/// Change of the rules of a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AclChanges<'a> {
    pub network: &'a NetworkRecord,
    pub added: Vec<AclRecord>,
    pub removed: Vec<AclRecord>,
    /// Rules that stay and get another order, with it.
    pub moved: Vec<AclRecord>,
}

/// The most rules of a direction.
const MOST_RULES: usize = 1000;

/// The most bytes of a rule.
const LONGEST_RULE: usize = 4096;

/// Decides on a rule that is to be added.
///
/// # Errors
/// What is wrong with it.
pub fn add_acl<'a>(
    cluster: &'a Cluster,
    network: &str,
    new: &NewAcl,
) -> Result<AclChanges<'a>, NetworkRefusal> {
    let record = find(cluster, network)?;
    unconfirmed::check(cluster, record)?;
    if record.nettype != "managed" {
        return Err(NetworkRefusal::NotManaged { what: "acl" });
    }
    check_label(&new.description).map_err(|why| NetworkRefusal::BadDescription { why })?;
    let rule = check_rule(&new.rule)?;
    let vni = record.vni.clone();
    if let Some(there) = record.acls.iter().find(|acl| acl.description == new.description) {
        let (description, direction) = (new.description.clone(), there.direction.as_str());
        return Err(NetworkRefusal::RuleExists { vni, description, direction });
    }
    let rules = of_direction(record, new.direction);
    if rules.len() >= MOST_RULES {
        return Err(NetworkRefusal::ManyRules { vni, count: rules.len() });
    }
    check_room(cluster, rule)?;
    let at = new.order.and_then(|order| usize::try_from(order).ok());
    let at = at.map_or(rules.len(), |at| at.min(rules.len()));
    let added = AclRecord {
        direction: new.direction,
        order: u32::try_from(at).expect("there are few rules"),
        description: new.description.clone(),
        rule: rule.to_owned(),
    };
    Ok(insert_acls(record, vec![added]))
}

/// The change that puts `added`, none of which is there, at their places among a network's rules.
pub(super) fn insert_acls(record: &NetworkRecord, added: Vec<AclRecord>) -> AclChanges<'_> {
    let is_added = |rule: &AclRecord| added.iter().any(|acl| acl.description == rule.description);
    let (mut placed, mut moved) = (Vec::new(), Vec::new());
    for direction in [Direction::In, Direction::Out] {
        let mut rules = of_direction(record, direction);
        let mut new: Vec<_> = added.iter().filter(|acl| acl.direction == direction).collect();
        new.sort_by_key(|acl| acl.order);
        for acl in &new {
            let at = usize::try_from(acl.order).map_or(rules.len(), |at| at.min(rules.len()));
            rules.insert(at, acl);
        }
        let in_order = (0..).zip(&rules).map(|(order, acl)| AclRecord { order, ..(*acl).clone() });
        placed.extend(in_order.filter(|rule| is_added(rule)));
        moved.extend(renumbered(&rules).filter(|rule| !is_added(rule)));
    }
    AclChanges { network: record, added: placed, removed: Vec::new(), moved }
}

/// Whether nodes load a rule beside all that there are: of more, a network with many rules would be
/// loaded by halves.
fn check_room(cluster: &Cluster, rule: &str) -> Result<(), NetworkRefusal> {
    let managed = cluster.networks.values().filter(|network| network.nettype == "managed");
    let present = managed.flat_map(|network| &network.acls).map(|acl| acl.rule.len()).sum();
    let (added, most) = (rule.len(), rules::MOST_ACL_BYTES);
    match added <= most.saturating_sub(present) {
        true => Ok(()),
        false => Err(NetworkRefusal::RulesTooLarge { present, added, most }),
    }
}

/// Decides on the removal of the rule with this description, in either direction.
///
/// # Errors
/// If there is none.
pub fn remove_acl<'a>(
    cluster: &'a Cluster,
    network: &str,
    description: &str,
) -> Result<AclChanges<'a>, NetworkRefusal> {
    let record = find(cluster, network)?;
    unconfirmed::check(cluster, record)?;
    take_acls(record, description)
}

/// The change that takes the rules with this description from a network.
pub(super) fn take_acls<'a>(
    record: &'a NetworkRecord,
    description: &str,
) -> Result<AclChanges<'a>, NetworkRefusal> {
    let is_meant = |acl: &&AclRecord| acl.description == description;
    let removed: Vec<AclRecord> = record.acls.iter().filter(is_meant).cloned().collect();
    if removed.is_empty() {
        let (vni, description) = (record.vni.clone(), shown(description));
        return Err(NetworkRefusal::NoRule { vni, description });
    }
    let mut moved = Vec::new();
    for direction in removed.iter().map(|acl| acl.direction) {
        let mut rules = of_direction(record, direction);
        rules.retain(|acl| !is_meant(acl));
        moved.extend(renumbered(&rules));
    }
    Ok(AclChanges { network: record, added: Vec::new(), removed, moved })
}

/// The rules of a direction in their order.
fn of_direction(record: &NetworkRecord, direction: Direction) -> Vec<&AclRecord> {
    let mut rules: Vec<&AclRecord> =
        record.acls.iter().filter(|acl| acl.direction == direction).collect();
    rules.sort_by_key(|acl| acl.order);
    rules
}

/// Returns those of `rules` whose order is not their place among them, with that as their order. A
/// rule of which only a part is recorded gets none, with which it might be whole.
fn renumbered(rules: &[&AclRecord]) -> impl Iterator<Item = AclRecord> {
    let placed = (0..).zip(rules.iter().copied());
    placed
        .filter(|(order, acl)| acl.order != *order && !acl.is_half())
        .map(|(order, acl)| AclRecord { order, ..acl.clone() })
}

/// Reason why a text is not recorded as a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadRule {
    #[error("it is empty")]
    Empty,
    #[error("it has more than {} KiB", LONGEST_RULE >> 10)]
    TooLong,
    #[error("it has a character that is not ASCII, which legacy peers cannot read")]
    NotAscii,
    #[error("it has no verdict: `accept`, `drop`, `reject` or the like")]
    NoVerdict,
    #[error("`{0}` changes addresses, which the kernel does in no chain of a filter")]
    ChangesAddresses(String),
    #[error(transparent)]
    NotTaken(#[from] rules::BadRule),
}

/// Words without one of which a rule does nothing.
const VERDICTS: [&str; 8] =
    ["accept", "drop", "reject", "return", "continue", "log", "queue", "set"];

/// Words of rules that change addresses. `nft --check` lets them pass in a chain of a filter, where
/// the kernel refuses them.
const ADDRESS_CHANGES: [&str; 6] = ["snat", "dnat", "masquerade", "redirect", "tproxy", "synproxy"];

/// The word by which a rule changes addresses, if it does: not where it is one of the values that a
/// packet is compared with, as in `ct status dnat` and `icmp type { redirect, echo-request }`.
fn address_change(rule: &str) -> Option<&str> {
    let (mut depth, mut before) = (0_usize, "");
    // Whether a value may stand here, or only behind a sign.
    let (mut is_compared, mut takes_value) = (false, false);
    for token in rules::Tokens(rule) {
        match token {
            "{" => depth += 1,
            "}" => depth = depth.saturating_sub(1),
            _ if depth > 0 => {}
            "status" | "type" if matches!(before, "ct" | "icmp" | "icmpv6") => {
                (is_compared, takes_value) = (true, true);
            }
            "," | "|" | "&" | "(" | "==" | "!=" if is_compared => takes_value = true,
            ")" if is_compared => {}
            _ if ADDRESS_CHANGES.contains(&token) && !takes_value => return Some(token),
            _ => (is_compared, takes_value) = (is_compared && takes_value, false),
        }
        before = token;
    }
    None
}

/// Whether a text is one rule, a match and a verdict, as far as can be told without nft. What is
/// recorded anew is held to more than what is [loaded](rules::check_rule). Returns it without the
/// spaces around it and the comment behind it.
///
/// # Errors
/// Why not.
pub fn check_rule(text: &str) -> Result<&str, BadRule> {
    if text.len() > LONGEST_RULE {
        return Err(BadRule::TooLong);
    }
    if !text.is_ascii() {
        return Err(BadRule::NotAscii);
    }
    let rule = rules::check_rule(text)?;
    if rule.is_empty() {
        return Err(BadRule::Empty);
    }
    if let Some(word) = address_change(rule) {
        return Err(BadRule::ChangesAddresses(word.to_owned()));
    }
    // Of what stands between quotes every second part is outside of them.
    let mut words = rule.split('"').step_by(2).flat_map(|part| {
        part.split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '-' | '.'))
    });
    match words.any(|word| VERDICTS.contains(&word)) {
        true => Ok(rule),
        false => Err(BadRule::NoVerdict),
    }
}
