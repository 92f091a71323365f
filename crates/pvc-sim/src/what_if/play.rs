//! A recorded cluster in the world: its nodes run there with the guests that they had, and then one
//! dies.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use pvc_api_types::{WhatIfRan, WhatIfRun};
use pvc_model::NodeName;
use pvc_model::cluster::Cluster as View;
use pvc_model::fence::Rules;
use pvc_model::node::{CoordinatorState, DaemonState, DomainState, NodeRecord, NodeRole};
use pvc_model::vm::VmState;
use pvc_model::what_if::lives;
use pvc_ops::node::CoordinatorRequest;
use pvc_store::{Change, Changes, NodeChange, Store};
use uuid::Uuid;

use super::Death;
use crate::actions::Action;
use crate::cluster::Shape;
use crate::daemons::{eyes, ipmi};
use crate::host::{Build, Host, Measured};
use crate::log::Log;
use crate::network::floating;
use crate::power::BmcManner;
use crate::state::{State, World};
use crate::zookeeper::Ensemble;

/// Time between two looks at everything.
const TICK: Duration = Duration::from_millis(100);

/// Time that the daemons may take until they run.
const STARTED: Duration = Duration::from_secs(180);

/// Time for which the world is watched after the last event.
const STAYS: Duration = Duration::from_secs(10);

/// Scene to be played.
pub(super) struct Scene<'a> {
    pub keys: &'a BTreeMap<String, String>,
    pub cluster: &'a View,
    pub victim: &'a NodeName,
    pub death: Death,
    pub rules: &'a Rules,
    /// The VMs whose fate is of interest, beside those that run on the victim.
    pub concerned: BTreeSet<Uuid>,
    /// Time at which to give up looking.
    pub horizon: Duration,
}

/// The cluster as it stands in the world.
struct Stage<'a> {
    scene: &'a Scene<'a>,
    world: World,
    eyes: Store,
    victim: usize,
}

/// Plays the scene.
///
/// # Errors
/// If the records do not make a cluster that runs, or something happens that must never happen.
pub(super) async fn play(scene: &Scene<'_>, log: &Log) -> Result<WhatIfRun, String> {
    let stage = Stage::set(scene, log).await?;
    stage.settle().await?;
    let ran = stage.strike();
    stage.watch(ran).await
}

impl<'a> Stage<'a> {
    async fn set(scene: &'a Scene<'a>, log: &Log) -> Result<Stage<'a>, String> {
        let nodes = || scene.cluster.nodes.values();
        let victim =
            nodes().position(|node| node.name == *scene.victim).ok_or("there is no such node")?;
        let nature = Shape::plain(0, 0).nature;
        let world = World::new(nature, log.clone(), nodes().map(|node| host(node)).collect());
        world.with(|state| {
            state.run.rules = scene.rules.clone();
            for (host, node) in nodes().enumerate() {
                if node.daemon_state == DaemonState::Dead {
                    state.bmcs[host].manner = BmcManner::Dead; // its death was not proven
                }
            }
        });
        let eyes = eyes(&world, nature.seed).await;
        eyes.load(scene.keys).await.map_err(|error| pvc_model::with_causes(&error))?;
        let changes = adaptations(scene.cluster);
        let adapted = eyes.change(|_| Ok::<_, Infallible>((changes.clone(), ()))).await;
        adapted.map_err(|error| pvc_model::with_causes(&error))?;
        world.with(|state| {
            state.with_zookeeper(Ensemble::watch_sessions);
            for (host, node) in nodes().enumerate().filter(|(_, node)| lives(node)) {
                state
                    .run
                    .note(format!("{}: stood in daemon state {}", node.name, node.daemon_state));
                state.power_on(host, "as recorded");
            }
            place_guests(state, scene.cluster);
        });
        Ok(Stage { scene, world, eyes, victim })
    }

    /// Waits until the daemons run, and the primary is who it was.
    async fn settle(&self) -> Result<(), String> {
        let living: BTreeSet<&NodeName> = self
            .scene
            .cluster
            .nodes
            .values()
            .filter(|node| lives(node))
            .map(|node| &node.name)
            .collect();
        self.until("every node runs", || {
            let view = self.eyes.view();
            living.iter().all(|name| view.nodes[*name].daemon_state == DaemonState::Run)
        })
        .await?;
        let primary =
            self.scene.cluster.config.primary.as_ref().filter(|primary| living.contains(primary));
        if let Some(primary) = primary {
            let request = CoordinatorRequest::Primary;
            let asked =
                pvc_ops::node::set_coordinator_state(&self.eyes, primary.as_str(), request).await;
            asked.map_err(|error| pvc_model::with_causes(&error))?;
            self.until("the primary is who it was", || self.primary() == Some(primary.clone()))
                .await?;
        }
        // Every node has said since how it is.
        self.pass(self.scene.rules.keepalive_interval * 3).await
    }

    /// Lets the node die. The VMs that ran there.
    fn strike(&self) -> BTreeSet<Uuid> {
        let victim = self.victim;
        self.world.with(|state| {
            state.hosts[victim].build.is_broken = true;
            let guests = state.hypervisors[victim].guests.iter();
            let ran = guests.filter(|(_, guest)| guest.is_alive()).map(|(vm, _)| *vm).collect();
            let death = match self.scene.death {
                Death::Power => Action::PowerLoss(victim),
                Death::Hang => Action::FreezeHost(victim),
            };
            death.happens_to(state);
            ran
        })
    }

    async fn watch(&self, ran: BTreeSet<Uuid>) -> Result<WhatIfRun, String> {
        let begun = self.world.now();
        let mut seen = Seen::default();
        let mut quiet_since = None;
        loop {
            self.pass(TICK).await?;
            let elapsed = self.world.now().saturating_sub(begun);
            self.look(&mut seen, &ran, elapsed);
            if !self.is_over(&seen) {
                quiet_since = None;
            } else if elapsed - *quiet_since.get_or_insert(elapsed) >= STAYS {
                break;
            }
            if elapsed >= self.scene.horizon {
                break;
            }
        }
        Ok(self.report(seen, &ran, self.world.now().saturating_sub(begun)))
    }

    fn look(&self, seen: &mut Seen, ran: &BTreeSet<Uuid>, elapsed: Duration) {
        let view = self.eyes.view();
        let Some(dead) = view.nodes.get(self.scene.victim) else { return };
        if matches!(dead.daemon_state, DaemonState::Dead | DaemonState::Fenced) {
            seen.suspected.get_or_insert(elapsed);
        }
        if dead.is_fenced() {
            seen.fenced.get_or_insert(elapsed);
            if dead.domain_state == DomainState::Flushed {
                seen.recovered.get_or_insert(elapsed);
            }
        }
        let primary = self.primary().filter(|primary| primary != self.scene.victim);
        if let Some(primary) = primary.filter(|_| seen.primary.is_none()) {
            seen.primary = Some((primary, elapsed));
        }
        for vm in ran.union(&self.scene.concerned) {
            if let Some(host) = self.runs_on(*vm) {
                let known = seen.runs.entry(*vm).or_insert((host, elapsed));
                known.0 = host;
            }
        }
    }

    /// Whether nothing more is going to happen by itself.
    fn is_over(&self, seen: &Seen) -> bool {
        let view = self.eyes.view();
        let runs = |vm: &Uuid| match view.vms.get(vm) {
            Some(record) if record.state == VmState::Start => {
                let on = record.node.as_ref().and_then(|node| self.host_of(node));
                on.is_some_and(|on| self.runs_on(*vm) == Some(on))
            }
            Some(record) => {
                matches!(record.state, VmState::Stop | VmState::Disable | VmState::Fail)
            }
            None => true,
        };
        let was_primary = self.scene.cluster.config.primary.as_ref() == Some(self.scene.victim);
        seen.recovered.is_some()
            && (!was_primary || seen.primary.is_some())
            && self.scene.concerned.iter().all(runs)
    }

    fn report(&self, seen: Seen, ran: &BTreeSet<Uuid>, watched: Duration) -> WhatIfRun {
        let view = self.eyes.view();
        let seconds = |time: Duration| (time.as_secs_f64() * 10.0).round() / 10.0;
        let note = view.nodes.get(self.scene.victim).and_then(|dead| dead.present_fence()).cloned();
        let note = note.unwrap_or_default();
        let was_primary = self.scene.cluster.config.primary.as_ref() == Some(self.scene.victim);
        let primary = seen.primary.filter(|_| was_primary);
        let vm_run = |vm: &Uuid| {
            let record = view.vms.get(vm)?;
            let runs = seen.runs.get(vm).filter(|_| self.runs_on(*vm).is_some());
            Some(WhatIfRan {
                name: record.name.clone(),
                node: runs.map(|(host, _)| self.name_of(*host)).unwrap_or_default(),
                seconds: runs.map(|(_, at)| seconds(*at)),
                state: record.state.to_string(),
                failed_reason: match record.state {
                    VmState::Fail => record.failed_reason.clone(),
                    _ => String::new(),
                },
            })
        };
        WhatIfRun {
            watched_s: seconds(watched),
            suspected_s: seen.suspected.map(seconds),
            fenced_s: seen.fenced.map(seconds),
            fenced_by: if seen.fenced.is_some() { note.by } else { String::new() },
            proof: note.proof,
            fence_failure: note.last_failure,
            primary_s: primary.as_ref().map(|(_, at)| seconds(*at)),
            primary: primary.map(|(name, _)| name.to_string()).unwrap_or_default(),
            recovered_s: seen.recovered.map(seconds),
            vms: ran.union(&self.scene.concerned).filter_map(vm_run).collect(),
            differences: Vec::new(),
        }
    }

    /// Primary node, by its record and because it has every floating address.
    fn primary(&self) -> Option<NodeName> {
        let view = self.eyes.view();
        let primary = view.config.primary.as_ref().and_then(|name| view.nodes.get(name))?;
        let host = self.host_of(&primary.name)?;
        let has_all =
            self.world.with(|state| state.hosts[host].addresses.len() == floating().len());
        (primary.coordinator_state == CoordinatorState::Primary && has_all)
            .then(|| primary.name.clone())
    }

    /// The host other than the victim on which the VM runs.
    fn runs_on(&self, vm: Uuid) -> Option<usize> {
        self.world.with(|state| {
            let runs =
                |host: &usize| *host != self.victim && state.hypervisors[*host].has_alive(vm);
            (0..state.hosts.len()).find(runs)
        })
    }

    fn host_of(&self, node: &NodeName) -> Option<usize> {
        self.scene.cluster.nodes.keys().position(|name| name == node)
    }

    fn name_of(&self, host: usize) -> String {
        self.world.with(|state| state.hosts[host].name.clone())
    }

    async fn until(&self, what: &str, ready: impl Fn() -> bool) -> Result<(), String> {
        let end = self.world.now() + STARTED;
        while !ready() {
            if self.world.now() >= end {
                return Err(format!(
                    "the recorded cluster did not come to run: not within {} s: {what}",
                    STARTED.as_secs()
                ));
            }
            self.pass(TICK).await?;
        }
        Ok(())
    }

    #[allow(clippy::disallowed_methods, reason = "the simulation owns time")]
    async fn pass(&self, time: Duration) -> Result<(), String> {
        tokio::time::sleep(time).await;
        if let Some(panic) = crate::log::panicked() {
            return Err(format!("a daemon panicked in it, which is a bug: {panic}"));
        }
        match self.world.with(|state| state.truth.violation.clone()) {
            Some(violation) => Err(format!(
                "it broke the safety rule {}, which is a bug: {}",
                violation.rule, violation.what
            )),
            None => Ok(()),
        }
    }
}

/// Events that were seen, and when.
#[derive(Default)]
struct Seen {
    suspected: Option<Duration>,
    fenced: Option<Duration>,
    recovered: Option<Duration>,
    primary: Option<(NodeName, Duration)>,
    runs: BTreeMap<Uuid, (usize, Duration)>,
}

/// A host that stands for the node. One that is not on stays off.
fn host(node: &NodeRecord) -> Host {
    let figures = &node.figures;
    let is_coordinator = node.role == NodeRole::Coordinator;
    let mut host = Host::new(node.name.to_string(), is_coordinator, figures.memory_total_mib, 0);
    host.build = Build {
        cpus: node.cpus,
        has_bmc: !node.ipmi_hostname.is_empty(),
        runs_guests: node.runs_guests(),
        is_broken: !lives(node),
        measured: Some(Measured {
            total_mib: figures.memory_total_mib,
            used_mib: figures.memory_used_mib,
            free_mib: figures.memory_free_mib,
            load: figures.load,
            guests_mib: 0,
        }),
    };
    host
}

/// Changes that the world makes necessary: BMCs are where it has them, with passwords that are
/// nobody's, and nobody takes up the jobs that were waiting.
fn adaptations(cluster: &View) -> Changes {
    let mut changes = Changes::new();
    for node in cluster.nodes.values().filter(|node| !node.ipmi_hostname.is_empty()) {
        changes.node(&node.name, NodeChange::Ipmi(ipmi(node.name.as_str())));
    }
    for job in cluster.jobs.keys() {
        changes.push(Change::RemoveJob(job.clone()));
    }
    changes
}

/// Has every VM run where a node says that it does.
fn place_guests(state: &mut State, cluster: &View) {
    for vm in cluster.vms.values() {
        for volume in vm.volumes() {
            state.ceph.volumes.insert(&volume);
        }
    }
    let nodes: Vec<&Arc<NodeRecord>> = cluster.nodes.values().collect();
    for vm in cluster.vms.values() {
        let says_so = |host: &usize| lives(nodes[*host]) && nodes[*host].running.contains(&vm.uuid);
        let own =
            (0..nodes.len()).filter(says_so).find(|host| vm.is_assigned_to(&nodes[*host].name));
        let Some(host) = own.or_else(|| (0..nodes.len()).find(says_so)) else { continue };
        let started = state.with_hypervisors(|hypervisors, around| {
            hypervisors.start_guest(around, host, vm.uuid, &vm.xml)?;
            hypervisors.resume_guest(around, host, vm.uuid)
        });
        if let Err(error) = started {
            state.run.note(format!("guest {} is not there: {error}", vm.name));
        }
    }
    for (number, host) in state.hosts.iter_mut().enumerate() {
        let guests_mib = state.hypervisors[number].guests_mib();
        if let Some(measured) = &mut host.build.measured {
            measured.guests_mib = guests_mib;
        }
    }
}
