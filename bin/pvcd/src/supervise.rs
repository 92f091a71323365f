//! Roles that share a process must not share a fate: one that panics is started again.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use pvc_ports::Clock;
use tokio_util::sync::CancellationToken;

/// Time that a role that panicked rests before it is started again.
const AFTER_PANIC: Duration = Duration::from_secs(5);

/// Runs a role to its end, and starts it again whenever it panics. `None` if `shutdown` came while
/// it rested.
pub async fn keep_running<Role>(
    name: &'static str,
    clock: &dyn Clock,
    shutdown: &CancellationToken,
    start: impl Fn() -> Role,
) -> Option<Role::Output>
where
    Role: Future + Send + 'static,
    Role::Output: Send,
{
    loop {
        match tokio::spawn(start()).await {
            Ok(ended) => return Some(ended),
            Err(error) => {
                tracing::error!(role = name, %error, "a role failed by a bug of this program and \
                                                      is started again")
            }
        }
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return None,
            () = clock.sleep(AFTER_PANIC) => {}
        }
    }
}

/// Error that the view of the store is none any more.
pub fn frozen() -> anyhow::Error {
    anyhow::anyhow!(
        "the view of the store is kept up to date no more: it holds another cluster, as is said \
         above, or this is a bug of this program"
    )
}

/// Runs `work`, and calls `beat` at once and then each `interval` while it does. Both are one task:
/// work that blocks its thread, or a runtime that turns no more, is heard of as silence.
pub async fn while_beating<T>(
    interval: Option<Duration>,
    clock: &dyn Clock,
    beat: impl Fn(),
    work: impl Future<Output = T>,
) -> T {
    let beats = async {
        let Some(interval) = interval else { return std::future::pending::<Infallible>().await };
        loop {
            beat();
            clock.sleep(interval).await;
        }
    };
    tokio::select! {
        biased;
        done = work => done,
        never = beats => match never {},
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use pvc_linux::SystemClock;

    use super::*;

    async fn beats_in_ten_seconds(interval: Option<Duration>) -> u32 {
        let beats = AtomicU32::new(0);
        let beat = || {
            beats.fetch_add(1, Ordering::SeqCst);
        };
        let work = SystemClock.sleep(Duration::from_millis(10_500));
        while_beating(interval, &SystemClock, beat, work).await;
        beats.into_inner()
    }

    #[tokio::test(start_paused = true)]
    async fn a_role_that_is_watched_reports_while_it_works() {
        assert_eq!(beats_in_ten_seconds(Some(Duration::from_secs(5))).await, 3);
        assert_eq!(beats_in_ten_seconds(None).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_role_that_panics_is_started_again() {
        static STARTS: AtomicU32 = AtomicU32::new(0);
        let role = || async {
            assert!(STARTS.fetch_add(1, Ordering::SeqCst) > 0, "the first start fails");
            7
        };
        let ended = keep_running("test", &SystemClock, &CancellationToken::new(), role).await;
        assert_eq!((ended, STARTS.load(Ordering::SeqCst)), (Some(7), 2));
    }
}
