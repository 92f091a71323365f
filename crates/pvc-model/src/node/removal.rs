//! Removal of the record of a node that is gone for good.
//!
//! The record of a node is what others know of its guests, its OSDs and its tasks. So it goes last:
//! when the node shows no sign of life and nothing is recorded to be there. What else names it is
//! put in order with the removal, or is named to the operator.
//!
//! Nothing is proven by it: a daemon that comes back makes its record anew, as that of a new node.

use std::collections::BTreeSet;

use crate::cluster::Cluster;
use crate::fault::{NODE_FENCED, fault_id};
use crate::fence::{BOOTS_WITHIN, PowerAfter, Sign, is_being_recovered, sign_of_life};
use crate::hold::{Purpose, VolumeHold};
use crate::job::course::Failure;
use crate::job::{Job, JobId, JobState, JobWork, may_take};
use crate::node::{DaemonState, NodeRecord};
use crate::refusal::Kind;
use crate::request::moving_state;
use crate::storage::VolumeId;
use crate::vm::VmRecord;
use crate::vm::moving::{has_guest, is_moving};
use crate::{NodeName, Uuid, listed};

/// Number of VMs or OSDs that a refusal names.
const NAMED: usize = 5;

/// Kinds of faults whose identifiers end with the name of a VM or a pool.
const OF_OTHERS: [&str; 2] = ["VM_", "POOL_"];

/// Facts that a removal is decided on.
#[derive(Debug, Clone, Copy)]
pub struct Removal<'a> {
    pub cluster: &'a Cluster,
    pub node: &'a NodeRecord,
    /// Record of the node when it was first looked at, [long ago](crate::fence::WATCH).
    pub before: &'a NodeRecord,
    /// Node whose API was asked.
    pub asked: &'a NodeName,
    /// The coordinators by the configuration of that node.
    pub coordinators: &'a BTreeSet<NodeName>,
    /// Whether the daemon of the node that is to go has a session with the store.
    pub is_announced: bool,
    /// Seconds since the epoch.
    pub now: u64,
}

/// Reason for which a node is not removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotRemoved {
    #[error("the daemon of node `{node}` is in state `{state}`, not `stop` or `fenced`")]
    State { node: NodeName, state: DaemonState },
    #[error("the VMs of node `{node}` are being given to others")]
    BeingRecovered { node: NodeName },
    #[error("the server of node `{node}`, which was fenced, is about to be switched on again")]
    PowerDue { node: NodeName },
    #[error("the server of node `{node}` was switched on after its fence, and may be booting")]
    Boots { node: NodeName },
    #[error("node `{node}` shows a sign of life: {sign}")]
    Lives { node: NodeName, sign: Sign },
    #[error("node `{node}` has the primary role, or is to have it")]
    Primary { node: NodeName },
    #[error("node `{node}` is one of `coordinator_nodes` in the configuration of node `{asked}`")]
    Coordinator { node: NodeName, asked: NodeName },
    #[error("VMs are assigned to node `{node}`: {}", named(vms))]
    Vms { node: NodeName, vms: Vec<String>, first: Assigned },
    #[error("VMs may run on node `{node}`: {}", named(vms))]
    Guests { node: NodeName, vms: Vec<String> },
    #[error("VMs that have node `{node}` as their home are being moved: {}", named(vms))]
    Moving { node: NodeName, vms: Vec<String> },
    #[error("OSDs are recorded of node `{node}`: {}", named(osds))]
    Osds { node: NodeName, osds: Vec<String> },
    #[error("task `{job}` is one of node `{node}`, and has not ended")]
    Task { node: NodeName, job: JobId },
    #[error("task `{job}` may have made OSDs on node `{node}` that are not recorded")]
    HalfDone { node: NodeName, job: JobId },
    #[error("volume `{volume}` may still be mapped on node `{node}`")]
    Mapped { node: NodeName, volume: VolumeId },
}

/// State of a VM that is assigned to a node which is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assigned {
    /// Not to run: its record alone says where it is.
    IsOff,
    /// To run, and the node's daemon has stopped: its guest may be there.
    MayRun,
    /// To run, and nobody has freed its locks since the node was proven dead.
    IsLocked,
}

impl NotRemoved {
    /// Advice about what to do first.
    pub fn hint(&self) -> String {
        match self {
            NotRemoved::State { node, state } => match state {
                DaemonState::Run => format!(
                    "`pvc node flush {node} --wait` moves its VMs away; then, on it, `systemctl \
                     disable --now pvc.target`; if its server is dead and nobody finds out, end \
                     the maintenance, or with `fence_intervals: 0` say `pvc node confirm-off \
                     {node}`"
                ),
                DaemonState::Dead => format!(
                    "if you have seen that its server is without power, `pvc node confirm-off \
                     {node}` says so"
                ),
                _ => format!(
                    "wait until it has stopped; if its server is off for good, `pvc node \
                     confirm-off {node}` says so"
                ),
            },
            NotRemoved::BeingRecovered { node } => {
                format!("wait for that; `pvc node info {node}` shows what became of its VMs")
            }
            NotRemoved::PowerDue { node } | NotRemoved::Boots { node } => format!(
                "wait until it is there, or {} minutes after its fence; `pvc node info {node}` \
                 shows that; a server without a power cable does not come back",
                BOOTS_WITHIN.as_secs() / 60
            ),
            NotRemoved::Lives { node, sign: Sign::Answers } => format!(
                "on node `{node}`, `systemctl disable --now pvc.target`; then ask the API of \
                 another node"
            ),
            NotRemoved::Lives { .. } => "ask again in some seconds: a session that is left over \
                                         ends by then; if the node lives, on it, `systemctl \
                                         disable --now pvc.target`"
                .to_owned(),
            NotRemoved::Primary { .. } => {
                "`pvc node primary NODE` gives the role to another coordinator".to_owned()
            }
            NotRemoved::Coordinator { .. } => {
                "once ZooKeeper, the database and Ceph's monitors have left it, take its name out \
                 of `coordinator_nodes` in `pvc.conf` on every node, and restart the daemons \
                 there: the manual has the order in \"Another coordinator\""
                    .to_owned()
            }
            NotRemoved::Vms { vms, first: Assigned::IsOff, .. } => {
                format!("`pvc vm move {} --target NODE` gives it to another node", first(vms))
            }
            NotRemoved::Vms { node, first: Assigned::MayRun, .. }
            | NotRemoved::Guests { node, .. } => format!(
                "start `pvcnoded` there and empty it: `pvc node flush {node} --wait`; if its \
                 server is off for good, `pvc node confirm-off {node}` says so"
            ),
            NotRemoved::Vms { vms, first: Assigned::IsLocked, .. } => {
                let vm = first(vms);
                format!(
                    "in this order: `pvc vm stop {vm}`, `pvc vm move {vm} --target NODE`, `pvc vm \
                     flush-locks {vm}`, `pvc vm start {vm}`"
                )
            }
            NotRemoved::Moving { vms, .. } => {
                format!("wait for that; `pvc vm info {}` shows how far it is", first(vms))
            }
            NotRemoved::Osds { osds, .. } => format!(
                "`pvc storage osd remove {}` removes one, as long as the daemons of its node run, \
                 or when that is `fenced`",
                first(osds)
            ),
            NotRemoved::Task { job, .. } => {
                format!("`pvc task cancel {job}`: the removal ends it, as nobody else does")
            }
            NotRemoved::HalfDone { node, .. } => format!(
                "start `pvcworkerd` there: it takes back what the task has done; if its server is \
                 off for good, `pvc node confirm-off {node}` says so"
            ),
            NotRemoved::Mapped { node, .. } => format!(
                "its worker lets go of it when it is there again; if the server is off for good, \
                 `pvc node confirm-off {node}` says so"
            ),
        }
    }
}

fn named(names: &[String]) -> String {
    listed(names.iter().map(|name| format!("`{name}`")), NAMED)
}

fn first(names: &[String]) -> &str {
    names.first().map_or("", String::as_str)
}

/// Records of others that name a node which may be removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct References {
    /// VMs that were to return to it, with their names: they stay where they are.
    pub homes: Vec<(Uuid, String)>,
    /// Names of VMs that are limited to it, or to it and others: the limits stay as they are.
    pub limited: Vec<String>,
    /// Faults about it, which nobody else would take back.
    pub faults: Vec<String>,
    /// Fault of its fence, which stays: a machine of that name makes itself ready without it.
    pub kept: Option<String>,
    /// Other nodes that are there and whose daemons are those of PVC 1.0.3: what these make of a
    /// record that goes is not known.
    pub legacy: Vec<NodeName>,
    /// Tasks of it that were cancelled, and that nobody else would end.
    pub jobs: Vec<JobId>,
}

impl Removal<'_> {
    /// Refuses a node that may be there, or of which something else is recorded to be there.
    /// Returns what else names it.
    ///
    /// # Errors
    /// The first reason against it.
    pub fn check(&self) -> Result<References, NotRemoved> {
        self.check_gone()?;
        self.check_coordination()?;
        self.check_vms()?;
        self.check_storage()?;
        self.check_jobs()?;
        Ok(self.references())
    }

    fn name(&self) -> NodeName {
        self.node.name.clone()
    }

    fn check_gone(&self) -> Result<(), NotRemoved> {
        let node = self.name();
        if is_being_recovered(self.node) {
            return Err(NotRemoved::BeingRecovered { node });
        }
        if !matches!(self.node.daemon_state, DaemonState::Stop | DaemonState::Fenced) {
            return Err(NotRemoved::State { node, state: self.node.daemon_state.clone() });
        }
        let Removal { cluster, before, asked, is_announced, .. } = *self;
        if let Some(sign) = sign_of_life(cluster, self.node, before, asked, is_announced) {
            return Err(NotRemoved::Lives { node, sign });
        }
        match self.power_after() {
            Some(PowerAfter::Due) => Err(NotRemoved::PowerDue { node }),
            Some(PowerAfter::SwitchedOn) => Err(NotRemoved::Boots { node }),
            Some(PowerAfter::Untouched) | None => Ok(()),
        }
    }

    /// The power after a fence that is so recent that the node may come up yet.
    fn power_after(&self) -> Option<PowerAfter> {
        let fence = self.node.present_fence().filter(|_| self.node.is_fenced())?;
        let proven_at = u64::try_from(fence.proven_at?).ok()?;
        (self.now.abs_diff(proven_at) < BOOTS_WITHIN.as_secs()).then_some(fence.power)
    }

    fn check_coordination(&self) -> Result<(), NotRemoved> {
        let node = self.name();
        if self.cluster.config.primary.as_ref() == Some(&node) {
            return Err(NotRemoved::Primary { node });
        }
        if self.coordinators.contains(&node) {
            return Err(NotRemoved::Coordinator { node, asked: self.asked.clone() });
        }
        Ok(())
    }

    fn check_vms(&self) -> Result<(), NotRemoved> {
        let node = &self.node.name;
        let is_off = |vm: &VmRecord| matches!(moving_state(&vm.state, false), Ok(None));
        // Those that are to run first: they are more trouble.
        let mut assigned = self.names_of(|vm| vm.is_assigned_to(node) && !is_off(vm));
        let first = match (assigned.is_empty(), self.node.is_fenced()) {
            (true, _) => Assigned::IsOff,
            (false, true) => Assigned::IsLocked,
            (false, false) => Assigned::MayRun,
        };
        assigned.extend(self.names_of(|vm| vm.is_assigned_to(node) && is_off(vm)));
        if !assigned.is_empty() {
            return Err(NotRemoved::Vms { node: self.name(), vms: assigned, first });
        }
        let guests = self.guests();
        if !guests.is_empty() {
            return Err(NotRemoved::Guests { node: self.name(), vms: guests });
        }
        // Who moves it knows of its home, and may write it once more.
        let moving = self.names_of(|vm| returns_to(vm, node) && is_moving(&vm.state));
        match moving.is_empty() {
            true => Ok(()),
            false => Err(NotRemoved::Moving { node: self.name(), vms: moving }),
        }
    }

    /// The VMs whose guests may be on the node, which is not proven dead: a daemon that was stopped
    /// leaves them as they are.
    fn guests(&self) -> Vec<String> {
        let Removal { cluster, node, .. } = *self;
        if node.is_fenced() {
            return Vec::new();
        }
        let known = self.names_of(|vm| has_guest(cluster, node, vm.uuid));
        let all = node.running.iter().chain(&node.working_on);
        let strays = all.filter(|vm| !cluster.vms.contains_key(*vm)).map(|vm| vm.to_string());
        known.into_iter().chain(strays).collect()
    }

    fn check_storage(&self) -> Result<(), NotRemoved> {
        let Removal { cluster, node, .. } = *self;
        let own = cluster.osds.iter().filter(|(_, osd)| osd.node == node.name.as_str());
        let osds: Vec<String> = own.map(|(id, _)| id.clone()).collect();
        if !osds.is_empty() {
            return Err(NotRemoved::Osds { node: self.name(), osds });
        }
        // Of one that is proven dead, others let go.
        let is_mapped = |hold: &&VolumeHold| match &hold.purpose {
            Purpose::Mapped(jobs) => jobs.values().any(|on| *on == node.name),
            _ => false,
        };
        let holds = cluster.holds.values().map(|hold| &**hold);
        match holds.filter(|_| !node.is_fenced()).find(is_mapped) {
            Some(hold) => {
                Err(NotRemoved::Mapped { node: self.name(), volume: hold.volume.clone() })
            }
            None => Ok(()),
        }
    }

    fn check_jobs(&self) -> Result<(), NotRemoved> {
        if let Some(job) = self.own_jobs().find(|job| !is_left(job)) {
            return Err(NotRemoved::Task { node: self.name(), job: job.spec.id.clone() });
        }
        let mut half_done = self.own_jobs().filter(|_| !self.node.is_fenced());
        match half_done.find(|job| may_have_made_osds(job)) {
            Some(job) => Err(NotRemoved::HalfDone { node: self.name(), job: job.spec.id.clone() }),
            None => Ok(()),
        }
    }

    /// The jobs that have not ended, and that nobody does but the node's worker.
    fn own_jobs(&self) -> impl Iterator<Item = &Job> {
        let is_own = move |job: &&Job| {
            !job.progress.state.is_over()
                && !job.spec.work.runs_anywhere()
                && may_take(self.cluster, job, &self.node.name)
        };
        self.cluster.jobs.values().map(|job| &**job).filter(is_own)
    }

    fn references(&self) -> References {
        let node = &self.node.name;
        let vms = self.cluster.vms.values();
        let homes = vms.filter(|vm| returns_to(vm, node)).map(|vm| (vm.uuid, vm.name.clone()));
        let faults = self.cluster.faults.keys().filter(|id| self.is_about(id)).cloned();
        // Of one that has come back since, an operator knows.
        let fence = self.node.is_fenced().then(|| fault_id(NODE_FENCED, node.as_str()));
        let (kept, faults) = faults.partition::<Vec<_>, _>(|id| fence.as_ref() == Some(id));
        let is_legacy = |other: &&NodeRecord| {
            let is_there = !matches!(other.daemon_state, DaemonState::Stop | DaemonState::Fenced);
            other.name != *node && is_there && !other.runs_our_daemon()
        };
        let others = self.cluster.nodes.values().map(|other| &**other);
        References {
            homes: homes.collect(),
            limited: self.names_of(|vm| vm.node_limit.contains(node)),
            faults,
            kept: kept.into_iter().next(),
            legacy: others.filter(is_legacy).map(|other| other.name.clone()).collect(),
            jobs: self.own_jobs().map(|job| job.spec.id.clone()).collect(),
        }
    }

    /// Whether the fault is one about the node, by its identifier.
    fn is_about(&self, fault: &str) -> bool {
        let end_of = |node: &NodeName| fault_id("", node.as_str());
        let own = end_of(&self.node.name);
        let is_of_longer_name = |other: &NodeName| {
            let end = end_of(other);
            end.len() > own.len() && end.ends_with(&own) && fault.ends_with(&end)
        };
        fault.ends_with(&own)
            && !OF_OTHERS.iter().any(|kind| fault.starts_with(kind))
            && !self.cluster.nodes.keys().any(is_of_longer_name)
    }

    fn names_of(&self, is_meant: impl Fn(&VmRecord) -> bool) -> Vec<String> {
        let meant = self.cluster.vms.values().filter(|vm| is_meant(vm));
        meant.map(|vm| vm.name.clone()).collect()
    }
}

fn returns_to(vm: &VmRecord, node: &NodeName) -> bool {
    vm.last_node.as_ref() == Some(node)
}

/// Whether somebody has cancelled the job, and no worker has it.
fn is_left(job: &Job) -> bool {
    job.cancel_requested && job.claim.is_none()
}

/// Whether the job has begun to make OSDs: until it is done one may be in Ceph that no record
/// names.
fn may_have_made_osds(job: &Job) -> bool {
    let makes = matches!(job.spec.work, JobWork::AddOsds(_) | JobWork::ReplaceOsd(_));
    makes && job.progress.steps.is_some()
}

/// Failure as which a job ends that only the worker of node `node` would do, when the record of
/// that is removed, or is found to be gone.
pub fn failure_of_removed(node: &NodeName, job: &Job) -> Failure {
    let hint = may_have_made_osds(job).then(|| {
        "an OSD of it that `pvc storage osd list` has not may be in `ceph osd tree`: `ceph osd \
         purge ID --yes-i-really-mean-it` removes it"
            .to_owned()
    });
    let why = match (job.cancel_requested, job.progress.state) {
        (true, _) => format!(
            "it was cancelled, and its node `{node}` was removed; what it has done stays as it is"
        ),
        (false, JobState::Pending) => format!("its node `{node}` was removed before it began"),
        (false, _) => format!("its node `{node}` was removed; what it has done stays as it is"),
    };
    Failure { kind: Kind::Unavailable, why, hint }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::fault::FaultRecord;
    use crate::fence::FenceNote;
    use crate::job::course::Course;
    use crate::job::{ClaimId, JobProgress, JobSpec, JobVm, Steps, WorkerRecord};
    use crate::node::{DaemonNote, DomainState};
    use crate::osd::{AddOsds, DeviceSpec};
    use crate::records;
    use crate::storage::OsdRecord;
    use crate::vm::VmState;

    const NOW: u64 = 10_000;

    /// Node hv3, of which nothing else is recorded.
    fn gone(daemon_state: DaemonState) -> NodeRecord {
        let domain_state = DomainState::Flushed;
        NodeRecord { daemon_state, domain_state, keepalives: 7, ..records::node("hv3") }
    }

    /// Node that runs, with a daemon of ours.
    fn ours(name: &str) -> NodeRecord {
        NodeRecord { daemon: Some(DaemonNote::default()), ..records::node(name) }
    }

    fn cluster(hv3: NodeRecord) -> Cluster {
        let nodes = [ours("hv1"), ours("hv2"), hv3];
        let nodes = nodes.into_iter().map(|node| (node.name.clone(), Arc::new(node)));
        Cluster { nodes: nodes.collect(), ..Cluster::default() }
    }

    /// Asks hv1 whether hv3 may go, whose record was `before` when it was first looked at.
    fn check_since(before: &NodeRecord, cluster: &Cluster) -> Result<References, NotRemoved> {
        let (asked, coordinators) = (NodeName::new("hv1"), BTreeSet::from([NodeName::new("hv1")]));
        Removal {
            cluster,
            node: &cluster.nodes["hv3"],
            before,
            asked: &asked,
            coordinators: &coordinators,
            is_announced: false,
            now: NOW,
        }
        .check()
    }

    fn check(cluster: &Cluster) -> Result<References, NotRemoved> {
        check_since(&cluster.nodes["hv3"], cluster)
    }

    /// Both kinds of nodes that may go.
    fn both() -> [Cluster; 2] {
        [DaemonState::Stop, DaemonState::Fenced].map(|state| cluster(gone(state)))
    }

    fn why(cluster: &Cluster) -> String {
        let refused = check(cluster).expect_err("it is refused");
        assert!(!refused.hint().is_empty(), "{refused}");
        refused.to_string()
    }

    fn with_vm(mut cluster: Cluster, vm: VmRecord) -> Cluster {
        cluster.vms.insert(vm.uuid, Arc::new(vm));
        cluster
    }

    #[test]
    fn only_a_node_that_has_stopped_or_is_proven_dead_is_removed() {
        let states = DaemonState::ALL.iter().cloned().chain([DaemonState::from_record("odd")]);
        for state in states {
            let found = check(&cluster(gone(state.clone())));
            match state {
                DaemonState::Stop | DaemonState::Fenced => {
                    assert_eq!(found, Ok(References::default()), "{state}");
                }
                _ => {
                    let refused = found.expect_err("it may be there");
                    assert_eq!(refused, NotRemoved::State { node: "hv3".into(), state });
                }
            }
        }
        let runs = check(&cluster(gone(DaemonState::Run))).expect_err("it runs");
        assert!(runs.hint().contains("`pvc node flush hv3 --wait`"), "{}", runs.hint());
    }

    #[test]
    fn a_node_that_is_on_its_way_out_is_waited_for_and_one_that_is_taken_for_dead_is_not() {
        for (state, first) in [
            (DaemonState::Shutdown, "wait until it has stopped; if its server is off for good"),
            (DaemonState::Dead, "if you have seen that its server is without power"),
        ] {
            let refused = check(&cluster(gone(state))).expect_err("it may be there");
            assert_eq!(refused.hint(), format!("{first}, `pvc node confirm-off hv3` says so"));
        }
    }

    #[test]
    fn a_node_whose_vms_are_being_recovered_is_not_removed() {
        let with = |daemon_state| {
            let domain_state = DomainState::FenceFlush;
            cluster(NodeRecord { domain_state, ..gone(daemon_state) })
        };
        let refused = check(&with(DaemonState::Fenced));
        assert_eq!(refused, Err(NotRemoved::BeingRecovered { node: "hv3".into() }));
        assert!(check(&with(DaemonState::Stop)).is_ok(), "nobody recovers what has only stopped");
    }

    #[test]
    fn a_node_that_a_fencer_has_switched_on_or_is_about_to_is_waited_for() {
        let with = |power, stamp: Option<i32>, ago: u64| {
            let proven_at = Some((NOW - ago) as i64);
            let fence = FenceNote { power, proven_at, stamp, ..FenceNote::default() };
            cluster(NodeRecord { fence: Some(fence), ..gone(DaemonState::Fenced) })
        };
        let due = NotRemoved::PowerDue { node: "hv3".into() };
        assert_eq!(check(&with(PowerAfter::Due, Some(7), 60)), Err(due));
        let boots = NotRemoved::Boots { node: "hv3".into() };
        assert_eq!(check(&with(PowerAfter::SwitchedOn, Some(7), 60)), Err(boots.clone()));
        assert!(boots.hint().contains("10 minutes"), "{}", boots.hint());
        assert!(check(&with(PowerAfter::SwitchedOn, Some(7), 600)).is_ok(), "it does not boot");
        assert!(check(&with(PowerAfter::Due, Some(7), 600)).is_ok(), "its BMC does not answer");
        assert!(check(&with(PowerAfter::SwitchedOn, Some(6), 60)).is_ok(), "an earlier fence");
        assert!(check(&with(PowerAfter::Untouched, Some(7), 1)).is_ok());
    }

    #[test]
    fn nodes_of_pvc_1_0_3_that_are_there_are_named() {
        for mut seen in both() {
            let stopped = NodeRecord { daemon_state: DaemonState::Stop, ..records::node("hv5") };
            for legacy in [records::node("hv4"), stopped] {
                seen.nodes.insert(legacy.name.clone(), Arc::new(legacy));
            }
            let legacy = vec!["hv4".into()];
            assert_eq!(check(&seen), Ok(References { legacy, ..References::default() }));
        }
    }

    #[test]
    fn a_node_that_shows_a_sign_of_life_is_not_removed() {
        for seen in both() {
            let lives = |sign| Err(NotRemoved::Lives { node: "hv3".into(), sign });
            let node = seen.nodes["hv3"].clone();
            let earlier = NodeRecord { keepalives: 6, ..NodeRecord::clone(&node) };
            assert_eq!(check_since(&earlier, &seen), lives(Sign::Stamp));
            let other = NodeRecord { daemon_state: DaemonState::Init, ..NodeRecord::clone(&node) };
            assert_eq!(check_since(&other, &seen), lives(Sign::State));
            let (hv1, nobody) = (NodeName::new("hv1"), BTreeSet::new());
            let removal = Removal {
                cluster: &seen,
                node: &node,
                before: &node,
                asked: &hv1,
                coordinators: &nobody,
                is_announced: true,
                now: NOW,
            };
            assert_eq!(removal.check(), lives(Sign::Daemon));
            let own = Removal { asked: &node.name, is_announced: false, ..removal };
            assert_eq!(own.check(), lives(Sign::Answers));
            let mut seen = seen.clone();
            seen.workers.insert("hv3".into(), Arc::new(WorkerRecord::default()));
            assert_eq!(check(&seen), lives(Sign::Worker));
        }
    }

    #[test]
    fn a_primary_and_a_configured_coordinator_are_not_removed() {
        for seen in both() {
            let mut primary = seen.clone();
            primary.config.primary = Some("hv3".into());
            assert!(why(&primary).contains("primary role"));
            primary.config.primary = Some("hv2".into());
            assert!(check(&primary).is_ok());
            let (hv1, node) = (NodeName::new("hv1"), &seen.nodes["hv3"]);
            let coordinators = BTreeSet::from(["hv1", "hv2", "hv3"].map(NodeName::new));
            let removal = Removal {
                cluster: &seen,
                node,
                before: node,
                asked: &hv1,
                coordinators: &coordinators,
                is_announced: false,
                now: NOW,
            };
            let expected = NotRemoved::Coordinator { node: "hv3".into(), asked: hv1.clone() };
            assert_eq!(removal.check(), Err(expected));
        }
    }

    #[test]
    fn a_node_that_vms_are_assigned_to_is_not_removed_whatever_their_state() {
        for state in VmState::ALL {
            for seen in both() {
                let seen = with_vm(seen, records::vm(1, state.clone(), Some("hv3")));
                assert_eq!(why(&seen), "VMs are assigned to node `hv3`: `vm1`", "{state}");
            }
        }
        for seen in both() {
            let seen = with_vm(seen, records::vm(1, VmState::Start, Some("hv1")));
            assert!(check(&seen).is_ok());
        }
    }

    #[test]
    fn advice_about_an_assigned_vm_is_that_for_its_state_and_the_nodes() {
        let hint = |state, vms: [VmState; 2]| {
            let mut seen = cluster(gone(state));
            for (number, state) in (1..).zip(vms) {
                seen = with_vm(seen, records::vm(number, state, Some("hv3")));
            }
            check(&seen).expect_err("VMs are assigned").hint()
        };
        for state in [DaemonState::Stop, DaemonState::Fenced] {
            let off = hint(state, [VmState::Stop, VmState::Disable]);
            assert!(off.starts_with("`pvc vm move vm1 --target NODE`"), "{off}");
        }
        let stopped = hint(DaemonState::Stop, [VmState::Stop, VmState::Start]);
        assert!(stopped.contains("`pvc node flush hv3 --wait`"), "{stopped}");
        let fenced = hint(DaemonState::Fenced, [VmState::Stop, VmState::Start]);
        assert!(fenced.contains("`pvc vm flush-locks vm2`, `pvc vm start vm2`"), "{fenced}");
    }

    #[test]
    fn guests_that_a_stopped_daemon_has_left_are_in_the_way_and_those_of_a_dead_node_are_not() {
        let (vm, stray) = (records::vm(1, VmState::Stop, Some("hv1")), Uuid::from_u128(9));
        let lists: [fn(Vec<Uuid>, NodeRecord) -> NodeRecord; 2] = [
            |vms, node| NodeRecord { running: vms, ..node },
            |vms, node| NodeRecord { working_on: vms, ..node },
        ];
        for listed in lists {
            for (uuid, name) in [(vm.uuid, vm.name.clone()), (stray, stray.to_string())] {
                let with = |state| with_vm(cluster(listed(vec![uuid], gone(state))), vm.clone());
                let expected = format!("VMs may run on node `hv3`: `{name}`");
                assert_eq!(why(&with(DaemonState::Stop)), expected);
                assert!(check(&with(DaemonState::Fenced)).is_ok());
            }
        }
    }

    #[test]
    fn a_vm_forgets_a_home_that_is_gone_but_not_while_it_is_moved() {
        for seen in both() {
            for state in VmState::ALL {
                let away = records::vm(1, state.clone(), Some("hv1"));
                let away = VmRecord { last_node: Some("hv3".into()), ..away };
                let seen = with_vm(seen.clone(), away.clone());
                match is_moving(state) {
                    true => assert!(why(&seen).ends_with("are being moved: `vm1`"), "{state}"),
                    false => {
                        let homes = vec![(away.uuid, "vm1".to_owned())];
                        let expected = References { homes, ..References::default() };
                        assert_eq!(check(&seen), Ok(expected), "{state}");
                    }
                }
            }
        }
    }

    #[test]
    fn limits_stay_and_are_named() {
        for seen in both() {
            let limited = |number, nodes: &[&str]| {
                let node_limit = nodes.iter().map(NodeName::new).collect();
                VmRecord { node_limit, ..records::vm(number, VmState::Stop, Some("hv1")) }
            };
            let seen = with_vm(seen, limited(1, &["hv3"]));
            let seen = with_vm(seen, limited(2, &["hv1", "hv3"]));
            let seen = with_vm(seen, limited(3, &["hv1"]));
            let limited = vec!["vm1".to_owned(), "vm2".to_owned()];
            assert_eq!(check(&seen), Ok(References { limited, ..References::default() }));
        }
    }

    #[test]
    fn a_node_of_which_osds_are_recorded_is_not_removed() {
        for mut seen in both() {
            let osd = |id: &str, node: &str| {
                let (id, node) = (id.to_owned(), node.to_owned());
                Arc::new(OsdRecord { id, node, ..OsdRecord::default() })
            };
            seen.osds = [("1".to_owned(), osd("1", "hv1"))].into();
            assert!(check(&seen).is_ok());
            seen.osds.insert("4".to_owned(), osd("4", "hv3"));
            assert_eq!(why(&seen), "OSDs are recorded of node `hv3`: `4`");
        }
    }

    #[test]
    fn a_volume_that_a_script_may_have_there_is_in_the_way_until_the_node_is_proven_dead() {
        let volume = VolumeId::parse("vms/a").expect("a volume's name");
        let held_on = |state, node: &str| {
            let mut seen = cluster(gone(state));
            let jobs = BTreeMap::from([(JobId::from_bits(1), NodeName::new(node))]);
            let (purpose, by) = (Purpose::Mapped(jobs), String::new());
            let hold = VolumeHold { volume: volume.clone(), purpose, by };
            seen.holds.insert(volume.clone(), Arc::new(hold));
            seen
        };
        let expected = "volume `vms/a` may still be mapped on node `hv3`";
        assert_eq!(why(&held_on(DaemonState::Stop, "hv3")), expected);
        assert!(check(&held_on(DaemonState::Stop, "hv1")).is_ok());
        assert!(check(&held_on(DaemonState::Fenced, "hv3")).is_ok());
        let mut other = held_on(DaemonState::Stop, "hv3");
        let hold =
            VolumeHold { volume: volume.clone(), purpose: Purpose::Other, by: String::new() };
        other.holds.insert(volume.clone(), Arc::new(hold));
        assert!(check(&other).is_ok());
    }

    fn job(node: &str, work: JobWork, state: JobState) -> Job {
        let spec = JobSpec {
            id: JobId::from_bits(7),
            work,
            node: node.into(),
            run_on: node.to_owned(),
            submitter: String::new(),
            submitted_at: 0,
        };
        let progress = JobProgress { state, ..JobProgress::pending() };
        Job { spec, progress, cancel_requested: false, claim: None }
    }

    #[test]
    fn a_task_that_nobody_else_does_is_cancelled_first_and_then_ends_with_its_node() {
        let vm = || JobVm { name: "web1".to_owned(), uuid: None };
        let flush = || JobWork::FlushLocks { vm: vm() };
        let with = |mut seen: Cluster, job: Job| {
            seen.jobs.insert(job.spec.id.clone(), Arc::new(job));
            seen
        };
        for seen in both() {
            for state in [JobState::Pending, JobState::Running] {
                let own = job("hv3", flush(), state);
                let expected = "task `00000007` is one of node `hv3`, and has not ended";
                assert_eq!(why(&with(seen.clone(), own.clone())), expected);
                let claimed =
                    Job { cancel_requested: true, claim: Some(ClaimId(1)), ..own.clone() };
                assert_eq!(why(&with(seen.clone(), claimed)), expected, "somebody has it");
                let cancelled = Job { cancel_requested: true, ..own };
                let jobs = vec![JobId::from_bits(7)];
                let expected = References { jobs, ..References::default() };
                assert_eq!(check(&with(seen.clone(), cancelled)), Ok(expected));
            }
            let none = Ok(References::default());
            for state in [JobState::Succeeded, JobState::Failed, JobState::Cancelled] {
                let over = job("hv3", flush(), state);
                assert_eq!(check(&with(seen.clone(), over)), none, "it is over");
            }
            let others = job("hv1", flush(), JobState::Running);
            assert_eq!(check(&with(seen.clone(), others)), none);
            let rename = JobWork::RenameVm { vm: vm(), to: "shop".to_owned() };
            let anywhere = job("hv3", rename, JobState::Running);
            assert_eq!(check(&with(seen.clone(), anywhere)), none, "others go on with it");
        }
    }

    /// An OSD that is in Ceph and in no record would be in no list.
    #[test]
    fn a_task_that_may_have_made_an_osd_is_taken_back_by_its_worker_or_says_what_is_left() {
        let device = DeviceSpec::parse("/dev/sdb").expect("a device's name");
        let new = AddOsds { device, weight: 1.0, db: None, count: 1 };
        let own = job("hv3", JobWork::AddOsds(new), JobState::Running);
        let mut begun = Job { cancel_requested: true, ..own };
        let (planned, facts) = (vec!["\"make\"".to_owned()], Vec::new());
        let steps = Steps { planned, facts, course: Course::Forward { done: 0 } };
        let pending = begun.clone();
        begun.progress.steps = Some(steps);
        let with = |state, job: &Job| {
            let mut seen = cluster(gone(state));
            seen.jobs.insert(job.spec.id.clone(), Arc::new(job.clone()));
            seen
        };
        let expected = "task `00000007` may have made OSDs on node `hv3` that are not recorded";
        assert_eq!(why(&with(DaemonState::Stop, &begun)), expected);
        assert!(check(&with(DaemonState::Stop, &pending)).is_ok(), "nothing is begun");
        assert!(check(&with(DaemonState::Fenced, &begun)).is_ok());
        let hint = |job| failure_of_removed(&"hv3".into(), job).hint;
        assert!(hint(&begun).is_some_and(|hint| hint.contains("`ceph osd purge ID")));
        assert_eq!(hint(&pending), None);
    }

    #[test]
    fn the_failure_of_a_task_of_a_removed_node_says_whether_it_had_begun() {
        let flush = JobWork::FlushLocks { vm: JobVm { name: "web1".to_owned(), uuid: None } };
        let why = |job: &Job| failure_of_removed(&"hv3".into(), job).why;
        let mut own = job("hv3", flush, JobState::Pending);
        assert_eq!(why(&own), "its node `hv3` was removed before it began");
        own.progress.state = JobState::Running;
        let stays = "its node `hv3` was removed; what it has done stays as it is";
        assert_eq!(why(&own), stays);
        own.cancel_requested = true;
        assert_eq!(why(&own), format!("it was cancelled, and {stays}"));
    }

    #[test]
    fn a_change_of_a_guests_devices_goes_with_the_guest() {
        for mut seen in both() {
            let daemon = Some(DaemonNote::default());
            let hv1 = NodeRecord { daemon, ..records::node("hv1") };
            seen.nodes.insert("hv1".into(), Arc::new(hv1));
            let vm = records::vm(1, VmState::Start, Some("hv1"));
            let attach = JobWork::AttachDevice { vm: JobVm::new(&vm), xml: String::new() };
            let job = job("hv3", attach, JobState::Running);
            seen.jobs.insert(job.spec.id.clone(), Arc::new(job));
            assert!(check(&with_vm(seen, vm)).is_ok());
        }
    }

    #[test]
    fn faults_about_the_node_go_with_it_and_no_others() {
        for mut seen in both() {
            let longer = ours("rack-1_hv3");
            seen.nodes.insert(longer.name.clone(), Arc::new(longer));
            for id in [
                "DEAD_NODE_HV3",
                "NODE_FENCED_HV3",
                "NETWORK_RULES_1001_HV3",
                "NODE_FENCED_HV1",
                "NODE_FENCED_HV33",
                "NODE_FENCED_RACK-1_HV3",
                "POOL_FULL_HV3",
                "VM_BLOCKED_HV3",
                "CEPH_FULL",
            ] {
                let fault = FaultRecord {
                    id: id.to_owned(),
                    first_reported: String::new(),
                    last_reported: String::new(),
                    acknowledged_at: String::new(),
                    acknowledged: false,
                    delta: 10,
                    message: String::new(),
                };
                seen.faults.insert(id.to_owned(), Arc::new(fault));
            }
            let mut faults = vec!["DEAD_NODE_HV3".to_owned(), "NETWORK_RULES_1001_HV3".to_owned()];
            let mut kept = Some("NODE_FENCED_HV3".to_owned());
            if !seen.nodes["hv3"].is_fenced() {
                faults.extend(kept.take());
            }
            assert_eq!(check(&seen), Ok(References { faults, kept, ..References::default() }));
        }
    }

    #[test]
    fn a_refusal_names_some_and_counts_the_rest() {
        let mut seen = cluster(gone(DaemonState::Stop));
        for number in 1..=7 {
            seen = with_vm(seen, records::vm(number, VmState::Stop, Some("hv3")));
        }
        let expected =
            "VMs are assigned to node `hv3`: `vm1`, `vm2`, `vm3`, `vm4`, `vm5` and 2 more";
        assert_eq!(why(&seen), expected);
    }
}
