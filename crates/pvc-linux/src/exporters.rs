//! Pages of metrics, over HTTP.

use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pvc_ports::{ExporterError, Exporters, MOST_PAGE_BYTES};
use tokio::sync::Semaphore;
use ureq::Agent;

/// Time that a page may take in all.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// Number of pages that are fetched at once: each has a thread, also when nobody waits for it any
/// more.
const AT_ONCE: usize = 4;

/// Exporters that this machine reaches over its network.
#[derive(Debug, Clone)]
pub struct HttpExporters {
    threads: Arc<Semaphore>,
}

impl Default for HttpExporters {
    fn default() -> Self {
        HttpExporters { threads: Arc::new(Semaphore::new(AT_ONCE)) }
    }
}

fn timed_out(url: &str) -> ExporterError {
    ExporterError::TimedOut { url: url.to_owned(), seconds: TIME_LIMIT.as_secs() }
}

#[async_trait]
impl Exporters for HttpExporters {
    async fn page(&self, url: &str) -> Result<String, ExporterError> {
        let turn = tokio::time::timeout(TIME_LIMIT, self.threads.clone().acquire_owned()).await;
        let turn = turn.map_err(|_| timed_out(url))?.expect("nobody closes the semaphore");
        let owned = url.to_owned();
        let work = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            fetch(&owned)
        });
        work.await.unwrap_or_else(|failed| {
            Err(ExporterError::Unreachable { url: url.to_owned(), why: failed.to_string() })
        })
    }
}

/// Neither a redirection nor the environment has a say in who is asked.
fn fetch(url: &str) -> Result<String, ExporterError> {
    let config = Agent::config_builder()
        .timeout_global(Some(TIME_LIMIT))
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .proxy(None);
    let agent: Agent = config.build().into();
    let unreachable = |why: String| ExporterError::Unreachable { url: url.to_owned(), why };
    let response = agent.get(url).call().map_err(|error| match error {
        ureq::Error::Timeout(_) => timed_out(url),
        other => unreachable(other.to_string()),
    })?;
    let status = response.status().as_u16();
    if status != 200 {
        return Err(ExporterError::Refused { url: url.to_owned(), status });
    }
    let mut page = Vec::new();
    let mut body = response.into_body().into_reader().take(MOST_PAGE_BYTES + 1);
    body.read_to_end(&mut page).map_err(|error| match ureq::Error::from(error) {
        ureq::Error::Timeout(_) => timed_out(url),
        other => unreachable(other.to_string()),
    })?;
    if page.len() as u64 > MOST_PAGE_BYTES {
        return Err(ExporterError::TooLarge { url: url.to_owned() });
    }
    String::from_utf8(page).map_err(|_| ExporterError::Malformed { url: url.to_owned() })
}
