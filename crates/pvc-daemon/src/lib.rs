//! The roles as daemons: what each of them does with the ports it is given, from its first look at
//! the store to its end. The programs of a cluster, and the one program of one machine, give them
//! the adapters of a machine, the simulation those of its world, so that what is simulated is what
//! runs.
//!
//! The session with the store is its owner's to open and to close. `None` says that the view of the
//! store is kept up to date no more, as it holds another cluster, or by a bug: the process is
//! better started anew.

#![forbid(unsafe_code)]

mod way_out;

use std::sync::Arc;

use pvc_api::{ApiSettings, ApiState};
use pvc_model::NodeName;
use pvc_node::{Node, NodeError, NodeSettings, Outcome};
use pvc_ports::{Clock, Exporters, Firewall, Ports, Random, Storage};
use pvc_provisioner::Provisioner;
use pvc_store::{Store, StoreError};
use pvc_worker::{BenchmarkTools, Worker};
use tokio_util::sync::CancellationToken;

pub use pvc_worker::{BenchmarkSettings, Profiles, ScriptSettings, ScriptTools};
pub use way_out::{GONE_WITHIN, Shutdown, on_session};

/// The node daemon. `dress` gives it what only its process has: a log, a service manager.
pub async fn node(
    store: &Store,
    settings: NodeSettings,
    ports: Ports,
    dress: impl FnOnce(Node) -> Node,
    shutdown: CancellationToken,
) -> Option<Result<Outcome, NodeError>> {
    let node = dress(Node::new(settings, ports, store.clone()));
    store.while_alive(node.run(shutdown)).await
}

/// Ports that the API is made of besides the store.
pub struct ApiPorts {
    pub clock: Arc<dyn Clock>,
    pub random: Arc<dyn Random>,
    pub storage: Arc<dyn Storage>,
    pub firewall: Arc<dyn Firewall>,
    /// Exporters of a cluster's metrics; `None` on a machine that is alone.
    pub exporters: Option<Arc<dyn Exporters>>,
    /// `None` where no database is configured.
    pub provisioner: Option<Provisioner>,
}

/// The API's daemon. `serve` takes requests until it is told to stop, and then finishes those that
/// it has.
///
/// # Errors
/// Those of `serve`, and if this program cannot read what is in the store.
pub async fn api<Serving, E>(
    store: &Store,
    settings: ApiSettings,
    ports: ApiPorts,
    serve: impl FnOnce(ApiState, CancellationToken) -> Serving,
    shutdown: &CancellationToken,
) -> Option<Result<Outcome, E>>
where
    Serving: Future<Output = Result<(), E>>,
    E: From<StoreError>,
{
    if let Err(error) = store.check_layout() {
        return Some(Err(error.into()));
    }
    let ApiPorts { clock, random, storage, firewall, exporters, provisioner } = ports;
    let (storage, firewall) = (Some(storage), Some(firewall));
    let state = ApiState::new(store.clone(), clock, random, storage, firewall, settings)
        .with_provisioner(provisioner);
    let state = match exporters {
        Some(exporters) => state.with_exporters(exporters),
        None => state,
    };
    let stop = shutdown.child_token();
    until_layout_changes(store, &stop, serve(state, stop.clone())).await
}

/// The worker's daemon. Without `scripts`, or profiles for them, it leaves those of the provisioner
/// to others. `ready` is called when it takes jobs. `store` may be one with the jobs alone in view.
///
/// # Errors
/// If this program cannot read what is in the store.
pub async fn worker(
    store: &Store,
    name: NodeName,
    ports: Ports,
    settings: BenchmarkSettings,
    scripts: Option<ScriptTools>,
    ready: impl FnOnce(),
    shutdown: &CancellationToken,
) -> Option<Result<Outcome, StoreError>> {
    if let Err(error) = store.check_layout() {
        return Some(Err(error));
    }
    let Ports { hypervisor, storage, clock, random, exec, host, .. } = ports;
    let worker = Worker::new(name, store.clone(), hypervisor, storage, clock, random)
        .with_benchmarks(BenchmarkTools { exec, host, settings });
    let worker = match scripts {
        Some(scripts) => worker.with_scripts(scripts),
        None => worker,
    };
    ready();
    let stop = shutdown.child_token();
    let work = async {
        worker.run(stop.clone()).await;
        Ok(())
    };
    until_layout_changes(store, &stop, work).await
}

/// Runs a role until it ends, or the layout of the store changes; `stop` asks it to end.
async fn until_layout_changes<E>(
    store: &Store,
    stop: &CancellationToken,
    role: impl Future<Output = Result<(), E>>,
) -> Option<Result<Outcome, E>> {
    let running = store.until_layout_changes(|| stop.cancel(), role);
    let (ended, has_changed) = store.while_alive(running).await?;
    Some(ended.map(|()| if has_changed { Outcome::Reexec } else { Outcome::Stopped }))
}

#[cfg(test)]
mod tests {
    use pvc_embedded::EmbeddedTree;
    use pvc_ports::{Op, Tree};
    use pvc_testkit::{MemoryFirewall, MemoryStorage, SeededRandom, TokioClock};

    use super::*;

    async fn cluster() -> (EmbeddedTree, Store) {
        let tree = EmbeddedTree::in_memory();
        let random = Arc::new(SeededRandom::new(1));
        let store = Store::open(tree.connect(), Arc::new(TokioClock::new()), random).await;
        let store = store.expect("an embedded tree can be read");
        store.initialize(false).await.expect("it is empty");
        (tree, store)
    }

    async fn set_layout(tree: &EmbeddedTree, version: &'static str) {
        let path = "/schema/version".to_owned();
        let set = Op::Set { path, data: version.into(), version: None };
        tree.multi(vec![set]).await.expect("a write succeeds");
    }

    async fn run_api(
        store: &Store,
        shutdown: &CancellationToken,
    ) -> Option<Result<Outcome, StoreError>> {
        let settings = ApiSettings::new("hv1".into(), ([127, 0, 0, 1], 0).into(), Vec::new());
        let ports = ApiPorts {
            clock: Arc::new(TokioClock::new()),
            random: Arc::new(SeededRandom::new(2)),
            storage: Arc::new(MemoryStorage::new()),
            firewall: Arc::new(MemoryFirewall::new()),
            exporters: None,
            provisioner: None,
        };
        let serve = |_, stop: CancellationToken| async move {
            stop.cancelled().await;
            Ok(())
        };
        api(store, settings, ports, serve, shutdown).await
    }

    #[tokio::test]
    async fn a_daemon_that_is_asked_to_stops() {
        let (_tree, store) = cluster().await;
        let shutdown = CancellationToken::new();
        shutdown.cancel();
        assert!(matches!(run_api(&store, &shutdown).await, Some(Ok(Outcome::Stopped))));
    }

    #[tokio::test]
    async fn a_daemon_begins_anew_when_the_layout_changes_and_ends_if_it_is_too_new() {
        let (tree, store) = cluster().await;
        let shutdown = CancellationToken::new();
        let raised = async { set_layout(&tree, "16").await };
        let (ended, ()) = tokio::join!(run_api(&store, &shutdown), raised);
        assert!(matches!(ended, Some(Ok(Outcome::Reexec))), "{ended:?}");
        assert!(!shutdown.is_cancelled(), "that is its owner's");
        store.fresh().await.expect("it can be read");
        let ended = run_api(&store, &shutdown).await;
        assert!(
            matches!(ended, Some(Err(StoreError::LayoutTooNew { found: 16, .. }))),
            "{ended:?}"
        );
    }
}
