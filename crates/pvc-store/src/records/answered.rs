//! Last answer of the storage: `/pvcrs/storage_answered` with JSON, ours alone. Whoever asks the
//! storage writes it.

use std::collections::BTreeMap;
use std::sync::Arc;

use pvc_model::NodeName;
use pvc_model::answered::{AnsweredRecord, Question};
use serde::{Deserialize, Serialize};

use super::{Kind, PLAIN};
use crate::feed::EventKind;
use crate::raw::Raw;
use crate::reader::json;

pub(crate) const PATH: &str = "/pvcrs/storage_answered";

pub(super) const KIND: Kind = Kind {
    roots: &[PATH],
    base: &[(PATH, "")],
    record: |key| key.is_root().then(String::new),
    read: |raw, _, _| {
        let record = read(raw).map(Arc::new);
        Box::new(move |view| {
            let is_changed = record != view.answered;
            view.answered = record;
            is_changed.then_some((EventKind::Cluster, false))
        })
    },
    is_observed: |_| true,
    // Once a minute nobody is told that the cluster has changed.
    is_quiet: true,
    is_for_scripts: |_| true,
    ..PLAIN
};

#[derive(Serialize, Deserialize)]
struct Written {
    node: String,
    /// Words of the questions, with seconds since the epoch.
    answered: BTreeMap<String, u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    silent: Vec<String>,
}

fn read(raw: &Raw) -> Option<AnsweredRecord> {
    let written: Written = serde_json::from_str(&json(raw, PATH)?).ok()?;
    let moment = |(word, at): (String, u64)| Some((Question::parse(&word)?, at));
    Some(AnsweredRecord {
        by: NodeName::new(written.node),
        at: written.answered.into_iter().filter_map(moment).collect(),
        silent: written.silent.iter().filter_map(|word| Question::parse(word)).collect(),
    })
}

pub(crate) fn text(record: &AnsweredRecord) -> String {
    let written = Written {
        node: record.by.to_string(),
        answered: record.at.iter().map(|(question, at)| (question.to_string(), *at)).collect(),
        silent: record.silent.iter().map(ToString::to_string).collect(),
    };
    serde_json::to_string(&written).expect("texts and whole numbers")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::reader::raw_of;

    fn read_back(text: &str) -> Option<AnsweredRecord> {
        read(&raw_of([(PATH.to_owned(), text.to_owned())]))
    }

    #[test]
    fn moments_read_back_as_they_were_written() {
        let record = AnsweredRecord {
            by: NodeName::new("hv1"),
            at: Question::ALL.into_iter().map(|question| (question, 1_795_735_755)).collect(),
            silent: BTreeSet::from([Question::Osds]),
        };
        assert_eq!(read_back(&text(&record)), Some(record));
    }

    #[test]
    fn questions_of_a_later_release_are_left_out_and_what_is_no_record_is_none() {
        let later =
            r#"{"node":"hv1","answered":{"status":7,"of_tomorrow":8},"silent":["x"],"y":1}"#;
        let record = read_back(later).expect("it is one");
        assert_eq!(record.at, BTreeMap::from([(Question::Status, 7)]));
        assert_eq!(record.silent, BTreeSet::new());
        for text in ["", "{}", "[]", r#"{"node":"hv1","answered":{"status":-1}}"#] {
            assert_eq!(read_back(text), None, "{text}");
        }
    }
}
