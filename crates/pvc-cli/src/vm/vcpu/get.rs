use clap::Args;
use pvc_api_types::operations::vm::GetVmVm;
use serde_json::json;

use crate::context::Pvc;
use crate::format::{ListFormat, MaybeJson, Shape};
use crate::outcome::Outcome;
use crate::output::Table;
use crate::vm::Which;

/// Show how many vCPUs a VM has
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
        let mut topology = vm.vcpu_topology.split('/').filter(|count| count.parse::<u32>().is_ok());
        let (sockets, cores, threads) = (topology.next(), topology.next(), topology.next());
        // Texts, as the definition has them: scripts have always been given these.
        let vcpus = vm.vcpu.to_string();
        let value = json!({
            "name": vm.name, "vcpus": vcpus, "sockets": sockets, "cores": cores, "threads": threads
        });
        if self.format.print(pvc, &value) {
            return Ok(());
        }
        if self.format == ListFormat::Raw {
            pvc.out.line(vm.vcpu.to_string());
            return Ok(());
        }
        let shown = |count: Option<&str>| count.unwrap_or("N/A").to_owned();
        let mut table =
            Table::new().columns(&[("vCPUs", 6), ("Sockets", 8), ("Cores", 6), ("Threads", 8)]);
        table.row(vec![
            vm.vcpu.to_string().into(),
            shown(sockets).into(),
            shown(cores).into(),
            shown(threads).into(),
        ]);
        self.shape.print(pvc, self.format, table)
    }
}
