//! What one observer has itself seen of the others' stamps.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::NodeName;
use crate::cluster::Cluster;

/// How long each node has been silent, in the time that this observer listened.
#[derive(Debug, Clone, Default)]
pub struct Sightings {
    last_look: Option<Duration>,
    nodes: BTreeMap<NodeName, Sighting>,
}

#[derive(Debug, Clone, Copy)]
struct Sighting {
    stamp: i32,
    silent: Duration,
}

impl Sightings {
    /// Looks at everybody's stamp at `now`, by the observer's monotonic clock.
    ///
    /// The time since the last look counts as silence only if it is not longer than `longest_gap`: who was
    /// frozen, or starved of processor time, did not listen. Without a connection nobody is heard, and all
    /// silence is forgotten: whoever returns from an outage waits the full time for everyone (I8).
    pub fn look(&mut self, cluster: &Cluster, is_connected: bool, now: Duration, longest_gap: Duration) {
        if !is_connected {
            *self = Sightings::default();
            return;
        }
        let passed = self.last_look.map_or(Duration::ZERO, |last| now.saturating_sub(last));
        let heard = if passed <= longest_gap { passed } else { Duration::ZERO };
        self.last_look = Some(now);
        self.nodes.retain(|name, _| cluster.nodes.contains_key(name));
        for (name, node) in &cluster.nodes {
            let stamp = node.keepalives;
            let new = Sighting { stamp, silent: Duration::ZERO };
            let sighting = self.nodes.entry(name.clone()).or_insert(new);
            *sighting = match sighting.stamp == stamp {
                true => Sighting { stamp, silent: sighting.silent + heard },
                false => new,
            };
        }
    }

    /// How long `node` has been silent. A node that was never seen has not.
    pub fn silent(&self, node: &NodeName) -> Duration {
        self.nodes.get(node).map_or(Duration::ZERO, |sighting| sighting.silent)
    }
}
