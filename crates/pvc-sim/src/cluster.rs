//! A cluster in the world: made, run, asked, looked at.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pvc_model::NodeName;
use pvc_model::cluster::Cluster as View;
use pvc_model::node::{DaemonState, DomainState};
use pvc_model::request::StateRequest;
use pvc_model::storage::VolumeId;
use pvc_model::vm::{MigrationMethod, Selector, VmState};
use pvc_ops::node::{CoordinatorRequest, DomainRequest};
use pvc_ops::vm::{Define, Meta, Move, Movement};
use pvc_store::{Changes, NodeChange, Store};
use pvc_testkit::TokioClock;
use pvc_testkit::older::OlderApi;
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::actions::{Action, Ask, Event, OnlyWay};
use crate::daemons::eyes;
use crate::guests::Manner;
use crate::host::Host;
use crate::log::Log;
use crate::older::in_older_words;
use crate::state::{Nature, World};
use crate::truth::Violation;

/// How long an operator waits for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a cluster is made of.
#[derive(Debug, Clone)]
pub struct Shape {
    pub nature: Nature,
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
    pub is_older: bool,
}

#[derive(Debug, Clone)]
pub struct VmShape {
    pub name: String,
    pub memory_mib: u64,
    pub runs: bool,
    pub(crate) manner: Manner,
    pub(crate) rules: Rules,
}

/// What an operator said about a VM, beside what it is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rules {
    /// Where it is to be; `None`: spread.
    pub host: Option<usize>,
    /// Not only off: nobody wonders.
    pub is_disabled: bool,
    /// The only hosts it may be placed on; empty: any.
    pub limit: Vec<usize>,
    pub selector: Option<Selector>,
    pub method: Option<MigrationMethod>,
}

impl Shape {
    /// So many coordinators with 64 GiB each and so many VMs that run, in a world where everything takes a moment
    /// and nothing fails by itself.
    pub fn plain(hosts: usize, vms: usize) -> Shape {
        let nature = Nature {
            seed: 1,
            latency_ms: (1, 3),
            hiccups: 0,
            lost_words: 0,
            broken_writes: 0,
            reset_after: None,
            mutation: None,
        };
        let host = |index| HostShape {
            name: host_name(index),
            is_coordinator: true,
            memory_mib: 64 << 10,
            drift_ppm: 0,
            is_older: false,
        };
        let vm = |index| VmShape {
            name: vm_name(index),
            memory_mib: 1024,
            runs: true,
            manner: Manner::default(),
            rules: Rules::default(),
        };
        Shape { nature, hosts: (0..hosts).map(host).collect(), vms: (0..vms).map(vm).collect() }
    }

    pub(crate) fn host_name(&self, host: usize) -> String {
        self.hosts[host].name.clone()
    }

    pub(crate) fn vm_name(&self, vm: usize) -> String {
        self.vms[vm].name.clone()
    }
}

/// What an operator was promised of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    Runs,
    IsOff,
    /// Nobody knows: an ask failed half way, or another one was made meanwhile.
    Unknown,
}

/// A cluster that runs.
pub struct Cluster {
    pub(crate) world: World,
    pub(crate) eyes: Store,
    pub(crate) shape: Shape,
    pub(crate) wishes: Arc<Mutex<BTreeMap<usize, Wish>>>,
    asks: Arc<Mutex<u64>>,
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

fn xml(vm: usize, shape: &VmShape) -> String {
    let (name, uuid, memory) = (&shape.name, vm_uuid(vm), shape.memory_mib);
    format!(
        "<domain type='kvm'><name>{name}</name><uuid>{uuid}</uuid><memory unit='MiB'>{memory}</memory><vcpu>1</vcpu>\
         <os><type arch='x86_64' machine='pc'>hvm</type></os><devices><emulator>/usr/bin/kvm</emulator>\
         <disk type='network' device='disk'><driver name='qemu'/><source protocol='rbd' name='vms/{name}_sda'/>\
         <target dev='sda' bus='scsi'/></disk>\
         <serial type='pty'/><console type='pty'/></devices></domain>"
    )
}

impl Cluster {
    /// Switches every host on and waits until the cluster is ready and its VMs run.
    ///
    /// # Errors
    /// If something is violated on the way, or it takes longer than ten minutes.
    pub async fn start(shape: Shape, log: Log) -> Result<Cluster, Violation> {
        let host = |shape: &HostShape| {
            let host = Host::new(shape.name.clone(), shape.is_coordinator, shape.memory_mib, shape.drift_ppm);
            Host { is_older: shape.is_older, wants_older: shape.is_older, ..host }
        };
        let hosts = shape.hosts.iter().map(host);
        let world = World::new(shape.nature, log.clone(), hosts.collect());
        let eyes = eyes(&world, shape.nature.seed).await;
        eyes.initialize(false).await.expect("an empty tree becomes a cluster");
        world.with(|state| {
            state.watch_sessions();
            for host in 0..state.hosts.len() {
                state.power_on(host, "the first time");
            }
        });
        let (wishes, asks) = (Arc::default(), Arc::default());
        let cluster = Cluster { world, eyes, shape, wishes, asks, log };
        cluster.watch_records();
        let limit = Duration::from_secs(600);
        let runs = |cluster: &View| cluster.nodes.values().all(|node| node.daemon_state == DaemonState::Run);
        let wanted = cluster.shape.hosts.len();
        cluster
            .until("every node runs", limit, |cluster| {
                cluster.eyes.view().nodes.len() == wanted && runs(&cluster.eyes.view())
            })
            .await?;
        cluster.furnish().await;
        let all = cluster.shape.vms.clone();
        cluster
            .until("every VM runs", limit, |cluster| {
                all.iter().enumerate().all(|(vm, shape)| !shape.runs || cluster.runs_on(vm).len() == 1)
            })
            .await?;
        Ok(cluster)
    }

    /// Makes the nodes ready and defines the VMs, as whoever set the cluster up did.
    async fn furnish(&self) {
        let mut changes = Changes::new();
        for host in 0..self.shape.hosts.len() {
            changes.node(&NodeName::new(self.shape.host_name(host)), NodeChange::Domain(DomainState::Ready));
        }
        let ready = self.eyes.change(|_| Ok::<_, std::convert::Infallible>((changes.clone(), ())));
        ready.await.expect("an onlooker can write");
        for (vm, shape) in self.shape.vms.iter().enumerate() {
            let volume = VolumeId::from_record(&format!("vms/{}_sda", shape.name)).expect("a volume's name");
            self.world.with(|state| {
                state.ceph.volumes.insert(volume.clone(), None);
                state.migrations.volumes.insert(vm_uuid(vm), volume);
                state.migrations.manners.insert(vm_uuid(vm), shape.manner);
            });
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
                ..Define::new(xml(vm, shape))
            };
            pvc_ops::vm::define(&self.eyes, &define).await.expect("the shape fits");
            let wish = if shape.runs { Wish::Runs } else { Wish::IsOff };
            self.wishes.lock().expect("nothing panics while it holds them").insert(vm, wish);
        }
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
                for (host, name) in names.iter().enumerate() {
                    let Some(record) = view.nodes.get(name.as_str()) else { continue };
                    let now = world.now();
                    let state = record.daemon_state.clone();
                    let before = known.get(&host).cloned();
                    if before.as_ref().is_some_and(|(before, _)| *before == state) {
                        continue;
                    }
                    world.with(|world| {
                        world.note(format!("record: {name} is {state}"));
                        if state == DaemonState::Dead {
                            world.truth_of_suspicion(host, None, "the records call dead");
                        }
                        if let (DaemonState::Fenced, Some((_, since))) = (&state, before) {
                            world.truth.fenced += 1;
                            world.truth_of_fenced(host, since);
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
        self.world.with(|state| {
            let here = |host: &usize| {
                state.hosts[*host].guests.get(&vm_uuid(vm)).is_some_and(|guest| !guest.is_incoming)
            };
            (0..state.hosts.len()).filter(here).collect()
        })
    }

    /// How much memory the guests of a host have and are promised, and how much there is for them.
    pub(crate) fn memory_of(&self, host: usize) -> (u64, u64) {
        self.world.with(|state| {
            let host = &state.hosts[host];
            (host.guests_mib(), host.memory_mib.saturating_sub(crate::host::OWN_MEMORY_MIB))
        })
    }

    /// Lets time pass, and stops early at a violation.
    pub async fn pass(&self, time: Duration) -> Result<(), Violation> {
        let until = self.now() + time;
        while self.now() < until {
            self.sleep(Duration::from_secs(1).min(until - self.now())).await;
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
            fault => self.world.with(|state| state.suffer(fault)),
        }
    }

    /// Has an operator ask for something, on some coordinator that can hear it.
    pub fn ask(&self, ask: Ask) {
        drop(self.ask_and_hear(ask, None));
    }

    /// As [`ask`](Cluster::ask), of the coordinator `through` if one is named. What comes of it, or `None` if nobody
    /// hears it.
    pub(crate) fn ask_and_hear(&self, ask: Ask, through: Option<usize>) -> Option<oneshot::Receiver<Answer>> {
        let number = {
            let mut asks = self.asks.lock().expect("nothing panics while it holds the number");
            *asks += 1;
            *asks
        };
        let api = self.world.with(|state| {
            let reachable = |host: &usize| {
                let known = &state.hosts[*host];
                known.on
                    && !known.frozen
                    && known.cables.upstream
                    && through.is_none_or(|named| named == *host)
            };
            let open: Vec<Api> = (0..state.hosts.len())
                .filter(reachable)
                .filter_map(|host| match state.hosts[host].is_older {
                    true => state.open_older_api(host).map(Api::Older),
                    false => state.hosts[host].api.as_ref()?.1.clone().map(Api::Ours),
                })
                .collect();
            state.chance.pick(&open).cloned()
        });
        let wished = wished(&ask);
        let Some(api) = api else {
            self.world.with(|state| state.note(format!("operator {number}: {ask:?}: nobody hears it")));
            return None;
        };
        self.world.with(|state| state.note(format!("operator {number}: {ask:?}")));
        if let Some((vm, _)) = wished {
            self.set_wish(vm, Wish::Unknown);
        }
        let (world, wishes, shape) = (self.world.clone(), self.wishes.clone(), self.shape.clone());
        let (hears, heard) = oneshot::channel();
        tokio::spawn(async move {
            let answer = match api {
                Api::Ours(store) => in_time(carry_out(&store, &shape, &ask)).await,
                Api::Older(api) => match in_older_words(&shape, &ask) {
                    Some(older) => in_time(api.ask(&older)).await,
                    None => Some(Err("nobody asks an older node for that in this world".to_owned())),
                },
            };
            world.with(|state| state.note(format!("operator {number}: {}", said(&answer))));
            if let (Some((vm, wish)), Some(Ok(()))) = (wished, &answer) {
                let mut wishes = wishes.lock().expect("nothing panics while it holds them");
                wishes.insert(vm, wish);
            }
            let _ = hears.send(answer); // who asked may not wait for it
        });
        Some(heard)
    }

    fn set_wish(&self, vm: usize, wish: Wish) {
        self.wishes.lock().expect("nothing panics while it holds them").insert(vm, wish);
    }

    pub fn heal(&self) {
        self.world.with(crate::state::State::heal);
    }
}

/// What hears an operator.
#[derive(Clone)]
enum Api {
    Ours(Store),
    Older(Arc<OlderApi>),
}

/// What became of an ask: why it was refused, or `None` if there was no answer in time.
pub(crate) type Answer = Option<Result<(), String>>;

pub(crate) fn said(answer: &Answer) -> String {
    match answer {
        Some(Ok(())) => "done".to_owned(),
        Some(Err(why)) => why.clone(),
        None => format!("no answer within {} s", PATIENCE.as_secs()),
    }
}

#[allow(clippy::disallowed_methods, reason = "the simulation owns time")]
async fn in_time<T>(work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(PATIENCE, work).await.ok()
}

/// What of a VM the operator can rely on once the ask was answered.
fn wished(ask: &Ask) -> Option<(usize, Wish)> {
    match ask {
        Ask::Start(vm) | Ask::Restart(vm) => Some((*vm, Wish::Runs)),
        Ask::Stop(vm) | Ask::Shutdown(vm) | Ask::Disable(vm) | Ask::DisableAndWait(vm) => {
            Some((*vm, Wish::IsOff))
        }
        _ => None,
    }
}

async fn carry_out(store: &Store, shape: &Shape, ask: &Ask) -> Result<(), String> {
    let state = |vm: &usize, request| {
        let name = shape.vm_name(*vm);
        async move {
            let asked = pvc_ops::vm::set_state(store, &name, request, false).await;
            asked.map(drop).map_err(|error| text(&error))
        }
    };
    let moved = |vm: &usize, movement, to: Option<usize>, live_only| {
        let name = shape.vm_name(*vm);
        let ask = Move { movement, node: to.map(|host| shape.host_name(host)), force: false, live_only };
        async move { pvc_ops::vm::move_vm(store, &name, &ask).await.map(drop).map_err(|error| text(&error)) }
    };
    let node = |host: &usize, request| {
        let name = shape.host_name(*host);
        async move {
            let asked = pvc_ops::node::set_domain_state(store, &name, request).await;
            asked.map(drop).map_err(|error| text(&error))
        }
    };
    let role = |host: &usize, request| {
        let name = shape.host_name(*host);
        async move {
            let asked = pvc_ops::node::set_coordinator_state(store, &name, request).await;
            asked.map(drop).map_err(|error| text(&error))
        }
    };
    let meta = |vm: &usize, meta: Meta| {
        let name = shape.vm_name(*vm);
        async move { pvc_ops::vm::set_meta(store, &name, &meta).await.map_err(|error| text(&error)) }
    };
    match ask {
        Ask::Start(vm) => state(vm, StateRequest::Start).await,
        Ask::Stop(vm) => state(vm, StateRequest::Stop).await,
        Ask::Shutdown(vm) => state(vm, StateRequest::Shutdown).await,
        Ask::Restart(vm) => state(vm, StateRequest::Restart).await,
        Ask::Disable(vm) => state(vm, StateRequest::Disable).await,
        Ask::DisableAndWait(vm) => {
            let (clock, name) = (TokioClock::new(), shape.vm_name(*vm));
            let asked = pvc_ops::vm::set_state(store, &name, StateRequest::Disable, false).await;
            let stopping = asked.map_err(|error| text(&error))?;
            let off = pvc_ops::vm::finish_disable(store, &clock, &stopping, PATIENCE).await;
            off.map_err(|error| text(&error))
        }
        Ask::Undefine(vm) => {
            let name = shape.vm_name(*vm);
            let removed = pvc_ops::vm::remove(store, &TokioClock::new(), None, &name).await;
            removed.map(drop).map_err(|error| text(&error))
        }
        Ask::Move { vm, to, live_only } => moved(vm, Movement::Move, *to, *live_only).await,
        Ask::Migrate { vm, to } => moved(vm, Movement::Migrate, *to, false).await,
        Ask::Unmigrate(vm) => moved(vm, Movement::Unmigrate, None, false).await,
        Ask::Method { vm, only } => {
            let method = only.map(|only| match only {
                OnlyWay::Live => MigrationMethod::Live,
                OnlyWay::Shutdown => MigrationMethod::Shutdown,
            });
            meta(vm, Meta { migration_method: Some(method), ..Meta::default() }).await
        }
        Ask::Limit { vm, to } => {
            let names = to.iter().map(|host| shape.host_name(*host)).collect();
            meta(vm, Meta { node_limit: Some(names), ..Meta::default() }).await
        }
        Ask::Flush(host) => node(host, DomainRequest::Flush).await,
        Ask::Ready(host) => node(host, DomainRequest::Ready).await,
        Ask::Primary(host) => role(host, CoordinatorRequest::Primary).await,
        Ask::Secondary(host) => role(host, CoordinatorRequest::Secondary).await,
        Ask::Maintenance(on) => {
            pvc_ops::cluster::set_maintenance(store, *on).await.map(drop).map_err(|error| text(&error))
        }
    }
}

fn text(error: &(dyn std::error::Error + 'static)) -> String {
    pvc_model::with_causes(error)
}
