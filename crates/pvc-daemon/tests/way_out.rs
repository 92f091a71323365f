//! A node daemon that is asked to stop while it starts, whatever hangs: it is gone in time, and
//! nothing of it is left.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pvc_daemon::{Shutdown, on_session};
use pvc_embedded::EmbeddedTree;
use pvc_model::NodeName;
use pvc_model::Uuid;
use pvc_model::fence::Rules;
use pvc_model::node::{DaemonState, NodeRole};
use pvc_model::primary::handover::Duty;
use pvc_model::storage::VolumeId;
use pvc_model::vm::VmState;
use pvc_node::{
    FloatingAddress, LogSwitches, MigrationSettings, Node, NodeError, NodeSettings, Outcome, Ports,
    Subsystems,
};
use pvc_ports::{Clock, Hypervisor, Network, Services, ServicesError, Storage, UnitState};
use pvc_store::{Change, Changes, NewVm, Store};
use pvc_testkit::{
    FlakyTree, MemoryNetwork, MemorySriov, MemoryStorage, NetworkChange, ScriptedHypervisor,
    ScriptedServices, SeededRandom, TokioClock, ports,
};

/// Time that operators are promised.
const PROMISED: Duration = Duration::from_secs(5);

const VOLUME: &str = "vms/vm1_sda";

/// A server with a VM that is to run on it, and its daemon's own connection to the store.
struct Machine {
    session: Arc<EmbeddedTree>,
    connection: Arc<FlakyTree>,
    operator: Store,
    hypervisor: Arc<ScriptedHypervisor>,
    storage: Arc<MemoryStorage>,
    network: Arc<MemoryNetwork>,
    services: Arc<dyn Services>,
    clock: Arc<TokioClock>,
    settings: NodeSettings,
}

impl Machine {
    async fn new() -> Self {
        let tree = EmbeddedTree::in_memory();
        let clock = Arc::new(TokioClock::new());
        let random = Arc::new(SeededRandom::new(1));
        let operator = Store::open(tree.connect(), clock.clone(), random).await.unwrap();
        operator.initialize(false).await.unwrap();
        let changes = vm_to_be_started();
        operator.change(|_| Ok::<_, Infallible>((changes.clone(), ()))).await.unwrap();
        let storage = Arc::new(MemoryStorage::new());
        storage.insert(VOLUME);
        let network = Arc::new(MemoryNetwork::new());
        network.insert_bridge("brcluster");
        let session = Arc::new(tree.connect_concrete());
        Machine {
            connection: FlakyTree::new(session.clone()),
            session,
            operator,
            hypervisor: Arc::new(ScriptedHypervisor::new()),
            storage,
            network,
            services: Arc::new(ScriptedServices::new()),
            clock,
            settings: settings(),
        }
    }

    fn ports(&self) -> Ports {
        Ports {
            hypervisor: self.hypervisor.clone(),
            storage: self.storage.clone(),
            network: self.network.clone(),
            sriov: Arc::new(MemorySriov::new()),
            services: self.services.clone(),
            clock: self.clock.clone(),
            random: Arc::new(SeededRandom::new(2)),
            ..ports()
        }
    }

    /// The daemon, as its program runs it.
    async fn run(&self, shutdown: &Shutdown) -> Option<Result<Option<Outcome>, NodeError>> {
        let (settings, ports) = (self.settings.clone(), self.ports());
        let open = async {
            let random = Arc::new(SeededRandom::new(3));
            let store = Store::open(self.connection.clone(), self.clock.clone(), random).await?;
            Ok((self.connection.clone(), store))
        };
        let daemon = async {
            pvc_node::before_store(&settings, &ports, shutdown.asked()).await?;
            let role = async |_, store: Store| {
                let begun = shutdown.clone();
                let dress = |node: Node| node.when_ready(move || begun.begun());
                let asked = shutdown.asked().clone();
                let ended = pvc_daemon::node(&store, settings.clone(), ports.clone(), dress, asked);
                ended.await.expect("the view lives")
            };
            on_session(open, self.clock.as_ref(), shutdown.asked(), role).await
        };
        shutdown.in_time(daemon).await
    }

    /// Starts the daemon, and asks it to stop some time after. Returns how long it took it to end
    /// from then on.
    async fn asked_to_stop_after(&self, start: Duration) -> Duration {
        let shutdown = Shutdown::new(self.clock.clone());
        let ask = async {
            self.clock.sleep(start).await;
            shutdown.ask();
            self.clock.monotonic()
        };
        let daemon = async {
            let ended = self.run(&shutdown).await;
            assert!(!matches!(ended, Some(Ok(Some(Outcome::Reexec)))));
            self.clock.monotonic()
        };
        let (asked, ended) = tokio::join!(ask, daemon);
        ended.saturating_sub(asked)
    }

    /// Lists what the daemon has left behind, in words. The session of a store that hung is over
    /// for its server by then, which nobody had to tell it.
    async fn left_behind(&self) -> Vec<String> {
        if self.connection.has_fallen_silent() {
            self.session.expire().await;
        }
        let mut left = self.ephemeral_records().await;
        self.hypervisor.set_silent(false);
        let guests = self.hypervisor.guests().await.unwrap();
        left.extend(guests.keys().map(|guest| format!("guest {guest}")));
        left.extend(self.hypervisor.calls());
        let volume = VolumeId::from_record(VOLUME).unwrap();
        let locks = self.storage.locks(&volume).await.unwrap();
        left.extend(locks.iter().map(|lock| format!("lock {lock:?}")));
        let added = |change: &NetworkChange| matches!(change, NetworkChange::AddressAdded { .. });
        left.extend(self.network.changes().iter().filter(|c| added(c)).map(|c| format!("{c:?}")));
        left
    }

    /// Announcements and locks: the only records that go with a session.
    async fn ephemeral_records(&self) -> Vec<String> {
        let tree = self.session.connect();
        let (mut found, mut open) = (Vec::new(), vec!["/".to_owned()]);
        while let Some(path) = open.pop() {
            let entry = tree.get(&path).await.unwrap().expect("nobody removes anything");
            if entry.stat.ephemeral_owner != 0 {
                found.push(format!("record {path}"));
            }
            let below = tree.children(&path).await.unwrap().unwrap_or_default();
            open.extend(below.iter().map(|name| format!("{}/{name}", path.trim_end_matches('/'))));
        }
        tree.close().await;
        found
    }

    async fn daemon_state(&self) -> Option<DaemonState> {
        let view = self.operator.fresh().await.unwrap();
        Some(view.nodes.get(&self.settings.name)?.daemon_state.clone())
    }
}

fn vm_to_be_started() -> Changes {
    let uuid = Uuid::from_u128(1);
    let xml = format!(
        "<domain type='kvm'><name>vm1</name><uuid>{uuid}</uuid><memory unit='MiB'>256</memory>\
         <vcpu>1</vcpu><os><type arch='x86_64' machine='pc'>hvm</type></os><devices>\
         <disk type='network' device='disk'><source protocol='rbd' name='{VOLUME}'/>\
         <target dev='sda' bus='scsi'/></disk></devices></domain>"
    );
    let mut changes = Changes::new();
    changes.push(Change::DefineVm(Box::new(NewVm {
        uuid,
        name: "vm1".to_owned(),
        state: VmState::Start,
        node: Some(NodeName::new("hv1")),
        xml,
        profile: None,
        volumes: vec![VolumeId::from_record(VOLUME).unwrap()],
        autostart: false,
        migration_method: None,
        max_downtime_ms: 300,
        selector: None,
        node_limit: Vec::new(),
        tags: Vec::new(),
    })));
    changes
}

fn settings() -> NodeSettings {
    let interval = Duration::from_secs(5);
    NodeSettings {
        name: NodeName::new("hv1"),
        process: "process 1 of hv1".to_owned(),
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
        keepalive_interval: interval,
        vm_shutdown_timeout: Duration::from_secs(180),
        session_timeout: Duration::from_secs(10),
        directories: Vec::new(),
        console_log_directory: std::env::temp_dir(),
        console_log_lines: 0,
        node_log_lines: 0,
        core_networks: None,
        host_filter: None,
        storage_address: Some("10.0.1.1".to_owned()),
        migration: MigrationSettings::default(),
        selector: None,
        upstream_ip: None,
        guest_networks: None,
        sriov_cards: Vec::new(),
        certificates: Vec::new(),
        floating: vec![FloatingAddress {
            duty: Duty::Inner,
            link: "brcluster".to_owned(),
            address: "10.0.0.254/24".parse().unwrap(),
        }],
        ipmi: None,
        fencing: Rules::never(interval),
        fence_only_with_own_bmc: false,
        reset_after: None,
        start_services: false,
        standalone: true,
        log: LogSwitches::default(),
    }
}

/// Times until the daemon is asked to stop: at once, in the middle, and late.
const MOMENTS: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(100), Duration::from_secs(3), Duration::from_secs(8)];

#[tokio::test(start_paused = true)]
async fn a_start_whose_store_and_hypervisor_both_hang_is_gone_in_time_and_leaves_nothing() {
    let mut hung_at_the_store = 0;
    for answered in 0.. {
        let mut has_hung = false;
        for moment in MOMENTS {
            let machine = Machine::new().await;
            machine.hypervisor.set_silent(true);
            machine.connection.fall_silent_after(answered);
            let took = machine.asked_to_stop_after(moment).await;
            let case = format!("after {moment:?}, {answered} answers of the store");
            assert!(took < PROMISED, "{case}: it took {took:?}");
            assert_eq!(machine.left_behind().await, Vec::<String>::new(), "{case}");
            has_hung |= moment < Duration::from_secs(1) && machine.connection.has_fallen_silent();
        }
        if !has_hung {
            break; // the start gets to the hypervisor, and waits there
        }
        hung_at_the_store += 1;
    }
    assert!(hung_at_the_store > 10, "{hung_at_the_store} calls are no start");
}

#[tokio::test(start_paused = true)]
async fn a_start_whose_hypervisor_alone_hangs_says_in_the_store_that_it_has_ended() {
    let machine = Machine::new().await;
    machine.hypervisor.set_silent(true);
    let took = machine.asked_to_stop_after(Duration::from_secs(8)).await;
    assert!(took < Duration::from_secs(1), "nothing else hangs: {took:?}");
    assert_eq!(machine.left_behind().await, Vec::<String>::new());
    assert_eq!(machine.daemon_state().await, Some(DaemonState::Stop));
}

#[tokio::test(start_paused = true)]
async fn a_start_that_is_given_up_keeps_no_address_of_a_former_life() {
    let machine = Machine::new().await;
    let FloatingAddress { link, address, .. } = &machine.settings.floating[0];
    machine.network.lease_address(link, *address, Duration::from_secs(60)).await.unwrap();
    assert!(machine.network.holder(address.addr()).is_some());
    machine.hypervisor.set_silent(true);
    let took = machine.asked_to_stop_after(Duration::from_secs(8)).await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert_eq!(machine.network.holder(address.addr()), None);
}

/// A service manager that never answers.
struct Silent;

#[async_trait]
impl Services for Silent {
    async fn state(&self, _: &str) -> Result<UnitState, ServicesError> {
        std::future::pending().await
    }

    async fn start(&self, _: &str) -> Result<(), ServicesError> {
        std::future::pending().await
    }

    async fn stop(&self, _: &str) -> Result<(), ServicesError> {
        std::future::pending().await
    }

    async fn restart(&self, _: &str) -> Result<(), ServicesError> {
        std::future::pending().await
    }

    async fn set_enabled(&self, _: &str, _: bool) -> Result<(), ServicesError> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_whose_service_manager_hangs_is_gone_at_once() {
    for moment in MOMENTS {
        let mut machine = Machine::new().await;
        machine.settings.start_services = true;
        machine.services = Arc::new(Silent);
        let took = machine.asked_to_stop_after(moment).await;
        assert!(took < Duration::from_secs(1), "after {moment:?}: {took:?}");
        assert_eq!(machine.left_behind().await, Vec::<String>::new(), "after {moment:?}");
        assert_eq!(machine.daemon_state().await, None, "the store was not opened");
    }
}

/// The other tests would show nothing without this one.
#[tokio::test(start_paused = true)]
async fn a_start_that_nothing_holds_up_has_all_that_one_that_is_given_up_must_not_leave() {
    let machine = Machine::new().await;
    machine.asked_to_stop_after(Duration::from_secs(30)).await;
    let left = machine.left_behind().await.join("\n");
    assert!(left.contains("guest "), "guests run on: {left}");
    assert!(left.contains("AddressAdded"), "it was primary: {left}");
}
