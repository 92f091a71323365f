//! The end of an upload, and of an OVA.

use std::time::Duration;

use axum::http::StatusCode;
use pvc_model::job::transfer::TransferEnd;
use pvc_model::provisioner::{Catalog, Change, NewOva, OvaVolume, find_ova};
use pvc_model::storage::VolumeId;
use pvc_ops::storage::{self, InPart};
use pvc_ports::{DatabaseError, TrashedVolume};
use pvc_provisioner::{Mode, Provisioner, ProvisionerError};

use super::receive::Received;
use crate::error::{ApiError, Result};
use crate::refuse::not_provisioned;
use crate::routes::storage::transfer::MOST_AWAY;
use crate::state::ApiState;
use crate::under_way::Transfer;

/// Time after which the database, which was away, is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Number of times as long as for other changes that names and rows are waited for.
const TIMES: u32 = 10;

/// Gives the volumes their names and adds the OVA, or leaves nothing. Returns the sentence about
/// it.
pub async fn finish(api: &ApiState, received: Received, mut transfer: Transfer) -> Result<String> {
    match transfer.stop().run_until_cancelled(api.reached_within(MOST_AWAY)).await {
        Some(Ok(())) => {}
        Some(Err(error)) => return Err(transfer.failed(error)),
        None => return Err(transfer.stopped()),
    }
    transfer.say(Some("the OVA is recorded"));
    let result = format!("{} bytes, CRC-32 {:08x}", received.file_bytes, received.crc32);
    let (of, time) = (api.clone(), api.settings().limits.change_time * TIMES + MOST_AWAY);
    let work = async move {
        let added = add(&of, received).await;
        transfer.end(match &added {
            Ok(_) => TransferEnd::Whole(result),
            Err(error) => TransferEnd::Failed(error.body.message.clone()),
        });
        added
    };
    api.change_within(time, work).await
}

async fn add(api: &ApiState, received: Received) -> Result<String> {
    let Received { new, volumes, .. } = received;
    let (store, storage, provisioner) = (api.store(), api.storage()?, api.provisioner()?);
    let named = storage::name_volumes(store, storage.as_ref(), volumes).await;
    let named = named
        .map_err(|InPart { error, left }| with_left(api.readers().refused(*error), &left, &LEFT))?;
    match record(api, provisioner, &new).await {
        Ok(message) => Ok(message),
        Err(NotRecorded::Unknown(error)) => {
            // They may be of an OVA that there is.
            tracing::warn!(
                ova = new.name,
                "nobody knows whether an OVA was added; its volumes stay"
            );
            Err(with_left(not_provisioned(error), &named, &UNKNOWN))
        }
        Err(NotRecorded::No(error)) => {
            let left = storage::take_back(store, storage.as_ref(), &named).await;
            Err(with_left(not_provisioned(error), &left, &LEFT))
        }
    }
}

/// Words before the names of volumes, and behind them.
type Words = [&'static str; 2];

const LEFT: Words = [
    "these are left, or may be: ",
    "; `pvc storage volume remove` removes one, if it is nobody else's by now",
];

const UNKNOWN: Words = [
    "its volumes stay: ",
    "; if `pvc provisioner ova list` does not show it, `pvc storage volume remove` removes them",
];

const IN_TRASH: Words = [
    "these are in the trash, or may be: ",
    "; `pvc storage trash list` shows them, and `pvc storage trash restore` brings one back",
];

/// The answer whose hint also names these volumes, if there are any.
fn with_left(error: ApiError, volumes: &[VolumeId], [before, behind]: &Words) -> ApiError {
    if volumes.is_empty() {
        return error;
    }
    let names: Vec<String> = volumes.iter().map(|volume| format!("`{volume}`")).collect();
    with_hint(error, format!("{before}{}{behind}", names.join(", ")))
}

fn with_hint(error: ApiError, more: String) -> ApiError {
    let hint = match &error.body.hint {
        Some(hint) => format!("{hint}; {more}"),
        None => more,
    };
    error.hint(Some(hint))
}

/// Reason why the rows were not added.
enum NotRecorded {
    /// The rows are not there.
    No(ProvisionerError),
    /// Nobody knows.
    Unknown(ProvisionerError),
}

fn is_unknown(error: &ProvisionerError) -> bool {
    matches!(error, ProvisionerError::Database(DatabaseError::Unknown { .. }))
}

fn is_away(error: &ProvisionerError) -> bool {
    matches!(
        error,
        ProvisionerError::Database(
            DatabaseError::Unreachable { .. } | DatabaseError::TimedOut { .. }
        )
    )
}

/// Adds the rows. A database that is away is waited for: the disks are here, and took long to come.
async fn record(
    api: &ApiState,
    provisioner: &Provisioner,
    new: &NewOva,
) -> Result<String, NotRecorded> {
    let (clock, change) = (api.clock(), Change::AddOva(new.clone()));
    let end = clock.monotonic() + MOST_AWAY;
    let unknown = loop {
        match provisioner.change(&api.view(), &change, Mode::Do).await {
            Ok(message) => return Ok(message),
            Err(error) if is_unknown(&error) => break error,
            Err(error) if is_away(&error) && clock.monotonic() < end => {
                clock.sleep(ASK_AGAIN).await;
            }
            Err(error) => return Err(NotRecorded::No(error)),
        }
    };
    // A refusal says nothing from here on: it may be of what was added, and comes to light late.
    let mut was_refused = false;
    loop {
        clock.sleep(ASK_AGAIN).await;
        match provisioner.catalog().await {
            Ok(kept) if is_of(&kept, new) => return Ok(format!("Added OVA \"{}\".", new.name)),
            Ok(_) if was_refused => return Err(NotRecorded::Unknown(unknown)),
            Ok(_) => match provisioner.change(&api.view(), &change, Mode::Do).await {
                Ok(message) => return Ok(message),
                Err(error) => was_refused = !is_unknown(&error) && !is_away(&error),
            },
            Err(_) => {}
        }
        if clock.monotonic() >= end {
            return Err(NotRecorded::Unknown(unknown));
        }
    }
}

/// Whether the OVA is there, and not another of its name.
fn is_of(kept: &Catalog, new: &NewOva) -> bool {
    find_ova(kept, &new.name).is_ok_and(|ova| {
        let volumes = ova.volumes.iter().map(OvaVolume::without_row);
        volumes.eq(new.volumes.iter().cloned())
    })
}

/// Refuses volumes of an OVA that could not be removed.
pub async fn check_removals(api: &ApiState, volumes: Vec<VolumeId>) -> Result<()> {
    let (of, storage) = (api.clone(), api.storage()?);
    removing(api, async move {
        let checked = storage::check_removals(of.store(), storage.as_ref(), &volumes).await;
        checked.map_err(|error| of.readers().refused(error))
    })
    .await
}

/// Moves the volumes of an OVA to the trash, all of them or none. Returns what they are there.
pub async fn trash_volumes(api: &ApiState, volumes: Vec<VolumeId>) -> Result<Vec<TrashedVolume>> {
    let (of, storage) = (api.clone(), api.storage()?);
    removing(api, async move {
        let keep = of.settings().removed_volumes_stay;
        let moved = storage::trash_volumes(of.store(), storage.as_ref(), &volumes, keep).await;
        moved.map_err(|InPart { error, left }| {
            let refusal = of.readers().refused(*error);
            match left.is_empty() {
                true => with_hint(refusal, "no volume of the OVA was removed".to_owned()),
                false => with_left(refusal, &left, &IN_TRASH),
            }
        })
    })
    .await
}

/// Removes for good what was moved to the trash, where nothing is to be kept.
pub async fn purge(api: &ApiState, moved: Vec<TrashedVolume>) -> Result<()> {
    let storage = api.storage()?;
    removing(api, async move {
        for TrashedVolume { pool, id, name, .. } in moved {
            if let Err(error) = storage.purge(&pool, &id).await {
                tracing::warn!(%pool, volume = %name, %error, "a volume of an OVA that was \
                                                               removed is still in the trash");
            }
        }
        Ok(())
    })
    .await
}

async fn removing<T: Send + 'static>(
    api: &ApiState,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    let time = api.settings().limits.change_time * TIMES;
    api.outcome_within(time, work).await?.unwrap_or_else(|| {
        let message = format!("the storage is still at it after {} s, and goes on", time.as_secs());
        Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
            .hint(Some("do it again in a while: what is gone by then is gone")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_named_behind_the_hint_there_was() {
        let error = || ApiError::refused("no").hint(Some("try it again"));
        assert_eq!(with_left(error(), &[], &LEFT).body.hint.as_deref(), Some("try it again"));
        let volumes = ["vms/a", "vms/b"].map(|name| VolumeId::parse(name).expect("well formed"));
        let hint = with_left(error(), &volumes, &LEFT).body.hint.expect("there are two");
        let begin = "try it again; these are left, or may be: `vms/a`, `vms/b`; ";
        assert!(hint.starts_with(begin), "{hint}");
        let hint = with_left(ApiError::refused("no"), &volumes, &UNKNOWN).body.hint;
        assert!(hint.expect("they are named").starts_with("its volumes stay: `vms/a`"));
    }
}
