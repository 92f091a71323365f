//! Lists of what is in the trash, which the storage is asked for: one for all who want it at the
//! same time.
//!
//! Whoever asks joins a list that has not begun, and none that has: so he finds what he, or
//! anybody, did before.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, WeakShared};
use pvc_api_types::TrashedVolume;
use pvc_model::storage::PoolName;
use pvc_ports::Clock;

use crate::error::Result;

/// Time that a list waits for others to join before it begins.
const GATHER: Duration = Duration::from_millis(50);

type Listed = BoxFuture<'static, Result<Arc<Vec<TrashedVolume>>>>;

/// Lists that have not begun, by the pool that they are of; without one, of all.
type Waiting = BTreeMap<Option<PoolName>, WeakShared<Listed>>;

#[derive(Clone, Default)]
pub struct TrashLists {
    waiting: Arc<Mutex<Waiting>>,
    /// Held by the list that is under way.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl TrashLists {
    /// The list that `list` makes, or one that somebody else waits for and that has not begun.
    pub async fn listed(
        &self,
        clock: Arc<dyn Clock>,
        only: Option<PoolName>,
        list: impl Future<Output = Result<Vec<TrashedVolume>>> + Send + 'static,
    ) -> Result<Arc<Vec<TrashedVolume>>> {
        let listed: Shared<Listed> = {
            let mut waiting = self.waiting();
            // Those whose clients have all gone away never begin.
            waiting.retain(|_, listed| listed.upgrade().is_some());
            match waiting.get(&only).and_then(WeakShared::upgrade) {
                Some(listed) => listed,
                None => {
                    let listed = self.clone().list(clock, only.clone(), list).boxed().shared();
                    waiting.extend(listed.downgrade().map(|listed| (only, listed)));
                    listed
                }
            }
        };
        listed.await
    }

    async fn list(
        self,
        clock: Arc<dyn Clock>,
        only: Option<PoolName>,
        list: impl Future<Output = Result<Vec<TrashedVolume>>>,
    ) -> Result<Arc<Vec<TrashedVolume>>> {
        let _turn = self.turn.lock().await;
        clock.sleep(GATHER).await;
        self.waiting().remove(&only);
        list.await.map(Arc::new)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
