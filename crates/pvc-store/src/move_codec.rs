//! What a node says of a VM's latest move: JSON, ours alone.

use pvc_model::NodeName;
use pvc_model::vm::moving::{MoveNote, MovePhase};
use serde::{Deserialize, Serialize};

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
    };
    serde_json::to_string(&note).expect("strings and numbers always have a JSON form")
}

/// `None` if there is no such note, or none that can be read: then nothing was handed over.
pub(crate) fn read(text: &str) -> Option<MoveNote> {
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
        };
        assert_eq!(read(&text(&note)), Some(note));
        for junk in ["", "{}", "null", "[1]", "{\"phase\":\"odd\"}", "\u{fffd}"] {
            assert_eq!(read(junk), None, "{junk}");
        }
    }
}
