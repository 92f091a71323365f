//! The cluster's own database: a copy on each coordinator, of which one leads. A leader whose host
//! has lost power is replaced after a while by another copy; what is in the database is not played.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use pvc_model::NodeName;
use pvc_model::database_cluster::Member;
use pvc_ports::{DatabaseCluster, DatabaseClusterError};
use pvc_testkit::ScriptedDatabaseCluster;

use crate::host::{Host, Hosts};
use crate::process::Gate;
use crate::run::Run;
use crate::state::State;

/// Time after which the other copies elect one of them in place of a leader that is gone.
const ELECTION: Duration = Duration::from_secs(30);

/// The members of the database and their managers.
pub(crate) struct DatabaseMembers {
    pub cluster: Arc<ScriptedDatabaseCluster>,
}

impl DatabaseMembers {
    /// Led by the copy on the first coordinator.
    pub fn of_hosts(hosts: &[Host]) -> Option<DatabaseMembers> {
        let first = hosts.iter().find(|host| host.is_coordinator)?;
        Some(DatabaseMembers { cluster: Arc::new(ScriptedDatabaseCluster::led_by(&first.name)) })
    }

    /// A host has lost power: if its copy led, none does until another is elected.
    pub fn host_lost(&self, run: &mut Run, host: &str) {
        if self.cluster.is_led_by(host) {
            run.note("the database has no leader");
            self.cluster.set_leader(None);
            run.later(ELECTION, elect);
        }
    }

    /// The managers answer from now on.
    pub fn answers(&self) {
        self.cluster.set_dead(false);
        self.cluster.set_silent(false);
    }

    /// The number of the host whose copy leads.
    pub fn leader(&self, hosts: &Hosts) -> Option<usize> {
        (0..hosts.len()).find(|host| self.cluster.is_led_by(&hosts[*host].name))
    }
}

/// The copy of some coordinator that runs becomes the leader, unless one is.
fn elect(state: &mut State) {
    let Some(database) = &state.database_cluster else { return };
    if database.leader(&state.hosts).is_some() {
        return;
    }
    let runs = state.hosts.iter().find(|host| host.is_coordinator && host.is_up() && !host.frozen);
    match runs {
        Some(host) => {
            state.run.note(format!("{}: leads the database", host.name));
            database.cluster.set_leader(Some(&host.name));
        }
        None => state.run.later(ELECTION, elect),
    }
}

/// The database's manager on a host, as its daemon has it.
pub(crate) struct HostDatabaseCluster {
    pub gate: Gate,
    pub members: Arc<ScriptedDatabaseCluster>,
}

#[async_trait]
impl DatabaseCluster for HostDatabaseCluster {
    async fn leader(&self) -> Result<Option<NodeName>, DatabaseClusterError> {
        self.gate.pass().await;
        let leader = self.members.leader().await;
        self.gate.pass().await;
        leader
    }

    async fn member(&self, node: &NodeName) -> Result<Member, DatabaseClusterError> {
        self.gate.pass().await;
        let member = self.members.member(node).await;
        self.gate.pass().await;
        member
    }

    async fn switch_to(&self, node: &NodeName) -> Result<(), DatabaseClusterError> {
        self.gate.pass().await;
        let switched = self.members.switch_to(node).await;
        self.gate.pass().await;
        switched
    }
}

#[cfg(test)]
mod tests {
    use pvc_contracts::database_cluster::{DatabaseClusterFixture, database_cluster_contract};

    use super::*;
    use crate::state::World;

    fn host(gate: &Gate, members: &Arc<ScriptedDatabaseCluster>) -> Arc<HostDatabaseCluster> {
        Arc::new(HostDatabaseCluster { gate: gate.clone(), members: members.clone() })
    }

    #[tokio::test(start_paused = true)]
    async fn the_simulated_database_cluster_keeps_the_contract() {
        let (_, gates) = World::of_hosts(1);
        let [good, refusing, absent] =
            [(); 3].map(|()| Arc::new(ScriptedDatabaseCluster::led_by("hv1")));
        refusing.set_refusals(u32::MAX);
        absent.set_dead(true);
        let played = |members| -> Arc<dyn DatabaseCluster> { host(&gates[0], &members) };
        let [good, refusing, absent] = [good, refusing, absent].map(played);
        database_cluster_contract(DatabaseClusterFixture { good, refusing, absent }).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_manager_ends_each_call_within_seconds_and_then_answers_again() {
        let (_, gates) = World::of_hosts(1);
        let members = Arc::new(ScriptedDatabaseCluster::led_by("hv1"));
        let host = host(&gates[0], &members);
        members.set_silent(true);
        let error = host.leader().await.expect_err("nobody says anything");
        assert!(matches!(error, DatabaseClusterError::TimedOut { seconds: 1.. }), "{error}");
        members.set_silent(false);
        assert_eq!(host.leader().await.expect("it answers"), Some(NodeName::new("hv1")));
    }
}
