//! Changes of networks that wait to be confirmed: `/pvcrs/unconfirmed/{vni}` with JSON, ours alone.
//!
//! Legacy peers that remove a network leave them behind: one that was written before its network
//! was made is that of a former one.

use std::collections::BTreeMap;
use std::sync::Arc;

use pvc_model::guest_network::unconfirmed::{UnconfirmedChange, Undo};
use pvc_model::network::{AclRecord, Direction, NetworkOptions};
use serde::{Deserialize, Serialize};

use super::{Kind, PLAIN, RECORD, bytes_at, network, update};
use crate::draft::Draft;
use crate::feed::EventKind;
use crate::raw::Raw;
use crate::reader::{MOST_JSON, json};

const ROOT: &str = "/pvcrs/unconfirmed";

pub(super) const KIND: Kind = Kind {
    roots: &[ROOT],
    base: &[(ROOT, "")],
    record: |key| key.first().map(str::to_owned),
    read: |raw, _, vni| {
        let (record, vni) = (read(raw, vni).map(Arc::new), vni.to_owned());
        let event = EventKind::Network(vni.clone());
        // A network is not gone with it.
        Box::new(move |view| update(&mut view.unconfirmed, vni, record).map(|_| (event, false)))
    },
    weight: |raw, _, vni| RECORD + bytes_at(raw.place(ROOT), vni).min(MOST_JSON),
    // What is under way is not what a restore brings back.
    is_observed: |_| true,
    is_for_scripts: |_| true,
    ..PLAIN
};

#[derive(Serialize, Deserialize)]
struct Written {
    seconds: u32,
    #[serde(default)]
    changed_at: u64,
    undo: WrittenUndo,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WrittenUndo {
    /// The keys of the network with their values, its description under the empty one.
    Fields {
        keys: BTreeMap<String, String>,
        masquerade: bool,
        spoof_guard: bool,
    },
    RemoveRule(String),
    AddRules(Vec<WrittenRule>),
}

#[derive(Serialize, Deserialize)]
struct WrittenRule {
    direction: String,
    order: u32,
    description: String,
    rule: String,
}

fn path(vni: &str) -> String {
    format!("{ROOT}/{vni}")
}

fn read(raw: &Raw, vni: &str) -> Option<UnconfirmedChange> {
    let (path, network) = (path(vni), raw.get(&network::root(vni))?);
    raw.get(&path).filter(|change| change.mzxid >= network.czxid)?;
    let Written { seconds, changed_at, undo } = serde_json::from_str(&json(raw, &path)?).ok()?;
    let undo = match undo {
        WrittenUndo::Fields { keys, masquerade, spoof_guard } => Undo::Fields {
            record: Box::new(network::from_texts(vni, &keys)?),
            options: NetworkOptions { masquerade, spoof_guard },
        },
        WrittenUndo::RemoveRule(description) => Undo::RemoveRule(description),
        WrittenUndo::AddRules(rules) => {
            Undo::AddRules(rules.into_iter().map(rule).collect::<Option<_>>()?)
        }
    };
    Some(UnconfirmedChange { seconds, changed_at, undo })
}

fn rule(WrittenRule { direction, order, description, rule }: WrittenRule) -> Option<AclRecord> {
    let known = [Direction::In, Direction::Out];
    let direction = known.into_iter().find(|known| known.as_str() == direction)?;
    Some(AclRecord { direction, order, description, rule })
}

/// Writes the change that waits. If there is another, of which the decision did not know, one
/// decides again.
pub(crate) fn put(draft: &mut Draft<'_>, vni: &str, change: &UnconfirmedChange) {
    let undo = match &change.undo {
        Undo::Fields { record, options: NetworkOptions { masquerade, spoof_guard } } => {
            let keys = network::texts(record);
            WrittenUndo::Fields { keys, masquerade: *masquerade, spoof_guard: *spoof_guard }
        }
        Undo::RemoveRule(description) => WrittenUndo::RemoveRule(description.clone()),
        Undo::AddRules(rules) => WrittenUndo::AddRules(rules.iter().map(written).collect()),
    };
    let UnconfirmedChange { seconds, changed_at, .. } = *change;
    let text = serde_json::to_string(&Written { seconds, changed_at, undo });
    draft.put_deep(path(vni), text.expect("texts and numbers are JSON"));
}

/// Expects that no change waits beside the one that is drafted. What a former network has left
/// behind is no such change.
pub(crate) fn expect_none(draft: &mut Draft<'_>, vni: &str) {
    let path = path(vni);
    if !draft.seen().contains(&path) {
        draft.note_absent(path);
    }
}

fn written(acl: &AclRecord) -> WrittenRule {
    WrittenRule {
        direction: acl.direction.as_str().to_owned(),
        order: acl.order,
        description: acl.description.clone(),
        rule: acl.rule.clone(),
    }
}

pub(crate) fn remove(draft: &mut Draft<'_>, vni: &str) {
    draft.delete(&path(vni));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::raw_of;

    #[test]
    fn a_change_that_nobody_understands_is_none() {
        let read_back = |text: &str| {
            let network = (network::root("7"), "web".to_owned());
            read(&raw_of([network, (path("7"), text.to_owned())]), "7")
        };
        let remove = read_back(r#"{"seconds":60,"undo":{"remove_rule":"ssh"},"more":1}"#);
        assert_eq!(remove.expect("it is one").undo, Undo::RemoveRule("ssh".to_owned()));
        for text in [
            "",
            "{}",
            r#"{"seconds":60}"#,
            r#"{"seconds":-1,"undo":{"remove_rule":"ssh"}}"#,
            r#"{"seconds":60,"undo":{"fields":{"keys":{},"masquerade":true,"spoof_guard":true}}}"#,
            r#"{"seconds":60,"undo":{"add_rules":[{"direction":"up","order":0,"description":"a","rule":"b"}]}}"#,
            r#"{"seconds":60,"undo":{"forget":"ssh"}}"#,
        ] {
            assert_eq!(read_back(text), None, "{text}");
        }
    }

    #[test]
    fn a_change_of_a_network_that_is_gone_is_none() {
        let text = r#"{"seconds":60,"undo":{"remove_rule":"ssh"}}"#.to_owned();
        assert_eq!(read(&raw_of([(path("7"), text)]), "7"), None);
    }
}
