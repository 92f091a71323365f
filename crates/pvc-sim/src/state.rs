//! The world as one value: its parts, and what concerns several of them.
//!
//! Everything that is simulated lies in one [`State`] behind one lock, and what happens later waits
//! in the agenda of its [`Run`]. The ports of the daemons look at it and change it; nobody holds it
//! while they wait.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use pvc_model::cluster::Cluster as View;
use pvc_model::storage::VolumeId;
use pvc_testkit::MemoryFirewall;
use tokio::sync::Notify;
use tokio::time::Instant;
use uuid::Uuid;

use crate::daemons::{start_api, start_daemon, start_worker};
use crate::database_cluster::DatabaseMembers;
use crate::guest_networks::{HostNets, NetworkEnds, NetworkTruth, refuse_rules};
use crate::guests::{self, Hypervisors};
use crate::host::{Host, Hosts};
use crate::job_steps::JobSteps;
use crate::jobs::{self, JobEnds, Jobs};
use crate::log::Log;
use crate::nature::Nature;
use crate::network::new_network;
use crate::new_vms::NewVms;
use crate::operators::Answer;
use crate::osd_truth::OsdEnds;
use crate::power::{BmcManner, Bmcs};
use crate::process::{Pid, Processes};
use crate::run::Run;
use crate::scripts::devices_lost;
use crate::sriov::{Functions, new_card};
use crate::storage::Ceph;
use crate::storage_changes::StorageAsk;
use crate::truth::{Sight, Truth};
use crate::uploads::UploadEnds;
use crate::zookeeper::{self, Ensemble};

/// The world, as everybody in it has it.
#[derive(Clone)]
pub struct World(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    state: Mutex<State>,
    sooner: Notify,
    begun: Instant,
}

/// All parts of the world. What one part does by itself is its own; here is what concerns several.
pub(crate) struct State {
    me: Weak<Shared>,
    pub run: Run,
    pub hosts: Hosts,
    pub processes: Processes,
    pub zookeeper: Ensemble,
    pub ceph: Ceph,
    pub hypervisors: Hypervisors,
    pub bmcs: Bmcs,
    pub database_cluster: Option<DatabaseMembers>,
    pub truth: Truth,
    pub job_steps: JobSteps,
    pub jobs: Jobs,
    pub networks: NetworkTruth,
}

impl World {
    pub(crate) fn new(nature: Nature, log: Log, hosts: Vec<Host>) -> World {
        let shared = Arc::new_cyclic(|me| Shared {
            state: Mutex::new(State {
                me: me.clone(),
                run: Run::new(nature, log),
                processes: Processes::default(),
                zookeeper: Ensemble::new(),
                ceph: Ceph::of_hosts(hosts.iter().map(|host| host.name.as_str())),
                hypervisors: Hypervisors::of_hosts(hosts.len()),
                bmcs: Bmcs::of_hosts(hosts.len()),
                database_cluster: match nature.database {
                    true => DatabaseMembers::of_hosts(&hosts),
                    false => None,
                },
                truth: Truth::new(hosts.len()),
                job_steps: JobSteps::default(),
                jobs: Jobs::default(),
                networks: NetworkTruth::default(),
                hosts: Hosts::new(hosts),
            }),
            sooner: Notify::new(),
            begun: Instant::now(),
        });
        let world = World(shared);
        tokio::spawn(world.clone().turn());
        world
    }

    /// Hosts that are on and have nothing to do, and the gate of a program on each.
    #[cfg(test)]
    pub(crate) fn of_hosts(count: usize) -> (World, Vec<crate::process::Gate>) {
        use crate::cluster::{Shape, host_name};
        let host = |index| Host::new(host_name(index), true, 4096, 0);
        let world = World::new(
            Shape::plain(count, 0).nature,
            Log::new(false),
            (0..count).map(host).collect(),
        );
        let gates = (0..count).map(|host| {
            world.with(|state| {
                (state.hosts[host].on, state.hosts[host].booted) = (true, true);
                state.hosts[host].network = new_network(&world, host, state.hosts[host].life);
                let pid = state.processes.start("a program".to_owned(), Some(host));
                crate::process::Gate { world: world.clone(), pid }
            })
        });
        let gates = gates.collect();
        world.with(State::rearranged);
        (world, gates)
    }

    /// Looks at the world, or changes it, at once.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.0.state.lock().expect("the world does not panic");
        state.run.now = self.0.begun.elapsed();
        let first = state.run.first();
        let outcome = act(&mut state);
        if state.run.first() != first {
            self.0.sooner.notify_one();
        }
        outcome
    }

    pub fn now(&self) -> Duration {
        self.0.begun.elapsed()
    }

    /// Has everything in the agenda happen when its time has come.
    #[allow(clippy::disallowed_methods, reason = "the simulation owns time")]
    async fn turn(self) {
        loop {
            let next = self.with(State::run_due);
            let is_due = next.is_some();
            let until = next.map_or_else(Instant::now, |next| self.0.begun + next);
            tokio::select! {
                biased;
                () = self.0.sooner.notified() => {}
                () = tokio::time::sleep_until(until), if is_due => {}
            }
        }
    }
}

impl State {
    pub fn world(&self) -> World {
        World(self.me.upgrade().expect("the state lies in the world"))
    }

    /// Does what is due. When the next is.
    fn run_due(&mut self) -> Option<Duration> {
        while let Some(due) = self.run.next_due() {
            due(self);
        }
        self.run.first()
    }

    // --- The parts, each with what it needs of the others --------------------------------------

    pub fn with_zookeeper<T>(
        &mut self,
        act: impl FnOnce(&mut Ensemble, &mut zookeeper::Around<'_>) -> T,
    ) -> T {
        let mut around = zookeeper::Around {
            run: &mut self.run,
            hosts: &self.hosts,
            processes: &mut self.processes,
            truth: &mut self.truth,
        };
        act(&mut self.zookeeper, &mut around)
    }

    pub fn with_hypervisors<T>(
        &mut self,
        act: impl FnOnce(&mut Hypervisors, &mut guests::Around<'_>) -> T,
    ) -> T {
        let mut around = guests::Around {
            run: &mut self.run,
            hosts: &self.hosts,
            processes: &self.processes,
            zookeeper: &self.zookeeper,
            ceph: &mut self.ceph,
            bmcs: &self.bmcs,
            truth: &mut self.truth,
        };
        act(&mut self.hypervisors, &mut around)
    }

    /// Volumes and guests, which jobs are about.
    pub fn around_jobs(&self) -> jobs::Around<'_> {
        let State { ceph, hypervisors, truth, .. } = self;
        jobs::Around { ceph, hypervisors, truth }
    }

    pub fn job_ends<'a>(&'a self, view: &'a View) -> JobEnds<'a> {
        JobEnds { view, jobs: &self.jobs, around: self.around_jobs(), hosts: &self.hosts }
    }

    pub fn new_vms<'a>(&'a self, view: &'a View) -> NewVms<'a> {
        NewVms::of(view, &self.ceph)
    }

    pub fn osd_ends<'a>(&'a mut self, view: &'a View) -> OsdEnds<'a> {
        let Ceph { osds, osd_truth: truth, .. } = &mut self.ceph;
        OsdEnds { view, hosts: &self.hosts, osds, truth }
    }

    pub fn upload_ends(&self) -> UploadEnds<'_> {
        UploadEnds { ceph: &self.ceph, processes: &self.processes }
    }

    pub fn host_nets(&self) -> HostNets<'_> {
        HostNets { hosts: &self.hosts, hypervisors: &self.hypervisors }
    }

    pub fn network_ends<'a>(&'a self, view: &'a View) -> NetworkEnds<'a> {
        let (nets, truth) = (self.host_nets(), &self.networks);
        let are_played = self.run.nature.networks > 0;
        NetworkEnds { view, nets, truth, are_played, now: self.run.now }
    }

    pub fn functions(&self) -> Functions<'_> {
        let count = self.run.nature.functions;
        Functions { hosts: &self.hosts, hypervisors: &self.hypervisors, count }
    }

    /// Records that something was found that must never be, if it was.
    fn found(&mut self, rule: &str, wrong: Option<String>) {
        if let Some(what) = wrong {
            self.truth.violate(&self.run, rule, what);
        }
    }

    /// Takes notice of the jobs of `view`.
    pub fn look_at_jobs(&mut self, view: &View) {
        let State { ceph, hypervisors, truth, .. } = self;
        self.jobs.look(view, &jobs::Around { ceph, hypervisors, truth });
    }

    /// The contents of an upload have got the name of this volume.
    pub fn contents_named(&mut self, volume: &VolumeId) {
        let Ceph { uploads, volumes, .. } = &mut self.ceph;
        let wrong = uploads.contents_named(&self.run, volumes, volume);
        self.found("uploads", wrong);
    }

    /// The links of a host have changed, or what is plugged into them.
    pub fn links_changed(&mut self, host: usize) {
        if self.run.nature.networks > 0 && self.hosts[host].booted {
            let wrong = self.networks.wrong_ports(self.host_nets(), host);
            self.found("ports", wrong);
        }
    }

    /// The program `pid` of a host has loaded the table of networks, or removed it.
    pub fn firewall_loaded(&mut self, host: usize, pid: Pid) {
        if self.run.nature.networks == 0 {
            return;
        }
        self.networks.look_at_recorded(self.zookeeper.take_recorded_networks());
        let nets = HostNets { hosts: &self.hosts, hypervisors: &self.hypervisors };
        for wrong in self.networks.firewall_loaded(nets, host, pid) {
            self.truth.violate(&self.run, "rules", wrong);
        }
        self.links_changed(host);
    }

    /// Looks whether every host whose daemon has been well for a while has what is recorded.
    pub fn look_at_networks(&mut self) {
        let now = self.run.now;
        if self.run.nature.networks == 0 || !self.networks.is_due(now) {
            return;
        }
        for host in 0..self.hosts.len() {
            // One that was told to stop keeps no networks any more, and lives on until somebody has
            // taken the primary role over, or a minute is over.
            let daemon = self.hosts[host].daemon.as_ref();
            let daemon = daemon.filter(|own| !own.shutdown.is_cancelled()).map(|own| own.pid);
            let client = daemon.and_then(|pid| self.processes[pid].client);
            let lag = client.map(|client| self.zookeeper.lag_of(client));
            let nets = HostNets { hosts: &self.hosts, hypervisors: &self.hypervisors };
            self.networks.look_at_host(nets, host, lag, now);
            let well = self.judge(|truth, sight| truth.well_since(sight, host));
            let well = well.filter(|_| daemon.is_some());
            let late = self.networks.late(self.host_nets(), host, well, now);
            self.found("networks", late);
        }
    }

    /// Judges what a daemon has done to OSDs.
    pub fn judge_osds(&mut self) {
        let Ceph { osds, osd_truth, .. } = &mut self.ceph;
        let wrong = osd_truth.judge(osds, &self.hosts);
        self.found("osds", wrong);
    }

    /// Takes notice of the answer to an ask about the storage that was begun at this time.
    pub fn storage_answered(&mut self, ask: &StorageAsk, begun: Duration, answer: &Answer) {
        let wrong = self.ceph.changes.answered(ask, begun, answer);
        self.found("storage", wrong);
    }

    /// Judges what happens by all that there is.
    pub fn judge<T>(&mut self, judge: impl FnOnce(&mut Truth, &mut Sight<'_>) -> T) -> T {
        let mut sight = Sight {
            run: &mut self.run,
            hosts: &self.hosts,
            processes: &self.processes,
            zookeeper: &self.zookeeper,
            ceph: &self.ceph,
            hypervisors: &self.hypervisors,
            bmcs: &self.bmcs,
        };
        judge(&mut self.truth, &mut sight)
    }

    // --- What concerns several of them ---------------------------------------------------------

    /// Something changed about who reaches whom, or who can do anything.
    pub fn rearranged(&mut self) {
        self.with_zookeeper(Ensemble::review);
        self.open_gates();
    }

    /// Lets every process go on that can again.
    fn open_gates(&mut self) {
        for pid in 0..self.processes.len() {
            let process = &mut self.processes[pid];
            if !process.is_waited_for() || !process.runs(&self.hosts) {
                continue;
            }
            for story_action in process.thaw(self.run.now) {
                story_action(self);
            }
            self.processes[pid].open();
        }
    }

    /// Ends the process as `kill -9` does: it does nothing more.
    pub fn end_process(&mut self, pid: Pid) {
        if !self.processes[pid].end() {
            return;
        }
        for host in self.hosts.iter() {
            if host.daemon.as_ref().is_some_and(|daemon| daemon.pid == pid) {
                host.programs.leave_behind();
            }
        }
        self.with_hypervisors(|hypervisors, around| hypervisors.migrations_of_ended(around, pid));
        if let Some(client) = self.processes[pid].client {
            self.zookeeper.process_ended(client);
        }
    }

    /// Pulls the plug: processes, guests and addresses are gone at once.
    pub fn power_off(&mut self, host: usize, why: &str) {
        if !self.hosts[host].on {
            return;
        }
        self.run.note(format!("{}: power off ({why})", self.hosts[host].name));
        for pid in self.processes.of_host(host) {
            self.end_process(pid);
        }
        let guests: Vec<Uuid> = self.hypervisors[host].guests.keys().copied().collect();
        for vm in guests {
            self.with_hypervisors(|hypervisors, around| {
                hypervisors.end_guest(around, host, vm, "power", true);
            });
        }
        devices_lost(&mut self.run, host, &self.hosts[host]);
        self.hosts[host].loses_power(self.run.now);
        self.hypervisors[host].loses_power();
        self.networks.host_lost(host);
        self.ceph.osds.node_off(&self.hosts[host].name);
        if let Some(database) = &self.database_cluster {
            database.host_lost(&mut self.run, &self.hosts[host].name);
        }
        self.bmcs[host].has_lied = false;
        self.rearranged();
    }

    /// The host boots, and then its services start.
    pub fn power_on(&mut self, host: usize, why: &str) {
        let known = &mut self.hosts[host];
        if known.on {
            return;
        }
        if known.build.is_broken {
            return self.run.note(format!("{}: does not come on ({why})", known.name));
        }
        self.run.note(format!("{}: power on ({why})", known.name));
        let now = self.run.now;
        known.gets_power(now);
        let life = known.life;
        let boots = if now.is_zero() { Duration::ZERO } else { self.run.chance.seconds(30, 90) };
        self.run.later(boots, move |state| {
            if state.hosts[host].life == life {
                state.booted(host);
            }
        });
    }

    fn booted(&mut self, host: usize) {
        let world = self.world();
        let known = &mut self.hosts[host];
        self.run.note(format!("{}: booted", known.name));
        known.booted = true;
        self.ceph.osds.node_on(&known.name);
        known.network = new_network(&world, host, known.life);
        known.card = new_card();
        known.firewall = Arc::new(MemoryFirewall::new());
        let refused = known.refused_rule.clone();
        refuse_rules(known, refused);
        self.rearranged();
        start_daemon(self, host);
        start_api(self, host);
        start_worker(self, host);
    }

    pub fn reset(&mut self, host: usize) {
        self.judge(|truth, sight| truth.of_reset(sight, host));
        self.power_off(host, "reset by itself");
        self.power_on(host, "reset by itself");
    }

    /// Whether the machine is broken, and its node was removed: nobody repairs it any more.
    pub fn is_gone(&self, host: usize) -> bool {
        let known = &self.hosts[host];
        known.build.is_broken && self.truth.orders.is_removed(&known.name)
    }

    /// Undoes every fault, but of machines that are gone for good.
    pub fn heal(&mut self) {
        self.run.note("-- everything is well again");
        self.ceph.silent = false;
        self.ceph.uploads.still.heal();
        self.ceph.changes.still.heal();
        self.job_steps.heal();
        if let Some(database) = &self.database_cluster {
            database.answers();
        }
        self.with_zookeeper(Ensemble::let_writes_go);
        self.hypervisors.calm_guests();
        self.hypervisors.failing.clear();
        for host in 0..self.hosts.len() {
            if self.is_gone(host) {
                continue;
            }
            self.with_zookeeper(|zookeeper, around| zookeeper.lag_as_usual(around, host));
            self.networks.take_rules(&mut self.hosts, host, self.run.now);
            self.hosts[host].heals();
            self.bmcs[host].manner = BmcManner::Works;
            if let Some(daemon) = &self.hosts[host].daemon {
                self.processes[daemon.pid].frozen = false;
            }
            if !self.hypervisors[host].is_up {
                self.hypervisors[host].set_up(true);
            }
            self.power_on(host, "everything is well again");
            start_daemon(self, host);
            start_api(self, host);
            start_worker(self, host);
        }
        self.rearranged();
    }
}
