//! Tasks: work that outlives the request that asked for it.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::wire::or_default;

wire! {
    /// The 202 reply: work has been queued.
    pub struct TaskRef {
        /// Eight lowercase hex digits.
        pub task_id: String,
        pub task_name: String,
        /// The node that does it, with ` (primary)` behind it when that is why.
        pub run_on: String,
    }

    /// An unfinished task.
    pub struct QueuedTask {
        pub id: String,
        pub name: String,
        #[schema(value_type = Vec<Object>)]
        pub args: Vec<Value>,
        /// The arguments by name, with at least `run_on`.
        #[schema(value_type = Object)]
        pub kwargs: Value,
        pub r#type: String,
        pub hostname: String,
        pub time_start: Option<f64>,
        pub acknowledged: bool,
        pub delivery_info: DeliveryInfo,
        pub worker_pid: Option<i64>,
        /// Present step, or reason why it does not go on. Never sent by PVC 1.0.3, as what follows.
        pub status: String,
        /// Author of the request: the description of the API token.
        pub submitter: String,
        /// Amount that has gone, of an upload or a download.
        pub transferred: Option<TaskTransfer>,
    }

    /// Amount of a file that has gone.
    #[derive(Eq)]
    pub struct TaskTransfer {
        pub bytes: u64,
        /// Bytes of the whole file; `null` if nobody has said how many.
        pub of: Option<u64>,
        /// Mean of the last half minute; `null` after the end.
        pub bytes_per_second: Option<u64>,
        /// `null` if that is not known, or nothing goes.
        pub seconds_left: Option<u64>,
    }

    /// A task that has ended.
    pub struct EndedTask {
        pub id: String,
        pub name: String,
        /// The arguments by name, with at least `run_on`.
        #[schema(value_type = Object)]
        pub kwargs: Value,
        /// The daemon that did it: `pvcworkerd@<node>`, or `pvcapid@<node>`.
        pub worker: String,
        /// Seconds since the epoch, as the other times.
        pub submitted_at: u64,
        /// `null` if nobody has begun it.
        pub started_at: Option<u64>,
        pub ended_at: Option<u64>,
        /// `SUCCESS`, `FAILURE` or `CANCELLED`.
        pub state: String,
        /// Result, or why it failed.
        pub status: String,
        pub submitter: String,
        /// Amount that had gone, of an upload or a download.
        pub transferred: Option<TaskTransfer>,
    }

    /// Record of a task, also after its end: for a day, and of the latest 1000.
    pub struct TaskLog {
        /// Eight lowercase hex digits.
        pub id: String,
        pub name: String,
        /// The arguments by name, with at least `run_on`.
        #[schema(value_type = Object)]
        pub kwargs: Value,
        /// Author of the request: the description of the API token.
        pub submitter: String,
        /// The node that it was given to.
        pub node: String,
        /// The node whose worker does it or did so last, or whose API daemon, of an upload or a
        /// download; `null` before one has begun.
        pub worker: Option<String>,
        /// Seconds since the epoch, as the other times.
        pub submitted_at: u64,
        /// `null` until it begins.
        pub started_at: Option<u64>,
        /// `null` until it ends.
        pub ended_at: Option<u64>,
        /// `PENDING`, `RUNNING`, `SUCCESS`, `FAILURE` or `CANCELLED`.
        pub state: String,
        /// Present step, result, or why it failed.
        pub status: String,
        /// Advice about what to do, of a task that failed.
        pub hint: Option<String>,
        /// Amount that has gone, of an upload or a download.
        pub transferred: Option<TaskTransfer>,
        /// The latest 200 lines, oldest first.
        pub log: Vec<String>,
    }

    /// Members that only the old job queue gave a meaning.
    pub struct DeliveryInfo {
        pub exchange: String,
        pub routing_key: String,
        pub priority: i64,
        pub redelivered: Option<bool>,
    }
}

/// Unfinished tasks by worker, `pvcworkerd@<node>`, and uploads and downloads by API daemon,
/// `pvcapid@<node>`; and those that have ended, if asked for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TaskQueues {
    #[serde(deserialize_with = "or_default")]
    #[schema(required)]
    pub scheduled: BTreeMap<String, Vec<QueuedTask>>,
    #[serde(deserialize_with = "or_default")]
    #[schema(required)]
    pub active: BTreeMap<String, Vec<QueuedTask>>,
    #[serde(deserialize_with = "or_default")]
    #[schema(required)]
    pub reserved: BTreeMap<String, Vec<QueuedTask>>,
    /// The latest first. Not sent without `all`, and never by PVC 1.0.3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<Vec<EndedTask>>,
}

/// Progress of a task. `PENDING` and `RUNNING` are the only states that are not an end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskStatus {
    pub state: String,
    pub current: i64,
    pub total: i64,
    /// Always sent as text; PVC 1.0.3 sometimes sends an array of one.
    #[serde(deserialize_with = "text")]
    pub status: String,
    /// Advice about what to do, of a task that failed; PVC 1.0.3 does not send it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// Reads text that may come alone or as an array of texts.
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::String(text) => text,
        Value::Array(parts) => {
            let parts: Vec<&str> = parts.iter().filter_map(Value::as_str).collect();
            parts.join(" ")
        }
        Value::Null => String::new(),
        other => other.to_string(),
    })
}

impl TaskStatus {
    /// Whether the task has come to an end, good or bad.
    pub fn is_finished(&self) -> bool {
        !matches!(self.state.as_str(), "PENDING" | "RUNNING")
    }

    /// Whether the task has come to a good end.
    pub fn is_success(&self) -> bool {
        self.state == "SUCCESS"
    }
}
