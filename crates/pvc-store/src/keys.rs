//! Where things lie in the tree. The only place that knows.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use pvc_model::storage::VolumeId;
use pvc_model::{NodeName, Uuid};

pub(crate) const SCHEMA_VERSION: &str = "/schema/version";
pub(crate) const CONFIG: &str = "/config";
pub(crate) const MAINTENANCE: &str = "/config/maintenance";
pub(crate) const PRIMARY: &str = "/config/primary_node";
/// Nothing but the locks of a hand-over of the primary role.
pub(crate) const HAND_OVER: &str = "/config/primary_node/sync_lock";
pub(crate) const FENCE_LOCK: &str = "/config/fence_lock";
pub(crate) const UPSTREAM_IP: &str = "/config/upstream_ip";
pub(crate) const SELECTOR: &str = "/config/migration_target_selector";
pub(crate) const NODES: &str = "/nodes";
pub(crate) const DOMAINS: &str = "/domains";
pub(crate) const FAULTS: &str = "/faults";
pub(crate) const PRIVATE: &str = "/pvcrs";

/// Subtrees of other programs: never read, written, backed up or wiped.
pub(crate) const FOREIGN: &[&str] = &["/zookeeper", "/patroni"];

/// The containers a tree of our schema has, parents first, with their first values.
/// Source: `spec/zookeeper.md` §4.1 and §4.6.
pub(crate) const BASE: &[(&str, &str)] = &[
    ("/schema", ""),
    ("/config", ""),
    ("/config/maintenance", ""),
    ("/config/fence_lock", ""),
    ("/config/primary_node", ""),
    ("/config/primary_node/sync_lock", ""),
    ("/config/upstream_ip", ""),
    ("/config/migration_target_selector", ""),
    ("/logs", ""),
    ("/faults", ""),
    ("/nodes", ""),
    ("/domains", ""),
    ("/networks", ""),
    ("/ceph", ""),
    ("/ceph/health", ""),
    ("/ceph/util", ""),
    ("/ceph/osds", ""),
    ("/ceph/pools", ""),
    ("/ceph/volumes", ""),
    ("/ceph/snapshots", ""),
    ("/tasks", ""),
    ("/pvcrs", ""),
    ("/pvcrs/daemon", ""),
    ("/pvcrs/nodes", ""),
    ("/pvcrs/workers", ""),
    ("/pvcrs/working_on", ""),
    ("/pvcrs/moves", ""),
    ("/pvcrs/placement", ""),
    ("/pvcrs/fences", ""),
];

/// The keys below a node's root, parents first, with the values that `repair` gives missing ones.
pub(crate) const NODE_KEYS: &[(&str, &str)] = &[
    ("keepalive", ""),
    ("daemonmode", ""),
    ("activeschema", ""),
    ("latestschema", ""),
    ("staticdata", ""),
    ("pvcversion", ""),
    ("runningdomains", ""),
    ("domainscount", ""),
    ("networkscount", ""),
    ("daemonstate", ""),
    ("routerstate", ""),
    ("domainstate", ""),
    ("cpuload", ""),
    ("vcpualloc", ""),
    ("memtotal", ""),
    ("memused", ""),
    ("memfree", ""),
    ("memalloc", ""),
    ("memprov", ""),
    ("ipmihostname", ""),
    ("ipmiusername", ""),
    ("ipmipassword", ""),
    ("sriov", ""),
    ("sriov/pf", ""),
    ("sriov/vf", ""),
    ("monitoring_plugins", ""),
    ("monitoring_data", ""),
    ("monitoring_health", ""),
    ("network_stats", ""),
];

/// As [`NODE_KEYS`], for a VM.
pub(crate) const VM_KEYS: &[(&str, &str)] = &[
    ("xml", ""),
    ("state", ""),
    ("profile", ""),
    ("stats", ""),
    ("node", ""),
    ("lastnode", ""),
    ("failedreason", ""),
    ("rbdlist", ""),
    ("consolelog", ""),
    ("vnc", ""),
    ("node_autostart", ""),
    ("migration_method", ""),
    ("migration_max_downtime", "300"),
    ("node_selector", ""),
    ("node_limit", ""),
    ("tags", ""),
    ("migrate_sync_lock", ""),
    ("snapshots", ""),
];

/// As [`NODE_KEYS`], for a network.
pub(crate) const NETWORK_KEYS: &[(&str, &str)] = &[
    ("nettype", ""),
    ("mtu", ""),
    ("domain", ""),
    ("name_servers", ""),
    ("ip4_network", ""),
    ("ip4_gateway", ""),
    ("dhcp4_flag", ""),
    ("dhcp4_start", ""),
    ("dhcp4_end", ""),
    ("ip6_network", ""),
    ("ip6_gateway", ""),
    ("dhcp6_flag", ""),
    ("dhcp4_reservations", ""),
    ("dhcp4_leases", ""),
    ("firewall_rules", ""),
    ("firewall_rules/in", ""),
    ("firewall_rules/out", ""),
];

/// As [`NODE_KEYS`], for an OSD.
pub(crate) const OSD_KEYS: &[(&str, &str)] = &[
    ("node", ""),
    ("device", ""),
    ("db_device", ""),
    ("fsid", ""),
    ("fsid/osd", ""),
    ("fsid/cluster", ""),
    ("lvm", ""),
    ("lvm/vg", ""),
    ("lvm/lv", ""),
    ("is_split", "False"),
    ("stats", ""),
];

/// As [`NODE_KEYS`], for a pool.
pub(crate) const POOL_KEYS: &[(&str, &str)] = &[("pgs", ""), ("tier", "default"), ("stats", "{}")];

/// So many parts a path of the tree has at most, of those that are read. The longest of the layout
/// has seven, a setting of a card's function (`/nodes/N/sriov/vf/V/config/KEY`), and a lock may lie
/// below any of them: this is twice as many. What lies deeper is nobody's record, and a daemon that
/// followed it would have to follow it without end.
pub(crate) const MAX_DEPTH: usize = 16;

/// Whether `path` lies deeper than anything of the layout.
pub(crate) fn is_too_deep(path: &str) -> bool {
    path.bytes().filter(|byte| *byte == b'/').nth(MAX_DEPTH).is_some()
}

/// Whether `path` is one of many in a list that a record has, or below one: of such as no decision
/// on another record rests on. There may be any number of them.
pub(crate) fn is_of_list(path: &str) -> bool {
    let mut parts = path.split('/').skip(1);
    let first = parts.next();
    let list = parts.nth(1);
    match (first, list) {
        (Some("domains"), Some("tags" | "snapshots"))
        | (Some("networks"), Some("dhcp4_leases" | "dhcp4_reservations"))
        | (Some("nodes"), Some("monitoring_data")) => parts.next().is_some(),
        (Some("networks"), Some("firewall_rules")) => parts.nth(1).is_some(),
        (Some("ceph"), Some(_)) => path.starts_with("/ceph/snapshots/") && parts.nth(1).is_some(),
        _ => false,
    }
}

/// The parts of the keys that every record of a kind has.
static KNOWN_NAMES: LazyLock<BTreeSet<Arc<str>>> = LazyLock::new(|| {
    let of_records = [NODE_KEYS, VM_KEYS, NETWORK_KEYS, OSD_KEYS, POOL_KEYS].into_iter().flatten();
    let of_lists = ["type", "protected", "timestamp", "rbdsnaplist"];
    of_records.flat_map(|(key, _)| key.split('/')).chain(of_lists).map(Arc::from).collect()
});

/// `name`; always the same one if it is one that many records have.
pub(crate) fn shared_name(name: &str) -> Arc<str> {
    KNOWN_NAMES.get(name).cloned().unwrap_or_else(|| name.into())
}

pub(crate) fn node(name: &NodeName, key: &str) -> String {
    format!("/nodes/{name}/{key}")
}

pub(crate) fn node_root(name: &NodeName) -> String {
    format!("/nodes/{name}")
}

/// What our own daemons say of a node beside what legacy peers know.
pub(crate) fn node_note(name: &str) -> String {
    format!("/pvcrs/nodes/{name}")
}

/// The VMs whose guests a node is starting or ending. Older peers say nothing of the kind.
pub(crate) fn working_on(name: &str) -> String {
    format!("/pvcrs/working_on/{name}")
}

/// How a node was last fenced.
pub(crate) fn fence(name: &str) -> String {
    format!("/pvcrs/fences/{name}")
}

pub(crate) const MOVES: &str = "/pvcrs/moves";

/// The latest move of a VM, as the node that sends it tells.
pub(crate) fn move_note(vm: Uuid) -> String {
    format!("{MOVES}/{vm}")
}

/// There as long as one of our daemons is connected for the node.
pub(crate) fn daemon(node: &NodeName) -> String {
    format!("/pvcrs/daemon/{node}")
}

pub(crate) const WORKERS: &str = "/pvcrs/workers";

/// There as long as one of our workers is connected for the node.
pub(crate) fn worker(node: &NodeName) -> String {
    format!("{WORKERS}/{node}")
}

pub(crate) const PASSWORDS: &str = "/pvcrs/passwords";

/// There as long as a daemon that knows a password is connected for the node, for those alone who
/// know the same one.
pub(crate) fn password(node: &NodeName) -> String {
    format!("{PASSWORDS}/{node}")
}

/// Whether `path` proves which password a daemon knows.
fn is_proof(path: &str) -> bool {
    path.strip_prefix(PASSWORDS).is_some_and(|rest| rest.starts_with('/'))
}

/// Whoever chooses a node for a VM writes it, so that two who choose at once do not promise the
/// same memory twice.
pub(crate) const PLACEMENT: &str = "/pvcrs/placement";

pub(crate) fn vm(uuid: Uuid, key: &str) -> String {
    format!("/domains/{uuid}/{key}")
}

pub(crate) fn vm_root(uuid: Uuid) -> String {
    format!("/domains/{uuid}")
}

pub(crate) fn volume(id: &VolumeId) -> String {
    format!("/ceph/volumes/{}/{}", id.pool, id.volume)
}

pub(crate) fn volume_snapshots(id: &VolumeId) -> String {
    format!("/ceph/snapshots/{}/{}", id.pool, id.volume)
}

pub(crate) fn logs(node: &NodeName) -> String {
    format!("/logs/{node}")
}

pub(crate) fn log_messages(node: &NodeName) -> String {
    format!("/logs/{node}/messages")
}

/// Where versions before jobs had steps noted that a VM is getting another name.
pub(crate) const FORMER_RENAMINGS: &str = "/pvcrs/renamings";

pub(crate) fn task(id: &str, key: &str) -> String {
    format!("/tasks/{id}/{key}")
}

/// What of a node's record its operators and their API write; all the rest of it the node observes.
const NODE_INTENT: &[&str] =
    &["daemonmode", "domainstate", "ipmihostname", "ipmiusername", "ipmipassword"];

/// What of a VM's record the node that runs it observes.
const VM_OBSERVED: &[&str] = &["stats", "vnc", "consolelog", "failedreason"];

/// Whether `path` holds what opens something else: the password of a node's BMC.
pub(crate) fn is_secret(path: &str) -> bool {
    matches!(path.split('/').skip(1).collect::<Vec<_>>()[..], ["nodes", _, "ipmipassword"])
}

/// Whether a node writes `path`, because it is so, and not an operator, because it is to be so.
/// What a daemon needs to find its way (jobs, moves, notes) belongs to it.
pub(crate) fn is_observed(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    match parts[..] {
        ["pvcrs" | "tasks" | "logs" | "faults", _, ..] => true,
        ["nodes", _, "sriov", ..] => false,
        ["nodes", _, key, ..] => !NODE_INTENT.contains(&key),
        ["domains", _, key] => VM_OBSERVED.contains(&key),
        ["ceph"] | ["ceph", "util" | "health"] => true,
        ["ceph", "osds" | "pools", _, "stats"] => true,
        _ => path == PRIMARY,
    }
}

/// The path of `path`'s parent; `/` for a top-level node.
pub(crate) fn parent(path: &str) -> &str {
    match path.rfind('/') {
        Some(0) | None => "/",
        Some(at) => &path[..at],
    }
}

/// Whether `path` lies in a subtree that belongs to another program, or is for those alone who know
/// what one daemon knows.
pub(crate) fn is_foreign(path: &str) -> bool {
    is_proof(path)
        || FOREIGN.iter().any(|root| {
            path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
}

/// What a store holds in memory of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    Whole,
    /// Whether there is a cluster, of which layout, its jobs and its workers.
    Jobs,
}

impl Scope {
    /// Whether `path` belongs to it, or leads there.
    pub fn holds(self, path: &str) -> bool {
        const OF_JOBS: [&str; 5] = ["/schema", CONFIG, "/tasks", WORKERS, FORMER_RENAMINGS];
        let is_below = |path: &str, root: &str| {
            path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let leads = |root: &str| path == "/" || is_below(path, root) || is_below(root, path);
        self == Scope::Whole || OF_JOBS.into_iter().any(leads)
    }
}

/// Whether `path` holds a node's keepalive stamp: it changes all the time, and its age counts in
/// seconds.
pub(crate) fn is_stamp(path: &str) -> bool {
    path.starts_with("/nodes/") && path.ends_with("/keepalive")
}

/// Whether the cache keeps only the existence of `path`, not its value: large texts that few read
/// (console and node logs), and lock nodes.
pub(crate) fn is_left_out(path: &str) -> bool {
    path.ends_with("/consolelog")
        || path.starts_with("/logs/")
        || path.rfind('/').is_some_and(|at| path[at..].contains("lock__"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys of all records that a node writes, below their record's root.
    fn observed(kind: &str, keys: &[(&'static str, &str)]) -> Vec<&'static str> {
        keys.iter()
            .map(|(key, _)| *key)
            .filter(|key| is_observed(&format!("/{kind}/x/{key}")))
            .collect()
    }

    #[test]
    fn the_layout_is_not_too_deep_and_what_is_of_a_list_lies_in_one() {
        let root = "/domains/x";
        for path in ["/", "/config", "/nodes/x/sriov/vf/ens1f0v1/config/vlan_id/lock__1"] {
            assert!(!is_too_deep(path), "{path}");
        }
        let deepest = "/a".repeat(MAX_DEPTH);
        assert!(!is_too_deep(&deepest) && is_too_deep(&format!("{deepest}/a")));
        for (path, is_of_one) in [
            (format!("{root}/tags"), false),
            (format!("{root}/tags/daily"), true),
            (format!("{root}/tags/daily/type"), true),
            (format!("{root}/snapshots/s/xml"), true),
            (format!("{root}/state"), false),
            ("/networks/1/dhcp4_leases/mac/ipaddr".to_owned(), true),
            ("/networks/1/firewall_rules/in".to_owned(), false),
            ("/networks/1/firewall_rules/in/web".to_owned(), true),
            ("/nodes/hv1/monitoring_data/load/message".to_owned(), true),
            ("/ceph/snapshots/vms/web1_sda".to_owned(), false),
            ("/ceph/snapshots/vms/web1_sda/s1".to_owned(), true),
            ("/ceph/volumes/vms/web1_sda/stats".to_owned(), false),
            ("/faults/x/status".to_owned(), false),
        ] {
            assert_eq!(is_of_list(&path), is_of_one, "{path}");
        }
    }

    #[test]
    fn each_key_of_the_layout_is_an_order_or_an_observation() {
        let nodes: Vec<&str> = NODE_KEYS.iter().map(|(key, _)| *key).collect();
        let orders = ["daemonmode", "domainstate", "ipmihostname", "ipmiusername", "ipmipassword"];
        let of_node = observed("nodes", NODE_KEYS);
        for key in nodes {
            let is_order = orders.contains(&key) || key.starts_with("sriov");
            assert_eq!(of_node.contains(&key), !is_order, "{key}");
        }
        assert_eq!(observed("domains", VM_KEYS), ["stats", "failedreason", "consolelog", "vnc"]);
        assert_eq!(observed("networks", NETWORK_KEYS), [""; 0]);
        assert_eq!(observed("ceph/osds", OSD_KEYS), ["stats"]);
        assert_eq!(observed("ceph/pools", POOL_KEYS), ["stats"]);
        let base: Vec<&str> =
            BASE.iter().map(|(path, _)| *path).filter(|path| is_observed(path)).collect();
        assert_eq!(
            base,
            [
                "/config/primary_node",
                "/ceph",
                "/ceph/health",
                "/ceph/util",
                "/pvcrs/daemon",
                "/pvcrs/nodes",
                "/pvcrs/workers",
                "/pvcrs/working_on",
                "/pvcrs/moves",
                "/pvcrs/placement",
                "/pvcrs/fences"
            ]
        );
        for path in [
            "/domains/x",
            "/domains/x/tags/daily",
            "/domains/x/snapshots/s/xml",
            "/networks/1/mtu",
            "/config",
        ] {
            assert!(!is_observed(path), "{path}");
        }
        for path in
            ["/nodes/hv1/monitoring_data/x/message", "/tasks/1/progress", "/pvcrs/working_on/hv1"]
        {
            assert!(is_observed(path), "{path}");
        }
    }
}
