//! Regular cleaning of the store: notes about moves of VMs that are gone are removed; and keys that
//! are open in a store that was closed, because somebody created them just then, are closed, by the
//! primary.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::shared::Shared;

const EVERY: Duration = Duration::from_secs(3600);

const DEADLINE: Duration = Duration::from_secs(60);

/// Works until `end`.
pub(crate) async fn run(shared: Arc<Shared>, end: CancellationToken) {
    let mut turns = shared.turns(&end);
    while turns.next(EVERY).await {
        match shared.in_time(DEADLINE, shared.store.remove_lost_move_notes()).await {
            Ok(0) => {}
            Ok(count) => {
                tracing::info!(count, "notes about moves of VMs that are gone were removed")
            }
            Err(error) => tracing::debug!(%error, "nothing could be removed from the store now"),
        }
        if shared.is_named_primary(&shared.store.view()) && shared.store.has_password() {
            repair_protection(&shared).await;
        }
    }
}

async fn repair_protection(shared: &Shared) {
    match shared.in_time(DEADLINE, shared.store.repair_protection()).await {
        Ok(0) => {}
        Ok(count) => {
            tracing::info!(count, "keys of the store are for those now who may use the others")
        }
        Err(error) => {
            tracing::debug!(%error, "who may use the store's keys could not be put in order")
        }
    }
}
