//! Removed volumes that are still kept.

use pvc_api_types::TrashedVolume;
use pvc_api_types::operations::storage::{
    DeleteStorageCephTrashPoolId, GetStorageCephTrash, PostStorageCephTrashPoolIdRestore,
};
use pvc_model::job::StorageChange;
use pvc_model::shown;
use pvc_model::storage::{PoolName, TrashId, VolumeName};
use pvc_ops::storage;

use super::{Long, act, act_long};
use crate::answer::Answer;
use crate::error::{ApiError, Result};
use crate::state::ApiState;
use crate::table::{Ask, Table};
use crate::view::storage::trashed_volume;

pub fn add(table: Table) -> Table {
    table
        .add(get_storage_ceph_trash)
        .add(post_storage_ceph_trash_pool_id_restore)
        .add(delete_storage_ceph_trash_pool_id)
}

async fn get_storage_ceph_trash(
    ask: Ask<GetStorageCephTrash>,
) -> Result<Answer<GetStorageCephTrash>> {
    let (api, only) = (ask.api, ask.params.pool.map(PoolName::new));
    let (lists, clock) = (api.trash_lists().clone(), api.clock().clone());
    let listed = lists.answered(clock, only.clone(), async move { list(&api, only).await });
    Ok(Answer::json(&*listed.await?))
}

async fn list(api: &ApiState, only: Option<PoolName>) -> Result<Vec<TrashedVolume>> {
    let found =
        act(api, |api, on| async move { storage::trashed(&api.view(), &*on, only.as_ref()).await });
    Ok(found.await?.iter().map(trashed_volume).collect())
}

async fn post_storage_ceph_trash_pool_id_restore(
    ask: Ask<PostStorageCephTrashPoolIdRestore>,
) -> Result<Answer<PostStorageCephTrashPoolIdRestore>> {
    let ([pool, id], to) = (ask.at, ask.params.new_name.map(VolumeName::new));
    let (pool, id) = (PoolName::new(pool), trash_id(&id)?);
    let restored = act(&ask.api, |api, on| async move {
        storage::restore_volume(api.store(), &*on, &pool, &id, to.as_ref()).await
    });
    let volume = restored.await?;
    Ok(ask.mode.done(format!("Restored volume \"{volume}\".")))
}

async fn delete_storage_ceph_trash_pool_id(
    ask: Ask<DeleteStorageCephTrashPoolId>,
) -> Result<Answer<DeleteStorageCephTrashPoolId>> {
    let [pool, id] = ask.at;
    let (pool, id) = (PoolName::new(pool), trash_id(&id)?);
    let purged = act_long(
        &ask.api,
        Long::of(StorageChange::PurgeTrash, format!("{pool}, {id}"), &ask.caller),
        |api, on| async move { storage::purge_volume(api.store(), &*on, &pool, &id).await },
    );
    let entry = purged.await?;
    Ok(ask.mode.done(format!("Purged volume \"{}/{}\" from the trash.", entry.pool, entry.name)))
}

fn trash_id(text: &str) -> Result<TrashId> {
    TrashId::parse(text).ok_or_else(|| {
        let message = format!("`{}` is no identifier of a volume in the trash", shown(text));
        ApiError::not_found(message).hint(Some("`pvc storage trash list` shows them"))
    })
}
