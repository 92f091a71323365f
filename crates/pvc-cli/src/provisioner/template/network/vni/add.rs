use clap::Args;
use pvc_api_types::operations::provisioner::{
    PostProvisionerTemplateNetworkTemplateNetVni, TemplateNetNew,
};

use crate::context::Pvc;
use crate::outcome::Outcome;

/// Add a network to a network template
///
/// A VM gets an interface for each. VNI is a number, or a network between the nodes:
/// `upstream`, `cluster` or `storage`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner template network vni add web 1001
  pvc provisioner template network vni add web 1001 --permit-duplicate")]
pub struct Add {
    /// Name of the template
    #[arg(value_name = "NAME", add = crate::completion::network_templates())]
    name: String,

    /// The network
    #[arg(value_name = "VNI")]
    vni: String,

    /// Add it also if it is there already
    #[arg(short = 'd', long)]
    permit_duplicate: bool,
}

impl Add {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        // PVC 1.0.3 takes any text for true.
        let new = TemplateNetNew { permit_duplicate: self.permit_duplicate.then_some(true) };
        let operation = PostProvisionerTemplateNetworkTemplateNetVni;
        let message = pvc.client()?.change(operation, [&self.name, &self.vni], &new)?;
        pvc.done(message);
        Ok(())
    }
}
