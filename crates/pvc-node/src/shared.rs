//! State that the tasks of one node share.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use pvc_model::Uuid;
use pvc_model::cluster::Cluster;
use pvc_model::domain::DomainSummary;
use pvc_model::link::LinkAbilities;
use pvc_model::node::{DaemonNote, HypervisorNote, NodeFigures};
use pvc_model::vm::backoff::Backoff;
use pvc_ports::{AgentAddress, GuestStats, Ports, SessionState};
use pvc_role::Context;
use pvc_store::{Report, Store};
use tokio::sync::{Notify, watch};

use crate::figures::node_figures;
use crate::primary::role::Role;
use crate::settings::NodeSettings;

/// State of the node: what every role is given, the settings, and the few facts that one task finds
/// and another reports.
pub(crate) struct Shared {
    pub context: Context,
    pub settings: NodeSettings,
    /// The guests of this node, as the VM reconciler last saw them.
    pub guests: watch::Sender<Guests>,
    /// Tells of each stamp of the keepalive: when it was begun, on the monotonic clock; `None` if
    /// it could not be written.
    pub stamps: watch::Sender<Option<Duration>>,
    /// Number of stamps that were written.
    pub stamped: watch::Sender<u64>,
    /// Wakes when the announcement of this daemon in the store may be gone, though its session
    /// lasts.
    pub unannounced: Notify,
    /// The session in which this daemon was last announced as the node's only one; 0 before. In any
    /// other session the node's record may be another daemon's.
    pub announced_in: AtomicI64,
    /// The part of this node in the primary role.
    pub role: Role,
    /// Whether this node's own BMC answered at the start.
    pub bmc_answers: AtomicBool,
    /// Whether it has said that this machine is off.
    pub bmc_is_foreign: AtomicBool,
    /// Versions that guests run with here, once they are known.
    pub runs_with: OnceLock<HypervisorNote>,
    /// Abilities of the kernel with links, once they are known.
    pub links: Arc<OnceLock<LinkAbilities>>,
    heartbeat: Mutex<Heartbeat>,
    collected: Mutex<Collected>,
    failed_moves: Mutex<BTreeMap<Uuid, Backoff>>,
}

/// Signs of life of the daemon.
pub(crate) struct Heartbeat {
    /// Time between two signs of life, if anybody asked for them more often than keepalives are
    /// written.
    pub wanted: Option<Duration>,
    pub hook: Box<dyn Fn() + Send + Sync>,
}

/// The guests here that have a record, at the end of a pass.
#[derive(Debug, Clone, Default)]
pub(crate) struct Guests {
    /// Number of passes that have looked at every guest since the daemon started.
    pub passes: u64,
    pub known: BTreeMap<Uuid, GuestFacts>,
    /// All guests that the hypervisor runs, ours or not.
    pub total: u64,
    /// Guests here that belong to another node and have not been ended yet.
    pub foreign: usize,
    /// Whether the hypervisor has not answered since: guests that are gone may be among them.
    pub outdated: bool,
}

/// Facts that are read once about each instance of a guest.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GuestFacts {
    pub instance: i32,
    pub name: String,
    /// Configuration of the running guest from its XML, once it has been read.
    pub live: Option<Arc<DomainSummary>>,
    pub console: Option<PathBuf>,
}

/// Figures as last heard, however old.
#[derive(Debug, Clone, Default)]
pub(crate) struct Collected {
    pub stats: BTreeMap<Uuid, GuestStats>,
    /// Addresses by the agents in guests, of those that say any.
    pub addresses: BTreeMap<Uuid, Vec<AgentAddress>>,
    /// Monotonic; `None` before the first answer.
    pub at: Option<Duration>,
}

impl Deref for Shared {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.context
    }
}

impl Shared {
    pub fn new(settings: NodeSettings, ports: Ports, store: Store) -> Self {
        let (guests, _) = watch::channel(Guests::default());
        let heartbeat = Mutex::new(Heartbeat { wanted: None, hook: Box::new(|| {}) });
        let collected = Mutex::default();
        let (stamps, _) = watch::channel(None);
        let (stamped, _) = watch::channel(0);
        let failed_moves = Mutex::default();
        let role = Role::new(settings.session_timeout);
        let (bmc_answers, bmc_is_foreign) = (AtomicBool::new(false), AtomicBool::new(false));
        Shared {
            context: Context::new(settings.name.clone(), ports, store),
            settings,
            guests,
            stamps,
            stamped,
            unannounced: Notify::new(),
            announced_in: AtomicI64::new(0),
            bmc_answers,
            bmc_is_foreign,
            runs_with: OnceLock::new(),
            links: Arc::default(),
            role,
            heartbeat,
            collected,
            failed_moves,
        }
    }

    /// Whether this daemon is announced in the present session, and no other can have the name.
    pub fn has_name(&self) -> bool {
        let session = id_of(*self.store.session().borrow());
        session == Some(self.announced_in.load(Ordering::Relaxed))
    }

    /// Report of this daemon about itself, to be written.
    pub fn note(&self) -> Report {
        let settings = &self.settings;
        let note = DaemonNote {
            version: settings.version.clone(),
            storage_address: settings.storage_address.clone(),
            cluster_address: settings.cluster_address(),
            runs_guests: settings.subsystems.hypervisor,
            takes_held_guests: true,
            stamps_while_starting: true,
            has_vlans: self.links.get().map(|able| able.vlans),
        };
        Report::Daemon(self.name().clone(), note, self.runs_with.get().cloned())
    }

    pub fn heartbeat(&self) -> MutexGuard<'_, Heartbeat> {
        self.heartbeat.lock().expect("nothing panics while it holds the hook")
    }

    /// Notes that a VM could not be moved from here: whoever wants that anew waits a little, ever
    /// longer.
    pub fn note_failed_move(&self, vm: Uuid) {
        let now = self.now();
        self.failed_moves().entry(vm).or_default().move_failed(now);
    }

    pub fn forget_failed_move(&self, vm: Uuid) {
        self.failed_moves().remove(&vm);
    }

    pub fn failed_moves(&self) -> MutexGuard<'_, BTreeMap<Uuid, Backoff>> {
        self.failed_moves.lock().expect("nothing panics while it holds them")
    }

    pub fn collected(&self) -> MutexGuard<'_, Collected> {
        self.collected.lock().expect("nothing panics while it holds the figures")
    }

    /// Figures of this node with these guests, as far as its machine can say. Before it has looked
    /// at its guests nothing is said, so that nobody takes it for empty.
    pub fn figures(&self, view: &Cluster, guests: &Guests) -> Option<NodeFigures> {
        if self.settings.subsystems.hypervisor && guests.passes == 0 {
            return None;
        }
        match self.ports.host.load() {
            Ok(load) => {
                let mut figures =
                    node_figures(self.name(), view, guests, &self.collected().stats, &load);
                if let Some(said) = view.nodes.get(self.name()).filter(|_| guests.outdated) {
                    // What a guest had that is gone is its own still: it is listed, and nobody
                    // counts it besides.
                    figures.memory_free_mib =
                        figures.memory_free_mib.min(said.figures.memory_free_mib);
                }
                Some(figures)
            }
            Err(error) => {
                tracing::warn!(%error, "this machine's figures cannot be read");
                None
            }
        }
    }
}

/// The session's number, while there is a connection.
pub(crate) fn id_of(session: SessionState) -> Option<i64> {
    match session {
        SessionState::Connected { id } => Some(id),
        _ => None,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    use pvc_embedded::EmbeddedTree;
    use pvc_testkit::{SeededRandom, TokioClock};

    /// State of a node on a tree of its own in memory, with Tokio's clock beside `others`.
    pub(crate) async fn in_memory(settings: NodeSettings, others: Ports) -> Arc<Shared> {
        let (clock, random) = (Arc::new(TokioClock::new()), Arc::new(SeededRandom::new(1)));
        let tree = EmbeddedTree::in_memory();
        let store = Store::open(tree.connect(), clock.clone(), random.clone()).await.unwrap();
        store.initialize(false).await.unwrap();
        let ports = Ports { clock, random, ..others };
        Arc::new(Shared::new(settings, ports, store))
    }
}
