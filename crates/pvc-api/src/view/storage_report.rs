//! Reports on the storage as a whole, on the wire.

use std::collections::BTreeMap;

use pvc_api_types as api;
use pvc_model::answered::{Question, answered_at};
use pvc_model::cluster::Cluster;
use pvc_model::fullness::{overcommitted, predict};
use pvc_model::size::parse_size;
use pvc_model::snapshot_usage::{SeenSnapshot, SnapshotUsageRecord, is_there, volume_of};
use pvc_model::storage::{PoolName, PoolRecord, VolumeRecord};
use serde_json::Value;

use super::status::percent;
use super::storage::object;

pub fn status(cluster: &Cluster) -> api::CephReport {
    report("status", &cluster.config.storage_status, Question::Status, cluster)
}

pub fn utilization(cluster: &Cluster) -> api::CephReport {
    report("utilization", &cluster.config.storage_util, Question::Usage, cluster)
}

fn report(kind: &str, text: &str, question: Question, cluster: &Cluster) -> api::CephReport {
    api::CephReport {
        r#type: kind.to_owned(),
        primary_node: cluster.config.primary.as_ref().map_or("none".into(), ToString::to_string),
        ceph_data: text.trim_end().to_owned(),
        answered_at: answered_at(cluster, question),
    }
}

/// The pools by name, each with what its volumes come to.
pub fn fullness(cluster: &Cluster) -> Vec<api::PoolFullness> {
    let mut held: BTreeMap<&PoolName, Held> = BTreeMap::new();
    for volume in cluster.volumes.values() {
        let held = held.entry(&volume.id.pool).or_default();
        held.volumes += 1;
        held.snapshots += volume.snapshots.len() as u64;
        held.bytes = held.bytes.saturating_add(size_bytes(volume));
    }
    let nothing = Held::default();
    let of =
        |pool: &PoolRecord| pool_fullness(pool, cluster, held.get(&pool.name).unwrap_or(&nothing));
    cluster.pools.values().map(|pool| of(pool)).collect()
}

/// Contents of a pool.
#[derive(Default)]
struct Held {
    volumes: u64,
    snapshots: u64,
    /// Sizes of the volumes.
    bytes: u64,
}

fn pool_fullness(pool: &PoolRecord, cluster: &Cluster, held: &Held) -> api::PoolFullness {
    let stats = object(&pool.stats);
    let bytes = |name: &str| stats.get(name).and_then(Value::as_u64).unwrap_or_default();
    let (stored_bytes, free_bytes) = (bytes("stored_bytes"), bytes("free_bytes"));
    let record = cluster.fullness.get(&pool.name).map(|record| (**record).clone());
    let record = record.unwrap_or_default();
    let forecast = predict(&record, stored_bytes, free_bytes);
    let usage = cluster.snapshot_usage.get(&pool.name).map(|usage| &**usage);
    let all = stored_bytes as f64 + free_bytes as f64;
    api::PoolFullness {
        pool: pool.name.to_string(),
        state: forecast.state.to_string(),
        stored_bytes,
        free_bytes,
        used_percent: percent(stored_bytes as f64, all),
        volumes: held.volumes,
        snapshots: held.snapshots,
        provisioned_bytes: held.bytes,
        provisioned_percent: percent(held.bytes as f64, all),
        overcommitted_bytes: overcommitted(held.bytes, stored_bytes, free_bytes),
        nearfull_ratio: record.ratios.nearfull(),
        backfillfull_ratio: record.ratios.backfillfull(),
        full_ratio: record.ratios.full(),
        history_seconds: forecast.history,
        growth_bytes_per_day: forecast.growth_per_day,
        nearfull_in: forecast.nearfull_in,
        backfillfull_in: forecast.backfillfull_in,
        full_in: forecast.full_in,
        largest_snapshots: usage.map(|usage| largest(pool, usage, cluster)).unwrap_or_default(),
        snapshots_looked_at: usage.and_then(|usage| usage.at),
        snapshots_unknown: usage.filter(|usage| usage.at.is_some()).map(|usage| usage.unknown),
    }
}

/// The snapshots that hold the most, without those that were removed since they were looked at.
fn largest(
    pool: &PoolRecord,
    usage: &SnapshotUsageRecord,
    cluster: &Cluster,
) -> Vec<api::SnapshotUsage> {
    let is_still_there = |seen: &&SeenSnapshot| {
        let volume = cluster.volumes.get(&volume_of(&pool.name, seen));
        volume.is_some_and(|volume| {
            is_there(seen, volume.snapshots.iter().map(|(name, _)| name.clone()))
        })
    };
    let shown = |seen: &SeenSnapshot| api::SnapshotUsage {
        volume: seen.volume.to_string(),
        snapshot: seen.usage.name.to_string(),
        bytes: seen.usage.held_bytes,
        own_bytes: seen.usage.own_bytes,
        looked_at: seen.at,
    };
    usage.seen().iter().filter(is_still_there).map(shown).collect()
}

/// The recorded size: a number of bytes, or, where a legacy peer wrote it, a text. 0 if it is
/// neither.
fn size_bytes(volume: &VolumeRecord) -> u64 {
    match object(&volume.stats).get("size") {
        Some(Value::Number(bytes)) => bytes.as_u64().unwrap_or_default(),
        Some(Value::String(text)) => parse_size(text).unwrap_or_default(),
        _ => 0,
    }
}
