//! The database of the cluster's own services, as far as its leader is concerned.

use async_trait::async_trait;
use pvc_model::NodeName;
use pvc_model::database::Member;

#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// Nobody answers; trying again may help.
    #[error("the database's manager cannot be reached: {why}")]
    Unreachable { why: String },
    /// The manager answered, and said no. It may say yes later, when the node's copy has caught up.
    #[error("the database's leader was not changed: {why}")]
    Refused { why: String },
    #[error("the database's manager did not answer within {seconds} s")]
    TimedOut { seconds: u64 },
}

impl DatabaseError {
    /// Advice for the operator.
    pub fn hint(&self) -> Option<String> {
        match self {
            DatabaseError::Unreachable { .. } => Some(
                "does Patroni run? `systemctl status patroni` and `patronictl list` show it"
                    .to_owned(),
            ),
            DatabaseError::Refused { .. } | DatabaseError::TimedOut { .. } => {
                Some("`patronictl list` shows the members and how far they lag behind".to_owned())
            }
        }
    }
}

/// The members of the database have the names of their nodes. Every call ends within seconds.
#[async_trait]
pub trait Database: Send + Sync {
    /// The node whose copy takes writes, or `None` if there is none at the moment.
    async fn leader(&self) -> Result<Option<NodeName>, DatabaseError>;

    /// Asks the manager on this machine about the member `node`, which is its own.
    async fn member(&self, node: &NodeName) -> Result<Member, DatabaseError>;

    /// Has `node` become the leader. Nothing happens if it is. Returns when it is done.
    async fn switch_to(&self, node: &NodeName) -> Result<(), DatabaseError>;
}
