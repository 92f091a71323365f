//! Contract of every [`DatabaseCluster`], with a leader that may be moved.

use std::sync::Arc;

use pvc_model::NodeName;
use pvc_ports::{DatabaseCluster, DatabaseClusterError};

/// Environment that the suite needs from whoever runs it.
pub struct DatabaseClusterFixture {
    /// Its members are `hv1`, which leads, and `hv2`, which follows.
    pub good: Arc<dyn DatabaseCluster>,
    /// The same members, and a manager that refuses every switch.
    pub refusing: Arc<dyn DatabaseCluster>,
    /// Nobody answers there.
    pub absent: Arc<dyn DatabaseCluster>,
}

/// Runs the whole suite.
///
/// # Panics
/// When the database cluster breaks the contract.
pub async fn database_cluster_contract(fixture: DatabaseClusterFixture) {
    fixture.a_refused_switch_leaves_the_leader_where_it_is().await;
    fixture.the_leader_is_where_it_was_moved_when_the_call_returns().await;
    fixture.a_manager_that_is_not_there_names_no_leader().await;
}

impl DatabaseClusterFixture {
    async fn a_refused_switch_leaves_the_leader_where_it_is(&self) {
        let cluster = &self.refusing;
        let error = cluster.switch_to(&NodeName::new("hv2")).await.expect_err("it is refused");
        assert!(matches!(error, DatabaseClusterError::Refused { .. }), "{error}");
        assert!(error.hint().is_some(), "{error}");
        assert_eq!(leader(cluster).await.as_deref(), Some("hv1"));
        cluster.switch_to(&NodeName::new("hv1")).await.expect("it leads already");
    }

    async fn the_leader_is_where_it_was_moved_when_the_call_returns(&self) {
        let cluster = &self.good;
        for to in ["hv1", "hv2", "hv2"] {
            cluster.switch_to(&NodeName::new(to)).await.expect("it obeys");
            assert_eq!(leader(cluster).await.as_deref(), Some(to));
        }
        let member = cluster.member(&NodeName::new("hv2")).await.expect("it answers");
        assert!(member.leads && member.state.is_some(), "{member:?}");
    }

    async fn a_manager_that_is_not_there_names_no_leader(&self) {
        let two = NodeName::new("hv2");
        let unreachable = |error| matches!(error, DatabaseClusterError::Unreachable { .. });
        assert!(unreachable(self.absent.leader().await.expect_err("nobody answers")));
        assert!(unreachable(self.absent.member(&two).await.expect_err("nobody answers")));
        assert!(unreachable(self.absent.switch_to(&two).await.expect_err("nobody answers")));
    }
}

async fn leader(cluster: &Arc<dyn DatabaseCluster>) -> Option<String> {
    cluster.leader().await.expect("it answers").map(|leader| leader.to_string())
}
