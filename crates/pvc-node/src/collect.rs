//! Asks the hypervisor for figures, in a task of its own: however long it takes, and if it never
//! answers, the keepalive goes out with the figures last heard.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pvc_model::Uuid;
use tokio::sync::watch::Receiver;
use tokio_util::sync::CancellationToken;

use crate::shared::{Guests, Shared};

/// Time that the hypervisor may take before its answer is given up.
const DEADLINE: Duration = Duration::from_secs(30);

/// Time in which guests that start together are gathered: one question for all of them.
const GATHER: Duration = Duration::from_secs(1);

/// Works until `shutdown`.
pub(crate) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    let mut silent = false;
    let mut guests = shared.guests.subscribe();
    loop {
        let known = instances(&guests.borrow_and_update());
        collect(&shared, &mut silent).await;
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            // A guest that was just started is not to be without figures for a whole interval.
            true = change(&mut guests, &known) => shared.sleep(GATHER).await,
            () = shared.sleep(shared.settings.keepalive_interval) => {}
        }
    }
}

/// Returns when the guests are others than `known`; false if nobody will say so any more.
async fn change(guests: &mut Receiver<Guests>, known: &BTreeMap<Uuid, i32>) -> bool {
    guests.wait_for(|now| instances(now) != *known).await.is_ok()
}

fn instances(guests: &Guests) -> BTreeMap<Uuid, i32> {
    guests.known.iter().map(|(uuid, facts)| (*uuid, facts.instance)).collect()
}

async fn collect(shared: &Shared, silent: &mut bool) {
    let began = shared.now();
    match shared.in_time(DEADLINE, shared.ports.hypervisor.stats()).await {
        Ok(stats) => {
            if shared.settings.log.monitoring_details {
                let took = shared.now().saturating_sub(began).as_millis();
                tracing::info!(guests = stats.len(), milliseconds = took, "figures of guests read");
            }
            let mut collected = shared.collected();
            collected.stats = stats;
            collected.at = Some(shared.now());
            *silent = false;
        }
        Err(error) if !std::mem::replace(silent, true) => {
            let error = error.to_string();
            tracing::warn!(error, "the figures of the guests cannot be read; the last ones stay");
        }
        Err(_) => {}
    }
}
