//! Time for which the tree has not been reached.

use std::sync::Arc;
use std::time::Duration;

use pvc_ports::{Clock, SessionState};
use tokio::sync::watch;

/// Since when there has been no connection, by the monotonic clock; `None` while there is one.
pub(crate) type Since = watch::Receiver<Option<Duration>>;

/// Keeps an eye on the session for as long as somebody listens.
pub(crate) fn observe(session: watch::Receiver<SessionState>, clock: Arc<dyn Clock>) -> Since {
    let (sender, since) = watch::channel(None);
    tokio::spawn(keep(session, clock, sender));
    since
}

async fn keep(
    mut session: watch::Receiver<SessionState>,
    clock: Arc<dyn Clock>,
    since: watch::Sender<Option<Duration>>,
) {
    loop {
        let connected = matches!(*session.borrow_and_update(), SessionState::Connected { .. });
        // From one way of being without a connection to another, the outage goes on.
        since.send_modify(|since| {
            *since = (!connected).then(|| since.unwrap_or_else(|| clock.monotonic()))
        });
        tokio::select! {
            biased;
            () = since.closed() => return,
            change = session.changed() => {
                if change.is_err() {
                    return;
                }
            }
        }
    }
}
