use clap::Args;
use pvc_api_types::Network;

use crate::context::Pvc;
use crate::format::{ListFormat, MaybeJson, Shape};
use crate::outcome::{Failure, Outcome};
use crate::output::{Cell, Colour, Table};

/// List the networks
///
/// LIMIT is a regular expression for the VNI or the description. If one is given and no
/// network fits, the command fails with exit code 3.
#[derive(Debug, Args)]
pub struct List {
    /// Only networks whose VNI or description fits
    limit: Option<String>,

    #[arg(short, long, value_enum, default_value_t = ListFormat::Pretty, help = "How to print it")]
    format: ListFormat,

    #[command(flatten)]
    shape: Shape,
}

impl List {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        self.shape.check(self.format)?;
        let networks = crate::format::or_empty(pvc.client()?.networks_like(self.limit.as_deref()))?;
        if self.limit.is_some() && networks.is_empty() {
            return Err(Failure::not_found("no network fits").hint("`pvc network list` shows all of them"));
        }
        if self.format.print_payload(pvc, &networks)? {
            return Ok(());
        }
        let mut networks = networks.read()?;
        networks.sort_by_key(|network| network.vni);
        if self.format == ListFormat::Raw {
            networks.iter().for_each(|network| pvc.out.line(network.vni.to_string()));
        } else {
            self.shape.print(pvc, self.format, table(&networks))?;
        }
        Ok(())
    }
}

fn table(networks: &[Network]) -> Table {
    let mut table = Table::new().group("Networks", &[("VNI", 5), ("Description", 12)]).group(
        "Config",
        &[("Type", 8), ("MTU", 4), ("Domain", 6), ("IPv6", 6), ("DHCPv6", 7), ("IPv4", 6), ("DHCPv4", 7)],
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
