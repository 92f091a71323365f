//! Resources of the cluster and how much of them is used, in numbers.

use pvc_model::cluster::Cluster;
use pvc_model::node::NodeRecord;

use super::node::Traffic;
use super::page::Page;
use super::vm::VmShares;
use super::{node, storage, vm};
use crate::view::status::{self, percent};

/// `known` are the samples of VMs of the last time.
pub fn resource(cluster: &Cluster, known: &mut VmShares) -> String {
    let mut page = Page::default();
    utilization(&mut page, cluster);
    node::nodes(&mut page, cluster);
    vm::vms(&mut page, cluster, known);
    storage::osds(&mut page, cluster);
    storage::pools(&mut page, cluster);
    page.finish()
}

/// The cluster's utilization in percent of what is left when its largest node is lost. A cluster of
/// one node has nothing left then, so nothing is taken away.
fn utilization(page: &mut Page, cluster: &Cluster) {
    let left = |figure: fn(&NodeRecord) -> f64| {
        let figures = cluster.nodes.values().map(|node| figure(node));
        let largest =
            if cluster.nodes.len() > 1 { figures.clone().fold(0.0, f64::max) } else { 0.0 };
        figures.sum::<f64>() - largest
    };
    let sum = |figure: fn(&NodeRecord) -> f64| {
        cluster.nodes.values().map(|node| figure(node)).sum::<f64>()
    };
    let memory = left(|node| node.figures.memory_total_mib as f64);
    let traffic = cluster
        .nodes
        .values()
        .map(|node| Traffic::of(node))
        .fold(Traffic::default(), Traffic::plus);
    let disk = status::disk_use(cluster, &status::osds(cluster));
    let figures = [
        ("cpu", "CPU", percent(sum(|node| node.figures.load), left(|node| node.cpus.into()))),
        ("network", "network", traffic.utilization()),
        (
            "memory_real",
            "used memory",
            percent(sum(|node| node.figures.memory_used_mib as f64), memory),
        ),
        (
            "memory_allocated",
            "allocated memory",
            percent(sum(|node| node.figures.memory_allocated_mib as f64), memory),
        ),
        (
            "memory_provisioned",
            "provisioned memory",
            percent(sum(|node| node.figures.memory_provisioned_mib as f64), memory),
        ),
        ("disk", "disk", disk.utilization),
    ];
    for (name, what, value) in figures {
        let help = format!("PVC cluster {what} utilization in percent");
        page.figure(&format!("pvc_cluster_{name}_utilization"), &help, value);
    }
}
