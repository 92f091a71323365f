use clap::Args;
use pvc_api_types::operations::storage::{PgsChange, PutStorageCephPoolPool};

use super::Which;
use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Change the number of placement groups
///
/// Ceph splits or merges placement groups and moves data for it, which takes a while and
/// slows down what else the storage does.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage pool set-pgs vms 256
  pvc storage pool set-pgs vms 256 --dry-run")]
pub struct SetPgs {
    #[command(flatten)]
    pool: Which,

    /// Number of placement groups, a power of two
    pgs: u32,

    #[command(flatten)]
    yes: Yes,
}

impl SetPgs {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let (pool, pgs) = (&self.pool.name, self.pgs);
        let sentence = format!("Set pool \"{pool}\" to \"{pgs}\" placement groups");
        let change = PgsChange { pgs };
        confirm::change(pvc, self.yes, &sentence, PutStorageCephPoolPool, [pool], &change)
    }
}
