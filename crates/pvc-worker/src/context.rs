//! Context of a job: what it works with, and how its progress is recorded.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_model::job::course::Failure;
use pvc_model::job::{ClaimId, Job, JobId, JobProgress, may_take};
use pvc_ops::{Kind as RefusalKind, Refusal};
use pvc_ports::{Clock, Hypervisor, Random, Storage};
use pvc_store::{Change, ChangeError, Changes, Expect, Store, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::jobs::{BenchmarkTools, ScriptTools};
use crate::left_over::LeftOver;

/// Time between two records of what a step says of itself. What the job's course depends on is
/// recorded at once.
pub(crate) const RECORD_EVERY: Duration = Duration::from_secs(1);

/// The latest lines of a job's log that are kept, and how long each may be, in characters.
const LOG_LINES: usize = 200;
const LINE_CHARACTERS: usize = 500;

/// The world of one worker.
#[derive(Clone)]
pub(crate) struct Tools {
    pub node: NodeName,
    pub store: Store,
    pub hypervisor: Arc<dyn Hypervisor>,
    pub storage: Arc<dyn Storage>,
    pub clock: Arc<dyn Clock>,
    pub random: Arc<dyn Random>,
    /// `None` if this worker measures nothing.
    pub benchmarks: Option<Arc<BenchmarkTools>>,
    /// `None` if this worker has nothing to do with scripts of the provisioner.
    pub scripts: Option<Arc<ScriptTools>>,
    /// Held from the look at a disk to the end of what is done to it: jobs that erase disks are at
    /// work at once, and each is to see what the other has made.
    pub disks: Arc<tokio::sync::Mutex<()>>,
    pub left_over: Arc<LeftOver>,
}

/// Reason for which something was not written for a job.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unwritten<E: Refusal> {
    #[error(transparent)]
    Refused(#[from] E),
    #[error("another worker has the job")]
    Lost,
    #[error(transparent)]
    Store(StoreError),
    #[error("the records were changed by somebody else {tries} times in a row")]
    Conflict { tries: u32 },
}

impl<E: Refusal> From<ChangeError<E>> for Unwritten<E> {
    fn from(error: ChangeError<E>) -> Self {
        match error {
            ChangeError::Refused(why) => Unwritten::Refused(why),
            ChangeError::Store(error) => Unwritten::Store(error),
            ChangeError::Conflict { tries } => Unwritten::Conflict { tries },
        }
    }
}

impl<E: Refusal> Refusal for Unwritten<E> {
    fn kind(&self) -> RefusalKind {
        match self {
            Unwritten::Refused(why) => why.kind(),
            _ => RefusalKind::Unavailable,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Unwritten::Refused(why) => why.hint(),
            _ => None,
        }
    }
}

/// Things that one job works with while this worker holds it.
pub(crate) struct Context {
    pub tools: Tools,
    pub job: JobId,
    claim: ClaimId,
    progress: Mutex<JobProgress>,
    edits: watch::Sender<u64>,
    /// Cancelled when somebody asks the job to stop: a long step looks at it.
    pub cancelled: CancellationToken,
    /// Cancelled when this worker stops: what a step has that is of this process ends with it.
    pub leaving: CancellationToken,
}

impl Context {
    /// Makes the context of `job` as it was when it was claimed.
    pub fn new(tools: Tools, job: &Job, claim: ClaimId, leaving: CancellationToken) -> Self {
        Context {
            tools,
            job: job.spec.id.clone(),
            claim,
            progress: Mutex::new(job.progress.clone()),
            edits: watch::Sender::new(0),
            cancelled: CancellationToken::new(),
            leaving,
        }
    }

    /// Adds a line to the job's log.
    pub fn log(&self, line: impl Into<String>) {
        self.edit(|progress| push_line(progress, line.into()));
    }

    /// Says what is being done now.
    pub fn say(&self, status: &str) {
        self.edit(|progress| {
            if progress.status != status {
                push_line(progress, status.to_owned());
                status.clone_into(&mut progress.status);
            }
        });
    }

    /// Says what is being done now, in which of the stages that its kind counts.
    pub fn stage(&self, current: u32, status: &str) {
        self.edit(|progress| progress.current = current);
        self.say(status);
    }

    /// Progress of the job, to be recorded.
    pub fn progress(&self) -> JobProgress {
        self.progress.lock().expect("nothing panics while it holds the progress").clone()
    }

    pub fn edit(&self, edit: impl FnOnce(&mut JobProgress)) {
        edit(&mut self.progress.lock().expect("nothing panics while it holds the progress"));
        self.edits.send_modify(|version| *version += 1);
    }

    /// Whether this worker holds the job, as far as is known here.
    pub fn is_held(&self) -> bool {
        self.tools.store.view().jobs.get(&self.job).is_some_and(|job| self.holds(job))
    }

    fn holds(&self, job: &Job) -> bool {
        job.claim == Some(self.claim)
    }

    /// Whether the job is this node's still: what is done to a guest goes with the guest. Any other
    /// stays with who has it.
    pub fn is_ours(&self) -> bool {
        let view = self.tools.store.view();
        view.jobs.get(&self.job).is_some_and(|job| {
            !job.spec.work.goes_with_guest() || may_take(&view, job, &self.tools.node)
        })
    }

    pub fn is_cancel_requested(&self) -> bool {
        let asked = |job: &Arc<Job>| job.cancel_requested;
        self.cancelled.is_cancelled()
            || self.tools.store.view().jobs.get(&self.job).is_some_and(asked)
    }

    /// Whether the job waits for something outside before it can go on.
    pub fn is_waiting(&self) -> bool {
        self.progress.lock().expect("nothing panics while it holds the progress").trouble.is_some()
    }

    /// Says that the step waits for something outside, which is no failure of it. Meanwhile other
    /// jobs have its room.
    pub fn say_waiting(&self, why: &str) {
        let (kind, hint) = (RefusalKind::Unavailable, None);
        let trouble = Some(Failure { kind, why: why.to_owned(), hint });
        // What is said already need not be recorded again.
        if self.progress().trouble != trouble {
            self.edit(|progress| {
                why.clone_into(&mut progress.status);
                progress.trouble = trouble;
            });
        }
    }

    /// Returns when this worker does not hold the job any more.
    pub async fn lost(&self) {
        let mut changed = self.tools.store.changed();
        loop {
            changed.borrow_and_update();
            if !self.is_held() || changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Records the progress, as soon as the store can be told; `false` if another worker has the
    /// job.
    pub async fn record_surely(&self) -> bool {
        loop {
            match self.record().await {
                Ok(held) => return held,
                Err(error) => {
                    let job = &self.job;
                    tracing::debug!(%job, %error, "the progress of a job could not be recorded; \
                                                   it will be tried again");
                }
            }
            self.tools.clock.sleep(RECORD_EVERY).await;
        }
    }

    /// Records the progress if this worker still holds the job, and nobody has ended it before its
    /// first record; `false` if not.
    pub async fn record(&self) -> Result<bool, ChangeError<Infallible>> {
        let decide = |cluster: &Cluster| {
            let mut changes = Changes::new();
            let progress = self.progress();
            let held = cluster.jobs.get(&self.job).is_some_and(|job| {
                // Somebody may have ended it between the claim and the first record.
                let was_ended = job.progress.state.is_over() && job.progress != progress;
                self.holds(job) && !was_ended
            });
            if held {
                changes.push(Change::JobProgress(self.job.clone(), progress));
                changes.expect(Expect::JobClaim(self.job.clone()));
            }
            Ok((changes, held))
        };
        self.tools.store.change(decide).await
    }

    /// Writes what `decide` says, as [`Store::change`] does, if and as long as this worker holds
    /// the job: one that has lost it meanwhile, and does not know, writes nothing.
    pub async fn change<T, E: Refusal>(
        &self,
        mut decide: impl FnMut(&Cluster) -> Result<(Changes, T), E> + Send,
    ) -> Result<T, Unwritten<E>> {
        let held =
            |cluster: &Cluster| cluster.jobs.get(&self.job).is_some_and(|job| self.holds(job));
        let written = self.tools.store.change(|cluster| {
            if !held(cluster) {
                return Err(Unwritten::Lost);
            }
            let (mut changes, outcome) = decide(cluster).map_err(Unwritten::Refused)?;
            changes.expect(Expect::JobProgress(self.job.clone()));
            Ok((changes, outcome))
        });
        written.await.map_err(|error| match error {
            ChangeError::Refused(why) => why,
            ChangeError::Store(error) => Unwritten::Store(error),
            ChangeError::Conflict { tries } => Unwritten::Conflict { tries },
        })
    }

    /// Records now and then what a step says of itself, for as long as it is asked to.
    pub async fn keep_recording(&self) {
        let mut edits = self.edits.subscribe();
        edits.mark_unchanged();
        loop {
            self.tools.clock.sleep(RECORD_EVERY).await;
            if edits.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            if let Err(error) = self.record().await {
                let job = &self.job;
                tracing::debug!(%job, %error, "the progress of a job could not be recorded; it \
                                               will be tried again");
                edits.mark_changed();
            }
        }
    }
}

pub(crate) fn push_line(progress: &mut JobProgress, line: String) {
    let line = match line.char_indices().nth(LINE_CHARACTERS) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    };
    progress.log.push(line);
    let surplus = progress.log.len().saturating_sub(LOG_LINES);
    progress.log.drain(..surplus);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_keeps_its_latest_lines_and_of_each_its_begin() {
        let mut progress = JobProgress::pending();
        for number in 0..LOG_LINES + 5 {
            push_line(&mut progress, number.to_string());
        }
        assert_eq!(progress.log.len(), LOG_LINES);
        assert_eq!(progress.log.first().map(String::as_str), Some("5"));
        assert_eq!(progress.log.last(), Some(&(LOG_LINES + 4).to_string()));

        let whole = "ü".repeat(LINE_CHARACTERS);
        push_line(&mut progress, whole.clone());
        assert_eq!(progress.log.last(), Some(&whole));
        push_line(&mut progress, format!("{whole}ü"));
        assert_eq!(progress.log.last(), Some(&format!("{whole}…")));
    }
}
