//! One machine: all roles and the store in one process.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use pvc_api::ApiState;
use pvc_embedded::{Dumps, EmbeddedTree};
use pvc_linux::log::Log;
use pvc_linux::{Notifier, SystemClock};
use pvc_node::{Node, Outcome};
use pvc_ports::Tree;
use pvc_worker::Worker;
use tokio_util::sync::CancellationToken;

use crate::supervise::{keep_running, while_view_lives};
use crate::{dump, ports, report, settings, signals};

/// How long the last log lines may take to reach the disk.
const LOG_FLUSH: Duration = Duration::from_secs(2);

pub async fn run(file: Option<PathBuf>, recover: bool) -> anyhow::Result<Outcome> {
    let config = settings::standalone(file)?;
    let own = config
        .standalone
        .clone()
        .context("standalone mode without its own settings is a bug of ours")?;
    let mut log = pvc_linux::log::start(&settings::log(&config, "pvcnoded", true))?;
    for warning in &config.warnings {
        tracing::warn!("configuration: {}", warning.message());
    }
    let shutdown = signals::shutdown_requested(log.reopener())?;
    let directory = own.state_directory.join("tree");
    let tree = match dump::open(&directory, recover, &SystemClock).await {
        Ok(tree) => tree,
        Err(error) => return finish(&log, Err(error)),
    };
    let dumps = Dumps::of(&directory);
    let ended = with_store(&config, &tree, dumps, log.store_lines.take(), shutdown).await;
    tree.close().await;
    finish(&log, ended)
}

async fn with_store(
    config: &pvc_config::Config,
    tree: &EmbeddedTree,
    dumps: Dumps,
    log_lines: Option<tokio::sync::mpsc::Receiver<String>>,
    shutdown: CancellationToken,
) -> anyhow::Result<Outcome> {
    let ports = ports::machine(config)?;
    let settings = settings::node(config);
    pvc_node::before_store(&settings, &ports, &shutdown).await?;
    let store = ports::store(tree.connect()).await?;

    let name = settings.name.clone();
    let clock = ports.clock.clone();
    let worker = Arc::new(Worker::new(
        name,
        store.clone(),
        ports.hypervisor.clone(),
        ports.storage.clone(),
        ports.clock.clone(),
    ));
    let api_settings = settings::api(config)?;
    let api = ApiState::new(
        store.clone(),
        ports.clock.clone(),
        ports.random.clone(),
        Some(ports.storage.clone()),
        api_settings.clone(),
    );
    let node = Node::new(settings, ports, store.clone())
        .with_log(log_lines)
        .when_ready(|| Notifier.ready())
        .with_heartbeat(Notifier.watchdog_interval(), || Notifier.alive());

    // The node goes last: what the API and the worker still write, it still makes true.
    let serving = shutdown.child_token();
    let running = CancellationToken::new();
    let roles = async {
        let serve = || {
            let (settings, state, serving) = (api_settings.clone(), api.clone(), serving.clone());
            async move { pvc_api::serve(&settings, state, serving).await }
        };
        let work = || {
            let (worker, serving) = (worker.clone(), serving.clone());
            async move { worker.run(serving).await }
        };
        let api = keep_running("api", clock.as_ref(), &serving, serve);
        let dump = || dump::keep(store.clone(), clock.clone(), dumps.clone(), serving.clone());
        let worker = keep_running("worker", clock.as_ref(), &serving, work);
        let dumps = keep_running("dumps", clock.as_ref(), &serving, dump);
        let (served, ..) = tokio::join!(stop_when_over(api, &serving), worker, dumps);
        running.cancel();
        served.unwrap_or(Ok(()))
    };
    let node = async {
        let ended = node.run(running.clone()).await;
        serving.cancel();
        ended
    };
    while_view_lives(&store, async {
        let (served, node) = tokio::join!(roles, node);
        if !matches!(node, Ok(Outcome::Reexec)) {
            Notifier.stopping();
        }
        served?;
        Ok(node?)
    })
    .await
}

/// When one role ends, for whatever reason, the others are asked to.
async fn stop_when_over<T>(role: impl Future<Output = T>, others: &CancellationToken) -> T {
    let ended = role.await;
    others.cancel();
    ended
}

pub fn finish(log: &Log, ended: anyhow::Result<Outcome>) -> anyhow::Result<Outcome> {
    if let Err(error) = &ended {
        report::to_log(error);
    }
    log.flush(LOG_FLUSH);
    ended
}
