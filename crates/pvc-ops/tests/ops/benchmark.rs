//! The storage is measured by one task at a time.

use pvc_model::storage::PoolName;
use pvc_ops::benchmark::{BenchmarkRefusal, run_benchmark};
use pvc_store::ConfigChange;

use super::*;

#[tokio::test]
async fn of_two_benchmarks_asked_for_at_once_one_is_refused() {
    let world = World::with_nodes(&["hv1"]).await;
    world.announce_worker("hv1").await;
    world
        .write(|changes| {
            let (name, pgs, tier) = (PoolName::new("vms"), "8".to_owned(), "default".to_owned());
            changes.config(ConfigChange::Primary(Some("hv1".into())));
            changes.push(Change::PutPool { name, pgs, tier });
        })
        .await;
    let (slow, connection) = world.slow_process().await;
    let (faster, clock) = (world.store.clone(), world.clock.clone());
    connection.before_next_multi(async move {
        let random = SeededRandom::new(9);
        run_benchmark(&faster, &*clock, &random, "vms", Some("first"), "a").await.unwrap();
    });
    let second = run_benchmark(&slow, &*world.clock, &world.random, "vms", Some("other"), "b");
    let refusal = refused(second.await);
    assert!(matches!(refusal, BenchmarkRefusal::AtWork { .. }), "{refusal}");
    assert_eq!(world.store.fresh().await.unwrap().jobs.len(), 1);
}
