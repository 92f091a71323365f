use clap::Args;
use pvc_api_types::operations::provisioner::{
    PostProvisionerTemplateSystem, SystemTemplateAddition,
};
use pvc_api_types::operations::vm::{MethodWord, SelectorWord};
use pvc_api_types::param::Commas;

use crate::choice::any_case;
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Add a system template
///
/// It says how large VMs are, which consoles they have, and where they run.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner template system add small -u 2 -m 2048 --serial
  pvc provisioner template system add large -u 8 -m 16384 --serial --vnc --vnc-bind 127.0.0.1 \\
      --node-limit hv1,hv2 --node-selector mem --node-autostart")]
pub struct Add {
    /// Name of the template
    #[arg(value_name = "NAME")]
    name: String,

    /// Number of vCPUs
    #[arg(short = 'u', long)]
    vcpus: u32,

    /// Memory in MiB
    #[arg(short = 'm', long)]
    vram: u32,

    /// Give the guest a serial console
    #[arg(short, long, overrides_with = "no_serial")]
    serial: bool,

    /// Give the guest no serial console
    #[arg(short = 'S', long, overrides_with = "serial")]
    no_serial: bool,

    /// Show the guest's screen by VNC
    #[arg(short = 'n', long, overrides_with = "no_vnc")]
    vnc: bool,

    /// Show no screen
    #[arg(short = 'N', long, overrides_with = "vnc")]
    no_vnc: bool,

    /// Address that VNC listens at
    #[arg(short = 'b', long, value_name = "ADDRESS")]
    vnc_bind: Option<String>,

    /// Nodes that the VM may run on, with commas between them
    #[arg(long, value_name = "NODE,...", add = crate::completion::nodes())]
    node_limit: Option<String>,

    /// The figure by which a node is chosen
    #[arg(long, value_parser = any_case::<SelectorWord>(), ignore_case = true)]
    node_selector: Option<String>,

    /// Start the VM with its node
    #[arg(long)]
    node_autostart: bool,

    /// The way in which the VM may be moved; `none` tries live and then shuts down
    #[arg(long, value_parser = any_case::<MethodWord>(), ignore_case = true)]
    migration_method: Option<String>,

    /// Longest standstill in a live migration, in milliseconds [default: 300]
    #[arg(long, value_name = "MS")]
    max_downtime: Option<u32>,
}

impl Add {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let addition = SystemTemplateAddition {
            name: self.name,
            vcpus: self.vcpus,
            vram: self.vram,
            serial: self.serial,
            vnc: self.vnc,
            vnc_bind: self.vnc_bind.filter(|_| self.vnc),
            node_limit: self.node_limit.as_deref().map(Commas::of).unwrap_or_default(),
            node_selector: self.node_selector,
            node_autostart: self.node_autostart.then_some(true),
            migration_method: self.migration_method,
            migration_max_downtime: self.max_downtime,
        };
        let message = pvc.client()?.change(PostProvisionerTemplateSystem, [], &addition);
        let named = addition.node_limit.0.iter().map(String::as_str);
        let message = message.map_err(|error| crate::node::unknown(pvc, error, named))?;
        pvc.done(message);
        Ok(())
    }
}
