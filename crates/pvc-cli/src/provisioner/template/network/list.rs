use clap::Args;
use pvc_api_types::NetworkTemplate;
use pvc_api_types::operations::provisioner::GetProvisionerTemplateNetwork;

use crate::context::Pvc;
use crate::format::Listing;
use crate::outcome::Outcome;
use crate::output::Table;
use crate::provisioner::{list, or_unset};

/// List the network templates
///
/// LIMIT is a part of the name; `^` binds it to the beginning and `$` to the end. If it is
/// given and nothing fits, the command fails with exit code 3.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner template network list
  pvc provisioner template network list '^web' -f csv")]
pub struct List {
    /// Only those with this in their name
    limit: Option<String>,

    #[command(flatten)]
    list: Listing,
}

impl List {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let what = ("network template", "pvc provisioner template network list");
        let name = |one: &NetworkTemplate| one.name.clone();
        list(pvc, &self.list, self.limit, GetProvisionerTemplateNetwork, what, name, table)
    }
}

fn table(templates: &[NetworkTemplate]) -> Table {
    let mut table = Table::new()
        .group("Network Templates", &[("Name", 18), ("ID", 5)])
        .group("Details", &[("MAC template", 13), ("Network VNIs", 10)]);
    for template in templates {
        let vnis: Vec<&str> = template.networks.iter().map(|net| net.vni.as_str()).collect();
        table.row(vec![
            template.name.as_str().into(),
            template.id.to_string().into(),
            or_unset(template.mac_template.as_deref()).into(),
            vnis.join(",").into(),
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
        let text = r##"[{"id": 1, "name": "web", "mac_template": "{prefix}:2f:1f:{vmid}{netid}",
            "networks": [{"vni": "1001"}, {"vni": "upstream"}]}, {"id": 2, "name": "none"}]"##;
        let found: Vec<NetworkTemplate> = serde_json::from_str(text).unwrap();
        let table = table(&found).render(Paint::OFF);
        crate::golden::check("network-template-list.txt", &(table + "\n"));
    }
}
