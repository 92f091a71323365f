//! Waiting for what others do.

use std::time::Duration;

use pvc_model::NodeName;
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

/// Silence of a node after which nobody waits for it any more, by this process's own clock. Twice
/// the time after which a node is usually looked at for a fence.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);

/// Reason why nothing was found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unfound {
    /// Time was over before it was found.
    TooSlow,
    /// The node that it depends on has not stamped for [`SILENCE`].
    Silent(NodeName),
}

/// Waits as [`wait_for`] does, and gives up when the node on which it depends has said nothing for
/// [`SILENCE`]: `node` is asked which that is, at the begin and after each such time.
pub(crate) async fn wait_for_node<T>(
    store: &Store,
    clock: &dyn Clock,
    time_limit: Duration,
    node: impl Fn(&Cluster) -> Option<NodeName> + Send,
    mut look: impl FnMut(&Cluster) -> Option<T> + Send,
) -> Result<T, Unfound> {
    let stamp = || {
        let view = store.view();
        let name = node(&view)?;
        Some((view.node(name.as_str())?.keepalives, name))
    };
    let mut from = clock.monotonic();
    let end = from + time_limit;
    loop {
        let before = stamp();
        let part = end.saturating_sub(from).min(SILENCE);
        if let Some(found) = wait_for(store, clock, part, &mut look).await {
            return Ok(found);
        }
        let now = clock.monotonic();
        let waited = now.saturating_sub(from);
        // While the store is away nobody is heard of.
        let is_seen = waited >= SILENCE && store.fresh().await.is_ok();
        if let Some(found) = look(&store.view()) {
            return Ok(found);
        }
        match before.filter(|before| is_seen && stamp().as_ref() == Some(before)) {
            Some((_, node)) => return Err(Unfound::Silent(node)),
            None if now >= end || waited < part => return Err(Unfound::TooSlow),
            None => from = now,
        }
    }
}
