//! Asking for long work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_model::job::course::{Course, Failure};
use pvc_model::job::osd::given_up;
use pvc_model::job::{Job, JobId, JobSpec, JobState, JobWork, Steps, has_worker_for};
use pvc_model::node::DaemonState;
use pvc_model::role::Role;
use pvc_ports::{Clock, Random};
use pvc_store::{Change, ChangeError, Changes, Expect, Store};

use crate::refusal::{Kind, Refusal};
use crate::wait::wait_for;

/// Time that a worker that cannot go on, or a store that cannot be reached, is waited for.
const TROUBLE_TIME_LIMIT: Duration = Duration::from_secs(30);

/// Interval at which it is looked whether that is so.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Work to be done by the worker of a node.
#[derive(Debug, Clone, PartialEq)]
pub struct JobRequest {
    pub work: JobWork,
    pub node: NodeName,
    /// Place in the listings: `primary`, or the node's name.
    pub run_on: String,
    /// Author of the request: the description of the API token, or the program.
    pub submitter: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobRefusal {
    #[error("there is no task `{job}`")]
    NoJob { job: String },
    #[error("task `{job}` is over")]
    Over { job: JobId },
    #[error("task `{job}` changes the storage, and cannot be cancelled")]
    NotCancelled { job: JobId },
}

impl Refusal for JobRefusal {
    fn kind(&self) -> Kind {
        match self {
            JobRefusal::NoJob { .. } => Kind::NotFound,
            JobRefusal::Over { .. } | JobRefusal::NotCancelled { .. } => Kind::Conflict,
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            JobRefusal::NotCancelled { job } => format!("`pvc task show {job}` says how far it is"),
            _ => "`pvc task list --all` shows the tasks of the last day".to_owned(),
        })
    }
}

/// Records the job that `decide` asks for on the present view of the cluster, together with the
/// changes beside it. Whatever is to be refused is refused there, before there is a job; if the
/// record of its node is removed meanwhile, that is decided again. A worker takes it up when it
/// sees it.
pub async fn submit<E>(
    store: &Store,
    clock: &dyn Clock,
    random: &dyn Random,
    decide: impl Fn(&Cluster) -> Result<(JobRequest, Changes), E> + Send + Sync,
) -> Result<JobSpec, ChangeError<E>> {
    store
        .change(|cluster| {
            let (request, mut changes) = decide(cluster)?;
            let JobRequest { work, node, run_on, submitter } = request;
            let submitted_at = clock.wall().as_secs();
            let id = unused(cluster, random);
            // Nobody else might ever take it. A node without a record is one whose worker is there.
            if cluster.nodes.contains_key(&node) {
                changes.expect(Expect::NodeExists(node.clone()));
            }
            let spec = JobSpec { id, work, node, run_on, submitter, submitted_at };
            changes.push(Change::SubmitJob(spec.clone()));
            Ok((changes, spec))
        })
        .await
}

/// A node whose worker does work that needs nothing of a node of its own: the primary if it can, or
/// else any that runs.
pub(crate) fn substitute(cluster: &Cluster, work: &JobWork) -> Option<NodeName> {
    let can = |node: &&NodeName| {
        let record = cluster.nodes.get(*node);
        let runs = record.is_some_and(|record| record.daemon_state == DaemonState::Run);
        runs && has_worker_for(cluster, node, work.name())
    };
    cluster.config.primary.as_ref().filter(can).or_else(|| cluster.nodes.keys().find(can)).cloned()
}

pub(crate) fn unused(cluster: &Cluster, random: &dyn Random) -> JobId {
    loop {
        let bits = u32::try_from(random.next_u64() >> 32).expect("a shifted number has 32 bits");
        let id = JobId::from_bits(bits);
        if !cluster.jobs.contains_key(&id) {
            return id;
        }
    }
}

/// Job that has not done what it was submitted for, or not yet. `what` is its work, such as "the
/// renaming of VM `web1`".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfinished {
    /// The worker gave this reason.
    #[error("{}", .0.why)]
    Failed(Failure),
    #[error("{what} was cancelled")]
    Cancelled { what: String },
    #[error("{what} cannot go on: {why}")]
    Stuck { what: String, job: JobId, why: String },
    #[error("{what} goes on, as task `{job}`")]
    GoesOn { what: String, job: JobId },
}

impl Refusal for Unfinished {
    fn kind(&self) -> Kind {
        match self {
            Unfinished::Failed(failure) => failure.kind,
            Unfinished::Cancelled { .. } => Kind::Conflict,
            Unfinished::Stuck { .. } | Unfinished::GoesOn { .. } => Kind::Unavailable,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Unfinished::Failed(failure) => failure.hint.clone(),
            Unfinished::Cancelled { .. } => None,
            Unfinished::Stuck { job, .. } => Some(format!(
                "its worker keeps trying, and leaves nothing half done; task `{job}` says how it \
                 ends"
            )),
            Unfinished::GoesOn { job, .. } => {
                Some(format!("`pvc task list` shows task `{job}` until it has ended"))
            }
        }
    }
}

/// Waits until the job is done; no longer than `time_limit`, and not for what keeps its worker from
/// going on. `what` is its work, for people.
///
/// # Cancellation
/// May be dropped: the job is done all the same.
pub(crate) async fn wait_for_end(
    store: &Store,
    clock: &dyn Clock,
    spec: &JobSpec,
    what: &str,
    time_limit: Duration,
) -> Result<(), Unfinished> {
    let (what, job) = (|| what.to_owned(), || spec.id.clone());
    // Its submitter may not see it yet: one that is not there is forgotten only if it was there.
    let is_seen = AtomicBool::new(false);
    let over = |cluster: &Cluster| match cluster.jobs.get(&spec.id) {
        Some(job) => {
            is_seen.store(true, Ordering::Relaxed);
            job.progress.state.is_over().then(|| Some(job.clone()))
        }
        None => is_seen.load(Ordering::Relaxed).then_some(None),
    };
    let end = clock.monotonic() + time_limit;
    let mut stuck_since = None;
    loop {
        if let Some(job) = wait_for(store, clock, LOOK_EVERY, over).await {
            return outcome(job.as_deref(), what());
        }
        // Nothing more will be seen here, and no look waits for anything.
        if store.changed().has_changed().is_err() {
            return Err(Unfinished::GoesOn { what: what(), job: job() });
        }
        let now = clock.monotonic();
        let why = trouble(store, &spec.id);
        stuck_since = why.as_ref().and(stuck_since.or(Some(now)));
        if let (Some(why), Some(since)) = (why, stuck_since)
            && now.saturating_sub(since) >= TROUBLE_TIME_LIMIT
        {
            return Err(Unfinished::Stuck { what: what(), job: job(), why });
        }
        if now >= end {
            return Err(Unfinished::GoesOn { what: what(), job: job() });
        }
    }
}

/// Outcome of a job that is over; one that is forgotten was cancelled.
fn outcome(job: Option<&Job>, what: String) -> Result<(), Unfinished> {
    let Some(job) = job else { return Err(Unfinished::Cancelled { what }) };
    match (job.progress.state, &job.progress.failure) {
        (JobState::Succeeded, _) => Ok(()),
        (_, Some(failure)) => Err(Unfinished::Failed(failure.clone())),
        _ => Err(Unfinished::Cancelled { what }),
    }
}

/// Reason that keeps the job from going on, as far as is known here.
fn trouble(store: &Store, job: &JobId) -> Option<String> {
    if store.outage().is_some() {
        return Some("the cluster's store cannot be reached".to_owned());
    }
    let view = store.view();
    let progress = &view.jobs.get(job)?.progress;
    let trouble = progress.trouble.as_ref()?.why.clone();
    Some(match &progress.steps {
        Some(Steps { course: Course::Back { cause, .. }, .. }) => {
            format!("{cause}, and taking it back fails: {trouble}")
        }
        _ => trouble,
    })
}

/// Asks a job to stop. One that nobody does yet ends at once; one at work when its worker has come
/// to a place where it can, and has taken back what there is to take back. Asking twice is fine.
///
/// One about an OSD whose node is fenced ends as failed, where it stands, if an administrator asks,
/// who alone may make, replace and remove OSDs: its worker may never be there again.
pub async fn cancel(
    store: &Store,
    clock: &dyn Clock,
    job: &str,
    by: Role,
) -> Result<JobId, ChangeError<JobRefusal>> {
    store
        .change(|cluster| {
            let no_job = || JobRefusal::NoJob { job: pvc_model::shown(job) };
            let id = JobId::parse(job).ok_or_else(no_job)?;
            let found = cluster.jobs.get(&id).ok_or_else(no_job)?;
            let mut changes = Changes::new();
            match found.progress.state {
                JobState::Cancelled => return Ok((changes, id)),
                state if state.is_over() => return Err(JobRefusal::Over { job: id }),
                _ if !found.spec.work.can_be_cancelled() => {
                    return Err(JobRefusal::NotCancelled { job: id });
                }
                // Whoever claims it meanwhile writes the same key first, and finds it ended.
                JobState::Pending if found.claim.is_none() => {
                    let (status, now) = ("cancelled before it began", clock.wall().as_secs());
                    let ended = found.progress.clone().ended(JobState::Cancelled, status, now);
                    changes.push(Change::JobProgress(id.clone(), ended));
                }
                JobState::Running if by >= Role::Administrator => {
                    if let Some(failure) = given_up(cluster, found) {
                        let now = clock.wall().as_secs();
                        let ended = found.progress.clone().failed(failure, now);
                        changes.push(Change::JobProgress(id.clone(), ended));
                        // A node that is back goes on with it, and finds the request.
                        changes.expect(Expect::NodeDaemon(found.spec.node.clone()));
                    }
                }
                _ => {}
            }
            if !found.cancel_requested {
                changes.push(Change::CancelJob(id.clone()));
            }
            Ok((changes, id))
        })
        .await
}
