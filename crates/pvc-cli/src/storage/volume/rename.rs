use clap::Args;
use pvc_api_types::operations::storage::{PutStorageCephVolumePoolVolume, VolumeChange};
use pvc_api_types::param::Added;

use super::Which;
use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Rename a volume
///
/// It keeps its pool and its snapshots. A volume that a VM has is not renamed without
/// `--force`: the VM would not find it at its next start. `pvc vm rename` renames the
/// volumes of a VM with it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage volume rename vms web1_data old_data")]
pub struct Rename {
    #[command(flatten)]
    volume: Which,

    /// The new name
    new_name: String,

    /// Also if the definition of a VM names it
    #[arg(short, long)]
    force: bool,

    #[command(flatten)]
    yes: Yes,
}

impl Rename {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let ([pool, name], new_name) = (self.volume.at(), &self.new_name);
        let sentence = format!("Rename volume \"{name}\" of pool \"{pool}\" to \"{new_name}\"");
        let change = VolumeChange {
            new_size: None,
            new_name: Some(new_name.clone()),
            force: Added(self.force),
        };
        let operation = PutStorageCephVolumePoolVolume;
        confirm::change(pvc, self.yes, &sentence, operation, [pool, name], &change)
    }
}
