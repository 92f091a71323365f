//! Jobs on the wire, where they are called tasks.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use pvc_api_types as api;
use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_model::job::{Job, JobProgress, JobSpec, JobState};
use pvc_store::job_arguments;
use serde_json::{Map, Value};

/// The reply to a request that became a job.
pub fn reference(spec: &JobSpec) -> api::TaskRef {
    let run_on = match spec.run_on.as_str() {
        "primary" => format!("{} (primary)", spec.node),
        _ => spec.node.to_string(),
    };
    api::TaskRef { task_id: spec.id.to_string(), task_name: spec.work.name().to_owned(), run_on }
}

/// Progress of a job. Clients stop waiting at any state but `PENDING` and `RUNNING`.
pub fn status(job: &Job) -> api::TaskStatus {
    let progress = &job.progress;
    let (current, total) = (i64::from(progress.current), i64::from(progress.total.max(1)));
    let (state, current, total, status) = match progress.state {
        JobState::Pending => ("PENDING", 0, 1, progress.status.clone()),
        JobState::Running => ("RUNNING", current, total, progress.status.clone()),
        JobState::Succeeded => ("SUCCESS", total, total, progress.status.clone()),
        JobState::Failed => ("FAILURE", 1, 1, failure(&progress.status)),
        JobState::Cancelled => ("FAILURE", 1, 1, failure("cancelled")),
    };
    api::TaskStatus { state: state.into(), current, total, status, hint: hint(progress) }
}

fn hint(progress: &JobProgress) -> Option<String> {
    progress.failure.as_ref().and_then(|failure| failure.hint.clone())
}

/// Record of a job. Nobody waits by it, so that it says what is so where [`status`] says
/// what clients of PVC 1.0.3 understand.
pub fn log(job: &Job) -> api::TaskLog {
    let (spec, progress) = (&job.spec, &job.progress);
    api::TaskLog {
        id: spec.id.to_string(),
        name: spec.work.name().to_owned(),
        kwargs: arguments(spec),
        submitter: spec.submitter.clone(),
        node: spec.node.to_string(),
        worker: progress.worker.as_ref().map(ToString::to_string),
        submitted_at: spec.submitted_at,
        started_at: progress.started_at,
        ended_at: progress.ended_at,
        state: state(progress.state).to_owned(),
        status: progress.status.clone(),
        hint: hint(progress),
        transferred: transferred(progress),
        log: progress.log.clone(),
    }
}

fn transferred(progress: &JobProgress) -> Option<api::TaskTransfer> {
    progress.transferred.map(|gone| api::TaskTransfer {
        bytes: gone.bytes,
        of: gone.of,
        bytes_per_second: gone.bytes_per_second,
        seconds_left: gone.seconds_left(),
    })
}

fn state(state: JobState) -> &'static str {
    match state {
        JobState::Pending => "PENDING",
        JobState::Running => "RUNNING",
        JobState::Succeeded => "SUCCESS",
        JobState::Failed => "FAILURE",
        JobState::Cancelled => "CANCELLED",
    }
}

fn failure(why: &str) -> String {
    format!("TaskFailure: {why}")
}

/// All jobs that have not ended, by daemon: those at work, and those that wait for it. The worker
/// of every node has its entry, so that a client sees who could work.
pub fn queues(cluster: &Cluster) -> api::TaskQueues {
    let worker = |node: &NodeName| format!("pvcworkerd@{node}");
    let workers = || cluster.nodes.keys().map(|node| (worker(node), Vec::new()));
    let mut queues = api::TaskQueues {
        scheduled: workers().collect(),
        active: workers().collect::<BTreeMap<_, Vec<_>>>(),
        reserved: workers().collect::<BTreeMap<_, Vec<_>>>(),
        ended: None,
    };
    for job in cluster.jobs.values().filter(|job| !job.progress.state.is_over()) {
        let queue = match job.progress.state {
            JobState::Running => &mut queues.active,
            _ => &mut queues.reserved,
        };
        queue.entry(at_work(job)).or_default().push(queued(job));
    }
    queues
}

/// The jobs that have ended, the latest first.
pub fn ended(cluster: &Cluster) -> Vec<api::EndedTask> {
    let mut jobs: Vec<&Job> = cluster.jobs.values().map(AsRef::as_ref).collect();
    jobs.retain(|job| job.progress.state.is_over());
    let ended_at = |job: &Job| job.progress.ended_at.unwrap_or(job.spec.submitted_at);
    jobs.sort_by_key(|job| Reverse((ended_at(job), job.spec.submitted_at)));
    jobs.into_iter().map(ended_task).collect()
}

fn ended_task(job: &Job) -> api::EndedTask {
    let (spec, progress) = (&job.spec, &job.progress);
    api::EndedTask {
        id: spec.id.to_string(),
        name: spec.work.name().to_owned(),
        kwargs: arguments(spec),
        worker: at_work(job),
        submitted_at: spec.submitted_at,
        started_at: progress.started_at,
        ended_at: progress.ended_at,
        state: state(progress.state).to_owned(),
        status: progress.status.clone(),
        submitter: spec.submitter.clone(),
        transferred: transferred(progress),
    }
}

/// The daemon that has the job, or is to have it.
fn at_work(job: &Job) -> String {
    let daemon = if job.spec.work.is_of_api() { "pvcapid" } else { "pvcworkerd" };
    let node = job.progress.worker.as_ref().unwrap_or(&job.spec.node);
    format!("{daemon}@{node}")
}

fn queued(job: &Job) -> api::QueuedTask {
    let spec = &job.spec;
    api::QueuedTask {
        id: spec.id.to_string(),
        name: spec.work.name().to_owned(),
        args: Vec::new(),
        kwargs: arguments(spec),
        r#type: spec.work.name().to_owned(),
        hostname: at_work(job),
        time_start: job.progress.started_at.map(|seconds| seconds as f64),
        acknowledged: job.claim.is_some(),
        delivery_info: api::DeliveryInfo {
            exchange: String::new(),
            routing_key: spec.node.to_string(),
            priority: 0,
            redelivered: None,
        },
        worker_pid: None,
        status: job.progress.status.clone(),
        submitter: spec.submitter.clone(),
        transferred: transferred(&job.progress),
    }
}

fn arguments(spec: &JobSpec) -> Value {
    let mut kwargs: Map<String, Value> = job_arguments(&spec.work).iter().map(argument).collect();
    kwargs.insert("run_on".into(), spec.run_on.clone().into());
    Value::Object(kwargs)
}

/// An argument as it may be shown: another cluster's key is nobody's business.
fn argument((name, value): &(String, String)) -> (String, Value) {
    let shown = if name.ends_with("_key") { "***" } else { value };
    (name.clone(), shown.into())
}
