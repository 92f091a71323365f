//! The connection to libvirt and the threads that use it.
//!
//! One supervisor thread opens the connection, watches over it and opens the next one when it is
//! lost. Calls run on a few threads that belong to one connection and never on tokio's. A call that
//! is later than its deadline keeps its thread (libvirt cannot be interrupted) and its caller goes
//! on; when too many threads are kept like that, the connection is given up together with its
//! threads, and a new one is opened.

use std::panic;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::thread;
use std::time::Duration;

use pvc_ports::GuestEvent;
use tokio::runtime::Handle;
use tokio::sync::{mpsc as tokio_mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::virt::{Connection, DomainEvent, VirtError};

/// Threads, and therefore calls under way, per connection. libvirtd serves five calls of one client
/// at a time by default and stops reading from it, keepalive included, when there are more.
const THREADS: usize = 4;
/// Number of late calls at which the connection is given up.
const MAX_LATE: usize = 3;
/// Connections given up whose threads still hang. More are not opened on top of them: each costs
/// [`THREADS`] threads, and a libvirt that swallowed this many calls will swallow the next.
const MAX_GIVEN_UP: usize = 3;
const LOOK_EVERY: Duration = Duration::from_secs(1);
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(2);

/// Reason for which a call has no result.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The connection is missing, or broke under the call.
    Unreachable(String),
    Late,
    Libvirt(VirtError),
}

/// Behaviour of a caller whose call has begun and is late.
#[derive(Clone, Copy)]
enum WaitFor {
    UntilDeadline,
    ToItsEnd,
}

/// The handle on the supervisor. Dropping it lets the connection and all idle threads go.
pub(crate) struct Link {
    state: watch::Receiver<State>,
    shared: Arc<Shared>,
}

#[derive(Clone)]
enum State {
    /// No attempt to connect has failed since the connection was last there.
    Connecting,
    Down(String),
    Up(Arc<Session>),
}

/// State that the supervisor shares with everybody who may wake it.
struct Shared {
    /// Purpose of this connection, in the log and in the threads' names.
    purpose: &'static str,
    uri: String,
    hub: Hub,
    alarm: Alarm,
    stop: AtomicBool,
}

impl Link {
    pub(crate) fn start(purpose: &'static str, uri: String) -> Self {
        let shared = Arc::new(Shared {
            purpose,
            uri,
            hub: Hub::default(),
            alarm: Alarm::default(),
            stop: AtomicBool::new(false),
        });
        let (state, receiver) = watch::channel(State::Connecting);
        let supervisor = Supervisor { shared: shared.clone(), state, given_up: Vec::new() };
        let started =
            thread::Builder::new().name("libvirt-link".to_owned()).spawn(move || supervisor.run());
        if let Err(error) = started {
            // The closure, and the sender in it, are gone: every call will say so.
            tracing::error!(%error, "the thread that connects to libvirt could not be started");
        }
        Self { state: receiver, shared }
    }

    /// Hints from now on.
    pub(crate) fn events(&self) -> tokio_mpsc::UnboundedReceiver<GuestEvent> {
        self.shared.hub.subscribe()
    }

    /// Runs `work` on a thread of the connection and waits for it, but not longer than `deadline`,
    /// which includes waiting for a free thread and for a first connection.
    ///
    /// # Cancellation
    /// Dropping the future does not stop a call that has begun, which is late at its deadline as if
    /// somebody waited.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        deadline: Duration,
        work: impl FnOnce(&Connection) -> Result<T, VirtError> + Send + 'static,
    ) -> Result<T, CallError> {
        self.wait_for(deadline, WaitFor::UntilDeadline, work).await
    }

    /// Calls as [`call`](Link::call) does, but once `work` has begun its end is waited for, however
    /// late.
    pub(crate) async fn call_to_its_end<T: Send + 'static>(
        &self,
        deadline: Duration,
        work: impl FnOnce(&Connection) -> Result<T, VirtError> + Send + 'static,
    ) -> Result<T, CallError> {
        self.wait_for(deadline, WaitFor::ToItsEnd, work).await
    }

    async fn wait_for<T: Send + 'static>(
        &self,
        deadline: Duration,
        time_limit: WaitFor,
        work: impl FnOnce(&Connection) -> Result<T, VirtError> + Send + 'static,
    ) -> Result<T, CallError> {
        let late = tokio::time::sleep(deadline);
        tokio::pin!(late);
        let session = tokio::select! {
            biased;
            session = self.session() => session?,
            () = &mut late => {
                let why = format!("libvirt at `{}` does not answer", self.shared.uri);
                return Err(CallError::Unreachable(why));
            }
        };
        let (answer, mut answered) = oneshot::channel();
        let taken = Arc::new(AtomicBool::new(false));
        let ticket = session.submit(taken.clone(), answer, work)?;
        let mut abandoned = Abandoned {
            session: Arc::downgrade(&session),
            shared: self.shared.clone(),
            taken: taken.clone(),
            ticket: ticket.clone(),
            late: Some(late.deadline()),
        };
        let answer = tokio::select! {
            biased;
            answer = &mut answered => {
                abandoned.late = None;
                answer
            }
            () = &mut late => {
                abandoned.late = None;
                // Taken back before a thread has taken it: it does not begin any more.
                if !taken.swap(true, Ordering::SeqCst) {
                    return Err(CallError::Late);
                }
                session.note_late(&ticket, &self.shared);
                match time_limit {
                    WaitFor::UntilDeadline => return Err(CallError::Late),
                    WaitFor::ToItsEnd => answered.await,
                }
            }
        };
        match answer {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(self.blame(&session, error)),
            Err(_) => {
                Err(CallError::Unreachable("the connection to libvirt was given up".to_owned()))
            }
        }
    }

    /// Calls as [`call`](Self::call) does, on the connection that is there now, waiting with this
    /// thread: for what has to be done while a value is dropped.
    pub(crate) fn call_while_dropped(
        &self,
        deadline: Duration,
        work: impl FnOnce(&Connection) -> Result<(), VirtError> + Send + 'static,
    ) -> Result<(), CallError> {
        let session = match &*self.state.borrow() {
            State::Up(session) if !session.is_lost() => session.clone(),
            State::Up(_) | State::Connecting | State::Down(_) => {
                return Err(CallError::Unreachable("the connection to libvirt is lost".to_owned()));
            }
        };
        let (done, answered) = mpsc::channel();
        // Whether anybody waits is asked of the one, and what comes is sent to the other, which
        // needs no runtime.
        let (answer, waits) = oneshot::channel();
        session.submit(Arc::default(), answer, move |connection| {
            let _ = done.send(work(connection));
            Ok(())
        })?;
        let said = answered.recv_timeout(deadline);
        drop(waits);
        match said {
            Ok(said) => said.map_err(CallError::Libvirt),
            Err(_) => Err(CallError::Late),
        }
    }

    /// An error of a call is the connection's fault if the connection is gone by now.
    fn blame(&self, session: &Session, error: VirtError) -> CallError {
        if error.kind() == crate::virt::Kind::Connection || session.is_lost() {
            self.shared.alarm.ring();
            return CallError::Unreachable(format!("libvirt at `{}`: {error}", self.shared.uri));
        }
        CallError::Libvirt(error)
    }

    /// The connection; waits while the outcome of an attempt to connect is open.
    async fn session(&self) -> Result<Arc<Session>, CallError> {
        let mut state = self.state.clone();
        loop {
            match &*state.borrow_and_update() {
                State::Up(session) if !session.is_lost() => return Ok(session.clone()),
                State::Down(why) => return Err(CallError::Unreachable(why.clone())),
                State::Up(_) | State::Connecting => {}
            }
            if state.changed().await.is_err() {
                return Err(CallError::Unreachable(
                    "nobody connects to libvirt any more".to_owned(),
                ));
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.alarm.ring();
    }
}

// --- One connection and its threads -------------------------------------------------------------

type Job = Box<dyn FnOnce(&Connection) + Send>;

/// A connection as its callers see it. It holds no connection itself, only the way to the threads
/// that do: the last one to let go of a connection closes it, which may block, and must be a thread
/// that may.
struct Session {
    jobs: mpsc::Sender<Job>,
    lost: Arc<AtomicBool>,
    late: Arc<AtomicUsize>,
}

/// Marks one call, so that it is counted as late once and is uncounted when it ends after all.
#[derive(Clone)]
struct Ticket(Arc<AtomicBool>);

/// Counts a call as late, at its deadline, whose caller has stopped to wait before: it keeps its
/// thread all the same.
struct Abandoned {
    session: Weak<Session>,
    shared: Arc<Shared>,
    taken: Arc<AtomicBool>,
    ticket: Ticket,
    /// Time of the call's deadline; `None` once the caller has waited until then, or has an answer.
    late: Option<Instant>,
}

impl Drop for Abandoned {
    fn drop(&mut self) {
        let Some(late) = self.late else { return };
        // Without a runtime the program ends.
        let Ok(runtime) = Handle::try_current() else { return };
        let (session, shared) = (self.session.clone(), self.shared.clone());
        let (taken, ticket) = (self.taken.clone(), self.ticket.clone());
        runtime.spawn(async move {
            tokio::time::sleep_until(late).await;
            // One that no thread has taken never begins.
            if taken.load(Ordering::SeqCst)
                && let Some(session) = session.upgrade()
            {
                session.note_late(&ticket, &shared);
            }
        });
    }
}

impl Session {
    /// Starts the threads; they end when the session and its queue are gone.
    fn start(connection: &Arc<Connection>, lost: Arc<AtomicBool>) -> std::io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        for number in 1..=THREADS {
            let (connection, queue) = (connection.clone(), queue.clone());
            thread::Builder::new().name(format!("libvirt-{number}")).spawn(move || {
                while let Some(job) = next(&queue) {
                    // A call that panics answers nobody; it must not cost the connection a thread
                    // as well.
                    let _ = panic::catch_unwind(panic::AssertUnwindSafe(|| job(&connection)));
                }
            })?;
        }
        Ok(Self { jobs, lost, late: Arc::new(AtomicUsize::new(0)) })
    }

    fn submit<T: Send + 'static>(
        &self,
        taken: Arc<AtomicBool>,
        answer: oneshot::Sender<Result<T, VirtError>>,
        work: impl FnOnce(&Connection) -> Result<T, VirtError> + Send + 'static,
    ) -> Result<Ticket, CallError> {
        let counted = Arc::new(AtomicBool::new(false));
        let (ticket, late) = (Ticket(counted.clone()), self.late.clone());
        let job: Job = Box::new(move |connection| {
            if answer.is_closed() || taken.swap(true, Ordering::SeqCst) {
                return; // nobody waits any more: it was late before it began
            }
            let _ = answer.send(work(connection));
            if counted.swap(true, Ordering::SeqCst) {
                late.fetch_sub(1, Ordering::SeqCst);
            }
        });
        self.jobs.send(job).map_err(|_| {
            CallError::Unreachable("the connection to libvirt was given up".to_owned())
        })?;
        Ok(ticket)
    }

    /// Takes in that a call is late, and gives the connection up if too many are.
    fn note_late(&self, ticket: &Ticket, shared: &Shared) {
        if self.count_late(ticket) >= MAX_LATE {
            self.give_up();
            shared.alarm.ring();
        }
    }

    /// Number of calls that are late now, with this one.
    fn count_late(&self, ticket: &Ticket) -> usize {
        if ticket.0.swap(true, Ordering::SeqCst) {
            return self.late.load(Ordering::SeqCst); // it ended at the last moment
        }
        self.late.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn give_up(&self) {
        self.lost.store(true, Ordering::SeqCst);
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }
}

fn next(queue: &Mutex<mpsc::Receiver<Job>>) -> Option<Job> {
    lock(queue).recv().ok()
}

/// A panic inside one call must not make the others fail: nothing behind these locks is ever half
/// done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// --- The supervisor -----------------------------------------------------------------------------

struct Supervisor {
    shared: Arc<Shared>,
    state: watch::Sender<State>,
    /// Connections whose threads have not all come back.
    given_up: Vec<Weak<Connection>>,
}

impl Supervisor {
    fn run(mut self) {
        let mut retry = FIRST_RETRY;
        while !self.stopped() {
            match self.connect() {
                Ok((connection, session)) => {
                    retry = FIRST_RETRY;
                    let Shared { uri, purpose, .. } = &*self.shared;
                    tracing::info!(%uri, purpose, "connected to libvirt");
                    self.watch(&connection, session);
                    self.retire(connection);
                }
                Err(why) => {
                    self.report_down(why);
                    self.shared.alarm.wait(retry);
                    retry = (retry * 2).min(LAST_RETRY);
                }
            }
        }
    }

    fn connect(&mut self) -> Result<(Arc<Connection>, Session), String> {
        self.given_up.retain(|connection| connection.strong_count() > 0);
        if self.given_up.len() >= MAX_GIVEN_UP {
            return Err(format!(
                "libvirt at `{}` has left {} connections full of calls unanswered",
                self.shared.uri,
                self.given_up.len(),
            ));
        }
        let lost = Arc::new(AtomicBool::new(false));
        let listener = {
            let (shared, lost) = (self.shared.clone(), lost.clone());
            move |event| match event {
                DomainEvent::Changed(uuid) => shared.hub.send(GuestEvent::Changed(uuid)),
                DomainEvent::Closed => {
                    lost.store(true, Ordering::SeqCst);
                    shared.alarm.ring();
                }
            }
        };
        let connection = Connection::open(&self.shared.uri, listener)
            .map_err(|error| format!("libvirt at `{}`: {error}", self.shared.uri))?;
        let connection = Arc::new(connection);
        let session = Session::start(&connection, lost)
            .map_err(|error| format!("no thread for libvirt's calls could be started: {error}"))?;
        Ok((connection, session))
    }

    /// Lets everybody use the connection until it is lost or given up.
    fn watch(&self, connection: &Connection, session: Session) {
        let lost = session.lost.clone();
        self.state.send_replace(State::Up(Arc::new(session)));
        self.shared.hub.send(GuestEvent::Resync);
        while !self.stopped() && !lost.load(Ordering::SeqCst) && connection.is_alive() {
            self.shared.alarm.wait(LOOK_EVERY);
        }
        lost.store(true, Ordering::SeqCst);
        self.state.send_replace(State::Connecting);
        if !self.stopped() {
            tracing::warn!(uri = %self.shared.uri, purpose = self.shared.purpose, "the connection \
                                                                                   to libvirt was \
                                                                                   lost");
        }
        self.shared.hub.send(GuestEvent::Resync);
    }

    /// Lets go of a connection. Closing one may block, so that happens elsewhere.
    fn retire(&mut self, connection: Arc<Connection>) {
        self.given_up.push(Arc::downgrade(&connection));
        // Should no thread be had, the closure is dropped right here, and the connection with it.
        let _ =
            thread::Builder::new().name("libvirt-close".to_owned()).spawn(move || drop(connection));
    }

    fn report_down(&self, why: String) {
        let news = !matches!(&*self.state.borrow(), State::Down(before) if *before == why);
        if news {
            tracing::warn!(%why, purpose = self.shared.purpose, "libvirt cannot be reached");
        }
        self.state.send_replace(State::Down(why));
    }

    fn stopped(&self) -> bool {
        self.shared.stop.load(Ordering::SeqCst)
    }
}

/// Wakes the supervisor before its pause is over.
#[derive(Default)]
struct Alarm {
    rung: Mutex<bool>,
    bell: Condvar,
}

impl Alarm {
    fn ring(&self) {
        *lock(&self.rung) = true;
        self.bell.notify_all();
    }

    fn wait(&self, at_most: Duration) {
        let rung = lock(&self.rung);
        let (mut rung, _) = self
            .bell
            .wait_timeout_while(rung, at_most, |rung| !*rung)
            .unwrap_or_else(PoisonError::into_inner);
        *rung = false;
    }
}

/// Everybody who wants hints. A receiver that is gone is forgotten at the next hint.
#[derive(Default)]
struct Hub {
    receivers: Mutex<Vec<tokio_mpsc::UnboundedSender<GuestEvent>>>,
}

impl Hub {
    fn subscribe(&self) -> tokio_mpsc::UnboundedReceiver<GuestEvent> {
        let (sender, receiver) = tokio_mpsc::unbounded_channel();
        lock(&self.receivers).push(sender);
        receiver
    }

    fn send(&self, event: GuestEvent) {
        lock(&self.receivers).retain(|receiver| receiver.send(event).is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Once calls that hung kept all threads for good if their callers waited less than they might.
    #[tokio::test]
    async fn calls_whose_callers_have_gone_are_late_at_their_deadline() {
        let (jobs, _queue) = mpsc::channel();
        let session = Arc::new(Session { jobs, lost: Arc::default(), late: Arc::default() });
        let shared = Arc::new(Shared {
            purpose: "asking",
            uri: String::new(),
            hub: Hub::default(),
            alarm: Alarm::default(),
            stop: AtomicBool::new(false),
        });
        let abandon = |is_taken: bool, has_ended: bool, late: Option<Instant>| {
            drop(Abandoned {
                session: Arc::downgrade(&session),
                shared: shared.clone(),
                taken: Arc::new(AtomicBool::new(is_taken)),
                ticket: Ticket(Arc::new(AtomicBool::new(has_ended))),
                late,
            });
        };
        let a_moment = || tokio::time::sleep(Duration::from_millis(20));
        let now = Instant::now();
        abandon(true, false, None);
        abandon(false, false, Some(now));
        abandon(true, true, Some(now));
        abandon(true, false, Some(now + Duration::from_secs(3600)));
        for _ in 1..MAX_LATE {
            abandon(true, false, Some(now));
        }
        a_moment().await;
        assert_eq!(session.late.load(Ordering::SeqCst), MAX_LATE - 1);
        assert!(!session.is_lost());
        abandon(true, false, Some(now));
        a_moment().await;
        assert!(session.is_lost() && *lock(&shared.alarm.rung));
    }
}
