use clap::Args;
use pvc_api_types::operations::fault::DeleteFaultsFaultId;
use pvc_api_types::param::Nothing;

use crate::context::Pvc;
use crate::outcome::Outcome;

/// Delete faults
///
/// A fault whose condition still holds comes back, as a new one.
#[derive(Debug, Args)]
pub struct Delete {
    /// The faults, by their ids
    #[arg(required = true, value_name = "FAULT_ID", add = crate::completion::faults())]
    fault_ids: Vec<String>,

    /// Option of PVC 1.0.3, which asks; here it says nothing
    #[arg(short, long, hide = true)]
    yes: bool,
}

impl Delete {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let Delete { fault_ids, yes: _ } = self;
        for id in &fault_ids {
            let message = pvc.client()?.change(DeleteFaultsFaultId, [id], &Nothing)?;
            pvc.done(message);
        }
        Ok(())
    }
}
