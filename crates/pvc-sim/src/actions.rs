//! Events of a cluster: faults, and requests of operators. A history is a list of them, each with
//! its time.

use std::time::Duration;

use pvc_model::osd::OsdId;
use pvc_model::storage::VolumeId;
use pvc_model::vm::MigrationMethod;
use pvc_ports::GuestRun;
use serde::{Deserialize, Serialize};

use crate::cluster::vm_uuid;
use crate::daemons::{kill, kill_daemon, start_api, start_daemon, start_worker};
use crate::database_cluster::DatabaseMembers;
use crate::guest_networks::NetworkAsk;
use crate::guests::FailingStarts;
use crate::host::Net;
use crate::job_steps::Moment;
use crate::legacy::install;
use crate::new_vms::NewVmAsk;
use crate::osds::DISKS;
use crate::power::BmcManner;
use crate::process::Process;
use crate::state::State;
use crate::storage::Ceph;
use crate::storage_changes::{ChangeMoment, StorageAsk};
use crate::uploads::{Sending, UploadMoment};
use crate::zookeeper::Ensemble;

/// An event of a history. Hosts and VMs are numbers, from 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    PowerLoss(usize),
    PowerReturn(usize),
    /// The machine breaks: it has no power, and nobody can switch it on.
    BreakDown(usize),
    /// The machine is repaired, or another has its name, and it is switched on.
    Repair(usize),
    Unplug(usize, Net),
    Plug(usize, Net),
    FreezeDaemon(usize),
    ThawDaemon(usize),
    FreezeHost(usize),
    ThawHost(usize),
    KillDaemon(usize),
    /// Restarts the daemon as `systemctl restart` does.
    RestartDaemon(usize),
    /// Stays down until it is started.
    StopDaemon(usize),
    StartDaemon(usize),
    /// Goes from PVC 1.0.3 to ours: the daemon is restarted with it.
    Upgrade(usize),
    /// Goes back to the version before.
    Downgrade(usize),
    /// Kills the API as `kill -9` does; systemd starts it again.
    KillApi(usize),
    /// Restarts the API as `systemctl restart` does: what is asked at the moment is answered.
    RestartApi(usize),
    /// Stays down until it is started.
    StopApi(usize),
    StartApi(usize),
    KillWorker(usize),
    RestartWorker(usize),
    StopWorker(usize),
    StartWorker(usize),
    Bmc(usize, BmcManner),
    ServerDown(usize),
    ServerUp(usize),
    /// The ZooKeeper server shows what is written so many milliseconds later.
    ServerLags(usize, u64),
    /// The server lags no more than it usually does.
    ServerKeepsUp(usize),
    /// ZooKeeper's servers answer what is read of them and agree on nothing that is to be written.
    StoreTakesNoWrites,
    StoreTakesWrites,
    /// Somebody says that the store has another layout.
    Layout(u32),
    /// Keys that nobody knows appear beside those that are known.
    UnknownKeys,
    /// Nothing more can be written to the host's own disk. The guests' volumes are elsewhere.
    DiskFills(usize),
    DiskHasRoom(usize),
    /// The wall clock jumps by so many seconds.
    StepClock(usize, i64),
    HypervisorDown(usize),
    HypervisorUp(usize),
    CephSilent,
    CephAnswers,
    /// The managers of the database answer nobody, at once.
    DatabaseFails,
    /// The managers of the database say nothing.
    DatabaseSilent,
    DatabaseAnswers,
    BreakAfterWrite(usize),
    CrashGuest(usize),
    /// The next starts of a VM come to nothing, on one host or on any.
    FailStarts {
        vm: usize,
        host: Option<usize>,
        times: u32,
        how: StartFailure,
    },
    /// The guest no longer hears its power button.
    DeafenGuest(usize),
    /// The guest no longer writes faster than it can be copied.
    CalmGuest(usize),
    /// Pauses the guest: it is held by its hypervisor, as when its disk failed.
    PauseGuest(usize),
    ResumeGuest(usize),
    /// The VM's volume is gone.
    LoseVolume(usize),
    /// A machine that nobody knows has the VM's volume.
    LockVolume(usize),
    /// Somebody breaks the lock of the VM's volume.
    LoseLock(usize),
    /// The next worker that comes to this moment of this step of a job, counted from 1, stands
    /// still there.
    JobStops(u32, Moment),
    JobGoesOn,
    /// The next upload that comes to this moment stands still there.
    UploadStops(UploadMoment),
    UploadGoesOn,
    /// The next change of the storage that comes to this moment stands still there.
    ChangeStops(ChangeMoment),
    ChangeGoesOn,
    /// Number of placement groups of the OSD that have no other copy yet.
    OsdIsNeeded(u32, u64),
    /// The host has the disk no more, nor what is on it.
    DiskIsLost {
        host: usize,
        device: String,
    },
    /// The host has an empty disk of this name.
    DiskIsNew {
        host: usize,
        device: String,
    },
    /// The host is installed anew: it starts no OSD any more that lies on its disks.
    ForgetOsds(usize),
    /// The disks for OSDs of the host have each other's name.
    SwapDisks(usize),
    /// Somebody empties the packet filter of the host.
    FlushFirewall(usize),
    /// The end of the tunnels of this network is deleted there.
    LoseTunnel(usize, u32),
    /// The DHCP server of this network crashes, wherever it runs.
    CrashServer(u32),
    /// The kernel of the host takes no rule with these words.
    RefuseRules(usize, String),
    TakeRules(usize),
    /// An operator gives the VMs that are off and assigned to the host to other nodes.
    MoveAway(usize),
    Ask(Ask),
}

/// Failure of a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StartFailure {
    /// The hypervisor refuses it.
    Refused,
    /// The guest is killed as it begins.
    Dies,
}

/// The only way in which a VM may be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnlyWay {
    Live,
    Shutdown,
}

impl OnlyWay {
    pub fn method(self) -> MigrationMethod {
        match self {
            OnlyWay::Live => MigrationMethod::Live,
            OnlyWay::Shutdown => MigrationMethod::Shutdown,
        }
    }
}

/// Request of an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    Start(usize),
    Stop(usize),
    Shutdown(usize),
    Restart(usize),
    /// Shut it down, and mark it when it is off.
    Disable(usize),
    /// Defines the VM as the cluster's shape has it.
    Define(usize),
    /// Forget the VM; its volumes stay.
    Undefine(usize),
    /// Its volume is removed, also while its definition names it.
    RemoveVolume(usize),
    /// Its volume is restored, which was removed.
    RestoreVolume(usize),
    /// Its volume is to have the contents of a file that is sent so.
    Upload {
        vm: usize,
        sending: Sending,
    },
    /// The storage is measured.
    Benchmark,
    Storage(StorageAsk),
    Network(NetworkAsk),
    /// A VM is made of an image, or something is asked for about one that was.
    NewVm(NewVmAsk),
    /// The task that is not over is stopped.
    CancelTask,
    Rename {
        vm: usize,
        to: String,
    },
    Modify {
        vm: usize,
        memory_mib: u64,
    },
    Move {
        vm: usize,
        to: Option<usize>,
        live_only: bool,
    },
    Migrate {
        vm: usize,
        to: Option<usize>,
    },
    Unmigrate(usize),
    /// Sets the way in which the VM may be moved; `None`: the usual one.
    Method {
        vm: usize,
        only: Option<OnlyWay>,
    },
    /// The only nodes that the VM may be placed on; empty: any.
    Limit {
        vm: usize,
        to: Vec<usize>,
    },
    /// Break what a dead host left on the VM's volumes.
    FlushLocks(usize),
    /// Plug a network interface into the running guest, always the same one.
    Attach(usize),
    Detach(usize),
    /// Plug in the disk whose volume is `vms/extra`.
    AttachDisk(usize),
    DetachDisk(usize),
    Flush(usize),
    Ready(usize),
    /// Flushes as [`Flush`](Ask::Flush) does, and waits until it is done.
    FlushAndWait(usize),
    ReadyAndWait(usize),
    Primary(usize),
    Secondary(usize),
    /// Say that the host is off.
    ConfirmOff(usize),
    /// Remove the record of the host.
    RemoveNode(usize),
    Maintenance(bool),
}

/// Something that happens at a certain time of the run, in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    pub at: u64,
    #[serde(rename = "do")]
    pub action: Action,
}

impl Event {
    pub fn time(&self) -> Duration {
        Duration::from_millis(self.at)
    }
}

impl Ask {
    /// The hosts and the VMs that it is about.
    fn about(&self) -> (Vec<usize>, Vec<usize>) {
        match self {
            Ask::Start(vm)
            | Ask::Stop(vm)
            | Ask::Shutdown(vm)
            | Ask::Restart(vm)
            | Ask::Disable(vm)
            | Ask::Define(vm)
            | Ask::Undefine(vm)
            | Ask::RemoveVolume(vm)
            | Ask::RestoreVolume(vm)
            | Ask::Unmigrate(vm)
            | Ask::FlushLocks(vm)
            | Ask::Attach(vm)
            | Ask::Detach(vm)
            | Ask::AttachDisk(vm)
            | Ask::DetachDisk(vm)
            | Ask::Rename { vm, .. }
            | Ask::Upload { vm, .. }
            | Ask::Modify { vm, .. }
            | Ask::Method { vm, .. } => (Vec::new(), vec![*vm]),
            Ask::Move { vm, to, .. } | Ask::Migrate { vm, to } => {
                (to.iter().copied().collect(), vec![*vm])
            }
            Ask::Limit { vm, to } => (to.clone(), vec![*vm]),
            Ask::Flush(host)
            | Ask::Ready(host)
            | Ask::FlushAndWait(host)
            | Ask::ReadyAndWait(host)
            | Ask::Primary(host)
            | Ask::Secondary(host)
            | Ask::ConfirmOff(host)
            | Ask::RemoveNode(host) => (vec![*host], Vec::new()),
            Ask::Storage(ask) => ask.about(),
            Ask::Network(ask) => (Vec::new(), ask.vms()),
            Ask::Maintenance(_) | Ask::Benchmark | Ask::CancelTask | Ask::NewVm(_) => {
                (Vec::new(), Vec::new())
            }
        }
    }
}

impl Action {
    /// The hosts and the VMs that it is about.
    fn about(&self) -> (Vec<usize>, Vec<usize>) {
        match self {
            Action::Ask(ask) => ask.about(),
            Action::FailStarts { vm, host, .. } => (host.iter().copied().collect(), vec![*vm]),
            Action::CrashGuest(vm)
            | Action::DeafenGuest(vm)
            | Action::CalmGuest(vm)
            | Action::PauseGuest(vm)
            | Action::ResumeGuest(vm)
            | Action::LoseVolume(vm)
            | Action::LockVolume(vm)
            | Action::LoseLock(vm) => (Vec::new(), vec![*vm]),
            Action::StoreTakesNoWrites
            | Action::StoreTakesWrites
            | Action::Layout(_)
            | Action::UnknownKeys
            | Action::CephSilent
            | Action::CephAnswers
            | Action::DatabaseFails
            | Action::DatabaseSilent
            | Action::DatabaseAnswers
            | Action::JobStops(..)
            | Action::JobGoesOn
            | Action::UploadStops(_)
            | Action::UploadGoesOn
            | Action::ChangeStops(_)
            | Action::ChangeGoesOn
            | Action::CrashServer(_)
            | Action::OsdIsNeeded(..) => (Vec::new(), Vec::new()),
            Action::DiskIsLost { host, .. } | Action::DiskIsNew { host, .. } => {
                (vec![*host], Vec::new())
            }
            Action::PowerLoss(host)
            | Action::PowerReturn(host)
            | Action::BreakDown(host)
            | Action::Repair(host)
            | Action::MoveAway(host)
            | Action::Unplug(host, _)
            | Action::Plug(host, _)
            | Action::FreezeDaemon(host)
            | Action::ThawDaemon(host)
            | Action::FreezeHost(host)
            | Action::ThawHost(host)
            | Action::KillDaemon(host)
            | Action::RestartDaemon(host)
            | Action::StopDaemon(host)
            | Action::StartDaemon(host)
            | Action::Upgrade(host)
            | Action::Downgrade(host)
            | Action::KillApi(host)
            | Action::RestartApi(host)
            | Action::StopApi(host)
            | Action::StartApi(host)
            | Action::KillWorker(host)
            | Action::RestartWorker(host)
            | Action::StopWorker(host)
            | Action::StartWorker(host)
            | Action::Bmc(host, _)
            | Action::ServerDown(host)
            | Action::ServerUp(host)
            | Action::ServerLags(host, _)
            | Action::ServerKeepsUp(host)
            | Action::DiskFills(host)
            | Action::DiskHasRoom(host)
            | Action::StepClock(host, _)
            | Action::HypervisorDown(host)
            | Action::HypervisorUp(host)
            | Action::ForgetOsds(host)
            | Action::SwapDisks(host)
            | Action::FlushFirewall(host)
            | Action::LoseTunnel(host, _)
            | Action::RefuseRules(host, _)
            | Action::TakeRules(host)
            | Action::BreakAfterWrite(host) => (vec![*host], Vec::new()),
        }
    }

    /// Whether all that it is about is there, of so many hosts and VMs.
    pub fn is_possible(&self, hosts: usize, vms: usize) -> bool {
        let (of_hosts, of_vms) = self.about();
        of_hosts.iter().all(|host| *host < hosts) && of_vms.iter().all(|vm| *vm < vms)
    }

    /// Returns the kind of the event, for counting: the first word, and of a BMC its state.
    pub fn kind(&self) -> String {
        if let Action::Bmc(_, manner) = self {
            let manner = format!("{manner:?}");
            return format!("Bmc {}", manner.split('(').next().unwrap_or_default());
        }
        let text = match self {
            Action::Ask(Ask::Storage(ask)) => format!("ask {ask:?}"),
            Action::Ask(Ask::Network(ask)) => format!("ask network {ask:?}"),
            Action::Ask(Ask::NewVm(ask)) => format!("ask new {ask:?}"),
            Action::Ask(ask) => format!("ask {ask:?}"),
            other => format!("{other:?}"),
        };
        let words = match text.split(' ').next() {
            Some("ask") if text.starts_with("ask network") || text.starts_with("ask new") => 3,
            Some("ask") => 2,
            _ => 1,
        };
        text.split(['(', '{', ' ']).take(words).collect::<Vec<_>>().join(" ")
    }
}

impl Action {
    /// Has the fault happen. What does not apply has no effect.
    pub(crate) fn happens_to(&self, state: &mut State) {
        state.run.note(format!("-- {self:?}"));
        if self.applies_to(state) {
            state.run.count(self.kind());
        }
        match *self {
            Action::PowerLoss(host) => state.power_off(host, "the plug is pulled"),
            Action::PowerReturn(host) => state.power_on(host, "the plug is back"),
            Action::BreakDown(host) => {
                state.hosts[host].build.is_broken = true;
                state.power_off(host, "it breaks");
            }
            Action::Repair(host) => {
                state.hosts[host].build.is_broken = false;
                state.power_on(host, "it is repaired");
            }
            Action::Unplug(host, net) => state.hosts[host].cables.set(net, false),
            Action::Plug(host, net) => state.hosts[host].cables.set(net, true),
            Action::FreezeDaemon(host) => freeze_daemon(state, host, true),
            Action::ThawDaemon(host) => freeze_daemon(state, host, false),
            Action::FreezeHost(host) => state.hosts[host].frozen = state.hosts[host].on,
            Action::ThawHost(host) => {
                state.hosts[host].frozen = false;
                state.judge(|truth, sight| truth.of_thaw(sight, host));
            }
            Action::KillDaemon(host) => kill_daemon(state, host),
            Action::RestartDaemon(host) => state.hosts[host].ask_daemon_to_stop(),
            Action::StopDaemon(host) => {
                state.hosts[host].daemon_stopped = true;
                state.hosts[host].ask_daemon_to_stop();
            }
            Action::StartDaemon(host) => {
                state.hosts[host].daemon_stopped = false;
                start_daemon(state, host);
            }
            Action::Upgrade(host) => install(state, host, false),
            Action::Downgrade(host) => install(state, host, true),
            Action::KillApi(host) => {
                let pid = state.hosts[host].api.as_ref().map(|api| api.daemon.pid);
                kill(state, pid);
            }
            Action::RestartApi(host) => state.hosts[host].ask_api_to_stop(),
            Action::StopApi(host) => {
                state.hosts[host].api_stopped = true;
                state.hosts[host].ask_api_to_stop();
            }
            Action::StartApi(host) => {
                state.hosts[host].api_stopped = false;
                start_api(state, host);
            }
            Action::KillWorker(host) => {
                let pid = state.hosts[host].worker.as_ref().map(|worker| worker.pid);
                kill(state, pid);
            }
            Action::RestartWorker(host) => state.hosts[host].ask_worker_to_stop(),
            Action::StopWorker(host) => {
                state.hosts[host].worker_stopped = true;
                state.hosts[host].ask_worker_to_stop();
            }
            Action::StartWorker(host) => {
                state.hosts[host].worker_stopped = false;
                start_worker(state, host);
            }
            Action::Bmc(host, manner) => state.bmcs[host].manner = manner,
            Action::ServerDown(host) => state.hosts[host].server_up = false,
            Action::ServerUp(host) => state.hosts[host].server_up = true,
            Action::StepClock(host, seconds) => state.hosts[host].wall_offset += seconds,
            Action::ServerLags(host, late) => state.with_zookeeper(|zookeeper, around| {
                zookeeper.set_lag(around, host, (late, late));
            }),
            Action::ServerKeepsUp(host) => {
                state.with_zookeeper(|zookeeper, around| zookeeper.lag_as_usual(around, host));
            }
            Action::StoreTakesNoWrites => state.zookeeper.hold_writes(),
            Action::StoreTakesWrites => state.with_zookeeper(Ensemble::let_writes_go),
            Action::Layout(version) => {
                state.with_zookeeper(|zookeeper, around| zookeeper.change_layout(around, version));
            }
            Action::UnknownKeys => state.with_zookeeper(Ensemble::add_unknown_keys),
            Action::DiskFills(host) => state.hosts[host].disk_full = true,
            Action::DiskHasRoom(host) => state.hosts[host].disk_full = false,
            Action::HypervisorDown(host) => state.hypervisors[host].set_up(false),
            Action::HypervisorUp(host) => state.hypervisors[host].set_up(true),
            Action::CephSilent => state.ceph.silent = true,
            Action::CephAnswers => state.ceph.silent = false,
            Action::DatabaseFails => on_database(state, |database| database.cluster.set_dead(true)),
            Action::DatabaseSilent => {
                on_database(state, |database| database.cluster.set_silent(true));
            }
            Action::DatabaseAnswers => on_database(state, DatabaseMembers::answers),
            Action::BreakAfterWrite(host) => {
                let daemon = state.hosts[host].daemon.as_ref();
                if let Some(client) = daemon.and_then(|own| state.processes[own.pid].client) {
                    state.zookeeper.break_after_next_write(client);
                }
            }
            Action::CrashGuest(vm) => state.with_hypervisors(|hypervisors, around| {
                hypervisors.crash_guest(around, vm_uuid(vm));
            }),
            Action::FailStarts { vm, host, times, how } => {
                state.hypervisors.failing.insert(vm_uuid(vm), FailingStarts { host, times, how });
            }
            Action::DeafenGuest(vm) => {
                state.hypervisors.manners.entry(vm_uuid(vm)).or_default().ignores_shutdown = true;
            }
            Action::CalmGuest(vm) => state.hypervisors.calm_guest(vm_uuid(vm)),
            Action::PauseGuest(vm) => state.hypervisors.hold_guest(vm_uuid(vm), GuestRun::Paused),
            Action::ResumeGuest(vm) => state.hypervisors.hold_guest(vm_uuid(vm), GuestRun::Running),
            Action::LoseVolume(vm) => state.ceph.volumes.lose(&volume(state, vm)),
            Action::LoseLock(vm) => {
                // One that is lost meanwhile has none.
                let _ = state.ceph.volumes.locks_mut(&volume(state, vm)).map(Vec::clear);
            }
            Action::LockVolume(vm) => {
                state.ceph.lock_by_unknown_client(&volume(state, vm), state.hosts.len());
            }
            Action::JobStops(step, moment) => state.job_steps.stop_at(step, moment),
            Action::JobGoesOn => state.job_steps.go_on(),
            Action::UploadStops(moment) => state.ceph.uploads.still.stop_at(moment),
            Action::UploadGoesOn => state.ceph.uploads.still.go_on(),
            Action::ChangeStops(moment) => state.ceph.changes.still.stop_at(moment),
            Action::ChangeGoesOn => state.ceph.changes.still.go_on(),
            Action::OsdIsNeeded(osd, groups) => {
                // One that does not run holds nothing that was written a moment ago.
                if state.ceph.osds.known().any(|it| it.id == OsdId(osd) && it.is_up) {
                    state.ceph.osds.set_needed(OsdId(osd), groups);
                }
            }
            Action::DiskIsLost { host, ref device } => {
                state.ceph.osds.remove_disk(&state.hosts[host].name, device);
                let Ceph { osds, osd_truth, .. } = &mut state.ceph;
                osd_truth.disks_changed(osds, &state.hosts);
            }
            Action::DiskIsNew { host, ref device } => {
                state.ceph.osds.add_blank(&state.hosts[host].name, device, DISKS[0].1);
            }
            Action::ForgetOsds(host) => state.ceph.osds.forget_osds(&state.hosts[host].name),
            Action::SwapDisks(host) => {
                let [(one, _), (other, _)] = DISKS;
                state.ceph.osds.swap_disks(&state.hosts[host].name, one, other);
            }
            Action::FlushFirewall(host) => {
                state.networks.flush_firewall(&state.hosts, host, state.run.now);
            }
            Action::LoseTunnel(host, vni) => {
                state.networks.lose_tunnel(&state.hosts, host, vni, state.run.now);
            }
            Action::CrashServer(vni) => {
                let name = format!("dnsmasq-{vni}");
                state.hosts.iter().for_each(|host| host.programs.crash(&name));
            }
            Action::RefuseRules(host, ref text) => {
                state.networks.refuse_rules(&mut state.hosts, host, text, state.run.now);
            }
            Action::TakeRules(host) => {
                state.networks.take_rules(&mut state.hosts, host, state.run.now);
            }
            Action::MoveAway(_) | Action::Ask(_) => unreachable!("operators ask by themselves"),
        }
        state.rearranged();
    }

    /// Whether there is anything that it changes: nothing loses the power that it has not.
    fn applies_to(&self, state: &State) -> bool {
        match *self {
            Action::PowerLoss(host) => state.hosts[host].on,
            Action::PowerReturn(host) => {
                !state.hosts[host].on && !state.hosts[host].build.is_broken
            }
            Action::BreakDown(host) => !state.hosts[host].build.is_broken,
            Action::Repair(host) => state.hosts[host].build.is_broken,
            Action::Unplug(host, net) => state.hosts[host].cables.are_plugged(net),
            Action::Plug(host, net) => !state.hosts[host].cables.are_plugged(net),
            Action::FreezeDaemon(host) => daemon(state, host).is_some_and(|daemon| !daemon.frozen),
            Action::ThawDaemon(host) => daemon(state, host).is_some_and(|daemon| daemon.frozen),
            Action::FreezeHost(host) => state.hosts[host].on && !state.hosts[host].frozen,
            Action::ThawHost(host) => state.hosts[host].frozen,
            Action::KillDaemon(host)
            | Action::RestartDaemon(host)
            | Action::StopDaemon(host)
            | Action::BreakAfterWrite(host) => daemon(state, host).is_some(),
            Action::StartDaemon(host) => state.hosts[host].on && daemon(state, host).is_none(),
            Action::KillApi(host) | Action::RestartApi(host) | Action::StopApi(host) => {
                state.hosts[host].api.is_some()
            }
            Action::KillWorker(host) | Action::RestartWorker(host) | Action::StopWorker(host) => {
                state.hosts[host].worker.is_some()
            }
            Action::Bmc(host, manner) => state.bmcs[host].manner != manner,
            Action::ServerDown(host) => state.hosts[host].on && state.hosts[host].server_up,
            Action::ServerUp(host) => !state.hosts[host].server_up,
            Action::ServerLags(host, _) => state.hosts[host].is_coordinator && state.hosts[host].on,
            Action::DiskFills(host) => !state.hosts[host].disk_full,
            Action::DiskHasRoom(host) => state.hosts[host].disk_full,
            Action::HypervisorDown(host) => state.hosts[host].on && state.hypervisors[host].is_up,
            Action::HypervisorUp(host) => !state.hypervisors[host].is_up,
            Action::CephSilent => !state.ceph.silent,
            Action::CephAnswers => state.ceph.silent,
            Action::CrashGuest(vm) | Action::PauseGuest(vm) | Action::ResumeGuest(vm) => {
                (0..state.hosts.len())
                    .any(|host| state.hypervisors[host].guests.contains_key(&vm_uuid(vm)))
            }
            Action::StartApi(host) => state.hosts[host].on && state.hosts[host].api.is_none(),
            Action::StartWorker(host) => state.hosts[host].on && state.hosts[host].worker.is_none(),
            Action::FlushFirewall(host)
            | Action::LoseTunnel(host, _)
            | Action::RefuseRules(host, _) => state.hosts[host].is_up(),
            Action::ServerKeepsUp(_)
            | Action::CrashServer(_)
            | Action::TakeRules(_)
            | Action::Upgrade(_)
            | Action::Downgrade(_)
            | Action::StepClock(..)
            | Action::StoreTakesNoWrites
            | Action::StoreTakesWrites
            | Action::Layout(_)
            | Action::UnknownKeys
            | Action::FailStarts { .. }
            | Action::DeafenGuest(_)
            | Action::CalmGuest(_)
            | Action::LoseVolume(_)
            | Action::LockVolume(_)
            | Action::LoseLock(_)
            | Action::DatabaseFails
            | Action::DatabaseSilent
            | Action::DatabaseAnswers
            | Action::JobStops(..)
            | Action::JobGoesOn
            | Action::UploadStops(_)
            | Action::UploadGoesOn
            | Action::ChangeStops(_)
            | Action::ChangeGoesOn
            | Action::OsdIsNeeded(..)
            | Action::DiskIsLost { .. }
            | Action::DiskIsNew { .. }
            | Action::ForgetOsds(_)
            | Action::SwapDisks(_)
            | Action::MoveAway(_)
            | Action::Ask(_) => true,
        }
    }
}

fn on_database(state: &State, act: impl FnOnce(&DatabaseMembers)) {
    if let Some(database) = &state.database_cluster {
        act(database);
    }
}

fn daemon(state: &State, host: usize) -> Option<&Process> {
    state.hosts[host].daemon.as_ref().map(|daemon| &state.processes[daemon.pid])
}

fn volume(state: &State, vm: usize) -> VolumeId {
    state.ceph.disks[&vm_uuid(vm)].clone()
}

fn freeze_daemon(state: &mut State, host: usize, frozen: bool) {
    if let Some(daemon) = &state.hosts[host].daemon {
        state.processes[daemon.pid].frozen = frozen;
    }
}
