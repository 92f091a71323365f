//! The file that is sent with a request, as it comes: one piece in memory, whatever its size.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};
use memchr::memmem::Finder;
use multer::{Field, Multipart};
use pvc_ports::Clock;

use crate::body;
use crate::error::{ApiError, Result};
use crate::pace::Pace;

/// Time for which the rest of a file that is refused is still taken.
const TURNED_AWAY: Duration = Duration::from_secs(60);

/// The most bytes of a form beside its file: what comes before a part is kept until it begins.
const MOST_BESIDE: u64 = 64 << 10;

/// The same in lines, or what has come of one: the parser looks through all that it has after each.
const MOST_LINES: u32 = 1024;

/// The name of the part with the file.
const PART: &str = "file";

/// The file in the body of a request: the part `file` of a form, or the body itself.
pub struct Incoming {
    source: Source,
    pace: Pace,
}

enum Source {
    Body(BodyDataStream),
    Form(Box<Form>),
}

impl Incoming {
    /// Finds the file.
    ///
    /// # Errors
    /// If the body is neither a form that begins with it, nor `application/octet-stream`.
    pub async fn open(headers: &HeaderMap, body: Body, clock: &dyn Clock) -> Result<Self> {
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.unwrap_or_default();
        let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let mut pace = Pace::default();
        let source = match essence.as_str() {
            "application/octet-stream" => Source::Body(body.into_data_stream()),
            "multipart/form-data" => {
                let boundary = multer::parse_boundary(kind).map_err(bad_form)?;
                let mut form = Box::new(Form::new(body, boundary));
                require_file(pace.wait(clock, form.next_part()).await??)?;
                Source::Form(form)
            }
            _ => {
                body::turn_away(body);
                return Err(ApiError::refused(
                    "the body is neither `multipart/form-data` nor `application/octet-stream`",
                )
                .hint(Some("curl -F file=@disk.qcow2, or curl -T disk.qcow2 with that type")));
            }
        };
        Ok(Incoming { source, pace })
    }

    /// The next piece; `None` at the end of the file, after which the body has ended, too.
    ///
    /// # Errors
    /// If the client is silent or too slow, goes away before the end, or sends more than the file.
    pub async fn next(&mut self, clock: &dyn Clock) -> Result<Option<Bytes>> {
        let piece = match &mut self.source {
            Source::Body(stream) => {
                let piece = self.pace.wait(clock, stream.next()).await?;
                piece.transpose().map_err(|_| cut_off())?
            }
            Source::Form(form) => self.pace.wait(clock, form.next_piece()).await??,
        };
        match piece {
            Some(piece) => {
                self.pace.count(piece.len())?;
                Ok(Some(piece))
            }
            None => {
                self.require_end(clock).await?;
                Ok(None)
            }
        }
    }

    /// Takes the rest for a while and forgets it: a client that is still sending would lose the
    /// reply that tells it why the file is refused.
    pub fn turn_away(self) {
        let rest = async move {
            match self.source {
                Source::Body(mut stream) => while let Some(Ok(_)) = stream.next().await {},
                Source::Form(mut form) => while let Ok(Some(_)) = form.next_piece().await {},
            }
        };
        tokio::spawn(tokio::time::timeout(TURNED_AWAY, rest));
    }

    /// The end of a form says that its last part is whole.
    async fn require_end(&mut self, clock: &dyn Clock) -> Result<()> {
        let Source::Form(form) = &mut self.source else { return Ok(()) };
        match self.pace.wait(clock, form.next_part()).await?? {
            None => Ok(()),
            Some(_) => Err(ApiError::refused("the form has more than the file")),
        }
    }
}

/// Refuses a part that is not the file. The parser wants to have it back before it goes on.
fn require_file(part: Option<Field<'static>>) -> Result<()> {
    match part {
        Some(part) if part.name() == Some(PART) => Ok(()),
        Some(_) => Err(ApiError::refused(format!("the form has another part before `{PART}`"))
            .hint(Some("parameters of an upload are in the query"))),
        None => Err(ApiError::refused(format!("the form has no part `{PART}`"))),
    }
}

fn cut_off() -> ApiError {
    ApiError::refused("the request ended before its body was complete")
}

fn bad_form(error: multer::Error) -> ApiError {
    match error {
        multer::Error::StreamReadFailed(why) if why.is::<TooMuchBeside>() => {
            ApiError::refused(format!("the multipart body cannot be read: {why}"))
        }
        multer::Error::IncompleteFieldData { .. }
        | multer::Error::IncompleteStream
        | multer::Error::StreamReadFailed(_) => cut_off(),
        other => ApiError::refused(format!("the multipart body cannot be read: {other}")),
    }
}

/// A form, whose parser keeps all that comes until it finds a part. It would also copy all of the
/// part: the bytes of that go past it.
struct Form {
    parts: Multipart<'static>,
    wire: Arc<Mutex<Wire>>,
    /// The line that ends a part.
    end: Finder<'static>,
    /// Whether the part has ended.
    is_over: bool,
}

impl Form {
    fn new(body: Body, boundary: String) -> Self {
        let end = Finder::new(&format!("\r\n--{boundary}")).into_owned();
        let (stream, rest) = (Some(body.into_data_stream()), Bytes::new());
        let wire =
            Arc::new(Mutex::new(Wire { stream, rest, left: MOST_BESIDE, lines: MOST_LINES }));
        let lines = Lines { wire: wire.clone(), has_given: false };
        Form { parts: Multipart::new(lines, boundary), wire, end, is_over: false }
    }

    async fn next_part(&mut self) -> Result<Option<Field<'static>>> {
        {
            let mut wire = lock(&self.wire);
            (wire.left, wire.lines) = (MOST_BESIDE, MOST_LINES);
        }
        self.parts.next_field().await.map_err(bad_form)
    }

    /// The next bytes of the part; `None` at its end.
    async fn next_piece(&mut self) -> Result<Option<Bytes>> {
        if self.is_over {
            return Ok(None);
        }
        let Form { wire, end, .. } = self;
        let piece = poll_fn(|context| lock(wire).poll_piece(end, context)).await?;
        self.is_over = piece.is_none();
        Ok(piece)
    }
}

/// Bytes of a form, as they come.
struct Wire {
    stream: Option<BodyDataStream>,
    /// Bytes that have come and are not taken yet.
    rest: Bytes,
    /// Number of bytes that may yet come before a part begins.
    left: u64,
    /// Number of lines that may.
    lines: u32,
}

fn lock(wire: &Mutex<Wire>) -> MutexGuard<'_, Wire> {
    wire.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wire {
    fn poll_more(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Bytes, axum::Error>>> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(None) };
        let more = ready!(stream.poll_next_unpin(context));
        if more.is_none() {
            self.stream = None;
        }
        Poll::Ready(more)
    }

    /// The next line, or what has come of it.
    fn poll_line(&mut self, context: &mut Context<'_>) -> Poll<Option<Line>> {
        if self.lines == 0 || self.rest.is_empty() && self.left == 0 {
            return Poll::Ready(Some(Err(TooMuchBeside.into())));
        }
        if self.rest.is_empty() {
            self.rest = match ready!(self.poll_more(context)) {
                Some(Ok(more)) => more,
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => return Poll::Ready(None),
            };
            self.left = self.left.saturating_sub(self.rest.len() as u64);
        }
        self.lines -= 1;
        let length = memchr::memchr(b'\n', &self.rest).map_or(self.rest.len(), |at| at + 1);
        Poll::Ready(Some(Ok(self.rest.split_to(length))))
    }

    /// The next bytes of a part; `None` at its end, with which the rest begins then.
    fn poll_piece(
        &mut self,
        end: &Finder<'_>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>>> {
        loop {
            match before_end(&self.rest, end) {
                (0, true) => return Poll::Ready(Ok(None)),
                (0, false) => {}
                (length, _) => return Poll::Ready(Ok(Some(self.rest.split_to(length)))),
            }
            let Some(Ok(more)) = ready!(self.poll_more(context)) else {
                return Poll::Ready(Err(cut_off()));
            };
            self.rest = joined(std::mem::take(&mut self.rest), more);
        }
    }
}

impl Drop for Wire {
    /// Whoever is still sending a form that is refused is to read why.
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            body::linger(stream);
        }
    }
}

/// Number of bytes before the end of a part, or before what may be the begin of it, and whether the
/// end is there.
fn before_end(bytes: &[u8], end: &Finder<'_>) -> (usize, bool) {
    if let Some(at) = end.find(bytes) {
        return (at, true);
    }
    let line = end.needle();
    let mut last = bytes.len().saturating_sub(line.len() - 1)..bytes.len();
    (last.find(|at| line.starts_with(&bytes[*at..])).unwrap_or(bytes.len()), false)
}

/// The bytes one after the other; copied only if there are some of both.
fn joined(first: Bytes, second: Bytes) -> Bytes {
    if first.is_empty() {
        return second;
    }
    let mut both = BytesMut::with_capacity(first.len() + second.len());
    both.extend_from_slice(&first);
    both.extend_from_slice(&second);
    both.freeze()
}

/// Refusal of a form that is something else than a file for too long.
#[derive(Debug, thiserror::Error)]
#[error("more than {} KiB or {MOST_LINES} lines come before a part begins", MOST_BESIDE >> 10)]
struct TooMuchBeside;

type Line = std::result::Result<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// The lines of a form, as its parser gets them: with nothing ready after each. It takes all that
/// is ready, and would have the begin of the file with the line that stands before it.
struct Lines {
    wire: Arc<Mutex<Wire>>,
    has_given: bool,
}

impl Stream for Lines {
    type Item = Line;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Line>> {
        if std::mem::take(&mut self.has_given) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let next = lock(&self.wire).poll_line(context);
        self.has_given = matches!(next, Poll::Ready(Some(Ok(_))));
        next
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use axum::http::StatusCode;
    use futures::stream;
    use pvc_testkit::TokioClock;

    use super::*;

    type Piece = std::result::Result<&'static str, std::io::Error>;

    async fn read(kind: &str, pieces: Vec<Piece>) -> Result<String> {
        let clock = TokioClock::new();
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, kind.parse().unwrap());
        let body = Body::from_stream(stream::iter(pieces));
        let mut incoming = Incoming::open(&headers, body, &clock).await?;
        let mut read = Vec::new();
        while let Some(piece) = incoming.next(&clock).await? {
            read.extend_from_slice(&piece);
        }
        assert_eq!(incoming.next(&clock).await?, None, "nothing comes after the end");
        Ok(String::from_utf8(read).unwrap())
    }

    const FORM: &str = "multipart/form-data; boundary=b";
    const HEAD: &str =
        "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n";

    #[tokio::test]
    async fn the_file_is_the_body_or_a_part_of_a_form() {
        let octets = "application/octet-stream";
        assert_eq!(read(octets, vec![Ok("di"), Ok("sk")]).await.unwrap(), "disk");
        assert_eq!(read(octets, vec![]).await.unwrap(), "");
        let form = vec![Ok(HEAD), Ok("di"), Ok("sk\r"), Ok("\n--b-"), Ok("-\r\n")];
        assert_eq!(read(FORM, form).await.unwrap(), "disk");
        assert_eq!(read(FORM, vec![Ok(HEAD), Ok("\r\n--b--\r\n")]).await.unwrap(), "");
    }

    #[tokio::test]
    async fn a_file_ends_where_its_form_says_wherever_its_bytes_are_cut() {
        let like_an_end = "\r\r\n\r\n-\r\n--\r\n--a\n--b\r\n\r\n";
        for file in ["", "\r", "\n", "\r\n--", "disk\r\n", like_an_end] {
            let text: &'static str = ["before\r\n", HEAD, file, "\r\n--b--\r\n"].concat().leak();
            for length in 1..=text.len() {
                let cuts = (0..text.len()).step_by(length);
                let pieces = cuts.map(|at| Ok(&text[at..text.len().min(at + length)])).collect();
                assert_eq!(read(FORM, pieces).await.unwrap(), file, "in pieces of {length}");
            }
        }
    }

    #[tokio::test]
    async fn a_file_in_a_form_is_not_copied() {
        let clock = TokioClock::new();
        let whole = Bytes::from([HEAD, &"disk".repeat(1000), "\r\n--b--\r\n"].concat());
        let (mut headers, pieces) = (HeaderMap::new(), [Ok::<_, std::io::Error>(whole.clone())]);
        headers.insert(header::CONTENT_TYPE, FORM.parse().unwrap());
        let body = Body::from_stream(stream::iter(pieces));
        let mut incoming = Incoming::open(&headers, body, &clock).await.unwrap();
        let piece = incoming.next(&clock).await.unwrap().unwrap();
        assert!(piece.len() == 4000 && whole.as_ptr_range().contains(&piece.as_ptr()));
        assert_eq!(incoming.next(&clock).await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_file_that_does_not_end_is_none() {
        let broken = || Err(std::io::Error::other("gone"));
        for (kind, pieces) in [
            ("application/octet-stream", vec![Ok("di"), broken()]),
            (FORM, vec![Ok(HEAD), Ok("disk")]),
            (FORM, vec![Ok(HEAD), Ok("disk\r\n--b")]),
            (FORM, vec![Ok(HEAD), Ok("disk"), broken()]),
        ] {
            let error = read(kind, pieces).await.unwrap_err();
            assert_eq!(error.body.message, "the request ended before its body was complete");
        }
    }

    #[tokio::test]
    async fn what_is_no_file_is_refused() {
        let twice = [HEAD, "a\r\n", HEAD, "b\r\n--b--\r\n"].concat().leak();
        let other = HEAD.replace("\"file\"", "\"size\"").leak();
        for (kind, pieces, said) in [
            ("application/json", vec![Ok("{}")], "neither"),
            ("multipart/form-data", vec![Ok(HEAD)], "cannot be read"),
            (FORM, vec![Ok(&*twice)], "more than the file"),
            (FORM, vec![Ok(&*other), Ok("10\r\n--b--\r\n")], "another part"),
            (FORM, vec![Ok("--b--\r\n")], "no part"),
        ] {
            let error = read(kind, pieces).await.unwrap_err();
            assert!(error.body.message.contains(said), "{kind}: {}", error.body.message);
        }
    }

    /// Pieces of 64 KiB without end, of which it is counted how many were taken.
    fn endless(begin: &'static str, taken: &Arc<AtomicU64>) -> Body {
        let taken = taken.clone();
        let filling = stream::repeat_with(move || {
            taken.fetch_add(1, Ordering::Relaxed);
            Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; 64 << 10]))
        });
        let begin = stream::iter([Ok(Bytes::from_static(begin.as_bytes()))]);
        Body::from_stream(begin.chain(filling))
    }

    const TOO_MUCH: &str = "the multipart body cannot be read: more than 64 KiB or 1024 lines \
                            come before a part begins";

    #[tokio::test]
    async fn a_form_of_line_breaks_is_refused_before_they_take_long() {
        let lines: &'static str = "\n".repeat(32 << 10).leak();
        let error = read(FORM, vec![Ok(lines), Ok(HEAD), Ok("disk\r\n--b--\r\n")]).await;
        assert_eq!(error.expect_err("it has too many lines").body.message, TOO_MUCH);
    }

    #[tokio::test]
    async fn a_form_that_never_comes_to_its_file_is_refused_before_it_fills_the_memory() {
        let clock = TokioClock::new();
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, FORM.parse().unwrap());
        for begin in ["", "--b\r\nContent-Disposition: form-data; name=\"file", "--b\r\n"] {
            let taken = Arc::default();
            let opened = Incoming::open(&headers, endless(begin, &taken), &clock).await;
            let error = opened.err().expect("there is no file");
            assert_eq!(error.status, StatusCode::BAD_REQUEST);
            assert_eq!(error.body.message, TOO_MUCH, "{begin}");
            assert!(taken.load(Ordering::Relaxed) <= 2, "{taken:?} pieces");
        }
        // Also behind the file, where another part would be refused.
        let taken = Arc::default();
        let begin = [HEAD, "disk\r\n--b\r\n"].concat().leak();
        let mut incoming = Incoming::open(&headers, endless(begin, &taken), &clock).await.unwrap();
        assert_eq!(incoming.next(&clock).await.unwrap().unwrap(), "disk");
        incoming.next(&clock).await.unwrap_err();
        assert!(taken.load(Ordering::Relaxed) <= 2, "{taken:?} pieces");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_silent_or_trickles_is_turned_away() {
        let clock = TokioClock::new();
        let mut headers = HeaderMap::new();
        let octets = header::HeaderValue::from_static("application/octet-stream");
        headers.insert(header::CONTENT_TYPE, octets);
        let silent = Body::from_stream(stream::pending::<Piece>());
        let mut incoming = Incoming::open(&headers, silent, &clock).await.unwrap();
        let error = incoming.next(&clock).await.unwrap_err();
        assert_eq!(error.status, StatusCode::REQUEST_TIMEOUT);

        let trickle = stream::unfold((), |()| async {
            TokioClock::new().sleep(Duration::from_secs(50)).await;
            Some((Ok::<_, std::io::Error>("a few bytes"), ()))
        });
        let body = Body::from_stream(trickle);
        let mut incoming = Incoming::open(&headers, body, &clock).await.unwrap();
        let refused = loop {
            match incoming.next(&clock).await {
                Ok(piece) => assert!(piece.is_some()),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.status, StatusCode::REQUEST_TIMEOUT);
        assert_eq!(
            refused.body.message,
            "33 bytes went in 150 s, and fewer than 491520 are too few"
        );
    }
}
