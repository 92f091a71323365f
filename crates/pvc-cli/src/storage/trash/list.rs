use clap::Args;
use pvc_api_types::TrashedVolume;
use pvc_api_types::operations::storage::{GetStorageCephTrash, TrashFilter};

use crate::context::Pvc;
use crate::format::{Listing, or_empty};
use crate::outcome::Outcome;
use crate::output::Table;
use crate::time::utc;

/// List the removed volumes that are still kept
///
/// Those that were removed first come first. They take the room that they took before.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage trash list
  pvc storage trash list --pool vms -f json")]
pub struct List {
    /// Only volumes of this pool
    #[arg(short, long, add = crate::completion::pools())]
    pool: Option<String>,

    #[command(flatten)]
    list: Listing,
}

impl List {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        self.list.check()?;
        let filter = TrashFilter { pool: self.pool };
        let answer = pvc.client()?.read(GetStorageCephTrash, [], &filter);
        // A pool that is not there is no empty one.
        let answer = if filter.pool.is_none() { or_empty(answer)? } else { answer? };
        let what = ("removed volume", "pvc storage trash list");
        let trashed: Option<Vec<TrashedVolume>> = self.list.read(pvc, &answer, false, what)?;
        let Some(trashed) = trashed else { return Ok(()) };
        self.list.print(pvc, &trashed, |entry| format!("{}/{}", entry.pool, entry.id), table)
    }
}

fn table(trashed: &[TrashedVolume]) -> Table {
    let mut table = Table::new().columns(&[
        ("Id", 3),
        ("Name", 5),
        ("Pool", 5),
        ("Removed", 8),
        ("Kept until", 11),
    ]);
    for entry in trashed {
        table.row(vec![
            entry.id.as_str().into(),
            entry.name.as_str().into(),
            entry.pool.as_str().into(),
            utc(entry.removed_at).into(),
            utc(entry.kept_until).into(),
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
        let text = r#"[{"pool": "vms", "id": "101c60e3817e", "name": "web1_sda", "removed_at": 1795735755,
            "kept_until": 1795822155}]"#;
        let trashed: Vec<TrashedVolume> = serde_json::from_str(text).unwrap();
        crate::golden::check("trash-list.txt", &(table(&trashed).render(Paint::OFF) + "\n"));
    }
}
