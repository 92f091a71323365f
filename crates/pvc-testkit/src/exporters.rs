use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use pvc_ports::{ExporterError, Exporters};

/// Time for which an exporter that says nothing is waited for.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// Time that an answer takes.
const MOMENT: Duration = Duration::from_millis(10);

/// Behaviour of an exporter that is asked for its page.
#[derive(Debug, Clone)]
pub enum PageManner {
    Says(String),
    Refuses(u16),
    Silent,
    Endless,
    Garbled,
}

/// Exporters of metrics. Where there is none, nobody answers.
#[derive(Debug, Clone, Default)]
pub struct ScriptedExporters {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    manners: BTreeMap<String, PageManner>,
    asked: usize,
}

impl ScriptedExporters {
    pub fn new() -> Self {
        ScriptedExporters::default()
    }

    /// From now on the exporter at this address does so.
    pub fn set_manner(&self, url: &str, manner: PageManner) {
        self.state().manners.insert(url.to_owned(), manner);
    }

    /// Number of times that any page was asked for.
    pub fn asked(&self) -> usize {
        self.state().asked
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics while holding it")
    }
}

#[async_trait]
impl Exporters for ScriptedExporters {
    async fn page(&self, url: &str) -> Result<String, ExporterError> {
        let manner = {
            let mut state = self.state();
            state.asked += 1;
            state.manners.get(url).cloned()
        };
        let url = url.to_owned();
        match manner {
            Some(PageManner::Says(text)) => {
                // An answer of another program takes a moment, in which others may ask.
                tokio::time::sleep(MOMENT).await;
                Ok(text)
            }
            Some(PageManner::Refuses(status)) => Err(ExporterError::Refused { url, status }),
            Some(PageManner::Silent) => {
                tokio::time::sleep(TIME_LIMIT).await;
                Err(ExporterError::TimedOut { url, seconds: TIME_LIMIT.as_secs() })
            }
            Some(PageManner::Endless) => Err(ExporterError::TooLarge { url }),
            Some(PageManner::Garbled) => Err(ExporterError::Malformed { url }),
            None => Err(ExporterError::Unreachable { url, why: "nobody answers".to_owned() }),
        }
    }
}
