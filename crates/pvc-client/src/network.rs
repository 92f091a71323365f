//! Networks, pools and volumes, to read.

use pvc_api_types::{Network, Pool, Volume};
use serde_json::Value;

use crate::client::Client;
use crate::error::Error;
use crate::payload::Payload;
use crate::query::{Query, escape};

impl Client {
    pub fn networks(&self) -> Result<Payload<Vec<Network>>, Error> {
        self.get("/network", Query::new())
    }

    /// The networks whose VNI or description fits.
    pub fn networks_like(&self, limit: Option<&str>) -> Result<Payload<Vec<Network>>, Error> {
        self.get("/network", Query::new().maybe("limit", limit))
    }

    /// The network of that VNI or description.
    pub fn network_only(&self, vni: &str) -> Result<Payload<Network>, Error> {
        let list = self.network(vni)?;
        list.only()
            .ok_or_else(|| Error::NotFound { message: format!("no network `{vni}`"), hint: None })
    }

    /// What belongs to a network: `lease` or `acl`.
    pub fn network_part(&self, vni: &str, part: &str) -> Result<Payload<Vec<Value>>, Error> {
        self.get(&format!("/network/{}/{part}", escape(vni)), Query::new())
    }

    /// The pools whose name fits.
    pub fn pools(&self, limit: Option<&str>) -> Result<Payload<Vec<Pool>>, Error> {
        self.get("/storage/ceph/pool", Query::new().maybe("limit", limit))
    }

    /// The volumes whose name fits, of one pool or of all.
    pub fn volumes(
        &self,
        limit: Option<&str>,
        pool: Option<&str>,
    ) -> Result<Payload<Vec<Volume>>, Error> {
        self.get("/storage/ceph/volume", Query::new().maybe("limit", limit).maybe("pool", pool))
    }

    /// The network of that VNI, as a list of one.
    pub fn network(&self, vni: &str) -> Result<Payload<Vec<Network>>, Error> {
        self.get(&format!("/network/{}", escape(vni)), Query::new())
    }

    /// An SR-IOV virtual function of a node.
    pub fn sriov_vf(&self, node: &str, vf: &str) -> Result<Payload<Value>, Error> {
        let path = format!("/sriov/vf/{}/{}", escape(node), escape(vf));
        let list: Payload<Vec<Value>> = self.get(&path, Query::new())?;
        list.only().ok_or_else(|| Error::NotFound {
            message: format!("no VF `{vf}` on node `{node}`"),
            hint: None,
        })
    }

    /// The volume of that name, as a list of one.
    pub fn volume(&self, pool: &str, name: &str) -> Result<Payload<Vec<Volume>>, Error> {
        self.get(&format!("/storage/ceph/volume/{}/{}", escape(pool), escape(name)), Query::new())
    }
}
