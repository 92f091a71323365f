//! Connections: only so many at once, and none that stands still for ever.

#![allow(clippy::disallowed_methods, reason = "a socket's time is real")]

use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum_server::accept::Accept;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// How long a client may refuse to take what it asked for.
const STALL: Duration = Duration::from_secs(60);

/// Lets in connections while there are places; those beyond are closed at once.
#[derive(Clone)]
pub struct Places(Arc<Semaphore>);

impl Places {
    pub fn new(places: usize) -> Self {
        Places(Arc::new(Semaphore::new(places)))
    }
}

impl<S> Accept<TcpStream, S> for Places {
    type Stream = Connection;
    type Service = S;
    type Future = Ready<io::Result<(Connection, S)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let Ok(place) = self.0.clone().try_acquire_owned() else {
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
    _place: OwnedSemaphorePermit,
}

impl Connection {
    /// The outcome of a write, or an error if writes have stood still for too long.
    fn watched<T>(&mut self, outcome: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
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
