use clap::Args;
use pvc_api_types::operations::storage::{PostStorageCephVolume, VolumeCreation};
use pvc_api_types::param::Flag;

use crate::context::Pvc;
use crate::outcome::Outcome;
use crate::storage::size;

/// Add a volume
///
/// SIZE is a number of bytes, or of K, M, G or T, each 1024 of the one before. A volume
/// takes room only for what is written into it. One that would fill its pool above 80 %
/// if it were written in full is refused without `--force`, one that has no room at all
/// always.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage volume add vms web1_data 100G
  pvc storage volume add vms web1_data 1.5T --dry-run")]
pub struct Add {
    /// The pool that it lies in
    #[arg(add = crate::completion::pools())]
    pool: String,

    /// Name of the volume
    name: String,

    /// Size of the volume, such as 20G
    #[arg(value_parser = size::parse)]
    size: String,

    /// Also if the pool would be filled above 80 %
    #[arg(short, long)]
    force: bool,
}

impl Add {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let creation = VolumeCreation {
            volume: self.name,
            pool: self.pool,
            size: self.size,
            force: Flag(self.force),
        };
        let message = pvc.client()?.change(PostStorageCephVolume, [], &creation)?;
        pvc.done(message);
        Ok(())
    }
}
