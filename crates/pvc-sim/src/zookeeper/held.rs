//! Servers that take no writes.

use std::collections::BTreeSet;

use super::{Around, Arrived, Ask, Ensemble};

/// Requests that wait until the servers take writes again.
#[derive(Default)]
pub(super) struct Held {
    arrived: Vec<Arrived>,
    /// Their clients, and which connection each was sent over: there are many requests, and each
    /// read has to know whether it comes behind one of them.
    connections: BTreeSet<(usize, u64)>,
}

impl Held {
    /// Nobody carries them out any more.
    pub fn forget(&mut self) {
        *self = Held::default();
    }
}

impl Ensemble {
    pub fn hold_writes(&mut self) {
        self.held.get_or_insert_default();
    }

    /// Carries out what was held, in its order.
    pub fn let_writes_go(&mut self, around: &mut Around<'_>) {
        let Some(held) = self.held.take() else { return };
        let now = around.run.now;
        for client in &mut self.clients {
            client.good_since = now;
        }
        for arrived in held.arrived {
            let is_open = self.sessions.contains_key(&arrived.session);
            let is_there = self.clients[arrived.client].connection == arrived.connection;
            if is_open && (is_there || !arrived.ask.is_read()) {
                self.serve(around, arrived);
            }
        }
    }

    /// Whether it has to wait until the servers take writes again: a change, or what its client
    /// asks for after one.
    pub(super) fn waits(&self, around: &Around<'_>, arrived: &Arrived) -> bool {
        let Some(held) = &self.held else { return false };
        let changes = !matches!(arrived.ask, Ask::Get(_) | Ask::Children(_));
        let is_behind = held.connections.contains(&(arrived.client, arrived.connection));
        !self.is_onlooker(around.processes, arrived.client) && (changes || is_behind)
    }

    pub(super) fn hold(&mut self, around: &mut Around<'_>, arrived: Arrived) {
        let (client, connection, id) = (arrived.client, arrived.connection, arrived.id);
        let held = self.held.get_or_insert_default();
        held.connections.insert((client, connection));
        held.arrived.push(arrived);
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
}
