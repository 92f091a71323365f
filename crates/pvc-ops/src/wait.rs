//! Waiting for what others do.

use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_ports::Clock;
use pvc_store::Store;

/// Waits until `look` finds something in the view, now or after one of the changes to come; `None`
/// if it found nothing within `time_limit`.
pub(crate) async fn wait_for<T>(
    store: &Store,
    clock: &dyn Clock,
    time_limit: Duration,
    mut look: impl FnMut(&Cluster) -> Option<T> + Send,
) -> Option<T> {
    let mut changed = store.changed();
    let mut over = clock.sleep(time_limit);
    loop {
        changed.borrow_and_update();
        if let Some(found) = look(&store.view()) {
            return Some(found);
        }
        tokio::select! {
            biased;
            change = changed.changed() => change.ok()?,
            () = &mut over => return look(&store.view()),
        }
    }
}
