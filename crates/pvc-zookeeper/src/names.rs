//! Addresses of the servers by their names, also while nobody can say them.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Time for which a connection waits for an answer where the addresses of before are known: a name
/// server that is away answers in half a minute, if at all, and a session does not last as long.
const ANSWER: Duration = Duration::from_secs(1);

type Answer = io::Result<Vec<SocketAddr>>;
type LookUp = dyn Fn(String) -> BoxFuture<'static, Answer> + Send + Sync;

/// The addresses that each server had when its name was last looked up.
#[derive(Clone)]
pub(crate) struct Names {
    look_up: Arc<LookUp>,
    known: Arc<Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<Known>>>>>,
}

#[derive(Default)]
struct Known {
    addresses: Vec<SocketAddr>,
    /// The question that is out: one at a time, however long it takes.
    asked: Option<JoinHandle<Answer>>,
}

impl Default for Names {
    fn default() -> Self {
        Names::by(|server| {
            Box::pin(async move { Ok(tokio::net::lookup_host(server).await?.collect()) })
        })
    }
}

impl Names {
    fn by(look_up: impl Fn(String) -> BoxFuture<'static, Answer> + Send + Sync + 'static) -> Self {
        Names { look_up: Arc::new(look_up), known: Arc::default() }
    }

    /// Returns the addresses of `server`, which is `host:port`.
    ///
    /// # Errors
    /// If nobody knows them, and nobody did.
    pub(crate) async fn of(&self, server: &str) -> Answer {
        let known = {
            let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            all.entry(server.to_owned()).or_default().clone()
        };
        let mut known = known.lock().await;
        // An answer that nobody waited for may be of long ago.
        if known.asked.as_ref().is_some_and(JoinHandle::is_finished)
            && let Some(asked) = known.asked.take()
            && let Ok(Ok(addresses)) = asked.await
            && !addresses.is_empty()
        {
            known.addresses = addresses;
        }
        let is_out = known.asked.is_some();
        let wait = match known.addresses.is_empty() {
            true => Duration::MAX,
            // It was waited for before.
            false if is_out => Duration::ZERO,
            false => ANSWER,
        };
        let task =
            known.asked.get_or_insert_with(|| tokio::spawn((self.look_up)(server.to_owned())));
        let Ok(answered) = timeout(wait, task).await else {
            tracing::debug!(server, "its name is not resolved; its last addresses are used");
            return Ok(known.addresses.clone());
        };
        known.asked = None;
        match answered.unwrap_or_else(|error| Err(io::Error::other(error))) {
            Ok(addresses) if !addresses.is_empty() => known.addresses = addresses,
            Err(error) if known.addresses.is_empty() => return Err(error),
            Err(error) => {
                tracing::debug!(server, %error, "its name is not resolved; its last addresses are \
                                         used");
            }
            Ok(_) if known.addresses.is_empty() => {
                return Err(io::Error::new(io::ErrorKind::NotFound, "its name has no address"));
            }
            Ok(_) => {}
        }
        Ok(known.addresses.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 2181))
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_whose_name_nobody_says_any_more_is_where_it_was() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let names = Names::by(move |_| {
            let number = count.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move {
                match number {
                    0 => Ok(vec![address(1)]),
                    1 => Err(io::Error::other("no name server")),
                    2 => Ok(Vec::new()),
                    3 => Ok(vec![address(2)]),
                    _ => std::future::pending().await,
                }
            })
        });
        for expected in [1, 1, 1, 2, 2, 2, 2] {
            assert_eq!(names.of("hv1:2181").await.unwrap(), [address(expected)]);
        }
        assert_eq!(asked.load(Ordering::Relaxed), 5, "one question is out");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_came_when_nobody_waited_is_not_taken_for_one_of_now() {
        let (answer, answered) = tokio::sync::oneshot::channel();
        let (asked, answered) = (Arc::new(AtomicUsize::new(0)), Mutex::new(Some(answered)));
        let count = asked.clone();
        let names = Names::by(move |_| {
            let number = count.fetch_add(1, Ordering::Relaxed);
            let late = if number == 1 { answered.lock().unwrap().take() } else { None };
            Box::pin(async move {
                match late {
                    Some(late) => Ok(late.await.unwrap()),
                    None => Ok(vec![address(number as u8)]),
                }
            })
        });
        for expected in [0, 0, 0] {
            assert_eq!(names.of("hv1:2181").await.unwrap(), [address(expected)]);
        }
        answer.send(vec![address(1)]).unwrap();
        tokio::time::sleep(Duration::from_secs(1_000_000)).await;
        assert_eq!(names.of("hv1:2181").await.unwrap(), [address(2)]);
        assert_eq!(asked.load(Ordering::Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_never_had_an_address_is_an_error() {
        let names = Names::by(|_| Box::pin(async { Err(io::Error::other("no such name")) }));
        assert!(names.of("hv1:2181").await.is_err());
        let names = Names::by(|_| Box::pin(async { Ok(Vec::new()) }));
        assert!(names.of("hv1:2181").await.is_err());
    }
}
