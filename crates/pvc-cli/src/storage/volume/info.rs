use clap::Args;
use pvc_api_types::operations::storage::{
    GetStorageCephPoolPool, GetStorageCephSnapshot, GetStorageCephVolumePoolVolume, SnapshotFilter,
};
use pvc_api_types::operations::vm::{GetVm, VmFilter};
use pvc_api_types::{StorageSnapshot, Vm, Volume};

use super::Which;
use crate::context::Pvc;
use crate::format::{InfoFormat, MaybeJson, or_empty};
use crate::missing;
use crate::outcome::Outcome;
use crate::output::Paint;
use crate::output::labels::Labels;
use crate::storage::size;

/// Show a volume in detail
///
/// With its snapshots and the VMs that have it. `long` shows how Ceph keeps it as well.
#[derive(Debug, Args)]
pub struct Info {
    #[command(flatten)]
    volume: Which,

    #[arg(short, long, value_enum, default_value_t = InfoFormat::Pretty, help = "How to print it")]
    format: InfoFormat,
}

impl Info {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let at = self.volume.at();
        let client = pvc.client()?;
        let volume = client.read_only(GetStorageCephVolumePoolVolume, at, "volume");
        let named = [at[0]];
        let volume =
            volume.map_err(|error| missing::failure(pvc, error, GetStorageCephPoolPool, named))?;
        if self.format.print_payload(pvc, &volume)? {
            return Ok(());
        }
        let volume = volume.read()?;
        let [pool, name] = at.map(|part| Some(part.to_owned()));
        let filter = SnapshotFilter { pool, volume: name, limit: None };
        let client = pvc.client()?;
        let snapshots = or_empty(client.read(GetStorageCephSnapshot, [], &filter))?.read()?;
        let vms = or_empty(client.read(GetVm, [], &VmFilter::default()))?.read()?;
        let long = self.format == InfoFormat::Long;
        let text = view(&volume, &snapshots, &vms, long, pvc.out.paint());
        pvc.out.text(text);
        Ok(())
    }
}

const WIDTH: usize = 20;

fn view(
    volume: &Volume,
    snapshots: &[StorageSnapshot],
    vms: &[Vm],
    long: bool,
    paint: Paint,
) -> String {
    let stats = &volume.stats;
    let mut lines = Labels::new(paint, WIDTH);
    lines.heading("Volume information:");
    lines.blank();
    lines.line("Name", &volume.name);
    lines.line("Pool", &volume.pool);
    lines.line("Size", size::exact(&stats.size, stats.size_bytes));
    let names: Vec<String> = snapshots.iter().map(|snapshot| snapshot.snapshot.clone()).collect();
    lines.lines("Snapshots", &names);
    lines.lines("VMs", &users(volume, vms));
    if long {
        lines.blank();
        lines.line("ID", &stats.id);
        lines.line("Objects", stats.objects.to_string());
        lines.line("Object size", stats.object_size.to_string());
        lines.line("Order", stats.order.to_string());
        lines.line("Name of objects", &stats.block_name_prefix);
        lines.line("Format", stats.format.to_string());
        lines.line("Features", stats.features.join(", "));
        lines.line("Flags", stats.flags.join(", "));
        lines.line("Created", &stats.create_timestamp);
        lines.line("Read", &stats.access_timestamp);
        lines.line("Written", &stats.modify_timestamp);
    }
    lines.finish()
}

/// The VMs that have the volume, each with its state and what it calls the disk.
fn users(volume: &Volume, vms: &[Vm]) -> Vec<String> {
    let path = format!("{}/{}", volume.pool, volume.name);
    let user = |vm: &Vm| {
        let disk = vm.disks.iter().find(|disk| disk.r#type == "rbd" && disk.name == path)?;
        Some(format!("{} ({}, {})", vm.name, vm.state, disk.dev))
    };
    vms.iter().filter_map(user).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_views() {
        let volumes: Vec<Volume> =
            serde_json::from_str(include_str!("../../../tests/wire/volumes.json")).unwrap();
        let snapshots: Vec<StorageSnapshot> =
            serde_json::from_str(include_str!("../../../tests/wire/storage-snapshots.json"))
                .unwrap();
        let vms: Vec<Vm> = serde_json::from_value(json!([
            {"name": "web1", "state": "start",
             "disks": [{"type": "rbd", "name": "vms/web1_sda", "dev": "sda"}]},
            {"name": "db1", "state": "stop",
             "disks": [{"type": "rbd", "name": "ssd/web1_sda", "dev": "sda"}]},
        ]))
        .unwrap();
        let views = [
            view(&volumes[0], &snapshots[..2], &vms, true, Paint::OFF),
            view(&volumes[1], &[], &vms, false, Paint::OFF),
        ];
        crate::golden::check("volume-info.txt", &views.join("\n"));
    }
}
