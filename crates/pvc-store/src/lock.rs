//! Locks that Python peers (kazoo) understand: exclusive, write and read.
//!
//! A contender is an ephemeral sequential child of the locked path, named
//! `<32 hex digits><marker><10 digits>`; the lowest number wins, where an exclusive contender waits for
//! writers and exclusive ones, a writer also for readers, and a reader for writers and exclusive ones.
//! Facts: `spec/zookeeper.md` §6. These are for the protocols shared with older peers and nothing
//! else: our own changes are versioned writes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pvc_ports::{Clock, CreateMode, Op, Random, SessionState, Tree, TreeError, TreeEvent, TreeWatch};
use tokio::sync::watch;

use crate::error::StoreError;
use crate::store::flat;

/// A held lock is looked at again at least this often while waiting for it, should a watch be lost.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

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

/// What a child's name says, if it is a contender's.
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

/// The contender just before `own` that it has to wait for; `None` if the lock is held. `Err` if
/// `own` is not among the children any more.
fn predecessor<'a>(children: &'a [String], own: &str, kind: LockKind) -> Result<Option<&'a str>, Gone> {
    let mine =
        children.iter().find(|name| *name == own).and_then(|name| Contender::parse(name)).ok_or(Gone)?;
    let before = children.iter().filter_map(|name| {
        let contender = Contender::parse(name)?;
        let counts = kind.waits_for(contender.marker) && contender.sequence < mine.sequence;
        counts.then_some((contender.sequence, name.as_str()))
    });
    Ok(before.max().map(|(_, name)| name))
}

/// The own contender has vanished: the session it belonged to is over.
#[derive(Debug, PartialEq, Eq)]
struct Gone;

/// Takes locks on one tree.
#[derive(Clone)]
pub struct LockRecipe {
    tree: Arc<dyn Tree>,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
}

impl LockRecipe {
    pub fn new(tree: Arc<dyn Tree>, clock: Arc<dyn Clock>, random: Arc<dyn Random>) -> Self {
        LockRecipe { tree, clock, random }
    }

    /// Takes the lock on `path`, waiting at most `timeout` in all (for ever if `None`).
    ///
    /// # Errors
    /// [`StoreError::LockTimeout`] if somebody else held it all the time.
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
            () = self.clock.sleep(timeout) => {
                Err(StoreError::LockTimeout { path: path.to_owned(), seconds: timeout.as_secs() })
            }
        }
    }

    async fn queue(&self, path: &str, kind: LockKind) -> Result<LockGuard, StoreError> {
        self.ensure(path).await?;
        let mut changes = self.tree.watch(path).await?;
        let prefix = format!("{}{}", self.random.uuid().simple(), kind.marker());
        loop {
            let session = self.tree.session();
            let own = self.enter(path, &prefix).await?;
            let guard = LockGuard {
                tree: Some(self.tree.clone()),
                path: format!("{path}/{own}"),
                session,
                held_in: None,
            };
            match self.wait(path, &own, kind, &mut changes).await {
                Ok(()) => return Ok(guard.held()),
                Err(Waiting::Gone) => guard.forget(),
                Err(Waiting::Failed(error)) => return Err(error.into()),
            }
        }
    }

    /// Creates the own contender. If the answer is lost, looks whether it was created all the same.
    async fn enter(&self, path: &str, prefix: &str) -> Result<String, StoreError> {
        let contender = format!("{path}/{prefix}");
        let data = Bytes::from(self.random.uuid().to_string());
        loop {
            match self.tree.create(&contender, data.clone(), CreateMode::EphemeralSequential).await {
                Ok((made, _)) => return Ok(name_of(&made).to_owned()),
                Err(TreeError::OutcomeUnknown) => {
                    self.tree.sync().await?;
                    let children = self.tree.children(path).await?.unwrap_or_default();
                    if let Some(own) = children.into_iter().find(|name| name.starts_with(prefix)) {
                        return Ok(own);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn wait(
        &self,
        path: &str,
        own: &str,
        kind: LockKind,
        changes: &mut TreeWatch,
    ) -> Result<(), Waiting> {
        loop {
            let children = self.tree.children(path).await?.unwrap_or_default();
            let Some(before) = predecessor(&children, own, kind)? else { return Ok(()) };
            let before = format!("{path}/{before}");
            self.until_gone(&before, changes).await?;
        }
    }

    /// Returns when `before` was deleted, or when it is time to look again.
    async fn until_gone(&self, before: &str, changes: &mut TreeWatch) -> Result<(), Waiting> {
        let look_again = self.clock.sleep(LOOK_AGAIN);
        tokio::pin!(look_again);
        loop {
            tokio::select! {
                biased;
                event = changes.recv() => match event {
                    Some(TreeEvent::Deleted { path }) if path == before => return Ok(()),
                    Some(TreeEvent::Resync) => return Ok(()),
                    Some(_) => {}
                    None => return Err(Waiting::Failed(TreeError::Closed)),
                },
                () = &mut look_again => return Ok(()),
            }
        }
    }

    async fn ensure(&self, path: &str) -> Result<(), StoreError> {
        match self.tree.create(path, Bytes::new(), CreateMode::Persistent).await {
            Ok(_) | Err(TreeError::NodeExists { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

enum Waiting {
    Gone,
    Failed(TreeError),
}

impl From<Gone> for Waiting {
    fn from(_: Gone) -> Self {
        Waiting::Gone
    }
}

impl From<TreeError> for Waiting {
    fn from(error: TreeError) -> Self {
        Waiting::Failed(error)
    }
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// A lock, or a place in its queue. Dropping it gives it up in the background; [`release`](LockGuard::release)
/// does so before it returns.
pub struct LockGuard {
    /// `None` once it was given up.
    tree: Option<Arc<dyn Tree>>,
    path: String,
    session: watch::Receiver<SessionState>,
    held_in: Option<i64>,
}

impl LockGuard {
    fn held(mut self) -> Self {
        self.held_in = session_id(*self.session.borrow());
        self
    }

    fn forget(mut self) {
        self.tree = None;
    }

    /// Whether the session in which the lock was taken is over, and the lock with it. While the
    /// connection is down nobody can know: it may be over already.
    pub fn lost(&self) -> bool {
        match *self.session.borrow() {
            SessionState::Connected { id } => self.held_in.is_some_and(|held_in| held_in != id),
            SessionState::Disconnected => false,
            SessionState::Expired | SessionState::Closed => true,
        }
    }

    /// Gives the lock up. A lock that is lost already is no error.
    pub async fn release(mut self) {
        if let Some(tree) = self.tree.take() {
            give_up(tree, std::mem::take(&mut self.path)).await;
        }
    }
}

fn session_id(state: SessionState) -> Option<i64> {
    match state {
        SessionState::Connected { id } => Some(id),
        SessionState::Disconnected | SessionState::Expired | SessionState::Closed => None,
    }
}

async fn give_up(tree: Arc<dyn Tree>, path: String) {
    let delete = || vec![Op::Delete { path: path.clone(), version: None }];
    for _ in 0..2 {
        match tree.multi(delete()).await.map_err(flat) {
            // The answer was lost: ask once more; what is gone is gone.
            Err(StoreError::Tree(TreeError::OutcomeUnknown)) => {}
            Err(StoreError::Tree(TreeError::NoNode { .. })) | Ok(_) => return,
            Err(error) => {
                tracing::debug!(%error, path, "a lock could not be given up; it ends with the session");
                return;
            }
        }
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if let Some(tree) = self.tree.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(give_up(tree, std::mem::take(&mut self.path)));
        }
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

    #[test]
    fn each_kind_waits_for_the_nearest_one_before_it_that_excludes_it() {
        let names = children(&[
            "a__lock__0000000001",
            "b__rlock__0000000002",
            "c__rlock__0000000003",
            "d__lock__0000000004",
        ]);
        let before = |own, kind| predecessor(&names, own, kind).expect("own is there");
        assert_eq!(before("a__lock__0000000001", LockKind::Write), None);
        assert_eq!(before("c__rlock__0000000003", LockKind::Read), Some("a__lock__0000000001"));
        assert_eq!(before("d__lock__0000000004", LockKind::Write), Some("c__rlock__0000000003"));
        assert_eq!(before("d__lock__0000000004", LockKind::Exclusive), Some("a__lock__0000000001"));
    }

    #[test]
    fn a_reader_does_not_wait_for_a_writer_that_came_later() {
        let names = children(&["r__rlock__0000000002", "w__lock__0000000003"]);
        assert_eq!(predecessor(&names, "r__rlock__0000000002", LockKind::Read), Ok(None));
    }

    #[test]
    fn a_contender_that_vanished_is_noticed() {
        assert_eq!(
            predecessor(&children(&["a__lock__0000000001"]), "b__lock__0000000002", LockKind::Write),
            Err(Gone)
        );
    }
}
