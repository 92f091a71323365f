use clap::Args;
use pvc_api_types::operations::provisioner::{
    NetworkTemplateAddition, PostProvisionerTemplateNetwork,
};

use crate::context::Pvc;
use crate::outcome::Outcome;

/// Add a network template
///
/// Its networks are added by `pvc provisioner template network vni add`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner template network add web
  pvc provisioner template network add web -m '{prefix}:2f:1f:{vmid}{netid}'")]
pub struct Add {
    /// Name of the template
    #[arg(value_name = "NAME")]
    name: String,

    /// Pattern of MAC addresses, with `{prefix}`, `{vmid}` and `{netid}` [default: random ones]
    #[arg(short, long, value_name = "PATTERN")]
    mac_template: Option<String>,
}

impl Add {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let addition = NetworkTemplateAddition { name: self.name, mac_template: self.mac_template };
        let message = pvc.client()?.change(PostProvisionerTemplateNetwork, [], &addition)?;
        pvc.done(message);
        Ok(())
    }
}
