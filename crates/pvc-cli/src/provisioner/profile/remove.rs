use clap::Args;
use pvc_api_types::operations::provisioner::DeleteProvisionerProfileProfile;
use pvc_api_types::param::Nothing;

use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Remove a profile
///
/// What it consists of stays, and so do the VMs that were made from it; their guests find no
/// userdata any more.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner profile remove small --dry-run")]
pub struct Remove {
    /// Its name
    #[arg(value_name = "NAME", add = crate::completion::profiles())]
    name: String,

    #[command(flatten)]
    yes: Yes,
}

impl Remove {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let sentence = format!("Remove profile \"{}\"", self.name);
        let at = [self.name.as_str()];
        let operation = DeleteProvisionerProfileProfile;
        confirm::change(pvc, self.yes, &sentence, operation, at, &Nothing)
    }
}
