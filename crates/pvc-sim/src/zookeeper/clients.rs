//! Clients: their connections, and what they wait for.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use pvc_ports::{SessionState, TreeEvent};
use tokio::sync::{oneshot, watch};

use super::{Answer, Around, Ask, Call, CallError, Client, Ensemble, OPERATION_TIMEOUT, Word};
use crate::process::Pid;

impl Ensemble {
    pub(super) fn review_client(&mut self, around: &mut Around<'_>, client: usize) {
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

    pub(super) fn notice(&mut self, around: &mut Around<'_>, client: usize, interruption: u64) {
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

    pub(super) fn new_client(&mut self, around: &mut Around<'_>, pid: Pid) -> usize {
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
                self.when_announced(around.run, server).filter(|when| *when > around.run.now)
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

    pub(super) fn disconnect(&mut self, around: &mut Around<'_>, client: usize) {
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
                false => drop(call.answer.send(Err(CallError::Lost))),
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
                let _ = call.answer.send(Err(CallError::NotSent)); // whoever asked may have gone
            }
        });
    }

    pub(super) fn submit(
        &mut self,
        around: &mut Around<'_>,
        client: usize,
        ask: Ask,
    ) -> oneshot::Receiver<Result<Answer, CallError>> {
        let (answer, answered) = oneshot::channel();
        let known = &mut self.clients[client];
        known.next_call += 1;
        let call = Call { id: known.next_call, ask, answer };
        if known.is_closed {
            let _ = call.answer.send(Err(CallError::Closed)); // its receiver is in our hands
        } else if known.is_connected {
            self.send(around, client, call);
        } else {
            self.limit_wait(around, client, call.id);
            self.clients[client].waiting.push_back(call);
        }
        answered
    }

    pub(super) fn send(&mut self, around: &mut Around<'_>, client: usize, call: Call) {
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

    pub(super) fn close_client(&mut self, client: usize) {
        let known = &mut self.clients[client];
        known.is_closed = true;
        known.is_connected = false;
        known.watches.clear();
        known.stalled.clear();
        known.state.send_replace(SessionState::Closed);
        let calls =
            std::mem::take(&mut known.sent).into_values().chain(std::mem::take(&mut known.waiting));
        for call in calls.collect::<Vec<_>>() {
            let _ = call.answer.send(Err(CallError::Closed)); // whoever asked may have gone
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
