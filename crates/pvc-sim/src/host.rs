//! The servers: power, cables, what runs on them, and what they are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pvc_model::link::IpNet;
use pvc_ports::{
    Command, Exec, ExecError, GuestEvent, Host as HostPort, HostError, HostFacts, HostLoad,
    InterfaceCounters, Output, Services, ServicesError, UnitState,
};
use pvc_testkit::legacy::LegacyApi;
use pvc_testkit::{MemoryFiles, MemoryFirewall, MemoryNetwork, ScriptedExec, ScriptedServices};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::guests::SimGuest;
use crate::operators::Desk;
use crate::power::BmcManner;
use crate::process::{Gate, Pid};
use crate::state::{Mutation, State};

/// A network between the hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Net {
    Cluster,
    Upstream,
    Storage,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Cables {
    pub cluster: bool,
    pub upstream: bool,
    pub storage: bool,
}

impl Cables {
    pub fn are_plugged(&self, net: Net) -> bool {
        match net {
            Net::Cluster => self.cluster,
            Net::Upstream => self.upstream,
            Net::Storage => self.storage,
        }
    }

    pub fn set(&mut self, net: Net, plugged: bool) {
        match net {
            Net::Cluster => self.cluster = plugged,
            Net::Upstream => self.upstream = plugged,
            Net::Storage => self.storage = plugged,
        }
    }
}

/// What of its memory a host needs for itself.
pub(crate) const OWN_MEMORY_MIB: u64 = 2048;

/// A daemon that runs.
pub(crate) struct Daemon {
    pub pid: Pid,
    pub shutdown: CancellationToken,
}

/// The API's daemon, and its handlers while they take what operators ask.
pub(crate) struct ApiDaemon {
    pub daemon: Daemon,
    pub desk: Option<Desk>,
}

/// What a host is made of, and how it was used before anything happened.
#[derive(Debug, Clone)]
pub(crate) struct Build {
    pub cpus: u32,
    pub has_bmc: bool,
    /// Whether its daemon looks after guests at all.
    pub runs_guests: bool,
    /// Broken for good: nobody can switch it on.
    pub is_broken: bool,
    /// What was measured of a host of another cluster that this one stands for.
    pub measured: Option<Measured>,
}

impl Default for Build {
    fn default() -> Self {
        Build { cpus: 64, has_bmc: true, runs_guests: true, is_broken: false, measured: None }
    }
}

/// The figures of a host with the guests it had then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    pub total_mib: u64,
    pub used_mib: u64,
    pub free_mib: u64,
    pub load: f64,
    pub guests_mib: u64,
}

impl Measured {
    /// The figures with guests of so much memory.
    fn with_guests(&self, guests_mib: u64) -> HostLoad {
        let (more, less) = (
            guests_mib.saturating_sub(self.guests_mib),
            self.guests_mib.saturating_sub(guests_mib),
        );
        HostLoad {
            memory_total_mib: self.total_mib,
            memory_used_mib: (self.used_mib + more).saturating_sub(less),
            memory_free_mib: (self.free_mib + less).saturating_sub(more),
            load: self.load,
        }
    }
}

pub(crate) struct Host {
    pub name: String,
    pub is_coordinator: bool,
    pub build: Build,
    pub memory_mib: u64,
    pub drift_ppm: i64,
    /// How many seconds the wall clock is ahead.
    pub wall_offset: i64,
    pub on: bool,
    pub booted: bool,
    pub frozen: bool,
    /// Counts the times that it was switched on or off: what belongs to an earlier life is void.
    pub life: u64,
    pub last_off: Option<Duration>,
    /// When it was last switched on again.
    pub last_on: Option<Duration>,
    pub cables: Cables,
    pub server_up: bool,
    /// Nothing more can be written to its disk: ZooKeeper stops, and a guest that begins has no
    /// file for its log.
    pub disk_full: bool,
    pub bmc: BmcManner,
    /// Whether its BMC has lied to others since its power was last gone.
    pub bmc_lied: bool,
    pub hypervisor_up: bool,
    pub guests: BTreeMap<Uuid, SimGuest>,
    pub instances: i32,
    pub had_guest: Option<Duration>,
    pub listeners: Vec<mpsc::UnboundedSender<GuestEvent>>,
    pub network: Arc<MemoryNetwork>,
    pub files: Arc<MemoryFiles>,
    pub firewall: Arc<MemoryFirewall>,
    /// No service is installed but the daemons, which have no unit.
    pub services: Arc<ScriptedServices>,
    /// The floating addresses that are here.
    pub addresses: BTreeSet<IpNet>,
    pub daemon: Option<Daemon>,
    pub api: Option<ApiDaemon>,
    pub worker: Option<Daemon>,
    /// Whether somebody stopped the daemon and wants it to stay so.
    pub daemon_stopped: bool,
    pub api_stopped: bool,
    pub worker_stopped: bool,
    /// Whether what runs here is PVC 1.0.3, and whether that is what is installed.
    pub is_legacy: bool,
    pub wants_legacy: bool,
    /// The API of PVC 1.0.3, and itself once it can be asked.
    pub legacy_api: Option<(Pid, Option<Arc<LegacyApi>>)>,
}

impl Host {
    pub fn new(name: String, is_coordinator: bool, memory_mib: u64, drift_ppm: i64) -> Self {
        Host {
            name,
            is_coordinator,
            build: Build::default(),
            memory_mib,
            drift_ppm,
            wall_offset: 0,
            on: false,
            booted: false,
            frozen: false,
            life: 0,
            last_off: None,
            last_on: None,
            cables: Cables { cluster: true, upstream: true, storage: true },
            server_up: true,
            disk_full: false,
            bmc: BmcManner::Works,
            bmc_lied: false,
            hypervisor_up: true,
            guests: BTreeMap::new(),
            instances: 0,
            had_guest: None,
            listeners: Vec::new(),
            network: Arc::new(MemoryNetwork::new()),
            files: Arc::new(MemoryFiles::new()),
            firewall: Arc::new(MemoryFirewall::new()),
            services: Arc::new(ScriptedServices::new()),
            addresses: BTreeSet::new(),
            daemon: None,
            api: None,
            worker: None,
            daemon_stopped: false,
            api_stopped: false,
            worker_stopped: false,
            is_legacy: false,
            wants_legacy: false,
            legacy_api: None,
        }
    }
}

impl Host {
    /// How much memory guests can have here in all.
    pub fn room_mib(&self) -> u64 {
        match &self.build.measured {
            Some(measured) => measured.free_mib + measured.guests_mib,
            None => self.memory_mib.saturating_sub(OWN_MEMORY_MIB),
        }
    }

    pub fn guests_mib(&self) -> u64 {
        self.guests.values().map(|guest| guest.memory_mib).sum()
    }
}

impl State {
    /// Something changed about who reaches whom, or who can do anything.
    pub fn rearranged(&mut self) {
        self.review_zookeeper();
        self.open_gates();
    }

    /// Pulls the plug: processes, guests and addresses are gone at once.
    pub fn power_off(&mut self, host: usize, why: &str) {
        if !self.hosts[host].on {
            return;
        }
        self.note(format!("{}: power off ({why})", self.hosts[host].name));
        let pids: Vec<Pid> = (0..self.processes.len())
            .filter(|pid| self.processes[*pid].host == Some(host))
            .collect();
        for pid in pids {
            self.end_process(pid);
        }
        let guests: Vec<Uuid> = self.hosts[host].guests.keys().copied().collect();
        for vm in guests {
            self.guest_ends(host, vm, "power", true);
        }
        let now = self.now;
        let known = &mut self.hosts[host];
        known.on = false;
        known.booted = false;
        known.frozen = false;
        known.life += 1;
        known.last_off = Some(now);
        known.bmc_lied = false;
        known.daemon = None;
        known.api = None;
        known.legacy_api = None;
        known.worker = None;
        known.listeners.clear();
        known.hypervisor_up = true;
        known.server_up = true;
        known.addresses.clear();
        self.rearranged();
    }

    /// The host boots, and then its services start.
    pub fn power_on(&mut self, host: usize, why: &str) {
        if self.hosts[host].on {
            return;
        }
        if self.hosts[host].build.is_broken {
            return self.note(format!("{}: does not come on ({why})", self.hosts[host].name));
        }
        self.note(format!("{}: power on ({why})", self.hosts[host].name));
        let now = self.now;
        let known = &mut self.hosts[host];
        known.on = true;
        known.last_on = known.last_off.map(|_| now);
        known.life += 1;
        known.daemon_stopped = false;
        known.api_stopped = false;
        known.worker_stopped = false;
        let life = known.life;
        let boots = if self.now.is_zero() { Duration::ZERO } else { self.chance.seconds(30, 90) };
        self.later(boots, move |state| {
            if state.hosts[host].life == life {
                state.booted(host);
            }
        });
    }

    fn booted(&mut self, host: usize) {
        self.note(format!("{}: booted", self.hosts[host].name));
        self.hosts[host].booted = true;
        self.hosts[host].network = self.new_network(host);
        self.hosts[host].firewall = Arc::new(MemoryFirewall::new());
        self.rearranged();
        self.start_daemon(host);
        self.start_api(host);
        self.start_worker(host);
    }

    pub fn reset(&mut self, host: usize) {
        self.truth_of_reset(host);
        self.power_off(host, "reset by itself");
        self.power_on(host, "reset by itself");
    }
}

/// The machine, as its daemon sees it.
pub(crate) struct Machine {
    pub gate: Gate,
    pub host: usize,
}

impl HostPort for Machine {
    fn facts(&self) -> Result<HostFacts, HostError> {
        Ok(HostFacts {
            cpus: self.gate.world.with(|state| state.hosts[self.host].build.cpus),
            kernel: "6.12.0-sim".to_owned(),
            os: "GNU/Linux".to_owned(),
            arch: "x86_64".to_owned(),
        })
    }

    fn load(&self) -> Result<HostLoad, HostError> {
        Ok(self.gate.world.with(|state| {
            let host = &state.hosts[self.host];
            let guests = host.guests_mib();
            if let Some(measured) = &host.build.measured {
                return measured.with_guests(guests);
            }
            let used = match state.nature.mutation {
                Some(Mutation::Boastful) => OWN_MEMORY_MIB,
                Some(Mutation::Modest) => host.memory_mib,
                _ => OWN_MEMORY_MIB + guests,
            };
            HostLoad {
                memory_total_mib: host.memory_mib,
                memory_used_mib: used.min(host.memory_mib),
                memory_free_mib: host.memory_mib.saturating_sub(used),
                load: host.guests.len() as f64 / 4.0,
            }
        }))
    }

    fn interfaces(&self) -> Result<Vec<InterfaceCounters>, HostError> {
        Ok(Vec::new())
    }
}

/// Of all programs, the one that resets the machine is there.
#[async_trait]
impl Exec for Machine {
    async fn run(&self, command: Command) -> Result<Output, ExecError> {
        let resets = command.program == "systemctl"
            && command.args.first().is_some_and(|argument| argument == "reboot");
        if !resets {
            return Err(ExecError::Missing { program: command.program });
        }
        self.gate.call(|state| state.reset(self.host)).await;
        self.gate.pass().await;
        Ok(ScriptedExec::success(""))
    }
}

#[async_trait]
impl Services for Machine {
    async fn state(&self, unit: &str) -> Result<UnitState, ServicesError> {
        self.services().await.state(unit).await
    }

    async fn start(&self, unit: &str) -> Result<(), ServicesError> {
        self.services().await.start(unit).await
    }

    async fn stop(&self, unit: &str) -> Result<(), ServicesError> {
        self.services().await.stop(unit).await
    }

    async fn restart(&self, unit: &str) -> Result<(), ServicesError> {
        self.services().await.restart(unit).await
    }

    async fn set_enabled(&self, unit: &str, enabled: bool) -> Result<(), ServicesError> {
        self.services().await.set_enabled(unit, enabled).await
    }
}

impl Machine {
    async fn services(&self) -> Arc<ScriptedServices> {
        self.gate.call(|state| state.hosts[self.host].services.clone()).await
    }
}

#[cfg(test)]
mod tests {
    use pvc_contracts::machine::{clock_contract, exec_contract, host_contract, random_contract};
    use pvc_contracts::services::{ServicesFixture, services_contract};
    use pvc_testkit::UnitManner;

    use super::*;
    use crate::process::{HostClock, random};
    use crate::state::World;

    #[tokio::test(start_paused = true)]
    async fn a_simulated_machine_keeps_the_contracts() {
        let (world, gates) = World::of_hosts(3);
        // One clock runs fast, one slow.
        for (host, drift_ppm) in [(1, 500), (2, -500)] {
            world.with(|state| state.hosts[host].drift_ppm = drift_ppm);
        }
        for (host, gate) in gates.iter().enumerate() {
            clock_contract(&HostClock { gate: gate.clone(), host: Some(host) }).await;
            let machine = Machine { gate: gate.clone(), host };
            host_contract(&machine);
            exec_contract(&machine).await;
            random_contract(&*random(1, host));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_services_of_a_simulated_host_keep_the_contract() {
        let (world, gates) = World::of_hosts(1);
        let [good, hanging, failing] = ["good.service", "hanging.service", "failing.service"];
        let services = ScriptedServices::new()
            .with(good, UnitManner::RunsAfter(1))
            .with(hanging, UnitManner::Hangs)
            .with(failing, UnitManner::Fails);
        world.with(|state| state.hosts[0].services = Arc::new(services));
        let fixture = ServicesFixture {
            good: good.to_owned(),
            hanging: hanging.to_owned(),
            failing: failing.to_owned(),
        };
        services_contract(Arc::new(Machine { gate: gates[0].clone(), host: 0 }), fixture).await;
    }
}
