//! Nodes on the wire.

use std::collections::BTreeMap;
use std::time::Duration;

use pvc_api_types as api;
use pvc_model::cluster::Cluster;
use pvc_model::fence::{FenceNote, PowerAfter, power_after};
use pvc_model::flush::{Fate, Wait, waits};
use pvc_model::node::{HypervisorNote, NodeRecord, PluginReport};
use pvc_store::local_time;
use serde_json::{Map, Value};

/// Prediction of a flush.
pub fn flush_plan(name: &str, fates: &[(String, Fate)]) -> api::FlushPlan {
    let step = |(vm, fate): &(String, Fate)| {
        let (action, to, reason) = match fate {
            Fate::Move(to) => ("move", to.to_string(), String::new()),
            Fate::ShutDown(why) => ("shutdown", String::new(), why.to_string()),
            Fate::UnderWay => {
                ("wait", String::new(), "it is on its way, or is being ended or restarted".into())
            }
            Fate::Blocked(why) => ("blocked", String::new(), why.clone()),
        };
        api::FlushStep { name: vm.clone(), action: action.to_owned(), to, reason }
    };
    let count = |is: fn(&Fate) -> bool| fates.iter().filter(|(_, fate)| is(fate)).count();
    let moved = count(|fate| matches!(fate, Fate::Move(_)));
    let shut_down = count(|fate| matches!(fate, Fate::ShutDown(_)));
    let message =
        format!("a flush of node `{name}` would move {moved} VMs and shut down {shut_down}");
    api::FlushPlan { message, name: name.to_owned(), vms: fates.iter().map(step).collect() }
}

/// Everything known about a node.
pub fn node(record: &NodeRecord, cluster: &Cluster) -> api::Node {
    let figures = &record.figures;
    api::Node {
        name: record.name.to_string(),
        daemon_state: record.daemon_state.to_string(),
        coordinator_state: record.coordinator_state.to_string(),
        domain_state: record.domain_state.to_string(),
        pvc_version: record.pvc_version.clone(),
        cpu_count: record.cpus.into(),
        kernel: record.kernel.clone(),
        os: record.os.clone(),
        arch: record.arch.clone(),
        health: health(record),
        health_plugins: record.plugins.iter().map(|plugin| plugin.name.clone()).collect(),
        health_details: record.plugins.iter().map(plugin).collect(),
        load: figures.load,
        domains_count: count(figures.domains),
        running_domains: running(record, cluster),
        vcpu: api::NodeVcpu {
            total: record.cpus.into(),
            allocated: count(figures.vcpus_allocated),
        },
        memory: api::NodeMemory {
            total: count(figures.memory_total_mib),
            allocated: count(figures.memory_allocated_mib),
            provisioned: count(figures.memory_provisioned_mib),
            used: count(figures.memory_used_mib),
            free: count(figures.memory_free_mib),
        },
        interfaces: interfaces(record),
        hypervisor: record.hypervisor.as_ref().map(hypervisor),
        vlans: record.daemon.as_ref().and_then(|note| note.has_vlans),
        fence: record.fence.as_ref().map(|note| fence(note, power_after(record))),
        waits_for: waits_for(record, cluster),
    }
}

/// VMs that a flush or a return under way waits for.
pub fn waits_for(record: &NodeRecord, cluster: &Cluster) -> Vec<api::NodeWait> {
    let wait = |wait: Wait| api::NodeWait {
        name: cluster.vms.get(&wait.vm).map_or_else(|| wait.vm.to_string(), |vm| vm.name.clone()),
        action: wait.kind.as_str().to_owned(),
        reason: wait.why,
        percent: wait.percent.map(i64::from),
    };
    waits(cluster, &record.name).into_iter().map(wait).collect()
}

fn fence(note: &FenceNote, power: Option<PowerAfter>) -> api::NodeFence {
    let time = |seconds: i64| local_time(Duration::from_secs(seconds.try_into().unwrap_or(0)));
    let power = match power {
        Some(PowerAfter::Untouched) => "untouched",
        Some(PowerAfter::Due) => "to be switched on",
        Some(PowerAfter::SwitchedOn) => "switched on",
        None => "on",
    };
    api::NodeFence {
        by: note.by.clone(),
        suspected_at: time(note.suspected_at),
        proven_at: note.proven_at.map(time).unwrap_or_default(),
        proof: note.proof.clone(),
        failed_attempts: note.failed_attempts,
        last_failure: note.last_failure.clone(),
        recovered: note.recovered.clone(),
        stranded: note.stranded.clone(),
        power: power.to_owned(),
    }
}

fn hypervisor(note: &HypervisorNote) -> api::NodeHypervisor {
    api::NodeHypervisor {
        accelerator: note.accelerator.clone(),
        kvm_refused: note.kvm_refused.clone(),
        libvirt_version: note.libvirt_version.clone(),
        qemu_version: note.qemu_version.clone(),
    }
}

/// A count of the record on the wire.
pub fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub fn health(record: &NodeRecord) -> api::Health {
    record.health.map_or_else(api::Health::default, |percent| api::Health::Percent(percent.into()))
}

/// The names of the VMs that it says it runs; the UUID of one without a record.
fn running(record: &NodeRecord, cluster: &Cluster) -> Vec<String> {
    let name = |uuid| cluster.vms.get(uuid).map_or_else(|| uuid.to_string(), |vm| vm.name.clone());
    record.running.iter().map(name).collect()
}

/// The traffic of its network cards; empty if the record is none.
pub fn interfaces(record: &NodeRecord) -> BTreeMap<String, api::Interface> {
    serde_json::from_str(&record.network_stats).unwrap_or_default()
}

fn plugin(report: &PluginReport) -> api::HealthDetail {
    api::HealthDetail {
        name: report.name.clone(),
        last_run: report.last_run,
        health_delta: report.health_delta,
        message: report.message.clone(),
        data: serde_json::from_str::<Map<String, Value>>(&report.data).unwrap_or_default(),
    }
}
