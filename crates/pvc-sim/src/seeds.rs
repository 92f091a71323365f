//! A cluster and its history from a seed; and the run of it: first only safety is demanded, then
//! everything is well again and progress is.
//!
//! ```text
//!  shape                                   the cluster
//!  faults, asks, jobs, uploads, storage,   its history: what is drawn of each subject, on moments
//!  networks, new_vms, removals
//!  progress, repair, verdict               what must come of it in the end
//! ```

mod asks;
mod faults;
mod jobs;
mod moments;
mod networks;
mod new_vms;
mod progress;
mod removals;
mod repair;
mod shape;
mod storage;
mod uploads;
mod verdict;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::progress::settles;
use crate::actions::Event;
use crate::chance::Chance;
use crate::cluster::{Cluster, Shape};
use crate::guest_networks::plug_in;
use crate::log::Log;
use crate::nature::{Elections, Mutation, Nature};
use crate::truth::Violation;

/// The others are given so long to have a quorum without the machine that is to die.
const RECOVERS: Duration = Duration::from_secs(5 * 60);

/// Time for which elections are watched once all is well: long enough for a fence of somebody who
/// was accused meanwhile.
const AFTER_ELECTIONS: Duration = Duration::from_secs(75);

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

impl Case {
    /// The cluster and the history that belong to `seed`, with faults and operators for so many
    /// minutes.
    pub fn from_seed(seed: u64, minutes: u64, mutation: Option<Mutation>) -> Case {
        let mut chance = Chance::for_purpose(seed, "shape");
        let mut shape = shape::shape(&mut chance, seed, mutation);
        let mut chance = Chance::for_purpose(seed, "history");
        let mut history = faults::faults(&mut chance, &shape, minutes);
        history.extend(asks::operators(&mut chance, &shape, minutes));
        // Drawn apart: what is drawn above is the same for a seed as before there were jobs.
        let mut chance = Chance::for_purpose(seed, "jobs");
        history.extend(jobs::jobs(&mut chance, &shape, minutes));
        let mut chance = Chance::for_purpose(seed, "uploads");
        if chance.happens(300) {
            // Volumes are recorded, as uploads need them, where Ceph has monitors.
            shape.nature.monitors = true;
            history.extend(uploads::uploads(&mut chance, &shape, minutes));
        }
        let mut chance = Chance::for_purpose(seed, "storage");
        if chance.happens(300) {
            shape.nature.monitors = true;
            history.extend(storage::storage_changes(&mut chance, &shape, minutes));
        }
        let mut chance = Chance::for_purpose(seed, "networks");
        if chance.happens(300) {
            shape.nature.networks = 1 + chance.below(3) as u32;
            plug_in(&mut shape);
            history.extend(networks::networks(&mut chance, &shape, minutes));
        }
        let mut chance = Chance::for_purpose(seed, "benchmarks");
        if chance.happens(120) {
            // The pool is recorded, as a benchmark needs it, where Ceph has monitors.
            shape.nature.monitors = true;
            history.extend(jobs::benchmarks(&mut chance, &shape, minutes));
        }
        let mut chance = Chance::for_purpose(seed, "new VMs");
        if chance.happens(120) {
            shape.nature.monitors = true;
            history.extend(new_vms::new_vms(&mut chance, &shape, minutes));
        }
        let mut chance = Chance::for_purpose(seed, "removals");
        // A task about OSDs that ends with its node may leave one that no record has.
        if !shape.nature.monitors && chance.happens(300) {
            history.extend(removals::removals(&mut chance, &shape, minutes));
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
        let history = faults::zookeeper_faults(&mut chance, &shape, minutes);
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
        let is_to_die = chance.happens(500);
        // One that is gone for good cannot die.
        let dead = dead.filter(|host| is_to_die && !cluster.is_gone(*host));
        let Some(dead) = dead else { return Ok(()) };
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

#[cfg(test)]
mod tests {
    use pvc_model::vm::MigrationMethod;

    use super::*;
    use crate::cluster::vm_uuid;
    use crate::promises::Goal;

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
