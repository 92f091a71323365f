use std::time::Duration;

use async_trait::async_trait;
use nix::time::{ClockId, clock_gettime};
use pvc_ports::Clock;

/// The machine's clocks. Monotonic time goes on while the machine is suspended: an age that did not
/// count the suspension would take an old stamp for a fresh one.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

fn read(clock: ClockId) -> Duration {
    let time = clock_gettime(clock).expect("every Linux has this clock");
    Duration::from(time)
}

#[async_trait]
impl Clock for SystemClock {
    fn monotonic(&self) -> Duration {
        read(ClockId::CLOCK_BOOTTIME)
    }

    fn wall(&self) -> Duration {
        read(ClockId::CLOCK_REALTIME)
    }

    async fn sleep(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sleeping_takes_at_least_as_long_as_asked() {
        let clock = SystemClock;
        let before = clock.monotonic();
        clock.sleep(Duration::from_millis(20)).await;
        assert!(clock.monotonic() - before >= Duration::from_millis(20));
        assert!(clock.wall() > Duration::from_secs(1_700_000_000));
    }
}
