use clap::Args;
use pvc_api_types::operations::storage::DeleteStorageCephTrashPoolId;
use pvc_api_types::param::Nothing;

use super::Which;
use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Remove a removed volume for good
///
/// Nothing but a backup brings it back then. Without this command it is removed for
/// good when its time is over.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage trash purge vms 101c60e3817e
  pvc storage trash purge vms 101c60e3817e --dry-run")]
pub struct Purge {
    #[command(flatten)]
    volume: Which,

    #[command(flatten)]
    yes: Yes,
}

impl Purge {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let [pool, id] = self.volume.at();
        let sentence =
            format!("Purge volume \"{id}\" in the trash of pool \"{pool}\" with its snapshots");
        confirm::change(
            pvc,
            self.yes,
            &sentence,
            DeleteStorageCephTrashPoolId,
            [pool, id],
            &Nothing,
        )
    }
}
