//! Nodes in numbers.

use pvc_model::cluster::Cluster;
use pvc_model::node::NodeRecord;

use super::page::Page;
use crate::view::node::interfaces;
use crate::view::status::percent;

/// The traffic of all network cards of a node, or of several.
#[derive(Debug, Clone, Copy, Default)]
pub struct Traffic {
    rx_bps: f64,
    tx_bps: f64,
    rx_pps: f64,
    tx_pps: f64,
    /// Bits per second in one direction.
    capacity: f64,
}

impl Traffic {
    pub fn of(node: &NodeRecord) -> Self {
        let cards = interfaces(node);
        let sum = |figure: fn(&pvc_api_types::Interface) -> f64| cards.values().map(figure).sum();
        Traffic {
            rx_bps: sum(|card| card.rx_bps),
            tx_bps: sum(|card| card.tx_bps),
            rx_pps: sum(|card| card.rx_pps),
            tx_pps: sum(|card| card.tx_pps),
            capacity: sum(|card| card.link_speed),
        }
    }

    pub fn plus(self, other: Traffic) -> Traffic {
        Traffic {
            rx_bps: self.rx_bps + other.rx_bps,
            tx_bps: self.tx_bps + other.tx_bps,
            rx_pps: self.rx_pps + other.rx_pps,
            tx_pps: self.tx_pps + other.tx_pps,
            capacity: self.capacity + other.capacity,
        }
    }

    /// Percent of what the cards can carry in both directions.
    pub fn utilization(self) -> f64 {
        percent(self.rx_bps + self.tx_bps, 2.0 * self.capacity)
    }
}

type Figure = (&'static str, &'static str, fn(&NodeRecord) -> f64);

const FIGURES: [Figure; 17] = [
    ("host_cpus", "host CPUs", |node| node.cpus.into()),
    ("allocated_vcpus", "allocated vCPUs", |node| node.figures.vcpus_allocated as f64),
    ("load_average", "load average of one minute", |node| node.figures.load),
    ("cpu_utilization", "CPU utilization in percent", |node| {
        percent(node.figures.load, node.cpus.into())
    }),
    ("domains_count", "running guests", |node| node.figures.domains as f64),
    ("network_traffic_rx", "received bits per second", |node| Traffic::of(node).rx_bps),
    ("network_traffic_tx", "sent bits per second", |node| Traffic::of(node).tx_bps),
    ("network_packets_rx", "received packets per second", |node| Traffic::of(node).rx_pps),
    ("network_packets_tx", "sent packets per second", |node| Traffic::of(node).tx_pps),
    ("network_utilization", "network utilization in percent", |node| {
        Traffic::of(node).utilization()
    }),
    ("total_memory", "memory in MiB", |node| node.figures.memory_total_mib as f64),
    ("allocated_memory", "memory of running VMs in MiB", |node| {
        node.figures.memory_allocated_mib as f64
    }),
    ("allocated_memory_utilization", "memory of running VMs in percent", |node| {
        of_memory(node, node.figures.memory_allocated_mib)
    }),
    ("provisioned_memory", "memory of assigned VMs in MiB", |node| {
        node.figures.memory_provisioned_mib as f64
    }),
    ("provisioned_memory_utilization", "memory of assigned VMs in percent", |node| {
        of_memory(node, node.figures.memory_provisioned_mib)
    }),
    ("used_memory", "used memory in MiB", |node| node.figures.memory_used_mib as f64),
    ("used_memory_utilization", "used memory in percent", |node| {
        of_memory(node, node.figures.memory_used_mib)
    }),
];

fn of_memory(node: &NodeRecord, part: u64) -> f64 {
    percent(part as f64, node.figures.memory_total_mib as f64)
}

pub fn nodes(page: &mut Page, cluster: &Cluster) {
    let nodes = || cluster.nodes.values();
    let free: Figure =
        ("free_memory", "free memory in MiB", |node| node.figures.memory_free_mib as f64);
    for (name, help, figure) in FIGURES.into_iter().chain([free]) {
        page.gauge(&format!("pvc_node_{name}"), format!("PVC node {help}"), |samples| {
            nodes().for_each(|node| samples.add(&[("node", node.name.as_str())], figure(node)));
        });
    }
    page.gauge("pvc_node_architecture", "PVC node architecture", |samples| {
        nodes().for_each(|node| {
            samples.info(&[("node", node.name.as_str()), ("architecture", &node.arch)])
        });
    });
    page.gauge("pvc_node_kernel", "PVC node kernel version", |samples| {
        nodes().for_each(|node| {
            samples.info(&[("node", node.name.as_str()), ("kernel", &node.kernel)])
        });
    });
}
