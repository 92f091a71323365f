//! The cache: the whole tree in memory, fed by watches, so that a read costs no request.
//!
//! One task owns it. Events only say that something changed; the task reads what it is now, decodes
//! the records concerned into a copy and puts that in the place of the view: nobody who reads waits
//! for a record to be decoded. After a re-made connection it reads everything again, because
//! ZooKeeper does not replay what a watch missed.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_model::job::JobId;
use pvc_model::shared_map::SharedMap;
use pvc_model::storage::{PoolName, VolumeId, VolumeName};
use pvc_model::{NodeName, Uuid};
use pvc_ports::{Clock, Entry, Tree, TreeError, TreeEvent, TreeWatch, aside};
use tokio::sync::{mpsc, oneshot, watch};

use crate::decode;
use crate::feed::{Event, EventKind, Feed};
use crate::keys;
use crate::raw::Raw;

/// How long the cache waits before it tries again to read a tree that cannot be reached.
const RETRY: Duration = Duration::from_millis(500);

/// How long the cache waits after a change: one change of many keys, or two that follow each
/// other, are announced key by key and read in one request.
const GATHER: Duration = Duration::from_millis(5);

/// How long a change that nobody acts on may stay unread, to share a request with what comes next:
/// a keepalive's stamp is followed by its figures.
const TIME_LIMIT: Duration = Duration::from_millis(200);

/// How often in a row the cache reads what has changed while it read. Readers wait for it no
/// longer.
const ROUNDS: u32 = 20;

/// So many bytes of values are decoded where they were read; more is decoded aside, where it keeps
/// no other task of this process from its turn. Decoding takes a few milliseconds for each 64 KiB
/// of XML.
const ASIDE: usize = 128 << 10;

/// What a place in the tree counts for beside its value, in bytes: to put it among a hundred
/// thousand others, or to take it away, costs as much as to decode a short value.
const PLACE: usize = 64;

/// What the cache shows: the tree as bytes and as records, both of one moment. A copy costs
/// little.
#[derive(Clone, Default)]
pub(crate) struct State {
    pub raw: Raw,
    pub cluster: Arc<Cluster>,
}

/// The state that everybody reads. Its lock is held for no longer than a copy or an exchange takes.
#[derive(Clone, Default)]
pub(crate) struct Shown(Arc<RwLock<State>>);

impl Shown {
    pub fn get(&self) -> State {
        self.0.read().expect("readers do not panic").clone()
    }

    pub fn cluster(&self) -> Arc<Cluster> {
        self.0.read().expect("readers do not panic").cluster.clone()
    }

    pub fn contains(&self, path: &str) -> bool {
        self.0.read().expect("readers do not panic").raw.contains(path)
    }

    fn replace(&self, state: State) {
        let old = std::mem::replace(&mut *self.0.write().expect("readers do not panic"), state);
        // Whoever reads need not wait until it is taken apart.
        drop(old);
    }
}

pub(crate) enum Ask {
    /// Read these paths again now, and say when the view shows them.
    Refresh { paths: Vec<String>, done: oneshot::Sender<Result<(), TreeError>> },
}

pub(crate) struct Cache {
    tree: Arc<dyn Tree>,
    clock: Arc<dyn Clock>,
    shown: Shown,
    revision: watch::Sender<u64>,
    feed: Feed,
    events: TreeWatch,
    asks: mpsc::UnboundedReceiver<Ask>,
    /// Paths that changed and have not been read since.
    dirty: BTreeSet<String>,
    /// Whether everything has to be read again.
    all_dirty: bool,
    /// Whether it was said that something in the tree is for others alone.
    is_refused: bool,
    /// When what is dirty has to be read at the latest, by the monotonic clock; `None` if nothing
    /// is.
    due: Option<Duration>,
}

/// What a started cache gives to the store.
pub(crate) struct Shared {
    pub shown: Shown,
    pub revision: watch::Receiver<u64>,
    pub feed: Feed,
    pub asks: mpsc::UnboundedSender<Ask>,
}

impl Cache {
    /// Watches and reads the whole tree, then starts the task.
    pub async fn start(tree: Arc<dyn Tree>, clock: Arc<dyn Clock>) -> Result<Shared, TreeError> {
        let events = tree.watch("/").await?;
        let (revision, revision_rx) = watch::channel(1);
        let feed = Feed::new(1, revision_rx.clone());
        let shown = Shown::default();
        let (asks_tx, asks) = mpsc::unbounded_channel();
        let mut cache = Cache {
            tree,
            clock,
            shown: shown.clone(),
            revision,
            feed: feed.clone(),
            events,
            asks,
            dirty: BTreeSet::new(),
            all_dirty: true,
            is_refused: false,
            due: None,
        };
        let raw = cache.read_everything().await?;
        let cluster = Cluster { revision: 1, ..Cluster::default() };
        shown.replace(by_size(size_of(&raw), move || decode_all(raw, cluster)).await);
        cache.read_soon();
        tokio::spawn(cache.run());
        Ok(Shared { shown, revision: revision_rx, feed, asks: asks_tx })
    }

    /// Works until the tree is closed or nobody holds the store any more.
    async fn run(mut self) {
        loop {
            let rest = self.due.map(|due| due.saturating_sub(self.clock.monotonic()));
            tokio::select! {
                biased;
                // First whoever waits for a view, then the events, then what has waited.
                ask = self.asks.recv() => match ask {
                    None => return,
                    Some(Ask::Refresh { paths, done }) => {
                        self.take_waiting_events();
                        self.dirty.extend(paths);
                        // Whoever asked may have gone; the reading was useful all the same.
                        let _ = done.send(self.read_dirty().await);
                    }
                },
                event = self.events.recv() => {
                    let Some(event) = event else { return };
                    self.note(event);
                    self.take_waiting_events();
                    self.read_soon();
                    if self.due.is_some_and(|due| due <= self.clock.monotonic()) {
                        self.read_dirty_or_log().await;
                    }
                }
                () = self.clock.sleep(rest.unwrap_or_default()), if rest.is_some() => {
                    self.read_dirty_or_log().await;
                }
            }
        }
    }

    /// Sees to it that what is dirty is read when its time has come.
    fn read_soon(&mut self) {
        if self.all_dirty || self.dirty.iter().any(|path| !keys::is_stamp(path)) {
            self.read_within(GATHER);
        } else if !self.dirty.is_empty() {
            self.read_within(TIME_LIMIT);
        }
    }

    /// Sees to it that what is dirty is read after `time`, or before.
    fn read_within(&mut self, time: Duration) {
        let due = self.clock.monotonic() + time;
        self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
    }

    fn note(&mut self, event: TreeEvent) {
        match event {
            TreeEvent::Resync => self.all_dirty = true,
            TreeEvent::Changed { path } | TreeEvent::Deleted { path } => {
                // What is left out of the cache changes often and is large: that it is there is
                // known already.
                let known = keys::is_left_out(&path) && self.shown.contains(&path);
                let lock = known && path.contains("lock__");
                if !keys::is_foreign(&path) && (!known || lock) {
                    self.dirty.insert(path);
                }
            }
        }
    }

    /// Takes what has piled up, so that a burst becomes one reading and one view.
    fn take_waiting_events(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            self.note(event);
        }
    }

    async fn read_dirty_or_log(&mut self) {
        match self.read_dirty().await {
            Err(error @ TreeError::NotAllowed { .. }) if !self.is_refused => {
                tracing::error!(%error, "the store cannot be read any more; it is tried again");
                self.is_refused = true;
            }
            Err(error) => {
                tracing::debug!(%error, "the cache could not be refreshed; it will be tried again")
            }
            Ok(()) => self.is_refused = false,
        }
    }

    async fn read_dirty(&mut self) -> Result<(), TreeError> {
        self.due = None;
        let read = self.try_to_read().await;
        if read.is_err() {
            self.read_within(RETRY);
        }
        read
    }

    async fn try_to_read(&mut self) -> Result<(), TreeError> {
        let read = if self.all_dirty { BTreeMap::new() } else { self.read_whole().await? };
        // A connection that was made anew meanwhile leaves nothing certain of what was read.
        if self.all_dirty {
            let raw = self.read_everything().await?;
            self.replace(raw).await;
        } else if !read.is_empty() {
            self.apply(read).await;
        }
        // Events were taken here as well.
        self.read_soon();
        Ok(())
    }

    /// The whole tree, of one moment as [`read_whole`](Cache::read_whole) has it. Until it is read
    /// all of it is dirty.
    async fn read_everything(&mut self) -> Result<Raw, TreeError> {
        for _ in 0..ROUNDS {
            self.all_dirty = true;
            let mut raw = read_all(self.tree.as_ref()).await?;
            self.all_dirty = false;
            self.dirty.clear();
            self.take_waiting_events();
            self.dirty.retain(|path| !(keys::is_left_out(path) && raw.contains(path)));
            let read = self.read_whole().await.inspect_err(|_| self.all_dirty = true)?;
            if !self.all_dirty {
                read.iter().for_each(|(path, entry)| raw.take_over(path, entry.as_ref()));
                return Ok(raw);
            }
        }
        Err(TreeError::Unreachable {
            why: "the connection is made anew again and again".to_owned(),
        })
    }

    /// Reads what is dirty, and what becomes so meanwhile. A change is announced before any answer
    /// that shows a part of it, so when nothing more is announced no change is shown by half:
    /// whoever decides on the new version of one key has seen what the change did to the others.
    /// Stamps stand for themselves.
    async fn read_whole(&mut self) -> Result<BTreeMap<String, Option<Entry>>, TreeError> {
        let mut read = BTreeMap::new();
        for _ in 0..ROUNDS {
            if self.dirty.is_empty()
                || (!read.is_empty() && self.dirty.iter().all(|path| keys::is_stamp(path)))
            {
                break;
            }
            let paths: Vec<String> = self.dirty.iter().cloned().collect();
            match self.tree.get_many(&paths).await {
                Ok(entries) => read.extend(paths.into_iter().zip(entries)),
                Err(error) => {
                    self.dirty.extend(read.into_keys());
                    return Err(error);
                }
            }
            self.dirty.clear();
            self.take_waiting_events();
        }
        Ok(read)
    }

    async fn apply(&self, read: BTreeMap<String, Option<Entry>>) {
        let size = read
            .values()
            .map(|entry| PLACE + entry.as_ref().map_or(0, |entry| entry.data.len()))
            .sum();
        let before = self.shown.get();
        let (after, events) = by_size(size, move || changed_by(before, &read)).await;
        let revision = after.cluster.revision;
        self.shown.replace(after);
        if !events.is_empty() {
            self.publish(revision, events);
        }
    }

    /// Replaces everything, and tells of what differs.
    async fn replace(&self, mut raw: Raw) {
        let before = self.shown.get();
        let (after, events) = by_size(size_of(&raw), move || {
            raw.share(&before.raw);
            let cluster =
                Cluster { revision: before.cluster.revision + 1, ..(*before.cluster).clone() };
            let after = decode_all(raw, cluster);
            let events = differences(&before.cluster, &after.cluster);
            (after, events)
        })
        .await;
        let revision = after.cluster.revision;
        self.shown.replace(after);
        self.publish(revision, events);
    }

    fn publish(&self, revision: u64, events: Vec<Event>) {
        self.feed.push(events);
        // Nobody may be listening just now.
        let _ = self.revision.send(revision);
    }
}

/// Does `work`, which is about `size` bytes of values: here, or where it may take its time.
async fn by_size<T: Send + 'static>(size: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    if size <= ASIDE { work() } else { aside(work).await }
}

/// How many bytes of values there are.
fn size_of(raw: &Raw) -> usize {
    let mut size = 0;
    raw.each(|_, node| size += node.data.as_bytes().len());
    size
}

/// `before` with what was `read`, and what that changed. The view keeps its revision if it shows
/// nothing else.
fn changed_by(before: State, read: &BTreeMap<String, Option<Entry>>) -> (State, Vec<Event>) {
    let State { mut raw, cluster } = before;
    let subjects: BTreeSet<Subject> = read.keys().filter_map(|path| Subject::of(path)).collect();
    read.iter().for_each(|(path, entry)| raw.take_over(path, entry.as_ref()));
    let revision = cluster.revision + 1;
    let mut view = Cluster { revision, ..(*cluster).clone() };
    let events: Vec<Event> = subjects
        .into_iter()
        .filter_map(|subject| subject.decode_or_keep(&raw, &mut view))
        .map(|(what, gone)| Event { revision, what, gone })
        .collect();
    show_hidden(&mut view);
    let cluster = if events.is_empty() { cluster } else { Arc::new(view) };
    (State { raw, cluster }, events)
}

/// How many nodes are read before what was read is put away.
const PIECE: usize = 2_000;

/// Reads the whole tree, level by level, but for what belongs to others.
async fn read_all(tree: &dyn Tree) -> Result<Raw, TreeError> {
    let mut raw = Raw::default();
    let mut level = vec!["/".to_owned()];
    while !level.is_empty() {
        let mut below = Vec::new();
        for piece in level.chunks(PIECE) {
            below.extend(read_piece(tree, piece, &mut raw).await?);
        }
        level = below;
    }
    Ok(raw)
}

/// Reads `paths` into `raw`. The paths of their children, in order.
async fn read_piece(
    tree: &dyn Tree,
    paths: &[String],
    raw: &mut Raw,
) -> Result<Vec<String>, TreeError> {
    let (mut parents, wanted): (Vec<_>, Vec<_>) =
        paths.iter().cloned().partition(|path| keys::is_left_out(path));
    parents.iter().for_each(|path| raw.put_unread(path));
    let entries = tree.get_many(&wanted).await?;
    for (path, entry) in wanted.into_iter().zip(entries) {
        let Some(entry) = entry else { continue };
        raw.put(&path, &entry);
        // A child that comes now is announced.
        if entry.stat.num_children > 0 {
            parents.push(path);
        }
    }
    parents.sort_unstable();
    let mut found = Vec::new();
    for (parent, names) in parents.iter().zip(tree.children_many(&parents).await?) {
        let mut names = names.unwrap_or_default();
        names.sort_unstable();
        let prefix = parent.trim_end_matches('/');
        found.extend(names.iter().map(|name| format!("{prefix}/{name}")));
    }
    found.retain(|path| !keys::is_foreign(path));
    Ok(found)
}

/// The record that a path belongs to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Config,
    Node(String),
    Vm(Uuid),
    Network(String),
    Osd(String),
    Pool(String),
    Volume(VolumeId),
    Fault(String),
    Job(JobId),
    Worker(NodeName),
}

impl Subject {
    fn of(path: &str) -> Option<Subject> {
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
            ("faults", Some(id)) => Some(Subject::Fault(id.to_owned())),
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

    /// Everything that `view` shows.
    fn shown_in(view: &Cluster) -> Vec<Subject> {
        let nodes = view.nodes.keys().map(|name| Subject::Node(name.to_string()));
        let vms = view.vms.keys().map(|uuid| Subject::Vm(*uuid));
        let networks = view.networks.keys().cloned().map(Subject::Network);
        let osds = view.osds.keys().cloned().map(Subject::Osd);
        let pools = view.pools.keys().map(|name| Subject::Pool(name.to_string()));
        let volumes = view.volumes.keys().cloned().map(Subject::Volume);
        let faults = view.faults.keys().cloned().map(Subject::Fault);
        let jobs = view.jobs.keys().cloned().map(Subject::Job);
        let workers = view.workers.keys().cloned().map(Subject::Worker);
        let named = nodes
            .chain(vms)
            .chain(networks)
            .chain(osds)
            .chain(pools)
            .chain(volumes)
            .chain(faults)
            .chain(jobs)
            .chain(workers);
        std::iter::once(Subject::Config).chain(named).collect()
    }

    /// As [`decode`](Subject::decode). A record that makes our decoder panic keeps its last good
    /// reading: it must not take the view of all others with it.
    fn decode_or_keep(self, raw: &Raw, view: &mut Cluster) -> Option<(EventKind, bool)> {
        let subject = self.clone();
        let decoded = std::panic::catch_unwind(AssertUnwindSafe(|| self.decode(raw, view)));
        decoded.unwrap_or_else(|_| {
            tracing::error!(record = ?subject, "a record could not be read by a bug of this \
                                                program; it is shown as it was");
            None
        })
    }

    /// Decodes the record anew into `view`. What it is called in an event and whether it is gone,
    /// if it changed.
    fn decode(self, raw: &Raw, view: &mut Cluster) -> Option<(EventKind, bool)> {
        match self {
            Subject::Config => {
                let config = decode::config(raw);
                let changed = config != view.config;
                view.config = config;
                changed.then_some((EventKind::Cluster, false))
            }
            Subject::Node(name) => {
                let record = decode::node(raw, &name);
                let name = NodeName::new(name);
                update(&mut view.nodes, name.clone(), record)
                    .map(|gone| (EventKind::Node(name), gone))
            }
            Subject::Vm(uuid) => {
                let previous = view.vms.get(&uuid).cloned();
                let record = decode::vm(raw, uuid, previous.as_deref());
                let renamed =
                    previous.as_ref().map(|vm| &vm.name) != record.as_ref().map(|vm| &vm.name);
                let gone = update(&mut view.vms, uuid, record);
                if renamed {
                    rename(view, uuid, previous.map(|vm| vm.name.clone()));
                }
                gone.map(|gone| (EventKind::Vm(uuid), gone))
            }
            Subject::Network(vni) => {
                let record = decode::network(raw, &vni);
                update(&mut view.networks, vni.clone(), record)
                    .map(|gone| (EventKind::Network(vni), gone))
            }
            Subject::Osd(id) => {
                let record = decode::osd(raw, &id);
                update(&mut view.osds, id.clone(), record).map(|gone| (EventKind::Osd(id), gone))
            }
            Subject::Pool(name) => {
                let record = decode::pool(raw, &name);
                update(&mut view.pools, PoolName::new(&name), record)
                    .map(|gone| (EventKind::Pool(name), gone))
            }
            Subject::Volume(id) => {
                let record = decode::volume(raw, &id);
                update(&mut view.volumes, id.clone(), record)
                    .map(|gone| (EventKind::Volume(id), gone))
            }
            Subject::Fault(id) => {
                let record = decode::fault(raw, &id);
                update(&mut view.faults, id.clone(), record)
                    .map(|gone| (EventKind::Fault(id), gone))
            }
            Subject::Job(id) => {
                let record = decode::job(raw, &id);
                update(&mut view.jobs, id.clone(), record).map(|gone| (EventKind::Job(id), gone))
            }
            Subject::Worker(node) => {
                let record = decode::worker(raw, &node);
                update(&mut view.workers, node.clone(), record)
                    .map(|_| (EventKind::Node(node), false))
            }
        }
    }
}

/// Puts `record` in the place of what was at `key`. Whether it is gone, if anything changed.
fn update<K: Ord + Clone, V: PartialEq>(
    map: &mut SharedMap<K, Arc<V>>,
    key: K,
    record: Option<V>,
) -> Option<bool> {
    match record {
        // What is not there is not taken away: that would copy a map in which nothing changes.
        None if !map.contains_key(&key) => None,
        None => map.remove(&key).map(|_| true),
        Some(record) if map.get(&key).is_some_and(|old| **old == record) => None,
        Some(record) => {
            map.insert(key, Arc::new(record));
            Some(false)
        }
    }
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
fn show_hidden(view: &mut Cluster) {
    // As a rule each VM has a name of its own, and each name is there.
    if view.vm_names.len() < view.vms.len() {
        for (uuid, vm) in &view.vms {
            view.vm_names.entry(vm.name.clone()).or_insert(*uuid);
        }
    }
}

/// Decodes everything over what `view` showed so far: what is gone goes, and XML that was parsed
/// already is not parsed again.
fn decode_all(raw: Raw, mut view: Cluster) -> State {
    let mut subjects = BTreeSet::new();
    raw.each(|path, _| subjects.extend(Subject::of(path)));
    subjects.extend(Subject::shown_in(&view));
    for subject in subjects {
        subject.decode_or_keep(&raw, &mut view);
    }
    show_hidden(&mut view);
    State { raw, cluster: Arc::new(view) }
}

fn differences(before: &Cluster, after: &Cluster) -> Vec<Event> {
    let mut events = Vec::new();
    let revision = after.revision;
    let mut tell = |what, gone| events.push(Event { revision, what, gone });
    if before.config != after.config {
        tell(EventKind::Cluster, false);
    }
    changed(&before.nodes, &after.nodes, |name, gone| tell(EventKind::Node(name.clone()), gone));
    changed(&before.vms, &after.vms, |uuid, gone| tell(EventKind::Vm(*uuid), gone));
    changed(&before.networks, &after.networks, |vni, gone| {
        tell(EventKind::Network(vni.clone()), gone)
    });
    changed(&before.osds, &after.osds, |id, gone| tell(EventKind::Osd(id.clone()), gone));
    changed(&before.pools, &after.pools, |name, gone| {
        tell(EventKind::Pool(name.to_string()), gone)
    });
    changed(&before.volumes, &after.volumes, |id, gone| tell(EventKind::Volume(id.clone()), gone));
    changed(&before.faults, &after.faults, |id, gone| tell(EventKind::Fault(id.clone()), gone));
    changed(&before.jobs, &after.jobs, |id, gone| tell(EventKind::Job(id.clone()), gone));
    changed(&before.workers, &after.workers, |name, _| tell(EventKind::Node(name.clone()), false));
    events
}

fn changed<K: Ord, V: PartialEq>(
    before: &BTreeMap<K, Arc<V>>,
    after: &BTreeMap<K, Arc<V>>,
    mut tell: impl FnMut(&K, bool),
) {
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        tell(key, true);
    }
    for (key, record) in after {
        if before.get(key).is_none_or(|old| old != record) {
            tell(key, false);
        }
    }
}
