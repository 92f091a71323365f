//! Emptying a node of VMs, and taking them back.
//!
//! Both are decided from the present records every time, so either can be turned into the other at any
//! moment: what is on its way is called back by giving it its old node again, wherever it is by then.

use std::collections::BTreeSet;

use crate::cluster::Cluster;
use crate::node::NodeRecord;
use crate::placement::{Need, NoPlace, Promises, Unfit, check_size, place, selector_for};
use crate::vm::moving::{MovePhase, is_moving};
use crate::vm::{VmRecord, VmState};
use crate::{NodeName, Uuid};

/// What becomes of a VM when its node is emptied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It goes there, and comes back.
    Move(NodeName),
    /// No other node can take it: it is off until its own is ready again.
    ShutDown(NoPlace),
    /// It is on its way, or is being ended or restarted: that is waited for.
    UnderWay,
    /// It can neither stay nor go at present; for people, why.
    Blocked(String),
}

/// What becomes of every VM of `node`, in order, if all of them went at once; `promises` is kept up.
/// Those in `failed` could not be moved a moment ago.
pub fn fates(
    cluster: &Cluster,
    node: &NodeName,
    failed: &BTreeSet<Uuid>,
    promises: &mut Promises,
) -> Vec<(Uuid, Fate)> {
    let decide = |vm: &std::sync::Arc<VmRecord>| Some((vm.uuid, fate(cluster, node, vm, failed, promises)?));
    cluster.vms.values().filter_map(decide).collect()
}

fn fate(
    cluster: &Cluster,
    node: &NodeName,
    vm: &VmRecord,
    failed: &BTreeSet<Uuid>,
    promises: &mut Promises,
) -> Option<Fate> {
    let runs = cluster.nodes.get(node).is_some_and(|own| own.running.contains(&vm.uuid));
    if !vm.is_assigned_to(node) {
        return (runs && is_moving(&vm.state)).then_some(Fate::UnderWay);
    }
    match vm.state {
        VmState::Start => {}
        // A graceful stop under way is waited for; so is a restart, which ends in `start`.
        VmState::Shutdown | VmState::Restart | VmState::Migrate | VmState::MigrateLive => {
            return Some(Fate::UnderWay);
        }
        VmState::Stop if runs => return Some(Fate::UnderWay),
        // What runs against its record is reported by others and is no VM of ours to stop.
        _ => return None,
    }
    if failed.contains(&vm.uuid) {
        return Some(Fate::Blocked(failure(vm)));
    }
    let need = Need { leaving: Some(node), ..Need::of(vm) };
    match place(cluster, &selector_for(vm.selector.as_ref(), cluster), &need, promises) {
        Ok(target) => {
            promises.add(&target, &need);
            Some(Fate::Move(target))
        }
        Err(no) if no.is_starting() => Some(Fate::Blocked(format!("it waits for a node that starts: {no}"))),
        Err(no) => Some(Fate::ShutDown(no)),
    }
}

fn failure(vm: &VmRecord) -> String {
    let note = vm.moving.as_ref().filter(|note| note.phase == MovePhase::Failed && !note.why.is_empty());
    match note {
        Some(note) => format!("it could not be moved to node `{}`: {}", note.to, note.why),
        None => "it could not be moved".to_owned(),
    }
}

/// One VM that leaves now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leave {
    pub vm: Uuid,
    pub to: NodeName,
    /// The node it returns to afterwards; `None` if it is at home there.
    pub home: Option<NodeName>,
}

/// What is left to do to empty a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flush {
    /// To be moved now.
    pub leave: Vec<Leave>,
    /// To be shut down now, and started again when the node is ready.
    pub shut_down: Vec<Uuid>,
    /// On their way, or waiting for their turn.
    pub waiting: Vec<Uuid>,
    /// What keeps the flush from its end, and why.
    pub blocked: Vec<(Uuid, String)>,
}

impl Flush {
    /// Whether the node is empty.
    pub fn is_done(&self) -> bool {
        *self == Flush::default()
    }
}

/// What to do next to empty `node`, with at most `at_once` VMs on their way together.
pub fn flush(
    cluster: &Cluster,
    node: &NodeName,
    failed: &BTreeSet<Uuid>,
    mut promises: Promises,
    at_once: usize,
) -> Flush {
    let mut left = Flush::default();
    let fates = fates(cluster, node, failed, &mut promises);
    let under_way = fates.iter().filter(|(_, fate)| *fate == Fate::UnderWay).count();
    let others_move = fates.iter().any(|(_, fate)| matches!(fate, Fate::Move(_) | Fate::UnderWay));
    let mut slots = at_once.saturating_sub(under_way);
    for (uuid, fate) in fates {
        match fate {
            Fate::Blocked(why) => left.blocked.push((uuid, why)),
            Fate::UnderWay => left.waiting.push(uuid),
            _ if slots == 0 => left.waiting.push(uuid),
            // What the others are promised may be more than they take: looked at again when they are there.
            Fate::ShutDown(no) if others_move && is_only_crowded(cluster, &no) => left.waiting.push(uuid),
            Fate::ShutDown(_) => {
                slots -= 1;
                left.shut_down.push(uuid);
            }
            Fate::Move(to) => {
                slots -= 1;
                let home = cluster.vms[&uuid].last_node.clone().or_else(|| Some(node.clone()));
                let home = home.filter(|home| *home != to);
                left.leave.push(Leave { vm: uuid, to, home });
            }
        }
    }
    left
}

/// Whether a node would do but for what is promised to others.
fn is_only_crowded(cluster: &Cluster, no: &NoPlace) -> bool {
    no.reasons.iter().any(|(name, unfit)| match unfit {
        Unfit::NotEnoughFree { needed_mib, .. } => {
            cluster.nodes.get(name).is_some_and(|node| node.figures.memory_free_mib >= *needed_mib)
        }
        _ => false,
    })
}

/// One VM that a node takes back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TakeBack {
    /// It was shut down when the node was emptied, or is marked to be started: start it.
    Start(Uuid),
    /// It is marked to be started and is already: only the mark goes.
    Unmark(Uuid),
    /// It came from here and is off: it belongs here again and stays off.
    Assign(Uuid),
    /// It came from here and runs elsewhere, or is just leaving: it is moved back.
    Move(Uuid),
}

/// What `node` has to do to be ready.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unflush {
    /// To be done now.
    pub now: Vec<TakeBack>,
    /// On their way here, or waiting for their turn.
    pub waiting: Vec<Uuid>,
    /// Those that stay where they are, and why.
    pub stay: Vec<(Uuid, Unfit)>,
}

impl Unflush {
    /// Whether the node has back what it takes back.
    pub fn is_done(&self) -> bool {
        self.now.is_empty() && self.waiting.is_empty()
    }
}

/// What `node` takes back when it becomes ready, with at most `at_once` VMs on their way together. Those in
/// `tried` were moved back already, and are not once more.
pub fn unflush(cluster: &Cluster, node: &NodeName, tried: &BTreeSet<Uuid>, at_once: usize) -> Unflush {
    let mut back = Unflush::default();
    let Some(own) = cluster.nodes.get(node) else { return back };
    let comes = |vm: &&std::sync::Arc<VmRecord>| is_moving(&vm.state) && vm.is_assigned_to(node);
    back.waiting = cluster.vms.values().filter(comes).map(|vm| vm.uuid).collect();
    let mut slots = at_once.saturating_sub(back.waiting.len());
    let mut free_mib = own.figures.memory_free_mib;
    for vm in cluster.vms.values() {
        match take_back(vm, own) {
            Some(TakeBack::Move(uuid)) if tried.contains(&uuid) => {}
            Some(TakeBack::Move(uuid)) => match fits(vm, own, free_mib) {
                Err(unfit) => back.stay.push((uuid, unfit)),
                Ok(()) if slots == 0 => back.waiting.push(uuid),
                Ok(()) => {
                    slots -= 1;
                    if !own.running.contains(&uuid) {
                        free_mib = free_mib.saturating_sub(vm.memory_mib());
                    }
                    back.now.push(TakeBack::Move(uuid));
                }
            },
            Some(other) => back.now.push(other),
            None => {}
        }
    }
    back
}

fn fits(vm: &VmRecord, own: &NodeRecord, free_mib: u64) -> Result<(), Unfit> {
    let need = Need::of(vm);
    check_size(own, need.memory_mib, need.vcpus)?;
    let is_here = own.running.contains(&vm.uuid);
    if !is_here && own.figures.memory_total_mib > 0 && need.memory_mib > free_mib {
        return Err(Unfit::NotEnoughFree { free_mib, needed_mib: need.memory_mib });
    }
    Ok(())
}

fn take_back(vm: &VmRecord, own: &NodeRecord) -> Option<TakeBack> {
    let node = &own.name;
    if vm.is_assigned_to(node) {
        return match vm.state {
            _ if !vm.autostart => None,
            VmState::Start | VmState::Restart => Some(TakeBack::Unmark(vm.uuid)),
            VmState::Stop | VmState::Shutdown | VmState::Disable | VmState::Fail => {
                Some(TakeBack::Start(vm.uuid))
            }
            // Somebody is making it, or it is another cluster's copy and must stay off.
            _ => None,
        };
    }
    if vm.last_node.as_ref() != Some(node) {
        return None;
    }
    match vm.state {
        VmState::Stop | VmState::Disable | VmState::Fail => Some(TakeBack::Assign(vm.uuid)),
        VmState::Start => Some(TakeBack::Move(vm.uuid)),
        // It has not left yet, and need not.
        VmState::Migrate | VmState::MigrateLive if own.running.contains(&vm.uuid) => {
            Some(TakeBack::Move(vm.uuid))
        }
        _ => None,
    }
}
