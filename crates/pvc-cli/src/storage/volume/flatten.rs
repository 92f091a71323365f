use clap::Args;
use pvc_api_types::operations::storage::{Flattening, PostStorageCephVolumePoolVolumeFlatten};
use pvc_api_types::param::Added;

use super::Which;
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Make a copy-on-write clone independent
///
/// What it shares with the volume that it is a clone of is copied, also while its VM
/// runs. Of a volume that depends on no other the command says so.
///
/// `pvc task list` shows how far it is when it takes long, and `pvc task cancel` ends it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage volume flatten vms web3_root")]
pub struct Flatten {
    #[command(flatten)]
    volume: Which,

    /// Also if the pool would be filled above 80 %
    #[arg(short, long)]
    force: bool,
}

impl Flatten {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let flattening = Flattening { force: Added(self.force) };
        let operation = PostStorageCephVolumePoolVolumeFlatten;
        let message = pvc.client()?.change(operation, self.volume.at(), &flattening)?;
        pvc.done(message);
        Ok(())
    }
}
