//! The cluster's own database: away as a whole, and back.

use std::time::{Duration, Instant};

use pvc_standalone_tests::eventually;

use crate::{Lab, NODES};

const START: &str = "systemctl start patroni";

/// Undoes [`Lab::stop_database`] on a coordinator. A node daemon that is not ready yet does so by
/// itself, once there are addresses.
pub(crate) const ITS_DATABASE_RUNS: &str =
    "systemctl is-active --quiet pvcnoded && systemctl start patroni";

/// Exit code of `pg_isready` where nobody answers.
const NOBODY: i32 = 2;

/// Question to the Patroni of a node: its role, and the members that the database there streams to.
const STREAMS: &str = "curl -s 10.99.1.${HOSTNAME#pvchv}:8008/patroni | jq -r \
    '.role, ((.replication // [])[] | select(.state == \"streaming\") | .application_name)'";

/// Question to a node whether its copy leads: 200 is yes.
const LEADS: &str =
    "curl --silent --max-time 2 http://$(hostname):8008/leader -o /dev/null -w '%{http_code}'";

const REINIT: &str = "patronictl -c /etc/patroni/config.yml reinit pvc $HOSTNAME --force";

/// Time that a copy has to follow by itself: those of a new lab are made in one to two minutes.
const BY_ITSELF: Duration = Duration::from_secs(150);

impl Lab {
    /// Waits until two copies follow the leader.
    pub fn until_copies_follow(&self) {
        let mut copies = Copies::default();
        eventually("two copies follow", 400, || copies.look(self));
    }

    /// Waits until the database leads on `node`, to which it comes back within five minutes if that
    /// is primary.
    pub fn until_database_leads_on(&self, node: &str) {
        let mut copies = Copies::default();
        eventually(&format!("the database leads on {node}"), 400, || {
            let asked = self.on(node, LEADS);
            match asked.stdout.trim() {
                "200" => Ok(()),
                _ => Err(format!("{asked}{}", copies.look(self).err().unwrap_or_default())),
            }
        });
    }

    /// The members that the leader does not stream to; an error if none leads.
    fn copies_behind(&self) -> Result<Vec<&'static str>, String> {
        let said = NODES.map(|node| (node, self.on(node, STREAMS).stdout));
        let leads = |(_, said): &&(_, String)| {
            ["master", "primary"].contains(&said.lines().next().unwrap_or_default())
        };
        let (leader, streams) = said.iter().find(leads).ok_or_else(|| format!("{said:?}"))?;
        let follows = |node: &str| streams.lines().skip(1).any(|name| name == node);
        Ok(NODES.into_iter().filter(|node| node != leader && !follows(node)).collect())
    }

    /// Stops the database on every coordinator: on `leader`, which leads it, last, so that its copy
    /// has all that the others have.
    pub fn stop_database(&self, leader: &str) {
        for node in others(leader).chain([leader]) {
            self.on(node, "systemctl stop patroni").ok();
            // The unit may end without the server that it has started.
            eventually(&format!("no server of {node} answers"), 60, || {
                let asked = self.on(node, "pg_isready --host $(hostname)");
                if asked.code == NOBODY { Ok(()) } else { Err(asked) }
            });
        }
    }

    /// Starts the database again: on `leader` first, which then leads it as before.
    pub fn start_database(&self, leader: &str) {
        self.on(leader, START).ok();
        self.until_database_leads_on(leader);
        for node in others(leader) {
            self.on(node, START).ok();
        }
    }
}

/// Copies that are waited for. One that does not follow by itself is made anew: a story may have
/// taken the power from a node while its copy was promoted, and its timeline is another's as well
/// then.
struct Copies {
    since: Instant,
    are_made_anew: bool,
}

impl Default for Copies {
    fn default() -> Self {
        Copies { since: Instant::now(), are_made_anew: false }
    }
}

impl Copies {
    fn look(&mut self, lab: &Lab) -> Result<(), String> {
        let behind = lab.copies_behind()?;
        if !self.are_made_anew && self.since.elapsed() > BY_ITSELF {
            self.are_made_anew = true;
            for node in &behind {
                lab.on(node, REINIT);
            }
        }
        if behind.is_empty() { Ok(()) } else { Err(format!("{behind:?} do not follow")) }
    }
}

fn others(leader: &str) -> impl Iterator<Item = &str> {
    NODES.into_iter().filter(move |node| *node != leader)
}
