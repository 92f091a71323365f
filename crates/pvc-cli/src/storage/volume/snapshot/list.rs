use clap::Args;
use pvc_api_types::StorageSnapshot;
use pvc_api_types::operations::storage::{GetStorageCephSnapshot, SnapshotFilter};
use pvc_model::size::format_size;

use crate::context::Pvc;
use crate::format::{Listing, or_empty};
use crate::outcome::Outcome;
use crate::output::Table;

/// List the snapshots
///
/// LIMIT is a regular expression for the name. If something is asked for and no snapshot
/// fits, the command fails with exit code 3. `raw` prints all of them on one line, as
/// POOL/VOLUME@SNAPSHOT.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc storage volume snapshot list
  pvc storage volume snapshot list --pool vms --volume web1_data
  pvc -q storage volume snapshot list '^before-' -f raw")]
pub struct List {
    /// Only snapshots whose name fits
    limit: Option<String>,

    /// Only snapshots of volumes in this pool
    #[arg(short, long, add = crate::completion::pools())]
    pool: Option<String>,

    /// Only snapshots of volumes with this name
    #[arg(short = 'o', long, add = crate::completion::volumes())]
    volume: Option<String>,

    #[command(flatten)]
    list: Listing,
}

impl List {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        self.list.check()?;
        let filter = SnapshotFilter { pool: self.pool, volume: self.volume, limit: self.limit };
        let narrowed = filter.pool.is_some() || filter.volume.is_some() || filter.limit.is_some();
        let answer = or_empty(pvc.client()?.read(GetStorageCephSnapshot, [], &filter))?;
        let what = ("snapshot", "pvc storage volume snapshot list");
        let snapshots: Option<Vec<StorageSnapshot>> =
            self.list.read(pvc, &answer, narrowed, what)?;
        let Some(mut snapshots) = snapshots else { return Ok(()) };
        snapshots.sort_by(|one, other| key(one).cmp(&key(other)));
        if self.list.is_bare() {
            // On one line, as PVC 1.0.3's client prints them.
            let names: Vec<String> = snapshots.iter().map(path).collect();
            if !names.is_empty() {
                pvc.out.line(names.join(" "));
            }
            return Ok(());
        }
        self.list.print(pvc, &snapshots, path, table)
    }
}

fn key(snapshot: &StorageSnapshot) -> (&str, &str, &str) {
    (&snapshot.pool, &snapshot.volume, &snapshot.snapshot)
}

fn path(snapshot: &StorageSnapshot) -> String {
    let (pool, volume, name) = key(snapshot);
    format!("{pool}/{volume}@{name}")
}

fn table(snapshots: &[StorageSnapshot]) -> Table {
    let mut table = Table::new().columns(&[("Name", 5), ("Volume", 7), ("Pool", 5), ("Size", 5)]);
    for snapshot in snapshots {
        table.row(vec![
            snapshot.snapshot.as_str().into(),
            snapshot.volume.as_str().into(),
            snapshot.pool.as_str().into(),
            format_size(snapshot.stats.size).into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Paint;

    #[test]
    fn the_table_and_a_snapshot_without_figures() {
        let snapshots: Vec<StorageSnapshot> =
            serde_json::from_str(include_str!("../../../../tests/wire/storage-snapshots.json"))
                .unwrap();
        crate::golden::check("snapshot-list.txt", &(table(&snapshots).render(Paint::OFF) + "\n"));
    }
}
