use clap::Args;
use pvc_api_types::StorageSnapshot;
use pvc_api_types::operations::storage::GetStorageCephSnapshotPoolVolumeSnapshot;
use pvc_model::size::format_size;

use super::Which;
use crate::context::Pvc;
use crate::format::{InfoFormat, MaybeJson};
use crate::outcome::Outcome;
use crate::output::Paint;
use crate::output::labels::Labels;
use crate::storage::size;

/// Show a snapshot in detail
///
/// Its size is that of the volume when it was taken. `long` shows how Ceph keeps it as
/// well.
#[derive(Debug, Args)]
pub struct Info {
    #[command(flatten)]
    snapshot: Which,

    #[arg(short, long, value_enum, default_value_t = InfoFormat::Pretty, help = "How to print it")]
    format: InfoFormat,
}

impl Info {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let operation = GetStorageCephSnapshotPoolVolumeSnapshot;
        let snapshot = pvc.client()?.read_only(operation, self.snapshot.at(), "snapshot")?;
        if self.format.print_payload(pvc, &snapshot)? {
            return Ok(());
        }
        let text = view(&snapshot.read()?, self.format == InfoFormat::Long, pvc.out.paint());
        pvc.out.text(text);
        Ok(())
    }
}

const WIDTH: usize = 20;

fn view(snapshot: &StorageSnapshot, long: bool, paint: Paint) -> String {
    let stats = &snapshot.stats;
    let mut lines = Labels::new(paint, WIDTH);
    lines.heading("Snapshot information:");
    lines.blank();
    lines.line("Name", &snapshot.snapshot);
    lines.line("Volume", &snapshot.volume);
    lines.line("Pool", &snapshot.pool);
    lines.line("Size", size::exact(&format_size(stats.size), stats.size));
    if long {
        lines.blank();
        lines.line("Objects", stats.objects.to_string());
        lines.line("Object size", stats.object_size.to_string());
        lines.line("Name of objects", &stats.block_name_prefix);
        lines.line("Features", stats.features.join(", "));
    }
    lines.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_views() {
        let snapshots: Vec<StorageSnapshot> =
            serde_json::from_str(include_str!("../../../../tests/wire/storage-snapshots.json"))
                .unwrap();
        let views = [view(&snapshots[0], true, Paint::OFF), view(&snapshots[2], false, Paint::OFF)];
        crate::golden::check("snapshot-info.txt", &views.join("\n"));
    }
}
