//! How far a job is, recorded at most once a second.

use std::sync::Mutex;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::job::{JobId, JobProgress, JobState};
use pvc_store::{Change, Changes, Store};
use tokio::sync::watch;

/// Between two records of a job's progress. Its end is recorded at once.
pub(crate) const RECORD_EVERY: Duration = Duration::from_secs(1);

/// The latest lines of a job's log that are kept.
const LOG_LINES: usize = 200;

/// What a job says about itself while it works.
pub struct Progress {
    state: Mutex<JobProgress>,
    changed: watch::Sender<u64>,
}

impl Progress {
    pub(crate) fn new(started_at: u64) -> Self {
        let state = JobProgress {
            state: JobState::Running,
            status: "starting".to_owned(),
            started_at: Some(started_at),
            ..JobProgress::pending()
        };
        Progress { state: Mutex::new(state), changed: watch::Sender::new(0) }
    }

    /// Step `current` of `total` begins.
    pub fn step(&self, current: u32, total: u32, status: impl Into<String>) {
        let status = status.into();
        self.edit(|progress| {
            push_line(progress, status.clone());
            (progress.current, progress.total, progress.status) = (current, total.max(1), status);
        });
    }

    /// Something worth knowing that is no step.
    pub fn note(&self, line: impl Into<String>) {
        self.edit(|progress| push_line(progress, line.into()));
    }

    fn edit(&self, edit: impl FnOnce(&mut JobProgress)) {
        edit(&mut self.state.lock().expect("nothing panics while it holds the progress"));
        self.changed.send_modify(|version| *version += 1);
    }

    pub(crate) fn now(&self) -> JobProgress {
        self.state.lock().expect("nothing panics while it holds the progress").clone()
    }

    pub(crate) fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// The progress of a job that ended. A success is complete; what failed stands where it failed.
    pub(crate) fn ended(&self, state: JobState, status: String, ended_at: u64) -> JobProgress {
        let mut progress = self.now();
        push_line(&mut progress, status.clone());
        if state == JobState::Succeeded {
            progress.current = progress.total;
        }
        JobProgress { state, status, ended_at: Some(ended_at), ..progress }
    }
}

fn push_line(progress: &mut JobProgress, line: String) {
    progress.log.push(line);
    let surplus = progress.log.len().saturating_sub(LOG_LINES);
    progress.log.drain(..surplus);
}

/// Records `progress` of job `id`, unless its record is gone. False if that could not be done.
pub(crate) async fn record(store: &Store, id: &JobId, progress: &JobProgress) -> bool {
    let recorded = store
        .change(|cluster: &Cluster| {
            let mut changes = Changes::new();
            if cluster.jobs.contains_key(id) {
                changes.push(Change::JobProgress(id.clone(), progress.clone()));
            }
            Ok::<_, std::convert::Infallible>((changes, ()))
        })
        .await;
    if let Err(error) = &recorded {
        tracing::warn!(job = %id, %error, "the progress of a job could not be recorded; it will be \
                                           tried again");
    }
    recorded.is_ok()
}
