use clap::Args;

use crate::context::Pvc;
use crate::outcome::Outcome;

/// Switch maintenance mode off
///
/// From now on lost nodes are fenced and faults are recorded again.
#[derive(Debug, Args)]
pub struct Off {}

impl Off {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let message = pvc.client()?.set_maintenance(false)?;
        pvc.done(message);
        Ok(())
    }
}
