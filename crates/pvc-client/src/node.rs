//! Nodes.

use pvc_api_types::{FlushPlan, Node, NodeLog};

use crate::client::{Change, Client};
use crate::error::Error;
use crate::payload::Payload;
use crate::query::{Query, escape};

/// Which nodes to list. The name pattern must fit; of the states any one.
#[derive(Debug, Clone, Default)]
pub struct NodeFilter {
    pub limit: Option<String>,
    pub daemon_state: Option<String>,
    pub coordinator_state: Option<String>,
    pub domain_state: Option<String>,
}

impl Client {
    pub fn nodes(&self, filter: &NodeFilter) -> Result<Payload<Vec<Node>>, Error> {
        let query = Query::new()
            .maybe("limit", filter.limit.as_deref())
            .maybe("daemon_state", filter.daemon_state.as_deref())
            .maybe("coordinator_state", filter.coordinator_state.as_deref())
            .maybe("domain_state", filter.domain_state.as_deref());
        self.get("/node", query)
    }

    /// The node of that name.
    pub fn node(&self, name: &str) -> Result<Payload<Node>, Error> {
        let list: Payload<Vec<Node>> =
            self.get(&format!("/node/{}", escape(name)), Query::new())?;
        list.only()
            .ok_or_else(|| Error::NotFound { message: format!("no node `{name}`"), hint: None })
    }

    /// Asks for `primary` or `secondary`. The reply holds the word `already` if there is nothing
    /// to do.
    pub fn set_coordinator_state(&self, node: &str, state: &str) -> Result<String, Error> {
        let path = format!("/node/{}/coordinator-state", escape(node));
        self.change(Change::post(path, Query::new().text("state", state)))
    }

    /// Asks for `flush` or `ready`. The reply holds the word `already` if there is nothing to do.
    pub fn set_domain_state(&self, node: &str, state: &str) -> Result<String, Error> {
        let path = format!("/node/{}/domain-state", escape(node));
        self.change(Change::post(path, Query::new().text("state", state)))
    }

    /// What a flush of the node would do with each VM. Changes nothing.
    pub fn plan_flush(&self, node: &str) -> Result<FlushPlan, Error> {
        let path = format!("/node/{}/domain-state", escape(node));
        self.plan(
            "/node/{node}/domain-state",
            Change::post(path, Query::new().text("state", "flush")),
        )
    }

    /// The last lines of a node's log.
    pub fn node_log(&self, node: &str, lines: usize) -> Result<String, Error> {
        let path = format!("/node/{}/log", escape(node));
        let log: Payload<NodeLog> =
            self.get(&path, Query::new().text("lines", lines.to_string()))?;
        Ok(log.read()?.data)
    }
}
