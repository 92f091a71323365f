use clap::Args;
use pvc_api_types::operations::fault::GetFaultsFaultId;
use pvc_api_types::operations::node::{DomainRequest, Duty, PostNodeNodeDomainState};
use pvc_api_types::param::{Flag, Nothing};
use pvc_client::Kind;
use pvc_model::fault::{NODE_FENCED, fault_id};

use super::Which;
use super::wait::{self, Change};
use crate::context::Pvc;
use crate::outcome::{Failure, Outcome};

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

    /// Do nothing as long as the fault of its last fence is there
    #[arg(long)]
    unless_fenced: bool,
}

impl Ready {
    pub fn run(self, pvc: &mut Pvc) -> Outcome {
        let node = self.node.name();
        if self.unless_fenced
            && let Some(fault) = fault_of_fence(pvc, &node)?
        {
            pvc.warn(&format!("node `{node}` was fenced (fault `{fault}`): it takes no VMs yet"));
            pvc.hint(&format!(
                "when it is well, `pvc node ready {node}`, then `pvc cluster fault delete {fault}`"
            ));
            return Ok(());
        }
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

/// Id of the fault of the node's last fence, if it is there.
fn fault_of_fence(pvc: &mut Pvc, node: &str) -> Result<Option<String>, Failure> {
    let id = fault_id(NODE_FENCED, node);
    match pvc.client()?.read(GetFaultsFaultId, [&id], &Nothing).and_then(|found| found.read()) {
        Ok(found) if found.is_empty() => Ok(None),
        Ok(_) => Ok(Some(id)),
        Err(error) if error.kind() == Kind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}
