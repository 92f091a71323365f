use clap::Args;
use pvc_api_types::operations::storage::{DeleteStorageCephPoolPool, PoolRemoval};
use pvc_api_types::param::Added;

use super::Which;
use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Remove a pool with all its volumes
///
/// All volumes in it and all their snapshots are lost, also those that were removed and
/// are still kept in its trash. A pool with a volume that a VM has is not removed;
/// `--force` removes one whose VMs do not run.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage pool remove old
  pvc storage pool remove old --dry-run")]
pub struct Remove {
    #[command(flatten)]
    pool: Which,

    /// Also if the definition of a VM names a volume in it
    #[arg(short, long)]
    force: bool,

    #[command(flatten)]
    yes: Yes,
}

impl Remove {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let pool = &self.pool.name;
        let sentence =
            format!("Remove pool \"{pool}\" with all its volumes and snapshots, removed ones too");
        let removal = PoolRemoval { really: "yes".to_owned(), force: Added(self.force) };
        confirm::change(pvc, self.yes, &sentence, DeleteStorageCephPoolPool, [pool], &removal)
    }
}
