//! The nodes whose power one fencer has cut, until nothing more can come of it.
//!
//! With such a node the store may have lost its quorum: of three coordinators one is dead for good,
//! and of the second only the daemon hangs. Then nothing can be written of its death, and nobody
//! else is told to switch it on again. Nor does a sign of life say that it stays on: a BMC may do
//! what it was told some time after, when nobody waits for it any more, and whoever told it to
//! switch the power on meanwhile has told it too early.

use std::collections::BTreeMap;
use std::time::Duration;

use super::is_power_due;
use crate::NodeName;
use crate::cluster::Cluster;
use crate::node::DaemonState;
use crate::vm::backoff::Backoff;

/// Time that the store may be away after a cut until the node is switched on without it: servers
/// that are left have elected another leader by then, and a connection that broke is made anew.
const WITHOUT_STORE: Duration = Duration::from_secs(30);

/// Time after the end of a command to cut in which something may come of it: a BMC may take half a
/// minute, and servers and session as long to notice that the quorum went with the node.
pub(super) const MAY_COME_LATE: Duration = Duration::from_secs(90);

/// Time after which a node that lived when the store was last heard is left alone: somebody may
/// have switched it off since.
const GIVE_UP: Duration = Duration::from_secs(600);

/// The nodes that this fencer has told a BMC to cut off, and that may have to be switched on
/// without the store.
#[derive(Debug, Clone, Default)]
pub struct Cuts {
    cuts: BTreeMap<NodeName, Cut>,
    /// Time of the last answer of the store.
    last_contact: Duration,
}

#[derive(Debug, Clone)]
struct Cut {
    at: Duration,
    last: Last,
    /// Attempts to switch it on again that have failed, or may have been too early.
    attempts: Backoff,
}

/// State of a node when the store was last heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    Dead,
    Alive,
    /// Power is the operator's: the node stops, was stopped, or the cluster is in maintenance.
    Stopped,
}

impl Cuts {
    /// The power of `node` was cut at `now`, or may have been.
    pub fn cut(&mut self, node: NodeName, now: Duration) {
        let attempts = Backoff::default();
        self.cuts.insert(node, Cut { at: now, last: Last::Dead, attempts });
    }

    /// Takes in what the store says at `now`. Forgets those that a fencer has switched on since,
    /// or an operator has said to be off, and those that live, if the cut is so long ago that
    /// nothing comes of it any more.
    pub fn observe(&mut self, cluster: &Cluster, now: Duration) {
        self.last_contact = now;
        self.cuts.retain(|name, cut| {
            let Some(node) = cluster.nodes.get(name) else { return false };
            let (last, is_kept) = match node.daemon_state {
                DaemonState::Dead => (Last::Dead, true),
                DaemonState::Fenced => (Last::Dead, is_power_due(node)),
                DaemonState::Shutdown | DaemonState::Stop => (Last::Stopped, cut.may_come(now)),
                _ => (Last::Alive, cut.may_come(now)),
            };
            cut.last = if cluster.config.maintenance { Last::Stopped } else { last };
            is_kept
        });
    }

    /// Nodes to be switched on at `now`, without a store that could be asked.
    pub fn due(&self, now: Duration) -> Vec<NodeName> {
        let is_away = |cut: &Cut| now >= cut.at.max(self.last_contact) + WITHOUT_STORE;
        let due = self.cuts.iter().filter(|(_, cut)| is_away(cut) && cut.is_wanted(now));
        due.map(|(name, _)| name.clone()).collect()
    }

    /// The node was switched on at `now`: for good, if nothing comes of the cut any more.
    pub fn was_switched_on(&mut self, node: &NodeName, now: Duration) {
        match self.cuts.get_mut(node) {
            Some(cut) if cut.may_come(now) => cut.attempts.unreachable(now),
            _ => drop(self.cuts.remove(node)),
        }
    }

    /// The node could not be switched on.
    pub fn could_not_switch_on(&mut self, node: &NodeName, now: Duration) {
        if let Some(cut) = self.cuts.get_mut(node) {
            cut.attempts.unreachable(now);
        }
    }
}

impl Cut {
    fn may_come(&self, now: Duration) -> bool {
        now < self.at + MAY_COME_LATE
    }

    fn is_wanted(&self, now: Duration) -> bool {
        let is_ours = match self.last {
            Last::Dead => true,
            Last::Alive => now < self.at + GIVE_UP,
            Last::Stopped => false,
        };
        is_ours && self.attempts.wait_until(now).is_none()
    }
}
