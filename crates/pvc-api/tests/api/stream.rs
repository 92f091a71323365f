//! The stream of events.

use axum::body::Body;
use axum::http::{Method, Request};
use futures::StreamExt;
use tower::ServiceExt;

use crate::common::{self, Api, request, with_vms};

/// The blocks of a stream, one event each.
struct Events {
    body: axum::body::BodyDataStream,
    text: String,
}

/// An event as a browser sees it.
#[derive(Debug, Clone, Default, PartialEq)]
struct Seen {
    id: Option<String>,
    name: String,
    data: serde_json::Value,
}

impl Events {
    async fn open(api: &Api, request: Request<Body>) -> Events {
        let response = api.router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Events { body: response.into_body().into_data_stream(), text: String::new() }
    }

    async fn next(&mut self) -> Option<Seen> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let seen = parse(block);
                self.text = rest.to_owned();
                return Some(seen);
            }
            let chunk = tokio::time::timeout(std::time::Duration::from_secs(20), self.body.next());
            let chunk = chunk.await.expect("an event within 20 s")?.unwrap();
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }
}

fn parse(block: &str) -> Seen {
    let mut seen = Seen::default();
    for (field, value) in block.lines().filter_map(|line| line.split_once(": ")) {
        match field {
            "id" => seen.id = Some(value.to_owned()),
            "event" => seen.name = value.to_owned(),
            "data" => seen.data = serde_json::from_str(value).unwrap(),
            _ => {}
        }
    }
    seen
}

fn ask(path: &str) -> Request<Body> {
    request(Method::GET, path).body(Body::empty()).unwrap()
}

#[tokio::test]
async fn the_stream_tells_where_it_begins_and_then_what_changes() {
    let api = with_vms(2).await;
    let mut events = Events::open(&api, ask("/events")).await;
    let hello = events.next().await.unwrap();
    assert!(hello.id.is_some() && hello.name.is_empty());
    let uuid = api.uuid("vm00001");
    api.write(&format!("/domains/{uuid}/state"), "fail").await;
    let seen = events.next().await.unwrap();
    assert_eq!(
        (seen.name.as_str(), seen.data["id"].as_str()),
        ("vm", Some(uuid.to_string().as_str()))
    );
    assert_eq!(
        (seen.data["kind"].as_str(), seen.data["change"].as_str()),
        (Some("vm"), Some("changed"))
    );
    assert!(seen.id.unwrap().ends_with(&format!("-{}", seen.data["revision"])));
}

#[tokio::test]
async fn a_reader_continues_where_it_was_by_header_or_parameter() {
    let api = with_vms(2).await;
    let mut first = Events::open(&api, ask("/events")).await;
    let cursor = first.next().await.unwrap().id.unwrap();
    api.write("/config/maintenance", "true").await;
    let missed = first.next().await.unwrap();
    drop(first);
    let by_header = request(Method::GET, "/events")
        .header("Last-Event-ID", &cursor)
        .body(Body::empty())
        .unwrap();
    for request in [by_header, ask(&format!("/events?cursor={cursor}"))] {
        let mut events = Events::open(&api, request).await;
        assert_eq!(events.next().await.unwrap().id.as_deref(), Some(cursor.as_str()));
        assert_eq!(events.next().await.unwrap(), missed);
    }
}

#[tokio::test]
async fn a_cursor_that_cannot_be_continued_gets_a_reset() {
    let api = with_vms(2).await;
    let own = Events::open(&api, ask("/events")).await.next().await.unwrap().id.unwrap();
    let future = format!("{}-99999999", own.split_once('-').unwrap().0);
    for cursor in ["nonsense", "0000-1", "1-1-1", &future] {
        let mut events = Events::open(&api, ask(&format!("/events?cursor={cursor}"))).await;
        events.next().await.unwrap();
        let reset = events.next().await.unwrap();
        assert_eq!(reset.name, "reset", "{cursor}");
        assert!(reset.id.is_some(), "the reader continues behind the reset");
    }
}

#[tokio::test]
async fn the_stream_ends_when_the_daemon_stops_and_needs_a_key() {
    let api = with_vms(1).await;
    let mut events = Events::open(&api, ask("/events")).await;
    events.next().await.unwrap();
    api.state.stopping().cancel();
    assert_eq!(events.next().await, None);
    let open = Request::get("/api/v1/events").body(Body::empty()).unwrap();
    api.send(open).await.refused(401);
}

#[tokio::test]
async fn only_so_many_streams_are_open_at_once() {
    // Half of them for one caller.
    let limits = pvc_api::Limits { streams: 4, ..pvc_api::Limits::default() };
    let settings = pvc_api::ApiSettings { limits, ..common::settings() };
    let api = common::start(&pvc_store::synthetic::Shape::with_vms(0).dump(), settings).await;
    let one = Events::open(&api, ask("/events")).await;
    let _two = Events::open(&api, ask("/events")).await;
    let refused = api.get("/events").await.refused(503);
    assert!(refused.contains("2 event streams are under way, 2 of them yours"), "{refused}");
    drop(one);
    Events::open(&api, ask("/events")).await;
}
