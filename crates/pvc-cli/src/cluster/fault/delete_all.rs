use clap::Args;
use pvc_api_types::operations::fault::DeleteFaults;
use pvc_api_types::param::Nothing;

use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Delete all faults
///
/// Those whose conditions still hold come back, as new ones.
#[derive(Debug, Args)]
pub struct DeleteAll {
    #[command(flatten)]
    yes: Yes,
}

impl DeleteAll {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        confirm::change(pvc, self.yes, "Delete all faults", DeleteFaults, [], &Nothing)
    }
}
