//! The Tree on a session.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use pvc_ports::{
    Access, AccessControl, AccessList, CreateMode, Done, Entry, MultiError, Op, SessionState, Stat,
    Tree, TreeError, TreeWatch, check_multi, check_path,
};
use tokio::sync::{mpsc, oneshot, watch};

use crate::call::{Answer, Call, CallError, Pending, call};
use crate::names::Names;
use crate::proto::{self, Users, code};
use crate::servers::{Identity, Member, Root, Seen, Servers};
use crate::session::{Published, Session, Wanted, watch_call};
use crate::tls::Tls;
use crate::wire::{Garbled, Reader};

/// Settings of a session. The defaults are those of PVC's other clients.
#[derive(Clone)]
pub struct ZookeeperOptions {
    /// The tree's password, with which it is kept from everybody else: that of ZooKeeper's user
    /// `pvc` in the scheme `digest`. In ASCII: servers read it in the character set of their
    /// locale.
    pub password: Option<Arc<str>>,
    /// Certificates. Without them what is said is not encrypted, and anybody who is reached is
    /// believed.
    pub tls: Option<Tls>,
    /// Time for which the servers keep the session of a client of which they hear nothing. They may
    /// grant another time than asked for.
    pub session_timeout: Duration,
    /// Time for which [`ZookeeperTree::connect`] tries.
    pub connect_timeout: Duration,
    /// Time that any call may take, waiting for a connection included.
    pub operation_timeout: Duration,
    /// The largest request the servers take: their `jute.maxbuffer`, less what their own
    /// bookkeeping adds when they hand a change on to each other.
    pub max_request_bytes: usize,
}

impl Default for ZookeeperOptions {
    fn default() -> ZookeeperOptions {
        ZookeeperOptions {
            password: None,
            tls: None,
            session_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(15),
            operation_timeout: Duration::from_secs(15),
            max_request_bytes: 63 << 20,
        }
    }
}

/// The tree in a ZooKeeper ensemble, version 3.6 or newer, as one of its clients.
///
/// A value stands for one session after another: when one expires the next begins, and
/// [`session`](Tree::session) tells. Reads survive a lost connection. A write that was sent and not
/// answered is an [`OutcomeUnknown`](TreeError::OutcomeUnknown); one that was not sent in time is
/// never sent later. The session ends when the value is closed or dropped.
pub struct ZookeeperTree {
    wanted: mpsc::UnboundedSender<Wanted>,
    state: watch::Receiver<SessionState>,
    last_error: watch::Receiver<String>,
    root: watch::Receiver<Root>,
    servers: String,
    member: Option<Member>,
    seen: Seen,
    options: ZookeeperOptions,
}

impl ZookeeperTree {
    /// Begins a session on one of `servers`, a comma-separated list of `host` or `host:port`.
    ///
    /// # Errors
    /// [`TreeError::Unreachable`] if the list makes no sense, or no server can be reached within
    /// the time for connecting.
    pub async fn connect(
        servers: &str,
        options: ZookeeperOptions,
    ) -> Result<ZookeeperTree, TreeError> {
        let servers = Servers::parse(servers).map_err(|why| TreeError::Unreachable { why })?;
        let (wanted, requests) = mpsc::unbounded_channel();
        let (state_sender, mut state) = watch::channel(SessionState::Disconnected);
        let (last_error_sender, last_error) =
            watch::channel("no server has answered yet".to_owned());
        let (root_sender, root) = watch::channel(Root::For(Access::Anybody));
        let published =
            Published { state: state_sender, last_error: last_error_sender, root: root_sender };
        let names = servers.to_string();
        let member = options.password.clone().map(Member::new);
        let (tls, member_of) = (options.tls.clone(), member.clone());
        let identity = Identity { tls, member: member_of, names: Names::default() };
        let seen = Seen::default();
        let session = Session::new(
            servers,
            identity,
            options.session_timeout,
            seen.clone(),
            requests,
            published,
        );
        tokio::spawn(session.run());
        let tree = ZookeeperTree {
            wanted,
            state: state.clone(),
            last_error,
            root,
            servers: names,
            member,
            seen,
            options,
        };
        let connected = state.wait_for(|state| matches!(state, SessionState::Connected { .. }));
        match tokio::time::timeout(tree.options.connect_timeout, connected).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => return Err(tree.unreachable()),
        }
        Ok(tree)
    }

    /// Returns when the tree is for others than us: no password, or another one than was used to
    /// close it.
    pub fn until_refused(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut root = self.root.clone();
        async move {
            if root.wait_for(|root| *root == Root::Refuses).await.is_err() {
                std::future::pending().await // the session was closed
            }
        }
    }

    /// Access to what we create: for those who may use the root.
    fn access_of_new(&self) -> Access {
        match *self.root.borrow() {
            Root::For(access) => access,
            // It is refused all the same.
            Root::Refuses => Access::Anybody,
        }
    }

    /// Returns those with this access, as the server knows them. A client that knows no password
    /// lets everybody use what it creates.
    fn users(&self, access: Access) -> Users<'_> {
        match (access, &self.member) {
            (Access::Members, Some(member)) => Users::Member(&member.id),
            (Access::Anybody, _) | (_, None) => Users::Anybody,
        }
    }

    fn unreachable(&self) -> TreeError {
        let why = format!(
            "no ZooKeeper server of `{}` answers; {}",
            self.servers,
            *self.last_error.borrow()
        );
        TreeError::Unreachable { why }
    }

    /// The history in which a request is made whose answer is to be [noted](ZookeeperTree::note).
    fn era(&self) -> u64 {
        self.seen.lock().expect("nobody panics with it").era()
    }

    /// Remembers what was seen of nodes, each with its path and the bytes of its data: they are
    /// read again on each connection, so large ones are not.
    fn note<'a>(&self, era: u64, seen_now: impl Iterator<Item = (&'a str, usize, &'a Stat)>) {
        const MOST_BYTES: usize = 4 << 10;
        let mut seen = self.seen.lock().expect("nobody panics with it");
        let small = seen_now.filter(|(_, bytes, _)| *bytes <= MOST_BYTES);
        small.for_each(|(path, _, stat)| seen.note(era, path, stat));
    }

    fn check_size(&self, ops: &[Op]) -> Result<(), TreeError> {
        let (size, limit) =
            (ops.iter().map(Op::request_bytes).sum(), self.options.max_request_bytes);
        if size > limit { Err(TreeError::TooLarge { size, limit }) } else { Ok(()) }
    }

    async fn ask(&self, (request, pending): (Call, Pending)) -> Result<Answer, CallError> {
        self.wanted.send(Wanted::Call(request)).map_err(|_| CallError::Closed)?;
        pending.wait(self.options.operation_timeout).await
    }

    async fn read(&self, frame: BytesMut) -> Result<Answer, CallError> {
        self.ask(call(frame, true)).await
    }

    async fn write(&self, frame: BytesMut) -> Result<Answer, CallError> {
        self.ask(call(frame, false)).await
    }

    /// Sends what creates something, made for those who may use the root.
    async fn create_by(
        &self,
        frame: impl FnOnce(Users<'_>) -> BytesMut,
    ) -> Result<Answer, CallError> {
        let access = self.access_of_new();
        let (mut request, pending) = call(frame(self.users(access)), false);
        request.creates_for = Some(access);
        self.ask((request, pending)).await
    }

    fn read_failed(&self, error: CallError, path: &str) -> TreeError {
        match error {
            CallError::Code(found) => proto::refusal(found, path, false),
            CallError::NotSent | CallError::Lost => self.unreachable(),
            CallError::Expired => TreeError::SessionExpired,
            CallError::Closed => TreeError::Closed,
        }
    }

    fn write_failed(&self, error: CallError, path: &str, creating: bool) -> TreeError {
        match error {
            CallError::Code(found) => proto::refusal(found, path, creating),
            CallError::NotSent => self.unreachable(),
            CallError::Lost => TreeError::OutcomeUnknown,
            CallError::Expired => TreeError::SessionExpired,
            CallError::Closed => TreeError::Closed,
        }
    }

    /// `None` if `path` does not exist.
    async fn read_one<T>(
        &self,
        path: &str,
        frame: BytesMut,
        decode: impl FnOnce(&mut Reader) -> Result<T, Garbled>,
    ) -> Result<Option<T>, TreeError> {
        match self.read(frame).await {
            Ok(answer) => decode(&mut Reader::new(answer.body)).map(Some).map_err(garbled),
            Err(CallError::Code(code::NO_NODE)) => Ok(None),
            Err(error) => Err(self.read_failed(error, path)),
        }
    }

    async fn read_many<T>(
        &self,
        paths: &[String],
        encode: fn(&[String]) -> BytesMut,
        decode: fn(&mut Reader) -> Result<T, Garbled>,
    ) -> Result<Vec<Option<T>>, TreeError> {
        paths.iter().try_for_each(|path| check_path(path))?;
        let mut results = Vec::with_capacity(paths.len());
        let mut batches = Batches::new();
        let mut rest = paths;
        while let [first, ..] = rest {
            let (batch, later) = rest.split_at(batches.next(rest.len()));
            let answer = self.read(encode(batch)).await;
            let answer = answer.map_err(|error| self.read_failed(error, first))?.body;
            batches.saw(batch.len(), answer.len());
            let values = proto::many(&mut Reader::new(answer), decode).map_err(garbled)?;
            if values.len() != batch.len() {
                return Err(garbled(Garbled("a read of many has another number of results")));
            }
            for (path, value) in batch.iter().zip(values) {
                results.push(match value {
                    Ok(value) => Some(value),
                    Err(code::NO_NODE) => None,
                    Err(other) => return Err(self.read_failed(CallError::Code(other), path)),
                });
            }
            rest = later;
        }
        Ok(results)
    }
}

fn garbled(error: Garbled) -> TreeError {
    TreeError::Unreachable { why: error.to_string() }
}

/// Number of paths to read at once. Begins small, because the values may be large and the server
/// builds the whole answer in its memory; then goes by what the values turned out to be.
#[derive(Debug)]
struct Batches {
    paths: usize,
}

impl Batches {
    const FIRST: usize = 16;
    const MOST: usize = 500;
    const GROWTH: usize = 4;
    const WANTED_BYTES: usize = 1 << 20;

    fn new() -> Batches {
        Batches { paths: Batches::FIRST }
    }

    fn next(&self, left: usize) -> usize {
        self.paths.min(left)
    }

    fn saw(&mut self, paths: usize, bytes: usize) {
        let each = (bytes / paths.max(1)).max(1);
        let fitting = Batches::WANTED_BYTES / each;
        self.paths = fitting.min(self.paths * Batches::GROWTH).clamp(1, Batches::MOST);
    }
}

#[async_trait]
impl Tree for ZookeeperTree {
    async fn get(&self, path: &str) -> Result<Option<Entry>, TreeError> {
        check_path(path)?;
        let era = self.era();
        let entry = self.read_one(path, proto::get_data(path), proto::entry).await?;
        self.note(era, entry.iter().map(|entry| (path, entry.data.len(), &entry.stat)));
        Ok(entry)
    }

    async fn get_many(&self, paths: &[String]) -> Result<Vec<Option<Entry>>, TreeError> {
        let era = self.era();
        let entries = self.read_many(paths, proto::multi_get_data, proto::entry).await?;
        let found = paths.iter().zip(&entries).filter_map(|(path, entry)| {
            let Entry { data, stat } = entry.as_ref()?;
            Some((&**path, data.len(), stat))
        });
        self.note(era, found);
        Ok(entries)
    }

    async fn children(&self, path: &str) -> Result<Option<Vec<String>>, TreeError> {
        check_path(path)?;
        self.read_one(path, proto::get_children(path), proto::children).await
    }

    async fn children_many(&self, paths: &[String]) -> Result<Vec<Option<Vec<String>>>, TreeError> {
        self.read_many(paths, proto::multi_get_children, proto::children).await
    }

    async fn create(
        &self,
        path: &str,
        data: Bytes,
        mode: CreateMode,
    ) -> Result<(String, Stat), TreeError> {
        check_path(path)?;
        let op = Op::Create { path: path.to_owned(), data, mode };
        self.check_size(std::slice::from_ref(&op))?;
        let Op::Create { data, .. } = op else { unreachable!("it was just made") };
        let answer = self.create_by(|users| proto::create(path, &data, mode, users)).await;
        let answer = answer.map_err(|error| self.write_failed(error, path, true))?;
        proto::created(&mut Reader::new(answer.body)).map_err(|_| TreeError::OutcomeUnknown)
    }

    async fn multi(&self, ops: Vec<Op>) -> Result<Vec<Done>, MultiError> {
        check_multi(&ops)?;
        self.check_size(&ops)?;
        if ops.is_empty() {
            return if self.wanted.is_closed() {
                Err(TreeError::Closed.into())
            } else {
                Ok(Vec::new())
            };
        }
        let creates = ops.iter().any(|op| matches!(op, Op::Create { .. }));
        let era = self.era();
        let answer = match creates {
            true => self.create_by(|users| proto::multi(&ops, users)).await,
            false => self.write(proto::multi(&ops, Users::Anybody)).await,
        };
        let answer = answer.map_err(|error| self.write_failed(error, "/", false))?;
        let done = proto::multi_done(&mut Reader::new(answer.body), answer.zxid);
        match done.map_err(|_| TreeError::OutcomeUnknown)? {
            Ok(done) if done.len() == ops.len() => {
                let done = with_owners(done, &ops, answer.session);
                let written = ops.iter().zip(&done).filter_map(|pair| match pair {
                    (Op::Set { path, data, .. }, Done::Set(stat)) => {
                        Some((path.as_str(), data.len(), stat))
                    }
                    _ => None,
                });
                self.note(era, written);
                Ok(done)
            }
            Ok(_) => Err(TreeError::OutcomeUnknown.into()),
            Err((index, found)) => {
                let op = ops.get(index).ok_or(TreeError::OutcomeUnknown)?;
                let creating = matches!(op, Op::Create { .. });
                Err(MultiError::Refused { index, why: proto::refusal(found, op.path(), creating) })
            }
        }
    }

    async fn sync(&self) -> Result<(), TreeError> {
        match self.read(proto::sync()).await {
            Ok(_) => Ok(()),
            Err(error) => Err(self.read_failed(error, "/")),
        }
    }

    async fn watch(&self, root: &str) -> Result<TreeWatch, TreeError> {
        check_path(root)?;
        let (events, watch) = mpsc::unbounded_channel();
        let (set, pending) = watch_call(root);
        let wanted = Wanted::Watch { root: root.to_owned(), events, set };
        self.wanted.send(wanted).map_err(|_| TreeError::Closed)?;
        match pending.wait(self.options.operation_timeout).await {
            Ok(_) => Ok(watch),
            Err(error) => Err(self.read_failed(error, root)),
        }
    }

    fn session(&self) -> watch::Receiver<SessionState> {
        let mut state = self.state.clone();
        state.mark_unchanged(); // what comes from now on is what the caller has not seen
        state
    }

    async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.wanted.send(Wanted::Close(done)).is_ok() {
            let _ = closed.await; // if the session is gone already, it is closed too
        }
    }

    fn max_request_bytes(&self) -> usize {
        self.options.max_request_bytes
    }

    fn access_control(&self) -> Option<&dyn AccessControl> {
        self.options.password.is_some().then_some(self)
    }
}

#[async_trait]
impl AccessControl for ZookeeperTree {
    async fn access(&self, path: &str) -> Result<Option<AccessList>, TreeError> {
        check_path(path)?;
        let member = self.member.as_ref().map(|member| &*member.id);
        self.read_one(path, proto::get_acl(path), |reader| proto::acl(reader, member)).await
    }

    async fn set_access(&self, path: &str, access: Access) -> Result<(), TreeError> {
        check_path(path)?;
        let answer = self.write(proto::set_acl(path, self.users(access))).await;
        answer.map(drop).map_err(|error| self.write_failed(error, path, false))
    }
}

/// The server does not say who owns what a multi created.
fn with_owners(mut done: Vec<Done>, ops: &[Op], session: i64) -> Vec<Done> {
    for (done, op) in done.iter_mut().zip(ops) {
        if let (Done::Created(stat), Op::Create { mode: CreateMode::Ephemeral, .. }) = (done, op) {
            stat.ephemeral_owner = session;
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use super::Batches;

    #[test]
    fn batches_grow_with_small_values_and_shrink_with_large_ones() {
        let mut batches = Batches::new();
        assert_eq!(batches.next(10_000), 16);
        batches.saw(16, 16 * 100);
        assert_eq!(batches.next(10_000), 64);
        batches.saw(64, 64 * 100);
        batches.saw(256, 256 * 100);
        assert_eq!(batches.next(10_000), 500);
        batches.saw(500, 500 << 20);
        assert_eq!(batches.next(10_000), 1);
    }
}
