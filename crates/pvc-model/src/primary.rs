//! Who is the primary coordinator.
//!
//! The key in the store names who should be; each node makes that true of itself. Between two living
//! coordinators the role goes over in steps that both take part in; those come with the cluster
//! release. Until then a coordinator becomes primary only when no other holds the role.

use std::time::Duration;

use crate::NodeName;
use crate::cluster::Cluster;
use crate::node::{CoordinatorState, DaemonState, NodeRecord, NodeRole};

/// What a node does about the primary role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PrimaryStep {
    Nothing,
    /// Write the own name as the primary's, if nobody else's stands there by then.
    Claim,
    /// Write this as the own state.
    Become(CoordinatorState),
}

/// Decides for node `me`. `vacant_for` is how long the key has named nobody; `patience` how long a
/// primary leaves it so for others to contend before it puts its own name back.
pub fn primary_step(
    cluster: &Cluster,
    me: &NodeName,
    vacant_for: Duration,
    patience: Duration,
) -> PrimaryStep {
    use CoordinatorState::{Client, Primary, Secondary};
    let Some(own) = cluster.nodes.get(me) else { return PrimaryStep::Nothing };
    let state = &own.coordinator_state;
    let become_unless = |wanted: CoordinatorState| match *state == wanted {
        true => PrimaryStep::Nothing,
        false => PrimaryStep::Become(wanted),
    };
    if own.role != NodeRole::Coordinator {
        return become_unless(Client);
    }
    match named(cluster) {
        Some(name) if name == me => match holder(cluster, me) {
            Some(_) => PrimaryStep::Nothing,
            None => become_unless(Primary),
        },
        Some(_) => become_unless(Secondary),
        None if *state == Primary => match vacant_for >= patience && !is_taken_over(cluster) {
            true => PrimaryStep::Claim,
            false => PrimaryStep::Nothing,
        },
        None if own.daemon_state == DaemonState::Run => PrimaryStep::Claim,
        None => PrimaryStep::Nothing,
    }
}

/// The node that the key names. A name that no node has is nobody's.
pub fn named(cluster: &Cluster) -> Option<&NodeName> {
    cluster.config.primary.as_ref().filter(|name| cluster.nodes.contains_key(*name))
}

/// Another living node that has the role or is at it.
fn holder<'a>(cluster: &'a Cluster, me: &NodeName) -> Option<&'a NodeName> {
    let holds = |node: &NodeRecord| {
        let lives = matches!(node.daemon_state, DaemonState::Run | DaemonState::Shutdown);
        lives && !matches!(node.coordinator_state, CoordinatorState::Secondary | CoordinatorState::Client)
    };
    cluster.nodes.values().find(|node| node.name != *me && holds(node)).map(|node| &node.name)
}

fn is_taken_over(cluster: &Cluster) -> bool {
    cluster.nodes.values().any(|node| node.coordinator_state == CoordinatorState::Takeover)
}
