//! Lists of what is in the trash, which the storage is asked for: one for all who want it at the
//! same time.
//!
//! Whoever asks joins a list that has not begun, and none that has: so he finds what he, or
//! anybody, did before. A pool whose list hangs holds up its own list and that of all pools, and
//! no other.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
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

/// A list of one pool; without one, of all.
type Of = Option<PoolName>;

/// Held by the list that is under way.
type Turn = tokio::sync::Mutex<()>;

#[derive(Clone, Default)]
pub struct TrashLists {
    /// Lists that have not begun.
    waiting: Arc<Mutex<BTreeMap<Of, WeakShared<Listed>>>>,
    /// Turns of the lists that wait or are under way.
    turns: Arc<Mutex<BTreeMap<Of, Weak<Turn>>>>,
}

impl TrashLists {
    /// The list that `list` makes, or one that somebody else waits for and that has not begun.
    pub async fn listed(
        &self,
        clock: Arc<dyn Clock>,
        only: Of,
        list: impl Future<Output = Result<Vec<TrashedVolume>>> + Send + 'static,
    ) -> Result<Arc<Vec<TrashedVolume>>> {
        let listed: Shared<Listed> = {
            let mut waiting = lock(&self.waiting);
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
        only: Of,
        list: impl Future<Output = Result<Vec<TrashedVolume>>>,
    ) -> Result<Arc<Vec<TrashedVolume>>> {
        let turn = self.turn(&only);
        let _turn = turn.lock().await;
        clock.sleep(GATHER).await;
        lock(&self.waiting).remove(&only);
        list.await.map(Arc::new)
    }

    /// The turn of all who list the same.
    fn turn(&self, only: &Of) -> Arc<Turn> {
        let mut turns = lock(&self.turns);
        // Of any name that anybody has asked for, as long as somebody waits.
        turns.retain(|_, turn| turn.strong_count() > 0);
        turns.get(only).and_then(Weak::upgrade).unwrap_or_else(|| {
            let turn = Arc::<Turn>::default();
            turns.insert(only.clone(), Arc::downgrade(&turn));
            turn
        })
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use pvc_testkit::TokioClock;

    use super::*;

    fn pool(name: &str) -> Of {
        Some(PoolName::new(name))
    }

    #[tokio::test(start_paused = true)]
    async fn a_pool_that_hangs_holds_up_no_list_of_another() {
        let (lists, clock) = (TrashLists::default(), Arc::new(TokioClock::new()));
        let (begins, begun) = tokio::sync::oneshot::channel();
        let hangs = async move {
            begins.send(()).unwrap();
            std::future::pending().await
        };
        let hanging = tokio::spawn({
            let (lists, clock) = (lists.clone(), clock.clone());
            async move { lists.listed(clock, pool("slow"), hangs).await }
        });
        begun.await.unwrap();
        for other in [pool("fast"), None] {
            let listed = lists.listed(clock.clone(), other, async { Ok(Vec::new()) }).await;
            assert_eq!(listed.unwrap().len(), 0);
        }
        // One of the same pool has its turn when that one is over.
        let next = lists.listed(clock.clone(), pool("slow"), async { Ok(Vec::new()) });
        let (listed, ()) = tokio::join!(next, async { hanging.abort() });
        assert_eq!(listed.unwrap().len(), 0);
        drop(lists.listed(clock, None, async { Ok(Vec::new()) }).await);
        assert!(lock(&lists.turns).len() <= 1, "nobody waits any more");
    }

    #[tokio::test(start_paused = true)]
    async fn who_ask_for_one_pool_at_once_share_a_list() {
        let (lists, clock) = (TrashLists::default(), Arc::new(TokioClock::new()));
        let made = Arc::new(AtomicUsize::new(0));
        let list = |of| {
            let made = made.clone();
            let list = async move {
                made.fetch_add(1, Ordering::Relaxed);
                Ok(Vec::new())
            };
            lists.listed(clock.clone(), of, list)
        };
        let all = [pool("vms"), pool("vms"), pool("ssd"), None, pool("vms")].map(list);
        let all = futures::future::join_all(all).await;
        assert!(all.iter().all(Result::is_ok));
        assert_eq!(made.load(Ordering::Relaxed), 3, "one of each");
    }
}
