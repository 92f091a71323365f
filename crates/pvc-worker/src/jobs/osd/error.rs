//! Errors of jobs about OSDs.

use pvc_model::Uuid;
use pvc_model::job::JobId;
use pvc_model::osd::{BadDbSize, Device, DeviceInUse, NoDevice, NoOsds, OsdId};
use pvc_ops::osd::{OsdRefusal, osd_error_kind};
use pvc_ops::{Kind as RefusalKind, Refusal};
use pvc_ports::OsdError;

use crate::context::Unwritten;

#[derive(Debug, thiserror::Error)]
pub(crate) enum OsdJobError {
    #[error(transparent)]
    Refused(#[from] OsdRefusal),
    #[error(transparent)]
    NoDevice(#[from] NoDevice),
    #[error(transparent)]
    InUse(#[from] DeviceInUse),
    #[error(transparent)]
    NoOsds(#[from] NoOsds),
    #[error(transparent)]
    Db(#[from] BadDbSize),
    #[error("device `{device}` is gone, or is another disk than when this was asked for")]
    AnotherDisk { device: Device },
    #[error("device `{device}` belongs to task {job}, which makes OSDs on it")]
    OfJob { device: Device, job: JobId },
    #[error("what is left of OSD {osd} could not be erased")]
    NotErased {
        osd: OsdId,
        #[source]
        source: Box<OsdJobError>,
    },
    #[error("OSD {osd} is not on device `{device}`")]
    NotThere { osd: OsdId, device: Device },
    #[error("OSD {osd} on device `{device}` is of another cluster, {cluster}")]
    OfAnotherCluster { osd: OsdId, device: Device, cluster: Uuid },
    #[error(
        "OSD {osd} on device `{device}` has the UUID {uuid}, and the cluster knows none of that \
         number and UUID"
    )]
    Unknown { osd: OsdId, device: Device, uuid: Uuid },
    #[error(
        "OSD {osd} of the cluster has the UUID {uuid}: it is another one than the recorded, and \
         not on this node"
    )]
    Another { osd: OsdId, uuid: Uuid },
    #[error("OSD {osd} does not lie on this node any more")]
    Gone { osd: OsdId },
    #[error("{made} OSDs were made of device `{device}` and not {count}")]
    NotMade { device: Device, made: usize, count: u32 },
    #[error("the data of OSD {osd} was not elsewhere yet: {why}")]
    NotSafe { osd: OsdId, why: String },
    #[error("OSD {osd} did not start: {why}")]
    NotStarted { osd: OsdId, why: String },
    /// The OSD was up once: it may hold data.
    #[error("OSD {osd} has run, and does not start again: {why}")]
    NotStartedAgain { osd: OsdId, why: String },
    #[error("node `{node}`, on which OSD {osd} lies, was fenced and is not any more")]
    BackAgain { osd: OsdId, node: String },
    #[error("the daemon of OSD {osd} did not stop within {seconds} s")]
    NotStopped { osd: OsdId, seconds: u64 },
    #[error(transparent)]
    Osd(#[from] OsdError),
    #[error(transparent)]
    Unwritten(#[from] Unwritten<OsdRefusal>),
}

impl Refusal for OsdJobError {
    fn kind(&self) -> RefusalKind {
        match self {
            OsdJobError::Refused(refusal) => refusal.kind(),
            OsdJobError::NoDevice(_)
            | OsdJobError::InUse(_)
            | OsdJobError::NoOsds(_)
            | OsdJobError::Db(_)
            | OsdJobError::AnotherDisk { .. }
            | OsdJobError::OfJob { .. }
            | OsdJobError::NotThere { .. }
            | OsdJobError::OfAnotherCluster { .. }
            | OsdJobError::Unknown { .. }
            | OsdJobError::Another { .. }
            | OsdJobError::Gone { .. }
            | OsdJobError::BackAgain { .. }
            | OsdJobError::NotStarted { .. } => RefusalKind::Conflict,
            OsdJobError::NotMade { .. }
            | OsdJobError::NotStartedAgain { .. }
            | OsdJobError::NotSafe { .. }
            | OsdJobError::NotStopped { .. } => RefusalKind::Unavailable,
            OsdJobError::NotErased { source, .. } => source.kind(),
            OsdJobError::Osd(error) => osd_error_kind(error),
            OsdJobError::Unwritten(error) => error.kind(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            OsdJobError::Refused(refusal) => refusal.hint(),
            OsdJobError::NoDevice(error) => error.hint(),
            OsdJobError::InUse(error) => error.hint(),
            OsdJobError::NoOsds(error) => error.hint(),
            OsdJobError::Osd(error) => error.hint(),
            OsdJobError::Unwritten(error) => error.hint(),
            OsdJobError::NotErased { osd, .. } => Some(format!(
                "if the disk cannot be written any more, cancel this task and use `pvc storage osd \
                 remove {osd} --force`, which passes over it"
            )),
            OsdJobError::OfJob { job, .. } => Some(format!("`pvc task info {job}` shows it")),
            OsdJobError::NotStarted { osd, .. } | OsdJobError::NotStartedAgain { osd, .. } => {
                Some(format!("`journalctl -u {}` on the node says more", osd.unit()))
            }
            OsdJobError::BackAgain { osd, .. } => Some(format!(
                "`pvc storage osd remove {osd}` removes it there, and erases its disk"
            )),
            OsdJobError::Another { .. } => Some(
                "`ceph osd find` says where it is; `pvc storage osd refresh` takes it up there"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}
