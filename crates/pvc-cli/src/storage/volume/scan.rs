use clap::Args;
use pvc_api_types::operations::storage::PostStorageCephVolumePoolVolumeScan;
use pvc_api_types::param::Nothing;

use super::Which;
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Make the record of a volume say what is there
///
/// For a volume that was made, changed or removed by other means, such as `rbd`: it and
/// its snapshots are looked at, and the cluster's record is written, or removed, to fit.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage volume scan vms web1_data")]
pub struct Scan {
    #[command(flatten)]
    volume: Which,
}

impl Scan {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let message = pvc.client()?.change(
            PostStorageCephVolumePoolVolumeScan,
            self.volume.at(),
            &Nothing,
        )?;
        pvc.done(message);
        Ok(())
    }
}
