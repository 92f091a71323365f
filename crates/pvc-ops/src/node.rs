//! Asks about one node.

mod removal;

use std::collections::BTreeSet;
use std::sync::Arc;

use pvc_model::fence::{self, Doubt, Sign};
use pvc_model::flush::{Fate, fates};
use pvc_model::node::removal::NotRemoved;
use pvc_model::node::{CoordinatorState, DaemonState, DomainState, NodeRecord, NodeRole};
use pvc_model::placement::Promises;
use pvc_model::{NodeName, Uuid, cluster::Cluster};
use pvc_ports::Clock;
use pvc_store::{ChangeError, Changes, ConfigChange, Expect, NodeChange, Store, death};

use crate::refusal::{Kind, NoNode, Refusal, find_node};

pub use removal::{Removal, remove, watch_for_removal};

/// Part that a node is to have in the coordination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CoordinatorRequest {
    Primary,
    Secondary,
}

/// Whether a node is to take VMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DomainRequest {
    Ready,
    /// Move its VMs away and take no more.
    Flush,
}

/// Word of an operator that a node is without power, or gone.
#[derive(Debug, Clone)]
pub struct OffWord {
    /// Name of the node, as given.
    pub node: String,
    /// Operator who says so, as logs call them.
    pub who: String,
    /// Node whose API was asked.
    pub asked: NodeName,
    /// Whether the VMs of a node that is proven dead are started elsewhere.
    pub recover: bool,
    /// Whether no node is ever taken for dead: then the word counts also of one that is in `run`.
    pub nobody_fences: bool,
}

/// First look at a node that an operator's word says is off, or that is to be removed: no sign of
/// life was there. The watch that it needed is over.
#[derive(Debug, Clone)]
pub struct Watched(Arc<NodeRecord>);

/// Outcome of a request to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requested {
    /// The node will see to it.
    Yes,
    /// The node sees to it already.
    UnderWay,
    /// The node is in that state already.
    Already,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeRefusal {
    #[error(transparent)]
    NoNode(#[from] NoNode),
    #[error("node `{node}` is no coordinator")]
    NotCoordinator { node: NodeName },
    #[error("the daemon of node `{node}` is in state `{state}`, not `run`")]
    NotRunning { node: NodeName, state: DaemonState },
    #[error("no other coordinator runs that could become primary instead of node `{node}`")]
    NobodyElse { node: NodeName },
    #[error("node `{node}` is being fenced")]
    Fenced { node: NodeName },
    #[error(
        "node `{node}` is in domain state `{state}`, runs PVC 1.0.3, and cannot be reversed on \
         its way"
    )]
    LegacyPeerIsBusy { node: NodeName, state: DomainState },
    #[error("the daemon of node `{node}` is in state `{state}`, not `dead`")]
    NotDead { node: NodeName, state: DaemonState },
    #[error("node `{node}` is proven dead already")]
    Proven { node: NodeName },
    #[error("node `{node}` shows a sign of life: {sign}")]
    Lives { node: NodeName, sign: Sign },
    #[error(transparent)]
    NotRemoved(#[from] NotRemoved),
}

impl Refusal for NodeRefusal {
    fn kind(&self) -> Kind {
        match self {
            NodeRefusal::NoNode(error) => error.kind(),
            NodeRefusal::NotCoordinator { .. } => Kind::Invalid,
            NodeRefusal::NotRunning { .. }
            | NodeRefusal::NobodyElse { .. }
            | NodeRefusal::Fenced { .. }
            | NodeRefusal::LegacyPeerIsBusy { .. }
            | NodeRefusal::NotDead { .. }
            | NodeRefusal::Proven { .. }
            | NodeRefusal::Lives { .. }
            | NodeRefusal::NotRemoved(_) => Kind::Conflict,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            NodeRefusal::NoNode(error) => error.hint(),
            NodeRefusal::NotCoordinator { .. } => {
                Some("coordinators are named in the configuration of all nodes".to_owned())
            }
            NodeRefusal::NotRunning { .. } => {
                Some("`pvc node list` shows the nodes that run".to_owned())
            }
            NodeRefusal::NobodyElse { .. } => {
                Some("start the daemon of another coordinator first".to_owned())
            }
            NodeRefusal::Fenced { .. } => {
                Some("wait until its VMs are recovered, and for the node to return".to_owned())
            }
            NodeRefusal::LegacyPeerIsBusy { state, .. } => {
                let done = if *state == DomainState::Flush { "flushed" } else { "ready" };
                Some(format!("wait until it is in domain state `{done}`, then ask again"))
            }
            NodeRefusal::NotDead { node, .. } => Some(format!(
                "wait until `pvc node info {node}` says `dead`: the others find out whether it is \
                 silent; if it lives, `pvc node flush {node}` moves its VMs away"
            )),
            NodeRefusal::Proven { node } => {
                Some(format!("`pvc node info {node}` shows how, and what became of its VMs"))
            }
            NodeRefusal::Lives { node, .. } => Some(format!(
                "look at `pvc node info {node}` again in some seconds; if it lives, `pvc node \
                 flush {node}` moves its VMs away"
            )),
            NodeRefusal::NotRemoved(why) => Some(why.hint()),
        }
    }
}

/// Asks `node` to become primary, or to leave that to another coordinator.
pub async fn set_coordinator_state(
    store: &Store,
    node: &str,
    request: CoordinatorRequest,
) -> Result<Requested, ChangeError<NodeRefusal>> {
    store
        .change(|cluster| {
            let record = find_node(cluster, node)?;
            let name = &record.name;
            if record.role != NodeRole::Coordinator {
                return Err(NodeRefusal::NotCoordinator { node: name.clone() });
            }
            if record.daemon_state != DaemonState::Run {
                let state = record.daemon_state.clone();
                return Err(NodeRefusal::NotRunning { node: name.clone(), state });
            }
            let is_primary = cluster.config.primary.as_ref() == Some(name);
            let mut changes = Changes::new();
            let primary = match request {
                CoordinatorRequest::Primary if is_primary => {
                    return Ok((changes, Requested::Already));
                }
                CoordinatorRequest::Primary => Some(name.clone()),
                CoordinatorRequest::Secondary
                    if !is_primary && settled(&record.coordinator_state) =>
                {
                    return Ok((changes, Requested::Already));
                }
                CoordinatorRequest::Secondary if !somebody_else(cluster, name) => {
                    return Err(NodeRefusal::NobodyElse { node: name.clone() });
                }
                CoordinatorRequest::Secondary => None,
            };
            changes.config(ConfigChange::Primary(primary));
            changes.expect(Expect::NodeDaemon(name.clone()));
            Ok((changes, Requested::Yes))
        })
        .await
}

/// Looks whether a node that is said to be off shows a sign of life. One that the others do not
/// watch is watched for [`fence::WATCH`] from then on, but for a dry run. Nothing is changed:
/// whoever drops this takes the word back.
///
/// # Errors
/// Refused if the node says that it runs, is proven dead, or shows a sign of life.
pub async fn watch(
    store: &Store,
    clock: &dyn Clock,
    word: &OffWord,
) -> Result<Watched, ChangeError<NodeRefusal>> {
    let before = look_for_life(store, word, None).await?;
    if fence::has_to_be_watched(&before) && !store.is_dry() {
        clock.sleep(fence::WATCH).await;
    }
    Ok(Watched(before))
}

/// Takes an operator's word that a node is off for the proof of its death, which nothing else may
/// be able to give. What follows a fence follows.
///
/// # Errors
/// Refused if the node says that it runs, is proven dead, or has shown a sign of life since it is
/// [watched](watch).
pub async fn confirm_off(
    store: &Store,
    clock: &dyn Clock,
    word: &OffWord,
    Watched(before): &Watched,
) -> Result<(), ChangeError<NodeRefusal>> {
    look_for_life(store, word, Some(before)).await?;
    let now = i64::try_from(clock.wall().as_secs()).unwrap_or(i64::MAX);
    store
        .change(|cluster| {
            let record = find_node(cluster, &word.node)?;
            // It had no session a moment ago, and a daemon that starts writes its state.
            check_no_doubt(cluster, record, before, word, false)?;
            let note = fence::confirmed(record, &word.who, now);
            Ok((death(cluster, record, note, word.recover), ()))
        })
        .await
}

/// Returns the record of a node that shows no sign of life, by a fresh view; none since `before`,
/// if that is given.
async fn look_for_life(
    store: &Store,
    word: &OffWord,
    before: Option<&NodeRecord>,
) -> Result<Arc<NodeRecord>, ChangeError<NodeRefusal>> {
    let check = |seen: &Cluster, record: &NodeRecord, is_announced| {
        check_no_doubt(seen, record, before.unwrap_or(record), word, is_announced)
    };
    checked(store, &word.node, check).await
}

/// Returns the record of the node `name`, by a fresh view, once `check` has nothing against it: by
/// that view, and whether its daemon has a session with the store.
async fn checked(
    store: &Store,
    name: &str,
    check: impl FnOnce(&Cluster, &NodeRecord, bool) -> Result<(), NodeRefusal> + Send,
) -> Result<Arc<NodeRecord>, ChangeError<NodeRefusal>> {
    let seen = store.fresh().await?;
    let record = find_node(&seen, name).map_err(|no| ChangeError::Refused(no.into()))?;
    let is_announced = store.announcement(&record.name).await?.is_some();
    check(&seen, record, is_announced).map_err(ChangeError::Refused)?;
    Ok(record.clone())
}

fn check_no_doubt(
    cluster: &Cluster,
    record: &NodeRecord,
    before: &NodeRecord,
    word: &OffWord,
    is_announced: bool,
) -> Result<(), NodeRefusal> {
    let node = record.name.clone();
    match fence::doubt(cluster, record, before, &word.asked, is_announced, word.nobody_fences) {
        None => Ok(()),
        Some(Doubt::NotDead) => {
            Err(NodeRefusal::NotDead { node, state: record.daemon_state.clone() })
        }
        Some(Doubt::Proven) => Err(NodeRefusal::Proven { node }),
        Some(Doubt::Lives(sign)) => Err(NodeRefusal::Lives { node, sign }),
    }
}

fn settled(state: &CoordinatorState) -> bool {
    matches!(state, CoordinatorState::Secondary | CoordinatorState::Relinquish)
}

fn somebody_else(cluster: &Cluster, node: &NodeName) -> bool {
    cluster.nodes.values().any(|other| {
        other.name != *node
            && other.role == NodeRole::Coordinator
            && other.daemon_state == DaemonState::Run
    })
}

/// Predicts a flush of `node` on this view: what becomes of each VM that runs there, by its name.
pub fn plan_flush(cluster: &Cluster, node: &str) -> Result<Vec<(String, Fate)>, NodeRefusal> {
    let record = find_node(cluster, node)?;
    if record.domain_state == DomainState::FenceFlush {
        return Err(NodeRefusal::Fenced { node: record.name.clone() });
    }
    let mut promises = Promises::under_way(cluster);
    let fates = fates(cluster, &record.name, &BTreeSet::new(), &mut promises);
    let named = |(uuid, fate): (Uuid, Fate)| (cluster.vms[&uuid].name.clone(), fate);
    Ok(fates.into_iter().map(named).collect())
}

/// The VMs on `node` that a flush would shut down because no other node can take them, by name.
pub fn left_behind(cluster: &Cluster, node: &str) -> Vec<String> {
    let fates = plan_flush(cluster, node).unwrap_or_default();
    let stays = |(name, fate): (String, Fate)| matches!(fate, Fate::ShutDown(_)).then_some(name);
    fates.into_iter().filter_map(stays).collect()
}

/// Whether no node but this one takes VMs at present.
pub fn is_last_to_take_vms(cluster: &Cluster, node: &str) -> bool {
    cluster.nodes.values().all(|other| other.name.as_str() == node || !other.takes_vms())
}

/// Asks `node` to take VMs again, or to have them moved away and take no more.
pub async fn set_domain_state(
    store: &Store,
    node: &str,
    request: DomainRequest,
) -> Result<Requested, ChangeError<NodeRefusal>> {
    let is_ours = match store.view().nodes.get(node).map(|record| record.name.clone()) {
        Some(name) => store.has_our_daemon(&name).await?,
        None => false,
    };
    store
        .change(|cluster| {
            let record = find_node(cluster, node)?;
            let name = &record.name;
            let mut changes = Changes::new();
            let is_legacy = !is_ours && record.daemon_state == DaemonState::Run;
            let state = match (request, &record.domain_state) {
                (_, DomainState::FenceFlush) => {
                    return Err(NodeRefusal::Fenced { node: name.clone() });
                }
                // It would wait for ever for its last VM, and hear nothing of the cluster any more.
                (DomainRequest::Ready, DomainState::Flush)
                | (DomainRequest::Flush, DomainState::Unflush)
                    if is_legacy =>
                {
                    let state = record.domain_state.clone();
                    return Err(NodeRefusal::LegacyPeerIsBusy { node: name.clone(), state });
                }
                (DomainRequest::Ready, DomainState::Unflush)
                | (DomainRequest::Flush, DomainState::Flush) => {
                    return Ok((changes, Requested::UnderWay));
                }
                (DomainRequest::Ready, DomainState::Ready)
                | (DomainRequest::Flush, DomainState::Flushed) => {
                    return Ok((changes, Requested::Already));
                }
                (DomainRequest::Ready, _) => DomainState::Unflush,
                (DomainRequest::Flush, _) => DomainState::Flush,
            };
            changes.node(name, NodeChange::Domain(state));
            Ok((changes, Requested::Yes))
        })
        .await
}
