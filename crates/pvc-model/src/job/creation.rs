//! A VM that is made of an image.

use super::{JobId, JobVm, making};
use crate::NodeName;
use crate::storage::VolumeId;

/// A VM to make, with its disks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmCreation {
    /// Name and UUID of the VM, which is not there yet.
    pub vm: JobVm,
    /// The definition, which names the disks.
    pub xml: String,
    /// The volume that the medium is a copy-on-write clone of; without a medium the first disk.
    pub image: VolumeId,
    /// The installation medium, read as a CD: the first disk is empty then.
    pub medium: Option<VolumeId>,
    /// The first disk, which has this name when it is whole.
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
    /// Whether it is not if its node has not the memory for all of its VMs.
    pub refuse_memory_overcommit: bool,
    /// Takes it also if it is plugged into a network between the nodes.
    pub force: bool,
}

impl VmCreation {
    /// The volume that is a clone of the image.
    pub fn clone_of_image(&self) -> &VolumeId {
        self.medium.as_ref().unwrap_or(&self.disk)
    }
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

/// The most bytes of all SSH keys of a VM.
pub const SSH_KEYS_LIMIT: usize = 16 << 10;

/// The name that a disk of a VM in the making has until it is whole: no other job gives it.
pub fn name_in_the_making(job: &JobId, disk: &VolumeId) -> VolumeId {
    let suffix = disk.volume.as_str().rsplit('_').next().unwrap_or_default();
    VolumeId { pool: disk.pool.clone(), volume: making::name_in_the_making(job, suffix) }
}
