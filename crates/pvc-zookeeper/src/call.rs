//! A request between the caller, who may give up, and the session, which may lose the
//! connection. Both always know whether it was sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use pvc_ports::Access;
use tokio::sync::oneshot;
use tokio::time::timeout;

const WAITING: u8 = 0;
const SENT: u8 = 1;
const GIVEN_UP: u8 = 2;

/// Reason for which a request has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallError {
    /// The server refused with this code.
    Code(i32),
    /// The request was never sent, and will not be.
    NotSent,
    /// The request was sent; nobody knows what became of it.
    Lost,
    Expired,
    Closed,
}

/// Answer of a server to a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The change that the request made, or the newest one that the server knew.
    pub(crate) zxid: i64,
    /// The session in which it was made.
    pub(crate) session: i64,
    pub(crate) body: Bytes,
}

/// The session's end of a request.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) frame: BytesMut,
    /// Whether it may be sent again after a connection was lost: it changes nothing.
    pub(crate) repeatable: bool,
    /// Access to what the request creates, if it creates something.
    pub(crate) creates_for: Option<Access>,
    state: Arc<AtomicU8>,
    answer: oneshot::Sender<Result<Answer, CallError>>,
}

/// The caller's end. Dropping it takes a request back that has not been sent.
#[derive(Debug)]
pub(crate) struct Pending {
    state: Arc<AtomicU8>,
    answer: oneshot::Receiver<Result<Answer, CallError>>,
}

pub(crate) fn call(frame: BytesMut, repeatable: bool) -> (Call, Pending) {
    let state = Arc::new(AtomicU8::new(WAITING));
    let (sender, receiver) = oneshot::channel();
    let call = Call { frame, repeatable, creates_for: None, state: state.clone(), answer: sender };
    (call, Pending { state, answer: receiver })
}

impl Call {
    /// Claims the request for sending. False: the caller gave up, and it must not be sent.
    pub(crate) fn claim(&self) -> bool {
        self.state.compare_exchange(WAITING, SENT, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Puts the call, after a lost connection, back to waiting, if the caller still is.
    pub(crate) fn unclaim(&self) -> bool {
        self.state.compare_exchange(SENT, WAITING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    pub(crate) fn answer(self, result: Result<Answer, CallError>) {
        let _ = self.answer.send(result); // a caller that gave up wants no answer
    }
}

impl Pending {
    pub(crate) async fn wait(mut self, time_limit: Duration) -> Result<Answer, CallError> {
        match timeout(time_limit, &mut self.answer).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(self.give_up(CallError::Closed)),
            Err(_) => Err(self.give_up(CallError::NotSent)),
        }
    }

    /// Gives the request up. Returns what the caller may conclude: `unsent`, or that nobody knows.
    fn give_up(&self, unsent: CallError) -> CallError {
        match self.state.swap(GIVEN_UP, Ordering::AcqRel) {
            SENT => CallError::Lost,
            _ => unsent,
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.state.store(GIVEN_UP, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_request_that_was_not_sent_in_time_is_never_sent() {
        let (call, pending) = call(BytesMut::new(), false);
        assert_eq!(pending.wait(Duration::from_secs(1)).await, Err(CallError::NotSent));
        assert!(!call.claim());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_was_sent_and_not_answered_in_time_is_lost() {
        let (call, pending) = call(BytesMut::new(), false);
        assert!(call.claim());
        assert_eq!(pending.wait(Duration::from_secs(1)).await, Err(CallError::Lost));
        assert!(!call.unclaim());
    }
}
