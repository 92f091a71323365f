//! The note of the node that sends a VM on its latest move: `/pvcrs/moves/{uuid}` with JSON, ours
//! alone. It is shown as a part of the VM's record.

use std::collections::BTreeSet;

use pvc_model::vm::moving::{MoveNote, MovePhase};
use pvc_model::{NodeName, Uuid};
use pvc_ports::Op;
use serde::{Deserialize, Serialize};

use super::vm;
use crate::draft::Draft;
use crate::error::StoreError;
use crate::raw::Raw;
use crate::reader::json;
use crate::store::{Store, flat, is_conflict};

pub(super) const ROOT: &str = "/pvcrs/moves";

pub(crate) fn path(vm: Uuid) -> String {
    format!("{ROOT}/{vm}")
}

/// `None` if there is no such note, or none that can be read: then nothing was handed over.
pub(super) fn read(raw: &Raw, vm: Uuid) -> Option<MoveNote> {
    json(raw, &path(vm)).and_then(|text| note_from(&text))
}

pub(crate) fn put(draft: &mut Draft<'_>, vm: Uuid, note: &MoveNote) {
    draft.put_deep(path(vm), text(note));
}

impl Store {
    /// Removes what is noted about moves of VMs that have no record any more: legacy peers remove a
    /// record without its note, and a sender may write its last word late. Returns their number.
    /// The last move of a VM that is there stays.
    pub async fn remove_lost_move_notes(&self) -> Result<usize, StoreError> {
        if self.with_raw(lost_move_notes).is_empty() {
            return Ok(0);
        }
        self.fresh().await?;
        let mut removed = 0;
        for (path, version) in self.with_raw(lost_move_notes) {
            let delete = Op::Delete { path: path.clone(), version: Some(version) };
            match self.tree.multi(vec![delete]).await.map_err(flat) {
                Ok(_) => removed += 1,
                // Somebody else was faster, or writes it anew.
                Err(StoreError::Tree(error)) if is_conflict(&error) => {}
                Err(error) => return Err(error),
            }
            self.refresh(vec![path]).await?;
        }
        Ok(removed)
    }
}

/// With the versions that they have.
fn lost_move_notes(raw: &Raw) -> Vec<(String, i32)> {
    let vms = raw.children(ROOT).into_iter().filter_map(|name| Uuid::try_parse(&name).ok());
    let lost = vms.filter(|vm| !raw.contains(&vm::root(*vm))).map(path);
    lost.filter_map(|path| raw.get(&path).map(|note| note.version).map(|version| (path, version)))
        .collect()
}

#[derive(Serialize, Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Note {
    from: String,
    to: String,
    incarnation: i64,
    request: i32,
    held: bool,
    phase: String,
    attempt: u32,
    seconds: u64,
    total_bytes: u64,
    processed_bytes: u64,
    remaining_bytes: u64,
    why: String,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    left_on: BTreeSet<String>,
}

pub(crate) fn text(note: &MoveNote) -> String {
    let note = Note {
        from: note.from.to_string(),
        to: note.to.to_string(),
        incarnation: note.incarnation,
        request: note.request,
        held: note.held,
        phase: note.phase.as_str().to_owned(),
        attempt: note.attempt,
        seconds: note.seconds,
        total_bytes: note.total_bytes,
        processed_bytes: note.processed_bytes,
        remaining_bytes: note.remaining_bytes,
        why: note.why.clone(),
        left_on: note.left_on.iter().map(ToString::to_string).collect(),
    };
    serde_json::to_string(&note).expect("strings and numbers always have a JSON form")
}

fn note_from(text: &str) -> Option<MoveNote> {
    let note: Note = serde_json::from_str(text).ok()?;
    Some(MoveNote {
        from: NodeName::new(note.from),
        to: NodeName::new(note.to),
        incarnation: note.incarnation,
        request: note.request,
        held: note.held,
        phase: MovePhase::parse(&note.phase)?,
        attempt: note.attempt,
        seconds: note.seconds,
        total_bytes: note.total_bytes,
        processed_bytes: note.processed_bytes,
        remaining_bytes: note.remaining_bytes,
        why: note.why,
        left_on: note.left_on.into_iter().map(NodeName::new).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again_and_anything_else_is_no_note() {
        let note = MoveNote {
            from: NodeName::new("hv1"),
            to: NodeName::new("hv2"),
            incarnation: 1 << 40,
            request: 12,
            held: true,
            phase: MovePhase::Copying,
            attempt: 2,
            seconds: 7,
            total_bytes: 100,
            processed_bytes: 60,
            remaining_bytes: 40,
            why: "said \"no\"".to_owned(),
            left_on: [NodeName::new("hv3")].into(),
        };
        assert_eq!(note_from(&text(&note)), Some(note));
        for junk in ["", "{}", "null", "[1]", "{\"phase\":\"odd\"}", "\u{fffd}"] {
            assert_eq!(note_from(junk), None, "{junk}");
        }
    }
}
