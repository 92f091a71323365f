//! Stamps of the others, as one observer has itself seen them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::NodeName;
use crate::attention::Attention;
use crate::cluster::Cluster;
use crate::fence::Rules;
use crate::node::{DaemonState, NodeRecord};

/// Time that each node has been silent, of the time that this observer listened.
///
/// The observer may lose its connection and find its session again: then either nobody could write,
/// because the store had no leader, or the observer alone was away, for less than a session lasts.
/// What was written meanwhile it sees when it is back, so a stamp that is the same was not written
/// in all that time. Of such a silence only a part counts. The rest has to be heard in the present
/// connection, in time in which the stamps of others, or its own, show that the store took writes:
/// so that a node that lives has had the time to come back as well.
#[derive(Debug, Clone, Default)]
pub struct Sightings {
    /// Most that silence from before the present connection counts.
    carried: Duration,
    /// Between stamps of whomever that are further apart, the store may have taken no writes.
    writes_within: Duration,
    attention: Attention,
    /// The session in which was listened last.
    session: Option<i64>,
    is_connected: bool,
    nodes: BTreeMap<NodeName, Sighting>,
    /// Nodes without a sign of life since this observer has begun to look, in whatever session.
    unheard: BTreeMap<NodeName, Unheard>,
    showed_life: BTreeSet<NodeName>,
}

/// Node that an observer knows from the records alone.
#[derive(Debug, Clone)]
struct Unheard {
    stamp: i32,
    state: DaemonState,
    /// Time in which a sign of life would have been seen.
    listened: Duration,
}

#[derive(Debug, Clone)]
struct Sighting {
    stamp: i32,
    /// State of the daemon in its record.
    state: DaemonState,
    /// The silence before the present connection, as long as this observer ran; `None` if there is
    /// none.
    before: Option<Duration>,
    /// The silence in the present connection.
    in_connection: Duration,
    /// Part of that which lies between stamps of others.
    witnessed: Duration,
    /// Since the last of these.
    unwitnessed: Duration,
}

impl Sighting {
    fn of(node: &NodeRecord) -> Self {
        Sighting {
            stamp: node.keepalives,
            state: node.daemon_state.clone(),
            before: None,
            in_connection: Duration::ZERO,
            witnessed: Duration::ZERO,
            unwitnessed: Duration::ZERO,
        }
    }

    /// The connection is lost, or was for a time: all silence so far lies before the next one.
    fn interrupt(&mut self, passed: Duration) {
        self.before = Some(self.before.unwrap_or_default() + self.in_connection + passed);
        (self.in_connection, self.witnessed, self.unwitnessed) = Default::default();
    }

    fn listen(&mut self, listened: Duration, is_witnessed: bool, writes_within: Duration) {
        self.in_connection += listened;
        self.unwitnessed += listened;
        if is_witnessed {
            let unwitnessed = std::mem::take(&mut self.unwitnessed);
            self.witnessed +=
                if unwitnessed <= writes_within { unwitnessed } else { Duration::ZERO };
        }
    }
}

impl Sightings {
    /// Nobody has been seen yet.
    pub fn new(rules: &Rules) -> Self {
        let writes_within = 2 * rules.keepalive_interval;
        Sightings { carried: rules.carried(), writes_within, ..Sightings::default() }
    }

    /// Looks at everybody's stamp at `now`, by the observer's monotonic clock. One that says that
    /// it starts or runs is heard with that: its first stamp may come a moment later.
    ///
    /// `session` is the observer's with the store, while it is connected. Without a connection
    /// nobody is heard. In another session than the last all silence is forgotten: the others may
    /// have been heard while this observer was away, and whoever was away for so long waits the
    /// full time for everyone (I8).
    pub fn look(&mut self, cluster: &Cluster, session: Option<i64>, now: Duration) {
        let passed = self.attention.look(now);
        let Some(session) = session else {
            self.is_connected = false;
            self.nodes.values_mut().for_each(|sighting| sighting.interrupt(passed));
            return;
        };
        if self.session != Some(session) {
            self.nodes.clear();
        } else if !self.is_connected {
            self.nodes.values_mut().for_each(|sighting| sighting.interrupt(passed));
        }
        let listened = if self.is_connected { passed } else { Duration::ZERO };
        (self.session, self.is_connected) = (Some(session), true);
        self.nodes.retain(|name, _| cluster.nodes.contains_key(name));
        self.listen_to_the_unheard(cluster, listened);
        let wrote =
            |(name, seen): (&NodeName, &Sighting)| cluster.nodes[name].keepalives != seen.stamp;
        let is_witnessed = self.nodes.iter().any(wrote);
        for (name, node) in &cluster.nodes {
            let is_same = |seen: &&mut Sighting| {
                seen.stamp == node.keepalives && !says_it_lives(&seen.state, node)
            };
            let Some(seen) = self.nodes.get_mut(name).filter(is_same) else {
                self.nodes.insert(name.clone(), Sighting::of(node));
                continue;
            };
            seen.state = node.daemon_state.clone();
            seen.listen(listened, is_witnessed, self.writes_within);
            // The client of a legacy peer may rest for most of a minute before it looks for the
            // store again.
            if seen.before.is_some() && !node.runs_our_daemon() {
                seen.before = Some(Duration::ZERO);
            }
        }
    }

    /// Looks for the first sign of life of each node: a stamp that it writes, or its word that it
    /// starts or runs. What was written while this observer was away it sees afterwards, also in
    /// another session.
    fn listen_to_the_unheard(&mut self, cluster: &Cluster, listened: Duration) {
        self.unheard.retain(|name, _| cluster.nodes.contains_key(name));
        self.showed_life.retain(|name| cluster.nodes.contains_key(name));
        for (name, node) in &cluster.nodes {
            if self.showed_life.contains(name) {
                continue;
            }
            let Some(unheard) = self.unheard.get_mut(name) else {
                let (stamp, state) = (node.keepalives, node.daemon_state.clone());
                let unheard = Unheard { stamp, state, listened: Duration::ZERO };
                self.unheard.insert(name.clone(), unheard);
                continue;
            };
            if unheard.stamp != node.keepalives || says_it_lives(&unheard.state, node) {
                self.unheard.remove(name);
                self.showed_life.insert(name.clone());
            } else {
                unheard.state = node.daemon_state.clone();
                unheard.listened += listened;
            }
        }
    }

    /// Time that this observer has listened to `node` without ever having heard it; `None` if it
    /// has heard it, in whatever session.
    pub fn unheard(&self, node: &NodeName) -> Option<Duration> {
        self.unheard.get(node).map(|unheard| unheard.listened)
    }

    /// Nodes that have shown a sign of life since this observer has begun to look.
    pub fn seen_alive(&self) -> &BTreeSet<NodeName> {
        &self.showed_life
    }

    /// Time that `node` has been silent. A node that was never seen has not.
    pub fn silent(&self, node: &NodeName) -> Duration {
        let Some(seen) = self.nodes.get(node) else { return Duration::ZERO };
        match seen.before {
            None => seen.in_connection,
            Some(before) => before.min(self.carried) + seen.witnessed,
        }
    }
}

/// Whether `node` has said that it starts or runs since its state was `before`.
fn says_it_lives(before: &DaemonState, node: &NodeRecord) -> bool {
    node.daemon_state != *before
        && matches!(node.daemon_state, DaemonState::Init | DaemonState::Run)
}
