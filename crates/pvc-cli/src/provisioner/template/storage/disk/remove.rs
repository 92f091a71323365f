use clap::Args;
use pvc_api_types::operations::provisioner::DeleteProvisionerTemplateStorageTemplateDiskDiskId;
use pvc_api_types::param::Nothing;

use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Remove a disk from a storage template
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner template storage disk remove web sdb")]
pub struct Remove {
    /// Name of the template
    #[arg(value_name = "NAME", add = crate::completion::storage_templates())]
    name: String,

    /// The disk
    #[arg(value_name = "DISK")]
    part: String,

    #[command(flatten)]
    yes: Yes,
}

impl Remove {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let (name, part) = (self.name.as_str(), self.part.as_str());
        let sentence = format!("Remove disk \"{part}\" from storage template \"{name}\"");
        let operation = DeleteProvisionerTemplateStorageTemplateDiskDiskId;
        confirm::change(pvc, self.yes, &sentence, operation, [name, part], &Nothing)
    }
}
