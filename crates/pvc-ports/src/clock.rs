//! Time. The simulator owns it there; the machine owns it here.

use std::time::Duration;

use async_trait::async_trait;

/// The two clocks of a machine, and sleeping on one of them.
#[async_trait]
pub trait Clock: Send + Sync {
    /// Time that has passed on this host's monotonic clock since an arbitrary point. Never goes
    /// back; the only clock from which an age may be computed (I8).
    fn monotonic(&self) -> Duration;

    /// Seconds and nanoseconds since 1970-01-01T00:00:00Z by this host's wall clock, which may
    /// step. For what people read and for what the tree's format demands; never for a decision.
    fn wall(&self) -> Duration;

    /// Returns after `duration` of monotonic time. Dropping the future is harmless.
    async fn sleep(&self, duration: Duration);
}
