use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use pvc_ports::{
    Access, AccessControl, AccessList, CreateMode, Done, Entry, MultiError, Op, SessionState, Stat,
    Tree, TreeError, TreeEvent, TreeWatch,
};
use tokio::sync::{mpsc, watch};

use crate::Gate;

/// Another tree seen through a connection that the test can cut and mend. While it is cut every
/// call fails, events are lost, and what was ephemeral stays: the session survives.
pub struct FlakyTree {
    inner: Mutex<Arc<dyn Tree>>,
    cut: Arc<AtomicBool>,
    requests: AtomicU64,
    /// Number of calls that are answered before none is any more.
    answers: AtomicU64,
    loses_answer: AtomicBool,
    loses_multi: AtomicBool,
    breaks_at_write: AtomicBool,
    /// Largest multi, in bytes, that the server takes.
    largest: AtomicUsize,
    has_majority: AtomicBool,
    before_create: Interlude,
    before_multi: Interlude,
    /// Of the next multi that sets this node.
    before_set: Mutex<Option<(String, Happening)>>,
    before_read: Interlude,
    before_sync: Interlude,
    gate: Mutex<Option<Arc<Gate>>>,
    session: watch::Sender<SessionState>,
    watches: Mutex<Vec<mpsc::UnboundedSender<TreeEvent>>>,
    member: Option<Member>,
}

/// Paths that are for those alone who know a password of the tree, with that password.
pub type Closed = Arc<Mutex<BTreeMap<String, String>>>;

/// Client that knows a password of the tree.
struct Member {
    password: String,
    closed: Closed,
}

impl Member {
    /// The password of those for whom `path` is.
    fn of(&self, path: &str) -> Option<String> {
        self.closed.lock().expect("no test panics while holding it").get(path).cloned()
    }

    fn set(&self, path: &str, password: Option<String>) {
        let mut closed = self.closed.lock().expect("no test panics while holding it");
        _ = match password {
            Some(password) => closed.insert(path.to_owned(), password),
            None => closed.remove(path),
        };
    }

    /// Notes that a new node is for those who may use the root.
    fn made(&self, path: &str) {
        self.set(path, self.of("/"));
    }
}

type Happening = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Something that happens before a call is carried out, once.
#[derive(Default)]
struct Interlude(Mutex<Option<Happening>>);

impl Interlude {
    fn set(&self, interlude: impl Future<Output = ()> + Send + 'static) {
        *self.0.lock().expect("no test panics while holding it") = Some(Box::pin(interlude));
    }

    async fn happen(&self) {
        let interlude = self.0.lock().expect("no test panics while holding it").take();
        if let Some(interlude) = interlude {
            interlude.await;
        }
    }
}

impl FlakyTree {
    pub fn new(inner: Arc<dyn Tree>) -> Arc<Self> {
        FlakyTree::begin(inner, None)
    }

    /// Makes a tree as [`new`](FlakyTree::new) does, for a client that knows a password of the
    /// tree. What is closed by one is so for all who share `closed`.
    pub fn with_password(inner: Arc<dyn Tree>, password: &str, closed: &Closed) -> Arc<Self> {
        FlakyTree::begin(
            inner,
            Some(Member { password: password.to_owned(), closed: closed.clone() }),
        )
    }

    fn begin(inner: Arc<dyn Tree>, member: Option<Member>) -> Arc<Self> {
        let mut states = inner.session();
        let (session, _) = watch::channel(*states.borrow_and_update());
        let tree = Arc::new(FlakyTree {
            inner: Mutex::new(inner),
            cut: Arc::new(AtomicBool::new(false)),
            requests: AtomicU64::new(0),
            answers: AtomicU64::new(u64::MAX),
            loses_answer: AtomicBool::new(false),
            loses_multi: AtomicBool::new(false),
            breaks_at_write: AtomicBool::new(false),
            largest: AtomicUsize::new(usize::MAX),
            has_majority: AtomicBool::new(true),
            before_create: Interlude::default(),
            before_multi: Interlude::default(),
            before_set: Mutex::default(),
            before_read: Interlude::default(),
            before_sync: Interlude::default(),
            gate: Mutex::default(),
            session,
            watches: Mutex::new(Vec::new()),
            member,
        });
        let weak = Arc::downgrade(&tree);
        tokio::spawn(async move {
            while states.changed().await.is_ok() {
                let Some(tree) = weak.upgrade() else { return };
                if !tree.cut.load(Ordering::SeqCst) {
                    tree.session.send_replace(*states.borrow_and_update());
                }
            }
        });
        tree
    }

    fn inner(&self) -> Arc<dyn Tree> {
        self.inner.lock().expect("no test panics while holding it").clone()
    }

    /// Makes this, from now on, a connection to another tree, as where the servers have lost their
    /// data and hold others. Watches of before hear no more of changes.
    pub fn exchange(&self, tree: Arc<dyn Tree>) {
        *self.inner.lock().expect("no test panics while holding it") = tree;
    }

    /// Breaks the connection.
    pub fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
        self.session.send_replace(SessionState::Disconnected);
    }

    /// Has the client, while the connection is cut, conclude that its session is over.
    pub fn expire(&self) {
        self.session.send_replace(SessionState::Expired);
    }

    /// Makes the connection again: watchers are told to read everything anew.
    pub fn mend(&self) {
        self.cut.store(false, Ordering::SeqCst);
        self.session.send_replace(*self.inner().session().borrow());
        let mut watches = self.watches.lock().expect("no test panics while holding it");
        watches.retain(|watch| watch.send(TreeEvent::Resync).is_ok());
    }

    /// The next write is carried out, and its answer gets lost.
    pub fn lose_next_answer(&self) {
        self.loses_answer.store(true, Ordering::SeqCst);
    }

    /// The next multi never comes to the tree, and nobody knows.
    pub fn lose_next_multi(&self) {
        self.loses_multi.store(true, Ordering::SeqCst);
    }

    /// Loses the answer to the next write, as [`lose_next_answer`](FlakyTree::lose_next_answer)
    /// does, and the connection with it.
    pub fn cut_after_next_write(&self) {
        self.breaks_at_write.store(true, Ordering::SeqCst);
        self.lose_next_answer();
    }

    /// Makes this, from now on, a connection to a server that ends it over a multi of more than
    /// `most_bytes`, as ZooKeeper does by its `jute.maxbuffer`.
    pub fn limit_requests(&self, most_bytes: usize) {
        self.largest.store(most_bytes, Ordering::SeqCst);
    }

    /// Has something happen when the next creation is on its way, before it is carried out.
    pub fn before_next_create(&self, interlude: impl Future<Output = ()> + Send + 'static) {
        self.before_create.set(interlude);
    }

    /// Has something happen when the next multi is on its way, before it is carried out.
    pub fn before_next_multi(&self, interlude: impl Future<Output = ()> + Send + 'static) {
        self.before_multi.set(interlude);
    }

    /// Has `interlude` happen before the next multi that sets `path`.
    pub fn before_next_set(
        &self,
        path: &str,
        interlude: impl Future<Output = ()> + Send + 'static,
    ) {
        let interlude: Happening = Box::pin(interlude);
        *self.before_set.lock().expect("no test panics while holding it") =
            Some((path.to_owned(), interlude));
    }

    async fn happen_before_set(&self, ops: &[Op]) {
        let is_set = |wanted: &str| {
            ops.iter().any(|op| matches!(op, Op::Set { path, .. } if path == wanted))
        };
        let interlude = {
            let mut waiting = self.before_set.lock().expect("no test panics while holding it");
            waiting.take_if(|(path, _)| is_set(path))
        };
        if let Some((_, interlude)) = interlude {
            interlude.await;
        }
    }

    /// Has something happen when the next reading of several nodes is on its way, before it is
    /// carried out.
    pub fn before_next_read(&self, interlude: impl Future<Output = ()> + Send + 'static) {
        self.before_read.set(interlude);
    }

    /// Has something happen when somebody next asks to be shown everything that was written, before
    /// it is carried out.
    pub fn before_next_sync(&self, interlude: impl Future<Output = ()> + Send + 'static) {
        self.before_sync.set(interlude);
    }

    /// Sets the gate that every write passes from now on, before it is carried out, and before it
    /// returns.
    pub fn set_gate(&self, gate: Arc<Gate>) {
        *self.gate.lock().expect("no test panics while holding it") = Some(gate);
    }

    async fn pass(&self) {
        let gate = self.gate.lock().expect("no test panics while holding it").clone();
        if let Some(gate) = gate {
            gate.pass().await;
        }
    }

    /// Makes this, from now on, a connection to a server that leads nobody any more and has not
    /// noticed: it answers whoever reads, and `sync`, and what is to be written waits for ever.
    pub fn lose_majority(&self) {
        self.has_majority.store(false, Ordering::SeqCst);
    }

    async fn majority(&self) {
        if !self.has_majority.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }

    /// Makes this, from now on, a connection to a server that hangs, once it has answered `calls`
    /// more.
    pub fn fall_silent_after(&self, calls: u64) {
        self.answers.store(self.requests() + calls, Ordering::SeqCst);
    }

    /// Whether somebody waits, or has waited, for an answer that never comes.
    pub fn has_fallen_silent(&self) -> bool {
        self.requests() > self.answers.load(Ordering::SeqCst)
    }

    /// Number of calls so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    fn answer<T, E: From<TreeError>>(&self, answer: Result<T, E>) -> Result<T, E> {
        if self.breaks_at_write.swap(false, Ordering::SeqCst) {
            self.cut();
        }
        match self.loses_answer.swap(false, Ordering::SeqCst) {
            true => Err(TreeError::OutcomeUnknown.into()),
            false => answer,
        }
    }

    /// Returns who may use `path`, if we may.
    fn allowed(&self, path: &str) -> Result<AccessList, TreeError> {
        let Some(member) = &self.member else { return Ok(AccessList::Anybody) };
        match member.of(path) {
            None => Ok(AccessList::Anybody),
            Some(password) if password == member.password => Ok(AccessList::Members),
            Some(_) => Err(TreeError::NotAllowed { path: path.to_owned() }),
        }
    }

    /// Counts a call, which waits for ever if the server hangs.
    async fn send(&self) {
        let before = self.requests.fetch_add(1, Ordering::SeqCst);
        if before >= self.answers.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }

    async fn reach(&self) -> Result<Arc<dyn Tree>, TreeError> {
        self.send().await;
        match self.cut.load(Ordering::SeqCst) {
            true => Err(TreeError::Unreachable { why: "the test cut the connection".to_owned() }),
            false => Ok(self.inner()),
        }
    }
}

#[async_trait]
impl Tree for FlakyTree {
    async fn get(&self, path: &str) -> Result<Option<Entry>, TreeError> {
        self.reach().await?.get(path).await
    }

    async fn get_many(&self, paths: &[String]) -> Result<Vec<Option<Entry>>, TreeError> {
        self.before_read.happen().await;
        self.reach().await?.get_many(paths).await
    }

    async fn children(&self, path: &str) -> Result<Option<Vec<String>>, TreeError> {
        self.reach().await?.children(path).await
    }

    async fn children_many(&self, paths: &[String]) -> Result<Vec<Option<Vec<String>>>, TreeError> {
        self.reach().await?.children_many(paths).await
    }

    async fn create(
        &self,
        path: &str,
        data: Bytes,
        mode: CreateMode,
    ) -> Result<(String, Stat), TreeError> {
        self.before_create.happen().await;
        self.majority().await;
        self.pass().await;
        let created = self.reach().await?.create(path, data, mode).await;
        if let (Ok((path, _)), Some(member)) = (&created, &self.member) {
            member.made(path);
        }
        self.pass().await;
        self.answer(created)
    }

    async fn multi(&self, ops: Vec<Op>) -> Result<Vec<Done>, MultiError> {
        self.before_multi.happen().await;
        self.happen_before_set(&ops).await;
        self.majority().await;
        self.pass().await;
        let size: usize = ops.iter().map(Op::request_bytes).sum();
        if size > self.largest.load(Ordering::SeqCst) {
            self.cut();
            return Err(TreeError::OutcomeUnknown.into());
        }
        if self.loses_multi.swap(false, Ordering::SeqCst) {
            return Err(TreeError::OutcomeUnknown.into());
        }
        let made = |op: &Op| matches!(op, Op::Create { .. }).then(|| op.path().to_owned());
        let made: Vec<String> = ops.iter().filter_map(made).collect();
        let done = self.reach().await?.multi(ops).await;
        if let (Ok(_), Some(member)) = (&done, &self.member) {
            made.iter().for_each(|path| member.made(path));
        }
        self.pass().await;
        self.answer(done)
    }

    async fn sync(&self) -> Result<(), TreeError> {
        self.before_sync.happen().await;
        self.reach().await?.sync().await
    }

    async fn watch(&self, root: &str) -> Result<TreeWatch, TreeError> {
        let mut inner = self.reach().await?.watch(root).await?;
        let (sender, receiver) = mpsc::unbounded_channel();
        self.watches.lock().expect("no test panics while holding it").push(sender.clone());
        let cut = self.cut.clone();
        tokio::spawn(async move {
            while let Some(event) = inner.recv().await {
                let is_lost = cut.load(Ordering::SeqCst);
                if !is_lost && sender.send(event).is_err() {
                    return;
                }
            }
        });
        Ok(receiver)
    }

    fn session(&self) -> watch::Receiver<SessionState> {
        self.session.subscribe()
    }

    async fn close(&self) {
        self.send().await;
        self.inner().close().await;
        self.session.send_replace(SessionState::Closed);
    }

    fn max_request_bytes(&self) -> usize {
        self.inner().max_request_bytes()
    }

    fn access_control(&self) -> Option<&dyn AccessControl> {
        self.member.is_some().then_some(self)
    }
}

#[async_trait]
impl AccessControl for FlakyTree {
    async fn access(&self, path: &str) -> Result<Option<AccessList>, TreeError> {
        let is_there = self.reach().await?.get(path).await?.is_some();
        Ok(is_there.then_some(self.allowed(path)?))
    }

    async fn set_access(&self, path: &str, access: Access) -> Result<(), TreeError> {
        if self.reach().await?.get(path).await?.is_none() {
            return Err(TreeError::NoNode { path: path.to_owned() });
        }
        self.allowed(path)?;
        if let Some(member) = &self.member {
            member.set(path, (access == Access::Members).then(|| member.password.clone()));
        }
        Ok(())
    }
}
