//! ZooKeeper, simulated: servers on the coordinators, sessions, and connections that take time and
//! break.
//!
//! ```text
//!  process ── Connection ──(up, takes a while)──▶ the tree ──(told late)──▶ a server that lags
//!                 ▲                                  │ answers and events, in order │
//!                 └───────────(down, takes a while)──┴───────────────────────────────┘
//! ```
//!
//! What is written is written at once, for the quorum. A server that lags shows it, announces it
//! and answers whoever wrote it when it is told of it: so its clients read what was, and never what
//! was before what they know already. A client that comes from another server and has seen more
//! than this one shows is refused. One that is out of date for longer than ZooKeeper allows is no
//! part of the quorum.
//!
//! What is sent while the way is interrupted stands still, as TCP has it, and goes on when the way
//! is mended in time. Otherwise the client notices after up to two thirds of the session's timeout:
//! what it had sent is lost (a write may have been carried out or not), what it had not is sent on
//! the next connection. The servers keep its session until they have not heard of it for the
//! timeout, which stands still while there is no quorum.
//!
//! When the servers take no writes, as when the disks of most of them stand still, reads are
//! answered. A write waits, and behind it whatever else its client asks for, pings as well: the
//! client hangs up and comes back, and what it wrote is carried out once they take writes again.
//!
//! Where there are elections, a majority of servers is none without a leader. When the leader's
//! program ends the others know at once, when its machine falls silent after some seconds; then
//! they elect another one for a while.

mod clients;
mod connection;
mod elections;
mod flaws;
mod held;
mod outside_writes;
mod requests;
mod servers;
mod sessions;
mod watches;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pvc_embedded::state::TreeState;
use pvc_ports::{CreateMode, Done, Entry, MultiError, Op, SessionState, Stat, TreeEvent};
use tokio::sync::{mpsc, oneshot, watch};

use crate::guest_networks::Recorded;
use crate::host::Hosts;
use crate::process::{Pid, Processes};
use crate::run::Run;
use crate::truth::Truth;

pub(crate) use self::connection::Connection;
use self::held::Held;

pub(crate) const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for which a call may wait for a connection.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(15);

pub(crate) struct Ensemble {
    /// Tree that the quorum has agreed on.
    tree: TreeState,
    /// The servers that are behind, or once were, by their hosts. All others show the tree as it
    /// is.
    followers: BTreeMap<usize, Follower>,
    /// The open sessions, and when the servers last heard of each.
    sessions: BTreeMap<i64, Duration>,
    clients: Vec<Client>,
    has_quorum: bool,
    pub lost_quorum_at: Option<Duration>,
    /// The host of the server that leads, where one has to.
    leader: Option<usize>,
    /// Whether there has been one.
    was_led: bool,
    /// Whether an election is under way.
    elects: bool,
    /// Time at which the servers have noticed that their leader is silent: until then they keep
    /// their clients.
    followed_until: Duration,
    pub expiries: u64,
    /// Number of connections that programs got.
    pub connections: u64,
    /// Requests that wait, in their order, while the servers take no writes; `None` if they do.
    held: Option<Held>,
    /// Keys that nobody knows.
    unknown: Vec<String>,
    /// The versions of networks of VMs that were written and nobody has taken.
    networks: Vec<Recorded>,
}

/// Something that a client asked a server for.
struct Arrived {
    client: usize,
    connection: u64,
    id: u64,
    session: i64,
    ask: Ask,
}

/// A server that is told late of what was written.
struct Follower {
    /// Tree that the server shows.
    tree: TreeState,
    /// Delay of the server in milliseconds: between these.
    lag_ms: (u64, u64),
    /// Time at which the server will have been told of everything that was written until now:
    /// nothing overtakes anything.
    announced: Duration,
    /// Counts the times that it was given the whole tree: what was to be told before is void.
    copies: u64,
}

struct Client {
    pid: Pid,
    session: i64,
    state: watch::Sender<SessionState>,
    is_closed: bool,
    /// Counts connections: what belongs to an earlier one is void.
    connection: u64,
    is_connected: bool,
    /// The host of the server it is connected to.
    server: Option<usize>,
    /// Whether packets go through now; only asked while it is connected.
    is_good: bool,
    /// Time since which they do.
    good_since: Duration,
    /// Counts interruptions.
    interruption: u64,
    /// Requests that were not sent.
    waiting: VecDeque<Call>,
    /// Requests that were sent and not answered.
    sent: BTreeMap<u64, Call>,
    /// Messages that are on the way and stand still.
    stalled: Vec<Act>,
    /// No packet overtakes another one.
    last_up: Duration,
    last_down: Duration,
    /// Time at which the client's server will have answered everything that it was asked: a read
    /// waits for the write before it.
    answered: Duration,
    /// The last change that it has seen the tree with.
    seen: i64,
    watches: Vec<Watched>,
    breaks_after_write: bool,
    next_call: u64,
    /// The last stamp of each node that was taken for a sign of life, with the deliberate flaw of
    /// comparing wall clocks.
    believed: BTreeMap<String, Entry>,
}

struct Watched {
    root: String,
    events: mpsc::UnboundedSender<TreeEvent>,
}

struct Call {
    id: u64,
    ask: Ask,
    answer: oneshot::Sender<Result<Answer, CallError>>,
}

#[derive(Clone)]
enum Ask {
    Get(Vec<String>),
    Children(Vec<String>),
    Create(String, Bytes, CreateMode),
    Multi(Vec<Op>),
    Sync,
    Close,
}

impl Ask {
    /// Whether asking twice does no harm.
    fn is_read(&self) -> bool {
        matches!(self, Ask::Get(_) | Ask::Children(_) | Ask::Sync)
    }
}

enum Answer {
    Entries(Vec<Option<Entry>>),
    Names(Vec<Option<Vec<String>>>),
    Created(String, Stat),
    Multi(Vec<Done>),
    Nothing,
}

enum CallError {
    /// The request was not sent in time.
    NotSent,
    /// The request was sent, and the connection was lost.
    Lost,
    Expired,
    Closed,
    Refused(MultiError),
}

/// Message to a client.
enum Word {
    Answer {
        id: u64,
        answer: Result<Answer, CallError>,
        /// The last change that the server knew then.
        zxid: i64,
    },
    /// Events of one change.
    Events(Arc<[TreeEvent]>),
}

/// Something that happens to the servers, or to one of their clients.
type Act = Box<dyn FnOnce(&mut Ensemble, &mut Around<'_>) + Send>;

/// Parts of the world that ZooKeeper uses.
pub(crate) struct Around<'a> {
    pub run: &'a mut Run,
    pub hosts: &'a Hosts,
    pub processes: &'a mut Processes,
    pub truth: &'a mut Truth,
}

impl Around<'_> {
    fn runs(&self, pid: Pid) -> bool {
        self.processes[pid].runs(self.hosts)
    }

    /// Has something happen to ZooKeeper after `delay`.
    fn later(
        &mut self,
        delay: Duration,
        act: impl FnOnce(&mut Ensemble, &mut Around<'_>) + Send + 'static,
    ) {
        self.at(self.run.now + delay, act);
    }

    fn at(
        &mut self,
        when: Duration,
        act: impl FnOnce(&mut Ensemble, &mut Around<'_>) + Send + 'static,
    ) {
        self.run.at(when, move |state| state.with_zookeeper(act));
    }

    /// Has something happen inside the process: at once, or when it is thawed.
    fn in_process(
        &mut self,
        zookeeper: &mut Ensemble,
        pid: Pid,
        act: impl FnOnce(&mut Ensemble, &mut Around<'_>) + Send + 'static,
    ) {
        match self.runs(pid) {
            true => act(zookeeper, self),
            false => {
                self.processes[pid].hold(Box::new(move |state| state.with_zookeeper(act)));
            }
        }
    }
}

impl Ensemble {
    pub fn new() -> Self {
        Ensemble {
            tree: TreeState::new(1),
            followers: BTreeMap::new(),
            sessions: BTreeMap::new(),
            clients: Vec::new(),
            has_quorum: true,
            lost_quorum_at: None,
            leader: None,
            was_led: false,
            elects: false,
            followed_until: Duration::ZERO,
            expiries: 0,
            connections: 0,
            held: None,
            unknown: Vec::new(),
            networks: Vec::new(),
        }
    }

    /// Takes the versions of networks of VMs that were written since this was last asked.
    pub fn take_recorded_networks(&mut self) -> Vec<Recorded> {
        std::mem::take(&mut self.networks)
    }

    pub fn has_quorum(&self) -> bool {
        self.has_quorum
    }

    /// Time since which nothing has been in the way between the process and a server of the quorum;
    /// `None` if something is.
    pub fn connected_since(&self, processes: &Processes, pid: Pid) -> Option<Duration> {
        let known = &self.clients[processes[pid].client?];
        let has_contact = known.is_connected
            && known.is_good
            && self.has_quorum
            && self.held.is_none()
            && self.sessions.contains_key(&known.session);
        has_contact.then_some(known.good_since)
    }

    fn host_of(&self, processes: &Processes, client: usize) -> Option<usize> {
        processes[self.clients[client].pid].host
    }

    fn is_onlooker(&self, processes: &Processes, client: usize) -> bool {
        self.host_of(processes, client).is_none()
    }
}

#[cfg(test)]
mod tests;
