//! The note of our daemon of a node on itself and on what its guests run with:
//! `/pvcrs/nodes/{node}` with JSON, ours alone. It is shown as a part of the node's record.

use pvc_model::node::{DaemonNote, HypervisorNote};
use serde::{Deserialize, Serialize};

use crate::raw::Raw;
use crate::reader::json;

pub(super) const ROOT: &str = "/pvcrs/nodes";

pub(crate) fn path(node: &str) -> String {
    format!("{ROOT}/{node}")
}

/// `None` if there is no such note, or none that can be read.
pub(super) fn read(raw: &Raw, node: &str) -> Option<(DaemonNote, Option<HypervisorNote>)> {
    json(raw, &path(node)).and_then(|text| note_from(&text))
}

#[derive(Serialize, Deserialize)]
struct Note {
    said_by: String,
    #[serde(default)]
    storage_address: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cluster_address: Option<String>,
    /// Not there in notes from before it was asked: only a hypervisor wrote those.
    #[serde(default)]
    runs_guests: Option<bool>,
    /// Not there in notes of daemons that do not.
    #[serde(default)]
    takes_held_guests: bool,
    #[serde(default)]
    stamps_while_starting: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    has_vlans: Option<bool>,
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
        cluster_address: daemon.cluster_address.clone(),
        runs_guests: Some(daemon.runs_guests),
        takes_held_guests: daemon.takes_held_guests,
        stamps_while_starting: daemon.stamps_while_starting,
        has_vlans: daemon.has_vlans,
        accelerator: hypervisor.map(|note| note.accelerator.clone()),
        kvm_refused: hypervisor.and_then(|note| note.kvm_refused.clone()),
        libvirt_version: version(|note| &note.libvirt_version),
        qemu_version: version(|note| &note.qemu_version),
    };
    serde_json::to_string(&note).expect("strings always have a JSON form")
}

fn note_from(text: &str) -> Option<(DaemonNote, Option<HypervisorNote>)> {
    let note: Note = serde_json::from_str(text).ok()?;
    let daemon = DaemonNote {
        version: note.said_by,
        storage_address: note.storage_address,
        cluster_address: note.cluster_address,
        runs_guests: note.runs_guests.unwrap_or(true),
        takes_held_guests: note.takes_held_guests,
        stamps_while_starting: note.stamps_while_starting,
        has_vlans: note.has_vlans,
    };
    let hypervisor = note.accelerator.map(|accelerator| HypervisorNote {
        accelerator,
        kvm_refused: note.kvm_refused,
        libvirt_version: note.libvirt_version,
        qemu_version: note.qemu_version,
    });
    Some((daemon, hypervisor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_from_before_it_said_whether_guests_run_there_is_a_hypervisors() {
        let (daemon, hypervisor) = note_from(
            r#"{"said_by": "0.2.0", "storage_address": "10.0.1.1", "accelerator": "kvm"}"#,
        )
        .unwrap();
        assert!(daemon.runs_guests);
        assert_eq!(daemon.has_vlans, None);
        assert_eq!(hypervisor.unwrap().accelerator, "kvm");
        for runs_guests in [true, false] {
            let cluster_address = runs_guests.then(|| "10.0.0.1".to_owned());
            let has_vlans = Some(runs_guests);
            let said = DaemonNote { runs_guests, cluster_address, has_vlans, ..daemon.clone() };
            assert_eq!(note_from(&text(&said, None)), Some((said, None)));
        }
    }
}
