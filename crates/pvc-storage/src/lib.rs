//! The storage: what a node does about it beside its VMs, as roles (`pvc-role`).
//!
//! ```text
//!  ceph            how Ceph is doing, published by the primary
//!  answered        how old that is, kept by whoever asks
//!  fullness        how full pools become, kept by whoever collects their figures
//!  full_faults     faults of what is nearly full, or full
//!  snapshot_usage  what snapshots hold, looked at by the primary
//!  inventory       volumes of one machine alone → records of them
//!  leftovers       uploads and copies that were cut off, put right by the primary
//!  trash           the end of removed volumes, when their time is over
//!  secret          the key with which the hypervisor opens volumes
//! ```

#![forbid(unsafe_code)]

mod answered;
pub mod ceph;
mod directory;
mod full_faults;
mod fullness;
pub mod inventory;
pub mod leftovers;
pub mod secret;
pub mod snapshot_usage;
pub mod trash;
