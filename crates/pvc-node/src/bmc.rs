//! The node's own BMC, by which others prove it dead. Whether it can be used is known before it is
//! needed.
//!
//! One that says "off" while this machine runs is another machine's, or lies: a fencer would take
//! that for a proof. It is taken out of the record, and stays out until the daemon starts anew.
//! That it says "on" later proves nothing: another machine may have been switched on.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_role::REFRESH;
use pvc_store::{Changes, Ipmi, NodeChange};
use tokio_util::sync::CancellationToken;

use crate::shared::Shared;

/// Time that the BMC may take to say that the power is on, while the daemon starts.
const AT_THE_START: Duration = Duration::from_secs(2);

/// The same time later: as long as a fencer waits for the BMC.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Time between two questions to the BMC. A fault that goes on is written again as often.
const EVERY: Duration = REFRESH;

/// Time after an "off" at which the BMC is asked once more: one that restarts may say anything for
/// a moment.
const CONFIRM_AFTER: Duration = Duration::from_secs(5);

/// Time that the store may take, and time until the next attempt.
const STORE: Duration = Duration::from_secs(10);

/// Answer of the BMC.
enum Found {
    Usable,
    Silent(String),
    /// Twice that the power of this machine is off.
    Foreign,
}

/// Asks for the first time, as the daemon starts. What it says is logged, and does not stop the
/// start.
pub(crate) async fn test(shared: &Shared) {
    let Some(ipmi) = &shared.settings.ipmi else { return };
    let found = ask(shared, ipmi, AT_THE_START).await;
    shared.bmc_answers.store(matches!(found, Found::Usable), Ordering::Relaxed);
    if matches!(found, Found::Foreign) {
        shared.bmc_is_foreign.store(true, Ordering::Relaxed);
        forget(shared).await;
    }
    tell(ipmi, &found);
}

/// Asks again and again until `shutdown`.
pub(crate) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    let Some(ipmi) = shared.settings.ipmi.clone() else { return };
    tokio::select! {
        biased;
        () = shutdown.cancelled() => {}
        () = look_after(&shared, &ipmi) => {}
    }
}

async fn look_after(shared: &Arc<Shared>, ipmi: &Ipmi) {
    let mut answered = shared.bmc_answers.load(Ordering::Relaxed);
    while !shared.bmc_is_foreign.load(Ordering::Relaxed) {
        shared.sleep(EVERY).await;
        let found = ask(shared, ipmi, TIME_LIMIT).await;
        match &found {
            // The first time it may have been busy.
            Found::Silent(why) if !answered => raise(shared, ipmi, why).await,
            Found::Usable if answered => {}
            _ => tell(ipmi, &found),
        }
        answered = matches!(found, Found::Usable);
        if matches!(found, Found::Foreign) {
            shared.bmc_is_foreign.store(true, Ordering::Relaxed);
        }
    }
    loop {
        let is_out = forget(shared).await;
        let why = "it says that the power is off while the node runs: it is another machine's, or \
                   broken, and is not \
                   recorded as this node's until its daemon is restarted";
        raise(shared, ipmi, why).await;
        shared.sleep(if is_out { EVERY } else { STORE }).await;
    }
}

async fn ask(shared: &Shared, ipmi: &Ipmi, time_limit: Duration) -> Found {
    let once = async || {
        let answer = shared.in_time(time_limit, shared.ports.power.is_on(&ipmi.bmc())).await;
        answer.map_err(|error| error.to_string())
    };
    let first = once().await;
    let last = match first {
        Ok(false) => {
            shared.sleep(CONFIRM_AFTER).await;
            once().await
        }
        other => other,
    };
    match last {
        Ok(true) => Found::Usable,
        Ok(false) => Found::Foreign,
        Err(why) => Found::Silent(why),
    }
}

/// Sees that the record names no BMC. Whether it is so.
async fn forget(shared: &Shared) -> bool {
    let decide = |cluster: &Cluster| {
        let mut changes = Changes::new();
        let own = cluster.nodes.get(shared.name()).filter(|_| shared.has_name());
        if own.is_some_and(|own| !own.ipmi_hostname.is_empty()) {
            changes.node(shared.name(), NodeChange::Ipmi(Ipmi::default()));
        }
        Ok::<_, Infallible>((changes, ()))
    };
    match shared.within(STORE, shared.store.change(decide)).await {
        Some(Ok(())) => return true,
        Some(Err(error)) => tracing::error!(
            error = &error as &dyn std::error::Error,
            "the wrong BMC could not be taken out of the record; it is tried again"
        ),
        None => tracing::error!(
            "the wrong BMC could not be taken out of the record in time; it is tried again"
        ),
    }
    false
}

async fn raise(shared: &Arc<Shared>, ipmi: &Ipmi, why: &str) {
    let node = shared.name();
    let message = format!(
        "the BMC `{}` of node {node} cannot be used: {why}. If the node dies, nobody can prove it",
        ipmi.hostname
    );
    shared.raise_own("BMC_UNUSABLE", &message).await;
}

fn tell(ipmi: &Ipmi, found: &Found) {
    let why = match found {
        Found::Usable => {
            return tracing::info!(bmc = ipmi.hostname, "the BMC answers; this node can be fenced");
        }
        Found::Silent(why) => why,
        Found::Foreign => {
            "it says that the power of this machine is off: it is another machine's, and is not \
             recorded as this one's"
        }
    };
    tracing::error!(
        bmc = ipmi.hostname,
        why,
        "the BMC cannot be used; this node cannot be fenced. Check `fencing.ipmi` in the \
         configuration and the BMC's network"
    );
}
