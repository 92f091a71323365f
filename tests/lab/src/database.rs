//! The cluster's own database: away as a whole, and back.

use pvc_standalone_tests::eventually;

use crate::{Lab, NODES};

const START: &str = "systemctl start patroni";

/// Undoes [`Lab::stop_database`] on a coordinator. A node daemon that is not ready yet does so by
/// itself, once there are addresses.
pub(crate) const ITS_DATABASE_RUNS: &str =
    "systemctl is-active --quiet pvcnoded && systemctl start patroni";

/// Exit code of `pg_isready` where nobody answers.
const NOBODY: i32 = 2;

impl Lab {
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

fn others(leader: &str) -> impl Iterator<Item = &str> {
    NODES.into_iter().filter(move |node| *node != leader)
}
