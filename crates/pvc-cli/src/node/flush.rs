use clap::Args;
use pvc_api_types::operations::node::{DomainRequest, Duty, PostNodeNodeDomainState};
use pvc_api_types::param::Flag;

use super::Which;
use super::wait::{self, Change};
use crate::context::Pvc;
use crate::outcome::Outcome;
use crate::plan;

/// Move all VMs off a node
///
/// The node takes no new VMs from now on. Those that can be moved live are, the others
/// are shut down and started elsewhere; a VM that no other node can take is off until
/// `pvc node ready` brings all of them back.
#[derive(Debug, Args)]
pub struct Flush {
    #[command(flatten)]
    node: Which,

    /// Return only when it is done; fail if it is not
    #[arg(short, long)]
    wait: bool,

    /// Change nothing; say what would become of each VM
    #[arg(long)]
    dry_run: bool,
}

impl Flush {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let node = self.node.name();
        if self.dry_run {
            let plan = plan::of_flush(pvc.client()?, &node)?;
            plan::print_flush(pvc, &plan);
            return Ok(());
        }
        let reply = pvc.client()?.change(
            PostNodeNodeDomainState,
            [&node],
            &DomainRequest { state: Duty::Flush, wait: Flag(false) },
        )?;
        let change =
            Change { state: |node| &node.domain_state, passing: "flush", reached: "flushed" };
        wait::finish(pvc, &node, &reply, self.wait, &change)
    }
}
