use clap::Args;
use pvc_api_types::operations::provisioner::DeleteProvisionerTemplateSystemTemplate;
use pvc_api_types::param::Nothing;

use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Remove a system template
///
/// One that a profile uses stays, and the refusal names the profile.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner template system remove small --dry-run")]
pub struct Remove {
    /// Its name
    #[arg(value_name = "NAME", add = crate::completion::system_templates())]
    name: String,

    #[command(flatten)]
    yes: Yes,
}

impl Remove {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let sentence = format!("Remove system template \"{}\"", self.name);
        let at = [self.name.as_str()];
        let operation = DeleteProvisionerTemplateSystemTemplate;
        confirm::change(pvc, self.yes, &sentence, operation, at, &Nothing)
    }
}
