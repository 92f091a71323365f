use clap::Args;
use pvc_api_types::operations::storage::{DeleteStorageCephVolumePoolVolume, VolumeDeletion};
use pvc_api_types::param::Added;

use super::Which;
use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Remove a volume
///
/// It is kept in the trash of its pool with its snapshots, for 24 h if the configuration
/// says nothing else, and the message says how it is restored until then. With `--purge`
/// nothing but a backup brings it back. A volume that a VM has is not removed; `--force`
/// removes one whose VM does not run.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage volume remove vms web1_data
  pvc storage volume remove vms web1_data --dry-run
  pvc storage volume remove vms web1_data --purge")]
pub struct Remove {
    #[command(flatten)]
    volume: Which,

    /// Also if the definition of a VM names it
    #[arg(short, long)]
    force: bool,

    /// Remove it for good at once
    #[arg(long)]
    purge: bool,

    #[command(flatten)]
    yes: Yes,
}

impl Remove {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let [pool, name] = self.volume.at();
        let for_good = if self.purge { ", for good" } else { "" };
        let sentence =
            format!("Remove volume \"{name}\" of pool \"{pool}\" with its snapshots{for_good}");
        let deletion = VolumeDeletion { force: Added(self.force), purge: Added(self.purge) };
        let operation = DeleteStorageCephVolumePoolVolume;
        confirm::change(pvc, self.yes, &sentence, operation, [pool, name], &deletion)
    }
}
