//! Contents of volumes, in and out.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header;
use pvc_api_types::operations::storage::{
    GetStorageCephVolumePoolVolumeDownload, PostStorageCephVolumePoolVolumeUpload,
};
use pvc_model::storage::SnapshotName;
use pvc_ops::storage;

use super::volume_id;
use crate::answer::Answer;
use crate::error::{ApiError, Result};
use crate::outgoing;
use crate::refuse::refused;
use crate::state::ApiState;
use crate::table::{Ask, Table};

pub fn add(table: Table) -> Table {
    table.add(get_storage_ceph_volume_pool_volume_download)
}

async fn get_storage_ceph_volume_pool_volume_download(
    ask: Ask<GetStorageCephVolumePoolVolumeDownload>,
) -> Result<Answer<GetStorageCephVolumePoolVolumeDownload>> {
    let ([pool, name], api) = (ask.at, ask.api);
    let id = volume_id(&pool, &name);
    let snapshot = ask.params.snapshot.map(SnapshotName::new);
    let slot = api.downloads().take(&ask.caller.description, "downloads")?;
    let storage = api.storage()?;
    let begun = storage::download(api.store(), storage.as_ref(), &id, snapshot.as_ref());
    let download = api.ask(async { begun.await.map_err(refused) }).await?;
    let size = download.size_bytes();
    let (clock, stopping) = (api.clock().clone(), api.stopping().clone());
    let body = outgoing::body(download, clock, stopping, slot);
    Ok(Answer::bytes(size, &file_name(&name, snapshot.as_ref()), body))
}

/// The name under which a browser keeps the contents.
fn file_name(volume: &str, snapshot: Option<&SnapshotName>) -> String {
    match snapshot {
        Some(snapshot) => format!("{volume}@{snapshot}.raw"),
        None => format!("{volume}.raw"),
    }
}
