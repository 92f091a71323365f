//! Jobs: long work, recorded in the tree and done by a worker, step by step.
//!
//! A job says what is asked for ([`JobSpec`]), and how far it is ([`JobProgress`]); how it goes
//! through its steps is decided in [`course`].

pub mod course;

use std::fmt;
use std::sync::Arc;

use self::course::{Course, Failure};
use crate::cluster::Cluster;
use crate::vm::VmRecord;
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

/// The VM that a job is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobVm {
    /// The name it had when the job was submitted, for people.
    pub name: String,
    /// Which VM it is, whatever that is called by the time the job is done. `None` in jobs that an
    /// earlier version recorded: those know their VM by name alone.
    pub uuid: Option<Uuid>,
}

impl JobVm {
    pub fn new(record: &VmRecord) -> Self {
        JobVm { name: record.name.clone(), uuid: Some(record.uuid) }
    }

    /// The VM's record, if it is still there.
    pub fn record<'a>(&self, cluster: &'a Cluster) -> Option<&'a Arc<VmRecord>> {
        match self.uuid {
            Some(uuid) => cluster.vms.get(&uuid),
            None => cluster.vm(&self.name),
        }
    }

    /// The key by which two jobs about one VM know each other.
    pub fn key(&self) -> String {
        self.uuid.map_or_else(|| self.name.clone(), |uuid| uuid.to_string())
    }
}

/// The kind of a job, with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobWork {
    /// Breaks the locks that a dead host left on the volumes of a VM that is off.
    FlushLocks { vm: JobVm },
    /// Plugs a device, one element of libvirt's domain XML, into a running guest.
    AttachDevice { vm: JobVm, xml: String },
    /// Unplugs a device from a running guest.
    DetachDevice { vm: JobVm, xml: String },
    /// Recorded by another version of PVC: kept as it is, and failed by the worker of its node.
    Other { name: String, vm: Option<Uuid>, args: Vec<(String, String)>, why: NotUnderstood },
}

/// Why this version cannot do a job that was recorded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotUnderstood {
    #[error("no worker of this version knows jobs of the kind `{name}`")]
    UnknownKind { name: String },
    #[error("the job has no argument `{argument}`")]
    MissingArgument { argument: &'static str },
}

impl JobWork {
    pub const FLUSH_LOCKS: &'static str = "vm.flush_locks";
    pub const ATTACH_DEVICE: &'static str = "vm.device_attach";
    pub const DETACH_DEVICE: &'static str = "vm.device_detach";

    /// The name of the kind, which the API calls the task's name.
    pub fn name(&self) -> &str {
        match self {
            JobWork::FlushLocks { .. } => Self::FLUSH_LOCKS,
            JobWork::AttachDevice { .. } => Self::ATTACH_DEVICE,
            JobWork::DetachDevice { .. } => Self::DETACH_DEVICE,
            JobWork::Other { name, .. } => name,
        }
    }

    /// The VM that it is about, which it must have for itself; `None` if it is about none.
    pub fn vm(&self) -> Option<&JobVm> {
        match self {
            JobWork::FlushLocks { vm }
            | JobWork::AttachDevice { vm, .. }
            | JobWork::DetachDevice { vm, .. } => Some(vm),
            JobWork::Other { .. } => None,
        }
    }
}

/// What was asked for; never changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSpec {
    pub id: JobId,
    pub work: JobWork,
    /// The node whose worker does it.
    pub node: NodeName,
    /// What the listing shows as `run_on`: `primary`, or the node's name.
    pub run_on: String,
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
    /// The node whose worker does it, or did so last. `None` before the first has begun, and of
    /// jobs that an earlier version began.
    pub worker: Option<NodeName>,
    /// `None` until its steps are decided.
    pub steps: Option<Steps>,
    /// What keeps it from going on at the moment; it is tried again.
    pub trouble: Option<Failure>,
    /// Why it has failed, if it has.
    pub failure: Option<Failure>,
}

/// The steps of a job, and how far it is with them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Steps {
    /// What each of them is to do, in the words of the job's kind. Decided once: whoever continues
    /// the job does the same.
    pub planned: Vec<String>,
    /// What those that are done have come to, in the words of the kind.
    pub facts: Vec<String>,
    pub course: Course,
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
            worker: None,
            steps: None,
            trouble: None,
            failure: None,
        }
    }

    /// How the job has ended at `ended_at`, seconds since the epoch.
    pub fn ended(self, state: JobState, status: impl Into<String>, ended_at: u64) -> Self {
        let (status, ended_at) = (status.into(), Some(ended_at));
        JobProgress { state, status, ended_at, trouble: None, ..self }
    }
}

/// One worker's hold on a job: the transaction of the store that made it. Of two claims on a job the
/// later one has the greater number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimId(pub i64);

/// A job as recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub spec: JobSpec,
    pub progress: JobProgress,
    /// Whether somebody asked it to stop.
    pub cancel_requested: bool,
    /// The worker's hold on it, if one has it now.
    pub claim: Option<ClaimId>,
}
