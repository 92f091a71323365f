use clap::Args;
use pvc_api_types::operations::node::DeleteNodeNode;
use pvc_api_types::param::Nothing;

use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Remove the record of a node that is gone for good
///
/// Nothing may be there any more: the node is `stop` or `fenced`, no VM is assigned to
/// it, also none that is off, and no OSD of it is recorded. A coordinator is taken out
/// of the configuration of every node first. The command says what is in the way, and
/// what to do about it. The node is watched for 15 seconds; a sign of life refuses.
///
/// VMs no longer return to it, and faults about it are deleted, but for that of its
/// fence. Limits of VMs to it stay, and are named. If its daemon is started once more it
/// makes the record anew, as that of a new node: erase its disk. Where the packet filter
/// is on, others let it in no more once its name is out of their `all_nodes`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc node remove hv3 --dry-run   what is in the way
  pvc node remove hv3")]
pub struct Remove {
    /// The node
    #[arg(value_name = "NODE", add = crate::completion::nodes())]
    node: String,

    #[command(flatten)]
    yes: Yes,
}

impl Remove {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let node = self.node;
        let sentence = format!(
            "All that is recorded of node `{node}` will be gone, its log among it.\nRemove node \
             `{node}` from the cluster"
        );
        confirm::change(pvc, self.yes, &sentence, DeleteNodeNode, [node.as_str()], &Nothing)
    }
}
