//! What one observer has itself seen of the others' stamps.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::NodeName;
use crate::attention::Attention;
use crate::cluster::Cluster;
use crate::node::DaemonState;

/// How long each node has been silent, in the time that this observer listened.
#[derive(Debug, Clone, Default)]
pub struct Sightings {
    attention: Attention,
    nodes: BTreeMap<NodeName, Sighting>,
}

#[derive(Debug, Clone, Copy)]
struct Sighting {
    stamp: i32,
    /// Whether its record said that it runs.
    runs: bool,
    silent: Duration,
}

impl Sightings {
    /// Looks at everybody's stamp at `now`, by the observer's monotonic clock. One that says it runs is heard with that:
    /// its first stamp may come a moment later.
    ///
    /// Without a connection nobody is heard, and all silence is forgotten: whoever returns from an outage
    /// waits the full time for everyone (I8).
    pub fn look(&mut self, cluster: &Cluster, is_connected: bool, now: Duration) {
        if !is_connected {
            *self = Sightings::default();
            return;
        }
        let heard = self.attention.look(now);
        self.nodes.retain(|name, _| cluster.nodes.contains_key(name));
        for (name, node) in &cluster.nodes {
            let (stamp, runs) = (node.keepalives, node.daemon_state == DaemonState::Run);
            let new = Sighting { stamp, runs, silent: Duration::ZERO };
            let sighting = self.nodes.entry(name.clone()).or_insert(new);
            *sighting = match sighting.stamp == stamp && (sighting.runs || !runs) {
                true => Sighting { silent: sighting.silent + heard, ..new },
                false => new,
            };
        }
    }

    /// How long `node` has been silent. A node that was never seen has not.
    pub fn silent(&self, node: &NodeName) -> Duration {
        self.nodes.get(node).map_or(Duration::ZERO, |sighting| sighting.silent)
    }
}
