use clap::Args;
use pvc_api_types::operations::vm::{PlaceAction, Placement};
use pvc_api_types::param::Flag;

use super::ahead::Plan;
use super::{Which, state};
use crate::context::Pvc;
use crate::outcome::Outcome;
use crate::plan;

/// Bring a migrated VM back to its own node
#[derive(Debug, Args)]
pub struct Unmigrate {
    #[command(flatten)]
    vm: Which,

    /// Return only when the VM has arrived
    #[arg(short, long)]
    wait: bool,

    /// Do it live or not at all: never shut the VM down for it
    #[arg(long)]
    force_live: bool,

    #[command(flatten)]
    dry_run: Plan,
}

impl Unmigrate {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let placement = Placement {
            action: PlaceAction::Unmigrate,
            node: None,
            force: Flag(false),
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
