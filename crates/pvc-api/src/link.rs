//! A connection, as its requests and those who wait for its place know it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Context;

use futures::task::AtomicWaker;

/// Knowledge of a connection: whether its client has ever shown a key, and whether its place was
/// given to another.
#[derive(Debug, Default)]
pub struct Link {
    is_known: AtomicBool,
    is_given_up: AtomicBool,
    waker: AtomicWaker,
}

impl Link {
    /// Notes that the client has shown a key: from now on the connection keeps its place.
    pub fn note_key(&self) {
        self.is_known.store(true, Ordering::Relaxed);
    }

    pub fn is_known(&self) -> bool {
        self.is_known.load(Ordering::Relaxed)
    }

    /// Has the connection end, also one on which nothing goes.
    pub fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Whether the connection is to end. If not, the task is woken when it is.
    pub fn poll_given_up(&self, context: &Context<'_>) -> bool {
        self.waker.register(context.waker());
        self.is_given_up.load(Ordering::Acquire)
    }
}
