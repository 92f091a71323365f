//! A body that is taken ahead of whoever reads it: some of it at once, and then more each second,
//! so that its sender sees that somebody is there.
//!
//! The client of PVC 1.0.3 gives up a server that takes nothing for two seconds in the midst of a
//! file, and a storage may need longer to begin a volume, or for a write. Its sending goes on when
//! a third of its system's buffer is free, which has 4 MiB at most by default.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use futures::stream::{self, Stream};
use futures::{FutureExt, StreamExt};
use pvc_ports::Clock;
use tokio::sync::{Notify, mpsc};

/// Number of bytes that are taken as fast as they come, and as many more each second.
const STEP: usize = 1 << 20;
const EVERY: Duration = Duration::from_secs(1);

/// The most bytes that wait for their reader, but for the last piece.
pub(crate) const MOST: usize = 24 << 20;

/// The same body, taken ahead; where the client asks whether it may send, from when the first of
/// it is read.
pub fn taken(headers: &HeaderMap, body: Body, clock: Arc<dyn Clock>) -> Body {
    let from = body.into_data_stream();
    if headers.contains_key(header::EXPECT) {
        let begins = async move { pieces(begin(from, clock)) };
        return Body::from_stream(begins.into_stream().flatten());
    }
    Body::from_stream(pieces(begin(from, clock)))
}

/// A piece of a body.
enum Part {
    Bytes(Bytes),
    /// Nothing follows.
    End,
}

type Taken = std::result::Result<Part, axum::Error>;

/// Bytes that were taken and not read yet.
#[derive(Debug, Default)]
struct Waiting {
    bytes: AtomicUsize,
    fewer: Notify,
}

impl Waiting {
    fn are(&self, at_least: usize) -> bool {
        self.bytes.load(Ordering::Relaxed) >= at_least
    }

    async fn until_fewer(&self, than: usize) {
        while self.are(than) {
            self.fewer.notified().await;
        }
    }
}

struct Reader {
    parts: mpsc::UnboundedReceiver<Taken>,
    waiting: Arc<Waiting>,
    is_over: bool,
}

fn begin(from: BodyDataStream, clock: Arc<dyn Clock>) -> Reader {
    // What bounds it is the number of bytes.
    let (to, parts) = mpsc::unbounded_channel();
    let waiting = Arc::<Waiting>::default();
    let taking = take(from, to.clone(), waiting.clone(), clock);
    tokio::spawn(async move {
        tokio::select! {
            biased;
            () = to.closed() => {}
            () = taking => {}
        }
    });
    Reader { parts, waiting, is_over: false }
}

async fn take(
    mut from: BodyDataStream,
    to: mpsc::UnboundedSender<Taken>,
    waiting: Arc<Waiting>,
    clock: Arc<dyn Clock>,
) {
    let mut limit = STEP;
    loop {
        waiting.until_fewer(MOST).await;
        if !waiting.are(STEP) {
            limit = STEP;
        }
        while waiting.are(limit) {
            tokio::select! {
                biased;
                () = waiting.until_fewer(limit) => {}
                () = clock.sleep(EVERY) => limit += STEP,
            }
        }
        let part = match from.next().await {
            Some(Ok(bytes)) => {
                waiting.bytes.fetch_add(bytes.len(), Ordering::Relaxed);
                Ok(Part::Bytes(bytes))
            }
            Some(Err(error)) => Err(error),
            None => Ok(Part::End),
        };
        let is_last = !matches!(part, Ok(Part::Bytes(_)));
        if to.send(part).is_err() || is_last {
            return;
        }
    }
}

fn pieces(reader: Reader) -> impl Stream<Item = std::result::Result<Bytes, axum::Error>> {
    stream::unfold(reader, |mut reader| async move {
        if reader.is_over {
            return None;
        }
        match reader.parts.recv().await {
            Some(Ok(Part::Bytes(bytes))) => {
                reader.waiting.bytes.fetch_sub(bytes.len(), Ordering::Relaxed);
                reader.waiting.fewer.notify_one();
                Some((Ok(bytes), reader))
            }
            Some(Ok(Part::End)) => None,
            Some(Err(error)) => {
                reader.is_over = true;
                Some((Err(error), reader))
            }
            None => {
                reader.is_over = true;
                Some((Err(axum::Error::new("whoever took the body is gone")), reader))
            }
        }
    })
    .fuse()
}

#[cfg(test)]
mod tests {
    use std::io;

    use axum::http::HeaderValue;
    use pvc_testkit::TokioClock;

    use super::*;

    const PIECE: usize = 256 << 10;

    /// A body of so many pieces, and how many of them were taken.
    fn body(pieces: usize, is_cut: bool) -> (Body, Arc<AtomicUsize>) {
        let taken = Arc::<AtomicUsize>::default();
        let count = taken.clone();
        let filled = stream::iter(0..pieces).map(move |index| {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(Bytes::from(vec![index as u8; PIECE]))
        });
        let end = stream::iter(is_cut.then(|| Err(io::Error::other("gone"))));
        (Body::from_stream(filled.chain(end)), taken)
    }

    /// Number of pieces that were taken after so many seconds in which nobody reads.
    async fn after(seconds: u64, taken: &AtomicUsize) -> usize {
        TokioClock::new().sleep(Duration::from_millis(1000 * seconds + 500)).await;
        taken.load(Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn a_sender_gets_on_while_nobody_reads_and_memory_is_bounded() {
        let (body, count) = body(1000, false);
        let mut stream =
            taken(&HeaderMap::new(), body, Arc::new(TokioClock::new())).into_data_stream();
        let clock = TokioClock::new();
        for more in 0..10 {
            clock.sleep(Duration::from_millis(500)).await;
            assert_eq!(count.load(Ordering::Relaxed), (more + 1) * STEP / PIECE, "after {more} s");
            clock.sleep(Duration::from_millis(500)).await;
        }
        assert_eq!(after(1000, &count).await, MOST / PIECE);
        for index in 0..1000 {
            let piece = stream.next().await.unwrap().unwrap();
            assert!(piece.len() == PIECE && piece[0] == index as u8, "{index}");
        }
        assert!(stream.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_whether_to_send_is_answered_by_a_reader() {
        let (body, count) = body(3, false);
        let mut headers = HeaderMap::new();
        headers.insert(header::EXPECT, HeaderValue::from_static("100-continue"));
        let mut stream = taken(&headers, body, Arc::new(TokioClock::new())).into_data_stream();
        assert_eq!(after(60, &count).await, 0);
        for _ in 0..3 {
            stream.next().await.unwrap().unwrap();
        }
        assert!(stream.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_breaks_off_does_and_one_that_nobody_wants_is_left() {
        let clock = Arc::new(TokioClock::new());
        let (broken, _) = body(2, true);
        let mut stream = taken(&HeaderMap::new(), broken, clock.clone()).into_data_stream();
        for _ in 0..2 {
            stream.next().await.unwrap().unwrap();
        }
        stream.next().await.unwrap().unwrap_err();
        assert!(stream.next().await.is_none());
        let (body, count) = body(1000, false);
        drop(taken(&HeaderMap::new(), body, clock));
        assert!(after(1000, &count).await <= STEP / PIECE);
    }
}
