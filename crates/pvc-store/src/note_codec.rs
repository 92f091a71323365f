//! What a node runs its guests with, and how it was fenced: JSON, ours alone.

use pvc_model::fence::{FenceNote, PowerAfter};
use pvc_model::node::HypervisorNote;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Note {
    accelerator: String,
    #[serde(default)]
    kvm_refused: Option<String>,
    #[serde(default)]
    libvirt_version: String,
    #[serde(default)]
    qemu_version: String,
    #[serde(default)]
    said_by: String,
    #[serde(default)]
    storage_address: Option<String>,
}

pub(crate) fn text(note: &HypervisorNote) -> String {
    let note = Note {
        accelerator: note.accelerator.clone(),
        kvm_refused: note.kvm_refused.clone(),
        libvirt_version: note.libvirt_version.clone(),
        qemu_version: note.qemu_version.clone(),
        said_by: note.said_by.clone(),
        storage_address: note.storage_address.clone(),
    };
    serde_json::to_string(&note).expect("strings always have a JSON form")
}

/// `None` if there is no such note, or none that can be read: it is for people only.
pub(crate) fn read(text: &str) -> Option<HypervisorNote> {
    let note: Note = serde_json::from_str(text).ok()?;
    Some(HypervisorNote {
        accelerator: note.accelerator,
        kvm_refused: note.kvm_refused,
        libvirt_version: note.libvirt_version,
        qemu_version: note.qemu_version,
        said_by: note.said_by,
        storage_address: note.storage_address,
    })
}

#[derive(Serialize, Deserialize)]
struct Fence {
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
