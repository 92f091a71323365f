use clap::Args;
use pvc_api_types::operations::storage::{
    DeleteStorageCephSnapshotPoolVolumeSnapshot, SnapshotDeletion,
};
use pvc_api_types::param::Added;

use super::Which;
use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Remove a snapshot
///
/// The volume stays what it is. A snapshot that is part of a snapshot of a VM is not
/// removed without `--force`: the VM could not be rolled back to it any more.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage volume snapshot remove vms web1_data before-upgrade")]
pub struct Remove {
    #[command(flatten)]
    snapshot: Which,

    /// Also if it is part of a snapshot of a VM
    #[arg(short, long)]
    force: bool,

    #[command(flatten)]
    yes: Yes,
}

impl Remove {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let at @ [pool, volume, name] = self.snapshot.at();
        let sentence = format!("Remove snapshot \"{name}\" of volume \"{pool}/{volume}\"");
        let deletion = SnapshotDeletion { force: Added(self.force) };
        let operation = DeleteStorageCephSnapshotPoolVolumeSnapshot;
        confirm::change(pvc, self.yes, &sentence, operation, at, &deletion)
    }
}
