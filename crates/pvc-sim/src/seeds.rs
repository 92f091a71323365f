//! A cluster and its history from a seed; and the run of it: first only safety is demanded, then
//! everything is well again and progress is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use pvc_model::hold::Purpose;
use pvc_model::node::{CoordinatorState, DaemonState, DomainState, NodeRecord};
use pvc_model::vm::{MigrationMethod, Selector, VmRecord, VmState};
use serde::{Deserialize, Serialize};

use crate::actions::{Action, Ask, Event, OnlyWay, StartFailure};
use crate::benchmarks::left_behind;
use crate::chance::Chance;
use crate::cluster::{Cluster, HostShape, Rules, Shape, VmShape, host_name, vm_name, vm_uuid};
use crate::daemons::usual_rules;
use crate::guest_networks::{FIRST_VNI, NetworkAsk, plug_in};
use crate::guests::Manner;
use crate::host::Net;
use crate::job_steps::Moment;
use crate::jobs::unfinished;
use crate::log::Log;
use crate::nature::{Elections, Mutation, Nature};
use crate::osds::DISKS;
use crate::power::BmcManner;
use crate::promises::Goal;
use crate::storage_changes::{ChangeMoment, NewDb, StorageAsk};
use crate::truth::Violation;
use crate::uploads::{Flaw, Sending, UploadMoment};

/// Time in which, after everything is well again, all that should run has to run.
const PROGRESS: Duration = Duration::from_secs(15 * 60);

/// The others are given so long to have a quorum without the machine that is to die.
const RECOVERS: Duration = Duration::from_secs(5 * 60);

/// Time for which it has to stay so.
const STAYS: Duration = Duration::from_secs(60);

/// Time for which elections are watched once all is well: long enough for a fence of somebody who
/// was accused meanwhile.
const AFTER_ELECTIONS: Duration = Duration::from_secs(75);

/// Time between two looks at what only an operator can set right.
const REPAIR_EVERY: Duration = Duration::from_secs(20);

/// A run to be made.
#[derive(Debug, Clone)]
pub struct Case {
    pub shape: Shape,
    pub history: Vec<Event>,
}

/// Result of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Report {
    pub violation: Option<(String, String)>,
    pub seconds: u64,
    pub log_lines: u64,
    pub log_digest: u64,
    pub counts: BTreeMap<String, u64>,
}

/// A kind of fault: what begins and what ends it.
struct Fault {
    begin: Action,
    end: Option<Action>,
}

impl Case {
    /// The cluster and the history that belong to `seed`, with faults and operators for so many
    /// minutes.
    pub fn from_seed(seed: u64, minutes: u64, mutation: Option<Mutation>) -> Case {
        let mut chance = Chance::for_purpose(seed, "shape");
        let mut shape = shape(&mut chance, seed, mutation);
        let mut chance = Chance::for_purpose(seed, "history");
        let mut history = faults(&mut chance, &shape, minutes);
        history.extend(operators(&mut chance, &shape, minutes));
        // Drawn apart: what is drawn above is the same for a seed as before there were jobs.
        let mut chance = Chance::for_purpose(seed, "jobs");
        history.extend(jobs(&mut chance, &shape, minutes));
        let mut chance = Chance::for_purpose(seed, "uploads");
        if chance.happens(300) {
            // Volumes are recorded, as uploads need them, where Ceph has monitors.
            shape.nature.monitors = true;
            history.extend(uploads(&mut chance, &shape, minutes));
        }
        let mut chance = Chance::for_purpose(seed, "storage");
        if chance.happens(300) {
            shape.nature.monitors = true;
            history.extend(storage_changes(&mut chance, &shape, minutes));
        }
        let mut chance = Chance::for_purpose(seed, "networks");
        if chance.happens(300) {
            shape.nature.networks = 1 + chance.below(3) as u32;
            plug_in(&mut shape);
            history.extend(networks(&mut chance, &shape, minutes));
        }
        let mut chance = Chance::for_purpose(seed, "benchmarks");
        if chance.happens(120) {
            // The pool is recorded, as a benchmark needs it, where Ceph has monitors.
            shape.nature.monitors = true;
            history.extend(benchmarks(&mut chance, &shape, minutes));
        }
        history.sort_by_key(|event| event.at);
        Case { shape, history }
    }

    /// A small cluster for a few minutes, in which servers and connections of ZooKeeper come and
    /// go, leaders are elected, quickly or slowly, machines die, and nothing else happens: who is
    /// accused by mistake in that?
    pub fn of_elections(seed: u64, minutes: u64, mutation: Option<Mutation>) -> Case {
        let mut chance = Chance::for_purpose(seed, "elections");
        let mut shape = Shape::plain(*chance.pick(&[3, 3, 3, 5]).expect("not empty"), 1);
        shape.hosts.iter_mut().for_each(|host| host.drift_ppm = chance.below(600) as i64 - 300);
        shape.nature = Nature {
            seed,
            latency_ms: *chance.pick(&[(1, 2), (2, 30), (5, 150)]).expect("not empty"),
            lag_ms: *chance.pick(&[(0, 0), (0, 0), (5, 100), (20, 300)]).expect("not empty"),
            broken_writes: *chance.pick(&[0, 0, 300]).expect("not empty"),
            elections: Some(Elections {
                first: chance.below(shape.hosts.len() as u64) as usize,
                takes_ms: *chance
                    .pick(&[(200, 500), (200, 8_000), (5_000, 25_000)])
                    .expect("not empty"),
            }),
            mutation,
            ..shape.nature
        };
        let history = zookeeper_faults(&mut chance, &shape, minutes);
        Case { shape, history }
    }

    /// Runs it in this process, which must do nothing else: see `same_dice`.
    pub async fn run(&self, log: Log) -> Report {
        let mut report = Report::default();
        let cluster = match Cluster::start(self.shape.clone(), log.clone()).await {
            Ok(cluster) => cluster,
            Err(violation) => {
                report.violation = Some((violation.rule, violation.what));
                return report;
            }
        };
        let ended = self.drama(&cluster).await;
        report.violation = ended.err().map(|violation| (violation.rule, violation.what));
        if let Some((rule, what)) = &report.violation {
            log.note(&format!("ends: {rule}: {what}"));
        }
        report.seconds = cluster.now().as_secs();
        report.counts = cluster.counts();
        (report.log_lines, report.log_digest) = log.digest();
        report
    }

    async fn drama(&self, cluster: &Cluster) -> Result<(), Violation> {
        cluster.live(&self.history).await?;
        if self.shape.nature.elections.is_some() {
            cluster.heal();
            return cluster.pass(AFTER_ELECTIONS).await;
        }
        cluster.pass(Duration::from_secs(30)).await?;
        self.lose_one_for_good(cluster).await?;
        cluster.heal();
        settles(cluster, "holds", Cluster::held, Cluster::repair).await?;
        settles(cluster, "progress", Cluster::unsettled, Cluster::repair).await?;
        cluster.kept_promises(|_| true)?;
        cluster.jobs_are_whole()?;
        cluster.uploads_are_whole()?;
        cluster.storage_is_whole()?;
        cluster.networks_are_whole()
    }

    /// Has one machine die for good in every second run while the others are still busy with all
    /// that was before: those that are left make up for it. Nobody helps, but for the end of
    /// maintenance.
    async fn lose_one_for_good(&self, cluster: &Cluster) -> Result<(), Violation> {
        let mut chance = Chance::for_purpose(self.shape.nature.seed, "bereavement");
        let dispensable: Vec<usize> =
            (0..self.shape.hosts.len()).filter(|host| self.is_dispensable(*host)).collect();
        let dead = chance.pick(&dispensable).copied();
        let Some(dead) = dead.filter(|_| chance.happens(500)) else { return Ok(()) };
        cluster.heal();
        cluster.pass(chance.seconds(0, 120)).await?;
        // Without a quorum nobody makes up for anything.
        let end = cluster.now() + RECOVERS;
        while !cluster.have_quorum_without(dead) {
            if cluster.now() >= end {
                return Ok(());
            }
            cluster.pass(Duration::from_secs(1)).await?;
        }
        cluster.breaks_down(dead);
        let name = self.shape.host_name(dead);
        let watched = |cluster: &Cluster| cluster.not_made_up_for(dead);
        settles(cluster, &format!("progress without {name}"), watched, Cluster::end_maintenance)
            .await
    }

    /// Whether the others can have a quorum without it.
    fn is_dispensable(&self, host: usize) -> bool {
        let all = self.shape.hosts.iter().filter(|host| host.is_coordinator).count();
        2 * (all - usize::from(self.shape.hosts[host].is_coordinator)) > all
    }
}

/// Waits until nothing is `unsettled`, with somebody who looks after it, and then whether it stays
/// so.
///
/// # Errors
/// If that takes too long, or does not last although nobody was being flushed.
async fn settles(
    cluster: &Cluster,
    rule: &str,
    unsettled: impl Fn(&Cluster) -> Vec<String>,
    repair: impl Fn(&Cluster),
) -> Result<(), Violation> {
    let end = cluster.now() + PROGRESS;
    loop {
        let left = unsettled(cluster);
        if left.is_empty() {
            let may_stir = cluster.is_being_flushed() && cluster.now() < end;
            cluster.pass(STAYS).await?;
            match unsettled(cluster).first() {
                None => return Ok(()),
                // A flush that could not go on tries again at any moment.
                Some(_) if may_stir => continue,
                Some(what) => {
                    return Err(Violation {
                        rule: rule.to_owned(),
                        what: format!("not for long: {what}"),
                    });
                }
            }
        }
        if cluster.now() >= end {
            let what = left.into_iter().take(12).collect::<Vec<_>>().join("; ");
            return Err(Violation { rule: rule.to_owned(), what });
        }
        repair(cluster);
        cluster.pass(REPAIR_EVERY).await?;
    }
}

impl Cluster {
    /// Lists what is not as it should be once everything is well.
    pub fn unsettled(&self) -> Vec<String> {
        let view = self.view();
        let mut unsettled = Vec::new();
        for host in 0..self.shape.hosts.len() {
            unsettled.extend(self.unwell(host));
            let node = view.nodes.get(self.shape.host_name(host).as_str());
            if let Some(node) = node.filter(|node| node.domain_state != DomainState::Ready) {
                unsettled.push(format!("{} is {}", node.name, node.domain_state));
            }
        }
        if view.config.primary.is_none() {
            unsettled.push("nobody is primary".to_owned());
        }
        unsettled.extend(unfinished(&view));
        unsettled.extend(left_behind(&view));
        unsettled.extend(self.world.with(|state| state.network_troubles(&view, None)));
        unsettled.extend(self.world.with(|state| state.function_troubles(&view, None)));
        for vm in 0..self.shape.vms.len() {
            let name = self.shape.vm_name(vm);
            let hosts = self.runs_on(vm);
            let runs_on: Vec<String> =
                hosts.iter().map(|host| self.shape.host_name(*host)).collect();
            let Some(record) = view.vms.get(&vm_uuid(vm)) else {
                // Where a BMC has lied, a VM was undefined that was thought to be dead.
                let is_excused = |host: &usize| self.world.with(|state| state.bmcs[*host].has_lied);
                if self.promises().is_there(vm) || !hosts.iter().all(is_excused) {
                    unsettled.push(format!("{name} has no record; runs on {runs_on:?}"));
                }
                continue;
            };
            let node = record.node.as_ref().map(ToString::to_string).unwrap_or_default();
            let wanted = match record.state {
                VmState::Start => vec![node],
                VmState::Stop | VmState::Disable if !record.autostart => Vec::new(),
                _ => {
                    let why = &record.failed_reason;
                    unsettled.push(format!(
                        "{name} is {} on {node} ({why}); runs on {runs_on:?}",
                        record.state
                    ));
                    continue;
                }
            };
            if runs_on != wanted {
                unsettled.push(format!(
                    "{name} is {}; runs on {runs_on:?}, not {wanted:?}",
                    record.state
                ));
            }
        }
        unsettled
    }

    /// Lists the volumes that are held: whoever held one has let go of it by now, or the primary
    /// has.
    fn held(&self) -> Vec<String> {
        let view = self.view();
        view.holds.values().map(|hold| format!("{} is {}", hold.volume, hold.purpose)).collect()
    }

    /// Whether some node whose daemon runs is giving its VMs away.
    fn is_being_flushed(&self) -> bool {
        let gives_away = |node: &NodeRecord| {
            node.domain_state == DomainState::Flush && node.daemon_state == DaemonState::Run
        };
        self.view().nodes.values().any(|node| gives_away(node))
    }

    /// Lists what is wrong about a node whose machine is well, apart from its VMs.
    fn unwell(&self, host: usize) -> Vec<String> {
        let (view, name) = (self.view(), self.shape.host_name(host));
        let Some(node) = view.nodes.get(name.as_str()) else {
            return vec![format!("{name} has no record")];
        };
        let mut unwell = Vec::new();
        if node.daemon_state != DaemonState::Run {
            unwell.push(format!("{name} is {}", node.daemon_state));
        }
        let is_named = view.config.primary.as_ref().is_some_and(|primary| *primary == node.name);
        let wanted = match (self.shape.hosts[host].is_coordinator, is_named) {
            (true, true) => CoordinatorState::Primary,
            (true, false) => CoordinatorState::Secondary,
            (false, _) => CoordinatorState::Client,
        };
        if node.coordinator_state != wanted {
            unwell.push(format!("{name} is {} instead of {wanted}", node.coordinator_state));
        }
        let addresses = self.world.with(|state| state.hosts[host].addresses.len());
        if is_named != (addresses == 3) || !is_named && addresses > 0 {
            unwell.push(format!("{name} has {addresses} floating addresses"));
        }
        unwell
    }

    /// Lists what nobody has done yet about the death of one host, of all that is done without
    /// being asked for.
    fn not_made_up_for(&self, dead: usize) -> Vec<String> {
        let view = self.view();
        let dead_name = self.shape.host_name(dead);
        let Some(dead_node) = view.nodes.get(dead_name.as_str()) else {
            return vec![format!("{dead_name} has no record")];
        };
        let hosts = (0..self.shape.hosts.len()).filter(|host| *host != dead);
        let mut left: Vec<String> = hosts.flat_map(|host| self.unwell(host)).collect();
        if view.config.primary.as_ref().is_none_or(|primary| *primary == dead_node.name) {
            left.push("nobody who lives is primary".to_owned());
        }
        // One that had said that it stops is not taken for dead, nor a legacy peer that starts; and
        // one whose BMC has said that it is another machine's is not proven dead.
        let may_stay = match dead_node.daemon_state {
            DaemonState::Dead if dead_node.ipmi_hostname.is_empty() => true,
            DaemonState::Run | DaemonState::Dead | DaemonState::Init
                if dead_node.daemon_state == DaemonState::Dead || dead_node.owes_stamps() =>
            {
                left.push(format!("{dead_name} is {}", dead_node.daemon_state));
                return left;
            }
            DaemonState::Fenced => false,
            _ => true,
        };
        left.extend(self.world.with(|state| state.network_troubles(&view, Some(dead))));
        left.extend(self.world.with(|state| state.function_troubles(&view, Some(dead))));
        if dead_node.domain_state == DomainState::FenceFlush {
            left.push(format!("the VMs of {dead_name} are not recovered"));
        }
        for vm in 0..self.shape.vms.len() {
            let Some(record) = view.vms.get(&vm_uuid(vm)) else { continue };
            let is_of_the_dead = record.is_assigned_to(&dead_node.name);
            let comes_from_the_dead = dead_node.running.contains(&record.uuid);
            let host = record.node.as_ref().and_then(|node| self.shape.host_called(node.as_str()));
            let is_settled = match record.state {
                VmState::Start if is_of_the_dead => may_stay,
                VmState::Start => self.runs_on(vm) == host.into_iter().collect::<Vec<_>>(),
                // That it was given up without need is judged when that happens.
                VmState::Stop | VmState::Disable => self.runs_on(vm).is_empty(),
                VmState::Fail | VmState::Delete => true,
                // Nobody else can send the guest of a node that had said that it stops.
                _ => (is_of_the_dead || comes_from_the_dead) && may_stay,
            };
            if !is_settled {
                let on = record.node.as_ref().map(ToString::to_string).unwrap_or_default();
                let runs_on: Vec<String> =
                    self.runs_on(vm).into_iter().map(|host| self.shape.host_name(host)).collect();
                left.push(format!(
                    "{} is {} on {on}; runs on {runs_on:?}",
                    self.shape.vm_name(vm),
                    record.state
                ));
            }
        }
        left
    }

    /// The cluster is to look after itself again.
    fn end_maintenance(&self) {
        if self.view().config.maintenance {
            self.ask(Ask::Maintenance(false));
        }
    }

    /// Does, as an operator, what only operators can set right.
    pub fn repair(&self) {
        let view = self.view();
        for host in 0..self.shape.hosts.len() {
            let Some(node) = view.nodes.get(self.shape.host_name(host).as_str()) else { continue };
            if node.daemon_state == DaemonState::Run
                && matches!(node.domain_state, DomainState::Flushed | DomainState::Flush)
            {
                self.ask(Ask::Ready(host));
            }
        }
        self.end_maintenance();
        self.repeat_what_is_held();
        self.bring_networks_back();
        for vm in 0..self.shape.vms.len() {
            let Some(record) = view.vms.get(&vm_uuid(vm)) else { continue };
            if record.state == VmState::Delete {
                self.ask(Ask::Undefine(vm));
            } else if record.state == VmState::Fail {
                let needs_flush = record.failed_reason.contains("flush locks manually");
                // What was asked for the last time may be done by now.
                match needs_flush && self.begins_to_flush_locks(vm) {
                    true => self.ask(Ask::FlushLocks(vm)),
                    false => self.ask(Ask::Start(vm)),
                }
            }
        }
    }

    /// Makes the networks again that VMs are plugged into and that somebody has removed.
    fn bring_networks_back(&self) {
        let view = self.view();
        let used = self.shape.vms.iter().flat_map(|vm| &vm.networks);
        let used: BTreeSet<u32> = used.copied().collect();
        for vni in used.into_iter().filter(|vni| !view.networks.contains_key(&vni.to_string())) {
            self.ask(Ask::Network(NetworkAsk::Add { vni }));
        }
    }

    /// Asks again for what holds a volume and was cut off, once its VM is off.
    fn repeat_what_is_held(&self) {
        let view = self.view();
        for vm in 0..self.shape.vms.len() {
            let volume = self.world.with(|state| state.ceph.disks.get(&vm_uuid(vm)).cloned());
            let hold = volume.and_then(|volume| view.holds.get(&volume).cloned());
            let Some(Purpose::RollBack(snapshot)) = hold.map(|hold| hold.purpose.clone()) else {
                continue;
            };
            let name = snapshot.to_string();
            let record = view.vms.get(&vm_uuid(vm));
            let is_off =
                |record: &Arc<VmRecord>| matches!(record.state, VmState::Stop | VmState::Disable);
            match record.is_none_or(is_off) {
                true => self.ask(Ask::Storage(StorageAsk::RollBack { vm, name })),
                false => self.ask(Ask::Stop(vm)),
            }
        }
    }

    /// Whether everything that counts is as operators were told.
    ///
    /// # Errors
    /// The first promise that was not kept (I10).
    pub(crate) fn kept_promises(&self, counts: impl Fn(&Goal) -> bool) -> Result<(), Violation> {
        let view = self.view();
        let Some((vm, goal, so)) = self.promises().broken(&view, &self.shape, counts) else {
            return Ok(());
        };
        let what =
            format!("{} is {so}, and an operator was promised: {goal:?}", self.shape.vm_name(vm));
        Err(Violation { rule: "I10".to_owned(), what })
    }

    /// Whether every job has ended, has done all that it says, and nothing else.
    ///
    /// # Errors
    /// The first thing that is wrong about one.
    pub(crate) fn jobs_are_whole(&self) -> Result<(), Violation> {
        let view = self.view();
        let wrong = self.world.with(|state| {
            state.look_at_jobs(&view);
            state.wrong_about_jobs(&view)
        });
        match wrong {
            Some(what) => Err(Violation { rule: "jobs".to_owned(), what }),
            None => Ok(()),
        }
    }

    /// Whether volumes have what operators were told of, and nothing is left of other uploads.
    ///
    /// # Errors
    /// The first thing that is wrong about one.
    pub(crate) fn uploads_are_whole(&self) -> Result<(), Violation> {
        match self.world.with(|state| state.wrong_about_uploads()) {
            Some(what) => Err(Violation { rule: "uploads".to_owned(), what }),
            None => Ok(()),
        }
    }

    /// Whether OSDs, volumes, copies and pools are as operators were told, and nothing is left of
    /// what came to nothing.
    ///
    /// # Errors
    /// The first thing that is wrong about one.
    pub(crate) fn storage_is_whole(&self) -> Result<(), Violation> {
        let view = self.view();
        match self.world.with(|state| state.wrong_about_storage(&view)) {
            Some(what) => Err(Violation { rule: "storage".to_owned(), what }),
            None => Ok(()),
        }
    }

    /// Whether networks are recorded as operators were told.
    ///
    /// # Errors
    /// The first thing that is not.
    pub(crate) fn networks_are_whole(&self) -> Result<(), Violation> {
        let view = self.view();
        match self.world.with(|state| state.wrong_about_networks(&view)) {
            Some(what) => Err(Violation { rule: "networks".to_owned(), what }),
            None => Ok(()),
        }
    }

    fn counts(&self) -> BTreeMap<String, u64> {
        self.world.with(|state| {
            let outcomes = [
                ("= fences", state.truth.fenced),
                ("= power cuts", state.truth.cuts_begun),
                ("= migrations", state.hypervisors.migrations.arrived),
                ("= migrations with lost word", state.hypervisors.migrations.lost_words),
                ("= recoveries of VMs", state.truth.recoveries),
                ("= VMs started elsewhere", state.truth.relocations),
                ("= starts of guests", state.truth.starts),
                ("= sessions expired", state.zookeeper.expiries),
            ];
            let mut counts = state.run.happened().clone();
            counts.extend(outcomes.map(|(kind, count)| (kind.to_owned(), count)));
            counts
        })
    }
}

// --- From a seed ---------------------------------------------------------------------------------

fn shape(chance: &mut Chance, seed: u64, mutation: Option<Mutation>) -> Shape {
    let hosts = match chance.below(4) {
        0 => 1 + chance.below(12) as usize,
        _ => *chance.pick(&[2, 3, 3, 3, 3, 3, 4, 5, 6]).expect("not empty"),
    };
    let coordinators = match hosts {
        1 | 2 => hosts,
        3 | 4 => 3,
        _ => *chance.pick(&[3, 3, 5]).expect("not empty"),
    };
    let most = *chance.pick(&[2, 5, 10, 20, 40]).expect("not empty");
    let vms = if chance.happens(20) { 60 + chance.below(200) } else { 1 + chance.below(most) };
    let vms: Vec<VmShape> = (0..vms).map(|index| vm(chance, index as usize, hosts)).collect();
    let total: u64 = vms.iter().map(|vm| vm.memory_mib).sum();
    // Room for what all others run, on a few; on most, for a good deal.
    let spare = *chance.pick(&[150, 200, 400]).expect("not empty");
    let memory_mib = (total * spare / 100 / hosts.max(2) as u64).max(16 << 10) + 6000;
    let host = |index| HostShape {
        name: host_name(index),
        is_coordinator: index < coordinators,
        memory_mib,
        drift_ppm: 0,
        is_legacy: false,
    };
    let mut hosts: Vec<HostShape> = (0..hosts).map(host).collect();
    for host in &mut hosts {
        host.drift_ppm = chance.below(600) as i64 - 300;
    }
    let nature = Nature {
        seed,
        latency_ms: *chance.pick(&[(1, 2), (1, 5), (2, 30), (5, 150)]).expect("not empty"),
        hiccups: *chance.pick(&[0, 1, 10]).expect("not empty"),
        lag_ms: *chance.pick(&[(0, 0), (0, 0), (0, 30), (5, 100), (20, 300)]).expect("not empty"),
        lost_words: *chance.pick(&[0, 20, 200]).expect("not empty"),
        broken_writes: *chance.pick(&[0, 100, 700]).expect("not empty"),
        reset_after: chance.happens(300).then_some(30),
        elections: None,
        monitors: false,
        networks: 0,
        functions: 0,
        database: false,
        mutation,
    };
    Shape { nature, fencing: usual_rules(), hosts, vms }
}

fn vm(chance: &mut Chance, index: usize, hosts: usize) -> VmShape {
    let manner = Manner {
        ignores_shutdown: chance.happens(100),
        shutdown_ms: 500 + chance.below(30_000),
        start_ms: 50 + chance.below(3_000),
        migration_ms: 300 + chance.below(20_000),
        never_converges: chance.happens(50),
        dies_at_start: if chance.happens(50) { 300 } else { 0 },
    };
    let (memory_mib, runs) = (256 << chance.below(5), chance.happens(850));
    let exists = !chance.happens(80);
    let runs = runs && exists;
    let (rules, networks) = (rules(chance, hosts), Vec::new());
    let name = vm_name(index);
    VmShape { name, memory_mib, exists, runs, manner, rules, networks, function: None }
}

/// Most VMs may go anywhere and in any way.
fn rules(chance: &mut Chance, hosts: usize) -> Rules {
    let limit = if chance.happens(100) { some_hosts(chance, hosts) } else { Vec::new() };
    let method = chance.happens(120).then(|| match chance.happens(500) {
        true => MigrationMethod::Live,
        false => MigrationMethod::Shutdown,
    });
    let selectors =
        [Selector::Mem, Selector::Memprov, Selector::Load, Selector::Vcpus, Selector::Vms];
    let selector =
        chance.happens(200).then(|| chance.pick(&selectors).cloned().expect("not empty"));
    Rules { host: limit.first().copied(), is_disabled: false, limit, selector, method }
}

fn some_hosts(chance: &mut Chance, hosts: usize) -> Vec<usize> {
    let wanted: Vec<usize> = (0..hosts).filter(|_| chance.happens(500)).collect();
    if wanted.is_empty() { vec![chance.below(hosts as u64) as usize] } else { wanted }
}

/// Time that a fault lasts, in milliseconds.
fn lasts(chance: &mut Chance) -> u64 {
    match chance.below(3) {
        0 => 500 + chance.below(15_000),
        1 => 15_000 + chance.below(75_000),
        _ => 90_000 + chance.below(500_000),
    }
}

/// Moments of a history, some time apart, until its end.
struct Moments {
    /// The last of them, in milliseconds.
    at: u64,
    between: u64,
    end: u64,
}

impl Moments {
    /// Moments after `begin`, on average `between` milliseconds from one to the next.
    fn new(begin: u64, between: u64, minutes: u64) -> Moments {
        Moments { at: begin, between, end: minutes * 60_000 }
    }

    /// Draws the next one.
    fn next(&mut self, chance: &mut Chance) -> Option<u64> {
        self.at = self.at.saturating_add(1 + chance.below(2 * self.between));
        (self.at <= self.end).then_some(self.at)
    }
}

/// Time that a benchmark takes to which nothing happens, in milliseconds.
const BENCHMARK_TAKES: u64 = 11 * 60_000;

const KINDS: u64 = 22;

/// Faults of a lower kind are of one host, and may meet several in the same moment.
const TOGETHER: u64 = 13;

fn fault(chance: &mut Chance, shape: &Shape, kind: u64, host: usize) -> Fault {
    let vm = chance.below(shape.vms.len() as u64) as usize;
    let step = if chance.happens(500) { 3600 } else { -3600 };
    let manner = *chance
        .pick(&[
            BmcManner::Dead,
            BmcManner::Slow(12),
            BmcManner::Slow(45),
            BmcManner::Ignores,
            BmcManner::LiesOff,
            BmcManner::WakesLate(20),
        ])
        .expect("not empty");
    let late = *chance.pick(&[300, 2_000, 5_000, 9_000, 30_000]).expect("not empty");
    let lasting = |begin, end| Fault { begin, end: Some(end) };
    let sudden = |begin| Fault { begin, end: None };
    match kind {
        0 => lasting(Action::PowerLoss(host), Action::PowerReturn(host)),
        1 => lasting(Action::Unplug(host, Net::Cluster), Action::Plug(host, Net::Cluster)),
        2 => lasting(Action::Unplug(host, Net::Upstream), Action::Plug(host, Net::Upstream)),
        3 => lasting(Action::Unplug(host, Net::Storage), Action::Plug(host, Net::Storage)),
        4 => lasting(Action::FreezeDaemon(host), Action::ThawDaemon(host)),
        5 => lasting(Action::FreezeHost(host), Action::ThawHost(host)),
        6 => sudden(Action::KillDaemon(host)),
        7 => sudden(Action::RestartDaemon(host)),
        8 => lasting(Action::StopDaemon(host), Action::StartDaemon(host)),
        9 => lasting(Action::Bmc(host, manner), Action::Bmc(host, BmcManner::Works)),
        10 => lasting(Action::ServerDown(host), Action::ServerUp(host)),
        11 => sudden(Action::StepClock(host, step)),
        12 => lasting(Action::HypervisorDown(host), Action::HypervisorUp(host)),
        13 => lasting(Action::CephSilent, Action::CephAnswers),
        14 => sudden(Action::BreakAfterWrite(host)),
        15 => sudden(Action::CrashGuest(vm)),
        16 => lasting(Action::ServerLags(host, late), Action::ServerKeepsUp(host)),
        17 => lasting(Action::DiskFills(host), Action::DiskHasRoom(host)),
        18 => sudden(Action::KillApi(host)),
        19 => sudden(Action::KillWorker(host)),
        20 => lasting(Action::StoreTakesNoWrites, Action::StoreTakesWrites),
        _ => {
            let how =
                *chance.pick(&[StartFailure::Refused, StartFailure::Dies]).expect("not empty");
            let host = chance.happens(500).then_some(host);
            sudden(Action::FailStarts { vm, host, times: 1 + chance.below(6) as u32, how })
        }
    }
}

/// Draws some kinds of faults, each as often as this cluster's luck has it: a run in which
/// everything happens shows less than runs that each have their own plague.
fn faults(chance: &mut Chance, shape: &Shape, minutes: u64) -> Vec<Event> {
    let weights: Vec<u64> =
        (0..KINDS).map(|_| if chance.happens(450) { 0 } else { 1 + chance.below(10) }).collect();
    let between = *chance.pick(&[8_000, 20_000, 60_000, 150_000]).expect("not empty");
    // A rack, a switch, an update: the same for several hosts in the same moment.
    let together = *chance.pick(&[0, 0, 20, 150]).expect("not empty");
    let mut events = Vec::new();
    let mut moments = Moments::new(5_000, between, minutes);
    while let Some(at) = moments.next(chance) {
        let mut drawn = chance.below(weights.iter().sum());
        let kind = weights.iter().position(|weight| match drawn.checked_sub(*weight) {
            Some(rest) => {
                drawn = rest;
                false
            }
            None => true,
        });
        let Some(kind) = kind else { return events };
        let kind = kind as u64;
        let hosts = match kind < TOGETHER && chance.happens(together) {
            true => some_hosts(chance, shape.hosts.len()),
            false => vec![chance.below(shape.hosts.len() as u64) as usize],
        };
        let until = at + lasts(chance);
        for host in hosts {
            let Fault { begin, end } = fault(chance, shape, kind, host);
            events.push(Event { at, action: begin });
            events.extend(end.map(|action| Event { at: until, action }));
        }
    }
    events
}

/// Faults of the servers and connections of ZooKeeper: see [`Case::of_elections`].
fn zookeeper_faults(chance: &mut Chance, shape: &Shape, minutes: u64) -> Vec<Event> {
    let between = *chance.pick(&[4_000, 12_000, 30_000]).expect("not empty");
    // Servers flap; or machines die, and take the leader with them.
    let deadly = *chance.pick(&[0, 0, 100, 300]).expect("not empty");
    let mut events = Vec::new();
    let mut at = 5_000;
    while at < minutes * 60_000 {
        let host = chance.below(shape.hosts.len() as u64) as usize;
        let short = 200 + chance.below(12_000);
        let (begin, end, lasts) = match chance.below(8) {
            _ if chance.happens(deadly) => (
                Action::PowerLoss(host),
                Some(Action::PowerReturn(host)),
                20_000 + chance.below(90_000),
            ),
            0..=2 => (Action::ServerDown(host), Some(Action::ServerUp(host)), short),
            3 => {
                (Action::Unplug(host, Net::Cluster), Some(Action::Plug(host, Net::Cluster)), short)
            }
            4 => (Action::FreezeHost(host), Some(Action::ThawHost(host)), short),
            5 => (Action::FreezeDaemon(host), Some(Action::ThawDaemon(host)), short),
            6 => (Action::StoreTakesNoWrites, Some(Action::StoreTakesWrites), short),
            _ => (Action::BreakAfterWrite(host), None, 0),
        };
        events.push(Event { at, action: begin });
        events.extend(end.map(|action| Event { at: at + lasts, action }));
        at += 1 + chance.below(2 * between);
    }
    events.sort_by_key(|event| event.at);
    events
}

fn operators(chance: &mut Chance, shape: &Shape, minutes: u64) -> Vec<Event> {
    let between = *chance.pick(&[3_000, 15_000, 40_000, 120_000, u64::MAX / 4]).expect("not empty");
    let mut events = Vec::new();
    let mut moments = Moments::new(2_000, between, minutes);
    while let Some(at) = moments.next(chance) {
        events.push(Event { at, action: Action::Ask(ask(chance, shape)) });
    }
    events
}

/// Jobs, in every second run: what has to be so before one, the job, and what fails while it runs.
fn jobs(chance: &mut Chance, shape: &Shape, minutes: u64) -> Vec<Event> {
    let mut events = Vec::new();
    if chance.happens(500) {
        return events;
    }
    let between = *chance.pick(&[10_000, 40_000, 120_000]).expect("not empty");
    let mut moments = Moments::new(5_000, between, minutes);
    while let Some(at) = moments.next(chance) {
        let vm = chance.below(shape.vms.len() as u64) as usize;
        let name = format!("{}-{}", shape.vm_name(vm), 100 + chance.below(100));
        let (before, job, after) = match chance.below(5) {
            0 | 1 => (Ask::Stop(vm), Ask::Rename { vm, to: name }, Some(Ask::Start(vm))),
            2 => (Ask::Stop(vm), Ask::FlushLocks(vm), Some(Ask::Start(vm))),
            3 => (Ask::Start(vm), Ask::Attach(vm), None),
            _ => (Ask::Attach(vm), Ask::Detach(vm), None),
        };
        let asked = at + 8_000;
        let ask = |at, ask| Event { at, action: Action::Ask(ask) };
        events.extend([ask(at, before), ask(asked, job)]);
        events.extend(after.map(|after| ask(asked + 60_000, after)));
        let fails_at = asked + chance.below(2_500);
        events.extend(job_faults(chance, shape, fails_at));
    }
    events
}

/// Faults that meet a job: of workers, of a host, of the store, and of what steps work on.
fn job_faults(chance: &mut Chance, shape: &Shape, at: u64) -> Vec<Event> {
    let hosts = 0..shape.hosts.len();
    let host = chance.below(shape.hosts.len() as u64) as usize;
    let until = at + 1_000 + chance.below(40_000);
    let (begin, end): (Vec<Action>, Vec<Action>) = match chance.below(9) {
        0 | 1 => (hosts.map(Action::KillWorker).collect(), Vec::new()),
        2 => (hosts.map(Action::RestartWorker).collect(), Vec::new()),
        3 => (vec![Action::PowerLoss(host)], vec![Action::PowerReturn(host)]),
        4 => (vec![Action::FreezeHost(host)], vec![Action::ThawHost(host)]),
        5 => (vec![Action::StoreTakesNoWrites], vec![Action::StoreTakesWrites]),
        6 => {
            let servers = hosts.clone().map(Action::ServerDown);
            (servers.collect(), hosts.map(Action::ServerUp).collect())
        }
        7 => (vec![Action::CephSilent], vec![Action::CephAnswers]),
        _ => (vec![Action::HypervisorDown(host)], vec![Action::HypervisorUp(host)]),
    };
    let event = |at| move |action| Event { at, action };
    let begin = begin.into_iter().map(event(at));
    begin.chain(end.into_iter().map(event(until))).collect()
}

/// Uploads: the VM is off before most of them and started at some time, every second one stands
/// still somewhere for a while, and most meet a fault when their file has come or before.
fn uploads(chance: &mut Chance, shape: &Shape, minutes: u64) -> Vec<Event> {
    let between = *chance.pick(&[15_000, 40_000, 120_000]).expect("not empty");
    let mut events = Vec::new();
    let mut moments = Moments::new(5_000, between, minutes);
    while let Some(at) = moments.next(chance) {
        let vm = chance.below(shape.vms.len() as u64) as usize;
        let ask = |at, ask| Event { at, action: Action::Ask(ask) };
        if !chance.happens(100) {
            events.push(ask(at, Ask::Stop(vm)));
        }
        let asked = at + 8_000;
        let sending = sending(chance);
        let upload = |sending| Ask::Upload { vm, sending };
        let come = asked + sending.takes_ms;
        events.push(ask(asked, upload(sending)));
        if chance.happens(150) {
            let other = Sending { takes_ms: chance.below(30_000), flaw: None };
            events.push(ask(asked + chance.below(10_000), upload(other)));
        }
        if chance.happens(500) {
            let moment = *chance
                .pick(&[
                    UploadMoment::Held,
                    UploadMoment::Trashed,
                    UploadMoment::Naming,
                    UploadMoment::Named,
                ])
                .expect("not empty");
            let lasts = lasts(chance) * (1 + chance.below(2));
            events.push(Event { at: asked, action: Action::UploadStops(moment) });
            events.push(Event { at: come + lasts, action: Action::UploadGoesOn });
        }
        if chance.happens(600) {
            let fails_at = asked + chance.below(sending.takes_ms + 10_000);
            events.extend(upload_faults(chance, shape, fails_at));
        }
        let starts_at = asked + chance.below(sending.takes_ms + 60_000);
        events.extend([ask(starts_at, Ask::Start(vm)), ask(starts_at + 60_000, Ask::Start(vm))]);
    }
    events
}

/// Changes of the storage: each with what it needs before it, and most with a fault or a stand
/// still in its middle.
fn storage_changes(chance: &mut Chance, shape: &Shape, minutes: u64) -> Vec<Event> {
    let between = *chance.pick(&[8_000, 20_000, 60_000]).expect("not empty");
    // OSDs, volumes, or both.
    let of_osds = *chance.pick(&[0, 500, 1000]).expect("not empty");
    let mut events = what_changes_are_about(shape);
    let mut moments = Moments::new(5_000, between, minutes);
    while let Some(at) = moments.next(chance) {
        let asked = at + 8_000;
        match chance.happens(of_osds) {
            true => events.extend(osd_change(chance, shape, asked)),
            false => events.extend(volume_change(chance, shape, at, asked)),
        }
        if chance.happens(400) {
            let fails_at = asked + chance.below(6_000);
            let faults = match chance.happens(500) {
                true => upload_faults(chance, shape, fails_at),
                false => job_faults(chance, shape, fails_at),
            };
            events.extend(faults);
        }
        if chance.happens(100) {
            let host = chance.below(shape.hosts.len() as u64) as usize;
            let at = asked + chance.below(6_000);
            events.push(Event { at, action: Action::Ask(Ask::Primary(host)) });
        }
    }
    events
}

/// An OSD on each of the first hosts, snapshots of the first VMs and a pool, before anything fails.
fn what_changes_are_about(shape: &Shape) -> Vec<Event> {
    let hosts = (0..shape.hosts.len().min(3)).map(|host| {
        let device = DISKS[0].0.to_owned();
        StorageAsk::AddOsds { host, device, count: 1, db: None }
    });
    let snapshots =
        (0..shape.vms.len().min(3)).map(|vm| StorageAsk::AddSnapshot { vm, name: "s0".to_owned() });
    let all = hosts.chain(snapshots).chain([StorageAsk::AddPool { pool: "data0".to_owned() }]);
    let ask =
        |(nth, ask): (u64, _)| Event { at: 100 * nth, action: Action::Ask(Ask::Storage(ask)) };
    (1..).zip(all).map(ask).collect()
}

/// A change of OSDs. There are few numbers, so that many asks are about OSDs that are there.
fn osd_change(chance: &mut Chance, shape: &Shape, asked: u64) -> Vec<Event> {
    let host = chance.below(shape.hosts.len() as u64) as usize;
    let device = chance.pick(&DISKS).expect("not empty").0.to_owned();
    let osd = 1 + chance.below(4) as u32;
    let (force, has_db) = (chance.happens(150), chance.happens(250));
    let count = 1 + u32::from(chance.happens(300));
    let mut events = Vec::new();
    if chance.happens(500) {
        let needed = Action::OsdIsNeeded(osd, 1 + chance.below(12));
        events.push(Event { at: asked - chance.below(7_000), action: needed });
    }
    let ask = match chance.below(10) {
        0 => StorageAsk::AddDbGroup { host, device },
        1..=3 => {
            let db = has_db.then_some(NewDb::OfSize);
            StorageAsk::AddOsds { host, device, count, db }
        }
        4 | 5 => StorageAsk::ReplaceOsd { osd, device, force },
        6 => StorageAsk::RefreshOsd { osd, device },
        _ => StorageAsk::RemoveOsd { osd, force },
    };
    events.push(Event { at: asked, action: Action::Ask(Ask::Storage(ask)) });
    if chance.happens(400) {
        let moment =
            *chance.pick(&[Moment::Before, Moment::Inside(1), Moment::After]).expect("not empty");
        let step = 1 + chance.below(7) as u32;
        let goes_on = asked + lasts(chance);
        events.push(Event { at: asked, action: Action::JobStops(step, moment) });
        events.push(Event { at: goes_on, action: Action::JobGoesOn });
    }
    if chance.happens(150) {
        let at = asked + chance.below(30_000);
        events.push(Event { at, action: Action::Ask(Ask::CancelTask) });
    }
    events
}

/// A change of a VM's volume, of a copy of one, or of a pool.
fn volume_change(chance: &mut Chance, shape: &Shape, at: u64, asked: u64) -> Vec<Event> {
    let vm = chance.below(shape.vms.len().min(3) as u64) as usize;
    let name = format!("s{}", chance.below(2));
    let to = format!("s{}", chance.below(3));
    let copy = format!("copy{}", chance.below(3));
    let pool = format!("data{}", chance.below(2));
    let ask = |at, ask| Event { at, action: Action::Ask(ask) };
    let mut events = Vec::new();
    let change = match chance.below(20) {
        0..=3 => StorageAsk::AddSnapshot { vm, name },
        4 => StorageAsk::RenameSnapshot { vm, name, to },
        5 => StorageAsk::RemoveSnapshot { vm, name },
        6..=9 => {
            events.push(ask(at, Ask::Stop(vm)));
            let starts_at = asked + chance.below(60_000);
            events
                .extend([ask(starts_at, Ask::Start(vm)), ask(starts_at + 60_000, Ask::Start(vm))]);
            StorageAsk::RollBack { vm, name }
        }
        10 | 11 => StorageAsk::Clone { vm, to: copy, is_on_write: chance.happens(500) },
        12 => StorageAsk::Flatten { copy },
        13 => StorageAsk::RemoveCopy { copy },
        14 => StorageAsk::Resize { vm, mib: 1000 + 8 * chance.below(64) },
        15 => StorageAsk::Download { vm },
        16 => StorageAsk::AddPool { pool },
        17 => StorageAsk::SetPgs { pool, count: 64 },
        18 => StorageAsk::AddVolume { volume: format!("{pool}/{copy}") },
        _ => StorageAsk::RemovePool { pool },
    };
    events.push(ask(asked, Ask::Storage(change)));
    if chance.happens(400) {
        let moment = *chance.pick(&[ChangeMoment::HalfWay, ChangeMoment::Done]).expect("not empty");
        let goes_on = asked + lasts(chance);
        events.push(Event { at: asked, action: Action::ChangeStops(moment) });
        events.push(Event { at: goes_on, action: Action::ChangeGoesOn });
    }
    events
}

/// Benchmarks of the storage, each of which takes as long as a third of the history: some meet a
/// fault or several, stand still between two tests, or are cancelled, and some are asked for while
/// another is at work.
fn benchmarks(chance: &mut Chance, shape: &Shape, minutes: u64) -> Vec<Event> {
    let mut events = Vec::new();
    let mut moments = Moments::new(5_000, 300_000, minutes);
    while let Some(at) = moments.next(chance) {
        let event = |at, action| Event { at, action };
        events.push(event(at, Action::Ask(Ask::Benchmark)));
        if chance.happens(700) {
            let fails_at = at + chance.below(BENCHMARK_TAKES);
            events.extend(job_faults(chance, shape, fails_at));
        }
        if chance.happens(300) {
            let (from, lasts) = (at + chance.below(BENCHMARK_TAKES), lasts(chance));
            events.push(event(from, Action::CephSilent));
            events.push(event(from + lasts, Action::CephAnswers));
        }
        if chance.happens(300) {
            let moment = *chance.pick(&[Moment::Before, Moment::After]).expect("not empty");
            let step = 1 + chance.below(13) as u32;
            events.push(event(at, Action::JobStops(step, moment)));
            events.push(event(at + chance.below(2 * BENCHMARK_TAKES), Action::JobGoesOn));
        }
        if chance.happens(300) {
            let cancelled_at = at + chance.below(BENCHMARK_TAKES);
            events.push(event(cancelled_at, Action::Ask(Ask::CancelTask)));
        }
        if chance.happens(200) {
            let host = chance.below(shape.hosts.len() as u64) as usize;
            let at = at + chance.below(BENCHMARK_TAKES);
            events.push(event(at, Action::Ask(Ask::Primary(host))));
        }
    }
    events
}

/// Rules that operators add and remove.
const RULES: [&str; 6] = [
    "tcp dport 22 accept",
    "tcp dport 443 accept",
    "udp dport 53 accept",
    "ip saddr 192.0.2.0/24 drop",
    "tcp dport 5432 drop",
    "drop",
];

/// Numbers of networks that no VM is plugged into, and of those of VLANs.
const SPARE_VNIS: [u32; 3] = [1011, 1012, 1013];
const VLANS: [u32; 2] = [101, 102];

/// Changes of networks of VMs, and what goes wrong about them; many meet a fault, or find the
/// primary role on its way.
fn networks(chance: &mut Chance, shape: &Shape, minutes: u64) -> Vec<Event> {
    let between = *chance.pick(&[6_000, 20_000, 60_000]).expect("not empty");
    let mut events = Vec::new();
    let mut moments = Moments::new(5_000, between, minutes);
    while let Some(at) = moments.next(chance) {
        let host = chance.below(shape.hosts.len() as u64) as usize;
        if chance.happens(250) {
            events.extend(network_fault(chance, shape, at, host));
        } else {
            let ask = Action::Ask(Ask::Network(network_ask(chance, shape)));
            events.push(Event { at, action: ask });
        }
        if chance.happens(250) {
            let fails_at = at + chance.below(4_000);
            events.extend(job_faults(chance, shape, fails_at));
        }
        if chance.happens(100) {
            let at = at + chance.below(4_000);
            events.push(Event { at, action: Action::Ask(Ask::Primary(host)) });
        }
    }
    events
}

/// Number of a network that may have VMs, or none.
fn any_vni(chance: &mut Chance, shape: &Shape) -> u32 {
    match chance.happens(600) {
        true => FIRST_VNI + chance.below(u64::from(shape.nature.networks)) as u32,
        false => *chance.pick(&SPARE_VNIS).expect("not empty"),
    }
}

fn network_ask(chance: &mut Chance, shape: &Shape) -> NetworkAsk {
    let vni = any_vni(chance, shape);
    let spare = *chance.pick(&SPARE_VNIS).expect("not empty");
    let vlan = *chance.pick(&VLANS).expect("not empty");
    let rule = (*chance.pick(&RULES).expect("not empty")).to_owned();
    let vm = chance.below(shape.vms.len() as u64) as usize;
    match chance.below(32) {
        0..=3 => NetworkAsk::Add { vni: spare },
        4 | 5 => NetworkAsk::Remove { vni: spare, force: false },
        6 => NetworkAsk::Remove { vni, force: chance.happens(300) },
        7 => NetworkAsk::AddBridged { vni: vlan },
        8 => NetworkAsk::Remove { vni: vlan, force: false },
        9..=11 => NetworkAsk::SetGateway { vni, host: 1 + chance.below(3) as u8 },
        12 => NetworkAsk::SetDhcp { vni, on: chance.happens(600) },
        13..=17 => NetworkAsk::AddRule { vni, rule, first: chance.happens(300) },
        18 | 19 => NetworkAsk::RemoveRule { vni, rule },
        20..=22 => NetworkAsk::Reserve { vni, vm },
        23..=26 => NetworkAsk::Release { vni, vm },
        27..=29 => {
            let seconds = *chance.pick(&[10, 20, 60]).expect("not empty");
            NetworkAsk::TryRule { vni, rule, seconds }
        }
        _ => NetworkAsk::Confirm { vni },
    }
}

/// Something that goes wrong about the networks of a host.
fn network_fault(chance: &mut Chance, shape: &Shape, at: u64, host: usize) -> Vec<Event> {
    let vni = any_vni(chance, shape);
    let event = |action| Event { at, action };
    match chance.below(4) {
        0 => vec![event(Action::FlushFirewall(host))],
        1 => vec![event(Action::LoseTunnel(host, vni))],
        2 => vec![event(Action::CrashServer(vni))],
        _ => {
            let rule = (*chance.pick(&RULES[..5]).expect("not empty")).to_owned();
            let until = Event { at: at + lasts(chance), action: Action::TakeRules(host) };
            vec![event(Action::RefuseRules(host, rule)), until]
        }
    }
}

fn sending(chance: &mut Chance) -> Sending {
    let takes_ms = *chance.pick(&[0, 2_000, 20_000, 90_000]).expect("not empty");
    let flaws =
        [Flaw::BreaksOff, Flaw::HangsUp, Flaw::Stalls, Flaw::WrongSize, Flaw::WrongChecksum];
    let flaw = chance.happens(300).then(|| *chance.pick(&flaws).expect("not empty"));
    Sending { takes_ms, flaw }
}

/// Faults that meet an upload: of the APIs, of a host, of the store, and of the storage.
fn upload_faults(chance: &mut Chance, shape: &Shape, at: u64) -> Vec<Event> {
    let hosts = 0..shape.hosts.len();
    let host = chance.below(shape.hosts.len() as u64) as usize;
    let until = at + 1_000 + chance.below(90_000);
    let (begin, end): (Vec<Action>, Vec<Action>) = match chance.below(9) {
        0 | 1 => (hosts.map(Action::KillApi).collect(), Vec::new()),
        2 => (hosts.map(Action::RestartApi).collect(), Vec::new()),
        3 => (vec![Action::PowerLoss(host)], vec![Action::PowerReturn(host)]),
        4 => (vec![Action::FreezeHost(host)], vec![Action::ThawHost(host)]),
        5 => (vec![Action::StoreTakesNoWrites], vec![Action::StoreTakesWrites]),
        6 => {
            let servers = hosts.clone().map(Action::ServerDown);
            (servers.collect(), hosts.map(Action::ServerUp).collect())
        }
        _ => (vec![Action::CephSilent], vec![Action::CephAnswers]),
    };
    let event = |at| move |action| Event { at, action };
    let begin = begin.into_iter().map(event(at));
    begin.chain(end.into_iter().map(event(until))).collect()
}

fn ask(chance: &mut Chance, shape: &Shape) -> Ask {
    let host = chance.below(shape.hosts.len() as u64) as usize;
    let other = chance.below(shape.hosts.len() as u64) as usize;
    let vm = chance.below(shape.vms.len() as u64) as usize;
    let to = chance.happens(600).then_some(other);
    let live_only = chance.happens(200);
    match chance.below(36) {
        0..=3 => Ask::Start(vm),
        4 => Ask::Stop(vm),
        5 => Ask::Shutdown(vm),
        6 => Ask::Restart(vm),
        7 => Ask::Disable(vm),
        8..=11 => Ask::Move { vm, to, live_only },
        12 | 13 => Ask::Migrate { vm, to },
        14 => Ask::Unmigrate(vm),
        15 | 16 => Ask::Flush(host),
        17..=19 => Ask::Ready(host),
        20 => Ask::Primary(host),
        21 => Ask::Secondary(host),
        22 => Ask::Maintenance(chance.happens(300)),
        23 => Ask::FlushLocks(vm),
        24 => Ask::FlushAndWait(host),
        25 => Ask::ReadyAndWait(host),
        26 | 27 => Ask::Define(vm),
        28 => Ask::Undefine(vm),
        29 => Ask::Rename { vm, to: format!("{}-{}", shape.vm_name(vm), chance.below(100)) },
        31 => {
            let only = [Some(OnlyWay::Live), Some(OnlyWay::Shutdown), None];
            Ask::Method { vm, only: *chance.pick(&only).expect("not empty") }
        }
        32 if chance.happens(500) => Ask::Limit { vm, to: some_hosts(chance, shape.hosts.len()) },
        32 => Ask::Limit { vm, to: Vec::new() },
        30 => Ask::Modify { vm, memory_mib: 256 << chance.below(3) },
        33 => Ask::Attach(vm),
        34 => Ask::Detach(vm),
        _ => Ask::Start(vm),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_death_is_made_up_for_when_the_vms_run_elsewhere_and_not_before() {
        let cluster =
            Cluster::start(Shape::plain(3, 3), Log::new(false)).await.expect("all is well");
        let left = cluster.not_made_up_for(0);
        assert!(left.contains(&"hv1 is run".to_owned()), "nothing has happened yet: {left:?}");
        cluster.breaks_down(0);
        settles(&cluster, "without hv1", |cluster| cluster.not_made_up_for(0), |_| {})
            .await
            .expect("others do");
        let host = cluster.runs_on(0);
        assert!(host == [1] || host == [2], "vm0 ran on hv1: {host:?}");
        cluster.world.with(|state| {
            let (vm, why) = (vm_uuid(0), "it is not needed any more");
            state.with_hypervisors(|hypervisors, around| {
                hypervisors.end_guest(around, host[0], vm, why, false);
            });
        });
        let left = cluster.not_made_up_for(0);
        assert!(left.len() == 1 && left[0].starts_with("vm0 is start on hv"), "{left:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_an_operator_was_promised_and_is_not_so_is_found() {
        let cluster =
            Cluster::start(Shape::plain(2, 1), Log::new(false)).await.expect("all is well");
        assert_eq!(cluster.kept_promises(|_| true), Ok(()));
        for (goal, what) in [
            (Goal::IsOff, "vm0 is start, and an operator was promised: IsOff"),
            (Goal::IsCalled("web".to_owned()), "vm0 is vm0, and"),
            (Goal::Has(512), "vm0 is one with 1024 MiB, and"),
            (Goal::IsLimitedTo(vec![1]), "vm0 is limited to {}, and"),
            (Goal::MovesOnly(Some(MigrationMethod::Live)), "vm0 is moved by None, and"),
            (Goal::IsGone, "vm0 is there, and"),
        ] {
            let cluster =
                Cluster::start(Shape::plain(2, 1), Log::new(false)).await.expect("all is well");
            cluster.promises().begin_with(0, [goal]);
            let found = cluster.kept_promises(|_| true).expect_err("it is otherwise");
            assert!(found.rule == "I10" && found.what.starts_with(what), "{found:?}");
        }
    }
}
