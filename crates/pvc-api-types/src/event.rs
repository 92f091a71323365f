//! The event stream, `GET /api/v1/events`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Something changed. Sent as the `data` of a server-sent event whose `id` is the revision; a
/// reader that comes back with `Last-Event-ID` continues behind it.
///
/// An event says what to look at again, never what it looks like now: reading the object is
/// always right, however many events were missed or merged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Grows with every change; the cursor of the stream.
    pub revision: u64,
    pub kind: EventKind,
    /// The object's name: a node, a VM's UUID, a VNI, a task or fault id. Empty for the cluster.
    #[serde(default)]
    pub id: String,
    pub change: Change,
}

/// Kind of the object that changed. A reader skips kinds it does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    Cluster,
    Node,
    Vm,
    Network,
    Storage,
    Task,
    Fault,
    /// The reader asked for events that are gone, or was too slow: read everything afresh.
    Reset,
    #[serde(other)]
    Unknown,
}

impl EventKind {
    /// The name on the wire, which is also the `event` field of a server-sent event.
    pub fn name(self) -> &'static str {
        match self {
            EventKind::Cluster => "cluster",
            EventKind::Node => "node",
            EventKind::Vm => "vm",
            EventKind::Network => "network",
            EventKind::Storage => "storage",
            EventKind::Task => "task",
            EventKind::Fault => "fault",
            EventKind::Reset => "reset",
            EventKind::Unknown => "unknown",
        }
    }
}

/// Change of the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    Created,
    Changed,
    Removed,
}
