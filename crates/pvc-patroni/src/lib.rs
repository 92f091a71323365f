//! [`Database`] on Patroni's REST API, as each coordinator has one on its address in the cluster network.
//!
//! The answers say who leads; what `patronictl` prints for people to read is not asked.

use std::net::IpAddr;
use std::time::Duration;

use async_trait::async_trait;
use pvc_model::NodeName;
use pvc_ports::{Database, DatabaseError};
use serde_json::{Value, json};
use ureq::Agent;

/// Where Patroni listens in every PVC cluster.
pub const PORT: u16 = 8008;

/// How long a question may take.
const ASK: Duration = Duration::from_secs(4);

/// How long a switch may take: Patroni answers when the new leader leads.
const SWITCH: Duration = Duration::from_secs(25);

/// The Patroni of one node, which speaks for all of them.
#[derive(Debug, Clone)]
pub struct Patroni {
    url: String,
}

impl Patroni {
    pub fn new(address: IpAddr, port: u16) -> Self {
        let host = match address {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("[{address}]"),
        };
        Patroni { url: format!("http://{host}:{port}") }
    }

    /// Asks in a thread of its own: the client blocks.
    async fn ask(&self, path: &str, body: Option<Value>, limit: Duration) -> Result<Answer, DatabaseError> {
        let url = format!("{}{path}", self.url);
        let work = tokio::task::spawn_blocking(move || request(&url, body, limit));
        work.await.unwrap_or_else(|failed| Err(DatabaseError::Unreachable { why: failed.to_string() }))
    }
}

struct Answer {
    status: u16,
    text: String,
}

fn request(url: &str, body: Option<Value>, limit: Duration) -> Result<Answer, DatabaseError> {
    let config = Agent::config_builder().timeout_global(Some(limit)).http_status_as_error(false);
    let agent: Agent = config.build().into();
    let answered = match body {
        None => agent.get(url).call(),
        Some(body) => agent.post(url).content_type("application/json").send(body.to_string()),
    };
    let read = answered.and_then(|mut response| {
        let status = response.status().as_u16();
        Ok(Answer { status, text: response.body_mut().read_to_string()? })
    });
    read.map_err(|error| match error {
        ureq::Error::Timeout(_) => DatabaseError::TimedOut { seconds: limit.as_secs() },
        other => DatabaseError::Unreachable { why: format!("{url}: {other}") },
    })
}

/// The member that leads, in what Patroni says of the cluster.
fn leader_of(cluster: &Value) -> Option<&str> {
    let leads = |member: &&Value| {
        matches!(member["role"].as_str(), Some("leader" | "master" | "primary" | "standby_leader"))
    };
    cluster["members"].as_array()?.iter().find(leads)?["name"].as_str()
}

#[async_trait]
impl Database for Patroni {
    async fn leader(&self) -> Result<Option<NodeName>, DatabaseError> {
        let answer = self.ask("/cluster", None, ASK).await?;
        if answer.status != 200 {
            let why = format!("Patroni answers with status {}", answer.status);
            return Err(DatabaseError::Unreachable { why });
        }
        let cluster: Value = serde_json::from_str(&answer.text).map_err(|error| {
            DatabaseError::Unreachable { why: format!("Patroni's answer cannot be read: {error}") }
        })?;
        Ok(leader_of(&cluster).map(NodeName::new))
    }

    async fn switch_to(&self, node: &NodeName) -> Result<(), DatabaseError> {
        let leader = match self.leader().await? {
            Some(leader) if leader == *node => return Ok(()),
            Some(leader) => leader,
            None => return Err(DatabaseError::Refused { why: "it has no leader at the moment".to_owned() }),
        };
        let wish = json!({ "leader": leader.as_str(), "candidate": node.as_str() });
        let answer = self.ask("/switchover", Some(wish), SWITCH).await?;
        match answer.status {
            200 | 202 => Ok(()),
            status => {
                let said = answer.text.lines().next().unwrap_or_default().trim().to_owned();
                Err(DatabaseError::Refused { why: format!("{said} (status {status})") })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leader_is_found_whatever_the_version_calls_it() {
        for role in ["leader", "master", "primary"] {
            let cluster =
                json!({"members": [{"name": "hv1", "role": "replica"}, {"name": "hv2", "role": role}]});
            assert_eq!(leader_of(&cluster), Some("hv2"), "{role}");
        }
        assert_eq!(leader_of(&json!({"members": [{"name": "hv1", "role": "sync_standby"}]})), None);
        assert_eq!(leader_of(&json!([])), None);
    }
}
