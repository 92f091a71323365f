use clap::Args;
use pvc_model::request::StateRequest;

use super::Which;
use super::state::{self, How, StateCommand};
use crate::confirm::Yes;
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Shut a VM down and mark it as not in use
///
/// A disabled VM is not started by anything but `pvc vm start`, and is shown apart. It
/// can be used for VMs that shall be kept but not run.
#[derive(Debug, Args)]
pub struct Disable {
    #[command(flatten)]
    vm: Which,

    /// Do it even to a VM that is the mirror of one elsewhere, or without letting the guest shut
    /// down
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    how: How,

    #[command(flatten)]
    yes: Yes,
}

impl Disable {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let vm = &self.vm.domain;
        let question = Some((self.yes, format!("Shut down and disable VM \"{vm}\"")));
        let command =
            StateCommand { vm, state: StateRequest::Disable, force: self.force, question };
        state::request(pvc, &command, self.how)
    }
}
