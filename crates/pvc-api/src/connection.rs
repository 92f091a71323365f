//! Connections: only so many at once, in all and of one address, and none that stands still for
//! ever.

#![allow(clippy::disallowed_methods, reason = "a socket's time is real")]

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::future::{Ready, ready};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum_server::accept::Accept;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

use crate::throttle::group;

/// Time for which a client may refuse to take what it asked for.
const STALL: Duration = Duration::from_secs(60);

/// Lets in connections while there are places, and only so many of one address; those beyond are
/// closed at once.
#[derive(Clone)]
pub struct Places {
    all: Arc<Semaphore>,
    each: usize,
    taken: Taken,
}

/// Number of places that each address has taken.
type Taken = Arc<Mutex<BTreeMap<IpAddr, usize>>>;

impl Places {
    pub fn new(all: usize, each: usize) -> Self {
        Places { all: Arc::new(Semaphore::new(all)), each, taken: Taken::default() }
    }

    /// A place for a client at `address`, if there is one.
    fn take(&self, address: IpAddr) -> Option<Place> {
        let place = self.all.clone().try_acquire_owned().ok()?;
        let address = group(address);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.entry(address).or_default();
        if *count >= self.each {
            return None;
        }
        *count += 1;
        Some(Place { _of_all: place, address, taken: self.taken.clone() })
    }
}

/// A place, until it is dropped.
struct Place {
    _of_all: OwnedSemaphorePermit,
    address: IpAddr,
    taken: Taken,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut count) = taken.entry(self.address) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

impl<S> Accept<TcpStream, S> for Places {
    type Stream = Connection;
    type Service = S;
    type Future = Ready<io::Result<(Connection, S)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let place = stream.peer_addr().ok().and_then(|peer| self.take(peer.ip()));
        let Some(place) = place else {
            return ready(Err(io::Error::other("too many connections")));
        };
        let connection = stream.set_nodelay(true).map(|()| Connection {
            stream,
            stall: Box::pin(sleep(STALL)),
            stalled: false,
            _place: place,
        });
        ready(connection.map(|connection| (connection, service)))
    }
}

/// A connection that gives up a client that does not take its reply.
pub struct Connection {
    stream: TcpStream,
    stall: Pin<Box<Sleep>>,
    /// Whether the last write did not get on; `stall` runs since then.
    stalled: bool,
    _place: Place,
}

impl Connection {
    /// The outcome of a write, or an error if writes have stood still for too long.
    fn watched<T>(
        &mut self,
        outcome: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stalled = false;
            return outcome;
        }
        if !self.stalled {
            self.stalled = true;
            self.stall.as_mut().reset(Instant::now() + STALL);
        }
        match self.stall.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watched(outcome, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.watched(outcome, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_share_and_gives_it_back() {
        let places = Places::new(4, 2);
        let (one, other) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let mapped = "::ffff:192.0.2.1".parse().unwrap();
        let taken: Vec<Place> =
            [one, mapped].into_iter().filter_map(|address| places.take(address)).collect();
        assert_eq!(taken.len(), 2);
        assert!(places.take(one).is_none() && places.take(mapped).is_none());
        let others: Vec<Place> = (0..2).filter_map(|_| places.take(other)).collect();
        assert_eq!(others.len(), 2, "what one was refused is there for others");
        assert!(places.take("192.0.2.3".parse().unwrap()).is_none(), "there are no more");
        drop((taken, others));
        assert!(places.take(one).is_some());
        assert!(places.taken.lock().unwrap().len() <= 1, "who is gone is forgotten");
    }
}
