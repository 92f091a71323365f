//! The cluster as a whole.

use pvc_api_types::{ClusterStatus, PrimaryNode, StoreAccess};
use serde_json::Value;

use crate::client::{Change, Client};
use crate::error::Error;
use crate::payload::Payload;
use crate::query::Query;

/// Every server wants to see this beside a request that destroys data.
fn really() -> Query {
    Query::new().text("yes-i-really-mean-it", "yes")
}

impl Client {
    /// Asked by login messages, which nobody waits for: the whole answer comes in time, or none.
    pub fn status(&self) -> Result<Payload<ClusterStatus>, Error> {
        self.get_soon("/status", Query::new())
    }

    pub fn set_maintenance(&self, on: bool) -> Result<String, Error> {
        let state = if on { "true" } else { "false" };
        self.change(Change::post("/status", Query::new().text("state", state)))
    }

    /// The primary node's name, or `None` while there is none or nobody answers.
    pub fn primary_node(&self) -> Option<String> {
        let (status, body) = self.probe("/status/primary_node").ok()?;
        if status != 200 {
            return None;
        }
        let primary: PrimaryNode = serde_json::from_value(body).ok()?;
        Some(primary.primary_node)
    }

    /// Who may use the records in ZooKeeper.
    pub fn store_access(&self) -> Result<Payload<StoreAccess>, Error> {
        self.get("/store/access", Query::new())
    }

    /// Closes the records to whoever does not know their password, or opens them; `force` although
    /// nodes are locked out by that.
    pub fn set_store_access(&self, closed: bool, force: bool) -> Result<String, Error> {
        let access = if closed { "members" } else { "anybody" };
        self.change(Change::post(
            "/store/access",
            Query::new().text("access", access).flag("force", force),
        ))
    }

    /// Creates the records of an empty cluster; `overwrite` destroys those of an existing one.
    pub fn initialize(&self, overwrite: bool) -> Result<String, Error> {
        self.change(Change::post("/initialize", really().flag("overwrite", overwrite)))
    }

    /// Every record of the cluster by its path; the passwords of the nodes' BMCs `with_secrets`
    /// only, unless the API is that of PVC 1.0.3, which always sends them.
    pub fn backup(&self, with_secrets: bool) -> Result<Value, Error> {
        let answer = self
            .get::<Value>(
                "/backup",
                Query::new().maybe_flag("secrets", with_secrets.then_some(true)),
            )?
            .value()?;
        match answer {
            // The API sends JSON inside a JSON text, and old clients decode it twice.
            Value::String(inner) => serde_json::from_str(&inner).map_err(|source| {
                Error::BadAnswer { what: "holds no backup".to_owned(), source: Some(source.into()) }
            }),
            value => Ok(value),
        }
    }

    /// Writes the records of a backup over the present ones.
    pub fn restore(&self, backup: &str) -> Result<String, Error> {
        self.change(Change::post("/restore", really()).form("cluster_data", backup))
    }
}
