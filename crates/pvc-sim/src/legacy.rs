//! Hosts that run PVC 1.0.3: the daemon and the API that `pvc_testkit::legacy` plays, on the ports
//! of their host.

use std::sync::Arc;

use pvc_node::Ports;
use pvc_ports::Tree;
use pvc_testkit::legacy::{self, LegacyApi, LegacyAsk, LegacyPeer, LegacyPorts, LegacySettings};
use tokio_util::sync::CancellationToken;

use crate::actions::Ask;
use crate::cluster::{Shape, vm_uuid};
use crate::daemons::{self, RESTART, gate, ipmi, start_api, start_worker};
use crate::network::floating;
use crate::process::Gate;
use crate::state::State;
use crate::storage::storage_address;
use crate::zookeeper::Connection;

pub(crate) fn legacy_settings(state: &State, host: usize) -> LegacySettings {
    let known = &state.hosts[host];
    let floating =
        floating().into_iter().map(|floating| (floating.duty, floating.link, floating.address));
    LegacySettings {
        name: known.name.clone(),
        is_coordinator: known.is_coordinator,
        cluster_name: "sim".to_owned(),
        cluster_domain: String::new(),
        storage_address: storage_address(host),
        floating: floating.collect(),
        bmc: ipmi(&known.name).bmc(),
        keepalive_interval: state.run.rules.keepalive_interval,
        fence_intervals: state.run.rules.fence_intervals,
        vm_shutdown_timeout: std::time::Duration::from_secs(60),
        recovers_after_success: state.run.rules.recover_after_success,
        recovers_after_failure: false,
        selector: "mem".to_owned(),
        round_trip: std::time::Duration::ZERO,
        // As Debian 11 and 12 have it.
        kazoo_28: true,
    }
}

/// The next start of the daemon is one of PVC 1.0.3, or one of ours: somebody has changed the
/// package.
pub(crate) fn install(state: &mut State, host: usize, legacy: bool) {
    state.hosts[host].installs_legacy = legacy;
    state.hosts[host].ask_daemon_to_stop();
}

/// Runs from now on what was installed, the API as well.
pub(crate) fn take_what_is_installed(state: &mut State, host: usize) {
    if state.hosts[host].is_legacy == state.hosts[host].installs_legacy {
        return;
    }
    state.hosts[host].is_legacy = state.hosts[host].installs_legacy;
    let ours = state.hosts[host].api.take().map(|api| api.daemon.pid);
    let theirs = state.hosts[host].legacy_api.take().map(|(pid, _)| pid);
    let worker = state.hosts[host].worker.take().map(|worker| worker.pid);
    for pid in ours.into_iter().chain(theirs).chain(worker) {
        state.end_process(pid);
    }
    start_api(state, host);
    start_worker(state, host);
}

pub(crate) fn start_legacy_api(state: &mut State, host: usize) {
    if state.hosts[host].legacy_api.is_some() {
        return;
    }
    let pid =
        state.processes.start(format!("pvcapid 1.0.3@{}", state.hosts[host].name), Some(host));
    state.hosts[host].legacy_api = Some((pid, None));
    let task =
        tokio::spawn(run_legacy_api(gate(state, pid), host, daemons::ports(state, host, pid)));
    state.processes[pid].task = Some(task.abort_handle());
}

/// Opens the legacy API, which serves where the floating addresses are, and nowhere else
/// (`spec/coordination.md` §3).
pub(crate) fn open_legacy_api(state: &State, host: usize) -> Option<Arc<LegacyApi>> {
    let known = &state.hosts[host];
    let serves = !known.addresses.is_empty();
    known.legacy_api.as_ref().filter(|_| serves)?.1.clone()
}

fn ports(tree: Arc<Connection>, ports: Ports) -> LegacyPorts {
    LegacyPorts {
        tree,
        hypervisor: ports.hypervisor,
        storage: ports.storage,
        network: ports.network,
        power: ports.power,
        host: ports.host,
        clock: ports.clock,
        random: ports.random,
    }
}

/// The daemon, from the start of its unit to its end. Says how it ended.
pub(crate) async fn run_legacy_daemon(
    gate: Gate,
    settings: LegacySettings,
    outside: Ports,
    shutdown: CancellationToken,
) -> String {
    gate.sleep(legacy::BEFORE_THE_STORE).await;
    let tree = match Connection::open(gate.clone()).await {
        Ok(tree) => Arc::new(tree),
        Err(error) => return error.to_string(),
    };
    let daemon = LegacyPeer::new(settings, ports(tree.clone(), outside));
    let asked = shutdown.clone();
    let too_late = async {
        shutdown.cancelled().await;
        gate.sleep(legacy::STOP_TIMEOUT).await;
    };
    let ended = tokio::select! {
        biased;
        ended = daemon.run(asked.cancelled_owned()) => ended,
        () = too_late => return "killed by systemd, which waited for 90 s".to_owned(),
    };
    tree.close().await;
    ended
}

/// Keeps an API open for operators.
async fn run_legacy_api(gate: Gate, host: usize, outside: Ports) {
    loop {
        if let Ok(tree) = Connection::open(gate.clone()).await {
            let api = Arc::new(LegacyApi::new(&ports(Arc::new(tree), outside)));
            return gate
                .call(|state| state.hosts[host].legacy_api = Some((gate.pid, Some(api))))
                .await;
        }
        gate.sleep(RESTART).await;
    }
}

/// The same in the words of PVC 1.0.3; `None` if nobody asks a legacy node for it here.
pub(crate) fn in_older_words(shape: &Shape, ask: &Ask) -> Option<LegacyAsk> {
    let state = |vm: &usize, state| LegacyAsk::State(vm_uuid(*vm), state);
    let node = |host: &usize| shape.host_name(*host);
    let moved = |vm: &usize, to: &Option<usize>, returns, live_only| LegacyAsk::Move {
        vm: vm_uuid(*vm),
        to: to.as_ref().map(node),
        returns,
        live_only,
    };
    Some(match ask {
        Ask::Start(vm) => state(vm, "start"),
        Ask::Stop(vm) => state(vm, "stop"),
        Ask::Shutdown(vm) => state(vm, "shutdown"),
        Ask::Restart(vm) => state(vm, "restart"),
        Ask::Disable(vm) => LegacyAsk::Disable(vm_uuid(*vm)),
        Ask::Undefine(vm) => LegacyAsk::Undefine(vm_uuid(*vm)),
        Ask::Move { vm, to, live_only } => moved(vm, to, false, *live_only),
        Ask::Migrate { vm, to } => moved(vm, to, true, false),
        Ask::Unmigrate(vm) => LegacyAsk::Unmigrate(vm_uuid(*vm)),
        Ask::Flush(host) | Ask::FlushAndWait(host) => LegacyAsk::Flush(node(host)),
        Ask::Ready(host) | Ask::ReadyAndWait(host) => LegacyAsk::Ready(node(host)),
        Ask::Primary(host) => LegacyAsk::Primary(node(host)),
        Ask::Secondary(host) => LegacyAsk::Secondary(node(host)),
        Ask::Maintenance(on) => LegacyAsk::Maintenance(*on),
        Ask::Define(_)
        | Ask::Rename { .. }
        | Ask::Modify { .. }
        | Ask::FlushLocks(_)
        | Ask::RemoveVolume(_)
        | Ask::RestoreVolume(_)
        | Ask::Upload { .. }
        | Ask::Storage(_)
        | Ask::Network(_)
        | Ask::NewVm(_)
        | Ask::Benchmark
        | Ask::CancelTask
        | Ask::ConfirmOff(_)
        | Ask::RemoveNode(_)
        | Ask::Attach(_)
        | Ask::Detach(_)
        | Ask::AttachDisk(_)
        | Ask::DetachDisk(_)
        | Ask::Method { .. }
        | Ask::Limit { .. } => return None,
    })
}
