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

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use pvc_embedded::state::{Change, Outcome, TreeState, Work};
use pvc_ports::{
    CreateMode, Done, Entry, MultiError, Op, SessionState, Stat, Tree, TreeError, TreeEvent,
    TreeWatch, check_path,
};
use tokio::sync::{mpsc, oneshot, watch};

use crate::host::{Host, Hosts};
use crate::nature::Mutation;
use crate::process::{Gate, Pid, Processes};
use crate::run::Run;
use crate::truth::Truth;

pub(crate) const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a call may wait for a connection.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(15);

/// How often the servers look for sessions that have fallen silent.
const TICK: Duration = Duration::from_secs(1);

const MAX_REQUEST_BYTES: usize = 63 << 20;

/// How far behind a server may be until the others go on without it.
const SYNC_LIMIT: Duration = Duration::from_secs(10);

pub(crate) struct Ensemble {
    /// What the quorum has agreed on.
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
    /// When the servers have noticed that their leader is silent: until then they keep their
    /// clients.
    followed_until: Duration,
    pub expiries: u64,
    /// How often a program got a connection.
    pub connections: u64,
    /// What waits, in its order, while the servers take no writes; `None` if they do.
    held: Option<Vec<Arrived>>,
    /// Keys that nobody knows.
    unknown: Vec<String>,
}

/// Something that a client asked a server for.
struct Arrived {
    client: usize,
    connection: u64,
    id: u64,
    session: i64,
    ask: Ask,
}

/// How long servers wait for a leader that has fallen silent, in milliseconds: between half of
/// `syncLimit` and all of it.
const LEADER_SILENT_MS: (u64, u64) = (5_000, 10_000);

/// What unknown keys say.
const UNKNOWN: &str = "of a version to come";

/// A server that is told late of what was written.
struct Follower {
    /// What it shows.
    tree: TreeState,
    /// How late, in milliseconds: between these.
    lag_ms: (u64, u64),
    /// When it will have been told of everything that was written until now: nothing overtakes
    /// anything.
    told: Duration,
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
    /// Since when they do.
    good_since: Duration,
    /// Counts interruptions.
    interruption: u64,
    /// Requests that were not sent.
    waiting: VecDeque<Call>,
    /// Requests that were sent and not answered.
    sent: BTreeMap<u64, Call>,
    /// What is on the way and stands still.
    stalled: Vec<Act>,
    /// No packet overtakes another one.
    last_up: Duration,
    last_down: Duration,
    /// When its server will have answered everything that it was asked: a read waits for the write
    /// before it.
    answered: Duration,
    /// The last change that it has seen the tree with.
    seen: i64,
    watches: Vec<Watched>,
    breaks_after_write: bool,
    next_call: u64,
    /// With the deliberate flaw of comparing wall clocks: the last stamp of each node that was
    /// taken for a sign of life.
    believed: BTreeMap<String, Entry>,
}

/// How old a stamp may be until it is disbelieved by who compares wall clocks.
const BELIEVED: Duration = Duration::from_secs(30);

struct Watched {
    root: String,
    events: mpsc::UnboundedSender<TreeEvent>,
}

struct Call {
    id: u64,
    ask: Ask,
    answer: oneshot::Sender<Result<Answer, Trouble>>,
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

enum Trouble {
    /// It was not sent in time.
    NotSent,
    /// It was sent, and the connection was lost.
    Lost,
    Expired,
    Closed,
    Refused(MultiError),
}

/// What goes down to a client.
enum Word {
    Answer {
        id: u64,
        answer: Result<Answer, Trouble>,
        /// The last change that the server knew then.
        zxid: i64,
    },
    /// What one change did.
    Events(Arc<[TreeEvent]>),
}

/// Something that happens to the servers, or to one of their clients.
type Act = Box<dyn FnOnce(&mut Ensemble, &mut Around<'_>) + Send>;

/// What ZooKeeper has to do with, beside itself.
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
        }
    }
}

impl Ensemble {
    // --- Servers that lag ----------------------------------------------------------------------

    /// From now on the server on `host` is told of what is written so many milliseconds late. One
    /// that is alone has nobody to be behind.
    pub fn set_lag(&mut self, around: &mut Around<'_>, host: usize, lag_ms: (u64, u64)) {
        if !around.hosts[host].is_coordinator || around.hosts.coordinators() < 2 {
            return;
        }
        let tree = &self.tree;
        let new = || Follower { tree: tree.clone(), lag_ms, told: Duration::ZERO, copies: 0 };
        let follower = self.followers.entry(host).or_insert_with(new);
        if !keeps_up(follower.lag_ms) && keeps_up(lag_ms) {
            // The others went on without it: it begins with all that they have.
            follower.tree = self.tree.clone();
            follower.copies += 1;
            follower.told = around.run.now;
            follower.lag_ms = lag_ms;
            // Whoever was still connected has missed what happened meanwhile: it hangs up on them.
            let clients = &self.clients;
            let own: Vec<usize> =
                (0..clients.len()).filter(|client| clients[*client].server == Some(host)).collect();
            own.into_iter().for_each(|client| self.disconnect(around, client));
            return;
        }
        follower.lag_ms = lag_ms;
    }

    /// The server on `host` is as far behind as it usually is. The first is the one that the others
    /// learn from.
    pub fn lag_as_usual(&mut self, around: &mut Around<'_>, host: usize) {
        let is_first = around.hosts[..host].iter().all(|other| !other.is_coordinator);
        let lag_ms = if is_first { (0, 0) } else { around.run.nature.lag_ms };
        if lag_ms != (0, 0) || self.followers.contains_key(&host) {
            self.set_lag(around, host, lag_ms);
        }
    }

    fn keeps_up(&self, host: usize) -> bool {
        self.followers.get(&host).is_none_or(|follower| keeps_up(follower.lag_ms))
    }

    /// When the server on `host` is told of what is written now; `None` if it is at once.
    fn when_told(&mut self, run: &mut Run, host: usize) -> Option<Duration> {
        let (least, most) = self.followers.get(&host)?.lag_ms;
        let late = if most == 0 { Duration::ZERO } else { run.chance.millis(least, most) };
        let now = run.now;
        let follower = self.followers.get_mut(&host).expect("it was there a moment ago");
        follower.told = follower.told.max(now + late);
        Some(follower.told)
    }

    /// The server on `host` is told of a change.
    fn follow(&mut self, around: &mut Around<'_>, host: usize, copies: u64, change: Change) {
        let Some(follower) = self.followers.get_mut(&host) else { return };
        if follower.copies != copies {
            return;
        }
        let events = follower.tree.publish(change);
        self.announce_changes(around, events, |server| server == Some(host));
    }

    /// The tree as the client is shown it.
    fn tree_of(&self, client: usize) -> &TreeState {
        self.clients[client].server.map_or(&self.tree, |server| self.tree_at(server))
    }

    fn server_is_heard(&self, hosts: &Hosts, host: usize) -> bool {
        lives(&hosts[host]) && hosts[host].cables.cluster && self.keeps_up(host)
    }

    pub fn has_quorum(&self) -> bool {
        self.has_quorum
    }

    /// Since when nothing has been in the way between the process and a server of the quorum;
    /// `None` if something is.
    pub fn heard_since(&self, processes: &Processes, pid: Pid) -> Option<Duration> {
        let known = &self.clients[processes[pid].client?];
        let is_heard = known.is_connected
            && known.is_good
            && self.has_quorum
            && self.held.is_none()
            && self.sessions.contains_key(&known.session);
        is_heard.then_some(known.good_since)
    }

    fn counts_quorum(&self, hosts: &Hosts) -> bool {
        let servers = hosts.coordinators();
        let heard = (0..hosts.len()).filter(|host| self.server_is_heard(hosts, *host)).count();
        // A cluster of one server needs no cable.
        if servers == 1 {
            return hosts.iter().any(lives);
        }
        heard > servers / 2
    }

    /// Whether packets of the process reach the server on `server`, and that one is part of the
    /// quorum.
    fn reaches_server(&self, around: &Around<'_>, pid: Pid, server: usize) -> bool {
        let hosts = around.hosts;
        let Some(host) = around.processes[pid].host else { return true };
        let from = &hosts[host];
        let wired = host == server || (from.cables.cluster && hosts[server].cables.cluster);
        let serves = self.server_is_heard(hosts, server)
            || (lives(&hosts[server]) && hosts.coordinators() == 1);
        from.on && !from.frozen && wired && serves && self.has_quorum
    }

    fn host_of(&self, processes: &Processes, client: usize) -> Option<usize> {
        processes[self.clients[client].pid].host
    }

    fn is_onlooker(&self, processes: &Processes, client: usize) -> bool {
        self.host_of(processes, client).is_none()
    }

    /// To be called whenever hosts, cables, servers or processes changed.
    pub fn review(&mut self, around: &mut Around<'_>) {
        let majority = self.counts_quorum(around.hosts);
        let quorum = self.is_led(around, majority) && majority;
        if quorum != self.has_quorum {
            self.has_quorum = quorum;
            around.run.note(if quorum {
                "zookeeper: there is a quorum"
            } else {
                "zookeeper: the quorum is lost"
            });
            self.lost_quorum_at = (!quorum).then_some(around.run.now);
            if let Some(held) = &mut self.held {
                held.clear(); // whoever leads next has not agreed on it
            }
            if quorum {
                // A new leader gives every session its whole timeout.
                let now = around.run.now;
                self.sessions.values_mut().for_each(|heard| *heard = now);
            }
        }
        for client in 0..self.clients.len() {
            self.review_client(around, client);
        }
    }

    // --- Elections -----------------------------------------------------------------------------

    /// Whether the servers, of which there is a majority or not, have a leader if they need one. A
    /// majority without one begins to elect.
    fn is_led(&mut self, around: &mut Around<'_>, majority: bool) -> bool {
        let Some(elections) = around.run.nature.elections else { return true };
        if !self.was_led {
            if !self.server_is_heard(around.hosts, elections.first) {
                return true; // it begins once the first one leads
            }
            self.was_led = true;
            self.leader = Some(elections.first);
        }
        let leader = self.leader;
        if majority && leader.is_some_and(|leader| self.server_is_heard(around.hosts, leader)) {
            return true;
        }
        if let Some(leader) = leader {
            self.leader = None;
            around.run.note("zookeeper: there is no leader");
            let host = &around.hosts[leader];
            let hangs_up = host.on && !host.frozen && host.cables.cluster;
            let (least, most) = if hangs_up { (50, 500) } else { LEADER_SILENT_MS };
            self.followed_until = around.run.now + around.run.chance.millis(least, most);
        }
        if majority && !self.elects {
            self.elects = true;
            let (least, most) = elections.takes_ms;
            let notices = self.followed_until.saturating_sub(around.run.now);
            let takes = notices + around.run.chance.millis(least, most);
            around.later(takes, Ensemble::elect);
        }
        false
    }

    /// An election ends: with a leader, if there is a majority.
    fn elect(&mut self, around: &mut Around<'_>) {
        self.elects = false;
        let heard: Vec<usize> = (0..around.hosts.len())
            .filter(|host| {
                around.hosts[*host].is_coordinator && self.server_is_heard(around.hosts, *host)
            })
            .collect();
        if self.counts_quorum(around.hosts) {
            self.leader = around.run.chance.pick(&heard).copied();
        }
        if let Some(leader) = self.leader {
            around
                .run
                .note(format!("zookeeper: the server on {} leads", around.hosts[leader].name));
        }
        self.review(around);
    }

    fn review_client(&mut self, around: &mut Around<'_>, client: usize) {
        let known = &self.clients[client];
        if known.is_closed || !known.is_connected || self.is_onlooker(around.processes, client) {
            return;
        }
        let pid = known.pid;
        let is_good = known.server.is_some_and(|server| self.reaches_server(around, pid, server));
        let was_good = known.is_good;
        let now = around.run.now;
        if is_good && !was_good {
            let known = &mut self.clients[client];
            known.is_good = true;
            known.good_since = now;
            known.interruption += 1;
            for act in std::mem::take(&mut known.stalled) {
                act(self, around);
            }
        }
        if was_good && !is_good {
            let known = &mut self.clients[client];
            known.is_good = false;
            known.interruption += 1;
            let interruption = known.interruption;
            // A server that ended, or a live one that lost the quorum, hangs up; silence takes
            // longer to notice.
            let server = known.server;
            let hangs_up = server.is_some_and(|server| {
                around.hosts[server].on
                    && !around.hosts[server].frozen
                    && around.hosts[server].cables.cluster
            });
            let notices = match hangs_up && around.hosts.iter().any(|host| host.on) {
                true => self.followed_until.saturating_sub(now) + around.run.chance.millis(0, 1000),
                false => around.run.chance.millis(3400, 6700),
            };
            around.later(notices, move |zookeeper, around| {
                zookeeper.notice(around, client, interruption)
            });
        }
    }

    fn notice(&mut self, around: &mut Around<'_>, client: usize, interruption: u64) {
        let known = &self.clients[client];
        if known.interruption != interruption || !known.is_connected || known.is_closed {
            return;
        }
        let pid = known.pid;
        around.in_process(self, pid, move |zookeeper, around| {
            if zookeeper.clients[client].interruption == interruption {
                zookeeper.disconnect(around, client);
            }
        });
    }

    // --- The client's side ---------------------------------------------------------------------

    fn new_client(&mut self, around: &mut Around<'_>, pid: Pid) -> usize {
        let (state, _) = watch::channel(SessionState::Disconnected);
        let is_onlooker = around.processes[pid].host.is_none();
        self.clients.push(Client {
            pid,
            session: 0,
            state,
            is_closed: false,
            connection: 0,
            is_connected: false,
            server: None,
            is_good: false,
            good_since: Duration::ZERO,
            interruption: 0,
            waiting: VecDeque::new(),
            sent: BTreeMap::new(),
            stalled: Vec::new(),
            last_up: Duration::ZERO,
            last_down: Duration::ZERO,
            answered: Duration::ZERO,
            seen: 0,
            watches: Vec::new(),
            breaks_after_write: false,
            next_call: 0,
            believed: BTreeMap::new(),
        });
        let client = self.clients.len() - 1;
        around.processes[pid].client = Some(client);
        if is_onlooker {
            self.connected(around, client, None);
        } else {
            self.try_to_connect(around, client, 0);
        }
        client
    }

    /// The next connection of the client breaks right after a write was carried out.
    pub fn break_after_next_write(&mut self, client: usize) {
        self.clients[client].breaks_after_write = true;
    }

    fn try_to_connect(&mut self, around: &mut Around<'_>, client: usize, attempt: usize) {
        let known = &self.clients[client];
        let pid = known.pid;
        if known.is_closed || known.is_connected || around.processes[pid].ended {
            return;
        }
        if !around.runs(pid) {
            return around.in_process(self, pid, move |zookeeper, around| {
                zookeeper.try_to_connect(around, client, attempt)
            });
        }
        let servers: Vec<usize> =
            (0..around.hosts.len()).filter(|host| around.hosts[*host].is_coordinator).collect();
        // Each client begins at its own place of the list.
        let server = servers[(pid + attempt) % servers.len()];
        let pause = around.run.chance.millis(20, 400 + 200 * attempt.min(4) as u64);
        if !self.reaches_server(around, pid, server) {
            return around.later(pause, move |zookeeper, around| {
                zookeeper.try_to_connect(around, client, attempt + 1)
            });
        }
        let session = self.clients[client].session;
        if session != 0 && !self.sessions.contains_key(&session) {
            let known = &mut self.clients[client];
            known.session = 0;
            known.state.send_replace(SessionState::Expired);
            return around.later(pause, move |zookeeper, around| {
                zookeeper.try_to_connect(around, client, attempt)
            });
        }
        if session == 0 {
            // A session is a change like any other: the server learns of it when it is told.
            if self.held.is_some() {
                return around.later(pause, move |zookeeper, around| {
                    zookeeper.try_to_connect(around, client, attempt + 1)
                });
            }
            if let Some(when) =
                self.when_told(around.run, server).filter(|when| *when > around.run.now)
            {
                return around.at(when, move |zookeeper, around| {
                    zookeeper.begin_session(around, client, server, attempt)
                });
            }
        } else if self.tree_at(server).zxid() < self.clients[client].seen {
            return around.later(pause, move |zookeeper, around| {
                zookeeper.try_to_connect(around, client, attempt + 1)
            });
        }
        self.connected(around, client, Some(server));
    }

    /// The server has been told of a session that a client wants to begin there.
    fn begin_session(
        &mut self,
        around: &mut Around<'_>,
        client: usize,
        server: usize,
        attempt: usize,
    ) {
        let pid = self.clients[client].pid;
        let is_open = !self.clients[client].is_closed && !around.processes[pid].ended;
        match is_open && around.runs(pid) && self.reaches_server(around, pid, server) {
            true => self.connected(around, client, Some(server)),
            false => self.try_to_connect(around, client, attempt + 1),
        }
    }

    fn tree_at(&self, server: usize) -> &TreeState {
        self.followers.get(&server).map_or(&self.tree, |follower| &follower.tree)
    }

    fn connected(&mut self, around: &mut Around<'_>, client: usize, server: Option<usize>) {
        let now = around.run.now;
        if self.clients[client].session == 0 {
            let session = self.tree.open_session();
            self.clients[client].session = session;
        }
        let session = self.clients[client].session;
        self.sessions.insert(session, now);
        self.connections += u64::from(server.is_some());
        let breaks = around.run.nature.broken_writes;
        let breaks = server.is_some() && around.run.chance.happens(breaks);
        let known = &mut self.clients[client];
        known.connection += 1;
        (known.is_connected, known.is_good, known.server) = (true, true, server);
        known.good_since = now;
        known.breaks_after_write |= breaks;
        known.stalled.clear();
        (known.last_up, known.last_down, known.answered) = (now, now, now);
        known.state.send_replace(SessionState::Connected { id: session });
        let again = !known.watches.is_empty();
        let waiting = std::mem::take(&mut known.waiting);
        if again {
            self.tell(around, client, Word::Events(Arc::new([TreeEvent::Resync])));
        }
        for call in waiting {
            self.send(around, client, call);
        }
    }

    fn disconnect(&mut self, around: &mut Around<'_>, client: usize) {
        let known = &mut self.clients[client];
        if known.is_closed || !known.is_connected {
            return;
        }
        known.connection += 1;
        (known.is_connected, known.is_good, known.server) = (false, false, None);
        known.stalled.clear();
        known.state.send_replace(SessionState::Disconnected);
        let mut again = Vec::new();
        for (_, call) in std::mem::take(&mut known.sent) {
            match call.ask.is_read() {
                true => again.push(call),
                false => drop(call.answer.send(Err(Trouble::Lost))),
            }
        }
        for call in again.into_iter().rev() {
            self.limit_wait(around, client, call.id);
            self.clients[client].waiting.push_front(call);
        }
        around.later(Duration::from_millis(20), move |zookeeper, around| {
            zookeeper.try_to_connect(around, client, 0)
        });
    }

    fn limit_wait(&mut self, around: &mut Around<'_>, client: usize, id: u64) {
        around.later(OPERATION_TIMEOUT, move |zookeeper, _| {
            let waiting = &mut zookeeper.clients[client].waiting;
            if let Some(place) = waiting.iter().position(|call| call.id == id)
                && let Some(call) = waiting.remove(place)
            {
                let _ = call.answer.send(Err(Trouble::NotSent)); // whoever asked may have gone
            }
        });
    }

    fn submit(
        &mut self,
        around: &mut Around<'_>,
        client: usize,
        ask: Ask,
    ) -> oneshot::Receiver<Result<Answer, Trouble>> {
        let (answer, answered) = oneshot::channel();
        let known = &mut self.clients[client];
        known.next_call += 1;
        let call = Call { id: known.next_call, ask, answer };
        if known.is_closed {
            let _ = call.answer.send(Err(Trouble::Closed)); // its receiver is in our hands
        } else if known.is_connected {
            self.send(around, client, call);
        } else {
            self.limit_wait(around, client, call.id);
            self.clients[client].waiting.push_back(call);
        }
        answered
    }

    fn send(&mut self, around: &mut Around<'_>, client: usize, call: Call) {
        let id = call.id;
        let takes = if self.is_onlooker(around.processes, client) {
            Duration::ZERO
        } else {
            around.run.latency()
        };
        let known = &mut self.clients[client];
        let arrives = known.last_up.max(around.run.now + takes);
        known.last_up = arrives;
        known.sent.insert(id, call);
        let connection = known.connection;
        if takes.is_zero() {
            self.arrive(around, client, connection, id);
        } else {
            around.at(arrives, move |zookeeper, around| {
                zookeeper.arrive(around, client, connection, id)
            });
        }
    }

    // --- The servers' side ---------------------------------------------------------------------

    fn arrive(&mut self, around: &mut Around<'_>, client: usize, connection: u64, id: u64) {
        let known = &mut self.clients[client];
        if known.connection != connection {
            return;
        }
        if !known.is_good {
            known.stalled.push(Box::new(move |zookeeper, around| {
                zookeeper.arrive(around, client, connection, id)
            }));
            return;
        }
        let Some(call) = known.sent.get(&id) else { return };
        let (ask, session) = (call.ask.clone(), known.session);
        if !self.sessions.contains_key(&session) {
            return self.answer(around, client, id, Err(Trouble::Expired));
        }
        let arrived = Arrived { client, connection, id, session, ask };
        if self.waits(around, &arrived) {
            return self.hold(around, arrived);
        }
        // Whoever asks is heard, also between two pings.
        self.sessions.insert(session, around.run.now);
        self.serve(around, arrived);
    }

    fn serve(
        &mut self,
        around: &mut Around<'_>,
        Arrived { client, connection, id, session, ask }: Arrived,
    ) {
        let is_write = !ask.is_read();
        if !is_write && !matches!(ask, Ask::Sync) {
            return self.read_in_order(around, client, connection, id);
        }
        let judged = judged(&ask);
        let ask = self.mutated(around, client, ask);
        let answer = self.carry_out(around, session, ask);
        if let (Ok(_), Some(by)) = (&answer, self.host_of(around.processes, client)) {
            judged.iter().for_each(|node| around.truth.said_of(by, node));
        }
        let known = &mut self.clients[client];
        if known.connection != connection {
            return; // carried out, and nobody learns of it
        }
        if is_write && std::mem::take(&mut known.breaks_after_write) {
            known.interruption += 1;
            let pid = known.pid;
            around.run.note(format!(
                "zookeeper: {} loses its connection after a write",
                around.processes[pid].name
            ));
            return around.in_process(self, pid, move |zookeeper, around| {
                if zookeeper.clients[client].connection == connection {
                    zookeeper.disconnect(around, client);
                }
            });
        }
        self.answer_when_told(around, client, connection, id, answer);
    }

    // --- Servers that take no writes -----------------------------------------------------------

    pub fn hold_writes(&mut self) {
        self.held.get_or_insert_default();
    }

    /// What was held is carried out, in its order.
    pub fn let_writes_go(&mut self, around: &mut Around<'_>) {
        let Some(held) = self.held.take() else { return };
        let now = around.run.now;
        for client in &mut self.clients {
            client.good_since = now;
        }
        for arrived in held {
            let is_open = self.sessions.contains_key(&arrived.session);
            let is_there = self.clients[arrived.client].connection == arrived.connection;
            if is_open && (is_there || !arrived.ask.is_read()) {
                self.serve(around, arrived);
            }
        }
    }

    /// Whether it has to wait until the servers take writes again: a change, or what its client
    /// asks for after one.
    fn waits(&self, around: &Around<'_>, arrived: &Arrived) -> bool {
        let Some(held) = &self.held else { return false };
        let changes = !matches!(arrived.ask, Ask::Get(_) | Ask::Children(_));
        let of_same = |other: &Arrived| {
            (other.client, other.connection) == (arrived.client, arrived.connection)
        };
        !self.is_onlooker(around.processes, arrived.client) && (changes || held.iter().any(of_same))
    }

    fn hold(&mut self, around: &mut Around<'_>, arrived: Arrived) {
        let (client, connection, id) = (arrived.client, arrived.connection, arrived.id);
        self.held.get_or_insert_default().push(arrived);
        // Its pings wait as well.
        let notices = around.run.chance.millis(3400, 6700);
        around.later(notices, move |zookeeper, around| {
            let pid = zookeeper.clients[client].pid;
            around.in_process(zookeeper, pid, move |zookeeper, around| {
                let known = &zookeeper.clients[client];
                if known.connection == connection && known.sent.contains_key(&id) {
                    zookeeper.disconnect(around, client);
                }
            });
        });
    }

    /// Answers when the client's server knows what the answer is about.
    fn answer_when_told(
        &mut self,
        around: &mut Around<'_>,
        client: usize,
        connection: u64,
        id: u64,
        answer: Result<Answer, Trouble>,
    ) {
        let server = self.clients[client].server;
        let Some(when) = server.and_then(|server| self.when_told(around.run, server)) else {
            return self.answer(around, client, id, answer);
        };
        self.clients[client].answered = when;
        around.at(when, move |zookeeper, around| {
            if zookeeper.clients[client].connection == connection {
                zookeeper.answer(around, client, id, answer);
            }
        });
    }

    /// Reads what the client's server shows, after everything that the client asked for before.
    fn read_in_order(&mut self, around: &mut Around<'_>, client: usize, connection: u64, id: u64) {
        let when = self.clients[client].answered;
        match when >= around.run.now {
            // Behind whatever its server is told in this moment.
            true => around.at(when, move |zookeeper, around| {
                zookeeper.read_now(around, client, connection, id)
            }),
            false => self.read_now(around, client, connection, id),
        }
    }

    fn read_now(&mut self, around: &mut Around<'_>, client: usize, connection: u64, id: u64) {
        let known = &self.clients[client];
        let Some(call) = known.sent.get(&id).filter(|_| known.connection == connection) else {
            return;
        };
        let tree = self.tree_of(client);
        let answer = match &call.ask {
            Ask::Get(paths) => {
                let entries = paths.iter().map(|path| tree.entry(path)).collect();
                Answer::Entries(match around.run.nature.mutation {
                    Some(Mutation::WallClock) => {
                        self.disbelieved(around, client, &paths.clone(), entries)
                    }
                    _ => entries,
                })
            }
            Ask::Children(paths) => {
                Answer::Names(paths.iter().map(|path| tree.children(path)).collect())
            }
            _ => unreachable!("what changes something is no read"),
        };
        self.answer(around, client, id, Ok(answer));
    }

    fn answer(
        &mut self,
        around: &mut Around<'_>,
        client: usize,
        id: u64,
        answer: Result<Answer, Trouble>,
    ) {
        let zxid = self.tree_of(client).zxid();
        self.tell(around, client, Word::Answer { id, answer, zxid });
    }

    /// Has the quorum do something.
    fn carry_out(
        &mut self,
        around: &mut Around<'_>,
        session: i64,
        ask: Ask,
    ) -> Result<Answer, Trouble> {
        match ask {
            Ask::Get(_) | Ask::Children(_) => unreachable!("a read is for one server"),
            Ask::Sync => Ok(Answer::Nothing),
            Ask::Close => {
                self.end_session(around, session);
                Ok(Answer::Nothing)
            }
            Ask::Create(path, data, mode) => {
                match self.change_tree(around, &Work::Create { session, path, data, mode }) {
                    Ok(Outcome::Created(path, stat)) => Ok(Answer::Created(path, stat)),
                    Ok(other) => unreachable!("a creation was answered with {other:?}"),
                    Err(error) => Err(Trouble::Refused(error)),
                }
            }
            Ask::Multi(ops) => match self.change_tree(around, &Work::Multi { session, ops }) {
                Ok(Outcome::Multi(done)) => Ok(Answer::Multi(done)),
                Ok(other) => unreachable!("a multi was answered with {other:?}"),
                Err(error) => Err(Trouble::Refused(error)),
            },
        }
    }

    /// What arrives of a change, with one of the deliberate flaws.
    fn mutated(&self, around: &Around<'_>, client: usize, ask: Ask) -> Ask {
        let Ask::Multi(ops) = ask else { return ask };
        let current = |path: &str| self.tree.node(path).map_or(0, |node| node.version);
        let believed = &self.clients[client].believed;
        let flawed = |op| match (around.run.nature.mutation, op) {
            (Some(Mutation::Versionless), Op::Set { path, data, .. }) => {
                Op::Set { path, data, version: None }
            }
            (Some(Mutation::Versionless), Op::Check { path, .. }) => {
                Op::Check { version: current(&path), path }
            }
            // Who believes in an old stamp decides by it.
            (Some(Mutation::WallClock), Op::Check { path, version })
                if believed.get(&path).is_some_and(|entry| entry.stat.version == version) =>
            {
                Op::Check { version: current(&path), path }
            }
            (_, op) => op,
        };
        Ask::Multi(ops.into_iter().map(flawed).collect())
    }

    /// With the deliberate flaw of comparing wall clocks: a stamp that is old by the reader's clock
    /// is no sign of life, as if it had not been written.
    fn disbelieved(
        &mut self,
        around: &mut Around<'_>,
        client: usize,
        paths: &[String],
        mut entries: Vec<Option<Entry>>,
    ) -> Vec<Option<Entry>> {
        let Some(host) = self.host_of(around.processes, client) else { return entries };
        let now = around.run.wall(around.hosts[host].wall_offset);
        let believed = &mut self.clients[client].believed;
        for (path, entry) in paths.iter().zip(&mut entries) {
            let Some(known) = entry.as_mut().filter(|_| path.ends_with("/keepalive")) else {
                continue;
            };
            let stamp = std::str::from_utf8(&known.data).ok().and_then(|text| text.parse().ok());
            let is_old = stamp.is_some_and(|stamp| now > Duration::from_secs(stamp) + BELIEVED);
            match believed.get(path).filter(|_| is_old) {
                Some(before) => known.clone_from(before),
                None => drop(believed.insert(path.clone(), known.clone())),
            }
        }
        entries
    }

    fn change_tree(&mut self, around: &mut Around<'_>, work: &Work) -> Result<Outcome, MultiError> {
        let mut draft = self.tree.draft();
        let outcome = draft.apply(work)?;
        let change = draft.finish();
        let followers: Vec<usize> = self.followers.keys().copied().collect();
        for host in &followers {
            let (host, copies) = (*host, self.followers[host].copies);
            if let Some(when) = self.when_told(around.run, host) {
                let change = change.clone();
                around.at(when, move |zookeeper, around| {
                    zookeeper.follow(around, host, copies, change)
                });
            }
        }
        let events = self.tree.publish(change);
        self.announce_changes(around, events, |server| {
            server.is_none_or(|server| !followers.contains(&server))
        });
        Ok(outcome)
    }

    /// Tells of changes to the clients of some servers.
    fn announce_changes(
        &mut self,
        around: &mut Around<'_>,
        events: Vec<TreeEvent>,
        at: impl Fn(Option<usize>) -> bool,
    ) {
        if events.is_empty() {
            return;
        }
        let events: Arc<[TreeEvent]> = events.into();
        for client in 0..self.clients.len() {
            let known = &self.clients[client];
            if known.is_connected && !known.watches.is_empty() && at(known.server) {
                self.tell(around, client, Word::Events(events.clone()));
            }
        }
    }

    // --- What others write ---------------------------------------------------------------------

    /// Somebody from outside writes something.
    fn write_from_outside(&mut self, around: &mut Around<'_>, ops: Vec<Op>) {
        let onlooker =
            (0..self.clients.len()).find(|client| self.is_onlooker(around.processes, *client));
        let session = self.clients[onlooker.expect("somebody looks on")].session;
        self.change_tree(around, &Work::Multi { session, ops })
            .expect("a story writes what can be written");
    }

    pub fn change_layout(&mut self, around: &mut Around<'_>, version: u32) {
        let (path, data) = ("/schema/version".to_owned(), Bytes::from(version.to_string()));
        self.write_from_outside(around, vec![Op::Set { path, data, version: None }]);
    }

    /// In the root, in the configuration, and in every node's and VM's record.
    pub fn add_unknown_keys(&mut self, around: &mut Around<'_>) {
        let mut places = vec![String::new(), "/config".to_owned()];
        for parent in ["/nodes", "/domains"] {
            let names = self.tree.children(parent).unwrap_or_default();
            places.extend(names.iter().map(|name| format!("{parent}/{name}")));
        }
        let keys = places
            .iter()
            .flat_map(|place| [format!("{place}/future"), format!("{place}/future/deep")]);
        let keys: Vec<String> = keys.filter(|key| self.tree.entry(key).is_none()).collect();
        let create = |path: &String| Op::Create {
            path: path.clone(),
            data: Bytes::from_static(UNKNOWN.as_bytes()),
            mode: CreateMode::Persistent,
        };
        self.write_from_outside(around, keys.iter().map(create).collect());
        self.unknown.extend(keys);
    }

    /// What of the unknown keys is no longer as it was; those of a record that is gone have gone
    /// with it. And the root, which holds nothing.
    pub fn spoilt_keys(&self) -> Vec<String> {
        let tree = &self.tree;
        let holds = |path: &str, wanted: &str| {
            tree.entry(path).is_some_and(|entry| entry.data == wanted && entry.stat.version == 0)
        };
        let record = |key: &str| key.split("/future").next().unwrap_or_default().to_owned();
        let is_gone = |key: &str| !record(key).is_empty() && tree.entry(&record(key)).is_none();
        let mut spoilt: Vec<String> = self.unknown.clone();
        spoilt.retain(|key| !is_gone(key) && !holds(key, UNKNOWN));
        if !holds("/", "") {
            spoilt.push("/".to_owned());
        }
        spoilt
    }

    fn end_session(&mut self, around: &mut Around<'_>, session: i64) {
        self.sessions.remove(&session);
        self.change_tree(around, &Work::End { session })
            .expect("the end of a session is never refused");
    }

    /// Begins to look for sessions that fell silent, for ever.
    pub fn watch_sessions(&mut self, around: &mut Around<'_>) {
        self.expire_silent(around);
        around.later(TICK, Ensemble::watch_sessions);
    }

    fn expire_silent(&mut self, around: &mut Around<'_>) {
        if !self.has_quorum {
            return;
        }
        let now = around.run.now;
        for client in 0..self.clients.len() {
            let known = &self.clients[client];
            if known.is_connected && known.is_good && !known.is_closed && around.runs(known.pid) {
                let session = known.session;
                if let Some(heard) = self.sessions.get_mut(&session) {
                    *heard = now;
                }
            }
        }
        if self.held.is_some() {
            return; // the end of a session is a change, too
        }
        let silent = |heard: &Duration| now.saturating_sub(*heard) > SESSION_TIMEOUT;
        let over: Vec<i64> = self
            .sessions
            .iter()
            .filter(|(_, heard)| silent(heard))
            .map(|(session, _)| *session)
            .collect();
        for session in over {
            let known = self.clients.iter().position(|client| client.session == session);
            if let Some(client) = known {
                let pid = self.clients[client].pid;
                around.run.note(format!(
                    "zookeeper: the session of {} has expired",
                    around.processes[pid].name
                ));
            }
            self.expiries += 1;
            self.end_session(around, session);
            // The server hangs up on a client that is there after all.
            let hears = |client: &usize| {
                let known = &self.clients[*client];
                known.is_connected && known.is_good
            };
            if let Some(client) = known.filter(hears) {
                let known = &mut self.clients[client];
                known.is_good = false;
                known.interruption += 1;
                let interruption = known.interruption;
                self.notice(around, client, interruption);
            }
        }
    }

    // --- Down to the client --------------------------------------------------------------------

    fn tell(&mut self, around: &mut Around<'_>, client: usize, word: Word) {
        let takes = if self.is_onlooker(around.processes, client) {
            Duration::ZERO
        } else {
            around.run.latency()
        };
        let known = &mut self.clients[client];
        let arrives = known.last_down.max(around.run.now + takes);
        known.last_down = arrives;
        let connection = known.connection;
        if takes.is_zero() {
            self.hear(around, client, connection, word);
        } else {
            around.at(arrives, move |zookeeper, around| {
                zookeeper.hear(around, client, connection, word)
            });
        }
    }

    fn hear(&mut self, around: &mut Around<'_>, client: usize, connection: u64, word: Word) {
        let known = &mut self.clients[client];
        if known.connection != connection {
            return;
        }
        if !known.is_good {
            known.stalled.push(Box::new(move |zookeeper, around| {
                zookeeper.hear(around, client, connection, word)
            }));
            return;
        }
        let pid = known.pid;
        around.in_process(self, pid, move |zookeeper, around| {
            zookeeper.take_in(around, client, connection, word)
        });
    }

    fn take_in(&mut self, around: &mut Around<'_>, client: usize, connection: u64, word: Word) {
        let known = &mut self.clients[client];
        if known.connection != connection {
            return;
        }
        match word {
            Word::Answer { id, answer, zxid } => {
                known.seen = known.seen.max(zxid);
                let expired = matches!(answer, Err(Trouble::Expired));
                if let Some(call) = known.sent.remove(&id) {
                    let _ = call.answer.send(answer); // whoever asked may have gone
                }
                if expired {
                    self.disconnect(around, client);
                }
            }
            Word::Events(events) => {
                known.watches.retain(|watched| !watched.events.is_closed());
                for watched in &known.watches {
                    let wanted = events.iter().filter(|event| match event {
                        TreeEvent::Changed { path } | TreeEvent::Deleted { path } => {
                            covers(&watched.root, path)
                        }
                        TreeEvent::Resync => true,
                    });
                    for event in wanted {
                        let _ = watched.events.send(event.clone()); // it was open a moment ago
                    }
                }
            }
        }
    }

    fn watch_tree(&mut self, client: usize, root: &str) -> Option<TreeWatch> {
        let known = &mut self.clients[client];
        if known.is_closed {
            return None;
        }
        let (events, watch) = mpsc::unbounded_channel();
        known.watches.push(Watched { root: root.to_owned(), events });
        Some(watch)
    }

    fn close_client(&mut self, client: usize) {
        let known = &mut self.clients[client];
        known.is_closed = true;
        known.is_connected = false;
        known.watches.clear();
        known.stalled.clear();
        known.state.send_replace(SessionState::Closed);
        let calls =
            std::mem::take(&mut known.sent).into_values().chain(std::mem::take(&mut known.waiting));
        for call in calls.collect::<Vec<_>>() {
            let _ = call.answer.send(Err(Trouble::Closed)); // whoever asked may have gone
        }
    }

    /// The process has ended: nobody listens any more, and the servers hear no more of it.
    pub fn process_ended(&mut self, client: usize) {
        let known = &mut self.clients[client];
        known.is_closed = true;
        known.is_connected = false;
        known.watches.clear();
        known.sent.clear();
        known.waiting.clear();
        known.stalled.clear();
    }
}

/// The nodes of which it is said what state their daemons are in.
fn judged(ask: &Ask) -> Vec<String> {
    let Ask::Multi(ops) = ask else { return Vec::new() };
    let node = |op: &Op| match op {
        Op::Set { path, .. } => {
            path.strip_prefix("/nodes/")?.strip_suffix("/daemonstate").map(str::to_owned)
        }
        _ => None,
    };
    ops.iter().filter_map(node).collect()
}

/// Whether the server of the host runs.
fn lives(host: &Host) -> bool {
    host.is_coordinator
        && host.on
        && host.booted
        && !host.frozen
        && host.server_up
        && !host.disk_full
}

fn keeps_up(lag_ms: (u64, u64)) -> bool {
    Duration::from_millis(lag_ms.1) <= SYNC_LIMIT
}

fn covers(root: &str, path: &str) -> bool {
    let below = path.strip_prefix(root.trim_end_matches('/'));
    below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The tree as one process has it.
pub(crate) struct Connection {
    gate: Gate,
    client: usize,
    session: watch::Receiver<SessionState>,
}

impl Connection {
    /// Begins a session.
    ///
    /// # Errors
    /// [`TreeError::Unreachable`] if no server answers for a while.
    pub async fn open(gate: Gate) -> Result<Connection, TreeError> {
        let pid = gate.pid;
        let (client, mut session) = gate
            .call(|state| {
                state.with_zookeeper(|zookeeper, around| {
                    let client = zookeeper.new_client(around, pid);
                    (client, zookeeper.clients[client].state.subscribe())
                })
            })
            .await;
        let connection = Connection { gate: gate.clone(), client, session: session.clone() };
        let connected = async {
            session.wait_for(|state| matches!(state, SessionState::Connected { .. })).await.is_ok()
        };
        let is_connected = tokio::select! {
            biased;
            connected = connected => connected,
            () = gate.sleep(OPERATION_TIMEOUT) => false,
        };
        gate.pass().await;
        if is_connected {
            return Ok(connection);
        }
        gate.call(|state| state.zookeeper.close_client(client)).await;
        Err(unreachable())
    }

    async fn ask(&self, ask: Ask) -> Result<Answer, Trouble> {
        let answered = self.submit(ask).await;
        self.gate.answer(answered).await
    }

    async fn submit(&self, ask: Ask) -> oneshot::Receiver<Result<Answer, Trouble>> {
        self.gate
            .call(|state| {
                state.with_zookeeper(|zookeeper, around| zookeeper.submit(around, self.client, ask))
            })
            .await
    }

    async fn read(&self, ask: Ask) -> Result<Answer, TreeError> {
        self.ask(ask).await.map_err(|trouble| match trouble {
            Trouble::NotSent | Trouble::Lost => unreachable(),
            Trouble::Expired => TreeError::SessionExpired,
            Trouble::Closed => TreeError::Closed,
            Trouble::Refused(MultiError::Refused { why, .. } | MultiError::Tree(why)) => why,
        })
    }

    async fn write(&self, ask: Ask) -> Result<Answer, MultiError> {
        self.ask(ask).await.map_err(|trouble| match trouble {
            Trouble::NotSent => unreachable().into(),
            Trouble::Lost => TreeError::OutcomeUnknown.into(),
            Trouble::Expired => TreeError::SessionExpired.into(),
            Trouble::Closed => TreeError::Closed.into(),
            Trouble::Refused(error) => error,
        })
    }
}

fn unreachable() -> TreeError {
    TreeError::Unreachable { why: "no ZooKeeper server answers".to_owned() }
}

fn check_size(ops: &[Op]) -> Result<(), TreeError> {
    let size = ops.iter().map(Op::request_bytes).sum();
    let limit = MAX_REQUEST_BYTES;
    if size > limit { Err(TreeError::TooLarge { size, limit }) } else { Ok(()) }
}

/// What the real adapter finds before anything is sent.
fn check_ops(ops: &[Op]) -> Result<(), MultiError> {
    for (index, op) in ops.iter().enumerate() {
        let sequential = matches!(op, Op::Create { mode: CreateMode::EphemeralSequential, .. });
        let checked = match check_path(op.path()) {
            Ok(()) if sequential => Err(TreeError::BadPath { path: op.path().to_owned() }),
            checked => checked,
        };
        checked.map_err(|why| MultiError::Refused { index, why })?;
    }
    Ok(())
}

#[async_trait]
impl Tree for Connection {
    async fn get(&self, path: &str) -> Result<Option<Entry>, TreeError> {
        Ok(self.get_many(&[path.to_owned()]).await?.pop().flatten())
    }

    async fn get_many(&self, paths: &[String]) -> Result<Vec<Option<Entry>>, TreeError> {
        paths.iter().try_for_each(|path| check_path(path))?;
        match self.read(Ask::Get(paths.to_vec())).await? {
            Answer::Entries(entries) => Ok(entries),
            _ => unreachable!("a read of data is answered with data"),
        }
    }

    async fn children(&self, path: &str) -> Result<Option<Vec<String>>, TreeError> {
        Ok(self.children_many(&[path.to_owned()]).await?.pop().flatten())
    }

    async fn children_many(&self, paths: &[String]) -> Result<Vec<Option<Vec<String>>>, TreeError> {
        paths.iter().try_for_each(|path| check_path(path))?;
        match self.read(Ask::Children(paths.to_vec())).await? {
            Answer::Names(names) => Ok(names),
            _ => unreachable!("a read of children is answered with names"),
        }
    }

    async fn create(
        &self,
        path: &str,
        data: Bytes,
        mode: CreateMode,
    ) -> Result<(String, Stat), TreeError> {
        check_path(path)?;
        check_size(&[Op::Create { path: path.to_owned(), data: data.clone(), mode }])?;
        match self.write(Ask::Create(path.to_owned(), data, mode)).await {
            Ok(Answer::Created(path, stat)) => Ok((path, stat)),
            Ok(_) => unreachable!("a creation is answered with what was made"),
            Err(MultiError::Refused { why, .. } | MultiError::Tree(why)) => Err(why),
        }
    }

    async fn multi(&self, ops: Vec<Op>) -> Result<Vec<Done>, MultiError> {
        check_ops(&ops)?;
        check_size(&ops)?;
        if ops.is_empty() {
            return match *self.session.borrow() {
                SessionState::Closed => Err(TreeError::Closed.into()),
                _ => Ok(Vec::new()),
            };
        }
        match self.write(Ask::Multi(ops)).await? {
            Answer::Multi(done) => Ok(done),
            _ => unreachable!("a multi is answered with what was done"),
        }
    }

    async fn sync(&self) -> Result<(), TreeError> {
        self.read(Ask::Sync).await.map(drop)
    }

    async fn watch(&self, root: &str) -> Result<TreeWatch, TreeError> {
        check_path(root)?;
        let watch = self.gate.call(|state| state.zookeeper.watch_tree(self.client, root)).await;
        let watch = watch.ok_or(TreeError::Closed)?;
        // It stands once the servers have answered something that was sent after it.
        self.sync().await?;
        Ok(watch)
    }

    fn session(&self) -> watch::Receiver<SessionState> {
        let mut session = self.session.clone();
        session.mark_unchanged(); // what comes from now on is what the caller has not seen
        session
    }

    async fn close(&self) {
        let is_closed = matches!(*self.session.borrow(), SessionState::Closed);
        if is_closed {
            return;
        }
        let answered = self.submit(Ask::Close).await;
        tokio::select! {
            biased;
            _ = self.gate.answer(answered) => {}
            // Else the session ends by itself.
            () = self.gate.sleep(Duration::from_secs(2)) => {}
        }
        self.gate.call(|state| state.zookeeper.close_client(self.client)).await;
    }

    fn max_request_bytes(&self) -> usize {
        MAX_REQUEST_BYTES
    }
}

#[cfg(test)]
mod tests {
    //! The simulated ZooKeeper is a Tree.

    use std::sync::Arc;
    use std::time::Duration;

    use async_trait::async_trait;
    use bytes::Bytes;
    use pvc_contracts::tree::TreeFixture;
    use pvc_ports::{CreateMode, Op, SessionState, Tree, TreeEvent};

    use super::{Connection, Ensemble};
    use crate::cluster::{Cluster, Shape, host_name};
    use crate::host::Host;
    use crate::log::Log;
    use crate::process::Gate;
    use crate::state::{State, World};

    struct Simulated(World);

    impl Simulated {
        /// Three hosts on which nothing runs but ZooKeeper.
        fn servers() -> Simulated {
            let host = |index| Host::new(host_name(index), true, 1024, 0);
            let nature = Shape::plain(3, 0).nature;
            let world = World::new(nature, Log::new(false), (0..3).map(host).collect());
            world.with(|state| {
                for host in &mut *state.hosts {
                    (host.on, host.booted) = (true, true);
                }
                state.rearranged();
                state.with_zookeeper(Ensemble::watch_sessions);
            });
            Simulated(world)
        }

        /// Servers each of which is told late of what is written, some later than others.
        fn lagging() -> Simulated {
            let servers = Simulated::servers();
            servers.0.with(|state| {
                for (host, lag_ms) in [(0, (1, 40)), (1, (0, 10)), (2, (20, 90))] {
                    set_lag(state, host, lag_ms);
                }
            });
            servers
        }

        /// A client whose server is the one on `host`.
        async fn client_of(&self, host: usize) -> Connection {
            let pid = self.0.with(|state| {
                while state.processes.len() % 3 != host {
                    state.processes.start("nobody".to_owned(), Some(0));
                }
                state.processes.start("a client".to_owned(), Some(0))
            });
            let gate = Gate { world: self.0.clone(), pid };
            let connection = Connection::open(gate).await.expect("there is a quorum");
            let server = self.0.with(|state| state.zookeeper.clients[connection.client].server);
            assert_eq!(server, Some(host));
            connection
        }
    }

    fn set_lag(state: &mut State, host: usize, lag_ms: (u64, u64)) {
        state.with_zookeeper(|zookeeper, around| zookeeper.set_lag(around, host, lag_ms));
    }

    async fn data(tree: &Connection, path: &str) -> Option<Bytes> {
        tree.get(path).await.expect("it answers").map(|entry| entry.data)
    }

    async fn write(tree: &Connection, path: &str, text: &'static str) {
        tree.create(path, Bytes::from_static(text.as_bytes()), CreateMode::Persistent)
            .await
            .expect("it is new");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_lags_shows_what_was_until_it_is_told_or_asked_to_catch_up() {
        let servers = Simulated::servers();
        let (quick, late) = (servers.client_of(0).await, servers.client_of(1).await);
        let mut events = late.watch("/").await.expect("it watches");
        servers.0.with(|state| set_lag(state, 1, (3000, 3000)));
        write(&quick, "/a", "one").await;
        let written = servers.0.now();
        assert_eq!(data(&quick, "/a").await.as_deref(), Some(&b"one"[..]));
        assert_eq!(data(&late, "/a").await, None);
        assert!(events.try_recv().is_err(), "an event comes before what it is about");
        late.sync().await.expect("it answers");
        assert_eq!(data(&late, "/a").await.as_deref(), Some(&b"one"[..]));
        assert!(servers.0.now() - written >= Duration::from_millis(2900));
        assert_eq!(events.recv().await, Some(TreeEvent::Changed { path: "/a".to_owned() }));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_writes_by_a_server_that_lags_reads_it_afterwards_and_others_before() {
        let servers = Simulated::servers();
        servers.0.with(|state| set_lag(state, 1, (3000, 3000)));
        let (quick, late) = (servers.client_of(0).await, servers.client_of(1).await);
        let begun = servers.0.now();
        let (early, ()) = tokio::join!(
            async {
                while data(&quick, "/a").await.is_none() {}
                servers.0.now() - begun
            },
            write(&late, "/a", "one")
        );
        assert!(early < Duration::from_secs(1), "{early:?}");
        assert!(servers.0.now() - begun >= Duration::from_secs(3));
        assert_eq!(data(&late, "/a").await.as_deref(), Some(&b"one"[..]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_knows_less_than_the_client_has_seen_refuses_it() {
        let servers = Simulated::servers();
        let client = servers.client_of(0).await;
        servers.0.with(|state| set_lag(state, 1, (8000, 8000)));
        write(&client, "/a", "one").await;
        assert!(data(&client, "/a").await.is_some());
        servers.0.with(|state| {
            state.hosts[0].server_up = false;
            state.rearranged();
        });
        let mut session = client.session();
        session
            .wait_for(|state| *state == SessionState::Disconnected)
            .await
            .expect("the world goes on");
        session
            .wait_for(|state| matches!(state, SessionState::Connected { .. }))
            .await
            .expect("it goes on");
        let server = servers.0.with(|state| state.zookeeper.clients[client.client].server);
        assert_eq!(server, Some(2), "the one that does not lag");
        assert!(
            data(&client, "/a").await.is_some(),
            "nobody sees what was before what they have seen"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_too_far_behind_is_no_part_of_the_quorum_until_it_has_caught_up() {
        let servers = Simulated::servers();
        servers.0.with(|state| {
            state.hosts[2].server_up = false;
            set_lag(state, 1, (60_000, 60_000));
            state.rearranged();
            assert!(!state.zookeeper.has_quorum());
            set_lag(state, 1, (0, 0));
            state.rearranged();
            assert!(state.zookeeper.has_quorum());
        });
        let late = servers.client_of(1).await;
        write(&late, "/a", "one").await;
    }

    mod lagging {
        use super::Simulated;

        pvc_contracts::tree_contract!(Simulated::lagging());
    }

    #[async_trait]
    impl TreeFixture for Simulated {
        async fn connect(&self) -> Arc<dyn Tree> {
            let pid = self.0.with(|state| state.processes.start("a client".to_owned(), Some(0)));
            let gate = Gate { world: self.0.clone(), pid };
            Arc::new(Connection::open(gate).await.expect("there is a quorum"))
        }
    }

    pvc_contracts::tree_contract!(Simulated::servers());

    #[tokio::test(start_paused = true)]
    async fn who_touches_a_key_that_nobody_knows_is_found() {
        let cluster =
            Cluster::start(Shape::plain(1, 1), Log::new(false)).await.expect("all is well");
        let spoilt = cluster.world.with(|state| {
            state.with_zookeeper(Ensemble::add_unknown_keys);
            assert_eq!(state.zookeeper.spoilt_keys(), [""; 0]);
            let path = "/nodes/hv1/future".to_owned();
            let spoil = vec![Op::Set { path, data: Bytes::new(), version: None }];
            state.with_zookeeper(|zookeeper, around| zookeeper.write_from_outside(around, spoil));
            state.zookeeper.spoilt_keys()
        });
        assert_eq!(spoilt, ["/nodes/hv1/future"]);
    }
}
