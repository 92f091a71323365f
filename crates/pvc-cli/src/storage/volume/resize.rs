use clap::Args;
use pvc_api_types::operations::storage::{PutStorageCephVolumePoolVolume, VolumeChange};
use pvc_api_types::param::Added;

use super::Which;
use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;
use crate::storage::size;

/// Change the size of a volume
///
/// A running VM that has it is notified by a task; partitions and file systems in it are
/// for the guest to grow. A smaller size cuts off what lies behind it and is
/// refused without `--force`, as is one that would fill the pool above 80 %.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage volume resize vms web1_data 200G
  pvc storage volume resize vms web1_data 200G --dry-run")]
pub struct Resize {
    #[command(flatten)]
    volume: Which,

    /// The size that it is to have, such as 20G
    #[arg(value_parser = size::parse)]
    size: String,

    /// Also if it gets smaller, or the pool would be filled above 80 %
    #[arg(short, long)]
    force: bool,

    #[command(flatten)]
    yes: Yes,
}

impl Resize {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let ([pool, name], size) = (self.volume.at(), &self.size);
        let sentence = format!("Resize volume \"{name}\" of pool \"{pool}\" to \"{size}\"");
        let change =
            VolumeChange { new_size: Some(size.clone()), new_name: None, force: Added(self.force) };
        let operation = PutStorageCephVolumePoolVolume;
        confirm::change(pvc, self.yes, &sentence, operation, [pool, name], &change)
    }
}
