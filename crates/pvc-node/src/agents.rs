//! Asks the agents in guests for their addresses, one after the other, in a task of its own: a
//! guest answers when it likes, and nothing else waits for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pvc_model::Uuid;
use tokio_util::sync::CancellationToken;

use crate::shared::Shared;

/// Time between two rounds.
const EVERY: Duration = Duration::from_secs(60);

/// Time after which the hypervisor itself is given up; it does not wait so long for an agent.
const DEADLINE: Duration = Duration::from_secs(30);

/// Works until `shutdown`.
pub(crate) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            () = round(&shared) => {}
        }
    }
}

/// Asks all of them, and rests.
async fn round(shared: &Shared) {
    let Some(agents) = shared.ports.hypervisor.agents() else { return };
    let guests: Vec<Uuid> = shared.guests.borrow().known.keys().copied().collect();
    let mut said = BTreeMap::new();
    for uuid in guests {
        match shared.in_time(DEADLINE, agents.addresses(uuid)).await {
            Ok(addresses) if addresses.is_empty() => {}
            Ok(addresses) => _ = said.insert(uuid, addresses),
            // Of one that does not answer, or is gone, nothing is known.
            Err(error) => tracing::debug!(%uuid, %error, "the agent in a guest says nothing"),
        }
    }
    shared.collected().addresses = said;
    shared.sleep(EVERY).await;
}
