use clap::Args;
use pvc_api_types::operations::storage::{PostStorageCephSnapshot, SnapshotCreation};

use crate::context::Pvc;
use crate::outcome::Outcome;

/// Take a snapshot of a volume
///
/// It holds what is on the volume now. Of a volume that a running VM writes to, that is
/// what a power cut would leave.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage volume snapshot add vms web1_data before-upgrade")]
pub struct Add {
    /// The pool of the volume
    #[arg(add = crate::completion::pools())]
    pool: String,

    /// The volume
    #[arg(add = crate::completion::volumes())]
    volume: String,

    /// Name of the snapshot
    name: String,
}

impl Add {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let creation =
            SnapshotCreation { snapshot: self.name, volume: self.volume, pool: self.pool };
        let message = pvc.client()?.change(PostStorageCephSnapshot, [], &creation)?;
        pvc.done(message);
        Ok(())
    }
}
