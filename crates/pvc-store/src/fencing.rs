//! What a fencer needs that nobody else does: the lock, and the way to a node's BMC.

use std::time::Duration;

use pvc_model::NodeName;

use crate::change::Ipmi;
use crate::error::StoreError;
use crate::keys;
use crate::lock::{LockGuard, LockKind, LockRecipe};
use crate::store::Store;

impl Store {
    /// The lock of whoever fences, waited for at most `limit`. Older peers hold it from the first
    /// look to the end of the recovery.
    pub async fn fence_lock(&self, limit: Duration) -> Result<LockGuard, StoreError> {
        let recipe = LockRecipe::new(self.tree.clone(), self.clock.clone(), self.random.clone());
        recipe.acquire(keys::FENCE_LOCK, LockKind::Exclusive, Some(limit)).await
    }

    /// How to reach the BMC of `node`; `None` if it has none.
    pub fn ipmi(&self, node: &NodeName) -> Option<Ipmi> {
        self.with_raw(|raw| {
            let text = |key: &str| {
                raw.text(&keys::node(node, key)).map(|text| text.into_owned()).unwrap_or_default()
            };
            let ipmi = Ipmi {
                hostname: text("ipmihostname"),
                username: text("ipmiusername"),
                password: text("ipmipassword"),
            };
            (!ipmi.hostname.is_empty()).then_some(ipmi)
        })
    }
}
