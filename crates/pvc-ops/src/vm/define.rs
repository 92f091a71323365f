//! Recording a VM, and changing what is recorded of its hardware.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pvc_domain::{Domain, Problem};
use pvc_model::cluster::Cluster;
use pvc_model::domain::{Disk, DiskSource, DomainSummary, Nic, NicKind};
use pvc_model::guest_network::mac::{MacTaken, check_macs, is_plugged_in};
use pvc_model::hold::{Held, check_not_held};
use pvc_model::placement::{Need, NoPlace, Promises, Unfit, check_size, place, selector_for};
use pvc_model::request::is_off;
use pvc_model::sriov::{NoFunction, check_new_functions, is_tied, vf_of};
use pvc_model::storage::VolumeId;
use pvc_model::vm::{DEFAULT_MAX_DOWNTIME_MS, MigrationMethod, Selector, Tag, VmRecord, VmState};
use pvc_model::{NodeName, Uuid, shown};
use pvc_ports::aside;
use pvc_store::{Change, ChangeError, Changes, Expect, NewVm, Store, VmChange};

use super::functions::{claim, release};
use super::meta::check_tag;
use super::name_taken;
use super::new_name::{NewNameRefusal, require_name_of_nobody};
use super::state::{StateRefusal, check_start};
use crate::refusal::{Kind, NoNode, NoVm, Refusal, find_node, find_vm};

/// A VM as an operator gives it.
#[derive(Debug, Clone)]
pub struct Define {
    pub xml: String,
    /// The name or UUID that the VM must have, if the operator said one beside the XML.
    pub expected: Option<String>,
    /// The node to assign it to; without one it is chosen.
    pub node: Option<String>,
    pub node_limit: Vec<String>,
    pub selector: Option<Selector>,
    pub autostart: bool,
    pub migration_method: Option<MigrationMethod>,
    pub max_downtime_ms: u32,
    pub user_tags: Vec<String>,
    pub protected_tags: Vec<String>,
    /// The state to begin with.
    pub state: VmState,
    /// Whether it is started from there by itself, so that its node has to have room for it.
    pub starts_later: bool,
    pub profile: Option<String>,
    /// Takes it also if it is plugged into a network between the nodes, or has the MAC address of
    /// another VM of its network.
    pub force: bool,
}

impl Define {
    /// The XML with everything else as it is when nothing is said.
    pub fn new(xml: impl Into<String>) -> Self {
        Define {
            xml: xml.into(),
            expected: None,
            node: None,
            node_limit: Vec::new(),
            selector: None,
            autostart: false,
            migration_method: None,
            max_downtime_ms: DEFAULT_MAX_DOWNTIME_MS,
            user_tags: Vec::new(),
            protected_tags: Vec::new(),
            state: VmState::Stop,
            starts_later: false,
            profile: None,
            force: false,
        }
    }
}

/// Other hardware for a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Modify {
    pub xml: String,
    /// Asks a started one to restart, so that it has it.
    pub restart: bool,
    /// Takes it also if it is plugged into a network between the nodes, or has the MAC address of
    /// another VM of its network.
    pub force: bool,
}

impl Modify {
    /// A running guest is as it was until its next start.
    pub fn new(xml: impl Into<String>) -> Self {
        Modify { xml: xml.into(), restart: false, force: false }
    }
}

/// A VM that was recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Defined {
    pub uuid: Uuid,
    pub name: String,
    pub node: NodeName,
    /// Things that will work, though likely not as intended.
    pub warnings: Vec<String>,
}

/// A VM whose hardware was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Modified {
    pub uuid: Uuid,
    pub name: String,
    /// Whether it was asked to restart, so that it has the new hardware.
    pub restarted: bool,
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DefineRefusal {
    #[error(transparent)]
    NoVm(#[from] NoVm),
    #[error(transparent)]
    NoNode(#[from] NoNode),
    /// All problems at once, at least one.
    #[error("the domain XML cannot be taken: {}", joined(.0))]
    Xml(Vec<Problem>),
    #[error("the XML is that of VM `{found}`, not of `{expected}`")]
    OtherVm { found: String, expected: String },
    #[error("a VM called `{name}` exists already")]
    NameTaken { name: String },
    #[error(transparent)]
    Name(#[from] NewNameRefusal),
    #[error("VM name `{name}` is written like a UUID")]
    NameLikeUuid { name: String },
    #[error("a VM with UUID `{uuid}` exists already: `{name}`")]
    UuidTaken { uuid: Uuid, name: String },
    #[error("node `{node}` is not among the nodes the VM is limited to")]
    NotInLimit { node: NodeName },
    #[error("node `{node}` {unfit}")]
    TooLarge { node: NodeName, unfit: Unfit },
    #[error(transparent)]
    NoPlace(#[from] NoPlace),
    #[error("{0}")]
    BadTag(String),
    #[error("volume `{volume}` belongs to VM `{vm}`, which is being removed")]
    VolumeGoes { volume: VolumeId, vm: String },
    #[error(transparent)]
    Held(#[from] Held),
    #[error(transparent)]
    Nic(#[from] NicRefusal),
    #[error("disk source `{path}` is not the absolute path of a file")]
    RelativeFile { path: String },
    #[error("the name of VM `{name}` cannot be changed while it is in state `{state}`")]
    NameInUse { name: String, state: VmState },
    /// A restart was asked for, and the state forbids it: the VM would be ended, and not start
    /// again.
    #[error(transparent)]
    Restart(#[from] StateRefusal),
}

fn joined(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl Refusal for DefineRefusal {
    fn kind(&self) -> Kind {
        match self {
            DefineRefusal::NoVm(error) => error.kind(),
            DefineRefusal::Restart(error) => error.kind(),
            DefineRefusal::Name(error) => error.kind(),
            DefineRefusal::Nic(error) => error.kind(),
            DefineRefusal::NameTaken { .. }
            | DefineRefusal::UuidTaken { .. }
            | DefineRefusal::VolumeGoes { .. }
            | DefineRefusal::Held(_)
            | DefineRefusal::NameInUse { .. } => Kind::Conflict,
            _ => Kind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            DefineRefusal::NoVm(error) => error.hint(),
            DefineRefusal::Restart(error) => error.hint(),
            DefineRefusal::Name(error) => error.hint(),
            DefineRefusal::NoNode(error) => error.hint(),
            DefineRefusal::Xml(problems) => {
                problems.iter().find_map(|problem| problem.hint.clone())
            }
            DefineRefusal::OtherVm { .. } => {
                Some("give the VM that the XML's `<name>` and `<uuid>` say".to_owned())
            }
            DefineRefusal::NameTaken { name } => {
                Some(format!("`pvc vm modify {name}` changes a VM that exists"))
            }
            DefineRefusal::UuidTaken { .. } => Some("`uuidgen` makes a new UUID".to_owned()),
            DefineRefusal::NotInLimit { .. } => {
                Some("name one of these nodes, or widen the limit".to_owned())
            }
            DefineRefusal::TooLarge { unfit, .. } => unfit.size_hint(),
            DefineRefusal::NoPlace(no_place) if no_place.is_starting() => {
                Some("a node's daemon is still starting: try again in some seconds".to_owned())
            }
            DefineRefusal::NoPlace(no_place) => no_place.size_hint().or_else(|| {
                let ready = "`pvc node ready` makes a node take VMs again; `--target` names a node \
                             yourself";
                Some(ready.to_owned())
            }),
            DefineRefusal::VolumeGoes { vm, .. } => Some(format!(
                "wait for its end, or finish it with `pvc vm remove {vm}`; or name another volume"
            )),
            DefineRefusal::NameInUse { .. } => {
                Some("stop the VM first; `pvc vm rename` renames its volumes, too".to_owned())
            }
            DefineRefusal::Held(held) => Some(held.hint()),
            DefineRefusal::Nic(error) => Some(error.hint()),
            DefineRefusal::NameLikeUuid { .. }
            | DefineRefusal::BadTag(_)
            | DefineRefusal::RelativeFile { .. } => None,
        }
    }
}

/// Records a VM.
pub async fn define(store: &Store, ask: &Define) -> Result<Defined, ChangeError<DefineRefusal>> {
    let definition = Definition::read(ask.clone()).await.map_err(ChangeError::Refused)?;
    store.change(|cluster| definition.define_new(cluster)).await
}

/// VM that an operator gives, as far as its XML alone tells that it may be recorded.
pub struct Definition {
    ask: Define,
    xml: String,
    summary: DomainSummary,
    warnings: Vec<String>,
}

impl Definition {
    /// Reads the XML, off the runtime.
    ///
    /// # Errors
    /// Whatever is wrong with it in every cluster.
    pub async fn read(ask: Define) -> Result<Self, DefineRefusal> {
        let text = ask.xml.clone();
        let checked = aside(move || pvc_domain::validate(&text)).await;
        let checked = checked.map_err(DefineRefusal::Xml)?;
        let xml = stored_text(&ask.xml)?;
        check_nics(&[], &checked.summary.nics, ask.force)?;
        check_files(&[], &checked.summary.disks)?;
        let warnings = checked.warnings.iter().map(ToString::to_string).collect();
        Ok(Definition { ask, xml, summary: checked.summary, warnings })
    }

    /// The name that the XML gives it.
    pub fn name(&self) -> &str {
        &self.summary.name
    }

    /// Contents of the XML.
    pub(super) fn summary(&self) -> &DomainSummary {
        &self.summary
    }

    /// Does the same as [`define`](Self::define), and refuses a name that a job is about to give.
    pub(super) fn define_new(
        &self,
        cluster: &Cluster,
    ) -> Result<(Changes, Defined), DefineRefusal> {
        require_name_of_nobody(cluster, &self.summary.name, None)?;
        self.define(cluster)
    }

    /// The changes that record it, if it may be recorded in this cluster.
    ///
    /// # Errors
    /// Whatever keeps it from being recorded.
    pub fn define(&self, cluster: &Cluster) -> Result<(Changes, Defined), DefineRefusal> {
        let Definition { ask, xml, summary, warnings } = self;
        check_identity(cluster, ask, summary)?;
        check_volumes_stay(cluster, summary.uuid, &summary.volumes())?;
        let taken = match ask.state {
            VmState::Mirror => None,
            _ => check_macs(cluster, summary.uuid, &[], &summary.nics).err(),
        };
        if let Some(taken) = taken.clone().filter(|_| !ask.force) {
            return Err(NicRefusal::from(taken).into());
        }
        let node_limit = known_nodes(cluster, &ask.node_limit)?;
        let node = choose_node(cluster, ask, summary, &node_limit)?;
        let place = find_node(cluster, node.as_str())?;
        check_new_functions(cluster, place, summary.uuid, &summary.nics)
            .map_err(NicRefusal::from)?;
        let new = NewVm {
            uuid: summary.uuid,
            name: summary.name.clone(),
            state: ask.state.clone(),
            node: Some(node.clone()),
            xml: xml.clone(),
            profile: ask.profile.clone(),
            volumes: summary.volumes(),
            autostart: ask.autostart,
            migration_method: match is_tied(&summary.nics) {
                true => Some(MigrationMethod::Shutdown),
                false => ask.migration_method.clone(),
            },
            max_downtime_ms: ask.max_downtime_ms,
            selector: ask.selector.clone(),
            node_limit,
            tags: tags(ask)?,
        };
        let mut changes = Changes::new();
        changes.push(Change::DefineVm(Box::new(new)));
        claim(&mut changes, place, summary.uuid, &summary.nics);
        changes.expect(Expect::VmNames);
        if ask.node.is_none() && is_to_run(ask) {
            changes.expect(Expect::Placements);
        }
        let shared = shared_volumes(cluster, summary.uuid, &summary.volumes());
        let taken = taken.map(|taken| taken.to_string());
        let warnings = warnings.iter().cloned().chain(shared).chain(taken).collect();
        let (uuid, name) = (summary.uuid, summary.name.clone());
        Ok((changes, Defined { uuid, name, node, warnings }))
    }
}

/// Replaces the XML of VM `vm`. What is recorded beside it and follows from it is recorded anew.
pub async fn modify(
    store: &Store,
    vm: &str,
    ask: &Modify,
) -> Result<Modified, ChangeError<DefineRefusal>> {
    let text = ask.xml.clone();
    let hardware = aside(move || Hardware::read(&text)).await.map_err(ChangeError::Refused)?;
    store.change(|cluster| hardware.replace(cluster, vm, ask.restart, ask.force)).await
}

/// Predicts the answer of [`modify`] at present, whether it restarts or not. Nothing is changed.
pub fn check_modify(cluster: &Cluster, vm: &str, ask: &Modify) -> Result<Modified, DefineRefusal> {
    let (_, modified) = Hardware::read(&ask.xml)?.replace(cluster, vm, false, ask.force)?;
    Ok(modified)
}

/// XML that can be recorded, and what it says.
pub(super) struct Hardware {
    xml: String,
    summary: DomainSummary,
    warnings: Vec<String>,
}

impl Hardware {
    pub(super) fn read(xml: &str) -> Result<Self, DefineRefusal> {
        let checked = pvc_domain::validate(xml).map_err(DefineRefusal::Xml)?;
        let warnings = checked.warnings.iter().map(ToString::to_string).collect();
        Ok(Hardware { xml: stored_text(xml)?, summary: checked.summary, warnings })
    }

    /// The changes that give it to VM `vm`, if they may be made; with `restart` a started one is
    /// asked to restart. `force` is that of [`Modify`].
    pub(super) fn replace(
        &self,
        cluster: &Cluster,
        vm: &str,
        restart: bool,
        force: bool,
    ) -> Result<(Changes, Modified), DefineRefusal> {
        let summary = &self.summary;
        let record = find_vm(cluster, vm)?;
        if record.uuid != summary.uuid {
            let expected = format!("{} ({})", record.name, record.uuid);
            return Err(DefineRefusal::OtherVm {
                found: format!("{} ({})", summary.name, summary.uuid),
                expected,
            });
        }
        let mut changes = Changes::new();
        let had: &[Nic] = record.domain.as_ref().map_or(&[], |known| &known.nics);
        let functions = check_nics(had, &summary.nics, force)?;
        if !force && record.state != VmState::Mirror {
            check_macs(cluster, record.uuid, had, &summary.nics).map_err(NicRefusal::from)?;
        }
        check_files(record.domain.as_ref().map_or(&[], |known| &known.disks), &summary.disks)?;
        self.rename(cluster, record, &mut changes)?;
        let volumes = summary.volumes();
        add_volumes(cluster, record, &volumes, &mut changes)?;
        if is_plugged_in(had, &summary.nics) {
            // A removal of its network that begins at this moment has seen nobody in it, and who
            // gives another VM its MAC address nobody with that.
            changes.expect(Expect::VmNames);
        }
        self.claim(cluster, record, functions, &mut changes)?;
        changes.vm(record.uuid, VmChange::Xml(self.xml.clone()));
        changes.vm(record.uuid, VmChange::Volumes(volumes.clone()));
        let restarted = restart && record.state == VmState::Start;
        if restarted {
            let anew = VmRecord { domain: Ok(Arc::new(summary.clone())), ..(**record).clone() };
            check_start(cluster, &anew, &mut changes)?;
            changes.vm(record.uuid, VmChange::State(VmState::Restart));
        }
        let mut warnings = self.warnings.clone();
        warnings.extend(shared_volumes(cluster, record.uuid, &volumes));
        Ok((
            changes,
            Modified { uuid: record.uuid, name: summary.name.clone(), restarted, warnings },
        ))
    }

    /// Gives the VM the name that the XML has, if it has another.
    fn rename(
        &self,
        cluster: &Cluster,
        record: &VmRecord,
        changes: &mut Changes,
    ) -> Result<(), DefineRefusal> {
        let name = &self.summary.name;
        if record.name == *name {
            return Ok(());
        }
        require_name_of_nobody(cluster, name, None)?;
        check_new_name(cluster, name, record.uuid)?;
        if !is_off(&record.state) {
            let (name, state) = (record.name.clone(), record.state.clone());
            return Err(DefineRefusal::NameInUse { name, state });
        }
        changes.vm(record.uuid, VmChange::Name(name.clone()));
        changes.expect(Expect::VmNames).expect(Expect::VmState(record.uuid));
        Ok(())
    }

    /// Has the VM's node give it the functions of its interfaces, and nobody those that it has no
    /// more.
    fn claim(
        &self,
        cluster: &Cluster,
        record: &VmRecord,
        functions: Vec<&Nic>,
        changes: &mut Changes,
    ) -> Result<(), DefineRefusal> {
        let summary = &self.summary;
        let place = record.node.as_ref().and_then(|name| cluster.node(name.as_str()));
        if let Some(node) = place {
            check_new_functions(cluster, node, record.uuid, functions).map_err(NicRefusal::from)?;
            claim(changes, node, record.uuid, &summary.nics);
            check_size(node, summary.memory_mib, summary.vcpus)
                .map_err(|unfit| DefineRefusal::TooLarge { node: node.name.clone(), unfit })?;
        }
        let has = |vf: &str| summary.nics.iter().any(|nic| vf_of(nic) == Some(vf));
        release(changes, cluster, record, |node, vf| record.is_assigned_to(node) && has(vf));
        if is_tied(&summary.nics) && record.migration_method != Some(MigrationMethod::Shutdown) {
            let method = Some(MigrationMethod::Shutdown);
            changes.vm(record.uuid, VmChange::MigrationMethod(method));
        }
        Ok(())
    }
}

/// Checks the volumes that the VM did not use before.
fn add_volumes(
    cluster: &Cluster,
    record: &VmRecord,
    volumes: &[VolumeId],
    changes: &mut Changes,
) -> Result<(), DefineRefusal> {
    let known: BTreeSet<&VolumeId> = record.named_volumes().collect();
    let new: Vec<&VolumeId> = volumes.iter().filter(|new| !known.contains(new)).collect();
    if new.is_empty() {
        return Ok(());
    }
    check_volumes_stay(cluster, record.uuid, volumes)?;
    // A VM that runs here is started with them elsewhere if its node dies.
    for volume in new {
        check_not_held(cluster, volume, None)?;
    }
    // A removal or a hold that begins at this moment has seen that nobody else uses them.
    changes.expect(Expect::VmNames).expect(Expect::Holds);
    Ok(())
}

/// Part of an operator's text that is stored: all of it but the XML declaration.
fn stored_text(xml: &str) -> Result<String, DefineRefusal> {
    Domain::parse(xml).map(Domain::into_string).map_err(|error| {
        let hint = error.hint().map(str::to_owned);
        DefineRefusal::Xml(vec![Problem { line: 0, column: 0, what: error.to_string(), hint }])
    })
}

/// Reason why interfaces are not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NicRefusal {
    #[error(transparent)]
    Function(#[from] NoFunction),
    #[error("an interface takes the device `{device}`, which is no SR-IOV function")]
    NotAFunction { device: String },
    #[error("the definition of the VM does not name the SR-IOV function `{function}`")]
    Unrecorded { function: String },
    #[error("an interface is plugged into `{bridge}`, on which the nodes speak to each other")]
    AmongNodes { bridge: String },
    #[error(transparent)]
    Mac(#[from] MacTaken),
}

impl NicRefusal {
    pub(crate) fn kind(&self) -> Kind {
        match self {
            NicRefusal::Mac(_) => Kind::Conflict,
            NicRefusal::Function(_)
            | NicRefusal::NotAFunction { .. }
            | NicRefusal::Unrecorded { .. }
            | NicRefusal::AmongNodes { .. } => Kind::Invalid,
        }
    }

    pub(crate) fn hint(&self) -> String {
        let hint = match self {
            NicRefusal::Function(why) => return why.hint(),
            NicRefusal::Mac(why) => why.hint(),
            NicRefusal::NotAFunction { .. } => {
                "name a function, such as `ens1f0v3`, or use an interface of type `bridge`"
            }
            NicRefusal::Unrecorded { .. } => {
                "`pvc vm network add --sriov` gives it to the VM, and to its guest"
            }
            NicRefusal::AmongNodes { .. } => {
                "whoever is there reaches ZooKeeper, libvirt and Ceph as a node does; use a \
                 network of VMs or \
                 `upstream`, or say `--force` (API: `force`)"
            }
        };
        hint.to_owned()
    }
}

/// Refuses interfaces that take a device for themselves that is no SR-IOV function, and those in a
/// network between the nodes unless that is forced. What a VM had `before` it keeps, as many of a
/// kind as it had: that of an older cluster may have either. Returns those that take a function and
/// are new.
pub(crate) fn check_nics<'a>(
    before: &[Nic],
    after: &'a [Nic],
    force: bool,
) -> Result<Vec<&'a Nic>, NicRefusal> {
    let mut had: BTreeMap<&NicKind, usize> = BTreeMap::new();
    for nic in before {
        *had.entry(&nic.kind).or_default() += 1;
    }
    let is_new = |nic: &&Nic| match had.get_mut(&nic.kind) {
        Some(left) if *left > 0 => {
            *left -= 1;
            false
        }
        _ => true,
    };
    let new: Vec<&Nic> = after.iter().filter(is_new).collect();
    let is_other = |nic: &&&Nic| nic.function().is_some() && vf_of(nic).is_none();
    if let Some(device) = new.iter().find(is_other).and_then(|nic| nic.function()) {
        return Err(NicRefusal::NotAFunction { device: device.to_owned() });
    }
    let functions: Vec<&Nic> = new.iter().copied().filter(|nic| vf_of(nic).is_some()).collect();
    for function in functions.iter().filter_map(|nic| vf_of(nic)) {
        if after.iter().filter(|nic| vf_of(nic) == Some(function)).nth(1).is_some() {
            return Err(NoFunction::Twice { function: function.to_owned() }.into());
        }
    }
    match new.iter().find_map(|nic| nic.core_bridge()).filter(|_| !force) {
        None => Ok(functions),
        Some(bridge) => Err(NicRefusal::AmongNodes { bridge: bridge.to_owned() }),
    }
}

/// Refuses disks whose files are named by a relative path: it depends on the directory in which
/// libvirt and QEMU run. What a VM had `before` it keeps.
fn check_files(before: &[Disk], after: &[Disk]) -> Result<(), DefineRefusal> {
    let had: BTreeSet<&str> = before.iter().filter_map(relative_file).collect();
    match after.iter().filter_map(relative_file).find(|path| !had.contains(path)) {
        None => Ok(()),
        Some(path) => Err(DefineRefusal::RelativeFile { path: shown(path) }),
    }
}

fn relative_file(disk: &Disk) -> Option<&str> {
    match &disk.source {
        DiskSource::File(path) if !path.starts_with('/') => Some(path),
        _ => None,
    }
}

fn check_identity(
    cluster: &Cluster,
    ask: &Define,
    summary: &DomainSummary,
) -> Result<(), DefineRefusal> {
    if let Some(expected) = &ask.expected {
        let same_uuid = Uuid::try_parse(expected).is_ok_and(|uuid| uuid == summary.uuid);
        if *expected != summary.name && !same_uuid {
            return Err(DefineRefusal::OtherVm {
                found: summary.name.clone(),
                expected: shown(expected),
            });
        }
    }
    if let Some(other) = cluster.vms.get(&summary.uuid) {
        return Err(DefineRefusal::UuidTaken { uuid: summary.uuid, name: other.name.clone() });
    }
    check_new_name(cluster, &summary.name, summary.uuid)
}

pub(crate) fn check_new_name(
    cluster: &Cluster,
    name: &str,
    own: Uuid,
) -> Result<(), DefineRefusal> {
    if Uuid::try_parse(name).is_ok() {
        return Err(DefineRefusal::NameLikeUuid { name: name.to_owned() });
    }
    if name_taken(cluster, name, own) {
        return Err(DefineRefusal::NameTaken { name: name.to_owned() });
    }
    Ok(())
}

/// The named nodes, each once, if all of them exist.
pub(crate) fn known_nodes(cluster: &Cluster, names: &[String]) -> Result<Vec<NodeName>, NoNode> {
    let mut known: Vec<NodeName> = Vec::new();
    for name in names {
        let node = find_node(cluster, name)?;
        if !known.contains(&node.name) {
            known.push(node.name.clone());
        }
    }
    Ok(known)
}

fn choose_node(
    cluster: &Cluster,
    ask: &Define,
    summary: &DomainSummary,
    node_limit: &[NodeName],
) -> Result<NodeName, DefineRefusal> {
    let Some(name) = &ask.node else {
        let selector = selector_for(ask.selector.as_ref(), cluster);
        let need = Need {
            memory_mib: summary.memory_mib,
            vcpus: summary.vcpus,
            node_limit,
            leaving: None,
            runs: is_to_run(ask),
            nics: &summary.nics,
            vm: Some(summary.uuid),
        };
        return Ok(place(cluster, &selector, &need, &Promises::under_way(cluster))?);
    };
    let node = find_node(cluster, name)?;
    if !node_limit.is_empty() && !node_limit.contains(&node.name) {
        return Err(DefineRefusal::NotInLimit { node: node.name.clone() });
    }
    check_size(node, summary.memory_mib, summary.vcpus)
        .map_err(|unfit| DefineRefusal::TooLarge { node: node.name.clone(), unfit })?;
    Ok(node.name.clone())
}

/// Whether the VM takes its memory at once, or by itself later; one that is off takes none.
fn is_to_run(ask: &Define) -> bool {
    matches!(ask.state, VmState::Start | VmState::Restart) || ask.starts_later
}

/// Both kinds of tags, each once; protection wins.
fn tags(ask: &Define) -> Result<Vec<Tag>, DefineRefusal> {
    let (mut tags, mut names) = (Vec::new(), BTreeSet::new());
    let protected = ask.protected_tags.iter().map(|name| (name, true));
    for (name, protected) in protected.chain(ask.user_tags.iter().map(|name| (name, false))) {
        check_tag(name).map_err(DefineRefusal::BadTag)?;
        if names.insert(name) {
            tags.push(Tag { name: name.clone(), kind: "user".to_owned(), protected });
        }
    }
    Ok(tags)
}

fn check_volumes_stay(
    cluster: &Cluster,
    vm: Uuid,
    volumes: &[VolumeId],
) -> Result<(), DefineRefusal> {
    match super::going_user(cluster, vm, volumes) {
        None => Ok(()),
        Some((other, volume)) => {
            Err(DefineRefusal::VolumeGoes { volume: volume.clone(), vm: other.name.clone() })
        }
    }
}

fn shared_volumes(cluster: &Cluster, vm: Uuid, volumes: &[VolumeId]) -> Option<String> {
    let (other, volume) = super::other_user(cluster, vm, volumes)?;
    Some(format!(
        "volume `{volume}` is used by VM `{}`, too; only one of them can run at a time",
        other.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nics(kinds: impl IntoIterator<Item = NicKind>) -> Vec<Nic> {
        let nic = |kind| Nic {
            kind,
            mac: String::new(),
            model: String::new(),
            target: None,
            is_exclusive: true,
            has_vlan: false,
        };
        kinds.into_iter().map(nic).collect()
    }

    #[test]
    fn of_ten_thousand_interfaces_the_one_that_a_vm_has_not_had_is_refused() {
        let bridge = |number: usize| NicKind::Bridge(format!("vmbr{number}"));
        let function = || NicKind::Direct("ens1f0v1".to_owned());
        let core = || NicKind::Bridge("brstorage".to_owned());
        let usual = || (0..10_000).map(bridge);
        let before = nics(usual().chain([core()]));
        let after = nics(usual().rev().chain([core()]));
        assert_eq!(check_nics(&before, &after, false), Ok(vec![]));
        let after = nics(usual().chain([function()]));
        assert_eq!(check_nics(&before, &after, true), Ok(vec![&after[10_000]]));
        assert_eq!(check_nics(&after, &after, false), Ok(vec![]));
        let twice = nics([function(), function()]);
        let refused = NicRefusal::Function(NoFunction::Twice { function: "ens1f0v1".to_owned() });
        assert_eq!(check_nics(&twice[..1], &twice, true), Err(refused));
        assert_eq!(check_nics(&twice, &twice[..1], false), Ok(vec![]));
        for other in [NicKind::Direct("eth0".to_owned()), NicKind::Hostdev(String::new())] {
            let other = nics([other]);
            let refused = check_nics(&[], &other, true).unwrap_err();
            assert!(matches!(refused, NicRefusal::NotAFunction { .. }), "{refused}");
            assert_eq!(check_nics(&other, &other, true), Ok(vec![]), "it had it before");
        }
        let refused = NicRefusal::AmongNodes { bridge: "brstorage".to_owned() };
        assert_eq!(check_nics(&[], &before, false), Err(refused.clone()));
        assert_eq!(check_nics(&[], &before, true), Ok(vec![]));
        let twice = nics([core(), core()]);
        assert_eq!(check_nics(&before, &twice, false), Err(refused));
        assert_eq!(check_nics(&before, &twice, true), Ok(vec![]));
    }
}
