//! Requests to the kernel that may stand still, each on a thread of its own.
//!
//! A request about links waits for the kernel's lock on all of them, which the driver of a broken
//! card may hold for minutes, and whoever waits cannot be interrupted; for some files below
//! `/proc/sys/net` and `/sys/class/net` the kernel tries again and again instead, and takes a
//! processor for that. On a thread of the daemon's tasks the keepalive would wait with it.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};

/// The most requests that may be out at once. Usually they take some microseconds.
const MOST: usize = 128;

static PLACES: Semaphore = Semaphore::const_new(MOST);

/// The request was not answered in time, or too many others are not.
#[derive(Debug)]
pub struct Stuck;

/// Begins `work` on a thread of its own, whatever comes of it.
pub fn begin(work: impl FnOnce() + Send + 'static) -> Result<(), Stuck> {
    let place = PLACES.try_acquire().map_err(|_| Stuck)?;
    let started = thread::Builder::new().name("kernel".to_owned()).spawn(move || {
        work();
        drop(place);
    });
    started.map(drop).map_err(|error| {
        tracing::warn!(%error, "no thread could be started to ask the kernel");
        Stuck
    })
}

/// Does `work` on a thread of its own, and returns what came of it within `limit`. Work that takes
/// longer is carried out all the same, some time.
pub async fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<io::Result<T>, Stuck> {
    let (answer, answered) = oneshot::channel();
    begin(move || _ = answer.send(work()))?;
    match tokio::time::timeout(limit, answered).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(_)) | Err(_) => Err(Stuck),
    }
}

/// The last answer to a question that is asked again and again, and that one thread asks at a time.
#[derive(Debug)]
pub struct Asked<T> {
    inner: Arc<Mutex<Inner<T>>>,
}

#[derive(Debug)]
struct Inner<T> {
    last: T,
    out: Option<mpsc::Receiver<T>>,
}

impl<T> Clone for Asked<T> {
    fn clone(&self) -> Self {
        Asked { inner: self.inner.clone() }
    }
}

impl<T: Default> Default for Asked<T> {
    fn default() -> Self {
        Asked { inner: Arc::new(Mutex::new(Inner { last: T::default(), out: None })) }
    }
}

impl<T: Clone + Send + 'static> Asked<T> {
    /// Asks, waits for `limit` at most, and returns the newest answer that there is. While an
    /// earlier question is out none is asked, and nobody waits.
    pub fn newest(&self, limit: Duration, ask: impl FnOnce() -> T + Send + 'static) -> T {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let (out, limit) = match inner.out.take() {
            Some(out) => (out, Duration::ZERO),
            None => {
                let (answer, out) = mpsc::channel();
                if begin(move || _ = answer.send(ask())).is_err() {
                    return inner.last.clone();
                }
                (out, limit)
            }
        };
        match out.recv_timeout(limit) {
            Ok(answer) => inner.last = answer,
            Err(RecvTimeoutError::Timeout) => inner.out = Some(out),
            Err(RecvTimeoutError::Disconnected) => {}
        }
        inner.last.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_that_is_not_answered_is_asked_once_and_waited_for_once() {
        let asked = Asked::<u32>::default();
        assert_eq!(asked.newest(Duration::from_secs(30), || 1), 1);
        let (go, wait) = mpsc::channel::<()>();
        let stuck = move || {
            let _ = wait.recv();
            2
        };
        assert_eq!(asked.newest(Duration::from_millis(1), stuck), 1);
        for _ in 0..100 {
            assert_eq!(asked.newest(Duration::from_secs(600), || panic!("one is out")), 1);
        }
        go.send(()).unwrap();
        while asked.newest(Duration::from_secs(30), || 2) != 2 {}
        assert_eq!(asked.newest(Duration::from_secs(30), || 3), 3);
    }

    #[tokio::test]
    async fn a_request_that_stands_still_ends_nobody_elses_work() {
        let (go, wait) = mpsc::channel::<()>();
        let stuck = within(Duration::from_millis(1), move || {
            let _ = wait.recv();
            Ok(())
        });
        assert!(stuck.await.is_err());
        assert_eq!(within(Duration::from_secs(30), || Ok(7)).await.unwrap().unwrap(), 7);
        go.send(()).unwrap();
    }

    #[test]
    fn there_is_a_limit_to_what_is_out() {
        let all = PLACES.try_acquire_many(MOST as u32).unwrap();
        assert!(begin(|| ()).is_err());
        drop(all);
        assert!(begin(|| ()).is_ok());
    }
}
