use clap::Args;
use pvc_api_types::operations::cluster::{Maintenance, MaintenanceRequest, PostStatus};

use crate::context::Pvc;
use crate::outcome::Outcome;

/// Switch maintenance mode off
///
/// From now on lost nodes are fenced and faults are recorded again.
#[derive(Debug, Args)]
pub struct Off {}

impl Off {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let message = pvc.client()?.change(
            PostStatus,
            [],
            &MaintenanceRequest { state: Maintenance::Off },
        )?;
        pvc.done(message);
        Ok(())
    }
}
