//! Questions that are dear to answer: one for all who ask the same at the same time.
//!
//! Whoever asks joins a question that has not begun, and none that has: so he finds what he, or
//! anybody, did before. One that hangs holds up those who ask the same, and others only where all
//! of a kind have so many places: the trash of a pool holds up no other pool's.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared, WeakShared};
use pvc_ports::Clock;
use tokio::sync::Semaphore;

use crate::error::Result;

/// Time that a question waits for others to join before it begins. It has its place meanwhile: so
/// many of a kind are begun in this time, and no more.
const GATHER: Duration = Duration::from_millis(50);

type Answered<T> = BoxFuture<'static, Result<Arc<T>>>;

/// Held by the question that is under way.
type Turn = tokio::sync::Mutex<()>;

/// Questions of a kind by what they are about, `K`.
pub struct Questions<K, T> {
    /// Questions that have not begun.
    waiting: Arc<Mutex<BTreeMap<K, WeakShared<Answered<T>>>>>,
    /// Turns of questions that wait or are under way.
    turns: Arc<Mutex<BTreeMap<K, Weak<Turn>>>>,
    places: Arc<Semaphore>,
}

impl<K, T> Clone for Questions<K, T> {
    fn clone(&self) -> Self {
        let Questions { waiting, turns, places } = self;
        Questions { waiting: waiting.clone(), turns: turns.clone(), places: places.clone() }
    }
}

impl<K, T> Questions<K, T>
where
    K: Ord + Clone + Send + 'static,
    T: Send + Sync + 'static,
{
    /// Questions of which as many are asked at once as there is to ask about.
    pub fn unlimited() -> Self {
        Self::at_once(Semaphore::MAX_PERMITS)
    }

    /// Questions of which only so many are asked at once, whatever they are about.
    pub fn at_once(places: usize) -> Self {
        let places = Arc::new(Semaphore::new(places));
        Questions { waiting: Arc::default(), turns: Arc::default(), places }
    }

    /// The answer of `ask`, or that of one which somebody else waits for and that has not begun.
    pub async fn answered(
        &self,
        clock: Arc<dyn Clock>,
        of: K,
        ask: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<Arc<T>> {
        let answered: Shared<Answered<T>> = {
            let mut waiting = lock(&self.waiting);
            // Those whose clients have all gone away never begin.
            waiting.retain(|_, answered| answered.upgrade().is_some());
            match waiting.get(&of).and_then(WeakShared::upgrade) {
                Some(answered) => answered,
                None => {
                    let answered: Answered<T> = self.clone().ask(clock, of.clone(), ask).boxed();
                    let answered = answered.shared();
                    waiting.extend(answered.downgrade().map(|answered| (of, answered)));
                    answered
                }
            }
        };
        answered.await
    }

    async fn ask(
        self,
        clock: Arc<dyn Clock>,
        of: K,
        ask: impl Future<Output = Result<T>>,
    ) -> Result<Arc<T>> {
        let turn = self.turn(&of);
        let _turn = turn.lock().await;
        let _place = self.places.acquire().await.expect("nobody closes it");
        clock.sleep(GATHER).await;
        lock(&self.waiting).remove(&of);
        ask.await.map(Arc::new)
    }

    /// The turn of all who ask the same.
    fn turn(&self, of: &K) -> Arc<Turn> {
        let mut turns = lock(&self.turns);
        // Of any name that anybody has asked about, as long as somebody waits.
        turns.retain(|_, turn| turn.strong_count() > 0);
        turns.get(of).and_then(Weak::upgrade).unwrap_or_else(|| {
            let turn = Arc::<Turn>::default();
            turns.insert(of.clone(), Arc::downgrade(&turn));
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

    type Lists = Questions<Option<&'static str>, Vec<u8>>;

    fn pool(name: &'static str) -> Option<&'static str> {
        Some(name)
    }

    #[tokio::test(start_paused = true)]
    async fn a_pool_that_hangs_holds_up_no_list_of_another() {
        let (lists, clock) = (Lists::unlimited(), Arc::new(TokioClock::new()));
        let (begins, begun) = tokio::sync::oneshot::channel();
        let hangs = async move {
            begins.send(()).unwrap();
            std::future::pending().await
        };
        let hanging = tokio::spawn({
            let (lists, clock) = (lists.clone(), clock.clone());
            async move { lists.answered(clock, pool("slow"), hangs).await }
        });
        begun.await.unwrap();
        for other in [pool("fast"), None] {
            let listed = lists.answered(clock.clone(), other, async { Ok(Vec::new()) }).await;
            assert_eq!(listed.unwrap().len(), 0);
        }
        // One of the same pool has its turn when that one is over.
        let next = lists.answered(clock.clone(), pool("slow"), async { Ok(Vec::new()) });
        let (listed, ()) = tokio::join!(next, async { hanging.abort() });
        assert_eq!(listed.unwrap().len(), 0);
        drop(lists.answered(clock, None, async { Ok(Vec::new()) }).await);
        assert!(lock(&lists.turns).len() <= 1, "nobody waits any more");
    }

    #[tokio::test(start_paused = true)]
    async fn who_ask_for_one_pool_at_once_share_a_list() {
        let (lists, clock) = (Lists::unlimited(), Arc::new(TokioClock::new()));
        let made = Arc::new(AtomicUsize::new(0));
        let list = |of| {
            let made = made.clone();
            let list = async move {
                made.fetch_add(1, Ordering::Relaxed);
                Ok(Vec::new())
            };
            lists.answered(clock.clone(), of, list)
        };
        let all = [pool("vms"), pool("vms"), pool("ssd"), None, pool("vms")].map(list);
        let all = futures::future::join_all(all).await;
        assert!(all.iter().all(Result::is_ok));
        assert_eq!(made.load(Ordering::Relaxed), 3, "one of each");
    }

    #[tokio::test(start_paused = true)]
    async fn of_a_kind_only_so_many_are_asked_at_once_and_in_a_while() {
        let (questions, clock) = (Questions::at_once(4), Arc::new(TokioClock::new()));
        let (asking, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let ask = |number: usize| {
            let (asking, most) = (asking.clone(), most.clone());
            let ask = async move {
                most.fetch_max(asking.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                asking.fetch_sub(1, Ordering::Relaxed);
                Ok(number)
            };
            questions.answered(clock.clone(), number, ask)
        };
        let begun = tokio::time::Instant::now();
        let all = futures::future::join_all((0..40).map(ask)).await;
        assert!(
            all.iter().enumerate().all(|(number, answer)| **answer.as_ref().unwrap() == number)
        );
        assert!(most.load(Ordering::Relaxed) <= 4);
        assert!(begun.elapsed() >= 10 * GATHER, "{:?}", begun.elapsed());
    }
}
