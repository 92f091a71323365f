//! VMs: `/domains/{uuid}` (`spec/zookeeper.md` §4.3), and the note of a VM's latest move in
//! [`move_note`].

use std::sync::Arc;

use bytes::Bytes;
use pvc_model::cluster::Cluster;
use pvc_model::storage::VolumeId;
use pvc_model::vm::{
    DEFAULT_MAX_DOWNTIME_MS, MigrationMethod, Selector, Tag, VmRecord, VmSnapshot, VmState,
};
use pvc_model::{NodeName, Uuid};

use super::{Keys, Kind, PLAIN, bytes_at, move_note, update, weight_of};
use crate::draft::Draft;
use crate::error::StoreError;
use crate::feed::EventKind;
use crate::raw::{Place, Raw};
use crate::reader::{Reader, beginning, comma_list, joined, python_bool, set};
use crate::store::Store;

pub(crate) const ROOT: &str = "/domains";

pub(super) const KIND: Kind = Kind {
    roots: &[ROOT, move_note::ROOT],
    base: &[(ROOT, ""), (move_note::ROOT, "")],
    keys: KEYS,
    names: &["type", "protected", "timestamp", "rbdsnaplist"],
    record: |key| Uuid::try_parse(key.below[0]).ok().map(|uuid| uuid.to_string()),
    read: |raw, view, name| {
        let uuid = uuid(name);
        let previous = view.vms.get(&uuid).map(|vm| &**vm);
        let record = read(raw, uuid, previous).map(Arc::new);
        Box::new(move |view| show(view, uuid, record).map(|gone| (EventKind::Vm(uuid), gone)))
    },
    weight: |raw, view, name| {
        let (uuid, place) = (uuid(name), raw.place(ROOT).below(name));
        let lists = [("tags", 3), ("snapshots", 4)];
        let unparsed = unparsed(place, view.vms.get(&uuid));
        weight_of(place, &lists, &["rbdlist", "node_limit"]) + unparsed
    },
    settle: show_hidden,
    is_of_list: |key| match key.below {
        [_, "tags" | "snapshots", entry, _] => key.root == ROOT && !entry.is_empty(),
        _ => false,
    },
    is_left_out: |key| key.root == ROOT && matches!(key.below, [_, "consolelog", "", _]),
    is_observed: |key| match key.below {
        _ if key.root == move_note::ROOT => true,
        // What the node observes that runs the VM.
        [_, "stats" | "vnc" | "consolelog" | "failedreason", "", _] => true,
        _ => false,
    },
    // Its version grows with every definition and rename.
    is_guard: |key| key.root == ROOT && key.is_root(),
    is_for_scripts: |_| true,
    ..PLAIN
};

/// The keys below a VM's root.
pub(crate) const KEYS: Keys = &[
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

pub(crate) fn root(uuid: Uuid) -> String {
    format!("{ROOT}/{uuid}")
}

pub(crate) fn key(uuid: Uuid, name: &str) -> String {
    format!("{ROOT}/{uuid}/{name}")
}

/// State in which a VM [comes back](VmState::restored) whose one in a dump is `text`, if `path` is
/// the key of a VM's state.
pub(crate) fn restored_state(path: &str, text: &str) -> Option<VmState> {
    let (_, name) = path.strip_prefix(ROOT)?.strip_prefix('/')?.split_once('/')?;
    (name == "state").then(|| VmState::from_record(text).restored()).flatten()
}

/// The key, with its value, by which a node that becomes ready leaves the VM at `root` off.
pub(crate) fn no_autostart(root: &str) -> (String, String) {
    (format!("{root}/node_autostart"), python_bool(false).to_owned())
}

/// The VM whose record has that name.
fn uuid(name: &str) -> Uuid {
    Uuid::try_parse(name).expect("a VM's record has its UUID for a name")
}

/// The record of VM `uuid`. What `previous` parsed of the same XML is taken over: statistics change
/// every few seconds, XML hardly ever.
fn read(raw: &Raw, uuid: Uuid, previous: Option<&VmRecord>) -> Option<VmRecord> {
    let root = root(uuid);
    let name = beginning(&raw.text(&root)?).to_owned();
    let incarnation = raw.get(&root).map_or(0, |node| node.czxid);
    let state_version = raw.get(&key(uuid, "state")).map_or(-1, |node| node.version);
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
    let selector = selector(&mut r);
    let migration_method = migration_method(&mut r);
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
        migration_method,
        max_downtime_ms: if max_downtime == 0 { DEFAULT_MAX_DOWNTIME_MS } else { max_downtime },
        selector,
        node_limit,
        tags,
        snapshots,
        moving: move_note::read(raw, uuid),
        defects: r.into_defects(),
    })
}

fn selector(r: &mut Reader<'_>) -> Option<Selector> {
    let word = r.text("node_selector").to_lowercase();
    set(&word).filter(|word| *word != "none").map(Selector::from_record)
}

fn migration_method(r: &mut Reader<'_>) -> Option<MigrationMethod> {
    let method = r.text("migration_method").to_lowercase();
    set(&method)
        .filter(|method| !matches!(*method, "none" | "default"))
        .map(MigrationMethod::from_record)
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

/// Bytes of XML that are to be parsed although they may not have changed: those of a record that is
/// shown with another one, or not at all.
fn unparsed(place: Place<'_>, shown: Option<&Arc<VmRecord>>) -> usize {
    let bytes = bytes_at(place, "xml");
    if shown.is_some_and(|vm| vm.xml.len() == bytes) { 0 } else { bytes }
}

/// Puts the record in its place. Returns whether it is gone, if anything changed.
fn show(view: &mut Cluster, uuid: Uuid, record: Option<Arc<VmRecord>>) -> Option<bool> {
    let previous = view.vms.get(&uuid).cloned();
    let renamed = previous.as_ref().map(|vm| &vm.name) != record.as_ref().map(|vm| &vm.name);
    let gone = update(&mut view.vms, uuid, record);
    if renamed {
        rename(view, uuid, previous.map(|vm| vm.name.clone()));
    }
    gone
}

/// Brings the index of names up to date after VM `uuid` got another name, came or went. What it hid
/// is [put back](show_hidden) when all that has changed is read.
fn rename(view: &mut Cluster, uuid: Uuid, old: Option<String>) {
    if let Some(old) = old
        && view.vm_names.get(&old) == Some(&uuid)
    {
        view.vm_names.remove(&old);
    }
    if let Some(vm) = view.vms.get(&uuid) {
        let holder = view.vm_names.entry(vm.name.clone()).or_insert(uuid);
        *holder = (*holder).min(uuid);
    }
}

/// Puts VMs into the index of names whose name another one had, which is gone or has another now.
fn show_hidden(view: &mut Cluster) {
    // As a rule each VM has a name of its own, and each name is there.
    if view.vm_names.len() < view.vms.len() {
        for (uuid, vm) in &view.vms {
            view.vm_names.entry(vm.name.clone()).or_insert(*uuid);
        }
    }
}

/// A VM to be recorded.
#[derive(Debug, Clone)]
pub struct NewVm {
    pub uuid: Uuid,
    pub name: String,
    pub state: VmState,
    pub node: Option<NodeName>,
    pub xml: String,
    pub profile: Option<String>,
    pub volumes: Vec<VolumeId>,
    pub autostart: bool,
    pub migration_method: Option<MigrationMethod>,
    pub max_downtime_ms: u32,
    pub selector: Option<Selector>,
    pub node_limit: Vec<NodeName>,
    pub tags: Vec<Tag>,
}

/// A change of a VM's record.
#[derive(Debug, Clone, PartialEq)]
pub enum VmChange {
    Name(String),
    Xml(String),
    /// Writing the same word again is a new request: the record's `state_version` grows.
    State(VmState),
    Node(NodeName),
    LastNode(Option<NodeName>),
    FailedReason(String),
    Profile(String),
    Volumes(Vec<VolumeId>),
    Autostart(bool),
    MigrationMethod(Option<MigrationMethod>),
    MaxDowntime(u32),
    Selector(Option<Selector>),
    NodeLimit(Vec<NodeName>),
    /// Adds the tag, or changes its protection.
    AddTag(Tag),
    RemoveTag(String),
    /// The volumes of an existing snapshot of the VM, as `pool/volume@snapshot`.
    SnapshotVolumes {
        snapshot: String,
        volumes: Vec<String>,
    },
    SnapshotXml {
        snapshot: String,
        xml: String,
    },
}

pub(crate) fn define(draft: &mut Draft<'_>, vm: &NewVm) {
    draft.ensure(ROOT);
    draft.put(root(vm.uuid), vm.name.clone());
    for (name, default) in KEYS {
        draft.put(key(vm.uuid, name), *default);
    }
    let changes = [
        VmChange::Xml(vm.xml.clone()),
        VmChange::State(vm.state.clone()),
        VmChange::Profile(vm.profile.clone().unwrap_or_else(|| "None".to_owned())),
        VmChange::Volumes(vm.volumes.clone()),
        VmChange::Autostart(vm.autostart),
        VmChange::MigrationMethod(vm.migration_method.clone()),
        VmChange::MaxDowntime(vm.max_downtime_ms),
        VmChange::Selector(vm.selector.clone()),
        VmChange::NodeLimit(vm.node_limit.clone()),
    ];
    let node = vm.node.clone().map(VmChange::Node);
    let tags = vm.tags.iter().cloned().map(VmChange::AddTag);
    for change in changes.into_iter().chain(node).chain(tags) {
        write(draft, vm.uuid, &change);
    }
}

pub(crate) fn write(draft: &mut Draft<'_>, uuid: Uuid, change: &VmChange) {
    // A VM that was removed meanwhile must not come back as a half record.
    if !draft.demand(root(uuid)) {
        return;
    }
    let key = |name: &str| key(uuid, name);
    match change {
        VmChange::Name(name) => draft.put(root(uuid), name.clone()),
        VmChange::Xml(xml) => draft.put(key("xml"), xml.clone()),
        VmChange::State(state) => draft.put(key("state"), state.as_str().to_owned()),
        VmChange::Node(node) => draft.put(key("node"), node.to_string()),
        VmChange::LastNode(node) => {
            draft.put(key("lastnode"), node.as_ref().map(NodeName::to_string).unwrap_or_default())
        }
        VmChange::FailedReason(reason) => draft.put(key("failedreason"), reason.clone()),
        VmChange::Profile(profile) => draft.put(key("profile"), profile.clone()),
        VmChange::Volumes(volumes) => draft.put(key("rbdlist"), joined(volumes, ",")),
        VmChange::Autostart(on) => draft.put(key("node_autostart"), python_bool(*on)),
        VmChange::MigrationMethod(method) => {
            let word = method.as_ref().map_or("none", |method| method.as_str());
            draft.put(key("migration_method"), word.to_owned());
        }
        VmChange::MaxDowntime(ms) => draft.put(key("migration_max_downtime"), ms.to_string()),
        VmChange::Selector(selector) => {
            let word = selector.as_ref().map_or("none", |selector| selector.as_str());
            draft.put(key("node_selector"), word.to_owned());
        }
        VmChange::NodeLimit(nodes) => draft.put(key("node_limit"), joined(nodes, ",")),
        VmChange::AddTag(tag) => {
            let tag_key = key(&format!("tags/{}", tag.name));
            draft.put_deep(tag_key.clone(), tag.name.clone());
            draft.put(format!("{tag_key}/type"), tag.kind.clone());
            draft.put(format!("{tag_key}/protected"), python_bool(tag.protected));
        }
        VmChange::RemoveTag(tag) => draft.delete(&key(&format!("tags/{tag}"))),
        VmChange::SnapshotVolumes { snapshot, volumes } => {
            draft.put(key(&format!("snapshots/{snapshot}/rbdsnaplist")), volumes.join(","));
        }
        VmChange::SnapshotXml { snapshot, xml } => {
            draft.put(key(&format!("snapshots/{snapshot}/xml")), xml.clone());
        }
    }
}

/// Removes the record, and what is noted of its last move.
pub(crate) fn remove(draft: &mut Draft<'_>, uuid: Uuid) {
    draft.delete_as_seen(&root(uuid), &[&key(uuid, "state")]);
    draft.delete(&move_note::path(uuid));
}

/// Demands that the key `name` of the VM's record is as it was seen.
pub(crate) fn expect(draft: &mut Draft<'_>, uuid: Uuid, name: &str) -> Result<(), StoreError> {
    draft.check_key(&root(uuid), name, KEYS)
}

/// Demands that the set of names of VMs is as it was seen: its version grows with every definition
/// and rename, whoever of us does it.
pub(crate) fn expect_names(draft: &mut Draft<'_>) {
    draft.put(ROOT.to_owned(), Bytes::new());
}

impl Store {
    /// The latest lines of a VM's serial console. Reads the tree: the cache leaves these out.
    pub async fn console_log(&self, vm: Uuid) -> Result<Option<String>, StoreError> {
        self.read_text(&key(vm, "consolelog")).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::{MOST_DEFECTS, MOST_ENTRIES, MOST_TEXT, raw_of};

    const VM: Uuid = Uuid::from_u128(7);

    fn vm_with(nodes: impl IntoIterator<Item = (String, String)>) -> VmRecord {
        let root = [
            (root(VM), "web1".to_owned()),
            (key(VM, "state"), "start".to_owned()),
            (key(VM, "node"), "hv1".to_owned()),
        ];
        let nodes = nodes.into_iter().map(|(name, value)| (key(VM, &name), value));
        read(&raw_of(root.into_iter().chain(nodes)), VM, None).unwrap()
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
    fn a_state_is_restored_as_one_and_no_other_key_is() {
        let of = |path: &str, text: &str| restored_state(path, text);
        assert_eq!(of(&key(VM, "state"), "provision"), Some(VmState::Disable));
        assert_eq!(of(&key(VM, "state"), "migrate-live"), Some(VmState::Start));
        assert_eq!(of(&key(VM, "state"), "stop"), None);
        for path in ["/domains", "/domains/state", "/domainsx/a/state", "/nodes/hv1/state"] {
            assert_eq!(of(path, "provision"), None, "{path}");
        }
        for path in [root(VM), key(VM, "profile"), key(VM, "tags/state"), key(VM, "state/x")] {
            assert_eq!(of(&path, "provision"), None, "{path}");
        }
    }
}
