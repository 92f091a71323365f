//! The task that keeps a session alive: connects, reconnects, begins a new session when the old one
//! has expired, sends requests in order, matches answers, and re-creates watches.
//!
//! ```text
//!  Disconnected ──a server lets the session go on──▶ Connected ──connection lost──▶ Disconnected
//!       │                                                ▲
//!       └──expired, or the servers' history is gone──▶ Expired, then a new session
//! ```
//!
//! After every connection the watches are set anew, before any other request, and each is followed
//! by a `Resync`: ZooKeeper does not repeat what a persistent watch missed in between.
//!
//! A server that holds an old copy, without changes that this process has seen, is no server: the
//! next one is tried, until one has them, or there is nothing of them (`docs/adr/0074`).

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use pvc_ports::{SessionState, TreeEvent, is_at_or_below};
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::call::{Answer, Call, CallError, call};
use crate::proto::{self, Credentials, Header, code};
use crate::servers::{
    ConnectError, Connection, Frames, Identity, Out, Root, Seen, Servers, SessionRequest, connect,
    history_is_gone,
};
use crate::wire::{Garbled, Reader};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const CLOSE_TIME_LIMIT: Duration = Duration::from_secs(2);

/// Time between two looks at who may use the root: nothing tells of a change.
pub(crate) const ROOT: Duration = Duration::from_secs(3);

/// Request of a session's clients.
#[derive(Debug)]
pub(crate) enum Wanted {
    Call(Call),
    /// `set` is answered when the server has the watch.
    Watch {
        root: String,
        events: mpsc::UnboundedSender<TreeEvent>,
        set: Call,
    },
    Close(oneshot::Sender<()>),
}

/// State that a session shows of itself.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) state: watch::Sender<SessionState>,
    /// Reason for which there is no connection, for people.
    pub(crate) last_error: watch::Sender<String>,
    pub(crate) root: watch::Sender<Root>,
}

pub(crate) struct Session {
    servers: Servers,
    identity: Identity,
    /// Session timeout that we ask for; the server may grant another.
    asked_timeout: Duration,
    granted_timeout: Duration,
    credentials: Credentials,
    /// The newest change seen. A server that does not know it yet is of no use: time would go back.
    last_zxid: i64,
    seen: Seen,
    /// Whether it was said that a server holds an old copy.
    is_old_said: bool,
    attempt: usize,
    wanted: mpsc::UnboundedReceiver<Wanted>,
    waiting: VecDeque<Call>,
    watches: Vec<Watched>,
    published: Published,
}

#[derive(Debug)]
struct Watched {
    root: String,
    events: mpsc::UnboundedSender<TreeEvent>,
}

/// Reason for which a connection is no longer served.
enum End {
    Lost(String),
    Expired,
    /// The clients want no more.
    Closed(Option<oneshot::Sender<()>>),
}

impl Session {
    pub(crate) fn new(
        servers: Servers,
        identity: Identity,
        timeout: Duration,
        seen: Seen,
        wanted: mpsc::UnboundedReceiver<Wanted>,
        published: Published,
    ) -> Session {
        Session {
            servers,
            identity,
            asked_timeout: timeout,
            granted_timeout: timeout,
            credentials: Credentials::none(),
            last_zxid: 0,
            seen,
            is_old_said: false,
            // Clients that start together should not all ask the same server.
            attempt: std::process::id() as usize,
            wanted,
            waiting: VecDeque::new(),
            watches: Vec::new(),
            published,
        }
    }

    /// Works until the clients are gone or close the session.
    pub(crate) async fn run(mut self) {
        loop {
            let end = match self.reach_a_server().await {
                Ok(connection) => self.serve(connection).await,
                Err(closed) => End::Closed(closed),
            };
            match end {
                End::Lost(why) => {
                    tracing::warn!(servers = %self.servers, why, "lost the connection to \
                                                                  ZooKeeper");
                    self.published.last_error.send_replace(why);
                    self.published.state.send_replace(SessionState::Disconnected);
                }
                End::Expired => self.expire(),
                End::Closed(done) => return self.finish(done),
            }
        }
    }

    fn expire(&mut self) {
        if self.credentials.id != 0 {
            tracing::warn!(
                session = format!("{:#x}", self.credentials.id),
                "the ZooKeeper session has expired"
            );
            self.published.state.send_replace(SessionState::Expired);
        }
        self.credentials = Credentials::none();
        self.granted_timeout = self.asked_timeout;
    }

    fn finish(mut self, done: Option<oneshot::Sender<()>>) {
        self.published.state.send_replace(SessionState::Closed);
        self.wanted.close();
        self.watches.clear();
        self.waiting.drain(..).for_each(|call| call.answer(Err(CallError::Closed)));
        if let Some(done) = done {
            let _ = done.send(()); // whoever asked may have stopped waiting
        }
    }

    /// Tries server after server. Requests that come meanwhile wait. `Err`: the clients want no
    /// more.
    async fn reach_a_server(&mut self) -> Result<Connection, Option<oneshot::Sender<()>>> {
        let mut pause = FIRST_PAUSE;
        let mut emptied = None;
        for round in 1_usize.. {
            let server = self.servers.at(self.attempt).to_owned();
            self.attempt = self.attempt.wrapping_add(1);
            match self.meanwhile(try_server(server, self.session_request())).await? {
                Ok(Reached::Again(connection)) => return Ok(connection),
                Ok(Reached::Anew(connection)) => {
                    self.expire();
                    return Ok(connection);
                }
                // Another server may have what this one has not.
                Ok(Reached::Emptied { server, connection }) => emptied = Some((server, connection)),
                Err(Refused::OldCopy(why)) => {
                    if !std::mem::replace(&mut self.is_old_said, true) {
                        tracing::error!(
                            why,
                            "ZooKeeper was started from an old copy; it is not obeyed, and waited \
                             for with what it had: see the manual, \"ZooKeeper from an old copy\""
                        );
                    }
                    self.published.last_error.send_replace(why);
                }
                // A server that is not there explains less.
                Err(Refused::Other(_)) if self.is_old_said => {}
                Err(Refused::Other(why)) => {
                    self.published.last_error.send_replace(why);
                }
            }
            if round % self.servers.len() == 0 {
                if let Some((server, connection)) = emptied.take() {
                    tracing::error!(server, "ZooKeeper has begun anew: its data are gone");
                    self.expire();
                    self.last_zxid = 0;
                    self.seen.lock().expect("nobody panics with it").begin_anew();
                    return Ok(connection);
                }
                self.meanwhile(sleep(pause)).await?;
                pause = LONGEST_PAUSE.min(pause * 2);
            }
        }
        unreachable!("the rounds never end")
    }

    fn session_request(&self) -> SessionRequest {
        SessionRequest {
            identity: self.identity.clone(),
            credentials: self.credentials.clone(),
            last_zxid: self.last_zxid,
            session_timeout: self.asked_timeout,
            time_limit: self.granted_timeout / 3,
            is_of_one: self.servers.len() == 1,
            seen: self.seen.clone(),
        }
    }

    /// Waits for `work` while taking in what the clients want.
    async fn meanwhile<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<T, Option<oneshot::Sender<()>>> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                wanted = self.wanted.recv() => match wanted {
                    Some(Wanted::Call(call)) => self.waiting.push_back(call),
                    Some(Wanted::Watch { root, events, set }) => {
                        self.watches.push(Watched { root, events });
                        self.waiting.push_back(set);
                    }
                    Some(Wanted::Close(done)) => return Err(Some(done)),
                    None => return Err(None),
                },
            }
        }
    }

    async fn serve(&mut self, connection: Connection) -> End {
        let Connection { mut frames, writer, credentials, session_timeout, root } = connection;
        self.set_root(root);
        self.credentials = credentials;
        self.granted_timeout = session_timeout;
        let session = format!("{:#x}", self.credentials.id);
        tracing::info!(servers = %self.servers, session, timeout = ?session_timeout, "connected to \
                                                                                      ZooKeeper");
        self.is_old_said = false;
        let mut line = Line::new(writer);
        let fresh = self.last_zxid == 0;
        self.send_first(&mut line, fresh);
        self.published.state.send_replace(SessionState::Connected { id: self.credentials.id });
        let end = self.converse(&mut frames, &mut line).await;
        let end = match end {
            End::Closed(done) => {
                line.close(&mut frames).await;
                End::Closed(done)
            }
            other => other,
        };
        self.sort_out(line, &end);
        end
    }

    /// Sends what goes out first: the watches, then what waited.
    fn send_first(&mut self, line: &mut Line, fresh: bool) {
        if fresh {
            // The server may lag behind the others; nothing is read before it has caught up.
            line.send(Sent::Nobody, proto::sync());
        }
        self.watches.retain(|watched| !watched.events.is_closed());
        let roots: BTreeSet<&str> =
            self.watches.iter().map(|watched| watched.root.as_str()).collect();
        for root in roots {
            line.send(Sent::Rewatch(root.to_owned()), proto::add_watch(root));
        }
        for call in std::mem::take(&mut self.waiting) {
            self.send(line, call);
        }
    }

    /// Sends what a client asks for, unless it is to create something for those who could use the
    /// root then: it waited for a connection, and the root is for others now.
    fn send(&self, line: &mut Line, call: Call) {
        let root = *self.published.root.borrow();
        match (call.creates_for, root) {
            (Some(users), Root::For(access)) if users != access => {
                call.answer(Err(CallError::NotSent))
            }
            _ => line.send_call(call),
        }
    }

    fn set_root(&self, root: Root) {
        self.published.root.send_if_modified(|known| std::mem::replace(known, root) != root);
    }

    async fn converse(&mut self, frames: &mut Frames, line: &mut Line) -> End {
        let mut tick = interval(self.granted_timeout / 6);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_contact = Instant::now();
        let mut looked = Instant::now();
        loop {
            tokio::select! {
                // What the server says comes first: it may free what the clients wait for.
                biased;
                frame = frames.next() => {
                    last_contact = Instant::now();
                    let handled = match frame {
                        Some(Ok(frame)) => self.receive(line, frame.freeze()),
                        Some(Err(error)) => Err(End::Lost(error.to_string())),
                        None => Err(End::Lost("the server hung up".to_owned())),
                    };
                    if let Err(end) = handled {
                        return end;
                    }
                }
                wanted = self.wanted.recv() => match wanted {
                    Some(Wanted::Call(call)) => self.send(line, call),
                    Some(Wanted::Watch { root, events, set }) => {
                        self.watches.push(Watched { root, events });
                        line.send_call(set);
                    }
                    Some(Wanted::Close(done)) => return End::Closed(Some(done)),
                    None => return End::Closed(None),
                },
                why = line.broken() => return End::Lost(why),
                _ = tick.tick() => {
                    if last_contact.elapsed() > self.granted_timeout * 2 / 3 {
                        return End::Lost(format!("no answer for {:?}", last_contact.elapsed()));
                    }
                    line.ping_if_quiet(self.granted_timeout / 3);
                    if looked.elapsed() >= ROOT {
                        looked = Instant::now();
                        line.send(Sent::Root, proto::get_acl("/"));
                    }
                    self.drop_lost_watches(line);
                }
            }
        }
    }

    fn receive(&mut self, line: &mut Line, frame: Bytes) -> Result<(), End> {
        let garbled = |error: Garbled| End::Lost(error.to_string());
        let mut reader = Reader::new(frame);
        let header = proto::header(&mut reader).map_err(garbled)?;
        match header.xid {
            proto::XID_PING => {}
            proto::XID_NOTIFICATION => {
                if let Some(event) = proto::notification(&mut reader).map_err(garbled)? {
                    self.announce(&event);
                }
            }
            _ => self.receive_answer(line, &header, reader)?,
        }
        if header.zxid > 0 {
            self.last_zxid = self.last_zxid.max(header.zxid);
        }
        Ok(())
    }

    fn receive_answer(
        &mut self,
        line: &mut Line,
        header: &Header,
        rest: Reader,
    ) -> Result<(), End> {
        let sent = line.answered(header.xid)?;
        if let Sent::Root = sent {
            let member = self.identity.member.as_ref();
            match Root::read(header.code, &mut Reader::new(rest.rest()), member) {
                Ok(root) => self.set_root(root),
                Err(error) => {
                    tracing::debug!(%error, code = header.code, "who may use the root is not known")
                }
            }
            return if header.code == code::SESSION_EXPIRED { Err(End::Expired) } else { Ok(()) };
        }
        let result = match header.code {
            code::OK => {
                let session = self.credentials.id;
                Ok(Answer { zxid: header.zxid, session, body: rest.rest() })
            }
            code::SESSION_EXPIRED => Err(CallError::Expired),
            other => Err(CallError::Code(other)),
        };
        match sent {
            Sent::Call(call, _) => call.answer(result),
            Sent::Rewatch(root) if result.is_ok() => self.resync(&root),
            Sent::Rewatch(root) => {
                return Err(End::Lost(format!(
                    "the watch of `{root}` was refused with {}",
                    header.code
                )));
            }
            Sent::Root | Sent::Nobody => {}
        }
        if header.code == code::SESSION_EXPIRED { Err(End::Expired) } else { Ok(()) }
    }

    fn announce(&self, event: &TreeEvent) {
        let (TreeEvent::Changed { path } | TreeEvent::Deleted { path }) = event else { return };
        for watched in self.watches.iter().filter(|it| is_at_or_below(path, &it.root)) {
            let _ = watched.events.send(event.clone()); // receivers that are gone are dropped later
        }
    }

    fn resync(&self, root: &str) {
        for watched in self.watches.iter().filter(|watched| watched.root == root) {
            let _ = watched.events.send(TreeEvent::Resync);
        }
    }

    /// Takes back the watches of which nobody hears any more.
    fn drop_lost_watches(&mut self, line: &mut Line) {
        let roots = |watches: &[Watched]| -> BTreeSet<String> {
            watches.iter().map(|watched| watched.root.clone()).collect()
        };
        if !self.watches.iter().any(|watched| watched.events.is_closed()) {
            return;
        }
        let before = roots(&self.watches);
        self.watches.retain(|watched| !watched.events.is_closed());
        for root in before.difference(&roots(&self.watches)) {
            line.send(Sent::Nobody, proto::remove_watch(root));
        }
    }

    /// Sorts out what is left after a connection: what may be sent again waits for the next one,
    /// the rest is lost.
    fn sort_out(&mut self, mut line: Line, end: &End) {
        let expired = matches!(end, End::Expired);
        let mut again = VecDeque::new();
        for (_, sent) in std::mem::take(&mut line.sent) {
            match sent {
                Sent::Call(mut call, Some(frame)) if !expired && call.unclaim() => {
                    call.frame = frame;
                    again.push_back(call);
                }
                Sent::Call(call, _) if expired => call.answer(Err(CallError::Expired)),
                Sent::Call(call, _) => call.answer(Err(CallError::Lost)),
                Sent::Rewatch(_) | Sent::Root | Sent::Nobody => {}
            }
        }
        again.append(&mut self.waiting);
        self.waiting = again;
    }
}

/// Connection to a server that lets us in.
enum Reached {
    /// The session goes on, or is the first.
    Again(Connection),
    /// The session has expired, and another one begins.
    Anew(Connection),
    /// The servers have nothing of what they had.
    Emptied { server: String, connection: Connection },
}

/// Reason for which we take a server for none.
enum Refused {
    OldCopy(String),
    Other(String),
}

async fn try_server(server: String, request: SessionRequest) -> Result<Reached, Refused> {
    let refused = |error: ConnectError| {
        let why = format!("`{server}`: {error}");
        match error {
            ConnectError::OldCopy { .. } => Refused::OldCopy(why),
            _ => Refused::Other(why),
        }
    };
    match connect(&server, &request).await {
        Ok(connection) => Ok(Reached::Again(connection)),
        // Nobody's word but that of a server which has what was seen.
        Err(ConnectError::Expired) => {
            let anew = connect(&server, &request.anew(request.last_zxid)).await;
            anew.map(Reached::Anew).map_err(refused)
        }
        Err(ConnectError::HungUp) if history_is_gone(&server, &request).await => {
            // By the number of its last change; by what it holds it may be an old copy.
            match connect(&server, &request.anew(0)).await {
                Ok(connection) => Ok(Reached::Emptied { server, connection }),
                Err(error) => Err(refused(error)),
            }
        }
        Err(error) => Err(refused(error)),
    }
}

/// Recipient of an answer.
enum Sent {
    /// A call, with the frame if it may be sent again.
    Call(Call, Option<BytesMut>),
    /// A watch of an earlier connection, set again.
    Rewatch(String),
    /// The access list of the root.
    Root,
    Nobody,
}

/// Sending side of a connection, and what still has to be answered on it, in order.
struct Line {
    frames: mpsc::UnboundedSender<Bytes>,
    writer: JoinHandle<std::io::Result<()>>,
    sent: VecDeque<(i32, Sent)>,
    next_xid: i32,
    last_said: Instant,
}

impl Line {
    fn new(writer: Out) -> Line {
        let (frames, queue) = mpsc::unbounded_channel();
        let writer = tokio::spawn(write_frames(writer, queue));
        Line { frames, writer, sent: VecDeque::new(), next_xid: 1, last_said: Instant::now() }
    }

    fn send(&mut self, sent: Sent, mut frame: BytesMut) {
        let xid = self.next_xid;
        self.next_xid = self.next_xid.checked_add(1).unwrap_or(1);
        proto::set_xid(&mut frame, xid);
        self.sent.push_back((xid, sent));
        self.say(frame.freeze());
    }

    fn send_call(&mut self, mut call: Call) {
        if call.claim() {
            let frame = std::mem::take(&mut call.frame);
            let again = call.repeatable.then(|| frame.clone());
            self.send(Sent::Call(call, again), frame);
        }
    }

    fn say(&mut self, frame: Bytes) {
        self.last_said = Instant::now();
        let _ = self.frames.send(frame); // if the writer is gone, `broken` says so
    }

    fn ping_if_quiet(&mut self, quiet: Duration) {
        if self.last_said.elapsed() >= quiet {
            self.say(proto::ping());
        }
    }

    /// Returns who waits for the answer `xid`. Answers come in the order of the requests.
    fn answered(&mut self, xid: i32) -> Result<Sent, End> {
        match self.sent.pop_front() {
            Some((expected, sent)) if expected == xid => Ok(sent),
            other => {
                self.sent.extend(other);
                Err(End::Lost(format!("the server answered a request {xid} that was not the next")))
            }
        }
    }

    /// Returns when nothing can be sent any more, and why.
    async fn broken(&mut self) -> String {
        match (&mut self.writer).await {
            Ok(Ok(())) => "the connection was closed".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        }
    }

    /// Ends the session on the server, so that what is ephemeral goes at once.
    async fn close(&mut self, frames: &mut Frames) {
        self.send(Sent::Nobody, proto::close_session());
        let hung_up = async { while let Some(Ok(_)) = frames.next().await {} };
        let _ = timeout(CLOSE_TIME_LIMIT, hung_up).await; // else the session times out by itself
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.writer.abort();
    }
}

async fn write_frames(
    mut writer: Out,
    mut queue: mpsc::UnboundedReceiver<Bytes>,
) -> std::io::Result<()> {
    const TOGETHER: usize = 64 * 1024;
    let mut buffer = BytesMut::new();
    while let Some(mut frame) = queue.recv().await {
        // Small frames that wait anyway go out as one.
        while frame.len() < TOGETHER && buffer.len() < TOGETHER {
            buffer.extend_from_slice(&frame);
            frame = match queue.try_recv() {
                Ok(next) => next,
                Err(_) => Bytes::new(),
            };
            if frame.is_empty() {
                break;
            }
        }
        writer.write_all(&buffer).await?;
        writer.write_all(&frame).await?;
        writer.flush().await?;
        buffer.clear();
    }
    Ok(())
}

/// A request to set a watch, as the session takes it.
pub(crate) fn watch_call(root: &str) -> (Call, crate::call::Pending) {
    call(proto::add_watch(root), true)
}
