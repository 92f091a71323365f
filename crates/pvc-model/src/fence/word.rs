//! An operator's word that a node is off, where nothing else can prove it.

use crate::NodeName;
use crate::cluster::Cluster;
use crate::fence::{FenceNote, PowerAfter};
use crate::node::{DaemonState, NodeRecord};

/// Reason for which nobody's word is taken that a node is off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Doubt {
    /// Nobody has found it silent for as long as the others wait, or it has said that it stops.
    NotDead,
    /// Nothing is left to be proven.
    Proven,
    /// A sign of life is there.
    Lives(Sign),
}

/// Sign of life of a node that is taken for dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// The very request that says that the node is off is answered there.
    Answers,
    /// The daemon has a session with the store.
    Daemon,
    /// The worker has a session with the store.
    Worker,
    /// A keepalive was written since the node was taken for dead.
    Stamp,
}

impl std::fmt::Display for Sign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Sign::Answers => "the API that was asked runs on it",
            Sign::Daemon => "its daemon is connected to the store",
            Sign::Worker => "its worker is connected to the store",
            Sign::Stamp => "it has written a keepalive since it was taken for dead",
        })
    }
}

/// Doubt about the word that `node` is off, if there is any. `asked` is the node whose API was
/// told; `is_announced`: the node's daemon has a session.
///
/// Only who is taken for dead can be said to be off: of everybody else the fence finds out itself
/// whether they are silent. A fence that is under way does not matter: of the two proofs the first
/// counts.
pub fn doubt(
    cluster: &Cluster,
    node: &NodeRecord,
    asked: &NodeName,
    is_announced: bool,
) -> Option<Doubt> {
    match node.daemon_state {
        DaemonState::Dead => sign(cluster, node, asked, is_announced).map(Doubt::Lives),
        DaemonState::Fenced => Some(Doubt::Proven),
        _ => Some(Doubt::NotDead),
    }
}

fn sign(
    cluster: &Cluster,
    node: &NodeRecord,
    asked: &NodeName,
    is_announced: bool,
) -> Option<Sign> {
    // A note with a proof is of an earlier fence; an older peer that suspects writes none.
    let suspicion = node.fence.as_ref().filter(|fence| fence.proven_at.is_none());
    let stamp = suspicion.and_then(|fence| fence.stamp);
    let signs = [
        (node.name == *asked, Sign::Answers),
        (is_announced, Sign::Daemon),
        (cluster.workers.contains_key(&node.name), Sign::Worker),
        (stamp.is_some_and(|stamp| stamp != node.keepalives), Sign::Stamp),
    ];
    signs.into_iter().find(|(is_there, _)| *is_there).map(|(_, sign)| sign)
}

/// Note of the fence that ends with the word of `who`, at `now`, seconds since the epoch. Nobody
/// switches such a node on: somebody may be working at it.
pub fn confirmed(node: &NodeRecord, who: &str, now: i64) -> FenceNote {
    let begun = || FenceNote {
        stamp: Some(node.keepalives),
        by: who.to_owned(),
        suspected_at: now,
        ..FenceNote::default()
    };
    FenceNote {
        proven_at: Some(now),
        proof: format!("an operator (`{who}`) has confirmed that it is off"),
        power: PowerAfter::Untouched,
        ..node.present_fence().cloned().unwrap_or_else(begun)
    }
}
