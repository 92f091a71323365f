use clap::Args;
use pvc_api_types::operations::provisioner::{
    PostProvisionerTemplateStorage, StorageTemplateAddition,
};

use crate::context::Pvc;
use crate::outcome::Outcome;

/// Add a storage template
///
/// Its disks are added by `pvc provisioner template storage disk add`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner template storage add web")]
pub struct Add {
    /// Name of the template
    #[arg(value_name = "NAME")]
    name: String,
}

impl Add {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let addition = StorageTemplateAddition { name: self.name };
        let message = pvc.client()?.change(PostProvisionerTemplateStorage, [], &addition)?;
        pvc.done(message);
        Ok(())
    }
}
