//! Choice of new nodes for the VMs of a dead node.

use crate::cluster::Cluster;
use crate::node::{DaemonState, NodeRecord};
use crate::placement::{
    Need, NoPlace, Promises, Unfit, Weighed, check_destination, check_limit, check_node,
    check_room, selector_for, weigh,
};
use crate::storage::VolumeId;
use crate::vm::moving::is_moving;
use crate::vm::{VmRecord, VmState};
use crate::{NodeName, Uuid};

/// Treatment of one VM of a dead node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rescue {
    pub vm: Uuid,
    pub name: String,
    /// Volumes whose locks of the dead node are released before anything is written (I2).
    pub volumes: Vec<VolumeId>,
    pub way: Way,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// Is started on this node.
    Start(NodeName),
    /// Runs on this node, on its way to or from the dead one.
    Stay(NodeName),
    /// No node can take it: it is off until its own node is ready again.
    Wait(NoPlace),
    /// No node can take it before others are placed that were on their way, have arrived or are
    /// started, or before the node that sent it has done with it. That may take for ever: the VM is
    /// not given up, and operators are told.
    Later(NoPlace),
    /// Was on its way down on the dead node, and is off now.
    Off,
    /// Another node, that node's fence or an operator says what becomes of it. Only the dead node's
    /// locks are in its way.
    Leave,
}

/// Plans for all VMs at once that `victim` had; those that should run and cannot since it is dead
/// are given other nodes, and no memory is promised twice (I11). The largest VMs choose first: a
/// small one fits in what they leave, not the other way round.
pub fn rescues(cluster: &Cluster, victim: &NodeName) -> Vec<Rescue> {
    rescues_while(cluster, victim, |_| true)
}

/// Same as [`rescues`], while the locks of some VMs are not free yet: only what `is_free` can be
/// written. Of the others one that was on its way has what it was promised where it goes, by its
/// record, and nobody else is given that.
pub fn rescues_while(
    cluster: &Cluster,
    victim: &NodeName,
    is_free: impl Fn(Uuid) -> bool,
) -> Vec<Rescue> {
    plan(cluster, victim, is_free).into_iter().map(|(rescue, _)| rescue).collect()
}

/// Same as [`rescues`], each with how every node did as a place for the VM, if one had to be looked
/// for.
pub fn weighed_rescues(cluster: &Cluster, victim: &NodeName) -> Vec<(Rescue, Option<Weighed>)> {
    plan(cluster, victim, |_| true)
}

/// Whether nothing is left to be decided about the VMs that `victim` had.
pub fn is_recovered(cluster: &Cluster, victim: &NodeName) -> bool {
    rescues(cluster, victim).iter().all(|rescue| match &rescue.way {
        Way::Leave => true,
        Way::Stay(node) => cluster.vms[&rescue.vm].is_assigned_to(node),
        Way::Start(_) | Way::Wait(_) | Way::Later(_) | Way::Off => false,
    })
}

fn plan(
    cluster: &Cluster,
    victim: &NodeName,
    is_free: impl Fn(Uuid) -> bool,
) -> Vec<(Rescue, Option<Weighed>)> {
    let is_lost = |vm: &VmRecord| stake(cluster, vm, victim) == Some(Stake::Lost);
    let is_expected = |vm: &VmRecord| is_lost(vm) && is_moving(&vm.state) && !is_free(vm.uuid);
    let staked = |vm: &&VmRecord| stake(cluster, vm, victim).is_some();
    let mut vms: Vec<&VmRecord> = cluster.vms.values().map(|vm| &**vm).filter(staked).collect();
    // Those that stay where they are have what they need there before others are given the rest.
    let staying = |vm: &VmRecord| {
        let runner = runner(cluster, vm, victim)?;
        Some(runner.running.contains(&vm.uuid) || vm.is_assigned_to(&runner.name))
    };
    let size = |vm: &VmRecord| (std::cmp::Reverse(vm.memory_mib()), vm.name.clone(), vm.uuid);
    vms.sort_by_key(|vm| (std::cmp::Reverse(staying(vm)), size(vm)));
    let mut promises = Promises::under_way_but(cluster, |vm| is_lost(vm) && !is_expected(vm));
    let some_are_expected = vms.iter().any(|vm| is_expected(vm));
    let rescue = |vm: &VmRecord| {
        let (way, weighed) = match stake(cluster, vm, victim) {
            Some(Stake::Lost) => match way(cluster, vm, victim, &mut promises) {
                (Way::Wait(why), weighed)
                    if some_are_expected || waits_for_others(cluster, victim, &why) =>
                {
                    (Way::Later(why), weighed)
                }
                way => way,
            },
            Some(Stake::Off) => (Way::Off, None),
            Some(Stake::Locks) | None => (Way::Leave, None),
        };
        (Rescue { vm: vm.uuid, name: vm.name.clone(), volumes: vm.volumes(), way }, weighed)
    };
    vms.into_iter().filter(|vm| !is_expected(vm)).map(rescue).collect()
}

/// Relation of a VM to a dead node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stake {
    /// Should run and cannot, since that node is dead.
    Lost,
    /// Was to be shut down there.
    Off,
    /// Is no longer that node's, or not only, but the node may have left locks on its volumes.
    Locks,
}

/// Relation of the VM to `victim`, that should run it, sent or received it, or ran it before it was
/// given to another.
fn stake(cluster: &Cluster, vm: &VmRecord, victim: &NodeName) -> Option<Stake> {
    let assigned = vm.is_assigned_to(victim);
    let listed = cluster.nodes.get(victim).is_some_and(|node| lists(node, vm.uuid));
    let runner = runner(cluster, vm, victim);
    let owner =
        vm.node.as_ref().and_then(|node| cluster.nodes.get(node)).map(|node| &node.daemon_state);
    match vm.state {
        VmState::Start | VmState::Restart if assigned => {}
        // Who it belongs to by now starts it, unless that one is dead, too. Also a start that has
        // begun may have met the locks.
        VmState::Start | VmState::Restart => {
            let owner = owner.filter(|_| listed)?;
            let is_lost = *owner == DaemonState::Fenced && runner.is_none();
            return Some(if is_lost { Stake::Lost } else { Stake::Locks });
        }
        VmState::Migrate | VmState::MigrateLive | VmState::Unmigrate => {
            let left = vm.last_node.as_ref() == Some(victim);
            let concerned =
                assigned || listed || (left && !is_sent_by_another(cluster, vm, victim));
            concerned.then_some(())?;
            // It may have arrived there, whatever that node said last: its fence decides.
            if owner == Some(&DaemonState::Dead) {
                return Some(Stake::Locks);
            }
        }
        VmState::Shutdown if assigned && runner.is_none() => return Some(Stake::Off),
        // Asked to be off since the node fell silent. Whoever starts it next, and where, is not to
        // meet the locks.
        _ => return listed.then_some(Stake::Locks),
    }
    // One that a silent node may run is decided with that node.
    let runs = runner.is_none_or(|runner| runner.daemon_state == DaemonState::Run);
    Some(if runs { Stake::Lost } else { Stake::Locks })
}

/// Whether a move goes on that has nothing of `victim` but the VM's home.
fn is_sent_by_another(cluster: &Cluster, vm: &VmRecord, victim: &NodeName) -> bool {
    runners(cluster, vm, victim).any(|runner| !vm.is_assigned_to(&runner.name))
}

/// The node other than `victim` that says it runs the VM, unless it is dead for certain.
fn runner<'a>(cluster: &'a Cluster, vm: &VmRecord, victim: &NodeName) -> Option<&'a NodeRecord> {
    runners(cluster, vm, victim).next()
}

fn runners<'a>(
    cluster: &'a Cluster,
    vm: &VmRecord,
    victim: &NodeName,
) -> impl Iterator<Item = &'a NodeRecord> {
    let runs =
        move |node: &&NodeRecord| node.name != *victim && !node.is_fenced() && lists(node, vm.uuid);
    cluster.nodes.values().map(|node| &**node).filter(runs)
}

fn way(
    cluster: &Cluster,
    vm: &VmRecord,
    victim: &NodeName,
    promises: &mut Promises,
) -> (Way, Option<Weighed>) {
    if let Some(runner) = runner(cluster, vm, victim) {
        return (stay(vm, runner, promises), None);
    }
    let need = Need { leaving: Some(victim), ..Need::of(vm) };
    // Where it was going is where somebody wanted it.
    let destination = vm.node.as_ref().and_then(|node| cluster.nodes.get(node)).map(|node| &**node);
    let check = if is_moving(&vm.state) { check_destination } else { check_node };
    let fits = |node: &&NodeRecord| check(cluster, node, &need, promises).is_ok();
    let (chosen, weighed) = match destination.filter(fits) {
        Some(node) => (Ok(node.name.clone()), None),
        None => {
            let selector = selector_for(vm.selector.as_ref(), cluster);
            let weighed = weigh(cluster, &selector, &need, promises);
            (weighed.clone().chosen(), Some(weighed))
        }
    };
    match chosen {
        Ok(node) => {
            promises.add(&node, &need);
            (Way::Start(node), weighed)
        }
        Err(no_place) => (Way::Wait(no_place), weighed),
    }
}

/// Whether a node would do but for what is promised to a VM that is being started there, or that a
/// living node sends there or from there. Until that has ended the VM's memory may be in the node's
/// figures as well as promised, and may be free in the end.
fn waits_for_others(cluster: &Cluster, victim: &NodeName, why: &NoPlace) -> bool {
    let is_sent = |vm: &VmRecord, node: &NodeRecord| {
        let sends = |other: &&NodeRecord| {
            other.daemon_state == DaemonState::Run && !vm.is_assigned_to(&other.name)
        };
        let mut senders = runners(cluster, vm, victim).filter(sends);
        is_moving(&vm.state)
            && senders.any(|sender| sender.name == node.name || vm.is_assigned_to(&node.name))
    };
    let is_started = |vm: &VmRecord, node: &NodeRecord| {
        vm.is_assigned_to(&node.name) && node.working_on.contains(&vm.uuid)
    };
    let is_lost = |vm: &VmRecord| stake(cluster, vm, victim) == Some(Stake::Lost);
    why.crowded(cluster).any(|node| {
        let holds = |vm: &VmRecord| is_sent(vm, node) || is_started(vm, node);
        cluster.vms.values().any(|vm| holds(vm) && !is_lost(vm))
    })
}

/// Treatment of a VM that `runner` says it runs, or is at starting or ending.
fn stay(vm: &VmRecord, runner: &NodeRecord, promises: &mut Promises) -> Way {
    if runner.running.contains(&vm.uuid) {
        return Way::Stay(runner.name.clone());
    }
    // Its guest has ended there, to go to the dead node. It may have been limited to other nodes
    // since, and others may have been given its memory.
    let check = || {
        check_limit(&runner.name, &vm.node_limit)?;
        check_room(runner, vm.memory_mib(), promises)
    };
    if !vm.is_assigned_to(&runner.name)
        && let Err(unfit) = check()
    {
        return Way::Later(NoPlace { reasons: [(runner.name.clone(), unfit)].into() });
    }
    promises.reserve(&runner.name, &Need::of(vm));
    Way::Stay(runner.name.clone())
}

/// Whether a node that does not take the VM now may do so in a moment: one that starts or takes
/// back its own VMs, one which is only suspected to be dead, for it may live, and one whose memory
/// is promised to others, for what has just arrived may be counted twice. Any of them may stay as
/// it is for ever, so without `may_wait` none is waited for.
pub fn is_awaited(cluster: &Cluster, why: &NoPlace, may_wait: bool) -> bool {
    let suspected = Unfit::Daemon(DaemonState::Dead);
    let is_suspected = || why.reasons.values().any(|unfit| *unfit == suspected);
    may_wait && (why.is_starting() || is_suspected() || why.is_crowded_somewhere(cluster))
}

/// Whether the guest may be on `node`, by what that node says or by what the record asks of it.
pub(crate) fn may_have(node: &NodeRecord, vm: &VmRecord) -> bool {
    lists(node, vm.uuid)
        || vm.is_assigned_to(&node.name)
        || (is_moving(&vm.state) && vm.last_node.as_ref() == Some(&node.name))
}

/// Whether the node says that it runs the VM, or is at starting or ending it.
fn lists(node: &NodeRecord, vm: Uuid) -> bool {
    node.running.contains(&vm) || node.working_on.contains(&vm)
}
