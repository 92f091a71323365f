//! State of the cluster, in numbers.

use std::collections::BTreeMap;

use pvc_api_types::ClusterStatus;
use pvc_model::cluster::Cluster;
use pvc_model::node::{DaemonState, DomainState};

use super::page::Page;
use super::vm::STATES;
use crate::view::status;

pub fn health(cluster: &Cluster) -> String {
    let now = status::status(cluster);
    let mut page = Page::default();
    overall(&mut page, &now);
    states(&mut page, cluster, &now);
    counts(&mut page, &now);
    page.finish()
}

fn overall(page: &mut Page, now: &ClusterStatus) {
    page.gauge("pvc_info", "PVC cluster information", |samples| {
        let version = now.pvc_version.as_deref().unwrap_or_default();
        samples.info(&[
            ("primary_node", &now.primary_node),
            ("version", version),
            ("upstream_ip", &now.upstream_ip),
        ]);
    });
    let maintenance = if now.maintenance == "true" { 1.0 } else { 0.0 };
    page.figure("pvc_cluster_maintenance", "PVC cluster maintenance state", maintenance);
    let health = now.cluster_health.health.percent().unwrap_or_default();
    page.figure("pvc_cluster_health", "PVC cluster health in percent", health as f64);
    page.gauge("pvc_cluster_faults", "PVC cluster faults by status", |samples| {
        for status in ["new", "ack"] {
            let number = now.detail.faults.iter().filter(|fault| fault.status == status).count();
            samples.add(&[("status", status)], number as f64);
        }
    });
    page.gauge("pvc_node_health", "PVC node health in percent", |samples| {
        for (node, health) in &now.node_health {
            // A node of which nobody knows anything has no sample: 0 would raise an alarm.
            if let Some(percent) = health.health.percent() {
                samples.add(&[("node", node)], percent as f64);
            }
        }
    });
}

fn states(page: &mut Page, cluster: &Cluster, now: &ClusterStatus) {
    let daemons = cluster.nodes.values().map(|node| node.daemon_state.as_str());
    let known = DaemonState::ALL.iter().map(DaemonState::as_str);
    by_state(page, "pvc_node_daemon_states", "PVC node daemon states", known, daemons);
    let domains = cluster.nodes.values().map(|node| node.domain_state.as_str());
    let known = DomainState::ALL.iter().map(DomainState::as_str);
    by_state(page, "pvc_node_domain_states", "PVC node domain states", known, domains);
    let vms = now.detail.vm.iter().map(|vm| vm.state.as_str());
    by_state(page, "pvc_vm_states", "PVC VM states", STATES.iter().map(|(state, _)| *state), vms);
    let up = now.detail.osd.iter().map(|osd| osd.up.as_str());
    by_state(page, "pvc_ceph_osd_up_states", "PVC OSD up states", ["up", "down"].into_iter(), up);
    let is_in = now.detail.osd.iter().map(|osd| osd.is_in.as_str());
    by_state(page, "pvc_ceph_osd_in_states", "PVC OSD in states", ["in", "out"].into_iter(), is_in);
}

/// Number of those in each known state, also where that is none.
fn by_state<'a>(
    page: &mut Page,
    name: &str,
    help: &str,
    known: impl Iterator<Item = &'static str>,
    found: impl Iterator<Item = &'a str>,
) {
    let mut numbers: BTreeMap<&str, u64> = BTreeMap::new();
    found.for_each(|state| *numbers.entry(state).or_default() += 1);
    page.gauge(name, help, |samples| {
        for state in known {
            samples
                .add(&[("state", state)], numbers.get(state).copied().unwrap_or_default() as f64);
        }
    });
}

fn counts(page: &mut Page, now: &ClusterStatus) {
    let counts = [
        ("pvc_nodes", "PVC nodes", now.nodes.total),
        ("pvc_vms", "PVC VMs", now.vms.total),
        ("pvc_osds", "PVC OSDs", now.osds.total),
        ("pvc_networks", "PVC networks", now.networks),
        ("pvc_pools", "PVC storage pools", now.pools),
        ("pvc_volumes", "PVC storage volumes", now.volumes),
        ("pvc_snapshots", "PVC storage snapshots", now.snapshots),
    ];
    for (name, help, number) in counts {
        page.figure(name, help, number as f64);
    }
}
