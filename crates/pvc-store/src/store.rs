//! The store: one view to read, one way to write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pvc_model::cluster::Cluster;
use pvc_ports::{
    Clock, CreateMode, Entry, MultiError, Op, Random, SessionState, Stat, Tree, TreeError,
};
use tokio::sync::{mpsc, oneshot, watch};

use crate::cache::{Ask, BeforeAside, Cache, Shared, Shown};
use crate::change::{Changes, Report};
use crate::draft::{Draft, Drafted};
use crate::error::{ChangeError, StoreError};
use crate::feed::{EventFeed, Feed};
use crate::keys;
use crate::outage;
use crate::records;
use crate::scope::Scope;

/// Number of times that a change is decided while somebody else is faster each time.
const TRIES: u32 = 10;

/// Typed access to the tree. Cheap to clone; all clones share one cache.
#[derive(Clone)]
pub struct Store {
    pub(crate) tree: Arc<dyn Tree>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) random: Arc<dyn Random>,
    shown: Shown,
    revision: watch::Receiver<u64>,
    feed: Feed,
    asks: mpsc::UnboundedSender<Ask>,
    outage: outage::Since,
    is_dry: bool,
    scope: Scope,
}

impl Store {
    /// Watches and reads the whole tree. Returns once the view is complete.
    pub async fn open(
        tree: Arc<dyn Tree>,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Result<Store, StoreError> {
        Store::open_with(tree, clock, random, Arc::new(|_| {})).await
    }

    /// Opens as [`open`](Store::open) does, with the jobs and workers alone in view, for who waits
    /// for a job: the rest of a large cluster takes most of a process's memory. Nothing is decided
    /// on such a view; [`whole`](Store::whole) gives the store that is needed then.
    pub async fn open_jobs(
        tree: Arc<dyn Tree>,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Result<Store, StoreError> {
        let store = Store::open_scope(tree, Scope::Jobs, clock, random, Arc::new(|_| {})).await?;
        let (tree, clock, view) = (store.tree.clone(), store.clock.clone(), store.changed());
        tokio::spawn(records::node::read_stamps(tree, clock, view));
        Ok(store)
    }

    /// The store with all of the cluster in view, in the same session: this one if it has, or one
    /// that is opened now and ends with the last that holds it.
    pub async fn whole(&self) -> Result<Store, StoreError> {
        match self.scope {
            Scope::Whole => Ok(self.clone()),
            Scope::Jobs => {
                Store::open(self.tree.clone(), self.clock.clone(), self.random.clone()).await
            }
        }
    }

    /// Opens as [`open`](Store::open) does; `before_aside` is told what is about to be decoded
    /// aside.
    pub(crate) async fn open_with(
        tree: Arc<dyn Tree>,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
        before_aside: BeforeAside,
    ) -> Result<Store, StoreError> {
        Store::open_scope(tree, Scope::Whole, clock, random, before_aside).await
    }

    async fn open_scope(
        tree: Arc<dyn Tree>,
        scope: Scope,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
        before_aside: BeforeAside,
    ) -> Result<Store, StoreError> {
        let Shared { shown, revision, feed, asks } =
            Cache::start(tree.clone(), scope, clock.clone(), before_aside).await?;
        let outage = outage::observe(tree.session(), clock.clone());
        let is_dry = false;
        Ok(Store { tree, clock, random, shown, revision, feed, asks, outage, is_dry, scope })
    }

    /// The same store for a dry run: what is asked for is decided and refused as ever, and nothing
    /// is written.
    pub fn dry(&self) -> Store {
        Store { is_dry: true, ..self.clone() }
    }

    /// Whether this store is one for a dry run: whoever does more than [`change`](Store::change)
    /// leaves the rest.
    pub fn is_dry(&self) -> bool {
        self.is_dry
    }

    pub fn tree(&self) -> &Arc<dyn Tree> {
        &self.tree
    }

    /// Everything recorded, as this process last saw it. Costs no request. While the tree cannot be
    /// reached it is as old as the outage.
    pub fn view(&self) -> Arc<Cluster> {
        self.shown.cluster()
    }

    /// Returns the [`view`](Store::view), not older than this call.
    pub async fn fresh(&self) -> Result<Arc<Cluster>, StoreError> {
        self.tree.sync().await?;
        self.refresh(Vec::new()).await?;
        Ok(self.view())
    }

    /// Asks the tree how often a volume was [held](pvc_model::hold) so far, not before this call.
    pub async fn holds(&self) -> Result<i32, StoreError> {
        self.tree.sync().await?;
        Ok(records::hold::count(self.tree.get(records::hold::ROOT).await?.as_ref()))
    }

    /// The revision of the view: wakes whoever waits for a change.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.revision.clone()
    }

    /// Returns once the view is kept up to date no more: the tree was closed, or the cache has
    /// failed by a bug. A daemon that goes on with a frozen view would look alive and do nothing.
    pub async fn ended(&self) {
        let mut revision = self.revision.clone();
        while revision.changed().await.is_ok() {}
    }

    pub fn session(&self) -> watch::Receiver<SessionState> {
        self.tree.session()
    }

    /// Time for which the tree has not been reached; `None` while there is a connection. Costs no
    /// request.
    pub fn outage(&self) -> Option<Duration> {
        self.outage.borrow().map(|since| self.clock.monotonic().saturating_sub(since))
    }

    /// The events after revision `cursor`, or from now on. Of those before the first call nothing
    /// is known: whoever asks for them is told to read everything again.
    pub fn events(&self, cursor: Option<u64>) -> EventFeed {
        self.feed.from(cursor)
    }

    /// Decides on the present view and writes what was decided as one change; on a conflict decides
    /// again on a fresh view. No lock is held meanwhile. Returns when the own view shows the
    /// change. In a [dry run](Store::dry) nothing is written, and the outcome is that of the
    /// decision.
    ///
    /// # Errors
    /// [`ChangeError::Refused`] with what `decide` said; nothing was written. After
    /// [`ChangeError::Store`] the change may have been made if the connection broke at that moment
    /// and could not be re-made to look, or others had written the same records when it was.
    pub async fn change<T, E>(
        &self,
        mut decide: impl FnMut(&Cluster) -> Result<(Changes, T), E> + Send,
    ) -> Result<T, ChangeError<E>> {
        for _ in 0..TRIES {
            let (Drafted { ops, absent }, outcome) = self.draft(&mut decide)?;
            if ops.is_empty() {
                return Ok(outcome);
            }
            self.check_size(&ops)?;
            if self.is_dry {
                return Ok(outcome);
            }
            let paths: Vec<String> = ops.iter().map(|op| op.path().to_owned()).collect();
            match self.tree.multi(ops.clone()).await {
                Ok(_) => {
                    // The change is made; a view that lags for once is no reason to call it failed.
                    if let Err(error) = self.refresh(paths).await {
                        tracing::debug!(%error, "a change was made but cannot be read back yet");
                    }
                    return Ok(outcome);
                }
                Err(MultiError::Refused { why, .. }) if is_conflict(&why) => {
                    self.tree.sync().await?;
                    self.refresh(paths).await?;
                }
                Err(MultiError::Tree(TreeError::OutcomeUnknown)) => {
                    self.tree.sync().await?;
                    let fate = fate(self.tree.as_ref(), &ops, &absent).await?;
                    let seen = self.refresh(paths).await;
                    match fate {
                        Fate::Made => return Ok(outcome),
                        Fate::NotMade => seen?,
                        // To decide again would be to refuse what was done, or to do it twice.
                        Fate::Unclear => return Err(StoreError::Unclear.into()),
                    }
                }
                Err(MultiError::Refused { why, .. } | MultiError::Tree(why)) => {
                    return Err(why.into());
                }
            }
        }
        Err(ChangeError::Conflict { tries: TRIES })
    }

    fn draft<T, E>(
        &self,
        decide: &mut impl FnMut(&Cluster) -> Result<(Changes, T), E>,
    ) -> Result<(Drafted, T), ChangeError<E>> {
        assert!(self.scope == Scope::Whole, "what is not in view would be taken for absent");
        let state = self.shown.get();
        let (changes, outcome) = decide(&state.cluster).map_err(ChangeError::Refused)?;
        let mut draft = Draft::new(&state.raw);
        draft.changes(&changes)?;
        Ok((draft.finished(), outcome))
    }

    fn check_size(&self, ops: &[Op]) -> Result<(), StoreError> {
        let limit = self.tree.max_request_bytes();
        let size = ops.iter().map(Op::request_bytes).sum();
        if size > limit { Err(StoreError::TooLarge { size, limit }) } else { Ok(()) }
    }

    /// Writes observations: those whose value differs from the cache's, whatever their versions, in
    /// one request, or in several if they are more than a server takes at once. What belongs to a
    /// record that is gone is dropped.
    ///
    /// # Errors
    /// Part of the observations may have been written.
    pub async fn report(&self, reports: Vec<Report>) -> Result<(), StoreError> {
        for chunk in chunks(self.report_ops(&reports), self.chunk_bytes()) {
            self.write_observed(chunk).await?;
        }
        Ok(())
    }

    /// Operations that write `reports`. A node's come first: they are few, and are read together.
    fn report_ops(&self, reports: &[Report]) -> Vec<Op> {
        let state = self.shown.get();
        let is_there =
            |report: &&Report| report.record().is_none_or(|record| state.raw.contains(&record));
        let values: BTreeMap<String, String> =
            reports.iter().filter(is_there).flat_map(Report::values).collect();
        let op = |(path, value): (String, String)| {
            let data = Bytes::from(value);
            match state.raw.get(&path) {
                Some(node) if node.data == data && !records::is_left_out(&path) => None,
                Some(_) => Some(Op::Set { path, data, version: None }),
                None if state.raw.contains(keys::parent(&path)) => {
                    Some(Op::Create { path, data, mode: CreateMode::Persistent })
                }
                None => None,
            }
        };
        let mut ops: Vec<Op> = values.into_iter().filter_map(op).collect();
        ops.sort_by_key(|op| !op.path().starts_with(records::node::ROOT));
        ops
    }

    async fn write_observed(&self, mut ops: Vec<Op>) -> Result<(), StoreError> {
        while !ops.is_empty() {
            match self.tree.multi(ops.clone()).await {
                Ok(_) => return Ok(()),
                Err(MultiError::Refused { index, why }) if is_conflict(&why) => {
                    let refused = ops.remove(index);
                    // The key was created a moment ago, and is not in the cache yet. Else its
                    // record was removed a moment ago: it is dropped.
                    if let (TreeError::NodeExists { .. }, Op::Create { path, data, .. }) =
                        (why, refused)
                    {
                        ops.insert(index, Op::Set { path, data, version: None });
                    }
                }
                Err(error) => return Err(flat(error)),
            }
        }
        Ok(())
    }

    pub(crate) async fn read_text(&self, path: &str) -> Result<Option<String>, StoreError> {
        let entry = self.tree.get(path).await?;
        Ok(entry.map(|entry| String::from_utf8_lossy(&entry.data).into_owned()))
    }

    /// Creates `path`, whose parent exists, with nothing in it, unless it is there.
    pub(crate) async fn ensure_path(&self, path: &str) -> Result<(), StoreError> {
        if self.shown.contains(path) {
            return Ok(());
        }
        self.make_path(path).await
    }

    /// Creates as [`ensure_path`](Store::ensure_path) does, whatever the view says.
    pub(crate) async fn make_path(&self, path: &str) -> Result<(), StoreError> {
        match self.tree.create(path, Bytes::new(), CreateMode::Persistent).await {
            Ok(_) | Err(TreeError::NodeExists { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The ephemeral node at `path`, if there is one that belongs to our session.
    pub(crate) async fn own(&self, path: &str) -> Result<Option<Stat>, StoreError> {
        self.tree.sync().await?;
        let found = self.tree.get(path).await?.map(|entry| entry.stat);
        let session = *self.tree.session().borrow();
        let SessionState::Connected { id } = session else { return Ok(None) };
        Ok(found.filter(|stat| stat.ephemeral_owner == id))
    }

    /// Reads `paths` again now, and whatever else is known to have changed.
    pub(crate) async fn refresh(&self, paths: Vec<String>) -> Result<(), StoreError> {
        let (done, answer) = oneshot::channel();
        let closed = || StoreError::Tree(TreeError::Closed);
        self.asks.send(Ask::Refresh { paths, done }).map_err(|_| closed())?;
        Ok(answer.await.map_err(|_| closed())??)
    }

    /// Reads from the tree as the cache knows it, for the parts of this crate that work on paths.
    pub(crate) fn with_raw<T>(&self, read: impl FnOnce(&crate::raw::Raw) -> T) -> T {
        read(&self.shown.get().raw)
    }
}

/// Whether somebody else was there first: deciding again may help.
pub(crate) fn is_conflict(error: &TreeError) -> bool {
    matches!(
        error,
        TreeError::BadVersion { .. }
            | TreeError::NodeExists { .. }
            | TreeError::NoNode { .. }
            | TreeError::NotEmpty { .. }
    )
}

pub(crate) fn flat(error: MultiError) -> StoreError {
    match error {
        MultiError::Refused { why, .. } | MultiError::Tree(why) => StoreError::Tree(why),
    }
}

/// Fate of a multi whose answer was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Made,
    NotMade,
    /// Somebody has written there since, after it or instead of it.
    Unclear,
}

/// Trace of a multi that is to be seen where one of its operations would have left one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trace {
    /// The state that the operation would have made.
    AsMade,
    /// Nobody has written there: a multi does all or nothing.
    Untouched,
    /// Nothing is there that was to be made, or what was to go: as before, or as it is again.
    AsBefore,
    Other,
}

/// Looks whether a multi was made. What was not to be there is looked at before and after the rest:
/// with it, somebody else may have written the same, and takes it back.
async fn fate(tree: &dyn Tree, ops: &[Op], absent: &[String]) -> Result<Fate, StoreError> {
    let written = ops.iter().map(|op| op.path().to_owned());
    let paths: Vec<String> = absent.iter().cloned().chain(written).chain(absent.to_vec()).collect();
    let entries = tree.get_many(&paths).await?;
    let (before, entries) = entries.split_at(absent.len());
    let (entries, after) = entries.split_at(ops.len());
    let is_by_others = before.iter().chain(after).any(Option::is_some);
    // A check leaves none.
    let writes = ops.iter().zip(entries).filter(|(op, _)| !matches!(op, Op::Check { .. }));
    let traces = writes.map(|(op, entry)| (op, trace(op, entry.as_ref())));
    // What guards say nothing of who wrote them: others write the same key, and the same into it.
    let (guards, own): (Vec<_>, Vec<_>) = traces.partition(|(op, _)| records::is_guard(op.path()));
    let are_all = |wanted: Trace| own.iter().all(|(_, trace)| *trace == wanted);
    let is_untouched = own.iter().chain(&guards).any(|(_, trace)| *trace == Trace::Untouched);
    let is_as_before = guards.is_empty() && are_all(Trace::AsBefore);
    Ok(if is_untouched || is_as_before {
        Fate::NotMade
    } else if are_all(Trace::AsMade) && !own.is_empty() && !is_by_others {
        Fate::Made
    } else {
        Fate::Unclear
    })
}

fn trace(op: &Op, entry: Option<&Entry>) -> Trace {
    match (op, entry) {
        (Op::Create { .. }, None) => Trace::AsBefore,
        (Op::Create { data, .. }, Some(entry))
            if entry.data == *data && entry.stat.version == 0 =>
        {
            Trace::AsMade
        }
        (Op::Set { data, version: Some(version), .. }, Some(entry)) => {
            match entry.stat.version - version {
                1 if entry.data == *data => Trace::AsMade,
                0 => Trace::Untouched,
                _ => Trace::Other,
            }
        }
        (Op::Set { data, version: None, .. }, Some(entry)) if entry.data == *data => Trace::AsMade,
        (Op::Delete { .. }, None) => Trace::AsMade,
        (Op::Delete { version, .. }, Some(entry))
            if version.is_none_or(|old| entry.stat.version == old) =>
        {
            Trace::AsBefore
        }
        _ => Trace::Other,
    }
}

/// Groups `ops` into requests of at most `limit` bytes, in order.
pub(crate) fn chunks(ops: Vec<Op>, limit: usize) -> Vec<Vec<Op>> {
    let mut chunks: Vec<Vec<Op>> = Vec::new();
    let mut room = 0;
    for op in ops {
        let size = op.request_bytes();
        match chunks.last_mut() {
            Some(chunk) if size <= room => {
                room -= size;
                chunk.push(op);
            }
            _ => {
                room = limit.saturating_sub(size);
                chunks.push(vec![op]);
            }
        }
    }
    chunks
}

/// The set of paths that `ops` write.
pub(crate) fn paths_of(ops: &[Op]) -> BTreeSet<String> {
    ops.iter().map(|op| op.path().to_owned()).collect()
}
