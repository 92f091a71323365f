//! Changes of networks that nobody confirmed, taken back.
//!
//! Every node counts by itself, from when it first sees a change, and whichever comes first writes:
//! the one that made it may be cut off by it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::guest_network::unconfirmed::UnconfirmedChange;
use pvc_ops::network;
use pvc_role::{Context, Superseded};
use tokio_util::sync::CancellationToken;

/// Time between two looks while nothing changes and nothing is due.
const INTERVAL: Duration = Duration::from_secs(60);

/// Time that the store may take for a write. It is tried again.
const STORE: Duration = Duration::from_secs(10);

/// Time between two tries.
const AGAIN: Duration = Duration::from_secs(1);

/// A change that waits, and when it is taken back, by the monotonic clock.
struct Waiting {
    change: Arc<UnconfirmedChange>,
    due: Duration,
}

/// Takes back what is not confirmed in time, until `end`.
pub async fn run(context: Context, end: CancellationToken) {
    let mut waiting = BTreeMap::new();
    let mut turns = context.turns(&end);
    let mut rest = Duration::ZERO;
    while turns.next_change(rest).await {
        look(&context.store.view(), context.now(), &mut waiting);
        rest = INTERVAL;
        for (vni, Waiting { change, due }) in &waiting {
            rest = rest.min(match due.checked_sub(context.now()) {
                Some(left) if !left.is_zero() => left,
                _ => take_back(&context, vni, change).await,
            });
        }
    }
}

/// Notes changes that are new, and forgets those that are confirmed, taken back, or replaced.
fn look(view: &Cluster, now: Duration, waiting: &mut BTreeMap<String, Waiting>) {
    waiting.retain(|vni, waiting| view.unconfirmed.get(vni) == Some(&waiting.change));
    for (vni, change) in view.unconfirmed.iter() {
        let due = now + Duration::from_secs(change.seconds.into());
        let new = || Waiting { change: change.clone(), due };
        waiting.entry(vni.clone()).or_insert_with(new);
    }
}

/// Returns the time until it is looked at again.
async fn take_back(context: &Context, vni: &str, change: &Arc<UnconfirmedChange>) -> Duration {
    let decide = |view: &Cluster| match view.unconfirmed.get(vni) {
        Some(present) if present == change => Ok((network::take_back(view, vni, change), ())),
        _ => Err(Superseded),
    };
    let failed = "a change of a network that nobody confirmed is not taken back; it is tried again";
    let late = "the store does not take a change back in time; it is tried again";
    if context.change(STORE, decide, failed, late).await {
        tracing::warn!(vni, "a change of a network was not confirmed in time, and is taken back");
    }
    AGAIN
}
