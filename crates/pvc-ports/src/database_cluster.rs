//! The members of the cluster's own database and their leader: what Patroni manages. What is in the
//! database is not asked here.

use async_trait::async_trait;
use pvc_model::NodeName;
use pvc_model::database_cluster::Member;

#[derive(Debug, thiserror::Error)]
pub enum DatabaseClusterError {
    /// Nobody answers; trying again may help.
    #[error("the database's manager cannot be reached: {why}")]
    Unreachable { why: String },
    /// Answered with a refusal. A later try may succeed, when the node's copy has caught up.
    #[error("the database's leader was not changed: {why}")]
    Refused { why: String },
    #[error("the database's manager did not answer within {seconds} s")]
    TimedOut { seconds: u64 },
}

impl DatabaseClusterError {
    /// Advice for the operator.
    pub fn hint(&self) -> Option<String> {
        match self {
            DatabaseClusterError::Unreachable { .. } => Some(
                "does Patroni run? `systemctl status patroni` and `patronictl list` show it"
                    .to_owned(),
            ),
            DatabaseClusterError::Refused { .. } | DatabaseClusterError::TimedOut { .. } => {
                Some("`patronictl list` shows the members and how far they lag behind".to_owned())
            }
        }
    }
}

/// Members of a database that is kept in copies, one on each coordinator. They have the names of
/// their nodes. Every call ends within seconds.
#[async_trait]
pub trait DatabaseCluster: Send + Sync {
    /// The node whose copy takes writes, or `None` if there is none at the moment.
    async fn leader(&self) -> Result<Option<NodeName>, DatabaseClusterError>;

    /// Returns the state of the member `node`, which is this machine's own, as its manager reports
    /// it.
    async fn member(&self, node: &NodeName) -> Result<Member, DatabaseClusterError>;

    /// Has `node` become the leader. Nothing happens if it is. Returns when it is done.
    async fn switch_to(&self, node: &NodeName) -> Result<(), DatabaseClusterError>;
}
