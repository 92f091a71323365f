//! The way out of a daemon that is asked to end before it has begun.
//!
//! Systemd and operators wait for it, and who stops a start often does so because it hangs: on the
//! store, on the hypervisor, or on both. So all that such a daemon still does has one deadline
//! together, which counts from the signal: what one step has used up, the next ones lack. A daemon
//! that has begun takes its time: it has guests to look after, and a role to hand over.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pvc_ports::{Clock, Tree};
use tokio_util::sync::CancellationToken;

/// Time after the signal in which a daemon that had not begun is gone: less than the 5 s that
/// operators are promised.
pub const GONE_WITHIN: Duration = Duration::from_millis(4_500);

/// Part of that time that is left for the process itself: the last lines of its log, and threads
/// that wait for the system.
const FOR_THE_PROCESS: Duration = Duration::from_millis(500);

/// Time that the server of a store may take for the last of its answers.
const CLOSE: Duration = Duration::from_secs(2);

/// The request that a daemon ends, and by when it has to be gone if it has not begun.
#[derive(Clone)]
pub struct Shutdown {
    clock: Arc<dyn Clock>,
    asked: CancellationToken,
    /// Monotonic.
    asked_at: Arc<OnceLock<Duration>>,
    has_begun: Arc<AtomicBool>,
}

impl Shutdown {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let (asked_at, has_begun) = (Arc::default(), Arc::default());
        Shutdown { clock, asked: CancellationToken::new(), asked_at, has_begun }
    }

    /// Asks the daemon to end. Who asks again is not given more time, and no less.
    pub fn ask(&self) {
        self.asked_at.get_or_init(|| self.clock.monotonic());
        self.asked.cancel();
    }

    /// Returns the token that is cancelled once the daemon is asked to end.
    pub fn asked(&self) -> &CancellationToken {
        &self.asked
    }

    /// The daemon has begun: its way out takes as long as it takes.
    pub fn begun(&self) {
        self.has_begun.store(true, Ordering::SeqCst);
    }

    /// Time left until the process has to be gone; `None` while it need not.
    pub fn left(&self) -> Option<Duration> {
        let asked_at = self.asked_at.get().filter(|_| !self.has_begun.load(Ordering::SeqCst))?;
        Some((*asked_at + GONE_WITHIN).saturating_sub(self.clock.monotonic()))
    }

    /// `usual`, or less if not so much is left.
    pub fn at_most(&self, usual: Duration) -> Duration {
        self.left().map_or(usual, |left| left.min(usual))
    }

    /// Runs `work`. Returns what comes of it, or `None` if the time was over: then it is dropped
    /// where it stands.
    pub async fn in_time<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.overdue() => None,
        }
    }

    async fn overdue(&self) {
        self.asked.cancelled().await;
        while let Some(left) = self.left() {
            let left = left.saturating_sub(FOR_THE_PROCESS);
            if left.is_zero() {
                return;
            }
            self.clock.sleep(left).await;
        }
        std::future::pending().await
    }
}

/// Runs `role` on a session of its own with the store, which is closed in the end. A start that is
/// asked to stop before the store has answered waits for it no longer: then it is `None`.
///
/// # Errors
/// Those of `open` and of `role`.
pub async fn on_session<T: Tree + ?Sized, S, Ended, E>(
    open: impl Future<Output = Result<(Arc<T>, S), E>>,
    clock: &dyn Clock,
    shutdown: &CancellationToken,
    role: impl AsyncFnOnce(Arc<T>, S) -> Result<Ended, E>,
) -> Result<Option<Ended>, E> {
    let Some(opened) = shutdown.run_until_cancelled(open).await else { return Ok(None) };
    let (tree, store) = opened?;
    let ended = role(tree.clone(), store).await;
    close(tree.as_ref(), clock).await;
    ended.map(Some)
}

/// Closes a session. A server that does not answer keeps no daemon from its end: it ends the
/// session by itself.
async fn close(tree: &(impl Tree + ?Sized), clock: &dyn Clock) {
    tokio::select! {
        biased;
        () = tree.close() => {}
        () = clock.sleep(CLOSE) => tracing::warn!("the store did not answer the end of the \
                                                   session"),
    }
}

#[cfg(test)]
mod tests {
    use pvc_testkit::TokioClock;

    use super::*;

    fn shutdown() -> (Shutdown, Arc<TokioClock>) {
        let clock = Arc::new(TokioClock::new());
        (Shutdown::new(clock.clone()), clock)
    }

    #[tokio::test(start_paused = true)]
    async fn what_one_step_has_used_up_the_next_ones_lack() {
        let (shutdown, clock) = shutdown();
        assert_eq!(shutdown.left(), None, "nobody has asked");
        shutdown.ask();
        // As a thread does that is held up while it lets go of a guest: nobody looks meanwhile.
        tokio::time::advance(Duration::from_secs(3)).await;
        shutdown.ask();
        assert_eq!(shutdown.in_time(std::future::pending::<()>()).await, None);
        assert_eq!(clock.monotonic(), GONE_WITHIN - FOR_THE_PROCESS);
        assert_eq!(shutdown.at_most(Duration::from_secs(1)), FOR_THE_PROCESS);
        assert_eq!(shutdown.at_most(Duration::from_millis(100)), Duration::from_millis(100));
        assert_eq!(shutdown.in_time(async { 7 }).await, Some(7), "what is ready is not lost");
    }

    #[tokio::test(start_paused = true)]
    async fn a_daemon_that_has_begun_takes_its_time() {
        let (shutdown, clock) = shutdown();
        let long = clock.sleep(Duration::from_secs(60));
        let begins = async {
            clock.sleep(Duration::from_secs(1)).await;
            shutdown.ask();
            shutdown.begun();
        };
        let (done, ()) = tokio::join!(shutdown.in_time(long), begins);
        assert_eq!(done, Some(()));
        assert_eq!(shutdown.at_most(Duration::from_secs(60)), Duration::from_secs(60));
    }
}
