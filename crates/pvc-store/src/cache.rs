//! The cache: the whole tree, or the part of it that holds the jobs, in memory, fed by watches, so
//! that a read costs no request.
//!
//! One task owns it. Events only say that something changed; the task reads what it is now, decodes
//! the records concerned into a copy and puts that in the place of the view: nobody who reads waits
//! for a record to be decoded. After a re-made connection it reads everything again, because
//! ZooKeeper does not replay what a watch missed.
//!
//! No record holds up another. What is decoded at once is shown at once; a record that costs more
//! is decoded aside when its turn has come, while events go on being read and shown, and with it is
//! shown [what may have been changed together with it](crate::groups), and nothing else. How much
//! there is to decode of one record is bounded (see `reader.rs` and the limits of `pvc-domain`).
//!
//! ```text
//!  events, asks ──▶ dirty ──read──▶ groups ──light──▶ decoded here ─────────▶ shown
//!                                      └────dear───▶ queue ──▶ decoded aside ──┘
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use pvc_model::cluster::Cluster;
use pvc_ports::{Clock, Entry, Tree, TreeError, TreeEvent, TreeWatch, aside};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::feed::{Event, Feed};
use crate::groups::{Group, Queue, groups, hold};
use crate::keys;
use crate::once;
use crate::raw::{Batch, Raw, RawNode};
use crate::records::{self, PLACE, Show, Subject};
use crate::scope::Scope;

/// Time until the cache tries again to read a tree that cannot be reached.
const RETRY: Duration = Duration::from_millis(500);

/// Time until the cache looks again whether the tree is an old copy no more.
const RETRY_OLD_COPY: Duration = Duration::from_secs(10);

/// Time that the cache waits after a change: one change of many keys, or two that follow each
/// other, are announced key by key and read in one request.
const GATHER: Duration = Duration::from_millis(5);

/// Time that a change that nobody acts on may stay unread, to share a request with what comes next:
/// a keepalive's stamp is followed by its figures.
const TIME_LIMIT: Duration = Duration::from_millis(200);

/// Number of times in a row that the cache reads what has changed while it read. Readers wait for
/// it no longer. What is shown then may not be [whole](Cache::read_whole).
const ROUNDS: u32 = 20;

/// Time in which the cache goes on reading what has changed while it read. Where each answer takes
/// seconds, as from a ZooKeeper server that lags, the view would be minutes old. What is shown then
/// may not be [whole](Cache::read_whole).
const SETTLES_WITHIN: Duration = Duration::from_secs(10);

/// Largest number of bytes that are decoded where they were read; more is decoded aside, where it
/// keeps no other task of this process from its turn. Decoding takes a few milliseconds for each
/// 64 KiB of XML.
const ASIDE: usize = 128 << 10;

/// The number of keys of [lists](records::is_of_list) that are read at one time, beside all else
/// that has changed.
const LISTED: usize = 2_000;

/// The shown tree, as bytes and as records, both of one moment. A copy costs little.
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
    /// Read these paths again now, and say when the view shows them and, if there are none, all
    /// that was dirty.
    Refresh { paths: Vec<String>, done: oneshot::Sender<Result<(), TreeError>> },
}

/// A caller who is told when the view shows what was read of these paths, or of all if there are
/// none, up to a reading.
struct Waiting {
    paths: Vec<String>,
    reading: u64,
    /// Paths of which a later reading than that is waited for.
    unread: BTreeSet<String>,
    done: oneshot::Sender<Result<(), TreeError>>,
}

/// Records that are decoded aside. `None` for those that keep their last good reading.
type Decoded = Vec<Option<Show>>;

/// Action before records are decoded aside, with them: nothing, but in tests.
pub(crate) type BeforeAside = Arc<dyn Fn(&[Subject]) + Send + Sync>;

pub(crate) struct Cache {
    tree: Arc<dyn Tree>,
    scope: Scope,
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
    /// Whether the tree was given another history than the one that is shown.
    is_over: bool,
    /// Whether the tree is an old copy of what is shown.
    is_old_copy: bool,
    /// Whether it was said that something in the tree is for others alone.
    is_refused: bool,
    /// Time by which what is dirty has to be read, by the monotonic clock; `None` if nothing is.
    due: Option<Duration>,
    /// Number of times that something was read and is shown, or will be.
    readings: u64,
    /// Groups that were read and are decoded aside in their turn.
    queue: Queue,
    /// Groups that are decoded aside just now, and the task that does it.
    decoding: Option<(Arc<Vec<Group>>, JoinHandle<Decoded>)>,
    before_aside: BeforeAside,
    waiting: Vec<Waiting>,
}

/// Parts of a started cache that the store gets.
pub(crate) struct Shared {
    pub shown: Shown,
    pub revision: watch::Receiver<u64>,
    pub feed: Feed,
    pub asks: mpsc::UnboundedSender<Ask>,
}

impl Cache {
    /// Watches and reads what of the tree is in `scope`, then starts the task.
    pub async fn start(
        tree: Arc<dyn Tree>,
        scope: Scope,
        clock: Arc<dyn Clock>,
        before_aside: BeforeAside,
    ) -> Result<Shared, TreeError> {
        let events = tree.watch("/").await?;
        let (revision, revision_rx) = watch::channel(1);
        let feed = Feed::new(1, revision_rx.clone());
        let shown = Shown::default();
        let (asks_tx, asks) = mpsc::unbounded_channel();
        let mut cache = Cache {
            tree,
            scope,
            clock,
            shown: shown.clone(),
            revision,
            feed: feed.clone(),
            events,
            asks,
            dirty: BTreeSet::new(),
            all_dirty: true,
            is_over: false,
            is_old_copy: false,
            is_refused: false,
            due: None,
            readings: 0,
            queue: Queue::default(),
            decoding: None,
            before_aside,
            waiting: Vec::new(),
        };
        let raw = cache.read_everything().await?;
        shown.replace(by_size(size_of(&raw), move || decode_all(raw)).await);
        cache.read_soon();
        tokio::spawn(cache.run());
        Ok(Shared { shown, revision: revision_rx, feed, asks: asks_tx })
    }

    /// Works until the tree is closed, nobody holds the store any more, or the tree has another
    /// history than was shown: nothing of what is shown, or is being decoded, holds in that one.
    async fn run(mut self) {
        while !self.is_over {
            let rest = self.due.map(|due| due.saturating_sub(self.clock.monotonic()));
            tokio::select! {
                biased;
                // First what is decoded, then whoever waits for a view, then the events, then what
                // has waited.
                decoded = decoded(&mut self.decoding) => {
                    self.show_decoded(decoded).await;
                }
                ask = self.asks.recv() => match ask {
                    None => return,
                    Some(Ask::Refresh { paths, done }) => self.refresh(paths, done).await,
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

    /// Reads `paths`, and says so when they are shown.
    async fn refresh(&mut self, paths: Vec<String>, done: oneshot::Sender<Result<(), TreeError>>) {
        self.take_waiting_events();
        self.dirty.extend(paths.iter().filter(|path| !keys::is_too_deep(path)).cloned());
        match self.read_dirty(&paths).await {
            Ok(()) => {
                // Who asks for everything wants to see also what is read in pieces.
                let unread = self.dirty.iter().filter(|path| records::is_of_list(path));
                let unread = unread.filter(|_| paths.is_empty()).cloned().collect();
                self.waiting.push(Waiting { paths, reading: self.readings, unread, done });
                self.answer();
            }
            // Whoever asked may have gone; the reading was useful all the same.
            Err(error) => drop(done.send(Err(error))),
        }
    }

    /// Tells those for whom everything is shown that it is.
    fn answer(&mut self) {
        let at_work = self.decoding.as_ref().map(|(groups, _)| groups.as_slice());
        let groups = || self.queue.groups().chain(at_work.unwrap_or_default());
        let is_shown = |waiting: &mut Waiting| {
            waiting.unread.is_empty() && !hold(groups(), &waiting.paths, waiting.reading)
        };
        for waiting in self.waiting.extract_if(.., is_shown) {
            // Whoever asked may have gone.
            let _ = waiting.done.send(Ok(()));
        }
    }

    /// Sees to it that what is dirty is read when its time has come.
    fn read_soon(&mut self) {
        if self.all_dirty || self.dirty.iter().any(|path| !records::is_stamp(path)) {
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
                let known = records::is_left_out(&path) && self.shown.contains(&path);
                let lock = known && path.contains("lock__");
                if records::is_foreign(&path) || !self.scope.holds(&path) || (known && !lock) {
                    return;
                }
                if keys::is_too_deep(&path) {
                    log_too_deep(&path);
                } else {
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
        match self.read_dirty(&[]).await {
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

    /// Reads what is dirty, `asked` in any case.
    async fn read_dirty(&mut self, asked: &[String]) -> Result<(), TreeError> {
        self.due = None;
        let read = self.try_to_read(asked).await;
        if let Err(error) = &read {
            self.read_within(if self.is_old_copy { RETRY_OLD_COPY } else { RETRY });
            for waiting in self.waiting.extract_if(.., |waiting| !waiting.unread.is_empty()) {
                // Whoever asked may have gone.
                let _ = waiting.done.send(Err(TreeError::Unreachable { why: error.to_string() }));
            }
        }
        read
    }

    async fn try_to_read(&mut self, asked: &[String]) -> Result<(), TreeError> {
        let read = if self.all_dirty { Batch::new() } else { self.read_whole(asked).await? };
        // A connection that was made anew meanwhile leaves nothing certain of what was read.
        if self.all_dirty {
            let raw = self.read_everything().await?;
            self.replace(raw).await?;
        } else if !read.is_empty() {
            self.apply(read).await;
        }
        self.answer();
        // Events were taken here as well.
        self.read_soon();
        Ok(())
    }

    /// The whole tree, of one moment as [`read_whole`](Cache::read_whole) has it. Until it is read
    /// all of it is dirty.
    async fn read_everything(&mut self) -> Result<Raw, TreeError> {
        for _ in 0..ROUNDS {
            // What was announced until now is read with everything.
            self.take_waiting_events();
            self.dirty.clear();
            self.all_dirty = false;
            let read = self.read_all().await.inspect_err(|_| self.all_dirty = true)?;
            let Some(mut raw) = read else { continue };
            self.dirty.retain(|path| !(records::is_left_out(path) && raw.contains(path)));
            let read = self.read_whole(&[]).await.inspect_err(|_| self.all_dirty = true)?;
            if !self.all_dirty {
                raw.take_over(&read);
                return Ok(raw);
            }
        }
        Err(TreeError::Unreachable {
            why: "the connection is made anew again and again".to_owned(),
        })
    }

    /// Reads what of the tree is in the scope, level by level, but for what belongs to others.
    /// `None` as soon as the connection was made anew meanwhile: what is read after that would be
    /// read once more, and behind a server that lags each level takes seconds.
    async fn read_all(&mut self) -> Result<Option<Raw>, TreeError> {
        let mut raw = Raw::default();
        let mut level = vec!["/".to_owned()];
        while !level.is_empty() {
            let mut below = Vec::new();
            for piece in level.chunks(PIECE) {
                let found = read_piece(self.tree.as_ref(), piece, &mut raw).await?;
                self.take_waiting_events();
                if self.all_dirty {
                    return Ok(None);
                }
                below.extend(found.into_iter().filter(|path| self.scope.holds(path)));
            }
            level = below;
        }
        Ok(Some(raw))
    }

    /// Reads what is dirty, and what becomes so meanwhile. A change is announced before any answer
    /// that shows a part of it, so when nothing more is announced no change is shown by half:
    /// whoever decides on the new version of one key has seen what the change did to the others.
    ///
    /// If there is more after [`ROUNDS`] or [`SETTLES_WITHIN`], what was changed during the last
    /// round may be shown by half. What is missing of it is dirty, so the next reading makes it
    /// whole. Why decisions bear that: `docs/adr/0038`.
    ///
    /// Once the connection was made anew what was read is of no use, and no more is read.
    ///
    /// Stamps stand for themselves, and so do [lists](records::is_of_list) of which more has
    /// changed than is [read at one time](LISTED): no reading is as long as somebody's list.
    async fn read_whole(&mut self, asked: &[String]) -> Result<Batch, TreeError> {
        let mut read = BTreeMap::new();
        let mut later = BTreeSet::new();
        let until = self.clock.monotonic() + SETTLES_WITHIN;
        for round in 0..ROUNDS {
            if self.all_dirty || (round > 0 && self.clock.monotonic() >= until) {
                break;
            }
            later.extend(self.put_off(asked));
            if self.dirty.is_empty()
                || (round > 0 && self.dirty.iter().all(|path| records::is_stamp(path)))
            {
                break;
            }
            let paths: Vec<String> = self.dirty.iter().cloned().collect();
            match self.tree.get_many(&paths).await {
                Ok(entries) => {
                    let node = |(path, entry): (String, Option<Entry>)| {
                        let node = entry.map(|entry| RawNode::read(&path, &entry));
                        (path, node)
                    };
                    paths.iter().for_each(|path| _ = later.remove(path));
                    read.extend(paths.into_iter().zip(entries).map(node));
                }
                Err(error) => {
                    self.dirty.extend(read.into_keys().chain(later));
                    return Err(error);
                }
            }
            self.dirty.clear();
            self.take_waiting_events();
        }
        self.dirty.extend(later);
        Ok(read)
    }

    /// Takes out of what is dirty what is too much of lists for one reading; not what is `asked`
    /// for.
    fn put_off(&mut self, asked: &[String]) -> Vec<String> {
        if self.dirty.len() <= LISTED {
            return Vec::new();
        }
        let asked: BTreeSet<&String> = asked.iter().collect();
        let is_put_off = |path: &&String| records::is_of_list(path) && !asked.contains(path);
        let put_off: Vec<String> =
            self.dirty.iter().filter(is_put_off).skip(LISTED).cloned().collect();
        put_off.iter().for_each(|path| _ = self.dirty.remove(path));
        put_off
    }

    /// Shows what was read: what takes no time at once, all else in its turn.
    async fn apply(&mut self, read: Batch) {
        self.readings += 1;
        let (state, number) = (self.shown.get(), self.readings);
        for waiting in self.waiting.iter_mut().filter(|waiting| !waiting.unread.is_empty()) {
            read.keys().for_each(|path| _ = waiting.unread.remove(path));
            waiting.reading = number;
        }
        let bytes = |node: &RawNode| node.data.as_bytes().len();
        let size = read.values().map(|node| PLACE + node.as_ref().map_or(0, bytes)).sum();
        let groups = by_size(size, move || groups(read, &state.raw, &state.cluster, number)).await;
        let mut weight = 0;
        let mut light = Vec::new();
        for group in groups {
            weight += group.weight;
            if weight > ASIDE || self.is_behind(&group) {
                self.queue.push(group);
            } else {
                light.push(group);
            }
        }
        if !light.is_empty() {
            let state = self.shown.get();
            let decoded = decode(&state, &light);
            self.show(&light, decoded, state);
        }
        self.decode_next();
    }

    /// Whether something that belongs to the group has been read before and is not shown yet.
    fn is_behind(&self, group: &Group) -> bool {
        let at_work = self.decoding.as_ref().map(|(groups, _)| groups);
        let is_of_it = |groups: &Arc<Vec<Group>>| groups.iter().any(|other| other.touches(group));
        self.queue.has_part_of(group) || at_work.is_some_and(is_of_it)
    }

    /// Has decoded aside what has its turn, unless something is.
    fn decode_next(&mut self) {
        if self.decoding.is_some() {
            return;
        }
        let groups = Arc::new(self.queue.next());
        if groups.is_empty() {
            return;
        }
        let (state, before) = (self.shown.get(), self.before_aside.clone());
        let work = {
            let groups = groups.clone();
            move || {
                let subjects = groups.iter().flat_map(Group::subjects).cloned();
                before(&subjects.collect::<Vec<_>>());
                decode(&state, &groups)
            }
        };
        self.decoding = Some((groups, tokio::spawn(aside(work))));
    }

    /// Shows what was decoded aside, and goes on with what has its turn.
    async fn show_decoded(&mut self, decoded: Decoded) {
        let Some((groups, _)) = self.decoding.take() else { return };
        let keys = groups.iter().map(|group| group.read.len()).sum::<usize>();
        // Others were shown meanwhile.
        let state = self.shown.get();
        let shown = by_size(PLACE * keys, move || shown_with(&groups, decoded, state)).await;
        self.publish(shown);
        self.decode_next();
        self.answer();
    }

    fn show(&self, groups: &[Group], decoded: Decoded, state: State) {
        self.publish(shown_with(groups, decoded, state));
    }

    /// Replaces everything, and tells of what differs.
    async fn replace(&mut self, raw: Raw) -> Result<(), TreeError> {
        let (before, size) = (self.shown.get(), size_of(&raw));
        let revision = before.cluster.revision;
        let at_work = self.decoding.as_ref().map(|(groups, _)| groups.as_slice());
        let unshown = self.queue.groups().chain(at_work.unwrap_or_default());
        let unshown: Vec<String> = unshown.flat_map(|group| group.read.keys()).cloned().collect();
        let (read, lost) = by_size(size, move || {
            let mut read = raw.since(&before.raw);
            let lost = lost_change(&before.raw, &read);
            // What was read of these and is to be shown may have changed to what is shown.
            let now = |path: String| (raw.get(&path).cloned(), path);
            read.extend(unshown.into_iter().map(now).map(|(node, path)| (path, node)));
            (read, lost)
        })
        .await;
        let was_old_copy = std::mem::replace(&mut self.is_old_copy, false);
        if let Some((path, is_same_node)) = lost {
            self.all_dirty = true;
            if !is_same_node {
                tracing::error!(
                    path,
                    "the tree has lost what it had, and holds another cluster; this process begins \
                     anew"
                );
                self.is_over = true;
            } else if !was_old_copy {
                // A successor of this process would know nothing, and obey.
                tracing::error!(
                    path,
                    "the tree is an old copy; what is known stays, and nothing else is read"
                );
            }
            self.is_old_copy = is_same_node;
            let why = "it has lost changes that were seen".to_owned();
            return Err(TreeError::Unreachable { why });
        }
        for waiting in &mut self.waiting {
            if !waiting.unread.is_empty() {
                waiting.unread.clear();
                waiting.reading = self.readings + 1;
            }
        }
        self.apply(read).await;
        let mut state = self.shown.get();
        if state.cluster.revision == revision {
            // Whoever waits for a change looks again after a new connection.
            state.cluster =
                Arc::new(Cluster { revision: revision + 1, ..(*state.cluster).clone() });
            self.publish((state, Vec::new()));
        }
        Ok(())
    }

    fn publish(&self, (state, events): (State, Vec<Event>)) {
        let revision = state.cluster.revision;
        let is_new = revision != self.shown.cluster().revision;
        self.shown.replace(state);
        if is_new {
            self.feed.push(events);
            // Nobody may be listening just now.
            let _ = self.revision.send(revision);
        }
    }
}

/// Waits for what is decoded aside; for ever, if nothing is being decoded.
async fn decoded(decoding: &mut Option<(Arc<Vec<Group>>, JoinHandle<Decoded>)>) -> Decoded {
    let Some((_, work)) = decoding else { return std::future::pending().await };
    match work.await {
        Ok(decoded) => decoded,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends, and nobody waits any more.
            Err(_) => std::future::pending().await,
        },
    }
}

/// The records of `groups` over what is shown.
fn decode(state: &State, groups: &[Group]) -> Decoded {
    let mut raw = state.raw.clone();
    groups.iter().for_each(|group| raw.take_over(&group.read));
    let subjects = groups.iter().flat_map(Group::subjects);
    subjects.map(|subject| subject.read(&raw, &state.cluster)).collect()
}

/// `state` with what was read, and what that changed. The view keeps its revision if it shows
/// nothing else.
fn shown_with(groups: &[Group], decoded: Decoded, state: State) -> (State, Vec<Event>) {
    let State { mut raw, cluster } = state;
    groups.iter().for_each(|group| raw.take_over(&group.read));
    let revision = cluster.revision + 1;
    let mut view = Cluster { revision, ..(*cluster).clone() };
    let (mut events, mut is_changed) = (Vec::new(), false);
    for (subject, show) in groups.iter().flat_map(Group::subjects).zip(decoded) {
        let Some((what, gone)) = show.and_then(|show| show(&mut view)) else { continue };
        is_changed = true;
        if !subject.is_quiet() {
            events.push(Event { revision, what, gone });
        }
    }
    records::settle(&mut view);
    let cluster = if is_changed { Arc::new(view) } else { cluster };
    (State { raw, cluster }, events)
}

/// Says once that there is something too deep to be read.
fn log_too_deep(path: &str) {
    let mut parts = path.split('/').skip(1);
    let begin = [parts.next(), parts.next()].map(Option::unwrap_or_default).join("/");
    if once::is_new(&format!("too deep: {begin}")) {
        tracing::error!(
            below = format!("/{begin}"),
            "something in the tree lies deeper than {} levels; it is left out here and in backups",
            keys::MAX_DEPTH
        );
    }
}

/// Does `work`, which is about `size` bytes of values: here, or where it may take its time.
async fn by_size<T: Send + 'static>(size: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    if size <= ASIDE { work() } else { aside(work).await }
}

/// A path of which `read` shows a change that is older than the one that is known, and whether it
/// is of the same creation: then the tree is an old copy, else it holds another cluster. No tree
/// shows that whose history goes on.
fn lost_change(known: &Raw, read: &Batch) -> Option<(String, bool)> {
    let older = |(path, node): (&String, &Option<RawNode>)| {
        // What is left out of the cache was not read, and has no number.
        let node = node.as_ref().filter(|node| node.mzxid > 0)?;
        let known = known.get(path).filter(|known| known.mzxid > node.mzxid)?;
        Some((path.clone(), known.czxid == node.czxid))
    };
    let mut lost = None;
    for (path, is_same_node) in read.iter().filter_map(older) {
        if is_same_node {
            return Some((path, true));
        }
        lost.get_or_insert((path, false));
    }
    lost
}

/// Number of bytes of all values.
fn size_of(raw: &Raw) -> usize {
    let mut size = 0;
    raw.each(|_, node| size += node.data.as_bytes().len());
    size
}

/// Number of nodes that are read before what was read is put away.
const PIECE: usize = 2_000;

/// Reads `paths` into `raw`. The paths of their children, in order.
async fn read_piece(
    tree: &dyn Tree,
    paths: &[String],
    raw: &mut Raw,
) -> Result<Vec<String>, TreeError> {
    let (mut parents, wanted): (Vec<_>, Vec<_>) =
        paths.iter().cloned().partition(|path| records::is_left_out(path));
    parents.iter().for_each(|path| raw.put_unread(path));
    let entries = tree.get_many(&wanted).await?;
    for (path, entry) in wanted.into_iter().zip(entries) {
        let Some(entry) = entry else { continue };
        raw.put(&path, RawNode::read(&path, &entry));
        // A child that comes now is announced.
        if entry.stat.num_children > 0 {
            parents.push(path);
        }
    }
    parents.retain(|path| {
        let is_deepest = keys::is_too_deep(&format!("{}/", path.trim_end_matches('/')));
        if is_deepest {
            log_too_deep(path);
        }
        !is_deepest
    });
    parents.sort_unstable();
    let mut found = Vec::new();
    for (parent, names) in parents.iter().zip(tree.children_many(&parents).await?) {
        let mut names = names.unwrap_or_default();
        names.sort_unstable();
        let prefix = parent.trim_end_matches('/');
        found.extend(names.iter().map(|name| format!("{prefix}/{name}")));
    }
    found.retain(|path| !records::is_foreign(path));
    Ok(found)
}

/// Decodes everything.
fn decode_all(raw: Raw) -> State {
    let mut view = Cluster { revision: 1, ..Cluster::default() };
    let mut subjects = BTreeSet::new();
    raw.each(|path, _| subjects.extend(Subject::of(path)));
    for subject in subjects {
        if let Some(show) = subject.read(&raw, &view) {
            show(&mut view);
        }
    }
    records::settle(&mut view);
    State { raw, cluster: Arc::new(view) }
}

#[cfg(test)]
mod tests;
