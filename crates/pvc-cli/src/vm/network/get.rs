use clap::Args;
use pvc_api_types::operations::vm::GetVmVm;
use serde_json::{Value, json};

use crate::context::Pvc;
use crate::format::{ListFormat, MaybeJson, Shape};
use crate::outcome::Outcome;
use crate::output::Table;
use crate::vm::Which;

/// Show the network cards of a VM
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
        let networks: Value = vm
            .networks
            .iter()
            .map(|nic| json!({"network": nic.vni, "mac_address": nic.mac, "model": nic.model}))
            .collect();
        if self.format.print(pvc, &json!({"name": vm.name, "networks": networks})) {
            return Ok(());
        }
        if self.format == ListFormat::Raw {
            let names: Vec<&str> = vm.networks.iter().map(|network| network.vni.as_str()).collect();
            pvc.out.line(names.join(","));
            return Ok(());
        }
        let mut table = Table::new().columns(&[("Network", 8), ("MAC Address", 12), ("Model", 6)]);
        for network in &vm.networks {
            table.row(vec![
                network.vni.as_str().into(),
                network.mac.as_deref().unwrap_or("N/A").into(),
                network.model.as_deref().unwrap_or("N/A").into(),
            ]);
        }
        self.shape.print(pvc, self.format, table)
    }
}
