//! [`DatabaseCluster`] on Patroni's REST API, as each coordinator has one on its address in the
//! cluster network.
//!
//! The answers say who leads; what `patronictl` prints for people to read is not asked.

#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// Time that the leader may take when it is asked only whether a copy follows it.
const ASK_LEADER: Duration = Duration::from_secs(1);

/// State of a member that [`is_ahead`], in place of Patroni's `running`.
const AHEAD: &str = "running, but ahead of the leader; nothing but patronictl reinit helps";

/// Most bytes of an answer.
const LONGEST: u64 = 64 << 10;

/// Time that a switch may take: Patroni answers when the new leader leads.
const SWITCH: Duration = Duration::from_secs(25);

/// The Patroni of one node, which speaks for all of them.
#[derive(Debug, Clone)]
pub struct Patroni {
    url: String,
    /// Whether the member of this node [`is_ahead`], as far as the leader last answered.
    was_ahead: Arc<AtomicBool>,
}

impl Patroni {
    pub fn new(address: IpAddr, port: u16) -> Self {
        let host = match address {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => format!("[{address}]"),
        };
        Patroni { url: format!("http://{host}:{port}"), was_ahead: Arc::default() }
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
    // Whoever answers is not to send this node elsewhere.
    let config = config.max_redirects(0).proxy(None);
    let agent: Agent = config.build().into();
    let answered = match body {
        None => agent.get(url).call(),
        Some(body) => agent.post(url).content_type("application/json").send(body.to_string()),
    };
    let read = answered.and_then(|mut response| {
        let status = response.status().as_u16();
        let body = response.body_mut().with_config().limit(LONGEST);
        Ok(Answer { status, text: body.read_to_string()? })
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

    /// Answer of the member's own Patroni about its database within `limit`: what the cluster knows
    /// of it may be old.
    async fn report_of(
        &self,
        cluster: &Value,
        member: &str,
        limit: Duration,
    ) -> Result<Value, DatabaseClusterError> {
        let Some(address) = address_of(cluster, member) else { return Ok(Value::Null) };
        read_answer(self.ask(address.to_owned(), None, limit).await?)
    }

    /// Refuses a candidate that is not in the leader's history: one that has not followed the
    /// leader's own promotion yet, that does not replay what the leader has written, or that is
    /// [ahead](is_ahead) of it. Patroni would promote it, and what the old leader wrote is lost.
    /// Two hand-overs within a second are enough for the first, a leader that loses power while it
    /// is promoted for the others (Patroni 3.0.2, PostgreSQL 15).
    async fn must_follow(
        &self,
        cluster: &Value,
        leader: &str,
        candidate: &str,
    ) -> Result<(), DatabaseClusterError> {
        let before = self.report_of(cluster, leader, ASK).await?;
        let copy = self.report_of(cluster, candidate, ASK).await?;
        let now = self.report_of(cluster, leader, ASK).await?;
        let why = match (copy["timeline"].as_i64(), now["timeline"].as_i64()) {
            (Some(had), Some(wanted)) if had != wanted => format!(
                "the copy on `{candidate}` is in timeline {had} and does not follow `{leader}` \
                 into timeline {wanted} yet"
            ),
            _ if is_ahead(&copy, &now) => format!(
                "the copy on `{candidate}` holds what `{leader}` never wrote; `patronictl reinit` \
                 throws it away and makes it anew"
            ),
            _ if lacks(&copy, &before) => {
                format!(
                    "the copy on `{candidate}` has not replayed what `{leader}` has written yet"
                )
            }
            _ => return Ok(()),
        };
        Err(DatabaseClusterError::Refused { why })
    }

    /// Whether the copy of `member`, which has reported `own`, is ahead of the leader. While the
    /// leader does not answer within [`ASK_LEADER`], what was known before is still so.
    async fn is_member_ahead(&self, cluster: &Value, member: &str, own: &Value) -> bool {
        let is_ahead = match leader_of(cluster).filter(|leader| *leader != member) {
            None => false,
            Some(leader) => match self.report_of(cluster, leader, ASK_LEADER).await {
                Ok(leads) => is_ahead(own, &leads),
                Err(_) => self.was_ahead.load(Ordering::Relaxed),
            },
        };
        self.was_ahead.store(is_ahead, Ordering::Relaxed);
        is_ahead
    }
}

/// Whether the database that reported `copy` has replayed more than the leader, which reported
/// `leads` later, has written in the same timeline: two members were promoted to it, one of which
/// lost power before the other knew. The number of the timeline is the same, `pg_rewind` finds
/// nothing to do, and the copy waits until the leader has come as far, and stops at the first
/// record that does not fit.
fn is_ahead(copy: &Value, leads: &Value) -> bool {
    positions(copy, leads).is_some_and(|(replayed, written)| replayed > written)
}

/// Whether the database that reported `copy` has not replayed what the leader, which reported
/// `leads` before, had written in the same timeline.
fn lacks(copy: &Value, leads: &Value) -> bool {
    positions(copy, leads).is_some_and(|(replayed, written)| replayed < written)
}

/// Bytes of the same timeline that the copy has replayed and that the leader has written; `None` if
/// a report does not tell, or if `leads` is of one that does not lead.
fn positions(copy: &Value, leads: &Value) -> Option<(u64, u64)> {
    let is_same = copy["timeline"].as_i64()? == leads["timeline"].as_i64()?;
    let replayed = copy["xlog"]["replayed_location"].as_u64()?;
    is_same.then_some((replayed, leads["xlog"]["location"].as_u64()?))
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
        let state = match self.cluster().await {
            Ok(cluster) if self.is_member_ahead(&cluster, node.as_str(), &own).await => {
                Some(AHEAD.to_owned())
            }
            Ok(cluster) => state_of(&cluster, node.as_str()),
            Err(_) => None,
        };
        let last_contact = own["dcs_last_seen"].as_u64().map(Duration::from_secs);
        Ok(Member { leads: leads(&own), state, last_contact })
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
