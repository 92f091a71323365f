use clap::Args;
use pvc_api_types::SystemTemplate;
use pvc_api_types::operations::provisioner::GetProvisionerTemplateSystem;

use crate::context::Pvc;
use crate::format::Listing;
use crate::outcome::Outcome;
use crate::output::Table;
use crate::provisioner::{UNSET, list, or_unset};

/// List the system templates
///
/// LIMIT is a part of the name; `^` binds it to the beginning and `$` to the end. If it is
/// given and nothing fits, the command fails with exit code 3.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner template system list
  pvc provisioner template system list '^web' -f csv")]
pub struct List {
    /// Only those with this in their name
    limit: Option<String>,

    #[command(flatten)]
    list: Listing,
}

impl List {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let what = ("system template", "pvc provisioner template system list");
        let name = |one: &SystemTemplate| one.name.clone();
        list(pvc, &self.list, self.limit, GetProvisionerTemplateSystem, what, name, table)
    }
}

fn table(templates: &[SystemTemplate]) -> Table {
    let mut table = Table::new()
        .group("System Templates", &[("Name", 15), ("ID", 5)])
        .group("Resources", &[("vCPUs", 6), ("vRAM [M]", 9)])
        .group("Consoles", &[("Serial", 7), ("VNC", 4), ("VNC bind", 9)])
        .group(
            "Metadata",
            &[
                ("Limit", 6),
                ("Selector", 9),
                ("Autostart", 10),
                ("Mig. Method", 12),
                ("Max Downtime", 13),
            ],
        )
        .important(&["Name", "vCPUs", "vRAM [M]"]);
    let flag = |is: bool| if is { "True" } else { "False" };
    for template in templates {
        let downtime = template.migration_max_downtime.map(|ms| format!("{ms} ms"));
        table.row(vec![
            template.name.as_str().into(),
            template.id.to_string().into(),
            template.vcpu_count.to_string().into(),
            template.vram_mb.to_string().into(),
            flag(template.serial).into(),
            flag(template.vnc).into(),
            or_unset(template.vnc_bind.as_deref()).into(),
            or_unset(template.node_limit.as_deref()).into(),
            or_unset(template.node_selector.as_deref()).into(),
            flag(template.node_autostart).into(),
            or_unset(template.migration_method.as_deref()).into(),
            downtime.unwrap_or_else(|| UNSET.to_owned()).into(),
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
        let text = r##"[{"id": 1, "name": "small", "vcpu_count": 1, "vram_mb": 1024, "serial": true,
            "vnc": false, "vnc_bind": null, "node_limit": "hv1,hv2", "node_selector": "mem",
            "node_autostart": false, "migration_method": "live", "migration_max_downtime": 300},
            {"id": 12, "name": "large", "vcpu_count": 16, "vram_mb": 65536, "vnc": true,
            "vnc_bind": "0.0.0.0", "node_autostart": true}]"##;
        let found: Vec<SystemTemplate> = serde_json::from_str(text).unwrap();
        let table = table(&found).render(Paint::OFF);
        crate::golden::check("system-template-list.txt", &(table + "\n"));
    }
}
