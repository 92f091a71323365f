//! Adapters of a Linux machine: its clocks, its chance, its figures, its network, its programs, its
//! service manager and its logs.

#![allow(clippy::disallowed_methods, reason = "an adapter works in real time")]

mod apart;
mod clock;
mod exec;
mod exit;
mod exporters;
mod files;
mod firewall;
mod host;
pub mod log;
mod memory;
mod network;
mod notify;
mod process;
mod programs;
mod random;
mod services;
mod sriov;
mod starters;

pub use clock::SystemClock;
pub use exec::LinuxExec;
pub use exit::leave;
pub use exporters::HttpExporters;
pub use files::LinuxFiles;
pub use firewall::NftFirewall;
pub use host::LinuxHost;
pub use memory::{give_back_memory, one_heap};
pub use network::LinuxNetwork;
pub use notify::Notifier;
pub use process::this_process;
pub use programs::LinuxPrograms;
pub use random::OsRandom;
pub use services::Systemctl;
pub use sriov::LinuxSriov;
