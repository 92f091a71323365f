use clap::Args;
use pvc_model::request::StateRequest;

use super::Which;
use super::state::{self, How, StateCommand};
use crate::confirm::Yes;
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Switch a VM off
///
/// The guest is not asked: what it has not written to its disks is lost. `pvc vm
/// shutdown` is gentler.
#[derive(Debug, Args)]
pub struct Stop {
    #[command(flatten)]
    vm: Which,

    /// Do it even to a VM that is the mirror of one elsewhere, or that a node of PVC
    /// 1.0.3 is moving
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    how: How,

    #[command(flatten)]
    yes: Yes,
}

impl Stop {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let vm = &self.vm.domain;
        let question = Some((self.yes, format!("Forcibly stop VM \"{vm}\"")));
        let command = StateCommand { vm, state: StateRequest::Stop, force: self.force, question };
        state::request(pvc, &command, self.how)
    }
}
