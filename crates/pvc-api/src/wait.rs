//! Waiting for a state: the client's request sleeps until the view shows what it waits for.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use pvc_model::cluster::Cluster;
use pvc_model::fault;
use pvc_model::node::{DaemonState, DomainState, NodeRecord};
use pvc_model::request::StateRequest;
use pvc_model::vm::plan::runs_elsewhere;
use pvc_model::vm::{VmRecord, VmState};
use pvc_model::{NodeName, Uuid};
use pvc_ops::node::DomainRequest;
use pvc_ops::vm::Moved;
use pvc_store::local_time;

use crate::error::{ApiError, Result};
use crate::state::ApiState;
use crate::view::node::waits_for;

/// Result of a look at the view about a wait.
enum Look<T> {
    Done(T),
    NotYet,
}

/// Reason why something has not come yet, for people, and what to do about it.
struct Trouble {
    why: String,
    hint: String,
}

/// Returns when `look` says so; it is asked now and after every change that this process sees.
/// `trouble` is asked when it takes too long.
///
/// # Errors
/// 503 when the daemon stops or too many wait already, 504 when it takes too long; otherwise what
/// `look` says. Dropping the future ends the wait.
async fn until<T>(
    api: &ApiState,
    what: &str,
    trouble: impl Fn(&Cluster) -> Trouble,
    mut look: impl FnMut(&Cluster) -> Result<Look<T>>,
) -> Result<T> {
    let _place = Arc::clone(api.waits()).try_acquire_owned().map_err(|_| crowded())?;
    let limit = api.settings().limits.wait_time;
    let mut changed = api.store().changed();
    let deadline = api.clock().sleep(limit);
    tokio::pin!(deadline);
    loop {
        changed.borrow_and_update();
        if let Look::Done(outcome) = look(&api.view())? {
            return Ok(outcome);
        }
        tokio::select! {
            biased;
            () = api.stopping().cancelled() => return Err(stopping(what)),
            () = &mut deadline => return Err(too_long(what, limit, trouble(&api.view()))),
            changed = changed.changed() => changed.map_err(|_| stopping(what))?,
        }
    }
}

fn crowded() -> ApiError {
    let message = "too many requests are waiting for a state already; the change itself was made";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).retry_after(5)
}

fn stopping(what: &str) -> ApiError {
    let message = format!(
        "the API is being stopped; the change was made, but nobody waits for {what} any more"
    );
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
}

fn too_long(what: &str, limit: Duration, trouble: Trouble) -> ApiError {
    let (limit, why) = (limit.as_secs(), trouble.why);
    let message = format!("{what} did not come within {limit} s{why}; the change itself was made");
    ApiError::new(StatusCode::GATEWAY_TIMEOUT, message).hint(Some(trouble.hint))
}

/// Reason that keeps a VM waiting that `node` has work with.
fn vm_trouble(api: &ApiState, cluster: &Cluster, vm: Uuid, node: Option<&NodeName>) -> Trouble {
    let silent = node.and_then(|node| cluster.nodes.get(node));
    if let Some(node) = silent.filter(|node| node.daemon_state != DaemonState::Run) {
        return Trouble {
            why: format!(
                ", because the daemon of node `{}` is in state `{}`",
                node.name, node.daemon_state
            ),
            hint: "start that node's daemon; what was asked for is done once it runs".to_owned(),
        };
    }
    let other = node.and_then(|node| runs_elsewhere(cluster, vm, node));
    if let Some(other) = other {
        let why = format!(", because node `{other}` says that it runs the VM or works on it");
        let hint = format!(
            "see whether `virsh list` on `{other}` has it, and whether libvirtd and PVC's daemon \
             run there"
        );
        return Trouble { why, hint };
    }
    let unreachable =
        node.filter(|node| has_unreachable_hypervisor(cluster, node, api.clock().wall()));
    let (why, hint) = match unreachable {
        None => (
            String::new(),
            "look at the VM with `pvc vm info` and at its node's log with `pvc node log`",
        ),
        Some(node) => (
            format!(", because the hypervisor of node `{node}` does not answer"),
            "start libvirtd there (`systemctl status libvirtd`); what was asked for is done once \
             it answers",
        ),
    };
    Trouble { why, hint: hint.to_owned() }
}

/// Reason that keeps a node from being flushed or ready.
fn node_trouble(cluster: &Cluster, node: &str) -> Trouble {
    let hint = format!("`pvc node info {node}` shows what it waits for");
    let Some(record) = cluster.node(node) else { return Trouble { why: String::new(), hint } };
    if record.daemon_state != DaemonState::Run {
        let why = format!(", because its daemon is in state `{}`", record.daemon_state);
        return Trouble { why, hint };
    }
    let waits = waits_for(record, cluster);
    let said: Vec<String> =
        waits.iter().take(3).map(|wait| format!("VM `{}`: {}", wait.name, wait.reason)).collect();
    let more = match waits.len().saturating_sub(said.len()) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    let why = if said.is_empty() { String::new() } else { format!(" ({}{more})", said.join("; ")) };
    Trouble { why, hint }
}

/// Whether the node has said lately that its hypervisor does not answer. Faults stay when their
/// cause has gone, so their age counts.
fn has_unreachable_hypervisor(cluster: &Cluster, node: &NodeName, now: Duration) -> bool {
    let oldest = local_time(now.saturating_sub(2 * fault::HYPERVISOR_REFRESH));
    let id = fault::fault_id(fault::HYPERVISOR_UNREACHABLE, node.as_str());
    cluster.faults.get(&*id).is_some_and(|fault| fault.last_reported >= oldest)
}

/// Returns when the VM has come to what was asked of it, as its node and the hypervisor see it.
pub async fn for_state(api: &ApiState, vm: Uuid, name: &str, request: StateRequest) -> Result<()> {
    let what = format!("the end of `{}` of VM `{name}`", request.as_str());
    let trouble = |cluster: &Cluster| {
        vm_trouble(api, cluster, vm, cluster.vms.get(&vm).and_then(|record| record.node.as_ref()))
    };
    until(api, &what, trouble, |cluster| look_at_state(cluster, vm, name, request)).await
}

fn look_at_state(
    cluster: &Cluster,
    vm: Uuid,
    name: &str,
    request: StateRequest,
) -> Result<Look<()>> {
    use VmState::{Disable, Fail, Migrate, MigrateLive, Restart, Shutdown, Start, Stop, Unmigrate};
    let record = cluster.vms.get(&vm).ok_or_else(|| removed(name))?;
    let alive = || cluster.nodes.values().filter(|node| node.daemon_state == DaemonState::Run);
    let runs = alive().any(|node| node.running.contains(&vm));
    // What another node's list says of a VM that is to run may be old: only its own node's word
    // counts.
    let runs_at_home =
        alive().any(|node| record.is_assigned_to(&node.name) && node.running.contains(&vm));
    // A guest is listed while QEMU still brings it up, and may yet be given up.
    let is_settled = !alive().any(|node| node.working_on.contains(&vm));
    let once = |there: bool| Ok(if there && is_settled { Look::Done(()) } else { Look::NotYet });
    let starts = matches!(request, StateRequest::Start | StateRequest::Restart);
    if let (Start, StateRequest::Restart, Some(why)) =
        (&record.state, request, record.not_restarted())
    {
        return Err(not_restarted(name, why));
    }
    match &record.state {
        Fail => Err(failed(name, &record.failed_reason)),
        Start if starts => once(runs_at_home),
        Restart | Migrate | MigrateLive | Unmigrate if starts => Ok(Look::NotYet),
        Shutdown if request == StateRequest::Shutdown => Ok(Look::NotYet),
        Stop | Disable if !starts => match pvc_ops::vm::silent_runner(cluster, vm) {
            // It has just fallen silent, or begins anew.
            Some(node) if node.daemon_state != DaemonState::Dead => Ok(Look::NotYet),
            Some(node) => Err(may_run(name, node)),
            None => once(!runs),
        },
        other => Err(ApiError::refused(format!(
            "VM `{name}` is in state `{other}` now: somebody else asked for that meanwhile"
        ))),
    }
}

/// Returns when the VM has left its way to another node.
pub async fn for_move(api: &ApiState, moved: &Moved) -> Result<()> {
    let name = &moved.name;
    let look = |cluster: &Cluster| {
        let record = cluster.vms.get(&moved.uuid).ok_or_else(|| removed(name))?;
        match &record.state {
            VmState::Migrate | VmState::MigrateLive | VmState::Unmigrate => Ok(Look::NotYet),
            VmState::Fail => Err(failed(name, &record.failed_reason)),
            _ if !record.is_assigned_to(&moved.to) => Err(not_moved(record, moved)),
            // Shut down for the journey: its new node starts it, which a legacy peer is told by
            // `stop`.
            VmState::Stop if is_ended_for(record, moved) => Ok(Look::NotYet),
            VmState::Start if moved.state.is_some() && !runs_on(cluster, moved) => Ok(Look::NotYet),
            _ => Ok(Look::Done(())),
        }
    };
    let what = format!("the arrival of VM `{name}` on node `{}`", moved.to);
    until(api, &what, |cluster| vm_trouble(api, cluster, moved.uuid, Some(&moved.to)), look).await
}

fn runs_on(cluster: &Cluster, moved: &Moved) -> bool {
    // A guest is listed while QEMU still brings it up, and may yet be given up.
    let runs = |node: &NodeRecord| {
        node.running.contains(&moved.uuid) && !node.working_on.contains(&moved.uuid)
    };
    cluster.nodes.get(&moved.to).is_some_and(|node| runs(node))
}

/// Whether the VM's sender has shut it down, to be started by the other node.
fn is_ended_for(record: &VmRecord, moved: &Moved) -> bool {
    use pvc_model::vm::moving::MovePhase::{Done, ShuttingDown};
    let note = record.moving.as_ref().filter(|note| note.to == moved.to);
    moved.state.is_some() && note.is_some_and(|note| matches!(note.phase, Done | ShuttingDown))
}

/// Error that the VM is not where it was to go, with what its node says about it.
fn not_moved(record: &VmRecord, moved: &Moved) -> ApiError {
    let note = record.moving.as_ref().filter(|note| note.to == moved.to && !note.why.is_empty());
    let why = note.map_or_else(String::new, |note| format!(": {}", note.why));
    ApiError::refused(format!("VM `{}` was not moved to node `{}`{why}", moved.name, moved.to))
}

/// Returns when the node has done what was asked of it.
pub async fn for_node(api: &ApiState, node: &str, request: DomainRequest) -> Result<()> {
    let (passing, reached) = match request {
        DomainRequest::Flush => (DomainState::Flush, DomainState::Flushed),
        DomainRequest::Ready => (DomainState::Unflush, DomainState::Ready),
    };
    let look = |cluster: &Cluster| {
        let record = cluster
            .node(node)
            .ok_or_else(|| ApiError::not_found(format!("there is no node `{node}`")))?;
        match &record.domain_state {
            state if *state == reached => Ok(Look::Done(())),
            state if *state == passing => Ok(Look::NotYet),
            other => Err(ApiError::refused(format!(
                "node `{node}` is in state `{other}` now: somebody else asked for that meanwhile"
            ))),
        }
    };
    let what = match request {
        DomainRequest::Flush => format!("the end of the flush of node `{node}`"),
        DomainRequest::Ready => format!("the return of node `{node}`"),
    };
    until(api, &what, |cluster| node_trouble(cluster, node), look).await
}

/// Error that nobody can say when the VM stops: its node is silent, and its guest may be well.
fn may_run(name: &str, node: &NodeRecord) -> ApiError {
    let (node, state) = (&node.name, &node.daemon_state);
    let message = format!(
        "VM `{name}` may still run on node `{node}`, whose daemon is in state `{state}`; it stays \
         off from when that answers or is fenced"
    );
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).hint(Some(
        "the change itself was made; `pvc node info` of the node shows what is known of it",
    ))
}

/// Error that the guest is the one that was to be restarted: its node would not have been able to
/// start it again.
fn not_restarted(name: &str, why: &str) -> ApiError {
    ApiError::refused(format!(
        "VM `{name}` was not restarted and runs on, because it could not be started again: {why}"
    ))
    .hint(Some("mend that, and restart it again"))
}

fn removed(name: &str) -> ApiError {
    ApiError::not_found(format!("VM `{name}` was removed meanwhile"))
}

fn failed(name: &str, reason: &str) -> ApiError {
    let reason = if reason.is_empty() { "its node does not say why" } else { reason };
    ApiError::refused(format!("VM `{name}` failed: {reason}"))
        .hint(Some("`pvc node log` of its node says more"))
}
