use clap::Args;
use pvc_api_types::operations::vm::GetVmVm;
use serde_json::json;

use crate::context::Pvc;
use crate::format::{ListFormat, MaybeJson, Shape};
use crate::outcome::Outcome;
use crate::output::Table;
use crate::vm::Which;

/// Show how much memory a VM has
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
        if self.format.print(pvc, &json!({"name": vm.name, "memory": vm.memory})) {
            return Ok(());
        }
        if self.format == ListFormat::Raw {
            pvc.out.line(vm.memory.to_string());
            return Ok(());
        }
        let mut table = Table::new().columns(&[("RAM (M)", 6)]);
        table.row(vec![vm.memory.to_string().into()]);
        self.shape.print(pvc, self.format, table)
    }
}
