//! Tasks.

use pvc_api_types::{TaskQueues, TaskStatus};

use crate::client::Client;
use crate::error::Error;
use crate::payload::Payload;
use crate::query::{Query, escape};

impl Client {
    /// Every unfinished task.
    pub fn tasks(&self) -> Result<Payload<TaskQueues>, Error> {
        self.get("/tasks", Query::new())
    }

    pub fn task(&self, id: &str) -> Result<Payload<TaskStatus>, Error> {
        self.get(&format!("/tasks/{}", escape(id)), Query::new())
    }
}
