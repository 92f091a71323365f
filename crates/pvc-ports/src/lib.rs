//! The outside world, as values.
//!
//! Each trait stands at the lowest boundary at which PVC touches something it does not control.
//! Everything above (the typed store, the roles, the API) is written against these traits and runs
//! unchanged on the real adapters and in a simulated world. A port translates and decides nothing.
//!
//! One contract suite per port (crate `pvc-contracts`) is run against every implementation, so that
//! they cannot drift apart.

#![forbid(unsafe_code)]

mod aside;
mod block_devices;
mod clock;
mod course;
mod database;
mod database_cluster;
mod exec;
mod exporters;
mod files;
mod firewall;
mod host;
mod hypervisor;
mod network;
mod newest_seen;
mod osd_host;
mod osd_map;
mod ports;
mod power;
mod programs;
mod random;
mod scripts;
mod services;
mod sriov;
mod storage;
mod storage_cluster;
mod tree;
mod volume_streams;
mod zone_transfers;

pub use aside::aside;
pub use block_devices::{BlockDeviceError, BlockDevices, Unmapped, device_path};
pub use clock::Clock;
pub use course::Course;
pub use database::{
    Database, DatabaseError, MOST_ROWS, Rows, SqlDialect, SqlValue, Statement, Transaction,
};
pub use database_cluster::{DatabaseCluster, DatabaseClusterError};
pub use exec::{Command, Exec, ExecError, Output};
pub use exporters::{ExporterError, Exporters, MOST_PAGE_BYTES};
pub use files::{
    DirectoryEntry, FileAccess, FileInfo, FileKind, FileOwner, FileSpace, Files, FilesError,
    file_path,
};
pub use firewall::{Firewall, FirewallError};
pub use host::{Host, HostError, HostFacts, HostLoad, HostUsage, InterfaceCounters, ProcessUsage};
pub use hypervisor::{
    AgentAddress, ConsoleLog, DeviceChange, Guest, GuestAgents, GuestEvent, GuestRun, GuestStats,
    Hypervisor, HypervisorError, HypervisorFacts, MOST_AGENT_ADDRESSES, Migration, MigrationJob,
    MigrationProgress, VncAddress,
};
pub use network::{Network, NetworkError};
pub use newest_seen::NewestSeen;
pub use osd_host::{OsdError, OsdHost};
pub use osd_map::OsdMap;
pub use ports::Ports;
pub use power::{Bmc, Power, PowerError};
pub use programs::{
    MOST_LINE_BYTES, Program, ProgramEnd, ProgramSignal, Programs, ProgramsError, RunningProgram,
};
pub use random::{Random, SplitMix};
pub use scripts::{
    MOST_MESSAGE_BYTES, MOST_SCRIPT_LINE_BYTES, ScriptFailure, ScriptJob, ScriptLevel,
    ScriptMessage, ScriptOrder, ScriptPhase, ScriptProcess, Scripts, ScriptsError,
};
pub use services::{Services, ServicesError, UnitState};
pub use sriov::Sriov;
pub use storage::{
    Attachment, CloneName, Flattened, MeasuredPlace, MeasuredVolume, PoolInfo, SnapshotInfo,
    SnapshotUsage, Storage, StorageError, TrashedVolume, VolumeInfo, VolumeLock,
};
pub use storage_cluster::{OsdFigures, PoolFigures, StorageCluster};
pub use tree::{
    Access, AccessControl, AccessList, CreateMode, Done, Entry, MultiError, Op, SessionState, Stat,
    Tree, TreeError, TreeEvent, TreeWatch, check_multi, check_path, is_at_or_below, parent_path,
};
pub use volume_streams::{Download, MOST_PIECE_BYTES, Upload, VolumeStreams};
pub use zone_transfers::{DnsPorts, TransferError, ZoneTransfers};
