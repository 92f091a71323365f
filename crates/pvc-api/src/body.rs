//! Request bodies: never more than allowed, and what is too much is refused before it has come.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use pvc_model::role::Role;
use tokio::sync::Notify;

use crate::auth::Caller;
use crate::error::{ApiError, Result};

/// Bytes of bodies that may be in memory at once: so many for all requests together, half of them
/// for those of one caller, and a quarter for those of all who may only read.
#[derive(Debug)]
pub struct Budget(Arc<Room>);

impl Budget {
    pub fn new(bytes: usize) -> Self {
        Budget(Arc::new(Room { most: bytes, taken: Mutex::default(), freed: Notify::new() }))
    }

    /// The share of a caller's request of which nothing has come yet.
    pub fn share(&self, caller: &Caller) -> Share {
        Share { of: self.0.clone(), caller: caller.clone(), taken: 0 }
    }
}

#[derive(Debug)]
struct Room {
    most: usize,
    taken: Mutex<Taken>,
    /// Wakes all who wait: a small body does not wait because a large one before it does.
    freed: Notify,
}

/// Bytes that are taken of a budget.
#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_readers: usize,
    by_each: BTreeMap<Arc<str>, usize>,
}

impl Room {
    /// Takes so many bytes if they are free, and the caller may have them.
    fn take(&self, caller: &Caller, bytes: usize) -> bool {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken.by_each.get(&caller.description).copied().unwrap_or(0);
        let by_readers = if is_reader(caller) { taken.by_readers + bytes } else { 0 };
        if taken.all + bytes > self.most
            || own + bytes > self.most.div_ceil(2)
            || by_readers > self.most.div_ceil(4)
        {
            return false;
        }
        taken.all += bytes;
        if is_reader(caller) {
            taken.by_readers += bytes;
        }
        *taken.by_each.entry(caller.description.clone()).or_default() += bytes;
        true
    }

    fn give_back(&self, caller: &Caller, bytes: usize) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.all -= bytes;
        if is_reader(caller) {
            taken.by_readers -= bytes;
        }
        if let Some(own) = taken.by_each.get_mut(&caller.description) {
            *own -= bytes;
            if *own == 0 {
                taken.by_each.remove(&caller.description);
            }
        }
        drop(taken);
        self.freed.notify_waiters();
    }
}

fn is_reader(caller: &Caller) -> bool {
    caller.role <= Role::Reader
}

/// Part of a budget that the body of one request has, until it is dropped.
#[derive(Debug)]
pub struct Share {
    of: Arc<Room>,
    caller: Caller,
    taken: usize,
}

/// Time that a body waits for what others have of the budget, and seconds after which it is worth
/// asking again.
const ROOM_TIME: Duration = Duration::from_secs(3);
const RETRY_AFTER: u64 = 5;

impl Share {
    /// The share of a body that has no part in a budget, and is bounded by its limit alone.
    pub fn of_no_budget() -> Self {
        Budget::new(usize::MAX).share(&Caller::anybody())
    }

    /// Takes so many bytes more, as soon as they are free.
    async fn take(&mut self, bytes: usize) -> Result<()> {
        let taking = async {
            loop {
                // Before the look: what is freed after it is noticed.
                let freed = self.of.freed.notified();
                if self.of.take(&self.caller, bytes) {
                    return;
                }
                freed.await;
            }
        };
        tokio::time::timeout(ROOM_TIME, taking).await.map_err(|_| no_room())?;
        self.taken += bytes;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.taken > 0 {
            self.of.give_back(&self.caller, self.taken);
        }
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

    fn caller(name: &str, role: Role) -> Caller {
        Caller { description: name.into(), role }
    }

    /// The share of a request of an administrator.
    fn share(budget: &Budget, name: &str) -> Share {
        budget.share(&caller(name, Role::Administrator))
    }

    fn taken(budget: &Budget) -> usize {
        budget.0.taken.lock().unwrap().all
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_beyond_the_budget_is_refused_unless_others_are_gone_in_time() {
        let budget = Budget::new(100);
        let [mut first, mut second, mut third] = ["a", "b", "c"].map(|name| share(&budget, name));
        assert_eq!(read(body(50), 80, &mut first).await.unwrap().len(), 50);
        assert_eq!(read(body(30), 80, &mut second).await.unwrap().len(), 30);
        let refusal = read(body(40), 80, &mut third).await.unwrap_err();
        assert_eq!((refusal.status.as_u16(), refusal.retry_after), (503, Some(RETRY_AFTER)));
        assert_eq!(read(body(20), 80, &mut third).await.unwrap().len(), 20);
        drop(third);
        let leaves = async {
            TokioClock::new().sleep(ROOM_TIME / 2).await;
            drop(first);
        };
        let mut fourth = share(&budget, "d");
        let (read, ()) = futures::join!(read(body(40), 80, &mut fourth), leaves);
        assert_eq!(read.unwrap().len(), 40);
    }

    #[tokio::test(start_paused = true)]
    async fn one_caller_does_not_get_all_of_the_budget() {
        let budget = Budget::new(100);
        let mut first = share(&budget, "a");
        read(body(30), 80, &mut first).await.unwrap();
        let mut second = share(&budget, "a");
        read(body(30), 80, &mut second).await.unwrap_err();
        read(body(20), 80, &mut second).await.unwrap();
        read(body(50), 80, &mut share(&budget, "b")).await.unwrap();
        drop(first);
        read(body(30), 80, &mut second).await.unwrap();
        drop(second);
        assert_eq!(taken(&budget), 0);
        assert!(budget.0.taken.lock().unwrap().by_each.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn all_who_may_only_read_together_get_a_quarter_of_the_budget() {
        let budget = Budget::new(100);
        let [mut first, mut second] =
            ["a", "b"].map(|name| budget.share(&caller(name, Role::Reader)));
        read(body(15), 80, &mut first).await.unwrap();
        read(body(15), 80, &mut second).await.unwrap_err();
        read(body(10), 80, &mut second).await.unwrap();
        let operator = caller("c", Role::Operator);
        read(body(50), 80, &mut budget.share(&operator)).await.unwrap();
        drop(first);
        read(body(15), 80, &mut second).await.unwrap();
        drop(second);
        assert_eq!(budget.0.taken.lock().unwrap().by_readers, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_without_a_budget_is_bounded_by_its_limit_alone() {
        read(body(80), 80, &mut Share::of_no_budget()).await.unwrap();
        let refusal = read(body(81), 80, &mut Share::of_no_budget()).await.unwrap_err();
        assert_eq!(refusal.status, 413);
    }

    #[tokio::test(start_paused = true)]
    async fn a_small_body_does_not_wait_for_the_room_of_a_large_one_before_it() {
        let budget = Budget::new(100);
        let (mut first, mut second) = (share(&budget, "a"), share(&budget, "b"));
        read(body(50), 80, &mut first).await.unwrap();
        read(body(20), 80, &mut second).await.unwrap();
        let (mut large, mut small) = (share(&budget, "c"), share(&budget, "d"));
        let behind = async {
            let clock = TokioClock::new();
            clock.sleep(ROOM_TIME / 2).await;
            let begun = clock.monotonic();
            read(body(3), 80, &mut small).await.unwrap();
            assert_eq!(clock.monotonic(), begun);
        };
        let (refused, ()) = futures::join!(read(body(40), 80, &mut large), behind);
        assert_eq!(refused.unwrap_err().status, 503);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_refused_gives_back_what_has_come_of_it() {
        let budget = Budget::new(200);
        for limit in [80, 200] {
            let pieces = [60, 60].map(|bytes| Ok::<_, std::io::Error>(vec![b'x'; bytes]));
            let long = Body::from_stream(futures::stream::iter(pieces));
            read(long, limit, &mut share(&budget, "a")).await.unwrap_err();
            assert_eq!(taken(&budget), 0);
        }
    }
}
