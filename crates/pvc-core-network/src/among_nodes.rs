//! Tells of VMs that are plugged into a network between the nodes, as the primary: whoever is in
//! such a guest reaches ZooKeeper, libvirt and Ceph as a node does. New ones are refused; those of
//! an older cluster are there.

use pvc_model::cluster::Cluster;
use pvc_model::listed;
use pvc_role::{Context, REFRESH};
use tokio_util::sync::CancellationToken;

const FAULT: &str = "VMS_ON_CORE_NETWORKS";

/// Number of VMs that are named.
const NAMED: usize = 10;

/// Works until `end`.
pub async fn run(context: Context, end: CancellationToken) {
    let mut turns = context.turns(&end);
    while turns.next(REFRESH).await {
        let view = context.store.view();
        if let Some(message) = message(&view).filter(|_| context.is_named_primary(&view)) {
            context.raise(FAULT, &message).await;
        }
    }
}

/// Describes the VMs; `None` if there are none.
fn message(cluster: &Cluster) -> Option<String> {
    let found: Vec<String> = cluster
        .vms
        .values()
        .filter_map(|vm| {
            let domain = vm.domain.as_ref().ok()?;
            let bridge = domain.nics.iter().find_map(|nic| nic.core_bridge())?;
            Some(format!("{} ({bridge})", vm.name))
        })
        .collect();
    let named = listed(found.iter(), NAMED);
    (!found.is_empty()).then(|| {
        format!(
            "VMs are plugged into a network on which the nodes speak to each other: {named}. \
             Whoever is in such a \
             guest reaches ZooKeeper, libvirt and Ceph as a node does. Give them another network \
             (`pvc vm network \
             remove` and `add`), or acknowledge this if they are trusted like the nodes"
        )
    })
}
