//! Tells of VMs that are plugged into a network between the nodes, as the primary: whoever is in
//! such a guest reaches ZooKeeper, libvirt and Ceph as a node does. New ones are refused; those of
//! an older cluster are there.

use std::sync::Arc;

use pvc_model::cluster::Cluster;
use tokio_util::sync::CancellationToken;

use crate::faults;
use crate::shared::Shared;

const FAULT: &str = "VMS_ON_CORE_NETWORKS";

/// How many of them are named.
const NAMED: usize = 10;

/// Works until `end`.
pub(crate) async fn run(shared: Arc<Shared>, end: CancellationToken) {
    loop {
        let view = shared.store.view();
        let is_primary = view.config.primary.as_ref() == Some(shared.name());
        if let Some(message) = message(&view).filter(|_| is_primary) {
            faults::raise(&shared, FAULT, &message).await;
        }
        tokio::select! {
            biased;
            () = end.cancelled() => return,
            () = shared.sleep(faults::REFRESH) => {}
        }
    }
}

/// What there is to say of them; `None` if there is none.
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
    let more = found.len().saturating_sub(NAMED);
    let named = found.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!found.is_empty()).then(|| {
        format!(
            "VMs are plugged into a network on which the nodes speak to each other: {named}{more}. \
             Whoever is in such a \
             guest reaches ZooKeeper, libvirt and Ceph as a node does. Give them another network \
             (`pvc vm network \
             remove` and `add`), or acknowledge this if they are trusted like the nodes"
        )
    })
}
