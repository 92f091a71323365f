//! What is put in order in the store now and then: notes about moves of VMs that are gone are
//! removed; and keys that are open in a store that was closed, because somebody created them just
//! then, are closed, by the primary.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::shared::Shared;

const EVERY: Duration = Duration::from_secs(3600);

const DEADLINE: Duration = Duration::from_secs(60);

/// Works until `end`.
pub(crate) async fn run(shared: Arc<Shared>, end: CancellationToken) {
    loop {
        match shared.within(DEADLINE, shared.store.remove_lost_move_notes()).await {
            Some(Ok(0)) => {}
            Some(Ok(count)) => {
                tracing::info!(count, "notes about moves of VMs that are gone were removed")
            }
            Some(Err(error)) => {
                tracing::debug!(%error, "nothing could be removed from the store now")
            }
            None => tracing::debug!("the store is slow; nothing could be removed from it now"),
        }
        let is_primary = shared.store.view().config.primary.as_ref() == Some(shared.name());
        if is_primary && shared.store.has_password() {
            repair_protection(&shared).await;
        }
        tokio::select! {
            biased;
            () = end.cancelled() => return,
            () = shared.sleep(EVERY) => {}
        }
    }
}

async fn repair_protection(shared: &Shared) {
    match shared.within(DEADLINE, shared.store.repair_protection()).await {
        Some(Ok(0)) => {}
        Some(Ok(count)) => {
            tracing::info!(count, "keys of the store are for those now who may use the others")
        }
        Some(Err(error)) => {
            tracing::debug!(%error, "who may use the store's keys could not be put in order")
        }
        None => {
            tracing::debug!("the store is slow; who may use its keys could not be put in order")
        }
    }
}
