//! Request bodies: never more than allowed, and what is too much is refused before it has come.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{ApiError, Result};

/// Bytes of bodies that may be in memory at once, of all requests together.
#[derive(Debug)]
pub struct Budget(Arc<Semaphore>);

impl Budget {
    pub fn new(bytes: usize) -> Self {
        Budget(Arc::new(Semaphore::new(bytes)))
    }

    /// The share of a request of which nothing has come yet.
    pub fn share(&self) -> Share {
        Share { of: self.0.clone(), taken: None }
    }
}

/// Part of a budget that the body of one request has, until it is dropped.
#[derive(Debug)]
pub struct Share {
    of: Arc<Semaphore>,
    taken: Option<OwnedSemaphorePermit>,
}

/// Time that a body waits for what others have of the budget, and seconds after which it is worth
/// asking again.
const ROOM_TIME: Duration = Duration::from_secs(3);
const RETRY_AFTER: u64 = 5;

impl Share {
    /// Takes so many bytes more, as soon as they are free.
    async fn take(&mut self, bytes: usize) -> Result<()> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let taking = self.of.clone().acquire_many_owned(bytes);
        let taken = tokio::time::timeout(ROOM_TIME, taking).await.map_err(|_| no_room())?;
        let more = taken.expect("nobody closes a budget");
        match &mut self.taken {
            Some(taken) => taken.merge(more),
            None => self.taken = Some(more),
        }
        Ok(())
    }
}

fn no_room() -> ApiError {
    let message = "the bodies of other requests take all the memory that there is for them";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).retry_after(RETRY_AFTER)
}

/// The whole body, if it has at most `limit` bytes, which are taken from the budget as they come.
pub async fn read(body: Body, limit: usize, share: &mut Share) -> Result<Bytes> {
    let mut stream = body.into_data_stream();
    let mut whole = BytesMut::new();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk
            .map_err(|_| ApiError::refused("the request ended before its body was complete"))?;
        if whole.len() + chunk.len() > limit {
            linger(stream);
            return Err(too_large(limit));
        }
        if let Err(refusal) = share.take(chunk.len()).await {
            linger(stream);
            return Err(refusal);
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(whole.freeze())
}

/// The request, or a refusal if it announces a body larger than `limit`.
pub fn check_announced(request: Request, limit: usize) -> Result<Request> {
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit as u64) {
        linger(request.into_body().into_data_stream());
        return Err(too_large(limit));
    }
    Ok(request)
}

/// Lets go of a body that is not read.
pub fn turn_away(body: Body) {
    linger(body.into_data_stream());
}

/// Number of bytes of a refused body that are still taken, and for how long.
const LINGER_BYTES: usize = 4 << 20;
const LINGER_TIME: Duration = Duration::from_secs(2);

/// Takes a little more of a body that was refused. A connection that is closed on unread bytes is
/// reset, and a client that is still sending would lose the reply that tells it why.
pub fn linger(mut stream: BodyDataStream) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    runtime.spawn(tokio::time::timeout(LINGER_TIME, async move {
        let mut taken = 0;
        while let Some(Ok(chunk)) = stream.next().await {
            taken += chunk.len();
            if taken > LINGER_BYTES {
                return;
            }
        }
    }));
}

pub fn too_large(limit: usize) -> ApiError {
    let shown = if limit < 1 << 20 {
        format!("{} KiB", limit >> 10)
    } else {
        format!("{} MiB", limit >> 20)
    };
    let message = format!("the request body is larger than {shown}");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
}

pub fn too_slow(time: Duration) -> ApiError {
    let message = format!("the request body did not arrive within {} s", time.as_secs());
    ApiError::new(StatusCode::REQUEST_TIMEOUT, message)
}

#[cfg(test)]
mod tests {
    use pvc_ports::Clock;
    use pvc_testkit::TokioClock;

    use super::*;

    fn body(bytes: usize) -> Body {
        Body::from(vec![b'x'; bytes])
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_beyond_the_budget_is_refused_unless_others_are_gone_in_time() {
        let budget = Budget::new(100);
        let (mut first, mut second) = (budget.share(), budget.share());
        assert_eq!(read(body(60), 80, &mut first).await.unwrap().len(), 60);
        let refusal = read(body(60), 80, &mut second).await.unwrap_err();
        assert_eq!((refusal.status.as_u16(), refusal.retry_after), (503, Some(RETRY_AFTER)));
        assert_eq!(read(body(40), 80, &mut second).await.unwrap().len(), 40);
        drop(second);
        let leaves = async {
            TokioClock::new().sleep(ROOM_TIME / 2).await;
            drop(first);
        };
        let mut third = budget.share();
        let (read, ()) = futures::join!(read(body(60), 80, &mut third), leaves);
        assert_eq!(read.unwrap().len(), 60);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_refused_gives_back_what_has_come_of_it() {
        let budget = Budget::new(100);
        for limit in [80, 200] {
            let pieces = [60, 60].map(|bytes| Ok::<_, std::io::Error>(vec![b'x'; bytes]));
            let long = Body::from_stream(futures::stream::iter(pieces));
            read(long, limit, &mut budget.share()).await.unwrap_err();
            assert_eq!(budget.0.available_permits(), 100);
        }
    }
}
