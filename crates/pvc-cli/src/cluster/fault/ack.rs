use clap::Args;

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
            let message = pvc.client()?.acknowledge_fault(id)?;
            pvc.done(message);
        }
        Ok(())
    }
}
