//! A VM that is made of an image.

use super::JobVm;
use crate::NodeName;
use crate::storage::VolumeId;

/// A VM to make, with its disks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmCreation {
    /// Name and UUID of the VM, which is not there yet.
    pub vm: JobVm,
    /// The definition, which names the disks.
    pub xml: String,
    /// The volume that the first disk is a copy-on-write clone of.
    pub image: VolumeId,
    pub disk: VolumeId,
    /// The size of the first disk, in bytes.
    pub disk_bytes: u64,
    pub seed: Option<Seed>,
    /// The node to assign it to; without one it is chosen.
    pub node: Option<NodeName>,
    /// Whether it starts with its node.
    pub autostart: bool,
    /// Whether it is started at the end.
    pub start: bool,
}

/// A small disk that has cloud-init's data: its data source `NoCloud`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seed {
    pub volume: VolumeId,
    pub files: SeedFiles,
}

/// The files of a seed, as cloud-init names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeedFiles {
    pub user_data: String,
    pub meta_data: String,
    pub network_config: String,
}

/// The most bytes of a VM's own user data.
pub const USER_DATA_LIMIT: usize = 32 << 10;
