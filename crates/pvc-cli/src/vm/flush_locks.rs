use clap::Args;
use pvc_api_types::operations::vm::PostVmVmLocks;
use pvc_api_types::param::Nothing;

use super::Which;
use crate::context::Pvc;
use crate::outcome::Outcome;
use crate::task::{self, TaskWait};

/// Remove the locks that a dead node left on a VM's volumes
///
/// The VM must be stopped. Make sure that it really does not run anywhere, above all
/// not on the node that held the locks: two guests on one volume destroy it. Look, too,
/// whether anything else has the volume (`rbd status`): it loses it with the lock.
#[derive(Debug, Args)]
pub struct FlushLocks {
    #[command(flatten)]
    vm: Which,

    #[command(flatten)]
    wait: TaskWait,
}

impl FlushLocks {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let task = pvc.client()?.submit(PostVmVmLocks, [&self.vm.domain], &Nothing)?;
        task::finish(pvc, task, self.wait)
    }
}
