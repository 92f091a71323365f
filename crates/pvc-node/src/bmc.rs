//! The node's own BMC, by which others prove it dead. Whether it can be used is known before it is needed.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_store::{Changes, Ipmi, NodeChange};
use tokio_util::sync::CancellationToken;

use crate::faults::{self, fault_id};
use crate::shared::Shared;

/// How long it may take to say that the power is on, while the daemon starts.
const AT_THE_START: Duration = Duration::from_secs(2);

/// How long later: as long as a fencer waits for a question.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often it is asked. A fault that goes on is written again as often.
const EVERY: Duration = faults::REFRESH;

/// What the BMC said.
enum Found {
    Usable,
    /// It says that the power of this machine is off.
    OfAnother,
    Silent(String),
}

impl Found {
    fn trouble(&self) -> Option<String> {
        match self {
            Found::Usable => None,
            Found::OfAnother => Some(
                "it says that the power of this machine is off: it is another machine's, and is not recorded as this one's"
                    .to_owned(),
            ),
            Found::Silent(why) => Some(why.clone()),
        }
    }
}

/// Asks for the first time, as the daemon starts. Either answer is logged, and neither stops the start.
pub(crate) async fn test(shared: &Shared) {
    if let Some(ipmi) = &shared.settings.ipmi {
        let found = ask(shared, ipmi, AT_THE_START).await;
        note(shared, ipmi, &found).await;
        tell(shared, ipmi, &found);
    }
}

/// Asks again and again until `shutdown`.
pub(crate) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    let Some(ipmi) = shared.settings.ipmi.clone() else { return };
    let mut was_usable = shared.bmc_answers.load(Ordering::Relaxed);
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            () = shared.sleep(EVERY) => {}
        }
        let found = ask(&shared, &ipmi, PATIENCE).await;
        note(&shared, &ipmi, &found).await;
        let trouble = found.trouble();
        if trouble.is_none() != was_usable {
            was_usable = trouble.is_none();
            tell(&shared, &ipmi, &found);
        } else if let Some(why) = trouble {
            // Not for a moment in which it was busy.
            let node = shared.name();
            let message = format!(
                "the BMC `{}` of node {node} cannot be used: {why}. If the node dies, nobody can prove it",
                ipmi.hostname
            );
            faults::raise(&shared, &fault_id("BMC_UNUSABLE", node.as_str()), &message).await;
        }
    }
}

async fn ask(shared: &Shared, ipmi: &Ipmi, patience: Duration) -> Found {
    match shared.within(patience, shared.ports.power.is_on(&ipmi.bmc())).await {
        Some(Ok(true)) => Found::Usable,
        Some(Ok(false)) => Found::OfAnother,
        Some(Err(error)) => Found::Silent(error.to_string()),
        None => Found::Silent(format!("no answer within {} s", patience.as_secs())),
    }
}

/// Has the record name the BMC, and none that is another machine's: a fencer would believe what that one says.
async fn note(shared: &Shared, ipmi: &Ipmi, found: &Found) {
    shared.bmc_answers.store(matches!(found, Found::Usable), Ordering::Relaxed);
    let recorded = match found {
        Found::Usable => ipmi.clone(),
        Found::OfAnother => Ipmi::default(),
        Found::Silent(_) => return,
    };
    let decide = |cluster: &Cluster| {
        let mut changes = Changes::new();
        let own = cluster.nodes.get(shared.name());
        if own.is_some_and(|own| own.ipmi_hostname != recorded.hostname) {
            changes.node(shared.name(), NodeChange::Ipmi(recorded.clone()));
        }
        Ok::<_, std::convert::Infallible>((changes, ()))
    };
    if let Err(error) = shared.store.change(decide).await {
        tracing::error!(
            error = &error as &dyn std::error::Error,
            "what the BMC says of itself could not be recorded"
        );
    }
}

fn tell(shared: &Shared, ipmi: &Ipmi, found: &Found) {
    match found.trouble() {
        None => tracing::info!(bmc = ipmi.hostname, "the BMC answers; this node can be fenced"),
        Some(why) => tracing::error!(
            node = %shared.name(),
            bmc = ipmi.hostname,
            why,
            "the BMC cannot be used; this node cannot be fenced. Check `fencing.ipmi` in the configuration and the BMC's network"
        ),
    }
}
