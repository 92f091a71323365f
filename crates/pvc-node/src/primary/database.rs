//! The database's leader follows the primary role: `spec/coordination.md` §3, "Patroni step".

use std::sync::Arc;
use std::time::Duration;

use pvc_ports::{Database, DatabaseError};
use tokio_util::sync::CancellationToken;

use crate::shared::Shared;

/// How often a database that does not obey is asked.
const TRIES: u32 = 5;

/// How long it is left alone in between.
const REST: Duration = Duration::from_secs(5);

/// How long one attempt may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// Moves the leader here at the beginning of each term as primary, until `shutdown`.
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
    if let Some(database) = shared.ports.database.as_ref().filter(|_| term > 0) {
        settle(shared, database.as_ref()).await;
    }
    shared.role.database_settled.send_replace(term);
    std::future::pending().await
}

async fn settle(shared: &Shared, database: &dyn Database) {
    for attempt in 1..=TRIES {
        let error = match shared.within(DEADLINE, lead(shared, database)).await {
            Some(Ok(())) => return,
            Some(Err(error)) => error,
            None => DatabaseError::TimedOut { seconds: DEADLINE.as_secs() },
        };
        let hint = error.hint().unwrap_or_default();
        tracing::warn!(%error, attempt, hint, "the database's leader is not on the primary node");
        shared.role.database_settled.send_replace(*shared.role.term.borrow());
        if attempt < TRIES {
            shared.sleep(REST).await;
        }
    }
    tracing::error!("the database's leader stays where it is; `pvc node primary` tries again");
}

async fn lead(shared: &Shared, database: &dyn Database) -> Result<(), DatabaseError> {
    if database.leader().await?.as_ref() == Some(shared.name()) {
        return Ok(());
    }
    database.switch_to(shared.name()).await?;
    tracing::info!("the database's leader is on this node now");
    Ok(())
}
