//! The rules of the primary role, and the two parts of its hand-over.

mod handover;
mod peers;
mod steps;

use std::sync::Arc;
use std::time::Duration;

use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_model::node::{CoordinatorState, DaemonState, NodeRecord, NodeRole};
use pvc_model::primary::handover::{
    Action, Duty, Ending, Facts, HandOver, Lock, Named, Part, Peer, Phase, facts,
};
use pvc_model::primary::{
    Holder, LEASE_MARGIN, Own, Peers, PrimaryStep, Vacancy, holder, let_go_after, must_let_go,
    primary_step, vacancy,
};

use crate::records;

use CoordinatorState::{Client, Primary, Relinquish, Secondary, Takeover};

const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Time that the store remembers a silent session.
const SESSION: Duration = Duration::from_secs(10);

fn node(name: &str, state: CoordinatorState, daemon_state: DaemonState) -> NodeRecord {
    NodeRecord { daemon_state, coordinator_state: state, ..records::node(name) }
}

fn cluster(named: Option<&str>, nodes: Vec<NodeRecord>) -> Cluster {
    let nodes = nodes.into_iter().map(|node| (node.name.clone(), Arc::new(node))).collect();
    let mut cluster = Cluster { nodes, ..Cluster::default() };
    cluster.config.primary = named.map(NodeName::new);
    cluster
}

fn step(cluster: &Cluster, holds: bool, vacant_seconds: u64) -> PrimaryStep {
    step_of(cluster, holds, holds, vacant_seconds)
}

fn step_of(cluster: &Cluster, holds: bool, holds_all: bool, vacant_seconds: u64) -> PrimaryStep {
    let name = NodeName::new("hv1");
    let vacant_for = Duration::from_secs(vacant_seconds);
    primary_step(
        cluster,
        &Own {
            name: &name,
            holds,
            holds_all,
            vacant_for,
            time_limit: TIME_LIMIT,
            peers: &Peers::new(SESSION),
        },
    )
}

/// The record of a daemon of ours.
fn of_ours(record: NodeRecord) -> NodeRecord {
    let note =
        pvc_model::node::DaemonNote { version: record.pvc_version.clone(), ..Default::default() };
    NodeRecord { daemon: Some(note), ..record }
}
