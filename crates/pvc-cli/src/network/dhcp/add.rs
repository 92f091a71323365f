use clap::Args;
use pvc_api_types::operations::network::{LeaseCreation, PostNetworkVniLease};

use crate::context::Pvc;
use crate::network::Which;
use crate::outcome::Outcome;

/// Reserve an address for a MAC address
///
/// DHCP gives it to no other, and the host is known by its name in the network's domain. A
/// guest that has another address gets this one when it asks anew.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc network dhcp add web 10.20.1.10 web1 52:54:00:12:34:56
  pvc network dhcp add 1001 10.20.1.11 '' 52-54-00-12-34-57")]
pub struct Add {
    #[command(flatten)]
    network: Which,

    /// The IPv4 address
    #[arg(value_name = "IPADDR")]
    ipaddr: String,

    /// Name of the host; '' for none
    #[arg(value_name = "HOSTNAME")]
    hostname: String,

    /// The MAC address
    #[arg(value_name = "MACADDR")]
    macaddr: String,
}

impl Add {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let creation = LeaseCreation {
            macaddress: self.macaddr,
            ipaddress: self.ipaddr,
            hostname: Some(self.hostname),
        };
        let network = &self.network.network;
        let message = pvc.client()?.change(PostNetworkVniLease, [network], &creation)?;
        pvc.done(message);
        Ok(())
    }
}
