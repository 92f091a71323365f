//! ZooKeeper, simulated: servers on the coordinators, sessions, and connections that take time and break.
//!
//! ```text
//!  process ── Connection ──(up, takes a while)──▶ the tree, one for all servers
//!                 ▲                                  │ answers and events, in order
//!                 └───────────(down, takes a while)──┘
//! ```
//!
//! What is sent while the way is interrupted stands still, as TCP has it, and goes on when the way is mended in
//! time. Otherwise the client notices after up to two thirds of the session's timeout: what it had sent is
//! lost (a write may have been carried out or not), what it had not is sent on the next connection. The
//! servers keep its session until they have not heard of it for the timeout, which stands still while
//! there is no quorum.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use pvc_embedded::state::{Outcome, TreeState, Work};
use pvc_ports::{
    CreateMode, Done, Entry, MultiError, Op, SessionState, Stat, Tree, TreeError, TreeEvent, TreeWatch,
    check_path,
};
use tokio::sync::{mpsc, oneshot, watch};

use crate::process::{Gate, Pid};
use crate::state::{Deed, Mutation, State};

pub(crate) const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a call may wait for a connection.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(15);

/// How often the servers look for sessions that have fallen silent.
const TICK: Duration = Duration::from_secs(1);

const MAX_REQUEST_BYTES: usize = 63 << 20;

pub(crate) struct Ensemble {
    tree: TreeState,
    /// The open sessions, and when the servers last heard of each.
    sessions: BTreeMap<i64, Duration>,
    clients: Vec<Client>,
    has_quorum: bool,
    pub lost_quorum_at: Option<Duration>,
    pub expiries: u64,
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
    stalled: Vec<Deed>,
    /// No packet overtakes another one.
    last_up: Duration,
    last_down: Duration,
    watches: Vec<Watched>,
    breaks_after_write: bool,
    next_call: u64,
    /// With the deliberate flaw of comparing wall clocks: the last stamp of each node that was taken for a sign of life.
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
    Answer(u64, Result<Answer, Trouble>),
    Event(TreeEvent),
}

impl Ensemble {
    pub fn new() -> Self {
        Ensemble {
            tree: TreeState::new(1),
            sessions: BTreeMap::new(),
            clients: Vec::new(),
            has_quorum: true,
            lost_quorum_at: None,
            expiries: 0,
        }
    }
}

impl State {
    // --- Where there is a way ------------------------------------------------------------------

    fn server_lives(&self, host: usize) -> bool {
        let host = &self.hosts[host];
        host.is_coordinator && host.on && host.booted && !host.frozen && host.server_up
    }

    fn server_is_heard(&self, host: usize) -> bool {
        self.server_lives(host) && self.hosts[host].cables.cluster
    }

    pub fn has_quorum(&self) -> bool {
        self.zookeeper.has_quorum
    }

    /// Since when nothing has been in the way between the process and a server of the quorum; `None` if something is.
    pub fn heard_since(&self, pid: Pid) -> Option<Duration> {
        let known = &self.zookeeper.clients[self.processes[pid].client?];
        let is_heard = known.is_connected
            && known.is_good
            && self.zookeeper.has_quorum
            && self.zookeeper.sessions.contains_key(&known.session);
        is_heard.then_some(known.good_since)
    }

    fn counts_quorum(&self) -> bool {
        let servers = self.hosts.iter().filter(|host| host.is_coordinator).count();
        let heard = (0..self.hosts.len()).filter(|host| self.server_is_heard(*host)).count();
        // A cluster of one server needs no cable.
        if servers == 1 {
            return (0..self.hosts.len()).any(|host| self.server_lives(host));
        }
        heard > servers / 2
    }

    /// Whether packets of the process reach the server on `server`, and that one is part of the quorum.
    fn reaches_server(&self, pid: Pid, server: usize) -> bool {
        let Some(host) = self.processes[pid].host else { return true };
        let from = &self.hosts[host];
        let wired = host == server || (from.cables.cluster && self.hosts[server].cables.cluster);
        let serves = self.server_is_heard(server) || (self.server_lives(server) && self.coordinators() == 1);
        from.on && !from.frozen && wired && serves && self.zookeeper.has_quorum
    }

    fn coordinators(&self) -> usize {
        self.hosts.iter().filter(|host| host.is_coordinator).count()
    }

    fn host_of(&self, client: usize) -> Option<usize> {
        self.processes[self.zookeeper.clients[client].pid].host
    }

    fn is_onlooker(&self, client: usize) -> bool {
        self.host_of(client).is_none()
    }

    /// To be called whenever hosts, cables, servers or processes changed.
    pub fn review_zookeeper(&mut self) {
        let quorum = self.counts_quorum();
        if quorum != self.zookeeper.has_quorum {
            self.zookeeper.has_quorum = quorum;
            self.note(if quorum { "zookeeper: there is a quorum" } else { "zookeeper: the quorum is lost" });
            self.zookeeper.lost_quorum_at = (!quorum).then_some(self.now);
            if quorum {
                // A new leader gives every session its whole timeout.
                let now = self.now;
                self.zookeeper.sessions.values_mut().for_each(|heard| *heard = now);
            }
        }
        for client in 0..self.zookeeper.clients.len() {
            self.review_client(client);
        }
    }

    fn review_client(&mut self, client: usize) {
        let known = &self.zookeeper.clients[client];
        if known.is_closed || !known.is_connected || self.is_onlooker(client) {
            return;
        }
        let pid = known.pid;
        let is_good = known.server.is_some_and(|server| self.reaches_server(pid, server));
        let was_good = known.is_good;
        let now = self.now;
        if is_good && !was_good {
            let known = &mut self.zookeeper.clients[client];
            known.is_good = true;
            known.good_since = now;
            known.interruption += 1;
            for deed in std::mem::take(&mut known.stalled) {
                deed(self);
            }
        }
        if was_good && !is_good {
            let known = &mut self.zookeeper.clients[client];
            known.is_good = false;
            known.interruption += 1;
            let interruption = known.interruption;
            // A server that ended, or a live one that lost the quorum, hangs up; silence takes longer to notice.
            let server = known.server;
            let hangs_up = server.is_some_and(|server| {
                self.hosts[server].on && !self.hosts[server].frozen && self.hosts[server].cables.cluster
            });
            let notices = match hangs_up && self.hosts.iter().any(|host| host.on) {
                true => self.chance.millis(0, 1000),
                false => self.chance.millis(3400, 6700),
            };
            self.later(notices, move |state| state.notice(client, interruption));
        }
    }

    fn notice(&mut self, client: usize, interruption: u64) {
        let known = &self.zookeeper.clients[client];
        if known.interruption != interruption || !known.is_connected || known.is_closed {
            return;
        }
        self.in_process(known.pid, move |state| {
            if state.zookeeper.clients[client].interruption == interruption {
                state.disconnect(client);
            }
        });
    }

    // --- The client's side ---------------------------------------------------------------------

    fn new_client(&mut self, pid: Pid) -> usize {
        let (state, _) = watch::channel(SessionState::Disconnected);
        let is_onlooker = self.processes[pid].host.is_none();
        self.zookeeper.clients.push(Client {
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
            watches: Vec::new(),
            breaks_after_write: false,
            next_call: 0,
            believed: BTreeMap::new(),
        });
        let client = self.zookeeper.clients.len() - 1;
        self.processes[pid].client = Some(client);
        if is_onlooker {
            self.connected(client, None);
        } else {
            self.try_to_connect(client, 0);
        }
        client
    }

    /// The next connection of the process breaks right after a write was carried out.
    pub fn break_after_next_write(&mut self, pid: Pid) {
        if let Some(client) = self.processes[pid].client {
            self.zookeeper.clients[client].breaks_after_write = true;
        }
    }

    fn try_to_connect(&mut self, client: usize, attempt: usize) {
        let known = &self.zookeeper.clients[client];
        let pid = known.pid;
        if known.is_closed || known.is_connected || self.processes[pid].ended {
            return;
        }
        if !self.runs(pid) {
            return self.in_process(pid, move |state| state.try_to_connect(client, attempt));
        }
        let servers: Vec<usize> =
            (0..self.hosts.len()).filter(|host| self.hosts[*host].is_coordinator).collect();
        // Each client begins at its own place of the list.
        let server = servers[(pid + attempt) % servers.len()];
        let pause = self.chance.millis(20, 400 + 200 * attempt.min(4) as u64);
        if !self.reaches_server(pid, server) {
            return self.later(pause, move |state| state.try_to_connect(client, attempt + 1));
        }
        let session = self.zookeeper.clients[client].session;
        if session != 0 && !self.zookeeper.sessions.contains_key(&session) {
            let known = &mut self.zookeeper.clients[client];
            known.session = 0;
            known.state.send_replace(SessionState::Expired);
            return self.later(pause, move |state| state.try_to_connect(client, attempt));
        }
        self.connected(client, Some(server));
    }

    fn connected(&mut self, client: usize, server: Option<usize>) {
        let now = self.now;
        if self.zookeeper.clients[client].session == 0 {
            let session = self.zookeeper.tree.open_session();
            self.zookeeper.clients[client].session = session;
        }
        let session = self.zookeeper.clients[client].session;
        self.zookeeper.sessions.insert(session, now);
        let breaks = self.nature.broken_writes;
        let breaks = server.is_some() && self.chance.happens(breaks);
        let known = &mut self.zookeeper.clients[client];
        known.connection += 1;
        (known.is_connected, known.is_good, known.server) = (true, true, server);
        known.good_since = now;
        known.breaks_after_write |= breaks;
        known.stalled.clear();
        (known.last_up, known.last_down) = (now, now);
        known.state.send_replace(SessionState::Connected { id: session });
        let again = !known.watches.is_empty();
        let waiting = std::mem::take(&mut known.waiting);
        if again {
            self.tell(client, Word::Event(TreeEvent::Resync));
        }
        for call in waiting {
            self.send(client, call);
        }
    }

    fn disconnect(&mut self, client: usize) {
        let known = &mut self.zookeeper.clients[client];
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
            self.limit_wait(client, call.id);
            self.zookeeper.clients[client].waiting.push_front(call);
        }
        self.later(Duration::from_millis(20), move |state| state.try_to_connect(client, 0));
    }

    fn limit_wait(&mut self, client: usize, id: u64) {
        self.later(OPERATION_TIMEOUT, move |state| {
            let waiting = &mut state.zookeeper.clients[client].waiting;
            if let Some(place) = waiting.iter().position(|call| call.id == id)
                && let Some(call) = waiting.remove(place)
            {
                let _ = call.answer.send(Err(Trouble::NotSent)); // whoever asked may have gone
            }
        });
    }

    fn submit(&mut self, client: usize, ask: Ask) -> oneshot::Receiver<Result<Answer, Trouble>> {
        let (answer, answered) = oneshot::channel();
        let known = &mut self.zookeeper.clients[client];
        known.next_call += 1;
        let call = Call { id: known.next_call, ask, answer };
        if known.is_closed {
            let _ = call.answer.send(Err(Trouble::Closed)); // its receiver is in our hands
        } else if known.is_connected {
            self.send(client, call);
        } else {
            self.limit_wait(client, call.id);
            self.zookeeper.clients[client].waiting.push_back(call);
        }
        answered
    }

    fn send(&mut self, client: usize, call: Call) {
        let id = call.id;
        let takes = if self.is_onlooker(client) { Duration::ZERO } else { self.latency() };
        let known = &mut self.zookeeper.clients[client];
        let arrives = known.last_up.max(self.now + takes);
        known.last_up = arrives;
        known.sent.insert(id, call);
        let connection = known.connection;
        if takes.is_zero() {
            self.arrive(client, connection, id);
        } else {
            self.at(arrives, move |state| state.arrive(client, connection, id));
        }
    }

    // --- The servers' side ---------------------------------------------------------------------

    fn arrive(&mut self, client: usize, connection: u64, id: u64) {
        let known = &mut self.zookeeper.clients[client];
        if known.connection != connection {
            return;
        }
        if !known.is_good {
            known.stalled.push(Box::new(move |state| state.arrive(client, connection, id)));
            return;
        }
        let Some(call) = known.sent.get(&id) else { return };
        let (ask, session) = (call.ask.clone(), known.session);
        let flawed = self.nature.mutation == Some(Mutation::WallClock);
        let paths = match &ask {
            Ask::Get(paths) if flawed => paths.clone(),
            _ => Vec::new(),
        };
        if !self.zookeeper.sessions.contains_key(&session) {
            return self.tell(client, Word::Answer(id, Err(Trouble::Expired)));
        }
        let is_write = !ask.is_read();
        let judged = judged(&ask);
        let ask = self.mutated(client, ask);
        let answer = self.carry_out(session, ask).map(|answer| self.disbelieved(client, paths, answer));
        if let (Ok(_), Some(by)) = (&answer, self.host_of(client)) {
            judged.iter().for_each(|node| self.truth_of_verdict(by, node));
        }
        let known = &mut self.zookeeper.clients[client];
        if is_write && std::mem::take(&mut known.breaks_after_write) {
            known.interruption += 1;
            let pid = known.pid;
            self.note(format!("zookeeper: {} loses its connection after a write", self.processes[pid].name));
            return self.in_process(pid, move |state| {
                if state.zookeeper.clients[client].connection == connection {
                    state.disconnect(client);
                }
            });
        }
        self.tell(client, Word::Answer(id, answer));
    }

    fn carry_out(&mut self, session: i64, ask: Ask) -> Result<Answer, Trouble> {
        let tree = &self.zookeeper.tree;
        match ask {
            Ask::Get(paths) => Ok(Answer::Entries(paths.iter().map(|path| tree.entry(path)).collect())),
            Ask::Children(paths) => Ok(Answer::Names(paths.iter().map(|path| tree.children(path)).collect())),
            Ask::Sync => Ok(Answer::Nothing),
            Ask::Close => {
                self.end_session(session);
                Ok(Answer::Nothing)
            }
            Ask::Create(path, data, mode) => {
                match self.change_tree(&Work::Create { session, path, data, mode }) {
                    Ok(Outcome::Created(path, stat)) => Ok(Answer::Created(path, stat)),
                    Ok(other) => unreachable!("a creation was answered with {other:?}"),
                    Err(error) => Err(Trouble::Refused(error)),
                }
            }
            Ask::Multi(ops) => match self.change_tree(&Work::Multi { session, ops }) {
                Ok(Outcome::Multi(done)) => Ok(Answer::Multi(done)),
                Ok(other) => unreachable!("a multi was answered with {other:?}"),
                Err(error) => Err(Trouble::Refused(error)),
            },
        }
    }

    /// What arrives of a change, with one of the deliberate flaws.
    fn mutated(&self, client: usize, ask: Ask) -> Ask {
        let Ask::Multi(ops) = ask else { return ask };
        let current = |path: &str| self.zookeeper.tree.node(path).map_or(0, |node| node.version);
        let believed = &self.zookeeper.clients[client].believed;
        let flawed = |op| match (self.nature.mutation, op) {
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

    /// With the deliberate flaw of comparing wall clocks: a stamp that is old by the reader's clock is no sign of life,
    /// as if it had not been written.
    fn disbelieved(&mut self, client: usize, paths: Vec<String>, answer: Answer) -> Answer {
        let host = self.host_of(client);
        let mut entries = match (host, answer) {
            (Some(_), Answer::Entries(entries)) if !paths.is_empty() => entries,
            (_, answer) => return answer,
        };
        let now = self.wall(host);
        let believed = &mut self.zookeeper.clients[client].believed;
        for (path, entry) in paths.into_iter().zip(&mut entries) {
            let Some(known) = entry.as_mut().filter(|_| path.ends_with("/keepalive")) else { continue };
            let stamp = std::str::from_utf8(&known.data).ok().and_then(|text| text.parse().ok());
            let is_old = stamp.is_some_and(|stamp| now > Duration::from_secs(stamp) + BELIEVED);
            match believed.get(&path).filter(|_| is_old) {
                Some(before) => known.clone_from(before),
                None => drop(believed.insert(path, known.clone())),
            }
        }
        Answer::Entries(entries)
    }

    fn change_tree(&mut self, work: &Work) -> Result<Outcome, MultiError> {
        let mut draft = self.zookeeper.tree.draft();
        let outcome = draft.apply(work)?;
        let change = draft.finish();
        for event in self.zookeeper.tree.publish(change) {
            for client in 0..self.zookeeper.clients.len() {
                let known = &self.zookeeper.clients[client];
                if known.is_connected && !known.watches.is_empty() {
                    self.tell(client, Word::Event(event.clone()));
                }
            }
        }
        Ok(outcome)
    }

    fn end_session(&mut self, session: i64) {
        self.zookeeper.sessions.remove(&session);
        self.change_tree(&Work::End { session }).expect("the end of a session is never refused");
    }

    /// Begins to look for sessions that fell silent, for ever.
    pub fn watch_sessions(&mut self) {
        self.expire_silent();
        self.later(TICK, State::watch_sessions);
    }

    fn expire_silent(&mut self) {
        if !self.zookeeper.has_quorum {
            return;
        }
        let now = self.now;
        for client in 0..self.zookeeper.clients.len() {
            let known = &self.zookeeper.clients[client];
            if known.is_connected && known.is_good && !known.is_closed && self.runs(known.pid) {
                let session = known.session;
                if let Some(heard) = self.zookeeper.sessions.get_mut(&session) {
                    *heard = now;
                }
            }
        }
        let silent = |heard: &Duration| now.saturating_sub(*heard) > SESSION_TIMEOUT;
        let over: Vec<i64> = self
            .zookeeper
            .sessions
            .iter()
            .filter(|(_, heard)| silent(heard))
            .map(|(session, _)| *session)
            .collect();
        for session in over {
            let known = self.zookeeper.clients.iter().position(|client| client.session == session);
            if let Some(client) = known {
                let pid = self.zookeeper.clients[client].pid;
                self.note(format!("zookeeper: the session of {} has expired", self.processes[pid].name));
            }
            self.zookeeper.expiries += 1;
            self.end_session(session);
            // The server hangs up on a client that is there after all.
            let hears = |client: &usize| {
                let known = &self.zookeeper.clients[*client];
                known.is_connected && known.is_good
            };
            if let Some(client) = known.filter(hears) {
                let known = &mut self.zookeeper.clients[client];
                known.is_good = false;
                known.interruption += 1;
                let interruption = known.interruption;
                self.notice(client, interruption);
            }
        }
    }

    // --- Down to the client --------------------------------------------------------------------

    fn tell(&mut self, client: usize, word: Word) {
        let takes = if self.is_onlooker(client) { Duration::ZERO } else { self.latency() };
        let known = &mut self.zookeeper.clients[client];
        let arrives = known.last_down.max(self.now + takes);
        known.last_down = arrives;
        let connection = known.connection;
        if takes.is_zero() {
            self.hear(client, connection, word);
        } else {
            self.at(arrives, move |state| state.hear(client, connection, word));
        }
    }

    fn hear(&mut self, client: usize, connection: u64, word: Word) {
        let known = &mut self.zookeeper.clients[client];
        if known.connection != connection {
            return;
        }
        if !known.is_good {
            known.stalled.push(Box::new(move |state| state.hear(client, connection, word)));
            return;
        }
        let pid = known.pid;
        self.in_process(pid, move |state| state.take_in(client, connection, word));
    }

    fn take_in(&mut self, client: usize, connection: u64, word: Word) {
        let known = &mut self.zookeeper.clients[client];
        if known.connection != connection {
            return;
        }
        match word {
            Word::Answer(id, answer) => {
                let expired = matches!(answer, Err(Trouble::Expired));
                if let Some(call) = known.sent.remove(&id) {
                    let _ = call.answer.send(answer); // whoever asked may have gone
                }
                if expired {
                    self.disconnect(client);
                }
            }
            Word::Event(event) => {
                known.watches.retain(|watched| !watched.events.is_closed());
                for watched in &known.watches {
                    let wanted = match &event {
                        TreeEvent::Changed { path } | TreeEvent::Deleted { path } => {
                            covers(&watched.root, path)
                        }
                        TreeEvent::Resync => true,
                    };
                    if wanted {
                        let _ = watched.events.send(event.clone()); // it was open a moment ago
                    }
                }
            }
        }
    }

    fn watch_tree(&mut self, client: usize, root: &str) -> Option<TreeWatch> {
        let known = &mut self.zookeeper.clients[client];
        if known.is_closed {
            return None;
        }
        let (events, watch) = mpsc::unbounded_channel();
        known.watches.push(Watched { root: root.to_owned(), events });
        Some(watch)
    }

    fn close_client(&mut self, client: usize) {
        let known = &mut self.zookeeper.clients[client];
        known.is_closed = true;
        known.is_connected = false;
        known.watches.clear();
        known.stalled.clear();
        known.state.send_replace(SessionState::Closed);
        let calls = std::mem::take(&mut known.sent).into_values().chain(std::mem::take(&mut known.waiting));
        for call in calls.collect::<Vec<_>>() {
            let _ = call.answer.send(Err(Trouble::Closed)); // whoever asked may have gone
        }
    }

    /// The process has ended: nobody listens any more, and the servers hear no more of it.
    pub fn client_of_ended(&mut self, pid: Pid) {
        if let Some(client) = self.processes[pid].client {
            let known = &mut self.zookeeper.clients[client];
            known.is_closed = true;
            known.is_connected = false;
            known.watches.clear();
            known.sent.clear();
            known.waiting.clear();
            known.stalled.clear();
        }
    }
}

/// The nodes of which it is said what state their daemons are in.
fn judged(ask: &Ask) -> Vec<String> {
    let Ask::Multi(ops) = ask else { return Vec::new() };
    let node = |op: &Op| match op {
        Op::Set { path, .. } => path.strip_prefix("/nodes/")?.strip_suffix("/daemonstate").map(str::to_owned),
        _ => None,
    };
    ops.iter().filter_map(node).collect()
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
                let client = state.new_client(pid);
                (client, state.zookeeper.clients[client].state.subscribe())
            })
            .await;
        let connection = Connection { gate: gate.clone(), client, session: session.clone() };
        let connected =
            async { session.wait_for(|state| matches!(state, SessionState::Connected { .. })).await.is_ok() };
        let is_connected = tokio::select! {
            biased;
            connected = connected => connected,
            () = gate.sleep(OPERATION_TIMEOUT) => false,
        };
        gate.pass().await;
        if is_connected {
            return Ok(connection);
        }
        gate.call(|state| state.close_client(client)).await;
        Err(unreachable())
    }

    async fn ask(&self, ask: Ask) -> Result<Answer, Trouble> {
        let answered = self.gate.call(|state| state.submit(self.client, ask)).await;
        self.gate.answer(answered).await
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

    async fn create(&self, path: &str, data: Bytes, mode: CreateMode) -> Result<(String, Stat), TreeError> {
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
        let watch = self.gate.call(|state| state.watch_tree(self.client, root)).await;
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
        let answered = self.gate.call(|state| state.submit(self.client, Ask::Close)).await;
        tokio::select! {
            biased;
            _ = self.gate.answer(answered) => {}
            // Else the session ends by itself.
            () = self.gate.sleep(Duration::from_secs(2)) => {}
        }
        self.gate.call(|state| state.close_client(self.client)).await;
    }

    fn max_request_bytes(&self) -> usize {
        MAX_REQUEST_BYTES
    }
}

#[cfg(test)]
mod tests {
    //! The simulated ZooKeeper is a Tree.

    use std::sync::Arc;

    use async_trait::async_trait;
    use pvc_contracts::tree::TreeFixture;
    use pvc_ports::Tree;

    use super::Connection;
    use crate::cluster::{Shape, host_name};
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
                for host in &mut state.hosts {
                    (host.on, host.booted) = (true, true);
                }
                state.rearranged();
                State::watch_sessions(state);
            });
            Simulated(world)
        }
    }

    #[async_trait]
    impl TreeFixture for Simulated {
        async fn connect(&self) -> Arc<dyn Tree> {
            let pid = self.0.with(|state| state.new_process("a client".to_owned(), Some(0)));
            let gate = Gate { world: self.0.clone(), pid };
            Arc::new(Connection::open(gate).await.expect("there is a quorum"))
        }
    }

    pvc_contracts::tree_contract!(Simulated::servers());
}
