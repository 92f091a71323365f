use std::time::Duration;

use tokio::task::{self, JoinError, JoinSet};

use crate::Context;

/// Work that passes have begun and not waited for: each piece of it in a task of its own, so that
/// one that hangs holds up neither the looking nor another. The key says what it is for.
pub struct UnderWay<Key, Ended> {
    tasks: JoinSet<Ended>,
    keys: Vec<(task::Id, Key)>,
}

/// Result of a piece of work.
#[derive(Debug)]
pub struct Done<Key, Ended> {
    pub key: Key,
    /// An error is a panic.
    pub ended: Result<Ended, JoinError>,
}

impl<Key, Ended> Default for UnderWay<Key, Ended> {
    fn default() -> Self {
        UnderWay { tasks: JoinSet::new(), keys: Vec::new() }
    }
}

impl<Key, Ended: Send + 'static> UnderWay<Key, Ended> {
    pub fn begin(&mut self, key: Key, work: impl Future<Output = Ended> + Send + 'static) {
        self.keys.push((self.tasks.spawn(work).id(), key));
    }

    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Whether work for `key` is under way, which is not to be begun twice.
    pub fn is_for(&self, key: &Key) -> bool
    where
        Key: PartialEq,
    {
        self.keys.iter().any(|(_, other)| other == key)
    }

    /// Returns when something ends; `None` if nothing is under way. Nothing is lost when this is
    /// dropped before.
    pub async fn ended(&mut self) -> Option<Done<Key, Ended>> {
        let ended = self.tasks.join_next_with_id().await?;
        Some(self.done(ended))
    }

    /// Returns a piece of work that has ended already.
    pub fn try_ended(&mut self) -> Option<Done<Key, Ended>> {
        let ended = self.tasks.try_join_next_with_id()?;
        Some(self.done(ended))
    }

    fn done(&mut self, ended: Result<(task::Id, Ended), JoinError>) -> Done<Key, Ended> {
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let at = self.keys.iter().position(|(other, _)| *other == id);
        let (_, key) = self.keys.swap_remove(at.expect("all of them were begun with a key"));
        Done { key, ended: ended.map(|(_, ended)| ended) }
    }

    /// Waits until everything has ended; what becomes of it is nobody's concern any more. False if
    /// that takes longer than `deadline`.
    pub async fn finish(&mut self, context: &Context, deadline: Duration) -> bool {
        let all = async { while self.ended().await.is_some() {} };
        context.within(deadline, all).await.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::tests::context;

    #[tokio::test(start_paused = true)]
    async fn each_end_comes_with_what_it_was_for_and_so_does_a_panic() {
        let context = context().await;
        let mut under_way = UnderWay::default();
        under_way.begin("slow", std::future::pending());
        let (first, second) = (context.clone(), context.clone());
        under_way.begin("good", async move {
            first.sleep(Duration::from_secs(1)).await;
            7
        });
        under_way.begin("bad", async move {
            second.sleep(Duration::from_secs(2)).await;
            panic!("a bad record")
        });
        assert!(under_way.try_ended().is_none() && under_way.is_for(&"good"));
        let good = under_way.ended().await.expect("it was begun");
        assert_eq!((good.key, good.ended.expect("it does not panic")), ("good", 7));
        let bad = under_way.ended().await.expect("it was begun");
        assert_eq!(bad.key, "bad");
        assert!(bad.ended.expect_err("it panics").is_panic());
        assert!(!under_way.is_for(&"good") && under_way.is_for(&"slow"));
        assert!(!under_way.finish(&context, Duration::from_secs(15)).await);
        assert!(!under_way.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_ends_in_time_is_waited_for() {
        let context = context().await;
        let mut under_way = UnderWay::default();
        let slept = context.clone();
        under_way.begin((), async move { slept.sleep(Duration::from_secs(10)).await });
        assert!(under_way.finish(&context, Duration::from_secs(15)).await);
        assert!(under_way.is_empty() && under_way.ended().await.is_none());
    }
}
