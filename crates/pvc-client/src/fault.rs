//! Faults.

use pvc_api_types::Fault;

use crate::client::{Change, Client};
use crate::error::Error;
use crate::payload::Payload;
use crate::query::{Query, escape};

impl Client {
    /// All faults, those reported last first.
    pub fn faults(&self) -> Result<Payload<Vec<Fault>>, Error> {
        self.get("/faults", Query::new().text("sort_key", "last_reported"))
    }

    /// The fault of that id, as a list of none or one.
    pub fn fault(&self, id: &str) -> Result<Payload<Vec<Fault>>, Error> {
        self.get(&format!("/faults/{}", escape(id)), Query::new())
    }

    pub fn acknowledge_fault(&self, id: &str) -> Result<String, Error> {
        self.change(Change::put(format!("/faults/{}", escape(id)), Query::new()))
    }

    pub fn acknowledge_all_faults(&self) -> Result<String, Error> {
        self.change(Change::put("/faults", Query::new()))
    }

    pub fn delete_fault(&self, id: &str) -> Result<String, Error> {
        self.change(Change::delete(format!("/faults/{}", escape(id)), Query::new()))
    }

    pub fn delete_all_faults(&self) -> Result<String, Error> {
        self.change(Change::delete("/faults", Query::new()))
    }
}
