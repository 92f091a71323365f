//! What nobody needs any more is removed from the store now and then: notes about moves of VMs that are gone.

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
            Some(Ok(count)) => tracing::info!(count, "notes about moves of VMs that are gone were removed"),
            Some(Err(error)) => tracing::debug!(%error, "nothing could be removed from the store now"),
            None => tracing::debug!("the store is slow; nothing could be removed from it now"),
        }
        tokio::select! {
            biased;
            () = end.cancelled() => return,
            () = shared.sleep(EVERY) => {}
        }
    }
}
