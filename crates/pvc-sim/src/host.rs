//! The servers: power, cables, what runs on them, and what they are.

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pvc_model::link::IpNet;
use pvc_ports::{
    Command, Exec, ExecError, Host as HostPort, HostError, HostFacts, HostLoad, HostUsage,
    InterfaceCounters, Output, Services, ServicesError, UnitState,
};
use pvc_testkit::legacy::LegacyApi;
use pvc_testkit::{
    FakeHost, MappedVolumes, MemoryFiles, MemoryFirewall, MemoryNetwork, MemorySriov, ScriptedExec,
    ScriptedPrograms, ScriptedServices,
};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::nature::Mutation;
use crate::operators::Desk;
use crate::process::{Gate, Pid};
use crate::sriov::new_card;
use crate::state::{State, World};

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

/// Memory that a host needs for itself, in MiB.
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

/// Hardware of a host, and how it was used before anything happened.
#[derive(Debug, Clone)]
pub(crate) struct Build {
    pub cpus: u32,
    pub has_bmc: bool,
    /// Whether its daemon looks after guests at all.
    pub runs_guests: bool,
    /// Whether nobody can switch it on before it is repaired.
    pub is_broken: bool,
    /// Measurements of the host of another cluster that this one stands for.
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
    /// Seconds that the wall clock is ahead.
    pub wall_offset: i64,
    pub on: bool,
    pub booted: bool,
    pub frozen: bool,
    /// Counts the times that it was switched on or off: what belongs to an earlier life is void.
    pub life: u64,
    pub last_off: Option<Duration>,
    /// Time at which the host was last switched on again.
    pub last_on: Option<Duration>,
    pub cables: Cables,
    pub server_up: bool,
    /// Whether nothing more can be written to its disk: ZooKeeper stops, and a guest that begins
    /// has no file for its log.
    pub disk_full: bool,
    pub network: Arc<MemoryNetwork>,
    /// Its SR-IOV card.
    pub card: Arc<MemorySriov>,
    pub files: Arc<MemoryFiles>,
    /// Volumes that its kernel has as devices.
    pub mapped: MappedVolumes,
    pub firewall: Arc<MemoryFirewall>,
    /// Programs that its daemon has started.
    pub programs: ScriptedPrograms,
    /// No service is installed but the daemons, which have no unit.
    pub services: Arc<ScriptedServices>,
    /// The floating addresses that are here, but for those in networks of VMs.
    pub addresses: BTreeSet<IpNet>,
    /// Addresses of the primary in networks of VMs that are here, each with its bridge.
    pub gateways: BTreeSet<(String, IpNet)>,
    /// Words that make its kernel refuse a rule.
    pub refused_rule: Option<String>,
    pub daemon: Option<Daemon>,
    pub api: Option<ApiDaemon>,
    pub worker: Option<Daemon>,
    /// Whether somebody stopped the daemon and wants it to stay so.
    pub daemon_stopped: bool,
    pub api_stopped: bool,
    pub worker_stopped: bool,
    /// Whether what runs here is PVC 1.0.3, and whether that is what is installed.
    pub is_legacy: bool,
    pub installs_legacy: bool,
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
            network: Arc::new(MemoryNetwork::new()),
            card: new_card(),
            files: Arc::new(MemoryFiles::new()),
            mapped: MappedVolumes::default(),
            firewall: Arc::new(MemoryFirewall::new()),
            programs: ScriptedPrograms::new(),
            services: Arc::new(ScriptedServices::new()),
            addresses: BTreeSet::new(),
            gateways: BTreeSet::new(),
            refused_rule: None,
            daemon: None,
            api: None,
            worker: None,
            daemon_stopped: false,
            api_stopped: false,
            worker_stopped: false,
            is_legacy: false,
            installs_legacy: false,
            legacy_api: None,
        }
    }
}

impl Host {
    /// Memory that guests can have here in all, in MiB.
    pub fn room_mib(&self) -> u64 {
        match &self.build.measured {
            Some(measured) => measured.free_mib + measured.guests_mib,
            None => self.memory_mib.saturating_sub(OWN_MEMORY_MIB),
        }
    }

    pub fn ask_daemon_to_stop(&self) {
        if let Some(daemon) = &self.daemon {
            daemon.shutdown.cancel();
        }
    }

    pub fn ask_api_to_stop(&self) {
        if let Some(api) = &self.api {
            api.daemon.shutdown.cancel();
        }
    }

    pub fn ask_worker_to_stop(&self) {
        if let Some(worker) = &self.worker {
            worker.shutdown.cancel();
        }
    }

    /// Whether programs can be started there.
    pub fn is_up(&self) -> bool {
        self.on && self.booted
    }

    /// Takes the host's power, and with it what ran there. Guests are for their hypervisor to end.
    pub fn loses_power(&mut self, now: Duration) {
        self.on = false;
        self.booted = false;
        self.frozen = false;
        self.life += 1;
        self.last_off = Some(now);
        self.daemon = None;
        self.api = None;
        self.legacy_api = None;
        self.worker = None;
        self.server_up = true;
        self.addresses.clear();
        self.gateways.clear();
        self.mapped = MappedVolumes::default();
        self.programs.lose_power();
    }

    /// Gives the host power: it begins to boot. Whatever was stopped starts with it.
    pub fn gets_power(&mut self, now: Duration) {
        self.on = true;
        self.last_on = self.last_off.map(|_| now);
        self.life += 1;
        self.are_wanted();
    }

    /// Nobody wants any of its daemons to stay stopped any more.
    fn are_wanted(&mut self) {
        self.daemon_stopped = false;
        self.api_stopped = false;
        self.worker_stopped = false;
    }

    /// Undoes every fault but that it has no power.
    pub fn heals(&mut self) {
        self.cables = Cables { cluster: true, upstream: true, storage: true };
        self.frozen = false;
        self.server_up = true;
        self.disk_full = false;
        self.refused_rule = None;
        self.build.is_broken = false;
        self.are_wanted();
    }
}

/// The servers, by their numbers.
pub(crate) struct Hosts(Vec<Host>);

impl Hosts {
    pub fn new(hosts: Vec<Host>) -> Hosts {
        Hosts(hosts)
    }

    pub fn named(&self, name: &str) -> Option<usize> {
        self.0.iter().position(|host| host.name == name)
    }

    pub fn coordinators(&self) -> usize {
        self.0.iter().filter(|host| host.is_coordinator).count()
    }

    /// A peer of PVC 1.0.3 places VMs by itself, and knows neither of the rules about that.
    pub fn have_legacy(&self) -> bool {
        self.0.iter().any(|host| host.is_legacy)
    }
}

impl Deref for Hosts {
    type Target = [Host];

    fn deref(&self) -> &[Host] {
        &self.0
    }
}

impl DerefMut for Hosts {
    fn deref_mut(&mut self) -> &mut [Host] {
        &mut self.0
    }
}

/// The machine, as its daemon sees it.
pub(crate) struct Machine {
    gate: Gate,
    host: usize,
    figures: FakeHost,
    exec: ScriptedExec,
}

impl Machine {
    pub fn new(gate: Gate, host: usize) -> Self {
        let exec = programs(gate.world.clone(), host);
        Machine { gate, host, figures: FakeHost::new(), exec }
    }

    /// A test of fio, which takes the time that it is to take. The volume is filled before that
    /// time is over.
    async fn measure(&self, command: &Command) -> Result<Output, ExecError> {
        let time = command.args.iter().find_map(|it| it.strip_prefix("--runtime=")?.parse().ok());
        let test = command.args.iter().find_map(|it| it.strip_prefix("--name="));
        let note = format!("fio measures {}", test.unwrap_or_default());
        self.gate.call(|state| state.run.note(note)).await;
        let is_timed = command.args.iter().any(|argument| argument == "--time_based");
        let seconds: u64 = time.unwrap_or_default();
        self.gate.sleep(Duration::from_secs(if is_timed { seconds } else { seconds / 5 })).await;
        Ok(ScriptedExec::success(FIO_REPORT))
    }

    async fn services(&self) -> Arc<ScriptedServices> {
        self.gate.call(|state| state.hosts[self.host].services.clone()).await
    }
}

/// Report of fio, as far as it is needed.
const FIO_REPORT: &str = r#"{"jobs":[{"error":0,"read":{"bw_bytes":1,"iops":2,"io_bytes":3},
    "write":{"bw_bytes":4,"iops":5,"io_bytes":67108864}}]}"#;

/// The one program that there is beside fio: the one that resets the machine.
fn programs(world: World, host: usize) -> ScriptedExec {
    ScriptedExec::new(move |command| {
        let resets = command.program == "systemctl"
            && command.args.first().is_some_and(|argument| argument == "reboot");
        if !resets {
            return Err(ExecError::Missing { program: command.program.clone() });
        }
        world.with(|state| state.reset(host));
        Ok(ScriptedExec::success(""))
    })
}

/// The figures of a host with its guests, as it says them itself.
fn load(state: &State, host: usize) -> HostLoad {
    let (known, hypervisor) = (&state.hosts[host], &state.hypervisors[host]);
    let guests = hypervisor.guests_mib();
    if let Some(measured) = &known.build.measured {
        return measured.with_guests(guests);
    }
    let used = match state.run.nature.mutation {
        Some(Mutation::Boastful) => OWN_MEMORY_MIB,
        Some(Mutation::Modest) => known.memory_mib,
        _ => OWN_MEMORY_MIB + guests,
    };
    HostLoad {
        memory_total_mib: known.memory_mib,
        memory_used_mib: used.min(known.memory_mib),
        memory_free_mib: known.memory_mib.saturating_sub(used),
        load: hypervisor.guests.len() as f64 / 4.0,
    }
}

impl HostPort for Machine {
    fn facts(&self) -> Result<HostFacts, HostError> {
        self.figures.set_cpus(self.gate.world.with(|state| state.hosts[self.host].build.cpus));
        self.figures.facts()
    }

    fn load(&self) -> Result<HostLoad, HostError> {
        self.figures.set_load(self.gate.world.with(|state| load(state, self.host)));
        self.figures.load()
    }

    fn usage(&self, processes: &[&str], interface: Option<&str>) -> Result<HostUsage, HostError> {
        self.figures.usage(processes, interface)
    }

    fn interfaces(&self) -> Result<Vec<InterfaceCounters>, HostError> {
        self.figures.interfaces()
    }
}

#[async_trait]
impl Exec for Machine {
    async fn run(&self, command: Command) -> Result<Output, ExecError> {
        self.gate.pass().await;
        if command.program == "fio" {
            return self.measure(&command).await;
        }
        let output = self.exec.run(command).await;
        // Whoever has reset the machine has ended with it.
        self.gate.pass().await;
        output
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

#[cfg(test)]
mod tests {
    use pvc_contracts::machine::{clock_contract, exec_contract, host_contract, random_contract};
    use pvc_contracts::services::{ServicesFixture, services_contract};
    use pvc_testkit::UnitManner;

    use super::*;
    use crate::process::{HostClock, random};

    #[tokio::test(start_paused = true)]
    async fn a_simulated_machine_keeps_the_contracts() {
        let (world, gates) = World::of_hosts(3);
        // One clock runs fast, one slow.
        for (host, drift_ppm) in [(1, 500), (2, -500)] {
            world.with(|state| state.hosts[host].drift_ppm = drift_ppm);
        }
        for (host, gate) in gates.iter().enumerate() {
            clock_contract(&HostClock { gate: gate.clone(), host: Some(host) }).await;
            let machine = Machine::new(gate.clone(), host);
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
        services_contract(Arc::new(Machine::new(gates[0].clone(), 0)), fixture).await;
    }
}
