use clap::Args;
use pvc_api_types::operations::storage::{PoolCreation, PostStorageCephPool, TierWord};

use crate::choice::words;
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Add a pool
///
/// PGS is the number of placement groups, a power of two: about 100 for each OSD of the
/// tier, divided by the number of copies, and shared by all pools there.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage pool add vms 128
  pvc storage pool add fast 64 --tier nvme --replcfg copies=3,mincopies=2")]
pub struct Add {
    /// Name of the pool
    name: String,

    /// Number of placement groups
    pgs: u32,

    /// Class of the devices that hold the data; `default` is all of them
    #[arg(short, long, default_value = "default", value_parser = words::<TierWord>())]
    tier: TierWord,

    /// Number of copies of each object, and how many of them a write needs
    #[arg(long, value_name = "copies=N,mincopies=M", default_value = "copies=3,mincopies=2")]
    replcfg: String,
}

impl Add {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let creation = PoolCreation {
            pool: self.name,
            pgs: self.pgs,
            replcfg: self.replcfg,
            tier: Some(self.tier),
        };
        let message = pvc.client()?.change(PostStorageCephPool, [], &creation)?;
        pvc.done(message);
        Ok(())
    }
}
