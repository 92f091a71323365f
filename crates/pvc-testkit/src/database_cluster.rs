use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use pvc_model::NodeName;
use pvc_model::database_cluster::Member;
use pvc_ports::{DatabaseCluster, DatabaseClusterError};

/// Time for which a manager that says nothing is waited for.
const TIME_LIMIT: Duration = Duration::from_secs(10);

struct Inner {
    leader: Option<NodeName>,
    state: Option<String>,
    refusals: u32,
    dead: bool,
    silent: bool,
}

/// A database cluster of which every node has a copy that follows, and whose manager can be told to
/// misbehave.
pub struct ScriptedDatabaseCluster {
    inner: Mutex<Inner>,
}

impl ScriptedDatabaseCluster {
    /// Led by the copy on `leader`.
    pub fn led_by(leader: &str) -> Self {
        let state = Some("streaming".to_owned());
        let leader = Some(NodeName::new(leader));
        let (refusals, dead, silent) = (0, false, false);
        let inner = Inner { leader, state, refusals, dead, silent };
        ScriptedDatabaseCluster { inner: Mutex::new(inner) }
    }

    /// Refuses the next `count` switches.
    pub fn set_refusals(&self, count: u32) {
        self.with(|inner| inner.refusals = count);
    }

    /// While set, nobody answers.
    pub fn set_dead(&self, dead: bool) {
        self.with(|inner| inner.dead = dead);
    }

    /// While set, whoever is asked says nothing, and the call ends after some seconds.
    pub fn set_silent(&self, silent: bool) {
        self.with(|inner| inner.silent = silent);
    }

    /// Whoever leads now, if anybody.
    pub fn set_leader(&self, leader: Option<&str>) {
        self.with(|inner| inner.leader = leader.map(NodeName::new));
    }

    /// Sets the state of every member, as its manager calls it; `None`: it does not know its
    /// cluster.
    pub fn set_state(&self, state: Option<&str>) {
        self.with(|inner| inner.state = state.map(str::to_owned));
    }

    pub fn is_led_by(&self, node: &str) -> bool {
        self.with(|inner| inner.leader.as_ref().is_some_and(|leader| leader.as_str() == node))
    }

    fn with<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> T {
        act(&mut self.inner.lock().expect("no test panics while holding it"))
    }

    async fn asked<T>(
        &self,
        act: impl FnOnce(&mut Inner) -> Result<T, DatabaseClusterError>,
    ) -> Result<T, DatabaseClusterError> {
        if self.with(|inner| inner.silent) {
            tokio::time::sleep(TIME_LIMIT).await;
            return Err(DatabaseClusterError::TimedOut { seconds: TIME_LIMIT.as_secs() });
        }
        self.with(|inner| match inner.dead {
            true => Err(DatabaseClusterError::Unreachable { why: "nobody answers".to_owned() }),
            false => act(inner),
        })
    }
}

#[async_trait]
impl DatabaseCluster for ScriptedDatabaseCluster {
    async fn leader(&self) -> Result<Option<NodeName>, DatabaseClusterError> {
        self.asked(|inner| Ok(inner.leader.clone())).await
    }

    async fn member(&self, node: &NodeName) -> Result<Member, DatabaseClusterError> {
        self.asked(|inner| {
            let leads = inner.leader.as_ref() == Some(node);
            Ok(Member { leads, state: inner.state.clone(), last_contact: None })
        })
        .await
    }

    async fn switch_to(&self, node: &NodeName) -> Result<(), DatabaseClusterError> {
        self.asked(|inner| {
            if inner.leader.as_ref() == Some(node) {
                return Ok(());
            }
            if inner.refusals > 0 {
                inner.refusals -= 1;
                return Err(DatabaseClusterError::Refused { why: "it lags behind".to_owned() });
            }
            inner.leader = Some(node.clone());
            Ok(())
        })
        .await
    }
}
