//! The hypervisors: guests that boot, obey or do not, crash, and move between hosts.
//!
//! A guest that moves runs on its old host and is there on the new one, held, until the last
//! moment; then it runs on the new one, or is held there until it is told to go on. If only the
//! word of that gets lost, its old hypervisor lets it go on as well: of one that runs there,
//! whoever sent it has to end one of the two, the one duplicate that is nobody's fault. If the old
//! hypervisor breaks down in that moment, or who talks to both is gone, the guest is held on its
//! old host. What is held on the new one is older than the volumes once it has gone on at the old
//! one.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut, Index, IndexMut};
use std::time::Duration;

use async_trait::async_trait;
use pvc_domain::Device;
use pvc_ports::{
    DeviceChange, Guest, GuestEvent, GuestRun, GuestStats, Hypervisor, HypervisorError,
    HypervisorFacts, Migration, MigrationJob, MigrationProgress, VncAddress,
};
use pvc_testkit::{MemoryGuest, MemoryHypervisor, migration_progress};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::actions::StartFailure;
use crate::host::Hosts;
use crate::power::Bmcs;
use crate::process::{Gate, Pid, Processes};
use crate::run::Run;
use crate::state::State;
use crate::storage::{Ceph, ClientId, Lock};
use crate::truth::{Sight, Truth};
use crate::zookeeper::Ensemble;

/// Time for which two hypervisors are out of touch until each gives the other up.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Time for which a program waits for a hypervisor on another host that does not answer.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Time before its end in which a migration gets through, whoever asked for it.
const NEARLY_THERE: Duration = Duration::from_secs(1);

pub(crate) struct SimGuest {
    kept: MemoryGuest,
    pub memory_mib: u64,
    pub vcpus: u32,
    /// Time since which the guest is on this host.
    pub since: Duration,
    /// Client that the guest is to Ceph.
    pub client: ClientId,
    /// Whether the guest has come from another host, or is coming, and has not run here.
    pub is_incoming: bool,
    /// Whether nothing of the guest is missing here any more.
    pub is_whole: bool,
    /// Whether the guest has gone on elsewhere since it was copied to here.
    pub is_stale: bool,
    /// Whether the guest should have ended when it arrived elsewhere, and nobody knows.
    pub is_leftover: bool,
}

impl SimGuest {
    /// Whether its CPUs have run on this host, or it is held after that: neither on its way here
    /// nor just made.
    pub fn is_alive(&self) -> bool {
        !self.is_incoming && self.run != GuestRun::Created
    }
}

impl Deref for SimGuest {
    type Target = MemoryGuest;

    fn deref(&self) -> &MemoryGuest {
        &self.kept
    }
}

impl DerefMut for SimGuest {
    fn deref_mut(&mut self) -> &mut MemoryGuest {
        &mut self.kept
    }
}

/// Behaviour of a guest for the whole run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Manner {
    pub ignores_shutdown: bool,
    pub shutdown_ms: u64,
    pub start_ms: u64,
    pub migration_ms: u64,
    pub never_converges: bool,
    /// Probability, in a thousand, that the guest dies while it is being started.
    pub dies_at_start: u64,
}

impl Default for Manner {
    fn default() -> Self {
        Manner {
            ignores_shutdown: false,
            shutdown_ms: 4000,
            start_ms: 300,
            migration_ms: 4000,
            never_converges: false,
            dies_at_start: 0,
        }
    }
}

/// The hypervisor of one host: the testkit's, with what the world wants to know of it.
#[derive(Default)]
pub(crate) struct HostHypervisor {
    inner: MemoryHypervisor<SimGuest>,
    /// Time at which the last guest of the host ended.
    pub had_guest: Option<Duration>,
}

impl Deref for HostHypervisor {
    type Target = MemoryHypervisor<SimGuest>;

    fn deref(&self) -> &MemoryHypervisor<SimGuest> {
        &self.inner
    }
}

impl DerefMut for HostHypervisor {
    fn deref_mut(&mut self) -> &mut MemoryHypervisor<SimGuest> {
        &mut self.inner
    }
}

impl HostHypervisor {
    pub fn guests_mib(&self) -> u64 {
        self.guests.values().map(|guest| guest.memory_mib).sum()
    }

    /// Whether the VM runs here, or is held after it ran.
    pub fn has_alive(&self, vm: Uuid) -> bool {
        self.guests.get(&vm).is_some_and(SimGuest::is_alive)
    }

    /// Ends the guests: the host has lost power.
    pub fn loses_power(&mut self) {
        self.hang_up();
        self.is_up = true;
    }
}

/// The hypervisors of all hosts, by the numbers of these, and the guests on their way between them.
pub(crate) struct Hypervisors {
    hosts: Vec<HostHypervisor>,
    pub manners: BTreeMap<Uuid, Manner>,
    /// Starts that will come to nothing.
    pub failing: BTreeMap<Uuid, FailingStarts>,
    jobs: BTreeMap<u64, Job>,
    next: u64,
    pub arrived: u64,
    pub lost_words: u64,
}

/// A guest that is being made.
struct Coming {
    host: usize,
    /// The life of the host in which that was asked for.
    life: u64,
    vm: Uuid,
    xml: String,
    dies: bool,
    failure: Option<StartFailure>,
    answer: oneshot::Sender<Result<(), HypervisorError>>,
}

/// The next starts of a VM that come to nothing.
pub(crate) struct FailingStarts {
    /// `None`: anywhere.
    pub host: Option<usize>,
    pub times: u32,
    pub how: StartFailure,
}

struct Job {
    vm: Uuid,
    from: usize,
    to: usize,
    from_instance: i32,
    to_instance: i32,
    by: Pid,
    /// Whether the guest is to be held where it arrives.
    held: bool,
    begun: Duration,
    takes: Duration,
    never_converges: bool,
    /// Time since which the two hosts are out of touch.
    apart: Option<Duration>,
    ended: Option<Result<(), String>>,
    waiting: Vec<oneshot::Sender<()>>,
}

impl Index<usize> for Hypervisors {
    type Output = HostHypervisor;

    fn index(&self, host: usize) -> &HostHypervisor {
        &self.hosts[host]
    }
}

impl IndexMut<usize> for Hypervisors {
    fn index_mut(&mut self, host: usize) -> &mut HostHypervisor {
        &mut self.hosts[host]
    }
}

/// Parts of the world that hypervisors use.
pub(crate) struct Around<'a> {
    pub run: &'a mut Run,
    pub hosts: &'a Hosts,
    pub processes: &'a Processes,
    pub zookeeper: &'a Ensemble,
    pub ceph: &'a mut Ceph,
    pub bmcs: &'a Bmcs,
    pub truth: &'a mut Truth,
}

impl Around<'_> {
    fn judge<T>(
        &mut self,
        hypervisors: &Hypervisors,
        judge: impl FnOnce(&mut Truth, &mut Sight<'_>) -> T,
    ) -> T {
        let mut sight = Sight {
            run: &mut *self.run,
            hosts: self.hosts,
            processes: self.processes,
            zookeeper: self.zookeeper,
            ceph: &*self.ceph,
            hypervisors,
            bmcs: self.bmcs,
        };
        judge(self.truth, &mut sight)
    }

    /// Has something happen to the hypervisors after `delay`.
    fn later(
        &mut self,
        delay: Duration,
        act: impl FnOnce(&mut Hypervisors, &mut Around<'_>) + Send + 'static,
    ) {
        self.run.later(delay, move |state| state.with_hypervisors(act));
    }

    /// Every guest that begins on a host has a log there.
    fn log_file(&self, host: usize, name: &str) -> Result<(), HypervisorError> {
        match self.hosts[host].disk_full {
            true => Err(refused(&format!(
                "unable to open /var/log/libvirt/qemu/{name}.log: No space left on device"
            ))),
            false => Ok(()),
        }
    }
}

fn refused(why: &str) -> HypervisorError {
    HypervisorError::Refused { why: why.to_owned() }
}

fn away() -> HypervisorError {
    HypervisorError::Unreachable { why: "connection refused".to_owned() }
}

impl Hypervisors {
    pub fn of_hosts(hosts: usize) -> Hypervisors {
        Hypervisors {
            hosts: (0..hosts).map(|_| HostHypervisor::default()).collect(),
            manners: BTreeMap::new(),
            failing: BTreeMap::new(),
            jobs: BTreeMap::new(),
            next: 0,
            arrived: 0,
            lost_words: 0,
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &HostHypervisor> {
        self.hosts.iter()
    }

    pub fn manner(&self, vm: Uuid) -> Manner {
        self.manners.get(&vm).copied().unwrap_or_default()
    }

    fn new_guest(
        &mut self,
        around: &mut Around<'_>,
        host: usize,
        vm: Uuid,
        name: String,
        xml: String,
        run: GuestRun,
    ) -> i32 {
        let summary = pvc_domain::summary(&xml).ok();
        let (memory_mib, vcpus) =
            summary.map_or((0, 1), |domain| (domain.memory_mib, domain.vcpus));
        let client = around.ceph.new_client();
        let kept = self.hosts[host].new_guest(name, xml, run);
        let instance = kept.instance;
        let is_incoming = run == GuestRun::Arriving;
        let guest = SimGuest {
            kept,
            memory_mib,
            vcpus,
            since: around.run.now,
            client,
            is_incoming,
            is_whole: !is_incoming,
            is_stale: false,
            is_leftover: false,
        };
        self.hosts[host].guests.insert(vm, guest);
        instance
    }

    /// Completes the making of a guest, or fails it.
    fn comes_up(&mut self, around: &mut Around<'_>, coming: Coming) {
        let known = &around.hosts[coming.host];
        if known.life != coming.life {
            return;
        }
        if known.frozen {
            return around.later(Duration::from_secs(1), move |hypervisors, around| {
                hypervisors.comes_up(around, coming)
            });
        }
        let made = match coming.failure {
            _ if !self.hosts[coming.host].is_up => Err(away()),
            Some(StartFailure::Refused) => Err(refused("internal error: the story wants it so")),
            Some(StartFailure::Dies) => {
                Err(HypervisorError::Died { why: "killed by the story".to_owned() })
            }
            None if coming.dies => {
                Err(HypervisorError::Died { why: "killed by chance".to_owned() })
            }
            None => self.start_guest(around, coming.host, coming.vm, &coming.xml),
        };
        let _ = coming.answer.send(made); // whoever asked for it may have ended
    }

    /// Makes a guest that waits to be let run, or says why not.
    pub fn start_guest(
        &mut self,
        around: &mut Around<'_>,
        host: usize,
        vm: Uuid,
        xml: &str,
    ) -> Result<(), HypervisorError> {
        if self.hosts[host].guests.contains_key(&vm) {
            return Ok(());
        }
        let domain = pvc_domain::summary(xml).map_err(|error| refused(&error.to_string()))?;
        if domain.uuid != vm {
            return Err(refused("the XML describes another guest"));
        }
        let name = domain.name.clone();
        around.log_file(host, &name)?;
        for volume in domain.volumes() {
            if around.ceph.volumes.locks(&volume).is_err() {
                let why = format!("error opening image {volume}: No such file or directory");
                around.run.note(format!(
                    "{}: guest {name} does not start: {why}",
                    around.hosts[host].name
                ));
                return Err(refused(&why));
            }
        }
        self.new_guest(around, host, vm, name, xml.to_owned(), GuestRun::Created);
        self.hosts[host].announce(GuestEvent::Changed(vm));
        Ok(())
    }

    /// Locks the volumes that a guest writes to, as soon as it runs. Those that guests share are
    /// not locked.
    fn take_volumes(
        &mut self,
        around: &mut Around<'_>,
        host: usize,
        vm: Uuid,
    ) -> Result<(), HypervisorError> {
        let guest = self.hosts[host].guest(vm)?;
        let (client, name) = (guest.client, guest.name.clone());
        let domain =
            pvc_domain::summary(&guest.xml).map_err(|error| refused(&error.to_string()))?;
        for volume in domain.own_volumes() {
            if let Err(why) = around.ceph.take(volume, &Lock { client, host }) {
                around.run.note(format!(
                    "{}: guest {name} does not start: {why}",
                    around.hosts[host].name
                ));
                around.ceph.release(client);
                return Err(refused(&why));
            }
        }
        Ok(())
    }

    /// Lets a guest run that was made, or is held, by whomever. One that is not whole yet is its
    /// migration's.
    pub fn resume_guest(
        &mut self,
        around: &mut Around<'_>,
        host: usize,
        vm: Uuid,
    ) -> Result<(), HypervisorError> {
        let Some(was) = self.hosts[host].waits_to_run(vm)? else { return Ok(()) };
        if was == GuestRun::Leaving && self.is_migrating(host, vm) {
            return Err(refused("a migration has the guest"));
        }
        let guest = self.hosts[host].guest(vm)?;
        let (name, client) = (guest.name.clone(), guest.client);
        let (is_incoming, is_stale) = (guest.is_incoming, guest.is_stale);
        if is_stale {
            let here = around.hosts[host].name.clone();
            let what =
                format!("VM {name} goes on at {here} with memory that is older than its volumes");
            around.truth.violate(around.run, "I1", what);
        }
        if was == GuestRun::Created {
            around.judge(self, |truth, sight| truth.of_start(sight, host, vm, false));
            self.take_volumes(around, host, vm)?;
            around
                .run
                .note(format!("{}: guest {name} runs (client.{client})", around.hosts[host].name));
            *around.truth.boots.entry(vm).or_default() += 1;
            let now = around.run.now;
            self.hosts[host].guest(vm)?.since = now;
        } else {
            if is_incoming || was == GuestRun::Leaving {
                around.judge(self, |truth, sight| truth.of_start(sight, host, vm, true));
            }
            around.run.note(format!("{}: guest {name} goes on", around.hosts[host].name));
        }
        self.goes_on(host, vm);
        Ok(())
    }

    /// Lets the guest run: what other hosts hold of it is worth nothing any more.
    fn goes_on(&mut self, host: usize, vm: Uuid) {
        for other in (0..self.hosts.len()).filter(|other| *other != host) {
            if let Some(copy) =
                self.hosts[other].guests.get_mut(&vm).filter(|copy| copy.is_incoming)
            {
                copy.is_stale = true;
            }
        }
        if let Some(guest) = self.hosts[host].guests.get_mut(&vm) {
            (guest.run, guest.is_incoming) = (GuestRun::Running, false);
        }
        self.hosts[host].announce(GuestEvent::Changed(vm));
    }

    fn is_migrating(&self, host: usize, vm: Uuid) -> bool {
        self.jobs.values().any(|job| job.vm == vm && job.from == host && job.ended.is_none())
    }

    /// A guest is gone. With `leaves_lock` its volumes stay locked: nobody was there to let go of
    /// them.
    pub fn end_guest(
        &mut self,
        around: &mut Around<'_>,
        host: usize,
        vm: Uuid,
        why: &str,
        leaves_lock: bool,
    ) {
        let Some(guest) = self.hosts[host].guests.remove(&vm) else { return };
        if guest.is_alive() || guest.is_incoming {
            self.hosts[host].had_guest = Some(around.run.now);
        }
        match leaves_lock {
            true => around.ceph.client_died(around.run, guest.client),
            false => around.ceph.release(guest.client),
        }
        if guest.is_alive() {
            around
                .run
                .note(format!("{}: guest {} ends ({why})", around.hosts[host].name, guest.name));
        }
        self.hosts[host].announce(GuestEvent::Changed(vm));
    }

    /// The guest dies by itself, wherever it runs.
    pub fn crash_guest(&mut self, around: &mut Around<'_>, vm: Uuid) {
        let host = (0..self.hosts.len()).find(|host| self.hosts[*host].has_alive(vm));
        if let Some(host) = host.filter(|host| !around.hosts[*host].frozen) {
            let leaves_lock = around.run.chance.happens(300);
            self.end_guest(around, host, vm, "crash", leaves_lock);
        }
    }

    fn press_power(
        &mut self,
        around: &mut Around<'_>,
        host: usize,
        vm: Uuid,
    ) -> Result<(), HypervisorError> {
        let Some(guest) = self.hosts[host].guests.get(&vm) else {
            return Err(HypervisorError::NoGuest { uuid: vm });
        };
        let (instance, manner) = (guest.instance, self.manner(vm));
        if !manner.ignores_shutdown && guest.is_alive() {
            around.later(Duration::from_millis(manner.shutdown_ms), move |hypervisors, around| {
                hypervisors.powers_off(around, host, vm, instance);
            });
        }
        Ok(())
    }

    fn powers_off(&mut self, around: &mut Around<'_>, host: usize, vm: Uuid, instance: i32) {
        if !self.hosts[host].is_there(vm, instance) {
            return;
        }
        if around.hosts[host].frozen {
            return around.later(Duration::from_secs(1), move |hypervisors, around| {
                hypervisors.powers_off(around, host, vm, instance)
            });
        }
        self.end_guest(around, host, vm, "shut down", false);
    }

    // --- Migration -----------------------------------------------------------------------------

    /// Whether the hypervisor of `host` answers those who ask it from another host.
    fn answers(&self, hosts: &Hosts, from: usize, host: usize) -> bool {
        let (here, there) = (&hosts[from], &hosts[host]);
        let wired = from == host || (here.cables.cluster && there.cables.cluster);
        let is_up = self.hosts[host].is_up;
        wired && here.on && !here.frozen && there.booted && !there.frozen && is_up
    }

    fn begin_migration(
        &mut self,
        around: &mut Around<'_>,
        by: Pid,
        from: usize,
        vm: Uuid,
        migration: &Migration,
    ) -> Result<u64, HypervisorError> {
        let to = around
            .hosts
            .named(&migration.host)
            .filter(|to| self.answers(around.hosts, from, *to))
            .ok_or_else(away)?;
        let Some(guest) = self.hosts[from].guests.get(&vm) else {
            return Err(HypervisorError::NoGuest { uuid: vm });
        };
        if guest.run != GuestRun::Running {
            return Err(refused("domain is not running"));
        }
        self.hosts[to].can_receive(vm)?;
        if self.jobs.values().any(|job| job.vm == vm && job.from == from && job.ended.is_none()) {
            return Err(refused("another migration job is already running for the domain"));
        }
        let (name, xml, from_instance) = (guest.name.clone(), guest.xml.clone(), guest.instance);
        let plugged = guest.plugged.clone();
        around.log_file(to, &name)?;
        let what = format!("{} sends VM {name}", around.hosts[from].name);
        around.judge(self, |truth, sight| truth.of_decision(sight, &what, from));
        let to_instance = self.new_guest(around, to, vm, name.clone(), xml, GuestRun::Arriving);
        self.hosts[to].guest(vm)?.plugged = plugged;
        self.hosts[to].announce(GuestEvent::Changed(vm));
        around.run.note(format!(
            "{}: guest {name} is sent to {}",
            around.hosts[from].name, around.hosts[to].name
        ));
        let manner = self.manner(vm);
        self.next += 1;
        let id = self.next;
        let job = Job {
            vm,
            from,
            to,
            from_instance,
            to_instance,
            by,
            held: migration.held,
            begun: around.run.now,
            takes: Duration::from_millis(manner.migration_ms),
            never_converges: manner.never_converges,
            apart: None,
            ended: None,
            waiting: Vec::new(),
        };
        self.jobs.insert(id, job);
        around.later(Duration::from_millis(100), move |hypervisors, around| {
            hypervisors.migration_goes_on(around, id)
        });
        Ok(id)
    }

    fn migration_goes_on(&mut self, around: &mut Around<'_>, id: u64) {
        let Some(job) = self.jobs.get(&id).filter(|job| job.ended.is_none()) else {
            return;
        };
        let (vm, from, to) = (job.vm, job.from, job.to);
        let here = self.hosts[from].is_there(vm, job.from_instance);
        let there = self.hosts[to].is_there(vm, job.to_instance);
        if !here {
            return self.end_migration(around, id, Err("domain is no longer running".to_owned()));
        }
        let in_touch = self.answers(around.hosts, from, to) && self.answers(around.hosts, to, from);
        if in_touch && !there {
            return self.end_migration(around, id, Err("the target has lost the guest".to_owned()));
        }
        if !in_touch {
            let now = around.run.now;
            let job = self.jobs.get_mut(&id).expect("it was there a moment ago");
            let apart = *job.apart.get_or_insert(now);
            if now.saturating_sub(apart) >= KEEPALIVE && !around.hosts[from].frozen {
                return self.end_migration(around, id, Err("the connection was closed".to_owned()));
            }
        } else {
            let now = around.run.now;
            let job = self.jobs.get_mut(&id).expect("it was there a moment ago");
            job.apart = None;
            if !job.never_converges && now.saturating_sub(job.begun) >= job.takes {
                return self.arrives(around, id);
            }
        }
        around.later(Duration::from_millis(500), move |hypervisors, around| {
            hypervisors.migration_goes_on(around, id)
        });
    }

    /// The last moment: it stops here, and runs there or is held there.
    fn arrives(&mut self, around: &mut Around<'_>, id: u64) {
        let job = &self.jobs[&id];
        let (vm, from, to, held, by) = (job.vm, job.from, job.to, job.held, job.by);
        let lost_words = around.run.nature.lost_words;
        let loses_word = around.run.chance.happens(lost_words);
        // Who talks to both hypervisors is gone, or the one here breaks down: nobody tells it how
        // that ended.
        let breaks =
            held && (around.processes[by].ended || (loses_word && around.run.chance.happens(500)));
        let stays = loses_word || breaks;
        let now = around.run.now;
        let old = self.hosts[from].guests[&vm].client;
        let (client, name) = {
            let guest = self.hosts[to].guests.get_mut(&vm).expect("it was looked for a moment ago");
            (guest.is_whole, guest.since) = (true, now);
            if held {
                guest.run = GuestRun::Paused;
            }
            (guest.client, guest.name.clone())
        };
        if !(held && stays) {
            around.ceph.hand_over(old, &Lock { client, host: to });
        }
        if stays {
            if let Some(guest) = self.hosts[from].guests.get_mut(&vm) {
                guest.is_leftover = !held;
                guest.run = if breaks { GuestRun::Leaving } else { GuestRun::Running };
            }
            self.lost_words += 1;
        } else {
            self.hosts[from].guests.remove(&vm);
            self.hosts[from].had_guest = Some(around.run.now);
        }
        match held {
            true if stays && !breaks => self.goes_on(from, vm),
            true => {}
            false => {
                around.judge(self, |truth, sight| truth.of_start(sight, to, vm, true));
                self.goes_on(to, vm);
            }
        }
        self.arrived += 1;
        let lost = if stays { ", and the word of it is lost" } else { "" };
        let how = if held { "is held, and came" } else { "arrives" };
        around.run.note(format!(
            "{}: guest {name} {how} from {}{lost}",
            around.hosts[to].name, around.hosts[from].name
        ));
        self.hosts[to].announce(GuestEvent::Changed(vm));
        self.hosts[from].announce(GuestEvent::Changed(vm));
        let outcome = if stays { Err("the connection was closed".to_owned()) } else { Ok(()) };
        self.end_migration(around, id, outcome);
    }

    fn end_migration(&mut self, around: &mut Around<'_>, id: u64, outcome: Result<(), String>) {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.ended.is_none()) else {
            return;
        };
        let has_failed = outcome.is_err();
        job.ended = Some(outcome);
        for waiting in std::mem::take(&mut job.waiting) {
            let _ = waiting.send(()); // whoever waited may have gone
        }
        let (vm, to, instance) = (job.vm, job.to, job.to_instance);
        if has_failed {
            around.truth.orders.move_failed(vm, around.run.now);
        }
        self.give_up_incoming(around, to, vm, instance);
    }

    /// Ends what is held on the target when its hypervisor hears, or hears nothing any more.
    fn give_up_incoming(&mut self, around: &mut Around<'_>, to: usize, vm: Uuid, instance: i32) {
        let is_held = self.hosts[to].is_there(vm, instance)
            && self.hosts[to]
                .guests
                .get(&vm)
                .is_some_and(|guest| guest.is_incoming && !guest.is_whole);
        if !is_held {
            return;
        }
        if around.hosts[to].frozen || !around.hosts[to].cables.cluster {
            let later = around.run.chance.seconds(1, 30);
            return around.later(later, move |hypervisors, around| {
                hypervisors.give_up_incoming(around, to, vm, instance)
            });
        }
        self.end_guest(around, to, vm, "it never arrived", false);
    }

    /// A migration ends with the program that asked for it, which talks to both hypervisors; unless
    /// it just got through.
    pub fn migrations_of_ended(&mut self, around: &mut Around<'_>, pid: Pid) {
        let now = around.run.now;
        let own: Vec<(u64, bool)> = self
            .jobs
            .iter()
            .filter(|(_, job)| job.by == pid && job.ended.is_none())
            .map(|(id, job)| {
                (*id, !job.never_converges && now + NEARLY_THERE >= job.begun + job.takes)
            })
            .collect();
        for (id, is_nearly_there) in own {
            if !is_nearly_there || around.run.chance.happens(500) {
                self.end_migration(around, id, Err("its client has gone".to_owned()));
            }
        }
    }

    /// Guests no longer write faster than they can be copied.
    pub fn calm_guests(&mut self) {
        self.manners.values_mut().for_each(|manner| manner.never_converges = false);
        self.jobs.values_mut().for_each(|job| job.never_converges = false);
    }

    pub fn calm_guest(&mut self, vm: Uuid) {
        self.manners.entry(vm).or_default().never_converges = false;
        let own = self.jobs.values_mut().filter(|job| job.vm == vm);
        own.for_each(|job| job.never_converges = false);
    }

    /// Has the guest stand still, or go on, wherever it is.
    pub fn hold_guest(&mut self, vm: Uuid, run: GuestRun) {
        for host in 0..self.hosts.len() {
            if let Some(guest) =
                self.hosts[host].guests.get_mut(&vm).filter(|guest| guest.is_alive())
            {
                guest.run = run;
                self.hosts[host].announce(GuestEvent::Changed(vm));
            }
        }
    }

    /// Whether a start of the VM on `host` comes to nothing, and how.
    fn takes_failure(&mut self, host: usize, vm: Uuid) -> Option<StartFailure> {
        let failing = self.failing.get_mut(&vm)?;
        if failing.times == 0 || failing.host.is_some_and(|only| only != host) {
            return None;
        }
        failing.times -= 1;
        Some(failing.how)
    }
}

/// The hypervisor of a host, as its daemon has it.
pub(crate) struct SimHypervisor {
    pub gate: Gate,
    pub host: usize,
}

impl SimHypervisor {
    async fn reached<T>(
        &self,
        act: impl FnOnce(&mut Hypervisors, &mut Around<'_>) -> Result<T, HypervisorError>,
    ) -> Result<T, HypervisorError> {
        let act = |hypervisors: &mut Hypervisors, around: &mut Around<'_>| {
            hypervisors[self.host].reached()?;
            act(hypervisors, around)
        };
        let done = self.gate.call(|state| state.with_hypervisors(act)).await;
        self.gate.pass().await;
        done
    }
}

#[async_trait]
impl Hypervisor for SimHypervisor {
    async fn facts(&self) -> Result<HypervisorFacts, HypervisorError> {
        self.reached(|_, _| {
            Ok(HypervisorFacts {
                domain_type: "kvm".to_owned(),
                kvm_refused: None,
                libvirt_version: "11.3.0".to_owned(),
                qemu_version: "10.0.0".to_owned(),
                emulator: "/usr/bin/qemu-system-x86_64".to_owned(),
            })
        })
        .await
    }

    async fn ping(&self) -> Result<(), HypervisorError> {
        self.reached(|_, _| Ok(())).await
    }

    async fn guests(&self) -> Result<BTreeMap<Uuid, Guest>, HypervisorError> {
        self.reached(|hypervisors, _| Ok(hypervisors[self.host].shown())).await
    }

    async fn start(&self, uuid: Uuid, xml: &str) -> Result<(), HypervisorError> {
        let host = self.host;
        let (answer, answered) = oneshot::channel();
        let xml = xml.to_owned();
        let takes = self
            .reached(move |hypervisors, around| {
                let manner = hypervisors.manner(uuid);
                let takes = Duration::from_millis(manner.start_ms);
                let dies = around.run.chance.happens(manner.dies_at_start);
                let failure = hypervisors.takes_failure(host, uuid);
                let coming = Coming {
                    host,
                    life: around.hosts[host].life,
                    vm: uuid,
                    xml,
                    dies,
                    failure,
                    answer,
                };
                // Whether its caller waits for it or has ended meanwhile.
                around.later(takes / 2, move |hypervisors, around| {
                    hypervisors.comes_up(around, coming);
                });
                Ok(takes)
            })
            .await?;
        self.gate.answer(answered).await?;
        self.gate.sleep(takes / 2).await;
        Ok(())
    }

    async fn resume(&self, uuid: Uuid) -> Result<(), HypervisorError> {
        self.reached(|hypervisors, around| hypervisors.resume_guest(around, self.host, uuid)).await
    }

    async fn shutdown(&self, uuid: Uuid) -> Result<(), HypervisorError> {
        self.reached(|hypervisors, around| {
            around.judge(hypervisors, |truth, sight| truth.of_stop(sight, self.host, uuid));
            hypervisors.press_power(around, self.host, uuid)
        })
        .await
    }

    async fn destroy(&self, uuid: Uuid) -> Result<(), HypervisorError> {
        self.reached(|hypervisors, around| {
            around.judge(hypervisors, |truth, sight| truth.of_stop(sight, self.host, uuid));
            hypervisors.end_guest(around, self.host, uuid, "destroyed", false);
            Ok(())
        })
        .await
    }

    async fn live_xml(&self, uuid: Uuid) -> Result<String, HypervisorError> {
        self.reached(|hypervisors, _| hypervisors[self.host].live_xml(uuid)).await
    }

    async fn stats(&self) -> Result<BTreeMap<Uuid, GuestStats>, HypervisorError> {
        self.reached(|hypervisors, _| {
            let running = hypervisors[self.host].guests.iter();
            let running = running.filter(|(_, guest)| guest.run == GuestRun::Running);
            let figures = ["rd_req", "rd_bytes", "wr_req", "wr_bytes", "err"]
                .map(|name| (name.to_owned(), 0));
            let disks = BTreeMap::from([("sda".to_owned(), BTreeMap::from(figures))]);
            let stats = |guest: &SimGuest| GuestStats {
                max_memory_kib: guest.memory_mib * 1024,
                memory_kib: guest.memory_mib * 1024,
                vcpus: guest.vcpus,
                cpu_time_ns: 1,
                memory: BTreeMap::from([("actual".to_owned(), guest.memory_mib * 1024)]),
                cpu: BTreeMap::from([("cpu_time".to_owned(), 1)]),
                disks: disks.clone(),
                ..GuestStats::default()
            };
            Ok(running.map(|(uuid, guest)| (*uuid, stats(guest))).collect())
        })
        .await
    }

    async fn vnc(&self, uuid: Uuid) -> Result<Option<VncAddress>, HypervisorError> {
        self.reached(|hypervisors, _| {
            let domain = pvc_domain::summary(&hypervisors[self.host].guest(uuid)?.xml);
            let asked = domain.ok().and_then(|domain| domain.vnc);
            Ok(asked.map(|(listen, port)| VncAddress { listen, port: port.unwrap_or(5900) }))
        })
        .await
    }

    async fn device(
        &self,
        uuid: Uuid,
        change: DeviceChange,
        device: &str,
    ) -> Result<(), HypervisorError> {
        self.reached(|hypervisors, _| {
            let run = hypervisors[self.host].guest(uuid)?.run;
            let moves = matches!(run, GuestRun::Arriving | GuestRun::Leaving);
            if moves || hypervisors.is_migrating(self.host, uuid) {
                return Err(refused("cannot acquire state change lock (held by a migration)"));
            }
            let target = match pvc_domain::device_summary(device) {
                Ok(Device::Disk(disk)) => disk.target,
                Ok(_) => device.to_owned(),
                Err(error) => return Err(refused(&error.to_string())),
            };
            hypervisors[self.host].device(uuid, change, target, device)
        })
        .await?;
        self.gate.after_effect().await;
        Ok(())
    }

    async fn resize_disk(
        &self,
        uuid: Uuid,
        target: &str,
        _bytes: u64,
    ) -> Result<(), HypervisorError> {
        self.reached(|hypervisors, _| {
            let guest = hypervisors[self.host].guest(uuid)?;
            let domain =
                pvc_domain::summary(&guest.xml).map_err(|error| refused(&error.to_string()))?;
            let has = guest.plugged.contains_key(target)
                || domain.disks.iter().any(|disk| disk.target == target);
            if has { Ok(()) } else { Err(refused(&format!("invalid path: {target}"))) }
        })
        .await
    }

    async fn migrate(
        &self,
        uuid: Uuid,
        migration: &Migration,
    ) -> Result<Box<dyn MigrationJob>, HypervisorError> {
        let (from, by, to) = (self.host, self.gate.pid, migration.host.clone());
        let migration = migration.clone();
        let answers = self
            .reached(|hypervisors, around| {
                let to = around.hosts.named(&to);
                Ok(to.is_some_and(|to| hypervisors.answers(around.hosts, from, to)))
            })
            .await?;
        if !answers {
            self.gate.call(|state| state.truth.orders.move_failed(uuid, state.run.now)).await;
            self.gate.sleep(TIME_LIMIT).await;
            return Err(away());
        }
        let id = self
            .reached(|hypervisors, around| {
                let begun = hypervisors.begin_migration(around, by, from, uuid, &migration);
                if begun.is_err() {
                    around.truth.orders.move_failed(uuid, around.run.now);
                }
                begun
            })
            .await?;
        Ok(Box::new(SimJob { gate: self.gate.clone(), id, uuid, reported: false }))
    }

    async fn state_at(&self, host: &str, uuid: Uuid) -> Result<Option<GuestRun>, HypervisorError> {
        let look = |state: &mut State| {
            let (hosts, hypervisors) = (&state.hosts, &state.hypervisors);
            let there = hosts.named(host);
            let there = there.filter(|there| hypervisors.answers(hosts, self.host, *there));
            there.map(|there| hypervisors[there].run(uuid))
        };
        let takes = self.gate.call(|state| state.run.latency()).await;
        self.gate.sleep(takes).await;
        match self.gate.call(look).await {
            Some(there) => {
                self.gate.sleep(takes).await;
                Ok(there)
            }
            None => {
                self.gate.sleep(TIME_LIMIT).await;
                Err(away())
            }
        }
    }

    async fn console_exchange(
        &self,
        uuid: Uuid,
        input: &[u8],
        _wait: Duration,
    ) -> Result<Vec<u8>, HypervisorError> {
        self.reached(|hypervisors, _| hypervisors[self.host].console(uuid, input)).await
    }

    fn events(&self) -> mpsc::UnboundedReceiver<GuestEvent> {
        self.gate.world.with(|state| state.hypervisors[self.host].events())
    }
}

struct SimJob {
    gate: Gate,
    id: u64,
    uuid: Uuid,
    reported: bool,
}

#[async_trait]
impl MigrationJob for SimJob {
    async fn progress(&self) -> Result<Option<MigrationProgress>, HypervisorError> {
        let (id, uuid) = (self.id, self.uuid);
        self.gate
            .call(|state| {
                let job =
                    state.hypervisors.jobs.get(&id).ok_or(HypervisorError::NoGuest { uuid })?;
                if job.ended.is_some() {
                    return Ok(None);
                }
                let until = job.apart.unwrap_or(state.run.now);
                let elapsed = state.run.now.saturating_sub(job.begun);
                let copying = until.saturating_sub(job.begun);
                Ok(Some(migration_progress(elapsed, copying, job.takes, job.never_converges)))
            })
            .await
    }

    async fn abort(&self) -> Result<(), HypervisorError> {
        let id = self.id;
        let why = "the migration was aborted".to_owned();
        self.gate
            .call(|state| {
                state.with_hypervisors(|hypervisors, around| {
                    hypervisors.end_migration(around, id, Err(why));
                });
            })
            .await;
        Ok(())
    }

    async fn outcome(&mut self) -> Result<(), HypervisorError> {
        let (id, uuid) = (self.id, self.uuid);
        if std::mem::replace(&mut self.reported, false) {
            return Err(HypervisorError::NoGuest { uuid });
        }
        loop {
            let looked = self
                .gate
                .call(|state| {
                    let job = state
                        .hypervisors
                        .jobs
                        .get_mut(&id)
                        .ok_or(HypervisorError::NoGuest { uuid })?;
                    Ok::<_, HypervisorError>(match job.ended.clone() {
                        Some(ended) => Ok(ended),
                        None => {
                            let (sender, ended) = oneshot::channel();
                            job.waiting.push(sender);
                            Err(ended)
                        }
                    })
                })
                .await?;
            match looked {
                Ok(ended) => {
                    self.reported = true;
                    return ended.map_err(|why| HypervisorError::Refused { why });
                }
                Err(ended) => self.gate.answer(ended).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! The simulated hypervisors are Hypervisors.

    use std::sync::Arc;
    use std::time::Duration;

    use pvc_contracts::hypervisor::{
        HypervisorFixture, MigrationFixture, hypervisor_contract, migration_contract,
    };
    use pvc_model::storage::VolumeId;

    use super::SimHypervisor;
    use crate::cluster::host_name;
    use crate::state::World;

    /// Two hosts on which nothing runs, and their hypervisors as a program of each has them.
    fn hypervisors() -> [Arc<SimHypervisor>; 2] {
        let (world, gates) = World::of_hosts(2);
        world.with(|state| {
            let volume = VolumeId::from_record("vms/contract").expect("a volume's name");
            state.ceph.volumes.insert(&volume);
        });
        [0, 1].map(|host| Arc::new(SimHypervisor { gate: gates[host].clone(), host }))
    }

    fn guest(uuid: uuid::Uuid, name: &str) -> String {
        format!(
            "<domain type='kvm'><name>{name}</name><uuid>{uuid}</uuid><memory \
             unit='MiB'>512</memory><vcpu>1</vcpu>\
             <os><type>hvm</type></os><devices><disk type='network' device='disk'>\
             <source protocol='rbd' name='vms/contract'/><target dev='sda' bus='scsi'/></disk>\
             <graphics type='vnc' port='-1' autoport='yes' listen='127.0.0.1'/></devices></domain>"
        )
    }

    #[tokio::test(start_paused = true)]
    async fn the_simulated_hypervisor_keeps_the_contract() {
        let [hypervisor, _] = hypervisors();
        let fixture = HypervisorFixture {
            guest: Box::new(guest),
            spare_disk: "<disk type='network'><source protocol='rbd' name='vms/spare'/><target \
                 dev='sdb'/></disk>"
                .to_owned(),
            time_limit: Duration::from_secs(20),
        };
        hypervisor_contract(hypervisor, fixture).await;
    }

    #[tokio::test(start_paused = true)]
    async fn guests_move_between_simulated_hypervisors_as_between_real_ones() {
        let [one, two] = hypervisors();
        let fixture = MigrationFixture {
            guest: Box::new(guest),
            hosts: (host_name(1), host_name(0)),
            nobody: "nobody".to_owned(),
            time_limit: Duration::from_secs(20),
        };
        migration_contract(one, two, fixture).await;
    }
}
