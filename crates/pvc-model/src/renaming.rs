//! A VM that is getting another name, noted for as long as its volumes and its record may disagree.

use std::collections::BTreeMap;

use crate::cluster::Cluster;
use crate::node::DaemonState;
use crate::storage::VolumeId;
use crate::{NodeName, Uuid};

/// What has to be known to take a renaming back that was left half way.
///
/// The note is written before the first volume gets its new name and removed together with the
/// change of the record. While it is there the record has the old names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renaming {
    pub vm: Uuid,
    pub from: String,
    pub to: String,
    /// The VM's node: its worker can reach the volumes.
    pub node: Option<NodeName>,
    /// The volumes by their old and new names.
    pub volumes: BTreeMap<VolumeId, VolumeId>,
    /// Whether somebody else took it over to take it back: whoever began it must not finish it.
    pub taken_back: bool,
    /// Whether a living process works on it. Goes with the session of that process.
    pub held: bool,
}

/// The renamings that nobody works on any more and that the worker of `node` is to take back: those
/// of its VMs, and on the primary those whose node does not run.
pub fn abandoned<'a>(
    cluster: &'a Cluster,
    node: &'a NodeName,
) -> impl Iterator<Item = &'a Renaming> {
    let is_primary = cluster.config.primary.as_ref() == Some(node);
    let is_ours = move |home: Option<&NodeName>| {
        let runs = |home: &NodeName| {
            cluster.node(home.as_str()).is_some_and(|home| home.daemon_state == DaemonState::Run)
        };
        home == Some(node) || (is_primary && !home.is_some_and(runs))
    };
    let left = cluster.renamings.values().filter(|renaming| !renaming.held);
    left.map(AsRef::as_ref).filter(move |renaming| is_ours(renaming.node.as_ref()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn renaming(vm: u128, node: Option<&str>, held: bool) -> Renaming {
        Renaming {
            vm: Uuid::from_u128(vm),
            from: "web1".into(),
            to: "shop".into(),
            node: node.map(NodeName::new),
            volumes: BTreeMap::new(),
            taken_back: false,
            held,
        }
    }

    #[test]
    fn a_renaming_that_nobody_holds_is_taken_back_by_its_node_or_the_primary() {
        let renamings = [
            renaming(1, Some("hv1"), false),
            renaming(2, Some("hv1"), true),
            renaming(3, None, false),
        ];
        let renamings =
            renamings.into_iter().map(|renaming| (renaming.vm, Arc::new(renaming))).collect();
        let mut cluster = Cluster { renamings, ..Cluster::default() };
        let taken = |cluster: &Cluster, node: &str| -> Vec<u128> {
            abandoned(cluster, &node.into()).map(|renaming| renaming.vm.as_u128()).collect()
        };
        assert_eq!((taken(&cluster, "hv1"), taken(&cluster, "hv2")), (vec![1], vec![]));
        cluster.config.primary = Some("hv2".into());
        assert_eq!(taken(&cluster, "hv2"), [1, 3], "hv1 does not run");
    }
}
