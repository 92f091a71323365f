//! Volumes as RBD images, and how Ceph is doing.
//!
//! ```text
//!  RbdStorage   the Storage port: one `rbd` command per act, each with a deadline
//!    gate       the way to write to a pool, which a full one is not
//!    looks      looks at images, through librbd or by `rbd` commands
//!    clones     copy-on-write clones, and what they stand on
//!    usage      what snapshots hold
//!    trash      removed images that are still kept
//!    streams    the VolumeStreams port: `rbd import-diff` and `rbd export-diff`
//!    diff       what goes through their pipes
//!    piped      a program with a pipe, while it runs
//!  CephVolume   the OsdHost port: the disks of this node, and the OSDs on them
//!  Monitors     commands to the monitors through librados: what is asked every few seconds
//!  Connection   the connection of looks and monitors, made when first needed
//!    rados      the few functions of librados, found when first needed
//!    librbd     those of librbd
//!  pools        how pools are made
//!  figures      from Ceph's answers to pools and OSDs in numbers
//! ```
//!
//! Ceph hangs rather than fails: without an OSD, a manager or a quorum it does not answer at all.
//! So nothing here waits without a deadline, and a program that missed its deadline is killed with
//! all it started.

#![expect(clippy::disallowed_methods, reason = "an adapter of a real cluster: its waits are real")]

mod answers;
mod clones;
mod connection;
mod diff;
mod figures;
mod gate;
mod librbd;
mod looks;
mod monitors;
mod names;
mod osd_answers;
mod osd_host;
mod osd_map;
mod piped;
mod pools;
mod rados;
mod rbd;
#[cfg(test)]
mod releases;
mod status;
mod storage;
mod streams;
mod trash;
mod trash_answers;
mod usage;

use std::path::PathBuf;

use pvc_model::storage::RbdAccess;

pub use osd_host::CephVolume;
pub use storage::RbdStorage;

/// Address of Ceph, and who we are to it.
#[derive(Debug, Clone)]
pub struct CephOptions {
    /// Ceph's own configuration file.
    pub config: PathBuf,
    /// The keyring with the key of `user`.
    pub keyring: PathBuf,
    /// Without `client.`: `admin`.
    pub user: String,
    /// Access of this cluster's hypervisors to volumes.
    pub access: RbdAccess,
}
