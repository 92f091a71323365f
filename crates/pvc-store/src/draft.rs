//! From changes to one multi: strict. Every write carries the version that the decision was taken
//! on.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use pvc_model::job::JobProgress;
use pvc_model::node::NodeFigures;
use pvc_model::storage::{PoolName, VolumeId};
use pvc_model::{NodeName, Uuid};
use pvc_ports::{CreateMode, Op};

use crate::change::{
    Change, Changes, ConfigChange, Expect, Ipmi, NewNode, NewVm, NodeChange, Report, VmChange,
};
use crate::error::StoreError;
use crate::job_codec;
use crate::keys;
use crate::move_codec;
use crate::note_codec;
use crate::raw::Raw;
use crate::records::fault;
use crate::schema::SCHEMA_VERSION;

/// A multi under construction over the tree as it was last seen.
pub(crate) struct Draft<'a> {
    raw: &'a Raw,
    ops: Vec<Op>,
    /// Where in `ops` a path is created or set: the last value given counts, a path appears once.
    written: BTreeMap<String, usize>,
    /// What is checked already.
    checked: BTreeSet<String>,
}

impl<'a> Draft<'a> {
    pub fn new(raw: &'a Raw) -> Self {
        Draft { raw, ops: Vec::new(), written: BTreeMap::new(), checked: BTreeSet::new() }
    }

    pub fn into_ops(self) -> Vec<Op> {
        self.ops
    }

    /// Writes `path`; creates it if it was not there. Its parent must exist or be created before.
    pub fn put(&mut self, path: String, data: impl Into<Bytes>) {
        let data = data.into();
        if let Some(at) = self.written.get(&path) {
            match &mut self.ops[*at] {
                Op::Create { data: old, .. } | Op::Set { data: old, .. } => *old = data,
                Op::Delete { .. } | Op::Check { .. } => {
                    unreachable!("only creates and sets are noted as written")
                }
            }
            return;
        }
        let op = match self.raw.get(&path) {
            Some(node) => Op::Set { path: path.clone(), data, version: Some(node.version) },
            None => Op::Create { path: path.clone(), data, mode: CreateMode::Persistent },
        };
        self.written.insert(path, self.ops.len());
        self.ops.push(op);
    }

    /// Creates `path` with nothing in it, and its parents, where they are missing.
    pub fn ensure(&mut self, path: &str) {
        if path == "/" || self.raw.contains(path) || self.written.contains_key(path) {
            return;
        }
        self.ensure(keys::parent(path));
        self.put(path.to_owned(), Bytes::new());
    }

    /// As `put`, with missing parents.
    pub fn put_deep(&mut self, path: String, data: impl Into<Bytes>) {
        self.ensure(keys::parent(&path));
        self.put(path, data);
    }

    /// Deletes `path` and everything below it, children first. The version of its root is checked.
    pub fn delete(&mut self, path: &str) {
        self.delete_as_seen(path, &[]);
    }

    /// As [`delete`](Self::delete); the versions of these below it are checked, too.
    pub fn delete_as_seen(&mut self, path: &str, checked: &[&str]) {
        for below in self.raw.subtree(path).into_iter().rev() {
            let is_checked = below == path || checked.contains(&below.as_str());
            let version = self.raw.get(&below).filter(|_| is_checked).map(|node| node.version);
            self.ops.push(Op::Delete { path: below, version });
        }
    }

    /// Demands that `path` is as it was seen.
    ///
    /// # Errors
    /// It was not there: what is not checked would be no demand at all.
    pub fn check(&mut self, path: String) -> Result<(), StoreError> {
        // A path that this multi writes is checked by its write.
        if self.written.contains_key(&path) || self.checked.contains(&path) {
            return Ok(());
        }
        let Some(node) = self.raw.get(&path) else {
            return Err(StoreError::NothingToExpect { path });
        };
        self.ops.push(Op::Check { path: path.clone(), version: node.version });
        self.checked.insert(path);
        Ok(())
    }

    /// Demands that a key that every such record has is as it was seen. A record of an older layout
    /// may lack it: then it gets it here, as it would from [`repair`](crate::Store::repair), if
    /// nobody gave it one since.
    pub fn check_key(
        &mut self,
        root: &str,
        key: &str,
        keys: &[(&str, &str)],
    ) -> Result<(), StoreError> {
        let path = format!("{root}/{key}");
        if !self.raw.contains(&path)
            && self.raw.contains(root)
            && let Some((_, value)) = keys.iter().find(|(known, _)| *known == key)
        {
            // What this multi gives it itself counts, before or after this.
            if !self.written.contains_key(&path) {
                self.put(path, (*value).to_owned());
            }
            return Ok(());
        }
        self.check(path)
    }

    fn check_vm(&mut self, uuid: Uuid, key: &str) -> Result<(), StoreError> {
        self.check_key(&keys::vm_root(uuid), key, keys::VM_KEYS)
    }

    fn check_node(&mut self, node: &NodeName, key: &str) -> Result<(), StoreError> {
        self.check_key(&keys::node_root(node), key, keys::NODE_KEYS)
    }

    /// Demands that the records of VMs are those that were seen. Versions begin anew with a VM that
    /// is removed and defined again with its UUID, so that the version of one of its keys may be
    /// right and the record another. The version of the container grows with every definition and
    /// never begins anew.
    fn check_incarnations(&mut self) -> Result<(), StoreError> {
        self.check(keys::DOMAINS.to_owned())
    }

    /// Copies the subtree at `from` to `to` and deletes it, values as they are.
    pub fn rename(&mut self, from: &str, to: &str) {
        for path in self.raw.subtree(from) {
            let node = self.raw.get(&path).expect("a subtree lists what is there");
            let renamed = format!("{to}{}", &path[from.len()..]);
            let data = node.data.to_bytes();
            self.put_deep(renamed, data);
        }
        self.delete(from);
    }

    /// # Errors
    /// What is expected not to change was not there.
    pub fn changes(&mut self, changes: &Changes) -> Result<(), StoreError> {
        for change in &changes.changes {
            self.change(change);
        }
        for expect in &changes.expectations {
            self.expect(expect)?;
        }
        let of_vm = |change: &Change| matches!(change, Change::Vm(..) | Change::RemoveVm(_));
        if changes.changes.iter().any(of_vm) {
            self.check_incarnations()?;
        }
        Ok(())
    }

    fn expect(&mut self, expect: &Expect) -> Result<(), StoreError> {
        match expect {
            // Its version grows with every definition and rename, whoever of us does it.
            Expect::VmNames => self.put(keys::DOMAINS.to_owned(), Bytes::new()),
            Expect::Placements => self.put_deep(keys::PLACEMENT.to_owned(), Bytes::new()),
            Expect::VmExists(uuid) => self.check(keys::vm_root(*uuid))?,
            Expect::VmState(uuid) => self.check_vm(*uuid, "state")?,
            Expect::VmNode(uuid) => self.check_vm(*uuid, "node")?,
            Expect::VmXml(uuid) => self.check_vm(*uuid, "xml")?,
            Expect::VmNodeLimit(uuid) => self.check_vm(*uuid, "node_limit")?,
            Expect::JobClaim(id) => self.check(keys::task(id.as_str(), "owner"))?,
            Expect::JobProgress(id) => self.check(keys::task(id.as_str(), "progress"))?,
            Expect::Primary => self.check(keys::PRIMARY.to_owned())?,
            Expect::NodeDaemon(node) => self.check_node(node, "daemonstate")?,
            Expect::NodeDomain(node) => self.check_node(node, "domainstate")?,
        }
        Ok(())
    }

    fn change(&mut self, change: &Change) {
        match change {
            Change::DefineVm(vm) => self.define_vm(vm),
            Change::RemoveVm(uuid) => {
                self.delete_as_seen(&keys::vm_root(*uuid), &[&keys::vm(*uuid, "state")]);
                self.delete(&keys::move_note(*uuid));
            }
            Change::Vm(uuid, change) => self.vm(*uuid, change),
            Change::AddNode(node) => self.add_node(node),
            Change::Node(name, change) => self.node(name, change),
            Change::Config(change) => self.config(change),
            Change::PutFault(fault) => fault::put(self, fault),
            Change::AckFault { id, at } => fault::acknowledge(self, id, at),
            Change::RemoveFault(id) => fault::remove(self, id),
            Change::PutPool { name, pgs, tier } => self.pool(name, pgs, tier),
            Change::RemovePool(name) => {
                for root in ["snapshots", "volumes", "pools"] {
                    self.delete(&format!("/ceph/{root}/{name}"));
                }
            }
            Change::PutVolume { id, stats } => {
                self.ensure(&keys::volume_snapshots(id));
                self.ensure(&keys::volume(id));
                self.put(format!("{}/stats", keys::volume(id)), stats.clone());
            }
            Change::RemoveVolume(id) => {
                self.delete(&keys::volume_snapshots(id));
                self.delete(&keys::volume(id));
            }
            Change::RenameVolume { from, to } => self.rename_volume(from, to),
            Change::MoveNote(vm, note) => {
                self.put_deep(keys::move_note(*vm), move_codec::text(note))
            }
            Change::SubmitJob(spec) => {
                self.put_deep(format!("/tasks/{}", spec.id), job_codec::spec_text(spec));
                let pending = job_codec::progress_text(&JobProgress::pending());
                self.put(keys::task(spec.id.as_str(), "progress"), pending);
            }
            Change::JobProgress(id, progress) => {
                self.put(keys::task(id.as_str(), "progress"), job_codec::progress_text(progress));
            }
            Change::CancelJob(id) => self.put(keys::task(id.as_str(), "cancel"), Bytes::new()),
            Change::RemoveJob(id) => self.delete(&format!("/tasks/{id}")),
        }
    }

    fn define_vm(&mut self, vm: &NewVm) {
        self.ensure(keys::DOMAINS);
        self.put(keys::vm_root(vm.uuid), vm.name.clone());
        for (key, default) in keys::VM_KEYS {
            self.put(keys::vm(vm.uuid, key), *default);
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
            self.vm(vm.uuid, &change);
        }
    }

    fn vm(&mut self, uuid: Uuid, change: &VmChange) {
        // A VM that was removed meanwhile must not come back as a half record.
        if !self.written.contains_key(&keys::vm_root(uuid))
            && !self.raw.contains(&keys::vm_root(uuid))
        {
            self.ops.push(Op::Check { path: keys::vm_root(uuid), version: -1 });
            return;
        }
        let key = |key: &str| keys::vm(uuid, key);
        match change {
            VmChange::Name(name) => self.put(keys::vm_root(uuid), name.clone()),
            VmChange::Xml(xml) => self.put(key("xml"), xml.clone()),
            VmChange::State(state) => self.put(key("state"), state.as_str().to_owned()),
            VmChange::Node(node) => self.put(key("node"), node.to_string()),
            VmChange::LastNode(node) => self.put(key("lastnode"), word_or_empty(node.as_ref())),
            VmChange::FailedReason(reason) => self.put(key("failedreason"), reason.clone()),
            VmChange::Profile(profile) => self.put(key("profile"), profile.clone()),
            VmChange::Volumes(volumes) => self.put(key("rbdlist"), joined(volumes, ",")),
            VmChange::Autostart(on) => self.put(key("node_autostart"), python_bool(*on)),
            VmChange::MigrationMethod(method) => {
                let word = method.as_ref().map_or("none", |method| method.as_str());
                self.put(key("migration_method"), word.to_owned());
            }
            VmChange::MaxDowntime(ms) => self.put(key("migration_max_downtime"), ms.to_string()),
            VmChange::Selector(selector) => {
                let word = selector.as_ref().map_or("none", |selector| selector.as_str());
                self.put(key("node_selector"), word.to_owned());
            }
            VmChange::NodeLimit(nodes) => self.put(key("node_limit"), joined(nodes, ",")),
            VmChange::AddTag(tag) => {
                let tag_key = key(&format!("tags/{}", tag.name));
                self.put_deep(tag_key.clone(), tag.name.clone());
                self.put(format!("{tag_key}/type"), tag.kind.clone());
                self.put(format!("{tag_key}/protected"), python_bool(tag.protected));
            }
            VmChange::RemoveTag(tag) => self.delete(&key(&format!("tags/{tag}"))),
            VmChange::SnapshotVolumes { snapshot, volumes } => {
                self.put(key(&format!("snapshots/{snapshot}/rbdsnaplist")), volumes.join(","));
            }
            VmChange::SnapshotXml { snapshot, xml } => {
                self.put(key(&format!("snapshots/{snapshot}/xml")), xml.clone());
            }
        }
    }

    fn add_node(&mut self, node: &NewNode) {
        self.ensure(keys::NODES);
        self.put(keys::node_root(&node.name), node.role.as_str().to_owned());
        for (key, default) in keys::NODE_KEYS {
            self.put(keys::node(&node.name, key), *default);
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
        for key in zero {
            self.put(keys::node(&node.name, key), "0");
        }
        let coordinator = node.role == pvc_model::node::NodeRole::Coordinator;
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
        for (key, value) in set {
            self.put(keys::node(&node.name, key), value);
        }
        let NewNode { name, cpus, kernel, os, arch, .. } = node;
        self.node(name, &NodeChange::Role(node.role.clone()));
        let (kernel, os, arch) = (kernel.clone(), os.clone(), arch.clone());
        self.node(name, &NodeChange::StaticData { cpus: *cpus, kernel, os, arch });
        self.node(name, &NodeChange::Version(node.version.clone()));
        self.node(name, &NodeChange::Ipmi(node.ipmi.clone()));
    }

    fn node(&mut self, name: &NodeName, change: &NodeChange) {
        let key = |key: &str| keys::node(name, key);
        match change {
            NodeChange::Role(role) => {
                self.put(keys::node_root(name), role.as_str().to_owned());
                self.put(key("daemonmode"), role.as_str().to_owned());
            }
            NodeChange::Daemon(state) => self.put(key("daemonstate"), state.as_str().to_owned()),
            NodeChange::Coordinator(state) => {
                self.put(key("routerstate"), state.as_str().to_owned())
            }
            NodeChange::Domain(state) => self.put(key("domainstate"), state.as_str().to_owned()),
            NodeChange::StaticData { cpus, kernel, os, arch } => {
                // Four words separated by spaces: a space within one would shift the others.
                let word = |text: &str| {
                    if text.is_empty() { "unknown".to_owned() } else { text.replace(' ', "_") }
                };
                let text = format!("{cpus} {} {} {}", word(kernel), word(os), word(arch));
                self.put(key("staticdata"), text);
            }
            NodeChange::Version(version) => self.put(key("pvcversion"), version.clone()),
            NodeChange::Ipmi(Ipmi { hostname, username, password }) => {
                self.put(key("ipmihostname"), hostname.clone());
                self.put(key("ipmiusername"), username.clone());
                self.put(key("ipmipassword"), password.clone());
            }
        }
    }

    fn config(&mut self, change: &ConfigChange) {
        let (path, value) = match change {
            ConfigChange::Name(name) => (keys::CONFIG, name.clone()),
            ConfigChange::Maintenance(on) => (keys::MAINTENANCE, on.to_string()),
            ConfigChange::Primary(None) => (keys::PRIMARY, "none".to_owned()),
            ConfigChange::Primary(Some(node)) => (keys::PRIMARY, node.to_string()),
            ConfigChange::UpstreamIp(ip) => (keys::UPSTREAM_IP, ip.clone()),
            ConfigChange::Selector(selector) => (keys::SELECTOR, selector.as_str().to_owned()),
        };
        self.put(path.to_owned(), value);
    }

    fn pool(&mut self, name: &PoolName, pgs: &str, tier: &str) {
        self.ensure(&format!("/ceph/pools/{name}"));
        self.ensure(&format!("/ceph/volumes/{name}"));
        self.ensure(&format!("/ceph/snapshots/{name}"));
        self.put(format!("/ceph/pools/{name}/pgs"), pgs.to_owned());
        self.put(format!("/ceph/pools/{name}/tier"), tier.to_owned());
        if !self.raw.contains(&format!("/ceph/pools/{name}/stats")) {
            self.put(format!("/ceph/pools/{name}/stats"), "{}");
        }
    }

    fn rename_volume(&mut self, from: &VolumeId, to: &VolumeId) {
        self.rename(&keys::volume(from), &keys::volume(to));
        self.rename(&keys::volume_snapshots(from), &keys::volume_snapshots(to));
    }
}

/// The keys and values of an observation.
pub(crate) fn report(report: &Report) -> Vec<(String, String)> {
    match report {
        Report::Figures(node, figures) => self::figures(node, figures),
        Report::Running(node, vms) => vec![(keys::node(node, "runningdomains"), joined(vms, " "))],
        Report::WorkingOn(node, vms) => vec![(keys::working_on(node.as_str()), joined(vms, " "))],
        Report::NetworkStats(node, json) => vec![(keys::node(node, "network_stats"), json.clone())],
        Report::Daemon(node, note, hypervisor) => {
            vec![(keys::node_note(node.as_str()), note_codec::text(note, hypervisor.as_ref()))]
        }
        Report::Fence(node, note) => {
            vec![(keys::fence(node.as_str()), note_codec::fence_text(note))]
        }
        Report::NodeHealth(node, health) => {
            let text = health.map_or_else(|| "None".to_owned(), |health| health.to_string());
            vec![(keys::node(node, "monitoring_health"), text)]
        }
        Report::VmStats(vm, json) => vec![(keys::vm(*vm, "stats"), json.clone())],
        Report::Vnc(vm, address) => vec![(keys::vm(*vm, "vnc"), address.clone())],
        Report::Move(vm, note) => vec![(keys::move_note(*vm), move_codec::text(note))],
        Report::ConsoleLog(vm, text) => vec![(keys::vm(*vm, "consolelog"), text.clone())],
        Report::StorageStatus(text) => vec![("/ceph".to_owned(), text.clone())],
        Report::StorageHealth(json) => vec![("/ceph/health".to_owned(), json.clone())],
        Report::StorageUsage(text) => vec![("/ceph/util".to_owned(), text.clone())],
        Report::OsdStats(osd, json) => vec![(format!("/ceph/osds/{osd}/stats"), json.clone())],
        Report::PoolStats(pool, json) => vec![(format!("/ceph/pools/{pool}/stats"), json.clone())],
        Report::VolumeStats(id, json) => {
            vec![(format!("{}/stats", keys::volume(id)), json.clone())]
        }
    }
}

fn figures(node: &NodeName, figures: &NodeFigures) -> Vec<(String, String)> {
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
    values.into_iter().map(|(key, value)| (keys::node(node, key), value)).collect()
}

/// At most two decimals, at least one: `0.5`, `1.25`, `3.0`.
pub(crate) fn load_text(load: f64) -> String {
    format!("{:?}", (load * 100.0).round() / 100.0)
}

fn python_bool(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

fn joined<T: ToString>(items: &[T], separator: &str) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(separator)
}

fn word_or_empty(name: Option<&NodeName>) -> String {
    name.map(NodeName::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

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
