//! Types that go over HTTP, and from one program of PVC to another.
//!
//! One declaration per operation of the API ([`operations`]), which its server, its document and
//! its clients share, and one type per object of the wire, with the member names, types and null
//! rules that scripts and clients of PVC 1.0.3 depend on. Names of the types are the names of the
//! schemas in the API document.
//!
//! Writing is strict: every member is sent. Reading is tolerant: a member that an older server
//! omits, or answers with `null` where a value belongs, reads as its empty value, so that one odd
//! record never hides a whole list from an operator.

#![forbid(unsafe_code)]

#[macro_use]
mod wire;
#[macro_use]
pub mod param;
#[macro_use]
pub mod operation;

pub mod benchmark;
pub mod cluster;
pub mod event;
pub mod network;
pub mod node;
pub mod operations;
pub mod osd;
pub mod provisioner;
pub mod release;
pub mod sriov;
pub mod storage;
pub mod storage_report;
pub mod task;
pub mod vm;
pub mod what_if;

pub use benchmark::Benchmark;
pub use cluster::{
    BadRequest, ClusterHealth, ClusterStatus, CpuUse, DiskUse, Fault, HealthMessage, MemoryUse,
    Message, NodeHealth, PrimaryNode, Resources, StateCounts, StatusDetail, StatusNode, StatusOsd,
    StatusVm, StoreAccess,
};
pub use event::{Change, Event, EventKind};
pub use network::{
    Acl, CreatedNetwork, Ipv4Settings, Ipv6Settings, Lease, Network, NetworkTrace, TraceEnd,
    TraceStep, TraceWay,
};
pub use node::{
    FlushPlan, FlushStep, HealthDetail, Interface, Node, NodeCoordinatorState, NodeDaemonState,
    NodeDomainState, NodeFence, NodeHypervisor, NodeLog, NodeMemory, NodeVcpu, NodeWait,
};
pub use osd::{Osd, OsdState};
pub use provisioner::{
    AllTemplates, NetworkTemplate, NetworkTemplateNet, Ova, OvaVolume, Profile, Script,
    StorageTemplate, StorageTemplateDisk, SystemTemplate, Userdata,
};
pub use sriov::{SriovPf, SriovVf, SriovVfConfig, SriovVfPci, SriovVfUsage};
pub use storage::{
    Image, Pool, SnapshotStats, StorageSnapshot, TrashedVolume, Uploaded, Volume, VolumeStats,
};
pub use storage_report::{CephReport, PoolFullness, SnapshotUsage};
pub use task::{
    DeliveryInfo, EndedTask, QueuedTask, TaskLog, TaskQueues, TaskRef, TaskStatus, TaskTransfer,
};
pub use vm::{
    MoveCandidate, MovePlan, Vm, VmConsole, VmController, VmDisk, VmHardware, VmMemory, VmMeta,
    VmMigration, VmNetwork, VmNode, VmSnapshot, VmState, VmTag, VmTags, VmVcpus, VmVnc,
};
pub use what_if::{
    WhatIf, WhatIfCoordinators, WhatIfNode, WhatIfRan, WhatIfRefusal, WhatIfReply, WhatIfRun,
    WhatIfVm,
};
pub use wire::{Health, or_default};
