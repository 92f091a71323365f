//! Networks and volumes, as far as VM commands need them.

use pvc_api_types::{Network, Volume};
use serde_json::Value;

use crate::client::Client;
use crate::error::Error;
use crate::payload::Payload;
use crate::query::{Query, escape};

impl Client {
    pub fn networks(&self) -> Result<Payload<Vec<Network>>, Error> {
        self.get("/network", Query::new())
    }

    /// The network of that VNI, as a list of one.
    pub fn network(&self, vni: &str) -> Result<Payload<Vec<Network>>, Error> {
        self.get(&format!("/network/{}", escape(vni)), Query::new())
    }

    /// An SR-IOV virtual function of a node.
    pub fn sriov_vf(&self, node: &str, vf: &str) -> Result<Payload<Value>, Error> {
        let path = format!("/sriov/vf/{}/{}", escape(node), escape(vf));
        let list: Payload<Vec<Value>> = self.get(&path, Query::new())?;
        list.only()
            .ok_or_else(|| Error::NotFound { message: format!("no VF `{vf}` on node `{node}`"), hint: None })
    }

    /// The volume of that name, as a list of one.
    pub fn volume(&self, pool: &str, name: &str) -> Result<Payload<Vec<Volume>>, Error> {
        self.get(&format!("/storage/ceph/volume/{}/{}", escape(pool), escape(name)), Query::new())
    }
}
