//! Pools and volumes, to read.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use pvc_api_types::{Pool, Volume};
use pvc_model::storage::{PoolName, VolumeId, VolumeName, VolumeRecord};
use pvc_model::with_causes;
use pvc_ports::{SnapshotInfo, StorageError};

use super::Api;
use super::at::At;
use crate::error::{ApiError, Result};
use crate::json;
use crate::limit::Limit;
use crate::openapi::ReadRefused;
use crate::params::{Params, params};
use crate::state::ApiState;
use crate::view::storage::{pool, volume};

params! {
    /// Which pools to list.
    pub struct PoolFilter {
        /// A regular expression on the name.
        limit: Option<String>,
    }
}

/// The pools by Ceph's number; those that have no statistics yet come first.
#[utoipa::path(
    get, path = "/api/v1/storage/ceph/pool", tag = "storage-pool", params(PoolFilter),
    responses((status = 200, body = Vec<Pool>), ReadRefused)
)]
pub async fn get_storage_ceph_pool(
    State(api): Api,
    Params(filter): Params<PoolFilter>,
) -> Result<Response> {
    let limit = Limit::new(filter.limit.as_deref())?;
    let cluster = api.view();
    let records = cluster.pools.values().filter(|record| limit.matches(record.name.as_str()));
    let mut pools: Vec<Pool> = records.map(|record| pool(record, &cluster)).collect();
    pools.sort_by_key(|pool| pool.stats.get("id").and_then(serde_json::Value::as_i64));
    Ok(json::ok(&pools))
}

/// One pool.
#[utoipa::path(
    get, path = "/api/v1/storage/ceph/pool/{pool}", tag = "storage-pool",
    params(("pool" = String, Path, description = "Name of the pool")),
    responses((status = 200, body = Vec<Pool>), ReadRefused)
)]
pub async fn get_storage_ceph_pool_pool(State(api): Api, At(name): At<String>) -> Result<Response> {
    let cluster = api.view();
    let record = cluster.pools.get(&PoolName::new(&name));
    let record = record.ok_or_else(|| ApiError::not_found(format!("there is no pool `{name}`")))?;
    Ok(json::ok(&[pool(record, &cluster)]))
}

params! {
    /// Which volumes to list.
    pub struct VolumeFilter {
        /// A regular expression on the name.
        limit: Option<String>,
        /// Only those of this pool.
        pool: Option<String>,
    }
}

/// The volumes by name.
#[utoipa::path(
    get, path = "/api/v1/storage/ceph/volume", tag = "storage-volume", params(VolumeFilter),
    responses((status = 200, body = Vec<Volume>), ReadRefused)
)]
pub async fn get_storage_ceph_volume(
    State(api): Api,
    Params(filter): Params<VolumeFilter>,
) -> Result<Response> {
    let limit = Limit::new(filter.limit.as_deref())?;
    let cluster = api.view();
    let only = filter.pool.map(PoolName::new);
    if let Some(name) = only.as_ref().filter(|name| !cluster.pools.contains_key(name)) {
        return Err(ApiError::parameter("pool", format!("there is no pool `{name}`")));
    }
    let wanted = |id: &VolumeId| {
        only.as_ref().is_none_or(|only| id.pool == *only) && limit.matches(id.volume.as_str())
    };
    let records = cluster.volumes.iter().filter(|(id, _)| wanted(id));
    let mut volumes: Vec<Volume> = records.map(|(_, record)| volume(record)).collect();
    volumes.sort_by(|a, b| (&a.name, &a.pool).cmp(&(&b.name, &b.pool)));
    Ok(json::ok(&volumes))
}

/// One volume.
#[utoipa::path(
    get, path = "/api/v1/storage/ceph/volume/{pool}/{volume}", tag = "storage-volume",
    params(
        ("pool" = String, Path, description = "Name of the pool"),
        ("volume" = String, Path, description = "Name of the volume"),
    ),
    responses((status = 200, body = Vec<Volume>), ReadRefused)
)]
pub async fn get_storage_ceph_volume_pool_volume(
    State(api): Api,
    At((pool, name)): At<(String, String)>,
) -> Result<Response> {
    let id = VolumeId { pool: PoolName::new(pool), volume: VolumeName::new(name) };
    let cluster = api.view();
    if let Some(record) = cluster.volumes.get(&id) {
        return Ok(json::ok(&[volume(record)]));
    }
    if api.settings().storage_is_near
        && let Some(record) = unrecorded(&api, &id).await?
    {
        return Ok(json::ok(&[volume(&record)]));
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
