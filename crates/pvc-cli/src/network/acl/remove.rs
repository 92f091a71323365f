use clap::Args;
use pvc_api_types::operations::network::{AclDeletion, DeleteNetworkVniAclDescription};

use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::network::Which;
use crate::network::confirm::ConfirmWithin;
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
    confirm: ConfirmWithin,

    #[command(flatten)]
    yes: Yes,
}

impl Remove {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let (network, rule) = (&self.network.network, &self.rule);
        let sentence = format!("Remove rule \"{rule}\" from network \"{network}\"");
        let at = [network.as_str(), rule.as_str()];
        let confirm = self.confirm.seconds(pvc, DeleteNetworkVniAclDescription)?;
        let deletion = AclDeletion { confirm };
        confirm::change(pvc, self.yes, &sentence, DeleteNetworkVniAclDescription, at, &deletion)
    }
}
