//! [`DatabaseCluster`] on Patroni's REST API, as each coordinator has one on its address in the
//! cluster network.
//!
//! The answers say who leads; what `patronictl` prints for people to read is not asked.

#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::time::Duration;

use async_trait::async_trait;
use pvc_model::NodeName;
use pvc_model::database_cluster::Member;
use pvc_ports::{DatabaseCluster, DatabaseClusterError};
use serde_json::{Value, json};
use ureq::Agent;

/// Port at which Patroni listens in every PVC cluster.
pub const PORT: u16 = 8008;

/// Time that a question may take.
const ASK: Duration = Duration::from_secs(4);

/// Time that a switch may take: Patroni answers when the new leader leads.
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
    async fn ask(
        &self,
        url: String,
        body: Option<Value>,
        limit: Duration,
    ) -> Result<Answer, DatabaseClusterError> {
        let work = tokio::task::spawn_blocking(move || request(&url, body, limit));
        work.await.unwrap_or_else(|failed| {
            Err(DatabaseClusterError::Unreachable { why: failed.to_string() })
        })
    }
}

struct Answer {
    status: u16,
    text: String,
}

fn request(
    url: &str,
    body: Option<Value>,
    limit: Duration,
) -> Result<Answer, DatabaseClusterError> {
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
        ureq::Error::Timeout(_) => DatabaseClusterError::TimedOut { seconds: limit.as_secs() },
        other => DatabaseClusterError::Unreachable { why: format!("{url}: {other}") },
    })
}

/// The member that leads, in what Patroni says of the cluster.
fn leader_of(cluster: &Value) -> Option<&str> {
    cluster["members"].as_array()?.iter().find(|member| leads(member))?["name"].as_str()
}

fn leads(member: &Value) -> bool {
    matches!(member["role"].as_str(), Some("leader" | "master" | "primary" | "standby_leader"))
}

/// State of the member as Patroni calls it, in what it says of the cluster.
fn state_of(cluster: &Value, member: &str) -> Option<String> {
    let named = |known: &&Value| known["name"].as_str() == Some(member);
    // It may be any text: a line of a fault is made of it.
    let state = cluster["members"].as_array()?.iter().find(named)?["state"].as_str()?;
    Some(state.chars().filter(|c| !c.is_control()).take(60).collect())
}

/// Address of the member's own Patroni.
fn address_of<'a>(cluster: &'a Value, member: &str) -> Option<&'a str> {
    let named = |known: &&Value| known["name"].as_str() == Some(member);
    cluster["members"].as_array()?.iter().find(named)?["api_url"].as_str()
}

impl Patroni {
    /// Asks Patroni about its members.
    async fn cluster(&self) -> Result<Value, DatabaseClusterError> {
        read_answer(self.ask(format!("{}/cluster", self.url), None, ASK).await?)
    }

    /// The history that the member's database is in, as it says itself: what the cluster knows of
    /// it may be old.
    async fn timeline(
        &self,
        cluster: &Value,
        member: &str,
    ) -> Result<Option<i64>, DatabaseClusterError> {
        let Some(address) = address_of(cluster, member) else { return Ok(None) };
        Ok(read_answer(self.ask(address.to_owned(), None, ASK).await?)?["timeline"].as_i64())
    }

    /// Refuses a candidate that has not followed the leader's own promotion yet. Patroni would
    /// promote it, and both would have written a history of the same number: what the old leader
    /// wrote is lost, and it never follows again. Two hand-overs within a second are enough for
    /// that (Patroni 3.0.2, PostgreSQL 15).
    async fn must_follow(
        &self,
        cluster: &Value,
        leader: &str,
        candidate: &str,
    ) -> Result<(), DatabaseClusterError> {
        let wanted = self.timeline(cluster, leader).await?;
        let had = self.timeline(cluster, candidate).await?;
        match (had, wanted) {
            (Some(had), Some(wanted)) if had != wanted => {
                let why = format!(
                    "the copy on `{candidate}` is in timeline {had} and does not follow `{leader}` \
                     into \
                     timeline {wanted} yet"
                );
                Err(DatabaseClusterError::Refused { why })
            }
            _ => Ok(()),
        }
    }
}

/// Reads an answer.
fn read_answer(answer: Answer) -> Result<Value, DatabaseClusterError> {
    let unreadable = |why: String| DatabaseClusterError::Unreachable { why };
    if answer.status != 200 {
        return Err(unreadable(format!("Patroni answers with status {}", answer.status)));
    }
    serde_json::from_str(&answer.text)
        .map_err(|error| unreadable(format!("Patroni's answer cannot be read: {error}")))
}

#[async_trait]
impl DatabaseCluster for Patroni {
    async fn leader(&self) -> Result<Option<NodeName>, DatabaseClusterError> {
        Ok(leader_of(&self.cluster().await?).map(NodeName::new))
    }

    async fn member(&self, node: &NodeName) -> Result<Member, DatabaseClusterError> {
        let own = read_answer(self.ask(format!("{}/patroni", self.url), None, ASK).await?)?;
        // One that has lost ZooKeeper may still answer for itself, and for nobody else.
        let cluster = self.cluster().await.ok();
        Ok(Member {
            leads: leads(&own),
            state: cluster.and_then(|cluster| state_of(&cluster, node.as_str())),
            last_contact: own["dcs_last_seen"].as_u64().map(Duration::from_secs),
        })
    }

    async fn switch_to(&self, node: &NodeName) -> Result<(), DatabaseClusterError> {
        let cluster = self.cluster().await?;
        let leader = match leader_of(&cluster) {
            Some(leader) if leader == node.as_str() => return Ok(()),
            Some(leader) => leader,
            None => {
                return Err(DatabaseClusterError::Refused {
                    why: "it has no leader at the moment".to_owned(),
                });
            }
        };
        self.must_follow(&cluster, leader, node.as_str()).await?;
        let request = json!({ "leader": leader, "candidate": node.as_str() });
        let answer = self.ask(format!("{}/switchover", self.url), Some(request), SWITCH).await?;
        match answer.status {
            200 | 202 => Ok(()),
            status => {
                let said = answer.text.lines().next().unwrap_or_default().trim().to_owned();
                Err(DatabaseClusterError::Refused { why: format!("{said} (status {status})") })
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
            let members =
                json!([{"name": "hv1", "role": "replica"}, {"name": "hv2", "role": role}]);
            let cluster = json!({ "members": members });
            assert_eq!(leader_of(&cluster), Some("hv2"), "{role}");
        }
        assert_eq!(leader_of(&json!({"members": [{"name": "hv1", "role": "sync_standby"}]})), None);
        assert_eq!(leader_of(&json!([])), None);
    }
}
