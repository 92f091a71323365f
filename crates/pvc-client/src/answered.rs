//! Connections on which an answer is read that comes before the request has gone.
//!
//! A server that refuses a file in its midst answers and closes the connection. Writing then fails,
//! but the answer is there to be read.

use std::io::{self, ErrorKind, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ureq::config::Config;
use ureq::unversioned::resolver::DefaultResolver;
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, DefaultConnector, NextTimeout, Transport,
};
use ureq::{Agent, Error};

/// Mark that the other end takes no more of a request.
#[derive(Debug, Clone, Default)]
pub struct Answered(Arc<AtomicBool>);

impl Answered {
    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// The body of a request, of so many bytes if that is known, which is not read any more once
    /// the mark is set.
    pub fn unless<R: Read>(&self, body: R, length: Option<u64>) -> Unless<R> {
        Unless { body, answered: self.clone(), left: length }
    }
}

/// An agent that sets the mark, and reads the answer, where it would fail to send.
pub fn agent(config: Config, answered: Answered) -> Agent {
    let connector = DefaultConnector::default().chain(Listening(answered));
    Agent::with_parts(config, connector, DefaultResolver::default())
}

/// A body that goes nowhere once there is an answer.
pub struct Unless<R> {
    body: R,
    answered: Answered,
    /// Number of bytes to its announced end.
    left: Option<u64>,
}

impl<R: Read> Read for Unless<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = match (self.answered.is_set(), self.left) {
            (false, _) => self.body.read(into)?,
            (true, None) => 0,
            // As many bytes as were announced, whatever they are: nobody gets them.
            (true, Some(left)) => into.len().min(usize::try_from(left).unwrap_or(usize::MAX)),
        };
        self.left = self.left.map(|left| left.saturating_sub(read as u64));
        Ok(read)
    }
}

#[derive(Debug)]
struct Listening(Answered);

impl<In: Transport> Connector<In> for Listening {
    type Out = Connection<In>;

    fn connect(
        &self,
        _: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Connection<In>>, Error> {
        Ok(chained.map(|inner| Connection { inner, answered: self.0.clone() }))
    }
}

#[derive(Debug)]
struct Connection<T> {
    inner: T,
    answered: Answered,
}

impl<T: Transport> Transport for Connection<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        if self.answered.is_set() {
            return Ok(());
        }
        match self.inner.transmit_output(amount, timeout) {
            Err(Error::Io(error)) if is_closed(&error) => {
                self.answered.0.store(true, Ordering::Relaxed);
                Ok(())
            }
            sent => sent,
        }
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.inner.await_input(timeout)
    }

    fn is_open(&mut self) -> bool {
        !self.answered.is_set() && self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}

fn is_closed(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    matches!(error.kind(), BrokenPipe | ConnectionReset | ConnectionAborted)
}
