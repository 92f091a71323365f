use clap::Args;
use pvc_api_types::operations::storage::PostStorageCephSnapshotPoolVolumeSnapshotRollback;
use pvc_api_types::param::Nothing;

use super::Which;
use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Roll a volume back to a snapshot
///
/// What was written since is lost; other snapshots are kept. It is refused while the VM
/// that has the volume is not off.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage volume snapshot rollback vms web1_data before-upgrade
  pvc storage volume snapshot rollback vms web1_data before-upgrade --dry-run")]
pub struct Rollback {
    #[command(flatten)]
    snapshot: Which,

    #[command(flatten)]
    yes: Yes,
}

impl Rollback {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let at @ [pool, volume, name] = self.snapshot.at();
        let sentence = format!(
            "Roll volume \"{pool}/{volume}\" back to snapshot \"{name}\" and lose what was written \
             since"
        );
        let operation = PostStorageCephSnapshotPoolVolumeSnapshotRollback;
        confirm::change(pvc, self.yes, &sentence, operation, at, &Nothing)
    }
}
