//! Pools, volumes and snapshots of volumes.

mod pool;
mod snapshot;
mod transfer;
mod trash;
mod volume;

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use pvc_api_types::operations::storage::{GetStorage, GetStorageCeph};
use pvc_model::storage::{PoolName, VolumeId, VolumeName};
use pvc_model::utc;
use pvc_ops::Outcome;
use pvc_ops::storage::StorageRefusal;
use pvc_ports::{Storage, TrashedVolume};

use crate::answer::Answer;
use crate::error::{ApiError, Result};
use crate::refuse::refused;
use crate::state::ApiState;
use crate::table::{Ask, Table};

pub fn add(table: Table) -> Table {
    let table = table.add(get_storage).add(get_storage_ceph);
    transfer::add(snapshot::add(trash::add(volume::add(pool::add(table)))))
}

async fn get_storage(_: Ask<GetStorage>) -> Result<Answer<GetStorage>> {
    Ok(Answer::json(&()))
}

async fn get_storage_ceph(_: Ask<GetStorageCeph>) -> Result<Answer<GetStorageCeph>> {
    Ok(Answer::json(&()))
}

/// Carries out an operation on the storage, to its end also when the client goes away.
async fn act<T: Send + 'static, F>(
    api: &ApiState,
    operation: impl FnOnce(ApiState, Arc<dyn Storage>) -> F,
) -> Result<T>
where
    F: Future<Output = Outcome<T, StorageRefusal>> + Send + 'static,
{
    let storage = api.storage()?;
    let time = api.settings().limits.change_time * TIMES;
    let operation = operation(api.clone(), storage);
    let act = async { operation.await.map_err(refused) };
    api.outcome_within(time, act).await?.unwrap_or_else(|| Err(goes_on(time)))
}

/// Number of times as long as for other changes that an answer is waited for: as long as a copy of
/// a small volume takes.
const TIMES: u32 = 10;

/// The answer to who asked for something that takes longer: it is not given up.
fn goes_on(time: Duration) -> ApiError {
    let message = format!("the storage is still at it after {} s, and goes on", time.as_secs());
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).hint(Some(
        "`pvc storage volume info` shows when it is done; asking for the same again is safe",
    ))
}

/// The sentences about removed volumes that are kept, which say how they are restored.
pub(in crate::routes) fn kept(entries: &[TrashedVolume]) -> String {
    let command =
        |entry: &TrashedVolume| format!("`pvc storage trash restore {} {}`", entry.pool, entry.id);
    match entries {
        [] => String::new(),
        [one] => {
            format!(" Until {} it can be restored: {}.", utc(one.kept_until), command(one))
        }
        [first, ..] => {
            let until = entries.iter().map(|entry| entry.kept_until).min();
            format!(
                " Until {} they can be restored: {} and the like, as `pvc storage trash list` \
                 shows.",
                utc(until.unwrap_or(first.kept_until)),
                command(first)
            )
        }
    }
}

fn volume_id(pool: &str, volume: &str) -> VolumeId {
    VolumeId { pool: PoolName::new(pool), volume: VolumeName::new(volume) }
}

fn size(parameter: &str, text: &str) -> Result<u64> {
    pvc_model::size::parse_size(text)
        .map_err(|bad| ApiError::parameter(parameter, bad.to_string()).hint(Some("10G, for one")))
}
