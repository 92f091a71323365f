//! Types of the cluster that have a shape of their own on the wire.

use pvc_api_types::PrimaryNode;
use pvc_api_types::operations::cluster::{GetBackup, GetStatusPrimaryNode, Saving};
use pvc_api_types::param::{Added, Nothing};
use serde_json::Value;

use crate::client::Client;
use crate::error::Error;

impl Client {
    /// The primary node's name, or `None` while there is none or nobody answers.
    pub fn primary_node(&self) -> Option<String> {
        let (status, body) = self.probe::<GetStatusPrimaryNode>(&Nothing).ok()?;
        if status != 200 {
            return None;
        }
        let primary: PrimaryNode = serde_json::from_value(body).ok()?;
        Some(primary.primary_node)
    }

    /// Every record of the cluster by its path; the passwords of the nodes' BMCs `with_secrets`
    /// only, unless the API is that of PVC 1.0.3, which always sends them.
    pub fn backup(&self, with_secrets: bool) -> Result<Value, Error> {
        let answer = self.read(GetBackup, [], &Saving { secrets: Added(with_secrets) })?.value()?;
        match answer {
            // The API sends JSON inside a JSON text, and clients of PVC 1.0.3 decode it twice.
            Value::String(inner) => serde_json::from_str(&inner).map_err(|source| {
                Error::BadAnswer { what: "holds no backup".to_owned(), source: Some(source.into()) }
            }),
            value => Ok(value),
        }
    }
}
