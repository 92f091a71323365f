//! Renamings that are under way: JSON, ours alone.

use pvc_model::renaming::Renaming;
use pvc_model::storage::VolumeId;
use pvc_model::{NodeName, Uuid};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Note {
    from: String,
    to: String,
    #[serde(default)]
    node: Option<String>,
    /// Old and new names, each `pool/volume`.
    volumes: Vec<(String, String)>,
    #[serde(default)]
    taken_back: bool,
}

pub(crate) fn text(renaming: &Renaming) -> String {
    let names = |(old, new): (&VolumeId, &VolumeId)| (old.to_string(), new.to_string());
    let note = Note {
        from: renaming.from.clone(),
        to: renaming.to.clone(),
        node: renaming.node.as_ref().map(NodeName::to_string),
        volumes: renaming.volumes.iter().map(names).collect(),
        taken_back: renaming.taken_back,
    };
    serde_json::to_string(&note).expect("strings always have a JSON form")
}

/// `None` if it cannot be read as a whole: half of the names would be worse than none.
pub(crate) fn read(vm: Uuid, text: &str, held: bool) -> Option<Renaming> {
    let Note { from, to, node, volumes, taken_back } = serde_json::from_str(text).ok()?;
    let names = |(old, new): &(String, String)| {
        Some((VolumeId::from_record(old)?, VolumeId::from_record(new)?))
    };
    let volumes = volumes.iter().map(names).collect::<Option<_>>()?;
    Some(Renaming { vm, from, to, node: node.map(NodeName::new), volumes, taken_back, held })
}
