use clap::Args;
use pvc_api_types::operations::osd::{OsdRefresh, PutStorageCephOsdOsdid};

use super::{Way, Which};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Take up an OSD again after its node was installed anew
///
/// The disk with the OSD's data is looked at, the OSD is started from it, with those that
/// share the disk, and where it is is recorded. Nothing on the disk is changed.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  pvc storage osd refresh 4 /dev/disk/by-path/pci-0000:03:00.0-scsi-0:1:0:0")]
pub struct Refresh {
    #[command(flatten)]
    osd: Which,

    /// Absolute path of the disk, or detect:NAME:SIZE:ID
    device: String,

    #[command(flatten)]
    way: Way,
}

impl Refresh {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let (Which { osd }, device) = (self.osd, self.device);
        let sentence = format!("Take up OSD \"{osd}\" from \"{device}\"");
        let refresh = OsdRefresh { device };
        self.way.submit(pvc, (PutStorageCephOsdOsdid, [&osd]), &refresh, &sentence)
    }
}
