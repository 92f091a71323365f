use clap::Args;
use pvc_api_types::operations::fault::PutFaultsFaultId;
use pvc_api_types::param::Nothing;

use crate::context::Pvc;
use crate::outcome::Outcome;

/// Acknowledge faults
///
/// An acknowledged fault no longer lowers the cluster's health. It stays in the list
/// until it is deleted.
#[derive(Debug, Args)]
pub struct Ack {
    /// The faults, by their ids
    #[arg(required = true, value_name = "FAULT_ID", add = crate::completion::faults())]
    fault_ids: Vec<String>,
}

impl Ack {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        for id in &self.fault_ids {
            let message = pvc.client()?.change(PutFaultsFaultId, [id], &Nothing)?;
            pvc.done(message);
        }
        Ok(())
    }
}
