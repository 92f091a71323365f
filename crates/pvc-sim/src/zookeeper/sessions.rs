//! Sessions end when the servers have not heard of them for long.

use std::time::Duration;

use pvc_embedded::state::Work;

use super::{Around, Ensemble, SESSION_TIMEOUT};

/// Time between two looks of the servers for sessions that have fallen silent.
const TICK: Duration = Duration::from_secs(1);

impl Ensemble {
    pub(super) fn end_session(&mut self, around: &mut Around<'_>, session: i64) {
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
                if let Some(last_contact) = self.sessions.get_mut(&session) {
                    *last_contact = now;
                }
            }
        }
        if self.held.is_some() {
            return; // the end of a session is a change, too
        }
        let silent = |last_contact: &Duration| now.saturating_sub(*last_contact) > SESSION_TIMEOUT;
        let over: Vec<i64> = self
            .sessions
            .iter()
            .filter(|(_, last_contact)| silent(last_contact))
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
}
