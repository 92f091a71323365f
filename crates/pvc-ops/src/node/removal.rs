//! Removes the record of a node that is gone for good.

use std::collections::BTreeSet;
use std::sync::Arc;

use pvc_model::NodeName;
use pvc_model::cluster::Cluster;
use pvc_model::fence::WATCH;
use pvc_model::node::NodeRecord;
use pvc_model::node::removal::{self, References, failure_of_removed};
use pvc_ports::Clock;
use pvc_store::{Change, ChangeError, Changes, Expect, Store, VmChange};

use super::{NodeRefusal, Watched, checked};
use crate::refusal::find_node;

/// Request to remove a node.
#[derive(Debug, Clone)]
pub struct Removal {
    /// Name of the node, as given.
    pub node: String,
    /// Node whose API was asked.
    pub asked: NodeName,
    /// The coordinators by the configuration of that node.
    pub coordinators: BTreeSet<NodeName>,
}

/// Looks whether a node may be removed, and watches it for [`WATCH`] from then on, but for a dry
/// run: nobody else does. Nothing is changed: whoever drops this takes the request back.
///
/// # Errors
/// Refused if the node may be there, or something else is recorded to be there.
pub async fn watch_for_removal(
    store: &Store,
    clock: &dyn Clock,
    removal: &Removal,
) -> Result<Watched, ChangeError<NodeRefusal>> {
    let before = look(store, clock, removal, None).await?;
    if !store.is_dry() {
        clock.sleep(WATCH).await;
    }
    Ok(Watched(before))
}

/// Removes the record of a node with all that belongs to it, and returns what else named it. VMs
/// forget that they were to return there, faults about it are taken back but for that of its fence,
/// and tasks of it that were cancelled end.
///
/// # Errors
/// Refused if the node may be there, has shown a sign of life since it is
/// [watched](watch_for_removal), or if something else is recorded to be there.
pub async fn remove(
    store: &Store,
    clock: &dyn Clock,
    removal: &Removal,
    Watched(before): &Watched,
) -> Result<References, ChangeError<NodeRefusal>> {
    look(store, clock, removal, Some(before)).await?;
    let now = clock.wall().as_secs();
    store
        .change(|cluster| {
            let record = find_node(cluster, &removal.node)?;
            // It had no session a moment ago, and a daemon that starts writes its state.
            let found = check(cluster, record, before, removal, false, now)?;
            let changes = changes(cluster, record, &found, now);
            Ok((changes, found))
        })
        .await
}

/// Returns the record of a node that may be removed, by a fresh view; one that has shown no sign of
/// life since `before`, if that is given.
async fn look(
    store: &Store,
    clock: &dyn Clock,
    removal: &Removal,
    before: Option<&NodeRecord>,
) -> Result<Arc<NodeRecord>, ChangeError<NodeRefusal>> {
    let check = |seen: &Cluster, record: &NodeRecord, is_announced| {
        let now = clock.wall().as_secs();
        check(seen, record, before.unwrap_or(record), removal, is_announced, now).map(drop)
    };
    checked(store, &removal.node, check).await
}

fn check(
    cluster: &Cluster,
    node: &NodeRecord,
    before: &NodeRecord,
    removal: &Removal,
    is_announced: bool,
    now: u64,
) -> Result<References, NodeRefusal> {
    let Removal { asked, coordinators, .. } = removal;
    let facts = removal::Removal { cluster, node, before, asked, coordinators, is_announced, now };
    Ok(facts.check()?)
}

fn changes(cluster: &Cluster, node: &NodeRecord, found: &References, now: u64) -> Changes {
    let mut changes = Changes::new();
    for (vm, _) in &found.homes {
        // Whoever moves it meanwhile knows of its home.
        changes.expect(Expect::VmState(*vm));
        changes.vm(*vm, VmChange::LastNode(None));
    }
    for job in found.jobs.iter().filter_map(|id| cluster.jobs.get(id)) {
        let ended = job.progress.clone().failed(failure_of_removed(&node.name, job), now);
        changes.push(Change::JobProgress(job.spec.id.clone(), ended));
    }
    for fault in &found.faults {
        changes.push(Change::RemoveFault(fault.clone()));
    }
    changes.push(Change::RemoveNode(node.name.clone()));
    // Nobody gives it a VM or the primary role meanwhile.
    changes.expect(Expect::Primary).expect(Expect::VmNames).expect(Expect::Placements);
    changes
}
