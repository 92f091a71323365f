use clap::Args;
use pvc_api_types::operations::provisioner::{
    PutProvisionerTemplateSystemTemplate, SystemTemplateChange,
};
use pvc_api_types::operations::vm::{MethodWord, SelectorWord};
use pvc_api_types::param::{Commas, Parameters};

use crate::choice::any_case;
use crate::context::Pvc;
use crate::network::either;
use crate::outcome::{Failure, Outcome};

/// Change a system template
///
/// What is not given stays as it is; `none`, or an empty text, clears. VMs that were made
/// from it stay as they are.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc provisioner template system modify small -m 4096
  pvc provisioner template system modify small --node-limit '' --node-selector none")]
pub struct Modify {
    /// Name of the template
    #[arg(value_name = "NAME", add = crate::completion::system_templates())]
    name: String,

    /// Number of vCPUs
    #[arg(short = 'u', long)]
    vcpus: Option<u32>,

    /// Memory in MiB
    #[arg(short = 'm', long)]
    vram: Option<u32>,

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
    #[arg(long, overrides_with = "no_node_autostart")]
    node_autostart: bool,

    /// Do not start it by itself
    #[arg(long, overrides_with = "node_autostart")]
    no_node_autostart: bool,

    /// The way in which the VM may be moved; `none` tries live and then shuts down
    #[arg(long, value_parser = any_case::<MethodWord>(), ignore_case = true)]
    migration_method: Option<String>,

    /// Longest standstill in a live migration, in milliseconds
    #[arg(long, value_name = "MS")]
    max_downtime: Option<u32>,
}

impl Modify {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let change = SystemTemplateChange {
            vcpus: self.vcpus,
            vram: self.vram,
            serial: either(self.serial, self.no_serial),
            vnc: either(self.vnc, self.no_vnc),
            vnc_bind: self.vnc_bind,
            node_limit: self.node_limit.as_deref().map(Commas::of),
            node_selector: self.node_selector,
            node_autostart: either(self.node_autostart, self.no_node_autostart),
            migration_method: self.migration_method,
            migration_max_downtime: self.max_downtime,
        };
        if change.write() == SystemTemplateChange::default().write() {
            return Err(Failure::usage("nothing is to be changed")
                .hint("`pvc provisioner template system modify --help` lists what can be"));
        }
        let operation = PutProvisionerTemplateSystemTemplate;
        let message = pvc.client()?.change(operation, [&self.name], &change);
        let named = change.node_limit.iter().flat_map(|names| names.0.iter().map(String::as_str));
        let message = message.map_err(|error| crate::node::unknown(pvc, error, named))?;
        pvc.done(message);
        Ok(())
    }
}
