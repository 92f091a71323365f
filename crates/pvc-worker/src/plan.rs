//! Choice of the jobs to begin or continue, to fail, to cancel, to forget.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_model::job::{Job, JobId, JobState, JobWork, may_take, unrecorded_node};

/// Number of jobs that one node does at once. Those that wait for something outside do not count.
pub(crate) const AT_ONCE: usize = 3;

/// Number of those that may run scripts of the provisioner, which take hours: the others have room.
const SCRIPTS_AT_ONCE: usize = 2;

/// Time for which the record of an ended job is kept, and number of records.
const KEPT: Duration = Duration::from_secs(24 * 60 * 60);
const ENDED_JOBS: usize = 1000;

/// Number of records of ended transfers. A client that transfers without end pushes out those of
/// others, and no job that tells what has become of the cluster.
const ENDED_TRANSFERS: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Takes it up, or goes on with what a worker before this one has begun.
    Begin(JobId),
    /// A worker of an earlier version has begun it and is gone: nobody knows how far it is.
    Abandoned(JobId),
    /// The API daemon that transferred it is gone, and its client with it.
    BrokenOff(JobId),
    /// The job was cancelled before anybody began it.
    Cancelled(JobId),
    Forget(JobId),
}

/// Work of this process at the moment.
#[derive(Debug, Default)]
pub(crate) struct Doing {
    pub jobs: BTreeSet<JobId>,
    /// Jobs among them that do not wait for something outside.
    pub working: BTreeSet<JobId>,
    /// Subjects that the jobs hold for themselves: two jobs about one VM are done one after the
    /// other.
    pub subjects: BTreeSet<String>,
}

/// The steps for the worker of `node` at `now` (seconds since the epoch), oldest job first.
pub(crate) fn plan(cluster: &Cluster, node: &NodeName, doing: &Doing, now: u64) -> Vec<Step> {
    let jobs = || cluster.jobs.values().map(AsRef::as_ref);
    let is_ours = |job: &&Job| !job.progress.state.is_over() && may_take(cluster, job, node);
    let mut ours: Vec<&Job> = jobs().filter(is_ours).collect();
    ours.sort_by_key(|job| (job.spec.submitted_at, job.spec.id.clone()));
    let is_at_work = |job: &&Job| job.claim.is_some() && !job.progress.state.is_over();
    let elsewhere = jobs().filter(is_at_work).filter_map(|job| job.spec.subject());
    let mut busy: BTreeSet<String> = doing.subjects.iter().cloned().chain(elsewhere).collect();
    let mut room = AT_ONCE.saturating_sub(doing.working.len());
    let is_script = |job: &Job| matches!(job.spec.work, JobWork::Provision(_));
    let scripts =
        doing.working.iter().filter(|id| cluster.jobs.get(*id).is_some_and(|job| is_script(job)));
    let mut scripts_room = SCRIPTS_AT_ONCE.saturating_sub(scripts.count());
    let mut steps = Vec::new();
    for job in ours.into_iter().filter(|job| !doing.jobs.contains(&job.spec.id)) {
        let id = job.spec.id.clone();
        match job.progress.state {
            JobState::Pending if job.cancel_requested => steps.push(Step::Cancelled(id)),
            JobState::Pending | JobState::Running if job.claim.is_some() => {}
            JobState::Running if job.spec.work.is_of_api() => steps.push(Step::BrokenOff(id)),
            JobState::Running if job.progress.worker.is_none() => steps.push(Step::Abandoned(id)),
            JobState::Pending | JobState::Running if room == 0 => {}
            JobState::Pending | JobState::Running if is_script(job) && scripts_room == 0 => {}
            JobState::Pending | JobState::Running => {
                // What is refused for its subject keeps its place before younger ones about the
                // same.
                if job.spec.subject().is_none_or(|subject| busy.insert(subject)) {
                    room -= 1;
                    scripts_room -= usize::from(is_script(job));
                    steps.push(Step::Begin(id));
                }
            }
            JobState::Succeeded | JobState::Failed | JobState::Cancelled => {}
        }
    }
    if is_first(cluster, node) {
        steps.extend(to_forget(cluster, now).map(Step::Forget));
    }
    steps
}

/// Returns the jobs that wait for a worker which is not there, and of whose node no record is in
/// view, each with that node. The worker of `node` ends those whose node has none: nobody would
/// ever do them. Its own it takes, whatever is recorded of its node.
pub(crate) fn jobs_of_unrecorded<'a>(
    cluster: &'a Cluster,
    node: &NodeName,
) -> Vec<(&'a Job, &'a NodeName)> {
    if !is_first(cluster, node) {
        return Vec::new();
    }
    let jobs = cluster.jobs.values().map(|job| &**job);
    let found = jobs.filter_map(|job| Some((job, unrecorded_node(cluster, job)?)));
    found.filter(|(_, of)| *of != node).collect()
}

/// Whether the worker of `node` does what one does for all: those of other nodes would only be in
/// its way.
fn is_first(cluster: &Cluster, node: &NodeName) -> bool {
    cluster.workers.keys().next().is_none_or(|first| first == node)
}

/// Whether there may be a step for the worker of `node`, as far as the jobs alone tell: `cluster`
/// need have nothing else.
pub(crate) fn may_have_work(cluster: &Cluster, node: &NodeName, now: u64) -> bool {
    // Whose they are their VMs tell.
    let goes_with_guest = |job: &Arc<Job>| {
        let is_open = !job.progress.state.is_over() && job.claim.is_none();
        is_open && job.spec.work.goes_with_guest()
    };
    cluster.jobs.values().any(goes_with_guest)
        || !plan(cluster, node, &Doing::default(), now).is_empty()
}

/// The jobs that ended too long ago, and the oldest of those that are too many.
fn to_forget(cluster: &Cluster, now: u64) -> impl Iterator<Item = JobId> {
    let over = cluster.jobs.values().filter(|job| job.progress.state.is_over());
    let (transfers, others): (Vec<&Job>, Vec<&Job>) =
        over.map(AsRef::as_ref).partition(|job| job.spec.work.is_of_api());
    let forgotten = [(others, ENDED_JOBS), (transfers, ENDED_TRANSFERS)];
    forgotten.into_iter().flat_map(move |(over, most)| outdated(over, most, now))
}

/// Jobs among these ended ones that ended too long ago, and the oldest of more than `most`.
fn outdated(over: Vec<&Job>, most: usize, now: u64) -> impl Iterator<Item = JobId> {
    let ended = |job: &Job| job.progress.ended_at.unwrap_or(job.spec.submitted_at);
    let mut over: Vec<(u64, JobId)> =
        over.into_iter().map(|job| (ended(job), job.spec.id.clone())).collect();
    over.sort_unstable();
    let surplus = over.len().saturating_sub(most);
    let is_old = move |ended: u64| now.saturating_sub(ended) > KEPT.as_secs();
    let forgotten = over
        .into_iter()
        .enumerate()
        .filter(move |(at, (ended, _))| *at < surplus || is_old(*ended));
    forgotten.map(|(_, (_, id))| id)
}

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;

    use pvc_model::Uuid;
    use pvc_model::job::provision::Provision;
    use pvc_model::job::{ClaimId, JobProgress, JobSpec, JobVm, JobWork};
    use pvc_model::storage::VolumeId;

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
            claim: None,
        }
    }

    /// A job that runs a script of the provisioner.
    fn script(bits: u32) -> Job {
        let mut job = job(bits, "", JobState::Pending);
        job.spec.work = JobWork::Provision(Box::new(Provision {
            vm: JobVm { name: format!("new{bits}"), uuid: Some(Uuid::from_u128(bits.into())) },
            profile: "small".to_owned(),
            define: true,
            start: true,
            refuse_memory_overcommit: false,
            arguments: Vec::new(),
        }));
        job
    }

    /// Jobs that are done, of which none waits.
    fn busy(jobs: RangeInclusive<u32>) -> Doing {
        let jobs: BTreeSet<JobId> = jobs.map(JobId::from_bits).collect();
        Doing { working: jobs.clone(), jobs, subjects: BTreeSet::new() }
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
    fn scripts_of_the_provisioner_leave_room_for_other_jobs() {
        let begin = |n| Step::Begin(JobId::from_bits(n));
        let mut jobs: Vec<Job> = (1..=4).map(script).collect();
        jobs.push(job(5, "web1", JobState::Pending));
        assert_eq!(steps(jobs.clone(), &Doing::default()), [begin(1), begin(2), begin(5)]);
        assert_eq!(steps(jobs, &busy(1..=2)), [begin(5)]);
    }

    /// Two that waited for a node to be proven dead, on their way back, kept all others from
    /// beginning.
    #[test]
    fn scripts_that_wait_for_something_outside_leave_their_room_to_others() {
        let jobs: Vec<Job> = (1..=4).map(script).collect();
        let begin = |n| Step::Begin(JobId::from_bits(n));
        let waiting = Doing { working: BTreeSet::new(), ..busy(1..=2) };
        assert_eq!(steps(jobs.clone(), &waiting), [begin(3), begin(4)]);
        let half = Doing { working: [JobId::from_bits(2)].into(), ..busy(1..=2) };
        assert_eq!(steps(jobs, &half), [begin(3)]);
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
        let doing = Doing { subjects: ["web1".to_owned()].into(), ..busy(1..=1) };
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
    fn a_running_job_without_a_worker_is_continued_and_one_with_a_worker_is_left_alone() {
        let begun = |bits, vm| {
            let mut job = job(bits, vm, JobState::Running);
            job.progress.worker = Some("hv1".into());
            job
        };
        let held = Job { claim: Some(ClaimId(7)), ..begun(2, "b") };
        let cancelled = Job { cancel_requested: true, ..begun(3, "c") };
        let begin = |bits| Step::Begin(JobId::from_bits(bits));
        assert_eq!(
            steps(vec![begun(1, "a"), held, cancelled], &Doing::default()),
            [begin(1), begin(3)],
            "one that was cancelled has steps to take back"
        );
    }

    #[test]
    fn a_running_job_of_a_worker_of_an_earlier_version_is_abandoned() {
        let old = job(1, "a", JobState::Running);
        let held = Job { claim: Some(ClaimId(7)), ..job(2, "b", JobState::Running) };
        let abandoned = Step::Abandoned(JobId::from_bits(1));
        assert_eq!(steps(vec![old, held], &Doing::default()), [abandoned]);
    }

    #[test]
    fn a_transfer_whose_daemon_is_gone_is_ended_by_its_node_or_by_any_if_that_is_gone_too() {
        let mut transfer = job(1, "", JobState::Running);
        let volume = VolumeId::parse("vms/data").expect("it is one");
        transfer.spec.work = JobWork::Upload { volume };
        transfer.spec.node = "hv2".into();
        transfer.progress.worker = Some("hv2".into());
        let planned = |transfer: &Job, workers: &[&str]| {
            let workers = workers.iter().map(|node| (NodeName::new(*node), Arc::default()));
            let jobs = [(transfer.spec.id.clone(), Arc::new(transfer.clone()))].into();
            let cluster = Cluster { jobs, workers: workers.collect(), ..Cluster::default() };
            plan(&cluster, &"hv1".into(), &Doing::default(), 1000)
        };
        let broken_off = [Step::BrokenOff(JobId::from_bits(1))];
        assert_eq!(planned(&transfer, &["hv1", "hv2"]), [], "its own worker does it");
        assert_eq!(planned(&transfer, &["hv1"]), broken_off);
        transfer.cancel_requested = true;
        assert_eq!(planned(&transfer, &["hv1"]), broken_off);
        transfer.claim = Some(ClaimId(7));
        assert_eq!(planned(&transfer, &["hv1"]), [], "it goes on");
    }

    #[test]
    fn jobs_that_wait_for_something_outside_leave_their_room_to_others() {
        let pending = || vec![job(4, "d", JobState::Pending)];
        assert_eq!(steps(pending(), &busy(1..=3)), []);
        let one_waits = Doing { working: busy(1..=2).working, ..busy(1..=3) };
        assert_eq!(steps(pending(), &one_waits), [Step::Begin(JobId::from_bits(4))]);
    }

    #[test]
    fn a_job_of_another_node_is_left_alone() {
        let mut other = job(1, "a", JobState::Pending);
        other.spec.node = "hv2".into();
        assert_eq!(steps(vec![other], &Doing::default()), []);
    }

    #[test]
    fn a_job_whose_node_has_no_record_in_view_is_looked_at_by_the_first_worker() {
        let mut of_hv3 = job(1, "a", JobState::Pending);
        of_hv3.spec.node = "hv3".into();
        let id = of_hv3.spec.id.clone();
        let found = |node: &str, workers: &[&str]| -> Vec<(JobId, String)> {
            let workers = workers.iter().map(|node| (NodeName::new(*node), Arc::default()));
            let jobs = [(id.clone(), Arc::new(of_hv3.clone()))].into();
            let cluster = Cluster { jobs, workers: workers.collect(), ..Cluster::default() };
            let found = jobs_of_unrecorded(&cluster, &node.into()).into_iter();
            found.map(|(job, of)| (job.spec.id.clone(), of.to_string())).collect()
        };
        assert_eq!(found("hv1", &["hv1", "hv2"]), [(id.clone(), "hv3".to_owned())]);
        assert!(found("hv2", &["hv1", "hv2"]).is_empty(), "hv1 does it");
        assert!(found("hv1", &["hv1", "hv3"]).is_empty(), "its worker is there");
        assert!(found("hv3", &[]).is_empty(), "hv3 takes it, and is not announced yet");
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
    fn the_oldest_of_too_many_ended_jobs_are_forgotten_by_the_first_worker() {
        let ended = |bits: u32| {
            let mut job = job(bits, "a", JobState::Succeeded);
            job.progress.ended_at = Some(u64::from(bits));
            (job.spec.id.clone(), Arc::new(job))
        };
        let jobs = (1..=ENDED_JOBS as u32 + 2).map(ended).collect();
        let mut cluster = Cluster { jobs, ..Cluster::default() };
        let forget =
            |cluster: &Cluster, node: &str| plan(cluster, &node.into(), &Doing::default(), 1000);
        let oldest = [1, 2].map(|bits| Step::Forget(JobId::from_bits(bits)));
        assert_eq!(forget(&cluster, "hv1"), oldest);
        cluster.workers =
            ["hv1", "hv2"].map(|node| (NodeName::new(node), Arc::default())).into_iter().collect();
        assert_eq!((forget(&cluster, "hv1"), forget(&cluster, "hv2")), (oldest.to_vec(), vec![]));
    }

    #[test]
    fn ended_transfers_push_out_each_other_and_no_other_job() {
        let ended = |bits: u32, is_transfer: bool| {
            let mut job = job(bits, "a", JobState::Succeeded);
            if is_transfer {
                let volume = VolumeId::parse("vms/data").expect("it is one");
                job.spec.work = JobWork::Download { volume, snapshot: None };
            }
            job.progress.ended_at = Some(u64::from(bits));
            (job.spec.id.clone(), Arc::new(job))
        };
        // The others are older than every transfer.
        let others = ENDED_JOBS as u32;
        let last = others + ENDED_TRANSFERS as u32 + 2;
        let jobs = (1..=last).map(|bits| ended(bits, bits > others)).collect();
        let cluster = Cluster { jobs, ..Cluster::default() };
        let oldest = [1, 2].map(|more| Step::Forget(JobId::from_bits(others + more)));
        assert_eq!(plan(&cluster, &"hv1".into(), &Doing::default(), 1000), oldest);
    }

    #[test]
    fn a_vm_that_another_node_has_a_job_about_is_left_to_it() {
        let mut elsewhere = Job { claim: Some(ClaimId(7)), ..job(1, "web1", JobState::Running) };
        elsewhere.spec.node = "hv2".into();
        let jobs = |elsewhere: &Job| vec![elsewhere.clone(), job(2, "web1", JobState::Pending)];
        assert_eq!(steps(jobs(&elsewhere), &Doing::default()), []);
        elsewhere.claim = None;
        let begin = [Step::Begin(JobId::from_bits(2))];
        assert_eq!(steps(jobs(&elsewhere), &Doing::default()), begin, "its worker is gone");
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
