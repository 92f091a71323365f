//! Fill of pools over time: a sample of each now and then, kept in the store.
//!
//! Whoever collects the figures of pools keeps their history with them.

use std::convert::Infallible;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::fullness::{FullnessRecord, Ratios, Sample, extended, is_due};
use pvc_ports::{PoolInfo, StorageError};
use pvc_role::Context;
use pvc_store::{Change, Changes, Report};

/// Time that the store may take for the samples.
const DEADLINE: Duration = Duration::from_secs(5);

/// Adds to the history of each of `pools` for which a sample is due. `ratios` is asked only then;
/// ratios that are not answered are as they were.
pub(crate) async fn note(
    context: &Context,
    pools: &[PoolInfo],
    ratios: impl Future<Output = Result<Ratios, StorageError>>,
) {
    let (view, at) = (context.store.view(), context.ports.clock.wall().as_secs());
    let is_wanted = |pool: &&PoolInfo| {
        view.pools.contains_key(&pool.name) && is_due(&record(&view, pool).samples, at)
    };
    let due: Vec<&PoolInfo> = pools.iter().filter(is_wanted).collect();
    if due.is_empty() {
        return;
    }
    let ratios = ratios.await.ok();
    let report = |pool: &&PoolInfo| {
        let known = record(&view, pool);
        let PoolInfo { name, stored_bytes, free_bytes } = (*pool).clone();
        let samples = extended(&known.samples, Sample { at, stored_bytes, free_bytes });
        Report::Fullness(name, FullnessRecord { ratios: ratios.unwrap_or(known.ratios), samples })
    };
    write(context, due.iter().map(report).collect()).await;
}

fn record(view: &Cluster, pool: &PoolInfo) -> FullnessRecord {
    view.fullness.get(&pool.name).map(|record| (**record).clone()).unwrap_or_default()
}

async fn write(context: &Context, samples: Vec<Report>) {
    let written = async {
        context.store.report(samples).await?;
        context.store.change(forget_gone).await
    };
    if let Err(error) = context.in_time(DEADLINE, written).await {
        let error = &error as &dyn std::error::Error;
        tracing::debug!(error, "how full the pools are could not be written; it is tried again");
    }
}

/// Forgets pools that are no more: legacy peers remove a pool without its history.
fn forget_gone(cluster: &Cluster) -> Result<(Changes, ()), Infallible> {
    let mut changes = Changes::new();
    for name in cluster.fullness.keys().filter(|name| !cluster.pools.contains_key(*name)) {
        changes.push(Change::ForgetFullness(name.clone()));
    }
    Ok((changes, ()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pvc_embedded::EmbeddedTree;
    use pvc_model::NodeName;
    use pvc_model::storage::PoolName;
    use pvc_ports::Ports;
    use pvc_store::Store;
    use pvc_testkit::{SeededRandom, TokioClock, ports};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const GIB: u64 = 1 << 30;

    fn content(stored: u64) -> PoolInfo {
        let (stored_bytes, free_bytes) = (stored * GIB, (1000 - stored) * GIB);
        PoolInfo { name: PoolName::new("vms"), stored_bytes, free_bytes }
    }

    async fn context() -> Context {
        let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(1)));
        let store = Store::open(EmbeddedTree::in_memory().connect(), clock.clone(), random.clone())
            .await
            .unwrap();
        store.initialize(false).await.unwrap();
        let context = Context::new(NodeName::new("hv1"), Ports { clock, random, ..ports() }, store);
        add_pool(&context).await;
        context
    }

    async fn add_pool(context: &Context) {
        let (name, pgs, tier) = (PoolName::new("vms"), "32".to_owned(), "default".to_owned());
        change(context, Change::PutPool { name, pgs, tier }).await;
    }

    async fn change(context: &Context, change: Change) {
        let decide = |_: &Cluster| {
            let mut changes = Changes::new();
            changes.push(change.clone());
            Ok::<_, Infallible>((changes, ()))
        };
        context.store.change(decide).await.unwrap();
    }

    async fn history(context: &Context) -> Vec<u64> {
        let view = context.store.fresh().await.unwrap();
        let record = view.fullness.get(&PoolName::new("vms"));
        record.map_or(Vec::new(), |record| {
            record.samples.iter().map(|sample| sample.stored_bytes / GIB).collect()
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_sample_is_taken_each_hour_of_pools_that_are_recorded() {
        let context = context().await;
        let other = PoolInfo { name: PoolName::new("of-another"), ..content(5) };
        for stored in 1..=3 {
            for _ in 0..3 {
                let pools = [content(stored), other.clone()];
                note(&context, &pools, async { Ok(Ratios::default()) }).await;
            }
            context.sleep(HOUR).await;
        }
        assert_eq!(history(&context).await, [1, 2, 3]);
        assert_eq!(context.store.fresh().await.unwrap().fullness.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_cluster_says_of_its_osds_is_kept_while_it_says_nothing() {
        let context = context().await;
        let own = Ratios::new(0.7, 0.8, 0.9).unwrap();
        note(&context, &[content(1)], async { Ok(own) }).await;
        context.sleep(HOUR).await;
        let doing = "saying how it is".to_owned();
        let silent = async { Err(StorageError::TimedOut { doing, seconds: 5 }) };
        note(&context, &[content(1)], silent).await;
        let view = context.store.fresh().await.unwrap();
        let record = &view.fullness[&PoolName::new("vms")];
        assert_eq!((record.ratios, record.samples.len()), (own, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn a_history_goes_with_its_pool() {
        let context = context().await;
        note(&context, &[content(1)], async { Ok(Ratios::default()) }).await;
        assert_eq!(history(&context).await, [1]);
        change(&context, Change::RemovePool(PoolName::new("vms"))).await;
        assert_eq!(history(&context).await, [0; 0]);
        add_pool(&context).await;
        note(&context, &[content(7)], async { Ok(Ratios::default()) }).await;
        assert_eq!(history(&context).await, [7], "it begins anew");
        // A legacy peer removes the pool alone.
        let mut without = (*context.store.fresh().await.unwrap()).clone();
        without.pools.remove(&PoolName::new("vms"));
        let (changes, ()) = forget_gone(&without).unwrap();
        assert!(format!("{changes:?}").contains("ForgetFullness(PoolName(\"vms\"))"));
    }
}
