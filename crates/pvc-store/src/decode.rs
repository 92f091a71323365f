//! From bytes in the tree to records: tolerant. A value that cannot be read becomes the harmless
//! default and is named in the record's `defects`; no record is ever left out for it.

use std::sync::Arc;

use pvc_model::cluster::ClusterRecord;
use pvc_model::fault::FaultRecord;
use pvc_model::job::{ClaimId, Job, JobId, WorkerRecord};
use pvc_model::network::{AclRecord, Direction, LeaseRecord, NetworkRecord};
use pvc_model::node::{
    CoordinatorState, DaemonState, DomainState, NodeFigures, NodeRecord, NodeRole, PluginReport,
};
use pvc_model::storage::{OsdRecord, PoolName, PoolRecord, SnapshotName, VolumeId, VolumeRecord};
use pvc_model::vm::{
    DEFAULT_MAX_DOWNTIME_MS, MigrationMethod, Selector, Tag, VmRecord, VmSnapshot, VmState,
};
use pvc_model::{NodeName, Uuid};

use crate::job_codec;
use crate::keys;
use crate::move_codec;
use crate::note_codec;
use crate::raw::{Place, Raw, Value};

/// Reads the keys below one root and collects what was wrong with them.
struct Reader<'a> {
    place: Place<'a>,
    defects: Vec<String>,
}

impl<'a> Reader<'a> {
    fn new(raw: &'a Raw, root: &str) -> Self {
        Reader { place: raw.place(root), defects: Vec::new() }
    }

    fn text(&mut self, key: &str) -> String {
        self.shared(key).as_ref().to_owned()
    }

    /// The text itself, not a copy of it.
    fn shared(&mut self, key: &str) -> Arc<str> {
        match self.place.get(key).map(|node| &node.data) {
            None => Arc::default(),
            Some(Value::Text(text)) => text.clone(),
            Some(Value::Other(bytes)) => {
                self.defects.push(format!("`{key}` is not UTF-8 text"));
                String::from_utf8_lossy(bytes).into()
            }
        }
    }

    /// A number; 0 where there is nothing, 0 and a defect where there is something else.
    fn number<T: std::str::FromStr + Default>(&mut self, key: &str) -> T {
        let text = self.shared(key);
        if text.is_empty() || *text == *"None" {
            return T::default();
        }
        text.parse().unwrap_or_else(|_| {
            self.defects.push(format!("`{key}` is `{}`, not a number", shown(&text)));
            T::default()
        })
    }

    /// Python's `True`/`False`; anything else is false, and a defect unless it means "not set".
    fn flag(&mut self, key: &str) -> bool {
        let text = self.shared(key);
        match &*text {
            "True" | "true" => true,
            "False" | "false" | "" | "None" => false,
            other => {
                self.defects.push(format!("`{key}` is `{}`, not `True` or `False`", shown(other)));
                false
            }
        }
    }

    fn children(&self, key: &str) -> Vec<String> {
        self.place.children(key)
    }
}

/// The beginning of a text that may be long, for a message.
fn shown(text: &str) -> String {
    text.chars().take(40).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// A text that means nothing when empty or the word `None`.
fn set(text: &str) -> Option<&str> {
    (!text.is_empty() && text != "None").then_some(text)
}

fn comma_list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

pub(crate) fn config(raw: &Raw) -> ClusterRecord {
    let text = |path: &str| raw.text(path).unwrap_or_default();
    let selector = text(keys::SELECTOR);
    ClusterRecord {
        name: text(keys::CONFIG).into_owned(),
        schema: text(keys::SCHEMA_VERSION).trim().parse().ok(),
        maintenance: text(keys::MAINTENANCE).eq_ignore_ascii_case("true"),
        initialized: raw.contains(keys::PRIMARY),
        primary: set(&text(keys::PRIMARY)).filter(|name| *name != "none").map(NodeName::new),
        upstream_ip: text(keys::UPSTREAM_IP).into_owned(),
        selector: set(&selector).map(Selector::from_record),
        storage_status: Arc::from(text("/ceph")),
        storage_util: Arc::from(text("/ceph/util")),
        storage_health: Arc::from(text("/ceph/health")),
    }
}

pub(crate) fn node(raw: &Raw, name: &str) -> Option<NodeRecord> {
    let root = format!("/nodes/{name}");
    if !raw.contains(&root) {
        return None;
    }
    let mut r = Reader::new(raw, &root);
    let static_data = r.text("staticdata");
    let mut static_parts = static_data.split_whitespace();
    let cpus = static_parts.next().and_then(|cpus| cpus.parse().ok()).unwrap_or(0);
    let mut word = || static_parts.next().unwrap_or_default().to_owned();
    let (kernel, os, arch) = (word(), word(), word());
    let plugins = r.text("monitoring_plugins");
    let plugins = plugins.split_whitespace().map(|plugin| plugin_report(&mut r, plugin)).collect();
    let health = r.text("monitoring_health");
    let running = uuids(&r.text("runningdomains"));
    let schema = |text: String| text.trim().parse().ok();
    let (daemon, hypervisor) =
        raw.text(&keys::node_note(name)).and_then(|text| note_codec::read(&text)).unzip();
    Some(NodeRecord {
        name: NodeName::new(name),
        role: NodeRole::from_record(&r.text("daemonmode")),
        daemon_state: DaemonState::from_record(&r.text("daemonstate")),
        coordinator_state: CoordinatorState::from_record(&r.text("routerstate")),
        domain_state: DomainState::from_record(&r.text("domainstate")),
        keepalive: r.number("keepalive"),
        keepalives: r.place.get("keepalive").map_or(0, |stamp| stamp.version),
        active_schema: schema(r.text("activeschema")),
        latest_schema: schema(r.text("latestschema")),
        pvc_version: r.text("pvcversion"),
        cpus,
        kernel,
        os,
        arch,
        figures: NodeFigures {
            memory_total_mib: r.number("memtotal"),
            memory_used_mib: r.number("memused"),
            memory_free_mib: r.number("memfree"),
            memory_allocated_mib: r.number("memalloc"),
            memory_provisioned_mib: r.number("memprov"),
            vcpus_allocated: r.number("vcpualloc"),
            load: r.number("cpuload"),
            domains: r.number("domainscount"),
        },
        running,
        working_on: raw.text(&keys::working_on(name)).map(|text| uuids(&text)).unwrap_or_default(),
        health: set(&health)
            .and_then(|health| health.parse().ok())
            .map(|health: u8| health.min(100)),
        plugins,
        network_stats: r.shared("network_stats"),
        ipmi_hostname: r.text("ipmihostname"),
        daemon,
        hypervisor: hypervisor.flatten(),
        fence: raw.text(&keys::fence(name)).and_then(|text| note_codec::read_fence(&text)),
        defects: r.defects,
    })
}

/// Older peers leave a literal `0` in such a list; it is no UUID and falls out here.
fn uuids(text: &str) -> Vec<Uuid> {
    text.split_whitespace().filter_map(|uuid| Uuid::try_parse(uuid).ok()).collect()
}

fn plugin_report(r: &mut Reader<'_>, plugin: &str) -> PluginReport {
    let key = |key: &str| format!("monitoring_data/{plugin}/{key}");
    PluginReport {
        name: plugin.to_owned(),
        last_run: r.number(&key("last_run")),
        health_delta: r.number(&key("health_delta")),
        message: r.text(&key("message")),
        data: r.shared(&key("data")),
    }
}

/// The record of VM `uuid`. What `previous` parsed of the same XML is taken over: statistics change
/// every few seconds, XML hardly ever.
pub(crate) fn vm(raw: &Raw, uuid: Uuid, previous: Option<&VmRecord>) -> Option<VmRecord> {
    let root = keys::vm_root(uuid);
    let name = raw.text(&root)?.into_owned();
    let incarnation = raw.get(&root).map_or(0, |node| node.czxid);
    let state_version = raw.get(&keys::vm(uuid, "state")).map_or(-1, |node| node.version);
    let mut r = Reader::new(raw, &root);
    let xml = r.shared("xml");
    let domain = match previous {
        Some(previous) if previous.xml == xml => previous.domain.clone(),
        _ => domain(uuid, &xml),
    };
    let state = VmState::from_record(&r.text("state"));
    let name = if name.is_empty() {
        r.defects.push("the record has no name".to_owned());
        domain.as_ref().map_or_else(|_| uuid.to_string(), |domain| domain.name.clone())
    } else {
        name
    };
    let node_name = |text: String| set(&text).map(NodeName::new);
    let selector = r.text("node_selector");
    let method = r.text("migration_method");
    let max_downtime = r.number("migration_max_downtime");
    let tags = r.children("tags").iter().map(|tag| vm_tag(&mut r, tag)).collect();
    let mut snapshots: Vec<_> =
        r.children("snapshots").iter().map(|name| vm_snapshot(&mut r, name)).collect();
    snapshots.sort_by(|a: &VmSnapshot, b| {
        b.timestamp.cmp(&a.timestamp).then_with(|| a.name.cmp(&b.name))
    });
    Some(VmRecord {
        uuid,
        name,
        state,
        state_version,
        incarnation,
        node: node_name(r.text("node")),
        last_node: node_name(r.text("lastnode")),
        failed_reason: r.text("failedreason"),
        xml,
        domain,
        profile: set(&r.text("profile")).map(str::to_owned),
        recorded_volumes: comma_list(&r.text("rbdlist"))
            .filter_map(VolumeId::from_record)
            .collect(),
        stats: r.shared("stats"),
        vnc: r.text("vnc"),
        autostart: r.flag("node_autostart"),
        migration_method: set(&method.to_lowercase())
            .filter(|method| !matches!(*method, "none" | "default"))
            .map(MigrationMethod::from_record),
        max_downtime_ms: if max_downtime == 0 { DEFAULT_MAX_DOWNTIME_MS } else { max_downtime },
        selector: set(&selector.to_lowercase())
            .filter(|word| *word != "none")
            .map(Selector::from_record),
        node_limit: comma_list(&r.text("node_limit"))
            .filter(|name| *name != "None")
            .map(NodeName::new)
            .collect(),
        tags,
        snapshots,
        moving: raw.text(&keys::move_note(uuid)).and_then(|text| move_codec::read(&text)),
        defects: r.defects,
    })
}

fn domain(uuid: Uuid, xml: &str) -> Result<Arc<pvc_model::domain::DomainSummary>, String> {
    if xml.trim().is_empty() {
        return Err("no XML is recorded".to_owned());
    }
    let summary = pvc_domain::summary(xml).map_err(|error| error.to_string())?;
    if summary.uuid != uuid {
        return Err(format!("the XML is that of another VM, `{}`", summary.uuid));
    }
    Ok(Arc::new(summary))
}

fn vm_tag(r: &mut Reader<'_>, tag: &str) -> Tag {
    let kind = r.text(&format!("tags/{tag}/type"));
    Tag {
        name: tag.to_owned(),
        kind: if kind.is_empty() { "user".to_owned() } else { kind },
        protected: r.flag(&format!("tags/{tag}/protected")),
    }
}

fn vm_snapshot(r: &mut Reader<'_>, name: &str) -> VmSnapshot {
    VmSnapshot {
        name: name.to_owned(),
        timestamp: r.text(&format!("snapshots/{name}/timestamp")),
        xml: r.shared(&format!("snapshots/{name}/xml")),
        volumes: comma_list(&r.text(&format!("snapshots/{name}/rbdsnaplist")))
            .map(str::to_owned)
            .collect(),
    }
}

pub(crate) fn network(raw: &Raw, vni: &str) -> Option<NetworkRecord> {
    let root = format!("/networks/{vni}");
    let description = raw.text(&root)?.into_owned();
    let mut r = Reader::new(raw, &root);
    let mut leases = leases(&mut r, "dhcp4_reservations", false);
    leases.extend(self::leases(&mut r, "dhcp4_leases", true));
    let mut acls = acls(&mut r, Direction::In);
    acls.extend(self::acls(&mut r, Direction::Out));
    Some(NetworkRecord {
        leases,
        acls,
        vni: vni.to_owned(),
        description,
        nettype: r.text("nettype"),
        mtu: r.text("mtu"),
        domain: r.text("domain"),
        name_servers: comma_list(&r.text("name_servers")).map(str::to_owned).collect(),
        ip4_network: r.text("ip4_network"),
        ip4_gateway: r.text("ip4_gateway"),
        dhcp4_flag: r.text("dhcp4_flag"),
        dhcp4_start: r.text("dhcp4_start"),
        dhcp4_end: r.text("dhcp4_end"),
        ip6_network: r.text("ip6_network"),
        ip6_gateway: r.text("ip6_gateway"),
        dhcp6_flag: r.text("dhcp6_flag"),
    })
}

fn leases(r: &mut Reader<'_>, container: &str, is_dynamic: bool) -> Vec<LeaseRecord> {
    let macs = r.children(container);
    let lease = |mac: String| LeaseRecord {
        address: r.text(&format!("{container}/{mac}/ipaddr")),
        hostname: r.text(&format!("{container}/{mac}/hostname")),
        expiry: is_dynamic.then(|| r.text(&format!("{container}/{mac}/expiry"))),
        mac,
    };
    macs.into_iter().map(lease).collect()
}

fn acls(r: &mut Reader<'_>, direction: Direction) -> Vec<AclRecord> {
    let container = format!("firewall_rules/{}", direction.as_str());
    let names = r.children(&container);
    let acl = |description: String| AclRecord {
        direction,
        order: r.number(&format!("{container}/{description}/order")),
        rule: r.text(&format!("{container}/{description}/rule")),
        description,
    };
    let mut acls: Vec<AclRecord> = names.into_iter().map(acl).collect();
    acls.sort_by_key(|acl| acl.order);
    acls
}

pub(crate) fn osd(raw: &Raw, id: &str) -> Option<OsdRecord> {
    let root = format!("/ceph/osds/{id}");
    if !raw.contains(&root) {
        return None;
    }
    let mut r = Reader::new(raw, &root);
    Some(OsdRecord {
        id: id.to_owned(),
        node: r.text("node"),
        device: r.text("device"),
        db_device: r.text("db_device"),
        fsid: r.text("fsid/osd"),
        is_split: r.flag("is_split"),
        stats: r.shared("stats"),
    })
}

pub(crate) fn pool(raw: &Raw, name: &str) -> Option<PoolRecord> {
    let root = format!("/ceph/pools/{name}");
    if !raw.contains(&root) {
        return None;
    }
    let mut r = Reader::new(raw, &root);
    Some(PoolRecord {
        name: PoolName::new(name),
        pgs: r.text("pgs"),
        tier: r.text("tier"),
        stats: r.shared("stats"),
    })
}

pub(crate) fn volume(raw: &Raw, id: &VolumeId) -> Option<VolumeRecord> {
    let root = keys::volume(id);
    if !raw.contains(&root) {
        return None;
    }
    let snapshots = keys::volume_snapshots(id);
    let names = raw.children(&snapshots);
    let mut r = Reader::new(raw, &snapshots);
    let snapshots = names
        .iter()
        .map(|name| (SnapshotName::new(name), r.shared(&format!("{name}/stats"))))
        .collect();
    let stats = Reader::new(raw, &root).shared("stats");
    Some(VolumeRecord { id: id.clone(), stats, snapshots })
}

pub(crate) fn fault(raw: &Raw, id: &str) -> Option<FaultRecord> {
    let root = format!("/faults/{id}");
    if !raw.contains(&root) {
        return None;
    }
    let mut r = Reader::new(raw, &root);
    Some(FaultRecord {
        id: id.to_owned(),
        first_reported: r.text("first_time"),
        last_reported: r.text("last_time"),
        acknowledged_at: r.text("ack_time"),
        acknowledged: r.text("status") == "ack",
        delta: r.number("delta"),
        message: r.text("message"),
    })
}

pub(crate) fn worker(raw: &Raw, node: &NodeName) -> Option<WorkerRecord> {
    raw.text(&keys::worker(node)).map(|text| job_codec::worker_from(&text))
}

pub(crate) fn job(raw: &Raw, id: &JobId) -> Option<Job> {
    let root = format!("/tasks/{id}");
    let spec = job_codec::spec_from(id, &raw.text(&root)?)?;
    let progress = raw.text(&keys::task(id.as_str(), "progress")).unwrap_or_default();
    Some(Job {
        spec,
        progress: job_codec::progress_from(&progress),
        cancel_requested: raw.contains(&keys::task(id.as_str(), "cancel")),
        claim: raw.get(&keys::task(id.as_str(), "owner")).map(|owner| ClaimId(owner.czxid)),
    })
}
