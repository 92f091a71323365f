use clap::Args;
use pvc_api_types::operations::storage::{CloneRequest, PostStorageCephVolumePoolVolumeClone};
use pvc_api_types::param::Added;

use super::Which;
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Copy a volume
///
/// The copy lies in the same pool, is whole and depends on nothing; it has no snapshots.
/// The command returns when it is made. Of a volume that a running VM writes to, the copy
/// is as after a power cut: stop the VM, or copy what matters from within. `pvc task list`
/// shows how far one is that takes long, and `pvc task cancel` ends it and removes what
/// there is of it.
///
/// With `--copy-on-write` it is there at once and shares with the volume what neither has
/// written since: the volume is not removed before `pvc storage volume flatten` has made
/// the copy independent.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage volume clone vms template_root web2_root
  pvc storage volume clone vms template_root web3_root --copy-on-write")]
pub struct Clone {
    #[command(flatten)]
    volume: Which,

    /// Name of the copy
    new_name: String,

    /// Also if the pool would be filled above 80 %
    #[arg(short, long)]
    force: bool,

    /// Share what neither of them has written since
    #[arg(long)]
    copy_on_write: bool,
}

impl Clone {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let request = CloneRequest {
            new_volume: self.new_name,
            force: Added(self.force),
            force_flag: Added(false),
            copy_on_write: Added(self.copy_on_write),
        };
        let message = pvc.client()?.change(
            PostStorageCephVolumePoolVolumeClone,
            self.volume.at(),
            &request,
        )?;
        pvc.done(message);
        Ok(())
    }
}
