//! Watches this node's copy of the database: one that does not follow is a fault, and its Patroni
//! is started again, once (`pvc_model::database_cluster`). A Patroni that has lost its ZooKeeper
//! session may loop for ever.

use std::sync::Arc;
use std::time::Duration;

use pvc_model::database_cluster::{Act, Trouble, Watch};
use pvc_ports::{DatabaseCluster, UnitState};
use tokio_util::sync::CancellationToken;

use crate::shared::Shared;

const UNIT: &str = "patroni.service";

const EVERY: Duration = Duration::from_secs(10);

/// Time that Patroni or systemd may take to answer.
const DEADLINE: Duration = Duration::from_secs(10);

/// Works until `end`.
pub(crate) async fn run(
    shared: Arc<Shared>,
    database: Arc<dyn DatabaseCluster>,
    end: CancellationToken,
) {
    let mut watch = Watch::default();
    while shared.rest(EVERY, &end).await {
        look(&shared, &*database, &mut watch).await;
    }
}

async fn look(shared: &Arc<Shared>, database: &dyn DatabaseCluster, watch: &mut Watch) {
    let services = &shared.ports.services;
    let runs = shared.within(DEADLINE, services.state(UNIT)).await;
    // Without ZooKeeper no copy follows, and whoever has stopped the unit knows why.
    if !shared.is_connected() || !matches!(runs, Some(Ok(UnitState::Active))) {
        return watch.pause();
    }
    // Whether it leads cannot be known then.
    let unknown = |why: String| Some(Trouble { why, restart: false });
    let trouble = match shared.within(DEADLINE, database.member(shared.name())).await {
        Some(Ok(member)) => member.trouble(shared.ports.clock.wall()),
        Some(Err(error)) => unknown(error.to_string()),
        None => unknown(format!("its Patroni did not answer within {} s", DEADLINE.as_secs())),
    };
    let node = shared.name();
    let (why, restart) = match watch.look(trouble, shared.now()) {
        Act::Nothing => return,
        Act::Raise(why) => (why, false),
        Act::Restart(why) => (why, true),
    };
    let done = if restart { ". Its Patroni is started again, once" } else { "" };
    let message = format!(
        "the copy of the cluster's database on node {node} does not follow: {why}{done}. Look at \
         `patronictl list` and \
         `journalctl -u patroni` on {node}; `systemctl restart patroni` there begins its Patroni \
         anew"
    );
    tracing::warn!("{message}");
    shared.raise_own("DATABASE_MEMBER", &message).await;
    if restart && !matches!(shared.within(DEADLINE, services.restart(UNIT)).await, Some(Ok(()))) {
        tracing::warn!(unit = UNIT, "the unit could not be started again");
    }
}
