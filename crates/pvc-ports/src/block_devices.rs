//! Volumes as block devices of this node.

use std::path::PathBuf;

use async_trait::async_trait;
use pvc_model::job::JobId;
use pvc_model::storage::VolumeId;

use crate::StorageError;

/// Path by which a mapped volume is found.
pub fn device_path(volume: &VolumeId) -> PathBuf {
    PathBuf::from(format!("/dev/rbd/{}/{}", volume.pool, volume.volume))
}

#[derive(Debug, thiserror::Error)]
pub enum BlockDeviceError {
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error("`{program}` is not installed")]
    Missing { program: String },
    #[error("volume `{volume}` could not be {act}: {why}")]
    Refused { volume: VolumeId, act: &'static str, why: String },
    /// Somebody else has mapped it, or what has its name is no link of ours.
    #[error("`{}` is there already", .path.display())]
    Taken { path: PathBuf },
    #[error("the node failed while volume `{volume}` was {act}")]
    Io {
        volume: VolumeId,
        act: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("the process of `{}` is still there, and may use what it has mapped", .place.display())]
    Alive { place: PathBuf },
    #[error("what an earlier process has left in `{}` cannot be ended", .place.display())]
    Left {
        place: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

impl BlockDeviceError {
    /// The volume that it is about, if that is known.
    pub fn volume(&self) -> Option<&VolumeId> {
        match self {
            BlockDeviceError::Refused { volume, .. } | BlockDeviceError::Io { volume, .. } => {
                Some(volume)
            }
            BlockDeviceError::Storage(_)
            | BlockDeviceError::Missing { .. }
            | BlockDeviceError::Taken { .. }
            | BlockDeviceError::Alive { .. }
            | BlockDeviceError::Left { .. } => None,
        }
    }
}

/// A volume that was unmapped, or the reason why one was not.
pub type Unmapped = Result<VolumeId, BlockDeviceError>;

/// Gives programs of this node volumes as block devices, `/dev/rbd/POOL/NAME`.
///
/// A device belongs to this process, as far as others of its kind are concerned: what one that is
/// no more has mapped is [left over](BlockDevices::unmap_left_over).
#[async_trait]
pub trait BlockDevices: Send + Sync {
    /// Maps the volume, which must exist and which nobody has open, for a job, and returns the path
    /// of its device. One that this process has mapped already stays as it is, and is for this job
    /// as well.
    ///
    /// # Cancellation
    /// What has begun is known: [`unmap`](BlockDevices::unmap) ends it.
    async fn map(&self, volume: &VolumeId, job: &JobId) -> Result<PathBuf, BlockDeviceError>;

    /// Ends the device of a job, and with the last job that has it, what was written to it is in
    /// the storage. One that is not there, or not this job's, is left alone.
    ///
    /// # Errors
    /// Also while somebody has it open, or a file system on it mounted: it stays.
    async fn unmap(&self, volume: &VolumeId, job: &JobId) -> Result<(), BlockDeviceError>;

    /// Unmaps all that this process has mapped, for whichever jobs, and logs each when it begins
    /// and ends. What cannot be unmapped keeps none of the others.
    async fn unmap_all(&self) -> Vec<Unmapped>;

    /// Unmaps what processes of this kind have mapped that are no more. What cannot be unmapped
    /// keeps none of the others. A process that is still there, as one that hangs in the kernel, is
    /// an error: what it has mapped stays.
    async fn unmap_left_over(&self) -> Vec<Unmapped>;
}
