use clap::Args;
use pvc_api_types::operations::network::{DeleteNetworkVni, NetworkDeletion};
use pvc_api_types::param::Added;

use super::Which;
use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Remove a network
///
/// With its leases and firewall rules. A network that a VM is plugged into is not removed;
/// `--force` removes it all the same, and such a VM cannot be started then.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc network remove web
  pvc network remove 1001 --dry-run")]
pub struct Remove {
    #[command(flatten)]
    network: Which,

    /// Also if the definition of a VM names it
    #[arg(short, long)]
    force: bool,

    #[command(flatten)]
    yes: Yes,
}

impl Remove {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let network = &self.network.network;
        let sentence = format!("Remove network \"{network}\" with its leases and firewall rules");
        let deletion = NetworkDeletion { force: Added(self.force) };
        confirm::change(pvc, self.yes, &sentence, DeleteNetworkVni, [network], &deletion)
    }
}
