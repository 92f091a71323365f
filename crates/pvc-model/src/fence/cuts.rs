//! The nodes whose power one fencer has cut, until the store knows more.
//!
//! With such a node the store may have lost its quorum: of three coordinators one is dead for good,
//! and of the second only the daemon hangs. Then nothing can be written of its death, and nobody
//! else is told to switch it on again. Nor does a sign of life say that it stays on: a BMC may do
//! what it was told some time after, when nobody waits for it any more, and whoever told it to
//! switch the power on meanwhile has told it too early.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::NodeName;
use crate::cluster::Cluster;
use crate::node::DaemonState;
use crate::vm::backoff::Backoff;

/// Time that the store may be away after a cut until the node is switched on without it: servers
/// that are left have elected another leader by then, and a BMC has done what it was told.
const WITHOUT_STORE: Duration = Duration::from_secs(30);

/// The nodes that this fencer has told a BMC to cut off, and of which no record says yet what
/// became of it.
#[derive(Debug, Clone, Default)]
pub struct Cuts(BTreeMap<NodeName, Cut>);

#[derive(Debug, Clone)]
struct Cut {
    /// The node's stamp when its power was cut.
    stamp: i32,
    at: Duration,
    /// Failed attempts to switch it on again.
    attempts: Backoff,
}

impl Cuts {
    /// The power of `node` was cut at `now`, or may have been, with `stamp` as its last sign of
    /// life.
    pub fn cut(&mut self, node: NodeName, stamp: i32, now: Duration) {
        self.0.insert(node, Cut { stamp, at: now, attempts: Backoff::default() });
    }

    /// Forgets those of which the store says at `now` more than that they are taken for dead: their
    /// fence goes on by what is recorded, or they live, and the cut is so long ago that nothing
    /// comes of it any more.
    pub fn observe(&mut self, cluster: &Cluster, now: Duration) {
        self.0.retain(|name, cut| {
            let Some(node) = cluster.nodes.get(name) else { return false };
            match node.daemon_state {
                DaemonState::Dead if node.keepalives == cut.stamp => true,
                DaemonState::Dead | DaemonState::Init | DaemonState::Run => {
                    now < cut.at + WITHOUT_STORE
                }
                _ => false,
            }
        });
    }

    /// Nodes to be switched on at `now`, without a store that could be asked.
    pub fn due(&self, now: Duration) -> Vec<NodeName> {
        let is_due =
            |cut: &Cut| now >= cut.at + WITHOUT_STORE && cut.attempts.wait_until(now).is_none();
        self.0.iter().filter(|(_, cut)| is_due(cut)).map(|(name, _)| name.clone()).collect()
    }

    /// The node was switched on at `now`: for good if that was so long after the cut that nothing
    /// comes of it any more.
    pub fn was_switched_on(&mut self, node: &NodeName, now: Duration) {
        self.0.retain(|name, cut| name != node || now < cut.at + WITHOUT_STORE);
    }

    /// The node could not be switched on.
    pub fn could_not_switch_on(&mut self, node: &NodeName, now: Duration) {
        if let Some(cut) = self.0.get_mut(node) {
            cut.attempts.unreachable(now);
        }
    }
}
