use clap::Args;
use pvc_model::request::StateRequest;

use super::Which;
use super::state::{self, How, StateCommand};
use crate::confirm::Yes;
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Restart a VM
///
/// The guest is asked to shut down and then started again, with its present definition.
/// One that does not shut down in time is switched off.
#[derive(Debug, Args)]
pub struct Restart {
    #[command(flatten)]
    vm: Which,

    #[command(flatten)]
    how: How,

    #[command(flatten)]
    yes: Yes,
}

impl Restart {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let vm = &self.vm.domain;
        let question = Some((self.yes, format!("Restart VM \"{vm}\"")));
        let command = StateCommand { vm, state: StateRequest::Restart, force: false, question };
        state::request(pvc, &command, self.how)
    }
}
