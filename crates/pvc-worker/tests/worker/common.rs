//! Store of a test, what is written to it, and what is read of its jobs.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::job::{JobId, JobProgress};
use pvc_ports::Tree;
use pvc_store::{Change, Changes, Store};
use pvc_testkit::{SeededRandom, TokioClock, eventually_some};

pub async fn open(tree: Arc<dyn Tree>) -> Store {
    let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(1)));
    Store::open(tree, clock, random).await.expect("an open tree can be read")
}

/// Writes the changes, whatever there is.
pub async fn write_all(store: &Store, add: impl Fn(&mut Changes) + Send + Sync) {
    let decide = |_: &Cluster| {
        let mut changes = Changes::new();
        add(&mut changes);
        Ok::<_, Infallible>((changes, ()))
    };
    store.change(decide).await.expect("the tree is open");
}

/// Writes the change, whatever there is.
pub async fn write(store: &Store, change: Change) {
    write_all(store, |changes| _ = changes.push(change.clone())).await;
}

pub fn progress(store: &Store, id: &JobId) -> Option<JobProgress> {
    store.view().jobs.get(id).map(|job| job.progress.clone())
}

/// Waits until the job has ended.
pub async fn end_of(store: &Store, id: &JobId, time_limit: Duration) -> JobProgress {
    let ended = || progress(store, id).filter(|progress| progress.state.is_over());
    eventually_some("the job ends", time_limit, ended).await
}
