use clap::Args;
use pvc_api_types::operations::node::{CoordinatorRequest, Part, PostNodeNodeCoordinatorState};

use super::Which;
use super::wait::{self, Change};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Make a coordinator give up being the primary one
///
/// Another coordinator takes over. Nothing happens if the node is not the primary one.
#[derive(Debug, Args)]
pub struct Secondary {
    #[command(flatten)]
    node: Which,

    /// Return only when it is done; fail if it is not
    #[arg(short, long)]
    wait: bool,
}

impl Secondary {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let node = self.node.name();
        let reply = pvc.client()?.change(
            PostNodeNodeCoordinatorState,
            [&node],
            &CoordinatorRequest { state: Part::Secondary },
        )?;
        let change = Change {
            state: |node| &node.coordinator_state,
            passing: "relinquish",
            reached: "secondary",
        };
        wait::finish(pvc, &node, &reply, self.wait, &change)
    }
}
