use clap::Args;
use pvc_client::{Action, Placement};

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

    /// Change nothing; say where the VM would go and why not elsewhere
    #[arg(long)]
    dry_run: bool,
}

impl Unmigrate {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let placement = Placement {
            action: Action::Unmigrate,
            node: None,
            force: false,
            wait: self.wait,
            force_live: self.force_live,
        };
        if self.dry_run {
            let plan = pvc.client()?.plan_placement(&self.vm.domain, &placement)?;
            plan::print_move(pvc, &plan);
            return Ok(());
        }
        state::place(pvc, &self.vm.domain, &placement)
    }
}
