//! The lock of those who fence.

use std::time::Duration;

use crate::error::StoreError;
use crate::lock::{LockGuard, LockKind, LockRecipe};
use crate::records::cluster;
use crate::store::Store;

impl Store {
    /// The lock of whoever fences, waited for at most `limit`. Older peers hold it from the first
    /// look to the end of the recovery.
    pub async fn fence_lock(&self, limit: Duration) -> Result<LockGuard, StoreError> {
        let recipe = LockRecipe::new(self.tree.clone(), self.clock.clone(), self.random.clone());
        recipe.acquire(cluster::FENCE_LOCK, LockKind::Exclusive, Some(limit)).await
    }
}
