//! Moving a guest to the libvirt of another host.
//!
//! Managed migration: this process talks to both sides. libvirt takes one call for all of it, which
//! lasts as long as the copying, so each has a thread and two connections of its own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use pvc_ports::{GuestRun, HypervisorError, Migration, MigrationJob, MigrationProgress};
use tokio::net::TcpStream;
use tokio::sync::{Mutex as AsyncMutex, oneshot};
use uuid::Uuid;

use crate::link::Link;
use crate::virt::{Connection, Kind, VirtError};
use crate::{CHANGE, READ, STATE_ONLY, refused, stats, with_guest};

/// Time that the target may take to accept a connection. libvirt itself would wait for minutes.
const REACH: Duration = Duration::from_secs(5);

/// Port at which libvirt listens if its URI names none.
const PORT: u16 = 16509;
const TLS_PORT: u16 = 16514;

type Outcome = Result<(), HypervisorError>;

/// A migration under way.
pub(crate) struct Job {
    uuid: Uuid,
    asking: Arc<Link>,
    ending: Arc<Link>,
    outcome: oneshot::Receiver<Outcome>,
    given_up: Arc<AtomicBool>,
}

/// Guest that is to be moved, and its destination.
pub(crate) struct Transfer {
    pub uuid: Uuid,
    /// The libvirt of this host.
    pub from: String,
    /// URI of the other libvirt.
    pub to: String,
    pub migration: Migration,
}

impl Job {
    /// Begins the migration, if the target can be reached at all.
    pub(crate) async fn begin(
        transfer: Transfer,
        asking: Arc<Link>,
        ending: Arc<Link>,
    ) -> Result<Self, HypervisorError> {
        reach(&transfer.to).await?;
        let (done, outcome) = oneshot::channel();
        let (uuid, given_up) = (transfer.uuid, Arc::new(AtomicBool::new(false)));
        let stop = given_up.clone();
        let started = thread::Builder::new()
            .name("libvirt-migrate".to_owned())
            // Nobody may wait for the outcome any more: the guest is moved all the same.
            .spawn(move || drop(done.send(transfer.run(&stop))));
        match started {
            Ok(_) => Ok(Self { uuid, asking, ending, outcome, given_up }),
            Err(error) => Err(HypervisorError::Unreachable {
                why: format!("the thread for a migration could not be started: {error}"),
            }),
        }
    }
}

#[async_trait]
impl MigrationJob for Job {
    async fn progress(&self) -> Result<Option<MigrationProgress>, HypervisorError> {
        with_guest(&self.asking, self.uuid, READ, |_, guest| guest.job_progress()).await
    }

    async fn abort(&self) -> Result<(), HypervisorError> {
        // For a thread that still waits for the other host to say hello, there is no job to end
        // yet.
        self.given_up.store(true, Ordering::SeqCst);
        let aborted =
            with_guest(&self.ending, self.uuid, CHANGE, |_, guest| match guest.abort_job() {
                // It has ended, or is past the point where it could be.
                Err(error) if error.kind() == Kind::NotRunning => Ok(()),
                other => other,
            });
        match aborted.await {
            Err(HypervisorError::NoGuest { .. }) => Ok(()),
            other => other,
        }
    }

    async fn outcome(&mut self) -> Outcome {
        let lost =
            || HypervisorError::Unreachable { why: "the migration's thread ended".to_owned() };
        (&mut self.outcome).await.unwrap_or_else(|_| Err(lost()))
    }
}

impl Transfer {
    fn run(&self, given_up: &AtomicBool) -> Outcome {
        let from = connect(&self.from)?;
        let to = connect(&self.to)?;
        let unreachable = |error: VirtError| HypervisorError::Unreachable {
            why: format!("libvirt at `{}`: {error}", self.from),
        };
        let translate = |error: VirtError| match error.kind() {
            Kind::NoDomain => HypervisorError::NoGuest { uuid: self.uuid },
            _ if !from.is_alive() => unreachable(error),
            _ => refused(error),
        };
        let guest = from.lookup(self.uuid).map_err(translate)?;
        guest.set_max_downtime(self.migration.max_downtime).map_err(translate)?;
        let uri = format!("tcp://{}", self.migration.host);
        if given_up.load(Ordering::SeqCst) {
            return Err(HypervisorError::Refused {
                why: "the migration was given up before it began".to_owned(),
            });
        }
        guest.migrate(&to, &uri, &self.migration).map_err(translate)
    }
}

/// Questions to the libvirts of other hosts, by their URIs. libvirt's own calls cannot be
/// interrupted, so a thread asks, which is left behind by a libvirt that does not answer. Until it
/// returns nobody else asks there: each would leave a thread and a connection behind.
#[derive(Default)]
pub(crate) struct Questions(Mutex<BTreeMap<String, Arc<Question>>>);

#[derive(Default)]
struct Question {
    /// Turn to ask; others wait for it while the answer may still come.
    turn: AsyncMutex<()>,
    is_open: AtomicBool,
}

/// Question that a thread asks; answered once this is dropped.
struct Open(Arc<Question>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.is_open.store(false, Ordering::SeqCst);
    }
}

impl Questions {
    /// Asks for the state of the guest at the libvirt of another host, if it is there.
    pub(crate) async fn state_at(
        &self,
        uri: String,
        uuid: Uuid,
    ) -> Result<Option<GuestRun>, HypervisorError> {
        self.ask(uri.clone(), move || {
            let guests = connect(&uri)?.all_stats(STATE_ONLY, stats::ACTIVE).map_err(refused)?;
            let guest = guests.iter().filter_map(stats::guest).find(|guest| guest.uuid == uuid);
            Ok(guest.map(|guest| guest.run))
        })
        .await
    }

    async fn ask<T: Send + 'static>(
        &self,
        uri: String,
        ask: impl FnOnce() -> Result<T, HypervisorError> + Send + 'static,
    ) -> Result<T, HypervisorError> {
        let timed_out = || HypervisorError::TimedOut { seconds: REACH.as_secs() };
        let question = {
            let mut all = self.0.lock().expect("nobody panics while holding it");
            all.entry(uri.clone()).or_default().clone()
        };
        reach(&uri).await?;
        let _turn = question.turn.lock().await;
        if question.is_open.swap(true, Ordering::SeqCst) {
            return Err(timed_out());
        }
        let open = Open(question.clone());
        let (said, answer) = oneshot::channel();
        let asking = move || {
            let answer = ask();
            // Before it is heard: who asks next may do so.
            drop(open);
            drop(said.send(answer));
        };
        let started = thread::Builder::new().name("libvirt-ask".to_owned()).spawn(asking);
        let unreachable = |why: String| HypervisorError::Unreachable { why };
        started.map_err(|error| {
            unreachable(format!("the thread to ask could not be started: {error}"))
        })?;
        match tokio::time::timeout(REACH, answer).await {
            Ok(Ok(state)) => state,
            Ok(Err(_)) => Err(unreachable("the thread that asks ended".to_owned())),
            Err(_) => Err(timed_out()),
        }
    }
}

fn connect(uri: &str) -> Result<Connection, HypervisorError> {
    Connection::open(uri, |_| {}).map_err(|error| HypervisorError::Unreachable {
        why: format!("libvirt at `{uri}`: {error}"),
    })
}

async fn reach(uri: &str) -> Result<(), HypervisorError> {
    let Some(address) = address(uri) else { return Ok(()) };
    let unreachable =
        |why: String| HypervisorError::Unreachable { why: format!("libvirt at `{uri}`: {why}") };
    match tokio::time::timeout(REACH, TcpStream::connect(&address)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(unreachable(error.to_string())),
        Err(_) => Err(unreachable(format!("no connection within {} s", REACH.as_secs()))),
    }
}

/// `host:port` of a libvirt that is reached over TCP or TLS.
fn address(uri: &str) -> Option<String> {
    let over = |transport: &str, port: u16| uri.split_once(transport).map(|(_, rest)| (rest, port));
    let (rest, port) = over("+tcp://", PORT).or_else(|| over("+tls://", TLS_PORT))?;
    let authority = rest.split('/').next().filter(|authority| !authority.is_empty())?;
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    Some(if has_port { authority.to_owned() } else { format!("{authority}:{port}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: &str = "qemu+unix:///system?socket=/nobody";

    #[tokio::test(start_paused = true)]
    async fn a_libvirt_that_does_not_answer_costs_one_thread_whoever_asks() {
        let questions = Questions::default();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (begins, begun) = std::sync::mpsc::channel();
        let released = Arc::new(Mutex::new(released));
        let ask = || {
            let (begins, released) = (begins.clone(), released.clone());
            questions.ask(LOCAL.to_owned(), move || {
                let _ = begins.send(());
                let _ = released.lock().unwrap().recv();
                Ok(7)
            })
        };
        for _ in 0..50 {
            let (one, other) = tokio::join!(ask(), ask());
            assert!(matches!(one, Err(HypervisorError::TimedOut { .. })), "{one:?}");
            assert!(matches!(other, Err(HypervisorError::TimedOut { .. })), "{other:?}");
        }
        begun.recv().unwrap();
        assert!(begun.try_recv().is_err(), "one thread has asked");
        // From here on a thread answers before its time is over.
        tokio::time::resume();
        drop(release);
        let answer = loop {
            if let Ok(answer) = ask().await {
                break answer;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(answer, 7, "once it answers it is asked again");
    }

    #[tokio::test]
    async fn those_who_ask_one_libvirt_at_the_same_time_are_all_answered() {
        let questions = Questions::default();
        let ask = |number: u32| questions.ask(LOCAL.to_owned(), move || Ok(number));
        let (one, two, three) = tokio::join!(ask(1), ask(2), ask(3));
        assert_eq!((one.unwrap(), two.unwrap(), three.unwrap()), (1, 2, 3));
    }

    #[test]
    fn the_target_is_knocked_at_where_its_uri_says() {
        for (uri, expected) in [
            ("qemu+tcp://hv2.cluster.local/system", Some("hv2.cluster.local:16509")),
            ("qemu+tcp://127.0.0.1:16600/system", Some("127.0.0.1:16600")),
            ("qemu+tcp:///system", None),
            ("qemu+tls://hv2.cluster.local/system", Some("hv2.cluster.local:16514")),
            ("qemu+tls://hv2:16600/system?pkipath=/etc/pki/pvc", Some("hv2:16600")),
            ("qemu+unix:///system?socket=/x", None),
        ] {
            assert_eq!(address(uri).as_deref(), expected, "{uri}");
        }
    }
}
