use pvc_api_types::operations::vm::{Definition, MethodWord, PostVm, SelectorWord};
use pvc_api_types::param::{Added, Commas, Flag, Or};
use std::path::PathBuf;

use clap::Args;

use super::definition;
use crate::choice::words;
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Define a VM from a libvirt domain XML
///
/// The definition is checked and recorded; nothing is started. Its volumes have to
/// exist before the first start. The cluster chooses the node unless one is given.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  pvc vm define web1.xml --autostart --tag web
  pvc vm dump web1 | sed s/web1/web2/ | pvc vm define - --target hv2")]
pub struct Define {
    /// The file with the XML; `-` is standard input
    #[arg(value_name = "VMCONFIG")]
    vmconfig: PathBuf,

    /// The node to assign it to
    #[arg(short, long, value_name = "NODE", add = crate::completion::nodes())]
    target: Option<String>,

    /// The nodes it may run on, separated by commas; all if none is given
    #[arg(short, long, value_name = "NODE,...")]
    limit: Option<String>,

    /// The figure by which the cluster chooses a node for it
    #[arg(short = 's', long, default_value = "none", value_parser = words::<SelectorWord>())]
    node_selector: SelectorWord,

    /// Start it with its node, after a crash of the whole cluster or a flush
    #[arg(short, long, overrides_with = "no_autostart")]
    autostart: bool,

    /// Do not start it by itself, which is the default
    #[arg(short = 'A', long, overrides_with = "autostart")]
    no_autostart: bool,

    /// The way in which it may be moved; `none` tries live and then shuts down
    #[arg(short, long, default_value = "none", value_parser = words::<MethodWord>())]
    method: MethodWord,

    /// Time that a live migration may halt the guest, in milliseconds
    #[arg(short = 'd', long, value_name = "MS", default_value_t = 300)]
    #[arg(value_parser = crate::time::downtime)]
    max_downtime: u32,

    /// A tag; may be given again
    #[arg(short = 'g', long = "tag", value_name = "TAG")]
    tags: Vec<String>,

    /// A tag that cannot be removed by `pvc vm tag remove`; may be given again
    #[arg(short = 'G', long = "protected-tag", value_name = "TAG")]
    protected_tags: Vec<String>,

    /// Take it also if it is plugged into a network between the nodes, or has the MAC address of
    /// another VM in a network
    #[arg(long)]
    force: bool,
}

impl Define {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let new = Definition {
            xml: definition::read(pvc, &self.vmconfig)?,
            node: self.target,
            limit: self.limit.as_deref().map(Commas::of).unwrap_or_default(),
            selector: Some(self.node_selector),
            autostart: Flag(self.autostart),
            migration_method: Some(self.method),
            migration_max_downtime: Or(self.max_downtime),
            user_tags: self.tags,
            protected_tags: self.protected_tags,
            force: Added(self.force),
        };
        let message = pvc.client()?.change(PostVm, [], &new);
        let named = || new.node.iter().chain(&new.limit.0).map(String::as_str);
        let message = message.map_err(|error| crate::node::unknown(pvc, error, named()))?;
        pvc.done(message);
        Ok(())
    }
}
