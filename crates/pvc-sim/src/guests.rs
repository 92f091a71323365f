//! The hypervisors: guests that boot, obey or do not, crash, and move between hosts.
//!
//! A guest that moves runs on its old host and is there on the new one, held, until the last
//! moment; then it runs on the new one, or is held there until it is told to go on. If only the
//! word of that gets lost, its old hypervisor lets it go on as well: of one that runs there,
//! whoever sent it has to end one of the two, the one duplicate that is nobody's fault. If the old
//! hypervisor breaks down in that moment, or who talks to both is gone, the guest is held on its
//! old host. What is held on the new one is older than the volumes once it has gone on at the old
//! one.

mod ends;
mod migrations;
mod port;
mod starts;

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut, Index, IndexMut};
use std::time::Duration;

use pvc_model::domain::{Disk, DiskSource};
use pvc_model::sriov::vf_parts;
use pvc_ports::{GuestEvent, GuestRun, HypervisorError};
use pvc_testkit::{MemoryGuest, MemoryHypervisor};
use uuid::Uuid;

use crate::guest_networks::{bridges, port};
use crate::host::Hosts;
use crate::power::Bmcs;
use crate::process::Processes;
use crate::run::Run;
use crate::sriov::{functions, pass_through};
use crate::storage::{Ceph, ClientId};
use crate::truth::{Sight, Truth};
use crate::zookeeper::Ensemble;

use migrations::Migrations;
pub(crate) use port::SimHypervisor;
pub(crate) use starts::FailingStarts;

pub(crate) struct SimGuest {
    kept: MemoryGuest,
    pub memory_mib: u64,
    pub vcpus: u32,
    /// Time since which the guest is on this host.
    pub since: Duration,
    /// Client that the guest is to Ceph.
    pub client: ClientId,
    /// Bridges of networks of VMs that it was plugged into when it began here.
    pub bridges: Vec<String>,
    /// Size of each disk that is a volume, by its target, as the guest knows it.
    pub disk_bytes: BTreeMap<String, u64>,
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
    /// Starts that will come to nothing, by their VMs.
    pub failing: BTreeMap<Uuid, FailingStarts>,
    pub migrations: Migrations,
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

    /// Every guest that begins on a host is plugged into bridges there.
    ///
    /// # Errors
    /// If one of them is missing, in libvirt's words.
    fn bridges(&self, host: usize, xml: &str) -> Result<(), HypervisorError> {
        let bridges = bridges(xml);
        if bridges.is_empty() {
            return Ok(());
        }
        let links = self.hosts[host].network.links_as_they_are();
        match bridges.iter().find(|bridge| !links.contains_key(*bridge)) {
            None => Ok(()),
            Some(missing) => {
                Err(refused(&format!("Cannot get interface MTU on '{missing}': No such device")))
            }
        }
    }

    /// A guest that begins on a host gets functions of its card there.
    ///
    /// # Errors
    /// If there is no such function, or another guest of the host has it, about in libvirt's words.
    fn functions(
        &self,
        hypervisor: &HostHypervisor,
        host: usize,
        xml: &str,
    ) -> Result<(), HypervisorError> {
        for function in functions(xml) {
            let (card, index) = vf_parts(&function).unwrap_or(("", 0));
            if self.hosts[host].card.settings(card, index).is_none() {
                return Err(refused(&format!("no such device: {function}")));
            }
            let has = |guest: &&SimGuest| functions(&guest.xml).contains(&function);
            if let Some(other) = hypervisor.guests.values().find(has) {
                let why = format!("device {function} is in use by domain {}", other.name);
                return Err(refused(&why));
            }
        }
        Ok(())
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
            migrations: Migrations::default(),
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
            summary.as_ref().map_or((0, 1), |domain| (domain.memory_mib, domain.vcpus));
        let disks = summary.into_iter().flat_map(|domain| domain.disks);
        let known_bytes = |disk: Disk| {
            let DiskSource::Volume(volume) = &disk.source else { return None };
            let info = around.ceph.volumes.volume(volume).ok()?;
            Some((disk.target, info.size_bytes))
        };
        let disk_bytes = disks.filter_map(known_bytes).collect();
        let client = around.ceph.new_client();
        let bridges = bridges(&xml);
        let kept = self.hosts[host].new_guest(name, xml, run);
        let instance = kept.instance;
        let is_incoming = run == GuestRun::Arriving;
        let guest = SimGuest {
            kept,
            memory_mib,
            vcpus,
            since: around.run.now,
            client,
            bridges,
            disk_bytes,
            is_incoming,
            is_whole: !is_incoming,
            is_stale: false,
            is_leftover: false,
        };
        for (place, bridge) in guest.bridges.iter().enumerate() {
            around.hosts[host].network.plug_in(&port(client, place), bridge);
        }
        pass_through(&around.hosts[host].card, &guest.xml, true);
        self.hosts[host].guests.insert(vm, guest);
        if around.run.nature.networks > 0 {
            around.run.later(Duration::ZERO, move |state| state.links_changed(host));
        }
        instance
    }

    /// Guests no longer write faster than they can be copied, nor die while they are started: one
    /// that did so eight times in a row is tried again later than anybody waits.
    pub fn calm_guests(&mut self) {
        for manner in self.manners.values_mut() {
            manner.never_converges = false;
            manner.dies_at_start = 0;
        }
        self.migrations.converge(|_| true);
    }

    pub fn calm_guest(&mut self, vm: Uuid) {
        self.manners.entry(vm).or_default().never_converges = false;
        self.migrations.converge(|other| other == vm);
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
}
