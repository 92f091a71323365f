use clap::Args;
use pvc_api_types::operations::storage::{DeleteStorageCephVolumePoolVolume, VolumeDeletion};
use pvc_api_types::param::Added;

use super::Which;
use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Remove an image
///
/// It is kept in the trash of its pool as any volume that is removed. One that disks of
/// VMs are clones of is not removed: `pvc storage volume flatten` makes them independent.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc image remove debian-12
  pvc image remove debian-12 --dry-run")]
pub struct Remove {
    #[command(flatten)]
    image: Which,

    /// Remove it for good at once
    #[arg(long)]
    purge: bool,

    #[command(flatten)]
    yes: Yes,
}

impl Remove {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let image = self.image.find(pvc)?;
        let for_good = if self.purge { ", for good" } else { "" };
        let sentence =
            format!("Remove image \"{}\" of pool \"{}\"{for_good}", image.name, image.pool);
        let deletion = VolumeDeletion { force: Added(false), purge: Added(self.purge) };
        let at = [image.pool.as_str(), image.volume.as_str()];
        let operation = DeleteStorageCephVolumePoolVolume;
        confirm::change(pvc, self.yes, &sentence, operation, at, &deletion)
    }
}
