//! A cluster's daemons, one role each, on the ensemble's ZooKeeper: what they are given. What they
//! do with it is in `pvc-daemon`, as the simulation has it, too.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::anyhow;
use pvc_config::Config;
use pvc_daemon::{ApiPorts, Shutdown, on_session};
use pvc_linux::log::Log;
use pvc_linux::{HttpExporters, Notifier, OsRandom, SystemClock};
use pvc_node::{Node, Outcome};
use pvc_ports::{Exporters, Tree};
use pvc_store::Store;
use pvc_zookeeper::ZookeeperTree;

use crate::standalone::{finish, in_time, tell_metadata};
use crate::supervise::{frozen, while_beating};
use crate::{lease, ports, settings, signals};

pub async fn node(file: Option<PathBuf>, shutdown: &Shutdown) -> anyhow::Result<Outcome> {
    let (config, mut log) = begin(file, "pvcnoded", true, shutdown)?;
    let lines = log.store_lines.take();
    let ended = in_time(shutdown, run_node(&config, lines, shutdown)).await;
    finish(&log, shutdown, ended)
}

async fn run_node(
    config: &Config,
    log_lines: Option<tokio::sync::mpsc::Receiver<String>>,
    shutdown: &Shutdown,
) -> anyhow::Result<Outcome> {
    let ports = ports::machine(config)?;
    let settings = settings::node(config);
    pvc_node::before_store(&settings, &ports, shutdown.asked()).await?;
    let provisioner = ports::provisioner(config)?;
    with_store(config, shutdown, ports::store, async |store| {
        let begun = shutdown.clone();
        let dress = |node: Node| {
            let node = lease::with_lease_requests(node, config);
            tell_metadata(node, config, &store, provisioner, shutdown.asked().clone())
                .with_log(log_lines)
                .when_waiting(|what| Notifier.waiting(what))
                .when_ready(move || {
                    begun.begun();
                    Notifier.ready();
                })
                .with_heartbeat(Notifier.watchdog_interval(), || Notifier.alive())
        };
        let asked = shutdown.asked().clone();
        let ended = pvc_daemon::node(&store, settings, ports, dress, asked).await;
        Ok(ended.ok_or_else(frozen)??)
    })
    .await
}

pub async fn api(file: Option<PathBuf>, shutdown: &Shutdown) -> anyhow::Result<Outcome> {
    let (config, log) = begin(file, "pvcapid", false, shutdown)?;
    let ended = with_store(&config, shutdown, ports::store, async |store| {
        let settings = settings::api(&config)?;
        let storage = ports::storage(&config)?;
        let (clock, random) = (Arc::new(SystemClock), Arc::new(OsRandom));
        let exporters: Option<Arc<dyn Exporters>> = Some(Arc::new(HttpExporters::default()));
        let (firewall, provisioner) = (ports::firewall(), ports::provisioner(&config)?);
        let ports = ApiPorts { clock, random, storage, firewall, exporters, provisioner };
        let where_to = settings.clone();
        let serve = |state, stop| async move {
            let listeners = pvc_api::listen(&where_to)?;
            shutdown.begun();
            Notifier.ready();
            Ok(pvc_api::serve_on(listeners, state, stop).await?)
        };
        let ended: Option<anyhow::Result<Outcome>> =
            beating(pvc_daemon::api(&store, settings, ports, serve, shutdown.asked())).await;
        ended.ok_or_else(frozen)?
    });
    finish(&log, shutdown, in_time(shutdown, ended).await)
}

pub async fn worker(file: Option<PathBuf>, shutdown: &Shutdown) -> anyhow::Result<Outcome> {
    let (config, log) = begin(file, "pvcworkerd", false, shutdown)?;
    let ended = with_store(&config, shutdown, ports::jobs, async |store| {
        let ports = ports::machine(&config)?;
        let name = settings::node(&config).name;
        let ready = || {
            shutdown.begun();
            Notifier.ready();
        };
        let benchmarks = settings::benchmarks(&config);
        let scripts = Some(ports::scripts(&config, &ports)?);
        let stop = shutdown.asked();
        let ended = pvc_daemon::worker(&store, name, ports, benchmarks, scripts, ready, stop);
        Ok(beating(ended).await.ok_or_else(frozen)??)
    });
    finish(&log, shutdown, in_time(shutdown, ended).await)
}

/// Runs a role on a session of its own with the cluster's store, which is opened so and closed in
/// the end.
async fn with_store(
    config: &Config,
    shutdown: &Shutdown,
    store: impl AsyncFnOnce(Arc<dyn Tree>) -> anyhow::Result<Store>,
    role: impl AsyncFnOnce(Store) -> anyhow::Result<Outcome>,
) -> anyhow::Result<Outcome> {
    let open = async {
        let tree = ports::zookeeper(config).await?;
        let store = unless_refused(&tree, store(tree.clone())).await?;
        anyhow::Ok((tree, store))
    };
    let role = async |tree: Arc<ZookeeperTree>, store| {
        let ended = unless_refused(&tree, role(store)).await;
        // A service that says it stops is killed some time later, also if it has begun anew
        // meanwhile.
        if !matches!(ended, Ok(Outcome::Reexec)) {
            Notifier.stopping();
        }
        ended
    };
    let ended = on_session(open, &SystemClock, shutdown.asked(), role).await?;
    Ok(ended.unwrap_or(Outcome::Stopped))
}

/// Result of `work`, unless the store lets this process in no more. It has read its configuration
/// before the records were closed; the service manager starts it again, with what the configuration
/// says by then.
async fn unless_refused<T>(
    tree: &ZookeeperTree,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    tokio::select! {
        biased;
        () = tree.until_refused() => Err(anyhow!(
            "the cluster's records are closed to who does not know their password: set \
             `database.zookeeper.password` to that of the other nodes"
        )),
        done = work => done,
    }
}

/// Tells the service manager, if it watches, that this daemon lives while `role` runs. (The node
/// daemon says it itself: its life is its keepalive.)
async fn beating<T>(role: impl Future<Output = T>) -> T {
    while_beating(Notifier.watchdog_interval(), &SystemClock, || Notifier.alive(), role).await
}

fn begin(
    file: Option<PathBuf>,
    daemon: &str,
    logs_to_store: bool,
    shutdown: &Shutdown,
) -> anyhow::Result<(Config, Log)> {
    let config = settings::cluster(file)?;
    let log = pvc_linux::log::start(&settings::log(&config, daemon, logs_to_store))?;
    for warning in &config.warnings {
        tracing::warn!("configuration: {}", warning.message());
    }
    signals::listen(shutdown, log.reopener())?;
    Ok((config, log))
}
