//! The figures of a node, and the JSON texts that legacy peers and the API read. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::domain::{Disk, DiskSource, DomainSummary, Nic, NicKind};
use pvc_model::node::NodeFigures;
use pvc_model::vm::VmRecord;
use pvc_model::{NodeName, Uuid};
use pvc_ports::{AgentAddress, GuestStats, HostLoad, InterfaceCounters};
use serde_json::{Map, Value, json};

use crate::shared::Guests;

/// The node's figures: memory and load as measured, and what its VMs were given. Of a guest that is
/// what it may have: what its balloon has left is the guest's own word, and VMs are placed by this.
pub(crate) fn node_figures(
    node: &NodeName,
    cluster: &Cluster,
    guests: &Guests,
    stats: &BTreeMap<Uuid, GuestStats>,
    load: &HostLoad,
) -> NodeFigures {
    let mut allocated = 0;
    let mut vcpus = 0;
    for uuid in guests.known.keys() {
        let record = cluster.vms.get(uuid);
        match stats.get(uuid) {
            Some(live) => {
                allocated += live.max_memory_kib / 1024;
                vcpus += u64::from(live.vcpus);
            }
            None => {
                allocated += record.map_or(0, |vm| vm.memory_mib());
                vcpus +=
                    record.and_then(|vm| vm.domain.as_ref().ok()).map_or(0, |d| u64::from(d.vcpus));
            }
        }
    }
    let is_off_here = |vm: &&std::sync::Arc<VmRecord>| {
        vm.is_assigned_to(node) && !guests.known.contains_key(&vm.uuid)
    };
    let off: u64 = cluster.vms.values().filter(is_off_here).map(|vm| vm.memory_mib()).sum();
    NodeFigures {
        memory_total_mib: load.memory_total_mib,
        memory_used_mib: load.memory_used_mib,
        memory_free_mib: load.memory_free_mib,
        memory_allocated_mib: allocated,
        memory_provisioned_mib: allocated + off,
        vcpus_allocated: vcpus,
        load: load.load,
        domains: guests.total,
    }
}

/// A VM's statistics as JSON text. Disks go by the volume or file that the record names, networks
/// by their bridge: that is what readers match them with.
pub(crate) fn vm_stats_json(
    stats: &GuestStats,
    recorded: &DomainSummary,
    live: Option<&DomainSummary>,
    said: &[AgentAddress],
) -> String {
    let disks: Vec<Value> = stats
        .disks
        .iter()
        .map(|(target, counters)| disk_json(target, counters, recorded, live))
        .collect();
    let nets: Vec<Value> = live
        .map(|live| {
            live.nics.iter().filter_map(|nic| {
                let NicKind::Bridge(bridge) = &nic.kind else { return None };
                let device = nic.target.as_ref()?;
                Some(net_json(device, bridge, stats.interfaces.get(device)?))
            })
        })
        .into_iter()
        .flatten()
        .collect();
    let cpu: Map<_, _> = ["cpu_time", "user_time", "system_time"]
        .map(|name| (name.to_owned(), json!(stats.cpu.get(name).copied().unwrap_or(0))))
        .into_iter()
        .collect();
    let mut all = json!({
        "state": "RUNNING",
        "maxmem": stats.max_memory_kib,
        "livemem": stats.memory_kib,
        "cpus": stats.vcpus,
        "cputime": stats.cpu_time_ns,
        "mem_stats": stats.memory,
        "cpu_stats": cpu,
        "disk_stats": disks,
        "net_stats": nets,
    });
    let addresses = by_card(said, recorded);
    if !addresses.is_empty() {
        all["addresses"] = json!(addresses);
    }
    all.to_string()
}

/// The most addresses of a network card that are recorded.
const MOST_ADDRESSES: usize = 8;

/// Addresses of the network cards that the record has, by their MAC addresses, as the agent says.
fn by_card(said: &[AgentAddress], recorded: &DomainSummary) -> BTreeMap<String, Vec<String>> {
    let card = |nic: &Nic| {
        let mac = nic.mac.to_ascii_lowercase();
        let own = said.iter().filter(|said| said.mac == mac).take(MOST_ADDRESSES);
        let addresses: Vec<String> = own.map(|said| said.address.to_string()).collect();
        (!addresses.is_empty()).then_some((mac, addresses))
    };
    recorded.nics.iter().filter_map(card).collect()
}

fn disk_json(
    target: &str,
    counters: &BTreeMap<String, i64>,
    recorded: &DomainSummary,
    live: Option<&DomainSummary>,
) -> Value {
    let find = |summary: &DomainSummary| {
        summary.disks.iter().find(|disk| disk.target == target).map(disk_name)
    };
    let name = find(recorded).or_else(|| live.and_then(find)).unwrap_or_else(|| target.to_owned());
    let mut disk = Map::from_iter([("name".to_owned(), json!(name))]);
    for counter in ["rd_req", "rd_bytes", "wr_req", "wr_bytes", "err"] {
        disk.insert(counter.to_owned(), json!(counters.get(counter).copied().unwrap_or(0)));
    }
    Value::Object(disk)
}

fn disk_name(disk: &Disk) -> String {
    match &disk.source {
        DiskSource::Volume(volume) => volume.to_string(),
        DiskSource::File(path) => path.clone(),
        // An empty drive has counters, too.
        DiskSource::Empty | DiskSource::Other(_) => disk.target.clone(),
    }
}

fn net_json(device: &str, bridge: &str, counters: &BTreeMap<String, i64>) -> Value {
    let mut net =
        Map::from_iter([("name".to_owned(), json!(device)), ("bridge".to_owned(), json!(bridge))]);
    let names = [
        "rd_bytes",
        "rd_packets",
        "rd_errors",
        "rd_drops",
        "wr_bytes",
        "wr_packets",
        "wr_errors",
        "wr_drops",
    ];
    for counter in names {
        net.insert(counter.to_owned(), json!(counters.get(counter).copied().unwrap_or(0)));
    }
    Value::Object(net)
}

/// Counters of the physical interfaces at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    pub at: Duration,
    pub interfaces: Vec<InterfaceCounters>,
}

/// Rates between two samples as JSON text: bits and packets per second by interface. An interface
/// that is new, or whose counters went back, has a rate of 0 for once.
pub(crate) fn network_stats_json(before: &Sample, after: &Sample) -> String {
    let seconds = after.at.saturating_sub(before.at).as_secs_f64();
    let rate = |old: u64, new: u64| match seconds > 0.0 {
        true => (new.saturating_sub(old) as f64 / seconds).round() as u64,
        false => 0,
    };
    let mut all = Map::new();
    for new in &after.interfaces {
        let old = before.interfaces.iter().find(|old| old.name == new.name).unwrap_or(new);
        let (rx_bps, tx_bps) =
            (rate(old.rx_bytes, new.rx_bytes) * 8, rate(old.tx_bytes, new.tx_bytes) * 8);
        let (rx_pps, tx_pps) =
            (rate(old.rx_packets, new.rx_packets), rate(old.tx_packets, new.tx_packets));
        let stats = json!({
            "rx_bps": rx_bps,
            "rx_pps": rx_pps,
            "tx_bps": tx_bps,
            "tx_pps": tx_pps,
            "total_bps": rx_bps + tx_bps,
            "total_pps": rx_pps + tx_pps,
            "link_speed": new.speed_mbit.unwrap_or(0).saturating_mul(1_000_000),
            "state": new.state,
        });
        all.insert(new.name.clone(), stats);
    }
    Value::Object(all).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::shared::GuestFacts;

    fn interface(name: &str, bytes: u64, packets: u64) -> InterfaceCounters {
        InterfaceCounters {
            name: name.to_owned(),
            rx_bytes: bytes,
            rx_packets: packets,
            tx_bytes: bytes / 2,
            tx_packets: packets / 2,
            speed_mbit: (name == "eth0").then_some(10_000),
            state: if name == "eth0" { "up" } else { "unknown" }.to_owned(),
        }
    }

    #[test]
    fn a_guest_does_not_say_itself_how_much_memory_it_was_given() {
        let facts = GuestFacts { instance: 1, name: "web".to_owned(), live: None, console: None };
        let uuids = [Uuid::from_u128(1), Uuid::from_u128(2)];
        let known = uuids.map(|uuid| (uuid, facts.clone())).into();
        let guests = Guests { known, total: 2, ..Guests::default() };
        let says = |memory_kib| GuestStats {
            max_memory_kib: 2 << 20,
            memory_kib,
            ..GuestStats::default()
        };
        let stats = BTreeMap::from([(uuids[0], says(u64::MAX)), (uuids[1], says(0))]);
        let load = HostLoad {
            memory_total_mib: 8192,
            memory_used_mib: 0,
            memory_free_mib: 8192,
            load: 0.0,
        };
        let node = NodeName::new("hv1");
        let found = node_figures(&node, &Cluster::default(), &guests, &stats, &load);
        assert_eq!((found.memory_allocated_mib, found.memory_provisioned_mib), (4096, 4096));
    }

    #[test]
    fn rates_are_bits_and_packets_per_second_and_never_negative() {
        let before = Sample {
            at: Duration::from_secs(10),
            interfaces: vec![interface("eth0", 1000, 10), interface("eth1", 900, 9)],
        };
        let after = Sample {
            at: Duration::from_secs(15),
            interfaces: vec![
                interface("eth0", 6000, 60),
                interface("eth1", 0, 0),
                interface("eth2", 77, 7),
            ],
        };
        let stats: Value = serde_json::from_str(&network_stats_json(&before, &after)).unwrap();
        let expected = json!({"rx_bps": 8000, "rx_pps": 10, "tx_bps": 4000, "tx_pps": 5,
            "total_bps": 12000, "total_pps": 15, "link_speed": 10_000_000_000_u64, "state": "up"});
        assert_eq!(stats["eth0"], expected);
        for quiet in ["eth1", "eth2"] {
            assert_eq!(
                (&stats[quiet]["total_bps"], &stats[quiet]["link_speed"]),
                (&json!(0), &json!(0))
            );
            assert_eq!(stats[quiet]["state"], "unknown");
        }
        assert_eq!(network_stats_json(&after, &after.clone()), network_stats_json(&after, &after));
    }

    #[test]
    fn statistics_go_by_the_names_that_readers_match_with() {
        let xml = |disk: &str, nic: &str| {
            format!(
                "<domain><name>a</name><uuid>00000000-0000-0000-0000-000000000001</uuid>\
                 <memory unit='MiB'>1</memory><vcpu>1</vcpu><os><type arch='x86_64' \
                 machine='pc'>hvm</type></os><devices>\
                 <emulator>/x</emulator>{disk}<disk type='file' device='cdrom'><target dev='sdb' \
                 bus='scsi'/></disk>\
                 <interface type='bridge'><mac address='52:54:00:00:00:01'/><source \
                 bridge='vmbr100'/>{nic}</interface>\
                 <console type='pty'/></devices></domain>"
            )
        };
        let rbd = "<disk type='network'><source protocol='rbd' name='vms/a_sda'/><target dev='sda' \
                   bus='scsi'/></disk>";
        let file = "<disk type='file'><source file='/store/vms/a_sda/disk.raw'/><target dev='sda' \
                    bus='scsi'/></disk>";
        let recorded = pvc_domain::summary(&xml(rbd, "")).unwrap();
        let live = pvc_domain::summary(&xml(file, "<target dev='vnet3'/>")).unwrap();
        let counters = |name: &str, value| BTreeMap::from([(name.to_owned(), value)]);
        let stats = GuestStats {
            max_memory_kib: 2048,
            memory_kib: 1024,
            vcpus: 2,
            cpu_time_ns: 9,
            memory: BTreeMap::from([("rss".to_owned(), 7)]),
            cpu: BTreeMap::from([("cpu_time".to_owned(), 9), ("user_time".to_owned(), 4)]),
            disks: BTreeMap::from([
                ("sda".to_owned(), counters("wr_bytes", 4096)),
                ("sdb".to_owned(), counters("rd_req", 1)),
            ]),
            interfaces: BTreeMap::from([("vnet3".to_owned(), counters("rd_drops", 2))]),
        };
        let json: Value =
            serde_json::from_str(&vm_stats_json(&stats, &recorded, Some(&live), &[])).unwrap();
        let expected = json!({
            "state": "RUNNING", "maxmem": 2048, "livemem": 1024, "cpus": 2, "cputime": 9,
            "mem_stats": {"rss": 7},
            "cpu_stats": {"cpu_time": 9, "user_time": 4, "system_time": 0},
            "disk_stats": [
                {"name": "vms/a_sda", "rd_req": 0, "rd_bytes": 0, "wr_req": 0, "wr_bytes": 4096,
                    "err": 0},
                {"name": "sdb", "rd_req": 1, "rd_bytes": 0, "wr_req": 0, "wr_bytes": 0, "err": 0},
            ],
            "net_stats": [{"name": "vnet3", "bridge": "vmbr100", "rd_bytes": 0, "rd_packets": 0,
                "rd_errors": 0, "rd_drops": 2, "wr_bytes": 0, "wr_packets": 0, "wr_errors": 0,
                "wr_drops": 0}],
        });
        assert_eq!(json, expected);

        // An agent is believed nothing about cards that the VM has not, nor any number of them.
        let says = |mac: &str, last: u8| AgentAddress {
            mac: mac.to_owned(),
            address: std::net::IpAddr::from([10, 0, 0, last]),
        };
        let said: Vec<AgentAddress> = [says("52:54:00:00:00:02", 1)]
            .into_iter()
            .chain((2..100).map(|last| says("52:54:00:00:00:01", last)))
            .collect();
        let json: Value =
            serde_json::from_str(&vm_stats_json(&stats, &recorded, Some(&live), &said)).unwrap();
        let addresses: Vec<String> = (2..10).map(|last| format!("10.0.0.{last}")).collect();
        assert_eq!(json["addresses"], json!({"52:54:00:00:00:01": addresses}));
    }
}
