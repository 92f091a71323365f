//! OSDs on the wire.

use pvc_api_types as api;
use pvc_model::answered::{Question, answered_at};
use pvc_model::cluster::Cluster;
use pvc_model::storage::OsdRecord;
use pvc_store::OSD_STATS_TO_COME;
use serde_json::Value;

use super::storage::object;

/// An OSD. One that nobody has looked at yet has figures that say so: clients read them all.
pub fn osd(record: &OsdRecord, cluster: &Cluster) -> api::Osd {
    let mut stats = object(&record.stats);
    for (name, value) in object(OSD_STATS_TO_COME) {
        stats.entry(name).or_insert(value);
    }
    api::Osd {
        id: record.id.clone(),
        fsid: record.fsid.clone(),
        node: record.node.clone(),
        device: record.device.clone(),
        is_split: record.is_split,
        db_device: record.db_device.clone(),
        stats,
        answered_at: answered_at(cluster, Question::Osds),
    }
}

/// Whether an OSD runs and holds data, as far as that is known.
pub fn osd_state(record: &OsdRecord) -> api::OsdState {
    let stats = object(&record.stats);
    let figure = |name: &str| stats.get(name).and_then(Value::as_i64).unwrap_or_default();
    api::OsdState { id: record.id.clone(), r#in: figure("in"), up: figure("up") }
}
