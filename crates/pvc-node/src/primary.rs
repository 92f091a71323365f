//! The primary role of this node: what [`pvc_model::primary`] decides, made true.

use std::sync::Arc;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::node::{CoordinatorState, NodeRole};
use pvc_model::primary::{PrimaryStep, named, primary_step};
use pvc_store::{ChangeError, Changes, ConfigChange, Expect, NodeChange};
use tokio_util::sync::CancellationToken;

use crate::shared::Shared;

/// How long the store may take for a change.
const DEADLINE: Duration = Duration::from_secs(10);

/// Works until `shutdown`.
pub(crate) async fn run(shared: Arc<Shared>, shutdown: CancellationToken) {
    let mut changes = shared.store.changed();
    let mut vacant_since: Option<Duration> = None;
    let mut maintenance = shared.store.view().config.maintenance;
    loop {
        changes.mark_unchanged();
        let view = shared.store.view();
        if std::mem::replace(&mut maintenance, view.config.maintenance) != view.config.maintenance {
            tracing::info!(maintenance = view.config.maintenance, "the cluster's maintenance mode changed");
        }
        let now = shared.now();
        vacant_since = if named(&view).is_none() { vacant_since.or(Some(now)) } else { None };
        let vacant_for = vacant_since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        pass(&shared, &view, vacant_for).await;
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            Ok(()) = changes.changed() => {}
            () = shared.sleep(shared.settings.keepalive_interval) => {}
        }
    }
}

async fn pass(shared: &Shared, view: &Cluster, vacant_for: Duration) {
    if !shared.is_connected() {
        return;
    }
    let patience = shared.settings.keepalive_interval * 2;
    match primary_step(view, shared.name(), vacant_for, patience) {
        PrimaryStep::Nothing => {}
        PrimaryStep::Claim => claim(shared).await,
        PrimaryStep::Become(state) => become_state(shared, state, vacant_for, patience).await,
    }
    if view.nodes.get(shared.name()).is_some_and(|own| own.coordinator_state == CoordinatorState::Primary) {
        publish(shared).await;
    }
}

/// At start-up a coordinator takes the role if nobody has it.
pub(crate) async fn claim_if_vacant(shared: &Shared) {
    if shared.settings.role == NodeRole::Coordinator {
        claim(shared).await;
    }
}

#[derive(Debug, thiserror::Error)]
#[error("somebody else decided meanwhile")]
struct Moot;

async fn claim(shared: &Shared) {
    let decide = |cluster: &Cluster| {
        let mut changes = Changes::new();
        if named(cluster).is_some() {
            return Err(Moot);
        }
        changes.config(ConfigChange::Primary(Some(shared.name().clone())));
        Ok((changes, ()))
    };
    if told(shared, shared.store.change(decide)).await {
        tracing::info!("nobody was primary; this node claims the role");
    }
}

async fn become_state(shared: &Shared, state: CoordinatorState, vacant_for: Duration, patience: Duration) {
    let decide = |cluster: &Cluster| {
        let mut changes = Changes::new();
        if primary_step(cluster, shared.name(), vacant_for, patience) != PrimaryStep::Become(state.clone()) {
            return Err(Moot);
        }
        changes.node(shared.name(), NodeChange::Coordinator(state.clone())).expect(Expect::Primary);
        Ok((changes, ()))
    };
    if told(shared, shared.store.change(decide)).await {
        tracing::info!(role = state.as_str(), "this node's part in the coordination changed");
    }
}

/// What the primary publishes for the whole cluster.
async fn publish(shared: &Shared) {
    let decide = |cluster: &Cluster| {
        let mut changes = Changes::new();
        let (settings, config) = (&shared.settings, &cluster.config);
        if let Some(selector) = settings.selector.as_ref().filter(|own| config.selector.as_ref() != Some(own))
        {
            changes.config(ConfigChange::Selector(selector.clone()));
        }
        if let Some(ip) = settings.upstream_ip.as_ref().filter(|own| config.upstream_ip != **own) {
            changes.config(ConfigChange::UpstreamIp(ip.clone()));
        }
        Ok::<_, Moot>((changes, ()))
    };
    told(shared, shared.store.change(decide)).await;
}

/// Whether the change was made. A refusal is quiet: the next pass sees why.
async fn told(shared: &Shared, change: impl Future<Output = Result<(), ChangeError<Moot>>>) -> bool {
    match shared.within(DEADLINE, change).await {
        Some(Ok(())) => true,
        Some(Err(ChangeError::Refused(Moot))) => false,
        Some(Err(error)) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "the primary role could not be settled");
            false
        }
        None => {
            tracing::warn!("the primary role could not be settled in time");
            false
        }
    }
}
