//! VMs on the wire.

use std::time::Duration;

use std::collections::BTreeMap;

use pvc_api_types as api;
use pvc_model::NodeName;
use pvc_model::domain::{Disk, DiskSource, DomainSummary, Nic, NicKind};
use pvc_model::placement::Unfit;
use pvc_model::vm::moving::MoveNote;
use pvc_model::vm::{MigrationMethod, Selector, VmRecord, VmSnapshot, VmState};
use pvc_ops::vm::{How, MovePlan};
use serde::Deserialize;
use serde_json::Value;
use similar::TextDiff;

/// Everything known about a VM but the texts that take time to make: its XML and its snapshots.
///
/// A record that cannot be read is shown as far as it goes, and its `failed_reason` names the
/// defect: a VM that vanishes from the list looks deleted.
pub fn vm_without_texts(record: &VmRecord) -> api::Vm {
    let stats =
        if has_guest(&record.state) { Stats::read(&record.stats) } else { Stats::default() };
    let empty =
        api::Vm { description: "N/A".into(), vcpu_topology: "N/A".into(), ..api::Vm::default() };
    let described = record.domain.as_ref().map_or(empty, |domain| described(domain, &stats));
    api::Vm {
        name: record.name.clone(),
        uuid: record.uuid.to_string(),
        state: state(record),
        node: node(record),
        last_node: last_node(record),
        migrated: record.last_node.as_ref().map_or("no".into(), |node| format!("from {node}")),
        failed_reason: failed_reason(record),
        node_limit: node_limit(record),
        node_selector: record.selector.as_ref().map(Selector::to_string),
        node_autostart: record.autostart,
        migration_method: record.migration_method.as_ref().map(MigrationMethod::to_string),
        migration_max_downtime: record.max_downtime_ms.into(),
        tags: tags(record),
        profile: record.profile.clone().unwrap_or_else(|| "None".into()),
        memory_stats: stats.mem_stats,
        vcpu_stats: stats.cpu_stats,
        vnc: vnc(&record.vnc),
        migration: record.moving.as_ref().map(migration),
        ..described
    }
}

/// Snapshots of the VM with how their definitions differ from the present one; their ages are left
/// 0.
pub fn snapshots(record: &VmRecord) -> Vec<api::VmSnapshot> {
    let time = DIFF_TIME / u32::try_from(record.snapshots.len()).unwrap_or(u32::MAX).max(1);
    record.snapshots.iter().map(|found| snapshot(found, &record.xml, time)).collect()
}

/// Definition of the VM on one line, attributes in single quotes.
pub fn xml(record: &VmRecord) -> String {
    pvc_domain::one_line_single_quotes(&record.xml).unwrap_or_else(|_| record.xml.replace('"', "'"))
}

/// The word for its state. Clients know the words of the model and stumble over any other.
pub fn state(record: &VmRecord) -> String {
    match &record.state {
        VmState::Unknown(_) => VmState::Fail.to_string(),
        known => known.to_string(),
    }
}

pub fn node(record: &VmRecord) -> String {
    record.node.as_ref().map(ToString::to_string).unwrap_or_default()
}

pub fn last_node(record: &VmRecord) -> String {
    record.last_node.as_ref().map(ToString::to_string).unwrap_or_default()
}

pub fn node_limit(record: &VmRecord) -> Option<Vec<String>> {
    let limit: Vec<String> = record.node_limit.iter().map(ToString::to_string).collect();
    (!limit.is_empty()).then_some(limit)
}

pub fn tags(record: &VmRecord) -> Vec<api::VmTag> {
    let tag = |tag: &pvc_model::vm::Tag| api::VmTag {
        name: tag.name.clone(),
        r#type: tag.kind.clone(),
        protected: tag.protected,
    };
    record.tags.iter().map(tag).collect()
}

fn migration(note: &MoveNote) -> api::VmMigration {
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    api::VmMigration {
        from: note.from.to_string(),
        to: note.to.to_string(),
        phase: note.phase.as_str().to_owned(),
        attempt: note.attempt.into(),
        seconds: number(note.seconds),
        percent: note.percent().into(),
        total_bytes: number(note.total_bytes),
        processed_bytes: number(note.processed_bytes),
        remaining_bytes: number(note.remaining_bytes),
        why: note.why.clone(),
    }
}

/// Prediction of a move.
pub fn move_plan(plan: &MovePlan) -> api::MovePlan {
    let text = |node: &Option<NodeName>| node.as_ref().map(ToString::to_string).unwrap_or_default();
    let candidate = |(name, weighed): (&NodeName, &Result<f64, Unfit>)| api::MoveCandidate {
        name: name.to_string(),
        suitable: weighed.is_ok(),
        reason: match weighed {
            Ok(merit) => format!("has {}", plan.weighed.seen(*merit)),
            Err(unfit) => unfit.to_string(),
        },
    };
    let name = &plan.name;
    let message = match (&plan.to, plan.how) {
        (None, _) => format!("VM `{name}` would stay: no node can take it"),
        (Some(_), How::NotAtAll) => {
            format!(
                "VM `{name}` would stay: it may only be moved by a shutdown, and live was asked for"
            )
        }
        (Some(to), How::Start) => {
            format!("VM `{name}` would go to node `{to}` and be started there")
        }
        (Some(to), _) => format!("VM `{name}` would go to node `{to}`"),
    };
    api::MovePlan {
        message,
        name: name.clone(),
        from: text(&plan.from),
        to: text(&plan.to),
        method: plan.how.as_str().to_owned(),
        selector: plan.weighed.selector.to_string(),
        nodes: plan.weighed.nodes.iter().map(candidate).collect(),
    }
}

pub fn vcpus(record: &VmRecord) -> api::VmVcpus {
    let domain = record.domain.as_ref();
    let topology = domain.ok().and_then(|domain| domain.topology);
    api::VmVcpus {
        name: record.name.clone(),
        vcpus: domain.map_or(0, |domain| domain.vcpus.into()),
        sockets: topology.map(|(sockets, ..)| sockets.into()),
        cores: topology.map(|(_, cores, _)| cores.into()),
        threads: topology.map(|(.., threads)| threads.into()),
    }
}

pub fn meta(record: &VmRecord, name: &str) -> api::VmMeta {
    api::VmMeta {
        name: name.to_owned(),
        node_limit: node_limit(record),
        node_selector: record.selector.as_ref().map(Selector::to_string),
        node_autostart: if record.autostart { "True" } else { "False" }.into(),
        migration_method: record.migration_method.as_ref().map(MigrationMethod::to_string),
        migration_max_downtime: record.max_downtime_ms.into(),
    }
}

/// Reason of a failure, and the parts of the record that cannot be read.
pub fn failed_reason(record: &VmRecord) -> String {
    let mut reasons: Vec<String> = Vec::new();
    if !record.failed_reason.is_empty() {
        reasons.push(record.failed_reason.clone());
    }
    if let VmState::Unknown(word) = &record.state {
        reasons.push(format!("the record has the unknown state `{word}`"));
    }
    if let Err(why) = &record.domain {
        reasons.push(format!("the record's XML cannot be read: {why}"));
    }
    if !record.defects.is_empty() {
        reasons.push(format!("the record is damaged: {}", record.defects.join(", ")));
    }
    reasons.join("; ")
}

/// Whether there should be a guest now, and its statistics mean something. They are never cleared.
fn has_guest(state: &VmState) -> bool {
    use VmState::{Migrate, MigrateLive, Restart, Shutdown, Start, Unmigrate};
    matches!(state, Start | Restart | Shutdown | Migrate | MigrateLive | Unmigrate)
}

/// The members that come from the XML.
fn described(domain: &DomainSummary, stats: &Stats) -> api::Vm {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let topology = |(sockets, cores, threads)| format!("{sockets}/{cores}/{threads}");
    api::Vm {
        description: domain.description.clone().unwrap_or_else(|| "N/A".into()),
        memory: i64::try_from(domain.memory_mib).unwrap_or(i64::MAX),
        vcpu: domain.vcpus.into(),
        vcpu_topology: domain.topology.map_or_else(|| "N/A".into(), topology),
        networks: networks(&domain.nics, stats),
        r#type: domain.os_type.clone(),
        arch: text(&domain.arch),
        machine: text(&domain.machine),
        console: text(&domain.console),
        emulator: text(&domain.emulator),
        features: domain.features.clone(),
        disks: domain.disks.iter().map(|d| disk(d, &stats.disk_stats)).collect(),
        controllers: domain
            .controllers
            .iter()
            .map(|c| api::VmController { r#type: c.kind.clone(), model: c.model.clone() })
            .collect(),
        ..api::Vm::default()
    }
}

/// The NICs with their counters: the n-th NIC on a bridge has the n-th counters of that bridge.
fn networks(nics: &[Nic], all: &Stats) -> Vec<api::VmNetwork> {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let network = |nic| {
        let source = source(nic);
        let nth = seen.entry(source).or_default();
        let stats = all
            .net_stats
            .iter()
            .filter(|stats| stats.bridge == source)
            .nth(*nth)
            .cloned()
            .unwrap_or_default();
        *nth += 1;
        api::VmNetwork {
            r#type: kind(&nic.kind).to_owned(),
            vni: nic.vni(),
            mac: filled(&nic.mac),
            source: filled(source),
            model: filled(&nic.model),
            rd_bytes: stats.rd_bytes,
            rd_packets: stats.rd_packets,
            rd_errors: stats.rd_errors,
            rd_drops: stats.rd_drops,
            wr_bytes: stats.wr_bytes,
            wr_packets: stats.wr_packets,
            wr_errors: stats.wr_errors,
            wr_drops: stats.wr_drops,
            addresses: all
                .addresses
                .get(&nic.mac.to_ascii_lowercase())
                .cloned()
                .unwrap_or_default(),
        }
    };
    nics.iter().map(network).collect()
}

fn source(nic: &Nic) -> &str {
    match &nic.kind {
        NicKind::Bridge(source) | NicKind::Direct(source) | NicKind::Hostdev(source) => source,
        NicKind::Other { source, .. } => source,
    }
}

fn filled(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn kind(kind: &NicKind) -> &str {
    match kind {
        NicKind::Bridge(_) => "bridge",
        NicKind::Direct(_) => "direct",
        NicKind::Hostdev(_) => "hostdev",
        NicKind::Other { kind, .. } => kind,
    }
}

fn disk(disk: &Disk, stats: &[DiskStats]) -> api::VmDisk {
    let (kind, name) = match &disk.source {
        DiskSource::Volume(id) => ("rbd", id.to_string()),
        DiskSource::File(path) => ("file", path.clone()),
        DiskSource::Empty => ("file", String::new()),
        DiskSource::Other(kind) => (kind.as_str(), String::new()),
    };
    let stats = stats.iter().find(|stats| stats.name == name).cloned().unwrap_or_default();
    api::VmDisk {
        r#type: kind.to_owned(),
        name,
        dev: disk.target.clone(),
        bus: disk.bus.clone(),
        rd_req: stats.rd_req,
        rd_bytes: stats.rd_bytes,
        wr_req: stats.wr_req,
        wr_bytes: stats.wr_bytes,
    }
}

/// `listen:port` in two members. An IPv6 address has colons of its own.
fn vnc(recorded: &str) -> api::VmVnc {
    match recorded.rsplit_once(':') {
        Some((listen, port)) => {
            api::VmVnc { listen: Some(listen.to_owned()), port: Some(port.to_owned()) }
        }
        None => api::VmVnc::default(),
    }
}

fn snapshot(snapshot: &VmSnapshot, current_xml: &str, time: Duration) -> api::VmSnapshot {
    api::VmSnapshot {
        name: snapshot.name.clone(),
        timestamp: snapshot.timestamp.clone(),
        age: 0,
        xml_diff_lines: xml_diff(current_xml, &snapshot.xml, time),
        rbd_snapshots: snapshot.volumes.clone(),
    }
}

/// Time for which the diffs of one VM may be looked for; after that a longer one than needed is
/// given.
const DIFF_TIME: Duration = Duration::from_millis(50);

/// A unified diff from the present definition to the snapshot's, as lines; none if they are equal.
fn xml_diff(current: &str, snapshot: &str, time: Duration) -> Vec<String> {
    if current == snapshot {
        return Vec::new();
    }
    let diff = TextDiff::configure().timeout(time).diff_lines(current, snapshot);
    let text = diff
        .unified_diff()
        .context_radius(1)
        .missing_newline_hint(false)
        .header("current", "snapshot")
        .to_string();
    text.lines().map(str::to_owned).collect()
}

/// The statistics that a node records about a guest. What is missing or of another shape is 0: old
/// peers and new ones do not write the same members.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Stats {
    #[serde(deserialize_with = "counters")]
    mem_stats: BTreeMap<String, f64>,
    #[serde(deserialize_with = "counters")]
    cpu_stats: BTreeMap<String, f64>,
    disk_stats: Vec<DiskStats>,
    net_stats: Vec<NetStats>,
    /// Addresses of its network cards, by their MAC addresses, as the agent in the guest says.
    addresses: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct DiskStats {
    name: String,
    rd_req: i64,
    rd_bytes: i64,
    wr_req: i64,
    wr_bytes: i64,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct NetStats {
    bridge: String,
    rd_bytes: i64,
    rd_packets: i64,
    rd_errors: i64,
    rd_drops: i64,
    wr_bytes: i64,
    wr_packets: i64,
    wr_errors: i64,
    wr_drops: i64,
}

impl Stats {
    fn read(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }
}

fn counters<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, f64>, D::Error> {
    let values = Option::<BTreeMap<String, Value>>::deserialize(deserializer)?.unwrap_or_default();
    Ok(values.into_iter().filter_map(|(name, value)| Some((name, value.as_f64()?))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of two texts without a common line every pair of lines may have to be compared.
    #[test]
    fn a_diff_that_would_take_minutes_is_longer_than_needed_and_whole() {
        let lines =
            |word: &str| -> String { (0..50_000).map(|n| format!("{word}{n}\n")).collect() };
        let diff = xml_diff(&lines("old"), &lines("new"), DIFF_TIME);
        let count = |sign: char| diff.iter().filter(|line| line.starts_with(sign)).count();
        // Each has a line of the heading.
        assert_eq!((count('-'), count('+')), (50_001, 50_001));
    }
}
