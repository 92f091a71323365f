use clap::Args;
use pvc_model::request::StateRequest;

use super::state::{self, Wait};
use super::{Which, ahead};
use crate::confirm::{self, Yes};
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
    wait: Wait,

    #[command(flatten)]
    yes: Yes,
}

impl Shutdown {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let vm = &self.vm.domain;
        ahead::state(pvc, self.yes, vm, StateRequest::Shutdown, false)?;
        confirm::ask(pvc, self.yes, &format!("Shut down VM \"{vm}\""))?;
        state::request(pvc, vm, "shutdown", false, self.wait)
    }
}
