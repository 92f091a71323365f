use clap::Args;
use pvc_api_types::operations::provisioner::DeleteProvisionerTemplateNetworkTemplateNetVni;
use pvc_api_types::param::Nothing;

use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Remove a network from a network template
///
/// However often it is there.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner template network vni remove web 1001")]
pub struct Remove {
    /// Name of the template
    #[arg(value_name = "NAME", add = crate::completion::network_templates())]
    name: String,

    /// The network
    #[arg(value_name = "VNI")]
    part: String,

    #[command(flatten)]
    yes: Yes,
}

impl Remove {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let (name, part) = (self.name.as_str(), self.part.as_str());
        let sentence = format!("Remove network \"{part}\" from network template \"{name}\"");
        let operation = DeleteProvisionerTemplateNetworkTemplateNetVni;
        confirm::change(pvc, self.yes, &sentence, operation, [name, part], &Nothing)
    }
}
