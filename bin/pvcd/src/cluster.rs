//! A cluster's daemons, one role each, on the ensemble's ZooKeeper.

use std::path::PathBuf;
use std::sync::Arc;

use pvc_api::ApiState;
use pvc_config::Config;
use pvc_linux::log::Log;
use pvc_linux::{Notifier, OsRandom, SystemClock};
use pvc_node::{Node, Outcome};
use pvc_store::Store;
use pvc_worker::Worker;
use tokio_util::sync::CancellationToken;

use crate::standalone::finish;
use crate::supervise::{close, while_beating, while_view_lives};
use crate::{Ended, ports, settings, signals};

pub async fn node(file: Option<PathBuf>) -> anyhow::Result<Ended> {
    let (config, mut log, shutdown) = begin(file, "pvcnoded", true)?;
    let lines = log.store_lines.take();
    let ended = run_node(&config, lines, shutdown).await;
    finish(&log, ended)
}

async fn run_node(
    config: &Config,
    log_lines: Option<tokio::sync::mpsc::Receiver<String>>,
    shutdown: CancellationToken,
) -> anyhow::Result<Ended> {
    let ports = ports::machine(config)?;
    let settings = settings::node(config);
    pvc_node::before_store(&settings, &ports, &shutdown).await?;
    with_store(config, &shutdown, async |store| {
        let node = Node::new(settings, ports, store)
            .with_log(log_lines)
            .when_waiting(|what| Notifier.waiting(what))
            .when_ready(|| Notifier.ready())
            .with_heartbeat(Notifier.watchdog_interval(), || Notifier.alive());
        Ok(match node.run(shutdown.clone()).await? {
            Outcome::Stopped => Ended::Stopped,
            Outcome::Reexec => Ended::Reexec,
        })
    })
    .await
}

pub async fn api(file: Option<PathBuf>) -> anyhow::Result<Ended> {
    let (config, log, shutdown) = begin(file, "pvcapid", false)?;
    let ended = with_store(&config, &shutdown, async |store| {
        store.check_layout()?;
        let settings = settings::api(&config)?;
        let (clock, random) = (Arc::new(SystemClock), Arc::new(OsRandom));
        let state =
            ApiState::new(store.clone(), clock, random, Some(ports::storage(&config)?), settings.clone());
        let listeners = pvc_api::listen(&settings)?;
        Notifier.ready();
        let stop = shutdown.child_token();
        let serve = async { Ok(pvc_api::serve_on(listeners, state, stop.clone()).await?) };
        beating(until_layout_changes(&store, &stop, serve)).await
    });
    finish(&log, ended.await)
}

pub async fn worker(file: Option<PathBuf>) -> anyhow::Result<Ended> {
    let (config, log, shutdown) = begin(file, "pvcworkerd", false)?;
    let ended = with_store(&config, &shutdown, async |store| {
        store.check_layout()?;
        let ports = ports::machine(&config)?;
        let name = settings::node(&config).name;
        let worker = Worker::new(name, store.clone(), ports.hypervisor, ports.storage, ports.clock);
        Notifier.ready();
        let stop = shutdown.child_token();
        let work = async {
            worker.run(stop.clone()).await;
            Ok(())
        };
        beating(until_layout_changes(&store, &stop, work)).await
    });
    finish(&log, ended.await)
}

/// Runs a role on a session of its own with the cluster's store, which is closed in the end. A start that is asked to
/// stop before the store has answered waits for it no longer.
async fn with_store(
    config: &Config,
    shutdown: &CancellationToken,
    role: impl AsyncFnOnce(Store) -> anyhow::Result<Ended>,
) -> anyhow::Result<Ended> {
    let open = async {
        let tree = ports::zookeeper(config).await?;
        let store = ports::store(tree.clone()).await?;
        anyhow::Ok((tree, store))
    };
    let Some(opened) = shutdown.run_until_cancelled(open).await else { return Ok(Ended::Stopped) };
    let (tree, store) = opened?;
    let ended = while_view_lives(&store, role(store.clone())).await;
    // A service that says it stops is killed some time later, also if it has begun anew meanwhile.
    if !matches!(ended, Ok(Ended::Reexec)) {
        Notifier.stopping();
    }
    close(tree.as_ref(), &SystemClock).await;
    ended
}

/// Tells the service manager, if it watches, that this daemon lives while `role` runs. (The node daemon
/// says it itself: its life is its keepalive.)
async fn beating<T>(role: impl Future<Output = T>) -> T {
    while_beating(Notifier.watchdog_interval(), &SystemClock, || Notifier.alive(), role).await
}

/// Runs a role until it ends or the layout of the store changes; `stop` asks it to end.
async fn until_layout_changes(
    store: &Store,
    stop: &CancellationToken,
    role: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<Ended> {
    let (ended, has_changed) = store.until_layout_changes(|| stop.cancel(), role).await;
    ended.map(|()| if has_changed { Ended::Reexec } else { Ended::Stopped })
}

fn begin(
    file: Option<PathBuf>,
    daemon: &str,
    logs_to_store: bool,
) -> anyhow::Result<(Config, Log, CancellationToken)> {
    let config = settings::cluster(file)?;
    let log = pvc_linux::log::start(&settings::log(&config, daemon, logs_to_store))?;
    for warning in &config.warnings {
        tracing::warn!("configuration: {}", warning.message());
    }
    let shutdown = signals::shutdown_requested(log.reopener())?;
    Ok((config, log, shutdown))
}
