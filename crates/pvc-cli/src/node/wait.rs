//! Waiting until a node has become what it was asked to be.

use std::time::{Duration, Instant};

use pvc_api_types::Node;
use pvc_client::Kind;

use crate::context::Pvc;
use crate::interrupt;
use crate::outcome::{Failure, Outcome};

const PAUSE: Duration = Duration::from_secs(1);
/// A dot for this many looks.
const LOOKS_PER_DOT: u32 = 5;
/// How long a node may stay as it was before it is said not to have taken up the request, and how
/// long the API may be away: the primary node's address moves with it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A change of one of a node's states.
pub struct Change {
    pub state: fn(&Node) -> &str,
    /// What the node passes through, such as `flush`.
    pub passing: &'static str,
    /// What it ends in, such as `flushed`.
    pub reached: &'static str,
}

/// What a look at the node means for the waiting.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Reached,
    /// Under way, or not yet begun.
    GoOn,
    /// It has become something else, so somebody asked for something else meanwhile.
    Diverted,
}

impl Change {
    fn verdict(&self, state: &str, begun: bool) -> Verdict {
        match state {
            _ if state == self.reached => Verdict::Reached,
            _ if state == self.passing || !begun => Verdict::GoOn,
            _ => Verdict::Diverted,
        }
    }
}

/// Prints the reply to a request and, if `wait`, waits until the node has followed it. A reply
/// with the word `already` says there is nothing to wait for.
pub fn finish(pvc: &mut Pvc, node: &str, reply: &str, wait: bool, change: &Change) -> Outcome {
    pvc.out.line(reply);
    if !wait || reply.contains("already") {
        return Ok(());
    }
    pvc.out.flush();
    pvc.progress("Waiting...");
    interrupt::watch();
    let started = Instant::now();
    let outcome = watch(pvc, node, change, started);
    match &outcome {
        Ok(()) => pvc.progress(&format!(" done. [{}s]\n", started.elapsed().as_secs())),
        Err(_) => pvc.progress("\n"),
    }
    outcome
}

fn watch(pvc: &mut Pvc, node: &str, change: &Change, started: Instant) -> Outcome {
    let mut begun = false;
    let mut heard = Instant::now();
    for look in 1.. {
        interrupt::pause(PAUSE);
        if interrupt::happened() {
            return Err(Failure::interrupted(format!("no longer waiting; node `{node}` goes on"))
                .hint(format!("`pvc node info {node}` shows how far it is")));
        }
        if look % LOOKS_PER_DOT == 0 {
            pvc.progress(".");
        }
        let found = match pvc.client()?.node(node).and_then(|node| node.read()) {
            Ok(found) => found,
            Err(error) if may_pass(error.kind()) && heard.elapsed() < PATIENCE => continue,
            Err(error) => return Err(error.into()),
        };
        heard = Instant::now();
        let state = (change.state)(&found);
        begun = begun || state == change.passing;
        match change.verdict(state, begun) {
            Verdict::Reached => return Ok(()),
            Verdict::GoOn if begun || started.elapsed() < PATIENCE => {}
            Verdict::GoOn => {
                return Err(Failure::failed(format!("node `{node}` is still in state `{state}`"))
                    .hint("is its daemon running? `pvc node info` shows when it was last heard of"));
            }
            Verdict::Diverted => {
                return Err(Failure::failed(format!(
                    "node `{node}` ended in state `{state}` instead of `{}`",
                    change.reached
                )));
            }
        }
    }
    Ok(())
}

fn may_pass(kind: Kind) -> bool {
    matches!(kind, Kind::Unreachable | Kind::Server | Kind::BadAnswer)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLUSH: Change = Change { state: |node| &node.domain_state, passing: "flush", reached: "flushed" };

    #[test]
    fn a_node_that_has_not_begun_is_waited_for() {
        assert_eq!(FLUSH.verdict("ready", false), Verdict::GoOn);
        assert_eq!(FLUSH.verdict("flush", true), Verdict::GoOn);
        assert_eq!(FLUSH.verdict("flushed", true), Verdict::Reached);
        assert_eq!(FLUSH.verdict("unflush", true), Verdict::Diverted);
    }
}
