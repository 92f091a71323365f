//! Servers that take no writes.

use super::{Around, Arrived, Ask, Ensemble};

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
    pub(super) fn waits(&self, around: &Around<'_>, arrived: &Arrived) -> bool {
        let Some(held) = &self.held else { return false };
        let changes = !matches!(arrived.ask, Ask::Get(_) | Ask::Children(_));
        let of_same = |other: &Arrived| {
            (other.client, other.connection) == (arrived.client, arrived.connection)
        };
        !self.is_onlooker(around.processes, arrived.client) && (changes || held.iter().any(of_same))
    }

    pub(super) fn hold(&mut self, around: &mut Around<'_>, arrived: Arrived) {
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
}
