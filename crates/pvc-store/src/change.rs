//! What can be written, in the words of the model.

use pvc_model::fault::FaultRecord;
use pvc_model::fence::FenceNote;
use pvc_model::job::{JobId, JobProgress, JobSpec};
use pvc_model::node::{
    CoordinatorState, DaemonNote, DaemonState, DomainState, HypervisorNote, NodeFigures, NodeRole,
};
use pvc_model::storage::{PoolName, VolumeId};
use pvc_model::vm::moving::MoveNote;
use pvc_model::vm::{MigrationMethod, Selector, Tag, VmState};
use pvc_model::{NodeName, Uuid};
use pvc_ports::Bmc;

/// A set of changes that become true together or not at all.
#[derive(Debug, Default, Clone)]
pub struct Changes {
    pub(crate) changes: Vec<Change>,
    pub(crate) expectations: Vec<Expect>,
}

impl Changes {
    pub fn new() -> Self {
        Changes::default()
    }

    pub fn push(&mut self, change: Change) -> &mut Self {
        self.changes.push(change);
        self
    }

    pub fn vm(&mut self, uuid: Uuid, change: VmChange) -> &mut Self {
        self.push(Change::Vm(uuid, change))
    }

    pub fn node(&mut self, name: &NodeName, change: NodeChange) -> &mut Self {
        self.push(Change::Node(name.clone(), change))
    }

    pub fn config(&mut self, change: ConfigChange) -> &mut Self {
        self.push(Change::Config(change))
    }

    /// Demands that what was read for the decision has not changed by the time of the write. What
    /// is written is always guarded so; this is for what was only read.
    pub fn expect(&mut self, expect: Expect) -> &mut Self {
        self.expectations.push(expect);
        self
    }

    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

#[derive(Debug, Clone)]
pub enum Change {
    DefineVm(Box<NewVm>),
    /// Removes the VM's record with everything below it.
    RemoveVm(Uuid),
    Vm(Uuid, VmChange),
    AddNode(Box<NewNode>),
    Node(NodeName, NodeChange),
    Config(ConfigChange),
    PutFault(FaultRecord),
    AckFault {
        id: String,
        at: String,
    },
    RemoveFault(String),
    PutPool {
        name: PoolName,
        pgs: String,
        tier: String,
    },
    RemovePool(PoolName),
    PutVolume {
        id: VolumeId,
        stats: String,
    },
    RemoveVolume(VolumeId),
    /// Moves the volume's record and those of its snapshots.
    RenameVolume {
        from: VolumeId,
        to: VolumeId,
    },
    /// Says of the VM's move what others act upon.
    MoveNote(Uuid, MoveNote),
    SubmitJob(JobSpec),
    JobProgress(JobId, JobProgress),
    CancelJob(JobId),
    RemoveJob(JobId),
}

#[derive(Debug, Clone, PartialEq)]
pub enum VmChange {
    Name(String),
    Xml(String),
    /// Writing the same word again is a new request: the record's `state_version` grows.
    State(VmState),
    Node(NodeName),
    LastNode(Option<NodeName>),
    FailedReason(String),
    Profile(String),
    Volumes(Vec<VolumeId>),
    Autostart(bool),
    MigrationMethod(Option<MigrationMethod>),
    MaxDowntime(u32),
    Selector(Option<Selector>),
    NodeLimit(Vec<NodeName>),
    /// Adds the tag, or changes its protection.
    AddTag(Tag),
    RemoveTag(String),
    /// The volumes of an existing snapshot of the VM, as `pool/volume@snapshot`.
    SnapshotVolumes {
        snapshot: String,
        volumes: Vec<String>,
    },
    SnapshotXml {
        snapshot: String,
        xml: String,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub enum NodeChange {
    Role(NodeRole),
    Daemon(DaemonState),
    Coordinator(CoordinatorState),
    Domain(DomainState),
    StaticData { cpus: u32, kernel: String, os: String, arch: String },
    Version(String),
    Ipmi(Ipmi),
}

/// How to reach a node's BMC. `Debug` keeps the password to itself.
#[derive(Clone, PartialEq, Default)]
pub struct Ipmi {
    pub hostname: String,
    pub username: String,
    pub password: String,
}

impl Ipmi {
    /// The BMC that is reached so.
    pub fn bmc(&self) -> Bmc {
        Bmc {
            host: self.hostname.clone(),
            user: self.username.clone(),
            password: self.password.clone(),
        }
    }
}

impl std::fmt::Debug for Ipmi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ipmi").field("hostname", &self.hostname).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum ConfigChange {
    Name(String),
    Maintenance(bool),
    /// `None` writes the word `none`: whoever can should contend.
    Primary(Option<NodeName>),
    UpstreamIp(String),
    Selector(Selector),
}

/// What must not have changed since the view that a decision was taken on.
#[derive(Debug, Clone, PartialEq)]
pub enum Expect {
    /// The set of VM names. Two definitions or renames that run at once exclude each other by it.
    VmNames,
    VmExists(Uuid),
    VmState(Uuid),
    VmNode(Uuid),
    VmXml(Uuid),
    /// The nodes that the VM may be placed on.
    VmNodeLimit(Uuid),
    Primary,
    /// That some worker holds the job.
    JobClaim(JobId),
    /// How far the job is. Every worker that takes a job over records that first, so whoever had it
    /// before writes nothing any more that expects this.
    JobProgress(JobId),
    NodeDaemon(NodeName),
    NodeDomain(NodeName),
    /// Where VMs were placed: of two who choose nodes at once, one chooses again and sees the
    /// other's choice.
    Placements,
}

/// An observation. Each key has one kind of writer, so it is written without a version.
#[derive(Debug, Clone, PartialEq)]
pub enum Report {
    Figures(NodeName, NodeFigures),
    Running(NodeName, Vec<Uuid>),
    WorkingOn(NodeName, Vec<Uuid>),
    /// JSON text by interface.
    NetworkStats(NodeName, String),
    /// What the daemon says of itself, and of what its guests run with, if that is known.
    Daemon(NodeName, DaemonNote, Option<HypervisorNote>),
    /// How the node is fenced; written by who holds the fence lock.
    Fence(NodeName, FenceNote),
    /// 0 to 100; `None` if nobody knows.
    NodeHealth(NodeName, Option<u8>),
    /// JSON text.
    VmStats(Uuid, String),
    /// `listen:port`, or empty.
    Vnc(Uuid, String),
    Move(Uuid, MoveNote),
    ConsoleLog(Uuid, String),
    /// Text for people.
    StorageStatus(String),
    /// JSON text, as the storage says it.
    StorageHealth(String),
    /// Text for people.
    StorageUsage(String),
    /// JSON text, of an OSD by its number.
    OsdStats(String, String),
    PoolStats(PoolName, String),
    VolumeStats(VolumeId, String),
}

/// A VM to be recorded.
#[derive(Debug, Clone)]
pub struct NewVm {
    pub uuid: Uuid,
    pub name: String,
    pub state: VmState,
    pub node: Option<NodeName>,
    pub xml: String,
    pub profile: Option<String>,
    pub volumes: Vec<VolumeId>,
    pub autostart: bool,
    pub migration_method: Option<MigrationMethod>,
    pub max_downtime_ms: u32,
    pub selector: Option<Selector>,
    pub node_limit: Vec<NodeName>,
    pub tags: Vec<Tag>,
}

/// A node to be recorded, with every key that legacy peers expect of it.
#[derive(Debug, Clone)]
pub struct NewNode {
    pub name: NodeName,
    pub role: NodeRole,
    pub cpus: u32,
    pub kernel: String,
    pub os: String,
    pub arch: String,
    pub version: String,
    pub ipmi: Ipmi,
    /// Seconds since the epoch.
    pub keepalive: u64,
}
