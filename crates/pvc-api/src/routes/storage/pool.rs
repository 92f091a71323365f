//! Pools.

use pvc_api_types::operation::Operation;
use pvc_api_types::operations::storage::{
    DeleteStorageCephPoolPool, GetStorageCephPool, GetStorageCephPoolPool, PostStorageCephPool,
    PostStorageCephPoolPool, PutStorageCephPoolPool, TierWord,
};
use pvc_api_types::{Message, Pool};
use pvc_model::job::StorageChange;
use pvc_model::pool::{PoolSpec, Replication, Tier};
use pvc_model::storage::PoolName;
use pvc_ops::storage::{self, RemovedPool};

use super::{Long, act, act_on_course};
use crate::answer::Answer;
use crate::error::{ApiError, Result};
use crate::limit::Limit;
use crate::state::ApiState;
use crate::table::{Ask, Mode, Table};
use crate::view::storage::pool;

pub fn add(table: Table) -> Table {
    table
        .add(get_storage_ceph_pool)
        .add(post_storage_ceph_pool)
        .add(get_storage_ceph_pool_pool)
        .add(post_storage_ceph_pool_pool)
        .add(put_storage_ceph_pool_pool)
        .add(delete_storage_ceph_pool_pool)
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

async fn post_storage_ceph_pool(
    ask: Ask<PostStorageCephPool>,
) -> Result<Answer<PostStorageCephPool>> {
    let given = ask.params;
    create(&ask.api, ask.mode, given.pool, given.pgs, &given.replcfg, given.tier).await
}

async fn post_storage_ceph_pool_pool(
    ask: Ask<PostStorageCephPoolPool>,
) -> Result<Answer<PostStorageCephPoolPool>> {
    let ([name], given) = (ask.at, ask.params);
    create(&ask.api, ask.mode, name, given.pgs, &given.replcfg, given.tier).await
}

async fn create<O: Operation<Reply = Message>>(
    api: &ApiState,
    mode: Mode,
    name: String,
    placement_groups: u32,
    replication: &str,
    tier: Option<TierWord>,
) -> Result<Answer<O>> {
    let replication = Replication::parse(replication)
        .map_err(|bad| ApiError::parameter("replcfg", bad.to_string()))?;
    let tier = match tier.unwrap_or(TierWord::Default) {
        TierWord::Default => Tier::Default,
        TierWord::Hdd => Tier::Hdd,
        TierWord::Ssd => Tier::Ssd,
        TierWord::Nvme => Tier::Nvme,
    };
    let spec = PoolSpec { name: PoolName::new(&name), placement_groups, replication, tier };
    act(api, |api, on| async move { storage::create_pool(api.store(), &*on, &spec).await }).await?;
    Ok(mode.done(format!("Created pool \"{name}\".")))
}

async fn put_storage_ceph_pool_pool(
    ask: Ask<PutStorageCephPoolPool>,
) -> Result<Answer<PutStorageCephPoolPool>> {
    let ([name], count) = (ask.at, ask.params.pgs);
    let pool = PoolName::new(&name);
    act(&ask.api, |api, on| async move {
        storage::set_placement_groups(api.store(), &*on, &pool, count).await
    })
    .await?;
    Ok(ask.mode.done(format!("Set pool \"{name}\" to {count} placement groups.")))
}

async fn delete_storage_ceph_pool_pool(
    ask: Ask<DeleteStorageCephPoolPool>,
) -> Result<Answer<DeleteStorageCephPoolPool>> {
    let ([name], given) = (ask.at, ask.params);
    if given.really != "yes" {
        let why = "removing a pool destroys all that is in it: `yes` says that it is meant";
        return Err(ApiError::parameter("yes-i-really-mean-it", why));
    }
    let (pool, force) = (PoolName::new(&name), given.force.0);
    let long = Long::of(StorageChange::RemovePool, &pool, &ask.caller);
    let gone = act_on_course(&ask.api, long, |api, on, course| async move {
        storage::remove_pool(api.store(), &*on, &pool, force, &course).await
    });
    let RemovedPool { volumes, trashed } = gone.await?;
    let mut message = format!("Removed pool \"{name}\" with {volumes} volumes.");
    if trashed > 0 {
        message.push_str(&format!(" Purged {trashed} volumes from its trash."));
    }
    Ok(ask.mode.done(message))
}
