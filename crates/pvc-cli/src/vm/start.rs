use clap::Args;
use pvc_model::request::StateRequest;

use super::Which;
use super::state::{self, How, StateCommand};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Start a VM
///
/// The VM starts on the node it is assigned to. Starting a VM that runs already changes
/// nothing and succeeds; one that has failed is tried again.
///
/// Without `--wait` the command returns as soon as the cluster has recorded the request.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc vm start web1
  pvc vm start web1 --wait=2m     fail unless it runs within two minutes")]
pub struct Start {
    #[command(flatten)]
    vm: Which,

    /// Do it even to a VM that is the mirror of one elsewhere
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    how: How,
}

impl Start {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let vm = &self.vm.domain;
        let command =
            StateCommand { vm, state: StateRequest::Start, force: self.force, question: None };
        state::request(pvc, &command, self.how)
    }
}
