use clap::Args;
use pvc_api_types::operations::storage::{PostStorageCephTrashPoolIdRestore, Restoration};

use super::Which;
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Restore a removed volume
///
/// It is a volume of its pool again, with its snapshots, under the name that it had or
/// another one. Its data is as it was when it was removed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage trash restore vms 101c60e3817e
  pvc storage trash restore vms 101c60e3817e --name web1_old")]
pub struct Restore {
    #[command(flatten)]
    volume: Which,

    /// The name it is to have
    #[arg(short, long)]
    name: Option<String>,
}

impl Restore {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let restoration = Restoration { new_name: self.name };
        let operation = PostStorageCephTrashPoolIdRestore;
        let message = pvc.client()?.change(operation, self.volume.at(), &restoration)?;
        pvc.done(message);
        Ok(())
    }
}
