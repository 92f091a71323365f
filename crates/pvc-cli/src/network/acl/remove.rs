use clap::Args;
use pvc_api_types::operations::network::DeleteNetworkVniAclDescription;
use pvc_api_types::param::Nothing;

use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::network::Which;
use crate::outcome::Outcome;

/// Remove a firewall rule
///
/// Those behind it move by one.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc network acl remove web allow-ssh")]
pub struct Remove {
    #[command(flatten)]
    network: Which,

    /// Name of the rule
    #[arg(value_name = "RULE")]
    rule: String,

    #[command(flatten)]
    yes: Yes,
}

impl Remove {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let (network, rule) = (&self.network.network, &self.rule);
        let sentence = format!("Remove rule \"{rule}\" from network \"{network}\"");
        let at = [network.as_str(), rule.as_str()];
        confirm::change(pvc, self.yes, &sentence, DeleteNetworkVniAclDescription, at, &Nothing)
    }
}
