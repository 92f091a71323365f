//! Programs beside PVC that export metrics.

use async_trait::async_trait;

/// The most bytes of a page that are taken.
pub const MOST_PAGE_BYTES: u64 = 16 << 20;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExporterError {
    #[error("`{url}` cannot be reached: {why}")]
    Unreachable { url: String, why: String },
    #[error("`{url}` did not answer within {seconds} s")]
    TimedOut { url: String, seconds: u64 },
    #[error("`{url}` answered with status {status}")]
    Refused { url: String, status: u16 },
    #[error("`{url}` sent more than {MOST_PAGE_BYTES} bytes")]
    TooLarge { url: String },
    #[error("`{url}` sent what is no text")]
    Malformed { url: String },
}

/// Pages of metrics over HTTP, in the text format of Prometheus.
#[async_trait]
pub trait Exporters: Send + Sync {
    /// Returns the page at this address, as it comes. No other address is asked instead, whatever
    /// is answered. Ends within seconds, and with a bound on what is taken.
    async fn page(&self, url: &str) -> Result<String, ExporterError>;
}
