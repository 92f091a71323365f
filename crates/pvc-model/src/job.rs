//! Jobs: long work, recorded in the tree and done by the worker of the named node.

use std::fmt;

use crate::{NodeName, Uuid};

/// Eight lower-case hexadecimal digits: the identifier of a job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobId(String);

impl JobId {
    /// The identifier made of 32 random bits.
    pub fn from_bits(bits: u32) -> Self {
        JobId(format!("{bits:08x}"))
    }

    /// The identifier as somebody gives it; `None` if it cannot be one.
    pub fn parse(text: &str) -> Option<Self> {
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        (text.len() == 8 && text.bytes().all(hex)).then(|| JobId(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Where a job is in its life.
///
/// ```text
///  Pending ──claimed──▶ Running ──▶ Succeeded
///     │                    ├──────▶ Failed
///     └────cancelled───────┴──────▶ Cancelled
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    Pending,
    Running,
    Succeeded,
    Failed,
    Cancelled,
}

impl JobState {
    pub fn is_over(self) -> bool {
        matches!(self, JobState::Succeeded | JobState::Failed | JobState::Cancelled)
    }
}

/// What was asked for; never changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSpec {
    pub id: JobId,
    /// The task name the API reports: `vm.flush_locks`.
    pub name: String,
    /// The node whose worker does it.
    pub node: NodeName,
    /// What the listing shows as `run_on`: `primary`, or the node's name.
    pub run_on: String,
    /// The VM it is about, whatever that is called by the time the job is done. The argument
    /// `domain` is the name it had, for people.
    pub vm: Option<Uuid>,
    /// The arguments by name. Values whose name ends in `_key` are secrets.
    pub args: Vec<(String, String)>,
    /// Who asked: the description of the API token, or the program.
    pub submitter: String,
    /// Seconds since the epoch by the submitter's clock.
    pub submitted_at: u64,
}

/// How far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobProgress {
    pub state: JobState,
    /// Steps done and steps in all; `total` is at least 1.
    pub current: u32,
    pub total: u32,
    /// What is being done, or how it ended.
    pub status: String,
    /// Seconds since the epoch, by the worker's clock.
    pub started_at: Option<u64>,
    pub ended_at: Option<u64>,
    /// The latest lines of its log, oldest first.
    pub log: Vec<String>,
}

impl JobProgress {
    pub fn pending() -> Self {
        JobProgress {
            state: JobState::Pending,
            current: 0,
            total: 1,
            status: "waiting for the worker".to_owned(),
            started_at: None,
            ended_at: None,
            log: Vec::new(),
        }
    }
}

/// A job as recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub spec: JobSpec,
    pub progress: JobProgress,
    /// Whether somebody asked it to stop.
    pub cancel_requested: bool,
    /// Whether a worker holds it now.
    pub owned: bool,
}
