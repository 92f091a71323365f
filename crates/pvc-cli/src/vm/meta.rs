use clap::Args;
use pvc_client::Metadata;

use super::Which;
use crate::context::Pvc;
use crate::outcome::{Failure, Outcome};

/// What a node can be chosen by.
pub const SELECTORS: [&str; 6] = ["mem", "memprov", "load", "vcpus", "vms", "none"];
/// How a VM can be moved.
pub const METHODS: [&str; 3] = ["none", "live", "shutdown"];

/// Change what the cluster knows of a VM beside its definition
///
/// Only what is given changes. None of it needs a restart of the VM.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc vm meta web1 --autostart --limit hv1,hv2
  pvc vm meta web1 --limit ''             it may run everywhere again")]
pub struct Meta {
    #[command(flatten)]
    vm: Which,

    /// The nodes it may run on, separated by commas; an empty text means all
    #[arg(short, long, value_name = "NODE,...")]
    limit: Option<String>,

    /// How the cluster chooses a node for it
    #[arg(short = 's', long, value_parser = SELECTORS)]
    node_selector: Option<String>,

    /// Start it with its node
    #[arg(short, long, overrides_with = "no_autostart")]
    autostart: bool,

    /// Do not start it by itself
    #[arg(short = 'A', long, overrides_with = "autostart")]
    no_autostart: bool,

    /// How it may be moved; `none` tries live and then shuts down
    #[arg(short, long, value_parser = METHODS)]
    method: Option<String>,

    /// How long a live migration may halt the guest, in milliseconds
    #[arg(short = 'd', long, value_name = "MS", value_parser = crate::time::downtime)]
    max_downtime: Option<u32>,

    /// The provisioner profile it is said to come from
    #[arg(short, long)]
    profile: Option<String>,
}

impl Meta {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let autostart = (self.autostart || self.no_autostart).then_some(self.autostart);
        let metadata = Metadata {
            limit: self.limit,
            selector: self.node_selector,
            autostart,
            migration_method: self.method,
            migration_max_downtime: self.max_downtime,
            profile: self.profile,
        };
        if is_empty(&metadata) {
            return Err(Failure::usage("nothing to change was given")
                .hint("`pvc vm meta --help` lists what can be changed"));
        }
        let message = pvc.client()?.set_vm_metadata(&self.vm.domain, &metadata);
        let named = metadata.limit.iter().flat_map(|names| names.split(','));
        let message = message.map_err(|error| crate::node::unknown(pvc, error, named))?;
        pvc.done(message);
        Ok(())
    }
}

fn is_empty(metadata: &Metadata) -> bool {
    let Metadata { limit, selector, autostart, migration_method, migration_max_downtime, profile } =
        metadata;
    limit.is_none()
        && selector.is_none()
        && autostart.is_none()
        && migration_method.is_none()
        && migration_max_downtime.is_none()
        && profile.is_none()
}
