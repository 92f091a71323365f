//! Which node a VM belongs to. Here only the records change: a started VM gets the state in which its
//! nodes move it.

use pvc_model::cluster::Cluster;
use pvc_model::node::NodeRecord;
use pvc_model::placement::{
    Need, NoPlace, Promises, Unfit, Weighed, check_node, check_size, place, selector_for, weigh,
};
use pvc_model::request::moving_state;
use pvc_model::vm::moving::ways;
use pvc_model::vm::{VmRecord, VmState};
use pvc_model::{NodeName, Uuid};
use pvc_store::{ChangeError, Changes, Expect, Store, VmChange};

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
    /// Migrates a VM that is migrated already; it keeps the node it returns to.
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
    /// The state in which its nodes move it; `None` if it does not run and nothing has to move.
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
    #[error("VM `{vm}` is migrated from node `{from}` already")]
    AlreadyMigrated { vm: String, from: NodeName },
    #[error("VM `{vm}` is not migrated")]
    NotMigrated { vm: String },
    #[error("VM `{vm}` may only be moved by a shutdown, and live was asked for")]
    NeverLive { vm: String },
    #[error("VM `{vm}` cannot be moved: {why}")]
    State { vm: String, why: pvc_model::request::Refusal },
}

impl Refusal for MoveRefusal {
    fn kind(&self) -> Kind {
        match self {
            MoveRefusal::NoVm(error) => error.kind(),
            MoveRefusal::NoNode(_) => Kind::Invalid,
            _ => Kind::Conflict,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            MoveRefusal::NoVm(error) => error.hint(),
            MoveRefusal::NoNode(error) => error.hint(),
            MoveRefusal::NoPlace(no) if no.reasons.len() <= 1 => {
                Some("a VM can be moved in a cluster of two nodes or more".to_owned())
            }
            MoveRefusal::NoPlace(_) => Some("`pvc node ready` makes a node take VMs again".to_owned()),
            MoveRefusal::Unfit { unfit: Unfit::NotInLimit, .. } => {
                Some("`pvc vm meta --limit` changes the limit".to_owned())
            }
            MoveRefusal::AlreadyMigrated { .. } => {
                Some("`pvc vm unmigrate` takes it back; `--force` migrates it further".to_owned())
            }
            MoveRefusal::NeverLive { .. } => {
                Some("leave `--force-live` out, or allow it with `pvc vm meta --method live`".to_owned())
            }
            MoveRefusal::NotMigrated { .. } => Some("`pvc vm move` moves it for good".to_owned()),
            MoveRefusal::State { .. } => Some("wait until its state is settled".to_owned()),
            MoveRefusal::Unfit { unfit, .. } => unfit.size_hint(),
            MoveRefusal::AlreadyThere { .. } => None,
        }
    }
}

/// Gives VM `vm` another node.
pub async fn move_vm(store: &Store, vm: &str, ask: &Move) -> Result<Moved, ChangeError<MoveRefusal>> {
    store
        .change(|cluster| {
            let record = find_vm(cluster, vm)?;
            let name = record.name.clone();
            let state = moving_state(&record.state, ask.live_only)
                .map_err(|why| MoveRefusal::State { vm: name.clone(), why })?;
            let mut changes = Changes::new();
            let from = record.node.clone();
            let uuid = record.uuid;
            if let Some(here) = stays(record, ask) {
                // A migrated VM that is to stay where it is.
                changes.vm(uuid, VmChange::LastNode(None));
                return Ok((changes, Moved { uuid, name, from, to: here, state: None }));
            }
            if state.as_ref().is_some_and(|state| how(record, state) == How::NotAtAll) {
                return Err(MoveRefusal::NeverLive { vm: name });
            }
            let to = target(cluster, record, ask, state.is_some())?;
            let last_node = match ask.movement {
                Movement::Move | Movement::Unmigrate => None,
                Movement::Migrate => record.last_node.clone().or_else(|| from.clone()),
            };
            changes.vm(uuid, VmChange::Node(to.clone())).vm(uuid, VmChange::LastNode(last_node));
            // Written also if it is unchanged: nodes look at the assignment when the state is written.
            let written = state.clone().unwrap_or_else(|| record.state.clone());
            changes.vm(uuid, VmChange::State(written));
            changes.expect(Expect::NodeDaemon(to.clone())).expect(Expect::NodeDomain(to.clone()));
            if state.is_some() {
                changes.expect(Expect::Placements);
            }
            Ok((changes, Moved { uuid, name, from, to, state }))
        })
        .await
}

/// What a move would come to: where the VM would go, and how every node does.
#[derive(Debug, Clone, PartialEq)]
pub struct MovePlan {
    pub name: String,
    pub from: Option<NodeName>,
    /// `None` if no node can take it.
    pub to: Option<NodeName>,
    pub how: How,
    pub weighed: Weighed,
}

/// How a VM would be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// It does not run: only its record changes.
    Record,
    Live,
    /// Live, and if that does not work, by a shutdown.
    LiveOrShutdown,
    Shutdown,
    /// It may only be moved by a shutdown, and live was asked for.
    NotAtAll,
}

impl How {
    pub fn as_str(self) -> &'static str {
        match self {
            How::Record => "off",
            How::Live => "live",
            How::LiveOrShutdown => "live-or-shutdown",
            How::Shutdown => "shutdown",
            How::NotAtAll => "none",
        }
    }
}

/// What [`move_vm`] would do on this view. That no node can take the VM is an answer here.
pub fn plan_move(cluster: &Cluster, vm: &str, ask: &Move) -> Result<MovePlan, MoveRefusal> {
    let record = find_vm(cluster, vm)?;
    let name = record.name.clone();
    let state = moving_state(&record.state, ask.live_only)
        .map_err(|why| MoveRefusal::State { vm: name.clone(), why })?;
    let runs = state.is_some();
    let to = match stays(record, ask) {
        Some(here) => Some(here),
        None => match target(cluster, record, ask, runs) {
            Ok(to) => Some(to),
            Err(MoveRefusal::NoPlace(_)) => None,
            Err(refusal) => return Err(refusal),
        },
    };
    let selector = selector_for(record.selector.as_ref(), cluster);
    let weighed = weigh(cluster, &selector, &need(record, runs), &Promises::under_way(cluster));
    let how = state.as_ref().map_or(How::Record, |state| how(record, state));
    Ok(MovePlan { name, from: record.node.clone(), to, how, weighed })
}

fn how(record: &VmRecord, state: &VmState) -> How {
    let ways = ways(record.migration_method.as_ref(), state);
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

fn target(cluster: &Cluster, record: &VmRecord, ask: &Move, runs: bool) -> Result<NodeName, MoveRefusal> {
    let vm = || record.name.clone();
    match (ask.movement, &record.last_node) {
        (Movement::Unmigrate, None) => return Err(MoveRefusal::NotMigrated { vm: vm() }),
        (Movement::Unmigrate, Some(back)) => {
            let node = find_node(cluster, back.as_str())?;
            let need = Need { node_limit: &[], ..need(record, runs) };
            fits(cluster, node, &need, runs)?;
            return Ok(node.name.clone());
        }
        (Movement::Migrate, Some(from)) if !ask.force => {
            return Err(MoveRefusal::AlreadyMigrated { vm: vm(), from: from.clone() });
        }
        (Movement::Migrate | Movement::Move, _) => {}
    }
    let need = need(record, runs);
    let Some(name) = &ask.node else {
        let selector = selector_for(record.selector.as_ref(), cluster);
        return Ok(place(cluster, &selector, &need, &Promises::under_way(cluster))?);
    };
    let node = find_node(cluster, name)?;
    if record.is_assigned_to(&node.name) {
        return Err(MoveRefusal::AlreadyThere { vm: vm(), node: node.name.clone() });
    }
    fits(cluster, node, &need, runs)?;
    Ok(node.name.clone())
}

fn need(record: &VmRecord, runs: bool) -> Need<'_> {
    Need { leaving: record.node.as_ref(), runs, ..Need::of(record) }
}

/// A VM that does not run may be assigned to a node that takes no VMs at present.
fn fits(cluster: &Cluster, node: &NodeRecord, need: &Need<'_>, runs: bool) -> Result<(), MoveRefusal> {
    let unfit = match check_node(node, need, &Promises::under_way(cluster)) {
        Err(Unfit::Daemon(_) | Unfit::Domain(_)) if !runs => check_size(node, need.memory_mib, need.vcpus),
        other => other,
    };
    unfit.map_err(|unfit| MoveRefusal::Unfit { node: node.name.clone(), unfit })
}
