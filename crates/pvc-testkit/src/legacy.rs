//! A node daemon of PVC 1.0.3, played: what it does, in which order and how fast, with the races
//! that it has.
//!
//! ```text
//!  events of the tree ──callback thread──▶ a thread per event: dispatch ──▶ vms, moving
//!                            │ (sleeps and waits in here hold up every later event)
//!                            ├──▶ primary    the role, phase by phase
//!                            └──▶ flush      its own node
//!  a timer ──▶ keepalive ──▶ fencing
//! ```
//!
//! Facts: `spec/coordination.md`, `spec/vm.md`, `spec/zookeeper.md`, `spec/startup.md`; each part
//! names its section. It knows the tree's keys by itself, on purpose: what our codecs write must be
//! what *this* reads. What it does to guests, volumes, addresses and power goes through the ports
//! of its host, so whoever watches the world sees it.
//!
//! Not here, because nobody's peers can tell: networks of VMs, DHCP and DNS, Ceph's figures,
//! Patroni, console logs, health, SR-IOV, and schemas other than 15.

mod api;
mod fencing;
mod flush;
mod keepalive;
mod moving;
mod placing;
mod primary;
mod records;
mod vms;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pvc_model::Uuid;
use pvc_model::link::IpNet;
use pvc_model::primary::handover::Duty;
use pvc_ports::{Bmc, Clock, Host, Hypervisor, Network, Power, Random, Storage, Tree, TreeEvent};

pub use api::{LegacyApi, LegacyAsk};
use flush::Job;
use records::{Kind, Records};

/// Configuration of a daemon of PVC 1.0.3.
#[derive(Debug, Clone)]
pub struct LegacySettings {
    pub name: String,
    pub is_coordinator: bool,
    pub cluster_name: String,
    /// `py2.DOMAIN` is where another node's hypervisor listens. Empty where bare names do.
    pub cluster_domain: String,
    /// Its own address on the storage network: the daemon frees the locks of this address when it
    /// starts a VM.
    pub storage_address: String,
    /// Addresses that go with the primary role: with which phase, on which link.
    pub floating: Vec<(Duty, String, IpNet)>,
    pub bmc: Bmc,
    pub keepalive_interval: Duration,
    pub fence_intervals: u32,
    pub vm_shutdown_timeout: Duration,
    /// `successful_fence` and `failed_fence` are `migrate`.
    pub recovers_after_success: bool,
    pub recovers_after_failure: bool,
    pub selector: String,
    /// Time that each request takes beside the time that the tree takes for it, which may be none.
    pub round_trip: Duration,
    /// Whether its readers wait for the last writer in the queue, as those of kazoo 2.8 do ([T3]).
    pub kazoo_28: bool,
}

/// Ports of its host, and its store.
#[derive(Clone)]
pub struct LegacyPorts {
    pub tree: Arc<dyn Tree>,
    pub hypervisor: Arc<dyn Hypervisor>,
    pub storage: Arc<dyn Storage>,
    pub network: Arc<dyn Network>,
    pub power: Arc<dyn Power>,
    pub host: Arc<dyn Host>,
    pub clock: Arc<dyn Clock>,
    pub random: Arc<dyn Random>,
}

/// A node daemon of PVC 1.0.3.
pub struct LegacyPeer {
    settings: LegacySettings,
    ports: LegacyPorts,
    records: Records,
    memory: Mutex<Memory>,
    /// Whether the timer of the keepalives was stopped; held while one runs.
    is_over: tokio::sync::Mutex<bool>,
}

/// State that the daemon keeps of the cluster, which is what it last heard of it.
#[derive(Default)]
struct Memory {
    /// The VMs that run here, in the order in which they were started.
    running: Vec<Uuid>,
    vms: BTreeMap<Uuid, Vm>,
    /// The last value of `primary_node` that it acted on.
    primary: Option<String>,
    job: Option<Arc<Job>>,
    /// The change that each watch has delivered.
    seen: BTreeMap<String, i64>,
}

/// A VM of the cluster, as it was at its last event.
#[derive(Default, Clone)]
struct Vm {
    state: String,
    node: String,
    last_node: String,
    method: String,
    /// Value of `last_node` before the event that is being acted on.
    last_node_before: String,
    /// Whether there is a handle: only then it is known whether the guest runs.
    has_handle: bool,
    /// Work under way. Events that arrive meanwhile are dropped for good (`spec/vm.md` §1).
    busy: BTreeSet<&'static str>,
}

/// Time from the start of its unit until it asks for the store: a pause before it, the core
/// networks, the services (`spec/startup.md` §2, steps 0 to 8).
pub const BEFORE_THE_STORE: Duration = Duration::from_secs(15);

/// Time that systemd gives it to leave (`spec/startup.md` §1).
pub const STOP_TIMEOUT: Duration = Duration::from_secs(90);

/// The layout of the tree that it reads and writes.
const SCHEMA: &str = "15";

/// Keys of a node's entry that its first start leaves out (`spec/zookeeper.md` §5,
/// quirks).
const NODE_KEYS: [&str; 8] = [
    "activeschema",
    "latestschema",
    "sriov",
    "monitoring_plugins",
    "monitoring_data",
    "monitoring_health",
    "network_stats",
    "networkscount",
];

impl LegacyPeer {
    pub fn new(settings: LegacySettings, ports: LegacyPorts) -> Arc<LegacyPeer> {
        let records = Records::new(&ports, settings.kazoo_28, settings.round_trip);
        Arc::new(LegacyPeer {
            settings,
            ports,
            records,
            memory: Mutex::default(),
            is_over: tokio::sync::Mutex::new(false),
        })
    }

    /// Runs until `shutdown`, then leaves as it does when it is asked to. Says how it ended.
    pub async fn run(self: Arc<Self>, shutdown: impl Future<Output = ()> + Send) -> String {
        tokio::pin!(shutdown);
        // Until it has its signal handlers, it just dies.
        tokio::select! {
            biased;
            () = &mut shutdown => return "killed while it was starting".to_owned(),
            started = self.start() => if let Err(why) = started { return why },
        }
        tokio::spawn(self.clone().listen());
        tokio::spawn(self.clone().keepalives());
        shutdown.await;
        self.leave().await;
        "stopped".to_owned()
    }

    /// Only hears and acts, as if it had started long ago and somebody else sent its keepalives.
    pub async fn listen_only(self: Arc<Self>) {
        self.listen().await;
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().expect("nothing panics while it holds the memory")
    }

    fn name(&self) -> &str {
        &self.settings.name
    }

    fn own(&self, key: &str) -> String {
        format!("/nodes/{}/{key}", self.settings.name)
    }

    async fn pause(&self, milliseconds: u64) {
        self.ports.clock.sleep(Duration::from_millis(milliseconds)).await;
    }

    // --- Its life: spec/startup.md §2 and §7 -----------------------------------------------------

    async fn start(&self) -> Result<(), String> {
        self.agree_on_schema().await;
        self.set_up_node().await;
        self.pause(5000).await;
        self.records.write(&[("/config".to_owned(), self.settings.cluster_name.clone())]).await;
        let primary = self.records.text("/config/primary_node").await;
        if self.settings.is_coordinator && matches!(primary.as_str(), "" | "none") {
            self.records
                .write(&[("/config/primary_node".to_owned(), self.settings.name.clone())])
                .await;
        }
        // Steps 16 to 19, of which only the hypervisor can keep it from starting.
        if self.ports.hypervisor.ping().await.is_err() {
            return Err("the hypervisor does not answer (exit code 1)".to_owned());
        }
        Ok(())
    }

    /// `spec/zookeeper.md` §5: says what it can, and fills in what is missing, alone.
    async fn agree_on_schema(&self) {
        if self.records.text(&self.own("activeschema")).await.is_empty() {
            // For a node that is not there yet this comes to nothing, and nobody notices.
            self.records.write(&[(self.own("activeschema"), SCHEMA.to_owned())]).await;
        }
        self.records.write(&[(self.own("latestschema"), SCHEMA.to_owned())]).await;
        let lock = self.records.lock("/schema/version", Kind::Write, None).await;
        self.pause(500).await;
        if self.records.read(&self.own("")).await.is_some() {
            let there = self.records.children(&format!("/nodes/{}", self.name())).await;
            for key in NODE_KEYS.iter().filter(|key| !there.iter().any(|there| there == *key)) {
                self.records.write(&[(self.own(key), String::new())]).await;
            }
        }
        self.records.release(lock).await;
    }

    /// The node's entry: `spec/startup.md` §5, in one multi.
    async fn set_up_node(&self) {
        let facts = self.ports.host.facts().ok();
        let facts = facts
            .map(|facts| format!("{} {} {} {}", facts.cpus, facts.kernel, facts.os, facts.arch));
        let (mode, role) = match self.settings.is_coordinator {
            true => ("coordinator", "secondary"),
            false => ("hypervisor", "client"),
        };
        let is_new = self.records.read(&self.own("")).await.is_none();
        let mut values = vec![(format!("/nodes/{}", self.name()), mode.to_owned())];
        let mut put = |key: &str, value: &str| values.push((self.own(key), value.to_owned()));
        put("daemonmode", mode);
        put("daemonstate", "init");
        put("routerstate", role);
        put("staticdata", facts.as_deref().unwrap_or("1 unknown unknown unknown"));
        put("pvcversion", "1.0.3");
        put("ipmihostname", &self.settings.bmc.host);
        put("ipmiusername", &self.settings.bmc.user);
        put("ipmipassword", &self.settings.bmc.password);
        if is_new {
            put("keepalive", &self.wall_seconds().to_string());
            put("domainstate", "flushed");
            for key in [
                "memtotal",
                "memused",
                "memfree",
                "memalloc",
                "memprov",
                "vcpualloc",
                "domainscount",
            ] {
                put(key, "0");
            }
            put("networkscount", "0");
            put("cpuload", "0.0");
            // An entry that names no VM, and stays.
            put("runningdomains", "0");
        }
        self.records.write(&values).await;
        let running = self.records.text(&self.own("runningdomains")).await;
        self.memory().running = running.split(' ').filter_map(|vm| vm.parse().ok()).collect();
    }

    fn wall_seconds(&self) -> u64 {
        self.ports.clock.wall().as_secs()
    }

    /// `spec/startup.md` §7.
    async fn leave(&self) {
        self.records.write(&[(self.own("daemonstate"), "shutdown".to_owned())]).await;
        // Without limit; systemd has one.
        while self.memory().job.is_some() {
            self.pause(500).await;
        }
        let is_primary = self.records.text(&self.own("routerstate")).await == "primary";
        if is_primary && self.records.children("/nodes").await.len() > 1 {
            self.records.write(&[("/config/primary_node".to_owned(), "none".to_owned())]).await;
            let mut looks = 240;
            while looks > 0 && self.records.text(&self.own("routerstate")).await != "secondary" {
                self.pause(500).await;
                looks -= 1;
            }
        }
        *self.is_over.lock().await = true;
        self.records
            .write(&[
                (self.own("network_stats"), "{}".to_owned()),
                (self.own("daemonstate"), "stop".to_owned()),
            ])
            .await;
    }

    // --- The callback thread: spec/zookeeper.md §7 ----------------------------------------------

    async fn listen(self: Arc<Self>) {
        let mut events = self.records.watch("/").await;
        self.see_everything().await;
        while let Some(event) = events.recv().await {
            match event {
                TreeEvent::Changed { path } | TreeEvent::Deleted { path } => {
                    self.noticed(&path).await
                }
                // What happened in between is delivered once, with its newest value.
                TreeEvent::Resync => self.see_everything().await,
            }
        }
    }

    async fn see_everything(self: &Arc<Self>) {
        for path in
            [self.own("routerstate"), self.own("domainstate"), "/config/primary_node".to_owned()]
        {
            self.see(&path).await;
        }
        for name in self.records.children("/domains").await {
            self.see_vm(&name).await;
        }
    }

    async fn noticed(self: &Arc<Self>, path: &str) {
        let is_watched = path == "/config/primary_node"
            || path == self.own("routerstate")
            || path == self.own("domainstate")
            || (path.starts_with("/domains/") && path.ends_with("/state"));
        if is_watched {
            self.see(path).await;
        } else if let Some(name) = path.strip_prefix("/domains/")
            && !name.contains('/')
        {
            self.see_vm(name).await;
        }
    }

    /// A VM that is new here gets an object; one that is gone loses it.
    async fn see_vm(self: &Arc<Self>, name: &str) {
        let Ok(vm) = name.parse::<Uuid>() else { return };
        if self.records.read(&format!("/domains/{vm}")).await.is_none() {
            self.memory().vms.remove(&vm);
            return;
        }
        if !self.memory().vms.contains_key(&vm) {
            // Only of a VM that belongs here the hypervisor is asked, and only now: `spec/vm.md`
            // §1.
            let is_own = self.records.text(&format!("/domains/{vm}/node")).await == self.name();
            let has_handle = is_own && self.condition(vm).await.is_some();
            self.memory().vms.insert(vm, Vm { has_handle, ..Vm::default() });
        }
        self.see(&format!("/domains/{vm}/state")).await;
    }

    /// Handles one watch: reads what is there now and acts, unless it has acted on that change
    /// already. A write of the same value is a change.
    async fn see(self: &Arc<Self>, path: &str) {
        let Some(entry) = self.records.entry(path).await else { return };
        if self.memory().seen.insert(path.to_owned(), entry.stat.mzxid) == Some(entry.stat.mzxid) {
            return;
        }
        let value = String::from_utf8_lossy(&entry.data).into_owned();
        if path == "/config/primary_node" {
            self.primary_is(&value, entry.stat.version).await;
        } else if path == self.own("routerstate") {
            self.own_role_is(&value).await;
        } else if path == self.own("domainstate") {
            self.own_domain_state_is(&value).await;
        } else if let Some(vm) = path.split('/').nth(2).and_then(|vm| vm.parse().ok()) {
            tokio::spawn(self.clone().dispatch(vm));
        }
    }
}

#[cfg(test)]
mod tests {
    //! Tests that the experiments of `spec/legend.md` come out here as they did with PVC 1.0.3.

    use std::sync::Arc;
    use std::time::Duration;

    use bytes::Bytes;
    use pvc_embedded::EmbeddedTree;
    use pvc_model::Uuid;
    use pvc_ports::{Bmc, CreateMode, Tree};

    use super::records::Kind;
    use super::{LegacyApi, LegacyAsk, LegacyPeer, LegacyPorts, LegacySettings};
    use crate::{
        BmcManner, FakeHost, Manner, MemoryNetwork, MemoryStorage, ScriptedHypervisor,
        ScriptedPower, SeededRandom, TokioClock, eventually,
    };

    const VM: Uuid = Uuid::from_u128(1);

    /// A node of PVC 1.0.3, and what a test does to its world.
    struct Stage {
        legacy: Arc<LegacyPeer>,
        tree: Arc<dyn Tree>,
        ports: LegacyPorts,
        hypervisor: Arc<ScriptedHypervisor>,
        power: Arc<ScriptedPower>,
    }

    impl Stage {
        async fn new(kazoo_28: bool) -> Stage {
            let tree = EmbeddedTree::in_memory();
            let (hypervisor, power) =
                (Arc::new(ScriptedHypervisor::new()), Arc::new(ScriptedPower::new()));
            let ports = LegacyPorts {
                tree: tree.connect(),
                hypervisor: hypervisor.clone(),
                storage: Arc::new(MemoryStorage::new()),
                network: Arc::new(MemoryNetwork::new()),
                power: power.clone(),
                host: Arc::new(FakeHost::new()),
                clock: Arc::new(TokioClock::new()),
                random: Arc::new(SeededRandom::new(1)),
            };
            let settings = LegacySettings {
                name: "py1".to_owned(),
                is_coordinator: true,
                cluster_name: "test".to_owned(),
                cluster_domain: "cluster.lab".to_owned(),
                storage_address: "10.0.1.1".to_owned(),
                floating: Vec::new(),
                bmc: Bmc {
                    host: "bmc-py1".to_owned(),
                    user: String::new(),
                    password: String::new(),
                },
                keepalive_interval: Duration::from_secs(5),
                fence_intervals: 6,
                vm_shutdown_timeout: Duration::from_secs(60),
                recovers_after_success: true,
                recovers_after_failure: false,
                selector: "mem".to_owned(),
                round_trip: Duration::from_millis(2),
                kazoo_28,
            };
            let stage = Stage {
                legacy: LegacyPeer::new(settings, ports.clone()),
                tree: tree.connect(),
                ports,
                hypervisor,
                power,
            };
            for path in [
                "/config",
                "/config/primary_node",
                "/config/primary_node/sync_lock",
                "/nodes",
                "/domains",
            ] {
                stage.make(path, "").await;
            }
            stage
        }

        async fn make(&self, path: &str, value: &str) {
            let data = Bytes::copy_from_slice(value.as_bytes());
            self.tree.create(path, data, CreateMode::Persistent).await.unwrap();
        }

        async fn node(&self, name: &str, keys: &[(&str, &str)]) {
            self.make(&format!("/nodes/{name}"), "coordinator").await;
            for (key, value) in keys {
                self.make(&format!("/nodes/{name}/{key}"), value).await;
            }
        }

        async fn text(&self, path: &str) -> String {
            self.legacy.records.text(path).await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_is_refused_changes_nothing_and_nobody_notices() {
        let stage = Stage::new(true).await;
        // [T2]: a parent that is missing takes the rest down with it.
        let values = [("/config", "a"), ("/nowhere/at/all", "b")]
            .map(|(path, value)| (path.into(), value.into()));
        stage.legacy.records.write(&values).await;
        assert_eq!(stage.text("/config").await, "");
        // [T11]: and so does whoever writes one of the keys meanwhile.
        let keys =
            ["/config", "/nodes", "/domains"].map(|path| (path.to_owned(), "mine".to_owned()));
        let other = async {
            stage.ports.clock.sleep(Duration::from_millis(5)).await;
            let data = Bytes::from_static(b"theirs");
            let set = pvc_ports::Op::Set { path: "/config".to_owned(), data, version: None };
            stage.tree.multi(vec![set]).await.unwrap();
        };
        tokio::join!(stage.legacy.records.write(&keys), other);
        assert_eq!(
            (stage.text("/config").await, stage.text("/nodes").await),
            ("theirs".into(), String::new())
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_of_kazoo_28_waits_for_the_writer_behind_it() {
        for (kazoo_28, waits) in [(true, 5), (false, 0)] {
            let stage = Stage::new(kazoo_28).await;
            let records = &stage.legacy.records;
            let path = "/config/primary_node/sync_lock";
            let first = records.lock(path, Kind::Write, None).await;
            let reads = async {
                let begun = stage.ports.clock.monotonic();
                let lock = records.lock(path, Kind::Read, Some(Duration::from_secs(5))).await;
                records.release(lock).await;
                (stage.ports.clock.monotonic() - begun).as_secs()
            };
            let writes = async {
                stage.ports.clock.sleep(Duration::from_millis(20)).await;
                let second = async {
                    let lock = records.lock(path, Kind::Write, None).await;
                    records.release(lock).await;
                };
                let release = async {
                    stage.ports.clock.sleep(Duration::from_millis(20)).await;
                    records.release(first).await;
                };
                tokio::join!(second, release);
            };
            assert_eq!(tokio::join!(reads, writes).0, waits, "[T3]");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_fence_succeeds_only_where_the_machine_stays_off() {
        let on_off = |on| BmcManner { ignores: true, ..on };
        for (manner, on, succeeds) in [
            (BmcManner::default(), true, false), // off, then on
            (BmcManner { lies: true, ..BmcManner::default() }, true, true), // off, and still off
            (on_off(BmcManner::default()), true, false), // on, and still on
            (on_off(BmcManner::default()), false, true), // off, and stays off
            (BmcManner { dead: true, ..BmcManner::default() }, true, false), // unreadable
        ] {
            let stage = Stage::new(true).await;
            let bmc = [("ipmihostname", "bmc-py2"), ("ipmiusername", ""), ("ipmipassword", "")];
            stage.node("py2", &[("daemonstate", "dead")]).await;
            for (key, value) in bmc {
                stage.make(&format!("/nodes/py2/{key}"), value).await;
            }
            stage.power.set_on("bmc-py2", on);
            stage.power.set_manner("bmc-py2", manner.clone());
            assert_eq!(stage.legacy.power_cycle("py2").await, succeeds, "[T10] {manner:?} {on}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_flush_that_is_reversed_at_its_last_vm_leaves_a_daemon_that_hears_nothing() {
        let stage = Stage::new(true).await;
        let (me, other) = (
            [("daemonstate", "run"), ("domainstate", "ready"), ("routerstate", "secondary")],
            "py2",
        );
        stage.node("py1", &me).await;
        stage
            .node(other, &[("daemonstate", "run"), ("domainstate", "ready"), ("memfree", "1000")])
            .await;
        stage.make("/config/migration_target_selector", "mem").await;
        let there = Arc::new(ScriptedHypervisor::new());
        stage.hypervisor.add_peer("py2.cluster.lab", &there);
        stage.hypervisor.insert(VM, "web");
        let takes = Manner { migration_takes: Duration::from_secs(20), ..Manner::default() };
        stage.hypervisor.set_manner(VM, takes);
        stage.make(&format!("/domains/{VM}"), "web").await;
        for (key, value) in [
            ("node", "py1"),
            ("lastnode", ""),
            ("migration_max_downtime", "300"),
            ("migrate_sync_lock", ""),
            ("state", "start"),
        ] {
            stage.make(&format!("/domains/{VM}/{key}"), value).await;
        }
        tokio::spawn(stage.legacy.clone().listen_only());
        eventually("the VM is listed", Duration::from_secs(60), || {
            stage.legacy.list() == VM.to_string()
        })
        .await;
        let api = LegacyApi::new(&stage.ports);
        api.ask(&LegacyAsk::Flush("py1".to_owned())).await.unwrap();
        stage.ports.clock.sleep(Duration::from_secs(5)).await;
        api.ask(&LegacyAsk::Ready("py1".to_owned())).await.unwrap();
        stage.ports.clock.sleep(Duration::from_secs(300)).await;
        assert_eq!(stage.text("/nodes/py1/domainstate").await, "flushed", "[T9]");
        assert!(there.is_there(VM), "by the name that the cluster's network has for it");
        api.ask(&LegacyAsk::Ready("py1".to_owned())).await.unwrap();
        stage.ports.clock.sleep(Duration::from_secs(300)).await;
        assert_eq!(
            stage.text("/nodes/py1/domainstate").await,
            "unflush",
            "and it hears of nothing any more"
        );
    }
}
