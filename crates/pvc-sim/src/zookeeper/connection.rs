//! The tree as one process has it: an adapter of `Tree`.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use pvc_ports::{
    CreateMode, Done, Entry, MultiError, Op, SessionState, Stat, Tree, TreeError, TreeWatch,
    check_multi, check_path,
};
use tokio::sync::{oneshot, watch};

use super::{Answer, Ask, CallError, OPERATION_TIMEOUT};
use crate::job_steps::Write;
use crate::process::Gate;

const MAX_REQUEST_BYTES: usize = 63 << 20;

/// The tree as one process has it.
pub(crate) struct Connection {
    gate: Gate,
    pub(super) client: usize,
    session: watch::Receiver<SessionState>,
}

impl Connection {
    /// Begins a session.
    ///
    /// # Errors
    /// [`TreeError::Unreachable`] if no server answers for a while.
    pub async fn open(gate: Gate) -> Result<Connection, TreeError> {
        let pid = gate.pid;
        let (client, mut session) = gate
            .call(|state| {
                state.with_zookeeper(|zookeeper, around| {
                    let client = zookeeper.new_client(around, pid);
                    (client, zookeeper.clients[client].state.subscribe())
                })
            })
            .await;
        let connection = Connection { gate: gate.clone(), client, session: session.clone() };
        let connected = async {
            session.wait_for(|state| matches!(state, SessionState::Connected { .. })).await.is_ok()
        };
        let is_connected = tokio::select! {
            biased;
            connected = connected => connected,
            () = gate.sleep(OPERATION_TIMEOUT) => false,
        };
        gate.pass().await;
        if is_connected {
            return Ok(connection);
        }
        gate.call(|state| state.zookeeper.close_client(client)).await;
        Err(unreachable())
    }

    async fn ask(&self, ask: Ask) -> Result<Answer, CallError> {
        let answered = self.submit(ask).await;
        self.gate.answer(answered).await
    }

    async fn submit(&self, ask: Ask) -> oneshot::Receiver<Result<Answer, CallError>> {
        self.gate
            .call(|state| {
                state.with_zookeeper(|zookeeper, around| zookeeper.submit(around, self.client, ask))
            })
            .await
    }

    /// The number of the connection that the client has, or had last.
    fn connection(&self) -> u64 {
        self.gate.world.with(|state| state.zookeeper.clients[self.client].connection)
    }

    async fn read(&self, ask: Ask) -> Result<Answer, TreeError> {
        self.ask(ask).await.map_err(|trouble| match trouble {
            CallError::NotSent | CallError::Lost => unreachable(),
            CallError::Expired => TreeError::SessionExpired,
            CallError::Closed => TreeError::Closed,
            CallError::Refused(MultiError::Refused { why, .. } | MultiError::Tree(why)) => why,
        })
    }

    async fn write(&self, ask: Ask) -> Result<Answer, MultiError> {
        self.ask(ask).await.map_err(|trouble| match trouble {
            CallError::NotSent => unreachable().into(),
            CallError::Lost => TreeError::OutcomeUnknown.into(),
            CallError::Expired => TreeError::SessionExpired.into(),
            CallError::Closed => TreeError::Closed.into(),
            CallError::Refused(error) => error,
        })
    }
}

fn unreachable() -> TreeError {
    TreeError::Unreachable { why: "no ZooKeeper server answers".to_owned() }
}

fn check_size(ops: &[Op]) -> Result<(), TreeError> {
    let size = ops.iter().map(Op::request_bytes).sum();
    let limit = MAX_REQUEST_BYTES;
    if size > limit { Err(TreeError::TooLarge { size, limit }) } else { Ok(()) }
}

#[async_trait]
impl Tree for Connection {
    async fn get(&self, path: &str) -> Result<Option<Entry>, TreeError> {
        Ok(self.get_many(&[path.to_owned()]).await?.pop().flatten())
    }

    async fn get_many(&self, paths: &[String]) -> Result<Vec<Option<Entry>>, TreeError> {
        paths.iter().try_for_each(|path| check_path(path))?;
        match self.read(Ask::Get(paths.to_vec())).await? {
            Answer::Entries(entries) => Ok(entries),
            _ => unreachable!("a read of data is answered with data"),
        }
    }

    async fn children(&self, path: &str) -> Result<Option<Vec<String>>, TreeError> {
        Ok(self.children_many(&[path.to_owned()]).await?.pop().flatten())
    }

    async fn children_many(&self, paths: &[String]) -> Result<Vec<Option<Vec<String>>>, TreeError> {
        paths.iter().try_for_each(|path| check_path(path))?;
        match self.read(Ask::Children(paths.to_vec())).await? {
            Answer::Names(names) => Ok(names),
            _ => unreachable!("a read of children is answered with names"),
        }
    }

    async fn create(
        &self,
        path: &str,
        data: Bytes,
        mode: CreateMode,
    ) -> Result<(String, Stat), TreeError> {
        check_path(path)?;
        check_size(&[Op::Create { path: path.to_owned(), data: data.clone(), mode }])?;
        match self.write(Ask::Create(path.to_owned(), data, mode)).await {
            Ok(Answer::Created(path, stat)) => Ok((path, stat)),
            Ok(_) => unreachable!("a creation is answered with what was made"),
            Err(MultiError::Refused { why, .. } | MultiError::Tree(why)) => Err(why),
        }
    }

    async fn multi(&self, ops: Vec<Op>) -> Result<Vec<Done>, MultiError> {
        check_multi(&ops)?;
        check_size(&ops)?;
        if ops.is_empty() {
            return match *self.session.borrow() {
                SessionState::Closed => Err(TreeError::Closed.into()),
                _ => Ok(Vec::new()),
            };
        }
        let write = Write::of(&ops);
        self.gate.before_write(write).await;
        let connection = self.connection();
        let answer = self.write(Ask::Multi(ops)).await?;
        if self.gate.after_write(write).await && self.connection() != connection {
            return Err(TreeError::OutcomeUnknown.into());
        }
        match answer {
            Answer::Multi(done) => Ok(done),
            _ => unreachable!("a multi is answered with what was done"),
        }
    }

    async fn sync(&self) -> Result<(), TreeError> {
        self.read(Ask::Sync).await.map(drop)
    }

    async fn watch(&self, root: &str) -> Result<TreeWatch, TreeError> {
        check_path(root)?;
        let watch = self.gate.call(|state| state.zookeeper.watch_tree(self.client, root)).await;
        let watch = watch.ok_or(TreeError::Closed)?;
        // It stands once the servers have answered something that was sent after it.
        self.sync().await?;
        Ok(watch)
    }

    fn session(&self) -> watch::Receiver<SessionState> {
        let mut session = self.session.clone();
        session.mark_unchanged(); // what comes from now on is what the caller has not seen
        session
    }

    async fn close(&self) {
        let is_closed = matches!(*self.session.borrow(), SessionState::Closed);
        if is_closed {
            return;
        }
        let answered = self.submit(Ask::Close).await;
        tokio::select! {
            biased;
            _ = self.gate.answer(answered) => {}
            // Else the session ends by itself.
            () = self.gate.sleep(Duration::from_secs(2)) => {}
        }
        self.gate.call(|state| state.zookeeper.close_client(self.client)).await;
    }

    fn max_request_bytes(&self) -> usize {
        MAX_REQUEST_BYTES
    }
}
