use clap::Args;
use pvc_api_types::Lease;
use pvc_api_types::operations::network::{GetNetworkVni, GetNetworkVniLease, LeaseFilter};

use crate::context::Pvc;
use crate::format::{Listing, or_empty};
use crate::missing;
use crate::network::Which;
use crate::outcome::Outcome;
use crate::output::Table;

/// List the leases of a network
///
/// Reserved addresses, and those that DHCP has given. LIMIT is a regular expression for the
/// MAC address. If one is given and no lease fits, the command fails with exit code 3.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc network dhcp list web
  pvc network dhcp list 1001 --static -f json")]
pub struct List {
    #[command(flatten)]
    network: Which,

    /// Only leases whose MAC address fits
    limit: Option<String>,

    /// Only reservations
    #[arg(short = 's', long = "static")]
    reserved: bool,

    #[command(flatten)]
    list: Listing,
}

impl List {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        self.list.check()?;
        let reserved = self.reserved.then_some(true);
        let filter = LeaseFilter { limit: self.limit.clone(), reserved };
        let network = [self.network.network.as_str()];
        let answer = or_empty(pvc.client()?.read(GetNetworkVniLease, network, &filter));
        let answer =
            answer.map_err(|error| missing::failure(pvc, error, GetNetworkVni, network))?;
        let what = ("lease", "pvc network dhcp list");
        let leases: Option<Vec<Lease>> =
            self.list.read(pvc, &answer, self.limit.is_some(), what)?;
        let Some(mut leases) = leases else { return Ok(()) };
        leases.sort_by(|one, other| one.hostname.cmp(&other.hostname));
        let bare =
            |lease: &Lease| format!("{}|{}|{}", lease.mac_address, address(lease), lease.hostname);
        self.list.print(pvc, &leases, bare, table)
    }
}

fn address(lease: &Lease) -> &str {
    lease.ip6_address.as_deref().unwrap_or(&lease.ip4_address)
}

fn table(leases: &[Lease]) -> Table {
    let columns = [("Hostname", 9), ("IP Address", 11), ("MAC Address", 13), ("Timestamp", 10)];
    let mut table = Table::new().group("Leases", &columns);
    for lease in leases {
        table.row(vec![
            lease.hostname.as_str().into(),
            address(lease).into(),
            lease.mac_address.as_str().into(),
            lease.timestamp.as_str().into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Paint;

    #[test]
    fn the_table() {
        let text = r#"[{"hostname": "web1", "ip4_address": "10.20.1.10",
                        "mac_address": "52:54:00:12:34:56", "timestamp": "static"},
                       {"hostname": "None", "ip4_address": "10.20.1.101",
                        "mac_address": "52:54:00:12:34:57", "timestamp": "1731672000"},
                       {"hostname": "web6", "ip4_address": "", "ip6_address": "2001:db8:1::9",
                        "duid": "00:03:00:01:52:54:00:12:34:58",
                        "mac_address": "52:54:00:12:34:58", "timestamp": "1731672000"}]"#;
        let leases: Vec<Lease> = serde_json::from_str(text).unwrap();
        crate::golden::check("lease-list.txt", &(table(&leases).render(Paint::OFF) + "\n"));
    }
}
