//! Traits that all refusals have in common.

use std::sync::Arc;

use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_model::job::being_renamed_to;
use pvc_model::node::NodeRecord;
pub use pvc_model::refusal::Kind;
use pvc_model::shown;
use pvc_model::vm::VmRecord;

/// Reason why an ask was not carried out.
pub trait Refusal: std::error::Error + Send + Sync + 'static {
    fn kind(&self) -> Kind;

    /// Advice about what to do, if more can be said than the message does.
    fn hint(&self) -> Option<String> {
        None
    }
}

/// Of asks that nothing can be wrong with.
impl Refusal for std::convert::Infallible {
    fn kind(&self) -> Kind {
        match *self {}
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no VM `{vm}`")]
pub struct NoVm {
    pub vm: String,
}

impl Refusal for NoVm {
    fn kind(&self) -> Kind {
        Kind::NotFound
    }

    fn hint(&self) -> Option<String> {
        Some("`pvc vm list` shows the VMs".to_owned())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no node `{node}`")]
pub struct NoNode {
    pub node: String,
}

impl Refusal for NoNode {
    fn kind(&self) -> Kind {
        Kind::NotFound
    }

    fn hint(&self) -> Option<String> {
        Some("`pvc node list` shows the nodes".to_owned())
    }
}

/// A VM that no worker is near to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Homeless {
    #[error("VM `{vm}` is assigned to no node")]
    Unassigned { vm: String },
    /// The keys of the node were deleted by other means than PVC: it would not have removed the
    /// node.
    #[error("VM `{vm}` is assigned to node `{node}`, which has no record")]
    NoRecord { vm: String, node: NodeName },
}

impl Refusal for Homeless {
    fn kind(&self) -> Kind {
        Kind::Conflict
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Homeless::Unassigned { vm } => format!("`pvc vm move {vm}` assigns a node"),
            Homeless::NoRecord { vm, node } => format!(
                "see that the server of node `{node}` is off, as the guest may run there; then \
                 `pvc vm move {vm}` assigns another"
            ),
        })
    }
}

/// A VM that a job gives another name: its volumes and its record may differ at this moment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("VM `{vm}` is being renamed to `{to}`")]
pub struct BeingRenamed {
    pub vm: String,
    pub to: String,
}

impl Refusal for BeingRenamed {
    fn kind(&self) -> Kind {
        Kind::Conflict
    }

    fn hint(&self) -> Option<String> {
        Some(
            "try it again in a moment; `pvc task list` shows the renaming, and `pvc task cancel` \
             takes it back"
                .to_owned(),
        )
    }
}

pub(crate) fn check_not_being_renamed(
    cluster: &Cluster,
    vm: &VmRecord,
) -> Result<(), BeingRenamed> {
    match being_renamed_to(cluster, vm.uuid) {
        None => Ok(()),
        Some(to) => Err(BeingRenamed { vm: vm.name.clone(), to: to.to_owned() }),
    }
}

/// The VM by name or UUID.
pub(crate) fn find_vm<'a>(cluster: &'a Cluster, vm: &str) -> Result<&'a Arc<VmRecord>, NoVm> {
    cluster.vm(vm).ok_or_else(|| NoVm { vm: shown(vm) })
}

/// Returns the node whose worker does what is to be done to a VM where it is.
///
/// # Errors
/// There is none, or it has no record: nobody might ever do it.
pub(crate) fn node_of(cluster: &Cluster, vm: &VmRecord) -> Result<NodeName, Homeless> {
    let name = || vm.name.clone();
    match &vm.node {
        None => Err(Homeless::Unassigned { vm: name() }),
        Some(node) if !cluster.nodes.contains_key(node) => {
            Err(Homeless::NoRecord { vm: name(), node: node.clone() })
        }
        Some(node) => Ok(node.clone()),
    }
}

pub(crate) fn find_node<'a>(
    cluster: &'a Cluster,
    node: &str,
) -> Result<&'a Arc<NodeRecord>, NoNode> {
    cluster.node(node).ok_or_else(|| NoNode { node: shown(node) })
}
