use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

/// Gate that the calls of one process pass, so that a test can have them stop at one of them: as
/// the calls of a process that stands still there, or has died, if the gate is never opened again.
pub struct Gate {
    passed: AtomicU64,
    closes_at: u64,
    state: watch::Sender<State>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Untouched,
    Closed,
    Opened,
}

impl Gate {
    /// Makes a gate that closes before its call number `call`, counted from 0.
    pub fn closing_at(call: u64) -> Arc<Self> {
        let state = watch::Sender::new(State::Untouched);
        Arc::new(Gate { passed: AtomicU64::new(0), closes_at: call, state })
    }

    /// Returns when a call may go on.
    pub async fn pass(&self) {
        if self.passed.fetch_add(1, Ordering::SeqCst) < self.closes_at {
            return;
        }
        self.state.send_if_modified(|state| {
            let closes = *state == State::Untouched;
            if closes {
                *state = State::Closed;
            }
            closes
        });
        let mut state = self.state.subscribe();
        let opened = state.wait_for(|state| *state == State::Opened).await;
        opened.expect("the gate itself has the sender");
    }

    /// Whether calls have come to where it closes.
    pub fn is_closed(&self) -> bool {
        *self.state.borrow() == State::Closed
    }

    /// Lets pass what stands before it, and everything from now on.
    pub fn open(&self) {
        self.state.send_replace(State::Opened);
    }
}
