//! What a node runs its guests with: JSON, ours alone.

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
}

pub(crate) fn text(note: &HypervisorNote) -> String {
    let note = Note {
        accelerator: note.accelerator.clone(),
        kvm_refused: note.kvm_refused.clone(),
        libvirt_version: note.libvirt_version.clone(),
        qemu_version: note.qemu_version.clone(),
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
    })
}
