//! The end of an upload, and of an OVA.

use std::time::Duration;

use axum::http::StatusCode;
use pvc_model::job::transfer::TransferEnd;
use pvc_model::provisioner::{Catalog, Change, NewOva, find_ova};
use pvc_model::storage::VolumeId;
use pvc_ops::storage;
use pvc_ports::{DatabaseError, StorageError};
use pvc_provisioner::{Mode, Provisioner, ProvisionerError};
use pvc_store::ChangeError;

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
    let named = named.map_err(|error| api.readers().refused(error))?;
    match record(api, provisioner, &new).await {
        Ok(message) => Ok(message),
        Err(error @ ProvisionerError::Database(DatabaseError::Unknown { .. })) => {
            // They may be of an OVA that there is.
            tracing::warn!(
                ova = new.name,
                "nobody knows whether an OVA was added; its volumes stay"
            );
            Err(not_provisioned(error))
        }
        Err(error) => {
            storage::take_back(store, storage.as_ref(), &named).await;
            Err(not_provisioned(error))
        }
    }
}

/// Adds the rows. A database that is away is waited for: the disks are here, and took long to come.
async fn record(
    api: &ApiState,
    provisioner: &Provisioner,
    new: &NewOva,
) -> Result<String, ProvisionerError> {
    let (clock, change) = (api.clock(), Change::AddOva(new.clone()));
    let end = clock.monotonic() + MOST_AWAY;
    loop {
        let error = match provisioner.change(&api.view(), &change, Mode::Do).await {
            Ok(message) => return Ok(message),
            Err(error) => error,
        };
        let is_unknown = matches!(error, ProvisionerError::Database(DatabaseError::Unknown { .. }));
        let is_away = matches!(
            error,
            ProvisionerError::Database(
                DatabaseError::Unreachable { .. } | DatabaseError::TimedOut { .. }
            )
        );
        // What nobody knows the outcome of is looked for before it is done again.
        let mut is_open = is_unknown;
        while is_open {
            clock.sleep(ASK_AGAIN).await;
            match provisioner.catalog().await {
                Ok(kept) if is_of(&kept, new) => {
                    return Ok(format!("Added OVA \"{}\".", new.name));
                }
                Ok(_) => is_open = false,
                Err(_) if clock.monotonic() < end => {}
                Err(_) => return Err(error),
            }
        }
        if !(is_unknown || is_away) || clock.monotonic() >= end {
            return Err(error);
        }
        clock.sleep(ASK_AGAIN).await;
    }
}

/// Whether the OVA is there, and not another of its name.
fn is_of(kept: &Catalog, new: &NewOva) -> bool {
    find_ova(kept, &new.name).is_ok_and(|ova| ova.volumes == new.volumes)
}

/// Removes the volumes of an OVA that are still there, or looks whether they can be.
pub async fn remove_volumes(api: &ApiState, volumes: Vec<VolumeId>) -> Result<()> {
    let (of, storage) = (api.clone(), api.storage()?);
    let time = api.settings().limits.change_time * TIMES;
    let work = async move {
        let keep = of.settings().removed_volumes_stay;
        for volume in volumes {
            let removed =
                storage::remove_volume(of.store(), storage.as_ref(), &volume, keep, false).await;
            match removed {
                Ok(_) => {}
                Err(ChangeError::Refused(storage::StorageRefusal::Storage(
                    StorageError::NoVolume { .. },
                )))
                | Err(ChangeError::Refused(storage::StorageRefusal::NoPool { .. })) => {}
                Err(error) => return Err(of.readers().refused(error)),
            }
        }
        Ok(())
    };
    api.outcome_within(time, work).await?.unwrap_or_else(|| {
        let message = format!("the storage is still at it after {} s, and goes on", time.as_secs());
        Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
            .hint(Some("do it again in a while: what is gone by then is gone")))
    })
}
