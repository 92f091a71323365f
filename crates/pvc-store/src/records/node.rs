//! Nodes: `/nodes/{name}` (`spec/zookeeper.md` §4.2), and what our daemons say of them besides:
//! `/pvcrs/working_on/{name}` and the notes in [`daemon_note`] and [`fence_note`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pvc_model::fence::FenceNote;
use pvc_model::node::{
    CoordinatorState, DaemonState, DomainState, NodeFigures, NodeRecord, NodeRole, PluginReport,
};
use pvc_model::{NodeName, Uuid};
use pvc_ports::{Bmc, Clock, Op, Tree};
use tokio::sync::watch;

use super::{Keys, Kind, PLAIN, daemon_note, fence_note, log, show, sriov, weight_of};
use crate::draft::Draft;
use crate::error::StoreError;
use crate::feed::EventKind;
use crate::raw::Raw;
use crate::reader::{MOST_ENTRIES, Reader, beginning, joined, set};
use crate::schema::SCHEMA_VERSION;
use crate::store::{Store, flat};

pub(crate) const ROOT: &str = "/nodes";

/// Time between two readings of the nodes' stamps by whoever has no need of them.
const READ_STAMPS: Duration = Duration::from_secs(10);

/// Reads the nodes' stamps again and again while `view` is kept up to date, for a process that has
/// jobs alone in view: of an old copy of the tree the client then knows that it has seen more.
pub(crate) async fn read_stamps(
    tree: Arc<dyn Tree>,
    clock: Arc<dyn Clock>,
    mut view: watch::Receiver<u64>,
) {
    let ended = async { while view.changed().await.is_ok() {} };
    let read = async {
        loop {
            clock.sleep(READ_STAMPS).await;
            // Without a connection there is nothing to be seen.
            let nodes = tree.children(ROOT).await.ok().flatten().unwrap_or_default();
            let stamp = |node: &String| format!("{ROOT}/{node}/keepalive");
            let _ = tree.get_many(&nodes.iter().map(stamp).collect::<Vec<_>>()).await;
        }
    };
    tokio::select! {
        biased;
        () = ended => {}
        () = read => {}
    }
}
const WORKING_ON: &str = "/pvcrs/working_on";

pub(super) const KIND: Kind = Kind {
    roots: &[ROOT, daemon_note::ROOT, WORKING_ON, fence_note::ROOT],
    base: &[(ROOT, ""), (daemon_note::ROOT, ""), (WORKING_ON, ""), (fence_note::ROOT, "")],
    keys: KEYS,
    names: sriov::NAMES,
    record: |key| key.first().map(str::to_owned),
    read: |raw, _, name| {
        let node = NodeName::new(name);
        let event = EventKind::Node(node.clone());
        show(|view| &mut view.nodes, node, read(raw, name), event)
    },
    weight: |raw, _, name| {
        let texts = ["runningdomains", "monitoring_plugins"];
        let lists =
            [("monitoring_data", 5), ("sriov/pf", 3), ("sriov/vf", sriov::KEYS_OF_FUNCTION)];
        weight_of(raw.place(ROOT).below(name), &lists, &texts)
    },
    is_of_list: |key| match key.below {
        [_, "monitoring_data", plugin, _] => key.root == ROOT && !plugin.is_empty(),
        _ => false,
    },
    is_stamp: |key| key.root == ROOT && matches!(key.below, [_, "keepalive", "", _]),
    is_observed: |key| match key.below {
        _ if key.root != ROOT => true,
        // What operators and their API write; all the rest the node observes.
        [_, "" | "sriov", ..] => false,
        [_, "daemonmode" | "domainstate", ..] => false,
        [_, "ipmihostname" | "ipmiusername" | "ipmipassword", ..] => false,
        _ => true,
    },
    // PVC 1.0.3 reads no record without it.
    secret_beside: |key| match key.below {
        [node, "ipmihostname" | "ipmipassword", "", _] if key.root == ROOT => {
            Some(format!("{ROOT}/{node}/ipmipassword"))
        }
        _ => None,
    },
    is_for_scripts: |_| true,
    ..PLAIN
};

/// The keys below a node's root.
pub(crate) const KEYS: Keys = &[
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

pub(crate) fn root(name: &NodeName) -> String {
    format!("{ROOT}/{name}")
}

pub(crate) fn key(name: &NodeName, key: &str) -> String {
    format!("{ROOT}/{name}/{key}")
}

/// State in which a node [comes back](DomainState::restored) whose one in a dump is `text`, if
/// `path` is the key of it.
pub(crate) fn restored_state(path: &str, text: &str) -> Option<DomainState> {
    node_of_domain_state(path).and_then(|_| DomainState::from_record(text).restored())
}

/// Whether `path` is the key by which a node that is fenced is being recovered now: whoever
/// wrote another state there would end that half-way, with its VMs down.
pub(crate) fn is_being_recovered(raw: &Raw, path: &str) -> bool {
    node_of_domain_state(path).is_some_and(|node| {
        let is = |key: &str, state: &str| {
            raw.text(&format!("{ROOT}/{node}/{key}")).is_some_and(|now| now == state)
        };
        is("domainstate", DomainState::FenceFlush.as_str())
            && is("daemonstate", DaemonState::Fenced.as_str())
    })
}

/// Name of the node whose domain state is at `path`.
fn node_of_domain_state(path: &str) -> Option<&str> {
    let (node, name) = path.strip_prefix(ROOT)?.strip_prefix('/')?.split_once('/')?;
    (name == "domainstate").then_some(node)
}

/// The VMs whose guests a node is starting or ending. Legacy peers say nothing of the kind.
fn working_on(name: &str) -> String {
    format!("{WORKING_ON}/{name}")
}

fn read(raw: &Raw, name: &str) -> Option<NodeRecord> {
    let root = format!("{ROOT}/{name}");
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
    let working_on = raw.text(&working_on(name)).unwrap_or_default();
    let working_on = uuids(beginning(&working_on)).take(MOST_ENTRIES).collect();
    let schema = |text: String| text.trim().parse().ok();
    let (daemon, hypervisor) = daemon_note::read(raw, name).unzip();
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
        figures: read_figures(&mut r),
        running,
        working_on,
        health: set(&health)
            .and_then(|health| health.parse().ok())
            .map(|health: u8| health.min(100)),
        plugins,
        network_stats: r.shared("network_stats"),
        ipmi_hostname: r.text("ipmihostname"),
        sriov: sriov::read(&mut r),
        daemon,
        hypervisor: hypervisor.flatten(),
        fence: fence_note::read(raw, name),
        defects: r.into_defects(),
    })
}

fn read_figures(r: &mut Reader<'_>) -> NodeFigures {
    NodeFigures {
        memory_total_mib: r.number("memtotal"),
        memory_used_mib: r.number("memused"),
        memory_free_mib: r.number("memfree"),
        memory_allocated_mib: r.number("memalloc"),
        memory_provisioned_mib: r.number("memprov"),
        vcpus_allocated: r.number("vcpualloc"),
        load: load(r),
        domains: r.number("domainscount"),
    }
}

/// The load average; 0 and a defect where it says what none can be.
fn load(r: &mut Reader<'_>) -> f64 {
    let load: f64 = r.number("cpuload");
    if load.is_finite() && load >= 0.0 {
        return load;
    }
    r.defect(|| format!("`cpuload` is `{load:?}`, not a load average"));
    0.0
}

/// Legacy peers leave a literal `0` in such a list; it is no UUID and falls out here.
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

/// A node to be recorded, with every key that legacy peers expect of it.
#[derive(Debug, Clone)]
pub struct NewNode {
    pub name: NodeName,
    pub role: NodeRole,
    pub cpus: u32,
    pub kernel: String,
    pub os: String,
    pub arch: String,
    pub version: String,
    pub ipmi: Ipmi,
    /// Seconds since the epoch.
    pub keepalive: u64,
}

/// A change of a node's record.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeChange {
    Role(NodeRole),
    Daemon(DaemonState),
    Coordinator(CoordinatorState),
    Domain(DomainState),
    StaticData { cpus: u32, kernel: String, os: String, arch: String },
    Version(String),
    Ipmi(Ipmi),
}

/// Address of a node's BMC, with user and password. `Debug` keeps the password to itself.
#[derive(Clone, PartialEq, Default)]
pub struct Ipmi {
    pub hostname: String,
    pub username: String,
    pub password: String,
}

impl Ipmi {
    /// The BMC that is reached so.
    pub fn bmc(&self) -> Bmc {
        Bmc {
            host: self.hostname.clone(),
            user: self.username.clone(),
            password: self.password.clone(),
        }
    }
}

impl std::fmt::Debug for Ipmi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ipmi").field("hostname", &self.hostname).finish_non_exhaustive()
    }
}

pub(crate) fn add(draft: &mut Draft<'_>, node: &NewNode) {
    draft.ensure(ROOT);
    // Written in the moment in which an earlier record of this name was removed.
    for path in [working_on(node.name.as_str()), daemon_note::path(node.name.as_str())] {
        draft.delete(&path);
    }
    draft.put(root(&node.name), node.role.as_str().to_owned());
    for (name, default) in KEYS {
        draft.put(key(&node.name, name), *default);
    }
    let zero = [
        "domainscount",
        "networkscount",
        "vcpualloc",
        "memtotal",
        "memused",
        "memfree",
        "memalloc",
        "memprov",
    ];
    for name in zero {
        draft.put(key(&node.name, name), "0");
    }
    let coordinator = node.role == NodeRole::Coordinator;
    let set = [
        ("keepalive", node.keepalive.to_string()),
        ("cpuload", "0.0".to_owned()),
        ("domainstate", "flushed".to_owned()),
        ("daemonstate", "init".to_owned()),
        ("routerstate", if coordinator { "secondary" } else { "client" }.to_owned()),
        ("activeschema", SCHEMA_VERSION.to_string()),
        ("latestschema", SCHEMA_VERSION.to_string()),
        ("network_stats", "{}".to_owned()),
    ];
    for (name, value) in set {
        draft.put(key(&node.name, name), value);
    }
    let NewNode { name, cpus, kernel, os, arch, .. } = node;
    write(draft, name, &NodeChange::Role(node.role.clone()));
    let (kernel, os, arch) = (kernel.clone(), os.clone(), arch.clone());
    write(draft, name, &NodeChange::StaticData { cpus: *cpus, kernel, os, arch });
    write(draft, name, &NodeChange::Version(node.version.clone()));
    write(draft, name, &NodeChange::Ipmi(node.ipmi.clone()));
}

/// Keys of a record whose versions its removal demands: what says that the node lives, or that
/// somebody counts on it.
const CHECKED: [&str; 5] =
    ["keepalive", "daemonstate", "routerstate", "domainstate", "runningdomains"];

/// Removes the record with everything below it, the notes about the node, and the log of its
/// daemons. Of a node that is fenced the note stays, for the next daemon of that name: what its
/// guests were was started elsewhere. Fencers of PVC 1.0.3 leave none.
pub(crate) fn remove(draft: &mut Draft<'_>, name: &NodeName) {
    let checked = CHECKED.map(|name_of_key| key(name, name_of_key));
    let checked: Vec<&str> = checked.iter().map(String::as_str).collect();
    draft.delete_as_seen(&root(name), &checked);
    let (node, lines) = (name.as_str(), log::root(name));
    for path in [working_on(node), daemon_note::path(node), lines] {
        draft.delete(&path);
    }
    let state = draft.seen().text(&key(name, "daemonstate"));
    if state.as_deref() != Some(DaemonState::Fenced.as_str()) {
        draft.delete(&fence_note::path(node));
        return;
    }
    let stamp = draft.seen().get(&key(name, "keepalive")).map(|stamp| stamp.version);
    let is_present = |note: &FenceNote| {
        note.proven_at.is_some() && (note.stamp.is_none() || note.stamp == stamp)
    };
    let unknown = || FenceNote {
        proven_at: Some(0),
        proof: "its record said that it was fenced".to_owned(),
        ..FenceNote::default()
    };
    let note = fence_note::read(draft.seen(), node).filter(is_present).unwrap_or_else(unknown);
    fence_note::put(draft, node, &note.of_removed());
}

pub(crate) fn write(draft: &mut Draft<'_>, name: &NodeName, change: &NodeChange) {
    let key = |key: &str| self::key(name, key);
    match change {
        NodeChange::Role(role) => {
            draft.put(root(name), role.as_str().to_owned());
            draft.put(key("daemonmode"), role.as_str().to_owned());
        }
        NodeChange::Daemon(state) => draft.put(key("daemonstate"), state.as_str().to_owned()),
        NodeChange::Coordinator(state) => draft.put(key("routerstate"), state.as_str().to_owned()),
        NodeChange::Domain(state) => draft.put(key("domainstate"), state.as_str().to_owned()),
        NodeChange::StaticData { cpus, kernel, os, arch } => {
            // Four words separated by spaces: a space within one would shift the others.
            let word = |text: &str| {
                if text.is_empty() { "unknown".to_owned() } else { text.replace(' ', "_") }
            };
            let text = format!("{cpus} {} {} {}", word(kernel), word(os), word(arch));
            draft.put(key("staticdata"), text);
        }
        NodeChange::Version(version) => draft.put(key("pvcversion"), version.clone()),
        NodeChange::Ipmi(Ipmi { hostname, username, password }) => {
            draft.put(key("ipmihostname"), hostname.clone());
            draft.put(key("ipmiusername"), username.clone());
            draft.put(key("ipmipassword"), password.clone());
        }
    }
}

/// Demands that the key `name` of the node's record is as it was seen.
pub(crate) fn expect(draft: &mut Draft<'_>, node: &NodeName, name: &str) -> Result<(), StoreError> {
    draft.check_key(&root(node), name, KEYS)
}

pub(crate) fn running(node: &NodeName, vms: &[Uuid]) -> (String, String) {
    (key(node, "runningdomains"), joined(vms, " "))
}

pub(crate) fn guests_at_work(node: &NodeName, vms: &[Uuid]) -> (String, String) {
    (working_on(node.as_str()), joined(vms, " "))
}

pub(crate) fn health(node: &NodeName, health: Option<u8>) -> (String, String) {
    let text = health.map_or_else(|| "None".to_owned(), |health| health.to_string());
    (key(node, "monitoring_health"), text)
}

pub(crate) fn figures(node: &NodeName, figures: &NodeFigures) -> Vec<(String, String)> {
    let values = [
        ("memtotal", figures.memory_total_mib.to_string()),
        ("memused", figures.memory_used_mib.to_string()),
        ("memfree", figures.memory_free_mib.to_string()),
        ("memalloc", figures.memory_allocated_mib.to_string()),
        ("memprov", figures.memory_provisioned_mib.to_string()),
        ("vcpualloc", figures.vcpus_allocated.to_string()),
        ("cpuload", load_text(figures.load)),
        ("domainscount", figures.domains.to_string()),
    ];
    values.into_iter().map(|(name, value)| (key(node, name), value)).collect()
}

/// At most two decimals, at least one: `0.5`, `1.25`, `3.0`.
fn load_text(load: f64) -> String {
    format!("{:?}", (load * 100.0).round() / 100.0)
}

/// The nodes with a BMC whose password is not known: nobody can fence them.
pub(crate) fn unfenceable(raw: &Raw) -> Vec<NodeName> {
    let is_given =
        |node: &NodeName, name| raw.get(&key(node, name)).is_some_and(|node| !node.data.is_empty());
    let nodes = raw.children(ROOT).into_iter().map(NodeName::new);
    nodes.filter(|node| is_given(node, "ipmihostname") && !is_given(node, "ipmipassword")).collect()
}

impl Store {
    /// Writes the node's keepalive stamp: alone, whatever its version.
    pub async fn stamp(&self, node: &NodeName, epoch_seconds: u64) -> Result<(), StoreError> {
        let data = Bytes::from(epoch_seconds.to_string());
        let stamp = vec![Op::Set { path: key(node, "keepalive"), data, version: None }];
        self.tree.multi(stamp).await.map(drop).map_err(flat)
    }

    /// Asks the tree which of the nodes have records, not before this call: these may not be in
    /// view yet, and in a [view of jobs alone](Store::open_jobs) none is.
    pub async fn recorded_nodes(
        &self,
        nodes: &BTreeSet<NodeName>,
    ) -> Result<BTreeSet<NodeName>, StoreError> {
        self.tree.sync().await?;
        let paths: Vec<String> = nodes.iter().map(root).collect();
        let entries = self.tree.get_many(&paths).await?;
        let recorded = nodes.iter().zip(entries).filter(|(_, entry)| entry.is_some());
        Ok(recorded.map(|(node, _)| node.clone()).collect())
    }

    /// Returns what reaches the BMC of `node`; `None` if it has none.
    pub fn ipmi(&self, node: &NodeName) -> Option<Ipmi> {
        self.with_raw(|raw| {
            let text = |name: &str| {
                raw.text(&key(node, name)).map(|text| text.into_owned()).unwrap_or_default()
            };
            let ipmi = Ipmi {
                hostname: text("ipmihostname"),
                username: text("ipmiusername"),
                password: text("ipmipassword"),
            };
            (!ipmi.hostname.is_empty()).then_some(ipmi)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::raw_of;

    #[test]
    fn of_too_many_plugins_the_first_are_shown_and_of_a_long_number_the_beginning() {
        let plugins = (0..MOST_ENTRIES + 1).map(|number| format!("p{number:06} ")).collect();
        let names = ["/nodes/hv1", "/nodes/hv1/monitoring_plugins", "/nodes/hv1/keepalive"];
        let values = ["coordinator".to_owned(), plugins, "1".repeat(1 << 20)];
        let node = read(&raw_of(names.map(str::to_owned).into_iter().zip(values)), "hv1").unwrap();
        assert_eq!(node.plugins.len(), MOST_ENTRIES);
        assert_eq!(
            node.defects[0],
            "`monitoring_plugins` has more entries than the 10000 that are shown"
        );
        let long = "1".repeat(60);
        assert_eq!(node.defects[1], format!("`keepalive` is `{long}…`, not a number"));
    }

    #[test]
    fn a_load_that_none_can_be_is_0_and_a_defect() {
        let names = ["/nodes/hv1", "/nodes/hv1/cpuload"];
        let of = |load: &str| {
            let values = ["coordinator", load].map(str::to_owned);
            read(&raw_of(names.map(str::to_owned).into_iter().zip(values)), "hv1").unwrap()
        };
        for (load, shown) in
            [("NaN", "NaN"), ("inf", "inf"), ("1e999", "inf"), ("-inf", "-inf"), ("-0.5", "-0.5")]
        {
            let node = of(load);
            assert_eq!(node.figures.load, 0.0, "{load}");
            assert_eq!(node.defects, [format!("`cpuload` is `{shown}`, not a load average")]);
        }
        let node = of("0.5");
        assert_eq!((node.figures.load, node.defects.len()), (0.5, 0));
    }

    #[test]
    fn the_load_has_two_decimals_at_most_as_legacy_peers_write_it() {
        for (load, text) in [
            (0.0, "0.0"),
            (0.5, "0.5"),
            (1.25, "1.25"),
            (3.0, "3.0"),
            (0.129, "0.13"),
            (11.999, "12.0"),
        ] {
            assert_eq!(load_text(load), text);
        }
    }
}
