//! Pools and volumes on the wire.

use pvc_api_types as api;
use pvc_model::answered::{Question, answered_at};
use pvc_model::cluster::Cluster;
use pvc_model::image::image_name;
use pvc_model::size::{format_size, parse_size};
use pvc_model::storage::{PoolRecord, SnapshotName, VolumeId, VolumeRecord};
use pvc_model::trash::TrashedVolume;
use serde_json::{Map, Value};

/// The members of a pool's statistics. A new pool has none yet, and clients read them all.
const POOL_FIGURES: [&str; 15] = [
    "id",
    "stored_bytes",
    "free_bytes",
    "used_bytes",
    "used_percent",
    "num_objects",
    "num_object_clones",
    "num_object_copies",
    "num_objects_missing_on_primary",
    "num_objects_unfound",
    "num_objects_degraded",
    "read_ops",
    "read_bytes",
    "write_ops",
    "write_bytes",
];

pub fn trashed_volume(entry: &TrashedVolume) -> api::TrashedVolume {
    api::TrashedVolume {
        pool: entry.pool.to_string(),
        id: entry.id.to_string(),
        name: entry.name.to_string(),
        removed_at: entry.removed_at,
        kept_until: entry.kept_until,
    }
}

pub fn pool(record: &PoolRecord, cluster: &Cluster) -> api::Pool {
    let mut stats = object(&record.stats);
    for figure in POOL_FIGURES {
        stats.entry(figure).or_insert(Value::from(0));
    }
    let volumes = cluster.volumes.keys().filter(|id| id.pool == record.name).count();
    api::Pool {
        name: record.name.to_string(),
        volume_count: i64::try_from(volumes).unwrap_or(i64::MAX),
        tier: record.tier.clone(),
        pgs: record.pgs.clone(),
        stats,
        answered_at: answered_at(cluster, Question::Pools),
    }
}

/// The image that a volume is; `None` if it is none.
pub fn image(record: &VolumeRecord) -> Option<api::Image> {
    let name = image_name(&record.id)?.to_owned();
    let api::Volume { name: volume, pool, stats } = volume(record);
    Some(api::Image { name, pool, volume, size: stats.size, size_bytes: stats.size_bytes })
}

/// A volume. Its recorded size is a number of bytes, or, where a legacy peer wrote it, a text.
pub fn volume(record: &VolumeRecord) -> api::Volume {
    let stats = Members(object(&record.stats));
    let (size, size_bytes) = match stats.0.get("size") {
        Some(Value::Number(bytes)) => {
            let bytes = bytes.as_u64().unwrap_or_default();
            (format_size(bytes), bytes)
        }
        Some(Value::String(size)) => (size.clone(), parse_size(size).unwrap_or_default()),
        _ => (format_size(0), 0),
    };
    api::Volume {
        name: record.id.volume.to_string(),
        pool: record.id.pool.to_string(),
        stats: api::VolumeStats {
            name: record.id.volume.to_string(),
            id: stats.text("id"),
            size,
            size_bytes,
            objects: stats.number("objects"),
            order: stats.number("order"),
            object_size: stats.number("object_size"),
            snapshot_count: i64::try_from(record.snapshots.len()).unwrap_or(i64::MAX),
            block_name_prefix: stats.text("block_name_prefix"),
            format: stats.number("format"),
            features: stats.texts("features"),
            op_features: stats.texts("op_features"),
            flags: stats.texts("flags"),
            create_timestamp: stats.text("create_timestamp"),
            access_timestamp: stats.text("access_timestamp"),
            modify_timestamp: stats.text("modify_timestamp"),
        },
    }
}

/// A snapshot. Its record is `[]` where a legacy peer has never asked about it.
pub fn snapshot(of: &VolumeId, name: &SnapshotName, text: &str) -> api::StorageSnapshot {
    let stats = Members(object(text));
    api::StorageSnapshot {
        pool: of.pool.to_string(),
        volume: of.volume.to_string(),
        snapshot: name.to_string(),
        stats: api::SnapshotStats {
            name: of.volume.to_string(),
            id: stats.text("id"),
            size: stats.0.get("size").and_then(Value::as_u64).unwrap_or_default(),
            objects: stats.number("objects"),
            order: stats.number("order"),
            object_size: stats.number("object_size"),
            snapshot_count: stats.number("snapshot_count"),
            block_name_prefix: stats.text("block_name_prefix"),
            format: stats.number("format"),
            features: stats.texts("features"),
            op_features: stats.texts("op_features"),
            flags: stats.texts("flags"),
            create_timestamp: stats.text("create_timestamp"),
            access_timestamp: stats.text("access_timestamp"),
            modify_timestamp: stats.text("modify_timestamp"),
        },
    }
}

/// The members of `rbd info`; those that are missing are empty.
struct Members(Map<String, Value>);

impl Members {
    fn text(&self, name: &str) -> String {
        self.0.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    fn number(&self, name: &str) -> i64 {
        self.0.get(name).and_then(Value::as_i64).unwrap_or_default()
    }

    fn texts(&self, name: &str) -> Vec<String> {
        let list = self.0.get(name).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    }
}

/// A JSON object of a record; empty if it is none.
pub fn object(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).unwrap_or_default()
}
