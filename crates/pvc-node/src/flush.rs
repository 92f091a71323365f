//! Empties this node of VMs and takes them back: what [`pvc_model::flush`] decides, made true.
//!
//! Every pass decides anew from the records, so a flush that is turned into a ready in its last moment,
//! or the other way round, is simply continued the other way.

use std::sync::Arc;
use std::time::Duration;

use pvc_model::Uuid;
use pvc_model::cluster::Cluster;
use pvc_model::flush::{TakeBack, flush, unflush};
use pvc_model::node::DomainState;
use pvc_model::vm::VmState;
use pvc_store::{ChangeError, Changes, Expect, NodeChange, VmChange};
use tokio_util::sync::CancellationToken;

use crate::shared::Shared;

/// How long the store may take for a change.
const DEADLINE: Duration = Duration::from_secs(10);

/// Works until `shutdown`.
pub(crate) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    let mut changes = shared.store.changed();
    let mut said = Said::default();
    loop {
        changes.mark_unchanged();
        if shared.is_connected() {
            pass(&shared, &mut said).await;
        }
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            Ok(()) = changes.changed() => {}
            () = shared.sleep(shared.settings.keepalive_interval) => {}
        }
    }
}

/// What was logged already about the present request.
#[derive(Default)]
struct Said {
    request: Option<DomainState>,
    stuck: bool,
}

async fn pass(shared: &Shared, said: &mut Said) {
    let view = shared.store.view();
    let Some(own) = view.nodes.get(shared.name()) else { return };
    let request = own.domain_state.clone();
    if said.request.as_ref() != Some(&request) {
        if matches!(request, DomainState::Flush | DomainState::Unflush) {
            tracing::info!(
                request = request.as_str(),
                "the node is asked to give its VMs away or take them back"
            );
        }
        *said = Said { request: Some(request.clone()), stuck: false };
    }
    match request {
        DomainState::Flush => empty(shared, &view, said).await,
        DomainState::Unflush => take_back(shared, &view).await,
        _ => {}
    }
}

async fn empty(shared: &Shared, view: &Cluster, said: &mut Said) {
    let left = flush(view, shared.name());
    for vm in &left.shut_down {
        shut_down(shared, *vm).await;
    }
    if !left.to_move.is_empty() && !std::mem::replace(&mut said.stuck, true) {
        tracing::warn!(
            vms = left.to_move.len(),
            "these VMs could be moved to another node, which this version cannot do yet; they stay. \
             Move them by hand, or shut them down, and the flush goes on"
        );
    }
    if left.is_done() {
        let name = shared.name().clone();
        let decide = |cluster: &Cluster| {
            let done = is_asked(cluster, shared, &DomainState::Flush) && flush(cluster, &name).is_done();
            finished(shared, done, DomainState::Flushed)
        };
        if told(shared, shared.store.change(decide)).await {
            tracing::info!("the node is flushed: it runs no VMs");
        }
    }
}

/// Shuts the VM down and marks it to be started when the node is ready again.
async fn shut_down(shared: &Shared, vm: Uuid) {
    let decide = |cluster: &Cluster| {
        let asked = is_asked(cluster, shared, &DomainState::Flush);
        if !asked || !flush(cluster, shared.name()).shut_down.contains(&vm) {
            return Err(Moot);
        }
        let mut changes = Changes::new();
        changes.expect(Expect::NodeDomain(shared.name().clone())).expect(Expect::VmNode(vm));
        changes.vm(vm, VmChange::State(VmState::Shutdown)).vm(vm, VmChange::Autostart(true));
        Ok((changes, ()))
    };
    if told(shared, shared.store.change(decide)).await {
        tracing::info!(
            vm = name_of(shared, vm),
            "no other node can take the VM: it is shut down until this one is ready"
        );
    }
}

async fn take_back(shared: &Shared, view: &Cluster) {
    for wanted in unflush(view, shared.name()) {
        take_one_back(shared, &wanted).await;
    }
    let decide = |cluster: &Cluster| {
        let left =
            unflush(cluster, shared.name()).into_iter().filter(|wanted| !matches!(wanted, TakeBack::Move(_)));
        let done = is_asked(cluster, shared, &DomainState::Unflush) && left.count() == 0;
        finished(shared, done, DomainState::Ready)
    };
    if told(shared, shared.store.change(decide)).await {
        tracing::info!("the node is ready: it takes VMs");
    }
}

async fn take_one_back(shared: &Shared, wanted: &TakeBack) {
    let vm = match wanted {
        TakeBack::Start(vm) | TakeBack::Unmark(vm) | TakeBack::Assign(vm) => *vm,
        TakeBack::Move(vm) => {
            let vm = name_of(shared, *vm);
            tracing::warn!(
                vm,
                "the VM came from this node and could be moved back, which this version cannot do yet"
            );
            return;
        }
    };
    let decide = |cluster: &Cluster| {
        let asked = is_asked(cluster, shared, &DomainState::Unflush);
        if !asked || !unflush(cluster, shared.name()).contains(wanted) {
            return Err(Moot);
        }
        let mut changes = Changes::new();
        changes.expect(Expect::NodeDomain(shared.name().clone()));
        changes.expect(Expect::VmNode(vm)).expect(Expect::VmState(vm));
        if let TakeBack::Start(_) = wanted {
            changes.vm(vm, VmChange::State(VmState::Start));
        }
        if let TakeBack::Start(_) | TakeBack::Unmark(_) = wanted {
            changes.vm(vm, VmChange::Autostart(false));
        }
        if let TakeBack::Start(_) | TakeBack::Assign(_) = wanted {
            changes.vm(vm, VmChange::Node(shared.name().clone())).vm(vm, VmChange::LastNode(None));
        }
        Ok((changes, ()))
    };
    if told(shared, shared.store.change(decide)).await && matches!(wanted, TakeBack::Start(_)) {
        tracing::info!(vm = name_of(shared, vm), "the VM is started again");
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the records changed meanwhile")]
struct Moot;

fn is_asked(cluster: &Cluster, shared: &Shared, request: &DomainState) -> bool {
    cluster.nodes.get(shared.name()).is_some_and(|own| own.domain_state == *request)
}

fn finished(shared: &Shared, done: bool, state: DomainState) -> Result<(Changes, ()), Moot> {
    if !done {
        return Err(Moot);
    }
    let mut changes = Changes::new();
    changes.node(shared.name(), NodeChange::Domain(state));
    Ok((changes, ()))
}

fn name_of(shared: &Shared, vm: Uuid) -> String {
    shared.store.view().vms.get(&vm).map_or_else(|| vm.to_string(), |record| record.name.clone())
}

/// Whether the change was made. A refusal is quiet: the next pass decides anew.
async fn told(shared: &Shared, change: impl Future<Output = Result<(), ChangeError<Moot>>>) -> bool {
    match shared.within(DEADLINE, change).await {
        Some(Ok(())) => true,
        Some(Err(ChangeError::Refused(Moot))) => false,
        Some(Err(error)) => {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the node's VMs could not be given away or taken back; it is tried again"
            );
            false
        }
        None => {
            tracing::warn!("the node's VMs could not be given away or taken back in time; it is tried again");
            false
        }
    }
}
