use clap::Args;
use pvc_api_types::operations::node::{DomainRequest, Duty, PostNodeNodeDomainState};
use pvc_api_types::param::Flag;

use super::Which;
use super::wait::{self, Change};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Let a flushed node take VMs again
///
/// VMs that were moved away by `pvc node flush` return.
#[derive(Debug, Args)]
pub struct Ready {
    #[command(flatten)]
    node: Which,

    /// Return only when it is done; fail if it is not
    #[arg(short, long)]
    wait: bool,
}

impl Ready {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let node = self.node.name();
        let reply = pvc.client()?.change(
            PostNodeNodeDomainState,
            [&node],
            &DomainRequest { state: Duty::Ready, wait: Flag(false) },
        )?;
        let change =
            Change { state: |node| &node.domain_state, passing: "unflush", reached: "ready" };
        wait::finish(pvc, &node, &reply, self.wait, &change)
    }
}
