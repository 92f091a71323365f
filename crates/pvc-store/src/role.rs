//! The locks of the primary role, shared with legacy peers: `spec/coordination.md` §2 and §3.

use std::time::Duration;

use crate::error::StoreError;
use crate::lock::{LockGuard, LockKind, LockRecipe};
use crate::records::cluster;
use crate::store::Store;

/// A writer that has waited so long for readers alone may be what they wait for.
const STALL: Duration = Duration::from_millis(500);

/// The locks under which the primary role changes hands.
#[derive(Clone)]
pub struct RoleLocks {
    recipe: LockRecipe,
}

impl Store {
    pub fn role_locks(&self) -> RoleLocks {
        let recipe = LockRecipe::new(self.tree.clone(), self.clock.clone(), self.random.clone());
        RoleLocks { recipe }
    }
}

impl RoleLocks {
    /// The lock of whoever claims the role or takes it over, waited for at most `limit`.
    pub async fn candidate(&self, limit: Duration) -> Result<LockGuard, StoreError> {
        self.recipe.acquire(cluster::PRIMARY, LockKind::Exclusive, Some(limit)).await
    }

    /// The lock of one phase of a hand-over. A writer steps aside for readers of legacy peers that
    /// wait for it by mistake.
    pub async fn phase(&self, kind: LockKind, limit: Duration) -> Result<LockGuard, StoreError> {
        let recipe = self.recipe.clone().breaking_stalls(STALL);
        recipe.acquire(cluster::HAND_OVER, kind, Some(limit)).await
    }

    /// Returns when somebody stands in the queue of the phases to write, or writes.
    pub async fn until_writer(&self) -> Result<(), StoreError> {
        self.recipe.until_others_queue(cluster::HAND_OVER, None).await
    }

    /// Returns when a reader waits behind `own`, which is the lock of a phase.
    pub async fn until_reader_behind(&self, own: &LockGuard) -> Result<(), StoreError> {
        self.recipe.until_reader_behind(cluster::HAND_OVER, own).await
    }
}
