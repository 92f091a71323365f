//! The node: its tasks, and the way out.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pvc_core_network::{among_nodes, filter, networks};
use pvc_guest_network::leases::{LeaseRequests, Refused};
use pvc_guest_network::links::Tell;
use pvc_guest_network::{dhcp, dns, evpn, firewall, guard, leases, links, sriov, unconfirmed};
use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_model::node::{DaemonState, NodeRecord, NodeRole};
use pvc_ports::{FilesError, HypervisorError, Ports};
use pvc_role::Tasks;
use pvc_storage::{ceph, inventory, leftovers, secret, snapshot_usage, trash};
use pvc_store::{ChangeError, Changes, Expect, NodeChange, Report, Store, StoreError};
use tokio::sync::mpsc::Receiver;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::settings::NodeSettings;
use crate::shared::{Heartbeat, Shared, id_of};
use crate::startup::{self, NoFacts};
use crate::vms::VmReconciler;
use crate::{
    agents, bmc, certificates, collect, console, database, fence, flush, keepalive, metadata,
    nodelog, primary, reset, sweep,
};

/// Time that the store may take for each of the last words.
const LAST_WORD: Duration = Duration::from_secs(5);

/// Time that the store may take for the word that the start was given up. It is one step of a way
/// out that has a deadline in all, whose owner drops what is late: its session is still to be
/// closed.
const UNSTARTED_WORD: Duration = Duration::from_secs(2);

/// End of a node's run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The node was asked to stop, and has said so in the store if the name was its own by then.
    Stopped,
    /// The store's layout changed: close the tree and execute the program anew, in place.
    Reexec,
}

/// Reason for which a node could not run.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("the folder `{}` could not be made", path.display())]
    Folder {
        path: PathBuf,
        #[source]
        source: FilesError,
    },
    #[error("another daemon runs for node `{node}`: {holder}")]
    SecondDaemon { node: NodeName, holder: String },
    #[error("the store has the layout of version {found}, this program knows version {known}")]
    SchemaTooNew { found: u32, known: u32 },
    #[error("the hypervisor does not answer")]
    Hypervisor(#[source] HypervisorError),
    #[error(transparent)]
    Facts(#[from] NoFacts),
    #[error("the node's record kept being changed by somebody else")]
    Conflict,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl NodeError {
    /// Whether the node has another daemon, whose record is not ours to write.
    fn is_about_another_daemon(&self) -> bool {
        matches!(self, NodeError::SecondDaemon { .. })
    }

    /// Advice for the operator.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            NodeError::Folder { .. } => {
                "the daemon runs as root; is the disk full or mounted read-only?"
            }
            NodeError::SecondDaemon { .. } => {
                "two servers with one host name, or a daemon that was started by hand beside the \
                 service: stop one of \
                 them (`hostnamectl` shows the ids of a machine)"
            }
            NodeError::SchemaTooNew { .. } => "install the version of PVC that the other nodes run",
            NodeError::Hypervisor(_) => {
                "start libvirtd (`systemctl status libvirtd`), or switch the hypervisor off in the \
                 configuration"
            }
            NodeError::Facts(_) | NodeError::Conflict => return None,
            NodeError::Store(error) => return error.hint(),
        };
        Some(hint.to_owned())
    }
}

impl From<ChangeError<NoFacts>> for NodeError {
    fn from(error: ChangeError<NoFacts>) -> Self {
        match error {
            ChangeError::Refused(no_facts) => NodeError::Facts(no_facts),
            ChangeError::Conflict { .. } => NodeError::Conflict,
            ChangeError::Store(error) => NodeError::Store(error),
        }
    }
}

/// The node role of one daemon.
pub struct Node {
    shared: Arc<Shared>,
    log_lines: Option<Receiver<String>>,
    lease_requests: Option<LeaseRequests>,
    metadata_trouble: Option<watch::Receiver<Option<String>>>,
    ready: Box<dyn Fn() + Send + Sync>,
    waiting: Box<Waiting>,
}

/// Words of what serves guests beside the roles.
struct Others {
    leases: Option<LeaseRequests>,
    metadata_trouble: Option<watch::Receiver<Option<String>>>,
}

/// Callback that is told what the start-up waits for.
pub(crate) type Waiting = dyn Fn(&str) + Send + Sync;

/// The roles of a running node, in the groups that end one after the other.
struct Running {
    /// Everything that acts.
    acting: Tasks,
    /// Hears what the DHCP servers say of leases until they have ended.
    leases: Tasks,
    /// Goes on until the primary role has been handed over.
    primary: Tasks,
    /// Goes on to the last step but one.
    keepalive: Tasks,
    /// Goes on to the last step.
    log: Tasks,
}

impl Node {
    pub fn new(settings: NodeSettings, ports: Ports, store: Store) -> Self {
        let shared = Arc::new(Shared::new(settings, ports, store));
        Node {
            shared,
            log_lines: None,
            lease_requests: None,
            metadata_trouble: None,
            ready: Box::new(|| {}),
            waiting: Box::new(|_| {}),
        }
    }

    /// Takes the lines of the daemon's own log that are to be kept in the store.
    pub fn with_log(mut self, lines: Option<Receiver<String>>) -> Self {
        self.log_lines = lines;
        self
    }

    /// Takes what the DHCP servers that this node runs say of leases.
    pub fn with_lease_requests(mut self, requests: LeaseRequests) -> Self {
        self.lease_requests = Some(requests);
        self
    }

    /// Takes what keeps the metadata service from serving, should anything: a fault tells of it.
    pub fn with_metadata_trouble(mut self, trouble: watch::Receiver<Option<String>>) -> Self {
        self.metadata_trouble = Some(trouble);
        self
    }

    /// Says how many times this node has had the primary's services, 0 while it has not: for what
    /// goes with them and is served by others.
    pub fn services(&self) -> watch::Receiver<u64> {
        self.shared.role.term.subscribe()
    }

    /// Calls `ready` once the start-up is complete.
    pub fn when_ready(mut self, ready: impl Fn() + Send + Sync + 'static) -> Self {
        self.ready = Box::new(ready);
        self
    }

    /// Calls `waiting` with what is waited for while the start-up waits for an operator, every few
    /// seconds: such a start is not one that hangs.
    pub fn when_waiting(mut self, waiting: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.waiting = Box::new(waiting);
        self
    }

    /// Calls `heartbeat` as often as keepalives are written, or as `wanted` if that is more often,
    /// while the keepalive goes on. Whether the store could be reached does not matter: the daemon
    /// lives.
    pub fn with_heartbeat(
        self,
        wanted: Option<Duration>,
        heartbeat: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        *self.shared.heartbeat() = Heartbeat { wanted, hook: Box::new(heartbeat) };
        self
    }

    /// Starts, runs until `shutdown` (or until the program must be executed anew), and shuts down.
    /// Guests run on. The tree stays open: whoever opened it closes it.
    pub async fn run(self, shutdown: CancellationToken) -> Result<Outcome, NodeError> {
        let shared = self.shared.clone();
        let begun = tokio::select! {
            biased;
            () = shutdown.cancelled() => None,
            begun = startup::after_store(&shared, &*self.waiting) => Some(begun),
        };
        let unfinished = match begun {
            Some(Ok(())) => None,
            Some(Err(error)) => Some(Err(error)),
            None => Some(Ok(Outcome::Stopped)),
        };
        if let Some(ended) = unfinished {
            primary::let_go(&shared).await;
            if shared.has_name() {
                say_not_started(&shared).await;
            }
            return ended;
        }
        let layout = shared.store.view().config.schema;
        let others =
            Others { leases: self.lease_requests, metadata_trouble: self.metadata_trouble };
        let running = start(&shared, self.log_lines, others);
        (self.ready)();
        tracing::info!("started");
        let ended = tokio::select! {
            biased;
            () = shutdown.cancelled() => Ok(Outcome::Stopped),
            () = layout_change(&shared, layout) => Ok(Outcome::Reexec),
            Err(error) = stay_the_only_one(&shared) => Err(error),
        };
        match &ended {
            Ok(Outcome::Reexec) => {
                tracing::warn!("the store's layout changed; the daemon starts anew");
                fall_silent(running).await;
            }
            Err(error) if error.is_about_another_daemon() => fall_silent(running).await,
            _ => shut_down(&shared, running).await,
        }
        ended
    }
}

/// Starts every role of the node.
fn start(shared: &Arc<Shared>, log_lines: Option<Receiver<String>>, others: Others) -> Running {
    let mut running = Running {
        acting: Tasks::new(shared),
        leases: Tasks::new(shared),
        primary: Tasks::new(shared),
        keepalive: Tasks::new(shared),
        log: Tasks::new(shared),
    };
    start_high_availability(&mut running.acting, shared);
    start_compute(&mut running.acting, shared);
    start_others(&mut running.acting, shared);
    start_guest_networks(&mut running, shared, others);
    start_sriov(&mut running.acting, shared);
    let primary = &mut running.primary;
    primary.supervise("primary", shared, primary::run);
    primary.supervise("primary peers", shared, primary::peers::run);
    primary.supervise("primary guard", shared, primary::guard::run);
    primary.supervise("database leader", shared, primary::database::run);
    let keepalive = &mut running.keepalive;
    keepalive.supervise("keepalive", shared, keepalive::run);
    keepalive.supervise("heartbeat", shared, keepalive::beat);
    keepalive.supervise("figures", shared, keepalive::report);
    if let Some(lines) = log_lines.filter(|_| shared.settings.node_log_lines > 0) {
        // Its queue has one end.
        let (context, keep) = (shared.context.clone(), shared.settings.node_log_lines);
        running.log.start_once(|end| nodelog::run(context, lines, keep, end));
    }
    running
}

fn start_high_availability(acting: &mut Tasks, shared: &Arc<Shared>) {
    let settings = &shared.settings;
    acting.supervise("flush", shared, flush::run);
    acting.supervise("sweep", shared, sweep::run);
    if settings.role == NodeRole::Coordinator && !settings.standalone {
        acting.supervise("fence", shared, fence::run);
    }
    if settings.ipmi.is_some() {
        acting.supervise("bmc", shared, bmc::run);
    }
    if let Some(limit) = settings.reset_after.filter(|_| settings.subsystems.hypervisor) {
        acting.supervise("reset", shared, move |shared, end| reset::run(shared, limit, end));
    }
}

fn start_compute(acting: &mut Tasks, shared: &Arc<Shared>) {
    if shared.settings.subsystems.hypervisor {
        acting.supervise("vms", shared, |shared, end| VmReconciler::new(shared).run(end));
        acting.supervise("collect", shared, collect::run);
        if shared.ports.hypervisor.agents().is_some() {
            acting.supervise("agents", shared, agents::run);
        }
    }
}

/// The rest of what acts. The order in which roles are started is kept: it decides which of them
/// goes first.
fn start_others(acting: &mut Tasks, shared: &Arc<Shared>) {
    let (context, settings) = (&shared.context, &shared.settings);
    let on = settings.subsystems;
    if !settings.standalone {
        acting.supervise("VMs among nodes", context, among_nodes::run);
    }
    if on.storage {
        start_storage(acting, shared);
    }
    if on.hypervisor && settings.console_log_lines > 0 {
        acting.supervise("console", shared, console::run);
    }
    if let Some(database) = shared.ports.database_cluster.clone() {
        let run = move |shared, end| database::run(shared, database.clone(), end);
        acting.supervise("database", shared, run);
    }
    if let Some(wanted) = settings.core_networks.clone() {
        let run = move |context, end| networks::run(context, wanted.clone(), end);
        acting.supervise("networks", context, run);
    }
    if let Some(wanted) = settings.host_filter.clone() {
        let run = move |context, end| filter::run(context, wanted.clone(), end);
        acting.supervise("filter", context, run);
    }
    if settings.standalone {
        acting.supervise("inventory", context, inventory::run);
    }
    if settings.standalone || on.storage {
        acting.supervise("trash", context, trash::run);
        acting.supervise("leftovers", context, leftovers::run);
        acting.supervise("snapshot usage", context, snapshot_usage::run);
    }
    // Also without files: what a former life has raised of others is taken back.
    let watched = settings.certificates.clone();
    let run = move |context, end| certificates::run(context, watched.clone(), end);
    acting.supervise("certificates", context, run);
}

/// The networks of VMs: each role tells the next one what stands.
fn start_guest_networks(running: &mut Running, shared: &Arc<Shared>, others: Others) {
    let (context, acting) = (&shared.context, &mut running.acting);
    let Some(settings) = shared.settings.guest_networks.clone() else { return };
    let (filtered, _) = watch::channel(BTreeSet::new());
    let (standing, _) = watch::channel(links::Standing::new());
    let (nodes, tunnels, tell) = (settings.nodes, settings.tunnels, filtered.clone());
    acting.supervise("guest firewall", context, move |context, end| {
        firewall::run(context, nodes.clone(), tunnels.clone(), tell.clone(), end)
    });
    let abilities = shared.links.clone();
    let (underlay, tell) = (settings.underlay, Tell { standing: standing.clone(), abilities });
    acting.supervise("guest links", context, move |context, end| {
        links::run(context, underlay.clone(), filtered.subscribe(), tell.clone(), end)
    });
    acting.supervise("guest guard", context, guard::run);
    acting.supervise("unconfirmed changes", context, unconfirmed::run);
    let (dhcp, term) = (settings.dhcp, shared.role.term.clone());
    let (refused, _) = watch::channel(Refused::new());
    let refusals = refused.clone();
    acting.supervise("dhcp", context, move |context, end| {
        let (term, standing) = (term.subscribe(), standing.subscribe());
        dhcp::run(context, dhcp.clone(), term, standing, refusals.subscribe(), end)
    });
    if let Some(settings) = settings.dns {
        let term = shared.role.term.clone();
        acting.supervise("dns", context, move |context, end| {
            dns::run(context, settings.clone(), term.subscribe(), end)
        });
    } else {
        acting.supervise("dns", context, dns::stay_off);
    }
    if let Some(settings) = settings.evpn {
        acting.supervise("evpn", context, move |context, end| {
            evpn::run(context, settings.clone(), end)
        });
    }
    if let Some(requests) = others.leases {
        running.leases.supervise("leases", context, move |context, end| {
            leases::run(context, requests.clone(), refused.clone(), end)
        });
    }
    if let Some(trouble) = others.metadata_trouble {
        acting.supervise("metadata", context, move |context, end| {
            metadata::run(context, trouble.clone(), end)
        });
    }
}

/// A node without cards forgets those that it has had.
fn start_sriov(acting: &mut Tasks, shared: &Arc<Shared>) {
    if shared.settings.subsystems.networking {
        let cards = shared.settings.cards();
        acting.supervise("sriov", &shared.context, move |context, end| {
            sriov::run(context, cards.clone(), end)
        });
    }
}

fn start_storage(acting: &mut Tasks, shared: &Arc<Shared>) {
    let (context, settings) = (&shared.context, &shared.settings);
    if context.ports.storage.cluster().is_some() && settings.storage_address.is_none() {
        tracing::warn!(
            "this node has no address on the storage network (`cluster.networks.storage`): locks \
             that it leaves behind cannot be distinguished from another's, and their VMs fail to \
             start"
        );
    }
    let interval = settings.keepalive_interval;
    acting.supervise("ceph", context, move |context, end| ceph::run(context, interval, end));
    if settings.subsystems.hypervisor {
        acting.supervise("key of volumes", context, secret::run);
    }
}

/// Returns when the store's layout is no longer `known`.
async fn layout_change(shared: &Shared, known: Option<u32>) {
    let mut changes = shared.store.changed();
    loop {
        // A tree without any version is an empty one: nothing to start anew for.
        let found = shared.store.view().config.schema;
        if found.is_some() && found != known {
            return;
        }
        if changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Announces the daemon again whenever a new session begins or the tree was made anew. Returns only
/// if another one has the name.
async fn stay_the_only_one(shared: &Shared) -> Result<(), NodeError> {
    let mut session = shared.store.session();
    let mut announced = Some(shared.announced_in.load(Ordering::Relaxed));
    session.mark_changed(); // it may be another session by now
    let mut failing = false;
    loop {
        tokio::select! {
            biased;
            () = shared.unannounced.notified() => announced = None,
            changed = session.changed() => if changed.is_err() {
                std::future::pending::<()>().await
            },
        }
        let now = *session.borrow_and_update();
        let Some(id) = id_of(now).filter(|id| announced != Some(*id)) else { continue };
        match startup::claim_name(shared).await {
            Ok(()) => (announced, failing) = (Some(id), false),
            Err(error) if error.is_about_another_daemon() => return Err(error),
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "the daemon cannot be announced anew; it is tried \
                                            again");
                }
                shared.sleep(Duration::from_secs(1)).await;
                session.mark_changed();
            }
        }
    }
}

/// The way out, in the order of `spec/startup.md` §7. Guests, networks and addresses stay as they
/// are.
async fn shut_down(shared: &Arc<Shared>, mut running: Running) {
    tracing::info!("shutting down; VMs run on");
    say(shared, DaemonState::Shutdown).await;
    running.end_acting().await;
    primary::step_down(shared).await;
    running.end_primary().await;
    // The keepalive goes on until here: a slow way out is no death. It must have ended before the
    // last word, which it would take for a reason to say that the node runs.
    running.end_keepalive().await;
    let nothing = Report::NetworkStats(shared.name().clone(), "{}".to_owned());
    if shared.within(LAST_WORD, shared.store.report(vec![nothing])).await.is_none() {
        tracing::debug!("the interfaces' figures stay in the store");
    }
    say(shared, DaemonState::Stop).await;
    tracing::info!("stopped");
    running.end_log().await;
}

/// The way out without a last word: what the record says of the node is no longer for this process
/// to say.
async fn fall_silent(mut running: Running) {
    running.end_acting().await;
    running.end_primary().await;
    running.end_keepalive().await;
    running.end_log().await;
}

impl Running {
    async fn end_acting(&mut self) {
        self.acting.end("what acts").await;
        self.leases.end("what hears of leases").await;
    }

    async fn end_primary(&mut self) {
        self.primary.end("the primary role").await;
    }

    async fn end_keepalive(&mut self) {
        self.keepalive.end("the keepalive").await;
    }

    async fn end_log(&mut self) {
        self.log.end("the log").await;
    }
}

/// The record of a daemon that ends before it has begun. Where others take the node for dead they
/// go on: nothing that they wait for has happened.
async fn say_not_started(shared: &Shared) {
    let decide = |cluster: &Cluster| {
        let mut changes = Changes::new();
        let record = cluster.nodes.get(shared.name());
        let is_given_up = |record: &NodeRecord| {
            matches!(record.daemon_state, DaemonState::Dead | DaemonState::Fenced)
        };
        if record.is_some_and(|record| !is_given_up(record)) {
            changes.expect(Expect::NodeDaemon(shared.name().clone()));
            changes.node(shared.name(), NodeChange::Daemon(DaemonState::Stop));
        }
        Ok::<_, std::convert::Infallible>((changes, ()))
    };
    let work = async {
        // The node's first record may be on its way.
        shared.store.fresh().await?;
        shared.store.change(decide).await
    };
    if !matches!(shared.within(UNSTARTED_WORD, work).await, Some(Ok(()))) {
        tracing::warn!("it could not be written that the daemon ends");
    }
}

/// Writes the daemon's own state.
async fn say(shared: &Shared, state: DaemonState) {
    let decide = |cluster: &Cluster| {
        let mut changes = Changes::new();
        if cluster.nodes.contains_key(shared.name()) {
            changes.node(shared.name(), NodeChange::Daemon(state.clone()));
        }
        Ok::<_, std::convert::Infallible>((changes, ()))
    };
    match shared.within(LAST_WORD, shared.store.change(decide)).await {
        Some(Ok(())) => {}
        _ => tracing::warn!(state = state.as_str(), "the daemon's state could not be written"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::atomic::AtomicUsize;

    use pvc_model::primary::handover::Duty;
    use pvc_testkit::ports;

    use crate::settings::tests::settings;
    use crate::shared::tests::in_memory;

    async fn shared() -> Arc<Shared> {
        in_memory(settings("hv1"), ports()).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_whose_keepalive_is_stuck_does_not_say_that_it_lives() {
        let shared = shared().await;
        let (beats, end) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
        let counted = beats.clone();
        let hook = Box::new(move || _ = counted.fetch_add(1, Ordering::SeqCst));
        *shared.heartbeat() = Heartbeat { wanted: Some(Duration::from_secs(1)), hook };
        let task = tokio::spawn(keepalive::beat(shared.clone(), end.clone()));
        shared.sleep(3 * shared.settings.keepalive_interval + Duration::from_secs(2)).await;
        let before = beats.load(Ordering::SeqCst);
        assert!(before > 0);
        shared.sleep(Duration::from_secs(60)).await;
        assert_eq!(beats.load(Ordering::SeqCst), before);
        shared.stamps.send_replace(Some(shared.now()));
        shared.sleep(Duration::from_secs(5)).await;
        assert!(beats.load(Ordering::SeqCst) > before, "it goes on");
        end.cancel();
        task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_that_is_given_up_takes_nothing_back_that_others_do_about_a_dead_node() {
        let states = [
            (DaemonState::Init, DaemonState::Stop),
            (DaemonState::Run, DaemonState::Stop),
            (DaemonState::Dead, DaemonState::Dead),
            (DaemonState::Fenced, DaemonState::Fenced),
        ];
        for (before, after) in states {
            let shared = shared().await;
            startup::set_up_node(&shared).await.unwrap();
            say(&shared, before).await;
            say_not_started(&shared).await;
            assert_eq!(shared.record().unwrap().daemon_state, after);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_daemon_on_its_way_out_takes_nothing_of_the_primary_role() {
        let shared = shared().await;
        shared.role.store_answered(shared.now());
        assert!(primary::role::take(&shared, Duty::Upstream).await);
        primary::step_down(&shared).await;
        assert!(!shared.role.holds());
        assert!(!primary::role::take(&shared, Duty::Upstream).await);
        assert!(!shared.role.holds());
    }
}
