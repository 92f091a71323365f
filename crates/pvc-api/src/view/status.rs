//! The cluster at a glance.

use std::collections::BTreeMap;

use pvc_api_types as api;
use pvc_model::cluster::Cluster;
use pvc_model::fault::FaultRecord;
use pvc_model::node::{DaemonState, DomainState, NodeRecord};
use pvc_model::vm::VmState;

use super::node::{count, health};
use super::storage::object;
use super::{fault, vm};

pub fn status(cluster: &Cluster) -> api::ClusterStatus {
    let osds = osds(cluster);
    api::ClusterStatus {
        cluster_name: cluster.config.name.clone(),
        cluster_health: cluster_health(cluster),
        node_health: cluster
            .nodes
            .iter()
            .map(|(name, node)| (name.to_string(), node_health(node)))
            .collect(),
        maintenance: cluster.config.maintenance.to_string(),
        primary_node: cluster.config.primary.as_ref().map_or("none".into(), ToString::to_string),
        pvc_version: cluster
            .primary()
            .map(|node| node.pvc_version.clone())
            .filter(|version| !version.is_empty()),
        upstream_ip: cluster.config.upstream_ip.clone(),
        nodes: node_counts(cluster),
        vms: vm_counts(cluster),
        networks: length(cluster.networks.len()),
        osds: osd_counts(&osds),
        pools: length(cluster.pools.len()),
        volumes: length(cluster.volumes.len()),
        snapshots: length(cluster.volumes.values().map(|volume| volume.snapshots.len()).sum()),
        resources: resources(cluster, &osds),
        detail: detail(cluster, &osds),
    }
}

fn length(number: usize) -> u64 {
    number as u64
}

/// The sum of figures that are as somebody has recorded them.
fn sum(figures: impl Iterator<Item = i64>) -> i64 {
    figures.fold(0, i64::saturating_add)
}

/// 100 less what every fault takes that nobody has acknowledged, 100 at most, the worst and latest
/// first; 0 as long as there is no cluster.
pub fn cluster_health(cluster: &Cluster) -> api::ClusterHealth {
    if let Some(text) = nothing_yet(cluster) {
        let nothing = api::HealthMessage {
            id: "NO_CLUSTER".to_owned(),
            health_delta: 100,
            text: text.to_owned(),
        };
        return api::ClusterHealth { health: api::Health::Percent(0), messages: vec![nothing] };
    }
    let mut faults: Vec<&FaultRecord> =
        cluster.faults.values().map(AsRef::as_ref).filter(|fault| !fault.acknowledged).collect();
    faults.sort_by_key(|fault| std::cmp::Reverse((fault.delta, &fault.last_reported)));
    let lost = sum(faults.iter().map(|fault| fault.delta.clamp(0, 100)));
    api::ClusterHealth {
        health: api::Health::Percent((100 - lost).max(0)),
        messages: faults
            .iter()
            .map(|fault| api::HealthMessage {
                id: fault.id.clone(),
                health_delta: fault.delta,
                text: fault.message.clone(),
            })
            .collect(),
    }
}

/// Parts that are missing of a cluster, and what begins one.
fn nothing_yet(cluster: &Cluster) -> Option<&'static str> {
    if cluster.config.schema.is_none() {
        return Some("there is no cluster yet: `pvc cluster init` begins one");
    }
    let nobody = cluster.nodes.is_empty();
    nobody.then_some(
        "no node has joined the cluster yet: start the node daemon of the first one \
         (pvcnoded.service)",
    )
}

fn node_health(node: &NodeRecord) -> api::NodeHealth {
    let lowering = node.plugins.iter().filter(|plugin| plugin.health_delta != 0);
    api::NodeHealth {
        health: health(node),
        messages: lowering.map(|plugin| format!("'{}': {}", plugin.name, plugin.message)).collect(),
    }
}

fn node_counts(cluster: &Cluster) -> api::StateCounts {
    let mut by_state = BTreeMap::new();
    for node in cluster.nodes.values().filter(|node| is_counted(node)) {
        *by_state.entry(format!("{},{}", node.daemon_state, node.domain_state)).or_default() += 1;
    }
    api::StateCounts { total: length(cluster.nodes.len()), by_state }
}

/// Whether clients know the combination of its states.
fn is_counted(node: &NodeRecord) -> bool {
    let known = !matches!(node.daemon_state, DaemonState::Unknown(_));
    match node.domain_state {
        DomainState::Unknown(_) => false,
        DomainState::FenceFlush => node.daemon_state == DaemonState::Dead,
        _ => known,
    }
}

fn vm_counts(cluster: &Cluster) -> api::StateCounts {
    let mut by_state: BTreeMap<String, u64> = BTreeMap::new();
    for record in cluster.vms.values() {
        if !matches!(record.state, VmState::MigrateLive | VmState::Delete) {
            *by_state.entry(vm::state(record)).or_default() += 1;
        }
    }
    api::StateCounts { total: length(cluster.vms.len()), by_state }
}

/// State of an OSD, as clients are told. Before its first statistics everything is 0.
pub struct Osd {
    pub id: String,
    pub up: bool,
    pub is_in: bool,
    pub kb: i64,
    pub kb_used: i64,
    pub kb_avail: i64,
    pub utilization: f64,
}

pub fn osds(cluster: &Cluster) -> Vec<Osd> {
    let osd = |record: &std::sync::Arc<pvc_model::storage::OsdRecord>| {
        let stats = object(&record.stats);
        let number =
            |name: &str| stats.get(name).and_then(serde_json::Value::as_f64).unwrap_or_default();
        Osd {
            id: record.id.clone(),
            up: number("up") == 1.0,
            is_in: number("in") == 1.0,
            kb: number("kb") as i64,
            kb_used: number("kb_used") as i64,
            kb_avail: number("kb_avail") as i64,
            utilization: number("utilization"),
        }
    };
    let mut osds: Vec<Osd> = cluster.osds.values().map(osd).collect();
    osds.sort_by_key(|osd| (osd.id.parse::<u64>().unwrap_or(u64::MAX), osd.id.clone()));
    osds
}

impl Osd {
    pub fn up_word(&self) -> &'static str {
        if self.up { "up" } else { "down" }
    }

    pub fn in_word(&self) -> &'static str {
        if self.is_in { "in" } else { "out" }
    }
}

fn osd_counts(osds: &[Osd]) -> api::StateCounts {
    let mut by_state = BTreeMap::new();
    for osd in osds {
        *by_state.entry(format!("{},{}", osd.up_word(), osd.in_word())).or_default() += 1;
    }
    api::StateCounts { total: length(osds.len()), by_state }
}

fn resources(cluster: &Cluster, osds: &[Osd]) -> api::Resources {
    let sum = |figure: fn(&NodeRecord) -> u64| {
        sum(cluster.nodes.values().map(|node| count(figure(node))))
    };
    let memory_total = sum(|node| node.figures.memory_total_mib);
    let memory_used = sum(|node| node.figures.memory_used_mib);
    let cpus = sum(|node| node.cpus.into());
    let load: f64 = cluster.nodes.values().map(|node| node.figures.load).sum();
    api::Resources {
        memory: api::MemoryUse {
            total: memory_total,
            free: sum(|node| node.figures.memory_free_mib),
            used: memory_used,
            allocated: sum(|node| node.figures.memory_allocated_mib),
            provisioned: sum(|node| node.figures.memory_provisioned_mib),
            utilization: percent(memory_used as f64, memory_total as f64),
        },
        cpu: api::CpuUse {
            total: cpus,
            load: hundredths(load),
            allocated: sum(|node| node.figures.vcpus_allocated),
            utilization: percent(load, cpus as f64),
        },
        disk: disk_use(cluster, osds),
    }
}

/// Bytes that the OSDs hold; on one machine without OSDs, what the pools hold.
pub fn disk_use(cluster: &Cluster, osds: &[Osd]) -> api::DiskUse {
    if osds.is_empty() {
        return pool_use(cluster);
    }
    let mean = osds.iter().map(|osd| osd.utilization).sum::<f64>() / osds.len() as f64;
    api::DiskUse {
        total: sum(osds.iter().map(|osd| osd.kb)),
        used: sum(osds.iter().map(|osd| osd.kb_used)),
        free: sum(osds.iter().map(|osd| osd.kb_avail)),
        utilization: hundredths(mean),
    }
}

/// Bytes that the pools hold, by their own figures. Pools of one disk have the same free space,
/// counted once.
fn pool_use(cluster: &Cluster) -> api::DiskUse {
    let stats: Vec<_> = cluster.pools.values().map(|pool| object(&pool.stats)).collect();
    let figure = |name: &'static str| {
        stats.iter().map(move |stats| {
            stats.get(name).and_then(serde_json::Value::as_i64).unwrap_or_default() / 1024
        })
    };
    let used = sum(figure("used_bytes"));
    let free: i64 = figure("free_bytes").max().unwrap_or_default();
    api::DiskUse {
        total: used.saturating_add(free),
        used,
        free,
        utilization: percent(used as f64, used as f64 + free as f64),
    }
}

/// Percent with two decimals; 0 of nothing.
pub fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { hundredths(part / whole * 100.0) } else { 0.0 }
}

fn hundredths(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

fn detail(cluster: &Cluster, osds: &[Osd]) -> api::StatusDetail {
    let mut faults: Vec<api::Fault> =
        cluster.faults.values().map(|record| fault::fault(record)).collect();
    faults.sort_by(|a, b| b.last_reported.cmp(&a.last_reported));
    let mut vms: Vec<api::StatusVm> = cluster
        .vms
        .values()
        .map(|record| api::StatusVm {
            uuid: record.uuid.to_string(),
            name: record.name.clone(),
            state: vm::state(record),
        })
        .collect();
    vms.sort_by(|a, b| a.name.cmp(&b.name));
    let node = |node: &std::sync::Arc<NodeRecord>| api::StatusNode {
        name: node.name.to_string(),
        daemon_state: node.daemon_state.to_string(),
        domain_state: node.domain_state.to_string(),
    };
    let osd = |osd: &Osd| api::StatusOsd {
        id: osd.id.clone(),
        up: osd.up_word().into(),
        is_in: osd.in_word().into(),
    };
    api::StatusDetail {
        node: cluster.nodes.values().map(node).collect(),
        vm: vms,
        osd: osds.iter().map(osd).collect(),
        faults,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pvc_model::storage::{OsdRecord, PoolName, PoolRecord};

    use super::*;

    #[test]
    fn disks_that_say_they_are_larger_than_any_are_added_up_to_the_largest_number() {
        let most = i64::MAX;
        let osd = |id: &str| {
            let stats = format!(r#"{{"kb":{most},"kb_used":{most},"kb_avail":{most}}}"#).into();
            (id.to_owned(), Arc::new(OsdRecord { id: id.into(), stats, ..OsdRecord::default() }))
        };
        let with_osds =
            Cluster { osds: ["0", "1"].map(osd).into_iter().collect(), ..Cluster::default() };
        let disk = disk_use(&with_osds, &osds(&with_osds));
        assert_eq!((disk.total, disk.used, disk.free), (i64::MAX, i64::MAX, i64::MAX));
        // In KiB a pool says no more than a 1024th of the largest number.
        let pool = |number: u32| {
            let name = PoolName::new(format!("pool{number}"));
            let stats = format!(r#"{{"used_bytes":{most},"free_bytes":{most}}}"#).into();
            let (pgs, tier) = (String::new(), String::new());
            let record = PoolRecord { name: name.clone(), pgs, tier, stats };
            (name, Arc::new(record))
        };
        let with_pools = Cluster { pools: (0..1_500).map(pool).collect(), ..Cluster::default() };
        let disk = disk_use(&with_pools, &[]);
        assert_eq!((disk.total, disk.used), (i64::MAX, i64::MAX));
    }
}
