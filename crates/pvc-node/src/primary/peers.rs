//! Listens to the other coordinators: who lives is known from what this node hears itself, not from
//! what a daemon wrote before it died.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_model::node::NodeRole;
use pvc_model::primary::Peers;
use tokio_util::sync::CancellationToken;

use crate::shared::Shared;

/// Time between two looks at the peers, also when nothing changes.
pub(super) const EVERY: Duration = Duration::from_millis(500);

/// Time that the store may take to say whether a daemon is announced.
const ASK: Duration = Duration::from_secs(2);

/// Listens until `shutdown`.
pub(crate) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    let mut turns = shared.turns(&shutdown);
    let mut asked = None;
    while turns.next_change(EVERY).await {
        drop(seen(&shared, &shared.store.view()));
        if asked.is_none_or(|asked| shared.now().saturating_sub(asked) >= EVERY) {
            ask(&shared).await;
            asked = Some(shared.now());
        }
    }
}

/// Returns what is known of the others, with what `cluster` says of them.
pub(super) fn seen<'a>(shared: &'a Shared, cluster: &Cluster) -> MutexGuard<'a, Peers> {
    let mut peers = shared.role.peers();
    peers.look(cluster, shared.is_connected(), shared.now());
    peers
}

/// Asks whether the other coordinators' daemons are announced.
pub(super) async fn ask(shared: &Shared) {
    let view = shared.store.view();
    let others = view.nodes.values().filter(|node| node.name != *shared.name());
    for node in others.filter(|node| node.role == NodeRole::Coordinator) {
        ask_about(shared, &node.name).await;
    }
}

/// Whether there was an answer.
async fn ask_about(shared: &Shared, node: &NodeName) -> bool {
    let answer = shared.within(ASK, shared.store.announcement(node)).await.and_then(Result::ok);
    let mut peers = shared.role.peers();
    match answer {
        Some(announced) => peers.note_announced(node, announced),
        None => peers.note_no_answer(node),
    }
    answer.is_some()
}

/// Whether it is known, by an answer of now, that the node has nothing of the role but what its
/// record speaks of.
pub(super) async fn is_clear(shared: &Shared, node: &NodeName) -> bool {
    let answered = ask_about(shared, node).await;
    let view = shared.store.view();
    let peers = seen(shared, &view);
    answered && !view.nodes.get(node).is_some_and(|record| peers.is_doubtful(record))
}
