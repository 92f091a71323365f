use clap::Args;
use pvc_api_types::operations::provisioner::DeleteProvisionerOvaOva;
use pvc_api_types::param::Nothing;

use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Remove an OVA
///
/// With it go its profiles, its templates and its volumes, which are in the trash of their
/// pool then. VMs that were made from it stay.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner ova remove appliance --dry-run")]
pub struct Remove {
    /// Its name
    #[arg(value_name = "NAME", add = crate::completion::ovas())]
    name: String,

    #[command(flatten)]
    yes: Yes,
}

impl Remove {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let sentence = format!("Remove OVA \"{}\" and its volumes", self.name);
        let at = [self.name.as_str()];
        let operation = DeleteProvisionerOvaOva;
        confirm::change(pvc, self.yes, &sentence, operation, at, &Nothing)
    }
}
