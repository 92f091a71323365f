//! Asks the hypervisor for figures, in a task of its own: however long it takes, and if it never
//! answers, the keepalive goes out with the figures last heard.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::shared::Shared;

/// How long the hypervisor may take before its answer is given up.
const DEADLINE: Duration = Duration::from_secs(30);

/// Works until `shutdown`.
pub(crate) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    let mut silent = false;
    loop {
        collect(&shared, &mut silent).await;
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            () = shared.sleep(shared.settings.keepalive_interval) => {}
        }
    }
}

async fn collect(shared: &Shared, silent: &mut bool) {
    let began = shared.now();
    let answer = shared.within(DEADLINE, shared.ports.hypervisor.stats()).await;
    let error = match answer {
        Some(Ok(stats)) => {
            if shared.settings.log.monitoring_details {
                let took = shared.now().saturating_sub(began).as_millis();
                tracing::info!(guests = stats.len(), milliseconds = took, "figures of guests read");
            }
            let mut collected = shared.collected();
            collected.stats = stats;
            collected.at = Some(shared.now());
            *silent = false;
            return;
        }
        Some(Err(error)) => error.to_string(),
        None => format!("no answer within {} s", DEADLINE.as_secs()),
    };
    if !std::mem::replace(silent, true) {
        tracing::warn!(error, "the figures of the guests cannot be read; the last ones stay");
    }
}
