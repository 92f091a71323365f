use clap::Args;
use pvc_api_types::Ova;
use pvc_api_types::operations::provisioner::GetProvisionerOva;

use crate::context::Pvc;
use crate::format::Listing;
use crate::outcome::Outcome;
use crate::output::Table;
use crate::provisioner::{UNSET, list};

/// List the OVAs and their disks
///
/// LIMIT is a part of the name; `^` binds it to the beginning and `$` to the end. If it is
/// given and nothing fits, the command fails with exit code 3.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner ova list
  pvc provisioner ova list '^web' -f csv")]
pub struct List {
    /// Only those with this in their name
    limit: Option<String>,

    #[command(flatten)]
    list: Listing,
}

impl List {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let what = ("OVA", "pvc provisioner ova list");
        let name = |one: &Ova| one.name.clone();
        list(pvc, &self.list, self.limit, GetProvisionerOva, what, name, table)
    }
}

/// A row for each disk.
fn table(ovas: &[Ova]) -> Table {
    let mut table = Table::new().group("OVAs", &[("Name", 18), ("ID", 5)]).group(
        "Details",
        &[("Disk ID", 8), ("Size [GB]", 10), ("Pool", 5), ("Format", 7), ("Source Volume", 13)],
    );
    for ova in ovas {
        let id = ova.id.to_string();
        let mut row = |details: [&str; 5]| {
            let cells = [ova.name.as_str(), id.as_str()].into_iter().chain(details);
            table.row(cells.map(Into::into).collect());
        };
        if ova.volumes.is_empty() {
            row([UNSET; 5]);
        }
        for volume in &ova.volumes {
            let size = volume.disk_size_gb.to_string();
            row([&volume.disk_id, &size, &volume.pool, &volume.volume_format, &volume.volume_name]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Paint;

    #[test]
    fn the_table() {
        let text = r##"[{"id": 1, "name": "appliance", "volumes": [
            {"pool": "vms", "volume_name": "ova_appliance_sda", "volume_format": "raw",
             "disk_id": "sda", "disk_size_gb": 20},
            {"pool": "vms", "volume_name": "ova_appliance_sdb", "volume_format": "vmdk",
             "disk_id": "sdb", "disk_size_gb": 1}]},
            {"id": 2, "name": "diskless", "volumes": []}]"##;
        let found: Vec<Ova> = serde_json::from_str(text).unwrap();
        let table = table(&found).render(Paint::OFF);
        crate::golden::check("ova-list.txt", &(table + "\n"));
    }
}
