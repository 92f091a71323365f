use clap::Args;
use pvc_api_types::operations::vm::GetVmVm;
use serde_json::{Value, json};

use crate::context::Pvc;
use crate::format::{ListFormat, MaybeJson, Shape};
use crate::outcome::Outcome;
use crate::output::Table;
use crate::vm::Which;

/// Show the disks of a VM
#[derive(Debug, Args)]
pub struct Get {
    #[command(flatten)]
    vm: Which,

    #[arg(short, long, value_enum, default_value_t = ListFormat::Pretty, help = "How to print it")]
    format: ListFormat,

    #[command(flatten)]
    shape: Shape,
}

impl Get {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        self.shape.check(self.format)?;
        let vm = pvc.client()?.read_only(GetVmVm, [&self.vm.domain], "VM")?.read()?;
        let volumes: Value = vm
            .disks
            .iter()
            .map(|disk| {
                let (volume, protocol) = (&disk.name, &disk.r#type);
                json!({
                    "volume": volume, "disk_id": disk.dev, "protocol": protocol, "bus": disk.bus
                })
            })
            .collect();
        if self.format.print(pvc, &json!({"name": vm.name, "volumes": volumes})) {
            return Ok(());
        }
        if self.format == ListFormat::Raw {
            let names: Vec<String> =
                vm.disks.iter().map(|disk| format!("{}:{}", disk.r#type, disk.name)).collect();
            pvc.out.line(names.join(","));
            return Ok(());
        }
        let mut table = Table::new().columns(&[("Volume", 7), ("Dev", 4), ("Type", 5), ("Bus", 4)]);
        for disk in &vm.disks {
            table.row(vec![
                disk.name.as_str().into(),
                disk.dev.as_str().into(),
                disk.r#type.as_str().into(),
                disk.bus.as_str().into(),
            ]);
        }
        self.shape.print(pvc, self.format, table)
    }
}
