use clap::Args;
use pvc_api_types::operations::storage::{
    PutStorageCephSnapshotPoolVolumeSnapshot, SnapshotRename,
};

use super::Which;
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Rename a snapshot
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage volume snapshot rename vms web1_data before-upgrade release-11")]
pub struct Rename {
    #[command(flatten)]
    snapshot: Which,

    /// The new name
    new_name: String,
}

impl Rename {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let message = pvc.client()?.change(
            PutStorageCephSnapshotPoolVolumeSnapshot,
            self.snapshot.at(),
            &SnapshotRename { new_name: self.new_name },
        )?;
        pvc.done(message);
        Ok(())
    }
}
