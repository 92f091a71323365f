use clap::Args;
use pvc_client::{Action, Placement};

use super::{Which, state};
use crate::context::Pvc;
use crate::outcome::Outcome;

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
        state::place(pvc, &self.vm.domain, &placement)
    }
}
