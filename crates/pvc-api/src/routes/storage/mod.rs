//! Pools, volumes and snapshots of volumes.

mod pool;
mod snapshot;
pub(super) mod transfer;
mod trash;
mod volume;

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use pvc_api_types::operations::storage::{GetStorage, GetStorageCeph};
use pvc_model::job::transfer::TransferEnd;
use pvc_model::job::{JobWork, StorageChange};
use pvc_model::storage::{PoolName, VolumeId, VolumeName};
use pvc_model::{utc, with_causes};
use pvc_ops::Outcome;
use pvc_ops::storage::StorageRefusal;
use pvc_ports::{Course, Storage, TrashedVolume};

use crate::answer::Answer;
use crate::auth::Caller;
use crate::error::{ApiError, Result};
use crate::state::ApiState;
use crate::table::{Ask, Table};
use crate::under_way::Transfer;

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

/// A change of the storage that may take long, and what of it is told of.
struct Long<'a> {
    change: StorageChange,
    /// The words for what is changed.
    of: String,
    caller: &'a Caller,
}

impl<'a> Long<'a> {
    fn of(change: StorageChange, of: impl Display, caller: &'a Caller) -> Self {
        Long { change, of: of.to_string(), caller }
    }
}

/// Carries out an operation as [`act`] does. If it takes long it is a task, which whoever has given
/// up waiting finds, and which says how far the storage is where that can tell.
async fn act_long<T: Send + 'static, F>(
    api: &ApiState,
    long: Long<'_>,
    operation: impl FnOnce(ApiState, Arc<dyn Storage>) -> F,
) -> Result<T>
where
    F: Future<Output = Outcome<T, StorageRefusal>> + Send + 'static,
{
    act_on_course(api, long, |api, on, course| {
        let on = on.on_course(&course).unwrap_or(on);
        operation(api, on)
    })
    .await
}

/// The same for an operation that says how far it is, and stops if the task is cancelled.
async fn act_on_course<T: Send + 'static, F>(
    api: &ApiState,
    long: Long<'_>,
    operation: impl FnOnce(ApiState, Arc<dyn Storage>, Course) -> F,
) -> Result<T>
where
    F: Future<Output = Outcome<T, StorageRefusal>> + Send + 'static,
{
    let course = Course::default();
    // What is only decided is over soon, and leaves no record.
    if api.store().is_dry() {
        return act(api, |api, on| operation(api, on, course)).await;
    }
    let Long { change, of, caller } = long;
    act(api, |api, on| {
        let work = JobWork::ChangeStorage { change, of };
        let mut task = Transfer::begin_on(&api, work, &caller.description, course.clone());
        task.say(Some("the storage is at it"));
        let operation = operation(api, on, course);
        async move {
            let done = operation.await;
            task.end(match &done {
                Ok(_) => TransferEnd::Whole("done".to_owned()),
                Err(error) => TransferEnd::Failed(with_causes(error)),
            });
            done
        }
    })
    .await
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
    let readers = api.readers().clone();
    let act = async move { operation.await.map_err(|error| readers.refused(error)) };
    api.outcome_within(time, act).await?.unwrap_or_else(|| Err(goes_on(time)))
}

/// Number of times as long as for other changes that an answer is waited for: as long as a copy of
/// a small volume takes.
const TIMES: u32 = 10;

/// The answer to who asked for something that takes longer: it is not given up.
fn goes_on(time: Duration) -> ApiError {
    let message = format!("the storage is still at it after {} s, and goes on", time.as_secs());
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).hint(Some(
        "what takes long is a task: `pvc task list --all` shows how it has ended; asking for the \
         same again is safe",
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

/// The least bytes that a volume gets by a bare number: whoever writes `10` means another unit.
const LEAST_WITHOUT_UNIT: u64 = 4096;

pub(in crate::routes) fn size(parameter: &str, text: &str) -> Result<u64> {
    let bad = |what: String| ApiError::parameter(parameter, what).hint(Some("10G, for one"));
    let bytes = pvc_model::size::parse_size(text).map_err(|why| bad(why.to_string()))?;
    let is_bare = text.bytes().all(|c| c.is_ascii_digit() || c == b'.');
    if is_bare && (1..LEAST_WITHOUT_UNIT).contains(&bytes) {
        return Err(bad(format!("`{text}` would be {bytes} bytes: name the unit, `B` for bytes")));
    }
    Ok(bytes)
}
