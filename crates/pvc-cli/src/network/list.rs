use clap::Args;
use pvc_api_types::Network;
use pvc_api_types::operations::network::{GetNetwork, NetworkFilter};

use crate::context::Pvc;
use crate::format::{Listing, or_empty};
use crate::outcome::Outcome;
use crate::output::{Cell, Colour, Table};

/// List the networks
///
/// LIMIT is a regular expression for the VNI or the description. If one is given and no
/// network fits, the command fails with exit code 3.
#[derive(Debug, Args)]
pub struct List {
    /// Only networks whose VNI or description fits
    limit: Option<String>,

    #[command(flatten)]
    list: Listing,
}

impl List {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        self.list.check()?;
        let answer = or_empty(pvc.client()?.read(
            GetNetwork,
            [],
            &NetworkFilter { limit: self.limit.clone() },
        ))?;
        let what = ("network", "pvc network list");
        let networks: Option<Vec<Network>> =
            self.list.read(pvc, &answer, self.limit.is_some(), what)?;
        let Some(mut networks) = networks else { return Ok(()) };
        networks.sort_by_key(|network| network.vni);
        self.list.print(pvc, &networks, |network| network.vni.to_string(), table)
    }
}

fn table(networks: &[Network]) -> Table {
    let mut table = Table::new().group("Networks", &[("VNI", 5), ("Description", 12)]).group(
        "Config",
        &[
            ("Type", 8),
            ("MTU", 4),
            ("Domain", 6),
            ("IPv6", 6),
            ("DHCPv6", 7),
            ("IPv4", 6),
            ("DHCPv4", 7),
        ],
    );
    for network in networks {
        table.row(vec![
            network.vni.to_string().into(),
            network.description.as_str().into(),
            network.r#type.as_str().into(),
            network.mtu.as_str().into(),
            network.domain.as_str().into(),
            flag(is_set(&network.ip6.network)),
            flag(&network.ip6.dhcp_flag),
            flag(is_set(&network.ip4.network)),
            flag(&network.ip4.dhcp_flag),
        ]);
    }
    table
}

/// Whether there are addresses of a family.
fn is_set(network: &str) -> &'static str {
    if matches!(network, "" | "None") { "False" } else { "True" }
}

/// `True`, `False` or `None`.
pub fn flag(word: &str) -> Cell {
    let colour = if matches!(word, "False" | "None") { Colour::Blue } else { Colour::Green };
    Cell::coloured(word, colour)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Paint;

    #[test]
    fn the_table() {
        let networks: Vec<Network> =
            serde_json::from_str(include_str!("../../tests/wire/networks.json")).unwrap();
        let text = table(&networks).render(Paint::OFF) + "\n";
        crate::golden::check("network-list.txt", &text);
    }
}
