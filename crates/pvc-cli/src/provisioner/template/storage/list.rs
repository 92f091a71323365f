use clap::Args;
use pvc_api_types::StorageTemplate;
use pvc_api_types::operations::provisioner::GetProvisionerTemplateStorage;

use crate::context::Pvc;
use crate::format::Listing;
use crate::outcome::Outcome;
use crate::output::Cell;
use crate::output::Table;
use crate::provisioner::{UNSET, list, or_unset};

/// List the storage templates
///
/// LIMIT is a part of the name; `^` binds it to the beginning and `$` to the end. If it is
/// given and nothing fits, the command fails with exit code 3.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner template storage list
  pvc provisioner template storage list '^web' -f csv")]
pub struct List {
    /// Only those with this in their name
    limit: Option<String>,

    #[command(flatten)]
    list: Listing,
}

impl List {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let what = ("storage template", "pvc provisioner template storage list");
        let name = |one: &StorageTemplate| one.name.clone();
        list(pvc, &self.list, self.limit, GetProvisionerTemplateStorage, what, name, table)
    }
}

fn table(templates: &[StorageTemplate]) -> Table {
    let mut table = Table::new().group("Storage Templates", &[("Name", 18), ("ID", 5)]).group(
        "Details",
        &[
            ("Disk ID", 8),
            ("Pool", 5),
            ("Source Volume", 14),
            ("Size [G]", 9),
            ("Filesystem", 11),
            ("Arguments", 10),
            ("Mountpoint", 10),
        ],
    );
    for template in templates {
        let own: Vec<Cell> = vec![template.name.as_str().into(), template.id.to_string().into()];
        let blank = || Cell::from("");
        table.row(own.into_iter().chain((0..7).map(|_| blank())).collect());
        for disk in &template.disks {
            let size = disk.disk_size_gb.map(|size| size.to_string());
            table.more(vec![
                blank(),
                blank(),
                disk.disk_id.as_str().into(),
                disk.pool.as_str().into(),
                or_unset(disk.source_volume.as_deref()).into(),
                size.unwrap_or_else(|| UNSET.to_owned()).into(),
                or_unset(disk.filesystem.as_deref()).into(),
                or_unset(disk.filesystem_args.as_deref()).into(),
                or_unset(disk.mountpoint.as_deref()).into(),
            ]);
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
        let text = r##"[{"id": 1, "name": "web", "disks": [
            {"disk_id": "sda", "pool": "vms", "disk_size_gb": 10, "filesystem": "ext4",
             "filesystem_args": "-L=root", "mountpoint": "/"},
            {"disk_id": "sdb", "pool": "vms", "source_volume": "golden", "filesystem_args": ""}]},
            {"id": 2, "name": "none"}]"##;
        let found: Vec<StorageTemplate> = serde_json::from_str(text).unwrap();
        let table = table(&found).render(Paint::OFF);
        crate::golden::check("storage-template-list.txt", &(table + "\n"));
    }
}
