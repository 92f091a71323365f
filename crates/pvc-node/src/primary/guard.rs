//! The dead man's switch of a primary: without word from the store for as long as the store
//! remembers a silent session, it lets go of everything, because somebody else may be primary by
//! then (I12).

use std::sync::Arc;
use std::time::Duration;

use pvc_ports::{MultiError, Op};
use tokio_util::sync::CancellationToken;

use super::role;
use crate::shared::Shared;

/// Time between two looks at whether this node still has the right to be primary.
const EVERY: Duration = Duration::from_secs(1);

/// Time between two renewals of the addresses' leases, and between two requests to the kernel to
/// let go of what is to go.
const RENEW: Duration = Duration::from_secs(1);

/// Time without a sign of life after which the store is asked for one. What the kernel is told is
/// counted from the last, so this leaves it most of a session's time, should this program be held
/// up.
const ASK_AFTER: Duration = Duration::from_secs(3);

/// Time that the store may take to give a sign of life.
const PROBE: Duration = Duration::from_secs(2);

/// Watches until `shutdown`.
pub(crate) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    let mut renewed = shared.now();
    let mut turns = shared.turns(&shutdown);
    while turns.next(EVERY).await {
        if !shared.role.has_looked() {
            role::adopt(&shared).await;
        }
        if shared.role.holds() {
            watch(&shared, &mut renewed).await;
        }
    }
}

async fn watch(shared: &Shared, renewed: &mut Duration) {
    // Looked at before the store is asked: after a pause of this whole program the answer would
    // come too late.
    if role::is_cut_off(shared) {
        tracing::error!(
            seconds = shared.settings.session_timeout.as_secs(),
            "the store has not answered for so long that somebody else may be primary; \
             what goes with the primary role is given up"
        );
        role::leave_all(shared).await;
        return;
    }
    // The keepalive's stamps are signs of life; this is for when they are late, or rare.
    if role::silent_for(shared) > ASK_AFTER.min(shared.settings.session_timeout / 3) {
        let sent = shared.now();
        if shared.within(PROBE, answers(shared)).await == Some(true) {
            shared.role.store_answered(sent);
        }
    }
    if shared.now().saturating_sub(*renewed) >= RENEW {
        *renewed = shared.now();
        // As long as something of it is here this node counts as one that serves, and takes nothing
        // back.
        role::leave_what_stays(shared).await;
        role::renew(shared).await;
    }
}

/// Whether a majority of the store answers. A read or a `sync` is answered by a leader that has
/// lost its followers, until it notices; what changes something, or might have, is not.
async fn answers(shared: &Shared) -> bool {
    let nothing = Op::Check { path: "/".to_owned(), version: 0 };
    matches!(
        shared.store.tree().multi(vec![nothing]).await,
        Ok(_) | Err(MultiError::Refused { .. })
    )
}
