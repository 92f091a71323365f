//! The real programs on the hosts: node daemons, the API, workers.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pvc_api::{ApiSettings, ApiState};
use pvc_daemon::{ApiPorts, BenchmarkSettings};
use pvc_model::NodeName;
use pvc_model::fence::Rules;
use pvc_model::guest_network::plan::{Tunnels, Underlay};
use pvc_model::node::NodeRole;
use pvc_model::vm::Selector;
use pvc_node::{
    DhcpSettings, GuestNetworkSettings, LogSwitches, MigrationSettings, NodeSettings, Ports,
    Subsystems,
};
use pvc_ports::{Clock, DatabaseCluster, Random, Tree};
use pvc_store::{Ipmi, Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::database_cluster::HostDatabaseCluster;
use crate::files::HostFiles;
use crate::firewall::HostFirewall;
use crate::guest_networks::DIRECTORY;
use crate::guests::SimHypervisor;
use crate::host::{ApiDaemon, Daemon, Machine};
use crate::legacy::{legacy_settings, run_legacy_daemon, start_legacy_api, take_what_is_installed};
use crate::network::{BRIDGE_DEVICE, HostNetwork, floating};
use crate::operators::{Desk, in_time};
use crate::power::{HostPower, bmc_name};
use crate::process::{Gate, HostClock, Pid, random};
use crate::programs::HostPrograms;
use crate::scripts;
use crate::sriov::{self, HostCard};
use crate::state::State;
use crate::storage::{Volumes, storage_address};
use crate::zookeeper::{Connection, SESSION_TIMEOUT};

/// Size of the volume by which the storage is measured; the time is that of the sample
/// configuration.
const BENCHMARK_BYTES: u64 = 64 << 20;
const BENCHMARK_TIME: Duration = Duration::from_secs(75);

const INTERVAL: Duration = Duration::from_secs(5);

/// Rules of the sample configuration.
pub(crate) fn usual_rules() -> Rules {
    Rules { keepalive_interval: INTERVAL, fence_intervals: 6, recover_after_success: true }
}

/// Time until systemd starts a daemon again that ended.
pub(crate) const RESTART: Duration = Duration::from_secs(5);

pub(crate) fn gate(state: &State, pid: Pid) -> Gate {
    Gate { world: state.world(), pid }
}

/// Starts the daemon as systemd does when the host has booted.
pub(crate) fn start_daemon(state: &mut State, host: usize) {
    let known = &state.hosts[host];
    if !known.is_up() || known.daemon.is_some() || known.daemon_stopped {
        return;
    }
    take_what_is_installed(state, host);
    let is_legacy = state.hosts[host].is_legacy;
    let program = if is_legacy { "pvcnoded 1.0.3" } else { "pvcnoded" };
    let pid = state.processes.start(format!("{program}@{}", state.hosts[host].name), Some(host));
    let name = &state.hosts[host].name;
    state.run.note(format!("{name}: the daemon starts (process {pid})"));
    let shutdown = CancellationToken::new();
    let (gate, ports, asked) = (gate(state, pid), ports(state, host, pid), shutdown.clone());
    let task = match is_legacy {
        true => tokio::spawn(run_legacy_daemon(gate, legacy_settings(state, host), ports, asked)),
        false => tokio::spawn(run_daemon(gate, host, settings(state, host, pid), ports, asked)),
    };
    state.processes[pid].task = Some(task.abort_handle());
    state.hosts[host].daemon = Some(Daemon { pid, shutdown });
    let world = state.world();
    tokio::spawn(async move {
        let ended = task.await;
        world.with(|state| daemon_ended(state, host, pid, ended));
    });
}

fn daemon_ended(
    state: &mut State,
    host: usize,
    pid: Pid,
    ended: Result<String, tokio::task::JoinError>,
) {
    let why = match ended {
        Ok(why) => why,
        Err(error) if error.is_panic() => {
            let what = format!("the daemon of {} panicked", state.hosts[host].name);
            return state.truth.violate(&state.run, "panic", what);
        }
        Err(_) => "killed".to_owned(),
    };
    let name = &state.hosts[host].name;
    state.run.note(format!("{name}: the daemon (process {pid}) has ended: {why}"));
    state.end_process(pid);
    if state.hosts[host].daemon.as_ref().is_some_and(|daemon| daemon.pid == pid) {
        state.hosts[host].daemon = None;
        later_in_this_life(state, host, move |state| start_daemon(state, host));
    }
}

pub(crate) fn kill_daemon(state: &mut State, host: usize) {
    let pid = state.hosts[host].daemon.as_ref().map(|daemon| daemon.pid);
    kill(state, pid);
}

pub(crate) fn kill(state: &mut State, pid: Option<Pid>) {
    if let Some(pid) = pid {
        state.end_process(pid);
    }
}

pub(crate) fn start_api(state: &mut State, host: usize) {
    let known = &state.hosts[host];
    let is_wanted = known.is_coordinator && !known.api_stopped && has_more_than_nodes(state);
    if !known.is_up() || !is_wanted || known.api.is_some() {
        return;
    }
    if known.is_legacy {
        return start_legacy_api(state, host);
    }
    let pid = state.processes.start(format!("pvcapid@{}", known.name), Some(host));
    let shutdown = CancellationToken::new();
    let daemon = Daemon { pid, shutdown: shutdown.clone() };
    state.hosts[host].api = Some(ApiDaemon { daemon, desk: None });
    let ports = ports(state, host, pid);
    let home = (host, NodeName::new(&state.hosts[host].name));
    let task =
        tokio::spawn(run_api(gate(state, pid), home, state.run.nature.seed, ports, shutdown));
    look_after(state, host, pid, task, move |state| {
        if state.hosts[host].api.as_ref().is_some_and(|own| own.daemon.pid == pid) {
            state.hosts[host].api = None;
        }
        later_in_this_life(state, host, move |state| start_api(state, host));
    });
}

/// Whether there is somebody to ask the API and the workers for anything: in elections nobody
/// does, and there are many of those worlds.
fn has_more_than_nodes(state: &State) -> bool {
    state.run.nature.elections.is_none()
}

/// Sets where operators' requests are received on the host from now on; `None`: nowhere any more.
fn set_desk(state: &mut State, host: usize, desk: Option<Desk>) {
    if let Some(api) = &mut state.hosts[host].api {
        api.desk = desk;
    }
}

pub(crate) fn start_worker(state: &mut State, host: usize) {
    let known = &state.hosts[host];
    let is_wanted = !known.is_legacy && !known.worker_stopped && has_more_than_nodes(state);
    if !known.is_up() || !is_wanted || known.worker.is_some() {
        return;
    }
    let pid = state.processes.start(format!("pvcworkerd@{}", known.name), Some(host));
    let shutdown = CancellationToken::new();
    state.hosts[host].worker = Some(Daemon { pid, shutdown: shutdown.clone() });
    let name = NodeName::new(&state.hosts[host].name);
    let (gate, ports) = (gate(state, pid), ports(state, host, pid));
    let task = tokio::spawn(run_worker(gate, (host, name), ports, shutdown));
    look_after(state, host, pid, task, move |state| {
        if state.hosts[host].worker.as_ref().is_some_and(|own| own.pid == pid) {
            state.hosts[host].worker = None;
        }
        later_in_this_life(state, host, move |state| start_worker(state, host));
    });
}

/// Has `ended` happen when the process ends, if its host still lives as it did.
fn look_after(
    state: &mut State,
    host: usize,
    pid: Pid,
    task: tokio::task::JoinHandle<()>,
    ended: impl FnOnce(&mut State) + Send + 'static,
) {
    state.processes[pid].task = Some(task.abort_handle());
    let (world, life) = (state.world(), state.hosts[host].life);
    tokio::spawn(async move {
        let _ = task.await; // a panic is a violation of its own
        world.with(|state| {
            state.end_process(pid);
            if state.hosts[host].life == life {
                state.run.note(format!("{} has ended (process {pid})", state.processes[pid].name));
                ended(state);
            }
        });
    });
}

/// Runs `story_action` when systemd starts again what has ended, unless the host has gone down
/// meanwhile.
fn later_in_this_life(
    state: &mut State,
    host: usize,
    story_action: impl FnOnce(&mut State) + Send + 'static,
) {
    let life = state.hosts[host].life;
    state.run.later(RESTART, move |state| {
        if state.hosts[host].life == life {
            story_action(state);
        }
    });
}

fn settings(state: &State, host: usize, pid: Pid) -> NodeSettings {
    let known = &state.hosts[host];
    NodeSettings {
        name: NodeName::new(&known.name),
        process: format!("process {pid} of {}", known.name),
        role: if known.is_coordinator { NodeRole::Coordinator } else { NodeRole::Hypervisor },
        cluster_name: "sim".to_owned(),
        version: "0.2.0".to_owned(),
        subsystems: Subsystems {
            hypervisor: known.build.runs_guests,
            networking: state.run.nature.networks > 0 || state.run.nature.functions > 0,
            storage: state.run.nature.monitors,
            worker: false,
            api: false,
        },
        keepalive_interval: state.run.rules.keepalive_interval,
        vm_shutdown_timeout: Duration::from_secs(60),
        session_timeout: SESSION_TIMEOUT,
        directories: Vec::new(),
        console_log_directory: PathBuf::from("/nonexistent"),
        console_log_lines: 0,
        node_log_lines: 0,
        core_networks: None,
        host_filter: None,
        storage_address: Some(storage_address(host)),
        migration: MigrationSettings::default(),
        selector: Some(Selector::Mem),
        upstream_ip: None,
        floating: floating(),
        guest_networks: guest_networks(state, host),
        sriov_cards: sriov::cards(&state.run.nature),
        certificates: Vec::new(),
        ipmi: known.build.has_bmc.then(|| ipmi(&known.name)),
        fencing: state.run.rules.clone(),
        fence_only_with_own_bmc: false,
        reset_after: state.run.nature.reset_after.map(Duration::from_secs),
        start_services: false,
        standalone: false,
        log: LogSwitches::default(),
    }
}

/// The networks of VMs as the node's configuration has them, in a world that has some.
fn guest_networks(state: &State, host: usize) -> Option<GuestNetworkSettings> {
    if state.run.nature.networks == 0 {
        return None;
    }
    let local = Some(IpAddr::from([10, 0, 0, u8::try_from(host + 1).expect("few hosts")]));
    let nodes = ["10.0.0.0/24", "10.0.1.0/24"];
    Some(GuestNetworkSettings {
        underlay: Underlay {
            tunnels: Some(Tunnels { local, mtu: 1500 }),
            bridge_device: Some(BRIDGE_DEVICE.to_owned()),
            bridge_mtu: None,
        },
        nodes: nodes.map(|net| net.parse().expect("a network")).into(),
        tunnels: None,
        dhcp: DhcpSettings {
            directory: PathBuf::from(DIRECTORY),
            executable: "/usr/bin/pvcd".to_owned(),
            socket: format!("{DIRECTORY}/leases.socket"),
        },
        dns: None,
        evpn: None,
    })
}

pub(crate) fn ports(state: &State, host: usize, pid: Pid) -> Ports {
    let gate = gate(state, pid);
    let machine = Arc::new(Machine::new(gate.clone(), host));
    Ports {
        hypervisor: Arc::new(SimHypervisor { gate: gate.clone(), host }),
        storage: Arc::new(Volumes { gate: gate.clone(), host }),
        network: Arc::new(HostNetwork {
            gate: gate.clone(),
            host,
            inner: state.hosts[host].network.clone(),
        }),
        sriov: Arc::new(HostCard { gate: gate.clone(), inner: state.hosts[host].card.clone() }),
        services: machine.clone(),
        host: machine.clone(),
        power: Arc::new(HostPower { gate: gate.clone(), host }),
        database_cluster: database_cluster(state, host, &gate),
        dns: None,
        exec: machine,
        files: Arc::new(HostFiles { gate: gate.clone(), host }),
        firewall: Arc::new(HostFirewall {
            gate: gate.clone(),
            host,
            inner: state.hosts[host].firewall.clone(),
        }),
        programs: Arc::new(HostPrograms {
            gate: gate.clone(),
            host,
            inner: state.hosts[host].programs.clone(),
        }),
        clock: Arc::new(HostClock { gate, host: Some(host) }),
        random: random(state.run.nature.seed, pid),
    }
}

/// The manager of the database on a coordinator, in a world that has a database.
fn database_cluster(state: &State, host: usize, gate: &Gate) -> Option<Arc<dyn DatabaseCluster>> {
    let members = state.database_cluster.as_ref().filter(|_| state.hosts[host].is_coordinator)?;
    Some(Arc::new(HostDatabaseCluster { gate: gate.clone(), members: members.cluster.clone() }))
}

/// Address and login of a host's BMC.
pub(crate) fn ipmi(host: &str) -> Ipmi {
    Ipmi { hostname: bmc_name(host), username: "admin".to_owned(), password: "secret".to_owned() }
}

/// The node role as its binary runs it. Says how it ended.
async fn run_daemon(
    gate: Gate,
    host: usize,
    settings: NodeSettings,
    ports: Ports,
    shutdown: CancellationToken,
) -> String {
    let tree = match Connection::open(gate.clone()).await {
        Ok(tree) => Arc::new(tree),
        Err(error) => return error.to_string(),
    };
    let clock: Arc<dyn Clock> = Arc::new(HostClock { gate: gate.clone(), host: Some(host) });
    let store = match Store::open(tree.clone(), clock, ports.random.clone()).await {
        Ok(store) => store,
        Err(error) => return error.to_string(),
    };
    let ended = pvc_daemon::node(&store, settings, ports, |node| node, shutdown).await;
    tree.close().await;
    match ended {
        Some(Ok(outcome)) => format!("{outcome:?}"),
        Some(Err(error)) => error.to_string(),
        None => "its view of the store froze".to_owned(),
    }
}

/// Time for which removed volumes are kept, as stories can wait for.
const REMOVED_VOLUMES_STAY: Duration = Duration::from_secs(3600);

/// The API's daemon as its binary runs it, but for the sockets: whoever reaches the host asks its
/// handlers.
async fn run_api(
    gate: Gate,
    (host, node): (usize, NodeName),
    seed: u64,
    Ports { storage, firewall, .. }: Ports,
    shutdown: CancellationToken,
) {
    let clock: Arc<dyn Clock> = Arc::new(HostClock { gate: gate.clone(), host: Some(host) });
    let random = random(seed, gate.pid);
    let Some((tree, store)) = open_store(&gate, &clock, &random).await else { return };
    let settings = ApiSettings {
        tokens: None,
        metrics: false,
        removed_volumes_stay: REMOVED_VOLUMES_STAY,
        ..ApiSettings::new(node, SocketAddr::from(([0, 0, 0, 0], 7370)), Vec::new())
    };
    let drain_time = settings.limits.drain_time;
    let (exporters, provisioner) = (None, Some(scripts::provisioner(&gate, host)));
    let ports = ApiPorts { clock, random, storage, firewall, exporters, provisioner };
    let (gate, ports) = (&gate, ports);
    let serve = |api: ApiState, stop: CancellationToken| async move {
        let desk = Desk { router: pvc_api::router(api.clone()), in_flight: Arc::default() };
        gate.call(|state| set_desk(state, host, Some(desk.clone()))).await;
        stop.cancelled().await;
        // As `pvc_api::serve` ends: nothing new is taken, what is in flight is finished.
        gate.call(|state| set_desk(state, host, None)).await;
        api.stopping().cancel();
        let answered = async {
            while desk.in_flight.load(Ordering::Relaxed) > 0 {
                gate.sleep(Duration::from_millis(50)).await;
            }
            api.changes_done().await;
        };
        in_time(drain_time, answered).await;
        Ok::<_, StoreError>(())
    };
    if pvc_daemon::api(&store, settings, ports, serve, &shutdown).await.is_some() {
        tree.close().await;
    }
}

/// The worker as its binary runs it.
async fn run_worker(
    gate: Gate,
    (host, name): (usize, NodeName),
    ports: Ports,
    shutdown: CancellationToken,
) {
    let Ok(tree) = Connection::open(gate.clone()).await else { return };
    let tree = Arc::new(tree);
    let (clock, random) = (ports.clock.clone(), ports.random.clone());
    let Ok(store) = Store::open_jobs(tree.clone(), clock, random).await else { return };
    let settings = BenchmarkSettings {
        storage_interface: None,
        volume_bytes: BENCHMARK_BYTES,
        test_time: BENCHMARK_TIME,
    };
    let tools = scripts::tools(&gate, host, ports.storage.clone(), ports.files.clone());
    let _ = pvc_daemon::worker(&store, name, ports, settings, Some(tools), || (), &shutdown).await;
    tree.close().await;
}

/// A session with the cluster's store, if it can be had at once.
async fn open_store(
    gate: &Gate,
    clock: &Arc<dyn Clock>,
    random: &Arc<dyn Random>,
) -> Option<(Arc<Connection>, Store)> {
    let tree = Arc::new(Connection::open(gate.clone()).await.ok()?);
    let store = Store::open(tree.clone(), clock.clone(), random.clone()).await.ok()?;
    Some((tree, store))
}

/// The store of an onlooker, who sees everything at once and is never cut off.
pub(crate) async fn eyes(world: &crate::state::World, seed: u64) -> Store {
    let pid = world.with(|state| state.processes.start("the eyes".to_owned(), None));
    let gate = Gate { world: world.clone(), pid };
    let tree = Connection::open(gate.clone()).await.expect("an onlooker always gets a connection");
    let clock = Arc::new(HostClock { gate, host: None });
    Store::open(Arc::new(tree), clock, random(seed, pid))
        .await
        .expect("an onlooker can read everything")
}
