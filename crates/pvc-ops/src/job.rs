//! Asking for long work.

use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_model::job::{JobId, JobSpec, JobState, JobWork};
use pvc_ports::{Clock, Random};
use pvc_store::{Change, ChangeError, Changes, Store};

use crate::refusal::{Kind, Refusal};

/// Work to be done by the worker of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
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
}

impl Refusal for JobRefusal {
    fn kind(&self) -> Kind {
        match self {
            JobRefusal::NoJob { .. } => Kind::NotFound,
            JobRefusal::Over { .. } => Kind::Conflict,
        }
    }

    fn hint(&self) -> Option<String> {
        Some("`pvc task list --all` shows the tasks of the last day".to_owned())
    }
}

/// Records the job that `decide` asks for on the present view of the cluster, together with the
/// changes beside it. Whatever is to be refused is refused there, before there is a job. A worker
/// takes it up when it sees it.
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
            let spec = JobSpec { id, work, node, run_on, submitter, submitted_at };
            changes.push(Change::SubmitJob(spec.clone()));
            Ok((changes, spec))
        })
        .await
}

fn unused(cluster: &Cluster, random: &dyn Random) -> JobId {
    loop {
        let bits = u32::try_from(random.next_u64() >> 32).expect("a shifted number has 32 bits");
        let id = JobId::from_bits(bits);
        if !cluster.jobs.contains_key(&id) {
            return id;
        }
    }
}

/// Asks a job to stop. One that nobody does yet ends at once; one at work when its worker has come
/// to a place where it can, and has taken back what there is to take back. Asking twice is fine.
pub async fn cancel(
    store: &Store,
    clock: &dyn Clock,
    job: &str,
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
                // Whoever claims it meanwhile writes the same key first, and finds it ended.
                JobState::Pending if found.claim.is_none() => {
                    let (status, now) = ("cancelled before it began", clock.wall().as_secs());
                    let ended = found.progress.clone().ended(JobState::Cancelled, status, now);
                    changes.push(Change::JobProgress(id.clone(), ended));
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
