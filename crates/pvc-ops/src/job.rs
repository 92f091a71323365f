//! Asking for long work.

use pvc_model::NodeName;
use pvc_model::job::{JobId, JobSpec, JobWork};
use pvc_ports::{Clock, Random};
use pvc_store::{Change, ChangeError, Changes, Store};

use crate::refusal::{Kind, Refusal};

/// Work to be done by the worker of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRequest {
    pub work: JobWork,
    pub node: NodeName,
    /// What listings show as the place: `primary`, or the node's name.
    pub run_on: String,
    /// Who asks: the description of the API token, or the program.
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
        Some("`pvc task list` shows the tasks of the last day".to_owned())
    }
}

/// Records the job. The worker of its node takes it up when it sees it.
pub async fn submit(
    store: &Store,
    clock: &dyn Clock,
    random: &dyn Random,
    request: JobRequest,
) -> Result<JobSpec, ChangeError<std::convert::Infallible>> {
    store
        .change(|cluster| {
            let id = loop {
                let bits =
                    u32::try_from(random.next_u64() >> 32).expect("a shifted number has 32 bits");
                let id = JobId::from_bits(bits);
                if !cluster.jobs.contains_key(&id) {
                    break id;
                }
            };
            let JobRequest { work, node, run_on, submitter } = request.clone();
            let submitted_at = clock.wall().as_secs();
            let spec = JobSpec { id, work, node, run_on, submitter, submitted_at };
            let mut changes = Changes::new();
            changes.push(Change::SubmitJob(spec.clone()));
            Ok((changes, spec))
        })
        .await
}

/// Asks a job to stop. It ends when its worker has come to a place where it can. Asking twice is
/// fine.
pub async fn cancel(store: &Store, job: &str) -> Result<JobId, ChangeError<JobRefusal>> {
    store
        .change(|cluster| {
            let no_job = || JobRefusal::NoJob { job: crate::refusal::shown(job) };
            let id = JobId::parse(job).ok_or_else(no_job)?;
            let found = cluster.jobs.get(&id).ok_or_else(no_job)?;
            if found.progress.state.is_over() {
                return Err(JobRefusal::Over { job: id });
            }
            let mut changes = Changes::new();
            if !found.cancel_requested {
                changes.push(Change::CancelJob(id.clone()));
            }
            Ok((changes, id))
        })
        .await
}

/// A submission has no refusals of its own: the caller's outcome type takes its place.
pub(crate) fn submitted<T, R>(
    outcome: Result<T, ChangeError<std::convert::Infallible>>,
) -> Result<T, ChangeError<R>> {
    outcome.map_err(|error| match error {
        ChangeError::Refused(never) => match never {},
        ChangeError::Conflict { tries } => ChangeError::Conflict { tries },
        ChangeError::Store(error) => ChangeError::Store(error),
    })
}
