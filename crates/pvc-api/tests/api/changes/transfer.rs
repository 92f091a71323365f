//! Contents of volumes, in and out.

use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use futures::{StreamExt as _, stream};
use pvc_model::storage::VolumeId;
use pvc_ports::Storage;
use sha2::{Digest, Sha256};

use super::*;
use crate::common::request;

const UPLOAD: &str = "/storage/ceph/volume/vms/data/upload";
pub const DOWNLOAD: &str = "/storage/ceph/volume/vms/data/download";

/// The VM `web`, off, and the volume `vms/data` of 1 MiB, which begins with `old`.
pub async fn with_data() -> Arc<Api> {
    let api = with_web().await;
    api.post("/storage/ceph/volume/vms/data?size=1M").await.ok();
    api.storage.with_volumes(|volumes| volumes.write(&data(), 0, b"old")).unwrap();
    api
}

pub fn data() -> VolumeId {
    VolumeId::parse("vms/data").unwrap()
}

fn digits(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Api {
    async fn upload(&self, query: &str, body: impl Into<Body>) -> Reply {
        let asked = request(Method::POST, &format!("{UPLOAD}?{query}"));
        let asked = asked.header("Content-Type", "application/octet-stream");
        let body = body.into();
        // As a server has it, which this is without.
        let asked = match axum::body::HttpBody::size_hint(&body).exact() {
            Some(length) => asked.header("Content-Length", length),
            None => asked,
        };
        self.send(asked.body(body).unwrap()).await
    }

    /// The first three bytes of the volume.
    fn begin(&self) -> String {
        let read = self.storage.with_volumes(|volumes| volumes.read(&data(), 0, 3)).unwrap();
        String::from_utf8(read).unwrap()
    }
}

#[tokio::test]
async fn an_image_gives_the_volume_its_contents_and_comes_back() {
    let api = with_data().await;
    let image = [b"new".to_vec(), vec![0; 300_000], b"end".to_vec()].concat();
    let query = format!("image_format=raw&file_size={}&sha256={}", image.len(), digits(&image));
    let said = api.upload(&query, image.clone()).await.ok();
    assert_eq!(said["message"], "Wrote uploaded file to volume \"vms/data\".");
    assert_eq!(said["sha256"], digits(&image));
    assert_eq!(said["crc32"], format!("{:08x}", crc32fast::hash(&image)));
    assert_eq!((&said["file_bytes"], &said["disk_bytes"]), (&json!(300_006), &json!(300_006)));
    let got = api.get(DOWNLOAD).await;
    assert_eq!((got.status.as_u16(), got.body.len()), (200, 1 << 20), "it has its size");
    assert_eq!(&got.body[..300_006], &image[..]);
    assert!(got.body[300_006..].iter().all(|byte| *byte == 0));
    assert_eq!(got.headers["content-length"], "1048576");
    assert_eq!(got.headers["content-type"], "application/octet-stream");
    assert_eq!(got.headers["content-disposition"], "attachment; filename=\"data.raw\"");
    assert!(api.store.view().holds.is_empty());
}

#[tokio::test]
async fn a_form_of_a_browser_or_of_an_old_client_is_taken() {
    let api = with_data().await;
    let form = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"filename\"\r\n\
                Content-Type: application/octet-stream\r\n\r\nnew disk\r\n--b--\r\n";
    let asked = request(Method::POST, &format!("{UPLOAD}?image_format=raw"))
        .header("Content-Type", "multipart/form-data; boundary=b")
        .header("Content-Length", form.len());
    api.send(asked.body(Body::from(form)).unwrap()).await.ok();
    assert_eq!(api.begin(), "new");
}

/// A page of the API's own sends the session of who looks at it, and no key.
#[tokio::test]
async fn a_page_of_its_own_uploads_and_downloads_with_the_session_of_who_looks_at_it() {
    let api = with_data().await;
    let login = api.form(Method::POST, "/login", "token", crate::common::KEY).await;
    let cookie = login.headers["set-cookie"].to_str().unwrap();
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let page = |method: Method, path: &str| {
        axum::http::Request::builder()
            .method(method)
            .uri(format!("/api/v1{path}"))
            .header("Host", "127.0.0.1:7370")
            .header("Origin", "http://127.0.0.1:7370")
            .header("Sec-Fetch-Site", "same-origin")
            .header("Sec-Fetch-Mode", "cors")
            .header("Cookie", &cookie)
    };
    let form = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"disk.img\"\r\n\
                Content-Type: application/octet-stream\r\n\r\nnew disk\r\n--b--\r\n";
    let asked = page(Method::POST, &format!("{UPLOAD}?image_format=raw"))
        .header("Content-Type", "multipart/form-data; boundary=b")
        .header("Content-Length", form.len());
    let reply = api.send(asked.body(Body::from(form)).unwrap()).await;
    assert!(!reply.headers.contains_key("access-control-allow-origin"));
    reply.ok();
    assert_eq!(api.begin(), "new");
    let asked = page(Method::GET, DOWNLOAD).body(Body::empty()).unwrap();
    let got = api.send(asked).await;
    assert_eq!((got.status.as_u16(), &got.body[..3]), (200, &b"new"[..]));
    let asked = page(Method::OPTIONS, UPLOAD).header("Access-Control-Request-Method", "POST");
    let reply = api.send(asked.body(Body::empty()).unwrap()).await;
    assert!(!reply.headers.contains_key("access-control-allow-origin"), "{:?}", reply.headers);
}

#[tokio::test]
async fn what_cannot_be_taken_leaves_the_volume_as_it_was() {
    let api = with_data().await;
    let wrong = digits(b"another");
    let qcow2: &[u8] = b"QFI\xfb\0\0\0\x03 and so on";
    for (query, body, status, why) in [
        ("", &b"new"[..], 400, "image_format"),
        ("image_format=iso", b"new", 400, "image_format"),
        ("image_format=raw&file_size=x", b"new", 400, "file_size"),
        ("image_format=raw&sha256=12", b"new", 400, "64 hexadecimal digits"),
        ("image_format=raw&file_size=4", b"new", 400, "4"),
        ("image_format=raw&file_size=2", b"new", 400, "2"),
        ("image_format=raw", b"", 400, "0 bytes"),
        (&format!("image_format=raw&sha256={wrong}"), b"new", 400, "checksum"),
        ("image_format=raw", &vec![1; (1 << 20) + 1], 400, "1048576"),
        ("image_format=raw", qcow2, 400, "qcow2"),
        ("image_format=qcow2", b"new", 400, "qcow2"),
        ("image_format=raw", &[0x1f, 0x8b, 8, 0, 0], 400, "gzip"),
    ] {
        let words = api.upload(query, body.to_vec()).await.refused(status);
        assert!(words.contains(why), "{query}: {words}");
    }
    let cut = stream::iter([Ok("new"), Err(std::io::Error::other("gone"))]);
    let words = api.upload("image_format=raw", Body::from_stream(cut)).await.refused(400);
    assert!(words.contains("ended before"), "{words}");
    let typed = request(Method::POST, &format!("{UPLOAD}?image_format=raw"))
        .header("Content-Type", "application/json");
    api.send(typed.body(Body::from("{}")).unwrap()).await.refused(400);
    assert_eq!(api.begin(), "old");
    assert!(api.store.fresh().await.unwrap().holds.is_empty());
    assert_eq!(api.storage.trashed(&data().pool).await.unwrap(), []);
    let forced = api.upload("image_format=raw&force=true", qcow2.to_vec()).await.ok();
    assert_eq!(forced["file_bytes"], 18, "somebody may mean it");
}

#[tokio::test]
async fn a_raw_image_without_an_end_of_its_own_fills_the_volume_or_has_a_size() {
    let api = with_data().await;
    let piped =
        |bytes: &'static [u8]| Body::from_stream(stream::iter([Ok::<_, std::io::Error>(bytes)]));
    let form = b"--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nnew\r\n--b--\r\n";
    let asked = request(Method::POST, &format!("{UPLOAD}?image_format=raw"))
        .header("Content-Type", "multipart/form-data; boundary=b");
    for cut in [
        api.upload("image_format=raw", piped(b"new")).await,
        api.send(asked.body(piped(form)).unwrap()).await,
    ] {
        assert!(cut.json()["hint"].as_str().unwrap().contains("`--file-size`"), "{cut:?}");
        let words = cut.refused(400);
        assert!(words.contains("has 3 of the 1048576 bytes"), "{words}");
        assert_eq!(api.begin(), "old");
    }
    let checksum = format!("sha256={}", digits(b"new"));
    for said in ["file_size=3", &*checksum, "force=true"] {
        api.upload(&format!("image_format=raw&{said}"), piped(b"new")).await.ok();
        assert_eq!(api.begin(), "new", "{said}");
        api.storage.with_volumes(|volumes| volumes.write(&data(), 0, b"old")).unwrap();
    }
    api.upload("image_format=raw", piped(&[b'x'; 1 << 20])).await.ok();
    assert_eq!(api.begin(), "xxx");
}

#[tokio::test]
async fn what_would_be_refused_in_the_end_is_refused_before_a_byte_is_read() {
    let api = with_data().await;
    let unread = || Body::from_stream(stream::pending::<Result<&'static str, std::io::Error>>());
    for dry in ["", "&dry_run=true"] {
        let query = format!("image_format=raw{dry}");
        api.post("/storage/ceph/snapshot/vms/data/before").await.ok();
        let words = api.upload(&query, unread()).await.refused(400);
        assert!(words.contains("has a snapshot `before`"), "{words}");
        api.delete("/storage/ceph/snapshot/vms/data/before").await.ok();
        api.storage.with_volumes(|volumes| volumes.open(&data(), "somebody"));
        let words = api.upload(&query, unread()).await.refused(400);
        assert!(words.contains("somebody"), "{words}");
        api.storage.with_volumes(|volumes| volumes.close_all("somebody"));
    }
    let nowhere = "/storage/ceph/volume/vms/none/upload?image_format=raw";
    api.send(request(Method::POST, nowhere).body(unread()).unwrap()).await.refused(404);
    let said = api.upload("image_format=raw&dry_run=true", unread()).await.ok();
    assert!(said["message"].as_str().unwrap().starts_with("nothing was changed"), "{said}");
    assert_eq!(api.begin(), "old");
}

#[tokio::test]
async fn a_pool_that_is_full_to_81_percent_takes_an_upload_by_force_alone() {
    let api = with_data().await;
    api.storage.with_volumes(|volumes| volumes.fill_pool(&data().pool, 79));
    api.upload("image_format=raw&file_size=3", "ok?").await.ok();
    api.storage.with_volumes(|volumes| volumes.fill_pool(&data().pool, 81));
    let unread = || {
        Body::from_stream(stream::poll_fn(
            |_| -> std::task::Poll<Option<Result<&'static str, std::io::Error>>> {
                panic!("the body was read")
            },
        ))
    };
    for dry in ["", "&dry_run=true"] {
        let reply = api.upload(&format!("image_format=raw{dry}"), unread()).await;
        let words = reply.refused(400);
        assert!(words.contains("would be filled beyond 80 %"), "{words}");
        assert_eq!(api.begin(), "ok?");
    }
    api.upload("image_format=raw&file_size=3&force=true", "new").await.ok();
    assert_eq!(api.begin(), "new");
}

/// Number of calls of the storage, each of which passes a gate twice, before an upload begins: it
/// is looked at the volume, whether it is unused, and at the pool.
const LOOKS: u64 = 2 * 3;

#[tokio::test(start_paused = true)]
async fn a_storage_that_takes_its_time_to_begin_a_volume_gets_it() {
    for (seconds, status) in [(80, 200), (100, 503)] {
        let api = with_data().await;
        let gate = Gate::closing_at(LOOKS);
        api.storage.set_gate(gate.clone());
        let opens = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            assert!(gate.is_closed());
            gate.open();
        });
        let reply = api.upload("image_format=raw", "new").await;
        assert_eq!(reply.status, status, "{}", reply.text());
        opens.await.unwrap();
        assert_eq!(api.begin(), if status == 200 { "new" } else { "old" });
    }
}

#[tokio::test]
async fn one_caller_has_half_of_the_uploads_that_may_be_under_way() {
    let api = with_data().await;
    let begun = Arc::new(AtomicUsize::new(0));
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let (api, begun) = (api.clone(), begun.clone());
            let begins = async move {
                begun.fetch_add(1, Ordering::Relaxed);
                Ok::<_, std::io::Error>("new")
            };
            let body = futures::StreamExt::chain(stream::once(begins), stream::pending());
            let body = Body::from_stream(body);
            tokio::spawn(async move { api.upload("image_format=raw", body).await })
        })
        .collect();
    while begun.load(Ordering::Relaxed) < 4 {
        tokio::task::yield_now().await;
    }
    let refused = api.upload("image_format=raw", "new").await.refused(503);
    assert_eq!(refused, "4 uploads are under way, 4 of them yours: no more now");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    while api.upload("image_format=raw", "new").await.status != 200 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_snapshot_can_be_downloaded_while_somebody_has_the_volume_open() {
    let api = with_data().await;
    api.post("/storage/ceph/snapshot/vms/data/before").await.ok();
    api.storage.with_volumes(|volumes| volumes.write(&data(), 0, b"now")).unwrap();
    api.storage.with_volumes(|volumes| volumes.open(&data(), "somebody"));
    api.get(DOWNLOAD).await.refused(400);
    let got = api.get(&format!("{DOWNLOAD}?snapshot=before")).await;
    assert_eq!((got.status.as_u16(), &got.body[..3]), (200, &b"old"[..]));
    assert_eq!(got.headers["content-disposition"], "attachment; filename=\"data@before.raw\"");
    api.get(&format!("{DOWNLOAD}?snapshot=none")).await.refused(404);
    api.get("/storage/ceph/volume/none/data/download").await.refused(404);
}

#[tokio::test(start_paused = true)]
async fn an_upload_of_a_client_that_stands_still_leaves_the_volume_as_it_was() {
    let api = with_data().await;
    let begun = stream::iter([Ok::<_, std::io::Error>(vec![b'n'; 300_000])]);
    let still = Body::from_stream(begun.chain(stream::pending()));
    let query = "image_format=raw&file_size=1048576";
    let said = api.upload(query, still).await.refused(408);
    assert!(said.contains("120 s"), "{said}");
    assert!(api.store.fresh().await.unwrap().holds.is_empty());
    assert_eq!(api.begin(), "old");
    // Its slot is somebody else's.
    let image = vec![b'n'; 1 << 20];
    api.upload(query, image).await.ok();
    assert_eq!(api.begin(), "nnn");
}
