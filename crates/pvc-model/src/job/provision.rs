//! A VM that is made from a profile.

use super::{JobId, JobVm, making};
use crate::storage::VolumeId;

/// A VM to make by the script of a profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provision {
    /// Name and UUID of the VM, which is not there yet.
    pub vm: JobVm,
    /// Name of the profile.
    pub profile: String,
    /// Whether what the script's `create` returns is recorded.
    pub define: bool,
    /// Whether it is started at the end.
    pub start: bool,
    /// Whether it is not if its node has not the memory for all of its VMs.
    pub refuse_memory_overcommit: bool,
    /// Arguments of the script besides those of the profile, `NAME=VALUE` each.
    pub arguments: Vec<String>,
}

/// The most things that a script's process makes.
pub const MOST_MADE: usize = 200;

/// The name that volume number `number` of a script has until it gets the one that the script
/// gives: no other job gives it.
pub fn name_in_the_making(job: &JobId, number: usize, volume: &VolumeId) -> VolumeId {
    let making = making::name_in_the_making(job, &format!("script{number}"));
    VolumeId { pool: volume.pool.clone(), volume: making }
}
