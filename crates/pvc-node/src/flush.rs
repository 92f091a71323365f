//! Empties this node of VMs and takes them back: what [`pvc_model::flush`] decides, made true.
//!
//! Every pass decides anew from the records, so a flush that is turned into a ready in its last
//! moment, or the other way round, is simply continued the other way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::fault::{self, fault_id};
use pvc_model::flush::{Flush, Leave, Stays, TakeBack, flush, unflush};
use pvc_model::node::{DaemonState, DomainState};
use pvc_model::placement::{Need, Promises};
use pvc_model::vm::VmState;
use pvc_model::vm::moving::is_moving;
use pvc_model::{NodeName, Uuid};
use pvc_role::{Alarm, Superseded};
use pvc_store::{Changes, Expect, NodeChange, VmChange};
use tokio_util::sync::CancellationToken;

use crate::shared::Shared;

/// Time that the store may take for a change.
const DEADLINE: Duration = Duration::from_secs(10);

/// Works until `shutdown`.
pub(crate) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    let mut turns = shared.turns(&shutdown);
    let mut memory = Memory::default();
    while turns.next_change(shared.settings.keepalive_interval).await {
        if shared.is_connected() {
            pass(&shared, &mut memory).await;
        }
    }
}

/// Facts kept from pass to pass. Losing them is harmless.
#[derive(Default)]
struct Memory {
    request: Option<DomainState>,
    /// The blockers that were logged.
    blockers: Vec<(Uuid, String)>,
    alarm: Alarm,
    /// Destinations of VMs that were sent lately: their new node's figures do not show them yet.
    sent: BTreeMap<Uuid, Sent>,
    /// Time until which figures may count what was promised as well: VMs move somewhere, or did a
    /// moment ago. Monotonic.
    unsettled: Option<Duration>,
    /// VMs that were moved back since the node was asked to be ready.
    tried: BTreeSet<Uuid>,
    stay: BTreeSet<Uuid>,
}

/// Facts that the figures of nodes do not show, or show twice.
#[derive(Default)]
struct News {
    /// The VMs that were sent lately, and where to.
    sent: Vec<(Uuid, NodeName)>,
    is_unsettled: bool,
}

struct Sent {
    to: NodeName,
    /// Monotonic.
    until: Duration,
}

async fn pass(shared: &Arc<Shared>, memory: &mut Memory) {
    let view = shared.store.view();
    let Some(own) = view.nodes.get(shared.name()) else { return };
    let request = own.domain_state.clone();
    if memory.request.as_ref() != Some(&request) {
        if matches!(request, DomainState::Flush | DomainState::Unflush) {
            tracing::info!(
                request = request.as_str(),
                "the node is asked to give its VMs away or take them back"
            );
        }
        *memory = Memory { request: Some(request.clone()), ..Memory::default() };
    }
    match request {
        DomainState::Flush => empty(shared, &view, memory).await,
        // Before that the record does not know the guests that came or went while no daemon was
        // here.
        DomainState::Unflush if own.daemon_state == DaemonState::Run => {
            take_back(shared, &view, memory).await
        }
        _ => {}
    }
}

impl Memory {
    fn news(&mut self, shared: &Shared, view: &Cluster) -> News {
        let now = shared.now();
        let lasting = shared.settings.keepalive_interval * 2;
        self.sent.retain(|uuid, sent| {
            let Some(vm) = view.vms.get(uuid).filter(|vm| vm.is_assigned_to(&sent.to)) else {
                return false;
            };
            if is_moving(&vm.state) {
                sent.until = now + lasting;
            }
            now < sent.until
        });
        let sent: Vec<(Uuid, NodeName)> =
            self.sent.iter().map(|(uuid, sent)| (*uuid, sent.to.clone())).collect();
        let moves = !sent.is_empty() || view.vms.values().any(|vm| is_moving(&vm.state));
        let unsettled = self.unsettled.get_or_insert(now + lasting);
        if moves {
            *unsettled = now + lasting;
        }
        News { sent, is_unsettled: now < *unsettled }
    }
}

/// Promises to VMs that are on their way, and to those that have only just arrived.
fn promises(cluster: &Cluster, news: &News) -> Promises {
    let mut promises = Promises::under_way(cluster);
    for (uuid, to) in &news.sent {
        let has_arrived = cluster.nodes.get(to).is_some_and(|node| node.running.contains(uuid));
        if let Some(vm) = cluster.vms.get(uuid).filter(|_| has_arrived) {
            promises.reserve(to, &Need::of(vm));
        }
    }
    promises
}

async fn empty(shared: &Arc<Shared>, view: &Cluster, memory: &mut Memory) {
    let news = memory.news(shared, view);
    let left = plan(shared, view, &news);
    for leave in &left.leave {
        if send(shared, leave, &news).await {
            let until = shared.now() + shared.settings.keepalive_interval * 2;
            memory.sent.insert(leave.vm, Sent { to: leave.to.clone(), until });
        }
    }
    for vm in &left.shut_down {
        shut_down(shared, *vm, &news).await;
    }
    tell_blockers(shared, &left.blocked, memory).await;
    if left.is_done() {
        let decide = |cluster: &Cluster| {
            let left = plan(shared, cluster, &News::default());
            let done = is_asked(cluster, shared, &DomainState::Flush) && left.is_done();
            finished(shared, done, DomainState::Flushed)
        };
        if changed(shared, decide).await {
            tracing::info!("the node is flushed: it runs no VMs");
        }
    }
}

fn plan(shared: &Shared, cluster: &Cluster, news: &News) -> Flush {
    let now = shared.now();
    let failed = shared.failed_moves();
    let failed = failed.iter().filter(|(_, failures)| failures.wait_until(now).is_some());
    let failed = failed.map(|(uuid, _)| *uuid).collect();
    let at_once = shared.settings.migration.at_once;
    let with = |promises| flush(cluster, shared.name(), &failed, promises, at_once);
    let left = with(promises(cluster, news));
    match news.is_unsettled && !left.shut_down.is_empty() {
        true => wait_for_room(left, &with(Promises::default())),
        false => left,
    }
}

/// Puts off what has no room for the moment. A VM that is on its way, or has only just arrived, may
/// be counted twice: by its node's figures and by what was promised to it. Reason enough to move
/// nothing more there, but none to shut down a VM that has a place `by_figures`.
fn wait_for_room(mut left: Flush, by_figures: &Flush) -> Flush {
    let (now, later) = left.shut_down.into_iter().partition(|vm| by_figures.shut_down.contains(vm));
    left.shut_down = now;
    left.waiting.extend::<Vec<Uuid>>(later);
    left
}

/// Gives the VM its new node.
async fn send(shared: &Shared, leave: &Leave, news: &News) -> bool {
    let vm = leave.vm;
    let decide = |cluster: &Cluster| {
        let asked = is_asked(cluster, shared, &DomainState::Flush);
        if !asked || !plan(shared, cluster, news).leave.contains(leave) {
            return Err(Superseded);
        }
        let mut changes = Changes::new();
        changes.expect(Expect::NodeDomain(shared.name().clone())).expect(Expect::Placements);
        changes
            .expect(Expect::NodeDaemon(leave.to.clone()))
            .expect(Expect::NodeDomain(leave.to.clone()));
        changes.expect(Expect::VmNodeLimit(vm));
        changes.vm(vm, VmChange::State(VmState::Migrate)).vm(vm, VmChange::Node(leave.to.clone()));
        changes.vm(vm, VmChange::LastNode(leave.home.clone()));
        Ok((changes, ()))
    };
    changed(shared, decide).await
}

/// Shuts the VM down and marks it to be started when the node is ready again.
async fn shut_down(shared: &Shared, vm: Uuid, news: &News) {
    let decide = |cluster: &Cluster| {
        let asked = is_asked(cluster, shared, &DomainState::Flush);
        if !asked || !plan(shared, cluster, news).shut_down.contains(&vm) {
            return Err(Superseded);
        }
        let mut changes = Changes::new();
        changes.expect(Expect::NodeDomain(shared.name().clone())).expect(Expect::VmNode(vm));
        changes.expect(Expect::VmNodeLimit(vm));
        changes.vm(vm, VmChange::State(VmState::Shutdown)).vm(vm, VmChange::Autostart(true));
        Ok((changes, ()))
    };
    if changed(shared, decide).await {
        tracing::info!(
            vm = name_of(shared, vm),
            "no other node can take the VM: it is shut down until this one is ready"
        );
    }
}

/// Names what keeps the flush from its end, in the log and as a fault.
async fn tell_blockers(shared: &Shared, blocked: &[(Uuid, String)], memory: &mut Memory) {
    if blocked.is_empty() {
        memory.blockers.clear();
        return;
    }
    let said: Vec<String> =
        blocked.iter().map(|(vm, why)| format!("VM {}: {why}", name_of(shared, *vm))).collect();
    let said = said.join("; ");
    if memory.blockers != blocked {
        memory.blockers = blocked.to_vec();
        memory.alarm.end();
        tracing::warn!(
            vms = said,
            "these VMs keep the node from being flushed; they are tried again"
        );
    }
    let Some(said) = memory.alarm.due(Some(said), shared.now()) else { return };
    let node = shared.name();
    let message = format!(
        "node {node} cannot be flushed: {said}. Move or shut them down by hand, or take the flush \
         back with `pvc node ready {node}`"
    );
    shared.raise_own("FLUSH_BLOCKED", &message).await;
}

async fn take_back(shared: &Shared, view: &Cluster, memory: &mut Memory) {
    let at_once = shared.settings.migration.at_once;
    let back = unflush(view, shared.name(), &memory.tried, at_once);
    for wanted in &back.now {
        if take_one_back(shared, wanted, &memory.tried).await
            && let TakeBack::Move(vm) = wanted
        {
            memory.tried.insert(*vm);
        }
    }
    for (vm, stays) in &back.stay {
        if memory.stay.insert(*vm) {
            tracing::warn!(
                vm = name_of(shared, *vm),
                "the VM is not taken back: {}",
                stays.why(shared.name())
            );
        }
    }
    let tried = memory.tried.clone();
    let left = |cluster: &Cluster| unflush(cluster, shared.name(), &tried, at_once);
    // Before the node is ready, for a daemon that dies then; and what came to it since.
    let view = shared.store.view();
    let seen = left(&view);
    let mut said = Vec::new();
    if seen.is_done() {
        said = left_off_faults(&view, &seen.stay);
        raise_all(shared, &said).await;
    }
    let mut left_off = Vec::new();
    let decide = |cluster: &Cluster| {
        let left = left(cluster);
        let done = is_asked(cluster, shared, &DomainState::Unflush) && left.is_done();
        left_off = left_off_faults(cluster, &left.stay);
        finished(shared, done, DomainState::Ready)
    };
    if changed(shared, decide).await {
        tracing::info!("the node is ready: it takes VMs");
        left_off.retain(|fault| !said.contains(fault));
        raise_all(shared, &left_off).await;
    }
}

async fn raise_all(shared: &Shared, faults: &[(String, String)]) {
    for (id, message) in faults {
        shared.raise(id, message).await;
    }
}

/// Faults of the VMs that nobody starts any more: the node is ready before their volumes are whole.
fn left_off_faults(cluster: &Cluster, stay: &[(Uuid, Stays)]) -> Vec<(String, String)> {
    let fault = |(vm, stays): &(Uuid, Stays)| {
        let Stays::Held(held) = stays else { return None };
        let vm = &cluster.vms.get(vm)?.name;
        let message = format!(
            "VM {vm} was to be started when its node became ready, and is left off: {held}. Start \
             it with `pvc vm start {vm}` when that is over"
        );
        Some((fault_id(fault::VM_LEFT_OFF, vm), message))
    };
    stay.iter().filter_map(fault).collect()
}

/// Whether the record was changed.
async fn take_one_back(shared: &Shared, wanted: &TakeBack, tried: &BTreeSet<Uuid>) -> bool {
    let (TakeBack::Start(vm) | TakeBack::Unmark(vm) | TakeBack::Assign(vm) | TakeBack::Move(vm)) =
        *wanted;
    let decide = |cluster: &Cluster| {
        let asked = is_asked(cluster, shared, &DomainState::Unflush);
        let back = unflush(cluster, shared.name(), tried, shared.settings.migration.at_once);
        if !asked || !back.now.contains(wanted) {
            return Err(Superseded);
        }
        let mut changes = Changes::new();
        changes.expect(Expect::NodeDomain(shared.name().clone()));
        changes.expect(Expect::VmNode(vm)).expect(Expect::VmState(vm));
        match wanted {
            TakeBack::Start(_) => {
                changes.expect(Expect::Holds).vm(vm, VmChange::State(VmState::Start));
            }
            TakeBack::Move(_) => _ = changes.vm(vm, VmChange::State(VmState::Migrate)),
            TakeBack::Unmark(_) | TakeBack::Assign(_) => {}
        }
        if let TakeBack::Start(_) | TakeBack::Unmark(_) = wanted {
            changes.vm(vm, VmChange::Autostart(false));
        }
        if !matches!(wanted, TakeBack::Unmark(_)) {
            changes.expect(Expect::Placements);
            changes.vm(vm, VmChange::Node(shared.name().clone())).vm(vm, VmChange::LastNode(None));
        }
        Ok((changes, ()))
    };
    let done = changed(shared, decide).await;
    match wanted {
        TakeBack::Start(_) if done => {
            tracing::info!(vm = name_of(shared, vm), "the VM is started again")
        }
        TakeBack::Move(_) if done => tracing::info!(vm = name_of(shared, vm), "the VM comes back"),
        _ => {}
    }
    done
}

fn is_asked(cluster: &Cluster, shared: &Shared, request: &DomainState) -> bool {
    cluster.nodes.get(shared.name()).is_some_and(|own| own.domain_state == *request)
}

fn finished(shared: &Shared, done: bool, state: DomainState) -> Result<(Changes, ()), Superseded> {
    if !done {
        return Err(Superseded);
    }
    let mut changes = Changes::new();
    // A VM that waits for this node since would be started by nobody; and one that comes to it,
    // moved away by nobody.
    changes.expect(Expect::Placements);
    changes.node(shared.name(), NodeChange::Domain(state));
    Ok((changes, ()))
}

fn name_of(shared: &Shared, vm: Uuid) -> String {
    shared.store.view().vms.get(&vm).map_or_else(|| vm.to_string(), |record| record.name.clone())
}

/// Whether the change was made.
async fn changed(
    shared: &Shared,
    decide: impl FnMut(&Cluster) -> Result<(Changes, ()), Superseded> + Send,
) -> bool {
    let failed = "the node's VMs could not be given away or taken back; it is tried again";
    let late = "the node's VMs could not be given away or taken back in time; it is tried again";
    shared.change(DEADLINE, decide, failed, late).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_that_has_a_place_by_the_figures_is_not_shut_down_for_what_was_promised_to_others() {
        let [crowded, homeless] = [Uuid::from_u128(1), Uuid::from_u128(2)];
        let left = Flush { shut_down: vec![crowded, homeless], ..Flush::default() };
        let by_figures = Flush { shut_down: vec![homeless], ..Flush::default() };
        let left = wait_for_room(left, &by_figures);
        assert_eq!((left.shut_down, left.waiting), (vec![homeless], vec![crowded]));
    }
}
