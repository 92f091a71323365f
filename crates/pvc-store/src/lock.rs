//! Locks that Python peers (kazoo) understand: exclusive, write and read.
//!
//! A contender is an ephemeral sequential child of the locked path, named `<32 hex
//! digits><marker><10 digits>`; the lowest number wins, where an exclusive contender waits for
//! writers and exclusive ones, a writer also for readers, and a reader for writers and exclusive
//! ones. Facts: `spec/zookeeper.md` §6. These are for the protocols shared with legacy peers and
//! nothing else: our own changes are versioned writes.
//!
//! # What goes wrong on the way
//! - The answer to a creation is lost: the 32 digits tell whether the contender was made.
//! - The session expires while waiting: the contender went with it, and queues again at the end.
//! - There is no connection: waiting goes on, and so does giving up a lock, which is never
//!   forgotten while the session in which it was taken may live.
//! - The caller stops waiting in the middle of a request: the request is seen through by a task of
//!   its own, which removes what nobody wants any more.
//! - A reader of kazoo 2.8 waits for the *last* writer in the queue, also for one that came after
//!   it and waits for it in turn. See [`LockRecipe::breaking_stalls`].

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pvc_ports::{
    Clock, CreateMode, MultiError, Op, Random, SessionState, Stat, Tree, TreeError, TreeEvent,
    TreeWatch, parent_path,
};
use tokio::sync::{oneshot, watch};

use crate::error::StoreError;

/// The queue is looked at again at least this often while waiting, should the tree fail to tell.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Time that a contender stays away that made room for a stuck reader: long enough for the reader
/// to look at the queue, short enough to be back before the reader queues again.
const STEP_ASIDE: Duration = Duration::from_millis(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockKind {
    /// Excludes other exclusive and write locks; ignores readers.
    Exclusive,
    /// Excludes everybody.
    Write,
    /// Excludes exclusive and write locks.
    Read,
}

impl LockKind {
    fn marker(self) -> &'static str {
        match self {
            LockKind::Exclusive | LockKind::Write => "__lock__",
            LockKind::Read => "__rlock__",
        }
    }

    /// Whether a contender of this kind waits for one that was named with `marker`.
    fn waits_for(self, marker: &str) -> bool {
        match self {
            LockKind::Exclusive | LockKind::Read => marker == "__lock__",
            LockKind::Write => true,
        }
    }
}

impl std::fmt::Display for LockKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            LockKind::Exclusive => "exclusive",
            LockKind::Write => "write",
            LockKind::Read => "read",
        })
    }
}

/// The name of a child that is a contender, in its parts.
#[derive(Debug, PartialEq, Eq)]
struct Contender<'a> {
    marker: &'a str,
    /// The last ten digits, as a number.
    sequence: i64,
}

impl<'a> Contender<'a> {
    /// Children that are no contenders (data such as `sync_lock`) give `None`.
    fn parse(name: &'a str) -> Option<Self> {
        let (head, digits) = name.split_at_checked(name.len().checked_sub(10)?)?;
        let digits_only = digits.bytes().all(|b| b.is_ascii_digit());
        let (head, negative) = head.strip_suffix('-').map_or((head, false), |head| (head, true));
        let marker = ["__rlock__", "__lock__"].into_iter().find(|marker| head.ends_with(marker))?;
        let sequence: i64 = digits_only.then(|| digits.parse().ok()).flatten()?;
        Some(Contender { marker, sequence: if negative { -sequence } else { sequence } })
    }
}

/// Position of a contender in the queue, as it finds it.
#[derive(Debug, PartialEq, Eq)]
enum Position<'a> {
    First,
    /// Waits for `nearest`, the nearest before it; `readers_only`: and for no writer at all.
    Behind {
        nearest: &'a str,
        readers_only: bool,
    },
    /// No place in the queue any more: the session it belonged to is over.
    Gone,
}

fn position<'a>(children: &'a [String], own: &str, kind: LockKind) -> Position<'a> {
    let mine = children.iter().find(|name| *name == own).and_then(|name| Contender::parse(name));
    let Some(mine) = mine else { return Position::Gone };
    let mut before: Vec<(i64, &str, &str)> = children
        .iter()
        .filter_map(|name| Contender::parse(name).map(|it| (it.sequence, name.as_str(), it.marker)))
        .filter(|(sequence, _, marker)| *sequence < mine.sequence && kind.waits_for(marker))
        .collect();
    before.sort_unstable();
    let Some((_, nearest, _)) = before.last() else { return Position::First };
    let readers_only = before.iter().all(|(_, _, marker)| *marker == "__rlock__");
    Position::Behind { nearest, readers_only }
}

fn has_reader_behind(children: &[String], own: &str) -> bool {
    let Some(mine) = Contender::parse(own) else { return false };
    let is_behind = |it: Contender<'_>| it.marker == "__rlock__" && it.sequence > mine.sequence;
    children.iter().filter_map(|name| Contender::parse(name)).any(is_behind)
}

/// Takes locks on one tree.
#[derive(Clone)]
pub struct LockRecipe {
    tree: Arc<dyn Tree>,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    break_stalls_after: Option<Duration>,
    makes_path: bool,
}

impl LockRecipe {
    pub fn new(tree: Arc<dyn Tree>, clock: Arc<dyn Clock>, random: Arc<dyn Random>) -> Self {
        LockRecipe { tree, clock, random, break_stalls_after: None, makes_path: true }
    }

    /// For writers that alternate with readers of kazoo 2.8 on one path: whoever waits for readers
    /// alone and for this long steps aside once, which wakes a reader that waits for *it*.
    ///
    /// Costs the place in the queue, so it is only for protocols where readers hold the lock for a
    /// shorter time than this.
    pub fn breaking_stalls(self, after: Duration) -> Self {
        LockRecipe { break_stalls_after: Some(after), ..self }
    }

    /// For locks on what must be there already: a path that is missing is an error. So a tree that
    /// was emptied while the lock was waited for is not begun anew by it.
    pub fn on_what_exists(self) -> Self {
        LockRecipe { makes_path: false, ..self }
    }

    /// Takes the lock on `path`, waiting at most `timeout` in all (for ever if `None`). Waits
    /// through lost connections and expired sessions. `path` is made if it does not exist.
    ///
    /// # Errors
    /// [`StoreError::LockTimeout`] if somebody else held it, or the tree was away, all the time.
    ///
    /// # Cancellation
    /// Dropping the future gives up the place in the queue, as soon as the tree can be told.
    pub async fn acquire(
        &self,
        path: &str,
        kind: LockKind,
        timeout: Option<Duration>,
    ) -> Result<LockGuard, StoreError> {
        let Some(timeout) = timeout else { return self.queue(path, kind).await };
        tokio::select! {
            biased;
            // The lock first: a lock that came in the last moment is a lock.
            guard = self.queue(path, kind) => guard,
            () = self.clock.sleep(timeout) => Err(StoreError::LockTimeout {
                path: path.to_owned(),
                seconds: timeout.as_secs_f64(),
            }),
        }
    }

    /// Returns when somebody else than `own` stands in the queue of `path` to write, or holds it.
    /// Waits through lost connections.
    ///
    /// # Errors
    /// When the tree is closed.
    pub async fn until_others_queue(
        &self,
        path: &str,
        own: Option<&LockGuard>,
    ) -> Result<(), StoreError> {
        let mut changes = None;
        loop {
            match self.others_queue(path, own).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(StoreError::Tree(error)) => {
                    time_limit(&*self.tree, &*self.clock, error).await?
                }
                Err(error) => return Err(error),
            }
            match &mut changes {
                None => changes = self.watch(path).await?,
                Some(changes) => self.until_announced(changes).await?,
            }
        }
    }

    /// Whether somebody else than `own` stands in the queue of `path` to write, or holds it.
    pub async fn others_queue(
        &self,
        path: &str,
        own: Option<&LockGuard>,
    ) -> Result<bool, StoreError> {
        let children = self.tree.children(path).await?.unwrap_or_default();
        let is_other = |name: &&String| own.is_none_or(|own| own.name() != name.as_str());
        let writes =
            |name: &String| Contender::parse(name).is_some_and(|it| it.marker == "__lock__");
        Ok(children.iter().filter(is_other).any(writes))
    }

    /// Returns when a reader stands in the queue of `path` behind `own`. Waits through lost
    /// connections.
    ///
    /// # Errors
    /// When the tree is closed.
    pub async fn until_reader_behind(&self, path: &str, own: &LockGuard) -> Result<(), StoreError> {
        let mut changes = None;
        loop {
            match self.tree.children(path).await.map(Option::unwrap_or_default) {
                Ok(children) if has_reader_behind(&children, own.name()) => return Ok(()),
                Ok(_) => {}
                Err(error) => time_limit(&*self.tree, &*self.clock, error).await?,
            }
            match &mut changes {
                None => changes = self.watch(path).await?,
                Some(changes) => self.until_announced(changes).await?,
            }
        }
    }

    /// Returns at the next change, or when it is time to look again.
    async fn until_announced(&self, changes: &mut TreeWatch) -> Result<(), StoreError> {
        tokio::select! {
            biased;
            event = changes.recv() => event.map(drop).ok_or_else(|| TreeError::Closed.into()),
            () = self.clock.sleep(LOOK_AGAIN) => Ok(()),
        }
    }

    async fn queue(&self, path: &str, kind: LockKind) -> Result<LockGuard, StoreError> {
        let prefix = format!("{}{}", self.random.uuid().simple(), kind.marker());
        loop {
            let place = self.enter(path, &prefix).await?;
            match self.wait_in(&place, path, kind).await? {
                Turn::Mine if !place.lost() => return Ok(place),
                Turn::Mine | Turn::Gone => place.forget(),
                Turn::Stalled => {
                    place.release().await;
                    self.clock.sleep(STEP_ASIDE).await;
                }
            }
        }
    }

    /// Gets a place at the end of the queue. A task of its own does it, so that a creation which is
    /// under way when the caller gives up does not leave a contender that nobody removes.
    async fn enter(&self, path: &str, prefix: &str) -> Result<LockGuard, StoreError> {
        let entry = Entry {
            tree: self.tree.clone(),
            clock: self.clock.clone(),
            path: path.to_owned(),
            prefix: prefix.to_owned(),
            data: Bytes::from(self.random.uuid().to_string()),
            makes_path: self.makes_path,
        };
        let (mut wanted, place) = oneshot::channel();
        tokio::spawn(async move {
            let entered = entry.enter(&mut wanted).await;
            drop(wanted.send(entered)); // a place that nobody wants is given up when it is dropped
        });
        match place.await {
            Ok(Some(place)) => Ok(place?),
            // The task ends early only if this future is dropped, or the runtime is.
            Ok(None) | Err(_) => Err(TreeError::Closed.into()),
        }
    }

    async fn wait_in(
        &self,
        place: &LockGuard,
        path: &str,
        kind: LockKind,
    ) -> Result<Turn, StoreError> {
        let mut changes = None;
        let mut behind_readers_since = None;
        loop {
            let children = match self.tree.children(path).await {
                Ok(children) => children.unwrap_or_default(),
                Err(error) => {
                    time_limit(&*self.tree, &*self.clock, error).await?;
                    continue;
                }
            };
            let (nearest, readers_only) = match position(&children, place.name(), kind) {
                Position::First => return Ok(Turn::Mine),
                Position::Gone => return Ok(Turn::Gone),
                Position::Behind { nearest, readers_only } => (nearest, readers_only),
            };
            let now = self.clock.monotonic();
            let since = if readers_only { behind_readers_since.unwrap_or(now) } else { now };
            behind_readers_since = readers_only.then_some(since);
            let stall_left = match self.break_stalls_after {
                Some(after) if readers_only => after.saturating_sub(now.saturating_sub(since)),
                _ => LOOK_AGAIN,
            };
            if stall_left.is_zero() {
                return Ok(Turn::Stalled);
            }
            match &mut changes {
                Some(changes) => {
                    let nearest = format!("{path}/{nearest}");
                    self.until_gone(&nearest, changes, stall_left.min(LOOK_AGAIN)).await?;
                }
                // Watch, then look again: what went in between is not announced.
                None => changes = self.watch(path).await?,
            }
        }
    }

    async fn watch(&self, path: &str) -> Result<Option<TreeWatch>, StoreError> {
        match self.tree.watch(path).await {
            Ok(changes) => Ok(Some(changes)),
            Err(error) => time_limit(&*self.tree, &*self.clock, error).await.map(|()| None),
        }
    }

    /// Returns when `contender` was deleted, or when it is time to look again.
    async fn until_gone(
        &self,
        contender: &str,
        changes: &mut TreeWatch,
        at_most: Duration,
    ) -> Result<(), StoreError> {
        let look_again = self.clock.sleep(at_most);
        tokio::pin!(look_again);
        loop {
            tokio::select! {
                biased;
                event = changes.recv() => match event {
                    Some(TreeEvent::Deleted { path }) if path == contender => return Ok(()),
                    Some(TreeEvent::Resync) => return Ok(()),
                    Some(_) => {}
                    None => return Err(TreeError::Closed.into()),
                },
                () = &mut look_again => return Ok(()),
            }
        }
    }
}

/// End of waiting in the queue.
enum Turn {
    Mine,
    Gone,
    /// Behind readers that may be stuck behind this very contender.
    Stalled,
}

/// An attempt to get a place in a queue.
struct Entry {
    tree: Arc<dyn Tree>,
    clock: Arc<dyn Clock>,
    path: String,
    prefix: String,
    data: Bytes,
    makes_path: bool,
}

impl Entry {
    /// `None` if nobody wants the place any more.
    async fn enter<T>(
        self,
        wanted: &mut oneshot::Sender<T>,
    ) -> Option<Result<LockGuard, StoreError>> {
        while !wanted.is_closed() {
            match self.try_enter().await {
                Ok(Some((made, stat))) => return Some(Ok(self.guard(made, &stat))),
                Ok(None) => {}
                Err(error) => return Some(Err(error)),
            }
        }
        None
    }

    /// `None`: try again.
    async fn try_enter(&self) -> Result<Option<(String, Stat)>, StoreError> {
        let contender = format!("{}/{}", self.path, self.prefix);
        let mode = CreateMode::EphemeralSequential;
        match self.tree.create(&contender, self.data.clone(), mode).await {
            Ok(made) => Ok(Some(made)),
            Err(TreeError::NoNode { .. }) if self.makes_path => {
                self.make_path().await.map(|()| None)
            }
            Err(error @ TreeError::NoNode { .. }) => Err(error.into()),
            Err(TreeError::OutcomeUnknown) => self.find_own().await,
            Err(error) => time_limit(&*self.tree, &*self.clock, error).await.map(|()| None),
        }
    }

    /// After a lost answer: the own contender, if it was made all the same.
    async fn find_own(&self) -> Result<Option<(String, Stat)>, StoreError> {
        loop {
            match self.look_for_own().await {
                Ok(found) => return Ok(found),
                Err(error) => time_limit(&*self.tree, &*self.clock, error).await?,
            }
        }
    }

    async fn look_for_own(&self) -> Result<Option<(String, Stat)>, TreeError> {
        self.tree.sync().await?;
        let children = self.tree.children(&self.path).await?.unwrap_or_default();
        let Some(own) = children.into_iter().find(|name| name.starts_with(&self.prefix)) else {
            return Ok(None);
        };
        let made = format!("{}/{own}", self.path);
        Ok(self.tree.get(&made).await?.map(|entry| (made, entry.stat)))
    }

    /// Makes the locked path and what is missing above it.
    async fn make_path(&self) -> Result<(), StoreError> {
        let mut missing = vec![self.path.as_str()];
        while let Some(path) = missing.last().copied() {
            match self.tree.create(path, Bytes::new(), CreateMode::Persistent).await {
                Ok(_) | Err(TreeError::NodeExists { .. }) => {
                    missing.pop();
                }
                Err(TreeError::NoNode { .. }) => match parent_path(path) {
                    Some(parent) => missing.push(parent),
                    None => return Err(TreeError::NoNode { path: path.to_owned() }.into()),
                },
                Err(TreeError::OutcomeUnknown) => {}
                Err(error) => time_limit(&*self.tree, &*self.clock, error).await?,
            }
        }
        Ok(())
    }

    fn guard(self, path: String, stat: &Stat) -> LockGuard {
        LockGuard {
            session: self.tree.session(),
            clock: self.clock,
            tree: Some(self.tree),
            path,
            held_in: stat.ephemeral_owner,
        }
    }
}

/// Waits out an error that passes by itself.
///
/// # Errors
/// `error` itself, if it is of another kind.
async fn time_limit(
    tree: &dyn Tree,
    clock: &dyn Clock,
    error: TreeError,
) -> Result<(), StoreError> {
    if !matches!(error, TreeError::Unreachable { .. } | TreeError::SessionExpired) {
        return Err(error.into());
    }
    wait_for_connection(tree, clock).await;
    Ok(())
}

/// Returns when there is a connection, or after a moment.
async fn wait_for_connection(tree: &dyn Tree, clock: &dyn Clock) {
    const MOMENT: Duration = Duration::from_secs(1);
    // A tree that says it is connected and fails all the same must not be asked without a pause.
    const BREATH: Duration = Duration::from_millis(100);
    let is_connected = |state: &SessionState| matches!(state, SessionState::Connected { .. });
    let mut session = tree.session();
    if is_connected(&session.borrow()) {
        return clock.sleep(BREATH).await;
    }
    tokio::select! {
        biased;
        _ = session.wait_for(is_connected) => {}
        () = clock.sleep(MOMENT) => {}
    }
}

/// A lock, or a place in its queue. Dropping it gives it up in the background;
/// [`release`](LockGuard::release) does so before it returns.
pub struct LockGuard {
    /// `None` once it was given up.
    tree: Option<Arc<dyn Tree>>,
    clock: Arc<dyn Clock>,
    path: String,
    session: watch::Receiver<SessionState>,
    held_in: i64,
}

impl LockGuard {
    fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    fn forget(mut self) {
        self.tree = None;
    }

    /// Whether it is known that the session in which the lock was taken is over, and the lock with
    /// it.
    pub fn lost(&self) -> bool {
        is_over(*self.session.borrow(), self.held_in)
    }

    /// Whether it is known that the lock is held. While the connection is down nobody can know: the
    /// servers may have ended the session, and somebody else may have the lock.
    pub fn certain(&self) -> bool {
        *self.session.borrow() == SessionState::Connected { id: self.held_in }
    }

    /// Returns when the lock is [`lost`](LockGuard::lost).
    pub async fn until_lost(&self) {
        let mut session = self.session.clone();
        // An error means that the tree itself is gone, and the session with it.
        let _ = session.wait_for(|state| is_over(*state, self.held_in)).await;
    }

    /// Gives the lock up. One that is lost already is no error. If the tree cannot be told now, it
    /// is told later, for as long as the lock might otherwise stay.
    pub async fn release(mut self) {
        if let Some(goodbye) = self.goodbye()
            && !goodbye.say().await
        {
            tokio::spawn(goodbye.say_until_answered());
        }
    }

    fn goodbye(&mut self) -> Option<Goodbye> {
        let tree = self.tree.take()?;
        let path = std::mem::take(&mut self.path);
        Some(Goodbye { tree, clock: self.clock.clone(), path, held_in: self.held_in })
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if let Some(goodbye) = self.goodbye()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(goodbye.say_until_answered());
        }
    }
}

/// The removal of a contender that is no longer wanted.
struct Goodbye {
    tree: Arc<dyn Tree>,
    clock: Arc<dyn Clock>,
    path: String,
    held_in: i64,
}

impl Goodbye {
    /// True when the contender is gone, or will go by itself.
    async fn say(&self) -> bool {
        if is_over(*self.tree.session().borrow(), self.held_in) {
            return true;
        }
        let delete = Op::Delete { path: self.path.clone(), version: None };
        match self.tree.multi(vec![delete]).await {
            Ok(_) | Err(MultiError::Refused { .. }) => true,
            Err(MultiError::Tree(
                TreeError::OutcomeUnknown
                | TreeError::Unreachable { .. }
                | TreeError::SessionExpired,
            )) => false,
            Err(MultiError::Tree(error)) => {
                let path = &self.path;
                tracing::warn!(%error, path, "a lock could not be given up; it ends with the \
                                              session");
                true
            }
        }
    }

    async fn say_until_answered(self) {
        while !self.say().await {
            wait_for_connection(&*self.tree, &*self.clock).await;
        }
    }
}

fn is_over(state: SessionState, session: i64) -> bool {
    match state {
        SessionState::Connected { id } => id != session,
        SessionState::Disconnected => false,
        SessionState::Expired | SessionState::Closed => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn children(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn children_that_are_no_contenders_are_ignored() {
        assert_eq!(Contender::parse("sync_lock"), None);
        assert_eq!(Contender::parse("x__lock__00000000ab"), None);
        assert_eq!(
            Contender::parse("x__lock__0000000012"),
            Some(Contender { marker: "__lock__", sequence: 12 })
        );
        assert_eq!(
            Contender::parse("x__rlock__-0000000001"),
            Some(Contender { marker: "__rlock__", sequence: -1 })
        );
    }

    fn behind(nearest: &str, readers_only: bool) -> Position<'_> {
        Position::Behind { nearest, readers_only }
    }

    #[test]
    fn each_kind_waits_for_the_nearest_one_before_it_that_excludes_it() {
        let names = children(&[
            "d__lock__0000000004",
            "a__lock__0000000001",
            "sync_lock",
            "c__rlock__0000000003",
            "b__rlock__0000000002",
        ]);
        let of = |own, kind| position(&names, own, kind);
        assert_eq!(of("a__lock__0000000001", LockKind::Write), Position::First);
        assert_eq!(
            of("c__rlock__0000000003", LockKind::Read),
            behind("a__lock__0000000001", false)
        );
        assert_eq!(
            of("d__lock__0000000004", LockKind::Write),
            behind("c__rlock__0000000003", false)
        );
        assert_eq!(
            of("d__lock__0000000004", LockKind::Exclusive),
            behind("a__lock__0000000001", false)
        );
    }

    #[test]
    fn a_writer_behind_readers_alone_knows_that_it_may_be_in_their_way() {
        let names =
            children(&["a__rlock__0000000001", "b__rlock__0000000002", "w__lock__0000000003"]);
        let found = position(&names, "w__lock__0000000003", LockKind::Write);
        assert_eq!(found, behind("b__rlock__0000000002", true));
    }

    #[test]
    fn a_reader_does_not_wait_for_a_writer_that_came_later() {
        let names = children(&["r__rlock__0000000002", "w__lock__0000000003"]);
        assert_eq!(position(&names, "r__rlock__0000000002", LockKind::Read), Position::First);
    }

    #[test]
    fn a_writer_sees_the_reader_behind_it_and_not_the_one_before() {
        let names =
            children(&["a__rlock__0000000001", "w__lock__0000000002", "x__lock__0000000003"]);
        assert!(!has_reader_behind(&names, "w__lock__0000000002"));
        let names = children(&["w__lock__0000000002", "b__rlock__0000000004"]);
        assert!(has_reader_behind(&names, "w__lock__0000000002"));
    }

    #[test]
    fn a_contender_that_vanished_is_noticed() {
        let names = children(&["a__lock__0000000001"]);
        assert_eq!(position(&names, "b__lock__0000000002", LockKind::Write), Position::Gone);
    }
}
