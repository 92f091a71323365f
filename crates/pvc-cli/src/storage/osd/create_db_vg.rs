use clap::Args;
use pvc_api_types::operations::osd::{DatabaseGroup, PostStorageCephOsddb};

use super::{Disk, Way};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Make the volume group for OSD databases
///
/// The whole disk becomes the volume group osd-db of its node; all that is on it is lost.
/// A node has one such group. OSDs that are added with `--ext-db-ratio` or `--ext-db-size`
/// have their databases in it: on a disk that is faster than theirs.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  pvc storage osd create-db-vg hv1 /dev/disk/by-id/nvme-eui.00253858b1234567")]
pub struct CreateDbVg {
    #[command(flatten)]
    disk: Disk,

    #[command(flatten)]
    way: Way,
}

impl CreateDbVg {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let Disk { node, device } = self.disk;
        let sentence = format!(
            "Destroy all data on \"{device}\" of node \"{node}\" for a group of OSD databases"
        );
        let group = DatabaseGroup { node, device };
        self.way.submit(pvc, (PostStorageCephOsddb, []), &group, &sentence)
    }
}
