//! What a daemon says of itself and of what its guests run with, and how a node was fenced: JSON,
//! ours alone.

use pvc_model::fence::{FenceNote, PowerAfter};
use pvc_model::node::{DaemonNote, HypervisorNote};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Note {
    said_by: String,
    #[serde(default)]
    storage_address: Option<String>,
    /// Not there in notes from before it was asked: only a hypervisor wrote those.
    #[serde(default)]
    runs_guests: Option<bool>,
    /// Not there in notes of daemons that do not.
    #[serde(default)]
    takes_held_guests: bool,
    #[serde(default)]
    stamps_while_starting: bool,
    /// Not there while that is not known, as with all that follows.
    #[serde(default)]
    accelerator: Option<String>,
    #[serde(default)]
    kvm_refused: Option<String>,
    #[serde(default)]
    libvirt_version: String,
    #[serde(default)]
    qemu_version: String,
}

pub(crate) fn text(daemon: &DaemonNote, hypervisor: Option<&HypervisorNote>) -> String {
    let version =
        |of: fn(&HypervisorNote) -> &String| hypervisor.map(of).cloned().unwrap_or_default();
    let note = Note {
        said_by: daemon.version.clone(),
        storage_address: daemon.storage_address.clone(),
        runs_guests: Some(daemon.runs_guests),
        takes_held_guests: daemon.takes_held_guests,
        stamps_while_starting: daemon.stamps_while_starting,
        accelerator: hypervisor.map(|note| note.accelerator.clone()),
        kvm_refused: hypervisor.and_then(|note| note.kvm_refused.clone()),
        libvirt_version: version(|note| &note.libvirt_version),
        qemu_version: version(|note| &note.qemu_version),
    };
    serde_json::to_string(&note).expect("strings always have a JSON form")
}

/// `None` if there is no such note, or none that can be read.
pub(crate) fn read(text: &str) -> Option<(DaemonNote, Option<HypervisorNote>)> {
    let note: Note = serde_json::from_str(text).ok()?;
    let daemon = DaemonNote {
        version: note.said_by,
        storage_address: note.storage_address,
        runs_guests: note.runs_guests.unwrap_or(true),
        takes_held_guests: note.takes_held_guests,
        stamps_while_starting: note.stamps_while_starting,
    };
    let hypervisor = note.accelerator.map(|accelerator| HypervisorNote {
        accelerator,
        kvm_refused: note.kvm_refused,
        libvirt_version: note.libvirt_version,
        qemu_version: note.qemu_version,
    });
    Some((daemon, hypervisor))
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

pub(crate) fn fence_text(note: &FenceNote) -> String {
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

/// `None` if there is no such note, or none that can be read.
pub(crate) fn read_fence(text: &str) -> Option<FenceNote> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_from_before_it_said_whether_guests_run_there_is_a_hypervisors() {
        let (daemon, hypervisor) =
            read(r#"{"said_by": "0.2.0", "storage_address": "10.0.1.1", "accelerator": "kvm"}"#)
                .unwrap();
        assert!(daemon.runs_guests);
        assert_eq!(hypervisor.unwrap().accelerator, "kvm");
        for runs_guests in [true, false] {
            let said = DaemonNote { runs_guests, ..daemon.clone() };
            assert_eq!(read(&text(&said, None)), Some((said, None)));
        }
    }
}
