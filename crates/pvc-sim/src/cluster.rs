//! A cluster in the world: made, run, asked, looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pvc_model::NodeName;
use pvc_model::cluster::Cluster as View;
use pvc_model::node::{DaemonState, DomainState, NodeRecord};
use pvc_model::storage::{PoolName, VolumeId};
use pvc_model::vm::{MigrationMethod, Selector, VmState};
use pvc_ops::vm::Define;
use pvc_ports::GuestRun;
use pvc_store::{Change, Changes, NodeChange, Store};
use pvc_testkit::legacy::LegacyApi;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::actions::{Action, Ask, Event};
use crate::daemons::{eyes, usual_rules};
use crate::guest_networks;
use crate::guests::Manner;
use crate::host::Host;
use crate::legacy::{in_older_words, open_legacy_api};
use crate::log::Log;
use crate::nature::Nature;
use crate::new_vms::NewVmAsk;
use crate::operators::{Answer, Counter, Names, Refusal, TIME_LIMIT, in_time, kind_of, said};
use crate::process::Gate;
use crate::promises::{Goal, Promises};
use crate::sriov::Function;
use crate::state::{State, World};
use crate::truth::Violation;
use crate::zookeeper::Ensemble;

/// Hosts, VMs and settings of a cluster.
#[derive(Debug, Clone)]
pub struct Shape {
    pub nature: Nature,
    /// Time limits of fencers, and what they may do.
    pub fencing: pvc_model::fence::Rules,
    pub hosts: Vec<HostShape>,
    pub vms: Vec<VmShape>,
}

#[derive(Debug, Clone)]
pub struct HostShape {
    pub name: String,
    pub is_coordinator: bool,
    pub memory_mib: u64,
    pub drift_ppm: i64,
    /// Whether it begins with PVC 1.0.3.
    pub is_legacy: bool,
}

#[derive(Debug, Clone)]
pub struct VmShape {
    pub name: String,
    pub memory_mib: u64,
    /// Whether it is defined from the beginning, or only once somebody asks for it.
    pub exists: bool,
    pub runs: bool,
    pub(crate) manner: Manner,
    pub(crate) rules: Rules,
    /// Numbers of the networks that it is plugged into.
    pub(crate) networks: Vec<u32>,
    /// The function of an SR-IOV card that it has for itself.
    pub(crate) function: Option<Function>,
}

/// Settings of an operator for a VM, beside what it is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rules {
    /// Host that the VM is to be on; `None`: spread.
    pub host: Option<usize>,
    /// Whether the VM is disabled, not only off: nobody wonders.
    pub is_disabled: bool,
    /// The only hosts it may be placed on; empty: any.
    pub limit: Vec<usize>,
    pub selector: Option<Selector>,
    pub method: Option<MigrationMethod>,
}

impl Shape {
    /// Makes a shape of so many coordinators with 64 GiB each and so many VMs that run, in a world
    /// where everything takes a moment and nothing fails by itself.
    pub fn plain(hosts: usize, vms: usize) -> Shape {
        let nature = Nature {
            seed: 1,
            latency_ms: (1, 3),
            hiccups: 0,
            lag_ms: (0, 0),
            lost_words: 0,
            broken_writes: 0,
            reset_after: None,
            elections: None,
            monitors: false,
            networks: 0,
            functions: 0,
            database: false,
            mutation: None,
        };
        let host = |index| HostShape {
            name: host_name(index),
            is_coordinator: true,
            memory_mib: 64 << 10,
            drift_ppm: 0,
            is_legacy: false,
        };
        let vm = |index| VmShape {
            name: vm_name(index),
            memory_mib: 1024,
            exists: true,
            runs: true,
            manner: Manner::default(),
            rules: Rules::default(),
            networks: Vec::new(),
            function: None,
        };
        Shape {
            nature,
            fencing: usual_rules(),
            hosts: (0..hosts).map(host).collect(),
            vms: (0..vms).map(vm).collect(),
        }
    }

    pub(crate) fn host_name(&self, host: usize) -> String {
        self.hosts[host].name.clone()
    }

    pub(crate) fn host_called(&self, name: &str) -> Option<usize> {
        self.hosts.iter().position(|host| host.name == name)
    }

    pub(crate) fn vm_name(&self, vm: usize) -> String {
        self.vms[vm].name.clone()
    }
}

/// A cluster that runs.
pub struct Cluster {
    pub(crate) world: World,
    pub(crate) eyes: Store,
    pub(crate) shape: Shape,
    promises: Arc<Mutex<Promises>>,
    asks: Arc<Mutex<u64>>,
    /// VMs whose locks somebody had flushed before trying again.
    flushed: Mutex<BTreeSet<Uuid>>,
    log: Log,
}

pub(crate) fn vm_uuid(vm: usize) -> Uuid {
    Uuid::from_u128(0x5afe_0000_0000_4000_8000_0000_0000_0000 + vm as u128)
}

pub(crate) fn vm_name(vm: usize) -> String {
    format!("vm{vm}")
}

pub(crate) fn host_name(host: usize) -> String {
    format!("hv{}", host + 1)
}

/// The XML of a VM with one disk, and what else it has by its shape.
fn xml(vm: usize, name: &str, memory_mib: u64, volume: &VolumeId, shape: &VmShape) -> String {
    let (uuid, mac) = (vm_uuid(vm), guest_networks::mac(vm));
    let card = |vni: &u32| {
        format!(
            "<interface type='bridge'><mac address='{mac}'/><source bridge='vmbr{vni}'/>\
             <model type='virtio'/></interface>"
        )
    };
    let function = shape.function.map(|function| function.xml(&mac));
    let cards: String = shape.networks.iter().map(card).chain(function).collect();
    format!(
        "<domain type='kvm'><name>{name}</name><uuid>{uuid}</uuid><memory \
         unit='MiB'>{memory_mib}</memory><vcpu>1</vcpu>\
         <os><type arch='x86_64' \
         machine='pc'>hvm</type></os><devices><emulator>/usr/bin/kvm</emulator>\
         <disk type='network' device='disk'><driver name='qemu'/><source protocol='rbd' \
         name='{volume}'/>\
         <target dev='sda' bus='scsi'/></disk>{cards}\
         <serial type='pty'/><console type='pty'/></devices></domain>"
    )
}

/// Time for which a guest may be held until it goes on at its destination.
const HANDED_OVER: Duration = Duration::from_millis(500);

impl Cluster {
    /// Switches every host on and waits until the cluster is ready and its VMs run.
    ///
    /// # Errors
    /// If something is violated on the way, or it takes longer than ten minutes.
    pub async fn start(shape: Shape, log: Log) -> Result<Cluster, Violation> {
        let host = |shape: &HostShape| {
            let host = Host::new(
                shape.name.clone(),
                shape.is_coordinator,
                shape.memory_mib,
                shape.drift_ppm,
            );
            Host { is_legacy: shape.is_legacy, installs_legacy: shape.is_legacy, ..host }
        };
        let hosts = shape.hosts.iter().map(host);
        let world = World::new(shape.nature, log.clone(), hosts.collect());
        world.with(|state| state.run.rules = shape.fencing.clone());
        let eyes = eyes(&world, shape.nature.seed).await;
        eyes.initialize(false).await.expect("an empty tree becomes a cluster");
        world.with(|state| {
            state.with_zookeeper(Ensemble::watch_sessions);
            for host in 0..state.hosts.len() {
                state.with_zookeeper(|zookeeper, around| zookeeper.lag_as_usual(around, host));
                state.power_on(host, "the first time");
            }
        });
        let (promises, asks) = (Arc::default(), Arc::default());
        let cluster =
            Cluster { world, eyes, shape, promises, asks, flushed: Mutex::default(), log };
        cluster.watch_records();
        let limit = Duration::from_secs(600);
        let runs = |cluster: &View| {
            cluster.nodes.values().all(|node| node.daemon_state == DaemonState::Run)
        };
        let wanted = cluster.shape.hosts.len();
        cluster
            .until("every node runs", limit, |cluster| {
                cluster.eyes.view().nodes.len() == wanted && runs(&cluster.eyes.view())
            })
            .await?;
        let functions = cluster.shape.nature.functions as usize;
        let has_them = |node: &Arc<NodeRecord>| node.sriov.vfs.len() == functions;
        cluster
            .until("every node has recorded its functions", limit, |cluster| {
                cluster.eyes.view().nodes.values().all(has_them)
            })
            .await?;
        cluster.furnish().await?;
        let all = cluster.shape.vms.clone();
        // Where guests die at their start by chance, one of thousands does eight times in a row
        // (seed 20062097), and is tried ever more slowly.
        let limit = Duration::from_secs(3600);
        cluster
            .until("every VM runs", limit, |cluster| {
                all.iter()
                    .enumerate()
                    .all(|(vm, shape)| !shape.runs || cluster.runs_on(vm).len() == 1)
            })
            .await?;
        Ok(cluster)
    }

    /// Makes the nodes ready, records the pool and defines the VMs, as whoever set the cluster up
    /// did.
    async fn furnish(&self) -> Result<(), Violation> {
        let mut changes = Changes::new();
        for host in 0..self.shape.hosts.len() {
            changes.node(
                &NodeName::new(self.shape.host_name(host)),
                NodeChange::Domain(DomainState::Ready),
            );
        }
        if self.world.with(|state| state.run.nature.monitors) {
            let (name, pgs, tier) = (PoolName::new("vms"), "64".to_owned(), "default".to_owned());
            changes.push(Change::PutPool { name, pgs, tier });
        }
        let networks = self.shape.nature.networks;
        for vni in (guest_networks::FIRST_VNI..).take(networks as usize) {
            let record = guest_networks::first_record(vni);
            changes.push(Change::PutNetwork(Box::new(record)));
        }
        let ready = self.eyes.change(|_| Ok::<_, std::convert::Infallible>((changes.clone(), ())));
        ready.await.expect("an onlooker can write");
        for (vm, shape) in self.shape.vms.iter().enumerate() {
            let volume =
                VolumeId::from_record(&format!("vms/{}_sda", shape.name)).expect("a volume's name");
            self.world.with(|state| {
                state.ceph.volumes.insert(&volume);
                state.ceph.disks.insert(vm_uuid(vm), volume);
                state.hypervisors.manners.insert(vm_uuid(vm), shape.manner);
            });
            if !shape.exists {
                continue;
            }
            let rules = &shape.rules;
            let state = match (shape.runs, rules.is_disabled) {
                (true, _) => VmState::Start,
                (false, true) => VmState::Disable,
                (false, false) => VmState::Stop,
            };
            // Spread by hand: the figures of the nodes lag behind so many definitions.
            let host = rules.host.unwrap_or(vm % self.shape.hosts.len());
            let define = Define {
                state,
                node: Some(self.shape.host_name(host)),
                node_limit: rules.limit.iter().map(|host| self.shape.host_name(*host)).collect(),
                selector: rules.selector.clone(),
                migration_method: rules.method.clone(),
                ..Define::new(self.xml_of(vm, &shape.name, shape.memory_mib))
            };
            if let Err(refusal) = pvc_ops::vm::define(&self.eyes, &define).await {
                let what = format!("VM {} cannot be defined: {refusal}", shape.name);
                return Err(Violation { rule: "scene".to_owned(), what });
            }
            let goal = if shape.runs { Goal::Runs } else { Goal::IsOff };
            let goals = [
                goal,
                Goal::IsThere,
                Goal::IsCalled(shape.name.clone()),
                Goal::Has(shape.memory_mib),
                Goal::IsLimitedTo(rules.limit.clone()),
                Goal::MovesOnly(rules.method.clone()),
            ];
            self.promises().begin_with(vm, goals);
        }
        Ok(())
    }

    pub(crate) fn promises(&self) -> MutexGuard<'_, Promises> {
        self.promises.lock().expect("nothing panics while it holds them")
    }

    /// Holds what the records say of dead nodes against the truth.
    fn watch_records(&self) {
        let (world, eyes) = (self.world.clone(), self.eyes.clone());
        let names: Vec<String> = self.shape.hosts.iter().map(|host| host.name.clone()).collect();
        tokio::spawn(async move {
            let mut changes = eyes.changed();
            let mut known: BTreeMap<usize, (DaemonState, Duration)> = BTreeMap::new();
            while changes.changed().await.is_ok() {
                let view = eyes.view();
                world.with(|state| {
                    state.judge(|truth, sight| truth.records_changed(sight, view.clone()));
                    state.look_at_jobs(&view);
                    state.ceph.uploads.look(&view, state.run.now);
                    state.networks.look_at_recorded(state.zookeeper.take_recorded_networks());
                    state.ceph.osd_truth.look(&view);
                });
                for (host, name) in names.iter().enumerate() {
                    let Some(record) = view.nodes.get(name.as_str()) else { continue };
                    let now = world.now();
                    let state = record.daemon_state.clone();
                    let before = known.get(&host).cloned();
                    if before.as_ref().is_some_and(|(before, _)| *before == state) {
                        continue;
                    }
                    world.with(|world| {
                        world.run.note(format!("record: {name} is {state}"));
                        if state == DaemonState::Dead {
                            let does = "the records call dead";
                            world.judge(|truth, sight| truth.of_suspicion(sight, host, None, does));
                        }
                        if let (DaemonState::Fenced, Some((_, since))) = (&state, before) {
                            world.truth.fenced += 1;
                            world.judge(|truth, sight| truth.of_fenced(sight, host, since));
                        }
                    });
                    // How long ago it was last seen alive.
                    let since = match (&state, known.get(&host)) {
                        (DaemonState::Fenced, Some((_, since))) => *since,
                        (DaemonState::Dead, _) => now.saturating_sub(Duration::from_secs(60)),
                        _ => now,
                    };
                    known.insert(host, (state, since));
                }
            }
        });
    }

    pub fn now(&self) -> Duration {
        self.world.now()
    }

    pub fn log(&self) -> &Log {
        &self.log
    }

    pub fn view(&self) -> Arc<View> {
        self.eyes.view()
    }

    pub fn violation(&self) -> Option<Violation> {
        let panic = crate::log::panicked();
        let panic = panic.map(|what| Violation { rule: "panic".to_owned(), what });
        panic.or_else(|| self.world.with(|state| state.truth.violation.clone()))
    }

    /// The hosts on which the VM really runs.
    pub fn runs_on(&self, vm: usize) -> Vec<usize> {
        self.guest_runs_on(vm_uuid(vm))
    }

    /// The hosts on which the guest of the VM with this UUID really runs.
    pub(crate) fn guest_runs_on(&self, vm: Uuid) -> Vec<usize> {
        self.world.with(|state| {
            let here = |host: &usize| {
                let guest = state.hypervisors[*host].guests.get(&vm);
                guest.is_some_and(|guest| match guest.is_incoming {
                    false => guest.is_alive() && guest.run != GuestRun::Leaving,
                    // At the end of a move it stands still for a moment, wherever that is.
                    true => {
                        guest.is_whole
                            && !guest.is_stale
                            && state.run.now <= guest.since + HANDED_OVER
                    }
                })
            };
            (0..state.hosts.len()).filter(here).collect()
        })
    }

    /// Memory that the guests of a host have and are promised, and memory that there is for them,
    /// in MiB.
    pub(crate) fn memory_of(&self, host: usize) -> (u64, u64) {
        self.world
            .with(|state| (state.hypervisors[host].guests_mib(), state.hosts[host].room_mib()))
    }

    /// Lets time pass, and stops early at a violation.
    pub async fn pass(&self, time: Duration) -> Result<(), Violation> {
        let until = self.now() + time;
        while self.now() < until {
            self.sleep(Duration::from_secs(1).min(until - self.now())).await;
            self.world.with(State::look_at_networks);
            if let Some(violation) = self.violation() {
                return Err(violation);
            }
        }
        Ok(())
    }

    #[allow(clippy::disallowed_methods, reason = "the simulation owns time")]
    async fn sleep(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Waits until `ready`.
    ///
    /// # Errors
    /// If something is violated on the way, or it takes longer than `limit`.
    pub async fn until(
        &self,
        what: &str,
        limit: Duration,
        ready: impl Fn(&Cluster) -> bool,
    ) -> Result<(), Violation> {
        let end = self.now() + limit;
        while !ready(self) {
            if self.now() >= end {
                let what = format!("not within {} s: {what}", limit.as_secs());
                return Err(Violation { rule: "progress".to_owned(), what });
            }
            self.pass(Duration::from_millis(500)).await?;
        }
        Ok(())
    }

    /// Has everything of a history happen in its time, counted from now.
    pub async fn live(&self, history: &[Event]) -> Result<(), Violation> {
        let begun = self.now();
        for event in history {
            let at = begun + event.time();
            if at > self.now() {
                self.pass(at - self.now()).await?;
            }
            self.act(&event.action);
        }
        Ok(())
    }

    pub fn act(&self, action: &Action) {
        match action {
            Action::Ask(ask) => self.ask(ask.clone()),
            Action::MoveAway(host) => self.move_away(*host),
            fault => self.world.with(|state| fault.happens_to(state)),
        }
    }

    /// Whether it takes for off what runs where nobody can say so: there operators have to look
    /// first.
    fn may_harm(&self, ask: &Ask) -> bool {
        if let Ask::ConfirmOff(host) = ask {
            return self.world.with(|state| state.hosts[*host].on);
        }
        let view = self.view();
        let vm = match ask {
            Ask::FlushLocks(vm) | Ask::Undefine(vm) => Some(vm_uuid(*vm)),
            Ask::NewVm(NewVmAsk::FlushLocks { name }) => {
                self.world.with(|state| state.new_vms(&view).uuid(name))
            }
            _ => None,
        };
        let Some(vm) = vm else { return false };
        let is_silent = |host: &usize| {
            let node = view.nodes.get(self.shape.host_name(*host).as_str());
            node.is_none_or(|node| node.daemon_state != DaemonState::Run)
        };
        self.guest_runs_on(vm).iter().any(is_silent)
    }

    /// Has an operator ask for something, on some coordinator that can hear it.
    pub fn ask(&self, ask: Ask) {
        if !self.may_harm(&ask) {
            drop(self.ask_for_answer(ask, None));
        }
    }

    /// Has an operator give the VMs that are off and assigned to the host to other nodes: its
    /// record does not go before.
    fn move_away(&self, host: usize) {
        let (view, node) = (self.view(), NodeName::new(self.shape.host_name(host)));
        for vm in 0..self.shape.vms.len() {
            let is_off_there = view.vms.get(&vm_uuid(vm)).is_some_and(|record| {
                let is_off =
                    matches!(record.state, VmState::Stop | VmState::Disable | VmState::Fail);
                is_off && record.is_assigned_to(&node)
            });
            if is_off_there {
                self.ask(Ask::Move { vm, to: None, live_only: false });
            }
        }
    }

    /// Asks as [`ask`](Cluster::ask) does, through the coordinator `through` if one is named.
    /// Returns the answer to come, or `None` if nobody receives the request.
    pub(crate) fn ask_for_answer(
        &self,
        ask: Ask,
        through: Option<usize>,
    ) -> Option<oneshot::Receiver<Answer>> {
        let number = {
            let mut asks = self.asks.lock().expect("nothing panics while it holds the number");
            *asks += 1;
            *asks
        };
        let api = self.api_to_ask(through);
        let Some(api) = api else {
            let what = format!("operator {number}: {ask:?}: nobody hears it");
            self.world.with(|state| state.run.note(what));
            return None;
        };
        self.world.with(|state| {
            state.run.note(format!("operator {number}: {ask:?}"));
            state.run.count(Action::Ask(ask.clone()).kind());
        });
        self.promises().asked(&ask);
        match &ask {
            Ask::Storage(ask) => self.world.with(|state| state.ceph.changes.asked(ask)),
            Ask::Network(ask) => self.world.with(|state| state.networks.asked(ask)),
            Ask::RemoveNode(host) => {
                let node = NodeName::new(self.shape.host_name(*host));
                self.world.with(|state| state.truth.orders.removal_asked(node));
            }
            _ => {}
        }
        let begun = self.now();
        let (world, promises, names) =
            (self.world.clone(), self.promises.clone(), self.names(&ask));
        let (shape, file) = (self.shape.clone(), names.file);
        let (answered, answer) = oneshot::channel();
        tokio::spawn(async move {
            let answer = match api {
                Api::Ours(counter) => counter.ask(&ask, &names).await,
                Api::LegacyPeer(api) => match in_older_words(&shape, &ask) {
                    Some(words) => in_time(TIME_LIMIT, api.ask(&words))
                        .await
                        .map(|said| said.map_err(Refusal::new)),
                    None => Some(Err(Refusal::new(
                        "the peer of PVC 1.0.3 that is played here cannot do that",
                    ))),
                },
            };
            world.with(|state| {
                state.run.note(format!("operator {number}: {}", said(&answer)));
                state.run.count(kind_of(&answer).to_owned());
                if let Some(file) = file {
                    state.ceph.uploads.answered(file, &answer);
                }
                match &ask {
                    Ask::Storage(ask) => state.storage_answered(ask, begun, &answer),
                    Ask::Network(ask) => state.networks.answered(ask, &answer),
                    _ => {}
                }
            });
            promises.lock().expect("nothing panics while it holds them").answered(&ask, &answer);
            let _ = answered.send(answer); // who asked may not wait for it
        });
        Some(answer)
    }

    /// The API of some coordinator that can be reached, or of the one that is named.
    fn api_to_ask(&self, through: Option<usize>) -> Option<Api> {
        self.world.with(|state| {
            let reachable = |host: &usize| {
                let known = &state.hosts[*host];
                let is_meant = through.is_none_or(|named| named == *host);
                known.on && !known.frozen && known.cables.upstream && is_meant
            };
            let ours = |host: usize| {
                let api = state.hosts[host].api.as_ref()?;
                let gate = Gate { world: self.world.clone(), pid: api.daemon.pid };
                Some(Api::Ours(Counter { gate, host, desk: api.desk.clone()? }))
            };
            let open: Vec<Api> = (0..state.hosts.len())
                .filter(reachable)
                .filter_map(|host| match state.hosts[host].is_legacy {
                    true => open_legacy_api(state, host).map(Api::LegacyPeer),
                    false => ours(host),
                })
                .collect();
            state.run.chance.pick(&open).cloned()
        })
    }

    /// Present names of everything, and the XML that the request brings along.
    fn names(&self, ask: &Ask) -> Names {
        let (view, shape) = (self.view(), &self.shape);
        let name =
            |vm| view.vms.get(&vm_uuid(vm)).map_or_else(|| shape.vm_name(vm), |vm| vm.name.clone());
        let xml = match ask {
            Ask::Define(vm) => self.xml_of(*vm, &shape.vm_name(*vm), shape.vms[*vm].memory_mib),
            Ask::Modify { vm, memory_mib } => self.xml_of(*vm, &name(*vm), *memory_mib),
            _ => String::new(),
        };
        Names {
            hosts: shape.hosts.iter().map(|host| host.name.clone()).collect(),
            vms: (0..shape.vms.len()).map(name).collect(),
            volumes: self.volumes(|_, volume| volume.to_string()),
            file: match ask {
                Ask::Upload { vm, sending } => {
                    Some(self.world.with(|state| state.ceph.uploads.begin(*vm, *sending)))
                }
                _ => None,
            },
            task: self.world.with(|state| state.jobs.at_work()).unwrap_or_default(),
            trashed: self.volumes(|state, volume| {
                let id = state.ceph.volumes.trash_id(volume);
                format!("{}/{}", volume.pool, id.map(|id| id.to_string()).unwrap_or_default())
            }),
            xml,
        }
    }

    /// Words about the volume of each VM.
    fn volumes(&self, said: impl Fn(&State, &VolumeId) -> String) -> Vec<String> {
        self.world.with(|state| {
            let volume = |vm| state.ceph.disks.get(&vm_uuid(vm));
            let vms = 0..self.shape.vms.len();
            vms.map(|vm| volume(vm).map_or_else(String::new, |id| said(state, id))).collect()
        })
    }

    fn xml_of(&self, vm: usize, name: &str, memory_mib: u64) -> String {
        // Its volume has followed it through every renaming.
        let volume = self.world.with(|state| state.ceph.disks[&vm_uuid(vm)].clone());
        xml(vm, name, memory_mib, &volume, &self.shape.vms[vm])
    }

    /// Every second time that somebody looks after a VM, its locks are flushed.
    pub(crate) fn begins_to_flush_locks(&self, vm: Uuid) -> bool {
        let mut flushed = self.flushed.lock().expect("nothing panics while it holds them");
        flushed.insert(vm) || !flushed.remove(&vm)
    }

    pub fn heal(&self) {
        self.world.with(crate::state::State::heal);
    }

    /// Whether the coordinators without `host` that have power, and that nobody takes for dead, are
    /// a quorum.
    pub(crate) fn have_quorum_without(&self, host: usize) -> bool {
        let view = self.view();
        let taken_for_dead = |host: usize| {
            let node = view.nodes.get(self.shape.host_name(host).as_str());
            node.is_none_or(|node| {
                matches!(node.daemon_state, DaemonState::Dead | DaemonState::Fenced)
            })
        };
        let coordinators: Vec<usize> = (0..self.shape.hosts.len())
            .filter(|host| self.shape.hosts[*host].is_coordinator)
            .collect();
        let is_well = |other: &&usize| {
            **other != host
                && self.world.with(|state| state.hosts[**other].on)
                && !taken_for_dead(**other)
        };
        2 * coordinators.iter().filter(is_well).count() > coordinators.len()
    }

    /// The host dies, and is not to be switched on again before everything heals.
    pub(crate) fn breaks_down(&self, host: usize) {
        self.act(&Action::BreakDown(host));
    }

    /// Whether the machine is broken, and its node was removed: nothing is expected of it any more.
    pub(crate) fn is_gone(&self, host: usize) -> bool {
        self.world.with(|state| state.is_gone(host))
    }
}

/// API that receives an operator's request.
#[derive(Clone)]
enum Api {
    Ours(Counter),
    LegacyPeer(Arc<LegacyApi>),
}
