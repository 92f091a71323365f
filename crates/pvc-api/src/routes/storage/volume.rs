//! Volumes.

use std::time::Duration;

use axum::http::StatusCode;
use pvc_api_types::operation::Operation;
use pvc_api_types::operations::storage::{
    DeleteStorageCephVolumePoolVolume, GetStorageCephVolume, GetStorageCephVolumePoolVolume,
    PostStorageCephVolume, PostStorageCephVolumePoolVolume, PostStorageCephVolumePoolVolumeClone,
    PostStorageCephVolumePoolVolumeFlatten, PostStorageCephVolumePoolVolumeScan,
    PutStorageCephVolumePoolVolume,
};
use pvc_api_types::{Message, Volume};
use pvc_model::job::StorageChange;
use pvc_model::storage::{PoolName, VolumeId, VolumeName, VolumeRecord};
use pvc_model::with_causes;
use pvc_ops::storage::{self, CloneKind, Resized, Taken};
use pvc_ports::{Flattened, StorageError};
use pvc_store::{snapshot_text, volume_text};

use super::{Long, act, act_long, act_on_course, kept, size, volume_id};
use crate::answer::Answer;
use crate::error::{ApiError, Result};
use crate::limit::Limit;
use crate::state::ApiState;
use crate::table::{Ask, Mode, Table};
use crate::view::storage::volume;

pub fn add(table: Table) -> Table {
    table
        .add(get_storage_ceph_volume)
        .add(post_storage_ceph_volume)
        .add(get_storage_ceph_volume_pool_volume)
        .add(post_storage_ceph_volume_pool_volume)
        .add(put_storage_ceph_volume_pool_volume)
        .add(delete_storage_ceph_volume_pool_volume)
        .add(post_storage_ceph_volume_pool_volume_scan)
        .add(post_storage_ceph_volume_pool_volume_clone)
        .add(post_storage_ceph_volume_pool_volume_flatten)
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
    let id = volume_id(&pool, &name);
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
        .hint(Some("`pvc storage volume scan` makes the records say what is there")))
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
    let snapshots = found.snapshots.iter();
    let snapshots = snapshots.map(|one| (one.name.clone(), snapshot_text(&found.id, one).into()));
    Ok(Some(VolumeRecord {
        id: found.id.clone(),
        stats: volume_text(&found).into(),
        snapshots: snapshots.collect(),
    }))
}

async fn post_storage_ceph_volume(
    ask: Ask<PostStorageCephVolume>,
) -> Result<Answer<PostStorageCephVolume>> {
    let given = ask.params;
    let id = volume_id(&given.pool, &given.volume);
    create(&ask.api, ask.mode, id, &given.size, given.force.0).await
}

async fn post_storage_ceph_volume_pool_volume(
    ask: Ask<PostStorageCephVolumePoolVolume>,
) -> Result<Answer<PostStorageCephVolumePoolVolume>> {
    let ([pool, name], given) = (ask.at, ask.params);
    create(&ask.api, ask.mode, volume_id(&pool, &name), &given.size, given.force.0).await
}

async fn create<O: Operation<Reply = Message>>(
    api: &ApiState,
    mode: Mode,
    id: VolumeId,
    text: &str,
    force: bool,
) -> Result<Answer<O>> {
    let (bytes, message) = (size("size", text)?, format!("Created volume \"{id}\"."));
    act(api, |api, on| async move {
        storage::create_volume(api.store(), &*on, &id, bytes, force).await
    })
    .await?;
    Ok(mode.done(message))
}

async fn put_storage_ceph_volume_pool_volume(
    ask: Ask<PutStorageCephVolumePoolVolume>,
) -> Result<Answer<PutStorageCephVolumePoolVolume>> {
    let ([pool, name], given) = (ask.at.clone(), ask.params.clone());
    let (id, force) = (volume_id(&pool, &name), given.force.0);
    match (given.new_size, given.new_name) {
        (Some(text), None) => resize(ask, id, size("new_size", &text)?, force).await,
        (None, Some(to)) => rename(&ask.api, ask.mode, id, VolumeName::new(to), force).await,
        (None, None) => Err(ApiError::refused("neither `new_size` nor `new_name` was given")),
        (Some(_), Some(_)) => {
            Err(ApiError::refused("`new_size` and `new_name` are two changes: one at a time"))
        }
    }
}

async fn resize(
    ask: Ask<PutStorageCephVolumePoolVolume>,
    id: VolumeId,
    bytes: u64,
    force: bool,
) -> Result<Answer<PutStorageCephVolumePoolVolume>> {
    let (name, submitter) = (id.to_string(), ask.caller.description.to_string());
    let resized = act_long(
        &ask.api,
        Long::of(StorageChange::ResizeVolume, &id, &ask.caller),
        |api, on| async move {
            let (clock, random) = (api.clock().as_ref(), api.random().as_ref());
            storage::resize_volume(api.store(), &*on, clock, random, &id, bytes, force, &submitter)
                .await
        },
    )
    .await?;
    Ok(ask.mode.done(resized_message(&name, &resized)))
}

/// The sentences about a volume of another size, and about the guests that use it.
fn resized_message(name: &str, resized: &Resized) -> String {
    let Resized { from_bytes, to_bytes, notified, unaware } = resized;
    let mut message = format!("Resized volume \"{name}\" from {from_bytes} to {to_bytes} bytes.");
    if !notified.is_empty() {
        message.push_str(&format!(" Running VMs are notified by tasks: {}.", notified.join(", ")));
    }
    if !unaware.is_empty() {
        let vms = unaware.join(", ");
        message.push_str(&format!(" VMs that see it only when they are started again: {vms}."));
    }
    message
}

async fn rename(
    api: &ApiState,
    mode: Mode,
    id: VolumeId,
    to: VolumeName,
    force: bool,
) -> Result<Answer<PutStorageCephVolumePoolVolume>> {
    let message = format!("Renamed volume \"{id}\" to \"{to}\".");
    act(
        api,
        |api, on| async move { storage::rename_volume(api.store(), &*on, &id, &to, force).await },
    )
    .await?;
    Ok(mode.done(message))
}

async fn delete_storage_ceph_volume_pool_volume(
    ask: Ask<DeleteStorageCephVolumePoolVolume>,
) -> Result<Answer<DeleteStorageCephVolumePoolVolume>> {
    let ([pool, name], given) = (ask.at, ask.params);
    let (id, force) = (volume_id(&pool, &name), given.force.0);
    let mut message = format!("Removed volume \"{id}\".");
    let keep = match given.purge.0 {
        true => Duration::ZERO,
        false => ask.api.settings().removed_volumes_stay,
    };
    let removed = act_long(
        &ask.api,
        Long::of(StorageChange::RemoveVolume, &id, &ask.caller),
        |api, on| async move { storage::remove_volume(api.store(), &*on, &id, keep, force).await },
    );
    match removed.await? {
        Taken::Kept(entry) => message.push_str(&kept(&[entry])),
        Taken::Removed if ask.mode.is_dry() && !keep.is_zero() => {
            message.push_str(&format!(" It can be restored for {} h.", keep.as_secs() / 3600));
        }
        Taken::Removed | Taken::Absent => {}
    }
    Ok(ask.mode.done(message))
}

async fn post_storage_ceph_volume_pool_volume_scan(
    ask: Ask<PostStorageCephVolumePoolVolumeScan>,
) -> Result<Answer<PostStorageCephVolumePoolVolumeScan>> {
    let [pool, name] = ask.at;
    let id = volume_id(&pool, &name);
    let mut message = format!("Recorded how volume \"{id}\" is.");
    let force = ask.params.force.0;
    let looked = act(&ask.api, |api, on| async move {
        match force {
            true => storage::scan_and_let_go(api.store(), &*on, &id).await,
            false => storage::scan(api.store(), &*on, &id).await.map(|()| false),
        }
    });
    if looked.await? {
        message.push_str(" It is not held any more.");
    }
    Ok(ask.mode.done(message))
}

async fn post_storage_ceph_volume_pool_volume_clone(
    ask: Ask<PostStorageCephVolumePoolVolumeClone>,
) -> Result<Answer<PostStorageCephVolumePoolVolumeClone>> {
    let ([pool, name], given) = (ask.at, ask.params);
    let (id, to) = (volume_id(&pool, &name), VolumeName::new(&given.new_volume));
    let force = given.force.0 || given.force_flag.0;
    let kind = match given.copy_on_write.0 {
        true => CloneKind::CopyOnWrite,
        false => CloneKind::Full,
    };
    let message = format!("Cloned volume \"{id}\" as \"{to}\" in pool \"{pool}\".");
    let long = Long::of(StorageChange::CloneVolume, format!("{id} to {to}"), &ask.caller);
    let cloned = act_on_course(&ask.api, long, |api, on, course| async move {
        storage::clone_volume(api.store(), &*on, &id, &to, kind, force, &course).await
    });
    cloned.await?;
    Ok(ask.mode.done(message))
}

async fn post_storage_ceph_volume_pool_volume_flatten(
    ask: Ask<PostStorageCephVolumePoolVolumeFlatten>,
) -> Result<Answer<PostStorageCephVolumePoolVolumeFlatten>> {
    let ([pool, name], force) = (ask.at, ask.params.force.0);
    let id = volume_id(&pool, &name);
    let long = Long::of(StorageChange::FlattenVolume, &id, &ask.caller);
    let flattened = act_on_course(&ask.api, long, |api, on, course| async move {
        storage::flatten_volume(api.store(), &*on, &id, force, &course).await
    });
    Ok(ask.mode.done(match flattened.await? {
        Flattened::From(_) => format!("Flattened volume \"{pool}/{name}\"."),
        Flattened::Independent => format!("Volume \"{pool}/{name}\" depends on no other."),
    }))
}
