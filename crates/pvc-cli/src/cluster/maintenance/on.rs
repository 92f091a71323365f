use clap::Args;
use pvc_api_types::operations::cluster::{Maintenance, MaintenanceRequest, PostStatus};

use crate::context::Pvc;
use crate::outcome::Outcome;

/// Switch maintenance mode on
///
/// Until it is switched off again no node is fenced, no VM is restarted on another
/// node, and no fault is recorded.
#[derive(Debug, Args)]
pub struct On {}

impl On {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let message =
            pvc.client()?.change(PostStatus, [], &MaintenanceRequest { state: Maintenance::On })?;
        pvc.done(message);
        Ok(())
    }
}
