//! The records of the tree: which path belongs to which, what each costs to decode, and how a
//! decoded one comes into the view.

use std::sync::Arc;

use pvc_model::cluster::{Cluster, ClusterRecord};
use pvc_model::job::{Job, JobId, WorkerRecord};
use pvc_model::network::NetworkRecord;
use pvc_model::node::NodeRecord;
use pvc_model::storage::{OsdRecord, PoolName, PoolRecord, VolumeId, VolumeName, VolumeRecord};
use pvc_model::vm::VmRecord;
use pvc_model::{NodeName, Uuid};

use super::{PLACE, RECORD, bytes_at, update};
use crate::feed::EventKind;
use crate::keys;
use crate::raw::{Place, Raw};
use crate::reader::{self as decode, MOST_ENTRIES, MOST_JSON, MOST_TEXT};

/// The record that a path belongs to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    Config,
    Node(String),
    Vm(Uuid),
    Network(String),
    Osd(String),
    Pool(String),
    Volume(VolumeId),
    Job(JobId),
    Worker(NodeName),
}

/// A record as it was decoded; `None` if there is none.
pub(crate) enum Record {
    Config(Box<ClusterRecord>),
    Node(Option<Arc<NodeRecord>>),
    Vm(Option<Arc<VmRecord>>),
    Network(Option<Arc<NetworkRecord>>),
    Osd(Option<Arc<OsdRecord>>),
    Pool(Option<Arc<PoolRecord>>),
    Volume(Option<Arc<VolumeRecord>>),
    Job(Option<Arc<Job>>),
    Worker(Option<Arc<WorkerRecord>>),
}

impl Subject {
    pub fn of(path: &str) -> Option<Subject> {
        let mut parts = path.split('/').skip(1);
        let mut next = || parts.next().filter(|part| !part.is_empty());
        let first = next()?;
        let second = next();
        match (first, second) {
            ("config" | "schema", _) | ("ceph", None | Some("health" | "util")) => {
                Some(Subject::Config)
            }
            ("nodes", Some(name)) => Some(Subject::Node(name.to_owned())),
            ("domains", Some(uuid)) => Uuid::try_parse(uuid).ok().map(Subject::Vm),
            ("networks", Some(vni)) => Some(Subject::Network(vni.to_owned())),
            ("tasks", Some(id)) => JobId::parse(id).map(Subject::Job),
            ("pvcrs", Some("workers")) => next().map(|name| Subject::Worker(NodeName::new(name))),
            ("pvcrs", Some("moves")) => Uuid::try_parse(next()?).ok().map(Subject::Vm),
            ("pvcrs", Some("nodes" | "working_on" | "fences")) => {
                next().map(|name| Subject::Node(name.to_owned()))
            }
            ("ceph", Some("osds")) => next().map(|id| Subject::Osd(id.to_owned())),
            ("ceph", Some("pools")) => next().map(|name| Subject::Pool(name.to_owned())),
            ("ceph", Some("volumes" | "snapshots")) => {
                let (pool, volume) = (PoolName::new(next()?), VolumeName::new(next()?));
                Some(Subject::Volume(VolumeId { pool, volume }))
            }
            _ => None,
        }
    }

    /// About how many bytes decoding it goes through if everything of it has changed that is not
    /// counted with what was read: its lists, and what is written as one.
    pub fn weight(&self, raw: &Raw, view: &Cluster) -> usize {
        let of = |place: Place<'_>, lists: &[(&str, usize)], texts: &[&str]| {
            let entries = |(key, keys): &(&str, usize)| place.width(key).min(MOST_ENTRIES) * keys;
            let entries: usize = lists.iter().map(entries).sum();
            let bytes = |key: &&str| bytes_at(place, key).min(MOST_TEXT);
            RECORD + PLACE * entries + texts.iter().map(bytes).sum::<usize>()
        };
        match self {
            Subject::Vm(uuid) => {
                let place = raw.place(&keys::vm_root(*uuid));
                let lists = [("tags", 3), ("snapshots", 4)];
                of(place, &lists, &["rbdlist", "node_limit"]) + unparsed(place, view.vms.get(uuid))
            }
            Subject::Node(name) => {
                let place = raw.place(keys::NODES).below(name);
                let lists = [("monitoring_data", 5)];
                of(place, &lists, &["runningdomains", "monitoring_plugins"])
            }
            Subject::Network(vni) => {
                let lists = [
                    ("dhcp4_reservations", 4),
                    ("dhcp4_leases", 4),
                    ("firewall_rules/in", 3),
                    ("firewall_rules/out", 3),
                ];
                of(raw.place("/networks").below(vni), &lists, &["name_servers"])
            }
            Subject::Volume(id) => of(raw.place(&keys::volume_snapshots(id)), &[("", 2)], &[]),
            Subject::Job(id) => {
                let place = raw.place("/tasks").below(id.as_str());
                RECORD
                    + ["", "progress"]
                        .map(|key| bytes_at(place, key).min(MOST_JSON))
                        .iter()
                        .sum::<usize>()
            }
            Subject::Config | Subject::Osd(_) | Subject::Pool(_) | Subject::Worker(_) => RECORD,
        }
    }

    pub fn record(&self, raw: &Raw, view: &Cluster) -> Record {
        match self {
            Subject::Config => Record::Config(Box::new(decode::config(raw))),
            Subject::Node(name) => Record::Node(decode::node(raw, name).map(Arc::new)),
            Subject::Vm(uuid) => {
                let previous = view.vms.get(uuid).map(|vm| &**vm);
                Record::Vm(decode::vm(raw, *uuid, previous).map(Arc::new))
            }
            Subject::Network(vni) => Record::Network(decode::network(raw, vni).map(Arc::new)),
            Subject::Osd(id) => Record::Osd(decode::osd(raw, id).map(Arc::new)),
            Subject::Pool(name) => Record::Pool(decode::pool(raw, name).map(Arc::new)),
            Subject::Volume(id) => Record::Volume(decode::volume(raw, id).map(Arc::new)),
            Subject::Job(id) => Record::Job(decode::job(raw, id).map(Arc::new)),
            Subject::Worker(node) => Record::Worker(decode::worker(raw, node).map(Arc::new)),
        }
    }

    /// Shows what was decoded of it in `view`. What it is called in an event and whether it is
    /// gone, if it changed.
    pub fn show(self, record: Record, view: &mut Cluster) -> Option<(EventKind, bool)> {
        match (self, record) {
            (Subject::Config, Record::Config(config)) => {
                let changed = *config != view.config;
                view.config = *config;
                changed.then_some((EventKind::Cluster, false))
            }
            (Subject::Node(name), Record::Node(record)) => {
                let name = NodeName::new(name);
                let gone = update(&mut view.nodes, name.clone(), record);
                gone.map(|gone| (EventKind::Node(name), gone))
            }
            (Subject::Vm(uuid), Record::Vm(record)) => {
                let previous = view.vms.get(&uuid).cloned();
                let renamed =
                    previous.as_ref().map(|vm| &vm.name) != record.as_ref().map(|vm| &vm.name);
                let gone = update(&mut view.vms, uuid, record);
                if renamed {
                    rename(view, uuid, previous.map(|vm| vm.name.clone()));
                }
                gone.map(|gone| (EventKind::Vm(uuid), gone))
            }
            (Subject::Network(vni), Record::Network(record)) => {
                let gone = update(&mut view.networks, vni.clone(), record);
                gone.map(|gone| (EventKind::Network(vni), gone))
            }
            (Subject::Osd(id), Record::Osd(record)) => {
                let gone = update(&mut view.osds, id.clone(), record);
                gone.map(|gone| (EventKind::Osd(id), gone))
            }
            (Subject::Pool(name), Record::Pool(record)) => {
                let gone = update(&mut view.pools, PoolName::new(&name), record);
                gone.map(|gone| (EventKind::Pool(name), gone))
            }
            (Subject::Volume(id), Record::Volume(record)) => {
                let gone = update(&mut view.volumes, id.clone(), record);
                gone.map(|gone| (EventKind::Volume(id), gone))
            }
            (Subject::Job(id), Record::Job(record)) => {
                let gone = update(&mut view.jobs, id.clone(), record);
                gone.map(|gone| (EventKind::Job(id), gone))
            }
            (Subject::Worker(node), Record::Worker(record)) => {
                let changed = update(&mut view.workers, node.clone(), record);
                changed.map(|_| (EventKind::Node(node), false))
            }
            (subject, _) => unreachable!("{subject:?} was decoded as another kind of record"),
        }
    }
}

/// How many bytes of XML are to be parsed although they may not have changed: those of a record
/// that is shown with another one, or not at all.
fn unparsed(place: Place<'_>, shown: Option<&Arc<VmRecord>>) -> usize {
    let bytes = bytes_at(place, "xml");
    if shown.is_some_and(|vm| vm.xml.len() == bytes) { 0 } else { bytes }
}

/// Brings the index of names up to date after VM `uuid` got another name, came or went. What it hid
/// is [put back](show_hidden) when all that has changed is decoded.
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
pub(crate) fn show_hidden(view: &mut Cluster) {
    // As a rule each VM has a name of its own, and each name is there.
    if view.vm_names.len() < view.vms.len() {
        for (uuid, vm) in &view.vms {
            view.vm_names.entry(vm.name.clone()).or_insert(*uuid);
        }
    }
}
