use clap::Args;
use pvc_model::request::StateRequest;

use super::state::{self, Wait};
use super::{Which, ahead};
use crate::confirm::{self, Yes};
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
    wait: Wait,

    #[command(flatten)]
    yes: Yes,
}

impl Restart {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let vm = &self.vm.domain;
        ahead::state(pvc, self.yes, vm, StateRequest::Restart, false)?;
        confirm::ask(pvc, self.yes, &format!("Restart VM \"{vm}\""))?;
        state::request(pvc, vm, "restart", false, self.wait)
    }
}
