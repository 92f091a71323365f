//! Guests that other nodes say they run, and whether it is so.
//!
//! A node of ours takes a guest that is gone from its list within a pass. A legacy peer may keep it
//! there until it is restarted, so its hypervisor is asked, as for a move: not knowing is not the
//! same as nothing running.

use std::time::Duration;

use pvc_model::Uuid;
use pvc_model::cluster::Cluster;
use pvc_model::node::NodeRecord;
use pvc_model::vm::moving::{MoveNote, left_open_by_legacy};
use pvc_model::vm::plan::{Answered, may_be_outdated};

use super::act::{Actor, Ended, StepError};
use super::close_if;
use crate::shared::Shared;

/// Time after the first answer at which a hypervisor is asked again: a legacy daemon that restarts
/// a guest is without it for a moment.
const AGAIN: Duration = Duration::from_secs(5);

/// Time that a hypervisor may take to answer.
const ANSWER: Duration = Duration::from_secs(15);

/// Time after which a hypervisor that may hold a guest is asked again.
pub(super) const ASK_LATER: Duration = Duration::from_secs(60);

/// Asks the nodes that may have the VM by `view`, but for those that have `answered` before.
/// Returns whether there was any to ask.
///
/// # Errors
/// Another node may have the guest, running or held.
pub(super) async fn check_elsewhere(
    shared: &Shared,
    view: &Cluster,
    vm: Uuid,
    answered: &mut Answered,
) -> Result<bool, StepError> {
    let unasked = answered.unasked(view, vm, shared.name());
    if unasked.is_empty() {
        return Ok(false);
    }
    check_all(shared, &unasked, vm).await?;
    for other in &unasked {
        tracing::warn!(%vm, node = %other.name, "that node says it runs the VM, and its hypervisor \
                                                 does not have it");
    }
    answered.add(&unasked);
    Ok(true)
}

impl Actor {
    /// Closes the note of a hand-over for a legacy peer, if that has no guest of the VM: it would
    /// never do so itself, and until it is done the VM counts as running there.
    pub async fn close_for_legacy(self, vm: Uuid, note: MoveNote, to: NodeRecord) -> Ended {
        match check_all(&self.shared, &[&to], vm).await {
            Ok(()) => {
                tracing::info!(%vm, node = %to.name, "nothing is left of the VM on the node that \
                                                      it was handed over to");
                // Unless the records say more by now: it may have been started there.
                let is_open = |cluster: &Cluster, vm: Uuid, note: &MoveNote| {
                    let open = left_open_by_legacy(cluster, self.shared.name());
                    open.iter().any(|(record, open, _)| record.uuid == vm && *open == note)
                };
                let node = note.to.clone();
                close_if(&self.shared, &node, &[(vm, note)], is_open).await;
            }
            Err(why) => tracing::warn!(%vm, %why, "the VM was handed over to a node that has gone \
                                                   back to PVC 1.0.3, and counts as running there"),
        }
        Ended::Aside
    }
}

/// Asks each of `nodes` twice whether it has the guest.
///
/// # Errors
/// One may have it, running or held.
async fn check_all(shared: &Shared, nodes: &[&NodeRecord], vm: Uuid) -> Result<(), StepError> {
    for pause in [None, Some(AGAIN)] {
        if let Some(pause) = pause {
            shared.sleep(pause).await;
        }
        for other in nodes {
            check_one(shared, other, vm).await?;
        }
    }
    Ok(())
}

async fn check_one(shared: &Shared, other: &NodeRecord, vm: Uuid) -> Result<(), StepError> {
    let is_there = |why: String| Err(StepError::Elsewhere { node: other.name.clone(), why });
    if !may_be_outdated(other) {
        return is_there("which is to end it first".to_owned());
    }
    let host = shared.settings.migration.host(&other.name);
    match shared.within(ANSWER, shared.ports.hypervisor.state_at(&host, vm)).await {
        Some(Ok(None)) => Ok(()),
        Some(Ok(Some(_))) => is_there("and its hypervisor has it".to_owned()),
        Some(Err(error)) => is_there(format!("and its hypervisor does not tell: {error}")),
        None => is_there("and its hypervisor does not answer".to_owned()),
    }
}
