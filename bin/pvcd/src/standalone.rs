//! Standalone mode: one machine, with all roles and the store in one process. What each role does
//! with what it is given is in `pvc-daemon`, as a cluster's daemons have it, too.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use pvc_api::{ApiSettings, ApiState, MetadataPorts};
use pvc_daemon::{ApiPorts, Shutdown};
use pvc_embedded::{Dumps, EmbeddedTree};
use pvc_linux::log::Log;
use pvc_linux::{Notifier, OsRandom, SystemClock};
use pvc_model::NodeName;
use pvc_node::{Node, Outcome, Ports};
use pvc_ports::Tree;
use pvc_provisioner::Provisioner;
use pvc_store::{Store, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::supervise::{frozen, keep_running};
use crate::{dump, lease, ports, report, settings, signals};

/// Time that the last log lines may take to reach the disk.
const LOG_FLUSH: Duration = Duration::from_secs(2);

pub async fn run(
    file: Option<PathBuf>,
    recover: bool,
    shutdown: &Shutdown,
) -> anyhow::Result<Outcome> {
    let mut config = settings::standalone(file)?;
    let own = config
        .standalone
        .clone()
        .context("standalone mode without its own settings is a bug of ours")?;
    let mut log = pvc_linux::log::start(&settings::log(&config, "pvcnoded", true))?;
    for warning in &config.warnings {
        tracing::warn!("configuration: {}", warning.message());
    }
    signals::listen(shutdown, log.reopener())?;
    let networks = if config.subsystems.networking { its_networks() } else { None };
    config.subsystems.networking = networks.is_some();
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

/// Lock by which this PVC alone has the networks of this machine: two would remove each other's
/// bridges and packet filter. `None` if another one has it; it lasts as long as this process.
#[expect(clippy::disallowed_methods, reason = "before there are ports")]
fn its_networks() -> Option<File> {
    let locked = || -> anyhow::Result<File> {
        let namespace = std::fs::metadata("/proc/self/ns/net")?.ino();
        let path = format!("/run/pvc-networks-{namespace}.lock");
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&path);
        let file = file.with_context(|| format!("`{path}` cannot be opened"))?;
        file.try_lock().with_context(|| format!("another PVC holds `{path}`"))?;
        Ok(file)
    };
    locked()
        .inspect_err(|error| {
            tracing::warn!("networks of VMs are off in this PVC: {error:#}");
        })
        .ok()
}

async fn with_store(
    config: &pvc_config::Config,
    tree: &EmbeddedTree,
    dumps: Dumps,
    log_lines: Option<tokio::sync::mpsc::Receiver<String>>,
    shutdown: &Shutdown,
) -> anyhow::Result<Outcome> {
    let ports = ports::machine(config)?;
    let provisioner = ports::provisioner(config)?;
    let settings = settings::node(config);
    pvc_node::before_store(&settings, &ports, shutdown.asked()).await?;
    let store = ports::store(tree.connect()).await?;
    let roles = Roles {
        config,
        name: settings.name.clone(),
        api: settings::api(config)?,
        store: store.clone(),
        ports: ports.clone(),
        provisioner: provisioner.clone(),
        stop: shutdown.asked().child_token(),
    };

    // The node goes last: what the API and the worker still write, it still makes true.
    let running = CancellationToken::new();
    let served = async {
        let served = roles.run(dumps).await;
        running.cancel();
        served
    };
    let node = async {
        let begun = shutdown.clone();
        let dress = |node: Node| {
            let node = lease::with_lease_requests(node, config);
            tell_metadata(node, config, &store, provisioner, running.clone())
                .with_log(log_lines)
                .when_ready(move || {
                    begun.begun();
                    Notifier.ready();
                })
                .with_heartbeat(Notifier.watchdog_interval(), || Notifier.alive())
        };
        let ended = pvc_daemon::node(&store, settings, ports, dress, running.clone()).await;
        roles.stop.cancel();
        ended
    };
    let (served, node) = tokio::join!(served, node);
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

/// Outcome of the worker; `None` if the store did not let go of it in time.
type Worked = Option<Result<Outcome, StoreError>>;

/// The roles beside the node's, and what they stand on.
struct Roles<'a> {
    config: &'a pvc_config::Config,
    name: NodeName,
    api: ApiSettings,
    store: Store,
    ports: Ports,
    provisioner: Option<Provisioner>,
    stop: CancellationToken,
}

impl Roles<'_> {
    /// Runs them until all have ended; when the API ends, so do the others. `None` if the store did
    /// not let go of the API in time.
    async fn run(&self, dumps: Dumps) -> Option<anyhow::Result<Outcome>> {
        let clock = &self.ports.clock;
        let dump =
            || dump::keep(self.store.clone(), clock.clone(), dumps.clone(), self.stop.clone());
        let api = keep_running("api", clock.as_ref(), &self.stop, || self.serve());
        let worker = keep_running("worker", clock.as_ref(), &self.stop, || self.work());
        let dumps = keep_running("dumps", clock.as_ref(), &self.stop, dump);
        let (served, ..) = tokio::join!(stop_when_over(api, &self.stop), worker, dumps);
        served.unwrap_or(Some(Ok(Outcome::Stopped)))
    }

    fn serve(&self) -> impl Future<Output = Option<anyhow::Result<Outcome>>> + use<> {
        let (store, settings, stop) = (self.store.clone(), self.api.clone(), self.stop.clone());
        let Ports { clock, random, storage, firewall, network, .. } = self.ports.clone();
        let provisioner = self.provisioner.clone();
        async move {
            let where_to = settings.clone();
            let serve = |state: ApiState, stop| async move {
                let state = state.with_machine(network);
                Ok(pvc_api::serve(&where_to, state, stop).await?)
            };
            let exporters = None;
            let ports = ApiPorts { clock, random, storage, firewall, exporters, provisioner };
            pvc_daemon::api(&store, settings, ports, serve, &stop).await
        }
    }

    fn work(&self) -> impl Future<Output = Worked> + use<> {
        let (store, name) = (self.store.clone(), self.name.clone());
        let (ports, stop) = (self.ports.clone(), self.stop.clone());
        let benchmarks = settings::benchmarks(self.config);
        let scripts = ports::scripts(self.config, &ports);
        let warn = |error: &anyhow::Error| {
            tracing::warn!(%error, "scripts of the provisioner cannot be run");
        };
        let scripts = scripts.inspect_err(warn).ok();
        async move {
            let ready = || ();
            pvc_daemon::worker(&store, name, ports, benchmarks, scripts, ready, &stop).await
        }
    }
}

/// Tells guests their metadata while the node has the primary's services, until `end`.
pub fn tell_metadata(
    node: Node,
    config: &pvc_config::Config,
    store: &Store,
    provisioner: Option<Provisioner>,
    end: CancellationToken,
) -> Node {
    if settings::guest_networks(config).is_none() {
        return node;
    }
    let trouble = Arc::new(watch::Sender::default());
    let seen = trouble.subscribe();
    let ports = MetadataPorts {
        store: store.clone(),
        clock: Arc::new(SystemClock),
        random: Arc::new(OsRandom),
        is_token_required: config.guest_networking.metadata_token,
        provisioner,
        trouble,
    };
    let services = node.services();
    tokio::spawn(async move {
        let serve = || pvc_api::serve_metadata(ports.clone(), services.clone(), end.clone());
        keep_running("metadata", &SystemClock, &end, serve).await
    });
    node.with_metadata_trouble(seen)
}

/// Runs one role; when it ends, for whatever reason, asks the others to end too.
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
