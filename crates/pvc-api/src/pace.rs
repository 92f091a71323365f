//! Speed of the other end of a transfer: one that is too slow keeps a slot from others, and a
//! volume from its owner.

use std::time::Duration;

use axum::http::StatusCode;
use pvc_ports::Clock;

use crate::body;
use crate::error::ApiError;

/// Time that the other end may be silent.
pub const SILENCE: Duration = Duration::from_secs(120);

/// The fewest bytes that go in such a time: 4 KiB a second.
const FEWEST_BYTES: u64 = 120 * (4 << 10);

/// Reason to give up a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TooSlow {
    #[error("nothing went for {} s", SILENCE.as_secs())]
    Silent,
    #[error("{bytes} bytes went in {seconds} s, and fewer than {FEWEST_BYTES} are too few")]
    Trickles { bytes: u64, seconds: u64 },
}

impl From<TooSlow> for ApiError {
    fn from(slow: TooSlow) -> Self {
        match slow {
            TooSlow::Silent => body::too_slow(SILENCE),
            TooSlow::Trickles { .. } => {
                ApiError::new(StatusCode::REQUEST_TIMEOUT, slow.to_string())
            }
        }
    }
}

/// Speed of the other end: only the time counts for which it is waited.
#[derive(Debug, Default)]
pub struct Pace {
    waited: Duration,
    bytes: u64,
}

impl Pace {
    /// Waits for what the other end has to do.
    pub async fn wait<T>(
        &mut self,
        clock: &dyn Clock,
        coming: impl Future<Output = T>,
    ) -> Result<T, TooSlow> {
        let begun = clock.monotonic();
        let come = tokio::select! {
            biased;
            come = coming => come,
            () = clock.sleep(SILENCE) => return Err(TooSlow::Silent),
        };
        self.waited += clock.monotonic().saturating_sub(begun);
        Ok(come)
    }

    /// Counts what has gone.
    pub fn count(&mut self, bytes: usize) -> Result<(), TooSlow> {
        self.bytes += bytes as u64;
        if self.waited < SILENCE {
            return Ok(());
        }
        if self.bytes < FEWEST_BYTES {
            let (bytes, seconds) = (self.bytes, self.waited.as_secs());
            return Err(TooSlow::Trickles { bytes, seconds });
        }
        *self = Pace::default();
        Ok(())
    }
}
