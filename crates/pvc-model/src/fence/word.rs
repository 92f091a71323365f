//! An operator's word that a node is off, where nothing else can prove it.

use std::time::Duration;

use crate::NodeName;
use crate::cluster::Cluster;
use crate::fence::{FenceNote, PowerAfter};
use crate::node::{DaemonState, NodeRecord};

/// Time for which a node that the others do not watch is watched before a word about it counts: one
/// that lives and reaches the store has a session by then, or has written a keepalive.
pub const WATCH: Duration = Duration::from_secs(15);

/// Reason for which nobody's word is taken that a node is off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Doubt {
    /// Nobody has found it silent for as long as the others wait, and it says that it runs.
    NotDead,
    /// Nothing is left to be proven.
    Proven,
    /// A sign of life is there.
    Lives(Sign),
}

/// Sign of life of a node that is said to be off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// The very request that says that the node is off is answered there.
    Answers,
    /// The daemon has a session with the store.
    Daemon,
    /// The worker has a session with the store.
    Worker,
    /// A keepalive was written while the node was watched.
    Stamp,
    /// The daemon's state was changed while the node was watched.
    State,
}

impl std::fmt::Display for Sign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Sign::Answers => "the API that was asked runs on it",
            Sign::Daemon => "its daemon is connected to the store",
            Sign::Worker => "its worker is connected to the store",
            Sign::Stamp => "it has just written a keepalive",
            Sign::State => "the state of its daemon has just changed",
        })
    }
}

/// Whether `node` has to be watched for [`WATCH`] before a word about it counts. Who says that it
/// starts or stops is watched by nobody. Nor is, in maintenance, a dead node that has stamped since
/// it was suspected.
pub fn has_to_be_watched(node: &NodeRecord) -> bool {
    // A note with a proof is of an earlier fence; a legacy peer that suspects writes none.
    let suspicion = node.fence.as_ref().filter(|fence| fence.proven_at.is_none());
    let stamp = suspicion.and_then(|fence| fence.stamp);
    node.daemon_state != DaemonState::Dead || stamp.is_some_and(|stamp| stamp != node.keepalives)
}

/// Doubt about the word that `node` is off, if there is any. `before` is its record when it was
/// first looked at, [long ago](WATCH) if it [has to be watched](has_to_be_watched); `asked` is the
/// node whose API was told; `is_announced`: the node's daemon has a session; `nobody_fences`: no
/// node is ever taken for dead.
///
/// Of who says that it runs, the fence finds out itself whether they are silent, unless nobody
/// fences. Who says that it stops, or starts, may never be taken for dead by anybody. A fence that
/// is under way does not matter: of the two proofs the first counts.
pub fn doubt(
    cluster: &Cluster,
    node: &NodeRecord,
    before: &NodeRecord,
    asked: &NodeName,
    is_announced: bool,
    nobody_fences: bool,
) -> Option<Doubt> {
    let lives = || sign_of_life(cluster, node, before, asked, is_announced).map(Doubt::Lives);
    match &node.daemon_state {
        DaemonState::Init | DaemonState::Shutdown | DaemonState::Stop | DaemonState::Dead => {
            lives()
        }
        DaemonState::Run if nobody_fences => lives(),
        // The records were restored, and its daemon has not been heard of since.
        DaemonState::Unknown(word) if word.is_empty() => lives(),
        DaemonState::Fenced => Some(Doubt::Proven),
        DaemonState::Run | DaemonState::Unknown(_) => Some(Doubt::NotDead),
    }
}

/// Sign of life that `node` shows, if there is any; the parameters are those of [`doubt`].
pub fn sign_of_life(
    cluster: &Cluster,
    node: &NodeRecord,
    before: &NodeRecord,
    asked: &NodeName,
    is_announced: bool,
) -> Option<Sign> {
    // Who is taken for dead has not said so.
    let has_spoken =
        node.daemon_state != before.daemon_state && node.daemon_state != DaemonState::Dead;
    let signs = [
        (node.name == *asked, Sign::Answers),
        (is_announced, Sign::Daemon),
        (cluster.workers.contains_key(&node.name), Sign::Worker),
        (node.keepalives != before.keepalives, Sign::Stamp),
        (has_spoken, Sign::State),
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
    // One with a proof is of an earlier fence, also if no keepalive came since.
    let suspicion = node.present_fence().filter(|fence| fence.proven_at.is_none());
    FenceNote {
        proven_at: Some(now),
        proof: format!("an operator (`{who}`) has confirmed that it is off"),
        power: PowerAfter::Untouched,
        ..suspicion.cloned().unwrap_or_else(begun)
    }
}
