//! Elections: a majority of the servers agrees on one that leads.

use super::{Around, Ensemble};

/// Time for which servers wait for a leader that has fallen silent, in milliseconds: between half
/// of `syncLimit` and all of it.
const LEADER_SILENT_MS: (u64, u64) = (5_000, 10_000);

impl Ensemble {
    /// Whether the servers, of which there is a majority or not, have a leader if they need one. A
    /// majority without one begins to elect.
    pub(super) fn is_led(&mut self, around: &mut Around<'_>, majority: bool) -> bool {
        let Some(elections) = around.run.nature.elections else { return true };
        if !self.was_led {
            if !self.server_is_connected(around.hosts, elections.first) {
                return true; // it begins once the first one leads
            }
            self.was_led = true;
            self.leader = Some(elections.first);
        }
        let leader = self.leader;
        if majority && leader.is_some_and(|leader| self.server_is_connected(around.hosts, leader)) {
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
        let connected: Vec<usize> = (0..around.hosts.len())
            .filter(|host| {
                around.hosts[*host].is_coordinator && self.server_is_connected(around.hosts, *host)
            })
            .collect();
        if self.counts_quorum(around.hosts) {
            self.leader = around.run.chance.pick(&connected).copied();
        }
        if let Some(leader) = self.leader {
            around
                .run
                .note(format!("zookeeper: the server on {} leads", around.hosts[leader].name));
        }
        self.review(around);
    }
}
