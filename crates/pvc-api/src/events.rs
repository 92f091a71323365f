//! Stream of what changes, as it changes: server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::HeaderMap;
use axum::response::sse::{Event as Sent, KeepAlive, Sse};
use futures::{FutureExt, Stream, StreamExt, stream};
use pvc_api_types::operations::event::GetEvents;
use pvc_api_types::{Change, Event, EventKind as Kind};
use pvc_store::{EventFeed, EventKind};

use crate::answer::Answer;
use crate::error::Result;
use crate::json;
use crate::slots::Slot;
use crate::state::ApiState;

/// A comment this often keeps proxies from closing a quiet stream, and finds clients that are gone.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// The stream of events after the client's cursor, or from now on.
///
/// A cursor is `<process>-<revision>`: revisions are counted by each process for itself, and one
/// that another process gave cannot be continued.
pub fn events(
    api: &ApiState,
    caller: &str,
    headers: &HeaderMap,
    cursor: Option<String>,
) -> Result<Answer<GetEvents>> {
    let place = api.streams().take(caller, "event streams")?;
    let resumed = headers.get("last-event-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
    // What a browser's own reconnection says is newer than the address it reconnects to.
    let begin = match resumed.or(cursor).filter(|cursor| !cursor.is_empty()) {
        None => Begin::Now,
        Some(cursor) => revision_of(api, &cursor).map_or(Begin::Lost, Begin::After),
    };
    let stopping = api.stopping().clone();
    let stream =
        stream_from(api, begin, place).take_until(async move { stopping.cancelled().await });
    let heartbeat = KeepAlive::new().interval(HEARTBEAT).text("alive");
    Ok(Answer::events(Sse::new(stream).keep_alive(heartbeat)))
}

enum Begin {
    Now,
    After(u64),
    /// The cursor is none of ours.
    Lost,
}

/// The revision of a cursor that this process gave.
fn revision_of(api: &ApiState, cursor: &str) -> Option<u64> {
    let (process, revision) = cursor.rsplit_once('-')?;
    let revision = revision.parse().ok()?;
    (process == api.process()).then_some(revision)
}

fn stream_from(
    api: &ApiState,
    begin: Begin,
    place: Slot,
) -> impl Stream<Item = std::result::Result<Sent, Infallible>> + Send + 'static {
    let process = api.process().to_owned();
    let (after, reset) = match begin {
        Begin::Now => (None, false),
        Begin::After(revision) => (Some(revision), false),
        Begin::Lost => (None, true),
    };
    let feed = api.store().events(after);
    let cursor = feed.cursor();
    // The first line of every stream says where it begins: what is read after it is not older.
    let hello = Sent::default().comment("events of the cluster").id(format!("{process}-{cursor}"));
    let reset = reset.then(|| {
        let event = Event {
            revision: cursor,
            kind: Kind::Reset,
            id: String::new(),
            change: Change::Changed,
        };
        sent(&process, &event, true)
    });
    let first = stream::iter([Some(hello), reset].into_iter().flatten().map(Ok));
    first.chain(stream::unfold(Reader { feed, ahead: None, process, _place: place }, Reader::next))
}

struct Reader {
    feed: EventFeed,
    /// An event that was looked at already, to see whether it belongs to the revision before it.
    ahead: Option<pvc_store::Event>,
    process: String,
    _place: Slot,
}

impl Reader {
    async fn next(mut self) -> Option<(std::result::Result<Sent, Infallible>, Self)> {
        let event = match self.ahead.take() {
            Some(event) => event,
            None => self.feed.next().await?,
        };
        self.ahead = self.feed.next().now_or_never().flatten();
        // Several events may share a revision. Only the last carries the cursor: who is cut off
        // between them gets all of them again.
        let last = self.ahead.as_ref().is_none_or(|ahead| ahead.revision != event.revision);
        Some((Ok(sent(&self.process, &wire(&event), last)), self))
    }
}

fn sent(process: &str, event: &Event, last: bool) -> Sent {
    let data = String::from_utf8(json::to_bytes(event)).expect("JSON is ASCII here");
    let sent = Sent::default().event(event.kind.name()).data(data);
    if last { sent.id(format!("{process}-{}", event.revision)) } else { sent }
}

fn wire(event: &pvc_store::Event) -> Event {
    let (kind, id) = match &event.what {
        EventKind::Cluster => (Kind::Cluster, String::new()),
        EventKind::Node(name) => (Kind::Node, name.to_string()),
        EventKind::Vm(uuid) => (Kind::Vm, uuid.to_string()),
        EventKind::Network(vni) => (Kind::Network, vni.clone()),
        EventKind::Osd(id) => (Kind::Storage, format!("osd/{id}")),
        EventKind::Pool(name) => (Kind::Storage, format!("pool/{name}")),
        EventKind::Volume(id) => (Kind::Storage, format!("volume/{id}")),
        EventKind::Fault(id) => (Kind::Fault, id.clone()),
        EventKind::Job(id) => (Kind::Task, id.to_string()),
        EventKind::Reset => (Kind::Reset, String::new()),
    };
    let change = if event.gone { Change::Removed } else { Change::Changed };
    Event { revision: event.revision, kind, id, change }
}
