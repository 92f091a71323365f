//! Contract of every [`Exporters`], with exporters of metrics.

use std::sync::Arc;

use pvc_ports::{ExporterError, Exporters};

/// The page that is asked for.
pub const PAGE: &str = "# HELP up Whether it is\n# TYPE up gauge\nup{at=\"ü\"} 1\n";

/// Exporters that the suite needs from whoever runs it, as the addresses of their pages.
pub struct ExportersFixture {
    pub exporters: Arc<dyn Exporters>,
    /// Has the page [`PAGE`].
    pub good: String,
    /// Answers with status 503.
    pub refusing: String,
    /// Sends on to the page of the good one, or refuses with status 302.
    pub redirecting: String,
    /// Takes the question, and says nothing.
    pub silent: String,
    /// Never comes to the end of its page.
    pub endless: String,
    /// Sends bytes that are no UTF-8.
    pub garbled: String,
    /// Nobody answers there.
    pub absent: String,
}

/// Runs the whole suite.
///
/// # Panics
/// When the exporters break the contract.
pub async fn exporters_contract(fixture: ExportersFixture) {
    let failed = async |url: &str| {
        fixture.exporters.page(url).await.expect_err("there is no page that could be shown")
    };
    assert_eq!(fixture.exporters.page(&fixture.good).await.as_deref(), Ok(PAGE));
    let error = failed(&fixture.refusing).await;
    assert!(matches!(error, ExporterError::Refused { status: 503, .. }), "{error}");
    let error = failed(&fixture.redirecting).await;
    assert!(matches!(error, ExporterError::Refused { status: 302, .. }), "{error}");
    let error = failed(&fixture.silent).await;
    assert!(matches!(error, ExporterError::TimedOut { .. }), "{error}");
    let error = failed(&fixture.endless).await;
    assert!(matches!(error, ExporterError::TooLarge { .. }), "{error}");
    let error = failed(&fixture.garbled).await;
    assert!(matches!(error, ExporterError::Malformed { .. }), "{error}");
    let error = failed(&fixture.absent).await;
    assert!(matches!(error, ExporterError::Unreachable { .. }), "{error}");
}
