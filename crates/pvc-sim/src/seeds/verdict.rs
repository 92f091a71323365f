//! The end of a run: whether what operators were told is so, and what happened in numbers.

use std::collections::BTreeMap;

use crate::benchmarks::Benchmarks;
use crate::cluster::Cluster;
use crate::promises::Goal;
use crate::storage::Ceph;
use crate::storage_changes::StorageEnds;
use crate::truth::Violation;

impl Cluster {
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
            state.job_ends(&view).wrong()
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
        match self.world.with(|state| state.upload_ends().wrong()) {
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
        let wrong = self.world.with(|state| {
            let Ceph { volumes, .. } = &state.ceph;
            let of_changes = StorageEnds { view: &view, ceph: &state.ceph }.wrong();
            let of_benchmarks = || Benchmarks { view: &view, volumes }.wrong();
            of_changes.or_else(of_benchmarks).or_else(|| state.osd_ends(&view).wrong())
        });
        match wrong {
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
        match self.world.with(|state| state.network_ends(&view).wrong_words()) {
            Some(what) => Err(Violation { rule: "networks".to_owned(), what }),
            None => Ok(()),
        }
    }

    pub(super) fn counts(&self) -> BTreeMap<String, u64> {
        self.world.with(|state| {
            let outcomes = [
                ("= fences", state.truth.fenced),
                ("= power cuts", state.truth.cuts_begun),
                ("= migrations", state.hypervisors.migrations.arrived),
                ("= migrations with lost word", state.hypervisors.migrations.lost_words),
                ("= nodes removed", state.truth.removals),
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
