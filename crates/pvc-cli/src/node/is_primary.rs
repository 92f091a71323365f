use std::time::Duration;

use clap::Args;

use super::Which;
use crate::context::Pvc;
use crate::interrupt;
use crate::outcome::{Exit, Failure, Outcome};

const PAUSE: Duration = Duration::from_secs(1);

/// Tell by the exit code whether a node is the primary coordinator
///
/// Nothing is printed: the exit code is 0 if it is, and 1 if not. While no node is
/// primary, or the API does not answer, the command waits. Timers on every node use it
/// to run a job once.
#[derive(Debug, Args)]
#[command(after_help = "\
Example, in a systemd unit:
  ExecCondition=/usr/bin/pvc --quiet node is-primary")]
pub struct IsPrimary {
    #[command(flatten)]
    node: Which,
}

impl IsPrimary {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let node = self.node.name();
        let client = pvc.client()?;
        let primary = loop {
            match client.primary_node() {
                Some(primary) if primary != "none" => break primary,
                _ => interrupt::pause(PAUSE),
            }
        };
        if primary == node { Ok(()) } else { Err(Failure::quiet(Exit::Failed)) }
    }
}
