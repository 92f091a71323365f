use tokio::task::{JoinError, JoinSet};

/// Pieces of work of which only so many go on at a time, each in a task of its own. What is left of
/// them ends when this is dropped.
pub struct Few<Left, Ended> {
    left: Left,
    tasks: JoinSet<Ended>,
    most: usize,
}

impl<Left, Work> Few<Left, Work::Output>
where
    Left: Iterator<Item = Work>,
    Work: Future<Output: Send> + Send + 'static,
{
    /// The pieces of `work`, of which at most `most` are to go on at a time.
    pub fn new(most: usize, work: impl IntoIterator<IntoIter = Left>) -> Self {
        Few { left: work.into_iter(), tasks: JoinSet::new(), most }
    }

    /// Begins as many as may go on, and returns when one of them ends; `None` if all have ended.
    /// An error is a panic. Nothing is lost when this is dropped before.
    pub async fn ended(&mut self) -> Option<Result<Work::Output, JoinError>> {
        while self.tasks.len() < self.most
            && let Some(work) = self.left.next()
        {
            self.tasks.spawn(work);
        }
        self.tasks.join_next().await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use crate::tests::context;

    use super::*;

    /// Counts who is at work.
    struct AtWork(Arc<AtomicUsize>);

    impl AtWork {
        fn begin(count: &Arc<AtomicUsize>) -> AtWork {
            count.fetch_add(1, Ordering::SeqCst);
            AtWork(count.clone())
        }
    }

    impl Drop for AtWork {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_than_so_many_go_on_at_a_time_and_each_of_them_ends_once() {
        let (context, count) = (context().await, Arc::<AtomicUsize>::default());
        let mut few = Few::new(
            3,
            (1..=10).map(|number| {
                let (context, count) = (context.clone(), count.clone());
                async move {
                    let _at_work = AtWork::begin(&count);
                    context.sleep(Duration::from_secs(number % 4)).await;
                    (number, count.load(Ordering::SeqCst))
                }
            }),
        );
        let (mut ended, mut most) = (Vec::new(), 0);
        while let Some(done) = few.ended().await {
            let (number, at_work) = done.expect("it does not panic");
            ended.push(number);
            most = most.max(at_work);
        }
        ended.sort_unstable();
        assert_eq!((ended, most), ((1..=10).collect(), 3));
        assert_eq!(count.load(Ordering::SeqCst), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_piece_that_panics_is_an_error_and_the_others_go_on() {
        let work = ["good", "bad", "good"].map(|word| async move {
            assert_ne!(word, "bad", "a bad record");
            word
        });
        let mut few = Few::new(1, work);
        assert_eq!(few.ended().await.expect("three are left").expect("it is good"), "good");
        assert!(few.ended().await.expect("two are left").expect_err("it is bad").is_panic());
        assert_eq!(few.ended().await.expect("one is left").expect("it is good"), "good");
        assert!(few.ended().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_is_given_up_loses_nothing_and_all_end_with_whoever_has_them() {
        let (context, count) = (context().await, Arc::<AtomicUsize>::default());
        let mut few = Few::new(
            2,
            [5, 3600, 3600].map(|seconds| {
                let (context, count) = (context.clone(), count.clone());
                async move {
                    let _at_work = AtWork::begin(&count);
                    context.sleep(Duration::from_secs(seconds)).await;
                    seconds
                }
            }),
        );
        assert!(context.within(Duration::from_secs(1), few.ended()).await.is_none());
        assert_eq!(few.ended().await.expect("it goes on").expect("it does not panic"), 5);
        assert!(context.within(Duration::from_secs(1), few.ended()).await.is_none());
        assert_eq!(count.load(Ordering::SeqCst), 2);
        drop(few);
        let all_end = async {
            while count.load(Ordering::SeqCst) > 0 {
                tokio::task::yield_now().await;
            }
        };
        assert!(context.within(Duration::from_secs(1), all_end).await.is_some());
    }
}
