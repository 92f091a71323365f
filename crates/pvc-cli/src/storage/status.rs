use clap::Args;
use pvc_api_types::operations::storage_report::GetStorageCephStatus;

use super::report;
use crate::context::Pvc;
use crate::format::{MaybeJson, TextFormat};
use crate::outcome::Outcome;

/// Show the state of the storage
///
/// In Ceph's own words, as the primary node collected them last. On one machine alone:
/// what there is in its directory. The heading says how old it is.
#[derive(Debug, Args)]
pub struct Status {
    #[arg(short, long, value_enum, default_value_t = TextFormat::Pretty, help = "How to print it")]
    format: TextFormat,
}

impl Status {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let answer = pvc.client()?.read_soon(GetStorageCephStatus)?;
        if !self.format.print_payload(pvc, &answer)? {
            report::print(pvc, "Storage status", &answer)?;
        }
        Ok(())
    }
}
