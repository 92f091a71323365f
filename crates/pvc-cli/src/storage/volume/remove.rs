use clap::Args;
use pvc_api_types::operations::storage::{DeleteStorageCephVolumePoolVolume, VolumeDeletion};
use pvc_api_types::param::Added;

use super::Which;
use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Remove a volume
///
/// Its snapshots are removed with it, and nothing but a backup brings them back. A
/// volume that a VM has is not removed; `--force` removes one whose VM does not run.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage volume remove vms web1_data
  pvc storage volume remove vms web1_data --dry-run")]
pub struct Remove {
    #[command(flatten)]
    volume: Which,

    /// Also if the definition of a VM names it
    #[arg(short, long)]
    force: bool,

    #[command(flatten)]
    yes: Yes,
}

impl Remove {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let [pool, name] = self.volume.at();
        let sentence = format!("Remove volume \"{name}\" of pool \"{pool}\" with its snapshots");
        let deletion = VolumeDeletion { force: Added(self.force) };
        let operation = DeleteStorageCephVolumePoolVolume;
        confirm::change(pvc, self.yes, &sentence, operation, [pool, name], &deletion)
    }
}
