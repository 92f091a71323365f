//! From bytes in the tree to records: tolerant. A value that cannot be read becomes the harmless
//! default and is named in the record's `defects`; no record is ever left out for it.

use std::borrow::Cow;
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
use pvc_model::{NodeName, Uuid, shown};

use crate::job_codec;
use crate::keys;
use crate::move_codec;
use crate::note_codec;
use crate::once;
use crate::raw::{Place, Raw, Value, lossy};

/// So many entries of one list are read: tags, snapshots, leases, rules. It is ten times as many as
/// anybody has, and as many take a few milliseconds.
pub(crate) const MOST_ENTRIES: usize = 10_000;

/// So much of one text is read, in bytes, and of all texts of one list; XML and what is only handed
/// on have no such limit here.
pub(crate) const MOST_TEXT: usize = 1 << 20;

/// The largest text that is read as JSON, in bytes: what is said of a job may carry an XML and has
/// a log.
pub(crate) const MOST_JSON: usize = 4 << 20;

/// So many defects of one record are named.
const MOST_DEFECTS: usize = 20;

/// Reads the keys below one root and collects what was wrong with them.
struct Reader<'a> {
    place: Place<'a>,
    /// The way to it from the root of the record, with a `/` behind it.
    way: String,
    /// How much may still be read of a text, or of those of a list, in bytes.
    left: usize,
    defects: Vec<String>,
    /// How many were found when as many had been named as are.
    unnamed: usize,
}

impl<'a> Reader<'a> {
    fn new(raw: &'a Raw, root: &str) -> Self {
        let (way, defects) = (String::new(), Vec::new());
        Reader { place: raw.place(root), way, left: MOST_TEXT, defects, unnamed: 0 }
    }

    /// What is wrong with `key`.
    fn wrong(&mut self, key: &str, what: impl FnOnce() -> String) {
        let way = std::mem::take(&mut self.way);
        self.defect(|| format!("`{way}{key}` {}", what()));
        self.way = way;
    }

    fn defect(&mut self, what: impl FnOnce() -> String) {
        if self.defects.len() < MOST_DEFECTS {
            self.defects.push(what());
        } else {
            self.unnamed += 1;
        }
    }

    fn into_defects(mut self) -> Vec<String> {
        if self.unnamed > 0 {
            self.defects.push(format!("and {} more", self.unnamed));
        }
        self.defects
    }

    /// Says in the log that the record `what` is shown in part, if it is: it has no place for its
    /// defects.
    fn log_what_is_cut(&self, what: &str) {
        let is_cut = |defect: &&String| defect.ends_with(CUT);
        for defect in self.defects.iter().filter(is_cut) {
            if once::is_new(&format!("{what}: {defect}")) {
                tracing::error!(record = what, defect, "a record is shown in part");
            }
        }
    }

    fn text(&mut self, key: &str) -> String {
        let text = self.shared(key);
        let read = &text[..text.floor_char_boundary(self.left)];
        if !self.way.is_empty() {
            self.left -= read.len();
        }
        if read.len() < text.len() {
            let (read, all) = (read.len(), text.len());
            self.wrong(key, || format!("has {all} bytes, of which {read} {CUT}"));
        }
        read.to_owned()
    }

    /// The text itself, not a copy of it.
    fn shared(&mut self, key: &str) -> Arc<str> {
        match self.place.get(key).map(|node| &node.data) {
            None => Arc::default(),
            Some(Value::Text(text)) => text.clone(),
            Some(Value::Other(bytes)) => {
                self.wrong(key, || "is not UTF-8 text".to_owned());
                lossy(bytes).into()
            }
        }
    }

    /// A number; 0 where there is nothing, 0 and a defect where there is something else.
    fn number<T: std::str::FromStr + Default>(&mut self, key: &str) -> T {
        let text = self.shared(key);
        if text.is_empty() || *text == *"None" {
            return T::default();
        }
        let number = (text.len() <= LONGEST_NUMBER).then(|| text.parse().ok()).flatten();
        number.unwrap_or_else(|| {
            self.wrong(key, || format!("is `{}`, not a number", shown(&text)));
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
                self.wrong(key, || format!("is `{}`, not `True` or `False`", shown(other)));
                false
            }
        }
    }

    /// The names below `key`, as many as are read.
    fn children(&mut self, key: &str) -> Vec<&'a str> {
        let names = self.place.children(key);
        self.most(key, names)
    }

    /// As many of the entries of `key` as are read.
    fn most<T>(&mut self, key: &str, entries: impl Iterator<Item = T>) -> Vec<T> {
        let mut entries = entries.fuse();
        let read = entries.by_ref().take(MOST_ENTRIES).collect();
        if entries.next().is_some() {
            self.wrong(key, || format!("has more entries than the {MOST_ENTRIES} that {CUT}"));
        }
        read
    }

    /// Reads each entry of the list `key` from its own place.
    fn list<T>(&mut self, key: &str, entry: impl Fn(&mut Reader<'a>, &str) -> T) -> Vec<T> {
        let names = self.children(key);
        self.entries(key, &names, entry)
    }

    /// Reads the entries `names` of the list `key`, each from its own place.
    fn entries<T>(
        &mut self,
        key: &str,
        names: &[&str],
        entry: impl Fn(&mut Reader<'a>, &str) -> T,
    ) -> Vec<T> {
        let list = self.place.below(key);
        let (way, defects) = (String::new(), std::mem::take(&mut self.defects));
        let mut r = Reader { place: list, way, left: MOST_TEXT, defects, unnamed: self.unnamed };
        let read = |name: &&str| {
            r.place = list.below(name);
            r.way = if key.is_empty() { format!("{name}/") } else { format!("{key}/{name}/") };
            entry(&mut r, name)
        };
        let entries = names.iter().map(read).collect();
        (self.defects, self.unnamed) = (r.defects, r.unnamed);
        entries
    }
}

/// How a defect ends that says that not all is shown.
const CUT: &str = "are shown";

/// The longest text of a number.
const LONGEST_NUMBER: usize = 64;

/// As much of a text that stands alone as is read.
fn beginning(text: &str) -> &str {
    &text[..text.floor_char_boundary(MOST_TEXT)]
}

/// What is read as JSON at `path`; `None` if nothing is there, or too much.
fn json<'a>(raw: &'a Raw, path: &str) -> Option<Cow<'a, str>> {
    raw.text(path).filter(|text| text.len() <= MOST_JSON)
}

/// A text that means nothing when empty or the word `None`.
fn set(text: &str) -> Option<&str> {
    (!text.is_empty() && text != "None").then_some(text)
}

fn comma_list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

pub(crate) fn config(raw: &Raw) -> ClusterRecord {
    let whole = |path: &str| raw.text(path).unwrap_or_default();
    let text = |path: &str| beginning(&whole(path)).to_owned();
    let selector = text(keys::SELECTOR);
    ClusterRecord {
        name: text(keys::CONFIG),
        schema: text(keys::SCHEMA_VERSION).trim().parse().ok(),
        maintenance: text(keys::MAINTENANCE).eq_ignore_ascii_case("true"),
        initialized: raw.contains(keys::PRIMARY),
        primary: set(&text(keys::PRIMARY)).filter(|name| *name != "none").map(NodeName::new),
        upstream_ip: text(keys::UPSTREAM_IP),
        selector: set(&selector).map(Selector::from_record),
        storage_status: Arc::from(whole("/ceph")),
        storage_util: Arc::from(whole("/ceph/util")),
        storage_health: Arc::from(whole("/ceph/health")),
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
    let plugins = r.most("monitoring_plugins", plugins.split_whitespace());
    let plugins = r.entries("monitoring_data", &plugins, plugin_report);
    let health = r.text("monitoring_health");
    let running = r.text("runningdomains");
    let running = r.most("runningdomains", uuids(&running));
    let working_on = raw.text(&keys::working_on(name)).unwrap_or_default();
    let working_on = uuids(beginning(&working_on)).take(MOST_ENTRIES).collect();
    let schema = |text: String| text.trim().parse().ok();
    let (daemon, hypervisor) =
        json(raw, &keys::node_note(name)).and_then(|text| note_codec::read(&text)).unzip();
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
        working_on,
        health: set(&health)
            .and_then(|health| health.parse().ok())
            .map(|health: u8| health.min(100)),
        plugins,
        network_stats: r.shared("network_stats"),
        ipmi_hostname: r.text("ipmihostname"),
        daemon,
        hypervisor: hypervisor.flatten(),
        fence: json(raw, &keys::fence(name)).and_then(|text| note_codec::read_fence(&text)),
        defects: r.into_defects(),
    })
}

/// Older peers leave a literal `0` in such a list; it is no UUID and falls out here.
fn uuids(text: &str) -> impl Iterator<Item = Uuid> {
    text.split_whitespace().filter_map(|uuid| Uuid::try_parse(uuid).ok())
}

fn plugin_report(r: &mut Reader<'_>, plugin: &str) -> PluginReport {
    PluginReport {
        name: plugin.to_owned(),
        last_run: r.number("last_run"),
        health_delta: r.number("health_delta"),
        message: r.text("message"),
        data: r.shared("data"),
    }
}

/// The record of VM `uuid`. What `previous` parsed of the same XML is taken over: statistics change
/// every few seconds, XML hardly ever.
pub(crate) fn vm(raw: &Raw, uuid: Uuid, previous: Option<&VmRecord>) -> Option<VmRecord> {
    let root = keys::vm_root(uuid);
    let name = beginning(&raw.text(&root)?).to_owned();
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
        r.defect(|| "the record has no name".to_owned());
        domain.as_ref().map_or_else(|_| uuid.to_string(), |domain| domain.name.clone())
    } else {
        name
    };
    let node_name = |text: String| set(&text).map(NodeName::new);
    let selector = r.text("node_selector");
    let method = r.text("migration_method");
    let max_downtime = r.number("migration_max_downtime");
    let tags = r.list("tags", vm_tag);
    let mut snapshots = r.list("snapshots", vm_snapshot);
    snapshots.sort_by(|a: &VmSnapshot, b| {
        b.timestamp.cmp(&a.timestamp).then_with(|| a.name.cmp(&b.name))
    });
    let (volumes, limit) = (r.text("rbdlist"), r.text("node_limit"));
    let recorded_volumes =
        r.most("rbdlist", comma_list(&volumes).filter_map(VolumeId::from_record));
    let limit = comma_list(&limit).filter(|name| *name != "None").map(NodeName::new);
    let node_limit = r.most("node_limit", limit);
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
        recorded_volumes,
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
        node_limit,
        tags,
        snapshots,
        moving: json(raw, &keys::move_note(uuid)).and_then(|text| move_codec::read(&text)),
        defects: r.into_defects(),
    })
}

fn domain(uuid: Uuid, xml: &str) -> Result<Arc<pvc_model::domain::DomainSummary>, String> {
    // Looked for in what may be parsed alone.
    if xml.len() <= pvc_domain::MAX_XML_BYTES && xml.trim().is_empty() {
        return Err("no XML is recorded".to_owned());
    }
    let summary = pvc_domain::summary(xml).map_err(|error| error.to_string())?;
    if summary.uuid != uuid {
        return Err(format!("the XML is that of another VM, `{}`", summary.uuid));
    }
    Ok(Arc::new(summary))
}

fn vm_tag(r: &mut Reader<'_>, name: &str) -> Tag {
    let kind = r.text("type");
    Tag {
        name: name.to_owned(),
        kind: if kind.is_empty() { "user".to_owned() } else { kind },
        protected: r.flag("protected"),
    }
}

fn vm_snapshot(r: &mut Reader<'_>, name: &str) -> VmSnapshot {
    let volumes = r.text("rbdsnaplist");
    VmSnapshot {
        name: name.to_owned(),
        timestamp: r.text("timestamp"),
        xml: r.shared("xml"),
        volumes: r.most("rbdsnaplist", comma_list(&volumes).map(str::to_owned)),
    }
}

pub(crate) fn network(raw: &Raw, vni: &str) -> Option<NetworkRecord> {
    let root = format!("/networks/{vni}");
    let description = beginning(&raw.text(&root)?).to_owned();
    let mut r = Reader::new(raw, &root);
    let mut leases = leases(&mut r, "dhcp4_reservations", false);
    leases.extend(self::leases(&mut r, "dhcp4_leases", true));
    let mut acls = acls(&mut r, Direction::In);
    acls.extend(self::acls(&mut r, Direction::Out));
    r.log_what_is_cut(&root);
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
    r.list(container, |r, mac| LeaseRecord {
        address: r.text("ipaddr"),
        hostname: r.text("hostname"),
        expiry: is_dynamic.then(|| r.text("expiry")),
        mac: mac.to_owned(),
    })
}

fn acls(r: &mut Reader<'_>, direction: Direction) -> Vec<AclRecord> {
    let container = format!("firewall_rules/{}", direction.as_str());
    let mut acls = r.list(&container, |r, description| AclRecord {
        direction,
        order: r.number("order"),
        rule: r.text("rule"),
        description: description.to_owned(),
    });
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
    let mut r = Reader::new(raw, &snapshots);
    let of_volume = r.list("", |r, name| (SnapshotName::new(name), r.shared("stats")));
    r.log_what_is_cut(&snapshots);
    let stats = Reader::new(raw, &root).shared("stats");
    Some(VolumeRecord { id: id.clone(), stats, snapshots: of_volume })
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
    json(raw, &keys::worker(node)).map(|text| job_codec::worker_from(&text))
}

pub(crate) fn job(raw: &Raw, id: &JobId) -> Option<Job> {
    let root = format!("/tasks/{id}");
    let spec = job_codec::spec_from(id, &json(raw, &root)?)?;
    let progress = keys::task(id.as_str(), "progress");
    let progress = raw.text(&progress).unwrap_or_default();
    // One that is too long to be read is none.
    let progress = if progress.len() <= MOST_JSON { &*progress } else { "too long" };
    Some(Job {
        spec,
        progress: job_codec::progress_from(progress),
        cancel_requested: raw.contains(&keys::task(id.as_str(), "cancel")),
        claim: raw.get(&keys::task(id.as_str(), "owner")).map(|owner| ClaimId(owner.czxid)),
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pvc_ports::{Entry, Stat};

    use super::*;
    use crate::raw::RawNode;

    fn raw(nodes: impl IntoIterator<Item = (String, String)>) -> Raw {
        let mut raw = Raw::default();
        for (path, value) in nodes {
            let entry = Entry { data: Bytes::from(value), stat: Stat::default() };
            raw.put(&path, RawNode::read(&path, &entry));
        }
        raw
    }

    const VM: Uuid = Uuid::from_u128(7);

    fn vm_with(nodes: impl IntoIterator<Item = (String, String)>) -> VmRecord {
        let root = [
            (keys::vm_root(VM), "web1".to_owned()),
            (keys::vm(VM, "state"), "start".to_owned()),
            (keys::vm(VM, "node"), "hv1".to_owned()),
        ];
        let nodes = nodes.into_iter().map(|(key, value)| (keys::vm(VM, &key), value));
        vm(&raw(root.into_iter().chain(nodes)), VM, None).unwrap()
    }

    #[test]
    fn of_a_list_with_too_many_entries_the_first_are_shown_and_the_rest_is_counted_as_a_defect() {
        let many = || (0..MOST_ENTRIES + 1).map(|number| format!("{number:06}"));
        let cut = |key: &str| format!("`{key}` has more entries than the 10000 that are shown");
        let vm = vm_with(many().flat_map(|name| {
            ["tags", "snapshots"].map(|list| (format!("{list}/{name}"), String::new()))
        }));
        assert_eq!((vm.tags.len(), vm.snapshots.len()), (MOST_ENTRIES, MOST_ENTRIES));
        assert_eq!(vm.defects, [cut("tags"), cut("snapshots")]);
        let list = |separator: &str, prefix: &str| -> String {
            many().map(|name| format!("{prefix}{name}{separator}")).collect()
        };
        let lists = [("rbdlist", list(",", "vms/")), ("node_limit", list(",", "hv"))];
        let vm = vm_with(lists.map(|(key, value)| (key.to_owned(), value)));
        assert_eq!(vm.recorded_volumes.len(), MOST_ENTRIES);
        assert_eq!(vm.node_limit.len(), MOST_ENTRIES);
        assert_eq!(vm.defects, [cut("rbdlist"), cut("node_limit")]);
        let names = ["/nodes/hv1", "/nodes/hv1/monitoring_plugins", "/nodes/hv1/keepalive"];
        let values = ["coordinator".to_owned(), list(" ", "p"), "1".repeat(1 << 20)];
        let node = node(&raw(names.map(str::to_owned).into_iter().zip(values)), "hv1").unwrap();
        assert_eq!(node.plugins.len(), MOST_ENTRIES);
        assert_eq!(node.defects[0], cut("monitoring_plugins"));
        let long = "1".repeat(60);
        assert_eq!(node.defects[1], format!("`keepalive` is `{long}…`, not a number"));
    }

    #[test]
    fn of_texts_that_are_too_long_the_beginning_is_shown_and_no_other_key_suffers() {
        let entry = |name: u32| {
            let key = format!("tags/{name}/type");
            (key, "x".repeat(MOST_TEXT / 2 + 1))
        };
        let tags = (0..4).flat_map(|name| [(format!("tags/{name}"), String::new()), entry(name)]);
        let profile = ("profile".to_owned(), "é".repeat(MOST_TEXT));
        let vm = vm_with(tags.chain([profile]));
        let kinds: Vec<usize> = vm.tags.iter().map(|tag| tag.kind.len()).collect();
        assert_eq!(kinds, [MOST_TEXT / 2 + 1, MOST_TEXT / 2 - 1, 4, 4], "no kind is `user`");
        assert_eq!(vm.profile.map(|profile| profile.len()), Some(MOST_TEXT));
        assert_eq!((vm.state, vm.node), (VmState::Start, Some(NodeName::new("hv1"))));
        let defect = "`tags/3/type` has 524289 bytes, of which 0 are shown".to_owned();
        assert!(vm.defects.contains(&defect), "{:?}", vm.defects);
    }

    #[test]
    fn a_record_with_many_defects_names_some_and_counts_the_rest() {
        let vm = vm_with((0..100).flat_map(|name| {
            let key = format!("tags/{name:02}");
            [(key.clone(), String::new()), (format!("{key}/protected"), "odd".to_owned())]
        }));
        assert_eq!(vm.defects.len(), MOST_DEFECTS + 1);
        assert_eq!(vm.defects[0], "`tags/00/protected` is `odd`, not `True` or `False`");
        assert_eq!(vm.defects[MOST_DEFECTS], "and 80 more");
    }

    #[test]
    fn a_job_of_which_too_much_is_said_has_failed_or_is_none() {
        let id = JobId::from_bits(7);
        let spec = r#"{"name": "x", "node": "hv1", "run_on": "hv1"}"#.to_owned();
        let job = |spec: String, progress: String| {
            let root = format!("/tasks/{id}");
            let nodes = [(root, spec), (keys::task(id.as_str(), "progress"), progress)];
            job(&raw(nodes), &id)
        };
        let padded = |text: &str| format!("{text}{}", " ".repeat(MOST_JSON));
        assert!(job(spec.clone(), String::new()).is_some());
        assert!(job(padded(&spec), String::new()).is_none());
        let state = job(spec, padded("{}")).unwrap().progress.state;
        assert_eq!(state, pvc_model::job::JobState::Failed);
    }
}
