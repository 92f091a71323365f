//! Jobs in the tree: JSON, ours alone. Fields that a later version added are passed over.

use pvc_model::job::{JobId, JobProgress, JobSpec, JobState};
use pvc_model::{NodeName, Uuid};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Spec {
    name: String,
    node: String,
    run_on: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vm: Option<String>,
    #[serde(default)]
    args: Vec<(String, String)>,
    #[serde(default)]
    submitter: String,
    #[serde(default)]
    submitted_at: u64,
}

#[derive(Serialize, Deserialize)]
struct Progress {
    state: String,
    current: u32,
    total: u32,
    status: String,
    #[serde(default)]
    started_at: Option<u64>,
    #[serde(default)]
    ended_at: Option<u64>,
    #[serde(default)]
    log: Vec<String>,
}

const STATES: &[(JobState, &str)] = &[
    (JobState::Pending, "pending"),
    (JobState::Running, "running"),
    (JobState::Succeeded, "succeeded"),
    (JobState::Failed, "failed"),
    (JobState::Cancelled, "cancelled"),
];

/// `None` if the record is no job: it is then left alone.
pub(crate) fn spec_from(id: &JobId, text: &str) -> Option<JobSpec> {
    let spec: Spec = serde_json::from_str(text).ok()?;
    Some(JobSpec {
        id: id.clone(),
        name: spec.name,
        node: NodeName::new(spec.node),
        run_on: spec.run_on,
        vm: spec.vm.and_then(|uuid| Uuid::try_parse(&uuid).ok()),
        args: spec.args,
        submitter: spec.submitter,
        submitted_at: spec.submitted_at,
    })
}

pub(crate) fn spec_text(spec: &JobSpec) -> String {
    let spec = Spec {
        name: spec.name.clone(),
        node: spec.node.to_string(),
        run_on: spec.run_on.clone(),
        vm: spec.vm.map(|uuid| uuid.to_string()),
        args: spec.args.clone(),
        submitter: spec.submitter.clone(),
        submitted_at: spec.submitted_at,
    };
    serde_json::to_string(&spec).expect("strings and numbers always have a JSON form")
}

/// A job whose progress cannot be read is shown as failed rather than as running for ever.
pub(crate) fn progress_from(text: &str) -> JobProgress {
    if text.is_empty() {
        return JobProgress::pending();
    }
    let unreadable = || JobProgress {
        state: JobState::Failed,
        current: 1,
        status: "the record of this job's progress cannot be read".to_owned(),
        ..JobProgress::pending()
    };
    let Ok(progress) = serde_json::from_str::<Progress>(text) else { return unreadable() };
    let Some((state, _)) = STATES.iter().find(|(_, word)| *word == progress.state) else {
        return unreadable();
    };
    JobProgress {
        state: *state,
        current: progress.current,
        total: progress.total.max(1),
        status: progress.status,
        started_at: progress.started_at,
        ended_at: progress.ended_at,
        log: progress.log,
    }
}

pub(crate) fn progress_text(progress: &JobProgress) -> String {
    let (_, word) =
        STATES.iter().find(|(state, _)| *state == progress.state).expect("every state has a word");
    let progress = Progress {
        state: (*word).to_owned(),
        current: progress.current,
        total: progress.total,
        status: progress.status.clone(),
        started_at: progress.started_at,
        ended_at: progress.ended_at,
        log: progress.log.clone(),
    };
    serde_json::to_string(&progress).expect("strings and numbers always have a JSON form")
}
