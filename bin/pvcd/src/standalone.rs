//! Standalone mode: one machine, with all roles and the store in one process. What each role does
//! with what it is given is in `pvc-daemon`, as a cluster's daemons have it, too.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use pvc_daemon::{ApiPorts, Shutdown};
use pvc_embedded::{Dumps, EmbeddedTree};
use pvc_linux::log::Log;
use pvc_linux::{Notifier, SystemClock};
use pvc_node::{Node, Outcome, Ports};
use pvc_ports::Tree;
use tokio_util::sync::CancellationToken;

use crate::supervise::{frozen, keep_running};
use crate::{dump, ports, report, settings, signals};

/// Time that the last log lines may take to reach the disk.
const LOG_FLUSH: Duration = Duration::from_secs(2);

pub async fn run(
    file: Option<PathBuf>,
    recover: bool,
    shutdown: &Shutdown,
) -> anyhow::Result<Outcome> {
    let config = settings::standalone(file)?;
    let own = config
        .standalone
        .clone()
        .context("standalone mode without its own settings is a bug of ours")?;
    let mut log = pvc_linux::log::start(&settings::log(&config, "pvcnoded", true))?;
    for warning in &config.warnings {
        tracing::warn!("configuration: {}", warning.message());
    }
    signals::listen(shutdown, log.reopener())?;
    let directory = own.state_directory.join("tree");
    let tree = match dump::open(&directory, recover, &SystemClock).await {
        Ok(tree) => tree,
        Err(error) => return finish(&log, shutdown, Err(error)),
    };
    let dumps = Dumps::of(&directory);
    let whole = async {
        let ended = with_store(&config, &tree, dumps, log.store_lines.take(), shutdown).await;
        tree.close().await;
        ended
    };
    let ended = in_time(shutdown, whole).await;
    finish(&log, shutdown, ended)
}

async fn with_store(
    config: &pvc_config::Config,
    tree: &EmbeddedTree,
    dumps: Dumps,
    log_lines: Option<tokio::sync::mpsc::Receiver<String>>,
    shutdown: &Shutdown,
) -> anyhow::Result<Outcome> {
    let ports = ports::machine(config)?;
    let settings = settings::node(config);
    pvc_node::before_store(&settings, &ports, shutdown.asked()).await?;
    let store = ports::store(tree.connect()).await?;
    let (name, clock) = (settings.name.clone(), ports.clock.clone());
    let api_settings = settings::api(config)?;

    // The node goes last: what the API and the worker still write, it still makes true.
    let serving = shutdown.asked().child_token();
    let running = CancellationToken::new();
    let roles = async {
        let serve = || {
            let (store, settings, stop) = (store.clone(), api_settings.clone(), serving.clone());
            let Ports { clock, random, storage, .. } = ports.clone();
            async move {
                let where_to = settings.clone();
                let serve =
                    |state, stop| async move { Ok(pvc_api::serve(&where_to, state, stop).await?) };
                let ports = ApiPorts { clock, random, storage };
                let ended: Option<anyhow::Result<Outcome>> =
                    pvc_daemon::api(&store, settings, ports, serve, &stop).await;
                ended
            }
        };
        let work = || {
            let (store, name) = (store.clone(), name.clone());
            let (ports, stop) = (ports.clone(), serving.clone());
            let benchmarks = settings::benchmarks(config);
            async move { pvc_daemon::worker(&store, name, ports, benchmarks, || (), &stop).await }
        };
        let dump = || dump::keep(store.clone(), clock.clone(), dumps.clone(), serving.clone());
        let api = keep_running("api", clock.as_ref(), &serving, serve);
        let worker = keep_running("worker", clock.as_ref(), &serving, work);
        let dumps = keep_running("dumps", clock.as_ref(), &serving, dump);
        let (served, ..) = tokio::join!(stop_when_over(api, &serving), worker, dumps);
        running.cancel();
        served.unwrap_or(Some(Ok(Outcome::Stopped)))
    };
    let node = async {
        let begun = shutdown.clone();
        let dress = |node: Node| {
            node.with_log(log_lines)
                .when_ready(move || {
                    begun.begun();
                    Notifier.ready();
                })
                .with_heartbeat(Notifier.watchdog_interval(), || Notifier.alive())
        };
        let ended = pvc_daemon::node(&store, settings, ports.clone(), dress, running.clone()).await;
        serving.cancel();
        ended
    };
    let (served, node) = tokio::join!(roles, node);
    let served = served.unwrap_or_else(|| Err(frozen()));
    let node = node.map_or_else(|| Err(frozen()), |ended| Ok(ended?));
    // Whoever sees first that the store's layout has changed ends, and the others with it.
    let begins_anew =
        [&served, &node].into_iter().any(|ended| matches!(ended, Ok(Outcome::Reexec)));
    if !begins_anew {
        Notifier.stopping();
    }
    served?;
    node?;
    Ok(if begins_anew { Outcome::Reexec } else { Outcome::Stopped })
}

/// When one role ends, for whatever reason, the others are asked to.
async fn stop_when_over<T>(role: impl Future<Output = T>, others: &CancellationToken) -> T {
    let ended = role.await;
    others.cancel();
    ended
}

/// Result of a daemon, which is dropped where it stands if it was asked to stop before it had begun
/// and is not gone in time.
pub async fn in_time(
    shutdown: &Shutdown,
    daemon: impl Future<Output = anyhow::Result<Outcome>>,
) -> anyhow::Result<Outcome> {
    shutdown.in_time(daemon).await.unwrap_or_else(|| {
        tracing::warn!("what the start waits for does not answer; the daemon ends without it");
        Ok(Outcome::Stopped)
    })
}

pub fn finish(
    log: &Log,
    shutdown: &Shutdown,
    ended: anyhow::Result<Outcome>,
) -> anyhow::Result<Outcome> {
    if let Err(error) = &ended {
        report::to_log(error);
    }
    log.flush(shutdown.at_most(LOG_FLUSH));
    ended
}
