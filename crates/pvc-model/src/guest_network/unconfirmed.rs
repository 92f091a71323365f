//! Changes of networks that are taken back unless somebody confirms them in time: whoever cuts
//! their own way off cannot confirm.
//!
//! Such a change is recorded with what undoes it. Until it is confirmed or taken back the network
//! takes no other change, which the undoing would go over.

use super::acl::{AclChanges, insert_acls, take_acls};
use super::refusal::NetworkRefusal;
use super::request::{self, NetworkToRecord};
use crate::cluster::Cluster;
use crate::network::{AclRecord, NetworkOptions, NetworkRecord};
use crate::shown;

/// Seconds within which a change may be asked to be confirmed.
pub const SECONDS: std::ops::RangeInclusive<u32> = 5..=3600;

/// A change of a network that waits to be confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnconfirmedChange {
    /// Seconds from the change on, which every node counts by itself.
    pub seconds: u32,
    /// Time of the change, in seconds since the epoch by the wall clock of who made it: for people.
    pub changed_at: u64,
    pub undo: Undo,
}

/// A way to undo a change of a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undo {
    /// Writes the network as it was, without its leases and rules, and its options.
    Fields { record: Box<NetworkRecord>, options: NetworkOptions },
    /// Removes the rule with this description.
    RemoveRule(String),
    /// Adds these rules, at the places that they had.
    AddRules(Vec<AclRecord>),
}

/// A change that undoes another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undoing<'a> {
    Fields(Box<NetworkToRecord>),
    Rules(AclChanges<'a>),
    /// The change is undone already, or the network is gone.
    Nothing,
}

/// Whether a network may be changed.
///
/// # Errors
/// While another change of it waits to be confirmed.
pub fn check(cluster: &Cluster, record: &NetworkRecord) -> Result<(), NetworkRefusal> {
    match cluster.unconfirmed.get(&record.vni) {
        None => Ok(()),
        Some(_) => {
            let (vni, description) = (record.vni.clone(), shown(&record.description));
            Err(NetworkRefusal::Unconfirmed { vni, description })
        }
    }
}

/// The networks that there are, and those that come back if nobody confirms their change: no other
/// may have what they had.
pub(super) fn networks(cluster: &Cluster) -> impl Iterator<Item = &NetworkRecord> {
    let former = cluster.unconfirmed.values().filter_map(|change| match &change.undo {
        Undo::Fields { record, .. } => Some(record.as_ref()),
        Undo::RemoveRule(_) | Undo::AddRules(_) => None,
    });
    cluster.networks.values().map(AsRef::as_ref).chain(former)
}

/// A way to undo any change of a network's fields.
pub fn undo_of_fields(cluster: &Cluster, present: &NetworkRecord) -> Undo {
    let NetworkToRecord { record, options } = request::as_recorded(cluster, present);
    Undo::Fields { record: Box::new(record), options }
}

/// A way to undo the removal of rules.
///
/// # Errors
/// If only a part of one of them is recorded: what it was is not read, and cannot be put back.
pub fn undo_of_removal(removal: &AclChanges<'_>) -> Result<Undo, NetworkRefusal> {
    match removal.removed.iter().find(|acl| acl.is_half()) {
        None => Ok(Undo::AddRules(removal.removed.clone())),
        Some(half) => {
            let (vni, description) = (removal.network.vni.clone(), shown(&half.description));
            Err(NetworkRefusal::HalfRule { vni, description })
        }
    }
}

/// Decides how the change of a network that waits to be confirmed is undone.
pub fn undo<'a>(cluster: &'a Cluster, vni: &str, undo: &Undo) -> Undoing<'a> {
    let Some(network) = cluster.networks.get(vni) else { return Undoing::Nothing };
    match undo {
        Undo::Fields { record, options } => {
            let (record, options) = (record.as_ref().clone(), *options);
            Undoing::Fields(Box::new(NetworkToRecord { record, options }))
        }
        Undo::RemoveRule(description) => match take_acls(network, description) {
            Ok(changes) => Undoing::Rules(changes),
            Err(_) => Undoing::Nothing,
        },
        Undo::AddRules(rules) => {
            let is_there = |rule: &AclRecord| {
                network.acls.iter().any(|acl| acl.description == rule.description)
            };
            let missing: Vec<AclRecord> =
                rules.iter().filter(|rule| !is_there(rule)).cloned().collect();
            match missing.is_empty() {
                true => Undoing::Nothing,
                false => Undoing::Rules(insert_acls(network, missing)),
            }
        }
    }
}
