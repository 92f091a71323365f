//! The database's leader follows the primary role: `spec/coordination.md` §3, "Patroni step".

use std::sync::Arc;
use std::time::Duration;

use pvc_ports::{DatabaseCluster, DatabaseClusterError};
use tokio_util::sync::CancellationToken;

use crate::shared::Shared;

/// Number of quick attempts at a database that does not obey.
const TRIES: u32 = 5;

/// Time for which it is left alone in between.
const REST: Duration = Duration::from_secs(5);

/// Time as [`REST`], once it has been asked so often: what hinders it may be gone in an hour.
const LONG_REST: Duration = Duration::from_secs(60);

/// Time between two looks whether the leader is still here: Patroni gives it to another copy by
/// itself when this one's server ends. A server that ends again and again is not made leader more
/// often than that: each time that the leader has left between two looks, the next comes after
/// twice the time, up to [`LONGEST_LOOK`].
const LOOK: Duration = Duration::from_secs(300);

/// The longest time between two looks.
const LONGEST_LOOK: Duration = Duration::from_secs(3600);

/// Time that one attempt may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// Moves the leader here at the beginning of each term as primary, and whenever it has left by
/// itself, until `shutdown`.
pub(crate) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    let mut terms = shared.role.term.subscribe();
    loop {
        let term = *terms.borrow_and_update();
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            Ok(()) = terms.changed() => {}
            () = serve(&shared, term) => {}
        }
    }
}

/// Serves one term, and never returns: the next term ends it.
async fn serve(shared: &Shared, term: u64) {
    let Some(database) = shared.ports.database_cluster.as_ref().filter(|_| term > 0) else {
        shared.role.database_settled.send_replace(term);
        return std::future::pending().await;
    };
    let (mut is_first, mut had_moved, mut look) = (true, false, LOOK);
    loop {
        let has_moved = settle(shared, database.as_ref(), is_first).await;
        shared.role.database_settled.send_replace(term);
        let has_left_again = has_moved && had_moved;
        look = if has_left_again { LONGEST_LOOK.min(look * 2) } else { LOOK };
        (is_first, had_moved) = (false, has_moved);
        shared.sleep(look).await;
    }
}

/// Has the leader here; whether it had to be moved. But for the term's `is_first` time nobody is
/// asked for it in maintenance: somebody is at work, perhaps at the database.
async fn settle(shared: &Shared, database: &dyn DatabaseCluster, is_first: bool) -> bool {
    let mut attempt = 0_u32;
    loop {
        if !is_first {
            shared.until(|view| !view.config.maintenance).await;
        }
        attempt += 1;
        let error = match shared.within(DEADLINE, lead(shared, database)).await {
            Some(Ok(has_moved)) => return has_moved,
            Some(Err(error)) => error,
            None => DatabaseClusterError::TimedOut { seconds: DEADLINE.as_secs() },
        };
        let hint = error.hint().unwrap_or_default();
        tracing::warn!(%error, attempt, hint, "the database's leader is not on the primary node");
        shared.role.database_settled.send_replace(*shared.role.term.borrow());
        if attempt == TRIES {
            tracing::error!(
                every_seconds = LONG_REST.as_secs(),
                "the database's leader stays where it is; it is asked again for as long as this \
                 node is primary"
            );
        }
        shared.sleep(if attempt < TRIES { REST } else { LONG_REST }).await;
    }
}

/// Moves the leader here, unless it is; whether it was moved.
async fn lead(
    shared: &Shared,
    database: &dyn DatabaseCluster,
) -> Result<bool, DatabaseClusterError> {
    if database.leader().await?.as_ref() == Some(shared.name()) {
        return Ok(false);
    }
    database.switch_to(shared.name()).await?;
    tracing::info!("the database's leader is on this node now");
    Ok(true)
}
