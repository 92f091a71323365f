//! Made-up clusters of any size, from a seed: for benchmarks and tests.

use std::collections::BTreeMap;

use pvc_model::Uuid;
use pvc_ports::SplitMix;

use crate::records::{self, cluster, network, node, vm};
use crate::schema::SCHEMA_VERSION;

/// Size and seed of a made-up cluster.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// The same seed gives the same cluster to the byte.
    pub seed: u64,
    pub nodes: usize,
    pub vms: usize,
    pub networks: usize,
    /// Of every VM.
    pub snapshots: usize,
}

impl Shape {
    /// `vms` VMs on three nodes with a few networks.
    pub fn with_vms(vms: usize) -> Self {
        Shape { seed: 1, nodes: 3, vms, networks: 4, snapshots: 0 }
    }

    /// Every key with its value, as [`Store::load`](crate::Store::load) takes it.
    pub fn dump(&self) -> BTreeMap<String, String> {
        let mut tree: BTreeMap<String, String> =
            records::base().iter().map(|(path, value)| own(path, value)).collect();
        tree.insert(cluster::SCHEMA_VERSION.to_owned(), SCHEMA_VERSION.to_string());
        tree.insert(cluster::NAME.to_owned(), "synthetic".to_owned());
        tree.insert(cluster::PRIMARY.to_owned(), node_name(0));
        tree.insert(cluster::UPSTREAM_IP.to_owned(), "10.0.0.250/24".to_owned());
        tree.insert(cluster::SELECTOR.to_owned(), "mem".to_owned());
        let mut random = SplitMix(self.seed);
        for index in 0..self.networks {
            self.network(&mut tree, index);
        }
        let mut running = vec![Vec::new(); self.nodes.max(1)];
        for index in 0..self.vms {
            self.vm(&mut tree, &mut random, index, &mut running);
        }
        for (index, running) in running.iter().enumerate().take(self.nodes) {
            node(&mut tree, &mut random, index, running);
        }
        tree.insert("/ceph/pools/vms".to_owned(), String::new());
        for (key, value) in [("pgs", "128"), ("tier", "default"), ("stats", POOL_STATS)] {
            tree.insert(format!("/ceph/pools/vms/{key}"), value.to_owned());
        }
        for parent in ["/ceph/volumes/vms", "/ceph/snapshots/vms"] {
            tree.insert(parent.to_owned(), String::new());
        }
        tree
    }

    /// The name of VM `index`.
    pub fn vm_name(index: usize) -> String {
        format!("vm{index:05}")
    }

    fn network(&self, tree: &mut BTreeMap<String, String>, index: usize) {
        let vni = 1000 + index;
        let root = network::root(&vni.to_string());
        tree.insert(root.clone(), format!("network-{vni}"));
        for (key, value) in network::KEYS {
            tree.insert(format!("{root}/{key}"), (*value).to_owned());
        }
        for (key, value) in
            [("nettype", "bridged"), ("ip4_network", "None"), ("ip6_network", "None")]
        {
            tree.insert(format!("{root}/{key}"), value.to_owned());
        }
    }

    fn vm(
        &self,
        tree: &mut BTreeMap<String, String>,
        random: &mut SplitMix,
        index: usize,
        running: &mut [Vec<Uuid>],
    ) {
        let uuid = Uuid::from_u64_pair(random.draw(), random.draw());
        let name = Shape::vm_name(index);
        let home = random.below(running.len() as u64) as usize;
        let starts = random.below(10) > 0;
        if starts {
            running[home].push(uuid);
        }
        let xml = vm_xml(
            &name,
            uuid,
            512 << random.below(4),
            1 + random.below(4),
            1000 + random.below(4),
        );
        let values = [
            ("xml", xml.clone()),
            ("state", if starts { "start" } else { "stop" }.to_owned()),
            ("profile", "None".to_owned()),
            ("stats", if starts { vm_stats(random, &name) } else { String::new() }),
            ("node", node_name(home)),
            ("rbdlist", format!("vms/{name}_sda")),
            ("vnc", format!("127.0.0.1:{}", 5900 + index % 60_000)),
            ("node_autostart", "False".to_owned()),
            ("migration_method", "live".to_owned()),
            ("migration_max_downtime", "300".to_owned()),
            ("node_selector", "mem".to_owned()),
        ];
        let root = vm::root(uuid);
        tree.insert(root.clone(), name.clone());
        for (key, value) in vm::KEYS {
            tree.insert(format!("{root}/{key}"), (*value).to_owned());
        }
        for (key, value) in values {
            tree.insert(format!("{root}/{key}"), value);
        }
        for (key, value) in [("", "daily"), ("/type", "user"), ("/protected", "False")] {
            tree.insert(format!("{root}/tags/daily{key}"), value.to_owned());
        }
        for snapshot in 0..self.snapshots {
            let at = format!("{root}/snapshots/s{snapshot}");
            tree.insert(at.clone(), format!("s{snapshot}"));
            tree.insert(format!("{at}/timestamp"), format!("{}.5", 1_700_000_000 + snapshot));
            tree.insert(format!("{at}/xml"), xml.clone());
            tree.insert(format!("{at}/rbdsnaplist"), format!("vms/{name}_sda@s{snapshot}"));
        }
        for parent in ["volumes", "snapshots"] {
            tree.insert(format!("/ceph/{parent}/vms/{name}_sda"), String::new());
        }
        tree.insert(format!("/ceph/volumes/vms/{name}_sda/stats"), volume_stats(&name));
    }
}

fn own(path: &str, value: &str) -> (String, String) {
    (path.to_owned(), value.to_owned())
}

fn node_name(index: usize) -> String {
    format!("pvchv{}", index + 1)
}

fn node(
    tree: &mut BTreeMap<String, String>,
    random: &mut SplitMix,
    index: usize,
    running: &[Uuid],
) {
    let root = format!("/nodes/{}", node_name(index));
    tree.insert(root.clone(), "coordinator".to_owned());
    for (key, value) in node::KEYS {
        tree.insert(format!("{root}/{key}"), (*value).to_owned());
    }
    let uuids: Vec<String> = running.iter().map(Uuid::to_string).collect();
    let values = [
        ("keepalive", "1700000000".to_owned()),
        ("daemonmode", "coordinator".to_owned()),
        ("activeschema", SCHEMA_VERSION.to_string()),
        ("latestschema", SCHEMA_VERSION.to_string()),
        ("staticdata", "64 6.1.0-28-amd64 GNU/Linux x86_64".to_owned()),
        ("pvcversion", "1.0.3".to_owned()),
        ("runningdomains", uuids.join(" ")),
        ("domainscount", running.len().to_string()),
        ("networkscount", "0".to_owned()),
        ("daemonstate", "run".to_owned()),
        ("routerstate", if index == 0 { "primary" } else { "secondary" }.to_owned()),
        ("domainstate", "ready".to_owned()),
        ("cpuload", format!("{}.25", random.below(32))),
        ("vcpualloc", (running.len() * 2).to_string()),
        ("memtotal", "1048576".to_owned()),
        ("memused", (running.len() * 1024).to_string()),
        ("memfree", 1_048_576_usize.saturating_sub(running.len() * 1024).to_string()),
        ("memalloc", (running.len() * 1024).to_string()),
        ("memprov", (running.len() * 1024).to_string()),
        ("monitoring_health", "100".to_owned()),
        ("network_stats", NETWORK_STATS.to_owned()),
    ];
    for (key, value) in values {
        tree.insert(format!("{root}/{key}"), value);
    }
}

const POOL_STATS: &str = r#"{"id": 1, "stored_bytes": 1099511627776, "free_bytes": 9895604649984, "used_bytes": 3298534883328, "used_percent": 0.1, "num_objects": 262144, "num_object_clones": 0, "num_object_copies": 786432, "num_objects_missing_on_primary": 0, "num_objects_unfound": 0, "num_objects_degraded": 0, "read_ops": 1, "read_bytes": 1, "write_ops": 1, "write_bytes": 1}"#;

const NETWORK_STATS: &str = r#"{"ens1f0": {"rx_bps": 10240, "rx_pps": 80, "tx_bps": 20480, "tx_pps": 96, "total_bps": 30720, "total_pps": 176, "link_speed": 10000000000, "state": "up"}}"#;

fn volume_stats(vm: &str) -> String {
    format!(
        r#"{{"name": "{vm}_sda", "id": "1", "size": "20G", "objects": 5120, "order": 22, "object_size": 4194304, "snapshot_count": 0, "format": 2, "features": ["layering", "exclusive-lock"]}}"#
    )
}

fn vm_xml(name: &str, uuid: Uuid, memory: u64, vcpus: u64, vni: u64) -> String {
    format!(
        "<domain type='kvm'>\n  <name>{name}</name>\n  <uuid>{uuid}</uuid>\n  <description>Made-up \
         VM</description>\n  \
         <memory unit='MiB'>{memory}</memory>\n  <vcpu>{vcpus}</vcpu>\n  <cpu>\n    <topology \
         sockets='1' cores='{vcpus}' threads='1'/>\n  </cpu>\n  \
         <os>\n    <type arch='x86_64' machine='pc-i440fx-2.7'>hvm</type>\n    <bootmenu \
         enable='yes'/>\n    <boot dev='hd'/>\n  </os>\n  \
         <features>\n    <acpi/>\n    <apic/>\n    <pae/>\n  </features>\n  <clock \
         offset='utc'/>\n  \
         <on_poweroff>destroy</on_poweroff>\n  <on_reboot>restart</on_reboot>\
         \n  <on_crash>restart</on_crash>\n  <devices>\n    \
         <emulator>/usr/bin/kvm</emulator>\n    <controller type='usb' \
         index='0'/>\n    <controller type='pci' index='0' model='pci-root'/>\n    \
         <controller type='scsi' index='0' model='virtio-scsi'/>\n    \
         <serial type='pty'>\n      <log file='/var/log/libvirt/{name}.log' \
         append='on'/>\n    </serial>\n    <console type='pty'/>\n    \
         <graphics type='vnc' port='-1' listen='127.0.0.1'/>\n    <rng \
         model='virtio'>\n      <backend model='random'>/dev/random</backend>\n    </rng>\n    \
         <disk type='network' device='disk'>\n      <driver name='qemu' discard='unmap' \
         cache='none'/>\n      \
         <source protocol='rbd' name='vms/{name}_sda'>\n        <host name='pvchv1.storage.local' \
         port='6789'/>\n        <host name='pvchv2.storage.local' \
         port='6789'/>\n      </source>\n      \
         <auth username='libvirt'>\n        <secret type='ceph' \
         uuid='1d3c3a6d-95a3-4d44-a8e7-1d7a2e9d2a6a'/>\n      </auth>\n      <target dev='sda' \
         bus='scsi'/>\n    </disk>\n    \
         <interface type='bridge'>\n      <mac \
         address='52:54:00:{:02x}:{:02x}:{:02x}'/>\n      <source \
         bridge='vmbr{vni}'/>\n      <model type='virtio'/>\n    </interface>\n  \
         </devices>\n</domain>\n",
        uuid.as_bytes()[0],
        uuid.as_bytes()[1],
        uuid.as_bytes()[2],
    )
}

fn vm_stats(random: &mut SplitMix, name: &str) -> String {
    let n = random.below(1 << 40);
    format!(
        r#"{{"state": "RUNNING", "maxmem": 1048576, "livemem": 1048576, "cpus": 2, "cputime": {n}, "mem_stats": {{"actual": 1048576, "swap_in": 0, "swap_out": 0, "major_fault": 412, "minor_fault": 99120, "unused": 655360, "available": 1007360, "usable": 860160, "last_update": 1731585600, "disk_caches": 150566, "hugetlb_pgalloc": 0, "hugetlb_pgfail": 0, "rss": 620032}}, "cpu_stats": {{"cpu_time": {n}, "user_time": 2340000000, "system_time": 34560000000}}, "disk_stats": [{{"name": "vms/{name}_sda", "rd_req": 10231, "rd_bytes": 412311552, "wr_req": 88120, "wr_bytes": 1231232000, "err": -1}}], "net_stats": [{{"name": "vnet0", "bridge": "vmbr1000", "rd_bytes": 123456, "rd_packets": 1200, "rd_errors": 0, "rd_drops": 0, "wr_bytes": 654321, "wr_packets": 1100, "wr_errors": 0, "wr_drops": 0}}]}}"#
    )
}
