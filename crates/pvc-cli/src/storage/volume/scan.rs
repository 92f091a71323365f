use clap::Args;
use pvc_api_types::operations::storage::{PostStorageCephVolumePoolVolumeScan, VolumeScan};
use pvc_api_types::param::Added;

use super::Which;
use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Make the record of a volume say what is there
///
/// For a volume that was made, changed or removed by other means, such as `rbd`: it and
/// its snapshots are looked at, and the cluster's record is written, or removed, to fit.
///
/// A volume that is held for what no version in the cluster knows, or whose hold is
/// damaged, is let go of with `--force`, and with nothing else. Look first what it
/// holds: if half of it is changed, its VMs start with that.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage volume scan vms web1_data
  pvc storage volume scan vms web1_data --force")]
pub struct Scan {
    #[command(flatten)]
    volume: Which,

    /// Also let go of it if nobody knows what it is held for
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    yes: Yes,
}

impl Scan {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let ([pool, name], scan) = (self.volume.at(), VolumeScan { force: Added(self.force) });
        let operation = PostStorageCephVolumePoolVolumeScan;
        if self.force {
            let sentence = format!(
                "If half of volume \"{name}\" of pool \"{pool}\" is changed, or a node of another \
                 version is changing it, its VMs will start with that, and may lose its \
                 data.\nLet go of volume \"{name}\""
            );
            return confirm::change(pvc, self.yes, &sentence, operation, [pool, name], &scan);
        }
        let message = pvc.client()?.change(operation, [pool, name], &scan)?;
        pvc.done(message);
        Ok(())
    }
}
