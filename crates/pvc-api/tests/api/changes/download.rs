//! Images that are made of volumes. What `qemu-img` makes is tested with it, in `pvc-images`.

use std::net::{SocketAddr, TcpListener};

use axum::body::Body;
use axum::http::Version;
use bytes::Bytes;
use pvc_api::{Spool, serve_on};
use pvc_model::storage::VolumeId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::transfer::{DOWNLOAD, data, with_data};
use super::*;
use crate::common::KEY;

const UPLOAD: &str = "/storage/ceph/volume/vms/data/upload?image_format=raw";

#[tokio::test]
async fn a_compressed_image_is_taken_as_it_was_given() {
    for (way, ending) in [("gzip", "gz"), ("xz", "xz"), ("zstd", "zst")] {
        let api = with_data().await;
        let got = api.get(&format!("{DOWNLOAD}?compression={way}")).await;
        assert_eq!(got.status, 200, "{way}");
        assert!(!got.headers.contains_key("content-length"), "{way}");
        assert!(got.body.len() < 10_000, "{way}: {} bytes", got.body.len());
        assert_eq!(got.headers["content-type"], "application/octet-stream");
        let name = format!("attachment; filename=\"data.raw.{ending}\"");
        assert_eq!(got.headers["content-disposition"], name);
        api.storage.with_volumes(|volumes| volumes.write(&data(), 0, b"new")).unwrap();
        let asked = crate::common::request(Method::POST, UPLOAD)
            .header("Content-Type", "application/octet-stream");
        let said = api.send(asked.body(got.body.into()).unwrap()).await.ok();
        assert_eq!(said["disk_bytes"], 1 << 20, "{way}");
        let read = api.storage.with_volumes(|volumes| volumes.read(&data(), 0, 3)).unwrap();
        assert_eq!(read, b"old", "{way}");
    }
    let api = with_data().await;
    let plain = api.get(&format!("{DOWNLOAD}?compression=none&image_format=raw")).await;
    assert_eq!(plain.headers["content-length"], "1048576");
    assert_eq!(plain.headers["content-disposition"], "attachment; filename=\"data.raw\"");
}

#[tokio::test]
async fn a_word_for_no_format_and_no_compression_is_refused_by_its_name() {
    let api = with_data().await;
    for (query, parameter) in [
        ("image_format=iso", "image_format"),
        ("image_format=", "image_format"),
        ("image_format=QCOW2", "image_format"),
        ("compression=zip", "compression"),
        ("compression=gzip&compression=xz", "compression"),
    ] {
        let words = api.get(&format!("{DOWNLOAD}?{query}")).await.refused(400);
        assert!(words.contains(parameter), "{query}: {words}");
    }
    api.storage.with_volumes(|volumes| volumes.check_unused(&data())).unwrap();
}

/// Number of times that the storage's gate is passed before the first piece of a download.
const BEGIN: u64 = 2;

/// The same of one of which an image is made: it is asked for its size first.
const BEGIN_OF_IMAGE: u64 = 4;

/// A volume, with a gate that closes before this call of the storage.
async fn gated(call: u64, limits: Limits) -> (Arc<Api>, Arc<Gate>) {
    let api = start(&Shape::with_vms(0).dump(), ApiSettings { limits, ..settings() }).await;
    api.post("/storage/ceph/volume/vms/data?size=1M").await.ok();
    let gate = Gate::closing_at(call);
    api.storage.set_gate(gate.clone());
    (Arc::new(api), gate)
}

async fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        tokio::task::yield_now().await;
    }
}

/// Waits until the gate is closed; fails with the answer of whoever has asked if that comes before.
async fn until_closed<T: std::fmt::Debug>(gate: &Gate, asked: &mut JoinHandle<T>) {
    tokio::select! {
        biased;
        () = until(|| gate.is_closed()) => {}
        answer = asked => panic!("it was answered before the gate closed: {:?}", answer.unwrap()),
    }
}

fn is_unused(api: &Api) -> bool {
    api.storage.with_volumes(|volumes| volumes.check_unused(&data())).is_ok()
}

#[tokio::test]
async fn a_daemon_that_stops_does_not_wait_for_an_image_in_the_making() {
    let (api, gate) = gated(BEGIN_OF_IMAGE, settings().limits).await;
    let asked = api.clone();
    let path = format!("{DOWNLOAD}?image_format=qcow2");
    let mut asked = tokio::spawn(async move { asked.get(&path).await });
    until_closed(&gate, &mut asked).await;
    assert!(!is_unused(&api));
    api.state.stopping().cancel();
    assert_eq!(asked.await.unwrap().refused(503), "the daemon stops");
    assert!(is_unused(&api));
}

/// The API on a socket.
fn listening(api: &Api) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve_on(vec![listener], api.state.clone(), CancellationToken::new()));
    address
}

/// The whole answer, as it comes. Whoever aborts this closes the connection.
async fn asked(address: SocketAddr, query: &str) -> JoinHandle<Bytes> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "GET /api/v1{DOWNLOAD}?{query} HTTP/1.1\r\nHost: x\r\nX-Api-Key: {KEY}\r\nConnection: \
         close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    tokio::spawn(async move {
        let mut bytes = Vec::new();
        // A connection that is broken has an end as well.
        let _ = stream.read_to_end(&mut bytes).await;
        bytes.into()
    })
}

#[tokio::test]
async fn a_client_that_goes_away_ends_the_image_in_the_making() {
    let limits = Limits { transfers: 1, ..settings().limits };
    let (api, gate) = gated(BEGIN_OF_IMAGE, limits).await;
    let mut client = asked(listening(&api), "image_format=qcow2").await;
    until_closed(&gate, &mut client).await;
    assert!(!is_unused(&api));
    client.abort();
    tokio::time::timeout(Duration::from_secs(20), until(|| is_unused(&api)))
        .await
        .expect("it is noticed while nothing is sent");
    gate.open();
    let again = api.get(DOWNLOAD).await;
    assert_eq!(again.status, 200, "its slot, the only one, is free again: {}", again.text());
}

#[tokio::test]
async fn a_connection_on_which_nothing_comes_for_long_is_kept() {
    let limits = Limits { head_time: Duration::from_millis(200), ..settings().limits };
    let (api, gate) = gated(0, limits).await;
    let mut client = asked(listening(&api), "snapshot=none").await;
    until_closed(&gate, &mut client).await;
    // Nothing is to be seen while it is kept: several times what an idle one has.
    tokio::time::sleep(Duration::from_secs(1)).await;
    gate.open();
    let reply = client.await.unwrap();
    assert!(reply.starts_with(b"HTTP/1.1 404"), "{reply:?}");
}

#[tokio::test]
async fn a_compressed_image_that_is_cut_has_no_last_chunk() {
    for fails in [false, true] {
        let (api, gate) = gated(BEGIN, settings().limits).await;
        let mut client = asked(listening(&api), "compression=zstd").await;
        until_closed(&gate, &mut client).await;
        api.storage.set_failing(fails);
        gate.open();
        let reply = client.await.unwrap();
        let text = String::from_utf8_lossy(&reply);
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        assert!(text.contains("transfer-encoding: chunked"), "{text}");
        assert_eq!(reply.ends_with(b"\r\n0\r\n\r\n"), !fails, "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_for_the_image_of_another_keeps_nobody_from_the_volume_and_gives_up() {
    let limits = Limits { transfers: 8, ..settings().limits };
    let (api, gate) = gated(BEGIN_OF_IMAGE, limits).await;
    let image = |volume: &str| {
        let path = format!("/storage/ceph/volume/vms/{volume}/download?image_format=qcow2");
        let api = api.clone();
        tokio::spawn(async move { api.get(&path).await })
    };
    let mut first = image("data");
    until_closed(&gate, &mut first).await;
    api.storage.set_gate(Gate::closing_at(u64::MAX));
    api.post("/storage/ceph/volume/vms/other?size=1M").await.ok();
    let second = image("other");
    tokio::time::sleep(Duration::from_secs(20)).await;
    let other = VolumeId::parse("vms/other").unwrap();
    api.storage.with_volumes(|volumes| volumes.check_unused(&other)).unwrap();
    let raw = api.get("/storage/ceph/volume/vms/other/download?compression=zstd").await;
    assert_eq!(raw.status, 200, "what takes no room does not wait");
    let refused = second.await.unwrap();
    assert!(refused.headers.contains_key("retry-after"));
    let words = refused.refused(503);
    assert_eq!(words, "other images were being made for 10 minutes: try again");
    assert!(!first.is_finished());
    first.abort();
}

#[tokio::test]
async fn an_image_for_which_there_is_no_room_is_refused_before_its_volume_is_opened() {
    let spool = Spool { directory: "/proc/none".into(), least_free_bytes: Some(0) };
    let api = start(&Shape::with_vms(0).dump(), ApiSettings { spool, ..settings() }).await;
    api.post("/storage/ceph/volume/vms/data?size=1M").await.ok();
    let gate = Gate::closing_at(2);
    api.storage.set_gate(gate.clone());
    let words = api.get(&format!("{DOWNLOAD}?image_format=vdi")).await.refused(503);
    assert!(words.starts_with("looking for room for the image failed"), "{words}");
    assert!(!gate.is_closed(), "the size alone was asked for");
}

#[tokio::test]
async fn nothing_is_made_for_a_client_that_does_not_take_it_or_could_not_see_its_end() {
    let (api, gate) = gated(0, settings().limits).await;
    for query in ["image_format=qcow2", "compression=zstd", ""] {
        let head = crate::common::request(Method::HEAD, &format!("{DOWNLOAD}?{query}"));
        let reply = api.send(head.body(Body::empty()).unwrap()).await;
        assert_eq!(reply.status, 405, "{query}");
        assert_eq!(reply.headers["allow"], "GET", "{query}");
    }
    let old = |query: &str| {
        let asked = crate::common::request(Method::GET, &format!("{DOWNLOAD}?{query}"));
        api.send(asked.version(Version::HTTP_10).body(Body::empty()).unwrap())
    };
    let words = old("compression=gzip").await.refused(400);
    assert_eq!(words, "a compressed download that breaks off would look whole by HTTP/1.0");
    assert!(!gate.is_closed(), "the storage was not asked");
    gate.open();
    assert_eq!(old("").await.headers["content-length"], "1048576");
}
