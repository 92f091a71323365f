//! Messages to the clients: answers, and events of what they watch.

use std::sync::Arc;
use std::time::Duration;

use pvc_ports::{TreeEvent, TreeWatch, is_at_or_below};
use tokio::sync::mpsc;

use super::{Around, CallError, Ensemble, Watched, Word};

impl Ensemble {
    /// Tells of changes to the clients of some servers.
    pub(super) fn announce_changes(
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

    pub(super) fn tell(&mut self, around: &mut Around<'_>, client: usize, word: Word) {
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
            self.receive(around, client, connection, word);
        } else {
            around.at(arrives, move |zookeeper, around| {
                zookeeper.receive(around, client, connection, word)
            });
        }
    }

    fn receive(&mut self, around: &mut Around<'_>, client: usize, connection: u64, word: Word) {
        let known = &mut self.clients[client];
        if known.connection != connection {
            return;
        }
        if !known.is_good {
            known.stalled.push(Box::new(move |zookeeper, around| {
                zookeeper.receive(around, client, connection, word)
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
                let expired = matches!(answer, Err(CallError::Expired));
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
                            is_at_or_below(path, &watched.root)
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

    pub(super) fn watch_tree(&mut self, client: usize, root: &str) -> Option<TreeWatch> {
        let known = &mut self.clients[client];
        if known.is_closed {
            return None;
        }
        let (events, watch) = mpsc::unbounded_channel();
        known.watches.push(Watched { root: root.to_owned(), events });
        Some(watch)
    }
}
