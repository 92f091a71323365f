use clap::Args;
use pvc_api_types::operations::vm::{PlaceAction, Placement};
use pvc_api_types::param::Flag;

use super::ahead::Plan;
use super::{Which, state};
use crate::context::Pvc;
use crate::outcome::Outcome;
use crate::plan;

/// Move a VM to another node for good
///
/// A running VM is moved live if its migration method allows it, else shut down and
/// started again. It stays there; `pvc vm migrate` moves for a while.
#[derive(Debug, Args)]
pub struct Move {
    #[command(flatten)]
    vm: Which,

    /// The node to move it to; the cluster chooses if none is given
    #[arg(short, long, value_name = "NODE", add = crate::completion::nodes())]
    target: Option<String>,

    /// Move it to a flushed node as well, to try that node before it takes VMs again
    #[arg(short, long)]
    force: bool,

    /// Return only when the VM has arrived
    #[arg(short, long)]
    wait: bool,

    /// Do it live or not at all: never shut the VM down for it
    #[arg(long)]
    force_live: bool,

    #[command(flatten)]
    dry_run: Plan,
}

impl Move {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let placement = Placement {
            action: PlaceAction::Move,
            node: self.target,
            force: Flag(self.force),
            wait: Flag(self.wait),
            force_live: Flag(self.force_live),
        };
        if self.dry_run.is_wanted() {
            let plan = plan::of_move(pvc.client()?, &self.vm.domain, &placement)?;
            plan::print_move(pvc, &plan);
            return Ok(());
        }
        state::place(pvc, &self.vm.domain, &placement)
    }
}
