//! Pools and volumes, to read.

use axum::http::StatusCode;
use pvc_api_types::operations::storage::{
    GetStorageCephPool, GetStorageCephPoolPool, GetStorageCephVolume,
    GetStorageCephVolumePoolVolume,
};
use pvc_api_types::{Pool, Volume};
use pvc_model::storage::{PoolName, VolumeId, VolumeName, VolumeRecord};
use pvc_model::with_causes;
use pvc_ports::{SnapshotInfo, StorageError};

use crate::answer::Answer;
use crate::error::{ApiError, Result};
use crate::limit::Limit;
use crate::state::ApiState;
use crate::table::{Ask, Table};
use crate::view::storage::{pool, volume};

pub fn add(table: Table) -> Table {
    table
        .add(get_storage_ceph_pool)
        .add(get_storage_ceph_pool_pool)
        .add(get_storage_ceph_volume)
        .add(get_storage_ceph_volume_pool_volume)
}

async fn get_storage_ceph_pool(ask: Ask<GetStorageCephPool>) -> Result<Answer<GetStorageCephPool>> {
    let limit = Limit::new(ask.params.limit.as_deref())?;
    let cluster = ask.api.view();
    let records = cluster.pools.values().filter(|record| limit.matches(record.name.as_str()));
    let mut pools: Vec<Pool> = records.map(|record| pool(record, &cluster)).collect();
    pools.sort_by_key(|pool| pool.stats.get("id").and_then(serde_json::Value::as_i64));
    Ok(Answer::json(&pools))
}

async fn get_storage_ceph_pool_pool(
    ask: Ask<GetStorageCephPoolPool>,
) -> Result<Answer<GetStorageCephPoolPool>> {
    let [name] = ask.at;
    let cluster = ask.api.view();
    let record = cluster.pools.get(&PoolName::new(&name));
    let record = record.ok_or_else(|| ApiError::not_found(format!("there is no pool `{name}`")))?;
    Ok(Answer::json(&vec![pool(record, &cluster)]))
}

async fn get_storage_ceph_volume(
    ask: Ask<GetStorageCephVolume>,
) -> Result<Answer<GetStorageCephVolume>> {
    let limit = Limit::new(ask.params.limit.as_deref())?;
    let cluster = ask.api.view();
    let only = ask.params.pool.map(PoolName::new);
    if let Some(name) = only.as_ref().filter(|name| !cluster.pools.contains_key(name)) {
        return Err(ApiError::parameter("pool", format!("there is no pool `{name}`")));
    }
    let wanted = |id: &VolumeId| {
        only.as_ref().is_none_or(|only| id.pool == *only) && limit.matches(id.volume.as_str())
    };
    let records = cluster.volumes.iter().filter(|(id, _)| wanted(id));
    let mut volumes: Vec<Volume> = records.map(|(_, record)| volume(record)).collect();
    volumes.sort_by(|a, b| (&a.name, &a.pool).cmp(&(&b.name, &b.pool)));
    Ok(Answer::json(&volumes))
}

async fn get_storage_ceph_volume_pool_volume(
    ask: Ask<GetStorageCephVolumePoolVolume>,
) -> Result<Answer<GetStorageCephVolumePoolVolume>> {
    let ([pool, name], api) = (ask.at, ask.api);
    let id = VolumeId { pool: PoolName::new(pool), volume: VolumeName::new(name) };
    let cluster = api.view();
    if let Some(record) = cluster.volumes.get(&id) {
        return Ok(Answer::json(&vec![volume(record)]));
    }
    if api.settings().storage_is_near
        && let Some(record) = unrecorded(&api, &id).await?
    {
        return Ok(Answer::json(&vec![volume(&record)]));
    }
    if !cluster.pools.contains_key(&id.pool) {
        return Err(ApiError::refused(format!("there is no pool `{}`", id.pool)));
    }
    Err(ApiError::not_found(format!("no volume `{id}` is recorded"))
        .hint(Some("`pvcd volume record` on a node makes the records say what is there")))
}

/// A volume that no record tells of, as the storage knows it: a standalone daemon's volumes are
/// what lies in its directory.
async fn unrecorded(api: &ApiState, id: &VolumeId) -> Result<Option<VolumeRecord>> {
    let found = match api.storage()?.volume(id).await {
        Ok(found) => found,
        Err(StorageError::NoVolume { .. } | StorageError::NoPool { .. }) => return Ok(None),
        Err(error) => {
            return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, with_causes(&error)));
        }
    };
    let stats = serde_json::json!({ "size": found.size_bytes });
    let snapshot = |snapshot: SnapshotInfo| {
        let stats = serde_json::json!({ "size": snapshot.size_bytes });
        (snapshot.name, stats.to_string().into())
    };
    Ok(Some(VolumeRecord {
        id: found.id,
        stats: stats.to_string().into(),
        snapshots: found.snapshots.into_iter().map(snapshot).collect(),
    }))
}
