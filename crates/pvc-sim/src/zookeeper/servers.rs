//! Servers that there are for each client: those that live, are heard, and keep up.

use std::time::Duration;

use pvc_embedded::state::{Change, TreeState};

use super::{Around, Ensemble, Follower};
use crate::host::{Host, Hosts};
use crate::process::Pid;
use crate::run::Run;

/// Time that a server may be behind until the others go on without it.
const SYNC_LIMIT: Duration = Duration::from_secs(10);

impl Ensemble {
    /// Has the server on `host` told of what is written so many milliseconds late from now on. One
    /// that is alone has nobody to be behind.
    pub fn set_lag(&mut self, around: &mut Around<'_>, host: usize, lag_ms: (u64, u64)) {
        if !around.hosts[host].is_coordinator || around.hosts.coordinators() < 2 {
            return;
        }
        let tree = &self.tree;
        let new = || Follower { tree: tree.clone(), lag_ms, announced: Duration::ZERO, copies: 0 };
        let follower = self.followers.entry(host).or_insert_with(new);
        if !keeps_up(follower.lag_ms) && keeps_up(lag_ms) {
            // The others went on without it: it begins with all that they have.
            follower.tree = self.tree.clone();
            follower.copies += 1;
            follower.announced = around.run.now;
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

    /// Time that the client's server may be behind.
    pub fn lag_of(&self, client: usize) -> Duration {
        let follower = self.clients[client].server.and_then(|server| self.followers.get(&server));
        follower.map_or(Duration::ZERO, |follower| Duration::from_millis(follower.lag_ms.1))
    }

    /// Time at which the server on `host` is told of what is written now; `None` if it is at once.
    pub(super) fn when_announced(&mut self, run: &mut Run, host: usize) -> Option<Duration> {
        let (least, most) = self.followers.get(&host)?.lag_ms;
        let late = if most == 0 { Duration::ZERO } else { run.chance.millis(least, most) };
        let now = run.now;
        let follower = self.followers.get_mut(&host).expect("it was there a moment ago");
        follower.announced = follower.announced.max(now + late);
        Some(follower.announced)
    }

    /// The server on `host` is told of a change.
    pub(super) fn follow(
        &mut self,
        around: &mut Around<'_>,
        host: usize,
        copies: u64,
        change: Change,
    ) {
        let Some(follower) = self.followers.get_mut(&host) else { return };
        if follower.copies != copies {
            return;
        }
        let events = follower.tree.publish(change);
        self.announce_changes(around, events, |server| server == Some(host));
    }

    /// The tree as the client is shown it.
    pub(super) fn tree_of(&self, client: usize) -> &TreeState {
        self.clients[client].server.map_or(&self.tree, |server| self.tree_at(server))
    }

    pub(super) fn tree_at(&self, server: usize) -> &TreeState {
        self.followers.get(&server).map_or(&self.tree, |follower| &follower.tree)
    }

    pub(super) fn server_is_connected(&self, hosts: &Hosts, host: usize) -> bool {
        lives(&hosts[host]) && hosts[host].cables.cluster && self.keeps_up(host)
    }

    pub(super) fn counts_quorum(&self, hosts: &Hosts) -> bool {
        let servers = hosts.coordinators();
        let connected =
            (0..hosts.len()).filter(|host| self.server_is_connected(hosts, *host)).count();
        // A cluster of one server needs no cable.
        if servers == 1 {
            return hosts.iter().any(lives);
        }
        connected > servers / 2
    }

    /// Whether packets of the process reach the server on `server`, and that one is part of the
    /// quorum.
    pub(super) fn reaches_server(&self, around: &Around<'_>, pid: Pid, server: usize) -> bool {
        let hosts = around.hosts;
        let Some(host) = around.processes[pid].host else { return true };
        let from = &hosts[host];
        let wired = host == server || (from.cables.cluster && hosts[server].cables.cluster);
        let serves = self.server_is_connected(hosts, server)
            || (lives(&hosts[server]) && hosts.coordinators() == 1);
        from.on && !from.frozen && wired && serves && self.has_quorum
    }

    /// Reviews the servers. To be called whenever hosts, cables, servers or processes changed.
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
                held.forget(); // whoever leads next has not agreed on it
            }
            if quorum {
                // A new leader gives every session its whole timeout.
                let now = around.run.now;
                self.sessions.values_mut().for_each(|last_contact| *last_contact = now);
            }
        }
        for client in 0..self.clients.len() {
            self.review_client(around, client);
        }
    }
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
