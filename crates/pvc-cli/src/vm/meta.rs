use clap::Args;
use pvc_api_types::operations::vm::{MetaChange, MethodWord, PostVmVmMeta, SelectorWord};
use pvc_api_types::param::Commas;

use super::Which;
use crate::choice::words;
use crate::context::Pvc;
use crate::outcome::{Failure, Outcome};

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

    /// The figure by which the cluster chooses a node for it
    #[arg(short = 's', long, value_parser = words::<SelectorWord>())]
    node_selector: Option<SelectorWord>,

    /// Start it with its node
    #[arg(short, long, overrides_with = "no_autostart")]
    autostart: bool,

    /// Do not start it by itself
    #[arg(short = 'A', long, overrides_with = "autostart")]
    no_autostart: bool,

    /// The way in which it may be moved; `none` tries live and then shuts down
    #[arg(short, long, value_parser = words::<MethodWord>())]
    method: Option<MethodWord>,

    /// Time that a live migration may halt the guest, in milliseconds
    #[arg(short = 'd', long, value_name = "MS", value_parser = crate::time::downtime)]
    max_downtime: Option<u32>,

    /// The provisioner profile it is said to come from
    #[arg(short, long)]
    profile: Option<String>,
}

impl Meta {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let autostart = (self.autostart || self.no_autostart).then_some(self.autostart);
        let limit = self.limit.as_deref().map(Commas::of);
        let metadata = MetaChange {
            limit,
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
        let message = pvc.client()?.change(PostVmVmMeta, [&self.vm.domain], &metadata);
        let named = metadata.limit.iter().flat_map(|names| names.0.iter().map(String::as_str));
        let message = message.map_err(|error| crate::node::unknown(pvc, error, named))?;
        pvc.done(message);
        Ok(())
    }
}

fn is_empty(metadata: &MetaChange) -> bool {
    let MetaChange {
        limit,
        selector,
        autostart,
        migration_method,
        migration_max_downtime,
        profile,
    } = metadata;
    limit.is_none()
        && selector.is_none()
        && autostart.is_none()
        && migration_method.is_none()
        && migration_max_downtime.is_none()
        && profile.is_none()
}
