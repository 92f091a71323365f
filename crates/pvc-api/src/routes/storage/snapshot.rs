//! Snapshots of volumes.

use pvc_api_types::operation::Operation;
use pvc_api_types::operations::storage::{
    DeleteStorageCephSnapshotPoolVolumeSnapshot, GetStorageCephSnapshot,
    GetStorageCephSnapshotPoolVolumeSnapshot, PostStorageCephSnapshot,
    PostStorageCephSnapshotPoolVolumeSnapshot, PostStorageCephSnapshotPoolVolumeSnapshotRollback,
    PutStorageCephSnapshotPoolVolumeSnapshot,
};
use pvc_api_types::{Message, StorageSnapshot};
use pvc_model::job::StorageChange;
use pvc_model::storage::SnapshotName;
use pvc_ops::storage;

use super::{Long, act, act_long, volume_id};
use crate::answer::Answer;
use crate::error::{ApiError, Result};
use crate::limit::Limit;
use crate::state::ApiState;
use crate::table::{Ask, Mode, Table};
use crate::view::storage::snapshot as shown;

pub fn add(table: Table) -> Table {
    table
        .add(get_storage_ceph_snapshot)
        .add(post_storage_ceph_snapshot)
        .add(get_storage_ceph_snapshot_pool_volume_snapshot)
        .add(post_storage_ceph_snapshot_pool_volume_snapshot)
        .add(put_storage_ceph_snapshot_pool_volume_snapshot)
        .add(delete_storage_ceph_snapshot_pool_volume_snapshot)
        .add(post_storage_ceph_snapshot_pool_volume_snapshot_rollback)
}

async fn get_storage_ceph_snapshot(
    ask: Ask<GetStorageCephSnapshot>,
) -> Result<Answer<GetStorageCephSnapshot>> {
    let given = ask.params;
    let limit = Limit::new(given.limit.as_deref())?;
    let cluster = ask.api.view();
    let is_meant =
        |name: &str, only: &Option<String>| only.as_ref().is_none_or(|only| only == name);
    let volumes = cluster.volumes.values().filter(|volume| {
        is_meant(volume.id.pool.as_str(), &given.pool)
            && is_meant(volume.id.volume.as_str(), &given.volume)
    });
    let of = |volume: &pvc_model::storage::VolumeRecord| -> Vec<StorageSnapshot> {
        let found = volume.snapshots.iter().filter(|(name, _)| limit.matches(name.as_str()));
        found.map(|(name, text)| shown(&volume.id, name, text)).collect()
    };
    Ok(Answer::json(&volumes.flat_map(|volume| of(volume)).collect()))
}

async fn get_storage_ceph_snapshot_pool_volume_snapshot(
    ask: Ask<GetStorageCephSnapshotPoolVolumeSnapshot>,
) -> Result<Answer<GetStorageCephSnapshotPoolVolumeSnapshot>> {
    let [pool, volume, name] = ask.at;
    let id = volume_id(&pool, &volume);
    let cluster = ask.api.view();
    let snapshots = cluster.volumes.get(&id).into_iter().flat_map(|volume| &volume.snapshots);
    let found = snapshots.clone().find(|(found, _)| found.as_str() == name);
    let (found, text) = found.ok_or_else(|| {
        ApiError::not_found(format!("no snapshot `{name}` of volume `{id}` is recorded"))
            .hint(Some("`pvc storage volume scan` makes the records say what is there"))
    })?;
    Ok(Answer::json(&vec![shown(&id, found, text)]))
}

async fn post_storage_ceph_snapshot(
    ask: Ask<PostStorageCephSnapshot>,
) -> Result<Answer<PostStorageCephSnapshot>> {
    let given = ask.params;
    create(&ask.api, ask.mode, [given.pool, given.volume, given.snapshot]).await
}

async fn post_storage_ceph_snapshot_pool_volume_snapshot(
    ask: Ask<PostStorageCephSnapshotPoolVolumeSnapshot>,
) -> Result<Answer<PostStorageCephSnapshotPoolVolumeSnapshot>> {
    create(&ask.api, ask.mode, ask.at).await
}

async fn create<O: Operation<Reply = Message>>(
    api: &ApiState,
    mode: Mode,
    [pool, volume, name]: [String; 3],
) -> Result<Answer<O>> {
    let (id, snapshot) = (volume_id(&pool, &volume), SnapshotName::new(&name));
    act(api, |api, on| async move {
        let random = api.random().as_ref();
        storage::create_snapshot(api.store(), &*on, random, &id, &snapshot).await
    })
    .await?;
    Ok(mode.done(format!("Created snapshot \"{name}\" of volume \"{pool}/{volume}\".")))
}

async fn put_storage_ceph_snapshot_pool_volume_snapshot(
    ask: Ask<PutStorageCephSnapshotPoolVolumeSnapshot>,
) -> Result<Answer<PutStorageCephSnapshotPoolVolumeSnapshot>> {
    let ([pool, volume, name], new_name) = (ask.at, ask.params.new_name);
    let (id, snapshot) = (volume_id(&pool, &volume), SnapshotName::new(&name));
    let to = SnapshotName::new(&new_name);
    act(&ask.api, |api, on| async move {
        storage::rename_snapshot(api.store(), &*on, &id, &snapshot, &to).await
    })
    .await?;
    let (mode, of) = (ask.mode, format!("volume \"{pool}/{volume}\""));
    Ok(mode.done(format!("Renamed snapshot \"{name}\" of {of} to \"{new_name}\".")))
}

async fn delete_storage_ceph_snapshot_pool_volume_snapshot(
    ask: Ask<DeleteStorageCephSnapshotPoolVolumeSnapshot>,
) -> Result<Answer<DeleteStorageCephSnapshotPoolVolumeSnapshot>> {
    let ([pool, volume, name], force) = (ask.at, ask.params.force.0);
    let (id, snapshot) = (volume_id(&pool, &volume), SnapshotName::new(&name));
    act_long(
        &ask.api,
        Long::of(StorageChange::RemoveSnapshot, format!("{id}@{snapshot}"), &ask.caller),
        |api, on| async move {
            storage::remove_snapshot(api.store(), &*on, &id, &snapshot, force).await
        },
    )
    .await?;
    Ok(ask.mode.done(format!("Removed snapshot \"{name}\" of volume \"{pool}/{volume}\".")))
}

async fn post_storage_ceph_snapshot_pool_volume_snapshot_rollback(
    ask: Ask<PostStorageCephSnapshotPoolVolumeSnapshotRollback>,
) -> Result<Answer<PostStorageCephSnapshotPoolVolumeSnapshotRollback>> {
    let [pool, volume, name] = ask.at;
    let (id, snapshot) = (volume_id(&pool, &volume), SnapshotName::new(&name));
    act_long(
        &ask.api,
        Long::of(StorageChange::RollBackSnapshot, format!("{id}@{snapshot}"), &ask.caller),
        |api, on| async move {
            let random = api.random().as_ref();
            storage::roll_back(api.store(), &*on, random, &id, &snapshot).await
        },
    )
    .await?;
    Ok(ask.mode.done(format!("Rolled volume \"{pool}/{volume}\" back to snapshot \"{name}\".")))
}
