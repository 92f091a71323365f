//! Requests, as a server carries them out.

use pvc_embedded::state::{Outcome, Work};
use pvc_ports::{MultiError, Op};

use super::{Answer, Around, Arrived, Ask, CallError, Ensemble, Word};
use crate::guest_networks::Recorded;
use crate::nature::Mutation;

impl Ensemble {
    pub(super) fn arrive(
        &mut self,
        around: &mut Around<'_>,
        client: usize,
        connection: u64,
        id: u64,
    ) {
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
            return self.answer(around, client, id, Err(CallError::Expired));
        }
        let arrived = Arrived { client, connection, id, session, ask };
        if self.waits(around, &arrived) {
            return self.hold(around, arrived);
        }
        // Whoever asks is heard, also between two pings.
        self.sessions.insert(session, around.run.now);
        self.serve(around, arrived);
    }

    pub(super) fn serve(
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
        self.answer_when_announced(around, client, connection, id, answer);
    }

    /// Answers when the client's server knows what the answer is about.
    fn answer_when_announced(
        &mut self,
        around: &mut Around<'_>,
        client: usize,
        connection: u64,
        id: u64,
        answer: Result<Answer, CallError>,
    ) {
        let server = self.clients[client].server;
        let Some(when) = server.and_then(|server| self.when_announced(around.run, server)) else {
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

    pub(super) fn answer(
        &mut self,
        around: &mut Around<'_>,
        client: usize,
        id: u64,
        answer: Result<Answer, CallError>,
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
    ) -> Result<Answer, CallError> {
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
                    Err(error) => Err(CallError::Refused(error)),
                }
            }
            Ask::Multi(ops) => match self.change_tree(around, &Work::Multi { session, ops }) {
                Ok(Outcome::Multi(done)) => Ok(Answer::Multi(done)),
                Ok(other) => unreachable!("a multi was answered with {other:?}"),
                Err(error) => Err(CallError::Refused(error)),
            },
        }
    }

    pub(super) fn change_tree(
        &mut self,
        around: &mut Around<'_>,
        work: &Work,
    ) -> Result<Outcome, MultiError> {
        let mut draft = self.tree.draft();
        let outcome = draft.apply(work)?;
        let change = draft.finish();
        let followers: Vec<usize> = self.followers.keys().copied().collect();
        for host in &followers {
            let (host, copies) = (*host, self.followers[host].copies);
            if let Some(when) = self.when_announced(around.run, host) {
                let change = change.clone();
                around.at(when, move |zookeeper, around| {
                    zookeeper.follow(around, host, copies, change)
                });
            }
        }
        let events = self.tree.publish(change);
        if around.run.nature.networks > 0 && Recorded::is_changed_by(work) {
            self.networks.push(Recorded::of(&self.tree, around.run.now));
        }
        self.announce_changes(around, events, |server| {
            server.is_none_or(|server| !followers.contains(&server))
        });
        Ok(outcome)
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
