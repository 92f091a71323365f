//! Questions to Ceph's monitors, which pass on most of what is for the manager, and to that; asked
//! one after the other on a thread of their own.

use std::sync::mpsc::{self, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pvc_ports::StorageError;
use serde_json::Value;
use tokio::sync::oneshot;

use crate::connection::{ANSWER, Connection};
use crate::rados::{Answer, Errno, RadosError, Receiver};

/// Time that a question may wait in all: for the connection, those before it, and its answer.
const DEADLINE: Duration = Duration::from_secs(12);

/// A thread that is busy for so long with one question has met something that librados does not
/// end.
const STUCK: Duration = Duration::from_secs(60);

/// Time that a connection is given to be closed.
const CLOSING: Duration = Duration::from_secs(1);

/// Number of threads that may be stuck before no more are begun.
const MAX_STUCK: usize = 3;

/// The monitors of one cluster.
pub(crate) struct Monitors {
    connection: Arc<Connection>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    asker: Option<Asker>,
    /// Threads that were given up, by what they hold; gone when such a thread has come back after
    /// all.
    given_up: Vec<Weak<Busy>>,
}

/// Time at which a thread began with what it does now.
type Busy = Mutex<Option<Instant>>;

/// The thread that asks.
struct Asker {
    questions: Sender<Question>,
    busy: Arc<Busy>,
    thread: JoinHandle<()>,
    /// Disconnected when the connection is closed.
    closed: mpsc::Receiver<()>,
}

struct Question {
    to: Receiver,
    command: String,
    answer: oneshot::Sender<Result<Answer, RadosError>>,
}

/// Reason why a question has no good answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    #[error("Ceph did not answer within {} s", DEADLINE.as_secs())]
    TimedOut,
    #[error("the thread that asks Ceph could not be begun")]
    NoThread(#[source] std::io::Error),
    #[error(transparent)]
    Rados(#[from] RadosError),
}

impl AskError {
    pub fn errno(&self) -> Option<Errno> {
        match self {
            AskError::Rados(RadosError::Refused { errno, .. }) => Some(*errno),
            _ => None,
        }
    }

    /// The same for who asked the storage, not Ceph; `doing` follows "failed while it was".
    pub fn while_doing(self, doing: &str) -> StorageError {
        let late = |after: Duration| StorageError::TimedOut {
            doing: doing.to_owned(),
            seconds: after.as_secs(),
        };
        match self {
            AskError::TimedOut => late(DEADLINE),
            AskError::Rados(
                RadosError::Unreachable(Errno::TIMED_OUT)
                | RadosError::Refused { errno: Errno::TIMED_OUT, .. },
            ) => late(ANSWER),
            AskError::NoThread(source) => StorageError::Io { doing: doing.to_owned(), source },
            AskError::Rados(error) => {
                StorageError::Io { doing: doing.to_owned(), source: std::io::Error::other(error) }
            }
        }
    }
}

impl Monitors {
    /// Closes the connection when it is dropped: others who share it look at nothing then.
    pub fn new(connection: Arc<Connection>) -> Self {
        Monitors { connection, state: Mutex::default() }
    }

    /// Asks for JSON.
    pub async fn json(&self, mut command: Value) -> Result<Vec<u8>, AskError> {
        command["format"] = Value::from("json");
        self.ask(&command).await.map(|answer| answer.output)
    }

    /// Asks for text for people.
    pub async fn text(&self, command: Value) -> Result<String, AskError> {
        let answer = self.ask(&command).await?;
        Ok(String::from_utf8_lossy(&answer.output).into_owned())
    }

    /// Sends a command and waits for its answer, for so long.
    ///
    /// # Cancellation
    /// A command that was not sent yet is not sent; one that was has its effect.
    pub async fn ask(&self, command: &Value) -> Result<Answer, AskError> {
        self.send(Receiver::Monitors, command).await
    }

    /// The same with a command that only the manager takes.
    pub async fn ask_manager(&self, command: &Value) -> Result<Answer, AskError> {
        self.send(Receiver::Manager, command).await
    }

    async fn send(&self, to: Receiver, command: &Value) -> Result<Answer, AskError> {
        let (answer, hear) = oneshot::channel();
        self.queue(Question { to, command: command.to_string(), answer })?;
        match tokio::time::timeout(DEADLINE, hear).await {
            Ok(Ok(answered)) => Ok(answered?),
            // The thread ended without an answer: it was given up.
            Ok(Err(_)) | Err(_) => Err(AskError::TimedOut),
        }
    }

    fn queue(&self, question: Question) -> Result<(), AskError> {
        let mut state = lock(&self.state);
        state.given_up.retain(|busy| busy.strong_count() > 0);
        if let Some(stuck) = state.asker.take_if(|asker| asker.is_stuck()) {
            state.given_up.push(Arc::downgrade(&stuck.busy));
            self.connection.give_up();
            tracing::error!(
                threads = state.given_up.len(),
                "librados does not come back from a call; another thread takes over"
            );
        }
        if state.asker.is_none() && state.given_up.len() >= MAX_STUCK {
            return Err(AskError::TimedOut);
        }
        let asker = match &mut state.asker {
            Some(asker) => asker,
            none => none.insert(Asker::begin(self.connection.clone()).map_err(AskError::NoThread)?),
        };
        asker.questions.send(question).map_err(|_| {
            state.asker = None;
            AskError::TimedOut
        })
    }
}

impl Drop for Monitors {
    /// Closes the connection, and waits for that for a second at most.
    ///
    /// A process whose end comes while librados closes a connection has a segmentation fault once
    /// in a while: its threads use what the end of the process takes down. Something that hangs
    /// is left to itself; the daemons end in a way that takes nothing down (`pvc_linux::leave`).
    fn drop(&mut self) {
        let mut asker = lock(&self.state).asker.take();
        if asker.is_none() && self.connection.is_open() {
            // What may hang is not for this thread.
            asker = Asker::begin(self.connection.clone()).ok();
        }
        if let Some(asker) = asker {
            asker.close();
        }
    }
}

impl Asker {
    fn begin(connection: Arc<Connection>) -> std::io::Result<Self> {
        let (questions, to_ask) = channel();
        let (open, closed) = channel();
        let busy = Arc::new(Mutex::new(None));
        let its_own = busy.clone();
        let thread = std::thread::Builder::new().name("ceph".to_owned()).spawn(move || {
            answer_all(&connection, &to_ask, &its_own);
            drop(open);
        })?;
        Ok(Asker { questions, busy, thread, closed })
    }

    fn close(self) {
        let Asker { questions, thread, closed, .. } = self;
        drop(questions);
        if closed.recv_timeout(CLOSING) == Err(RecvTimeoutError::Disconnected) {
            // Its last steps, in which nothing hangs. A panic was reported when it happened.
            let _ = thread.join();
        }
    }

    fn is_stuck(&self) -> bool {
        lock(&self.busy).is_some_and(|since| since.elapsed() > STUCK)
    }
}

/// Answers questions until nobody can ask any more, and closes the connection then.
fn answer_all(connection: &Connection, questions: &mpsc::Receiver<Question>, busy: &Busy) {
    while let Ok(question) = questions.recv() {
        if question.answer.is_closed() {
            continue; // Whoever asked has gone away meanwhile.
        }
        *lock(busy) = Some(Instant::now());
        let answered = connection.ask(|rados| rados.command(question.to, &question.command));
        *lock(busy) = None;
        // Whoever asked may have gone away meanwhile.
        let _ = question.answer.send(answered);
    }
    connection.close();
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it holds this")
}

#[cfg(test)]
mod tests {
    use pvc_model::storage::RbdAccess;

    use super::*;
    use crate::CephOptions;

    #[tokio::test]
    async fn the_thread_that_asks_ends_before_who_asked() {
        let access = RbdAccess {
            monitors: Vec::new(),
            port: 6789,
            user: "libvirt".to_owned(),
            secret: None,
        };
        let monitors = Monitors::new(Arc::new(Connection::new(CephOptions {
            config: "/nonexistent/ceph.conf".into(),
            keyring: "/nonexistent/keyring".into(),
            user: "admin".to_owned(),
            access,
        })));
        let question = serde_json::json!({"prefix": "status"});
        monitors.json(question).await.expect_err("there is no such configuration");
        let busy = lock(&monitors.state).asker.as_ref().map(|asker| Arc::downgrade(&asker.busy));
        let busy = busy.expect("it was asked");
        drop(monitors);
        assert_eq!(busy.strong_count(), 0);
    }
}
