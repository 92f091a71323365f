//! Last fencing of a node: `/pvcrs/fences/{node}` with JSON, ours alone. It is shown as a part of
//! the node's record.

use pvc_model::fence::{FenceNote, PowerAfter};
use serde::{Deserialize, Serialize};

use crate::draft::Draft;
use crate::raw::Raw;
use crate::reader::json;

pub(super) const ROOT: &str = "/pvcrs/fences";

pub(crate) fn path(node: &str) -> String {
    format!("{ROOT}/{node}")
}

/// `None` if there is no such note, or none that can be read.
pub(super) fn read(raw: &Raw, node: &str) -> Option<FenceNote> {
    json(raw, &path(node)).and_then(|text| note_from(&text))
}

pub(crate) fn put(draft: &mut Draft<'_>, node: &str, note: &FenceNote) {
    draft.put_deep(path(node), text(note));
}

#[derive(Serialize, Deserialize)]
struct Fence {
    #[serde(default)]
    stamp: Option<i32>,
    by: String,
    suspected_at: i64,
    proven_at: Option<i64>,
    #[serde(default)]
    proof: String,
    #[serde(default)]
    failed_attempts: u32,
    #[serde(default)]
    last_failure: String,
    #[serde(default)]
    recovered: Vec<String>,
    #[serde(default)]
    stranded: Vec<String>,
    #[serde(default)]
    power: String,
}

const DUE: &str = "due";
const SWITCHED_ON: &str = "switched on";

pub(crate) fn text(note: &FenceNote) -> String {
    let power = match note.power {
        PowerAfter::Untouched => "",
        PowerAfter::Due => DUE,
        PowerAfter::SwitchedOn => SWITCHED_ON,
    };
    let fence = Fence {
        stamp: note.stamp,
        by: note.by.clone(),
        suspected_at: note.suspected_at,
        proven_at: note.proven_at,
        proof: note.proof.clone(),
        failed_attempts: note.failed_attempts,
        last_failure: note.last_failure.clone(),
        recovered: note.recovered.clone(),
        stranded: note.stranded.clone(),
        power: power.to_owned(),
    };
    serde_json::to_string(&fence).expect("strings and numbers always have a JSON form")
}

fn note_from(text: &str) -> Option<FenceNote> {
    let fence: Fence = serde_json::from_str(text).ok()?;
    let power = match fence.power.as_str() {
        DUE => PowerAfter::Due,
        SWITCHED_ON => PowerAfter::SwitchedOn,
        _ => PowerAfter::Untouched,
    };
    Some(FenceNote {
        stamp: fence.stamp,
        by: fence.by,
        suspected_at: fence.suspected_at,
        proven_at: fence.proven_at,
        proof: fence.proof,
        failed_attempts: fence.failed_attempts,
        last_failure: fence.last_failure,
        recovered: fence.recovered,
        stranded: fence.stranded,
        power,
    })
}
