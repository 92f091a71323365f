//! Which jobs to begin, to fail, to cancel, to forget.

use std::collections::BTreeSet;
use std::time::Duration;

use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_model::job::{Job, JobId, JobState, JobVm};

/// How many jobs one node does at once.
pub(crate) const AT_ONCE: usize = 3;

/// How long the record of an ended job is kept.
const KEPT: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Begin(JobId),
    /// It was begun, and its worker is gone.
    Abandoned(JobId),
    /// It was cancelled before anybody began it.
    Cancelled(JobId),
    Forget(JobId),
}

/// What this process does at the moment.
#[derive(Debug, Default)]
pub(crate) struct Doing {
    pub jobs: BTreeSet<JobId>,
    /// What they hold for themselves: two jobs about one VM are done one after the other.
    pub subjects: BTreeSet<String>,
}

/// What a job is about and must have for itself, if anything.
pub(crate) fn subject(job: &Job) -> Option<String> {
    job.spec.work.vm().map(JobVm::key)
}

/// The steps for the worker of `node` at `now` (seconds since the epoch), oldest job first.
pub(crate) fn plan(cluster: &Cluster, node: &NodeName, doing: &Doing, now: u64) -> Vec<Step> {
    let mut ours: Vec<&Job> =
        cluster.jobs.values().map(AsRef::as_ref).filter(|job| job.spec.node == *node).collect();
    ours.sort_by_key(|job| (job.spec.submitted_at, job.spec.id.clone()));
    let mut busy = doing.subjects.clone();
    let mut room = AT_ONCE.saturating_sub(doing.jobs.len());
    let mut steps = Vec::new();
    for job in ours.into_iter().filter(|job| !doing.jobs.contains(&job.spec.id)) {
        let id = job.spec.id.clone();
        match job.progress.state {
            JobState::Pending if job.cancel_requested => steps.push(Step::Cancelled(id)),
            JobState::Pending if job.owned || room == 0 => {}
            JobState::Pending => {
                // What is refused for its subject keeps its place before younger ones about the
                // same.
                if subject(job).is_none_or(|subject| busy.insert(subject)) {
                    room -= 1;
                    steps.push(Step::Begin(id));
                }
            }
            JobState::Running if !job.owned => steps.push(Step::Abandoned(id)),
            JobState::Running => {}
            JobState::Succeeded | JobState::Failed | JobState::Cancelled => {
                let ended = job.progress.ended_at.unwrap_or(job.spec.submitted_at);
                if now.saturating_sub(ended) > KEPT.as_secs() {
                    steps.push(Step::Forget(id));
                }
            }
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pvc_model::job::{JobProgress, JobSpec, JobWork};

    use super::*;

    fn job(bits: u32, vm: &str, state: JobState) -> Job {
        let spec = JobSpec {
            id: JobId::from_bits(bits),
            work: JobWork::FlushLocks { vm: JobVm { name: vm.into(), uuid: None } },
            node: "hv1".into(),
            run_on: "hv1".into(),
            submitter: String::new(),
            submitted_at: u64::from(bits),
        };
        Job {
            spec,
            progress: JobProgress { state, ..JobProgress::pending() },
            cancel_requested: false,
            owned: false,
        }
    }

    fn steps(jobs: Vec<Job>, doing: &Doing) -> Vec<Step> {
        let jobs = jobs.into_iter().map(|job| (job.spec.id.clone(), Arc::new(job))).collect();
        plan(&Cluster { jobs, ..Cluster::default() }, &"hv1".into(), doing, 1000)
    }

    #[test]
    fn the_oldest_jobs_begin_first_as_many_as_there_is_room_for() {
        let jobs = (1..=5).map(|n| job(n, &format!("vm{n}"), JobState::Pending)).collect();
        let begin = |n| Step::Begin(JobId::from_bits(n));
        assert_eq!(steps(jobs, &Doing::default()), [begin(1), begin(2), begin(3)]);
    }

    #[test]
    fn two_jobs_about_one_vm_are_done_one_after_the_other() {
        let jobs = vec![
            job(1, "web1", JobState::Pending),
            job(2, "web1", JobState::Pending),
            job(3, "db1", JobState::Pending),
        ];
        assert_eq!(
            steps(jobs, &Doing::default()),
            [Step::Begin(JobId::from_bits(1)), Step::Begin(JobId::from_bits(3))]
        );
        let doing =
            Doing { jobs: [JobId::from_bits(1)].into(), subjects: ["web1".to_owned()].into() };
        assert_eq!(steps(vec![job(2, "web1", JobState::Pending)], &doing), []);
    }

    #[test]
    fn a_vm_that_was_renamed_between_two_jobs_is_one_vm() {
        let about = |bits, vm| {
            let mut job = job(bits, vm, JobState::Pending);
            let uuid = Some(pvc_model::Uuid::from_u128(7));
            job.spec.work = JobWork::FlushLocks { vm: JobVm { name: vm.into(), uuid } };
            job
        };
        let jobs = vec![about(1, "web1"), about(2, "shop")];
        assert_eq!(steps(jobs, &Doing::default()), [Step::Begin(JobId::from_bits(1))]);
    }

    #[test]
    fn a_running_job_without_a_worker_is_abandoned_and_one_with_a_worker_is_not() {
        let held = Job { owned: true, ..job(2, "b", JobState::Running) };
        assert_eq!(
            steps(vec![job(1, "a", JobState::Running), held], &Doing::default()),
            [Step::Abandoned(JobId::from_bits(1))]
        );
    }

    #[test]
    fn a_job_of_another_node_is_left_alone() {
        let mut other = job(1, "a", JobState::Pending);
        other.spec.node = "hv2".into();
        assert_eq!(steps(vec![other], &Doing::default()), []);
    }

    #[test]
    fn ended_jobs_are_forgotten_after_a_day() {
        let mut old = job(1, "a", JobState::Failed);
        old.progress.ended_at = Some(1);
        let cluster =
            Cluster { jobs: [(old.spec.id.clone(), Arc::new(old))].into(), ..Cluster::default() };
        let at = |now| plan(&cluster, &"hv1".into(), &Doing::default(), now);
        assert_eq!(at(86_401), []);
        assert_eq!(at(86_402), [Step::Forget(JobId::from_bits(1))]);
    }

    #[test]
    fn a_job_that_was_cancelled_in_the_queue_is_never_begun() {
        let cancelled = Job { cancel_requested: true, ..job(1, "a", JobState::Pending) };
        assert_eq!(
            steps(vec![cancelled], &Doing::default()),
            [Step::Cancelled(JobId::from_bits(1))]
        );
    }
}
