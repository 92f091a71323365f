use clap::Args;
use pvc_api_types::operations::node::PostNodeNodeConfirmOff;
use pvc_api_types::param::Nothing;

use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Say that a dead node is without power
///
/// For a node that is `dead` and of which no BMC proves that it is off: there is none,
/// it is broken, or the whole server is gone. And for one that has said that it stops
/// or starts (`shutdown`, `stop`, `init`) and never comes back: nobody takes that for
/// dead. Your word is the proof then: its VMs are started elsewhere, as after a fence,
/// and `pvc node info` shows who has said so.
///
/// See for yourself that the server has no power, and that nobody can switch it on
/// while its VMs are started elsewhere: pull its plugs. If it runs, each of its VMs
/// runs twice, and two write to one disk. The guests of a node whose daemon was stopped
/// go on, and nobody sees them: look at the server itself. A node that shows a
/// sign of life is refused, and so is one in `run`, unless `fence_intervals` is 0; one
/// that is not `dead` is watched for 15 seconds.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc node info hv3               why it could not be fenced
  pvc node confirm-off hv3")]
pub struct ConfirmOff {
    /// The node
    #[arg(value_name = "NODE", add = crate::completion::nodes())]
    node: String,

    #[command(flatten)]
    yes: Yes,
}

impl ConfirmOff {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let node = self.node;
        let sentence = format!(
            "The VMs of node `{node}` will be started elsewhere. If its server is running after \
             all, they run twice and destroy their disks: two write to one.\nHave you seen that \
             node `{node}` is without power"
        );
        confirm::change(pvc, self.yes, &sentence, PostNodeNodeConfirmOff, [node.as_str()], &Nothing)
    }
}
