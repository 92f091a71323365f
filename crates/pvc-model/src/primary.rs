//! Rules of the role of primary coordinator.
//!
//! The key in the store names who should be; each node makes that true of itself. Between two
//! living coordinators the role goes over in lock step: see [`handover`]. At most one of them has
//! the floating addresses (I12), so whoever cannot know whether it still has the role lets go of
//! them.

pub mod handover;
mod peers;

use std::time::Duration;

use crate::NodeName;
use crate::cluster::Cluster;
use crate::node::{CoordinatorState, DaemonState, NodeRecord, NodeRole};

pub use peers::{LEASE_MARGIN, Peers, let_go_after};

/// Step that a node takes about the primary role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PrimaryStep {
    Nothing,
    /// Write this as the own state.
    Become(CoordinatorState),
    /// Let go of whatever of the role's addresses is here: they are somebody else's, or nobody's.
    Drop,
    /// Try to be the one whose name is written, against others who try the same.
    Contend,
    /// A primary whose name the key has lost, with nobody coming forward: write it again.
    Reclaim,
    /// Take the role over, in lock step with whoever has it.
    TakeOver,
    /// Give the role to whom the key names, in lock step.
    HandOver,
}

/// State of a node that it knows of itself beside the records.
#[derive(Debug, Clone)]
pub struct Own<'a> {
    pub name: &'a NodeName,
    /// Whether this node serves as primary right now, whatever its record says.
    pub holds: bool,
    /// Whether nothing of what a primary has is missing, and the right to it has never lapsed.
    pub holds_all: bool,
    /// Time for which the key has been [vacant](vacancy) for the present reason.
    pub vacant_for: Duration,
    /// Time that others are given to come forward before what they were asked is done without them.
    pub time_limit: Duration,
    /// The node's own view of the others.
    pub peers: &'a Peers,
}

/// Reason why the key names nobody who could have the role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Vacancy {
    /// The key is empty, or says `none`: whoever can should contend.
    Asked,
    /// The key names no node of the cluster, or one that is no coordinator.
    NoCoordinator(NodeName),
    /// The key names a coordinator whose daemon has ended, or has not been heard of for long
    /// enough.
    Gone(NodeName),
    /// The key names a coordinator whose daemon is starting.
    Starting(NodeName),
    /// The key names a legacy peer that runs and does nothing about it, while nobody has the role:
    /// that one acts on what it hears once, and may not have heard.
    Idle(NodeName),
    /// The key names a coordinator that is leaving, is suspected of being dead, or says of itself
    /// what nobody here understands: that one, or who fences it, says when the role is free.
    Undecided(NodeName),
}

/// Factor of the time limit for a daemon that starts: a legacy peer takes half a minute.
const STARTING: u32 = 6;

/// Factor of the time limit for a legacy peer that runs, to take what it was given.
const IDLE: u32 = 3;

/// Returns why the key names nobody who could have the role; `None` if it names a coordinator that
/// runs.
pub fn vacancy(cluster: &Cluster, peers: &Peers) -> Option<Vacancy> {
    let Some(name) = cluster.config.primary.as_ref() else { return Some(Vacancy::Asked) };
    let Some(node) = cluster.nodes.get(name).filter(|node| node.role == NodeRole::Coordinator)
    else {
        return Some(Vacancy::NoCoordinator(name.clone()));
    };
    match node.daemon_state {
        _ if peers.is_absent(node) => Some(Vacancy::Gone(name.clone())),
        DaemonState::Run => is_idle(cluster, node, peers).then(|| Vacancy::Idle(name.clone())),
        DaemonState::Init => (!has_its_part(node)).then(|| Vacancy::Starting(name.clone())),
        // Of one in a state that nobody here knows it can only be told whether it lives.
        DaemonState::Shutdown | DaemonState::Dead | DaemonState::Unknown(_) => {
            Some(Vacancy::Undecided(name.clone()))
        }
        DaemonState::Stop | DaemonState::Fenced => Some(Vacancy::Gone(name.clone())),
    }
}

/// Whether `node` is a legacy peer that leaves the role where it is, which is nowhere.
fn is_idle(cluster: &Cluster, node: &NodeRecord, peers: &Peers) -> bool {
    !node.runs_our_daemon()
        && node.coordinator_state == CoordinatorState::Secondary
        && !somebody_serves(cluster, peers)
}

/// Whether somebody who lives has the role, takes it or gives it away.
fn somebody_serves(cluster: &Cluster, peers: &Peers) -> bool {
    use CoordinatorState::{Primary, Relinquish, Takeover};
    let has_part = |node: &NodeRecord| {
        lives(node, peers) && matches!(node.coordinator_state, Primary | Relinquish | Takeover)
    };
    cluster.nodes.values().any(|node| has_part(node))
}

/// Decides for one node.
pub fn primary_step(cluster: &Cluster, own: &Own<'_>) -> PrimaryStep {
    let Some(record) = cluster.nodes.get(own.name) else {
        return if own.holds { PrimaryStep::Drop } else { PrimaryStep::Nothing };
    };
    if record.role != NodeRole::Coordinator {
        return settle(record, own, CoordinatorState::Client);
    }
    if cluster.config.primary.as_ref() == Some(own.name) {
        return named(record, own);
    }
    match vacancy(cluster, own.peers) {
        None => other_is_named(record, own),
        Some(vacancy) => nobody_is_named(cluster, record, own, &vacancy),
    }
}

/// The key names this node.
fn named(record: &NodeRecord, own: &Own<'_>) -> PrimaryStep {
    match record.daemon_state {
        DaemonState::Init | DaemonState::Run => {
            match record.coordinator_state == CoordinatorState::Primary && own.holds_all {
                true => PrimaryStep::Nothing,
                false => PrimaryStep::TakeOver,
            }
        }
        DaemonState::Shutdown => PrimaryStep::Nothing,
        // Others took this node for dead, and will not wait for it to let go.
        _ => settle(record, own, CoordinatorState::Secondary),
    }
}

/// The key names another coordinator, which runs.
///
/// The locks of a hand-over do not say who has them. So nobody plays the holder's part but a
/// primary that has the role: one that gave it up when the store was silent may find its record as
/// it left it, while the role goes from one to another of the others.
fn other_is_named(record: &NodeRecord, own: &Own<'_>) -> PrimaryStep {
    use CoordinatorState::{Primary, Relinquish, Takeover};
    match record.coordinator_state {
        Primary | Takeover | Relinquish if own.holds_all => PrimaryStep::HandOver,
        _ => settle(record, own, CoordinatorState::Secondary),
    }
}

fn nobody_is_named(
    cluster: &Cluster,
    record: &NodeRecord,
    own: &Own<'_>,
    why: &Vacancy,
) -> PrimaryStep {
    let runs = record.daemon_state == DaemonState::Run;
    if record.coordinator_state == CoordinatorState::Primary && !taken_for_dead(record) {
        let is_unclaimed = own.vacant_for >= own.time_limit && !is_taken_over(cluster, own.peers);
        return if runs && is_unclaimed { PrimaryStep::Reclaim } else { PrimaryStep::Nothing };
    }
    match settle(record, own, CoordinatorState::Secondary) {
        PrimaryStep::Nothing
            if runs && own.vacant_for >= wait_before_contending(cluster, own, why) =>
        {
            PrimaryStep::Contend
        }
        settled => settled,
    }
}

/// Time that a vacancy must last before a node that does not have the role contends for it.
fn wait_before_contending(cluster: &Cluster, own: &Own<'_>, why: &Vacancy) -> Duration {
    let alone =
        !cluster.nodes.values().any(|node| node.name != *own.name && lives(node, own.peers));
    match why {
        Vacancy::Asked => Duration::ZERO,
        Vacancy::NoCoordinator(_) if alone => Duration::ZERO,
        Vacancy::Gone(_) if !somebody_serves(cluster, own.peers) => Duration::ZERO,
        // A primary that serves on puts its own name back first.
        Vacancy::NoCoordinator(_) | Vacancy::Gone(_) => own.time_limit * 2,
        Vacancy::Idle(_) => own.time_limit * IDLE,
        Vacancy::Starting(_) => own.time_limit * STARTING,
        Vacancy::Undecided(_) => Duration::MAX,
    }
}

/// Towards a state in which the node has nothing of the role.
fn settle(record: &NodeRecord, own: &Own<'_>, idle: CoordinatorState) -> PrimaryStep {
    match (own.holds, record.coordinator_state == idle) {
        (true, _) => PrimaryStep::Drop,
        (false, false) => PrimaryStep::Become(idle),
        (false, true) => PrimaryStep::Nothing,
    }
}

fn taken_for_dead(record: &NodeRecord) -> bool {
    matches!(record.daemon_state, DaemonState::Dead | DaemonState::Fenced)
}

/// Whether a node is a coordinator whose daemon serves, as far as anybody knows.
fn lives(node: &NodeRecord, peers: &Peers) -> bool {
    let serves = match node.daemon_state {
        DaemonState::Run | DaemonState::Shutdown | DaemonState::Unknown(_) => true,
        DaemonState::Init => has_its_part(node),
        DaemonState::Stop | DaemonState::Dead | DaemonState::Fenced => false,
    };
    node.role == NodeRole::Coordinator && serves && !peers.is_absent(node)
}

/// Whether a starting daemon of ours has, takes or gives away the role by now. With its first word
/// it says that it has nothing; and it may not say `run` for long, when its hypervisor does not
/// answer.
fn has_its_part(node: &NodeRecord) -> bool {
    use CoordinatorState::{Primary, Relinquish, Takeover};
    node.runs_our_daemon() && matches!(node.coordinator_state, Primary | Relinquish | Takeover)
}

fn is_taken_over(cluster: &Cluster, peers: &Peers) -> bool {
    cluster
        .nodes
        .values()
        .any(|node| lives(node, peers) && node.coordinator_state == CoordinatorState::Takeover)
}

/// Other coordinator that has the role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder<'a> {
    Nobody,
    /// Node that has it, or has not quite let go of it.
    One(&'a NodeName),
    /// Node that may have it, and is not the only one.
    Unclear(&'a NodeName),
}

/// The other coordinator that has the role. One that died while it let go still says so until its
/// silence has lasted long enough, beside the one that has the role since: then it is waited until
/// only one is left.
pub fn holder<'a>(cluster: &'a Cluster, me: &NodeName, peers: &Peers) -> Holder<'a> {
    use CoordinatorState::{Primary, Relinquish};
    let holds = |node: &&NodeRecord| {
        node.name != *me
            && lives(node, peers)
            && matches!(node.coordinator_state, Primary | Relinquish)
    };
    let holders: Vec<&NodeRecord> =
        cluster.nodes.values().map(|node| &**node).filter(holds).collect();
    match holders[..] {
        [] => Holder::Nobody,
        [one] => Holder::One(&one.name),
        [first, ..] => {
            let silent = holders.iter().find(|node| !peers.is_announced(&node.name));
            Holder::Unclear(&silent.unwrap_or(&first).name)
        }
    }
}

/// Decides whether a primary that has had no word from the store for `silent_for` must let go: the
/// store may give its session up after that long, and the role to somebody else.
///
/// `silent_for` counts from the moment at which the last request that was answered was *sent*.
pub fn must_let_go(silent_for: Duration, session_timeout: Duration) -> bool {
    silent_for >= session_timeout
}
