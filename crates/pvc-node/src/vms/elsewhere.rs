//! Guests that other nodes say they run, and whether it is so.
//!
//! A node of ours takes a guest that is gone from its list within a pass. A legacy peer may keep it
//! there until it is restarted, so its hypervisor is asked, as for a move: not knowing is not the
//! same as nothing running.

use std::time::Duration;

use pvc_model::Uuid;
use pvc_model::cluster::Cluster;
use pvc_model::node::NodeRecord;
use pvc_model::vm::plan::{may_be_outdated, runners};

use super::act::StepError;
use crate::shared::Shared;

/// Time after the first answer at which a hypervisor is asked again: a legacy daemon that restarts
/// a guest is without it for a moment.
const AGAIN: Duration = Duration::from_secs(5);

/// Time that a hypervisor may take to answer.
const ANSWER: Duration = Duration::from_secs(15);

/// Refuses a start as long as another node may have the guest, running or held.
pub(super) async fn check_elsewhere(
    shared: &Shared,
    view: &Cluster,
    vm: Uuid,
) -> Result<(), StepError> {
    let all: Vec<&NodeRecord> = runners(view, vm, shared.name()).collect();
    if all.is_empty() {
        return Ok(());
    }
    for pause in [None, Some(AGAIN)] {
        if let Some(pause) = pause {
            shared.sleep(pause).await;
        }
        for other in &all {
            check_one(shared, other, vm).await?;
        }
    }
    for other in &all {
        tracing::warn!(%vm, node = %other.name, "that node says it runs the VM, and its hypervisor \
                                                 does not have it");
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
