//! The end of volumes in the trash: the primary purges what is past its time.

use std::collections::BTreeSet;
use std::time::Duration;

use pvc_model::storage::{PoolName, TrashId};
use pvc_model::trash::{Kept, Now, TrashedVolume};
use pvc_ports::StorageError;
use pvc_role::{Context, DeadlineError};
use tokio_util::sync::CancellationToken;

/// Time between two looks into the trash.
const EVERY: Duration = Duration::from_secs(60);

/// Time that a look may take, and a purge. Adapters have deadlines of their own; these are for
/// those that forget.
const LOOK: Duration = Duration::from_secs(600);
const PURGE: Duration = Duration::from_secs(2 * 3600);

/// Looks into the trash of all pools, until `end`.
pub async fn run(context: Context, end: CancellationToken) {
    // A purge that takes long does not hold up the end; it is safe to cut off.
    end.run_until_cancelled(watch(&context, &end)).await;
}

async fn watch(context: &Context, end: &CancellationToken) {
    let mut sweeper = Sweeper::default();
    let mut turns = context.turns(end);
    while turns.next(EVERY).await {
        match context.is_primary() {
            true => sweeper.pass(context).await,
            // Whoever is primary meanwhile sees for itself.
            false => sweeper = Sweeper::default(),
        }
    }
}

#[derive(Default)]
struct Sweeper {
    kept: Kept,
    told: Told,
}

/// What was said of failures: once, until it works again.
#[derive(Default)]
struct Told {
    pools: BTreeSet<PoolName>,
    volumes: BTreeSet<(PoolName, TrashId)>,
}

impl Sweeper {
    async fn pass(&mut self, context: &Context) {
        let pools: Vec<PoolName> = context.store.view().pools.keys().cloned().collect();
        self.told.pools.retain(|pool| pools.contains(pool));
        self.told.volumes.retain(|(pool, _)| pools.contains(pool));
        for pool in pools {
            let listed = context.in_time(LOOK, context.ports.storage.trashed(&pool)).await;
            match listed {
                Ok(trashed) => self.sweep(context, &pool, trashed).await,
                Err(error) => self.told.of_pool(&pool, &error),
            }
        }
    }

    async fn sweep(&mut self, context: &Context, pool: &PoolName, trashed: Vec<TrashedVolume>) {
        self.told.pools.remove(pool);
        let is_there = |id: &TrashId| trashed.iter().any(|entry| entry.id == *id);
        self.told.volumes.retain(|(of, id)| of != pool || is_there(id));
        let now = Now { wall: context.ports.clock.wall(), monotonic: context.now() };
        for entry in self.kept.due(pool, trashed, now) {
            // The next purge is tried whatever becomes of this one.
            let purge = context.ports.storage.purge(&entry.pool, &entry.id);
            match context.in_time(PURGE, purge).await {
                Ok(()) => tracing::info!(
                    pool = %entry.pool, volume = %entry.name, id = %entry.id,
                    "purged a removed volume whose time was over"
                ),
                // Somebody restored or purged it this moment.
                Err(DeadlineError::Failed(StorageError::NoTrashed { .. })) => {}
                Err(error) => self.told.of_volume(&entry, &error),
            }
        }
    }
}

impl Told {
    fn of_pool(&mut self, pool: &PoolName, error: &DeadlineError<StorageError>) {
        if self.pools.insert(pool.clone()) {
            let error = pvc_model::with_causes(error);
            tracing::warn!(%pool, error, "the trash of a pool cannot be looked into; it is tried \
                                          again, and not said again");
        }
    }

    fn of_volume(&mut self, entry: &TrashedVolume, error: &DeadlineError<StorageError>) {
        if self.volumes.insert((entry.pool.clone(), entry.id.clone())) {
            let error = pvc_model::with_causes(error);
            tracing::warn!(
                pool = %entry.pool, volume = %entry.name, id = %entry.id, error,
                "a removed volume whose time is over cannot be purged; it is tried again, and not \
                 said again"
            );
        }
    }
}
