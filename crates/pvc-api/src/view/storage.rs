//! Pools and volumes on the wire.

use pvc_api_types as api;
use pvc_model::cluster::Cluster;
use pvc_model::size::format_size;
use pvc_model::storage::{PoolRecord, VolumeRecord};
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
    }
}

/// A volume. Its recorded size is a number of bytes, or, where a legacy peer wrote it, a text.
pub fn volume(record: &VolumeRecord) -> api::Volume {
    let stats = object(&record.stats);
    let text = |name: &str| stats.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let number = |name: &str| stats.get(name).and_then(Value::as_i64).unwrap_or_default();
    let texts = |name: &str| {
        let list = stats.get(name).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let size = match stats.get("size") {
        Some(Value::Number(bytes)) => bytes.as_u64().map(format_size).unwrap_or_default(),
        Some(Value::String(size)) => size.clone(),
        _ => "0B".to_owned(),
    };
    api::Volume {
        name: record.id.volume.to_string(),
        pool: record.id.pool.to_string(),
        stats: api::VolumeStats {
            name: record.id.volume.to_string(),
            id: text("id"),
            size,
            objects: number("objects"),
            order: number("order"),
            object_size: number("object_size"),
            snapshot_count: i64::try_from(record.snapshots.len()).unwrap_or(i64::MAX),
            block_name_prefix: text("block_name_prefix"),
            format: number("format"),
            features: texts("features"),
            op_features: texts("op_features"),
            flags: texts("flags"),
            create_timestamp: text("create_timestamp"),
            access_timestamp: text("access_timestamp"),
            modify_timestamp: text("modify_timestamp"),
        },
    }
}

/// A JSON object of a record; empty if it is none.
pub fn object(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).unwrap_or_default()
}
