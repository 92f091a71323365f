//! Progress: what is not as it should be once everything is well, or a machine is lost for good.

use std::time::Duration;

use pvc_model::hold::check_none_held;
use pvc_model::node::{CoordinatorState, DaemonState, DomainState, NodeRecord};
use pvc_model::vm::{VmRecord, VmState};

use crate::benchmarks::left_behind;
use crate::cluster::{Cluster, vm_uuid};
use crate::jobs::unfinished;
use crate::new_vms::left_in_the_making;
use crate::truth::Violation;

/// Time in which, after everything is well again, all that should run has to run.
const PROGRESS: Duration = Duration::from_secs(15 * 60);

/// Time for which it has to stay so.
const STAYS: Duration = Duration::from_secs(60);

/// Time between two looks at what only an operator can set right.
const REPAIR_EVERY: Duration = Duration::from_secs(20);

/// Waits until nothing is `unsettled`, with somebody who looks after it, and then whether it stays
/// so.
///
/// # Errors
/// If that takes too long, or does not last although nobody was being flushed.
pub(super) async fn settles(
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
        unsettled.extend(left_in_the_making(&view));
        unsettled.extend(self.world.with(|state| state.network_ends(&view).troubles(None)));
        unsettled.extend(self.world.with(|state| state.functions().troubles(&view, None)));
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
            unsettled.extend(self.unsettled_vm(record, &name));
        }
        let new = view.vms.values().filter(|record| self.is_new(record));
        unsettled.extend(new.filter_map(|record| self.unsettled_vm(record, &record.name)));
        unsettled
    }

    /// Difference between what the record says and where the VM called `name` runs.
    pub(crate) fn unsettled_vm(&self, record: &VmRecord, name: &str) -> Option<String> {
        let hosts = self.guest_runs_on(record.uuid);
        let runs_on: Vec<String> = hosts.iter().map(|host| self.shape.host_name(*host)).collect();
        let node = record.node.as_ref().map(ToString::to_string).unwrap_or_default();
        let wanted = match record.state {
            VmState::Start => vec![node],
            VmState::Stop | VmState::Disable if !record.autostart => Vec::new(),
            _ => {
                let (state, why) = (&record.state, &record.failed_reason);
                return Some(format!("{name} is {state} on {node} ({why}); runs on {runs_on:?}"));
            }
        };
        let state = &record.state;
        (runs_on != wanted)
            .then(|| format!("{name} is {state}; runs on {runs_on:?}, not {wanted:?}"))
    }

    /// Whether the VM is none of those that the cluster began with.
    pub(super) fn is_new(&self, record: &VmRecord) -> bool {
        !(0..self.shape.vms.len()).any(|vm| vm_uuid(vm) == record.uuid)
    }

    /// Lists the volumes that are held: whoever held one has let go of it by now, or the primary
    /// has.
    pub(super) fn held(&self) -> Vec<String> {
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
            return self.unrecorded(host);
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

    /// Returns the fault of a host without a record, unless its node was removed and it is gone for
    /// good.
    fn unrecorded(&self, host: usize) -> Vec<String> {
        match self.is_gone(host) {
            true => Vec::new(),
            false => vec![format!("{} has no record", self.shape.host_name(host))],
        }
    }

    /// Lists what nobody has done yet about the death of one host, of all that is done without
    /// being asked for.
    pub(super) fn not_made_up_for(&self, dead: usize) -> Vec<String> {
        let view = self.view();
        let dead_name = self.shape.host_name(dead);
        let hosts = (0..self.shape.hosts.len()).filter(|host| *host != dead);
        let mut left: Vec<String> = hosts.flat_map(|host| self.unwell(host)).collect();
        // Of one that was removed nothing is left that others could make up for.
        let Some(dead_node) = view.nodes.get(dead_name.as_str()) else {
            left.extend(self.unrecorded(dead));
            return left;
        };
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
        left.extend(self.world.with(|state| state.network_ends(&view).troubles(Some(dead))));
        left.extend(self.world.with(|state| state.functions().troubles(&view, Some(dead))));
        if dead_node.domain_state == DomainState::FenceFlush {
            left.push(format!("the VMs of {dead_name} are not recovered"));
        }
        for record in view.vms.values() {
            let runs_on = self.guest_runs_on(record.uuid);
            let is_of_the_dead = record.is_assigned_to(&dead_node.name);
            let comes_from_the_dead = dead_node.running.contains(&record.uuid);
            let host = record.node.as_ref().and_then(|node| self.shape.host_called(node.as_str()));
            let is_settled = match record.state {
                VmState::Start if is_of_the_dead => may_stay,
                // An operator has to end that first.
                VmState::Start if check_none_held(&view, record).is_err() => runs_on.is_empty(),
                VmState::Start => runs_on == host.into_iter().collect::<Vec<_>>(),
                // That it was given up without need is judged when that happens.
                VmState::Stop | VmState::Disable => runs_on.is_empty(),
                VmState::Fail | VmState::Delete => true,
                // Nobody else can send the guest of a node that had said that it stops.
                _ => (is_of_the_dead || comes_from_the_dead) && may_stay,
            };
            if !is_settled {
                let on = record.node.as_ref().map(ToString::to_string).unwrap_or_default();
                let runs_on: Vec<String> =
                    runs_on.into_iter().map(|host| self.shape.host_name(host)).collect();
                left.push(format!(
                    "{} is {} on {on}; runs on {runs_on:?}",
                    record.name, record.state
                ));
            }
        }
        left
    }
}
