use clap::Args;
use pvc_model::request::StateRequest;

use super::Which;
use super::state::{self, How, StateCommand};
use crate::confirm::Yes;
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Shut a VM down
///
/// The guest is asked to shut down, as by its power button. One that has not done so in
/// time is switched off.
#[derive(Debug, Args)]
pub struct Shutdown {
    #[command(flatten)]
    vm: Which,

    #[command(flatten)]
    how: How,

    #[command(flatten)]
    yes: Yes,
}

impl Shutdown {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let vm = &self.vm.domain;
        let question = Some((self.yes, format!("Shut down VM \"{vm}\"")));
        let command = StateCommand { vm, state: StateRequest::Shutdown, force: false, question };
        state::request(pvc, &command, self.how)
    }
}
