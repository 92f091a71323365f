//! Assignment of a VM to a node. Here only the records change: a started VM gets the state in which
//! its nodes move it.

use pvc_model::cluster::Cluster;
use pvc_model::node::{DomainState, NodeRecord};
use pvc_model::placement::{
    Need, NoPlace, Promises, Unfit, Weighed, check_free_functions, check_insisted, check_node,
    check_size, place, selector_for, weigh,
};
use pvc_model::request::moving_state;
use pvc_model::sriov::is_tied;
use pvc_model::vm::moving::{is_moving, keeps_orders, ways_of};
use pvc_model::vm::{VmRecord, VmState};
use pvc_model::{NodeName, Uuid};
use pvc_store::{ChangeError, Changes, Expect, Store, VmChange};

use super::functions::{claim, release};
use super::runner;
use super::state::{StateRefusal, check_start, our_movers};
use crate::refusal::{Kind, NoNode, NoVm, Refusal, find_node, find_vm};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Movement {
    /// To stay there.
    Move,
    /// To come back later.
    Migrate,
    /// Back from a migration.
    Unmigrate,
}

impl Movement {
    pub fn as_str(self) -> &'static str {
        match self {
            Movement::Move => "move",
            Movement::Migrate => "migrate",
            Movement::Unmigrate => "unmigrate",
        }
    }
}

#[derive(Debug, Clone)]
pub struct Move {
    pub movement: Movement,
    /// The target; without one it is chosen. Not looked at by `Unmigrate`.
    pub node: Option<String>,
    /// Migrates a VM that is migrated already; it keeps the node it returns to. A flushed node may
    /// be the target.
    pub force: bool,
    /// No fallback to a shutdown.
    pub live_only: bool,
}

/// A VM that was given another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    pub uuid: Uuid,
    pub name: String,
    pub from: Option<NodeName>,
    pub to: NodeName,
    /// The state in which its nodes move it, or `start` if its new node is to start it; `None` if
    /// it does not run and nothing has to move.
    pub state: Option<VmState>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MoveRefusal {
    #[error(transparent)]
    NoVm(#[from] NoVm),
    #[error(transparent)]
    NoNode(#[from] NoNode),
    #[error(transparent)]
    NoPlace(#[from] NoPlace),
    #[error("node `{node}` {unfit}")]
    Unfit { node: NodeName, unfit: Unfit },
    #[error("VM `{vm}` is on node `{node}` already")]
    AlreadyThere { vm: String, node: NodeName },
    #[error("VM `{vm}` is on its way to node `{node}` already")]
    OnItsWay { vm: String, node: NodeName },
    #[error(
        "VM `{vm}` is being moved, and node `{node}`, which has a part in it, runs PVC 1.0.3 \
         and would not keep to another order"
    )]
    MovedByLegacyPeer { vm: String, node: NodeName },
    #[error("VM `{vm}` is migrated from node `{from}` already")]
    AlreadyMigrated { vm: String, from: NodeName },
    #[error("VM `{vm}` is not migrated")]
    NotMigrated { vm: String },
    #[error("VM `{vm}` may only be moved by a shutdown, and live was asked for")]
    NeverLive { vm: String },
    #[error(
        "VM `{vm}` has a device of its node (an interface of type `hostdev`), and can only be \
         moved by a shutdown; live was asked for"
    )]
    Tied { vm: String },
    #[error("VM `{vm}` cannot be moved: {why}")]
    State { vm: String, why: pvc_model::request::Refusal },
    /// The VM waits to be started, and would be by its new node.
    #[error(transparent)]
    Start(#[from] StateRefusal),
}

impl Refusal for MoveRefusal {
    fn kind(&self) -> Kind {
        match self {
            MoveRefusal::NoVm(error) => error.kind(),
            MoveRefusal::NoNode(error) => error.kind(),
            MoveRefusal::Start(error) => error.kind(),
            _ => Kind::Conflict,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            MoveRefusal::NoVm(error) => error.hint(),
            MoveRefusal::NoNode(error) => error.hint(),
            MoveRefusal::Start(error) => error.hint(),
            MoveRefusal::NoPlace(no) if no.reasons.len() <= 1 => {
                Some("a VM can be moved in a cluster of two nodes or more".to_owned())
            }
            MoveRefusal::NoPlace(_) => Some(
                "`pvc node ready` makes a node take VMs \
                                             again"
                    .to_owned(),
            ),
            MoveRefusal::Unfit { unfit: Unfit::NotInLimit, .. } => {
                Some("`pvc vm meta --limit` changes the limit".to_owned())
            }
            MoveRefusal::AlreadyMigrated { .. } => {
                Some("`pvc vm unmigrate` takes it back; `--force` migrates it further".to_owned())
            }
            MoveRefusal::NeverLive { .. } => Some(
                "leave `--force-live` out, or allow it with `pvc vm meta --method \
                      live`"
                    .to_owned(),
            ),
            MoveRefusal::Tied { .. } => Some("leave `--force-live` out".to_owned()),
            MoveRefusal::NotMigrated { .. } => Some("`pvc vm move` moves it for good".to_owned()),
            MoveRefusal::State { .. } => Some("wait until its state is settled".to_owned()),
            MoveRefusal::Unfit { unfit: Unfit::Domain(DomainState::Flushed), .. } => Some(
                "`pvc node ready` makes it take VMs again; `--force` moves this one there before, \
                 as to try it"
                    .to_owned(),
            ),
            MoveRefusal::Unfit { unfit, .. } => unfit.size_hint(),
            MoveRefusal::OnItsWay { .. } => Some(
                "`pvc vm move --target NODE` sends it elsewhere, or back to the node that it runs \
                 on"
                .to_owned(),
            ),
            MoveRefusal::MovedByLegacyPeer { .. } => {
                Some("wait until the VM is in state `start` again".to_owned())
            }
            MoveRefusal::AlreadyThere { .. } => None,
        }
    }
}

/// Gives VM `vm` another node, also while it is on its way to one: then it goes there instead, or
/// stays where it runs if it is sent to just that node.
pub async fn move_vm(
    store: &Store,
    vm: &str,
    ask: &Move,
) -> Result<Moved, ChangeError<MoveRefusal>> {
    let ours = our_movers(store, vm).await?.unwrap_or_default();
    store
        .change(|cluster| {
            let record = find_vm(cluster, vm)?;
            let name = record.name.clone();
            keeps_orders(cluster, record, |node| ours.contains(node))
                .map_err(|node| MoveRefusal::MovedByLegacyPeer { vm: name.clone(), node })?;
            let state = moving_state(&record.state, ask.live_only)
                .map_err(|why| MoveRefusal::State { vm: name.clone(), why })?;
            let mut changes = Changes::new();
            let from = place_now(cluster, record);
            let uuid = record.uuid;
            if let Some(here) = stays(record, ask) {
                // A migrated VM that is to stay where it is.
                changes.vm(uuid, VmChange::LastNode(None));
                return Ok((changes, Moved { uuid, name, from, to: here, state: None }));
            }
            if state.as_ref().is_some_and(|state| how(record, state) == How::NotAtAll) {
                let is_tied = record.domain.as_ref().is_ok_and(|domain| is_tied(&domain.nics));
                return Err(match is_tied {
                    true => MoveRefusal::Tied { vm: name },
                    false => MoveRefusal::NeverLive { vm: name },
                });
            }
            let waits = waits_to_start(cluster, record);
            let to = target(cluster, record, ask, state.is_some() || waits)?;
            let starts = waits && takes_vms(cluster, &to);
            if starts {
                check_start(cluster, record, &mut changes)?;
                changes.vm(uuid, VmChange::Autostart(false));
            }
            let state = if starts { Some(VmState::Start) } else { state };
            let last_node = match ask.movement {
                Movement::Move | Movement::Unmigrate => None,
                Movement::Migrate => record.last_node.clone().or_else(|| from.clone()),
            };
            let last_node = last_node.filter(|home| *home != to);
            changes.vm(uuid, VmChange::Node(to.clone())).vm(uuid, VmChange::LastNode(last_node));
            let nics = record.domain.as_ref().map_or(&[][..], |domain| &domain.nics);
            if let Some(place) = cluster.nodes.get(&to) {
                claim(&mut changes, place, uuid, nics);
            }
            release(&mut changes, cluster, record, |node, _| *node == to);
            // Written also if it is unchanged: nodes look at the assignment when the state is
            // written.
            let written = state.clone().unwrap_or_else(|| record.state.clone());
            changes.vm(uuid, VmChange::State(written));
            changes.expect(Expect::NodeDaemon(to.clone())).expect(Expect::NodeDomain(to.clone()));
            // Also of one that is off: its new node may be about to say that it has taken back
            // whatever waits for it.
            changes.expect(Expect::VmNodeLimit(uuid)).expect(Expect::Placements);
            Ok((changes, Moved { uuid, name, from, to, state }))
        })
        .await
}

/// Prediction of a move: where the VM would go, and how every node does.
#[derive(Debug, Clone, PartialEq)]
pub struct MovePlan {
    pub name: String,
    pub from: Option<NodeName>,
    /// `None` if no node can take it.
    pub to: Option<NodeName>,
    pub how: How,
    pub weighed: Weighed,
}

/// Way in which a VM would be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// The VM does not run: only its record changes.
    Record,
    /// The VM waits for its node to take VMs again, and is started by the other one.
    Start,
    Live,
    /// Live, and if that does not work, by a shutdown.
    LiveOrShutdown,
    Shutdown,
    /// The VM may only be moved by a shutdown, and live was asked for.
    NotAtAll,
}

impl How {
    pub fn as_str(self) -> &'static str {
        match self {
            How::Record => "off",
            How::Start => "start",
            How::Live => "live",
            How::LiveOrShutdown => "live-or-shutdown",
            How::Shutdown => "shutdown",
            How::NotAtAll => "none",
        }
    }
}

/// Predicts [`move_vm`] on this view. That no node can take the VM is an answer here.
pub fn plan_move(cluster: &Cluster, vm: &str, ask: &Move) -> Result<MovePlan, MoveRefusal> {
    let record = find_vm(cluster, vm)?;
    let name = record.name.clone();
    let state = moving_state(&record.state, ask.live_only)
        .map_err(|why| MoveRefusal::State { vm: name.clone(), why })?;
    let waits = waits_to_start(cluster, record);
    let runs = state.is_some() || waits;
    let to = match stays(record, ask) {
        Some(here) => Some(here),
        None => match target(cluster, record, ask, runs) {
            Ok(to) => Some(to),
            Err(MoveRefusal::NoPlace(_)) => None,
            Err(refusal) => return Err(refusal),
        },
    };
    let selector = selector_for(record.selector.as_ref(), cluster);
    let from = place_now(cluster, record);
    let need = Need { leaving: from.as_ref(), runs, ..Need::of(record) };
    let weighed = weigh(cluster, &selector, &need, &promises(cluster, record));
    let how = match &state {
        Some(state) => how(record, state),
        None if waits && to.as_ref().is_some_and(|to| takes_vms(cluster, to)) => How::Start,
        None => How::Record,
    };
    Ok(MovePlan { name, from, to, how, weighed })
}

fn how(record: &VmRecord, state: &VmState) -> How {
    let ways = ways_of(record, state);
    match (ways.live, ways.shutdown) {
        (true, true) => How::LiveOrShutdown,
        (true, false) => How::Live,
        (false, true) => How::Shutdown,
        (false, false) => How::NotAtAll,
    }
}

/// The node it is on, if it is a migrated VM that is to be moved to just there.
fn stays(record: &VmRecord, ask: &Move) -> Option<NodeName> {
    let here = record.node.as_ref()?;
    let asked = ask.movement == Movement::Move && ask.node.as_deref() == Some(here.as_str());
    (asked && record.last_node.is_some()).then(|| here.clone())
}

fn target(
    cluster: &Cluster,
    record: &VmRecord,
    ask: &Move,
    runs: bool,
) -> Result<NodeName, MoveRefusal> {
    let vm = || record.name.clone();
    let from = place_now(cluster, record);
    let need = Need { leaving: from.as_ref(), runs, ..Need::of(record) };
    let node = match (ask.movement, &record.last_node, &ask.node) {
        (Movement::Unmigrate, None, _) => return Err(MoveRefusal::NotMigrated { vm: vm() }),
        (Movement::Unmigrate, Some(back), _) => {
            let node = find_node(cluster, back.as_str())?;
            fits(cluster, record, node, Need { node_limit: &[], ..need }, false)?;
            node.name.clone()
        }
        (Movement::Migrate, Some(from), _) if !ask.force => {
            return Err(MoveRefusal::AlreadyMigrated { vm: vm(), from: from.clone() });
        }
        (Movement::Migrate | Movement::Move, _, None) => {
            let selector = selector_for(record.selector.as_ref(), cluster);
            place(cluster, &selector, &need, &promises(cluster, record))?
        }
        (Movement::Migrate | Movement::Move, _, Some(name)) => {
            let node = find_node(cluster, name)?;
            let is_moving = is_moving(&record.state);
            if record.is_assigned_to(&node.name) && !is_moving {
                return Err(MoveRefusal::AlreadyThere { vm: vm(), node: node.name.clone() });
            }
            fits(cluster, record, node, need, ask.force)?;
            node.name.clone()
        }
    };
    if is_moving(&record.state) && record.is_assigned_to(&node) {
        return Err(MoveRefusal::OnItsWay { vm: vm(), node });
    }
    Ok(node)
}

/// Whether the VM is off only until its node takes VMs again: a flush or a fence found no place for
/// it. Whoever gives it one by hand has it started there: that node is ready already, and would
/// never do it by itself.
fn waits_to_start(cluster: &Cluster, record: &VmRecord) -> bool {
    let is_off = matches!(record.state, VmState::Stop | VmState::Fail);
    is_off && record.autostart && !record.node.as_ref().is_some_and(|node| takes_vms(cluster, node))
}

fn takes_vms(cluster: &Cluster, node: &NodeName) -> bool {
    cluster.nodes.get(node).is_some_and(|node| node.takes_vms())
}

/// The node that has the VM: of one on its way, that which it has not left yet.
fn place_now(cluster: &Cluster, record: &VmRecord) -> Option<NodeName> {
    let runner = runner(cluster, record.uuid).filter(|_| is_moving(&record.state));
    runner.map(|node| node.name.clone()).or_else(|| record.node.clone())
}

/// Promises to the other VMs; this VM is placed anew.
fn promises(cluster: &Cluster, record: &VmRecord) -> Promises {
    Promises::under_way_but(cluster, |vm| vm.uuid == record.uuid)
}

/// A VM that does not run may be assigned to a node that takes no VMs at present (one that waits
/// for its node waits for that one then), and one that runs there still has its memory. It cannot
/// wait for a node that is ready and whose daemon is away: that one will never be asked to be
/// ready.
fn fits(
    cluster: &Cluster,
    record: &VmRecord,
    node: &NodeRecord,
    need: Need<'_>,
    insists: bool,
) -> Result<(), MoveRefusal> {
    let is_called_back = is_moving(&record.state) && need.leaving == Some(&node.name);
    let is_up = need.runs && !matches!(record.state, VmState::Stop | VmState::Fail);
    let need = match (is_called_back, node.running.contains(&record.uuid)) {
        (true, true) => Need { leaving: None, node_limit: &[], runs: false, ..need },
        // It was about to start it.
        (true, false) => Need { leaving: None, ..need },
        (false, _) => need,
    };
    let keeps_waiting = waits_to_start(cluster, record) && node.domain_state == DomainState::Ready;
    let check = if insists { check_insisted } else { check_node };
    let unfit = match check(cluster, node, &need, &promises(cluster, record)) {
        Err(unfit @ Unfit::Daemon(_)) if keeps_waiting => Err(unfit),
        Err(Unfit::Daemon(_) | Unfit::Domain(_)) if !is_up => {
            check_size(node, need.memory_mib, need.vcpus)
                .and_then(|()| check_free_functions(cluster, node, &need, &Promises::default()))
        }
        other => other,
    };
    unfit.map_err(|unfit| MoveRefusal::Unfit { node: node.name.clone(), unfit })
}
