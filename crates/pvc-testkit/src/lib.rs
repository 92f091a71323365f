//! Doubles of the outside world that the tests of several crates share.
//!
//! The doubles keep the contracts of their ports (`pvc-ports`) and can be told to misbehave the way
//! the real world does. None of them sleeps for real: a test that wants hours to pass pauses
//! Tokio's time (`#[tokio::test(start_paused = true)]`).

#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "its clock is Tokio's, which tests pause")]

mod clock;
mod contents;
mod database;
mod database_cluster;
mod exec;
mod exporters;
mod files;
mod firewall;
mod gate;
mod guests;
mod host;
mod hypervisor;
pub mod legacy;
mod migration;
mod network;
mod osds;
pub mod ova;
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
mod volumes;
mod wait;
mod zone_transfers;

pub use clock::TokioClock;
pub use database::FlakyDatabase;
pub use database_cluster::ScriptedDatabaseCluster;
pub use exec::ScriptedExec;
pub use exporters::{PageManner, ScriptedExporters};
pub use files::MemoryFiles;
pub use firewall::MemoryFirewall;
pub use gate::Gate;
pub use guests::{MemoryGuest, MemoryHypervisor};
pub use host::FakeHost;
pub use hypervisor::{Manner, ScriptedHypervisor};
pub use migration::{Finish, MemoryJob, MemoryMigration};
pub use network::{MemoryNetwork, NetworkChange};
pub use osds::{MemoryOsds, SharedOsds};
pub use ports::ports;
pub use power::{BmcAnswer, BmcAsk, BmcManner, ScriptedPower};
pub use programs::{ProgramCall, ProgramManner, ScriptedPrograms};
pub use random::SeededRandom;
pub use scripts::{MappedVolumes, MemoryDevices, ScriptAct, ScriptActs, ScriptedScripts};
pub use services::{ScriptedServices, UnitCall, UnitManner};
pub use sriov::MemorySriov;
pub use storage::MemoryStorage;
pub use storage_cluster::{Said, ScriptedCluster};
pub use tree::{Closed, FlakyTree};
pub use volumes::{MemoryDownload, MemoryUpload, MemoryVolumes};
pub use wait::{eventually, eventually_some};
pub use zone_transfers::{ScriptedTransfers, ZoneManner};
