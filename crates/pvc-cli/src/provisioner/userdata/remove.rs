use clap::Args;
use pvc_api_types::operations::provisioner::DeleteProvisionerUserdataUserdata;
use pvc_api_types::param::Nothing;

use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Remove userdata
///
/// One that a profile uses stays, and the refusal names the profile.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner userdata remove small --dry-run")]
pub struct Remove {
    /// Its name
    #[arg(value_name = "NAME", add = crate::completion::userdata())]
    name: String,

    #[command(flatten)]
    yes: Yes,
}

impl Remove {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let sentence = format!("Remove userdata \"{}\"", self.name);
        let at = [self.name.as_str()];
        let operation = DeleteProvisionerUserdataUserdata;
        confirm::change(pvc, self.yes, &sentence, operation, at, &Nothing)
    }
}
