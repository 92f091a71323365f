//! Simulated world of one node, on a clock that waits for nobody.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pvc_embedded::EmbeddedTree;
use pvc_model::cluster::Cluster;
use pvc_model::fence::Rules;
use pvc_model::node::{DaemonState, DomainState, NodeRecord, NodeRole};
use pvc_model::storage::VolumeId;
use pvc_model::vm::{Selector, VmRecord, VmState};
use pvc_model::{NodeName, Uuid};
use pvc_node::{
    LogSwitches, MigrationSettings, Node, NodeError, NodeSettings, Outcome, Ports, Subsystems,
};
use pvc_ports::{Clock, DatabaseCluster, GuestRun};
use pvc_store::{Change, Changes, Ipmi, NewNode, NewVm, NodeChange, Store, VmChange};
use pvc_testkit::{
    FakeHost, FlakyTree, MemoryFiles, MemoryFirewall, MemoryNetwork, MemorySriov, MemoryStorage,
    ScriptedExec, ScriptedHypervisor, ScriptedPower, ScriptedPrograms, ScriptedServices,
    SeededRandom, TokioClock, eventually,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Number of daemons that were started.
static STARTS: AtomicU32 = AtomicU32::new(1);

pub const INTERVAL: Duration = Duration::from_secs(5);

/// A directory that the daemon has to make.
pub const DIRECTORY: &str = "/run/pvc/dnsmasq";

/// Directory of the logs of the guests' consoles.
pub const CONSOLES: &str = "/var/log/pvc/console";

pub struct World {
    pub tree: EmbeddedTree,
    /// Sees the same tree as the node does, and asks for things as operators do.
    pub operator: Store,
    pub hypervisor: Arc<ScriptedHypervisor>,
    pub storage: Arc<MemoryStorage>,
    pub network: Arc<MemoryNetwork>,
    pub services: Arc<ScriptedServices>,
    pub host: Arc<FakeHost>,
    /// The BMCs of all servers.
    pub power: Arc<ScriptedPower>,
    pub database_cluster: Option<Arc<dyn DatabaseCluster>>,
    pub exec: Arc<ScriptedExec>,
    pub clock: Arc<TokioClock>,
    pub settings: NodeSettings,
    pub files: Arc<MemoryFiles>,
}

/// Adds a coordinator that runs PVC 1.0.3. Its daemon says nothing of itself that only ours say.
pub fn legacy_node(name: &NodeName, ipmi: Ipmi) -> Changes {
    let mut changes = Changes::new();
    changes.push(Change::AddNode(Box::new(NewNode {
        name: name.clone(),
        role: NodeRole::Coordinator,
        cpus: 8,
        kernel: "6.1".to_owned(),
        os: "GNU/Linux".to_owned(),
        arch: "x86_64".to_owned(),
        version: "1.0.3".to_owned(),
        ipmi,
        keepalive: 0,
    })));
    changes.node(name, NodeChange::Daemon(DaemonState::Run));
    changes
}

pub struct Daemon {
    pub connection: Arc<FlakyTree>,
    pub session: Arc<EmbeddedTree>,
    pub shutdown: CancellationToken,
    pub task: JoinHandle<Result<Outcome, NodeError>>,
}

impl Daemon {
    pub async fn stop(self) -> Outcome {
        self.shutdown.cancel();
        let outcome = self.task.await.unwrap().unwrap();
        pvc_ports::Tree::close(&*self.connection).await;
        outcome
    }

    /// Ends the daemon as `kill -9` does: nothing is said to anybody. The session ends some time
    /// later.
    pub async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
        pvc_ports::Tree::close(&*self.connection).await;
    }
}

pub async fn world() -> World {
    let tree = EmbeddedTree::in_memory();
    let clock = Arc::new(TokioClock::new());
    let operator =
        Store::open(tree.connect(), clock.clone(), Arc::new(SeededRandom::new(1))).await.unwrap();
    operator.initialize(false).await.unwrap();
    let settings = NodeSettings {
        name: NodeName::new("hv1"),
        process: String::new(), // each start has its own
        role: NodeRole::Coordinator,
        cluster_name: "test".to_owned(),
        version: "0.2.0".to_owned(),
        subsystems: Subsystems {
            hypervisor: true,
            networking: false,
            storage: false,
            worker: false,
            api: false,
        },
        keepalive_interval: INTERVAL,
        vm_shutdown_timeout: Duration::from_secs(180),
        session_timeout: Duration::from_secs(10),
        directories: vec![DIRECTORY.into()],
        console_log_directory: CONSOLES.into(),
        console_log_lines: 100,
        node_log_lines: 50,
        core_networks: None,
        host_filter: None,
        storage_address: Some("10.0.1.1".to_owned()),
        migration: MigrationSettings::default(),
        selector: Some(Selector::Mem),
        upstream_ip: None,
        guest_networks: None,
        sriov_cards: Vec::new(),
        certificates: Vec::new(),
        floating: Vec::new(),
        ipmi: None,
        fencing: Rules::never(INTERVAL),
        fence_only_with_own_bmc: false,
        reset_after: None,
        start_services: false,
        standalone: true,
        log: LogSwitches::default(),
    };
    World {
        tree,
        operator,
        hypervisor: Arc::new(ScriptedHypervisor::new()),
        storage: Arc::new(MemoryStorage::new()),
        network: Arc::new(MemoryNetwork::new()),
        services: Arc::new(ScriptedServices::new()),
        host: Arc::new(FakeHost::new()),
        database_cluster: None,
        power: Arc::new(ScriptedPower::new()),
        exec: Arc::new(ScriptedExec::without_programs()),
        clock,
        settings,
        files: Arc::new(MemoryFiles::new()),
    }
}

impl World {
    /// Another server of the same cluster: its guests can come here, and ours can go there.
    pub async fn another(&self, name: &str) -> World {
        let random = Arc::new(SeededRandom::new(10 + self.view().nodes.len() as u64));
        let operator = Store::open(self.tree.connect(), self.clock.clone(), random).await.unwrap();
        let hypervisor = Arc::new(ScriptedHypervisor::new());
        let own = self.settings.name.as_str();
        hypervisor.add_peer(own, &self.hypervisor);
        self.hypervisor.add_peer(name, &hypervisor);
        let settings = NodeSettings { name: NodeName::new(name), ..self.settings.clone() };
        World {
            tree: self.tree.connect_concrete(),
            operator,
            hypervisor,
            storage: self.storage.clone(),
            network: Arc::new(MemoryNetwork::new()),
            services: Arc::new(ScriptedServices::new()),
            host: Arc::new(FakeHost::new()),
            database_cluster: None,
            power: self.power.clone(),
            exec: Arc::new(ScriptedExec::without_programs()),
            clock: self.clock.clone(),
            settings,
            files: Arc::new(MemoryFiles::new()),
        }
    }

    pub fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    pub async fn request_node_of(&self, node: &str, state: DomainState) {
        let mut changes = Changes::new();
        changes.node(&NodeName::new(node), NodeChange::Domain(state));
        self.change(changes).await;
    }

    /// Lets `milliseconds` pass.
    pub async fn clock_passes(&self, milliseconds: u64) {
        self.clock.sleep(Duration::from_millis(milliseconds)).await;
    }

    pub fn ports(&self) -> Ports {
        Ports {
            hypervisor: self.hypervisor.clone(),
            storage: self.storage.clone(),
            network: self.network.clone(),
            sriov: Arc::new(MemorySriov::new()),
            services: self.services.clone(),
            host: self.host.clone(),
            database_cluster: self.database_cluster.clone(),
            dns: None,
            power: self.power.clone(),
            exec: self.exec.clone(),
            files: self.files.clone(),
            firewall: Arc::new(MemoryFirewall::new()),
            programs: Arc::new(ScriptedPrograms::new()),
            clock: self.clock.clone(),
            random: Arc::new(SeededRandom::new(2)),
        }
    }

    pub async fn start(&self) -> Daemon {
        self.start_as(|node| node).await
    }

    pub async fn start_as(&self, prepare: impl FnOnce(Node) -> Node) -> Daemon {
        let session = Arc::new(self.tree.connect_concrete());
        let connection = FlakyTree::new(session.clone());
        // Two daemons draw different numbers.
        let seed = self.settings.name.as_str().bytes().map(u64::from).sum();
        let random = Arc::new(SeededRandom::new(seed));
        let store = Store::open(connection.clone(), self.clock.clone(), random).await.unwrap();
        let turn = STARTS.fetch_add(1, Ordering::Relaxed);
        let process = format!("process {turn} of {}", self.settings.name);
        let settings = NodeSettings { process, ..self.settings.clone() };
        let node = prepare(Node::new(settings, self.ports(), store));
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(node.run(shutdown.clone()));
        Daemon { connection, session, shutdown, task }
    }

    /// Starts as [`start`](World::start) does, and waits until the node runs.
    pub async fn running(&self) -> Daemon {
        let daemon = self.start().await;
        self.until("the node runs", || {
            self.node().is_some_and(|node| node.daemon_state.as_str() == "run")
        })
        .await;
        daemon
    }

    pub fn view(&self) -> Arc<Cluster> {
        self.operator.view()
    }

    pub fn node(&self) -> Option<Arc<NodeRecord>> {
        self.view().nodes.get(&self.settings.name).cloned()
    }

    pub fn vm(&self, uuid: Uuid) -> Arc<VmRecord> {
        self.view().vms[&uuid].clone()
    }

    pub fn state(&self, uuid: Uuid) -> String {
        self.vm(uuid).state.as_str().to_owned()
    }

    pub async fn until(&self, what: &str, ready: impl FnMut() -> bool) {
        eventually(what, Duration::from_secs(600), ready).await;
    }

    /// Lets `seconds` pass.
    pub async fn pass(&self, seconds: u64) {
        self.clock.sleep(Duration::from_secs(seconds)).await;
    }

    pub async fn change(&self, changes: Changes) {
        self.operator
            .change(|_| Ok::<_, std::convert::Infallible>((changes.clone(), ())))
            .await
            .unwrap();
    }

    /// Defines VM number `number` on this node, with its volume `vms/vmN_sda`.
    pub async fn define(&self, number: u128, state: VmState) -> Uuid {
        self.storage.insert(&format!("vms/vm{number}_sda"));
        self.define_without_volume(number, state).await
    }

    pub async fn define_without_volume(&self, number: u128, state: VmState) -> Uuid {
        let uuid = Uuid::from_u128(number);
        let name = format!("vm{number}");
        let volume = format!("vms/{name}_sda");
        let mut changes = Changes::new();
        changes.push(Change::DefineVm(Box::new(NewVm {
            uuid,
            name: name.clone(),
            state,
            node: Some(self.settings.name.clone()),
            xml: xml(&name, uuid, &volume),
            profile: None,
            volumes: vec![VolumeId::from_record(&volume).unwrap()],
            autostart: false,
            migration_method: None,
            max_downtime_ms: 300,
            selector: None,
            node_limit: Vec::new(),
            tags: Vec::new(),
        })));
        self.change(changes).await;
        uuid
    }

    pub async fn request(&self, uuid: Uuid, state: VmState) {
        let mut changes = Changes::new();
        changes.vm(uuid, VmChange::State(state));
        self.change(changes).await;
    }

    pub async fn request_node(&self, state: DomainState) {
        let mut changes = Changes::new();
        changes.node(&self.settings.name, NodeChange::Domain(state));
        self.change(changes).await;
    }

    pub async fn until_daemon(&self, state: DaemonState) {
        self.until(&format!("the daemon says {state}"), || {
            self.node().unwrap().daemon_state == state
        })
        .await;
    }

    pub async fn until_runs(&self, uuid: Uuid) {
        let runs = || self.hypervisor.run(uuid) == Some(GuestRun::Running);
        self.until("the guest runs", runs).await;
    }

    pub async fn until_state(&self, uuid: Uuid, state: &str) {
        self.until(&format!("the VM is in {state}"), || self.state(uuid) == state).await;
    }

    pub async fn until_fault(&self, id: &str) -> String {
        self.until(&format!("there is a fault {id}"), || self.view().faults.contains_key(id)).await;
        self.view().faults[id].message.clone()
    }
}

pub fn xml(name: &str, uuid: Uuid, volume: &str) -> String {
    format!(
        "<domain type='kvm'><name>{name}</name><uuid>{uuid}</uuid><memory \
         unit='MiB'>256</memory><vcpu>2</vcpu>\
         <os><type arch='x86_64' \
         machine='pc'>hvm</type></os><devices><emulator>/usr/bin/kvm</emulator>\
         <disk type='network' device='disk'><driver name='qemu'/><source protocol='rbd' \
         name='{volume}'/>\
         <target dev='sda' bus='scsi'/></disk>\
         <serial type='pty'><log file='/var/log/libvirt/{name}.log' append='on'/></serial>\
         <console type='pty'/></devices></domain>"
    )
}
