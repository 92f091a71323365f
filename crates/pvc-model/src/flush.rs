//! Emptying a node of VMs, and taking them back.
//!
//! Both are decided from the present records every time, so either can be turned into the other at
//! any moment: what is on its way is called back by giving it its old node again, wherever it is by
//! then.

use std::collections::BTreeSet;

use crate::cluster::Cluster;
use crate::hold::{Held, check_none_held};
use crate::node::{DomainState, NodeRecord};
use crate::placement::{
    Need, NoPlace, Promises, Unfit, check_free_functions, check_size, place, selector_for,
};
use crate::vm::moving::{MovePhase, is_moving};
use crate::vm::{VmRecord, VmState};
use crate::{NodeName, Uuid};

/// Lot of a VM whose node is emptied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// Goes there, and comes back.
    Move(NodeName),
    /// No other node can take it: it is off until its own is ready again.
    ShutDown(NoPlace),
    /// Is on its way, or is being ended or restarted: that is waited for.
    UnderWay,
    /// Can neither stay nor go at present; for people, why.
    Blocked(String),
}

/// Decides about every VM of `node`, in order, as if all of them went at once; `promises` is kept
/// up. Those in `failed` could not be moved a moment ago.
pub fn fates(
    cluster: &Cluster,
    node: &NodeName,
    failed: &BTreeSet<Uuid>,
    promises: &mut Promises,
) -> Vec<(Uuid, Fate)> {
    let decide =
        |vm: &std::sync::Arc<VmRecord>| Some((vm.uuid, fate(cluster, node, vm, failed, promises)?));
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
    let own = cluster.nodes.get(node);
    match vm.state {
        // Off at this moment: it is moved when it runs, which a start that is under way soon sees
        // to.
        VmState::Start if !runs && own.is_some_and(|own| own.working_on.contains(&vm.uuid)) => {
            return Some(Fate::UnderWay);
        }
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
        Err(no) if no.is_starting() => {
            Some(Fate::Blocked(format!("it waits for a node that starts: {no}")))
        }
        Err(no) => Some(Fate::ShutDown(no)),
    }
}

fn failure(vm: &VmRecord) -> String {
    let note =
        vm.moving.as_ref().filter(|note| note.phase == MovePhase::Failed && !note.why.is_empty());
    match note {
        Some(note) => format!("it could not be moved to node `{}`: {}", note.to, note.why),
        None => "it could not be moved".to_owned(),
    }
}

/// A VM that leaves now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leave {
    pub vm: Uuid,
    pub to: NodeName,
    /// The node it returns to afterwards; `None` if it is at home there.
    pub home: Option<NodeName>,
}

/// Work that is left to do to empty a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Flush {
    /// To be moved now.
    pub leave: Vec<Leave>,
    /// To be shut down now, and started again when the node is ready.
    pub shut_down: Vec<Uuid>,
    /// On their way, or waiting for their turn.
    pub waiting: Vec<Uuid>,
    /// VMs that keep the flush from its end, and why.
    pub blocked: Vec<(Uuid, String)>,
}

impl Flush {
    /// Whether the node is empty.
    pub fn is_done(&self) -> bool {
        *self == Flush::default()
    }
}

/// Decides what to do next to empty `node`, with at most `at_once` VMs on their way together.
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
            // What the others are promised may be more than they take: looked at again when they
            // are there.
            Fate::ShutDown(no) if others_move && no.is_crowded_somewhere(cluster) => {
                left.waiting.push(uuid)
            }
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

/// VM that a node takes back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TakeBack {
    /// Start it: it was shut down when the node was emptied, or is marked to be started.
    Start(Uuid),
    /// Remove the mark only: it is marked to be started and is already.
    Unmark(Uuid),
    /// Assign it to this node: it came from here, is off and stays off.
    Assign(Uuid),
    /// Move it back: it came from here and runs elsewhere, or is just leaving.
    Move(Uuid),
}

/// Work that is left until `node` is ready.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unflush {
    /// To be done now.
    pub now: Vec<TakeBack>,
    /// On their way here, or waiting for their turn.
    pub waiting: Vec<Uuid>,
    /// VMs that stay where they are, and why.
    pub stay: Vec<(Uuid, Stays)>,
}

/// Reason for which a VM is not taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stays {
    /// The node does not do.
    Unfit(Unfit),
    /// Stays off, for nobody knows when its volume is whole again.
    Held(Held),
}

impl Stays {
    /// The reason for people, of a VM that `node` would take back.
    pub fn why(&self, node: &NodeName) -> String {
        match self {
            Stays::Unfit(unfit) => format!("node `{node}` {unfit}"),
            Stays::Held(held) => held.to_string(),
        }
    }
}

impl Unflush {
    /// Whether the node has back what it takes back.
    pub fn is_done(&self) -> bool {
        self.now.is_empty() && self.waiting.is_empty()
    }
}

/// Decides what `node` takes back when it becomes ready, with at most `at_once` VMs on their way
/// together. Those in `tried` were moved back already, and are not once more.
pub fn unflush(
    cluster: &Cluster,
    node: &NodeName,
    tried: &BTreeSet<Uuid>,
    at_once: usize,
) -> Unflush {
    let mut back = Unflush::default();
    let Some(own) = cluster.nodes.get(node) else { return back };
    let comes = |vm: &&std::sync::Arc<VmRecord>| is_moving(&vm.state) && vm.is_assigned_to(node);
    back.waiting = cluster.vms.values().filter(comes).map(|vm| vm.uuid).collect();
    let mut slots = at_once.saturating_sub(back.waiting.len());
    let mut free_mib = own.figures.memory_free_mib.saturating_sub(promised_mib(cluster, own));
    for vm in cluster.vms.values() {
        match take_back(vm, own) {
            Some(TakeBack::Move(uuid)) if tried.contains(&uuid) => {}
            Some(TakeBack::Move(uuid)) => match fits(cluster, vm, own, free_mib) {
                Err(unfit) => back.stay.push((uuid, Stays::Unfit(unfit))),
                Ok(()) if slots == 0 => back.waiting.push(uuid),
                Ok(()) => {
                    slots -= 1;
                    if !own.running.contains(&uuid) {
                        free_mib = free_mib.saturating_sub(vm.memory_mib());
                    }
                    back.now.push(TakeBack::Move(uuid));
                }
            },
            Some(TakeBack::Start(uuid)) => match check_none_held(cluster, vm) {
                Ok(()) => back.now.push(TakeBack::Start(uuid)),
                // Whoever dies on the way leaves half a volume, until an operator asks again.
                Err(held) if !held.purpose.ends_by_itself() => {
                    back.stay.push((uuid, Stays::Held(held)));
                }
                Err(_) => back.waiting.push(uuid),
            },
            Some(other) => back.now.push(other),
            None => {}
        }
    }
    back
}

/// Memory of the node that is promised to VMs that are on their way to it, and to those that are
/// started on it now: these belong there, what comes from elsewhere may stay.
fn promised_mib(cluster: &Cluster, own: &NodeRecord) -> u64 {
    let mut promises = Promises::under_way(cluster);
    for vm in cluster.vms.values().filter(|vm| !own.running.contains(&vm.uuid)) {
        if let Some(TakeBack::Start(_)) = take_back(vm, own) {
            promises.reserve(&own.name, &Need::of(vm));
        }
    }
    promises.memory_mib(&own.name)
}

fn fits(cluster: &Cluster, vm: &VmRecord, own: &NodeRecord, free_mib: u64) -> Result<(), Unfit> {
    let need = Need::of(vm);
    check_size(own, need.memory_mib, need.vcpus)?;
    let is_here = own.running.contains(&vm.uuid);
    check_free_functions(cluster, own, &need, &Promises::default())?;
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
        // Its second node was emptied in turn, with no third one to take it.
        VmState::Stop | VmState::Fail if vm.autostart => Some(TakeBack::Start(vm.uuid)),
        VmState::Stop | VmState::Disable | VmState::Fail => Some(TakeBack::Assign(vm.uuid)),
        VmState::Start => Some(TakeBack::Move(vm.uuid)),
        // It has not left yet, and need not.
        VmState::Migrate | VmState::MigrateLive if own.running.contains(&vm.uuid) => {
            Some(TakeBack::Move(vm.uuid))
        }
        _ => None,
    }
}

/// A VM that a node being emptied or filled waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    pub vm: Uuid,
    pub kind: WaitKind,
    /// Reason for people, to be read after the VM's name.
    pub why: String,
    /// Share of its memory that has been copied.
    pub percent: Option<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitKind {
    /// Moves, or will.
    Moves,
    /// Shuts down, or will.
    ShutsDown,
    /// Is at something else that has to end first.
    Busy,
    /// Can neither stay nor go at present.
    Blocked,
    /// Does not come back, which keeps nobody waiting.
    Stays,
}

impl WaitKind {
    pub fn as_str(self) -> &'static str {
        match self {
            WaitKind::Moves => "move",
            WaitKind::ShutsDown => "shutdown",
            WaitKind::Busy => "wait",
            WaitKind::Blocked => "blocked",
            WaitKind::Stays => "stay",
        }
    }
}

impl Wait {
    fn of(vm: &VmRecord, kind: WaitKind, why: impl Into<String>) -> Self {
        Wait { vm: vm.uuid, kind, why: why.into(), percent: None }
    }
}

/// VMs that `node` waits for to be flushed or ready, whichever it is asked for, in order. Judged by
/// the records alone: whatever its daemon is.
pub fn waits(cluster: &Cluster, node: &NodeName) -> Vec<Wait> {
    match cluster.nodes.get(node).map(|own| &own.domain_state) {
        Some(DomainState::Flush) => waits_to_empty(cluster, node),
        Some(DomainState::Unflush) => waits_to_fill(cluster, node),
        _ => Vec::new(),
    }
}

fn waits_to_empty(cluster: &Cluster, node: &NodeName) -> Vec<Wait> {
    let could_not_go =
        |vm: &&std::sync::Arc<VmRecord>| failed_move(vm).is_some_and(|(from, _)| from == node);
    let failed = cluster.vms.values().filter(could_not_go).map(|vm| vm.uuid).collect();
    let fates = fates(cluster, node, &failed, &mut Promises::under_way(cluster));
    let wait = |(uuid, fate): (Uuid, Fate)| {
        let vm = &cluster.vms[&uuid];
        match fate {
            Fate::Move(to) => Wait::of(
                vm,
                WaitKind::Moves,
                format!("it is to be moved to node `{to}`, and waits for its turn"),
            ),
            Fate::ShutDown(no) => {
                Wait::of(vm, WaitKind::ShutsDown, format!("it is to be shut down: {no}"))
            }
            Fate::Blocked(why) => Wait::of(vm, WaitKind::Blocked, why),
            Fate::UnderWay => under_way(cluster, node, vm),
        }
    };
    fates.into_iter().map(wait).collect()
}

/// The nodes of a move that has failed.
fn failed_move(vm: &VmRecord) -> Option<(&NodeName, &NodeName)> {
    let note = vm.moving.as_ref().filter(|note| note.phase == MovePhase::Failed)?;
    Some((&note.from, &note.to))
}

fn under_way(cluster: &Cluster, node: &NodeName, vm: &VmRecord) -> Wait {
    match vm.state {
        VmState::Migrate | VmState::MigrateLive if vm.is_assigned_to(node) => Wait::of(
            vm,
            WaitKind::Busy,
            "it is on its way to this node, and is moved on when it has arrived",
        ),
        VmState::Migrate | VmState::MigrateLive => on_its_way(vm),
        VmState::Restart => Wait::of(vm, WaitKind::Busy, "it is being restarted"),
        VmState::Stop => Wait::of(vm, WaitKind::ShutsDown, "it is being stopped"),
        _ => {
            let need = Need { leaving: Some(node), ..Need::of(vm) };
            let selector = selector_for(vm.selector.as_ref(), cluster);
            let why = match place(cluster, &selector, &need, &Promises::under_way(cluster)) {
                Err(no) if vm.autostart => format!("it is being shut down: {no}"),
                _ => "it is being shut down".to_owned(),
            };
            Wait::of(vm, WaitKind::ShutsDown, why)
        }
    }
}

fn on_its_way(vm: &VmRecord) -> Wait {
    let to = vm.node.as_ref().map_or_else(String::new, |node| format!(" to node `{node}`"));
    let note = vm
        .moving
        .as_ref()
        .filter(|note| Some(&note.to) == vm.node.as_ref() && !note.phase.is_over());
    let how = match note.map(|note| note.phase) {
        Some(MovePhase::Waiting) => ", which gets ready for it",
        Some(MovePhase::ShuttingDown) => ": it is shut down here and started there",
        _ => "",
    };
    let again = note.filter(|note| note.attempt > 1 && !note.why.is_empty());
    let again = again.map_or_else(String::new, |note| {
        format!(" (attempt {}; the one before failed: {})", note.attempt, note.why)
    });
    let percent = note.filter(|note| note.phase == MovePhase::Copying).map(|note| note.percent());
    Wait { percent, ..Wait::of(vm, WaitKind::Moves, format!("it is being moved{to}{how}{again}")) }
}

fn waits_to_fill(cluster: &Cluster, node: &NodeName) -> Vec<Wait> {
    let back = unflush(cluster, node, &BTreeSet::new(), usize::MAX);
    let place = |vm: &VmRecord| {
        vm.node.as_ref().map_or_else(String::new, |node| format!(" on node `{node}`"))
    };
    let waiting = back.waiting.iter().map(|uuid| &*cluster.vms[uuid]);
    let wait = |vm: &VmRecord| match check_none_held(cluster, vm) {
        Err(held) => Wait::of(vm, WaitKind::Busy, format!("it is to be started, and {held}")),
        Ok(()) => on_its_way(vm),
    };
    let mut waits: Vec<Wait> = waiting.map(wait).collect();
    for wanted in &back.now {
        match wanted {
            TakeBack::Start(uuid) => {
                waits.push(Wait::of(&cluster.vms[uuid], WaitKind::Busy, "it is to be started"));
            }
            TakeBack::Move(uuid) => {
                let vm = &cluster.vms[uuid];
                waits.push(match failed_move(vm) {
                    Some((_, to)) if to == node => Wait::of(
                        vm,
                        WaitKind::Stays,
                        format!("it stays{}: {}", place(vm), failure(vm)),
                    ),
                    _ => Wait::of(
                        vm,
                        WaitKind::Moves,
                        "it is to be moved back, and waits for its turn",
                    ),
                });
            }
            TakeBack::Unmark(_) | TakeBack::Assign(_) => {}
        }
    }
    for (uuid, stays) in &back.stay {
        let vm = &cluster.vms[uuid];
        let place = if matches!(stays, Stays::Held(_)) { " off".to_owned() } else { place(vm) };
        let why = format!("it stays{place}: {}", stays.why(node));
        waits.push(Wait::of(vm, WaitKind::Stays, why));
    }
    waits.sort_by_key(|wait| wait.vm);
    waits
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::hold::{Purpose, VolumeHold};
    use crate::node::{DaemonState, NodeFigures};
    use crate::records;
    use crate::storage::VolumeId;
    use crate::vm::moving::MoveNote;

    /// hv1 in this state with VM number 1, of 512 MiB; hv2 with 1000 MiB free.
    fn cluster(state: DomainState, vm: VmRecord) -> Cluster {
        let mut cluster = Cluster::default();
        for name in ["hv1", "hv2"] {
            let mut node = records::node(name);
            node.figures = NodeFigures {
                memory_total_mib: 4000,
                memory_free_mib: 1000,
                ..NodeFigures::default()
            };
            if name == "hv1" {
                node.domain_state = state.clone();
                node.running.push(vm.uuid);
            }
            cluster.nodes.insert(node.name.clone(), Arc::new(node));
        }
        cluster.vms.insert(vm.uuid, Arc::new(vm));
        cluster
    }

    fn node(cluster: &mut Cluster, name: &str, change: impl FnOnce(&mut NodeRecord)) {
        let mut node = (*cluster.nodes[name]).clone();
        change(&mut node);
        cluster.nodes.insert(node.name.clone(), Arc::new(node));
    }

    fn here(state: VmState) -> VmRecord {
        records::vm(1, state, Some("hv1"))
    }

    fn note(to: &str, phase: MovePhase) -> MoveNote {
        MoveNote {
            from: NodeName::new(if to == "hv1" { "hv2" } else { "hv1" }),
            to: NodeName::new(to),
            phase,
            incarnation: 0,
            request: 0,
            held: true,
            attempt: 1,
            seconds: 1,
            total_bytes: 100,
            processed_bytes: 25,
            remaining_bytes: 75,
            why: String::new(),
            left_on: [].into(),
        }
    }

    fn moving(to: &str, note: Option<MoveNote>) -> VmRecord {
        VmRecord { moving: note, ..records::vm(1, VmState::Migrate, Some(to)) }
    }

    /// Between the two halves of a restart it is off, and would be sent without a guest.
    #[test]
    fn a_vm_that_is_just_being_started_is_moved_when_it_runs() {
        let (hv1, vm) = (NodeName::new("hv1"), here(VmState::Start));
        let mut cluster = cluster(DomainState::Flush, vm.clone());
        let fate = |cluster: &Cluster| {
            let mut promises = Promises::default();
            fates(cluster, &hv1, &BTreeSet::new(), &mut promises).remove(0).1
        };
        assert_eq!(fate(&cluster), Fate::Move(NodeName::new("hv2")));
        node(&mut cluster, "hv1", |hv1| hv1.working_on.push(vm.uuid));
        assert_eq!(fate(&cluster), Fate::Move(NodeName::new("hv2")), "its guest is there");
        node(&mut cluster, "hv1", |hv1| hv1.running.clear());
        assert_eq!(fate(&cluster), Fate::UnderWay);
        // Nobody is at it: it may never start here.
        node(&mut cluster, "hv1", |hv1| hv1.working_on.clear());
        assert_eq!(fate(&cluster), Fate::Move(NodeName::new("hv2")));
    }

    /// The one thing that is waited for.
    #[track_caller]
    fn waits_for(cluster: &Cluster) -> (WaitKind, String, Option<u8>) {
        match waits(cluster, &NodeName::new("hv1")).as_slice() {
            [only] => (only.kind, only.why.clone(), only.percent),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_vm_that_keeps_a_node_from_being_flushed_has_its_reason() {
        use WaitKind::{Blocked, Busy, Moves, ShutsDown};
        let failed =
            MoveNote { why: "host CPU differs".to_owned(), ..note("hv2", MovePhase::Failed) };
        let attempt = |attempt, why: &str| {
            let why = why.to_owned();
            Some(MoveNote { attempt, why, ..note("hv2", MovePhase::Copying) })
        };
        let stays = |note| VmRecord { moving: Some(note), ..here(VmState::Start) };
        let waits_for_its_turn = "it is to be moved to node `hv2`, and waits for its turn";
        for (vm, kind, why, percent) in [
            (here(VmState::Start), Moves, waits_for_its_turn, None),
            (here(VmState::Shutdown), ShutsDown, "it is being shut down", None),
            (here(VmState::Restart), Busy, "it is being restarted", None),
            (here(VmState::Stop), ShutsDown, "it is being stopped", None),
            (
                moving("hv1", None),
                Busy,
                "it is on its way to this node, and is moved on when it has arrived",
                None,
            ),
            (moving("hv2", None), Moves, "it is being moved to node `hv2`", None),
            (
                moving("hv2", Some(note("hv2", MovePhase::Waiting))),
                Moves,
                "it is being moved to node `hv2`, which gets ready for it",
                None,
            ),
            (
                moving("hv2", Some(note("hv2", MovePhase::Copying))),
                Moves,
                "it is being moved to node `hv2`",
                Some(25),
            ),
            (
                moving("hv2", attempt(2, "the copying did not begin within 60 s")),
                Moves,
                "it is being moved to node `hv2` (attempt 2; the one before failed: the copying \
                 did not begin within 60 s)",
                Some(25),
            ),
            (
                moving("hv2", Some(note("hv2", MovePhase::ShuttingDown))),
                Moves,
                "it is being moved to node `hv2`: it is shut down here and started there",
                None,
            ),
            (moving("hv2", attempt(2, "")), Moves, "it is being moved to node `hv2`", Some(25)),
            (moving("hv2", attempt(1, "slow")), Moves, "it is being moved to node `hv2`", Some(25)),
            // A note of an earlier move says nothing of this one.
            (moving("hv2", Some(failed.clone())), Moves, "it is being moved to node `hv2`", None),
            (
                moving("hv2", Some(note("hv1", MovePhase::Copying))),
                Moves,
                "it is being moved to node `hv2`",
                None,
            ),
            (stays(failed), Blocked, "it could not be moved to node `hv2`: host CPU differs", None),
            (stays(note("hv2", MovePhase::Failed)), Blocked, "it could not be moved", None),
            // It came back since, or did not come here by that move at all.
            (stays(note("hv2", MovePhase::Done)), Moves, waits_for_its_turn, None),
            (stays(note("hv1", MovePhase::Failed)), Moves, waits_for_its_turn, None),
        ] {
            let cluster = cluster(DomainState::Flush, vm);
            assert_eq!(waits_for(&cluster), (kind, why.to_owned(), percent));
        }
    }

    #[test]
    fn a_vm_that_fits_nowhere_says_by_which_limit() {
        let limited = VmRecord { node_limit: vec![NodeName::new("hv1")], ..here(VmState::Start) };
        let limit = "no node can take the VM: `hv1` is where the VM is now; \
                     `hv2` is not among the nodes the VM is limited to";
        let mut cluster = cluster(DomainState::Flush, limited.clone());
        assert_eq!(
            waits_for(&cluster),
            (WaitKind::ShutsDown, format!("it is to be shut down: {limit}"), None)
        );
        let leaving = VmRecord { state: VmState::Shutdown, autostart: true, ..limited };
        cluster.vms.insert(leaving.uuid, Arc::new(leaving.clone()));
        assert_eq!(
            waits_for(&cluster),
            (WaitKind::ShutsDown, format!("it is being shut down: {limit}"), None)
        );
        let asked = VmRecord { autostart: false, ..leaving };
        cluster.vms.insert(asked.uuid, Arc::new(asked));
        assert_eq!(waits_for(&cluster).1, "it is being shut down", "somebody else wanted that");

        let vm = here(VmState::Start);
        cluster.vms.insert(vm.uuid, Arc::new(vm));
        node(&mut cluster, "hv2", |node| node.figures.memory_free_mib = 100);
        assert_eq!(
            waits_for(&cluster).1,
            "it is to be shut down: no node can take the VM: `hv1` is where the VM is now; \
             `hv2` has 100 MiB of memory free, and the VM needs 512 MiB"
        );
        node(&mut cluster, "hv2", |node| node.daemon_state = DaemonState::Init);
        assert_eq!(
            waits_for(&cluster),
            (
                WaitKind::Blocked,
                "it waits for a node that starts: no node can take the VM: `hv1` is where the VM \
                 is now; \
                 `hv2` is in daemon state `init`, not `run`"
                    .to_owned(),
                None
            )
        );
    }

    #[test]
    fn each_vm_that_a_node_takes_back_has_its_reason() {
        use WaitKind::{Busy, Moves, Stays};
        let away = || VmRecord {
            last_node: Some(NodeName::new("hv1")),
            ..records::vm(1, VmState::Start, Some("hv2"))
        };
        let failed =
            MoveNote { why: "host CPU differs".to_owned(), ..note("hv1", MovePhase::Failed) };
        for (vm, kind, why, percent) in [
            (
                VmRecord { autostart: true, ..here(VmState::Stop) },
                Busy,
                "it is to be started",
                None,
            ),
            (away(), Moves, "it is to be moved back, and waits for its turn", None),
            (
                moving("hv1", Some(note("hv1", MovePhase::Copying))),
                Moves,
                "it is being moved to node `hv1`",
                Some(25),
            ),
            (
                VmRecord { moving: Some(failed), ..away() },
                Stays,
                "it stays on node `hv2`: it could not be moved to node `hv1`: host CPU differs",
                None,
            ),
            (
                VmRecord { moving: Some(note("hv2", MovePhase::Failed)), ..away() },
                Moves,
                "it is to be moved back, and waits for its turn",
                None,
            ),
        ] {
            let mut cluster = cluster(DomainState::Unflush, vm);
            node(&mut cluster, "hv1", |node| node.running.clear());
            assert_eq!(waits_for(&cluster), (kind, why.to_owned(), percent));
        }
        let mut cluster = cluster(DomainState::Unflush, away());
        node(&mut cluster, "hv1", |node| {
            node.running.clear();
            node.figures.memory_free_mib = 100;
        });
        let why = "it stays on node `hv2`: node `hv1` has 100 MiB of memory free, and the VM needs \
                   512 MiB";
        assert_eq!(waits_for(&cluster), (Stays, why.to_owned(), None));
        let with_hostdev = |vm| records::with_hostdev(vm, "ens1v0");
        let mut cluster = super::tests::cluster(DomainState::Unflush, with_hostdev(away()));
        node(&mut cluster, "hv1", |node| {
            node.running.clear();
            node.sriov = records::one_function("ens1v0");
        });
        let other = with_hostdev(records::vm(2, VmState::Stop, Some("hv1")));
        cluster.vms.insert(other.uuid, Arc::new(other));
        let why = "it stays on node `hv2`: node `hv1` has given its SR-IOV function `ens1v0` to \
                   another VM";
        assert_eq!(waits_for(&cluster), (Stays, why.to_owned(), None));
        let volume = VolumeId::parse("vms/a").unwrap();
        for (purpose, kind, why) in [
            (
                Purpose::Fill { trashed: None },
                Busy,
                "it is to be started, and volume `vms/a` is being given new contents",
            ),
            (
                Purpose::Shrink(1),
                Stays,
                "it stays off: volume `vms/a` is being made smaller, to 1 bytes",
            ),
            (
                Purpose::Other,
                Stays,
                "it stays off: volume `vms/a` is being changed in a way that this version does \
                 not know",
            ),
        ] {
            let recorded_volumes = vec![volume.clone()];
            let vm = VmRecord { autostart: true, recorded_volumes, ..here(VmState::Stop) };
            let mut cluster = super::tests::cluster(DomainState::Unflush, vm);
            node(&mut cluster, "hv1", |node| node.running.clear());
            let hold = VolumeHold { volume: volume.clone(), purpose, by: String::new() };
            cluster.holds.insert(volume.clone(), Arc::new(hold));
            assert_eq!(waits_for(&cluster), (kind, why.to_owned(), None));
        }
    }

    #[test]
    fn each_kind_of_waiting_has_its_word() {
        use WaitKind::{Blocked, Busy, Moves, ShutsDown, Stays};
        let words = [Moves, ShutsDown, Busy, Blocked, Stays].map(WaitKind::as_str);
        assert_eq!(words, ["move", "shutdown", "wait", "blocked", "stay"]);
    }

    #[test]
    fn a_node_that_is_asked_for_nothing_waits_for_nothing() {
        for state in [DomainState::Ready, DomainState::Flushed, DomainState::FenceFlush] {
            assert_eq!(waits(&cluster(state, here(VmState::Start)), &NodeName::new("hv1")), []);
        }
        assert_eq!(waits(&Cluster::default(), &NodeName::new("hv1")), []);
    }
}
