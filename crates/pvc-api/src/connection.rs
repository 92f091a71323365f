//! Connections: only so many at once, in all and of one address, and none that stands still for
//! ever. Whoever has shown a key keeps its place; of the others the oldest of an address, or of the
//! address that has the most, gives way to a new one.

#![allow(clippy::disallowed_methods, reason = "a socket's time is real")]

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::future::{Ready, ready};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Extension;
use axum::middleware::AddExtension;
use axum_server::accept::Accept;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};
use tower::Layer;

use crate::link::Link;
use crate::throttle::group;

/// Time for which a client may refuse to take what it asked for; without a key, time that it may
/// take for all that was ready to be sent. What anybody may ask for is in memory that long.
const STALL: Duration = Duration::from_secs(60);

/// Lets in connections while there are places, and only so many of one address. Where there are no
/// more, a connection whose client has not shown a key gives its own to the next; if there is none,
/// those beyond are closed at once.
#[derive(Clone)]
pub struct Places {
    all: usize,
    each: usize,
    taken: Arc<Mutex<Taken>>,
}

/// The places that are taken, by address and by when they were.
#[derive(Default)]
struct Taken {
    count: usize,
    /// Number of the next connection.
    next: u64,
    of: BTreeMap<IpAddr, BTreeMap<u64, Arc<Link>>>,
}

impl Places {
    pub fn new(all: usize, each: usize) -> Self {
        Places { all, each, taken: Arc::default() }
    }

    /// A place for a client at `address`, if there is one or another gives its own up.
    fn take(&self, address: IpAddr) -> Option<Place> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let address = group(address);
        let own = taken.of.get(&address).map_or(0, BTreeMap::len);
        if own >= self.each && !taken.give_up_one(address) {
            return None;
        }
        if taken.count >= self.all {
            let most = taken.address_with_most()?;
            taken.give_up_one(most);
        }
        let (number, link) = (taken.next, Arc::<Link>::default());
        taken.next += 1;
        taken.count += 1;
        taken.of.entry(address).or_default().insert(number, link.clone());
        Some(Place { number, address, link, taken: self.taken.clone() })
    }
}

impl Taken {
    /// Ends the oldest connection of the address whose client has not shown a key, if there is one.
    fn give_up_one(&mut self, address: IpAddr) -> bool {
        let oldest = self.of.get(&address).and_then(first_unknown);
        match oldest.and_then(|number| self.leave(address, number)) {
            Some(link) => {
                tracing::debug!(%address, "a connection without a key gives its place up");
                link.give_up();
                true
            }
            None => false,
        }
    }

    /// The address with the most connections without a key; of several the one with the oldest.
    fn address_with_most(&self) -> Option<IpAddr> {
        let can_give = self.of.iter().filter_map(|(address, links)| {
            let unknown = links.values().filter(|link| !link.is_known()).count();
            Some((unknown, Reverse(first_unknown(links)?), *address))
        });
        can_give.max().map(|(.., address)| address)
    }

    /// Frees the place, if it was not given to another.
    fn leave(&mut self, address: IpAddr, number: u64) -> Option<Arc<Link>> {
        let links = self.of.get_mut(&address)?;
        let link = links.remove(&number)?;
        if links.is_empty() {
            self.of.remove(&address);
        }
        self.count -= 1;
        Some(link)
    }
}

fn first_unknown(links: &BTreeMap<u64, Arc<Link>>) -> Option<u64> {
    links.iter().find(|(_, link)| !link.is_known()).map(|(number, _)| *number)
}

/// A place, until it is dropped or given to another.
struct Place {
    number: u64,
    address: IpAddr,
    link: Arc<Link>,
    taken: Arc<Mutex<Taken>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.leave(self.address, self.number);
    }
}

impl<S> Accept<TcpStream, S> for Places {
    type Stream = Connection;
    type Service = AddExtension<S, Arc<Link>>;
    type Future = Ready<io::Result<(Connection, Self::Service)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let place = stream.peer_addr().ok().and_then(|peer| self.take(peer.ip()));
        let Some(place) = place else {
            return ready(Err(io::Error::other("too many connections")));
        };
        let service = Extension(place.link.clone()).layer(service);
        let connection =
            stream.set_nodelay(true).map(|()| Connection { stream, stall: Stall::new(), place });
        ready(connection.map(|connection| (connection, service)))
    }
}

/// A connection that gives up a client that does not take its reply, and ends when its place is
/// given to another.
pub struct Connection {
    stream: TcpStream,
    stall: Stall,
    place: Place,
}

/// Time since writes stand still.
struct Stall {
    end: Pin<Box<Sleep>>,
    /// Whether `end` counts.
    runs: bool,
}

impl Stall {
    fn new() -> Self {
        Stall { end: Box::pin(sleep(STALL)), runs: false }
    }

    /// Notes that everything was written, or enough of it.
    fn stop(&mut self) {
        self.runs = false;
    }

    /// Whether writes have stood still for too long; begins with the first that does.
    fn poll_over(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.runs {
            self.runs = true;
            self.end.as_mut().reset(Instant::now() + STALL);
        }
        self.end.as_mut().poll(context)
    }
}

impl Connection {
    /// The error of a connection whose place was given to another.
    fn check_place(&self, context: &Context<'_>) -> io::Result<()> {
        match self.place.link.poll_given_up(context) {
            true => Err(io::ErrorKind::ConnectionAborted.into()),
            false => Ok(()),
        }
    }

    /// The outcome of a write, or an error if writes have stood still for too long.
    fn watched<T>(
        &mut self,
        outcome: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            if self.place.link.is_known() {
                self.stall.stop();
            }
            return outcome;
        }
        self.stall.poll_over(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_place(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_place(context)?;
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watched(outcome, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_place(context)?;
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.watched(outcome, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Asked for when everything that was ready has been written.
        self.stall.stop();
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// A place whose client has shown a key.
    fn of_known(places: &Places, address: IpAddr) -> Option<Place> {
        places.take(address).inspect(|place| place.link.note_key())
    }

    fn is_given_up(place: &Place) -> bool {
        place.link.poll_given_up(&Context::from_waker(std::task::Waker::noop()))
    }

    #[test]
    fn an_address_has_its_share_and_gives_it_back() {
        let places = Places::new(4, 2);
        let (one, other) = (address("192.0.2.1"), address("192.0.2.2"));
        let mapped = address("::ffff:192.0.2.1");
        let taken: Vec<Place> =
            [one, mapped].into_iter().filter_map(|address| of_known(&places, address)).collect();
        assert_eq!(taken.len(), 2);
        assert!(places.take(one).is_none() && places.take(mapped).is_none());
        let others: Vec<Place> = (0..2).filter_map(|_| of_known(&places, other)).collect();
        assert_eq!(others.len(), 2, "what one was refused is there for others");
        assert!(places.take(address("192.0.2.3")).is_none(), "there are no more");
        drop((taken, others));
        assert!(places.take(one).is_some());
        assert!(places.taken.lock().unwrap().of.is_empty(), "who is gone is forgotten");
    }

    #[test]
    fn whoever_never_showed_a_key_gives_the_oldest_place_up_to_the_next_of_its_address() {
        let places = Places::new(100, 3);
        let one = address("127.0.0.1");
        let known = of_known(&places, one).unwrap();
        let idle: Vec<Place> = (0..2).filter_map(|_| places.take(one)).collect();
        let unknown = places.take(address("192.0.2.1")).unwrap();
        let next = places.take(one).expect("the oldest without a key gives way");
        assert!(is_given_up(&idle[0]) && !is_given_up(&idle[1]) && !is_given_up(&known));
        assert!(!is_given_up(&next) && !is_given_up(&unknown));
        drop(idle);
        let again = places.take(one).unwrap();
        assert!(!is_given_up(&next), "a place that was given up is not given back once more");
        assert_eq!(places.taken.lock().unwrap().count, 4);
        drop((known, next, again, unknown));
        assert_eq!(places.taken.lock().unwrap().count, 0);
    }

    #[test]
    fn where_all_places_are_taken_the_address_with_most_of_them_gives_one_up() {
        let places = Places::new(4, 3);
        let (many, few) = (address("192.0.2.1"), address("192.0.2.2"));
        let first = places.take(few).unwrap();
        let held: Vec<Place> = (0..3).filter_map(|_| places.take(many)).collect();
        let next = places.take(address("192.0.2.3")).unwrap();
        assert!(is_given_up(&held[0]) && !is_given_up(&first) && !is_given_up(&next));
        // The one that has but known ones and a newcomer is not the one that has the most.
        held.iter().for_each(|place| place.link.note_key());
        let newest = places.take(many).expect("another gives way");
        assert!(is_given_up(&first) && !is_given_up(&newest), "the oldest of one each");
        for place in [&next, &newest] {
            place.link.note_key();
        }
        assert!(places.take(address("192.0.2.4")).is_none(), "all are in use by known clients");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stall_counts_from_the_first_write_that_stood_still_until_it_is_stopped() {
        let mut stall = Stall::new();
        for _ in 0..3 {
            assert!(futures::poll!(poll_fn(|context| stall.poll_over(context))).is_pending());
            tokio::time::advance(STALL * 2 / 3).await;
            stall.stop();
        }
        assert!(futures::poll!(poll_fn(|context| stall.poll_over(context))).is_pending());
        tokio::time::advance(STALL * 2 / 3).await;
        assert!(futures::poll!(poll_fn(|context| stall.poll_over(context))).is_pending());
        tokio::time::advance(STALL / 2).await;
        assert!(futures::poll!(poll_fn(|context| stall.poll_over(context))).is_ready());
    }
}
