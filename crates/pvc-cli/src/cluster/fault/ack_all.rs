use clap::Args;
use pvc_api_types::operations::fault::PutFaults;
use pvc_api_types::param::Nothing;

use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Acknowledge all faults
#[derive(Debug, Args)]
pub struct AckAll {
    #[command(flatten)]
    yes: Yes,
}

impl AckAll {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        confirm::change(pvc, self.yes, "Acknowledge all faults", PutFaults, [], &Nothing)
    }
}
