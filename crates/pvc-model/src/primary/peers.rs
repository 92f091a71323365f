//! View that one coordinator has itself of the others: who lives, and who may have addresses that
//! no record speaks of.
//!
//! All times are the observer's own, and only such in which it listened (I8).

use std::collections::BTreeMap;
use std::time::Duration;

use crate::NodeName;
use crate::attention::Attention;
use crate::cluster::Cluster;
use crate::node::{CoordinatorState, DaemonState, NodeRecord, NodeRole};

/// Time beyond a node's right to the addresses for which its kernel keeps them: the node itself
/// lets go first, in order. While the store answers they are renewed long before.
pub const LEASE_MARGIN: Duration = Duration::from_secs(1);

/// Interval at which it is looked who lives.
const LOOK: Duration = Duration::from_secs(1);

/// After this time without a word from a daemon, the kernel of its node has taken the addresses
/// away, and that could be seen. All nodes have the same `session_timeout`: how long the store
/// remembers a silent session.
///
/// With t the moment at which the daemon sent the last request that was answered, its kernel keeps
/// the addresses until t + `session_timeout` + [`LEASE_MARGIN`], in whole seconds and late by a
/// quarter of one at most. The store has heard of the session at t or later, and ends it no sooner
/// than `session_timeout` after that. So a session that has ended of itself says that its daemon
/// has been silent for `session_timeout` at least, to whomever hears of that however late; only the
/// margin, and a look, are still to be waited for.
pub const fn let_go_after(session_timeout: Duration) -> Duration {
    session_timeout.saturating_add(LEASE_MARGIN).saturating_add(LOOK)
}

/// A legacy peer on its way out does not say whether it lives; its way takes no longer than this.
const LEGACY_WAY_OUT: Duration = Duration::from_secs(120);

/// View that an observer has of the others.
#[derive(Debug, Clone)]
pub struct Peers {
    session_timeout: Duration,
    /// Time that a silent daemon's kernel may keep what it has of the role.
    let_go: Duration,
    attention: Attention,
    nodes: BTreeMap<NodeName, Seen>,
}

#[derive(Debug, Clone)]
struct Seen {
    stamp: i32,
    /// Whether it is a daemon that announces itself while it lives.
    ours: bool,
    /// Announcement that was found when it was last asked for.
    announced: Option<i64>,
    /// Since its last sign of life.
    silent: Duration,
    /// Since its last stamp.
    unstamped: Duration,
    daemon_state: DaemonState,
    coordinator_state: CoordinatorState,
    /// Time for which it has been possible that it has what its record does not say.
    doubted: Option<Duration>,
}

impl Peers {
    /// Nothing is known yet of nodes whose sessions last for `session_timeout` after their last
    /// word.
    pub fn new(session_timeout: Duration) -> Self {
        Peers {
            session_timeout,
            let_go: let_go_after(session_timeout),
            attention: Attention::default(),
            nodes: BTreeMap::new(),
        }
    }

    /// Looks at the records at `now`, by the observer's monotonic clock. Without a connection all
    /// times begin anew.
    pub fn look(&mut self, cluster: &Cluster, is_connected: bool, now: Duration) {
        if !is_connected {
            self.attention.lapse();
            let let_go = self.let_go;
            self.nodes.values_mut().for_each(|seen| seen.begin_anew(let_go));
            return;
        }
        let listened = self.attention.look(now);
        self.nodes.retain(|name, _| cluster.nodes.contains_key(name));
        for (name, node) in &cluster.nodes {
            match self.nodes.get_mut(name) {
                Some(seen) => seen.look(node, listened),
                None => _ = self.nodes.insert(name.clone(), Seen::first(node)),
            }
        }
    }

    /// Whether the daemon of `name` is announced could not be found out.
    pub fn note_no_answer(&mut self, name: &NodeName) {
        if let Some(seen) = self.nodes.get_mut(name) {
            seen.silent = Duration::ZERO;
        }
    }

    /// Notes what the daemon of `name` is announced by in the store, another number with each
    /// session; `None` if it is not.
    pub fn note_announced(&mut self, name: &NodeName, announced: Option<i64>) {
        let Some(seen) = self.nodes.get_mut(name) else { return };
        seen.ours |= announced.is_some();
        let is_news = std::mem::replace(&mut seen.announced, announced) != announced;
        if is_news {
            seen.silent = Duration::ZERO;
            seen.doubt_takeover();
        }
        seen.doubt_what_it_lets_go(is_news);
        if seen.session_has_ended(self.session_timeout) {
            seen.silent = seen.silent.max(self.session_timeout);
        }
    }

    /// Whether a daemon of ours has announced itself there and was alive when that was last asked.
    pub fn is_announced(&self, name: &NodeName) -> bool {
        self.nodes.get(name).is_some_and(|seen| seen.announced.is_some())
    }

    /// Notes that this node has the lock of those who take over: who had it before may still have
    /// what it took.
    pub fn claimed(&mut self) {
        self.nodes.values_mut().for_each(Seen::doubt_takeover);
    }

    /// Whether `node` has been silent for so long that it has nothing of the role, whatever its
    /// record says.
    ///
    /// Of a legacy peer that runs this is for who fences to say.
    pub fn is_absent(&self, node: &NodeRecord) -> bool {
        let Some(seen) = self.nodes.get(&node.name) else { return false };
        match node.daemon_state {
            DaemonState::Init
            | DaemonState::Run
            | DaemonState::Shutdown
            | DaemonState::Dead
            | DaemonState::Unknown(_)
                if seen.ours =>
            {
                seen.silent >= self.let_go
            }
            DaemonState::Shutdown => seen.silent >= LEGACY_WAY_OUT,
            _ => false,
        }
    }

    /// Whether `node` may have addresses that its record does not speak of.
    pub fn is_doubtful(&self, node: &NodeRecord) -> bool {
        node.role == NodeRole::Coordinator
            && !self.is_absent(node)
            && self
                .nodes
                .get(&node.name)
                .and_then(|seen| seen.doubted)
                .is_some_and(|since| since < self.let_go)
    }

    /// Another coordinator that may have addresses that its record does not speak of.
    pub fn doubtful<'a>(&self, cluster: &'a Cluster, me: &NodeName) -> Option<&'a NodeName> {
        let mut others = cluster.nodes.values().filter(|node| node.name != *me);
        others.find(|node| self.is_doubtful(node)).map(|node| &node.name)
    }
}

impl Seen {
    fn first(node: &NodeRecord) -> Seen {
        let mut seen = Seen {
            stamp: node.keepalives,
            ours: node.runs_our_daemon(),
            announced: None,
            silent: Duration::ZERO,
            unstamped: Duration::ZERO,
            daemon_state: node.daemon_state.clone(),
            coordinator_state: node.coordinator_state.clone(),
            doubted: None,
        };
        let starts = node.daemon_state == DaemonState::Init;
        seen.doubted = (starts || seen.is_unclear()).then_some(Duration::ZERO);
        seen
    }

    fn look(&mut self, node: &NodeRecord, listened: Duration) {
        // A legacy peer that was put in the place of ours does not let go by itself.
        let is_legacy = node.daemon.as_ref().is_some_and(|note| note.version != node.pvc_version);
        self.ours = self.announced.is_some() || node.runs_our_daemon() || (self.ours && !is_legacy);
        let is_new = self.stamp != node.keepalives;
        self.stamp = node.keepalives;
        self.unstamped = if is_new { Duration::ZERO } else { self.unstamped + listened };
        self.silent = if is_new || self.announced.is_some() {
            Duration::ZERO
        } else {
            self.silent + listened
        };
        self.doubted = self.doubted.map(|since| since + listened);
        if self.daemon_state == node.daemon_state
            && self.coordinator_state == node.coordinator_state
        {
            return;
        }
        let served = self.serves();
        let had = self.had_something();
        self.daemon_state = node.daemon_state.clone();
        self.coordinator_state = node.coordinator_state.clone();
        let begins_anew = node.daemon_state == DaemonState::Init && had;
        if self.serves() {
            // What a daemon that goes on says of itself is true, but for one that was started just
            // now.
            self.doubted = match self.is_unclear() {
                true => Some(Duration::ZERO),
                false if served && had => None,
                false => self.doubted,
            };
        } else if node.is_fenced() {
            self.doubted = None;
        } else if served && had && node.daemon_state == DaemonState::Dead && !self.is_unclear() {
            // Others say that it has nothing any more: true once its silence has lasted for long
            // enough.
            self.doubted = Some(self.silent);
        } else if (served && self.is_unclear()) || begins_anew {
            self.doubted = Some(Duration::ZERO);
        } else if self.is_unclear() {
            self.doubted.get_or_insert(Duration::ZERO);
        }
    }

    fn begin_anew(&mut self, let_go: Duration) {
        (self.silent, self.unstamped) = (Duration::ZERO, Duration::ZERO);
        self.doubted = self.doubted.filter(|since| *since < let_go).map(|_| Duration::ZERO);
    }

    /// Whether the store has given its session up by itself. A daemon that runs does not end its
    /// own, as one on its way out does; and if somebody else deleted what announces it, its stamps
    /// go on.
    fn session_has_ended(&self, session_timeout: Duration) -> bool {
        self.ours
            && self.announced.is_none()
            && matches!(self.daemon_state, DaemonState::Run | DaemonState::Dead)
            && self.unstamped >= session_timeout
    }

    fn doubt_takeover(&mut self) {
        if self.serves() && self.coordinator_state == CoordinatorState::Takeover {
            self.doubted = Some(Duration::ZERO);
        }
    }

    /// Doubts a daemon of ours whose session has ended while it let go of the role: how much of it
    /// is still there no record says.
    fn doubt_what_it_lets_go(&mut self, is_news: bool) {
        let lets_go = self.serves() && self.coordinator_state == CoordinatorState::Relinquish;
        if !self.ours || !lets_go {
            return;
        }
        if is_news {
            self.doubted = Some(Duration::ZERO);
        } else if self.announced.is_none() {
            self.doubted.get_or_insert(Duration::ZERO);
        }
    }

    /// Whether what it says of the role is true while its daemon lives. One of ours that starts
    /// says at first that it has nothing.
    fn serves(&self) -> bool {
        match self.daemon_state {
            DaemonState::Run | DaemonState::Shutdown => true,
            DaemonState::Init => self.ours && self.had_something(),
            _ => false,
        }
    }

    fn had_something(&self) -> bool {
        use CoordinatorState::{Primary, Relinquish, Takeover};
        matches!(self.coordinator_state, Primary | Relinquish | Takeover)
    }

    /// Whether the records leave open what the node has. A primary that serves is asked to give it
    /// up.
    fn is_unclear(&self) -> bool {
        match self.daemon_state {
            _ if self.serves() => self.coordinator_state == CoordinatorState::Takeover,
            DaemonState::Fenced => false,
            _ => self.had_something(),
        }
    }
}
