use clap::Args;

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
        confirm::ask(pvc, self.yes, "Delete all faults")?;
        let message = pvc.client()?.delete_all_faults()?;
        pvc.done(message);
        Ok(())
    }
}
