use clap::Args;
use pvc_api_types::operations::node::{CoordinatorRequest, Part, PostNodeNodeCoordinatorState};

use super::Which;
use super::wait::{self, Change};
use crate::context::Pvc;
use crate::outcome::Outcome;

/// Make a coordinator the primary one
///
/// The node takes over the floating addresses, the API and the services of the
/// networks. Connections to the API break for a moment. Nothing happens if it is the
/// primary one already.
#[derive(Debug, Args)]
pub struct Primary {
    #[command(flatten)]
    node: Which,

    /// Return only when it is done; fail if it is not
    #[arg(short, long)]
    wait: bool,
}

impl Primary {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let node = self.node.name();
        let reply = pvc.client()?.change(
            PostNodeNodeCoordinatorState,
            [&node],
            &CoordinatorRequest { state: Part::Primary },
        )?;
        let change = Change {
            state: |node| &node.coordinator_state,
            passing: "takeover",
            reached: "primary",
        };
        wait::finish(pvc, &node, &reply, self.wait, &change)
    }
}
