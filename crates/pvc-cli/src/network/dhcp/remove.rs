use clap::Args;
use pvc_api_types::operations::network::DeleteNetworkVniLeaseMac;
use pvc_api_types::param::Nothing;

use crate::confirm::{self, Yes};
use crate::context::Pvc;
use crate::network::Which;
use crate::outcome::Outcome;

/// Remove a reservation, or a lease
///
/// A reservation goes first; what DHCP has given then ends by itself, or is removed by the
/// same command.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc network dhcp remove web 52:54:00:12:34:56
  pvc network dhcp remove web 10.20.1.10")]
pub struct Remove {
    #[command(flatten)]
    network: Which,

    /// Its MAC address, host name, address, or DUID of IPv6
    #[arg(value_name = "MACADDR")]
    macaddr: String,

    #[command(flatten)]
    yes: Yes,
}

impl Remove {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let (network, which) = (&self.network.network, &self.macaddr);
        let sentence = format!("Remove the lease of \"{which}\" from network \"{network}\"");
        let at = [network.as_str(), which.as_str()];
        confirm::change(pvc, self.yes, &sentence, DeleteNetworkVniLeaseMac, at, &Nothing)
    }
}
