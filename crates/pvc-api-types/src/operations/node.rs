//! Nodes.

use crate::param::{Flag, Or};
use crate::{FlushPlan, Node, NodeCoordinatorState, NodeDaemonState, NodeDomainState, NodeLog};

params! {
    /// Filter of the nodes to list. The three states are alternatives to each other.
    #[derive(Default)]
    pub struct NodeFilter {
        /// A regular expression on the name.
        limit: Option<String>,
        /// Nodes whose daemon is in this state.
        daemon_state: Option<String>,
        /// Nodes in this coordinator state.
        coordinator_state: Option<String>,
        /// Nodes in this domain state.
        domain_state: Option<String>,
    }
}

params! {
    /// Length of the part of a log.
    #[derive(Default)]
    pub struct Lines {
        /// Number of the last lines.
        lines: Or<10>,
    }
}

choice! {
    /// Part that a node is to have.
    pub enum Part { Primary = "primary", Secondary = "secondary" }
}

params! {
    /// The part that is wanted.
    pub struct CoordinatorRequest {
        /// `primary`, or `secondary` to hand the role over.
        state: Part,
    }
}

choice! {
    /// Whether a node is to take VMs.
    pub enum Duty { Ready = "ready", Flush = "flush" }
}

params! {
    /// The state that is wanted.
    pub struct DomainRequest {
        /// `flush` moves the node's VMs away, `ready` takes them back.
        state: Duty,
        /// Reply when it is done.
        wait: Flag,
    }
}

operations! { "node":
    /// The nodes by name.
    GetNode { GET "/node", Reader, read(NodeFilter) -> [Node] }

    /// A node.
    GetNodeNode { GET "/node/{node}", Reader, read -> [Node] }

    /// Removes the record of a node that is gone for good: of one that is `stop` or `fenced`, which
    /// is watched for 15 seconds first, that no VM is assigned to and of which no OSD is recorded.
    /// VMs no longer return to it, and faults about it are taken back. Its daemon makes it anew if
    /// it is started once more.
    DeleteNodeNode { DELETE "/node/{node}", Administrator, change }

    /// The state of a node's daemon.
    GetNodeNodeDaemonState { GET "/node/{node}/daemon-state", Reader, read -> NodeDaemonState }

    /// A node's part in the coordination.
    GetNodeNodeCoordinatorState {
        GET "/node/{node}/coordinator-state", Reader, read -> NodeCoordinatorState
    }

    /// Asks a node to become primary, or to leave that to another.
    PostNodeNodeCoordinatorState {
        POST "/node/{node}/coordinator-state", Operator, change(CoordinatorRequest)
    }

    /// Whether a node takes VMs.
    GetNodeNodeDomainState { GET "/node/{node}/domain-state", Reader, read -> NodeDomainState }

    /// Has a node's VMs moved away, or takes them back.
    PostNodeNodeDomainState {
        POST "/node/{node}/domain-state", Operator, change(DomainRequest),
        dry_run: FlushPlan,
        "Change nothing, and reply what a flush would do with each VM."
    }

    /// Takes the caller's word for it that a node is without power, or gone: of a node that is
    /// `dead` and whose BMC does not prove it, or of one in `shutdown`, `stop` or `init` (where
    /// `fence_intervals` is 0, also of one in `run`), which is watched for 15 seconds first. Its
    /// VMs are then started elsewhere. If it runs after all, two guests write to one disk.
    PostNodeNodeConfirmOff { POST "/node/{node}/confirm-off", Administrator, change }

    /// The end of a node's log.
    GetNodeNodeLog { GET "/node/{node}/log", Reader, read(Lines) -> NodeLog }
}
