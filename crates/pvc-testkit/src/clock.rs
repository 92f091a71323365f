use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use pvc_ports::Clock;
use tokio::time::Instant;

/// Tokio's clock as a [`Clock`]: under paused time it stands still while anybody has something to
/// do, and jumps to the next timer when nobody has. The wall clock can be set by the test.
pub struct TokioClock {
    start: Instant,
    wall_at_start: Mutex<Duration>,
}

impl TokioClock {
    /// 2026-11-20T12:00:00Z: where the wall clock starts.
    pub const WALL_START: Duration = Duration::from_secs(1_795_176_000);

    pub fn new() -> Self {
        TokioClock { start: Instant::now(), wall_at_start: Mutex::new(Self::WALL_START) }
    }

    /// Steps the wall clock by `seconds`, as an administrator or NTP does. The monotonic clock does
    /// not care.
    pub fn step_wall(&self, seconds: i64) {
        let mut wall = self.wall_at_start.lock().expect("no test panics while holding it");
        let step = Duration::from_secs(seconds.unsigned_abs());
        *wall = if seconds < 0 { wall.saturating_sub(step) } else { *wall + step };
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Clock for TokioClock {
    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    fn wall(&self) -> Duration {
        *self.wall_at_start.lock().expect("no test panics while holding it") + self.start.elapsed()
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}
