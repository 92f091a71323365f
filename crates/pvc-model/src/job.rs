//! Jobs: long work, recorded in the tree and done by a worker, step by step.
//!
//! A job says what is asked for ([`JobSpec`]), and how far it is ([`JobProgress`]); how it goes
//! through its steps is decided in [`course`].

pub mod course;
pub mod creation;
pub mod making;
pub mod osd;
pub mod provision;
pub mod transfer;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use self::course::{Course, Failure};
use self::creation::VmCreation;
use self::osd::OsdReplacement;
use self::provision::Provision;
use crate::cluster::Cluster;
use crate::osd::{AddOsds, DeviceSpec, OsdId};
use crate::storage::{PoolName, SnapshotName, VolumeId};
use crate::transfer::Transferred;
use crate::vm::{VmRecord, VmState};
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

/// State of a job.
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
    /// UUID of the VM, whatever that is called by the time the job is done. `None` in jobs that an
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
#[derive(Debug, Clone, PartialEq)]
pub enum JobWork {
    /// Breaks the locks that a dead host left on the volumes of a VM that is off.
    FlushLocks { vm: JobVm },
    /// Plugs a device, one element of libvirt's domain XML, into a running guest.
    AttachDevice { vm: JobVm, xml: String },
    /// Unplugs a device from a running guest.
    DetachDevice { vm: JobVm, xml: String },
    /// Makes a VM whose first disk is a clone of an image.
    CreateVm(Box<VmCreation>),
    /// Makes a VM from a profile, by its script.
    Provision(Box<Provision>),
    /// Gives a VM that is off another name, and its volumes with it.
    RenameVm { vm: JobVm, to: String },
    /// Tells a running guest that the volume of one of its disks has another size.
    ResizeDisk { vm: JobVm, volume: VolumeId },
    /// Makes OSDs of a disk.
    AddOsds(AddOsds),
    /// Looks what that would come to, and does nothing.
    PlanOsds(AddOsds),
    /// Moves an OSD, with those that share its disk, to another disk.
    ReplaceOsd(OsdReplacement),
    /// Takes up an OSD, with those that share its disk, from the disk that it is found on.
    RefreshOsd { osd: OsdId, device: DeviceSpec },
    /// Removes an OSD for good: when others hold its data, or by force at once.
    RemoveOsd { osd: OsdId, force: bool },
    /// Makes the volume group for the databases of OSDs of a disk.
    AddDbGroup { device: DeviceSpec },
    /// Measures a pool, under a name by which the result is found.
    BenchmarkStorage { pool: PoolName, name: String },
    /// Takes the contents of a volume from a client of the API.
    Upload { volume: VolumeId },
    /// Gives the contents of a volume, or of one of its snapshots, to a client of the API.
    Download { volume: VolumeId, snapshot: Option<SnapshotName> },
    /// Changes the storage for a client of the API, to its end also when nobody waits any more.
    /// `of` is what is changed, for people.
    ChangeStorage { change: StorageChange, of: String },
    /// Recorded by another version of PVC: kept as it is, and failed by the worker of its node.
    Other { name: String, vm: Option<Uuid>, args: Vec<(String, String)>, why: NotUnderstood },
}

/// Change of the storage that may take as long as there is data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StorageChange {
    CloneVolume,
    FlattenVolume,
    ResizeVolume,
    RemoveVolume,
    RollBackSnapshot,
    RemoveSnapshot,
    PurgeTrash,
    RemovePool,
}

impl StorageChange {
    pub const ALL: [StorageChange; 8] = [
        Self::CloneVolume,
        Self::FlattenVolume,
        Self::ResizeVolume,
        Self::RemoveVolume,
        Self::RollBackSnapshot,
        Self::RemoveSnapshot,
        Self::PurgeTrash,
        Self::RemovePool,
    ];

    /// The name of the kind of its jobs.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::CloneVolume => "storage.clone_volume",
            Self::FlattenVolume => "storage.flatten_volume",
            Self::ResizeVolume => "storage.resize_volume",
            Self::RemoveVolume => "storage.remove_volume",
            Self::RollBackSnapshot => "storage.rollback_snapshot",
            Self::RemoveSnapshot => "storage.remove_snapshot",
            Self::PurgeTrash => "storage.purge_trash",
            Self::RemovePool => "storage.remove_pool",
        }
    }

    /// Whether the storage can stop it and leave nothing half made.
    pub fn can_be_cancelled(self) -> bool {
        matches!(self, Self::CloneVolume | Self::FlattenVolume)
    }

    /// The change whose jobs are of the kind.
    pub fn of_kind(kind: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|change| change.kind() == kind)
    }
}

/// Reason why this version cannot do a job that was recorded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotUnderstood {
    #[error("no worker of this version knows jobs of the kind `{name}`")]
    UnknownKind { name: String },
    #[error("the job has no argument `{argument}`")]
    MissingArgument { argument: &'static str },
    #[error("the job's argument `{argument}` is not understood: {why}")]
    BadArgument { argument: &'static str, why: String },
    #[error("jobs of the kind `{name}` are done by the API daemon that was asked, and no worker")]
    NotForWorkers { name: String },
}

impl JobWork {
    pub const FLUSH_LOCKS: &'static str = "vm.flush_locks";
    pub const ATTACH_DEVICE: &'static str = "vm.device_attach";
    pub const DETACH_DEVICE: &'static str = "vm.device_detach";
    pub const CREATE_VM: &'static str = "vm.create";
    pub const PROVISION: &'static str = "provisioner.create";
    pub const RENAME_VM: &'static str = "vm.rename";
    pub const RESIZE_DISK: &'static str = "vm.resize_disk";
    pub const ADD_OSDS: &'static str = "osd.add";
    pub const PLAN_OSDS: &'static str = "osd.plan";
    pub const REPLACE_OSD: &'static str = "osd.replace";
    pub const REFRESH_OSD: &'static str = "osd.refresh";
    pub const REMOVE_OSD: &'static str = "osd.remove";
    pub const ADD_DB_GROUP: &'static str = "osd.add_db_vg";
    pub const BENCHMARK_STORAGE: &'static str = "storage.benchmark";
    pub const UPLOAD: &'static str = "storage.upload";
    pub const DOWNLOAD: &'static str = "storage.download";

    /// The kinds that this version knows.
    pub const KINDS: [&'static str; 24] = [
        Self::FLUSH_LOCKS,
        Self::ATTACH_DEVICE,
        Self::DETACH_DEVICE,
        Self::CREATE_VM,
        Self::PROVISION,
        Self::RENAME_VM,
        Self::RESIZE_DISK,
        Self::ADD_OSDS,
        Self::PLAN_OSDS,
        Self::REPLACE_OSD,
        Self::REFRESH_OSD,
        Self::REMOVE_OSD,
        Self::ADD_DB_GROUP,
        Self::BENCHMARK_STORAGE,
        Self::UPLOAD,
        Self::DOWNLOAD,
        StorageChange::CloneVolume.kind(),
        StorageChange::FlattenVolume.kind(),
        StorageChange::ResizeVolume.kind(),
        StorageChange::RemoveVolume.kind(),
        StorageChange::RollBackSnapshot.kind(),
        StorageChange::RemoveSnapshot.kind(),
        StorageChange::PurgeTrash.kind(),
        StorageChange::RemovePool.kind(),
    ];

    /// The name of the kind, which the API calls the task's name.
    pub fn name(&self) -> &str {
        match self {
            JobWork::FlushLocks { .. } => Self::FLUSH_LOCKS,
            JobWork::AttachDevice { .. } => Self::ATTACH_DEVICE,
            JobWork::DetachDevice { .. } => Self::DETACH_DEVICE,
            JobWork::CreateVm(_) => Self::CREATE_VM,
            JobWork::Provision(_) => Self::PROVISION,
            JobWork::RenameVm { .. } => Self::RENAME_VM,
            JobWork::ResizeDisk { .. } => Self::RESIZE_DISK,
            JobWork::AddOsds(_) => Self::ADD_OSDS,
            JobWork::PlanOsds(_) => Self::PLAN_OSDS,
            JobWork::ReplaceOsd(_) => Self::REPLACE_OSD,
            JobWork::RefreshOsd { .. } => Self::REFRESH_OSD,
            JobWork::RemoveOsd { .. } => Self::REMOVE_OSD,
            JobWork::AddDbGroup { .. } => Self::ADD_DB_GROUP,
            JobWork::BenchmarkStorage { .. } => Self::BENCHMARK_STORAGE,
            JobWork::Upload { .. } => Self::UPLOAD,
            JobWork::Download { .. } => Self::DOWNLOAD,
            JobWork::ChangeStorage { change, .. } => change.kind(),
            JobWork::Other { name, .. } => name,
        }
    }

    /// The VM that it is about, which it must have for itself; `None` if it is about none.
    pub fn vm(&self) -> Option<&JobVm> {
        match self {
            JobWork::FlushLocks { vm }
            | JobWork::AttachDevice { vm, .. }
            | JobWork::DetachDevice { vm, .. }
            | JobWork::RenameVm { vm, .. }
            | JobWork::ResizeDisk { vm, .. } => Some(vm),
            JobWork::CreateVm(creation) => Some(&creation.vm),
            JobWork::Provision(provision) => Some(&provision.vm),
            JobWork::AddOsds(_)
            | JobWork::PlanOsds(_)
            | JobWork::ReplaceOsd(_)
            | JobWork::RefreshOsd { .. }
            | JobWork::RemoveOsd { .. }
            | JobWork::AddDbGroup { .. }
            | JobWork::BenchmarkStorage { .. }
            | JobWork::Upload { .. }
            | JobWork::Download { .. }
            | JobWork::ChangeStorage { .. }
            | JobWork::Other { .. } => None,
        }
    }

    /// Whether it touches nothing of one host, so that any worker can do it, or end its record.
    pub fn runs_anywhere(&self) -> bool {
        match self {
            JobWork::RenameVm { .. } | JobWork::CreateVm(_) | JobWork::Provision(_) => true,
            _ => self.is_of_api(),
        }
    }

    /// Whether it is done to a guest, on the node that the guest is on then.
    pub fn goes_with_guest(&self) -> bool {
        matches!(self, JobWork::AttachDevice { .. } | JobWork::DetachDevice { .. })
    }

    /// Whether the API daemon that was asked does it: it can be begun by nobody else, and is over
    /// with that daemon.
    pub fn is_of_api(&self) -> bool {
        matches!(
            self,
            JobWork::Upload { .. } | JobWork::Download { .. } | JobWork::ChangeStorage { .. }
        )
    }

    /// Whether it can be cancelled once it has begun. Most changes of the storage cannot: how far
    /// they are the storage alone knows, and what is half done is of no use to anybody.
    pub fn can_be_cancelled(&self) -> bool {
        match self {
            JobWork::ChangeStorage { change, .. } => change.can_be_cancelled(),
            _ => true,
        }
    }
}

/// Request that made the job; never changes.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSpec {
    pub id: JobId,
    pub work: JobWork,
    /// The node whose worker does it; of a transfer, whose API daemon does.
    pub node: NodeName,
    /// Value of `run_on` in the listing: `primary`, or the node's name.
    pub run_on: String,
    /// Author of the request: the description of the API token, or the program.
    pub submitter: String,
    /// Seconds since the epoch by the submitter's clock.
    pub submitted_at: u64,
}

impl JobSpec {
    /// The subject that the job must have for itself, if any: two jobs about one VM, and two that
    /// choose disks of one node, are done one after the other.
    pub fn subject(&self) -> Option<String> {
        match &self.work {
            // Each erases a disk that the other may just have chosen.
            JobWork::AddOsds(_) | JobWork::AddDbGroup { .. } => {
                Some(format!("disks of {}", self.node))
            }
            // Each would measure the other.
            JobWork::BenchmarkStorage { .. } => Some("benchmark of the storage".to_owned()),
            work => match work.osd() {
                Some(osd) => Some(format!("OSD {osd}")),
                None => work.vm().map(JobVm::key),
            },
        }
    }
}

/// Progress of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobProgress {
    pub state: JobState,
    /// Steps done and steps in all; `total` is at least 1.
    pub current: u32,
    pub total: u32,
    /// Text about what is being done, or how it ended.
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
    /// Failure that keeps it from going on at the moment; it is tried again.
    pub trouble: Option<Failure>,
    /// Failure that ended it, if one did.
    pub failure: Option<Failure>,
    /// Amount that has gone, of a transfer.
    pub transferred: Option<Transferred>,
    /// Things that its step makes one by one, each recorded before it is made, in the words of the
    /// job's kind: what there is of them is taken back with the step.
    pub made: Vec<String>,
}

/// The steps of a job, and how far it is with them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Steps {
    /// Plan of each step, in the words of the job's kind. Decided once: whoever continues the job
    /// does the same.
    pub planned: Vec<String>,
    /// Results of the steps that are done, in the words of the kind.
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
            transferred: None,
            made: Vec::new(),
        }
    }

    /// Returns the progress of the job after its end at `ended_at`, seconds since the epoch.
    pub fn ended(self, state: JobState, status: impl Into<String>, ended_at: u64) -> Self {
        let (status, ended_at) = (status.into(), Some(ended_at));
        JobProgress { state, status, ended_at, trouble: None, ..self }
    }

    /// Returns the progress of a job that somebody else than its worker has ended at `ended_at`,
    /// seconds since the epoch: its log says why, too.
    pub fn failed(mut self, failure: Failure, ended_at: u64) -> Self {
        let why = failure.why.clone();
        self.log.push(why.clone());
        JobProgress { failure: Some(failure), ..self }.ended(JobState::Failed, why, ended_at)
    }
}

/// Identity of a worker's claim on a job: the transaction of the store that made it. Of two claims
/// on a job the later one has the greater number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimId(pub i64);

/// A job as recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    pub spec: JobSpec,
    pub progress: JobProgress,
    /// Whether somebody asked it to stop.
    pub cancel_requested: bool,
    /// The worker's hold on it, if one has it now.
    pub claim: Option<ClaimId>,
}

/// A worker that is connected to the store now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkerRecord {
    /// The names of the kinds of jobs that it knows.
    pub kinds: BTreeSet<String>,
}

/// Whether the worker of `node` may take the job: its own, and those that run anywhere while the
/// worker that they were meant for is not there.
pub fn may_take(cluster: &Cluster, job: &Job, node: &NodeName) -> bool {
    let meant_for = meant_for(cluster, job);
    let is_there = || cluster.workers.contains_key(meant_for);
    meant_for == node || (job.spec.work.runs_anywhere() && !is_there())
}

/// Returns the node whose worker alone may take the job, if that worker is not there and the node
/// has no record: nobody will do the job. `None` of one that some worker has or could take, that
/// goes with a guest on a node with a record, or that is over; and of one of another version, as
/// long as there is a worker that knows its kind.
pub fn unrecorded_node<'a>(cluster: &'a Cluster, job: &'a Job) -> Option<&'a NodeName> {
    let work = &job.spec.work;
    let is_open = !job.progress.state.is_over() && job.claim.is_none();
    let node = meant_for(cluster, job);
    let is_awaited = !work.runs_anywhere() && !cluster.workers.contains_key(node);
    let has_record = |node: &NodeName| cluster.nodes.contains_key(node);
    // The worker there takes back what was done, once it is there: it may be in an upgrade.
    let goes_with_guest = recorded_place(cluster, work).is_some_and(has_record);
    let is_left = goes_with_guest || is_known_elsewhere(cluster, work);
    (is_open && is_awaited && !is_left && !has_record(node)).then_some(node)
}

/// Whether the work is of another version, and the worker of some node knows such: to that any
/// worker may be able to do it.
fn is_known_elsewhere(cluster: &Cluster, work: &JobWork) -> bool {
    let knows = |worker: &Arc<WorkerRecord>| worker.kinds.contains(work.name());
    matches!(work, JobWork::Other { .. }) && cluster.workers.values().any(knows)
}

/// Returns the node whose worker is to do the job. A change of a guest's devices goes with the
/// guest; one that is cancelled while that node has no worker is ended by the one that it was
/// submitted for.
fn meant_for<'a>(cluster: &'a Cluster, job: &'a Job) -> &'a NodeName {
    let can_be_awaited =
        |node: &&NodeName| !job.cancel_requested || cluster.workers.contains_key(*node);
    let with_guest = node_of_guest(cluster, &job.spec.work).filter(can_be_awaited);
    with_guest.unwrap_or(&job.spec.node)
}

/// The node of the guest that `work` goes with, if a worker of ours can run there.
fn node_of_guest<'a>(cluster: &'a Cluster, work: &JobWork) -> Option<&'a NodeName> {
    let node = recorded_place(cluster, work)?;
    cluster.nodes.get(node).filter(|record| record.runs_our_daemon())?;
    Some(node)
}

/// Returns the node that the VM is assigned to whose guest `work` goes with, whatever runs there.
fn recorded_place<'a>(cluster: &'a Cluster, work: &JobWork) -> Option<&'a NodeName> {
    let vm = work.vm().filter(|_| work.goes_with_guest())?;
    vm.record(cluster)?.node.as_ref()
}

/// Whether the worker of `node` is there and knows jobs of the kind.
pub fn has_worker_for(cluster: &Cluster, node: &NodeName, kind: &str) -> bool {
    cluster.workers.get(node).is_some_and(|worker| worker.kinds.contains(kind))
}

/// The node whose worker is to do `work`, which runs anywhere: of those whose worker is there and
/// knows the kind the preferred one, or else the primary, or else any. `None` if there is none.
pub fn worker_for(
    cluster: &Cluster,
    work: &JobWork,
    preferred: Option<&NodeName>,
) -> Option<NodeName> {
    let knows = |node: &NodeName| has_worker_for(cluster, node, work.name());
    let first = cluster.workers.keys().find(|node| knows(node));
    let wanted = [preferred, cluster.config.primary.as_ref()].into_iter().flatten();
    wanted.into_iter().find(|node| knows(node)).or(first).cloned()
}

/// New name of VM `vm`, while a job that has not ended renames it.
pub fn being_renamed_to(cluster: &Cluster, vm: Uuid) -> Option<&str> {
    let jobs = cluster.jobs.values().filter(|job| !job.progress.state.is_over());
    jobs.filter_map(|job| match &job.spec.work {
        JobWork::RenameVm { vm: renamed, to } if renamed.uuid == Some(vm) => Some(to.as_str()),
        _ => None,
    })
    .next()
}

/// The jobs that have not ended and make a VM of this name.
pub fn being_made<'a>(cluster: &'a Cluster, name: &'a str) -> impl Iterator<Item = &'a JobId> {
    makers(cluster).filter(move |(vm, _)| vm.name == name).map(|(_, job)| job)
}

/// The job that has not ended and makes this VM, while the VM is in state `provision`.
pub fn maker<'a>(cluster: &'a Cluster, vm: &VmRecord) -> Option<&'a JobId> {
    if vm.state != VmState::Provision {
        return None;
    }
    makers(cluster).find(|(made, _)| made.uuid == Some(vm.uuid)).map(|(_, job)| job)
}

/// The jobs that have not ended and make VMs, each with its VM.
fn makers(cluster: &Cluster) -> impl Iterator<Item = (&JobVm, &JobId)> {
    let jobs = cluster.jobs.values().filter(|job| !job.progress.state.is_over());
    jobs.filter_map(|job| match &job.spec.work {
        work @ (JobWork::CreateVm(_) | JobWork::Provision(_)) => Some((work.vm()?, &job.spec.id)),
        _ => None,
    })
}

/// The VM that a job which has not ended renames to `name`.
pub fn being_renamed_from<'a>(cluster: &'a Cluster, name: &str) -> Option<&'a str> {
    let jobs = cluster.jobs.values().filter(|job| !job.progress.state.is_over());
    jobs.filter_map(|job| match &job.spec.work {
        JobWork::RenameVm { vm, to } if to == name => Some(vm.name.as_str()),
        _ => None,
    })
    .next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{DaemonNote, NodeRecord};
    use crate::records;

    fn rename(bits: u32, vm: u128) -> Job {
        let vm = JobVm { name: "web1".into(), uuid: Some(Uuid::from_u128(vm)) };
        let spec = JobSpec {
            id: JobId::from_bits(bits),
            work: JobWork::RenameVm { vm, to: "shop".into() },
            node: "hv1".into(),
            run_on: "hv1".into(),
            submitter: String::new(),
            submitted_at: 0,
        };
        Job { spec, progress: JobProgress::pending(), cancel_requested: false, claim: None }
    }

    fn with_workers(workers: &[(&str, &[&str])]) -> Cluster {
        let worker = |(node, kinds): &(&str, &[&str])| {
            let kinds = kinds.iter().map(|kind| (*kind).to_owned()).collect();
            (NodeName::new(*node), Arc::new(WorkerRecord { kinds }))
        };
        Cluster { workers: workers.iter().map(worker).collect(), ..Cluster::default() }
    }

    #[test]
    fn a_job_that_runs_anywhere_is_given_to_a_worker_that_is_there_and_knows_its_kind() {
        let work = rename(1, 7).spec.work;
        let node = NodeName::new("hv1");
        let chosen = |cluster: &Cluster| worker_for(cluster, &work, Some(&node));
        let (new, old) = (&["vm.flush_locks", "vm.rename"][..], &["vm.flush_locks"][..]);
        let mut cluster = with_workers(&[("hv1", new), ("hv2", new), ("hv3", new)]);
        assert_eq!(chosen(&cluster), Some("hv1".into()), "the VM's own node first");
        cluster = with_workers(&[("hv1", old), ("hv2", new), ("hv3", new)]);
        assert_eq!(chosen(&cluster), Some("hv2".into()));
        cluster.config.primary = Some("hv3".into());
        assert_eq!(chosen(&cluster), Some("hv3".into()));
        assert_eq!(chosen(&with_workers(&[("hv1", old)])), None);
        assert_eq!(chosen(&with_workers(&[])), None);
    }

    #[test]
    fn another_worker_takes_a_job_that_runs_anywhere_while_its_own_is_not_there() {
        let job = rename(1, 7);
        let mut bound = rename(2, 7);
        bound.spec.work = JobWork::FlushLocks { vm: JobVm { name: "web1".into(), uuid: None } };
        let both = with_workers(&[("hv1", &[]), ("hv2", &[])]);
        let other = with_workers(&[("hv2", &[])]);
        let takes = |cluster: &Cluster, job: &Job, node: &str| may_take(cluster, job, &node.into());
        assert_eq!((takes(&both, &job, "hv1"), takes(&both, &job, "hv2")), (true, false));
        assert_eq!((takes(&other, &job, "hv1"), takes(&other, &job, "hv2")), (true, true));
        assert_eq!((takes(&other, &bound, "hv1"), takes(&other, &bound, "hv2")), (true, false));
    }

    #[test]
    fn a_change_of_a_guests_devices_goes_with_the_guest_to_a_node_of_ours() {
        let mut job = rename(1, 7);
        let vm = JobVm { name: "web1".into(), uuid: Some(Uuid::from_u128(7)) };
        job.spec.work = JobWork::AttachDevice { vm, xml: String::new() };
        let mut cluster = with_workers(&[("hv1", &[]), ("hv2", &[])]);
        let ours = |name: &str| {
            let daemon = Some(DaemonNote::default());
            let node = NodeRecord { daemon, ..records::node(name) };
            (NodeName::new(name), Arc::new(node))
        };
        cluster.nodes = [ours("hv1"), ours("hv2")].into();
        let takes =
            |cluster: &Cluster| ["hv1", "hv2"].map(|it| may_take(cluster, &job, &it.into()));
        assert_eq!(takes(&cluster), [true, false], "its VM is gone");
        let at = |node| Arc::new(records::vm(7, VmState::Start, Some(node)));
        cluster.vms = [(Uuid::from_u128(7), at("hv2"))].into();
        assert_eq!(takes(&cluster), [false, true]);
        cluster.workers.remove(&NodeName::new("hv2"));
        assert_eq!(takes(&cluster), [false, true], "it waits for that one's worker");
        let cancelled = Job { cancel_requested: true, ..job.clone() };
        let ends = ["hv1", "hv2"].map(|it| may_take(&cluster, &cancelled, &it.into()));
        assert_eq!(ends, [true, false], "unless somebody cancels it");
        cluster.nodes.insert("hv2".into(), Arc::new(records::node("hv2")));
        assert_eq!(takes(&cluster), [true, false], "hv2 runs PVC 1.0.3");
    }

    #[test]
    fn nobody_will_do_a_job_that_only_the_worker_of_a_node_without_a_record_may_take() {
        let mut bound = rename(2, 7);
        bound.spec.work = JobWork::FlushLocks { vm: JobVm { name: "web1".into(), uuid: None } };
        let mut other = with_workers(&[("hv2", &[])]);
        let found = |cluster: &Cluster, job: &Job| {
            unrecorded_node(cluster, job).map(|node| node.to_string())
        };
        assert_eq!(found(&other, &bound).as_deref(), Some("hv1"));
        let held = Job { claim: Some(ClaimId(7)), ..bound.clone() };
        assert_eq!(found(&other, &held), None, "somebody does it");
        assert_eq!(found(&other, &rename(1, 7)), None, "any worker takes it");
        let both = with_workers(&[("hv1", &[]), ("hv2", &[])]);
        assert_eq!(found(&both, &bound), None, "its worker is there");
        bound.progress.state = JobState::Running;
        assert_eq!(found(&other, &bound).as_deref(), Some("hv1"), "its worker has left it");
        let over = JobProgress { state: JobState::Failed, ..bound.progress.clone() };
        assert_eq!(found(&other, &Job { progress: over, ..bound.clone() }), None);
        other.nodes.insert("hv1".into(), Arc::new(records::node("hv1")));
        assert_eq!(found(&other, &bound), None, "its worker may come back");
    }

    /// Found in a review: the device stayed in the guest, although its worker was about to take it
    /// out.
    #[test]
    fn a_change_of_a_guests_devices_is_left_to_the_node_that_the_guest_is_on() {
        let mut job = rename(1, 7);
        let vm = JobVm { name: "web1".into(), uuid: Some(Uuid::from_u128(7)) };
        job.spec.work = JobWork::AttachDevice { vm, xml: String::new() };
        job.spec.node = "hv2".into();
        let cancelled = Job { cancel_requested: true, ..job.clone() };
        let mut cluster = with_workers(&[("hv3", &[])]);
        let at_hv1 = Arc::new(records::vm(7, VmState::Start, Some("hv1")));
        cluster.vms = [(Uuid::from_u128(7), at_hv1)].into();
        let ours = NodeRecord { daemon: Some(DaemonNote::default()), ..records::node("hv1") };
        // One of PVC 1.0.3, or one whose daemon was upgraded and has not written its note yet.
        for hv1 in [ours, records::node("hv1")] {
            cluster.nodes = [("hv1".into(), Arc::new(hv1))].into();
            for job in [&job, &cancelled] {
                assert_eq!(unrecorded_node(&cluster, job), None, "{job:?}");
            }
        }
        cluster.nodes.clear();
        for job in [&job, &cancelled] {
            let found = unrecorded_node(&cluster, job).map(NodeName::as_str);
            assert_eq!(found, Some("hv2"), "{job:?}");
        }
    }

    /// Found in a review: in an upgrade an older worker ended what each newer one would have done.
    #[test]
    fn a_job_of_another_version_is_left_alone_while_a_worker_knows_its_kind() {
        let mut job = rename(1, 7);
        let name = "vm.freeze".to_owned();
        let why = NotUnderstood::UnknownKind { name: name.clone() };
        job.spec.work = JobWork::Other { name, vm: None, args: Vec::new(), why };
        let old = &["vm.rename"][..];
        let upgrading = with_workers(&[("hv2", old), ("hv3", &["vm.freeze"])]);
        assert_eq!(unrecorded_node(&upgrading, &job), None);
        let old = with_workers(&[("hv2", old), ("hv3", old)]);
        assert_eq!(unrecorded_node(&old, &job).map(NodeName::as_str), Some("hv1"));
    }

    #[test]
    fn a_vm_in_state_provision_has_a_maker_until_the_job_has_ended() {
        let mut job = rename(1, 7);
        job.spec.work = JobWork::Provision(Box::new(Provision {
            vm: JobVm { name: "web1".into(), uuid: Some(Uuid::from_u128(7)) },
            profile: String::new(),
            define: true,
            start: false,
            refuse_memory_overcommit: false,
            arguments: Vec::new(),
        }));
        let made = records::vm(7, VmState::Provision, None);
        let other = records::vm(8, VmState::Provision, None);
        let is_over = records::vm(7, VmState::Stop, None);
        for (state, wanted) in [(JobState::Running, true), (JobState::Failed, false)] {
            job.progress.state = state;
            let jobs = [(job.spec.id.clone(), Arc::new(job.clone()))].into();
            let cluster = Cluster { jobs, ..Cluster::default() };
            let has = [&made, &other, &is_over].map(|vm| maker(&cluster, vm).is_some());
            assert_eq!(has, [wanted, false, false], "{state:?}");
        }
    }

    #[test]
    fn a_vm_is_being_renamed_until_the_job_has_ended() {
        let named = |state| {
            let mut job = rename(1, 7);
            job.progress.state = state;
            let jobs = [(job.spec.id.clone(), Arc::new(job))].into_iter().collect();
            let cluster = Cluster { jobs, ..Cluster::default() };
            let to = |vm| being_renamed_to(&cluster, Uuid::from_u128(vm)).map(str::to_owned);
            (to(7), to(8))
        };
        let shop = || Some("shop".to_owned());
        for (state, wanted) in [
            (JobState::Pending, shop()),
            (JobState::Running, shop()),
            (JobState::Succeeded, None),
            (JobState::Failed, None),
            (JobState::Cancelled, None),
        ] {
            assert_eq!(named(state), (wanted, None), "{state:?}");
        }
    }

    #[test]
    fn jobs_that_choose_disks_of_one_node_are_done_one_after_the_other() {
        let device = DeviceSpec::parse("/dev/sdb").expect("below `/dev`");
        let replacement = OsdReplacement {
            osd: OsdId(3),
            device: device.clone(),
            old_device: None,
            weight: None,
            db: None,
            force: false,
        };
        let new = AddOsds { device: device.clone(), weight: 1.0, db: None, count: 1 };
        let subject = |work: JobWork| JobSpec { work, ..rename(1, 7).spec }.subject();
        for work in [JobWork::AddOsds(new.clone()), JobWork::AddDbGroup { device: device.clone() }]
        {
            assert_eq!(subject(work).as_deref(), Some("disks of hv1"));
        }
        // These may wait for days until data is elsewhere.
        let removal = JobWork::RemoveOsd { osd: OsdId(3), force: false };
        for work in [JobWork::ReplaceOsd(replacement), removal] {
            assert_eq!(subject(work).as_deref(), Some("OSD 3"));
        }
        assert_eq!(subject(JobWork::PlanOsds(new)), None, "it only looks");
    }
}
