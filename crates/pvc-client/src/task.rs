//! Tasks.

use pvc_api_types::{TaskQueues, TaskStatus};

use crate::client::{Change, Client};
use crate::error::Error;
use crate::payload::Payload;
use crate::query::{Query, escape};

impl Client {
    /// Every unfinished task.
    pub fn tasks(&self) -> Result<Payload<TaskQueues>, Error> {
        self.get("/tasks", Query::new())
    }

    /// Asks a task to stop: one that waits ends at once, one at work at its next step.
    pub fn cancel_task(&self, id: &str) -> Result<String, Error> {
        self.change(Change::delete(format!("/tasks/{}", escape(id)), Query::new()))
    }

    pub fn task(&self, id: &str) -> Result<Payload<TaskStatus>, Error> {
        self.get(&format!("/tasks/{}", escape(id)), Query::new())
    }
}
